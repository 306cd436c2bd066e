//! The data-plane loop: from a batch of packets to records in a block.
//!
//! ```text
//! batch -> filter -> dissect -> fingerprint, prefetch -> policy -> sketch -> features
//!       -> forest -> verdict -> granularity -> record
//! ```
//!
//! - [`Worker`]: one worker, run to completion, in batches of 64; it owns its
//!   sketch, its counters and the block it fills, and knows neither sockets nor the kernel: made of
//!   [`Parts`], it emits blocks into a [`Sink`](strata_blocks::Sink);
//! - [`DataPath`]: which instructions it uses; logs do not depend on it;
//! - [`FlowFinder`]: which flow a packet belongs to;
//! - [`Classifier`]: sketch, features and forest of one model;
//! - [`Triggers`], [`Alerts`]: what is kept whole beyond that, including packets that have already
//!   gone by;
//! - [`Tap`]: is shown packets while they are recorded;
//! - [`Exports`]: takes those that policies export;
//! - [`run`]: an [`Input`](strata_capture::Input) through a worker; `node` runs interfaces.
#![forbid(unsafe_code)]

mod alerts;
mod budget;
mod classifier;
mod demand;
mod exports;
mod first_bytes;
mod flows;
mod lookback;
mod path;
mod policing;
mod reasons;
mod run;
mod samples;
mod tap;
mod worker;

pub use alerts::{Alert, Alerts, eve_alert};
pub use budget::Budget;
pub use classifier::{Classified, Classifier, ShadowError};
pub use exports::{ExportedPacket, Exports, PolicyExport};
pub use flows::{FlowFinder, wire_bytes};
pub use path::{DataPath, PathError};
pub use run::{RunError, run};
pub use tap::{NO_CLASS, Tap, Tapped, TappedHeaders};
pub use worker::{
    Copies, EnoughOfFlows, Parts, Prepares, TriggerOptions, Triggers, Worker, WorkerOptions,
};
