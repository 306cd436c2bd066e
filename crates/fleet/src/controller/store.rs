//! A controller's state in SQLite.

use std::path::Path;

use rusqlite::{Connection, params};
use strata_agent::{AgentRecord, Change, Documents, SpentIdentity, Stored, Version};
use strata_role::{Result, RoleError};

/// Of the tables below.
const SCHEMA: i64 = 2;

const TABLES: &str = "
    CREATE TABLE agents (name TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE identities (identity INTEGER PRIMARY KEY, agent TEXT NOT NULL,
        interface TEXT NOT NULL) STRICT;
    CREATE INDEX identities_by_agent ON identities (agent);
    CREATE TABLE versions (number INTEGER PRIMARY KEY, since INTEGER NOT NULL,
        documents TEXT NOT NULL) STRICT;
";

/// What the second version has more than the first.
const TABLES_2: &str = "
    CREATE TABLE spent (identity INTEGER PRIMARY KEY, key INTEGER NOT NULL,
        agent TEXT NOT NULL) STRICT;
    PRAGMA user_version = 2;
";

/// The database, which no other process may use meanwhile.
pub(super) struct Store(Connection);

type Sql<T> = std::result::Result<T, rusqlite::Error>;

fn json_error(error: serde_json::Error) -> rusqlite::Error {
    rusqlite::Error::ToSqlConversionFailure(Box::new(error))
}

impl Store {
    /// Opens the database, made if there is none, and reads it.
    pub(super) fn open(path: &Path) -> Result<(Self, Stored)> {
        let failed = |error: rusqlite::Error| {
            let what = match error.sqlite_error_code() {
                Some(rusqlite::ErrorCode::DatabaseBusy) => {
                    String::from("another controller is using it")
                }
                _ => error.to_string(),
            };
            RoleError::Refused(format!("{}: {what}", path.display()))
        };
        let connection = Connection::open(path).map_err(failed)?;
        let store = Self(connection);
        let stored = store.prepare().and_then(|known| match known {
            0 | 1 | SCHEMA => store.read().map(Some),
            _ => Ok(None),
        });
        match stored.map_err(failed)? {
            Some(stored) => Ok((store, stored)),
            None => Err(RoleError::Refused(format!(
                "{}: written by another version of Strata, which this one does not read",
                path.display()
            ))),
        }
    }

    /// Takes the database for this process, and makes its tables; returns what version they had.
    fn prepare(&self) -> Sql<i64> {
        let set = |name, value: &str| self.0.pragma_update(None, name, value);
        set("locking_mode", "EXCLUSIVE")?;
        set("journal_mode", "WAL")?;
        set("synchronous", "FULL")?;
        let known: i64 = self
            .0
            .pragma_query_value(None, "user_version", |row| row.get(0))?;
        // Takes the lock, also if there is nothing to make.
        let make = match known {
            0 => [TABLES, TABLES_2],
            1 => ["", TABLES_2],
            _ => ["", ""],
        };
        self.0
            .execute_batch(&format!("BEGIN IMMEDIATE; {} COMMIT;", make.concat()))?;
        Ok(known)
    }

    fn read(&self) -> Sql<Stored> {
        let parsed = |text: String| serde_json::from_str::<AgentRecord>(&text).map_err(json_error);
        let mut agents = self.0.prepare("SELECT record FROM agents")?;
        let agents = agents.query_map([], |row| row.get(0))?;
        let agents: Sql<Vec<AgentRecord>> = agents.map(|text| text.and_then(parsed)).collect();
        let mut identities = self
            .0
            .prepare("SELECT identity, agent, interface FROM identities")?;
        let identity = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        let identities: Sql<Vec<_>> = identities.query_map([], identity)?.collect();
        let mut spent = self.0.prepare("SELECT identity, key, agent FROM spent")?;
        let one = |row: &rusqlite::Row<'_>| {
            Ok(SpentIdentity {
                identity: row.get(0)?,
                key: row.get(1)?,
                agent: row.get(2)?,
            })
        };
        let spent: Sql<Vec<SpentIdentity>> = spent.query_map([], one)?.collect();
        let mut versions = self
            .0
            .prepare("SELECT number, since, documents FROM versions")?;
        let version = |row: &rusqlite::Row<'_>| {
            let text: String = row.get(2)?;
            let documents: Documents = serde_json::from_str(&text).map_err(json_error)?;
            Ok(Version {
                number: row.get(0)?,
                since: row.get(1)?,
                documents,
            })
        };
        let versions: Sql<Vec<Version>> = versions.query_map([], version)?.collect();
        Ok(Stored {
            agents: agents?,
            identities: identities?,
            spent: spent?,
            versions: versions?,
        })
    }

    /// Stores changes: all of them, or none.
    pub(super) fn save(&mut self, changes: &[Change]) -> Sql<()> {
        let transaction = self.0.transaction()?;
        for change in changes {
            match change {
                Change::Agent(record) => {
                    let text = serde_json::to_string(record).map_err(json_error)?;
                    let sql = "INSERT OR REPLACE INTO agents VALUES (?1, ?2)";
                    transaction
                        .prepare(sql)?
                        .execute(params![record.name, text])?
                }
                Change::AgentGone(name) => {
                    transaction.execute("DELETE FROM identities WHERE agent = ?1", [name])?;
                    transaction.execute("UPDATE spent SET agent = '' WHERE agent = ?1", [name])?;
                    transaction.execute("DELETE FROM agents WHERE name = ?1", [name])?
                }
                Change::Identity {
                    identity,
                    agent,
                    interface,
                } => {
                    let sql = "DELETE FROM spent WHERE identity = ?1";
                    transaction.prepare(sql)?.execute([identity])?;
                    let sql = "INSERT INTO identities VALUES (?1, ?2, ?3)";
                    transaction
                        .prepare(sql)?
                        .execute(params![identity, agent, interface])?
                }
                Change::IdentityGone(identity) => {
                    transaction.execute("DELETE FROM identities WHERE identity = ?1", [identity])?
                }
                Change::Spent(spent) => {
                    let sql = "INSERT OR REPLACE INTO spent VALUES (?1, ?2, ?3)";
                    let spent = params![spent.identity, spent.key, spent.agent];
                    transaction.prepare(sql)?.execute(spent)?
                }
                Change::Version(version) => {
                    let text = serde_json::to_string(&version.documents).map_err(json_error)?;
                    let sql = "INSERT INTO versions VALUES (?1, ?2, ?3)";
                    transaction.execute(sql, params![version.number, version.since, text])?
                }
                Change::VersionGone(number) => {
                    transaction.execute("DELETE FROM versions WHERE number = ?1", [number])?
                }
            };
        }
        transaction.commit()
    }
}
