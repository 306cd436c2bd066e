//! Unified space search with mask arrays, as published (Trident §3.3, Algorithms 2, 4 and 5)
//! but mended, for IPv4 rules on addresses, ports and protocol.
//!
//! Mended are two faults. A prefix shorter than the X bits of a sub-space marks every
//! sub-space that it covers: else 10.0.0.0/8 marks 10.0 only, and what a packet of
//! 10.1.0.0/16 caches is found by one of 11.0.0.0/8. And a key holds the lengths of its
//! masks: else the key 10.0.0.0, cached by a packet of 10.7.0.0/16 where masks have 8 bits,
//! is found by a packet of 10.0.0.0/24 although another rule asks for 24 bits there.
//!
//! The alignment of rules (Algorithm 1, which skips dimension 0) is not needed for
//! caching.

use strata_rules::{AnswerId, Answers, Field, PacketFields, Rule};
use strata_wire::exact;

use super::{Bounded, PeerStats, Tuples};

/// The fields, their bits, and X of each: §5.
const FIELDS: [(Field, u32, u32); 5] = [
    (Field::Source, 32, 16),
    (Field::Destination, 32, 16),
    (Field::SourcePort, 16, 8),
    (Field::DestinationPort, 16, 8),
    (Field::Protocol, 8, 4),
];

/// Masked fields, and the lengths of the masks.
type Key = (u128, u32);

/// Mask arrays and a cache of uniflows before tuple space search.
#[derive(Debug)]
pub struct MaskArrays {
    /// Of each field, the longest prefix in each sub-space.
    lengths: [Vec<u8>; FIELDS.len()],
    space: Tuples,
    answers: Answers,
    cache: Bounded<Key>,
    stats: PeerStats,
    found: Vec<u32>,
}

impl MaskArrays {
    /// A cache of a number of uniflows before these rules, of a number of policies.
    #[must_use]
    pub fn new(rules: &[Rule], policies: u32, entries: usize) -> Self {
        let lengths = FIELDS.map(|(field, bits, first)| {
            let mut lengths = vec![0_u8; 1 << first];
            for rule in rules.iter().filter(|rule| rule.region.tests(field)) {
                for (value, mask) in rule.region.prefixes(field) {
                    // Of the bits of an IPv4 header.
                    let mask = mask & ((1 << bits) - 1);
                    let length = exact::<u8>(mask.count_ones());
                    let place = |value: u128| exact::<usize>(value >> (bits - first));
                    let last = value | (!mask & ((1 << bits) - 1));
                    for known in &mut lengths[place(value)..=place(last)] {
                        *known = length.max(*known);
                    }
                }
            }
            lengths
        });
        Self {
            lengths,
            space: Tuples::new(rules),
            answers: Answers::new(policies),
            cache: Bounded::new(entries),
            stats: PeerStats::default(),
            found: Vec::new(),
        }
    }

    /// What it has done so far.
    #[must_use]
    pub fn stats(&self) -> PeerStats {
        self.stats
    }

    /// The answers given so far.
    #[must_use]
    pub fn answers(&self) -> &Answers {
        &self.answers
    }

    #[inline]
    fn key(&self, packet: &PacketFields) -> Key {
        let (mut key, mut all_lengths) = (0, 0);
        for ((field, bits, first), lengths) in FIELDS.into_iter().zip(&self.lengths) {
            #[allow(clippy::cast_possible_truncation)]
            let value = packet.value(field) as u32;
            let length = lengths[(value >> (bits - first)) as usize];
            let hosts = bits - u32::from(length);
            let kept = u64::from(value) >> hosts << hosts;
            key = key << bits | u128::from(kept);
            all_lengths = all_lengths << 6 | u32::from(length);
        }
        (key, all_lengths)
    }

    /// The answer for an IPv4 packet.
    #[inline]
    pub fn classify(&mut self, packet: &PacketFields) -> AnswerId {
        let key = self.key(packet);
        self.stats.packets += 1;
        self.stats.fast_lookups += 1;
        match self.cache.get(&key) {
            Some(answer) => answer,
            None => self.miss(packet, key),
        }
    }

    #[cold]
    fn miss(&mut self, packet: &PacketFields, key: Key) -> AnswerId {
        self.stats.misses += 1;
        self.space.search(packet, &mut self.found);
        let answer = self.answers.id(&self.found);
        let fixed: u32 = (0..5).map(|field| key.1 >> (6 * field) & 63).sum();
        self.stats.entry_size_sum += 2_f64.powi(104 - fixed.cast_signed());
        self.cache.insert(key, answer);
        answer
    }
}
