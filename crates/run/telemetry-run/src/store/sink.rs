//! The memory of a store, as a translator's operations reach it.

use std::ops::Range;
use std::time::Instant;

use strata_dta::generations::Turning;
use strata_dta::key_increment::largest::Largest;
use strata_dta::postcarding::CacheCounters;
use strata_dta::{Memory, Operations, Translator};
use strata_sys::words::WordsMut;
use strata_wire::exact;

use crate::store::candidates;
use crate::store::fading::Fading;
use crate::store::generations::PIECE_BYTES;
use crate::store::plan::Plan;

/// Memory in a file that others read. Operations wait for their lines of memory in a [`Local`].
///
/// [`Local`]: strata_dta::Local
pub(crate) struct Mapped {
    pub(crate) words: WordsMut,
    /// The keys of the youngest generation with the largest counts.
    largest: Largest,
    /// Their entries in the memory.
    entries: Range<usize>,
    /// What the memory says of keys without an entry.
    others: u64,
}

impl Mapped {
    /// The memory of a store; and what begins its generations, if it has several.
    pub(crate) fn open(words: WordsMut, plan: &Plan, now_ns: u64) -> (Self, Option<Turning>) {
        let entries = candidates::entries(plan, 0);
        let mut mapped = Self {
            largest: Largest::new(entries.len()),
            others: 0,
            entries,
            words,
        };
        let turning = turning(plan, &mut mapped, now_ns);
        let youngest = turning.as_ref().map_or(0, |all| all.youngest().index);
        let offset = plan.generations().map_or(0, |all| all.offset(youngest));
        mapped.continue_with(plan, youngest, offset);
        (mapped, turning)
    }

    /// Begins another generation, if it is time, or clears a part of the memory for it; no operation may
    /// wait. Whether it has begun.
    pub(crate) fn turn(&mut self, turning: &mut Turning, plan: &Plan, now_ns: u64) -> bool {
        let begun = turning.step(now_ns, PIECE_BYTES, self);
        if let Some(generation) = begun {
            candidates::empty(plan, &mut self.words, generation.index);
            self.continue_with(plan, generation.index, 0);
        }
        begun.is_some()
    }

    /// Makes some of the counters of a store without generations smaller, if it is time.
    pub(crate) fn fade(&mut self, fading: &mut Fading, plan: &Plan, now: Instant) {
        let Some(fade) = fading.step(plan, &mut self.words, now) else {
            return;
        };
        // All of them by now.
        self.largest.fade(|count| fade.left_of(count));
        let words = self.words.words();
        self.largest.recount(|key| {
            let hash = plan.hasher.hash(key.bytes());
            candidates::count_at(plan, words, hash, 0)
        });
        self.say_others();
    }

    /// Goes on with the largest counts of the generation at this place, whose stores lie so far from the
    /// first one's.
    fn continue_with(&mut self, plan: &Plan, generation: u8, offset: u64) {
        let words = self.words.words();
        self.largest = candidates::largest(plan, words, generation, offset);
        self.entries = candidates::entries(plan, generation);
        self.others = candidates::others(self.largest.without_row_max());
    }

    /// Says how large the counts of keys without an entry may be.
    fn say_others(&mut self) {
        let others = candidates::others(self.largest.without_row_max());
        if others != self.others {
            self.others = others;
            let at = candidates::others_at(&self.entries);
            self.words.store(exact(at), others);
        }
    }

    /// A key gets an entry.
    fn put(&mut self, row: usize, key: &[u8]) {
        // Before the entry of another key is gone.
        self.say_others();
        let entry = self.entries.start + row;
        let written = candidates::written(self.words.words(), entry).wrapping_add(1);
        // From the first word to the last, while readers go from the last to the first.
        let at = exact::<usize>(candidates::entry_at(entry));
        self.words.write(at, &candidates::entry(written, key));
    }
}

impl Memory for Mapped {
    #[inline(always)]
    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.words.write(at, bytes);
    }

    #[inline(always)]
    fn load(&self, at: usize) -> [u8; 8] {
        self.words.words().word(at)
    }

    #[inline(always)]
    fn store(&mut self, at: usize, word: u64) {
        self.words.store(at, word);
    }

    #[inline(always)]
    fn add(&mut self, at: usize, add: u64) -> u64 {
        self.words.add(at, add)
    }

    #[inline(always)]
    fn prefetch(&self, at: usize) {
        self.words.words().prefetch(at);
    }

    #[inline(always)]
    fn floor(&self) -> u64 {
        self.largest.floor()
    }

    #[inline(always)]
    fn exceeds(&mut self, key: &[u8], place: usize, count: u64) {
        if let Some(row) = self.largest.offer(key, exact::<u64>(place), count) {
            self.put(row, key);
        }
    }
}

/// The writer's half, if the store has generations.
fn turning(plan: &Plan, memory: &mut Mapped, now_ns: u64) -> Option<Turning> {
    let generations = plan.generations()?;
    let words = memory.words.words();
    let present = generations.read(|at| u64::from_le_bytes(words.word(exact(at))));
    Some(Turning::new(
        generations,
        plan.regions(),
        plan.period_ns(),
        present,
        now_ns,
        memory,
    ))
}

/// Operations on each part of the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Done {
    pub(crate) key_write: u64,
    pub(crate) postcarding: u64,
    pub(crate) append: u64,
    pub(crate) key_increment: u64,
}

impl Done {
    /// Of a translator that has requested this number of writes. Paths and lists count what they
    /// write anyway; the other writes are values.
    pub(crate) fn of(translator: &Translator, operations: Operations) -> Self {
        let postcarding = translator.cache().map_or(0, |cache| {
            let CacheCounters {
                complete,
                collided,
                aged,
                values,
                ..
            } = cache.counters();
            (complete + collided + aged) * cache.copies() as u64 + values
        });
        let append = translator.lists().map_or(0, |lists| {
            let counters = lists.counters();
            counters.full + counters.aged
        });
        Self {
            key_write: operations.writes - postcarding - append,
            postcarding,
            append,
            key_increment: operations.additions,
        }
    }
}

#[cfg(test)]
mod tests;
