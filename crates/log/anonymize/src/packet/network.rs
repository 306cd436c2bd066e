//! IPv4 and IPv6, up to what they carry.

use std::ops::Range;

use strata_wire::checksum::Sum;
use strata_wire::dissect::protocol;
use strata_wire::fields;
use strata_wire::{ipv4, ipv6};

use super::walk::Walk;

/// The option of one byte that says nothing (RFC 791 §3.1).
const IPV4_NOP: u8 = 1;

/// Options of IPv6 that say nothing, of one byte and of as many as they say (RFC 8200 §4.2).
const PAD_1: u8 = 0;
const PAD_N: u8 = 1;
/// Bytes of the largest [`PAD_N`].
const PAD_N_MAX: usize = 257;

/// The most extension headers of a packet.
const EXTENSIONS_MAX: usize = 8;
/// RFC 8200 §4.5.
const FRAGMENT_LEN: usize = 8;

/// What IP says of the bytes that it carries.
pub(super) struct Carried {
    /// Where both addresses are.
    pub(super) addresses: Range<usize>,
    /// Where these bytes end, if all of them are here and in no other fragment.
    pub(super) end: Option<usize>,
}

impl Walk<'_> {
    pub(super) fn ipv4(&mut self) -> Option<()> {
        let (from, rest) = (self.at(), self.rest());
        let first = *rest.first()?;
        let header_len = usize::from(fields::ipv4::header_len(first));
        let options_len = header_len.checked_sub(ipv4::HEADER_LEN_MIN)?;
        if first >> 4 != 4 {
            return None;
        }
        self.keep(fields::ipv4::CHECKSUM.start)?;
        self.fill(0, fields::ipv4::CHECKSUM.len())?;
        self.ipv4_address()?;
        self.ipv4_address()?;
        self.fill(IPV4_NOP, options_len)?;
        let header = rest.get(..header_len)?;
        if Sum::over(header) == 0xffff {
            let header = &mut self.out[from..];
            let sum = ipv4::checksum(header);
            header[fields::ipv4::CHECKSUM].copy_from_slice(&sum.to_be_bytes());
        }
        let ip = ipv4::Packet::new_checked(header)?;
        let all_here = match usize::from(ip.total_len()) {
            // Segmentation was left to the card.
            0 => false,
            stated => self.limit(stated.checked_sub(header_len)?),
        };
        if ip.fragment_offset() != 0 {
            return None;
        }
        let addresses = fields::ipv4::SOURCE.start..fields::ipv4::DESTINATION.end;
        let carried = self.carried(from, addresses, all_here && !ip.more_fragments());
        self.transport(ip.protocol(), &carried)
    }

    pub(super) fn ipv6(&mut self) -> Option<()> {
        let (from, rest) = (self.at(), self.rest());
        if ipv4::version(rest)? != 6 {
            return None;
        }
        self.keep(fields::ipv6::SOURCE.start)?;
        self.ipv6_address()?;
        self.ipv6_address()?;
        let ip = ipv6::Packet::new_checked(rest)?;
        let mut all_here = match usize::from(ip.payload_len()) {
            // A jumbogram, or segmentation was left to the card.
            0 => false,
            stated => self.limit(stated),
        };
        let mut next = ip.next_header();
        for _ in 0..EXTENSIONS_MAX {
            let following = *self.rest().first()?;
            match next {
                protocol::HOP_BY_HOP | protocol::DESTINATION_OPTIONS => self.options()?,
                protocol::ROUTING => self.routing()?,
                protocol::FRAGMENT => {
                    // RFC 8200 §4.5: the offset in 13 bits, two reserved bits, more fragments.
                    let offset = self.word(2..4);
                    self.keep(FRAGMENT_LEN)?;
                    if offset? >> 3 != 0 {
                        return None;
                    }
                    all_here &= offset? & 1 == 0;
                }
                _ => break,
            }
            next = following;
        }
        let addresses = fields::ipv6::SOURCE.start..fields::ipv6::DESTINATION.end;
        let carried = self.carried(from, addresses, all_here);
        self.transport(next, &carried)
    }

    /// What an IP header at `from` carries, which ends where the bytes to come end.
    fn carried(&self, from: usize, addresses: Range<usize>, all_here: bool) -> Carried {
        let at = |offset: usize| offset.saturating_add(from);
        let end = self.at().saturating_add(self.rest().len());
        Carried {
            addresses: at(addresses.start)..at(addresses.end),
            end: all_here.then_some(end),
        }
    }

    /// Hop-by-hop or destination options (RFC 8200 §4.3, §4.6): as many bytes, but of padding.
    fn options(&mut self) -> Option<()> {
        let mut left = self.extension_len()?.checked_sub(2)?;
        self.keep(2)?;
        while left > 1 {
            let len = left.min(PAD_N_MAX);
            let inside = len.checked_sub(2)?;
            self.fill(PAD_N, 1)?;
            self.fill(u8::try_from(inside).ok()?, 1)?;
            self.fill(0, inside)?;
            left = left.checked_sub(len)?;
        }
        self.fill(PAD_1, left)
    }

    /// A routing header (RFC 8200 §4.4): type and segments left are kept, the rest is 0.
    fn routing(&mut self) -> Option<()> {
        const KEPT: usize = 4;
        let left = self.extension_len()?.checked_sub(KEPT)?;
        self.keep(KEPT)?;
        self.fill(0, left)
    }

    /// Bytes of an extension header: 8, and 8 for each of its second byte. `None` if that is cut.
    fn extension_len(&self) -> Option<usize> {
        let eights = usize::from(*self.rest().get(1)?);
        eights.checked_add(1)?.checked_mul(8)
    }
}
