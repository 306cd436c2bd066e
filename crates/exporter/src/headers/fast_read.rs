//! Reads the records that [`super::fast_write`] writes, and gives the same as [`super::read`], which reads
//! all others.

use super::fields::{IP_AT, OUT_LEN, Transport, low32, put};
use super::index::Found;
use super::kind::{FLAGS, FLAGS_OTHER, FRAME_MIN, Form, Head, OptionsCode};
use super::model::{Key, Model, PLACE_BITS, PREFIXES, Prefix, Side, flow_place, step};
use super::read::{NO_PREFIX, Read, TOO_LONG, address, address_v6, address_value, new_prefix};
use super::shape::Shape;
use super::sums::{fold, words};
use super::{Invalid, code, ports};
use crate::bits::Reader;

/// Whether a record is one of those, before its codes are read.
#[inline(always)]
pub(super) fn is_usual(head: Head) -> bool {
    head.form() != Form::Other && !head.has(Head::ODD) && head.flags() != usize::from(FLAGS_OTHER)
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
    let seen = match head.form() {
        Form::New => None,
        _ => Some(seen(r, m, head)?),
    };
    let (transport, is_v6) = match seen {
        None => (head.transport()?, head.is_v6()),
        Some(Found { context, .. }) => {
            let key = &m.context(context)?.key;
            (key.transport, key.is_v6)
        }
    };
    match (transport, head.options()) {
        (Transport::Tcp, No) if is_v6 => Shape::<74>::read(r, m, head, seen, out),
        (Transport::Tcp, Stamps) if is_v6 => Shape::<86>::read(r, m, head, seen, out),
        (Transport::Tcp, No) => Shape::<54>::read(r, m, head, seen, out),
        (Transport::Tcp, Stamps) => Shape::<66>::read(r, m, head, seen, out),
        (Transport::Udp, No) if is_v6 => Shape::<62>::read(r, m, head, seen, out),
        (Transport::Udp, No) => Shape::<42>::read(r, m, head, seen, out),
        _ => None,
    }
}

/// Which flow and direction a record is of, which is not read yet; `None` if they were not seen.
#[inline(always)]
fn seen(r: &Reader<'_>, m: &Model, head: Head) -> Option<Found> {
    let (context, side) = if head.form() == Form::Same {
        (m.last_context, r.peek(1))
    } else {
        let place = r.peek(PLACE_BITS + 1);
        (place.to_le_bytes()[0], place >> PLACE_BITS)
    };
    let side = usize::from(side != 0);
    let is_seen = m.context(context)?.sides[side].is_seen;
    is_seen.then_some(Found { context, side })
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

/// What the transport's header has.
struct Transported {
    ports: u32,
    payload_len: u16,
    window: u16,
    /// Sequence and acknowledgement number, and timestamps.
    numbers: u64,
    stamps: u64,
}

impl<const LEN: usize> Shape<LEN> {
    const OUT_AT: usize = IP_AT + if Self::V6 { 40 } else { 20 };

    #[inline(always)]
    fn read(
        r: &mut Reader<'_>,
        m: &mut Model,
        head: Head,
        seen: Option<Found>,
        out: &mut [u8; OUT_LEN],
    ) -> Option<Result<Read, Invalid>> {
        Some(match seen {
            None => Self::read_first(r, m, head, out),
            Some(found) => Self::read_seen(r, m, head, found, out),
        })
    }

    /// The first packet of a flow.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "some 20 bits")]
    fn read_first(
        r: &mut Reader<'_>,
        m: &mut Model,
        head: Head,
        out: &mut [u8; OUT_LEN],
    ) -> Result<Read, Invalid> {
        let width = const { 16 + if Self::V6 { 1 } else { 0 } + if Self::UDP { 0 } else { 2 } };
        let codes = r.peek(width + 4);
        let (first, later) = (codes as usize & 3, codes as usize >> width & 15);
        r.bits(if first == 3 { width + 4 } else { width });
        let mut prefix = if first == 3 { 3 + later } else { first };
        if prefix == PREFIXES {
            prefix = new_prefix(r, m)?;
        }
        let at = const { if Self::V6 { 8 } else { 7 } };
        let code = |at: u32, width: u32| (codes >> at & ((1 << width) - 1)) as usize;
        let (len, ttl) = (code(2, 3), code(5, 2));
        let (ends, ports) = ([code(at, 3), code(at + 3, 3)], code(at + 6, 3));
        let window = code(at + 9, 2);
        if prefix >= m.prefix_count {
            return Err(NO_PREFIX);
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
        let (payload_len, is_padded) = Self::payload(m, len)?;
        let ports_len = if ports < ports::BOTH { 2 } else { 4 };
        let has_identification = !Self::V6 && !head.has(Head::NO_IDENTIFICATION);
        let identification_len = if has_identification { 2 } else { 0 };
        let checksum_len = Self::checksum_len(head, payload_len);
        let len = ports_len + identification_len + checksum_len;
        // The first byte is the highest.
        let bytes = u64::from_be_bytes(r.some(len));
        let ports = ports::read(&mut m.services, ports, place, (bytes >> 32) as u32);
        let bytes = bytes << (8 * ports_len);
        let identification = if has_identification {
            (bytes >> 48) as u16
        } else {
            0
        };
        let said = (bytes << (8 * identification_len) >> 48) as u16;
        let usual = m.prefix_mut(prefix);
        let ttl = code::ttl_of(ttl, usual.ttl);
        usual.ttl = ttl;
        let window = code::window_of(window, usual.window);
        if !Self::UDP {
            usual.window = window;
        }
        let segment_len = payload_len + Self::TRANSPORT_LEN;
        let ip = Ip {
            source,
            destination,
            segment_len,
            ttl,
            identification,
            flow_label,
        };
        let numbers = Self::numbers(r, head);
        let tcp = Transported {
            ports,
            payload_len,
            window,
            numbers: numbers.0,
            stamps: numbers.1,
        };
        let last = Self::put(out, head, (&ip, m.tos), &tcp, said, prefix);
        let read = Self::framed(out, m.prefix(prefix), payload_len, is_padded);
        Self::remember_read(m, &ip, ports, last);
        Ok(read)
    }

    /// A packet of a direction that was in the datagram.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "some 16 bits")]
    fn read_seen(
        r: &mut Reader<'_>,
        m: &mut Model,
        head: Head,
        found: Found,
        out: &mut [u8; OUT_LEN],
    ) -> Result<Read, Invalid> {
        let known = m.context(found.context).expect("it was seen");
        let (last, other) = (known.sides[found.side & 1], known.sides[found.side & 1 ^ 1]);
        let key = match found.side {
            0 => known.key,
            _ => known.key.reversed(),
        };
        let prefix = usize::from(last.prefix);
        if prefix >= m.prefix_count {
            return Err(NO_PREFIX);
        }
        let is_same = head.form() == Form::Same;
        r.bits(if is_same { 1 } else { PLACE_BITS + 1 });
        let at = const { if Self::V6 { 5 } else { 6 } };
        let tcp_width = Self::TCP_CODES_SEEN;
        let codes = r.bits(at + tcp_width) as usize;
        let code = |at: u32, width: u32| codes >> at & ((1 << width) - 1);
        let has_ttl = code(3, 1) != 0;
        let ttl = r.word(if has_ttl { 8 } else { 0 }).to_le_bytes()[0];
        let identification = code(4, 2);
        let identification = if Self::V6 {
            0
        } else {
            let value = r.word(code::IDENTIFICATION[identification]);
            code::identification_of((identification, value), last.identification())
        };
        r.turn();
        let len = (code(0, 3), r.word(code::LEN[code(0, 3)]));
        let (payload_len, is_padded) = Self::payload(m, len)?;
        let flow_label = match Self::V6 && code(4, 1) != 0 {
            true => r.word(20),
            false => last.flow_label,
        };
        r.turn();
        let said = u16::from_be_bytes(r.some(Self::checksum_len(head, payload_len)));
        let mut tcp = Transported {
            ports: key.ports,
            payload_len,
            window: 0,
            numbers: 0,
            stamps: 0,
        };
        if !Self::UDP {
            let codes = [0, 2, 4, 6, 8].map(|more| code(at + more, 2));
            Self::numbers_seen(r, head, codes, (&last, &other), &mut tcp);
        }
        let ip = Ip {
            source: key.source,
            destination: key.destination,
            segment_len: payload_len + Self::TRANSPORT_LEN,
            ttl: if has_ttl { ttl } else { last.ttl },
            identification,
            flow_label,
        };
        let now = Self::put(out, head, (&ip, last.tos), &tcp, said, prefix);
        m.tos = last.tos;
        m.follow(found.context, found.side, now);
        Ok(Self::framed(out, m.prefix(prefix), payload_len, is_padded))
    }

    /// TCP's numbers of a direction that was seen, by their codes and what is expected.
    #[inline(always)]
    fn numbers_seen(
        r: &mut Reader<'_>,
        head: Head,
        [window, sequence, acknowledgement, stamp, echo]: [usize; 5],
        (last, other): (&Side, &Side),
        tcp: &mut Transported,
    ) {
        let value = r.word(code::WINDOW_SEEN[window]);
        tcp.window = code::window_seen_of((window, value), last.window());
        let value = r.word(code::SEQUENCE[sequence]);
        let said = code::sequence_of((sequence, value), last.sequence());
        r.turn();
        let value = r.word(code::FORWARD[acknowledgement]);
        let coded = (acknowledgement, value);
        let acknowledged = code::forward_of(coded, last.acknowledgement(), other.sequence());
        let acknowledged = if has_acknowledgement(head) {
            acknowledged
        } else {
            0
        };
        tcp.numbers = u64::from(said) << 32 | u64::from(acknowledged);
        r.turn();
        if Self::STAMPS {
            let said = code::stamp_of((stamp, r.word(code::STAMP[stamp])), last.stamp());
            r.turn();
            let coded = (echo, r.word(code::FORWARD[echo]));
            let echoed = code::forward_of(coded, last.echo(), other.stamp());
            tcp.stamps = u64::from(said) << 32 | u64::from(echoed);
            r.turn();
        }
    }

    /// Bytes of the transport's checksum that are said.
    #[inline(always)]
    fn checksum_len(head: Head, payload_len: u16) -> usize {
        let is_known = head.has(Head::OFFLOADED) || (!Self::UDP && payload_len == 0);
        if is_known { 0 } else { 2 }
    }

    /// Sequence and acknowledgement number, and timestamps, that are said as they are.
    #[inline(always)]
    fn numbers(r: &mut Reader<'_>, head: Head) -> (u64, u64) {
        if Self::UDP {
            return (0, 0);
        }
        let has_both = has_acknowledgement(head);
        let numbers = u64::from_be_bytes(r.some(if has_both { 8 } else { 4 }));
        let stamps = match Self::STAMPS {
            true => u64::from_be_bytes(r.all()),
            false => 0,
        };
        (
            if has_both {
                numbers
            } else {
                numbers >> 32 << 32
            },
            stamps,
        )
    }

    /// The header as bytes, before which the start of its frame is put.
    #[inline(always)]
    fn framed(out: &mut [u8; OUT_LEN], prefix: &Prefix, payload_len: u16, is_padded: bool) -> Read {
        put(out, 0, prefix.bytes);
        let start = IP_AT - prefix.len;
        let end = Self::OUT_AT + usize::from(Self::TRANSPORT_LEN);
        let frame_len = strata_wire::exact::<u32>(end - start) + u32::from(payload_len);
        Read {
            start,
            end,
            wire_len: if is_padded { FRAME_MIN } else { frame_len },
        }
    }

    /// Writes the headers of IP and transport; what is remembered of the packet.
    #[inline(always)]
    fn put(
        out: &mut [u8; OUT_LEN],
        head: Head,
        (ip, tos): (&Ip, u8),
        tcp: &Transported,
        said_checksum: u16,
        prefix: usize,
    ) -> Side {
        let addresses = Self::put_ip(out, ip, head, tos);
        let pseudo = addresses + u64::from(ip.segment_len) + u64::from(Self::PROTOCOL);
        Self::put_transport(out, head, tcp, pseudo, said_checksum);
        let flags = if Self::UDP { 0 } else { FLAGS[head.flags()] };
        Side {
            is_seen: true,
            prefix: prefix.to_le_bytes()[0],
            tos,
            ttl: ip.ttl,
            identification: ip.identification.to_be(),
            window: if Self::UDP { 0 } else { tcp.window.to_be() },
            flow_label: ip.flow_label,
            step: step(tcp.payload_len, flags),
            numbers: tcp.numbers.to_be(),
            stamps: tcp.stamps.to_be(),
        }
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

    /// Writes the header of the transport, with the checksum that is said unless it follows from all else.
    #[inline(always)]
    fn put_transport(
        out: &mut [u8; OUT_LEN],
        head: Head,
        tcp: &Transported,
        pseudo: u64,
        said_checksum: u16,
    ) {
        let at = Self::OUT_AT;
        let is_offloaded = head.has(Head::OFFLOADED);
        let checksum = if is_offloaded {
            fold(pseudo)
        } else {
            said_checksum
        };
        put(out, at, tcp.ports.to_be_bytes());
        if Self::UDP {
            put(out, at + 4, (tcp.payload_len + 8).to_be_bytes());
            put(out, at + 6, checksum.to_be_bytes());
            return;
        }
        let flags = FLAGS[head.flags()];
        let words = u32::from(Self::TRANSPORT_LEN) << 26 | u32::from(flags) << 16;
        let words = words | u32::from(tcp.window);
        let halves = |word: u64| (word >> 32) + (word & 0xffff_ffff);
        let checksum = if tcp.payload_len == 0 && !is_offloaded {
            let kind = if Self::STAMPS { 0x0101_080a } else { 0 };
            let sum = pseudo + u64::from(tcp.ports) + u64::from(words) + kind;
            !fold(sum + halves(tcp.numbers) + halves(tcp.stamps))
        } else {
            checksum
        };
        put(out, at + 4, tcp.numbers.to_be_bytes());
        put(out, at + 12, words.to_be_bytes());
        put(out, at + 16, (u32::from(checksum) << 16).to_be_bytes());
        if Self::STAMPS {
            put(out, at + 20, [1, 1, 8, 10]);
            put(out, at + 24, tcp.stamps.to_be_bytes());
        }
    }
}

/// Whether a packet of this kind acknowledges.
#[inline(always)]
fn has_acknowledgement(head: Head) -> bool {
    FLAGS[head.flags()] & strata_wire::transport::tcp_flag::ACK != 0
}
