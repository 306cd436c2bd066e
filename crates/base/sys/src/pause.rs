//! Letting time pass, where there is no state to wait for.
//!
//! What an event makes true is waited for with poll, a condition variable or a channel instead. So
//! no other crate of the data path calls `sleep`; `make arch` checks that.

use std::time::Duration;

use rustix::thread::{ClockId, Timespec, clock_nanosleep_absolute};

/// Waits before something is tried again that only time makes succeed, or looked at again because
/// nothing signals it: too many open files, a peer that is away, a counter of the kernel.
pub fn backoff(wait: Duration) {
    std::thread::sleep(wait);
}

/// Waits until a time on `CLOCK_MONOTONIC`, in ns, or until a signal arrives.
///
/// # Panics
///
/// If the time is more than 2^63 s after the start of the clock, which cannot be in 64 bits of ns.
pub fn until(monotonic_ns: u64) {
    let time = Duration::from_nanos(monotonic_ns);
    let time = Timespec::try_from(time).expect("64 bits of ns are fewer than 2^63 s");
    // The only error of this clock and a valid time is a signal.
    let _ = clock_nanosleep_absolute(ClockId::Monotonic, &time);
}
