//! The flow cache as a switch runs it (section 5.3): a pipeline of register arrays, each of which
//! a packet can reach once, in one order. What must go backwards, a wide buffer that becomes free,
//! takes a second pass: the packet is resubmitted.
//!
//! ```text
//! keys -> counts and starts -> stack of free blocks -> owned blocks -> saturation -> buffers
//! ```
//!
//! A model to compare others with, not to be fast.

use std::collections::VecDeque;

use super::{CacheCounters, Parameters, ParametersError, set_of};
use crate::key::{Key, KeyHasher};
use crate::packet::Packet;
use crate::tuple::Tuple;
use crate::vector::{Reason, Vector, VectorSink};

/// An array of registers in a stage of its own: one access in each pass of a packet.
#[derive(Debug)]
struct Registers<V> {
    cells: Vec<V>,
    accessed_in: u64,
}

impl<V: Clone> Registers<V> {
    fn new(value: V, len: u32) -> Self {
        Self {
            cells: vec![value; len as usize],
            accessed_in: 0,
        }
    }

    /// The one access: reads and writes a register at once, as a stateful ALU does.
    fn access<R>(&mut self, pass: u64, index: u32, action: impl FnOnce(&mut V) -> R) -> R {
        assert!(
            self.accessed_in < pass,
            "one access of a register array in a pass"
        );
        self.accessed_in = pass;
        action(&mut self.cells[index as usize])
    }
}

/// Which wide buffer an entry has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Block {
    Untried,
    Denied,
    Owned(u32),
}

/// Where an entry is: its packets up to the end of the first pass, then around and around the
/// second, so that the number alone says whether the narrow buffer is full for the first time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Progress {
    start_ns: u64,
    packets: u32,
}

/// What the stages that a packet passed have found.
struct Found {
    reason: Option<Reason>,
    old_key: Option<Key>,
    new_key: Option<Key>,
    old: Progress,
    new: Progress,
}

/// The flow cache in the form that a switch can run.
#[derive(Debug)]
pub struct SwitchCache<T> {
    keys: Registers<Option<Key>>,
    progress: Registers<Progress>,
    free_count: Registers<u32>,
    free: Registers<u32>,
    blocks: Registers<Block>,
    saturated: Registers<bool>,
    /// One array for each place in a buffer, as the paper stripes them.
    narrow: Vec<Registers<T>>,
    wide: Vec<Registers<T>>,
    parameters: Parameters,
    hasher: KeyHasher,
    /// Passes of packets through the pipeline.
    pass: u64,
    /// Blocks to be freed by packets in flight back, and before which packet they arrive.
    resubmitted: VecDeque<(u64, u32)>,
    resubmit_after: u64,
    counters: CacheCounters,
}

impl<T: Tuple> SwitchCache<T> {
    /// An empty cache. A resubmitted packet comes after `resubmit_after` others.
    ///
    /// # Errors
    ///
    /// If the parameters make no cache.
    pub fn new(
        parameters: Parameters,
        seed: u64,
        resubmit_after: u16,
    ) -> Result<Self, ParametersError> {
        parameters.check(1)?;
        let Parameters {
            slots,
            narrow,
            wide,
            blocks,
        } = parameters;
        let mut free = Registers::new(0, blocks);
        // As the control program fills it: the last one is drawn first.
        free.cells = (0..blocks).rev().collect();
        Ok(Self {
            keys: Registers::new(None, slots),
            progress: Registers::new(Progress::default(), slots),
            free_count: Registers::new(blocks, 1),
            free,
            blocks: Registers::new(Block::Untried, slots),
            saturated: Registers::new(false, slots),
            narrow: (0..narrow)
                .map(|_| Registers::new(T::default(), slots))
                .collect(),
            wide: (0..wide)
                .map(|_| Registers::new(T::default(), blocks))
                .collect(),
            parameters,
            hasher: KeyHasher::new(seed),
            pass: 0,
            resubmitted: VecDeque::with_capacity(usize::from(resubmit_after) + 1),
            resubmit_after: u64::from(resubmit_after),
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
        for packet in packets {
            self.counters.packets = self.counters.packets.wrapping_add(1);
            let slot = set_of(self.hasher.hash(&packet.key), self.parameters.slots);
            self.pipeline(slot, Some(packet), out);
            self.resubmit();
        }
    }

    /// Lets go of what a slot holds: the agent's control packet. A slot that is not there is
    /// ignored.
    pub fn flush_slot(&mut self, slot: u32, out: &mut impl VectorSink<T>) {
        if slot < self.parameters.slots {
            self.pipeline(slot, None, out);
            self.resubmit();
        }
    }

    /// Lets go of everything, by a control packet for each slot.
    pub fn flush(&mut self, out: &mut impl VectorSink<T>) {
        for slot in 0..self.parameters.slots {
            self.flush_slot(slot, out);
        }
    }

    /// Packets that are in flight back reach the stack of free blocks.
    fn resubmit(&mut self) {
        while let Some(&(at, block)) = self.resubmitted.front()
            && at <= self.counters.packets
        {
            self.resubmitted.pop_front();
            self.pass = self.pass.wrapping_add(1);
            let index = self.free_count.access(self.pass, 0, |count| {
                *count = count.wrapping_add(1);
                (*count).wrapping_sub(1)
            });
            self.free.access(self.pass, index, |free| *free = block);
        }
    }

    fn vector_max(&self) -> u32 {
        u32::from(self.parameters.vector_max())
    }

    /// One pass of a packet, or of a control packet.
    fn pipeline(&mut self, slot: u32, packet: Option<&Packet>, out: &mut impl VectorSink<T>) {
        self.pass = self.pass.wrapping_add(1);
        let Some(found) = self.key_and_progress(slot, packet) else {
            return;
        };
        // Stack of free blocks, then who owns which.
        let is_dynamic = self.parameters.blocks > 0;
        let narrow = u32::from(self.parameters.narrow);
        let fills_first = is_dynamic && found.new.packets == narrow;
        let drawn = if fills_first { self.draw() } else { None };
        let (old_block, block) = self.blocks.access(self.pass, slot, |block| {
            let old = *block;
            if found.reason.is_some() {
                *block = Block::Untried;
            }
            if fills_first {
                *block = drawn.map_or(Block::Denied, Block::Owned);
            }
            (old, *block)
        });
        if fills_first {
            self.counters.widened = self
                .counters
                .widened
                .wrapping_add(u64::from(drawn.is_some()));
            self.counters.denied = self
                .counters
                .denied
                .wrapping_add(u64::from(drawn.is_none()));
        }
        let saturates = packet.map(|packet| {
            let delta_ns = packet.ts_ns.wrapping_sub(found.new.start_ns);
            T::new(packet, delta_ns)
        });
        let filled = self.filled(found.new, block);
        // A multiple of the buffer: full with this packet.
        let is_full = packet.is_some() && filled == 0;
        let saturated = self.saturated.access(self.pass, slot, |held| {
            let old = *held;
            let this = saturates.is_some_and(|(_, saturated)| saturated);
            let now = this || (old && found.reason.is_none());
            *held = now && !is_full;
            if found.reason.is_some() {
                (old, this)
            } else {
                (now, now)
            }
        });
        self.buffers(slot, &found, (old_block, block), saturates, saturated, out);
        if found.reason.is_some()
            && let Block::Owned(block) = old_block
        {
            let at = self.counters.packets.wrapping_add(self.resubmit_after);
            self.resubmitted.push_back((at, block));
        }
    }

    /// The first stages: whose the slot is, how far it is, and whether it is evicted.
    fn key_and_progress(&mut self, slot: u32, packet: Option<&Packet>) -> Option<Found> {
        let new_key = packet.map(|packet| packet.key);
        let old_key = self
            .keys
            .access(self.pass, slot, |key| std::mem::replace(key, new_key));
        if old_key.is_none() && packet.is_none() {
            return None;
        }
        let length = self.vector_max();
        let (reason, old, new) = self.progress.access(self.pass, slot, |progress| {
            let old = *progress;
            let Some(packet) = packet else {
                *progress = Progress::default();
                return (Some(Reason::Flushed), old, *progress);
            };
            let begins = old.packets.is_multiple_of(length);
            let in_time = packet.ts_ns.wrapping_sub(old.start_ns) <= T::DELTA_MAX_NS;
            let reason = match old_key {
                None => None,
                Some(key) if key != packet.key => Some(Reason::Collision),
                Some(_) if !begins && !in_time => Some(Reason::Time),
                Some(_) => None,
            };
            *progress = if reason.is_some() || old_key.is_none() {
                Progress {
                    start_ns: packet.ts_ns,
                    packets: 1,
                }
            } else if begins {
                Progress {
                    start_ns: packet.ts_ns,
                    packets: length.wrapping_add(1),
                }
            } else {
                Progress {
                    packets: old.packets.wrapping_add(1),
                    ..old
                }
            };
            (reason, old, *progress)
        });
        Some(Found {
            reason,
            old_key,
            new_key,
            old,
            new,
        })
    }

    fn draw(&mut self) -> Option<u32> {
        let index = self.free_count.access(self.pass, 0, |count| {
            *count = count.checked_sub(1)?;
            Some(*count)
        })?;
        Some(self.free.access(self.pass, index, |block| *block))
    }

    /// Tuples that an entry holds after its last packet: none if that filled its buffer.
    fn filled(&self, progress: Progress, block: Block) -> u32 {
        let in_pass = rest(progress.packets, self.vector_max());
        match block {
            Block::Denied => rest(in_pass, u32::from(self.parameters.narrow)),
            Block::Untried | Block::Owned(_) => in_pass,
        }
    }

    /// The last stages: every array of a buffer gives what leaves and takes what comes, at once.
    fn buffers(
        &mut self,
        slot: u32,
        found: &Found,
        (old_block, block): (Block, Block),
        tuple: Option<(T, bool)>,
        (old_saturated, new_saturated): (bool, bool),
        out: &mut impl VectorSink<T>,
    ) {
        let held_before = match found.reason {
            Some(_) => self.filled(found.old, old_block),
            None => 0,
        };
        let place = tuple.map(|_| self.place(found.new, block));
        let full = match place {
            Some(place) if self.filled(found.new, block) == 0 => place.wrapping_add(1),
            _ => 0,
        };
        let (mut evicted, mut filled) = (Vec::new(), Vec::new());
        let pass = self.pass;
        for (at, array) in (0..).zip(self.narrow.iter_mut().chain(&mut self.wide)) {
            let owner = if found.reason.is_some() {
                old_block
            } else {
                block
            };
            let index = match (at < u32::from(self.parameters.narrow), owner) {
                (true, _) => slot,
                (false, Block::Owned(block)) => block,
                (false, _) => continue,
            };
            array.access(pass, index, |cell| {
                if at < held_before {
                    evicted.push(*cell);
                }
                if let Some((tuple, _)) = tuple
                    && place == Some(at)
                {
                    *cell = tuple;
                }
                if at < full {
                    filled.push(*cell);
                }
            });
        }
        let vectors = [
            (
                found.reason,
                found.old_key,
                found.old,
                evicted,
                old_saturated,
            ),
            (
                Some(Reason::Full),
                found.new_key,
                found.new,
                filled,
                new_saturated,
            ),
        ];
        for (reason, key, progress, tuples, saturated) in vectors {
            let (Some(reason), Some(key), false) = (reason, key, tuples.is_empty()) else {
                continue;
            };
            self.counters.vectors[reason as usize] =
                self.counters.vectors[reason as usize].wrapping_add(1);
            self.counters.tuples = self.counters.tuples.wrapping_add(tuples.len() as u64);
            let (narrow, wide) =
                tuples.split_at(tuples.len().min(usize::from(self.parameters.narrow)));
            out.take(&Vector {
                key,
                start_ns: progress.start_ns,
                pieces: [narrow, wide],
                reason,
                saturated,
                slot,
            });
        }
    }

    /// Where in the buffers the last packet of an entry goes.
    fn place(&self, progress: Progress, block: Block) -> u32 {
        let in_pass = rest(progress.packets.wrapping_sub(1), self.vector_max());
        match block {
            Block::Denied => rest(in_pass, u32::from(self.parameters.narrow)),
            Block::Untried | Block::Owned(_) => in_pass,
        }
    }
}

/// What a number leaves of a buffer's length.
fn rest(number: u32, of: u32) -> u32 {
    number.checked_rem(of).expect("buffers hold tuples")
}
