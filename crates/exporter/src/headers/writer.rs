//! Headers into datagrams.

use strata_wire::{LinkType, exact};

use super::flow::Place;
use super::head;
use super::kind::{Form, HEADS, Head, USUAL};
use super::model::{ADDRESSES, CONTEXTS, Key, Model, PREFIXES};
use super::plain::{PREFIX_MAX, Plain, network_at};
use super::record;
use super::{Header, TooLong, other};
use crate::bits::{BitWriter, Bits, Position};
use crate::datagram::{Datagram, HEADER_LEN, Kind, LEN_MAX, LEN_MIN, Source};

/// Compresses the headers of one interface into datagrams of a given size. Takes some 50 KiB, and
/// nothing more whatever the packets.
#[derive(Debug)]
pub struct HeaderWriter {
    room: usize,
    /// Of the datagram that is being filled, or the next one.
    datagram: Datagram,
    next_packet: u64,
    model: Model,
    index: Index,
    bytes: Box<[u8]>,
    position: Position,
    /// Whether a time was not a whole number of microseconds.
    is_fine: bool,
}

impl HeaderWriter {
    /// A writer of datagrams of at most `room` bytes, whose numbers start at 0.
    ///
    /// # Panics
    ///
    /// If `room` is not between [`LEN_MIN`] and [`LEN_MAX`], or the identity is 0 or has more than 24 bits.
    #[must_use]
    pub fn new(source: Source, link: LinkType, room: usize) -> Self {
        assert!(
            (LEN_MIN..=LEN_MAX).contains(&room),
            "{room}: not a datagram's length"
        );
        Self {
            room,
            datagram: Datagram::first(Kind::Headers, source, link),
            next_packet: 0,
            model: Model::new(),
            index: Index::new(),
            bytes: vec![0; room + BitWriter::SLACK].into_boxed_slice(),
            position: Position::new(HEADER_LEN),
            is_fine: false,
        }
    }

    /// Datagrams have at most so many bytes from now on: the path's MTU has changed. Sends what waits.
    ///
    /// # Panics
    ///
    /// As [`HeaderWriter::new`].
    pub fn set_room(&mut self, room: usize, send: impl FnMut(&[u8])) {
        assert!(
            (LEN_MIN..=LEN_MAX).contains(&room),
            "{room}: not a datagram's length"
        );
        if room == self.room {
            return;
        }
        self.finish(send);
        self.bytes = vec![0; room + BitWriter::SLACK].into_boxed_slice();
        self.room = room;
    }

    /// The number of the next packet: so many were given.
    #[must_use]
    pub fn next_packet(&self) -> u64 {
        self.next_packet
    }

    /// The number of the next datagram: so many were sent.
    #[must_use]
    pub fn next_datagram(&self) -> u64 {
        self.datagram.number
    }

    /// How many packets wait in a datagram that is not full yet.
    #[must_use]
    pub fn waiting(&self) -> u16 {
        self.datagram.packets
    }

    /// Takes a header; a datagram that is full goes to `send` first.
    ///
    /// # Errors
    ///
    /// If no datagram of this size holds it. It has a number all the same, so that whoever reads
    /// counts it as lost.
    #[inline]
    pub fn put(&mut self, header: &Header<'_>, mut send: impl FnMut(&[u8])) -> Result<(), TooLong> {
        if self.datagram.packets > 0 {
            if self.fits(header) {
                return Ok(());
            }
            self.finish(&mut send);
        }
        self.begin(header.ts_ns);
        if self.fits(header) {
            return Ok(());
        }
        self.next_packet += 1;
        Err(TooLong {
            len: header.bytes.len(),
            room: self.room,
        })
    }

    /// Counts packets that were to be exported and are lost already, so that whoever reads knows.
    pub fn skip(&mut self, packets: u64, send: impl FnMut(&[u8])) {
        // Numbers within a datagram have no gaps.
        self.finish(send);
        self.next_packet += packets;
    }

    /// Sends what waits.
    pub fn finish(&mut self, send: impl FnMut(&[u8])) {
        if self.datagram.packets > 0 {
            self.send(send);
        }
    }

    /// Sends what waits, and a datagram without packets, whose numbers say how many there were: so
    /// the last ones are counted too if they are lost.
    pub fn end(&mut self, mut send: impl FnMut(&[u8])) {
        self.finish(&mut send);
        self.datagram.first_packet = self.next_packet;
        self.position = Position::new(HEADER_LEN);
        self.send(send);
    }

    fn send(&mut self, mut send: impl FnMut(&[u8])) {
        let bytes = BitWriter::new(&mut self.bytes, self.position).finish();
        self.datagram.write(bytes);
        send(bytes);
        let packets = u64::from(self.datagram.packets);
        if packets > 1 {
            let span = self.model.time_ns.saturating_sub(self.datagram.time_ns);
            let unit = if self.is_fine { 1 } else { 1000 };
            // Rice codes of exponential gaps are shortest near the mean times ln 2.
            let mean = span / unit / packets;
            let typical = mean - mean / 10 * 3;
            self.datagram.time_bits = typical.max(1).ilog2().min(Datagram::TIME_BITS_MAX);
        }
        self.datagram.number += 1;
        self.datagram.packets = 0;
    }

    fn begin(&mut self, ts_ns: u64) {
        self.datagram.first_packet = self.next_packet;
        self.datagram.time_ns = ts_ns;
        self.datagram.in_microseconds = !self.is_fine;
        self.index.restart(&self.model);
        self.model.restart(ts_ns);
        self.position = Position::new(HEADER_LEN);
    }

    /// Whether the header fits into the datagram; it is there then.
    #[inline]
    fn fits(&mut self, header: &Header<'_>) -> bool {
        if self.datagram.packets == u16::MAX {
            return false;
        }
        let difference = header.ts_ns.wrapping_sub(self.model.time_ns);
        if self.datagram.in_microseconds && !difference.is_multiple_of(1000) {
            // Once a clock was finer, it will be again.
            self.is_fine = true;
            return false;
        }
        let mut fields = Plain::EMPTY;
        let plain = match network_at(self.datagram.link, header.bytes) {
            Some(at) if at <= PREFIX_MAX => fields.parse(header.bytes, at).map(|()| at),
            _ => None,
        };
        let room = self.room - self.position.len();
        let is_short = header.bytes.len() <= usize::from(u16::MAX);
        if plain.is_none() && (other::len_max(header.bytes) > room || !is_short) {
            return false;
        }
        let mut b = BitWriter::new(&mut self.bytes, self.position);
        let (m, index, datagram) = (&mut self.model, &mut self.index, &self.datagram);
        match plain {
            Some(at) => put_plain(&mut b, m, index, datagram, header, &mut fields, at),
            None => {
                start(&mut b, m, index, datagram, header, Head::OTHER);
                let recent = &mut m.others;
                b.apart(|b| other::write(b, recent, header.bytes, header.wire_len, room));
            }
        }
        let position = b.position();
        if position.len() > self.room {
            // What the model learned goes with the datagram, which ends here.
            return false;
        }
        self.position = position;
        self.datagram.packets += 1;
        self.next_packet += 1;
        true
    }
}

/// What every record begins with.
#[inline(always)]
fn start<B: Bits>(
    b: &mut B,
    m: &mut Model,
    index: &mut Index,
    datagram: &Datagram,
    header: &Header<'_>,
    mut head: Head,
) {
    head.has_label = header.label != m.label;
    let bits = head.bits();
    let known = index.head(bits);
    if known == HEADS {
        index.learn_head(m, bits);
    }
    head::head(b, m, known, bits);
    head::write_time(b, datagram, m.time_ns, header.ts_ns);
    m.time_ns = header.ts_ns;
    if head.has_label {
        b.apart(|b| head::label(b, m, header.label))
            .expect("a writer chooses what is there");
    }
}

#[inline(always)]
fn put_plain<B: Bits>(
    b: &mut B,
    m: &mut Model,
    index: &mut Index,
    datagram: &Datagram,
    header: &Header<'_>,
    fields: &mut Plain,
    at: usize,
) {
    let prefix = &header.bytes[..at];
    let key = Key {
        source: fields.source,
        destination: fields.destination,
        ports: fields.ports,
        kind: fields.transport as u8 | u8::from(fields.is_v6) << 2,
    };
    let mut place = Place {
        form: Form::New,
        context: CONTEXTS,
        side: 0,
        prefix: find_prefix(m, prefix),
        known: [None; 2],
    };
    let slot = flow_slot(&key);
    if let Some((context, side)) = index.flow(m, slot, &key) {
        let is_last = context == m.last_context;
        place.form = if is_last { Form::Same } else { Form::Known };
        (place.context, place.side) = (context, side);
    } else {
        place.known = [key.source, key.destination].map(|address| index.address(m, address));
    }
    let is_new = place.form == Form::New;
    let (head, odd) = record::head_of(m, fields, &place, at, header.wire_len);
    start(b, m, index, datagram, header, head);
    let first = m.address_count;
    let mut wire_len = header.wire_len;
    record::plain(b, m, fields, &mut place, &head, odd, &mut wire_len, prefix)
        .expect("a writer chooses what is there");
    if is_new {
        index.learn(m, first, slot, &key, &place);
    }
}

/// The number of what is before IP, or the one after the last.
#[inline(always)]
fn find_prefix(m: &Model, bytes: &[u8]) -> usize {
    let known = &m.prefixes[..m.prefix_count];
    let found = if bytes.len() == ETHERNET_LEN {
        let wanted = ethernet_words(bytes);
        known.iter().position(|prefix| {
            usize::from(prefix.len) == ETHERNET_LEN && ethernet_words(&prefix.bytes) == wanted
        })
    } else {
        known.iter().position(|prefix| prefix.bytes() == bytes)
    };
    found.map_or(PREFIXES, |number| number)
}

const ETHERNET_LEN: usize = 14;

/// All of an Ethernet header, its middle twice.
#[inline(always)]
fn ethernet_words(bytes: &[u8]) -> [u64; 2] {
    [0, 6].map(|at| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes")))
}

/// In place of a head's number.
const NO_HEAD: u8 = 15;
const _: () = assert!(NO_HEAD as usize == HEADS);

/// Finds flows and addresses of the datagram by hash; what shares a place is forgotten.
#[derive(Debug)]
struct Index {
    flows: [u16; Self::SLOTS],
    addresses: [u16; Self::SLOTS],
    /// Numbers of heads.
    heads: Box<[u8; Head::COUNT]>,
}

impl Index {
    const SLOTS: usize = 512;

    fn new() -> Self {
        Self {
            flows: [0; Self::SLOTS],
            addresses: [0; Self::SLOTS],
            heads: Box::new([NO_HEAD; Head::COUNT]),
        }
    }

    /// Forgets what a model remembers, which is about to start again.
    fn restart(&mut self, m: &Model) {
        self.flows.fill(0);
        self.addresses.fill(0);
        for &head in &m.heads {
            self.heads[usize::from(head) % Head::COUNT] = NO_HEAD;
        }
        for (number, &head) in (0..).zip(&USUAL) {
            self.heads[usize::from(head) % Head::COUNT] = number;
        }
    }

    /// The number of a head; [`HEADS`] if it is not known.
    #[inline(always)]
    fn head(&self, head: u16) -> usize {
        usize::from(self.heads[usize::from(head) % Head::COUNT])
    }

    /// A head is about to be remembered in place of another.
    #[cold]
    fn learn_head(&mut self, m: &Model, head: u16) {
        let number = m.next_head();
        self.heads[usize::from(m.heads[number]) % Head::COUNT] = NO_HEAD;
        self.heads[usize::from(head) % Head::COUNT] = exact::<u8>(number);
    }

    /// The number of a flow, and which of its directions this is.
    #[inline(always)]
    fn flow(&self, m: &Model, slot: usize, key: &Key) -> Option<(usize, usize)> {
        let number = usize::from(self.flows[slot % Self::SLOTS]).checked_sub(1)?;
        let known = m.context(number).key;
        if known == *key {
            Some((number, 0))
        } else if known.reversed() == *key {
            Some((number, 1))
        } else {
            None
        }
    }

    #[inline(always)]
    fn address(&self, m: &Model, address: u128) -> Option<usize> {
        let slot = address_slot(address);
        let number = usize::from(self.addresses[slot % Self::SLOTS]).checked_sub(1)?;
        (m.address(number) == address).then_some(number)
    }

    /// Remembers what a record of a new flow added: addresses from number `first` on, the flow.
    #[inline(always)]
    fn learn(&mut self, m: &Model, first: usize, slot: usize, key: &Key, place: &Place) {
        let mut next = first;
        for (address, known) in [key.source, key.destination].into_iter().zip(place.known) {
            if known.is_none() && next < m.address_count {
                next += 1;
                self.addresses[address_slot(address) % Self::SLOTS] = exact::<u16>(next);
            }
        }
        if place.context < CONTEXTS {
            self.flows[slot % Self::SLOTS] = exact::<u16>(place.context + 1);
        }
    }
}

const _: () = assert!(ADDRESSES < 1 << 16 && CONTEXTS < 1 << 16);

/// The same for both directions.
#[inline(always)]
fn flow_slot(key: &Key) -> usize {
    let ends = mixed(key.source).wrapping_add(mixed(key.destination));
    let ports = u64::from(key.ports ^ key.ports.rotate_left(16));
    slot_of(ends ^ ports << 9)
}

#[inline(always)]
fn address_slot(address: u128) -> usize {
    slot_of(mixed(address))
}

#[inline(always)]
#[allow(clippy::cast_possible_truncation)]
fn mixed(address: u128) -> u64 {
    (address as u64) ^ ((address >> 64) as u64).rotate_left(29)
}

#[inline(always)]
fn slot_of(word: u64) -> usize {
    exact::<usize>(word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 55)
}
