//! What a translator or a collector says of itself each second: `status.json`, which the API, the page of metrics and
//! `strata telemetry status` are made of. A number that another version does not say is not there, so each may be
//! missing.

use std::collections::BTreeMap;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

/// The status of either program.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum TelemetryStatus {
    /// `strata telemetry run`: a store of its own, or a translator for collectors elsewhere.
    Run(Box<RunStatus>),
    /// `strata telemetry collect`: memory that a translator writes.
    Collector(Box<CollectorStatus>),
}

/// Only a collector says what it is.
impl<'de> Deserialize<'de> for TelemetryStatus {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(source)?;
        let read = match value["role"].as_str() {
            Some(CollectorStatus::ROLE) => serde_json::from_value(value).map(Self::Collector),
            _ => serde_json::from_value(value).map(Self::Run),
        };
        read.map_err(D::Error::custom)
    }
}

impl TelemetryStatus {
    /// The text, as in `status.json`.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{:#}\n", json!(self))
    }

    /// The process.
    #[must_use]
    pub fn process(&self) -> &ProcessStatus {
        match self {
            Self::Run(run) => &run.process,
            Self::Collector(collector) => &collector.process,
        }
    }
}

/// The part that both have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessStatus {
    /// Whether the process was running.
    pub running: Option<bool>,
    /// Whether it ended before it could say so: only a reader notices that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub killed: Option<bool>,
    /// When this was counted, ns since 1970.
    pub updated_ns: Option<u64>,
    /// Process ID.
    pub pid: Option<u32>,
    /// The address that reports are sent to, or that translators connect to.
    pub listen: Option<String>,
    /// Immediate reports.
    pub events: EventStatus,
}

/// Numbers of immediate reports, by outcome.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EventStatus {
    /// Reports that were put into queues of subscribers.
    pub pushed: Option<u64>,
    /// Reports that subscribers lost.
    pub lost: Option<u64>,
    /// Reports that a collector could not read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub invalid: Option<u64>,
}

/// The status of `strata telemetry run`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunStatus {
    /// The process.
    #[serde(flatten)]
    pub process: ProcessStatus,
    /// Datagrams whose sender is not on the allow-list.
    pub not_allowed: Option<u64>,
    /// Datagrams of senders that the translator does not accept as reporters.
    pub reporters_refused: Option<u64>,
    /// Datagrams dropped because the socket's buffer was full.
    pub socket_drops: Option<u64>,
    /// Datagrams that bypass the host's network stack.
    pub af_xdp: Option<FrameStatus>,
    /// Negative acknowledgements sent.
    pub nacks_sent: Option<u64>,
    /// Negative acknowledgements that the system did not send.
    pub nacks_failed: Option<u64>,
    /// Datagrams whose processing panicked.
    pub failed: Option<u64>,
    /// Numbers of entries for a stream, by outcome.
    pub stream: Option<StreamStatus>,
    /// All reporters together, without `int`.
    pub totals: ReporterStatus,
    /// Collectors elsewhere.
    pub collectors: Option<Vec<LinkStatus>>,
    /// INT reports, if they are received.
    pub int: Option<IntStatus>,
    /// Values by key.
    pub key_write: KeyWriteStatus,
    /// Paths.
    pub postcarding: Option<PostcardingStatus>,
    /// Lists.
    pub append: Option<AppendStatus>,
    /// Counters by key.
    pub key_increment: KeyIncrementStatus,
    /// Generations, if there are any.
    pub generations: Option<GenerationsStatus>,
    /// Each reporter, and as `int` the reports that INT datagrams were turned into.
    pub reporters: Vec<ReporterStatus>,
}

/// Datagrams by AF_XDP.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FrameStatus {
    /// The interface.
    pub interface: Option<String>,
    /// The way of receiving, in words.
    pub how: Option<String>,
    /// Whether datagrams are still received this way.
    pub taking: Option<bool>,
    /// Datagrams taken.
    pub datagrams: Option<u64>,
    /// Datagrams that are invalid.
    pub invalid: Option<u64>,
    /// Datagrams for which there was no frame.
    pub dropped: Option<u64>,
}

/// Numbers of entries for a stream, by outcome.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamStatus {
    /// Entries in the stream's file.
    pub written: Option<u64>,
    /// Entries that are not in it.
    pub lost: Option<u64>,
}

/// Counters of a reporter, in reports unless stated otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReporterStatus {
    /// Its address, [`ReporterStatus::INT`] or `others`; totals have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Datagrams that it has sent; none of `int`, whose datagrams are counted as INT's.
    pub datagrams: Option<u64>,
    /// Datagrams that were refused whole, by reason.
    pub datagrams_refused: BTreeMap<String, u64>,
    /// Reports in the other datagrams.
    pub reports: Option<u64>,
    /// Reports that became operations, or will.
    pub accepted: Option<u64>,
    /// Of these, postcards that were replaced by a later one.
    pub superseded: Option<u64>,
    /// Reports that were refused, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Reports dropped because of the rate limit.
    pub dropped_by_rate: Option<u64>,
    /// Reports dropped because too many operations waited for the collector's connection.
    pub dropped_without_room: Option<u64>,
    /// Reports dropped because their collector is not connected.
    pub dropped_without_collector: Option<u64>,
    /// Dropped reports that the translator asked the reporter to send again.
    pub nacked: Option<u64>,
    /// Reports that arrived again because of that.
    pub again: Option<u64>,
    /// Numbered reports that have not arrived (yet).
    pub missing: Option<u64>,
    /// Jumps of its numbers.
    pub jumps: Option<u64>,
    /// Accepted reports that a collector elsewhere has acknowledged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirmed: Option<u64>,
    /// Accepted reports lost with a connection to a collector.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
}

impl ReporterStatus {
    /// The address that stands for reports that INT datagrams were turned into.
    pub const INT: &str = "int";
}

impl RunStatus {
    /// The outcome of reports that INT datagrams were turned into, if INT is received.
    #[must_use]
    pub fn of_int(&self) -> Option<&ReporterStatus> {
        let mut reporters = self.reporters.iter();
        reporters.find(|reporter| reporter.address.as_deref() == Some(ReporterStatus::INT))
    }
}

/// A collector elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkStatus {
    /// Its address.
    pub address: Option<String>,
    /// Whether it is connected.
    pub connected: Option<bool>,
    /// Whether a client there subscribes to immediate reports.
    pub watched: Option<bool>,
    /// Connections so far.
    pub connections: Option<u64>,
    /// Why it is not connected, if that is known.
    pub problem: Option<String>,
    /// Reports that it has acknowledged.
    pub confirmed: Option<u64>,
    /// Accepted reports whose connection was lost.
    pub lost: Option<u64>,
    /// Operations that are not acknowledged yet.
    pub in_flight: Option<usize>,
    /// Writes.
    pub writes: Option<u64>,
    /// Additions.
    pub additions: Option<u64>,
    /// RDMA packets.
    pub packets: Option<u64>,
    /// RDMA packets that were sent again.
    pub packets_resent: Option<u64>,
    /// Timeouts.
    pub timeouts: Option<u64>,
}

/// Numbers of INT datagrams and reports, by outcome.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct IntStatus {
    /// The address that they are sent to.
    pub listen: Option<String>,
    /// Datagrams.
    pub datagrams: Option<u64>,
    /// Datagrams that were not understood, entirely or from some report on.
    pub refused: Option<u64>,
    /// Individual reports.
    pub reports: Option<u64>,
    /// Reports of packets whose INT-MD stack was not understood.
    pub bad_stacks: Option<u64>,
    /// Reports of packets with a stack that does not have the mark of the table.
    pub unmarked_stacks: Option<u64>,
    /// DTA reports made of them.
    pub mapped: Option<u64>,
    /// DTA reports that were not made, because the node did not report the fields that they need.
    pub incomplete: Option<u64>,
    /// Datagrams that did not arrive.
    pub missing: Option<u64>,
    /// Datagrams whose number had arrived before.
    pub repeated: Option<u64>,
    /// Jumps of sequence numbers.
    pub jumps: Option<u64>,
    /// Datagrams of nodes whose numbers are not followed.
    pub not_followed: Option<u64>,
    /// Datagrams whose processing panicked.
    pub failed: Option<u64>,
    /// Packets whose latencies were summed for the queries known ahead.
    pub summed: Option<u64>,
    /// Packets whose sum was above a threshold.
    pub above: Option<u64>,
    /// Packets whose sum may have been above a threshold.
    pub undecided: Option<u64>,
}

/// Values by key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeyWriteStatus {
    /// Writes.
    pub writes: Option<u64>,
    /// Slots.
    pub slots: Option<u32>,
    /// Writes for each slot, since the youngest generation began.
    pub load: Option<f64>,
    /// Values of a sample.
    pub sampled: Option<u64>,
    /// Values of the sample that can be read.
    pub answered: Option<u64>,
    /// Values of the sample that have changed.
    pub changed: Option<u64>,
    /// The number of values of the sample that can be read, by the formula.
    pub answers_expected: Option<f64>,
}

/// Paths.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PostcardingStatus {
    /// Writes.
    pub writes: Option<u64>,
    /// Chunks.
    pub chunks: Option<u32>,
    /// Writes for each chunk, since the youngest generation began.
    pub load: Option<f64>,
    /// Postcards.
    pub postcards: Option<u64>,
    /// Rows written because the path was complete.
    pub complete: Option<u64>,
    /// Rows written early, because another flow needed their place.
    pub collided: Option<u64>,
    /// Rows written because they had waited for too long.
    pub aged: Option<u64>,
    /// Postcards that were replaced by a later one.
    pub superseded: Option<u64>,
    /// Postcards in rows that are not written yet.
    pub held: Option<u64>,
}

/// Lists.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AppendStatus {
    /// Writes.
    pub writes: Option<u64>,
    /// Entries.
    pub entries: Option<u64>,
    /// Batches written because they were full.
    pub full: Option<u64>,
    /// Batches written because they had waited for too long.
    pub aged: Option<u64>,
    /// Entries in batches that are not written yet.
    pub held: Option<u64>,
}

/// Counters by key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeyIncrementStatus {
    /// Additions.
    pub additions: Option<u64>,
    /// Counters.
    pub counters: Option<u32>,
    /// Additions for each counter, since the youngest generation began.
    pub load: Option<f64>,
    /// The number of times that counters were reset or halved; null if they never are.
    pub faded: Option<u64>,
}

/// Generations of a store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GenerationsStatus {
    /// Maximum number of generations.
    pub count: Option<u8>,
    /// The duration of each generation.
    pub period_seconds: Option<u64>,
    /// Whether the next is being cleared.
    pub clearing: Option<bool>,
    /// The existing generations, youngest first.
    pub present: Vec<GenerationStatus>,
}

/// A generation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GenerationStatus {
    /// Its number, never used again.
    pub number: Option<u64>,
    /// When it began, ns since 1970.
    pub begun_ns: Option<u64>,
}

/// The status of `strata telemetry collect`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CollectorStatus {
    /// [`CollectorStatus::ROLE`].
    pub role: String,
    /// The process.
    #[serde(flatten)]
    pub process: ProcessStatus,
    /// The address of its translator, if one is connected.
    pub translator: Option<String>,
    /// Connections of translators.
    pub connections: Option<u64>,
    /// Connections of others, and of translators that were refused.
    pub connections_refused: Option<u64>,
    /// Bytes of its memory, if there is a store.
    pub memory_bytes: Option<u64>,
    /// Its number among its translator's collectors.
    pub share: Option<ShareStatus>,
    /// Requests of translators.
    pub requests: RequestStatus,
    /// The number of times that counters were reset or halved; null if they never are.
    pub faded: Option<u64>,
    /// Generations, if the store has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generations: Option<GenerationsStatus>,
}

impl CollectorStatus {
    /// What a collector says that it is.
    pub const ROLE: &str = "collector";
}

/// The number of a collector among its translator's collectors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ShareStatus {
    /// Its number, from 0.
    pub collector: Option<u32>,
    /// The number of collectors.
    pub of: Option<u32>,
}

/// RDMA requests of translators.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestStatus {
    /// Requests that were executed.
    pub executed: Option<u64>,
    /// Bytes that they wrote.
    pub bytes: Option<u64>,
    /// Requests that had been executed before.
    pub duplicates: Option<u64>,
    /// Requests before which another one was missing.
    pub out_of_order: Option<u64>,
    /// Requests that were refused.
    pub refused: Option<u64>,
    /// Answers sent.
    pub answers: Option<u64>,
    /// Packets of no known kind.
    pub bad_packets: Option<u64>,
}

/// An entry of a list, as programs read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum TelemetryEntry {
    /// What happened at a node.
    Node {
        /// The node.
        node: u32,
        /// Its port, if it is known.
        port: Option<u32>,
        /// Its queue, if it is known.
        queue: Option<u8>,
        /// The node's time, if it is known.
        time: Option<u32>,
        /// How long or full the queue was, if that is known.
        value: Option<u32>,
        /// `dropped`, `congested` or `other`.
        what: &'static str,
        /// The flow of the packet, if it is known.
        #[serde(skip_serializing_if = "Option::is_none")]
        flow: Option<String>,
    },
    /// What happened to a flow.
    Flow {
        /// Whether the value is the least that it can be.
        #[serde(skip_serializing_if = "Option::is_none")]
        at_least: Option<bool>,
        /// The flow.
        flow: String,
        /// Its number: a class, a latency or bytes.
        value: u32,
        /// `anomalous`, `gap`, `retransmission` or `slow`.
        what: &'static str,
    },
    /// Any other entry.
    Bytes {
        /// Its bytes in hexadecimal.
        bytes: String,
    },
}
