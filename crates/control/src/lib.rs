//! Steering a running Strata: what is asked of it, what it does by itself, and how it says so.
//!
//! - [`elastic`]: the answer to shortages, a pure function; [`cpu`]: the CPU budget, another;
//! - [`config`]: the configuration file and the page that describes it;
//! - [`Controller`]: modes, policies, events; publishes plans for workers;
//! - [`alerts`]: a webhook for what happens by itself;
//! - [`api`]: HTTP; [`metrics`]: Prometheus; [`client`]: asks a running recording.
//!
//! Threads and asynchronous code are in [`alerts`], [`api`] and [`client`] only. `cli` uses this; it uses
//! `pipeline` and `rules`.
#![forbid(unsafe_code)]

pub mod alerts;
pub mod api;
pub mod client;
pub mod config;
mod controller;
pub mod cpu;
pub mod elastic;
pub mod metrics;
mod status;

pub use hyper::Method;

pub use controller::{Beginning, ControlError, Controller, Event, MODE_PERIOD_MAX, Observed};
pub use status::{
    ChangeStatus, CpuStatus, InterfaceStatus, LostStatus, PacketStatus, PolicyStatus,
    ResourceStatus, Status,
};
