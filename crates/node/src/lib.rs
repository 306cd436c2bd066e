//! Runs a role: from a [`Spec`] to a log.
//!
//! The caller (the command line, a test) describes the role in a [`Spec`], and gets a [`Handle`] to
//! query, change and end it. Progress is reported as [`Notice`]s, and the result as an [`Outcome`];
//! nothing here prints, reads arguments or handles signals.
//!
//! ```text
//! start, check     the order: opening, dropping privileges, starting threads
//! Handle           a running recording
//! files, live      the two kinds of recordings: from capture files, from interfaces
//! observer         the workers' reports, combined for the controller
//! sensors, governor, watchdog, reclaim, eve
//!                  what is monitored during a live capture, and the response to it
//! relay            the disk of a relay: its sensors, and the response to shortages
//! destination      a log on this machine, or a relay
//! configuration    the configuration file, read once per start and once per reload
//! preflight        what is checked before anything is changed
//! sandbox, log_dir what is dropped once all is open; what is created, and for whom
//! ```
//!
//! Crates above: `cli` only. This is where siblings meet: control, pipeline, capture, store,
//! archive and relay know nothing of each other's threads.
#![forbid(unsafe_code)]

mod configuration;
mod destination;
mod eve;
mod files;
mod governor;
mod handle;
mod journal;
mod live;
pub mod log_dir;
mod notice;
mod observer;
mod outcome;
mod preflight;
mod reclaim;
pub mod relay;
pub mod sandbox;
mod sensors;
mod setup;
mod spec;
mod start;
mod watchdog;

pub use destination::Closed;
pub use handle::{Counts, Handle};
pub use notice::{Notice, Tell};
pub use outcome::Outcome;
pub use spec::{
    DestinationSpec, InputSpec, InterfaceSpec, LogSpec, ModelSpec, SandboxSpec, Spec, SteeringSpec,
    TriggerSpec,
};
pub use start::{check, start};
