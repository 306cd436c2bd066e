//! The HTTP API of the process that has a store's memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use strata_control::api::{Endpoints, Server, TcpEndpoint};
use strata_role::{Notice, Result, Tell};
use strata_sandbox::{Owner, SocketFile};

use crate::answers::Answers;
use crate::api::http;
use crate::api::pushes::Pushes;

/// The addresses on which the API of a collector is served.
#[derive(Debug, Default)]
pub struct TelemetryApiSpec {
    /// A Unix socket.
    pub socket: Option<PathBuf>,
    /// An address of TCP.
    pub tcp: Option<TcpEndpoint>,
}

impl TelemetryApiSpec {
    /// Whether it is served anywhere.
    pub(crate) fn is_wanted(&self) -> bool {
        self.socket.is_some() || self.tcp.is_some()
    }

    /// Makes the socket, which this process may not do once it is sandboxed.
    pub(crate) fn bind(&mut self, owner: &Owner) -> Result<Endpoints> {
        let path = self.socket.as_deref();
        let socket = path.map(|path| SocketFile::bind(path, owner)).transpose()?;
        let tcp = self.tcp.take();
        Ok(Endpoints { socket, tcp })
    }
}

/// A running API, if it is wanted.
#[derive(Debug, Default)]
pub(crate) struct Api {
    answers: Option<Arc<Answers>>,
    _server: Option<Server>,
}

impl Api {
    /// Serves what is asked of the store in `dir`, and immediate reports.
    pub(crate) fn serve(
        dir: &Path,
        pushes: Arc<Pushes>,
        endpoints: Endpoints,
        tell: &Tell,
    ) -> Result<Self> {
        if endpoints.socket.is_none() && endpoints.tcp.is_none() {
            return Ok(Self::default());
        }
        let answers = Arc::new(Answers::new(dir));
        let tell = Arc::clone(tell);
        let warn = move |text| tell(&Notice::warning(text));
        let server = http::serve(Arc::clone(&answers) as _, pushes, endpoints, warn)?;
        Ok(Self {
            answers: Some(answers),
            _server: Some(server),
        })
    }

    /// The store was described anew.
    pub(crate) fn renew(&self) {
        if let Some(answers) = &self.answers {
            answers.renew();
        }
    }
}
