//! A running recording, for its caller.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use strata_control::{ControlError, Status};
use strata_wire::Ledger;

use crate::observer::Observer;
use crate::outcome::Outcome;
use crate::sandbox;
use crate::setup::Setup;

/// A running recording. It ends, and is closed properly, when this is dropped.
pub struct Handle {
    setup: Arc<Setup>,
    observer: Arc<Observer>,
    started: Instant,
    /// Closed when the thread ends.
    ended: Receiver<()>,
    thread: Option<JoinHandle<Result<Outcome>>>,
}

/// The counters so far.
#[derive(Clone, Debug)]
pub struct Counts {
    /// Time since its start.
    pub elapsed: Duration,
    /// Where packets ended.
    pub ledger: Ledger,
    /// Interfaces: name, packets received and dropped by the kernel.
    pub rings: Vec<(String, u64, u64)>,
}

impl Handle {
    /// Runs the rest of a recording in a thread of its own.
    pub(crate) fn run(
        setup: Arc<Setup>,
        observer: Arc<Observer>,
        work: impl FnOnce() -> Result<Outcome> + Send + 'static,
    ) -> Result<Self> {
        let (ending, ended): (Sender<()>, _) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("strata-node".into())
            .spawn(move || {
                let _ending = ending;
                work()
            });
        Ok(Self {
            setup,
            observer,
            started: Instant::now(),
            ended,
            thread: Some(thread.context("cannot start a thread")?),
        })
    }

    /// The status, as its API returns it.
    #[must_use]
    pub fn status(&self) -> Status {
        self.setup.controller.status()
    }

    /// The counters so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let (ledger, rings) = self.observer.counted();
        Counts {
            elapsed: self.started.elapsed(),
            ledger,
            rings,
        }
    }

    /// Ends it soon: everything captured by then is recorded properly.
    pub fn stop(&self) {
        self.setup.stop.store(true, Ordering::Relaxed);
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

    /// Waits until it has ended, or this long; returns whether it has ended.
    #[must_use]
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        self.ended.recv_timeout(timeout) == Err(RecvTimeoutError::Disconnected)
    }

    /// Waits until it has ended and everything is stored.
    ///
    /// # Errors
    ///
    /// If it could not start after all, or a thread has failed. Other failures are in the outcome.
    pub fn wait(mut self) -> Result<Outcome> {
        self.join()
    }

    fn join(&mut self) -> Result<Outcome> {
        let thread = self
            .thread
            .take()
            .context("a recording is waited for once")?;
        let ended = thread.join();
        ended.map_err(|_| anyhow!("the thread of the recording failed; its counters are lost"))?
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.stop();
            // Nobody is interested in the outcome any more.
            let _ = self.join();
        }
    }
}
