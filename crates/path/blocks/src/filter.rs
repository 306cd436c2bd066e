//! Bloom filters over fingerprints of flows and addresses.

use zerocopy::IntoBytes;

/// Bits per key.
const BITS_PER_KEY: usize = 12;
/// The largest filter; blocks with more keys get a less selective one.
pub(crate) const BLOOM_BYTES_MAX: usize = 256 << 10;
/// Words of one line of a split-block filter; a key has a bit in each.
const WORDS: usize = 8;
/// A line of a split-block filter.
pub type FilterLine = [u8; size_of::<[u32; WORDS]>()];
/// Of the Parquet format's split-block Bloom filters (`BloomFilter.md`).
const SALTS: [u32; WORDS] = [
    0x47b6_137b,
    0x4497_4d91,
    0x8824_ad5b,
    0xa2b7_289d,
    0x7054_95c7,
    0x2df1_424b,
    0x9efc_4947,
    0x5c6b_fb31,
];

/// How a filter says what is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum FilterKind {
    /// Six bits in one line of 64 bytes: in blocks of form 0.
    #[default]
    Lines,
    /// A bit in each of eight words of 32 bits, as in Parquet: what is written.
    Split,
}

impl FilterKind {
    /// Its number in a summary.
    pub(crate) const fn code(self) -> u16 {
        match self {
            Self::Lines => 0,
            Self::Split => 1,
        }
    }

    pub(crate) const fn of_code(code: u16) -> Option<Self> {
        match code {
            0 => Some(Self::Lines),
            1 => Some(Self::Split),
            _ => None,
        }
    }

    /// Its length is a multiple of this.
    pub(crate) const fn line_bytes(self) -> usize {
        match self {
            Self::Lines => 64,
            Self::Split => size_of::<FilterLine>(),
        }
    }
}

/// A split-block filter being filled.
#[derive(Clone, Debug)]
pub(crate) struct Filter {
    /// Little-endian words.
    blocks: Vec<[u32; WORDS]>,
}

impl Filter {
    /// An empty filter for `keys` keys.
    pub(crate) fn for_keys(keys: usize) -> Self {
        const BLOCK_BYTES: usize = FilterKind::Split.line_bytes();
        let blocks = (keys * BITS_PER_KEY).div_ceil(8 * BLOCK_BYTES);
        Self {
            blocks: vec![[0; WORDS]; blocks.clamp(1, BLOOM_BYTES_MAX / BLOCK_BYTES)],
        }
    }

    /// Adds a key: the high half says which block, the low half which bit of each word.
    #[inline(always)]
    #[allow(
        clippy::needless_range_loop,
        reason = "the compiler makes one vector of it"
    )]
    pub(crate) fn insert(&mut self, key: u64) {
        let block = line_of(key, self.blocks.len());
        let (block, bits) = (&mut self.blocks[block], bits_of(key));
        for n in 0..WORDS {
            block[n] |= bits[n].to_le();
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.blocks.as_bytes()
    }
}

/// Which of the lines of a split-block filter is that of a key. Lines are in the order of the keys'
/// high halves.
#[inline(always)]
#[must_use]
#[allow(clippy::cast_possible_truncation, reason = "below the number of lines")]
pub fn line_of(key: u64, lines: usize) -> usize {
    (((key >> 32) * lines as u64) >> 32) as usize
}

/// Whether a key may be in a split-block filter, by its line there ([`line_of`]).
#[must_use]
pub fn line_may_hold(line: &FilterLine, key: u64) -> bool {
    let words = line.as_chunks().0.iter().copied().map(u32::from_le_bytes);
    words.zip(bits_of(key)).all(|(word, bit)| word & bit != 0)
}

#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "the low half")]
#[allow(
    clippy::needless_range_loop,
    reason = "the compiler makes one vector of it"
)]
fn bits_of(key: u64) -> [u32; WORDS] {
    let key = key as u32;
    let mut bits = [0; WORDS];
    for n in 0..WORDS {
        bits[n] = 1_u32.wrapping_shl(key.wrapping_mul(SALTS[n]) >> 27);
    }
    bits
}

/// Counts distinct fingerprints, about, by linear counting (Whang, Vander-Zanden and Taylor 1990) of a
/// sample of them: exact enough to size a filter.
pub(crate) struct Distinct {
    /// Bits that are 0 in a fingerprint of the sample.
    others: u64,
    taken: Vec<u64>,
    shift: u32,
}

impl Distinct {
    /// Above this number of fingerprints, they are sampled.
    const MANY: usize = 1024;
    /// One in this number is sampled.
    const SAMPLED: u64 = 8;

    /// Nothing yet; there will be at most `count`.
    pub(crate) fn among(count: usize) -> Self {
        let is_sampled = count > Self::MANY;
        let counted = if is_sampled { count / 8 } else { count };
        // Eight times as many bits as fingerprints, so that few share one.
        let places = (8 * counted).next_power_of_two().max(64);
        Self {
            others: if is_sampled { Self::SAMPLED - 1 } else { 0 },
            taken: vec![0; places / 64],
            shift: u64::BITS - places.trailing_zeros(),
        }
    }

    #[inline(always)]
    #[allow(
        clippy::cast_possible_truncation,
        reason = "below the number of places"
    )]
    pub(crate) fn add(&mut self, key: u64) {
        if key & self.others == 0 {
            let place = (key >> self.shift) as usize;
            self.taken[place / 64] |= 1 << (place % 64);
        }
    }

    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss
    )]
    pub(crate) fn count(&self) -> usize {
        let taken: u32 = self.taken.iter().map(|word| word.count_ones()).sum();
        let places = 64.0 * self.taken.len() as f64;
        // Were all places taken, there could be any number.
        let taken = f64::from(taken).min(places - 1.0);
        let counted = -places * (-taken / places).ln_1p();
        (counted * (self.others + 1) as f64).round() as usize
    }
}

/// The filter of a summary.
#[derive(Clone, Copy, Debug)]
pub struct Bloom<'a> {
    kind: FilterKind,
    bytes: &'a [u8],
}

impl<'a> Bloom<'a> {
    pub(crate) fn new(kind: FilterKind, bytes: &'a [u8]) -> Self {
        Self { kind, bytes }
    }

    pub(crate) fn kind(self) -> FilterKind {
        self.kind
    }

    pub(crate) fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// See [`Summary::may_hold`](crate::Summary::may_hold).
    #[must_use]
    pub fn may_hold(self, fingerprint: u64) -> bool {
        match self.kind {
            FilterKind::Lines => lines_may_hold(self.bytes, fingerprint),
            FilterKind::Split => split_may_hold(self.bytes.as_chunks().0, fingerprint),
        }
    }

    /// Its lines, if it is a split-block filter.
    #[must_use]
    pub fn lines(self) -> Option<&'a [FilterLine]> {
        (self.kind == FilterKind::Split).then_some(self.bytes.as_chunks().0)
    }
}

fn split_may_hold(lines: &[FilterLine], key: u64) -> bool {
    // An empty filter has no lines.
    let line = lines.get(line_of(key, lines.len()));
    line.is_none_or(|line| line_may_hold(line, key))
}

/// The line of a key by its high half; its bits in that line by double hashing of the low half
/// (Kirsch and Mitzenmacher).
#[allow(clippy::cast_possible_truncation)]
fn lines_may_hold(bytes: &[u8], key: u64) -> bool {
    const LINE_BYTES: usize = FilterKind::Lines.line_bytes();
    const PROBES: u64 = 6;
    let (lines, _) = bytes.as_chunks::<LINE_BYTES>();
    let line = (u128::from(key) * lines.len() as u128) >> 64;
    let step = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 | 1;
    // An empty filter has no lines.
    let line = lines.get(line as usize);
    line.is_none_or(|line| {
        (0..PROBES).all(|n| {
            let bit = (key & 0xffff_ffff).wrapping_add(n * step) as usize % (8 * LINE_BYTES);
            line[bit / 8] & 1 << (bit % 8) != 0
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    use strata_wire::mix64;

    /// A filter as logs of form 0 have it, by its description in `docs/formats/block-file.md`.
    fn lines(keys: &[u64], lines: usize) -> Vec<u8> {
        let mut bytes = vec![0; 64 * lines];
        for &key in keys {
            let line = usize::try_from((u128::from(key) * lines as u128) >> 64).unwrap();
            let h = u128::from(key) % (1 << 32);
            let s = u128::from(key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 | 1);
            for n in 0..6 {
                let bit = usize::try_from((h + n * s) % 512).unwrap();
                bytes[64 * line + bit / 8] |= 1 << (bit % 8);
            }
        }
        bytes
    }

    #[test]
    fn distinct_fingerprints_are_counted_well_enough() {
        for keys in [0_u64, 1, 7, 100, 3_000, 90_000] {
            for times in [1, 3] {
                let mut distinct = Distinct::among(usize::try_from(times * keys).unwrap());
                for n in (0..times).flat_map(|_| 0..keys) {
                    distinct.add(mix64(n + 1));
                }
                let found = distinct.count() as f64;
                let wrong = (found - keys as f64).abs();
                assert!(wrong < 2.0 + 0.12 * keys as f64, "{found} for {keys}");
            }
        }
    }

    #[test]
    fn filters_of_both_kinds_hold_what_is_in_them_and_little_else() {
        let keys: Vec<u64> = (1..3_000).map(mix64).collect();
        let mut split = Filter::for_keys(keys.len());
        keys.iter().for_each(|&key| split.insert(key));
        let old = lines(&keys, 71);
        let filters = [
            Bloom::new(FilterKind::Split, split.bytes()),
            Bloom::new(FilterKind::Lines, &old),
        ];
        for filter in filters {
            assert!(keys.iter().all(|&key| filter.may_hold(key)));
            let others = (1 << 40..(1 << 40) + 10_000).map(mix64);
            let wrong = others.filter(|&key| filter.may_hold(key)).count();
            assert!((5..150).contains(&wrong), "{wrong} of 10,000");
        }
    }
}
