//! The contents of a packet's headers, whatever reads them.

use crate::flow::{Endpoint, FlowKey};

/// The least that header-only logging keeps of a packet without a readable network header: the
/// shortest Ethernet frame, so enough to see what it is.
pub const FALLBACK_LEN: u32 = 64;

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
    /// Bytes of that transport header alone; 0 if there is none.
    pub transport_len: u16,
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
