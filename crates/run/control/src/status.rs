//! The status of a recording, as the API returns it.

use serde::{Deserialize, Serialize};
use strata_classify::{DRIFTED, DriftReport, UNCLASSIFIED};
use strata_policy::{ClassKept, DetailCounts, ShadowClass, ShadowCounts};
use strata_sketch::Pressure;
use strata_wire::{Counters, DropReason, Ledger};
use utoipa::ToSchema;

mod collector;
mod lowered;
mod sent;

pub use collector::{CollectorStatus, RefusedStatus, SenderStatus};
pub use lowered::LoweredStatus;
pub use sent::{ExportStatus, ExportedSession, FlowsStatus, ReportStatus};

/// The status of a recording.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Version of Strata.
    pub version: String,
    /// Process ID.
    pub pid: u32,
    /// Directory of the log.
    pub log: String,
    /// Time since its start.
    pub uptime_seconds: f64,
    /// The active modes, joined by `+`.
    pub mode: String,
    /// The modes requested; others are active while something is short.
    pub asked_mode: String,
    /// Time until the mode returns.
    pub mode_seconds_left: Option<f64>,
    /// Action on packets that no policy matches.
    pub default: String,
    /// Number of policies.
    pub policies: usize,
    /// Packets arriving.
    pub packets_per_second: f64,
    /// Bytes arriving.
    pub bytes_per_second: f64,
    /// Bytes kept.
    pub logged_bytes_per_second: f64,
    /// Where packets ended.
    pub packets: Vec<PacketStatus>,
    /// How much was kept of each class.
    pub classes: Vec<ClassStatus>,
    /// Subsets of logged packets: `wanted_but_cut`, `promoted`, `header_fallback`.
    pub of_logged: Vec<PacketStatus>,
    /// Packets that may have been captured before, but could not be compared (`--dedup`).
    #[serde(default)]
    pub uncompared_packets: u64,
    /// Copies made for mirroring policies: `sent`, `lost`.
    pub mirrored: Vec<PacketStatus>,
    /// Interfaces.
    pub interfaces: Vec<InterfaceStatus>,
    /// What was lost before it reached Strata.
    pub lost: Vec<LostStatus>,
    /// The tables of flows of all workers, once they have reported them.
    pub flow_table: Option<FlowTableStatus>,
    /// What receiving packets costs the kernel, on the CPUs that do it.
    pub receive: Vec<ReceiveStatus>,
    /// What can run short.
    pub resources: Vec<ResourceStatus>,
    /// The CPU budget, if there is one.
    pub cpu: Option<CpuStatus>,
    /// Payload given up so that fewer packets are lost (`--shed`); none without eBPF.
    #[serde(default)]
    pub shed: Option<ShedStatus>,
    /// What a shortage lowered, if it ever did.
    #[serde(default)]
    pub lowered: Option<LoweredStatus>,
    /// How fast changes are.
    pub changes: ChangeStatus,
    /// Recent maximum time that packets wait in the kernel's ring for their worker: a change
    /// applies from the next packet that a worker takes.
    pub ring_wait_ms: Option<f64>,
    /// The budget of detail (`--detail`), if there is one.
    #[serde(default)]
    pub detail: Option<DetailStatus>,
    /// What a shadow model (`--shadow`) would have kept differently, if there is one.
    #[serde(default)]
    pub shadow: Option<ShadowStatus>,
    /// How well the model fits the traffic of the last minutes, if its file says what it was trained
    /// on.
    #[serde(default)]
    pub drift: Option<DriftStatus>,
    /// Who is attached to ask questions (`strata ask --socket`).
    #[serde(default)]
    pub vectors: VectorStatus,
    /// What is reported to a telemetry collector (`--report-to`).
    #[serde(default)]
    pub reports: Option<ReportStatus>,
    /// What became of flows for a collector of flows (`--flows-to`), if there is one.
    #[serde(default)]
    pub flows: Option<FlowsStatus>,
    /// What policies export, by destination.
    #[serde(default)]
    pub exports: Vec<ExportStatus>,
    /// What was read of `--eve`, if it was given.
    #[serde(default)]
    pub eve: Option<EveStatus>,
    /// How far compaction is behind, once that was looked at; none without a log on this machine.
    #[serde(default)]
    pub compaction: Option<CompactionStatus>,
    /// What has arrived, if a collector of exported packets records it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collector: Option<CollectorStatus>,
}

/// What was read of `--eve`, and whether it met packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EveStatus {
    /// Lines that were read, without empty ones.
    pub lines: u64,
    /// Alerts among them.
    pub alerts: u64,
    /// Lines that are no event of Suricata, or too long for one.
    pub invalid: u64,
    /// Flows with an alert.
    pub flows: u64,
    /// Of these, flows of which packets were seen here: of none, if Suricata sees other traffic.
    pub matched: u64,
}

/// How far compaction of the log is behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CompactionStatus {
    /// Whether anything of the log was compacted so far.
    pub in_use: bool,
    /// Complete block files that are not compacted.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How long ago the oldest of them was complete; none without such files.
    pub oldest_seconds: Option<f64>,
}

/// Fit of the model to the traffic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DriftStatus {
    /// Packets that were evaluated; fewer than 200 are too few for a result.
    pub samples: u64,
    /// Population stability index of the anomaly score, against training.
    pub score_index: f64,
    /// Above this index the model no longer fits.
    pub bound: f64,
    /// Whether it fits; `null` if that is not known yet.
    pub fits: Option<bool>,
    /// The features that differ most from training.
    pub features: Vec<FeatureDrift>,
}

/// Distance of a feature from its values in training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FeatureDrift {
    /// Its name.
    pub name: String,
    /// Population stability index.
    pub index: f64,
}

impl DriftStatus {
    /// From a report, with this many features of those that differ most.
    #[must_use]
    pub fn of(report: &DriftReport, features: usize) -> Self {
        let features = report.features.iter().take(features);
        Self {
            samples: report.samples,
            score_index: report.scores,
            bound: DRIFTED,
            fits: report.drifted().map(|drifted| !drifted),
            features: features
                .map(|(name, index)| FeatureDrift {
                    name: name.clone(),
                    index: *index,
                })
                .collect(),
        }
    }
}

/// The budget of detail, and what became of payload beyond headers.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DetailStatus {
    /// The budget requested, or `none`.
    pub asked: String,
    /// The budget at work: less while something is short.
    pub budget: String,
    /// Packets that the budget decided about and their payload (`offered`), of these packets that got
    /// detail and the bytes kept (`given`), and that the mode wanted but the budget did not give
    /// (`over_budget`); packets that others decided about, such as policies, alerts and first bytes,
    /// and the bytes kept of them (`outside`).
    pub payload: Vec<PacketStatus>,
}

/// Those who are attached to a recording, and get vectors of its packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VectorStatus {
    /// How many are attached now.
    pub attached: usize,
    /// Datagrams that they, and those before them, were sent.
    pub datagrams_sent: u64,
    /// Datagrams for which they had no room.
    pub datagrams_lost: u64,
    /// Queries that are installed (`strata ask --install`).
    #[serde(default)]
    pub installed: usize,
}

/// Where packets ended.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PacketStatus {
    /// `logged`, `discarded`, `duplicates` ...
    pub result: String,
    /// Why, for `dropped` and `discarded`.
    pub reason: String,
    /// In total.
    pub packets: u64,
    /// Bytes on the wire; for `logged` and `in_flight` bytes kept.
    pub bytes: u64,
}

/// Packets of a class kept at the same granularity.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ClassStatus {
    /// The class.
    pub class: String,
    /// `full`, `partial`, `header`, `drop` or `sampled_out`.
    pub granularity: String,
    /// Packets in total.
    pub packets: u64,
    /// Their bytes on the wire.
    pub captured_bytes: u64,
    /// Their bytes kept.
    pub kept_bytes: u64,
}

/// Packets that a shadow model would have kept differently.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ShadowStatus {
    /// Which model is which; absent in older versions.
    #[serde(default)]
    pub models: Option<ModelsStatus>,
    /// Of all classes.
    pub packets: Vec<PacketStatus>,
    /// Of each class that has packets.
    pub classes: Vec<ShadowClassStatus>,
}

/// The model that decides, and the one in its shadow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ModelsStatus {
    /// Name of the model that decides.
    pub in_force: String,
    /// Name of the one that is only compared.
    pub in_shadow: String,
    /// Whether the shadow was promoted, so that the recording's own model is in its shadow.
    pub promoted: bool,
}

/// Packets of one class that a shadow model would have kept differently.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ShadowClassStatus {
    /// The class.
    pub class: String,
    /// `compared`: packets that the model at work put in this class; `of_shadow`: those that the
    /// shadow put in it; both with their bytes on the wire. `more`: packets of `compared` of which
    /// the shadow would have kept more, and how many bytes more; `less`: the same for less.
    pub packets: Vec<PacketStatus>,
}

impl ShadowStatus {
    /// From the counters, of a model with these classes.
    pub(crate) fn of(counts: &ShadowCounts, names: &[String]) -> Self {
        let classes = counts.by_class().iter().enumerate();
        let classes = classes
            .filter(|(_, counts)| counts.compared.packets > 0 || counts.of_shadow.packets > 0);
        Self {
            models: None,
            packets: shadowed(&counts.all()),
            classes: classes
                .map(|(class, counts)| ShadowClassStatus {
                    class: class_name(names, class),
                    packets: shadowed(counts),
                })
                .collect(),
        }
    }
}

fn shadowed(counts: &ShadowClass) -> Vec<PacketStatus> {
    kinds(counts.by_name())
}

impl Status {
    /// Why a policy for this interface selects no packets now. `None` if the interface is captured, or if none is, as
    /// when files are read. It is no error: an interface may be captured later.
    #[must_use]
    pub fn not_captured(&self, interface: &str) -> Option<String> {
        let names = self.interfaces.iter().map(|one| one.name.as_str());
        let names: Vec<&str> = names.collect();
        if names.is_empty() || names.contains(&interface) {
            return None;
        }
        let names = names.join(", ");
        Some(format!(
            "no captured interface is named '{interface}' (captured: {names}): the policy matches no packets"
        ))
    }
}

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InterfaceStatus {
    /// Its name.
    pub name: String,
    /// Packets delivered by the kernel in total.
    pub received: u64,
    /// Packets dropped by the kernel in total, since the ring was full.
    pub dropped: u64,
    /// How it is captured: `AF_PACKET`, or `AF_XDP` with details.
    pub capture: Option<String>,
    /// Whether its packets are taken away from the host, or could be, as found at the start.
    pub exclusive: Option<String>,
}

/// Packets lost before they reached Strata.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LostStatus {
    /// `kernel`, `softnet` or `device`.
    pub place: String,
    /// The counter that recorded the loss.
    pub counter: String,
    /// How many, since the recording started.
    pub packets: u64,
    /// What to do about it.
    pub advice: String,
}

/// The tables in which workers count the packets of each flow, to classify by more than individual
/// packets. They grow when more than 1 % of the packets have no entry.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct FlowTableStatus {
    /// Their memory.
    pub bytes: u64,
    /// Packets counted in total.
    pub packets: u64,
    /// Of these, those whose flow found no entry: classified by their own headers alone.
    pub packets_without_entry: u64,
    /// How often a table was to grow, but the system had no memory for it.
    pub growths_refused: u64,
}

impl From<&Pressure> for FlowTableStatus {
    fn from(pressure: &Pressure) -> Self {
        Self {
            bytes: pressure.bytes(),
            packets: pressure.packets,
            packets_without_entry: pressure.without_bucket,
            growths_refused: pressure.growths_refused,
        }
    }
}

/// A CPU that receives packets, over the last second: the kernel's work, before packets reach
/// Strata.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReceiveStatus {
    /// The CPU.
    pub cpu: u32,
    /// Packets per second that it received, from all interfaces of the machine, but for those that
    /// are taken away in the driver.
    pub packets_per_second: f64,
    /// Share of its time in software interrupts (`softirq` in `/proc/stat`), in the main for
    /// received packets. Close to 1, the kernel is the limit.
    pub softirq: f64,
    /// Share of its time without anything to do.
    pub idle: f64,
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
    /// Steps of degradation that it currently asks for.
    pub degradation_steps: usize,
}

/// The CPU budget, and the measures to stay within it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CpuStatus {
    /// Cores that the process may use, including its programs in the kernel.
    pub budget: f64,
    /// Cores that it uses.
    pub used: f64,
    /// Share of flows captured.
    pub flow_share: f64,
    /// The remaining budget while other programs are short of CPU time; otherwise none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub short: Option<ShortStatus>,
}

/// Payload that is given up while packets are lost since CPUs are short: at most `bytes` bytes of each packet
/// are captured then.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ShedStatus {
    /// Whether payload is given up now.
    pub now: bool,
    /// How often it was.
    pub times: u64,
    /// Seconds for which it was, altogether.
    pub seconds: f64,
    /// The most bytes that are then captured of a packet.
    pub bytes: u32,
}

/// The remaining CPU time of a recording while other programs on its CPUs are short of it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ShortStatus {
    /// Cores that the process may use now. Only headers are copied.
    pub budget: f64,
    /// The latest sign of the shortage.
    pub why: String,
}

/// The delay from a request, or from the reading that led to a change, to its adoption by a worker.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ChangeStatus {
    /// Number of changes that workers adopted.
    pub count: u64,
    /// Sum of all delays.
    pub seconds_sum: f64,
    /// Median of recent ones.
    pub median_ms: Option<f64>,
    /// 99th percentile of recent ones.
    pub p99_ms: Option<f64>,
}

/// The origin of a policy.
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
    /// Packets to match.
    #[serde(rename = "match")]
    pub matches: String,
    /// Action on them.
    pub action: String,
    /// Priority; the largest number wins.
    pub priority: u16,
    /// Match packets of this interface only.
    pub interface: Option<String>,
    /// Whether the data kept for them is never deleted to free disk space.
    pub protect: bool,
    /// Its origin: `configuration`, or `run_time` if it was added to the running recording.
    pub origin: PolicyOrigin,
    /// Packets that it was applied to.
    pub packets: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
}

/// What was kept of each class, by name.
pub(crate) fn classes(kept: &[ClassKept], names: &[String]) -> Vec<ClassStatus> {
    let status = |kept: &ClassKept| ClassStatus {
        class: class_name(names, usize::from(kept.class)),
        granularity: kept.granularity.to_owned(),
        packets: kept.captured.packets,
        captured_bytes: kept.captured.bytes,
        kept_bytes: kept.kept_bytes,
    };
    kept.iter().map(status).collect()
}

/// The name of a class; the one after the last is for what is not dissected.
fn class_name(names: &[String], class: usize) -> String {
    let name = names.get(class).map_or(UNCLASSIFIED, String::as_str);
    name.to_owned()
}

/// Details of logged packets, from the counters.
pub(crate) fn of_logged(ledger: &Ledger) -> Vec<PacketStatus> {
    kinds(ledger.of_logged())
}

/// What became of payload under a budget of detail.
pub(crate) fn detailed(counts: &DetailCounts) -> Vec<PacketStatus> {
    kinds(counts.by_name())
}

/// What became of mirrored copies.
pub(crate) fn mirrored(ledger: &Ledger) -> Vec<PacketStatus> {
    kinds([("sent", ledger.mirrored), ("lost", ledger.mirror_lost)])
}

fn kinds(named: impl IntoIterator<Item = (&'static str, Counters)>) -> Vec<PacketStatus> {
    let status = |(name, counters)| ended(name, "", counters);
    named.into_iter().map(status).collect()
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
        ended("duplicates", "", ledger.duplicates),
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
