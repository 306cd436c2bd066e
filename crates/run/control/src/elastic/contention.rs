//! What a recording gives up while CPUs are short: part of its CPU budget, so that others on them get more, or
//! payload, so that fewer packets are lost. Pure functions: no clock, no I/O.
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

/// Losses in two looks no further apart than this are more than a moment's pause of the machine, ns.
const LOST_AGAIN_NS: u64 = 1_000_000_000;

/// Whether payload is given up so that fewer packets are lost: copying whole packets takes the kernel as much
/// time as all that is done with them afterwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shedding {
    /// Since when, while it is.
    since_ns: Option<u64>,
    lost_ns: Option<u64>,
    calm_since_ns: Option<u64>,
    returned_ns: Option<u64>,
    doublings: u32,
    /// How often it was.
    times: u64,
    /// For how long, before this time.
    before_ns: u64,
}

impl Shedding {
    /// Whether payload is given up now.
    #[must_use]
    pub fn is_shedding(&self) -> bool {
        self.since_ns.is_some()
    }

    /// How often it was given up.
    #[must_use]
    pub fn times(&self) -> u64 {
        self.times
    }

    /// For how long altogether, ns.
    #[must_use]
    pub fn total_ns(&self, now_ns: u64) -> u64 {
        let now = self
            .since_ns
            .map_or(0, |since| now_ns.saturating_sub(since));
        self.before_ns.saturating_add(now)
    }

    /// The next state, some tens of times a second: whether packets were lost since the last look, and
    /// whether CPUs still have so little time that whole packets could not be copied.
    #[must_use]
    pub fn next(mut self, is_losing: bool, is_busy: bool, now_ns: u64) -> Self {
        if is_losing {
            self.calm_since_ns = None;
            let last = self.lost_ns.replace(now_ns);
            let again = last.is_some_and(|at| now_ns.saturating_sub(at) <= LOST_AGAIN_NS);
            if again && self.since_ns.is_none() {
                self.since_ns = Some(now_ns);
                self.times = self.times.saturating_add(1);
                let back = self.returned_ns.take();
                if back.is_some_and(|back| now_ns.saturating_sub(back) < AGAIN_NS) {
                    self.doublings = self.doublings.saturating_add(1);
                }
            }
            return self;
        }
        // A CPU that is busy for ever, with others' packets, does not keep it for ever.
        let quiet_ns = self.lost_ns.map_or(0, |at| now_ns.saturating_sub(at));
        if is_busy && quiet_ns < CALM_NS_MAX {
            self.calm_since_ns = None;
            return self;
        }
        let since = *self.calm_since_ns.get_or_insert(now_ns);
        let calm_ns = now_ns.saturating_sub(since);
        let wait_ns = (CALM_NS << self.doublings.min(10)).min(CALM_NS_MAX);
        if self.since_ns.is_some() && calm_ns >= wait_ns {
            self.before_ns = self.total_ns(now_ns);
            self.since_ns = None;
            self.calm_since_ns = Some(now_ns);
            self.returned_ns = Some(now_ns);
        } else if self.since_ns.is_none() && calm_ns >= CALM_NS_MAX {
            self.doublings = 0;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    /// Between two looks.
    const LOOK: u64 = SECOND / 20;

    #[test]
    fn payload_is_given_up_while_packets_are_lost_and_comes_back() {
        let (mut state, mut now) = (Shedding::default(), 0);
        let mut look = |is_losing, is_busy| {
            now += LOOK;
            state = state.next(is_losing, is_busy, now);
            (state, now)
        };
        assert!(!look(true, false).0.is_shedding(), "a pause is no shortage");
        for _ in 0..40 {
            assert!(!look(false, false).0.is_shedding());
        }
        assert!(!look(true, false).0.is_shedding(), "long after the last");
        assert!(look(true, false).0.is_shedding());
        for _ in 0..400 {
            assert!(look(false, true).0.is_shedding(), "still busy");
        }
        let mut looks: u64 = 0;
        while look(false, false).0.is_shedding() {
            looks += 1;
        }
        assert_eq!(looks * LOOK, CALM_NS);
        let (state, now) = look(false, false);
        assert_eq!((state.times(), state.is_shedding()), (1, false));
        assert_eq!(state.total_ns(now), 401 * LOOK + CALM_NS);
        assert_eq!(state.total_ns(now + SECOND), state.total_ns(now));
    }

    #[test]
    fn a_cpu_that_is_always_busy_does_not_keep_payload_for_ever() {
        let mut state = Shedding::default();
        let mut now = 0;
        for _ in 0..2 {
            now += LOOK;
            state = state.next(true, true, now);
        }
        let lost = now;
        while state.is_shedding() {
            now += LOOK;
            state = state.next(false, true, now);
            assert!(now - lost < 2 * CALM_NS_MAX);
        }
        assert!(now - lost >= CALM_NS_MAX);
    }

    /// Whole packets are too much, so trying them loses some: it is tried ever more rarely.
    #[test]
    fn whole_packets_that_are_lost_at_once_are_tried_rarely() {
        let mut state = Shedding::default();
        let mut lost = 0;
        for look in 0..20 * 3600 {
            let is_losing = !state.is_shedding();
            lost += u64::from(is_losing);
            state = state.next(is_losing, false, look * LOOK);
        }
        assert!((6..=18).contains(&state.times()), "{}", state.times());
        assert!(lost <= 3 * state.times(), "{lost} looks at losses");
        let share = state.total_ns(3600 * SECOND) as f64 / (3600 * SECOND) as f64;
        assert!(share > 0.999, "{share}");
    }

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
