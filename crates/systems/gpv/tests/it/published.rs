//! The 32 queries that Marple's authors publish, by the names of their files. The texts are ours; each has what its
//! namesake needs of the language. A naive program has the same answer, or the query is refused because it reads a
//! column that vectors cannot have.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::slice::from_ref;

use strata_gpv::marple::{Flows, Limits, Query, compile};
use strata_gpv::{Full, Packet, Reason, Tuple as _, Vector};
use strata_testkit::sim::{self, Rng};
use strata_wire::AddressFamily;

use crate::common::{captured, random_packets};
use crate::marple::{Rows, address, flow, rows};

const SWITCH: u32 = 7;

/// A query that has an answer, and the naive program.
type Answered = (&'static str, &'static str, fn(&[Packet]) -> Rows);

/// What `groupby` does: a state for each key, in the order of packets.
fn groups<S: Default>(
    packets: &[Packet],
    key: impl Fn(&Packet) -> String,
    mut fold: impl FnMut(&mut S, &Packet),
    shown: impl Fn(&S) -> String,
) -> Rows {
    let mut states: HashMap<String, S> = HashMap::new();
    for packet in packets {
        fold(states.entry(key(packet)).or_default(), packet);
    }
    let rows = states.iter();
    rows.map(|(key, state)| format!("{key} {}", shown(state)).trim().to_owned())
        .collect()
}

fn is_tcp(packet: &&Packet) -> bool {
    packet.key.protocol() == 6
}

fn tcp(packets: &[Packet]) -> Vec<Packet> {
    packets.iter().filter(is_tcp).copied().collect()
}

fn at_switch(packet: &Packet) -> String {
    format!("{} {SWITCH}", flow(&packet.key))
}

fn source(packet: &Packet) -> IpAddr {
    address(&packet.key, packet.key.source())
}

fn destination(packet: &Packet) -> IpAddr {
    address(&packet.key, packet.key.destination())
}

fn size(packet: &Packet) -> u64 {
    packet.size.min(65_535).into()
}

fn payload(packet: &Packet) -> u64 {
    packet.payload_len.min(65_535).into()
}

fn seq(packet: &Packet) -> u64 {
    packet.tcp_seq.into()
}

/// Times as queries have them: integers with a sign.
fn ns(packet: &Packet) -> i64 {
    packet.ts_ns.cast_signed()
}

/// Packets that are the first of their key in `epoch` ns, and how many such keys the epoch had with them.
fn new_flows(packets: &[Packet], epoch: i64) -> Vec<(Packet, i64, u64)> {
    let mut known = HashSet::new();
    let mut many: HashMap<i64, u64> = HashMap::new();
    let mut found = Vec::new();
    for packet in packets {
        let at = ns(packet) / epoch;
        if known.insert((at, at_switch(packet))) {
            let many = many.entry(at).or_default();
            *many += 1;
            found.push((*packet, at, *many));
        }
    }
    found
}

/// The sizes of flowlets, at each packet that comes `pause` ns after the one before it, or is the first.
fn flowlets(packets: &[Packet], pause: i64) -> Vec<u64> {
    let mut flows: HashMap<String, (i64, u64)> = HashMap::new();
    let mut sizes = Vec::new();
    for packet in packets {
        let (before, packets) = flows.entry(at_switch(packet)).or_default();
        if ns(packet) - *before > pause {
            sizes.push(*packets);
            *packets = 0;
        }
        (*before, *packets) = (ns(packet), *packets + 1);
    }
    sizes
}

fn counted<K: std::hash::Hash + Eq + std::fmt::Display>(keys: impl Iterator<Item = K>) -> Rows {
    let mut counts: HashMap<K, u64> = HashMap::new();
    keys.for_each(|key| *counts.entry(key).or_default() += 1);
    let rows = counts.iter();
    rows.map(|(key, count)| format!("{key} {count}")).collect()
}

/// A packet as an answer shows it.
fn shown(packet: &Packet) -> String {
    format!("{} {} {}", flow(&packet.key), packet.ts_ns, size(packet))
}

/// The number of an address in arithmetic.
fn number(address: IpAddr) -> i64 {
    match address {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => {
            let low = v6.to_bits() & u128::from(u64::MAX);
            u64::try_from(low).unwrap().cast_signed()
        }
    }
}

/// What the two recursive queries below do with a packet.
fn mixed(state: &mut (i64, i64, i64), packet: &Packet) {
    let (most, a, b) = state;
    let (seq, to) = (i64::from(packet.tcp_seq), number(destination(packet)));
    if seq > to {
        *a = 4;
        if seq > to.wrapping_add(10) {
            *b = *a + 5;
        } else {
            if seq > *most + 5 {
                *a = seq;
            }
            *b = seq + 3;
        }
    } else {
        (*a, *b) = (to, 5);
    }
}

const ANSWERED: [Answered; 18] = [
    (
        "byte_counts",
        "def assoc add([all], [pktlen]):
            all = all + pktlen
         R = groupby(T, [srcip, dstip, srcport, dstport, proto], add);",
        |packets| {
            let add = |all: &mut u64, packet: &Packet| *all += size(packet);
            groups(packets, |packet| flow(&packet.key), add, u64::to_string)
        },
    ),
    (
        "flowlet_hist",
        "def flowlets ([before, packets], [tin]):
            pause = 5000;
            if (tin - before > pause) { emit(); packets = 1; }
            else { packets = packets + 1; }
            before = tin
         def number ([many], []):
            many = many + 1
         A = groupby(T, [srcip, dstip, srcport, dstport, proto, switch], flowlets);
         B = map(A, [step], [packets/4]);
         R = groupby(B, [step], number);",
        |packets| counted(flowlets(packets, 5_000).iter().map(|packets| packets / 4)),
    ),
    (
        "flowlet_sum",
        "def flowlets ([before, packets], [tin]):
            pause = 5000;
            if (tin - before > pause) { emit(); packets = 1; }
            else { packets = packets + 1; }
            before = tin
         def total ([sum], [packets]):
            sum = sum + packets
         A = groupby(T, [switch, srcip, dstip, srcport, dstport, proto], flowlets);
         R = groupby(A, [], total);",
        |packets| vec![flowlets(packets, 5_000).iter().sum::<u64>().to_string()],
    ),
    (
        "incast",
        "def first ([known], []):
            if known == 0 { emit(); known = 1; }
         def flows ([many], []):
            many = many + 1
            emit()
         A = map(T, [epoch], [tin/1000000]);
         B = groupby(A, [srcip, dstip, srcport, dstport, proto, epoch, switch], first);
         C = groupby(B, [epoch], flows);
         D = zip(C, T);
         R = filter(D, qin > 100 and many > 3);",
        |packets| {
            let found = new_flows(packets, 1_000_000).into_iter();
            let long = found.filter(|(packet, _, many)| packet.queue_depth > 100 && *many > 3);
            long.map(|(packet, at, many)| format!("{} {at} {many}", shown(&packet)))
                .collect()
        },
    ),
    (
        "new_flow",
        "def first([known], []):
            if known == 0 {
              emit();
              known = 1;
            }
         R = groupby(T, [srcip, dstip, switch], first);",
        |packets| {
            let pair = |p: &Packet| format!("{} {} {SWITCH}", source(p), destination(p));
            groups(packets, pair, |(): &mut (), _| (), |()| String::from("1"))
        },
    ),
    (
        "paper_new_connections",
        "def first ([known], []):
            if known == 0 { emit(); known = 1; }
         def flows ([many], []):
            many = many + 1
            emit()
         A = map(T, [epoch], [tin/128]);
         B = groupby(A, [srcip, dstip, srcport, dstport, proto, epoch, switch], first);
         R = groupby(B, [epoch], flows);",
        |packets| counted(new_flows(packets, 128).iter().map(|(_, at, _)| *at)),
    ),
    (
        "paper_tcp_timeouts",
        "def timeout([many, before], [tin]):
            pause = tin - before;
            if pause > 200 and pause < 32000 {
              many = many + 1;
            }
            before = tin;
         R = groupby(T, [srcip, dstip, srcport, dstport, proto, switch], timeout);",
        |packets| {
            let timeout = |(many, before): &mut (u64, i64), packet: &Packet| {
                *many += u64::from((201..32_000).contains(&(ns(packet) - *before)));
                *before = ns(packet);
            };
            let shown = |(many, before): &(u64, i64)| format!("{many} {before}");
            groups(packets, at_switch, timeout, shown)
        },
    ),
    (
        "pkt_counts",
        "def assoc one ([many], [uid]):
            many = many + 1
         R = groupby(T, [srcip, dstip, srcport, dstport, proto], one);",
        |packets| counted(packets.iter().map(|packet| flow(&packet.key))),
    ),
    (
        "pktlength_ewma",
        "def average([mean], [payloadlen]):
            old = 1/4;
            mean = (old * mean) + ((1 - old) * payloadlen)
         R = groupby(T, [srcip, dstip, srcport, switch, dstport, proto], average);",
        |packets| {
            let average = |mean: &mut f64, packet: &Packet| {
                let len = u32::try_from(payload(packet)).unwrap();
                *mean = 0.25 * *mean + 0.75 * f64::from(len);
            };
            let key = |packet: &Packet| {
                let (from, to) = (packet.key.source().port, packet.key.destination().port);
                let (ends, protocol) =
                    ([source(packet), destination(packet)], packet.key.protocol());
                format!("{} {} {from} {SWITCH} {to} {protocol}", ends[0], ends[1])
            };
            groups(packets, key, average, |mean| format!("{mean:e}"))
        },
    ),
    (
        "qin_buckets",
        "def one([many], []):
            many = many + 1;
            emit();

         R = groupby(T, [switch, qin], one);",
        |packets| {
            counted(
                packets
                    .iter()
                    .map(|p| format!("{SWITCH} {}", p.queue_depth)),
            )
        },
    ),
    (
        "running_example",
        "def astray([many, following], [tcpseq, payloadlen]):
            if following != tcpseq {
              many = many + 1;
              emit();
            }
            following = tcpseq + payloadlen
         tcps = filter(T, proto == 6
                       and (switch == 1 or switch == 7));
         slots = map(T, [epoch], [tin/1000000]);
         both = zip(tcps, slots);
         R = groupby(both,
                     [srcip, dstip, srcport, dstport, switch, epoch],
                     astray);",
        |packets| {
            let key = |packet: &Packet| {
                let (from, to) = (packet.key.source().port, packet.key.destination().port);
                let (ends, at) = (
                    [source(packet), destination(packet)],
                    ns(packet) / 1_000_000,
                );
                format!("{} {} {from} {to} {SWITCH} {at}", ends[0], ends[1])
            };
            groups(&tcp(packets), key, astray, both)
        },
    ),
    (
        "tcp_nmo",
        "def back([most, many], [tcpseq]):
            if most > tcpseq { many = many + 1; }
            else {
              if most < tcpseq { most = tcpseq; }
            }
         tcps = filter(T, proto == 6);
         R = groupby(tcps, [srcip, dstip, srcport, dstport, proto, switch], back);",
        |packets| groups(&tcp(packets), at_switch, back, both),
    ),
    (
        "tcp_oos",
        "def astray([many, following], [tcpseq, payloadlen]):
            if following != tcpseq { many = many + 1; }
            end = tcpseq + payloadlen;
            following = end;
         tcps = filter(T, proto == 6);
         R = groupby(tcps,
                     [srcip, dstip, srcport, dstport, proto, switch],
                     astray);",
        |packets| groups(&tcp(packets), at_switch, astray, both),
    ),
    (
        "tin_buckets",
        "def one([many], []):
            many = many + 1;
            emit();

         R = groupby(T, [switch, tin], one);",
        |packets| counted(packets.iter().map(|p| format!("{SWITCH} {}", p.ts_ns))),
    ),
    (
        "weird_tcp_nmo",
        "def back([most, many], [tcpseq]):
            if most > tcpseq { many = many + 1; }
            if most < tcpseq { most = tcpseq; }

         tcps = filter(T, proto == 6);
         R = groupby(tcps, [srcip, dstip, srcport, dstport, proto, switch], back);",
        |packets| groups(&tcp(packets), at_switch, back, both),
    ),
    (
        "recursive",
        "def mixed([most, a, b], [tcpseq, dstip]):
            most = most + tcpseq
            if (tcpseq > dstip) {
              a = 4;
              if (tcpseq > dstip + 10) {
                b = a + 5;
              } else {
                if (tcpseq > most + 5) {
                  a = tcpseq;
                }
                b = tcpseq + 3;
              }
            } else {
              b = 5;
              a = dstip;
            }
         R = groupby(T, [srcip, switch], mixed);",
        |packets| {
            let fold = |state: &mut (i64, i64, i64), packet: &Packet| {
                state.0 += i64::from(packet.tcp_seq);
                mixed(state, packet);
            };
            let key = |packet: &Packet| format!("{} {SWITCH}", source(packet));
            groups(packets, key, fold, |(most, a, b)| format!("{most} {a} {b}"))
        },
    ),
    (
        "recursive2",
        "def mixed([most, a, b], [tcpseq, dstip]):
            if (tcpseq > dstip) {
              a = 4;
              if (tcpseq > dstip + 10) {
                b = a + 5;
              } else {
                if (tcpseq > most + 5) {
                  a = tcpseq;
                }
                b = tcpseq + 3;
              }
            } else {
              b = 5;
              a = dstip;
            }
         R = groupby(T, [srcip, switch], mixed);",
        |packets| {
            let key = |packet: &Packet| format!("{} {SWITCH}", source(packet));
            groups(packets, key, mixed, |(most, a, b)| {
                format!("{most} {a} {b}")
            })
        },
    ),
    ("filter_example", "R = filter(T, qlen < 5);", |packets| {
        let short = packets.iter().filter(|packet| packet.queue_depth < 5);
        short.map(shown).collect()
    }),
];

fn astray((many, following): &mut (u64, u64), packet: &Packet) {
    *many += u64::from(*following != seq(packet));
    *following = seq(packet) + payload(packet);
}

fn back((most, many): &mut (u64, u64), packet: &Packet) {
    *many += u64::from(*most > seq(packet));
    *most = seq(packet).max(*most);
}

fn both((a, b): &(u64, u64)) -> String {
    format!("{a} {b}")
}

/// Queries that are refused, and what their error says.
const REFUSED: [(&str, &str, &str); 14] = [
    (
        "latency_ewma",
        "def average([mean], [tin, tout]):
            old = 3/16;
            mean = (old * mean) + ((1 - old) * (tout - tin))
         R = groupby(T, [srcip, switch], average);",
        "no column tout",
    ),
    (
        "latency_ewma1",
        "def average([mean, before], [tin, tout]):
            before = tout*2 + before*5;
            mean = mean + (2/10)/2 * (tout - tin);
         R = groupby(T, [srcip, switch], average);",
        "no column tout",
    ),
    (
        "latency_ewma2",
        "def average([mean, before], [tin, tout]):
            before = tout - tin;
            mean = mean / 2 + before;
         R = groupby(T, [srcip, switch], average);",
        "no column tout",
    ),
    (
        "latency_ewma3",
        "def average([mean, before], [tin, tout]):
            if before > tout { mean = 2; } else { mean = (before * mean) + tin; }
         R = groupby(T, [srcip, switch], average);",
        "no column tout",
    ),
    (
        "high_latency",
        "def none([], []):
            ;
         A = filter(T, tout - tin > 1);
         R = groupby(A, [srcip, dstip, qid, switch], none);",
        "no column tout",
    ),
    (
        "high_e2e_latency",
        "def path([sum, last], [tout, tin, switch]):
            sum = sum + (tout - tin);
            last = switch;
            emit();
         A = groupby(T, [srcip, dstip, uid], path);
         R = filter(A, sum > 1000 and last == 20);",
        "no column uid",
    ),
    (
        "paper_high_e2e_latency",
        "def path([sum], [tout, tin]):
            sum = sum + (tout - tin);
         R = groupby(T, [srcip, dstip, uid], path);",
        "no column uid",
    ),
    (
        "high_tail_latency",
        "def share([all, high], [qin]):
            if (qin > 1000) { high = high + 1; }
            all = all + 1;
            emit();
         A = groupby(T, [qid, switch], share);
         R = filter(A, (high * 100) > all);",
        "no column qid",
    ),
    (
        "loss_rate",
        "def one([many], [uid]):
            many = many + 1
            emit()
         A = filter(T, tout == infinity);
         R = groupby(A, [srcip], one);",
        "no packet is lost here",
    ),
    (
        "paper_loss_rate",
        "def one([many], [uid]):
            many = many + 1
            emit()
         A = filter(T, tout == infinity);
         B = groupby(A, [srcip], one);
         R = filter(B, 100*many > 1*many);",
        "no packet is lost here",
    ),
    (
        "loss_rate_with_division",
        "def one([many], [uid]):
            many = many + 1
            emit()
         A = filter(T, tout == infinity);
         B = groupby(A, [srcip], one);
         R = map(B, [rate], [many / many]);",
        "no packet is lost here",
    ),
    (
        "outcast",
        "A = map(T, [epoch, in, out], [tin/128, inport, outport]);",
        "no column outport",
    ),
    (
        "project_example",
        "R = map(T, [more], [5 * uid]);",
        "no column uid",
    ),
    (
        "route_reconvergence",
        "def changes([before, many], [pktpath]):
            if pktpath != before { many = many + 1; }
            before = pktpath
         R = groupby(T, [srcip, dstip, switch], changes);",
        "no column pktpath",
    ),
];

/// The answer over vectors of one packet each, so that packets of all flows are in order.
fn ask(text: &str, packets: &[Packet]) -> Rows {
    let program = compile(text, &[]).unwrap_or_else(|error| panic!("{error}"));
    let mut query = Query::new::<Full>(program, Limits::default()).unwrap();
    let mut flows = Flows::new();
    for packet in packets {
        let (tuple, saturated) = Full::new(packet, 0);
        let vector = Vector {
            key: packet.key,
            start_ns: packet.ts_ns,
            pieces: [from_ref(&tuple), &[]],
            reason: Reason::Full,
            saturated,
            slot: 0,
        };
        flows.ask(SWITCH, from_ref(&vector), &mut [&mut query]);
    }
    rows(&mut query)
}

#[test]
fn all_published_queries_are_answered_or_refused_with_the_reason() {
    assert_eq!(ANSWERED.len() + REFUSED.len(), 32);
    for (name, text, why) in REFUSED {
        let error = compile(text, &[]).unwrap_err().to_string();
        assert!(error.contains(why), "{name}: {error}");
    }
}

fn answers_are_the_naive_ones(packets: &[Packet]) {
    let is_ip = |packet: &&Packet| packet.key.family() != AddressFamily::Mac;
    let packets: Vec<Packet> = packets.iter().filter(is_ip).copied().collect();
    for (name, text, naive) in ANSWERED {
        let mut expected = naive(&packets);
        expected.sort();
        assert_eq!(ask(text, &packets), expected, "{name}");
    }
}

#[test]
fn published_queries_equal_naive_programs() {
    sim::seeds(10, |seed| {
        answers_are_the_naive_ones(&random_packets(&mut Rng::new(seed), 1_000, 50));
    });
    for path in strata_testkit::labelled_captures().iter().take(4) {
        answers_are_the_naive_ones(&captured(path, 5_000).unwrap());
    }
}
