//! Which packets are of a flow: the innermost addresses and ports count, whatever is around them, and later
//! fragments belong to the flow of their first one.

use strata_blocks::PacketRecord;
use strata_store::Recording;
use strata_wire::dissect::{Fragment, Headers, dissect};
use strata_wire::{
    AddressFamily, Endpoint, FlowHasher, FlowKey, FragmentTable, LinkType, Plain, TunnelKey,
};

/// Finds the packets of one flow among those of block files. Compacted packets are stored by flow.
pub(crate) struct OfFlow {
    flow: FlowKey,
    hasher: FlowHasher,
    fragments: FragmentTable,
}

impl OfFlow {
    pub(crate) fn new(flow: FlowKey, recording: &Recording) -> Self {
        Self {
            flow,
            hasher: FlowHasher::new(recording.hash_seed),
            fragments: FragmentTable::default(),
        }
    }

    /// Whether a packet is of the flow. A later fragment is if its first one came before it.
    pub(crate) fn has(&mut self, link: LinkType, packet: &PacketRecord<'_>) -> bool {
        let (flow, _) = flow_of(link, packet.data, |headers, fragment| {
            self.fragments
                .resolve(headers, fragment, &self.hasher, packet.ts_ns);
        });
        flow == self.flow
    }
}

/// Addresses that blocks with packets of a flow hold, one of each set.
pub(crate) fn addresses(flow: &FlowKey) -> Vec<Vec<(AddressFamily, u128)>> {
    match flow.family {
        AddressFamily::Mac => Vec::new(),
        family => vec![
            vec![(family, flow.low.address)],
            vec![(family, flow.high.address)],
        ],
    }
}

/// The flow of a packet, and whether it goes from its low to its high endpoint.
/// `resolve` may give a later fragment the ports of its first one.
pub(crate) fn flow_of(
    link: LinkType,
    packet: &[u8],
    resolve: impl FnOnce(&mut Headers, Fragment),
) -> (FlowKey, bool) {
    if link == LinkType::ETHERNET
        && let Some(plain) = Plain::read(packet)
    {
        return plain.key();
    }
    let mut headers = dissect(link, packet, TunnelKey::Inner);
    if let Some(fragment) = headers.fragment {
        resolve(&mut headers, fragment);
    }
    match headers.key {
        // As in the tables, which do not hold the EtherType.
        Some(key) if key.family == AddressFamily::Mac => {
            let [from, to] = match headers.low_to_high {
                true => [key.low, key.high],
                false => [key.high, key.low],
            };
            let end = |end: Endpoint| Endpoint { port: 0, ..end };
            FlowKey::new(AddressFamily::Mac, 0, end(from), end(to))
        }
        Some(key) => (key, headers.low_to_high),
        None => (FlowKey::NONE, true),
    }
}
