//! Packets, header by header.

mod links;
mod network;
mod transport;
mod tunnel;
mod walk;

use strata_wire::LinkType;

use crate::{Addresses, Key};
use walk::Walk;

/// What is left of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Left {
    /// Its beginning, up to the end of the last header that is understood: no byte, if not even the first one is.
    Beginning,
    /// No byte, because packets of this link type are not understood.
    Nothing,
}

/// Anonymises packets under a key: equal bytes become equal bytes, in whatever order packets come.
pub struct Anonymizer {
    addresses: Addresses,
}

impl Anonymizer {
    /// All packets under this key. Takes at most the memory of [`Addresses`].
    #[must_use]
    pub fn new(key: &Key) -> Self {
        let addresses = Addresses::new(key);
        Self { addresses }
    }

    /// The addresses, for what names them outside of packets.
    pub fn addresses(&mut self) -> &mut Addresses {
        &mut self.addresses
    }

    /// Writes the beginning of a packet to `out`, which is emptied first. Each byte is at its place in the packet, which
    /// may have been cut anywhere; `out` gets no longer than the packet. Lengths in headers stay those of the original.
    ///
    /// Checksums of IP headers are computed anew if they were right, and are 0 otherwise. Those of TCP, UDP and ICMP
    /// tell of the bytes that they cover: so they are 0, unless all of these bytes are left and the checksum was right.
    /// Those of SCTP and GRE are 0.
    pub fn packet(&mut self, link: LinkType, packet: &[u8], out: &mut Vec<u8>) -> Left {
        let mut walk = Walk::new(&mut self.addresses, packet, out);
        // Each ends the packet where it does not understand it.
        let _ = match link {
            LinkType::ETHERNET => walk.ethernet(),
            LinkType::RAW | LinkType::RAW_12 | LinkType::RAW_14 => walk.raw_ip(),
            LinkType::IPV4 => walk.ipv4(),
            LinkType::IPV6 => walk.ipv6(),
            LinkType::NULL => walk.address_family(false),
            LinkType::LOOP => walk.address_family(true),
            LinkType::LINUX_SLL => walk.linux_sll(),
            LinkType::LINUX_SLL2 => walk.linux_sll2(),
            LinkType::PPP => walk.ppp(),
            LinkType::PPP_ETHER => walk.pppoe(),
            _ => return Left::Nothing,
        };
        Left::Beginning
    }
}
