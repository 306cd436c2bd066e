//! Which addresses a matching packet must have.

use std::collections::BTreeSet;
use std::net::IpAddr;

use strata_wire::{AddressFamily, Endpoint, FlowKey};

use crate::ast::{Expr, Network, Test};

/// Larger sets are not worth an index lookup.
const ADDRESSES_MAX: usize = 1024;

/// See [`crate::Filter::host_bounds`].
pub(crate) fn host_bounds(expr: &Expr) -> Vec<Vec<IpAddr>> {
    let bounds = bounds(expr, &mut 0, &mut 0);
    let sorted = bounds.into_iter().map(|set| set.into_iter().collect());
    sorted.collect()
}

/// `shifts` counts the encapsulations to the left, `certain` those that the packet is known to have
/// at this point. Only if these are equal do the following tests read real headers: `not vlan and
/// host 192.0.2.1` compares bytes of something else.
fn bounds(expr: &Expr, shifts: &mut usize, certain: &mut usize) -> Vec<BTreeSet<IpAddr>> {
    match expr {
        Expr::Any => Vec::new(),
        Expr::Test(test) => {
            if is_shift(test) {
                *shifts = shifts.saturating_add(1);
                *certain = certain.saturating_add(1);
                return Vec::new();
            }
            let addresses = addresses(test).filter(|_| shifts == certain);
            addresses.into_iter().collect()
        }
        Expr::Not(inner) => {
            bounds(inner, shifts, &mut certain.clone());
            Vec::new()
        }
        Expr::And(parts) => {
            let mut all = Vec::new();
            for part in parts {
                all.extend(bounds(part, shifts, certain));
            }
            all
        }
        Expr::Or(parts) => {
            let mut union = Some(BTreeSet::new());
            for part in parts {
                let found = bounds(part, shifts, &mut certain.clone());
                let smallest = found.into_iter().min_by_key(BTreeSet::len);
                union = match (union, smallest) {
                    (Some(mut union), Some(smallest)) => {
                        union.extend(smallest);
                        (union.len() <= ADDRESSES_MAX).then_some(union)
                    }
                    _ => None,
                };
            }
            union.into_iter().collect()
        }
    }
}

/// What is known of all packets of a flow: for [`crate::Filter::may_match`], and from
/// [`crate::Filter::flow_bound`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowFacts {
    /// Both addresses, or `None` for what is not IP.
    pub addresses: Option<[IpAddr; 2]>,
    /// Both ports, in the order of the addresses; 0 if the protocol has none.
    pub ports: [u16; 2],
    /// The protocol after all IP headers.
    pub protocol: u8,
}

impl FlowFacts {
    /// The facts of a flow's key, if it is IP.
    #[must_use]
    pub fn key(&self) -> Option<FlowKey> {
        let [a, b] = self.addresses?;
        let family = match (a, b) {
            (IpAddr::V4(_), IpAddr::V4(_)) => AddressFamily::Ipv4,
            (IpAddr::V6(_), IpAddr::V6(_)) => AddressFamily::Ipv6,
            _ => return None,
        };
        let end = |address: IpAddr, port| Endpoint {
            address: match address {
                IpAddr::V4(v4) => v4.to_bits().into(),
                IpAddr::V6(v6) => v6.to_bits(),
            },
            port,
        };
        let (a, b) = (end(a, self.ports[0]), end(b, self.ports[1]));
        Some(FlowKey::new(family, self.protocol, a, b).0)
    }
}

/// See [`crate::Filter::may_match`].
pub(crate) fn may_match(
    expr: &Expr,
    facts: &FlowFacts,
    shifts: &mut usize,
    certain: &mut usize,
) -> bool {
    match expr {
        Expr::Any => true,
        Expr::Test(test) => {
            if is_shift(test) {
                *shifts = shifts.saturating_add(1);
                *certain = certain.saturating_add(1);
                return true;
            }
            shifts != certain || test_may_match(test, facts)
        }
        Expr::Not(inner) => {
            may_match(inner, facts, shifts, &mut certain.clone());
            true
        }
        // Every part is visited, for its encapsulations.
        Expr::And(parts) => {
            let mut all = true;
            for part in parts {
                all &= may_match(part, facts, shifts, certain);
            }
            all
        }
        Expr::Or(parts) => {
            let mut any = false;
            for part in parts {
                any |= may_match(part, facts, shifts, &mut certain.clone());
            }
            any
        }
    }
}

fn test_may_match(test: &Test, facts: &FlowFacts) -> bool {
    match test {
        Test::Address { network, .. } => {
            let Some(addresses) = &facts.addresses else {
                return false;
            };
            addresses.iter().any(|address| within(network, *address))
        }
        Test::Named { networks, .. } => {
            let addresses = facts.addresses.as_ref();
            addresses.is_some_and(|two| two.iter().any(|address| networks.contains(*address)))
        }
        Test::Port { low, high, .. } => facts.ports.iter().any(|port| (low..=high).contains(&port)),
        Test::IpProto { number, .. } => {
            is_before_others(*number) || *number == u32::from(facts.protocol)
        }
        _ => true,
    }
}

/// Whether the protocol of a flow may follow this header.
pub(crate) fn is_before_others(number: u32) -> bool {
    matches!(number, 0 | 43 | 44 | 51 | 59 | 60 | 135 | 139 | 140)
}

fn within(network: &Network, address: IpAddr) -> bool {
    match (network, address) {
        (Network::V4 { address, mask }, IpAddr::V4(v4)) => {
            v4.to_bits() & mask.to_bits() == address.to_bits()
        }
        (Network::V6 { address, prefix }, IpAddr::V6(v6)) => {
            let mask = u128::MAX.unbounded_shl(128_u32.saturating_sub((*prefix).into()));
            v6.to_bits() & mask == address.to_bits()
        }
        _ => false,
    }
}

/// Whether the tests to its right look at other headers.
pub(crate) fn is_shift(test: &Test) -> bool {
    matches!(
        test,
        Test::Vlan(_) | Test::Mpls(_) | Test::PppoeSession(_) | Test::Geneve(_)
    )
}

/// The addresses of a test for some, if these are not too many.
fn addresses(test: &Test) -> Option<BTreeSet<IpAddr>> {
    match test {
        Test::Named { networks, .. } => {
            let all = networks.addresses(ADDRESSES_MAX)?;
            Some(all.into_iter().collect())
        }
        _ => single_address(test).map(|address| BTreeSet::from([address])),
    }
}

/// The address of a test for one.
pub(crate) fn single_address(test: &Test) -> Option<IpAddr> {
    let Test::Address { network, .. } = test else {
        return None;
    };
    match network {
        Network::V4 { address, mask } if mask.is_broadcast() => Some((*address).into()),
        Network::V6 {
            address,
            prefix: 128,
        } => Some((*address).into()),
        Network::V4 { .. } | Network::V6 { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::Filter;

    /// Addresses with blanks between, sets with commas.
    fn bound(expression: &str) -> String {
        let filter = Filter::parse(expression).unwrap();
        let sets = filter.host_bounds().into_iter().map(|set| {
            let texts: Vec<String> = set.iter().map(ToString::to_string).collect();
            texts.join(" ")
        });
        sets.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn says_which_addresses_a_match_has() {
        assert_eq!(bound(""), "");
        assert_eq!(bound("host 192.0.2.1"), "192.0.2.1");
        assert_eq!(bound("tcp port 80 and src host 192.0.2.1"), "192.0.2.1");
        assert_eq!(bound("host 192.0.2.1 or ::1"), "192.0.2.1 ::1");
        assert_eq!(bound("host 192.0.2.1 or tcp"), "");
        assert_eq!(bound("not host 192.0.2.1"), "");
        assert_eq!(bound("net 192.0.2.0/24"), "");
        assert_eq!(
            bound("(host 192.0.2.1 or host 192.0.2.2) and host 192.0.2.3 and tcp"),
            "192.0.2.1 192.0.2.2, 192.0.2.3"
        );
    }

    #[test]
    fn says_which_flows_may_match() {
        let facts = super::FlowFacts {
            addresses: Some(["192.0.2.1".parse().unwrap(), "192.0.2.9".parse().unwrap()]),
            ports: [5_000, 22],
            protocol: 6,
        };
        let may = |expression: &str| Filter::parse(expression).unwrap().may_match(&facts);
        for expression in [
            "host 192.0.2.1 and port 22",
            "net 192.0.2.0/24",
            "tcp",
            "not tcp",
            "udp or port 22",
            "vlan and host 192.0.2.9",
            "less 100",
            "(vlan or tcp) and host 10.0.0.1",
        ] {
            assert!(may(expression), "{expression}");
        }
        for expression in [
            "host 10.0.0.1",
            "port 23",
            "udp",
            "tcp and portrange 6000-7000",
            "net 10.0.0.0/8 or udp",
            "ip6 host ::1",
        ] {
            assert!(!may(expression), "{expression}");
        }
    }

    #[test]
    fn knows_when_the_headers_are_not_where_the_filter_looks() {
        assert_eq!(bound("vlan and host 192.0.2.1"), "192.0.2.1");
        assert_eq!(bound("host 192.0.2.1 and vlan"), "192.0.2.1");
        assert_eq!(bound("not vlan and host 192.0.2.1"), "");
        assert_eq!(bound("(vlan or tcp) and host 192.0.2.1"), "");
        assert_eq!(bound("(vlan and host 192.0.2.1) or host 192.0.2.2"), "");
        assert_eq!(
            bound("host 192.0.2.2 or (vlan and host 192.0.2.1)"),
            "192.0.2.1 192.0.2.2"
        );
        assert_eq!(bound("(vlan 5 and (mpls or tcp)) and host 192.0.2.1"), "");
        assert_eq!(
            bound("not (host 192.0.2.1 and vlan) and host 192.0.2.2"),
            ""
        );
    }
}
