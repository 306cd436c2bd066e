//! What a telemetry collector is to do, and what it did.

use std::net::SocketAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use strata_dta::RemoteCounters;
use strata_dta::translator::ReporterCounters;
use strata_role::{FeedCounts, FeedSpec};
use strata_sandbox::Owner;

use super::super::fading::FadeOptions;
use super::super::frames::FrameCounts;
use super::super::plan::TelemetryLayout;
use super::super::ready::CollectorsSpec;
use super::super::serving::TelemetryApiSpec;

/// A telemetry collector in one process, or a translator if its collectors are elsewhere.
#[derive(Debug)]
pub struct TelemetrySpec {
    /// The store's directory; made if need be. With collectors elsewhere, it has what is counted.
    pub store: PathBuf,
    /// Collectors elsewhere, if it is not to be this process.
    pub collectors: Option<CollectorsSpec>,
    /// Its parameters, as far as they are given.
    pub layout: TelemetryLayout,
    /// Where reports come in.
    pub listen: SocketAddr,
    /// The interface from which datagrams for `listen` are taken past the host's network stack, if they
    /// are.
    pub interface: Option<String>,
    /// Where telemetry reports of INT come in.
    pub int: Option<SocketAddr>,
    /// The text of the table that says what becomes of them; the built-in one by default.
    pub table: Option<String>,
    /// Networks of reporters that are listened to; any that reaches the address, if empty.
    pub allowed: Vec<IpNet>,
    /// Rows of paths that are not complete, rounded up to a power of two; 32,768 by default.
    pub path_rows: Option<u32>,
    /// Operations on memory per second at most.
    pub rate: Option<u32>,
    /// How counters become smaller, if they do.
    pub fade: Option<FadeOptions>,
    /// Who owns the store.
    pub owner: Owner,
    /// Where its API is served, if anywhere.
    pub api: TelemetryApiSpec,
    /// The stream that entries of lists are appended to as well.
    pub to_stream: Option<Box<dyn FeedSpec>>,
    /// Whether to drop what is not needed once all is open.
    pub sandboxed: bool,
}

/// What a collector did.
#[derive(Clone, Copy, Debug)]
pub struct TelemetryOutcome {
    /// All reporters together.
    pub totals: ReporterCounters,
    /// Datagrams of senders that are not on the allow-list.
    pub not_allowed: u64,
    /// Datagrams that found the socket's buffer full.
    pub socket_drops: u64,
    /// Datagrams that were taken past the host's network stack, if any are.
    pub frames: Option<FrameCounts>,
    /// Accepted reports, as far as collectors elsewhere acknowledged them or not.
    pub remote: Option<RemoteCounters>,
    /// Entries of lists that were appended to a stream, and those that were not.
    pub streamed: Option<FeedCounts>,
}
