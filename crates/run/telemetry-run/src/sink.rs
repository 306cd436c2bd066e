//! The memory of a store, as a translator's operations reach it.

use strata_dta::postcarding::CacheCounters;
use strata_dta::{Memory, Operations, Translator};
use strata_sys::words::WordsMut;

/// Memory in a file that others read. Operations wait for their lines of memory in a [`Local`].
pub(super) struct Mapped(pub(super) WordsMut);

impl Memory for Mapped {
    #[inline(always)]
    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.0.write(at, bytes);
    }

    #[inline(always)]
    fn store(&mut self, at: usize, word: u64) {
        self.0.store(at, word);
    }

    #[inline(always)]
    fn add(&mut self, at: usize, add: u64) {
        self.0.add(at, add);
    }

    #[inline(always)]
    fn prefetch(&self, at: usize) {
        self.0.words().prefetch(at);
    }
}

/// Operations on each part of the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Done {
    pub(super) key_write: u64,
    pub(super) postcarding: u64,
    pub(super) append: u64,
    pub(super) key_increment: u64,
}

impl Done {
    /// Of a translator that has asked for so much. Paths and lists count what they write
    /// anyway; the other writes are values.
    pub(super) fn of(translator: &Translator, operations: Operations) -> Self {
        let postcarding = translator.cache().map_or(0, |cache| {
            let CacheCounters {
                complete,
                collided,
                aged,
                ..
            } = cache.counters();
            (complete + collided + aged) * cache.copies() as u64
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
