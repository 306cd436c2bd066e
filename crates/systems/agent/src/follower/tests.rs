//! An agent over the turns of its life: assigned, started, ended, started anew.

use super::*;

fn interfaces(names: &[&str]) -> Vec<Interface> {
    let interface = |name: &&str| Interface {
        name: (*name).to_owned(),
        ..Interface::default()
    };
    names.iter().map(interface).collect()
}

fn assignment(matches: &str, identities: &[(&str, u32)]) -> Assignment {
    Assignment {
        stamp: 1,
        version: 5,
        policies: vec![AssignedPolicy {
            matches: matches.into(),
            action: "header -> here".into(),
            priority: 100,
            interface: None,
        }],
        identities: identities
            .iter()
            .map(|(name, number)| ((*name).into(), *number))
            .collect(),
        keys: Vec::new(),
    }
}

fn follower() -> Follower {
    let local = Local {
        host: "web-1".into(),
        interfaces: vec!["tap*".into()],
        destinations: BTreeMap::from([("here".into(), "udp://192.0.2.1:4740".into())]),
        ..Local::default()
    };
    Follower::new(local, None)
}

fn plan(step: Step) -> Plan {
    match step {
        Step::Start(plan) | Step::Reload(plan) => plan,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_recording_follows_policies_and_interfaces() {
    let mut agent = follower();
    assert!(agent.interfaces(interfaces(&["tap1", "eth0", "tap0"])));
    assert!(!agent.interfaces(interfaces(&["tap0", "tap1", "lo"])));
    assert_eq!(agent.step(0, None), Step::Wait, "nothing is assigned");
    agent.assign(assignment("tcp", &[("tap0", 7), ("tap1", 8), ("eth0", 9)]));
    let first = plan(agent.step(0, None));
    assert_eq!(
        first.interfaces,
        ["tap0", "tap1"],
        "eth0 is not for capture"
    );
    assert_eq!(agent.report(0, "").runs, 0);
    agent.took(first, 0);
    assert_eq!(agent.step(1, None), Step::Wait);
    let report = agent.report(0, "");
    assert_eq!((report.runs, report.captures), (5, 2));
    // Another policy changes nothing else.
    agent.assign(assignment("udp", &[("tap0", 7), ("tap1", 8)]));
    let second = agent.step(2, None);
    assert!(
        matches!(&second, Step::Reload(plan) if plan.config.contains("udp")),
        "{second:?}"
    );
    agent.took(plan(second), 0);
    // An interface that goes does.
    agent.interfaces(interfaces(&["tap1"]));
    let third = plan(agent.step(3, None));
    assert_eq!(third.interfaces, ["tap1"]);
    assert_eq!(agent.report(0, "").captures, 2, "until then");
    agent.took(third, 0);
    agent.interfaces(Vec::new());
    assert_eq!(
        (agent.step(5, None), agent.step(6, None)),
        (Step::Stop, Step::Wait)
    );
}

#[test]
fn a_recording_that_runs_hears_of_addresses() {
    let mut agent = follower();
    let spare = ("spare".to_owned(), "udp://spare.example:4740".to_owned());
    agent.local.destinations.extend([spare]);
    agent.interfaces(interfaces(&["tap0"]));
    agent.assign(assignment("tcp", &[("tap0", 7)]));
    let addresses = |plan: &Plan| {
        let config = plan.config.parse::<toml::Table>().unwrap();
        config["export"]["addresses"].as_table().unwrap().clone()
    };
    let first = plan(agent.step(0, None));
    assert!(addresses(&first).is_empty(), "but they are there");
    agent.took(first, 0);
    agent.addresses(BTreeMap::from([(
        "spare".into(),
        "[fe80::1%2]:4740".parse().unwrap(),
    )]));
    let second = agent.step(1, None);
    assert!(matches!(second, Step::Reload(_)), "{second:?}");
    let second = plan(second);
    assert_eq!(
        addresses(&second)["spare"].as_str(),
        Some("[fe80::1%2]:4740")
    );
    agent.took(second, 1);
    assert_eq!(agent.step(2, None), Step::Wait);
}

#[test]
fn what_this_host_lacks_is_named() {
    let mut agent = follower();
    agent.local.interfaces.push("veth*".into());
    assert_eq!(agent.unmatched(), ["tap*", "veth*"]);
    agent.interfaces(interfaces(&["tap0", "eth0"]));
    assert_eq!(agent.unmatched(), ["veth*"]);
    agent.assign(assignment("tcp", &[("tap0", 7)]));
    assert_eq!(plan(agent.step(0, None)).problem, None);
    let mut elsewhere = assignment("tcp", &[("tap0", 7)]);
    elsewhere.policies[0].action = "payload 64 -> elsewhere".into();
    agent.assign(elsewhere);
    let problem = plan(agent.step(0, None)).problem.unwrap();
    assert!(problem.contains("--destination elsewhere=URL"), "{problem}");
}

#[test]
fn another_recording_starts_when_ports_join_or_leave_a_bridge() {
    let mut agent = follower();
    let on = |bridges: [&str; 2]| {
        let mut all = interfaces(&["br0", "tap0", "tap1"]);
        all[1].bridge = bridges[0].into();
        all[2].bridge = bridges[1].into();
        all
    };
    agent.assign(assignment("udp", &[("tap0", 1), ("tap1", 2)]));
    assert!(agent.interfaces(on(["br0", "br0"])));
    let both = plan(agent.step(0, None));
    assert_eq!(both.bridge_ports, [["tap0", "tap1"]]);
    agent.took(both, 0);
    // The bridge may not be captured, but who is on it counts.
    assert!(agent.interfaces(on(["br0", ""])));
    let apart = match agent.step(1, None) {
        Step::Start(plan) => plan,
        other => panic!("{other:?}"),
    };
    assert!(apart.bridge_ports.is_empty() && apart.notes.is_empty());
    agent.took(apart, 1);
    agent.local.all_copies = true;
    agent.interfaces(on(["br0", "br0"]));
    assert_eq!(agent.step(2, None), Step::Wait);
}

#[test]
fn what_is_refused_changes_nothing_and_is_told() {
    let mut agent = follower();
    agent.interfaces(interfaces(&["tap0"]));
    agent.assign(assignment("tcp", &[("tap0", 7)]));
    let good = plan(agent.step(0, None));
    agent.took(good, 0);
    agent.assign(Assignment {
        version: 6,
        ..assignment("udp", &[("tap0", 7)])
    });
    let bad = plan(agent.step(1, None));
    agent.refused(bad, "no destination".into(), 1);
    let report = agent.report(0, "");
    assert_eq!(
        (report.runs, report.captures, report.problem.as_str()),
        (5, 1, "no destination")
    );
    assert_eq!(
        agent.step(1_000_000, None),
        Step::Wait,
        "the recording goes on"
    );
    agent.assign(assignment("icmp", &[("tap0", 7)]));
    assert!(agent.problem().is_empty());
    assert!(matches!(agent.step(1_000_001, None), Step::Reload(_)));
    // Another recording that cannot start is tried again; the one that runs goes on.
    agent.assign(assignment("tcp", &[("tap0", 7), ("tap1", 8)]));
    agent.interfaces(interfaces(&["tap0", "tap1"]));
    let more = plan(agent.step(1_000_002, None));
    agent.refused(more, "no memory".into(), 1_000_002);
    assert_eq!(agent.step(1_000_003, None), Step::Wait);
    let at = agent.again_at(1_000_003).unwrap();
    assert!(matches!(agent.step(at, None), Step::Start(_)));
    // An identity that is another interface's by now is not used any longer.
    agent.assign(assignment("tcp", &[("tap0", 8), ("tap1", 7)]));
    assert_eq!(agent.step(at, None), Step::Stop);
    assert!(matches!(agent.step(at, None), Step::Start(_)));
}

#[test]
fn a_recording_that_ends_starts_again_after_ever_longer_times() {
    let mut agent = follower();
    agent.interfaces(interfaces(&["tap0"]));
    agent.assign(assignment("tcp", &[("tap0", 7)]));
    let good = plan(agent.step(0, None));
    agent.took(good, 0);
    assert_eq!(agent.step(10, Some("killed".into())), Step::Wait);
    assert_eq!(agent.problem(), "killed");
    let (mut now, mut waits) = (10, Vec::new());
    for _ in 0..7 {
        let since = now;
        let bad = loop {
            match agent.step(now, None) {
                Step::Wait => now += 10,
                step => break plan(step),
            }
        };
        waits.push(now - since);
        // Refused, or ended at once.
        match waits.len() % 2 {
            0 => agent.refused(bad, "again".into(), now),
            _ => {
                agent.took(bad, now);
                assert_eq!(agent.step(now, Some("killed".into())), Step::Wait);
            }
        }
    }
    assert_eq!(waits, [1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
}
