//! How many values can still be read: a sample of those that were written, read once a second, next
//! to what the paper's formula expects (equation 1).
//!
//! The sample is one of 1,024 values, each written since the start with the same probability
//! (reservoir sampling, Vitter 1985, algorithm R), one report of a datagram at most.

use strata_dta::KeyHash;
use strata_dta::protocol::DATA_LEN_MAX;
use strata_dta::theory::Bounds;
use strata_wire::{exact, mix64};

use crate::store::plan::BITS;

/// Maximum bytes of a slot: a checksum and 64 bytes, and the next power of two.
const SLOT_LEN_MAX: usize = 128;
const CHECKSUM_LEN: usize = 4;
/// Values in the sample.
const WITNESSES: usize = 1024;

/// A value that was written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Witness {
    key: KeyHash,
    redundancy: u8,
    data: [u8; DATA_LEN_MAX],
    data_len: u8,
    /// Writes of values before it.
    writes: u64,
}

impl Witness {
    /// This value.
    ///
    /// # Panics
    ///
    /// If it has more than 64 bytes: the protocol has no such.
    pub(crate) fn new(key: KeyHash, redundancy: u8, value: &[u8], writes: u64) -> Self {
        let mut data = [0; DATA_LEN_MAX];
        data[..value.len()].copy_from_slice(value);
        Self {
            key,
            redundancy,
            data,
            data_len: exact::<u8>(value.len()),
            writes,
        }
    }

    /// What the memory has of its key.
    pub(crate) fn find(
        &self,
        slots: &Slots,
        read: &mut impl FnMut(u64, &mut [u8]),
    ) -> Option<Found> {
        let mut found = None;
        for n in 0..self.redundancy {
            let at = slots.at + self.key.place(n, slots.count) * slots.len as u64;
            let mut slot = [0; SLOT_LEN_MAX];
            read(at, &mut slot[..slots.len]);
            if slot[..CHECKSUM_LEN] != self.key.checksum(BITS).to_le_bytes() {
                continue;
            }
            if slot[CHECKSUM_LEN..].starts_with(self.data()) {
                return Some(Found::Same);
            }
            found = Some(Found::Other);
        }
        found
    }

    /// Its bytes.
    fn data(&self) -> &[u8] {
        &self.data[..usize::from(self.data_len)]
    }
}

/// Where values lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slots {
    /// The first one.
    pub(crate) at: u64,
    /// How many there are.
    pub(crate) count: u32,
    /// Bytes of each.
    pub(crate) len: usize,
}

/// What the memory has of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// The value.
    Same,
    /// Another one only.
    Other,
}

/// What became of the sample.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Estimate {
    /// Values in it.
    pub(crate) sampled: u64,
    /// Those of which the memory has an answer.
    pub(crate) answered: u64,
    /// Of these, those with another value, which was written for the key since (or, rarely, for
    /// another key).
    pub(crate) changed: u64,
    /// How many answers the formula expects, at least: as if each write since were of another key.
    pub(crate) expected: f64,
}

/// The sample.
#[derive(Debug, Default)]
pub(crate) struct Witnesses {
    sample: Vec<Witness>,
    /// Datagrams that were considered.
    considered: u64,
}

impl Witnesses {
    /// Considers another datagram: the place of its report in the sample, if it has one.
    #[inline]
    pub(crate) fn place(&mut self) -> Option<usize> {
        let before = self.considered;
        self.considered += 1;
        let place = match before < WITNESSES as u64 {
            true => before,
            false => mix64(before) % self.considered,
        };
        (place < WITNESSES as u64).then(|| exact(place))
    }

    /// Puts a value into the sample, at the place that it was given (or, where those before it were
    /// not put, at the end).
    pub(crate) fn put(&mut self, place: usize, witness: Witness) {
        match self.sample.get_mut(place) {
            Some(there) => *there = witness,
            None => self.sample.push(witness),
        }
    }

    /// Asks for all of them, after a number of writes of values. `read` gets bytes of the memory.
    pub(crate) fn ask(
        &self,
        slots: &Slots,
        writes: u64,
        mut read: impl FnMut(u64, &mut [u8]),
    ) -> Estimate {
        let mut estimate = Estimate::default();
        for witness in &self.sample {
            let found = witness.find(slots, &mut read);
            estimate.sampled += 1;
            estimate.answered += u64::from(found.is_some());
            estimate.changed += u64::from(found == Some(Found::Other));
            #[allow(clippy::cast_precision_loss, reason = "an estimate need not be exact")]
            let since = (writes - witness.writes) as f64;
            // The formula multiplies its load by the copies.
            let load = since / f64::from(slots.count) / f64::from(witness.redundancy);
            let bounds = Bounds::key_write(load, witness.redundancy, BITS);
            estimate.expected += 1.0 - bounds.all_gone();
        }
        estimate
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use strata_dta::key_write::KeyWrite;
    use strata_dta::{KeyHasher, Local, Origin};

    #[test]
    fn the_sample_answers_as_the_formula_says() {
        let hasher = KeyHasher::new([1, 2]);
        let store = KeyWrite::new(0, 20_000, 4, BITS);
        let slots = Slots {
            at: 0,
            count: 20_000,
            len: store.slot_len(),
        };
        let mut memory = vec![0; usize::try_from(store.memory_len()).unwrap()];
        let mut local = Local::new(&mut memory);
        let mut witnesses = Witnesses::default();
        let mut put = |n: u32, data: u32, local: &mut Local<&mut [u8]>| {
            let (key, data) = (hasher.hash(&n.to_be_bytes()), data.to_le_bytes());
            store.put(key, 2, &data, Origin(0), local).unwrap();
            let writes = local.operations().writes;
            if let Some(place) = witnesses.place() {
                witnesses.put(place, Witness::new(key, 2, &data, writes));
            }
        };
        for n in 0..30_000 {
            put(n, n, &mut local);
        }
        // Other values of the last keys.
        for n in 29_000..30_000 {
            put(n, 0, &mut local);
        }
        let writes = local.operations().writes;
        drop(local);
        let estimate = witnesses.ask(&slots, writes, |at, out| {
            let at = usize::try_from(at).unwrap();
            out.copy_from_slice(&memory[at..at + out.len()]);
        });
        assert_eq!(estimate.sampled, 1024);
        // A thirtieth of the sample, about.
        assert!((10..80).contains(&estimate.changed), "{estimate:?}");
        let answered = f64::from(u32::try_from(estimate.answered).unwrap()) / 1024.0;
        let expected = estimate.expected / 1024.0;
        assert!((0.3..0.9).contains(&expected), "{expected}");
        // Six standard deviations of the sample.
        assert!(
            (answered - expected).abs() < 0.09,
            "{answered} of {expected}"
        );
    }

    #[test]
    fn every_datagram_is_as_likely_in_the_sample() {
        let mut witnesses = Witnesses::default();
        let mut places = vec![None; WITNESSES];
        for n in 0..102_400_usize {
            if let Some(place) = witnesses.place() {
                places[place] = Some(n);
            }
        }
        let mut quarters = [0_u32; 4];
        for n in places.into_iter().flatten() {
            quarters[n * 4 / 102_400] += 1;
        }
        assert!(
            quarters.iter().all(|count| (176..336).contains(count)),
            "{quarters:?}"
        );
    }
}
