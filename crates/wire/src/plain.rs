//! The headers that most packets have, read without a walk.

use crate::flow::{AddressFamily, Endpoint, FlowHasher, FlowKey};
use crate::headers::Headers;
use crate::ip_protocol as protocol;
use crate::tunnel;

/// The contents of a plain packet's headers: TCP, or UDP that is no tunnel, in IPv4 without options
/// and fragments, in Ethernet, its headers whole, of at least 50 bytes. A fast path of
/// [`dissect`](crate::dissect::dissect), and equal to it; 20 bytes where [`Headers`] take more than
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
        let word = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
        let double = |at: usize| {
            u32::from_be_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]])
        };
        let (total_len, fragment, number) = (usize::from(word(16)), word(20), fixed[23]);
        let (source_port, destination_port) = (word(34), word(36));
        // Which of the two it is cannot be predicted, so no branch depends on it.
        let (tcp, udp) = (number == protocol::TCP, number == protocol::UDP);
        let transport_len = if tcp { (fixed[46] >> 4) * 4 } else { 8 };
        let tcp_mask = if tcp { u16::MAX } else { 0 };
        let [tcp_flags, _] = (u16::from(fixed[47]) & tcp_mask).to_le_bytes();
        let tcp_window = word(48) & tcp_mask;
        let header_len = NETWORK_LEN + usize::from(transport_len);
        let known = (tcp | udp)
            & (fragment & 0x3fff == 0)
            & (transport_len >= if tcp { 20 } else { 8 })
            & !(udp & tunnel::has_udp_port(source_port, destination_port))
            & (total_len >= header_len - 14)
            // Whole, as the IP header says, or cut short after the headers.
            & ((total_len <= packet.len() - 14) | (header_len < packet.len()));
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
        NETWORK_LEN as u16 + u16::from(self.transport_len)
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

    /// The same as [`Headers`].
    #[inline]
    #[must_use]
    pub fn headers(&self) -> Headers {
        let end = |address: u32, port| Endpoint {
            address: u128::from(address),
            port,
        };
        let (key, low_to_high) = FlowKey::new(
            AddressFamily::Ipv4,
            self.protocol,
            end(self.source, self.source_port),
            end(self.destination, self.destination_port),
        );
        Headers {
            header_len: u32::from(self.header_len()),
            transport_len: u16::from(self.transport_len),
            key: Some(key),
            low_to_high,
            fragment: None,
            tos: self.tos,
            ttl: self.ttl,
            tcp_flags: self.tcp_flags,
            tcp_window: self.tcp_window,
            outer: None,
            networks: 1,
            incomplete: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tunnel::{UDP_DESTINATIONS, UDP_EITHER};
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
                [&[53, 443, UDP_EITHER], &UDP_DESTINATIONS[..]].concat(),
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
