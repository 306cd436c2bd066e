//! From a key to places in memory.
//!
//! One keyed 64-bit hash of the key gives everything: the place of copy 0 follows from its high
//! half, the checksum from its low half, and each further place from the whole of it, mixed again.
//! So copy 0 and the checksum are independent, and a report with one copy hashes once.

use strata_wire::mix64;

/// Maximum number of copies of a value, or of counters of a key (paper §4: "a maximum (e.g., 4)").
pub const REDUNDANCY_MAX: u8 = 4;

/// What tells further places apart: the golden ratio, as of splitmix64.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// Keeps the hashes of values and of collectors apart from those of keys.
const VALUE: u64 = 0xd1b5_4a32_d192_ed03;
const COLLECTOR: u64 = 0x2545_f491_4f6c_dd1d;

/// A keyed hash of keys of up to 40 bytes: the NH family (RFC 4418 §5.2.1) on 64-bit words, and a mixer. Without the
/// seed, a sender cannot choose places in memory. Translator and collector use the same seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyHasher {
    key: [u64; 8],
}

impl KeyHasher {
    /// A hasher with this seed.
    #[must_use]
    pub fn new(seed: [u64; 2]) -> Self {
        let mut state = seed[0];
        let key = std::array::from_fn(|_| {
            state = state.wrapping_add(STEP);
            mix64(state ^ seed[1].rotate_left(32))
        });
        Self { key }
    }

    /// The hash of a key.
    ///
    /// # Panics
    ///
    /// If the key is longer than 40 bytes; the protocol refuses such keys.
    #[inline]
    #[must_use]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        if let Ok(word) = <[u8; 4]>::try_from(key) {
            return self.hash4(word);
        }
        let words = words(key);
        let k = &self.key;
        let sum = self
            .first(words[0], key.len() as u64)
            .wrapping_add(nh(words[1], k[2], words[2], k[3]))
            .wrapping_add(nh(words[3], k[4], words[4], k[5]));
        self.finish(sum)
    }

    /// As [`KeyHasher::hash`].
    #[inline(always)]
    pub(crate) fn hash4(&self, key: [u8; 4]) -> KeyHash {
        self.finish(self.first(u64::from(u32::from_le_bytes(key)), 4))
    }

    #[inline(always)]
    fn first(&self, word: u64, len: u64) -> u128 {
        nh(word, self.key[0], len, self.key[1])
    }

    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "both halves are used")]
    fn finish(&self, sum: u128) -> KeyHash {
        let folded = sum as u64 ^ ((sum >> 64) as u64).rotate_left(29) ^ self.key[6];
        KeyHash(mix64(folded ^ self.key[7]))
    }

    /// The hash of a value that postcards report: `g` of the paper, before it is cut to the
    /// slot's width. The blank is a value of its own.
    #[inline]
    #[must_use]
    pub(crate) fn value(&self, value: Option<u32>) -> u32 {
        let word = value.map_or(1 << 32, u64::from);
        high(mix64((word ^ VALUE).wrapping_add(self.key[7])))
    }
}

/// A key as little-endian words, padded with zeros. Its last word is what is left of the last 8
/// bytes, so nothing is copied byte by byte.
#[inline(always)]
fn words(key: &[u8]) -> [u64; 5] {
    assert!(key.len() <= 40, "keys have up to 40 bytes");
    let mut words = [0; 5];
    let (whole, rest) = key.as_chunks();
    for (word, bytes) in words.iter_mut().zip(whole) {
        *word = u64::from_le_bytes(*bytes);
    }
    if !rest.is_empty() {
        words[whole.len()] = match key.last_chunk() {
            Some(last) => {
                // What is left of 8 bytes is 1 to 7 of them.
                let before = 64_usize.wrapping_sub(rest.len().wrapping_mul(8));
                u64::from_le_bytes(*last) >> before
            }
            None => rest
                .iter()
                .rev()
                .fold(0, |word, &byte| word << 8 | u64::from(byte)),
        };
    }
    words
}

#[inline(always)]
fn nh(a: u64, key_a: u64, b: u64, key_b: u64) -> u128 {
    u128::from(a.wrapping_add(key_a)).wrapping_mul(u128::from(b.wrapping_add(key_b)))
}

#[inline(always)]
fn high(word: u64) -> u32 {
    low(word >> 32)
}

#[inline(always)]
fn low(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// The hash of a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct KeyHash(u64);

impl KeyHash {
    /// The hash as a number.
    #[inline]
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }

    /// The place of copy `n`, below `places`: `h0(n, K) mod BufLen` of the paper's algorithms 1
    /// to 6. Two copies may have the same place.
    #[inline]
    #[must_use]
    pub fn place(self, n: u8, places: u32) -> u64 {
        let word = match n {
            0 => self.0,
            _ => mix64(self.0.wrapping_add(STEP.wrapping_mul(u64::from(n)))),
        };
        u64::from(high(word)).wrapping_mul(u64::from(places)) >> 32
    }

    /// The checksum of the key in `bits` bits (1 to 32): `h1(K)`. It is never 0, since memory that was never written
    /// holds 0; the other values are evenly spread.
    #[inline]
    #[must_use]
    pub fn checksum(self, bits: u32) -> u32 {
        let values = 1_u64.wrapping_shl(bits).wrapping_sub(1);
        let value = u64::from(low(self.0)).wrapping_mul(values) >> 32;
        low(value.wrapping_add(1))
    }

    /// The checksum of the key at a hop: `checksum(x, i)` of Postcarding.
    #[inline]
    #[must_use]
    pub(crate) fn hop_checksum(self, hop: u8) -> u32 {
        low(mix64(
            self.0 ^ STEP.wrapping_mul(u64::from(hop).wrapping_add(1)),
        ))
    }

    /// A place in the translator's cache, below a power of two.
    #[inline]
    pub(crate) fn row(self, rows: usize) -> usize {
        let rows_mask = u32::try_from(rows.wrapping_sub(1));
        let rows_mask = rows_mask.expect("a cache has 1 to 2^32 rows");
        (low(self.0) & rows_mask) as usize
    }

    /// The index of the collector that the key belongs to, of `collectors` collectors.
    #[inline]
    #[must_use]
    pub fn collector(self, collectors: usize) -> usize {
        if collectors == 1 {
            return 0;
        }
        let word = u64::from(high(mix64(self.0 ^ COLLECTOR)));
        let index = word.wrapping_mul(collectors as u64) >> 32;
        low(index) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn keys_of_any_length_and_content_differ() {
        let hasher = KeyHasher::new([1, 2]);
        let mut seen = HashSet::new();
        for len in 1..=40 {
            assert!(seen.insert(hasher.hash(&vec![0; len])), "zeros, {len}");
            for bit in 0..len * 8 {
                let mut key = vec![0; len];
                key[bit / 8] = 1 << (bit % 8);
                assert!(seen.insert(hasher.hash(&key)), "bit {bit} of {len}");
            }
        }
        let other = KeyHasher::new([1, 3]);
        assert_ne!(hasher.hash(b"key!"), other.hash(b"key!"));
    }

    #[test]
    fn words_of_a_key_are_its_bytes_padded() {
        let bytes: Vec<u8> = (1..=40).collect();
        for len in 1..=40 {
            let mut padded = [0; 40];
            padded[..len].copy_from_slice(&bytes[..len]);
            let naive: Vec<_> = padded
                .as_chunks()
                .0
                .iter()
                .map(|word| u64::from_le_bytes(*word))
                .collect();
            assert_eq!(words(&bytes[..len])[..], naive, "{len}");
        }
    }

    #[test]
    fn places_of_copies_and_checksums_are_spread_evenly_and_apart() {
        // Chi-square with 255 degrees of freedom: below 350 with probability 0.9999.
        let hasher = KeyHasher::new([3, 4]);
        let mut counts = [[0_u32; 256]; 6];
        for key in 0..65_536_u32 {
            let hash = hasher.hash(&key.to_be_bytes());
            for n in 0..4 {
                counts[n as usize][usize::try_from(hash.place(n, 256)).unwrap()] += 1;
            }
            // The low bits of a checksum beside the high bits of place 0.
            let pair = hash.checksum(32) & 0xf | u32::try_from(hash.place(0, 16)).unwrap() << 4;
            counts[4][pair as usize] += 1;
            let both = hash.place(1, 16) | hash.place(2, 16) << 4;
            counts[5][usize::try_from(both).unwrap()] += 1;
        }
        for (row, counts) in counts.iter().enumerate() {
            let chi: f64 = counts
                .iter()
                .map(|&count| (f64::from(count) - 256.0).powi(2) / 256.0)
                .sum();
            assert!(chi < 350.0, "row {row}: chi-square {chi}");
        }
    }

    #[test]
    fn a_checksum_is_never_0_and_has_its_bits() {
        let hasher = KeyHasher::new([3, 4]);
        let mut seen = HashSet::new();
        for key in 0..10_000_u32 {
            let hash = hasher.hash(&key.to_be_bytes());
            seen.insert(hash.checksum(8));
            assert_ne!(hash.checksum(32), 0);
        }
        assert_eq!(seen.len(), 255);
        assert!(!seen.contains(&0) && seen.iter().all(|&sum| sum < 256));
    }
}
