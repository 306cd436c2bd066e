//! Signals, and what they ask for.

mod child;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use anyhow::{Context, Result, bail};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::SignalOnly;
use signal_hook::low_level::{emulate_default_handler, pipe};
use strata_role::Waker;
use strata_sys::interrupts;

pub use child::{Ran, run_child};

/// A command was interrupted before it was done, and has printed what was. The program ends with
/// [`Interrupted::STATUS`].
#[derive(Clone, Copy, Debug)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

impl Interrupted {
    /// As shells have it for SIGINT.
    pub const STATUS: u8 = 130;
}

/// The line about a log if a second signal ends the program.
const LOG: &str =
    "strata: interrupted twice: the log is not finished; `strata info` shows the losses";
const OTHERS: &str = "strata: interrupted twice: ended before everything was finished";

/// Set by the first interrupt or termination signal, so that what was read is recorded properly. One that comes at
/// least a second later ends the program at once.
pub fn stop_on_signal() -> Result<Arc<AtomicBool>> {
    static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    if let Some(stop) = STOP.get() {
        return Ok(Arc::clone(stop));
    }
    let stop = Arc::clone(STOP.get_or_init(Arc::default));
    interrupts::set_last_words(OTHERS);
    interrupts::install(&stop)?;
    Ok(stop)
}

/// As [`stop_on_signal`], for a command that writes a log.
pub fn stop_log_on_signal() -> Result<Arc<AtomicBool>> {
    interrupts::set_last_words(LOG);
    stop_on_signal()
}

/// Whether files that are begun are to be finished at the first signal.
static FINISHES: AtomicBool = AtomicBool::new(false);

/// As [`stop_on_signal`], for a command that writes as long as it runs, and finishes its file when it is to stop.
pub fn finish_on_signal() -> Result<Arc<AtomicBool>> {
    FINISHES.store(true, Ordering::Relaxed);
    stop_on_signal()
}

/// Ends this process with the one that started it, whose number is `parent`.
///
/// # Errors
///
/// If that has ended already: before the request to the kernel, no signal was sent.
pub fn end_with_parent(parent: i32) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM))
        .context("cannot watch the parent process")?;
    if getppid().is_none_or(|now| now.as_raw_nonzero().get() != parent) {
        bail!("the parent process ({parent}) has ended: exiting too");
    }
    Ok(())
}

/// Waits for what [`stop_on_signal`] notes.
pub struct Stopped {
    stop: Arc<AtomicBool>,
    signals: SignalsInfo<SignalOnly>,
}

impl Stopped {
    /// From now on, no signal is missed.
    pub fn watch() -> Result<Self> {
        let signals = SignalsInfo::new([SIGINT, SIGTERM])?;
        let stop = stop_on_signal()?;
        Ok(Self { stop, signals })
    }

    /// Returns at the first signal that ends the program.
    pub fn wait(mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            self.signals.wait().for_each(drop);
        }
    }
}

/// What is to be done before a signal ends the program.
static LAST_WORK: Mutex<Vec<fn()>> = Mutex::new(Vec::new());

/// Runs `work` when an interrupt or termination signal comes, and then lets it end the program; a command that finishes
/// its work at the first signal is ended by one that comes at least a second later. A child of [`run_child`] is killed
/// first.
pub fn before_ending(work: fn()) -> Result<()> {
    let mut all = LAST_WORK.lock().unwrap_or_else(PoisonError::into_inner);
    if all.is_empty() {
        watch_for_the_end()?;
    }
    all.push(work);
    Ok(())
}

/// Starts the thread that ends the program.
fn watch_for_the_end() -> Result<()> {
    // Before the thread's own: it finds what the signal asks for.
    stop_on_signal()?;
    interrupts::end_by_thread();
    let mut signals = SignalsInfo::<SignalOnly>::new([SIGINT, SIGTERM])?;
    let wait = move || {
        let ends = |signal: &i32| {
            let goes_on = child::pass_on(*signal) || FINISHES.load(Ordering::Relaxed);
            !goes_on || interrupts::is_over()
        };
        if let Some(signal) = signals.forever().find(ends) {
            child::kill();
            let all = LAST_WORK.lock().unwrap_or_else(PoisonError::into_inner);
            all.iter().for_each(|work| work());
            // It ends the program, so there is no one to tell.
            let _ = emulate_default_handler(signal);
        }
    };
    let thread = thread::Builder::new().name("strata-signals".into());
    thread
        .spawn(wait)
        .context("cannot start the thread that waits for signals")?;
    Ok(())
}

/// What signals ask of a running recording.
pub struct Signals {
    /// Set once the program is to end.
    pub stop: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
    report: Arc<AtomicBool>,
}

impl Signals {
    /// INT and TERM end it; other signals keep their default action.
    pub fn stop() -> Result<Self> {
        Ok(Self::with(stop_on_signal()?))
    }

    /// As [`Signals::stop`], for a command that writes a log.
    pub fn stop_log() -> Result<Self> {
        Ok(Self::with(stop_log_on_signal()?))
    }

    fn with(stop: Arc<AtomicBool>) -> Self {
        Self {
            stop,
            reload: Arc::default(),
            report: Arc::default(),
        }
    }

    /// HUP asks to reload the configuration, USR1 for counts.
    pub fn also_steer(&mut self) -> Result<()> {
        flag::register(SIGHUP, Arc::clone(&self.reload))?;
        flag::register(SIGUSR1, Arc::clone(&self.report))?;
        Ok(())
    }

    /// Wakes a role at each of these signals, after the flag is set.
    pub fn wake(waker: &Waker) -> Result<()> {
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            pipe::register(signal, waker.writer()?)?;
        }
        Ok(())
    }

    /// Whether the configuration is to be read again; once per signal.
    #[must_use]
    pub fn take_reload(&self) -> bool {
        self.reload.swap(false, Ordering::Relaxed)
    }

    /// Whether counts are to be printed; once per signal.
    #[must_use]
    pub fn take_report(&self) -> bool {
        self.report.swap(false, Ordering::Relaxed)
    }
}
