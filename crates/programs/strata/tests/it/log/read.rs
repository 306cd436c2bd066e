//! `strata read` and `strata top`, compared with tcpdump, an export and naive counts, in both tiers.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use strata_capture::{Input, InputOptions, Next};
use strata_testkit::data_dir;
use strata_wire::grouped;

use crate::common::program::{failed, ok, record, refused, strata};

pub(super) fn mix() -> PathBuf {
    data_dir().join("labelled/mix-test/trace.pcap")
}

/// A log with every packet whole.
fn whole(trace: &Path, dir: &Path) -> PathBuf {
    let log = dir.join("log");
    ok(record(trace, &log).args(["--mode", "log-all", "--detail", "none"]));
    log
}

fn lines(command: &str, log: &Path, arguments: &[&str]) -> Vec<String> {
    let text = ok(strata().arg(command).arg(log).args(arguments));
    text.lines().map(str::to_owned).collect()
}

/// What tcpdump prints, one line a packet: those with its further layers and bytes have no time.
pub(super) fn tcpdump(trace: &Path, arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new("tcpdump");
    let command = command.arg("-n").arg("-r").arg(trace).args(arguments);
    let output = command.env("TZ", "UTC").output().unwrap();
    assert!(output.status.success(), "{command:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let is_packet = |line: &&str| {
        let time = line.as_bytes().get(..9);
        time.is_some_and(|time| [time[2], time[5], time[8]] == *b"::.")
    };
    text.lines().filter(is_packet).map(str::to_owned).collect()
}

/// A TCP or UDP packet as `read` has to show it, from a line of `tcpdump -q` and one without `-q`.
fn expected(quiet: &str, full: &str) -> Option<String> {
    let (ends, rest) = quiet.split_once(": ")?;
    if let Some(length) = rest.strip_prefix("UDP, length ") {
        return Some(format!("{ends}: UDP, length {length}"));
    }
    let length: u32 = rest.strip_prefix("tcp ")?.parse().ok()?;
    let (_, flags) = full.split_once(": Flags [")?;
    let (flags, _) = flags.split_once(']')?;
    Some(format!("{ends}: Flags [{flags}], length {length}"))
}

/// Compares each packet with tcpdump's line for it; how many were compared, by their protocol.
fn compare(log: &Path) -> BTreeMap<String, usize> {
    let shown = lines("read", log, &["--utc"]);
    // As for tcpdump, which would look for names without it.
    let some = ["--utc", "-c", "50"];
    let plain = lines("read", log, &some);
    assert_eq!(lines("read", log, &[&some[..], &["-nn"]].concat()), plain);
    let (quiet, full) = (tcpdump(&mix(), &["-q"]), tcpdump(&mix(), &[]));
    assert_eq!([shown.len(), full.len()], [67_690; 2]);
    assert_eq!(quiet.len(), full.len());
    let mut compared = BTreeMap::new();
    for (shown, (quiet, full)) in shown.iter().zip(quiet.iter().zip(&full)) {
        let (packet, why) = shown.split_once("  class=").unwrap();
        assert!(why.contains(" reason="), "{shown}");
        let time = |line: &str| line.split(' ').next().map(str::to_owned);
        assert_eq!(time(packet), time(full));
        // tcpdump's line shows the outermost packet, this one the innermost.
        if packet.contains(", in tunnel ") {
            continue;
        }
        if let Some(expected) = expected(quiet, full) {
            assert_eq!(packet, expected);
            let version = expected.split(' ').nth(1).unwrap();
            let kind = if expected.contains(": UDP") {
                "UDP"
            } else {
                "TCP"
            };
            *compared.entry(format!("{version} {kind}")).or_default() += 1;
        }
        let arp = full.split_once(" ARP, Reply ");
        if let Some((_, reply)) = arp {
            let (_, ours) = packet.split_once(" ARP, Reply ").unwrap();
            assert_eq!(ours, reply);
            *compared.entry("ARP".into()).or_default() += 1;
        }
    }
    compared
}

#[test]
fn packets_are_shown_as_tcpdump_shows_them() {
    let dir = tempfile::tempdir().unwrap();
    let log = whole(&mix(), dir.path());
    let check = || {
        let compared = compare(&log);
        for (kind, least) in [
            ("IP TCP", 45_000),
            ("IP UDP", 14_000),
            ("IP6 TCP", 3_000),
            ("IP6 UDP", 400),
            ("ARP", 10),
        ] {
            let count = compared.get(kind).copied();
            assert!(count.is_some_and(|count| count >= least), "{compared:?}");
        }
        for filter in ["tcp port 443", "udp port 53", "ip6", "arp", "greater 1000"] {
            let shown = lines("read", &log, &[filter]).len();
            assert_eq!(shown, tcpdump(&mix(), &[filter]).len(), "{filter}");
            assert!(shown > 100, "{filter}");
        }
        lines("read", &log, &["--date"])
    };
    let before = check();
    ok(strata().arg("compact").arg(&log));
    assert!(check() == before, "compaction changes a line");
    let first = lines("read", &log, &["--date", "-c", "100"]);
    assert_eq!(first, before[..100]);
    let none = lines("read", &log, &["--from", "2038-01-01T00:00Z"]);
    assert!(none.is_empty());
}

#[test]
fn json_has_the_columns_of_the_table_and_selections_are_those_of_an_export() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    ok(&mut record(mix(), &log));
    let parse = |arguments: &[&str]| -> Vec<Value> {
        let text = lines("read", &log, &[&["--json"], arguments].concat());
        text.iter()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    // A later fragment has the ports of its first one only where that is selected too.
    let without_ports = |object: &Value| {
        let mut object = object.as_object().unwrap().clone();
        object.retain(|name, _| !name.ends_with("_port"));
        object
    };
    let same = |there: &[Value], wanted: &[&Value]| {
        let wanted = wanted.iter().map(|one| without_ports(one));
        there.iter().map(without_ports).eq(wanted)
    };
    let check = || {
        let all = parse(&[]);
        assert_eq!(all.len(), 67_690);
        let is_of_ip = |packet: &&Value| packet["protocol"] == 6;
        let tcp = all.iter().find(is_of_ip).unwrap();
        assert_eq!(tcp["time"], "2023-11-14T22:13:20.248353313Z");
        assert_eq!(tcp["src"], "10.10.10.30");
        assert_eq!(tcp["dst_port"], 80);
        for name in [
            "wire_bytes",
            "payload_bytes",
            "tcp_flags",
            "length",
            "reason",
        ] {
            assert!(!tcp[name].is_null(), "{name}: {tcp}");
        }
        for granularity in ["full", "partial", "header"] {
            let wanted = all.iter().filter(|one| one["granularity"] == granularity);
            let wanted: Vec<&Value> = wanted.collect();
            let there = parse(&["--granularity", granularity]);
            assert!(same(&there, &wanted), "{granularity}");
        }
        let (class, reason) = (&tcp["class"], &tcp["reason"]);
        let is_so = |one: &&Value| one["class"] == *class && one["reason"] == *reason;
        let wanted: Vec<&Value> = all.iter().filter(is_so).collect();
        let [class, reason] = [class, reason].map(|text| text.as_str().unwrap());
        let there = parse(&["--class", class, "--reason", reason]);
        assert!(same(&there, &wanted));
        all
    };
    let before = check();
    ok(strata().arg("compact").arg(&log));
    assert!(check() == before, "compaction changes an object");
}

#[test]
fn a_reader_that_goes_is_no_failure() {
    let dir = tempfile::tempdir().unwrap();
    let log = whole(&mix(), dir.path());
    for options in [&[][..], &["--json"]] {
        let mut read = strata();
        let read = read.arg("read").arg(&log).args(options);
        let piped = read.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        let mut first = [0];
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut first).unwrap();
        drop(stdout);
        let ended = child.wait_with_output().unwrap();
        assert!(ended.status.success());
        assert_eq!(String::from_utf8(ended.stderr).unwrap(), "");
    }
}

/// Packets, wire bytes and kept bytes.
type Sums = [u64; 3];

fn sums(value: &Value) -> Sums {
    ["packets", "wire_bytes", "kept_bytes"].map(|name| value[name].as_u64().unwrap())
}

fn plus(a: Sums, b: Sums) -> Sums {
    [a[0] + b[0], a[1] + b[1], a[2] + b[2]]
}

fn top(log: &Path, arguments: &[&str]) -> Value {
    let text = ok(strata().args(["top", "--json"]).arg(log).args(arguments));
    serde_json::from_str(&text).unwrap()
}

/// Checks that an answer's parts add up to its total, which it returns.
fn closed(answer: &Value) -> Sums {
    let rows = answer["largest"].as_array().unwrap().iter();
    let parts = rows.chain([&answer["others"], &answer["beyond"]]);
    let parts = parts.filter(|part| !part.is_null()).map(sums);
    let total = sums(&answer["total"]);
    let twice = match &answer["counted_twice"] {
        Value::Null => [0; 3],
        twice => sums(twice),
    };
    assert_eq!(parts.fold([0; 3], plus), plus(total, twice));
    total
}

/// TCP packets and their bytes by address, by a program that knows Ethernet, IPv4 and IPv6 and no more.
fn naive_hosts(trace: &Path) -> [BTreeMap<String, Sums>; 3] {
    let mut input = Input::open(&[trace.to_path_buf()], &InputOptions::default()).unwrap();
    let [mut hosts, mut sources, mut destinations] = [(); 3].map(|()| BTreeMap::new());
    let v4 = |bytes: &[u8]| Ipv4Addr::from(<[u8; 4]>::try_from(bytes).unwrap()).to_string();
    let v6 = |bytes: &[u8]| Ipv6Addr::from(<[u8; 16]>::try_from(bytes).unwrap()).to_string();
    loop {
        match input.advance().unwrap() {
            Next::End => return [hosts, sources, destinations],
            Next::Meta(_) => {}
            Next::Packets => {
                for packet in input.batch().iter() {
                    let data = packet.data;
                    let [source, destination] = match data[12..14] {
                        [0x08, 0x00] if data[23] == 6 => [v4(&data[26..30]), v4(&data[30..34])],
                        [0x86, 0xdd] if data[20] == 6 => [v6(&data[22..38]), v6(&data[38..54])],
                        _ => continue,
                    };
                    let one = [1, packet.wire_len.into(), data.len() as u64];
                    for (ends, end) in [(&mut sources, &source), (&mut destinations, &destination)]
                    {
                        let sums = ends.entry(end.clone()).or_insert([0; 3]);
                        *sums = plus(*sums, one);
                    }
                    if source != destination {
                        let sums = hosts.entry(destination).or_insert([0; 3]);
                        *sums = plus(*sums, one);
                    }
                    let sums = hosts.entry(source).or_insert([0; 3]);
                    *sums = plus(*sums, one);
                }
            }
        }
    }
}

#[test]
fn hosts_are_counted_as_a_naive_program_counts_them() {
    let dir = tempfile::tempdir().unwrap();
    let log = whole(&mix(), dir.path());
    let naive = naive_hosts(&mix());
    assert!(naive.iter().all(|ends| ends.len() > 100));
    assert_ne!(naive[1], naive[2]);
    let check = || {
        for (by, naive) in ["host", "source", "destination"].iter().zip(&naive) {
            let answer = top(&log, &["--by", by, "-n", "1000000", "tcp"]);
            closed(&answer);
            let rows = answer["largest"].as_array().unwrap();
            let counted = rows.iter().map(|row| {
                let host = row[by].as_str().unwrap().to_owned();
                (host, sums(row))
            });
            assert_eq!(&counted.collect::<BTreeMap<_, _>>(), naive, "{by}");
        }
    };
    check();
    ok(strata().arg("compact").arg(&log));
    check();
    let text = ok(strata().arg("top").arg(&log).args(["--by", "host"]));
    assert!(text.lines().next().unwrap().contains("200 %"), "{text}");
}

/// Pairs of addresses and their TCP packets, as tshark finds them: as in a filter of tcpdump, without tags and tunnels.
fn tshark_pairs(trace: &Path) -> BTreeMap<[String; 2], u64> {
    let mut command = Command::new("tshark");
    command.arg("-n").arg("-r").arg(trace);
    let untagged = "eth.type == 0x0800 and ip.proto == 6";
    command.args([
        "-Y", untagged, "-T", "fields", "-e", "ip.src", "-e", "ip.dst",
    ]);
    let mut pairs = BTreeMap::new();
    let text = ok(&mut command);
    // Several headers have their addresses with commas.
    for line in text.lines().filter(|line| !line.contains(',')) {
        let (source, destination) = line.split_once('\t').unwrap();
        let mut pair = [source.to_owned(), destination.to_owned()];
        pair.sort();
        *pairs.entry(pair).or_insert(0) += 1;
    }
    pairs
}

#[test]
fn pairs_are_those_of_tshark_and_a_graph_has_the_largest() {
    let dir = tempfile::tempdir().unwrap();
    let log = whole(&mix(), dir.path());
    let answer = top(&log, &["--by", "pair", "-n", "1000000", "ip and tcp"]);
    closed(&answer);
    let rows = answer["largest"].as_array().unwrap().iter();
    let counted = rows.map(|row| {
        let (one, other) = row["pair"].as_str().unwrap().split_once(" - ").unwrap();
        let mut pair = [one.to_owned(), other.to_owned()];
        pair.sort();
        (pair, row["packets"].as_u64().unwrap())
    });
    let counted: BTreeMap<[String; 2], u64> = counted.collect();
    assert!(counted.len() > 100);
    assert_eq!(counted, tshark_pairs(&mix()));
    let largest = counted.values().max().unwrap();
    let graph = lines(
        "top",
        &log,
        &["--by", "pair", "--graph", "-n", "3", "ip and tcp"],
    );
    let edges: Vec<&String> = graph.iter().filter(|line| line.contains(" -- ")).collect();
    assert_eq!(
        (graph.first().unwrap().as_str(), edges.len()),
        ("graph {", 3)
    );
    let widest = format!("[label=\"{}\", penwidth=8.0];", grouped(*largest));
    assert!(edges[0].ends_with(&widest), "{graph:#?}");
    assert!(
        graph[1].contains("3 pairs: ") && graph[1].contains(" %)"),
        "{graph:#?}"
    );
    let said = refused(strata().arg("top").arg(&log).arg("--graph"));
    assert!(said.contains("--by pair"), "{said}");
}

#[test]
fn pairs_and_their_graph_have_the_names_of_hosts() {
    let dir = tempfile::tempdir().unwrap();
    let log = whole(&mix(), dir.path());
    let names = dir.path().join("names");
    std::fs::write(&names, "10.10.10.6 server\n10.10.10.30 the-\"client\n").unwrap();
    let names = names.to_str().unwrap();
    let filter = "host 10.10.10.6 and host 10.10.10.30";
    let options = ["--by", "pair", "--names", names, filter];
    let known = "10.10.10.6 (server) - 10.10.10.30 (the-\"client)";
    let table = lines("top", &log, &options);
    assert!(table[1].ends_with(known), "{table:#?}");
    let answer = top(&log, &options);
    let row = &answer["largest"][0];
    assert_eq!(row["pair"], "10.10.10.6 - 10.10.10.30", "{answer}");
    let hosts = serde_json::json!([
        { "address": "10.10.10.6", "name": "server" },
        { "address": "10.10.10.30", "name": "the-\"client" },
    ]);
    assert_eq!(row["hosts"], hosts, "{answer}");
    let graph = lines("top", &log, &[&options[..4], &["--graph", filter]].concat());
    for node in [
        "  \"10.10.10.6\" [label=\"10.10.10.6 (server)\"];",
        "  \"10.10.10.30\" [label=\"10.10.10.30 (the-\\\"client)\"];",
    ] {
        assert!(graph.iter().any(|line| line == node), "{node}: {graph:#?}");
    }
    let edge = "  \"10.10.10.6\" -- \"10.10.10.30\" [";
    assert!(
        graph.iter().any(|line| line.starts_with(edge)),
        "{graph:#?}"
    );
    // Without files, nothing is said of hosts.
    let answer = top(&log, &["--by", "pair", filter]);
    assert!(answer["largest"][0].get("hosts").is_none(), "{answer}");
}

#[test]
fn every_answer_closes_and_is_the_same_in_both_tiers() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    ok(&mut record(mix(), &log));
    let answers = || {
        let mut answers = Vec::new();
        let mut totals = Vec::new();
        for by in [
            "flow",
            "host",
            "source",
            "destination",
            "pair",
            "port",
            "protocol",
            "class",
            "reason",
        ] {
            for of in ["packets", "wire", "kept"] {
                let answer = top(&log, &["--by", by, "--of", of, "-n", "5"]);
                totals.push(closed(&answer));
                let name = if of == "packets" {
                    "packets"
                } else {
                    &format!("{of}_bytes")
                };
                let rows = answer["largest"].as_array().unwrap().iter();
                let order: Vec<u64> = rows.map(|row| row[name].as_u64().unwrap()).collect();
                assert!(order.is_sorted_by(|a, b| a >= b), "{answer}");
                answers.push(answer);
            }
        }
        assert!(totals.iter().all(|total| *total == totals[0]));
        assert_eq!(totals[0][0], 67_690);
        answers
    };
    let before = answers();
    ok(strata().arg("compact").arg(&log));
    assert_eq!(answers(), before);
    let filtered = top(&log, &["--by", "protocol", "udp port 53"]);
    let [packets, ..] = closed(&filtered);
    assert_eq!(packets, lines("read", &log, &["udp port 53"]).len() as u64);
    let one = lines("top", &log, &["--by", "port", "-n", "1"]);
    let last = one.last().unwrap();
    assert_eq!(one.len(), 5, "{one:#?}");
    assert!(
        last.contains(&grouped(67_690)) && last.ends_with("total"),
        "{last}"
    );
}

/// The packets of a capture in two logs: those of one address and its peers in the second, which is compacted.
pub(super) fn halves(dir: &Path) -> [PathBuf; 2] {
    let half = |name: &str, filter: &str| {
        let trace = dir.join(format!("{name}.pcap"));
        let mut command = Command::new("tcpdump");
        command.arg("-r").arg(mix()).arg("-w").arg(&trace);
        assert!(command.arg(filter).output().unwrap().status.success());
        let home = dir.join(name);
        std::fs::create_dir(&home).unwrap();
        whole(&trace, &home)
    };
    let halves = [half("a", "not tcp"), half("b", "tcp")];
    ok(strata().arg("compact").arg(&halves[1]));
    halves
}

#[test]
fn several_logs_are_merged_by_time() {
    let dir = tempfile::tempdir().unwrap();
    let logs @ [a, b] = &halves(dir.path());
    let b_word = b.to_str().unwrap();
    let shown = lines("read", a, &[b_word, "--utc"]);
    // Each packet at its time, which tcpdump gives, and each line is one of its log.
    let times = shown.iter().map(|line| line.split(' ').nth(1).unwrap());
    let expected = tcpdump(&mix(), &[]);
    let expected = expected.iter().map(|line| line.split(' ').next().unwrap());
    assert!(times.eq(expected));
    for log in logs {
        let prefix = format!("{}: ", log.display());
        let of_this = shown.iter().filter_map(|line| line.strip_prefix(&prefix));
        assert!(of_this.eq(lines("read", log, &["--utc"]).iter()));
    }
    let first = lines("read", a, &[b_word, "-c", "300", "--utc"]);
    assert_eq!(first, shown[..300]);
    let filtered = lines("read", a, &[b_word, "udp port 53 or tcp port 443"]).len();
    let expected = tcpdump(&mix(), &["udp port 53 or tcp port 443"]).len();
    assert_eq!(filtered, expected);
    let object = lines("read", a, &[b_word, "--json", "-c", "1", "tcp"]).remove(0);
    let object: Value = serde_json::from_str(&object).unwrap();
    assert_eq!(object["log"], b_word);
    let counted = top(a, &[b_word, "--by", "log"]);
    for (log, filter) in [(a, "not tcp"), (b, "tcp")] {
        let rows = counted["largest"].as_array().unwrap();
        let row = rows.iter().find(|row| row["log"] == log.to_str().unwrap());
        let expected = tcpdump(&mix(), &[filter]).len();
        assert_eq!(
            row.unwrap()["packets"].as_u64(),
            u64::try_from(expected).ok()
        );
    }
    // Nothing is counted twice, and nothing left out.
    let whole = whole(&mix(), dir.path());
    for by in ["host", "flow", "protocol"] {
        let [one, two] = [top(&whole, &["--by", by]), top(a, &[b_word, "--by", by])];
        assert_eq!(closed(&one), closed(&two));
        assert_eq!(one["largest"], two["largest"], "{by}");
    }
}

/// The first packets of a capture, this number of seconds later; and when the last of them arrived, in whole seconds.
fn later(seconds: u32) -> (Vec<u8>, u32) {
    let mut bytes = std::fs::read(mix()).unwrap();
    let (mut at, mut last) = (24, 0);
    for _ in 0..100 {
        let word = |from: usize| u32::from_le_bytes(bytes[from..from + 4].try_into().unwrap());
        let len = usize::try_from(word(at + 8)).unwrap();
        let second = word(at) + seconds;
        last = last.max(second);
        bytes[at..at + 4].copy_from_slice(&second.to_le_bytes());
        at += 16 + len;
    }
    bytes.truncate(at);
    (bytes, last)
}

/// Of several logs, those without a packet in the wanted time are named.
#[test]
fn a_log_without_packets_from_the_wanted_time_is_named() {
    const DAY: u32 = 86_400;
    let dir = tempfile::tempdir().unwrap();
    let log = |name: &str, bytes: &[u8]| {
        let home = dir.path().join(name);
        std::fs::create_dir(&home).unwrap();
        let trace = home.join("trace.pcap");
        std::fs::write(&trace, bytes).unwrap();
        whole(&trace, &home)
    };
    let (early, last) = later(0);
    let (early, late) = (log("early", &early), log("late", &later(DAY).0));
    let to = (last + 1).to_string();
    let hint = |log: &Path| format!("{}: the log has no packets from that time", log.display());
    for (command, options) in [
        ("read", &[][..]),
        ("top", &[]),
        ("grep", &["."]),
        ("export", &["-w", "/dev/null"]),
    ] {
        let said = |times: &[&str]| {
            let mut run = strata();
            run.arg(command).arg(&early).arg(&late);
            let output = run.args(options).args(times).output().unwrap();
            assert!(output.status.success(), "{command}: {output:?}");
            String::from_utf8(output.stderr).unwrap()
        };
        let text = said(&["--to", &to]);
        assert!(text.contains(&hint(&late)), "{command}: {text}");
        assert!(!text.contains(&hint(&early)), "{command}: {text}");
        let text = said(&["--from", &to]);
        assert!(text.contains(&hint(&early)), "{command}: {text}");
        assert!(!text.contains(&hint(&late)), "{command}: {text}");
        let text = said(&[]);
        assert!(!text.contains("no packets from that time"), "{text}");
    }
}

#[test]
fn a_log_that_cannot_be_read_does_not_end_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let [a, b] = halves(dir.path());
    // Only a directory with a log is one: others may be words of a filter.
    let other = dir.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let said = refused_or_failed(strata().arg("read").arg(&a).arg(&other));
    assert!(said.contains("in a filter"), "{said}");
    let too_many = vec![b.clone(); 64];
    let said = refused_or_failed(strata().arg("read").arg(&a).args(&too_many));
    assert!(said.contains("at most 64 can be read together"), "{said}");
    let file = block_file(&a);
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    let output = strata().arg("read").arg(&a).arg(&b).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(file.to_str().unwrap()), "{said}");
    let of_b = format!("{}: ", b.display());
    let shown = String::from_utf8(output.stdout).unwrap();
    let shown = shown.lines().filter(|line| line.starts_with(&of_b));
    assert_eq!(shown.count(), lines("read", &b, &[]).len());
}

#[test]
fn numbers_out_of_bounds_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for number in ["0", "1000001", "-1", "many"] {
        let number = format!("-n={number}");
        let output = strata().arg("top").arg(dir.path()).arg(number).output();
        assert_eq!(output.unwrap().status.code(), Some(2));
    }
    let output = strata().arg("read").arg(dir.path()).arg("-c=0").output();
    assert_eq!(output.unwrap().status.code(), Some(2));
    let mut both = strata();
    both.arg("read").arg(dir.path()).args(["--json", "--utc"]);
    assert_eq!(both.output().unwrap().status.code(), Some(2));
}

/// The block file of a log that has one.
fn block_file(log: &Path) -> PathBuf {
    let files = std::fs::read_dir(log.join("blocks")).unwrap();
    let mut files = files.map(|entry| entry.unwrap().path());
    files
        .find(|path| path.extension().is_some_and(|suffix| suffix == "strata"))
        .unwrap()
}

/// What a command says that does not end well.
fn refused_or_failed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn damage_is_said_as_an_export_says_it() {
    let dir = tempfile::tempdir().unwrap();
    let log = whole(&mix(), dir.path());
    let file = block_file(&log);
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 4;
    std::fs::write(&file, &bytes).unwrap();
    let out = dir.path().join("out.pcapng");
    let export = failed(strata().arg("export").arg(&log).arg("-w").arg(&out));
    let about = |said: &str| -> Vec<String> {
        let lines = said.lines().filter(|line| !line.contains("exported"));
        lines.map(str::to_owned).collect()
    };
    assert!(export.contains("damaged place"), "{export}");
    let file = file.to_str().unwrap();
    for command in ["read", "top"] {
        let said = failed(strata().arg(command).arg(&log));
        assert!(said.contains(file), "{said}");
        assert_eq!(about(&said), about(&export));
    }
    // The rest is there.
    let output = strata().arg("read").arg(&log).output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap().lines().count();
    assert!(shown > 60_000 && shown < 67_690, "{shown}");
}

#[test]
fn an_export_of_several_logs_has_the_packets_of_all_by_time() {
    let dir = tempfile::tempdir().unwrap();
    let [a, b] = halves(dir.path());
    let out = dir.path().join("both.pcapng");
    let export = |more: &[&str], out: &Path| {
        let mut command = strata();
        command
            .arg("export")
            .arg(&a)
            .arg(&b)
            .arg("-w")
            .arg(out)
            .args(more);
        command
    };
    ok(&mut export(&[], &out));
    // tcpdump prints the same of it as of the capture that was divided, but for packets of one time.
    let sorted = |mut lines: Vec<String>| {
        lines.sort_unstable();
        lines
    };
    let shown = tcpdump(&out, &["-e"]);
    let times = shown.iter().map(|line| line.split(' ').next().unwrap());
    assert!(times.is_sorted());
    assert_eq!(sorted(shown), sorted(tcpdump(&mix(), &["-e"])));
    // Each packet is of an interface that says of which log it is.
    let mut capinfos = Command::new("capinfos");
    let output = capinfos.arg("-I").arg(&out).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for log in [&a, &b] {
        assert!(text.contains(&format!("log {}", log.display())), "{text}");
    }
    // A filter, and another format.
    let filtered = dir.path().join("filtered.pcap");
    ok(&mut export(
        &["--no-comments", "udp port 53 or tcp port 443"],
        &filtered,
    ));
    let expected = tcpdump(&mix(), &["udp port 53 or tcp port 443"]);
    assert_eq!(sorted(tcpdump(&filtered, &[])), sorted(expected));
    // No log is written over.
    let said = refused(&mut export(&["-F", "pcapng"], &block_file(&a)));
    assert!(said.contains("is inside the log"), "{said}");
}
