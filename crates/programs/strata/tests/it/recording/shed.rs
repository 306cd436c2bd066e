//! Payload is given up while packets are lost, so that fewer are; and what says so.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use strata_testkit::Namespace;

use super::live::{NEAR, Recording, info, namespace, until};
use crate::common::agents::Running;

/// A ring that a moment's traffic fills.
const RING: [&str; 2] = ["-B", "2MiB"];

/// Long packets, as fast as can be.
fn load(namespace: &Namespace) -> Running {
    let mut send = Command::new("ip");
    send.args(["netns", "exec", namespace.name()]);
    send.args([env!("CARGO_BIN_EXE_strata"), "generate", "-i", NEAR]);
    send.args(["--profile", "flood788", "--topspeed"]);
    Running(send.spawn().unwrap())
}

/// Stops the recording for a moment in which its ring overflows, and lets it notice.
fn overflow(recording: &Recording) -> Value {
    let lost = |status: &Value| -> u64 {
        let all = status["lost"].as_array().into_iter().flatten();
        all.filter_map(|lost| lost["packets"].as_u64()).sum()
    };
    let before = lost(&recording.status());
    recording.signal("STOP");
    let stopped = Instant::now();
    until("the ring has overflowed", || {
        stopped.elapsed() > Duration::from_millis(300)
    });
    recording.signal("CONT");
    let mut status = Value::Null;
    until("the loss is noticed", || {
        status = recording.status();
        lost(&status) > before
    });
    status
}

/// Bytes that the kernel did not copy.
fn cut_by_kernel(log: &Path) -> u64 {
    let cut = info(log)[0]["accounting"]["cut"].clone();
    let mut all = cut.as_array().into_iter().flatten();
    all.find(|cut| cut[0] == "snaplen")
        .map_or(0, |cut| cut[1].as_u64().unwrap())
}

#[test]
fn payload_is_given_up_while_packets_are_lost_and_the_user_is_told() {
    let Some(namespace) = namespace("shed") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let recording = Recording::start(&namespace, &log, &RING);
    assert_eq!(recording.status()["shed"]["times"], 0);
    let load = load(&namespace);
    until("payload is given up", || {
        overflow(&recording)["shed"]["now"] == true
    });
    let before = recording.packets("logged", "");
    until("packets come while it is given up", || {
        overflow(&recording);
        recording.packets("logged", "") > before + 1_000
    });
    drop(load);
    until("packets are captured whole", || {
        recording.status()["shed"]["now"] == false
    });
    let shed = recording.status()["shed"].clone();
    assert!(shed["seconds"].as_f64().unwrap() >= 5.0, "{shed}");
    recording.signal("INT");
    let (_, said) = recording.ended();
    assert!(said.contains("at most 256 bytes of each packet"), "{said}");
    assert!(said.contains("packets are captured whole again"), "{said}");
    assert!(cut_by_kernel(&log) > 0);
}

/// In `log-all`, whole packets were asked for; elsewhere, `--shed packets` asks for them.
#[test]
fn whole_packets_stay_whole_where_they_were_asked_for() {
    for whole in [["--mode", "log-all"], ["--shed", "packets"]] {
        let Some(namespace) = namespace("whole") else {
            return;
        };
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let arguments = [&RING[..], &whole[..]].concat();
        let recording = Recording::start(&namespace, &log, &arguments);
        let load = load(&namespace);
        for _ in 0..4 {
            assert_ne!(overflow(&recording)["shed"]["now"], true);
        }
        drop(load);
        recording.signal("INT");
        recording.ended();
        assert_eq!(cut_by_kernel(&log), 0);
    }
}
