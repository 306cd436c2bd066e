//! When reports are due.

use std::thread;
use std::time::{Duration, Instant};

use strata_wire::exact;

/// Between bursts of reports.
const BURST: Duration = Duration::from_millis(1);

/// Waits for the next burst.
pub(crate) fn rest() {
    thread::sleep(BURST);
}

/// When reports are due.
pub(crate) struct Pace {
    pub(crate) started: Instant,
    /// Reports per second; 0 is as many as possible.
    pub(crate) rate: u64,
    pub(crate) limit: Option<u64>,
    pub(crate) until: Option<Duration>,
}

impl Pace {
    /// Waits for the next burst: how many reports it has; `None` at the end.
    pub(crate) fn next(&self, sent: u64) -> Option<u64> {
        let elapsed = self.started.elapsed();
        if self.until.is_some_and(|until| elapsed >= until) {
            return None;
        }
        let left = self
            .limit
            .map_or(u64::MAX, |limit| limit.saturating_sub(sent));
        if left == 0 {
            return None;
        }
        let due = match self.rate {
            0 => 1000,
            rate => {
                let due = u128::from(rate) * elapsed.as_nanos() / 1_000_000_000 + 1;
                exact::<u64>(due).saturating_sub(sent)
            }
        };
        if due == 0 {
            rest();
        }
        Some(due.min(left).min(10_000))
    }
}
