//! What the role of a collector and its API share.

use std::sync::{Mutex, MutexGuard, PoisonError};

use strata_role::{Level, Notice};

use super::events::{Event, Events};
use crate::status::CollectorStatus;

/// Where a collector publishes its status and its events.
#[derive(Debug, Default)]
pub struct CollectorBoard {
    latest: Mutex<CollectorStatus>,
    events: Mutex<Events>,
}

impl CollectorBoard {
    /// Publishes a status.
    pub fn set(&self, status: CollectorStatus) {
        *lock(&self.latest) = status;
    }

    /// The latest one.
    #[must_use]
    pub fn status(&self) -> CollectorStatus {
        lock(&self.latest).clone()
    }

    /// Keeps a notice as an event, if something happened or went wrong.
    pub fn notice(&self, notice: &Notice) {
        match notice.level {
            Level::Info => {}
            Level::Happened | Level::Warning | Level::Error => {
                lock(&self.events).alert(notice.text.clone(), "");
            }
        }
    }

    /// The latest events, oldest first.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        lock(&self.events).latest()
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
