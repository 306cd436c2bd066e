//! What agents and controller say to each other, and what administrators are shown.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::limits::INTERFACES_MAX;

/// Bytes of a host's name.
const NAME_BYTES_MAX: usize = 64;
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
const EXPORTS_MAX: usize = 64;

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
}

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
        len if len > most => format!("{len} bytes are too many, {most} are the most"),
        _ if text.chars().any(char::is_control) => String::from("has a control character"),
        _ => return Ok(()),
    };
    Err(ReportError { what, problem })
}

fn count(what: &'static str, count: usize, most: usize) -> Result<(), ReportError> {
    match count > most {
        true => Err(ReportError {
            what,
            problem: format!("{count} are too many, {most} are the most"),
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
            problem: format!("'{name}' is not made of letters, digits, dots, hyphens, underscores"),
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
        let mut exports = self.exports.iter();
        exports.try_for_each(|to| {
            text("export", &to.name, LABEL_BYTES_MAX)?;
            text("problem", &to.problem, PROBLEM_BYTES_MAX)
        })
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
