//! Sums of what was exported and received: they close, whatever others report.

use strata_agent::{
    AgentRecord, CollectedSession, CollectorReport, DestinationSum, DocumentFile, ExportCount,
    Interface, Registry, RegistryError, Report, SessionCount, Stored,
};

const SECOND: u64 = 1_000_000_000;
const AGENT: [u8; 32] = [1; 32];
const COLLECTOR: [u8; 32] = [2; 32];
const OTHER: [u8; 32] = [3; 32];

/// The agent `a`, whose `eth0` has identity 1, the collector `here`, and an agent `b`, whose `eth0` has identity 2.
fn registry() -> Registry {
    let mut registry = Registry::default();
    registry.enrolled("a", AGENT, u64::MAX, 0).unwrap();
    registry.enrolled("b", OTHER, u64::MAX, 0).unwrap();
    registry
        .enrolled_as(true, "here", COLLECTOR, u64::MAX, 0)
        .unwrap();
    let text = "[[policy]]\nname = 'all'\nmatch = 'tcp'\naction = 'header -> here'\n".into();
    let name = "a.toml".into();
    registry.apply(&[DocumentFile { name, text }], 0).unwrap();
    for agent in [AGENT, OTHER] {
        sends(&mut registry, agent, &[], 0);
    }
    registry
}

fn sends(registry: &mut Registry, agent: [u8; 32], sessions: &[(u32, u32, u64)], now_ns: u64) {
    let interface = Interface {
        name: "eth0".into(),
        ..Interface::default()
    };
    let session = |&(identity, session, packets): &(u32, u32, u64)| SessionCount {
        identity,
        session,
        packets,
    };
    let exports = ExportCount {
        name: "here".into(),
        packets: 1,
        sessions: sessions.iter().map(session).collect(),
        ..ExportCount::default()
    };
    let report = Report {
        interfaces: vec![interface],
        exports: if sessions.is_empty() {
            vec![]
        } else {
            vec![exports]
        },
        ..Report::default()
    };
    registry.report(&agent, report, "10.0.0.1", now_ns).unwrap();
}

/// Sessions: identity, number, packets received, lost, before.
fn collects(
    registry: &mut Registry,
    run: u64,
    sessions: &[[u32; 5]],
    now_ns: u64,
) -> Result<(), RegistryError> {
    let session = |&[identity, session, packets, lost, before]: &[u32; 5]| CollectedSession {
        identity,
        session,
        packets: packets.into(),
        lost: lost.into(),
        before: before.into(),
        ..CollectedSession::default()
    };
    let report = CollectorReport {
        run,
        sessions: sessions.iter().map(session).collect(),
        ..CollectorReport::default()
    };
    registry.collected(&COLLECTOR, report, "10.0.0.9", now_ns)
}

fn here(registry: &Registry, now_ns: u64) -> DestinationSum {
    let mut sums = registry.sums(now_ns);
    assert_eq!(sums.len(), 1);
    sums.remove(0)
}

/// Exported, received, lost, before, missing.
fn counts(of: &DestinationSum) -> [u64; 5] {
    let sum = &of.sum;
    let [exported, received, lost] = [sum.exported, sum.received, sum.lost];
    [exported, received, lost, sum.before, sum.missing]
}

#[test]
fn a_sum_closes_and_says_what_it_lacks() {
    let mut registry = registry();
    sends(&mut registry, AGENT, &[(1, 70, 100), (1, 71, 10)], 0);
    sends(&mut registry, OTHER, &[(2, 70, 5)], 0);
    let without = here(&registry, 0);
    assert_eq!(counts(&without), [115, 0, 0, 0, 115]);
    let collected = [[1, 70, 90, 7, 3], [1, 71, 12, 0, 0], [9, 1, 4, 0, 0]];
    collects(&mut registry, 1, &collected, 0).unwrap();
    let sum = here(&registry, 0);
    // The second session went on after the agent's report; one is of an agent that is not known.
    assert_eq!(counts(&sum), [100 + 12 + 4 + 5, 106, 7, 3, 5]);
    assert_eq!((sum.of_others, sum.silent.len()), (4, 0));
    assert_eq!(sum.interfaces[0].name, "a:eth0");
    // Both are silent for a while.
    let later = here(&registry, 40 * SECOND);
    assert_eq!(later.silent, ["a", "b"]);
    assert_eq!(later.collector.unwrap().state, "silent");
}

/// One that is revoked may still export, but its reports are refused: a sum with packets of it lacks others.
#[test]
fn a_sum_names_agents_that_are_revoked() {
    let mut registry = registry();
    sends(&mut registry, AGENT, &[(1, 70, 100)], 0);
    collects(&mut registry, 1, &[[1, 70, 100, 0, 0]], 0).unwrap();
    // It has exported nothing.
    registry.revoke("b").unwrap();
    let sum = here(&registry, 0);
    assert_eq!((sum.revoked.len(), sum.silent.len()), (0, 0));
    registry.revoke("a").unwrap();
    collects(&mut registry, 1, &[[1, 70, 120, 0, 0]], SECOND).unwrap();
    let sum = here(&registry, SECOND);
    assert_eq!(counts(&sum), [120, 120, 0, 0, 0]);
    assert_eq!((sum.revoked, sum.silent.len()), (vec!["a".into()], 0));
    registry.forget("a").unwrap();
    let sum = here(&registry, SECOND);
    assert_eq!((sum.revoked.len(), sum.of_others), (0, 120));
}

/// A controller that has started again knows of what they export from the collector only.
#[test]
fn a_sum_names_revoked_agents_that_only_the_collector_reports() {
    let record = |name: &str, certificate: [u8; 32], revoked: bool| AgentRecord {
        name: name.into(),
        certificates: vec![certificate],
        until: u64::MAX,
        revoked,
        is_collector: name == "here",
    };
    let stored = Stored {
        agents: vec![
            record("a", AGENT, true),
            record("b", OTHER, true),
            record("here", COLLECTOR, false),
        ],
        identities: vec![
            (1, "a".into(), "eth0".into()),
            (2, "b".into(), "eth0".into()),
        ],
        ..Stored::default()
    };
    let mut registry = Registry::new(stored, 1);
    collects(&mut registry, 1, &[[1, 70, 120, 0, 0]], 0).unwrap();
    assert_eq!(here(&registry, 0).revoked, ["a"]);
}

/// The controller reports the end of a connection; without one, a second run at the same time is one of a copy.
#[test]
fn a_collector_that_starts_again_is_no_copy() {
    let mut registry = registry();
    collects(&mut registry, 1, &[], 0).unwrap();
    registry.left(&COLLECTOR, 1);
    collects(&mut registry, 2, &[], 1).unwrap();
    for second in 0..3 {
        let now_ns = second * 2 * SECOND + 2;
        collects(&mut registry, 2, &[], now_ns).unwrap();
        let copy = collects(&mut registry, 3, &[], now_ns);
        assert!(matches!(copy, Err(RegistryError::Copy { .. })), "{copy:?}");
        // Its connection has ended, too: it was refused.
        registry.left(&COLLECTOR, 3);
        let collector = here(&registry, now_ns).collector.unwrap();
        assert_eq!(collector.copies, ["10.0.0.9", "10.0.0.9"]);
    }
}

/// An agent can only report of its own interfaces.
#[test]
fn an_agent_does_not_change_the_sums_of_others() {
    let mut registry = registry();
    sends(&mut registry, AGENT, &[(1, 70, 100)], 0);
    sends(
        &mut registry,
        OTHER,
        &[(1, 42, 1 << 40), (1, 70, 1 << 40), (2, 1, 5)],
        0,
    );
    collects(&mut registry, 1, &[[1, 70, 100, 0, 0], [2, 1, 5, 0, 0]], 0).unwrap();
    assert_eq!(counts(&here(&registry, 0)), [105, 105, 0, 0, 0]);
}

/// Each change of policies makes a session; old ones are forgotten at both ends, and so make no sum wrong.
#[test]
fn sessions_are_forgotten_on_both_sides() {
    let mut registry = registry();
    for number in 0..40_u32 {
        let now_ns = u64::from(number) * SECOND;
        let sessions: Vec<_> = (number.saturating_sub(3)..=number)
            .map(|session| (1, session, 10))
            .collect();
        sends(&mut registry, AGENT, &sessions, now_ns);
        let collected: Vec<_> = (number.saturating_sub(3)..=number)
            .map(|session| [1, session, 9, 0, 0])
            .collect();
        collects(&mut registry, 1, &collected, now_ns).unwrap();
    }
    let sum = here(&registry, 39 * SECOND);
    assert_eq!(counts(&sum), [80, 72, 0, 0, 8]);
    assert_eq!(sum.of_others, 0);
}

/// Whatever a collector reports, the sessions of now are taken.
#[test]
fn a_collector_full_of_sessions_takes_new_ones() {
    let mut registry = registry();
    for round in 0..10_u32 {
        let many: Vec<_> = (0..4000)
            .map(|at| [5, round * 4000 + at, 1, 0, 0])
            .collect();
        collects(&mut registry, 1, &many, u64::from(round)).unwrap();
    }
    sends(&mut registry, AGENT, &[(1, 70, 100)], 10);
    collects(&mut registry, 1, &[[1, 70, 100, 0, 0]], 10).unwrap();
    let sum = here(&registry, 10);
    assert_eq!((sum.interfaces[0].received, sum.sum.missing), (100, 0));
    assert!(sum.of_others <= 16_384);
}

#[test]
fn names_are_of_agents_or_of_collectors_and_of_one_at_a_time() {
    let mut registry = registry();
    let taken = registry.may_enrol_as(true, "a", 0).unwrap_err().to_string();
    assert!(
        taken.contains("belongs to an agent, and a collector"),
        "{taken}"
    );
    let taken = registry.may_enrol("here", 0).unwrap_err().to_string();
    assert!(
        taken.contains("belongs to a collector, and an agent"),
        "{taken}"
    );
    collects(&mut registry, 1, &[], 0).unwrap();
    let second = collects(&mut registry, 2, &[], 0);
    assert!(
        matches!(second, Err(RegistryError::Copy { .. })),
        "{second:?}"
    );
    let report = Report::default();
    let refused = registry.report(&COLLECTOR, report, "10.0.0.9", 0);
    assert!(matches!(refused, Err(RegistryError::NotThat(..))));
    let refused = registry.collected(&AGENT, CollectorReport::default(), "10.0.0.1", 0);
    assert!(matches!(refused, Err(RegistryError::NotThat(..))));
}
