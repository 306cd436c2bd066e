//! Keys that are added to often: a sketch has counters, but no keys, and somebody has to say which to
//! ask for. One key of each datagram of Key-Increment is considered; it takes the place of the one
//! with the smallest count of those that share its bucket.
//!
//! ```text
//! entry, of 64 bytes; 4 are a bucket
//!  0 tag u64, native: length in the lowest byte, above it how often the entry was written; a length
//!    of 0: empty, or being written
//!  8 key, padded with zeros
//! 48 the tag again: an entry whose two tags differ is not read
//! ```

use strata_dta::key::Key;
use strata_dta::protocol::KEY_LEN_MAX;
use strata_dta::{KeyHash, KeyHasher};
use strata_sys::words::{Words, WordsMut};
use strata_wire::exact;

use super::plan::{CANDIDATES_BYTES, Plan};

const ENTRY: usize = 64;
const ENTRIES: usize = CANDIDATES_BYTES / ENTRY;
/// Entries of a bucket.
pub(super) const WAYS: usize = 4;
/// Buckets.
pub(super) const BUCKETS: usize = ENTRIES / WAYS;
/// Bytes of an entry that are used.
pub(super) const ENTRY_LEN: usize = TAG_AGAIN + 8;
const TAG_AGAIN: usize = 48;
const _: () = assert!(8 + KEY_LEN_MAX == TAG_AGAIN);

/// The smallest counter of a key, in the generation whose stores lie so far from the first one's.
pub(super) fn count_at(plan: &Plan, words: &Words, key: KeyHash, offset: u64) -> u64 {
    let places = plan.places;
    let counters = (0..plan.parameters.redundancy).map(|n| {
        let counter = key.place(n, places.key_increment_counters);
        let at = exact::<usize>(places.key_increment_at + offset + counter * 8);
        u64::from_ne_bytes(words.word(at))
    });
    counters.min().expect("a key has a counter")
}

/// The sum of that over generations.
pub(super) fn count(plan: &Plan, words: &Words, key: KeyHash, offsets: &[u64]) -> u64 {
    let counts = offsets
        .iter()
        .map(|&offset| count_at(plan, words, key, offset));
    counts.fold(0, u64::saturating_add)
}

/// The key of an entry, if it is whole.
fn key_of(words: &Words, at: usize) -> Option<Key> {
    let mut entry = [0; ENTRY_LEN];
    words.read(at, &mut entry);
    let (front, again) = entry.split_at(TAG_AGAIN);
    let tag = u64::from_ne_bytes(*front.first_chunk()?);
    let len = exact::<usize>(tag & 0xff);
    let is_whole = again == &front[..8] && (1..=KEY_LEN_MAX).contains(&len);
    is_whole.then(|| Key::new(&front[8..8 + len]))
}

/// All keys, in no order.
pub(super) fn keys(words: &Words) -> impl Iterator<Item = Key> + '_ {
    (0..ENTRIES).filter_map(|entry| key_of(words, entry * ENTRY))
}

/// The bucket of a key.
pub(super) fn bucket(hash: KeyHash) -> usize {
    exact::<usize>(hash.place(0, exact::<u32>(BUCKETS)))
}

/// Where an entry lies in the memory.
pub(super) fn entry_at(index: usize) -> u64 {
    (index * ENTRY) as u64
}

/// An entry that was written so often, as it is in memory.
pub(super) fn entry(written: u64, key: &[u8]) -> [u8; ENTRY_LEN] {
    let tag = (written << 8 | key.len() as u64).to_ne_bytes();
    let mut entry = [0; ENTRY_LEN];
    entry[..8].copy_from_slice(&tag);
    entry[8..8 + key.len()].copy_from_slice(key);
    entry[TAG_AGAIN..].copy_from_slice(&tag);
    entry
}

/// Considers a key, by its counts in these generations.
pub(super) fn consider(plan: &Plan, memory: &mut WordsMut, key: &[u8], offsets: &[u64]) {
    let hasher: &KeyHasher = &plan.hasher;
    let hash = hasher.hash(key);
    let first = bucket(hash) * WAYS;
    let places = (0..WAYS).map(|way| (first + way) * ENTRY);
    let mut smallest = (u64::MAX, 0);
    for at in places {
        let Some(there) = key_of(memory.words(), at) else {
            smallest = (0, at);
            continue;
        };
        if there.bytes() == key {
            return;
        }
        let count = count(plan, memory.words(), hasher.hash(there.bytes()), offsets);
        if count < smallest.0 {
            smallest = (count, at);
        }
    }
    let (least, at) = smallest;
    if least == 0 || count(plan, memory.words(), hash, offsets) > least {
        let before = u64::from_ne_bytes(memory.words().word(at)) >> 8;
        // From the first word to the last, while readers go from the last to the first.
        memory.write(at, &entry(before.wrapping_add(1), key));
    }
}
