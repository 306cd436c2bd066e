//! `strata export --dedup` and `strata record --dedup`, compared with editcap, on a trace as two mirror ports would see
//! it.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use strata_testkit::data_dir;

use crate::common::program::{ok, record, refused, strata};

/// Time in us, and bytes.
type Frame = (i64, Vec<u8>);

/// Packets of the trace that are used.
const PACKETS: usize = 20_000;
/// Packets with the same headers and checksum as one before, but another payload: as headers alone, they
/// are its doubles.
const ALIKE: usize = 10;
/// How much later the second port sees a packet, us.
const LATER_US: i64 = 30;

fn frames(file: &Path) -> Vec<Frame> {
    let mut capture = pcap::Capture::from_file(file).unwrap();
    let mut frames = Vec::new();
    while let Ok(packet) = capture.next_packet() {
        let time = packet.header.ts;
        frames.push((time.tv_sec * 1_000_000 + time.tv_usec, packet.data.to_vec()));
    }
    frames
}

/// Writes a pcap file of Ethernet.
fn write(mut frames: Vec<Frame>, file: &Path) {
    frames.sort_by_key(|(time, _)| *time);
    let header = [0xa1b2_c3d4_u32, 4 << 16 | 2, 0, 0, 262_144, 1];
    let mut bytes: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
    for (time, data) in frames {
        let [seconds, us] = [time / 1_000_000, time % 1_000_000];
        let [seconds, us] = [seconds, us].map(|part| u32::try_from(part).unwrap());
        let len = u32::try_from(data.len()).unwrap();
        let words = [seconds, us, len, len];
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(data);
    }
    std::fs::write(file, bytes).unwrap();
}

/// The first packets of the mix, whole, of which none is the same as one of the 10 ms before.
fn trace(dir: &Path) -> Vec<Frame> {
    let mut frames = frames(&data_dir().join("labelled/mix-test/trace.pcap"));
    frames.truncate(PACKETS);
    editcap(&frames, dir, "0.01")
}

/// A log with every packet whole.
fn logged(frames: Vec<Frame>, dir: &Path, name: &str) -> PathBuf {
    let capture = dir.join(format!("{name}.pcap"));
    write(frames, &capture);
    let log = dir.join(name);
    ok(record(&capture, &log).args(["--mode", "log-all", "--detail", "none"]));
    log
}

/// The export without doubles, and how many packets the command says were omitted.
fn without_doubles(logs: &[&Path], more: &[&str], out: &Path) -> (Vec<Frame>, u64) {
    let mut command = strata();
    command.arg("export").args(logs).arg("-w").arg(out);
    let answer = ok(command.args(["--json", "--dedup", "1ms"]).args(more));
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let frames = frames(out);
    assert_eq!(answer["packets"].as_u64(), Some(frames.len() as u64));
    (frames, answer["duplicates"].as_u64().unwrap())
}

/// What editcap leaves of a capture, with a window in seconds.
fn editcap(frames: &[Frame], dir: &Path, window: &str) -> Vec<Frame> {
    let [given, left] = ["given.pcap", "left.pcap"].map(|name| dir.join(name));
    write(frames.to_vec(), &given);
    let mut editcap = Command::new("editcap");
    let output = editcap
        .args(["-F", "pcap", "-w", window])
        .arg(&given)
        .arg(&left)
        .output();
    assert!(
        output
            .expect("editcap is installed (`make tools`)")
            .status
            .success()
    );
    self::frames(&left)
}

fn later(frames: &[Frame]) -> Vec<Frame> {
    let later = frames
        .iter()
        .map(|(time, data)| (time + LATER_US, data.clone()));
    later.collect()
}

/// As a router's other side sees it: other addresses and TTL, and in another VLAN.
fn routed(data: &[u8]) -> Vec<u8> {
    let mut routed = [
        &[2, 9, 9, 9, 9, 9, 2, 8, 8, 8, 8, 8][..],
        &[0x81, 0, 0, 42],
        &data[12..],
    ]
    .concat();
    match (&data[12..14], routed.get(18..)) {
        ([8, 0], Some(ip)) if ip.len() >= 20 => {
            let sum = u32::from(u16::from_be_bytes([ip[10], ip[11]])) + 0x100;
            let sum = u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
            routed[18 + 8] = routed[18 + 8].wrapping_sub(1);
            routed[18 + 10..18 + 12].copy_from_slice(&sum.to_be_bytes());
        }
        ([0x86, 0xdd], Some(ip)) if ip.len() >= 40 => {
            routed[18 + 7] = routed[18 + 7].wrapping_sub(1);
        }
        _ => {}
    }
    routed
}

fn sorted(mut frames: Vec<Frame>) -> Vec<Frame> {
    frames.sort();
    frames
}

#[test]
fn all_and_only_the_doubles_of_two_mirror_ports_are_omitted() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let trace = trace(dir);
    let both: Vec<Frame> = trace.iter().cloned().chain(later(&trace)).collect();
    let expected = sorted(editcap(&both, dir, "0.001"));
    assert!(expected == sorted(trace.clone()));
    let out = dir.join("out.pcap");
    let log = logged(both.clone(), dir, "both");
    let (left, omitted) = without_doubles(&[&log], &[], &out);
    assert_eq!(omitted, (both.len() - expected.len()) as u64);
    assert!(sorted(left) == expected, "what editcap leaves");
    // Nothing is omitted without the option.
    ok(strata().arg("export").arg(&log).arg("-w").arg(&out));
    assert_eq!(frames(&out).len(), both.len());

    // Two logs, the second of which has other addresses, tags and TTLs.
    let other: Vec<Frame> = later(&trace)
        .into_iter()
        .map(|(at, data)| (at, routed(&data)))
        .collect();
    let logs = [
        logged(trace.clone(), dir, "one"),
        logged(other, dir, "other"),
    ];
    let logs = [logs[0].as_path(), logs[1].as_path()];
    let ignored = ["--dedup-ignore", "macs,tags", "--dedup-ignore", "ttl"];
    let (left, omitted) = without_doubles(&logs, &ignored, &out);
    assert!(sorted(left) == expected);
    assert_eq!(omitted, (both.len() - expected.len()) as u64);
    // What may not differ is told apart: only doubles within each log are omitted.
    let (left, _) = without_doubles(&logs, &["--dedup-ignore", "macs,tags"], &out);
    assert!(left.len() > both.len() - 1_000, "{}", left.len());
}

#[test]
fn a_recording_without_duplicates_has_what_an_export_without_them_has() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let trace = trace(dir);
    let captures = ["one", "other"].map(|name| dir.join(format!("{name}.pcap")));
    write(trace.clone(), &captures[0]);
    write(later(&trace), &captures[1]);
    let log = dir.join("log");
    let mut command = record(&captures[0], &log);
    command.arg("-r").arg(&captures[1]);
    let out = ok(command.args(["--mode", "log-all", "--detail", "none", "--dedup", "1ms"]));
    let packets = trace.len();
    let accounting = format!(
        "packets: seen {} = filtered 0 + duplicates {packets} + discarded 0 + sampled_out 0 + logged {packets} ",
        2 * packets
    );
    assert!(out.contains(&accounting), "{out}");
    let info = ok(strata().args(["info", "--json"]).arg(&log));
    let info: Value = serde_json::from_str(&info).unwrap();
    let bytes: usize = trace.iter().map(|(_, data)| data.len()).sum();
    let counted = &info[0]["accounting"]["duplicates"];
    assert_eq!(counted, &serde_json::json!([packets, bytes]));
    let out = dir.join("out.pcap");
    let (left, omitted) = without_doubles(&[&log], &[], &out);
    assert_eq!(omitted, 0);
    assert!(sorted(left) == sorted(trace));
    // Packets of a number that is asked for are not duplicates.
    let log = dir.join("few");
    let mut command = record(&captures[0], &log);
    command.arg("-r").arg(&captures[1]);
    let out = ok(command.args(["--mode", "log-all", "--dedup", "1ms", "-c", "100"]));
    assert!(out.contains("+ logged 100 "), "{out}");
    let mut command = strata();
    command.args(["record", "-i", "lo", "-o"]).arg(&log);
    let output = command.args(["--dedup", "1ms", "--early-cut"]).output();
    let said = String::from_utf8(output.unwrap().stderr).unwrap();
    assert!(said.contains("--early-cut"), "{said}");
}

#[test]
fn of_two_copies_the_one_is_written_of_which_most_was_kept() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let trace = trace(dir);
    let whole = logged(later(&trace), dir, "whole");
    let capture = dir.join("headers.pcap");
    write(trace.clone(), &capture);
    let headers = dir.join("headers");
    ok(record(&capture, &headers).args(["--default", "header", "--detail", "none"]));
    let out = dir.join("out.pcap");
    let (left, omitted) = without_doubles(&[&headers, &whole], &[], &out);
    // Packets without a TCP or UDP checksum are not told by their headers alone: both are written.
    let told_apart = left.len() - trace.len();
    assert!(told_apart < 500, "{told_apart}");
    assert_eq!(omitted, (trace.len() - told_apart) as u64);
    let left: HashSet<&Frame> = left.iter().collect();
    let there = trace.iter().filter(|frame| left.contains(frame)).count();
    assert!(
        there + told_apart + ALIKE >= trace.len(),
        "{there} of {} are whole, at the first time",
        trace.len()
    );
}

#[test]
fn what_dedup_is_not_for_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let log = logged(trace(dir.path()), dir.path(), "log");
    let refused_with = |more: &[&str]| {
        let mut command = strata();
        command.arg("export").arg(&log).args(more);
        refused(&mut command)
    };
    let flows = dir.path().join("flows.csv");
    let packets = dir.path().join("out.pcapng");
    let [flows, packets] = [flows.to_str().unwrap(), packets.to_str().unwrap()];
    for (arguments, said) in [
        (
            ["-w", flows, "--dedup", "50ms"],
            "--dedup applies only to pcapng and pcap",
        ),
        (["-w", packets, "--dedup", "1h"], "at most 10s"),
        (
            ["-w", packets, "--dedup", "soon"],
            "--dedup: 'soon' is not a length of time",
        ),
    ] {
        let refused = refused_with(&arguments);
        assert!(refused.contains(said), "{refused}");
    }
    let alone = ["-w", packets, "--dedup-ignore", "ttl"];
    let output = strata().arg("export").arg(&log).args(alone).output();
    let said = String::from_utf8(output.unwrap().stderr).unwrap();
    assert!(said.contains("--dedup <TIME>"), "{said}");
}

/// Frames of a call: UDP without a checksum, with the same headers and other payloads.
fn call(packets: u8) -> Vec<Frame> {
    let frame = |number: u8| {
        let mut frame = [&[2; 12][..], &[8, 0]].concat();
        frame.extend_from_slice(&[0x45, 0, 0, 128, 0, 1, 0, 0, 64, 17, 0, 0]);
        frame.extend_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend_from_slice(&[0x40, 0, 0x41, 0, 0, 108, 0, 0]);
        frame.extend_from_slice(&[number; 100]);
        frame
    };
    let at = |number: u8| 1_700_000_000_000_000 + i64::from(number) * 1_000;
    (0..packets)
        .map(|number| (at(number), frame(number)))
        .collect()
}

#[test]
fn packets_that_headers_do_not_tell_apart_are_written_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let (capture, log) = (dir.path().join("call.pcap"), dir.path().join("log"));
    write(call(50), &capture);
    ok(record(&capture, &log).args(["--default", "header", "--detail", "none"]));
    let mut command = strata();
    command
        .arg("export")
        .arg(&log)
        .args(["--dedup", "50ms", "-w"]);
    let output = command.arg(dir.path().join("out.pcap")).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    for part in [
        "0 packets omitted",
        "50 packets written without a --dedup check",
        "50 packets exported",
    ] {
        assert!(said.contains(part), "{said}");
    }
    // Where all of it was kept, payloads tell them apart, and doubles are found.
    let both: Vec<Frame> = call(50).into_iter().chain(later(&call(50))).collect();
    let log = logged(both, dir.path(), "whole");
    let (left, omitted) = without_doubles(&[&log], &[], &dir.path().join("once.pcap"));
    assert_eq!((left.len(), omitted), (50, 50));
}
