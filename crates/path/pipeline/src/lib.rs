//! The data-plane loop: from a batch of packets to records in a block.
//!
//! ```text
//! batch -> parse -> police -> features -> class -> budget -> triggers -> keep -> record
//!          filter   policies  sketch      forest                                   blocks
//!          dedup
//!          headers
//! ```
//!
//! - [`Worker`]: one worker, run to completion, in batches; it owns its stages (`stage`), which own the
//!   sketch, the counters and the block that is filled, and knows neither sockets nor the kernel: made of
//!   [`Parts`], it emits blocks into a [`Sink`](strata_blocks::Sink);
//! - [`DataPath`]: which instructions it uses; logs do not depend on it;
//! - [`FlowFinder`]: which flow a packet belongs to;
//! - [`Classifier`]: sketch, features and forest of one model;
//! - [`Triggers`], [`Alerts`]: what is kept whole beyond that, including packets that have already
//!   gone by;
//! - [`Tap`]: is shown packets while they are recorded;
//! - [`Exports`]: takes those that policies export;
//! - [`run`]: an [`Input`](strata_capture::Input) through a worker; `record` runs interfaces.
#![forbid(unsafe_code)]

mod classifier;
mod demand;
mod exports;
mod finite;
mod flows;
mod packet_limit;
mod path;
mod policing;
mod reasons;
mod samples;
mod stage;
mod tap;
mod worker;

pub use classifier::{Classified, Classifier, ShadowError};
pub use exports::{ExportedPacket, Exports, PolicyExport};
pub use finite::{RunError, run, survey};
pub use flows::{FlowFinder, wire_bytes};
pub use packet_limit::PacketLimit;
pub use path::{DataPath, PathError};
pub use stage::cut::EnoughOfFlows;
pub use stage::dedup::Dedup;
pub use stage::police::Copies;
pub use stage::triggers::alerts::{Alert, Alerts, eve_alert};
pub use stage::triggers::{TriggerOptions, Triggers};
pub use tap::{NO_CLASS, Tap, Tapped, TappedHeaders};
pub use worker::{Parts, Prepares, Worker, WorkerOptions};
