//! Detects workers that are stuck.

use std::time::{Duration, Instant};

/// A worker without progress for this long is reported.
const STUCK_AFTER: Duration = Duration::from_secs(5);

/// The last observed state of a worker.
struct Seen {
    steps: u64,
    at: Instant,
    /// Whether it was reported stuck.
    is_stuck: bool,
}

/// Monitors the steps of workers.
pub(crate) struct Watchdog {
    seen: Vec<Seen>,
}

impl Watchdog {
    pub(crate) fn new(workers: usize) -> Self {
        let seen = || Seen {
            steps: 0,
            at: Instant::now(),
            is_stuck: false,
        };
        Self {
            seen: (0..workers).map(|_| seen()).collect(),
        }
    }

    /// Whether a worker is stuck.
    pub(crate) fn is_any_stuck(&self) -> bool {
        self.seen.iter().any(|seen| seen.is_stuck)
    }

    /// Checks the steps of each worker, and whether it has finished; returns what to report.
    pub(crate) fn look(&mut self, workers: impl Iterator<Item = (u64, bool)>) -> Vec<String> {
        let mut reports = Vec::new();
        for (number, ((steps, is_finished), seen)) in workers.zip(&mut self.seen).enumerate() {
            if steps != seen.steps {
                if seen.is_stuck {
                    let still = seen.at.elapsed().as_secs();
                    reports.push(format!("worker {number} continues after {still} s"));
                }
                *seen = Seen {
                    steps,
                    at: Instant::now(),
                    is_stuck: false,
                };
            } else if seen.at.elapsed() > STUCK_AFTER && !seen.is_stuck && !is_finished {
                seen.is_stuck = true;
                reports.push(format!(
                    "worker {number} has made no progress for {} s: is the disk stuck, or the CPU busy?",
                    STUCK_AFTER.as_secs()
                ));
            }
        }
        reports
    }
}
