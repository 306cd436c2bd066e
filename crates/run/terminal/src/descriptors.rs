//! The limit on open descriptors of this process.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the limit as far as the system allows (`ulimit -Hn`): the lower one that shells and
/// systemd set is for programs that call select(2), which this one does not.
pub(crate) fn raise_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If this is refused, the current limit stays; whatever opens descriptors for others stays
    // below that too.
    let _ = setrlimit(Resource::Nofile, limit);
}
