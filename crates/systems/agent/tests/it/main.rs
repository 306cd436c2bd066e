//! Agents and the state of their controller, also in virtual time.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod collectors;
mod registry;
mod simulation;
mod sums;
