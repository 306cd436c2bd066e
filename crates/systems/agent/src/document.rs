//! Policies, tenants and identities as an administrator writes them: TOML files of a directory.

mod hints;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use strata_filter::Filter;
use strata_rules::{Action, PRIORITY_DEFAULT};

use crate::limits::IDENTITY_MAX;
use crate::message::{AssignedPolicy, Interface};
use crate::pattern::matches;

pub(crate) use hints::Candidate;

/// Files of a directory.
pub const FILES_MAX: usize = 4096;
/// Policies of all files, and of an agent once those for individual interfaces are written out.
pub const POLICIES_MAX: usize = 10_000;
/// Patterns, labels, tenants and identities of all files.
const OTHERS_MAX: usize = 100_000;

/// A file of the directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentFile {
    /// Its name, for errors.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// A policy, and whom it is for. What is not named selects everything; what is, all together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyDocument {
    /// Its name, which no other has.
    name: String,
    /// Packets to match, in tcpdump's language.
    #[serde(rename = "match")]
    matches: String,
    /// `header -> NAME`, `payload [N] -> NAME` or `drop`.
    action: String,
    #[serde(default = "priority_default")]
    priority: u16,
    /// Names of hosts, with `*` and `?`.
    #[serde(default)]
    hosts: Vec<String>,
    /// Labels that a host has.
    #[serde(default)]
    labels: BTreeMap<String, String>,
    /// A tenant, whose interfaces are meant.
    #[serde(default)]
    tenant: Option<String>,
    /// Names of interfaces, with `*` and `?`.
    #[serde(default)]
    interfaces: Vec<String>,
}

fn priority_default() -> u16 {
    PRIORITY_DEFAULT
}

/// A tenant: interfaces of hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TenantDocument {
    name: String,
    /// `HOST:INTERFACE`, each with `*` and `?`.
    interfaces: Vec<String>,
}

/// The identity of an interface, where it is not left to the controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct IdentityDocument {
    /// `HOST:INTERFACE`.
    interface: String,
    identity: u32,
}

/// What selects hosts and interfaces in a file: an empty list would read as none, and select all.
#[derive(Deserialize)]
struct Lists {
    #[serde(default, rename = "policy")]
    _policy: Vec<Selectors>,
}

#[derive(Deserialize)]
struct Selectors {
    #[serde(default, rename = "hosts", deserialize_with = "not_empty")]
    _hosts: (),
    #[serde(default, rename = "labels", deserialize_with = "not_empty")]
    _labels: (),
    #[serde(default, rename = "interfaces", deserialize_with = "not_empty")]
    _interfaces: (),
}

/// Fails at the place of a list or table with nothing in it.
fn not_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    let is_empty = match toml::Value::deserialize(deserializer)? {
        toml::Value::Array(all) => all.is_empty(),
        toml::Value::Table(all) => all.is_empty(),
        _ => false,
    };
    match is_empty {
        true => Err(D::Error::custom(
            "is empty, and so selects nothing: fill it in, or leave it out to select everything",
        )),
        false => Ok(()),
    }
}

/// What a file may hold.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Contents {
    policy: Vec<PolicyDocument>,
    tenant: Vec<TenantDocument>,
    identity: Vec<IdentityDocument>,
}

/// What is wrong with a file. Nothing of the directory is applied then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {problem}")]
pub struct DocumentError {
    /// The file.
    pub file: String,
    /// What is wrong, and where in it.
    pub problem: String,
}

/// A difference between two versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// `+`, `-` or `~` (changed).
    pub sign: char,
    /// What.
    pub what: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.sign, self.what)
    }
}

/// All files, checked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Documents {
    policies: BTreeMap<String, PolicyDocument>,
    tenants: BTreeMap<String, TenantDocument>,
    /// By `HOST:INTERFACE`.
    pub(crate) identities: BTreeMap<String, u32>,
}

impl Documents {
    /// Reads the files of a directory.
    ///
    /// # Errors
    ///
    /// The first file with something wrong.
    pub fn read(files: &[DocumentFile]) -> Result<Self, DocumentError> {
        let mut all = Self::default();
        // Who has what, for the error.
        let mut owners = BTreeMap::new();
        let mut numbers: BTreeMap<u32, String> = BTreeMap::new();
        for file in files {
            let error = |problem: String| DocumentError {
                file: file.name.clone(),
                problem,
            };
            let contents: Contents =
                toml::from_str(&file.text).map_err(|wrong| error(wrong.to_string()))?;
            let _: Lists = toml::from_str(&file.text).map_err(|wrong| error(wrong.to_string()))?;
            for policy in contents.policy {
                check_policy(&policy)
                    .map_err(|what| error(named("policy", &policy.name, &what)))?;
                once(&mut owners, ("policy", &policy.name), &file.name).map_err(error)?;
                all.policies.insert(policy.name.clone(), policy);
            }
            for tenant in contents.tenant {
                check_tenant(&tenant)
                    .map_err(|what| error(named("tenant", &tenant.name, &what)))?;
                once(&mut owners, ("tenant", &tenant.name), &file.name).map_err(error)?;
                all.tenants.insert(tenant.name.clone(), tenant);
            }
            for identity in contents.identity {
                let name = &identity.interface;
                check_identity(&identity).map_err(|what| error(named("identity", name, &what)))?;
                once(&mut owners, ("identity", name), &file.name).map_err(error)?;
                if let Some(other) = numbers.insert(identity.identity, name.clone()) {
                    let what = format!("{} is the identity of {other} already", identity.identity);
                    return Err(error(named("identity", name, &what)));
                }
                all.identities.insert(name.clone(), identity.identity);
            }
        }
        all.check_as_a_whole(&owners)?;
        Ok(all)
    }

    fn check_as_a_whole(&self, owners: &Owners) -> Result<(), DocumentError> {
        for policy in self.policies.values() {
            let tenant = policy.tenant.as_ref();
            if let Some(tenant) = tenant.filter(|tenant| !self.tenants.contains_key(*tenant)) {
                let key = ("policy", policy.name.clone());
                let what = format!("there is no tenant {tenant}: write [[tenant]] with that name");
                return Err(DocumentError {
                    file: owners.get(&key).map_or_else(String::new, String::clone),
                    problem: named("policy", &policy.name, &what),
                });
            }
        }
        let too_many = |what: &str, count: usize, most: usize| DocumentError {
            file: String::from("all files together"),
            problem: format!("{count} {what}; at most {most} are allowed"),
        };
        if self.policies.len() > POLICIES_MAX {
            return Err(too_many("policies", self.policies.len(), POLICIES_MAX));
        }
        let parts = |policy: &PolicyDocument| {
            let (hosts, labels) = (policy.hosts.len(), policy.labels.len());
            hosts
                .saturating_add(labels)
                .saturating_add(policy.interfaces.len())
        };
        let of_policies = self.policies.values().map(parts);
        let tenants = self.tenants.values();
        let of_tenants = tenants.map(|tenant| tenant.interfaces.len().saturating_add(1));
        let others = of_policies
            .chain(of_tenants)
            .fold(self.identities.len(), usize::saturating_add);
        match others > OTHERS_MAX {
            true => Err(too_many(
                "patterns, labels and identities",
                others,
                OTHERS_MAX,
            )),
            false => Ok(()),
        }
    }

    /// What differs from an earlier version.
    #[must_use]
    pub fn differences(&self, before: &Self) -> Vec<Difference> {
        let mut all = Vec::new();
        compare("policy", &before.policies, &self.policies, &mut all);
        compare("tenant", &before.tenants, &self.tenants, &mut all);
        compare("identity", &before.identities, &self.identities, &mut all);
        all
    }

    /// The policies for a host with these labels and interfaces, in the order of their names, and the
    /// interfaces that any of them is for.
    pub(crate) fn assigned(
        &self,
        host: &str,
        labels: &BTreeMap<String, String>,
        interfaces: &[Interface],
    ) -> Result<(Vec<AssignedPolicy>, BTreeSet<String>), String> {
        let mut policies = Vec::new();
        let mut captured = BTreeSet::new();
        let all = || interfaces.iter().map(|interface| interface.name.clone());
        for policy in self
            .policies
            .values()
            .filter(|policy| policy.is_for(host, labels))
        {
            let assigned = |interface: Option<String>| AssignedPolicy {
                matches: policy.matches.clone(),
                action: policy.action.clone(),
                priority: policy.priority,
                interface,
            };
            if policy.tenant.is_none() && policy.interfaces.is_empty() {
                policies.push(assigned(None));
                captured.extend(all());
            } else {
                let meant = all().filter(|name| self.is_meant(policy, host, name));
                for name in meant {
                    policies.push(assigned(Some(name.clone())));
                    captured.insert(name);
                }
            }
            if policies.len() > POLICIES_MAX {
                return Err(format!(
                    "more than {POLICIES_MAX} policies, those for individual interfaces written out"
                ));
            }
        }
        Ok((policies, captured))
    }

    /// Whether a policy that selects interfaces selects this one.
    fn is_meant(&self, policy: &PolicyDocument, host: &str, interface: &str) -> bool {
        let is_one = |pattern: &String| matches(pattern, interface);
        let by_name = policy.interfaces.is_empty() || policy.interfaces.iter().any(is_one);
        let tenant = policy.tenant.as_ref();
        let tenant = tenant.and_then(|name| self.tenants.get(name));
        by_name && tenant.is_none_or(|tenant| tenant.has(host, interface))
    }
}

impl PolicyDocument {
    fn is_for_name(&self, host: &str) -> bool {
        self.hosts.is_empty() || self.hosts.iter().any(|one| matches(one, host))
    }

    fn is_for(&self, host: &str, labels: &BTreeMap<String, String>) -> bool {
        self.is_for_name(host)
            && self
                .labels
                .iter()
                .all(|(key, value)| labels.get(key) == Some(value))
    }
}

impl TenantDocument {
    fn has(&self, host: &str, interface: &str) -> bool {
        let mut patterns = self.interfaces.iter().filter_map(|one| one.split_once(':'));
        patterns.any(|(hosts, interfaces)| matches(hosts, host) && matches(interfaces, interface))
    }
}

type Owners = BTreeMap<(&'static str, String), String>;

fn once(owners: &mut Owners, (kind, name): (&'static str, &str), file: &str) -> Result<(), String> {
    match owners.insert((kind, name.to_owned()), file.to_owned()) {
        None => Ok(()),
        Some(other) => Err(named(kind, name, &format!("already defined in {other}"))),
    }
}

fn named(kind: &str, name: &str, problem: &str) -> String {
    format!("{kind} {name}: {problem}")
}

fn check_policy(policy: &PolicyDocument) -> Result<(), String> {
    if policy.name.is_empty() {
        return Err(String::from("has no name"));
    }
    let filter = Filter::parse(&policy.matches).map_err(|error| format!("match: {error}"))?;
    strata_rules::regions(&filter).map_err(|error| format!("match: {error}"))?;
    let action: Action = policy
        .action
        .parse()
        .map_err(|error: strata_rules::ParseActionError| format!("action: {error}"))?;
    match action {
        Action::Export(_) | Action::DROP => Ok(()),
        _ => Err(format!(
            "action: '{action}': an agent has no log: write 'header -> NAME', 'payload -> NAME' or \
             'drop'"
        )),
    }
}

fn check_tenant(tenant: &TenantDocument) -> Result<(), String> {
    if tenant.name.is_empty() {
        return Err(String::from("has no name"));
    }
    let wrong = tenant.interfaces.iter().find(|one| !one.contains(':'));
    match wrong {
        Some(one) => Err(format!(
            "interfaces: '{one}': write HOST:INTERFACE, such as '*:tap0'"
        )),
        None => Ok(()),
    }
}

fn check_identity(identity: &IdentityDocument) -> Result<(), String> {
    if !identity.interface.contains(':') {
        return Err(String::from("interface: write HOST:INTERFACE"));
    }
    if identity.interface.contains(['*', '?']) {
        return Err(String::from(
            "interface: an identity is for a single interface: write HOST:INTERFACE without * and ?",
        ));
    }
    match identity.identity {
        1..=IDENTITY_MAX => Ok(()),
        number => Err(format!("{number} is not a number from 1 to {IDENTITY_MAX}")),
    }
}

fn compare<V: PartialEq>(
    kind: &str,
    before: &BTreeMap<String, V>,
    after: &BTreeMap<String, V>,
    all: &mut Vec<Difference>,
) {
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    for name in names {
        let sign = match (before.get(name), after.get(name)) {
            (None, Some(_)) => '+',
            (Some(_), None) => '-',
            (one, other) if one == other => continue,
            _ => '~',
        };
        let what = format!("{kind} {name}");
        all.push(Difference { sign, what });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Documents, DocumentError> {
        Documents::read(&[DocumentFile {
            name: "web.toml".into(),
            text: text.into(),
        }])
    }

    fn interfaces(names: &[&str]) -> Vec<Interface> {
        let interface = |name: &&str| Interface {
            name: (*name).to_owned(),
            ..Interface::default()
        };
        names.iter().map(interface).collect()
    }

    const POLICIES: &str = "
        [[policy]]
        name = 'all'
        match = 'tcp'
        action = 'header -> here'
        hosts = ['web-*']
        [[policy]]
        name = 'blue'
        match = 'udp'
        action = 'payload 64 -> there'
        priority = 7
        tenant = 'blue'
        [[policy]]
        name = 'rack'
        match = 'icmp'
        action = 'drop'
        labels = { rack = '1' }
        interfaces = ['tap?']
        [[tenant]]
        name = 'blue'
        interfaces = ['web-1:tap*', '*:br0']
    ";

    #[test]
    fn a_selector_that_is_empty_is_refused_with_its_line() {
        let policy = "[[policy]]\nname = 'a'\nmatch = 'tcp'\naction = 'drop'\n";
        for empty in [
            "hosts = []",
            "labels = {}",
            "interfaces = []",
            "[policy.labels]",
        ] {
            let error = read(&format!("{policy}{empty}\n")).unwrap_err().to_string();
            assert!(
                error.starts_with("web.toml: ")
                    && error.contains("line 5")
                    && error.contains("selects nothing"),
                "{empty}: {error}"
            );
        }
        assert!(read(policy).is_ok());
        // What was stored before is read as it was.
        let stored = toml::to_string(&read(policy).unwrap()).unwrap();
        assert!(toml::from_str::<Documents>(&stored).is_ok());
    }

    #[test]
    fn an_identity_is_of_one_interface() {
        for name in ["web-*:tap9", "web-1:tap?"] {
            let text = format!("[[identity]]\ninterface = '{name}'\nidentity = 9\n");
            let error = read(&text).unwrap_err().to_string();
            assert!(error.contains("without * and ?"), "{error}");
        }
    }

    #[test]
    fn selectors_select_hosts_and_interfaces() {
        let documents = read(POLICIES).unwrap();
        let rack = BTreeMap::from([("rack".to_owned(), "1".to_owned())]);
        let found = |host: &str, labels: &BTreeMap<String, String>, names: &[&str]| {
            let all = documents
                .assigned(host, labels, &interfaces(names))
                .unwrap();
            let shown = |one: &AssignedPolicy| {
                format!(
                    "{} {}",
                    one.matches,
                    one.interface.as_deref().unwrap_or("-")
                )
            };
            let policies: Vec<String> = all.0.iter().map(shown).collect();
            (
                policies.join(", "),
                all.1.into_iter().collect::<Vec<_>>().join(" "),
            )
        };
        let none = BTreeMap::new();
        let of = |one: &str, other: &str| (one.to_owned(), other.to_owned());
        let all = ["eth0", "tap0", "tap10"];
        assert_eq!(
            found("web-1", &none, &all),
            of("tcp -, udp tap0, udp tap10", "eth0 tap0 tap10")
        );
        assert_eq!(found("web-2", &none, &all), of("tcp -", "eth0 tap0 tap10"));
        assert_eq!(found("db", &none, &all), of("", ""));
        assert_eq!(found("db", &rack, &all), of("icmp tap0", "tap0"));
        assert_eq!(found("db", &none, &["br0", "lo"]), of("udp br0", "br0"));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_file() {
        let policy = |more: &str| format!("[[policy]]\nname = 'a'\n{more}");
        let good = "match = 'tcp'\naction = 'drop'\n";
        for (text, what) in [
            ("polcy = 1".to_owned(), "unknown field `polcy`"),
            (
                policy("match = 'tcp['\naction = 'drop'"),
                "policy a: match: ",
            ),
            (
                policy("match = 'greater 5'\naction = 'drop'"),
                "policy a: match: ",
            ),
            (
                policy("match = 'tcp'\naction = 'full'"),
                "an agent has no log",
            ),
            (
                policy("match = 'tcp'\naction = 'classify'"),
                "an agent has no log",
            ),
            (
                policy("match = 'tcp'\naction = 'header -> a b'"),
                "policy a: action: ",
            ),
            (
                policy(&format!("{good}tenant = 'blue'")),
                "policy a: there is no tenant blue",
            ),
            (
                policy(good) + &policy(good),
                "policy a: already defined in web.toml",
            ),
            (
                "[[tenant]]\nname = 'b'\ninterfaces = ['tap0']".into(),
                "write HOST:INTERFACE",
            ),
            (
                "[[identity]]\ninterface = 'a:b'\nidentity = 0".into(),
                "0 is not a number from 1",
            ),
            (
                "[[identity]]\ninterface = 'a:b'\nidentity = 16777216".into(),
                "16777216 is not",
            ),
            (
                "[[identity]]\ninterface = 'a:b'\nidentity = 5\n\
                 [[identity]]\ninterface = 'a:c'\nidentity = 5"
                    .into(),
                "5 is the identity of a:b already",
            ),
        ] {
            let error = read(&text).unwrap_err().to_string();
            assert!(
                error.contains(what) && error.starts_with("web.toml: "),
                "{error}"
            );
        }
    }

    #[test]
    fn only_what_differs_is_a_difference() {
        let before = read(POLICIES).unwrap();
        assert!(before.differences(&before).is_empty());
        let text = POLICIES
            .replace("'icmp'", "'icmp6'")
            .replace("'all'", "'every'");
        let after = read(&text).unwrap();
        let shown: Vec<String> = after
            .differences(&before)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(shown, ["- policy all", "+ policy every", "~ policy rack"]);
    }
}
