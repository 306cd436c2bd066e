//! A block's summary: what the block holds, without reading it.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};
use strata_wire::KeepKind;
use zerocopy::{FromBytes, IntoBytes};

use crate::format::{ALIGNMENT, align_up};
use crate::layout::{CountBytes, SummaryHeader};

/// Bits of a Bloom filter per key, and how many a key sets.
const BITS_PER_KEY: usize = 12;
const PROBES: u32 = 6;
/// The largest filter; blocks with more keys get a less selective one.
const BLOOM_BYTES_MAX: usize = 256 << 10;
/// The largest summary, in whole multiples of [`ALIGNMENT`]: 256 classes of 4
/// granularities, the filter, and their lengths.
pub const SUMMARY_BYTES_MAX: usize = align_up(8 + 256 * 4 * 24 + BLOOM_BYTES_MAX) + ALIGNMENT;
/// Bytes of one line of the filter: all bits of a key are in one cache line.
const LINE_BYTES: usize = 64;

/// Packets and bytes of one class and granularity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ClassCount {
    /// Index of the class.
    pub class: u8,
    /// How much of the packets was kept.
    pub keep: KeepKind,
    /// Packets.
    pub packets: u64,
    /// Their bytes on the wire.
    pub wire_bytes: u64,
    /// Their bytes kept.
    pub logged_bytes: u64,
}

impl AddAssign<&ClassCount> for ClassCount {
    fn add_assign(&mut self, other: &Self) {
        self.packets += other.packets;
        self.wire_bytes += other.wire_bytes;
        self.logged_bytes += other.logged_bytes;
    }
}

/// The summary of a block.
///
/// ```text
/// 0 counts u16 | reserved u16 | bloom_len u32
/// 8 counts * (class u8, keep u8, reserved u16, packets u32, wire u64, logged u64)
///   bloom_len bytes: blocked Bloom filter over fingerprints of flows and addresses
/// ```
///
/// An empty filter rules nothing out.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Summary {
    /// One entry per class and granularity that occurs.
    pub counts: Vec<ClassCount>,
    bloom: Vec<u8>,
}

impl Summary {
    /// A summary of these counts and fingerprints, which may repeat; `None` for fingerprints means
    /// that there were too many to note.
    #[must_use]
    pub fn new(counts: Vec<ClassCount>, fingerprints: Option<&[u64]>) -> Self {
        let mut bloom = Vec::new();
        if let Some(keys) = fingerprints {
            let bytes = (distinct(keys) * BITS_PER_KEY).div_ceil(8 * LINE_BYTES) * LINE_BYTES;
            bloom = vec![0_u8; bytes.clamp(LINE_BYTES, BLOOM_BYTES_MAX)];
            let (lines, _) = bloom.as_chunks_mut::<LINE_BYTES>();
            for &key in keys {
                let (line, bits) = probes(key, lines.len());
                let line = &mut lines[line];
                for bit in bits {
                    line[bit / 8] |= 1 << (bit % 8);
                }
            }
        }
        Self { counts, bloom }
    }

    /// Whether the block may hold this flow or address. If false, it does not.
    #[must_use]
    pub fn may_hold(&self, fingerprint: u64) -> bool {
        Bloom(&self.bloom).may_hold(fingerprint)
    }

    /// Appends the summary to `out`.
    ///
    /// # Panics
    ///
    /// If a block has over 65 535 classes or 2^32 packets, which its header cannot have.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let counts = u16::try_from(self.counts.len()).expect("256 classes, 4 granularities");
        let bloom_len = u32::try_from(self.bloom.len()).expect("bounded");
        let header = SummaryHeader {
            counts: counts.into(),
            reserved: 0.into(),
            bloom_len: bloom_len.into(),
        };
        out.extend_from_slice(header.as_bytes());
        for count in &self.counts {
            let packets = u32::try_from(count.packets).expect("a block has fewer");
            let bytes = CountBytes {
                class: count.class,
                keep_code: count.keep.code(),
                reserved: 0.into(),
                packets: packets.into(),
                wire_bytes: count.wire_bytes.into(),
                logged_bytes: count.logged_bytes.into(),
            };
            out.extend_from_slice(bytes.as_bytes());
        }
        out.extend_from_slice(&self.bloom);
    }

    /// Reads a summary.
    ///
    /// # Errors
    ///
    /// If its lengths do not add up, or a granularity is none.
    pub fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let (counts, bloom) = split(bytes)?;
        let mut summary = Self::default();
        for count in counts {
            summary.counts.push(ClassCount {
                class: count.class,
                keep: KeepKind::try_from(count.keep_code)?,
                packets: count.packets.get().into(),
                wire_bytes: count.wire_bytes.get(),
                logged_bytes: count.logged_bytes.get(),
            });
        }
        summary.bloom = bloom.0.to_vec();
        Ok(summary)
    }
}

/// The filter of a summary.
#[derive(Clone, Copy, Debug)]
pub struct Bloom<'a>(&'a [u8]);

impl<'a> Bloom<'a> {
    /// The filter in a summary's bytes.
    ///
    /// # Errors
    ///
    /// If the summary's lengths do not add up.
    pub fn of(summary: &'a [u8]) -> Result<Self, &'static str> {
        split(summary).map(|(_, bloom)| bloom)
    }

    /// See [`Summary::may_hold`].
    #[must_use]
    pub fn may_hold(self, fingerprint: u64) -> bool {
        let (lines, _) = self.0.as_chunks::<LINE_BYTES>();
        let (line, mut bits) = probes(fingerprint, lines.len());
        // An empty filter has no lines.
        let line = lines.get(line);
        line.is_none_or(|line| bits.all(|bit| line[bit / 8] & 1 << (bit % 8) != 0))
    }
}

/// The counts of a summary, and its filter.
fn split(summary: &[u8]) -> Result<(&[CountBytes], Bloom<'_>), &'static str> {
    let parts = || {
        let (header, rest) = SummaryHeader::ref_from_prefix(summary).ok()?;
        let counts = usize::from(header.counts.get());
        let (counts, bloom) = <[CountBytes]>::ref_from_prefix_with_elems(rest, counts).ok()?;
        let len = header.bloom_len.get() as usize;
        let right = bloom.len() == len && len.is_multiple_of(LINE_BYTES);
        right.then_some((counts, Bloom(bloom)))
    };
    parts().ok_or("the summary's lengths do not add up")
}

/// Approximate number of distinct fingerprints, by linear counting (Whang, Vander-Zanden and Taylor
/// 1990): exact enough to size a filter, while sorting costs ten times as much.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss
)]
fn distinct(keys: &[u64]) -> usize {
    // Eight times as many bits as keys, so that few share one.
    let places = (8 * keys.len()).next_power_of_two().max(64);
    let mut taken = vec![0_u64; places / 64];
    for &key in keys {
        let place = (key >> (64 - places.trailing_zeros())) as usize;
        taken[place / 64] |= 1 << (place % 64);
    }
    let taken: u32 = taken.iter().map(|word| word.count_ones()).sum();
    let places = places as f64;
    (-places * (-f64::from(taken) / places).ln_1p()).round() as usize
}

/// The line of a key in a filter of this many lines, by the high half of the key; and its bits in
/// that line, by double hashing of the low half (Kirsch and Mitzenmacher).
#[inline]
#[allow(clippy::cast_possible_truncation)]
fn probes(key: u64, lines: usize) -> (usize, impl Iterator<Item = usize>) {
    let line = (u128::from(key) * lines as u128) >> 64;
    let step = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 | 1;
    let bits = (0..PROBES).scan(key & 0xffff_ffff, move |next, _| {
        let bit = *next as usize % (8 * LINE_BYTES);
        *next = next.wrapping_add(step);
        Some(bit)
    });
    (line as usize, bits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_wire::mix64;

    #[test]
    fn what_is_in_is_found_and_little_else() {
        for keys in [0_u64, 1, 100, 50_000] {
            let inside: Vec<u64> = (0..keys).map(|n| mix64(n + 1)).collect();
            let summary = Summary::new(Vec::new(), Some(&inside));
            assert!(inside.iter().all(|&key| summary.may_hold(key)));
            let wrong = (0..10_000)
                .filter(|n| summary.may_hold(mix64(n + (1 << 40))))
                .count();
            assert!(wrong < 300, "{wrong} of 10 000 with {keys} keys");
        }
    }

    #[test]
    fn a_filter_is_as_large_as_its_different_fingerprints_ask_for() {
        for keys in [1_u64, 7, 100, 3_000, 90_000] {
            let once: Vec<u64> = (0..keys).map(|n| mix64(n + 1)).collect();
            let often = [once.as_slice(), &once, &once].concat();
            for fingerprints in [once, often] {
                let found = distinct(&fingerprints) as f64;
                let wrong = (found - keys as f64).abs();
                assert!(wrong < 2.0 + 0.02 * keys as f64, "{found} for {keys}");
            }
        }
    }

    #[test]
    fn without_fingerprints_everything_may_be_there() {
        assert!(Summary::new(Vec::new(), None).may_hold(12));
    }

    #[test]
    fn summaries_round_trip() {
        let count = ClassCount {
            class: 1,
            keep: KeepKind::Full,
            packets: 10,
            wire_bytes: 1 << 40,
            logged_bytes: 99,
        };
        let summary = Summary::new(vec![count, ClassCount::default()], Some(&[5, 6, 7]));
        let mut bytes = Vec::new();
        summary.emit(&mut bytes);
        assert_eq!(Summary::parse(&bytes), Ok(summary));
        for len in 0..bytes.len() {
            assert!(Summary::parse(&bytes[..len]).is_err(), "{len}");
        }
    }
}
