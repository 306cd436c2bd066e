//! Which interface has which identity, and which identities must not be given: those whose keys a former
//! owner has.

use std::collections::{BTreeMap, BTreeSet};

use super::{Change, Registry, RegistryError, SpentIdentity};
use crate::document::Documents;
use crate::limits::{IDENTITY_MAX, INTERFACES_MAX};

/// Identities that an agent's interfaces keep; those of interfaces that are gone make way beyond it.
const IDENTITIES_MAX: usize = 2 * INTERFACES_MAX;

/// All identities.
#[derive(Debug)]
pub(super) struct Identities {
    /// Who has an identity: agent and interface.
    pub(super) taken: BTreeMap<u32, (String, String)>,
    /// Those that the version that holds gives to interfaces.
    pub(super) pinned: BTreeSet<u32>,
    /// What datagrams call the master key; without one, there are no keys.
    pub(super) key: Option<u32>,
    /// Those that somebody has had, with the master key of that time and the agent, as in
    /// [`SpentIdentity`].
    spent: BTreeMap<u32, (u32, String)>,
    /// The same by agent, those that are forgotten or revoked left out.
    spare: BTreeMap<String, BTreeSet<u32>>,
    first: u32,
    next: u32,
}

impl Identities {
    /// New ones are those from `first` on.
    pub(super) fn new(spent: Vec<SpentIdentity>, first: u32) -> Self {
        let first = first.clamp(1, IDENTITY_MAX);
        let mut all = Self {
            taken: BTreeMap::new(),
            pinned: BTreeSet::new(),
            key: None,
            spent: BTreeMap::new(),
            spare: BTreeMap::new(),
            first,
            next: first,
        };
        for one in spent {
            all.remember(one);
        }
        all
    }

    fn remember(&mut self, one: SpentIdentity) {
        self.recall(one.identity);
        if !one.agent.is_empty() {
            let spare = self.spare.entry(one.agent.clone()).or_default();
            spare.insert(one.identity);
        }
        self.spent.insert(one.identity, (one.key, one.agent));
    }

    fn recall(&mut self, identity: u32) {
        let before = self.spent.remove(&identity);
        if let Some(spare) = before.and_then(|(_, agent)| self.spare.get_mut(&agent)) {
            spare.remove(&identity);
        }
    }

    /// Notes that an agent has the key of an identity, which no other agent may get.
    pub(super) fn spend(&mut self, identity: u32, agent: &str) -> Option<Change> {
        let spent = SpentIdentity {
            identity,
            key: self.key?,
            agent: agent.to_owned(),
        };
        self.remember(spent.clone());
        Some(Change::Spent(spent))
    }

    /// Whether somebody else than this agent has the key of an identity.
    fn is_spent(&self, identity: u32, agent: &str) -> bool {
        let spent = self.spent.get(&identity);
        spent.is_some_and(|(key, by)| Some(*key) == self.key && by != agent)
    }

    /// What an agent has had is not given again: another host may enrol with its name.
    pub(super) fn forget(&mut self, agent: &str) {
        for identity in self.spare.remove(agent).into_iter().flatten() {
            if let Some((_, by)) = self.spent.get_mut(&identity) {
                by.clear();
            }
        }
    }

    /// One that is free: first of those that this agent has had, so that it gets no more of them than
    /// it has interfaces, whatever it reports.
    fn free(&mut self, agent: &str) -> Option<u32> {
        let is_free =
            |number: &u32| !self.taken.contains_key(number) && !self.pinned.contains(number);
        let spare = self.spare.get(agent).into_iter().flatten();
        if let Some(own) = spare.copied().find(is_free) {
            return Some(own);
        }
        let mut next = self.next;
        for _ in self.first..=IDENTITY_MAX {
            if is_free(&next) && !self.is_spent(next, agent) {
                self.next = next;
                return Some(next);
            }
            next = if next == IDENTITY_MAX {
                self.first
            } else {
                next.saturating_add(1)
            };
        }
        None
    }

    fn none_left(&self, wanted: &str) -> String {
        let first = self.first;
        let what = match self.key {
            Some(_) => "or hosts that were forgotten have their keys: replace export.key",
            None => "so begin at a smaller one (--identity)",
        };
        format!(
            "no identity is left for {wanted}: all from {first} to {IDENTITY_MAX} are taken, {what}"
        )
    }
}

impl Registry {
    /// Whether the documents give an interface a number that another one has.
    pub(super) fn check_identities(&self, documents: &Documents) -> Result<(), RegistryError> {
        for (wanted, &identity) in &documents.identities {
            if let Some((agent, interface)) = self.numbers.taken.get(&identity)
                && *wanted != format!("{agent}:{interface}")
            {
                return Err(RegistryError::Collision {
                    identity,
                    owner: format!("{agent}:{interface}"),
                    wanted: wanted.clone(),
                });
            }
        }
        Ok(())
    }

    /// Whether somebody else has the key of the number that this interface should have.
    pub(super) fn check_spent(&self, wanted: &str, identity: u32) -> Result<(), RegistryError> {
        let agent = wanted.split_once(':').map_or(wanted, |(agent, _)| agent);
        let has = self.agents.get(agent);
        let has = has.is_some_and(|known| known.identities.values().any(|one| *one == identity));
        match self.numbers.is_spent(identity, agent) && !has {
            true => Err(RegistryError::Spent {
                identity,
                wanted: wanted.to_owned(),
            }),
            false => Ok(()),
        }
    }

    /// Takes identities of interfaces that are gone, if with those that come there would be too many.
    pub(super) fn make_room(&mut self, name: &str, captured: usize) -> Vec<Change> {
        let Some(agent) = self.agents.get_mut(name) else {
            return Vec::new();
        };
        if agent.identities.len().saturating_add(captured) <= IDENTITIES_MAX {
            return Vec::new();
        }
        let present = agent.last.iter().flat_map(|(report, _)| &report.interfaces);
        let present: BTreeSet<&str> = present.map(|one| one.name.as_str()).collect();
        let known = std::mem::take(&mut agent.identities);
        let (stay, gone) = known
            .into_iter()
            .partition(|(interface, _)| present.contains(interface.as_str()));
        agent.identities = stay;
        let gone: BTreeMap<String, u32> = gone;
        let mut changes = Vec::new();
        for identity in gone.into_values() {
            self.release(name, identity, &mut changes);
        }
        changes
    }

    /// An agent's interface has an identity no longer.
    fn release(&mut self, agent: &str, identity: u32, changes: &mut Vec<Change>) {
        self.numbers.taken.remove(&identity);
        changes.push(Change::IdentityGone(identity));
        changes.extend(self.numbers.spend(identity, agent));
    }

    /// The identity of an interface: the one that the documents give it, else the one that it has, else
    /// a new one.
    pub(super) fn identity(
        &mut self,
        agent: &str,
        interface: &str,
        changes: &mut Vec<Change>,
    ) -> Result<u32, String> {
        let full = format!("{agent}:{interface}");
        let documents = self.versions.last().map(|version| &version.documents);
        let wanted = documents.and_then(|documents| documents.identities.get(&full).copied());
        let known = self.agents.get(agent);
        let has = known.and_then(|known| known.identities.get(interface).copied());
        if let Some(has) = has.filter(|has| wanted.is_none_or(|wanted| wanted == *has)) {
            return Ok(has);
        }
        if let Some(wanted) = wanted {
            self.check_spent(&full, wanted)
                .map_err(|error| error.to_string())?;
        }
        if let Some(old) = has {
            self.release(agent, old, changes);
        }
        let new = wanted.or_else(|| self.numbers.free(agent));
        let identity = new.ok_or_else(|| self.numbers.none_left(&full))?;
        self.numbers.recall(identity);
        let known = self.agents.get_mut(agent);
        let known = known.expect("its caller has looked it up");
        known.identities.insert(interface.to_owned(), identity);
        self.numbers
            .taken
            .insert(identity, (agent.to_owned(), interface.to_owned()));
        changes.push(Change::Identity {
            identity,
            agent: agent.to_owned(),
            interface: interface.to_owned(),
        });
        Ok(identity)
    }
}
