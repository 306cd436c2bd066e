//! What both ends know from the headers before in the same datagram. The writer finds entries by
//! hash; the reader has their numbers. Both change it in the same way, by [`super::record`].

use super::kind::{HEADS, USUAL};
use super::plain::{OPTIONS_MAX, PREFIX_MAX};
use super::{Label, other};

/// Starts of frames that are remembered; the last number of the code says that another follows.
pub(super) const PREFIXES: usize = 18;
/// Labels that are remembered, in the same way.
pub(super) const LABELS: usize = 15;
/// Flows and addresses that are remembered of a datagram; those after are not.
pub(super) const CONTEXTS: usize = 256;
pub(super) const ADDRESSES: usize = 256;
/// Ports that are taken for those of services until others are seen.
const SERVICES: [u16; 15] = [
    22, 25, 53, 80, 123, 443, 445, 993, 3306, 3389, 5432, 6379, 8080, 8443, 9092,
];
/// Gives each of them another place.
const SERVICE_FACTOR: u16 = 5591;

/// Addresses that the next one may be near.
#[derive(Clone, Copy, Debug)]
pub(super) struct Near {
    pub(super) last: u128,
    /// The last one before of another /8.
    pub(super) other: u128,
}

impl Near {
    #[inline(always)]
    pub(super) fn follow(&mut self, address: u128) {
        if (address ^ self.last) >> 24 & 0xff != 0 {
            self.other = self.last;
        }
        self.last = address;
    }
}

/// What is before IP, and what came with it: packets with the same are of one direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefix {
    pub(super) bytes: [u8; PREFIX_MAX + 1],
    pub(super) len: u8,
    /// Source and destination of the last new flows.
    pub(super) last: [Near; 2],
    /// The last window and time to live that no flow predicted.
    pub(super) window: u16,
    pub(super) ttl: u8,
}

impl Prefix {
    const EMPTY: Self = Self {
        bytes: [0; PREFIX_MAX + 1],
        len: 0,
        last: [Near { last: 0, other: 0 }; 2],
        window: 0,
        ttl: 64,
    };

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// The last packet of a flow in one direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side {
    pub(super) is_seen: bool,
    pub(super) prefix: u8,
    pub(super) tos: u8,
    pub(super) ttl: u8,
    pub(super) identification: u16,
    pub(super) window: u16,
    pub(super) flow_label: u32,
    /// The sequence number that follows.
    pub(super) sequence: u32,
    pub(super) acknowledgement: u32,
    pub(super) stamp: u32,
    pub(super) echo: u32,
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
        sequence: 0,
        acknowledgement: 0,
        stamp: 0,
        echo: 0,
    };
}

/// What identifies a flow, from the direction of its first packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Key {
    pub(super) source: u128,
    pub(super) destination: u128,
    pub(super) ports: u32,
    /// Transport in the low bits, IPv6 above.
    pub(super) kind: u8,
}

impl Key {
    pub(super) const EMPTY: Self = Self {
        source: 0,
        destination: 0,
        ports: 0,
        kind: 0,
    };

    /// From the other direction.
    #[inline(always)]
    pub(super) fn reversed(&self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            ports: self.ports.rotate_left(16),
            kind: self.kind,
        }
    }
}

/// A flow of the datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context {
    pub(super) key: Key,
    pub(super) sides: [Side; 2],
}

/// What is known.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) prefixes: [Prefix; PREFIXES],
    pub(super) prefix_count: usize,
    next_prefix: usize,
    addresses: Box<[u128; ADDRESSES]>,
    pub(super) address_count: usize,
    contexts: Box<[Context; CONTEXTS]>,
    pub(super) context_count: usize,
    /// The flow of the last plain packet.
    pub(super) last_context: usize,
    services: [u16; 16],
    /// Ports of the last two services, the last first.
    pub(super) last_services: [u16; 2],
    pub(super) heads: [u16; HEADS],
    next_head: usize,
    /// The payload that most packets will have: of TCP without options, with options, of UDP, ICMP.
    pub(super) full: [u16; 4],
    pub(super) tos: u8,
    /// Time of the last packet.
    pub(super) time_ns: u64,
    /// TCP options other than timestamps.
    pub(super) options: [u8; OPTIONS_MAX],
    pub(super) options_len: usize,
    pub(super) label: Label,
    pub(super) labels: [Label; LABELS],
    pub(super) label_count: usize,
    next_label: usize,
    pub(super) others: other::Recent,
}

impl Model {
    pub(super) fn new() -> Self {
        let context = Context {
            key: Key::EMPTY,
            sides: [Side::UNSEEN; 2],
        };
        let mut model = Self {
            prefixes: [Prefix::EMPTY; PREFIXES],
            prefix_count: 0,
            next_prefix: 0,
            addresses: Box::new([0; ADDRESSES]),
            address_count: 0,
            contexts: Box::new([context; CONTEXTS]),
            context_count: 0,
            last_context: 0,
            services: [0; 16],
            last_services: [0; 2],
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
        self.address_count = 0;
        self.context_count = 0;
        self.last_context = 0;
        self.services = const { services() };
        self.last_services = [443, 80];
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

    /// The flow with this number.
    #[inline(always)]
    pub(super) fn context(&self, number: usize) -> &Context {
        &self.contexts[number % CONTEXTS]
    }

    #[inline(always)]
    pub(super) fn side_mut(&mut self, number: usize, side: usize) -> &mut Side {
        &mut self.contexts[number % CONTEXTS].sides[side & 1]
    }

    /// Remembers a flow; its number, if there is room.
    #[inline(always)]
    pub(super) fn add_context(&mut self, key: Key) -> Option<usize> {
        let number = self.context_count;
        let context = self.contexts.get_mut(number)?;
        context.key = key;
        // Also what is expected of a direction that was not seen has to be the same at both ends.
        context.sides = [Side::UNSEEN; 2];
        self.context_count = number + 1;
        Some(number)
    }

    #[inline(always)]
    pub(super) fn address(&self, number: usize) -> u128 {
        self.addresses[number % ADDRESSES]
    }

    /// Remembers an address; its number, if there is room.
    #[inline(always)]
    pub(super) fn add_address(&mut self, address: u128) -> Option<usize> {
        let number = self.address_count;
        *self.addresses.get_mut(number)? = address;
        self.address_count = number + 1;
        Some(number)
    }

    /// Remembers what is before IP, in place of the oldest if there are many; its number.
    pub(super) fn add_prefix(&mut self, bytes: &[u8]) -> usize {
        let number = self.next_prefix;
        let mut prefix = Prefix::EMPTY;
        prefix.bytes[..bytes.len()].copy_from_slice(bytes);
        prefix.len = strata_wire::exact::<u8>(bytes.len());
        self.prefixes[number] = prefix;
        self.next_prefix = (number + 1) % PREFIXES;
        self.prefix_count = self.prefix_count.max(number + 1);
        number
    }

    /// Remembers a label, in place of the oldest if there are many.
    pub(super) fn add_label(&mut self, label: Label) {
        self.labels[self.next_label] = label;
        self.label_count = self.label_count.max(self.next_label + 1);
        self.next_label = (self.next_label + 1) % LABELS;
    }

    /// The number that the next head gets.
    pub(super) fn next_head(&self) -> usize {
        self.next_head
    }

    /// Remembers a head, in place of the oldest.
    pub(super) fn add_head(&mut self, head: u16) {
        self.heads[self.next_head] = head;
        self.next_head = (self.next_head + 1) % HEADS;
    }

    /// The port in the service table's place, and the place, of a port.
    #[inline(always)]
    pub(super) fn service(&self, port: u16) -> (u16, u16) {
        let place = service_place(port);
        (self.services[usize::from(place)], place)
    }

    #[inline(always)]
    pub(super) fn service_at(&self, place: u16) -> u16 {
        self.services[usize::from(place & 15)]
    }

    /// Neither port was known: the lower one is now.
    #[inline(always)]
    pub(super) fn learn_service(&mut self, ports: u32) {
        let [a, b, c, d] = ports.to_be_bytes();
        let port = u16::from_be_bytes([a, b]).min(u16::from_be_bytes([c, d]));
        self.services[usize::from(service_place(port))] = port;
        self.last_services = [port, self.last_services[0]];
    }
}

/// The place of a port in the table of services.
#[inline(always)]
const fn service_place(port: u16) -> u16 {
    port.wrapping_mul(SERVICE_FACTOR) >> 12
}

const fn services() -> [u16; 16] {
    let mut table = [0; 16];
    let mut index = 0;
    while index < SERVICES.len() {
        table[service_place(SERVICES[index]) as usize] = SERVICES[index];
        index += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_services_have_a_place() {
        let model = Model::new();
        for port in SERVICES {
            assert_eq!(
                model.service(port).0,
                port,
                "port {port} is covered by another"
            );
        }
    }
}
