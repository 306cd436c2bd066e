//! What agents have exported beside what collectors have received, session by session: numbers of packets begin at 0 in
//! each session of an interface, so that both ends count the same packets, whichever of them has started again.
//!
//! A collector is that of the destination that has its name.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::rollout::{SECOND, state};
use super::runs::Reporter;
use super::{Agent, Registry, RegistryError};
use crate::message::{
    CollectedSession, CollectorReport, CollectorState, DestinationSum, EXPORTS_MAX, ExportCount,
    InterfaceSum,
};

/// Sessions of an interface and a destination that are remembered, the latest.
const SESSIONS_MAX: usize = 8;
/// Interfaces and destinations of an agent of which sessions are remembered.
const STREAMS_MAX: usize = 4096;
/// Sessions of a collector that are remembered, of all interfaces.
const COLLECTED_MAX: usize = 16_384;

/// A session: to a destination, of an identity, with its number.
pub(super) type SessionKey = (String, u32, u32);

/// Sessions of an interface that were exported to a destination.
#[derive(Debug, Default)]
struct Stream {
    /// Their numbers and packets, the latest last.
    sessions: VecDeque<(u32, u64)>,
    /// When they were last reported: ns since 1970.
    heard_ns: u64,
}

/// What an agent has exported, by destination and identity.
#[derive(Debug, Default)]
pub(super) struct Sent(BTreeMap<(String, u32), Stream>);

impl Sent {
    /// Adopts what an agent reports of its own identities; what it no longer reports, since it has started again,
    /// stays. Returns sessions that are no longer remembered.
    pub(super) fn reported(
        &mut self,
        exports: &[ExportCount],
        own: &BTreeSet<u32>,
        now_ns: u64,
    ) -> Vec<SessionKey> {
        let mut forgotten = Vec::new();
        for to in exports {
            for one in to.sessions.iter().filter(|one| own.contains(&one.identity)) {
                let key = (to.name.clone(), one.identity);
                let stream = self.0.entry(key).or_default();
                stream.heard_ns = now_ns;
                let sessions = &mut stream.sessions;
                match sessions
                    .iter_mut()
                    .find(|(number, _)| *number == one.session)
                {
                    Some((_, packets)) => *packets = (*packets).max(one.packets),
                    None => sessions.push_back((one.session, one.packets)),
                }
                while sessions.len() > SESSIONS_MAX {
                    let gone = sessions.pop_front();
                    forgotten
                        .extend(gone.map(|(number, _)| (to.name.clone(), one.identity, number)));
                }
            }
        }
        self.make_room(exports, &mut forgotten);
        forgotten
    }

    /// Forgets destinations that are no longer reported, and the interfaces that were not heard of for longest, as far
    /// as there are too many.
    fn make_room(&mut self, exports: &[ExportCount], forgotten: &mut Vec<SessionKey>) {
        let names: BTreeSet<&String> = self.0.keys().map(|(name, _)| name).collect();
        let has_many_names = names.len() > EXPORTS_MAX;
        let mut heard: Vec<u64> = self.0.values().map(|stream| stream.heard_ns).collect();
        heard.sort_unstable();
        let too_many = heard.len().saturating_sub(STREAMS_MAX);
        // All that were last heard of then go: one report has them all.
        let oldest = too_many
            .checked_sub(1)
            .and_then(|at| heard.get(at))
            .copied();
        self.0.retain(|(name, identity), stream| {
            let is_old = oldest.is_some_and(|oldest| stream.heard_ns <= oldest);
            let is_gone = has_many_names && !exports.iter().any(|to| to.name == *name);
            if is_old || is_gone {
                let sessions = stream.sessions.iter();
                forgotten.extend(sessions.map(|(number, _)| (name.clone(), *identity, *number)));
            }
            !is_old && !is_gone
        });
    }
}

/// What a collector has received.
#[derive(Debug, Default)]
pub(super) struct Collected {
    /// The latest report but for its sessions, where it came from, and when: ns since 1970.
    last: Option<(CollectorReport, String, u64)>,
    /// By identity and session, with the time of the last report that had it.
    sessions: BTreeMap<(u32, u32), (CollectedSession, u64)>,
}

impl Collected {
    fn reported(&mut self, mut report: CollectorReport, from: &str, now_ns: u64) {
        for session in std::mem::take(&mut report.sessions) {
            let key = (session.identity, session.session);
            self.sessions.insert(key, (session, now_ns));
        }
        let mut heard: Vec<u64> = self.sessions.values().map(|(_, heard)| *heard).collect();
        heard.sort_unstable();
        let too_many = heard.len().saturating_sub(COLLECTED_MAX);
        if let Some(oldest) = too_many
            .checked_sub(1)
            .and_then(|at| heard.get(at))
            .copied()
        {
            self.sessions.retain(|_, (_, heard)| *heard > oldest);
        }
        self.last = Some((report, from.to_owned(), now_ns));
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

/// The sum of a destination while it is made.
#[derive(Debug, Default)]
struct Summing {
    interfaces: BTreeMap<u32, InterfaceSum>,
    /// Sessions that an agent has reported.
    seen: BTreeSet<(u32, u32)>,
    silent: BTreeSet<String>,
    revoked: BTreeSet<String>,
    without_numbers: u64,
}

impl Summing {
    fn interface(&mut self, identity: u32, name: impl FnOnce() -> String) -> &mut InterfaceSum {
        self.interfaces
            .entry(identity)
            .or_insert_with(|| InterfaceSum {
                name: name(),
                identity,
                ..InterfaceSum::default()
            })
    }
}

impl Registry {
    /// Takes a collector's report, from this address, at this time (ns since 1970).
    ///
    /// # Errors
    ///
    /// If it is not a collector's, out of bounds, or of a second collector with the same certificate.
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
        let run = (report.run, report.was_refused);
        if let Reporter::Copy { other, is_new } = member.runs.reported(run, from, now_ns) {
            return Err(RegistryError::Copy {
                name,
                other,
                is_new,
            });
        }
        member.collected.reported(report, from, now_ns);
        Ok(())
    }

    /// Sessions that their agents no longer report: collectors' counts of them would have nothing beside them.
    pub(super) fn forget_sessions(&mut self, forgotten: Vec<SessionKey>) {
        for (name, identity, session) in forgotten {
            if let Some(collector) = self.agents.get_mut(&name) {
                collector.collected.sessions.remove(&(identity, session));
            }
        }
    }

    /// What was exported to each destination, and what its collector has received, at this time (ns since 1970).
    #[must_use]
    pub fn sums(&self, now_ns: u64) -> Vec<DestinationSum> {
        let none = BTreeMap::new();
        let collected = |name: &str| {
            let collector = self.agents.get(name);
            let collector = collector.filter(|one| one.record.is_collector);
            collector.map_or(&none, |one| &one.collected.sessions)
        };
        let mut all: BTreeMap<&str, Summing> = BTreeMap::new();
        let (collectors, agents): (Vec<&Agent>, Vec<&Agent>) = self
            .agents
            .values()
            .partition(|one| one.record.is_collector);
        for one in &collectors {
            all.entry(&one.record.name).or_default();
        }
        for agent in &agents {
            for to in agent.exports() {
                let sum = all.entry(&to.name).or_default();
                if to.sessions.is_empty() {
                    add(&mut sum.without_numbers, to.packets);
                }
            }
            for ((to, identity), stream) in &agent.sent.0 {
                let sum = all.entry(to).or_default();
                for (session, packets) in &stream.sessions {
                    let key = (*identity, *session);
                    let found = collected(to).get(&key).map(|(session, _)| session);
                    // A number that two agents have reported is counted once.
                    let found = found.filter(|_| sum.seen.insert(key));
                    let interface = sum.interface(*identity, || self.name_of(*identity));
                    interface.add(*packets, found);
                }
            }
        }
        for agent in agents {
            let state = agent.state(now_ns);
            if state == "up" {
                continue;
            }
            for (name, sum) in &mut all {
                let mut sent = agent.sent.0.keys();
                if state != "never" && !sent.any(|(to, _)| to == name) {
                    continue;
                }
                let lacking = match state {
                    "revoked" => &mut sum.revoked,
                    _ => &mut sum.silent,
                };
                lacking.insert(agent.record.name.clone());
            }
        }
        let finish = |(name, sum)| self.finish(name, sum, collected(name), now_ns);
        all.into_iter().map(finish).collect()
    }

    /// Adds sessions that only the collector has reported.
    fn finish(
        &self,
        name: &str,
        mut of: Summing,
        collected: &BTreeMap<(u32, u32), (CollectedSession, u64)>,
        now_ns: u64,
    ) -> DestinationSum {
        let mut of_others = 0;
        for (key, (session, _)) in collected {
            if !of.seen.contains(key) {
                add(&mut of_others, session.accounted());
                let interface = of.interface(key.0, || session.name.clone());
                interface.add(0, Some(session));
            }
        }
        // A controller that has started again knows nothing of what they have sent, but the collector reports it.
        let owners = of.interfaces.keys();
        let owners = owners.filter_map(|identity| self.numbers.taken.get(identity));
        for (owner, _) in owners {
            let agent = self.agents.get(owner);
            if agent.is_some_and(|agent| agent.record.revoked) {
                of.revoked.insert(owner.clone());
            }
        }
        let mut sum = InterfaceSum::default();
        of.interfaces.values().for_each(|one| sum.add_sum(one));
        let collector = self.agents.get(name);
        let collector = collector.filter(|one| one.record.is_collector);
        DestinationSum {
            name: name.to_owned(),
            collector: collector.map(|one| one.as_collector(now_ns)),
            interfaces: of.interfaces.into_values().collect(),
            sum,
            without_numbers: of.without_numbers,
            silent: of.silent.into_iter().collect(),
            revoked: of.revoked.into_iter().collect(),
            of_others,
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

    /// What is known of a collector.
    fn as_collector(&self, now_ns: u64) -> CollectorState {
        let last = self.collected.last.as_ref();
        let heard = last.map(|(_, _, heard)| *heard);
        CollectorState {
            name: self.record.name.clone(),
            state: state(self.record.revoked, heard, now_ns).to_owned(),
            heard: heard.map(|heard| now_ns.saturating_sub(heard) / SECOND),
            from: last.map_or_else(String::new, |(_, from, _)| from.clone()),
            copies: self.runs.copies(now_ns),
            program: last.map_or_else(String::new, |(report, _, _)| report.program.clone()),
            not_accepted: last.map_or(0, |(report, _, _)| report.not_accepted),
            not_written: last.map_or(0, |(report, _, _)| report.not_written),
            socket_drops: last.map_or(0, |(report, _, _)| report.socket_drops),
            left_out: last.map_or(0, |(report, _, _)| report.left_out),
        }
    }
}
