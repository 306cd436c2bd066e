//! Why a role could not start, or failed.

use std::error::Error;
use std::fmt::Display;
use std::io;

use strata_auth::tls::TlsError;
use strata_sandbox::{OwnerError, PrivilegeError, SocketError};

/// Why a role could not start, or failed: what can go wrong with any of them, and what only one of them
/// can say.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RoleError {
    /// The option, file or address at fault; the source says what is wrong with it.
    #[error("{what}")]
    At {
        /// Its name.
        what: String,
        /// What is wrong.
        source: Box<Self>,
    },
    /// The spec asks for what can never be done, whatever the machine. The text says what to do instead.
    #[error("{0}")]
    Invalid(String),
    /// What the spec asks for cannot be done here, or another end refuses it. The text says what to do instead.
    #[error("{0}")]
    Refused(String),
    /// A user or group is unknown, or privileges cannot be dropped.
    #[error(transparent)]
    Privileges(#[from] PrivilegeError),
    /// Files cannot be given to their owner.
    #[error(transparent)]
    Owner(#[from] OwnerError),
    /// A certificate or key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A Unix socket cannot be created.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// A file or an address cannot be used.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A thread cannot be started.
    #[error("cannot start the thread that {task}")]
    Thread {
        /// What it would do, as in `writes status.json`.
        task: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A thread panicked: a fault of Strata's own.
    #[error("{0}")]
    Panicked(&'static str),
    /// An error of what this role alone does.
    #[error(transparent)]
    Own(Box<dyn Error + Send + Sync>),
}

/// What a role does, or why not.
pub type Result<T, E = RoleError> = std::result::Result<T, E>;

impl RoleError {
    /// That the thread for a task cannot be started: `task` is what it does, as in `writes status.json`.
    pub fn thread(task: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Thread { task, source }
    }

    /// An error of what only one role does.
    pub fn own(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Own(Box::new(error))
    }

    /// The error of this type that only one role has, if it is that; wherever it is.
    #[must_use]
    pub fn find<E: Error + 'static>(&self) -> Option<&E> {
        match self {
            Self::At { source, .. } => source.find(),
            Self::Own(error) => error.downcast_ref(),
            _ => None,
        }
    }

    /// Whether the spec is invalid.
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        match self {
            Self::At { source, .. } => source.is_invalid(),
            other => matches!(other, Self::Invalid(_)),
        }
    }

    /// Whether the system denied access.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        match self {
            Self::At { source, .. } => source.is_denied(),
            Self::Io(error) => is_denied(error),
            other => cause_is_denied(other),
        }
    }

    /// As [`chain`].
    #[must_use]
    pub fn chain(&self) -> String {
        chain(self)
    }
}

fn is_denied(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// Whether an error has a cause that is a refusal of the system.
#[must_use]
pub fn cause_is_denied(error: &dyn Error) -> bool {
    let causes = std::iter::successors(error.source(), |&error| error.source());
    let mut causes = causes.filter_map(|error| error.downcast_ref::<io::Error>());
    causes.any(is_denied)
}

/// An error and its causes in one line, each stated once.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// Names what went wrong.
pub trait At<T> {
    /// At this option, file or address.
    ///
    /// # Errors
    ///
    /// The error as it was, with that name before it.
    fn at(self, what: impl Display) -> Result<T>;

    /// At what this returns.
    ///
    /// # Errors
    ///
    /// As [`At::at`].
    fn at_with<D: Display>(self, what: impl FnOnce() -> D) -> Result<T>;
}

impl<T, E: Into<RoleError>> At<T> for std::result::Result<T, E> {
    fn at(self, what: impl Display) -> Result<T> {
        self.at_with(|| what)
    }

    fn at_with<D: Display>(self, what: impl FnOnce() -> D) -> Result<T> {
        self.map_err(|error| RoleError::At {
            what: what().to_string(),
            source: Box::new(error.into()),
        })
    }
}

/// Refuses a spec as invalid unless a condition holds.
///
/// # Errors
///
/// [`RoleError::Invalid`], with the text.
pub fn require_valid(holds: bool, problem: impl FnOnce() -> String) -> Result<()> {
    match holds {
        true => Ok(()),
        false => Err(RoleError::Invalid(problem())),
    }
}

/// Refuses unless a condition holds.
///
/// # Errors
///
/// [`RoleError::Refused`], with the text.
pub fn require(holds: bool, problem: impl FnOnce() -> String) -> Result<()> {
    match holds {
        true => Ok(()),
        false => Err(RoleError::Refused(problem())),
    }
}
