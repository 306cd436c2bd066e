//! A stream of this machine as the output of a role.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use strata_role::sandbox::thread;
use strata_role::{Feed, FeedCounts, FeedSpec, Notice, Tell};
use strata_sandbox::Role;
use strata_stream::StreamName;

use super::dir::StreamDir;
use super::error::Result;
use super::feed::{StreamFeed, WhenFull};
use crate::dir::stripes::paths_of;

/// A stream that a role is to feed.
pub struct FedStream {
    dir: StreamDir,
    name: StreamName,
    path: PathBuf,
    /// Whether pages of it are at servers.
    has_servers: bool,
    when_full: WhenFull,
}

impl fmt::Debug for FedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {}/{}", self.path.display(), self.name)
    }
}

impl FedStream {
    /// Opens its directory: certificates, and names of servers, may have to be read, which a role in its sandbox
    /// cannot. Records for which there is no room are lost, or waited for.
    ///
    /// # Errors
    ///
    /// If there is no such stream, or it is damaged.
    pub fn open(dir: &Path, name: &StreamName, when_full: WhenFull) -> Result<Self> {
        let path = dir.to_owned();
        let dir = StreamDir::open(dir)?;
        Ok(Self {
            has_servers: dir.meet_servers()?,
            dir,
            name: name.clone(),
            path,
            when_full,
        })
    }
}

impl FeedSpec for FedStream {
    fn writes(&self) -> Vec<PathBuf> {
        paths_of(&self.path)
    }

    fn open(self: Box<Self>, tell: &Tell) -> strata_role::Result<Box<dyn Feed>> {
        let Self {
            dir,
            name,
            path,
            has_servers,
            when_full,
        } = *self;
        let named = format!("{}/{name}", path.display());
        let tell = Arc::clone(tell);
        let warn = move |text: &str| tell(&Notice::warning(format!("stream {named}: {text}")));
        let role = match has_servers {
            true => Role::Files,
            false => Role::Writer,
        };
        let begin = move || thread(role);
        let feed = StreamFeed::open(dir, &name, when_full, Box::new(warn), begin)?;
        Ok(Box::new(feed))
    }
}

impl Feed for StreamFeed {
    fn put(&mut self, record: &[u8]) -> strata_role::Result<()> {
        Self::put(self, record)?;
        Ok(())
    }

    fn put_by(&mut self, record: &[u8], deadline: Instant) {
        // One that loses what it cannot take does not fail.
        let _ = Self::put_by(self, record, deadline);
    }

    fn lose(&mut self, records: u64) {
        Self::lose(self, records);
    }

    fn counts(&self) -> FeedCounts {
        Self::counts(self)
    }

    fn finish(self: Box<Self>) -> strata_role::Result<FeedCounts> {
        Ok(Self::finish(*self)?)
    }
}
