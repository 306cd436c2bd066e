//! The totals of a log by time and class, from what was written about its packets: the counts of row
//! groups, the summaries of blocks. Only packets of blocks at the edge of a point or of the time asked
//! for are read.

use std::collections::HashMap;
use std::ops::Range;

use foldhash::fast::RandomState;
use strata_archive::ArchiveError;
use strata_archive::parts::Amounts;
use strata_blocks::{BlockHeader, ClassCount, Record};
use strata_store::{Block, BlockFile, Log, Recording, Select, StoreError, index_name};
use strata_wire::{Context, KeepKind};

use crate::exporter::Judgement as _;
use crate::merge::Known;
use crate::parts::find::Find;

use super::pieces::OpenPart;
use super::{FoundCounts, FoundPoint, Label, TakeFound, counted, is_within};

/// An outline of a log.
#[derive(Clone, Copy)]
pub struct Outline<'a> {
    /// From this time on, ns.
    pub from_ns: Option<u64>,
    /// Before this time, ns.
    pub to_ns: Option<u64>,
    /// Length of the points, which begin at multiples of it.
    pub points_ns: u64,
    /// Whether the rest is still wanted.
    pub goes_on: &'a dyn Fn() -> bool,
}

impl std::fmt::Debug for Outline<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outline")
            .field("points_ns", &self.points_ns)
            .finish_non_exhaustive()
    }
}

/// Tells what the packets of a log come to by class and granularity, without reasons and flows, to
/// [`TakeFound::counted`] and [`TakeFound::counted_point`]. False if that is not all: something was
/// written about too few packets, some are damaged, encrypted or promoted, or it was ended. Then
/// [`search`](super::search) tells.
///
/// Memory: a block, and the counts of a part.
///
/// # Errors
///
/// If the log cannot be read.
pub fn outline(
    log: &Log,
    outline: &Outline<'_>,
    take: &mut dyn TakeFound,
) -> Result<bool, ArchiveError> {
    let find = Find {
        from_ns: outline.from_ns,
        to_ns: outline.to_ns,
        filter: None,
    };
    let outlining = Outlining { log, outline, find };
    for part in log.archive().parts.iter().filter(|part| part.packets > 0) {
        let Ok(open) = OpenPart::open(log, part, (&find, true)) else {
            return Ok(false);
        };
        if let Some(open) = open
            && !outlining.part(&open, take)
        {
            return Ok(false);
        }
    }
    for recording in log.recordings() {
        for file in &recording.files {
            if recording.look_back || !outlining.file((recording, file), take)? {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

struct Outlining<'a> {
    log: &'a Log,
    outline: &'a Outline<'a>,
    find: Find<'a>,
}

impl Outlining<'_> {
    /// False without counts, or where the time asked for cuts a row group.
    fn part(&self, part: &OpenPart<'_>, take: &mut dyn TakeFound) -> bool {
        for group in 0..part.groups {
            let counts = part.counts.as_ref().and_then(|counts| counts.group(group));
            let Some(counts) = counts else {
                return false;
            };
            let [first, last] = counts.span_ns();
            if !self.find.may_be_within(first, last) {
                continue;
            }
            if !counted::do_for(&counts, &self.find, self.outline.points_ns) {
                return false;
            }
            for label in counts.labels() {
                let [class, granularity, _] = label.texts;
                tell((class, granularity), [first, last], label.amounts, take);
            }
            counted::points(&counts, take);
        }
        true
    }

    fn file(
        &self,
        (recording, file): (&Recording, &BlockFile),
        take: &mut dyn TakeFound,
    ) -> Result<bool, ArchiveError> {
        // Single blocks of it can be read.
        let is_indexed = file.sealed && self.log.disk().exists(&index_name(&file.name));
        let select = Select {
            without_records: is_indexed,
            ..Select::default()
        };
        // Blocks that have to be read, and their packets.
        let mut cut: Vec<(Range<usize>, u64)> = Vec::new();
        for (number, block) in self.log.blocks_in(recording, file, &select).enumerate() {
            let block = match block {
                Ok(block) if (self.outline.goes_on)() => block,
                Ok(_) | Err(StoreError::Damage(_)) => return Ok(false),
                Err(error) => return Err(error.into()),
            };
            let header = &block.header;
            let (first, last) = (header.ts_min_ns, header.ts_max_ns);
            if header.packets == 0 || !self.find.may_be_within(first, last) {
                continue;
            }
            let packets = u64::from(header.packets);
            if self.is_whole(&block) {
                for count in &block.summary.counts {
                    let class = recording.classes.get(usize::from(count.class));
                    let class = class.map_or("unknown", String::as_str);
                    let amounts = [count.packets, count.wire_bytes, count.logged_bytes];
                    tell((class, count.keep.name()), [first, last], amounts, take);
                    point((class, count.keep.name()), first, amounts, take);
                }
            } else if !is_indexed {
                if self.records(&block, take) != Some(packets) {
                    return Ok(false);
                }
            } else {
                match cut.last_mut() {
                    Some((numbers, all)) if numbers.end == number => {
                        (numbers.end, *all) = (number + 1, *all + packets);
                    }
                    _ => cut.push((number..number + 1, packets)),
                }
            }
        }
        for (numbers, packets) in cut {
            if self.read((recording, file), numbers, take)? != Some(packets) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether its summary tells what its packets come to at a point.
    fn is_whole(&self, block: &Block) -> bool {
        let BlockHeader {
            ts_min_ns,
            ts_max_ns,
            ..
        } = block.header;
        let step = self.outline.points_ns;
        is_sum(&block.summary.counts, block.header.packets)
            && ts_min_ns / step == ts_max_ns / step
            && is_within(&self.find, ts_min_ns)
            && is_within(&self.find, ts_max_ns)
    }

    /// Counts the packets of some blocks of a file one by one; returns how many these blocks have, if all
    /// of it can be read and told.
    fn read(
        &self,
        (recording, file): (&Recording, &BlockFile),
        numbers: Range<usize>,
        take: &mut dyn TakeFound,
    ) -> Result<Option<u64>, ArchiveError> {
        let select = Select {
            numbers: Some(numbers),
            ..Select::default()
        };
        let mut packets = 0;
        for block in self.log.blocks_in(recording, file, &select) {
            match block {
                Ok(block) if (self.outline.goes_on)() => match self.records(&block, take) {
                    Some(more) => packets += more,
                    None => return Ok(None),
                },
                Ok(_) | Err(StoreError::Damage(_)) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Some(packets))
    }

    /// Counts the packets of a block that are in the time asked for; returns how many it has, `None` if
    /// something of it cannot be told: a bad record, a packet whose verdict is defined in another block.
    fn records(&self, block: &Block, take: &mut dyn TakeFound) -> Option<u64> {
        let step = self.outline.points_ns;
        let mut known = Known::default();
        let mut classes: Vec<String> = Vec::new();
        let mut by_verdict: HashMap<u16, usize, RandomState> = HashMap::default();
        let mut sums: HashMap<(u64, usize, KeepKind), Sum, RandomState> = HashMap::default();
        let mut packets = 0;
        let mut is_told = true;
        for record in block.records() {
            match record {
                Ok(Record::Packet(packet)) => {
                    packets += 1;
                    if !is_within(&self.find, packet.ts_ns) {
                        continue;
                    }
                    let class = *by_verdict.entry(packet.verdict).or_insert_with(|| {
                        let judged = known.of(&packet);
                        let class = judged.class();
                        is_told &= class.is_some();
                        classes.push(class.unwrap_or("unknown").to_owned());
                        classes.len() - 1
                    });
                    let by = (packet.ts_ns / step, class, packet.keep);
                    let kept = packet.data.len() as u64;
                    let sum = sums.entry(by).or_default();
                    sum.add(packet.ts_ns, [1, u64::from(packet.wire_len), kept]);
                }
                Ok(Record::Verdict(id, verdict)) => {
                    if known.define(id, verdict) {
                        by_verdict.remove(&id);
                    }
                }
                Ok(Record::Context(json)) => {
                    known.set_context(Context::from_json(json).ok()?);
                    by_verdict.clear();
                }
                Ok(Record::Meta(_) | Record::FlowShare(_)) => {}
                Err(_) => return None,
            }
        }
        if !is_told {
            return None;
        }
        for ((at, class, keep), sum) in sums {
            let of = (classes[class].as_str(), keep.name());
            tell(of, sum.span, sum.amounts, take);
            point(of, at * step, sum.amounts, take);
        }
        Some(packets)
    }
}

/// What some packets come to.
struct Sum {
    /// Earliest and latest arrival.
    span: [u64; 2],
    amounts: Amounts,
}

impl Default for Sum {
    fn default() -> Self {
        Self {
            span: [u64::MAX, 0],
            amounts: [0; 3],
        }
    }
}

impl Sum {
    fn add(&mut self, ts_ns: u64, more: Amounts) {
        let [first, last] = self.span;
        self.span = [first.min(ts_ns), last.max(ts_ns)];
        for (sum, more) in self.amounts.iter_mut().zip(more) {
            *sum += more;
        }
    }
}

/// More bytes than any packet has.
const PACKET_BYTES: u64 = 1 << 33;

/// Whether counts are those of this number of packets.
fn is_sum(counts: &[ClassCount], packets: u32) -> bool {
    let is_possible = |count: &ClassCount| {
        let most = count.packets.saturating_mul(PACKET_BYTES);
        count.packets <= packets.into() && count.wire_bytes <= most && count.logged_bytes <= most
    };
    let sum: u128 = counts.iter().map(|count| u128::from(count.packets)).sum();
    counts.iter().all(is_possible) && sum == packets.into()
}

/// Tells what packets of a class and granularity come to, for whatever reason they were kept.
fn tell(
    (class, granularity): (&str, &str),
    span_ns: [u64; 2],
    amounts: Amounts,
    take: &mut dyn TakeFound,
) {
    let label = take.label(&Label {
        recording: 0,
        class,
        granularity,
        reason: "",
    });
    let counts = FoundCounts { amounts, span_ns };
    take.counted(label, &counts);
}

fn point(
    (class, granularity): (&str, &str),
    from_ns: u64,
    amounts: Amounts,
    take: &mut dyn TakeFound,
) {
    take.counted_point(&FoundPoint {
        class,
        granularity,
        from_ns,
        amounts,
    });
}
