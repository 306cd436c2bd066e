//! Why a role could not start, or failed.

use std::fmt::Display;
use std::io;

use strata_blocks::SinkError;
use strata_capture::CaptureError;
use strata_capture::live::LiveError;
use strata_capture::send::SendError;
use strata_control::ControlError;
use strata_control::alerts::WebhookError;
use strata_control::api::ListenError;
use strata_control::config::{ConfigError, EndpointError};
use strata_pipeline::{PathError, RunError};
use strata_policy::ModeError;
use strata_relay::RelayError;
use strata_role::{RoleError, cause_is_denied};
use strata_sandbox::{OwnerError, PrivilegeError, SocketError};
use strata_store::StoreError;
use strata_wire::Imbalance;

/// Why a role could not start, or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The option, file or address at fault; the source says what is wrong with it.
    #[error("{what}")]
    At {
        /// Its name.
        what: String,
        /// What is wrong.
        source: Box<Self>,
    },
    /// The spec asks for what cannot be done. The text says what to do instead.
    #[error("{0}")]
    Refused(String),
    /// A configuration file is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An address of the API is invalid.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The API cannot be served.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Alerts cannot be sent.
    #[error(transparent)]
    Webhook(#[from] WebhookError),
    /// A mode is unknown or does not go with the model.
    #[error(transparent)]
    Mode(#[from] ModeError),
    /// The controller refuses the settings.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A capture file cannot be read.
    #[error(transparent)]
    Input(#[from] CaptureError),
    /// An interface cannot be captured.
    #[error(transparent)]
    Interface(#[from] LiveError),
    /// Frames cannot be sent from an interface.
    #[error(transparent)]
    Send(#[from] SendError),
    /// `STRATA_PATH` names a data path that this machine does not have.
    #[error(transparent)]
    DataPath(#[from] PathError),
    /// The filter could be applied to no packet of the input, so none was recorded.
    #[error("the filter cannot be applied to any interface of the input: {0}")]
    FilterFitsNowhere(String),
    /// The log cannot be written.
    #[error(transparent)]
    Log(#[from] StoreError),
    /// What a worker recorded cannot be stored.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// A relay, or the connection to one, failed.
    #[error(transparent)]
    Relay(#[from] RelayError),
    /// What can go wrong with any role.
    #[error(transparent)]
    Role(#[from] RoleError),
    /// A file or an address cannot be used.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A thread cannot be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// A thread panicked: a fault of Strata's own.
    #[error("{0}")]
    Panicked(&'static str),
    /// The counters contradict each other: a fault of Strata's own.
    #[error(transparent)]
    Ledger(#[from] Imbalance),
}

impl From<PrivilegeError> for NodeError {
    fn from(error: PrivilegeError) -> Self {
        Self::Role(error.into())
    }
}

impl From<OwnerError> for NodeError {
    fn from(error: OwnerError) -> Self {
        Self::Role(error.into())
    }
}

impl From<SocketError> for NodeError {
    fn from(error: SocketError) -> Self {
        Self::Role(error.into())
    }
}

impl From<RunError> for NodeError {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Capture(error) => Self::Input(error),
            RunError::Sink(error) => Self::Log(error.into()),
        }
    }
}

pub(crate) type Result<T, E = NodeError> = std::result::Result<T, E>;

impl NodeError {
    /// The error and its causes in one line, each stated once.
    #[must_use]
    pub fn chain(&self) -> String {
        strata_role::chain(self)
    }

    /// Whether the system denied access.
    pub(crate) fn is_denied(&self) -> bool {
        match self {
            Self::At { source, .. } => source.is_denied(),
            Self::Role(error) => error.is_denied(),
            Self::Io(error) => error.kind() == io::ErrorKind::PermissionDenied,
            other => cause_is_denied(other),
        }
    }
}

/// Names what went wrong.
pub(crate) trait At<T> {
    /// At this option, file or address.
    fn at(self, what: impl Display) -> Result<T>;

    /// At what this returns.
    fn at_with<D: Display>(self, what: impl FnOnce() -> D) -> Result<T>;
}

impl<T, E: Into<NodeError>> At<T> for std::result::Result<T, E> {
    fn at(self, what: impl Display) -> Result<T> {
        self.at_with(|| what)
    }

    fn at_with<D: Display>(self, what: impl FnOnce() -> D) -> Result<T> {
        self.map_err(|error| NodeError::At {
            what: what().to_string(),
            source: Box::new(error.into()),
        })
    }
}

/// Refuses unless a condition holds.
pub(crate) fn require(holds: bool, problem: impl FnOnce() -> String) -> Result<()> {
    match holds {
        true => Ok(()),
        false => Err(NodeError::Refused(problem())),
    }
}
