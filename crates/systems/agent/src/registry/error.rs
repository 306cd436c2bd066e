//! Why the controller refuses a request.

use crate::document::DocumentError;
use crate::limits::AGENTS_MAX;
use crate::message::ReportError;

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// No agent has that certificate.
    #[error("this certificate belongs to no enrolled agent: enrol again")]
    Unknown,
    /// The agent is revoked.
    #[error("agent {0} is revoked: `strata controller forget {0}` lets it enrol again")]
    Revoked(String),
    /// The name is in use.
    #[error(
        "an agent named {0} is enrolled: give this host another name (--name), or let it enrol again \
         with `strata controller forget {0}`"
    )]
    Taken(String),
    /// The name is in use, by a member of another kind.
    #[error(
        "the name {name} belongs to {has}, and {wants} cannot have it: a collector has the name of its destination, an \
         agent any other"
    )]
    OtherKind {
        /// The name.
        name: String,
        /// What has it.
        has: &'static str,
        /// What wants it.
        wants: &'static str,
    },
    /// There are too many.
    #[error("{AGENTS_MAX} agents are enrolled already, the maximum")]
    Full,
    /// There is no agent of that name.
    #[error(
        "there is no agent or collector {0}: `strata controller agents` and `strata controller status` list them"
    )]
    NoAgent(String),
    /// A message is out of bounds.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// The files are wrong.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// Two interfaces would have one identity.
    #[error(
        "identity {identity} belongs to {owner}, so {wanted} cannot have it: choose another \
         number, or forget {owner}"
    )]
    Collision {
        /// The number.
        identity: u32,
        /// Who has it.
        owner: String,
        /// Who should get it.
        wanted: String,
    },
    /// Somebody else still has the key of an identity.
    #[error(
        "identity {identity} cannot be given to {wanted}: its previous host still has the key: \
         choose \
         another number, or replace export.key"
    )]
    Spent {
        /// The number.
        identity: u32,
        /// Who should get it.
        wanted: String,
    },
    /// Another agent reports with the same certificate, and was there first.
    #[error(
        "{name} already reports from {other}: one of the two directories is a copy of the other. \
         Each host needs its own directory: on the host with the copy, stop the program, remove \
         the directory (--state), and enrol again"
    )]
    Copy {
        /// Its name.
        name: String,
        /// Where the other one is.
        other: String,
        /// Whether this was not known before.
        is_new: bool,
    },
    /// A member of the fleet asks for what is not for it.
    #[error("{0} is enrolled as {1}, which may not do this: enrol under another name")]
    NotThat(String, &'static str),
    /// There is no version before.
    #[error("there is no previous version of the policies to apply again")]
    NothingBefore,
}
