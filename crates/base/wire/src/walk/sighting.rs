//! What stays the same of a packet that is seen at two points of a network, such as two mirror ports.
//!
//! This defines a duplicate, for recordings and exports alike: two sightings are of the same packet if their
//! link types, lengths on the wire, headers and payloads are the same, without the fields that may differ
//! ([`Differing`]). Headers with a checksum of the payload stand for a payload that was cut; without one, a
//! cut packet is not told apart from others. A recording asks for a part of the payload of UDP, too
//! ([`Sighting::is_told_apart`]).

use core::hash::BuildHasher;
use core::ops::Range;

use crate::formats::ethernet::ethertype::{IPV4, IPV6, QINQ_OLD, SERVICE_VLAN, VLAN};
use crate::walk::dissect::dissect;
use crate::walk::fields::{behind_tags, ethernet, ipv4, ipv6};
use crate::{LinkType, TunnelKey};

/// IP protocol numbers (IANA).
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const SCTP: u8 = 132;

/// Tags that are looked through.
const TAGS: [u16; 4] = [VLAN, SERVICE_VLAN, QINQ_OLD[0], QINQ_OLD[1]];
const TAGS_MAX: usize = 8;

/// Bytes of payload that tell apart a cut packet of UDP, whose checksum has only 16 bits: packets of a
/// stream may have everything else in common.
const UDP_PAYLOAD_MIN: usize = 8;

/// What may differ between two sightings of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Differing {
    /// Ethernet addresses, which a router replaces.
    pub macs: bool,
    /// VLAN tags.
    pub tags: bool,
    /// TTL or hop limit, and with it the checksum of the IPv4 header.
    pub ttl: bool,
}

/// A packet as it was seen at one point.
#[derive(Clone, Copy, Debug)]
pub struct Sighting<'a> {
    /// The link type of its interface.
    pub link: LinkType,
    /// The bytes that are there, from the link layer on.
    pub data: &'a [u8],
    /// Its length on the wire, bytes.
    pub wire_len: u32,
    /// Where its headers end, bytes; more than there are if they were cut.
    pub header_len: usize,
}

impl Sighting<'_> {
    /// Whether not all of its bytes are there.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.data.len() < self.wire_len as usize
    }

    /// Whether its bytes tell it from other packets: all of them are there, or its headers hold a checksum
    /// of the others, with the first 8 bytes of payload if it is of UDP.
    #[must_use]
    pub fn is_told_apart(&self) -> bool {
        let payload_len = self.data.len().saturating_sub(self.header_len);
        !self.is_cut()
            || self
                .checked_protocol()
                .is_some_and(|protocol| protocol != UDP || payload_len >= UDP_PAYLOAD_MIN)
    }

    /// Whether the headers hold a checksum of the payload.
    #[must_use]
    pub fn has_checksum(&self) -> bool {
        self.checked_protocol().is_some()
    }

    /// The protocol whose header holds a checksum of the payload.
    fn checked_protocol(&self) -> Option<u8> {
        let headers = dissect(self.link, self.data, TunnelKey::Inner);
        let protocol = headers.key?.protocol;
        let end = self.header_len;
        let has_checksum = match protocol {
            _ if headers.transport_len == 0 => false,
            TCP | ICMP | ICMPV6 | SCTP => self.data.len() >= end,
            // The last two bytes of the header; 0 stands for none.
            UDP => end
                .checked_sub(2)
                .and_then(|start| self.data.get(start..end))
                .is_some_and(|checksum| checksum != [0, 0]),
            _ => false,
        };
        has_checksum.then_some(protocol)
    }
}

/// Gives all sightings of a packet the same identity.
#[derive(Debug)]
pub struct Identities<H> {
    differing: Differing,
    hashers: [H; 2],
    same: Vec<u8>,
}

/// What all sightings of a packet have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// A keyed hash: as good as unique, if its two hashers are.
    pub hash: [u64; 2],
    /// Bytes of the sighting without those that may differ.
    pub same_len: usize,
}

impl<H: BuildHasher> Identities<H> {
    /// Identities by hashes of two different keys, which the sender of the packets must not know.
    pub fn new(differing: Differing, hashers: [H; 2]) -> Self {
        Self {
            differing,
            hashers,
            same: Vec::new(),
        }
    }

    /// The identity by link type, length on the wire, and the bytes before `end` (all of them, if there are
    /// fewer), without those that may differ.
    pub fn of(&mut self, sighting: &Sighting<'_>, end: usize) -> Identity {
        let Sighting { link, data, .. } = *sighting;
        let end = end.min(data.len());
        let (before, tags) = same_bytes(link, data, end, self.differing, &mut self.same);
        let compared = end.saturating_sub(before).min(self.same.len());
        let wire_len = u64::from(sighting.wire_len).saturating_sub(tags as u64);
        let bytes = &self.same[..compared];
        let of = |hasher: &H| hasher.hash_one((link, wire_len, bytes));
        Identity {
            hash: self.hashers.each_ref().map(of),
            same_len: self.same.len(),
        }
    }
}

/// Writes the bytes of a packet without those that may differ to `same`, which is emptied first. Returns
/// the number of bytes that were left out before byte `ends_at`, and of tags, by which lengths differ.
/// Only Ethernet is looked into: of other link types, all bytes are the same.
pub fn same_bytes(
    link: LinkType,
    packet: &[u8],
    ends_at: usize,
    differing: Differing,
    same: &mut Vec<u8>,
) -> (usize, usize) {
    same.clear();
    let behind = behind_tags(packet, ethernet::TYPE.start, &TAGS, TAGS_MAX);
    let (Some((ethertype, network_at)), true) = (behind, link == LinkType::ETHERNET) else {
        same.extend_from_slice(packet);
        return (0, 0);
    };
    let tags = network_at.saturating_sub(ethernet::TYPE.end);
    let at = |field: Range<usize>| {
        network_at.saturating_add(field.start)..network_at.saturating_add(field.end)
    };
    let macs = ethernet::DESTINATION.start..ethernet::SOURCE.end;
    let of_tags = ethernet::TYPE.start..ethernet::TYPE.start.saturating_add(tags);
    let [ttl, checksum] = match ethertype {
        IPV4 => [at(ipv4::TTL), at(ipv4::CHECKSUM)],
        IPV6 => [at(ipv6::HOP_LIMIT), 0..0],
        _ => [0..0, 0..0],
    };
    let left_out = [
        (differing.macs, macs),
        (differing.tags, of_tags),
        (differing.ttl, ttl),
        (differing.ttl, checksum),
    ];
    let left_out = left_out.into_iter().filter(|(may_differ, _)| *may_differ);
    let (mut from, mut before_end) = (0, 0_usize);
    for hole in left_out
        .map(|(_, hole)| hole)
        .filter(|hole| !hole.is_empty())
    {
        let [start, end] = [hole.start, hole.end].map(|at| at.min(packet.len()));
        same.extend_from_slice(&packet[from..start]);
        let of_it = end.min(ends_at).saturating_sub(start.min(ends_at));
        before_end = before_end.saturating_add(of_it);
        from = end;
    }
    same.extend_from_slice(&packet[from..]);
    (before_end, if differing.tags { tags } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 packet in a frame with these tags.
    fn frame(macs: u8, tags: &[u16], ttl: u8) -> Vec<u8> {
        let mut frame = vec![macs; 12];
        for tag in tags {
            frame.extend_from_slice(&tag.to_be_bytes());
            frame.extend_from_slice(&[0, 7]);
        }
        frame.extend_from_slice(&IPV4.to_be_bytes());
        frame.extend_from_slice(&[0x45, 0, 0, 24, 1, 2, 0, 0, ttl, 17, ttl, 0x55]);
        frame.extend_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2, 9, 9, 9, 9]);
        frame
    }

    fn same(packet: &[u8], differing: Differing) -> (Vec<u8>, usize, usize) {
        let mut same = Vec::new();
        let (before, tags) = same_bytes(LinkType::ETHERNET, packet, 1_000, differing, &mut same);
        (same, before, tags)
    }

    #[test]
    fn only_what_may_differ_is_left_out() {
        let all = Differing {
            macs: true,
            tags: true,
            ttl: true,
        };
        let (plain, before, tags) = same(&frame(1, &[], 64), all);
        assert_eq!((plain.len(), before, tags), (38 - 15, 15, 0));
        let routed = same(&frame(2, &[VLAN, SERVICE_VLAN], 63), all);
        assert_eq!(routed, (plain, 15 + 8, 8));
        for (differing, is_same) in [
            (Differing { ttl: false, ..all }, [true, true, false]),
            (Differing { tags: false, ..all }, [true, false, true]),
            (Differing { macs: false, ..all }, [false, true, true]),
            (Differing::default(), [false, false, false]),
        ] {
            let first = same(&frame(1, &[], 64), differing).0;
            let others = [frame(2, &[], 64), frame(1, &[VLAN], 64), frame(1, &[], 63)];
            let found = others.map(|other| same(&other, differing).0 == first);
            assert_eq!(found, is_same, "{differing:?}");
        }
    }

    #[test]
    fn cut_packets_need_a_checksum_and_of_udp_a_part_of_the_payload() {
        let is_told_apart = |checksum: u8, payload: usize, of: usize| {
            let mut data = frame(1, &[], 64);
            data.truncate(34);
            data[17] = u8::try_from(28 + of).unwrap();
            let udp_len = u8::try_from(8 + of).unwrap();
            data.extend_from_slice(&[0x30, 0, 0x40, 0, 0, udp_len, 0, checksum]);
            let header_len = data.len();
            data.resize(header_len + payload, 7);
            let sighting = Sighting {
                link: LinkType::ETHERNET,
                data: &data,
                wire_len: u32::try_from(header_len + of).unwrap(),
                header_len,
            };
            assert_eq!(sighting.has_checksum(), checksum != 0);
            sighting.is_told_apart()
        };
        assert!(is_told_apart(0, 4, 4) && is_told_apart(9, 4, 4));
        assert!(is_told_apart(9, 8, 100) && is_told_apart(9, 60, 100));
        assert!(!is_told_apart(9, 0, 100) && !is_told_apart(9, 7, 100));
        assert!(!is_told_apart(0, 8, 100));
    }

    #[test]
    fn packets_cut_anywhere_are_no_error() {
        let all = Differing {
            macs: true,
            tags: true,
            ttl: true,
        };
        let whole = frame(1, &[VLAN], 64);
        for len in 0..=whole.len() {
            let (bytes, before, _) = same(&whole[..len], all);
            assert_eq!(bytes.len() + before, len);
        }
    }
}
