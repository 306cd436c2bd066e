//! Telemetry: a store in memory that switches' reports go to, and that answers queries meanwhile.
//!
//! ```text
//! notices      what the roles say
//! plan         parameters of a store, and what lies where
//! store        its directory: made, continued
//! reader       the store for queries
//! answers      what a store knows, as its API and `--json` say it
//! api          what is answered over HTTP: types, paths, status, metrics
//! serving      where it is served
//! candidates   keys with the largest counts
//! counted      counters as a part of the status
//! fading       counters that become smaller once in a period
//! generations  values, paths and counters by time
//! shown        keys and events as text
//! sink         the translator's operations on mapped memory
//! pushing      immediate reports for those who subscribe
//! frames       datagrams of reporters past the host's network stack
//! streaming    entries of lists as records of a stream
//! target       where operations go: this memory, or collectors elsewhere
//! ready        what a service begins with
//! service      the role: UDP in, memory out
//! share        which part of all keys and lists a store has
//! status       what it counts
//! status_file  that, on the disk, without waiting for it
//! wire         collectors in other processes, written by RDMA
//! witnesses    a sample of values, by which it knows how many can still be read
//! ```

#![forbid(unsafe_code)]

mod answers;
pub mod api;
mod service;
pub mod shown;
mod store;

pub use service::ready::CollectorsSpec;
pub use service::serving::TelemetryApiSpec;
pub use service::wire::COLLECTOR_PORT;
pub use service::wire::collector::{TelemetryCollectorOutcome, TelemetryCollectorSpec};
pub use service::wire::message::CollectorError;
pub use service::{TelemetryOutcome, TelemetrySpec};
pub use store::fading::{Fade, FadeOptions};
pub use store::generations::GenerationTime;
pub use store::plan::{EntryKind, NamedList, TelemetryLayout};
pub use store::reader::{Counted, Found, FoundPath, Known, TelemetryCursor, TelemetryStore, Top};
pub use store::share::COLLECTORS_MAX as TELEMETRY_COLLECTORS_MAX;
pub use store::{telemetry_is_written, telemetry_status};
