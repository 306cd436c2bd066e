//! Who changed what, who looked at payload, and who could not log in.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use strata_log_views::answers::times::now;
use strata_wire::start_of;
use utoipa::ToSchema;

/// Maximum number of events kept, and maximum bytes of each text of one.
const EVENTS_MAX: usize = 1000;
/// Maximum number of failed logins kept, beside the others: strangers push out nothing that was done.
const FAILED_MAX: usize = 200;
const TEXT_BYTES_MAX: usize = 4 << 10;

/// A change, a look at payload, or a failed login.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "at": "2026-01-31T13:05:00.120000000Z", "who": "local",
    "what": "mode log-all for 600 s on recorder 0", "why": "incident 7",
}))]
pub struct AuditEvent {
    /// When, RFC 3339.
    pub at: String,
    /// The user.
    pub who: String,
    /// The change.
    pub what: String,
    /// Why, in their words.
    pub why: String,
}

/// Told of every change, look at payload and failed login.
pub type TellAudit = dyn Fn(&AuditEvent) + Send + Sync;

/// The latest events, and who else receives them.
pub(crate) struct Audit {
    latest: Mutex<VecDeque<AuditEvent>>,
    failed: Mutex<VecDeque<AuditEvent>>,
    told: Arc<TellAudit>,
}

impl Audit {
    pub(crate) fn new(told: Arc<TellAudit>) -> Self {
        Self {
            latest: Mutex::default(),
            failed: Mutex::default(),
            told,
        }
    }

    pub(crate) fn note(&self, who: &str, what: &str, why: &str) {
        self.keep((&self.latest, EVENTS_MAX), (who, what, why));
    }

    /// Notes a failed login, of which there may be any number.
    pub(crate) fn note_failed(&self, who: &str, what: &str, why: &str) {
        self.keep((&self.failed, FAILED_MAX), (who, what, why));
    }

    fn keep(
        &self,
        (events, most): (&Mutex<VecDeque<AuditEvent>>, usize),
        (who, what, why): (&str, &str, &str),
    ) {
        let event = AuditEvent {
            at: now(),
            who: start_of(who, TEXT_BYTES_MAX).to_owned(),
            what: start_of(what, TEXT_BYTES_MAX).to_owned(),
            why: start_of(why, TEXT_BYTES_MAX).to_owned(),
        };
        (self.told)(&event);
        let mut events = events.lock().unwrap_or_else(PoisonError::into_inner);
        if events.len() == most {
            events.pop_front();
        }
        events.push_back(event);
    }

    /// Newest first.
    pub(crate) fn latest(&self) -> Vec<AuditEvent> {
        let of = |events: &Mutex<VecDeque<AuditEvent>>| {
            let events = events.lock().unwrap_or_else(PoisonError::into_inner);
            events.iter().rev().cloned().collect::<Vec<_>>()
        };
        let mut all = of(&self.latest);
        all.extend(of(&self.failed));
        // Times as text have one length; those of the same time stay as they were noted.
        all.sort_by(|a, b| b.at.cmp(&a.at));
        all
    }
}
