//! A flow in a URL: `6_10.0.0.1_51234_10.0.0.2_443`, and a filter for it.

use std::net::IpAddr;

use strata_wire::{AddressFamily, Endpoint, FlowKey, ip_addr};

/// A flow as it stands in a URL's path.
pub fn id(key: &FlowKey) -> String {
    let protocol = match key.family {
        AddressFamily::Mac => String::from("e"),
        AddressFamily::Ipv4 | AddressFamily::Ipv6 => key.protocol.to_string(),
    };
    let [low, high] = [key.low, key.high].map(|end| address(key.family, end.address));
    format!("{protocol}_{low}_{}_{high}_{}", key.low.port, key.high.port)
}

/// The flow of an ID; `None` if it is invalid.
pub fn parse(id: &str) -> Option<FlowKey> {
    let parts: Vec<&str> = id.split('_').collect();
    let [protocol, low, low_port, high, high_port] = parts[..] else {
        return None;
    };
    let (family, low) = address_of(low)?;
    let (same, high) = address_of(high)?;
    let number = match protocol {
        "e" => 0,
        number => number.parse().ok()?,
    };
    if family != same || (family == AddressFamily::Mac) != (protocol == "e") {
        return None;
    }
    let end = |address, port: &str| {
        let port = port.parse().ok()?;
        Some(Endpoint { address, port })
    };
    let (low, high) = (end(low, low_port)?, end(high, high_port)?);
    let (key, is_ordered) = FlowKey::new(family, number, low, high);
    is_ordered.then_some(key)
}

/// An address as people write it.
pub(crate) fn address(family: AddressFamily, address: u128) -> String {
    match ip_addr(family, address) {
        Some(ip) => ip.to_string(),
        None => {
            let bytes = address.to_be_bytes();
            let parts = bytes[10..].iter().map(|byte| format!("{byte:02x}"));
            parts.collect::<Vec<_>>().join(":")
        }
    }
}

fn address_of(text: &str) -> Option<(AddressFamily, u128)> {
    match text.parse() {
        Ok(IpAddr::V4(v4)) => return Some((AddressFamily::Ipv4, v4.to_bits().into())),
        Ok(IpAddr::V6(v6)) => return Some((AddressFamily::Ipv6, v6.to_bits())),
        Err(_) => {}
    }
    let bytes: Option<Vec<u8>> = text
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).ok())
        .collect();
    let bytes = bytes.filter(|bytes| bytes.len() == 6)?;
    let number = bytes
        .iter()
        .fold(0, |sum, byte| sum << 8 | u128::from(*byte));
    Some((AddressFamily::Mac, number))
}

/// The protocol's name in filters and tables.
pub(crate) fn protocol(key: &FlowKey) -> String {
    match (key.family, key.protocol) {
        (AddressFamily::Mac, _) => String::from("ethernet"),
        (_, 1) => String::from("icmp"),
        (_, 6) => String::from("tcp"),
        (_, 17) => String::from("udp"),
        (_, 58) => String::from("icmp6"),
        (_, 132) => String::from("sctp"),
        (_, number) => number.to_string(),
    }
}

/// As [`filter`]; empty without one.
pub(crate) fn filter_text(key: &FlowKey) -> String {
    filter(key).as_deref().unwrap_or("").to_owned()
}

/// A filter for this flow, as of a policy, which goes by flow keys. Among the packets of a log, it does not match
/// those with tags, in tunnels, or later fragments, and it may match others. `None` where packets have no addresses.
pub fn filter(key: &FlowKey) -> Option<String> {
    if *key == FlowKey::NONE {
        return None;
    }
    let [low, high] = [key.low, key.high].map(|end| address(key.family, end.address));
    Some(match (key.family, key.protocol) {
        (AddressFamily::Mac, _) => format!("ether host {low} and ether host {high}"),
        (_, 6 | 17 | 132) => {
            let (protocol, from, to) = (protocol(key), key.low.port, key.high.port);
            format!("{protocol} and host {low} and host {high} and port {from} and port {to}")
        }
        (AddressFamily::Ipv4, number) => {
            format!("ip proto {number} and host {low} and host {high}")
        }
        (AddressFamily::Ipv6, number) => {
            format!("ip6 proto {number} and host {low} and host {high}")
        }
    })
}

/// Whether the filter of a flow matches few packets of other flows: not where packets of other protocols, each with a
/// flow of its own, may be inside.
pub(crate) fn is_told_by_filter(key: &FlowKey) -> bool {
    key.family != AddressFamily::Mac && matches!(key.protocol, 1 | 6 | 17 | 58 | 132)
}

#[cfg(test)]
mod tests {
    use strata_filter::Filter;

    use super::*;

    #[test]
    fn flows_read_as_they_are_written_and_nothing_else_is_one() {
        for text in [
            "6_10.0.0.1_443_10.0.0.2_51234",
            "17_::1_53_2001:db8::1_40000",
            "1_10.0.0.1_0_10.0.0.2_0",
            "e_00:1b:21:00:00:01_0_00:1b:21:00:00:02_0",
        ] {
            let key = parse(text).unwrap();
            assert_eq!(id(&key), text);
            let own = Filter::parse(&filter(&key).unwrap()).unwrap();
            // "Keep only headers" of this flow is a policy with its filter.
            let is_mac = text.starts_with('e');
            assert!(is_mac || strata_rules::regions(&own).is_ok(), "{text}");
        }
        for text in [
            "",
            "6",
            "6_10.0.0.2_1_10.0.0.1_2",
            "6_10.0.0.1_443_::1_1",
            "e_10.0.0.1_0_10.0.0.2_0",
            "999_10.0.0.1_1_10.0.0.2_1",
            "6_../../etc_1_10.0.0.2_1",
            "6_10.0.0.1_70000_10.0.0.2_1",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
