//! A dissected packet waiting to be added to a run.

use strata_blocks::PacketRecord;
use strata_wire::dissect::{dissect, may_hide_addresses};
use strata_wire::{FlowHasher, FragmentTable, Headers, LinkType, Plain, TunnelKey, mix64};

/// The bytes of the IP packet in what is not IP.
pub(crate) const NOT_IP: u32 = 0;

/// Maximum number of packets added together.
pub(crate) const PENDING_MAX: usize = 32;

/// A packet waiting to be added.
pub(crate) struct Pending<'a> {
    pub(crate) packet: PacketRecord<'a>,
    pub(crate) link: LinkType,
    pub(crate) headers: Headers,
    /// Fingerprint of its flow on its interface.
    pub(crate) fingerprint: u64,
    /// The caller's code for its verdict, class and score.
    pub(crate) verdict: (u32, u8, Option<u16>),
}

impl<'a> Pending<'a> {
    pub(crate) fn new(
        packet: PacketRecord<'a>,
        link: LinkType,
        (hasher, fragments): (&FlowHasher, &mut FragmentTable),
        verdict: (u32, u8, Option<u16>),
    ) -> Self {
        let mut headers = headers_of(link, packet.data, packet.header_len, packet.captured_len);
        if let Some(fragment) = headers.fragment {
            fragments.resolve(&mut headers, fragment, hasher, packet.ts_ns);
        }
        let flow = hasher.flow(&headers.flow_key());
        Self {
            fingerprint: flow ^ mix64(u64::from(packet.interface) + 1),
            headers,
            packet,
            link,
            verdict,
        }
    }

    pub(crate) fn direction(&self) -> usize {
        usize::from(!self.headers.low_to_high)
    }

    /// Bytes of its innermost IP packet; 0 if it is not IP.
    pub(crate) fn ip_bytes(&self) -> u32 {
        let bytes = self
            .headers
            .ip_bytes(self.packet.data, self.packet.wire_len);
        bytes.unwrap_or(NOT_IP)
    }

    /// Whether a filter cannot see the ports of its flow in it.
    pub(crate) fn is_later_fragment(&self) -> bool {
        self.headers
            .fragment
            .is_some_and(|fragment| !fragment.first)
    }
}

/// The kept bytes of a packet, dissected.
pub(crate) fn headers_of(
    link: LinkType,
    kept: &[u8],
    header_len: u16,
    captured_len: u32,
) -> Headers {
    /// More than [`Plain`] looks at, and more than its headers take.
    const ROOM: usize = 128;
    let header_len = usize::from(header_len);
    let only_header = kept.len() == header_len && captured_len as usize > header_len;
    if only_header && link == LinkType::ETHERNET && header_len < ROOM {
        // The recorder saw that more bytes follow, without any header in them.
        let mut followed = [0; ROOM];
        followed[..header_len].copy_from_slice(kept);
        if let Some(plain) = Plain::read(&followed)
            && usize::from(plain.header_len()) == header_len
        {
            return plain.headers();
        }
    }
    dissect(link, kept, TunnelKey::Inner)
}

/// Whether the bytes kept of a packet may hold addresses other than its flow's. Dissection treats
/// packets that end with their headers as cut short; after a whole transport header, no byte was
/// kept that could hold an address.
pub(crate) fn hides_addresses(headers: &Headers, header_len: usize, kept_len: usize) -> bool {
    let whole = headers.transport_len > 0 && headers.header_len as usize == kept_len;
    let only_cut = whole && header_len == kept_len && headers.networks <= 2;
    (may_hide_addresses(headers) && !only_cut) || headers.outer.is_some()
}
