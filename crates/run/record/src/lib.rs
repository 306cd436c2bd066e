//! Runs recordings, to a log or as a switch, and relays: [`RecordSpec`], [`RelaySpec`]; [`Compacting`] compacts a
//! log meanwhile, [`replay`] and [`generate`] send, all three on the calling thread. How roles start and end, what they say and drop, is in `strata_role`.
//!
//! ```text
//! record           the role that records, to a log or as a switch to a relay: the order of its start
//! recorded         what its caller can ask and change meanwhile
//! files, live      the two kinds of recordings: from capture files, from interfaces
//! observer         the workers' reports, combined for the controller
//! sensors, governor, watchdog, reclaim, lag, eve
//!                  what is monitored during a live capture, and the response to it
//! reports          what is reported of workers' packets to a telemetry collector, from their vectors
//! exports          what policies export: a queue beside each worker, sockets, streams of datagrams
//! sending          replay and generated traffic, on the calling thread
//! relay            the role of a relay: memory for switches, and the response to a short disk
//! compacting       the role that compacts a log while it is recorded, by whichever process
//! destination      a log on this machine, or a relay
//! configuration    the configuration file, read once per start and once per reload
//! preflight        what is checked before anything is changed
//! log_dir          what is created, and for whom
//! sandbox          what a recording can still do in it
//! memory, cpus     tables of flows; which CPU a thread runs on
//! error, notice    why a recording could not start, or failed; what it says
//! ```
//!
//! Crates above: `terminal` and programs. This is where siblings meet: control, pipeline, capture, store,
//! archive and relay know nothing of each other's threads.
#![forbid(unsafe_code)]

mod beside;
mod error;
mod files;
mod live;
mod notice;
mod observer;
mod outcome;
mod record;
mod recorded;
mod relay;
mod sandbox;
mod sending;
mod setup;
mod spec;

pub use beside::compacting::{
    CompactError, CompactPlan, CompactSpec, CompactStep, Compacting, NotOpen, TakeStep, compact_log,
};
pub use error::RecordError;
pub use notice::{EveCounts, NO_PACKET_AFTER_ALERT};
pub use outcome::RecordOutcome;
pub use record::check;
pub use recorded::{RecordCounts, Recorded};
pub use relay::{RelayOutcome, RelaySpec};
pub use sandbox::socket_opener;
pub use sending::{GenerateSpec, Pace, ReplaySpec, SendOutcome, generate, replay};
pub use setup::destination::Closed;
pub use setup::log_dir::log_directory;
pub use setup::memory::{machine_bytes, room_for, usable_bytes};
pub use spec::{
    DestinationSpec, DetailSpec, InputSpec, InterfaceSpec, LogSpec, ModelSpec, RecordSpec,
    SandboxSpec, ShadowSpec, Shed, SteeringSpec, StreamSpec, TriggerSpec,
};
