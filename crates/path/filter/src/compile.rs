//! From the tree to a program for one link type.
//!
//! Steps come in the order in which libpcap's unoptimised code loads, because a load beyond the
//! captured bytes decides the packet.

mod arith;
mod internet;
pub(crate) mod layers;
mod link;
mod mac;
pub(crate) mod thread;

use strata_wire::{LinkType, exact};

use std::sync::Arc;

use crate::ast::{Expr, NetworkSet, Relation, Test, Width};
use crate::compile::layers::{FIRST_FREE, Layers, Link, Offset, Radio, WLAN_LINK, WLAN_PAYLOAD};
use crate::error::CompileError;
use crate::program::{ACCEPT, NO_REGISTER, Place, Program, REGISTERS, REJECT, Step};

/// Larger programs are refused.
const STEPS_MAX: usize = 1 << 20;

/// A jump target that may not be known yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label(pub(crate) u32);

/// Where to continue, by the outcome of a test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exits {
    pub(crate) yes: Label,
    pub(crate) no: Label,
}

impl Exits {
    /// The exits of a first test if another one, at `next`, must hold too.
    pub(crate) fn and_then(self, next: Label) -> Self {
        Self { yes: next, ..self }
    }

    /// As [`Exits::and_then`], if there is another one.
    pub(crate) fn and_maybe(self, more: bool, next: Label) -> Self {
        if more { self.and_then(next) } else { self }
    }

    /// The exits of a first test if otherwise another one, at `next`, may hold.
    pub(crate) fn or_else(self, next: Label) -> Self {
        Self { no: next, ..self }
    }

    /// The exits of a first test that must not hold, before another one at `next`.
    pub(crate) fn unless(self, next: Label) -> Self {
        Self {
            yes: self.no,
            no: next,
        }
    }
}

pub(crate) fn compile(expr: &Expr, link: LinkType) -> Result<Program, CompileError> {
    let mut compiler = Compiler::new(link);
    let exits = Exits {
        yes: Label(ACCEPT),
        no: Label(REJECT),
    };
    compiler.expr(expr, exits)?;
    // libpcap's filters support PPI with 802.11 only, but do not check that where the last header
    // they have entered is another. The empty filter accepts everything.
    let in_ppi = compiler.layers.link == Link::Wlan(Radio::Ppi);
    compiler.asks_for_wlan = in_ppi && !matches!(expr, Expr::Any);
    Ok(compiler.finish())
}

/// As [`compile`], of packets with one VLAN tag more or none: one that the kernel takes off (802.1Q, 802.1ad).
pub(crate) fn compile_through_tag(expr: &Expr, link: LinkType) -> Result<Program, CompileError> {
    let mut compiler = Compiler::new(link);
    if !compiler.layers.has_tags() || matches!(expr, Expr::Any) {
        return compile(expr, link);
    }
    let exits = Exits {
        yes: Label(ACCEPT),
        no: Label(REJECT),
    };
    let (tagged, bare) = (compiler.label(), compiler.label());
    let by_tag = Exits {
        yes: tagged,
        no: bare,
    };
    compiler.is_tagged(&Test::Vlan(None), &[0x8100, 0x88a8], by_tag)?;
    let outer = (compiler.layers, compiler.free_register);
    compiler.bind(bare);
    compiler.expr(expr, exits)?;
    (compiler.layers, compiler.free_register) = outer;
    compiler.layers.look_through_tag();
    compiler.bind(tagged);
    compiler.expr(expr, exits)?;
    let mut program = compiler.finish();
    let mut alone = Compiler::new(link);
    alone.layers.look_through_tag();
    alone.expr(expr, exits)?;
    program.by_tag = Some(Box::new([compile(expr, link)?, alone.finish()]));
    Ok(program)
}

pub(crate) struct Compiler {
    pub(crate) layers: Layers,
    /// Jump targets are labels until [`Compiler::finish`].
    steps: Vec<Step>,
    labels: Vec<u32>,
    sets: Vec<Arc<NetworkSet>>,
    /// The first register not used by an encapsulation.
    pub(crate) free_register: u8,
    needs_wlan_link: bool,
    needs_wlan_payload: bool,
    asks_for_wlan: bool,
}

impl Compiler {
    fn new(link: LinkType) -> Self {
        Self {
            layers: Layers::new(link),
            steps: Vec::new(),
            labels: Vec::new(),
            sets: Vec::new(),
            free_register: FIRST_FREE,
            needs_wlan_link: false,
            needs_wlan_payload: false,
            asks_for_wlan: false,
        }
    }

    pub(crate) fn expr(&mut self, expr: &Expr, exits: Exits) -> Result<(), CompileError> {
        match expr {
            Expr::Any => self.step(Step::Jump { to: exits.yes.0 }),
            Expr::Test(test) => self.test(test, exits),
            Expr::Not(inner) => self.expr(
                inner,
                Exits {
                    yes: exits.no,
                    no: exits.yes,
                },
            ),
            Expr::And(parts) => self.sequence(parts.len(), exits, true, |this, index, exits| {
                this.expr(&parts[index], exits)
            }),
            Expr::Or(parts) => self.sequence(parts.len(), exits, false, |this, index, exits| {
                this.expr(&parts[index], exits)
            }),
        }
    }

    /// `count` tests joined by `and` (`all`) or `or`.
    pub(crate) fn sequence(
        &mut self,
        count: usize,
        exits: Exits,
        all: bool,
        mut emit: impl FnMut(&mut Self, usize, Exits) -> Result<(), CompileError>,
    ) -> Result<(), CompileError> {
        let Some(last) = count.checked_sub(1) else {
            return self.constant(all, exits);
        };
        for index in 0..last {
            let next = self.label();
            let inner = if all {
                exits.and_then(next)
            } else {
                exits.or_else(next)
            };
            emit(self, index, inner)?;
            self.bind(next);
        }
        emit(self, last, exits)
    }

    fn test(&mut self, test: &Test, exits: Exits) -> Result<(), CompileError> {
        match test {
            Test::Address {
                scope,
                direction,
                network,
            } => self.address(test, *scope, *direction, network, exits),
            Test::Named {
                direction,
                networks,
                ..
            } => self.named(test, *direction, networks, exits),
            Test::Mac { direction, address } => self.mac(test, *direction, *address, exits),
            Test::Port {
                transport,
                direction,
                low,
                high,
            } => self.port(test, *transport, *direction, (*low, *high), exits),
            Test::EtherProto(number) => self.ether_proto(test, *number, exits),
            Test::IpProto { version, number } => self.ip_proto(test, *version, *number, exits),
            Test::ProtoChain { version, number } => {
                self.proto_chain(test, *version, *number, exits)
            }
            Test::IsoProto(number) => self.iso_proto(test, *number, exits),
            Test::IsIsProto(number) => self.isis_proto(test, *number, exits),
            Test::EtherBroadcast => self.ether_broadcast(test, exits),
            Test::EtherMulticast => self.ether_multicast(test, exits),
            Test::IpBroadcast | Test::IpMulticast | Test::Ip6Multicast => self.ip_cast(test, exits),
            Test::Inbound => self.direction(
                test,
                Exits {
                    yes: exits.no,
                    no: exits.yes,
                },
            ),
            Test::Outbound => self.direction(test, exits),
            Test::IfIndex(index) => {
                if self.layers.link != Link::LinuxCooked2 {
                    return Err(self.unsupported(
                        test,
                        "a capture file carries the interface index only in Linux cooked v2",
                    ));
                }
                let place = self.layers.link_header.place(4);
                self.equal(place, Width::Word, *index, exits)
            }
            Test::Vlan(id) => self.vlan(test, *id, exits),
            Test::Mpls(label) => self.mpls(test, *label, exits),
            Test::PppoeDiscovery => self.ether_proto(test, 0x8863, exits),
            Test::PppoeSession(session) => self.pppoe(test, *session, exits),
            Test::Geneve(vni) => self.geneve(test, *vni, exits),
            Test::Llc(kind) => self.llc(test, *kind, exits),
            Test::WlanType(bits) => self.frame_control(test, 0, 0x0c, (*bits).into(), exits),
            Test::WlanSubtype(bits) => self.frame_control(test, 0, 0xfc, (*bits).into(), exits),
            Test::WlanDirection(bits) => self.frame_control(test, 1, 0x03, *bits, exits),
            Test::Compare {
                left,
                relation,
                right,
            } => self.compare(test, left, *relation, right, exits),
        }
    }

    /// Linux cooked captures say whether the host sent the packet (`PACKET_OUTGOING`, 4).
    fn direction(&mut self, test: &Test, exits: Exits) -> Result<(), CompileError> {
        match self.layers.link {
            Link::LinuxCooked => {
                self.equal(self.layers.link_header.place(0), Width::Half, 4, exits)
            }
            Link::LinuxCooked2 => {
                self.equal(self.layers.link_header.place(10), Width::Byte, 4, exits)
            }
            _ => Err(self.unsupported(
                test,
                "a capture file carries the direction only in Linux cooked captures",
            )),
        }
    }

    pub(crate) fn unsupported(&self, test: &Test, reason: &'static str) -> CompileError {
        if self.layers.link == Link::Unknown {
            return CompileError::UnknownLink {
                test: test.to_string(),
                link: self.layers.outer,
            };
        }
        CompileError::Unsupported {
            test: test.to_string(),
            link: self.layers.link_words(),
            reason,
        }
    }

    pub(crate) fn label(&mut self) -> Label {
        let number = self.labels.len();
        self.labels.push(REJECT);
        Label(u32::try_from(number).unwrap_or(REJECT))
    }

    /// Binds `label` to the next step.
    pub(crate) fn bind(&mut self, label: Label) {
        let here = u32::try_from(self.steps.len()).unwrap_or(REJECT);
        if let Some(target) = usize::try_from(label.0)
            .ok()
            .and_then(|index| self.labels.get_mut(index))
        {
            *target = here;
        }
    }

    pub(crate) fn step(&mut self, step: Step) -> Result<(), CompileError> {
        if self.steps.len() >= STEPS_MAX {
            return Err(CompileError::TooLarge {
                what: "it has more than a million steps",
            });
        }
        self.steps.push(step);
        Ok(())
    }

    /// The number of a set of networks in the program.
    pub(crate) fn set(&mut self, networks: &Arc<NetworkSet>) -> Result<u16, CompileError> {
        let known = self.sets.iter().position(|set| Arc::ptr_eq(set, networks));
        let number = known.unwrap_or(self.sets.len());
        let number = u16::try_from(number).map_err(|_| CompileError::TooLarge {
            what: "it has more than 65,536 names of networks",
        })?;
        if known.is_none() {
            self.sets.push(Arc::clone(networks));
        }
        Ok(number)
    }

    pub(crate) fn constant(&mut self, outcome: bool, exits: Exits) -> Result<(), CompileError> {
        self.step(Step::Jump {
            to: if outcome { exits.yes.0 } else { exits.no.0 },
        })
    }

    pub(crate) fn field(
        &mut self,
        place: Place,
        width: Width,
        mask: u32,
        relation: Relation,
        value: u32,
        exits: Exits,
    ) -> Result<(), CompileError> {
        self.note(&place);
        let Exits { yes, no } = exits;
        self.step(Step::Field {
            place,
            width,
            relation,
            mask,
            value,
            yes: yes.0,
            no: no.0,
        })
    }

    pub(crate) fn equal(
        &mut self,
        place: Place,
        width: Width,
        value: u32,
        exits: Exits,
    ) -> Result<(), CompileError> {
        self.field(place, width, u32::MAX, Relation::Equal, value, exits)
    }

    /// Whether some of `bits` are set in a byte.
    pub(crate) fn any_bit(
        &mut self,
        place: Place,
        bits: u32,
        exits: Exits,
    ) -> Result<(), CompileError> {
        self.field(place, Width::Byte, bits, Relation::NotEqual, 0, exits)
    }

    /// Of the values for 802.11, only those needed are computed.
    pub(crate) fn note(&mut self, place: &Place) {
        let Link::Wlan(radio) = Layers::new(self.layers.outer).link else {
            return;
        };
        self.needs_wlan_link |= place.register == WLAN_LINK && radio != Radio::None;
        self.needs_wlan_payload |= place.register == WLAN_PAYLOAD;
    }

    /// Registers for an encapsulation, kept until the end.
    pub(crate) fn registers(&mut self, count: u8) -> Result<u8, CompileError> {
        let first = self.free_register;
        if usize::from(first.saturating_add(count)) > REGISTERS {
            return Err(CompileError::TooLarge {
                what: "it has too many nested encapsulations or operators",
            });
        }
        self.free_register = self.free_register.saturating_add(count);
        Ok(first)
    }

    fn finish(self) -> Program {
        let mut steps = self.prologue();
        let shift = exact::<u32>(steps.len());
        let resolve = |label: u32| match label {
            ACCEPT | REJECT => label,
            _ => usize::try_from(label)
                .ok()
                .and_then(|index| self.labels.get(index))
                .map_or(REJECT, |at| at.saturating_add(shift)),
        };
        steps.extend(self.steps.iter().map(|step| {
            let mut step = *step;
            for target in thread::targets(&mut step) {
                *target = resolve(*target);
            }
            step
        }));
        let start = thread::thread(&mut steps);
        Program {
            steps,
            start,
            sets: self.sets,
            by_tag: None,
        }
    }

    /// Lengths of the headers before and of 802.11.
    fn prologue(&self) -> Vec<Step> {
        let Link::Wlan(radio) = Layers::new(self.layers.outer).link else {
            return Vec::new();
        };
        let mut steps = Vec::new();
        if self.asks_for_wlan {
            // The link type of the content, 105, little-endian.
            steps.push(Step::Field {
                place: Offset::fixed(4).place(0),
                width: Width::Word,
                relation: Relation::Equal,
                mask: u32::MAX,
                value: 0x6900_0000,
                yes: 1,
                no: REJECT,
            });
        }
        let header = match radio {
            Radio::None => None,
            Radio::Radiotap => Some(Step::Radiotap { to: WLAN_LINK }),
            Radio::Prism => Some(Step::Prism { to: WLAN_LINK }),
            Radio::Avs => Some(Step::Avs { to: WLAN_LINK }),
            // The length is where radiotap has it.
            Radio::Ppi => Some(Step::Radiotap { to: WLAN_LINK }),
        };
        if self.needs_wlan_link || self.needs_wlan_payload {
            steps.extend(header);
        }
        if self.needs_wlan_payload {
            steps.push(Step::WlanPayload {
                link: if radio == Radio::None {
                    NO_REGISTER
                } else {
                    WLAN_LINK
                },
                to: WLAN_PAYLOAD,
                radiotap: radio == Radio::Radiotap,
            });
        }
        steps
    }
}
