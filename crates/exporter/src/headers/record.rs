//! One record, field by field. Writer and reader run the same code over [`Bits`], so they cannot
//! disagree on the order: a writer chooses a code from the value, a reader finds the value by the
//! code. Codes and widths are documented in docs/formats/export.md.
//!
//! Which code a field gets cannot be predicted by the CPU, so a field is its code and as many bits
//! as a table says for it, without a branch.

use super::code::{Invalid, field, first_of};
use super::flow::{Place, known_flow, new_flow, prefix};
use super::kind::{Form, Head};
use super::model::{Model, PREFIXES, Side};
use super::plain::{OPTIONS_MAX, Options, Plain, Transport};
use crate::bits::Bits;

/// What is unusual about a packet.
mod odd {
    pub(super) const TOS: u8 = 1;
    pub(super) const IP_CHECKSUM: u8 = 2;
    pub(super) const WIRE_LEN: u8 = 4;
    pub(super) const PREFIX: u8 = 8;
    pub(super) const TRANSPORT: u8 = 16;
    pub(super) const ACKNOWLEDGEMENT: u8 = 32;
}

/// TCP flags that have a code: ACK, PSH ACK, SYN, SYN ACK, FIN ACK, RST ACK, RST.
const FLAGS: [u8; 8] = [0x10, 0x18, 0x02, 0x12, 0x11, 0x14, 0x04, 0];
/// The code of any others.
const FLAGS_OTHER: u8 = 7;
const FLAG_CODES: [u8; 256] = {
    let mut codes = [FLAGS_OTHER; 256];
    let mut code = 0;
    while code < FLAGS_OTHER {
        codes[FLAGS[code as usize] as usize] = code;
        code += 1;
    }
    codes
};
/// The shortest Ethernet frame, without check sequence.
const FRAME_MIN: u32 = 60;

/// The last packets of this direction and the other one; for a direction that is new, what is
/// expected of one.
#[inline(always)]
pub(super) fn sides(m: &Model, place: &Place) -> (Side, Side) {
    let (mut last, other) = if place.form == Form::New {
        (Side::UNSEEN, Side::UNSEEN)
    } else {
        let sides = &m.context(place.context).sides;
        (sides[place.side & 1], sides[place.side & 1 ^ 1])
    };
    if !last.is_seen {
        last.tos = m.tos;
        last.prefix = place.prefix.to_le_bytes()[0];
    }
    (last, other)
}

/// What a head says of a plain packet, and the bits of what is unusual about it.
#[inline(always)]
pub(super) fn head_of(
    m: &Model,
    f: &Plain,
    place: &Place,
    prefix_len: usize,
    wire_len: u32,
) -> (Head, u8) {
    let (last, _) = sides(m, place);
    let odd = odd_fields(f, place, &last, prefix_len, wire_len);
    let is_new = place.form == Form::New;
    let (flags, options) = tcp_codes(m, f);
    let head = Head {
        form: place.form,
        has_label: false,
        is_v6: is_new && f.is_v6,
        transport: if is_new { f.transport as u8 } else { 0 },
        is_odd: odd != 0,
        flags,
        options,
    };
    (head, odd)
}

/// Everything of a plain packet after its head, time and label. `bytes` is what is before IP, `odd`
/// what is unusual, for a writer.
#[inline(always)]
#[allow(
    clippy::too_many_arguments,
    reason = "what both ends have, and what one of them has"
)]
pub(super) fn plain<B: Bits>(
    b: &mut B,
    m: &mut Model,
    f: &mut Plain,
    place: &mut Place,
    head: &Head,
    odd: u8,
    wire_len: &mut u32,
    bytes: &[u8],
) -> Result<(), Invalid> {
    let is_new = place.form == Form::New;
    if is_new {
        new_flow(b, m, f, place, head, bytes)?;
    } else {
        known_flow(b, m, f, place)?;
        if !m.context(place.context).sides[place.side & 1].is_seen {
            prefix(b, m, place, bytes)?;
            b.turn();
        }
    }
    let (last, other) = sides(m, place);
    let odd = if head.is_odd {
        b.apart(|b| odd_values(b, m, f, place, odd, bytes))?
    } else {
        0
    };
    f.tos = if B::WRITES || odd & odd::TOS != 0 {
        f.tos
    } else {
        last.tos
    };
    if f.transport == Transport::Tcp {
        tcp_start(b, m, f, head)?;
    }
    lengths(b, m, f, place, odd, wire_len)?;
    network(b, m, f, place, &last);
    match f.transport {
        Transport::Tcp => tcp(b, m, f, place, &last, &other, odd),
        Transport::Udp => {
            if !B::WRITES && odd & odd::TRANSPORT == 0 {
                f.udp_len = f.segment_len();
            }
            checksum(b, f, false);
            b.turn();
        }
        Transport::Icmp => {
            f.icmp_type = b.half(f.icmp_type, 16);
            f.checksum = b.half(f.checksum, 16);
            f.sequence = b.word(f.sequence, 16);
            b.turn();
        }
    }
    if !B::WRITES && odd & odd::IP_CHECKSUM == 0 && !f.is_v6 {
        f.ip_checksum = f.right_ip_checksum();
    }
    remember(m, f, place);
    Ok(())
}

#[inline(always)]
#[allow(
    clippy::cast_possible_truncation,
    reason = "at most 31 bytes before IP"
)]
fn odd_fields(f: &Plain, place: &Place, last: &Side, prefix_len: usize, wire_len: u32) -> u8 {
    let end = prefix_len as u32 + f.ip_total();
    let is_len = wire_len == end || (end < FRAME_MIN && wire_len == FRAME_MIN);
    let is_transport = match f.transport {
        Transport::Tcp => f.reserved == 0 && f.urgent == 0,
        Transport::Udp => f.udp_len == f.segment_len(),
        Transport::Icmp => true,
    };
    let is_checksum = f.is_v6 || f.ip_checksum == f.right_ip_checksum();
    let is_acknowledgement = f.acknowledges() || f.acknowledgement == 0;
    let odd = |is_usual: bool, bit: u8| if is_usual { 0 } else { bit };
    odd(f.tos == last.tos, odd::TOS)
        | odd(is_checksum, odd::IP_CHECKSUM)
        | odd(is_len, odd::WIRE_LEN)
        | odd(place.prefix == usize::from(last.prefix), odd::PREFIX)
        | odd(is_transport, odd::TRANSPORT)
        | odd(is_acknowledgement, odd::ACKNOWLEDGEMENT)
}

/// The values of unusual fields, but for the length on the wire, which follows the other lengths.
#[inline(never)]
fn odd_values<B: Bits>(
    b: &mut B,
    m: &mut Model,
    f: &mut Plain,
    place: &mut Place,
    odd: u8,
    bytes: &[u8],
) -> Result<u8, Invalid> {
    let odd = b.byte(odd, 6);
    if odd & odd::TOS != 0 {
        f.tos = b.byte(f.tos, 8);
    }
    if odd & odd::IP_CHECKSUM != 0 {
        f.ip_checksum = b.half(f.ip_checksum, 16);
    }
    b.turn();
    if odd & odd::PREFIX != 0 {
        prefix(b, m, place, bytes)?;
        b.turn();
    }
    if odd & odd::TRANSPORT != 0 {
        match f.transport {
            Transport::Tcp => {
                f.reserved = b.byte(f.reserved, 4);
                f.urgent = b.half(f.urgent, 16);
            }
            _ => f.udp_len = b.half(f.udp_len, 16),
        }
        b.turn();
    }
    Ok(odd)
}

/// Codes of TCP's flags and the form of its options.
#[inline(always)]
fn tcp_codes(m: &Model, f: &Plain) -> (u8, u8) {
    if f.transport != Transport::Tcp {
        return (0, 0);
    }
    let options = match f.options_form {
        Options::None => 0,
        Options::Stamps => 1,
        Options::Raw(len) if f.options[..len] == m.options[..m.options_len] => 2,
        Options::Raw(_) => 3,
    };
    (FLAG_CODES[usize::from(f.tcp_flags)], options)
}

/// TCP's flags and options, by which the length of the header is known.
#[inline(always)]
fn tcp_start<B: Bits>(b: &mut B, m: &mut Model, f: &mut Plain, head: &Head) -> Result<(), Invalid> {
    if head.flags == FLAGS_OTHER {
        f.tcp_flags = b.byte(f.tcp_flags, 8);
    } else {
        f.tcp_flags = FLAGS[usize::from(head.flags & 7)];
    }
    match head.options {
        0 => f.options_form = Options::None,
        1 => f.options_form = Options::Stamps,
        code => b.apart(|b| raw_options(b, m, f, code == 2))?,
    }
    Ok(())
}

#[inline(never)]
fn raw_options<B: Bits>(
    b: &mut B,
    m: &mut Model,
    f: &mut Plain,
    is_last: bool,
) -> Result<(), Invalid> {
    if is_last {
        if m.options_len == 0 {
            return Err(Invalid("TCP options that were not there"));
        }
        f.options = m.options;
        f.options_form = Options::Raw(m.options_len);
    } else {
        let words = b.byte((f.options_form.len() / 4).to_le_bytes()[0], 4);
        let len = usize::from(words) * 4;
        if !(1..=OPTIONS_MAX).contains(&len) {
            return Err(Invalid("an impossible length of TCP options"));
        }
        b.raw(&mut f.options[..len]);
        f.options_form = Options::Raw(len);
        (m.options, m.options_len) = (f.options, len);
    }
    Ok(())
}

/// How long payload and packet are.
#[inline(always)]
fn lengths<B: Bits>(
    b: &mut B,
    m: &mut Model,
    f: &mut Plain,
    place: &Place,
    odd: u8,
    wire_len: &mut u32,
) -> Result<(), Invalid> {
    let kind = match f.transport {
        Transport::Tcp => usize::from(f.options_form != Options::None),
        Transport::Udp => 2,
        Transport::Icmp => 3,
    };
    let full = m.full[kind];
    let len = f.payload_len;
    let code = first_of([len == 0, len == full, len < 0x800]);
    let (code, value) = field(b, [0, 0, 11, 16], code, u32::from(len));
    f.payload_len = if code == 1 {
        full
    } else {
        (value & 0xffff) as u16
    };
    if !B::WRITES && !f.is_sayable() {
        return Err(Invalid("more payload than IP can say"));
    }
    // Segments of TCP are cut at a length; datagrams have one that comes again.
    let is_full = code >= 2 && (f.payload_len > full || (kind >= 2 && f.payload_len >= 512));
    m.full[kind] = if is_full { f.payload_len } else { full };
    let end = u32::from(m.prefixes[place.prefix % PREFIXES].len) + f.ip_total();
    let is_short = end < FRAME_MIN;
    let is_padded = b.byte(
        u8::from(is_short && *wire_len == FRAME_MIN),
        u32::from(is_short),
    ) != 0;
    b.turn();
    if odd & odd::WIRE_LEN != 0 {
        *wire_len = b.word(*wire_len, 32);
        b.turn();
    } else {
        *wire_len = if is_padded { FRAME_MIN } else { end };
    }
    Ok(())
}

/// What IP says in addition to addresses and lengths.
#[inline(always)]
fn network<B: Bits>(b: &mut B, m: &mut Model, f: &mut Plain, place: &Place, last: &Side) {
    if f.is_v6 {
        let usual = if last.is_seen { last.flow_label } else { 0 };
        let is_other = b.flag(f.flow_label != usual);
        let label = b.word(
            if is_other { f.flow_label } else { 0 },
            if is_other { 20 } else { 0 },
        );
        f.flow_label = if is_other { label } else { usual };
    } else {
        f.dont_fragment = b.flag(f.dont_fragment);
        identification(b, f, last);
    }
    if last.is_seen {
        let is_other = b.flag(f.ttl != last.ttl);
        let ttl = b.byte(
            if is_other { f.ttl } else { 0 },
            if is_other { 8 } else { 0 },
        );
        f.ttl = if is_other { ttl } else { last.ttl };
    } else {
        // Of the last one; or an initial value, few hops before.
        let usual = &mut m.prefixes[place.prefix % PREFIXES].ttl;
        let below = [64_u8, 128].map(|initial| initial.wrapping_sub(f.ttl));
        let code = first_of([f.ttl == *usual, below[0] < 16, below[1] < 16]);
        let value = [0, below[0], below[1], f.ttl][code & 3];
        let (code, value) = field(b, [0, 4, 4, 8], code, u32::from(value));
        let [value, ..] = value.to_le_bytes();
        f.ttl = [*usual, 64 - (value & 15), 128 - (value & 15), value][code & 3];
        *usual = f.ttl;
    }
    b.turn();
}

#[inline(always)]
fn identification<B: Bits>(b: &mut B, f: &mut Plain, last: &Side) {
    if last.is_seen {
        let step = f.identification.wrapping_sub(last.identification);
        let code = first_of([step == 1, step == 0, step < 256]);
        let value = if code == 3 { f.identification } else { step };
        let (code, value) = field(b, [0, 0, 8, 16], code, u32::from(value));
        let value = (value & 0xffff) as u16;
        let base = last.identification;
        f.identification = [base.wrapping_add(1), base, base.wrapping_add(value), value][code & 3];
    } else {
        let is_some = b.flag(f.identification != 0);
        f.identification = b.half(f.identification, if is_some { 16 } else { 0 });
    }
}

/// TCP, but for flags, options and lengths.
#[inline(always)]
fn tcp<B: Bits>(
    b: &mut B,
    m: &mut Model,
    f: &mut Plain,
    place: &Place,
    last: &Side,
    other: &Side,
    odd: u8,
) {
    if !B::WRITES && odd & odd::TRANSPORT == 0 {
        (f.reserved, f.urgent) = (0, 0);
    }
    let has_acknowledgement = f.acknowledges() || odd & odd::ACKNOWLEDGEMENT != 0;
    let code = if last.is_seen {
        tcp_of_flow(b, f, last, other, has_acknowledgement)
    } else {
        let usual = &mut m.prefixes[place.prefix % PREFIXES].window;
        tcp_of_new(b, f, usual, other, has_acknowledgement)
    };
    if !B::WRITES {
        f.checksum = match code {
            (0, raw) => raw,
            (1, _) => f.pseudo_sum(),
            _ => f.right_empty_checksum(),
        };
    }
}

/// A checksum: as it is; or the network card's task, so only that of the pseudo-header; or right,
/// which can be known without payload only. The code, and the value of the first.
#[inline(always)]
fn checksum<B: Bits>(b: &mut B, f: &mut Plain, can_be_known: bool) -> (u8, u16) {
    let code = if !B::WRITES {
        0
    } else if can_be_known && f.checksum == f.right_empty_checksum() {
        2
    } else {
        u8::from(f.checksum == f.pseudo_sum())
    };
    let code = b.byte(code, 1 + u32::from(can_be_known));
    let raw = b.half(
        if code == 0 { f.checksum } else { 0 },
        if code == 0 { 16 } else { 0 },
    );
    if !B::WRITES && f.transport == Transport::Udp {
        f.checksum = if code == 0 { raw } else { f.pseudo_sum() };
    }
    (code, raw)
}

/// The first packet of a direction.
#[inline(always)]
fn tcp_of_new<B: Bits>(
    b: &mut B,
    f: &mut Plain,
    usual_window: &mut u16,
    other: &Side,
    has_acknowledgement: bool,
) -> (u8, u16) {
    let code = first_of([f.window == *usual_window, f.window < 0x400]);
    let (code, value) = field(b, [0, 10, 16, 16], code, u32::from(f.window));
    f.window = if code == 0 {
        *usual_window
    } else {
        (value & 0xffff) as u16
    };
    *usual_window = f.window;
    let sum = checksum(b, f, f.payload_len == 0);
    b.turn();
    if other.is_seen {
        let is_other = b.flag(f.sequence != other.acknowledgement);
        let value = b.word(
            if is_other { f.sequence } else { 0 },
            if is_other { 32 } else { 0 },
        );
        f.sequence = if is_other {
            value
        } else {
            other.acknowledgement
        };
        b.turn();
        if has_acknowledgement {
            let is_other = b.flag(f.acknowledgement != other.sequence);
            let value = b.word(
                if is_other { f.acknowledgement } else { 0 },
                if is_other { 32 } else { 0 },
            );
            f.acknowledgement = if is_other { value } else { other.sequence };
        }
    } else {
        f.sequence = b.word(f.sequence, 32);
        b.turn();
        f.acknowledgement = b.word(f.acknowledgement, if has_acknowledgement { 32 } else { 0 });
    }
    if f.options_form == Options::Stamps {
        b.turn();
        f.stamp = b.word(f.stamp, 32);
        b.turn();
        if other.is_seen {
            let is_other = b.flag(f.echo != other.stamp);
            let value = b.word(
                if is_other { f.echo } else { 0 },
                if is_other { 32 } else { 0 },
            );
            f.echo = if is_other { value } else { other.stamp };
        } else {
            f.echo = b.word(f.echo, 32);
        }
    }
    b.turn();
    sum
}

/// A packet of a direction that was in the datagram.
#[inline(always)]
fn tcp_of_flow<B: Bits>(
    b: &mut B,
    f: &mut Plain,
    last: &Side,
    other: &Side,
    has_acknowledgement: bool,
) -> (u8, u16) {
    let step = f.window.wrapping_sub(last.window).wrapping_add(128);
    let code = first_of([f.window == last.window, step < 256]);
    let value = if code == 1 { step } else { f.window };
    let (code, value) = field(b, [0, 8, 16, 16], code, u32::from(value));
    let value = (value & 0xffff) as u16;
    let near = last.window.wrapping_add(value).wrapping_sub(128);
    f.window = [last.window, near, value, value][code & 3];
    let sum = checksum(b, f, f.payload_len == 0);
    b.turn();
    let step = f.sequence.wrapping_sub(last.sequence).wrapping_add(0x8000);
    let code = first_of([f.sequence == last.sequence, step < 0x1_0000]);
    let value = if code == 1 { step } else { f.sequence };
    let (code, value) = field(b, [0, 16, 32, 32], code, value);
    let near = last.sequence.wrapping_add(value).wrapping_sub(0x8000);
    f.sequence = [last.sequence, near, value, value][code & 3];
    b.turn();
    if has_acknowledgement {
        f.acknowledgement = forward(b, f.acknowledgement, last.acknowledgement, other.sequence);
        b.turn();
    }
    if f.options_form == Options::Stamps {
        let step = f.stamp.wrapping_sub(last.stamp);
        let code = first_of([step == 0, step < 0x100, step < 0x1_0000]);
        let value = if code == 3 { f.stamp } else { step };
        let (code, value) = field(b, [0, 8, 16, 32], code, value);
        let near = last.stamp.wrapping_add(value);
        f.stamp = [near, near, near, value][code & 3];
        b.turn();
        f.echo = forward(b, f.echo, last.echo, other.stamp);
        b.turn();
    }
    sum
}

/// A number that stays, becomes what the other direction says, or goes forward.
#[inline(always)]
fn forward<B: Bits>(b: &mut B, value: u32, last: u32, other: u32) -> u32 {
    let step = value.wrapping_sub(last);
    let code = first_of([step == 0, value == other, step < 0x1_0000]);
    let said = if code == 2 { step } else { value };
    let (code, said) = field(b, [0, 0, 16, 32], code, said);
    [last, other, last.wrapping_add(said), said][code & 3]
}

/// What the next packets are compared with.
#[inline(always)]
fn remember(m: &mut Model, f: &Plain, place: &Place) {
    m.tos = f.tos;
    if place.context >= m.context_count {
        return;
    }
    m.last_context = place.context;
    let syn_fin = u32::from(f.tcp_flags & 1) + u32::from(f.tcp_flags >> 1 & 1);
    *m.side_mut(place.context, place.side) = Side {
        is_seen: true,
        prefix: place.prefix.to_le_bytes()[0],
        tos: f.tos,
        ttl: f.ttl,
        identification: f.identification,
        window: f.window,
        flow_label: f.flow_label,
        sequence: f
            .sequence
            .wrapping_add(u32::from(f.payload_len))
            .wrapping_add(syn_fin),
        acknowledgement: f.acknowledgement,
        stamp: f.stamp,
        echo: f.echo,
    };
}
