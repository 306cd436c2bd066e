//! What both ends know from the headers before in the same datagram. The writer finds entries by
//! hash; the reader has their numbers. Both change it in the same way, by [`super::record`].

use super::fields::{Fields, OPTIONS_MAX, PREFIX_MAX};
use super::key::{Key, address_place};
use super::kind::{HEADS, USUAL};
use super::{Label, other};

/// Starts of frames that are remembered; the last number of the code says that another follows.
pub(super) const PREFIXES: usize = 18;
const PREFIX_PLACES: usize = PREFIXES.next_power_of_two();
/// Labels that are remembered, in the same way.
pub(super) const LABELS: usize = 15;
/// Places for flows and addresses of a datagram; what comes later takes the place of what was there.
const PLACES: usize = 256;
const PLACES_V6: usize = 64;
/// Bits of a place.
pub(super) const PLACE_BITS: u32 = 8;
pub(super) const PLACE_BITS_V6: u32 = 6;
/// Ports that are taken for those of services until others are seen.
const SERVICES: [u16; 15] = [
    22, 25, 53, 80, 123, 443, 445, 993, 3306, 3389, 5432, 6379, 8080, 8443, 9092,
];
/// Gives each of them another place.
const SERVICE_FACTOR: u16 = 5591;

/// IPv4 addresses that the next one may be near.
#[derive(Clone, Copy, Debug)]
pub(super) struct Near {
    pub(super) last: u32,
    /// The last one before of another /8.
    pub(super) other: u32,
}

impl Near {
    #[inline(always)]
    pub(super) fn follow(&mut self, address: u32) {
        let is_other = (address ^ self.last) >> 24 != 0;
        self.other = if is_other { self.last } else { self.other };
        self.last = address;
    }
}

/// What is before IP, and what came with it: packets with the same are of one direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefix {
    /// At the end, after zeros.
    pub(super) bytes: [u8; PREFIX_MAX + 1],
    pub(super) len: usize,
    /// Source and destination of the last new flows over IPv4, and over IPv6.
    pub(super) near: [Near; 2],
    pub(super) near_v6: [u128; 2],
    /// The last window and time to live that no flow predicted.
    pub(super) window: u16,
    pub(super) ttl: u8,
}

impl Prefix {
    const EMPTY: Self = Self {
        bytes: [0; PREFIX_MAX + 1],
        len: 0,
        near: [Near { last: 0, other: 0 }; 2],
        near_v6: [0; 2],
        window: 0,
        ttl: 64,
    };

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[PREFIX_MAX.wrapping_add(1).wrapping_sub(self.len)..]
    }

    /// The last bytes, as [`ethernet_words`].
    #[inline(always)]
    fn ethernet(&self) -> [u64; 2] {
        ethernet_words(self.bytes.last_chunk().expect("14 bytes"))
    }
}

/// All of an Ethernet header, its middle twice.
#[inline(always)]
pub(super) fn ethernet_words(bytes: &[u8; 14]) -> [u64; 2] {
    let first = bytes[..8].try_into().expect("8 bytes");
    let last = bytes[6..].try_into().expect("8 bytes");
    [u64::from_ne_bytes(first), u64::from_ne_bytes(last)]
}

/// The last packet of a flow in one direction. Numbers are as in the packet until they are needed: most
/// packets are the last ones of their flow in a datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side {
    pub(super) is_seen: bool,
    pub(super) prefix: u8,
    pub(super) tos: u8,
    pub(super) ttl: u8,
    pub(super) identification: u16,
    pub(super) window: u16,
    pub(super) flow_label: u32,
    /// By these the next sequence number is more.
    pub(super) payload_len: u16,
    pub(super) tcp_flags: u8,
    /// Sequence and acknowledgement number.
    pub(super) numbers: u64,
    /// Timestamp and echoed timestamp.
    pub(super) stamps: u64,
}

impl Side {
    pub(super) const UNSEEN: Self = Self {
        is_seen: false,
        prefix: 0,
        tos: 0,
        ttl: 0,
        identification: 0,
        window: 0,
        flow_label: 0,
        payload_len: 0,
        tcp_flags: 0,
        numbers: 0,
        stamps: 0,
    };

    /// After a packet with this start of the frame.
    #[inline(always)]
    pub(super) fn after<const V6: bool>(f: &Fields<'_, V6>, prefix: usize) -> Self {
        let (stamp, echo) = f.options.stamps();
        let pair = |high: u32, low: u32| (u64::from(high) << 32 | u64::from(low)).to_be();
        Self {
            is_seen: true,
            prefix: prefix.to_le_bytes()[0],
            tos: f.tos,
            ttl: f.ttl,
            identification: f.identification.to_be(),
            window: f.window.to_be(),
            flow_label: f.flow_label,
            payload_len: f.payload_len,
            tcp_flags: f.tcp_flags,
            numbers: pair(f.sequence, f.acknowledgement),
            stamps: pair(stamp, echo),
        }
    }

    /// The sequence number that follows: payload, FIN and SYN count.
    #[inline(always)]
    pub(super) fn sequence(&self) -> u32 {
        let flags = self.tcp_flags;
        let step = u32::from(self.payload_len)
            .wrapping_add(u32::from(flags & 1))
            .wrapping_add(u32::from(flags >> 1 & 1));
        halves(self.numbers).0.wrapping_add(step)
    }

    #[inline(always)]
    pub(super) fn acknowledgement(&self) -> u32 {
        halves(self.numbers).1
    }

    #[inline(always)]
    pub(super) fn stamp(&self) -> u32 {
        halves(self.stamps).0
    }

    #[inline(always)]
    pub(super) fn echo(&self) -> u32 {
        halves(self.stamps).1
    }

    #[inline(always)]
    pub(super) fn identification(&self) -> u16 {
        u16::from_be(self.identification)
    }

    #[inline(always)]
    pub(super) fn window(&self) -> u16 {
        u16::from_be(self.window)
    }
}

/// Two numbers as in the packet.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "the halves")]
pub(super) fn halves(pair: u64) -> (u32, u32) {
    let pair = u64::from_be(pair);
    ((pair >> 32) as u32, pair as u32)
}

/// A flow of the datagram, in two cache lines.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Context {
    /// Which datagram it is of: the model's counter.
    datagram: u32,
    pub(super) key: Key,
    pub(super) sides: [Side; 2],
}

const _: () = assert!(size_of::<Context>() == 128);

/// What is known.
#[derive(Debug)]
pub(super) struct Model {
    prefixes: [Prefix; PREFIX_PLACES],
    pub(super) prefix_count: usize,
    next_prefix: usize,
    addresses: Box<[u32; PLACES]>,
    addresses_v6: Box<[u128; PLACES_V6]>,
    contexts: Box<[Context; PLACES]>,
    /// Counts datagrams, so that what is of an earlier one is known as such.
    number: u32,
    /// The flow of the last plain packet.
    pub(super) last_context: u8,
    has_v6: bool,
    pub(super) services: Services,
    pub(super) heads: [u16; HEADS],
    next_head: usize,
    /// The payload that most packets will have: of TCP without options, with options, of UDP, ICMP.
    pub(super) full: [u16; 4],
    pub(super) tos: u8,
    /// Time of the last packet.
    pub(super) time_ns: u64,
    /// TCP options other than timestamps.
    options: [u8; OPTIONS_MAX],
    options_len: usize,
    pub(super) label: Label,
    pub(super) labels: [Label; LABELS],
    pub(super) label_count: usize,
    next_label: usize,
    pub(super) others: other::Recent,
}

impl Model {
    pub(super) fn new() -> Self {
        let context = Context {
            datagram: 0,
            key: Key::EMPTY,
            sides: [Side::UNSEEN; 2],
        };
        let mut model = Self {
            prefixes: [Prefix::EMPTY; PREFIX_PLACES],
            prefix_count: 0,
            next_prefix: 0,
            addresses: Box::new([0; PLACES]),
            addresses_v6: Box::new([0; PLACES_V6]),
            contexts: Box::new([context; PLACES]),
            number: 0,
            last_context: 0,
            has_v6: false,
            services: Services::USUAL,
            heads: [0; HEADS],
            next_head: 0,
            full: [0; 4],
            tos: 0,
            time_ns: 0,
            options: [0; OPTIONS_MAX],
            options_len: 0,
            label: Label::default(),
            labels: [Label::default(); LABELS],
            label_count: 0,
            next_label: 0,
            others: other::Recent::new(),
        };
        model.restart(0);
        model
    }

    /// What is known at the start of a datagram.
    pub(super) fn restart(&mut self, time_ns: u64) {
        self.prefix_count = 0;
        self.next_prefix = 0;
        self.addresses.fill(0);
        if std::mem::take(&mut self.has_v6) {
            self.addresses_v6.fill(0);
        }
        self.number = self.number.wrapping_add(1);
        if self.number == 0 {
            for context in &mut *self.contexts {
                context.datagram = 0;
            }
            self.number = 1;
        }
        self.last_context = 0;
        self.services = Services::USUAL;
        self.heads = USUAL;
        self.next_head = 0;
        // What remains of 1,500 bytes.
        self.full = [1460, 1448, 1472, 56];
        self.tos = 0;
        self.time_ns = time_ns;
        self.options_len = 0;
        self.label = Label::default();
        self.label_count = 0;
        self.next_label = 0;
        self.others.restart();
    }

    /// The flow at this place, if one of the datagram is there.
    #[inline(always)]
    pub(super) fn context(&self, place: u8) -> Option<&Context> {
        let context = &self.contexts[usize::from(place)];
        (context.datagram == self.number).then_some(context)
    }

    /// Remembers a packet of the flow that is at this place.
    #[inline(always)]
    pub(super) fn follow(&mut self, place: u8, side: usize, last: Side) {
        self.last_context = place;
        self.contexts[usize::from(place)].sides[side & 1] = last;
    }

    /// Remembers a flow, with the other direction not seen.
    #[inline(always)]
    pub(super) fn add_context(&mut self, place: u8, key: &Key, last: Side) {
        self.last_context = place;
        let context = &mut self.contexts[usize::from(place)];
        context.datagram = self.number;
        context.key.set(key);
        context.sides[0] = last;
        // Also what is expected of a direction that was not seen has to be the same at both ends.
        context.sides[1] = Side::UNSEEN;
    }

    /// The address at a place.
    #[inline(always)]
    pub(super) fn address(&self, place: u8) -> u32 {
        self.addresses[usize::from(place)]
    }

    /// Remembers an address; its place, and whether it was there.
    #[inline(always)]
    pub(super) fn add_address(&mut self, address: u32) -> (u8, bool) {
        let place = address_place(address.into());
        let known = &mut self.addresses[usize::from(place)];
        let is_known = *known == address;
        *known = address;
        (place, is_known)
    }

    /// The same of IPv6.
    pub(super) fn address_v6(&self, place: u8) -> u128 {
        self.addresses_v6[usize::from(place) % PLACES_V6]
    }

    #[inline(always)]
    pub(super) fn add_address_v6(&mut self, address: u128) -> (u8, bool) {
        self.has_v6 = true;
        let place = address_place(address) >> (PLACE_BITS - PLACE_BITS_V6);
        let known = &mut self.addresses_v6[usize::from(place) % PLACES_V6];
        let is_known = *known == address;
        *known = address;
        (place, is_known)
    }

    /// What is before IP, of this number.
    #[inline(always)]
    pub(super) fn prefix(&self, number: usize) -> &Prefix {
        &self.prefixes[number % PREFIX_PLACES]
    }

    #[inline(always)]
    pub(super) fn prefix_mut(&mut self, number: usize) -> &mut Prefix {
        &mut self.prefixes[number % PREFIX_PLACES]
    }

    /// The number of what is before IP.
    #[inline(always)]
    pub(super) fn find_prefix(&self, bytes: &[u8]) -> Option<usize> {
        let Ok(ethernet) = bytes.try_into() else {
            let known = &self.prefixes[..self.prefix_count];
            return known.iter().position(|prefix| prefix.bytes() == bytes);
        };
        let wanted = ethernet_words(ethernet);
        let known = &self.prefixes[..self.prefix_count];
        let mut known = known.iter();
        known.position(|prefix| prefix.len == 14 && prefix.ethernet() == wanted)
    }

    /// Remembers what is before IP, in place of the oldest if there are many; its number.
    pub(super) fn add_prefix(&mut self, bytes: &[u8]) -> usize {
        let number = self.next_prefix;
        let mut prefix = Prefix::EMPTY;
        prefix.len = bytes.len();
        prefix.bytes[PREFIX_MAX.wrapping_add(1).wrapping_sub(bytes.len())..].copy_from_slice(bytes);
        self.prefixes[number] = prefix;
        self.next_prefix = number.wrapping_add(1) % PREFIXES;
        self.prefix_count = self.prefix_count.max(number.wrapping_add(1));
        number
    }

    /// TCP options other than timestamps; empty without any.
    pub(super) fn options(&self) -> &[u8] {
        &self.options[..self.options_len]
    }

    pub(super) fn learn_options(&mut self, options: &[u8]) {
        self.options[..options.len()].copy_from_slice(options);
        self.options_len = options.len();
    }

    /// Remembers a label, in place of the oldest if there are many.
    pub(super) fn add_label(&mut self, label: Label) {
        self.labels[self.next_label] = label;
        self.label_count = self.label_count.max(self.next_label.wrapping_add(1));
        self.next_label = self.next_label.wrapping_add(1) % LABELS;
    }

    /// The number that the next head gets.
    pub(super) fn next_head(&self) -> usize {
        self.next_head
    }

    /// Remembers a head, in place of the oldest.
    pub(super) fn add_head(&mut self, head: u16) {
        self.heads[self.next_head] = head;
        self.next_head = self.next_head.wrapping_add(1) % HEADS;
    }
}

/// Ports of services: two that were the last, and one for each place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Services {
    places: [u16; 16],
    /// The last first.
    pub(super) last: [u16; 2],
}

impl Services {
    const USUAL: Self = {
        let mut places = [0; 16];
        let mut index = 0;
        while index < SERVICES.len() {
            places[Self::place(SERVICES[index]) as usize] = SERVICES[index];
            index += 1;
        }
        Self {
            places,
            last: [443, 80],
        }
    };

    /// The place of a port.
    #[inline(always)]
    pub(super) const fn place(port: u16) -> u16 {
        port.wrapping_mul(SERVICE_FACTOR) >> 12
    }

    /// The port that has a place.
    #[inline(always)]
    pub(super) fn at(&self, place: u16) -> u16 {
        self.places[usize::from(place & 15)]
    }

    /// A packet was of this service.
    #[inline(always)]
    pub(super) fn follow(&mut self, service: u16) {
        let [first, second] = self.last;
        self.last = [service, if service == first { second } else { first }];
    }

    /// Neither port was known: the lower one is now.
    #[inline(always)]
    pub(super) fn learn(&mut self, source: u16, destination: u16) {
        let port = source.min(destination);
        self.places[usize::from(Self::place(port) & 15)] = port;
        self.last = [port, self.last[0]];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_services_have_a_place() {
        for port in SERVICES {
            assert_eq!(
                Services::USUAL.at(Services::place(port)),
                port,
                "port {port} is covered by another"
            );
        }
    }
}
