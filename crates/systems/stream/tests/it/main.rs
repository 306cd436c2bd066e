//! Pages of streams and the records in them, and queue pairs of the disks that they are kept on.
//!
//! `controller` has a binary of its own.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod lossy;
mod nvme;
mod recall;
mod records;
mod switch;
