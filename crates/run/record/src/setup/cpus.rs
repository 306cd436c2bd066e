//! Which CPU a thread runs on.

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::error::{At as _, Result};

/// Keeps the calling thread on one CPU.
pub(crate) fn pin(core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    let pinned = sched_setaffinity(None, &set).map_err(std::io::Error::from);
    pinned.at_with(|| format!("--cores: CPU {core} cannot be used"))
}
