//! Producers at a server's stream, while the server is killed and they are: each record is there once, in the order of its
//! producer.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use strata_testkit::{Disk, may_use_kernel};
use tempfile::TempDir;

use crate::common::program::{ok, strata};
use crate::common::serving::serving;
use crate::common::signal::signal;

const PATIENCE: Duration = Duration::from_secs(60);

/// A server that is killed and started again, at the same address.
pub(super) struct Server {
    dir: PathBuf,
    address: SocketAddr,
    child: Child,
}

impl Server {
    pub(super) fn start(dir: &Path, listen: &str) -> Self {
        let mut command = strata();
        command.args(["stream", "serve"]).arg(dir);
        command.args(["--listen", listen, "--create", "1GB"]);
        let (child, _, address) = serving(command.stdout(Stdio::null()));
        Self {
            dir: dir.to_path_buf(),
            address,
            child,
        }
    }

    pub(super) fn place(&self) -> String {
        format!("{}/events", self.address)
    }

    /// Ends it by SIGKILL.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(super) fn restart(&mut self) {
        self.kill();
        *self = Self::start(&self.dir, &self.address.to_string());
    }

    /// The records of each producer, as the stream has them; each says its number.
    pub(super) fn records(&self) -> BTreeMap<String, Vec<String>> {
        let mut command = strata();
        command.args(["stream", "tail", &self.place(), "--cursor", "0.0", "--json"]);
        let mut records: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for line in ok(&mut command).lines() {
            let record: Value = serde_json::from_str(line).unwrap();
            let producer = record["producer"].as_str().unwrap();
            let of_it = records.entry(producer.to_owned()).or_default();
            of_it.push(record["text"].as_str().unwrap().to_owned());
        }
        records
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) fn producer(place: &str, name: &str) -> Command {
    let mut command = strata();
    command.args(["stream", "append", place, "--name", name]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// Writes lines with these numbers.
pub(super) fn feed(stdin: &mut ChildStdin, name: &str, lines: Range<u32>) {
    let text: String = lines.map(|number| format!("{name} {number}\n")).collect();
    stdin.write_all(text.as_bytes()).unwrap();
}

pub(super) fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "not {what}");
    }
}

pub(super) fn expected(name: &str, lines: u32) -> Vec<String> {
    (0..lines)
        .map(|number| format!("{name} {number}"))
        .collect()
}

#[test]
fn each_record_of_several_producers_is_there_once_although_the_server_is_killed() {
    const LINES: u32 = 3000;
    let folder = TempDir::new().unwrap();
    let dir = folder.path().join("streams");
    ok(strata().args(["stream", "create"]).arg(&dir).arg("other"));
    // The stream is created by the first producer.
    let mut server = Server::start(&dir, "127.0.0.1:0");
    let place = server.place();
    let names = ["web1", "web2", "db", "proxy"];
    let mut producers = names.map(|name| {
        let mut child = producer(&place, name).spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        (child, stdin)
    });
    let is_made = || ok(strata().args(["stream", "list"]).arg(&dir)).contains("events");
    until("the stream is made", is_made);
    for begin in (0..LINES).step_by(750) {
        for ((_, stdin), name) in producers.iter_mut().zip(names) {
            feed(stdin, name, begin..begin + 750);
        }
        // Some of these lines are in the stream, others on their way, and most perhaps not yet sent.
        let is_there = || {
            let records = server.records();
            records.values().any(|of_it| of_it.len() > begin as usize)
        };
        until("in the stream", is_there);
        if begin < 3 * 750 {
            server.restart();
        }
    }
    for (child, stdin) in producers {
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{said}");
        assert!(said.starts_with("3,000 records appended; "), "{said}");
    }
    let records = server.records();
    assert_eq!(records.len(), names.len());
    for name in names {
        assert!(records[name] == expected(name, LINES), "{name}");
    }
}

#[test]
fn a_spool_outlasts_its_producer_and_an_outage_of_the_server() {
    let folder = TempDir::new().unwrap();
    let (dir, spool) = (folder.path().join("streams"), folder.path().join("spool"));
    ok(strata().args(["stream", "create"]).arg(&dir).arg("events"));
    let mut server = Server::start(&dir, "127.0.0.1:0");
    let append = |server: &Server| {
        let mut command = producer(&server.place(), "probe");
        command.arg("--spool").arg(&spool).stderr(Stdio::piped());
        command
    };
    let spooled = || {
        let mut tail = strata();
        tail.args(["stream", "tail"]).arg(&spool);
        let output = tail.args(["events", "--cursor", "0.0"]).output().unwrap();
        let lines = String::from_utf8(output.stdout).unwrap();
        lines.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    // Killed while it sends.
    for round in 0..3 {
        let before = spooled().len();
        let mut child = append(&server).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        feed(&mut stdin, &format!("round{round}"), 0..5000);
        until("in the spool", || spooled().len() > before);
        child.kill().unwrap();
        child.wait().unwrap();
        if round == 1 {
            server.kill();
        }
    }
    // Without a server, the records stay here.
    let mut child = append(&server).spawn().unwrap();
    feed(&mut child.stdin.take().unwrap(), "absent", 0..100);
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{errors}");
    assert!(errors.contains("with this spool sends them"), "{errors}");
    server.restart();
    let mut child = append(&server).spawn().unwrap();
    feed(&mut child.stdin.take().unwrap(), "last", 0..10);
    assert!(child.wait().unwrap().success());
    let spooled = spooled();
    assert!(spooled.len() > 110 && spooled.last().unwrap() == "last 9");
    until("all sent", || {
        server.records()["probe"].len() >= spooled.len()
    });
    assert!(server.records()["probe"] == spooled);
}

/// The next attempt to connect may be due only seconds after the end of the input.
#[test]
fn at_the_end_a_server_that_is_back_gets_the_records_of_a_spool() {
    let folder = TempDir::new().unwrap();
    let (dir, spool) = (folder.path().join("streams"), folder.path().join("spool"));
    ok(strata().args(["stream", "create"]).arg(&dir).arg("events"));
    let mut server = Server::start(&dir, "127.0.0.1:0");
    server.kill();
    let mut command = producer(&server.place(), "probe");
    let command = command.arg("--spool").arg(&spool).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    feed(&mut stdin, "probe", 0..100);
    // By then, several attempts have failed, and the next one is due seconds later.
    std::thread::sleep(Duration::from_secs(4));
    server.restart();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let (said, errors) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    assert!(output.status.success(), "{errors}");
    assert!(
        said.starts_with("100 records appended; "),
        "{said} {errors}"
    );
    assert!(server.records()["probe"] == expected("probe", 100));
}

#[test]
fn records_that_a_server_never_confirmed_are_counted() {
    let folder = TempDir::new().unwrap();
    let dir = folder.path().join("streams");
    ok(strata().args(["stream", "create"]).arg(&dir).arg("events"));
    let mut server = Server::start(&dir, "127.0.0.1:0");
    let mut command = producer(&server.place(), "web1");
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    // It is connected once a record of it is there.
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"web1 first\n").unwrap();
    until("in the stream", || !server.records().is_empty());
    server.kill();
    feed(&mut stdin, "web1", 0..7);
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    // The first one perhaps.
    let counted = ["7 records not confirmed", "8 records not confirmed"];
    assert!(counted.iter().any(|said| errors.contains(said)), "{errors}");
    assert!(errors.contains("refused"), "{errors}");
}

/// It waits for a server that does not answer, so that its end takes longer.
#[test]
fn a_second_signal_ends_a_command_only_after_a_second_and_says_so() {
    let folder = TempDir::new().unwrap();
    let dir = folder.path().join("streams");
    ok(strata().args(["stream", "create"]).arg(&dir).arg("events"));
    let server = Server::start(&dir, "127.0.0.1:0");
    let mut command = producer(&server.place(), "web1");
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"web1 first\n").unwrap();
    until("in the stream", || !server.records().is_empty());
    signal(&server.child, "STOP");
    feed(&mut stdin, "web1", 0..7);
    let first = Instant::now();
    signal(&child, "INT");
    while child.try_wait().unwrap().is_none() {
        assert!(first.elapsed() < PATIENCE, "it goes on");
        signal(&child, "INT");
    }
    assert!(first.elapsed() >= Duration::from_secs(1));
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.signal(), Some(2), "{errors}");
    let line = "strata: interrupted twice: ended before everything was finished\n";
    assert!(errors.ends_with(line), "{errors}");
}

#[test]
fn a_full_disk_of_the_server_is_the_reason_and_the_count_is_a_lower_bound() {
    const LINES: usize = 40_000;
    assert!(may_use_kernel("a small disk"));
    let folder = TempDir::new().unwrap();
    let disk = Disk::new(folder.path(), "24M");
    let dir = disk.path().join("streams");
    ok(strata().args(["stream", "create"]).arg(&dir).arg("events"));
    let server = Server::start(&dir, "127.0.0.1:0");
    let mut command = producer(&server.place(), "web1");
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let line = "x".repeat(1000) + "\n";
    stdin.write_all(line.repeat(LINES).as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    let last = errors.lines().last().unwrap();
    assert!(last.contains("No space left on device"), "{errors}");
    assert!(last.contains("may be in the stream"), "{errors}");
    let said = String::from_utf8(output.stdout).unwrap().replace(',', "");
    let least = said.strip_prefix("at least ").unwrap();
    let least: usize = least.split(' ').next().unwrap().parse().unwrap();
    let there = ok(strata()
        .args(["stream", "tail"])
        .arg(&dir)
        .args(["events", "--cursor", "0.0"]));
    let there = there.lines().count();
    assert!((5_000..LINES).contains(&there), "{there}");
    assert!(least <= there, "{said}, {there} are there");
    let unconfirmed = format!("{} records not confirmed", LINES - least);
    assert!(last.replace(',', "").contains(&unconfirmed), "{last}");
}
