//! What the caller of a recording can ask and change while it runs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use strata_control::{ControlError, Status};
use strata_role::Handle;
use strata_wire::Ledger;

use crate::error::Result;
use crate::observer::Observer;
use crate::outcome::RecordOutcome;
use crate::sandbox;
use crate::setup::Setup;
use crate::spec::RecordSpec;

/// A recording, for its caller.
pub struct Recorded {
    setup: Arc<Setup>,
    observer: Arc<Observer>,
    started: Instant,
}

/// The counters of a recording so far.
#[derive(Clone, Debug)]
pub struct RecordCounts {
    /// Time since its start.
    pub elapsed: Duration,
    /// Where packets ended.
    pub ledger: Ledger,
    /// Interfaces: name, packets received and dropped by the kernel.
    pub rings: Vec<(String, u64, u64)>,
    /// Bytes of capture files that were read, and of how many: `None` of interfaces, pipes and compressed files, whose
    /// length is not known. Files that are read twice, to learn what payload there is, count twice.
    pub read: Option<(u64, u64)>,
}

/// Runs the rest of a recording in a thread of its own.
pub(crate) fn run(
    setup: &Arc<Setup>,
    observer: Arc<Observer>,
    work: impl FnOnce() -> Result<RecordOutcome> + Send + 'static,
) -> Result<Handle<RecordSpec>> {
    let running = Recorded {
        setup: Arc::clone(setup),
        observer,
        started: Instant::now(),
    };
    Handle::run(running, Arc::clone(&setup.stop), work)
}

impl Recorded {
    /// The status, as its API returns it.
    #[must_use]
    pub fn status(&self) -> Status {
        self.setup.controller.status()
    }

    /// The counters so far.
    #[must_use]
    pub fn counts(&self) -> RecordCounts {
        let (ledger, rings) = self.observer.counted();
        RecordCounts {
            elapsed: self.started.elapsed(),
            ledger,
            rings,
            read: self.observer.read(),
        }
    }

    /// Starts new files of the log, on behalf of `who`.
    ///
    /// # Errors
    ///
    /// If the log is not on this machine.
    pub fn rotate(&self, who: &str) -> Result<(), ControlError> {
        self.setup.controller.rotate(who)
    }

    /// Reloads the configuration files.
    ///
    /// # Errors
    ///
    /// What is wrong with them: then it continues as before.
    pub fn reload(&self) -> Result<()> {
        self.setup.reload().map_err(sandbox::explain)
    }
}
