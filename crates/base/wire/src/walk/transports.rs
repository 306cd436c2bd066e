//! Transports other than TCP and UDP, and extension headers of IPv6.

use super::{Layer, Walk, inner_layer};
use crate::bytes::{be16, be32, u8_at};
use crate::formats::ip_protocol as protocol;
use crate::walk::headers::Fragment;
use crate::{formats::ipv4, formats::tunnel};

/// The most bytes of a packet that an ICMP message quotes: no error is longer than the least MTU of
/// IPv6 (RFC 4443 §2.4), nor than 576 bytes in IPv4 (RFC 1812 §4.3.2.3).
const QUOTE_MAX: usize = 1280;

/// Type, code, checksum, and what differs.
const ICMP_HEADER_LEN: usize = 8;

/// The redirect of ICMPv6 (RFC 4861 §4.5).
const REDIRECT: u8 = 137;

impl Walk<'_> {
    #[inline(never)]
    pub(super) fn other_transport(&mut self, number: u8) -> Option<Layer> {
        let rest = self.rest();
        match number {
            protocol::ICMP | protocol::ICMPV6 => {
                let len = self.icmp_len(number);
                let whole = self.take_transport(len);
                let taken = self.headers.transport_len;
                self.headers.quoted_len = taken.saturating_sub(8);
                whole.map(|()| Layer::Done)
            }
            protocol::IGMP | protocol::ESP => {
                self.take_transport(8)?;
                Some(Layer::Done)
            }
            protocol::SCTP => self.with_ports(12),
            // RFC 3828 §3.1: laid out as UDP.
            protocol::UDP_LITE => self.with_ports(8),
            protocol::DCCP => self.dccp(),
            protocol::IPV4 => Some(Layer::Ipv4),
            protocol::IPV6 => Some(Layer::Ipv6),
            protocol::GRE => {
                let Some((len, inner)) = tunnel::of_gre(rest) else {
                    // Cut short.
                    self.take_transport(8)?;
                    return None;
                };
                self.take_transport(len)?;
                Some(inner.map_or(Layer::Done, inner_layer))
            }
            protocol::HOP_BY_HOP
            | protocol::ROUTING
            | protocol::DESTINATION_OPTIONS
            | protocol::MOBILITY
            | protocol::HIP
            | protocol::SHIM6 => {
                // RFC 8200 §4: length in units of 8 bytes, not counting the first 8.
                let (next, len) = (u8_at(rest, 0), u8_at(rest, 1));
                let len = len.map_or(8, |units| {
                    usize::from(units).wrapping_add(1).wrapping_mul(8)
                });
                self.take(len)?;
                self.extension(next?)
            }
            protocol::AH => {
                // RFC 4302 §2.2: length in units of 4 bytes, minus 2.
                let (next, len) = (u8_at(rest, 0), u8_at(rest, 1));
                let len = len.map_or(12, |units| {
                    usize::from(units).wrapping_add(2).wrapping_mul(4)
                });
                self.take(len)?;
                self.extension(next?)
            }
            protocol::FRAGMENT => {
                let (next, offset) = (u8_at(rest, 0), be16(rest, 2));
                let identification = be32(rest, 4);
                self.take(8)?;
                let offset = offset?;
                if self.key_is_current() && offset & 0xfff9 != 0 {
                    self.headers.fragment = Some(Fragment {
                        identification: identification?,
                        first: offset & 0xfff8 == 0,
                    });
                }
                let after = self.extension(next?);
                if offset & 0xfff8 != 0 {
                    return Some(Layer::Done);
                }
                after
            }
            // 59 is "no next header".
            _ => Some(Layer::Done),
        }
    }

    fn extension(&mut self, next: u8) -> Option<Layer> {
        self.set_protocol(next);
        Some(Layer::Transport(next))
    }

    /// A header of this many bytes that begins with the ports.
    fn with_ports(&mut self, len: usize) -> Option<Layer> {
        let rest = self.rest();
        if let (Some(source), Some(destination)) = (be16(rest, 0), be16(rest, 2)) {
            self.ports(source, destination);
        }
        self.take_transport(len)?;
        Some(Layer::Done)
    }

    /// RFC 4340 §5.1: the length in words, options included; at least 12 bytes, or 16 with long
    /// sequence numbers (X).
    fn dccp(&mut self) -> Option<Layer> {
        let rest = self.rest();
        let words = u8_at(rest, 4).map(usize::from);
        let is_long = u8_at(rest, 8).is_some_and(|kind| kind & 1 != 0);
        let least = if is_long { 16 } else { 12 };
        let stated = words.map_or(least, |words| words.wrapping_mul(4));
        let after = self.with_ports(stated.max(least))?;
        (stated >= least).then_some(after)
    }

    /// Bytes of an ICMP message that are header: in an error, up to the end of the transport header of
    /// the packet that it quotes, which is all that names the flow in question.
    fn icmp_len(&mut self, number: u8) -> usize {
        let message = self.rest();
        let is_redirect = number == protocol::ICMPV6 && u8_at(message, 0) == Some(REDIRECT);
        let quoted = quote(number, message).filter(|_| !self.is_quote);
        let Some((start, packet)) = quoted else {
            // Its options may have been cut off before the one with the packet.
            self.headers.incomplete |= self.cut_short && is_redirect;
            return ICMP_HEADER_LEN;
        };
        let layer = if number == protocol::ICMP {
            Layer::Ipv4
        } else {
            Layer::Ipv6
        };
        let mut walk = Walk {
            is_quote: true,
            ..Walk::new(layer, packet, self.tunnel_key, self.tunnels)
        };
        walk.run();
        let (len, is_incomplete) = (start.saturating_add(walk.at), walk.headers.incomplete);
        // A quote is shorter than its packet: that is no cut of the capture.
        self.headers.incomplete |= self.cut_short && is_incomplete;
        len
    }
}

/// The packet that an ICMP error quotes, as far as it is there, and where it begins in the message;
/// `None` of other messages, or if what is there is no such packet.
fn quote(number: u8, message: &[u8]) -> Option<(usize, &[u8])> {
    let kind = u8_at(message, 0)?;
    let (start, stated_len) = match (number, kind) {
        // RFC 792: source quench, redirect.
        (protocol::ICMP, 4 | 5) => (ICMP_HEADER_LEN, 0),
        // Unreachable, time exceeded, parameter problem: RFC 4884 §4.1 to 4.3, in words.
        (protocol::ICMP, 3 | 11 | 12) => (ICMP_HEADER_LEN, usize::from(u8_at(message, 5)?) << 2),
        // Unreachable, time exceeded: RFC 4884 §4.4, §4.5, in units of 8 bytes.
        (protocol::ICMPV6, 1 | 3) => (ICMP_HEADER_LEN, usize::from(u8_at(message, 4)?) << 3),
        // RFC 4443 §3.2, §3.4: too big, parameter problem.
        (protocol::ICMPV6, 2 | 4) => (ICMP_HEADER_LEN, 0),
        // RFC 4861 §4.5.
        (protocol::ICMPV6, REDIRECT) => redirected(message)?,
        _ => return None,
    };
    // 0 stands for all that follows.
    let len_max = match stated_len {
        0 => QUOTE_MAX,
        len => len.min(QUOTE_MAX),
    };
    let rest = message.get(start..)?;
    let packet = rest.get(..len_max).unwrap_or(rest);
    let version = if number == protocol::ICMP { 4 } else { 6 };
    let is_packet = tunnel::begins_as_ip(packet) && ipv4::version(packet) == Some(version);
    is_packet.then_some((start, packet))
}

/// Where the packet begins that the option "redirected header" of a redirect has, and its length
/// with padding (RFC 4861 §4.6.3).
fn redirected(message: &[u8]) -> Option<(usize, usize)> {
    const OPTION: u8 = 4;
    const OPTION_HEADER_LEN: usize = 8;
    // Behind the target's and the destination's address.
    let mut at = ICMP_HEADER_LEN.wrapping_add(32);
    // Each option takes at least 8 bytes of the message.
    loop {
        let (kind, units) = (u8_at(message, at)?, u8_at(message, at.checked_add(1)?)?);
        let len = usize::from(units).wrapping_mul(8);
        if len == 0 {
            return None;
        }
        if kind == OPTION {
            let start = at.checked_add(OPTION_HEADER_LEN)?;
            // An option without a packet has nothing to find.
            let len = len.checked_sub(OPTION_HEADER_LEN).filter(|len| *len > 0)?;
            return Some((start, len));
        }
        at = at.checked_add(len)?;
    }
}
