//! Tunnels: how long their headers are and what is inside.
//!
//! Where a header states a version or form that is not known, nothing inside is guessed.

mod ports;

use crate::bytes::{be16, be32, u8_at};
use crate::formats::ethernet::{self, ethertype};
use crate::{formats::ipv4, formats::ipv6};

pub use ports::{PORTS_MAX, TunnelKind, Tunnels, TunnelsError, UDP_DESTINATIONS, UDP_EITHER};
pub(crate) use ports::{may_be_tunnel, unusual};

/// Bytes of a PPPoE header (RFC 2516 §4).
pub const PPPOE_HEADER_LEN: usize = 6;

/// What a tunnel carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inner {
    /// An Ethernet frame.
    Ethernet,
    /// What an EtherType says.
    EtherType(u16),
    /// IP, version by the first nibble.
    RawIp,
}

impl Inner {
    /// What a field for EtherTypes says. Numbers that Ethernet has for lengths name nothing here.
    fn of_type(kind: u16) -> Option<Self> {
        (kind > ethernet::LENGTH_MAX).then_some(Self::EtherType(kind))
    }

    /// What the next protocol field of VXLAN-GPE (draft-ietf-nvo3-vxlan-gpe §3.2) and NSH (RFC 8300
    /// §2.2) says.
    fn of_next_protocol(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::EtherType(ethertype::IPV4)),
            2 => Some(Self::EtherType(ethertype::IPV6)),
            3 => Some(Self::Ethernet),
            4 => Some(Self::EtherType(ethertype::NSH)),
            5 => Some(Self::EtherType(ethertype::MPLS)),
            _ => None,
        }
    }
}

/// Bytes of a tunnel's header, and what is inside if known.
pub type Header = (usize, Option<Inner>);

/// The GRE header (RFC 2784, 2890; version 1: RFC 2637), including an ERSPAN header after it, at
/// the start of `bytes`. The length may be more than is there.
#[must_use]
pub fn of_gre(bytes: &[u8]) -> Option<Header> {
    let flags = be16(bytes, 0)?;
    let kind = be16(bytes, 2)?;
    let bit = |mask: u16| usize::from(flags & mask != 0);
    let four = |mask: u16| bit(mask).wrapping_mul(4);
    let (checksum, routing, key, sequence) = (0x8000, 0x4000, 0x2000, 0x1000);
    match flags & 0x7 {
        0 if bit(routing) == 0 => {
            // At most 16.
            let len = 4_usize
                .wrapping_add(four(checksum))
                .wrapping_add(four(key))
                .wrapping_add(four(sequence));
            Some(match kind {
                ethertype::ERSPAN => of_erspan(bytes, len, bit(sequence) != 0),
                ethertype::ERSPAN_III => of_erspan_iii(bytes, len),
                kind => (len, Inner::of_type(kind)),
            })
        }
        1 => {
            // Enhanced GRE of PPTP: key always, acknowledgement by bit 8 (§4.1). At most 16.
            let len = 8_usize
                .wrapping_add(four(sequence))
                .wrapping_add(four(0x0080));
            let carries = be16(bytes, 4)? > 0;
            Some((len, if carries { Inner::of_type(kind) } else { None }))
        }
        _ => Some((4, None)),
    }
}

/// ERSPAN type I has no header of its own; type II, version 1, is recognised by the GRE sequence
/// number (draft-foschiano-erspan-03 §4.1, §4.2). With another version, the headers end with GRE.
fn of_erspan(bytes: &[u8], gre_len: usize, has_sequence: bool) -> Header {
    const LEN: usize = 8;
    match u8_at(bytes, gre_len).map(|first| first >> 4) {
        _ if !has_sequence => (gre_len, Some(Inner::Ethernet)),
        Some(1) | None => (gre_len.wrapping_add(LEN), Some(Inner::Ethernet)),
        Some(_) => (gre_len, None),
    }
}

/// ERSPAN type III, version 2 (draft-foschiano-erspan-03 §4.3): 12 bytes, and a subheader of 8 if the
/// O bit is set. The frame type says whether a frame or a bare IP packet follows; for others
/// nothing is known.
fn of_erspan_iii(bytes: &[u8], gre_len: usize) -> Header {
    const LEN: usize = 12;
    const SUBHEADER_LEN: usize = 8;
    let whole = gre_len.wrapping_add(LEN);
    let version = u8_at(bytes, gre_len).map(|first| first >> 4);
    // P, frame type (5 bits), hardware (6), direction, granularity (2), O.
    let last = be16(bytes, gre_len.wrapping_add(LEN - 2));
    if version.is_some_and(|version| version != 2) {
        return (gre_len, None);
    }
    let Some(last) = last else {
        return (whole, None);
    };
    let inner = match last >> 10 & 0x1f {
        0 => Some(Inner::Ethernet),
        2 => Some(Inner::RawIp),
        _ => None,
    };
    let optional = if last & 1 == 0 { 0 } else { SUBHEADER_LEN };
    (whole.wrapping_add(optional), inner)
}

/// The tunnel header at the start of a UDP payload of which the datagram says how long it is. `None`
/// if it is not what this port is for.
#[must_use]
pub fn of_udp(kind: TunnelKind, stated_len: usize, payload: &[u8]) -> Option<Header> {
    match kind {
        TunnelKind::Vxlan => of_vxlan(payload),
        TunnelKind::VxlanGpe => of_vxlan_gpe(payload),
        TunnelKind::Geneve => of_geneve(payload),
        TunnelKind::GtpU => of_gtp_u(payload),
        TunnelKind::GreUdp => of_gre_in_udp(payload),
        TunnelKind::MplsUdp => Some((0, Some(Inner::EtherType(ethertype::MPLS)))),
        TunnelKind::Teredo => of_teredo(stated_len, payload),
    }
}

/// RFC 7348 §5: the I flag set, reserved bytes; then Ethernet.
fn of_vxlan(payload: &[u8]) -> Option<Header> {
    let has_id = u8_at(payload, 0)? & 0x08 != 0;
    (has_id && payload.len() >= VXLAN_LEN).then_some((VXLAN_LEN, Some(Inner::Ethernet)))
}

const VXLAN_LEN: usize = 8;

/// draft-ietf-nvo3-vxlan-gpe §3: as VXLAN, with a version, which is 0, and the next protocol if the P
/// flag says so.
fn of_vxlan_gpe(payload: &[u8]) -> Option<Header> {
    let (flags, next) = (u8_at(payload, 0)?, u8_at(payload, 3)?);
    let (version, has_id, has_next) = (flags & 0x30, flags & 0x08 != 0, flags & 0x04 != 0);
    if version != 0 || !(has_id || has_next) || payload.len() < VXLAN_LEN {
        return None;
    }
    let inner = match has_next {
        true => Inner::of_next_protocol(next),
        false => Some(Inner::Ethernet),
    };
    Some((VXLAN_LEN, inner))
}

/// RFC 8926 §3.4: version 0, options in units of 4 bytes.
fn of_geneve(payload: &[u8]) -> Option<Header> {
    let first = u8_at(payload, 0)?;
    let kind = be16(payload, 2)?;
    if first >> 6 != 0 || payload.len() < 8 {
        return None;
    }
    // At most 260.
    let options = usize::from(first & 0x3f).wrapping_mul(4);
    Some((8_usize.wrapping_add(options), Inner::of_type(kind)))
}

/// TS 29.281 §5.1: version 1, protocol type GTP, message type 255 (G-PDU),
/// optional fields and extension headers.
fn of_gtp_u(payload: &[u8]) -> Option<Header> {
    let (flags, message) = (u8_at(payload, 0)?, u8_at(payload, 1)?);
    if flags >> 5 != 1 || flags & 0x10 == 0 || message != 255 {
        return None;
    }
    let mut len = 8_usize;
    if flags & 0x07 != 0 {
        let mut next = u8_at(payload, 11)?;
        len = 12;
        // §5.2: length in units of 4 bytes at the start, next type at the end.
        // Each extension is at least 4 bytes, so the walk ends with the payload.
        while flags & 0x04 != 0 && next != 0 {
            let words = usize::from(u8_at(payload, len)?);
            if words == 0 {
                return None;
            }
            len = len.checked_add(words.checked_mul(4)?)?;
            next = u8_at(payload, len.checked_sub(1)?)?;
        }
    }
    Some((len, Some(Inner::RawIp)))
}

/// RFC 8086 §3: version 0, and no bits but those for checksum, key and sequence number. Other
/// traffic may have this port by chance: so what is inside has to be known.
fn of_gre_in_udp(payload: &[u8]) -> Option<Header> {
    let (flags, kind) = (be16(payload, 0)?, be16(payload, 2)?);
    let is_gre = flags & !0xb000 == 0 && ethertype::is_known(kind);
    if is_gre { of_gre(payload) } else { None }
}

/// RFC 4380 §5.1.1: perhaps authentication, perhaps the origin, then an IPv6 packet that fits into
/// the datagram (§5.2.3). What follows it are trailers (RFC 6081).
fn of_teredo(stated_len: usize, payload: &[u8]) -> Option<Header> {
    /// Indicator, two lengths; nonce and confirmation.
    const AUTHENTICATION_LEN: usize = 4 + 8 + 1;
    const ORIGIN_LEN: usize = 8;
    let mut len = 0_usize;
    if be16(payload, 0)? == 1 {
        let (id, value) = (u8_at(payload, 2)?, u8_at(payload, 3)?);
        // At most 523.
        len = AUTHENTICATION_LEN
            .wrapping_add(usize::from(id))
            .wrapping_add(usize::from(value));
    }
    if be16(payload, len)? == 0 {
        len = len.wrapping_add(ORIGIN_LEN);
    }
    let ip = ipv6::Packet::new_checked(payload.get(len..)?)?;
    let after = stated_len.checked_sub(len)?.checked_sub(ipv6::HEADER_LEN)?;
    (usize::from(ip.payload_len()) <= after).then_some((len, Some(Inner::RawIp)))
}

/// The Network Service Header (RFC 8300 §2.2), at the start of `bytes`: version 0, its length in
/// words, of which there are at least two, and the next protocol. The length may be more than is
/// there.
#[must_use]
pub fn of_nsh(bytes: &[u8]) -> Option<Header> {
    let (first, second, next) = (u8_at(bytes, 0)?, u8_at(bytes, 1)?, u8_at(bytes, 3)?);
    // At most 252.
    let len = usize::from(second & 0x3f).wrapping_mul(4);
    (first >> 6 == 0 && len >= 8).then_some((len, Inner::of_next_protocol(next)))
}

/// Bytes of an MPLS label stack (RFC 3032 §2.1) up to its bottom.
pub(crate) fn label_stack_len(bytes: &[u8]) -> Option<usize> {
    /// More labels than any network has.
    const LABELS_MAX: usize = 16;
    let ends = (0..LABELS_MAX).map(|index| index.wrapping_mul(4));
    for at in ends {
        if be32(bytes, at)? & 0x100 != 0 {
            return at.checked_add(4);
        }
    }
    None
}

/// Whether bytes begin with an IP header, as far as its first byte tells.
pub(crate) fn begins_as_ip(bytes: &[u8]) -> bool {
    match ipv4::version(bytes) {
        Some(4) => u8_at(bytes, 0).is_some_and(|first| first & 0x0f >= 5),
        Some(6) => true,
        _ => false,
    }
}
