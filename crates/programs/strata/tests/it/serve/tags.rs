//! Searches for packets with tags and in tunnels, in which a filter sees something else than what their flow is,
//! against tcpdump.

use std::path::Path;

use strata_testkit::data_dir;

use super::http::{Serving, quoted};
use super::logs::{counted_in, number};
use crate::common::program::{ok, record, strata};

/// Every one is asked of both tiers.
const FILTERS: [&str; 10] = [
    "tcp",
    "not tcp",
    "vlan and tcp",
    "tcp port 80",
    "not port 80",
    "host 10.0.0.1",
    "not host 10.0.0.1",
    "mpls and tcp",
    "ip or ip6",
    "ip proto 4 or ip6 proto 17",
];

fn searches_find_what_tcpdump_finds(capture: &Path) {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    ok(record(capture, &log).args(["--mode", "log-all"]));
    for tier in ["blocks", "parts"] {
        if tier == "parts" {
            ok(strata().arg("compact").arg(&log));
        }
        let serving = Serving::start(&[&log], &[]);
        for filter in FILTERS {
            let (result, _) = serving.search(&format!("filter={}", quoted(filter)));
            let expected = counted_in(capture, filter);
            assert_eq!(number(&result["packets"]), expected, "{tier}: '{filter}'");
        }
    }
}

#[test]
fn packets_with_tags_are_found_in_a_real_capture() {
    searches_find_what_tcpdump_finds(&data_dir().join("labelled/mix-test/trace.pcap"));
}

/// Segments of the same connection, bare, with tags, and in tunnels.
#[test]
fn packets_of_one_connection_are_found_by_what_is_before_them() {
    let before: [(usize, &[u8]); 8] = [
        (10, &[8, 0]),
        (20, &[0x81, 0, 0, 5, 8, 0]),
        (2, &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 8, 0]),
        (3, &[0x91, 0, 0, 5, 8, 0]),
        // MPLS, its one label the last.
        (5, &[0x88, 0x47, 0, 1, 1, 64]),
        // PPPoE: session 1, 42 bytes of PPP.
        (7, &[0x88, 0x64, 0x11, 0, 0, 1, 0, 42, 0, 0x21]),
        // IPv4 in IPv4, and in IPv6.
        (
            4,
            &[
                8, 0, 0x45, 0, 0, 60, 0, 0, 0, 0, 64, 4, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2,
            ],
        ),
        (6, &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, 4, 64]),
    ];
    let mut capture = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        capture.extend(word.to_le_bytes());
    }
    let mut second = 1_700_000_000_u32;
    for (count, header) in before {
        let mut frame = [&[2; 12], header].concat();
        if header.starts_with(&[0x86, 0xdd]) {
            frame.extend([[0xfd; 16], [0xfe; 16]].concat());
        }
        frame.extend([0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0x66, 0xcd]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1]);
        frame.extend([0x50, 0x10, 1, 0, 0, 0, 0, 0]);
        let len = u32::try_from(frame.len()).unwrap();
        for _ in 0..count {
            for word in [second, 0, len, len] {
                capture.extend(word.to_le_bytes());
            }
            capture.extend(&frame);
            second += 1;
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tags.pcap");
    std::fs::write(&file, capture).unwrap();
    assert_eq!((counted_in(&file, "tcp"), counted_in(&file, "")), (10, 57));
    searches_find_what_tcpdump_finds(&file);
}
