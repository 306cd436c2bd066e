//! Starts a recording.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;

use crate::handle::Handle;
use crate::log_dir::NewDirectory;
use crate::notice::Tell;
use crate::preflight::{self, Purpose};
use crate::setup::Setup;
use crate::spec::{InputSpec, Spec};
use crate::{files, live};

/// Checks everything that a start would need; creates and sends nothing.
///
/// # Errors
///
/// The first thing that is wrong.
pub fn check(spec: Spec, tell: &Tell) -> Result<()> {
    let setup = Setup::new(spec, Arc::default(), Arc::clone(tell))?;
    preflight::check(&setup, Purpose::CheckOnly)
}

/// Starts a recording. It ends by itself with its input, or soon after `stop` becomes true, for
/// example by a signal handler. `tell` receives notices, from any thread.
///
/// With interfaces and a sandbox, the calling thread and all threads that it starts from then on
/// lose their privileges and access to most files, permanently.
///
/// # Errors
///
/// What prevents the start: then nothing is left behind.
pub fn start(spec: Spec, stop: Arc<AtomicBool>, tell: Tell) -> Result<Handle> {
    let setup = Setup::new(spec, stop, tell)?;
    preflight::check(&setup, Purpose::Start)?;
    let new = setup.spec.destination.dir().map(NewDirectory::at);
    let setup = Arc::new(setup);
    let started = match &setup.spec.input {
        InputSpec::Files(paths) => files::start(&setup, paths.clone(), new),
        InputSpec::Interfaces(interfaces) => live::start(&setup, interfaces, new),
    };
    // Threads started before the failure end too.
    started.inspect_err(|_| setup.stop.store(true, Ordering::Relaxed))
}
