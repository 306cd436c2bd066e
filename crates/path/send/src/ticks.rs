//! A steady rate of anything.

use strata_sys::pause;

use crate::monotonic_ns;

const NS_PER_S: u64 = 1_000_000_000;

/// Lets things pass at a rate at most, evenly.
#[derive(Debug)]
pub struct Ticks {
    period_ns: u64,
    /// When the next may pass, on `CLOCK_MONOTONIC`.
    due_ns: u64,
}

impl Ticks {
    /// This many per second; 0 counts as 1.
    #[must_use]
    pub fn per_second(rate: u64) -> Self {
        Self {
            period_ns: NS_PER_S / rate.max(1),
            due_ns: 0,
        }
    }

    /// Waits until the next may pass. Time that was not used is not made up for.
    pub fn wait(&mut self) {
        let now_ns = monotonic_ns();
        if now_ns < self.due_ns {
            pause::until(self.due_ns);
        }
        self.due_ns = self.due_ns.max(now_ns).saturating_add(self.period_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_pass_than_the_rate_allows() {
        let started = monotonic_ns();
        let mut ticks = Ticks::per_second(1_000);
        for _ in 0..=20 {
            ticks.wait();
        }
        assert!(monotonic_ns() - started >= 20_000_000);
    }
}
