//! Reads the record of a plain header: the order is that of [`super::write`].

use super::Invalid;
use super::code;
use super::fields::{Fields, IP_AT, OPTIONS_MAX, OUT_LEN, Options, PREFIX_MAX, Transport};
use super::key::Key;
use super::kind::{FLAGS, FLAGS_OTHER, FRAME_MIN, Form, Head, OptionsCode, odd};
use super::model::{Model, PLACE_BITS, PLACE_BITS_V6, PREFIXES, Side};
use super::ports;
use crate::bits::Reader;

/// A plain header as it was read, in [`OUT_LEN`] bytes.
pub(super) struct Read {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) wire_len: u32,
}

pub(super) const NO_PREFIX: Invalid = Invalid("a reference to a missing start of frame");
pub(super) const TOO_LONG: Invalid = Invalid("more payload than IP allows");

/// Reads a plain header of this kind.
#[inline(never)]
pub(super) fn plain(
    r: &mut Reader<'_>,
    m: &mut Model,
    head: Head,
    out: &mut [u8; OUT_LEN],
) -> Result<Read, Invalid> {
    let mut record = Record { r, m, head, out };
    if head.form() == Form::New {
        let transport = head.transport().ok_or(Invalid("an unknown transport"))?;
        return if head.is_v6() {
            record.first::<true, true>(transport, 0, 0)
        } else {
            record.first::<false, true>(transport, 0, 0)
        };
    }
    let (context, side) = record.place();
    let known = record.m.context(context);
    let known = known.ok_or(Invalid("a reference to a missing flow"))?;
    let (transport, is_v6) = (known.key.transport, known.key.is_v6);
    let is_seen = known.sides[side].is_seen;
    match (is_v6, is_seen) {
        (false, true) => record.seen::<false>(transport, context, side),
        (true, true) => record.seen::<true>(transport, context, side),
        (false, false) => record.first::<false, false>(transport, context, side),
        (true, false) => record.first::<true, false>(transport, context, side),
    }
}

struct Record<'a, 'b> {
    r: &'a mut Reader<'b>,
    m: &'a mut Model,
    head: Head,
    out: &'a mut [u8; OUT_LEN],
}

impl Record<'_, '_> {
    /// Which of the known flows, and its direction.
    #[inline(always)]
    fn place(&mut self) -> (u8, usize) {
        let r = &mut *self.r;
        let context = if self.head.form() == Form::Same {
            self.m.last_context
        } else {
            byte(r.word(PLACE_BITS))
        };
        let side = r.word(1) as usize;
        r.turn();
        (context, side)
    }

    /// The first packet of a flow, or of its other direction.
    #[inline(always)]
    fn first<const V6: bool, const NEW: bool>(
        &mut self,
        transport: Transport,
        context: u8,
        side: usize,
    ) -> Result<Read, Invalid> {
        let head = self.head;
        let is_tcp = transport == Transport::Tcp;
        let mut options = [0; OPTIONS_MAX];
        let mut f = self.fields::<V6>(transport);
        f.tos = self.m.tos;
        let odd = self.odd();
        let r = &mut *self.r;
        let codes = r.word(const { 7 + if V6 { 1 } else { 0 } + if NEW { 9 } else { 0 } });
        let tcp_codes = r.word(if is_tcp {
            const { if NEW { 2 } else { 5 } }
        } else {
            0
        });
        let code = |at: u32, width: u32| (codes >> at & (1_u32 << width).wrapping_sub(1)) as usize;
        let (prefix, len, ttl) = (code(0, 2), code(2, 3), code(5, 2));
        let has_label = V6 && code(7, 1) != 0;
        let address_codes = const { if V6 { 8 } else { 7 } };
        let window = (tcp_codes & 3) as usize;
        let mut prefix = prefix;
        if is_rare(head, prefix) {
            prefix = self.rare(&mut f, odd, prefix)?;
        }
        if is_tcp {
            f.options = options_of(head.options(), self.m.options(), &mut options)?;
        }
        let m = &*self.m;
        if prefix >= m.prefix_count {
            return Err(NO_PREFIX);
        }
        if NEW {
            self.ends(&mut f, prefix, codes >> address_codes);
        } else {
            self.key(&mut f, context, side);
        }
        let (r, m) = (&mut *self.r, &mut *self.m);
        let usual = m.prefix_mut(prefix);
        f.ttl = code::ttl_of((ttl, r.word(code::TTL[ttl & 3])), usual.ttl);
        usual.ttl = f.ttl;
        r.turn();
        let wire_len = self.lengths(&mut f, len, has_label, prefix, odd)?;
        let (r, m) = (&mut *self.r, &mut *self.m);
        if is_tcp {
            let usual = m.prefix_mut(prefix);
            let value = r.word(code::WINDOW[window]);
            f.window = code::window_of((window, value), usual.window);
            usual.window = f.window;
        }
        r.turn();
        if !V6 && !head.has(Head::NO_IDENTIFICATION) {
            f.identification = u16::from_be_bytes(r.all());
        }
        self.checksum(&mut f, odd);
        match transport {
            Transport::Tcp => {
                let known = self.m.context(context).filter(|_| !NEW);
                let other = known.map(|known| known.sides[side ^ 1]);
                self.numbers(&mut f, tcp_codes >> 2, other.as_ref(), odd);
            }
            Transport::Udp => {}
            Transport::Icmp => self.icmp(&mut f),
        }
        let read = self.finish(&mut f, prefix, odd, wire_len);
        let m = &mut *self.m;
        m.tos = f.tos;
        let last = Side::after(&f, prefix);
        if NEW {
            let key = Key::new::<V6>(f.source, f.destination, f.ports, transport);
            m.add_context(key.place(), &key, last);
        } else {
            m.follow(context, side, last);
        }
        Ok(read)
    }

    /// Addresses and ports of a new flow, by their codes.
    #[inline(always)]
    fn ends<const V6: bool>(&mut self, f: &mut Fields<'_, V6>, prefix: usize, codes: u32) {
        let (r, m) = (&mut *self.r, &mut *self.m);
        let code = |at: u32| (codes >> at & 7) as usize;
        let (codes, ports) = ([code(0), code(3)], code(6));
        let source = address_value::<V6>(r, codes[0]);
        r.turn();
        let destination = address_value::<V6>(r, codes[1]);
        let place = code::low16(r.word(ports::place_width(ports)));
        if V6 {
            f.source = address_v6(r, m, prefix, 0, codes[0], source);
            f.destination = address_v6(r, m, prefix, 1, codes[1], destination);
        } else {
            f.source = address(m, prefix, 0, (codes[0], source));
            f.destination = address(m, prefix, 1, (codes[1], destination));
        }
        let word = u32::from_be_bytes(r.some(if ports < ports::BOTH { 2 } else { 4 }));
        f.ports = if f.transport == Transport::Icmp {
            (word >> 16).wrapping_mul(0x1_0001)
        } else {
            ports::read(&mut m.services, ports, place, word)
        };
    }

    /// TCP's numbers, unless only this direction's are known.
    #[inline(always)]
    fn numbers<const V6: bool>(
        &mut self,
        f: &mut Fields<'_, V6>,
        said_codes: u32,
        other: Option<&Side>,
        odd: u8,
    ) {
        let has_both = f.acknowledges() || odd & odd::ACKNOWLEDGEMENT != 0;
        let r = &mut *self.r;
        let Some(other) = other else {
            let [sequence, acknowledgement] = halves(r.some(if has_both { 8 } else { 4 }));
            f.sequence = sequence;
            f.acknowledgement = if has_both { acknowledgement } else { 0 };
            if let Options::Stamps(..) = f.options {
                let [stamp, echo] = halves(r.all());
                f.options = Options::Stamps(stamp, echo);
            }
            return;
        };
        let mut said = |is_said: bool, usual| {
            let value = u32::from_be_bytes(r.some(if is_said { 4 } else { 0 }));
            if is_said { value } else { usual }
        };
        f.sequence = said(said_codes & 1 != 0, other.acknowledgement());
        f.acknowledgement = if has_both {
            said(said_codes & 2 != 0, other.sequence())
        } else {
            0
        };
        if let Options::Stamps(..) = f.options {
            let stamp = said(true, 0);
            let echo = said(said_codes & 4 != 0, other.stamp());
            f.options = Options::Stamps(stamp, echo);
        }
    }

    /// A packet of a direction that was in the datagram.
    #[inline(always)]
    fn seen<const V6: bool>(
        &mut self,
        transport: Transport,
        context: u8,
        side: usize,
    ) -> Result<Read, Invalid> {
        let head = self.head;
        let known = self.m.context(context).expect("its key was there");
        let (last, other) = (known.sides[side], known.sides[side ^ 1]);
        let mut options = [0; OPTIONS_MAX];
        let mut f = self.fields::<V6>(transport);
        self.key(&mut f, context, side);
        f.tos = last.tos;
        let (mut prefix, mut said_prefix) = (usize::from(last.prefix), 0);
        let odd = if self.head.has(Head::ODD) {
            let odd = byte(self.r.word(odd::BITS));
            if odd & odd::PREFIX != 0 {
                said_prefix = self.r.word(2) as usize;
                prefix = said_prefix;
            }
            self.r.turn();
            odd
        } else {
            0
        };
        let r = &mut *self.r;
        let len = r.word(3) as usize;
        let has_ttl = r.word(1) != 0;
        let identification = r.word(if V6 { 1 } else { 2 }) as usize;
        let is_tcp = transport == Transport::Tcp;
        let has_stamps = self.head.options() == OptionsCode::Stamps;
        let tcp_codes = r.word(match (is_tcp, has_stamps) {
            (true, true) => 10,
            (true, false) => 6,
            _ => 0,
        });
        r.turn();
        if is_rare(self.head, said_prefix) {
            let rare = self.rare(&mut f, odd, said_prefix)?;
            prefix = if odd & odd::PREFIX != 0 { rare } else { prefix };
        }
        if is_tcp {
            f.options = options_of(head.options(), self.m.options(), &mut options)?;
        }
        let (r, m) = (&mut *self.r, &mut *self.m);
        if prefix >= m.prefix_count {
            return Err(NO_PREFIX);
        }
        let ttl = byte(r.word(if has_ttl { 8 } else { 0 }));
        f.ttl = if has_ttl { ttl } else { last.ttl };
        f.flow_label = last.flow_label;
        if !V6 {
            let value = r.word(code::IDENTIFICATION[identification & 3]);
            let coded = (identification, value);
            f.identification = code::identification_of(coded, last.identification());
        }
        let has_label = V6 && identification != 0;
        let wire_len = self.lengths(&mut f, len, has_label, prefix, odd)?;
        self.r.turn();
        self.checksum(&mut f, odd);
        let r = &mut *self.r;
        match transport {
            Transport::Tcp => {
                let code = |at: u32| (tcp_codes >> at & 3) as usize;
                let value = r.word(code::WINDOW_SEEN[code(0)]);
                f.window = code::window_seen_of((code(0), value), last.window());
                let value = r.word(code::SEQUENCE[code(2)]);
                f.sequence = code::sequence_of((code(2), value), last.sequence());
                r.turn();
                let coded = (code(4), r.word(code::FORWARD[code(4)]));
                let value = code::forward_of(coded, last.acknowledgement(), other.sequence());
                let has_acknowledgement = f.acknowledges() || odd & odd::ACKNOWLEDGEMENT != 0;
                f.acknowledgement = if has_acknowledgement { value } else { 0 };
                if has_stamps {
                    r.turn();
                    let stamp = (code(6), r.word(code::STAMP[code(6)]));
                    r.turn();
                    let echo = (code(8), r.word(code::FORWARD[code(8)]));
                    f.options = Options::Stamps(
                        code::stamp_of(stamp, last.stamp()),
                        code::forward_of(echo, last.echo(), other.stamp()),
                    );
                }
                r.turn();
            }
            Transport::Udp => {}
            Transport::Icmp => self.icmp(&mut f),
        }
        let read = self.finish(&mut f, prefix, odd, wire_len);
        let m = &mut *self.m;
        m.tos = f.tos;
        m.follow(context, side, Side::after(&f, prefix));
        Ok(read)
    }

    /// What the head says of the fields.
    #[inline(always)]
    fn fields<'f, const V6: bool>(&self, transport: Transport) -> Fields<'f, V6> {
        let mut f = Fields::EMPTY;
        f.transport = transport;
        f.may_fragment = self.head.has(Head::MAY_FRAGMENT);
        if transport == Transport::Tcp {
            f.tcp_flags = FLAGS[self.head.flags()];
        }
        f
    }

    /// Addresses and ports of a known flow.
    #[inline(always)]
    fn key<const V6: bool>(&self, f: &mut Fields<'_, V6>, context: u8, side: usize) {
        let key = self.m.context(context).expect("it was there").key;
        let key = if side == 0 { key } else { key.reversed() };
        (f.source, f.destination) = key.addresses::<V6>();
        f.ports = key.ports;
    }

    #[inline(always)]
    fn odd(&mut self) -> u8 {
        if !self.head.has(Head::ODD) {
            return 0;
        }
        let odd = byte(self.r.word(odd::BITS));
        self.r.turn();
        odd
    }

    /// Payload length, flow label if it was sent, length on the wire.
    #[inline(always)]
    fn lengths<const V6: bool>(
        &mut self,
        f: &mut Fields<'_, V6>,
        code: usize,
        says_label: bool,
        prefix: usize,
        odd: u8,
    ) -> Result<u32, Invalid> {
        let (r, m) = (&mut *self.r, &mut *self.m);
        let full = &mut m.full[f.kind()];
        let coded = (code, r.word(code::LEN[code & 7]));
        let (len, is_padded) = code::len_of(coded, *full);
        f.payload_len = len;
        if !f.is_sayable() {
            return Err(TOO_LONG);
        }
        *full = f.next_full(*full);
        if says_label {
            f.flow_label = r.word(20);
        }
        let usual = if is_padded {
            FRAME_MIN
        } else {
            f.end(m.prefix(prefix).len)
        };
        Ok(if odd & odd::WIRE_LEN == 0 {
            usual
        } else {
            u32::from_be_bytes(r.all())
        })
    }

    /// The transport's checksum, unless it is known.
    #[inline(always)]
    fn checksum<const V6: bool>(&mut self, f: &mut Fields<'_, V6>, odd: u8) {
        let is_known = f.has_known_checksum() && odd & odd::CHECKSUM == 0;
        let len = if is_known || self.head.has(Head::OFFLOADED) {
            0
        } else {
            2
        };
        f.checksum = u16::from_be_bytes(self.r.some(len));
    }

    fn icmp<const V6: bool>(&mut self, f: &mut Fields<'_, V6>) {
        f.icmp_type = u16::from_be_bytes(self.r.all());
        f.sequence = u16::from_be_bytes(self.r.all()).into();
    }

    /// What follows from the other fields; the bytes of the header.
    #[inline(always)]
    fn finish<const V6: bool>(
        &mut self,
        f: &mut Fields<'_, V6>,
        prefix: usize,
        odd: u8,
        wire_len: u32,
    ) -> Read {
        if f.transport == Transport::Udp && odd & odd::TRANSPORT == 0 {
            f.udp_len = f.segment_len();
        }
        if !V6 && odd & odd::IP_CHECKSUM == 0 {
            f.ip_checksum = f.right_ip_checksum();
        }
        if self.head.has(Head::OFFLOADED) {
            f.checksum = f.pseudo_sum();
        } else if f.has_known_checksum() && odd & odd::CHECKSUM == 0 {
            f.checksum = f.right_empty_checksum();
        }
        let prefix = self.m.prefix(prefix);
        self.out[..IP_AT].copy_from_slice(&prefix.bytes);
        Read {
            start: IP_AT.wrapping_sub(prefix.len),
            end: f.emit(self.out),
            wire_len,
        }
    }

    /// Reads what is rare; the number of the start of the frame.
    #[inline(never)]
    fn rare<const V6: bool>(
        &mut self,
        f: &mut Fields<'_, V6>,
        odd: u8,
        mut prefix: usize,
    ) -> Result<usize, Invalid> {
        let (r, m) = (&mut *self.r, &mut *self.m);
        r.turn();
        if prefix == 3 {
            prefix = prefix.wrapping_add(r.word(4) as usize);
            r.turn();
            if prefix == PREFIXES {
                prefix = new_prefix(r, m)?;
            }
        }
        if odd & odd::TOS != 0 {
            [f.tos] = r.all();
        }
        if odd & odd::IP_CHECKSUM != 0 {
            f.ip_checksum = u16::from_be_bytes(r.all());
        }
        let is_tcp = f.transport == Transport::Tcp;
        if odd & odd::TRANSPORT != 0 {
            if is_tcp {
                let [reserved] = r.all();
                f.reserved = reserved & 15;
                f.urgent = u16::from_be_bytes(r.all());
            } else {
                f.udp_len = u16::from_be_bytes(r.all());
            }
        }
        if is_tcp && self.head.flags() == usize::from(FLAGS_OTHER) {
            [f.tcp_flags] = r.all();
        }
        if is_tcp && self.head.options() == OptionsCode::Raw {
            let [len] = r.all();
            let len = usize::from(len);
            if !(1..=OPTIONS_MAX).contains(&len) || !len.is_multiple_of(4) {
                return Err(Invalid("an impossible length of TCP options"));
            }
            m.learn_options(r.slice(len).ok_or(CUT)?);
        }
        Ok(prefix)
    }
}

const CUT: Invalid = Invalid("a truncated record");

/// Reads a start of the frame that was not there before; its number.
#[inline(never)]
pub(super) fn new_prefix(r: &mut Reader<'_>, m: &mut Model) -> Result<usize, Invalid> {
    let [len] = r.all();
    if usize::from(len) > PREFIX_MAX {
        return Err(Invalid("an impossible length of the start of frame"));
    }
    Ok(m.add_prefix(r.slice(len.into()).ok_or(CUT)?))
}

/// Whether there is something for [`Record::rare`].
#[inline(always)]
fn is_rare(head: Head, prefix: usize) -> bool {
    let is_raw = head.options() == OptionsCode::Raw;
    prefix >= 3 || head.has(Head::ODD) || is_raw || head.flags() == usize::from(FLAGS_OTHER)
}

/// TCP's options, of which timestamps are not read yet; others are in `raw`.
#[inline(always)]
fn options_of<'a>(
    code: OptionsCode,
    last: &[u8],
    raw: &'a mut [u8; OPTIONS_MAX],
) -> Result<Options<'a>, Invalid> {
    match code {
        OptionsCode::None => Ok(Options::None),
        OptionsCode::Stamps => Ok(Options::Stamps(0, 0)),
        _ if last.is_empty() => Err(Invalid("a reference to missing TCP options")),
        _ => {
            let raw = &mut raw[..last.len()];
            raw.copy_from_slice(last);
            Ok(Options::Raw(raw))
        }
    }
}

/// What is in bits of an address.
#[inline(always)]
fn address_value<const V6: bool>(r: &mut Reader<'_>, code: usize) -> u32 {
    let known = if code == 0 { PLACE_BITS_V6 } else { 0 };
    r.word(if V6 { known } else { code::ADDRESS[code & 7] })
}

/// An IPv4 address by its code and value, the source's or the destination's.
#[inline(always)]
pub(super) fn address(m: &mut Model, prefix: usize, end: usize, coded: code::Coded) -> u128 {
    let known = m.address(byte(coded.1));
    let near = &mut m.prefix_mut(prefix).near[end];
    let new = code::address_of(coded, *near);
    let address = if coded.0 == 0 { known } else { new };
    near.follow(address);
    m.add_address(address);
    address.into()
}

/// The same of IPv6.
#[inline(never)]
fn address_v6(
    r: &mut Reader<'_>,
    m: &mut Model,
    prefix: usize,
    end: usize,
    code: usize,
    value: u32,
) -> u128 {
    let bytes = r.some(code::ADDRESS_V6[code & 7] as usize);
    address_v6_of(m, prefix, end, code, (value, bytes))
}

/// An IPv6 address by its code, the value in bits, and the bytes that its code says.
#[inline(always)]
pub(super) fn address_v6_of(
    m: &mut Model,
    prefix: usize,
    end: usize,
    code: usize,
    (value, bytes): (u32, [u8; 16]),
) -> u128 {
    let known = m.address_v6(byte(value));
    let near = &mut m.prefix_mut(prefix).near_v6[end];
    let said = code::address_v6_of(code, bytes, *near);
    let address = if code == 0 { known } else { said };
    *near = address;
    m.add_address_v6(address);
    address
}

/// Two numbers of 32 bits.
#[inline(always)]
fn halves(bytes: [u8; 8]) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = bytes;
    [
        u32::from_be_bytes([a, b, c, d]),
        u32::from_be_bytes([e, f, g, h]),
    ]
}

#[inline(always)]
fn byte(word: u32) -> u8 {
    word.to_le_bytes()[0]
}
