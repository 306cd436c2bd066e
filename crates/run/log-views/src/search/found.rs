//! What a search found: flows, and counts by class, reason and time; bounded.

mod owner;
mod row;
mod told;

use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasher as _;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use strata_query::{
    FoundCounts, FoundFlow, FoundPoint, FoundRun, Kept, Label as LabelOf, TakeFound,
};
use strata_store::Log;
use strata_wire::{FlowKey, prefetch_whole};

use crate::answers::refused::Refused;
use crate::logs::{classes_of, deleted_words, lost_words};
use crate::search::series::{Histogram, Sum};

pub(crate) use row::Row;
pub use told::Totals;
pub(crate) use told::{Cost, FlowRow, ReasonCount, ReasonWords, ReasonsTotal, Tops, words};

/// Maximum number of flows that are listed: some 100 bytes each.
pub(crate) const FLOWS_MAX: usize = 500_000;
/// Maximum number of combinations of class, granularity and reason.
const LABELS_MAX: usize = 20_000;
const LABEL_LAST: usize = LABELS_MAX - 1;
/// Maximum number of classes of flows that are told apart: a model has at most 256.
const CLASSES_MAX: usize = 1_000;
/// Bytes of a name that are kept.
const NAME_BYTES_MAX: usize = 253;

/// The place of a flow, and bits of its hash: a table that grows needs no row for it.
#[derive(Clone, Copy, Debug)]
struct Placed {
    tag: u32,
    place: u32,
}

/// Bits of a flow's hash.
fn tag(hasher: &RandomState, flow: &FlowKey) -> u32 {
    let hash = hasher.hash_one(flow);
    #[allow(clippy::cast_possible_truncation, reason = "half of the bits")]
    let tag = (hash >> 32) as u32;
    tag
}

/// A hash of the bits that are kept.
fn spread(tag: u32) -> u64 {
    u64::from(tag).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Class, granularity and reason of packets.
#[derive(Debug)]
struct Label {
    recording: u32,
    class: String,
    granularity: String,
    reason: String,
    class_number: u16,
    /// Of the histogram, if it is wanted.
    series: usize,
    is_wanted: bool,
    packets: u64,
    wire_bytes: u64,
    kept_bytes: u64,
    /// Of the first packet.
    score: Option<f32>,
    /// When that arrived, and its flow.
    first: Option<(u64, FlowKey)>,
}

impl Label {
    fn count(&mut self, sum: &Sum, flow: FlowKey) {
        self.packets = self.packets.saturating_add(sum.packets);
        self.wire_bytes = self.wire_bytes.saturating_add(sum.wire_bytes);
        self.kept_bytes = self.kept_bytes.saturating_add(sum.kept_bytes);
        if self.first.is_none_or(|(first, _)| sum.first_ns < first) {
            (self.first, self.score) = (Some((sum.first_ns, flow)), sum.first_score);
        }
    }

    fn add(&mut self, more: &Self) {
        self.packets = self.packets.saturating_add(more.packets);
        self.wire_bytes = self.wire_bytes.saturating_add(more.wire_bytes);
        self.kept_bytes = self.kept_bytes.saturating_add(more.kept_bytes);
        if let Some(first) = more.first
            && self.first.is_none_or(|known| first.0 < known.0)
        {
            (self.first, self.score) = (Some(first), more.score);
        }
    }
}

/// What was found so far.
#[derive(Debug)]
pub struct Found {
    kept: Kept,
    /// The only flow that is wanted; `None` for all.
    flow: Option<FlowKey>,
    pub(crate) rows: Vec<Row>,
    /// Places in `rows`, by flow: a few bytes of each, so that they stay in the CPU's caches.
    places: HashTable<Placed>,
    hasher: RandomState,
    last_flow: Option<(FlowKey, usize)>,
    names: HashMap<FlowKey, Box<str>, RandomState>,
    labels: Vec<Label>,
    label_places: HashMap<(u32, [String; 3]), usize, RandomState>,
    classes: Vec<String>,
    histogram: Histogram,
    lists_flows: bool,
    pub(crate) packets: u64,
    wire_bytes: u64,
    kept_bytes: u64,
    unlisted_packets: u64,
    span: Option<(u64, u64)>,
    damaged: u64,
    first_damage: Option<String>,
    encrypted: u64,
    /// Packets that the filter could not test.
    untested: u64,
    /// What of it the log lacks, whatever is sought.
    lost: Option<String>,
    /// What retention deleted that may have been of the time that is searched.
    deleted: Option<String>,
    /// All classes that its packets may have; none if that is not known.
    classes_of_log: BTreeSet<String>,
}

impl Found {
    pub(crate) fn new(
        (kept, flow): (Kept, Option<FlowKey>),
        histogram: Histogram,
        lists_flows: bool,
    ) -> Self {
        Self {
            kept,
            flow,
            rows: Vec::new(),
            places: HashTable::new(),
            hasher: RandomState::default(),
            last_flow: None,
            names: HashMap::default(),
            labels: Vec::new(),
            label_places: HashMap::default(),
            classes: Vec::new(),
            histogram,
            lists_flows,
            packets: 0,
            wire_bytes: 0,
            kept_bytes: 0,
            unlisted_packets: 0,
            span: None,
            damaged: 0,
            first_damage: None,
            encrypted: 0,
            untested: 0,
            lost: None,
            deleted: None,
            classes_of_log: BTreeSet::new(),
        }
    }

    /// The number of a label; the last one's if there are too many.
    fn label_number(&mut self, label: &LabelOf<'_>) -> usize {
        let LabelOf {
            recording,
            class,
            granularity,
            reason,
        } = *label;
        let key = (recording, [class, granularity, reason].map(str::to_owned));
        if let Some(&place) = self.label_places.get(&key) {
            return place;
        }
        if self.labels.len() >= LABELS_MAX {
            return LABEL_LAST;
        }
        let class_number = self.class_number(class);
        let (_, [class, granularity, reason]) = key.clone();
        let is_wanted = self.kept.is(&class, &granularity, &reason);
        self.labels.push(Label {
            recording,
            class_number,
            series: match is_wanted {
                true => self.histogram.series(&class, &granularity),
                false => 0,
            },
            is_wanted,
            class,
            granularity,
            reason,
            packets: 0,
            wire_bytes: 0,
            kept_bytes: 0,
            score: None,
            first: None,
        });
        let place = self.labels.len().saturating_sub(1);
        self.label_places.insert(key, place);
        place
    }

    fn class_number(&mut self, class: &str) -> u16 {
        let known = self.classes.iter().position(|known| known == class);
        let place = known.unwrap_or_else(|| {
            if self.classes.len() < CLASSES_MAX {
                self.classes.push(class.to_owned());
            }
            self.classes.len().saturating_sub(1)
        });
        u16::try_from(place).expect("classes are bounded")
    }

    /// The place of a flow; `None` if there are too many.
    fn place(&mut self, key: FlowKey, new: impl FnOnce() -> Row) -> Option<usize> {
        if let Some((flow, place)) = &self.last_flow
            && *flow == key
        {
            return Some(*place);
        }
        let tag = tag(&self.hasher, &key);
        let rows = &self.rows;
        let is_its = |placed: &Placed| placed.tag == tag && rows[placed.place as usize].key == key;
        let place = match self.places.find(spread(tag), is_its) {
            Some(placed) => placed.place as usize,
            None if rows.len() >= FLOWS_MAX => return None,
            None => {
                let place = u32::try_from(rows.len()).expect("rows are bounded");
                self.rows.push(new());
                let placed = Placed { tag, place };
                self.places
                    .insert_unique(spread(tag), placed, |placed| spread(placed.tag));
                place as usize
            }
        };
        self.last_flow = Some((key, place));
        Some(place)
    }

    fn count_in_flow(&mut self, run: &FoundRun<'_>, sum: &Sum, class: u16) {
        match self.place(run.flow, || Row::new(run, class)) {
            Some(place) => self.rows[place].count(run, sum, class),
            None => {
                self.unlisted_packets = self.unlisted_packets.saturating_add(sum.packets);
            }
        }
    }

    /// Adds what was found in another piece of the log.
    pub(crate) fn add(&mut self, more: Self) {
        let numbers: Vec<u16> = more
            .classes
            .iter()
            .map(|class| self.class_number(class))
            .collect();
        for label in &more.labels {
            let number = self.label_number(&LabelOf {
                recording: label.recording,
                class: &label.class,
                granularity: &label.granularity,
                reason: &label.reason,
            });
            self.labels[number].add(label);
        }
        for mut row in more.rows {
            row.renumber(&numbers);
            self.add_flow(row);
        }
        for (flow, name) in more.names {
            if self.names.len() < FLOWS_MAX {
                self.names.entry(flow).or_insert(name);
            }
        }
        self.histogram.add(&more.histogram);
        self.packets = self.packets.saturating_add(more.packets);
        self.wire_bytes = self.wire_bytes.saturating_add(more.wire_bytes);
        self.kept_bytes = self.kept_bytes.saturating_add(more.kept_bytes);
        self.unlisted_packets = self.unlisted_packets.saturating_add(more.unlisted_packets);
        if let Some((first, last)) = more.span {
            self.reaches(first, last);
        }
        self.damaged = self.damaged.saturating_add(more.damaged);
        if self.first_damage.is_none() {
            self.first_damage = more.first_damage;
        }
        self.encrypted = self.encrypted.saturating_add(more.encrypted);
        self.untested = self.untested.saturating_add(more.untested);
    }

    /// This number of packets were left out, since the filter tests bytes of theirs that were not kept.
    pub(crate) fn note_untested(&mut self, packets: u64) {
        self.untested = self.untested.saturating_add(packets);
    }

    /// All of it is in this log: what the log lacks, it may lack too.
    /// From `from_ns` on, retention may have deleted some.
    pub(crate) fn note_log(&mut self, log: &Log, from_ns: Option<u64>) -> Result<(), Refused> {
        self.lost = lost_words(log)?;
        self.deleted = deleted_words(log, from_ns);
        self.classes_of_log = classes_of(log);
        Ok(())
    }

    fn add_flow(&mut self, row: Row) {
        let key = row.key;
        let mut fresh = Some(row);
        let place = self.place(key, || fresh.take().expect("it was not used"));
        let Some(row) = fresh else {
            return;
        };
        match place {
            Some(place) => self.rows[place].add(&row),
            None => {
                self.unlisted_packets = self.unlisted_packets.saturating_add(row.all_packets());
            }
        }
    }

    fn reaches(&mut self, first: u64, last: u64) {
        let (known_first, known_last) = self.span.unwrap_or((first, last));
        self.span = Some((known_first.min(first), known_last.max(last)));
    }
}

impl TakeFound for Found {
    fn label(&mut self, label: &LabelOf<'_>) -> usize {
        self.label_number(label)
    }

    fn soon(&mut self, flow: &FlowKey) {
        if self.lists_flows {
            let tag = tag(&self.hasher, flow);
            let rows = &self.rows;
            // Each candidate for its row is fetched, without a look at it.
            let _ = self.places.find(spread(tag), |placed| {
                if placed.tag == tag {
                    prefetch_whole(rows, placed.place as usize);
                }
                false
            });
        }
    }

    fn packets(&mut self, run: &FoundRun<'_>) {
        let label = &mut self.labels[run.label];
        if !label.is_wanted || self.flow.is_some_and(|flow| flow != run.flow) {
            return;
        }
        let sum = self.histogram.count(label.series, run.packets);
        label.count(&sum, run.flow);
        let class = label.class_number;
        self.packets = self.packets.saturating_add(sum.packets);
        self.wire_bytes = self.wire_bytes.saturating_add(sum.wire_bytes);
        self.kept_bytes = self.kept_bytes.saturating_add(sum.kept_bytes);
        self.reaches(sum.first_ns, sum.last_ns);
        if self.lists_flows {
            self.count_in_flow(run, &sum, class);
        }
    }

    fn counted(&mut self, label: usize, counts: &FoundCounts) {
        let [packets, wire_bytes, kept_bytes] = counts.amounts;
        let label = &mut self.labels[label];
        label.packets = label.packets.saturating_add(packets);
        label.wire_bytes = label.wire_bytes.saturating_add(wire_bytes);
        label.kept_bytes = label.kept_bytes.saturating_add(kept_bytes);
        self.packets = self.packets.saturating_add(packets);
        self.wire_bytes = self.wire_bytes.saturating_add(wire_bytes);
        self.kept_bytes = self.kept_bytes.saturating_add(kept_bytes);
        let [first, last] = counts.span_ns;
        self.reaches(first, last);
    }

    fn counted_point(&mut self, point: &FoundPoint<'_>) {
        let series = self.histogram.series(point.class, point.granularity);
        self.histogram
            .count_all(series, point.from_ns, point.amounts);
    }

    fn counted_flow(&mut self, flow: &FoundFlow<'_>) {
        if self.lists_flows {
            let mut row = Row::of(flow);
            for (class, packets) in flow.classes {
                row.count_class(self.class_number(class), *packets);
            }
            if flow.classes.is_empty() {
                row.count_class(self.class_number("unknown"), flow.packets.iter().sum());
            }
            self.add_flow(row);
        }
    }

    fn name(&mut self, flow: &FlowKey, name: &str) {
        let is_wanted = self.lists_flows && self.flow.is_none_or(|only| only == *flow);
        if is_wanted && self.names.len() < FLOWS_MAX && !self.names.contains_key(flow) {
            let name = strata_wire::start_of(name, NAME_BYTES_MAX);
            self.names.insert(*flow, name.into());
        }
    }

    fn damage(&mut self, problem: String) {
        self.damaged = self.damaged.saturating_add(1);
        self.first_damage.get_or_insert(problem);
    }

    fn encrypted(&mut self, packets: u64) {
        self.encrypted = self.encrypted.saturating_add(packets);
    }
}
