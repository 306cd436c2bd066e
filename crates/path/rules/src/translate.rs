//! From a filter expression to regions.
//!
//! A policy tests the packet's flow as Strata finds it: the addresses, ports and protocol of the
//! flow key. So unlike a capture filter it looks through VLAN tags, MPLS, PPPoE and tunnels,
//! through IPv6 extension headers, and knows the ports of later fragments. `vlan` tests the
//! outermost tag, wherever it appears in the expression. An address is one of an IP header, not of
//! an ARP message. On packets without any of these the two agree.

use strata_filter::{AddressScope, Direction, Expr, Filter, IpVersion, Network, Test, Transport};
use strata_wire::dissect::protocol;
use strata_wire::ethernet::ethertype;

use crate::packet::{Field, UNTAGGED};
use crate::region::{Region, Span};

/// A policy that takes more regions is refused.
pub const REGIONS_MAX: usize = 4096;
/// A policy that takes more rules of prefixes is refused.
pub const PREFIX_RULES_MAX: usize = 1 << 16;

/// IP of either version: the families 4 and 6.
const IP: Span = Span { low: 4, high: 7 };

/// Why an expression cannot be turned into rules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TranslateError {
    /// A test that rules cannot make.
    #[error("'{test}' cannot be part of a policy: {reason}")]
    Test {
        /// The test.
        test: String,
        /// Why.
        reason: &'static str,
    },
    /// It takes too many rules.
    #[error(
        "the policy would take more than {most} rules: write several policies, or \
         fewer 'or' inside 'and'"
    )]
    TooMany {
        /// The maximum accepted.
        most: usize,
    },
    /// No packet can match.
    #[error("no packet can match '{expression}'")]
    Empty {
        /// The expression.
        expression: String,
    },
}

/// The packets that match a filter, as regions, none of which contains another.
///
/// # Errors
///
/// If it tests something that rules cannot, takes too many, or matches nothing.
pub fn regions(filter: &Filter) -> Result<Vec<Region>, TranslateError> {
    let mut regions = minimal(translate(filter.ast(), false)?);
    let prefix_rules: usize = regions.iter().map(Region::prefix_rules).sum();
    if prefix_rules > PREFIX_RULES_MAX {
        return Err(TranslateError::TooMany {
            most: PREFIX_RULES_MAX,
        });
    }
    if regions.is_empty() {
        return Err(TranslateError::Empty {
            expression: filter.to_string(),
        });
    }
    regions.shrink_to_fit();
    Ok(regions)
}

/// The regions of an expression, or of its negation. Negation is pushed inwards, down to single
/// tests.
fn translate(expr: &Expr, negated: bool) -> Result<Vec<Region>, TranslateError> {
    match (expr, negated) {
        (Expr::Any, false) => Ok(vec![Region::ALL]),
        (Expr::Any, true) => Ok(Vec::new()),
        (Expr::Not(inner), _) => translate(inner, !negated),
        (Expr::And(parts), false) | (Expr::Or(parts), true) => {
            let mut all = vec![Region::ALL];
            for part in parts {
                all = both(&all, &translate(part, negated)?)?;
            }
            Ok(all)
        }
        (Expr::Or(parts), false) | (Expr::And(parts), true) => {
            let mut any = Vec::new();
            for part in parts {
                any.append(&mut translate(part, negated)?);
                bounded(&any)?;
            }
            Ok(any)
        }
        (Expr::Test(test), false) => of_test(test),
        (Expr::Test(test), true) => {
            let mut none = vec![Region::ALL];
            for region in of_test(test)? {
                none = both(&none, &region.complement())?;
            }
            Ok(none)
        }
    }
}

fn bounded(regions: &[Region]) -> Result<(), TranslateError> {
    if regions.len() > REGIONS_MAX {
        return Err(TranslateError::TooMany { most: REGIONS_MAX });
    }
    Ok(())
}

fn both(left: &[Region], right: &[Region]) -> Result<Vec<Region>, TranslateError> {
    let mut regions = Vec::new();
    for one in left {
        regions.extend(right.iter().filter_map(|other| one.intersect(other)));
        bounded(&regions)?;
    }
    Ok(minimal(regions))
}

/// Removes regions that are inside another.
fn minimal(regions: Vec<Region>) -> Vec<Region> {
    let mut kept: Vec<Region> = Vec::with_capacity(regions.len());
    for region in regions {
        if kept.iter().any(|other| other.covers(&region)) {
            continue;
        }
        kept.retain(|other| !region.covers(other));
        kept.push(region);
    }
    kept
}

fn of_test(test: &Test) -> Result<Vec<Region>, TranslateError> {
    supported(test).map_err(|reason| TranslateError::Test {
        test: Filter::from(Expr::Test(test.clone())).to_string(),
        reason,
    })
}

fn one(field: Field, value: u128) -> Region {
    Region::ALL.with(field, Span::one(value))
}

fn ip(version: u128) -> Region {
    one(Field::Family, version)
}

/// The regions of a test, or why policies cannot make it.
fn supported(test: &Test) -> Result<Vec<Region>, &'static str> {
    Ok(match test {
        Test::Address {
            scope: Some(AddressScope::Arp | AddressScope::Rarp),
            ..
        } => return Err("policies cannot test the IP addresses of ARP; write 'arp' alone"),
        Test::Address {
            direction, network, ..
        } => of_address(*direction, network)?,
        Test::Port {
            transport,
            direction,
            low,
            high,
        } => of_ports(
            *transport,
            *direction,
            Span::new((*low).into(), (*high).into()),
        ),
        Test::EtherProto(number) => of_ethertype(*number)?,
        Test::IpProto { version, number } => of_protocol(*version, *number),
        Test::IpBroadcast => [0, u32::MAX]
            .map(|address| ip(4).with(Field::Destination, Span::one(address.into())))
            .to_vec(),
        Test::IpMulticast => {
            let groups = Span::new(0xe000_0000, u32::MAX.into());
            vec![ip(4).with(Field::Destination, groups)]
        }
        Test::Ip6Multicast => {
            let groups = Span::new(0xff << 120, u128::MAX);
            vec![ip(6).with(Field::Destination, groups)]
        }
        Test::Vlan(None) => {
            const TAGGED_MAX: u16 = UNTAGGED - 1;
            vec![Region::ALL.with(Field::Vlan, Span::new(0, TAGGED_MAX.into()))]
        }
        Test::Vlan(Some(id)) if *id < UNTAGGED.into() => vec![one(Field::Vlan, (*id).into())],
        Test::Vlan(Some(_)) => Vec::new(),
        Test::IfIndex(_) | Test::Inbound | Test::Outbound => {
            return Err("name the interface with --interface instead");
        }
        Test::Named { .. } => return Err("policies cannot use names of networks: write 'net'"),
        Test::Mac { .. } | Test::EtherBroadcast | Test::EtherMulticast => {
            return Err("policies do not test MAC addresses");
        }
        Test::ProtoChain { .. } => {
            return Err("policies look through extension headers already; write 'proto'");
        }
        Test::Mpls(_) | Test::PppoeSession(_) | Test::PppoeDiscovery | Test::Geneve(_) => {
            return Err(ENCAPSULATION);
        }
        Test::IsoProto(_) | Test::IsIsProto(_) | Test::Llc(_) => return Err(IEEE_802_2),
        Test::WlanType(_) | Test::WlanSubtype(_) | Test::WlanDirection(_) => {
            return Err("policies do not look into 802.11 frames");
        }
        Test::Compare { .. } => {
            return Err(
                "policies test addresses, ports, protocols and VLANs, not bytes or lengths; \
                 a capture filter can",
            );
        }
    })
}

const ENCAPSULATION: &str = "policies look through this encapsulation";
const IEEE_802_2: &str = "policies do not look into IEEE 802.2 frames";

fn of_address(direction: Direction, network: &Network) -> Result<Vec<Region>, &'static str> {
    let (family, span) = match network {
        Network::V4 { address, mask } => {
            let (low, hosts) = (u32::from(*address), !u32::from(*mask));
            if hosts.wrapping_add(1) & hosts != 0 {
                return Err("its mask is not a prefix");
            }
            (4, Span::new(low.into(), (low | hosts).into()))
        }
        Network::V6 { address, prefix } => {
            let hosts = u128::MAX.unbounded_shr(u32::from(*prefix));
            let low = u128::from(*address);
            (6, Span::new(low, low | hosts))
        }
    };
    // All addresses of a family are no test of the address, only of the family.
    let span = if span == Span::new(0, u32::MAX.into()) && family == 4 {
        Span::all(Field::Source)
    } else {
        span
    };
    let (source, destination) = (Field::Source, Field::Destination);
    Ok(directed(&ip(family), direction, source, destination, span))
}

fn of_ports(transport: Option<Transport>, direction: Direction, span: Span) -> Vec<Region> {
    let transports = match transport {
        None => vec![protocol::TCP, protocol::UDP, protocol::SCTP],
        Some(Transport::Tcp) => vec![protocol::TCP],
        Some(Transport::Udp) => vec![protocol::UDP],
        Some(Transport::Sctp) => vec![protocol::SCTP],
    };
    let of_transport = |number: u8| {
        let base = one(Field::Protocol, number.into()).with(Field::Family, IP);
        let (source, destination) = (Field::SourcePort, Field::DestinationPort);
        directed(&base, direction, source, destination, span)
    };
    transports.into_iter().flat_map(of_transport).collect()
}

/// Frames without an IP packet have their `EtherType` as ports.
fn of_ethertype(number: u32) -> Result<Vec<Region>, &'static str> {
    match u16::try_from(number) {
        Ok(ethertype::IPV4) => Ok(vec![ip(4)]),
        Ok(ethertype::IPV6) => Ok(vec![ip(6)]),
        Ok(kind) if is_transparent(kind) => Err(ENCAPSULATION),
        Ok(kind) if number > u32::from(strata_wire::ethernet::LENGTH_MAX) => {
            let kind = Span::one(kind.into());
            let both = Region::ALL
                .with(Field::SourcePort, kind)
                .with(Field::DestinationPort, kind);
            Ok(vec![both.with(Field::Family, Span::one(0))])
        }
        _ => Err(IEEE_802_2),
    }
}

fn of_protocol(version: IpVersion, number: u32) -> Vec<Region> {
    let Ok(number) = u8::try_from(number) else {
        return Vec::new();
    };
    let family = match version {
        IpVersion::Any => IP,
        IpVersion::V4 => Span::one(4),
        IpVersion::V6 => Span::one(6),
    };
    vec![one(Field::Protocol, number.into()).with(Field::Family, family)]
}

fn is_transparent(kind: u16) -> bool {
    let tunnels = [
        ethertype::VLAN,
        ethertype::SERVICE_VLAN,
        ethertype::MPLS,
        ethertype::MPLS_MULTICAST,
        ethertype::PPPOE_SESSION,
        ethertype::TEB,
    ];
    tunnels.contains(&kind) || ethertype::QINQ_OLD.contains(&kind)
}

fn directed(
    base: &Region,
    direction: Direction,
    source: Field,
    destination: Field,
    span: Span,
) -> Vec<Region> {
    match direction {
        Direction::Source => vec![base.with(source, span)],
        Direction::Destination => vec![base.with(destination, span)],
        Direction::Both => vec![base.with(source, span).with(destination, span)],
        Direction::Either => vec![base.with(source, span), base.with(destination, span)],
    }
}
