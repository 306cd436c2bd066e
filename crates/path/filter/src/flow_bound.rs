//! Which flows a matching packet can belong to, if a filter names both ends.

use std::collections::BTreeSet;
use std::net::IpAddr;

use strata_wire::dissect::protocol;

use crate::ast::{Direction, Expr, Test, Transport};
use crate::bound::{FlowFacts, is_before_others, is_shift, single_address};

/// More flows are not worth an index lookup.
const FLOWS_MAX: usize = 64;

/// See [`crate::Filter::flow_bound`].
pub(crate) fn flow_bound(expr: &Expr) -> Option<Vec<FlowFacts>> {
    if has_shift(expr) {
        // The tested headers may be inside others.
        return None;
    }
    of(expr)
}

fn has_shift(expr: &Expr) -> bool {
    match expr {
        Expr::Any => false,
        Expr::Test(test) => is_shift(test),
        Expr::Not(inner) => has_shift(inner),
        Expr::And(parts) | Expr::Or(parts) => parts.iter().any(has_shift),
    }
}

fn of(expr: &Expr) -> Option<Vec<FlowFacts>> {
    match expr {
        Expr::Any | Expr::Not(_) | Expr::Test(_) => None,
        Expr::Or(parts) => {
            let mut all = Vec::new();
            for part in parts {
                all.extend(of(part)?);
            }
            (all.len() <= FLOWS_MAX).then_some(all)
        }
        Expr::And(parts) => of_all(expr).or_else(|| parts.iter().find_map(of)),
    }
}

/// The flows between the ends that a conjunction names.
fn of_all(expr: &Expr) -> Option<Vec<FlowFacts>> {
    let mut addresses = Vec::new();
    clauses(expr, &address, &mut addresses);
    let mut ports = Vec::new();
    clauses(expr, &port, &mut ports);
    let mut protocols = Vec::new();
    clauses(expr, &protocol_number, &mut protocols);
    let protocols = protocols
        .into_iter()
        .min_by_key(|clause| clause.values.len())?;
    let (addresses, ports) = (pairs(&addresses)?, pairs(&ports)?);
    let mut flows = Vec::new();
    for &(a, b) in &addresses {
        if a.is_ipv4() != b.is_ipv4() {
            continue;
        }
        for &(p, q) in &ports {
            for &protocol in &protocols.values {
                if flows.len().saturating_add(2) > FLOWS_MAX {
                    return None;
                }
                flows.extend([[p, q], [q, p]].map(|ports| FlowFacts {
                    addresses: Some([a, b]),
                    ports,
                    protocol,
                }));
            }
        }
    }
    Some(flows)
}

/// Alternatives, one of which every matching packet has.
struct Clause<T> {
    direction: Direction,
    values: BTreeSet<T>,
}

/// Collects what every matching packet has.
fn clauses<T: Ord + Clone>(
    expr: &Expr,
    leaf: &impl Fn(&Test) -> Option<Clause<T>>,
    out: &mut Vec<Clause<T>>,
) {
    match expr {
        Expr::Any | Expr::Not(_) => {}
        Expr::Test(test) => out.extend(leaf(test)),
        Expr::And(parts) => {
            for part in parts {
                clauses(part, leaf, out);
            }
        }
        Expr::Or(parts) => {
            let mut union = Clause {
                direction: Direction::Either,
                values: BTreeSet::new(),
            };
            for part in parts {
                let mut of_part = Vec::new();
                clauses(part, leaf, &mut of_part);
                let smallest = of_part.into_iter().min_by_key(|clause| clause.values.len());
                let Some(smallest) = smallest else {
                    return;
                };
                union.values.extend(smallest.values);
            }
            out.push(union);
        }
    }
}

/// The pairs of which one must be at the ends of a packet, if two clauses can only mean different
/// ends.
fn pairs<T: Ord + Copy>(clauses: &[Clause<T>]) -> Option<Vec<(T, T)>> {
    let mut best: Option<(&Clause<T>, &Clause<T>)> = None;
    for (at, one) in clauses.iter().enumerate() {
        for other in clauses.iter().skip(at.saturating_add(1)) {
            let opposite = matches!(
                (one.direction, other.direction),
                (Direction::Source, Direction::Destination)
                    | (Direction::Destination, Direction::Source)
            );
            let size =
                |(a, b): (&Clause<T>, &Clause<T>)| a.values.len().saturating_mul(b.values.len());
            if (opposite || one.values.is_disjoint(&other.values))
                && best.is_none_or(|best| size((one, other)) < size(best))
            {
                best = Some((one, other));
            }
        }
    }
    let (one, other) = best?;
    let pair = |a: &T| other.values.iter().map(|b| (*a, *b)).collect::<Vec<_>>();
    Some(one.values.iter().flat_map(pair).collect())
}

fn address(test: &Test) -> Option<Clause<IpAddr>> {
    let Test::Address { direction, .. } = test else {
        return None;
    };
    Some(Clause {
        direction: *direction,
        values: BTreeSet::from([single_address(test)?]),
    })
}

fn port(test: &Test) -> Option<Clause<u16>> {
    match test {
        Test::Port {
            direction,
            low,
            high,
            ..
        } if low == high => Some(Clause {
            direction: *direction,
            values: BTreeSet::from([*low]),
        }),
        _ => None,
    }
}

fn protocol_number(test: &Test) -> Option<Clause<u8>> {
    let numbers = match test {
        Test::Port { transport, .. } => match transport {
            None => vec![protocol::TCP, protocol::UDP, protocol::SCTP],
            Some(Transport::Tcp) => vec![protocol::TCP],
            Some(Transport::Udp) => vec![protocol::UDP],
            Some(Transport::Sctp) => vec![protocol::SCTP],
        },
        Test::IpProto { number, .. } if !is_before_others(*number) => {
            vec![u8::try_from(*number).ok()?]
        }
        _ => return None,
    };
    Some(Clause {
        direction: Direction::Either,
        values: numbers.into_iter().collect(),
    })
}

#[cfg(test)]
mod tests {
    use crate::Filter;
    use proptest::prelude::*;
    use strata_wire::LinkType;

    fn bound(expression: &str) -> Option<usize> {
        let filter = Filter::parse(expression).unwrap();
        filter.flow_bound().map(|flows| flows.len())
    }

    #[test]
    fn says_which_flows_a_match_belongs_to() {
        let exact = "tcp and host 10.0.0.1 and host 10.0.0.2 and port 80 and port 5000";
        assert_eq!(bound(exact), Some(2));
        assert_eq!(
            bound("host 10.0.0.1 and host 10.0.0.2 and port 80 and port 5000"),
            Some(6)
        );
        let directed = "udp src port 53 and udp dst port 53 and src host ::1 and dst host ::1";
        assert_eq!(bound(directed), Some(2));
        assert_eq!(bound(&format!("({exact}) or ({directed})")), Some(4));
        assert_eq!(bound(&format!("({exact}) and less 100")), Some(2));
        for open in [
            "",
            "tcp",
            "host 10.0.0.1 and port 80 and port 5000",
            "host 10.0.0.1 and host 10.0.0.2 and port 80",
            "host 10.0.0.1 and host 10.0.0.1 and port 80 and port 5000",
            "host 10.0.0.1 and net 10.0.0.0/24 and port 80 and port 5000",
            "vlan and tcp and host 10.0.0.1 and host 10.0.0.2 and port 80 and port 5000",
            "tcp or (udp and host 10.0.0.1 and host 10.0.0.2 and port 80 and port 5000)",
        ] {
            assert_eq!(bound(open), None, "{open}");
        }
    }

    fn test() -> impl Strategy<Value = String> {
        let direction = prop::sample::select(vec!["", "src ", "dst ", "src and dst "]);
        prop_oneof![
            (direction.clone(), 1..4).prop_map(|(d, n)| format!("{d}host 10.0.0.{n}")),
            (direction, 1..4).prop_map(|(d, n)| format!("{d}port {n}")),
            prop::sample::select(vec!["tcp", "udp", "ip"]).prop_map(str::to_owned),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        /// Every matching packet belongs to a flow of the bound.
        #[test]
        fn the_bound_holds(
            tests in prop::collection::vec((test(), prop::sample::select(vec!["and", "and", "and", "or"]), any::<bool>()), 4..9),
            ends in [(1_u8..4, 1_u16..4), (1_u8..4, 1_u16..4)], number in prop::sample::select(vec![6_u8, 17]),
        ) {
            let mut text = String::new();
            for (at, (test, operator, not)) in tests.iter().enumerate() {
                let not = if *not && at % 3 == 2 { "not " } else { "" };
                if at > 0 {
                    text = format!("({text}) {operator} ");
                }
                text += &format!("{not}({test})");
            }
            let filter = Filter::parse(&text).unwrap();
            let Some(flows) = filter.flow_bound() else { return Ok(()) };
            let mut packet = [0_u8; 40];
            packet[..4].copy_from_slice(&[0x45, 0, 0, 40]);
            packet[9] = number;
            let address = |n: u8| [10, 0, 0, n];
            packet[12..16].copy_from_slice(&address(ends[0].0));
            packet[16..20].copy_from_slice(&address(ends[1].0));
            packet[20..22].copy_from_slice(&ends[0].1.to_be_bytes());
            packet[22..24].copy_from_slice(&ends[1].1.to_be_bytes());
            if filter.compile(LinkType::RAW).unwrap().matches(&packet, 40) {
                let is = |flow: &super::FlowFacts| {
                    let [a, b] = flow.addresses.unwrap();
                    let flow_ends = [(a, flow.ports[0]), (b, flow.ports[1])];
                    let have = ends.map(|(n, port)| (address(n).into(), port));
                    flow.protocol == number
                        && (flow_ends == have || flow_ends == [have[1], have[0]])
                };
                prop_assert!(flows.iter().any(is), "{}", text);
            }
        }
    }
}
