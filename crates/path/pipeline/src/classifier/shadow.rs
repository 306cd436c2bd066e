//! A second model that judges packets by the features of the first: it costs its forest, not another
//! table of flows.

use strata_classify::{Columns, Forest, Kernel, LANES, Model, RankRows, VerdictId, Verdicts};
use strata_sketch::Level;
use strata_wire::wide::WIDE;

/// Why a model cannot be the shadow of another.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ShadowError {
    /// Modes name classes, and who decides is a matter of classes.
    #[error("its classes are {of_shadow}, and those of the model in force are {of_model}")]
    Classes {
        /// Of the shadow.
        of_shadow: String,
        /// Of the model at work.
        of_model: String,
    },
    /// What it asks for is not there.
    #[error(
        "its features, window, arithmetic or buckets differ from those of the model in force: \
         train both with the same options"
    )]
    Features,
    /// One has trees for flows, the other has not.
    #[error("only one of the shadow and the model in force has flow trees")]
    Levels,
}

/// The verdicts of a second model.
#[derive(Debug)]
pub(crate) struct Shadow {
    /// Those without a bucket, and with one.
    sides: [(Forest, Vec<[u16; LANES]>); 2],
    ranks: RankRows,
    verdicts: Verdicts,
    /// By place in the batch.
    found: [VerdictId; WIDE],
}

impl Shadow {
    /// Whether `shadow` can judge by the features of `model`.
    pub(crate) fn check(model: &Model, shadow: &Model) -> Result<(), ShadowError> {
        let [of_shadow, of_model] = [shadow, model].map(|model| model.class_names().join(", "));
        if of_shadow != of_model {
            return Err(ShadowError::Classes {
                of_shadow,
                of_model,
            });
        }
        let anomalous = |model: &Model| Verdicts::new(model).anomalous().collect::<Vec<_>>();
        if anomalous(shadow) != anomalous(model) {
            return Err(ShadowError::Classes {
                of_shadow: format!("{of_shadow} (with other anomalous classes)"),
                of_model,
            });
        }
        if shadow.feature_list() != model.feature_list()
            || shadow.window_ns != model.window_ns
            || shadow.arithmetic != model.arithmetic
            || shadow.buckets != model.buckets
        {
            return Err(ShadowError::Features);
        }
        let serves_flows = |model: &Model| !model.trees(Level::Flow).is_empty();
        if serves_flows(shadow) != serves_flows(model) {
            return Err(ShadowError::Levels);
        }
        Ok(())
    }

    pub(super) fn new(shadow: &Model, kernel: Kernel) -> Self {
        let side = |level| {
            let forest = Forest::up_to(shadow, level, kernel);
            let leaves = vec![[0; LANES]; forest.tree_count()];
            (forest, leaves)
        };
        Self {
            sides: [side(Level::Packet), side(Level::Flow)],
            ranks: RankRows::default(),
            verdicts: Verdicts::new(shadow),
            found: [Verdicts::UNCLASSIFIED_ID; WIDE],
        }
    }

    /// Starts a batch.
    #[inline]
    pub(super) fn begin(&mut self) {
        self.found = [Verdicts::UNCLASSIFIED_ID; WIDE];
    }

    /// Judges packets whose features are in columns; `lanes` are their places in the batch.
    #[inline(never)]
    pub(super) fn judge(&mut self, level: Level, columns: &Columns, lanes: &[u8]) {
        let (forest, leaves) = &mut self.sides[usize::from(level == Level::Flow)];
        forest.leaves(columns, lanes.len(), &mut self.ranks, leaves);
        let mut keys = [0; LANES];
        let keys = &mut keys[..lanes.len()];
        self.verdicts.keys(level, leaves, keys);
        for (place, (&lane, &key)) in lanes.iter().zip(&*keys).enumerate() {
            self.found[usize::from(lane)] = self.verdicts.find(level, key, leaves, place);
        }
    }

    /// Class and step of a packet of the batch, see [`Verdicts::class_and_step`].
    #[inline]
    pub(crate) fn class_and_step(&self, at: usize) -> [u8; 2] {
        self.verdicts.class_and_step(self.found[at])
    }
}
