//! Tuple space search (TSS; Srinivasan, Suri and Varghese 1999; Trident §2), the slow path: rules
//! with the same masks in all fields, a tuple, share a hash table whose keys are the masked
//! headers. Ranges are split into prefixes.
//!
//! Tuples are searched from the highest priority down, so the search ends once no remaining tuple
//! can have a better rule. Most are skipped without a lookup (tuple pruning, §5 of the first
//! paper): where no rule's prefix of that length contains the packet's address, ports or protocol,
//! as the fast path's classes tell.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use strata_wire::exact;

use crate::packet::{Field, PacketFields};
use crate::region::{Region, Span};
use crate::rule::{Best, Rule};

/// The fields of a packet in words: source, destination, and the other fields.
type Words = [u128; 3];

/// Where a field is in [`Words`]: word and shift.
const fn place(field: Field) -> (usize, u32) {
    match field {
        Field::Source => (0, 0),
        Field::Destination => (1, 0),
        Field::SourcePort => (2, 0),
        Field::DestinationPort => (2, 16),
        Field::Protocol => (2, 32),
        Field::Family => (2, 40),
        Field::Vlan => (2, 48),
        Field::Interface => (2, 64),
    }
}

/// The fields of a packet.
#[inline]
fn words(packet: &PacketFields) -> Words {
    let mut words = [packet.source, packet.destination, 0];
    for field in Field::ALL {
        let (word, shift) = place(field);
        if word == 2 {
            words[2] |= packet.value(field) << shift;
        }
    }
    words
}

/// `words` where `mask` is set.
#[inline]
fn masked(words: &Words, mask: &Words) -> Words {
    [words[0] & mask[0], words[1] & mask[1], words[2] & mask[2]]
}

/// The rules with one mask.
#[derive(Clone, Debug)]
struct Tuple {
    mask: Words,
    priority_max: u16,
    /// Priority and policy, best first.
    entries: HashMap<Words, Vec<(u16, u32)>, FixedState>,
}

/// The tuples with the same lengths of address prefixes.
#[derive(Clone, Debug)]
struct Group {
    source: u8,
    destination: u8,
    priority_max: u16,
    /// Lengths of source port, destination port and protocol, and the tuple's number; highest
    /// priority first.
    tuples: Vec<([u8; 3], u32)>,
}

/// Prefix lengths, as bits; the empty prefix is always included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct LengthSet(u128);

impl LengthSet {
    /// The lengths of the prefixes that make up a span.
    pub(crate) fn of(span: Span, field_bits: u32) -> Self {
        let mut set = Self::default();
        for (_, mask) in span.prefixes(field_bits) {
            set.insert(mask.count_ones());
        }
        set
    }

    fn insert(&mut self, length: u32) {
        self.0 |= 1_u128.unbounded_shl(length) >> 1;
        // A length of 128 is the last bit.
        self.0 |= u128::from(length == 128) << 127;
    }

    pub(crate) fn extend(&mut self, other: Self) {
        self.0 |= other.0;
    }

    #[inline(always)]
    fn has(self, length: u8) -> bool {
        length == 0 || self.0 >> length.wrapping_sub(1) & 1 != 0
    }
}

/// How many spans have prefixes of each length, as spans are added and removed.
pub(crate) struct LengthCounts {
    counts: [u32; 128],
    set: LengthSet,
}

impl Default for LengthCounts {
    fn default() -> Self {
        Self {
            counts: [0; 128],
            set: LengthSet::default(),
        }
    }
}

impl LengthCounts {
    /// Adds a span with these lengths.
    pub(crate) fn add(&mut self, lengths: LengthSet) {
        // As many as spans, which are added before they are removed.
        each_bit(lengths.0, |bit| {
            self.counts[bit] = self.counts[bit].wrapping_add(1);
        });
        self.set.0 |= lengths.0;
    }

    /// Removes a span with these lengths.
    pub(crate) fn remove(&mut self, lengths: LengthSet) {
        each_bit(lengths.0, |bit| {
            self.counts[bit] = self.counts[bit].wrapping_sub(1);
            self.set.0 &= !(u128::from(self.counts[bit] == 0) << bit);
        });
    }

    /// The lengths of the spans present.
    pub(crate) fn set(&self) -> LengthSet {
        self.set
    }
}

fn each_bit(mut bits: u128, mut each: impl FnMut(usize)) {
    while bits != 0 {
        each(bits.trailing_zeros() as usize);
        bits &= bits.wrapping_sub(1);
    }
}

/// Which lengths a rule's prefix can have if it contains a packet's source, destination, source
/// port, destination port, protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lengths(pub(crate) [LengthSet; 5]);

/// All rules by their masks.
#[derive(Clone, Debug, Default)]
pub(crate) struct TupleSpace {
    /// Highest priority first.
    tuples: Vec<Tuple>,
    /// Highest priority first.
    groups: Vec<Group>,
}

impl TupleSpace {
    /// The tuples of some rules. Memory: an entry for each of
    /// [`Region::prefix_rules`] of each rule.
    pub(crate) fn new(rules: &[Rule]) -> Self {
        let mut space = Self::default();
        let mut numbers: HashMap<Words, usize, FixedState> = HashMap::default();
        for rule in rules {
            each_prefix_rule(&rule.region, &mut |value, mask| {
                let number = *numbers.entry(*mask).or_insert_with(|| {
                    let number = space.tuples.len();
                    space.tuples.push(Tuple {
                        mask: *mask,
                        priority_max: 0,
                        entries: HashMap::default(),
                    });
                    number
                });
                let tuple = &mut space.tuples[number];
                tuple.priority_max = tuple.priority_max.max(rule.priority);
                let list = tuple.entries.entry(*value).or_default();
                let place = list.partition_point(|known| known.0 >= rule.priority);
                list.insert(place, (rule.priority, rule.policy));
            });
        }
        space
            .tuples
            .sort_by_key(|tuple| std::cmp::Reverse(tuple.priority_max));
        space.group();
        space
    }

    fn group(&mut self) {
        let mut places: HashMap<[u8; 2], usize> = HashMap::new();
        for (number, tuple) in (0_u32..).zip(&self.tuples) {
            let length = |field: Field| {
                let (word, shift) = place(field);
                let bits = tuple.mask[word] >> shift & field.max();
                // At most 128.
                exact::<u8>(bits.count_ones())
            };
            let [source, destination] = [Field::Source, Field::Destination].map(length);
            let place = *places.entry([source, destination]).or_insert_with(|| {
                let place = self.groups.len();
                self.groups.push(Group {
                    source,
                    destination,
                    priority_max: tuple.priority_max,
                    tuples: Vec::new(),
                });
                place
            });
            let others = [Field::SourcePort, Field::DestinationPort, Field::Protocol];
            self.groups[place].tuples.push((others.map(length), number));
        }
    }

    /// The policies of the matching rules of highest priority, sorted, without duplicates and
    /// without those `removed` since. Only the tuples that `lengths` permits are searched.
    pub(crate) fn search(
        &self,
        packet: &PacketFields,
        lengths: &Lengths,
        removed: &Numbers,
        policies: &mut Vec<u32>,
    ) {
        let words = words(packet);
        let mut found = Best::new(policies);
        let Lengths([source, destination, others @ ..]) = lengths;
        for group in &self.groups {
            if !found.wants(group.priority_max) {
                break;
            }
            if !source.has(group.source) || !destination.has(group.destination) {
                continue;
            }
            for (needed, number) in &group.tuples {
                if !others
                    .iter()
                    .zip(needed)
                    .all(|(set, &length)| set.has(length))
                {
                    continue;
                }
                let tuple = &self.tuples[*number as usize];
                if !found.wants(tuple.priority_max) {
                    break;
                }
                let list = tuple.entries.get(&masked(&words, &tuple.mask));
                match list {
                    Some(list) if removed.is_empty() => offer_all(&mut found, list),
                    Some(list) => {
                        for &(priority, policy) in list {
                            if !removed.contains(policy) {
                                found.offer(priority, policy);
                            }
                        }
                    }
                    None => {}
                }
            }
        }
        found.finish();
    }
}

/// A set of policy numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Numbers {
    words: Vec<u64>,
    len: usize,
}

impl Numbers {
    /// Adds a number that it does not contain.
    pub(crate) fn insert(&mut self, number: u32) {
        let (word, bit) = (number as usize / 64, number % 64);
        if self.words.len() <= word {
            self.words.resize(word.saturating_add(1), 0);
        }
        self.words[word] |= 1 << bit;
        self.len = self.len.saturating_add(1);
    }

    pub(crate) fn contains(&self, number: u32) -> bool {
        let word = self.words.get(number as usize / 64);
        word.is_some_and(|word| word >> (number % 64) & 1 != 0)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Offers the rules of an entry, best first, unless they were removed.
#[inline]
fn offer_all(found: &mut Best<'_>, list: &[(u16, u32)]) {
    for &(priority, policy) in list {
        if !found.wants(priority) {
            break;
        }
        found.offer(priority, policy);
    }
}

/// Calls `each` with value and mask of every rule of prefixes that a region takes.
fn each_prefix_rule(region: &Region, each: &mut impl FnMut(&Words, &Words)) {
    let per_field = Field::ALL.map(|field| region.prefixes(field));
    let mut chosen = [0_usize; Field::ALL.len()];
    loop {
        let (mut value, mut mask) = ([0; 3], [0; 3]);
        for (index, field) in Field::ALL.into_iter().enumerate() {
            let (word, shift) = place(field);
            let (field_value, field_mask) = per_field[index][chosen[index]];
            value[word] |= field_value << shift;
            mask[word] |= field_mask << shift;
        }
        each(&value, &mask);
        // The next combination, like counting up a number.
        let mut is_last = true;
        for (chosen, prefixes) in chosen.iter_mut().zip(&per_field) {
            *chosen = chosen.wrapping_add(1);
            if *chosen < prefixes.len() {
                is_last = false;
                break;
            }
            *chosen = 0;
        }
        if is_last {
            return;
        }
    }
}
