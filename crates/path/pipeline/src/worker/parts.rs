//! What a worker is made of, and what it does not know: where its blocks, copies and verdicts go.

use std::fmt::Debug;
use std::sync::Arc;

use strata_blocks::Sink;
use strata_classify::Model;
use strata_policy::{DetailSite, Steering};
use strata_sketch::{Preparation, Sketch};

use super::WorkerOptions;
use crate::exports::Exports;
use crate::packet_limit::PacketLimit;
use crate::path::DataPath;
use crate::stage::cut::EnoughOfFlows;
use crate::stage::police::Copies;
use crate::stage::triggers::Triggers;
use crate::tap::Tap;

/// Prepares memory for more flows, in another thread.
pub trait Prepares: Debug + Send {
    /// Runs it soon, without making the caller wait.
    fn prepare(&mut self, preparation: Preparation);
}

/// What a worker is made of.
#[derive(Debug)]
pub struct Parts {
    /// How it works.
    pub options: WorkerOptions,
    /// Which instructions it uses.
    pub path: DataPath,
    /// Where its blocks go; not used before.
    pub sink: Box<dyn Sink>,
    /// Counts flows: made for the model (`Model::new_sketch`); `None` for a small one.
    pub sketch: Option<Sketch>,
    /// Prepares memory for more flows; without it, the sketch takes memory when it grows.
    pub memory: Option<Box<dyn Prepares>>,
    /// The plans that it follows, from its first batch on, instead of the modes in its options.
    pub steering: Option<Arc<Steering>>,
    /// What it keeps whole in addition to what modes and policies ask for.
    pub triggers: Option<Triggers>,
    /// How many packets it may take, perhaps together with others; `None` for all that come.
    pub limit: Option<Arc<PacketLimit>>,
    /// Takes copies of packets that a policy mirrors.
    pub copies: Option<Box<dyn Copies>>,
    /// Is told how much of a flow's packets is enough.
    pub enough: Option<Box<dyn EnoughOfFlows>>,
    /// Are shown packets while they want them.
    pub taps: Vec<Box<dyn Tap>>,
    /// Takes what policies export.
    pub exports: Option<Box<dyn Exports>>,
    /// What its budget of detail, if it has one, knows beforehand.
    pub detail: DetailSite,
    /// A second model: what it would have kept is compared, and changes nothing.
    pub shadow: Option<Arc<Model>>,
}

impl Parts {
    /// Only the parts that every worker has.
    #[must_use]
    pub fn new(options: WorkerOptions, sink: impl Sink + 'static) -> Self {
        Self {
            options,
            path: DataPath::best(),
            sink: Box::new(sink),
            sketch: None,
            memory: None,
            steering: None,
            triggers: None,
            limit: None,
            copies: None,
            enough: None,
            taps: Vec::new(),
            exports: None,
            detail: DetailSite::default(),
            shadow: None,
        }
    }
}
