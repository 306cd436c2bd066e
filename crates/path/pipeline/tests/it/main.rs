//! The data path from captures to logs.
//!
//! `allocation` and `paths` have binaries of their own.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

#[allow(dead_code, reason = "`paths` uses the rest")]
mod common;
mod dedup;
mod details;
mod formats;
mod promotion;
mod steering;
mod triggers;
