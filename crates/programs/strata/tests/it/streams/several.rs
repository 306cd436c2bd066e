//! `strata stream tail` of several streams: the same records as of each alone, in order of time.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::common::program::{failed, ok, refused, strata};
use crate::common::signal::signal;

struct Hosts {
    dir: PathBuf,
    _folder: TempDir,
}

impl Hosts {
    fn new(names: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        let hosts = Self {
            dir: folder.path().join("streams"),
            _folder: folder,
        };
        for name in names {
            hosts.create(name);
        }
        hosts
    }

    fn create(&self, name: &str) {
        ok(&mut self.command("create", &[name]));
    }

    fn command(&self, verb: &str, options: &[&str]) -> Command {
        let mut command = strata();
        command.args(["stream", verb]).arg(&self.dir).args(options);
        command
    }

    fn append(&self, name: &str, lines: &str) {
        let mut command = self.command("append", &[name]);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(lines.as_bytes()).unwrap();
        drop(stdin);
        assert!(child.wait().unwrap().success());
    }

    fn json(&self, options: &[&str]) -> Vec<Value> {
        let text = ok(self.command("tail", options).arg("--json"));
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.collect()
    }

    fn texts(&self, options: &[&str]) -> Vec<String> {
        let texts = self.json(options).into_iter();
        texts
            .map(|record| record["text"].as_str().unwrap().to_owned())
            .collect()
    }

    /// The records of each stream alone, sorted by time.
    fn each(&self, names: &[&str]) -> Vec<Value> {
        let mut all = Vec::new();
        for name in names {
            for mut record in self.json(&[name, "--cursor", "0.0"]) {
                record["stream"] = (*name).into();
                all.push(record);
            }
        }
        all.sort_by_key(|record| record["time_ns"].as_u64());
        all
    }
}

#[test]
fn records_of_several_streams_come_in_order_of_time_with_their_stream() {
    let hosts = Hosts::new(&["host1", "host2", "host3", "other"]);
    for round in 0..3 {
        for name in ["host2", "host1", "other"] {
            let lines: String = (0..400)
                .map(|of| format!("{name} {round} {of}\n"))
                .collect();
            hosts.append(name, &lines);
        }
    }
    let expected = hosts.each(&["host1", "host2", "host3"]);
    assert_eq!(expected.len(), 2_400);
    assert!(hosts.json(&["host*", "--cursor", "0.0"]) == expected);
    // The last ones of all, not of each.
    for last in [1, 10, 401, 2_400, 5_000] {
        let records = hosts.json(&["host*", "-n", &last.to_string()]);
        let from = expected.len().saturating_sub(last);
        assert!(records == expected[from..], "{last}");
    }
    let since = expected[1_000]["time_ns"].as_u64().unwrap();
    let since = format!("{}.{:09}", since / 1_000_000_000, since % 1_000_000_000);
    let later = hosts.json(&["host?", "--since", &since]);
    assert!(
        later.len() >= 1_400 && expected.ends_with(&later),
        "{}",
        later.len()
    );
}

#[test]
fn one_name_keeps_a_cursor_for_each_of_several_streams() {
    let hosts = Hosts::new(&["host1", "host2"]);
    hosts.append("host1", "a\nb\nc\n");
    hosts.append("host2", "d\ne\n");
    let kept = ["host*", "--cursor", "@all"];
    let first = hosts.texts(&["host*", "--cursor", "@all", "-n", "2"]);
    assert_eq!(first, ["a", "b"]);
    assert_eq!(hosts.texts(&kept), ["c", "d", "e"]);
    assert!(hosts.texts(&kept).is_empty());
    hosts.append("host2", "f\n");
    // A stream that came later is read from its first record on.
    hosts.create("host3");
    hosts.append("host3", "g\n");
    hosts.append("host1", "h\n");
    assert_eq!(hosts.texts(&kept), ["f", "g", "h"]);
    // It is the cursor that each stream has alone.
    hosts.append("host3", "i\n");
    assert_eq!(hosts.texts(&["host3", "--cursor", "@all"]), ["i"]);
    let listed = ok(hosts.command("list", &[]).arg("--json"));
    for line in listed.lines() {
        let stream: Value = serde_json::from_str(line).unwrap();
        assert_eq!(stream["consumers"][0]["name"], "all", "{stream}");
        assert_eq!(stream["consumers"][0]["lag"], 0, "{stream}");
    }
}

#[test]
fn a_stream_that_is_created_while_others_are_followed_is_followed_too() {
    let hosts = Hosts::new(&["host1"]);
    hosts.append("host1", "old\n");
    let mut follow = hosts.command("tail", &["host*", "--follow", "-n", "1"]);
    let mut child = follow.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || lines.next().unwrap().unwrap();
    assert_eq!(next(), "old");
    hosts.create("host2");
    hosts.append("host2", "of a new stream\n");
    assert_eq!(next(), "of a new stream");
    hosts.append("host1", "of the first\n");
    assert_eq!(next(), "of the first");
    signal(&child, "INT");
    assert!(child.wait().unwrap().success());
}

#[test]
fn what_is_of_one_stream_is_refused_of_several() {
    let hosts = Hosts::new(&["host1"]);
    let said = refused(&mut hosts.command("tail", &["host*", "--cursor", "17.40960"]));
    assert!(said.contains("is a position in one stream"), "{said}");
    let said = failed(&mut hosts.command("tail", &["web*"]));
    assert!(said.contains("no stream matches web*"), "{said}");
    let said = refused(&mut hosts.command("append", &["host*"]));
    assert!(said.contains("a stream's name has"), "{said}");
}
