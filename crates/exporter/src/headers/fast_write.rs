//! The records that most packets have, written without detours: first packets of a flow over Ethernet
//! with nothing unusual. [`super::write`] writes the same bits, and those of all other packets.
//!
//! A header's length says what it would have to be, so all its fields are at known places; whatever is
//! not as it would have to be is left to the other writer before anything is changed.

use strata_wire::transport::tcp_flag::ACK;

use super::fields::low32;
use super::kind::{FLAG_CODES, FLAGS_OTHER, FRAME_MIN, HEADS_BITS, Head};
use super::model::{Key, Model, Side, step};
use super::shape::Shape;
use super::write::Context;
use super::{Header, code, head, index, ports};
use crate::bits::{Position, Writer};

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
    /// Of the flow.
    place: u8,
    /// Numbers of the start of the frame and of the head.
    prefix: usize,
    known: u8,
    is_padded: bool,
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
        Self::values(&mut w, c.m, &packet);
        let (ip, after) = (&packet.ip, &packet.after);
        if !Self::V6 {
            let len = if ip.identification == 0 { 0 } else { 2 };
            w.some(ip.identification.to_ne_bytes(), len);
        }
        let is_known = after.is_offloaded || (!Self::UDP && after.payload_len == 0);
        w.some(after.checksum.to_ne_bytes(), if is_known { 0 } else { 2 });
        if !Self::UDP {
            w.all(after.numbers.to_ne_bytes());
        }
        if Self::STAMPS {
            w.all(after.stamps.to_ne_bytes());
        }
        Self::remember(c.m, &packet);
        Some(w.position())
    }

    /// The packet, if its record is one of these.
    #[inline(always)]
    fn recognised(c: &Context<'_>, header: &Header<'_>) -> Option<Packet> {
        let h: &[u8; LEN] = header.bytes.try_into().ok()?;
        let m = &*c.m;
        let prefix = c.index.find_ethernet(m, h.first_chunk()?)?;
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
        let kind = Head::tcp(if Self::UDP { 0 } else { flags }, Self::OPTIONS)
            .of_new(Self::V6, Self::TRANSPORT)
            .with(Head::MAY_FRAGMENT, ip.may_fragment)
            .with(Head::NO_IDENTIFICATION, !Self::V6 && ip.identification == 0)
            .with(Head::OFFLOADED, after.is_offloaded);
        let known = c.index.find_head(kind)?;
        let flow_ports = u32::from_be_bytes(part(h, Self::AT));
        let key = Key {
            source: ip.source,
            destination: ip.destination,
            ports: flow_ports,
            transport: Self::TRANSPORT,
            is_v6: Self::V6,
        };
        let place = index::flow(m, &key).err()?;
        if !head::is_short_time(c.datagram, c.units) {
            return None;
        }
        Some(Packet {
            ip,
            after,
            key,
            place,
            prefix,
            known,
            is_padded,
        })
    }

    /// Writes codes and values up to those that are bytes.
    #[inline(always)]
    fn values(w: &mut Writer<'_>, m: &mut Model, packet: &Packet) {
        let (ip, after, prefix) = (&packet.ip, &packet.after, packet.prefix);
        let full = &mut m.full[Self::KIND];
        let len = code::len(after.payload_len, *full, packet.is_padded);
        let is_full = after.payload_len > *full || (Self::UDP && after.payload_len >= 512);
        *full = if is_full { after.payload_len } else { *full };
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
        let codes = prefix.min(3) | len << 2 | ttl.0 << 5;
        let (mut codes, mut width) = (codes as u64, 7);
        if Self::V6 {
            codes |= u64::from(ip.flow_label != 0) << 7;
            width = 8;
        }
        codes |= ((source.code | destination.code << 3 | ports_code << 6) as u64) << width;
        width += 9;
        if !Self::UDP {
            codes |= (window.0 as u64) << width;
            width += 2;
        }
        if prefix >= 3 {
            codes |= (prefix as u64 - 3) << width;
            width += 4;
        }
        w.bits(codes | source.value << width, width + source.width);
        w.turn();
        w.bits(destination.value, destination.width);
        w.bits(ports_place.into(), ports::place_width(ports_code));
        if Self::V6 {
            w.last(ip.source, source.bytes);
            w.last(ip.destination, destination.bytes);
        }
        let ports_len = if ports_code < ports::BOTH { 2 } else { 4 };
        w.some(ports_word.to_be_bytes(), ports_len);
        w.bits(ttl.1.into(), code::TTL[ttl.0]);
        w.turn();
        let len_width = code::LEN[len];
        let len_bits = u64::from(after.payload_len) & ((1 << len_width) - 1);
        w.bits(if len < 3 { 0 } else { len_bits }, len_width);
        if Self::V6 {
            let width = if ip.flow_label == 0 { 0 } else { 20 };
            w.bits(ip.flow_label.into(), width);
        }
        if !Self::UDP {
            w.bits(window.1.into(), code::WINDOW[window.0]);
        }
        w.turn();
    }

    #[inline(always)]
    fn remember(m: &mut Model, packet: &Packet) {
        let (ip, after) = (&packet.ip, &packet.after);
        let last = Side {
            is_seen: true,
            prefix: packet.prefix.to_le_bytes()[0],
            tos: m.tos,
            ttl: ip.ttl,
            identification: ip.identification,
            window: after.window,
            flow_label: ip.flow_label,
            step: step(after.payload_len, after.flags),
            numbers: after.numbers,
            stamps: after.stamps,
        };
        m.add_context(packet.place, packet.key, last);
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
