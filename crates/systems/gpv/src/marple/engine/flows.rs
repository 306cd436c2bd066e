//! What queries over the same vectors share: each vector's key is taken apart once, and
//! its flow is looked up once, by all of the key; queries find their groups by the flow's number.

use std::hash::{BuildHasher, RandomState};

use strata_wire::{AddressFamily, exact, prefetch, prefetch_whole};

use super::super::fields::address_words;
use super::{BATCH, Query};
use crate::key::{Key, KeyHasher};
use crate::tuple::Tuple;
use crate::vector::Grouped;

/// A flow that has no number.
pub(super) const UNNUMBERED: u32 = u32::MAX;
/// Flows that have numbers at once, so that a number and a tag are an entry of the index.
const FLOWS_MAX: u32 = 1 << 18;
const NUMBER_BITS: u32 = FLOWS_MAX.ilog2();
/// No flow in the index.
const NONE: u32 = u32::MAX;

/// What all packets of a vector have in common: source (high, low), destination (high, low),
/// ports, protocol, ingress, switch.
pub(super) type FixedWords = [u64; 9];

/// A flow that has a number.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Flow {
    key: Key,
    hash: u64,
    switch: u32,
}

const _: () = assert!(size_of::<Flow>() == 64);

/// Vectors that are looked at together.
#[derive(Debug)]
pub(super) struct Batch {
    /// What packets of each vector have in common.
    pub(super) words: [FixedWords; BATCH],
    /// The number of each vector's flow.
    pub(super) flows: [u32; BATCH],
    /// Numbers are of this generation.
    pub(super) generation: u64,
}

impl Batch {
    /// Vectors of flows without numbers.
    pub(super) fn unnumbered() -> Self {
        Self {
            words: [[0; 9]; BATCH],
            flows: [UNNUMBERED; BATCH],
            generation: 0,
        }
    }

    #[inline(always)]
    pub(super) fn read<T, G: Grouped<T>>(&mut self, switch: u32, groups: &[G]) {
        for (words, group) in self.words.iter_mut().zip(groups) {
            *words = fixed_words(group.key(), switch);
        }
    }
}

/// The flows that vectors were of lately. Queries over the same vectors share it:
/// each remembers the groups of a flow by its number, and looks for a key only when it is new.
///
/// Memory: 64 bytes a flow and 8 to 16 of its index, of at most 262,144 flows; then all are
/// forgotten, which costs a look-up for each that is still there. A query takes 4 bytes a flow for
/// each of its `groupby`, of as many flows as it may have groups.
#[derive(Debug)]
pub struct Flows {
    hasher: KeyHasher,
    /// Tag, then number; a power of two of places, at most half of which are taken.
    index: Vec<u32>,
    flows: Vec<Flow>,
    max: u32,
    batch: Box<Batch>,
}

impl Default for Flows {
    fn default() -> Self {
        Self::new()
    }
}

impl Flows {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self::of_at_most(FLOWS_MAX)
    }

    /// Empty, with at most `max` flows at once.
    fn of_at_most(max: u32) -> Self {
        assert!(max as usize > BATCH, "a batch of new flows needs room");
        let mut batch = Box::new(Batch::unnumbered());
        // Those of no generation have no numbers.
        batch.generation = RandomState::new().hash_one(0) | 1;
        Self {
            hasher: KeyHasher::new(RandomState::new().hash_one(1)),
            index: vec![NONE; 64],
            flows: Vec::new(),
            max,
            batch,
        }
    }

    /// Asks all queries of vectors or records, of a switch with this number, one vector after the
    /// other. Faster than each query by itself; one alone has no other to share with.
    pub fn ask<T: Tuple, G: Grouped<T>>(
        &mut self,
        switch: u32,
        groups: &[G],
        queries: &mut [&mut Query],
    ) {
        if let [alone] = queries {
            alone.take_all(switch, groups);
            return;
        }
        for groups in groups.chunks(BATCH) {
            self.number(switch, groups);
            for query in queries.iter_mut() {
                query.take_batch(&self.batch, groups);
            }
        }
    }

    /// Finds the numbers of vectors' flows.
    fn number<T: Tuple, G: Grouped<T>>(&mut self, switch: u32, groups: &[G]) {
        self.batch.read(switch, groups);
        if self.flows.len().wrapping_add(groups.len()) >= self.max as usize {
            self.flows.clear();
            self.index.fill(NONE);
            self.batch.generation = self.batch.generation.wrapping_add(2);
        }
        let mut hashes = [0; BATCH];
        for (hash, group) in hashes.iter_mut().zip(groups) {
            let of_switch = u64::from(switch).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            *hash = self.hasher.hash(group.key()) ^ of_switch;
            prefetch(&self.index, self.place(*hash));
        }
        for &hash in &hashes[..groups.len()] {
            let entry = self.index[self.place(hash)];
            if entry != NONE {
                prefetch_whole(&self.flows, number_of(entry) as usize);
            }
        }
        for (at, group) in groups.iter().enumerate() {
            let key = group.key();
            self.batch.flows[at] = match key.family() {
                AddressFamily::Mac => UNNUMBERED,
                _ => self.find(key, switch, hashes[at]),
            };
        }
    }

    #[inline(always)]
    fn find(&mut self, key: &Key, switch: u32, hash: u64) -> u32 {
        let mask = self.index.len().wrapping_sub(1);
        let mut at = self.place(hash);
        while self.index[at] != NONE {
            let entry = self.index[at];
            if tag_of(entry) == tag_of(low_half(hash)) {
                let flow = &self.flows[number_of(entry) as usize];
                if flow.key == *key && flow.switch == switch {
                    return number_of(entry);
                }
            }
            at = at.wrapping_add(1) & mask;
        }
        let number: u32 = exact(self.flows.len());
        self.index[at] = entry_of(hash, number);
        self.flows.push(Flow {
            key: *key,
            hash,
            switch,
        });
        if self.flows.len().wrapping_mul(2) > self.index.len() {
            self.grow();
        }
        number
    }

    #[cold]
    fn grow(&mut self) {
        let mask = self.index.len().wrapping_mul(2).wrapping_sub(1);
        self.index = vec![NONE; mask.wrapping_add(1)];
        for (number, flow) in (0..).zip(&self.flows) {
            let mut at = self.place(flow.hash);
            while self.index[at] != NONE {
                at = at.wrapping_add(1) & mask;
            }
            self.index[at] = entry_of(flow.hash, number);
        }
    }

    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "less than the places")]
    fn place(&self, hash: u64) -> usize {
        (hash >> 32) as usize & self.index.len().wrapping_sub(1)
    }
}

#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "the low half is meant")]
fn low_half(hash: u64) -> u32 {
    hash as u32
}

/// Never [`NONE`]: the last number is not given.
#[inline(always)]
fn entry_of(hash: u64, number: u32) -> u32 {
    low_half(hash) >> NUMBER_BITS << NUMBER_BITS | number
}

#[inline(always)]
fn tag_of(entry: u32) -> u32 {
    entry >> NUMBER_BITS
}

#[inline(always)]
fn number_of(entry: u32) -> u32 {
    entry & (FLOWS_MAX - 1)
}

#[inline(always)]
pub(super) fn fixed_words(key: &Key, switch: u32) -> FixedWords {
    let family = key.family() as u8;
    let (source, destination) = (key.source(), key.destination());
    let [source_high, source_low] = address_words(source.address, family);
    let [destination_high, destination_low] = address_words(destination.address, family);
    [
        source_high,
        source_low,
        destination_high,
        destination_low,
        source.port.into(),
        destination.port.into(),
        key.protocol().into(),
        key.ingress().into(),
        switch.into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::marple::{Limits, SHIPPED, compile};
    use crate::{Cache, Full, Packet, Parameters, Vector};
    use strata_testkit::sim::{self, Rng};
    use strata_wire::Endpoint;

    /// Packets of a few hundred flows, some of them not IP, and two of hosts that share a flow.
    fn packets(rng: &mut Rng) -> Vec<Packet> {
        let mut ts_ns = 0;
        let mut packet = || {
            let flow = rng.below(300);
            let end = |n: u64| Endpoint {
                address: u128::from(n % 50),
                port: exact(n % 2),
            };
            let family = match flow % 7 {
                0 => AddressFamily::Mac,
                1 => AddressFamily::Ipv6,
                _ => AddressFamily::Ipv4,
            };
            ts_ns += rng.below(20_000_000);
            Packet {
                key: Key::new(family, 6, end(flow), end(flow * 3), 0),
                ts_ns,
                size: 60,
                payload_len: exact(rng.below(3)),
                tcp_seq: exact(rng.below(4)),
                ..Packet::default()
            }
        };
        (0..4000).map(|_| packet()).collect()
    }

    struct Kept {
        switch: u32,
        key: Key,
        start_ns: u64,
        tuples: Vec<Full>,
    }

    fn vectors(rng: &mut Rng) -> Vec<Kept> {
        let parameters = Parameters {
            slots: 64,
            ..Parameters::PAPER
        };
        let mut cache = Cache::<Full>::new(parameters, 1).expect("a cache");
        let (packets, mut kept) = (packets(rng), Vec::new());
        let mut keep = |vector: &Vector<'_, Full>| {
            kept.push(Kept {
                switch: 0,
                key: vector.key,
                start_ns: vector.start_ns,
                tuples: vector.tuples().copied().collect(),
            });
        };
        cache.push(&packets, &mut keep);
        cache.flush(&mut keep);
        kept.iter_mut()
            .for_each(|kept| kept.switch = exact(rng.below(2)));
        kept
    }

    fn queries(limits: Limits) -> Vec<Query> {
        let query = |shipped: &crate::marple::Shipped| {
            let program = compile(shipped.text, shipped.parameters).expect("a shipped query");
            Query::new::<Full>(program, limits).expect("full tuples have it all")
        };
        SHIPPED.iter().map(query).collect()
    }

    #[test]
    fn queries_that_share_flows_answer_as_each_alone() {
        sim::seeds(40, |seed| {
            let mut rng = Rng::new(seed);
            let limits = Limits {
                groups_max: exact(1 + rng.below(400)),
                ..Limits::default()
            };
            let (mut alone, mut together) = (queries(limits), queries(limits));
            // Few, so that all are forgotten again and again.
            let mut flows = Flows::of_at_most(exact(40 + rng.below(300)));
            let kept = vectors(&mut rng);
            let mut rest = &kept[..];
            while !rest.is_empty() {
                let switch = rest[0].switch;
                let most = usize::try_from(1 + rng.below(80)).expect("few");
                let end = rest.iter().take(most);
                let (these, after) =
                    rest.split_at(end.take_while(|kept| kept.switch == switch).count());
                fn vector(kept: &Kept) -> Vector<'_, Full> {
                    Vector {
                        key: kept.key,
                        start_ns: kept.start_ns,
                        pieces: [&kept.tuples, &[]],
                        reason: crate::Reason::Full,
                        saturated: false,
                        slot: 0,
                    }
                }
                let these: Vec<_> = these.iter().map(vector).collect();
                for query in &mut alone {
                    these.iter().for_each(|vector| query.take(switch, vector));
                }
                // Some do not see all.
                if rng.below(10) == 0 {
                    flows.ask(
                        switch,
                        &these,
                        &mut together[..4].iter_mut().collect::<Vec<_>>(),
                    );
                    flows.ask(
                        switch,
                        &these,
                        &mut together[4..].iter_mut().collect::<Vec<_>>(),
                    );
                } else {
                    flows.ask(switch, &these, &mut together.iter_mut().collect::<Vec<_>>());
                }
                rest = after;
            }
            for (alone, together) in alone.iter_mut().zip(&mut together) {
                assert_eq!(alone.counters(), together.counters(), "seed {seed}");
                assert_eq!(alone.answer(), together.answer(), "seed {seed}");
            }
        });
    }
}
