//! A simulated data center: a fat tree of four pods (Al-Fares et al., SIGCOMM 2008), and what each of its
//! switches sees of every packet.
//!
//! ```text
//! core         nodes 1 to 4
//! aggregation  nodes 101, 102 (pod 0) to 401, 402 (pod 3)
//! edge         nodes 111, 112 (pod 0) to 411, 412 (pod 3)
//! hosts        10.pod.edge.2 and .3
//! ```
//!
//! Every second, one port of an edge or aggregation switch is congested for half a second.

use std::net::Ipv4Addr;

use strata_wire::{exact, mix64};

use crate::tcp_flow::TcpFlow;

/// Time in a switch without a queue, ns.
const LATENCY_NS: u32 = 600;
/// Time that a cell of 80 bytes takes at 10 Gb/s, ns.
const CELL_NS: u32 = 64;
/// Maximum number of cells in a queue without congestion.
const QUEUE: u64 = 16;
/// And of congestion, at least.
const CONGESTED: u32 = 4_000;
const SECOND_NS: u64 = 1_000_000_000;

/// A switch that a packet passes, and its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Its number.
    pub node: u32,
    /// Where the packet comes in.
    pub ingress: u16,
    /// Where it goes out.
    pub egress: u16,
}

/// What a switch sees of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    /// The switch.
    pub hop: Hop,
    /// The packet's time to live when it comes in.
    pub ttl: u8,
    /// Cells of 80 bytes in the queue.
    pub depth: u32,
    /// Time in the switch, ns.
    pub latency_ns: u32,
    /// When the packet comes in, ns since the start.
    pub time_ns: u64,
    /// Whether the port is congested.
    pub is_congested: bool,
}

/// The network.
#[derive(Clone, Debug)]
pub struct FatTree {
    seed: u64,
    flows: Vec<TcpFlow>,
    packets: u64,
}

/// Pod, edge switch and place of a host.
fn host(n: u64) -> Ipv4Addr {
    let [pod, edge, place] = [n / 4 % 4, n / 2 % 2, n % 2].map(|n| n.to_le_bytes()[0]);
    Ipv4Addr::new(10, pod, edge, place + 2)
}

impl FatTree {
    /// This number of flows between random hosts, at least one.
    #[must_use]
    pub fn new(seed: u64, flows: usize) -> Self {
        let flow = |n: u64| {
            let random = mix64(seed ^ mix64(n));
            let (from, step) = (random % 16, 1 + (random >> 8) % 15);
            let port = 10_000 + n % 50_000;
            TcpFlow {
                source: host(from),
                destination: host((from + step) % 16),
                source_port: exact::<u16>(port),
                destination_port: 80,
            }
        };
        Self {
            seed,
            flows: (0..flows as u64).map(flow).collect(),
            packets: 0,
        }
    }

    /// Its flows.
    #[must_use]
    pub fn flows(&self) -> &[TcpFlow] {
        &self.flows
    }

    /// The switches that a flow passes: equal paths are chosen between by its hash.
    #[must_use]
    pub fn path(&self, flow: &TcpFlow) -> Vec<Hop> {
        let ([_, pod, edge, place], [_, to_pod, to_edge, to_place]) =
            (flow.source.octets(), flow.destination.octets());
        let random = mix64(self.seed ^ u64::from(flow.source_port) << 16);
        let (up, core) = (random % 2, random / 2 % 2);
        let [up, core] = [up, core].map(|n| exact::<u8>(n));
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

    /// The next packet, of this flow (of as many as there are, over and over): the flow, and what each switch on
    /// its path sees of it.
    pub fn packet(&mut self, flow: usize, elapsed_ns: u64) -> (TcpFlow, Vec<Passage>) {
        self.packets += 1;
        let flow = self.flows[flow % self.flows.len()];
        let congested = self.congested(elapsed_ns);
        let mut time_ns = elapsed_ns;
        let mut passages = Vec::new();
        for (place, hop) in (0_u8..).zip(self.path(&flow)) {
            let random = mix64(self.seed ^ mix64(self.packets << 8 | u64::from(place)));
            let is_congested = congested == Some((hop.node, hop.egress));
            let mut depth = exact::<u32>(random % QUEUE);
            if is_congested {
                depth += CONGESTED;
            }
            let latency_ns = LATENCY_NS + depth * CELL_NS;
            passages.push(Passage {
                hop,
                // Of the path that the hop before the first one has left.
                ttl: 64 - place,
                depth,
                latency_ns,
                time_ns,
                is_congested,
            });
            time_ns += u64::from(latency_ns);
        }
        (flow, passages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_go_up_and_down_the_tree() {
        let tree = FatTree::new(3, 500);
        let mut lens = [0; 6];
        for flow in tree.flows() {
            let path = tree.path(flow);
            lens[path.len()] += 1;
            let [first, last] = [path[0].node, path[path.len() - 1].node];
            let edge = |address: Ipv4Addr| {
                let [_, pod, edge, _] = address.octets();
                u32::from(pod + 1) * 100 + 11 + u32::from(edge)
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
}
