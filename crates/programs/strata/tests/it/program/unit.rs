//! The systemd units, as systemd judges them.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use strata_testkit::workspace_root;

/// The highest exposure allowed: below 5 systemd calls it OK.
const EXPOSURE_MAX: f64 = 4.0;

/// The output of systemd-analyze (Debian package systemd, `make tools`).
fn analyze(arguments: &[&str]) -> String {
    let output = Command::new("systemd-analyze").args(arguments).output();
    let output = output.expect("systemd-analyze is installed (`make tools`)");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let heard = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}{heard}");
    assert!(!heard.contains("ignoring"), "{heard}");
    said
}

fn unit() -> String {
    let path = workspace_root().join("deploy/strata@.service");
    path.to_str().unwrap().to_owned()
}

#[test]
fn systemd_calls_the_units_ok() {
    for name in ["strata@", "strata-agent", "strata-controller"] {
        let path = workspace_root().join(format!("deploy/{name}.service"));
        is_ok(path.to_str().unwrap());
    }
}

fn is_ok(unit: &str) {
    let said = analyze(&["security", "--offline=yes", "--no-pager", unit]);
    let overall = said
        .lines()
        .find(|line| line.contains("Overall exposure level"));
    let overall = overall.unwrap();
    let level = overall
        .split_whitespace()
        .find_map(|word| word.parse::<f64>().ok());
    assert!(level.unwrap() <= EXPOSURE_MAX, "{overall}");
    assert!(overall.contains("OK"), "{overall}");
}

/// System calls of a group, including those of nested groups.
fn expand(groups: &BTreeMap<&str, Vec<&str>>, name: &str, into: &mut BTreeSet<String>) {
    match groups.get(name) {
        None => drop(into.insert(name.to_owned())),
        Some(members) => members
            .iter()
            .for_each(|member| expand(groups, member, into)),
    }
}

/// The unit allows everything that a recording asks of the kernel.
#[test]
fn the_unit_permits_what_a_recording_does() {
    let listing = analyze(&["syscall-filter", "--no-pager"]);
    let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut current = "";
    for line in listing.lines() {
        let word = line.trim();
        if line.starts_with('@') {
            current = word;
        } else if !word.is_empty() && !word.starts_with('#') && line.starts_with(' ') {
            groups.entry(current).or_default().push(word);
        }
    }
    let mut permitted = BTreeSet::new();
    let text = std::fs::read_to_string(unit()).unwrap();
    let filters = text
        .lines()
        .filter_map(|line| line.strip_prefix("SystemCallFilter="));
    for filter in filters {
        let (words, denied) = match filter.strip_prefix('~') {
            Some(words) => (words, true),
            None => (filter, false),
        };
        for word in words.split_whitespace() {
            let mut calls = BTreeSet::new();
            expand(&groups, word, &mut calls);
            if denied {
                permitted = permitted.difference(&calls).cloned().collect();
            } else {
                permitted.extend(calls);
            }
        }
    }
    // While it records, and while it starts.
    let begins = [
        "execve",
        "perf_event_open",
        "landlock_create_ruleset",
        "landlock_add_rule",
        "landlock_restrict_self",
        "capset",
        "capget",
        "fchmodat",
        "wait4",
    ];
    for call in strata_sandbox::process_system_calls()
        .into_iter()
        .chain(begins)
    {
        assert!(permitted.contains(call), "the unit does not permit {call}");
    }
    for call in [
        "mount",
        "ptrace",
        "init_module",
        "chown",
        "keyctl",
        "reboot",
        "swapon",
    ] {
        assert!(!permitted.contains(call), "the unit permits {call}");
    }
}
