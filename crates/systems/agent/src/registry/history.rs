//! What has changed at a controller, or was noticed there: the latest events.

use std::collections::VecDeque;

use super::{Change, Registry};
use crate::message::Event;

/// Events that are kept: of more, the earliest go.
pub const EVENTS_MAX: usize = 10_000;

/// Events with their numbers, the latest last.
#[derive(Debug, Default)]
pub(super) struct History(VecDeque<(u64, Event)>);

impl History {
    pub(super) fn new(mut stored: Vec<(u64, Event)>) -> Self {
        stored.sort_by_key(|(number, _)| *number);
        Self(stored.into())
    }
}

impl Registry {
    /// Remembers an event.
    #[must_use]
    pub fn note(&mut self, event: Event) -> Vec<Change> {
        let events = &mut self.history.0;
        let number = events.back().map_or(1, |(last, _)| last.saturating_add(1));
        let mut changes = vec![Change::Event(number, event.clone())];
        events.push_back((number, event));
        while events.len() > EVENTS_MAX {
            changes.extend(events.pop_front().map(|(gone, _)| Change::EventGone(gone)));
        }
        changes
    }

    /// The latest events, at most this number, the latest last.
    #[must_use]
    pub fn events(&self, most: usize) -> Vec<Event> {
        let events = &self.history.0;
        let events = events.iter().skip(events.len().saturating_sub(most));
        events.map(|(_, event)| event.clone()).collect()
    }
}
