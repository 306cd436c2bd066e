//! What a telemetry collector is to do, and what it did.

use std::net::SocketAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use strata_role::{FeedCounts, FeedSpec};
use strata_sandbox::Owner;

use crate::api::status::RunStatus;
use crate::service::ready::CollectorsSpec;
use crate::service::serving::TelemetryApiSpec;
use crate::store::fading::FadeOptions;
use crate::store::plan::TelemetryLayout;

/// A telemetry collector in one process, or a translator if its collectors are elsewhere.
#[derive(Debug)]
pub struct TelemetrySpec {
    /// The store's directory, which is created if missing. With collectors elsewhere, it has only the counters.
    pub store: PathBuf,
    /// Collectors elsewhere; `None` if this process is the collector.
    pub collectors: Option<CollectorsSpec>,
    /// The store's parameters, as far as they are given.
    pub layout: TelemetryLayout,
    /// The address on which reports are received.
    pub listen: SocketAddr,
    /// The interface from which datagrams for `listen` are received past the host's network stack, if given.
    pub interface: Option<String>,
    /// The address on which INT reports are received.
    pub int: Option<SocketAddr>,
    /// The text of the table that translates INT reports; the built-in table by default.
    pub table: Option<String>,
    /// Networks of accepted reporters; if empty, every reporter that reaches the address is accepted.
    pub allowed: Vec<IpNet>,
    /// Rows of paths that are not complete, rounded up to a power of two; 32,768 by default.
    pub path_rows: Option<u32>,
    /// Maximum number of operations on memory per second.
    pub rate: Option<u32>,
    /// The way and period of reducing counters, if they are reduced.
    pub fade: Option<FadeOptions>,
    /// Who owns the store.
    pub owner: Owner,
    /// The addresses on which its API is served, if any.
    pub api: TelemetryApiSpec,
    /// The stream that entries of lists are appended to as well.
    pub to_stream: Option<Box<dyn FeedSpec>>,
    /// Whether the process gives up the privileges that it no longer needs once everything is open.
    pub sandboxed: bool,
}

/// The counters of a collector at its end.
#[derive(Clone, Debug)]
pub struct TelemetryOutcome {
    /// Its last status, which is also in `status.json`.
    pub status: Box<RunStatus>,
    /// Entries of lists that were appended to a stream, and those that were not.
    pub streamed: Option<FeedCounts>,
}
