//! What follows the bottom of an MPLS label stack. No field says it, and Ethernet may be there with
//! a control word (RFC 4448 §4.6) or without one, so the first nibble (RFC 4928 §3) is only a hint:
//! 0, 1, 4 and 6 are first nibbles of MAC addresses too.
//!
//! Each reading is checked, and the first that holds is taken:
//!
//! | first nibble | read as |
//! |---|---|
//! | 4 | IPv4 if its checksum is right; Ethernet; IPv4 if its checksum is 0 and all else is usual |
//! | 6 | Ethernet, if what it carries is checked too; IPv6 if next header and addresses are usual; Ethernet |
//! | 0 | a control word and Ethernet, or Ethernet alone: first those whose contents are checked too |
//! | 1 | Ethernet; an associated channel with IPv4 or IPv6 (RFC 4385 §5) |
//! | others | Ethernet |
//!
//! Ethernet holds if its EtherType is a known one and, for those that can be checked, what follows
//! begins as it should. If nothing holds, the headers end with the labels: no address is made up.
//!
//! A check only reads bytes that are header if it holds, and fails where they are missing. So a
//! packet that was cut behind its headers is read as before. For that reason the lengths that IP
//! states are not held against what is there: most of the log is cut.

use super::Layer;
use crate::bytes::{be16, be128, u8_at};
use crate::formats::ethernet::{self, ethertype};
use crate::formats::ip_protocol as protocol;
use crate::{formats::ipv4, formats::ipv6, formats::tunnel};

/// VLAN tags that are looked through.
const TAGS_MAX: usize = 4;

/// RFC 4385 §3, §5: a control word, also that of an associated channel.
const CONTROL_LEN: usize = 4;

/// Channel types of IPv4 and IPv6 in an associated channel (IANA; RFC 4385 §5).
const CHANNEL_IPV4: u16 = 0x0021;
const CHANNEL_IPV6: u16 = 0x0057;

/// How well bytes fit a reading.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Fit {
    No,
    /// Nothing speaks against it.
    Possible,
    /// A checksum, or several fields that have only a few values, speak for it.
    Checked,
}

/// What follows a label stack: the bytes before it, and the layer. `None` if no reading holds.
pub(super) fn below(bytes: &[u8]) -> Option<(usize, Layer)> {
    let whole = |layer| Some((0, layer));
    let ethernet_fit = ethernet_fit(bytes);
    let is_ethernet = ethernet_fit > Fit::No;
    match ipv4::version(bytes)? {
        4 if ipv4_fit(bytes) == Fit::Checked => whole(Layer::Ipv4),
        4 if !is_ethernet && is_usual_ipv4(bytes) => whole(Layer::Ipv4),
        6 if ethernet_fit < Fit::Checked && ipv6_fit(bytes) == Fit::Checked => whole(Layer::Ipv6),
        0 => match self::ethernet_fit(bytes.get(CONTROL_LEN..)?) {
            Fit::No => is_ethernet.then_some((0, Layer::Ethernet)),
            behind if behind < ethernet_fit => whole(Layer::Ethernet),
            _ => Some((CONTROL_LEN, Layer::Ethernet)),
        },
        1 if !is_ethernet => associated_channel(bytes),
        _ => is_ethernet.then_some((0, Layer::Ethernet)),
    }
}

/// RFC 4385 §5: version and reserved bits are 0.
fn associated_channel(bytes: &[u8]) -> Option<(usize, Layer)> {
    let first = be16(bytes, 0)?;
    let inside = bytes.get(CONTROL_LEN..)?;
    match be16(bytes, 2)? {
        CHANNEL_IPV4 if first == 0x1000 && ipv4_fit(inside) == Fit::Checked => {
            Some((CONTROL_LEN, Layer::Ipv4))
        }
        CHANNEL_IPV6 if first == 0x1000 && ipv6_fit(inside) == Fit::Checked => {
            Some((CONTROL_LEN, Layer::Ipv6))
        }
        _ => None,
    }
}

fn ethernet_fit(bytes: &[u8]) -> Fit {
    let kind = be16(bytes, 12);
    let inside = bytes.get(ethernet::HEADER_LEN..);
    kind.zip(inside)
        .map_or(Fit::No, |(kind, inside)| type_fit(kind, inside, TAGS_MAX))
}

/// What follows an EtherType, or a length.
fn type_fit(kind: u16, inside: &[u8], tags_left: usize) -> Fit {
    let begins = |start: &[u8]| match inside.starts_with(start) {
        true => Fit::Checked,
        false => Fit::No,
    };
    match kind {
        ethertype::IPV4 => ipv4_fit(inside),
        ethertype::IPV6 => ipv6_fit(inside),
        // Ethernet and IPv4, and the lengths of their addresses.
        ethertype::ARP | ethertype::RARP => begins(&[0, 1, 8, 0, 6, 4]),
        ethertype::VLAN | ethertype::SERVICE_VLAN => tagged_fit(inside, tags_left),
        kind if ethertype::QINQ_OLD.contains(&kind) => tagged_fit(inside, tags_left),
        // Version and type.
        ethertype::PPPOE_DISCOVERY | ethertype::PPPOE_SESSION => begins(&[0x11]),
        // LLC of what is common: SNAP, spanning trees, IS-IS, NetBEUI, IPX; unnumbered information.
        length if length <= ethernet::LENGTH_MAX => match *inside {
            [destination, source, 0x03, ..]
                if destination == source
                    && matches!(source, 0xaa | 0x42 | 0xfe | 0xf0 | 0xe0)
                    && length >= 3 =>
            {
                Fit::Checked
            }
            _ => Fit::No,
        },
        kind if ethertype::is_known(kind) => Fit::Possible,
        _ => Fit::No,
    }
}

fn tagged_fit(inside: &[u8], tags_left: usize) -> Fit {
    match (be16(inside, 2), inside.get(4..), tags_left.checked_sub(1)) {
        (Some(kind), Some(rest), Some(left)) => type_fit(kind, rest, left),
        _ => Fit::No,
    }
}

fn ipv4_fit(bytes: &[u8]) -> Fit {
    let words = u8_at(bytes, 0).filter(|first| first >> 4 == 4 && first & 0x0f >= 5);
    if words.is_none() {
        return Fit::No;
    }
    let header = ipv4::Packet::new_checked(bytes).and_then(|ip| bytes.get(..ip.header_len()));
    match header {
        Some(header) if ipv4::checksum(header) == 0 => Fit::Checked,
        _ => Fit::Possible,
    }
}

/// Whether an IPv4 header whose checksum was left to a card, so that it is 0, is usual in all else: no
/// options, so that as an Ethernet address it would be that of a group; no fragment.
fn is_usual_ipv4(bytes: &[u8]) -> bool {
    ipv4::Packet::new_checked(bytes).is_some_and(|ip| {
        let stated = usize::from(ip.total_len());
        ip.header_len() == ipv4::HEADER_LEN_MIN
            && be16(bytes, 10) == Some(0)
            && (stated == 0 || stated >= ipv4::HEADER_LEN_MIN)
            && matches!(be16(bytes, 6), Some(0 | 0x4000))
            && ip.ttl() > 0
            && protocol::is_known(ip.protocol())
    })
}

/// RFC 8200 §3; the addresses of which there are any (IANA): global unicast, unique local, link-local,
/// those that begin with zeros, and for a destination multicast.
fn ipv6_fit(bytes: &[u8]) -> Fit {
    if ipv4::version(bytes) != Some(6) {
        return Fit::No;
    }
    let Some(ip) = ipv6::Packet::new_checked(bytes) else {
        // A first nibble alone is not enough to tell.
        return Fit::No;
    };
    let unicast = |address: u128| {
        let [first, second, ..] = address.to_be_bytes();
        matches!(first, 0 | 0x20..=0x3f | 0xfc | 0xfd) || (first == 0xfe && second >> 6 == 2)
    };
    let to = be128(bytes, 24).is_some_and(|to| unicast(to) || to >> 120 == 0xff);
    match protocol::is_known(ip.next_header()) && unicast(ip.source()) && to {
        true => Fit::Checked,
        false => Fit::No,
    }
}

/// Whether a datagram can be labels and something below them (RFC 7510 §3).
pub(super) fn is_stack(bytes: &[u8]) -> bool {
    tunnel::label_stack_len(bytes)
        .and_then(|len| bytes.get(len..))
        .is_some_and(|bytes| below(bytes).is_some())
}
