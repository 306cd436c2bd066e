//! The traffic classifier (section 6.2): which application a flow is of, by the sizes of its first
//! packets and the mean and deviation of sizes and delays. Training reads the features that this
//! module measures (its names are `FLOW_FEATURES`), so both ends see the same.

mod batch;
mod forest;
mod sums;

pub use forest::{Forest, ForestError};

use strata_wire::wide::Simd;

use self::batch::Batch;
use self::forest::Scratch;
use self::sums::Sums;
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
        let sums = Sums::of(group, None);
        let mut size_max = 0;
        group.for_each_run(|_, tuples| {
            let sizes = tuples.iter().map(|tuple| tuple.get(Column::Size));
            size_max = sizes.fold(size_max, u32::max);
        });
        Self {
            packets: sums.packets,
            bytes: sums.bytes,
            duration_ns: sums.duration_ns(),
            size_max,
        }
    }
}

/// The features of a vector or record, as of a flow that has no other packets.
#[inline]
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "features are estimates")]
pub fn flow_features<T: Tuple, G: Grouped<T>>(group: &G) -> FlowFeatures {
    let sums = Sums::of(group, None);
    let mut features = [0.0; FIRST + 4];
    for (feature, &size) in features.iter_mut().zip(&sums.first[..FIRST]) {
        *feature = size as f32;
    }
    let (bytes, squares, duration) = (sums.bytes, sums.squares, sums.duration_ns());
    let of_all = moments(sums.packets, bytes, squares, duration, sums.delay_squares);
    features[FIRST..].copy_from_slice(&of_all);
    features
}

/// Mean and deviation of sizes, and of delays in us.
#[inline(always)]
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "features are estimates"
)]
fn moments(
    packets: u64,
    bytes: u64,
    squares: u64,
    duration_ns: u64,
    delay_squares: f64,
) -> [f32; 4] {
    // The variance is that of these packets, not an estimate of others'.
    let count = packets.max(1) as f64;
    let mean = bytes as f64 / count;
    let variance = squares as f64 / count - mean * mean;
    // One packet has no delay, and none in its sums.
    let delays = packets.max(2).wrapping_sub(1) as f64;
    let delay = duration_ns as f64 / delays / 1e3;
    let delay_variance = delay_squares / 1e6 / delays - delay * delay;
    [
        mean as f32,
        variance.max(0.0).sqrt() as f32,
        delay as f32,
        delay_variance.max(0.0).sqrt() as f32,
    ]
}

/// Classifies each vector or record by a forest, and gives key, class and the forest's share of
/// votes for it to a closure.
///
/// The classes are those of the flows' first packets only if the agent's records are as long as
/// flows: give it records ([`Reassembly`](crate::agent::Reassembly)) of a long interval.
///
/// Memory: 30 KiB, 128 bytes for each tree, and the forest.
#[derive(Debug)]
pub struct Classifier<F> {
    forest: Forest,
    out: F,
    keys: Vec<Key>,
    batch: Box<Batch>,
    scratch: Scratch,
}

impl<F: FnMut(&Key, usize, f32)> Classifier<F> {
    /// A classifier that gives answers to `out`, up to 64 flows later.
    #[must_use]
    pub fn new(forest: Forest, out: F) -> Self {
        Self {
            scratch: forest.scratch(),
            forest,
            out,
            keys: Vec::with_capacity(batch::FLOWS),
            batch: Box::new(Batch::new(Simd::best())),
        }
    }

    /// Classifies what waits.
    pub fn finish(&mut self) {
        let (keys, out) = (&self.keys, &mut self.out);
        self.batch.features(&mut self.scratch.columns);
        self.forest
            .classify_columns(&mut self.scratch, keys.len(), |row, class, share| {
                out(&keys[row], class, share);
            });
        self.keys.clear();
        self.batch.clear();
    }
}

impl<T: Tuple, F: FnMut(&Key, usize, f32)> Application<T> for Classifier<F> {
    #[inline]
    fn take<G: Grouped<T>>(&mut self, _switch: u32, group: &G) {
        self.keys.push(*group.key());
        self.batch.push(group);
        if self.keys.len() == batch::FLOWS {
            self.finish();
        }
    }
}
