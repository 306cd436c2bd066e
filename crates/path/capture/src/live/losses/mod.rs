//! What was lost before packets reached us, and the CPUs that were short for it.

pub(super) mod contention;
pub(super) mod cpus;
pub(super) mod drops;
