//! Tests on link-layer addresses and on the 802.11 frame control field.

use crate::ast::{MacAddress, MacDirection, Relation, Test, Width};
use crate::compile::layers::{Link, Radio};
use crate::compile::{Compiler, Exits, Label};
use crate::error::CompileError;
use crate::program::{Place, Step};

const ETHERNET_ONLY: &str = "MAC addresses are in Ethernet, 802.11 and FDDI headers only";
const WLAN_ONLY: &str = "it tests a field of the 802.11 header";

impl Compiler {
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
            Link::Ethernet | Link::Fddi | Link::Wlan(_) => self.mac(
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
            Link::Ethernet | Link::Fddi => {
                self.before_mac(exits)?;
                let place = self.layers.link_header.place(self.layers.addresses());
                self.any_bit(place, 1, exits)
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
            Link::Ethernet | Link::Fddi => false,
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
            return self.mac_at(self.layers.addresses().wrapping_add(6), address, exits);
        }
        // IEEE 802.11-2020 table 9-30: address 2 unless From DS, then 3, or 4 with To DS as well.
        let data = self.label();
        let control = self.layers.link_header.place(0);
        let flags = self.layers.link_header.place(1);
        self.no_control_frame(exits)?;
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
            return self.mac_at(self.layers.addresses(), address, exits);
        }
        self.wlan_destination(exits, |this, at, exits| this.mac_at(at, address, exits))
    }

    /// IEEE 802.11-2020 table 9-30: address 1 unless To DS, then 3.
    fn wlan_destination(
        &mut self,
        exits: Exits,
        mut test: impl FnMut(&mut Self, u32, Exits) -> Result<(), CompileError>,
    ) -> Result<(), CompileError> {
        let (data, to_ds) = (self.label(), self.label());
        let control = self.layers.link_header.place(0);
        let flags = self.layers.link_header.place(1);
        self.no_control_frame(exits)?;
        self.unless_then(control, 0x08, exits, data, |this, exits| {
            test(this, 4, exits)
        })?;
        self.unless_then(flags, 0x01, exits, to_ds, |this, exits| {
            test(this, 4, exits)
        })?;
        test(self, 16, exits)
    }

    /// Without the bit the test can succeed; the rest needs the bit.
    fn unless_then(
        &mut self,
        place: Place,
        bit: u32,
        exits: Exits,
        next: Label,
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
        test(self, exits.or_else(again))?;
        self.bind(again);
        self.any_bit(place, bit, exits.and_then(next))?;
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
            self.any_bit(control, 0x08, exits.and_then(start))?;
        }
        self.bind(start);
        let found = self.label();
        let at = match direction {
            MacDirection::Address3 => {
                let control_frame = exits.unless(found);
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
                let both = exits.and_then(found);
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
                let cts = exits.unless(not_cts);
                self.field(control, Width::Byte, 0xf0, Relation::Equal, 0xc0, cts)?;
                self.bind(not_cts);
                let ack = exits.unless(found);
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
            header.place(at.wrapping_add(2)),
            Width::Word,
            low,
            exits.and_then(rest),
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
    pub(crate) fn data_frame(&mut self, exits: Exits) -> Result<(), CompileError> {
        self.no_control_frame(exits)?;
        let control = self.layers.link_header.place(0);
        self.any_bit(control, 0x08, exits)
    }

    /// Rejects 802.11 control frames.
    fn no_control_frame(&mut self, exits: Exits) -> Result<(), CompileError> {
        let next = self.label();
        let control = self.layers.link_header.place(0);
        self.any_bit(control, 0x04, exits.unless(next))?;
        self.bind(next);
        Ok(())
    }

    pub(crate) fn frame_control(
        &mut self,
        test: &Test,
        byte: u32,
        mask: u32,
        value: u32,
        exits: Exits,
    ) -> Result<(), CompileError> {
        match self.layers.link {
            // As in libpcap, which knows addresses there but no types.
            Link::Wlan(Radio::Ppi) => {
                return Err(self.unsupported(
                    test,
                    "after a PPI header write it as 'link[0] & 0x0c', which is the type",
                ));
            }
            Link::Wlan(_) => {}
            _ => return Err(self.unsupported(test, WLAN_ONLY)),
        }
        let place = self.layers.link_header.place(byte);
        self.field(place, Width::Byte, mask, Relation::Equal, value, exits)
    }

    /// Whether there is a radio header to load from.
    pub(crate) fn has_radio(&self) -> bool {
        matches!(
            self.layers.link,
            Link::Wlan(Radio::Radiotap | Radio::Prism | Radio::Avs)
        )
    }
}
