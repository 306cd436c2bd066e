//! Who changed what, and who looked at payload.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use strata_wire::start_of;

use crate::times::now;

/// Most events kept, and most bytes of each text of one.
const EVENTS_MAX: usize = 1000;
const TEXT_BYTES_MAX: usize = 4 << 10;

/// A change, or a look at payload.
#[derive(Clone, Debug, Serialize)]
pub struct AuditEvent {
    /// When, RFC 3339.
    pub at: String,
    /// Who.
    pub who: String,
    /// What.
    pub what: String,
    /// Why, as they said.
    pub why: String,
}

/// Told of every change and look at payload.
pub type TellAudit = dyn Fn(&AuditEvent) + Send + Sync;

/// The latest events, and who else is told of them.
pub(crate) struct Audit {
    latest: Mutex<VecDeque<AuditEvent>>,
    told: Arc<TellAudit>,
}

impl Audit {
    pub(crate) fn new(told: Arc<TellAudit>) -> Self {
        Self {
            latest: Mutex::default(),
            told,
        }
    }

    pub(crate) fn note(&self, who: &str, what: &str, why: &str) {
        let event = AuditEvent {
            at: now(),
            who: start_of(who, TEXT_BYTES_MAX).to_owned(),
            what: start_of(what, TEXT_BYTES_MAX).to_owned(),
            why: start_of(why, TEXT_BYTES_MAX).to_owned(),
        };
        (self.told)(&event);
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if latest.len() == EVENTS_MAX {
            latest.pop_front();
        }
        latest.push_back(event);
    }

    /// Newest first.
    pub(crate) fn latest(&self) -> Vec<AuditEvent> {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.iter().rev().cloned().collect()
    }
}
