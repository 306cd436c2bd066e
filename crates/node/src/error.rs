//! Why a role could not start, or failed.

use std::error::Error;
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
use strata_sandbox::{OwnerError, PrivilegeError, SocketError};
use strata_store::StoreError;
use strata_wire::Imbalance;

use crate::stream::StreamError;
use crate::telemetry::CollectorError;

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
    /// A telemetry collector, or the connection to one, failed.
    #[error(transparent)]
    Collector(#[from] CollectorError),
    /// A user or group is unknown, or privileges cannot be dropped.
    #[error(transparent)]
    Privileges(#[from] PrivilegeError),
    /// Files cannot be given to their owner.
    #[error(transparent)]
    Owner(#[from] OwnerError),
    /// A certificate or key cannot be used.
    #[error(transparent)]
    Tls(#[from] strata_auth::tls::TlsError),
    /// A Unix socket cannot be created.
    #[error(transparent)]
    Socket(#[from] SocketError),

    /// A stream cannot be appended to.
    #[error(transparent)]
    Stream(#[from] StreamError),
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
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            let more = error.to_string();
            if !text.contains(&more) {
                text = format!("{text}: {more}");
            }
            cause = error.source();
        }
        text
    }

    /// Whether the system denied access.
    pub(crate) fn is_denied(&self) -> bool {
        let is_it = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        match self {
            Self::At { source, .. } => source.is_denied(),
            Self::Io(error) => is_it(error),
            other => {
                let causes = std::iter::successors(other.source(), |&error| error.source());
                let mut causes = causes.filter_map(|error| error.downcast_ref::<io::Error>());
                causes.any(is_it)
            }
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
