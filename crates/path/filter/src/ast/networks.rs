//! Networks that have a name, by which a filter tests addresses: `tag dmz`, `asn 64500`, `country DE`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// What a name of networks says of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Naming {
    /// `tag`: the user has named them.
    Tag,
    /// `asn`: their autonomous system, whose number is the name.
    System,
    /// `country`: their country, whose code of two letters (ISO 3166-1) is the name, in capitals.
    Country,
}

impl Naming {
    /// Its word in a filter.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Tag => "tag",
            Self::System => "asn",
            Self::Country => "country",
        }
    }

    /// The one with this word.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        [Self::Tag, Self::System, Self::Country]
            .into_iter()
            .find(|naming| naming.word() == word)
    }
}

/// Says which networks a name means.
pub trait NetworkNames {
    /// The networks of a name; not empty.
    ///
    /// # Errors
    ///
    /// If the name is unknown, or names are not known at all: the message says what to do.
    fn networks(&self, naming: Naming, name: &str) -> Result<Arc<NetworkSet>, String>;
}

/// Where no names of networks are known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoNames;

impl NetworkNames for NoNames {
    fn networks(&self, naming: Naming, _: &str) -> Result<Arc<NetworkSet>, String> {
        let word = naming.word();
        Err(format!(
            "'{word}' works only where logs are read with names of networks (--names, --mmdb), not here: write the \
             networks, as in 'net 192.0.2.0/24'"
        ))
    }
}

/// Any number of networks, in which an address is found by binary search.
///
/// Memory: 8 bytes for a range of IPv4 addresses, 32 bytes for one of IPv6 addresses.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct NetworkSet {
    /// First and last addresses, in order, with others between any two ranges.
    v4: Vec<[u32; 2]>,
    v6: Vec<[u128; 2]>,
}

/// Hundreds of thousands of ranges help no reader.
impl fmt::Debug for NetworkSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetworkSet")
            .field("v4", &self.v4.len())
            .field("v6", &self.v6.len())
            .finish()
    }
}

impl NetworkSet {
    /// The addresses of these ranges, each from its first to its last address, in any order.
    #[must_use]
    pub fn new(v4: Vec<[u32; 2]>, v6: Vec<[u128; 2]>) -> Self {
        Self {
            v4: merged(v4, |last| last.checked_add(1)),
            v6: merged(v6, |last| last.checked_add(1)),
        }
    }

    /// Whether it has an address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.contains_v4(address.to_bits()),
            IpAddr::V6(address) => self.contains_v6(address.to_bits()),
        }
    }

    /// Whether it has an IPv4 address.
    #[inline]
    #[must_use]
    pub fn contains_v4(&self, address: u32) -> bool {
        is_in(&self.v4, address)
    }

    /// Whether it has an IPv6 address.
    #[inline]
    #[must_use]
    pub fn contains_v6(&self, address: u128) -> bool {
        is_in(&self.v6, address)
    }

    /// Whether it has addresses of IPv4, and of IPv6.
    #[must_use]
    pub fn versions(&self) -> [bool; 2] {
        [!self.v4.is_empty(), !self.v6.is_empty()]
    }

    /// Whether it has no address.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.versions() == [false, false]
    }

    /// All addresses of both.
    #[must_use]
    pub fn with(mut self, other: Self) -> Self {
        self.v4.extend(other.v4);
        self.v6.extend(other.v6);
        Self::new(self.v4, self.v6)
    }

    /// Its addresses that are not in another.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        Self {
            v4: rest(
                &self.v4,
                &other.v4,
                |a| a.checked_sub(1),
                |a| a.checked_add(1),
            ),
            v6: rest(
                &self.v6,
                &other.v6,
                |a| a.checked_sub(1),
                |a| a.checked_add(1),
            ),
        }
    }

    /// Its addresses, if there are not more than `at_most`.
    #[must_use]
    pub(crate) fn addresses(&self, at_most: usize) -> Option<Vec<IpAddr>> {
        let mut all = Vec::new();
        for &[first, last] in &self.v4 {
            for address in first..=last {
                if all.len() >= at_most {
                    return None;
                }
                all.push(Ipv4Addr::from_bits(address).into());
            }
        }
        for &[first, last] in &self.v6 {
            for address in first..=last {
                if all.len() >= at_most {
                    return None;
                }
                all.push(Ipv6Addr::from_bits(address).into());
            }
        }
        Some(all)
    }
}

#[inline]
fn is_in<T: Ord + Copy>(ranges: &[[T; 2]], address: T) -> bool {
    // Of the ranges that begin at the address or before, the last one.
    let after = ranges.partition_point(|[first, _]| *first <= address);
    let range = after.checked_sub(1).and_then(|at| ranges.get(at));
    range.is_some_and(|[_, last]| address <= *last)
}

/// In order, and joined where they meet; `next` is the address after one.
fn merged<T: Ord + Copy>(mut ranges: Vec<[T; 2]>, next: fn(T) -> Option<T>) -> Vec<[T; 2]> {
    ranges.retain(|[first, last]| first <= last);
    ranges.sort_unstable();
    let mut joined: Vec<[T; 2]> = Vec::with_capacity(ranges.len());
    for [first, last] in ranges {
        match joined.last_mut() {
            Some([_, end]) if next(*end).is_none_or(|after| first <= after) => {
                *end = last.max(*end);
            }
            _ => joined.push([first, last]),
        }
    }
    joined.shrink_to_fit();
    joined
}

/// What is left of ranges without others, both in order; `before` and `next` are the addresses around one.
fn rest<T: Ord + Copy>(
    ranges: &[[T; 2]],
    others: &[[T; 2]],
    before: fn(T) -> Option<T>,
    next: fn(T) -> Option<T>,
) -> Vec<[T; 2]> {
    let mut left = Vec::with_capacity(ranges.len());
    let mut others = others.iter().peekable();
    for &[first, last] in ranges {
        let mut from = Some(first);
        while let (Some(start), Some(&&[other_first, other_last])) = (from, others.peek()) {
            if other_first > last {
                break;
            }
            if let Some(end) = before(other_first)
                && start <= end
            {
                left.push([start, end]);
            }
            if other_last >= start {
                from = next(other_last).filter(|start| *start <= last);
            }
            if other_last > last {
                break;
            }
            others.next();
        }
        if let Some(start) = from {
            left.push([start, last]);
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Ranges of few addresses at both ends of the space, as single addresses.
    fn ranges() -> impl Strategy<Value = Vec<[u32; 2]>> {
        let base = prop::sample::select(vec![0_u32, 1 << 20, u32::MAX - 63]);
        let one = (base, 0_u32..64, 0_u32..64)
            .prop_map(|(base, a, b)| [base + a.min(b), base + a.max(b)]);
        prop::collection::vec(one, 0..8)
    }

    fn has(ranges: &[[u32; 2]], address: u32) -> bool {
        ranges
            .iter()
            .any(|[first, last]| (*first..=*last).contains(&address))
    }

    fn probes() -> impl Iterator<Item = u32> {
        [0_u32, 1 << 20, u32::MAX - 63]
            .into_iter()
            .flat_map(|base| (0..64).map(move |more| base + more))
            .chain([64, (1 << 20) - 1, (1 << 20) + 64, u32::MAX - 64])
    }

    proptest! {
        #[test]
        fn sets_are_as_lists_of_ranges_say(a in ranges(), b in ranges()) {
            let wide = |ranges: &[[u32; 2]]| {
                let shifted = ranges.iter().map(|range| range.map(|end| u128::from(end) << 96 | 7));
                shifted.collect::<Vec<_>>()
            };
            let one = NetworkSet::new(a.clone(), wide(&a));
            let other = NetworkSet::new(b.clone(), wide(&b));
            let (both, left) = (one.clone().with(other.clone()), one.without(&other));
            for address in probes() {
                let (in_a, in_b) = (has(&a, address), has(&b, address));
                prop_assert_eq!(one.contains_v4(address), in_a);
                prop_assert_eq!(both.contains_v4(address), in_a || in_b);
                prop_assert_eq!(left.contains_v4(address), in_a && !in_b);
                let v6 = u128::from(address) << 96 | 7;
                prop_assert_eq!(both.contains_v6(v6), in_a || in_b);
                prop_assert_eq!(left.contains_v6(v6), in_a && !in_b);
            }
            // In the shortest form.
            prop_assert_eq!(NetworkSet::new(left.v4.clone(), left.v6.clone()), left);
            let few = NetworkSet::new(a.clone(), Vec::new());
            if let Some(addresses) = few.addresses(100) {
                prop_assert_eq!(addresses.len(), probes().filter(|address| has(&a, *address)).count());
            }
        }
    }
}
