//! What agents have exported beside what collectors have received, session by session: numbers of packets begin at 0 in
//! each session of an interface, so that both ends count the same packets, whichever of them has started again.
//!
//! A collector is that of the destination that has its name.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::rollout::{SECOND, state};
use super::{Agent, Registry, RegistryError};
use crate::message::{
    CollectedSession, CollectorReport, CollectorState, DestinationSum, ExportCount, InterfaceSum,
};

/// Sessions of an interface and a destination that are remembered, the latest.
const SESSIONS_MAX: usize = 8;
/// Interfaces and destinations of an agent of which sessions are remembered.
const STREAMS_MAX: usize = 4096;
/// Sessions of a collector that are remembered, of all interfaces.
const COLLECTED_MAX: usize = 16_384;

/// What an agent has exported: by destination and identity, sessions with their packets.
#[derive(Debug, Default)]
pub(super) struct Sent(BTreeMap<(String, u32), VecDeque<(u32, u64)>>);

impl Sent {
    /// Adopts what an agent reports; what it no longer reports, since it has started again, stays.
    pub(super) fn reported(&mut self, exports: &[ExportCount]) {
        for (to, one) in exports
            .iter()
            .flat_map(|to| to.sessions.iter().map(move |one| (to, one)))
        {
            let key = (to.name.clone(), one.identity);
            if self.0.len() >= STREAMS_MAX && !self.0.contains_key(&key) {
                continue;
            }
            let sessions = self.0.entry(key).or_default();
            match sessions
                .iter_mut()
                .find(|(number, _)| *number == one.session)
            {
                Some((_, packets)) => *packets = (*packets).max(one.packets),
                None => {
                    sessions.push_back((one.session, one.packets));
                    while sessions.len() > SESSIONS_MAX {
                        sessions.pop_front();
                    }
                }
            }
        }
    }
}

/// What a collector has received.
#[derive(Debug, Default)]
pub(super) struct Collected {
    /// The latest report but for its sessions, where it came from, and when: ns since 1970.
    last: Option<(CollectorReport, String, u64)>,
    sessions: BTreeMap<(u32, u32), CollectedSession>,
}

impl Collected {
    fn reported(&mut self, mut report: CollectorReport, from: &str, now_ns: u64) {
        for session in std::mem::take(&mut report.sessions) {
            let key = (session.identity, session.session);
            if self.sessions.len() < COLLECTED_MAX || self.sessions.contains_key(&key) {
                self.sessions.insert(key, session);
            } else {
                report.left_out = report.left_out.saturating_add(1);
            }
        }
        self.last = Some((report, from.to_owned(), now_ns));
    }

    fn state(&self, name: &str, is_revoked: bool, now_ns: u64) -> CollectorState {
        let heard = self.last.as_ref().map(|(_, _, heard)| *heard);
        let last = self.last.as_ref();
        CollectorState {
            name: name.to_owned(),
            state: state(is_revoked, heard, now_ns).to_owned(),
            heard: heard.map(|heard| now_ns.saturating_sub(heard) / SECOND),
            from: last.map_or_else(String::new, |(_, from, _)| from.clone()),
            program: last.map_or_else(String::new, |(report, _, _)| report.program.clone()),
            not_accepted: last.map_or(0, |(report, _, _)| report.not_accepted),
            not_written: last.map_or(0, |(report, _, _)| report.not_written),
            socket_drops: last.map_or(0, |(report, _, _)| report.socket_drops),
            left_out: last.map_or(0, |(report, _, _)| report.left_out),
        }
    }
}

fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

impl InterfaceSum {
    /// Adds a session: what its agent says, and what the collector does.
    fn add(&mut self, sent: u64, collected: Option<&CollectedSession>) {
        let accounted = collected.map_or(0, CollectedSession::accounted);
        // The report of an agent may be older than that of the collector.
        add(&mut self.exported, sent.max(accounted));
        add(&mut self.missing, sent.saturating_sub(accounted));
        if let Some(collected) = collected {
            add(&mut self.received, collected.packets);
            add(&mut self.lost, collected.lost);
            add(&mut self.before, collected.before);
        }
    }

    fn add_sum(&mut self, other: &Self) {
        add(&mut self.exported, other.exported);
        add(&mut self.received, other.received);
        add(&mut self.lost, other.lost);
        add(&mut self.before, other.before);
        add(&mut self.missing, other.missing);
    }
}

impl Registry {
    /// Takes a collector's report, from this address, at this time (ns since 1970).
    ///
    /// # Errors
    ///
    /// If it is not a collector's, or out of bounds.
    pub fn collected(
        &mut self,
        certificate: &[u8; 32],
        report: CollectorReport,
        from: &str,
        now_ns: u64,
    ) -> Result<(), RegistryError> {
        let name = self.who(certificate)?.to_owned();
        report.check()?;
        let member = self.agents.get_mut(&name).ok_or(RegistryError::Unknown)?;
        if !member.record.is_collector {
            return Err(RegistryError::NotThat(name, "an agent"));
        }
        member.collected.reported(report, from, now_ns);
        Ok(())
    }

    /// What was exported to each destination, and what its collector has received, at this time (ns since 1970).
    #[must_use]
    pub fn sums(&self, now_ns: u64) -> Vec<DestinationSum> {
        let members = self.agents.values();
        let of_agents = members.clone().filter(|one| !one.record.is_collector);
        let reported = of_agents.clone().flat_map(|one| one.exports());
        let mut names: BTreeSet<&str> = reported.map(|to| to.name.as_str()).collect();
        names.extend(of_agents.flat_map(|one| one.sent.0.keys().map(|(name, _)| name.as_str())));
        let collectors = members.filter(|one| one.record.is_collector);
        names.extend(collectors.map(|one| one.record.name.as_str()));
        names
            .into_iter()
            .map(|name| self.sum(name, now_ns))
            .collect()
    }

    fn sum(&self, name: &str, now_ns: u64) -> DestinationSum {
        let collector = self.agents.get(name);
        let collector = collector.filter(|one| one.record.is_collector);
        let none = BTreeMap::new();
        let collected = collector.map_or(&none, |one| &one.collected.sessions);
        let mut interfaces: BTreeMap<u32, InterfaceSum> = BTreeMap::new();
        let (mut seen, mut without_numbers) = (BTreeSet::new(), 0);
        for agent in self.agents.values().filter(|one| !one.record.is_collector) {
            let of_it = agent
                .exports()
                .filter(|to| to.name == name && to.sessions.is_empty());
            of_it.for_each(|to| add(&mut without_numbers, to.packets));
            for ((_, identity), sessions) in agent.sent.0.iter().filter(|((to, _), _)| to == name) {
                let sum = interfaces.entry(*identity).or_insert_with(|| InterfaceSum {
                    name: self.name_of(*identity),
                    identity: *identity,
                    ..InterfaceSum::default()
                });
                for (session, packets) in sessions {
                    let key = (*identity, *session);
                    sum.add(*packets, collected.get(&key));
                    seen.insert(key);
                }
            }
        }
        // Of agents that the controller has not heard of since it started, or that are not its own.
        for (key, session) in collected.iter().filter(|(key, _)| !seen.contains(*key)) {
            let sum = interfaces.entry(key.0).or_insert_with(|| InterfaceSum {
                name: session.name.clone(),
                identity: key.0,
                ..InterfaceSum::default()
            });
            sum.add(0, Some(session));
        }
        let mut sum = InterfaceSum::default();
        interfaces.values().for_each(|one| sum.add_sum(one));
        DestinationSum {
            name: name.to_owned(),
            collector: collector.map(|one| one.collected.state(name, one.record.revoked, now_ns)),
            interfaces: interfaces.into_values().collect(),
            sum,
            without_numbers,
        }
    }

    /// `HOST:INTERFACE`; empty if no interface has the identity now.
    fn name_of(&self, identity: u32) -> String {
        let owner = self.numbers.taken.get(&identity);
        owner.map_or_else(String::new, |(agent, interface)| {
            format!("{agent}:{interface}")
        })
    }
}

impl Agent {
    fn exports(&self) -> impl Iterator<Item = &ExportCount> {
        self.last.iter().flat_map(|(report, _)| &report.exports)
    }
}
