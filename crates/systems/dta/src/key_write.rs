//! Key-Write: a value where its key says (paper §4, algorithms 1 and 2).
//!
//! ```text
//! slot, of a power of two bytes up to 64, else of a multiple of 64
//!  0 checksum u32, little-endian: of the key; 0 if the slot was never written
//!  4 data, padded with zeros
//! ```
//!
//! A report is written to N slots. Who asks for a key reads its slots and believes those that have
//! the key's checksum. A slot never crosses a cache line as long as it has up to 64 bytes.

use strata_wire::exact;

use crate::hash::{KeyHash, KeyHasher, REDUNDANCY_MAX};
use crate::protocol::{DATA_LEN_MAX, Refusal, packed};
use crate::sink::{Origin, Sink};

const CHECKSUM_LEN: usize = 4;
const SLOT_LEN_MAX: usize = 128;
/// A slot of values of 4 bytes.
const WORD_LEN: usize = 8;
const _: () = assert!(CHECKSUM_LEN + DATA_LEN_MAX <= SLOT_LEN_MAX);

/// The position and shape of the slots in the memory: the same at translator and collector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyWrite {
    base: u64,
    slots: u32,
    data_len: usize,
    checksum_bits: u32,
}

/// The rule by which a query chooses among the slots that have the key's checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Agreement {
    /// The value that most of them hold; none if two are equally frequent.
    #[default]
    Plurality,
    /// The value that at least this number of copies hold, if more copies hold it than any other.
    AtLeast(u8),
    /// The value that all of them hold, if they agree: the case of equations (1) to (4).
    Unanimous,
}

impl KeyWrite {
    /// A store of `slots` slots with values of up to `data_len` bytes, at `base` of the memory.
    ///
    /// # Panics
    ///
    /// If there is no slot, values have 0 or more than 64 bytes, or checksums more than 32 bits.
    #[must_use]
    pub fn new(base: u64, slots: u32, data_len: usize, checksum_bits: u32) -> Self {
        assert!(slots > 0, "a store has slots");
        assert!((1..=DATA_LEN_MAX).contains(&data_len), "data length");
        assert!((1..=32).contains(&checksum_bits), "checksum bits");
        assert!(base.is_multiple_of(64), "stores begin at cache lines");
        Self {
            base,
            slots,
            data_len,
            checksum_bits,
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

    /// Bytes from one slot to the next.
    #[inline]
    #[must_use]
    pub fn slot_len(&self) -> usize {
        CHECKSUM_LEN.wrapping_add(self.data_len).next_power_of_two()
    }

    /// Number of slots.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Bytes of memory.
    #[must_use]
    pub fn memory_len(&self) -> u64 {
        u64::from(self.slots).wrapping_mul(self.slot_len() as u64)
    }

    #[inline(always)]
    fn at(&self, key: KeyHash, n: u8) -> u64 {
        let offset = key
            .place(n, self.slots)
            .wrapping_mul(self.slot_len() as u64);
        self.base.wrapping_add(offset)
    }

    /// The operations of a report: as many writes as its redundancy says, at most 4. (The loops of
    /// the paper's algorithms run N + 1 times: from 0 *to* N.)
    ///
    /// # Errors
    ///
    /// [`Refusal::Redundancy`], [`Refusal::DataLen`]; nothing is written then.
    #[inline(always)]
    pub fn put<S: Sink>(
        &self,
        key: KeyHash,
        redundancy: u8,
        data: &[u8],
        origin: Origin,
        sink: &mut S,
    ) -> Result<(), Refusal> {
        if redundancy == 0 {
            return Err(Refusal::Redundancy);
        }
        if data.len() > self.data_len || data.is_empty() {
            return Err(Refusal::DataLen);
        }
        let copies = redundancy.min(REDUNDANCY_MAX);
        if self.slot_len() == WORD_LEN
            && let Ok(data) = data.try_into()
        {
            self.put_word(key, copies, data, origin, sink);
            return Ok(());
        }
        let checksum = key.checksum(self.checksum_bits).to_le_bytes();
        let mut slot = [0; SLOT_LEN_MAX];
        slot[..CHECKSUM_LEN].copy_from_slice(&checksum);
        slot[CHECKSUM_LEN..][..data.len()].copy_from_slice(data);
        let slot = &slot[..self.slot_len()];
        let last = copies.wrapping_sub(1);
        for n in 0..last {
            sink.write(self.at(key, n), slot, &[]);
        }
        sink.write(self.at(key, last), slot, &[origin]);
        Ok(())
    }

    /// A report whose slot has 8 bytes and is full.
    #[inline(always)]
    fn put_word<S: Sink>(
        &self,
        key: KeyHash,
        copies: u8,
        data: [u8; 4],
        origin: Origin,
        sink: &mut S,
    ) {
        // As one word: from single bytes, the compiler puts it together one by one.
        let checksum = u64::from(key.checksum(self.checksum_bits));
        let data = u64::from(u32::from_le_bytes(data));
        let slot = (checksum | data << 32).to_le_bytes();
        let last = copies.wrapping_sub(1);
        for n in 0..last {
            sink.write_word(self.at(key, n), slot, &[]);
        }
        sink.write_word(self.at(key, last), slot, &[origin]);
    }

    /// [`KeyWrite::put`] of each report of a datagram, to a sink that has room for them.
    ///
    /// # Errors
    ///
    /// As [`KeyWrite::put`]; it is the same for all, so all are refused or none.
    #[inline(never)]
    pub(crate) fn put_all<S: Sink>(
        &self,
        hasher: &KeyHasher,
        packet: &packed::Packet<'_>,
        origin: Origin,
        sink: &mut S,
    ) -> Result<(), Refusal> {
        let (redundancy, key_len) = (packet.redundancy(), packet.key_len());
        if (key_len, packet.data_len(), self.slot_len()) == (4, 4, WORD_LEN) {
            if self.data_len < 4 {
                return Err(Refusal::DataLen);
            }
            let copies = redundancy.min(REDUNDANCY_MAX);
            for &[a, b, c, d, data @ ..] in packet.body().as_chunks::<8>().0 {
                let key = hasher.hash4([a, b, c, d]);
                self.put_word(key, copies, data, origin, sink);
            }
            return Ok(());
        }
        for report in packet.body().chunks_exact(packet.report_len()) {
            let (key, data) = report.split_at(key_len);
            self.put(hasher.hash(key), redundancy, data, origin, sink)?;
        }
        Ok(())
    }

    /// Asks for the lines of memory that a query will read, so that several queries wait together.
    #[inline]
    pub fn prefetch(&self, memory: &[u8], key: KeyHash, redundancy: u8) {
        for n in 0..redundancy {
            let at = exact::<usize>(self.at(key, n));
            strata_wire::prefetch(memory, at);
        }
    }

    /// The value of a key, from `memory`; `None` if the slots do not say. Where it is not known
    /// with how many copies a key was written, 4 is right: slots that were not written for it
    /// look overwritten.
    ///
    /// # Panics
    ///
    /// If the memory ends before the store, or the redundancy is not 1 to 4.
    #[inline]
    #[must_use]
    pub fn get<'m>(
        &self,
        memory: &'m [u8],
        key: KeyHash,
        redundancy: u8,
        agreement: Agreement,
    ) -> Option<&'m [u8]> {
        assert!((1..=REDUNDANCY_MAX).contains(&redundancy), "redundancy");
        let checksum = key.checksum(self.checksum_bits).to_le_bytes();
        // Values, and how many slots hold each.
        let mut found: [(&[u8], u8); REDUNDANCY_MAX as usize] = [(&[], 0); 4];
        let mut places = [u64::MAX; REDUNDANCY_MAX as usize];
        let mut values = 0;
        for n in 0..redundancy {
            let at = self.at(key, n);
            // One slot is one vote, even if two copies fell there.
            if places.contains(&at) {
                continue;
            }
            places[usize::from(n)] = at;
            let start = exact::<usize>(at);
            let (sum, rest) = memory[start..].split_at(CHECKSUM_LEN);
            let data = &rest[..self.data_len];
            if sum != checksum {
                continue;
            }
            match found[..values].iter_mut().find(|(value, _)| *value == data) {
                // There are 4 at most.
                Some((_, votes)) => *votes = votes.wrapping_add(1),
                None => {
                    found[values] = (data, 1);
                    values = values.wrapping_add(1);
                }
            }
        }
        let found = &found[..values];
        let &(value, votes) = found.iter().max_by_key(|(_, votes)| votes)?;
        let is_most = found.iter().filter(|(_, other)| *other == votes).count() == 1;
        let agreed = match agreement {
            Agreement::Plurality => is_most,
            Agreement::AtLeast(least) => is_most && votes >= least,
            Agreement::Unanimous => values == 1,
        };
        agreed.then_some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::{Local, Operation, Room};

    /// Remembers operations.
    #[derive(Default)]
    pub(crate) struct Noted(pub(crate) Vec<(u64, Vec<u8>)>);

    impl Sink for Noted {
        const KEEPS_ORIGINS: bool = true;
        fn room(&self, _: Operation) -> Room {
            Room::Operations(100)
        }
        fn write(&mut self, at: u64, bytes: &[u8], _: &[Origin]) {
            self.0.push((at, bytes.to_vec()));
        }
        fn fetch_add(&mut self, _: u64, _: u64, _: &[Origin]) {
            unreachable!("Key-Write does not add");
        }
    }

    fn key(n: u32) -> KeyHash {
        KeyHasher::new([5, 6]).hash(&n.to_be_bytes())
    }

    #[test]
    fn n_copies_are_n_writes_within_the_store() {
        let store = KeyWrite::new(128, 1000, 20, 32);
        assert_eq!(store.slot_len(), 32);
        for redundancy in 1..=6 {
            let mut noted = Noted::default();
            store
                .put(key(1), redundancy, &[7; 20], Origin(0), &mut noted)
                .unwrap();
            assert_eq!(noted.0.len(), usize::from(redundancy.min(4)));
            for (at, bytes) in noted.0 {
                assert_eq!(bytes.len(), 32);
                assert!(at >= 128 && at + 32 <= 128 + store.memory_len());
                assert_eq!(at % 32, 0);
                assert_eq!(bytes[..4], key(1).checksum(32).to_le_bytes());
                assert_eq!(bytes[4..], [vec![7; 20], vec![0; 8]].concat());
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_before_anything_is_written() {
        let store = KeyWrite::new(0, 10, 4, 32);
        let mut noted = Noted::default();
        let mut put =
            |redundancy, data: &[u8]| store.put(key(1), redundancy, data, Origin(0), &mut noted);
        assert_eq!(put(0, &[1; 4]), Err(Refusal::Redundancy));
        assert_eq!(put(1, &[1; 5]), Err(Refusal::DataLen));
        assert_eq!(put(1, &[]), Err(Refusal::DataLen));
        assert!(noted.0.is_empty());
    }

    #[test]
    fn values_come_back_and_keys_never_written_have_none() {
        let store = KeyWrite::new(0, 1 << 16, 4, 32);
        let mut memory = vec![0; usize::try_from(store.memory_len()).unwrap()];
        let mut local = Local::new(&mut memory);
        for n in 0..1000_u32 {
            let data = (n * 3).to_be_bytes();
            store.put(key(n), 2, &data, Origin(0), &mut local).unwrap();
        }
        drop(local);
        for n in 0..1000_u32 {
            // Without knowing how many copies there are.
            let value = store.get(&memory, key(n), 4, Agreement::Plurality);
            assert_eq!(value, Some(&(n * 3).to_be_bytes()[..]));
            assert_eq!(
                store.get(&memory, key(n + 1000), 4, Agreement::Plurality),
                None
            );
        }
    }

    #[test]
    fn votes_decide_between_values() {
        let store = KeyWrite::new(0, 1 << 20, 4, 32);
        let mut memory = vec![0; usize::try_from(store.memory_len()).unwrap()];
        let mut local = Local::new(&mut memory);
        store
            .put(key(1), 4, b"old!", Origin(0), &mut local)
            .unwrap();
        store
            .put(key(1), 1, b"new!", Origin(0), &mut local)
            .unwrap();
        drop(local);
        let get = |agreement| store.get(&memory, key(1), 4, agreement);
        assert_eq!(get(Agreement::Plurality), Some(&b"old!"[..]));
        assert_eq!(get(Agreement::AtLeast(3)), Some(&b"old!"[..]));
        assert_eq!(get(Agreement::AtLeast(4)), None);
        assert_eq!(get(Agreement::Unanimous), None);
        assert_eq!(
            store.get(&memory, key(1), 2, Agreement::Plurality),
            None,
            "one vote each"
        );
    }
}
