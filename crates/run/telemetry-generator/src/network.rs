//! What the switches of a simulated data center report: INT-XD, Telemetry Report 2.0.

use std::collections::HashMap;

use strata_dta::int::report::Repr;
use strata_dta::key::FiveTuple;
use strata_traffic::FatTree;

use crate::five_tuple;

/// Flows of a simulated data center, and the nodes on the path of each.
#[must_use]
pub fn tree_paths(seed: u64, flows: usize) -> Vec<(FiveTuple, Vec<u32>)> {
    let tree = FatTree::new(seed, flows);
    let path = |flow| tree.path(flow).iter().map(|hop| hop.node).collect();
    let flows = tree.flows().iter();
    flows.map(|flow| (five_tuple(flow), path(flow))).collect()
}

/// The network, and what its switches have sent.
pub(crate) struct Network {
    tree: FatTree,
    /// Next sequence number of each node.
    sequences: HashMap<u32, u32>,
}

impl Network {
    /// Flows between random hosts.
    pub(crate) fn new(seed: u64, flows: usize) -> Self {
        Self {
            tree: FatTree::new(seed, flows),
            sequences: HashMap::new(),
        }
    }

    /// The reports of a packet of a flow, in datagrams.
    pub(crate) fn packet(&mut self, flow: usize, elapsed_ns: u64) -> Vec<Vec<u8>> {
        let (flow, passages) = self.tree.packet(flow, elapsed_ns);
        let datagram = |passage: &strata_traffic::Passage| {
            let hop = passage.hop;
            let next = self.sequences.entry(hop.node).or_insert(0);
            let sequence = *next;
            *next = next.wrapping_add(1);
            let report = Repr {
                sequence,
                node: hop.node,
                is_congested: passage.is_congested,
                interfaces: [hop.ingress, hop.egress],
                hop_latency: passage.latency_ns,
                queue_occupancy: passage.depth,
                ingress_time: passage.time_ns,
                packet: &flow.headers(passage.ttl),
            };
            let mut datagram = Vec::new();
            report.emit(&mut datagram);
            datagram
        };
        passages.iter().map(datagram).collect()
    }
}

#[cfg(test)]
mod tests {
    use strata_dta::int::report::Packet;
    use strata_dta::int::stack::{Inner, Marks};

    use super::*;

    #[test]
    fn reports_say_what_the_switches_saw() {
        let mut network = Network::new(3, 10);
        let flow = network.tree.flows()[4];
        let path = network.tree.path(&flow);
        let (mut congested, mut time) = (0, 0);
        for n in 0..200 {
            for (hop, bytes) in path.iter().zip(network.packet(4, n * 100_000_000)) {
                let packet = Packet::new_checked(&bytes).unwrap();
                let report = packet.reports().next().unwrap().unwrap();
                assert_eq!(report.hop.node, Some(hop.node));
                assert_eq!(report.hop.egress_interface, Some(u32::from(hop.egress)));
                assert!(report.tracked && !report.dropped);
                let depth = report.hop.queue_occupancy.unwrap();
                assert_eq!(report.congested, depth >= 4_000);
                assert_eq!(report.hop.hop_latency, Some(600 + depth * 64));
                congested += u32::from(report.congested);
                let (link, start) = report.packet.unwrap();
                let inner = Inner::read(link, start, &Marks::default()).unwrap();
                assert_eq!(inner.flow, Some(five_tuple(&flow)));
                time = time.max(report.hop.ingress_time.unwrap());
            }
        }
        assert!(congested > 0);
        assert!(time >= 199 * 100_000_000);
    }
}
