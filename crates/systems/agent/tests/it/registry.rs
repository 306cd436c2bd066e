//! The controller's state: who may what, identities, versions.

use std::collections::BTreeSet;

use strata_agent::{
    Assignment, Change, DocumentFile, EVENTS_MAX, Event, EventKind, IDENTITY_MAX, INTERFACES_MAX,
    Interface, Registry, RegistryError, Report, SpentIdentity, Stored,
};
use strata_auth::keys::MasterKey;

const NOW: u64 = 1_000_000_000;

fn registry(agents: &[(&str, u8)]) -> Registry {
    let mut registry = Registry::default();
    for &(name, number) in agents {
        registry.enrolled(name, [number; 32], 100, 10).unwrap();
    }
    registry
}

fn files(text: &str) -> Vec<DocumentFile> {
    let name = String::from("a.toml");
    let text = text.to_owned();
    vec![DocumentFile { name, text }]
}

fn policy(matches: &str) -> String {
    format!("[[policy]]\nname = 'all'\nmatch = '{matches}'\naction = 'header -> here'\n")
}

fn report(names: &[&str]) -> Report {
    let interface = |name: &&str| Interface {
        name: (*name).to_owned(),
        ..Interface::default()
    };
    Report {
        interfaces: names.iter().map(interface).collect(),
        ..Report::default()
    }
}

fn assigned(registry: &mut Registry, number: u8, names: &[&str]) -> Assignment {
    registry
        .report(&[number; 32], report(names), "10.0.0.1", NOW)
        .unwrap()
        .0
        .unwrap()
}

#[test]
fn a_name_is_one_hosts_until_its_certificate_expires_or_it_is_forgotten() {
    let mut registry = registry(&[("a", 1)]);
    let taken = Err(RegistryError::Taken("a".into()));
    assert_eq!(registry.may_enrol("a", 99), taken);
    assert_eq!(registry.may_enrol("a", 100), Ok(()));
    assert!(registry.may_enrol("../a", 0).is_err() && registry.may_enrol("", 0).is_err());
    registry.enrolled("a", [2; 32], 200, 100).unwrap();
    assert_eq!(
        registry.who(&[1; 32]),
        Err(RegistryError::Unknown),
        "the first is void"
    );
    registry.revoke("a").unwrap();
    let revoked = || RegistryError::Revoked("a".into());
    assert_eq!(registry.who(&[2; 32]), Err(revoked()));
    assert_eq!(registry.may_enrol("a", 1000), Err(revoked()));
    assert!(
        registry
            .report(&[2; 32], report(&[]), "10.0.0.1", NOW)
            .is_err()
    );
    registry.forget("a").unwrap();
    assert_eq!(registry.who(&[2; 32]), Err(RegistryError::Unknown));
    assert_eq!(registry.may_enrol("a", 0), Ok(()));
    assert_eq!(
        registry.forget("a"),
        Err(RegistryError::NoAgent("a".into()))
    );
}

#[test]
fn a_renewed_certificate_replaces_the_old_one_when_it_is_used() {
    let mut registry = registry(&[("a", 1)]);
    registry.renewed(&[1; 32], [2; 32], 300).unwrap();
    // The answer may have been lost: both are good, and a third replaces the second.
    assert!(registry.who(&[1; 32]).is_ok() && registry.who(&[2; 32]).is_ok());
    registry.renewed(&[1; 32], [3; 32], 300).unwrap();
    assert!(registry.who(&[2; 32]).is_err());
    let (_, changes) = registry
        .report(&[3; 32], report(&[]), "10.0.0.1", NOW)
        .unwrap();
    assert!(matches!(&changes[..], [Change::Agent(record)] if record.certificates == [[3; 32]]));
    assert!(registry.who(&[1; 32]).is_err() && registry.who(&[3; 32]).is_ok());
}

#[test]
fn identities_are_of_one_interface_each_and_stay() {
    let mut registry = registry(&[("a", 1), ("b", 2)]);
    registry.apply(&files(&policy("tcp")), 0).unwrap();
    let a = assigned(&mut registry, 1, &["eth0", "eth1"]);
    let b = assigned(&mut registry, 2, &["eth0"]);
    let numbers = |one: &Assignment| one.identities.values().copied().collect::<Vec<u32>>();
    assert_eq!((numbers(&a), numbers(&b)), (vec![1, 2], vec![3]));
    // One that is gone for a while has its number when it comes back.
    assert_eq!(numbers(&assigned(&mut registry, 1, &["eth1"])), [2]);
    assert_eq!(
        numbers(&assigned(&mut registry, 1, &["eth0", "eth1"])),
        [1, 2]
    );
    let pin = |interface: &str, number: u32| {
        let pin = format!("[[identity]]\ninterface = '{interface}'\nidentity = {number}\n");
        files(&(policy("tcp") + &pin))
    };
    let collision = registry.apply(&pin("b:eth0", 2), 0).unwrap_err();
    assert!(
        collision
            .to_string()
            .contains("identity 2 belongs to a:eth1"),
        "{collision}"
    );
    assert_eq!(registry.version(), 1, "nothing was applied");
    registry.apply(&pin("b:eth0", 4), 0).unwrap();
    assert_eq!(
        numbers(&assigned(&mut registry, 2, &["eth0", "eth1"])),
        [4, 3]
    );
    registry.forget("a").unwrap();
    registry.enrolled("c", [3; 32], 100, 0).unwrap();
    // 4 is given, 3 in use: 5 comes next.
    assert_eq!(numbers(&assigned(&mut registry, 3, &["eth0"])), [5]);
}

#[test]
fn a_hostile_agent_takes_no_more_than_its_share() {
    let mut registry = registry(&[("a", 1)]);
    registry.apply(&files(&policy("tcp")), 0).unwrap();
    let names: Vec<String> = (0..=INTERFACES_MAX)
        .map(|number| format!("tap{number}"))
        .collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    assert!(
        registry
            .report(&[1; 32], report(&all), "10.0.0.1", NOW)
            .is_err(),
        "too many interfaces"
    );
    for wrong in [&["eth0", "eth0"][..], &["a\nb"], &[&"x".repeat(65)]] {
        assert!(
            registry
                .report(&[1; 32], report(wrong), "10.0.0.1", NOW)
                .is_err(),
            "{wrong:?}"
        );
    }
    // Ever new names: identities of those that are gone make way.
    let mut held = BTreeSet::new();
    for round in 0..20 {
        let names: Vec<String> = (0..500)
            .map(|number| format!("x{round}-{number}"))
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (_, changes) = registry
            .report(&[1; 32], report(&names), "10.0.0.1", NOW)
            .unwrap();
        for change in changes {
            match change {
                Change::Identity { identity, .. } => assert!(held.insert(identity)),
                Change::IdentityGone(identity) => assert!(held.remove(&identity)),
                other => panic!("{other:?}"),
            }
        }
        assert!(held.len() <= 2 * INTERFACES_MAX, "{}", held.len());
    }
    let mut labels = report(&["eth0"]);
    labels.labels = (0..33)
        .map(|number| (number.to_string(), String::new()))
        .collect();
    assert!(registry.report(&[1; 32], labels, "10.0.0.1", NOW).is_err());
}

#[test]
fn a_change_is_whole_and_can_be_undone() {
    let mut registry = registry(&[]);
    assert_eq!(registry.undo(0), Err(RegistryError::NothingBefore));
    let apply =
        |registry: &mut Registry, matches: &str| registry.apply(&files(&policy(matches)), 5);
    let (first, _) = apply(&mut registry, "tcp").unwrap();
    assert_eq!(
        (first.version, first.differences),
        (1, vec!["+ policy all".to_owned()])
    );
    let (same, changes) = apply(&mut registry, "tcp").unwrap();
    assert_eq!(
        (same.version, same.differences.len(), changes.len()),
        (1, 0, 0)
    );
    assert!(apply(&mut registry, "tcp[").is_err());
    assert_eq!(registry.version(), 1);
    apply(&mut registry, "udp").unwrap();
    apply(&mut registry, "icmp").unwrap();
    // Back to udp, and from there to tcp: not to what was undone.
    for (version, before) in [(4, vec![1]), (5, vec![])] {
        let (undone, _) = registry.undo(6).unwrap();
        assert_eq!(
            (undone.version, undone.differences),
            (version, vec!["~ policy all".to_owned()])
        );
        assert_eq!(registry.rollout(NOW).before, before);
    }
    assert_eq!(apply(&mut registry, "tcp").unwrap().0.differences.len(), 0);
    assert_eq!(registry.undo(7), Err(RegistryError::NothingBefore));
}

/// Undoing forgets nothing, not even over a restart, until there are too many versions.
#[test]
fn what_was_undone_stays_a_version() {
    let (mut registry, mut stored) = (registry(&[]), Stored::default());
    let mut all = Vec::new();
    for matches in ["tcp", "udp", "icmp"] {
        all.extend(registry.apply(&files(&policy(matches)), 5).unwrap().1);
    }
    all.extend(registry.undo(6).unwrap().1);
    store(&mut stored, all);
    let numbers: Vec<u64> = stored.versions.iter().map(|one| one.number).collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
    let mut registry = Registry::new(stored, 1);
    let (undone, _) = registry.undo(7).unwrap();
    assert_eq!(undone.version, 5);
    assert_eq!(registry.undo(8), Err(RegistryError::NothingBefore));
    for number in 0..64_u64 {
        let matches = format!("udp port {}", 1 + number);
        registry.apply(&files(&policy(&matches)), 9).unwrap();
    }
    let before = registry.rollout(NOW).before;
    assert_eq!((before.len(), before.last()), (31, Some(&68)));
}

#[test]
fn the_latest_events_are_kept() {
    let (mut registry, mut stored) = (registry(&[]), Stored::default());
    let event = |number: usize| Event {
        time: 1,
        kind: EventKind::Revoke,
        who: "uid 0".into(),
        what: format!("agent {number}"),
        why: String::new(),
    };
    for number in 0..EVENTS_MAX + 5 {
        store(&mut stored, registry.note(event(number)));
    }
    assert_eq!(stored.events.len(), EVENTS_MAX);
    let again = Registry::new(stored, 1);
    for registry in [&registry, &again] {
        assert_eq!(registry.events(usize::MAX).len(), EVENTS_MAX);
        assert_eq!(
            registry.events(2),
            [event(EVENTS_MAX + 3), event(EVENTS_MAX + 4)]
        );
    }
}

/// Of two agents with one certificate, the second gets neither assignment nor keys while the first is there.
#[test]
fn a_copy_of_an_agent_gets_nothing() {
    let mut registry = registry(&[("a", 1)]);
    registry.use_key(Some(key(1)));
    registry.apply(&files(&policy("tcp")), 0).unwrap();
    let mut reported = |run: u64, from: &str, now: u64| {
        let report = Report {
            run,
            ..report(&["eth0"])
        };
        let answer = registry.report(&[1; 32], report, from, now);
        (
            answer.map(|(found, _)| found.is_some()),
            registry.agents(now)[0].copies.clone(),
        )
    };
    assert_eq!(reported(7, "10.0.0.1", NOW), (Ok(true), vec![]));
    let refused = RegistryError::Copy {
        name: "a".into(),
        other: "10.0.0.1".into(),
        is_new: true,
    };
    let both = vec!["10.0.0.1".to_owned(), "10.0.0.2".to_owned()];
    assert_eq!(reported(8, "10.0.0.2", NOW), (Err(refused), both.clone()));
    assert_eq!(reported(7, "10.0.0.1", NOW), (Ok(true), both));
    let later = NOW + 10_000_000_000;
    assert_eq!(reported(8, "10.0.0.2", later), (Ok(true), vec![]));
}

#[test]
fn what_is_stored_is_all_there_is_to_know() {
    let mut registry = registry(&[("a", 1)]);
    registry.apply(&files(&policy("tcp")), 0).unwrap();
    let before = assigned(&mut registry, 1, &["eth0"]);
    let mut stored = Stored::default();
    let mut all = registry.renewed(&[1; 32], [2; 32], 300).unwrap();
    all.extend(registry.apply(&files(&policy("udp")), 0).unwrap().1);
    for change in all {
        match change {
            Change::Agent(record) => stored.agents.push(record),
            Change::Version(version) => stored.versions.push(version),
            other => panic!("{other:?}"),
        }
    }
    stored.identities.push((1, "a".into(), "eth0".into()));
    let mut again = Registry::new(stored, 1);
    assert_eq!(again.agents(NOW)[0].state, "never");
    let after = assigned(&mut again, 2, &["eth0"]);
    assert_eq!(after.identities, before.identities);
    assert_eq!(
        (after.version, after.policies[0].matches.as_str()),
        (2, "udp")
    );
    // What it has already is not sent again.
    let mut report = report(&["eth0"]);
    report.has = Some(after.stamp);
    assert_eq!(
        again.report(&[2; 32], report, "10.0.0.1", NOW).unwrap(),
        (None, Vec::new())
    );
}

fn key(byte: u8) -> MasterKey {
    MasterKey::new([byte; 32])
}

fn numbers(assignment: &Assignment) -> Vec<u32> {
    assignment.identities.values().copied().collect()
}

/// What changes would leave in a store.
fn store(stored: &mut Stored, changes: Vec<Change>) {
    for change in changes {
        match change {
            Change::Agent(record) => {
                stored.agents.retain(|one| one.name != record.name);
                stored.agents.push(record);
            }
            Change::AgentGone(name) => {
                stored.agents.retain(|one| one.name != name);
                stored.identities.retain(|(_, agent, _)| *agent != name);
            }
            Change::Identity {
                identity,
                agent,
                interface,
            } => stored.identities.push((identity, agent, interface)),
            Change::IdentityGone(identity) => {
                stored.identities.retain(|(one, _, _)| *one != identity);
            }
            Change::Spent(spent) => stored.spent.push(spent),
            Change::Version(version) => stored.versions.push(version),
            Change::VersionGone(number) => stored.versions.retain(|one| one.number != number),
            Change::Event(number, event) => stored.events.push((number, event)),
            Change::EventGone(gone) => stored.events.retain(|(number, _)| *number != gone),
        }
    }
}

/// A host that was forgotten or revoked has the keys of its identities still: with those, it could read and
/// forge what the next owner of the same numbers sends.
#[test]
fn an_identity_is_not_given_again_until_the_master_key_is_another() {
    for is_revoked in [false, true] {
        let (mut registry, mut stored) = (Registry::default(), Stored::default());
        registry.use_key(Some(key(1)));
        for (name, number) in [("a", 1), ("b", 2)] {
            let enrolled = registry.enrolled(name, [number; 32], 100, 10);
            store(&mut stored, enrolled.unwrap());
        }
        let applied = registry.apply(&files(&policy("tcp")), 0).unwrap();
        store(&mut stored, applied.1);
        let report_of = |registry: &mut Registry, stored: &mut Stored, number: u8| {
            let reported = registry.report(&[number; 32], report(&["eth0"]), "10.0.0.1", NOW);
            let (assignment, changes) = reported.unwrap();
            store(stored, changes);
            assignment.unwrap()
        };
        let innocent = report_of(&mut registry, &mut stored, 1);
        assert_eq!(innocent.identities["eth0"], 1);
        if is_revoked {
            store(&mut stored, registry.revoke("a").unwrap());
        }
        store(&mut stored, registry.forget("a").unwrap());
        // After a restart, which begins to look at 1 again.
        let mut registry = Registry::new(stored.clone(), 1);
        registry.use_key(Some(key(1)));
        let other = report_of(&mut registry, &mut stored, 2);
        assert_eq!(other.identities["eth0"], 2);
        assert_ne!(other.keys, innocent.keys);
        // The same name may be another host.
        store(
            &mut stored,
            registry.enrolled("a", [3; 32], 100, 10).unwrap(),
        );
        assert_eq!(numbers(&report_of(&mut registry, &mut stored, 3)), [3]);
        // Nor may an administrator give it.
        let pin = policy("tcp") + "[[identity]]\ninterface = 'b:eth0'\nidentity = 1\n";
        let refused = registry.apply(&files(&pin), 0).unwrap_err().to_string();
        assert!(
            refused.contains("identity 1 cannot be given to b:eth0"),
            "{refused}"
        );
        // Keys that come from another one do not fit what the host has.
        registry.use_key(Some(key(2)));
        store(&mut stored, registry.apply(&files(&pin), 0).unwrap().1);
        let again = report_of(&mut registry, &mut stored, 2);
        assert_eq!(numbers(&again), [1]);
        assert_ne!(again.keys, innocent.keys);
    }
}

/// A number that the documents have given stays with the host that had it: the agent says why it gets
/// nothing.
#[test]
fn a_number_that_the_documents_give_is_not_given_again_either() {
    let mut registry = registry(&[("a", 1)]);
    registry.use_key(Some(key(1)));
    let pin = policy("tcp") + "[[identity]]\ninterface = 'a:eth0'\nidentity = 7\n";
    registry.apply(&files(&pin), 0).unwrap();
    assert_eq!(numbers(&assigned(&mut registry, 1, &["eth0"])), [7]);
    registry.forget("a").unwrap();
    registry.enrolled("a", [2; 32], 100, 10).unwrap();
    let (nothing, _) = registry
        .report(&[2; 32], report(&["eth0"]), "10.0.0.1", NOW)
        .unwrap();
    assert_eq!(nothing, None);
    let problem = &registry.agents(NOW)[0].problem;
    assert!(problem.contains("replace export.key"), "{problem}");
    registry.use_key(Some(key(2)));
    assert_eq!(numbers(&assigned(&mut registry, 2, &["eth0"])), [7]);
}

/// Numbers of an agent's own interfaces are given to its others, so that it cannot use all of them up.
#[test]
fn an_agent_uses_up_no_more_numbers_than_it_may_have_interfaces() {
    let mut registry = registry(&[("a", 1), ("b", 2)]);
    registry.use_key(Some(key(1)));
    registry.apply(&files(&policy("tcp")), 0).unwrap();
    let mut used = BTreeSet::new();
    for round in 0..20 {
        let names: Vec<String> = (0..500).map(|at| format!("x{round}-{at}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        used.extend(numbers(&assigned(&mut registry, 1, &names)));
    }
    assert!(used.len() <= 2 * INTERFACES_MAX, "{}", used.len());
    let [other] = numbers(&assigned(&mut registry, 2, &["eth0"]))[..] else {
        panic!("one interface");
    };
    assert!(!used.contains(&other));
}

#[test]
fn when_all_numbers_are_used_up_the_agent_says_what_to_do() {
    let spent = |identity| SpentIdentity {
        identity,
        key: key(1).id(),
        agent: String::new(),
    };
    let stored = Stored {
        spent: (IDENTITY_MAX - 9..IDENTITY_MAX).map(spent).collect(),
        ..Stored::default()
    };
    let mut registry = Registry::new(stored, IDENTITY_MAX - 9);
    registry.use_key(Some(key(1)));
    registry.enrolled("a", [1; 32], 100, 10).unwrap();
    registry.apply(&files(&policy("tcp")), 0).unwrap();
    assert_eq!(
        numbers(&assigned(&mut registry, 1, &["eth0"])),
        [IDENTITY_MAX]
    );
    let (nothing, _) = registry
        .report(&[1; 32], report(&["eth0", "eth1"]), "10.0.0.1", NOW)
        .unwrap();
    assert_eq!(nothing, None);
    let problem = &registry.agents(NOW)[0].problem;
    assert!(
        problem.contains("no identity is left for a:eth1") && problem.contains("export.key"),
        "{problem}"
    );
    registry.use_key(Some(key(2)));
    let now = numbers(&assigned(&mut registry, 1, &["eth0", "eth1"]));
    assert_eq!(now, [IDENTITY_MAX, IDENTITY_MAX - 9]);
}

/// Numbers of a host without a controller do not go on at 1, which is another host's.
#[test]
fn numbers_from_a_first_one_on_end_at_the_last() {
    let mut registry = Registry::new(Stored::default(), IDENTITY_MAX);
    registry.enrolled("a", [1; 32], 100, 10).unwrap();
    registry.apply(&files(&policy("tcp")), 0).unwrap();
    assert_eq!(
        numbers(&assigned(&mut registry, 1, &["eth0"])),
        [IDENTITY_MAX]
    );
    let (nothing, _) = registry
        .report(&[1; 32], report(&["eth0", "eth1"]), "10.0.0.1", NOW)
        .unwrap();
    assert_eq!(nothing, None);
    let problem = &registry.agents(NOW)[0].problem;
    assert!(problem.contains("a smaller one (--identity)"), "{problem}");
}
