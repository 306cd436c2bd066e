//! `strata stream tail` of several streams, here and at a server: the same records as of each alone, in order of time.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::common::program::{failed, ok, refused, strata};
use crate::common::serving::serving;
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

#[test]
fn streams_that_are_too_many_to_be_read_together_are_a_failure() {
    let names: Vec<_> = (0..65).map(|of| format!("host{of:02}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let hosts = Hosts::new(&names);
    hosts.append("host63", "a\n");
    hosts.append("host64", "b\n");
    let output = hosts.command("tail", &["host*"]).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        (output.status.code(), &output.stdout[..]),
        (Some(1), &b"a\n"[..]),
        "{errors}"
    );
    assert!(
        errors.contains("host64 and later ones are not read"),
        "{errors}"
    );
    assert!(errors.contains("were not read: at most 64"), "{errors}");
    ok(&mut hosts.command("tail", &["host6*"]));
}

/// A server of the streams, and how its streams are named.
struct Served {
    child: Child,
    errors: BufReader<std::process::ChildStderr>,
    address: std::net::SocketAddr,
}

impl Served {
    fn start(hosts: &Hosts) -> Self {
        let mut command = hosts.command("serve", &["--listen", "127.0.0.1:0"]);
        let (child, errors, address) = serving(command.stdout(Stdio::null()));
        Self {
            child,
            errors,
            address,
        }
    }

    fn tail(&self, options: &[&str]) -> Command {
        let (pattern, options) = options.split_first().unwrap();
        let mut command = strata();
        command.args(["stream", "tail", &format!("{}/{pattern}", self.address)]);
        command.args(options);
        command
    }

    fn json(&self, options: &[&str]) -> Vec<Value> {
        let text = ok(self.tail(options).arg("--json"));
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.collect()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn several_streams_of_a_server_are_read_as_those_of_its_directory() {
    let hosts = Hosts::new(&["host1", "host2", "other"]);
    for round in 0..3 {
        for name in ["host2", "host1", "other"] {
            let lines: String = (0..700)
                .map(|of| format!("{name} {round} {of}\n"))
                .collect();
            hosts.append(name, &lines);
        }
    }
    let served = Served::start(&hosts);
    for options in [
        &["host*", "--cursor", "0.0"][..],
        &["host*"],
        &["*", "-n", "2500"],
        &["host?", "--since", "0"],
        &["host*", "--cursor", "0.0", "-n", "3"],
    ] {
        let here = hosts.json(options);
        assert!(!here.is_empty(), "{options:?}");
        assert!(served.json(options) == here, "{options:?}");
    }
    let said = failed(&mut served.tail(&["web*"]));
    assert!(said.contains("no stream matches web* here"), "{said}");
    let said = refused(&mut served.tail(&["host*", "--cursor", "17.40960"]));
    assert!(said.contains("is a position in one stream"), "{said}");
    let said = failed(&mut served.tail(&["host*", "-n", "20000"]));
    assert!(said.contains("at most the last 10000"), "{said}");
}

#[test]
fn a_server_keeps_one_cursor_for_each_of_several_streams() {
    let hosts = Hosts::new(&["host1", "host2"]);
    let served = Served::start(&hosts);
    hosts.append("host1", "a\nb\nc\n");
    hosts.append("host2", "d\ne\n");
    let kept = ["host*", "--cursor", "@all"];
    let first = ok(&mut served.tail(&["host*", "--cursor", "@all", "-n", "4"]));
    assert_eq!(first, "a\nb\nc\nd\n");
    assert_eq!(ok(&mut served.tail(&kept)), "e\n");
    assert_eq!(ok(&mut served.tail(&kept)), "");
    // It is the cursor that each stream has alone, also here.
    hosts.append("host1", "f\n");
    assert_eq!(hosts.texts(&["host1", "--cursor", "@all"]), ["f"]);
    hosts.append("host2", "g\n");
    assert_eq!(ok(&mut served.tail(&["host2", "--cursor", "@all"])), "g\n");
    // Streams that come while they are followed are read from their first record on.
    let mut follow = served.tail(&["host*", "--cursor", "@all", "--follow"]);
    let mut child = follow.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || lines.next().unwrap().unwrap();
    hosts.append("host2", "h\n");
    assert_eq!(next(), "h");
    hosts.create("host3");
    hosts.append("host3", "i\n");
    assert_eq!(next(), "i");
    signal(&child, "INT");
    assert!(child.wait().unwrap().success());
    assert_eq!(ok(&mut served.tail(&kept)), "");
    let listed = ok(hosts.command("list", &[]).arg("--json"));
    assert_eq!(listed.lines().count(), 3);
    for line in listed.lines() {
        let stream: Value = serde_json::from_str(line).unwrap();
        assert_eq!(stream["consumers"][0]["name"], "all", "{stream}");
        assert_eq!(stream["consumers"][0]["lag"], 0, "{stream}");
    }
}

#[test]
fn a_stream_that_a_server_cannot_read_is_named_and_the_others_are_read() {
    let hosts = Hosts::new(&["host1", "host2"]);
    hosts.append("host1", "a\n");
    let file = hosts.dir.join("streams/host2.stream");
    std::fs::write(&file, vec![0; 4096]).unwrap();
    let mut served = Served::start(&hosts);
    let output = served.tail(&["host*", "--cursor", "0.0"]).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        (output.status.code(), &output.stdout[..]),
        (Some(1), &b"a\n"[..])
    );
    assert!(errors.contains("host2: "), "{errors}");
    let path = hosts.dir.display().to_string();
    assert!(
        !errors.contains(&path),
        "no path of the server's machine: {errors}"
    );
    // The server's own messages have all of it.
    let mut said = String::new();
    while !said.contains("stream host2: ") {
        said.clear();
        assert!(served.errors.read_line(&mut said).unwrap() > 0);
    }
    assert!(said.contains(&path), "{said}");
    // Also if it is the only one.
    let said = failed(&mut served.tail(&["host2*"]));
    assert!(said.contains("host2: the stream cannot be used"), "{said}");
    assert!(!said.contains("no stream matches"), "{said}");
}
