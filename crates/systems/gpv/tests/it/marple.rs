//! Queries over vectors: each that is shipped equals a naive program over packets, written apart
//! from the engine; what is wrong with a query is reported at its place.

use std::collections::HashMap;
use std::net::IpAddr;
use std::slice::from_ref;

use proptest::prelude::*;
use strata_gpv::agent::{Reassembly, ReassemblyOptions, Record};
use strata_gpv::marple::{Flows, Limits, Query, SHIPPED, Value, ValueKind, compile, shipped};
use strata_gpv::{Basic, Cache, Column, Full, Key, Packet, Parameters, Vector};
use strata_testkit::sim::{self, Rng};
use strata_wire::{AddressFamily, Endpoint, ip_addr};

use crate::common::{captured, random_packets};

/// Rows by their text, in order.
pub(crate) type Rows = Vec<String>;

fn text(value: &Value) -> String {
    match value {
        Value::Int(int) => int.to_string(),
        Value::Real(real) => format!("{real:e}"),
        Value::Bool(bool) => bool.to_string(),
        Value::Address(address) => address.to_string(),
    }
}

pub(crate) fn rows(query: &mut Query) -> Rows {
    let row = |row: &Vec<Value>| row.iter().map(text).collect::<Vec<_>>().join(" ");
    let mut rows: Rows = query.answer().rows.iter().map(row).collect();
    rows.sort();
    rows
}

fn query(name: &str, set: &[(&str, &str)]) -> Query {
    let shipped = shipped(name).unwrap();
    let program = compile(shipped.text, &shipped.with(set).unwrap())
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    Query::new::<Full>(program, Limits::default()).unwrap()
}

pub(crate) fn address(key: &Key, end: Endpoint) -> IpAddr {
    ip_addr(key.family(), end.address).unwrap()
}

pub(crate) fn flow(key: &Key) -> String {
    let (source, destination) = (key.source(), key.destination());
    let (from, to) = (address(key, source), address(key, destination));
    format!(
        "{from} {to} {} {} {}",
        source.port,
        destination.port,
        key.protocol()
    )
}

/// What a query should answer, from packets in the order in which they came. Times and sizes are
/// those that vectors hold: ns, and up to 65,535 bytes.
fn naive(name: &str, packets: &[Packet]) -> Rows {
    let mut rows: Rows = match name {
        "concurrent-connections" => {
            let mut flows: Vec<(u64, String)> = packets
                .iter()
                .map(|p| (p.ts_ns / 128_000_000, flow(&p.key)))
                .collect();
            flows.sort();
            flows.dedup();
            let mut windows: HashMap<u64, u64> = HashMap::new();
            for (window, _) in flows {
                *windows.entry(window).or_default() += 1;
            }
            windows
                .iter()
                .map(|(window, flows)| format!("{window} {flows}"))
                .collect()
        }
        "ewma-latencies" => {
            let mut averages: HashMap<String, f64> = HashMap::new();
            for packet in packets {
                let average = averages.entry(flow(&packet.key)).or_default();
                *average = 0.8 * *average + 0.2 * f64::from(packet.queue_depth);
            }
            averages
                .iter()
                .map(|(flow, average)| format!("{flow} 7 {average:e}"))
                .collect()
        }
        "flowlet-size-histogram" => {
            let mut last: HashMap<String, (u64, u64)> = HashMap::new();
            let mut sums: HashMap<u64, u64> = HashMap::new();
            for packet in packets {
                let (before_ns, size) = last.entry(flow(&packet.key)).or_default();
                // Signed: packets may be older than those before.
                if i128::from(packet.ts_ns) - i128::from(*before_ns) > 5_000_000 {
                    *sums.entry(*size / 128).or_default() += 1;
                    *size = 1;
                } else {
                    *size += 1;
                }
                *before_ns = packet.ts_ns;
            }
            sums.iter()
                .map(|(index, sum)| format!("{index} {sum}"))
                .collect()
        }
        "packet-counts-per-source" => {
            let mut counts: HashMap<IpAddr, u64> = HashMap::new();
            for packet in packets {
                *counts
                    .entry(address(&packet.key, packet.key.source()))
                    .or_default() += 1;
            }
            counts
                .iter()
                .map(|(source, count)| format!("{source} {count}"))
                .collect()
        }
        "byte-counts-per-flow" => {
            let mut flows: HashMap<String, u64> = HashMap::new();
            for packet in packets {
                *flows.entry(flow(&packet.key)).or_default() += u64::from(packet.size.min(65_535));
            }
            let rows = flows.iter();
            rows.map(|(flow, bytes)| format!("{flow} {bytes}"))
                .collect()
        }
        "payload-length-averages" => {
            let mut averages: HashMap<String, f64> = HashMap::new();
            for packet in packets {
                let average = averages.entry(flow(&packet.key)).or_default();
                let len = f64::from(packet.payload_len.min(65_535));
                *average = 0.25 * *average + 0.75 * len;
            }
            averages
                .iter()
                .map(|(flow, average)| format!("{flow} 7 {average:e}"))
                .collect()
        }
        _ => naive_tcp(name, packets),
    };
    rows.sort();
    rows
}

/// Which of two sequence numbers comes first, in halves of their space.
fn is_before(a: u64, b: u64) -> bool {
    (a.wrapping_sub(b) >> 31) % 2 == 1
}

/// Whether a packet has a TCP header: some flag is set. A later fragment has none.
fn has_header(packet: &&Packet) -> bool {
    packet.key.protocol() == 6 && packet.tcp_flags > 0
}

/// As [`naive`], of queries about TCP.
fn naive_tcp(name: &str, packets: &[Packet]) -> Rows {
    match name {
        "tcp-non-monotonic" => {
            let mut flows: HashMap<String, (u32, u64)> = HashMap::new();
            for packet in packets.iter().filter(has_header) {
                let (highest, count) = flows.entry(flow(&packet.key)).or_default();
                let (seq, before) = (packet.tcp_seq.into(), u64::from(*highest));
                *count += u64::from(before != 0 && is_before(seq, before));
                if before == 0 || is_before(before, seq) {
                    *highest = packet.tcp_seq;
                }
            }
            flows
                .iter()
                .map(|(flow, (max, count))| format!("{flow} 7 {max} {count}"))
                .collect()
        }
        "tcp-out-of-sequence" => {
            let mut flows: HashMap<String, (u64, u64)> = HashMap::new();
            for packet in packets.iter().filter(has_header) {
                let (count, next) = flows.entry(flow(&packet.key)).or_default();
                *count += u64::from(u64::from(packet.tcp_seq) != *next % (1 << 32));
                *next = u64::from(packet.tcp_seq) + u64::from(packet.payload_len.min(65_535));
            }
            flows
                .iter()
                .map(|(flow, (count, next))| format!("{flow} 7 {count} {next}"))
                .collect()
        }
        "tcp-retransmissions" => {
            let mut flows: HashMap<String, (u64, Option<u64>)> = HashMap::new();
            for packet in packets.iter().filter(has_header) {
                let (count, next) = flows.entry(flow(&packet.key)).or_default();
                let (seq, len) = (
                    u64::from(packet.tcp_seq),
                    u64::from(packet.payload_len.min(65_535)),
                );
                if packet.tcp_flags & 2 != 0 {
                    *next = None;
                }
                let fin = u64::from(packet.tcp_flags & 1);
                let end = seq + len + fin;
                if let Some(next) = *next {
                    let is_probe = (len, fin) == (1, 0) && end % (1 << 32) == next % (1 << 32);
                    *count += u64::from(len > 0 && is_before(seq, next) && !is_probe);
                }
                if next.is_none_or(|next| is_before(next, end)) {
                    *next = Some(end);
                }
            }
            flows
                .iter()
                .map(|(flow, (count, next))| format!("{flow} 7 {count} {} 1", next.unwrap()))
                .collect()
        }
        "tcp-timeouts" => {
            let mut flows: HashMap<String, (u64, u64)> = HashMap::new();
            for packet in packets.iter().filter(|packet| packet.key.protocol() == 6) {
                let (count, last_ns) = flows.entry(flow(&packet.key)).or_default();
                let pause = i128::from(packet.ts_ns) - i128::from(*last_ns);
                *count += u64::from((200_000_001..320_000_000).contains(&pause));
                *last_ns = packet.ts_ns;
            }
            flows
                .iter()
                .map(|(flow, (count, last_ns))| format!("{flow} 7 {count} {last_ns}"))
                .collect()
        }
        "tcp-rtt" => naive_rtt(packets),
        other => panic!("no naive program for {other}"),
    }
}

/// For each flow, its handshakes, and the shortest time from a SYN to the packet that completes one.
fn naive_rtt(packets: &[Packet]) -> Rows {
    let mut begun: HashMap<String, u64> = HashMap::new();
    let mut times: HashMap<String, Vec<u64>> = HashMap::new();
    for packet in packets.iter().filter(has_header) {
        let flow = flow(&packet.key);
        let [syn, rst, ack] = [1, 2, 4].map(|bit| packet.tcp_flags >> bit & 1 == 1);
        match (syn, begun.get(&flow)) {
            (true, _) if !ack => {
                begun.insert(flow, packet.ts_ns);
            }
            (false, Some(start_ns)) => {
                let rtt = packet.ts_ns.wrapping_sub(*start_ns);
                begun.remove(&flow);
                if ack && !rst {
                    times.entry(flow).or_default().push(rtt);
                }
            }
            _ => {}
        }
    }
    let shortest = |times: &[u64]| times.iter().map(|rtt| rtt.cast_signed()).min();
    let rows = times.iter();
    rows.map(|(flow, times)| format!("{flow} 7 {} {}", times.len(), shortest(times).unwrap()))
        .collect()
}

/// Runs queries over vectors, or over records that the agent put together of them, while others
/// come and go.
fn ask(packets: &[Packet], rng: &mut Rng, through_agent: bool) -> HashMap<&'static str, Rows> {
    let parameters = Parameters {
        slots: 64,
        narrow: 4,
        wide: 24,
        blocks: 16,
    };
    let mut cache = Cache::<Full>::new(parameters, rng.bits()).unwrap();
    let options = ReassemblyOptions {
        flows: 50,
        ..ReassemblyOptions::default()
    };
    let mut agent = Reassembly::<Full>::new(options, rng.bits());
    let mut queries: Vec<(&str, Query)> = SHIPPED
        .iter()
        .map(|shipped| (shipped.name, query(shipped.name, &[])))
        .collect();
    let mut guests: Vec<Query> = Vec::new();
    let mut flows = Flows::new();
    for batch in packets.chunks(500) {
        if rng.below(2) == 0 {
            let name = SHIPPED[usize::try_from(rng.below(SHIPPED.len() as u64)).unwrap()].name;
            guests.push(query(name, &[]));
        } else if !guests.is_empty() {
            guests.swap_remove(usize::try_from(rng.below(guests.len() as u64)).unwrap());
        }
        let all = queries
            .iter_mut()
            .map(|(_, query)| query)
            .chain(&mut guests);
        let mut all: Vec<&mut Query> = all.collect();
        cache.push(batch, &mut |vector: &Vector<'_, Full>| {
            if through_agent {
                agent.take(vector, &mut |record: &Record<'_, Full>| {
                    flows.ask(7, from_ref(record), &mut all);
                });
            } else {
                flows.ask(7, from_ref(vector), &mut all);
            }
        });
    }
    let mut records = |record: &Record<'_, Full>| {
        queries
            .iter_mut()
            .for_each(|(_, query)| query.take(7, record));
    };
    if through_agent {
        cache.flush(&mut |vector: &Vector<'_, Full>| agent.take(vector, &mut records));
        agent.flush(&mut records);
    } else {
        cache.flush(&mut |vector: &Vector<'_, Full>| {
            queries
                .iter_mut()
                .for_each(|(_, query)| query.take(7, vector));
        });
    }
    queries
        .iter_mut()
        .map(|(name, query)| (*name, rows(query)))
        .collect()
}

fn answers_are_the_naive_ones(packets: &[Packet], seed: u64) {
    let ip: Vec<Packet> = packets
        .iter()
        .filter(|packet| packet.key.family() != AddressFamily::Mac)
        .copied()
        .collect();
    for through_agent in [false, true] {
        let answers = ask(packets, &mut Rng::new(seed), through_agent);
        for (name, rows) in answers {
            assert_eq!(rows, naive(name, &ip), "{name}, seed {seed}");
        }
    }
}

#[test]
fn shipped_queries_equal_naive_programs_on_captures() {
    let paths = strata_testkit::labelled_captures();
    sim::seeds(paths.len() as u64, |number| {
        let path = &paths[usize::try_from(number).unwrap()];
        let packets = captured(path, 20_000).unwrap();
        assert!(!packets.is_empty(), "{}", path.display());
        answers_are_the_naive_ones(&packets, number);
    });
}

#[test]
fn shipped_queries_equal_naive_programs_on_random_packets() {
    sim::seeds(30, |seed| {
        answers_are_the_naive_ones(&random_packets(&mut Rng::new(seed), 2000, 100), seed);
    });
}

fn error(text: &str) -> String {
    let error = compile(text, &[]).unwrap_err();
    format!("{}:{}: {}", error.line, error.column, error.message)
}

#[test]
fn errors_say_what_is_wrong_and_where() {
    let cases = [
        (
            "",
            "1:1: a query ends with a statement such as: result = filter(T, true);",
        ),
        (
            "R = filter(T, proto = 6);",
            "1:21: expected \")\", found \"=\"",
        ),
        ("R = filter(S, true);", "1:12: no stream S: there are T"),
        (
            "R = filter(T,\n  srcip == 6);",
            "2:9: this does not apply to an address and an integer",
        ),
        (
            "R = filter(T, proto);",
            "1:15: expected a condition, this is an integer",
        ),
        (
            "R = groupby(T, [srcip], f);",
            "1:25: no fold f: define it with def",
        ),
        (
            "R = filter(T, tout > 3);",
            "1:15: no column tout: vectors do not say when a packet left",
        ),
        (
            "R = filter(T, true) S = filter(R, true);",
            "1:21: expected \";\", found \"S\"",
        ),
        (
            "R = filter(T, proto == 7x);",
            "1:24: \"x\" is not a unit: write ns, us, ms or s",
        ),
        (
            "R = filter(T, $x == 1);",
            "1:15: parameter x has no value: give it one",
        ),
        ("R = filter(T, é);", "1:15: 'é' has no meaning here"),
        (
            "def f([n], []): if n == 0 { x = 1; } n = x\nR = groupby(T, [srcip], f);",
            "1:42: x may have no value at this point",
        ),
        (
            "def f([n], []): emit(); n = 1; emit()\nR = groupby(T, [srcip], f);",
            "1:32: a second emit() for the same packet",
        ),
        (
            "def f([n], []): n = n + 1\nR = groupby(T, [srcip], f);\nS = filter(R, n > 1);",
            "3:12: R has no packets: its fold f never calls emit()",
        ),
        (
            "def f([n], []): n = n + 1; emit()\nA = groupby(T, [srcip], f);\n\
             B = groupby(T, [srcip], f);\nC = zip(A, B);",
            "4:12: both A and B have different columns named n: rename one with map",
        ),
    ];
    for (text, wanted) in cases {
        assert_eq!(error(text), wanted);
    }
    let shown = compile("R = filter(T,\n    srcpi == 1);", &[])
        .unwrap_err()
        .to_string();
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[0].starts_with("line 2, column 5: no column srcpi in T: there are srcip,"));
    assert_eq!(lines[1..], ["        srcpi == 1);", "        ^"]);
}

#[test]
fn what_vectors_do_not_carry_is_refused() {
    let text = "R = filter(T, tcpseq > 0 and qsize > 1);";
    let program = compile(text, &[]).unwrap();
    let refused = Query::new::<Basic>(program, Limits::default()).unwrap_err();
    assert_eq!(refused.missing, [Column::TcpSeq, Column::QueueDepth]);
}

fn small(count: u64) -> Vec<Packet> {
    let end = |address, port| Endpoint { address, port };
    let key = |n| Key::new(AddressFamily::Ipv4, 6, end(n, 1), end(9, 2), 0);
    let packet = |n: u64| Packet {
        key: key(u128::from(n % 4)),
        ts_ns: n * 100,
        size: u32::try_from(n).unwrap(),
        ..Packet::default()
    };
    (0..count).map(packet).collect()
}

fn run(text: &str, limits: Limits, packets: &[Packet]) -> Query {
    let program = compile(text, &[]).unwrap_or_else(|error| panic!("{error}"));
    let mut query = Query::new::<Full>(program, limits).unwrap();
    let parameters = Parameters {
        slots: 16,
        narrow: 4,
        wide: 4,
        blocks: 4,
    };
    let mut cache = Cache::<Full>::new(parameters, 1).unwrap();
    let mut out = |vector: &Vector<'_, Full>| query.take(7, vector);
    cache.push(packets, &mut out);
    cache.flush(&mut out);
    query
}

#[test]
fn state_and_output_are_bounded_and_what_is_beyond_is_counted() {
    let count = "def c([n], []): n = n + 1\nR = groupby(T, [srcip], c);";
    let limits = Limits {
        groups_max: 3,
        rows_max: 10,
        ..Limits::default()
    };
    let mut query = run(count, limits, &small(40));
    assert_eq!(query.answer().rows.len(), 3);
    assert_eq!(
        (query.counters().refused, query.counters().packets),
        (10, 40)
    );
    let mut query = run("R = filter(T, pkt_len > 3);", limits, &small(40));
    assert_eq!(query.answer().rows.len(), 10);
    assert_eq!(query.counters().cut, 26);
}

#[test]
fn large_groups_and_rows_are_bounded_by_their_bytes() {
    let limits = Limits {
        bytes_max: 4000,
        ..Limits::default()
    };
    // A group of 2 words of key, 1 of state and 3 of index; half of the bytes each.
    let two = "def c([n], []): n = n + 1; emit()\nR = groupby(T, [srcip], c);\n\
               S = groupby(R, [srcip], c);";
    let query = run(two, limits, &small(4));
    assert_eq!(query.limits().groups_max, 2000 / 48);
    // 9 words: two addresses and five numbers.
    let mut query = run("R = filter(T, true);", limits, &small(100));
    assert_eq!(query.limits().rows_max, 4000 / 72);
    assert_eq!((query.answer().rows.len(), query.counters().cut), (55, 45));
}

#[test]
fn a_program_says_what_its_answer_is() {
    use ValueKind::{Address, Int, Real, Time};
    let of = |text: &str| compile(text, &[]).unwrap_or_else(|error| panic!("{error}"));
    let rows = of("R = filter(T, proto == TCP);");

    assert!(rows.is_of_packets());
    assert_eq!(rows.kinds(), [Address, Address, Int, Int, Int, Time, Int]);
    assert_eq!(rows.key_columns(), 0);
    let groups = of(
        "def f([avg, n], [pkt_len]): avg = avg * 0.5 + pkt_len; n = n + 1\n\
                     R = groupby(T, [srcip, proto], f);",
    );
    assert!(!groups.is_of_packets());
    assert_eq!(groups.kinds(), [Address, Int, Real, Int]);
    assert_eq!(groups.key_columns(), 2);
    assert_eq!(groups.fields(), ["pkt_len", "proto", "srcip"]);
}

#[test]
fn a_long_line_is_shown_around_the_place() {
    let text = format!(
        "R = filter(T, {}srcpi == 1{});",
        "tin > 1 and ".repeat(50),
        " or true".repeat(50)
    );
    let error = compile(&text, &[]).unwrap_err().to_string();
    let lines: Vec<&str> = error.lines().collect();
    assert!(lines[1].len() < 130, "{error}");
    let caret = lines[2].find('^').unwrap();
    assert!(lines[1][caret..].starts_with("srcpi == 1"), "{error}");
    let huge = "R = filter(T, true);".repeat(60_000);
    assert!(compile(&huge, &[]).unwrap_err().to_string().len() < 300);
}

#[test]
fn addresses_of_both_families() {
    let end = |address, port| Endpoint { address, port };
    let [one, two] = [AddressFamily::Ipv6, AddressFamily::Ipv4].map(|family| Packet {
        key: Key::new(family, 17, end(0x2001_0db8 << 96 | 1, 1), end(9, 2), 0),
        ..Packet::default()
    });
    let count = |text: &str| {
        run(text, Limits::default(), &[one, two])
            .answer()
            .rows
            .len()
    };
    assert_eq!(count("R = filter(T, srcip == \"2001:db8::1\");"), 1);
    assert_eq!(
        count("R = filter(T, dstip == \"0.0.0.9\" or dstip == 0.0.0.9);"),
        1
    );
    for wrong in ["\"", "\"\"", "\"x\"", "\"::1\nT\""] {
        let error = error(&format!("R = filter(T, srcip == {wrong});"));
        assert!(error.contains("quotes are for addresses"), "{error}");
    }
    let text = "R = filter(T, srcip == $host);";
    assert!(compile(text, &[("host", "2001:db8::1")]).is_ok());
}

#[test]
fn operators_and_numbers() {
    let text = "A = map(T, [q, r, s, t], [0 - pkt_len/2*2, pkt_len/2.0, 2/10, 5us]);
                B = filter(A, pkt_len == 7 and !(srcip != 0.0.0.3) && (q <= 0-6 or false));
                C = map(T, [twice], [pkt_len*2]);
                D = zip(B, C);";
    let mut query = run(text, Limits::default(), &small(40));
    let answer = query.answer();
    let names = "srcip dstip srcport dstport proto tin pkt_len q r s t twice";
    assert_eq!(answer.names.join(" "), names);
    assert_eq!(
        rows(&mut query),
        ["0.0.0.3 0.0.0.9 1 2 6 700 7 -6 3.5e0 2e-1 5000 14"]
    );
}

/// Only literals make a fraction; the quotients of integers are those of Python's `//`.
#[test]
fn quotients_of_constants_are_those_of_integers() {
    for (quotient, expected) in [
        ("7/2", "3.5e0"),
        ("-2/10", "-2e-1"),
        ("7/(1+1)", "3"),
        ("(0-7)/(1+1)", "-4"),
        ("(3+4)/2", "3"),
        ("7/(1+1)/2", "1"),
        ("5/(1-1)", "0"),
        ("5/0", "0"),
        ("9223372036854775807/1", "9223372036854775807"),
        ("9007199254740993/1", "9007199254740993"),
        ("7/(1+1.0)", "3.5e0"),
    ] {
        let text = format!("A = filter(T, srcip == 0.0.0.3); R = map(A, [q], [{quotient}]);");
        let mut query = run(&text, Limits::default(), &small(4));
        let all = rows(&mut query);
        let last = all[0].rsplit(' ').next();
        assert_eq!(last, Some(expected), "{quotient}");
    }
}

/// Names and forms of published queries that differ from ours.
#[test]
fn published_names_and_folds_without_a_body() {
    let text = "def groups([], []):
                  ;
                def bytes([sum], [pktlen]):
                  sum = sum + pktlen
                A = filter(T, inport == 0);
                B = groupby(A, [srcip], groups);
                R = groupby(A, [srcip], bytes);";
    let sums = run(text, Limits::default(), &small(40));
    let only_groups = text.replace("R = groupby(A, [srcip], bytes);", "");
    let groups = run(&only_groups, Limits::default(), &small(40));
    let [sums, groups] = [sums, groups].map(|mut query| rows(&mut query));
    assert_eq!(groups, ["0.0.0.0", "0.0.0.1", "0.0.0.2", "0.0.0.3"]);
    assert_eq!(
        sums,
        ["0.0.0.0 180", "0.0.0.1 190", "0.0.0.2 200", "0.0.0.3 210"]
    );
    for (name, why) in [
        ("pktpath", "which path a packet took"),
        ("outport", "where a packet left"),
    ] {
        let found = error(&format!("R = filter(T, {name} == 1);"));
        assert!(found.contains(why), "{found}");
    }
}

/// Segments in order are in order where their numbers wrap, and one that comes again is the only one that does.
#[test]
fn sequence_numbers_wrap() {
    let segment = |number: u32, packet: Packet| Packet {
        tcp_seq: u32::MAX.wrapping_sub(10_000).wrapping_add(number * 1_000),
        tcp_flags: 0x10,
        payload_len: 1_000,
        ..packet
    };
    let packets = (0..).zip(small(40));
    let mut packets: Vec<Packet> = packets.map(|(at, packet)| segment(at, packet)).collect();
    let key = packets[0].key;
    packets.iter_mut().for_each(|packet| packet.key = key);
    let again = packets[9];
    packets.insert(20, again);
    // A later fragment has no header: neither number nor flags.
    let fragment = Packet {
        tcp_seq: 0,
        tcp_flags: 0,
        ..packets[30]
    };
    packets.insert(30, fragment);
    let count = |name: &str, column: &str| {
        let shipped = shipped(name).unwrap();
        let mut query = run(shipped.text, Limits::default(), &packets);
        let answer = query.answer();
        let column = answer.names.iter().position(|name| name == column);
        answer.rows[0][column.unwrap()]
    };
    assert_eq!(count("tcp-retransmissions", "count"), Value::Int(1));
    assert_eq!(count("tcp-non-monotonic", "nm_count"), Value::Int(1));
    // The first one, the one that came again, and the one after it.
    assert_eq!(count("tcp-out-of-sequence", "count"), Value::Int(3));
}

/// A single byte is a keep-alive if it is the last one sent, and no FIN: not if a FIN has taken the number after it, and
/// not with a FIN. (Wireshark marks these as out of order and as a retransmission.)
#[test]
fn a_byte_around_a_fin_is_no_keep_alive() {
    const ACK: u8 = 0x10;
    const FIN: u8 = 0x11;
    let first = small(1)[0];
    let counted = |segments: &[(u32, u8, u32)]| {
        let packets: Vec<Packet> = segments
            .iter()
            .map(|&(tcp_seq, tcp_flags, payload_len)| Packet {
                tcp_seq,
                tcp_flags,
                payload_len,
                ..first
            })
            .collect();
        let shipped = shipped("tcp-retransmissions").unwrap();
        let mut query = run(shipped.text, Limits::default(), &packets);
        let answer = query.answer();
        let column = answer.names.iter().position(|name| name == "count");
        answer.rows[0][column.unwrap()]
    };
    // Keep-alives.
    assert_eq!(counted(&[(100, ACK, 50), (149, ACK, 1)]), Value::Int(0));
    assert_eq!(counted(&[(100, ACK, 50), (149, ACK, 0)]), Value::Int(0));
    // The last byte, after an empty FIN.
    let late = [(100, ACK, 50), (150, FIN, 0), (149, ACK, 1)];
    assert_eq!(counted(&late), Value::Int(1));
    // A FIN with a byte, again; and a byte that comes again with the FIN.
    assert_eq!(counted(&[(100, FIN, 1), (100, FIN, 1)]), Value::Int(1));
    assert_eq!(counted(&[(100, ACK, 1), (100, FIN, 1)]), Value::Int(1));
    // A FIN again, without payload.
    assert_eq!(counted(&[(100, FIN, 0), (100, FIN, 0)]), Value::Int(0));
}

#[test]
fn parameters_of_shipped_queries() {
    let wrong = shipped("ewma-latencies").unwrap().with(&[("beta", "1")]);
    assert_eq!(
        wrong.unwrap_err(),
        "ewma-latencies: no parameter beta; it has alpha, unit"
    );
    assert!(shipped("no-such-query").is_none());
    let text = shipped("flowlet-size-histogram").unwrap();
    let given = text.with(&[("gap", "3 ms")]).unwrap();
    let error = compile(text.text, &given).unwrap_err();
    assert_eq!((error.line, error.column), (2, 26));
    query(
        "flowlet-size-histogram",
        &[("gap", "3ms"), ("bucket", "10")],
    );
}

proptest! {
    /// Any text is a query or an error at a place in it.
    #[test]
    fn any_text_is_a_query_or_an_error(
        words in prop::collection::vec(
            prop::sample::select(vec![
                "def ", "f", "(", ")", "[", "]", "{", "}", ",", ";", ":", "=", "==", "<", "+", "-",
                "*", "/", "!", "if ", "else ", "emit()", "filter", "map", "groupby", "zip", "T",
                "R", "srcip", "tin", "proto", " 1", "0.5", "10.0.0.1", "\n", "é", "and ", "$p",
            ]),
            0..60,
        ),
        any: String,
    ) {
        for text in [words.concat(), any] {
            if let Err(error) = compile(&text, &[("p", "3ms")]) {
                prop_assert!(error.line >= 1 && error.column >= 1);
                prop_assert!(!error.to_string().is_empty());
            }
        }
    }
}

#[test]
fn what_is_too_large_or_too_deep_is_refused() {
    let deep = format!(
        "R = filter(T, {}true{});",
        "(".repeat(5000),
        ")".repeat(5000)
    );
    assert!(error(&deep).ends_with("brackets nested more than 48 deep"));
    let not = format!("R = filter(T, {}true);", "!".repeat(5000));
    assert!(error(&not).ends_with("brackets nested more than 48 deep"));
    let long = format!("R = filter(T, tin{} > 1);", " + tin".repeat(5000));
    assert!(error(&long).ends_with("operators nested more than 200 deep"));
    // Deep on the left, by brackets around chains.
    let chain = (0..40).fold("1".to_owned(), |inner, _| {
        format!("({inner}{})", "+1*1".repeat(150))
    });
    assert!(error(&format!("R = filter(T, {chain} > 1);")).ends_with(" deep"));
    let statements: String = (0..100)
        .map(|n| format!("R{n} = filter(T, true);\n"))
        .collect();
    assert!(error(&statements).contains("more than 64 statements"));
    let wide: String = (0..300).map(|n| format!("c{n},")).collect();
    let values = "tin,".repeat(300);
    let wide = format!(
        "R = map(T, [{}], [{}]);",
        wide.trim_end_matches(','),
        values.trim_end_matches(',')
    );
    assert!(error(&wide).contains("more than 256 values at once"));
}
