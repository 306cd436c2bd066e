//! The times of flow records, where those of packets are not in order.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::common::program::{ok, record, strata};

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
