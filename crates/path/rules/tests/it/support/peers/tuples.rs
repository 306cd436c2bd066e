//! The peers' slow path: tuple space search (TSS) as Srinivasan, Suri and Varghese describe it
//! (1999), over the tuples of highest priority first, without pruning. The product has a search of
//! its own, so neither can hide a fault of the other.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use strata_rules::{Field, PacketFields, Region, Rule};

/// The fields of a packet in words: source, destination, and the other fields.
pub(super) type Words = [u128; 3];

/// Where a field is in [`Words`]: word and shift.
pub(super) const fn place(field: Field) -> (usize, u32) {
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
pub(super) fn words(packet: &PacketFields) -> Words {
    let mut words = [0; 3];
    for field in Field::ALL {
        let (word, shift) = place(field);
        words[word] |= packet.value(field) << shift;
    }
    words
}

/// `words` where `mask` is set.
#[inline]
pub(super) fn masked(words: &Words, mask: &Words) -> Words {
    [words[0] & mask[0], words[1] & mask[1], words[2] & mask[2]]
}

/// The rules with one mask.
#[derive(Clone, Debug)]
pub(super) struct Tuple {
    pub(super) mask: Words,
    pub(super) priority_max: u16,
    /// Priority and policy, best first.
    pub(super) entries: HashMap<Words, Vec<(u16, u32)>, FixedState>,
}

/// All rules by their masks, highest priority first.
#[derive(Clone, Debug)]
pub struct Tuples(pub(super) Vec<Tuple>);

impl Tuples {
    /// The tuples of some rules.
    #[must_use]
    pub fn new(rules: &[Rule]) -> Self {
        let mut tuples: HashMap<Words, Tuple> = HashMap::new();
        for rule in rules {
            each_prefix_rule(&rule.region, &mut |value, mask| {
                let tuple = tuples.entry(mask).or_insert_with(|| Tuple {
                    mask,
                    priority_max: 0,
                    entries: HashMap::default(),
                });
                tuple.priority_max = tuple.priority_max.max(rule.priority);
                let list = tuple.entries.entry(value).or_default();
                list.push((rule.priority, rule.policy));
            });
        }
        let mut tuples: Vec<Tuple> = tuples.into_values().collect();
        for list in tuples.iter_mut().flat_map(|t| t.entries.values_mut()) {
            list.sort_by_key(|&(priority, _)| std::cmp::Reverse(priority));
        }
        tuples.sort_by_key(|tuple| (std::cmp::Reverse(tuple.priority_max), tuple.mask));
        Self(tuples)
    }

    /// How many tuples there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The policies of the matching rules of highest priority, sorted, without duplicates. Returns
    /// the number of hash tables searched.
    pub fn search(&self, packet: &PacketFields, policies: &mut Vec<u32>) -> usize {
        let words = words(packet);
        let mut found = Best::new(policies);
        let mut searched = 0;
        for tuple in &self.0 {
            if !found.wants(tuple.priority_max) {
                break;
            }
            searched += 1;
            if let Some(list) = tuple.entries.get(&masked(&words, &tuple.mask)) {
                found.offer_all(list);
            }
        }
        found.finish();
        searched
    }
}

/// Calls `each` with value and mask of every rule of prefixes that a region takes.
fn each_prefix_rule(region: &Region, each: &mut impl FnMut(Words, Words)) {
    let mut rules = vec![([0; 3], [0; 3])];
    for field in Field::ALL {
        let (word, shift) = place(field);
        let prefixes = region.prefixes(field);
        let with = |(value, mask): (Words, Words)| {
            prefixes.iter().map(move |(field_value, field_mask)| {
                let (mut value, mut mask) = (value, mask);
                value[word] |= field_value << shift;
                mask[word] |= field_mask << shift;
                (value, mask)
            })
        };
        rules = rules.into_iter().flat_map(with).collect();
    }
    for (value, mask) in rules {
        each(value, mask);
    }
}

/// Collects the policies of the highest priority.
pub(super) struct Best<'a> {
    policies: &'a mut Vec<u32>,
    priority: u16,
}

impl<'a> Best<'a> {
    pub(super) fn new(policies: &'a mut Vec<u32>) -> Self {
        policies.clear();
        Self {
            policies,
            priority: 0,
        }
    }

    /// Whether a rule of this priority could change the result.
    #[inline]
    pub(super) fn wants(&self, priority: u16) -> bool {
        self.policies.is_empty() || priority >= self.priority
    }

    /// Offers the rules of an entry, best first.
    #[inline]
    pub(super) fn offer_all(&mut self, list: &[(u16, u32)]) {
        for &(priority, policy) in list {
            if !self.wants(priority) {
                break;
            }
            if priority > self.priority {
                self.policies.clear();
            }
            self.priority = priority;
            self.policies.push(policy);
        }
    }

    pub(super) fn finish(self) {
        self.policies.sort_unstable();
        self.policies.dedup();
    }
}
