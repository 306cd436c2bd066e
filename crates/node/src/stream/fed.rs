//! A stream of this machine as the output of a role that must not wait for it.

use std::path::PathBuf;
use std::sync::Arc;

use strata_sandbox::Role;
use strata_stream::StreamName;

use super::dir::StreamDir;
use super::error::Result;
use super::feed::{StreamFeed, WhenFull};
use crate::notice::{Notice, Tell};
use crate::sandbox::thread;

/// A stream that a role is to feed.
pub(crate) struct Fed {
    dir: StreamDir,
    name: StreamName,
    named: String,
    /// Whether pages of it are at servers.
    has_servers: bool,
}

impl Fed {
    /// Opens its directory. Before the role is in its sandbox: it may have to read certificates, and names of servers.
    pub(crate) fn open((dir, name): &(PathBuf, StreamName)) -> Result<Self> {
        let named = format!("{}/{name}", dir.display());
        let dir = StreamDir::open(dir)?;
        Ok(Self {
            has_servers: dir.meet_servers()?,
            dir,
            name: name.clone(),
            named,
        })
    }

    /// Opens the stream for records that may be lost; warns when they begin to be, and when they no longer are.
    pub(crate) fn feed(self, tell: &Tell) -> Result<StreamFeed> {
        let Self {
            dir, name, named, ..
        } = self;
        let tell = Arc::clone(tell);
        let warn = move |text: &str| tell(&Notice::Warning(format!("stream {named}: {text}")));
        let role = match self.has_servers {
            true => Role::Files,
            false => Role::Writer,
        };
        let begin = move || thread(role);
        StreamFeed::open(dir, &name, WhenFull::Lose, Box::new(warn), begin)
    }
}
