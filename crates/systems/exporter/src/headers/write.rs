//! The record of a plain header: codes first, so that a reader knows at once how long all values are.
//! [`super::read`] has the same order.

use super::code;
use super::fields::{Fields, Options, Transport, low32};
use super::index::{self, Address, Found, Index};
use super::key::Key;
use super::kind::{FLAG_CODES, FLAGS_OTHER, FRAME_MIN, Head, OptionsCode, odd};
use super::model::{Model, PLACE_BITS, PREFIXES, Side};
use super::sums::Sums;
use super::{Header, head, ports};
use crate::bits::Writer;
use crate::datagram::Datagram;

/// Codes, the first in the lowest bits.
struct Codes {
    bits: u64,
    width: u32,
}

impl Codes {
    #[inline(always)]
    fn push(&mut self, code: usize, width: u32) {
        self.bits |= (code as u64) << self.width;
        self.width = self.width.wrapping_add(width);
    }
}

/// What a writer has beside the packet.
pub(super) struct Context<'a> {
    pub(super) m: &'a mut Model,
    pub(super) index: &'a mut Index,
    pub(super) datagram: &'a Datagram,
    /// Difference to the last time, in ns and in the datagram's units.
    pub(super) difference: u64,
    pub(super) units: u64,
}

/// What every record begins with.
#[inline(always)]
pub(super) fn start(w: &mut Writer<'_>, c: &mut Context<'_>, header: &Header<'_>, kind: Head) {
    let has_label = header.label != c.m.label;
    let kind = kind.with_label(has_label);
    let known = c.index.head(c.m, kind);
    head::write_head(w, c.m, known, kind);
    head::write_time(w, c.datagram, c.units, c.difference);
    c.m.time_ns = header.ts_ns;
    if has_label {
        head::write_label(w, c.m, header.label);
    }
}

/// Writes a plain header; the start of its frame has a known number of bytes.
#[inline(always)]
pub(super) fn plain<const V6: bool>(
    w: &mut Writer<'_>,
    c: &mut Context<'_>,
    header: &Header<'_>,
    prefix: &[u8],
    f: &Fields<'_, V6>,
    sums: Sums,
) {
    let key = Key::new::<V6>(f.source, f.destination, f.ports, f.transport);
    let found = index::flow(c.m, &key);
    let mut record = Record {
        w,
        c,
        header,
        prefix,
        f,
        sums,
    };
    match found {
        Err(context) => record.first::<true>(&key, Found { context, side: 0 }, Side::UNSEEN),
        Ok(found) => {
            let sides = record
                .c
                .m
                .context(found.context)
                .expect("it was found")
                .sides;
            let (last, other) = (sides[found.side], sides[found.side ^ 1]);
            if last.is_seen {
                record.seen(found, &last, &other);
            } else {
                record.first::<false>(&key, found, other);
            }
        }
    }
}

struct Record<'a, 'b, 'c, const V6: bool> {
    w: &'a mut Writer<'b>,
    c: &'a mut Context<'c>,
    header: &'a Header<'a>,
    prefix: &'a [u8],
    f: &'a Fields<'a, V6>,
    sums: Sums,
}

impl<const V6: bool> Record<'_, '_, '_, V6> {
    /// The first packet of a flow, or of its other direction.
    #[inline(always)]
    fn first<const NEW: bool>(&mut self, key: &Key, found: Found, other: Side) {
        let f = self.f;
        let (is_padded, odd) = self.odd(self.c.m.tos, true);
        let mut kind = self.kind(odd);
        kind = kind.with(Head::NO_IDENTIFICATION, !V6 && f.identification == 0);
        kind = if NEW {
            kind.of_new(V6, f.transport)
        } else {
            kind.of_flow(found.context == self.c.m.last_context)
        };
        start(self.w, self.c, self.header, kind);
        if !NEW {
            self.place(found);
        }
        if odd != 0 {
            self.w.bits(u64::from(odd), odd::BITS);
            self.w.turn();
        }
        let m = &mut *self.c.m;
        let (number, prefix) = self.c.index.prefix(m, self.prefix);
        let full = m.full[f.kind()];
        let len = code::len(f.payload_len, full, is_padded);
        m.full[f.kind()] = f.next_full(full);
        let known = m.prefix_mut(prefix);
        let ttl = code::ttl(f.ttl, known.ttl);
        let window = code::window(f.window, known.window);
        known.ttl = f.ttl;
        let is_tcp = f.transport == Transport::Tcp;
        known.window = if is_tcp { f.window } else { known.window };
        let mut codes = Codes { bits: 0, width: 0 };
        codes.push(number.min(3), 2);
        codes.push(len, 3);
        codes.push(ttl.0, 2);
        if V6 {
            codes.push(usize::from(f.flow_label != 0), 1);
        }
        let mut addresses = [Address::NONE; 2];
        let mut both = (0, 0, 0);
        if NEW {
            addresses = self.addresses(prefix);
            codes.push(addresses[0].code, 3);
            codes.push(addresses[1].code, 3);
            both = self.ports();
            codes.push(both.0, 3);
        }
        let (_, echo) = f.options.stamps();
        let is_said = [
            f.sequence != other.acknowledgement(),
            f.acknowledgement != other.sequence(),
            echo != other.stamp(),
        ];
        if is_tcp {
            codes.push(window.0, 2);
            if !NEW {
                for is_said in is_said {
                    codes.push(usize::from(is_said), 1);
                }
            }
        }
        self.w.bits(codes.bits, codes.width);
        if self.is_rare(kind, number) {
            self.rare(kind, odd, number);
        }
        let w = &mut *self.w;
        if NEW {
            w.bits(addresses[0].value, addresses[0].width);
            w.turn();
            w.bits(addresses[1].value, addresses[1].width);
            w.bits(both.1.into(), ports::place_width(both.0));
            if V6 {
                w.last(f.source, addresses[0].bytes);
                w.last(f.destination, addresses[1].bytes);
            }
            w.some(
                both.2.to_be_bytes(),
                if both.0 < ports::BOTH { 2 } else { 4 },
            );
        }
        w.bits(ttl.1.into(), code::TTL[ttl.0]);
        w.turn();
        self.lengths(len, odd, 0);
        let w = &mut *self.w;
        if is_tcp {
            w.bits(window.1.into(), code::WINDOW[window.0]);
        }
        w.turn();
        if !V6 {
            let len = if f.identification == 0 { 0 } else { 2 };
            w.some(f.identification.to_be_bytes(), len);
        }
        self.checksum(odd);
        match f.transport {
            Transport::Tcp => self.numbers::<NEW>(is_said, odd),
            Transport::Udp => {}
            Transport::Icmp => self.icmp(),
        }
        self.remember::<NEW>(key, found, prefix);
    }

    #[inline(always)]
    fn remember<const NEW: bool>(&mut self, key: &Key, found: Found, prefix: usize) {
        let (f, m) = (self.f, &mut *self.c.m);
        m.tos = f.tos;
        let last = Side::after(f, prefix);
        if NEW {
            m.add_context(found.context, key, last);
        } else {
            m.follow(found.context, found.side, last);
        }
    }

    /// How addresses of a new flow are written; they are remembered.
    #[inline(always)]
    fn addresses(&mut self, prefix: usize) -> [Address; 2] {
        let (f, m) = (self.f, &mut *self.c.m);
        if V6 {
            let source = index::address_v6(m, prefix, 0, f.source);
            [source, index::address_v6(m, prefix, 1, f.destination)]
        } else {
            let source = index::address(m, prefix, 0, low32(f.source));
            [source, index::address(m, prefix, 1, low32(f.destination))]
        }
    }

    /// The same of its ports.
    #[inline(always)]
    fn ports(&mut self) -> (usize, u16, u32) {
        if self.f.transport == Transport::Icmp {
            (0, 0, self.f.ports)
        } else {
            ports::write(&mut self.c.m.services, self.f.ports)
        }
    }

    /// TCP's numbers: all of a new flow, of others those that have to be sent.
    #[inline(always)]
    fn numbers<const NEW: bool>(&mut self, is_said: [bool; 3], odd: u8) {
        let (w, f) = (&mut *self.w, self.f);
        let has_acknowledgement = f.acknowledges() || odd & odd::ACKNOWLEDGEMENT != 0;
        let len = |is_said: bool| if is_said || NEW { 4 } else { 0 };
        w.some(f.sequence.to_be_bytes(), len(is_said[0]));
        let len_too = if has_acknowledgement {
            len(is_said[1])
        } else {
            0
        };
        w.some(f.acknowledgement.to_be_bytes(), len_too);
        if let Options::Stamps(stamp, echo) = f.options {
            w.all(stamp.to_be_bytes());
            w.some(echo.to_be_bytes(), len(is_said[2]));
        }
    }

    /// A packet of a direction that was in the datagram.
    #[inline(always)]
    fn seen(&mut self, found: Found, last: &Side, other: &Side) {
        let f = self.f;
        let usual = self.c.m.prefix(last.prefix.into()).bytes();
        let (is_padded, odd) = self.odd(last.tos, usual == self.prefix);
        let kind = self.kind(odd);
        let kind = kind.of_flow(found.context == self.c.m.last_context);
        start(self.w, self.c, self.header, kind);
        self.place(found);
        let mut prefix = (0, usize::from(last.prefix));
        if odd != 0 {
            self.w.bits(u64::from(odd), odd::BITS);
            if odd & odd::PREFIX != 0 {
                prefix = self.c.index.prefix(self.c.m, self.prefix);
                self.w.bits(prefix.0.min(3) as u64, 2);
            }
            self.w.turn();
        }
        let (w, m) = (&mut *self.w, &mut *self.c.m);
        let full = m.full[f.kind()];
        let len = code::len(f.payload_len, full, is_padded);
        m.full[f.kind()] = f.next_full(full);
        let mut codes = Codes { bits: 0, width: 0 };
        codes.push(len, 3);
        codes.push(usize::from(f.ttl != last.ttl), 1);
        let identification = code::identification(f.identification, last.identification());
        if V6 {
            codes.push(usize::from(f.flow_label != last.flow_label), 1);
        } else {
            codes.push(identification.0, 2);
        }
        let window = code::window_seen(f.window, last.window());
        let sequence = code::sequence(f.sequence, last.sequence());
        let acknowledgement =
            code::forward(f.acknowledgement, last.acknowledgement(), other.sequence());
        let (stamp, echo) = f.options.stamps();
        let (stamp, echo) = (
            code::stamp(stamp, last.stamp()),
            code::forward(echo, last.echo(), other.stamp()),
        );
        let is_tcp = f.transport == Transport::Tcp;
        let has_acknowledgement = f.acknowledges() || odd & odd::ACKNOWLEDGEMENT != 0;
        let acknowledgement = if has_acknowledgement {
            acknowledgement
        } else {
            (0, 0)
        };
        let has_stamps = matches!(f.options, Options::Stamps(..));
        if is_tcp {
            codes.push(window.0, 2);
            codes.push(sequence.0, 2);
            codes.push(acknowledgement.0, 2);
            if has_stamps {
                codes.push(stamp.0, 2);
                codes.push(echo.0, 2);
            }
        }
        w.bits(codes.bits, codes.width);
        w.turn();
        if self.is_rare(kind, prefix.0) {
            self.rare(kind, odd, prefix.0);
        }
        let is_same = f.ttl == last.ttl;
        let ttl = if is_same { 0 } else { f.ttl };
        self.w.bits(ttl.into(), if is_same { 0 } else { 8 });
        if !V6 {
            let width = code::IDENTIFICATION[identification.0];
            self.w.bits(identification.1.into(), width);
        }
        self.lengths(len, odd, last.flow_label);
        self.w.turn();
        self.checksum(odd);
        let w = &mut *self.w;
        match f.transport {
            Transport::Tcp => {
                w.bits(window.1.into(), code::WINDOW_SEEN[window.0]);
                w.bits(sequence.1.into(), code::SEQUENCE[sequence.0]);
                w.turn();
                let width = code::FORWARD[acknowledgement.0];
                w.bits(acknowledgement.1.into(), width);
                if has_stamps {
                    w.turn();
                    w.bits(stamp.1.into(), code::STAMP[stamp.0]);
                    w.turn();
                    w.bits(echo.1.into(), code::FORWARD[echo.0]);
                }
                w.turn();
            }
            Transport::Udp => {}
            Transport::Icmp => self.icmp(),
        }
        let m = &mut *self.c.m;
        m.tos = f.tos;
        m.follow(found.context, found.side, Side::after(f, prefix.1));
    }

    /// Whether the frame is filled up to the shortest one, and what is unusual; `tos`, and whether the
    /// start of the frame is the expected one.
    #[inline(always)]
    fn odd(&self, tos: u8, is_prefix: bool) -> (bool, u8) {
        let (f, wire_len) = (self.f, self.header.wire_len);
        let end = f.end(self.prefix.len());
        let is_padded = end < FRAME_MIN && wire_len == FRAME_MIN;
        let is_transport = match f.transport {
            Transport::Tcp => f.reserved == 0 && f.urgent == 0,
            Transport::Udp => f.udp_len == f.segment_len(),
            Transport::Icmp => true,
        };
        let is_checksum = !f.has_known_checksum() || self.sums.is_known();
        let is_acknowledgement = f.acknowledges() || f.acknowledgement == 0;
        let odd = |is_usual: bool, bit: u8| if is_usual { 0 } else { bit };
        let odd = odd(f.tos == tos, odd::TOS)
            | odd(self.sums.is_ip_right, odd::IP_CHECKSUM)
            | odd(is_padded || wire_len == end, odd::WIRE_LEN)
            | odd(is_prefix, odd::PREFIX)
            | odd(is_transport, odd::TRANSPORT)
            | odd(is_acknowledgement, odd::ACKNOWLEDGEMENT)
            | odd(is_checksum, odd::CHECKSUM);
        (is_padded, odd)
    }

    /// The head of a packet of no flow yet.
    #[inline(always)]
    fn kind(&self, odd: u8) -> Head {
        let f = self.f;
        let kind = if f.transport == Transport::Tcp {
            let flags = FLAG_CODES[usize::from(f.tcp_flags)];
            Head::tcp(flags, OptionsCode::of(&f.options, self.c.m.options()))
        } else {
            Head::tcp(0, OptionsCode::None)
        };
        kind.with(Head::ODD, odd != 0)
            .with(Head::MAY_FRAGMENT, f.may_fragment)
            .with(Head::OFFLOADED, self.sums.is_offloaded)
    }

    /// Which of the known flows, and its direction.
    #[inline(always)]
    fn place(&mut self, found: Found) {
        let (w, m) = (&mut *self.w, &*self.c.m);
        let is_last = found.context == m.last_context;
        let width = if is_last { 0 } else { PLACE_BITS };
        w.bits(if is_last { 0 } else { found.context.into() }, width);
        w.bits(found.side as u64, 1);
        w.turn();
    }

    /// Payload length and flow label. A turn has room for 8 and 16 bits more before them, or after.
    #[inline(always)]
    fn lengths(&mut self, len: usize, odd: u8, flow_label: u32) {
        let (w, f) = (&mut *self.w, self.f);
        let width = code::LEN[len];
        w.bits(if width == 0 { 0 } else { f.payload_len.into() }, width);
        if V6 {
            let width = if f.flow_label == flow_label { 0 } else { 20 };
            w.bits(if width == 0 { 0 } else { f.flow_label.into() }, width);
        }
        if odd & odd::WIRE_LEN != 0 {
            w.all(self.header.wire_len.to_be_bytes());
        }
    }

    /// The transport's checksum, unless it is known.
    #[inline(always)]
    fn checksum(&mut self, odd: u8) {
        let is_known = self.f.has_known_checksum() && odd & odd::CHECKSUM == 0;
        let len = if is_known || self.sums.is_offloaded {
            0
        } else {
            2
        };
        self.w.some(self.f.checksum.to_be_bytes(), len);
    }

    fn icmp(&mut self) {
        self.w.all(self.f.icmp_type.to_be_bytes());
        let [.., a, b] = self.f.sequence.to_be_bytes();
        self.w.all([a, b]);
    }

    /// Whether there is something for [`Record::rare`].
    #[inline(always)]
    fn is_rare(&self, kind: Head, prefix: usize) -> bool {
        let is_raw = kind.options() == OptionsCode::Raw;
        prefix >= 3 || kind.has(Head::ODD) || is_raw || kind.flags() == usize::from(FLAGS_OTHER)
    }

    /// A start of the frame with a large number or new, unusual values, flags without a code, options.
    #[inline(never)]
    fn rare(&mut self, kind: Head, odd: u8, prefix: usize) {
        let (w, f) = (&mut *self.w, self.f);
        w.turn();
        if prefix >= 3 {
            w.bits((prefix as u64).wrapping_sub(3), 4);
            w.turn();
            if prefix == PREFIXES {
                w.all([strata_wire::exact::<u8>(self.prefix.len())]);
                w.slice(self.prefix);
            }
        }
        if odd & odd::TOS != 0 {
            w.all([f.tos]);
        }
        if odd & odd::IP_CHECKSUM != 0 {
            w.all(f.ip_checksum.to_be_bytes());
        }
        if odd & odd::TRANSPORT != 0 {
            if f.transport == Transport::Tcp {
                w.all([f.reserved]);
                w.all(f.urgent.to_be_bytes());
            } else {
                w.all(f.udp_len.to_be_bytes());
            }
        }
        if kind.flags() == usize::from(FLAGS_OTHER) {
            w.all([f.tcp_flags]);
        }
        if let (OptionsCode::Raw, Options::Raw(options)) = (kind.options(), f.options) {
            w.all([strata_wire::exact::<u8>(options.len())]);
            w.slice(options);
            self.c.m.learn_options(options);
        }
    }
}
