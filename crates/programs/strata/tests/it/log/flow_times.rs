//! The times of flow records, where those of packets are not in order.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::common::program::{ok, record, strata};
use crate::serve::http::Serving;

const START: i64 = 1_700_000_000;

/// A UDP packet from port 5300 of 10.3.0.1 to port 9 of 10.3.0.2.
fn frame() -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([8, 0, 0x45, 0, 0, 33, 0, 7, 0, 0, 64, 17, 0, 0]);
    frame.extend([10, 3, 0, 1, 10, 3, 0, 2]);
    let words = [5_300_u16, 9, 13, 0].map(u16::to_be_bytes);
    frame.extend(words.concat());
    frame.extend(b"hello");
    frame
}

/// A pcap of one flow whose packets have these times, s after the start.
fn pcap(times: &[i64]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    let frame = frame();
    let len = u32::try_from(frame.len()).unwrap();
    for time in times {
        let second = u32::try_from(START + time).unwrap();
        for word in [second, 0, len, len] {
            file.extend(word.to_le_bytes());
        }
        file.extend(&frame);
    }
    file
}

fn flows(log: &Path) -> Vec<Value> {
    let mut export = strata();
    export.args(["export", "-F", "json", "-w", "-"]).arg(log);
    let lines = ok(&mut export);
    let flow = |line: &str| serde_json::from_str(line).unwrap();
    lines.lines().map(flow).collect()
}

/// First and last time, s after the start, and packets, of each record.
fn spans(log: &Path) -> Vec<(i64, i64, u64)> {
    let seconds = |of: &Value| {
        let time: jiff::Timestamp = of.as_str().unwrap().parse().unwrap();
        time.as_second() - START
    };
    let span = |flow: Value| {
        let [first, last] = ["first_time", "last_time"].map(|name| seconds(&flow[name]));
        (first, last, flow["packets"].as_u64().unwrap())
    };
    flows(log).into_iter().map(span).collect()
}

/// The same by nfpcapd and nfdump, with the same timeouts.
fn by_nfdump(trace: &Path, dir: &Path) -> Vec<(i64, i64, u64)> {
    std::fs::create_dir(dir).unwrap();
    let mut nfpcapd = Command::new("nfpcapd");
    nfpcapd.args(["-e", "300,60", "-r"]).arg(trace);
    ok(nfpcapd.arg("-w").arg(dir));
    let mut nfdump = Command::new("nfdump");
    nfdump
        .env("TZ", "UTC")
        .args(["-q", "-o", "fmt:%tsr %ter %ipkt", "-R"]);
    let rows = ok(nfdump.arg(dir));
    let row = |row: &str| {
        let cells: Vec<&str> = row.split_whitespace().collect();
        let seconds = |cell: &str| {
            let (seconds, _) = cell.split_once('.').unwrap();
            seconds.parse::<i64>().unwrap() - START
        };
        (
            seconds(cells[0]),
            seconds(cells[1]),
            cells[2].parse().unwrap(),
        )
    };
    rows.lines().map(row).collect()
}

#[test]
fn time_that_is_set_back_leaves_a_flow_whole() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("trace.pcap"), pcap(&[0, 1, -3_600, -3_599, 2])).unwrap();
    ok(&mut record(at("trace.pcap"), at("log")));
    for is_compacted in [false, true] {
        if is_compacted {
            ok(strata().arg("compact").arg(at("log")));
        }
        let spans = spans(&at("log"));
        assert_eq!(spans, [(0, 2, 5)], "{is_compacted}");
        if !is_compacted {
            assert_eq!(spans, by_nfdump(&at("trace.pcap"), &at("nfdump")));
        }
    }
}

/// A pcapng of the same packet: after these seconds, or without a time.
fn pcapng(times: &[Option<i64>]) -> Vec<u8> {
    let block = |kind: u32, body: &[u8]| {
        let len = u32::try_from(body.len() + 12).unwrap().to_le_bytes();
        [&kind.to_le_bytes()[..], &len, body, &len].concat()
    };
    let words =
        |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    let unspecified = [0x1a2b_3c4d, 1, u32::MAX, u32::MAX];
    let mut file = block(0x0a0d_0d0a, &words(&unspecified));
    file.extend(block(1, &words(&[1, 0])));
    let frame = frame();
    let len = u32::try_from(frame.len()).unwrap();
    let mut padded = frame;
    padded.resize(padded.len().next_multiple_of(4), 0);
    for time in times {
        let body = match time {
            None => [words(&[len]), padded.clone()].concat(),
            Some(time) => {
                let us = u64::try_from((START + time) * 1_000_000).unwrap();
                let [high, low] = [us >> 32, us & 0xffff_ffff].map(|of| u32::try_from(of).unwrap());
                [words(&[0, high, low, len, len]), padded.clone()].concat()
            }
        };
        file.extend(block(if time.is_some() { 6 } else { 3 }, &body));
    }
    file
}

/// Times and lengths as tshark reads them.
fn by_tshark(file: &Path) -> String {
    let mut tshark = Command::new("tshark");
    tshark.args(["-T", "fields", "-e", "frame.time_epoch", "-e", "frame.len"]);
    ok(tshark.arg("-r").arg(file))
}

#[test]
fn packets_without_a_time_are_not_of_1970() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let times = [None, Some(0), None, Some(1)];
    std::fs::write(at("trace.pcapng"), pcapng(&times)).unwrap();
    ok(record(at("trace.pcapng"), at("log")).args(["--mode", "log-all"]));
    let info = |options: &[&str]| ok(strata().arg("info").arg(at("log")).args(options));
    let written = |name: &str| {
        ok(strata()
            .arg("export")
            .arg(at("log"))
            .arg("-w")
            .arg(at(name)));
        by_tshark(&at(name))
    };
    for is_compacted in [false, true] {
        if is_compacted {
            ok(strata().arg("compact").arg(at("log")));
        }
        assert_eq!(spans(&at("log")), [(0, 1, 4)], "{is_compacted}");
        let said = info(&[]);
        assert!(said.contains("from 2023-11-14 22:13:20"), "{said}");
        assert!(said.contains("2 packets without a time"), "{said}");
        let json: Value = serde_json::from_str(&info(&["--json"])).unwrap();
        let start_ns = START * 1_000_000_000;
        assert_eq!(json[0]["first_ns"], start_ns, "{json:#}");
        assert_eq!(json[0]["last_ns"], start_ns + 1_000_000_000);
        assert_eq!(json[0]["untimed_packets"], 2);
        // They have none in the file either, or 0 where each needs one.
        assert_eq!(written("out.pcapng"), by_tshark(&at("trace.pcapng")));
        let whole = written("out.pcap");
        let times: Vec<&str> = whole.lines().map(|line| &line[..10]).collect();
        assert_eq!(times[1..], ["1700000000", "0.00000000", "1700000001"]);
    }
    std::fs::write(at("none.pcapng"), pcapng(&[None, None])).unwrap();
    ok(&mut record(at("none.pcapng"), at("none")));
    let said = ok(strata().arg("info").arg(at("none")));
    assert!(
        !said.contains("1970") && said.contains("2 packets without a time"),
        "{said}"
    );
    let serving = Serving::start(&[&at("log"), &at("none")], &[]);
    let logs = serving.json("/api/v1/logs");
    assert_eq!(
        logs[0]["first"], "2023-11-14T22:13:20.000000000Z",
        "{logs:#}"
    );
    assert_eq!(
        (&logs[1]["first"], &logs[1]["packets"]),
        (&Value::Null, &2.into())
    );
}
