//! Which flow a packet belongs to: headers, fragments and fingerprint.

use strata_capture::PacketRef;
use strata_sketch::PacketFacts;
use strata_wire::dissect::dissect;
use strata_wire::{FlowHasher, FragmentTable, Headers, LinkType, Plain, TunnelKey, exact};

/// Finds the flow of each packet. Recording and the making of training data both go through it, so
/// a model sees the same in both.
#[derive(Debug)]
pub struct FlowFinder {
    hasher: FlowHasher,
    fragments: FragmentTable,
    tunnel_key: TunnelKey,
}

impl FlowFinder {
    /// A finder whose fingerprints are keyed with `hash_seed`.
    #[must_use]
    pub fn new(hash_seed: [u64; 2], tunnel_key: TunnelKey) -> Self {
        Self {
            hasher: FlowHasher::new(hash_seed),
            fragments: FragmentTable::default(),
            tunnel_key,
        }
    }

    /// The hasher of fingerprints.
    #[must_use]
    pub fn hasher(&self) -> FlowHasher {
        self.hasher
    }

    /// The same, without a copy.
    #[inline(always)]
    pub(crate) fn keyed(&self) -> &FlowHasher {
        &self.hasher
    }

    /// The headers and facts of a plain packet, the same as from [`FlowFinder::find`]; `None` for
    /// any other packet, which needs that.
    #[inline(always)]
    #[must_use]
    pub fn find_plain(
        &self,
        link: LinkType,
        packet: &PacketRef<'_>,
    ) -> Option<(Plain, PacketFacts)> {
        if link != LinkType::ETHERNET {
            return None;
        }
        let plain = Plain::read(packet.data)?;
        let flow = plain.flow(&self.hasher);
        let wire_len = exact::<u32>(wire_bytes(packet));
        let facts = PacketFacts::plain(&plain, flow, packet.ts_ns, wire_len);
        Some((plain, facts))
    }

    /// The headers of a packet, and its facts if it has a flow.
    #[inline]
    pub fn find(
        &mut self,
        link: LinkType,
        packet: &PacketRef<'_>,
    ) -> (Headers, Option<PacketFacts>) {
        let mut headers = dissect(link, packet.data, self.tunnel_key);
        if let Some(fragment) = headers.fragment {
            self.fragments
                .resolve(&mut headers, fragment, &self.hasher, packet.ts_ns);
        }
        let facts = headers.key.as_ref().map(|key| {
            let fingerprint = self.hasher.flow(key);
            let wire_len = exact::<u32>(wire_bytes(packet));
            PacketFacts::new(&headers, fingerprint, packet.ts_ns, wire_len)
        });
        (headers, facts)
    }
}

/// A packet's bytes on the wire as the counters take them: at least what was captured, since a
/// capture may claim less.
#[inline]
#[must_use]
pub fn wire_bytes(packet: &PacketRef<'_>) -> u64 {
    u64::from(packet.wire_len).max(packet.data.len() as u64)
}
