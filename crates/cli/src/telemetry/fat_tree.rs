//! A simulated data center: a fat tree of four pods (Al-Fares et al., SIGCOMM 2008), each of whose
//! switches sends a telemetry report of every packet (INT-XD, Telemetry Report 2.0).
//!
//! ```text
//! core         nodes 1 to 4
//! aggregation  nodes 101, 102 (pod 0) to 401, 402 (pod 3)
//! edge         nodes 111, 112 (pod 0) to 411, 412 (pod 3)
//! hosts        10.pod.edge.2 and .3
//! ```
//!
//! Every second, one port of an edge or aggregation switch is congested for half a second.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

use strata_dta::key::FiveTuple;
use strata_wire::mix64;

/// Time in a switch without a queue, ns.
const LATENCY_NS: u32 = 600;
/// Time that a cell of 80 bytes takes at 10 Gb/s, ns.
const CELL_NS: u32 = 64;
/// Cells in a queue without congestion, at most.
const QUEUE: u64 = 16;
/// And of congestion, at least.
const CONGESTED: u32 = 4_000;
const SECOND_NS: u64 = 1_000_000_000;
/// Bytes of the packet that a report has: IPv4 and TCP.
const INNER_LEN: usize = 40;

/// A switch that a packet passes, and its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hop {
    pub(super) node: u32,
    ingress: u16,
    egress: u16,
}

/// The network.
pub(super) struct FatTree {
    seed: u64,
    flows: Vec<FiveTuple>,
    /// Next sequence number of each node.
    sequences: HashMap<u32, u32>,
    packets: u64,
}

/// Pod, edge switch and place of a host.
fn host(n: u64) -> Ipv4Addr {
    let [pod, edge, place] = [n / 4 % 4, n / 2 % 2, n % 2].map(|n| n.to_le_bytes()[0]);
    Ipv4Addr::new(10, pod, edge, place + 2)
}

impl FatTree {
    /// Flows between random hosts.
    pub(super) fn new(seed: u64, flows: usize) -> Self {
        let flow = |n: u64| {
            let random = mix64(seed ^ mix64(n));
            let (from, step) = (random % 16, 1 + (random >> 8) % 15);
            let port = 10_000 + n % 50_000;
            FiveTuple {
                source: IpAddr::V4(host(from)),
                destination: IpAddr::V4(host((from + step) % 16)),
                source_port: u16::try_from(port).expect("below 60,000"),
                destination_port: 80,
                protocol: 6,
            }
        };
        Self {
            seed,
            flows: (0..flows as u64).map(flow).collect(),
            sequences: HashMap::new(),
            packets: 0,
        }
    }

    pub(super) fn flows(&self) -> &[FiveTuple] {
        &self.flows
    }

    /// The switches that a flow passes: equal paths are chosen between by its hash.
    pub(super) fn path(&self, flow: &FiveTuple) -> Vec<Hop> {
        let octets = |address| match address {
            IpAddr::V4(address) => Ipv4Addr::octets(&address),
            IpAddr::V6(_) => unreachable!("hosts have IPv4 addresses"),
        };
        let ([_, pod, edge, place], [_, to_pod, to_edge, to_place]) =
            (octets(flow.source), octets(flow.destination));
        let random = mix64(self.seed ^ u64::from(flow.source_port) << 16);
        let (up, core) = (random % 2, random / 2 % 2);
        let [up, core] = [up, core].map(|n| u8::try_from(n).expect("0 or 1"));
        let hop = |node: u32, ingress: u8, egress: u8| Hop {
            node,
            ingress: u16::from(ingress),
            egress: u16::from(egress),
        };
        let in_pod = |pod: u8, switch: u8| u32::from(pod + 1) * 100 + u32::from(switch);
        // Ports 0 and 1 go down, 2 and 3 up.
        let (from_host, to_host) = (place - 2, to_place - 2);
        let first = in_pod(pod, 11 + edge);
        if (pod, edge) == (to_pod, to_edge) {
            return vec![hop(first, from_host, to_host)];
        }
        let last = hop(in_pod(to_pod, 11 + to_edge), 2 + up, to_host);
        let first = hop(first, from_host, 2 + up);
        if pod == to_pod {
            return vec![first, hop(in_pod(pod, 1 + up), edge, to_edge), last];
        }
        vec![
            first,
            hop(in_pod(pod, 1 + up), edge, 2 + core),
            hop(1 + u32::from(up * 2 + core), pod, to_pod),
            hop(in_pod(to_pod, 1 + up), 2 + core, to_edge),
            last,
        ]
    }

    /// The port that is congested at a time: node and port.
    fn congested(&self, elapsed_ns: u64) -> Option<(u32, u16)> {
        if elapsed_ns % SECOND_NS >= SECOND_NS / 2 {
            return None;
        }
        let random = mix64(self.seed ^ mix64(elapsed_ns / SECOND_NS + 1));
        // A port on the path of one of the flows, so that some packets meet it.
        let flow = &self.flows[usize::try_from(random % 16).ok()? % self.flows.len()];
        let path = self.path(flow);
        let hop = path[usize::try_from(random >> 32).ok()? % path.len()];
        Some((hop.node, hop.egress))
    }

    /// The reports of a packet of a flow, in datagrams.
    pub(super) fn packet(&mut self, flow: usize, elapsed_ns: u64) -> Vec<Vec<u8>> {
        self.packets += 1;
        let flow = self.flows[flow % self.flows.len()];
        let congested = self.congested(elapsed_ns);
        let mut time_ns = elapsed_ns;
        let mut datagrams = Vec::new();
        for (place, hop) in (0_u8..).zip(self.path(&flow)) {
            let random = mix64(self.seed ^ mix64(self.packets << 8 | u64::from(place)));
            let is_congested = congested == Some((hop.node, hop.egress));
            let mut depth = u32::try_from(random % QUEUE).expect("small");
            if is_congested {
                depth += CONGESTED;
            }
            let latency = LATENCY_NS + depth * CELL_NS;
            let sequence = self.sequences.entry(hop.node).or_insert(0);
            let seen = Seen {
                hop,
                // Of the path that the hop before the first one has left.
                ttl: 64 - place,
                depth,
                latency,
                time_ns,
                is_congested,
                sequence: *sequence,
            };
            *sequence = (*sequence + 1) % (1 << 22);
            datagrams.push(seen.datagram(&flow));
            time_ns += u64::from(latency);
        }
        datagrams
    }
}

/// What a switch saw of a packet.
struct Seen {
    hop: Hop,
    ttl: u8,
    depth: u32,
    latency: u32,
    time_ns: u64,
    is_congested: bool,
    sequence: u32,
}

impl Seen {
    /// Telemetry Report 2.0 (§3.2 to 3.4): a group header, one report, the start of the packet.
    fn datagram(&self, flow: &FiveTuple) -> Vec<u8> {
        /// Interfaces, hop latency, queue, ingress time: bits 1 to 4.
        const METADATA: u16 = 0b0111_1000 << 8;
        const METADATA_WORDS: u8 = 1 + 1 + 1 + 2;
        /// Type INT, inner type IPv4.
        const TYPES: u8 = 1 << 4 | 4;
        const CONGESTED: u8 = 0b0100 << 4;
        const TRACKED: u8 = 0b0010 << 4;
        let words = 2 + METADATA_WORDS + u8::try_from(INNER_LEN / 4).expect("small");
        let flags = TRACKED | if self.is_congested { CONGESTED } else { 0 };
        let mut out = Vec::with_capacity(80);
        out.extend((2_u32 << 28 | self.sequence).to_be_bytes());
        out.extend(self.hop.node.to_be_bytes());
        out.extend([TYPES, words, METADATA_WORDS, flags]);
        out.extend(METADATA.to_be_bytes());
        out.extend([0; 6]);
        out.extend(self.hop.ingress.to_be_bytes());
        out.extend(self.hop.egress.to_be_bytes());
        out.extend(self.latency.to_be_bytes());
        out.extend((self.depth & 0xff_ffff).to_be_bytes());
        out.extend(self.time_ns.to_be_bytes());
        self.inner(flow, &mut out);
        out
    }

    /// The headers of the packet, without checksums: reports have what is left of them.
    fn inner(&self, flow: &FiveTuple, out: &mut Vec<u8>) {
        let octets = |address| match address {
            IpAddr::V4(address) => Ipv4Addr::octets(&address),
            IpAddr::V6(_) => unreachable!("hosts have IPv4 addresses"),
        };
        out.extend([0x45, 0, 0x05, 0xdc, 0, 0, 0x40, 0, self.ttl, 6, 0, 0]);
        out.extend(octets(flow.source));
        out.extend(octets(flow.destination));
        out.extend(flow.source_port.to_be_bytes());
        out.extend(flow.destination_port.to_be_bytes());
        out.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    }
}

#[cfg(test)]
mod tests {
    use strata_dta::int::report::Packet;
    use strata_dta::int::stack::{Inner, Marks};

    use super::*;

    #[test]
    fn paths_go_up_and_down_the_tree() {
        let tree = FatTree::new(3, 500);
        let mut lens = [0; 6];
        for flow in tree.flows() {
            let path = tree.path(flow);
            lens[path.len()] += 1;
            let [first, last] = [path[0].node, path[path.len() - 1].node];
            let edge = |address: IpAddr| match address {
                IpAddr::V4(address) => {
                    let [_, pod, edge, _] = address.octets();
                    u32::from(pod + 1) * 100 + 11 + u32::from(edge)
                }
                IpAddr::V6(_) => unreachable!(),
            };
            assert_eq!((first, last), (edge(flow.source), edge(flow.destination)));
            if path.len() == 5 {
                assert!((1..=4).contains(&path[2].node));
                assert_eq!(path[1].node % 100, path[3].node % 100, "the same plane");
            }
        }
        assert!(lens[1] > 0 && lens[3] > 0 && lens[5] > 100, "{lens:?}");
        assert_eq!(lens.iter().sum::<i32>(), 500);
    }

    #[test]
    fn reports_say_what_the_switches_saw() {
        let mut tree = FatTree::new(3, 10);
        let flow = tree.flows()[4];
        let path = tree.path(&flow);
        let (mut congested, mut time) = (0, 0);
        for n in 0..200 {
            for (hop, bytes) in path.iter().zip(tree.packet(4, n * 100_000_000)) {
                let packet = Packet::new_checked(&bytes).unwrap();
                let report = packet.reports().next().unwrap().unwrap();
                assert_eq!(report.hop.node, Some(hop.node));
                assert_eq!(report.hop.egress_interface, Some(u32::from(hop.egress)));
                assert!(report.tracked && !report.dropped);
                let depth = report.hop.queue_occupancy.unwrap();
                assert_eq!(report.congested, depth >= CONGESTED);
                assert_eq!(report.hop.hop_latency, Some(LATENCY_NS + depth * CELL_NS));
                congested += u32::from(report.congested);
                let (link, start) = report.packet.unwrap();
                let inner = Inner::read(link, start, &Marks::default()).unwrap();
                assert_eq!(inner.flow, Some(flow));
                time = time.max(report.hop.ingress_time.unwrap());
            }
        }
        assert!(congested > 0);
        assert!(time >= 199 * 100_000_000);
    }
}
