//! Unified space search with uniflow caching (USS; Trident §3.3 and its appendix), the fast path:
//! for any set of rules, one lookup in one hash table.
//!
//! A uniflow is a set of packets that no rule tells apart and that is a product of one set per
//! field: here of one class per field ([`crate::classes`]), the largest such product. Uniflows do
//! not overlap, and each has one answer; so an answer that the slow path found for a packet may be
//! cached for the packet's whole uniflow.
//!
//! The cache is emptied when the rules change, so it only has answers of one rule set.

use strata_wire::{AddressFamily, mix64};

use crate::classes::{FieldClasses, Value};
use crate::packet::{Field, PacketFields};
use crate::region::Span;
use crate::rule::{AnswerId, Rule};
use crate::tss::{LengthSet, Lengths};

/// Ways of a set of the cache.
const WAYS: usize = 6;

/// The classes of every field.
#[derive(Clone, Debug)]
pub struct Uniflows {
    source_v4: FieldClasses<u32>,
    destination_v4: FieldClasses<u32>,
    source_v6: FieldClasses<u128>,
    destination_v6: FieldClasses<u128>,
    source_port: FieldClasses<u16>,
    destination_port: FieldClasses<u16>,
    vlan: FieldClasses<u16>,
    protocol: [u8; 256],
    protocol_lengths: Box<[LengthSet; 256]>,
    /// A class is named by its smallest value.
    interface: [u8; 256],
}

/// Identifies a uniflow: source and destination class; and the classes of the other fields, never
/// 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct UniflowKey([u64; 2]);

impl Uniflows {
    /// The uniflows of some rules.
    #[must_use]
    pub fn new(rules: &[Rule]) -> Self {
        let spans = |field: Field| -> Vec<Span> {
            let of_field = rules.iter().filter(|rule| rule.region.tests(field));
            of_field.map(|rule| rule.region.span(field)).collect()
        };
        let addresses = |field: Field, family: u128| -> Vec<Span> {
            let of_family = rules.iter().filter(|rule| {
                rule.region.tests(field) && rule.region.span(Field::Family) == Span::one(family)
            });
            of_family.map(|rule| rule.region.span(field)).collect()
        };
        Self {
            source_v4: FieldClasses::new(&addresses(Field::Source, 4), 128),
            destination_v4: FieldClasses::new(&addresses(Field::Destination, 4), 128),
            source_v6: FieldClasses::new(&addresses(Field::Source, 6), 128),
            destination_v6: FieldClasses::new(&addresses(Field::Destination, 6), 128),
            source_port: FieldClasses::new(&spans(Field::SourcePort), 16),
            destination_port: FieldClasses::new(&spans(Field::DestinationPort), 16),
            vlan: FieldClasses::new(&spans(Field::Vlan), 16),
            protocol: byte_classes(&spans(Field::Protocol)),
            protocol_lengths: byte_lengths(&spans(Field::Protocol)),
            interface: byte_classes(&spans(Field::Interface)),
        }
    }

    /// Whether rules test neither addresses nor ports of IPv4 packets.
    pub(crate) fn is_v4_by_protocol(&self) -> bool {
        let (source, destination) = (&self.source_v4, &self.destination_v4);
        let (from, to) = (&self.source_port, &self.destination_port);
        source.is_one() && destination.is_one() && from.is_one() && to.is_one()
    }

    /// The uniflow of a packet.
    #[inline]
    #[must_use]
    #[allow(clippy::cast_possible_truncation)]
    pub fn key(&self, packet: &PacketFields) -> UniflowKey {
        let (source, destination) = match packet.family {
            AddressFamily::Ipv4 => (
                self.source_v4.class(packet.source as u32),
                self.destination_v4.class(packet.destination as u32),
            ),
            AddressFamily::Ipv6 => (
                self.source_v6.class(packet.source),
                self.destination_v6.class(packet.destination),
            ),
            AddressFamily::Mac => (0, 0),
        };
        let ports = u64::from(self.source_port.class(packet.source_port))
            | u64::from(self.destination_port.class(packet.destination_port)) << 16;
        let small = u64::from(self.protocol[usize::from(packet.protocol)])
            | u64::from(self.interface[usize::from(packet.interface)]) << 8;
        let vlan = u64::from(self.vlan.class(packet.vlan));
        // Families are 0, 4 and 6, so their lowest bit is free for "not empty".
        let family = packet.family as u64 | 1;
        UniflowKey([
            u64::from(source) | u64::from(destination) << 32,
            ports | small << 32 | vlan << 48 | family << 61,
        ])
    }

    /// Which lengths the prefixes of matching rules can have.
    #[allow(clippy::cast_possible_truncation)]
    pub(crate) fn lengths(&self, packet: &PacketFields) -> Lengths {
        let (source, destination) = match packet.family {
            AddressFamily::Ipv4 => (
                class_lengths(&self.source_v4, packet.source as u32),
                class_lengths(&self.destination_v4, packet.destination as u32),
            ),
            AddressFamily::Ipv6 => (
                class_lengths(&self.source_v6, packet.source),
                class_lengths(&self.destination_v6, packet.destination),
            ),
            AddressFamily::Mac => Default::default(),
        };
        Lengths([
            source,
            destination,
            class_lengths(&self.source_port, packet.source_port),
            class_lengths(&self.destination_port, packet.destination_port),
            self.protocol_lengths[usize::from(packet.protocol)],
        ])
    }

    /// How many headers of source, destination, ports and protocol a packet's uniflow contains, of
    /// the same family, VLAN and interface.
    #[must_use]
    #[allow(clippy::cast_possible_truncation)]
    pub fn size(&self, packet: &PacketFields) -> f64 {
        let addresses = match packet.family {
            AddressFamily::Ipv4 => {
                let (source, destination) = (&self.source_v4, &self.destination_v4);
                source.size(source.class(packet.source as u32))
                    * destination.size(destination.class(packet.destination as u32))
            }
            AddressFamily::Ipv6 => {
                let (source, destination) = (&self.source_v6, &self.destination_v6);
                source.size(source.class(packet.source))
                    * destination.size(destination.class(packet.destination))
            }
            AddressFamily::Mac => 1.0,
        };
        let port = |classes: &FieldClasses<u16>, port| classes.size(classes.class(port));
        let class = self.protocol[usize::from(packet.protocol)];
        let protocols = self
            .protocol
            .iter()
            .filter(|&&other| other == class)
            .count();
        #[allow(clippy::cast_precision_loss)]
        let protocols = protocols as f64;
        addresses
            * port(&self.source_port, packet.source_port)
            * port(&self.destination_port, packet.destination_port)
            * protocols
    }

    /// Bytes of memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        [
            size_of::<Self>(),
            self.source_v4.bytes(),
            self.destination_v4.bytes(),
            self.source_v6.bytes(),
            self.destination_v6.bytes(),
            self.source_port.bytes(),
            self.destination_port.bytes(),
            self.vlan.bytes(),
        ]
        .iter()
        .sum()
    }
}

fn class_lengths<T: Value>(classes: &FieldClasses<T>, value: T) -> LengthSet {
    classes.lengths(classes.class(value))
}

/// For each of 256 values, the lengths of the prefixes of spans that may contain it.
fn byte_lengths(spans: &[Span]) -> Box<[LengthSet; 256]> {
    let mut lengths = Box::new([LengthSet::default(); 256]);
    let mut distinct = spans.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    for span in distinct {
        let of_span = LengthSet::of(span, 8);
        let held = (0..256).filter(|&value| span.contains(value as u128));
        held.for_each(|value| lengths[value].extend(of_span));
    }
    lengths
}

/// The class of each of 256 values.
fn byte_classes(spans: &[Span]) -> [u8; 256] {
    let mut classes = [0; 256];
    // Thousands of rules test few different values.
    let mut spans = spans.to_vec();
    spans.sort_unstable();
    spans.dedup();
    let holds = |value: u8| spans.iter().map(move |span| span.contains(value.into()));
    let mut distinct: Vec<u8> = Vec::new();
    for value in 0..=u8::MAX {
        let known = distinct
            .iter()
            .find(|&&first| holds(first).eq(holds(value)));
        classes[usize::from(value)] = known.copied().unwrap_or(value);
        if known.is_none() {
            distinct.push(value);
        }
    }
    classes
}

/// Uniflows that share two cache lines, which the processor fetches together: keys, answers, which
/// ways were hit since they were last examined (a bit each), and the next to examine.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
struct Set {
    keys: [UniflowKey; WAYS],
    answers: [u32; WAYS],
    hit: u32,
    hand: u32,
}

const _: () = assert!(size_of::<Set>() == 128);

impl Set {
    const EMPTY: Self = Self {
        keys: [UniflowKey([0; 2]); WAYS],
        answers: [0; WAYS],
        hit: 0,
        hand: 0,
    };

    /// A bit for each way that holds `key`: at most one.
    #[inline(always)]
    fn ways_with(&self, key: UniflowKey) -> u32 {
        // Branchless: the way cannot be predicted.
        let mut ways = 0;
        for (way, held) in self.keys.iter().enumerate() {
            let differs = (held.0[0] ^ key.0[0]) | (held.0[1] ^ key.0[1]);
            ways |= u32::from(differs == 0) << way;
        }
        ways
    }
}

/// The way after this one, in a circle.
fn next_way(way: u32) -> u32 {
    #[allow(clippy::cast_possible_truncation, reason = "6")]
    const LAST: u32 = WAYS as u32 - 1;
    if way >= LAST { 0 } else { way.wrapping_add(1) }
}

/// A bounded cache of uniflows. When a set is full, its next uniflow that was not hit since the
/// last round is evicted (second chance).
#[derive(Clone, Debug)]
pub struct UniflowCache {
    sets: Vec<Set>,
    seeds: [u64; 2],
}

impl UniflowCache {
    /// A cache of this many uniflows, at least 6, rounded down to a multiple of 6. `seed`
    /// determines which of them share a set.
    #[must_use]
    pub fn new(entries: usize, seed: u64) -> Self {
        Self {
            sets: vec![Set::EMPTY; (entries / WAYS).max(1)],
            seeds: [mix64(seed), mix64(!seed)],
        }
    }

    #[inline(always)]
    #[allow(clippy::cast_possible_truncation)]
    fn set(&self, key: UniflowKey) -> usize {
        let [a, b] = key.0;
        // Products of 64 bits each.
        let product = u128::from(a ^ self.seeds[0]).wrapping_mul(u128::from(b ^ self.seeds[1]));
        let folded = (product as u64) ^ (product >> 64) as u64;
        // A second round: classes are small numbers, which one product spreads badly.
        let spread = folded.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (u128::from(spread).wrapping_mul(self.sets.len() as u128) >> 64) as usize
    }

    /// The cached answer of a uniflow.
    #[inline(always)]
    pub fn get(&mut self, key: UniflowKey) -> Option<AnswerId> {
        let number = self.set(key);
        let set = &mut self.sets[number];
        let way = set.ways_with(key);
        if way == 0 {
            return None;
        }
        if set.hit & way == 0 {
            set.hit |= way;
        }
        Some(AnswerId(set.answers[way.trailing_zeros() as usize % WAYS]))
    }

    /// Caches an answer.
    #[allow(clippy::cast_possible_truncation)]
    pub fn insert(&mut self, key: UniflowKey, answer: AnswerId) {
        let number = self.set(key);
        let set = &mut self.sets[number];
        let empty = UniflowKey::default();
        let present = set.keys.iter().position(|&k| k == key || k == empty);
        let way = present.unwrap_or_else(|| {
            // Each step clears a bit, so a place is found in the second round at the latest.
            while set.hit & 1 << set.hand != 0 {
                set.hit &= !(1 << set.hand);
                set.hand = next_way(set.hand);
            }
            let way = set.hand;
            set.hand = next_way(way);
            way as usize
        });
        set.keys[way] = key;
        set.answers[way] = answer.0;
        set.hit &= !(1 << way);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.sets.fill(Set::EMPTY);
    }

    /// How many uniflows fit.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.sets.len().saturating_mul(WAYS)
    }
}
