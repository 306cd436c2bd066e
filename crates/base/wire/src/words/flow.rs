//! The flow key, and the keyed fingerprint by which everything finds a flow.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::formats::ip_protocol as protocol;

/// What the addresses of a [`FlowKey`] are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
#[repr(u8)]
pub enum AddressFamily {
    /// IEEE 802 MAC addresses; the "ports" are both the EtherType.
    #[default]
    Mac = 0,
    /// IPv4 addresses.
    Ipv4 = 4,
    /// IPv6 addresses.
    Ipv6 = 6,
}

/// One end of a flow: an address, right-aligned in 128 bits, and a port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub struct Endpoint {
    /// IPv4 in the low 32 bits, MAC in the low 48, or IPv6.
    pub address: u128,
    /// Transport port, or 0 where the protocol has none.
    pub port: u16,
}

impl Endpoint {
    const NONE: Self = Self {
        address: 0,
        port: 0,
    };
}

/// The canonical, direction-free flow key: both directions of a conversation
/// have the same key, since the smaller endpoint always comes first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct FlowKey {
    /// The smaller endpoint.
    pub low: Endpoint,
    /// The larger endpoint.
    pub high: Endpoint,
    /// IP protocol number; 0 for [`AddressFamily::Mac`].
    pub protocol: u8,
    /// What the addresses are.
    pub family: AddressFamily,
}

impl FlowKey {
    /// The key of packets without a flow.
    pub const NONE: Self = Self {
        low: Endpoint::NONE,
        high: Endpoint::NONE,
        protocol: 0,
        family: AddressFamily::Mac,
    };

    /// The key of a packet from `source` to `destination`, and whether the
    /// packet goes from the low to the high endpoint.
    #[inline]
    #[must_use]
    pub fn new(
        family: AddressFamily,
        protocol: u8,
        source: Endpoint,
        destination: Endpoint,
    ) -> (Self, bool) {
        let low_to_high = source <= destination;
        let (low, high) = if low_to_high {
            (source, destination)
        } else {
            (destination, source)
        };
        let key = Self {
            low,
            high,
            protocol,
            family,
        };
        (key, low_to_high)
    }
}

/// An address in the words of its family.
#[must_use]
pub fn ip_addr(family: AddressFamily, address: u128) -> Option<IpAddr> {
    match family {
        AddressFamily::Ipv4 => u32::try_from(address)
            .ok()
            .map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits))),
        AddressFamily::Ipv6 => Some(IpAddr::V6(Ipv6Addr::from_bits(address))),
        AddressFamily::Mac => None,
    }
}

/// `10.0.0.1:80 - 10.0.0.9:40000 TCP`, without ports where the protocol has none.
impl fmt::Display for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_ports = (self.low.port | self.high.port) != 0;
        let end = |e: Endpoint| match ip_addr(self.family, e.address) {
            Some(address) if !has_ports => address.to_string(),
            Some(IpAddr::V6(v6)) => format!("[{v6}]:{}", e.port),
            Some(v4) => format!("{v4}:{}", e.port),
            None => format!("{:012x}", e.address),
        };
        write!(f, "{} - {}", end(self.low), end(self.high))?;
        match (self.family, protocol::name(self.protocol)) {
            (AddressFamily::Mac, _) => write!(f, " ethertype 0x{:04x}", self.low.port),
            (_, Some(name)) => write!(f, " {name}"),
            (_, None) => write!(f, " protocol {}", self.protocol),
        }
    }
}

/// A keyed 64-bit hash of flow keys and addresses.
///
/// The inner sum is the NH family of UMAC (RFC 4418 §5.2.1) widened to 64-bit words: over a random
/// key, two given inputs collide with probability at most 2^-64, so no one without the key can aim
/// at a bucket. The final multiply spreads the sum over all bits, since buckets use only some of
/// them.
/// The result is part of the log format (block summaries hold it), so this
/// function must not change without a new format version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowHasher {
    key: [u64; 8],
}

impl FlowHasher {
    /// A hasher whose eight key words are drawn from `seed` by splitmix64.
    #[must_use]
    pub fn new(seed: [u64; 2]) -> Self {
        let mut state = seed[0];
        let mut key = [0; 8];
        for (index, word) in key.iter_mut().enumerate() {
            if index == 4 {
                state ^= seed[1];
            }
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            *word = mix64(state ^ seed[1].rotate_left(32));
        }
        Self { key }
    }

    /// Its key words, for hashing several flows at a time.
    pub(crate) fn key(&self) -> &[u64; 8] {
        &self.key
    }

    /// The fingerprint of a flow. Never 0.
    #[inline]
    #[must_use]
    pub fn flow(&self, flow: &FlowKey) -> u64 {
        let k = &self.key;
        let tail = u64::from(flow.low.port)
            | u64::from(flow.high.port) << 16
            | u64::from(flow.protocol) << 32
            | (flow.family as u64) << 40;
        let (low, high) = (flow.low.address, flow.high.address);
        let mut sum = nh(tail, k[0], low_word(low), k[1]);
        sum = sum.wrapping_add(nh(low_word(high), k[2], 0, k[3]));
        if flow.family == AddressFamily::Ipv6 {
            sum = sum.wrapping_add(nh(high_word(low), k[4], high_word(high), k[5]));
        }
        self.finish(sum)
    }

    /// [`FlowHasher::flow`] of an IPv4 flow between two ends, each with address and port as one
    /// 48-bit number, the smaller one first.
    #[inline(always)]
    #[must_use]
    pub fn ipv4(&self, protocol: u8, low: u64, high: u64) -> u64 {
        let k = &self.key;
        let tail = low & 0xffff
            | (high & 0xffff) << 16
            | u64::from(protocol) << 32
            | (AddressFamily::Ipv4 as u64) << 40;
        let sum = nh(tail, k[0], low >> 16, k[1]);
        self.finish(sum.wrapping_add(nh(high >> 16, k[2], 0, k[3])))
    }

    /// The fingerprint of one address, for block summaries. Never 0.
    #[inline]
    #[must_use]
    pub fn address(&self, family: AddressFamily, address: u128) -> u64 {
        let k = &self.key;
        let sum = nh(low_word(address), k[2], high_word(address), k[5]);
        self.finish(sum.wrapping_add(nh(family as u64, k[4], 1, k[0])))
    }

    #[inline]
    fn finish(&self, sum: u128) -> u64 {
        let folded = low_word(sum) ^ high_word(sum).rotate_left(29) ^ self.key[6];
        mix64(folded ^ self.key[7]).max(1)
    }
}

/// A fixed 64-bit mixer (the finalizer of splitmix64), for sampling that must be repeatable from
/// run to run.
#[inline]
#[must_use]
pub fn mix64(value: u64) -> u64 {
    let mut z = value;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[inline(always)]
fn nh(a: u64, key_a: u64, b: u64, key_b: u64) -> u128 {
    // The product of two words fits in two.
    u128::from(a.wrapping_add(key_a)).wrapping_mul(u128::from(b.wrapping_add(key_b)))
}

#[inline(always)]
#[allow(clippy::cast_possible_truncation)]
fn low_word(value: u128) -> u64 {
    value as u64
}

#[inline(always)]
#[allow(clippy::cast_possible_truncation)]
fn high_word(value: u128) -> u64 {
    (value >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn end(address: u128, port: u16) -> Endpoint {
        Endpoint { address, port }
    }

    #[test]
    fn both_directions_share_a_key() {
        let (a, b) = (end(0x0a00_0001, 443), end(0x0a00_0002, 50_000));
        let (there, forward) = FlowKey::new(AddressFamily::Ipv4, 6, a, b);
        let (back, backward) = FlowKey::new(AddressFamily::Ipv4, 6, b, a);
        assert_eq!(there, back);
        assert!(forward && !backward);
    }

    #[test]
    fn flows_are_shown_by_the_names_of_their_protocols() {
        let shown = |family, number, port| {
            let (a, b) = (end(0x0a00_0001, port), end(0x0a00_0002, port));
            FlowKey::new(family, number, a, b).0.to_string()
        };
        let v4 = AddressFamily::Ipv4;
        assert_eq!(shown(v4, 6, 80), "10.0.0.1:80 - 10.0.0.2:80 TCP");
        assert_eq!(shown(v4, 1, 0), "10.0.0.1 - 10.0.0.2 ICMP");
        assert_eq!(shown(v4, 253, 0), "10.0.0.1 - 10.0.0.2 protocol 253");
        assert_eq!(
            shown(AddressFamily::Ipv6, 17, 53),
            "[::a00:1]:53 - [::a00:2]:53 UDP"
        );
        assert_eq!(
            shown(AddressFamily::Mac, 0, 0x806),
            "00000a000001 - 00000a000002 ethertype 0x0806"
        );
    }

    #[test]
    fn equal_addresses_are_ordered_by_port() {
        let (a, b) = (end(1, 80), end(1, 8080));
        let (there, _) = FlowKey::new(AddressFamily::Ipv4, 6, a, b);
        let (back, _) = FlowKey::new(AddressFamily::Ipv4, 6, b, a);
        assert_eq!(there, back);
        assert_eq!(there.low.port, 80);
    }

    #[test]
    fn fingerprints_differ_by_every_field_and_by_key() {
        let hasher = FlowHasher::new([1, 2]);
        let mut seen = HashSet::new();
        let (key, _) = FlowKey::new(AddressFamily::Ipv6, 17, end(1 << 80, 53), end(2 << 90, 53));
        let mut variants = vec![key];
        for change in 0..6 {
            let mut other = key;
            match change {
                0 => other.low.address ^= 1 << 100,
                1 => other.high.address ^= 1,
                2 => other.low.port ^= 1,
                3 => other.high.port ^= 0x8000,
                4 => other.protocol = 6,
                _ => other.family = AddressFamily::Mac,
            }
            variants.push(other);
        }
        for key in &variants {
            assert!(seen.insert(hasher.flow(key)), "collision at {key}");
        }
        assert_ne!(hasher.flow(&key), FlowHasher::new([1, 3]).flow(&key));
        assert_ne!(hasher.flow(&key), FlowHasher::new([2, 2]).flow(&key));
    }

    #[test]
    fn buckets_fill_evenly() {
        // 65,536 sequential IPv4 flows over 256 buckets by the top and by the
        // bottom byte: chi-square with 255 degrees of freedom stays below 350
        // with probability 0.9999.
        let hasher = FlowHasher::new([7, 9]);
        let mut counts = [[0_u32; 256]; 2];
        for n in 0..65_536_u128 {
            let (key, _) = FlowKey::new(
                AddressFamily::Ipv4,
                6,
                end(0x0a00_0000 + n, 80),
                end(0x0b00_0000, 4000),
            );
            let bytes = hasher.flow(&key).to_le_bytes();
            counts[0][usize::from(bytes[0])] += 1;
            counts[1][usize::from(bytes[7])] += 1;
        }
        for row in counts {
            let chi: f64 = row
                .iter()
                .map(|&c| (f64::from(c) - 256.0).powi(2) / 256.0)
                .sum();
            assert!(chi < 350.0, "chi-square {chi}");
        }
    }
}
