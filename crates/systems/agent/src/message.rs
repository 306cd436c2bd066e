//! What agents and controller say to each other, and what administrators are shown.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::limits::INTERFACES_MAX;

/// Bytes of a host's name, and of that of an interface with its host.
pub const NAME_BYTES_MAX: usize = 64;
/// Labels of an agent, and bytes of each part of one.
const LABELS_MAX: usize = 32;
const LABEL_BYTES_MAX: usize = 128;
/// Bytes of an interface's name: the kernel's limit is 15, but a capture may have others.
const INTERFACE_BYTES_MAX: usize = 64;
/// Bytes of an alias, and of the kernel's (`IFALIASZ`).
const ALIAS_BYTES_MAX: usize = 256;
/// Bytes of a problem that an agent reports.
const PROBLEM_BYTES_MAX: usize = 2048;
/// Destinations of an agent.
pub(crate) const EXPORTS_MAX: usize = 64;

/// The first request of an agent, with the token that the controller's administrator gave it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Enrol {
    /// Name of the host.
    pub name: String,
    /// The token.
    pub token: String,
    /// Public key to certify: a point on P-256, uncompressed (SEC 1, section 2.3.3).
    pub public_key: Vec<u8>,
    /// Whether it is a collector, which reports what it has received; else an agent.
    #[serde(default)]
    pub is_collector: bool,
}

/// A request for another certificate, by an agent that has one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Renew {
    /// As in [`Enrol`].
    pub public_key: Vec<u8>,
}

/// A certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enrolled {
    /// As PEM.
    pub certificate: String,
    /// Seconds since 1970 from which another one should be requested.
    pub renew_at: u64,
}

/// An interface of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// Its MAC address as text; empty if it has none.
    #[serde(default)]
    pub mac: String,
    /// What an administrator calls it.
    #[serde(default)]
    pub alias: String,
    /// What is at its other end, as in `netns web-a` and `libvirt blue-1`; empty if that is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub behind: String,
    /// The bridge of which it is a port; empty if it is of none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub bridge: String,
}

/// What was exported to a destination.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportCount {
    /// Its name.
    pub name: String,
    /// Packets that were sent.
    pub packets: u64,
    /// Packets that came faster than they could be sent.
    pub lost: u64,
    /// Packets that cannot be exported to it.
    #[serde(default)]
    pub unfit: u64,
    /// Packets that were cut to what the path carries, in VXLAN.
    #[serde(default)]
    pub cut: u64,
    /// Datagrams that the network did not take.
    #[serde(default)]
    pub not_sent: u64,
    /// Why not, in the last second; empty if all were sent.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub problem: String,
    /// Sessions of interfaces, the latest of each; none in VXLAN, which has no numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sessions: Vec<SessionCount>,
}

/// Packets of a session of an interface that were numbered for a destination: sent, or lost before they could be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionCount {
    /// Of the interface.
    pub identity: u32,
    /// Numbers begin at 0 in each session.
    pub session: u32,
    /// Packets.
    pub packets: u64,
}

/// What a collector has received of a session of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectedSession {
    /// Of the interface.
    pub identity: u32,
    /// The session.
    pub session: u32,
    /// `HOST:INTERFACE` as the sender has announced it; empty if it has not.
    #[serde(default)]
    pub name: String,
    /// Packets that arrived.
    pub packets: u64,
    /// Packets that were lost on the way, or at the sender.
    pub lost: u64,
    /// Packets that were numbered before the first datagram that this run of the collector received.
    pub before: u64,
}

impl CollectedSession {
    /// Packets that the collector knows of.
    #[must_use]
    pub fn accounted(&self) -> u64 {
        let lost = self.lost.saturating_add(self.before);
        self.packets.saturating_add(lost)
    }
}

/// What a collector has received, all in all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectorReport {
    /// A number of this run of the collector, as in [`Report`].
    pub run: u64,
    /// Whether this run was refused last, because another one had reported first.
    pub was_refused: bool,
    /// Version of the program.
    pub program: String,
    /// Sessions, those that were heard of last.
    pub sessions: Vec<CollectedSession>,
    /// Datagrams that it did not accept: of strangers, forged, unreadable, repeated, or of too many interfaces.
    pub not_accepted: u64,
    /// Packets that it could not write.
    pub not_written: u64,
    /// Messages that found its socket's buffer full: datagrams, or runs of them.
    pub socket_drops: u64,
    /// Sessions that are not in the report, since there are too many.
    pub left_out: u64,
}

/// The most sessions in a report of a collector, or of an agent.
pub const SESSIONS_MAX: usize = 4096;

/// The CPU time of an agent's recording, in thousandths of a core.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuUse {
    /// What it may use.
    pub budget: u32,
    /// What is left of that while others on its CPUs are short; else the same.
    pub left: u32,
    /// What it uses.
    pub used: u32,
    /// Share of flows that it captures, in thousandths.
    pub flows: u32,
    /// Why not all of its budget is left; empty if it is.
    pub short: String,
}

/// How an agent is, and what it has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// A number of this run of the agent: two runs at the same time have one directory, or a copy of it. 0 of agents
    /// that do not say it.
    #[serde(default)]
    pub run: u64,
    /// Whether this run was refused last, because another one had reported first.
    #[serde(default)]
    pub was_refused: bool,
    /// Its clock, ns since 1970.
    pub time_ns: u64,
    /// Version of the program.
    pub program: String,
    /// Labels by which policies select it.
    pub labels: BTreeMap<String, String>,
    /// Interfaces that may be captured.
    pub interfaces: Vec<Interface>,
    /// Stamp of the assignment that it has; `None` if it has none.
    pub has: Option<u64>,
    /// Version of the policies that take effect; 0 for none.
    pub runs: u64,
    /// Interfaces that it captures.
    pub captures: u32,
    /// What does not work; empty if all does.
    pub problem: String,
    /// What was exported since it started.
    pub exports: Vec<ExportCount>,
    /// Packets that the kernel has dropped since then, its ring being full.
    #[serde(default)]
    pub dropped: u64,
    /// What it takes of the CPU, if it has a budget.
    #[serde(default)]
    pub cpu: Option<CpuUse>,
}

/// What is wrong with a report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {problem}")]
pub struct ReportError {
    what: &'static str,
    problem: String,
}

fn text(what: &'static str, text: &str, most: usize) -> Result<(), ReportError> {
    let problem = match text.len() {
        len if len > most => format!("{len} bytes; at most {most} are allowed"),
        _ if text.chars().any(char::is_control) => String::from("has a control character"),
        _ => return Ok(()),
    };
    Err(ReportError { what, problem })
}

fn count(what: &'static str, count: usize, most: usize) -> Result<(), ReportError> {
    match count > most {
        true => Err(ReportError {
            what,
            problem: format!("{count}; at most {most} are allowed"),
        }),
        false => Ok(()),
    }
}

/// Whether a host may have this name: letters, digits, dots, hyphens and underscores.
pub(crate) fn check_name(name: &str) -> Result<(), ReportError> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    text("name", name, NAME_BYTES_MAX)?;
    match name.is_empty() || !name.bytes().all(fits) {
        true => Err(ReportError {
            what: "name",
            problem: format!(
                "'{name}': only letters, digits, dots, hyphens and underscores are allowed"
            ),
        }),
        false => Ok(()),
    }
}

impl Report {
    /// Whether everything is within bounds: an agent may be hostile.
    pub(crate) fn check(&self) -> Result<(), ReportError> {
        text("program", &self.program, NAME_BYTES_MAX)?;
        text("problem", &self.problem, PROBLEM_BYTES_MAX)?;
        count("labels", self.labels.len(), LABELS_MAX)?;
        for (key, value) in &self.labels {
            text("label", key, LABEL_BYTES_MAX)?;
            text("label", value, LABEL_BYTES_MAX)?;
        }
        count("interfaces", self.interfaces.len(), INTERFACES_MAX)?;
        let mut names: Vec<&str> = Vec::with_capacity(self.interfaces.len());
        for interface in &self.interfaces {
            text("interface", &interface.name, INTERFACE_BYTES_MAX)?;
            text("mac", &interface.mac, LABEL_BYTES_MAX)?;
            text("alias", &interface.alias, ALIAS_BYTES_MAX)?;
            text("behind", &interface.behind, ALIAS_BYTES_MAX)?;
            text("bridge", &interface.bridge, INTERFACE_BYTES_MAX)?;
            names.push(&interface.name);
        }
        names.sort_unstable();
        if let Some(two) = names.windows(2).find(|two| two[0] == two[1]) {
            let problem = format!("{} is named twice", two[0]);
            return Err(ReportError {
                what: "interfaces",
                problem,
            });
        }
        if let Some(cpu) = &self.cpu {
            text("cpu", &cpu.short, PROBLEM_BYTES_MAX)?;
        }
        count("exports", self.exports.len(), EXPORTS_MAX)?;
        let sessions = self.exports.iter().map(|to| to.sessions.len()).sum();
        count("sessions", sessions, SESSIONS_MAX)?;
        let mut exports = self.exports.iter();
        exports.try_for_each(|to| {
            text("export", &to.name, LABEL_BYTES_MAX)?;
            text("problem", &to.problem, PROBLEM_BYTES_MAX)
        })
    }
}

impl CollectorReport {
    /// Whether everything is within bounds.
    pub(crate) fn check(&self) -> Result<(), ReportError> {
        text("program", &self.program, NAME_BYTES_MAX)?;
        count("sessions", self.sessions.len(), SESSIONS_MAX)?;
        let mut sessions = self.sessions.iter();
        sessions.try_for_each(|one| text("name", &one.name, NAME_BYTES_MAX))
    }
}

/// A policy as a recording has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AssignedPolicy {
    /// Packets to match, in tcpdump's language.
    #[serde(rename = "match")]
    pub matches: String,
    /// What is done with them.
    pub action: String,
    /// The largest number wins.
    pub priority: u16,
    /// The only interface that it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
}

/// What an agent is to do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Assignment {
    /// Of its contents: agents say by it what they have.
    pub stamp: u64,
    /// Version of the policies.
    pub version: u64,
    /// Those that are for this agent.
    pub policies: Vec<AssignedPolicy>,
    /// Interfaces to capture, with their identities.
    pub identities: BTreeMap<String, u32>,
    /// Keys of these identities, as lines of a file: what is sent to collectors is encrypted with them. In
    /// clear, without keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<String>,
}

/// What became of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// The version that holds now.
    pub version: u64,
    /// What differs from the version before, as text.
    pub differences: Vec<String>,
    /// What is right, but perhaps not meant, such as a policy that selects no agent.
    #[serde(default)]
    pub hints: Vec<String>,
}

/// An agent, as administrators see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// Its name.
    pub name: String,
    /// `up`, `silent`, `never` (not since the controller started) or `revoked`.
    pub state: String,
    /// Seconds since it was last heard of.
    pub heard: Option<u64>,
    /// Its clock minus the controller's, ms, at its last report.
    pub skew_ms: i64,
    /// Addresses from which two agents report with its certificate: its directory was copied. The second is refused.
    /// Empty if there is only one.
    pub copies: Vec<String>,
    /// Version of the policies that it runs.
    pub runs: u64,
    /// Interfaces that it captures.
    pub captures: u32,
    /// What does not work there.
    pub problem: String,
    /// Version of the program.
    pub program: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its interfaces.
    pub interfaces: Vec<Interface>,
    /// Identities of interfaces.
    pub identities: BTreeMap<String, u32>,
    /// What it exported.
    pub exports: Vec<ExportCount>,
    /// Packets that its kernel has dropped, the ring being full, since it started.
    pub dropped: u64,
    /// What it takes of the CPU, if it has a budget.
    pub cpu: Option<CpuUse>,
    /// Seconds since 1970 at which its certificate expires.
    pub certificate_until: u64,
}

/// A collector, as administrators see it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectorState {
    /// Its name, which is that of a destination.
    pub name: String,
    /// As of an agent.
    pub state: String,
    /// Seconds since it was last heard of.
    pub heard: Option<u64>,
    /// The address that it reports from.
    pub from: String,
    /// As of an agent.
    pub copies: Vec<String>,
    /// Version of the program.
    pub program: String,
    /// Datagrams that it did not accept.
    pub not_accepted: u64,
    /// Packets that it could not write.
    pub not_written: u64,
    /// Messages that did not fit into its socket's buffer.
    pub socket_drops: u64,
    /// Sessions of which nothing is known here, since there are too many.
    pub left_out: u64,
}

/// What was exported of an interface, and what became of it: `exported` = `received` + `lost` + `before` + `missing`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceSum {
    /// `HOST:INTERFACE`; empty if that is not known.
    pub name: String,
    /// Its identity.
    pub identity: u32,
    /// Packets that were exported, or lost before they could be sent.
    pub exported: u64,
    /// Packets that the collector has received.
    pub received: u64,
    /// Packets that it knows to be lost.
    pub lost: u64,
    /// Packets of before this run of the collector.
    pub before: u64,
    /// Packets that the collector does not know of.
    pub missing: u64,
}

/// What was exported to a destination.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DestinationSum {
    /// The name that policies use.
    pub name: String,
    /// The collector of that name; none if none has enrolled.
    pub collector: Option<CollectorState>,
    /// By identity.
    pub interfaces: Vec<InterfaceSum>,
    /// Of all of them.
    pub sum: InterfaceSum,
    /// Packets exported to it without numbers, in VXLAN: no collector counts them.
    pub without_numbers: u64,
    /// Agents that do not report: what they have exported since their last report is in no sum.
    pub silent: Vec<String>,
    /// Agents in the sum that are revoked: what they have exported since then is known only as far as the collector
    /// knows of it.
    pub revoked: Vec<String>,
    /// Packets of sessions that only the collector has reported: of them, none can be missing.
    pub of_others: u64,
}

/// What has changed at a controller, or was noticed there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Seconds since 1970.
    pub time: u64,
    /// Of what kind.
    pub kind: EventKind,
    /// Who did it: `uid 0` for a user of the controller's host, else the address of a host.
    pub who: String,
    /// What it was, in words.
    pub what: String,
    /// Why, as that user said; empty if it was not said.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// Kinds of [`Event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EventKind {
    /// Policies were applied.
    Apply,
    /// The version before was returned to.
    Undo,
    /// A host has become an agent.
    Enrol,
    /// An agent is refused.
    Revoke,
    /// An agent is forgotten.
    Forget,
    /// Two agents report with one certificate.
    Copy,
}

impl EventKind {
    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Apply => "apply",
            Self::Undo => "undo",
            Self::Enrol => "enrol",
            Self::Revoke => "revoke",
            Self::Forget => "forget",
            Self::Copy => "copy",
        }
    }
}

/// The most bytes of a reason that a user gives.
const WHY_BYTES_MAX: usize = 1024;

/// Whether a reason that a user gives is within bounds.
///
/// # Errors
///
/// If it is too long, or has control characters.
pub fn check_why(why: &str) -> Result<(), ReportError> {
    text("the reason (--why)", why, WHY_BYTES_MAX)
}

/// How far a version is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollout {
    /// The version.
    pub version: u64,
    /// Seconds since 1970 when it was applied; 0 if nothing was.
    pub since: u64,
    /// Versions that `undo` can return to, the latest last.
    pub before: Vec<u64>,
    /// Agents that have it.
    pub running: usize,
    /// Those that have not, and why.
    pub others: Vec<RolloutAgent>,
}

/// An agent that does not run a version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutAgent {
    /// Its name.
    pub name: String,
    /// What it runs.
    pub runs: u64,
    /// Why.
    pub why: String,
}
