//! Whether a model still fits the traffic: distributions of features and scores, compared with
//! those in training.

use serde::{Deserialize, Serialize};

use crate::model::{Distributions, Model};

/// From this population stability index on, a distribution counts as changed: the usual bound in
/// credit scoring, where the index comes from.
pub const DRIFTED: f64 = 0.25;
/// A model that did not fit does so again from this index down.
const FITS_AGAIN: f64 = 0.2;
/// Fewer packets are inconclusive.
pub const SAMPLES_MIN: u64 = 200;
/// Smaller shares are raised to this, so that an empty range has a logarithm.
const SHARE_MIN: f64 = 1e-4;

/// Counters of what was seen. Memory: some kilobytes.
#[derive(Clone, Debug)]
pub struct Drift {
    /// Column, edges as integers (`None` below all of them), and packets by range.
    features: Vec<(usize, Vec<Option<u32>>, Vec<u64>)>,
    scores: Vec<u64>,
    samples: u64,
    expected: Distributions,
}

/// How far the traffic is from training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DriftReport {
    /// Packets that were looked at.
    pub samples: u64,
    /// Population stability index of the anomaly score.
    pub scores: f64,
    /// The same for each feature, the largest first.
    pub features: Vec<(String, f64)>,
}

impl Drift {
    /// Empty counters; `None` if the model does not say what its training looked like.
    ///
    /// # Panics
    ///
    /// If the model was not checked.
    #[must_use]
    pub fn new(model: &Model) -> Option<Self> {
        let expected = model.distributions.clone()?;
        let list = model.feature_list();
        let features = expected.features.iter().map(|known| {
            let column = list.iter().position(|f| f.name() == known.name);
            let column = column.expect("checked on load");
            let encode = |&edge: &f64| list[column].encode(edge, model.clock());
            let edges: Vec<Option<u32>> = known.edges.iter().map(encode).collect();
            let counts = vec![0; edges.len() + 1];
            (column, edges, counts)
        });
        Some(Self {
            features: features.collect(),
            scores: vec![0; expected.scores.len()],
            samples: 0,
            expected,
        })
    }

    /// The features that are looked at, by their number in the model.
    pub fn asked(&self) -> impl Iterator<Item = usize> {
        self.features.iter().map(|(column, ..)| *column)
    }

    /// Counts one packet by the values of its features, in the model's order. `anomaly` is from 0
    /// to 1.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss
    )]
    pub fn observe(&mut self, values: &[u32], anomaly: f64) {
        self.samples += 1;
        for (column, edges, counts) in &mut self.features {
            let value = values[*column];
            // No value is at or below an edge that is negative.
            counts[edges.iter().filter(|&&edge| edge < Some(value)).count()] += 1;
        }
        let place = (anomaly * self.scores.len() as f64) as usize;
        if let Some(last) = self.scores.len().checked_sub(1) {
            self.scores[place.min(last)] += 1;
        }
    }

    /// Adds what another worker with the same model has counted; of another model, nothing.
    pub fn merge(&mut self, other: &Self) {
        if self.expected != other.expected {
            return;
        }
        self.samples += other.samples;
        for ((_, _, counts), (_, _, more)) in self.features.iter_mut().zip(&other.features) {
            counts
                .iter_mut()
                .zip(more)
                .for_each(|(count, m)| *count += m);
        }
        let scores = self.scores.iter_mut().zip(&other.scores);
        scores.for_each(|(count, more)| *count += more);
    }

    /// Packets that were looked at.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// What was counted since an earlier copy of this; `None` if it is not one.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Option<Self> {
        if self.expected != earlier.expected {
            return None;
        }
        fn less(counts: &mut [u64], earlier: &[u64]) -> Option<()> {
            for (count, earlier) in counts.iter_mut().zip(earlier) {
                *count = count.checked_sub(*earlier)?;
            }
            Some(())
        }
        let mut since = self.clone();
        since.samples = since.samples.checked_sub(earlier.samples)?;
        for ((_, _, counts), (_, _, earlier)) in since.features.iter_mut().zip(&earlier.features) {
            less(counts, earlier)?;
        }
        less(&mut since.scores, &earlier.scores)?;
        Some(since)
    }

    /// How far this is from training.
    #[must_use]
    pub fn report(&self) -> DriftReport {
        let known = self.expected.features.iter();
        let mut features: Vec<(String, f64)> = known
            .zip(&self.features)
            .map(|(known, (_, _, counts))| {
                (known.name.clone(), stability_index(&known.shares, counts))
            })
            .collect();
        features.sort_by(|a, b| b.1.total_cmp(&a.1));
        DriftReport {
            samples: self.samples,
            scores: stability_index(&self.expected.scores, &self.scores),
            features,
        }
    }
}

impl DriftReport {
    /// Whether the model no longer fits; `None` if too little was seen to tell.
    #[must_use]
    pub fn drifted(&self) -> Option<bool> {
        (self.samples >= SAMPLES_MIN).then_some(self.scores > DRIFTED)
    }

    /// The same, given the state that was reported before: a model fits again only once it clearly
    /// does.
    #[must_use]
    pub fn still_drifted(&self, before: bool) -> Option<bool> {
        let bound = if before { FITS_AGAIN } else { DRIFTED };
        (self.samples >= SAMPLES_MIN).then_some(self.scores > bound)
    }
}

/// Sum of (found - expected) * ln(found / expected).
#[allow(clippy::cast_precision_loss)]
fn stability_index(expected: &[f64], counts: &[u64]) -> f64 {
    let total = counts.iter().sum::<u64>().max(1) as f64;
    let terms = expected.iter().zip(counts).map(|(expected, &count)| {
        let expected = expected.max(SHARE_MIN);
        let found = (count as f64 / total).max(SHARE_MIN);
        (found - expected) * (found / expected).ln()
    });
    terms.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_is_zero_for_the_same_and_large_for_another() {
        assert!(stability_index(&[0.5, 0.5], &[50, 50]).abs() < 1e-12);
        let moved = stability_index(&[0.9, 0.1], &[10, 90]);
        // 2 * 0.8 * ln 9
        assert!((moved - 1.6 * 9_f64.ln()).abs() < 1e-12, "{moved}");
        assert!(stability_index(&[1.0, 0.0], &[0, 5]) > 9.0);
    }

    #[test]
    fn what_was_counted_since_is_judged_by_itself() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../models/default.json");
        let model = Model::from_json(&std::fs::read(path).unwrap()).unwrap();
        let zeros = vec![0; model.feature_list().len()];
        let (mut all, mut later) = (Drift::new(&model).unwrap(), Drift::new(&model).unwrap());
        (0..300).for_each(|_| all.observe(&zeros, 0.0));
        let before = all.clone();
        for _ in 0..250 {
            all.observe(&zeros, 0.9);
            later.observe(&zeros, 0.9);
        }
        assert_eq!(all.since(&before).unwrap().report(), later.report());
        assert_eq!(all.since(&all).unwrap().samples(), 0);
        assert!(before.since(&all).is_none());
    }

    #[test]
    fn a_model_fits_again_only_once_it_clearly_does() {
        let report = |scores| DriftReport {
            samples: SAMPLES_MIN,
            scores,
            features: Vec::new(),
        };
        assert_eq!(report(0.22).still_drifted(false), Some(false));
        assert_eq!(report(0.22).still_drifted(true), Some(true));
        assert_eq!(report(0.26).still_drifted(false), Some(true));
        assert_eq!(report(0.19).still_drifted(true), Some(false));
        let few = DriftReport {
            samples: SAMPLES_MIN - 1,
            ..report(9.0)
        };
        assert_eq!(few.still_drifted(false), None);
    }

    #[test]
    fn nothing_is_at_or_below_a_negative_edge() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../models/default.json");
        let mut model = Model::from_json(&std::fs::read(path).unwrap()).unwrap();
        let distributions = model.distributions.as_mut().unwrap();
        distributions.features[0].edges = vec![-1.0, 0.0];
        let mut drift = Drift::new(&model).unwrap();
        drift.observe(&vec![0; model.feature_list().len()], 0.0);
        assert_eq!(drift.features[0].2, [0, 1, 0]);
    }
}
