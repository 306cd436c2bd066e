//! Tests on addresses, protocols and ports of IP.

use std::sync::Arc;

use crate::ast::{
    AddressScope, Direction, IpVersion, Network, NetworkSet, Relation, Test, Transport, Width,
};
use crate::compile::layers::Offset;
use crate::compile::{Compiler, Exits};
use crate::error::CompileError;
use crate::program::{NO_REGISTER, Place, Step};

const IP: u32 = 0x0800;
const IP6: u32 = 0x86dd;
const ARP: u32 = 0x0806;
const RARP: u32 = 0x8035;
const GENEVE_PORT: u32 = 6081;

impl Compiler {
    pub(crate) fn address(
        &mut self,
        test: &Test,
        scope: Option<AddressScope>,
        direction: Direction,
        network: &Network,
        exits: Exits,
    ) -> Result<(), CompileError> {
        // EtherType, and offsets of source and destination: RFC 791, RFC 826, RFC 8200.
        let all = match (network, scope) {
            (Network::V6 { .. }, _) => &[(IP6, 8, 24)][..],
            (_, Some(AddressScope::Ip)) => &[(IP, 12, 16)],
            (_, Some(AddressScope::Arp)) => &[(ARP, 14, 24)],
            (_, Some(AddressScope::Rarp)) => &[(RARP, 14, 24)],
            // After an MPLS label only IP can be recognised.
            (_, None) if self.layers.mpls_labels > 0 => &[(IP, 12, 16)],
            (_, _) => &[(IP, 12, 16), (ARP, 14, 24), (RARP, 14, 24)],
        };
        self.sequence(all.len(), exits, false, |this, index, exits| {
            let (protocol, source, destination) = all[index];
            this.directed(direction, exits, |this, is_source, exits| {
                let inner = this.label();
                this.ether_proto(test, protocol, exits.and_then(inner))?;
                this.bind(inner);
                let at = this
                    .layers
                    .network(if is_source { source } else { destination });
                this.address_at(at, network, exits)
            })
        })
    }

    /// As [`Compiler::address`] with all networks of a set, for any protocol that carries addresses.
    pub(crate) fn named(
        &mut self,
        test: &Test,
        direction: Direction,
        networks: &Arc<NetworkSet>,
        exits: Exits,
    ) -> Result<(), CompileError> {
        let set = self.set(networks)?;
        let [has_v4, has_v6] = networks.versions();
        let v4: &[_] = match (has_v4, self.layers.mpls_labels) {
            (false, _) => &[],
            (true, 0) => &[(IP, 12, 16), (ARP, 14, 24), (RARP, 14, 24)],
            // After an MPLS label only IP can be recognised.
            (true, _) => &[(IP, 12, 16)],
        };
        let v6: &[_] = if has_v6 { &[(IP6, 8, 24)] } else { &[] };
        let all = [v4, v6].concat();
        self.sequence(all.len(), exits, false, |this, index, exits| {
            let (protocol, source, destination) = all[index];
            this.directed(direction, exits, |this, is_source, exits| {
                let inner = this.label();
                this.ether_proto(test, protocol, exits.and_then(inner))?;
                this.bind(inner);
                let place = this
                    .layers
                    .network(if is_source { source } else { destination });
                this.note(&place);
                this.step(Step::Networks {
                    place,
                    is_v6: protocol == IP6,
                    set,
                    yes: exits.yes.0,
                    no: exits.no.0,
                })
            })
        })
    }

    /// Source and destination, joined by the direction, source first.
    fn directed(
        &mut self,
        direction: Direction,
        exits: Exits,
        mut emit: impl FnMut(&mut Self, bool, Exits) -> Result<(), CompileError>,
    ) -> Result<(), CompileError> {
        match direction {
            Direction::Source => emit(self, true, exits),
            Direction::Destination => emit(self, false, exits),
            Direction::Either | Direction::Both => {
                let both = direction == Direction::Both;
                self.sequence(2, exits, both, |this, index, exits| {
                    emit(this, index == 0, exits)
                })
            }
        }
    }

    fn address_at(
        &mut self,
        at: Place,
        network: &Network,
        exits: Exits,
    ) -> Result<(), CompileError> {
        let (address, prefix) = match network {
            Network::V4 { address, mask } => {
                let (address, mask) = ((*address).into(), (*mask).into());
                return self.field(at, Width::Word, mask, Relation::Equal, address, exits);
            }
            Network::V6 { address, prefix } => (u128::from(*address), u32::from(*prefix)),
        };
        let mask = u128::MAX.unbounded_shl(128_u32.saturating_sub(prefix));
        let (addresses, masks) = (words(address), words(mask));
        self.sequence(4, exits, true, |this, index, exits| {
            let more = [0, 4, 8, 12][index];
            let place = Place {
                offset: at.offset.wrapping_add(more),
                ..at
            };
            this.field(
                place,
                Width::Word,
                masks[index],
                Relation::Equal,
                addresses[index],
                exits,
            )
        })
    }

    pub(crate) fn ip_cast(&mut self, test: &Test, exits: Exits) -> Result<(), CompileError> {
        let protocol = if *test == Test::Ip6Multicast { IP6 } else { IP };
        let inner = self.label();
        self.ether_proto(test, protocol, exits.and_then(inner))?;
        self.bind(inner);
        let layers = self.layers;
        match test {
            Test::IpBroadcast => self.sequence(2, exits, false, |this, index, exits| {
                let address = [0, u32::MAX][index];
                this.equal(layers.network(16), Width::Word, address, exits)
            }),
            Test::Ip6Multicast => self.equal(layers.network(24), Width::Byte, 0xff, exits),
            _ => {
                let place = layers.network(16);
                self.field(
                    place,
                    Width::Byte,
                    u32::MAX,
                    Relation::GreaterEqual,
                    224,
                    exits,
                )
            }
        }
    }

    pub(crate) fn ip_proto(
        &mut self,
        test: &Test,
        version: IpVersion,
        number: u32,
        exits: Exits,
    ) -> Result<(), CompileError> {
        match version {
            IpVersion::Any => self.sequence(2, exits, false, |this, index, exits| {
                let version = [IpVersion::V4, IpVersion::V6][index];
                this.ip_proto(test, version, number, exits)
            }),
            IpVersion::V4 => {
                let inner = self.label();
                self.ether_proto(test, IP, exits.and_then(inner))?;
                self.bind(inner);
                self.equal(self.layers.network(9), Width::Byte, number, exits)
            }
            IpVersion::V6 => {
                let (inner, other, fragment) = (self.label(), self.label(), self.label());
                self.ether_proto(test, IP6, exits.and_then(inner))?;
                self.bind(inner);
                let next = self.layers.network(6);
                self.equal(next, Width::Byte, number, exits.or_else(other))?;
                self.bind(other);
                // RFC 8200 section 4.5: a fragment header (44) directly after the IPv6 header.
                self.equal(next, Width::Byte, 44, exits.and_then(fragment))?;
                self.bind(fragment);
                self.equal(self.layers.network(40), Width::Byte, number, exits)
            }
        }
    }

    pub(crate) fn proto_chain(
        &mut self,
        test: &Test,
        version: IpVersion,
        number: u32,
        exits: Exits,
    ) -> Result<(), CompileError> {
        if version == IpVersion::Any {
            return self.sequence(2, exits, false, |this, index, exits| {
                let version = [IpVersion::V4, IpVersion::V6][index];
                this.proto_chain(test, version, number, exits)
            });
        }
        if self.layers.payload.register != NO_REGISTER {
            return Err(self.unsupported(
                test,
                "'protochain' needs a network header at a fixed offset",
            ));
        }
        let ip6 = version == IpVersion::V6;
        let inner = self.label();
        let protocol = if ip6 { IP6 } else { IP };
        self.ether_proto(test, protocol, exits.and_then(inner))?;
        self.bind(inner);
        let offset = self.layers.network(0).offset;
        self.step(Step::Chain {
            ip6,
            offset,
            number,
            yes: exits.yes.0,
            no: exits.no.0,
        })
    }

    /// The first fragment, or no fragment (RFC 791 section 3.1).
    pub(crate) fn first_fragment(&mut self, exits: Exits) -> Result<(), CompileError> {
        let place = self.layers.network(6);
        self.field(place, Width::Half, 0x1fff, Relation::Equal, 0, exits)
    }

    /// IPv6 first, then IPv4; in each SCTP, TCP, UDP: libpcap's order.
    pub(crate) fn port(
        &mut self,
        test: &Test,
        transport: Option<Transport>,
        direction: Direction,
        range: (u16, u16),
        exits: Exits,
    ) -> Result<(), CompileError> {
        let number = |transport| match transport {
            Transport::Tcp => 6,
            Transport::Udp => 17,
            Transport::Sctp => 132,
        };
        let one = transport.map(|transport| [number(transport)]);
        let transports: &[u32] = one.as_ref().map_or(&[132, 6, 17], |one| one);
        self.sequence(2, exits, false, |this, index, exits| {
            let ip6 = index == 0;
            let inner = this.label();
            let protocol = if ip6 { IP6 } else { IP };
            this.ether_proto(test, protocol, exits.and_then(inner))?;
            this.bind(inner);
            this.sequence(transports.len(), exits, false, |this, index, exits| {
                this.transport_port(ip6, transports[index], direction, range, exits)
            })
        })
    }

    fn transport_port(
        &mut self,
        ip6: bool,
        number: u32,
        direction: Direction,
        (low, high): (u16, u16),
        exits: Exits,
    ) -> Result<(), CompileError> {
        let ports = self.label();
        let place = self.layers.network(if ip6 { 6 } else { 9 });
        self.equal(place, Width::Byte, number, exits.and_then(ports))?;
        self.bind(ports);
        if !ip6 {
            let first = self.label();
            self.first_fragment(exits.and_then(first))?;
            self.bind(first);
        }
        self.directed(direction, exits, |this, is_source, exits| {
            let at = if is_source { 0_u32 } else { 2 };
            let place = if ip6 {
                this.layers.network(at.wrapping_add(40))
            } else {
                this.layers.after_ip(at)
            };
            if low == high {
                return this.equal(place, Width::Half, low.into(), exits);
            }
            let rest = this.label();
            let enough = exits.and_then(rest);
            let (low, high) = (low.into(), high.into());
            let all = u32::MAX;
            this.field(place, Width::Half, all, Relation::GreaterEqual, low, enough)?;
            this.bind(rest);
            this.field(place, Width::Half, all, Relation::LessEqual, high, exits)
        })
    }

    pub(crate) fn geneve(
        &mut self,
        test: &Test,
        vni: Option<u32>,
        exits: Exits,
    ) -> Result<(), CompileError> {
        let registers = self.registers(3)?;
        self.sequence(2, exits, false, |this, index, exits| {
            let ip6 = index == 1;
            this.geneve_in(test, ip6, vni, registers, exits)
        })?;
        self.layers.enter_geneve(registers);
        Ok(())
    }

    /// RFC 8926 section 3: UDP, destination port 6081, version 0.
    fn geneve_in(
        &mut self,
        test: &Test,
        ip6: bool,
        vni: Option<u32>,
        registers: u8,
        exits: Exits,
    ) -> Result<(), CompileError> {
        let layers = self.layers;
        let udp = |offset: u32| {
            if ip6 {
                layers.network(offset.wrapping_add(40))
            } else {
                layers.after_ip(offset)
            }
        };
        let inner = self.label();
        let checks = if vni.is_some() { 5 } else { 4 };
        self.sequence(
            checks,
            exits.and_then(inner),
            true,
            |this, index, exits| match index {
                0 => this.ether_proto(test, if ip6 { IP6 } else { IP }, exits),
                1 => {
                    let udp_only = this.label();
                    let place = layers.network(if ip6 { 6 } else { 9 });
                    this.equal(place, Width::Byte, 17, exits.and_then(udp_only))?;
                    this.bind(udp_only);
                    if ip6 {
                        this.constant(true, exits)
                    } else {
                        this.first_fragment(exits)
                    }
                }
                2 => this.equal(udp(2), Width::Half, GENEVE_PORT, exits),
                3 => this.field(udp(8), Width::Byte, 0xc0, Relation::Equal, 0, exits),
                _ => {
                    let vni = vni.expect("the last check, if there is one");
                    let value = vni << 8;
                    this.field(
                        udp(12),
                        Width::Word,
                        0xffff_ff00,
                        Relation::Equal,
                        value,
                        exits,
                    )
                }
            },
        )?;
        self.bind(inner);
        self.note(&udp(8));
        self.step(Step::Geneve {
            place: udp(8),
            to: registers,
        })?;
        self.constant(true, exits)
    }
}

fn words(value: u128) -> [u32; 4] {
    let bytes = value.to_be_bytes();
    let mut words = [0; 4];
    for (word, chunk) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u32::from_be_bytes(*chunk);
    }
    words
}

/// A position for a load in arithmetic.
pub(crate) fn start_of_packet() -> Place {
    Offset::fixed(0).place(0)
}
