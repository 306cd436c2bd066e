//! How a recording stands, as the API says it.

use serde::{Deserialize, Serialize};
use strata_classify::UNCLASSIFIED;
use strata_policy::ClassKept;
use strata_wire::{Counters, DropReason, Ledger};
use utoipa::ToSchema;

/// How a recording stands.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Version of Strata.
    pub version: String,
    /// Process.
    pub pid: u32,
    /// Directory of the log.
    pub log: String,
    /// Since it began.
    pub uptime_seconds: f64,
    /// The modes at work, joined by `+`.
    pub mode: String,
    /// The modes that were asked for; others are at work while something is short.
    pub asked_mode: String,
    /// Until the mode falls back.
    pub mode_seconds_left: Option<f64>,
    /// Action on packets that no policy matches.
    pub default: String,
    /// How many policies there are.
    pub policies: usize,
    /// Packets that arrive.
    pub packets_per_second: f64,
    /// Bytes that arrive.
    pub bytes_per_second: f64,
    /// Bytes that are kept.
    pub logged_bytes_per_second: f64,
    /// Where packets ended.
    pub packets: Vec<PacketStatus>,
    /// How much was kept of the packets of each class.
    pub classes: Vec<ClassStatus>,
    /// Of what is logged: `wanted_but_cut`, `promoted`, `header_fallback`.
    pub of_logged: Vec<PacketStatus>,
    /// Copies that policies send on: `sent`, `lost`.
    pub mirrored: Vec<PacketStatus>,
    /// Interfaces.
    pub interfaces: Vec<InterfaceStatus>,
    /// What was lost before it came here.
    pub lost: Vec<LostStatus>,
    /// What can run short.
    pub resources: Vec<ResourceStatus>,
    /// The CPU budget; none without one.
    pub cpu: Option<CpuStatus>,
    /// How fast changes are.
    pub changes: ChangeStatus,
    /// How long packets wait in the kernel's ring for their worker, at most, lately: a change
    /// counts from the next packet that a worker takes.
    pub ring_wait_ms: Option<f64>,
}

/// Where packets ended.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PacketStatus {
    /// `logged`, `discarded` ...
    pub result: String,
    /// Why, for `dropped` and `discarded`.
    pub reason: String,
    /// So far.
    pub packets: u64,
    /// Bytes on the wire; for `logged` and `in_flight` those kept.
    pub bytes: u64,
}

/// Packets of a class of which the same is kept.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ClassStatus {
    /// The class.
    pub class: String,
    /// `full`, `partial`, `header`, `drop` or `sampled_out`.
    pub granularity: String,
    /// Packets so far.
    pub packets: u64,
    /// Their bytes on the wire.
    pub captured_bytes: u64,
    /// Their bytes that are kept.
    pub kept_bytes: u64,
}

/// An interface.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct InterfaceStatus {
    /// Its name.
    pub name: String,
    /// Packets that the kernel delivered so far.
    pub received: u64,
    /// Packets that the kernel dropped so far, since the ring was full.
    pub dropped: u64,
}

/// Packets that were lost before they came here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LostStatus {
    /// `kernel`, `softnet` or `device`.
    pub place: String,
    /// The counter that says so.
    pub counter: String,
    /// How many, since the recording began.
    pub packets: u64,
    /// What to do about it.
    pub advice: String,
}

/// Something that can run short.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ResourceStatus {
    /// Its name.
    pub name: String,
    /// Share in use, if known.
    pub used: Option<f64>,
    /// Share at which it is short; none if shortages are not answered.
    pub short_at: Option<f64>,
    /// Steps of degradation that it asks for now.
    pub degradation_steps: usize,
}

/// The CPU budget and what is done to keep it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CpuStatus {
    /// Cores that the process may use, its programs in the kernel included.
    pub budget: f64,
    /// Cores that it uses.
    pub used: f64,
    /// Share of flows that are captured.
    pub flow_share: f64,
}

/// From the request of a change, or from the reading that led to it, to the switch of a worker.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ChangeStatus {
    /// How many changes workers picked up.
    pub count: u64,
    /// Sum of all delays.
    pub seconds_sum: f64,
    /// Median of the latest.
    pub median_ms: Option<f64>,
    /// 99th percentile of the latest.
    pub p99_ms: Option<f64>,
}

/// Where a policy is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PolicyOrigin {
    /// The configuration.
    Configuration,
    /// Added to the running recording.
    RunTime,
}

/// A policy and its hits.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PolicyStatus {
    /// Its number.
    pub id: u32,
    /// Which packets.
    #[serde(rename = "match")]
    pub matches: String,
    /// What is done.
    pub action: String,
    /// A larger number goes first.
    pub priority: u16,
    /// Only packets of this interface.
    pub interface: Option<String>,
    /// Whether what is kept of them is not deleted to make room.
    pub protect: bool,
    /// Where it is from: `configuration`, or `run_time` if it was added to the running
    /// recording.
    pub origin: PolicyOrigin,
    /// Packets that it was applied to.
    pub packets: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
}

/// What was kept of each class, by name.
pub(crate) fn classes(kept: &[ClassKept], names: &[String]) -> Vec<ClassStatus> {
    let status = |kept: &ClassKept| ClassStatus {
        class: names
            .get(usize::from(kept.class))
            .map_or(UNCLASSIFIED, String::as_str)
            .to_owned(),
        granularity: kept.granularity.to_owned(),
        packets: kept.captured.packets,
        captured_bytes: kept.captured.bytes,
        kept_bytes: kept.kept_bytes,
    };
    kept.iter().map(status).collect()
}

/// What is to be known of packets that are logged, from the counters.
pub(crate) fn of_logged(ledger: &Ledger) -> Vec<PacketStatus> {
    vec![
        ended("wanted_but_cut", "", ledger.wanted_but_cut),
        ended("promoted", "", ledger.promoted),
        ended("header_fallback", "", ledger.header_fallback),
    ]
}

/// What became of copies that policies send on.
pub(crate) fn mirrored(ledger: &Ledger) -> Vec<PacketStatus> {
    vec![
        ended("sent", "", ledger.mirrored),
        ended("lost", "", ledger.mirror_lost),
    ]
}

fn ended(result: &str, reason: &str, counters: Counters) -> PacketStatus {
    PacketStatus {
        result: result.to_owned(),
        reason: reason.to_owned(),
        packets: counters.packets,
        bytes: counters.bytes,
    }
}

/// Where packets ended, from the counters.
pub(crate) fn results(ledger: &Ledger) -> Vec<PacketStatus> {
    let mut all = vec![
        ended("filtered", "", ledger.filtered),
        ended("discarded", "policy", ledger.discarded),
        ended("sampled_out", "", ledger.sampled_out),
        ended("logged", "", ledger.logged),
        ended("in_flight", "", ledger.in_flight),
    ];
    for reason in DropReason::ALL {
        all.push(ended(
            "dropped",
            reason.name(),
            ledger.dropped[reason as usize],
        ));
    }
    all
}
