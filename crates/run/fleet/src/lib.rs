//! Fleets at work: captures of many hosts, steered from one place. What agents and their controller tell each
//! other, and decide, is in `strata_agent`; here are their threads, files and connections.
//!
//! ```text
//! agent       asks a controller, runs recordings that only export
//! controller  registry, certificates, its state
//! ```
#![forbid(unsafe_code)]

mod agent;
mod controller;

pub use agent::{AgentSource, AgentSpec, NamedHost, run_agent};
pub use controller::{ControllerSpec, ENROL_TOKEN, run_controller};
