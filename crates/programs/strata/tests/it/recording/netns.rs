//! Recording in a network namespace from outside of it, compared with the same inside.

use std::path::Path;
use std::process::{Command, Stdio};

use strata_testkit::Namespace;

use super::live::{FAR, NEAR, PACKETS, Recording, namespace, until};

fn strata() -> Command {
    Command::new(env!("CARGO_BIN_EXE_strata"))
}

fn inside(namespace: &Namespace, program: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace.name(), program]);
    command
}

fn interfaces(mut command: Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_namespace_has_a_name_a_process_and_a_path() {
    let Some(namespace) = namespace("nsname") else {
        return;
    };
    let mut there = inside(&namespace, env!("CARGO_BIN_EXE_strata"));
    there.args(["interfaces", "--json"]);
    let there = interfaces(there);
    assert!(
        there.contains(NEAR) && there.contains("\"driver\":\"veth\""),
        "{there}"
    );
    // It is there until its input ends.
    let mut process = inside(&namespace, "cat");
    let mut process = process
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let path = format!("/run/netns/{}", namespace.name());
    let pid = process.id().to_string();
    for which in [namespace.name(), path.as_str(), pid.as_str()] {
        let listed = || {
            let mut command = strata();
            command.args(["interfaces", "--json", "--netns", which]);
            interfaces(command)
        };
        // `ip netns exec` enters after it was started.
        let mut same = listed() == there;
        for _ in 0..100 {
            same = same || listed() == there;
        }
        assert!(same, "{which}: {}", listed());
    }
    drop(process.stdin.take());
    process.wait().unwrap();
    // This process, and what it starts, stay where they are.
    let here = interfaces({
        let mut command = strata();
        command.arg("interfaces");
        command
    });
    assert!(!here.contains(NEAR), "{here}");
}

#[test]
fn packets_of_another_namespace_are_recorded_as_from_inside() {
    let Some(namespace) = namespace("nsrecord") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let arguments = ["--mode", "log-all", "--detail", "none"];
    let log = dir.path().join("outside");
    let outside = [&["--netns", namespace.name()][..], &arguments].concat();
    let outside = Recording::of(strata(), FAR, &log, &outside);
    let within = dir.path().join("within");
    let within_log = within.clone();
    let inside = Recording::start(&namespace, &within_log, &arguments);
    outside.send(&namespace);
    until("both have logged all", || {
        let logged = [&outside, &inside].map(|recording| recording.packets("logged", ""));
        logged == [PACKETS; 2]
    });
    for recording in [outside, inside] {
        recording.signal("INT");
        recording.ended();
    }
    let read = |log: &Path| {
        let output = strata()
            .arg("read")
            .arg(log)
            .args(["--utc", "ip"])
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        // Two rings have two times, and classes may depend on them.
        let lines = text.lines().map(|line| {
            let packet = line.split_once(' ').unwrap().1;
            packet.split_once("  class=").unwrap().0.to_owned()
        });
        lines.collect::<Vec<String>>()
    };
    assert_eq!(read(&log), read(&within));
    assert!(read(&log).len() > 50);
}

#[test]
fn what_is_no_namespace_is_refused_before_anything_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let file = dir.path().join("file");
    std::fs::write(&file, "no namespace").unwrap();
    for (which, why) in [
        ("st-no-such-namespace", "/run/netns/st-no-such-namespace"),
        ("4294967295", "/proc/4294967295/ns/net"),
        (file.to_str().unwrap(), "Invalid argument"),
    ] {
        let mut command = strata();
        command.args(["record", "-i", "lo", "--netns", which, "-o"]);
        let output = command.arg(&log).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        let named = format!("--netns {which}: cannot enter this namespace");
        assert!(said.contains(&named) && said.contains(why), "{said}");
        assert!(!log.exists());
    }
}
