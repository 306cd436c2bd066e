//! From captured bytes to headers: where they end, whose packet it is.
//!
//! **What "header" means**, for header-only logging and everywhere else in
//! Strata: every byte up to the end of the innermost transport header that
//! could be parsed, its options included. Through a tunnel that is the inner
//! packet's transport header. Where nothing that is known follows, the header
//! ends with the last layer that was understood; a header that the capture cut
//! short ends where the captured bytes end. [`Headers::header_len`] is that end.
//!
//! Each step consumes at least one byte of the packet or ends the walk, so the
//! walk is bounded by the packet's length, and to 64 layers.

use crate::flow::{AddressFamily, Endpoint, FlowKey};
use crate::walk::walk;
use crate::{LinkType, tunnel};

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
}

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
        && let Some(headers) = common(packet)
    {
        return headers;
    }
    walk(link, packet, tunnel_key)
}

/// The headers of most packets: TCP, or UDP that is no tunnel, in IPv4 without
/// options and fragments, in Ethernet, whole. `None` for all others. A fast path
/// of [`walk`], and equal to it.
#[inline]
fn common(packet: &[u8]) -> Option<Headers> {
    /// Ethernet, IPv4 without options, UDP: the shortest packet that comes here.
    const FIXED: usize = 14 + 20 + 8;
    let fixed: &[u8; FIXED] = packet.first_chunk()?;
    if fixed[12..15] != [0x08, 0x00, 0x45] {
        return None;
    }
    let word = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
    let double =
        |at: usize| u32::from_be_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
    let (total_len, fragment, number) = (usize::from(word(16)), word(20), fixed[23]);
    let (source_port, destination_port) = (word(34), word(36));
    // Whole: as long as the IP header says at least, which has room for the
    // transport header.
    let ip_len = packet.len() - 14;
    if fragment & 0x3fff != 0 || total_len > ip_len {
        return None;
    }
    let (transport_len, tcp_flags, tcp_window) = match number {
        protocol::TCP => {
            let rest: &[u8; 4] = packet.get(46..50)?.first_chunk()?;
            let len = u16::from(rest[0] >> 4) * 4;
            if len < 20 {
                return None;
            }
            (len, rest[1], u16::from_be_bytes([rest[2], rest[3]]))
        }
        protocol::UDP if !tunnel::has_udp_port(source_port, destination_port) => (8, 0, 0),
        _ => return None,
    };
    if total_len < 20 + usize::from(transport_len) {
        return None;
    }
    let end = |address: u32, port| Endpoint {
        address: u128::from(address),
        port,
    };
    let (source, destination) = (
        end(double(26), source_port),
        end(double(30), destination_port),
    );
    let (key, low_to_high) = FlowKey::new(AddressFamily::Ipv4, number, source, destination);
    Some(Headers {
        header_len: 34 + u32::from(transport_len),
        transport_len,
        key: Some(key),
        low_to_high,
        fragment: None,
        tos: fixed[15],
        ttl: fixed[22],
        tcp_flags,
        tcp_window,
        outer: None,
        networks: 1,
        incomplete: false,
    })
}

/// Whether `packet` may hold IP addresses that [`dissect`] reports neither in
/// `key` nor in `outer`: more than two IP headers, or a header that was not
/// understood. Such a packet makes a block of the log match every search for a
/// host.
#[must_use]
pub fn may_hide_addresses(headers: &Headers) -> bool {
    headers.incomplete || headers.networks > 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        /// The fast path is the walk, on packets that are nearly what it takes.
        #[test]
        fn the_fast_path_equals_the_walk(
            mut packet in prop::collection::vec(any::<u8>(), 30..90),
            number in prop::sample::select(vec![6, 17, 17, 1]),
            port in prop::sample::select(vec![53, 443, 4789, 2152, 6081]),
            total_len in 20_u16..90, offset in 4_u8..16,
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..2),
        ) {
            packet[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
            packet[16..18].copy_from_slice(&total_len.to_be_bytes());
            packet[20..22].copy_from_slice(&[0x40, 0]);
            packet[23] = number;
            if packet.len() > 46 {
                packet[36..38].copy_from_slice(&u16::to_be_bytes(port));
                packet[46] = offset << 4;
            }
            for (index, value) in changes {
                *index.get_mut(&mut packet) = value;
            }
            if let Some(fast) = common(&packet) {
                for tunnel_key in [TunnelKey::Inner, TunnelKey::Outer] {
                    prop_assert_eq!(fast, walk(LinkType::ETHERNET, &packet, tunnel_key));
                }
            }
        }
    }

    #[test]
    fn most_packets_take_the_fast_path() {
        let mut packet = [0_u8; 60];
        packet[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 6]);
        packet[46] = 0x50;
        assert_eq!(common(&packet).unwrap().header_len, 54);
        packet[23] = 17;
        assert_eq!(common(&packet).unwrap().header_len, 42);
    }
}
