//! Flow records of a filter are those of exactly the packets that tcpdump finds with it.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use strata_testkit::data_dir;

use super::lacking::tcpdump_counts;
use crate::common::program::{ok, record, strata};

/// Tests that addresses, ports and protocol of a flow do not decide, and some that they seem to.
const FILTERS: [&str; 16] = [
    "tcp",
    "ip6 and tcp",
    "arp",
    "vlan",
    "vlan 4000",
    "vlan and host 10.10.10.30",
    "not ip and not ip6",
    "src port 53",
    "not port 53",
    "host 10.10.10.30",
    "dst host 10.10.10.30",
    "arp host 10.10.10.30",
    "greater 1000",
    "ether multicast",
    "tcp[13] = 2",
    "tcp[13] = 255",
];

fn mix() -> PathBuf {
    data_dir().join("labelled/mix-test/trace.pcap")
}

fn export(log: &Path, options: &[&str]) -> Command {
    let mut command = strata();
    command.arg("export").arg(log).args(options);
    command
}

/// The sums of JSON records, and the records without what depends on other packets.
fn records(log: &Path, filter: &str) -> (u64, Vec<String>) {
    let lines = ok(&mut export(log, &["-F", "json", "-w", "-", filter]));
    let mut packets = 0;
    let record = |line: &str| {
        let mut flow: Value = serde_json::from_str(line).unwrap();
        packets += flow["packets"].as_u64().unwrap() + flow["reverse_packets"].as_u64().unwrap();
        let fields = flow.as_object_mut().unwrap();
        for of_others in ["class", "classes", "score_max", "end_reason", "recording"] {
            fields.remove(of_others);
        }
        flow.to_string()
    };
    let mut records: Vec<String> = lines.lines().map(record).collect();
    records.sort_unstable();
    (packets, records)
}

#[test]
fn records_count_the_packets_that_tcpdump_finds() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    ok(record(mix(), &log).args(["--mode", "log-all"]));
    let mut of_blocks = Vec::new();
    for filter in FILTERS {
        let (packets, records) = records(&log, filter);
        assert_eq!(packets, tcpdump_counts(&mix(), filter), "{filter}");
        of_blocks.push(records);
    }
    // A recording of the same packets has the same records.
    for filter in ["vlan or ip6", "src port 53"] {
        let alone = dir.path().join(filter.replace(' ', "-"));
        ok(record(mix(), &alone).args(["--mode", "log-all", filter]));
        assert!(records(&log, filter) == records(&alone, ""), "{filter}");
    }
    ok(strata().arg("compact").arg(&log));
    for (filter, of_blocks) in FILTERS.into_iter().zip(of_blocks) {
        assert!(records(&log, filter).1 == of_blocks, "{filter}");
    }
}

/// As nfdump and tshark count them.
#[test]
fn every_format_has_the_same_packets() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    ok(record(mix(), &log).args(["--mode", "log-all"]));
    ok(strata().arg("compact").arg(&log));
    let filter = "vlan or arp";
    let expected = tcpdump_counts(&mix(), filter);
    let file = dir.path().join("flows.ipfix");
    ok(export(&log, &["-w", file.to_str().unwrap()]).arg(filter));
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(&file);
    let text = ok(tshark.args(["-T", "fields", "-e", "cflow.packets"]));
    let fields = text.split([',', '\n']);
    let packets = fields.filter_map(|field| field.trim().parse::<u64>().ok());
    assert_eq!(packets.sum::<u64>(), expected);
    let csv = ok(export(&log, &["-F", "csv", "-w", "-"]).arg(filter));
    let names: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
    let places =
        ["packets", "reverse_packets"].map(|name| names.iter().position(|of| *of == name).unwrap());
    let of_row = |row: &str| {
        let cells: Vec<&str> = row.split(',').collect();
        let packets = places.map(|at| cells[at].parse::<u64>().unwrap());
        packets.iter().sum::<u64>()
    };
    assert_eq!(csv.lines().skip(1).map(of_row).sum::<u64>(), expected);
    let file = dir.path().join("flows.parquet");
    let said = ok(export(&log, &["--json", "-w", file.to_str().unwrap()]).arg(filter));
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        said["flows"].as_u64(),
        Some(csv.lines().skip(1).count() as u64)
    );
    assert_eq!(
        (&said["complete"], &said["left_out"]),
        (&true.into(), &0.into())
    );
}
