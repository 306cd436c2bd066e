//! Tunnels: how long their headers are and what is inside.

use crate::bytes::{be16, u8_at};
use crate::ethernet::ethertype;

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

/// The GRE header (RFC 2784, 2890; version 1: RFC 2637), including an ERSPAN header after it, at
/// the start of `bytes`: its length, and what is inside if known.
#[must_use]
pub fn of_gre(bytes: &[u8]) -> Option<(usize, Option<Inner>)> {
    let flags = be16(bytes, 0)?;
    let kind = be16(bytes, 2)?;
    let bit = |mask: u16| usize::from(flags & mask != 0);
    let (checksum, routing, key, sequence) = (bit(0x8000), bit(0x4000), bit(0x2000), bit(0x1000));
    match flags & 0x7 {
        0 if routing == 0 => {
            let len = 4 + 4 * (checksum + key + sequence);
            let inner = match kind {
                // Type I has no header of its own; type II is recognised by the GRE sequence number
                // (draft-foschiano-erspan-03 §4.1, §4.2).
                ethertype::ERSPAN => return Some((len + 8 * sequence, Some(Inner::Ethernet))),
                ethertype::ERSPAN_III => {
                    // §4.3: 12 bytes, and 8 more if the O bit is set.
                    let optional = usize::from(u8_at(bytes, len + 11)? & 1);
                    return Some((len + 12 + 8 * optional, Some(Inner::Ethernet)));
                }
                0 => None,
                kind => Some(Inner::EtherType(kind)),
            };
            Some((len, inner))
        }
        1 => {
            // Enhanced GRE of PPTP: key always, acknowledgement by bit 8 (§4.1).
            let len = 8 + 4 * (sequence + bit(0x0080));
            let carries = be16(bytes, 4)? > 0;
            Some((len, carries.then_some(Inner::EtherType(kind))))
        }
        _ => Some((4, None)),
    }
}

/// The tunnel that a UDP datagram carries, by its ports and the first bytes of
/// its payload: VXLAN (RFC 7348), GENEVE (RFC 8926) or GTP-U (3GPP TS 29.281).
#[must_use]
#[inline]
pub fn of_udp(source: u16, destination: u16, payload: &[u8]) -> Option<(usize, Inner)> {
    match destination {
        VXLAN | VXLAN_LINUX => of_vxlan(payload),
        GENEVE => of_geneve(payload),
        UDP_EITHER => of_gtp_u(payload),
        _ if source == UDP_EITHER => of_gtp_u(payload),
        _ => None,
    }
}

/// Destination ports of the tunnels that [`of_udp`] knows: VXLAN (RFC 7348 §5, and Linux's older
/// one) and GENEVE (RFC 8926 §3.3). Vector code and tests take the ports from here.
pub const UDP_DESTINATIONS: [u16; 3] = [VXLAN, VXLAN_LINUX, GENEVE];

/// The port of GTP-U, which either end may use (TS 29.281 §4.4.2).
pub const UDP_EITHER: u16 = 2152;

const VXLAN: u16 = 4789;
const VXLAN_LINUX: u16 = 8472;
const GENEVE: u16 = 6081;

/// Whether the ports are those of a tunnel that [`of_udp`] knows.
#[must_use]
pub fn has_udp_port(source: u16, destination: u16) -> bool {
    // Without a branch, as this is on the data path.
    UDP_DESTINATIONS.iter().fold(
        (source == UDP_EITHER) | (destination == UDP_EITHER),
        |is, &port| is | (destination == port),
    )
}

/// RFC 7348 §5: the I flag set, reserved bytes; then Ethernet.
fn of_vxlan(payload: &[u8]) -> Option<(usize, Inner)> {
    (payload.len() >= 8 && payload[0] & 0x08 != 0).then_some((8, Inner::Ethernet))
}

/// RFC 8926 §3.4: version 0, options in units of 4 bytes.
fn of_geneve(payload: &[u8]) -> Option<(usize, Inner)> {
    let first = u8_at(payload, 0)?;
    let kind = be16(payload, 2)?;
    if first >> 6 != 0 || payload.len() < 8 {
        return None;
    }
    Some((8 + usize::from(first & 0x3f) * 4, Inner::EtherType(kind)))
}

/// TS 29.281 §5.1: version 1, protocol type GTP, message type 255 (G-PDU),
/// optional fields and extension headers.
fn of_gtp_u(payload: &[u8]) -> Option<(usize, Inner)> {
    let (flags, message) = (u8_at(payload, 0)?, u8_at(payload, 1)?);
    if flags >> 5 != 1 || flags & 0x10 == 0 || message != 255 {
        return None;
    }
    let mut len = 8;
    if flags & 0x07 != 0 {
        let mut next = u8_at(payload, 11)?;
        len = 12;
        // §5.2: length in units of 4 bytes at the start, next type at the end.
        // Each extension is at least 4 bytes, so the walk ends with the payload.
        while flags & 0x04 != 0 && next != 0 {
            let extension = usize::from(u8_at(payload, len)?) * 4;
            if extension == 0 {
                return None;
            }
            len += extension;
            next = u8_at(payload, len - 1)?;
        }
    }
    Some((len, Inner::RawIp))
}
