//! The records that most packets have, written without detours: packets over Ethernet with nothing unusual,
//! the first of a flow and those of a direction that was seen. [`crate::headers::write`] writes the same bits, and those
//! of all other packets.
//!
//! A header's length says what it would have to be, so all its fields are at known places; whatever is
//! not as it would have to be is left to the other writer before anything is changed.
//!
//! What makes it fast: fields are read from the header where they are needed; room is reserved once for the whole record;
//! codes and values are gathered in three words, of which each is written at once; and which of its codes a field has is
//! found by tables and conditional moves, since no CPU predicts it.

mod seen;
mod ways;

use std::hint::select_unpredictable;

use strata_wire::LinkType;
use strata_wire::transport::tcp_flag::ACK;

use super::shape::{ETHERNET_LEN, Shape};
use crate::bits::{Position, Reserved};
use crate::headers::index::{self, Found};
use crate::headers::key::Key;
use crate::headers::kind::{FLAGS, FLAGS_OTHER, FRAME_MIN, HEADS_BITS, Head, OptionsCode};
use crate::headers::model::{Model, PREFIXES, Side};
use crate::headers::sums::add;
use crate::headers::write::Context;
use crate::headers::{Header, head, ports};
use ways::Said;

/// What became of a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::headers) enum Outcome {
    Written,
    /// Its record is one of those, but there is no room for it.
    Full,
    /// Its record is another.
    Other,
}

/// Writes the record, if it is one of those, into a datagram of at most `room` bytes.
#[inline(always)]
pub(in crate::headers) fn write(
    bytes: &mut [u8],
    at: &mut Position,
    room: usize,
    c: Context<'_>,
    header: &Header<'_>,
) -> Outcome {
    match header.bytes.len() {
        42 => Shape::<42>::write(bytes, at, room, c, header),
        54 => Shape::<54>::write(bytes, at, room, c, header),
        66 => Shape::<66>::write(bytes, at, room, c, header),
        62 => Shape::<62>::write(bytes, at, room, c, header),
        74 => Shape::<74>::write(bytes, at, room, c, header),
        86 => Shape::<86>::write(bytes, at, room, c, header),
        _ => Outcome::Other,
    }
}

/// What IP says.
struct Ip {
    /// Sum of the addresses, as they are in memory.
    sum: u64,
    /// Bytes after the transport's header.
    payload_len: u16,
    /// In the head.
    head: u16,
}

/// A packet whose record is one of these.
struct Packet<'a, const LEN: usize> {
    h: &'a [u8; LEN],
    payload_len: u16,
    is_padded: bool,
    /// A reader knows the checksum.
    is_known: bool,
    flow: Flow,
    /// The number of the start of the frame, or [`PREFIXES`].
    prefix: usize,
    /// The number of the head.
    known: u8,
}

/// Its flow.
#[derive(Clone, Copy)]
enum Flow {
    /// Is new, and will have this place.
    New(u8),
    /// Was seen in this direction.
    Seen(Found),
}

/// Bits of a time difference after which there is room for codes: of the 63 between two turns, at most 7 are there
/// before, and 25 are for codes.
const TIME_USUAL: u32 = 63 - 7 - HEADS_BITS - 25;

impl<const LEN: usize> Shape<LEN> {
    #[inline(always)]
    fn write(
        bytes: &mut [u8],
        at: &mut Position,
        room: usize,
        mut c: Context<'_>,
        header: &Header<'_>,
    ) -> Outcome {
        let Some(packet) = Self::recognised(&c, header) else {
            return Outcome::Other;
        };
        let Some((time, time_width)) = head::short_time(c.datagram, c.units) else {
            return Outcome::Other;
        };
        let end = bytes.len();
        let mut w = Reserved::new(bytes, *at);
        let first = u64::from(packet.known) | time << HEADS_BITS;
        w.bits(first, HEADS_BITS.wrapping_add(time_width));
        if time_width > TIME_USUAL {
            w.turn();
        }
        c.m.time_ns = header.ts_ns;
        match packet.flow {
            Flow::New(place) => Self::write_first(&mut w, &mut c, &packet, place),
            Flow::Seen(found) => Self::write_seen(&mut w, c.m, &packet, found),
        }
        let position = w.position();
        if position.len(end) > room {
            return Outcome::Full;
        }
        *at = position;
        Outcome::Written
    }

    /// Writes the first packet of a flow.
    #[inline(always)]
    fn write_first(w: &mut Reserved<'_>, c: &mut Context<'_>, packet: &Packet<'_, LEN>, place: u8) {
        let (number, prefix) = if packet.prefix == PREFIXES {
            c.index.prefix(c.m, &packet.h[..ETHERNET_LEN])
        } else {
            (packet.prefix, packet.prefix)
        };
        Self::values(w, c.m, packet, (number, prefix));
        let side = Self::side(packet, prefix, c.m.tos);
        c.m.add_context(place, &Self::key(packet.h), side);
    }

    /// Writes codes and values.
    #[inline(always)]
    fn values(
        w: &mut Reserved<'_>,
        m: &mut Model,
        packet: &Packet<'_, LEN>,
        (number, prefix): (usize, usize),
    ) {
        let h = packet.h;
        let mut ends = Bits::default();
        let (end_codes, bytes) = Self::ends(h, m, prefix, &mut ends);
        let (ports_code, place, ports) = ports::write(&mut m.services, be32(h, Self::AT));
        if number == PREFIXES {
            w.all([ETHERNET_LEN.to_le_bytes()[0]]);
            w.all::<ETHERNET_LEN>(part(h, 0));
        }
        if Self::V6 {
            w.last(Self::source(h), bytes[0]);
            w.last(Self::destination(h), bytes[1]);
        }
        let ports_len = if ports_code < ports::BOTH { 2 } else { 4 };
        w.some(ports.to_be_bytes(), ports_len);
        Self::whole(w, packet);
        let mut rest = Bits::default();
        rest.push(place.into(), ports::place_width(ports_code));
        let usual = m.prefix_mut(prefix);
        let ttl = ways::ttl(Self::ttl(h), usual.ttl);
        usual.ttl = Self::ttl(h);
        rest.push(ttl.value, ttl.width);
        let mut window = Bits::default();
        let window_code = if Self::UDP {
            0
        } else {
            let now = u16::from_be_bytes(part(h, Self::AT.wrapping_add(14)));
            let said = ways::window(now, usual.window);
            usual.window = now;
            window.push(said.value, said.width);
            said.code
        };
        let len = Self::len(m, packet);
        rest.push(len.value, len.width);
        let label = Self::flow_label(h);
        let has_label = u64::from(label != 0);
        rest.push(label.into(), if label != 0 { 20 } else { 0 });

        let at: u32 = const { if Self::V6 { 8 } else { 7 } };
        let codes = number.min(3) as u64 | len.code << 2 | ttl.code << 5 | has_label << 7;
        let codes = codes | (end_codes | (ports_code as u64) << 6 | window_code << 9) << at;
        w.bits(codes, at.wrapping_add(Self::LATER_CODES));
        if number >= 3 {
            w.bits((number as u64).wrapping_sub(3), 4);
        }
        w.turn();
        w.long(ends.bits, ends.width);
        if Self::V6 {
            w.bits(rest.bits, rest.width);
            w.turn();
            rest = window;
        } else {
            rest.push(window.bits, window.width);
        }
        w.bits(rest.bits, rest.width);
        w.turn();
    }

    /// Writes what is as in the header, after the ports.
    #[inline(always)]
    fn whole(w: &mut Reserved<'_>, packet: &Packet<'_, LEN>) {
        let h = packet.h;
        if !Self::V6 {
            let identification: [u8; 2] = part(h, 18);
            let is_said = identification != [0; 2];
            w.some(identification, if is_said { 2 } else { 0 });
        }
        w.some(Self::checksum(h), if packet.is_known { 0 } else { 2 });
        if !Self::UDP {
            w.all::<8>(part(h, Self::AT.wrapping_add(4)));
        }
        if Self::STAMPS {
            w.all::<8>(part(h, Self::AT.wrapping_add(24)));
        }
    }

    /// Bits of the codes from the addresses' on.
    const LATER_CODES: u32 = if Self::UDP { 9 } else { 11 };

    /// The codes of both addresses, and how many bytes follow of each; the bits that do are in `ends`.
    #[inline(always)]
    fn ends(h: &[u8; LEN], m: &mut Model, prefix: usize, ends: &mut Bits) -> (u64, [u32; 2]) {
        if Self::V6 {
            let source = index::address_v6(m, prefix, 0, Self::source(h));
            let destination = index::address_v6(m, prefix, 1, Self::destination(h));
            ends.push(source.value, source.width);
            ends.push(destination.value, destination.width);
            let codes = source.code | destination.code << 3;
            return (codes as u64, [source.bytes, destination.bytes]);
        }
        let source = ways::address(m, prefix, 0, be32(h, 26));
        let destination = ways::address(m, prefix, 1, be32(h, 30));
        ends.push(source.value, source.width);
        ends.push(destination.value, destination.width);
        (source.code | destination.code << 3, [0; 2])
    }

    /// The payload's length; the full one is learned.
    #[inline(always)]
    fn len(m: &mut Model, packet: &Packet<'_, LEN>) -> Said {
        let (full, payload_len) = (&mut m.full[Self::KIND], packet.payload_len);
        let len = ways::len(payload_len, *full, packet.is_padded);
        let is_full = (payload_len > *full) | (Self::UDP & (payload_len >= 512));
        *full = select_unpredictable(is_full, payload_len, *full);
        len
    }

    /// What is remembered of a packet.
    #[inline(always)]
    fn side(packet: &Packet<'_, LEN>, prefix: usize, tos: u8) -> Side {
        let h = packet.h;
        let mut side = Side {
            is_seen: true,
            prefix: prefix.to_le_bytes()[0],
            tos,
            ttl: Self::ttl(h),
            identification: Self::identification(h),
            flow_label: Self::flow_label(h),
            ..Side::UNSEEN
        };
        if !Self::UDP {
            side.window = u16::from_ne_bytes(part(h, Self::AT.wrapping_add(14)));
            side.payload_len = packet.payload_len;
            side.tcp_flags = h[Self::AT.wrapping_add(13)];
            side.numbers = Self::numbers_in(h);
        }
        if Self::STAMPS {
            side.stamps = Self::stamps_in(h);
        }
        side
    }

    /// The packet, if its record is one of these.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "at most 86")]
    fn recognised<'a>(c: &Context<'_>, header: &Header<'a>) -> Option<Packet<'a, LEN>> {
        let h: &[u8; LEN] = header.bytes.try_into().ok()?;
        let m = &*c.m;
        let prefix = c.index.find_ethernet(h.first_chunk()?);
        if prefix == PREFIXES && c.datagram.link != LinkType::ETHERNET {
            return None;
        }
        let ip = if Self::V6 {
            Self::ip_v6(h, m.tos)?
        } else {
            Self::ip_v4(h, m.tos)?
        };
        let (kind, is_offloaded) = Self::transport(h, &ip)?;
        let payload_len = ip.payload_len;
        let end = (LEN as u32).wrapping_add(u32::from(payload_len));
        let is_padded = end < FRAME_MIN && header.wire_len == FRAME_MIN;
        if !(is_padded | (header.wire_len == end)) || header.label != m.label {
            return None;
        }
        let kind = Head(kind | ip.head).with(Head::OFFLOADED, is_offloaded);
        let (flow, kind) = match index::flow(m, &Self::key(h)) {
            Err(place) => {
                let kind = kind.of_new(Self::V6, Self::TRANSPORT);
                let is_zero = !Self::V6 && Self::identification(h) == 0;
                let kind = kind.with(Head::NO_IDENTIFICATION, is_zero);
                (Flow::New(place), kind)
            }
            Ok(found) => {
                let last = &m.context(found.context)?.sides[found.side & 1];
                let is_usual = last.is_seen && last.tos == m.tos;
                if !is_usual || prefix != usize::from(last.prefix) {
                    return None;
                }
                let is_last = found.context == m.last_context;
                (Flow::Seen(found), kind.of_flow(is_last))
            }
        };
        Some(Packet {
            h,
            payload_len,
            is_padded,
            is_known: is_offloaded || (!Self::UDP && payload_len == 0),
            flow,
            prefix,
            known: c.index.find_head(kind)?,
        })
    }

    #[inline(always)]
    fn ip_v4(h: &[u8; LEN], tos: u8) -> Option<Ip> {
        let sum = word64(h, 26);
        let all = add(add(word64(h, 14), word(h, 22)), sum);
        let is_plain = part(h, 12) == [8, 0, 0x45, tos]
            && h[20] & !0x40 == 0
            && h[21] == 0
            && h[23] == Self::PROTOCOL
            && is_right(all, u16::from_ne_bytes(part(h, 24)));
        let total_len = u16::from_be_bytes(part(h, 16));
        if !is_plain || total_len < Self::TRANSPORT_LEN.wrapping_add(20) {
            return None;
        }
        Some(Ip {
            sum,
            payload_len: total_len.wrapping_sub(Self::TRANSPORT_LEN.wrapping_add(20)),
            // Without the bit "don't fragment", which is 0x40.
            head: u16::from(h[20] ^ 0x40) << 6,
        })
    }

    #[inline(always)]
    fn ip_v6(h: &[u8; LEN], tos: u8) -> Option<Ip> {
        let first = u32::from_be_bytes(part(h, 14));
        let is_plain = part(h, 12) == [0x86, 0xdd]
            && first >> 20 == 0x600 | u32::from(tos)
            && h[20] == Self::PROTOCOL;
        let source = add(word64(h, 22), word64(h, 30));
        let destination = add(word64(h, 38), word64(h, 46));
        let segment_len = u16::from_be_bytes(part(h, 18));
        if !is_plain || segment_len < Self::TRANSPORT_LEN {
            return None;
        }
        Some(Ip {
            sum: add(source, destination),
            payload_len: segment_len.wrapping_sub(Self::TRANSPORT_LEN),
            head: 0,
        })
    }

    /// What the transport says of the head, and whether its checksum is that of the pseudo-header.
    #[inline(always)]
    fn transport(h: &[u8; LEN], ip: &Ip) -> Option<(u16, bool)> {
        let at = Self::AT;
        let segment_len = ip.payload_len.wrapping_add(Self::TRANSPORT_LEN).to_be();
        let more =
            u64::from(segment_len).wrapping_add(u64::from(u16::from(Self::PROTOCOL).to_be()));
        let checksum = u16::from_ne_bytes(Self::checksum(h));
        // The sum of the pseudo-header, which is not 0, folded to 16 bits.
        let is_offloaded =
            is_zero(add(ip.sum, more.wrapping_add(u64::from(!checksum)))) && checksum != 0;
        if Self::UDP {
            let is_plain = u16::from_ne_bytes(part(h, at.wrapping_add(4))) == segment_len;
            return is_plain.then_some((0, is_offloaded));
        }
        let flags = FLAGS_USUAL[usize::from(h[at.wrapping_add(13)])];
        let is_plain = u16::from(h[at.wrapping_add(12)]) == Self::TRANSPORT_LEN << 2
            && flags != UNUSUAL
            && part(h, at.wrapping_add(18)) == [0, 0]
            && (!Self::STAMPS || part(h, at.wrapping_add(20)) == [1, 1, 8, 10]);
        if !is_plain {
            return None;
        }
        if ip.payload_len == 0 && !is_offloaded {
            let numbers = add(word64(h, at), word64(h, at.wrapping_add(8)));
            let mut sum = add(
                add(ip.sum, numbers),
                more.wrapping_add(word(h, at.wrapping_add(16))),
            );
            if Self::STAMPS {
                sum = add(
                    sum,
                    add(word64(h, at.wrapping_add(24)), word(h, at.wrapping_add(20))),
                );
            }
            if !is_right(sum, checksum) {
                return None;
            }
        }
        Some((flags | (Self::OPTIONS as u16) << 10, is_offloaded))
    }

    #[inline(always)]
    fn key(h: &[u8; LEN]) -> Key {
        let ends = if Self::V6 {
            let word = |at| u64::from_be_bytes(part(h, at));
            [word(22), word(30), word(38), word(46)]
        } else {
            [u64::from_be_bytes(part(h, 26)), 0, 0, 0]
        };
        Key {
            ends,
            ports: be32(h, Self::AT),
            transport: Self::TRANSPORT,
            is_v6: Self::V6,
        }
    }

    #[inline(always)]
    fn source(h: &[u8; LEN]) -> u128 {
        if Self::V6 {
            u128::from_be_bytes(part(h, 22))
        } else {
            be32(h, 26).into()
        }
    }

    #[inline(always)]
    fn destination(h: &[u8; LEN]) -> u128 {
        if Self::V6 {
            u128::from_be_bytes(part(h, 38))
        } else {
            be32(h, 30).into()
        }
    }

    #[inline(always)]
    fn ttl(h: &[u8; LEN]) -> u8 {
        h[const { if Self::V6 { 21 } else { 22 } }]
    }

    /// As in the packet; 0 for IPv6.
    #[inline(always)]
    fn identification(h: &[u8; LEN]) -> u16 {
        if Self::V6 {
            0
        } else {
            u16::from_ne_bytes(part(h, 18))
        }
    }

    /// 0 for IPv4.
    #[inline(always)]
    fn flow_label(h: &[u8; LEN]) -> u32 {
        if Self::V6 { be32(h, 14) & 0xf_ffff } else { 0 }
    }

    #[inline(always)]
    fn checksum(h: &[u8; LEN]) -> [u8; 2] {
        part(h, const { Self::AT + if Self::UDP { 6 } else { 16 } })
    }

    /// Sequence and acknowledgement number, as in the packet.
    #[inline(always)]
    fn numbers_in(h: &[u8; LEN]) -> u64 {
        word64(h, Self::AT.wrapping_add(4))
    }

    /// Timestamps, as in the packet.
    #[inline(always)]
    fn stamps_in(h: &[u8; LEN]) -> u64 {
        word64(h, Self::AT.wrapping_add(24))
    }
}

/// TCP's flags in a head, if they have a code and acknowledge.
static FLAGS_USUAL: [u16; 256] = {
    let mut heads = [UNUSUAL; 256];
    let mut code = 0;
    while code < FLAGS_OTHER {
        let flags = FLAGS[code as usize];
        if flags & ACK != 0 {
            heads[flags as usize] = Head::tcp(code, OptionsCode::None).0;
        }
        code += 1;
    }
    heads
};
/// Of all others.
const UNUSUAL: u16 = u16::MAX;

/// Bits on their way, the first in the lowest.
#[derive(Clone, Copy, Default)]
struct Bits {
    bits: u64,
    width: u32,
}

impl Bits {
    #[inline(always)]
    fn push(&mut self, value: u64, width: u32) {
        self.bits |= value << (self.width & 63);
        self.width = self.width.wrapping_add(width);
    }
}

#[inline(always)]
fn part<const LEN: usize, const N: usize>(h: &[u8; LEN], at: usize) -> [u8; N] {
    h[at..at.wrapping_add(N)].try_into().expect("its length")
}

#[inline(always)]
fn be32<const LEN: usize>(h: &[u8; LEN], at: usize) -> u32 {
    u32::from_be_bytes(part(h, at))
}

#[inline(always)]
fn word<const LEN: usize>(h: &[u8; LEN], at: usize) -> u64 {
    u32::from_ne_bytes(part(h, at)).into()
}

#[inline(always)]
fn word64<const LEN: usize>(h: &[u8; LEN], at: usize) -> u64 {
    u64::from_ne_bytes(part(h, at))
}

/// Whether a checksum makes a sum right that has it in it, and is the one that is computed for it (RFC
/// 1071): 0xffff would be for a sum of 0 only.
#[inline(always)]
fn is_right(sum: u64, checksum: u16) -> bool {
    is_zero(sum) && checksum != 0xffff
}

/// Whether a sum is a multiple of 0xffff: these are what a multiple of its inverse makes small (Granlund and Montgomery,
/// "Division by Invariant Integers using Multiplication", section 9).
#[inline(always)]
fn is_zero(sum: u64) -> bool {
    const INVERSE: u64 = 0xfffe_fffe_fffe_ffff;
    const { assert!(INVERSE.wrapping_mul(0xffff) == 1) };
    sum.wrapping_mul(INVERSE) <= u64::MAX / 0xffff
}
