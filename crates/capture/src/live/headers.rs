//! What the kernel took out of a packet of a ring, or never had, put in front of it: VLAN tags,
//! cooked headers.

use super::batch::Slot;

pub(super) const VLAN_TAG_LEN: usize = 4;
/// draft-ietf-opsawg-pcaplinktype, LINKTYPE_LINUX_SLL2.
pub(super) const SLL2_LEN: usize = 20;

/// The 802.1Q tag that the kernel took out of a packet, as it was there: type and tag control, in
/// network order.
#[inline]
pub(super) fn vlan_tag(block: &[u8], header_at: usize) -> Option<[u8; VLAN_TAG_LEN]> {
    let status = u32_at(block, header_at + 20);
    if status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let kind = if status & libc::TP_STATUS_VLAN_TPID_VALID != 0 {
        u16_at(block, header_at + 36)
    } else {
        0x8100
    };
    let control = u16_at(block, header_at + 32);
    let ([a, b], [c, d]) = (kind.to_be_bytes(), control.to_be_bytes());
    Some([a, b, c, d])
}

/// Puts a tag back after the MAC addresses, which move into the gap before them.
pub(super) fn put_tag(block: &mut [u8], tag: [u8; VLAN_TAG_LEN], slot: &mut Slot) {
    const ADDRESSES_LEN: usize = 12;
    if (slot.len as usize) < ADDRESSES_LEN {
        return;
    }
    let at = slot.at as usize;
    block.copy_within(at..at + ADDRESSES_LEN, at - VLAN_TAG_LEN);
    let tag_at = at - VLAN_TAG_LEN + ADDRESSES_LEN;
    block[tag_at..tag_at + VLAN_TAG_LEN].copy_from_slice(&tag);
    slot.lengthen(VLAN_TAG_LEN);
}

/// Writes an SLL2 header before a packet without a link-layer header. A stripped tag becomes the
/// protocol and the first bytes after the header. For a second tag, the kernel (since 6.10) gives
/// the type after it instead of its own.
pub(super) fn put_cooked_header(
    block: &mut [u8],
    header_at: usize,
    tag: Option<[u8; VLAN_TAG_LEN]>,
    slot: &mut Slot,
) {
    /// Where `sockaddr_ll` is after `tpacket3_hdr`.
    const ADDRESS_AT: usize = 48;
    let mut address = [0; 20];
    address.copy_from_slice(&block[header_at + ADDRESS_AT..header_at + ADDRESS_AT + 20]);
    let mut protocol = [address[2], address[3]];
    if let Some([kind_high, kind_low, control_high, control_low]) = tag {
        slot.lengthen(VLAN_TAG_LEN);
        let at = slot.at as usize;
        let behind = [control_high, control_low, protocol[0], protocol[1]];
        block[at..at + VLAN_TAG_LEN].copy_from_slice(&behind);
        protocol = [kind_high, kind_low];
    }
    let mut header = [0; SLL2_LEN];
    header[0..2].copy_from_slice(&protocol);
    let native = |at: usize| [address[at], address[at + 1]];
    header[4..8].copy_from_slice(&u32_at(&address, 4).to_be_bytes());
    header[8..10].copy_from_slice(&u16::from_ne_bytes(native(8)).to_be_bytes());
    header[10] = address[10];
    // Longer addresses exist (InfiniBand); eight bytes of them are given here.
    header[11] = address[11].min(8);
    let len = usize::from(header[11]);
    header[12..12 + len].copy_from_slice(&address[12..12 + len]);
    slot.lengthen(SLL2_LEN);
    let at = slot.at as usize;
    block[at..at + SLL2_LEN].copy_from_slice(&header);
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
