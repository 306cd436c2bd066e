//! What the kernel took out of a packet of a ring, or never had, put in front of it: VLAN tags,
//! cooked headers.

use std::cmp::Ordering;

use super::batch::Slot;

pub(super) const VLAN_TAG_LEN: usize = 4;
/// draft-ietf-opsawg-pcaplinktype, LINKTYPE_LINUX_SLL2.
pub(super) const SLL2_LEN: usize = 20;

/// The 802.1Q tag that the kernel took out of a packet, as it was there: type and tag control, in
/// network order.
#[inline]
pub(super) fn vlan_tag(block: &[u8], header_at: usize) -> Option<[u8; VLAN_TAG_LEN]> {
    let status = u32_at(block, header_at.wrapping_add(20));
    if status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let kind = if status & libc::TP_STATUS_VLAN_TPID_VALID != 0 {
        u16_at(block, header_at.wrapping_add(36))
    } else {
        0x8100
    };
    let control = u16_at(block, header_at.wrapping_add(32));
    let ([a, b], [c, d]) = (kind.to_be_bytes(), control.to_be_bytes());
    Some([a, b, c, d])
}

/// Puts a tag back after the MAC addresses, which move into the gap before them.
pub(super) fn put_tag(block: &mut [u8], tag: [u8; VLAN_TAG_LEN], slot: &mut Slot) {
    const ADDRESSES_LEN: usize = 12;
    if (slot.len as usize) < ADDRESSES_LEN {
        return;
    }
    slot.lengthen(VLAN_TAG_LEN);
    let packet = &mut block[slot.at as usize..];
    packet.copy_within(VLAN_TAG_LEN..VLAN_TAG_LEN + ADDRESSES_LEN, 0);
    packet[ADDRESSES_LEN..ADDRESSES_LEN + VLAN_TAG_LEN].copy_from_slice(&tag);
}

/// `ETH_P_8021Q`, `ETH_P_8021AD`: the types of tags that the kernel looks behind.
const TAG_TYPES: [[u8; 2]; 2] = [[0x81, 0], [0x88, 0xa8]];

/// Writes an SLL2 header before a packet without a link-layer header. A stripped tag becomes the
/// protocol and the first bytes after the header. Where a second tag follows, Linux since 6.10 gives
/// the type after that instead of the tag's own, which is lost; it is taken for 802.1Q's.
pub(super) fn put_cooked_header(
    block: &mut [u8],
    header_at: usize,
    tag: Option<[u8; VLAN_TAG_LEN]>,
    slot: &mut Slot,
) {
    /// Where `sockaddr_ll` is after `tpacket3_hdr`.
    const ADDRESS_AT: usize = 48;
    let address = block[header_at..][ADDRESS_AT..].first_chunk::<20>();
    let address = *address.expect(WITHIN);
    let mut protocol = [address[2], address[3]];
    if let Some([kind_high, kind_low, control_high, control_low]) = tag {
        let packet = &block[slot.at as usize..][..slot.len as usize];
        if !TAG_TYPES.contains(&protocol) && begins_with_tag(packet, slot.wire_len, protocol) {
            protocol = TAG_TYPES[0];
        }
        slot.lengthen(VLAN_TAG_LEN);
        let behind = [control_high, control_low, protocol[0], protocol[1]];
        block[slot.at as usize..][..VLAN_TAG_LEN].copy_from_slice(&behind);
        protocol = [kind_high, kind_low];
    }
    let mut header = [0; SLL2_LEN];
    header[0..2].copy_from_slice(&protocol);
    header[4..8].copy_from_slice(&u32_at(&address, 4).to_be_bytes());
    header[8..10].copy_from_slice(&u16_at(&address, 8).to_be_bytes());
    header[10] = address[10];
    // Longer addresses exist (InfiniBand); eight bytes of them are given here.
    header[11] = address[11].min(8);
    let len = usize::from(header[11]);
    header[12..][..len].copy_from_slice(&address[12..][..len]);
    slot.lengthen(SLL2_LEN);
    block[slot.at as usize..][..SLL2_LEN].copy_from_slice(&header);
}

/// Whether a packet that the kernel calls one of `protocol` begins with a tag, whose control and type
/// are there, and not with that protocol. The ring does not say, so the bytes have to.
fn begins_with_tag(packet: &[u8], wire_len: u32, protocol: [u8; 2]) -> bool {
    /// Tags that the kernel looks behind (`VLAN_MAX_DEPTH`).
    const DEPTH_MAX: usize = 8;
    let (mut behind, mut behind_len) = (packet, wire_len);
    for _ in 0..DEPTH_MAX {
        let Some((&[_, _, high, low], rest)) = behind.split_first_chunk::<4>() else {
            return false;
        };
        (behind, behind_len) = (rest, behind_len.saturating_sub(4));
        if [high, low] == protocol {
            // One value in 65,536 of a length or flow label is the protocol's number too.
            let without = fit(protocol, packet, wire_len);
            let with = fit(protocol, behind, behind_len);
            return with > without || with == Fit::Exact || without == Fit::Unknown;
        }
        if !TAG_TYPES.contains(&[high, low]) {
            return false;
        }
    }
    false
}

/// How well bytes fit a protocol.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Fit {
    No,
    /// Nothing is known of it, or too few bytes are there.
    Unknown,
    /// They can be a packet of it.
    Yes,
    /// And it is as long as there are bytes.
    Exact,
}

fn fit(protocol: [u8; 2], packet: &[u8], wire_len: u32) -> Fit {
    let of_length = |len: u32| match len.cmp(&wire_len) {
        Ordering::Less => Fit::Yes,
        Ordering::Equal => Fit::Exact,
        Ordering::Greater => Fit::No,
    };
    match (protocol, packet) {
        ([0x08, 0x00], &[0x45..=0x4f, _, a, b, ..]) => match u16::from_be_bytes([a, b]) {
            // A length of 0: more than fits, from a card that segments.
            1..20 => Fit::No,
            len => of_length(u32::from(len)),
        },
        ([0x86, 0xdd], &[0x60..=0x6f, _, _, _, a, b, ..]) => {
            of_length(u32::from(u16::from_be_bytes([a, b])).saturating_add(40))
        }
        // PPPoE (RFC 2516 §4): version and type, and a session has code 0.
        ([0x88, 0x63 | 0x64], &[0x11, ..]) => Fit::Yes,
        ([0x08, 0x00] | [0x86, 0xdd] | [0x88, 0x63 | 0x64], &[_, ..]) => Fit::No,
        _ => Fit::Unknown,
    }
}

const WITHIN: &str = "the kernel describes packets within their block";

#[inline(always)]
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk);
    u32::from_ne_bytes(*found.expect(WITHIN))
}

#[inline(always)]
pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk);
    u16::from_ne_bytes(*found.expect(WITHIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet of IPv4 or IPv6 of `len` bytes.
    fn ip(version: u8, len: u16) -> Vec<u8> {
        let mut packet = vec![version << 4 | 5; usize::from(len)];
        match version {
            4 => packet[2..4].copy_from_slice(&len.to_be_bytes()),
            _ => packet[4..6].copy_from_slice(&(len - 40).to_be_bytes()),
        }
        packet
    }

    fn tagged(tags: &[[u8; 2]], protocol: [u8; 2], packet: &[u8]) -> Vec<u8> {
        let types = tags[1..].iter().map(|_| TAG_TYPES[0]).chain([protocol]);
        let tags = tags
            .iter()
            .zip(types)
            .flat_map(|(tag, kind)| [*tag, kind].concat());
        tags.chain(packet.iter().copied()).collect()
    }

    #[test]
    fn inner_tags_are_found_and_nothing_else() {
        const IPV4: [u8; 2] = [8, 0];
        const IPV6: [u8; 2] = [0x86, 0xdd];
        let begins = |packet: &[u8], protocol| {
            let wire_len = u32::try_from(packet.len()).unwrap();
            begins_with_tag(packet, wire_len, protocol)
        };
        for (protocol, version) in [(IPV4, 4), (IPV6, 6)] {
            for len in [60, 1_500, 2_044, 2_048] {
                let packet = ip(version, len);
                assert!(!begins(&packet, protocol), "{version} {len}");
                for tags in [&[[0, 68]][..], &[[0x45, 0]], &[[0x65, 0x12], [0, 7]]] {
                    assert!(
                        begins(&tagged(tags, protocol, &packet), protocol),
                        "{version} {len}"
                    );
                }
            }
        }
        // A flow label that is IPv6's own number, a length that is IPv4's.
        let mut labelled = ip(6, 1_500);
        labelled[2..4].copy_from_slice(&IPV6);
        assert!(!begins(&labelled, IPV6));
        assert!(begins(&tagged(&[[0x60, 1]], IPV6, &labelled), IPV6));
        // The identification of such a packet looks like IPv4 too, but not so long.
        let mut identified = ip(4, 2_048);
        identified[4] = 0x45;
        assert!(!begins(&identified, IPV4));
        assert!(begins(&tagged(&[[0x45, 0]], IPV4, &ip(4, 2_044)), IPV4));
        // ARP, LLDP and what is not known.
        assert!(!begins(&[0, 1, 8, 0, 6, 4, 0, 1], [8, 6]));
        assert!(begins(&[0, 68, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1], [8, 6]));
        assert!(!begins(&[2, 7, 4, 0, 1, 2, 3, 4], [0x88, 0xcc]));
        assert!(begins(&[0, 68, 0x88, 0xcc, 2, 7, 4, 0, 1, 2], [0x88, 0xcc]));
        assert!(!begins(&[0, 68], IPV4) && !begins(&[], IPV4));
    }
}
