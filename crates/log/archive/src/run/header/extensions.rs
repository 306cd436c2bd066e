//! Extension headers of IPv6, behind its fixed header.
#![deny(clippy::arithmetic_side_effects)]

use strata_wire::dissect::protocol;

/// IPv6 extension headers: the next protocol, their length, and whether the transport header
/// follows.
pub(crate) fn extensions(next_header: u8, rest: &[u8]) -> (u8, usize, bool) {
    let (mut next, mut at) = (next_header, 0_usize);
    loop {
        let behind = rest.get(at..).unwrap_or(&[]);
        let Some(&[following, units]) = behind.first_chunk() else {
            return (next, at, true);
        };
        let len = match next {
            // At most 2,048.
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS => {
                usize::from(units).wrapping_add(1).wrapping_mul(8)
            }
            protocol::FRAGMENT => 8,
            _ => return (next, at, true),
        };
        let Some(header) = behind.get(..len) else {
            return (next, at, true);
        };
        // Even for a first fragment: its transport checksum covers more.
        let fragment = next == protocol::FRAGMENT && (header[2] != 0 || header[3] & 0xf9 != 0);
        // Within `rest`.
        (next, at) = (following, at.saturating_add(len));
        if fragment {
            return (next, at, false);
        }
    }
}
