//! Giving way to others on the same CPUs: what of its CPU budget a recording may use while they are short. A pure
//! function: no clock, no I/O.
//!
//! First only headers are copied. If that is not enough, the budget is halved, and again, down to a sixteenth.
//! It returns a step at a time, each after a while of calm, which is longer if the shortage comes back at once:
//! then it was the recording that made it.

/// Steps: only headers, then 1/2, 1/4, 1/8 and 1/16 of the budget.
const LEVEL_MAX: u32 = 5;
/// Calm for this long before a step back, ns; and at most.
const CALM_NS: u64 = 5_000_000_000;
const CALM_NS_MAX: u64 = 320_000_000_000;
/// A shortage so soon after a step back is due to it.
const AGAIN_NS: u64 = 10_000_000_000;

/// How the CPUs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cores {
    /// Others do not get what they need.
    Short,
    /// Nearly so.
    Busy,
    /// There is room.
    Calm,
}

/// What is left to a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GivenWay {
    level: u32,
    calm_since_ns: Option<u64>,
    returned_ns: Option<u64>,
    doublings: u32,
}

impl GivenWay {
    /// Whether only headers are copied.
    #[must_use]
    pub fn headers_only(&self) -> bool {
        self.level > 0
    }

    /// What is left of a budget.
    #[must_use]
    pub fn left(&self, budget: f64) -> f64 {
        budget / f64::from(1_u32 << self.level.saturating_sub(1))
    }

    /// The next state, when the CPUs are found like this. To be called once a second.
    #[must_use]
    pub fn next(mut self, cores: Cores, now_ns: u64) -> Self {
        match cores {
            Cores::Short => {
                self.calm_since_ns = None;
                let back = self.returned_ns.take();
                if back.is_some_and(|back| now_ns.saturating_sub(back) < AGAIN_NS) {
                    self.doublings = self.doublings.saturating_add(1);
                }
                self.level = (self.level + 1).min(LEVEL_MAX);
            }
            Cores::Busy => self.calm_since_ns = None,
            Cores::Calm => {
                let since = *self.calm_since_ns.get_or_insert(now_ns);
                let wait = CALM_NS << self.doublings.min(10);
                if self.level > 0 && now_ns.saturating_sub(since) >= wait.min(CALM_NS_MAX) {
                    self.level -= 1;
                    self.calm_since_ns = Some(now_ns);
                    self.returned_ns = Some(now_ns);
                } else if self.level == 0 && now_ns.saturating_sub(since) >= CALM_NS_MAX {
                    self.doublings = 0;
                }
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn the_budget_shrinks_while_cores_are_short_and_returns_after() {
        let (mut state, mut now) = (GivenWay::default(), 0);
        let mut step = |cores: Cores| {
            now += SECOND;
            state = state.next(cores, now);
            (state.headers_only(), state.left(0.8))
        };
        assert_eq!(step(Cores::Calm), (false, 0.8));
        let all: Vec<_> = (0..7).map(|_| step(Cores::Short)).collect();
        let left: Vec<f64> = all.iter().map(|(_, left)| *left).collect();
        assert_eq!(left, [0.8, 0.4, 0.2, 0.1, 0.05, 0.05, 0.05]);
        assert!(all.iter().all(|(headers_only, _)| *headers_only));
        assert_eq!(step(Cores::Busy), (true, 0.05), "not yet");
        let mut seconds = 0;
        while step(Cores::Calm) != (false, 0.8) {
            seconds += 1;
            assert!(seconds < 100);
        }
        assert_eq!(seconds, 25, "5 s for each of 5 steps");
    }

    /// It makes the shortage itself: so it tries ever more rarely, but does not cease to.
    #[test]
    fn a_shortage_that_returns_with_it_is_tried_rarely() {
        let mut state = GivenWay::default();
        let mut tries = Vec::new();
        let mut is_short = true;
        for second in 0..4000 {
            let before = state.left(1.0);
            let cores = if is_short { Cores::Short } else { Cores::Calm };
            state = state.next(cores, second * SECOND);
            is_short = state.left(1.0) > 0.5;
            if state.left(1.0) > before {
                tries.push(second);
            }
        }
        let waits: Vec<u64> = tries.windows(2).map(|two| two[1] - two[0]).collect();
        assert!(waits.windows(2).all(|two| two[1] >= two[0]), "{waits:?}");
        let last = waits.last().unwrap() * SECOND;
        assert!(
            (CALM_NS_MAX..CALM_NS_MAX + 5 * SECOND).contains(&last),
            "{waits:?}"
        );
    }
}
