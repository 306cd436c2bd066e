//! What a relay senses of its disk, and asks of its switches: as in `strata-record`, with virtual
//! sensors.

use strata_control::elastic::{
    Degradation, ElasticOptions, ElasticState, Reading, Resource, Sensed, plan,
};
use strata_relay::protocol::Shortage;
use strata_testkit::sim::SECOND;

/// How often a relay checks its disk.
pub(crate) const LOOK_EVERY: u64 = SECOND;

/// How both ends answer shortages.
pub(crate) fn options() -> ElasticOptions {
    ElasticOptions {
        hold_ns: 10 * SECOND,
        hold_ns_max: 60 * SECOND,
        ..ElasticOptions::default()
    }
}

pub(crate) fn degradation(shortage: &Shortage) -> Degradation {
    Degradation {
        partial: shortage.partial,
        sampled: shortage.sampled,
        ..Degradation::default()
    }
}

/// The disk of a relay.
pub(crate) struct Disk {
    options: ElasticOptions,
    state: ElasticState,
    sensed: Sensed,
    looked_ns: u64,
    /// Blocks of memory that wait for it.
    pub(crate) waiting: u64,
    pub(crate) shortage: Shortage,
}

impl Disk {
    pub(crate) fn new(now_ns: u64) -> Self {
        Self {
            options: options(),
            state: ElasticState::default(),
            sensed: Sensed::default(),
            looked_ns: now_ns,
            waiting: 0,
            shortage: Shortage::default(),
        }
    }

    /// When it is to be checked next.
    pub(crate) fn next_look_ns(&self) -> u64 {
        self.looked_ns + LOOK_EVERY
    }

    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn look(&mut self, used: f64, blocks: u64, now_ns: u64) {
        if now_ns < self.next_look_ns() {
            return;
        }
        self.looked_ns = now_ns;
        let mut read = |resource: Resource, value: f64| {
            self.sensed[resource as usize] = Some(Reading {
                value,
                taken_ns: now_ns,
            });
        };
        read(Resource::DiskSpace, used);
        read(Resource::Blocks, self.waiting as f64 / blocks.max(1) as f64);
        let (state, steps) = plan(&self.state, &self.sensed, &self.options);
        self.state = state;
        let degradation = self.state.degradation();
        if let Some(step) = steps.last() {
            self.shortage = Shortage {
                partial: degradation.partial,
                sampled: degradation.sampled,
                why: step.to_string(),
            };
        }
    }
}
