//! Payload as the page shows it, against tshark's: padding of short frames is not payload.

use std::collections::HashMap;
use std::process::Command;

use super::http::Serving;
use super::logs::capture;
use crate::common::program::{ok, record};

/// Bytes of TCP payload by time, as tshark counts; of times that several packets have, none.
fn by_tshark() -> HashMap<String, u64> {
    let output = Command::new("tshark")
        .args(["-n", "-t", "e", "-Y", "tcp && !icmp", "-T", "fields"])
        .args(["-e", "frame.time_epoch", "-e", "tcp.len", "-r"])
        .arg(capture())
        .output()
        .unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let mut all: HashMap<String, Vec<u64>> = HashMap::new();
    for line in text.lines() {
        let (at, len) = line.split_once('\t').unwrap();
        if let Ok(len) = len.parse() {
            all.entry(at.to_owned()).or_default().push(len);
        }
    }
    let single = all.into_iter().filter(|(_, lens)| lens.len() == 1);
    single.map(|(at, lens)| (at, lens[0])).collect()
}

/// Seconds since 1970 as tshark has them, of a time of the API.
fn epoch(at: &str) -> String {
    let at: jiff::Timestamp = at.parse().unwrap();
    let ns = at.as_nanosecond();
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

#[test]
fn payload_is_what_tshark_counts_without_padding() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    ok(&mut record(capture(), &log));
    let serving = Serving::start(&[&log], &[]);
    let (_, id) = serving.search("filter=tcp");
    let page = serving.json(&format!("/api/v1/searches/{id}/flows?limit=150"));
    let expected = by_tshark();
    let (mut compared, mut padded) = (0, 0);
    for flow in page["rows"].as_array().unwrap() {
        let flow = flow["id"].as_str().unwrap();
        let packets = serving.json(&format!("/api/v1/logs/0/flows/{flow}/packets?limit=100"));
        for packet in packets["packets"].as_array().unwrap() {
            let summary = packet["summary"].as_str().unwrap();
            let Some(&len) = expected.get(&epoch(packet["at"].as_str().unwrap())) else {
                continue;
            };
            let bytes = if len == 1 { "byte" } else { "bytes" };
            assert!(
                summary.starts_with("TCP ") && summary.contains(&format!(", {len} {bytes}")),
                "{summary}: tshark counts {len}"
            );
            compared += 1;
            padded += usize::from(summary.ends_with(" of padding"));
        }
    }
    assert!(compared > 300 && padded > 5, "{compared}, {padded}");
}
