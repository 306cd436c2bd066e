//! Keys with large counts: a sketch has counters, but no keys, so the writer keeps the keys with the largest
//! counts ([`Largest`]) and writes each that it begins to keep into a table at the front of the memory.
//!
//! ```text
//! entry, of 64 bytes
//!  0 tag u64, native: length in the lowest byte, above it how often the entry was written; a length
//!    of 0: empty, or being written
//!  8 key, padded with zeros
//! 48 the tag again: an entry whose two tags differ is not read
//! 56 of the first entry of a generation: 1 + the largest count that a key of it may have that is not in
//!    its entries; 0: not known, since an earlier version of this program wrote the entries
//! ```
//!
//! Each generation has the same share of the 1,024 entries. A key may be in those of several, and one that
//! is not kept any more stays until another takes its place.

use std::ops::Range;

use strata_dta::KeyHash;
use strata_dta::key::Key;
use strata_dta::key_increment::largest::{Kept, Largest};
use strata_dta::protocol::KEY_LEN_MAX;
use strata_sys::words::{Words, WordsMut};
use strata_wire::exact;

use crate::store::plan::{CANDIDATES_BYTES, Plan};

const ENTRY: usize = 64;
const ENTRIES: usize = CANDIDATES_BYTES / ENTRY;
/// Bytes of an entry that are used.
pub(crate) const ENTRY_LEN: usize = TAG_AGAIN + 8;
const TAG_AGAIN: usize = 48;
/// Where the largest count of the others is, in the first entry of a generation.
const OTHERS: usize = 56;
const _: () = assert!(8 + KEY_LEN_MAX == TAG_AGAIN && ENTRY_LEN == OTHERS);

/// The smallest counter of a key, in the generation whose stores lie so far from the first one's.
pub(crate) fn count_at(plan: &Plan, words: &Words, key: KeyHash, offset: u64) -> u64 {
    let places = plan.places;
    let counters = (0..plan.parameters.redundancy).map(|n| {
        let counter = key.place(n, places.key_increment_counters);
        let at = exact::<usize>(places.key_increment_at + offset + counter * 8);
        u64::from_ne_bytes(words.word(at))
    });
    counters.min().expect("a key has a counter")
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

/// All keys, in no order; one may come several times.
pub(crate) fn keys(words: &Words) -> impl Iterator<Item = Key> + '_ {
    (0..ENTRIES).filter_map(|entry| key_of(words, entry * ENTRY))
}

/// The entries of a generation, by its place; all of a store without generations, with place 0.
pub(crate) fn entries(plan: &Plan, generation: u8) -> Range<usize> {
    let len = ENTRIES / usize::from(plan.parameters.generations);
    let first = usize::from(generation) * len;
    first..first + len
}

/// How often an entry was written.
pub(crate) fn written(words: &Words, entry: usize) -> u64 {
    u64::from_ne_bytes(words.word(entry * ENTRY)) >> 8
}

/// Where an entry lies in the memory.
pub(crate) fn entry_at(entry: usize) -> u64 {
    exact::<u64>(entry * ENTRY)
}

/// An entry after `written` writes, as it is in memory.
pub(crate) fn entry(written: u64, key: &[u8]) -> [u8; ENTRY_LEN] {
    let tag = (written << 8 | key.len() as u64).to_ne_bytes();
    let mut entry = [0; ENTRY_LEN];
    entry[..8].copy_from_slice(&tag);
    entry[8..8 + key.len()].copy_from_slice(key);
    entry[TAG_AGAIN..].copy_from_slice(&tag);
    entry
}

/// The place of the upper bound on the counts of keys without an entry.
pub(crate) fn others_at(entries: &Range<usize>) -> u64 {
    entry_at(entries.start) + OTHERS as u64
}

/// The form of that bound.
pub(crate) fn others(max: Option<u64>) -> u64 {
    max.map_or(0, |max| max.saturating_add(1))
}

/// The largest count in a generation that a key without an entry there may have; `None` if it is not known.
pub(crate) fn others_max(plan: &Plan, words: &Words, generation: u8) -> Option<u64> {
    let at = others_at(&entries(plan, generation));
    u64::from_ne_bytes(words.word(exact::<usize>(at))).checked_sub(1)
}

/// The table of a generation, whose stores lie so far from the first one's, as it is in memory.
pub(crate) fn largest(plan: &Plan, words: &Words, generation: u8, offset: u64) -> Largest {
    let rows = rows(plan, words, generation, offset).map(|(kept, _)| kept);
    let max = others_max(plan, words, generation);
    Largest::continued(entries(plan, generation).len(), max, rows)
}

/// The rows of that, and how often each was written.
pub(crate) fn rows<'a>(
    plan: &'a Plan,
    words: &'a Words,
    generation: u8,
    offset: u64,
) -> impl Iterator<Item = (Kept, u64)> + 'a {
    let all = entries(plan, generation).enumerate();
    all.filter_map(move |(row, entry)| {
        let key = key_of(words, entry * ENTRY)?;
        let hash = plan.hasher.hash(key.bytes());
        let kept = Kept {
            row,
            key,
            place: place(plan, hash, offset),
            count: count_at(plan, words, hash, offset),
        };
        Some((kept, written(words, entry)))
    })
}

/// Where the first counter of a key lies, in the generation whose stores lie so far from the first one's.
pub(crate) fn place(plan: &Plan, key: KeyHash, offset: u64) -> u64 {
    plan.key_increment.shifted(offset).place_of(key)
}

/// Empties the entries of a generation, which holds nothing yet.
pub(crate) fn empty(plan: &Plan, memory: &mut WordsMut, generation: u8) {
    let entries = entries(plan, generation);
    for at in entries.clone().map(|entry| entry * ENTRY) {
        memory.write(at, &[0; ENTRY_LEN]);
    }
    memory.store(exact(others_at(&entries)), others(Some(0)));
}
