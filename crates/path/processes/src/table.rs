//! Tables of sockets and of connections with their processes, which programs write and readers read.
//!
//! ```text
//! word 0: entries that were replaced; 1: that were not noted; then, from word 8 on, sets of 4 slots
//!
//! slot:   0     sequence: odd while it is written, 0 before the first time
//!         1     when it was written or used last, ns of the kernel's clock
//!         2..7  key. Of a connection: own address, peer's address, then own port, peer's port and protocol (2, 2, 4
//!               bytes). Of a socket: its cookie, then zeros
//!         7     the socket's cookie
//!         8     process
//!         9..11 its name, with a zero at its end
//!         11    the number of its cgroup
//! ```

use std::io;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use strata_bpf::Shared;
use strata_wire::exact;

pub(crate) const SETS: usize = 8_192;
pub(crate) const WAYS: usize = 4;
const SLOT_WORDS: usize = 12;
const SET_WORDS: usize = WAYS * SLOT_WORDS;
const FIRST_SLOT: usize = 8;
/// The same in bytes.
pub(crate) const SLOT_BYTES: usize = SLOT_WORDS * 8;
pub(crate) const SET_BYTES: usize = WAYS * SLOT_BYTES;
pub(crate) const FIRST_SLOT_AT: usize = FIRST_SLOT * 8;
pub(crate) const KEY_WORDS: usize = 5;
/// Words of a slot.
pub(crate) mod at {
    pub(crate) const SEQUENCE: usize = 0;
    pub(crate) const TIME: usize = 1;
    pub(crate) const KEY: usize = 2;
    pub(crate) const COOKIE: usize = 7;
    pub(crate) const PROCESS: usize = 8;
    pub(crate) const NAME: usize = 9;
    pub(crate) const CGROUP: usize = 11;
}
pub(crate) const REPLACED: usize = 0;
pub(crate) const BUSY: usize = 1;
/// Odd: multiplying by it loses nothing (splitmix64).
pub(crate) const FACTOR: u64 = 0xbf58_476d_1ce4_e5b9;
/// How far a product is folded.
pub(crate) const FOLD: u32 = 29;

pub(crate) type Key = [u64; KEY_WORDS];

/// The key of a socket.
pub(crate) fn of_socket(cookie: u64) -> Key {
    [cookie, 0, 0, 0, 0]
}

/// The key of a connection, as programs have it in memory: each end has an address and a port, and the own one is
/// first.
pub(crate) fn of_connection(ends: [([u8; 16], u16); 2], protocol: u8) -> Key {
    let [(own_address, own_port), (peer_address, peer_port)] = ends;
    let mut bytes = [0; KEY_WORDS * 8];
    bytes[..16].copy_from_slice(&own_address);
    bytes[16..32].copy_from_slice(&peer_address);
    bytes[32..34].copy_from_slice(&own_port.to_ne_bytes());
    bytes[34..36].copy_from_slice(&peer_port.to_ne_bytes());
    bytes[36..].copy_from_slice(&u32::from(protocol).to_ne_bytes());
    let (words, _) = bytes.as_chunks();
    std::array::from_fn(|index| u64::from_ne_bytes(words[index]))
}

/// A process as the table has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) pid: u64,
    /// As far as there is no zero.
    pub(crate) name: [u8; 16],
    pub(crate) cgroup: u64,
}

/// A table, in memory that programs write.
#[derive(Debug)]
pub(crate) struct Table {
    shared: Shared,
    seed: u64,
}

impl Table {
    /// An empty table. With another `seed`, keys are in other sets.
    pub(crate) fn new(seed: u64) -> io::Result<Self> {
        const WORDS: usize = FIRST_SLOT + SETS * SET_WORDS;
        Ok(Self {
            shared: Shared::new(WORDS)?,
            seed,
        })
    }

    /// By which programs refer to it.
    pub(crate) fn number(&self) -> i32 {
        self.shared.number()
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// Entries that others have replaced, and those that were not noted.
    pub(crate) fn forgotten(&self) -> u64 {
        let [replaced, busy] = [REPLACED, BUSY].map(|word| self.shared.words()[word].load(Relaxed));
        replaced.saturating_add(busy)
    }

    /// The set of a key. Programs compute the same.
    fn set(&self, key: &Key) -> &[AtomicU64] {
        let mut hash = self.seed;
        for word in key {
            hash = (hash ^ word).wrapping_mul(FACTOR);
            hash ^= hash >> FOLD;
        }
        let set = exact::<usize>(hash & (SETS as u64).wrapping_sub(1));
        let first = set.wrapping_mul(SET_WORDS).wrapping_add(FIRST_SLOT);
        &self.shared.words()[first..][..SET_WORDS]
    }

    pub(crate) fn find(&self, key: &Key) -> Option<Entry> {
        let mut slots = self.set(key).chunks_exact(SLOT_WORDS);
        slots.find_map(|slot| read(slot, key))
    }

    /// Adds an entry that programs have not added, in place of one that was never used; counts it if there is none.
    pub(crate) fn add(&self, key: &Key, entry: &Entry) {
        let slots = || self.set(key).chunks_exact(SLOT_WORDS);
        if slots().any(|slot| read(slot, key).is_some()) {
            return;
        }
        let take = |slot: &&[AtomicU64]| {
            let free = slot[at::SEQUENCE].compare_exchange(0, 1, AcqRel, Relaxed);
            free.is_ok()
        };
        let Some(slot) = slots().find(take) else {
            self.shared.words()[BUSY].fetch_add(1, Relaxed);
            return;
        };
        for (to, word) in slot[at::KEY..].iter().zip(key) {
            to.store(*word, Relaxed);
        }
        slot[at::COOKIE].store(key[0], Relaxed);
        slot[at::PROCESS].store(entry.pid, Relaxed);
        let (name, _) = entry.name.as_chunks();
        for (to, word) in slot[at::NAME..at::CGROUP].iter().zip(name) {
            to.store(u64::from_ne_bytes(*word), Relaxed);
        }
        slot[at::CGROUP].store(entry.cgroup, Relaxed);
        // Since the system started: older than all that follow.
        slot[at::TIME].store(1, Relaxed);
        slot[at::SEQUENCE].store(2, Release);
    }
}

/// What a slot has, if it has this key and nothing changes it meanwhile.
fn read(slot: &[AtomicU64], key: &Key) -> Option<Entry> {
    let sequence = slot[at::SEQUENCE].load(Acquire);
    if sequence == 0 || sequence & 1 != 0 {
        return None;
    }
    let mut copy = [0; SLOT_WORDS];
    for (to, from) in copy.iter_mut().zip(slot) {
        *to = from.load(Relaxed);
    }
    fence(Acquire);
    if slot[at::SEQUENCE].load(Relaxed) != sequence || copy[at::KEY..at::COOKIE] != key[..] {
        return None;
    }
    let mut name = [0; 16];
    for (to, word) in name.chunks_exact_mut(8).zip(&copy[at::NAME..at::CGROUP]) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    Some(Entry {
        pid: copy[at::PROCESS],
        name,
        cgroup: copy[at::CGROUP],
    })
}
