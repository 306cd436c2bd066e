//! The totals of each row group of `packets`, in the metadata of its file: a reader of totals need
//! not read the rows. The text is JSON, compressed by zstd, in base64. Nothing depends on it: without
//! it the rows are read.

use std::collections::HashMap;
use std::io::Read as _;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use strata_tables::{TableInput, TableReader};
use strata_wire::exact;

use crate::columns::verdicts::Verdict;
use crate::error::Source;
use crate::run::{Run, u32_of};

/// Its key in the metadata.
pub(crate) const KEY: &str = "strata.counts";
/// Rows of a group without counts: these are read as fast.
const ROWS_MIN: usize = 4_096;
/// A group with more labels has no counts, nor one that has a label for fewer rows than that: these take some
/// 12 bytes each, and damage to the metadata costs the whole file.
const LABELS_MAX: usize = 8_192;
const ROWS_EACH: usize = 64;
/// Maximum number of points of a group, and their lengths: each divides those of the operator's page, but for a few.
const POINTS_MAX: u64 = 240;
const NS_PER_MS: u64 = 1_000_000;
const STEPS_MS: [u64; 7] = [1, 10, 100, 1_000, 5_000, 60_000, 300_000];
/// Maximum bytes of the JSON text.
const BYTES_MAX: u64 = 64 << 20;
/// More bytes on the wire than any packet has.
const PACKET_BYTES: u64 = 1 << 33;

/// Counts of the row groups of a file.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Classes, granularities and reasons, each once.
    texts: Vec<String>,
    groups: Vec<Option<Group>>,
}

/// Packets, bytes on the wire, bytes kept.
pub type Amounts = [u64; 3];

/// Counts of a row group.
#[derive(Debug, Serialize, Deserialize)]
struct Group {
    /// The earliest and the latest arrival, ns.
    span: [u64; 2],
    labels: Vec<Labelled>,
    step_ms: u64,
    points: Vec<Point>,
}

/// Class, granularity and reason; what its packets come to.
#[derive(Debug, Serialize, Deserialize)]
struct Labelled([u32; 3], Amounts);

/// Class and granularity; which of the points since 1970; what its packets come to.
#[derive(Debug, Serialize, Deserialize)]
struct Point([u32; 2], u64, Amounts);

/// Counts of a row group.
#[derive(Clone, Copy, Debug)]
pub struct GroupCounts<'a> {
    texts: &'a [String],
    group: &'a Group,
}

/// What packets of a class, granularity and reason come to.
#[derive(Clone, Copy, Debug)]
pub struct LabelCounts<'a> {
    /// Class, granularity, reason.
    pub texts: [&'a str; 3],
    /// What they come to.
    pub amounts: Amounts,
}

/// What packets of a class and granularity come to in a short time.
#[derive(Clone, Copy, Debug)]
pub struct PointCounts<'a> {
    /// Class, granularity.
    pub texts: [&'a str; 2],
    /// When that time begins, ns.
    pub from_ns: u64,
    /// What they come to.
    pub amounts: Amounts,
}

impl Counts {
    /// The counts of a table of packets; `None` if it has none that make sense.
    #[must_use]
    pub fn of<R: TableInput>(table: &TableReader<R>) -> Option<Self> {
        let counts = parse(table.about(KEY)?)?;
        let rows = table.groups();
        let texts = counts.texts.len();
        let makes_sense = |(group, rows): (&Option<Group>, &usize)| {
            let group = group.as_ref();
            group.is_none_or(|group| group.makes_sense(texts, *rows as u64))
        };
        let fits = counts.groups.len() == rows.len();
        (fits && counts.groups.iter().zip(&rows).all(makes_sense)).then_some(counts)
    }

    /// Those of a row group, if it has any.
    #[must_use]
    pub fn group(&self, number: usize) -> Option<GroupCounts<'_>> {
        let group = self.groups.get(number)?.as_ref()?;
        let texts = &self.texts;
        Some(GroupCounts { texts, group })
    }
}

fn parse(text: &str) -> Option<Counts> {
    let packed = BASE64_STANDARD.decode(text).ok()?;
    let mut json = Vec::new();
    let decoder = zstd::stream::read::Decoder::new(&packed[..]).ok()?;
    decoder.take(BYTES_MAX).read_to_end(&mut json).ok()?;
    serde_json::from_slice(&json).ok()
}

impl Group {
    /// Whether texts, times and sums are possible for this number of rows.
    fn makes_sense(&self, texts: usize, rows: u64) -> bool {
        let names = |names: &[u32]| names.iter().all(|&name| (name as usize) < texts);
        let labels = self.labels.iter();
        let step_ns = self.step_ms.checked_mul(NS_PER_MS).filter(|step| *step > 0);
        let is_within = |at: u64| step_ns.is_some_and(|step| at.checked_mul(step).is_some());
        let points = self.points.iter();
        self.span[0] <= self.span[1]
            && labels.clone().all(|label| names(&label.0))
            && points
                .clone()
                .all(|point| names(&point.0) && is_within(point.1))
            && sums_up(labels.map(|label| label.1), rows)
            && sums_up(points.map(|point| point.2), rows)
    }
}

/// Whether amounts are those of this number of packets.
fn sums_up(amounts: impl Iterator<Item = Amounts>, rows: u64) -> bool {
    let mut sums = [0_u64; 3];
    for amounts in amounts {
        for (sum, more) in sums.iter_mut().zip(amounts) {
            let Some(more) = sum.checked_add(more) else {
                return false;
            };
            *sum = more;
        }
    }
    let [packets, wire, kept] = sums;
    let most = rows.saturating_mul(PACKET_BYTES);
    packets == rows && wire <= most && kept <= most
}

impl<'a> GroupCounts<'a> {
    /// The earliest and the latest arrival, ns.
    #[must_use]
    pub fn span_ns(&self) -> [u64; 2] {
        self.group.span
    }

    /// The length of its points, which begin at multiples of it.
    #[must_use]
    pub fn step_ns(&self) -> u64 {
        // It makes sense, so it does not overflow.
        self.group.step_ms.saturating_mul(NS_PER_MS)
    }

    /// Its packets by class, granularity and reason.
    pub fn labels(&self) -> impl Iterator<Item = LabelCounts<'a>> + use<'a> {
        let (texts, group) = (self.texts, self.group);
        group.labels.iter().map(move |label| LabelCounts {
            texts: label.0.map(|text| texts[text as usize].as_str()),
            amounts: label.1,
        })
    }

    /// Its packets by class, granularity and time.
    pub fn points(&self) -> impl Iterator<Item = PointCounts<'a>> + use<'a> {
        let (texts, step_ns) = (self.texts, self.step_ns());
        self.group.points.iter().map(move |point| PointCounts {
            texts: point.0.map(|text| texts[text as usize].as_str()),
            from_ns: point.1.saturating_mul(step_ns),
            amounts: point.2,
        })
    }
}

/// Counts the row groups of a file while it is written.
#[derive(Debug, Default)]
pub(crate) struct CountsWriter {
    counts: Counts,
    numbers: HashMap<String, u32>,
}

impl CountsWriter {
    /// Counts a row group: these rows of the run.
    pub(crate) fn add(&mut self, run: &Run, rows: &[u32], verdicts: &[Verdict]) {
        let group = self.group(run, rows, verdicts);
        self.counts.groups.push(group);
    }

    /// What goes into the file's metadata, if there is anything.
    pub(crate) fn finish(self) -> Result<Option<String>, Source> {
        if self.counts.groups.iter().all(Option::is_none) {
            return Ok(None);
        }
        let json = serde_json::to_vec(&self.counts)?;
        let packed = zstd::bulk::compress(&json, zstd::DEFAULT_COMPRESSION_LEVEL)?;
        Ok(Some(BASE64_STANDARD.encode(packed)))
    }

    fn group(&mut self, run: &Run, rows: &[u32], verdicts: &[Verdict]) -> Option<Group> {
        if rows.len() < ROWS_MIN {
            return None;
        }
        let times = rows.iter().map(|&row| run.time[row as usize]);
        let (first, last) = (times.clone().min()?, times.max()?);
        let is_few = |ms: &u64| {
            last.saturating_sub(first) / ms.saturating_mul(NS_PER_MS).max(1) < POINTS_MAX
        };
        let step_ms = STEPS_MS.into_iter().find(is_few)?;
        let mut counting = Counting::new([first, last], step_ms);
        for &row in rows {
            let row = row as usize;
            let by = (run.verdict[row], run.keep[row].code());
            let label = match counting.labels_by.get(&by) {
                _ if counting.last.0 == by => counting.last.1,
                Some(known) => *known,
                None => {
                    let verdict = &verdicts[run.verdict[row] as usize];
                    let class = self.number(verdict.class_name.as_utf8().ok()?);
                    let keep = self.number(run.keep[row].name());
                    let reason = self.number(verdict.reason.as_utf8().ok()?);
                    counting.label(by, [class, keep, reason])?
                }
            };
            counting.last = (by, label);
            let kept = u64::from(run.header_len[row]).saturating_add(run.payload_len[row].into());
            let amounts = [1, u64::from(run.wire[row]), kept];
            counting.packet(label, run.time[row], amounts);
        }
        let is_worth_it = counting.labels.len() <= rows.len().wrapping_div(ROWS_EACH);
        is_worth_it.then(|| counting.done())
    }

    fn number(&mut self, text: &str) -> u32 {
        if let Some(&known) = self.numbers.get(text) {
            return known;
        }
        let number = u32_of(self.counts.texts.len());
        self.counts.texts.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }
}

/// A row group that is being counted.
struct Counting {
    group: Group,
    step_ns: u64,
    points: usize,
    /// Labels, and numbers of their series, by verdict and granularity.
    labels_by: HashMap<(u32, u8), (usize, usize)>,
    /// Labels by their texts, which several verdicts may share.
    labels: HashMap<[u32; 3], usize>,
    last: ((u32, u8), (usize, usize)),
    /// By class and granularity.
    series: Vec<([u32; 2], Vec<Amounts>)>,
}

impl Counting {
    fn new(span: [u64; 2], step_ms: u64) -> Self {
        let step_ns = step_ms.saturating_mul(NS_PER_MS).max(1);
        let first = span[0].wrapping_div(step_ns);
        let points = span[1]
            .wrapping_div(step_ns)
            .saturating_sub(first)
            .saturating_add(1);
        Self {
            group: Group {
                span,
                labels: Vec::new(),
                step_ms,
                points: Vec::new(),
            },
            step_ns,
            points: exact(points),
            labels_by: HashMap::new(),
            labels: HashMap::new(),
            // No granularity has this code.
            last: ((0, u8::MAX), (0, 0)),
            series: Vec::new(),
        }
    }

    /// The label with these texts, and its series; `None` if there are too many.
    fn label(&mut self, by: (u32, u8), texts: [u32; 3]) -> Option<(usize, usize)> {
        let labels = &mut self.group.labels;
        let next = labels.len();
        let label = *self.labels.entry(texts).or_insert(next);
        if label == LABELS_MAX {
            return None;
        }
        if label == next {
            labels.push(Labelled(texts, [0; 3]));
        }
        let [class, keep, _] = texts;
        let known = self.series.iter().position(|(of, _)| *of == [class, keep]);
        let series = known.unwrap_or_else(|| {
            let points = vec![[0; 3]; self.points];
            self.series.push(([class, keep], points));
            self.series.len() - 1
        });
        self.labels_by.insert(by, (label, series));
        Some((label, series))
    }

    fn packet(&mut self, (label, series): (usize, usize), time: u64, amounts: Amounts) {
        let start = self.group.span[0] / self.step_ns;
        let at: usize = exact(time / self.step_ns - start);
        let label = &mut self.group.labels[label].1;
        let point = &mut self.series[series].1[at];
        for (sums, more) in label.iter_mut().zip(point).zip(amounts) {
            *sums.0 += more;
            *sums.1 += more;
        }
    }

    fn done(mut self) -> Group {
        let start = self.group.span[0] / self.step_ns;
        for (texts, points) in self.series {
            let points = (start..).zip(points).filter(|(_, amounts)| amounts[0] > 0);
            let points = points.map(|(at, amounts)| Point(texts, at, amounts));
            self.group.points.extend(points);
        }
        self.group
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group() -> Group {
        Group {
            span: [1_000_000_000, 3_000_000_000],
            labels: vec![
                Labelled([0, 1, 2], [3, 300, 30]),
                Labelled([0, 1, 3], [2, 200, 20]),
            ],
            step_ms: 1_000,
            points: vec![
                Point([0, 1], 1, [4, 400, 40]),
                Point([0, 1], 3, [1, 100, 10]),
            ],
        }
    }

    /// A change of the counts, and what it is.
    type Change = (&'static str, fn(&mut Group));

    #[test]
    fn counts_that_make_no_sense_are_not_used() {
        assert!(group().makes_sense(4, 5));
        let changes: [Change; 8] = [
            ("a text that is not there", |group| group.labels[0].0[2] = 4),
            ("a point's text that is not there", |group| {
                group.points[0].0[1] = 9;
            }),
            ("more packets than rows", |group| group.labels[0].1[0] = 4),
            ("fewer packets than rows", |group| group.points[1].2[0] = 0),
            ("bytes that no packets have", |group| {
                group.labels[0].1[1] = u64::MAX - 200;
            }),
            ("sums beyond 64 bits", |group| {
                group.points[0].2[2] = u64::MAX;
            }),
            ("a first packet after the last", |group| {
                group.span[0] = 4_000_000_000;
            }),
            ("times beyond 64 bits", |group| group.step_ms = u64::MAX),
        ];
        for (what, change) in changes {
            let mut changed = group();
            change(&mut changed);
            assert!(!changed.makes_sense(4, 5), "{what}");
        }
    }

    #[test]
    fn texts_that_are_no_counts_are_none() {
        for text in ["", "x", "////", "KLUv/SAAAQAA"] {
            assert!(parse(text).is_none(), "{text}");
        }
    }
}
