//! The groups of a `groupby`: by an index with open addressing, key and state next to each other.

use std::hash::{BuildHasher, RandomState};

use strata_wire::{mix64, prefetch_whole};

use super::super::program::GroupSpec;
use super::Registers;

/// No group.
const NONE: u64 = u64::MAX;
/// Words that a hash takes two at a time.
const FACTORS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9];

/// The state of a `groupby`.
#[derive(Debug)]
pub(super) struct Groups {
    spec: GroupSpec,
    /// Nobody outside can aim at a place.
    seed: u64,
    /// High half of the hash, then the group; a power of two of places.
    index: Vec<u64>,
    /// Of each group the key, then the state.
    records: Vec<u64>,
    len: u32,
    max: u32,
    /// Whose state is in the registers.
    held: Option<u32>,
    /// The hash of the vector's key, if that is known before its first packet.
    hash: Option<u64>,
}

impl Groups {
    pub(super) fn new(spec: GroupSpec, max: u32) -> Self {
        Self {
            spec,
            seed: RandomState::new().hash_one(0),
            index: vec![NONE; 16],
            records: Vec::new(),
            len: 0,
            max,
            held: None,
            hash: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    /// Keys and states, in the order in which groups came.
    pub(super) fn records(&self) -> impl Iterator<Item = &[u64]> {
        let stride = self.stride();
        (0..self.len()).map(move |group| &self.records[group * stride..][..stride])
    }

    #[inline(always)]
    fn stride(&self) -> usize {
        self.spec.key.len() + self.spec.state.len()
    }

    /// Stores the state that is in the registers.
    #[inline(always)]
    pub(super) fn put_back(&mut self, registers: &Registers) {
        if let Some(held) = self.held.take() {
            let first = held as usize * self.stride() + self.spec.key.len();
            let states = &mut self.records[first..first + self.spec.state.len()];
            for (word, &register) in states.iter_mut().zip(&self.spec.state) {
                *word = registers[usize::from(register)];
            }
        }
    }

    /// Says what the hash of the next key is.
    #[inline(always)]
    pub(super) fn expect(&mut self, hash: Option<u64>) {
        self.hash = hash;
    }

    /// Loads the state of the group whose key is in the registers; false if there is no room.
    #[inline(always)]
    pub(super) fn load(&mut self, registers: &mut Registers) -> bool {
        if let Some(held) = self.held {
            if self.spec.is_fixed || self.is_key(held, registers) {
                return true;
            }
            self.put_back(registers);
        }
        let Some(group) = self.find(registers) else {
            return false;
        };
        let first = group as usize * self.stride() + self.spec.key.len();
        for (&register, word) in self.spec.state.iter().zip(&self.records[first..]) {
            registers[usize::from(register)] = *word;
        }
        self.held = Some(group);
        true
    }

    #[inline(always)]
    fn is_key(&self, group: u32, registers: &Registers) -> bool {
        let first = group as usize * self.stride();
        let key = self.spec.key.iter().zip(&self.records[first..]);
        key.fold(true, |same, (&at, word)| {
            same & (registers[usize::from(at)] == *word)
        })
    }

    fn find(&mut self, registers: &Registers) -> Option<u32> {
        let hash = match self.hash {
            Some(hash) => hash,
            None => self.hash_of(self.spec.key.iter().map(|&at| registers[usize::from(at)])),
        };
        let mask = self.index.len() - 1;
        let mut at = place_of(hash) & mask;
        while self.index[at] != NONE {
            let (tag, group) = halves(self.index[at]);
            if tag == tag_of(hash) && self.is_key(group, registers) {
                return Some(group);
            }
            at = (at + 1) & mask;
        }
        if self.len == self.max {
            return None;
        }
        let group = self.len;
        self.index[at] = u64::from(tag_of(hash)) << 32 | u64::from(group);
        self.len += 1;
        let key = self.spec.key.iter().map(|&at| registers[usize::from(at)]);
        self.records.extend(key);
        let state = self.spec.state.len();
        self.records.resize(self.records.len() + state, 0);
        if self.len as usize * 4 > self.index.len() * 3 {
            self.grow();
        }
        Some(group)
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

    /// Fetches where the index has a key with this hash.
    #[inline(always)]
    pub(super) fn fetch_index(&self, hash: u64) {
        prefetch_whole(&self.index, place_of(hash) & (self.index.len() - 1));
    }

    /// Fetches the group that the index has for this hash, once that is there.
    #[inline(always)]
    pub(super) fn fetch_record(&self, hash: u64) {
        let entry = self.index[place_of(hash) & (self.index.len() - 1)];
        if entry != NONE {
            let (_, group) = halves(entry);
            let first = group as usize * self.stride();
            prefetch_whole(&self.records, first);
            prefetch_whole(&self.records, (first + self.stride()).saturating_sub(1));
        }
    }

    #[cold]
    fn grow(&mut self) {
        let mask = self.index.len() * 2 - 1;
        self.index = vec![NONE; mask + 1];
        let (stride, words) = (self.stride(), self.spec.key.len());
        for group in 0..self.len {
            let first = group as usize * stride;
            let hash = self.hash_of(self.records[first..first + words].iter().copied());
            let mut at = place_of(hash) & mask;
            while self.index[at] != NONE {
                at = (at + 1) & mask;
            }
            self.index[at] = u64::from(tag_of(hash)) << 32 | u64::from(group);
        }
    }
}

#[inline(always)]
fn folded(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
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
#[allow(clippy::cast_possible_truncation, reason = "the low bits are meant")]
fn place_of(hash: u64) -> usize {
    hash as usize
}

#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "both halves are taken")]
fn halves(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}
