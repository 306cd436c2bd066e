//! What an agent's recordings have counted, one after the other: an agent's counts go on, whichever recording counts.

use std::collections::BTreeMap;

use strata_agent::{ExportCount, SESSIONS_MAX, SessionCount};
use strata_control::{ExportedSession, Status};

/// As much of a destination's problem as is reported.
pub(super) const PROBLEM_CHARS_MAX: usize = 100;

/// What recordings have counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    pub(super) exports: Vec<ExportCount>,
    /// Packets that the kernel has dropped.
    pub(super) dropped: u64,
}

/// Sessions of an interface that are reported, the latest.
const LATEST: usize = 4;

fn session(of: &ExportedSession) -> SessionCount {
    SessionCount {
        identity: of.identity,
        session: of.session,
        packets: of.packets,
    }
}

/// The latest sessions of each interface, of those before and those of now.
fn latest(before: Vec<SessionCount>, now: &[SessionCount]) -> Vec<SessionCount> {
    let mut packets = BTreeMap::new();
    let mut all = before;
    all.extend(now);
    for one in &all {
        packets.insert((one.identity, one.session), one.packets);
    }
    let mut kept = Vec::new();
    let mut of_interface = BTreeMap::new();
    // From the latest on.
    for one in all.into_iter().rev() {
        let Some(packets) = packets.remove(&(one.identity, one.session)) else {
            continue;
        };
        let number: &mut usize = of_interface.entry(one.identity).or_default();
        *number += 1;
        if *number <= LATEST && kept.len() < SESSIONS_MAX {
            kept.push(SessionCount { packets, ..one });
        }
    }
    kept.reverse();
    kept
}

impl Counts {
    pub(super) fn of(status: &Status) -> Self {
        let exports = status.exports.iter().map(|to| ExportCount {
            name: to.name.clone(),
            packets: to.packets,
            lost: to.lost,
            unfit: to.unfit,
            cut: to.cut,
            not_sent: to.not_sent,
            problem: to.problem.chars().take(PROBLEM_CHARS_MAX).collect(),
            sessions: to.sessions.iter().map(session).collect(),
        });
        Self {
            exports: exports.collect(),
            dropped: status.interfaces.iter().map(|one| one.dropped).sum(),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Of recordings that have ended: packets that the kernel has dropped, and by destination.
    dropped: u64,
    exports: BTreeMap<String, ExportCount>,
    /// Of the one that runs, as last known.
    running: Counts,
    /// How many have ended.
    number: u64,
}

impl Tally {
    /// Which recording runs.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// What a recording has counted so far, unless it has ended meanwhile.
    pub(super) fn saw(&mut self, number: u64, counts: Counts) {
        if number == self.number {
            self.running = counts;
        }
    }

    /// The recording has ended: with these counts, or those that were last known.
    pub(super) fn ended(&mut self, last: Option<Counts>) {
        if let Some(last) = last {
            self.running = last;
        }
        let all = self.all();
        self.dropped = all.dropped;
        let exports = all.exports.into_iter().map(|mut to| {
            to.problem.clear();
            (to.name.clone(), to)
        });
        self.exports = exports.collect();
        self.running = Counts::default();
        self.number += 1;
    }

    /// Of all recordings.
    pub(super) fn all(&self) -> Counts {
        let mut before = self.exports.clone();
        let mut exports = self.running.exports.clone();
        for to in &mut exports {
            if let Some(before) = before.remove(&to.name) {
                to.packets += before.packets;
                to.lost += before.lost;
                to.unfit += before.unfit;
                to.cut += before.cut;
                to.not_sent += before.not_sent;
                to.sessions = latest(before.sessions, &to.sessions);
            }
        }
        exports.extend(before.into_values());
        let most = SESSIONS_MAX / exports.len().max(1);
        for to in &mut exports {
            let more = to.sessions.len().saturating_sub(most);
            to.sessions.drain(..more);
        }
        Counts {
            exports,
            dropped: self.dropped + self.running.dropped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(name: &str, packets: u64, problem: &str) -> Counts {
        Counts {
            exports: vec![ExportCount {
                name: name.into(),
                packets,
                not_sent: 2 * packets,
                problem: problem.into(),
                ..ExportCount::default()
            }],
            dropped: packets,
        }
    }

    /// Each recording has sessions of its own; the latest of each interface are kept.
    #[test]
    fn sessions_of_recordings_before_stay() {
        let of = |list: &[(u32, u32, u64)]| -> Vec<SessionCount> {
            let session = |&(identity, session, packets): &(u32, u32, u64)| SessionCount {
                identity,
                session,
                packets,
            };
            list.iter().map(session).collect()
        };
        let before = of(&[(1, 10, 5), (2, 11, 7), (1, 12, 1), (1, 13, 1), (1, 14, 1)]);
        let now = of(&[(1, 14, 9), (1, 15, 2)]);
        let expected = of(&[(2, 11, 7), (1, 12, 1), (1, 13, 1), (1, 14, 9), (1, 15, 2)]);
        assert_eq!(latest(before, &now), expected);
    }

    #[test]
    fn counts_go_on_whichever_recording_counts() {
        let mut tally = Tally::default();
        tally.saw(0, counts("here", 5, "no route"));
        // Ended with more than was known, and then without a word.
        tally.ended(Some(counts("here", 7, "no route")));
        let all = tally.all();
        assert_eq!((all.dropped, all.exports[0].packets), (7, 7));
        assert_eq!(all.exports[0].problem, "", "it is not known any more");
        // An answer of the first one that comes late.
        tally.saw(0, counts("here", 7, ""));
        tally.saw(tally.number(), counts("there", 1, "full"));
        tally.ended(None);
        tally.saw(tally.number(), counts("here", 10, ""));
        let all = tally.all();
        let found = all
            .exports
            .iter()
            .map(|to| (&to.name[..], to.packets, to.not_sent));
        assert_eq!(
            found.collect::<Vec<_>>(),
            [("here", 17, 34), ("there", 1, 2)]
        );
        assert_eq!(all.dropped, 18);
    }
}
