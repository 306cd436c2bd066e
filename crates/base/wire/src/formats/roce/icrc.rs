//! The invariant CRC of RoCEv2 (IBTA annex A17 and §7.8.1): CRC-32 as in Ethernet, over what no
//! router changes. Fields that may change in flight count as ones:
//!
//! ```text
//! 8 bytes of ones | IP header | UDP header | BTH | extensions | payload | pad
//!                   IPv4: TOS, TTL, checksum   BTH byte 4 (congestion bits)
//!                   IPv6: traffic class, flow label, hop limit
//!                               UDP checksum
//! ```
//!
//! The four bytes are sent least significant byte first. The IPv4 identification and the flags
//! count as they are: if the kernel numbers the packets, the number must be predicted.

use std::net::{Ipv4Addr, Ipv6Addr};

use crc32fast::Hasher;

#[cfg(doc)]
use super::PACKET_LEN_MAX;
use super::{BTH_LEN, ICRC_LEN, Packet};
use crate::{exact, formats::ipv4, formats::transport::UDP_HEADER_LEN};

/// Bytes of ones in place of InfiniBand's local route header.
const ONES: [u8; 8] = [0xff; 8];
const IPV6_HEADER_LEN: usize = 40;
const UDP: u8 = 17;
/// The byte of a BTH with the congestion bits, which counts as ones.
const CONGESTION_AT: usize = 4;
/// The most that can precede the BTH.
const PREFIX_LEN_MAX: usize = ONES.len() + IPV6_HEADER_LEN + UDP_HEADER_LEN;

/// The addresses of a packet, and for IPv4 what else is covered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ip {
    /// IPv4 without options.
    V4 {
        /// Source address.
        source: Ipv4Addr,
        /// Destination address.
        destination: Ipv4Addr,
        /// Identification.
        identification: u16,
        /// Whether it must not be fragmented.
        dont_fragment: bool,
    },
    /// IPv6 without extension headers.
    V6 {
        /// Source address.
        source: Ipv6Addr,
        /// Destination address.
        destination: Ipv6Addr,
    },
}

/// What precedes the BTH and is covered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Outer {
    /// IP header.
    pub ip: Ip,
    /// UDP source port.
    pub source_port: u16,
    /// UDP destination port.
    pub destination_port: u16,
}

impl Outer {
    /// The same with another IPv4 identification; IPv6 has none.
    #[inline]
    #[must_use]
    pub fn with_identification(mut self, number: u16) -> Self {
        if let Ip::V4 { identification, .. } = &mut self.ip {
            *identification = number;
        }
        self
    }

    /// Bytes covered before the BTH, for a UDP payload of this many bytes.
    #[inline]
    #[allow(
        clippy::arithmetic_side_effects,
        reason = "places in an array; a datagram that is too long is refused by `exact`"
    )]
    fn prefix(&self, udp_payload_len: usize) -> ([u8; PREFIX_LEN_MAX], usize) {
        let udp_len = exact::<u16>(udp_payload_len + UDP_HEADER_LEN);
        let mut out = [0xff; PREFIX_LEN_MAX];
        let ip_start = ONES.len();
        let udp_start = match self.ip {
            Ip::V4 {
                source,
                destination,
                identification,
                dont_fragment,
            } => {
                let total_len = udp_payload_len + UDP_HEADER_LEN + ipv4::HEADER_LEN_MIN;
                let total_len = exact::<u16>(total_len).to_be_bytes();
                let header = &mut out[ip_start..ip_start + ipv4::HEADER_LEN_MIN];
                header[0] = 0x45;
                header[2..4].copy_from_slice(&total_len);
                header[4..6].copy_from_slice(&identification.to_be_bytes());
                header[6] = u8::from(dont_fragment) << 6;
                header[7] = 0;
                header[9] = UDP;
                header[12..16].copy_from_slice(&source.octets());
                header[16..20].copy_from_slice(&destination.octets());
                ip_start + ipv4::HEADER_LEN_MIN
            }
            Ip::V6 {
                source,
                destination,
            } => {
                let header = &mut out[ip_start..ip_start + IPV6_HEADER_LEN];
                header[0] = 0x6f;
                header[4..6].copy_from_slice(&udp_len.to_be_bytes());
                header[6] = UDP;
                header[8..24].copy_from_slice(&source.octets());
                header[24..40].copy_from_slice(&destination.octets());
                ip_start + IPV6_HEADER_LEN
            }
        };
        out[udp_start..udp_start + 2].copy_from_slice(&self.source_port.to_be_bytes());
        out[udp_start + 2..udp_start + 4].copy_from_slice(&self.destination_port.to_be_bytes());
        out[udp_start + 4..udp_start + 6].copy_from_slice(&udp_len.to_be_bytes());
        (out, udp_start + UDP_HEADER_LEN)
    }

    /// The ICRC of a packet whose bytes from the BTH to the pad are `covered`.
    ///
    /// # Panics
    ///
    /// If `covered` is shorter than a BTH, or the packet longer than [`PACKET_LEN_MAX`].
    #[inline]
    #[must_use]
    pub fn icrc(&self, covered: &[u8]) -> u32 {
        let (prefix, len) = self.prefix(covered.len().saturating_add(ICRC_LEN));
        over(&prefix[..len], covered)
    }
}

#[inline]
#[allow(
    clippy::arithmetic_side_effects,
    reason = "places in an array that holds any prefix and a BTH"
)]
fn over(prefix: &[u8], covered: &[u8]) -> u32 {
    let (bth, rest) = covered.split_at(BTH_LEN);
    let mut head = [0xff; PREFIX_LEN_MAX + BTH_LEN];
    let len = prefix.len() + BTH_LEN;
    head[..prefix.len()].copy_from_slice(prefix);
    head[prefix.len()..len].copy_from_slice(bth);
    head[prefix.len() + CONGESTION_AT] = 0xff;
    let mut hasher = Hasher::new();
    hasher.update(&head[..len]);
    hasher.update(rest);
    hasher.finalize()
}

/// Writes the ICRC into the last four bytes of `packet`, which starts with its BTH.
///
/// # Panics
///
/// If `packet` is shorter than a BTH and an ICRC, or longer than [`PACKET_LEN_MAX`].
#[inline]
pub fn put(outer: &Outer, packet: &mut [u8]) {
    let (covered, icrc) = packet
        .split_last_chunk_mut::<ICRC_LEN>()
        .expect("a packet has an ICRC");
    icrc.copy_from_slice(&outer.icrc(covered).to_le_bytes());
}

/// ICRCs of many packets between the same two ends, at the cost of one CRC over what starts with
/// the BTH.
///
/// A CRC is linear: what precedes the BTH, and the byte of it that counts as ones, change it by a
/// constant that depends only on the packet's length and its identification. Constants are cached,
/// in 12 KiB.
#[derive(Clone, Debug)]
pub struct Stream {
    outer: Outer,
    constants: Box<[Constant; CONSTANTS]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Constant {
    /// 0 in an empty slot: no packet is so short.
    covered_len: u32,
    identification: u16,
    value: u32,
}

/// Runs of 64 packets in a dozen lengths.
const CONSTANTS: usize = 1024;

impl Stream {
    /// For packets with this before their BTH, except for the identification.
    #[must_use]
    pub fn new(outer: Outer) -> Self {
        Self {
            outer,
            constants: Box::new([Constant::default(); CONSTANTS]),
        }
    }

    /// What precedes the BTH.
    #[must_use]
    pub fn outer(&self) -> &Outer {
        &self.outer
    }

    /// From now on the packets come from another port.
    #[inline]
    pub fn set_source_port(&mut self, port: u16) {
        if self.outer.source_port != port {
            self.outer.source_port = port;
            self.constants.fill(Constant::default());
        }
    }

    /// As [`put`], for a packet with this identification.
    ///
    /// # Panics
    ///
    /// If `packet` is shorter than a BTH and an ICRC, or longer than [`PACKET_LEN_MAX`].
    #[inline]
    pub fn put(&mut self, identification: u16, packet: &mut [u8]) {
        let (covered, icrc) = packet
            .split_last_chunk_mut::<ICRC_LEN>()
            .expect("a packet has an ICRC");
        let value = Candidates::of(covered).with(self, identification);
        icrc.copy_from_slice(&value.to_le_bytes());
    }

    /// The first of these identifications with which the ICRC of `packet` is right.
    #[inline]
    pub fn find(&mut self, packet: &Packet<'_>, identifications: &[u16]) -> Option<u16> {
        let (covered, carried) = (packet.covered(), packet.icrc());
        let of = Candidates::of(covered);
        let mut candidates = identifications.iter().copied();
        candidates.find(|&number| of.with(self, number) == carried)
    }

    #[inline]
    fn constant(&mut self, identification: u16, covered: &[u8]) -> u32 {
        let len = u32::try_from(covered.len()).expect("a packet is shorter than 4 GiB");
        // Lengths are multiples of 4; identifications count from 0.
        let slot = (covered.len() >> 2).wrapping_mul(61);
        let slot = slot.wrapping_add(usize::from(identification)) % CONSTANTS;
        let known = self.constants[slot];
        if (known.covered_len, known.identification) == (len, identification) {
            return known.value;
        }
        let numbered = self.outer.with_identification(identification);
        let value = numbered.icrc(covered) ^ crc32fast::hash(covered);
        self.constants[slot] = Constant {
            covered_len: len,
            identification,
            value,
        };
        value
    }
}

/// The ICRCs of one packet under different identifications.
struct Candidates<'a> {
    covered: &'a [u8],
    /// The CRC over `covered` alone; `None` if its congestion bits are set, which count as ones and
    /// are zeros in that of [`Stream::constant`].
    alone: Option<u32>,
}

impl<'a> Candidates<'a> {
    #[inline]
    fn of(covered: &'a [u8]) -> Self {
        let alone = (covered[CONGESTION_AT] == 0).then(|| crc32fast::hash(covered));
        Self { covered, alone }
    }

    #[inline]
    fn with(&self, stream: &mut Stream, identification: u16) -> u32 {
        match self.alone {
            Some(alone) => alone ^ stream.constant(identification, self.covered),
            None => stream
                .outer
                .with_identification(identification)
                .icrc(self.covered),
        }
    }
}

/// The ICRC of a whole IP packet, over all its header bytes, including options: what it carries,
/// and what it should carry. `None` if it is not UDP, too short, or a fragment.
#[must_use]
pub fn of_ip_packet(packet: &[u8]) -> Option<(u32, u32)> {
    let mut prefix = ONES.to_vec();
    let (header_len, total_len) = match ipv4::version(packet)? {
        4 => {
            let header = ipv4::Packet::new_checked(packet)?;
            if header.protocol() != UDP || header.more_fragments() || header.fragment_offset() > 0 {
                return None;
            }
            prefix.extend_from_slice(&packet[..header.header_len()]);
            for masked in [1, 8, 10, 11] {
                prefix[ONES.len().wrapping_add(masked)] = 0xff;
            }
            (header.header_len(), usize::from(header.total_len()))
        }
        6 => {
            let header = packet.get(..IPV6_HEADER_LEN)?;
            if header[6] != UDP {
                return None;
            }
            prefix.extend_from_slice(header);
            prefix[ONES.len()] |= 0x0f;
            for masked in [1, 2, 3, 7] {
                prefix[ONES.len().wrapping_add(masked)] = 0xff;
            }
            let payload_len = u16::from_be_bytes([header[4], header[5]]);
            let total_len = IPV6_HEADER_LEN.wrapping_add(usize::from(payload_len));
            (IPV6_HEADER_LEN, total_len)
        }
        _ => return None,
    };
    let udp = packet.get(header_len..total_len)?;
    let (udp, body) = udp.split_at_checked(UDP_HEADER_LEN)?;
    prefix.extend_from_slice(&udp[..6]);
    prefix.extend_from_slice(&[0xff; 2]);
    if body.len() < BTH_LEN + ICRC_LEN {
        return None;
    }
    let (covered, carried) = body.split_last_chunk::<ICRC_LEN>()?;
    Some((u32::from_le_bytes(*carried), over(&prefix, covered)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roce::{Aeth, AtomicEth, NakCode, Opcode, Operation, Repr, Reth, Service, Syndrome};
    use proptest::prelude::*;

    /// IP packets exchanged with rdma_rxe of Linux 6.1: those to it were accepted,
    /// those from it are its own.
    const ACCEPTED_WRITE: &str = "45000044000040004011260d0a4d00010a4d0002c00012b7003000000a40ffff0000001180001000000055aa26949040000002ed00000008524f4345763221218a7d1b02";
    const ACCEPTED_FETCH_ADD: &str = "4500004800004000401126090a4d00010a4d0002c00012b7003400001440ffff0000001180001001000055aa26949100000002ed000000000000000500000000000000008a6c9c97";
    const ACCEPTED_UC_WRITE: &str = "45000044000040004011260d0a4d00010a4d0002c00012b7003000002a40ffff0000001200001000000055e404e9e00000000377000000087563777269746530b3fc780e";
    const SENT_ACK: &str = "4500003003c14000401122600a4d00020a4d0001d22112b7001c00001100ffff00000111000010001f000001bfacf1bd";
    const SENT_ATOMIC_ACK: &str = "4500003804564000401121c30a4d00020a4d0001d22112b7002400001200ffff00000111000010011f0000020000000000000000f0f9e967";
    const SENT_NAK: &str = "45000030045a4000401121c70a4d00020a4d0001d22112b7001c00001100ffff000001110000100362000003c2a605c8";

    /// IPv6 packets made by scapy 2.8 (`scapy.contrib.roce`): an RC write, a UC write with
    /// immediate data, an acknowledgement.
    const SCAPY_IPV6: [&str; 3] = [
        "602123450038114020010db800000000000000000000000120010db8000000000000000000020003c00012b70038aabd0a00ffff000000118012345600007f00123456780000a1b200000010000102030405060708090a0b0c0d0e0f1b2c8b3b",
        "602123450030114020010db800000000000000000000000120010db800000000000000000002000312b712b70030096d2a10ffff00abcdef0000000700007f00123456780000a1b2000000077374726174612100c0c9b721",
        "60212345001c114020010db800000000000000000000000120010db8000000000000000000020003c00012b7001c56271100ffff00000012001234561f000005c40c52d3",
    ];

    fn bytes(hex: &str) -> Vec<u8> {
        let digit = |c: u8| u8::try_from((c as char).to_digit(16).unwrap()).unwrap();
        let pairs = hex.as_bytes().chunks(2);
        pairs.map(|p| digit(p[0]) << 4 | digit(p[1])).collect()
    }

    fn parse(packet: &[u8]) -> (Outer, Repr, Vec<u8>) {
        let be = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
        let address = |at: usize| Ipv4Addr::from_octets(packet[at..at + 4].try_into().unwrap());
        let outer = Outer {
            ip: Ip::V4 {
                source: address(12),
                destination: address(16),
                identification: be(4),
                dont_fragment: packet[6] & 0x40 != 0,
            },
            source_port: be(20),
            destination_port: be(22),
        };
        let view = Packet::new_checked(&packet[28..]).unwrap();
        assert_eq!(view.icrc(), outer.icrc(view.covered()));
        (outer, Repr::parse(&view).unwrap(), view.payload().to_vec())
    }

    #[test]
    fn icrcs_of_a_real_implementation_are_ours() {
        for hex in [
            ACCEPTED_WRITE,
            ACCEPTED_FETCH_ADD,
            ACCEPTED_UC_WRITE,
            SENT_ACK,
            SENT_ATOMIC_ACK,
            SENT_NAK,
        ] {
            let packet = bytes(hex);
            let (carried, expected) = of_ip_packet(&packet).unwrap();
            assert_eq!(carried, expected);
            let (outer, repr, payload) = parse(&packet);
            let migrated = packet[29] & 0x40;
            let mut ours = Vec::new();
            repr.emit(&[&payload], &mut ours);
            // Requests set the bit, the replies of rdma_rxe do not.
            ours[1] = ours[1] & !0x40 | migrated;
            put(&outer, &mut ours);
            assert_eq!(ours, packet[28..]);
        }
    }

    #[test]
    fn icrcs_over_ipv6_are_those_of_another_implementation() {
        for hex in SCAPY_IPV6 {
            let packet = bytes(hex);
            let (carried, expected) = of_ip_packet(&packet).unwrap();
            assert_eq!(carried, expected);
            let be = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
            let address =
                |at: usize| Ipv6Addr::from_octets(packet[at..at + 16].try_into().unwrap());
            let outer = Outer {
                ip: Ip::V6 {
                    source: address(8),
                    destination: address(24),
                },
                source_port: be(40),
                destination_port: be(42),
            };
            let view = Packet::new_checked(&packet[48..]).unwrap();
            assert_eq!(outer.icrc(view.covered()), carried);
        }
    }

    #[test]
    fn fields_of_real_packets_are_read() {
        let (_, write, payload) = parse(&bytes(ACCEPTED_WRITE));
        assert_eq!(payload, b"ROCEv2!!");
        assert!(write.ack_request);
        let reth = Reth {
            va: 0x55aa_2694_9040,
            rkey: 0x2ed,
            dma_len: 8,
        };
        assert_eq!(write.extensions.reth, Some(reth));
        assert_eq!((write.dest_qp, write.psn), (0x11, 0x1000));
        let (_, add, _) = parse(&bytes(ACCEPTED_FETCH_ADD));
        let atomic = AtomicEth {
            va: 0x55aa_2694_9100,
            rkey: 0x2ed,
            swap_or_add: 5,
            compare: 0,
        };
        assert_eq!(add.extensions.atomic_eth, Some(atomic));
        let (_, nak, _) = parse(&bytes(SENT_NAK));
        let aeth = Aeth {
            syndrome: Syndrome::Nak(NakCode::RemoteAccess),
            msn: 3,
        };
        assert_eq!(nak.extensions.aeth, Some(aeth));
        let (_, uc, _) = parse(&bytes(ACCEPTED_UC_WRITE));
        let opcode = Opcode {
            service: Service::Uc,
            operation: Operation::WriteOnly,
        };
        assert_eq!(uc.opcode, opcode);
    }

    #[test]
    fn what_routers_change_does_not_count_and_all_else_does() {
        let packet = bytes(ACCEPTED_WRITE);
        let changes = [1, 8, 10, 11, 26, 27, 32];
        for byte in 0..packet.len() {
            // With another version it is not IPv4, with other lengths another packet.
            if [0, 2, 3, 6, 7, 9].contains(&byte) {
                continue;
            }
            let mut changed = packet.clone();
            changed[byte] ^= 0x10;
            let (carried, expected) = of_ip_packet(&changed).unwrap();
            assert_eq!(carried == expected, changes.contains(&byte), "byte {byte}");
        }
    }

    /// The rule as written: the whole packet, field by field, ones in place of what routers change,
    /// and CRC-32 bit by bit. It shares nothing with the code above.
    fn by_the_rule(ip_packet: &[u8]) -> u32 {
        let mut bytes = vec![0xff; 8];
        bytes.extend_from_slice(&ip_packet[..ip_packet.len() - 4]);
        let (ip, udp) = if ip_packet[0] >> 4 == 4 {
            (8, 28)
        } else {
            (8, 48)
        };
        let mut ones = |at: usize, mask: u8| bytes[at] |= mask;
        if udp == 28 {
            for at in [1, 8, 10, 11] {
                ones(ip + at, 0xff);
            }
        } else {
            // Traffic class: bits 4 to 11; flow label: bits 12 to 31; hop limit.
            ones(ip, 0x0f);
            for at in [1, 2, 3, 7] {
                ones(ip + at, 0xff);
            }
        }
        for at in [6, 7, 8 + 4] {
            ones(udp + at, 0xff);
        }
        let mut crc = u32::MAX;
        for byte in bytes {
            for bit in 0..8 {
                let carry = (crc ^ u32::from(byte >> bit)) & 1 == 1;
                crc = crc >> 1 ^ if carry { 0xedb8_8320 } else { 0 };
            }
        }
        !crc
    }

    /// The IP packet around a body that starts with its BTH.
    fn ip_packet(outer: &Outer, body: &[u8], class: u8, label: u32, hops: u8) -> Vec<u8> {
        let udp_len = u16::try_from(body.len() + 8).unwrap();
        let mut packet = Vec::new();
        match outer.ip {
            Ip::V4 {
                source,
                destination,
                identification,
                dont_fragment,
            } => {
                packet.extend_from_slice(&[0x45, class]);
                packet.extend_from_slice(&(udp_len + 20).to_be_bytes());
                packet.extend_from_slice(&identification.to_be_bytes());
                packet.extend_from_slice(&[u8::from(dont_fragment) << 6, 0, hops, UDP, 7, 7]);
                packet.extend_from_slice(&source.octets());
                packet.extend_from_slice(&destination.octets());
            }
            Ip::V6 {
                source,
                destination,
            } => {
                let first = 6_u32 << 28 | u32::from(class) << 20 | label & 0xf_ffff;
                packet.extend_from_slice(&first.to_be_bytes());
                packet.extend_from_slice(&udp_len.to_be_bytes());
                packet.extend_from_slice(&[UDP, hops]);
                packet.extend_from_slice(&source.octets());
                packet.extend_from_slice(&destination.octets());
            }
        }
        packet.extend_from_slice(&outer.source_port.to_be_bytes());
        packet.extend_from_slice(&outer.destination_port.to_be_bytes());
        packet.extend_from_slice(&udp_len.to_be_bytes());
        packet.extend_from_slice(&[0xab, 0xcd]);
        packet.extend_from_slice(body);
        packet
    }

    fn any_outer() -> impl Strategy<Value = Outer> {
        let v4 = any::<(u32, u32, u16, bool)>().prop_map(|(a, b, identification, df)| Ip::V4 {
            source: a.into(),
            destination: b.into(),
            identification,
            dont_fragment: df,
        });
        let v6 = any::<(u128, u128)>().prop_map(|(a, b)| Ip::V6 {
            source: a.into(),
            destination: b.into(),
        });
        (prop_oneof![v4, v6], any::<(u16, u16)>()).prop_map(|(ip, ports)| Outer {
            ip,
            source_port: ports.0,
            destination_port: ports.1,
        })
    }

    proptest! {
        #[test]
        fn the_icrc_is_that_of_the_rule(
            outer in any_outer(),
            bodies in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 16..200), 1..6),
            way in any::<(u8, u32, u8)>(),
            congested in any::<bool>(),
        ) {
            let mut stream = Stream::new(outer);
            for mut body in bodies {
                if !congested {
                    body[CONGESTION_AT] = 0;
                }
                // A write, so that it can be read as a packet.
                (body[0], body[1]) = (0x07, 0);
                let number = match outer.ip {
                    Ip::V4 { identification, .. } => identification,
                    Ip::V6 { .. } => 0,
                };
                for _ in 0..2 {
                    stream.put(number, &mut body);
                    let ip_packet = ip_packet(&outer, &body, way.0, way.1, way.2);
                    let (carried, expected) = of_ip_packet(&ip_packet).unwrap();
                    prop_assert_eq!(carried, by_the_rule(&ip_packet));
                    prop_assert_eq!(carried, expected);
                    let view = Packet::new_checked(&body).unwrap();
                    let others = [number.wrapping_add(1), number];
                    prop_assert!(stream.find(&view, &others).is_some());
                }
            }
        }
    }
}
