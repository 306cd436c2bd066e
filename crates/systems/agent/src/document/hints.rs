//! What an administrator should know of policies that are valid, but select no agent.

use std::collections::BTreeMap;

use super::{Documents, PolicyDocument};
use crate::pattern::matches;

/// Policies that are named.
const HINTS_MAX: usize = 20;
/// Maximum number of names that are compared with patterns: some 0.3 s.
const COMPARED_MAX: usize = 10_000_000;
/// Of a list, as many are shown.
const SHOWN_MAX: usize = 3;

/// An agent that is enrolled.
pub(crate) struct Candidate<'a> {
    pub(crate) name: &'a str,
    /// `None` if it has not reported yet: it may have any.
    pub(crate) labels: Option<&'a BTreeMap<String, String>>,
}

/// All agents, by name, and how much more may be compared.
struct Candidates<'a> {
    all: &'a [Candidate<'a>],
    left: usize,
}

impl Candidates<'_> {
    /// Whether one of them has a name as one of these, and is one; of any name, without `names`.
    /// `None` if that takes too long, at this cost of each.
    fn any(
        &mut self,
        names: &[&str],
        cost: usize,
        is_one: impl Fn(&Candidate<'_>) -> bool,
    ) -> Option<bool> {
        if names.is_empty() {
            return self.scan(cost, is_one);
        }
        for name in names {
            let found = match name.contains(['*', '?']) {
                true => self.scan(cost, |one| matches(name, one.name) && is_one(one))?,
                false => {
                    self.left = self.left.checked_sub(cost)?;
                    let at = self.all.binary_search_by(|one| one.name.cmp(name));
                    at.is_ok_and(|at| is_one(&self.all[at]))
                }
            };
            if found {
                return Some(true);
            }
        }
        Some(false)
    }

    fn scan(&mut self, cost: usize, is_one: impl Fn(&Candidate<'_>) -> bool) -> Option<bool> {
        self.left = self.left.checked_sub(self.all.len().saturating_mul(cost))?;
        Some(self.all.iter().any(is_one))
    }
}

/// The first of them.
fn list<'a>(all: impl ExactSizeIterator<Item = &'a str>) -> String {
    let more = all.len().saturating_sub(SHOWN_MAX);
    let mut shown = all.take(SHOWN_MAX).collect::<Vec<&str>>().join(", ");
    if more > 0 {
        shown += &format!(" and {more} more");
    }
    shown
}

impl Documents {
    /// Policies that select none of these agents (by name, in order), and why. Nothing without agents:
    /// then policies are applied before hosts enrol.
    pub(crate) fn hints(&self, agents: &[Candidate<'_>]) -> Vec<String> {
        let mut hints = Vec::new();
        let mut candidates = Candidates {
            all: agents,
            left: COMPARED_MAX,
        };
        if agents.is_empty() {
            return hints;
        }
        for policy in self.policies.values() {
            let name = &policy.name;
            match self.why_no_agent(policy, &mut candidates) {
                Some(None) => {}
                Some(Some(_)) if hints.len() == HINTS_MAX => {
                    hints.push(String::from("more policies select no agent"));
                    break;
                }
                Some(Some(why)) => hints.push(format!("policy {name} selects no agent: {why}")),
                None => {
                    hints.push(format!(
                        "not checked whether policy {name} and those after it select an agent: too many \
                         names would have to be compared"
                    ));
                    break;
                }
            }
        }
        hints
    }

    /// Why a policy selects none; the outer `None` if that takes too long.
    fn why_no_agent(
        &self,
        policy: &PolicyDocument,
        agents: &mut Candidates<'_>,
    ) -> Option<Option<String>> {
        let hosts: Vec<&str> = policy.hosts.iter().map(String::as_str).collect();
        if !agents.any(&hosts, 1, |_| true)? {
            return Some(Some(format!("no name matches {}", list(hosts.into_iter()))));
        }
        let has_labels = |one: &Candidate<'_>| {
            let mut wanted = policy.labels.iter();
            let all = |has: &BTreeMap<_, _>| wanted.all(|(key, value)| has.get(key) == Some(value));
            one.labels.is_none_or(all)
        };
        let named = match hosts.is_empty() {
            true => String::new(),
            false => format!(" that is named {}", list(hosts.iter().copied())),
        };
        if !agents.any(&hosts, 1, has_labels)? {
            let labels = policy.labels.iter();
            let labels: Vec<String> = labels
                .map(|(key, value)| format!("{key}={value}"))
                .collect();
            let labels = list(labels.iter().map(String::as_str));
            return Some(Some(format!("none{named} has {labels}")));
        }
        let Some(tenant) = policy
            .tenant
            .as_ref()
            .and_then(|name| self.tenants.get(name))
        else {
            return Some(None);
        };
        let of_tenant = tenant
            .interfaces
            .iter()
            .filter_map(|one| one.split_once(':'));
        let of_tenant: Vec<&str> = of_tenant.map(|(host, _)| host).collect();
        let is_there = |one: &Candidate<'_>| policy.is_for_name(one.name) && has_labels(one);
        match !of_tenant.is_empty()
            && agents.any(&of_tenant, hosts.len().saturating_add(1), is_there)?
        {
            true => Some(None),
            false => Some(Some(format!(
                "none that it selects has interfaces of tenant {}",
                tenant.name
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::DocumentFile;

    fn hints(text: &str, agents: &[(&str, Option<&str>)]) -> Vec<String> {
        let name = String::from("a.toml");
        let text = text.to_owned();
        let documents = Documents::read(&[DocumentFile { name, text }]).unwrap();
        let labels: Vec<Option<BTreeMap<String, String>>> = agents
            .iter()
            .map(|(_, rack)| rack.map(|rack| BTreeMap::from([("rack".into(), rack.into())])))
            .collect();
        let candidates = agents.iter().zip(&labels);
        let candidates = candidates.map(|((name, _), labels)| Candidate {
            name,
            labels: labels.as_ref(),
        });
        documents.hints(&candidates.collect::<Vec<Candidate<'_>>>())
    }

    fn policy(name: &str, more: &str) -> String {
        format!("[[policy]]\nname = '{name}'\nmatch = 'tcp'\naction = 'drop'\n{more}\n")
    }

    #[test]
    fn a_policy_that_selects_no_agent_is_named_with_the_reason() {
        let agents = [("db-1", Some("1")), ("web-1", Some("7")), ("web-2", None)];
        let blue = "tenant = 'blue'\n[[tenant]]\nname = 'blue'\ninterfaces = ['db-*:tap0', 'x:*']";
        for (more, why) in [
            ("", None),
            ("hosts = ['x', 'web-?']", None),
            ("hosts = ['db-1']", None),
            ("hosts = ['wbe-*']", Some("no name matches wbe-*")),
            (
                "hosts = ['a', 'b', 'c', 'd', 'e']",
                Some("no name matches a, b, c and 2 more"),
            ),
            ("labels = { rack = '1' }", None),
            // The one that has not reported may have it.
            ("labels = { rack = '2' }", None),
            (
                "hosts = ['db-*']\nlabels = { rack = '2' }",
                Some("none that is named db-* has rack=2"),
            ),
            (blue, None),
            (
                &format!("hosts = ['web-*']\n{blue}"),
                Some("none that it selects has interfaces of tenant blue"),
            ),
        ] {
            let expected = why.map(|why| format!("policy a selects no agent: {why}"));
            let found = hints(&policy("a", more), &agents);
            assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{more}");
        }
        assert!(hints(&policy("a", "hosts = ['x']"), &[]).is_empty());
    }

    /// Of ten thousand policies and agents, some are looked at, and a note says that not all are.
    #[test]
    fn many_policies_that_select_no_agent_are_summed_up() {
        let names: Vec<String> = (0..10_000).map(|one| format!("host-{one:05}")).collect();
        let agents: Vec<(&str, Option<&str>)> =
            names.iter().map(|name| (name.as_str(), None)).collect();
        let all = |hosts: &str| -> String {
            let one = |number| policy(&format!("p{number:05}"), &format!("hosts = ['{hosts}']"));
            (0..2_000).map(one).collect()
        };
        let found = hints(&all("x"), &agents);
        assert_eq!(found.len(), HINTS_MAX + 1);
        assert_eq!(found[HINTS_MAX], "more policies select no agent");
        let found = hints(&all("*-09999"), &agents);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("too many names"), "{found:?}");
    }
}
