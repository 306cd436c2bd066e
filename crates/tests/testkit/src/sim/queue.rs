//! Virtual time.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::BinaryHeap;

/// Events by time; those of the same time in insertion order.
#[derive(Debug)]
pub struct Queue<E> {
    now: u64,
    next: u64,
    times: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<u64, E>,
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Self {
            now: 0,
            next: 0,
            times: BinaryHeap::new(),
            events: BTreeMap::new(),
        }
    }
}

impl<E> Queue<E> {
    /// The time of the last event taken, ns.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Adds an event, never before now.
    pub fn at(&mut self, time: u64, event: E) {
        self.times.push(Reverse((time.max(self.now), self.next)));
        self.events.insert(self.next, event);
        self.next += 1;
    }

    /// Takes the next event, unless it is after `end`, and moves the clock to it.
    pub fn take(&mut self, end: u64) -> Option<E> {
        while let Some(&Reverse((time, number))) = self.times.peek()
            && time <= end
        {
            self.times.pop();
            if let Some(event) = self.events.remove(&number) {
                self.now = time;
                return Some(event);
            }
        }
        None
    }

    /// Drops events that will not happen.
    pub fn retain(&mut self, mut stays: impl FnMut(&E) -> bool) {
        self.events.retain(|_, event| stays(event));
    }
}
