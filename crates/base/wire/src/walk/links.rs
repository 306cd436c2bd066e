//! Link headers that few captures have: PPP, Cisco HDLC, frame relay, FDDI, 802.11, PPI, NFLOG.

use super::{Layer, Walk};
use crate::bytes::{be16, be32, le16, le32, u8_at};
use crate::formats::ethernet::{self, ethertype};
use crate::formats::wlan::{self, Control};
use crate::{LinkType, formats::tunnel};

/// A rarely walked link header.
#[derive(Clone, Copy)]
pub(super) enum LinkHeader {
    Ppp,
    Pppoe,
    CiscoHdlc,
    FrameRelay,
    Fddi,
    Wlan,
    Radiotap,
    Prism,
    Avs,
    Ppi,
    Nflog,
}

impl LinkHeader {
    #[inline(never)]
    pub(super) fn of(link: LinkType) -> Option<Self> {
        Some(match link {
            LinkType::PPP | LinkType::PPP_HDLC => Self::Ppp,
            LinkType::PPP_ETHER => Self::Pppoe,
            LinkType::C_HDLC => Self::CiscoHdlc,
            LinkType::FRELAY => Self::FrameRelay,
            LinkType::FDDI => Self::Fddi,
            LinkType::IEEE802_11 => Self::Wlan,
            LinkType::IEEE802_11_RADIOTAP => Self::Radiotap,
            LinkType::IEEE802_11_PRISM => Self::Prism,
            LinkType::IEEE802_11_AVS => Self::Avs,
            LinkType::PPI => Self::Ppi,
            LinkType::NFLOG => Self::Nflog,
            _ => return None,
        })
    }
}

/// RFC 1547 §4.3.1: Cisco HDLC addresses, unicast and broadcast.
const CISCO_ADDRESSES: [u8; 2] = [0x0f, 0x8f];
/// Unnumbered information, in the control field of HDLC.
const UNNUMBERED: u8 = 0x03;
/// Exchange of identification: parameters of the link, no packet.
const XID: u8 = 0xaf;
/// The bridged Ethernet frames among the protocols of 802.1 (RFC 2427 §4.2): with and without
/// a check sequence at their end.
const BRIDGED: [u16; 2] = [0x0001, 0x0007];

impl Walk<'_> {
    pub(super) fn link(&mut self, header: LinkHeader) -> Option<Layer> {
        match header {
            LinkHeader::Ppp => self.ppp(),
            LinkHeader::Pppoe => self.pppoe(),
            LinkHeader::CiscoHdlc => {
                self.take(2)?;
                self.cisco()
            }
            LinkHeader::FrameRelay => self.frame_relay(),
            LinkHeader::Fddi => self.fddi(),
            LinkHeader::Wlan => self.wlan(false),
            LinkHeader::Radiotap => {
                let (len, padded) = wlan::radiotap(self.rest())?;
                self.take(len)?;
                self.wlan(padded)
            }
            LinkHeader::Prism => {
                let len = wlan::prism(self.rest())?;
                self.take(len)?;
                self.wlan(false)
            }
            LinkHeader::Avs => {
                let len = wlan::avs(self.rest())?;
                self.take(len)?;
                self.wlan(false)
            }
            LinkHeader::Ppi => self.ppi(),
            LinkHeader::Nflog => self.nflog(),
        }
    }

    /// PPP in HDLC-like framing (RFC 1662 §3.1), whose address and control field may be absent;
    /// or Cisco HDLC, which has another address.
    fn ppp(&mut self) -> Option<Layer> {
        match *self.rest() {
            [address, ..] if CISCO_ADDRESSES.contains(&address) => {
                self.take(2)?;
                return self.cisco();
            }
            [0xff] | [0xff, UNNUMBERED, ..] => self.take(2)?,
            _ => {}
        }
        Some(Layer::PppProtocol)
    }

    /// RFC 2516 §4: code 0 is a session, the others are discovery.
    fn pppoe(&mut self) -> Option<Layer> {
        let code = u8_at(self.rest(), 1);
        self.take(tunnel::PPPOE_HEADER_LEN)?;
        match code? {
            0 => Some(Layer::PppProtocol),
            _ => Some(Layer::Done),
        }
    }

    /// Cisco's protocol field: an EtherType, except for numbers to which Cisco gave a meaning.
    fn cisco(&mut self) -> Option<Layer> {
        /// SLARP, which asks for addresses and keeps the line alive.
        const SLARP: u16 = ethertype::RARP;
        let kind = be16(self.rest(), 0);
        self.take(2)?;
        match kind? {
            ..=ethernet::LENGTH_MAX | SLARP => Some(Layer::Done),
            kind => Some(Layer::EtherType(kind)),
        }
    }

    /// A Q.922 address (ITU-T Q.922 §3.3: two to four bytes, of which the last is odd), then
    /// RFC 2427, or Cisco's encapsulation, which has no control field.
    fn frame_relay(&mut self) -> Option<Layer> {
        let rest = self.rest();
        let last = rest.iter().take(4).position(|byte| byte & 1 != 0)?;
        if last == 0 {
            return None;
        }
        // DLCI 0 is for signalling.
        let signalling = rest[0] & 0xfc == 0 && rest[1] & 0xf0 == 0;
        // At most 4.
        self.take(last.wrapping_add(1))?;
        match u8_at(self.rest(), 0)? {
            UNNUMBERED => {
                self.take(1)?;
                self.nlpid()
            }
            XID => Some(Layer::Done),
            _ if signalling => Some(Layer::Done),
            _ => self.cisco(),
        }
    }

    /// Frame control, destination, source (ANSI X3.139-1987); LLC in asynchronous and synchronous
    /// LLC frames (RFC 1390), and nothing that is known in frames of the ring itself.
    fn fddi(&mut self) -> Option<Layer> {
        const LEN: usize = 13;
        /// Class, address length, format: LLC with long addresses, whatever the class.
        const FORMAT: u8 = 0x70;
        const LLC: u8 = 0x50;
        let rest = self.rest();
        let control = u8_at(rest, 0);
        let macs = wlan::mac(rest, 1).zip(wlan::mac(rest, 7));
        self.macs = macs.map(|(destination, source)| (destination, source, 0));
        self.take(LEN)?;
        if control? & FORMAT != LLC {
            return Some(Layer::Done);
        }
        let next = self.llc()?;
        if let (Some((_, _, outer)), Layer::EtherType(kind)) = (&mut self.macs, next) {
            *outer = kind;
        }
        Some(next)
    }

    /// What RFC 2427 §3 puts after the control field: padding, and a network layer protocol
    /// identifier (ISO/IEC TR 9577).
    fn nlpid(&mut self) -> Option<Layer> {
        if u8_at(self.rest(), 0)? == 0 {
            self.take(1)?;
        }
        let identifier = u8_at(self.rest(), 0)?;
        self.take(1)?;
        match identifier {
            0xcc => Some(Layer::Ipv4),
            0x8e => Some(Layer::Ipv6),
            // RFC 1973 §3.
            0xcf => Some(Layer::PppProtocol),
            // SNAP: organisation and protocol.
            0x80 => {
                let (first, last) = (be16(self.rest(), 0), be32(self.rest(), 1));
                self.take(5)?;
                let (first, last) = (first?, last?);
                let kind = u16::try_from(last & 0xffff).ok()?;
                match (first, last >> 16 & 0xff) {
                    (0, 0) if kind > ethernet::LENGTH_MAX => Some(Layer::EtherType(kind)),
                    (0x0080, 0xc2) if BRIDGED.contains(&kind) => Some(Layer::Ethernet),
                    _ => Some(Layer::Done),
                }
            }
            _ => Some(Layer::Done),
        }
    }

    /// An 802.11 frame: its MAC header, and LLC if unencrypted data follows. For an aggregate, the
    /// first subframe.
    fn wlan(&mut self, padded: bool) -> Option<Layer> {
        let rest = self.rest();
        let control = Control::read(rest)?;
        let len = control.header_len();
        let frame = rest.get(..len).unwrap_or(&[]);
        let data = control.has_readable_data(frame);
        let aggregate = control.is_aggregate(frame);
        let macs = control.addresses(frame);
        self.macs = macs.map(|(destination, source)| (destination, source, 0));
        self.take(len)?;
        if !data {
            return Some(Layer::Done);
        }
        if padded {
            self.take(len.wrapping_neg() & 3)?;
        }
        if aggregate {
            // IEEE 802.11-2020 §9.3.2.2.2: destination, source, length.
            let rest = self.rest();
            let macs = wlan::mac(rest, 0).zip(wlan::mac(rest, 6));
            let len = be16(rest, 12);
            self.take(14)?;
            self.macs = macs.map(|(destination, source)| (destination, source, 0));
            self.limit(usize::from(len?));
        }
        let next = self.llc()?;
        if let (Some((_, _, outer)), Layer::EtherType(kind)) = (&mut self.macs, next) {
            *outer = kind;
        }
        Some(next)
    }

    /// Per-Packet Information: version 0, flags, length and link type, little-endian.
    fn ppi(&mut self) -> Option<Layer> {
        let rest = self.rest();
        let (version, len, link) = (u8_at(rest, 0)?, le16(rest, 2)?, le32(rest, 4)?);
        if version != 0 || len < 8 {
            return None;
        }
        self.take(usize::from(len))?;
        Some(Layer::of(LinkType(u16::try_from(link).ok()?)))
    }

    /// A Linux netfilter message: the address family, then attributes, one of which is the packet
    /// (`NFULA_PAYLOAD` of linux/netfilter/nfnetlink_log.h). Numbers have the byte order of the
    /// capturing machine, which the first kind reveals: there are few kinds, and how much of the packet was captured does
    /// not matter.
    fn nflog(&mut self) -> Option<Layer> {
        const PAYLOAD: u16 = 9;
        /// More than there are.
        const KINDS: u16 = 64;
        /// Without the two high bits, which are flags (`NLA_TYPE_MASK`).
        const KIND_MASK: u16 = 0x3fff;
        let family = u8_at(self.rest(), 0);
        self.take(4)?;
        let packet = match family? {
            2 => Layer::Ipv4,
            10 => Layer::Ipv6,
            _ => Layer::Done,
        };
        let rest = self.rest();
        let is_kind = |kind: u16| (1..KINDS).contains(&(kind & KIND_MASK));
        let swapped = !le16(rest, 2).is_some_and(is_kind) && be16(rest, 2).is_some_and(is_kind);
        let read = if swapped { be16 } else { le16 };
        while !self.rest().is_empty() {
            let (len, kind) = (read(self.rest(), 0), read(self.rest(), 2));
            let (Some(len), Some(kind)) = (len.map(usize::from), kind) else {
                // Fewer than four bytes: they end the walk.
                self.take(4)?;
                return None;
            };
            if len < 4 {
                self.take(4)?;
                return None;
            }
            if kind & KIND_MASK == PAYLOAD {
                self.take(4)?;
                self.limit(len.saturating_sub(4));
                return Some(packet);
            }
            self.take(len.next_multiple_of(4))?;
        }
        // Without a packet, or cut short before it.
        None
    }
}
