//! What the fast path is measured against, on the same rules and the same slow path.

mod mask_arrays;
mod megaflow;
mod trie;
mod tuples;

use std::collections::HashMap;
use std::hash::Hash;

use foldhash::fast::FixedState;

pub use mask_arrays::MaskArrays;
pub use megaflow::{MegaflowForm, Megaflows};
use strata_rules::AnswerId;
pub use tuples::Tuples;

/// What a peer has done so far.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct PeerStats {
    /// Packets classified.
    pub packets: u64,
    /// Packets that the cache did not know.
    pub misses: u64,
    /// Hash tables asked by the fast path.
    pub fast_lookups: u64,
    /// Sum over misses of the headers (source, destination, ports, protocol) that the
    /// cached entry holds.
    pub entry_size_sum: f64,
}

/// Cached answers, bounded; the next entry that was not hit since the last time round
/// gives way (second chance), as in the uniflow cache.
#[derive(Clone, Debug)]
pub(crate) struct Bounded<K> {
    places: HashMap<K, usize, FixedState>,
    entries: Vec<Entry<K>>,
    capacity: usize,
    hand: usize,
}

#[derive(Clone, Debug)]
struct Entry<K> {
    key: K,
    answer: AnswerId,
    hit: bool,
}

impl<K: Copy + Eq + Hash> Bounded<K> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            places: HashMap::default(),
            entries: Vec::with_capacity(capacity),
            capacity,
            hand: 0,
        }
    }

    #[inline]
    pub(crate) fn get(&mut self, key: &K) -> Option<AnswerId> {
        let entry = &mut self.entries[*self.places.get(key)?];
        entry.hit = true;
        Some(entry.answer)
    }

    /// Caches an answer that is not cached yet; returns the key that gave way.
    pub(crate) fn insert(&mut self, key: K, answer: AnswerId) -> Option<K> {
        let entry = Entry {
            key,
            answer,
            hit: false,
        };
        if self.entries.len() < self.capacity {
            self.places.insert(key, self.entries.len());
            self.entries.push(entry);
            return None;
        }
        while std::mem::take(&mut self.entries[self.hand].hit) {
            self.hand = (self.hand + 1) % self.capacity;
        }
        let old = std::mem::replace(&mut self.entries[self.hand], entry);
        self.places.remove(&old.key);
        self.places.insert(key, self.hand);
        self.hand = (self.hand + 1) % self.capacity;
        Some(old.key)
    }
}
