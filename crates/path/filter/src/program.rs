//! The compiled filter and its evaluation.
//!
//! A program is a list of steps with forward jumps only, so it always ends.
//! As in BPF, a load beyond the captured bytes rejects the packet whatever
//! the rest of the filter says, and arithmetic is modulo 2^32.

use std::sync::Arc;

use crate::ast::{NetworkSet, Operator, Relation, Width};

/// Jump targets that are not steps.
pub(crate) const ACCEPT: u32 = u32::MAX;
pub(crate) const REJECT: u32 = u32::MAX - 1;

/// Offsets that are known only at run time, and intermediate results.
pub(crate) const REGISTERS: usize = 32;
/// The initial value of a register: a place beyond every packet. A test inside an encapsulation
/// that the packet does not have thus fails to load, and rejects.
const UNSET: u32 = u32::MAX;
/// No register: relative to the first byte of the packet.
pub(crate) const NO_REGISTER: u8 = u8::MAX;

/// A header chain longer than this matches nothing.
///
/// Following libpcap, an authentication header sets the position instead of
/// moving it, so that a crafted packet can point backwards; this ends it.
const CHAIN_HEADERS_MAX: usize = 256;

/// Where to load from: `register + header length + offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) register: u8,
    /// Skip the IPv4 header at `register + ip_offset`.
    pub(crate) after_ip: bool,
    pub(crate) ip_offset: u32,
    pub(crate) offset: u32,
}

/// What happens at one point of a program. Steps without targets continue with the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Compare `load & mask` with a value.
    Field {
        place: Place,
        width: Width,
        relation: Relation,
        mask: u32,
        value: u32,
        yes: u32,
        no: u32,
    },
    /// Look an address up in a set of networks.
    Networks {
        place: Place,
        is_v6: bool,
        /// Its number in the program.
        set: u16,
        yes: u32,
        no: u32,
    },
    /// Compare two registers.
    Compare {
        left: u8,
        right: u8,
        relation: Relation,
        yes: u32,
        no: u32,
    },
    /// Jump.
    Jump {
        to: u32,
    },
    SetNumber {
        to: u8,
        value: u32,
    },
    SetLength {
        to: u8,
        /// Bytes of the packet that do not count.
        less: u32,
    },
    /// Load at a place moved by the value of `index`.
    SetLoad {
        to: u8,
        index: u8,
        place: Place,
        width: Width,
    },
    Negate {
        to: u8,
    },
    /// `to = to operator right`.
    Binary {
        to: u8,
        operator: Operator,
        right: u8,
    },
    /// The length of a radiotap header.
    Radiotap {
        to: u8,
    },
    /// The length of a Prism header, or of an AVS header where Prism is expected.
    Prism {
        to: u8,
    },
    /// The length of an AVS header.
    Avs {
        to: u8,
    },
    /// The start of the LLC header after an 802.11 header.
    WlanPayload {
        link: u8,
        to: u8,
        radiotap: bool,
    },
    /// After a Geneve header: `to` is the place of the inner protocol's type, `to + 1` of the
    /// inner link header, `to + 2` of the inner network header.
    Geneve {
        place: Place,
        to: u8,
    },
    /// Follow the chain of headers from an IPv4 or IPv6 header at `offset`.
    Chain {
        ip6: bool,
        offset: u32,
        number: u32,
        yes: u32,
        no: u32,
    },
}

/// A filter ready for one link type.
///
/// Evaluation allocates nothing, and its time is bounded by the size of the
/// program: each step runs at most once. A set of networks is one step, a binary search.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) steps: Vec<Step>,
    pub(crate) start: u32,
    /// Those that its steps refer to.
    pub(crate) sets: Vec<Arc<NetworkSet>>,
    /// Of a program that looks through a VLAN tag: that for packets without one, and that for packets with one.
    pub(crate) by_tag: Option<Box<[Program; 2]>>,
}

impl Program {
    /// Whether the filter accepts a packet.
    ///
    /// `packet` is the captured bytes, starting at the link-layer header; `wire_len` is the length
    /// on the wire. Never panics.
    #[must_use]
    pub fn matches(&self, packet: &[u8], wire_len: u32) -> bool {
        self.test(packet, wire_len) == Some(true)
    }

    /// As [`Program::matches`], but `None` where that is false since the filter reads beyond `packet`, or divides by 0.
    #[must_use]
    pub fn test(&self, packet: &[u8], wire_len: u32) -> Option<bool> {
        run(self, packet, wire_len)
    }

    /// The number of steps; an upper bound for the work per packet.
    #[must_use]
    pub fn step_count(&self) -> usize {
        self.steps.len()
    }
}

/// `None` is a load beyond the packet or a division by zero. One match, longer than other functions:
/// an interpreter is read step by step.
#[allow(clippy::too_many_lines, reason = "said above")]
fn run(program: &Program, packet: &[u8], wire_len: u32) -> Option<bool> {
    let steps = &program.steps;
    let mut registers = [UNSET; REGISTERS];
    let mut at = program.start;
    loop {
        let Some(step) = usize::try_from(at).ok().and_then(|index| steps.get(index)) else {
            return Some(at == ACCEPT);
        };
        let mut next = at.saturating_add(1);
        match *step {
            Step::Field {
                ref place,
                width,
                relation,
                mask,
                value,
                yes,
                no,
            } => {
                let start = base(packet, &registers, place)?;
                let loaded = load(packet, start, place.offset, width)?;
                let holds = holds(relation, loaded & mask, value);
                next = if holds { yes } else { no };
            }
            Step::Networks {
                ref place,
                is_v6,
                set,
                yes,
                no,
            } => {
                let start = base(packet, &registers, place)?;
                let networks = program.sets.get(usize::from(set))?;
                let is_in = match is_v6 {
                    false => networks.contains_v4(load(packet, start, place.offset, Width::Word)?),
                    true => networks.contains_v6(load_v6(packet, start, place.offset)?),
                };
                next = if is_in { yes } else { no };
            }
            Step::Compare {
                left,
                right,
                relation,
                yes,
                no,
            } => {
                let (left, right) = (get(&registers, left), get(&registers, right));
                let holds = holds(relation, left, right);
                next = if holds { yes } else { no };
            }
            Step::Jump { to } => next = to,
            Step::SetNumber { to, value } => set(&mut registers, to, value),
            Step::SetLength { to, less } => set(&mut registers, to, wire_len.wrapping_sub(less)),
            Step::SetLoad {
                to,
                index,
                ref place,
                width,
            } => {
                let start = base(packet, &registers, place)?;
                let start = start.wrapping_add(get(&registers, index));
                let value = load(packet, start, place.offset, width)?;
                set(&mut registers, to, value);
            }
            Step::Negate { to } => {
                let value = get(&registers, to).wrapping_neg();
                set(&mut registers, to, value);
            }
            Step::Binary {
                to,
                operator,
                right,
            } => {
                let value = apply(operator, get(&registers, to), get(&registers, right))?;
                set(&mut registers, to, value);
            }
            Step::Radiotap { to } => set(&mut registers, to, radiotap_length(packet)?),
            Step::Prism { to } => set(&mut registers, to, prism_length(packet)?),
            Step::Avs { to } => set(&mut registers, to, load(packet, 0, 4, Width::Word)?),
            Step::WlanPayload { link, to, radiotap } => {
                let link = get(&registers, link);
                set(&mut registers, to, wlan_payload(packet, link, radiotap)?);
            }
            Step::Geneve { ref place, to } => {
                let start = base(packet, &registers, place)?.wrapping_add(place.offset);
                for (index, value) in (to..).zip(geneve(packet, start)?) {
                    set(&mut registers, index, value);
                }
            }
            Step::Chain {
                ip6,
                offset,
                number,
                yes,
                no,
            } => {
                let found = chain(packet, ip6, offset, number)?;
                next = if found { yes } else { no };
            }
        }
        at = next;
    }
}

#[inline]
fn get(registers: &[u32; REGISTERS], index: u8) -> u32 {
    registers.get(usize::from(index)).map_or(0, |value| *value)
}

#[inline]
fn set(registers: &mut [u32; REGISTERS], index: u8, value: u32) {
    if let Some(register) = registers.get_mut(usize::from(index)) {
        *register = value;
    }
}

#[inline]
fn base(packet: &[u8], registers: &[u32; REGISTERS], place: &Place) -> Option<u32> {
    let start = get(registers, place.register);
    if !place.after_ip {
        return Some(start);
    }
    // RFC 791 section 3.1: the header length in words, in the low half of the first byte.
    let words = load(packet, start, place.ip_offset, Width::Byte)? & 0x0f;
    Some(start.wrapping_add(words << 2))
}

/// A big-endian number, if all of it was captured. The sum does not wrap.
#[inline]
fn load(packet: &[u8], start: u32, offset: u32, width: Width) -> Option<u32> {
    let at = usize::try_from(u64::from(start).saturating_add(offset.into())).ok()?;
    match width {
        Width::Byte => packet.get(at).map(|byte| u32::from(*byte)),
        Width::Half => {
            let bytes = packet.get(at..)?.first_chunk()?;
            Some(u32::from(u16::from_be_bytes(*bytes)))
        }
        Width::Word => Some(u32::from_be_bytes(*packet.get(at..)?.first_chunk()?)),
    }
}

/// An IPv6 address, if all of it was captured.
#[inline]
fn load_v6(packet: &[u8], start: u32, offset: u32) -> Option<u128> {
    let at = usize::try_from(u64::from(start).saturating_add(offset.into())).ok()?;
    Some(u128::from_be_bytes(*packet.get(at..)?.first_chunk()?))
}

#[inline]
fn holds(relation: Relation, left: u32, right: u32) -> bool {
    match relation {
        Relation::Equal => left == right,
        Relation::NotEqual => left != right,
        Relation::Less => left < right,
        Relation::LessEqual => left <= right,
        Relation::Greater => left > right,
        Relation::GreaterEqual => left >= right,
    }
}

/// `None` is a division by zero.
pub(crate) fn apply(operator: Operator, left: u32, right: u32) -> Option<u32> {
    Some(match operator {
        Operator::Add => left.wrapping_add(right),
        Operator::Subtract => left.wrapping_sub(right),
        Operator::Multiply => left.wrapping_mul(right),
        Operator::Divide => left.checked_div(right)?,
        Operator::Modulo => left.checked_rem(right)?,
        Operator::And => left & right,
        Operator::Or => left | right,
        Operator::Xor => left ^ right,
        Operator::ShiftLeft => left.unbounded_shl(right),
        Operator::ShiftRight => left.unbounded_shr(right),
    })
}

pub(crate) fn decide(relation: Relation, left: u32, right: u32) -> bool {
    holds(relation, left, right)
}

/// <https://www.radiotap.org/>: `it_len`, little-endian.
fn radiotap_length(packet: &[u8]) -> Option<u32> {
    let high = load(packet, 0, 3, Width::Byte)?;
    Some(high << 8 | load(packet, 0, 2, Width::Byte)?)
}

/// An AVS header starts with 0x80211xxx and its length; a Prism header always has 144 bytes.
fn prism_length(packet: &[u8]) -> Option<u32> {
    if load(packet, 0, 0, Width::Word)? & 0xffff_f000 == 0x8021_1000 {
        load(packet, 0, 4, Width::Word)
    } else {
        Some(144)
    }
}

/// IEEE 802.11-2020 9.3.2.1: 24 bytes; 26 in `QoS` data frames. The radiotap flags may
/// say that the header is padded to a multiple of four bytes.
fn wlan_payload(packet: &[u8], link: u32, radiotap: bool) -> Option<u32> {
    let plain = link.wrapping_add(24);
    let control = load(packet, link, 0, Width::Byte)?;
    if control & 0x08 == 0 || control & 0x04 != 0 {
        return Some(plain);
    }
    let length = if control & 0x80 != 0 {
        plain.wrapping_add(2)
    } else {
        plain
    };
    if !radiotap {
        return Some(length);
    }
    // The little-endian presence bits, loaded in network order: flags, extension, TSFT.
    let present = load(packet, 0, 4, Width::Word)?;
    if present & 0x0200_0000 == 0 || present & 0x0000_0080 != 0 {
        return Some(length);
    }
    let flags_at = if present & 0x0100_0000 != 0 { 16 } else { 8 };
    if load(packet, 0, flags_at, Width::Byte)? & 0x20 == 0 {
        return Some(length);
    }
    Some(length.wrapping_add(3) & !3)
}

/// RFC 8926 section 3.4: 8 bytes, options in words, the inner protocol's `EtherType`.
fn geneve(packet: &[u8], start: u32) -> Option<[u32; 3]> {
    let options = (load(packet, start, 0, Width::Byte)? & 0x3f) << 2;
    let inner = start.wrapping_add(8).wrapping_add(options);
    let protocol = load(packet, start, 2, Width::Half)?;
    // RFC 1701: transparent Ethernet bridging.
    Some(if protocol == 0x6558 {
        [inner.wrapping_add(12), inner, inner.wrapping_add(14)]
    } else {
        [start.wrapping_add(2), inner, inner]
    })
}

/// RFC 8200 section 4: next header and length in 8-byte units without the first.
/// RFC 4302 section 2.2: of an authentication header, in 4-byte units without two.
fn chain(packet: &[u8], ip6: bool, offset: u32, number: u32) -> Option<bool> {
    const NO_NEXT_HEADER: u32 = 59;
    const AUTHENTICATION: u32 = 51;
    let (mut next, mut position) = if ip6 {
        (load(packet, 0, offset.wrapping_add(6), Width::Byte)?, 40)
    } else {
        let next = load(packet, 0, offset.wrapping_add(9), Width::Byte)?;
        (next, (load(packet, 0, offset, Width::Byte)? & 0x0f) << 2)
    };
    for _ in 0..CHAIN_HEADERS_MAX {
        if next == number || next == NO_NEXT_HEADER {
            return Some(next == number);
        }
        let following = match next {
            0 | 43 | 44 | 60 if ip6 => load(packet, position, offset, Width::Byte)?,
            AUTHENTICATION => load(packet, position, offset, Width::Byte)?,
            _ => return Some(false),
        };
        position = if next == AUTHENTICATION {
            // Not added to the position: libpcap's filters do the same.
            let units = load(packet, position.wrapping_add(1), offset, Width::Byte)?;
            units.wrapping_add(2).wrapping_mul(4)
        } else {
            let length = load(packet, position, offset.wrapping_add(1), Width::Byte)?;
            position.wrapping_add(length.wrapping_add(1).wrapping_mul(8))
        };
        next = following;
    }
    Some(false)
}
