//! The time of day, in the unit that packets are stamped in.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::words::number::exact;

/// Now, in ns since 1970.
///
/// # Panics
///
/// If the clock is before 1970, to which Linux refuses to set it, or after 2554.
#[must_use]
pub fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    exact::<u64>(since.expect("the clock is after 1970").as_nanos())
}

/// Now, in seconds since 1970.
///
/// # Panics
///
/// As [`unix_ns`].
#[must_use]
pub fn unix_seconds() -> u64 {
    unix_ns() / 1_000_000_000
}
