//! Packets as the cache takes them.

use strata_capture::PacketRef;
use strata_gpv::{Packet, Seen};
use strata_pipeline::{FlowFinder, wire_bytes};
use strata_wire::dissect::protocol;
use strata_wire::{AddressFamily, Headers, LinkType, TunnelKey, exact};

use crate::error::Result;
use crate::seed::seed;

/// Tells whether a filter matches a packet with this link type, these bytes and this length on the wire.
pub type Matches = Box<dyn FnMut(LinkType, &[u8], u32) -> bool>;

/// Numbers of packets, by outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counted {
    /// Packets that the filter matches; some of them have no IP header.
    pub packets: u64,
    /// Packets that the filter does not match.
    pub filtered: u64,
    /// Packets without a readable IP header.
    pub not_ip: u64,
    /// Packets that are cut within the transport header: fields that were not captured are 0.
    pub cut: u64,
    /// Packets that the kernel lost.
    pub dropped: u64,
}

/// Extracts from headers the features that a cache takes.
pub struct Features {
    finder: FlowFinder,
    filter: Option<Matches>,
    /// Numbers of packets so far, by outcome.
    pub counted: Counted,
}

impl Features {
    /// Extracts the features of all packets.
    ///
    /// # Errors
    ///
    /// If the system has no randomness.
    pub fn new() -> Result<Self> {
        let seed = seed()?;
        Ok(Self {
            finder: FlowFinder::new([seed, !seed], TunnelKey::Inner),
            filter: None,
            counted: Counted::default(),
        })
    }

    /// Takes only packets that match `filter`, if it is given.
    pub fn filter(&mut self, filter: Option<Matches>) {
        self.filter = filter;
    }

    /// The features of a packet; `None` if the filter does not match it, or it has no IP header.
    pub fn of(&mut self, link: LinkType, packet: &PacketRef<'_>) -> Option<Packet> {
        if let Some(filter) = &mut self.filter
            && !filter(link, packet.data, packet.wire_len)
        {
            self.counted.filtered += 1;
            return None;
        }
        self.counted.packets += 1;
        let seen = Seen {
            ts_ns: packet.ts_ns,
            wire_len: exact(wire_bytes(packet)),
            ingress: packet.interface,
        };
        if let Some((plain, _)) = self.finder.find_plain(link, packet) {
            return Some(Packet::plain(&plain, packet.data, seen));
        }
        let (headers, _) = self.finder.find(link, packet);
        let features = Packet::read(&headers, packet.data, seen)
            .filter(|features| features.key.family() != AddressFamily::Mac);
        match features {
            None => self.counted.not_ip += 1,
            Some(_) => self.counted.cut += u64::from(is_cut(&headers, packet)),
        }
        features
    }
}

/// Whether fields of the transport header were not captured.
fn is_cut(headers: &Headers, packet: &PacketRef<'_>) -> bool {
    let is_whole = packet.data.len() as u64 >= u64::from(packet.wire_len);
    let is_later = headers.fragment.is_some_and(|fragment| !fragment.first);
    let fixed = match headers.key.map(|key| key.protocol) {
        Some(protocol::TCP) => 20,
        Some(protocol::UDP) => 8,
        _ => 0,
    };
    !is_whole && !is_later && usize::from(headers.transport_len) < fixed
}
