//! The kernel's clocks.

use rustix::time::{ClockId, DynamicClockId, Timespec, clock_gettime, clock_gettime_dynamic};
use strata_wire::exact;

#[expect(
    clippy::arithmetic_side_effects,
    reason = "64 bits times 30 bits, in 128"
)]
fn ns(time: Timespec) -> i128 {
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

/// Nanoseconds by which TAI is ahead of the time of day.
pub(crate) fn tai_ahead_ns() -> u64 {
    let Ok(tai) = clock_gettime_dynamic(DynamicClockId::Tai) else {
        // Where the clock is unknown, it has not been set either.
        return 0;
    };
    // Whole seconds: leap seconds since 1972, or 0 where they have not been set.
    let ahead = ns(tai).saturating_sub(ns(clock_gettime(ClockId::Realtime)));
    let seconds = ahead.saturating_add(500_000_000) / 1_000_000_000;
    exact::<u64>(seconds.max(0)).saturating_mul(1_000_000_000)
}

/// Nanoseconds since 1970.
pub(crate) fn realtime_ns() -> u64 {
    exact::<u64>(ns(clock_gettime(ClockId::Realtime)))
}
