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

use strata_wire::exact;

use crate::protocol::{DATA_LEN_MAX, Refusal, packed};
use crate::sink::{Operation, Origin, Room, Sink};

/// Entries of a batch at most.
pub const BATCH_MAX: usize = 64;

const HEADER_LEN: usize = 16;
const TRAILER_LEN: usize = 8;
/// Batches of a list in all, far more than can ever be written: so numbers are added without
/// overflow, whatever memory holds.
const NUMBERS: u64 = 1 << 56;
/// Slots that a reader looks ahead for a batch that did arrive, when one is missing.
const LOOK_AHEAD: u64 = 64;

/// Where the lists lie and what they hold: the same at translator and collector.
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
        Self {
            base,
            lists,
            slots,
            batch,
            entry_len,
        }
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
        self.trailer_at() + TRAILER_LEN
    }

    #[inline]
    fn trailer_at(&self) -> usize {
        HEADER_LEN + (self.batch * self.entry_len).next_multiple_of(8)
    }

    /// Bytes of memory.
    #[must_use]
    pub fn memory_len(&self) -> u64 {
        u64::from(self.lists) * u64::from(self.slots) * self.slot_len() as u64
    }

    /// Where the slot of batch `batch` of a list lies.
    #[inline]
    fn at(&self, list: u32, batch: u64) -> u64 {
        let slot = batch % u64::from(self.slots);
        let index = u64::from(list) * u64::from(self.slots) + slot;
        self.base + index * self.slot_len() as u64
    }

    fn slot<'m>(&self, memory: &'m [u8], list: u32, batch: u64) -> &'m [u8] {
        let start = exact::<usize>(self.at(list, batch));
        &memory[start..start + self.slot_len()]
    }

    /// Where a list goes on, as its memory says: for a translator that begins, after one before it
    /// has ended.
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
                batches: last.number + 1,
                entries: last.before + last.count as u64,
            })
    }
}

/// How long a list has become, with what was overwritten.
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
        // Nobody writes that many batches: memory of something else.
        let is_possible = number < NUMBERS && count <= store.batch;
        let is_whole = word(store.trailer_at()) == word(0) && is_possible;
        is_whole.then(|| Self {
            number,
            before: header << 8 >> 8,
            count,
            entries: &slot[HEADER_LEN..HEADER_LEN + count * store.entry_len],
        })
    }
}

/// What the translator counts of all lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ListCounters {
    /// Entries taken.
    pub entries: u64,
    /// Batches written full.
    pub full: u64,
    /// Batches written before they were full, because they were old.
    pub aged: u64,
    /// Entries in batches that are not written yet.
    pub held: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Head {
    end: End,
    /// When the first entry of the batch came.
    since_ns: u64,
    /// Where its next entry goes, in all batches.
    at: usize,
    /// Entries of the batch.
    filled: u32,
    /// Where it will be written: its number modulo the slots of a list.
    slot: u32,
}

/// The translator's half: a batch of each list. Memory: a slot and 40 bytes a list, and 128 more
/// if origins are kept.
#[derive(Debug)]
pub struct Lists {
    store: Append,
    /// Lists in all, spread over the collectors: list L is list L / C of collector L mod C.
    heads: Vec<Head>,
    /// A slot for each list, as it will be written.
    batches: Vec<u8>,
    /// Bytes of such a slot, and of a list's ring of them.
    slot_len: usize,
    ring_len: u64,
    /// Entries of a full batch.
    batch: u32,
    origins: Vec<[Origin; BATCH_MAX]>,
    hand: usize,
    /// Entries taken, and those written since.
    entries: u64,
    written: u64,
    /// Batches written full, and before that.
    full: u64,
    aged: u64,
}

impl Lists {
    /// The lists of so many collectors, which go on where `end` says.
    ///
    /// # Panics
    ///
    /// If there are more than 2^32 lists in all.
    #[must_use]
    pub fn new(
        store: Append,
        collectors: usize,
        keeps_origins: bool,
        end: impl Fn(u32) -> End,
    ) -> Self {
        let lists = store.lists as usize * collectors;
        assert!(u32::try_from(lists).is_ok(), "list numbers have 32 bits");
        let slot_len = store.slot_len();
        let head = |list: u32| {
            let end = end(list);
            Head {
                end,
                since_ns: 0,
                at: list as usize * slot_len + HEADER_LEN,
                filled: 0,
                slot: exact::<u32>(end.batches % u64::from(store.slots)),
            }
        };
        Self {
            heads: (0..u32::MAX).take(lists).map(head).collect(),
            slot_len,
            ring_len: u64::from(store.slots) * slot_len as u64,
            batch: exact::<u32>(store.batch),
            batches: vec![0; lists * slot_len],
            origins: vec![[Origin::default(); BATCH_MAX]; if keeps_origins { lists } else { 0 }],
            hand: 0,
            entries: 0,
            written: 0,
            full: 0,
            aged: 0,
            store,
        }
    }

    /// What it has counted.
    #[must_use]
    pub fn counters(&self) -> ListCounters {
        ListCounters {
            entries: self.entries,
            full: self.full,
            aged: self.aged,
            held: self.entries - self.written,
        }
    }

    /// A list goes on here, as its collector's memory says, unless it has come further already. For a
    /// collector that is connected later than the lists begin, or again. Nothing is believed of a list
    /// that does not exist, or of an impossible length.
    pub fn continue_at(&mut self, list: u32, end: End) {
        let is_possible = end.batches < NUMBERS && end.entries < NUMBERS;
        let head = self.heads.get_mut(list as usize);
        if let Some(head) = head.filter(|head| is_possible && head.end.batches < end.batches) {
            head.end = end;
            head.slot = exact::<u32>(end.batches % u64::from(self.store.slots));
        }
    }

    /// Number of lists.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// Whether there is none: never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// Takes an entry; one write follows if its batch is full.
    ///
    /// # Errors
    ///
    /// [`Refusal::List`], [`Refusal::DataLen`]; nothing changes then. Shorter entries are padded
    /// with zeros.
    #[inline]
    pub fn put<S: Sink>(
        &mut self,
        list: u32,
        entry: &[u8],
        origin: Origin,
        now_ns: u64,
        sinks: &mut [S],
    ) -> Result<(), Refusal> {
        let entry_len = self.store.entry_len;
        if entry.is_empty() || entry.len() > entry_len {
            return Err(Refusal::DataLen);
        }
        let put = match entry.first_chunk::<4>() {
            Some(word) if entry_len == 4 => self.hold(list, word, 4, origin, now_ns, sinks),
            _ => self.hold(list, entry, entry_len, origin, now_ns, sinks),
        };
        self.entries += u64::from(put.is_some());
        put.ok_or(Refusal::List)
    }

    /// [`Lists::put`] of each report of a datagram, to a sink that has room for them; how many are
    /// of no list.
    ///
    /// # Errors
    ///
    /// [`Refusal::DataLen`]; all are refused then.
    #[inline(never)]
    pub(crate) fn put_all<S: Sink>(
        &mut self,
        packet: &packed::Packet<'_>,
        origin: Origin,
        now_ns: u64,
        sinks: &mut [S],
    ) -> Result<u64, Refusal> {
        let (data_len, entry_len) = (packet.data_len(), self.store.entry_len);
        if data_len > entry_len {
            return Err(Refusal::DataLen);
        }
        let mut held = 0;
        if (data_len, entry_len) == (4, 4) {
            for &[a, b, c, d, entry @ ..] in packet.body().as_chunks::<8>().0 {
                let list = u32::from_be_bytes([a, b, c, d]);
                let put = self.hold(list, &entry, 4, origin, now_ns, sinks);
                held += u64::from(put.is_some());
            }
        } else {
            for report in packet.body().chunks_exact(packet.report_len()) {
                let (list, entry) = report.split_first_chunk().expect("a report has a list");
                let list = u32::from_be_bytes(*list);
                let put = self.hold(list, entry, entry_len, origin, now_ns, sinks);
                held += u64::from(put.is_some());
            }
        }
        self.entries += held;
        Ok(u64::from(packet.count()) - held)
    }

    /// Puts an entry of up to `entry_len` bytes into its batch; `None` if there is no such list.
    /// The caller counts it.
    #[inline(always)]
    fn hold<S: Sink>(
        &mut self,
        list: u32,
        entry: &[u8],
        entry_len: usize,
        origin: Origin,
        now_ns: u64,
        sinks: &mut [S],
    ) -> Option<()> {
        let index = list as usize;
        let head = self.heads.get_mut(index)?;
        if head.filled == 0 {
            head.since_ns = now_ns;
        }
        let (place, pad) = self.batches[head.at..][..entry_len].split_at_mut(entry.len());
        place.copy_from_slice(entry);
        pad.fill(0);
        if S::KEEPS_ORIGINS {
            self.origins[index][head.filled as usize] = origin;
        }
        head.at += entry_len;
        head.filled += 1;
        if head.filled == self.batch {
            self.full += 1;
            self.write(index, sinks);
        }
        Some(())
    }

    /// Writes batches whose first entry came before `before_ns`, of the next `lists_max` lists, as
    /// long as there is room. Called often enough, it comes round.
    pub fn expire<S: Sink>(&mut self, before_ns: u64, lists_max: usize, sinks: &mut [S]) {
        for _ in 0..lists_max.min(self.heads.len()) {
            let head = &self.heads[self.hand];
            if head.filled > 0 && head.since_ns < before_ns {
                let sink = &sinks[self.hand % sinks.len()];
                if sink.room(Operation::Write) == Room::Operations(0) {
                    return;
                }
                self.aged += 1;
                self.write(self.hand, sinks);
            }
            self.hand = (self.hand + 1) % self.heads.len();
        }
    }

    #[inline]
    fn write<S: Sink>(&mut self, index: usize, sinks: &mut [S]) {
        let head = &mut self.heads[index];
        let start = index * self.slot_len;
        let used = head.at - start;
        let slot = &mut self.batches[start..][..self.slot_len];
        let trailer = self.slot_len - TRAILER_LEN;
        if used < trailer {
            slot[used..trailer].fill(0);
        }
        let number = (head.end.batches + 1).to_le_bytes();
        let header = (head.end.entries & u64::MAX >> 8) | u64::from(head.filled) << 56;
        slot[..8].copy_from_slice(&number);
        slot[8..16].copy_from_slice(&header.to_le_bytes());
        slot[trailer..].copy_from_slice(&number);
        let origins: &[Origin] = match self.origins.get(index) {
            Some(origins) => &origins[..head.filled as usize],
            None => &[],
        };
        let collectors = sinks.len();
        let (list, collector) = match collectors {
            1 => (index, 0),
            _ => (index / collectors, index % collectors),
        };
        let ring = self.store.base + list as u64 * self.ring_len;
        let place = |slot: u32| ring + u64::from(slot) * self.slot_len as u64;
        sinks[collector].write(place(head.slot), slot, origins);
        let next = head.slot + 1;
        head.slot = if next == self.store.slots { 0 } else { next };
        sinks[collector].expect(place(head.slot), self.slot_len);
        self.written += u64::from(head.filled);
        head.end.batches += 1;
        head.end.entries += u64::from(head.filled);
        head.at = start + HEADER_LEN;
        head.filled = 0;
    }
}

/// What a reader found.
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
    /// At the oldest entry that is still there.
    #[must_use]
    pub fn new(list: u32) -> Self {
        Self {
            list,
            next: End::default(),
        }
    }

    /// At a batch, as if none of those before it had ever been there.
    #[must_use]
    pub fn at_batch(list: u32, batch: u64) -> Self {
        let next = End {
            batches: batch,
            entries: 0,
        };
        Self { list, next }
    }

    /// After all that is there now.
    #[must_use]
    pub fn at_end(store: &Append, memory: &[u8], list: u32) -> Self {
        Self {
            list,
            next: store.end(memory, list),
        }
    }

    /// The place.
    #[must_use]
    pub fn next(&self) -> End {
        self.next
    }

    /// Gives the entries of the next batch to `entry`; `None` if there is none yet. Entries that
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
            batches: batch.number + 1,
            entries: batch.before + batch.count as u64,
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
        let ahead = LOOK_AHEAD.min(u64::from(store.slots) - 1);
        let later = (wanted + 1..=wanted + ahead).filter_map(at);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::Local;
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
        /// Whoever reads, however seldom, gets every entry in order or knows how many it missed.
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
