//! A recording that is asked to end twice at once.

use std::path::Path;
use std::process::Command;

use super::live::{FAR, PACKETS, Recording, info, namespace};

/// All packets are in the log.
fn is_whole(log: &Path, out: &str) {
    assert!(out.contains("packets: seen 94 = filtered 0"), "{out}");
    let info = info(log);
    assert_eq!(info[0]["accounting"]["logged"][0], PACKETS, "{info}");
    assert_eq!(info[0]["state"], "closed", "{info}");
}

#[test]
fn signals_that_come_at_once_are_one() {
    let Some(namespace) = namespace("twice") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    for signals in [["INT", "INT"], ["INT", "TERM"], ["TERM", "TERM"]] {
        let log = dir.path().join(signals.join("-"));
        let recording = Recording::start(&namespace, &log, &["--mode", "log-all"]);
        recording.send(&namespace);
        for name in signals {
            recording.signal(name);
        }
        let (out, _) = recording.ended();
        is_whole(&log, &out);
    }
}

/// GNU `timeout` signals its child, and then the group that the child is in.
#[test]
fn a_recording_under_timeout_ends_properly() {
    let Some(namespace) = namespace("timeout") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace.name(), "timeout", "600"]);
    command.arg(env!("CARGO_BIN_EXE_strata"));
    let arguments = ["--mode", "log-all"];
    let recording = Recording::of(command, FAR, &log, &arguments);
    recording.send(&namespace);
    // To `timeout`, which passes it on as when the time is over.
    recording.signal("INT");
    let (out, _) = recording.ended();
    is_whole(&log, &out);
}
