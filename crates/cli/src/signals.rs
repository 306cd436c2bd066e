//! Signals, and what they ask for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::Result;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;

/// Set by the first interrupt or termination signal, so that what was read is recorded properly.
/// The second one ends the program at once.
pub(crate) fn stop_on_signal() -> Result<Arc<AtomicBool>> {
    static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    if let Some(stop) = STOP.get() {
        return Ok(Arc::clone(stop));
    }
    let stop = Arc::clone(STOP.get_or_init(Arc::default));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal finds the flag unset.
        flag::register_conditional_default(signal, Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// What signals ask of a running recording.
pub(crate) struct Signals {
    pub(crate) stop: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
    report: Arc<AtomicBool>,
}

impl Signals {
    /// INT and TERM end it; other signals keep their default action.
    pub(crate) fn stop() -> Result<Self> {
        Ok(Self {
            stop: stop_on_signal()?,
            reload: Arc::default(),
            report: Arc::default(),
        })
    }

    /// HUP asks to reload the configuration, USR1 for counts.
    pub(crate) fn also_steer(&mut self) -> Result<()> {
        flag::register(SIGHUP, Arc::clone(&self.reload))?;
        flag::register(SIGUSR1, Arc::clone(&self.report))?;
        Ok(())
    }

    pub(crate) fn take_reload(&self) -> bool {
        self.reload.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn take_report(&self) -> bool {
        self.report.swap(false, Ordering::Relaxed)
    }
}
