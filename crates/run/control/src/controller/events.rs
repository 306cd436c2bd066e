//! The recent events of a recording: bounded by number and by bytes.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use strata_wire::start_of;
use utoipa::ToSchema;

use crate::saved::now;

/// The most events kept, and their bytes.
const EVENTS_MAX: usize = 1000;
const BYTES_MAX: usize = 1 << 20;
/// Maximum bytes of an event, and of its reason: more than the longest expression of a policy.
const TEXT_BYTES_MAX: usize = 5 << 10;

/// An event: who did what, and why.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// When, in RFC 3339.
    pub at: String,
    /// Who: `uid 0`, `token`, `timer`, `configuration`, or `strata` itself.
    pub who: String,
    /// What.
    pub what: String,
    /// Why, if given.
    pub why: String,
    /// Whether it happened by itself, so that an operator should look at it.
    #[serde(default)]
    pub is_alert: bool,
}

impl Event {
    /// Strata itself, as the one who did something.
    pub(super) const STRATA: &str = "strata";

    fn bytes(&self) -> usize {
        size_of::<Self>() + self.at.len() + self.who.len() + self.what.len() + self.why.len()
    }
}

/// The latest events, oldest first.
#[derive(Debug, Default)]
struct Latest {
    events: VecDeque<Event>,
    bytes: usize,
}

impl Latest {
    /// Adds an event; the oldest are dropped when they no longer fit.
    fn push(&mut self, event: Event) {
        self.bytes += event.bytes();
        self.events.push_back(event);
        while self.events.len() > EVENTS_MAX || self.bytes > BYTES_MAX {
            let Some(oldest) = self.events.pop_front() else {
                return;
            };
            self.bytes -= oldest.bytes();
        }
    }
}

/// The events of a recording.
#[derive(Debug, Default)]
pub(super) struct Events {
    latest: Latest,
    /// Events not yet taken for the journal.
    events: Latest,
}

impl Events {
    /// A user or a timer asked for this.
    pub(super) fn note(&mut self, who: &str, what: String, why: &str) {
        self.push(who, what, why, false);
    }

    /// It happened by itself.
    pub(super) fn alert(&mut self, what: String, why: &str) {
        self.push(Event::STRATA, what, why, true);
    }

    fn push(&mut self, who: &str, what: String, why: &str, is_alert: bool) {
        let event = Event {
            at: now().to_string(),
            who: who.to_owned(),
            what: bounded(what),
            why: bounded(why.to_owned()),
            is_alert,
        };
        self.events.push(event.clone());
        self.latest.push(event);
    }

    pub(super) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events).events.into()
    }

    pub(super) fn latest(&self) -> Vec<Event> {
        self.latest.events.iter().cloned().collect()
    }
}

/// The start of a text, within the bound.
fn bounded(mut text: String) -> String {
    if text.len() > TEXT_BYTES_MAX {
        text.truncate(start_of(&text, TEXT_BYTES_MAX).len());
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_bounded_by_number_and_by_bytes() {
        let mut events = Events::default();
        for number in 0..3000 {
            events.alert(format!("event {number}"), "");
        }
        let latest = events.latest();
        assert_eq!(latest.len(), EVENTS_MAX);
        assert_eq!(latest[999].what, "event 2999");
        assert_eq!(events.take_events().len(), EVENTS_MAX);
        for _ in 0..1000 {
            events.alert("ü".repeat(1 << 20), &"x".repeat(1 << 20));
        }
        for kept in [events.latest(), events.take_events()] {
            let bytes: usize = kept.iter().map(Event::bytes).sum();
            assert!(
                bytes <= BYTES_MAX && kept.len() > 50,
                "{} {bytes}",
                kept.len()
            );
        }
        assert!(events.take_events().is_empty());
    }
}
