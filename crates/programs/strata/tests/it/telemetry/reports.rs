//! `strata record --report-to`: what a recording reports is found in a telemetry collector's memory,
//! and is what tshark says of the same packets.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use parquet::file::reader::SerializedFileReader;
use parquet::record::Field;
use serde_json::Value;
use strata_testkit::{Namespace, data_dir, may_use_kernel};
use tempfile::TempDir;

use crate::common::program::{ok, record, strata};
use crate::common::signal::signal;
use crate::common::telemetry::{PATIENCE, Process, listens, status};

/// Packets of the capture that are recorded.
const PACKETS: &str = "30000";

/// A running collector.
struct Collector {
    _process: Process,
    store: PathBuf,
    address: String,
}

impl Collector {
    fn start(store: PathBuf, listen: &str) -> Self {
        Self::with(strata(), store, listen)
    }

    fn with(mut command: Command, store: PathBuf, listen: &str) -> Self {
        command.args([
            "telemetry",
            "run",
            "--store-memory",
            "64MiB",
            "--entry-bytes",
            "42",
        ]);
        command.args(["--listen", listen, "-o"]).arg(&store);
        let _process = Process::start(&mut command);
        let address = listens(&store);
        Self {
            _process,
            store,
            address,
        }
    }

    /// Waits until `reports` reports have come, and all are in memory.
    fn wait_for(&self, reports: u64) {
        let start = Instant::now();
        loop {
            let status = status(&self.store);
            let held = status["append"]["held"].as_u64().unwrap();
            let came = status["totals"]["reports"].as_u64().unwrap();
            if came >= reports && held == 0 {
                assert_eq!(came, reports);
                assert_eq!(status["totals"]["accepted"].as_u64(), Some(reports));
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{status:#}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn ask(&self, query: &[&str]) -> String {
        let mut command = strata();
        command.args(["telemetry", query[0]]).arg(&self.store);
        ok(command.args(&query[1..]).arg("--json"))
    }

    fn answer(&self, query: &[&str]) -> Value {
        serde_json::from_str(&self.ask(query)).unwrap()
    }

    fn list(&self, name: &str) -> Vec<Value> {
        let lines = self.ask(&["list", name]);
        let lines = lines.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

/// Fields of the packets that match, by tshark.
fn tshark(file: &Path, filter: &str, fields: &[&str]) -> Vec<Vec<String>> {
    let mut command = Command::new("tshark");
    command.args(["-n", "-c", PACKETS, "-T", "fields", "-E", "occurrence=f"]);
    command.args(["-Y", filter, "-r"]).arg(file);
    for field in fields {
        command.args(["-e", field]);
    }
    let text = ok(&mut command);
    let row = |line: &str| line.split('\t').map(str::to_owned).collect();
    text.lines().map(row).collect()
}

/// Fields of a flow.
const FLOW: [&str; 4] = ["ip.src", "tcp.srcport", "ip.dst", "tcp.dstport"];

fn flow_of(row: &[String]) -> String {
    format!("{}:{} > {}:{} tcp", row[0], row[1], row[2], row[3])
}

/// Flows with how many of their packets match.
fn by_flow(file: &Path, filter: &str) -> BTreeMap<String, u64> {
    let mut flows = BTreeMap::new();
    for row in tshark(file, filter, &FLOW) {
        *flows.entry(flow_of(&row)).or_insert(0) += 1;
    }
    flows
}

/// A capture of real traffic, compressed if it is there so.
fn capture(name: &str) -> PathBuf {
    let plain = data_dir().join("labelled").join(name).join("trace.pcap");
    match plain.exists() {
        true => plain,
        false => plain.with_extension("pcap.gz"),
    }
}

/// The count before a word of the summary.
fn said(summary: &str, words: &str) -> u64 {
    let (before, _) = summary.split_once(words).unwrap();
    let number = before.rsplit([';', ':']).next().unwrap();
    let digits: String = number.chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

#[test]
fn a_recording_reports_what_tshark_sees() {
    let dir = TempDir::new().unwrap();
    let collector = Collector::start(dir.path().join("store"), "127.0.0.1:0");
    let file = capture("rat-c2");
    let mut command = record(&file, dir.path().join("log"));
    command.args(["--report-to", &collector.address, "-c", PACKETS]);
    let summary = ok(&mut command);
    let line = summary.lines().find(|line| line.contains("reported to"));
    let line = line.unwrap_or_else(|| panic!("{summary}"));
    assert!(
        line.contains("; 0 not sent, 0 over the limit; 0 vectors"),
        "{line}"
    );
    collector.wait_for(said(line.split_once(": ").unwrap().1, " reports"));

    let mut bytes = BTreeMap::new();
    for row in tshark(&file, "ip", &["ip.src", "frame.len"]) {
        *bytes.entry(row[0].clone()).or_insert(0) += row[1].parse::<u64>().unwrap();
    }
    assert!(bytes.len() > 5, "{bytes:?}");
    for (host, bytes) in bytes {
        let answer = collector.answer(&["get", &host]);
        assert_eq!(answer["count"]["at_most"].as_u64(), Some(bytes), "{host}");
    }

    let flows = by_flow(&file, "tcp and not icmp");
    assert!(flows.len() > 20, "{flows:?}");
    for flow in flows.keys().take(50) {
        let answer = collector.answer(&["get", flow]);
        assert!(
            answer["value"]["number"].as_u64().is_some(),
            "{flow}: {answer}"
        );
    }
    let anomalies = collector.list("anomalies");
    let anomalous: BTreeMap<String, u64> = anomalies
        .iter()
        .map(|event| {
            assert_eq!(event["what"], "anomalous");
            let class = event["value"].as_u64().unwrap();
            (event["flow"].as_str().unwrap().to_owned(), class)
        })
        .collect();
    assert!(!anomalous.is_empty());

    losses_are_those_of(&file, &collector);
    snapshot_is_what_queries_say(&dir, &collector, flows.keys());
}

/// The largest senders of a capture are those of the packets themselves, with their bytes; none of them is
/// missing.
#[test]
fn the_largest_senders_are_those_of_the_capture() {
    for name in [
        "mix-test",
        "westermo-right",
        "lateral-movement",
        "ddos-real",
    ] {
        let dir = TempDir::new().unwrap();
        let collector = Collector::start(dir.path().join("store"), "127.0.0.1:0");
        let file = capture(name);
        let mut command = record(&file, dir.path().join("log"));
        command.args(["--report-to", &collector.address, "-c", PACKETS]);
        let summary = ok(&mut command);
        let line = summary.lines().find(|line| line.contains("reported to"));
        let line = line.unwrap_or_else(|| panic!("{summary}"));
        assert!(line.contains("; 0 not sent, 0 over the limit;"), "{line}");
        collector.wait_for(said(line.split_once(": ").unwrap().1, " reports"));

        let mut bytes = BTreeMap::<String, u64>::new();
        for (filter, source) in [("ip", "ip.src"), ("ipv6 and not ip", "ipv6.src")] {
            for row in tshark(&file, filter, &[source, "frame.len"]) {
                *bytes.entry(row[0].clone()).or_default() += row[1].parse::<u64>().unwrap();
            }
        }
        let mut largest: Vec<(u64, String)> = bytes.into_iter().map(|(key, n)| (n, key)).collect();
        largest.sort_unstable_by(|a, b| b.cmp(a));
        let top = collector.answer(&["top", "-n", "20"]);
        let shown: Vec<(u64, &str)> = top["keys"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| (row["count"].as_u64().unwrap(), row["key"].as_str().unwrap()))
            .collect();
        assert_eq!(shown.len(), largest.len().min(20), "{name}: {top}");
        // Of keys with the same count as the last one, others may be shown. A count is an upper bound:
        // two keys whose counters are the same ones have the sum of both, which happens to few.
        let last = shown.last().unwrap().0;
        let mut too_large = 0;
        for (count, host) in largest.iter().take(20).filter(|(count, _)| *count > last) {
            // Four bytes of a small number are also those of a node.
            let host = match host.as_str() {
                "0.0.0.0" => "0.0.0.0 or node 0",
                host => host,
            };
            let found = shown.iter().find(|(_, key)| *key == host);
            let (found, _) = found.unwrap_or_else(|| panic!("{name}: {host} {count}: {shown:?}"));
            assert!(found >= count, "{name}: {host} {count}: {shown:?}");
            too_large += usize::from(found > count);
        }
        assert!(too_large <= 2, "{name}: {largest:?}: {shown:?}");
        assert!(top["excess_max"].as_f64().unwrap() > 0.0, "{name}: {top}");
        let below = top["missing_below"].as_u64().unwrap();
        assert!(below <= last, "{name}: {below}, {last}");
    }
}

/// The rows of a Parquet file.
fn parquet(file: &Path) -> Vec<Value> {
    let value = |field: &Field| match field {
        Field::Null => Value::Null,
        Field::Str(text) => text.as_str().into(),
        Field::UInt(number) => (*number).into(),
        Field::ULong(number) => (*number).into(),
        other => panic!("{other:?}"),
    };
    let reader = SerializedFileReader::new(fs::File::open(file).unwrap()).unwrap();
    let rows = reader.into_iter().map(Result::unwrap);
    rows.map(|row| {
        let columns = row.get_column_iter();
        Value::Object(
            columns
                .map(|(name, field)| (name.clone(), value(field)))
                .collect(),
        )
    })
    .collect()
}

/// Written while the collector runs.
fn snapshot_is_what_queries_say<'a>(
    dir: &TempDir,
    collector: &Collector,
    flows: impl Iterator<Item = &'a String>,
) {
    let keys: Vec<&str> = flows.map(String::as_str).chain(["10.99.0.1"]).collect();
    let file = dir.path().join("keys.txt");
    fs::write(&file, keys.join("\n") + "\n\n").unwrap();
    let now = dir.path().join("now");
    let snapshot = |keys: &Path, to: &Path| {
        let mut command = strata();
        command.args(["telemetry", "snapshot", "-o"]).arg(to);
        command.arg(&collector.store).arg("--keys").arg(keys);
        command
    };
    let text = ok(&mut snapshot(&file, &now));
    let expected = format!("{} of {} keys known", keys.len() - 1, keys.len());
    assert!(text.starts_with(&expected), "{text}");
    let rows = parquet(&now.join("keys.parquet"));
    assert_eq!(rows.len(), keys.len());
    for (row, key) in rows.iter().zip(keys).take(20) {
        assert_eq!(row["key"], key);
        let value = &collector.answer(&["get", key])["value"];
        assert_eq!(row["number"], value["number"], "{row}");
        assert_eq!(row["agreeing"], value["agreeing"], "{row}");
    }
    assert!(rows.last().unwrap()["number"].is_null());
    let rows = parquet(&now.join("lists.parquet"));
    for name in ["anomalies", "losses"] {
        let rows = rows.iter().filter(|row| row["name"] == name);
        let rows: Vec<_> = rows
            .map(|row| [&row["what"], &row["flow"], &row["value"]])
            .collect();
        let entries = collector.list(name);
        let entries: Vec<_> = entries
            .iter()
            .map(|entry| [&entry["what"], &entry["flow"], &entry["value"]])
            .collect();
        assert_eq!(rows, entries, "{name}");
    }

    fs::write(&file, "10.0.0.1\nhost\n").unwrap();
    let output = snapshot(&file, &now).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("keys.txt, line 2: \"host\" is not a key"),
        "{said}"
    );
    let output = snapshot(&file, &collector.store).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("name another directory"), "{said}");
}

/// Gaps and retransmissions of each flow are as many as tshark finds.
fn losses_are_those_of(file: &Path, collector: &Collector) {
    let losses = collector.list("losses");
    let told = |what: &str| {
        let mut flows = BTreeMap::new();
        for event in losses.iter().filter(|event| event["what"] == what) {
            assert!(event["value"].as_u64() > Some(0), "{event}");
            let flow = event["flow"].as_str().unwrap().to_owned();
            *flows.entry(flow).or_insert(0) += 1;
        }
        flows
    };
    // With SYN, another connection between the same ports begins.
    let gaps = by_flow(file, "tcp.analysis.lost_segment and tcp.flags.syn == 0");
    assert!(!gaps.is_empty());
    assert_eq!(told("gap"), gaps);
    let again = "(tcp.analysis.retransmission or tcp.analysis.out_of_order) and tcp.flags.syn == 0";
    let mut again = by_flow(file, again);
    // tshark does not say of each SYN that came again that it did.
    let mut latest = BTreeMap::new();
    for row in tshark(
        file,
        "tcp.flags.syn == 1",
        &[&FLOW[..], &["tcp.seq_raw"]].concat(),
    ) {
        let (flow, seq) = (flow_of(&row), row[4].clone());
        if latest.insert(flow.clone(), seq.clone()) == Some(seq) {
            *again.entry(flow).or_insert(0) += 1;
        }
    }
    assert!(!again.is_empty());
    assert_eq!(told("retransmission"), again);
}

#[test]
fn losses_of_other_networks_are_those_that_tshark_sees() {
    for name in ["everyday-benign", "youtube", "scans"] {
        let dir = TempDir::new().unwrap();
        let collector = Collector::start(dir.path().join("store"), "[::1]:0");
        let file = capture(name);
        let mut command = record(&file, dir.path().join("log"));
        command.args(["--report-to", &collector.address, "-c", PACKETS]);
        let summary = ok(&mut command);
        let line = summary
            .lines()
            .find(|line| line.contains("reported to"))
            .unwrap();
        let (_, counts) = line.split_once("]:").unwrap();
        collector.wait_for(said(counts.split_once(": ").unwrap().1, " reports"));
        losses_are_those_of(&file, &collector);
    }
}

#[test]
fn a_recording_goes_on_without_a_collector_and_says_what_was_not_sent() {
    let dir = TempDir::new().unwrap();
    // A port that was free a moment ago.
    let socket = UdpSocket::bind("[::1]:0").unwrap();
    let address = socket.local_addr().unwrap().to_string();
    drop(socket);
    let mut command = record(capture("rat-c2"), dir.path().join("log"));
    command.args(["--report-to", &address, "-c", PACKETS]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let warned = String::from_utf8(output.stderr).unwrap();
    assert!(
        warned.contains("refused") && warned.contains("the recording continues"),
        "{warned}"
    );
    let summary = String::from_utf8(output.stdout).unwrap();
    let line = summary.lines().find(|line| line.contains("reported to"));
    assert!(said(line.unwrap(), " not sent") > 0, "{summary}");

    let mut command = record(capture("rat-c2"), dir.path().join("other"));
    let output = command
        .args(["--report-to", "localhost:nine"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let refused = String::from_utf8(output.stderr).unwrap();
    assert!(refused.contains("'nine' is not a port"), "{refused}");
    assert!(!dir.path().join("other").exists());
}

/// The program in a network of the test's own.
fn inside(namespace: &Namespace) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace.name()]);
    command.arg(env!("CARGO_BIN_EXE_strata"));
    command
}

/// Waits until it is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Counts the entries of list 9 that are keys of flows.
fn count_listed(collector: &Collector, flows: &mut BTreeMap<String, u64>) {
    let mut command = strata();
    command.args(["telemetry", "list", "--json"]);
    let listed = ok(command.arg(&collector.store).arg("9"));
    for entry in listed.lines() {
        let entry: Value = serde_json::from_str(entry).unwrap();
        let key = &entry["bytes"].as_str().unwrap()[..2 + 26];
        if let Some(seen) = flows.get_mut(key) {
            *seen += 1;
        }
    }
}

/// Installs two queries in a recording, of which it reports.
fn install_queries(socket: &Path) {
    let install = |name: &str, query: &str, how: &str| {
        let mut command = strata();
        command.args(["ask", "--socket"]).arg(socket);
        command.args(["--install", name, query, "--report-as", how]);
        command
    };
    let packets = "def count([n], []):\n    n = n + 1\nR = groupby(T, [srcip], count);";
    ok(&mut install("packets", packets, "add=3"));
    let flows = "def count([n], []):\n    n = n + 1\nR = groupby(T, [srcip, dstip, srcport, dstport, proto], count);";
    ok(&mut install("flows", flows, "list=9"));
    let refused = install("rows", "R = filter(T, proto == 6);", "value=4")
        .output()
        .unwrap();
    let refused = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.contains("only groups by flow"), "{refused}");
}

#[test]
fn a_recording_of_an_interface_reports_while_it_captures() {
    if !may_use_kernel("recording from an interface") {
        return;
    }
    const NEAR: &str = "st-tel-c";
    const FAR: &str = "st-tel-d";
    let namespace = Namespace::new("st-telrep");
    namespace.pair(NEAR, FAR);
    namespace.ip("link set lo up");
    let dir = TempDir::new().unwrap();
    let collector = Collector::with(inside(&namespace), dir.path().join("store"), "127.0.0.1:0");
    let socket = dir.path().join("record.sock");
    let mut command = inside(&namespace);
    command.args(["record", "-i", FAR, "-B", "32MiB", "-o"]);
    command
        .arg(dir.path().join("log"))
        .arg("--socket")
        .arg(&socket);
    command.args(["--report-to", &collector.address]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut recording = command.spawn().unwrap();
    let asked = || -> Value {
        let mut command = strata();
        let output = command.args(["status", "--json", "--socket"]).arg(&socket);
        serde_json::from_slice(&output.output().unwrap().stdout).unwrap_or_default()
    };
    until("it records", || {
        let interfaces = asked()["interfaces"].clone();
        interfaces.as_array().is_some_and(|all| !all.is_empty())
    });
    install_queries(&socket);
    let file = data_dir().join("labelled/cic2017-sqli/trace.pcap");
    let mut sent = 0;
    namespace.enter(|| {
        let mut sender = pcap::Capture::from_device(NEAR).unwrap().open().unwrap();
        let mut file = pcap::Capture::from_file(&file).unwrap();
        while let Ok(packet) = file.next_packet() {
            sender.sendpacket(packet.data).unwrap();
            sent += 1;
        }
    });
    // What is reported is there while the recording goes on.
    let mut bytes = BTreeMap::new();
    for row in tshark(&file, "ip", &["ip.src", "frame.len"]) {
        *bytes.entry(row[0].clone()).or_insert(0) += row[1].parse::<u64>().unwrap();
    }
    assert!(sent > 50 && bytes.len() > 1, "{sent} {bytes:?}");
    let counted = |host: &str| {
        let mut command = strata();
        command.args(["telemetry", "get", "--json"]);
        let output = command.arg(&collector.store).arg(host).output().unwrap();
        let found = serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default();
        found["count"]["at_most"].as_u64()
    };
    // The first query adds packets.
    let mut packets = BTreeMap::new();
    for row in tshark(&file, "ip", &["ip.src"]) {
        *packets.entry(row[0].clone()).or_insert(0) += 1;
    }
    for (host, bytes) in &bytes {
        until(&format!("{host} has sent {bytes}"), || {
            counted(host) == Some(*bytes)
                && counted(&format!("node 3 {host}")) == Some(packets[host])
        });
    }
    assert!(recording.try_wait().unwrap().is_none(), "it goes on");
    let mut command = strata();
    let installed = ok(command
        .args(["ask", "--installed", "--json", "--socket"])
        .arg(&socket));
    let installed: Value = serde_json::from_str(&installed).unwrap();
    assert_eq!(
        (&installed[0]["report"], &installed[1]["report"]),
        (&"add=3".into(), &"list=9".into())
    );
    signal(&recording, "INT");
    let mut summary = String::new();
    let mut out = recording.stdout.take().unwrap();
    out.read_to_string(&mut summary).unwrap();
    assert!(recording.wait().unwrap().success(), "{summary}");
    let line = summary.lines().find(|line| line.contains("reported to"));
    let line = line.unwrap_or_else(|| panic!("{summary}"));
    assert!(line.contains("; 0 not sent, 0 over the limit"), "{line}");
    collector.wait_for(said(line.split_once(": ").unwrap().1, " reports"));
    let mut flows = BTreeMap::new();
    for flow in by_flow(&file, "tcp and not icmp").keys() {
        let answer = collector.answer(&["get", flow]);
        assert!(answer["value"]["number"].is_u64(), "{flow}: {answer}");
        flows.insert(answer["key_bytes"].as_str().unwrap().to_owned(), 0);
    }
    // The second query has listed each once.
    count_listed(&collector, &mut flows);
    assert!(flows.values().all(|&seen| seen == 1), "{flows:?}");
}
