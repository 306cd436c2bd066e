//! The producers of a stream that several append to: up to which of its own records the stream has those of each, so
//! that a record that is sent again is not appended again.

use std::collections::BTreeMap;

use crate::name::StreamName;

/// Bytes of a producer in the list of a page (`page::mark`), besides its name, and those before the first producer.
const ENTRY_LEN: usize = 26;
const ENTRIES_AT: usize = 17;

/// Producers that have ended, and may only ask once more how far they came, are forgotten after this time.
const ENDED_NS: u64 = 3_600_000_000_000;
/// Producers that come back after this time are unknown.
const SILENT_NS: u64 = 30 * 24 * 3_600_000_000_000;
/// The most producers.
pub const PRODUCERS_MAX: usize = 1024;

/// A producer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Producer {
    /// Its name, for readers.
    pub name: StreamName,
    /// The number of its next record: the stream has those before, or had, or they were given up.
    pub next: u64,
    /// When something of it last came, ns since 1970.
    pub seen_ns: u64,
    /// Whether it has said that it appends no more.
    pub has_ended: bool,
}

/// All that are known.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Producers(BTreeMap<u64, Producer>);

impl Producers {
    /// Each with its id, in the order of ids.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Producer)> {
        self.0.iter().map(|(&id, producer)| (id, producer))
    }

    /// A producer; `None`: it is not known.
    #[must_use]
    pub fn get(&self, id: u64) -> Option<&Producer> {
        self.0.get(&id)
    }

    /// Whether none is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn insert(&mut self, id: u64, producer: Producer) {
        self.0.insert(id, producer);
    }

    /// A producer connects, known or not; the number of its next record.
    pub fn meet(&mut self, id: u64, name: &StreamName, now_ns: u64) -> u64 {
        let known = self.0.entry(id).or_insert_with(|| Producer {
            name: name.clone(),
            next: 0,
            seen_ns: now_ns,
            has_ended: false,
        });
        known.name.clone_from(name);
        known.seen_ns = now_ns;
        known.has_ended = false;
        known.next
    }

    /// The stream has the record before `next` of a producer.
    pub fn took(&mut self, id: u64, next: u64, now_ns: u64) {
        if let Some(producer) = self.0.get_mut(&id) {
            producer.next = next;
            producer.seen_ns = now_ns;
        }
    }

    /// Forgets a producer.
    pub fn remove(&mut self, id: u64) {
        self.0.remove(&id);
    }

    /// A producer appends no more.
    pub fn end(&mut self, id: u64) {
        if let Some(producer) = self.0.get_mut(&id) {
            producer.has_ended = true;
        }
    }

    /// Bytes of the mark that has all of them.
    #[must_use]
    pub fn mark_len(&self) -> usize {
        let entries = self.0.values();
        let entries = entries.map(|producer| producer.name.as_str().len().wrapping_add(ENTRY_LEN));
        entries.fold(ENTRIES_AT, usize::wrapping_add)
    }

    /// Forgets those that are not needed: that have ended or were silent for long, and, of the others, those that were
    /// silent longest, until their mark has at most `mark_len_max` bytes. Those that are connected stay.
    pub fn forget(&mut self, now_ns: u64, mark_len_max: usize, is_connected: impl Fn(u64) -> bool) {
        self.0.retain(|&id, producer| {
            let silent_ns = now_ns.saturating_sub(producer.seen_ns);
            let limit_ns = if producer.has_ended {
                ENDED_NS
            } else {
                SILENT_NS
            };
            silent_ns < limit_ns || is_connected(id)
        });
        while self.0.len() > PRODUCERS_MAX || self.mark_len() > mark_len_max {
            let others = self.0.iter().filter(|&(&id, _)| !is_connected(id));
            let oldest = others.min_by_key(|(_, producer)| (!producer.has_ended, producer.seen_ns));
            let Some((&id, _)) = oldest else {
                return;
            };
            self.0.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_have_ended_are_forgotten_first_and_connected_ones_never() {
        let name: StreamName = "a".parse().unwrap();
        let mut all = Producers::default();
        for id in 1..=5 {
            assert_eq!(all.meet(id, &name, id), 0);
            all.took(id, 7, id);
        }
        all.end(4);
        let ids = |all: &Producers| all.iter().map(|(id, _)| id).collect::<Vec<_>>();
        let len = all.mark_len();
        all.forget(10, len - 1, |id| id == 1);
        assert_eq!(ids(&all), [1, 2, 3, 5]);
        all.forget(10, 0, |id| id == 1);
        assert_eq!(ids(&all), [1]);
        all.forget(u64::MAX, 0, |id| id == 1);
        assert_eq!(all.meet(1, &name, 1), 7);
        all.forget(SILENT_NS, usize::MAX, |_| false);
        assert!(!all.is_empty());
        all.end(1);
        all.forget(ENDED_NS + 1, usize::MAX, |_| false);
        assert!(all.is_empty());
        // Its number is not known any more.
        assert_eq!(all.meet(1, &name, 1), 0);
    }
}
