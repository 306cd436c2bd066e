//! A controller of agents, for those who ask it: agents over TLS, administrators over a Unix socket.

pub mod agent_client;

use strata_agent::{
    AgentStatus, Applied, Assignment, CollectorReport, DestinationSum, DocumentFile, Enrol,
    Enrolled, Event, Renew, Report, Rollout,
};
use strata_auth::authority::Fingerprint;
use tokio::sync::watch;

use crate::metrics::Format;

/// Why a controller refuses a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AgentsRefused {
    /// The client has not proved that it may ask.
    #[error("{0}")]
    Stranger(String),
    /// The agent is asking something already.
    #[error("{0}")]
    Busy(String),
    /// Another agent asks with the same certificate.
    #[error("{0}")]
    Copy(String),
    /// The request is wrong.
    #[error("{0}")]
    Wrong(String),
    /// What it has decided cannot be stored.
    #[error("the controller cannot store its state, and ends: {0}")]
    Store(String),
}

/// Who makes a change, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct By {
    /// `uid 0`, or the address of a host.
    pub who: String,
    /// As the user said; empty if it was not said.
    pub why: String,
}

/// What a controller does. Answers are stored before they are given.
pub trait AgentsService: Send + Sync + 'static {
    /// Gives a first certificate to a host that has the token; `from` is its address.
    ///
    /// # Errors
    ///
    /// Why not: as for all methods below.
    fn enrol(&self, request: &Enrol, from: &str) -> Result<Enrolled, AgentsRefused>;
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
    /// Takes the report of the agent with this certificate, from an address; returns what it is to do, if that is not
    /// what it has.
    ///
    /// # Errors
    ///
    /// As [`AgentsService::enrol`].
    fn report(
        &self,
        shown: &Fingerprint,
        report: Report,
        from: &str,
    ) -> Result<Option<Assignment>, AgentsRefused>;
    /// Takes the report of the collector with this certificate, from an address.
    ///
    /// # Errors
    ///
    /// As [`AgentsService::enrol`].
    fn collected(
        &self,
        shown: &Fingerprint,
        report: CollectorReport,
        from: &str,
    ) -> Result<(), AgentsRefused>;
    /// The connection of a run of the agent, or collector, with this certificate has ended.
    fn left(&self, shown: &Fingerprint, run: u64);
    /// What the agent with this certificate is to do, without another report.
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
    /// What was exported to each destination, and what its collector has received.
    fn sums(&self) -> Vec<DestinationSum>;
    /// What is known of all of them, as metrics.
    fn metrics(&self, format: Format) -> String;
    /// The latest events, at most this number, the latest last.
    fn events(&self, most: usize) -> Vec<Event>;
    /// Applies the files of a directory; or says only what that would change.
    ///
    /// # Errors
    ///
    /// As [`AgentsService::enrol`].
    fn apply(
        &self,
        files: &[DocumentFile],
        dry_run: bool,
        by: &By,
    ) -> Result<Applied, AgentsRefused>;
    /// Returns to the version before.
    ///
    /// # Errors
    ///
    /// As [`AgentsService::enrol`].
    fn undo(&self, by: &By) -> Result<Applied, AgentsRefused>;
    /// Refuses an agent from now on.
    ///
    /// # Errors
    ///
    /// As [`AgentsService::enrol`].
    fn revoke(&self, name: &str, by: &By) -> Result<(), AgentsRefused>;
    /// Forgets an agent.
    ///
    /// # Errors
    ///
    /// As [`AgentsService::enrol`].
    fn forget(&self, name: &str, by: &By) -> Result<(), AgentsRefused>;
}
