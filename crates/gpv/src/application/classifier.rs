//! The traffic classifier (section 6.2): which application a flow is of, by the sizes of its first
//! packets and the mean and deviation of sizes and delays. Training reads the features that this
//! module measures (its names are `FLOW_FEATURES`), so both ends see the same.

mod forest;

pub use forest::{Forest, ForestError};

use super::Application;
use crate::key::Key;
use crate::tuple::{Column, Tuple};
use crate::vector::Grouped;

/// Sizes of first packets that are features.
const FIRST: usize = 8;

/// Features of a flow, in their order: sizes of its first 8 packets (0 where there are fewer), mean
/// and standard deviation of sizes, the same of the delays between packets in us.
pub type FlowFeatures = [f32; FIRST + 4];

/// Their names, for training.
pub const FLOW_FEATURES: [&str; FIRST + 4] = [
    "size_1",
    "size_2",
    "size_3",
    "size_4",
    "size_5",
    "size_6",
    "size_7",
    "size_8",
    "size_mean",
    "size_sd",
    "delay_us_mean",
    "delay_us_sd",
];

/// What is summed over a flow's packets.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    packets: u64,
    bytes: u64,
    squares: u64,
    size_max: u32,
    delay_squares: f64,
    first_ns: u64,
    last_ns: u64,
    first: [u32; FIRST],
}

impl Sums {
    #[inline(always)]
    #[allow(clippy::cast_precision_loss, reason = "delays squared are estimates")]
    fn of<T: Tuple, G: Grouped<T>>(group: &G) -> Self {
        let mut sums = Self::default();
        group.for_each_run(|start_ns, tuples| {
            let known = strata_wire::exact::<usize>(sums.packets.min(FIRST as u64));
            for (first, tuple) in sums.first[known..].iter_mut().zip(tuples) {
                *first = tuple.get(Column::Size);
            }
            let Some(tuple) = tuples.first() else {
                return;
            };
            let mut last = tuple.delta_ns();
            if sums.packets == 0 {
                sums.first_ns = start_ns + last;
            } else {
                let delay = (start_ns + last).saturating_sub(sums.last_ns) as f64;
                sums.delay_squares += delay * delay;
            }
            let (mut bytes, mut squares, mut size_max, mut delays) = (0_u64, 0_u64, 0_u32, 0.0_f64);
            for tuple in tuples {
                let (size, at) = (tuple.get(Column::Size), tuple.delta_ns());
                bytes += u64::from(size);
                squares += u64::from(size) * u64::from(size);
                size_max = size_max.max(size);
                let delay = at.saturating_sub(last) as f64;
                delays += delay * delay;
                last = at;
            }
            sums.bytes += bytes;
            sums.squares += squares;
            sums.size_max = sums.size_max.max(size_max);
            sums.delay_squares += delays;
            sums.packets += tuples.len() as u64;
            sums.last_ns = start_ns + last;
        });
        sums
    }
}

/// What a flow record has of a flow, for comparisons (Figure 9).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowRecord {
    /// Packets.
    pub packets: u64,
    /// Bytes on the wire.
    pub bytes: u64,
    /// From the first packet to the last.
    pub duration_ns: u64,
    /// Bytes of the largest packet.
    pub size_max: u32,
}

impl FlowRecord {
    /// The one of these packets.
    #[must_use]
    pub fn of<T: Tuple, G: Grouped<T>>(group: &G) -> Self {
        let sums = Sums::of(group);
        Self {
            packets: sums.packets,
            bytes: sums.bytes,
            duration_ns: sums.last_ns.saturating_sub(sums.first_ns),
            size_max: sums.size_max,
        }
    }
}

/// The features of a vector or record, as of a flow that has no other packets.
#[inline]
#[must_use]
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "features are estimates"
)]
pub fn flow_features<T: Tuple, G: Grouped<T>>(group: &G) -> FlowFeatures {
    let sums = Sums::of(group);
    let mut features = [0.0; FIRST + 4];
    for (feature, &size) in features.iter_mut().zip(&sums.first) {
        *feature = size as f32;
    }
    // The variance is that of these packets, not an estimate of others'.
    let packets = sums.packets.max(1) as f64;
    let mean = sums.bytes as f64 / packets;
    let variance = sums.squares as f64 / packets - mean * mean;
    features[FIRST] = mean as f32;
    features[FIRST + 1] = variance.max(0.0).sqrt() as f32;
    if sums.packets > 1 {
        let delays = packets - 1.0;
        let mean = sums.last_ns.saturating_sub(sums.first_ns) as f64 / delays / 1e3;
        let variance = sums.delay_squares / 1e6 / delays - mean * mean;
        features[FIRST + 2] = mean as f32;
        features[FIRST + 3] = variance.max(0.0).sqrt() as f32;
    }
    features
}

/// Flows that are classified at once.
const BATCH: usize = 32;

/// Classifies each vector or record by a forest, and gives key, class and the forest's share of
/// votes for it to a closure.
///
/// The classes are those of the flows' first packets only if the agent's records are as long as
/// flows: give it records ([`Reassembly`](crate::agent::Reassembly)) of a long interval.
#[derive(Debug)]
pub struct Classifier<F> {
    forest: Forest,
    out: F,
    keys: Vec<Key>,
    rows: Vec<FlowFeatures>,
}

impl<F: FnMut(&Key, usize, f32)> Classifier<F> {
    /// A classifier that gives answers to `out`, up to 32 flows later.
    #[must_use]
    pub fn new(forest: Forest, out: F) -> Self {
        Self {
            forest,
            out,
            keys: Vec::with_capacity(BATCH),
            rows: Vec::with_capacity(BATCH),
        }
    }

    /// Classifies what waits.
    pub fn finish(&mut self) {
        let (keys, out) = (&self.keys, &mut self.out);
        self.forest.classify(&self.rows, |row, class, share| {
            out(&keys[row], class, share);
        });
        self.keys.clear();
        self.rows.clear();
    }
}

impl<T: Tuple, F: FnMut(&Key, usize, f32)> Application<T> for Classifier<F> {
    #[inline]
    fn take<G: Grouped<T>>(&mut self, _switch: u32, group: &G) {
        self.keys.push(*group.key());
        self.rows.push(flow_features(group));
        if self.rows.len() == BATCH {
            self.finish();
        }
    }
}
