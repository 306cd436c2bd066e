//! Reads the records that [`super::write`] writes, and gives the same as [`crate::headers::read`], which reads
//! all others.

use std::hint::select_unpredictable;

use super::shape::Shape;
use crate::bits::{Ahead, Reader, Width};
use crate::headers::fields::{IP_AT, OUT_LEN, Transport, low32, put};
use crate::headers::index::Found;
use crate::headers::key::Key;
use crate::headers::kind::{FLAGS, FLAGS_OTHER, FRAME_MIN, Form, Head, OptionsCode};
use crate::headers::model::{Model, PLACE_BITS, PLACE_BITS_V6, PREFIXES, Prefix, Side};
use crate::headers::read::{NO_PREFIX, Read, TOO_LONG, address, address_v6_of, new_prefix};
use crate::headers::sums::{add, fold, words};
use crate::headers::{Invalid, code, ports};

/// What reads a record.
#[derive(Clone, Copy)]
enum How {
    /// The first packet of a flow: over IPv6 or not; of UDP, TCP without options, TCP with timestamps.
    First(bool, Transport, bool),
    /// Of a flow that was there.
    Known,
    Other,
}

/// By the bits of a head that say so, the lower 12.
static HOW: [How; 1 << 12] = {
    let mut how = [How::Other; 1 << 12];
    let mut head = 0_u16;
    while head < 1 << 12 {
        let (form, flags, options) = (head & 3, head >> 7 & 7, head >> 10);
        let is_odd = head & Head::ODD != 0 || flags == FLAGS_OTHER as u16;
        let has_stamps = options == OptionsCode::Stamps as u16;
        let is_v6 = head >> 3 & 1 != 0;
        how[head as usize] = match (form, head >> 4 & 3) {
            _ if is_odd => How::Other,
            (0 | 1, _) => How::Known,
            (2, 0) if options < 2 => How::First(is_v6, Transport::Tcp, has_stamps),
            (2, 1) if options == 0 => How::First(is_v6, Transport::Udp, false),
            _ => How::Other,
        };
        head += 1;
    }
    how
};

/// Reads it, if it has one of the usual shapes; `None` if nothing was read.
#[inline(always)]
pub(in crate::headers) fn read(
    r: &mut Reader<'_>,
    m: &mut Model,
    head: Head,
    out: &mut [u8; OUT_LEN],
) -> Option<Result<Read, Invalid>> {
    use OptionsCode::{None as No, Stamps};
    // As many as there are heads.
    const PLACES: usize = HOW.len();
    match HOW[usize::from(head.0) % PLACES] {
        How::First(false, Transport::Tcp, true) => Some(Shape::<66>::read_first(r, m, head, out)),
        How::First(false, Transport::Tcp, false) => Some(Shape::<54>::read_first(r, m, head, out)),
        How::First(false, ..) => Some(Shape::<42>::read_first(r, m, head, out)),
        How::First(true, Transport::Tcp, true) => Some(Shape::<86>::read_first(r, m, head, out)),
        How::First(true, Transport::Tcp, false) => Some(Shape::<74>::read_first(r, m, head, out)),
        How::First(true, ..) => Some(Shape::<62>::read_first(r, m, head, out)),
        How::Known => {
            let found = seen(r, m, head)?;
            let key = &m.context(found.context)?.key;
            Some(match (key.transport, head.options()) {
                (Transport::Tcp, No) if key.is_v6 => Shape::<74>::read_seen(r, m, head, found, out),
                (Transport::Tcp, Stamps) if key.is_v6 => {
                    Shape::<86>::read_seen(r, m, head, found, out)
                }
                (Transport::Tcp, No) => Shape::<54>::read_seen(r, m, head, found, out),
                (Transport::Tcp, Stamps) => Shape::<66>::read_seen(r, m, head, found, out),
                (Transport::Udp, No) if key.is_v6 => Shape::<62>::read_seen(r, m, head, found, out),
                (Transport::Udp, No) => Shape::<42>::read_seen(r, m, head, found, out),
                _ => return None,
            })
        }
        How::Other => None,
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
    /// Sequence and acknowledgement number, and timestamps, as in the packet.
    numbers: u64,
    stamps: u64,
}

impl<const LEN: usize> Shape<LEN> {
    const OUT_AT: usize = IP_AT + if Self::V6 { 40 } else { 20 };

    /// The first packet of a flow.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "some 20 bits")]
    fn read_first(
        reader: &mut Reader<'_>,
        m: &mut Model,
        head: Head,
        out: &mut [u8; OUT_LEN],
    ) -> Result<Read, Invalid> {
        let width: u32 =
            const { 16 + if Self::V6 { 1 } else { 0 } + if Self::UDP { 0 } else { 2 } };
        let mut r = reader.ahead();
        let codes = r.peek(width.wrapping_add(4));
        let mut prefix = codes as usize & 3;
        if prefix == 3 {
            r.skip(width.wrapping_add(4));
            prefix = (codes as usize >> width & 15).wrapping_add(3);
            if prefix == PREFIXES {
                reader.follow(&r);
                prefix = new_prefix(reader, m)?;
                r = reader.ahead();
            }
        } else {
            r.skip(width);
        }
        let at = const { if Self::V6 { 8 } else { 7 } };
        let code = |at: u32, width: u32| (codes >> at & (1_u64 << width).wrapping_sub(1)) as usize;
        let (len, ttl) = (code(2, 3), code(5, 2));
        let (ends, ports) = (
            [code(at, 3), code(at.wrapping_add(3), 3)],
            code(at.wrapping_add(6), 3),
        );
        let window = code(at.wrapping_add(9), 2);
        if prefix >= m.prefix_count {
            return Err(NO_PREFIX);
        }
        let source = r.word(Self::address_width(ends[0]));
        r.turn();
        let destination = r.word(Self::address_width(ends[1]));
        let place = code::low16(r.word(Width::new(ports::place_width(ports))));
        let ttl = (ttl, r.word(code::TTL_WIDTHS[ttl]));
        r.turn();
        let len = (len, r.word(code::LEN_WIDTHS[len]));
        let has_label = Self::V6 && code(7, 1) != 0;
        let flow_label = r.word(Width::new(if has_label { 20 } else { 0 }));
        let window = if Self::UDP {
            (0, 0)
        } else {
            (window, r.word(code::WINDOW_WIDTHS[window]))
        };
        r.turn();
        let (source, destination) = if Self::V6 {
            let source = Self::address_v6(&mut r, (m, prefix), 0, ends[0], source);
            let destination = Self::address_v6(&mut r, (m, prefix), 1, ends[1], destination);
            (source, destination)
        } else {
            let source = address(m, prefix, 0, (ends[0], source));
            (source, address(m, prefix, 1, (ends[1], destination)))
        };
        let (payload_len, is_padded) = Self::payload(m, len)?;
        let ports_len = if ports < ports::BOTH { 2 } else { 4 };
        let has_identification = !Self::V6 && !head.has(Head::NO_IDENTIFICATION);
        let word = u32::from_be_bytes(r.some(ports_len));
        let ports = ports::read(&mut m.services, ports, place, word);
        let identification = u16::from_be_bytes(r.some(if has_identification { 2 } else { 0 }));
        let identification = if has_identification {
            identification
        } else {
            0
        };
        let said = u16::from_be_bytes(r.some(Self::checksum_len(head, payload_len)));
        let numbers = Self::numbers(&mut r, head);
        reader.follow(&r);
        let usual = m.prefix_mut(prefix);
        let ttl = code::ttl_of(ttl, usual.ttl);
        usual.ttl = ttl;
        let window = code::window_of(window, usual.window);
        if !Self::UDP {
            usual.window = window;
        }
        let ip = Ip {
            source,
            destination,
            // Payloads that are too long were refused.
            segment_len: payload_len.wrapping_add(Self::TRANSPORT_LEN),
            ttl,
            identification,
            flow_label,
        };
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
        reader: &mut Reader<'_>,
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
        let mut r = reader.ahead();
        r.skip(if is_same { 1 } else { PLACE_BITS + 1 });
        let at: u32 = const { if Self::V6 { 5 } else { 6 } };
        let width = at.wrapping_add(Self::TCP_CODES_SEEN);
        let codes = r.peek(width) as usize;
        r.skip(width);
        let code = |at: u32, width: u32| codes >> at & (1_usize << width).wrapping_sub(1);
        let has_ttl = code(3, 1) != 0;
        let ttl = r.word(code::TTL_SEEN_WIDTHS[code(3, 1)]).to_le_bytes()[0];
        let identification = code(4, 2);
        let identification = if Self::V6 {
            0
        } else {
            let value = r.word(code::IDENTIFICATION_WIDTHS[identification]);
            code::identification_of((identification, value), last.identification())
        };
        r.turn();
        let len = (code(0, 3), r.word(code::LEN_WIDTHS[code(0, 3)]));
        let (payload_len, is_padded) = Self::payload(m, len)?;
        let flow_label = match Self::V6 && code(4, 1) != 0 {
            true => r.word(const { Width::new(20) }),
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
            Self::numbers_seen(&mut r, (head, codes >> at), (&last, &other), &mut tcp);
        }
        reader.follow(&r);
        let (source, destination) = if Self::V6 {
            key.addresses::<true>()
        } else {
            key.addresses::<false>()
        };
        let ip = Ip {
            source,
            destination,
            segment_len: payload_len.wrapping_add(Self::TRANSPORT_LEN),
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
        r: &mut Ahead<'_>,
        (head, codes): (Head, usize),
        (last, other): (&Side, &Side),
        tcp: &mut Transported,
    ) {
        let code = |at: u32| codes >> at & 3;
        let (window, sequence, acknowledgement) = (code(0), code(2), code(4));
        let value = r.word(code::WINDOW_SEEN_WIDTHS[window]);
        tcp.window = code::window_seen_of((window, value), last.window());
        let value = r.word(code::SEQUENCE_WIDTHS[sequence]);
        let said = code::sequence_of((sequence, value), last.sequence());
        r.turn();
        let value = r.word(code::FORWARD_WIDTHS[acknowledgement]);
        let coded = (acknowledgement, value);
        let acknowledged = code::forward_of(coded, last.acknowledgement(), other.sequence());
        let acknowledged = if has_acknowledgement(head) {
            acknowledged
        } else {
            0
        };
        tcp.numbers = (u64::from(said) << 32 | u64::from(acknowledged)).to_be();
        r.turn();
        if Self::STAMPS {
            let (stamp, echo) = (code(6), code(8));
            let said = code::stamp_of((stamp, r.word(code::STAMP_WIDTHS[stamp])), last.stamp());
            r.turn();
            let coded = (echo, r.word(code::FORWARD_WIDTHS[echo]));
            let echoed = code::forward_of(coded, last.echo(), other.stamp());
            tcp.stamps = (u64::from(said) << 32 | u64::from(echoed)).to_be();
            r.turn();
        }
    }

    /// Bytes of the transport's checksum that are sent.
    #[inline(always)]
    fn checksum_len(head: Head, payload_len: u16) -> usize {
        let is_known = head.has(Head::OFFLOADED) || (!Self::UDP && payload_len == 0);
        if is_known { 0 } else { 2 }
    }

    /// Sequence and acknowledgement number, and timestamps, that are sent as they are in the packet.
    #[inline(always)]
    fn numbers(r: &mut Ahead<'_>, head: Head) -> (u64, u64) {
        if Self::UDP {
            return (0, 0);
        }
        let has_both = has_acknowledgement(head);
        let numbers = u64::from_ne_bytes(r.some(if has_both { 8 } else { 4 }));
        // Without the second one, which is not there.
        let only_first = u64::from(u32::MAX).rotate_left(32).to_be();
        let stamps = match Self::STAMPS {
            true => u64::from_ne_bytes(r.some(8)),
            false => 0,
        };
        (
            if has_both {
                numbers
            } else {
                numbers & only_first
            },
            stamps,
        )
    }

    /// The header as bytes, before which the start of its frame is put.
    #[inline(always)]
    fn framed(out: &mut [u8; OUT_LEN], prefix: &Prefix, payload_len: u16, is_padded: bool) -> Read {
        put(out, 0, prefix.bytes);
        let start = IP_AT.wrapping_sub(prefix.len);
        let end = Self::OUT_AT.wrapping_add(usize::from(Self::TRANSPORT_LEN));
        let frame_len =
            strata_wire::exact::<u32>(end.wrapping_sub(start)).wrapping_add(u32::from(payload_len));
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
        let addresses = Self::put_ip(out, ip, (head, tos), tcp.ports);
        let pseudo = addresses
            .wrapping_add(u64::from(ip.segment_len))
            .wrapping_add(u64::from(Self::PROTOCOL));
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
            payload_len: tcp.payload_len,
            tcp_flags: flags,
            numbers: tcp.numbers,
            stamps: tcp.stamps,
        }
    }

    #[inline(always)]
    fn address_v6(
        r: &mut Ahead<'_>,
        (m, prefix): (&mut Model, usize),
        end: usize,
        code: usize,
        value: u32,
    ) -> u128 {
        let bytes = r.some(code::ADDRESS_V6[code & 7] as usize);
        address_v6_of(m, prefix, end, code, (value, bytes))
    }

    #[inline(always)]
    fn address_width(code: usize) -> Width {
        if Self::V6 {
            Width::new(if code == 0 { PLACE_BITS_V6 } else { 0 })
        } else {
            code::ADDRESS_WIDTHS[code & 7]
        }
    }

    /// Bytes of payload, and whether the frame is filled up.
    #[inline(always)]
    fn payload(m: &mut Model, len: code::Coded) -> Result<(u16, bool), Invalid> {
        let full = &mut m.full[Self::KIND];
        let (payload_len, is_padded) = code::len_of(len, *full);
        let is_full = (payload_len > *full) | (Self::UDP & (payload_len >= 512));
        *full = select_unpredictable(is_full, payload_len, *full);
        let ip_len = const { if Self::V6 { 0 } else { 20 } };
        if payload_len
            > u16::MAX
                .wrapping_sub(Self::TRANSPORT_LEN)
                .wrapping_sub(ip_len)
        {
            return Err(TOO_LONG);
        }
        Ok((payload_len, is_padded))
    }

    #[inline(always)]
    fn remember_read(m: &mut Model, ip: &Ip, ports: u32, last: Side) {
        let (source, destination) = (ip.source, ip.destination);
        let key = if Self::V6 {
            Key::new::<true>(source, destination, ports, Self::TRANSPORT)
        } else {
            Key::new::<false>(source, destination, ports, Self::TRANSPORT)
        };
        m.add_context(key.place(), &key, last);
    }

    /// Writes the IP header and the ports; the sum of its addresses.
    #[inline(always)]
    fn put_ip(out: &mut [u8; OUT_LEN], ip: &Ip, (head, tos): (Head, u8), ports: u32) -> u64 {
        if Self::V6 {
            put(
                out,
                IP_AT,
                (6 << 28 | u32::from(tos) << 20 | ip.flow_label).to_be_bytes(),
            );
            put(out, IP_AT + 4, ip.segment_len.to_be_bytes());
            put(out, IP_AT + 6, [Self::PROTOCOL, ip.ttl]);
            put(out, IP_AT + 8, ip.source.to_be_bytes());
            put(out, IP_AT + 24, ip.destination.to_be_bytes());
            put(out, IP_AT + 40, ports.to_be_bytes());
            return words(ip.source).wrapping_add(words(ip.destination));
        }
        let source = u64::from(low32(ip.source));
        let destination = u64::from(low32(ip.destination));
        let fragment = if head.has(Head::MAY_FRAGMENT) {
            0
        } else {
            0x4000
        };
        let total_len = u64::from(ip.segment_len.wrapping_add(20));
        let identification = u64::from(ip.identification);
        let first = 0x45 << 56 | u64::from(tos) << 48 | total_len << 32;
        let first = first | identification << 16 | fragment;
        let second = u64::from(ip.ttl) << 56 | u64::from(Self::PROTOCOL) << 48 | source;
        let checksum = !fold(add(add(first, second), destination));
        let second = second | u64::from(checksum) << 32;
        put(out, IP_AT, first.to_be_bytes());
        put(out, IP_AT + 8, second.to_be_bytes());
        put(
            out,
            IP_AT + 16,
            (destination << 32 | u64::from(ports)).to_be_bytes(),
        );
        source.wrapping_add(destination)
    }

    /// Writes the header of the transport, with the checksum that was sent unless it follows from all
    /// else.
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
        if Self::UDP {
            let len = u32::from(tcp.payload_len.wrapping_add(8));
            put(
                out,
                at.wrapping_add(4),
                (len << 16 | u32::from(checksum)).to_be_bytes(),
            );
            return;
        }
        let flags = FLAGS[head.flags()];
        let words = u32::from(Self::TRANSPORT_LEN) << 26 | u32::from(flags) << 16;
        let words = words | u32::from(tcp.window);
        let checksum = if tcp.payload_len == 0 && !is_offloaded {
            let kind = if Self::STAMPS { 0x0101_080a } else { 0 };
            let sum = pseudo
                .wrapping_add(u64::from(tcp.ports))
                .wrapping_add(u64::from(words))
                .wrapping_add(kind);
            let numbers = add(u64::from_be(tcp.numbers), u64::from_be(tcp.stamps));
            !fold(add(sum, numbers))
        } else {
            checksum
        };
        put(out, at.wrapping_add(4), tcp.numbers.to_ne_bytes());
        let words = u64::from(words) << 32 | u64::from(checksum) << 16;
        put(out, at.wrapping_add(12), words.to_be_bytes());
        if Self::STAMPS {
            put(out, at.wrapping_add(20), [1, 1, 8, 10]);
            put(out, at.wrapping_add(24), tcp.stamps.to_ne_bytes());
        }
    }
}

/// Whether a packet of this kind acknowledges.
#[inline(always)]
fn has_acknowledgement(head: Head) -> bool {
    FLAGS[head.flags()] & strata_wire::transport::tcp_flag::ACK != 0
}
