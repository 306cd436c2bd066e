//! The CPU budget under changing load, from a seed: minutes in milliseconds.

use proptest::prelude::*;
use strata_control::cpu::{CpuState, adjust};

const BUDGET: f64 = 0.10;
const LOOK_SECONDS: f64 = 0.1;
const STEP_SECONDS: f64 = 20.0;

/// SplitMix64: numbers of 0 to 1.
struct Random(u64);

impl Random {
    #[allow(clippy::cast_precision_loss)]
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// From -1 to 1, around 0.
    fn noise(&mut self) -> f64 {
        self.next() + self.next() - 1.0
    }
}

/// A process whose work follows the load: part of it is done a look later, some of it also for
/// skipped packets, some regardless of load, and it always deviates from the average.
struct Process {
    pending: f64,
    kernel: f64,
    fixed: f64,
    noise: f64,
}

impl Process {
    /// CPU seconds of a look. `load` 1 uses the whole budget if everything is captured.
    fn work(&mut self, load: f64, ratio: f64, random: &mut Random) -> f64 {
        // Whole flows: the kept part deviates a little from the share.
        let kept = (ratio * (1.0 + 0.05 * random.noise())).min(1.0);
        let load = load * (BUDGET - self.fixed) * (1.0 + self.noise * random.noise());
        let used = self.fixed + load * (self.kernel + (1.0 - self.kernel) * kept);
        let done = self.pending + used * LOOK_SECONDS / 2.0;
        self.pending = used * LOOK_SECONDS / 2.0;
        done
    }
}

#[derive(Debug)]
struct Look {
    used: f64,
    ratio: f64,
}

fn simulate(loads: &[f64], process: &mut Process, seed: u64) -> Vec<Look> {
    let mut random = Random(seed);
    let mut state = CpuState::default();
    let mut looks = Vec::new();
    for &load in loads {
        let mut at = 0.0;
        while at < STEP_SECONDS {
            let seconds = process.work(load, state.ratio, &mut random);
            let ratio = state.ratio;
            state = adjust(&state, BUDGET, seconds, LOOK_SECONDS);
            let used = seconds / LOOK_SECONDS;
            looks.push(Look { used, ratio });
            at += LOOK_SECONDS;
        }
    }
    looks
}

#[allow(clippy::cast_precision_loss)]
fn mean(looks: &[Look], of: impl Fn(&Look) -> f64) -> f64 {
    looks.iter().map(of).sum::<f64>() / looks.len() as f64
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Over any 10 s starting 5 s after a step of the load, use is within a point of the budget, or
    /// below it with everything captured.
    #[test]
    fn the_budget_is_kept_after_steps_of_the_load(
        seed: u64,
        loads in proptest::collection::vec(0.5..3.0, 2..8),
        kernel in 0.0..0.15,
        fixed in 0.0..0.02,
        noise in 0.0..0.3,
    ) {
        let mut process = Process { pending: 0.0, kernel, fixed, noise };
        let looks = simulate(&loads, &mut process, seed);
        for (number, step) in looks.chunks(200).enumerate() {
            for start in 50..=100 {
                let window = &step[start..start + 100];
                let used = mean(window, |look| look.used);
                let ratio = mean(window, |look| look.ratio);
                prop_assert!(used < BUDGET + 0.01, "step {number} from {start}: {used}");
                let all = loads[number] * (BUDGET - fixed) + fixed;
                prop_assert!(
                    used > BUDGET.min(all) - 0.01,
                    "step {number} from {start}: {used} of {all} at {ratio}"
                );
            }
        }
    }

    /// Whatever is measured, the share is valid.
    #[test]
    fn the_share_stays_a_share(
        looks in proptest::collection::vec((0.0..8.0_f64, 0.0..60.0_f64), 1..200),
        budget in 0.001..4.0_f64,
    ) {
        let mut state = CpuState::default();
        for (cpu, elapsed) in looks {
            state = adjust(&state, budget, cpu, elapsed);
            prop_assert!(state.ratio > 0.0 && state.ratio <= 1.0, "{state:?}");
        }
    }
}

/// A past load has no lasting effect: all flows are captured again in a few seconds.
#[test]
fn all_is_captured_again_when_the_load_is_gone() {
    let mut process = Process {
        pending: 0.0,
        kernel: 0.05,
        fixed: 0.005,
        noise: 0.1,
    };
    let looks = simulate(&[100.0, 0.3], &mut process, 7);
    assert!(looks[150].ratio < 0.02, "{:?}", looks[150]);
    let back = looks[200..].iter().position(|look| look.ratio >= 1.0);
    assert!(back.is_some_and(|looks| looks <= 100), "{back:?}");
}
