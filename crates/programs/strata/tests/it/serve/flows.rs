//! The packets of a flow: as many as the search counts with it, wherever they are asked for.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use strata_testkit::data_dir;

use super::http::{Serving, quoted};
use super::logs::number;
use crate::common::program::{ok, record, strata};

/// With tags, in tunnels, without IP, and in fragments.
const CAPTURES: [&str; 10] = [
    "VlanPackets.pcap",
    "ArpRequestWithVlan.pcap",
    "MplsPackets.pcap",
    "PPPoESession.pcap",
    "GrePackets.pcap",
    "Vxlan1.pcap",
    "gtp-u.pcap",
    "frag_http_req.pcap",
    "IPv4Frag.pcap",
    "ip6_fragments.pcap",
];

/// Flows of a capture that are looked at packet by packet.
const LISTED: usize = 2;

/// All packets of a flow, a few at a time; the first of them is there when it is asked for by itself.
fn listed(serving: &Serving, flow: &str, what: &str) -> u64 {
    let mut cursor = String::new();
    let mut all = 0;
    loop {
        let path = format!("/api/v1/logs/0/flows/{flow}/packets?limit=5{cursor}");
        let page = serving.json(&path);
        assert_eq!(page["covered"]["complete"], true, "{what}: {page:#}");
        let packets = page["packets"].as_array().unwrap();
        if let Some(packet) = packets.first() {
            let id = packet["id"].as_str().unwrap();
            let detail = serving.json(&format!("/api/v1/logs/0/packets/{id}"));
            assert_eq!(detail["packet"], *packet, "{what}");
            assert_eq!(detail["flow"], flow, "{what}");
        }
        all += packets.len() as u64;
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return all,
        }
    }
}

/// Packets in a pcapng file that is downloaded.
fn downloaded(serving: &Serving, flow: &str, file: &Path) -> u64 {
    let path = format!("/api/v1/logs/0/export?format=pcapng&flow={}", quoted(flow));
    fs::write(file, serving.get(&path).body).unwrap();
    let said = ok(Command::new("capinfos").args(["-c", "-M"]).arg(file));
    let count = said.lines().find_map(|line| {
        let (_, count) = line.split_once("Number of packets:")?;
        count.trim().parse().ok()
    });
    count.unwrap_or_else(|| panic!("capinfos does not count: {said}"))
}

/// Packets of the flow records that are downloaded.
fn recorded(serving: &Serving, flow: &str) -> u64 {
    let path = format!("/api/v1/logs/0/export?format=json&flow={}", quoted(flow));
    let records = serving.get(&path).lines();
    let packets = |of: &Value| number(&of["packets"]) + number(&of["reverse_packets"]);
    records.iter().map(packets).sum()
}

#[test]
fn a_flow_has_the_same_packets_in_search_list_and_download() {
    for capture in CAPTURES {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let file = data_dir().join("formats/pcapplusplus").join(capture);
        ok(record(file, &log).args(["--mode", "log-all"]));
        for tier in ["blocks", "parts"] {
            if tier == "parts" {
                ok(strata().arg("compact").arg(&log));
            }
            let serving = Serving::start(&[&log], &[]);
            let (result, search) = serving.search("");
            let page = format!("/api/v1/searches/{search}/flows?limit=1000");
            let rows = serving.json(&page)["rows"].clone();
            let mut all = 0;
            for (place, row) in rows.as_array().unwrap().iter().enumerate() {
                let flow = row["id"].as_str().unwrap();
                let what = format!("{capture}, {tier}: {flow}");
                let packets = number(&row["packets"]) + number(&row["packets_back"]);
                all += packets;
                if place >= LISTED {
                    continue;
                }
                let (only, _) = serving.search(&format!("flow={}", quoted(flow)));
                assert_eq!(number(&only["packets"]), packets, "{what}: search");
                assert_eq!(only["flows"], 1, "{what}");
                assert_eq!(listed(&serving, flow, &what), packets, "{what}: list");
                let out = dir.path().join("flow.pcapng");
                assert_eq!(downloaded(&serving, flow, &out), packets, "{what}: pcapng");
                assert_eq!(recorded(&serving, flow), packets, "{what}: json");
            }
            assert_eq!(all, number(&result["packets"]), "{capture}, {tier}");
        }
    }
}

/// A filter of a command line sees neither behind tags nor the ports of later fragments.
#[test]
fn no_command_line_is_shown_that_selects_something_else() {
    for (capture, flow, there) in [
        ("VlanPackets.pcap", "1_10.118.10.1_0_10.118.10.2_0", false),
        (
            "frag_http_req.pcap",
            "6_172.16.133.54_64415_216.137.33.81_80",
            false,
        ),
        ("TcpPacketNoOptions.pcap", "", true),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let file = data_dir().join("formats/pcapplusplus").join(capture);
        ok(record(file, &log).args(["--mode", "log-all"]));
        let serving = Serving::start(&[&log], &[]);
        let (_, search) = serving.search("");
        let rows = serving.json(&format!("/api/v1/searches/{search}/flows"))["rows"].clone();
        let first = rows[0]["id"].as_str().unwrap();
        let flow = if flow.is_empty() { first } else { flow };
        let page = serving.json(&format!("/api/v1/logs/0/flows/{flow}/packets"));
        assert!(!page["packets"].as_array().unwrap().is_empty(), "{capture}");
        assert_eq!(page["command"].is_string(), there, "{capture}: {page:#}");
    }
}

#[test]
fn what_is_misspelt_is_not_answered_with_nothing_found() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let file = data_dir().join("formats/pcapplusplus/VlanPackets.pcap");
    ok(record(file, &log).args(["--mode", "log-all"]));
    let serving = Serving::start(&[&log], &[]);
    for path in [
        "search?granularity=Full",
        "series?granularity=Full",
        "export?format=pcapng&granularity=Full",
        "export?format=csv&class=Benign",
        "search?flow=6",
        "export?format=pcapng&flow=",
    ] {
        let answer = serving.send("GET", &format!("/api/v1/logs/0/{path}"), &[], b"");
        assert_eq!(answer.status, 400, "{path}");
        let field = answer.json()["field"].clone();
        assert!(
            path.contains(&format!("{}=", field.as_str().unwrap())),
            "{path}: {field}"
        );
    }
    for (path, known) in [
        ("logs/0/search?fitler=tcp", "filter, from, to"),
        ("logs/0/series?point=10", "points"),
        ("logs/0/reasons?limits=1", "limit"),
        ("logs/0/storage?max_age=1", "max_age_days, max_bytes"),
        ("logs/0/export?format=csv&flows=1", "flow"),
        ("searches/1/flows?sorted=first", "sort, order"),
        ("filter/check?filters=tcp", "filter"),
        ("logs?filter=tcp", "no parameters"),
    ] {
        let answer = serving.send("GET", &format!("/api/v1/{path}"), &[], b"");
        let error = answer.json()["error"].as_str().unwrap().to_owned();
        assert_eq!(answer.status, 400, "{path}: {error}");
        let (_, takes) = error.split_once("this path takes ").unwrap();
        assert!(takes.contains(known), "{path}: {error}");
    }
    for (query, said) in [
        ("class=Benign", "the classes here are"),
        ("reason=no-such", "no-such"),
    ] {
        let (result, _) = serving.search(query);
        let covered = &result["covered"];
        let remark = covered["remark"].as_str().unwrap_or_default();
        assert!(remark.contains(said), "{query}: {covered:#}");
    }
    let (result, _) = serving.search("granularity=full");
    assert!(number(&result["packets"]) > 0);
    assert_eq!(result["covered"]["remark"], Value::Null);
}
