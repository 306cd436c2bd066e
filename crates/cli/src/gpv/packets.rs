//! Packets as the cache takes them.

use anyhow::Result;
use strata_capture::PacketRef;
use strata_filter::Filter;
use strata_gpv::{Packet, Seen};
use strata_pipeline::{FlowFinder, wire_bytes};
use strata_query::ByLink;
use strata_wire::dissect::protocol;
use strata_wire::{AddressFamily, Headers, LinkType, TunnelKey, exact};
use tracing::{info, warn};

use super::seed;
use crate::export::say_no_match;
use crate::text::count_of;

/// What became of packets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    /// Matched by the filter; of these some have no IP header.
    pub(super) packets: u64,
    /// Not matched.
    pub(super) filtered: u64,
    /// Without an IP header that can be read.
    pub(super) not_ip: u64,
    /// Cut within the transport header: fields that were not captured are 0.
    pub(super) cut: u64,
    /// Lost by the kernel.
    pub(super) dropped: u64,
}

impl Counted {
    /// Says what is in no vector, or not whole.
    pub(super) fn say(&self) {
        if self.filtered > 0 {
            info!("the filter does not match {}", packets_of(self.filtered));
        }
        if self.not_ip > 0 {
            info!(
                "{} without an IP header, and in no vector",
                packets_of(self.not_ip)
            );
        }
        if self.cut > 0 {
            warn!(
                "{} cut within the transport header: fields that were not captured are 0",
                packets_of(self.cut)
            );
        }
        if self.dropped > 0 {
            warn!(
                "{} lost: they came faster than they were processed",
                packets_of(self.dropped)
            );
        }
    }
}

fn packets_of(number: u64) -> String {
    count_of(number, "packet")
}

/// Headers into what the cache takes.
pub(super) struct Features {
    finder: FlowFinder,
    filter: Option<ByLink>,
    pub(super) counted: Counted,
}

impl Features {
    pub(super) fn new() -> Result<Self> {
        let seed = seed()?;
        Ok(Self {
            finder: FlowFinder::new([seed, !seed], TunnelKey::Inner),
            filter: None,
            counted: Counted::default(),
        })
    }

    /// Only packets that match this are taken.
    pub(super) fn filter(&mut self, filter: Option<Filter>) {
        self.filter = filter.map(|filter| ByLink::new(filter, say_no_match));
    }

    /// The features of a packet; `None` if the filter does not match it, or it has no IP header.
    pub(super) fn of(&mut self, link: LinkType, packet: &PacketRef<'_>) -> Option<Packet> {
        if let Some(filter) = &mut self.filter
            && !filter.matches(link, packet.data, packet.wire_len)
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
