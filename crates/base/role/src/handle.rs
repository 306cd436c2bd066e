//! A running role, for its caller.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::error::RoleError;
use crate::notice::Tell;

/// A description of a role: plain data, with nothing opened and nothing read.
pub trait Spec: Sized {
    /// What its caller can ask and change while it runs.
    type Running;
    /// What it leaves behind, complete or not.
    type Outcome: Send + 'static;
    /// Why it could not start, or failed.
    type Error: From<RoleError> + Send + 'static;
    /// The name of its thread, for those who look at a process's threads: at most 15 bytes.
    const THREAD: &'static str;

    /// Starts it: see [`start`].
    ///
    /// # Errors
    ///
    /// What prevents the start.
    fn start(self, stop: Arc<AtomicBool>, tell: Tell) -> Result<Handle<Self>, Self::Error>;
}

/// Starts a role. It ends by itself with its input, or soon after `stop` becomes true, for
/// example by a signal handler. `tell` receives notices, from any thread.
///
/// With a sandbox, the calling thread and all threads that it starts from then on lose their
/// privileges and access to most files, permanently.
///
/// # Errors
///
/// What prevents the start: then nothing is left behind.
pub fn start<S: Spec>(spec: S, stop: Arc<AtomicBool>, tell: Tell) -> Result<Handle<S>, S::Error> {
    spec.start(stop, tell)
}

/// A running role. It ends, and is closed properly, when this is dropped.
pub struct Handle<S: Spec> {
    running: S::Running,
    stop: Arc<AtomicBool>,
    /// Closed when the thread ends.
    ended: Receiver<()>,
    thread: Option<JoinHandle<Result<S::Outcome, S::Error>>>,
}

impl<S: Spec> Handle<S> {
    /// Runs what is left of a role, until `stop`, in a thread of its own: the last step of [`Spec::start`].
    ///
    /// # Errors
    ///
    /// If there can be no more threads.
    pub fn run(
        running: S::Running,
        stop: Arc<AtomicBool>,
        work: impl FnOnce() -> Result<S::Outcome, S::Error> + Send + 'static,
    ) -> Result<Self, S::Error> {
        const { assert!(S::THREAD.len() <= 15, "Linux would cut it") };
        let (ending, ended): (Sender<()>, _) = mpsc::channel();
        let thread = thread::Builder::new().name(S::THREAD.into());
        let thread = thread.spawn(move || {
            let _ending = ending;
            work()
        });
        Ok(Self {
            running,
            stop,
            ended,
            thread: Some(thread.map_err(RoleError::thread("does the work"))?),
        })
    }

    /// What can be queried and changed while it runs.
    pub fn running(&self) -> &S::Running {
        &self.running
    }

    /// Ends it soon: everything captured or received by then is recorded properly.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
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
    pub fn wait(mut self) -> Result<S::Outcome, S::Error> {
        match self.thread.take() {
            Some(thread) => join(thread),
            None => unreachable!("only this and the drop take the thread"),
        }
    }
}

fn join<T, E: From<RoleError>>(thread: JoinHandle<Result<T, E>>) -> Result<T, E> {
    let problem = "the thread of the role failed; its counters are lost";
    thread
        .join()
        .map_err(|_| RoleError::Panicked(problem).into())
        .flatten()
}

impl<S: Spec> Drop for Handle<S> {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.stop.store(true, Ordering::Relaxed);
            // The receiver of the outcome is gone.
            let _ = join(thread);
        }
    }
}
