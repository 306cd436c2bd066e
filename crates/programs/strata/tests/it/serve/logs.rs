//! Searches, packets and downloads, against tcpdump, tshark and other subcommands.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use serde_json::{Value, json};
use strata_testkit::{data_dir, workspace_root};

use super::http::{Serving, quoted};
use crate::common::program::{ok, record, strata};

/// A real capture of mixed traffic.
pub(crate) fn capture() -> PathBuf {
    workspace_root().join("demo/mix.pcap")
}

/// A log of it.
fn log(dir: &Path) -> PathBuf {
    let log = dir.join("log");
    ok(&mut record(capture(), &log));
    log
}

/// How many packets of the capture match, as tcpdump counts.
pub(crate) fn counted(filter: &str) -> u64 {
    counted_in(&capture(), filter)
}

/// As [`counted`], of any capture.
pub(crate) fn counted_in(capture: &Path, filter: &str) -> u64 {
    let output = Command::new("tcpdump")
        .args(["-n", "--count", "-r"])
        .arg(capture)
        .arg(filter)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    let count = said
        .lines()
        .find_map(|line| line.strip_suffix(" packets")?.parse().ok());
    count.unwrap_or_else(|| panic!("tcpdump does not count: {said}"))
}

pub(crate) fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

/// Sums of a series, which are rates.
fn total(series: &Value, of: &str) -> u64 {
    let step = series["step"].as_f64().unwrap();
    let all = series["series"].as_array().unwrap().iter();
    let points = all.flat_map(|one| one[of].as_array().unwrap());
    let sum: f64 = points.map(|point| point.as_f64().unwrap() * step).sum();
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count"
    )]
    let sum = sum.round() as u64;
    sum
}

/// The last ones ask for more than addresses, ports and protocol.
const FILTERS: [&str; 9] = [
    "",
    "tcp port 80",
    "udp",
    "icmp",
    "host 192.168.1.13 and not port 443",
    "arp",
    "tcp[13] & 2 != 0",
    "greater 500 and src host 192.168.1.13",
    "ether multicast or ip6",
];

#[test]
fn searches_find_what_tcpdump_finds_in_both_tiers() {
    let dir = tempfile::tempdir().unwrap();
    let log = log(dir.path());
    for tier in ["blocks", "parts"] {
        if tier == "parts" {
            ok(strata().arg("compact").arg(&log));
        }
        let serving = Serving::start(&[&log], &[]);
        let all = &serving.json("/api/v1/logs")[0];
        assert_eq!(number(&all["packets"]), counted(""), "{tier}");
        for filter in FILTERS {
            let (result, id) = serving.search(&format!("filter={}", quoted(filter)));
            let packets = number(&result["packets"]);
            assert_eq!(packets, counted(filter), "{tier}: '{filter}'");
            assert_eq!(
                total(&result["histogram"], "packets"),
                packets,
                "{tier}: '{filter}'"
            );
            let classes = result["classes"].as_array().unwrap().iter();
            assert_eq!(
                classes.map(|one| number(&one["packets"])).sum::<u64>(),
                packets
            );
            let path = format!("/api/v1/searches/{id}/flows?limit=1000&sort=packets&order=desc");
            let page = serving.json(&path);
            assert_eq!(page["total"], result["flows"], "{tier}: '{filter}'");
            let rows = page["rows"].as_array().unwrap();
            let of = |row: &Value| number(&row["packets"]) + number(&row["packets_back"]);
            assert!(rows.windows(2).all(|two| of(&two[0]) >= of(&two[1])));
            if number(&page["total"]) <= 1000 {
                assert_eq!(
                    rows.iter().map(of).sum::<u64>(),
                    packets,
                    "{tier}: '{filter}'"
                );
            }
        }
        let series = serving.json("/api/v1/logs/0/series?points=50");
        assert_eq!(total(&series, "packets"), counted(""), "{tier}");
        assert!(series["t"].as_array().unwrap().len() <= 50);
    }
}

/// What is shown of everything in a time comes from counts and summaries; `greater 0` takes every
/// packet too, but has each looked at.
#[test]
fn what_was_written_about_packets_is_what_their_packets_say() {
    // By the model there are too many reasons for so few packets to be counted by them.
    for (mode, counted) in [("default", false), ("log-all", true)] {
        written(mode, counted);
    }
}

fn written(mode: &str, counted: bool) {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let many = data_dir().join("labelled/mix-test/trace.pcap");
    ok(record(many, &log).args(["--mode", mode]));
    let span = strata_store::Log::open(&log).unwrap();
    let select = strata_store::Select::default();
    let blocks = span.blocks(&span.recordings()[0], &select);
    let times = blocks.map(|block| block.unwrap().header);
    let times: Vec<_> = times.map(|of| [of.ts_min_ns, of.ts_max_ns]).collect();
    let (first, last) = (times[0][0], times.iter().map(|of| of[1]).max().unwrap());
    let at = |share: u64| seconds(first + (last - first) / 100 * share);
    let ranges = [
        String::new(),
        // Everything, though a time is given.
        format!("&from={}&to={}", at(0), seconds(last + 1)),
        format!("&from={}", at(30)),
        format!("&to={}", at(70)),
        format!("&from={}&to={}", at(45), at(46)),
    ];
    for tier in ["blocks", "parts"] {
        if tier == "parts" {
            ok(strata().arg("compact").arg(&log));
            assert_eq!(has_counts(&log), counted, "{mode}");
        }
        let serving = Serving::start(&[&log], &[]);
        // What is not counted is read anyway, whichever the time.
        let step = if counted { 1 } else { 4 };
        for range in ranges.iter().step_by(step) {
            let few: &[u32] = if range.is_empty() { &[10] } else { &[] };
            for &points in few.iter().chain(&[200]) {
                let all = format!("points={points}{range}");
                let what = format!("{mode}, {tier}: {all}");
                let (told, told_id) = serving.search(&all);
                let (read, read_id) = serving.search(&format!("filter=greater%200&{all}"));
                assert!(number(&told["packets"]) > 0, "{what}");
                for of in [
                    "flows",
                    "packets",
                    "wire_bytes",
                    "kept_bytes",
                    "classes",
                    "reasons",
                    "reason_words",
                    "top",
                ] {
                    assert_eq!(told[of], read[of], "{what}: {of}");
                }
                // No reason is left out: the model has more of them than can be listed.
                for of in ["packets", "kept_bytes"] {
                    let all = told["reason_words"].as_array().unwrap().iter();
                    let sum: u64 = all.map(|one| number(&one[of])).sum();
                    assert_eq!(sum, number(&told[of]), "{what}: {of}");
                }
                assert_eq!(
                    series(&told["histogram"]),
                    series(&read["histogram"]),
                    "{what}"
                );
                if points == 200 {
                    let (told, read) = (flows(&serving, &told_id), flows(&serving, &read_id));
                    assert_eq!(told.len(), read.len(), "{what}");
                    for (told, read) in told.iter().zip(&read) {
                        assert_eq!(told, read, "{what}");
                    }
                }
                let path = format!("/api/v1/logs/0/series?{all}");
                assert_eq!(
                    series(&serving.json(&path)),
                    series(&read["histogram"]),
                    "{what}"
                );
                let events = serving.get(&format!("/api/v1/logs/0/search?{all}")).lines();
                let outline = events.iter().find(|one| one["event"] == "outline");
                assert_eq!(outline.is_some(), tier == "blocks", "{what}");
                for of in ["packets", "wire_bytes", "kept_bytes", "classes"] {
                    let outlined = outline.map(|one| &one["outline"][of]);
                    assert_eq!(outlined.unwrap_or(&read[of]), &read[of], "{what}: {of}");
                }
                if let Some(outline) = outline {
                    let outlined = series(&outline["outline"]["histogram"]);
                    assert_eq!(outlined, series(&read["histogram"]), "{what}");
                }
            }
        }
    }
}

/// A time as the API takes it.
fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// All flows of a result, by ID.
fn flows(serving: &Serving, search: &str) -> Vec<Value> {
    let mut all = Vec::new();
    loop {
        let offset = all.len();
        let path = format!("/api/v1/searches/{search}/flows?limit=1000&offset={offset}");
        let page = serving.json(&path);
        let rows = page["rows"].as_array().unwrap();
        all.extend(rows.iter().cloned());
        if rows.len() < 1000 {
            all.sort_by_key(|row| row["id"].to_string());
            return all;
        }
    }
}

/// Whether compacted packets are counted.
fn has_counts(log: &Path) -> bool {
    let opened = strata_store::Log::open(log).unwrap();
    let parts = opened.archive().parts.iter();
    let mut files = parts.map(|part| part.file(strata_store::FileKind::Packets).unwrap());
    files.any(|file| {
        let table = fs::File::open(log.join(&file.name)).unwrap();
        let table = SerializedFileReader::new(table).unwrap();
        let about = table.metadata().file_metadata().key_value_metadata();
        about.unwrap().iter().any(|one| one.key == "strata.counts")
    })
}

/// A series' times, and its parts in an order of their own.
fn series(of: &Value) -> (Value, Vec<Value>) {
    let mut parts = of["series"].as_array().unwrap().clone();
    parts.sort_by_key(|part| (part["class"].to_string(), part["granularity"].to_string()));
    (of["t"].clone(), parts)
}

#[test]
fn downloads_are_what_the_named_command_line_writes() {
    let dir = tempfile::tempdir().unwrap();
    let log = log(dir.path());
    ok(strata().arg("compact").arg(&log));
    let serving = Serving::start(&[&log], &[]);
    let (result, _) = serving.search("filter=tcp%20port%2080");
    for (format, file) in [
        ("pcapng", "out.pcapng"),
        ("csv", "flows.csv"),
        ("json", "flows.json"),
        ("flows-parquet", "flows.parquet"),
        ("packets-parquet", "packets.parquet"),
    ] {
        let path = format!("/api/v1/logs/0/export?filter=tcp%20port%2080&format={format}");
        let downloaded = serving.get(&path);
        assert!(downloaded.head.contains("content-disposition: attachment"));
        let line = result["command"][format.replace('-', "_")]
            .as_str()
            .unwrap();
        let line = line.replacen("strata", env!("CARGO_BIN_EXE_strata"), 1);
        ok(Command::new("sh")
            .args(["-c", &line])
            .current_dir(dir.path()));
        let written = fs::read(dir.path().join(file)).unwrap();
        assert!(!written.is_empty());
        assert_eq!(downloaded.body, written, "{format}");
    }
    let table = fs::File::open(dir.path().join("packets.parquet")).unwrap();
    let table = SerializedFileReader::new(table).unwrap();
    let rows = table.get_row_iter(None).unwrap().map(Result::unwrap);
    let wire = |row: Row| {
        let columns = row.into_columns();
        let wire = columns.into_iter().find(|(name, _)| name == "wire_bytes");
        let Some((_, Field::Long(bytes))) = wire else {
            panic!("no bytes: {wire:?}");
        };
        bytes.cast_unsigned()
    };
    let wire: Vec<u64> = rows.map(wire).collect();
    assert_eq!(wire.len() as u64, number(&result["packets"]));
    assert_eq!(wire.iter().sum::<u64>(), number(&result["wire_bytes"]));
    // Only packets of a class, as the facet says.
    let class = &result["classes"][0];
    let name = class["class"].as_str().unwrap();
    let path = format!("/api/v1/logs/0/export?filter=tcp%20port%2080&format=pcapng&class={name}");
    let file = dir.path().join("class.pcapng");
    fs::write(&file, serving.get(&path).body).unwrap();
    let of_class = result["classes"].as_array().unwrap().iter();
    let of_class = of_class.filter(|one| one["class"] == class["class"]);
    let wanted: u64 = of_class.map(|one| number(&one["packets"])).sum();
    let said = ok(Command::new("capinfos").args(["-c", "-M"]).arg(&file));
    assert!(said.contains(&format!(" {wanted}\n")), "{wanted}: {said}");
}

#[test]
fn a_download_that_damage_makes_incomplete_is_in_the_audit_log() {
    let dir = tempfile::tempdir().unwrap();
    let log = log(dir.path());
    let blocks = fs::read_dir(log.join("blocks")).unwrap();
    let largest = blocks
        .map(|file| file.unwrap().path())
        .max_by_key(|path| fs::metadata(path).unwrap().len())
        .unwrap();
    let mut bytes = fs::read(&largest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&largest, bytes).unwrap();
    let serving = Serving::start(&[&log], &[]);
    for format in ["pcapng", "csv"] {
        let path = format!("/api/v1/logs/0/export?format={format}");
        assert_eq!(serving.get(&path).status, 200);
        let audit = serving.json("/api/v1/audit");
        let event = &audit[0];
        let (what, why) = (event["what"].as_str(), event["why"].as_str());
        assert_eq!(what, Some("a download of log 0 is incomplete"), "{audit:#}");
        assert!(
            why.unwrap().contains("skipped 1 damaged place"),
            "{audit:#}"
        );
    }
}

#[test]
fn a_packet_is_the_captures_with_tsharks_fields_and_conditions_that_hold() {
    let dir = tempfile::tempdir().unwrap();
    let log = log(dir.path());
    let serving = Serving::start(&[&log], &[]);
    let (_, id) = serving.search("filter=tcp");
    let flows = serving.json(&format!(
        "/api/v1/searches/{id}/flows?sort=packets&order=desc&limit=5"
    ));
    let (mut looked, mut held, mut conditions) = (0, 0, 0);
    for flow in flows["rows"].as_array().unwrap() {
        let path = format!(
            "/api/v1/logs/0/flows/{}/packets?limit=20",
            flow["id"].as_str().unwrap()
        );
        let page = serving.json(&path);
        let packets = page["packets"].as_array().unwrap();
        let of = number(&flow["packets"]) + number(&flow["packets_back"]);
        assert_eq!(packets.len() as u64, of.min(20));
        if of > 20 {
            let next = page["next"].as_str().unwrap();
            let after = serving.json(&format!("{path}&cursor={next}"));
            assert_ne!(after["packets"][0]["id"], packets[0]["id"]);
            assert!(after["packets"][0]["at"].as_str() >= packets[19]["at"].as_str());
        }
        for packet in packets.iter().take(4) {
            let path = format!("/api/v1/logs/0/packets/{}", packet["id"].as_str().unwrap());
            let detail = serving.json(&path);
            let bytes = detail["bytes"].as_str().unwrap();
            assert_eq!(bytes.len() as u64 / 2, number(&packet["kept_bytes"]));
            assert!(
                captured_at(packet["at"].as_str().unwrap())
                    .iter()
                    .any(|whole| whole.starts_with(bytes))
            );
            assert_eq!(
                detail["dissection"]["by"], "tshark",
                "{}",
                detail["dissection"]
            );
            let layers = detail["dissection"]["layers"].as_array().unwrap();
            let ip = layers.iter().find(|layer| layer["name"] == "ip").unwrap();
            assert_eq!(ip["start"], 14);
            looked += 1;
            for tree in detail["why"]["trees"].as_array().unwrap() {
                for condition in tree["conditions"].as_array().unwrap() {
                    assert_ne!(condition["what"], "", "{condition}");
                    conditions += 1;
                    held += u64::from(condition["holds"] == json!(true));
                }
            }
        }
    }
    assert!(looked >= 10, "{looked}");
    // The log has every packet of these flows, so the values are those that the recorder had.
    assert!(
        conditions > 0 && held == conditions,
        "{held} of {conditions} hold"
    );
    // Every look at payload is on record.
    let path = format!("/api/v1/searches/{id}/flows?sort=kept_bytes&order=desc&limit=1");
    let flow = serving.json(&path)["rows"][0]["id"].clone();
    let path = format!(
        "/api/v1/logs/0/flows/{}/packets?limit=1000",
        flow.as_str().unwrap()
    );
    let packets = serving.json(&path);
    let packets = packets["packets"].as_array().unwrap().iter();
    let largest = packets
        .max_by_key(|packet| number(&packet["kept_bytes"]))
        .unwrap();
    serving.json(&format!(
        "/api/v1/logs/0/packets/{}",
        largest["id"].as_str().unwrap()
    ));
    let audit = serving.json("/api/v1/audit");
    assert!(
        audit
            .as_array()
            .unwrap()
            .iter()
            .any(|event| event["what"].as_str().unwrap().contains("payload"))
    );
}

/// Packets of the capture that arrived then, in hexadecimal, as tshark reads them.
fn captured_at(at: &str) -> Vec<String> {
    let output = Command::new("tshark")
        .args(["-n", "-T", "json", "-x", "-r"])
        .arg(capture())
        .args([
            "-Y",
            &format!(
                "frame.time == \"{}\"",
                at.trim_end_matches('Z').replace('T', " ")
            ),
        ])
        .env("TZ", "UTC")
        .output()
        .unwrap();
    let read: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{at}: {}", String::from_utf8_lossy(&output.stderr)));
    let packets = read.as_array().unwrap().iter();
    packets
        .map(|packet| {
            packet["_source"]["layers"]["frame_raw"][0]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect()
}

#[test]
fn reasons_are_those_of_info() {
    let dir = tempfile::tempdir().unwrap();
    let log = log(dir.path());
    let serving = Serving::start(&[&log], &[]);
    let served = serving.json("/api/v1/logs/0/reasons?limit=200");
    let info = ok(strata().args(["info", "--json", "--reasons"]).arg(&log));
    let info: Value = serde_json::from_str(&info).unwrap();
    let known = info[0]["reasons"].as_array().unwrap();
    assert_eq!(number(&served["total"]["reasons"]), known.len() as u64);
    let sum = |all: &[Value], of: &str| all.iter().map(|one| number(&one[of])).sum::<u64>();
    assert_eq!(number(&served["total"]["kept_bytes"]), sum(known, "bytes"));
    let kinds = served["kinds"].as_array().unwrap();
    assert_eq!(number(&served["kinds_in_all"]), kinds.len() as u64);
    for (of, all) in [
        ("reasons", known.len() as u64),
        ("kept_bytes", sum(known, "bytes")),
    ] {
        assert_eq!(sum(kinds, of), all, "{of}");
    }
    assert!(kinds.len() * 2 < known.len(), "{} kinds", kinds.len());
    for kind in kinds {
        let mut reason = kind["largest"].clone();
        for of in ["class", "granularity"] {
            reason[of] = kind[of].clone();
        }
        let same = known.iter().find(|one| {
            ["reason", "class", "granularity"]
                .iter()
                .all(|of| one[*of] == reason[*of])
        });
        let same = same.unwrap_or_else(|| panic!("{reason} is not in info"));
        assert_eq!(same["packets"], reason["packets"]);
        assert_eq!(same["bytes"], reason["kept_bytes"]);
    }
}

#[test]
fn damaged_empty_encrypted_and_missing_logs_are_said_to_be_so() {
    let dir = tempfile::tempdir().unwrap();
    let whole = log(dir.path());
    let damaged = dir.path().join("damaged");
    let encrypted = dir.path().join("encrypted");
    let empty = dir.path().join("empty");
    for copy in [&damaged, &encrypted, &empty] {
        ok(Command::new("cp").arg("-r").arg(&whole).arg(copy));
    }
    let file = fs::read_dir(damaged.join("blocks")).unwrap().flatten();
    let file = file
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|e| e == "strata"));
    let file = file.expect("a block file");
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 64].fill(0xff);
    fs::write(&file, bytes).unwrap();
    let key = dir.path().join("key");
    let public = ok(strata().args(["key", "new"]).arg(&key));
    ok(strata()
        .arg("compact")
        .arg(&encrypted)
        .args(["--encrypt-to", public.trim()]));
    let serving = Serving::start(&[&damaged, &encrypted, &empty], &[]);
    fs::remove_file(empty.join("manifest.json")).unwrap();
    let logs = serving.json("/api/v1/logs");
    assert_eq!(logs[2]["state"], "unreadable");
    assert!(
        logs[2]["problem"]
            .as_str()
            .unwrap()
            .contains("manifest.json")
    );
    assert_eq!(number(&logs[1]["encrypted_packets"]), counted(""));
    let covered = |id: usize| {
        let lines = serving.get(&format!("/api/v1/logs/{id}/search")).lines();
        lines.last().unwrap()["result"]["covered"].clone()
    };
    let of_damaged = covered(0);
    assert!(number(&of_damaged["damaged"]) > 0, "{of_damaged}");
    let of_encrypted = covered(1);
    assert_eq!(of_encrypted["complete"], false);
    assert!(
        of_encrypted["why"].as_str().unwrap().contains("--key"),
        "{of_encrypted}"
    );
    let lines = serving.get("/api/v1/logs/2/search").lines();
    assert_eq!(lines.last().unwrap()["event"], "error");
    let verified = serving.get("/api/v1/logs/0/verify").lines();
    let last = verified.last().unwrap();
    assert!(!last["damaged"].as_array().unwrap().is_empty(), "{last}");
    // With the key, everything is there.
    let serving = Serving::start(&[&encrypted], &["--key", key.to_str().unwrap()]);
    let (result, _) = serving.search("");
    assert_eq!(number(&result["packets"]), counted(""));
    assert_eq!(result["covered"]["complete"], true, "{}", result["covered"]);
}

#[test]
fn storage_adds_up_and_what_goes_next_is_what_prune_deletes() {
    let dir = tempfile::tempdir().unwrap();
    let log = log(dir.path());
    ok(strata().arg("compact").arg(&log));
    let serving = Serving::start(&[&log], &[]);
    let storage = serving.json("/api/v1/logs/0/storage?max_age_days=1");
    let hours = storage["hours"].as_array().unwrap();
    assert_eq!(
        hours
            .iter()
            .map(|hour| number(&hour["packets"]))
            .sum::<u64>(),
        counted("")
    );
    let said = ok(strata()
        .arg("prune")
        .arg(&log)
        .args(["--keep", "1d", "--dry-run"]));
    let next = storage["next"]["pieces"].as_array().unwrap();
    assert!(!next.is_empty() && !said.is_empty(), "{said}");
    let line = storage["next"]["command"].as_str().unwrap();
    let line = line.replacen("strata", env!("CARGO_BIN_EXE_strata"), 1);
    assert_eq!(ok(Command::new("sh").args(["-c", &line])), said);
}

#[test]
fn marple_is_asked_as_on_the_command_line() {
    let dir = tempfile::tempdir().unwrap();
    let log = log(dir.path());
    let serving = Serving::start(&[&log], &[]);
    let asked = json!({"language": "marple", "log": "0", "text": "packet-counts-per-source"});
    let answer = serving.change("POST", "/api/v1/ask", &asked);
    assert_eq!(
        answer.status,
        200,
        "{}",
        String::from_utf8_lossy(&answer.body)
    );
    let answer = answer.json();
    let csv = ok(strata()
        .arg("ask")
        .arg(&log)
        .args(["packet-counts-per-source", "-F", "csv"]));
    assert_eq!(
        answer["rows"].as_array().unwrap().len() + 1,
        csv.lines().count()
    );
    let wrong = json!({"language": "marple", "log": "0", "text": "R = nonsense"});
    let refused = serving.change("POST", "/api/v1/ask", &wrong);
    assert_eq!(
        refused.status,
        400,
        "{}",
        String::from_utf8_lossy(&refused.body)
    );
}
