//! Control of a running Strata: what users ask of it, what it does by itself, and its reports.
//!
//! - [`elastic`]: the response to shortages, [`cpu`]: the CPU budget, and [`contention`]: what is left of it while
//!   others are short of CPU, all pure functions;
//! - [`config`]: the configuration file and the page that describes it;
//! - [`Controller`]: modes, policies, events; publishes plans for workers; [`saved`]: policies
//!   that were added to it, for the next recording;
//! - [`alerts`]: a webhook for unrequested events;
//! - [`vectors`]: who gets vectors of what is recorded; [`queries`]: those that run here;
//! - [`agents`]: what a controller of agents does for those who ask it; [`agent_client`]: an agent that asks;
//! - [`api`]: HTTP; [`metrics`]: Prometheus; [`client`]: queries a running recording.
//!
//! Threads and asynchronous code are in [`agent_client`], [`alerts`], [`api`], [`client`] and [`queries`]
//! only. `record`, the other crates of `run` and `relay` use this; it uses `policy` and `rules`.
#![forbid(unsafe_code)]

pub mod agents;
pub mod api;
pub mod config;
mod controller;
pub mod elastic;
mod endpoint;
pub mod metrics;
pub mod queries;
mod query_report;
mod request;
mod role_error;
pub mod saved;
mod status;

pub use agents::agent_client;
pub use api::client;
pub use controller::alerts;
pub use elastic::{contention, cpu};
pub use queries::vectors;

pub use tokio::sync::watch;

pub use api::secrets::same_secret;
pub use controller::{
    CollectorBoard, ControlError, Controller, DriftWindow, Event, ExportTimes, Fast,
    MATCH_BYTES_MAX, MODE_PERIOD_MAX, NetworkObserved, Observed, Settings, WHY_BYTES_MAX,
};
pub use request::{
    DetailRequest, ExportTimesRequest, InForce, ModeRequest, ModelRequest, PolicyAdded,
    PolicyRequest, QueryRequest, Refusal,
};
pub use status::{
    ChangeStatus, ClassStatus, CollectorStatus, CompactionStatus, CpuStatus, DetailStatus,
    DriftStatus, EveStatus, ExportStatus, ExportedSession, FeatureDrift, FlowTableStatus,
    FlowsStatus, InterfaceStatus, LostStatus, LoweredStatus, ModelsStatus, PacketStatus,
    PolicyOrigin, PolicyStatus, ReceiveStatus, RefusedStatus, ReportStatus, ResourceStatus,
    SenderStatus, ShadowClassStatus, ShadowStatus, ShedStatus, ShortStatus, Status, VectorStatus,
};
