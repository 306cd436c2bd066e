//! Which packets are sampled for drift, by their number, however they are batched.

use strata_classify::{Columns, Drift, LANES, Model};

/// Columns of a batch.
const COLUMNS: usize = size_of::<Columns>() / size_of::<u32>() / LANES;
/// One in this many packets whose flow has a bucket is looked at, ...
const DENSE: u64 = 48;
/// ... for this many windows; then one in `SPARSE`. A short capture can be judged, and a long
/// one pays next to nothing.
const DENSE_WINDOWS: u64 = 1_000;
const SPARSE: u64 = 1_024;
/// Packets that may wait for their verdicts: more than a batch of 256 has samples.
const WAITING_MAX: usize = 8;

/// Takes samples of packets for [`Drift`].
#[derive(Debug)]
pub(crate) struct Samples {
    /// `None` if the model does not say what its training looked like.
    drift: Option<Drift>,
    /// Packets whose flow has a bucket, so far.
    seen: u64,
    /// The number of the next one to look at.
    next: u64,
    windows: u64,
    window_start: u64,
    /// The features of packets without a verdict yet, and their places in the batch.
    waiting: Vec<(usize, [u32; COLUMNS])>,
}

impl Samples {
    pub(crate) fn new(model: &Model) -> Self {
        Self {
            drift: Drift::new(model),
            seen: 0,
            next: 0,
            windows: 0,
            window_start: 0,
            waiting: Vec::with_capacity(WAITING_MAX),
        }
    }

    pub(crate) fn drift(&self) -> Option<&Drift> {
        self.drift.as_ref()
    }

    /// Stores the features of those of the next `count` packets that are to be looked at. `lanes`
    /// are their places in the batch.
    #[inline]
    pub(crate) fn take(&mut self, columns: &Columns, lanes: &[u8]) {
        let end = self.seen + lanes.len() as u64;
        if self.next < end {
            self.take_some(columns, lanes);
        }
        self.seen = end;
    }

    #[cold]
    #[allow(clippy::cast_possible_truncation, reason = "below the number of lanes")]
    fn take_some(&mut self, columns: &Columns, lanes: &[u8]) {
        while let Some(&lane) = lanes.get((self.next - self.seen) as usize) {
            if self.drift.is_some() {
                let place = (self.next - self.seen) as usize;
                let values = std::array::from_fn(|column| columns[column * LANES + place]);
                self.waiting.push((usize::from(lane), values));
            }
            self.windows += 1;
            self.window_start += window_len(self.windows - 1);
            // A different place in each, so that no period in the traffic can hide from it.
            let len = window_len(self.windows);
            self.next = self.window_start + self.windows * 29 % len;
        }
    }

    /// Counts the packets stored since the last call, with their anomaly from 0 to 1.
    #[inline]
    pub(crate) fn count(&mut self, anomaly: impl Fn(usize) -> f64) {
        let Some(drift) = &mut self.drift else {
            return;
        };
        for (lane, values) in self.waiting.drain(..) {
            drift.observe(&values, anomaly(lane));
        }
    }
}

fn window_len(window: u64) -> u64 {
    if window < DENSE_WINDOWS {
        DENSE
    } else {
        SPARSE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of the packets that are looked at when they come in batches of these sizes.
    fn looked_at(sizes: impl Iterator<Item = usize>) -> Vec<u64> {
        let path = strata_testkit::workspace_root().join("models/default.json");
        let model = Model::from_json(&std::fs::read(path).unwrap()).unwrap();
        let mut samples = Samples::new(&model);
        let (columns, lanes) = (
            [0; COLUMNS * LANES],
            std::array::from_fn::<u8, LANES, _>(|n| n.to_le_bytes()[0]),
        );
        let mut numbers = Vec::new();
        for size in sizes {
            let first = samples.seen;
            samples.take(&columns, &lanes[..size]);
            numbers.extend(
                samples
                    .waiting
                    .drain(..)
                    .map(|(lane, _)| first + lane as u64),
            );
        }
        numbers
    }

    #[test]
    fn which_packets_are_looked_at_does_not_depend_on_batches() {
        let ones = looked_at((0..400_000).map(|_| 1));
        let whole = looked_at((0..6_250).map(|_| LANES));
        let mixed = looked_at((0..).map(|n| 1 + n * 37 % LANES).take(20_000));
        assert_eq!(ones, whole);
        let common = ones.len().min(mixed.len());
        assert!(common > 1_200);
        assert_eq!(ones[..common], mixed[..common]);
        assert!(ones.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
