//! The headers that most packets have, read without a walk.

use crate::bytes::{held16, held32, held128};
use crate::formats::ip_protocol as protocol;
use crate::formats::tunnel;
use crate::walk::headers::Headers;
use crate::words::flow::{AddressFamily, Endpoint, FlowHasher, FlowKey};

/// The contents of a plain packet's headers: TCP, or UDP that is no tunnel, in IPv4 without options
/// and fragments, in Ethernet, its headers whole, of at least 50 bytes. A fast path of
/// [`dissect`](crate::walk::dissect::dissect), and equal to it; 20 bytes where [`Headers`] take more than
/// two hundred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plain {
    /// Source address.
    pub source: u32,
    /// Destination address.
    pub destination: u32,
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// TCP window, else 0.
    pub tcp_window: u16,
    /// Bytes of the TCP or UDP header.
    pub transport_len: u8,
    /// IP protocol number: TCP or UDP.
    pub protocol: u8,
    /// TCP flags, else 0.
    pub tcp_flags: u8,
    /// Type of service.
    pub tos: u8,
    /// Time to live.
    pub ttl: u8,
}

/// Where the IP header begins, after Ethernet.
const NETWORK_AT: u32 = 14;
/// Ethernet and IPv4 without options.
const NETWORK_LEN: usize = 14 + 20;

impl Plain {
    /// Reads the headers of a packet that starts with Ethernet; `None` if it is not plain.
    #[inline(always)]
    #[must_use]
    pub fn read(packet: &[u8]) -> Option<Self> {
        /// Up to the window of TCP.
        const FIXED: usize = NETWORK_LEN + 16;
        let fixed: &[u8; FIXED] = packet.first_chunk()?;
        if fixed[12..15] != [0x08, 0x00, 0x45] {
            return None;
        }
        let word = |at: usize| held16(fixed, at);
        let double = |at: usize| held32(fixed, at);
        let (total_len, fragment, number) = (usize::from(word(16)), word(20), fixed[23]);
        let (source_port, destination_port) = (word(34), word(36));
        // Which of the two it is cannot be predicted, so no branch depends on it.
        let (tcp, udp) = (number == protocol::TCP, number == protocol::UDP);
        let transport_len = if tcp { (fixed[46] >> 4) << 2 } else { 8 };
        let tcp_mask = if tcp { u16::MAX } else { 0 };
        let [tcp_flags, _] = (u16::from(fixed[47]) & tcp_mask).to_le_bytes();
        let tcp_window = word(48) & tcp_mask;
        // At most 94.
        let header_len = NETWORK_LEN.wrapping_add(usize::from(transport_len));
        let known = (tcp | udp)
            & (fragment & 0x3fff == 0)
            & (transport_len >= if tcp { 20 } else { 8 })
            & !(udp & tunnel::may_be_tunnel(source_port, destination_port))
            & (total_len.wrapping_add(14) >= header_len)
            // Whole, as the IP header says, or cut short after the headers.
            & ((total_len.wrapping_add(14) <= packet.len()) | (header_len < packet.len()));
        if !known {
            return None;
        }
        Some(Self {
            source: double(26),
            destination: double(30),
            source_port,
            destination_port,
            tcp_window,
            transport_len,
            protocol: number,
            tcp_flags,
            tos: fixed[15],
            ttl: fixed[22],
        })
    }

    /// Bytes up to the end of the transport header.
    #[inline(always)]
    #[must_use]
    #[allow(clippy::cast_possible_truncation)]
    pub fn header_len(&self) -> u16 {
        u16::from(self.transport_len).wrapping_add(NETWORK_LEN as u16)
    }

    /// The fingerprint of the packet's flow, and whether it goes from the key's
    /// low to its high endpoint.
    #[inline(always)]
    #[must_use]
    pub fn flow(&self, hasher: &FlowHasher) -> (u64, bool) {
        let source = u64::from(self.source) << 16 | u64::from(self.source_port);
        let destination = u64::from(self.destination) << 16 | u64::from(self.destination_port);
        let fingerprint = hasher.ipv4(
            self.protocol,
            source.min(destination),
            source.max(destination),
        );
        (fingerprint, source <= destination)
    }

    /// The key of the packet's flow, and whether it goes from the key's low to its high endpoint.
    #[inline]
    #[must_use]
    pub fn key(&self) -> (FlowKey, bool) {
        let end = |address: u32, port| Endpoint {
            address: u128::from(address),
            port,
        };
        FlowKey::new(
            AddressFamily::Ipv4,
            self.protocol,
            end(self.source, self.source_port),
            end(self.destination, self.destination_port),
        )
    }

    /// The same as [`Headers`].
    #[inline]
    #[must_use]
    pub fn headers(&self) -> Headers {
        let (key, low_to_high) = self.key();
        Headers {
            header_len: u32::from(self.header_len()),
            transport_len: u16::from(self.transport_len),
            quoted_len: 0,
            key: Some(key),
            low_to_high,
            fragment: None,
            tos: self.tos,
            ttl: self.ttl,
            tcp_flags: self.tcp_flags,
            tcp_window: self.tcp_window,
            network_at: NETWORK_AT,
            outer: None,
            networks: 1,
            incomplete: false,
        }
    }
}

/// Ethernet and IPv6 without extension headers.
const NETWORK_LEN_IPV6: usize = 14 + 40;

/// The headers of a packet that starts with Ethernet, if they are plain but for IPv6, without
/// extension headers, in place of IPv4; of at least 70 bytes. The same as from
/// [`dissect`](crate::walk::dissect::dissect), whose fast path it is.
#[inline]
#[must_use]
pub(crate) fn plain_ipv6(packet: &[u8]) -> Option<Headers> {
    /// Up to the window of TCP.
    const FIXED: usize = NETWORK_LEN_IPV6 + 16;
    let fixed: &[u8; FIXED] = packet.first_chunk()?;
    if fixed[12..14] != [0x86, 0xdd] || fixed[14] >> 4 != 6 {
        return None;
    }
    let word = |at: usize| held16(fixed, at);
    let (payload_len, number) = (usize::from(word(18)), fixed[20]);
    let (source_port, destination_port) = (word(54), word(56));
    let (tcp, udp) = (number == protocol::TCP, number == protocol::UDP);
    let transport_len = if tcp { (fixed[66] >> 4) << 2 } else { 8 };
    // At most 114.
    let header_len = NETWORK_LEN_IPV6.wrapping_add(usize::from(transport_len));
    let known = (tcp | udp)
        & (transport_len >= if tcp { 20 } else { 8 })
        & !(udp & tunnel::may_be_tunnel(source_port, destination_port))
        & (payload_len >= usize::from(transport_len))
        // Whole, as the IP header says, or cut short after the headers.
        & ((payload_len.wrapping_add(NETWORK_LEN_IPV6) <= packet.len())
            | (header_len < packet.len()));
    if !known {
        return None;
    }
    let (key, low_to_high) = FlowKey::new(
        AddressFamily::Ipv6,
        number,
        Endpoint {
            address: held128(fixed, 22),
            port: source_port,
        },
        Endpoint {
            address: held128(fixed, 38),
            port: destination_port,
        },
    );
    #[allow(clippy::cast_possible_truncation, reason = "at most 54 + 60")]
    let header_len = header_len as u32;
    Some(Headers {
        header_len,
        transport_len: u16::from(transport_len),
        key: Some(key),
        low_to_high,
        tos: fixed[14] << 4 | fixed[15] >> 4,
        ttl: fixed[21],
        tcp_flags: if tcp { fixed[67] } else { 0 },
        tcp_window: if tcp { word(68) } else { 0 },
        network_at: NETWORK_AT,
        networks: 1,
        ..Headers::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::tunnel::{UDP_DESTINATIONS, UDP_EITHER};
    use crate::walk::walk;
    use crate::{FlowHasher, LinkType, TunnelKey};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        /// The fast path equals the walk, on packets that are nearly what it takes.
        #[test]
        fn the_fast_path_equals_the_walk(
            mut packet in prop::collection::vec(any::<u8>(), 30..90),
            number in prop::sample::select(vec![6, 17, 17, 1]),
            port in prop::sample::select(
                [&[53, 443], &UDP_EITHER[..], &UDP_DESTINATIONS[..]].concat(),
            ),
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
            if let Some(fast) = Plain::read(&packet) {
                let hasher = FlowHasher::new([3, 4]);
                let headers = fast.headers();
                prop_assert_eq!(
                    fast.flow(&hasher),
                    (hasher.flow(&headers.key.unwrap()), headers.low_to_high)
                );
                for tunnel_key in [TunnelKey::Inner, TunnelKey::Outer] {
                    prop_assert_eq!(fast.headers(), walk(LinkType::ETHERNET, &packet, tunnel_key));
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        #[test]
        fn the_fast_path_of_ipv6_equals_the_walk(
            mut packet in prop::collection::vec(any::<u8>(), 60..120),
            number in prop::sample::select(vec![6, 17, 17, 58, 0]),
            port in prop::sample::select(
                [&[53, 443], &UDP_EITHER[..], &UDP_DESTINATIONS[..]].concat(),
            ),
            payload_len in 0_u16..70, offset in 4_u8..16, class in any::<u8>(),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..2),
        ) {
            packet[12..14].copy_from_slice(&[0x86, 0xdd]);
            packet[14] = 0x60 | class >> 4;
            packet[18..20].copy_from_slice(&payload_len.to_be_bytes());
            packet[20] = number;
            packet[56..58].copy_from_slice(&u16::to_be_bytes(port));
            if packet.len() > 66 {
                packet[66] = offset << 4;
            }
            for (index, value) in changes {
                *index.get_mut(&mut packet) = value;
            }
            if let Some(fast) = plain_ipv6(&packet) {
                for tunnel_key in [TunnelKey::Inner, TunnelKey::Outer] {
                    prop_assert_eq!(fast, walk(LinkType::ETHERNET, &packet, tunnel_key));
                }
            }
        }
    }

    #[test]
    fn most_packets_of_ipv6_take_the_fast_path() {
        let mut packet = [0_u8; 80];
        packet[12..22].copy_from_slice(&[0x86, 0xdd, 0x61, 0x20, 0, 0, 0, 26, 6, 64]);
        packet[66] = 0x50;
        let headers = plain_ipv6(&packet).unwrap();
        assert_eq!((headers.header_len, headers.tos), (74, 0x12));
        packet[20] = 17;
        assert_eq!(plain_ipv6(&packet).unwrap().header_len, 62);
        packet[20] = 58;
        assert_eq!(plain_ipv6(&packet), None);
    }

    #[test]
    fn most_packets_take_the_fast_path() {
        let mut packet = [0_u8; 60];
        packet[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 6]);
        packet[46] = 0x50;
        assert_eq!(Plain::read(&packet).unwrap().header_len(), 54);
        packet[23] = 17;
        assert_eq!(Plain::read(&packet).unwrap().header_len(), 42);
    }
}
