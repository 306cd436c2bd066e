//! The translator's half of Append: batches that fill, and are written.

use strata_wire::exact;

use super::{Append, BATCH_MAX, End, HEADER_LEN, NUMBERS, TRAILER_LEN};
use crate::event::node::NODE_EVENT_LEN;
use crate::protocol::{Refusal, packed};
use crate::sink::{Operation, Origin, Room, Sink};
use crate::tally;

/// The translator's counters of all lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ListCounters {
    /// Entries taken.
    pub entries: u64,
    /// Batches written full.
    pub full: u64,
    /// Batches written before they were full, because they had waited for too long.
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

impl Head {
    /// Puts an entry, padded with zeros to `entry_len`, at its place; how many its batch has now.
    #[inline(always)]
    fn hold(&mut self, batches: &mut [u8], entry: &[u8], entry_len: usize, now_ns: u64) -> u32 {
        if self.filled == 0 {
            self.since_ns = now_ns;
        }
        let (place, pad) = batches[self.at..][..entry_len].split_at_mut(entry.len());
        place.copy_from_slice(entry);
        if !pad.is_empty() {
            pad.fill(0);
        }
        // Both stay within a batch, which is written when it is full.
        self.at = self.at.wrapping_add(entry_len);
        self.filled = self.filled.wrapping_add(1);
        self.filled
    }
}

/// Where the next batch of a list goes.
fn slot_of(end: End, store: &Append) -> u32 {
    let slot = end.batches.checked_rem(u64::from(store.slots));
    exact::<u32>(slot.expect("two slots at least"))
}

/// Its list there, and its collector: lists are spread in turn.
#[inline(always)]
fn place_of(list: usize, collectors: usize) -> (usize, usize) {
    if collectors <= 1 {
        return (list, 0);
    }
    let place = list
        .checked_div(collectors)
        .zip(list.checked_rem(collectors));
    place.expect("more than one collector")
}

/// The translator's half: a batch of each list. Memory per list: a slot and 40 bytes, and 128 bytes more if origins are
/// kept.
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
    /// The lists of a number of collectors, which continue at the ends that `end` gives.
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
        let lists = (store.lists as usize).checked_mul(collectors);
        let lists = lists.filter(|&lists| u32::try_from(lists).is_ok());
        let lists = lists.expect("list numbers have 32 bits");
        let slot_len = store.slot_len();
        let head = |list: u32| {
            let end = end(list);
            Head {
                end,
                since_ns: 0,
                at: (list as usize)
                    .wrapping_mul(slot_len)
                    .wrapping_add(HEADER_LEN),
                filled: 0,
                slot: slot_of(end, &store),
            }
        };
        Self {
            heads: (0..u32::MAX).take(lists).map(head).collect(),
            slot_len,
            // A slot has some 2 KiB at most.
            ring_len: u64::from(store.slots).wrapping_mul(slot_len as u64),
            batch: exact::<u32>(store.batch),
            batches: vec![
                0;
                lists
                    .checked_mul(slot_len)
                    .expect("a slot a list in memory")
            ],
            origins: vec![[Origin::default(); BATCH_MAX]; if keeps_origins { lists } else { 0 }],
            hand: 0,
            entries: 0,
            written: 0,
            full: 0,
            aged: 0,
            store,
        }
    }

    /// Its counters.
    #[must_use]
    pub fn counters(&self) -> ListCounters {
        ListCounters {
            entries: self.entries,
            full: self.full,
            aged: self.aged,
            held: self.entries.wrapping_sub(self.written),
        }
    }

    /// Continues a list at this end, which is read from its collector's memory, unless the list is longer already. For
    /// a collector that connects after the lists have begun, or reconnects. Ends of lists that do not exist, and
    /// impossible ends, are ignored.
    pub fn continue_at(&mut self, list: u32, end: End) {
        let is_possible = end.batches < NUMBERS && end.entries < NUMBERS;
        let head = self.heads.get_mut(list as usize);
        if let Some(head) = head.filter(|head| is_possible && head.end.batches < end.batches) {
            head.end = end;
            head.slot = slot_of(end, &self.store);
        }
    }

    /// Derives what follows from the entries of batches, after a fault between two changes; a batch
    /// that is full and was not written is dropped, its entries are counted as written.
    pub(crate) fn after_fault(&mut self) {
        let entry_len = self.store.entry_len;
        let mut held = 0;
        for (index, head) in self.heads.iter_mut().enumerate() {
            if head.filled >= self.batch {
                head.filled = 0;
            }
            let filled = exact::<usize>(head.filled).wrapping_mul(entry_len);
            let start = index.wrapping_mul(self.slot_len);
            head.at = start.wrapping_add(HEADER_LEN).wrapping_add(filled);
            tally::add(&mut held, u64::from(head.filled));
        }
        self.written = self.entries.saturating_sub(held);
    }

    /// Number of lists.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// Whether there are no lists: always false.
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
        tally::add(&mut self.entries, u64::from(put.is_some()));
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
        // Entries of these lengths are copied without a call for each.
        let held = match (data_len, entry_len) {
            (4, 4) => self.put_known::<4, S>(packet, origin, now_ns, sinks),
            (NODE_EVENT_LEN, NODE_EVENT_LEN) => {
                self.put_known::<NODE_EVENT_LEN, S>(packet, origin, now_ns, sinks)
            }
            _ => self.put_any(packet, origin, now_ns, sinks),
        };
        tally::add(&mut self.entries, held);
        // Some of the datagram's.
        Ok(u64::from(packet.count()).wrapping_sub(held))
    }

    /// Reports of entries that fill those of the lists, of a length that is known when this is
    /// compiled; how many are of a list.
    #[inline(always)]
    fn put_known<const LEN: usize, S: Sink>(
        &mut self,
        packet: &packed::Packet<'_>,
        origin: Origin,
        now_ns: u64,
        sinks: &mut [S],
    ) -> u64 {
        let mut held = 0;
        let mut reports = packet.body().chunks_exact(LEN.wrapping_add(4));
        let entries = &mut std::iter::from_fn(|| {
            let (list, entry) = reports.next()?.split_first_chunk()?;
            Some((u32::from_be_bytes(*list), entry.first_chunk::<LEN>()?))
        });
        while let Some(full) = self.fill::<LEN, S>(entries, &mut held, origin, now_ns) {
            self.write_full(full, sinks);
        }
        held
    }

    /// Puts entries into their batches until one of these is full: which.
    #[inline(always)]
    fn fill<'e, const LEN: usize, S: Sink>(
        &mut self,
        entries: &mut impl Iterator<Item = (u32, &'e [u8; LEN])>,
        held: &mut u64,
        origin: Origin,
        now_ns: u64,
    ) -> Option<usize> {
        // None of them moves meanwhile, so all stay in registers.
        let (heads, batches, batch) = (&mut self.heads[..], &mut self.batches[..], self.batch);
        for (list, entry) in entries {
            let index = list as usize;
            let Some(head) = heads.get_mut(index) else {
                continue;
            };
            tally::one(held);
            if S::KEEPS_ORIGINS {
                self.origins[index][head.filled as usize] = origin;
            }
            if head.hold(batches, entry, LEN, now_ns) == batch {
                return Some(index);
            }
        }
        None
    }

    /// Reports of any entries that are not too long; how many are of a list.
    fn put_any<S: Sink>(
        &mut self,
        packet: &packed::Packet<'_>,
        origin: Origin,
        now_ns: u64,
        sinks: &mut [S],
    ) -> u64 {
        let entry_len = self.store.entry_len;
        let mut held = 0;
        for report in packet.body().chunks_exact(packet.report_len()) {
            let (list, entry) = report.split_first_chunk().expect("a report has a list");
            let list = u32::from_be_bytes(*list);
            let put = self.hold(list, entry, entry_len, origin, now_ns, sinks);
            tally::add(&mut held, u64::from(put.is_some()));
        }
        held
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
        if S::KEEPS_ORIGINS {
            self.origins[index][head.filled as usize] = origin;
        }
        let filled = head.hold(&mut self.batches, entry, entry_len, now_ns);
        if filled == self.batch {
            self.write_full(index, sinks);
        }
        Some(())
    }

    #[inline]
    fn write_full<S: Sink>(&mut self, index: usize, sinks: &mut [S]) {
        tally::one(&mut self.full);
        self.write(index, sinks);
    }

    /// Writes the batches whose first entry arrived before `before_ns`, of the next `lists_max` lists, as long as there
    /// is room. Repeated calls go through all lists in turn.
    pub fn expire<S: Sink>(&mut self, before_ns: u64, lists_max: usize, sinks: &mut [S]) {
        for _ in 0..lists_max.min(self.heads.len()) {
            let head = &self.heads[self.hand];
            if head.filled > 0 && head.since_ns < before_ns {
                let sink = &sinks[place_of(self.hand, sinks.len()).1];
                if sink.room(Operation::Write) == Room::Operations(0) {
                    return;
                }
                tally::one(&mut self.aged);
                self.write(self.hand, sinks);
            }
            let next = self.hand.wrapping_add(1);
            self.hand = if next < self.heads.len() { next } else { 0 };
        }
    }

    #[inline]
    fn write<S: Sink>(&mut self, index: usize, sinks: &mut [S]) {
        let head = &mut self.heads[index];
        // All of it lies in the slot of this list, and numbers have 56 bits.
        let start = index.wrapping_mul(self.slot_len);
        let used = head.at.wrapping_sub(start);
        let slot = &mut self.batches[start..][..self.slot_len];
        let trailer = self.slot_len.wrapping_sub(TRAILER_LEN);
        if used < trailer {
            slot[used..trailer].fill(0);
        }
        let number = head.end.batches.wrapping_add(1).to_le_bytes();
        let header = (head.end.entries & u64::MAX >> 8) | u64::from(head.filled) << 56;
        slot[..8].copy_from_slice(&number);
        slot[8..16].copy_from_slice(&header.to_le_bytes());
        slot[trailer..].copy_from_slice(&number);
        let origins: &[Origin] = match self.origins.get(index) {
            Some(origins) => &origins[..head.filled as usize],
            None => &[],
        };
        let (list, collector) = place_of(index, sinks.len());
        let ring = (list as u64).wrapping_mul(self.ring_len);
        let ring = self.store.base.wrapping_add(ring);
        let place = |slot: u32| {
            let offset = u64::from(slot).wrapping_mul(self.slot_len as u64);
            ring.wrapping_add(offset)
        };
        sinks[collector].write(place(head.slot), slot, origins);
        let next = head.slot.wrapping_add(1);
        head.slot = if next == self.store.slots { 0 } else { next };
        sinks[collector].expect(place(head.slot), self.slot_len);
        tally::add(&mut self.written, u64::from(head.filled));
        tally::one(&mut head.end.batches);
        tally::add(&mut head.end.entries, u64::from(head.filled));
        head.at = start.wrapping_add(HEADER_LEN);
        head.filled = 0;
    }
}
