//! From the link layer to IP.

use strata_wire::checksum::Sum;
use strata_wire::dissect::protocol;
use strata_wire::ethernet::ethertype::{
    self, ARP, IPV4, IPV6, MPLS, MPLS_MULTICAST, PPPOE_SESSION, QINQ_OLD, RARP, SERVICE_VLAN, VLAN,
};
use strata_wire::fields::{arp, ethernet, sll, vlan};
use strata_wire::{ipv4, ipv6, tunnel};

use super::walk::Walk;

/// VLAN tags, and the most of them in a row.
const TAGS: [u16; 4] = [VLAN, SERVICE_VLAN, QINQ_OLD[0], QINQ_OLD[1]];
const TAGS_MAX: usize = 8;

/// MPLS labels (RFC 3032 §2.1): bytes of each, and the most of them in a row.
const LABEL_LEN: usize = 4;
const LABELS_MAX: usize = 8;

/// Ethernet, IPv4, and the lengths of their addresses, at the start of ARP.
const ARP_OF_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// Interfaces of which the type field of cooked captures is not an EtherType (LINKTYPE_LINUX_SLL): frame relay, 802.11
/// in three forms, netlink.
const ARPHRD_UNTYPED: [u16; 5] = [770, 801, 802, 803, 824];

impl Walk<'_> {
    pub(super) fn ethernet(&mut self) -> Option<()> {
        self.ethernet_address()?;
        self.ethernet_address()?;
        let kind = self.keep_word()?;
        self.ethertype(kind)
    }

    /// What follows an EtherType; a length (IEEE 802.3) ends the packet.
    pub(super) fn ethertype(&mut self, kind: u16) -> Option<()> {
        let mut kind = kind;
        for _ in 0..TAGS_MAX {
            if !TAGS.contains(&kind) {
                break;
            }
            self.keep(vlan::CONTROL.len())?;
            kind = self.keep_word()?;
        }
        match kind {
            IPV4 => self.ipv4(),
            IPV6 => self.ipv6(),
            ARP | RARP => self.arp(),
            MPLS | MPLS_MULTICAST => self.mpls(),
            PPPOE_SESSION => self.pppoe(),
            _ => None,
        }
    }

    fn arp(&mut self) -> Option<()> {
        let is_ipv4 = self.rest().starts_with(&ARP_OF_IPV4);
        self.keep(arp::OPERATION.end)?;
        if is_ipv4 {
            for _ in ["sender", "target"] {
                self.ethernet_address()?;
                self.ipv4_address()?;
            }
        }
        Some(())
    }

    /// Labels, down to the bottom of the stack.
    pub(super) fn mpls(&mut self) -> Option<()> {
        for _ in 0..LABELS_MAX {
            let third = self.rest().get(2).copied();
            self.keep(LABEL_LEN)?;
            if third? & 1 != 0 {
                return self.below_labels();
            }
        }
        None
    }

    /// No field says what follows labels. An Ethernet frame may, with a first byte like that of IP: read as IP, it would
    /// keep its addresses. So IP has to be certain.
    fn below_labels(&mut self) -> Option<()> {
        let rest = self.rest();
        if self.word(ethernet::TYPE).is_some_and(ethertype::is_known) {
            return None;
        }
        match ipv4::version(rest)? {
            4 => {
                let len = ipv4::Packet::new_checked(rest)?.header_len();
                let is_right = Sum::over(&rest[..len]) == 0xffff;
                if is_right { self.ipv4() } else { None }
            }
            6 => {
                let ip = ipv6::Packet::new_checked(rest)?;
                let ends = [ip.source(), ip.destination()];
                let [source, destination] = ends.map(|end| end.to_be_bytes()[0]);
                // Global, unique local, link-local; multicast (IANA).
                let is_usual = matches!(source, 0x20..=0x3f | 0xfc..=0xfe)
                    && matches!(destination, 0x20..=0x3f | 0xfc..=0xff)
                    && protocol::is_known(ip.next_header());
                if is_usual { self.ipv6() } else { None }
            }
            _ => None,
        }
    }

    /// IP, version by the first nibble.
    pub(super) fn raw_ip(&mut self) -> Option<()> {
        match ipv4::version(self.rest())? {
            4 => self.ipv4(),
            6 => self.ipv6(),
            _ => None,
        }
    }

    /// BSD loopback: an address family, in the byte order of any machine unless it is that of the network.
    pub(super) fn address_family(&mut self, network_order: bool) -> Option<()> {
        const LEN: usize = 4;
        let family = match *self.rest() {
            [0, 0, 0, family, ..] => family,
            [family, 0, 0, 0, ..] if !network_order => family,
            _ => return None,
        };
        match family {
            2 => {
                self.keep(LEN)?;
                self.ipv4()
            }
            // AF_INET6 of Linux; NetBSD, OpenBSD; FreeBSD; macOS.
            10 | 24 | 28 | 30 => {
                self.keep(LEN)?;
                self.ipv6()
            }
            _ => None,
        }
    }

    /// Packet type, kind of interface, length of the address, the address in 8 bytes, EtherType.
    pub(super) fn linux_sll(&mut self) -> Option<()> {
        self.keep(2)?;
        let hardware = self.keep_word()?;
        let len = self.keep_word()?;
        self.cooked_address(len)?;
        let kind = self.keep_word()?;
        self.behind_cooked(hardware, kind)
    }

    /// EtherType, reserved, number of the interface, its kind, packet type, length of the address, the address in 8 bytes.
    pub(super) fn linux_sll2(&mut self) -> Option<()> {
        let kind = self.keep_word()?;
        self.fill(0, 2)?;
        self.keep(4)?;
        let hardware = self.keep_word()?;
        self.keep(1)?;
        let len = *self.rest().first()?;
        self.keep(1)?;
        self.cooked_address(len.into())?;
        self.behind_cooked(hardware, kind)
    }

    /// An address of this many bytes, in a field of 8: one of 6 is an Ethernet address.
    fn cooked_address(&mut self, len: u16) -> Option<()> {
        const FIELD_LEN: usize = sll::TYPE.start - 6;
        if len != 6 {
            return self.fill(0, FIELD_LEN);
        }
        self.ethernet_address()?;
        self.fill(0, FIELD_LEN - 6)
    }

    fn behind_cooked(&mut self, hardware: u16, kind: u16) -> Option<()> {
        if ARPHRD_UNTYPED.contains(&hardware) {
            return None;
        }
        self.ethertype(kind)
    }

    /// PPP, with or without the address and control bytes of HDLC framing (RFC 1662 §3.1).
    pub(super) fn ppp(&mut self) -> Option<()> {
        if self.rest().starts_with(&[0xff, 0x03]) {
            self.keep(2)?;
        }
        self.ppp_protocol()
    }

    /// RFC 2516 §4: version and type 1, and code 0 for a session.
    pub(super) fn pppoe(&mut self) -> Option<()> {
        if !self.rest().starts_with(&[0x11, 0]) {
            return None;
        }
        self.keep(tunnel::PPPOE_HEADER_LEN)?;
        self.ppp_protocol()
    }

    /// RFC 1661 §2: the last byte of the number is odd, and alone where it is compressed.
    fn ppp_protocol(&mut self) -> Option<()> {
        let first = *self.rest().first()?;
        let number = if first & 1 == 0 {
            self.keep_word()?
        } else {
            self.keep(1)?;
            first.into()
        };
        // PPP protocol numbers (IANA).
        match number {
            0x0021 => self.ipv4(),
            0x0057 => self.ipv6(),
            0x0281 | 0x0283 => self.mpls(),
            _ => None,
        }
    }
}
