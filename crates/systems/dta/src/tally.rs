//! Counters of 64 bits: a process does not live until they wrap, so adding to them is not checked.

/// Adds to a counter.
#[inline(always)]
pub(crate) fn add(counter: &mut u64, more: u64) {
    *counter = counter.wrapping_add(more);
}

/// Counts one more.
#[inline(always)]
pub(crate) fn one(counter: &mut u64) {
    add(counter, 1);
}
