//! A packet that is written anew from its start: the next bytes are kept, filled or replaced.
//!
//! All steps return `None` where the packet ends or is no longer understood. What was written until then is left.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use crate::Addresses;

/// The most tunnels within each other that are followed.
const TUNNELS_MAX: usize = 4;

pub(super) struct Walk<'a> {
    addresses: &'a mut Addresses,
    pub(super) packet: &'a [u8],
    /// Where the innermost IP packet ends by its own length; what follows is padding. From here on, only smaller.
    end: usize,
    /// As many bytes as the walk has come through.
    pub(super) out: &'a mut Vec<u8>,
    tunnels_left: usize,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        addresses: &'a mut Addresses,
        packet: &'a [u8],
        out: &'a mut Vec<u8>,
    ) -> Self {
        out.clear();
        Self {
            addresses,
            packet,
            end: packet.len(),
            out,
            tunnels_left: TUNNELS_MAX,
        }
    }

    /// Where the next byte is.
    pub(super) fn at(&self) -> usize {
        self.out.len()
    }

    /// The bytes that are still to come.
    pub(super) fn rest(&self) -> &'a [u8] {
        &self.packet[self.at()..self.end]
    }

    /// The next bytes end after this many, if not before. Whether they are all here.
    pub(super) fn limit(&mut self, len: usize) -> bool {
        let end = self.at().saturating_add(len);
        let all = end <= self.end;
        self.end = self.end.min(end);
        all
    }

    /// A number in the bytes to come.
    pub(super) fn word(&self, field: Range<usize>) -> Option<u16> {
        let bytes = self.rest().get(field)?;
        Some(u16::from_be_bytes(bytes.try_into().ok()?))
    }

    /// Keeps this many bytes.
    pub(super) fn keep(&mut self, len: usize) -> Option<()> {
        let rest = self.rest();
        self.out.extend_from_slice(&rest[..len.min(rest.len())]);
        if len <= rest.len() { Some(()) } else { None }
    }

    /// Keeps a number.
    pub(super) fn keep_word(&mut self) -> Option<u16> {
        let word = self.word(0..2);
        self.keep(2)?;
        word
    }

    /// Overwrites this many bytes.
    pub(super) fn fill(&mut self, byte: u8, len: usize) -> Option<()> {
        let left = self.rest().len();
        let filled = self.at().saturating_add(len.min(left));
        self.out.resize(filled, byte);
        if len <= left { Some(()) } else { None }
    }

    /// Replaces an Ethernet address.
    pub(super) fn ethernet_address(&mut self) -> Option<()> {
        let address = *self.rest().first_chunk()?;
        let replaced = self.addresses.ethernet(address);
        self.out.extend_from_slice(&replaced);
        Some(())
    }

    /// Replaces an IPv4 address.
    pub(super) fn ipv4_address(&mut self) -> Option<()> {
        let octets: [u8; 4] = *self.rest().first_chunk()?;
        let replaced = self.addresses.ipv4(Ipv4Addr::from(octets));
        self.out.extend_from_slice(&replaced.octets());
        Some(())
    }

    /// Replaces an IPv6 address.
    pub(super) fn ipv6_address(&mut self) -> Option<()> {
        let octets: [u8; 16] = *self.rest().first_chunk()?;
        let replaced = self.addresses.ipv6(Ipv6Addr::from(octets));
        self.out.extend_from_slice(&replaced.octets());
        Some(())
    }

    /// Enters a tunnel, if that is not one too many.
    pub(super) fn enter(&mut self) -> Option<()> {
        self.tunnels_left = self.tunnels_left.checked_sub(1)?;
        Some(())
    }
}
