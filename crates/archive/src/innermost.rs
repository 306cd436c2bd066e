//! Where a packet's innermost IP header begins.

use strata_wire::dissect::protocol;
use strata_wire::ethernet::ethertype;
use strata_wire::{LinkType, ipv4, ipv6, tunnel};

/// Nested headers looked into, at most.
const TUNNELS_MAX: usize = 8;

/// IPv6 extension headers: the next protocol, their length, and whether the transport header
/// follows.
pub(crate) fn extensions(next_header: u8, rest: &[u8]) -> (u8, usize, bool) {
    let (mut next, mut at) = (next_header, 0);
    loop {
        let Some(&[following, len]) = rest.get(at..).and_then(<[u8]>::first_chunk) else {
            return (next, at, true);
        };
        let bytes = match next {
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS => {
                (usize::from(len) + 1) * 8
            }
            protocol::FRAGMENT => 8,
            _ => return (next, at, true),
        };
        let Some(header) = rest.get(at..at + bytes) else {
            return (next, at, true);
        };
        // Even for a first fragment: its transport checksum covers more.
        let fragment = next == protocol::FRAGMENT && (header[2] != 0 || header[3] & 0xf9 != 0);
        (next, at) = (following, at + bytes);
        if fragment {
            return (next, at, false);
        }
    }
}

/// Offset and version of the innermost IP header that can be found. May be approximate: the bytes
/// come back in any case.
pub(crate) fn innermost(link: LinkType, header: &[u8]) -> Option<(usize, u8)> {
    let mut at = match link {
        LinkType::ETHERNET => behind_ethernet(header, 0)?,
        LinkType::LINUX_SLL => 16,
        LinkType::LINUX_SLL2 => 20,
        LinkType::NULL | LinkType::LOOP => 4,
        LinkType::RAW | LinkType::RAW_12 | LinkType::RAW_14 | LinkType::IPV4 | LinkType::IPV6 => 0,
        _ => return None,
    };
    let mut version = ipv4::version(header.get(at..)?)?;
    for _ in 0..TUNNELS_MAX {
        let Some((inner, inner_version)) = within(header, at, version) else {
            break;
        };
        (at, version) = (inner, inner_version);
    }
    Some((at, version))
}

/// The offset after an Ethernet header with VLAN tags: an IP header, or nothing.
fn behind_ethernet(header: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 12;
    loop {
        let kind = u16::from_be_bytes([*header.get(at)?, *header.get(at + 1)?]);
        match kind {
            ethertype::VLAN | ethertype::SERVICE_VLAN => at += 4,
            ethertype::IPV4 | ethertype::IPV6 => return Some(at + 2),
            ethertype::PPPOE_SESSION => return Some(at + 10),
            _ => return None,
        }
    }
}

/// The IP header inside the one at `at`, if that is a tunnel.
fn within(header: &[u8], at: usize, version: u8) -> Option<(usize, u8)> {
    let ip = header.get(at..)?;
    let (number, payload) = match version {
        4 => {
            let view = ipv4::Packet::new_checked(ip)?;
            if view.fragment_offset() != 0 {
                return None;
            }
            (view.protocol(), view.header_len())
        }
        6 => {
            let view = ipv6::Packet::new_checked(ip)?;
            let (number, len, first) = extensions(view.next_header(), &ip[40..]);
            if !first {
                return None;
            }
            (number, 40 + len)
        }
        _ => return None,
    };
    let rest = ip.get(payload..)?;
    let inner = match number {
        protocol::IPV4 | protocol::IPV6 => at + payload,
        protocol::GRE => {
            let (len, inner) = tunnel::of_gre(rest)?;
            behind(header, at + payload + len, inner?)?
        }
        protocol::UDP => {
            let ports: &[u8; 8] = rest.first_chunk()?;
            let port = |n: usize| u16::from_be_bytes([ports[n], ports[n + 1]]);
            let (len, inner) = tunnel::of_udp(port(0), port(2), rest.get(8..)?)?;
            behind(header, at + payload + 8 + len, inner)?
        }
        _ => return None,
    };
    let version = ipv4::version(header.get(inner..)?)?;
    let min = match version {
        4 => 20,
        6 => 40,
        _ => return None,
    };
    (header.len() >= inner + min).then_some((inner, version))
}

fn behind(header: &[u8], at: usize, inner: tunnel::Inner) -> Option<usize> {
    match inner {
        tunnel::Inner::Ethernet => behind_ethernet(header, at),
        tunnel::Inner::EtherType(ethertype::IPV4 | ethertype::IPV6) | tunnel::Inner::RawIp => {
            Some(at)
        }
        tunnel::Inner::EtherType(_) => None,
    }
}
