//! Reads the records that [`super::fast_write`] writes, and gives the same as [`super::read`], which reads
//! all others.

use super::fields::{IP_AT, OUT_LEN, Transport, low32, put};
use super::kind::{FLAGS, FLAGS_OTHER, FRAME_MIN, Form, Head, OptionsCode};
use super::model::{Key, Model, PREFIXES, Side, flow_place, step};
use super::read::{NO_PREFIX, Read, TOO_LONG, address, address_v6, address_value};
use super::shape::Shape;
use super::sums::{fold, words};
use super::{Invalid, code, ports};
use crate::bits::Reader;

/// Whether a record is one of those, before its codes are read.
#[inline(always)]
pub(super) fn is_usual(head: Head) -> bool {
    head.form() == Form::New && !head.has(Head::ODD) && head.flags() != usize::from(FLAGS_OTHER)
}

/// Reads it, if it has one of the usual shapes; `None` if nothing was read.
#[inline(always)]
pub(super) fn read(
    r: &mut Reader<'_>,
    m: &mut Model,
    head: Head,
    out: &mut [u8; OUT_LEN],
) -> Option<Result<Read, Invalid>> {
    use OptionsCode::{None as No, Stamps};
    let is_v6 = head.is_v6();
    match (head.transport()?, head.options()) {
        (Transport::Tcp, No) if is_v6 => Shape::<74>::read(r, m, head, out),
        (Transport::Tcp, Stamps) if is_v6 => Shape::<86>::read(r, m, head, out),
        (Transport::Tcp, No) => Shape::<54>::read(r, m, head, out),
        (Transport::Tcp, Stamps) => Shape::<66>::read(r, m, head, out),
        (Transport::Udp, No) if is_v6 => Shape::<62>::read(r, m, head, out),
        (Transport::Udp, No) => Shape::<42>::read(r, m, head, out),
        _ => None,
    }
}

/// What an IP header has.
struct Ip {
    source: u128,
    destination: u128,
    segment_len: u16,
    ttl: u8,
    identification: u16,
    flow_label: u32,
}

impl<const LEN: usize> Shape<LEN> {
    const OUT_AT: usize = IP_AT + if Self::V6 { 40 } else { 20 };

    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "some 20 bits")]
    fn read(
        r: &mut Reader<'_>,
        m: &mut Model,
        head: Head,
        out: &mut [u8; OUT_LEN],
    ) -> Option<Result<Read, Invalid>> {
        let width = const { 16 + if Self::V6 { 1 } else { 0 } + if Self::UDP { 0 } else { 2 } };
        let codes = r.peek(width + 4);
        let (first, later) = (codes as usize & 3, codes as usize >> width & 15);
        if first == 3 && later == PREFIXES - 3 {
            return None;
        }
        r.bits(if first == 3 { width + 4 } else { width });
        let prefix = if first == 3 { 3 + later } else { first };
        let at = const { if Self::V6 { 8 } else { 7 } };
        let code = |at: u32, width: u32| (codes >> at & ((1 << width) - 1)) as usize;
        let (len, ttl) = (code(2, 3), code(5, 2));
        let (ends, ports) = ([code(at, 3), code(at + 3, 3)], code(at + 6, 3));
        let window = code(at + 9, 2);
        if prefix >= m.prefix_count {
            return Some(Err(NO_PREFIX));
        }
        let source = Self::address_bits(r, ends[0]);
        r.turn();
        let destination = Self::address_bits(r, ends[1]);
        let place = code::low16(r.word(ports::place_width(ports)));
        let ttl = (ttl, r.word(code::TTL[ttl & 3]));
        r.turn();
        let len = (len, r.word(code::LEN[len & 7]));
        let has_label = Self::V6 && code(7, 1) != 0;
        let flow_label = r.word(if has_label { 20 } else { 0 });
        let window = (
            window,
            if Self::UDP {
                0
            } else {
                r.word(code::WINDOW[window])
            },
        );
        r.turn();
        let (source, destination) = if Self::V6 {
            let source = address_v6(r, m, prefix, 0, ends[0], source);
            (source, address_v6(r, m, prefix, 1, ends[1], destination))
        } else {
            let source = address(m, prefix, 0, (ends[0], source));
            (source, address(m, prefix, 1, (ends[1], destination)))
        };
        let word = u32::from_be_bytes(r.some(if ports < ports::BOTH { 2 } else { 4 }));
        let ports = ports::read(&mut m.services, ports, place, word);
        let usual = m.prefix_mut(prefix);
        let ttl = code::ttl_of(ttl, usual.ttl);
        usual.ttl = ttl;
        let window = code::window_of(window, usual.window);
        if !Self::UDP {
            usual.window = window;
        }
        let (payload_len, is_padded) = match Self::payload(m, len) {
            Ok(payload) => payload,
            Err(error) => return Some(Err(error)),
        };
        let segment_len = payload_len + Self::TRANSPORT_LEN;
        let has_identification = !Self::V6 && !head.has(Head::NO_IDENTIFICATION);
        let identification = u16::from_be_bytes(r.some(if has_identification { 2 } else { 0 }));
        let ip = Ip {
            source,
            destination,
            segment_len,
            ttl,
            identification: if has_identification {
                identification
            } else {
                0
            },
            flow_label,
        };
        let addresses = Self::put_ip(out, &ip, head, m.tos);
        let pseudo = addresses + u64::from(segment_len) + u64::from(Self::PROTOCOL);
        let flags = if Self::UDP { 0 } else { FLAGS[head.flags()] };
        let last = Self::put_transport(r, out, head, (ports, payload_len, window), pseudo);
        let known = m.prefix(prefix);
        put(out, 0, known.bytes);
        let start = IP_AT - known.len;
        let end = Self::OUT_AT + usize::from(Self::TRANSPORT_LEN);
        let frame_len = strata_wire::exact::<u32>(end - start) + u32::from(payload_len);
        Self::remember_read(
            m,
            &ip,
            ports,
            Side {
                is_seen: true,
                prefix: prefix.to_le_bytes()[0],
                tos: m.tos,
                ttl,
                identification: ip.identification.to_be(),
                window: if Self::UDP { 0 } else { window.to_be() },
                flow_label,
                step: step(payload_len, flags),
                numbers: last.0,
                stamps: last.1,
            },
        );
        Some(Ok(Read {
            start,
            end,
            wire_len: if is_padded { FRAME_MIN } else { frame_len },
        }))
    }

    #[inline(always)]
    fn address_bits(r: &mut Reader<'_>, code: usize) -> u32 {
        if Self::V6 {
            address_value::<true>(r, code)
        } else {
            address_value::<false>(r, code)
        }
    }

    /// Bytes of payload, and whether the frame is filled up.
    #[inline(always)]
    fn payload(m: &mut Model, len: code::Coded) -> Result<(u16, bool), Invalid> {
        let full = &mut m.full[Self::KIND];
        let (payload_len, is_padded) = code::len_of(len, *full);
        let is_full = payload_len > *full || (Self::UDP && payload_len >= 512);
        *full = if is_full { payload_len } else { *full };
        let ip_len = const { if Self::V6 { 0 } else { 20 } };
        if payload_len > u16::MAX - Self::TRANSPORT_LEN - ip_len {
            return Err(TOO_LONG);
        }
        Ok((payload_len, is_padded))
    }

    #[inline(always)]
    fn remember_read(m: &mut Model, ip: &Ip, ports: u32, last: Side) {
        let key = Key {
            source: ip.source,
            destination: ip.destination,
            ports,
            transport: Self::TRANSPORT,
            is_v6: Self::V6,
        };
        let place = flow_place(key.source, key.destination, ports);
        m.add_context(place, key, last);
    }

    /// Writes the IP header; the sum of its addresses.
    #[inline(always)]
    fn put_ip(out: &mut [u8; OUT_LEN], ip: &Ip, head: Head, tos: u8) -> u64 {
        let tos = u32::from(tos);
        if Self::V6 {
            put(
                out,
                IP_AT,
                (6 << 28 | tos << 20 | ip.flow_label).to_be_bytes(),
            );
            put(out, IP_AT + 4, ip.segment_len.to_be_bytes());
            put(out, IP_AT + 6, [Self::PROTOCOL, ip.ttl]);
            put(out, IP_AT + 8, ip.source.to_be_bytes());
            put(out, IP_AT + 24, ip.destination.to_be_bytes());
            return words(ip.source) + words(ip.destination);
        }
        let (source, destination) = (low32(ip.source), low32(ip.destination));
        let addresses = u64::from(source) + u64::from(destination);
        let fragment = if head.has(Head::MAY_FRAGMENT) {
            0
        } else {
            0x4000
        };
        let first = 0x4500_0000 | tos << 16 | (u32::from(ip.segment_len) + 20);
        let second = u32::from(ip.identification) << 16 | fragment;
        let third = u32::from(ip.ttl) << 24 | u32::from(Self::PROTOCOL) << 16;
        let sum = addresses + u64::from(first) + u64::from(second) + u64::from(third);
        let third = third | u32::from(!fold(sum));
        put(out, IP_AT, first.to_be_bytes());
        put(out, IP_AT + 4, second.to_be_bytes());
        put(out, IP_AT + 8, third.to_be_bytes());
        put(out, IP_AT + 12, source.to_be_bytes());
        put(out, IP_AT + 16, destination.to_be_bytes());
        addresses
    }

    /// Reads what the transport has, and writes its header; sequence and acknowledgement number, and
    /// timestamps, as in the packet.
    #[inline(always)]
    fn put_transport(
        r: &mut Reader<'_>,
        out: &mut [u8; OUT_LEN],
        head: Head,
        (ports, payload_len, window): (u32, u16, u16),
        pseudo: u64,
    ) -> (u64, u64) {
        let at = Self::OUT_AT;
        let is_offloaded = head.has(Head::OFFLOADED);
        let is_known = is_offloaded || (!Self::UDP && payload_len == 0);
        let said = u16::from_be_bytes(r.some(if is_known { 0 } else { 2 }));
        let checksum = if is_offloaded { fold(pseudo) } else { said };
        put(out, at, ports.to_be_bytes());
        if Self::UDP {
            put(out, at + 4, (payload_len + 8).to_be_bytes());
            put(out, at + 6, checksum.to_be_bytes());
            return (0, 0);
        }
        let flags = FLAGS[head.flags()];
        let has_both = flags & strata_wire::transport::tcp_flag::ACK != 0;
        let numbers = u64::from_be_bytes(r.some(if has_both { 8 } else { 4 }));
        let numbers = if has_both {
            numbers
        } else {
            numbers >> 32 << 32
        };
        let stamps = if Self::STAMPS {
            u64::from_be_bytes(r.all())
        } else {
            0
        };
        let words = u32::from(Self::TRANSPORT_LEN) << 26 | u32::from(flags) << 16;
        let words = words | u32::from(window);
        let halves = |word: u64| (word >> 32) + (word & 0xffff_ffff);
        let checksum = if is_known && !is_offloaded {
            let kind = if Self::STAMPS { 0x0101_080a } else { 0 };
            let sum = pseudo + u64::from(ports) + u64::from(words) + kind;
            !fold(sum + halves(numbers) + halves(stamps))
        } else {
            checksum
        };
        put(out, at + 4, numbers.to_be_bytes());
        put(out, at + 12, words.to_be_bytes());
        put(out, at + 16, (u32::from(checksum) << 16).to_be_bytes());
        if Self::STAMPS {
            put(out, at + 20, [1, 1, 8, 10]);
            put(out, at + 24, stamps.to_be_bytes());
        }
        (numbers.to_be(), stamps.to_be())
    }
}
