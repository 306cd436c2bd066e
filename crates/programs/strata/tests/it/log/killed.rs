//! What is said of a recording that was killed: which packets are missing, and that nothing is damaged.

use std::io::Write as _;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use strata_store::{Manifest, Recording, State};
use strata_testkit::data_dir;

use crate::common::program::{ok, record, strata};

const PACKETS: u64 = 5_000;

/// The beginning of a capture.
fn beginning() -> Vec<u8> {
    let mut file = std::fs::read(data_dir().join("labelled/mix-test/trace.pcap")).unwrap();
    let mut at = 24;
    for _ in 0..PACKETS {
        let kept: [u8; 4] = file[at + 8..at + 12].try_into().unwrap();
        at += 16 + usize::try_from(u32::from_le_bytes(kept)).unwrap();
    }
    file.truncate(at);
    file
}

fn info(log: &Path) -> Value {
    let output = strata().args(["info", "--json"]).arg(log).output().unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    told[0].clone()
}

/// A log whose recording was killed while packets were in memory: these are known to be lost. Their number.
pub(crate) fn killed(log: &Path) -> u64 {
    // On a busy machine, all may be in a file by then.
    for _ in 0..10 {
        if let Some(lost) = killed_once(log) {
            return lost;
        }
        std::fs::remove_dir_all(log).unwrap();
    }
    panic!("all packets were in a file each time");
}

fn killed_once(log: &Path) -> Option<u64> {
    let mut recording = record("-", log);
    recording.args(["--mode", "log-all", "-C", "1MiB"]);
    let mut child = recording
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(&beginning()).unwrap();
    input.flush().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    let counts = || {
        let told = info(log);
        let [there, lost] = [&told["in_log"]["packets"], &told["lost_packets"]].map(Value::as_u64);
        there.zip(lost)
    };
    // Until all were taken in, and some are in a file.
    while !counts().is_some_and(|(there, lost)| there > 0 && there + lost == PACKETS) {
        assert!(Instant::now() < until, "{:?}", counts());
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // A block may have been written meanwhile.
    let (there, lost) = counts().unwrap();
    assert_eq!(there + lost, PACKETS);
    (lost > 0 && block_files(log).len() > 1).then_some(lost)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The sizes of a log's block files.
fn block_files(log: &Path) -> Vec<u64> {
    let files = std::fs::read_dir(log.join("blocks")).unwrap();
    let files = files.map(|file| file.unwrap().path());
    let blocks = files.filter(|path| path.extension().is_some_and(|of| of == "strata"));
    blocks
        .map(|path| std::fs::metadata(path).unwrap().len())
        .collect()
}

#[test]
fn files_that_wait_to_be_compacted_count_with_the_last_one() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    killed(&log);
    let files = block_files(&log);
    assert!(files.len() > 1);
    let waits = info(&log)["uncompacted"].clone();
    assert_eq!(waits["files"], files.len());
    assert_eq!(waits["bytes"], files.iter().sum::<u64>());
}

#[test]
fn answers_say_what_was_lost() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let lost = killed(&log);
    let told = info(&log);
    assert_eq!(told["lost_packets"], lost, "{told:#}");
    let warnings = told["warnings"].as_array().unwrap();
    let last = warnings.last().unwrap().as_str().unwrap();
    assert!(last.contains("packets are known to be lost"), "{last}");
    let out = dir.path().join("out.csv");
    for (command, options) in [
        ("read", &[][..]),
        ("grep", &["HTTP"]),
        ("ask", &["packet-counts-per-source"]),
        ("top", &["--json"]),
        ("export", &["--json", "-w", out.to_str().unwrap()]),
    ] {
        let mut run = strata();
        let output = run.arg(command).arg(&log).args(options).output().unwrap();
        assert!(output.status.success(), "{command}");
        let warned = said(&output);
        assert!(
            warned.contains("before they were in a file"),
            "{command}: {warned}"
        );
        if options.contains(&"--json") {
            let told: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(told["lost_packets"], lost, "{command}: {told:#}");
            assert_eq!(told["complete"], false, "{command}: {told:#}");
        }
    }
    // A recording that was not killed has lost nothing.
    let whole = dir.path().join("whole");
    let sqli = data_dir().join("labelled/cic2017-sqli/trace.pcap");
    ok(&mut record(sqli, &whole));
    let output = strata()
        .args(["top", "--json"])
        .arg(&whole)
        .output()
        .unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["lost_packets"], 0, "{told:#}");
    assert_eq!(told["complete"], true, "{told:#}");
    assert!(!said(&output).contains("lost"));
}

/// A log of a recording that ended, with another description of it.
fn described(log: &Path, describe: impl Fn(&mut Recording)) {
    let sqli = data_dir().join("labelled/cic2017-sqli/trace.pcap");
    ok(&mut record(sqli, log));
    let file = log.join("manifest.json");
    let mut manifest = Manifest::from_json(&std::fs::read(&file).unwrap()).unwrap();
    describe(&mut manifest.recordings[0]);
    std::fs::write(&file, manifest.to_json()).unwrap();
}

/// All commands that read a log say this of it, and succeed; of those that print JSON, what that has.
fn all_say(log: &Path, what: &str) -> Vec<(&'static str, Value)> {
    let out = log.with_extension("csv");
    let mut told = Vec::new();
    for (command, options) in [
        ("read", &[][..]),
        ("grep", &["HTTP"]),
        ("ask", &["packet-counts-per-source"]),
        ("top", &["--json"]),
        ("export", &["--json", "-w", out.to_str().unwrap()]),
        ("verify", &["--json"]),
    ] {
        let mut run = strata();
        let output = run.arg(command).arg(log).args(options).output().unwrap();
        assert!(output.status.success(), "{command}: {}", said(&output));
        assert!(said(&output).contains(what), "{command}: {}", said(&output));
        if options.contains(&"--json") {
            told.push((command, serde_json::from_slice(&output.stdout).unwrap()));
        }
    }
    let text = ok(strata().arg("verify").arg(log));
    assert!(text.contains(": no damage"), "{text}");
    assert!(text.contains(&format!("; the log {what}")), "{text}");
    told
}

/// Packets after the last ones in files may be missing, even if the number of those that are known to be is 0.
#[test]
fn an_abrupt_end_is_said_even_if_no_packet_is_known_to_be_lost() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    described(&log, |recording| {
        recording.state = State::Running;
        (recording.ended_ns, recording.ledger) = (None, None);
    });
    assert_eq!(info(&log)["lost_packets"], 0);
    for (command, told) in all_say(
        &log,
        "has a recording that ended abruptly (killed, a power failure, or a relay that was stopped)",
    ) {
        assert_eq!(told["lost_packets"], 0, "{command}: {told:#}");
        // Nothing is damaged.
        assert_eq!(told["complete"], command == "verify", "{command}: {told:#}");
    }
}

/// What a killed recording may lack arrived after its last checkpoint.
#[test]
fn an_abrupt_end_is_not_said_of_packets_from_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    killed(&log);
    let file = log.join("manifest.json");
    let mut manifest = Manifest::from_json(&std::fs::read(&file).unwrap()).unwrap();
    // As of an interface: the times of its packets are those of the clock.
    manifest.recordings[0].live = true;
    std::fs::write(&file, manifest.to_json()).unwrap();
    for (times, is_said) in [
        (&[][..], true),
        (&["--to", "1000000000"], false),
        (&["--from", "1000000000"], true),
    ] {
        for (command, options) in [("read", &[][..]), ("ask", &["packet-counts-per-source"])] {
            let mut run = strata();
            run.arg(command).args(times).arg(&log).args(options);
            let warned = said(&run.output().unwrap());
            assert_eq!(
                warned.contains("that ended abruptly"),
                is_said,
                "{command} {times:?}: {warned}"
            );
        }
    }
}

/// A full disk has ended a recording: nothing has counted the packets that came later.
#[test]
fn an_early_end_is_said_even_if_no_packet_is_known_to_be_lost() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    described(&log, |recording| {
        let why = "ended early, since the log could not be written: the disk is full";
        recording.warnings.push(String::from(why));
    });
    let what = "has a recording (1) that ended early, since the log could not be written";
    for (command, told) in all_say(&log, what) {
        assert_eq!(told["lost_packets"], 0, "{command}: {told:#}");
        assert_eq!(told["complete"], command == "verify", "{command}: {told:#}");
    }
}

#[test]
fn packets_that_a_full_disk_cost_are_said() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    described(&log, |recording| {
        let ledger = recording.ledger.as_mut().unwrap();
        let mut reasons = ledger.dropped.iter_mut();
        let full = reasons.find(|(name, _)| name == "disk_full").unwrap();
        full.1 = (2_065, 3_000_000);
        ledger.seen.0 += 2_065;
        ledger.seen.1 += 3_000_000;
    });
    let named = log.display();
    let expected = format!("{named} lacks 2,065 packets: the disk was full; the selection");
    for (command, options) in [
        ("read", &[][..]),
        ("grep", &["HTTP"]),
        ("top", &["-n", "1"]),
    ] {
        let mut run = strata();
        let output = run.arg(command).arg(&log).args(options).output().unwrap();
        assert!(said(&output).contains(&expected), "{}", said(&output));
    }
    for (command, options) in [("top", &["--json"][..]), ("verify", &["--json"])] {
        let told = ok(strata().arg(command).arg(&log).args(options));
        let told: Value = serde_json::from_str(&told).unwrap();
        assert_eq!(told["lost_packets"], 2_065, "{command}: {told:#}");
        assert_eq!(told["complete"], command == "verify", "{command}: {told:#}");
    }
}

#[test]
fn what_was_lost_is_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let lost = killed(&log);
    let verify = |options: &[&str]| {
        let mut verify = strata();
        let output = verify.arg("verify").arg(&log).args(options).output();
        let output = output.unwrap();
        assert!(output.status.success());
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!(said(&output) + &told).contains("damaged at"), "{told}");
        (told, said(&output))
    };
    let (told, warned) = verify(&[]);
    assert_eq!((told.lines().count(), &*warned), (1, ""), "{told}");
    assert!(told.contains(": no damage; recording 1 lost "), "{told}");
    let (told, warned) = verify(&["--json"]);
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["lost_packets"], lost, "{told:#}");
    assert!(warned.contains("recording 1 lost "), "{warned}");
}
