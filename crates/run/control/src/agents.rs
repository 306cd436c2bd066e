//! A controller of agents, for those who ask it: agents over TLS, administrators over a Unix socket.

use strata_agent::{
    AgentStatus, Applied, Assignment, DocumentFile, Enrol, Enrolled, Renew, Report, Rollout,
};
use strata_auth::authority::Fingerprint;
use tokio::sync::watch;

/// Why a controller refuses a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AgentsRefused {
    /// The client has not proved that it may ask.
    #[error("{0}")]
    Stranger(String),
    /// The agent is asking something already.
    #[error("{0}")]
    Busy(String),
    /// The request is wrong.
    #[error("{0}")]
    Wrong(String),
    /// What it has decided cannot be stored.
    #[error("the controller cannot store its state, and ends: {0}")]
    Store(String),
}

/// What a controller does. Answers are stored before they are given.
pub trait AgentsService: Send + Sync + 'static {
    /// Gives a first certificate to a host that has the token.
    ///
    /// # Errors
    ///
    /// Why not: as for all methods below.
    fn enrol(&self, request: &Enrol) -> Result<Enrolled, AgentsRefused>;
    /// Whether an agent has this certificate.
    ///
    /// # Errors
    ///
    /// If none has, or one that is revoked.
    fn knows(&self, shown: &Fingerprint) -> Result<(), AgentsRefused>;
    /// Gives another certificate to the agent with this one.
    ///
    /// # Errors
    ///
    /// As [`AgentsService::enrol`].
    fn renew(&self, shown: &Fingerprint, request: &Renew) -> Result<Enrolled, AgentsRefused>;
    /// Takes the report of the agent with this certificate; returns what it is to do, if that is not what
    /// it has.
    ///
    /// # Errors
    ///
    /// As [`AgentsService::enrol`].
    fn report(
        &self,
        shown: &Fingerprint,
        report: Report,
    ) -> Result<Option<Assignment>, AgentsRefused>;
    /// The same without another report.
    ///
    /// # Errors
    ///
    /// As [`AgentsService::enrol`].
    fn assignment(&self, shown: &Fingerprint) -> Result<Option<Assignment>, AgentsRefused>;
    /// Changes when agents may get something else to do.
    fn changes(&self) -> watch::Receiver<u64>;
    /// All agents.
    fn agents(&self) -> Vec<AgentStatus>;
    /// How far the version that holds is.
    fn rollout(&self) -> Rollout;
    /// Applies the files of a directory; or says only what that would change.
    ///
    /// # Errors
    ///
    /// As [`AgentsService::enrol`].
    fn apply(&self, files: &[DocumentFile], dry_run: bool) -> Result<Applied, AgentsRefused>;
    /// Returns to the version before.
    ///
    /// # Errors
    ///
    /// As [`AgentsService::enrol`].
    fn undo(&self) -> Result<Applied, AgentsRefused>;
    /// Refuses an agent from now on.
    ///
    /// # Errors
    ///
    /// As [`AgentsService::enrol`].
    fn revoke(&self, name: &str) -> Result<(), AgentsRefused>;
    /// Forgets an agent.
    ///
    /// # Errors
    ///
    /// As [`AgentsService::enrol`].
    fn forget(&self, name: &str) -> Result<(), AgentsRefused>;
}
