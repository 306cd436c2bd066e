//! Of which flow a packet is: the number of one that was in the datagram, or what is before IP,
//! addresses and ports.

use super::code::{Invalid, field, first_of, width_of};
use super::kind::{Form, Head};
use super::model::{ADDRESSES, CONTEXTS, Key, Model, Near, PREFIXES};
use super::plain::{PREFIX_MAX, Plain, Transport, low32};
use crate::bits::Bits;

/// What is written of a plain packet in addition to its fields, or read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) form: Form,
    /// The flow, and its direction: 0 is that of the flow's first packet.
    pub(super) context: usize,
    pub(super) side: usize,
    pub(super) prefix: usize,
    /// Numbers of known addresses, for a new flow.
    pub(super) known: [Option<usize>; 2],
}

/// What is before IP: the number of one that is known, or itself.
#[inline(always)]
pub(super) fn prefix<B: Bits>(
    b: &mut B,
    m: &mut Model,
    place: &mut Place,
    bytes: &[u8],
) -> Result<(), Invalid> {
    const LATER: usize = 3;
    let wanted = place.prefix;
    let code = usize::from(b.byte(wanted.min(LATER).to_le_bytes()[0], 2));
    if code < LATER {
        place.prefix = code;
    } else {
        let later = wanted.wrapping_sub(LATER).to_le_bytes()[0];
        place.prefix = usize::from(b.byte(later & 15, 4)) + LATER;
    }
    if place.prefix == PREFIXES {
        b.apart(|b| new_prefix(b, m, place, bytes));
    }
    if place.prefix >= m.prefix_count {
        return Err(Invalid("the start of a frame that was not there"));
    }
    Ok(())
}

#[inline(never)]
fn new_prefix<B: Bits>(b: &mut B, m: &mut Model, place: &mut Place, bytes: &[u8]) {
    let mut copy = [0; PREFIX_MAX];
    if B::WRITES {
        copy[..bytes.len()].copy_from_slice(bytes);
    }
    let len = usize::from(b.byte(bytes.len().to_le_bytes()[0], 5));
    b.raw(&mut copy[..len]);
    place.prefix = m.add_prefix(&copy[..len]);
}

/// Of which flow and direction a packet is.
#[inline(always)]
pub(super) fn known_flow<B: Bits>(
    b: &mut B,
    m: &Model,
    f: &mut Plain,
    place: &mut Place,
) -> Result<(), Invalid> {
    if place.form == Form::Known {
        let width = width_of(m.context_count.saturating_sub(1));
        place.context =
            usize::from(b.half((place.context % CONTEXTS).to_le_bytes()[0].into(), width));
    } else {
        place.context = m.last_context;
    }
    place.side = usize::from(b.flag(place.side != 0));
    b.turn();
    if place.context >= m.context_count {
        return Err(Invalid("a flow that was not there"));
    }
    let context = m.context(place.context);
    if !B::WRITES {
        let key = if place.side == 0 {
            context.key
        } else {
            context.key.reversed()
        };
        (f.source, f.destination, f.ports) = (key.source, key.destination, key.ports);
        f.is_v6 = key.kind & 4 != 0;
        f.transport = match key.kind & 3 {
            0 => Transport::Tcp,
            1 => Transport::Udp,
            _ => Transport::Icmp,
        };
    }
    let side = &context.sides[place.side];
    if side.is_seen && !B::WRITES {
        place.prefix = usize::from(side.prefix);
    }
    Ok(())
}

/// The addresses and ports of a flow that was not in the datagram.
#[inline(always)]
pub(super) fn new_flow<B: Bits>(
    b: &mut B,
    m: &mut Model,
    f: &mut Plain,
    place: &mut Place,
    head: &Head,
    bytes: &[u8],
) -> Result<(), Invalid> {
    f.is_v6 = head.is_v6;
    f.transport = match head.transport {
        0 => Transport::Tcp,
        1 => Transport::Udp,
        2 => Transport::Icmp,
        _ => return Err(Invalid("an unknown transport")),
    };
    prefix(b, m, place, bytes)?;
    b.turn();
    let near = m.prefixes[place.prefix];
    let [source, destination] = near.last;
    f.source = address(b, m, f.is_v6, f.source, source, place.known[0])?;
    f.destination = address(b, m, f.is_v6, f.destination, destination, place.known[1])?;
    let near = &mut m.prefixes[place.prefix].last;
    near[0].follow(f.source);
    near[1].follow(f.destination);
    ports(b, m, f);
    b.turn();
    place.side = 0;
    let kind = f.transport as u8 | u8::from(f.is_v6) << 2;
    let key = Key {
        source: f.source,
        destination: f.destination,
        ports: f.ports,
        kind,
    };
    // If there are too many, the packet has no flow to be remembered with.
    place.context = m.add_context(key).map_or(CONTEXTS, |number| number);
    Ok(())
}

/// An address: the number of a known one, or what differs from one of the last two of this direction.
#[inline(always)]
fn address<B: Bits>(
    b: &mut B,
    m: &mut Model,
    is_v6: bool,
    address: u128,
    near: Near,
    known: Option<usize>,
) -> Result<u128, Invalid> {
    let count = m.address_count;
    if is_v6 {
        return b.apart(|b| address_v6(b, m, address, near.last, known));
    }
    let (value, last, other) = (low32(address), low32(near.last), low32(near.other));
    let more_than = |differs: u32| {
        usize::from(differs >> 16 != 0)
            + usize::from(differs >> 20 != 0)
            + usize::from(differs >> 24 != 0)
    };
    let (of_last, of_other) = (more_than(value ^ last), more_than(value ^ other));
    let new_code = 1 + if of_last <= of_other {
        of_last
    } else {
        of_other + 3
    };
    // Neither is near.
    let new_code = if of_last.min(of_other) == 3 {
        7
    } else {
        new_code
    };
    let (code, value) = match known {
        Some(number) => (0, number.to_le_bytes()[0].into()),
        None => (new_code, value),
    };
    let widths = [
        width_of(count.saturating_sub(1)),
        16,
        20,
        24,
        16,
        20,
        24,
        32,
    ];
    let (code, value) = field(b, widths, code, value);
    b.turn();
    if code == 0 {
        let number = value as usize;
        if number >= count {
            return Err(Invalid("an address that was not there"));
        }
        return Ok(m.address(number));
    }
    let width = widths[code & 7];
    let reference = if code < 4 { last } else { other };
    let same = u64::from(reference) >> width << width;
    let address = u128::from(same) | u128::from(value);
    m.add_address(address);
    Ok(address)
}

#[inline(never)]
fn address_v6<B: Bits>(
    b: &mut B,
    m: &mut Model,
    address: u128,
    near: u128,
    known: Option<usize>,
) -> Result<u128, Invalid> {
    let count = m.address_count;
    let differs = address ^ near;
    let code = match known {
        Some(_) => 0,
        None => 1 + u8::from(differs >> 64 != 0) + u8::from(differs >> 80 != 0),
    };
    let code = b.byte(code, 2);
    if code == 0 {
        // A reader knows no number yet.
        let [number, ..] = known.into_iter().sum::<usize>().to_le_bytes();
        let number = usize::from(b.byte(number, width_of(count.saturating_sub(1))));
        b.turn();
        if number >= count {
            return Err(Invalid("an address that was not there"));
        }
        return Ok(m.address(number));
    }
    b.turn();
    let len = [0, 8, 10, 16][usize::from(code & 3)];
    let mut bytes = address.to_be_bytes();
    if !B::WRITES {
        bytes = near.to_be_bytes();
    }
    b.raw(&mut bytes[16 - len..]);
    let address = u128::from_be_bytes(bytes);
    m.add_address(address);
    Ok(address)
}

/// Ports: that of a service, one of the last two or by its place in a table, and the other one.
#[inline(always)]
fn ports<B: Bits>(b: &mut B, m: &mut Model, f: &mut Plain) {
    if f.transport == Transport::Icmp {
        f.ports = b.word(f.ports & 0xffff, 16) * 0x1_0001;
        return;
    }
    let [a, c, d, e] = f.ports.to_be_bytes();
    let (from, to) = (u16::from_be_bytes([a, c]), u16::from_be_bytes([d, e]));
    let [first, second] = m.last_services;
    let ((known_to, to_place), (known_from, from_place)) = (m.service(to), m.service(from));
    let code = first_of([
        to == first,
        from == first,
        to == second,
        from == second,
        to == known_to,
        from == known_from,
    ]);
    // Even codes are for the destination.
    let (other, place) = if code & 1 == 0 {
        (from, to_place)
    } else {
        (to, from_place)
    };
    let value = match code {
        0..4 => u32::from(other),
        4 | 5 => u32::from(place) | u32::from(other) << 4,
        _ => f.ports,
    };
    let (code, value) = field(b, [16, 16, 16, 16, 20, 20, 32, 32], code, value);
    let [value_0, value_1, ..] = value.to_le_bytes();
    let (service, other) = match code {
        0 | 1 => (first, value),
        2 | 3 => (second, value),
        4 | 5 => (
            m.service_at(u16::from_le_bytes([value_0, value_1])),
            value >> 4,
        ),
        _ => {
            f.ports = value;
            m.learn_service(value);
            return;
        }
    };
    if service != first {
        m.last_services = [service, first];
    }
    let service = u32::from(service);
    f.ports = if code & 1 == 0 {
        other << 16 | service
    } else {
        service << 16 | other
    };
}

const _: () = assert!(ADDRESSES == 256 && CONTEXTS == 256 && PREFIXES == 3 + 15);
