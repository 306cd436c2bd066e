//! Append: lists of entries in the order of their arrival (paper §4, algorithms 3 and 4).
//!
//! Each list is a ring of batch slots. The translator gathers a batch and writes its slot with one
//! WRITE:
//!
//! ```text
//!  0 number u64      1 + number of the batch in its list; 0: never written
//!  8 before u56      entries of the list before this batch
//! 15 count u8        entries of this batch, 1 to 64
//! 16 count * entry   padded with zeros to a whole batch, and to a multiple of 8
//! .. number u64      again
//! ```
//!
//! All little-endian. The paper's rings have entries alone, so a reader cannot tell a new entry
//! from an old one, or whether it was lapped. (Algorithm 3 also wraps its head where it equals the
//! batch size, not the length of the buffer, and writes a batch with an entry too many.)
//!
//! A number that is the same before and after the entries says that the slot is whole, as long as
//! the bytes of a WRITE land in order or a slot is not half-written while it is read; see
//! `docs/formats/dta.md` for what may be torn.

mod cursor;
mod lists;

use strata_wire::exact;

use crate::protocol::DATA_LEN_MAX;

pub use cursor::{Cursor, Read};
pub use lists::{ListCounters, Lists};

/// Maximum entries of a batch.
pub const BATCH_MAX: usize = 64;

const HEADER_LEN: usize = 16;
const TRAILER_LEN: usize = 8;
/// Batches of a list in all, far more than can ever be written: so numbers are added without
/// overflow, whatever memory holds.
const NUMBERS: u64 = 1 << 56;

/// The position and shape of the lists in the memory: the same at translator and collector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Append {
    base: u64,
    lists: u32,
    slots: u32,
    batch: usize,
    entry_len: usize,
}

impl Append {
    /// `lists` rings of `slots` batches, of `batch` entries of `entry_len` bytes, at `base` of the
    /// memory.
    ///
    /// # Panics
    ///
    /// If there is no list, fewer than two slots, a batch is not 1 to 64 entries, or an entry not
    /// 1 to 64 bytes.
    #[must_use]
    pub fn new(base: u64, lists: u32, slots: u32, batch: usize, entry_len: usize) -> Self {
        assert!(lists > 0 && slots >= 2, "lists and slots");
        assert!((1..=BATCH_MAX).contains(&batch), "batch");
        assert!((1..=DATA_LEN_MAX).contains(&entry_len), "entry length");
        assert!(base.is_multiple_of(64), "stores begin at cache lines");
        let append = Self {
            base,
            lists,
            slots,
            batch,
            entry_len,
        };
        let slots = u64::from(lists).wrapping_mul(u64::from(slots));
        let len = slots.checked_mul(append.slot_len() as u64);
        let end = len.and_then(|len| base.checked_add(len));
        assert!(end.is_some(), "less than 2^64 bytes");
        append
    }

    /// Number of lists.
    #[must_use]
    pub fn lists(&self) -> u32 {
        self.lists
    }

    /// Bytes of a batch slot.
    #[inline]
    #[must_use]
    pub fn slot_len(&self) -> usize {
        self.trailer_at().wrapping_add(TRAILER_LEN)
    }

    #[inline]
    fn trailer_at(&self) -> usize {
        // Below BATCH_MAX entries of DATA_LEN_MAX bytes.
        let entries = self.batch.wrapping_mul(self.entry_len);
        HEADER_LEN.wrapping_add(entries.next_multiple_of(8))
    }

    /// Bytes of memory.
    #[must_use]
    pub fn memory_len(&self) -> u64 {
        let slots = u64::from(self.lists).wrapping_mul(u64::from(self.slots));
        slots.wrapping_mul(self.slot_len() as u64)
    }

    /// Where the slot of batch `batch` of a list lies.
    #[inline]
    fn at(&self, list: u32, batch: u64) -> u64 {
        let slots = u64::from(self.slots);
        // There are two slots at least; what wraps lies outside the memory.
        let slot = batch.checked_rem(slots).expect("slots");
        let index = u64::from(list).wrapping_mul(slots).wrapping_add(slot);
        let offset = index.wrapping_mul(self.slot_len() as u64);
        self.base.wrapping_add(offset)
    }

    fn slot<'m>(&self, memory: &'m [u8], list: u32, batch: u64) -> &'m [u8] {
        let start = exact::<usize>(self.at(list, batch));
        &memory[start..][..self.slot_len()]
    }

    /// The end of a list, according to its memory: a translator that begins after another has ended continues the list
    /// there.
    ///
    /// # Panics
    ///
    /// If the memory ends before the lists.
    #[must_use]
    pub fn end(&self, memory: &[u8], list: u32) -> End {
        let slots = (0..u64::from(self.slots)).map(|slot| self.slot(memory, list, slot));
        let batches = slots.filter_map(|slot| Batch::read(self, slot));
        batches
            .max_by_key(|batch| batch.number)
            .map_or(End::default(), |last| End {
                batches: last.number.wrapping_add(1),
                entries: last.before.wrapping_add(last.count as u64),
            })
    }
}

/// The length of a list, including what was overwritten.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct End {
    /// Batches.
    pub batches: u64,
    /// Entries.
    pub entries: u64,
}

/// A slot that is whole.
struct Batch<'m> {
    number: u64,
    before: u64,
    count: usize,
    entries: &'m [u8],
}

impl<'m> Batch<'m> {
    /// `None` if the slot was never written, or is half-written.
    fn read(store: &Append, slot: &'m [u8]) -> Option<Self> {
        let word = |at: usize| {
            let bytes = slot[at..].first_chunk().expect("a slot has its fields");
            u64::from_le_bytes(*bytes)
        };
        let number = word(0).checked_sub(1)?;
        let header = word(8);
        let count = usize::try_from(header >> 56).expect("a count has 8 bits");
        // No writer reaches that many batches: memory of something else.
        let is_possible = number < NUMBERS && count <= store.batch;
        let is_whole = word(store.trailer_at()) == word(0) && is_possible;
        is_whole.then(|| Self {
            number,
            before: header << 8 >> 8,
            count,
            entries: &slot[HEADER_LEN..][..count.wrapping_mul(store.entry_len)],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Refusal;
    use crate::sink::{Local, Origin};
    use proptest::prelude::*;

    struct World {
        store: Append,
        lists: Lists,
        memory: Vec<u8>,
    }

    impl World {
        fn new(lists: u32, slots: u32, batch: usize, entry_len: usize) -> Self {
            let store = Append::new(64, lists, slots, batch, entry_len);
            Self {
                lists: Lists::new(store, 1, false, |_| End::default()),
                memory: vec![0; 64 + usize::try_from(store.memory_len()).unwrap()],
                store,
            }
        }

        fn put(&mut self, list: u32, entry: &[u8]) -> Result<(), Refusal> {
            let mut sinks = [Local::new(&mut self.memory)];
            self.lists.put(list, entry, Origin(0), 5, &mut sinks)
        }

        fn expire(&mut self) {
            let lists = self.lists.len();
            let mut sinks = [Local::new(&mut self.memory)];
            self.lists.expire(6, lists, &mut sinks);
        }

        fn read(&self, cursor: &mut Cursor) -> (Vec<u32>, u64) {
            let (mut entries, mut missed) = (Vec::new(), 0);
            while let Some(read) = cursor.read(&self.store, &self.memory, |entry| {
                entries.push(u32::from_be_bytes(entry[..4].try_into().unwrap()));
            }) {
                missed += read.missed;
            }
            (entries, missed)
        }
    }

    #[test]
    fn entries_come_in_order_and_batches_wait_to_be_full_or_old() {
        let mut world = World::new(3, 8, 4, 18);
        for n in 0..10_u32 {
            let mut entry = vec![7; 18];
            entry[..4].copy_from_slice(&n.to_be_bytes());
            world.put(2, &entry).unwrap();
        }
        let mut cursor = Cursor::new(2);
        assert_eq!(world.read(&mut cursor), ((0..8).collect(), 0));
        assert_eq!(world.read(&mut cursor), (vec![], 0));
        world.expire();
        assert_eq!(world.read(&mut cursor), (vec![8, 9], 0));
        assert_eq!(world.read(&mut Cursor::new(1)), (vec![], 0));
        let counters = world.lists.counters();
        assert_eq!((counters.full, counters.aged, counters.held), (2, 1, 0));
        assert_eq!(world.put(3, &[1]), Err(Refusal::List));
        assert_eq!(world.put(2, &[1; 19]), Err(Refusal::DataLen));
        assert_eq!(world.put(2, &[]), Err(Refusal::DataLen));
    }

    #[test]
    fn a_translator_that_begins_again_goes_on_where_memory_ends() {
        let mut world = World::new(1, 4, 2, 4);
        for n in 0..11_u32 {
            world.put(0, &n.to_be_bytes()).unwrap();
        }
        // The entry of the batch that was not full is lost with it.
        let (store, memory) = (world.store, world.memory.clone());
        world.lists = Lists::new(store, 1, false, |list| store.end(&memory, list));
        for n in 20..22_u32 {
            world.put(0, &n.to_be_bytes()).unwrap();
        }
        let (entries, missed) = world.read(&mut Cursor::new(0));
        assert_eq!((entries, missed), (vec![4, 5, 6, 7, 8, 9, 20, 21], 4));
        let mut tail = Cursor::at_end(&store, &memory, 0);
        assert_eq!(world.read(&mut tail), (vec![20, 21], 0));
    }

    #[test]
    fn a_list_may_be_told_later_where_its_memory_ends() {
        let mut world = World::new(1, 4, 2, 4);
        for n in 0..10_u32 {
            world.put(0, &n.to_be_bytes()).unwrap();
        }
        let store = world.store;
        world.lists = Lists::new(store, 1, false, |_| End::default());
        world.lists.continue_at(0, store.end(&world.memory, 0));
        // It has come further than this, and this list does not exist.
        world.lists.continue_at(0, End::default());
        world.lists.continue_at(
            7,
            End {
                batches: 9,
                entries: 9,
            },
        );
        // Nor is one as long as this.
        for (batches, entries) in [(u64::MAX, 1), (1, u64::MAX), (NUMBERS, NUMBERS)] {
            world.lists.continue_at(0, End { batches, entries });
        }
        for n in 20..22_u32 {
            world.put(0, &n.to_be_bytes()).unwrap();
        }
        let (entries, missed) = world.read(&mut Cursor::new(0));
        assert_eq!((entries, missed), (vec![4, 5, 6, 7, 8, 9, 20, 21], 4));
    }

    #[test]
    fn a_batch_that_never_arrived_or_is_half_written_is_passed_over_and_counted() {
        let mut world = World::new(1, 8, 2, 4);
        for n in 0..10_u32 {
            world.put(0, &n.to_be_bytes()).unwrap();
        }
        let slot = world.store.slot_len();
        world.memory[64 + slot..64 + 2 * slot].fill(0);
        // The end of batch 3 is still that of an older one.
        world.memory[64 + 4 * slot - 8] ^= 1;
        let (entries, missed) = world.read(&mut Cursor::new(0));
        assert_eq!((entries, missed), (vec![0, 1, 4, 5, 8, 9], 4));
    }

    #[test]
    fn memory_of_something_else_has_no_batches_or_some_and_never_ends_a_reader() {
        let mut world = World::new(1, 4, 2, 4);
        for byte in [0xff_u8, 0xfe, 0x01, 0x00] {
            world.memory.fill(byte);
            let mut cursor = Cursor::new(0);
            for _ in 0..10 {
                world.read(&mut cursor);
            }
            let (store, memory) = (world.store, world.memory.clone());
            world.lists = Lists::new(store, 1, false, |list| store.end(&memory, list));
            for n in 0..20_u32 {
                world.put(0, &n.to_be_bytes()).unwrap();
            }
        }
        // The largest number there is, in a slot that is otherwise whole.
        let slot = world.store.slot_len();
        world.memory.fill(0);
        world.memory[64..72].fill(0xff);
        world.memory[64 + 15] = 1;
        world.memory[64 + slot - 8..64 + slot].fill(0xff);
        let mut cursor = Cursor::new(0);
        assert_eq!(world.read(&mut cursor), (vec![], 0));
        assert_eq!(world.store.end(&world.memory, 0), End::default());
    }

    proptest! {
        /// A reader, however rare its reads, gets every entry in order or knows how many it missed.
        #[test]
        fn every_entry_is_read_or_missed(
            batch in 1_usize..9, slots in 2_u32..10,
            steps in prop::collection::vec((0_u32..40, any::<bool>(), any::<bool>()), 1..40),
        ) {
            let mut world = World::new(1, slots, batch, 4);
            let mut cursor = Cursor::new(0);
            let (mut next, mut seen) = (0_u32, 0_u64);
            for (puts, expires, reads) in steps {
                for _ in 0..puts {
                    world.put(0, &next.to_be_bytes()).unwrap();
                    next += 1;
                }
                if expires {
                    world.expire();
                }
                if reads {
                    let (entries, missed) = world.read(&mut cursor);
                    prop_assert!(entries.windows(2).all(|pair| pair[0] < pair[1]));
                    if let Some(&last) = entries.last() {
                        seen += entries.len() as u64 + missed;
                        prop_assert_eq!(u64::from(last) + 1, seen);
                    }
                    let held = world.lists.counters().held;
                    prop_assert_eq!(seen + held, u64::from(next));
                }
            }
        }
    }
}
