//! Keys that are added to often, as a translator knows them that cannot read its collector's counters:
//! a bucket's entries are voted for (Misra and Gries, 1982), and the collector's table of the same
//! shape is written whenever one changes hands.

use strata_dta::KeyHash;
use strata_dta::key::Key;

use super::super::candidates::{BUCKETS, ENTRY_LEN, WAYS, bucket, entry, entry_at};

/// The table. Memory: 64 bytes for each of 1,024 entries.
#[derive(Debug)]
pub(super) struct Frequent {
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    key: Option<Key>,
    /// What was added to it, less what was added to others meanwhile.
    weight: u64,
    /// How often it changed hands.
    written: u64,
}

impl Frequent {
    pub(super) fn new() -> Self {
        Self {
            entries: vec![Entry::default(); BUCKETS * WAYS],
        }
    }

    /// Begins anew: for a collector whose table may be another one.
    pub(super) fn clear(&mut self) {
        for entry in &mut self.entries {
            (entry.key, entry.weight) = (None, 0);
        }
    }

    /// Considers a key that was added to; what is to be written where, if it takes a place.
    pub(super) fn consider(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        counter: u64,
    ) -> Option<(u64, [u8; ENTRY_LEN])> {
        let key = Key::new(key);
        let first = bucket(hash) * WAYS;
        let ways = &mut self.entries[first..first + WAYS];
        if let Some(there) = ways.iter_mut().find(|entry| entry.key == Some(key)) {
            there.weight = there.weight.saturating_add(counter);
            return None;
        }
        let (way, least) = ways
            .iter_mut()
            .enumerate()
            .min_by_key(|(_, entry)| (entry.key.is_some(), entry.weight))
            .expect("a bucket has entries");
        if least.key.is_some() && least.weight > counter {
            least.weight -= counter;
            return None;
        }
        *least = Entry {
            key: Some(key),
            weight: counter,
            written: least.written + 1,
        };
        Some((entry_at(first + way), entry(least.written, key.bytes())))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use strata_dta::KeyHasher;

    #[test]
    fn keys_that_are_added_to_often_stay_and_others_pass() {
        let hasher = KeyHasher::new([1, 2]);
        let mut frequent = Frequent::new();
        let often: Vec<[u8; 4]> = (0..20_u32).map(u32::to_be_bytes).collect();
        for round in 0..2_000_u32 {
            for key in &often {
                frequent.consider(hasher.hash(key), key, 10);
            }
            for n in 0..5 {
                let rare = (1_000_000 + round * 5 + n).to_be_bytes();
                frequent.consider(hasher.hash(&rare), &rare, 1);
            }
        }
        let kept: Vec<Key> = frequent
            .entries
            .iter()
            .filter_map(|entry| entry.key)
            .collect();
        for key in &often {
            assert!(kept.contains(&Key::new(key)), "{key:?}");
        }
        // Nothing is written for a key that has its place.
        assert_eq!(
            frequent.consider(hasher.hash(&often[0]), &often[0], 10),
            None
        );
        frequent.clear();
        let (at, _) = frequent
            .consider(hasher.hash(&often[0]), &often[0], 1)
            .unwrap();
        assert!(at.is_multiple_of(64));
    }
}
