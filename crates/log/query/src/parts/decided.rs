//! Whether a filter is decided for all packets of a flow by what is known of the flow.

use std::net::IpAddr;

use strata_filter::{
    AddressScope, Direction, Expr, FlowFacts, IpVersion, Network, Test, Transport,
};

/// Whether all packets of a flow match, or none does; `None` if only the packets tell. The facts hold for each
/// packet, as for [`strata_filter::Filter::may_match`], and are those of the headers that the filter looks at: no
/// packet has a tag, is in a tunnel, or is a later fragment, in which no filter sees ports.
pub(crate) fn decided(expr: &Expr, facts: &FlowFacts) -> Option<bool> {
    if shifts(expr) {
        return None;
    }
    of(expr, facts)
}

/// Whether a test makes those to its right look elsewhere.
fn shifts(expr: &Expr) -> bool {
    match expr {
        Expr::Any => false,
        Expr::Test(test) => matches!(
            test,
            Test::Vlan(_) | Test::Mpls(_) | Test::PppoeSession(_) | Test::Geneve(_)
        ),
        Expr::Not(inner) => shifts(inner),
        Expr::And(parts) | Expr::Or(parts) => parts.iter().any(shifts),
    }
}

fn of(expr: &Expr, facts: &FlowFacts) -> Option<bool> {
    match expr {
        Expr::Any => Some(true),
        Expr::Test(test) => of_test(test, facts),
        Expr::Not(inner) => of(inner, facts).map(|is| !is),
        Expr::And(parts) => together(parts, facts, false),
        Expr::Or(parts) => together(parts, facts, true),
    }
}

/// `strong` if one part is; else what all are, if that is known.
fn together(parts: &[Expr], facts: &FlowFacts, strong: bool) -> Option<bool> {
    let decided = parts.iter().map(|part| of(part, facts));
    let decided: Vec<Option<bool>> = decided.collect();
    if decided.contains(&Some(strong)) {
        return Some(strong);
    }
    decided.iter().all(Option::is_some).then_some(!strong)
}

fn of_test(test: &Test, facts: &FlowFacts) -> Option<bool> {
    match test {
        Test::Address {
            scope: None | Some(AddressScope::Ip | AddressScope::Ip6),
            direction,
            network,
        } => {
            let addresses = facts.addresses.as_ref()?;
            either(
                *direction,
                addresses.map(|address| within(network, address)),
            )
        }
        Test::Named {
            direction,
            networks,
            ..
        } => {
            let addresses = facts.addresses.as_ref()?;
            either(
                *direction,
                addresses.map(|address| networks.contains(address)),
            )
        }
        Test::Port {
            transport,
            direction,
            low,
            high,
        } => {
            let wanted: &[u8] = match transport {
                None => &[6, 17, 132],
                Some(Transport::Tcp) => &[6],
                Some(Transport::Udp) => &[17],
                Some(Transport::Sctp) => &[132],
            };
            if facts.addresses.is_none() || !wanted.contains(&facts.protocol) {
                return Some(false);
            }
            either(
                *direction,
                facts.ports.map(|port| (*low..=*high).contains(&port)),
            )
        }
        Test::IpProto { version, number } => {
            let Some([address, _]) = facts.addresses else {
                return Some(false);
            };
            let is_version = match version {
                IpVersion::Any => true,
                IpVersion::V4 => address.is_ipv4(),
                IpVersion::V6 => address.is_ipv6(),
            };
            match *number {
                // Headers before the one that is known.
                0 | 43 | 44 | 51 | 59 | 60 | 135 | 139 | 140 => None,
                number => Some(is_version && number == u32::from(facts.protocol)),
            }
        }
        _ => None,
    }
}

/// Whether a test of source, destination or either holds, of which it is known for both ends which
/// packets go either way.
fn either(direction: Direction, [one, other]: [bool; 2]) -> Option<bool> {
    match (direction, one, other) {
        (_, false, false) => Some(false),
        (_, true, true) => Some(true),
        (Direction::Either, ..) => Some(true),
        (Direction::Both, ..) => Some(false),
        (Direction::Source | Direction::Destination, ..) => None,
    }
}

fn within(network: &Network, address: IpAddr) -> bool {
    match (network, address) {
        (Network::V4 { address, mask }, IpAddr::V4(v4)) => {
            v4.to_bits() & mask.to_bits() == address.to_bits()
        }
        (Network::V6 { address, prefix }, IpAddr::V6(v6)) => {
            let mask = u128::MAX.unbounded_shl(128 - u32::from(*prefix));
            v6.to_bits() & mask == address.to_bits()
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use strata_filter::Filter;

    use super::*;

    #[test]
    fn what_a_flow_decides() {
        let facts = FlowFacts {
            addresses: Some(["192.0.2.1".parse().unwrap(), "192.0.2.9".parse().unwrap()]),
            ports: [5_000, 22],
            protocol: 6,
        };
        let is = |text: &str| decided(Filter::parse(text).unwrap().ast(), &facts);
        for text in [
            "",
            "tcp",
            "host 192.0.2.1",
            "net 192.0.2.0/24",
            "src net 192.0.2.0/24",
            "port 22 and not udp",
            "tcp or greater 100",
        ] {
            assert_eq!(is(text), Some(true), "{text}");
        }
        for text in [
            "udp",
            "host 192.0.2.2",
            "port 80",
            "udp port 22",
            "not tcp",
            "ip6 host ::1",
        ] {
            assert_eq!(is(text), Some(false), "{text}");
        }
        for text in [
            "src host 192.0.2.1",
            "tcp[13] & 2 != 0",
            "less 100",
            "vlan and tcp",
        ] {
            assert_eq!(is(text), None, "{text}");
        }
        assert_eq!(is("tcp and host 192.0.2.1 and port 22"), Some(true));
        assert_eq!(is("host 192.0.2.1 and not port 443"), Some(true));
    }
}
