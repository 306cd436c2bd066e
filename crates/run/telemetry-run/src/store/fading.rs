//! Counters that become smaller once in a period, so that they say what is going on now.

use std::time::{Duration, Instant};

use strata_sys::words::WordsMut;
use strata_wire::exact;

use crate::store::plan::Plan;

/// Counters between looks at what has arrived: some 0.1 ms.
const PIECE: u32 = 1 << 16;

/// The ways of reducing counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fade {
    /// Set them to 0.
    Reset,
    /// Halve them, rounded down.
    Halve,
}

impl Fade {
    /// What is left of a counter.
    pub(crate) fn left_of(self, count: u64) -> u64 {
        match self {
            Self::Reset => 0,
            Self::Halve => count / 2,
        }
    }
}

/// The way and the period of reducing counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FadeOptions {
    /// The way.
    pub fade: Fade,
    /// The period; not 0.
    pub every: Duration,
}

/// Goes through the counters once in a period.
#[derive(Debug)]
pub(crate) struct Fading {
    options: FadeOptions,
    next: Instant,
    /// The counter at which it goes on.
    at: Option<u32>,
    /// How often it has gone through them.
    rounds: u64,
}

impl Fading {
    /// Begins a period after `now`.
    pub(crate) fn new(options: FadeOptions, now: Instant) -> Self {
        Self {
            options,
            next: now + options.every,
            at: None,
            rounds: 0,
        }
    }

    /// The ways of reducing counters.
    pub(crate) fn fade(&self) -> Fade {
        self.options.fade
    }

    /// How often it has gone through the counters.
    pub(crate) fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Whether it is going through the counters.
    pub(crate) fn is_going(&self) -> bool {
        self.at.is_some()
    }

    /// Makes some of the counters smaller, if it is time. Additions do not wait meanwhile. Returns how, if
    /// all of them were made smaller by that.
    pub(crate) fn step(
        &mut self,
        plan: &Plan,
        memory: &mut WordsMut,
        now: Instant,
    ) -> Option<Fade> {
        let from = match self.at {
            Some(at) => at,
            None if now >= self.next => {
                // After a pause, not once for each period that was missed.
                self.next = (self.next + self.options.every).max(now);
                0
            }
            None => return None,
        };
        let counters = plan.places.key_increment_counters;
        let to = from.saturating_add(PIECE).min(counters);
        for n in from..to {
            let at = exact::<usize>(plan.places.key_increment_at + u64::from(n) * 8);
            let value = u64::from_ne_bytes(memory.words().word(at));
            let left = self.options.fade.left_of(value);
            // No other process writes it, so no addition comes in between.
            if left < value {
                memory.store(at, left);
            }
        }
        self.at = (to < counters).then_some(to);
        self.rounds += u64::from(self.at.is_none());
        self.at.is_none().then_some(self.options.fade)
    }
}
