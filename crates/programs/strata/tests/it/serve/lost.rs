//! What is said of packets that an answer or a download cannot have: those that never were in a file, those that are
//! encrypted, those of a file that cannot be read, and those that retention deleted.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use serde_json::Value;

use super::http::Serving;
use super::logs::{capture, number};
use crate::common::program::{failed, ok, record, strata};
use crate::log::killed::killed;

const FORMATS: [&str; 5] = ["pcapng", "csv", "json", "flows-parquet", "packets-parquet"];

#[test]
fn answers_say_what_a_killed_recording_lost() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let lost = killed(&log);
    let serving = Serving::start(&[&log], &[]);
    let recording = serving.json("/api/v1/logs")[0]["recordings"][0].clone();
    assert_eq!(recording["state"], "interrupted");
    assert_eq!(number(&recording["lost_packets"]), lost, "{recording:#}");
    let warnings = recording["warnings"].to_string();
    assert!(warnings.contains("are known to be lost"), "{recording:#}");
    let (result, search) = serving.search("");
    let flows = serving.json(&format!("/api/v1/searches/{search}/flows"));
    let flow = flows["rows"][0]["id"].as_str().unwrap();
    let series = serving.json("/api/v1/logs/0/series");
    let packets = serving.json(&format!("/api/v1/logs/0/flows/{flow}/packets"));
    let reasons = serving.json("/api/v1/logs/0/reasons");
    for answer in [&result, &series, &packets, &reasons] {
        let covered = &answer["covered"];
        assert_eq!(covered["complete"], false, "{covered:#}");
        let why = covered["why"].as_str().unwrap();
        assert!(why.contains("before they were in a file"), "{why}");
        assert!(why.contains("ended abruptly"), "{why}");
    }
    serving.get("/api/v1/logs/0/export?format=csv");
    let told = serving.until("/api/v1/audit", "the incomplete download", |audit| {
        audit[0]["what"] == "a download of log 0 is incomplete"
    });
    let why = told[0]["why"].as_str().unwrap();
    assert!(why.contains("before they were in a file"), "{why}");
}

/// A part that is encrypted, and block files that are not: the reason is that of `strata export`.
#[test]
fn a_download_that_needs_a_key_is_refused_before_its_first_byte() {
    let dir = tempfile::tempdir().unwrap();
    let (log, key) = (dir.path().join("log"), dir.path().join("key"));
    ok(&mut record(capture(), &log));
    let public = ok(strata().args(["key", "new"]).arg(&key));
    let mut compact = strata();
    compact.arg("compact").arg(&log);
    ok(compact.args(["--encrypt-to", public.trim()]));
    ok(&mut record(capture(), &log));
    let mut export = strata();
    export.arg("export").arg(&log).args(["-F", "csv", "-w"]);
    let said = failed(export.arg(dir.path().join("flows.csv")));
    let reason = format!(
        "it is encrypted to {}: name the file with the secret key",
        public.trim()
    );
    assert!(said.contains(&reason), "{said}");
    let serving = Serving::start(&[&log], &[]);
    for format in FORMATS {
        let path = format!("/api/v1/logs/0/export?format={format}");
        let answer = serving.send("GET", &path, &[], b"");
        assert_eq!(answer.status, 400, "{format}");
        let error = answer.json()["error"].as_str().unwrap().to_owned();
        assert!(error.contains(&reason), "{format}: {error}");
    }
    let serving = Serving::start(&[&log], &["--key", key.to_str().unwrap()]);
    for format in FORMATS {
        serving.get(&format!("/api/v1/logs/0/export?format={format}"));
    }
}

/// The connection is cut, and the audit log has the reason.
#[test]
fn a_download_that_cannot_be_completed_is_in_the_audit_log() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    ok(&mut record(capture(), &log));
    ok(strata().arg("compact").arg(&log));
    let mut places: Vec<PathBuf> = vec![log.join("packets")];
    while let Some(place) = places.pop() {
        for entry in fs::read_dir(place).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                places.push(path);
            } else {
                // It is there, and cannot be opened: a link to itself.
                fs::remove_file(&path).unwrap();
                symlink(path.file_name().unwrap(), &path).unwrap();
            }
        }
    }
    let serving = Serving::start(&[&log], &[]);
    for format in ["csv", "json", "flows-parquet", "packets-parquet"] {
        let before = serving.json("/api/v1/audit").as_array().unwrap().len();
        let path = format!("/api/v1/logs/0/export?format={format}");
        // The answer of a connection that is cut may have no head.
        let mut stream = std::net::TcpStream::connect(&serving.address).unwrap();
        let request = format!("GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", serving.address);
        std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
        let told = serving.until("/api/v1/audit", "the incomplete download", |audit| {
            audit.as_array().unwrap().len() > before
        });
        assert_eq!(
            told[0]["what"], "a download of log 0 is incomplete",
            "{format}"
        );
        let why = told[0]["why"].as_str().unwrap();
        assert!(why.contains("packets") && why.contains("links"), "{why}");
    }
}

/// Not a loss, so the answer is complete; but a packet that is not found may have been there.
#[test]
fn answers_about_a_time_before_the_oldest_packet_say_what_was_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    ok(&mut record(capture(), &log));
    ok(strata().arg("compact").arg(&log));
    let serving = Serving::start(&[&log], &[]);
    let (before, search) = serving.search("");
    assert_eq!(before["covered"]["remark"], Value::Null);
    let flows = serving.json(&format!("/api/v1/searches/{search}/flows?limit=1000"));
    let mut prune = strata();
    prune.arg("prune").arg(&log).args(["--keep", "1d", "--yes"]);
    ok(prune.args(["--keep-class", "anomalous:36500d"]));
    let (after, _) = serving.search("");
    let deleted = number(&before["packets"]) - number(&after["packets"]);
    assert!(deleted > 0 && number(&after["packets"]) > 0, "{after:#}");
    let covered = &after["covered"];
    assert_eq!(covered["complete"], true, "{covered:#}");
    let first = covered["from"].as_str().unwrap();
    let said = format!(
        "{} packets of the log deleted by age: the oldest remaining packet arrived at {first}",
        strata_wire::grouped(deleted)
    );
    assert_eq!(covered["remark"], said.as_str());
    // A flow of which nothing is left.
    let gone = flows["rows"].as_array().unwrap().iter().find_map(|flow| {
        let id = flow["id"].as_str().unwrap();
        let page = serving.json(&format!("/api/v1/logs/0/flows/{id}/packets"));
        let is_gone = page["packets"].as_array().unwrap().is_empty();
        is_gone.then(|| page["covered"].clone())
    });
    let gone = gone.expect("a flow was deleted");
    assert_eq!(
        (&gone["complete"], &gone["remark"]),
        (&true.into(), &said.as_str().into())
    );
    // The oldest packet left is of a class other than those that were deleted.
    let (rest, _) = serving.search(&format!("from={first}"));
    assert_eq!(rest["packets"], after["packets"]);
    let remark = rest["covered"]["remark"].as_str().unwrap();
    assert!(
        remark.contains("no packet of the retention class benign remains"),
        "{remark}"
    );
}

#[test]
fn times_that_no_packet_has_are_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    ok(&mut record(capture(), &log));
    let serving = Serving::start(&[&log], &[]);
    let beyond = "is out of range: write a time from 1970-01-01T00:00:00.000000000Z to 2554-07-21T23:34:33.709551615Z";
    for (query, said) in [
        ("from=9999-12-31T00:00:00Z", beyond),
        ("to=1969-12-31T23:59:59Z", beyond),
        ("from=18446744074", beyond),
        ("from=5&to=5", "the end of the time is its start"),
        ("from=6&to=5", "the end of the time is before its start"),
        ("from=yesterday", "is not a time"),
    ] {
        let path = format!("/api/v1/logs/0/search?{query}");
        let answer = serving.send("GET", &path, &[], b"");
        let error = answer.json()["error"].as_str().unwrap().to_owned();
        assert_eq!(answer.status, 400, "{query}: {error}");
        assert!(error.contains(said), "{query}: {error}");
    }
}
