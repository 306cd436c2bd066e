//! `strata telemetry` as its users run it: reports from an encoder of the test's own, written from
//! docs/formats/dta.md and the specifications of INT, are found by queries of other processes.

mod api;
mod fabric;
mod hostile;
mod push;
mod reports;
mod status;
mod turns;
mod walk;
mod wire;
mod xdp;

use std::fs;
use std::io::Read;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use strata_dta::int::table::Table;
use strata_testkit::workspace_root;
use tempfile::TempDir;

use crate::common::program::{failed, ok, strata};
use crate::common::signal::signal;
use crate::common::telemetry::{PATIENCE, Process, number, packed, status, telemetry};

/// A running collector.
struct Collector {
    process: Process,
    reports: SocketAddr,
    int: SocketAddr,
}

impl Collector {
    fn start(store: &Path, options: &[&str]) -> Self {
        let listen = ["--listen", "127.0.0.1:0", "--int", "127.0.0.1:0"];
        Self::with(
            store,
            &[&listen[..], &["--store-memory", "4MiB"], options].concat(),
        )
    }

    fn with(store: &Path, options: &[&str]) -> Self {
        let mut command = strata();
        command.args(["telemetry", "run", "-o"]).arg(store);
        let process = Process::start(command.args(options));
        let status = status(store);
        let address = |text: &Value| text.as_str().unwrap().parse().unwrap();
        Self {
            process,
            reports: address(&status["listen"]),
            int: address(&status["int"]["listen"]),
        }
    }

    /// Ends it by Ctrl-C; what it prints.
    fn end(self) -> String {
        self.process.end()
    }

    fn kill(self) {
        self.process.kill();
    }
}

/// The answer of a query in JSON; `None` if it has none.
fn answer(store: &Path, query: &[&str]) -> Option<Value> {
    let output = telemetry(store, query).arg("--json").output().unwrap();
    assert!(
        matches!(output.status.code(), Some(0 | 1)),
        "{query:?}: {output:?}"
    );
    let found = output.status.success();
    found.then(|| serde_json::from_slice(&output.stdout).unwrap())
}

/// Waits for an answer that is as wanted.
fn wait_for(store: &Path, query: &[&str], wanted: impl Fn(&Value) -> bool) -> Value {
    let start = Instant::now();
    loop {
        let answer = answer(store, query);
        if let Some(answer) = answer.as_ref().filter(|answer| wanted(answer)) {
            return answer.clone();
        }
        assert!(start.elapsed() < PATIENCE, "{query:?}: {answer:#?}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// The entries of a list.
fn entries(store: &Path, list: &str) -> Vec<Value> {
    let lines = ok(telemetry(store, &["list", list]).arg("--json"));
    lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn sender() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").unwrap()
}

/// Version 1, as published: base header of 2 bytes, or of 3 with a sequence number.
mod published {
    fn header(opcode: u8, sequence: Option<u8>, flags: u8) -> Vec<u8> {
        match sequence {
            None => vec![opcode, flags],
            Some(sequence) => vec![opcode, sequence, flags],
        }
    }

    pub(crate) fn key_write(
        sequence: Option<u8>,
        flags: u8,
        redundancy: u8,
        key: [u8; 4],
        data: u32,
    ) -> Vec<u8> {
        let mut bytes = header(1, sequence, flags);
        bytes.push(redundancy);
        bytes.extend(key);
        bytes.extend(data.to_be_bytes());
        bytes
    }

    pub(crate) fn append(sequence: Option<u8>, list: u32, data: u32) -> Vec<u8> {
        let mut bytes = header(2, sequence, 0);
        bytes.extend(list.to_be_bytes());
        bytes.extend(data.to_be_bytes());
        bytes
    }

    pub(crate) fn key_increment(sequence: Option<u8>, key: [u8; 4], add: u64) -> Vec<u8> {
        let mut bytes = header(3, sequence, 0);
        bytes.push(2);
        bytes.extend(key);
        bytes.extend(add.to_be_bytes());
        bytes
    }
}

/// 10.0.0.1:1024 > 10.0.0.2:80 tcp
const FLOW: [u8; 13] = [10, 0, 0, 1, 10, 0, 0, 2, 4, 0, 0, 80, 6];
const FLOW_TEXT: &str = "10.0.0.1:1024 - 10.0.0.2:80 tcp";

#[test]
fn published_and_packed_reports_are_found_by_other_processes() {
    let dir = TempDir::new().unwrap();
    let store = dir.path().join("store");
    let collector = Collector::start(&store, &[]);
    let socket = sender();
    let send = |bytes: &[u8]| {
        socket.send_to(bytes, collector.reports).unwrap();
    };
    send(&published::key_write(None, 0, 2, [192, 0, 2, 1], 42));
    send(&published::key_write(Some(9), 0, 200, [192, 0, 2, 2], 43));
    send(&published::append(None, 7, 0xaabb_ccdd));
    send(&published::append(Some(1), 7, 5));
    for sequence in [None, Some(3)] {
        send(&published::key_increment(
            sequence,
            [192, 0, 2, 1],
            1_000_000_000_000,
        ));
    }
    let cards: Vec<Vec<u8>> = (0..3_u8)
        .map(|hop| {
            let mut card = FLOW.to_vec();
            card.extend([hop, 3]);
            card.extend((100 + u32::from(hop)).to_be_bytes());
            card
        })
        .collect();
    send(&packed(0x24, 0, 0, [13, 4, 0], &cards));
    let value = [FLOW.to_vec(), vec![0, 0, 1, 2]].concat();
    send(&packed(0x21, 0, 3, [13, 4, 2], &[value]));

    let found = wait_for(&store, &["get", "192.0.2.1"], |answer| {
        !answer["value"].is_null() && !answer["count"].is_null()
    });
    assert_eq!(found["value"]["number"], 42);
    assert_eq!(found["value"]["agreeing"], 2);
    assert_eq!(found["count"]["at_most"], 2_000_000_000_000_u64);
    assert!(found["count"]["excess_max"].as_f64().unwrap() > 0.0);
    // A redundancy beyond 4 is taken for 4.
    let found = wait_for(&store, &["get", "192.0.2.2"], |_| true);
    let copies = number(&found["value"]["agreeing"]);
    assert!(
        found["value"]["number"] == 43 && (3..=4).contains(&copies),
        "{found}"
    );
    let found = wait_for(
        &store,
        &["get", "--agree", "2", "--redundancy", "2", FLOW_TEXT],
        |_| true,
    );
    assert_eq!(found["value"]["bytes"], "0x00000102");
    assert_eq!(found["key"], "10.0.0.1:1024 > 10.0.0.2:80 tcp");
    let path = wait_for(&store, &["path", FLOW_TEXT], |_| true);
    let nodes: Vec<u64> = path["hops"]
        .as_array()
        .unwrap()
        .iter()
        .map(|hop| number(&hop["node"]))
        .collect();
    assert_eq!(nodes, [100, 101, 102]);

    let start = Instant::now();
    let listed = loop {
        let listed = entries(&store, "7");
        if listed.len() == 2 {
            break listed;
        }
        assert!(start.elapsed() < PATIENCE, "{listed:?}");
    };
    assert!(
        listed[0]["bytes"]
            .as_str()
            .unwrap()
            .starts_with("0xaabbccdd00")
    );
    assert!(
        listed[1]["bytes"]
            .as_str()
            .unwrap()
            .starts_with("0x0000000500")
    );
    let text = ok(telemetry(&store, &["get", "192.0.2.1"]).env("TZ", "UTC"));
    assert!(
        text.starts_with("value 42 (0x0000002a), 2 copies\ncount 2,000,000,000,000,"),
        "{text}"
    );

    let unknown = failed(&mut telemetry(&store, &["get", "192.0.2.77"]));
    assert!(
        unknown.contains("the store has no data about 192.0.2.77"),
        "{unknown}"
    );
    let said = collector.end();
    // 6 published, 3 postcards, 1 value.
    assert!(
        said.starts_with("10 reports accepted, 0 refused, 0 dropped, 0 missing"),
        "{said}"
    );
    // It answers without the collector too.
    assert!(answer(&store, &["get", "192.0.2.1"]).is_some());
    let status = answer(&store, &["status"]).unwrap();
    assert_eq!(
        (&status["running"], &status["totals"]["accepted"]),
        (&false.into(), &10.into())
    );
}

#[test]
fn a_counter_never_wraps_and_increments_that_no_link_carries_are_refused() {
    const MOST: u64 = 1 << 56;
    let dir = TempDir::new().unwrap();
    let store = dir.path().join("store");
    let collector = Collector::start(&store, &[]);
    let socket = sender();
    let mut sequence = 0;
    let mut add = |increments: &[u64]| {
        let report = |add: &u64| [&[10, 0, 0, 1][..], &add.to_be_bytes()].concat();
        let reports: Vec<Vec<u8>> = increments.iter().map(report).collect();
        let bytes = packed(0x23, 0, sequence, [4, 8, 2], &reports);
        socket.send_to(&bytes, collector.reports).unwrap();
        sequence += u32::try_from(reports.len()).unwrap();
    };
    let counted = |count: u64| {
        wait_for(&store, &["get", "10.0.0.1"], |found| {
            found["count"]["at_most"] == count
        });
    };
    add(&[u64::MAX, 5, MOST + 1, MOST]);
    // The published protocol has a report a datagram.
    let one = published::key_increment(None, [10, 0, 0, 1], u64::MAX);
    socket.send_to(&one, collector.reports).unwrap();
    counted(MOST + 5);
    let status = wait_for(&store, &["status"], |status| {
        status["totals"]["reports"] == 5
    });
    let totals = &status["totals"];
    assert_eq!(
        (&totals["accepted"], &totals["refused"]["increment"]),
        (&2.into(), &3.into())
    );
    add(&[MOST; 255]);
    counted(u64::MAX);
    add(&[5]);
    wait_for(&store, &["status"], |status| {
        status["totals"]["accepted"] == 258
    });
    counted(u64::MAX);
    collector.end();
}

/// What is said of 4 bytes of a key, which are an address as well as the number of a node.
#[test]
fn a_key_that_may_be_a_host_or_a_node_is_shown_as_both() {
    let dir = TempDir::new().unwrap();
    let store = dir.path().join("store");
    let collector = Collector::start(&store, &[]);
    let socket = sender();
    let reports: Vec<Vec<u8>> = [[0, 0, 0, 0], [0, 0, 0, 1], [10, 0, 0, 1]]
        .iter()
        .map(|key| [&key[..], &9_u64.to_be_bytes()].concat())
        .collect();
    let bytes = packed(0x23, 0, 0, [4, 8, 2], &reports);
    socket.send_to(&bytes, collector.reports).unwrap();
    let top = wait_for(&store, &["top"], |top| {
        top["keys"].as_array().unwrap().len() == 3
    });
    let mut shown: Vec<&str> = top["keys"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["key"].as_str().unwrap())
        .collect();
    shown.sort_unstable();
    assert_eq!(
        shown,
        ["0.0.0.0 or node 0", "0.0.0.1 or node 1", "10.0.0.1"]
    );
    // Each way of writing it finds it.
    for key in ["0.0.0.1 or node 1", "0.0.0.1", "node 1"] {
        let found = answer(&store, &["get", key]).unwrap();
        assert_eq!(found["count"]["at_most"], 9, "{key}");
    }
    collector.end();
}

/// A telemetry report 2.0 of INT-XD: interfaces, hop latency and queue of a TCP packet.
fn int_report(sequence: u32, node: u32, ttl: u8, latency: u32, depth: u32, flags: u8) -> Vec<u8> {
    let mut bytes = (2_u32 << 28 | 5 << 22 | sequence).to_be_bytes().to_vec();
    bytes.extend(node.to_be_bytes());
    // INT, of an IPv4 packet; words from here on; words of metadata; D, Q, F, I.
    bytes.extend([0x14, 2 + 3 + 10, 3, flags << 4]);
    bytes.extend([0b0111_0000, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend([0, 3, 0, 4]);
    bytes.extend(latency.to_be_bytes());
    bytes.extend((1 << 24 | depth).to_be_bytes());
    bytes.extend([0x45, 0, 0, 200, 0, 1, 0, 0, ttl, 6, 0, 0]);
    bytes.extend(&FLOW[..8]);
    bytes.extend(&FLOW[8..12]);
    bytes.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 3, 232, 0, 0, 0, 0]);
    bytes
}

#[test]
#[allow(clippy::too_many_lines, reason = "one service, many questions")]
fn reports_of_int_become_paths_latencies_depths_and_events_by_the_table() {
    let dir = TempDir::new().unwrap();
    let store = dir.path().join("store");
    let collector = Collector::start(&store, &[]);
    let socket = sender();
    let tracked = 0b0010;
    for (node, ttl, flags) in [
        (7, 64, tracked),
        (8, 63, tracked | 0b0100),
        (9, 62, tracked),
    ] {
        let bytes = int_report(1, node, ttl, 500 + node, 9000 + node, flags);
        socket.send_to(&bytes, collector.int).unwrap();
    }
    socket
        .send_to(&int_report(4, 9, 62, 509, 9009, 0), collector.int)
        .unwrap();
    socket.send_to(&[0x30; 40], collector.int).unwrap();
    // The same part of node 9 in version 1.0, whose numbers are longer, and again in 2.0: this ended the
    // collector.
    let words = [0x1400_0005_u32, 9, 0xffff_0000, 0];
    let version_1: Vec<u8> = words.into_iter().flat_map(u32::to_be_bytes).collect();
    socket.send_to(&version_1, collector.int).unwrap();
    socket
        .send_to(&int_report(5, 9, 62, 509, 9009, 0), collector.int)
        .unwrap();
    let path = wait_for(&store, &["path", FLOW_TEXT], |path| {
        path["latency_at_least"] == 500 * 3 + 24
    });
    // Each node reports separately: none knows how long the path is.
    assert!(
        path["latency"].is_null() && path["whole"] == false,
        "{path}"
    );
    let text = ok(&mut telemetry(&store, &["path", FLOW_TEXT]));
    assert!(
        text.contains("at least") && text.contains("\nthe number of hops is not known"),
        "{text}"
    );
    let hops = path["hops"].as_array().unwrap();
    let pairs: Vec<(u64, u64)> = hops
        .iter()
        .map(|hop| (number(&hop["node"]), number(&hop["latency"])))
        .collect();
    assert_eq!(pairs, [(7, 507), (8, 508), (9, 509)]);
    let queue = wait_for(
        &store,
        &["get", "node", "8", "port", "4", "queue", "1"],
        |_| true,
    );
    assert_eq!(queue["value"]["number"], 9008);
    let start = Instant::now();
    let events = loop {
        let events = entries(&store, "congestion");
        if !events.is_empty() {
            break events;
        }
        assert!(start.elapsed() < PATIENCE);
    };
    assert_eq!(events.len(), 1);
    let event = &events[0];
    assert_eq!(
        (&event["what"], &event["node"]),
        (&"congested".into(), &8.into())
    );
    assert_eq!((&event["port"], &event["value"]), (&4.into(), &9008.into()));
    let flow_text = FLOW_TEXT.replace(" - ", " > ");
    assert_eq!(event["flow"], *flow_text);
    let met = answer(&store, &["flows", "--node", "8"]).unwrap();
    let flow = &met["flows"][0];
    assert_eq!(
        (&flow["flow"], &flow["events"]),
        (&(*flow_text).into(), &1.into())
    );
    assert_eq!(flow["nodes"].as_array().unwrap()[..], [8]);
    let text = ok(&mut telemetry(&store, &["flows"]));
    assert!(
        text.contains("congested") && text.contains(&flow_text),
        "{text}"
    );
    let elsewhere = answer(&store, &["flows", "--node", "9"]).unwrap();
    assert_eq!(elsewhere["in_all"], 0);
    let status = wait_for(&store, &["status"], |status| {
        number(&status["int"]["datagrams"]) == 7
    });
    assert_eq!(status["int"]["refused"], 1);
    assert_eq!(status["int"]["missing"], 2, "numbers 2 and 3 of node 9");
    assert_eq!(
        (&status["int"]["jumps"], &status["failed"]),
        (&0.into(), &0.into())
    );
    // No reporter has sent a datagram: what was made of INT's is counted apart.
    let totals = &status["totals"];
    assert_eq!(
        (&totals["datagrams"], &totals["reports"]),
        (&0.into(), &0.into()),
        "{totals:#}"
    );
    let made = &status["reporters"][0];
    assert_eq!(
        (&made["address"], &made["datagrams"]),
        (&"int".into(), &Value::Null)
    );
    let rows = ok(&mut telemetry(&store, &["status"]));
    let row = |name: &str| {
        let found = rows.lines().find_map(|line| line.strip_prefix(name));
        found.unwrap_or_else(|| panic!("{rows}")).trim().to_owned()
    };
    assert_eq!(
        (row("datagrams"), row("INT datagrams")),
        ("0".into(), "7".into())
    );
    // What it prints at the end has the same source.
    let said = collector.end();
    assert!(said.contains("0 reports accepted, "), "{said}");
    assert!(
        said.contains("INT: 7 datagrams, 1 refused, 2 missing; of "),
        "{said}"
    );
    let ended = self::status(&store);
    let (made, mapped) = (&ended["reporters"][0], number(&ended["int"]["mapped"]));
    assert_eq!(number(&made["accepted"]), mapped, "{ended:#}");
    let told =
        format!("of {mapped} reports made from them, {mapped} accepted, 0 refused, 0 dropped");
    assert!(said.contains(&told), "{said}");
}

#[test]
fn a_table_of_ones_own_counts_packets_and_answers_a_query_known_ahead() {
    let dir = TempDir::new().unwrap();
    let socket = sender();
    let table = dir.path().join("int.toml");
    fs::write(
        &table,
        "[[report]]\nname = \"packets\"\nwhen = \"always\"\nprimitive = \"key-increment\"\n\
         key = \"source\"\ndata = \"packets\"\n",
    )
    .unwrap();
    let other = dir.path().join("other");
    let collector = Collector::start(&other, &["--table", table.to_str().unwrap()]);
    for sequence in 0..20 {
        let bytes = int_report(sequence, 7, 64, 1, 1, 0);
        socket.send_to(&bytes, collector.int).unwrap();
    }
    wait_for(&other, &["get", "10.0.0.1"], |answer| {
        answer["count"]["at_most"] == 20
    });
    let top = wait_for(&other, &["top"], |top| {
        !top["keys"].as_array().unwrap().is_empty()
    });
    let first = &top["keys"][0];
    assert_eq!(
        (&first["key"], &first["count"], &top["missing_below"]),
        (&"10.0.0.1".into(), &20.into(), &0.into())
    );
    collector.end();

    // The built-in table is printed, and may be given as one.
    let mut printed = strata();
    let printed = ok(printed.args(["telemetry", "table"]));
    assert!(printed.contains("\nfirst-ttl = 64\n"), "{printed}");
    assert!(Table::parse(&printed).is_ok(), "{printed}");

    // A query known ahead: of two packets, one is too slow.
    let watch = "[[watch]]\nname = \"slow\"\nabove = 1523\nlist = 4\n";
    fs::write(&table, watch).unwrap();
    let watched = dir.path().join("watched");
    let collector = Collector::start(&watched, &["--table", table.to_str().unwrap()]);
    for (packet, latency) in [(0, 500), (1, 499)] {
        for (node, ttl) in [(7, 64), (8, 63), (9, 62)] {
            let bytes = int_report(packet, node, ttl, latency + node, 1, 0);
            socket.send_to(&bytes, collector.int).unwrap();
        }
        wait_for(&watched, &["status"], |status| {
            number(&status["int"]["summed"]) == u64::from(packet) + 1
        });
    }
    let slow = entries(&watched, "slow");
    let flow = "10.0.0.1:1024 > 10.0.0.2:80 tcp";
    let expected = serde_json::json!([{ "what": "slow", "flow": flow, "value": 1524 }]);
    assert_eq!(Value::from(slow), expected);
    let text = ok(&mut telemetry(&watched, &["list", "slow"]));
    assert_eq!(text, format!("slow {flow} latency 1524\n"));
    // What the built-in table keeps is there too.
    let latency = answer(&watched, &["get", &format!("node 7 {flow}")]).unwrap();
    assert!(latency["value"]["number"].is_u64(), "{latency}");
    collector.end();

    fs::write(
        &table,
        "[[report]]\nname = \"x\"\nwhen = \"always\"\nprimitive = \"append\"\ndata = \"node\"\n",
    )
    .unwrap();
    let mut run = strata();
    run.args(["telemetry", "run", "-o"])
        .arg(dir.path().join("third"));
    run.args(["--listen", "127.0.0.1:0", "--table"]).arg(&table);
    let error = failed(&mut run);
    assert!(error.contains("append has a list"), "{error}");
    assert!(!dir.path().join("third").exists(), "nothing is made");
}

#[test]
fn a_flood_of_garbage_is_counted_and_harms_nothing() {
    let dir = TempDir::new().unwrap();
    let store = dir.path().join("store");
    let collector = Collector::start(&store, &["--lists", "4"]);
    let socket = sender();
    let key = [192, 0, 2, 1];
    socket
        .send_to(
            &published::key_write(None, 0, 2, key, 77),
            collector.reports,
        )
        .unwrap();
    wait_for(&store, &["get", "192.0.2.1"], |_| true);
    let mut random = 1_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random.to_le_bytes()
    };
    let mut sent = 0_u64;
    let mut garbage = |to: SocketAddr, bytes: &[u8]| {
        socket.send_to(bytes, to).unwrap();
        sent += 1;
        if sent.is_multiple_of(100) {
            thread::yield_now();
        }
    };
    for len in 0..3000_usize {
        let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| next()).collect();
        bytes.truncate(len % 1400);
        // Some begin as reports do.
        if let (Some(first), true) = (bytes.first_mut(), len % 2 == 0) {
            *first = [1, 2, 3, 4, 0x21, 0x22, 0x23, 0x24][len / 2 % 8];
        }
        garbage(collector.reports, &bytes);
        garbage(collector.int, &bytes);
    }
    // What looks right, and is not allowed.
    garbage(collector.reports, &published::append(None, 4, 1));
    garbage(collector.reports, &published::append(None, u32::MAX, 1));
    garbage(collector.reports, &published::key_write(None, 0, 0, key, 1));
    garbage(
        collector.reports,
        &packed(0x22, 0, 0, [0, 64, 0], &[vec![0; 68]]),
    );
    let all = |status: &Value| {
        let datagrams =
            number(&status["totals"]["datagrams"]) + number(&status["int"]["datagrams"]);
        datagrams + number(&status["socket_drops"]) > sent
    };
    let status = wait_for(&store, &["status"], all);
    let totals = &status["totals"];
    for reason in ["opcode", "length", "empty"] {
        assert!(
            number(&totals["datagrams_refused"][reason]) > 0,
            "{reason}: {totals:#}"
        );
    }
    if status["socket_drops"] == 0 {
        assert!(number(&totals["refused"]["list"]) >= 2, "{totals:#}");
        assert!(number(&totals["refused"]["redundancy"]) >= 1, "{totals:#}");
        assert!(number(&totals["refused"]["data-length"]) >= 1, "{totals:#}");
    }
    assert!(number(&status["int"]["refused"]) > 0);
    let found = answer(&store, &["get", "192.0.2.1"]).unwrap();
    assert_eq!(found["value"]["number"], 77);
    let said = ok(&mut telemetry(&store, &["status"]));
    assert!(
        said.contains("opcode") && said.contains("reports"),
        "{said}"
    );
    collector.end();
}

#[test]
fn a_store_is_written_by_one_process_and_continued_if_its_parameters_agree() {
    let dir = TempDir::new().unwrap();
    let store = dir.path().join("store");
    let run = |store: &Path, options: &[&str]| {
        let mut command = strata();
        command.args(["telemetry", "run", "--listen", "127.0.0.1:0", "-o"]);
        command.arg(store).args(options);
        command
    };
    let first = Collector::start(&store, &[]);
    let error = failed(&mut run(&store, &[]));
    assert!(
        error.contains("another process writes this store"),
        "{error}"
    );
    first.end();
    for (option, value, there) in [
        ("--store-memory", "8MiB", "4194304"),
        ("--data-bytes", "12", "4"),
        ("--hops", "3", "5"),
        ("--lists", "65", "64"),
        ("--redundancy", "4", "2"),
    ] {
        let error = failed(&mut run(&store, &[option, value]));
        assert!(
            error.contains(&format!("made with {option} {there}")),
            "{error}"
        );
    }
    // The same values, or none, continue it.
    let again = Collector::start(&store, &["--hops", "5"]);
    again.end();

    let foreign = dir.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("thesis.tex"), "...").unwrap();
    let error = failed(&mut run(&foreign, &[]));
    assert!(error.contains("thesis.tex"), "{error}");
    assert_eq!(fs::read_dir(&foreign).unwrap().count(), 1);
    let error = failed(&mut telemetry(&foreign, &["get", "10.0.0.1"]));
    assert!(error.contains("no telemetry store"), "{error}");

    let description = store.join("telemetry.json");
    let text = fs::read_to_string(&description).unwrap();
    fs::write(&description, text.replace("\"hops\": 5", "\"hops\": 3")).unwrap();
    for command in [&mut run(&store, &[]), &mut telemetry(&store, &["top"])] {
        let error = failed(command);
        assert!(
            error.contains("telemetry.json") && error.contains("damaged"),
            "{error}"
        );
    }
    fs::write(&description, text).unwrap();
    let memory = fs::OpenOptions::new()
        .write(true)
        .open(store.join("memory"))
        .unwrap();
    memory.set_len(1 << 20).unwrap();
    let error = failed(&mut telemetry(&store, &["top"]));
    assert!(
        error.contains("memory") && error.contains("damaged"),
        "{error}"
    );
}

#[test]
fn a_kill_loses_nothing_that_was_written() {
    let dir = TempDir::new().unwrap();
    let store = dir.path().join("store");
    let collector = Collector::start(&store, &[]);
    let socket = sender();
    let entry = |n: u32| published::append(None, 5, n);
    for n in 0..40 {
        socket.send_to(&entry(n), collector.reports).unwrap();
    }
    let value = |n: u8| published::key_write(None, 0, 2, [192, 0, 2, n], u32::from(n));
    for n in 0..200 {
        socket.send_to(&value(n), collector.reports).unwrap();
    }
    let start = Instant::now();
    while entries(&store, "5").len() < 40 || answer(&store, &["get", "192.0.2.199"]).is_none() {
        assert!(start.elapsed() < PATIENCE);
    }
    collector.kill();
    let known = |n: u8| {
        let found = answer(&store, &["get", &format!("192.0.2.{n}")]);
        found.is_some_and(|found| found["value"]["number"] == n)
    };
    for n in [0, 50, 100, 199] {
        assert!(known(n), "{n}");
    }
    let again = Collector::start(&store, &[]);
    for n in 40..60 {
        socket.send_to(&entry(n), again.reports).unwrap();
    }
    let start = Instant::now();
    let listed = loop {
        let listed = entries(&store, "5");
        if listed.len() == 60 {
            break listed;
        }
        assert!(start.elapsed() < PATIENCE, "{}", listed.len());
    };
    for (n, entry) in (0_u32..).zip(&listed) {
        let begins = format!("0x{n:08x}");
        assert!(entry["bytes"].as_str().unwrap().starts_with(&begins), "{n}");
    }
    assert!(known(199));
    again.end();
}

#[test]
fn strangers_are_refused_and_what_is_dropped_is_asked_for_again() {
    let dir = TempDir::new().unwrap();
    let store = dir.path().join("store");
    let collector = Collector::start(
        &store,
        &[
            "--allow",
            "127.0.0.2",
            "--allow",
            "127.0.0.3/32",
            "--write-rate",
            "1",
        ],
    );
    let stranger = sender();
    let bytes = published::key_write(None, 0, 1, [10, 0, 0, 1], 1);
    stranger.send_to(&bytes, collector.reports).unwrap();

    // Beyond the burst, reports that the reporter keeps are requested again: of version 2 at the port
    // that they came from.
    let reporter = UdpSocket::bind("127.0.0.2:0").unwrap();
    reporter.set_read_timeout(Some(PATIENCE)).unwrap();
    let reports: Vec<Vec<u8>> = (0..100_u8)
        .map(|n| vec![192, 0, 2, n, 0, 0, 0, n])
        .collect();
    let datagram = packed(0x21, 0x40, 1000, [4, 4, 2], &reports);
    reporter.send_to(&datagram, collector.reports).unwrap();
    let mut nack = [0; 64];
    let (len, from) = reporter.recv_from(&mut nack).unwrap();
    assert_eq!((len, from), (8, collector.reports));
    assert_eq!(nack[..2], [0x2f, 0x80]);
    let count = u16::from_be_bytes([nack[2], nack[3]]);
    let first = u32::from_be_bytes([nack[4], nack[5], nack[6], nack[7]]);
    assert_eq!(
        first + u32::from(count),
        1100,
        "the last ones: {first}, {count}"
    );

    // The published protocol has a port for it.
    let listener = UdpSocket::bind("127.0.0.3:40044").unwrap();
    listener.set_read_timeout(Some(PATIENCE)).unwrap();
    let reporter = UdpSocket::bind("127.0.0.3:0").unwrap();
    let kept = published::key_write(Some(99), 0x40, 4, [10, 0, 0, 3], 1);
    reporter.send_to(&kept, collector.reports).unwrap();
    let len = listener.recv(&mut nack).unwrap();
    assert_eq!(nack[..len], [99, 0x80]);

    let status = wait_for(&store, &["status"], |status| {
        number(&status["not_allowed"]) == 1 && number(&status["nacks_sent"]) == 2
    });
    let totals = &status["totals"];
    assert_eq!(totals["dropped_by_rate"], u64::from(count) + 1);
    assert_eq!(number(&totals["reports"]), 101);
    assert!(answer(&store, &["get", "10.0.0.1"]).is_none());
    collector.end();

    let mut open = strata();
    open.args(["telemetry", "run", "--listen", "0.0.0.0:0", "-o"])
        .arg(dir.path().join("x"));
    let output = open.output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.contains("--allow") && error.contains("forge"),
        "{error}"
    );
}

#[test]
fn the_status_says_how_many_values_can_still_be_asked_for() {
    let dir = TempDir::new().unwrap();
    let store = dir.path().join("store");
    let listen = ["--listen", "127.0.0.1:0", "--int", "127.0.0.1:0"];
    let collector = Collector::with(
        &store,
        &[&listen[..], &["--store-memory", "1088KiB"]].concat(),
    );
    let socket = sender();
    // 30,720 slots, 40,000 values of two copies each.
    for first in (0..40_000_u32).step_by(100) {
        let value = |n: u32| [n.to_be_bytes(), n.to_be_bytes()].concat();
        let values: Vec<_> = (first..first + 100).map(value).collect();
        let datagram = packed(0x21, 0, first, [4, 4, 2], &values);
        socket.send_to(&datagram, collector.reports).unwrap();
    }
    let all = |status: &Value| status["totals"]["accepted"] == 40_000;
    let status = wait_for(&store, &["status"], all);
    let values = &status["key_write"];
    let real = |field: &str| values[field].as_f64().unwrap();
    assert!(
        (real("load") - 80_000.0 / 30_720.0).abs() < 1e-6,
        "{values}"
    );
    // One of each datagram.
    assert_eq!((real("sampled"), real("changed")), (400.0, 0.0), "{values}");
    let [answered, expected] = ["answered", "answers_expected"].map(|at| real(at) / 400.0);
    // (1 - e^-c)^2 are lost after c writes a slot, on average over 0 to 2.6.
    assert!((expected - 0.52).abs() < 0.01, "{values}");
    // Six standard deviations.
    assert!((answered - expected).abs() < 0.15, "{values}");
    let text = ok(&mut telemetry(&store, &["status"]));
    assert!(
        text.contains("2.60 writes per slot;") && text.contains(" % by the formula"),
        "{text}"
    );
    let page = ok(telemetry(&store, &["status"]).arg("--metrics"));
    for line in [
        "strata_telemetry_reports_total{result=\"accepted\"} 40000",
        "strata_telemetry_operations_total{store=\"key-write\"} 80000",
        &format!("strata_telemetry_answered_ratio{{by=\"measured\"}} {answered:?}"),
    ] {
        assert!(page.lines().any(|has| has == line), "{line}: {page}");
    }
    let promtool = workspace_root().join("target/tools/promtool");
    let promtool = match promtool.exists() {
        true => promtool,
        false => "promtool".into(),
    };
    let file = dir.path().join("metrics.prom");
    fs::write(&file, page).unwrap();
    let mut check = Command::new(promtool);
    check
        .args(["check", "metrics"])
        .stdin(fs::File::open(&file).unwrap());
    let checked = check
        .output()
        .expect("promtool is installed (`make tools`)");
    assert!(
        checked.status.success() && checked.stderr.is_empty(),
        "{checked:?}"
    );
}

#[test]
fn counters_are_halved_or_reset_once_in_a_period() {
    let add = packed(
        0x23,
        0,
        0,
        [4, 8, 2],
        &[[&[10, 0, 0, 1][..], &1_000_u64.to_be_bytes()].concat()],
    );
    let query = ["get", "10.0.0.1"];
    for option in ["--halve-counters", "--reset-counters"] {
        let dir = TempDir::new().unwrap();
        let store = dir.path().join("store");
        let collector = Collector::start(&store, &[option, "2s"]);
        sender().send_to(&add, collector.reports).unwrap();
        wait_for(&store, &["status"], |status| {
            status["totals"]["accepted"] == 1
        });
        if option == "--reset-counters" {
            let start = Instant::now();
            while answer(&store, &query).is_some() {
                assert!(start.elapsed() < PATIENCE);
                thread::sleep(Duration::from_millis(50));
            }
        } else {
            let less = |found: &Value| number(&found["count"]["at_most"]) < 1000;
            let found = wait_for(&store, &query, less);
            let now = number(&found["count"]["at_most"]);
            assert!((1..10).any(|halvings| now == 1000 >> halvings), "{found}");
        }
        wait_for(&store, &["status"], |status| {
            number(&status["key_increment"]["faded"]) > 0
        });
    }
    let refused = strata()
        .args(["telemetry", "run", "-o", "x", "--halve-counters", "0s"])
        .output()
        .unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(
        !refused.status.success() && said.contains("must be above 0"),
        "{said}"
    );
}

#[test]
fn generated_reports_are_found_and_a_list_is_followed() {
    let dir = TempDir::new().unwrap();
    let store = dir.path().join("store");
    // So that its rings keep 500 entries.
    let collector = Collector::start(&store, &["--entry-bytes", "18"]);
    let mut follow = telemetry(&store, &["list", "9", "--follow"]);
    let mut follow = follow.stdout(Stdio::piped()).spawn().unwrap();
    let to = collector.reports.to_string();
    let mut generate = strata();
    generate.args([
        "telemetry",
        "generate",
        "--send-to",
        &to,
        "--rate",
        "20k",
        "-c",
        "8k",
    ]);
    generate.args(["--key-count", "50", "--seed", "9", "--retransmit"]);
    let said = ok(&mut generate);
    assert!(said.starts_with("8,000 reports in "), "{said}");
    let status = wait_for(&store, &["status"], |status| {
        number(&status["totals"]["reports"]) + number(&status["socket_drops"]) >= 8000
    });
    assert_eq!(status["totals"]["accepted"], 8000, "{status:#}");
    let top = answer(&store, &["top", "-n", "3"]).unwrap();
    let counts: Vec<u64> = top["keys"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| number(&row["count"]))
        .collect();
    assert!(counts.len() == 3 && counts[0] >= counts[1] && counts[1] >= counts[2]);
    // Zipf over 50 keys: the first has 22 % of 2,000 additions.
    assert!((350..600).contains(&counts[0]), "{counts:?}");
    let start = Instant::now();
    while (8..12).any(|list| entries(&store, &list.to_string()).len() != 500) {
        assert!(start.elapsed() < PATIENCE);
    }
    // What it shows by then, and not less: the list is complete.
    signal(&follow, "INT");
    let mut lines = String::new();
    follow
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut lines)
        .unwrap();
    assert!(follow.wait().unwrap().success());
    assert_eq!(lines.lines().count(), entries(&store, "9").len());
    collector.end();
}

/// Paths, latencies and events of a store as the Python package sees them.
const IN_PYTHON: &str = r#"
import sys
import strata.telemetry as telemetry

store = telemetry.Store(sys.argv[1])
rows = [line.split() for line in open(sys.argv[2])]
ends = [(row[0].rsplit(":", 1), row[2].rsplit(":", 1)) for row in rows]
flows = telemetry.flow_keys(
    [a[0] for a, _ in ends], [b[0] for _, b in ends],
    [int(a[1]) for a, _ in ends], [int(b[1]) for _, b in ends], 6,
)
paths, known, whole = store.paths(flows)
assert not whole.any()  # nodes report for themselves
firsts, found = store.values(telemetry.flow_at_keys(paths[:, 0], flows))
for row, path, k, first, f in zip(rows, paths, known, firsts, found):
    path = " ".join(str(node) for node in path if node >= 0) if k else "?"
    print(path, int.from_bytes(bytes(first), "big") if f else "?", sep="\t")
print(len(store.list("congestion")))
"#;

#[test]
fn python_reads_the_memory_that_the_collector_writes() {
    let python = workspace_root().join("python/.venv/bin/python");
    if !python.exists() {
        eprintln!("not run: no python/.venv; `make python` makes it");
        assert!(std::env::var_os("CI").is_none(), "CI has no python/.venv");
        return;
    }
    let dir = TempDir::new().unwrap();
    let store = dir.path().join("store");
    let collector = Collector::start(&store, &[]);
    let generate = |more: &[&str]| {
        let mut command = strata();
        command.args([
            "telemetry",
            "generate",
            "--profile",
            "fat-tree",
            "--key-count",
            "30",
        ]);
        command.args(more);
        ok(&mut command)
    };
    let listed = dir.path().join("flows.txt");
    let flows = generate(&["--list-flows"]);
    fs::write(&listed, &flows).unwrap();
    let to = collector.int.to_string();
    generate(&["--send-to", &to, "--zipf", "0", "--rate", "4k", "-c", "4k"]);
    // Whether the collector runs or not, and once nothing waits any more.
    wait_for(&store, &["status"], |status| {
        let came = number(&status["int"]["datagrams"]) + number(&status["socket_drops"]);
        let held = number(&status["postcarding"]["held"]) + number(&status["append"]["held"]);
        came >= 4000 && held == 0
    });
    let output = Command::new(&python)
        .args(["-c", IN_PYTHON])
        .args([&store, &listed])
        .env("PYTHONPATH", workspace_root().join("python"))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let said = String::from_utf8(output.stdout).unwrap();
    let (rows, events) = said.trim_end().rsplit_once('\n').unwrap();
    assert_eq!(rows.lines().count(), 30);
    for (row, flow) in rows.lines().zip(flows.lines()) {
        let (flow, nodes) = flow.split_once('\t').unwrap();
        let (path, latency) = row.split_once('\t').unwrap();
        assert_eq!(path, nodes, "{flow}");
        let found = answer(&store, &["path", flow]).unwrap();
        assert_eq!(found["hops"][0]["latency"].to_string(), latency, "{flow}");
    }
    assert_eq!(events, entries(&store, "congestion").len().to_string());
    collector.end();
}

/// A value and an addition for 10.0.0.1, and a path.
fn told(to: SocketAddr, sequence: u32, value: u8) {
    let socket = sender();
    let key = [10, 0, 0, 1];
    let reports = [
        published::key_write(None, 0, 2, key, u32::from(value)),
        published::key_increment(None, key, u64::from(value)),
    ];
    for report in reports {
        socket.send_to(&report, to).unwrap();
    }
    let card = |hop: u8| [&FLOW[..], &[hop, 2], &[0, 0, 0, value + hop]].concat();
    let cards = packed(0x24, 0, sequence, [13, 4, 0], &[card(0), card(1)]);
    socket.send_to(&cards, to).unwrap();
}

#[test]
fn generations_answer_by_time_and_the_oldest_makes_way() {
    let dir = TempDir::new().unwrap();
    let store = dir.path().join("store");
    // What is told at the beginning of one arrives before its end, also on a busy machine.
    let options = ["--generations", "3", "--generation-period", "2s"];
    let collector = Collector::start(&store, &options);
    let query = ["get", "10.0.0.1"];
    let mut seen: Vec<(u64, u64)> = Vec::new();
    for value in 1..=4_u8 {
        told(collector.reports, 0, value);
        let found = wait_for(&store, &query, |found| found["value"]["number"] == value);
        let begun = number(&found["value"]["begun_ns"]);
        let path = wait_for(&store, &["path", FLOW_TEXT], |path| {
            path["hops"][0]["node"] == value
        });
        assert!(number(&path["begun_ns"]) >= begun, "{path}");
        assert!(begun > 1_700_000_000_000_000_000, "{found}");
        assert!(seen.last().is_none_or(|&(last, _)| last < begun), "{found}");
        seen.push((begun, u64::from(value)));
        // The next value comes in the next generation.
        wait_for(&store, &["status"], |status| {
            let youngest = &status["generations"]["present"][0];
            number(&youngest["begun_ns"]) > begun
        });
    }
    // Of those that are there, three at most, each has what it was given, and no other.
    let found = answer(&store, &query);
    let generations = found.as_ref().map(|found| found["generations"].clone());
    let generations = generations.as_ref().and_then(Value::as_array);
    for generation in generations.into_iter().flatten() {
        let begun = number(&generation["begun_ns"]);
        let told = seen.iter().find(|&&(of, _)| of == begun);
        let expected = told.map_or(Value::Null, |&(_, value)| value.into());
        assert_eq!(
            generation["value"]["number"], expected,
            "{found:?} {seen:?}"
        );
        assert_eq!(
            generation["count"]["at_most"], expected,
            "{found:?} {seen:?}"
        );
    }
    let present = |status: &Value| status["generations"]["present"].as_array().unwrap().len();
    let status = wait_for(&store, &["status"], |status| present(status) == 3);
    assert_eq!(status["generations"]["count"], 3);
    let page = ok(&mut telemetry(&store, &["status"]));
    assert!(
        page.contains(" of 3, of 2 s each; the youngest since "),
        "{page}"
    );
    // The first ones are gone, and what is not written any more goes in the end.
    let start = Instant::now();
    while answer(&store, &query).is_some() {
        assert!(start.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(50));
    }
    assert!(answer(&store, &["path", FLOW_TEXT]).is_none());
    assert!(
        answer(&store, &["top"]).unwrap()["keys"]
            .as_array()
            .unwrap()
            .is_empty()
    );
    collector.end();
}

#[test]
fn generations_go_on_after_a_kill_and_only_as_they_were_made() {
    let dir = TempDir::new().unwrap();
    let store = dir.path().join("store");
    let options = ["--generations", "3", "--generation-period", "1s"];
    let collector = Collector::start(&store, &options);
    let query = ["get", "10.0.0.1"];
    told(collector.reports, 2, 9);
    wait_for(&store, &query, |found| found["value"]["number"] == 9);
    collector.kill();
    assert!(answer(&store, &query).is_some());
    let run = |options: &[&str]| {
        let mut command = strata();
        command.args(["telemetry", "run", "--listen", "127.0.0.1:0", "-o"]);
        command.arg(&store).args(options);
        command
    };
    for (options, said) in [
        (
            &["--generations", "2"][..],
            "made with --generations 3, not 2",
        ),
        (&["--halve-counters", "1h"], "a store with generations"),
    ] {
        let error = failed(&mut run(options));
        assert!(error.contains(said), "{error}");
    }
    let again = Collector::with(&store, &["--listen", "127.0.0.1:0", "--int", "127.0.0.1:0"]);
    told(again.reports, 0, 11);
    wait_for(&store, &query, |found| found["value"]["number"] == 11);
    again.end();
    for (options, said) in [
        (&["--generations", "5"][..], "from 1 to 4"),
        (&["--generation-period", "1h"], "--generations"),
        (
            &["--generations", "1", "--generation-period", "1h"],
            "2 to 4",
        ),
        (
            &["--generations", "2", "--generation-period", "400d"],
            "366d",
        ),
        (
            &["--generations", "2", "--reset-counters", "1h"],
            "cannot be used",
        ),
    ] {
        let output = run(options).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(2) && error.contains(said),
            "{error}"
        );
    }
}

#[test]
fn addresses_that_somebody_made_up_keep_no_reporter_out() {
    let dir = TempDir::new().unwrap();
    let store = dir.path().join("store");
    let collector = Collector::start(&store, &[]);
    let value = |key: [u8; 4]| {
        let report = [&key[..], &[0, 0, 0, 7]].concat();
        packed(0x21, 0, 0, [4, 4, 2], &[report])
    };
    let send = |source: [u8; 4], key: [u8; 4]| {
        let address = SocketAddr::from((source, 0));
        let socket = UdpSocket::bind(address).unwrap();
        socket.send_to(&value(key), collector.reports).unwrap();
    };
    for n in 0..1100_u16 {
        let [high, low] = n.to_be_bytes();
        send([127, 9, high, low.max(1)], [10, 9, high, low]);
        if n.is_multiple_of(64) {
            thread::yield_now();
        }
    }
    wait_for(&store, &["status"], |status| {
        number(&status["totals"]["reports"]) + number(&status["socket_drops"]) >= 1100
    });
    // A late one, and its next report with the same number as those of others.
    for key in [[10, 8, 0, 1], [10, 8, 0, 2]] {
        send([127, 8, 0, 1], key);
    }
    for key in ["10.8.0.1", "10.8.0.2"] {
        let found = wait_for(&store, &["get", key], |_| true);
        assert_eq!(found["value"]["number"], 7);
    }
    let page = wait_for(&store, &["status"], |status| {
        let reporters = status["reporters"].as_array().unwrap();
        let others = reporters.iter().find(|one| one["address"] == "others");
        others.is_some_and(|others| number(&others["accepted"]) >= 2)
    });
    assert_eq!(page["reporters_refused"], 0);
    let text = ok(&mut telemetry(&store, &["status"]));
    assert!(
        text.contains("1,022, the maximum that is counted separately; "),
        "{text}"
    );
    collector.end();
}

/// The rows of the paper's Table 2 that are no INT, in bytes as their papers have them.
#[test]
fn reports_of_other_systems_are_stored_and_found() {
    let dir = TempDir::new().unwrap();
    let store = dir.path().join("store");
    let collector = Collector::start(&store, &["--data-bytes", "20"]);
    let socket = sender();
    let send = |bytes: &[u8]| {
        socket.send_to(bytes, collector.reports).unwrap();
    };
    let flow_at = [&[0, 0, 0, 7][..], &FLOW].concat();
    // A path of five ids as one value (published header); a byte of PINT; a result of Sonata's query 3; what
    // PacketScope says of a flow at a switch.
    send(&[&[1, 0, 2, 10, 0, 0, 9][..], &[0, 0, 0, 1].repeat(5)].concat());
    send(&packed(
        0x21,
        0,
        0,
        [13, 1, 3],
        &[[&FLOW[..], &[0x5a]].concat()],
    ));
    send(&packed(
        0x21,
        0,
        1,
        [4, 8, 2],
        &[[&[0, 0, 0, 3][..], &[1, 2, 3, 4, 5, 6, 7, 8]].concat()],
    ));
    send(&packed(
        0x21,
        0,
        2,
        [17, 2, 2],
        &[[&flow_at[..], &[0xab, 0xcd]].concat()],
    ));
    // Two evicted records of TurboFlow; a label of Trajectory Sampling at two hops.
    let evicted = |packets: u64| [&FLOW[..], &packets.to_be_bytes()].concat();
    send(&packed(0x23, 0, 3, [13, 8, 2], &[evicted(30), evicted(12)]));
    let label = |hop: u8| vec![0xde, 0xad, hop, 2, 0, 0, 0, 20 + hop];
    send(&packed(0x24, 0, 5, [2, 4, 0], &[label(0), label(1)]));
    // A loss of NetSeer, 18 bytes; a lossy connection of Marple, 13 bytes.
    let loss = [&[0, 0, 0, 20][..], &FLOW, &[1, 0, 0, 0, 5]].concat();
    send(&packed(0x22, 0, 7, [0, 18, 0], std::slice::from_ref(&loss)));
    send(&packed(
        0x22,
        0,
        8,
        [0, 13, 0],
        &[[&[0, 0, 0, 21][..], &FLOW].concat()],
    ));
    wait_for(&store, &["status"], |status| {
        status["totals"]["accepted"] == 10
    });
    let value = |key: &str| {
        let found = wait_for(&store, &["get", key], |_| true);
        found["value"]["bytes"].as_str().unwrap().to_owned()
    };
    assert_eq!(value("10.0.0.9"), format!("0x{}", "00000001".repeat(5)));
    assert!(value(FLOW_TEXT).starts_with("0x5a00"));
    assert!(value("node 3").starts_with("0x010203040506070800"));
    assert!(value(&format!("node 7 {FLOW_TEXT}")).starts_with("0xabcd00"));
    let counted = answer(&store, &["get", FLOW_TEXT]).unwrap();
    assert_eq!(counted["count"]["at_most"], 42);
    let path = wait_for(&store, &["path", "0xdead"], |path| path["whole"] == true);
    let nodes = path["hops"]
        .as_array()
        .unwrap()
        .iter()
        .map(|hop| number(&hop["node"]));
    assert_eq!(nodes.collect::<Vec<_>>(), [20, 21]);
    for (list, entry) in [("20", &loss[4..]), ("21", &FLOW[..])] {
        let start = Instant::now();
        while entries(&store, list).is_empty() {
            assert!(start.elapsed() < PATIENCE);
        }
        let digits: String = entry.iter().map(|byte| format!("{byte:02x}")).collect();
        let found = entries(&store, list)[0]["bytes"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(found.starts_with(&format!("0x{digits}00")), "{found}");
    }
    collector.end();
}
