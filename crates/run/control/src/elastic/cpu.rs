//! The CPU budget (Trident §3.2, §5): which share of flows is captured, by additive increase
//! and multiplicative decrease. A pure function: no clock, no I/O.
//!
//! If too much is used, the share falls in proportion, by half at most, and so within a few looks.
//! It grows by a constant amount, but never by more than a quarter of itself nor beyond what the
//! last looks say the budget allows. Over- and underuse of up to half a second's budget is
//! remembered and moves the target a little, so that the average keeps the budget although single
//! looks cannot: work comes in blocks, flows are kept whole.

/// The share never falls below this, so that a drop in load is noticed.
const RATIO_MIN: f64 = 1.0 / 4096.0;
/// The most the share grows by in a look: from nothing to all in 64 of them.
const INCREASE: f64 = 1.0 / 64.0;
/// The same, relative to the share.
const INCREASE_RATIO: f64 = 0.25;
/// The most the share shrinks to in a look, relative to itself.
const DECREASE_RATIO: f64 = 0.5;
/// Weight of the last look against those before.
const NEWEST: f64 = 0.5;
/// Seconds of budget remembered as over- or underused.
const DEBT_SECONDS: f64 = 0.5;
/// Over how many seconds that is repaid, and the limits of the target relative to the budget.
const REPAY_SECONDS: f64 = 1.0;
const AIM: (f64, f64) = (0.5, 1.25);

/// The state between looks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuState {
    /// The share of flows to capture, up to 1.
    pub ratio: f64,
    /// Cores in use, averaged over the last looks.
    used: f64,
    /// CPU seconds used beyond the budget.
    debt: f64,
}

impl Default for CpuState {
    fn default() -> Self {
        Self {
            ratio: 1.0,
            used: 0.0,
            debt: 0.0,
        }
    }
}

impl CpuState {
    /// Cores in use, averaged over the last looks.
    #[must_use]
    pub fn used(&self) -> f64 {
        self.used
    }
}

/// The next state, when `cpu_seconds` were used in the last `elapsed_seconds` and `budget` cores
/// are allowed. To be called ten times a second.
#[must_use]
pub fn adjust(state: &CpuState, budget: f64, cpu_seconds: f64, elapsed_seconds: f64) -> CpuState {
    if elapsed_seconds <= 0.0 || budget <= 0.0 {
        return *state;
    }
    let now = cpu_seconds / elapsed_seconds;
    let limit = budget * DEBT_SECONDS;
    let debt = (state.debt + (now - budget) * elapsed_seconds).clamp(-limit, limit);
    let used = state.used + NEWEST * (now - state.used);
    let aim = (budget - debt / REPAY_SECONDS).clamp(budget * AIM.0, budget * AIM.1);
    let fits = if used > 0.0 {
        aim / used
    } else {
        f64::INFINITY
    };
    let ratio = if fits < 1.0 {
        state.ratio * fits.max(DECREASE_RATIO)
    } else {
        let relative = INCREASE_RATIO.min(fits - 1.0);
        state.ratio + INCREASE.min(state.ratio * relative)
    };
    CpuState {
        ratio: ratio.clamp(RATIO_MIN, 1.0),
        used,
        debt,
    }
}
