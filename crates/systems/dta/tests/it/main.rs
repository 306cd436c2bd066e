//! Telemetry reports from switches to queries, through networks that lose, repeat and reorder.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod generations;
mod int;
mod monte_carlo;
mod network;
mod switch;
mod theory;
mod translator;
