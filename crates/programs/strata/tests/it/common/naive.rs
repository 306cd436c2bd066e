//! Naive programs, over what tshark says of packets.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::process::Command;

use super::program::ok;

/// What tshark says of a packet.
pub(crate) struct Dissected {
    pub(crate) ns: u64,
    pub(crate) len: u64,
    /// Addresses, ports and protocol, as answers begin with them.
    pub(crate) flow: String,
    pub(crate) source: String,
    pub(crate) is_tcp: bool,
    pub(crate) seq: u64,
    pub(crate) payload: u64,
    flags: u64,
    /// The round-trip time of the connection's handshake, ns, on its packets after the handshake.
    pub(crate) rtt_ns: Option<u64>,
    /// Whether it marks the payload as sent before: retransmitted in any way, or out of order, and no keep-alive.
    pub(crate) is_again: bool,
}

/// Packets that are selected for both: TCP and UDP.
pub(crate) const FILTER: &str = "tcp or udp";

pub(crate) fn dissected(trace: &Path) -> Vec<Dissected> {
    let fields = [
        "frame.time_epoch",
        "frame.len",
        "ip.src",
        "ipv6.src",
        "ip.dst",
        "ipv6.dst",
        "tcp.srcport",
        "udp.srcport",
        "tcp.dstport",
        "udp.dstport",
        "tcp.seq_raw",
        "tcp.len",
        "udp.length",
        "tcp.flags",
        "tcp.analysis.retransmission",
        "tcp.analysis.out_of_order",
        "tcp.analysis.keep_alive",
        "tcp.analysis.initial_rtt",
    ];
    let mut command = Command::new("tshark");
    command
        .args(["-n", "-E", "occurrence=l", "-T", "fields", "-r"])
        .arg(trace);
    command.args([
        "-o",
        "tcp.desegment_tcp_streams:FALSE",
        "-Y",
        // Of flows in tunnels, the inner addresses, as in Strata: not if the outer ones are of another family.
        "(tcp or udp) and not icmp and not (ip and ipv6)",
    ]);
    for field in fields {
        command.args(["-e", field]);
    }
    ok(&mut command)
        .lines()
        .map(|line| of_line(&line.split('\t').collect::<Vec<_>>()))
        .collect()
}

fn of_line(cells: &[&str]) -> Dissected {
    let either = |a: usize, b: usize| {
        if cells[a].is_empty() {
            cells[b]
        } else {
            cells[a]
        }
    };
    let number = |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("{cells:?}"));
    let is_tcp = !cells[6].is_empty();
    let (seconds, fraction) = cells[0].split_once('.').unwrap();
    let (source, destination) = (either(2, 3), either(4, 5));
    let protocol = if is_tcp { 6 } else { 17 };
    let ports = (either(6, 7), either(8, 9));
    let flags = cells[13].strip_prefix("0x");
    let is_marked = |at: usize| !cells[at].is_empty();
    let payload = match is_tcp {
        true => number(cells[11]),
        false => number(cells[12]) - 8,
    };
    let ns_of = |(seconds, fraction): (&str, &str)| {
        number(seconds) * 1_000_000_000 + number(&format!("{fraction:0<9}")[..9])
    };
    Dissected {
        ns: ns_of((seconds, fraction)),
        rtt_ns: is_marked(17).then(|| ns_of(cells[17].split_once('.').unwrap())),
        len: number(cells[1]),
        flow: format!("{source},{destination},{},{},{protocol}", ports.0, ports.1),
        source: source.to_owned(),
        is_tcp,
        seq: if is_tcp { number(cells[10]) } else { 0 },
        payload,
        flags: flags.map_or(0, |hex| u64::from_str_radix(hex, 16).unwrap()),
        is_again: payload > 0 && (is_marked(14) || is_marked(15)) && !is_marked(16),
    }
}

/// Which of two sequence numbers comes first, in halves of their space.
fn is_before(a: u64, b: u64) -> bool {
    (a.wrapping_sub(b) >> 31) % 2 == 1
}

/// The rows of a shipped query's answer, as CSV.
pub(crate) fn naive(name: &str, packets: &[Dissected]) -> BTreeSet<String> {
    let mut rows: HashMap<String, String> = HashMap::new();
    match name {
        "concurrent-connections" => {
            let flows: BTreeSet<_> = packets
                .iter()
                .map(|p| (p.ns / 128_000_000, &p.flow))
                .collect();
            let mut counts: HashMap<u64, u64> = HashMap::new();
            flows
                .iter()
                .for_each(|(window, _)| *counts.entry(*window).or_default() += 1);
            rows.extend(counts.iter().map(|(w, n)| (w.to_string(), n.to_string())));
        }
        "flowlet-size-histogram" => {
            let mut flows: HashMap<&str, (u64, u64)> = HashMap::new();
            let mut sums: HashMap<u64, u64> = HashMap::new();
            for p in packets {
                let (last, size) = flows.entry(&p.flow).or_default();
                if p.ns.saturating_sub(*last) > 5_000_000 {
                    *sums.entry(*size / 128).or_default() += 1;
                    *size = 0;
                }
                (*last, *size) = (p.ns, *size + 1);
            }
            rows.extend(sums.iter().map(|(i, sum)| (i.to_string(), sum.to_string())));
        }
        "packet-counts-per-source" => {
            let mut counts: HashMap<&str, u64> = HashMap::new();
            packets
                .iter()
                .for_each(|p| *counts.entry(&p.source).or_default() += 1);
            rows.extend(counts.iter().map(|(s, n)| ((*s).to_owned(), n.to_string())));
        }
        "byte-counts-per-flow" => {
            let mut bytes: HashMap<&str, u64> = HashMap::new();
            packets
                .iter()
                .for_each(|p| *bytes.entry(&p.flow).or_default() += p.len);
            rows.extend(bytes.iter().map(|(f, n)| ((*f).to_owned(), n.to_string())));
        }
        "payload-length-averages" => {
            let mut averages: HashMap<&str, f64> = HashMap::new();
            for p in packets {
                let average = averages.entry(&p.flow).or_default();
                #[allow(clippy::cast_precision_loss)]
                let len = p.payload as f64;
                *average = 0.25 * *average + 0.75 * len;
            }
            rows.extend(
                averages
                    .iter()
                    .map(|(f, a)| (format!("{f},0"), a.to_string())),
            );
        }
        _ => rows = naive_tcp(name, packets),
    }
    rows.iter()
        .map(|(key, value)| format!("{key},{value}"))
        .collect()
}

/// As [`naive`], of queries about TCP: rows by their key.
fn naive_tcp(name: &str, packets: &[Dissected]) -> HashMap<String, String> {
    let tcp = || packets.iter().filter(|packet| packet.is_tcp);
    let mut rows: HashMap<String, String> = HashMap::new();
    match name {
        "tcp-non-monotonic" => {
            let mut flows: HashMap<&str, (u64, u64)> = HashMap::new();
            for p in tcp() {
                let (most, count) = flows.entry(&p.flow).or_default();
                *count += u64::from(*most != 0 && is_before(p.seq, *most));
                if *most == 0 || is_before(*most, p.seq) {
                    *most = p.seq;
                }
            }
            rows.extend(
                flows
                    .iter()
                    .map(|(f, (m, n))| (format!("{f},0"), format!("{m},{n}"))),
            );
        }
        "tcp-out-of-sequence" => {
            let mut flows: HashMap<&str, (u64, u64)> = HashMap::new();
            for p in tcp() {
                let (count, next) = flows.entry(&p.flow).or_default();
                *count += u64::from(*next % (1 << 32) != p.seq);
                *next = p.seq + p.payload;
            }
            rows.extend(
                flows
                    .iter()
                    .map(|(f, (n, s))| (format!("{f},0"), format!("{n},{s}"))),
            );
        }
        "tcp-retransmissions" => {
            let mut flows: HashMap<&str, (u64, Option<u64>)> = HashMap::new();
            for p in tcp() {
                let (count, next) = flows.entry(&p.flow).or_default();
                let fin = p.flags & 1;
                let end = p.seq + p.payload + fin;
                if p.flags & 2 != 0 {
                    *next = None;
                }
                if let Some(next) = *next {
                    let is_last = end % (1 << 32) == next % (1 << 32);
                    let is_probe = (p.payload, fin) == (1, 0) && is_last;
                    let is_again = p.payload > 0 && is_before(p.seq, next) && !is_probe;
                    *count += u64::from(is_again);
                }
                if next.is_none_or(|next| is_before(next, end)) {
                    *next = Some(end);
                }
            }
            rows.extend(
                flows
                    .iter()
                    .map(|(f, (n, next))| (format!("{f},0"), format!("{n},{},1", next.unwrap()))),
            );
        }
        "tcp-rtt" => {
            let mut begun: HashMap<&str, u64> = HashMap::new();
            let mut times: HashMap<&str, Vec<u64>> = HashMap::new();
            for p in tcp() {
                let (syn, rst, ack) = (p.flags & 2, p.flags & 4, p.flags & 16);
                if (syn, ack) == (2, 0) {
                    begun.insert(&p.flow, p.ns);
                } else if syn == 0
                    && let Some(start) = begun.remove(p.flow.as_str())
                    && (rst, ack) == (0, 16)
                {
                    times.entry(&p.flow).or_default().push(p.ns - start);
                }
            }
            rows.extend(times.iter().map(|(f, times)| {
                let shortest = times.iter().min().unwrap();
                (format!("{f},0"), format!("{},{shortest}", times.len()))
            }));
        }
        "tcp-timeouts" => {
            let mut flows: HashMap<&str, (u64, u64)> = HashMap::new();
            for p in tcp() {
                let (count, last) = flows.entry(&p.flow).or_default();
                let pause = p.ns.saturating_sub(*last);
                *count += u64::from(pause > 200_000_000 && pause < 320_000_000);
                *last = p.ns;
            }
            rows.extend(
                flows
                    .iter()
                    .map(|(f, (n, t))| (format!("{f},0"), format!("{n},{t}"))),
            );
        }
        other => panic!("no naive program for {other}"),
    }
    rows
}
