//! The reader's half of Append: a place in a list, and what comes after it.

use super::{Append, Batch, End};

/// Slots that a reader looks ahead for a batch that did arrive, when one is missing.
const LOOK_AHEAD: u64 = 64;

/// The result of reading a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Read {
    /// Entries that were read.
    pub entries: u64,
    /// Entries that were overwritten before they were read, or never arrived.
    pub missed: u64,
}

/// A reader's place in a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cursor {
    list: u32,
    next: End,
}

impl Cursor {
    /// A cursor at the oldest entry that is still there.
    #[must_use]
    pub fn new(list: u32) -> Self {
        Self {
            list,
            next: End::default(),
        }
    }

    /// A cursor at a batch, as if it were the first one of the list.
    #[must_use]
    pub fn at_batch(list: u32, batch: u64) -> Self {
        let next = End {
            batches: batch,
            entries: 0,
        };
        Self { list, next }
    }

    /// A cursor after all present entries.
    #[must_use]
    pub fn at_end(store: &Append, memory: &[u8], list: u32) -> Self {
        Self {
            list,
            next: store.end(memory, list),
        }
    }

    /// The position of the next batch and entry.
    #[must_use]
    pub fn next(&self) -> End {
        self.next
    }

    /// Gives the entries of the next batch to `entry`; `None` if it is not there yet. Entries that
    /// were overwritten meanwhile, or whose batch was lost on its way, are counted.
    ///
    /// # Panics
    ///
    /// If the memory ends before the list.
    pub fn read(
        &mut self,
        store: &Append,
        memory: &[u8],
        mut entry: impl FnMut(&[u8]),
    ) -> Option<Read> {
        let batch = self.find(store, memory)?;
        let missed = batch.before.saturating_sub(self.next.entries);
        batch
            .entries
            .chunks_exact(store.entry_len)
            .for_each(&mut entry);
        self.next = End {
            // Numbers have 56 bits.
            batches: batch.number.wrapping_add(1),
            entries: batch.before.wrapping_add(batch.count as u64),
        };
        Some(Read {
            entries: batch.count as u64,
            missed,
        })
    }

    /// The batch to be read next.
    fn find<'m>(&self, store: &Append, memory: &'m [u8]) -> Option<Batch<'m>> {
        let at = |batch| Batch::read(store, store.slot(memory, self.list, batch));
        let wanted = self.next.batches;
        match at(wanted) {
            Some(batch) if batch.number == wanted => return Some(batch),
            // Lapped: all that is older than a ring is gone. The oldest left is near the slot
            // after the newest.
            Some(batch) if batch.number > wanted => return self.oldest(store, memory),
            _ => {}
        }
        // Not there, unless the WRITE of this one batch was lost.
        let ahead = LOOK_AHEAD.min(u64::from(store.slots).saturating_sub(1));
        let later = (1..=ahead).filter_map(|ahead| at(wanted.wrapping_add(ahead)));
        later
            .filter(|batch| batch.number > wanted)
            .min_by_key(|batch| batch.number)
    }

    /// The oldest batch that is not before this place.
    fn oldest<'m>(&self, store: &Append, memory: &'m [u8]) -> Option<Batch<'m>> {
        let slots = (0..u64::from(store.slots)).map(|slot| store.slot(memory, self.list, slot));
        slots
            .filter_map(|slot| Batch::read(store, slot))
            .filter(|batch| batch.number >= self.next.batches)
            .min_by_key(|batch| batch.number)
    }
}
