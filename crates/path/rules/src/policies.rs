//! A set of policies, prepared for searching: what workers share.

use std::sync::Arc;

use strata_wire::Counters;

use crate::classifier::RuleSet;
use crate::packet::Field;
use crate::policy::{Action, Policy};
use crate::region::{Region, Span};
use crate::rule::Rule;

/// A policy in a set.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) id: u32,
    pub(crate) policy: Policy,
    /// The expression, as displayed.
    pub(crate) text: String,
    pub(crate) regions: Vec<Region>,
    pub(crate) prefix_rules: usize,
}

impl Known {
    /// Its rules, if its number is this and interfaces have these names.
    pub(crate) fn rules(&self, number: u32, interfaces: &[String]) -> impl Iterator<Item = Rule> {
        let name = self.policy.interface.as_ref();
        let interface = name.and_then(|name| interfaces.iter().position(|known| known == name));
        let priority = self.policy.priority;
        self.regions.iter().map(move |&region| Rule {
            region: match interface {
                None => region,
                Some(place) => {
                    let number = (place as u128).saturating_add(1);
                    region.with(Field::Interface, Span::one(number))
                }
            },
            priority,
            policy: number,
        })
    }
}

/// A set of policies, prepared for searching.
#[derive(Clone, Debug)]
pub struct Policies {
    rules: Arc<RuleSet>,
    /// By the numbers that rules use for them: those prepared together, then those added later.
    /// Some of the former may no longer count.
    base: Arc<[Arc<Known>]>,
    added: Vec<Arc<Known>>,
    len: usize,
    /// How many of them protect packets.
    protecting: usize,
    default: Action,
    interfaces: Arc<Vec<String>>,
}

impl Policies {
    pub(crate) fn of(
        rules: Arc<RuleSet>,
        base: Arc<[Arc<Known>]>,
        added: Vec<Arc<Known>>,
        (len, protecting): (usize, usize),
        default: Action,
        interfaces: Arc<Vec<String>>,
    ) -> Self {
        Self {
            rules,
            base,
            added,
            len,
            protecting,
            default,
            interfaces,
        }
    }

    fn known(&self, number: u32) -> &Known {
        let number = number as usize;
        match number.checked_sub(self.base.len()) {
            None => &self.base[number],
            Some(later) => &self.added[later],
        }
    }

    /// The identifier and text of the policy with this number in the rules.
    #[must_use]
    pub fn named(&self, number: u32) -> (u32, &str) {
        let known = self.known(number);
        (known.id, &known.text)
    }

    /// The action of the policy with this number in the rules.
    #[must_use]
    pub fn action(&self, number: u32) -> Action {
        self.known(number).policy.action
    }

    /// The policies with their identifiers and texts.
    pub fn all(&self) -> impl Iterator<Item = (u32, &Policy, &str)> {
        let base = self.base.iter().enumerate();
        let base = base.filter(|(place, _)| !self.rules.is_removed(*place));
        let all = base.map(|(_, known)| known).chain(&self.added);
        all.map(|known| (known.id, &known.policy, known.text.as_str()))
    }

    /// The texts of the policies that protect packets.
    pub fn protected(&self) -> impl Iterator<Item = &str> {
        // Usually the list is empty: no need to check thousands.
        let all = (self.protecting > 0).then(|| self.all());
        let protecting = all.into_iter().flatten();
        let protecting = protecting.filter(|(_, policy, _)| policy.protect);
        protecting.map(|(.., text)| text)
    }

    /// The rules.
    #[must_use]
    pub fn rules(&self) -> &Arc<RuleSet> {
        &self.rules
    }

    /// The number that the rules use for the interface with this name; 0 if none names it.
    ///
    /// # Panics
    ///
    /// Never: policies name at most [`INTERFACES_MAX`](crate::INTERFACES_MAX).
    #[must_use]
    pub fn interface(&self, name: Option<&str>) -> u8 {
        let place = self
            .interfaces
            .iter()
            .position(|known| Some(known.as_str()) == name);
        let number = place.map_or(0, |place| place.saturating_add(1));
        u8::try_from(number).expect("INTERFACES_MAX at most")
    }

    /// The actions on a packet that these policies match; with the default if none of them decides
    /// what is kept.
    pub fn actions(&self, policies: &[u32], actions: &mut Vec<Action>) {
        actions.clear();
        actions.extend(
            policies
                .iter()
                .map(|&number| self.known(number).policy.action),
        );
        if actions.iter().all(Action::leaves_open) {
            actions.push(self.default);
            if self.default.leaves_open() {
                actions.push(Action::CLASSIFY);
            }
        }
    }

    /// What to do with packets that no policy matches.
    #[must_use]
    pub fn default_action(&self) -> Action {
        self.default
    }

    /// Adds packets to the counters of each of these policies.
    pub fn count(&self, policies: &[u32], counters: Counters) {
        for &number in policies {
            self.known(number).policy.hits.add(counters);
        }
    }

    /// How many policies there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is empty, so that every packet gets the default.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether every packet is classified, as without policies.
    #[must_use]
    pub fn do_nothing(&self) -> bool {
        self.is_empty() && self.default == Action::CLASSIFY
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;
    use strata_filter::Filter;

    #[test]
    fn mirrors_leave_open_what_is_kept() {
        let all = |action| Policy::new(Filter::parse("tcp").unwrap(), action);
        let policies = [all(Action::Mirror), all(Action::DROP)];
        let policies = Policies::new(&policies, Action::CLASSIFY).unwrap();
        let mut actions = Vec::new();
        for (applied, expected) in [
            (&[0_u32][..], &[Action::Mirror, Action::CLASSIFY][..]),
            (&[0, 1], &[Action::Mirror, Action::DROP]),
            (&[], &[Action::CLASSIFY]),
        ] {
            policies.actions(applied, &mut actions);
            assert_eq!(actions, expected);
        }
    }

    #[test]
    fn interfaces_are_known_by_name() {
        let on = |name: &str| Policy {
            interface: Some(name.into()),
            ..Policy::new(Filter::parse("tcp").unwrap(), Action::DROP)
        };
        let policies =
            Policies::new(&[on("eth0"), on("eth1"), on("eth0")], Action::CLASSIFY).unwrap();
        assert_eq!(policies.interface(Some("eth1")), 2);
        assert_eq!(
            (policies.interface(Some("lo")), policies.interface(None)),
            (0, 0)
        );
    }
}
