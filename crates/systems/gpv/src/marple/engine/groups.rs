//! The groups of a `groupby`: an index with open addressing; keys, which are read when a group is
//! looked for, apart from states, which change with each packet.

use std::hash::{BuildHasher, RandomState};

use strata_wire::{mix64, prefetch};

use super::super::program::GroupSpec;
use super::Registers;
use super::flows::UNNUMBERED;

/// No group in the index.
const NONE: u64 = u64::MAX;
/// No group.
const NO_GROUP: u32 = u32::MAX;
/// Places of an empty index, as a power of two.
const PLACES_LOG2: u32 = 4;
/// Words of a cache line.
const LINE: usize = 8;
/// Words that a hash takes two at a time.
const FACTORS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9];

/// The state of a `groupby`.
#[derive(Debug)]
pub(super) struct Groups {
    spec: GroupSpec,
    /// Senders cannot aim at a place.
    seed: u64,
    /// High half of the hash, then the group; a power of two of places, by the hash's highest bits:
    /// so an index that grows is copied in order, and no key is read.
    index: Vec<u64>,
    /// What is left of a hash when it is shifted right by this is its place.
    shift: u32,
    /// Of each group the key.
    keys: Vec<u64>,
    /// Of each group the state.
    states: Vec<u64>,
    len: u32,
    max: u32,
    /// Of each numbered flow the group in which it was last.
    of_flow: Vec<u32>,
    /// Whose state is in the registers.
    held: u32,
    /// Number of the vector's flow.
    flow: u32,
    /// The hash of the vector's key, if that is known before its first packet.
    hash: Option<u64>,
}

impl Groups {
    pub(super) fn new(spec: GroupSpec, max: u32) -> Self {
        Self {
            spec,
            seed: RandomState::new().hash_one(0),
            index: vec![NONE; 1 << PLACES_LOG2],
            shift: u64::BITS - PLACES_LOG2,
            keys: Vec::new(),
            states: Vec::new(),
            len: 0,
            max,
            of_flow: Vec::new(),
            held: NO_GROUP,
            flow: UNNUMBERED,
            hash: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    /// Keys and states, in the order in which groups came.
    pub(super) fn records(&self) -> impl Iterator<Item = impl Iterator<Item = &u64>> {
        let (words, state) = (self.spec.key.len(), self.spec.state.len());
        (0..self.len()).map(move |group| {
            let key = &self.keys[group.wrapping_mul(words)..][..words];
            key.iter()
                .chain(&self.states[group.wrapping_mul(state)..][..state])
        })
    }

    /// Flows have other numbers from now on.
    pub(super) fn forget_flows(&mut self) {
        self.of_flow.clear();
    }

    /// Stores the state that is in the registers.
    #[inline(always)]
    pub(super) fn put_back(&mut self, registers: &Registers) {
        if self.held != NO_GROUP {
            let state = &self.spec.state;
            let states =
                &mut self.states[(self.held as usize).wrapping_mul(state.len())..][..state.len()];
            for (word, &register) in states.iter_mut().zip(state) {
                *word = registers[usize::from(register)];
            }
            self.held = NO_GROUP;
        }
    }

    /// Says whose packets come next, and what the hash of their key is.
    #[inline(always)]
    pub(super) fn expect(&mut self, flow: u32, hash: Option<u64>) {
        (self.flow, self.hash) = (flow, hash);
    }

    /// Loads the state of the group whose key is in the registers; false if there is no room.
    #[inline(always)]
    pub(super) fn load(&mut self, registers: &mut Registers) -> bool {
        if self.held != NO_GROUP {
            if self.spec.is_fixed || self.is_key(self.held, registers) {
                return true;
            }
            self.put_back(registers);
        }
        let known = self.group_of(self.flow);
        let group = if known != NO_GROUP && (self.spec.is_fixed || self.is_key(known, registers)) {
            known
        } else {
            let found = self.find(registers);
            if found == NO_GROUP {
                return false;
            }
            self.remember(found);
            found
        };
        let state = &self.spec.state;
        let words = &self.states[(group as usize).wrapping_mul(state.len())..][..state.len()];
        for (&register, word) in state.iter().zip(words) {
            registers[usize::from(register)] = *word;
        }
        self.held = group;
        true
    }

    /// The group in which a flow was last.
    #[inline(always)]
    fn group_of(&self, flow: u32) -> u32 {
        self.of_flow.get(flow as usize).map_or(NO_GROUP, |of| *of)
    }

    #[inline(always)]
    fn remember(&mut self, group: u32) {
        // Of as many flows as there may be groups: that is what the limits on memory allow.
        if self.flow == UNNUMBERED || self.flow >= self.max {
            return;
        }
        let flow = self.flow as usize;
        if flow >= self.of_flow.len() {
            let len = flow
                .wrapping_add(1)
                .next_power_of_two()
                .min(self.max as usize);
            self.of_flow.resize(len, NO_GROUP);
        }
        self.of_flow[flow] = group;
    }

    #[inline(always)]
    fn is_key(&self, group: u32, registers: &Registers) -> bool {
        let words = &self.spec.key;
        let key = &self.keys[(group as usize).wrapping_mul(words.len())..][..words.len()];
        words.iter().zip(key).fold(true, |same, (&at, word)| {
            same & (registers[usize::from(at)] == *word)
        })
    }

    /// The group whose key is in the registers, a new one for a new key; [`NO_GROUP`] if there
    /// is no room.
    fn find(&mut self, registers: &Registers) -> u32 {
        let hash = match self.hash {
            Some(hash) => hash,
            None => self.hash_of(self.spec.key.iter().map(|&at| registers[usize::from(at)])),
        };
        let mask = self.index.len().wrapping_sub(1);
        let mut at = self.place(hash);
        while self.index[at] != NONE {
            let (tag, group) = halves(self.index[at]);
            if tag == tag_of(hash) && self.is_key(group, registers) {
                return group;
            }
            at = at.wrapping_add(1) & mask;
        }
        if self.len == self.max {
            return NO_GROUP;
        }
        let group = self.len;
        self.index[at] = u64::from(tag_of(hash)) << 32 | u64::from(group);
        self.len = self.len.wrapping_add(1);
        let key = self.spec.key.iter().map(|&at| registers[usize::from(at)]);
        self.keys.extend(key);
        let words = self.states.len().wrapping_add(self.spec.state.len());
        self.states.resize(words, 0);
        if (self.len as usize).wrapping_mul(4) > self.index.len().wrapping_mul(3) {
            self.grow();
        }
        group
    }

    #[inline(always)]
    pub(super) fn hash_of(&self, key: impl Iterator<Item = u64>) -> u64 {
        let mut lanes = [self.seed, !self.seed];
        for (number, word) in key.enumerate() {
            let lane = &mut lanes[number & 1];
            *lane = folded(*lane ^ word, FACTORS[number & 1]);
        }
        mix64(lanes[0] ^ lanes[1].rotate_left(32))
    }

    /// Fetches the group in which a flow was last; false if it is not known.
    #[inline(always)]
    pub(super) fn fetch(&self, flow: u32) -> bool {
        let group = self.group_of(flow);
        if group == NO_GROUP {
            return false;
        }
        self.fetch_group(group, !self.spec.is_fixed);
        true
    }

    #[inline(always)]
    fn fetch_group(&self, group: u32, with_key: bool) {
        let fetch = |words: &[u64], stride: usize| {
            let first = (group as usize).wrapping_mul(stride);
            prefetch(words, first);
            prefetch(
                words,
                first.wrapping_add(stride.saturating_sub(1).min(LINE)),
            );
        };
        fetch(&self.states, self.spec.state.len());
        if with_key {
            fetch(&self.keys, self.spec.key.len());
        }
    }

    /// Fetches where the index has a key with this hash.
    #[inline(always)]
    pub(super) fn fetch_index(&self, hash: u64) {
        prefetch(&self.index, self.place(hash));
    }

    /// Fetches the group that the index has for this hash, once that is there.
    #[inline(always)]
    pub(super) fn fetch_record(&self, hash: u64) {
        let entry = self.index[self.place(hash)];
        if entry != NONE {
            self.fetch_group(halves(entry).1, true);
        }
    }

    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "at most 2^31 places")]
    fn place(&self, hash: u64) -> usize {
        (hash >> self.shift) as usize
    }

    #[cold]
    fn grow(&mut self) {
        let mask = self.index.len().wrapping_mul(2).wrapping_sub(1);
        let before = std::mem::replace(&mut self.index, vec![NONE; mask.wrapping_add(1)]);
        self.shift = self.shift.wrapping_sub(1);
        for entry in before.into_iter().filter(|&entry| entry != NONE) {
            // A place is fewer bits than the half of the hash that is there.
            let mut at = self.place(entry & !u64::from(u32::MAX));
            while self.index[at] != NONE {
                at = at.wrapping_add(1) & mask;
            }
            self.index[at] = entry;
        }
    }
}

#[inline(always)]
fn folded(a: u64, b: u64) -> u64 {
    let product = u128::from(a).wrapping_mul(u128::from(b));
    let (high, low) = ((product >> 64), product & u128::from(u64::MAX));
    #[allow(clippy::cast_possible_truncation, reason = "two halves")]
    let folded = high as u64 ^ low as u64;
    folded
}

/// Never the tag of [`NONE`] with its group: groups are at most 2^30.
#[inline(always)]
fn tag_of(hash: u64) -> u32 {
    halves(hash).0
}

#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "both halves are taken")]
fn halves(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}
