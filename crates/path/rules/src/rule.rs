//! A rule, the answer of a search for rules, and the naive search.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use strata_wire::exact;

use crate::packet::PacketFields;
use crate::region::Region;

/// A region of packets that a policy selects.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rule {
    /// The packets.
    pub region: Region,
    /// Of the rules that match, those of the highest priority count.
    pub priority: u16,
    /// Number of the policy.
    pub policy: u32,
}

/// The naive search that all others are tested against: the policies of the matching rules of
/// highest priority, sorted, without duplicates.
pub fn linear_scan(rules: &[Rule], packet: &PacketFields, policies: &mut Vec<u32>) {
    let mut found = Best::new(policies);
    for rule in rules {
        if rule.region.contains(packet) {
            found.offer(rule.priority, rule.policy);
        }
    }
    found.finish();
}

/// Collects the policies of the highest priority.
pub(crate) struct Best<'a> {
    policies: &'a mut Vec<u32>,
    priority: u16,
}

impl<'a> Best<'a> {
    pub(crate) fn new(policies: &'a mut Vec<u32>) -> Self {
        policies.clear();
        Self {
            policies,
            priority: 0,
        }
    }

    /// Whether a rule of this priority could change the result.
    #[inline]
    pub(crate) fn wants(&self, priority: u16) -> bool {
        self.policies.is_empty() || priority >= self.priority
    }

    #[inline]
    pub(crate) fn offer(&mut self, priority: u16, policy: u32) {
        if !self.wants(priority) {
            return;
        }
        if priority > self.priority {
            self.policies.clear();
        }
        self.priority = priority;
        self.policies.push(policy);
    }

    pub(crate) fn finish(self) {
        self.policies.sort_unstable();
        self.policies.dedup();
    }
}

/// Which policies a packet gets, as a number: 0 for none, 1 and above for one each, and above these
/// for combinations, numbered as they occur.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AnswerId(pub u32);

impl AnswerId {
    /// No policy matches.
    pub const NONE: Self = Self(0);
}

/// The answers given so far. Bounded by the sets of policies that can match together, which the
/// rules determine.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    policies: u32,
    sets: Vec<Box<[u32]>>,
    numbers: HashMap<Box<[u32]>, u32, FixedState>,
}

impl Answers {
    /// Answers about this many policies.
    #[must_use]
    pub fn new(policies: u32) -> Self {
        Self {
            policies,
            ..Self::default()
        }
    }

    /// The number of a sorted set of policies.
    pub fn id(&mut self, policies: &[u32]) -> AnswerId {
        match policies {
            [] => AnswerId::NONE,
            // Policies and sets together are far below 2^32: see the fields.
            [one] => AnswerId(one.wrapping_add(1)),
            several => {
                if let Some(&known) = self.numbers.get(several) {
                    return AnswerId(known);
                }
                let number = exact::<u32>(self.len());
                self.sets.push(several.into());
                self.numbers.insert(several.into(), number);
                AnswerId(number)
            }
        }
    }

    /// Writes the policies of an answer, sorted, to `policies`.
    pub fn policies(&self, id: AnswerId, policies: &mut Vec<u32>) {
        policies.clear();
        match id.0 {
            0 => {}
            number if number <= self.policies => policies.push(number.wrapping_sub(1)),
            number => {
                let place = number.wrapping_sub(self.policies).wrapping_sub(1);
                policies.extend_from_slice(&self.sets[place as usize]);
            }
        }
    }

    /// How many answers there are: the largest number plus one.
    #[must_use]
    pub fn len(&self) -> usize {
        let alone = (self.policies as usize).saturating_add(1);
        alone.saturating_add(self.sets.len())
    }

    /// Never: "no policy matches" is always an answer.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }
}
