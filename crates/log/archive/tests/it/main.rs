//! Logs at rest: compacted, encrypted, moved, pruned and read back, whatever happens meanwhile.
//!
//! `linear` has a binary of its own.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod columns;
mod common;
mod crash;
mod encryption;
mod exact;
mod golden;
mod interleaved;
mod moving;
mod mutations;
mod retention;
mod threads;
