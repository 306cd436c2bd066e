//! Key-Increment: counters of a key, as a Count-Min sketch (paper §4, algorithms 5 and 6;
//! Cormode and Muthukrishnan 2005).
//!
//! ```text
//! counter u64, in the byte order of the collector's CPU, which does the additions
//! ```
//!
//! A counter stops at 2^64 - 1 if the translator has the memory itself. A NIC's addition (FETCH_ADD of IBTA) is modulo
//! 2^64 and cannot stop: there, a counter wraps if its sum reaches 2^64. [`INCREMENT_MAX`] keeps that beyond what
//! reporters count.
//!
//! Counters are 8 bytes apart. (Algorithm 5 has a stride of 4, for atomic operations of 8 bytes:
//! neighbours would overlap, and every other one would be refused as misaligned.)

use strata_wire::exact;

use crate::hash::{KeyHash, KeyHasher, REDUNDANCY_MAX};
use crate::protocol::{Refusal, packed};
use crate::sink::{Addition, Origin, Sink};

pub mod largest;

const COUNTER_LEN: u64 = 8;

/// The largest increment of a report: in bytes, more than a link of 400 Gbit/s carries in 16 days. A larger one is a
/// mistake of its reporter, such as a negative difference, and would wrap a counter behind a NIC within a few reports.
pub const INCREMENT_MAX: u64 = 1 << 56;

/// The position of the counters in the memory: the same at translator and collector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyIncrement {
    base: u64,
    counters: u32,
    redundancy: u8,
}

/// The count of a key according to its counters: never less than the sum that was added, and rarely much more. A sum
/// of 2^64 and more is 2^64 - 1, or behind a NIC modulo 2^64.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Count {
    /// The smallest of the key's counters.
    pub at_most: u64,
    /// The bound may exceed the sum by this number; `doubt` is the probability that it exceeds it by more.
    pub excess_max: f64,
    /// Probability that the excess is larger.
    pub doubt: f64,
}

impl KeyIncrement {
    /// A sketch of `counters` counters, of which every key has at least `redundancy`, at `base`
    /// of the memory.
    ///
    /// # Panics
    ///
    /// If there are no counters, or the redundancy is not 1 to 4.
    #[must_use]
    pub fn new(base: u64, counters: u32, redundancy: u8) -> Self {
        assert!(counters > 0, "a sketch has counters");
        assert!((1..=REDUNDANCY_MAX).contains(&redundancy), "redundancy");
        assert!(base.is_multiple_of(64), "stores begin at cache lines");
        Self {
            base,
            counters,
            redundancy,
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

    /// Bytes of memory.
    #[must_use]
    pub fn memory_len(&self) -> u64 {
        u64::from(self.counters).wrapping_mul(COUNTER_LEN)
    }

    /// Maximum number of additions for a report.
    #[inline]
    #[must_use]
    pub fn operations(&self, redundancy: u8) -> u8 {
        redundancy.clamp(self.redundancy, REDUNDANCY_MAX)
    }

    /// Where the counter of this number lies.
    #[inline(always)]
    fn place(&self, number: u64) -> u64 {
        self.base.wrapping_add(number.wrapping_mul(COUNTER_LEN))
    }

    #[inline(always)]
    fn at(&self, key: KeyHash, n: u8) -> u64 {
        self.place(key.place(n, self.counters))
    }

    /// The position of a key's first counter.
    #[must_use]
    pub fn place_of(&self, key: KeyHash) -> u64 {
        self.at(key, 0)
    }

    /// The operations of a report: an addition to each of the key's counters; the key is given by its bytes and their
    /// hash. A report with a smaller redundancy than the sketch's is raised to it, since a counter that some reports
    /// leave out would be too small; where two of a key's counters are the same one, it is added to once.
    ///
    /// # Errors
    ///
    /// [`Refusal::Redundancy`], [`Refusal::Increment`].
    #[inline(always)]
    pub fn add<S: Sink>(
        &self,
        key: (&[u8], KeyHash),
        redundancy: u8,
        counter: u64,
        origin: Origin,
        sink: &mut S,
    ) -> Result<(), Refusal> {
        if redundancy == 0 {
            return Err(Refusal::Redundancy);
        }
        if counter > INCREMENT_MAX {
            return Err(Refusal::Increment);
        }
        match (self.redundancy, self.operations(redundancy)) {
            (1, 1) => sink.count(&self.one(key, counter), origin),
            (2, 2) => sink.count(&self.two(key, counter), origin),
            (_, copies) => self.add_copies(key, copies, counter, origin, sink),
        }
        Ok(())
    }

    /// The addition of a report with one copy, to a sketch with one.
    #[inline(always)]
    fn one<'a>(&self, (bytes, key): (&'a [u8], KeyHash), counter: u64) -> Addition<'a> {
        Addition {
            key: bytes,
            places: [self.at(key, 0); REDUNDANCY_MAX as usize],
            places_len: 1,
            add: counter,
        }
    }

    /// That of a report with two copies, to a sketch with two.
    #[inline(always)]
    fn two<'a>(&self, (bytes, key): (&'a [u8], KeyHash), counter: u64) -> Addition<'a> {
        let [first, second] = [self.at(key, 0), self.at(key, 1)];
        Addition {
            key: bytes,
            places: [first, second, first, first],
            places_len: if first == second { 1 } else { 2 },
            add: counter,
        }
    }

    /// The operations of a report with any number of copies, to a sketch with any number.
    #[inline(never)]
    fn add_copies<S: Sink>(
        &self,
        (bytes, key): (&[u8], KeyHash),
        copies: u8,
        counter: u64,
        origin: Origin,
        sink: &mut S,
    ) {
        let mut addition = self.one((bytes, key), counter);
        let mut all: usize = 1;
        for n in 1..copies {
            let at = self.at(key, n);
            if addition.places[..all].contains(&at) {
                continue;
            }
            addition.places[all] = at;
            all = all.wrapping_add(1);
            if n < self.redundancy {
                addition.places_len = addition.places_len.wrapping_add(1);
            } else {
                // A counter that a query does not ask.
                sink.fetch_add(at, counter, &[]);
            }
        }
        sink.count(&addition, origin);
    }

    /// [`KeyIncrement::add`] of each report of a datagram, to a sink that has room for them. Returns the number of
    /// reports that were refused because of their increment.
    ///
    /// # Errors
    ///
    /// [`Refusal::Redundancy`]: all are refused.
    #[inline(never)]
    pub(crate) fn add_all<S: Sink>(
        &self,
        hasher: &KeyHasher,
        packet: &packed::Packet<'_>,
        origin: Origin,
        sink: &mut S,
    ) -> Result<u64, Refusal> {
        let (redundancy, key_len) = (packet.redundancy(), packet.key_len());
        let mut refused: u64 = 0;
        if key_len == 4 && redundancy > 0 {
            let reports = packet.body().as_chunks::<12>().0;
            let reports = reports.iter().map(|&[a, b, c, d, counter @ ..]| {
                let key = [a, b, c, d];
                (key, hasher.hash4(key), u64::from_be_bytes(counter))
            });
            let reports = reports.filter(|&(_, _, add)| {
                // Not more than a datagram has.
                refused = refused.wrapping_add(u64::from(add > INCREMENT_MAX));
                add <= INCREMENT_MAX
            });
            // What depends on the copies is decided once.
            match (self.redundancy, self.operations(redundancy)) {
                (1, 1) => reports
                    .for_each(|(key, hash, add)| sink.count(&self.one((&key, hash), add), origin)),
                (2, 2) => reports
                    .for_each(|(key, hash, add)| sink.count(&self.two((&key, hash), add), origin)),
                (_, copies) => reports.for_each(|(key, hash, add)| {
                    self.add_copies((&key, hash), copies, add, origin, sink);
                }),
            }
            return Ok(refused);
        }
        for report in packet.body().chunks_exact(packet.report_len()) {
            let (key, counter) = report.split_last_chunk().expect("a report has a counter");
            let counter = u64::from_be_bytes(*counter);
            let key = (key, hasher.hash(key));
            match self.add(key, redundancy, counter, origin, sink) {
                Err(Refusal::Increment) => refused = refused.wrapping_add(1),
                added => added?,
            }
        }
        Ok(refused)
    }

    /// Asks for the lines of memory that a query will read.
    #[inline]
    pub fn prefetch(&self, memory: &[u8], key: KeyHash) {
        for n in 0..self.redundancy {
            let at = exact::<usize>(self.at(key, n));
            strata_wire::prefetch(memory, at);
        }
    }

    #[inline]
    fn counter(memory: &[u8], at: u64) -> u64 {
        let start = exact::<usize>(at);
        let bytes = memory[start..].first_chunk();
        u64::from_ne_bytes(*bytes.expect("the memory holds the store"))
    }

    /// Upper bound of the sum that was added for a key: the smallest of its counters.
    ///
    /// # Panics
    ///
    /// If the memory ends before the sketch.
    #[inline]
    #[must_use]
    pub fn get(&self, memory: &[u8], key: KeyHash) -> u64 {
        let counters = (0..self.redundancy).map(|n| Self::counter(memory, self.at(key, n)));
        counters.min().expect("a key has a counter")
    }

    /// [`KeyIncrement::get`] with its bound: of all that was added (`sum`, of
    /// [`KeyIncrement::sum`]), a counter gets `sum / counters` from others on average, so more than
    /// e times that with probability 1/e at most, and all N do with e^-N.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a bound need not be exact")]
    pub fn get_bounded(&self, memory: &[u8], key: KeyHash, sum: u64) -> Count {
        let mean = sum as f64 / f64::from(self.counters);
        Count {
            at_most: self.get(memory, key),
            excess_max: std::f64::consts::E * mean,
            doubt: (-f64::from(self.redundancy)).exp(),
        }
    }

    /// Sum of all counters, saturating. Reads the whole sketch.
    ///
    /// # Panics
    ///
    /// If the memory ends before the sketch.
    #[must_use]
    pub fn sum(&self, memory: &[u8]) -> u64 {
        let places = (0..u64::from(self.counters)).map(|n| self.place(n));
        places.fold(0, |sum: u64, at| {
            sum.saturating_add(Self::counter(memory, at))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::Local;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn key(n: u32) -> KeyHash {
        KeyHasher::new([5, 6]).hash(&n.to_be_bytes())
    }

    fn add(sketch: &KeyIncrement, n: u32, copies: u8, add: u64, local: &mut impl Sink) -> bool {
        let key = (&n.to_be_bytes()[..], key(n));
        sketch.add(key, copies, add, Origin(0), local).is_ok()
    }

    #[test]
    fn a_key_whose_counters_coincide_is_counted_once() {
        let sketch = KeyIncrement::new(0, 2, 4);
        let mut memory = vec![0; 16];
        let mut local = Local::new(&mut memory);
        assert!(add(&sketch, 1, 1, 10, &mut local));
        drop(local);
        assert_eq!(sketch.get(&memory, key(1)), 10);
    }

    #[test]
    fn a_counter_stops_at_the_largest_number() {
        for redundancy in 1..=REDUNDANCY_MAX {
            // All copies of a report, and those beyond what a query asks.
            for copies in [1, REDUNDANCY_MAX] {
                let sketch = KeyIncrement::new(0, 100, redundancy);
                let mut memory = vec![0xff; 800];
                let mut local = Local::new(&mut memory);
                assert!(add(&sketch, 1, copies, 5, &mut local));
                drop(local);
                assert_eq!(sketch.get(&memory, key(1)), u64::MAX);
                assert_eq!(memory, [0xff; 800]);
            }
        }
    }

    #[test]
    fn increments_that_no_link_carries_are_refused() {
        let sketch = KeyIncrement::new(0, 100, 2);
        let mut memory = vec![0; 800];
        let mut local = Local::new(&mut memory);
        let key = (&[1, 2, 3, 4][..], key(1));
        for (counter, expected) in [
            (INCREMENT_MAX, Ok(())),
            (INCREMENT_MAX + 1, Err(Refusal::Increment)),
            // A difference of -1.
            (u64::MAX, Err(Refusal::Increment)),
        ] {
            let added = sketch.add(key, 2, counter, Origin(0), &mut local);
            assert_eq!(added, expected, "{counter:#x}");
        }
        drop(local);
        assert_eq!(sketch.get(&memory, key.1), INCREMENT_MAX);
    }

    proptest! {
        /// Never less than the truth, and the mean excess is what the load makes it.
        #[test]
        fn never_less_than_was_added(
            reports in prop::collection::vec((0_u32..200, 0_u8..6, 0_u64..1000), 1..400),
            redundancy in 1_u8..5,
        ) {
            let sketch = KeyIncrement::new(0, 512, redundancy);
            let mut memory = vec![0; 4096];
            let mut local = Local::new(&mut memory);
            let mut exact = HashMap::<u32, u64>::new();
            for &(n, copies, more) in &reports {
                let added = add(&sketch, n, copies, more, &mut local);
                prop_assert_eq!(added, copies > 0);
                if copies > 0 {
                    *exact.entry(n).or_default() += more;
                }
            }
            drop(local);
            let sum = sketch.sum(&memory);
            let mut beyond = 0;
            for (&n, &truth) in &exact {
                let count = sketch.get_bounded(&memory, key(n), sum);
                prop_assert!(count.at_most >= truth);
                #[allow(clippy::cast_precision_loss)]
                let excess = (count.at_most - truth) as f64;
                beyond += usize::from(excess > count.excess_max);
            }
            // Far above what the bound allows on average.
            prop_assert!(beyond <= 3 + exact.len() / 2, "{} of {}", beyond, exact.len());
        }
    }
}
