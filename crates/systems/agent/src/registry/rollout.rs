//! What administrators are shown: agents, and how far a version is.

use std::collections::BTreeMap;

use super::{Agent, Registry};
use crate::message::{AgentStatus, Report, Rollout, RolloutAgent};

/// Nanoseconds per second.
pub(super) const SECOND: u64 = 1_000_000_000;
/// An agent reports every few seconds; one that has not for this long is silent.
const SILENT: u64 = 30 * SECOND;

/// Whether a member reports.
pub(super) fn state(is_revoked: bool, heard_ns: Option<u64>, now_ns: u64) -> &'static str {
    match heard_ns {
        _ if is_revoked => "revoked",
        None => "never",
        Some(heard) if now_ns.saturating_sub(heard) > SILENT => "silent",
        Some(_) => "up",
    }
}

impl Agent {
    pub(super) fn state(&self, now_ns: u64) -> &'static str {
        let heard = self.last.as_ref().map(|(_, heard)| *heard);
        state(self.record.revoked, heard, now_ns)
    }

    fn problem(&self) -> String {
        match &self.last {
            Some((report, _)) if self.problem.is_empty() => report.problem.clone(),
            _ => self.problem.clone(),
        }
    }

    fn status(&self, now_ns: u64) -> AgentStatus {
        let (report, heard) = match &self.last {
            Some((report, heard)) => (report.clone(), Some(*heard)),
            None => (Report::default(), None),
        };
        let skew_ms = heard.map_or(0, |heard| {
            let skew = i128::from(report.time_ns).wrapping_sub(i128::from(heard));
            i64::try_from(skew / 1_000_000).expect("2^64 ns are less than 2^63 ms")
        });
        AgentStatus {
            name: self.record.name.clone(),
            state: self.state(now_ns).to_owned(),
            copies: self.runs.copies(now_ns),
            heard: heard.map(|heard| now_ns.saturating_sub(heard) / SECOND),
            skew_ms,
            problem: self.problem(),
            runs: report.runs,
            captures: report.captures,
            program: report.program,
            labels: report.labels,
            interfaces: report.interfaces,
            exports: report.exports,
            dropped: report.dropped,
            cpu: report.cpu,
            identities: self.identities.clone(),
            certificate_until: self.record.until,
        }
    }
}

impl Registry {
    /// All agents, by name, at this time (ns since 1970).
    #[must_use]
    pub fn agents(&self, now_ns: u64) -> Vec<AgentStatus> {
        let agents = self.agents.values();
        let agents = agents.filter(|agent| !agent.record.is_collector);
        agents.map(|agent| agent.status(now_ns)).collect()
    }

    /// How far the version that holds is, at this time (ns since 1970).
    #[must_use]
    pub fn rollout(&self, now_ns: u64) -> Rollout {
        let version = self.version();
        let runs = |agent: &Agent| agent.last.as_ref().map_or(0, |(report, _)| report.runs);
        let mut others = Vec::new();
        let mut running: usize = 0;
        for agent in self.agents.values().filter(|one| !one.record.is_collector) {
            let state = agent.state(now_ns);
            if state == "up" && runs(agent) == version && agent.problem().is_empty() {
                running = running.wrapping_add(1);
                continue;
            }
            let why = match (state, agent.problem()) {
                ("up", problem) if problem.is_empty() => String::from("on its way"),
                ("up", problem) => problem,
                (state, _) => state.to_owned(),
            };
            others.push(RolloutAgent {
                name: agent.record.name.clone(),
                runs: runs(agent),
                why,
            });
        }
        let mut before: Vec<u64> = Vec::new();
        let mut to = self.versions.last().map_or(0, |last| last.returns_to);
        while let Some(earlier) = self.versions.iter().find(|one| one.number == to) {
            before.insert(0, to);
            to = earlier.returns_to;
        }
        Rollout {
            version,
            since: self.versions.last().map_or(0, |version| version.since),
            before,
            running,
            others,
        }
    }

    /// Identities of an agent's interfaces.
    #[must_use]
    pub fn identities(&self, agent: &str) -> Option<&BTreeMap<String, u32>> {
        self.agents.get(agent).map(|agent| &agent.identities)
    }
}
