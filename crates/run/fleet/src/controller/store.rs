//! A controller's state in a redb database.

use std::error::Error;
use std::path::Path;

use redb::{
    Database, DatabaseError, ReadableDatabase as _, ReadableTable as _, Table, TableDefinition,
    WriteTransaction,
};
use strata_agent::{AgentRecord, Change, Event, SpentIdentity, Stored, Version};
use strata_role::{Result, RoleError};

/// Of the tables below.
const SCHEMA: u32 = 3;
const ABOUT: TableDefinition<'_, &str, u32> = TableDefinition::new("about");

/// Agents by name, as JSON.
const AGENTS: TableDefinition<'_, &str, &str> = TableDefinition::new("agents");
/// By number: the agent, its interface.
const IDENTITIES: TableDefinition<'_, u32, (&str, &str)> = TableDefinition::new("identities");
/// By number: the key that the identity had, the agent.
const SPENT: TableDefinition<'_, u32, (u32, &str)> = TableDefinition::new("spent");
/// Versions of the documents by number: since when, as JSON.
const VERSIONS: TableDefinition<'_, u64, (u64, &str)> = TableDefinition::new("versions");
/// By version: the one that undo returns to. Of versions that are not in this table, it is the one before.
const RETURNS: TableDefinition<'_, u64, u64> = TableDefinition::new("returns");
/// Events by number, as JSON.
const EVENTS: TableDefinition<'_, u64, &str> = TableDefinition::new("events");

/// The database, which no other process may use meanwhile.
pub(super) struct Store(Database);

type Done<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

impl Store {
    /// Opens the database, which is made if it is missing, and reads it.
    pub(super) fn open(path: &Path) -> Result<(Self, Stored)> {
        let refuse = |what: &str| RoleError::Refused(format!("{}: {what}", path.display()));
        let database = Database::create(path).map_err(|error| match error {
            DatabaseError::DatabaseAlreadyOpen => refuse("another controller is using it"),
            error => refuse(&error.to_string()),
        })?;
        let store = Self(database);
        let stored = store.prepare().and_then(|known| match known {
            SCHEMA => store.read().map(Some),
            _ => Ok(None),
        });
        match stored.map_err(|error| refuse(&error.to_string()))? {
            Some(stored) => Ok((store, stored)),
            None => Err(refuse(
                "written by another version of Strata, which this one cannot read",
            )),
        }
    }

    /// Makes the tables if they do not exist; returns what version they have.
    fn prepare(&self) -> Done<u32> {
        let write = self.0.begin_write()?;
        let known = {
            let mut about = write.open_table(ABOUT)?;
            let known = about.get("schema")?.map(|known| known.value());
            match known {
                Some(known) => known,
                None => {
                    about.insert("schema", SCHEMA)?;
                    SCHEMA
                }
            }
        };
        if known == SCHEMA {
            write.open_table(AGENTS)?;
            write.open_table(IDENTITIES)?;
            write.open_table(SPENT)?;
            write.open_table(VERSIONS)?;
            write.open_table(RETURNS)?;
            write.open_table(EVENTS)?;
        }
        write.commit()?;
        Ok(known)
    }

    fn read(&self) -> Done<Stored> {
        let read = self.0.begin_read()?;
        let mut stored = Stored::default();
        for entry in read.open_table(AGENTS)?.iter()? {
            let agent: AgentRecord = serde_json::from_str(entry?.1.value())?;
            stored.agents.push(agent);
        }
        for entry in read.open_table(IDENTITIES)?.iter()? {
            let (identity, entry) = entry?;
            let (agent, interface) = entry.value();
            let (agent, interface) = (agent.to_owned(), interface.to_owned());
            stored.identities.push((identity.value(), agent, interface));
        }
        for entry in read.open_table(SPENT)?.iter()? {
            let (identity, entry) = entry?;
            let (key, agent) = entry.value();
            stored.spent.push(SpentIdentity {
                identity: identity.value(),
                key,
                agent: agent.to_owned(),
            });
        }
        let (returns, mut before) = (read.open_table(RETURNS)?, 0);
        for entry in read.open_table(VERSIONS)?.iter()? {
            let (number, entry) = entry?;
            let (since, documents) = entry.value();
            let number = number.value();
            let returns_to = returns.get(number)?.map_or(before, |to| to.value());
            stored.versions.push(Version {
                number,
                since,
                documents: serde_json::from_str(documents)?,
                returns_to,
            });
            before = number;
        }
        for entry in read.open_table(EVENTS)?.iter()? {
            let (number, event) = entry?;
            let event: Event = serde_json::from_str(event.value())?;
            stored.events.push((number.value(), event));
        }
        Ok(stored)
    }

    /// Stores changes: all of them, or none.
    pub(super) fn save(&mut self, changes: &[Change]) -> Done<()> {
        let write = self.0.begin_write()?;
        for change in changes {
            save(&write, change)?;
        }
        Ok(write.commit()?)
    }
}

fn save(write: &WriteTransaction, change: &Change) -> Done<()> {
    match change {
        Change::Agent(record) => {
            let text = serde_json::to_string(record)?;
            let mut agents = write.open_table(AGENTS)?;
            agents.insert(record.name.as_str(), text.as_str())?;
        }
        Change::AgentGone(name) => {
            let name = name.as_str();
            let mut identities = write.open_table(IDENTITIES)?;
            identities.retain(|_, (agent, _)| agent != name)?;
            forget(&mut write.open_table(SPENT)?, name)?;
            write.open_table(AGENTS)?.remove(name)?;
        }
        Change::Identity {
            identity,
            agent,
            interface,
        } => {
            write.open_table(SPENT)?.remove(identity)?;
            let mut identities = write.open_table(IDENTITIES)?;
            identities.insert(identity, (agent.as_str(), interface.as_str()))?;
        }
        Change::IdentityGone(identity) => {
            write.open_table(IDENTITIES)?.remove(identity)?;
        }
        Change::Spent(spent) => {
            let mut table = write.open_table(SPENT)?;
            table.insert(spent.identity, (spent.key, spent.agent.as_str()))?;
        }
        Change::Version(version) => {
            let text = serde_json::to_string(&version.documents)?;
            let mut versions = write.open_table(VERSIONS)?;
            versions.insert(version.number, (version.since, text.as_str()))?;
            let mut returns = write.open_table(RETURNS)?;
            returns.insert(version.number, version.returns_to)?;
        }
        Change::VersionGone(number) => {
            write.open_table(VERSIONS)?.remove(number)?;
            write.open_table(RETURNS)?.remove(number)?;
        }
        Change::Event(number, event) => {
            let text = serde_json::to_string(event)?;
            write.open_table(EVENTS)?.insert(number, text.as_str())?;
        }
        Change::EventGone(number) => {
            write.open_table(EVENTS)?.remove(number)?;
        }
    }
    Ok(())
}

/// No agent may have this one's identities again.
fn forget(spent: &mut Table<'_, u32, (u32, &str)>, name: &str) -> Done<()> {
    let mut of_it = Vec::new();
    for entry in spent.iter()? {
        let (identity, entry) = entry?;
        let (key, agent) = entry.value();
        if agent == name {
            of_it.push((identity.value(), key));
        }
    }
    for (identity, key) in of_it {
        spent.insert(identity, (key, ""))?;
    }
    Ok(())
}
