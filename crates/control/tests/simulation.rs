//! Hours of traffic with shortages, from a seed: the plan neither flaps nor starves.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail loudly too")]

use strata_control::elastic::{ElasticOptions, ElasticState, Relief, Resource, Sensed, plan};
use strata_wire::mix64;

const TICK_NS: u64 = 100_000_000;
const HOUR: u64 = 36_000;

/// A recorder in a disk's way: what arrives is kept as far as the mode wants it, waits in
/// blocks, and is written at the disk's rate.
struct Machine {
    waiting: f64,
    arrived: f64,
    lost: f64,
}

/// Bytes that the blocks hold, in ticks of the disk.
const BLOCKS: f64 = 8.0;

/// The share of the bytes that a mode keeps.
fn kept(relief: Relief) -> f64 {
    match relief.mode() {
        None => 0.5,
        Some("log-partial") => 0.25,
        Some("log-sampled") => 0.2,
        Some(_) => 0.06,
    }
}

impl Machine {
    fn tick(&mut self, arrives: f64, relief: Relief) -> f64 {
        let wanted = arrives * kept(relief);
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
    changes: Vec<(u64, Relief)>,
    lost_share: f64,
    /// Ticks with relief though the traffic has needed none for the longest hold time.
    starved: u64,
    last: Relief,
}

/// Runs so many ticks of traffic, which is given in ticks of the disk's rate.
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
        let relief = if steered {
            state.relief()
        } else {
            Relief::default()
        };
        let mut sensed: Sensed = Default::default();
        sensed[Resource::Blocks as usize] = Some(machine.tick(arrives, relief));
        let before = state.relief();
        (state, _) = plan(&state, &sensed, &options, tick * TICK_NS);
        if state.relief() != before {
            changes.push((tick, state.relief()));
        }
        calm = if arrives * kept(Relief::default()) < 0.9 {
            calm + 1
        } else {
            0
        };
        // Three steps, each of the longest hold time.
        if calm * TICK_NS > 3 * options.hold_ns_max && state.relief() != Relief::default() {
            starved += 1;
        }
    }
    Outcome {
        changes,
        lost_share: machine.lost / machine.arrived,
        starved,
        last: state.relief(),
    }
}

fn unit(seed: u64) -> f64 {
    f64::from(u32::try_from(mix64(seed) >> 32).unwrap()) / f64::from(u32::MAX)
}

/// Most changes in any hour.
fn busiest_hour(changes: &[(u64, Relief)]) -> usize {
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
    for seed in 0..20 {
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

/// Too much for ever: without relief it overflows, with the first step it does not. The worst
/// case for flapping.
#[test]
fn constant_overload_settles() {
    for load in [2.1, 3.0, 4.5, 6.0, 12.0, 40.0] {
        let outcome = simulate(10 * HOUR, true, |_| load);
        let late = outcome.changes.iter().filter(|(at, _)| *at > HOUR).count();
        // At most two changes for each longest hold time, of which an hour has six.
        assert!(late <= 9 * 12, "load {load}: {late} changes in nine hours");
        let lost = outcome.lost_share;
        assert!(load > 16.0 || lost < 0.01, "load {load}: lost {lost}");
    }
}

/// Loads that come and go with every period: the one that fits the hold time worst is found
/// here, not by a user.
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
    assert_eq!(outcome.last, Relief::default());
    assert_eq!(outcome.starved, 0);
}

#[test]
fn shortages_of_several_resources_join() {
    let options = ElasticOptions::default();
    let mut state = ElasticState::default();
    for tick in 0..20 {
        let mut sensed: Sensed = Default::default();
        sensed[Resource::Blocks as usize] = Some(if tick < 5 { 0.8 } else { 0.5 });
        sensed[Resource::DiskSpace as usize] = Some(0.96);
        (state, _) = plan(&state, &sensed, &options, tick * TICK_NS);
    }
    assert_eq!(state.relief().mode(), Some("log-minimum"));
    assert_eq!(state.level(Resource::Blocks), 1);
}
