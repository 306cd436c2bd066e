//! From captured bytes to headers: where they end, which flow the packet belongs to.
//!
//! **What "header" means**, for header-only logging and everywhere else in Strata: every byte up to
//! the end of the innermost transport header that could be parsed, including its options. Through a
//! tunnel that is the inner packet's transport header. Where nothing known follows, the header ends
//! with the last layer that was understood; a header that the capture cut short ends where the
//! captured bytes end. Of an ICMP error, the quoted packet's headers are header too, up to the end of
//! its transport header: nothing else names the flow that the error is about. The error's own flow
//! stays that of its IP header. [`Headers::header_len`] is that end. Of a packet without a readable network
//! header, header-only logging keeps [`FALLBACK_LEN`] bytes, if that is more
//! ([`Headers::kept_header_len`]).
//!
//! Each step consumes at least one byte of the packet or ends the walk, so the walk is bounded by
//! the packet's length and by 64 layers.

use crate::LinkType;
use crate::walk::plain::{Plain, plain_ipv6};
use crate::walk::{self, walk};

pub use crate::walk::headers::{FALLBACK_LEN, Fragment, Headers, TunnelKey};

/// IP protocol numbers (IANA) that the walk knows.
pub mod protocol {
    pub use crate::formats::ip_protocol::*;
}

/// Reads the headers of `packet`. Never fails: what cannot be read ends the
/// header and sets [`Headers::incomplete`].
#[inline]
#[must_use]
pub fn dissect(link: LinkType, packet: &[u8], tunnel_key: TunnelKey) -> Headers {
    if link == LinkType::ETHERNET {
        let plain = Plain::read(packet).map(|plain| plain.headers());
        if let Some(headers) = plain.or_else(|| plain_ipv6(packet)) {
            return headers;
        }
    }
    walk(link, packet, tunnel_key)
}

/// Where the innermost IP header of `packet` begins, and its version; `None` without one. Packets
/// that ICMP errors quote do not count.
#[must_use]
pub fn innermost_network(link: LinkType, packet: &[u8]) -> Option<(usize, u8)> {
    walk::innermost(link, packet)
}

/// Whether `packet` may hold IP addresses that [`dissect`] reports neither in `key` nor in `outer`:
/// more than two IP headers, or a header that was not understood. Such a packet makes a block of
/// the log match every search for a host.
#[must_use]
pub fn may_hide_addresses(headers: &Headers) -> bool {
    headers.incomplete || headers.networks > 2
}
