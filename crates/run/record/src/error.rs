//! Why a recording or a relay could not start, or failed.

use std::fmt::Display;
use std::io;

use strata_blocks::SinkError;
use strata_capture::CaptureError;
use strata_capture::live::LiveError;
use strata_control::ControlError;
use strata_control::alerts::WebhookError;
use strata_control::api::ListenError;
use strata_control::config::{ConfigError, EndpointError};
use strata_pipeline::{PathError, RunError};
use strata_policy::ModeError;
use strata_relay::RelayError;
use strata_role::{RoleError, cause_is_denied};
use strata_sandbox::{OwnerError, PrivilegeError, SocketError};
use strata_send::SendError;
use strata_store::StoreError;
use strata_wire::Imbalance;

/// Why a recording or a relay could not start, or failed: what only they can say, and what can go wrong with
/// any role. An error that has the name of an option, file or address is the latter, and holds the former.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
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
    /// The counters contradict each other: a fault of Strata's own.
    #[error(transparent)]
    Ledger(#[from] Imbalance),
}

impl From<RecordError> for RoleError {
    fn from(error: RecordError) -> Self {
        match error {
            RecordError::Role(error) => error,
            own => Self::own(own),
        }
    }
}

/// What goes wrong with any role, by what it goes wrong with.
macro_rules! of_any_role {
    ($($error:ty),*) => {$(
        impl From<$error> for RecordError {
            fn from(error: $error) -> Self {
                Self::Role(error.into())
            }
        }
    )*};
}

of_any_role!(io::Error, PrivilegeError, OwnerError, SocketError);

impl From<RunError> for RecordError {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Capture(error) => Self::Input(error),
            RunError::Sink(error) => Self::Log(error.into()),
        }
    }
}

pub(crate) type Result<T, E = RecordError> = std::result::Result<T, E>;

impl RecordError {
    /// The error and its causes in one line, each stated once.
    #[must_use]
    pub fn chain(&self) -> String {
        strata_role::chain(self)
    }

    /// Whether the log could not be written.
    pub(crate) fn is_of_log(&self) -> bool {
        matches!(self, Self::Log(_) | Self::Sink(_))
    }

    /// Whether the system denied access.
    pub(crate) fn is_denied(&self) -> bool {
        match self {
            Self::Role(error) => error.is_denied(),
            own => cause_is_denied(own),
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

impl<T, E: Into<RecordError>> At<T> for std::result::Result<T, E> {
    fn at(self, what: impl Display) -> Result<T> {
        self.at_with(|| what)
    }

    fn at_with<D: Display>(self, what: impl FnOnce() -> D) -> Result<T> {
        let known = self.map_err(|error| RoleError::from(error.into()));
        Ok(strata_role::At::at_with(known, what)?)
    }
}
