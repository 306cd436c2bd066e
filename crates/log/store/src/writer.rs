//! The only code that writes logs, shared by local recordings and relays.
//!
//! ```text
//! log         the manifest of a log being written, and its entries for recordings
//! files       a worker's block files, one after another: names, rotation
//! file        one of them: where blocks go, how far it is intact, how it ends
//! checkpoint  the worker's progress
//! in_flight   blocks in flight to a disk, with their places
//! ```
//!
//! It has no threads and no blocks: [`crate::recorder`] gives each worker a thread that seals
//! blocks and syncs them with each checkpoint; [`crate::relayed`] has threads that write and sync
//! the blocks that switches have filled, for many workers at a time.

mod checkpoint;
mod file;
mod files;
mod in_flight;
mod log;

pub(crate) use checkpoint::CheckpointFile;
pub(crate) use file::{OpenFile, PlacedAt, Settled, Written};
pub(crate) use files::{Files, Next, Rotation};
pub(crate) use in_flight::{InFlight, Landed};
pub(crate) use log::{LogWriter, Presence};
