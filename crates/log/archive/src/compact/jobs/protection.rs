//! Which flows the policies of a recording protect.
//!
//! A policy is applied to the flow key (`rules`), and so it is here to a flow. What a row of
//! `flows` lacks is assumed to match: VLAN tag and interface, and the ports of fragments.

use strata_filter::Filter;
use strata_rules::{Field, PacketFields, Region, Span, regions};
use strata_wire::FlowKey;
use strata_wire::dissect::protocol;

/// Policies that protect packets.
#[derive(Debug, Default)]
pub(crate) struct Protection {
    regions: Vec<Region>,
}

impl Protection {
    /// The policies with these filters. A filter that cannot be understood may match anything.
    pub(crate) fn of(filters: &[String]) -> Self {
        let of = |text: &String| {
            let filter: Option<Filter> = text.parse().ok();
            let found = filter.and_then(|filter| regions(&filter).ok());
            found.unwrap_or_else(|| vec![Region::ALL])
        };
        let unknown = [Field::Vlan, Field::Interface];
        let regions = filters.iter().flat_map(of);
        Self {
            regions: regions.map(|region| without(region, &unknown)).collect(),
        }
    }

    /// Whether some packets of a flow may be protected, in either direction.
    pub(crate) fn may_cover(&self, key: &FlowKey) -> bool {
        if self.regions.is_empty() {
            return false;
        }
        let has_ports = matches!(key.protocol, protocol::TCP | protocol::UDP | protocol::SCTP);
        let is_fragment = has_ports && (key.low.port, key.high.port) == (0, 0);
        let ends = [(key.low, key.high), (key.high, key.low)];
        ends.iter().any(|(source, destination)| {
            let fields = PacketFields {
                source: source.address,
                destination: destination.address,
                source_port: source.port,
                destination_port: destination.port,
                vlan: 0,
                interface: 0,
                protocol: key.protocol,
                family: key.family,
            };
            self.regions.iter().any(|region| {
                let ports = [Field::SourcePort, Field::DestinationPort];
                let ports = if is_fragment { &ports[..] } else { &[] };
                without(*region, ports).contains(&fields)
            })
        })
    }
}

/// The region with any value in these fields.
fn without(region: Region, fields: &[Field]) -> Region {
    let all = |region: Region, field: &Field| region.with(*field, Span::all(*field));
    fields.iter().fold(region, all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_wire::{AddressFamily, Endpoint};

    fn flow(number: u8, ports: (u16, u16)) -> FlowKey {
        let end = |address: u32, port| Endpoint {
            address: address.into(),
            port,
        };
        let (low, high) = (end(0x0a00_0001, ports.0), end(0x0a00_0002, ports.1));
        FlowKey::new(AddressFamily::Ipv4, number, low, high).0
    }

    #[test]
    fn a_flow_is_protected_as_the_policy_says() {
        let covers =
            |filter: &str, key: &FlowKey| Protection::of(&[filter.to_owned()]).may_cover(key);
        let (web, dns) = (flow(6, (5_000, 443)), flow(17, (5_000, 53)));
        for filter in [
            "port 443",
            "not udp",
            "tcp and not port 80",
            "src host 10.0.0.2 and src port 443",
            "vlan 5",
            "not vlan 5 and tcp",
            "what is this",
        ] {
            assert!(covers(filter, &web), "{filter}");
        }
        for filter in [
            "not tcp",
            "not host 10.0.0.1",
            "not net 10.0.0.0/8",
            "src host 10.0.0.2 and src port 5000",
            "not (tcp port 443 or icmp)",
            "ip6",
        ] {
            assert!(!covers(filter, &web), "{filter}");
        }
        assert!(covers("not tcp", &dns) && !covers("tcp", &dns));
        assert!(!Protection::default().may_cover(&web));
        // The ports of a later fragment are not known.
        assert!(covers("udp port 53", &flow(17, (0, 0))));
        assert!(!covers("tcp port 53", &flow(17, (0, 0))));
    }
}
