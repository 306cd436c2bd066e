//! The role that records: the order of its start.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use strata_role::sandbox::unconfined;
use strata_role::{Handle, Spec, Tell, warn_if_shared};

use crate::error::{RecordError, Result};
use crate::live::preflight::{self, Purpose};
use crate::outcome::RecordOutcome;
use crate::recorded::Recorded;
use crate::setup::Setup;
use crate::setup::log_dir::NewDirectory;
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
    type Error = RecordError;
    const THREAD: &'static str = "strata-record";

    fn start(self, stop: Arc<AtomicBool>, tell: Tell) -> Result<Handle<Self>> {
        let stream = self.stream.as_ref();
        let is_sandboxed = match self.interfaces() {
            Some(live) => live.sandbox.is_some(),
            None => stream.is_some_and(|stream| stream.reach.is_some()),
        };
        if !is_sandboxed {
            unconfined();
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
