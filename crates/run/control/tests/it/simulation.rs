//! Hours of traffic with shortages, from a seed: the plan neither flaps nor starves.

use strata_control::elastic::{
    Degradation, ElasticOptions, ElasticState, Reading, Resource, Sensed, Step, plan,
};
use strata_wire::mix64;

const TICK_NS: u64 = 100_000_000;
const HOUR: u64 = 36_000;

/// A recorder with a slow disk: what arrives is kept as the mode decides, waits in blocks, and is
/// written at the disk's rate.
struct Machine {
    waiting: f64,
    arrived: f64,
    lost: f64,
}

/// Bytes that the blocks hold, in ticks of the disk's rate.
const BLOCKS: f64 = 8.0;

/// The share of bytes that a mode keeps.
fn kept(degradation: Degradation) -> f64 {
    match degradation.mode() {
        None => 0.5,
        Some("log-partial") => 0.25,
        Some("log-sampled") => 0.2,
        Some(_) => 0.06,
    }
}

impl Machine {
    fn tick(&mut self, arrives: f64, degradation: Degradation) -> f64 {
        let wanted = arrives * kept(degradation);
        self.arrived += wanted;
        self.waiting = (self.waiting + wanted - 1.0).max(0.0);
        if self.waiting > BLOCKS {
            self.lost += self.waiting - BLOCKS;
            self.waiting = BLOCKS;
        }
        self.waiting / BLOCKS
    }
}

struct Outcome {
    changes: Vec<(u64, Degradation)>,
    lost_share: f64,
    /// Ticks with degradation though the traffic has required none for the longest hold time.
    starved: u64,
    last: Degradation,
}

/// Runs this many ticks of traffic, which is given in ticks of the disk's rate.
fn simulate(ticks: u64, steered: bool, mut traffic: impl FnMut(u64) -> f64) -> Outcome {
    let options = ElasticOptions::default();
    let mut state = ElasticState::default();
    let mut machine = Machine {
        waiting: 0.0,
        arrived: 0.0,
        lost: 0.0,
    };
    let (mut changes, mut starved, mut calm) = (Vec::new(), 0, 0);
    for tick in 0..ticks {
        let arrives = traffic(tick);
        let degradation = if steered {
            state.degradation()
        } else {
            Degradation::default()
        };
        let mut sensed: Sensed = Default::default();
        sensed[Resource::Blocks as usize] = reading(machine.tick(arrives, degradation), tick);
        let before = state.degradation();
        (state, _) = plan(&state, &sensed, &options);
        if state.degradation() != before {
            changes.push((tick, state.degradation()));
        }
        calm = if arrives * kept(Degradation::default()) < 0.9 {
            calm + 1
        } else {
            0
        };
        // Three steps, each of the longest hold time.
        if calm * TICK_NS > 3 * options.hold_ns_max && state.degradation() != Degradation::default()
        {
            starved += 1;
        }
    }
    Outcome {
        changes,
        lost_share: machine.lost / machine.arrived,
        starved,
        last: state.degradation(),
    }
}

fn reading(value: f64, tick: u64) -> Option<Reading> {
    let taken_ns = tick * TICK_NS;
    Some(Reading { value, taken_ns })
}

fn unit(seed: u64) -> f64 {
    f64::from(u32::try_from(mix64(seed) >> 32).unwrap()) / f64::from(u32::MAX)
}

/// The most changes in any hour.
fn busiest_hour(changes: &[(u64, Degradation)]) -> usize {
    let within = |start: u64| {
        changes
            .iter()
            .filter(move |(at, _)| (start..start + HOUR).contains(at))
    };
    changes
        .iter()
        .map(|&(at, _)| within(at).count())
        .max()
        .unwrap_or(0)
}

#[test]
fn a_day_with_bursts_neither_flaps_nor_starves() {
    for seed in 0..8 {
        let traffic = |tick: u64| {
            // Busy by day, quiet by night; bursts of seconds; noise.
            let day = (tick as f64 / (24 * HOUR) as f64 * std::f64::consts::TAU).sin();
            let burst = if unit((seed << 40) | (tick / 50)) > 0.995 {
                4.0
            } else {
                0.0
            };
            (1.2 + 0.9 * day + burst + unit((seed << 50) | tick)).max(0.0)
        };
        let steered = simulate(24 * HOUR, true, traffic);
        let left_alone = simulate(24 * HOUR, false, traffic);
        let most = busiest_hour(&steered.changes);
        assert!(most <= 60, "seed {seed}: {most} changes in an hour");
        assert_eq!(steered.starved, 0, "seed {seed}");
        assert!(
            steered.lost_share < left_alone.lost_share / 5.0,
            "seed {seed}: {} against {}",
            steered.lost_share,
            left_alone.lost_share
        );
    }
}

/// Permanent overload: without degradation it overflows, with the first step it does not. The worst
/// case for flapping.
#[test]
fn constant_overload_settles() {
    for load in [2.1, 3.0, 4.5, 6.0, 12.0, 40.0] {
        let outcome = simulate(10 * HOUR, true, |_| load);
        let late = outcome.changes.iter().filter(|(at, _)| *at > HOUR).count();
        // At most two changes per longest hold time, of which an hour has six.
        assert!(late <= 9 * 12, "load {load}: {late} changes in nine hours");
        let lost = outcome.lost_share;
        assert!(load > 16.0 || lost < 0.01, "load {load}: lost {lost}");
    }
}

/// Loads that come and go with every period: the one that suits the hold time worst is found here,
/// not by a user.
#[test]
fn no_period_makes_it_flap() {
    for period in [
        2, 5, 10, 30, 60, 100, 103, 150, 200, 300, 1000, 3000, 6100, 12_100,
    ] {
        let outcome = simulate(6 * HOUR, true, |tick| {
            if tick % period < period / 2 { 5.0 } else { 0.5 }
        });
        let late = outcome.changes.iter().filter(|(at, _)| *at > HOUR).count();
        assert!(
            late <= 5 * 20,
            "period {period}: {late} changes in five hours"
        );
        assert!(
            outcome.lost_share < 0.08,
            "period {period}: {}",
            outcome.lost_share
        );
    }
}

#[test]
fn when_it_is_over_all_is_kept_again() {
    let outcome = simulate(3 * HOUR, true, |tick| if tick < HOUR { 5.0 } else { 0.5 });
    assert_eq!(outcome.last, Degradation::default());
    assert_eq!(outcome.starved, 0);
}

#[test]
fn shortages_of_several_resources_join() {
    let options = ElasticOptions::default();
    let mut state = ElasticState::default();
    for tick in 0..20 {
        let mut sensed: Sensed = Default::default();
        sensed[Resource::Blocks as usize] = reading(if tick < 5 { 0.8 } else { 0.5 }, tick);
        sensed[Resource::DiskSpace as usize] = reading(0.96, tick);
        (state, _) = plan(&state, &sensed, &options);
    }
    assert_eq!(state.degradation().mode(), Some("log-minimum"));
    assert_eq!(state.level(Resource::Blocks), 1);
}

/// A path of limited capacity, and a sensor that now and then reports how much of it was used since
/// the last report, while the controller looks a thousand times a second.
struct Way {
    period_ns: u64,
    rate: f64,
    since_ns: u64,
    used: f64,
}

const LOOK_NS: u64 = 1_000_000;

impl Way {
    fn new(period_ns: u64, rate: f64) -> Self {
        Self {
            period_ns,
            rate,
            since_ns: 0,
            used: 0.0,
        }
    }

    fn look(&mut self, now_ns: u64, degradation: Degradation, sensed: &mut Option<Reading>) {
        self.used += self.rate * kept(degradation);
        if now_ns - self.since_ns >= self.period_ns {
            let looks = (now_ns - self.since_ns) / LOOK_NS;
            let value = self.used / looks as f64;
            *sensed = Some(Reading {
                value,
                taken_ns: now_ns,
            });
            (self.since_ns, self.used) = (now_ns, 0.0);
        }
    }
}

/// Runs sensors with their own periods for this many seconds: the steps, with their times.
fn with_sensors(ways: &mut [(Resource, Way)], seconds: u64) -> (ElasticState, Vec<(u64, Step)>) {
    let options = ElasticOptions {
        thresholds: ElasticOptions::default().thresholds.map(|mut threshold| {
            (threshold.raise, threshold.lower) = (1.0, 0.75);
            threshold
        }),
        ..ElasticOptions::default()
    };
    let (mut state, mut all) = (ElasticState::default(), Vec::new());
    let mut sensed: Sensed = Default::default();
    for now_ns in (LOOK_NS..seconds * 1_000_000_000).step_by(1_000_000) {
        for (resource, way) in ways.iter_mut() {
            way.look(now_ns, state.degradation(), &mut sensed[*resource as usize]);
        }
        let steps;
        (state, steps) = plan(&state, &sensed, &options);
        all.extend(steps.into_iter().map(|step| (now_ns, step)));
    }
    (state, all)
}

/// A shortage that one step resolves gets one step, however seldom the sensor reports. (Of what
/// arrives half is kept by default, a quarter after one step.)
#[test]
fn one_excess_is_one_step_whatever_the_period_of_the_sensor() {
    for period_ms in [1, 7, 50, 100, 290, 500, 1_000, 3_000] {
        let way = Way::new(period_ms * 1_000_000, 3.0);
        let (state, steps) = with_sensors(&mut [(Resource::Bandwidth, way)], 9);
        assert_eq!(state.level(Resource::Bandwidth), 1, "{period_ms} ms");
        assert_eq!(steps.len(), 1, "{period_ms} ms: {steps:?}");
    }
}

/// A reading that stays unchanged because its sensor has stopped counts once.
#[test]
fn a_sensor_that_stops_has_said_one_thing_once() {
    let options = ElasticOptions::default();
    let mut state = ElasticState::default();
    let mut sensed: Sensed = Default::default();
    for tick in 0..5 {
        sensed[Resource::Blocks as usize] = reading(0.9, tick);
        (state, _) = plan(&state, &sensed, &options);
    }
    let level = state.level(Resource::Blocks);
    assert_eq!(level, 1);
    for _ in 0..10_000 {
        let (next, steps) = plan(&state, &sensed, &options);
        assert!(steps.is_empty());
        state = next;
    }
}

/// Several sensors at once, with periods and loads from a seed: each steps on its own readings, at
/// most as often as it has new ones, and in the end everything necessary is given up.
#[test]
fn sensors_of_many_periods_neither_hurry_nor_starve() {
    let resources = [Resource::Bandwidth, Resource::Cpu, Resource::DiskRate];
    for seed in 0..30_u64 {
        let periods: Vec<u64> = (0..3)
            .map(|n| 1 + mix64(seed * 3 + n) % 2_000)
            .map(|ms| ms * 1_000_000)
            .collect();
        let rate = 1.0 + 15.0 * unit(seed + 1_000);
        let mut ways: Vec<(Resource, Way)> = resources
            .iter()
            .zip(&periods)
            .map(|(resource, period)| (*resource, Way::new(*period, rate)))
            .collect();
        let seconds = 30;
        let (state, steps) = with_sensors(&mut ways, seconds);
        for (resource, period_ns) in resources.iter().zip(&periods) {
            let own: Vec<u64> = steps
                .iter()
                .filter(|(_, step)| step.resource == *resource)
                .map(|(at, _)| *at)
                .collect();
            let hurried = own.windows(2).any(|two| two[1] - two[0] < *period_ns);
            assert!(!hurried, "seed {seed}: {own:?}, period {period_ns}");
            assert!(own.len() <= 6, "seed {seed}: {own:?}");
        }
        let degradation = state.degradation();
        let used = rate * kept(degradation);
        assert!(
            used < 1.0 || degradation.mode() == Some("log-minimum"),
            "seed {seed}: {used} with {degradation:?}"
        );
    }
}
