//! The flow cache for software.

use strata_wire::{prefetch, prefetch_whole};

use super::{CacheCounters, Parameters, ParametersError, set_of};
use crate::key::{Key, KeyHasher};
use crate::packet::Packet;
use crate::tuple::Tuple;
use crate::vector::{Reason, Vector, VectorSink};

/// Packets whose entries are fetched before the first of them is looked at.
const BATCH: usize = 32;

/// No wide buffer was tried for.
const UNTRIED: u32 = u32::MAX;
/// No block was free, or there are no blocks: the entry stays narrow.
const DENIED: u32 = u32::MAX - 1;

/// What a slot holds; one cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Entry {
    key: Key,
    start_ns: u64,
    /// The wide buffer, [`UNTRIED`] or [`DENIED`].
    block: u32,
    /// When it was used, in packets; for LRU.
    used: u32,
    /// Tuples in the buffers.
    filled: u16,
    /// Packets of this pass; 0 before its first.
    pass: u16,
    is_tracked: bool,
    saturated: bool,
}

const _: () = assert!(size_of::<Entry>() == 64);

/// The flow cache: evict on collision with one way, least recently used with more (the paper's
/// model of future hardware has 8).
///
/// Memory, all of it allocated by [`Cache::new`]: 64 bytes a slot, 4 a block, and the tuples.
#[derive(Clone)]
pub struct Cache<T, const WAYS: usize = 1> {
    entries: Vec<Entry>,
    narrow: Vec<T>,
    wide: Vec<T>,
    /// Blocks that are free; the last one is drawn first.
    free: Vec<u32>,
    sets: u32,
    narrow_len: u16,
    wide_len: u16,
    hasher: KeyHasher,
    counters: CacheCounters,
}

impl<T: Tuple, const WAYS: usize> Cache<T, WAYS> {
    /// An empty cache.
    ///
    /// # Errors
    ///
    /// If the parameters make no cache.
    pub fn new(parameters: Parameters, seed: u64) -> Result<Self, ParametersError> {
        parameters.check(WAYS)?;
        let empty = Entry {
            key: Key::default(),
            start_ns: 0,
            block: UNTRIED,
            used: 0,
            filled: 0,
            pass: 0,
            is_tracked: false,
            saturated: false,
        };
        let slots = parameters.slots as usize;
        let (narrow, wide) = (usize::from(parameters.narrow), usize::from(parameters.wide));
        Ok(Self {
            entries: vec![empty; slots],
            narrow: vec![T::default(); slots.wrapping_mul(narrow)],
            wide: vec![T::default(); (parameters.blocks as usize).wrapping_mul(wide)],
            free: (0..parameters.blocks).rev().collect(),
            sets: strata_wire::exact(slots.div_euclid(WAYS)),
            narrow_len: parameters.narrow,
            wide_len: parameters.wide,
            hasher: KeyHasher::new(seed),
            counters: CacheCounters::default(),
        })
    }

    /// What it did.
    #[must_use]
    pub fn counters(&self) -> &CacheCounters {
        &self.counters
    }

    /// Takes packets in the order in which they arrived; what leaves the cache goes to `out`.
    pub fn push(&mut self, packets: &[Packet], out: &mut impl VectorSink<T>) {
        for batch in packets.chunks(BATCH) {
            let mut sets = [0; BATCH];
            for (set, packet) in sets.iter_mut().zip(batch) {
                *set = set_of(self.hasher.hash(&packet.key), self.sets);
                let first = (*set as usize).wrapping_mul(WAYS);
                for way in 0..WAYS {
                    prefetch_whole(&self.entries, first.wrapping_add(way));
                }
                if WAYS == 1 {
                    prefetch(
                        &self.narrow,
                        first.wrapping_mul(usize::from(self.narrow_len)),
                    );
                }
            }
            for (&set, packet) in sets.iter().zip(batch) {
                let slot = self.slot_of(set, packet);
                self.append(slot, packet, out);
            }
            self.counters.packets = self.counters.packets.wrapping_add(batch.len() as u64);
        }
    }

    /// Lets go of what a slot holds, as if another flow had come: the agent's control packet
    /// (section 6.1). A slot that is not there is ignored.
    pub fn flush_slot(&mut self, slot: u32, out: &mut impl VectorSink<T>) {
        let slot = slot as usize;
        if self.entries.get(slot).is_some_and(|entry| entry.is_tracked) {
            self.evict(slot, Reason::Flushed, out);
            self.entries[slot].is_tracked = false;
        }
    }

    /// Lets go of everything.
    pub fn flush(&mut self, out: &mut impl VectorSink<T>) {
        for slot in 0..self.entries.len() {
            self.flush_slot(strata_wire::exact(slot), out);
        }
    }

    /// The slot for a packet: its flow's, an unused one, or the least recently used.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "ages wrap around")]
    fn slot_of(&self, set: u32, packet: &Packet) -> usize {
        let first = (set as usize).wrapping_mul(WAYS);
        if WAYS == 1 {
            return first;
        }
        let now = self.counters.packets as u32;
        let mut oldest = (0, first);
        for (way, entry) in self.entries[first..first.wrapping_add(WAYS)]
            .iter()
            .enumerate()
        {
            if !entry.is_tracked {
                oldest = (u64::MAX, first.wrapping_add(way));
            } else if entry.key == packet.key {
                return first.wrapping_add(way);
            } else {
                let age = 1 + u64::from(now.wrapping_sub(entry.used));
                oldest = oldest.max((age, first.wrapping_add(way)));
            }
        }
        oldest.1
    }

    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "ages wrap around")]
    fn append(&mut self, slot: usize, packet: &Packet, out: &mut impl VectorSink<T>) {
        let entry = &mut self.entries[slot];
        let is_same = entry.is_tracked & (entry.key == packet.key);
        // Before the start wraps around to far after it.
        let delta_ns = packet.ts_ns.wrapping_sub(entry.start_ns);
        let in_time = (delta_ns <= T::DELTA_MAX_NS) | (entry.pass == 0);
        if !(is_same & in_time) {
            let reason = if is_same {
                Reason::Time
            } else {
                Reason::Collision
            };
            self.replace(slot, packet, reason, out);
        }
        let entry = &mut self.entries[slot];
        if entry.pass == 0 {
            entry.start_ns = packet.ts_ns;
        }
        let (tuple, saturated) = T::new(packet, packet.ts_ns.wrapping_sub(entry.start_ns));
        entry.saturated |= saturated;
        if WAYS > 1 {
            entry.used = self.counters.packets as u32;
        }
        let (narrow_len, filled) = (usize::from(self.narrow_len), usize::from(entry.filled));
        if filled < narrow_len {
            self.narrow[slot.wrapping_mul(narrow_len).wrapping_add(filled)] = tuple;
        } else {
            let block = (entry.block as usize).wrapping_mul(usize::from(self.wide_len));
            self.wide[block.wrapping_add(filled).wrapping_sub(narrow_len)] = tuple;
        }
        entry.filled = entry.filled.wrapping_add(1);
        entry.pass = entry.pass.wrapping_add(1);
        if entry.filled == self.narrow_len
            || entry.pass == self.narrow_len.wrapping_add(self.wide_len)
        {
            self.stop(slot, out);
        }
    }

    /// After the narrow buffer or the pass was filled.
    fn stop(&mut self, slot: usize, out: &mut impl VectorSink<T>) {
        let entry = &mut self.entries[slot];
        if entry.block == UNTRIED && self.wide_len > 0 {
            entry.block = self.free.pop().unwrap_or(DENIED);
            match entry.block {
                DENIED => self.counters.denied = self.counters.denied.wrapping_add(1),
                _ => self.counters.widened = self.counters.widened.wrapping_add(1),
            }
        }
        let at_end = entry.pass == self.narrow_len.wrapping_add(self.wide_len);
        if at_end || entry.block == DENIED {
            self.emit(slot, Reason::Full, out);
            let entry = &mut self.entries[slot];
            entry.filled = 0;
            entry.saturated = false;
            if at_end {
                entry.pass = 0;
            }
        }
    }

    /// Makes the slot the packet's, from its beginning.
    #[inline(never)]
    fn replace(
        &mut self,
        slot: usize,
        packet: &Packet,
        reason: Reason,
        out: &mut impl VectorSink<T>,
    ) {
        self.evict(slot, reason, out);
        let entry = &mut self.entries[slot];
        entry.key = packet.key;
        entry.is_tracked = true;
    }

    /// Lets go of the slot's tuples and of its wide buffer.
    fn evict(&mut self, slot: usize, reason: Reason, out: &mut impl VectorSink<T>) {
        if self.entries[slot].filled > 0 {
            self.emit(slot, reason, out);
        }
        let entry = &mut self.entries[slot];
        if entry.block < DENIED {
            self.free.push(entry.block);
        }
        entry.block = UNTRIED;
        entry.filled = 0;
        entry.pass = 0;
        entry.saturated = false;
    }

    #[inline(always)]
    fn emit(&mut self, slot: usize, reason: Reason, out: &mut impl VectorSink<T>) {
        let entry = &self.entries[slot];
        let (filled, narrow_len) = (usize::from(entry.filled), usize::from(self.narrow_len));
        let first = slot.wrapping_mul(narrow_len);
        let narrow = &self.narrow[first..first.wrapping_add(filled.min(narrow_len))];
        let wide: &[T] = if filled > narrow_len {
            let block = (entry.block as usize).wrapping_mul(usize::from(self.wide_len));
            &self.wide[block..block.wrapping_add(filled).wrapping_sub(narrow_len)]
        } else {
            &[]
        };
        self.counters.vectors[reason as usize] =
            self.counters.vectors[reason as usize].wrapping_add(1);
        self.counters.tuples = self.counters.tuples.wrapping_add(u64::from(entry.filled));
        out.take(&Vector {
            key: entry.key,
            start_ns: entry.start_ns,
            pieces: [narrow, wide],
            reason,
            saturated: entry.saturated,
            slot: strata_wire::exact(slot),
        });
    }
}
