//! The controller of a recording: its decisions over time, and its API.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod alerts;
mod controller;
mod cpu;
mod metrics;
mod numbers;
mod promotion;
mod simulation;
mod tls;
