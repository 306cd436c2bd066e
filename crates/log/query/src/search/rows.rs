//! Packets of a part: the rows of a row group, by flow.

use std::collections::HashMap;
use std::convert::Infallible;
use std::iter::repeat_n;

use foldhash::fast::RandomState;
use strata_archive::parts::{self, Batch, Input, PacketRows, Rebuild, Row, TableReader};
use strata_archive::{ArchiveError, PacketColumn};
use strata_filter::{Expr, Filter};
use strata_store::{Log, Part};
use strata_wire::{FlowKey, Meta};

use crate::export::metas_of;
use crate::exporter::flow_of;
use crate::parts::cells::{IntColumn, WrongValue};
use crate::parts::decided::decided;
use crate::parts::{Payload, Source};

use super::groups::{OfGroup, ranges};
use super::pieces::{Links, OpenPart};
use super::seen::by_sight;
use super::{FoundPacket, FoundRun, Label, Matches, Searching, TakeFound, is_within};

/// Rows whose packets are put together at a time, more for a flow that has more.
const ROWS_AT_ONCE: usize = 1 << 16;

/// How many flows ahead the taker of packets hears of one.
pub(super) const FLOWS_AHEAD: usize = 16;

/// What is read of a packet. Its addresses and ports are those of its flow.
const COLUMNS: [PacketColumn; 8] = [
    PacketColumn::Time,
    PacketColumn::WireBytes,
    PacketColumn::HeaderBytes,
    PacketColumn::PayloadBytes,
    PacketColumn::Class,
    PacketColumn::Granularity,
    PacketColumn::Reason,
    PacketColumn::Score,
];

/// Passes what is wanted of a row group, reading its packets.
pub(super) fn read(
    searching: &Searching<'_>,
    part: &OpenPart<'_>,
    group: usize,
    matches: &mut Matches<'_>,
    take: &mut dyn TakeFound,
) -> Result<(), ArchiveError> {
    let find = &searching.find;
    // Flows of which a filter takes all packets or none, if it sees in them what they are.
    let (mut all, mut none) = (Vec::new(), Vec::new());
    let (mut sure, mut unsure) = (Vec::new(), Vec::new());
    for of in part.flows.of_packets(group) {
        part.flows.each(of, true, |place, name| {
            if place.group != group {
                return;
            }
            let flow = OfGroup::of(&place);
            if let Some(name) = name {
                take.name(&flow.key, name);
            }
            match find.filter.map(Filter::ast) {
                None | Some(Expr::Any) => sure.push(flow),
                Some(_) if place.hides_addresses => unsure.push(flow),
                Some(filter) => match decided(filter, &place.facts) {
                    Some(true) => all.push(flow),
                    Some(false) => none.push(flow),
                    None => unsure.push(flow),
                },
            }
        })?;
    }
    for (flows, is_wanted) in [(all, true), (none, false)] {
        if flows.is_empty() {
            continue;
        }
        let (seen, unseen) = by_sight(part, group, flows, links(searching, part)?)?;
        unsure.extend(unseen);
        if is_wanted {
            sure.extend(seen);
        }
    }
    if !sure.is_empty() {
        sure.sort_by_key(|flow| flow.first_row);
        let columns = COLUMNS.map(PacketColumn::index);
        let read = part.table.batch(group, &columns, &ranges(&sure))?;
        of_rows(&read, &sure, searching, part.part.recording, take).map_err(|wrong| {
            ArchiveError::Table {
                file: part.named.clone(),
                source: wrong.into(),
            }
        })?;
    }
    if !unsure.is_empty() {
        unsure.sort_by_key(|flow| flow.first_row);
        let mut rebuilding = Rebuilding::of(searching, part)?;
        rebuilding.group((&part.table, group), &unsure, matches, take)?;
    }
    Ok(())
}

/// Passes the packets of flows, of which these are the rows.
fn of_rows(
    read: &Batch,
    flows: &[OfGroup],
    searching: &Searching<'_>,
    recording: u32,
    take: &mut dyn TakeFound,
) -> Result<(), WrongValue> {
    let find = &searching.find;
    let ints = |at: usize| IntColumn::of(COLUMNS[at].spec(), read.ints(at));
    let times = ints(0);
    let [wire, header, payload] = [1, 2, 3].map(ints);
    let scores = read.floats(7);
    let mut labels = Labels::of(read, searching.model_of(recording));
    let mut packets = Vec::new();
    let mut row = 0;
    for (number, flow) in flows.iter().enumerate() {
        if let Some(later) = flows.get(number + FLOWS_AHEAD) {
            take.soon(&later.key);
        }
        let (low, end) = (row + flow.low_rows, row + flow.rows);
        for (rows, low_to_high) in [(row..low, true), (low..end, false)] {
            let mut run = FoundRun {
                flow: flow.key,
                low_to_high,
                label: 0,
                packets: &[],
            };
            packets.clear();
            for at in rows {
                let ts_ns = times.time(at)?;
                let wire_bytes = wire.there(at)?;
                let kept: u32 = header.there(at)?;
                let more: u32 = payload.there(at)?;
                if !is_within(find, ts_ns) {
                    continue;
                }
                let label = labels.at(at, take);
                if label != run.label {
                    pass(&run, &mut packets, take);
                    run.label = label;
                }
                packets.push(FoundPacket {
                    ts_ns,
                    wire_bytes,
                    kept_bytes: kept.saturating_add(more),
                    score: scores.get(at),
                });
            }
            pass(&run, &mut packets, take);
        }
        row = end;
    }
    Ok(())
}

/// Passes packets of a run, if there are any.
fn pass(run: &FoundRun<'_>, packets: &mut Vec<FoundPacket>, take: &mut dyn TakeFound) {
    if !packets.is_empty() {
        take.packets(&FoundRun {
            packets: packets.as_slice(),
            ..*run
        });
        packets.clear();
    }
}

/// The labels of rows, each numbered once.
struct Labels<'a> {
    recording: u32,
    texts: [Option<parts::TextCells<'a>>; 3],
    known: HashMap<[Option<usize>; 3], usize, RandomState>,
    last: Option<([Option<usize>; 3], usize)>,
}

impl<'a> Labels<'a> {
    fn of(read: &'a Batch, recording: u32) -> Self {
        Self {
            recording,
            texts: [4, 5, 6].map(|at| read.texts(at)),
            known: HashMap::default(),
            last: None,
        }
    }

    #[inline]
    fn at(&mut self, row: usize, take: &mut dyn TakeFound) -> usize {
        let codes = self
            .texts
            .map(|texts| texts.and_then(|texts| texts.code(row)));
        if let Some((last, label)) = self.last
            && last == codes
        {
            return label;
        }
        let (texts, recording) = (&self.texts, self.recording);
        let label = *self.known.entry(codes).or_insert_with(|| {
            let text = |at: usize| texts[at].zip(codes[at]);
            let text = |at| text(at).map_or("", |(texts, code)| texts.entry(code));
            take.label(&Label {
                recording,
                class: text(0),
                granularity: text(1),
                reason: text(2),
            })
        });
        self.last = Some((codes, label));
        label
    }
}

/// Packets of a part, put together to be looked at.
struct Rebuilding<'a> {
    searching: &'a Searching<'a>,
    links: &'a Links,
    payload: Payload,
    named: &'a str,
    /// The first recording with the same model.
    recording: u32,
}

impl<'a> Rebuilding<'a> {
    fn of(searching: &'a Searching<'a>, part: &'a OpenPart<'_>) -> Result<Self, ArchiveError> {
        let links = links(searching, part)?;
        let disk = searching.log.disk().as_ref();
        let payload = Payload::open(disk, part.part)?;
        Ok(Self {
            searching,
            links,
            payload,
            named: &part.named,
            recording: searching.model_of(part.part.recording),
        })
    }

    /// Passes the packets of flows of a row group that match.
    fn group(
        &mut self,
        (table, group): (&TableReader<Input>, usize),
        flows: &[OfGroup],
        matches: &mut Matches<'_>,
        take: &mut dyn TakeFound,
    ) -> Result<(), ArchiveError> {
        let mut rest = flows;
        while !rest.is_empty() && self.searching.goes_on() {
            let mut rows = 0;
            let more = rest.iter().position(|flow| {
                let is_full = rows > 0 && rows + flow.rows > ROWS_AT_ONCE;
                rows += flow.rows;
                is_full
            });
            let (some, after) = rest.split_at(more.unwrap_or(rest.len()));
            rest = after;
            let read = PacketRows::read(table, group, &ranges(some))?;
            let mut rebuild = Rebuild::default();
            let mut header = Vec::new();
            let mut by_row = some.iter().flat_map(|flow| repeat_n(flow, flow.rows));
            let taken: Result<(), Infallible> = read.each(0..read.count(), |row, problem| {
                let flow = by_row.next().expect("a flow for each row that was read");
                header.clear();
                let rebuilt = rebuild.header(row, problem, &mut header);
                let rebuilt = rebuilt.map(|()| &header[..]);
                self.packet(flow, (row, rebuilt), matches, take);
                Ok(())
            });
            let Ok(()) = taken;
        }
        Ok(())
    }

    fn packet(
        &mut self,
        flow: &OfGroup,
        (row, header): (&Row<'_>, Result<&[u8], Source>),
        matches: &mut Matches<'_>,
        take: &mut dyn TakeFound,
    ) {
        let bytes = header.and_then(|header| match row.payload_len {
            0 => Ok(Some(header)),
            _ => self.payload.of(row),
        });
        let bytes = match bytes {
            Ok(Some(bytes)) => bytes,
            Ok(None) => {
                take.damage(format!("{}: a packet's payload cannot be read", self.named));
                return;
            }
            Err(problem) => {
                take.damage(format!("{}: {problem}", self.named));
                return;
            }
        };
        let Some(&link) = self.links.get(&row.interface) else {
            take.damage(format!("{}: a packet of an unknown interface", self.named));
            return;
        };
        let find = &self.searching.find;
        if !is_within(find, row.time) || !matches(link, bytes, row.wire) {
            return;
        }
        let (key, low_to_high) = flow_of(link, bytes, |_, _| ());
        let text = |bytes| std::str::from_utf8(bytes).unwrap_or("damaged");
        let label = take.label(&Label {
            recording: self.recording,
            class: text(row.class),
            granularity: text(row.granularity),
            reason: text(row.reason),
        });
        take.packets(&FoundRun {
            flow: flow.key,
            low_to_high: match is_of(&key, &flow.key) {
                true => low_to_high,
                false => flow.from_low,
            },
            label,
            packets: &[FoundPacket {
                ts_ns: row.time,
                wire_bytes: row.wire,
                kept_bytes: u32::from(row.header_len).saturating_add(row.payload_len),
                score: row.score,
            }],
        });
    }
}

/// Whether a packet with this key tells the direction of a flow's packets: it has the same key, or, as a
/// later fragment, that without its ports.
fn is_of(key: &FlowKey, flow: &FlowKey) -> bool {
    let is_of_ends = [key.low.address, key.high.address] == [flow.low.address, flow.high.address];
    key == flow || (is_of_ends && flow.low.address != flow.high.address)
}

/// The links of a part's interfaces.
fn links<'a>(searching: &Searching<'_>, part: &'a OpenPart<'_>) -> Result<&'a Links, ArchiveError> {
    if let Some(links) = part.links.get() {
        return Ok(links);
    }
    let links = links_of(searching.log, part.part)?;
    Ok(part.links.get_or_init(|| links))
}

/// Damage of metadata is found with the packets whose link is not known.
fn links_of(log: &Log, part: &Part) -> Result<Links, ArchiveError> {
    let recording = log.recordings().iter().find(|one| one.id == part.recording);
    let metas = recording.map(|one| metas_of(log, one, &mut Vec::new()));
    let metas = metas.transpose()?.into_iter().flatten();
    let links = metas.filter_map(|meta| match meta {
        Meta::Interface { id, interface } => Some((id, interface.link)),
        _ => None,
    });
    Ok(links.collect())
}
