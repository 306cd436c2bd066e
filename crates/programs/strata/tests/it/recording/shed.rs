//! Payload is given up while packets are lost, so that fewer are; and what says so.

use std::process::Command;

use strata_testkit::Namespace;

use super::live::{NEAR, Recording, lengths, namespace, until};
use crate::common::agents::Running;

/// Bytes of each packet that [`load`] sends, and of those captured while payload is given up.
const SENT: u32 = 788;
const SHED: u32 = 256;

/// More packets than a worker can take that shares its CPU with others.
fn load(namespace: &Namespace) -> Vec<Running> {
    let running = |command: &mut Command| Running(command.spawn().unwrap());
    let burn = || {
        let mut command = Command::new("taskset");
        running(command.args(["--cpu-list", "0", "sh", "-c", "while :; do :; done"]))
    };
    let mut send = Command::new("ip");
    send.args(["netns", "exec", namespace.name()]);
    send.args([env!("CARGO_BIN_EXE_strata"), "generate", "-i", NEAR]);
    send.args(["--profile", "flood788", "--topspeed"]);
    vec![burn(), burn(), burn(), running(&mut send)]
}

/// Packets that were lost before the worker.
fn lost(recording: &Recording) -> u64 {
    let status = recording.status();
    let all = status["lost"].as_array().into_iter().flatten();
    all.filter_map(|lost| lost["packets"].as_u64()).sum()
}

#[test]
fn payload_is_given_up_while_packets_are_lost_and_the_user_is_told() {
    let Some(namespace) = namespace("shed") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let arguments = ["--cores", "0", "--default", "full"];
    let recording = Recording::start(&namespace, &log, &arguments);
    let is_shed = |recording: &Recording| recording.status()["shed"]["now"] == true;
    assert_eq!(recording.status()["shed"]["times"], 0);
    let load = load(&namespace);
    until("payload is given up", || is_shed(&recording));
    drop(load);
    until("packets are captured whole", || !is_shed(&recording));
    let shed = recording.status()["shed"].clone();
    assert!(shed["seconds"].as_f64().unwrap() >= 5.0, "{shed}");
    recording.signal("INT");
    let (_, said) = recording.ended();
    assert!(said.contains("at most 256 bytes of each packet"), "{said}");
    assert!(said.contains("packets are captured whole again"), "{said}");
    let of = lengths(&log, "greater 788 and less 788");
    let captured = |len: u32| of.iter().any(|found| *found == (len, SENT));
    assert!(captured(SENT) && captured(SHED), "{} packets", of.len());
}

/// In `log-all`, whole packets were asked for.
#[test]
fn whole_packets_stay_whole_where_they_were_asked_for() {
    let Some(namespace) = namespace("whole") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let arguments = ["--cores", "0", "--mode", "log-all"];
    let recording = Recording::start(&namespace, &log, &arguments);
    let load = load(&namespace);
    let mut losing = 0;
    let mut before = lost(&recording);
    until("packets are lost for a while", || {
        let now = lost(&recording);
        losing += u32::from(now > before);
        before = now;
        losing >= 3
    });
    assert_eq!(recording.status()["shed"]["times"], 0);
    drop(load);
    recording.signal("INT");
    recording.ended();
    let of = lengths(&log, "greater 788 and less 788");
    assert!(!of.is_empty());
    assert!(of.iter().all(|(kept, len)| kept == len));
}
