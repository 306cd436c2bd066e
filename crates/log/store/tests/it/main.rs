//! Logs and their block files: written, found again, and what is left after crashes and on full disks.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;
mod crash;
mod format;
mod full;
mod index;
mod queue;
mod streams;
