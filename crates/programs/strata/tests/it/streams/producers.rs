//! Producers at a server's stream, while the server is killed and they are: each record is there once, in the order of its
//! producer.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::common::program::{ok, strata};
use crate::common::serving::serving;

const PATIENCE: Duration = Duration::from_secs(60);

/// A server that is killed and started again, at the same address.
struct Server {
    dir: PathBuf,
    address: SocketAddr,
    child: Child,
}

impl Server {
    fn start(dir: &Path, listen: &str) -> Self {
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

    fn place(&self) -> String {
        format!("{}/events", self.address)
    }

    /// Ends it by SIGKILL.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn restart(&mut self) {
        self.kill();
        *self = Self::start(&self.dir, &self.address.to_string());
    }

    /// The records of each producer, as the stream has them; each says its number.
    fn records(&self) -> BTreeMap<String, Vec<String>> {
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

fn producer(place: &str, name: &str) -> Command {
    let mut command = strata();
    command.args(["stream", "append", place, "--name", name]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// Writes lines, with a pause after each 50.
fn feed(child: &mut Child, name: &str, lines: u32, pause: Duration) {
    let mut stdin = child.stdin.take().unwrap();
    for number in 0..lines {
        // It may have been killed.
        if writeln!(stdin, "{name} {number}").is_err() {
            return;
        }
        if number % 50 == 0 {
            thread::sleep(pause);
        }
    }
}

fn expected(name: &str, lines: u32) -> Vec<String> {
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
    let producers = names.map(|name| {
        let place = place.clone();
        thread::spawn(move || {
            let mut child = producer(&place, name).spawn().unwrap();
            feed(&mut child, name, LINES, Duration::from_millis(60));
            let output = child.wait_with_output().unwrap();
            (output.status.success(), String::from_utf8(output.stdout))
        })
    });
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(1200));
        server.restart();
    }
    for producer in producers {
        let (succeeded, said) = producer.join().unwrap();
        let said = said.unwrap();
        assert!(succeeded, "{said}");
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
    // Killed while it sends.
    for round in 0..3 {
        let mut child = append(&server).spawn().unwrap();
        let pid = child.id();
        let killer = thread::spawn(move || {
            thread::sleep(Duration::from_millis(900));
            let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
        });
        feed(
            &mut child,
            &format!("round{round}"),
            100_000,
            Duration::from_millis(20),
        );
        killer.join().unwrap();
        child.wait().unwrap();
        if round == 1 {
            server.kill();
        }
    }
    // Without a server, the records stay here.
    let mut child = append(&server).spawn().unwrap();
    feed(&mut child, "absent", 100, Duration::ZERO);
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{errors}");
    assert!(errors.contains("with this spool sends them"), "{errors}");
    server.restart();
    let mut child = append(&server).spawn().unwrap();
    feed(&mut child, "last", 10, Duration::ZERO);
    assert!(child.wait().unwrap().success());
    let mut spooled = strata();
    spooled.args(["stream", "tail"]).arg(&spool);
    let spooled = ok(spooled.args(["events", "--cursor", "0.0"]));
    let spooled: Vec<&str> = spooled.lines().collect();
    assert!(spooled.len() > 110 && spooled.last() == Some(&"last 9"));
    let start = Instant::now();
    while server.records()["probe"].len() < spooled.len() {
        assert!(start.elapsed() < PATIENCE);
    }
    assert!(server.records()["probe"] == spooled);
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
    let start = Instant::now();
    while server.records().is_empty() {
        assert!(start.elapsed() < PATIENCE);
    }
    server.kill();
    let more: String = (0..7).map(|number| format!("web1 {number}\n")).collect();
    stdin.write_all(more.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    // The first one perhaps.
    let counted = ["7 records not confirmed", "8 records not confirmed"];
    assert!(counted.iter().any(|said| errors.contains(said)), "{errors}");
}
