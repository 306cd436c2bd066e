//! A telemetry collector's API: what it answers.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::status::{TelemetryEntry, TelemetryStatus};

/// The period in which a generation of a store was filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct TelemetryTime {
    /// Its start, in ns since 1970.
    pub begun_ns: u64,
    /// Its end, in ns since 1970; null for the youngest generation.
    pub ended_ns: Option<u64>,
}

/// The value of a key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct TelemetryValue {
    /// Its bytes in hexadecimal.
    pub bytes: String,
    /// The same as a number, if it has up to 8 bytes.
    pub number: Option<u64>,
    /// Number of copies that hold the value, at least.
    pub agreeing: u8,
    /// The generation that the value is from, if the store has generations.
    #[serde(flatten)]
    pub time: Option<TelemetryTime>,
}

/// The sum that was added for a key.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct TelemetryCount {
    /// Upper bound of the sum.
    pub at_most: u64,
    /// The bound may exceed the sum by this number.
    pub excess_max: f64,
    /// Probability that it exceeds the sum by more.
    pub doubt: f64,
}

/// The value and count of a key in a generation.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct TelemetryGeneration {
    /// Its time.
    #[serde(flatten)]
    pub time: TelemetryTime,
    /// The key's value.
    pub value: Option<TelemetryValue>,
    /// The sum that was added for the key.
    pub count: Option<TelemetryCount>,
}

/// The value and counts of a key in a store.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct TelemetryKey {
    /// The key, as queries name it.
    pub key: String,
    /// Its bytes in hexadecimal.
    pub key_bytes: String,
    /// Its latest value.
    pub value: Option<TelemetryValue>,
    /// The sum that was added for the key, in all generations together.
    pub count: Option<TelemetryCount>,
    /// The value and count in each generation, youngest first, if the store has generations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub generations: Vec<TelemetryGeneration>,
}

/// A hop of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct TelemetryHop {
    /// The number of the node that reported for this hop.
    pub node: Option<u32>,
    /// The latest latency of the flow there.
    pub latency: Option<u64>,
}

/// The path of a flow.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct TelemetryPath {
    /// The flow, or another key.
    pub flow: String,
    /// The hops that the store keeps, in order.
    pub hops: Vec<TelemetryHop>,
    /// Whether these hops are known to be all hops of one packet.
    pub whole: bool,
    /// The number of hops of the path, if it is known.
    pub hops_in_all: Option<u8>,
    /// The number of hops that are known to exist, including those that the store does not keep.
    pub hops_at_least: u8,
    /// The sum of the latencies, if the path is whole and all are known.
    pub latency: Option<u64>,
    /// If there is no sum: the sum of the known latencies, as a lower bound.
    pub latency_at_least: Option<u64>,
    /// The reasons why the path is not known to be whole, or has no sum.
    pub remarks: Vec<String>,
    /// The generation that the path is from, if the store has generations.
    #[serde(flatten)]
    pub time: Option<TelemetryTime>,
}

/// The keys with the largest counts.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct TelemetryTop {
    /// The keys, the one with the largest count first.
    pub keys: Vec<TelemetryTopKey>,
    /// A count may exceed the sum by this number.
    pub excess_max: f64,
    /// Probability that it exceeds the sum by more.
    pub doubt: f64,
    /// Keys with a count below this may be missing; 0: all are there. Null if it is not known,
    /// since an earlier version has written the store.
    pub missing_below: Option<u64>,
}

/// A key with a large count.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct TelemetryTopKey {
    /// The key, as queries name it.
    pub key: String,
    /// Its bytes in hexadecimal.
    pub key_bytes: String,
    /// Upper bound of the sum that was added for the key.
    pub count: u64,
}

/// Flows in the events of lists.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct TelemetryFlows {
    /// The flows, the one with the most events first.
    pub flows: Vec<TelemetryFlow>,
    /// The number of flows, at most 100,000.
    pub in_all: u64,
    /// The number of events: all that are still in the lists.
    pub events: u64,
    /// The number of these events that name no flow.
    pub without_flow: u64,
    /// The number of events of flows beyond the first 100,000; if it is not 0, the answer is not complete.
    pub of_further_flows: u64,
    /// Entries that are not events, at any node.
    pub not_events: u64,
    /// Events that were overwritten in the lists since their reports arrived.
    pub overwritten: u64,
}

/// A flow and its events.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct TelemetryFlow {
    /// The flow.
    pub flow: String,
    /// Its events.
    pub events: u64,
    /// The kinds of these events, each once: `congested`, `dropped`, `slow`, `anomalous` and others.
    pub what: Vec<String>,
    /// The nodes of these events, if the events name nodes.
    pub nodes: Vec<u32>,
    /// The queues of these events.
    pub queues: Vec<TelemetryQueue>,
    /// The largest value of its events.
    pub value_max: Option<u32>,
}

/// A queue of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, ToSchema)]
pub struct TelemetryQueue {
    /// The node.
    pub node: u32,
    /// Its port, if it is known.
    pub port: Option<u32>,
    /// The number of the queue, if it is known.
    pub queue: Option<u8>,
}

/// Selects events of lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TelemetryEvents<'a> {
    /// Only events of this list, given by its name or its number; `None`: of all lists of events.
    pub list: Option<&'a str>,
    /// Only events at this node.
    pub node: Option<u32>,
    /// Only events at this port.
    pub port: Option<u32>,
    /// Only events at this queue.
    pub queue: Option<u8>,
}

/// A list that has a name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct TelemetryList {
    /// Its number.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// The kind of its entries: `node-event`, `flow-event` or `bytes`.
    pub entries: String,
}

/// Why a query has no answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TelemetryRefused {
    /// The query cannot be understood.
    #[error("{0}")]
    Query(String),
    /// The store has no answer.
    #[error("{0}")]
    Unknown(String),
    /// The store cannot be read.
    #[error("{0}")]
    Store(String),
}

/// The source of answers for a store. Keys and lists are given as texts, as users write them.
pub trait TelemetryQueries: Send + Sync + 'static {
    /// What is known of a key, of `redundancy` copies of which `agree` agree: 1 to 4 each.
    ///
    /// # Errors
    ///
    /// If it is no key, or nothing is known.
    fn key(&self, key: &str, redundancy: u8, agree: u8) -> Result<TelemetryKey, TelemetryRefused>;

    /// The path of a flow, or of another key.
    ///
    /// # Errors
    ///
    /// If it is no key, or its path is not known.
    fn path(&self, flow: &str) -> Result<TelemetryPath, TelemetryRefused>;

    /// The flows in events of lists, `number` of them at most.
    ///
    /// # Errors
    ///
    /// If there is no such list.
    fn flows(
        &self,
        of: TelemetryEvents<'_>,
        number: usize,
    ) -> Result<TelemetryFlows, TelemetryRefused>;

    /// Keys with the largest counts, `number` of them at most.
    ///
    /// # Errors
    ///
    /// If there is no store.
    fn top(&self, number: usize) -> Result<TelemetryTop, TelemetryRefused>;

    /// Lists that have names.
    ///
    /// # Errors
    ///
    /// If there is no store.
    fn lists(&self) -> Result<Vec<TelemetryList>, TelemetryRefused>;

    /// The last entries of a list, by its name or number, oldest first.
    ///
    /// # Errors
    ///
    /// If there is no such list.
    fn list(&self, name: &str, last: usize) -> Result<Vec<TelemetryEntry>, TelemetryRefused>;

    /// What the collector has counted until a second ago.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    fn status(&self) -> Result<TelemetryStatus, TelemetryRefused>;
}
