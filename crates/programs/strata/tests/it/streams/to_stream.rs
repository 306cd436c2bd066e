//! `--to-stream`: what Strata finds, in streams, where one consumer reads all of it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use strata_testkit::data_dir;
use tempfile::TempDir;

use crate::common::listening::listening;
use crate::common::program::{failed, ok, record, strata};
use crate::common::signal::signal;

/// What should be so is so by then, even while other tests use the CPU.
const PATIENCE: Duration = Duration::from_secs(60);

struct Streams {
    folder: TempDir,
}

impl Streams {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let streams = Self { folder };
        ok(strata()
            .args(["stream", "create"])
            .arg(streams.dir())
            .arg("s"));
        streams
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn dir(&self) -> PathBuf {
        self.at("streams")
    }

    /// As `--to-stream` has it.
    fn place(&self) -> PathBuf {
        self.dir().join("s")
    }

    fn tail(&self) -> Command {
        let mut command = strata();
        command.args(["stream", "tail"]).arg(self.dir());
        command.args(["s", "--cursor", "0.0"]);
        command
    }

    fn json(&self) -> Vec<Value> {
        let text = ok(self.tail().arg("--json"));
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

fn trace() -> PathBuf {
    data_dir().join("labelled/mix-test/trace.pcap")
}

/// What an agent counts of vectors on standard input.
fn agent(vectors: &[u8]) -> Value {
    let mut command = strata();
    command.args(["gpv", "agent", "-r", "-", "--json"]);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(vectors).unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn vectors_of_a_capture_come_back_from_a_stream() {
    let streams = Streams::new();
    let file = streams.at("vectors.gpv");
    let mut run = strata();
    run.args(["gpv", "run", "--json", "-r"]).arg(trace());
    run.arg("-w")
        .arg(&file)
        .arg("--to-stream")
        .arg(streams.place());
    let said: Value = serde_json::from_str(&ok(&mut run)).unwrap();
    let to = said["destinations"].as_array().unwrap();
    assert_eq!(to[0]["datagrams"], to[1]["datagrams"]);
    assert_eq!(to[1]["datagrams_not_sent"], 0);

    let raw = streams.tail().arg("--raw").output().unwrap();
    assert!(raw.status.success());
    let (from_file, from_stream) = (agent(&fs::read(&file).unwrap()), agent(&raw.stdout));
    // What an agent puts together depends on its key.
    for count in ["datagrams", "vectors", "packets", "lost", "damaged"] {
        assert_eq!(from_file[count], from_stream[count], "{count}");
    }
    assert_eq!(from_stream["packets"], said["packets"]);

    let records = streams.json();
    let vectors = records.iter().flat_map(|record| {
        assert_eq!(record["decoded"]["kind"], "vectors");
        record["decoded"]["vectors"].as_array().unwrap()
    });
    let packets: u64 = vectors
        .map(|vector| vector["packets"].as_u64().unwrap())
        .sum();
    assert_eq!(packets, said["packets_in_vectors"]);
}

#[test]
fn flows_of_a_log_come_back_from_a_stream() {
    let streams = Streams::new();
    let log = streams.at("log");
    ok(&mut record(trace(), &log));
    let export = |options: &[&str]| {
        let mut command = strata();
        command.arg("export").arg(&log).args(options);
        command
    };
    let lines = ok(&mut export(&["-F", "json", "-w", "-"]));
    ok(export(&["--to-stream"]).arg(streams.place()));
    let there = ok(&mut streams.tail());
    assert!(there.lines().count() > 10);
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&there), sorted(&lines));
    // Packets are no records, and one output is one output.
    for options in [&["-F", "pcapng"][..], &["-F", "csv"], &["-w", "-"]] {
        let mut command = export(options);
        let output = command
            .arg("--to-stream")
            .arg(streams.place())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{options:?}");
    }
}

/// Packets of an exported capture: their times and bytes.
fn exported(log: &Path, file: &Path) -> Vec<(u64, Vec<u8>)> {
    ok(strata()
        .arg("export")
        .arg(log)
        .args(["-F", "pcap", "-w"])
        .arg(file));
    let mut capture = pcap::Capture::from_file_with_precision(file, pcap::Precision::Nano).unwrap();
    let mut packets = Vec::new();
    while let Ok(packet) = capture.next_packet() {
        let time = packet.header.ts;
        let [seconds, ns] = [time.tv_sec, time.tv_usec].map(|part| u64::try_from(part).unwrap());
        packets.push((seconds * 1_000_000_000 + ns, packet.data.to_vec()));
    }
    packets.sort();
    packets
}

#[test]
fn packets_of_a_relay_come_back_from_a_stream() {
    const HOST: &str = "127.91.3.1";
    let streams = Streams::new();
    let log = streams.at("log");
    let mut command = strata();
    command.args(["relay", "--listen", HOST, "--block-size", "1MiB", "-o"]);
    command
        .arg(&log)
        .arg("--memory-socket")
        .arg(streams.at("memory"));
    command.arg("--to-stream").arg(streams.place());
    let (mut relay, mut errors) = listening(command.stdout(Stdio::piped()));
    ok(strata()
        .args(["switch", "--relay", HOST, "-r"])
        .arg(trace()));
    signal(&relay, "INT");
    let (mut said, mut warned) = (String::new(), String::new());
    relay
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    errors.read_to_string(&mut warned).unwrap();
    assert!(relay.wait().unwrap().success(), "{warned}");

    let expected = exported(&log, &streams.at("export.pcap"));
    assert!(expected.len() > 1000);
    let framed = streams.tail().arg("--framed").output().unwrap();
    assert!(framed.status.success());
    // docs/formats/stream.md
    let (mut rest, mut packets) = (framed.stdout.as_slice(), Vec::new());
    let (mut classes, mut seqs) = (BTreeSet::new(), BTreeSet::new());
    while let Some((len, after)) = rest.split_first_chunk::<4>() {
        let len = u32::from_le_bytes(*len) as usize;
        let (record, after) = after.split_at(len);
        assert_eq!(&record[..5], b"SPKT\x01");
        assert_eq!(record[14..16], [1, 0], "Ethernet");
        let word = |at: usize| u64::from_le_bytes(*record[at..].first_chunk().unwrap());
        assert!(seqs.insert(word(16)), "{} comes twice", word(16));
        classes.insert(record[6]);
        packets.push((word(24), record[48..].to_vec()));
        rest = after;
    }
    packets.sort();
    assert!(
        packets == expected,
        "{} and {} packets",
        packets.len(),
        expected.len()
    );
    assert!(classes.len() > 1 && !classes.contains(&255), "{classes:?}");
    let count = said.lines().last().unwrap().replace([' ', ','], "");
    assert_eq!(count, format!("tothestream:{}records0lost", packets.len()));

    let decoded = streams.json();
    let decoded = decoded.iter().map(|record| {
        assert_eq!(record["decoded"]["kind"], "packet");
        record["decoded"]["seq"].as_u64().unwrap()
    });
    assert_eq!(decoded.collect::<BTreeSet<_>>(), seqs);
}

#[test]
fn places_that_are_no_streams_are_refused() {
    let streams = Streams::new();
    let run = |place: &str| {
        let mut command = strata();
        command
            .args(["gpv", "run", "-r"])
            .arg(trace())
            .args(["--to-stream", place]);
        command
    };
    let said = failed(&mut run(&format!("{}/nobody", streams.dir().display())));
    assert!(said.contains("strata stream create"), "{said}");
    let said = failed(&mut run(&format!(
        "{}/x/y",
        streams.folder.path().display()
    )));
    assert!(said.contains("not a directory of streams"), "{said}");
    for (place, problem) in [
        ("s", "write DIR/NAME"),
        ("streams/", "a stream's name must"),
    ] {
        let output = run(place).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(2) && errors.contains(problem),
            "{errors}"
        );
    }
    // Somebody appends already.
    let mut appender = strata();
    appender
        .args(["stream", "append"])
        .arg(streams.dir())
        .arg("s");
    let mut appender = appender
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    appender
        .stdin
        .as_mut()
        .unwrap()
        .write_all(b"first\n")
        .unwrap();
    let start = Instant::now();
    while ok(&mut streams.tail()).is_empty() {
        assert!(start.elapsed() < PATIENCE);
    }
    let said = failed(&mut run(&streams.place().display().to_string()));
    assert!(said.contains("another process is appending to s"), "{said}");
    drop(appender.stdin.take());
    assert!(appender.wait().unwrap().success());
}

/// A collector that writes a stream too.
struct Collector {
    child: Child,
    errors: std::process::ChildStderr,
    reports: SocketAddr,
    store: PathBuf,
    socket: UdpSocket,
    sequence: u32,
}

impl Collector {
    fn start(streams: &Streams) -> Self {
        let store = streams.at("store");
        let mut command = strata();
        command.args([
            "telemetry",
            "run",
            "--listen",
            "127.0.0.1:0",
            "--store-memory",
            "4MiB",
        ]);
        command
            .arg("-o")
            .arg(&store)
            .arg("--to-stream")
            .arg(streams.place());
        let (child, errors) = listening(command.stdout(Stdio::piped()));
        let mut collector = Self {
            child,
            errors,
            reports: ([127, 0, 0, 1], 0).into(),
            store,
            socket: UdpSocket::bind("127.0.0.1:0").unwrap(),
            sequence: 0,
        };
        collector.reports = collector.status()["listen"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap();
        collector
    }

    fn status(&self) -> Value {
        serde_json::from_str(&fs::read_to_string(self.store.join("status.json")).unwrap()).unwrap()
    }

    /// Sends entries of lists in a datagram of version 2, as docs/formats/dta.md has it, and waits
    /// until they were accepted now and then, so that no entry is lost on the way.
    fn send(&mut self, entries: &[(u32, [u8; 18])]) {
        let mut bytes = vec![0x22, 0];
        bytes.extend(u16::try_from(entries.len()).unwrap().to_be_bytes());
        bytes.extend(self.sequence.to_be_bytes());
        bytes.extend([0; 8]);
        bytes.extend([0, 18, 0, 1]);
        for (list, entry) in entries {
            bytes.extend(list.to_be_bytes());
            bytes.extend(entry);
        }
        self.socket.send_to(&bytes, self.reports).unwrap();
        self.sequence += u32::try_from(entries.len()).unwrap();
    }

    fn wait_for(&self, what: &str, is_there: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let status = self.status();
            if is_there(&status) {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "{what}: {status:#}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends it by Ctrl-C; what it says on standard output and error.
    fn end(mut self) -> (String, String) {
        signal(&self.child, "INT");
        let (mut said, mut errors) = (String::new(), String::new());
        self.child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        self.errors.read_to_string(&mut errors).unwrap();
        assert!(self.child.wait().unwrap().success(), "{errors}");
        (said, errors)
    }
}

/// An event of a flow, as docs/formats/dta.md has it, with a number as its value.
fn event(number: u32) -> [u8; 18] {
    let mut event = [0; 18];
    event[0] = 2;
    event[1..5].copy_from_slice(&number.to_be_bytes());
    event[5..].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2, 4, 0, 0, 80, 6]);
    event
}

#[test]
fn entries_of_lists_come_back_from_a_stream() {
    let streams = Streams::new();
    let mut collector = Collector::start(&streams);
    // List 3 has events of flows, list 40 no name, and there is no list 64.
    for number in 0..100 {
        collector.send(&[(3, event(2 * number)), (64, [9; 18]), (40, [7; 18])]);
    }
    collector.wait_for("accepted", |status| status["totals"]["accepted"] == 200);
    let status = collector.wait_for("written", |status| status["stream"]["written"] == 200);
    assert_eq!(status["stream"]["lost"], 0);
    let records = streams.json();
    assert_eq!(records.len(), 200);
    for (at, record) in records.iter().enumerate() {
        let decoded = &record["decoded"];
        assert_eq!(decoded["number"], at);
        assert_eq!(decoded["reporter"], "127.0.0.1");
        if at.is_multiple_of(2) {
            assert_eq!(decoded["list"], 3);
            let entry = &decoded["entry"];
            assert_eq!(
                (&entry["what"], &entry["value"]),
                (&"gap".into(), &at.into())
            );
            assert_eq!(entry["flow"], "10.0.0.1:1024 > 10.0.0.2:80 tcp");
        } else {
            assert_eq!(decoded["list"], 40);
            assert_eq!(decoded["entry"]["bytes"], format!("0x{}", "07".repeat(18)));
        }
    }
    let (said, _) = collector.end();
    assert!(
        said.contains("to the stream: 200 records, 0 lost"),
        "{said}"
    );
}

#[test]
fn a_stream_that_stalls_stalls_no_reports() {
    let streams = Streams::new();
    let mut collector = Collector::start(&streams);
    // No stream gets a page while this is locked: the stream's thread waits for its first one.
    let lock = File::create(streams.dir().join("pages.lock")).unwrap();
    lock.lock().unwrap();
    let entries: Vec<_> = (0..50).map(|number| (3, event(number))).collect();
    let mut accepted = 0;
    // Until the queue of 8 MiB is full, and more were lost: reports are taken all the time.
    loop {
        for _ in 0..500 {
            collector.send(&entries);
        }
        let status = collector.wait_for("accepted", |status| {
            status["totals"]["accepted"].as_u64().unwrap() > accepted
        });
        accepted = status["totals"]["accepted"].as_u64().unwrap();
        if status["stream"]["lost"].as_u64().unwrap() > 1000 {
            break;
        }
        assert!(accepted < 1_000_000, "{status:#}");
    }
    drop(lock);
    collector.wait_for("written", |status| {
        status["stream"]["written"].as_u64().unwrap() > 10_000
    });
    collector.send(&entries);
    let store = collector.store.clone();
    let (said, _) = collector.end();
    let status = fs::read_to_string(store.join("status.json")).unwrap();
    let status: Value = serde_json::from_str(&status).unwrap();
    let count = |value: &Value| value.as_u64().unwrap();
    let accepted = count(&status["totals"]["accepted"]);
    let (written, lost) = (
        count(&status["stream"]["written"]),
        count(&status["stream"]["lost"]),
    );
    // Every one that is not there is counted, and its number is missing.
    assert_eq!(written + lost, accepted, "{said}");
    let numbers: Vec<u64> = streams
        .json()
        .iter()
        .map(|record| count(&record["decoded"]["number"]))
        .collect();
    assert_eq!(numbers.len() as u64, written);
    assert!(numbers.is_sorted_by(|a, b| a < b));
    assert_eq!(*numbers.last().unwrap(), accepted - 1);
}
