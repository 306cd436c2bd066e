//! Postcarding: what every hop of a path says of a flow, in one place (paper §4, figure 5).
//!
//! ```text
//! chunk, of a power of two bytes (5 hops: 32)
//!  0 hops * slot u32, little-endian: checksum(key, hop) XOR g(value), cut to the slot's bits;
//!                                    g(blank) where a hop did not say anything
//! .. zeros
//! ```
//!
//! The translator gathers the postcards of a flow in a [`Cache`] row, and writes N chunks once the
//! path is complete, when another flow needs the row, or after a while. Who asks decodes the
//! chunks with the inverse of g, and believes a chunk if every slot decodes.

mod cache;

use std::collections::HashMap;

use strata_wire::exact;

use crate::hash::{KeyHash, KeyHasher, REDUNDANCY_MAX};
use crate::sink::{Origin, Sink};

pub use cache::{Cache, CacheCounters};

/// Hops of a path at most.
pub const HOPS_MAX: usize = 8;
/// Rows of the translator's cache (paper §5.2).
pub const CACHE_ROWS: usize = 32 * 1024;

const SLOT_LEN: usize = 4;
const CHUNK_LEN_MAX: usize = HOPS_MAX * SLOT_LEN;

/// Where the chunks lie and what they hold: the same at translator and collector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Postcarding {
    base: u64,
    chunks: u32,
    hops: u8,
    slot_bits: u32,
    redundancy: u8,
    hasher: KeyHasher,
}

/// What the hops of a path said, as far as they did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Path {
    values: [Option<u32>; HOPS_MAX],
}

impl Path {
    /// By hop, from 0; `None` where nothing was reported.
    #[must_use]
    pub fn values(&self) -> &[Option<u32>; HOPS_MAX] {
        &self.values
    }

    /// The values, if they are those of the first hops, without a gap.
    pub fn whole(&self) -> Option<impl Iterator<Item = u32> + '_> {
        let len = self.values.iter().take_while(|v| v.is_some()).count();
        let has_gap = self.values[len..].iter().any(Option::is_some);
        (!has_gap).then(|| self.values.iter().flatten().copied())
    }
}

/// The inverse of g: all values that hops may report, by their code.
#[derive(Clone, Debug)]
pub struct Values {
    by_code: HashMap<u32, Decoded>,
    ambiguous: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Decoded {
    Value(u32),
    Blank,
    /// Several have this code.
    Ambiguous,
}

impl Values {
    /// The table of these values for a store.
    #[must_use]
    pub fn new(store: &Postcarding, values: impl IntoIterator<Item = u32>) -> Self {
        let mut by_code = HashMap::new();
        by_code.insert(store.code(None), Decoded::Blank);
        for value in values {
            by_code
                .entry(store.code(Some(value)))
                .and_modify(|known| {
                    if *known != Decoded::Value(value) {
                        *known = Decoded::Ambiguous;
                    }
                })
                .or_insert(Decoded::Value(value));
        }
        let codes = by_code.values();
        let ambiguous = codes.filter(|&&code| code == Decoded::Ambiguous).count();
        Self { by_code, ambiguous }
    }

    /// Codes that several values (or a value and the blank) share: paths with one have no answer.
    /// With few bits there are many.
    #[must_use]
    pub fn ambiguous(&self) -> usize {
        self.ambiguous
    }
}

impl Postcarding {
    /// A store of `chunks` chunks for paths of up to `hops` hops, each written `redundancy` times,
    /// with `slot_bits` bits of each slot in use, at `base` of the memory.
    ///
    /// # Panics
    ///
    /// If hops are not 1 to 8, bits not 1 to 32, copies not 1 to 4, or there is no chunk.
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
        assert!((1..=HOPS_MAX).contains(&usize::from(hops)), "hops");
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
        let len = usize::from(self.hops).wrapping_mul(SLOT_LEN);
        len.next_power_of_two()
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

    /// Chunks that a path is written to.
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

    /// Writes the chunks of a path: values by hop, where bit `hop` of `reported` is set.
    fn emit<S: Sink>(
        &self,
        key: KeyHash,
        values: &[u32; HOPS_MAX],
        reported: u8,
        origins: &[Origin],
        sink: &mut S,
    ) {
        let mut chunk = [0; CHUNK_LEN_MAX];
        for hop in 0..self.hops {
            let index = usize::from(hop);
            let value = (reported >> hop & 1 == 1).then_some(values[index]);
            let slot = (key.hop_checksum(hop) & self.mask()) ^ self.code(value);
            let at = index.wrapping_mul(SLOT_LEN);
            chunk[at..][..SLOT_LEN].copy_from_slice(&slot.to_le_bytes());
        }
        let chunk = &chunk[..self.chunk_len()];
        let last = self.redundancy.wrapping_sub(1);
        for n in 0..last {
            sink.write(self.at(key, n), chunk, &[]);
        }
        sink.write(self.at(key, last), chunk, origins);
    }

    /// Asks for the lines of memory that a query will read.
    #[inline]
    pub fn prefetch(&self, memory: &[u8], key: KeyHash) {
        for n in 0..self.redundancy {
            let at = exact::<usize>(self.at(key, n));
            strata_wire::prefetch(memory, at);
        }
    }

    /// The path of a key; `None` if no chunk is valid, or valid ones differ.
    ///
    /// A chunk is valid if each of its slots decodes to a value or the blank. Blanks may stand
    /// between values: a row that had to make way early has such, and equations (5) to (8) count
    /// all (|V| + 1)^B combinations as valid anyway.
    ///
    /// # Panics
    ///
    /// If the memory ends before the store.
    #[must_use]
    pub fn get(&self, memory: &[u8], key: KeyHash, values: &Values) -> Option<Path> {
        let mut found = None;
        for n in 0..self.redundancy {
            let start = exact::<usize>(self.at(key, n));
            let len = usize::from(self.hops).wrapping_mul(SLOT_LEN);
            let chunk = &memory[start..][..len];
            let Some(path) = self.decode(chunk, key, values) else {
                continue;
            };
            match found {
                None => found = Some(path),
                Some(other) if other == path => {}
                Some(_) => return None,
            }
        }
        found
    }

    fn decode(&self, chunk: &[u8], key: KeyHash, values: &Values) -> Option<Path> {
        let mut path = Path::default();
        for (hop, slot) in (0..self.hops).zip(chunk.chunks_exact(SLOT_LEN)) {
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
mod tests {
    use super::*;
    use crate::protocol::Refusal;
    use crate::sink::Local;

    const SWITCHES: std::ops::Range<u32> = 100..1100;

    fn hasher() -> KeyHasher {
        KeyHasher::new([7, 8])
    }

    fn key(n: u32) -> KeyHash {
        hasher().hash(&n.to_be_bytes())
    }

    struct World {
        store: Postcarding,
        cache: Cache,
        memory: Vec<u8>,
    }

    impl World {
        fn new(rows: usize, redundancy: u8) -> Self {
            let store = Postcarding::new(64, 1 << 14, 5, 32, redundancy, hasher());
            Self {
                cache: Cache::new(store, rows, false),
                memory: vec![0; 64 + usize::try_from(store.memory_len()).unwrap()],
                store,
            }
        }

        fn put(
            &mut self,
            n: u32,
            hop: u8,
            path_len: Option<u8>,
            value: u32,
        ) -> Result<(), Refusal> {
            let mut sinks = [Local::new(&mut self.memory)];
            self.cache
                .put(key(n), hop, path_len, value, Origin(0), 5, &mut sinks)
                .map(|_| ())
        }

        fn expire(&mut self, before_ns: u64) {
            let rows = self.cache.rows();
            let mut sinks = [Local::new(&mut self.memory)];
            self.cache.expire(before_ns, rows, &mut sinks);
        }

        fn path(&self, n: u32) -> Option<Vec<Option<u32>>> {
            let values = Values::new(&self.store, SWITCHES);
            assert_eq!(values.ambiguous(), 0);
            let path = self.store.get(&self.memory, key(n), &values)?;
            Some(path.values()[..5].to_vec())
        }
    }

    #[test]
    fn a_path_is_written_once_all_hops_have_reported_in_any_order() {
        for redundancy in 1..=4 {
            let mut world = World::new(64, redundancy);
            for hop in [3, 0, 4, 1, 2] {
                assert_eq!(world.path(1), None);
                world.put(1, hop, None, 200 + u32::from(hop)).unwrap();
            }
            let expected = (200..205).map(Some).collect();
            assert_eq!(world.path(1), Some(expected));
            assert_eq!(world.path(2), None);
            let counters = world.cache.counters();
            assert_eq!((counters.complete, counters.held), (1, 0));
        }
    }

    #[test]
    fn a_shorter_path_is_written_when_it_is_complete_with_blanks_after_it() {
        let mut world = World::new(64, 2);
        world.put(1, 0, Some(2), 300).unwrap();
        world.put(1, 1, Some(2), 301).unwrap();
        let expected = vec![Some(300), Some(301), None, None, None];
        assert_eq!(world.path(1), Some(expected));
        assert_eq!(world.put(1, 2, Some(2), 1), Err(Refusal::Hop));
        assert_eq!(world.put(1, 5, None, 1), Err(Refusal::Hop));
        assert_eq!(world.put(1, 0, Some(6), 1), Err(Refusal::PathLen));
        assert_eq!(world.put(1, 0, Some(0), 1), Err(Refusal::PathLen));
    }

    #[test]
    fn another_flow_or_the_time_writes_a_row_early() {
        let mut world = World::new(1, 1);
        world.put(1, 1, None, 111).unwrap();
        world.put(1, 3, None, 113).unwrap();
        assert_eq!(world.cache.victim(key(2)), Some(key(1)));
        world.put(2, 0, None, 120).unwrap();
        let partial = vec![None, Some(111), None, Some(113), None];
        assert_eq!(world.path(1), Some(partial));
        world.expire(5);
        assert_eq!(world.path(2), None, "not old enough");
        world.expire(6);
        assert_eq!(world.path(2), Some(vec![Some(120), None, None, None, None]));
        let counters = world.cache.counters();
        assert_eq!((counters.collided, counters.aged, counters.held), (1, 1, 0));
        assert_eq!(counters.postcards, 3);
    }

    #[test]
    fn a_hop_that_reports_again_takes_the_place_of_its_first_postcard() {
        let mut world = World::new(64, 1);
        for (hop, value) in [(0, 100), (0, 101), (1, 102)] {
            world.put(1, hop, Some(2), value).unwrap();
        }
        let expected = vec![Some(101), Some(102), None, None, None];
        assert_eq!(world.path(1), Some(expected));
        assert_eq!(world.cache.counters().superseded, 1);
    }

    #[test]
    fn values_that_share_a_code_are_never_guessed() {
        let store = Postcarding::new(0, 16, 2, 4, 1, hasher());
        let values = Values::new(&store, 0..1000);
        assert_eq!(values.ambiguous(), 16, "1000 values in 4 bits");
        let mut memory = vec![0; usize::try_from(store.memory_len()).unwrap()];
        let mut cache = Cache::new(store, 1, false);
        for hop in 0..2 {
            let mut sinks = [Local::new(&mut memory)];
            cache
                .put(key(1), hop, None, 1, Origin(0), 0, &mut sinks)
                .unwrap();
        }
        assert_eq!(store.get(&memory, key(1), &values), None);
    }
}
