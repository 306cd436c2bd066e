//! Where the fields of headers are, for code that looks at a header that may be cut or wrong: byte ranges, and lengths as
//! they are stated. The views of [`ethernet`](crate::formats::ethernet), [`ipv4`](crate::formats::ipv4), [`ipv6`](crate::formats::ipv6) and
//! [`transport`](crate::formats::transport) are for headers that are whole.

use core::ops::Range;

use crate::bytes::{be16, u8_at};

/// Ethernet II.
pub mod ethernet {
    use super::Range;

    /// Where it goes.
    pub const DESTINATION: Range<usize> = 0..6;
    /// Where it comes from.
    pub const SOURCE: Range<usize> = 6..12;
    /// What follows, or its length.
    pub const TYPE: Range<usize> = 12..14;
}

/// A VLAN tag, from behind the type that announces it (IEEE 802.1Q §9.6).
pub mod vlan {
    use super::Range;

    /// Bytes of it.
    pub const LEN: usize = 4;
    /// Priority, drop eligibility, and the number of the VLAN in 12 bits.
    pub const CONTROL: Range<usize> = 0..2;
    /// The type of what follows.
    pub const TYPE: Range<usize> = 2..4;
}

/// Linux cooked capture, version 1.
pub mod sll {
    use super::Range;

    /// Bytes of it.
    pub const LEN: usize = 16;
    /// The type of what follows.
    pub const TYPE: Range<usize> = 14..16;
}

/// Linux's cooked capture, version 2 (LINKTYPE_LINUX_SLL2).
pub mod sll2 {
    use super::Range;

    /// Bytes of it.
    pub const LEN: usize = 20;
    /// The type of what follows.
    pub const TYPE: Range<usize> = 0..2;
}

/// ARP of IPv4 over Ethernet (RFC 826).
pub mod arp {
    use super::Range;

    /// Bytes of it.
    pub const LEN: usize = 28;
    /// 1 is a request, 2 a reply.
    pub const OPERATION: Range<usize> = 6..8;
    /// Hardware address of the sender.
    pub const SENDER_MAC: Range<usize> = 8..14;
    /// Its IPv4 address.
    pub const SENDER_IP: Range<usize> = 14..18;
    /// Hardware address of the target.
    pub const TARGET_MAC: Range<usize> = 18..24;
    /// The IPv4 address of the target.
    pub const TARGET_IP: Range<usize> = 24..28;
}

/// IPv4 (RFC 791 §3.1).
pub mod ipv4 {
    use super::Range;

    /// Version, and the length of the header in words.
    pub const VERSION_LEN: Range<usize> = 0..1;
    /// DSCP and ECN.
    pub const TOS: Range<usize> = 1..2;
    /// Bytes of header and payload.
    pub const TOTAL_LEN: Range<usize> = 2..4;
    /// What the fragments of a packet share.
    pub const IDENTIFICATION: Range<usize> = 4..6;
    /// Three flags, and the offset of a fragment in 13 bits.
    pub const FLAGS_OFFSET: Range<usize> = 6..8;
    /// Time to live.
    pub const TTL: Range<usize> = 8..9;
    /// What follows.
    pub const PROTOCOL: Range<usize> = 9..10;
    /// Checksum.
    pub const CHECKSUM: Range<usize> = 10..12;
    /// Where it comes from.
    pub const SOURCE: Range<usize> = 12..16;
    /// Where it goes.
    pub const DESTINATION: Range<usize> = 16..20;
    /// Of [`FLAGS_OFFSET`].
    pub const DONT_FRAGMENT: u16 = 0x4000;
    /// Of [`FLAGS_OFFSET`].
    pub const MORE_FRAGMENTS: u16 = 0x2000;
    /// Of [`FLAGS_OFFSET`].
    pub const OFFSET_MASK: u16 = 0x1fff;

    /// Bytes of the header as its first byte states them: 0 to 60.
    #[must_use]
    pub fn header_len(first: u8) -> u8 {
        (first & 0x0f) << 2
    }
}

/// IPv6 (RFC 8200 §3).
pub mod ipv6 {
    use super::Range;

    /// Version, traffic class, the first bits of the flow label.
    pub const VERSION_CLASS: Range<usize> = 0..2;
    /// Bytes after the fixed header.
    pub const PAYLOAD_LEN: Range<usize> = 4..6;
    /// What follows.
    pub const NEXT_HEADER: Range<usize> = 6..7;
    /// Hop limit.
    pub const HOP_LIMIT: Range<usize> = 7..8;
    /// Where it comes from.
    pub const SOURCE: Range<usize> = 8..24;
    /// Where it goes.
    pub const DESTINATION: Range<usize> = 24..40;
}

/// TCP (RFC 9293 §3.1).
pub mod tcp {
    use super::Range;

    /// Source port.
    pub const SOURCE_PORT: Range<usize> = 0..2;
    /// Destination port.
    pub const DESTINATION_PORT: Range<usize> = 2..4;
    /// Sequence number.
    pub const SEQUENCE: Range<usize> = 4..8;
    /// Acknowledgment number.
    pub const ACKNOWLEDGMENT: Range<usize> = 8..12;
    /// The length of the header in words, in the upper four bits.
    pub const DATA_OFFSET: Range<usize> = 12..13;
    /// Flags, from CWR down to FIN.
    pub const FLAGS: Range<usize> = 13..14;
    /// Window, unscaled.
    pub const WINDOW: Range<usize> = 14..16;
    /// Checksum.
    pub const CHECKSUM: Range<usize> = 16..18;
    /// Urgent pointer.
    pub const URGENT_POINTER: Range<usize> = 18..20;

    /// Bytes of the header as its data offset states them: 0 to 60.
    #[must_use]
    pub fn header_len(data_offset: u8) -> u8 {
        data_offset >> 4 << 2
    }
}

/// UDP (RFC 768).
pub mod udp {
    use super::Range;

    /// Source port.
    pub const SOURCE_PORT: Range<usize> = 0..2;
    /// Destination port.
    pub const DESTINATION_PORT: Range<usize> = 2..4;
    /// Bytes of header and payload.
    pub const LEN: Range<usize> = 4..6;
    /// Checksum.
    pub const CHECKSUM: Range<usize> = 6..8;
}

/// ICMP (RFC 792) and ICMPv6 (RFC 4443 §2.1).
pub mod icmp {
    use super::Range;

    /// Bytes of the header that messages of most types have.
    pub const HEADER_LEN: usize = 8;
    /// The kind of message.
    pub const TYPE: Range<usize> = 0..1;
    /// What the type means in particular.
    pub const CODE: Range<usize> = 1..2;
    /// Checksum.
    pub const CHECKSUM: Range<usize> = 2..4;
}

/// Looks through up to `most` VLAN tags of these types, the first of which may be at `at`: the type behind them, and
/// where the header that it names begins. `None` if the bytes end before.
#[must_use]
pub fn behind_tags(bytes: &[u8], at: usize, tags: &[u16], most: usize) -> Option<(u16, usize)> {
    let mut at = at;
    for _ in 0..most {
        if !tags.contains(&be16(bytes, at)?) {
            break;
        }
        at = at.checked_add(vlan::LEN)?;
    }
    Some((be16(bytes, at)?, at.checked_add(2)?))
}

/// How long a packet with this type at `at` says that it is, from there on, if it is IP: its total length, or that of its
/// fixed header and payload. `None` for a length that stands for one that is too large, or is left to the card.
#[must_use]
pub fn stated_ip_len(bytes: &[u8], ethertype: u16, at: usize) -> Option<u32> {
    use crate::formats::ethernet::ethertype::{IPV4, IPV6};
    let length = |field: Range<usize>| be16(bytes, at.checked_add(field.start)?);
    match ethertype {
        IPV4 => length(ipv4::TOTAL_LEN)
            .filter(|&length| usize::from(length) >= crate::formats::ipv4::HEADER_LEN_MIN)
            .map(u32::from),
        IPV6 => length(ipv6::PAYLOAD_LEN)
            .filter(|&length| length > 0)
            .map(|length| u32::from(length).wrapping_add(40)),
        _ => None,
    }
}

/// The ends of a datagram or segment, of the outermost IP header, whose version its type and not its first nibble says;
/// as far as they are there, even if the rest of the header is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpEnds<'a> {
    /// Where it comes from.
    pub source: core::net::IpAddr,
    /// Where it goes.
    pub destination: core::net::IpAddr,
    /// What follows the header, or the fixed header of IPv6.
    pub protocol: u8,
    /// From behind the header on, as long as that states to be; `None` if the bytes end before.
    pub payload: Option<&'a [u8]>,
}

impl<'a> IpEnds<'a> {
    /// The ends that a header of this type states; `None` if it is neither IPv4 nor IPv6, or its fixed part is cut.
    #[must_use]
    pub fn of(ethertype: u16, bytes: &'a [u8]) -> Option<Self> {
        use core::net::{Ipv4Addr, Ipv6Addr};

        use crate::formats::ethernet::ethertype::{IPV4, IPV6};
        match ethertype {
            IPV4 => {
                let header = bytes.first_chunk::<{ crate::formats::ipv4::HEADER_LEN_MIN }>()?;
                let address = |field: Range<usize>| -> Option<core::net::IpAddr> {
                    let octets: [u8; 4] = header.get(field)?.try_into().ok()?;
                    Some(Ipv4Addr::from(octets).into())
                };
                Some(Self {
                    source: address(ipv4::SOURCE)?,
                    destination: address(ipv4::DESTINATION)?,
                    protocol: u8_at(header, ipv4::PROTOCOL.start)?,
                    payload: bytes.get(usize::from(ipv4::header_len(header[0]))..),
                })
            }
            IPV6 => {
                let header = bytes.first_chunk::<{ crate::formats::ipv6::HEADER_LEN }>()?;
                let address = |field: Range<usize>| -> Option<core::net::IpAddr> {
                    let octets: [u8; 16] = header.get(field)?.try_into().ok()?;
                    Some(Ipv6Addr::from(octets).into())
                };
                Some(Self {
                    source: address(ipv6::SOURCE)?,
                    destination: address(ipv6::DESTINATION)?,
                    protocol: u8_at(header, ipv6::NEXT_HEADER.start)?,
                    payload: bytes.get(crate::formats::ipv6::HEADER_LEN..),
                })
            }
            _ => None,
        }
    }

    /// Source and destination port, of TCP, UDP and others that have them first; `None` if they are cut.
    #[must_use]
    pub fn ports(&self) -> Option<(u16, u16)> {
        let payload = self.payload?;
        Some((
            be16(payload, udp::SOURCE_PORT.start)?,
            be16(payload, udp::DESTINATION_PORT.start)?,
        ))
    }
}

#[cfg(test)]
mod tests {
    use crate::formats::ethernet::ethertype;
    use crate::formats::transport::Tcp;
    use crate::{formats::ethernet as eth, formats::ipv4 as v4, formats::ipv6 as v6};

    use super::*;

    /// Bytes of which no two fields are alike.
    fn numbered(first: u8) -> Vec<u8> {
        (0..60).map(|n| first.wrapping_add(n * 3)).collect()
    }

    fn word(bytes: &[u8], field: Range<usize>) -> u128 {
        bytes[field]
            .iter()
            .fold(0, |value, &byte| value << 8 | u128::from(byte))
    }

    #[test]
    fn fields_are_where_the_views_have_them() {
        let bytes = numbered(7);
        let frame = eth::Frame::new_checked(&bytes).unwrap();
        let addresses = (
            word(&bytes, ethernet::DESTINATION),
            word(&bytes, ethernet::SOURCE),
        );
        assert_eq!(frame.addresses(), addresses);
        assert_eq!(
            u128::from(frame.type_or_length()),
            word(&bytes, ethernet::TYPE)
        );
        assert_eq!(ethernet::TYPE.end, eth::HEADER_LEN);

        let bytes = numbered(0x4a);
        let packet = v4::Packet::new_checked(&bytes).unwrap();
        assert_eq!(
            packet.header_len(),
            usize::from(ipv4::header_len(bytes[ipv4::VERSION_LEN.start]))
        );
        let flags = u16::try_from(word(&bytes, ipv4::FLAGS_OFFSET)).unwrap();
        assert_eq!(packet.more_fragments(), flags & ipv4::MORE_FRAGMENTS != 0);
        assert_eq!(packet.fragment_offset(), flags & ipv4::OFFSET_MASK);
        for (value, field) in [
            (packet.tos().into(), ipv4::TOS),
            (packet.total_len().into(), ipv4::TOTAL_LEN),
            (packet.identification().into(), ipv4::IDENTIFICATION),
            (packet.ttl().into(), ipv4::TTL),
            (packet.protocol().into(), ipv4::PROTOCOL),
            (packet.source().into(), ipv4::SOURCE),
            (packet.destination().into(), ipv4::DESTINATION),
        ] {
            assert_eq!(word(&bytes, field), value);
        }

        let bytes = numbered(0x60);
        let packet = v6::Packet::new_checked(&bytes).unwrap();
        for (value, field) in [
            (packet.payload_len().into(), ipv6::PAYLOAD_LEN),
            (packet.next_header().into(), ipv6::NEXT_HEADER),
            (packet.hop_limit().into(), ipv6::HOP_LIMIT),
            (packet.source(), ipv6::SOURCE),
            (packet.destination(), ipv6::DESTINATION),
        ] {
            assert_eq!(word(&bytes, field), value);
        }
        let class = word(&bytes, ipv6::VERSION_CLASS) >> 4 & 0xff;
        assert_eq!(u128::from(packet.traffic_class()), class);

        let tcp_view = Tcp::new_checked(&bytes).unwrap();
        assert_eq!(
            tcp_view.header_len(),
            usize::from(tcp::header_len(bytes[tcp::DATA_OFFSET.start]))
        );
        for (value, field) in [
            (tcp_view.source_port().into(), tcp::SOURCE_PORT),
            (tcp_view.destination_port().into(), tcp::DESTINATION_PORT),
            (tcp_view.sequence().into(), tcp::SEQUENCE),
            (tcp_view.flags().into(), tcp::FLAGS),
            (tcp_view.window().into(), tcp::WINDOW),
        ] {
            assert_eq!(word(&bytes, field), value);
        }
    }

    #[test]
    fn tags_are_looked_through_as_far_as_they_may_be() {
        let frame = [
            [0x81, 0, 0, 7].as_slice(),
            &[0x88, 0xa8, 0, 8],
            &[0x08, 0, 0x45],
        ]
        .concat();
        let tags = [ethertype::VLAN, ethertype::SERVICE_VLAN];
        let behind = |most| behind_tags(&frame, 0, &tags, most);
        assert_eq!(behind(0), Some((ethertype::VLAN, 2)));
        assert_eq!(behind(1), Some((ethertype::SERVICE_VLAN, 6)));
        assert_eq!(behind(2), Some((ethertype::IPV4, 10)));
        assert_eq!(behind(9), Some((ethertype::IPV4, 10)));
        assert_eq!(
            behind_tags(&frame, 0, &tags[..1], 9),
            Some((ethertype::SERVICE_VLAN, 6))
        );
        for cut in 0..10 {
            assert_eq!(behind_tags(&frame[..cut], 0, &tags, 9), None, "{cut}");
        }
        assert_eq!(behind_tags(&frame, usize::MAX, &tags, 9), None);
    }

    #[test]
    fn lengths_and_ends_are_those_that_a_header_states() {
        let mut packet = Vec::new();
        let repr = v4::Repr {
            source: 0x0a00_0001,
            destination: 0x0a00_0002,
            protocol: 17,
            tos: 0,
            ttl: 64,
            identification: 0,
            fragment_offset: 0,
            more_fragments: false,
            payload_len: 4,
        };
        repr.emit(&mut packet);
        packet.extend([1, 2, 3, 4]);
        let len = |bytes: &[u8], kind| stated_ip_len(bytes, kind, 0);
        assert_eq!(len(&packet, ethertype::IPV4), Some(24));
        assert_eq!(len(&packet, ethertype::ARP), None);
        assert_eq!(len(&packet[..3], ethertype::IPV4), None);
        let ends = IpEnds::of(ethertype::IPV4, &packet).unwrap();
        assert_eq!(ends.source.to_string(), "10.0.0.1");
        assert_eq!(ends.destination.to_string(), "10.0.0.2");
        assert_eq!((ends.protocol, ends.ports()), (17, Some((0x0102, 0x0304))));
        assert_eq!(IpEnds::of(ethertype::IPV4, &packet[..19]), None);
        assert_eq!(IpEnds::of(ethertype::ARP, &packet), None);
        // The type says what it is, and the length is taken as it is.
        packet[0] = 0xf3;
        let ends = IpEnds::of(ethertype::IPV4, &packet).unwrap();
        assert_eq!(ends.ports(), Some((0x0a00, 0x0001)));
        packet[0] = 0xff;
        let ends = IpEnds::of(ethertype::IPV4, &packet).unwrap();
        assert_eq!((ends.payload, ends.ports()), (None, None));
        packet[2..4].copy_from_slice(&[0, 19]);
        assert_eq!(len(&packet, ethertype::IPV4), None);

        let mut packet = Vec::new();
        let repr = v6::Repr {
            source: 1,
            destination: 2,
            traffic_class: 0,
            flow_label: 0,
            next_header: 6,
            hop_limit: 64,
            payload_len: 4,
        };
        repr.emit(&mut packet);
        assert_eq!(len(&packet, ethertype::IPV6), Some(44));
        let ends = IpEnds::of(ethertype::IPV6, &packet).unwrap();
        assert_eq!(ends.source.to_string(), "::1");
        assert_eq!((ends.protocol, ends.ports()), (6, None));
        assert_eq!(IpEnds::of(ethertype::IPV6, &packet[..39]), None);
        packet[5] = 0;
        assert_eq!(len(&packet, ethertype::IPV6), None);
    }
}
