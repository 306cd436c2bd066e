//! From captured bytes to headers: where they end, whose packet it is.
//!
//! **What "header" means**, for header-only logging and everywhere else in
//! Strata: every byte up to the end of the innermost transport header that
//! could be parsed, its options included. Through a tunnel that is the inner
//! packet's transport header. Where nothing that is known follows, the header
//! ends with the last layer that was understood; a header that the capture cut
//! short ends where the captured bytes end. [`Headers::header_len`] is that end.
//! Of a packet without a network header that could be read, header-only logging keeps
//! [`FALLBACK_LEN`] bytes, where that is more ([`Headers::kept_header_len`]).
//!
//! Each step consumes at least one byte of the packet or ends the walk, so the
//! walk is bounded by the packet's length, and to 64 layers.

use crate::LinkType;
use crate::flow::{Endpoint, FlowKey};
use crate::plain::Plain;
use crate::walk::walk;

/// IP protocol numbers (IANA) that the walk knows.
pub mod protocol {
    #![allow(missing_docs)]
    pub const HOP_BY_HOP: u8 = 0;
    pub const ICMP: u8 = 1;
    pub const IGMP: u8 = 2;
    pub const IPV4: u8 = 4;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    pub const IPV6: u8 = 41;
    pub const ROUTING: u8 = 43;
    pub const FRAGMENT: u8 = 44;
    pub const GRE: u8 = 47;
    pub const ESP: u8 = 50;
    pub const AH: u8 = 51;
    pub const ICMPV6: u8 = 58;
    pub const DESTINATION_OPTIONS: u8 = 60;
    pub const SCTP: u8 = 132;
    pub const MOBILITY: u8 = 135;
    pub const HIP: u8 = 139;
    pub const SHIM6: u8 = 140;

    /// What people call a protocol; `None` for one that is known by its number.
    #[must_use]
    pub fn name(number: u8) -> Option<&'static str> {
        Some(match number {
            ICMP => "ICMP",
            IGMP => "IGMP",
            IPV4 => "IPv4",
            TCP => "TCP",
            UDP => "UDP",
            33 => "DCCP",
            IPV6 => "IPv6",
            46 => "RSVP",
            GRE => "GRE",
            ESP => "ESP",
            AH => "AH",
            ICMPV6 => "ICMPv6",
            88 => "EIGRP",
            89 => "OSPF",
            103 => "PIM",
            112 => "VRRP",
            115 => "L2TP",
            SCTP => "SCTP",
            136 => "UDP-Lite",
            _ => return None,
        })
    }
}

/// What header-only logging keeps at least of a packet without a network header that could be
/// read: the shortest Ethernet frame, so enough to see what it is.
pub const FALLBACK_LEN: u32 = 64;

/// Whose flow a tunnelled packet belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TunnelKey {
    /// The flow of the innermost packet.
    #[default]
    Inner,
    /// The flow between the tunnel's ends.
    Outer,
}

/// A fragment of an IP packet, by what names the packet it came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragment {
    /// Identification: 16 bits in IPv4, 32 in IPv6.
    pub identification: u32,
    /// Whether this is the first fragment, which carries the ports.
    pub first: bool,
}

/// What the headers of one packet say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Headers {
    /// Bytes up to the end of the innermost parsed transport header.
    pub header_len: u32,
    /// Bytes of that transport header alone; 0 if there is none.
    pub transport_len: u16,
    /// The flow, if the packet has addresses that could be read.
    pub key: Option<FlowKey>,
    /// Whether the packet goes from the key's low to its high endpoint.
    pub low_to_high: bool,
    /// Set for fragments, of the packet that `key` is of.
    pub fragment: Option<Fragment>,
    /// Type of service or traffic class.
    pub tos: u8,
    /// Time to live or hop limit.
    pub ttl: u8,
    /// TCP flags, else 0.
    pub tcp_flags: u8,
    /// TCP window, else 0.
    pub tcp_window: u16,
    /// The tunnel's own flow key, where `key` is of the inner packet.
    pub outer: Option<FlowKey>,
    /// IP headers and ARP messages found.
    pub networks: u8,
    /// Whether some header was cut short, lies about its length or is of a link
    /// type that is not dissected, so that addresses may have been missed.
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

    /// How many of `captured_len` bytes are header for header-only logging.
    #[inline]
    #[must_use]
    pub fn kept_header_len(&self, captured_len: u32) -> u32 {
        if self.has_no_network() {
            self.header_len.max(FALLBACK_LEN.min(captured_len))
        } else {
            self.header_len
        }
    }

    /// The packet's source and destination endpoint.
    #[inline]
    #[must_use]
    pub fn endpoints(&self) -> (Endpoint, Endpoint) {
        let key = self.key.unwrap_or_default();
        if self.low_to_high {
            (key.low, key.high)
        } else {
            (key.high, key.low)
        }
    }
}

/// Reads the headers of `packet`. Never fails: what cannot be read ends the
/// header and sets [`Headers::incomplete`].
#[inline]
#[must_use]
pub fn dissect(link: LinkType, packet: &[u8], tunnel_key: TunnelKey) -> Headers {
    if link == LinkType::ETHERNET
        && let Some(plain) = Plain::read(packet)
    {
        return plain.headers();
    }
    walk(link, packet, tunnel_key)
}

/// Whether `packet` may hold IP addresses that [`dissect`] reports neither in
/// `key` nor in `outer`: more than two IP headers, or a header that was not
/// understood. Such a packet makes a block of the log match every search for a
/// host.
#[must_use]
pub fn may_hide_addresses(headers: &Headers) -> bool {
    headers.incomplete || headers.networks > 2
}
