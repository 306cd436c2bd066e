//! Where the headers are, as far as the expression has been parsed.
//!
//! `vlan`, `mpls`, `pppoes` and `geneve` move the headers for all tests to
//! their right; [`Layers`] is what they change.

use strata_wire::LinkType;

use crate::program::{NO_REGISTER, Place};

/// The register with the start of the 802.11 header after a radio header.
pub(crate) const WLAN_LINK: u8 = 0;
/// The register with the end of the 802.11 header.
pub(crate) const WLAN_PAYLOAD: u8 = 1;
/// The registers from here on are free.
pub(crate) const FIRST_FREE: u8 = 2;

/// The innermost link layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Ethernet,
    LinuxCooked,
    LinuxCooked2,
    Null,
    Loop,
    Raw,
    RawIp4,
    RawIp6,
    Wlan(Radio),
    /// Of a capture, or inside a `PPPoE` session.
    Ppp,
    /// PPP in HDLC-like framing that may be Cisco HDLC, or `PPPoE`: libpcap does not look for
    /// MPLS there.
    PppOther,
    CiscoHdlc,
    FrameRelay,
    Fddi,
    Unknown,
}

/// What precedes an 802.11 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Radio {
    None,
    Radiotap,
    Prism,
    Avs,
    Ppi,
}

/// A position in the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offset {
    pub(crate) register: u8,
    pub(crate) constant: u32,
}

impl Offset {
    pub(crate) const fn fixed(constant: u32) -> Self {
        Self {
            register: NO_REGISTER,
            constant,
        }
    }

    pub(crate) fn place(self, more: u32) -> Place {
        Place {
            register: self.register,
            after_ip: false,
            ip_offset: 0,
            offset: self.constant.wrapping_add(more),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Layers {
    /// The link type that the program is for.
    pub(crate) outer: LinkType,
    pub(crate) link: Link,
    pub(crate) link_header: Offset,
    pub(crate) link_type: Offset,
    /// After the link header; an LLC header, if there is one.
    pub(crate) payload: Offset,
    /// From the payload to the network header.
    pub(crate) network: u32,
    /// The same with an LLC header without SNAP in between.
    pub(crate) network_no_snap: u32,
    pub(crate) mpls_labels: u32,
    /// Inside Geneve, where the link header may be missing.
    pub(crate) in_geneve: bool,
    /// Where in the link header a tag is that is looked through: bytes from there on are after it.
    pub(crate) tag_at: Option<u32>,
}

/// Bytes of a VLAN tag.
pub(crate) const TAG_LEN: u32 = 4;

impl Layers {
    pub(crate) fn new(outer: LinkType) -> Self {
        let link = match outer {
            LinkType::ETHERNET => Link::Ethernet,
            LinkType::LINUX_SLL => Link::LinuxCooked,
            LinkType::LINUX_SLL2 => Link::LinuxCooked2,
            LinkType::NULL => Link::Null,
            LinkType::LOOP => Link::Loop,
            LinkType::RAW | LinkType::RAW_12 | LinkType::RAW_14 => Link::Raw,
            LinkType::IPV4 => Link::RawIp4,
            LinkType::IPV6 => Link::RawIp6,
            LinkType::IEEE802_11 => Link::Wlan(Radio::None),
            LinkType::IEEE802_11_RADIOTAP => Link::Wlan(Radio::Radiotap),
            LinkType::IEEE802_11_PRISM => Link::Wlan(Radio::Prism),
            LinkType::IEEE802_11_AVS => Link::Wlan(Radio::Avs),
            LinkType::PPI => Link::Wlan(Radio::Ppi),
            LinkType::PPP => Link::Ppp,
            LinkType::PPP_HDLC | LinkType::PPP_ETHER => Link::PppOther,
            LinkType::C_HDLC => Link::CiscoHdlc,
            LinkType::FRELAY => Link::FrameRelay,
            LinkType::FDDI => Link::Fddi,
            _ => Link::Unknown,
        };
        // Link type field, payload, network header after the payload, the same without SNAP.
        let (link_type, payload, network, network_no_snap) = match link {
            Link::Ethernet => (12, 14, 0, 3),
            Link::LinuxCooked => (14, 16, 0, 0),
            Link::LinuxCooked2 => (0, 20, 0, 0),
            Link::Null | Link::Loop => (0, 4, 0, 0),
            Link::Wlan(_) => (6, 0, 8, 3),
            // Frame control and two addresses, then LLC as in 802.11.
            Link::Fddi => (19, 13, 8, 3),
            // RFC 2516 section 4: six bytes before the protocol of PPP.
            Link::PppOther if outer == LinkType::PPP_ETHER => (6, 8, 0, 0),
            // Address and control field, whether present or not.
            Link::Ppp | Link::PppOther | Link::CiscoHdlc => (2, 4, 0, 0),
            // In frame relay, libpcap takes the first byte for that of the network header.
            _ => (0, 0, 0, 0),
        };
        let (link_register, payload_register) = match link {
            Link::Wlan(Radio::None) => (NO_REGISTER, WLAN_PAYLOAD),
            Link::Wlan(_) => (WLAN_LINK, WLAN_PAYLOAD),
            _ => (NO_REGISTER, NO_REGISTER),
        };
        Self {
            outer,
            link,
            link_header: Offset {
                register: link_register,
                constant: 0,
            },
            link_type: Offset {
                register: payload_register,
                constant: link_type,
            },
            payload: Offset {
                register: payload_register,
                constant: payload,
            },
            network,
            network_no_snap,
            mpls_labels: 0,
            in_geneve: false,
            tag_at: None,
        }
    }

    /// From the link header to its addresses, where destination and source follow each other.
    pub(crate) fn addresses(&self) -> u32 {
        u32::from(self.link == Link::Fddi)
    }

    /// A field of the network header.
    pub(crate) fn network(&self, offset: u32) -> Place {
        self.payload.place(self.network.wrapping_add(offset))
    }

    /// A field after an LLC header without SNAP.
    pub(crate) fn network_no_snap(&self, offset: u32) -> Place {
        self.payload
            .place(self.network_no_snap.wrapping_add(offset))
    }

    /// A field after the IPv4 header.
    pub(crate) fn after_ip(&self, offset: u32) -> Place {
        let header = self.network(0);
        Place {
            after_ip: true,
            ip_offset: header.offset,
            offset: header.offset.wrapping_add(offset),
            ..header
        }
    }

    /// A field of the label before the network header (RFC 3032 section 2.1).
    pub(crate) fn last_label(&self, offset: u32) -> Place {
        self.network(offset.wrapping_sub(4))
    }

    /// Whether packets may have a VLAN tag, by which the rest of the packet begins later.
    pub(crate) fn has_tags(&self) -> bool {
        matches!(
            self.link,
            Link::Ethernet | Link::LinuxCooked | Link::LinuxCooked2
        )
    }

    /// One tag is looked through.
    pub(crate) fn look_through_tag(&mut self) {
        let at = match self.link {
            Link::Ethernet => 12,
            _ => self.payload.constant,
        };
        self.enter_vlan();
        self.tag_at = Some(at);
    }

    pub(crate) fn enter_vlan(&mut self) {
        self.link_type = match self.link {
            // The type that was before the payload is at its end now, wherever it was.
            Link::LinuxCooked2 => Offset {
                constant: self.payload.constant.wrapping_add(2),
                ..self.payload
            },
            _ => Offset {
                constant: self.link_type.constant.wrapping_add(4),
                ..self.link_type
            },
        };
        self.payload.constant = self.payload.constant.wrapping_add(4);
    }

    pub(crate) fn enter_mpls(&mut self) {
        self.network = self.network.wrapping_add(4);
        self.network_no_snap = self.network_no_snap.wrapping_add(4);
        self.mpls_labels = self.mpls_labels.saturating_add(1);
    }

    /// RFC 2516 section 4: six bytes, then PPP with two bytes of protocol.
    pub(crate) fn enter_pppoe(&mut self) {
        let constant = self
            .payload
            .constant
            .wrapping_add(self.network)
            .wrapping_add(6);
        let header = Offset {
            register: self.payload.register,
            constant,
        };
        self.link = Link::Ppp;
        self.link_header = header;
        self.link_type = header;
        self.payload = Offset {
            constant: constant.wrapping_add(2),
            ..header
        };
        self.network = 0;
        self.network_no_snap = 0;
        self.in_geneve = false;
    }

    /// `first` is the first of the three registers of [`crate::program::Step::Geneve`].
    pub(crate) fn enter_geneve(&mut self, first: u8) {
        self.link = Link::Ethernet;
        self.link_type = Offset {
            register: first,
            constant: 0,
        };
        self.link_header = Offset {
            register: first.saturating_add(1),
            constant: 0,
        };
        self.payload = Offset {
            register: first.saturating_add(2),
            constant: 0,
        };
        self.network = 0;
        self.network_no_snap = 3;
        self.in_geneve = true;
    }

    /// The name for messages.
    pub(crate) fn link_words(&self) -> String {
        match self.link {
            Link::Ppp if self.outer != LinkType::PPP => "PPP inside PPPoE".to_owned(),
            Link::Ethernet if self.in_geneve => "Ethernet inside Geneve".to_owned(),
            _ => self.outer.to_string(),
        }
    }
}
