//! Which of a destination's sockets a frame leaves by: all frames of a connection, of both its directions, by the same
//! one, so that routers and network cards spread connections by the source port and keep each in order (RFC 7348,
//! section 5). Captured fragments of a pair of hosts have one of their own.

use std::hash::{DefaultHasher, Hash, Hasher};

use strata_wire::LinkType;
use strata_wire::dissect::protocol::{SCTP, TCP, UDP};
use strata_wire::ethernet::ethertype;
use strata_wire::fields::{self, IpEnds};

use super::own::network;

/// Bytes at the start of a frame that is not IP which are alike in a conversation: two addresses, in either order.
const ADDRESSES: usize = 6;

fn hash(of: impl Hash) -> u64 {
    // Its keys are constants: a flow has the same port whenever it is exported.
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// Ports of a packet that is no fragment: fragments have none, but for the first, which goes with the others.
fn ports(kind: u16, ip: &[u8], ends: &IpEnds<'_>) -> (u16, u16) {
    let flags = ip.get(fields::ipv4::FLAGS_OFFSET);
    let flags = flags.and_then(|field| <[u8; 2]>::try_from(field).ok());
    let is_fragment = kind == ethertype::IPV4
        && flags.is_none_or(|field| u16::from_be_bytes(field) & !fields::ipv4::DONT_FRAGMENT != 0);
    match ends.ports() {
        Some(ports) if !is_fragment && [TCP, UDP, SCTP].contains(&ends.protocol) => ports,
        _ => (0, 0),
    }
}

/// The socket of a frame, of this number of them.
pub(super) fn way(link: LinkType, frame: &[u8], sockets: usize) -> usize {
    let found = network(link, frame);
    let found = found.and_then(|(kind, ip)| Some((IpEnds::of(kind, ip)?, kind, ip)));
    let flow = match found {
        Some((ends, kind, ip)) => {
            let (from, to) = ports(kind, ip, &ends);
            hash((ends.source, from)).wrapping_add(hash((ends.destination, to)))
        }
        None => {
            let address = |at: usize| hash(frame.get(at..at + ADDRESSES));
            address(0).wrapping_add(address(ADDRESSES))
        }
    };
    let sockets = sockets.max(1) as u64;
    usize::try_from(flow % sockets).expect("below the number of sockets")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(from: u8, to: u8) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 17, 0, 0]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 1, 0, from, 0, to]);
        frame.resize(60, 0);
        frame
    }

    /// A part of a larger packet, with whatever is where ports would be.
    fn fragment(flags: u8, from: u8, to: u8) -> Vec<u8> {
        let mut frame = frame(from, to);
        frame[20] = flags;
        frame
    }

    #[test]
    fn both_directions_leave_by_one_socket_and_flows_by_all() {
        let mut used = [0; 8];
        for from in 1..=250 {
            let of = |from, to| way(LinkType::ETHERNET, &frame(from, to), 8);
            assert_eq!(of(from, 9), of(9, from));
            used[of(from, 9)] += 1;
        }
        assert!(used.iter().all(|flows| *flows > 10), "{used:?}");
        // Don't fragment is no fragment; the first and later ones go together.
        let of = |frame: Vec<u8>| way(LinkType::ETHERNET, &frame, 8);
        for port in 1..=250 {
            assert_eq!(of(fragment(0x40, port, 9)), of(frame(port, 9)));
            assert_eq!(of(fragment(0x20, port, 9)), of(fragment(0x01, 7, port)));
        }
        let arp = |first: u8| [[first; 6], [1; 6]].concat();
        assert_eq!(
            way(LinkType::ETHERNET, &arp(3), 8),
            way(LinkType::ETHERNET, &[[1; 6], [3; 6]].concat(), 8)
        );
        for len in 0..12 {
            assert_eq!(way(LinkType::ETHERNET, &arp(3)[..len], 1), 0);
        }
    }
}
