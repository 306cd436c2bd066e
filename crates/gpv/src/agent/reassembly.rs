//! Vectors of short intervals into records of longer ones.

use strata_wire::{exact, prefetch_whole};

use crate::key::{Key, KeyHasher};
use crate::tuple::Tuple;
use crate::vector::{Grouped, Vector};

/// Flows that may share a set; the least recently used one makes room.
const WAYS: usize = 4;
/// Vectors in a record at most.
const RUNS_MAX: usize = 16;

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
    /// Tuples of a record at most.
    pub tuples_max: u16,
    /// Time from the start of a record's first vector to that of its last, at most.
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

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Entry {
    key: Key,
    start_ns: u64,
    used: u32,
    tuples: u16,
    runs: u8,
    is_used: bool,
}

const _: () = assert!(size_of::<Entry>() == 64);

/// Puts vectors together. Nothing is lost: what has no room is given early.
///
/// Memory, all of it allocated by [`Reassembly::new`]: a flow 320 bytes and its tuples.
pub struct Reassembly<T> {
    options: ReassemblyOptions,
    entries: Vec<Entry>,
    runs: Vec<[Run; RUNS_MAX]>,
    tuples: Vec<T>,
    hasher: KeyHasher,
    sets: u32,
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
        let empty = Entry {
            key: Key::default(),
            start_ns: 0,
            used: 0,
            tuples: 0,
            runs: 0,
            is_used: false,
        };
        Self {
            options,
            entries: vec![empty; flows],
            runs: vec![[Run::default(); RUNS_MAX]; flows],
            tuples: vec![T::default(); flows * usize::from(options.tuples_max)],
            hasher: KeyHasher::new(seed),
            sets: exact(flows / WAYS),
            next_expired: 0,
            counters: ReassemblyCounters::default(),
        }
    }

    /// What it did.
    #[must_use]
    pub fn counters(&self) -> &ReassemblyCounters {
        &self.counters
    }

    /// Fetches what a vector of `key` will need, for whoever knows the next keys.
    #[inline]
    pub fn prefetch(&self, key: &Key) {
        let first = self.set_of(key);
        prefetch_whole(&self.entries, first);
        prefetch_whole(&self.entries, first + 1);
    }

    /// Takes a vector; records that are complete go to `out`.
    #[inline]
    pub fn take(&mut self, vector: &Vector<'_, T>, out: &mut impl FnMut(&Record<'_, T>)) {
        self.counters.vectors += 1;
        self.counters.tuples_in += vector.count() as u64;
        let slot = self.slot_of(&vector.key, out);
        let room = usize::from(self.options.tuples_max);
        let entry = &self.entries[slot];
        let is_late = vector.start_ns.saturating_sub(entry.start_ns) > self.options.interval_ns;
        let is_full = usize::from(entry.tuples) + vector.count() > room
            || usize::from(entry.runs) == RUNS_MAX;
        if entry.tuples > 0 && (is_late || is_full) {
            self.give(slot, out);
        }
        if vector.count() > room {
            self.split(slot, vector, out);
            return;
        }
        let entry = &mut self.entries[slot];
        if entry.tuples == 0 {
            entry.start_ns = vector.start_ns;
        }
        let mut at = slot * room + usize::from(entry.tuples);
        for piece in vector.pieces {
            self.tuples[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        entry.tuples = exact(at - slot * room);
        self.runs[slot][usize::from(entry.runs)] = Run {
            start_ns: vector.start_ns,
            end: u32::from(entry.tuples),
        };
        entry.runs += 1;
    }

    /// Looks at the next `count` flows, around and around, and gives those whose interval is over.
    pub fn expire(&mut self, now_ns: u64, count: usize, out: &mut impl FnMut(&Record<'_, T>)) {
        for _ in 0..count.min(self.entries.len()) {
            let slot = self.next_expired;
            self.next_expired = (slot + 1) % self.entries.len();
            let entry = &self.entries[slot];
            let is_over = now_ns.saturating_sub(entry.start_ns) > self.options.interval_ns;
            if entry.is_used && is_over {
                self.give(slot, out);
                self.entries[slot].is_used = false;
            }
        }
    }

    /// Gives everything.
    pub fn flush(&mut self, out: &mut impl FnMut(&Record<'_, T>)) {
        for slot in 0..self.entries.len() {
            self.give(slot, out);
            self.entries[slot].is_used = false;
        }
    }

    #[inline(always)]
    #[allow(
        clippy::cast_possible_truncation,
        reason = "less than the number of sets"
    )]
    fn set_of(&self, key: &Key) -> usize {
        let hash = self.hasher.hash(key);
        (((hash >> 32) * u64::from(self.sets)) >> 32) as usize * WAYS
    }

    /// The slot of a flow: its own, an unused one, or the least recently used one.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "ages wrap around")]
    fn slot_of(&mut self, key: &Key, out: &mut impl FnMut(&Record<'_, T>)) -> usize {
        let first = self.set_of(key);
        let now = self.counters.vectors as u32;
        let mut oldest = (0, first);
        for (way, entry) in self.entries[first..first + WAYS].iter_mut().enumerate() {
            if entry.is_used && entry.key == *key {
                entry.used = now;
                return first + way;
            }
            let age = match entry.is_used {
                true => 1 + u64::from(now.wrapping_sub(entry.used)),
                false => u64::MAX,
            };
            oldest = oldest.max((age, first + way));
        }
        let slot = oldest.1;
        if self.entries[slot].tuples > 0 {
            self.counters.evicted += 1;
            self.give(slot, out);
        }
        let entry = &mut self.entries[slot];
        entry.key = *key;
        entry.used = now;
        entry.is_used = true;
        slot
    }

    /// A vector that is longer than a record: pieces of it are records.
    #[cold]
    fn split(&mut self, slot: usize, vector: &Vector<'_, T>, out: &mut impl FnMut(&Record<'_, T>)) {
        let room = usize::from(self.options.tuples_max);
        for part in vector.pieces.iter().flat_map(|piece| piece.chunks(room)) {
            self.tuples[slot * room..slot * room + part.len()].copy_from_slice(part);
            let end = exact(part.len());
            let start_ns = vector.start_ns;
            self.runs[slot][0] = Run { start_ns, end };
            self.entries[slot].tuples = exact(part.len());
            self.entries[slot].runs = 1;
            self.give(slot, out);
        }
    }

    #[inline(always)]
    fn give(&mut self, slot: usize, out: &mut impl FnMut(&Record<'_, T>)) {
        let entry = &mut self.entries[slot];
        if entry.tuples == 0 {
            return;
        }
        let first = slot * usize::from(self.options.tuples_max);
        let record = Record {
            key: entry.key,
            runs: &self.runs[slot][..usize::from(entry.runs)],
            tuples: &self.tuples[first..first + usize::from(entry.tuples)],
        };
        self.counters.records += 1;
        self.counters.tuples_out += u64::from(entry.tuples);
        out(&record);
        entry.tuples = 0;
        entry.runs = 0;
    }
}
