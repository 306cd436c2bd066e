//! Captures on many hosts, steered from one place: the logic of the controller and of its agents.
//!
//! No I/O, no clock, no thread: reports, documents and times in; assignments, changes to store and
//! things to do out. Sockets, certificates, the database and processes are of `fleet`; HTTP is of `control`.
//!
//! Layers, top-down; each uses only those below it:
//!
//! ```text
//! registry   the controller: who is enrolled, who has which identity, which policies apply where
//! follower   the agent: what to capture and export, from what it was assigned and what is there
//! plan       a recording of an agent
//! bridged    what crosses a bridge is exported once
//! switched   the same for switches in user space
//! document   policies, tenants and identities as an administrator writes them; differences
//! closing    whether the sums of what was exported and received close
//! message    what agents and controller say to each other
//! pattern    names with * and ?
//! limits     how much there may be
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

mod bridged;
mod closing;
mod document;
mod follower;
mod limits;
mod message;
mod pattern;
mod plan;
mod registry;
mod switched;

pub use closing::{Closing, OVERDUE_SECONDS};
pub use document::{Difference, DocumentError, DocumentFile, Documents, FILES_MAX, POLICIES_MAX};
pub use follower::{Follower, Local, Step};
pub use limits::{AGENTS_MAX, IDENTITY_MAX, INTERFACES_MAX};
pub use message::{
    AgentStatus, Applied, AssignedPolicy, Assignment, CollectedSession, CollectorReport,
    CollectorState, CpuUse, DestinationSum, Enrol, Enrolled, Event, EventKind, ExportCount,
    Interface, InterfaceSum, NAME_BYTES_MAX, Renew, Report, ReportError, Rollout, RolloutAgent,
    SESSIONS_MAX, SessionCount, check_why,
};
pub use pattern::matches;
pub use plan::Plan;
pub use registry::{
    AgentRecord, Change, EVENTS_MAX, Registry, RegistryError, SpentIdentity, Stored, Version,
};
pub use switched::{Switch, Switches};
