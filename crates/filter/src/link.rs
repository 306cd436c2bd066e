//! Tests on the link layer, and the encapsulations that move it.

use crate::ast::{Llc, MacAddress, MacDirection, Relation, Test, Width};
use crate::compile::{Compiler, Exits};
use crate::error::CompileError;
use crate::layers::{Link, Radio};
use crate::program::{Place, Step};

const ETHERNET_ONLY: &str = "MAC addresses are in Ethernet and 802.11 headers only";
const WLAN_ONLY: &str = "it tests a field of the 802.11 header";

/// IEEE 802.3 clause 3.2.6: at most this is a length, more is an `EtherType`.
const LENGTH_MAX: u32 = 1500;

/// LLC SAPs, numbers of the IEEE Registration Authority: IP, NetBEUI, ISO network layer. libpcap
/// compares source and destination.
const SYMMETRIC_SAPS: [u32; 3] = [0x06, 0xf0, 0xfe];
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
                self.data_frame(Exits {
                    yes: llc,
                    no: exits.no,
                })?;
                self.bind(llc);
                self.llc_proto(number, exits)
            }
            Link::Ppp => self.equal(link_type, Width::Half, ppp_protocol(number), exits),
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
            orders * families.len(),
            exits,
            false,
            |this, index, exits| {
                let family = families[index % families.len()];
                let swapped = index >= families.len();
                let family = if swapped { family.swap_bytes() } else { family };
                this.equal(place, Width::Word, family, exits)
            },
        )
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
            self.equal(
                link_type,
                Width::Half,
                number,
                Exits {
                    yes: exits.yes,
                    no: other,
                },
            )?;
            self.bind(other);
        }
        let llc = self.label();
        let long = Exits {
            yes: exits.no,
            no: llc,
        };
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
                self.snap(
                    0,
                    IPX,
                    Exits {
                        yes: exits.yes,
                        no: sap,
                    },
                )?;
                self.bind(sap);
                let place = self.layers.payload.place(0);
                self.equal(
                    place,
                    Width::Byte,
                    IPX_SAP,
                    Exits {
                        yes: exits.yes,
                        no: raw,
                    },
                )?;
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
            self.equal(
                link_type,
                Width::Half,
                *known,
                Exits {
                    yes: exits.yes,
                    no: other,
                },
            )?;
            self.bind(other);
        }
        let llc = self.label();
        self.equal(
            link_type,
            Width::Half,
            4,
            Exits {
                yes: llc,
                no: exits.no,
            },
        )?;
        self.bind(llc);
        let place = self.layers.payload.place(0);
        match number {
            IPX_SAP => {
                let snap = self.label();
                self.equal(
                    place,
                    Width::Byte,
                    IPX_SAP,
                    Exits {
                        yes: exits.yes,
                        no: snap,
                    },
                )?;
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
        self.equal(
            payload.place(4),
            Width::Word,
            rest,
            Exits {
                yes: first,
                no: exits.no,
            },
        )?;
        self.bind(first);
        self.equal(
            payload.place(0),
            Width::Word,
            0xaaaa_0300 | oui >> 16,
            exits,
        )
    }

    /// Inside MPLS only the label says that it is the last, and the packet what it is.
    fn mpls_proto(&mut self, test: &Test, number: u32, exits: Exits) -> Result<(), CompileError> {
        let version = match number {
            0x0800 => 0x40,
            0x86dd => 0x60,
            _ => {
                return Err(
                    self.unsupported(test, "behind 'mpls' only IPv4 and IPv6 can be told apart")
                );
            }
        };
        let bottom = self.label();
        let more = Exits {
            yes: bottom,
            no: exits.no,
        };
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
        let inner = self.label();
        self.ether_proto(
            test,
            0xfe,
            Exits {
                yes: inner,
                no: exits.no,
            },
        )?;
        self.bind(inner);
        self.equal(self.layers.network_no_snap(0), Width::Byte, number, exits)
    }

    pub(crate) fn isis_proto(
        &mut self,
        test: &Test,
        number: u32,
        exits: Exits,
    ) -> Result<(), CompileError> {
        let inner = self.label();
        self.iso_proto(
            test,
            0x83,
            Exits {
                yes: inner,
                no: exits.no,
            },
        )?;
        self.bind(inner);
        self.equal(self.layers.network_no_snap(4), Width::Byte, number, exits)
    }

    pub(crate) fn llc(&mut self, test: &Test, kind: Llc, exits: Exits) -> Result<(), CompileError> {
        let inner = self.label();
        let enter = if kind == Llc::Any {
            exits
        } else {
            Exits {
                yes: inner,
                no: exits.no,
            }
        };
        match self.layers.link {
            Link::Ethernet => {
                let short = self.label();
                let long = Exits {
                    yes: exits.no,
                    no: short,
                };
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
            _ => {
                return Err(self.unsupported(
                    test,
                    "LLC headers are told apart on Ethernet and 802.11 only",
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
        if !matches!(self.layers.link, Link::Ethernet | Link::Wlan(_)) {
            return Err(self.unsupported(test, "VLAN tags are in Ethernet and 802.11 only"));
        }
        let tagged = self.label();
        let inner = if id.is_some() {
            Exits {
                yes: tagged,
                no: exits.no,
            }
        } else {
            exits
        };
        // IEEE 802.1Q C-tag and S-tag, and what was used for S-tags before.
        let types = [0x8100, 0x88a8, 0x9100];
        self.sequence(types.len(), inner, false, |this, index, exits| {
            this.ether_proto(test, types[index], exits)
        })?;
        self.bind(tagged);
        if let Some(id) = id {
            let tag = self.layers.network(0);
            self.field(tag, Width::Half, 0x0fff, Relation::Equal, id, exits)?;
        }
        self.layers.enter_vlan();
        Ok(())
    }

    pub(crate) fn mpls(
        &mut self,
        test: &Test,
        label: Option<u32>,
        exits: Exits,
    ) -> Result<(), CompileError> {
        let labelled = self.label();
        let inner = if label.is_some() {
            Exits {
                yes: labelled,
                no: exits.no,
            }
        } else {
            exits
        };
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
        } else if matches!(self.layers.link, Link::Ethernet | Link::Ppp) {
            // RFC 3032 section 5: unicast; section 4.3: on PPP.
            let protocol = if self.layers.link == Link::Ppp {
                0x0281
            } else {
                0x8847
            };
            self.equal(self.layers.link_type.place(0), Width::Half, protocol, inner)?;
        } else {
            return Err(self.unsupported(test, "MPLS is known on Ethernet and PPPoE only"));
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
        let inner = if session.is_some() {
            Exits {
                yes: found,
                no: exits.no,
            }
        } else {
            exits
        };
        self.ether_proto(test, 0x8864, inner)?;
        self.bind(found);
        if let Some(session) = session {
            let place = self.layers.network(0);
            self.field(place, Width::Word, 0xffff, Relation::Equal, session, exits)?;
        }
        self.layers.enter_pppoe();
        Ok(())
    }

    /// Inside Geneve there need not be an Ethernet header.
    fn has_link_header(&mut self, exits: Exits) -> Result<(), CompileError> {
        if !self.layers.in_geneve {
            return Ok(());
        }
        let there = self.label();
        self.step(Step::Compare {
            left: self.layers.link_header.register,
            right: self.layers.payload.register,
            relation: Relation::NotEqual,
            yes: there.0,
            no: exits.no.0,
        })?;
        self.bind(there);
        Ok(())
    }

    pub(crate) fn ether_broadcast(
        &mut self,
        test: &Test,
        exits: Exits,
    ) -> Result<(), CompileError> {
        match self.layers.link {
            Link::Ethernet | Link::Wlan(_) => self.mac(
                test,
                MacDirection::Destination,
                MacAddress([0xff; 6]),
                exits,
            ),
            _ => Err(self.unsupported(test, "it is not a broadcast link")),
        }
    }

    pub(crate) fn ether_multicast(
        &mut self,
        test: &Test,
        exits: Exits,
    ) -> Result<(), CompileError> {
        match self.layers.link {
            Link::Ethernet => {
                self.has_link_header(exits)?;
                self.any_bit(self.layers.link_header.place(0), 1, exits)
            }
            Link::Wlan(_) => self.wlan_destination(exits, |this, at, exits| {
                this.any_bit(this.layers.link_header.place(at), 1, exits)
            }),
            _ => Err(self.unsupported(test, ETHERNET_ONLY)),
        }
    }

    pub(crate) fn mac(
        &mut self,
        test: &Test,
        direction: MacDirection,
        address: MacAddress,
        exits: Exits,
    ) -> Result<(), CompileError> {
        let wlan = match self.layers.link {
            Link::Ethernet => false,
            Link::Wlan(_) => true,
            _ => return Err(self.unsupported(test, ETHERNET_ONLY)),
        };
        let both = match direction {
            MacDirection::Source => {
                self.before_mac(exits)?;
                return self.mac_source(wlan, address, exits);
            }
            MacDirection::Destination => {
                self.before_mac(exits)?;
                return self.mac_destination(wlan, address, exits);
            }
            MacDirection::Either => false,
            MacDirection::Both => true,
            _ if !wlan => return Err(self.unsupported(test, WLAN_ONLY)),
            _ => return self.wlan_address(direction, address, exits),
        };
        self.before_mac(exits)?;
        self.sequence(2, exits, both, |this, index, exits| match index {
            0 => this.mac_source(wlan, address, exits),
            _ => this.mac_destination(wlan, address, exits),
        })
    }

    fn before_mac(&mut self, exits: Exits) -> Result<(), CompileError> {
        if self.layers.link == Link::Ethernet {
            self.has_link_header(exits)
        } else {
            Ok(())
        }
    }

    fn mac_source(
        &mut self,
        wlan: bool,
        address: MacAddress,
        exits: Exits,
    ) -> Result<(), CompileError> {
        if !wlan {
            return self.mac_at(6, address, exits);
        }
        // IEEE 802.11-2020 table 9-30: address 2 unless From DS, then 3, or 4 with To DS as well.
        let (frame, data) = (self.label(), self.label());
        let control = self.layers.link_header.place(0);
        let flags = self.layers.link_header.place(1);
        self.any_bit(
            control,
            0x04,
            Exits {
                yes: exits.no,
                no: frame,
            },
        )?;
        self.bind(frame);
        self.unless_then(control, 0x08, exits, data, |this, exits| {
            this.mac_at(10, address, exits)
        })?;
        let (from_ds, to_ds) = (self.label(), self.label());
        self.unless_then(flags, 0x02, exits, from_ds, |this, exits| {
            this.mac_at(10, address, exits)
        })?;
        self.unless_then(flags, 0x01, exits, to_ds, |this, exits| {
            this.mac_at(16, address, exits)
        })?;
        self.mac_at(24, address, exits)
    }

    fn mac_destination(
        &mut self,
        wlan: bool,
        address: MacAddress,
        exits: Exits,
    ) -> Result<(), CompileError> {
        if !wlan {
            return self.mac_at(0, address, exits);
        }
        self.wlan_destination(exits, |this, at, exits| this.mac_at(at, address, exits))
    }

    /// IEEE 802.11-2020 table 9-30: address 1 unless To DS, then 3.
    fn wlan_destination(
        &mut self,
        exits: Exits,
        mut test: impl FnMut(&mut Self, u32, Exits) -> Result<(), CompileError>,
    ) -> Result<(), CompileError> {
        let (frame, data, to_ds) = (self.label(), self.label(), self.label());
        let control = self.layers.link_header.place(0);
        let flags = self.layers.link_header.place(1);
        self.any_bit(
            control,
            0x04,
            Exits {
                yes: exits.no,
                no: frame,
            },
        )?;
        self.bind(frame);
        self.unless_then(control, 0x08, exits, data, |this, exits| {
            test(this, 4, exits)
        })?;
        self.unless_then(flags, 0x01, exits, to_ds, |this, exits| {
            test(this, 4, exits)
        })?;
        test(self, 16, exits)
    }

    /// Without the bit the test can succeed; what follows needs the bit.
    fn unless_then(
        &mut self,
        place: Place,
        bit: u32,
        exits: Exits,
        next: crate::compile::Label,
        test: impl FnOnce(&mut Self, Exits) -> Result<(), CompileError>,
    ) -> Result<(), CompileError> {
        let (without, again) = (self.label(), self.label());
        self.any_bit(
            place,
            bit,
            Exits {
                yes: again,
                no: without,
            },
        )?;
        self.bind(without);
        test(
            self,
            Exits {
                yes: exits.yes,
                no: again,
            },
        )?;
        self.bind(again);
        self.any_bit(
            place,
            bit,
            Exits {
                yes: next,
                no: exits.no,
            },
        )?;
        self.bind(next);
        Ok(())
    }

    fn wlan_address(
        &mut self,
        direction: MacDirection,
        address: MacAddress,
        exits: Exits,
    ) -> Result<(), CompileError> {
        let control = self.layers.link_header.place(0);
        let start = self.label();
        if matches!(
            direction,
            MacDirection::Receiver | MacDirection::Transmitter
        ) {
            self.any_bit(
                control,
                0x08,
                Exits {
                    yes: start,
                    no: exits.no,
                },
            )?;
        }
        self.bind(start);
        let found = self.label();
        let at = match direction {
            MacDirection::Address3 => {
                let control_frame = Exits {
                    yes: exits.no,
                    no: found,
                };
                self.field(
                    control,
                    Width::Byte,
                    0x0c,
                    Relation::Equal,
                    0x04,
                    control_frame,
                )?;
                16
            }
            MacDirection::Address4 => {
                let flags = self.layers.link_header.place(1);
                let both = Exits {
                    yes: found,
                    no: exits.no,
                };
                self.field(flags, Width::Byte, 0x03, Relation::Equal, 0x03, both)?;
                24
            }
            MacDirection::Transmitter | MacDirection::Address2 => {
                let (control_frame, not_cts) = (self.label(), self.label());
                let kind = Exits {
                    yes: control_frame,
                    no: found,
                };
                self.field(control, Width::Byte, 0x0c, Relation::Equal, 0x04, kind)?;
                self.bind(control_frame);
                // CTS and ACK frames have one address.
                let cts = Exits {
                    yes: exits.no,
                    no: not_cts,
                };
                self.field(control, Width::Byte, 0xf0, Relation::Equal, 0xc0, cts)?;
                self.bind(not_cts);
                let ack = Exits {
                    yes: exits.no,
                    no: found,
                };
                self.field(control, Width::Byte, 0xf0, Relation::Equal, 0xd0, ack)?;
                10
            }
            _ => 4,
        };
        self.bind(found);
        self.mac_at(at, address, exits)
    }

    /// The last four bytes first, as libpcap does.
    fn mac_at(&mut self, at: u32, address: MacAddress, exits: Exits) -> Result<(), CompileError> {
        let [a, b, c, d, e, f] = address.0;
        let header = self.layers.link_header;
        let rest = self.label();
        let low = u32::from_be_bytes([c, d, e, f]);
        self.equal(
            header.place(at + 2),
            Width::Word,
            low,
            Exits {
                yes: rest,
                no: exits.no,
            },
        )?;
        self.bind(rest);
        self.equal(
            header.place(at),
            Width::Half,
            u32::from_be_bytes([0, 0, a, b]),
            exits,
        )
    }

    /// An 802.11 data frame, which alone has an LLC header.
    fn data_frame(&mut self, exits: Exits) -> Result<(), CompileError> {
        let control = self.layers.link_header.place(0);
        let next = self.label();
        self.any_bit(
            control,
            0x04,
            Exits {
                yes: exits.no,
                no: next,
            },
        )?;
        self.bind(next);
        self.any_bit(control, 0x08, exits)
    }

    pub(crate) fn frame_control(
        &mut self,
        test: &Test,
        byte: u32,
        mask: u32,
        value: u32,
        exits: Exits,
    ) -> Result<(), CompileError> {
        if !matches!(self.layers.link, Link::Wlan(_)) {
            return Err(self.unsupported(test, WLAN_ONLY));
        }
        let place = self.layers.link_header.place(byte);
        self.field(place, Width::Byte, mask, Relation::Equal, value, exits)
    }

    /// Whether there is a radio header to load from.
    pub(crate) fn has_radio(&self) -> bool {
        matches!(self.layers.link, Link::Wlan(radio) if radio != Radio::None)
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
        0xfe => 0x0023,
        0x42 => 0x0031,
        IPX_SAP => 0x002b,
        _ => number,
    }
}
