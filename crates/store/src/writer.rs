//! The one writer of logs: what a recording on this machine and a relay have in common.
//!
//! ```text
//! log         the manifest of a log that is being written, and what it says of recordings
//! files       a worker's block files, one after another: names, rotation
//! file        one of them: where blocks go, how far it is whole, how it ends
//! checkpoint  how far the worker was
//! in_flight   blocks in flight to a disk, with their places
//! ```
//!
//! No threads, and no blocks of its own: [`crate::recorder`] gives each worker a thread that
//! seals blocks and syncs them with each checkpoint; [`crate::relayed`] has threads that write
//! and sync what switches have filled, of many workers at a time.

mod checkpoint;
mod file;
mod files;
mod in_flight;
mod log;

pub(crate) use checkpoint::CheckpointFile;
pub(crate) use file::{OpenFile, PlacedAt, Settled, Written};
pub(crate) use files::{Files, Next, Rotation};
pub(crate) use in_flight::{InFlight, Landed};
pub(crate) use log::{LogWriter, Presence, now_ns};
