//! The invariant CRC of RoCEv2 (IBTA annex A17 and §7.8.1): CRC-32 as Ethernet's
//! over what no router changes. Fields that may change on the way count as ones:
//!
//! ```text
//! 8 bytes of ones | IP header | UDP header | BTH | extensions | payload | pad
//!                   IPv4: TOS, TTL, checksum   BTH byte 4 (congestion bits)
//!                   IPv6: traffic class, flow label, hop limit
//!                               UDP checksum
//! ```
//!
//! The four bytes are sent least significant byte first. The IPv4 identification
//! and the flags count as they are: whoever lets the kernel number its packets
//! must foresee the number.

use std::net::{Ipv4Addr, Ipv6Addr};

use crc32fast::Hasher;

use super::{BTH_LEN, ICRC_LEN};
use crate::{ipv4, transport::UDP_HEADER_LEN};

/// Bytes of ones in place of InfiniBand's local route header.
const ONES: [u8; 8] = [0xff; 8];
const IPV6_HEADER_LEN: usize = 40;
const UDP: u8 = 17;
/// The longest of what stands before the BTH.
const PREFIX_LEN_MAX: usize = ONES.len() + IPV6_HEADER_LEN + UDP_HEADER_LEN;

/// The addresses of a packet, and of IPv4 what else counts.
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

/// What stands before the BTH and counts.
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

    /// Bytes that count before the BTH, for a UDP payload of so many bytes.
    #[inline]
    fn prefix(&self, udp_payload_len: usize) -> ([u8; PREFIX_LEN_MAX], usize) {
        let udp_len = u16::try_from(udp_payload_len + UDP_HEADER_LEN).unwrap_or(u16::MAX);
        let mut out = [0xff; PREFIX_LEN_MAX];
        let ip_start = ONES.len();
        let udp_start = match self.ip {
            Ip::V4 {
                source,
                destination,
                identification,
                dont_fragment,
            } => {
                let total_len = udp_len.saturating_add(20).to_be_bytes();
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
    /// If `covered` is shorter than a BTH.
    #[inline]
    #[must_use]
    pub fn icrc(&self, covered: &[u8]) -> u32 {
        let (prefix, len) = self.prefix(covered.len() + ICRC_LEN);
        over(&prefix[..len], covered)
    }
}

#[inline]
fn over(prefix: &[u8], covered: &[u8]) -> u32 {
    let (bth, rest) = covered.split_at(BTH_LEN);
    let mut head = [0xff; PREFIX_LEN_MAX + BTH_LEN];
    let len = prefix.len() + BTH_LEN;
    head[..prefix.len()].copy_from_slice(prefix);
    head[prefix.len()..len].copy_from_slice(bth);
    head[prefix.len() + 4] = 0xff;
    let mut hasher = Hasher::new();
    hasher.update(&head[..len]);
    hasher.update(rest);
    hasher.finalize()
}

/// Writes the ICRC into the last four bytes of `packet`, which begins with its BTH.
///
/// # Panics
///
/// If `packet` is shorter than a BTH and an ICRC.
#[inline]
pub fn put(outer: &Outer, packet: &mut [u8]) {
    let (covered, icrc) = packet.split_at_mut(packet.len() - ICRC_LEN);
    icrc.copy_from_slice(&outer.icrc(covered).to_le_bytes());
}

/// The ICRC of a whole IP packet, over the header bytes that are there, options
/// and all: what it carries, and what it should carry. `None` if it is not UDP or
/// too short, or is a fragment.
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
                prefix[ONES.len() + masked] = 0xff;
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
                prefix[ONES.len() + masked] = 0xff;
            }
            let payload_len = u16::from_be_bytes([header[4], header[5]]);
            (IPV6_HEADER_LEN, IPV6_HEADER_LEN + usize::from(payload_len))
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
    let (covered, carried) = body.split_at(body.len() - ICRC_LEN);
    let carried = u32::from_le_bytes(carried.try_into().ok()?);
    Some((carried, over(&prefix, covered)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roce::{
        Aeth, AtomicEth, Extensions, NakCode, Opcode, Operation, Packet, Repr, Reth, Service,
        Syndrome,
    };

    /// IP packets exchanged with rdma_rxe of Linux 6.1: those to it were accepted,
    /// those from it are its own.
    const ACCEPTED_WRITE: &str = "45000044000040004011260d0a4d00010a4d0002c00012b7003000000a40ffff0000001180001000000055aa26949040000002ed00000008524f4345763221218a7d1b02";
    const ACCEPTED_FETCH_ADD: &str = "4500004800004000401126090a4d00010a4d0002c00012b7003400001440ffff0000001180001001000055aa26949100000002ed000000000000000500000000000000008a6c9c97";
    const ACCEPTED_UC_WRITE: &str = "45000044000040004011260d0a4d00010a4d0002c00012b7003000002a40ffff0000001200001000000055e404e9e00000000377000000087563777269746530b3fc780e";
    const SENT_ACK: &str = "4500003003c14000401122600a4d00020a4d0001d22112b7001c00001100ffff00000111000010001f000001bfacf1bd";
    const SENT_ATOMIC_ACK: &str = "4500003804564000401121c30a4d00020a4d0001d22112b7002400001200ffff00000111000010011f0000020000000000000000f0f9e967";
    const SENT_NAK: &str = "45000030045a4000401121c70a4d00020a4d0001d22112b7001c00001100ffff000001110000100362000003c2a605c8";

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
            // Requests set the bit, the answers of rdma_rxe do not.
            ours[1] = ours[1] & !0x40 | migrated;
            put(&outer, &mut ours);
            assert_eq!(ours, packet[28..]);
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
            // The version would make it no IPv4, the lengths another packet.
            if [0, 2, 3, 6, 7, 9].contains(&byte) {
                continue;
            }
            let mut changed = packet.clone();
            changed[byte] ^= 0x10;
            let (carried, expected) = of_ip_packet(&changed).unwrap();
            assert_eq!(carried == expected, changes.contains(&byte), "byte {byte}");
        }
    }

    #[test]
    fn ipv6_counts_the_same_by_header_and_by_fields() {
        let source: Ipv6Addr = "fd00::1".parse().unwrap();
        let destination: Ipv6Addr = "fd00::2".parse().unwrap();
        let outer = Outer {
            ip: Ip::V6 {
                source,
                destination,
            },
            source_port: 50_000,
            destination_port: crate::roce::UDP_PORT,
        };
        let repr = Repr {
            opcode: Opcode {
                service: Service::Rc,
                operation: Operation::WriteOnly,
            },
            dest_qp: 0x123,
            psn: 9,
            ack_request: false,
            payload_len: 5,
            extensions: Extensions::default(),
        };
        let mut body = Vec::new();
        repr.emit(&[b"12345"], &mut body);
        put(&outer, &mut body);
        for (class, flow, hops) in [(0, 0, 64), (0x0a, 0x5_4321, 1)] {
            let mut packet = (6_u32 << 28 | class << 20 | flow).to_be_bytes().to_vec();
            let udp_len = u16::try_from(body.len() + 8).unwrap();
            packet.extend_from_slice(&udp_len.to_be_bytes());
            packet.extend_from_slice(&[UDP, hops]);
            packet.extend_from_slice(&source.octets());
            packet.extend_from_slice(&destination.octets());
            packet.extend_from_slice(&outer.source_port.to_be_bytes());
            packet.extend_from_slice(&outer.destination_port.to_be_bytes());
            packet.extend_from_slice(&udp_len.to_be_bytes());
            packet.extend_from_slice(&[0xab, 0xcd]);
            packet.extend_from_slice(&body);
            let (carried, expected) = of_ip_packet(&packet).unwrap();
            assert_eq!(carried, expected);
        }
    }
}
