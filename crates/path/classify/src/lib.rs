//! The classifier: a random forest over packet and flow features.
//!
//! - [`Model`]: the model file (JSON, `docs/formats/model.md`), fully checked when it is loaded;
//!   its naive evaluation is the twin of
//! - [`Forest`]: the same trees, or those of others ([`Split`]), laid out for batches of packets, and
//! - [`RowForest`]: for larger ones, as operations on rows of bits;
//! - [`Drift`]: whether the traffic is still what the model was trained on;
//! - [`Signs`]: why it decided as it did, in words of traffic;
//! - [`Known`]: what it was trained on, so that a packet of another kind is unsure;
//! - [`Verdicts`]: from the leaves that a packet reached to its class, score and the reason, each
//!   combination computed once.
//!
//! Uses `sketch` for the names and codings of features, `wire` for vector instructions; used by
//! `pipeline`, and by `gpv` for its forests of flows.
#![forbid(unsafe_code)]

mod drift;
mod forest;
mod model;
mod verdict;

pub use drift::{DRIFTED, Drift, DriftReport, SAMPLES_MIN};
pub use forest::{Columns, Forest, Kernel, LANES, RankRows, RowForest, Split};
pub use model::{
    Buckets, Class, Condition, Decision, Distribution, Distributions, FEATURES_MAX, FeatureUse,
    Known, Leaves, Model, ModelArithmetic, ModelError, Node, Rule, Sign, Signs, Tree, is_of_shadow,
    kind_of, leaves_of_reason,
};
pub use verdict::{
    ClassesAndSteps, SCORE_STEPS, STEP_ANOMALOUS, UNCLASSIFIED, VERDICTS_MAX, Verdict, VerdictId,
    Verdicts, score_of_step, score_step,
};
