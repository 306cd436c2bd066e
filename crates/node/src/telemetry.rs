//! Telemetry: a store in memory that switches' reports go to, and that is asked while they do.
//!
//! ```text
//! plan         parameters of a store, and what lies where
//! store        its directory: made, continued, read
//! candidates   keys that are added to often
//! fading       counters that become smaller once in a period
//! sink         the translator's operations on mapped memory
//! service      the role: UDP in, memory out
//! status       what it counts
//! witnesses    a sample of values, by which it knows how many can still be asked for
//! ```

mod candidates;
mod fading;
mod plan;
mod service;
mod sink;
mod status;
mod store;
mod witnesses;

pub use fading::{Fade, FadeOptions};
pub use plan::{EntryKind, NamedList, TelemetryLayout};
pub use service::{TelemetryOutcome, TelemetrySpec};
pub use store::{Counted, Found, TelemetryCursor, TelemetryStore};
