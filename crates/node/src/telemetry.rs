//! Telemetry: a store in memory that switches' reports go to, and that is asked while they do.
//!
//! ```text
//! plan         parameters of a store, and what lies where
//! store        its directory: made, continued, read
//! candidates   keys that are added to often
//! sink         the translator's operations on mapped memory
//! service      the role: UDP in, memory out
//! status       what it counts
//! ```

mod candidates;
mod plan;
mod service;
mod sink;
mod status;
mod store;

pub use plan::{EntryKind, NamedList, TelemetryLayout};
pub use service::{TelemetryOutcome, TelemetrySpec};
pub use store::{Counted, Found, TelemetryCursor, TelemetryStore};
