//! Running recordings, as commands name them.

use std::path::{Path, PathBuf};

use anyhow::Result;
use strata_control::client::Client;

/// Which recording to talk to.
#[derive(Debug, clap::Args)]
pub struct RecordingArgs {
    /// Use the recording or collector that listens on this socket (`--socket` of `strata record` and
    /// `strata collector`); by default, the only running one.
    #[arg(long, value_name = "PATH", env = "STRATA_SOCKET")]
    socket: Option<PathBuf>,
}

impl RecordingArgs {
    /// The socket, if one is named.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// Clients of the named recording, or of all that run.
    pub fn clients(&self) -> Result<Vec<Client>> {
        Ok(Client::all(self.socket.as_deref())?)
    }

    /// A client of its control API.
    pub fn client(&self) -> Result<Client> {
        Ok(Client::new(self.socket.as_deref())?)
    }
}
