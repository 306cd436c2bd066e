//! What an answer lacks is said: packets that a filter cannot test, and files of a compacted log that are missing.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use strata_testkit::data_dir;

use crate::common::program::{failed, ok, record, refused, strata};
use crate::serve::http::{Serving, quoted};

fn mix() -> PathBuf {
    data_dir().join("labelled/mix-test/trace.pcap")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The number before these words.
fn number_before(text: &str, words: &str) -> u64 {
    let line = text.lines().find(|line| line.contains(words));
    let before = line.and_then(|line| line.split_once(words));
    let (before, _) = before.unwrap_or_else(|| panic!("{words}: {text}"));
    let digits: String = before.rsplit(' ').next().unwrap().replace(',', "");
    digits.parse().unwrap()
}

/// How many packets of a capture match, as tcpdump counts.
pub(super) fn tcpdump_counts(trace: &Path, filter: &str) -> u64 {
    let mut command = Command::new("tcpdump");
    let output = command.args(["--count", "-nr"]).arg(trace).arg(filter);
    let text = ok(output);
    let count = text
        .lines()
        .find_map(|line| line.split(' ').next()?.parse().ok());
    count.unwrap_or_else(|| panic!("{text}"))
}

#[test]
fn packets_that_a_filter_of_payload_cannot_test_are_counted() {
    const PAYLOAD: &str = "udp[8] & 0x80 != 0";
    const UNTESTED: &str = " packets left out untested";
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    ok(&mut record(mix(), &log));
    let all = tcpdump_counts(&mix(), PAYLOAD);
    for is_compacted in [false, true] {
        if is_compacted {
            ok(strata().arg("compact").arg(&log));
        }
        let output = strata()
            .args(["top", "--json"])
            .arg(&log)
            .arg(PAYLOAD)
            .output()
            .unwrap();
        assert!(output.status.success());
        let top: Value = serde_json::from_slice(&output.stdout).unwrap();
        let tested = top["total"]["packets"].as_u64().unwrap();
        let untested = number_before(&said(&output), UNTESTED);
        assert!(
            tested < all && all <= tested + untested,
            "{all} {tested} {untested}"
        );
        assert_eq!(top["complete"], false);
        let out = ["out.pcapng", "out.csv"].map(|name| dir.path().join(name));
        let [packets, flows] = out.each_ref().map(|out| out.to_str().unwrap());
        for (name, more) in [
            ("read", &[][..]),
            ("grep", &["HTTP"]),
            ("export", &["-w", packets]),
            ("export", &["-w", flows]),
        ] {
            let mut command = strata();
            command.arg(name).arg(&log).args(more).arg(PAYLOAD);
            let output = command.output().unwrap();
            assert!(output.status.success(), "{}", said(&output));
            assert_eq!(number_before(&said(&output), UNTESTED), untested);
        }
        let mut export = strata();
        export.args(["export", "--json"]).arg(&log);
        let exported = ok(export.args(["-w", flows, PAYLOAD]));
        let exported: Value = serde_json::from_str(&exported).unwrap();
        assert_eq!(exported["complete"], false);
        let serving = Serving::start(&[&log], &[]);
        let search = |filter| serving.search(&format!("filter={}", quoted(filter))).0;
        let found = search(PAYLOAD);
        assert_eq!(found["packets"], tested);
        assert_eq!(found["covered"]["complete"], false);
        let why = found["covered"]["why"].as_str().unwrap();
        assert_eq!(number_before(why, UNTESTED), untested);
        // Headers were kept.
        assert_eq!(search("udp port 53")["covered"]["complete"], true);
        let output = strata()
            .arg("read")
            .arg(&log)
            .arg("udp port 53")
            .output()
            .unwrap();
        assert!(!said(&output).contains(UNTESTED), "{}", said(&output));
    }
    let whole = dir.path().join("whole");
    ok(record(mix(), &whole).args(["--mode", "log-all"]));
    let output = strata()
        .args(["top", "--json"])
        .arg(&whole)
        .arg(PAYLOAD)
        .output()
        .unwrap();
    let top: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(top["total"]["packets"].as_u64(), Some(all));
    assert_eq!(top["complete"], true);
}

/// The files below a directory whose path has these words.
/// Nothing is counted twice, and a misspelled word is not an empty answer without a word.
#[test]
fn what_cannot_be_meant_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let sqli = data_dir().join("labelled/cic2017-sqli/trace.pcap");
    ok(&mut record(&sqli, &log));
    let again = log.join("../log");
    for command in ["read", "top"] {
        let problem = refused(strata().arg(command).arg(&log).arg(&again));
        assert!(problem.contains("this log is named twice"), "{problem}");
    }
    let read = |option: &[&str]| strata().arg("read").arg(&log).args(option).output();
    let output = read(&["--class", "anomalus"]).unwrap();
    assert!(output.status.success() && output.stdout.is_empty());
    let problem = said(&output);
    assert!(
        problem
            .contains("no packet has the class anomalus: the classes here are anomalous, benign"),
        "{problem}"
    );
    let problem = said(&read(&["--reason", "luck"]).unwrap());
    assert!(
        problem.contains("no selected packet was kept for luck"),
        "{problem}"
    );
    let problem = failed(strata().arg("read").arg(&sqli));
    assert!(
        problem.contains("this is a file, not a log: `strata record -r "),
        "{problem}"
    );
    let span = ["--from", "13:05", "--to", "13:01"];
    let problem = failed(strata().arg("read").arg(&log).args(span));
    assert!(
        problem.contains("13:05:00.000000000") && problem.contains(", is not before --to, "),
        "{problem}"
    );
    ok(strata().arg("compact").arg(&log));
    let output = strata().arg("compact").arg(&log).output().unwrap();
    assert!(output.status.success() && said(&output).contains("nothing to compact"));
}

fn files(dir: &Path, words: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(path) = left.pop() {
        if path.is_dir() {
            let entries = std::fs::read_dir(&path).unwrap();
            left.extend(entries.map(|entry| entry.unwrap().path()));
        } else if words
            .iter()
            .all(|word| path.to_str().unwrap().contains(word))
        {
            found.push(path);
        }
    }
    found
}

#[test]
fn of_a_compacted_log_without_a_file_the_rest_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    ok(&mut record(mix(), &log));
    ok(strata().arg("compact").arg(&log));
    let shown = |output: &Output| String::from_utf8_lossy(&output.stdout).lines().count();
    let whole = strata()
        .args(["read", "--class", "benign"])
        .arg(&log)
        .output()
        .unwrap();
    assert!(
        whole.status.success() && shown(&whole) > 1_000,
        "{}",
        said(&whole)
    );
    let lost = files(&log.join("packets"), &["anomalous", ".parquet"]);
    assert!(!lost.is_empty());
    for file in &lost {
        std::fs::remove_file(file).unwrap();
    }
    for command in ["read", "info", "verify"] {
        let output = strata().arg(command).arg(&log).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{command}");
        for file in &lost {
            let told = said(&output) + &String::from_utf8_lossy(&output.stdout);
            assert!(told.contains(file.to_str().unwrap()), "{command}: {told}");
        }
    }
    // They are not counted as there, as if they could be read.
    let info = strata().args(["info", "--json"]).arg(&log).output();
    let info: Value = serde_json::from_slice(&info.unwrap().stdout).unwrap();
    let [there, lacking] = [
        &info[0]["in_log"]["packets"],
        &info[0]["unaccounted_packets"],
    ];
    let read = strata().arg("read").arg(&log).output().unwrap();
    assert_eq!(there.as_u64(), Some(shown(&read) as u64));
    assert_eq!(info[0]["compacted_packets"], *there);
    assert!(lacking.as_i64() > Some(0), "{lacking}");
    assert_eq!(
        there.as_i64().unwrap() + lacking.as_i64().unwrap(),
        info[0]["accounting"]["logged"][0].as_i64().unwrap()
    );
    assert_eq!(info[0]["complete"], false);
    // What is wanted is in the other files.
    let rest = strata()
        .args(["read", "--class", "benign"])
        .arg(&log)
        .output()
        .unwrap();
    assert!(
        shown(&rest) > 1_000 && shown(&rest) <= shown(&whole),
        "{}",
        said(&rest)
    );
    assert_eq!(
        rest.status.code(),
        Some(1),
        "packets of that class may be in the lost file"
    );
}
