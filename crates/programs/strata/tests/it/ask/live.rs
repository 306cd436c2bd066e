//! Asking of interfaces and of running recordings, in a network of the test's own.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use strata_testkit::sim::Rng;
use strata_testkit::{Namespace, may_use_kernel};

use super::{answerable, labelled, rows, says};
use crate::common::disk::never_full;
use crate::common::naive::{FILTER, dissected, naive};
use crate::common::program::{ok, strata};
use crate::common::signal::signal;

const NEAR: &str = "st-ask-a";
pub(crate) const FAR: &str = "st-ask-b";

/// Packets of the capture that is replayed.
const PACKETS: u64 = 94;

fn trace() -> PathBuf {
    labelled("cic2017-sqli")
}

pub(crate) fn namespace(test: &str) -> Option<Namespace> {
    may_use_kernel("asking of an interface").then(|| {
        let namespace = Namespace::new(&format!("st-ask-{test}"));
        namespace.pair(NEAR, FAR);
        namespace
    })
}

pub(crate) fn within(namespace: &Namespace) -> Command {
    let mut command = Command::new("ip");
    let program = env!("CARGO_BIN_EXE_strata");
    command.args(["netns", "exec", namespace.name(), program]);
    command
}

pub(crate) fn replay(namespace: &Namespace, rest: &[&str]) {
    let mut command = within(namespace);
    command
        .args(["replay", "-i", NEAR, "-r"])
        .arg(trace())
        .args(rest);
    ok(&mut command);
}

pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(60), "not {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A process that does not outlive its test.
pub(crate) struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self(command.stderr(Stdio::piped()).spawn().unwrap())
    }

    /// Its output, once it has ended with this status.
    pub(crate) fn ended(&mut self, status: i32) -> String {
        let mut said = String::new();
        let mut stderr = self.0.stderr.take().unwrap();
        std::io::Read::read_to_string(&mut stderr, &mut said).unwrap();
        assert_eq!(self.0.wait().unwrap().code(), Some(status), "{said}");
        said
    }
}

/// A recording of the packets that queries are compared on, with its socket.
struct Recording {
    running: Running,
    socket: PathBuf,
    log: PathBuf,
}

impl Recording {
    fn start(namespace: &Namespace, dir: &Path) -> Self {
        let (socket, log) = (dir.join("socket"), dir.join("log"));
        let mut command = within(namespace);
        command.args([
            "record", "-i", FAR, "-B", "32MiB", "--mode", "log-all", "-o",
        ]);
        command.arg(&log).arg("--config").arg(never_full(dir));
        command.arg("--socket").arg(&socket).arg(FILTER);
        let running = Running::start(command.stdout(Stdio::null()));
        let recording = Self {
            running,
            socket,
            log,
        };
        until("recording", || {
            let interfaces = recording.status()["interfaces"].clone();
            interfaces.as_array().is_some_and(|all| !all.is_empty())
        });
        recording
    }

    fn status(&self) -> Value {
        let mut command = strata();
        let output = command
            .args(["status", "--json", "--socket"])
            .arg(&self.socket)
            .output();
        serde_json::from_slice(&output.unwrap().stdout).unwrap_or(Value::Null)
    }

    /// How many ask; `None` if it does not answer.
    fn attached(&self) -> Option<u64> {
        self.status()["vectors"]["attached"].as_u64()
    }

    fn seen(&self) -> u64 {
        let status = self.status();
        let ends = status["packets"].as_array().unwrap();
        ends.iter().filter_map(|end| end["packets"].as_u64()).sum()
    }

    /// What is installed, as the list says.
    fn installed(&self) -> Vec<Value> {
        let mut command = strata();
        command.args(["ask", "--installed", "--json", "--socket"]);
        let listed = ok(command.arg(&self.socket));
        serde_json::from_str(&listed).unwrap()
    }

    fn ask(&self, rest: &[&str]) -> Command {
        let mut command = strata();
        command
            .args(["ask", "--socket"])
            .arg(&self.socket)
            .args(rest);
        command.stdout(Stdio::null());
        command
    }
}

#[test]
fn a_recording_answers_as_its_log_does_while_others_come_and_go() {
    let Some(namespace) = namespace("s") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut recording = Recording::start(&namespace, dir.path());
    // One that asks everything, and one that asks one thing.
    let pattern = dir.path().join("{}.csv");
    let mut all = recording.ask(&["-w", pattern.to_str().unwrap()]);
    for name in answerable() {
        all.args(["-q", &name]);
    }
    let mut all = Running::start(&mut all);
    let alone = dir.path().join("alone.csv");
    let mut one = recording.ask(&["tcp-timeouts", "-w", alone.to_str().unwrap()]);
    let mut one = Running::start(&mut one);
    until("attached", || recording.attached() == Some(2));
    let mut rng = Rng::new(18);
    let names = answerable();
    let mut guests: Vec<Running> = Vec::new();
    for _ in 0..12 {
        for _ in 0..2 {
            let at = usize::try_from(rng.below(6)).unwrap();
            if at < guests.len() {
                let guest = guests.swap_remove(at);
                // Killed, or asked to end.
                if rng.below(2) == 0 {
                    signal(&guest.0, "INT");
                }
            } else if guests.len() < 5 {
                let name = &names[usize::try_from(rng.below(names.len() as u64)).unwrap()];
                guests.push(Running::start(&mut recording.ask(&[name])));
            }
        }
        replay(&namespace, &["--pps", "2000"]);
    }
    drop(guests);
    until("everything is seen", || recording.seen() >= 12 * PACKETS);
    until("the guests are gone", || recording.attached() == Some(2));
    signal(&recording.running.0, "INT");
    recording.running.ended(0);
    for asking in [&mut all, &mut one] {
        let said = asking.ended(0);
        assert!(!said.contains("lost"), "{said}");
        assert!(
            said.contains("packets without an IP header are left out"),
            "{said}"
        );
    }
    // The log is the witness, and tshark's view of its export another.
    let export = dir.path().join("export.pcapng");
    ok(strata()
        .arg("export")
        .arg(&recording.log)
        .arg("-w")
        .arg(&export));
    let packets = dissected(&export);
    assert!(packets.len() > 1000, "{}", packets.len());
    for name in names {
        let live = fs::read_to_string(dir.path().join(format!("{name}.csv"))).unwrap();
        assert_eq!(rows(&live), naive(&name, &packets), "{name}");
        let mut of_log = strata();
        of_log
            .arg("ask")
            .arg(&recording.log)
            .args([&name, "-F", "csv"]);
        assert_eq!(live, ok(&mut of_log), "{name}");
        if name == "tcp-timeouts" {
            assert_eq!(fs::read_to_string(&alone).unwrap(), live);
        }
    }
}

/// `strata top` of a running recording counts what tshark counts in its log afterwards.
#[test]
fn the_largest_of_a_running_recording_are_those_of_its_log() {
    let Some(namespace) = namespace("top") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut recording = Recording::start(&namespace, dir.path());
    let answer = dir.path().join("top.json");
    let mut command = strata();
    command.args([
        "top", "--by", "source", "--of", "wire", "--json", "-n", "2", "--socket",
    ]);
    command.arg(&recording.socket);
    command.stdout(fs::File::create(&answer).unwrap());
    let mut top = Running::start(&mut command);
    until("attached", || recording.attached() == Some(1));
    for _ in 0..3 {
        replay(&namespace, &["--pps", "2000"]);
    }
    until("everything is seen", || recording.seen() >= 3 * PACKETS);
    signal(&recording.running.0, "INT");
    recording.running.ended(0);
    top.ended(0);
    let export = dir.path().join("export.pcapng");
    let mut exported = strata();
    exported.arg("export").arg(&recording.log).arg("-w");
    ok(exported.arg(&export));
    let mut tshark = Command::new("tshark");
    let tshark = tshark.arg("-r").arg(&export).args(["-T", "fields"]);
    let printed = ok(tshark.args(["-e", "ip.src", "-e", "frame.len", "-E", "occurrence=f"]));
    let mut sums: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for line in printed.lines() {
        let (source, len) = line.split_once('\t').unwrap();
        if source.is_empty() {
            continue;
        }
        let sum = sums.entry(source.to_owned()).or_default();
        *sum = (sum.0 + 1, sum.1 + len.parse::<u64>().unwrap());
    }
    let mut expected: Vec<(u64, u64, String)> = sums
        .into_iter()
        .map(|(source, (packets, bytes))| (bytes, packets, source))
        .collect();
    expected.sort_unstable_by(|a, b| b.cmp(a));
    expected.truncate(2);
    let text = fs::read_to_string(&answer).unwrap();
    let found = text.lines().map(|line| {
        let row: Value = serde_json::from_str(line).unwrap();
        let number = |name: &str| row[name].as_u64().unwrap();
        let source = row["srcip"].as_str().unwrap().to_owned();
        (number("wire_bytes"), number("packets"), source)
    });
    assert_eq!(found.collect::<Vec<_>>(), expected, "{text}");
}

/// Adds and removes queries at random, some of them cut at one group, and those who are attached.
fn come_and_go(recording: &Recording, rng: &mut Rng, guests: &mut Vec<(String, Running)>) {
    let names = answerable();
    for number in 0..3 {
        let at = usize::try_from(rng.below(6)).unwrap();
        if at < guests.len() {
            let (guest, attached) = guests.swap_remove(at);
            ok(&mut recording.ask(&["--remove", &guest]));
            drop(attached);
        } else if guests.len() < 5 {
            let guest = format!("guest-{number}-{}", rng.below(1 << 40));
            let name = &names[usize::try_from(rng.below(names.len() as u64)).unwrap()];
            let tight = ["--install", &guest, name, "--groups-max", "1"];
            ok(recording.ask(&tight).stdout(Stdio::piped()));
            guests.push((guest, Running::start(&mut recording.ask(&[name]))));
        }
    }
}

#[test]
fn installed_queries_see_every_packet_once_while_clients_come_and_go() {
    let Some(namespace) = namespace("q") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut recording = Recording::start(&namespace, dir.path());
    let names = answerable();
    for name in &names {
        ok(&mut recording.ask(&["--install", name, name]));
    }
    // It tells nothing on standard output, and what went wrong otherwise.
    let said = says(&mut recording.ask(&["--install", &names[0], &names[0]]), 1);
    assert!(said.contains("is installed already"), "{said}");
    let mut rng = Rng::new(181);
    let mut guests = Vec::new();
    for _ in 0..12 {
        come_and_go(&recording, &mut rng, &mut guests);
        replay(&namespace, &["--pps", "2000"]);
    }
    until("asked of all", || {
        let all = recording.installed();
        let mut ours = all.iter().filter(|query| query["query"].is_string());
        ours.by_ref()
            .take(names.len())
            .all(|query| query["packets"] == 12 * PACKETS)
    });
    let mut answers = Vec::new();
    for name in &names {
        let command = &mut recording.ask(&["--installed", name, "-F", "csv"]);
        answers.push(ok(command.stdout(Stdio::piped())));
    }
    assert_eq!(
        recording.status()["vectors"]["installed"],
        names.len() + guests.len()
    );
    // What was cut says so, wherever it is looked at.
    ok(&mut recording.ask(&["--install", "tight", &names[0], "--groups-max", "1"]));
    replay(&namespace, &["--pps", "2000"]);
    until("cut", || {
        recording.installed().iter().any(|query| {
            query["name"] == "tight"
                && query["incomplete"]
                    .as_str()
                    .is_some_and(|why| why.contains("1 groups"))
        })
    });
    let said = says(&mut recording.ask(&["tight"]), 1);
    assert!(said.contains("the most that its limits allow"), "{said}");
    ok(&mut recording.ask(&["--remove", "tight"]));
    let said = says(&mut recording.ask(&["--installed", "tight"]), 1);
    assert!(said.contains("no query with the name 'tight'"), "{said}");
    drop(guests);
    signal(&recording.running.0, "INT");
    recording.running.ended(0);
    let export = dir.path().join("export.pcapng");
    ok(strata()
        .arg("export")
        .arg(&recording.log)
        .arg("-w")
        .arg(&export));
    let packets = dissected(&export);
    let packets = &packets[..packets.len() * 12 / 13];
    for (name, answer) in names.iter().zip(&answers) {
        assert_eq!(rows(answer), naive(name, packets), "{name}");
    }
    // Nothing of it is there in the next recording.
    let next = tempfile::tempdir().unwrap();
    let recording = Recording::start(&namespace, next.path());
    assert_eq!(recording.installed(), Vec::<Value>::new());
}

#[test]
fn who_does_not_read_harms_only_itself() {
    let Some(namespace) = namespace("n") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut recording = Recording::start(&namespace, dir.path());
    let mut silent = UnixStream::connect(&recording.socket).unwrap();
    let request = "GET /api/v1/vectors?columns=2047 HTTP/1.1\r\nhost: strata\r\n\r\n";
    silent.write_all(request.as_bytes()).unwrap();
    until("attached", || recording.attached() == Some(1));
    // One that is killed.
    let killed = Running::start(&mut recording.ask(&["packet-counts-per-source"]));
    until("attached", || recording.attached() == Some(2));
    drop(killed);
    until("gone", || recording.attached() == Some(1));
    until("losing", || {
        replay(&namespace, &["--topspeed", "--loop", "300"]);
        let lost = recording.status()["vectors"]["datagrams_lost"].as_u64();
        lost.is_some_and(|lost| lost > 0)
    });
    // It records, and answers others.
    let mut counts = recording.ask(&["packet-counts-per-source", "-c", "1"]);
    let mut counts = Running::start(&mut counts);
    until("answered", || {
        replay(&namespace, &["--pps", "5000"]);
        counts.0.try_wait().unwrap().is_some()
    });
    // The end of the recording does not wait for who does not read.
    let started = Instant::now();
    signal(&recording.running.0, "INT");
    recording.running.ended(0);
    assert!(started.elapsed() < Duration::from_secs(60));
    ok(strata().arg("verify").arg(&recording.log));
    drop(silent);
}

#[test]
fn what_a_recording_cannot_be_asked() {
    let Some(namespace) = namespace("r") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let recording = Recording::start(&namespace, dir.path());
    let said = says(&mut recording.ask(&["tcp-timeouts", "tcp port 80"]), 2);
    assert!(
        said.contains("write the condition into the query"),
        "{said}"
    );
    let said = says(&mut recording.ask(&["ewma-latencies"]), 2);
    assert!(said.contains("qsize is not available here"), "{said}");
    let attached: Vec<Running> = (0..8)
        .map(|_| Running::start(&mut recording.ask(&["tcp-timeouts"])))
        .collect();
    until("attached", || recording.attached() == Some(8));
    let said = says(&mut recording.ask(&["tcp-timeouts"]), 1);
    assert!(said.contains("8 clients are attached"), "{said}");
    drop(attached);
    until("gone", || recording.attached() == Some(0));
    let nobody = dir.path().join("nobody");
    let mut command = strata();
    let said = says(
        command
            .args(["ask", "tcp-timeouts", "--socket"])
            .arg(nobody),
        1,
    );
    assert!(said.contains("is this the control socket"), "{said}");
}

#[test]
fn an_interface_is_asked_until_enough_or_interrupted() {
    let Some(namespace) = namespace("i") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let answer = dir.path().join("answer.csv");
    let ask = |rest: &[&str]| {
        let mut command = within(&namespace);
        command
            .args(["ask", "-i", FAR, "packet-counts-per-source", "-w"])
            .arg(&answer)
            .args(rest);
        Running::start(&mut command)
    };
    let is_open = || {
        let sockets = namespace.enter(|| fs::read_to_string("/proc/thread-self/net/packet"));
        sockets.unwrap().lines().count() > 1
    };
    let mut asking = ask(&["-c", "100", FILTER]);
    until("answered", || {
        replay(&namespace, &["--pps", "5000"]);
        asking.0.try_wait().unwrap().is_some()
    });
    asking.ended(0);
    let text = fs::read_to_string(&answer).unwrap();
    let counts = rows(&text);
    let counts = counts.iter().map(|row| row.split_once(',').unwrap());
    let packets: u64 = counts.map(|(_, count)| count.parse::<u64>().unwrap()).sum();
    assert_eq!(packets, 100, "{text}");
    fs::remove_file(&answer).unwrap();
    let mut asking = ask(&[FILTER]);
    until("capturing", is_open);
    signal(&asking.0, "INT");
    asking.ended(0);
    assert!(
        fs::read_to_string(&answer)
            .unwrap()
            .starts_with("srcip,counter")
    );
}
