//! Counts of packets by key, with a bound.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

use strata_processes::of_options;
use strata_query::{LoggedPacket, address_text};
use strata_wire::dissect::protocol;
use strata_wire::{AddressFamily, Endpoint, FlowKey, Headers, exact, ip_addr};

/// Keys that are held: some 350 MB, with the list that is made of them.
pub(super) const KEYS_MAX: u32 = 1_000_000;
/// Bytes of texts that are held: a crafted log may have long ones.
const TEXT_BYTES_MAX: usize = 256 << 20;

/// Sums of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) packets: u64,
    pub(super) wire_bytes: u64,
    pub(super) kept_bytes: u64,
}

impl Sums {
    pub(super) fn of(packet: &LoggedPacket<'_>) -> Self {
        Self {
            packets: 1,
            wire_bytes: packet.wire_len.into(),
            kept_bytes: packet.data.len() as u64,
        }
    }

    /// Lengths have 32 bits, so no log reaches the end of 64.
    pub(super) fn and(&self, more: &Self) -> Self {
        Self {
            packets: self.packets.saturating_add(more.packets),
            wire_bytes: self.wire_bytes.saturating_add(more.wire_bytes),
            kept_bytes: self.kept_bytes.saturating_add(more.kept_bytes),
        }
    }

    /// `None` if there are no packets.
    pub(super) fn some(self) -> Option<Self> {
        (self.packets > 0).then_some(self)
    }
}

/// What packets are counted by.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Key {
    Flow(AddressFamily, u8, [Endpoint; 2]),
    Host(AddressFamily, u128),
    /// The lower address first.
    Pair(AddressFamily, [u128; 2]),
    Port(u16),
    Protocol(u8),
    Text(Box<str>),
    /// Without what is counted by.
    None(&'static str),
}

/// Packets whose headers could not be read.
const NOT_DISSECTED: Key = Key::None("not dissected");

impl Key {
    pub(super) fn of_flow(headers: &Headers) -> Self {
        match headers.key {
            Some(key) => Self::Flow(key.family, key.protocol, [key.low, key.high]),
            None => NOT_DISSECTED,
        }
    }

    pub(super) fn of_protocol(headers: &Headers) -> Self {
        match headers.key {
            Some(key) if key.family != AddressFamily::Mac => Self::Protocol(key.protocol),
            Some(_) => Self::None("not IP"),
            None => NOT_DISSECTED,
        }
    }

    pub(super) fn of_source(headers: &Headers) -> Self {
        Self::of_host(headers, |(source, _)| source)
    }

    pub(super) fn of_destination(headers: &Headers) -> Self {
        Self::of_host(headers, |(_, destination)| destination)
    }

    fn of_host(headers: &Headers, end: fn((Endpoint, Endpoint)) -> Endpoint) -> Self {
        match headers.key {
            Some(key) => Self::Host(key.family, end(headers.endpoints()).address),
            None => NOT_DISSECTED,
        }
    }

    pub(super) fn of_hosts(headers: &Headers) -> [Self; 2] {
        let Some(key) = headers.key else {
            return [NOT_DISSECTED, NOT_DISSECTED];
        };
        [key.low, key.high].map(|end| Self::Host(key.family, end.address))
    }

    pub(super) fn of_pair(headers: &Headers) -> Self {
        let Some(key) = headers.key else {
            return NOT_DISSECTED;
        };
        let mut pair = [key.low.address, key.high.address];
        pair.sort_unstable();
        Self::Pair(key.family, pair)
    }

    pub(super) fn of_ports(headers: &Headers) -> [Self; 2] {
        let has_ports =
            |key: &FlowKey| key.family != AddressFamily::Mac && (key.low.port | key.high.port) != 0;
        match headers.key.filter(has_ports) {
            Some(key) => [key.low, key.high].map(|end| Self::Port(end.port)),
            None => [Self::None("no port"), Self::None("no port")],
        }
    }

    /// The names of the processes in the options of a packet.
    pub(super) fn of_processes(options: &[u8]) -> [Self; 2] {
        match of_options(options).map(|known| known.map(|process| Self::Text(process.name))) {
            [Some(sender), Some(receiver)] => [sender, receiver],
            [Some(one), None] | [None, Some(one)] => [one.clone(), one],
            [None, None] => [Self::None("unknown"), Self::None("unknown")],
        }
    }

    /// What `find` tells of each of the two addresses.
    ///
    /// # Errors
    ///
    /// Those of `find`.
    pub(super) fn of_ends<E>(
        headers: &Headers,
        mut find: impl FnMut(IpAddr) -> Result<Self, E>,
    ) -> Result<[Self; 2], E> {
        let Some(key) = headers.key else {
            return Ok([NOT_DISSECTED, NOT_DISSECTED]);
        };
        let mut end = |end: Endpoint| match ip_addr(key.family, end.address) {
            Some(address) => find(address),
            None => Ok(Self::None("not IP")),
        };
        Ok([end(key.low)?, end(key.high)?])
    }

    /// The address that this is, or the two of a pair: as text, and as an IP address if it is one.
    pub(super) fn addresses(&self) -> Vec<(String, Option<IpAddr>)> {
        let described = |family: AddressFamily, address: u128| {
            (address_text(family, address), ip_addr(family, address))
        };
        match self {
            Self::Host(family, address) => vec![described(*family, *address)],
            Self::Pair(family, pair) => pair.map(|end| described(*family, end)).into(),
            _ => Vec::new(),
        }
    }

    pub(super) fn text(text: &str) -> Self {
        Self::Text(text.into())
    }

    fn text_bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            _ => 0,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flow(family, protocol, [low, high]) => {
                let key = FlowKey {
                    low: *low,
                    high: *high,
                    protocol: *protocol,
                    family: *family,
                };
                key.fmt(f)
            }
            Self::Host(family, address) => f.write_str(&address_text(*family, *address)),
            Self::Pair(family, [low, high]) => {
                let [low, high] = [low, high].map(|end| address_text(*family, *end));
                write!(f, "{low} - {high}")
            }
            Self::Port(port) => port.fmt(f),
            Self::Protocol(number) => match protocol::name(*number) {
                Some(name) => f.write_str(name),
                None => write!(f, "protocol {number}"),
            },
            Self::Text(text) => f.write_str(text),
            Self::None(what) => f.write_str(what),
        }
    }
}

/// Packets by key: the first keys one by one, up to a bound, packets of further ones together.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) keys: HashMap<Key, Sums>,
    keys_max: usize,
    text_bytes_left: usize,
    /// Of keys that are not held.
    pub(super) beyond: Sums,
    /// Packets that count for two keys.
    pub(super) twice: Sums,
    /// All packets, each once.
    pub(super) total: Sums,
}

impl Default for Tally {
    fn default() -> Self {
        Self::with_bounds(exact(KEYS_MAX), TEXT_BYTES_MAX)
    }
}

impl Tally {
    pub(super) fn with_bounds(keys_max: usize, text_bytes_max: usize) -> Self {
        Self {
            keys: HashMap::new(),
            keys_max,
            text_bytes_left: text_bytes_max,
            beyond: Sums::default(),
            twice: Sums::default(),
            total: Sums::default(),
        }
    }

    /// Counts a packet.
    pub(super) fn one(&mut self, key: Key, sums: &Sums) {
        self.total = self.total.and(sums);
        self.add(key, sums);
    }

    /// Counts a packet for both of its ends; once if they are the same.
    pub(super) fn two(&mut self, [one, other]: [Key; 2], sums: &Sums) {
        self.total = self.total.and(sums);
        if one != other {
            self.twice = self.twice.and(sums);
            self.add(other, sums);
        }
        self.add(one, sums);
    }

    fn add(&mut self, key: Key, sums: &Sums) {
        if let Some(known) = self.keys.get_mut(&key) {
            *known = known.and(sums);
            return;
        }
        let left = self.text_bytes_left.checked_sub(key.text_bytes());
        match left.filter(|_| self.keys.len() < self.keys_max) {
            Some(left) => {
                self.text_bytes_left = left;
                self.keys.insert(key, *sums);
            }
            None => self.beyond = self.beyond.and(sums),
        }
    }
}
