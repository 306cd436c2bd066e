//! Tests on the link layer, and the encapsulations that move it.

use crate::ast::{Llc, Relation, Test, Width};
use crate::compile::layers::{Link, Radio};
use crate::compile::{Compiler, Exits};
use crate::error::CompileError;

/// IEEE 802.3 clause 3.2.6: at most this is a length, more is an `EtherType`.
const LENGTH_MAX: u32 = 1500;

/// LLC SAPs, numbers of the IEEE Registration Authority: IP, NetBEUI, ISO network layer. libpcap
/// compares source and destination.
const SYMMETRIC_SAPS: [u32; 3] = [0x06, 0xf0, ISO_SAP];
const ISO_SAP: u32 = 0xfe;
const IPX_SAP: u32 = 0xe0;
const APPLETALK: u32 = 0x809b;
const APPLETALK_ARP: u32 = 0x80f3;
const IPX: u32 = 0x8137;
/// `AppleTalk`'s organisation code; that of an encapsulated `EtherType` is zero.
const APPLE: u32 = 0x08_0007;

impl Compiler {
    /// The network protocol by its `EtherType` or LLC SAP, as this link spells it.
    pub(crate) fn ether_proto(
        &mut self,
        test: &Test,
        number: u32,
        exits: Exits,
    ) -> Result<(), CompileError> {
        if self.layers.mpls_labels > 0 && self.layers.link != Link::Unknown {
            return self.mpls_proto(test, number, exits);
        }
        let link_type = self.layers.link_type.place(0);
        match self.layers.link {
            Link::Ethernet => self.ethernet_proto(number, exits),
            Link::LinuxCooked => self.cooked_proto(number, exits),
            Link::LinuxCooked2 => self.equal(link_type, Width::Half, number, exits),
            Link::Wlan(_) => {
                let llc = self.label();
                self.data_frame(exits.and_then(llc))?;
                self.bind(llc);
                self.llc_proto(number, exits)
            }
            // Whatever the frame control says, as in libpcap.
            Link::Fddi => self.llc_proto(number, exits),
            Link::Ppp | Link::PppOther => {
                self.equal(link_type, Width::Half, ppp_protocol(number), exits)
            }
            Link::CiscoHdlc => {
                let number = if number == ISO_SAP {
                    ISO_SAP << 8 | ISO_SAP
                } else {
                    number
                };
                self.equal(link_type, Width::Half, number, exits)
            }
            Link::FrameRelay => self.frame_relay_proto(number, exits),
            Link::Null | Link::Loop => self.loopback_proto(number, exits),
            Link::Raw => {
                let version = match number {
                    0x0800 => 0x40,
                    0x86dd => 0x60,
                    _ => return self.constant(false, exits),
                };
                let place = self.layers.link_header.place(0);
                self.field(place, Width::Byte, 0xf0, Relation::Equal, version, exits)
            }
            Link::RawIp4 => self.constant(number == 0x0800, exits),
            Link::RawIp6 => self.constant(number == 0x86dd, exits),
            Link::Unknown => Err(self.unsupported(test, "")),
        }
    }

    /// The address family of the capturing system: `AF_INET` is 2 everywhere; `AF_INET6` is 30
    /// on macOS, 24 on NetBSD and OpenBSD, 28 on FreeBSD. Not 10: on Linux there is no such link.
    fn loopback_proto(&mut self, number: u32, exits: Exits) -> Result<(), CompileError> {
        let families: &[u32] = match number {
            0x0800 => &[2],
            0x86dd => &[30, 24, 28],
            _ => return self.constant(false, exits),
        };
        // In a file it has the byte order of the capturing machine, which the file says and the
        // packet does not: both are taken.
        let orders = if self.layers.link == Link::Null { 2 } else { 1 };
        let place = self.layers.link_header.place(0);
        self.sequence(
            families.len().saturating_mul(orders),
            exits,
            false,
            |this, index, exits| {
                let family = match index.checked_sub(families.len()) {
                    Some(again) => families[again].swap_bytes(),
                    None => families[index],
                };
                this.equal(place, Width::Word, family, exits)
            },
        )
    }

    /// The network layer protocol identifier (RFC 2427 section 3.1) after an address of two bytes
    /// and the control field: other forms are not recognised, as in libpcap.
    fn frame_relay_proto(&mut self, number: u32, exits: Exits) -> Result<(), CompileError> {
        let identifiers: &[u32] = match number {
            0x0800 => &[0xcc],
            0x86dd => &[0x8e],
            // CLNP, ES-IS, IS-IS.
            ISO_SAP => &[0x81, 0x82, 0x83],
            _ => return self.constant(false, exits),
        };
        self.sequence(identifiers.len(), exits, false, |this, index, exits| {
            this.nlpid(identifiers[index], exits)
        })
    }

    fn nlpid(&mut self, identifier: u32, exits: Exits) -> Result<(), CompileError> {
        let place = self.layers.link_header.place(2);
        self.equal(place, Width::Half, 0x0300 | identifier, exits)
    }

    fn ethernet_proto(&mut self, number: u32, exits: Exits) -> Result<(), CompileError> {
        let link_type = self.layers.link_type.place(0);
        let with_type = [IPX_SAP, APPLETALK, APPLETALK_ARP].contains(&number);
        if number > LENGTH_MAX && !with_type {
            return self.equal(link_type, Width::Half, number, exits);
        }
        if with_type {
            let number = if number == IPX_SAP { IPX } else { number };
            let other = self.label();
            self.equal(link_type, Width::Half, number, exits.or_else(other))?;
            self.bind(other);
        }
        let llc = self.label();
        let long = exits.unless(llc);
        self.field(
            link_type,
            Width::Half,
            u32::MAX,
            Relation::Greater,
            LENGTH_MAX,
            long,
        )?;
        self.bind(llc);
        match number {
            IPX_SAP => {
                let (sap, raw) = (self.label(), self.label());
                self.snap(0, IPX, exits.or_else(sap))?;
                self.bind(sap);
                let place = self.layers.payload.place(0);
                self.equal(place, Width::Byte, IPX_SAP, exits.or_else(raw))?;
                self.bind(raw);
                self.equal(place, Width::Half, 0xffff, exits)
            }
            APPLETALK => self.snap(APPLE, APPLETALK, exits),
            APPLETALK_ARP => self.snap(0, APPLETALK_ARP, exits),
            _ if SYMMETRIC_SAPS.contains(&number) => self.both_saps(number, exits),
            _ => {
                let place = self.layers.link_type.place(2);
                self.equal(place, Width::Byte, number, exits)
            }
        }
    }

    /// Linux cooked captures: protocol 1 is raw IPX, 4 is LLC (`ETH_P_802_3`, `ETH_P_802_2`).
    fn cooked_proto(&mut self, number: u32, exits: Exits) -> Result<(), CompileError> {
        let link_type = self.layers.link_type.place(0);
        let with_type = [IPX_SAP, APPLETALK, APPLETALK_ARP].contains(&number);
        if number > LENGTH_MAX && !with_type {
            return self.equal(link_type, Width::Half, number, exits);
        }
        let types: &[u32] = match number {
            IPX_SAP => &[IPX, 1],
            APPLETALK => &[APPLETALK],
            APPLETALK_ARP => &[APPLETALK_ARP],
            _ => &[],
        };
        for known in types {
            let other = self.label();
            self.equal(link_type, Width::Half, *known, exits.or_else(other))?;
            self.bind(other);
        }
        let llc = self.label();
        self.equal(link_type, Width::Half, 4, exits.and_then(llc))?;
        self.bind(llc);
        let place = self.layers.payload.place(0);
        match number {
            IPX_SAP => {
                let snap = self.label();
                self.equal(place, Width::Byte, IPX_SAP, exits.or_else(snap))?;
                self.bind(snap);
                self.snap(0, IPX, exits)
            }
            APPLETALK => self.snap(APPLE, APPLETALK, exits),
            APPLETALK_ARP => self.snap(0, APPLETALK_ARP, exits),
            _ if SYMMETRIC_SAPS.contains(&number) => self.both_saps(number, exits),
            _ => self.equal(place, Width::Byte, number, exits),
        }
    }

    /// Links where every packet starts with an LLC header.
    fn llc_proto(&mut self, number: u32, exits: Exits) -> Result<(), CompileError> {
        let place = self.layers.payload.place(0);
        match number {
            APPLETALK => self.snap(APPLE, APPLETALK, exits),
            _ if SYMMETRIC_SAPS.contains(&number) => self.both_saps(number, exits),
            0..=LENGTH_MAX => self.equal(place, Width::Byte, number, exits),
            _ => self.equal(self.layers.link_type.place(0), Width::Half, number, exits),
        }
    }

    fn both_saps(&mut self, sap: u32, exits: Exits) -> Result<(), CompileError> {
        self.equal(
            self.layers.payload.place(0),
            Width::Half,
            sap << 8 | sap,
            exits,
        )
    }

    /// An LLC and a SNAP header (IEEE 802-2014 9.2).
    fn snap(&mut self, oui: u32, protocol: u32, exits: Exits) -> Result<(), CompileError> {
        let payload = self.layers.payload;
        let first = self.label();
        let rest = (oui & 0xffff) << 16 | protocol;
        self.equal(payload.place(4), Width::Word, rest, exits.and_then(first))?;
        self.bind(first);
        self.equal(
            payload.place(0),
            Width::Word,
            0xaaaa_0300 | oui >> 16,
            exits,
        )
    }

    /// Inside MPLS only the label says that it is the last, and only the packet what it is.
    fn mpls_proto(&mut self, test: &Test, number: u32, exits: Exits) -> Result<(), CompileError> {
        let version = match number {
            0x0800 => 0x40,
            0x86dd => 0x60,
            _ => {
                return Err(
                    self.unsupported(test, "after 'mpls' only IPv4 and IPv6 can be distinguished")
                );
            }
        };
        let bottom = self.label();
        let more = exits.and_then(bottom);
        self.field(
            self.layers.last_label(2),
            Width::Byte,
            1,
            Relation::Equal,
            1,
            more,
        )?;
        self.bind(bottom);
        self.field(
            self.layers.network(0),
            Width::Byte,
            0xf0,
            Relation::Equal,
            version,
            exits,
        )
    }

    pub(crate) fn iso_proto(
        &mut self,
        test: &Test,
        number: u32,
        exits: Exits,
    ) -> Result<(), CompileError> {
        if self.layers.link == Link::FrameRelay {
            return self.nlpid(number, exits);
        }
        let inner = self.label();
        self.ether_proto(test, ISO_SAP, exits.and_then(inner))?;
        self.bind(inner);
        // On Cisco HDLC a byte of padding comes first.
        let padding = u32::from(self.layers.link == Link::CiscoHdlc);
        let place = self.layers.network_no_snap(padding);
        self.equal(place, Width::Byte, number, exits)
    }

    pub(crate) fn isis_proto(
        &mut self,
        test: &Test,
        number: u32,
        exits: Exits,
    ) -> Result<(), CompileError> {
        let inner = self.label();
        self.iso_proto(test, 0x83, exits.and_then(inner))?;
        self.bind(inner);
        self.equal(self.layers.network_no_snap(4), Width::Byte, number, exits)
    }

    pub(crate) fn llc(&mut self, test: &Test, kind: Llc, exits: Exits) -> Result<(), CompileError> {
        let inner = self.label();
        let enter = if kind == Llc::Any {
            exits
        } else {
            exits.and_then(inner)
        };
        match self.layers.link {
            Link::Ethernet => {
                let short = self.label();
                let long = exits.unless(short);
                let link_type = self.layers.link_type.place(0);
                self.field(
                    link_type,
                    Width::Half,
                    u32::MAX,
                    Relation::Greater,
                    LENGTH_MAX,
                    long,
                )?;
                self.bind(short);
                // Raw IPX has a length but no LLC header.
                let raw_ipx = Exits {
                    yes: enter.no,
                    no: enter.yes,
                };
                self.equal(self.layers.payload.place(0), Width::Half, 0xffff, raw_ipx)?;
            }
            Link::Wlan(_) => self.data_frame(enter)?,
            Link::Fddi if kind == Llc::Any => return self.constant(true, exits),
            Link::Fddi => {}
            _ => {
                return Err(self.unsupported(
                    test,
                    "LLC headers are distinguished only on Ethernet, 802.11 and FDDI",
                ));
            }
        }
        self.bind(inner);
        // IEEE 802.2 clause 5: the control field.
        let control = self.layers.payload.place(2);
        let (mask, value) = match kind {
            Llc::Any => return Ok(()),
            Llc::Information => (0x01, 0x00),
            Llc::Supervisory => (0x03, 0x01),
            Llc::Unnumbered => (0x03, 0x03),
            Llc::SupervisoryKind(bits) => (0x0f, bits.into()),
            Llc::UnnumberedKind(bits) => (0xef, bits.into()),
        };
        self.field(control, Width::Byte, mask, Relation::Equal, value, exits)
    }

    pub(crate) fn vlan(
        &mut self,
        test: &Test,
        id: Option<u32>,
        exits: Exits,
    ) -> Result<(), CompileError> {
        if self.layers.mpls_labels > 0 {
            return Err(self.unsupported(test, "no VLAN tag can follow an MPLS label"));
        }
        match self.layers.link {
            Link::Ethernet | Link::LinuxCooked | Link::LinuxCooked2 => {}
            Link::Wlan(radio) if radio != Radio::Ppi => {}
            _ => {
                return Err(self.unsupported(
                    test,
                    "VLAN tags are in Ethernet, 802.11 and Linux cooked captures only",
                ));
            }
        }
        let tagged = self.label();
        let inner = exits.and_maybe(id.is_some(), tagged);
        // IEEE 802.1Q C-tag and S-tag, and the earlier type of S-tags.
        self.is_tagged(test, &[0x8100, 0x88a8, 0x9100], inner)?;
        self.bind(tagged);
        if let Some(id) = id {
            let tag = self.layers.network(0);
            self.field(tag, Width::Half, 0x0fff, Relation::Equal, id, exits)?;
        }
        self.layers.enter_vlan();
        Ok(())
    }

    /// Whether a VLAN tag of one of these types is next.
    pub(crate) fn is_tagged(
        &mut self,
        test: &Test,
        types: &[u32],
        exits: Exits,
    ) -> Result<(), CompileError> {
        self.sequence(types.len(), exits, false, |this, index, exits| {
            this.ether_proto(test, types[index], exits)
        })
    }

    pub(crate) fn mpls(
        &mut self,
        test: &Test,
        label: Option<u32>,
        exits: Exits,
    ) -> Result<(), CompileError> {
        let labelled = self.label();
        let inner = exits.and_maybe(label.is_some(), labelled);
        if self.layers.mpls_labels > 0 {
            // The label before this one is not the last.
            self.field(
                self.layers.last_label(2),
                Width::Byte,
                1,
                Relation::Equal,
                0,
                inner,
            )?;
        } else if matches!(
            self.layers.link,
            Link::Ethernet | Link::Ppp | Link::CiscoHdlc
        ) {
            // RFC 3032 section 5: unicast; section 4.3: on PPP.
            let protocol = if self.layers.link == Link::Ppp {
                0x0281
            } else {
                0x8847
            };
            self.equal(self.layers.link_type.place(0), Width::Half, protocol, inner)?;
        } else {
            return Err(
                self.unsupported(test, "MPLS is known on Ethernet, PPP and Cisco HDLC only")
            );
        }
        self.bind(labelled);
        if let Some(label) = label {
            let place = self.layers.network(0);
            let value = label << 12;
            self.field(
                place,
                Width::Word,
                0xffff_f000,
                Relation::Equal,
                value,
                exits,
            )?;
        }
        self.layers.enter_mpls();
        Ok(())
    }

    pub(crate) fn pppoe(
        &mut self,
        test: &Test,
        session: Option<u32>,
        exits: Exits,
    ) -> Result<(), CompileError> {
        let found = self.label();
        let inner = exits.and_maybe(session.is_some(), found);
        self.ether_proto(test, 0x8864, inner)?;
        self.bind(found);
        if let Some(session) = session {
            let place = self.layers.network(0);
            self.field(place, Width::Word, 0xffff, Relation::Equal, session, exits)?;
        }
        self.layers.enter_pppoe();
        Ok(())
    }
}

/// PPP protocol numbers (IANA "PPP DLL Protocol Numbers") of what libpcap maps.
fn ppp_protocol(number: u32) -> u32 {
    match number {
        0x0800 => 0x0021,
        0x86dd => 0x0057,
        0x6003 => 0x0027,
        0x809b => 0x0029,
        0x0600 => 0x0025,
        ISO_SAP => 0x0023,
        0x42 => 0x0031,
        IPX_SAP => 0x002b,
        _ => number,
    }
}
