//! Virtual time.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::BinaryHeap;

/// Events by their time, those of one time in the order in which they were put in.
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
    /// The time of the event that was taken last, ns.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Puts an event in, not before now.
    pub fn at(&mut self, time: u64, event: E) {
        self.times.push(Reverse((time.max(self.now), self.next)));
        self.events.insert(self.next, event);
        self.next += 1;
    }

    /// Takes the next event, if it is not after `end`: its time is now.
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

    /// Takes events out that will not happen.
    pub fn retain(&mut self, mut stays: impl FnMut(&E) -> bool) {
        self.events.retain(|_, event| stays(event));
    }
}
