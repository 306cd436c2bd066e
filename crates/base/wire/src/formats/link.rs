//! Link types: what the first bytes of a captured packet mean.

use std::fmt;

/// A link-layer header type, by its number in capture files (`LINKTYPE_*` of
/// the tcpdump group's registry, <https://www.tcpdump.org/linktypes.html>;
/// draft-ietf-opsawg-pcaplinktype).
///
/// Any number can be carried; only those with a constant here are dissected.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkType(pub u16);

impl LinkType {
    /// BSD loopback: 4 bytes of address family in the host order of the capturing machine.
    pub const NULL: Self = Self(0);
    /// IEEE 802.3 Ethernet.
    pub const ETHERNET: Self = Self(1);
    /// PPP: with or without the address and control bytes of HDLC framing (RFC 1662 §3.1).
    pub const PPP: Self = Self(9);
    /// FDDI (ANSI X3.139-1987): frame control, addresses, then LLC in most frames.
    pub const FDDI: Self = Self(10);
    /// Raw IP, version by the first nibble, as some systems write `DLT_RAW` (12).
    pub const RAW_12: Self = Self(12);
    /// Raw IP, version by the first nibble, as OpenBSD writes `DLT_RAW` (14).
    pub const RAW_14: Self = Self(14);
    /// PPP or Cisco HDLC in HDLC-like framing, told apart by the address byte.
    pub const PPP_HDLC: Self = Self(50);
    /// PPPoE (RFC 2516), from its own header on.
    pub const PPP_ETHER: Self = Self(51);
    /// Raw IP, version by the first nibble.
    pub const RAW: Self = Self(101);
    /// Cisco HDLC (RFC 1547 §4.3.1).
    pub const C_HDLC: Self = Self(104);
    /// IEEE 802.11 without any pseudo-header.
    pub const IEEE802_11: Self = Self(105);
    /// Frame relay: a Q.922 address, then RFC 2427 or Cisco's encapsulation.
    pub const FRELAY: Self = Self(107);
    /// OpenBSD loopback: 4 bytes of address family in network order.
    pub const LOOP: Self = Self(108);
    /// Linux "cooked" capture, version 1.
    pub const LINUX_SLL: Self = Self(113);
    /// IEEE 802.11 with a Prism header.
    pub const IEEE802_11_PRISM: Self = Self(119);
    /// IEEE 802.11 with a radiotap header.
    pub const IEEE802_11_RADIOTAP: Self = Self(127);
    /// IEEE 802.11 with an AVS header.
    pub const IEEE802_11_AVS: Self = Self(163);
    /// Per-Packet Information: a header with the link type of what follows.
    pub const PPI: Self = Self(192);
    /// Raw IPv4.
    pub const IPV4: Self = Self(228);
    /// Raw IPv6.
    pub const IPV6: Self = Self(229);
    /// Linux netfilter messages, with an IP packet as one of their attributes.
    pub const NFLOG: Self = Self(239);
    /// Linux "cooked" capture, version 2.
    pub const LINUX_SLL2: Self = Self(276);

    /// The registry's name without its `LINKTYPE_` prefix, for the types named here.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::NULL => "NULL",
            Self::ETHERNET => "ETHERNET",
            Self::PPP => "PPP",
            Self::FDDI => "FDDI",
            Self::PPP_HDLC => "PPP_HDLC",
            Self::PPP_ETHER => "PPP_ETHER",
            Self::C_HDLC => "C_HDLC",
            Self::FRELAY => "FRELAY",
            Self::PPI => "PPI",
            Self::NFLOG => "NFLOG",
            Self::RAW | Self::RAW_12 | Self::RAW_14 => "RAW",
            Self::IEEE802_11 => "IEEE802_11",
            Self::LOOP => "LOOP",
            Self::LINUX_SLL => "LINUX_SLL",
            Self::IEEE802_11_PRISM => "IEEE802_11_PRISM",
            Self::IEEE802_11_RADIOTAP => "IEEE802_11_RADIOTAP",
            Self::IEEE802_11_AVS => "IEEE802_11_AVS",
            Self::IPV4 => "IPV4",
            Self::IPV6 => "IPV6",
            Self::LINUX_SLL2 => "LINUX_SLL2",
            _ => return None,
        })
    }
}

impl fmt::Display for LinkType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "link type {}", self.0),
        }
    }
}

impl fmt::Debug for LinkType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LinkType({}: {self})", self.0)
    }
}
