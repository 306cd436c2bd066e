//! The contents of a packet's headers, whatever reads them.

use crate::bytes::{be16, u8_at};
use crate::words::flow::{AddressFamily, Endpoint, FlowKey};

/// The least that header-only logging keeps of a packet without a readable network header: the
/// shortest Ethernet frame, so enough to see what it is.
pub const FALLBACK_LEN: u32 = 64;

/// The fixed header of IPv6 (RFC 8200 §3).
const IPV6_HEADER_BYTES: u32 = 40;
/// In place of a next header: nothing follows (RFC 8200 §4.7).
const NO_NEXT_HEADER: u8 = 59;

/// Which flow a tunnelled packet belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TunnelKey {
    /// The flow of the innermost packet.
    #[default]
    Inner,
    /// The flow between the tunnel's ends.
    Outer,
}

/// A fragment of an IP packet, by what identifies the packet it came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragment {
    /// Identification: 16 bits in IPv4, 32 in IPv6.
    pub identification: u32,
    /// Whether this is the first fragment, which carries the ports.
    pub first: bool,
}

/// The contents of one packet's headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Headers {
    /// Bytes up to the end of the innermost parsed transport header.
    pub header_len: u32,
    /// Bytes of that transport header alone; 0 without one. Those that an ICMP error quotes are
    /// part of its message.
    pub transport_len: u16,
    /// Bytes of the headers that an ICMP error quotes, which are another packet's: what models know of a
    /// packet is without them.
    pub quoted_len: u16,
    /// The flow, if the packet has readable addresses.
    pub key: Option<FlowKey>,
    /// Whether the packet goes from the key's low to its high endpoint.
    pub low_to_high: bool,
    /// Set for fragments of the packet that `key` belongs to.
    pub fragment: Option<Fragment>,
    /// Type of service or traffic class.
    pub tos: u8,
    /// Time to live or hop limit.
    pub ttl: u8,
    /// TCP flags, else 0.
    pub tcp_flags: u8,
    /// TCP window, else 0.
    pub tcp_window: u16,
    /// Where the IP header begins that `key` is of; 0 if it is of none.
    pub network_at: u32,
    /// The tunnel's own flow key, if `key` is the inner packet's.
    pub outer: Option<FlowKey>,
    /// IP headers and ARP messages found.
    pub networks: u8,
    /// Whether some header was cut short, has a wrong length or is of a link type that is not
    /// dissected, so that addresses may have been missed.
    pub incomplete: bool,
}

impl Headers {
    /// Whether neither an IP header nor an ARP message was found, so that header-only logging
    /// falls back to a number of bytes.
    #[inline]
    #[must_use]
    pub fn has_no_network(&self) -> bool {
        self.networks == 0
    }

    /// How many of `captured_len` bytes are the header for header-only logging.
    #[inline]
    #[must_use]
    pub fn kept_header_len(&self, captured_len: u32) -> u32 {
        if self.has_no_network() {
            self.header_len.max(FALLBACK_LEN.min(captured_len))
        } else {
            self.header_len
        }
    }

    /// Bytes of the IP packet that `key` is of, its header and payload, as it says itself
    /// (octetDeltaCount of IPFIX, RFC 5102 §5.10.1): of a tunnel's inner packet, not of the tunnel, and
    /// without the link's padding. A length of 0, as of a segment that the sender's interface has still
    /// to divide and of a jumbogram (RFC 2675), means the rest of the frame. `None` if it is not IP, or
    /// its length field is not in `packet`, the bytes that were dissected.
    #[inline]
    #[must_use]
    pub fn ip_bytes(&self, packet: &[u8], wire_len: u32) -> Option<u32> {
        let ip = packet.get(usize::try_from(self.network_at).ok()?..)?;
        let to_end = || wire_len.saturating_sub(self.network_at);
        match self.key?.family {
            AddressFamily::Mac => None,
            AddressFamily::Ipv4 => Some(match be16(ip, 2)? {
                0 => to_end(),
                total_len => total_len.into(),
            }),
            AddressFamily::Ipv6 => Some(match be16(ip, 4)? {
                // Nothing follows the header but the link's padding.
                0 if u8_at(ip, 6) == Some(NO_NEXT_HEADER) => IPV6_HEADER_BYTES,
                0 => to_end().max(IPV6_HEADER_BYTES),
                payload_len => IPV6_HEADER_BYTES.saturating_add(payload_len.into()),
            }),
        }
    }

    /// The packet's flow key; [`FlowKey::NONE`] if it has no flow.
    #[inline]
    #[must_use]
    pub fn flow_key(&self) -> FlowKey {
        self.key.unwrap_or(FlowKey::NONE)
    }

    /// The packet's source and destination endpoint.
    #[inline]
    #[must_use]
    pub fn endpoints(&self) -> (Endpoint, Endpoint) {
        let key = self.flow_key();
        if self.low_to_high {
            (key.low, key.high)
        } else {
            (key.high, key.low)
        }
    }
}
