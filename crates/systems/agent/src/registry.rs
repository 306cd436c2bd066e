//! The controller: who is enrolled, who has which identity, and which policies apply where.
//!
//! What has to survive a restart comes out as [`Change`]s, to be stored before anything is answered. An
//! agent takes a record of some 200 bytes there, and some 60 for each interface that it has captured;
//! what it reports is in memory only, and comes again.

mod error;
mod history;
mod identities;
mod members;
mod rollout;
mod runs;
mod sums;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde::{Deserialize, Serialize};
use strata_auth::keys::MasterKey;

use crate::document::{Candidate, DocumentFile, Documents};
use crate::message::{Applied, Assignment, Event, Report};
pub use error::RegistryError;
pub use history::EVENTS_MAX;
use history::History;
use identities::Identities;
use runs::{Reporter, Runs};
use sums::{Collected, Sent};

/// Versions that `undo` can return to.
const VERSIONS_MAX: usize = 32;

/// SHA-256 of a certificate.
type Fingerprint = [u8; 32];

/// An agent, as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentRecord {
    /// Its name.
    pub name: String,
    /// Its certificates, the latest last: the one before is good until the latest is used.
    pub certificates: Vec<Fingerprint>,
    /// Seconds since 1970 at which the latest expires.
    pub until: u64,
    /// Whether it is refused.
    pub revoked: bool,
    /// Whether it is a collector; else an agent.
    #[serde(default)]
    pub is_collector: bool,
}

fn kind(is_collector: bool) -> &'static str {
    if is_collector {
        "a collector"
    } else {
        "an agent"
    }
}

impl AgentRecord {
    fn kind(&self) -> &'static str {
        kind(self.is_collector)
    }
}

/// An identity without an owner, but whose key a former owner may still have: until the master key is
/// another, no other interface gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpentIdentity {
    /// The number.
    pub identity: u32,
    /// What datagrams call the master key from which its key came.
    pub key: u32,
    /// The agent that has had it, and may have it again; empty if that is forgotten or revoked.
    pub agent: String,
}

/// A version of the documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Its number, from 1.
    pub number: u64,
    /// Seconds since 1970 when it was applied.
    pub since: u64,
    /// What it says.
    pub documents: Documents,
    /// The version that `undo` returns to; 0 if there is none.
    pub returns_to: u64,
}

/// Something to store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// An agent that is new or different.
    Agent(AgentRecord),
    /// An agent that is forgotten, with its identities.
    AgentGone(String),
    /// The identity of an interface.
    Identity {
        /// The number.
        identity: u32,
        /// The agent.
        agent: String,
        /// Its interface.
        interface: String,
    },
    /// An identity without an owner.
    IdentityGone(u32),
    /// An identity that somebody has had, with its key.
    Spent(SpentIdentity),
    /// A version.
    Version(Version),
    /// A version that is not returned to.
    VersionGone(u64),
    /// An event, with its number.
    Event(u64, Event),
    /// An event that is no longer remembered.
    EventGone(u64),
}

/// All that was stored.
#[derive(Clone, Debug, Default)]
pub struct Stored {
    /// Agents.
    pub agents: Vec<AgentRecord>,
    /// Identities with agent and interface.
    pub identities: Vec<(u32, String, String)>,
    /// Identities that somebody has had.
    pub spent: Vec<SpentIdentity>,
    /// Versions, in any order.
    pub versions: Vec<Version>,
    /// Events with their numbers, in any order.
    pub events: Vec<(u64, Event)>,
}

/// What is known of an agent, or of a collector.
#[derive(Debug)]
struct Agent {
    record: AgentRecord,
    runs: Runs,
    /// Its last report, and when it came: ns since 1970.
    last: Option<(Report, u64)>,
    /// What it has exported, as an agent, and received, as a collector.
    sent: Sent,
    collected: Collected,
    /// Identities of its interfaces.
    identities: BTreeMap<String, u32>,
    /// Why nothing can be assigned to it; empty if it can.
    problem: String,
}

/// The state of a controller.
#[derive(Debug)]
pub struct Registry {
    agents: BTreeMap<String, Agent>,
    by_certificate: BTreeMap<Fingerprint, String>,
    /// Who has which identity.
    numbers: Identities,
    /// From which agents get the keys of their identities.
    master: Option<MasterKey>,
    /// The latest last; empty until something is applied.
    versions: Vec<Version>,
    history: History,
}

impl Default for Registry {
    fn default() -> Self {
        Self::new(Stored::default(), 1)
    }
}

impl Registry {
    /// Goes on with what was stored. New identities are those from `first_identity` on.
    #[must_use]
    pub fn new(stored: Stored, first_identity: u32) -> Self {
        let mut versions = stored.versions;
        versions.sort_by_key(|version| version.number);
        let mut registry = Self {
            agents: BTreeMap::new(),
            by_certificate: BTreeMap::new(),
            numbers: Identities::new(stored.spent, first_identity),
            master: None,
            versions,
            history: History::new(stored.events),
        };
        registry.pin();
        for record in stored.agents {
            registry.remember(record);
        }
        for (identity, agent, interface) in stored.identities {
            if let Some(known) = registry.agents.get_mut(&agent) {
                known.identities.insert(interface.clone(), identity);
                registry.numbers.taken.insert(identity, (agent, interface));
            }
        }
        registry
    }

    /// Gives agents keys that come from this one, from now on; no keys without it.
    pub fn use_key(&mut self, master: Option<MasterKey>) {
        self.numbers.key = master.as_ref().map(MasterKey::id);
        self.master = master;
    }

    /// Follows the version that holds.
    fn pin(&mut self) {
        let documents = self.versions.last().map(|version| &version.documents);
        let numbers = documents
            .into_iter()
            .flat_map(|documents| documents.identities.values());
        self.numbers.pinned = numbers.copied().collect();
    }

    fn remember(&mut self, record: AgentRecord) {
        for certificate in &record.certificates {
            self.by_certificate
                .insert(*certificate, record.name.clone());
        }
        match self.agents.get_mut(&record.name) {
            Some(known) => known.record = record,
            None => {
                let name = record.name.clone();
                let agent = Agent {
                    record,
                    runs: Runs::default(),
                    last: None,
                    sent: Sent::default(),
                    collected: Collected::default(),
                    identities: BTreeMap::new(),
                    problem: String::new(),
                };
                self.agents.insert(name, agent);
            }
        }
    }

    /// The version that holds; 0 if nothing was applied.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.versions.last().map_or(0, |version| version.number)
    }

    /// Takes an agent's report, from this address, at this time (ns since 1970); returns what it is to do, if that
    /// is not what it has.
    ///
    /// # Errors
    ///
    /// If it is not an agent's, out of bounds, or of a second agent with the same certificate.
    pub fn report(
        &mut self,
        certificate: &Fingerprint,
        report: Report,
        from: &str,
        now_ns: u64,
    ) -> Result<(Option<Assignment>, Vec<Change>), RegistryError> {
        let name = self.who(certificate)?.to_owned();
        report.check()?;
        let mut changes = Vec::new();
        let agent = self.agents.get_mut(&name).ok_or(RegistryError::Unknown)?;
        if agent.record.is_collector {
            return Err(RegistryError::NotThat(name, "a collector"));
        }
        if let Reporter::Copy { other, is_new } =
            agent
                .runs
                .reported((report.run, report.was_refused), from, now_ns)
        {
            return Err(RegistryError::Copy {
                name,
                other,
                is_new,
            });
        }
        let record = &mut agent.record;
        if record.certificates.len() > 1 && record.certificates.last() == Some(certificate) {
            for old in record
                .certificates
                .drain(..record.certificates.len().saturating_sub(1))
            {
                self.by_certificate.remove(&old);
            }
            changes.push(Change::Agent(record.clone()));
        }
        let identities = agent.identities.values().copied().collect();
        let forgotten = agent.sent.reported(&report.exports, &identities, now_ns);
        agent.last = Some((report, now_ns));
        self.forget_sessions(forgotten);
        let (assignment, more) = self.assignment(certificate)?;
        changes.extend(more);
        Ok((assignment, changes))
    }

    /// The connection of a run of an agent, or of a collector, has ended: another run may take its place at once.
    pub fn left(&mut self, certificate: &Fingerprint, run: u64) {
        let name = self.by_certificate.get(certificate);
        if let Some(agent) = name.and_then(|name| self.agents.get_mut(name)) {
            agent.runs.left(run);
        }
    }

    /// What an agent is to do, if that is not what it had at its last report.
    ///
    /// # Errors
    ///
    /// As [`Registry::who`].
    pub fn assignment(
        &mut self,
        certificate: &Fingerprint,
    ) -> Result<(Option<Assignment>, Vec<Change>), RegistryError> {
        let name = self.who(certificate)?.to_owned();
        let agent = self.agents.get_mut(&name).ok_or(RegistryError::Unknown)?;
        let (Some((report, _)), Some(version)) = (&agent.last, self.versions.last()) else {
            return Ok((None, Vec::new()));
        };
        let documents = &version.documents;
        let found = documents.assigned(&name, &report.labels, &report.interfaces);
        let (policies, captured) = match found {
            Ok(found) => found,
            Err(problem) => {
                agent.problem = problem;
                return Ok((None, Vec::new()));
            }
        };
        agent.problem.clear();
        let has = report.has;
        let mut assignment = Assignment {
            stamp: 0,
            version: version.number,
            policies,
            identities: BTreeMap::new(),
            keys: Vec::new(),
        };
        let mut changes = self.make_room(&name, captured.len());
        for interface in captured {
            let identity = match self.identity(&name, &interface, &mut changes) {
                Ok(identity) => identity,
                Err(problem) => {
                    self.agents
                        .get_mut(&name)
                        .ok_or(RegistryError::Unknown)?
                        .problem = problem;
                    return Ok((None, changes));
                }
            };
            assignment.identities.insert(interface, identity);
            let key = self
                .master
                .as_ref()
                .map(|master| master.of(identity).line());
            assignment.keys.extend(key);
        }
        let mut hasher = DefaultHasher::new();
        assignment.hash(&mut hasher);
        assignment.stamp = hasher.finish();
        let is_new = has != Some(assignment.stamp);
        Ok((is_new.then_some(assignment), changes))
    }

    /// Of agents that are not revoked.
    fn hints(&self, documents: &Documents) -> Vec<String> {
        let agents = self
            .agents
            .iter()
            .filter(|(_, agent)| !agent.record.revoked && !agent.record.is_collector);
        let candidates = agents.map(|(name, agent)| Candidate {
            name,
            labels: agent.last.as_ref().map(|(report, _)| &report.labels),
        });
        documents.hints(&candidates.collect::<Vec<Candidate<'_>>>())
    }

    /// What applying these files would change.
    ///
    /// # Errors
    ///
    /// What is wrong with them; nothing is applied then.
    pub fn check(&self, files: &[DocumentFile]) -> Result<(Documents, Applied), RegistryError> {
        let documents = Documents::read(files)?;
        let none = Documents::default();
        let before = self
            .versions
            .last()
            .map_or(&none, |version| &version.documents);
        self.check_identities(&documents)?;
        // What is in force already is a problem of that agent only, when it reports.
        for (wanted, identity) in &documents.identities {
            if before.identities.get(wanted) != Some(identity) {
                self.check_spent(wanted, *identity)?;
            }
        }
        let differences = documents
            .differences(before)
            .iter()
            .map(ToString::to_string)
            .collect();
        let applied = Applied {
            version: self.version(),
            differences,
            hints: self.hints(&documents),
        };
        Ok((documents, applied))
    }

    /// Applies these files as the new version, at this time (seconds since 1970); nothing, if they do
    /// not differ.
    ///
    /// # Errors
    ///
    /// As [`Registry::check`].
    pub fn apply(
        &mut self,
        files: &[DocumentFile],
        now: u64,
    ) -> Result<(Applied, Vec<Change>), RegistryError> {
        let (documents, mut applied) = self.check(files)?;
        if applied.differences.is_empty() {
            return Ok((applied, Vec::new()));
        }
        let returns_to = applied.version;
        applied.version = applied.version.saturating_add(1);
        let changes = self.adopt(Version {
            number: applied.version,
            since: now,
            documents,
            returns_to,
        });
        Ok((applied, changes))
    }

    /// This version holds from now on.
    fn adopt(&mut self, version: Version) -> Vec<Change> {
        let mut changes = Vec::new();
        if self.versions.len() >= VERSIONS_MAX {
            changes.push(Change::VersionGone(self.versions.remove(0).number));
        }
        changes.push(Change::Version(version.clone()));
        self.versions.push(version);
        self.pin();
        changes
    }

    /// Returns to the version before, as a new version. What is undone stays a version, but no undo returns to it.
    ///
    /// # Errors
    ///
    /// If there is nothing to undo, or identities that it names are others' by now.
    pub fn undo(&mut self, now: u64) -> Result<(Applied, Vec<Change>), RegistryError> {
        let last = self.versions.last().ok_or(RegistryError::NothingBefore)?;
        let before = self.versions.iter();
        let before = before
            .rev()
            .find(|before| before.number == last.returns_to)
            .ok_or(RegistryError::NothingBefore)?;
        let version = Version {
            number: last.number.saturating_add(1),
            since: now,
            documents: before.documents.clone(),
            returns_to: before.returns_to,
        };
        self.check_identities(&version.documents)?;
        let differences = version.documents.differences(&last.documents);
        let applied = Applied {
            version: version.number,
            differences: differences.iter().map(ToString::to_string).collect(),
            hints: self.hints(&version.documents),
        };
        let changes = self.adopt(version);
        Ok((applied, changes))
    }
}
