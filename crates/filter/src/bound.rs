//! Which addresses a matching packet must have.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::ast::{Expr, Network, Test};

/// Larger sets are not worth asking an index for.
const ADDRESSES_MAX: usize = 1024;

/// See [`crate::Filter::host_bound`].
pub(crate) fn host_bound(expr: &Expr) -> Option<Vec<IpAddr>> {
    let mut shifts = 0;
    let bound = bound(expr, &mut shifts, &mut 0)?;
    Some(bound.into_iter().collect())
}

/// `shifts` counts the encapsulations to the left, `certain` those that the packet is known
/// to have where this is reached. Only if these are equal do the following tests look at real
/// headers: `not vlan and host 192.0.2.1` compares bytes of something else.
fn bound(expr: &Expr, shifts: &mut usize, certain: &mut usize) -> Option<BTreeSet<IpAddr>> {
    match expr {
        Expr::Any => None,
        Expr::Test(test) => {
            if is_shift(test) {
                *shifts += 1;
                *certain += 1;
                return None;
            }
            let address = single_address(test)?;
            (shifts == certain).then(|| BTreeSet::from([address]))
        }
        Expr::Not(inner) => {
            bound(inner, shifts, &mut certain.clone());
            None
        }
        Expr::And(parts) => {
            let mut smallest: Option<BTreeSet<IpAddr>> = None;
            for part in parts {
                let Some(found) = bound(part, shifts, certain) else {
                    continue;
                };
                if smallest
                    .as_ref()
                    .is_none_or(|known| found.len() < known.len())
                {
                    smallest = Some(found);
                }
            }
            smallest
        }
        Expr::Or(parts) => {
            let mut union = Some(BTreeSet::new());
            for part in parts {
                let found = bound(part, shifts, &mut certain.clone());
                union = match (union, found) {
                    (Some(mut union), Some(found)) => {
                        union.extend(found);
                        (union.len() <= ADDRESSES_MAX).then_some(union)
                    }
                    _ => None,
                };
            }
            union
        }
    }
}

fn is_shift(test: &Test) -> bool {
    matches!(
        test,
        Test::Vlan(_) | Test::Mpls(_) | Test::PppoeSession(_) | Test::Geneve(_)
    )
}

fn single_address(test: &Test) -> Option<IpAddr> {
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

    fn bound(expression: &str) -> Option<Vec<String>> {
        let filter = Filter::parse(expression).unwrap();
        filter
            .host_bound()
            .map(|set| set.iter().map(ToString::to_string).collect())
    }

    fn some(addresses: &[&str]) -> Option<Vec<String>> {
        Some(
            addresses
                .iter()
                .map(|address| (*address).to_owned())
                .collect(),
        )
    }

    #[test]
    fn says_which_addresses_a_match_has() {
        assert_eq!(bound(""), None);
        assert_eq!(bound("host 192.0.2.1"), some(&["192.0.2.1"]));
        assert_eq!(
            bound("tcp port 80 and src host 192.0.2.1"),
            some(&["192.0.2.1"])
        );
        assert_eq!(bound("host 192.0.2.1 or ::1"), some(&["192.0.2.1", "::1"]));
        assert_eq!(bound("host 192.0.2.1 or tcp"), None);
        assert_eq!(bound("not host 192.0.2.1"), None);
        assert_eq!(bound("net 192.0.2.0/24"), None);
        assert_eq!(
            bound("(host 192.0.2.1 or host 192.0.2.2) and host 192.0.2.3"),
            some(&["192.0.2.3"])
        );
    }

    #[test]
    fn knows_when_the_headers_are_not_where_the_filter_looks() {
        assert_eq!(bound("vlan and host 192.0.2.1"), some(&["192.0.2.1"]));
        assert_eq!(bound("host 192.0.2.1 and vlan"), some(&["192.0.2.1"]));
        assert_eq!(bound("not vlan and host 192.0.2.1"), None);
        assert_eq!(bound("(vlan or tcp) and host 192.0.2.1"), None);
        assert_eq!(bound("(vlan and host 192.0.2.1) or host 192.0.2.2"), None);
        assert_eq!(bound("host 192.0.2.2 or (vlan and host 192.0.2.1)"), {
            some(&["192.0.2.1", "192.0.2.2"])
        });
        assert_eq!(bound("(vlan 5 and (mpls or tcp)) and host 192.0.2.1"), None);
        assert_eq!(
            bound("not (host 192.0.2.1 and vlan) and host 192.0.2.2"),
            None
        );
    }
}
