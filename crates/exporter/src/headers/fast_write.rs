//! The records that most packets have, written without detours: packets over Ethernet with nothing unusual,
//! the first of a flow and those of a direction that was seen. [`super::write`] writes the same bits, and those
//! of all other packets.
//!
//! A header's length says what it would have to be, so all its fields are at known places; whatever is
//! not as it would have to be is left to the other writer before anything is changed.

mod seen;

use strata_wire::LinkType;
use strata_wire::transport::tcp_flag::ACK;

use super::fields::low32;
use super::index::Found;
use super::kind::{FLAG_CODES, FLAGS_OTHER, FRAME_MIN, HEADS_BITS, Head};
use super::model::{Key, Model, PREFIXES, Side, step};
use super::shape::{ETHERNET_LEN, Shape};
use super::write::Context;
use super::{Header, code, head, index, ports};
use crate::bits::{Position, TURN, Writer};

/// Writes the record, if it is one of those; where the writer is then.
#[inline(always)]
pub(super) fn write(
    bytes: &mut [u8],
    at: Position,
    c: &mut Context<'_>,
    header: &Header<'_>,
) -> Option<Position> {
    match header.bytes.len() {
        42 => Shape::<42>::write(bytes, at, c, header),
        54 => Shape::<54>::write(bytes, at, c, header),
        66 => Shape::<66>::write(bytes, at, c, header),
        62 => Shape::<62>::write(bytes, at, c, header),
        74 => Shape::<74>::write(bytes, at, c, header),
        86 => Shape::<86>::write(bytes, at, c, header),
        _ => None,
    }
}

/// What IP says.
struct Ip {
    source: u128,
    destination: u128,
    /// Sum of the addresses, as they are in memory.
    sum: u64,
    segment_len: u16,
    ttl: u8,
    /// As in the packet; 0 for IPv6.
    identification: u16,
    may_fragment: bool,
    flow_label: u32,
}

/// What follows it.
struct After {
    payload_len: u16,
    flags: u8,
    checksum: u16,
    is_offloaded: bool,
    /// Sequence and acknowledgement number, and timestamps, as in the packet.
    numbers: u64,
    stamps: u64,
    window: u16,
}

/// A packet whose record is one of these.
struct Packet {
    ip: Ip,
    after: After,
    key: Key,
    flow: Flow,
    /// The number of the start of the frame, if it is known.
    prefix: Option<usize>,
    /// The number of the head.
    known: u8,
    is_padded: bool,
}

/// Its flow.
#[derive(Clone, Copy)]
enum Flow {
    /// Is new, and will have this place.
    New(u8),
    /// Was seen in this direction.
    Seen(Found),
}

impl<const LEN: usize> Shape<LEN> {
    #[inline(always)]
    fn write(
        bytes: &mut [u8],
        at: Position,
        c: &mut Context<'_>,
        header: &Header<'_>,
    ) -> Option<Position> {
        let packet = Self::recognised(c, header)?;
        let mut w = Writer::new(bytes, at);
        w.bits(u64::from(packet.known), HEADS_BITS);
        head::write_time(&mut w, c.datagram, c.units, c.difference);
        c.m.time_ns = header.ts_ns;
        match packet.flow {
            Flow::New(place) => Self::write_first(&mut w, c, header, &packet, place),
            Flow::Seen(found) => Self::write_seen(&mut w, c.m, &packet, found),
        }
        Some(w.position())
    }

    /// Writes the first packet of a flow.
    #[inline(always)]
    fn write_first(
        w: &mut Writer<'_>,
        c: &mut Context<'_>,
        header: &Header<'_>,
        packet: &Packet,
        place: u8,
    ) {
        let prefix = match packet.prefix {
            Some(number) => (number, number),
            None => c.index.prefix(c.m, &header.bytes[..ETHERNET_LEN]),
        };
        let mut bytes = Self::values(w, c.m, packet, prefix);
        let (ip, after) = (&packet.ip, &packet.after);
        if !Self::V6 {
            bytes.push(ip.identification, ip.identification != 0);
        }
        bytes.push(after.checksum, !Self::is_known(after));
        w.some(bytes.word.to_le_bytes(), bytes.len);
        if Self::STAMPS {
            let both = u128::from(after.numbers.to_be()) << 64 | u128::from(after.stamps.to_be());
            w.all(both.to_be_bytes());
        } else if !Self::UDP {
            w.all(after.numbers.to_ne_bytes());
        }
        c.m.add_context(place, packet.key, Self::side(packet, prefix.1, c.m.tos));
    }

    /// Whether a reader knows the checksum.
    #[inline(always)]
    fn is_known(after: &After) -> bool {
        after.is_offloaded || (!Self::UDP && after.payload_len == 0)
    }

    /// The packet, if its record is one of these.
    #[inline(always)]
    fn recognised(c: &Context<'_>, header: &Header<'_>) -> Option<Packet> {
        let h: &[u8; LEN] = header.bytes.try_into().ok()?;
        let m = &*c.m;
        let prefix = c.index.find_ethernet(m, h.first_chunk()?);
        if prefix.is_none() && c.datagram.link != LinkType::ETHERNET {
            return None;
        }
        let ip = if Self::V6 {
            Self::ip_v6(h, m.tos)?
        } else {
            Self::ip_v4(h, m.tos)?
        };
        let after = Self::transport(h, &ip)?;
        let end = u32::try_from(Self::AT).ok()? + u32::from(ip.segment_len);
        let is_padded = end < FRAME_MIN && header.wire_len == FRAME_MIN;
        if !(is_padded | (header.wire_len == end)) | (header.label != m.label) {
            return None;
        }
        let flags = FLAG_CODES[usize::from(after.flags)];
        let flow_ports = u32::from_be_bytes(part(h, Self::AT));
        let key = Key {
            source: ip.source,
            destination: ip.destination,
            ports: flow_ports,
            transport: Self::TRANSPORT,
            is_v6: Self::V6,
        };
        let kind = Head::tcp(if Self::UDP { 0 } else { flags }, Self::OPTIONS)
            .with(Head::MAY_FRAGMENT, ip.may_fragment)
            .with(Head::OFFLOADED, after.is_offloaded);
        let (flow, kind) = match index::flow(m, &key) {
            Err(place) => {
                let kind = kind.of_new(Self::V6, Self::TRANSPORT);
                let is_zero = !Self::V6 && ip.identification == 0;
                (
                    Flow::New(place),
                    kind.with(Head::NO_IDENTIFICATION, is_zero),
                )
            }
            Ok(found) => {
                let last = &m.context(found.context)?.sides[found.side & 1];
                let is_usual = last.is_seen && last.tos == m.tos;
                if !is_usual || prefix != Some(usize::from(last.prefix)) {
                    return None;
                }
                let is_last = found.context == m.last_context;
                (Flow::Seen(found), kind.of_flow(is_last))
            }
        };
        let known = c.index.find_head(kind)?;
        if !head::is_short_time(c.datagram, c.units) {
            return None;
        }
        Some(Packet {
            ip,
            after,
            key,
            flow,
            prefix,
            known,
            is_padded,
        })
    }

    /// Writes codes and values up to those that are bytes; the ports are the first of these.
    #[inline(always)]
    fn values(
        w: &mut Writer<'_>,
        m: &mut Model,
        packet: &Packet,
        (number, prefix): (usize, usize),
    ) -> Bytes {
        let (ip, after) = (&packet.ip, &packet.after);
        let len = Self::len(m, packet);
        let usual = m.prefix_mut(prefix);
        let ttl = code::ttl(ip.ttl, usual.ttl);
        usual.ttl = ip.ttl;
        let window = code::window(u16::from_be(after.window), usual.window);
        if !Self::UDP {
            usual.window = u16::from_be(after.window);
        }
        let (source, destination) = if Self::V6 {
            let source = index::address_v6(m, prefix, 0, ip.source);
            (source, index::address_v6(m, prefix, 1, ip.destination))
        } else {
            let source = index::address(m, prefix, 0, low32(ip.source));
            (source, index::address(m, prefix, 1, low32(ip.destination)))
        };
        let (ports_code, ports_place, ports_word) = ports::write(&mut m.services, packet.key.ports);
        let codes = number.min(3) | len << 2 | ttl.0 << 5;
        let mut codes = Bits {
            bits: codes as u64,
            width: 7,
        };
        if Self::V6 {
            codes.push((ip.flow_label != 0).into(), 1);
        }
        let end_codes = source.code | destination.code << 3 | ports_code << 6;
        codes.push(end_codes as u64, 9);
        if !Self::UDP {
            codes.push(window.0 as u64, 2);
        }
        if number >= 3 {
            codes.push(number as u64 - 3, 4);
        }
        codes.push(source.value, source.width);
        w.bits(codes.bits, codes.width);
        w.turn();
        if number == PREFIXES {
            let bytes = m.prefix(prefix).bytes();
            w.all([ETHERNET_LEN.to_le_bytes()[0]]);
            w.slice(bytes);
        }
        if Self::V6 {
            w.last(ip.source, source.bytes);
            w.last(ip.destination, destination.bytes);
        }
        let mut ends = Bits::default();
        ends.push(destination.value, destination.width);
        ends.push(ports_place.into(), ports::place_width(ports_code));
        ends.push(ttl.1.into(), code::TTL[ttl.0]);
        let mut rest = Bits::default();
        let (len_bits, len_width) = len_value(len, after.payload_len);
        rest.push(len_bits, len_width);
        if Self::V6 {
            let width = if ip.flow_label == 0 { 0 } else { 20 };
            rest.push(ip.flow_label.into(), width);
        }
        if !Self::UDP {
            rest.push(window.1.into(), code::WINDOW[window.0]);
        }
        if ends.width + rest.width <= TURN {
            ends.push(rest.bits, rest.width);
            w.bits(ends.bits, ends.width);
        } else {
            w.bits(ends.bits, ends.width);
            w.turn();
            w.bits(rest.bits, rest.width);
        }
        w.turn();
        Bytes {
            word: ports_word.swap_bytes().into(),
            len: if ports_code < ports::BOTH { 2 } else { 4 },
        }
    }

    /// The code of the payload's length; the full one is learned.
    #[inline(always)]
    fn len(m: &mut Model, packet: &Packet) -> usize {
        let (full, payload_len) = (&mut m.full[Self::KIND], packet.after.payload_len);
        let len = code::len(payload_len, *full, packet.is_padded);
        let is_full = payload_len > *full || (Self::UDP && payload_len >= 512);
        *full = if is_full { payload_len } else { *full };
        len
    }

    /// What is remembered of a packet.
    #[inline(always)]
    fn side(packet: &Packet, prefix: usize, tos: u8) -> Side {
        let (ip, after) = (&packet.ip, &packet.after);
        Side {
            is_seen: true,
            prefix: prefix.to_le_bytes()[0],
            tos,
            ttl: ip.ttl,
            identification: ip.identification,
            window: after.window,
            flow_label: ip.flow_label,
            step: step(after.payload_len, after.flags),
            numbers: after.numbers,
            stamps: after.stamps,
        }
    }

    #[inline(always)]
    fn ip_v4(h: &[u8; LEN], tos: u8) -> Option<Ip> {
        let sum = word(h, 26) + word(h, 30);
        let rest = word(h, 14) + word(h, 18) + word(h, 22);
        let fragment = u16::from_be_bytes(part(h, 20));
        let is_plain = part(h, 12) == [8, 0, 0x45, tos]
            && fragment & !0x4000 == 0
            && h[23] == Self::PROTOCOL
            && is_right(sum + rest, u16::from_ne_bytes(part(h, 24)));
        let total_len = u16::from_be_bytes(part(h, 16));
        is_plain.then_some(Ip {
            source: u32::from_be_bytes(part(h, 26)).into(),
            destination: u32::from_be_bytes(part(h, 30)).into(),
            sum,
            segment_len: total_len.checked_sub(20)?,
            ttl: h[22],
            identification: u16::from_ne_bytes(part(h, 18)),
            may_fragment: fragment == 0,
            flow_label: 0,
        })
    }

    #[inline(always)]
    fn ip_v6(h: &[u8; LEN], tos: u8) -> Option<Ip> {
        let first = u32::from_be_bytes(part(h, 14));
        let is_plain = part(h, 12) == [0x86, 0xdd]
            && first >> 20 == 0x600 | u32::from(tos)
            && h[20] == Self::PROTOCOL;
        let source = word(h, 22) + word(h, 26) + word(h, 30) + word(h, 34);
        let destination = word(h, 38) + word(h, 42) + word(h, 46) + word(h, 50);
        is_plain.then_some(Ip {
            source: u128::from_be_bytes(part(h, 22)),
            destination: u128::from_be_bytes(part(h, 38)),
            sum: source + destination,
            segment_len: u16::from_be_bytes(part(h, 18)),
            ttl: h[21],
            identification: 0,
            may_fragment: false,
            flow_label: first & 0xf_ffff,
        })
    }

    #[inline(always)]
    fn transport(h: &[u8; LEN], ip: &Ip) -> Option<After> {
        let at = Self::AT;
        let payload_len = ip.segment_len.checked_sub(Self::TRANSPORT_LEN)?;
        let pseudo = ip.sum
            + u64::from(ip.segment_len.to_be())
            + u64::from(u16::from(Self::PROTOCOL).to_be());
        if Self::UDP {
            let checksum = u16::from_ne_bytes(part(h, at + 6));
            let is_plain = u16::from_be_bytes(part(h, at + 4)) == ip.segment_len;
            return is_plain.then_some(After {
                payload_len,
                flags: 0,
                checksum,
                is_offloaded: is_sum(pseudo, checksum),
                numbers: 0,
                stamps: 0,
                window: 0,
            });
        }
        let [words, flags] = part(h, at + 12);
        let checksum = u16::from_ne_bytes(part(h, at + 16));
        let is_plain = u16::from(words) == Self::TRANSPORT_LEN << 2
            && FLAG_CODES[usize::from(flags)] != FLAGS_OTHER
            && flags & ACK != 0
            && part(h, at + 18) == [0, 0]
            && (!Self::STAMPS || part(h, at + 20) == [1, 1, 8, 10]);
        if !is_plain {
            return None;
        }
        let is_offloaded = is_sum(pseudo, checksum);
        if payload_len == 0 {
            let numbers = word(h, at) + word(h, at + 4) + word(h, at + 8);
            let mut sum = pseudo + numbers + word(h, at + 12) + word(h, at + 16);
            if Self::STAMPS {
                sum += word(h, at + 20) + word(h, at + 24) + word(h, at + 28);
            }
            if !is_offloaded && !is_right(sum, checksum) {
                return None;
            }
        }
        Some(After {
            payload_len,
            flags,
            checksum,
            is_offloaded,
            numbers: u64::from_ne_bytes(part(h, at + 4)),
            stamps: if Self::STAMPS {
                u64::from_ne_bytes(part(h, at + 24))
            } else {
                0
            },
            window: u16::from_ne_bytes(part(h, at + 14)),
        })
    }
}

/// Bits on their way, the first in the lowest.
#[derive(Default)]
struct Bits {
    bits: u64,
    width: u32,
}

impl Bits {
    #[inline(always)]
    fn push(&mut self, value: u64, width: u32) {
        self.bits |= value << (self.width & 63);
        self.width += width;
    }
}

/// Up to eight bytes on their way, the first in the lowest; what is above them is not written.
struct Bytes {
    word: u64,
    len: usize,
}

impl Bytes {
    /// Adds two bytes as they are in memory, if they are said.
    #[inline(always)]
    fn push(&mut self, bytes: u16, is_said: bool) {
        let shift = (self.len * 8) & 63;
        let kept = self.word & ((1 << shift) - 1);
        self.word = kept | u64::from(u16::from_le_bytes(bytes.to_ne_bytes())) << shift;
        self.len += if is_said { 2 } else { 0 };
    }
}

/// What follows the code of a payload's length.
#[inline(always)]
fn len_value(code: usize, payload_len: u16) -> (u64, u32) {
    let code = code & 7;
    let said = u32::from(payload_len) & code::LEN_MASKS[code];
    (said.into(), code::LEN[code])
}

#[inline(always)]
fn part<const LEN: usize, const N: usize>(h: &[u8; LEN], at: usize) -> [u8; N] {
    h[at..at + N].try_into().expect("its length")
}

#[inline(always)]
fn word<const LEN: usize>(h: &[u8; LEN], at: usize) -> u64 {
    u32::from_ne_bytes(part(h, at)).into()
}

/// Whether a checksum makes a sum right that has it in it, and is the one that is computed for it (RFC
/// 1071): 0xffff would be for a sum of 0 only.
#[inline(always)]
fn is_right(sum: u64, checksum: u16) -> bool {
    sum.is_multiple_of(0xffff) && checksum != 0xffff
}

/// Whether a checksum is this sum, which is not 0, folded to 16 bits.
#[inline(always)]
fn is_sum(sum: u64, checksum: u16) -> bool {
    (sum + 0xffff - u64::from(checksum)).is_multiple_of(0xffff) && checksum != 0
}
