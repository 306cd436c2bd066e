//! A block's summary: what the block holds, without reading it.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};
use strata_wire::KeepKind;
use zerocopy::{FromBytes, IntoBytes};

use crate::filter::{BLOOM_BYTES_MAX, Bloom, Distinct, Filter, FilterKind};
use crate::format::{ALIGNMENT, align_up};
use crate::layout::{CountBytes, SummaryHeader};

/// The largest summary, in whole multiples of [`ALIGNMENT`]: 256 classes of 4
/// granularities, the filter, and their lengths.
pub const SUMMARY_BYTES_MAX: usize = align_up(8 + 256 * 4 * 24 + BLOOM_BYTES_MAX) + ALIGNMENT;

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
        // As a file says: its checksums are no proof of who wrote it.
        self.packets = self.packets.saturating_add(other.packets);
        self.wire_bytes = self.wire_bytes.saturating_add(other.wire_bytes);
        self.logged_bytes = self.logged_bytes.saturating_add(other.logged_bytes);
    }
}

/// The summary of a block.
///
/// ```text
/// 0 counts u16 | filter u16 | bloom_len u32
/// 8 counts * (class u8, keep u8, reserved u16, packets u32, wire u64, logged u64)
///   bloom_len bytes: Bloom filter over fingerprints of flows and addresses
/// ```
///
/// The filter is a split-block one or, in older logs, a plain one; an empty one rules nothing out.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Summary {
    /// One entry per class and granularity that occurs.
    pub counts: Vec<ClassCount>,
    kind: FilterKind,
    bloom: Vec<u8>,
}

impl Summary {
    /// A summary of these counts and fingerprints, which may repeat; `None` for fingerprints means
    /// that there were too many to note.
    #[must_use]
    pub fn new(counts: Vec<ClassCount>, fingerprints: Option<&[u64]>) -> Self {
        let filter = fingerprints.map(|keys| {
            let mut distinct = Distinct::among(keys.len());
            keys.iter().for_each(|&key| distinct.add(key));
            let mut filter = Filter::for_keys(distinct.count());
            keys.iter().for_each(|&key| filter.insert(key));
            filter
        });
        Self {
            counts,
            kind: FilterKind::Split,
            bloom: filter.map_or_else(Vec::new, |filter| filter.bytes().to_vec()),
        }
    }

    /// Whether the block may hold this flow or address. If false, it does not.
    #[must_use]
    pub fn may_hold(&self, fingerprint: u64) -> bool {
        Bloom::new(self.kind, &self.bloom).may_hold(fingerprint)
    }

    /// Appends the summary to `out`.
    ///
    /// # Panics
    ///
    /// If a block has over 65,535 classes or 2^32 packets, which its header cannot have.
    pub fn emit(&self, out: &mut Vec<u8>) {
        emit(&self.counts, Bloom::new(self.kind, &self.bloom), |bytes| {
            out.extend_from_slice(bytes);
        });
    }

    /// Reads a summary.
    ///
    /// # Errors
    ///
    /// If its lengths do not add up, or a granularity is invalid.
    pub fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let (counts, bloom) = split(bytes)?;
        Ok(Self {
            counts: parsed(counts)?,
            kind: bloom.kind(),
            bloom: bloom.bytes().to_vec(),
        })
    }

    /// Reads a summary without its filter, given the bytes before that: its filter excludes
    /// nothing.
    ///
    /// # Errors
    ///
    /// As [`Summary::parse`].
    pub fn parse_counts(bytes: &[u8]) -> Result<Self, &'static str> {
        let (_, counts, rest) = parts(bytes).ok_or(LENGTHS)?;
        if !rest.is_empty() {
            return Err(LENGTHS);
        }
        Ok(Self {
            counts: parsed(counts)?,
            ..Self::default()
        })
    }
}

/// Passes on a summary's bytes, part by part.
pub(crate) fn emit(counts: &[ClassCount], bloom: Bloom<'_>, mut put: impl FnMut(&[u8])) {
    let count = u16::try_from(counts.len()).expect("256 classes, 4 granularities");
    let bloom_len = u32::try_from(bloom.bytes().len()).expect("bounded");
    let header = SummaryHeader {
        counts: count.into(),
        filter: bloom.kind().code().into(),
        bloom_len: bloom_len.into(),
    };
    put(header.as_bytes());
    for count in counts {
        let packets = u32::try_from(count.packets).expect("a block has fewer");
        let bytes = CountBytes {
            class: count.class,
            keep_code: count.keep.code(),
            reserved: 0.into(),
            packets: packets.into(),
            wire_bytes: count.wire_bytes.into(),
            logged_bytes: count.logged_bytes.into(),
        };
        put(bytes.as_bytes());
    }
    put(bloom.bytes());
}

impl<'a> Bloom<'a> {
    /// The filter in a summary's bytes.
    ///
    /// # Errors
    ///
    /// If the summary's lengths do not add up, or its filter is of an unknown kind.
    pub fn of(summary: &'a [u8]) -> Result<Self, &'static str> {
        split(summary).map(|(_, bloom)| bloom)
    }
}

/// The counts of a summary, and its filter.
fn split(summary: &[u8]) -> Result<(&[CountBytes], Bloom<'_>), &'static str> {
    let (header, counts, bloom) = parts(summary).ok_or(LENGTHS)?;
    let kind = header.filter.get();
    let kind = FilterKind::of_code(kind).ok_or("the summary's filter is of an unknown kind")?;
    let is_right = bloom.len() == header.bloom_len.get() as usize;
    if !is_right || !bloom.len().is_multiple_of(kind.line_bytes()) {
        return Err(LENGTHS);
    }
    Ok((counts, Bloom::new(kind, bloom)))
}

/// Header and counts of a summary, and what follows them.
fn parts(summary: &[u8]) -> Option<(&SummaryHeader, &[CountBytes], &[u8])> {
    let (header, rest) = SummaryHeader::ref_from_prefix(summary).ok()?;
    let counts = usize::from(header.counts.get());
    let (counts, rest) = <[CountBytes]>::ref_from_prefix_with_elems(rest, counts).ok()?;
    Some((header, counts, rest))
}

fn parsed(counts: &[CountBytes]) -> Result<Vec<ClassCount>, &'static str> {
    let counts = counts.iter().map(|count| {
        Ok(ClassCount {
            class: count.class,
            keep: KeepKind::try_from(count.keep_code)?,
            packets: count.packets.get().into(),
            wire_bytes: count.wire_bytes.get(),
            logged_bytes: count.logged_bytes.get(),
        })
    });
    counts.collect()
}

const LENGTHS: &str = "the summary's lengths do not add up";

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
            assert!(wrong < 300, "{wrong} of 10,000 with {keys} keys");
        }
    }

    #[test]
    fn without_fingerprints_everything_may_be_there() {
        assert!(Summary::new(Vec::new(), None).may_hold(12));
    }

    #[test]
    fn counts_that_no_block_has_add_up_to_the_most_there_is() {
        let count = ClassCount {
            wire_bytes: u64::MAX,
            logged_bytes: u64::MAX - 1,
            ..ClassCount::default()
        };
        let mut sum = count;
        sum += &count;
        assert_eq!((sum.wire_bytes, sum.logged_bytes), (u64::MAX, u64::MAX));
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
