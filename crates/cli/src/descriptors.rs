//! How many descriptors the process may open.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the limit as far as the system allows (`ulimit -Hn`): the lower one that shells and
/// systemd set is for programs that call select(2), which this one does not.
pub(crate) fn raise_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Where it is refused, the limit that there is holds; what opens descriptors for others
    // keeps below that too.
    let _ = setrlimit(Resource::Nofile, limit);
}
