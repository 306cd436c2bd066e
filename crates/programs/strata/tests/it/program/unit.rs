//! The systemd units, as systemd judges them, and against what the programs do.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use strata_testkit::workspace_root;

use crate::common::program::{ok, strata};

/// The highest exposure allowed: below 5 systemd calls it OK.
const EXPOSURE_MAX: f64 = 4.0;
/// What the units call the program.
const PROGRAM: &str = "/usr/bin/strata";

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

/// A unit of `deploy/`.
struct Unit {
    path: PathBuf,
    text: String,
}

/// All of them.
fn units() -> Vec<Unit> {
    let files = fs::read_dir(workspace_root().join("deploy")).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    let paths = paths.filter(|path| path.extension().is_some_and(|kind| kind == "service"));
    let units: Vec<Unit> = paths
        .map(|path| Unit {
            text: fs::read_to_string(&path).unwrap(),
            path,
        })
        .collect();
    assert!(units.len() >= 10, "{} units", units.len());
    units
}

impl Unit {
    fn name(&self) -> &str {
        self.path.file_name().unwrap().to_str().unwrap()
    }

    /// The values of a setting, which may be there several times.
    fn values(&self, setting: &str) -> Vec<&str> {
        let lines = self.text.lines().filter_map(|line| line.split_once('='));
        let ours = lines.filter(|(name, _)| *name == setting);
        ours.map(|(_, value)| value).collect()
    }

    /// Whether it captures, for which it has capabilities.
    fn captures(&self) -> bool {
        !self.values("AmbientCapabilities").concat().is_empty()
    }

    /// The command that it runs, and all words after that.
    fn command(&self) -> (Vec<&str>, Vec<&str>) {
        let [line] = self.values("ExecStart")[..] else {
            panic!("{}: not one ExecStart", self.name());
        };
        let words = line.strip_prefix(PROGRAM).unwrap().split_whitespace();
        let words: Vec<&str> = words.collect();
        let is_argument = |word: &&str| word.starts_with(['-', '/', '$']);
        let end = words.iter().position(is_argument).unwrap();
        (words[..end].to_vec(), words[end..].to_vec())
    }
}

#[test]
fn systemd_calls_the_units_ok() {
    for unit in units() {
        let path = unit.path.to_str().unwrap();
        let said = analyze(&["security", "--offline=yes", "--no-pager", path]);
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
}

/// With the program where this test has it: systemd looks whether it is there.
#[test]
fn systemd_finds_nothing_wrong_with_the_units() {
    let dir = tempfile::tempdir().unwrap();
    for unit in units() {
        let copy = dir.path().join(unit.name());
        let text = unit.text.replace(PROGRAM, env!("CARGO_BIN_EXE_strata"));
        fs::write(&copy, text).unwrap();
        analyze(&["verify", "--man=no", copy.to_str().unwrap()]);
    }
}

/// None runs as root, and only those that capture have capabilities.
#[test]
fn the_units_have_a_user_and_no_more_rights_than_they_need() {
    for unit in units() {
        let name = unit.name();
        assert_eq!(unit.values("User"), ["strata"], "{name}");
        assert_eq!(unit.values("NoNewPrivileges"), ["yes"], "{name}");
        let ambient = unit.values("AmbientCapabilities");
        assert_eq!(ambient, unit.values("CapabilityBoundingSet"), "{name}");
        let (command, _) = unit.command();
        let captures = ["record", "switch", "agent"].contains(&command[0]);
        assert_eq!(unit.captures(), captures, "{name}");
        // Sockets of recordings and relays are in a directory that no unit removes from another one.
        let runtime = unit.values("RuntimeDirectory");
        let keeps = unit.values("RuntimeDirectoryPreserve");
        assert_eq!(runtime.is_empty(), keeps.is_empty(), "{name}");
        assert!(!captures || runtime == ["strata"], "{name}");
    }
}

/// Each runs a command with options that it has.
#[test]
fn the_units_give_options_that_there_are() {
    for unit in units() {
        let (command, words) = unit.command();
        let help = ok(strata().args(&command).arg("--help"));
        for option in words.iter().filter(|word| word.starts_with('-')) {
            let is_there = help.lines().any(|line| {
                line.trim_start()
                    .split([' ', ',', '='])
                    .any(|word| word == *option)
            });
            assert!(is_there, "{}: {command:?} has no {option}", unit.name());
        }
        // What systemd waits for is what these commands tell it.
        let tells = ["record", "switch", "agent", "controller"].contains(&command[0]);
        let waits = if tells { "notify" } else { "exec" };
        assert_eq!(unit.values("Type"), [waits], "{}", unit.name());
    }
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

/// The system calls that a unit permits.
fn permitted(unit: &Unit, groups: &BTreeMap<&str, Vec<&str>>) -> BTreeSet<String> {
    let mut permitted = BTreeSet::new();
    for filter in unit.values("SystemCallFilter") {
        let (words, denied) = match filter.strip_prefix('~') {
            Some(words) => (words, true),
            None => (filter, false),
        };
        for word in words.split_whitespace() {
            let mut calls = BTreeSet::new();
            expand(groups, word, &mut calls);
            if denied {
                permitted = permitted.difference(&calls).cloned().collect();
            } else {
                permitted.extend(calls);
            }
        }
    }
    permitted
}

/// Each unit allows what its program asks of the kernel: what its sandbox permits, and what the program calls before,
/// to build that sandbox.
#[test]
fn the_units_permit_what_the_programs_do() {
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
    let begins = [
        "execve",
        "landlock_create_ruleset",
        "landlock_add_rule",
        "landlock_restrict_self",
        "seccomp",
        "prctl",
        "prlimit64",
        "capset",
        "capget",
        "fchmodat",
        "umask",
        "wait4",
    ];
    let of_capture = ["bpf", "perf_event_open"];
    let never = [
        "mount",
        "ptrace",
        "init_module",
        "chown",
        "keyctl",
        "reboot",
        "swapon",
    ];
    for unit in units() {
        let name = unit.name();
        let permitted = permitted(&unit, &groups);
        for call in strata_sandbox::process_system_calls()
            .into_iter()
            .chain(begins)
            .filter(|call| !of_capture.contains(call))
        {
            assert!(permitted.contains(call), "{name} does not permit {call}");
        }
        for call in never {
            assert!(!permitted.contains(call), "{name} permits {call}");
        }
        for call in of_capture {
            let wanted = unit.captures();
            assert_eq!(permitted.contains(call), wanted, "{name}: {call}");
        }
    }
}
