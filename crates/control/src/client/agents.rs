//! Asks a controller of agents, over the Unix socket in its state.

use strata_agent::{AgentStatus, Applied, DocumentFile, Rollout};

use super::{Client, ClientError};
use crate::api::{AgentRequest, ApplyRequest};
use hyper::Method;

impl Client {
    /// All agents of a controller.
    ///
    /// # Errors
    ///
    /// As [`Client::status`], for all methods here.
    pub fn agents(&self) -> Result<Vec<AgentStatus>, ClientError> {
        self.get("/api/v1/agents")
    }

    /// How far the version that holds is.
    ///
    /// # Errors
    ///
    /// As [`Client::status`].
    pub fn rollout(&self) -> Result<Rollout, ClientError> {
        self.get("/api/v1/agents/rollout")
    }

    /// Applies the files of a directory, or says only what that would change.
    ///
    /// # Errors
    ///
    /// As [`Client::status`].
    pub fn apply(&self, files: Vec<DocumentFile>, dry_run: bool) -> Result<Applied, ClientError> {
        let request = ApplyRequest { files, dry_run };
        self.send(Method::POST, "/api/v1/agents/apply", &request)
    }

    /// Returns to the version before.
    ///
    /// # Errors
    ///
    /// As [`Client::status`].
    pub fn undo(&self) -> Result<Applied, ClientError> {
        self.send(Method::POST, "/api/v1/agents/undo", &())
    }

    /// Refuses an agent from now on.
    ///
    /// # Errors
    ///
    /// As [`Client::status`].
    pub fn revoke_agent(&self, name: &str) -> Result<(), ClientError> {
        let name = name.to_owned();
        self.send(
            Method::POST,
            "/api/v1/agents/revoke",
            &AgentRequest { name },
        )
    }

    /// Forgets an agent.
    ///
    /// # Errors
    ///
    /// As [`Client::status`].
    pub fn forget_agent(&self, name: &str) -> Result<(), ClientError> {
        let name = name.to_owned();
        self.send(
            Method::POST,
            "/api/v1/agents/forget",
            &AgentRequest { name },
        )
    }
}
