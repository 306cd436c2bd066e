//! Any report of an agent, and any file of policies: what a controller assigns is a configuration that a
//! recording takes, and identities are of one interface each.
//!
//! Input: which; then a report as JSON, or a file as TOML.
#![no_main]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use strata_agent::{Change, DocumentFile, Follower, Interface, Local, Registry, Report, Step};
use strata_control::config::Config;
use strata_fuzz::Bounded;

#[global_allocator]
static MEMORY: Bounded = Bounded::new();

const POLICIES: &str = "[[policy]]\nname = 'all'\nmatch = 'tcp'\naction = 'header -> here'\n\
    [[policy]]\nname = 'one'\nmatch = 'udp'\naction = 'drop'\ntenant = 'blue'\n\
    [[tenant]]\nname = 'blue'\ninterfaces = ['*:tap?']\n";

fuzz_target!(|bytes: &[u8]| {
    let Some((which, text)) = bytes.split_first() else {
        return;
    };
    let Ok(text) = std::str::from_utf8(text) else {
        return;
    };
    let interface = |name: &str| Interface {
        name: name.into(),
        ..Interface::default()
    };
    let mut reports = vec![Report {
        interfaces: vec![interface("tap0"), interface("eth0")],
        labels: BTreeMap::from([("rack".into(), "1".into())]),
        ..Report::default()
    }];
    let policies = match which % 2 {
        0 => POLICIES,
        _ => text,
    };
    if which % 2 == 0 {
        let Ok(report) = serde_json::from_str::<Report>(text) else {
            return;
        };
        reports.insert(0, report);
    }
    let mut registry = Registry::default();
    let file = DocumentFile {
        name: "policies.toml".into(),
        text: policies.into(),
    };
    let applied = registry.apply(&[file], 0);
    if let Err(error) = &applied {
        assert!(
            error.to_string().starts_with("policies.toml")
                || error.to_string().starts_with("all files")
        );
        assert_eq!(registry.version(), 0);
    }
    let enrolled = registry.enrolled("host-1", [1; 32], u64::MAX, 0);
    assert!(enrolled.is_ok());
    let mut held = BTreeSet::new();
    for report in reports {
        let interfaces = report.interfaces.clone();
        let Ok((assignment, changes)) = registry.report(&[1; 32], report, "192.0.2.1", 1) else {
            continue;
        };
        for change in changes {
            match change {
                Change::Identity { identity, .. } => assert!(held.insert(identity)),
                Change::IdentityGone(identity) => assert!(held.remove(&identity)),
                _ => {}
            }
        }
        let Some(assignment) = assignment else {
            continue;
        };
        let identities: BTreeSet<u32> = assignment.identities.values().copied().collect();
        assert_eq!(identities.len(), assignment.identities.len());
        assert!(identities.is_subset(&held));
        let local = Local {
            host: "host-1".into(),
            interfaces: vec!["*".into()],
            destinations: BTreeMap::from([("here".into(), "udp://192.0.2.1:4740".into())]),
            ..Local::default()
        };
        let mut follower = Follower::new(local, Some(assignment));
        follower.interfaces(interfaces);
        if let Step::Start(plan) = follower.step(0, None) {
            for text in [plan.config.clone(), plan.config_from(1)] {
                let config = Config::from_toml(&text, Path::new("strata.toml"));
                assert!(config.is_ok(), "{:?}: {text}", config.err());
            }
        }
    }
});
