//! `strata grep`, compared with tshark; and across packets, with frames made here.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use strata_testkit::data_dir;

use crate::common::program::{ok, record, refused, strata};

fn mix() -> PathBuf {
    data_dir().join("labelled/mix-test/trace.pcap")
}

fn whole(trace: &Path, dir: &Path) -> PathBuf {
    let log = dir.join("log");
    ok(record(trace, &log).args(["--mode", "log-all", "--detail", "none"]));
    log
}

fn grep(log: &Path, arguments: &[&str]) -> Vec<Value> {
    let text = ok(strata().args(["grep", "--json"]).arg(log).args(arguments));
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

/// The times of the packets for which a display filter of tshark is true, µs since 1970.
fn tshark(trace: &Path, filter: &str) -> Vec<i64> {
    let mut command = Command::new("tshark");
    command
        .arg("-r")
        .arg(trace)
        .args(["-Y", filter, "-T", "fields"]);
    let output = command.args(["-e", "frame.time_epoch"]).output().unwrap();
    assert!(output.status.success(), "{filter}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(|line| {
            let (seconds, fraction) = line.split_once('.').unwrap();
            seconds.parse::<i64>().unwrap() * 1_000_000 + fraction[..6].parse::<i64>().unwrap()
        })
        .collect()
}

#[test]
fn the_packets_found_are_those_of_tshark() {
    let dir = tempfile::tempdir().unwrap();
    let log = whole(&mix(), dir.path());
    let cases = [
        (&["--literal", "GET "][..], "contains \"GET \"", 500),
        (
            &["(?i)user-agent: [a-z]+"],
            "matches \"(?i)user-agent: [a-z]+\"",
            500,
        ),
        (&["google"], "contains \"google\"", 90),
        (&["--hex", "16 03 01 02"], "contains 16:03:01:02", 100),
        (&["\\x03com\\x00"], "matches \"\\\\x03com\\\\x00\"", 900),
    ];
    let expected = cases.map(|(_, filter, _)| -> BTreeSet<i64> {
        let filter = format!("tcp.payload {filter} || udp.payload {filter}");
        tshark(&mix(), &filter).into_iter().collect()
    });
    let check = || {
        for ((arguments, filter, least), expected) in cases.iter().zip(&expected) {
            let found = grep(&log, arguments);
            let times = found.iter().map(|packet| {
                let time: jiff::Timestamp = packet["time"].as_str().unwrap().parse().unwrap();
                time.as_microsecond()
            });
            let times: BTreeSet<i64> = times.collect();
            let other: Vec<&i64> = times.symmetric_difference(expected).collect();
            assert!(other.is_empty(), "{filter}: {other:?}");
            assert!(times.len() > *least, "{filter}: {}", times.len());
        }
    };
    check();
    ok(strata().arg("compact").arg(&log));
    check();
}

#[test]
fn an_answer_says_how_much_was_searched() {
    let dir = tempfile::tempdir().unwrap();
    let log = whole(&mix(), dir.path());
    let headers = dir.path().join("headers");
    ok(record(mix(), &headers).args(["--mode", "log-minimum", "--detail", "none"]));
    let said = |log: &Path, arguments: &[&str]| {
        let output = strata()
            .arg("grep")
            .arg(log)
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    // The capture itself has packets that were cut.
    let of_whole = said(&log, &["GET /"]);
    assert!(
        of_whole.contains("searched 67,690 packets, 28 of them kept only in part; found"),
        "{of_whole}"
    );
    let short = said(&log, &["GET /", "host 10.10.10.6"]);
    assert!(
        short.contains("all kept whole; found matches in"),
        "{short}"
    );
    let of_headers = said(&headers, &["GET /"]);
    assert!(
        of_headers.contains("of them kept only in part"),
        "{of_headers}"
    );
    let shown = ok(strata()
        .arg("grep")
        .arg(&log)
        .args(["--utc", "-c", "1", "GET /[a-z]"]));
    assert!(
        shown.contains(": Flags [") && shown.contains("  at 0: \"GET /"),
        "{shown}"
    );
}

/// A TCP segment in an Ethernet frame.
fn segment(from: u8, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 3 - from, 2, 0, 0, 0, 0, from, 8, 0];
    let len = u16::try_from(40 + payload.len()).unwrap();
    frame.extend([0x45, 0]);
    frame.extend(len.to_be_bytes());
    frame.extend([
        0,
        1,
        0x40,
        0,
        64,
        6,
        0,
        0,
        10,
        0,
        0,
        from,
        10,
        0,
        0,
        3 - from,
    ]);
    let ports = if from == 1 {
        [40_000_u16, 80]
    } else {
        [80, 40_000]
    };
    frame.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
    frame.extend(sequence.to_be_bytes());
    frame.extend([0, 0, 0, 1, 0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
    frame.extend(payload);
    // As short frames are padded, with bytes that are no payload.
    frame.resize(frame.len().max(60), b'!');
    frame
}

fn capture(path: &Path, frames: &[Vec<u8>]) {
    let mut bytes = 0xa1b2_c3d4_u32.to_le_bytes().to_vec();
    bytes.extend([
        2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 0, 0, 0,
    ]);
    for (number, frame) in (0_u32..).zip(frames) {
        let len = u32::try_from(frame.len()).unwrap();
        let header = [1_700_000_000, number, len, len];
        bytes.extend(header.iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(frame);
    }
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_match_across_packets_is_found_if_no_byte_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace.pcap");
    capture(
        &trace,
        &[
            // Short enough to be padded; sequence numbers wrap.
            segment(1, 0xffff_fffe, b"pass"),
            segment(2, 500, b"word in the other direction"),
            segment(1, 0xffff_fffe, b"pass"),
            segment(1, 2, b"wo"),
            segment(1, 4, b"rd=x; pass"),
            // Five bytes are missing.
            segment(1, 19, b"word=y pass"),
            segment(1, 30, b"word"),
            segment(1, 34, b" password in one"),
        ],
    );
    let log = whole(&trace, dir.path());
    let at = |arguments: &[&str]| -> Vec<i64> {
        let found = grep(&log, arguments);
        found
            .iter()
            .map(|one| one["match_at"].as_i64().unwrap())
            .collect()
    };
    assert_eq!(at(&["password", "--stream"]), [-6, -4, 1]);
    assert_eq!(at(&["password"]), [1]);
    let shown = &grep(&log, &["password", "--stream"])[0]["match"];
    assert_eq!(shown, "password=x; pass");
    assert_eq!(at(&["!", "--stream"]).len(), 0, "padding is no payload");
}

#[test]
fn patterns_that_cannot_be_searched_for_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let log = whole(&mix(), dir.path());
    for (arguments, why) in [
        (&["("][..], "the pattern \"(\""),
        (&["x*"], "matches every packet"),
        (&["--hex", "1"], "expected pairs of hexadecimal digits"),
    ] {
        let said = refused(strata().arg("grep").arg(&log).args(arguments));
        assert!(said.contains(why), "{said}");
    }
}
