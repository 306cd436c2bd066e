//! `expr relop expr`.

use crate::ast::{Arith, Header, IpVersion, Operator, Relation, Test, Width};
use crate::compile::internet::start_of_packet;
use crate::compile::layers::Link;
use crate::compile::layers::TAG_LEN;
use crate::compile::{Compiler, Exits};
use crate::error::CompileError;
use crate::program::{self, NO_REGISTER, Place, Step};

/// Link types that have a header of their own before the link header and are not supported:
/// netANALYZER.
const PREFIXED_LINKS: [u16; 2] = [240, 241];

impl Compiler {
    pub(crate) fn compare(
        &mut self,
        test: &Test,
        left: &Arith,
        relation: Relation,
        right: &Arith,
        exits: Exits,
    ) -> Result<(), CompileError> {
        if self.layers.link == Link::Unknown {
            self.only_link_loads(test, left)?;
            self.only_link_loads(test, right)?;
        }
        let (left, right) = (fold(left), fold(right));
        self.guards(test, &left, exits)?;
        self.guards(test, &right, exits)?;
        if let (Arith::Number(left), Arith::Number(right)) = (&left, &right) {
            return self.constant(program::decide(relation, *left, *right), exits);
        }
        let masked = self.masked_load(&left);
        if let Some((place, width, mask)) = masked
            && let Arith::Number(value) = right
        {
            return self.field(place, width, mask, relation, value, exits);
        }
        let before = self.free_register;
        let left = self.value(&left)?;
        let right = self.value(&right)?;
        self.free_register = before;
        let Exits { yes, no } = exits;
        self.step(Step::Compare {
            left,
            right,
            relation,
            yes: yes.0,
            no: no.0,
        })
    }

    /// In a packet of an unknown link only its own header can be loaded from, and not even that if
    /// something of variable length precedes it.
    fn only_link_loads(&self, test: &Test, arith: &Arith) -> Result<(), CompileError> {
        match arith {
            Arith::Number(_) | Arith::Length => Ok(()),
            Arith::Negate(inner) => self.only_link_loads(test, inner),
            Arith::Binary { left, right, .. } => {
                self.only_link_loads(test, left)?;
                self.only_link_loads(test, right)
            }
            Arith::Load {
                header: Header::Link,
                offset,
                ..
            } if !PREFIXED_LINKS.contains(&self.layers.outer.0) => {
                self.only_link_loads(test, offset)
            }
            Arith::Load { .. } => Err(self.unsupported(test, "")),
        }
    }

    /// A packet without the protocols that are loaded from does not match, and nothing is computed.
    /// In libpcap's order: those of the offset before those of the load.
    fn guards(&mut self, test: &Test, arith: &Arith, exits: Exits) -> Result<(), CompileError> {
        match arith {
            Arith::Number(_) | Arith::Length => Ok(()),
            Arith::Negate(inner) => self.guards(test, inner, exits),
            // libpcap forgets what the right operand requires; so must we.
            Arith::Binary { left, .. } => self.guards(test, left, exits),
            Arith::Load { header, offset, .. } => {
                self.guards(test, offset, exits)?;
                self.guard(test, *header, exits)
            }
        }
    }

    fn guard(&mut self, test: &Test, header: Header, exits: Exits) -> Result<(), CompileError> {
        let ether = match header {
            Header::Link => return Ok(()),
            Header::Radio if self.has_radio() => return Ok(()),
            Header::Radio => {
                return Err(self.unsupported(test, "there is no radio header in these packets"));
            }
            Header::Ip6 | Header::Icmp6 => 0x86dd,
            Header::Arp => 0x0806,
            Header::Rarp => 0x8035,
            Header::Atalk => 0x809b,
            Header::Decnet => 0x6003,
            Header::Lat => 0x6004,
            Header::Sca => 0x6007,
            Header::Moprc => 0x6002,
            Header::Mopdl => 0x6001,
            _ => 0x0800,
        };
        let next = self.label();
        self.ether_proto(test, ether, exits.and_then(next))?;
        self.bind(next);
        let (version, number) = match header {
            Header::Tcp => (IpVersion::Any, 6),
            Header::Udp => (IpVersion::Any, 17),
            Header::Sctp => (IpVersion::Any, 132),
            Header::Pim => (IpVersion::Any, 103),
            Header::Icmp => (IpVersion::V4, 1),
            Header::Igmp => (IpVersion::V4, 2),
            Header::Igrp => (IpVersion::V4, 9),
            Header::Vrrp | Header::Carp => (IpVersion::V4, 112),
            Header::Icmp6 => {
                let next = self.label();
                let place = self.layers.network(6);
                self.equal(place, Width::Byte, 58, exits.and_then(next))?;
                self.bind(next);
                return Ok(());
            }
            _ => return Ok(()),
        };
        let (protocol, fragment) = (self.label(), self.label());
        self.ip_proto(test, version, number, exits.and_then(protocol))?;
        self.bind(protocol);
        self.first_fragment(exits.and_then(fragment))?;
        self.bind(fragment);
        Ok(())
    }

    fn header_place(&self, header: Header) -> Place {
        match header {
            Header::Link => self.layers.link_header.place(0),
            Header::Radio => start_of_packet(),
            Header::Icmp6 => self.layers.network(40),
            Header::Tcp
            | Header::Udp
            | Header::Sctp
            | Header::Icmp
            | Header::Igmp
            | Header::Igrp
            | Header::Pim
            | Header::Vrrp
            | Header::Carp => self.layers.after_ip(0),
            _ => self.layers.network(0),
        }
    }

    /// A load from a fixed offset, perhaps masked: the usual left side, for which one step is
    /// enough.
    fn masked_load(&self, arith: &Arith) -> Option<(Place, Width, u32)> {
        let (load, mask) = match arith {
            Arith::Binary {
                operator: Operator::And,
                left,
                right,
            } => match (&**left, &**right) {
                (load, Arith::Number(mask)) | (Arith::Number(mask), load) => (load, *mask),
                _ => return None,
            },
            load => (load, u32::MAX),
        };
        let Arith::Load {
            header,
            offset,
            bytes,
        } = load
        else {
            return None;
        };
        let Arith::Number(offset) = **offset else {
            return None;
        };
        self.fixed_place(*header, offset)
            .map(|place| (place, *bytes, mask))
    }

    /// The place of a fixed offset. From a variable start, large offsets wrap around and need
    /// registers.
    fn fixed_place(&self, header: Header, offset: u32) -> Option<Place> {
        let is_behind = |tag_at: u32| header == Header::Link && offset >= tag_at;
        let offset = match self.layers.tag_at.is_some_and(is_behind) {
            true => offset.wrapping_add(TAG_LEN),
            false => offset,
        };
        let place = self.header_place(header);
        if place.register == NO_REGISTER && !place.after_ip {
            return Some(Place {
                offset: place.offset.wrapping_add(offset),
                ..place
            });
        }
        let small = offset <= 0xffff && place.offset <= 0xffff;
        small.then(|| Place {
            offset: place.offset.wrapping_add(offset),
            ..place
        })
    }

    /// Computes it into a new register.
    fn value(&mut self, arith: &Arith) -> Result<u8, CompileError> {
        let to = self.registers(1)?;
        match arith {
            Arith::Number(value) => self.step(Step::SetNumber { to, value: *value })?,
            Arith::Length => {
                let less = if self.layers.tag_at.is_some() {
                    TAG_LEN
                } else {
                    0
                };
                self.step(Step::SetLength { to, less })?;
            }
            Arith::Negate(inner) => {
                self.free_register = to;
                self.value(inner)?;
                self.step(Step::Negate { to })?;
            }
            Arith::Binary {
                operator,
                left,
                right,
            } => {
                self.free_register = to;
                self.value(left)?;
                let right = self.value(right)?;
                self.step(Step::Binary {
                    to,
                    operator: *operator,
                    right,
                })?;
            }
            Arith::Load {
                header,
                offset,
                bytes,
            } => {
                let fixed = match **offset {
                    Arith::Number(offset) => self.fixed_place(*header, offset),
                    _ => None,
                };
                self.free_register = to;
                let offset = if fixed.is_some() {
                    &Arith::Number(0)
                } else {
                    &**offset
                };
                let index = self.value(offset)?;
                let place = fixed.unwrap_or_else(|| self.header_place(*header));
                self.note(&place);
                self.step(Step::SetLoad {
                    to,
                    index,
                    place,
                    width: *bytes,
                })?;
            }
        }
        // `registers` has found room for it.
        self.free_register = to.saturating_add(1);
        Ok(to)
    }
}

/// Arithmetic on constants is done once. A division by zero stays, and rejects.
fn fold(arith: &Arith) -> Arith {
    match arith {
        Arith::Number(_) | Arith::Length => arith.clone(),
        Arith::Negate(inner) => match fold(inner) {
            Arith::Number(value) => Arith::Number(value.wrapping_neg()),
            other => Arith::Negate(Box::new(other)),
        },
        Arith::Load {
            header,
            offset,
            bytes,
        } => Arith::Load {
            header: *header,
            offset: Box::new(fold(offset)),
            bytes: *bytes,
        },
        Arith::Binary {
            operator,
            left,
            right,
        } => {
            let (left, right) = (fold(left), fold(right));
            if let (Arith::Number(left), Arith::Number(right)) = (&left, &right)
                && let Some(value) = program::apply(*operator, *left, *right)
            {
                return Arith::Number(value);
            }
            Arith::Binary {
                operator: *operator,
                left: Box::new(left),
                right: Box::new(right),
            }
        }
    }
}
