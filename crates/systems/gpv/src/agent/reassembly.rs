//! Vectors of short intervals into records of longer ones.

use strata_wire::{exact, prefetch, prefetch_whole};

use crate::key::{Key, KeyHasher};
use crate::tuple::Tuple;
use crate::vector::{Grouped, Vector};

/// Flows that may share a set; the least recently used one makes room.
const WAYS: usize = 4;
/// Maximum number of vectors in a record.
const RUNS_MAX: usize = 16;
/// Vectors whose flows are fetched before the first of them is looked at.
const BATCH: usize = 32;

/// Tuples of a record whose times count from the same start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Run {
    /// What their times count from, ns since 1970.
    pub start_ns: u64,
    /// Index of the first tuple after them.
    pub end: u32,
}

/// Packets of one flow in their order over an interval, from one vector or many.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a, T> {
    /// Whose packets.
    pub key: Key,
    /// Where the tuples' times count from.
    pub runs: &'a [Run],
    /// The tuples.
    pub tuples: &'a [T],
}

impl<T> Grouped<T> for Record<'_, T> {
    #[inline(always)]
    fn key(&self) -> &Key {
        &self.key
    }

    #[inline(always)]
    fn count(&self) -> usize {
        self.tuples.len()
    }

    #[inline(always)]
    fn for_each_run(&self, mut run: impl FnMut(u64, &[T])) {
        let mut from = 0;
        for part in self.runs {
            let end = part.end as usize;
            run(part.start_ns, &self.tuples[from..end]);
            from = end;
        }
    }
}

/// How large records and their table are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReassemblyOptions {
    /// Flows that are put together at once, rounded up to a multiple of 4.
    pub flows: u32,
    /// Maximum number of tuples of a record.
    pub tuples_max: u16,
    /// Maximum time from the start of a record's first vector to that of its last.
    pub interval_ns: u64,
}

impl Default for ReassemblyOptions {
    /// 65,536 flows, 64 tuples, 5 seconds: 16 MB of the paper's tuples, 24 MB of the rest.
    fn default() -> Self {
        Self {
            flows: 65_536,
            tuples_max: 64,
            interval_ns: 5_000_000_000,
        }
    }
}

/// What a reassembly did. Tuples taken are those given and those held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReassemblyCounters {
    /// Vectors taken.
    pub vectors: u64,
    /// Tuples taken.
    pub tuples_in: u64,
    /// Records given.
    pub records: u64,
    /// Tuples given.
    pub tuples_out: u64,
    /// Records given early, since their place was needed.
    pub evicted: u64,
}

/// What decides about the flows of a set, apart from the rest of them so that it stays in the
/// cache: which of the entries may be a vector's, and how far they are.
#[derive(Clone, Copy, Default)]
struct Set {
    /// When each was used, in vectors.
    used: [u32; WAYS],
    /// Of the hash of each key, [`UNUSED`] without one.
    tags: [u16; WAYS],
    tuples: [u16; WAYS],
    runs: [u8; WAYS],
}

const UNUSED: u16 = 0;
const _: () = assert!(size_of::<Set>() == 36);

#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
struct Entry {
    key: Key,
    start_ns: u64,
}

const _: () = assert!(size_of::<Entry>() == 64);

/// Where a key belongs.
#[derive(Clone, Copy, Default)]
struct Home {
    set: u32,
    tag: u16,
}

/// Puts vectors together. Nothing is lost: what has no room is given early.
///
/// Memory, all of it allocated by [`Reassembly::new`]: a flow 329 bytes and its tuples.
pub struct Reassembly<T> {
    options: ReassemblyOptions,
    sets: Vec<Set>,
    entries: Vec<Entry>,
    runs: Vec<[Run; RUNS_MAX]>,
    tuples: Vec<T>,
    hasher: KeyHasher,
    next_expired: usize,
    counters: ReassemblyCounters,
}

impl<T: Tuple> Reassembly<T> {
    /// An empty one.
    ///
    /// # Panics
    ///
    /// If there is no room for a flow or a tuple.
    #[must_use]
    pub fn new(options: ReassemblyOptions, seed: u64) -> Self {
        assert!(options.flows > 0 && options.tuples_max > 0, "{options:?}");
        let flows = (options.flows as usize).next_multiple_of(WAYS);
        Self {
            options,
            sets: vec![Set::default(); flows / WAYS],
            entries: vec![Entry::default(); flows],
            runs: vec![[Run::default(); RUNS_MAX]; flows],
            tuples: vec![T::default(); flows.saturating_mul(usize::from(options.tuples_max))],
            hasher: KeyHasher::new(seed),
            next_expired: 0,
            counters: ReassemblyCounters::default(),
        }
    }

    /// What it did.
    #[must_use]
    pub fn counters(&self) -> &ReassemblyCounters {
        &self.counters
    }

    /// Takes a vector; records that are complete go to `out`.
    #[inline]
    pub fn take(&mut self, vector: &Vector<'_, T>, out: &mut impl FnMut(&Record<'_, T>)) {
        self.take_at(self.home(&vector.key), vector, out);
    }

    /// Takes vectors one after the other; faster than each by itself, since their flows are fetched
    /// ahead.
    pub fn take_all(&mut self, vectors: &[Vector<'_, T>], out: &mut impl FnMut(&Record<'_, T>)) {
        for vectors in vectors.chunks(BATCH) {
            let mut homes = [Home::default(); BATCH];
            for (home, vector) in homes.iter_mut().zip(vectors) {
                *home = self.home(&vector.key);
                // It may be in two lines.
                prefetch(&self.sets, home.set as usize);
                prefetch(&self.sets, (home.set as usize).wrapping_add(1));
            }
            for home in &homes[..vectors.len()] {
                self.fetch(*home);
            }
            for (home, vector) in homes.iter().zip(vectors) {
                self.take_at(*home, vector, out);
            }
        }
    }

    /// Fetches what a vector of a flow will need, once its set is there.
    #[inline(always)]
    fn fetch(&self, home: Home) {
        let set = &self.sets[home.set as usize];
        let known = set.tags.iter().position(|tag| *tag == home.tag);
        let way = known.unwrap_or_else(|| set.oldest(self.now()));
        let slot = (home.set as usize).wrapping_mul(WAYS).wrapping_add(way);
        let (runs, tuples) = (usize::from(set.runs[way]), usize::from(set.tuples[way]));
        let at = slot
            .wrapping_mul(usize::from(self.options.tuples_max))
            .wrapping_add(tuples);
        prefetch_whole(&self.entries, slot);
        prefetch(
            self.runs.as_flattened(),
            slot.wrapping_mul(RUNS_MAX).wrapping_add(runs),
        );
        prefetch(&self.tuples, at);
    }

    #[inline(always)]
    fn take_at(
        &mut self,
        home: Home,
        vector: &Vector<'_, T>,
        out: &mut impl FnMut(&Record<'_, T>),
    ) {
        self.counters.vectors = self.counters.vectors.wrapping_add(1);
        let count = vector.count();
        self.counters.tuples_in = self.counters.tuples_in.wrapping_add(count as u64);
        let (set, way) = self.place_of(home, &vector.key, out);
        let slot = set.wrapping_mul(WAYS).wrapping_add(way);
        let room = usize::from(self.options.tuples_max);
        let (held, runs) = (self.sets[set].tuples[way], self.sets[set].runs[way]);
        let start_ns = self.entries[slot].start_ns;
        let is_late = vector.start_ns.saturating_sub(start_ns) > self.options.interval_ns;
        let is_full = usize::from(held).wrapping_add(count) > room || usize::from(runs) == RUNS_MAX;
        if held > 0 && (is_late || is_full) {
            self.give(slot, out);
        }
        if count > room {
            self.split(slot, vector, out);
            return;
        }
        let set = &mut self.sets[set];
        let (held, runs) = (&mut set.tuples[way], &mut set.runs[way]);
        if *held == 0 {
            self.entries[slot].start_ns = vector.start_ns;
        }
        let mut at = slot.wrapping_mul(room).wrapping_add(usize::from(*held));
        for piece in vector.pieces {
            self.tuples[at..at.wrapping_add(piece.len())].copy_from_slice(piece);
            at = at.wrapping_add(piece.len());
        }
        *held = exact(at.wrapping_sub(slot.wrapping_mul(room)));
        self.runs[slot][usize::from(*runs)] = Run {
            start_ns: vector.start_ns,
            end: u32::from(*held),
        };
        *runs = runs.wrapping_add(1);
    }

    /// Looks at the next `count` flows, around and around, and gives those whose interval is over.
    pub fn expire(&mut self, now_ns: u64, count: usize, out: &mut impl FnMut(&Record<'_, T>)) {
        for _ in 0..count.min(self.entries.len()) {
            let slot = self.next_expired;
            let next = slot.wrapping_add(1);
            self.next_expired = if next < self.entries.len() { next } else { 0 };
            let start_ns = self.entries[slot].start_ns;
            let is_over = now_ns.saturating_sub(start_ns) > self.options.interval_ns;
            if is_over && self.sets[slot / WAYS].tags[slot % WAYS] != UNUSED {
                self.give(slot, out);
                self.forget(slot);
            }
        }
    }

    /// Gives everything.
    pub fn flush(&mut self, out: &mut impl FnMut(&Record<'_, T>)) {
        for slot in 0..self.entries.len() {
            self.give(slot, out);
            self.forget(slot);
        }
    }

    fn forget(&mut self, slot: usize) {
        self.sets[slot / WAYS].tags[slot % WAYS] = UNUSED;
    }

    #[inline(always)]
    #[allow(
        clippy::cast_possible_truncation,
        reason = "less than the number of sets, and the low bits"
    )]
    fn home(&self, key: &Key) -> Home {
        let hash = self.hasher.hash(key);
        Home {
            set: ((hash >> 32).wrapping_mul(self.sets.len() as u64) >> 32) as u32,
            tag: (hash as u16).max(UNUSED + 1),
        }
    }

    /// When it is, in vectors; wraps around.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "ages wrap around")]
    fn now(&self) -> u32 {
        self.counters.vectors as u32
    }

    /// Set and way of a flow: its own, an unused one, or the least recently used one.
    #[inline(always)]
    fn place_of(
        &mut self,
        home: Home,
        key: &Key,
        out: &mut impl FnMut(&Record<'_, T>),
    ) -> (usize, usize) {
        let (now, number) = (self.now(), home.set as usize);
        let set = &mut self.sets[number];
        let entries = &self.entries[number.wrapping_mul(WAYS)..][..WAYS];
        for (way, (tag, entry)) in set.tags.iter().zip(entries).enumerate() {
            if *tag == home.tag && entry.key == *key {
                set.used[way] = now;
                return (number, way);
            }
        }
        let way = set.oldest(now);
        set.used[way] = now;
        set.tags[way] = home.tag;
        let slot = number.wrapping_mul(WAYS).wrapping_add(way);
        if set.tuples[way] > 0 {
            self.counters.evicted = self.counters.evicted.wrapping_add(1);
            self.give(slot, out);
        }
        self.entries[slot].key = *key;
        (number, way)
    }

    /// A vector that is longer than a record: pieces of it are records.
    #[cold]
    fn split(&mut self, slot: usize, vector: &Vector<'_, T>, out: &mut impl FnMut(&Record<'_, T>)) {
        let room = usize::from(self.options.tuples_max);
        for part in vector.pieces.iter().flat_map(|piece| piece.chunks(room)) {
            self.tuples[slot.wrapping_mul(room)..slot.wrapping_mul(room).wrapping_add(part.len())]
                .copy_from_slice(part);
            let end = exact(part.len());
            let start_ns = vector.start_ns;
            self.runs[slot][0] = Run { start_ns, end };
            let set = &mut self.sets[slot / WAYS];
            set.tuples[slot % WAYS] = exact(part.len());
            set.runs[slot % WAYS] = 1;
            self.give(slot, out);
        }
    }

    #[inline(always)]
    fn give(&mut self, slot: usize, out: &mut impl FnMut(&Record<'_, T>)) {
        let (set, way) = (&mut self.sets[slot / WAYS], slot % WAYS);
        let (tuples, runs) = (set.tuples[way], set.runs[way]);
        if tuples == 0 {
            return;
        }
        (set.tuples[way], set.runs[way]) = (0, 0);
        let first = slot.wrapping_mul(usize::from(self.options.tuples_max));
        let record = Record {
            key: self.entries[slot].key,
            runs: &self.runs[slot][..usize::from(runs)],
            tuples: &self.tuples[first..first.wrapping_add(usize::from(tuples))],
        };
        self.counters.records = self.counters.records.wrapping_add(1);
        self.counters.tuples_out = self.counters.tuples_out.wrapping_add(u64::from(tuples));
        out(&record);
    }
}

impl Set {
    /// An unused entry, or the least recently used one.
    #[inline(always)]
    fn oldest(&self, now: u32) -> usize {
        let mut oldest = (0, 0);
        for (way, (tag, used)) in self.tags.iter().zip(self.used).enumerate() {
            let age = match *tag {
                UNUSED => u64::MAX,
                _ => 1 + u64::from(now.wrapping_sub(used)),
            };
            oldest = oldest.max((age, way));
        }
        oldest.1
    }
}
