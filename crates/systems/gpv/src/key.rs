//! Whose packets a vector groups.

use std::fmt;
use std::net::IpAddr;

use strata_wire::{AddressFamily, Endpoint, ip_addr, mix64};

/// The flow key of a grouped packet vector (GPV): source and destination as they stand in the
/// packet, so each direction of a conversation is a flow of its own, and the port it came in by.
///
/// Five words, so that a comparison is five comparisons: source (high, low), destination (high,
/// low), and from the lowest bit of the last: source port 16, destination port 16, protocol 8,
/// family 8, ingress port 16.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Key {
    words: [u64; 5],
}

impl Key {
    /// The key of a packet from `source` to `destination` that came in by port `ingress`.
    #[inline]
    #[must_use]
    pub fn new(
        family: AddressFamily,
        protocol: u8,
        source: Endpoint,
        destination: Endpoint,
        ingress: u16,
    ) -> Self {
        let [source_high, source_low] = halves(source.address);
        let [destination_high, destination_low] = halves(destination.address);
        let rest = u64::from(source.port)
            | u64::from(destination.port) << 16
            | u64::from(protocol) << 32
            | (family as u64) << 40
            | u64::from(ingress) << 48;
        Self {
            words: [
                source_high,
                source_low,
                destination_high,
                destination_low,
                rest,
            ],
        }
    }

    /// Where the packets come from.
    #[inline]
    #[must_use]
    pub fn source(&self) -> Endpoint {
        Endpoint {
            address: whole(self.words[0], self.words[1]),
            port: self.lane(0),
        }
    }

    /// Where the packets go.
    #[inline]
    #[must_use]
    pub fn destination(&self) -> Endpoint {
        Endpoint {
            address: whole(self.words[2], self.words[3]),
            port: self.lane(16),
        }
    }

    /// IP protocol number; 0 where the addresses are of Ethernet.
    #[inline]
    #[must_use]
    pub fn protocol(&self) -> u8 {
        self.lane(32).to_le_bytes()[0]
    }

    /// What the addresses are.
    #[inline]
    #[must_use]
    pub fn family(&self) -> AddressFamily {
        match self.lane(40) & 0xff {
            4 => AddressFamily::Ipv4,
            6 => AddressFamily::Ipv6,
            _ => AddressFamily::Mac,
        }
    }

    /// The port of the switch, or the interface, by which the packets came in.
    #[inline]
    #[must_use]
    pub fn ingress(&self) -> u16 {
        self.lane(48)
    }

    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "the low 16 bits are meant")]
    fn lane(&self, bit: u32) -> u16 {
        (self.words[4] >> bit) as u16
    }
}

/// `10.0.0.1:80 -> 10.0.0.9:40000 protocol 6`.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = |end: Endpoint| match ip_addr(self.family(), end.address) {
            Some(IpAddr::V6(v6)) => format!("[{v6}]:{}", end.port),
            Some(v4) => format!("{v4}:{}", end.port),
            None => format!("{:012x}/{:04x}", end.address, end.port),
        };
        let (source, destination) = (end(self.source()), end(self.destination()));
        write!(f, "{source} -> {destination} protocol {}", self.protocol())?;
        write!(f, " port {}", self.ingress())
    }
}

/// A keyed hash of flow keys: a sender that does not know the seed cannot aim at a slot.
#[derive(Clone, Copy, Debug)]
pub struct KeyHasher {
    words: [u64; 5],
}

impl KeyHasher {
    /// The one of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut state = seed;
        let words = std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix64(state)
        });
        Self { words }
    }

    /// The hash of `key`.
    #[inline(always)]
    #[must_use]
    pub fn hash(&self, key: &Key) -> u64 {
        let (w, k) = (&key.words, &self.words);
        let source = folded(w[0] ^ k[0], w[1] ^ k[1]);
        let destination = folded(w[2] ^ k[2], w[3] ^ k[3]);
        folded(
            source ^ w[4] ^ k[4],
            destination.rotate_left(23) ^ 0x9e37_79b9_7f4a_7c15,
        )
    }
}

#[inline(always)]
fn folded(a: u64, b: u64) -> u64 {
    let [high, low] = halves(u128::from(a).wrapping_mul(u128::from(b)));
    high ^ low
}

#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "both halves are taken")]
fn halves(value: u128) -> [u64; 2] {
    [(value >> 64) as u64, value as u64]
}

#[inline(always)]
fn whole(high: u64, low: u64) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_key_gives_back_what_it_was_made_of(
            a: u128, b: u128, ports: (u16, u16), protocol: u8, ingress: u16, family in 0..3,
        ) {
            let families = [AddressFamily::Mac, AddressFamily::Ipv4, AddressFamily::Ipv6];
            let family = families[usize::try_from(family).unwrap()];
            let source = Endpoint { address: a, port: ports.0 };
            let destination = Endpoint { address: b, port: ports.1 };
            let key = Key::new(family, protocol, source, destination, ingress);
            prop_assert_eq!(key.source(), source);
            prop_assert_eq!(key.destination(), destination);
            prop_assert_eq!((key.protocol(), key.family()), (protocol, family));
            prop_assert_eq!(key.ingress(), ingress);
        }
    }

    #[test]
    fn slots_fill_evenly() {
        // As the test of strata_wire::FlowHasher: 255 degrees of freedom.
        let hasher = KeyHasher::new(7);
        let mut counts = [0_u32; 256];
        for n in 0..65_536_u128 {
            let end = |address, port| Endpoint { address, port };
            let v4 = AddressFamily::Ipv4;
            let key = Key::new(v4, 6, end(0x0a00_0000 + n, 80), end(0x0b00_0000, 4000), 0);
            counts[usize::from(hasher.hash(&key).to_be_bytes()[0])] += 1;
        }
        let chi: f64 = counts
            .iter()
            .map(|&c| (f64::from(c) - 256.0).powi(2) / 256.0)
            .sum();
        assert!(chi < 350.0, "chi-square {chi}");
    }
}
