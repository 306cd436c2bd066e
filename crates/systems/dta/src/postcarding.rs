//! Postcarding: what every hop of a path says of a flow, in one place (paper §4, figure 5).
//!
//! ```text
//! chunk, of a power of two bytes (5 hops: 32)
//!  0 hops * slot u32, little-endian: checksum(key, hop) XOR g(value), cut to the slot's bits;
//!                                    g(blank) where a hop did not say anything
//! .. slot u32: checksum(key, hops) XOR the extent of the path ([`Extent`])
//! .. zeros
//! ```
//!
//! The translator gathers the postcards of a flow in a [`Cache`] row, and writes N chunks once the
//! path is complete, when another flow needs the row, or after a while. Who asks decodes the
//! chunks with the inverse of g, and believes a chunk if every slot decodes. The paper's chunks have
//! no extent: a path of three hops and one of five whose last two reports were lost look the same.

mod cache;

use std::collections::HashMap;

use strata_wire::exact;

use crate::hash::{KeyHash, KeyHasher, REDUNDANCY_MAX};
use crate::sink::{CHUNK_LEN_MAX, Origin, SLOT_LEN, Sink};

pub use crate::sink::{Extent, Merge};
pub use cache::{Cache, CacheCounters};

/// Maximum number of hops of a path.
pub const HOPS_MAX: usize = 8;
/// Rows of the translator's cache (paper §5.2).
pub const CACHE_ROWS: usize = 32 * 1024;

const _: () = assert!((HOPS_MAX + 1) * SLOT_LEN <= CHUNK_LEN_MAX);

/// The memory of values that are too large for readers to try, so that readers can decode them: each is a little-endian
/// word of 8 bytes, the value plus 2^32, in order from the front; 0 ends the values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dictionary {
    /// The start of its memory.
    pub at: u64,
    /// Maximum number of values.
    pub len: u32,
    /// Readers try all values up to this one; larger values are written into the dictionary.
    pub above: u32,
}

impl Dictionary {
    /// The bytes of a value.
    #[must_use]
    pub fn word(value: u32) -> [u8; 8] {
        (1 << 32 | u64::from(value)).to_le_bytes()
    }

    /// The value of a word; `None` after the last one.
    #[must_use]
    pub fn value(word: [u8; 8]) -> Option<u32> {
        let [a, b, c, d, 1, 0, 0, 0] = word else {
            return None;
        };
        Some(u32::from_le_bytes([a, b, c, d]))
    }

    /// The place of its `n`th value.
    #[must_use]
    pub fn place(&self, n: u32) -> u64 {
        self.at.wrapping_add(u64::from(n).wrapping_mul(8))
    }
}

/// The position and shape of the chunks in the memory: the same at translator and collector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Postcarding {
    base: u64,
    chunks: u32,
    hops: u8,
    slot_bits: u32,
    redundancy: u8,
    hasher: KeyHasher,
    dictionary: Option<Dictionary>,
}

/// The values that the hops of a path have reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Path {
    values: [Option<u32>; HOPS_MAX],
    extent: Extent,
}

impl Path {
    /// The values by hop, from 0; `None` for a hop that has not reported.
    #[must_use]
    pub fn values(&self) -> &[Option<u32>; HOPS_MAX] {
        &self.values
    }

    /// Its length, as far as known.
    #[must_use]
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// Whether these are all hops of the path of one packet.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let known = self.values.iter().flatten().count();
        let leading = self.values.iter().take_while(|value| value.is_some());
        let extent = self.extent;
        let is_certain = extent.is_len_known && !extent.is_mixed && !extent.is_contradicted;
        is_certain && known == usize::from(extent.hops) && leading.count() == known
    }

    /// Both copies of the path together, of which one may know more; `None` if they contradict each
    /// other.
    fn joined(self, other: Self) -> Option<Self> {
        if self == other {
            return Some(self);
        }
        let mut values = self.values;
        for (value, also) in values.iter_mut().zip(other.values) {
            if value.is_some() && also.is_some() && *value != also {
                return None;
            }
            *value = value.or(also);
        }
        let extent = self.extent.after(other.extent);
        Some(Self { values, extent })
    }
}

/// The inverse of g: all values that hops may report, by their code.
#[derive(Clone, Debug)]
pub struct Values {
    by_code: HashMap<u32, Decoded>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Decoded {
    Value(u32),
    Blank,
    /// Several values have this code.
    Ambiguous,
}

impl Values {
    /// The table of these values for a store.
    #[must_use]
    pub fn new(store: &Postcarding, values: impl IntoIterator<Item = u32>) -> Self {
        let by_code = HashMap::from([(store.code(None), Decoded::Blank)]);
        let mut all = Self { by_code };
        for value in values {
            all.add(store, value);
        }
        all
    }

    /// Adds a value that hops may report.
    pub fn add(&mut self, store: &Postcarding, value: u32) {
        self.by_code
            .entry(store.code(Some(value)))
            .and_modify(|known| {
                if *known != Decoded::Value(value) {
                    *known = Decoded::Ambiguous;
                }
            })
            .or_insert(Decoded::Value(value));
    }

    /// Codes that several values (or a value and the blank) share: paths with one have no answer.
    /// With few bits there are many.
    #[must_use]
    pub fn ambiguous(&self) -> usize {
        let codes = self.by_code.values();
        codes.filter(|&&code| code == Decoded::Ambiguous).count()
    }
}

impl Postcarding {
    /// A store of `chunks` chunks for paths of up to `hops` hops, each written `redundancy` times,
    /// with `slot_bits` bits of each slot in use, at `base` of the memory.
    ///
    /// # Panics
    ///
    /// If hops are not 2 to 8, bits not 1 to 32, copies not 1 to 4, or there is no chunk.
    #[must_use]
    pub fn new(
        base: u64,
        chunks: u32,
        hops: u8,
        slot_bits: u32,
        redundancy: u8,
        hasher: KeyHasher,
    ) -> Self {
        assert!(chunks > 0, "a store has chunks");
        // A chunk of one hop would have 8 bytes, which are written in an order other than that of longer ones.
        assert!((2..=HOPS_MAX).contains(&usize::from(hops)), "hops");
        assert!((1..=32).contains(&slot_bits), "slot bits");
        assert!((1..=REDUNDANCY_MAX).contains(&redundancy), "redundancy");
        assert!(base.is_multiple_of(64), "stores begin at cache lines");
        Self {
            base,
            chunks,
            hops,
            slot_bits,
            redundancy,
            hasher,
            dictionary: None,
        }
    }

    /// The same store, which writes large values into a dictionary.
    #[must_use]
    pub fn with_dictionary(self, dictionary: Dictionary) -> Self {
        Self {
            dictionary: Some(dictionary),
            ..self
        }
    }

    /// The same store, `bytes` bytes further in the memory: that of another generation.
    ///
    /// # Panics
    ///
    /// If that is not a multiple of 64.
    #[must_use]
    pub fn shifted(self, bytes: u64) -> Self {
        assert!(bytes.is_multiple_of(64), "stores begin at cache lines");
        Self {
            base: self.base.wrapping_add(bytes),
            ..self
        }
    }

    /// Bytes from one chunk to the next: a power of two, so that none crosses a cache line. (The
    /// published programs pad 20 bytes to 32 too.)
    #[inline]
    #[must_use]
    pub fn chunk_len(&self) -> usize {
        self.used_len().next_power_of_two()
    }

    /// Bytes of a chunk that mean something.
    #[inline]
    fn used_len(&self) -> usize {
        usize::from(self.hops)
            .wrapping_add(1)
            .wrapping_mul(SLOT_LEN)
    }

    /// Bytes of memory.
    #[must_use]
    pub fn memory_len(&self) -> u64 {
        u64::from(self.chunks).wrapping_mul(self.chunk_len() as u64)
    }

    /// Hops of a path.
    #[must_use]
    pub fn hops(&self) -> u8 {
        self.hops
    }

    /// The number of chunks that a path is written to.
    #[must_use]
    pub fn redundancy(&self) -> u8 {
        self.redundancy
    }

    #[inline]
    fn mask(&self) -> u32 {
        // 1 to 32 bits.
        u32::MAX.wrapping_shr(u32::BITS.wrapping_sub(self.slot_bits))
    }

    #[inline]
    fn code(&self, value: Option<u32>) -> u32 {
        self.hasher.value(value) & self.mask()
    }

    #[inline(always)]
    fn at(&self, key: KeyHash, n: u8) -> u64 {
        let offset = key
            .place(n, self.chunks)
            .wrapping_mul(self.chunk_len() as u64);
        self.base.wrapping_add(offset)
    }

    /// Writes the chunks of a path: values by hop, where bit `hop` of `reported` is set. Other hops become blanks; with
    /// `merges`, they keep their values if the chunk already holds the same key.
    #[allow(clippy::too_many_arguments, reason = "a path, and how it is written")]
    #[inline(always)]
    fn emit<S: Sink>(
        &self,
        key: KeyHash,
        values: &[u32; HOPS_MAX],
        reported: u8,
        extent: Extent,
        merges: bool,
        origins: &[Origin],
        sink: &mut S,
    ) {
        let mut chunk = [0; CHUNK_LEN_MAX];
        let slots = chunk.as_chunks_mut().0.iter_mut();
        for ((slot, value), hop) in slots.zip(values).zip(0..self.hops) {
            let value = Some(*value).filter(|_| reported >> hop & 1 == 1);
            *slot = (key.hop_checksum(hop) & self.mask() ^ self.code(value)).to_le_bytes();
        }
        let extent_slot = self.extent_checksum(key) ^ u32::from(extent.byte());
        let at = usize::from(self.hops).wrapping_mul(SLOT_LEN);
        chunk[at..][..SLOT_LEN].copy_from_slice(&extent_slot.to_le_bytes());
        let chunk = &chunk[..self.chunk_len()];
        let last = self.redundancy.wrapping_sub(1);
        for n in 0..self.redundancy {
            let (at, origins) = (self.at(key, n), if n == last { origins } else { &[] });
            match merges {
                false => sink.write(at, chunk, origins),
                true => {
                    let mut known = u16::from(reported) | 1 << self.hops;
                    if extent.is_len_known && extent.hops < self.hops {
                        // Nothing is after the end.
                        known |= u16::MAX.unbounded_shl(extent.hops.into());
                    }
                    sink.merge(
                        at,
                        chunk,
                        Merge {
                            known,
                            last: self.hops,
                            extent,
                        },
                        origins,
                    );
                }
            }
        }
    }

    #[inline(always)]
    fn extent_checksum(&self, key: KeyHash) -> u32 {
        key.hop_checksum(self.hops) & self.mask()
    }

    /// Asks for the lines of memory that a query will read.
    #[inline]
    pub fn prefetch(&self, memory: &[u8], key: KeyHash) {
        for n in 0..self.redundancy {
            let at = exact::<usize>(self.at(key, n));
            strata_wire::prefetch(memory, at);
        }
    }

    /// The path of a key; `None` if no chunk is valid, or valid ones contradict each other.
    ///
    /// A chunk is valid if each of its slots decodes to a value or the blank, and the last one to an
    /// extent. Blanks may stand between values: a row that had to make way early has such, and
    /// equations (5) to (8) count all (|V| + 1)^B combinations as valid anyway.
    ///
    /// # Panics
    ///
    /// If the memory ends before the store.
    #[must_use]
    pub fn get(&self, memory: &[u8], key: KeyHash, values: &Values) -> Option<Path> {
        let mut found = None;
        for n in 0..self.redundancy {
            let start = exact::<usize>(self.at(key, n));
            let chunk = &memory[start..][..self.used_len()];
            let Some(path) = self.decode(chunk, key, values) else {
                continue;
            };
            found = match found {
                None => Some(path),
                Some(other) => Some(path.joined(other)?),
            };
        }
        found
    }

    fn decode(&self, chunk: &[u8], key: KeyHash, values: &Values) -> Option<Path> {
        let (slots, extent) = chunk.split_last_chunk::<SLOT_LEN>()?;
        let extent = u32::from_le_bytes(*extent) ^ self.extent_checksum(key);
        let mut path = Path {
            extent: Extent::of(u8::try_from(extent).ok()?),
            ..Path::default()
        };
        for (hop, slot) in (0..self.hops).zip(slots.chunks_exact(SLOT_LEN)) {
            let slot = u32::from_le_bytes(slot.try_into().expect("a slot has 4 bytes"));
            let code = slot ^ (key.hop_checksum(hop) & self.mask());
            path.values[usize::from(hop)] = match values.by_code.get(&code)? {
                Decoded::Value(value) => Some(*value),
                Decoded::Blank => None,
                Decoded::Ambiguous => return None,
            };
        }
        // A chunk without any value is never written.
        path.values.iter().any(Option::is_some).then_some(path)
    }
}

#[cfg(test)]
mod tests;
