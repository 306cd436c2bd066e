//! The sketch, as its exact twin counts.
//!
//! `refused` has a binary of its own.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod growth;
mod twin;
