//! Work that takes a while: off the server's thread, a bounded number at a time, ended when its
//! client is gone or after a time.

pub mod body;
pub mod child;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::answers::refused::Refused;

/// Searches, exports and questions at a time. Each has a thread and its memory.
const AT_A_TIME: usize = 4;
/// Lookups of a packet or a flow, and requests to recordings, at a time.
const SHORT_AT_A_TIME: usize = 12;
/// How long a request waits for its turn.
const TURN: Duration = Duration::from_secs(3);
/// How long a search may take.
pub const LONG: Duration = Duration::from_secs(60);
/// How long a lookup may take.
pub(crate) const SHORT: Duration = Duration::from_secs(20);

/// Whether work is still wanted.
#[derive(Clone, Debug)]
pub struct Stop {
    abandoned: Arc<AtomicBool>,
    until: Instant,
    after: Duration,
}

impl Stop {
    /// Breaks once no client waits, or the time is over.
    pub(crate) fn go_on(&self) -> ControlFlow<()> {
        match self.is_left() || self.is_late() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    /// Whether no client waits any more.
    #[must_use]
    pub fn is_left(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    pub(crate) fn is_late(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Why it ended early, if it did.
    pub fn why(&self) -> Option<String> {
        let after = self.after.as_secs();
        self.is_late()
            .then(|| format!("stopped after {after} s: narrow the time or the filter"))
    }
}

/// The client that waits for work: it ends when this is dropped.
#[derive(Debug)]
pub struct Waiting(Arc<AtomicBool>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A stop that is not requested yet, and the client that waits.
///
/// # Panics
///
/// If the clock cannot tell the time in `after`.
pub fn until(after: Duration) -> (Stop, Waiting) {
    let abandoned = Arc::new(AtomicBool::new(false));
    let stop = Stop {
        abandoned: Arc::clone(&abandoned),
        // Some seconds: the end of all times is further away.
        until: Instant::now().checked_add(after).expect("a time"),
        after,
    };
    (stop, Waiting(abandoned))
}

/// The turns.
#[derive(Debug)]
pub struct Work {
    long: Arc<Semaphore>,
    short: Arc<Semaphore>,
}

impl Default for Work {
    fn default() -> Self {
        Self {
            long: Arc::new(Semaphore::new(AT_A_TIME)),
            short: Arc::new(Semaphore::new(SHORT_AT_A_TIME)),
        }
    }
}

impl Work {
    /// A turn for work that reads much.
    ///
    /// # Errors
    ///
    /// If its turn does not come.
    pub async fn turn(&self) -> Result<OwnedSemaphorePermit, Refused> {
        of(&self.long).await
    }

    /// Does work that reads much, for a browser that waits.
    ///
    /// # Errors
    ///
    /// If its turn does not come, and those of the work.
    pub async fn long<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Stop) -> Result<T, Refused> + Send + 'static,
    ) -> Result<T, Refused> {
        done(of(&self.long).await?, LONG, work).await
    }

    /// Does work that reads little.
    ///
    /// # Errors
    ///
    /// If its turn does not come, and those of the work.
    pub async fn short<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Stop) -> Result<T, Refused> + Send + 'static,
    ) -> Result<T, Refused> {
        done(of(&self.short).await?, SHORT, work).await
    }
}

async fn of(turns: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Refused> {
    let turn = timeout(TURN, Arc::clone(turns).acquire_owned()).await;
    let busy = || Refused::busy("too many requests at a time: try again in a moment");
    turn.map_err(|_| busy())?.map_err(|_| busy())
}

async fn done<T: Send + 'static>(
    turn: OwnedSemaphorePermit,
    after: Duration,
    work: impl FnOnce(&Stop) -> Result<T, Refused> + Send + 'static,
) -> Result<T, Refused> {
    let (stop, waiting) = until(after);
    let thread = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        work(&stop)
    });
    let done = thread.await;
    drop(waiting);
    done.unwrap_or_else(|error| {
        let error = format!("the request failed within the server: {error}");
        Err(Refused::internal(error))
    })
}
