//! The role that records: starting it, and what its caller can ask and change meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use strata_control::{ControlError, Status};
use strata_wire::Ledger;

use crate::error::Result;
use crate::handle::{Handle, Spec};
use crate::log_dir::{NewDirectory, warn_if_shared};
use crate::notice::Tell;
use crate::observer::Observer;
use crate::outcome::RecordOutcome;
use crate::preflight::{self, Purpose};
use crate::sandbox;
use crate::setup::Setup;
use crate::spec::{InputSpec, RecordSpec};
use crate::{files, live};

/// Checks everything that starting a recording would need; creates and sends nothing. Without an
/// input, only what the files of the configuration say.
///
/// # Errors
///
/// The first thing that is wrong.
pub fn check(spec: RecordSpec, tell: &Tell) -> Result<()> {
    if spec.has_no_input() {
        return Setup::new(spec, Arc::default(), Arc::clone(tell)).map(drop);
    }
    preflight::directory(&spec)?;
    let setup = Setup::new(spec, Arc::default(), Arc::clone(tell))?;
    preflight::check(&setup, Purpose::CheckOnly)
}

impl Spec for RecordSpec {
    type Running = Recorded;
    type Outcome = RecordOutcome;

    fn start(self, stop: Arc<AtomicBool>, tell: Tell) -> Result<Handle<Self>> {
        if self.interfaces().is_none_or(|live| live.sandbox.is_none()) {
            sandbox::unconfined();
        }
        preflight::directory(&self)?;
        let setup = Setup::new(self, stop, tell)?;
        preflight::check(&setup, Purpose::Start)?;
        let new = setup.spec.destination.dir().map(NewDirectory::at);
        if let Some(dir) = setup.spec.destination.dir() {
            warn_if_shared(dir, &setup.tell);
        }
        let setup = Arc::new(setup);
        let started = match &setup.spec.input {
            InputSpec::Files(paths) => files::start(&setup, paths.clone(), new),
            InputSpec::Interfaces(interfaces) => live::start(&setup, interfaces, new),
        };
        // Threads started before the failure end too.
        started.inspect_err(|_| setup.stop.store(true, Ordering::Relaxed))
    }
}

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
}

impl Handle<RecordSpec> {
    /// Runs the rest of a recording in a thread of its own.
    pub(crate) fn record(
        setup: &Arc<Setup>,
        observer: Arc<Observer>,
        work: impl FnOnce() -> Result<RecordOutcome> + Send + 'static,
    ) -> Result<Self> {
        let running = Recorded {
            setup: Arc::clone(setup),
            observer,
            started: Instant::now(),
        };
        Self::run(running, Arc::clone(&setup.stop), work)
    }

    /// The status, as its API returns it.
    #[must_use]
    pub fn status(&self) -> Status {
        self.running.setup.controller.status()
    }

    /// The counters so far.
    #[must_use]
    pub fn counts(&self) -> RecordCounts {
        let (ledger, rings) = self.running.observer.counted();
        RecordCounts {
            elapsed: self.running.started.elapsed(),
            ledger,
            rings,
        }
    }

    /// Starts new files of the log, on behalf of `who`.
    ///
    /// # Errors
    ///
    /// If the log is not on this machine.
    pub fn rotate(&self, who: &str) -> Result<(), ControlError> {
        self.running.setup.controller.rotate(who)
    }

    /// Reloads the configuration files.
    ///
    /// # Errors
    ///
    /// What is wrong with them: then it continues as before.
    pub fn reload(&self) -> Result<()> {
        self.running.setup.reload().map_err(sandbox::explain)
    }
}
