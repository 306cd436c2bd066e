//! Destinations as users write them: `HOST:PORT`, and rules after commas.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::ops::RangeInclusive;

use anyhow::{Context, Result, anyhow, bail};
use ipnet::IpNet;
use strata_gpv::export::{FlowRule, Prefix};
use strata_gpv_run::Target;
use strata_wire::AddressFamily;

/// Where vectors are sent, and which.
pub(super) fn target(text: &str) -> Result<Target> {
    let mut words = text.split(',');
    let name = words.next().unwrap_or(text);
    let mut rule = FlowRule::default();
    for word in words {
        let Some((what, value)) = word.split_once('=') else {
            bail!("'{word}' is not a rule: write one like dport=443 or src=10.0.0.0/8");
        };
        match what {
            "src" => rule.source = Some(prefix(value)?),
            "dst" => rule.destination = Some(prefix(value)?),
            "sport" => rule.source_ports = ports(value)?,
            "dport" => rule.destination_ports = ports(value)?,
            "proto" => rule.protocol = Some(protocol(value)?),
            _ => bail!("'{what}' is not a field of a rule: use src, dst, sport, dport or proto"),
        }
    }
    Ok(Target {
        name: text.to_owned(),
        address: address(name)?,
        rule,
    })
}

/// Lines of a file of targets that are at most there, with comments.
const LINES_MAX: usize = 1024;

/// The targets in a file: one a line, with an address in place of a name; what follows a # is a comment.
///
/// # Errors
///
/// With the line that is wrong.
pub(super) fn listed(text: &str) -> Result<Vec<Target>, String> {
    let mut targets: Vec<Target> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if number > LINES_MAX {
            return Err(format!("more than {LINES_MAX} lines"));
        }
        let line = without_comment(line);
        if line.is_empty() {
            continue;
        }
        let name = line.split(',').next().unwrap_or(line);
        if name.parse::<SocketAddr>().is_err() {
            return Err(format!(
                "line {number}: '{name}' is not ADDRESS:PORT; `strata gpv target add` replaces names by addresses"
            ));
        }
        let target = target(line).map_err(|error| format!("line {number}: {error}"))?;
        if targets.iter().any(|other| other.name == target.name) {
            return Err(format!("line {number}: {line} is listed twice"));
        }
        targets.push(target);
    }
    Ok(targets)
}

/// A line of a file of targets without its comment.
pub(super) fn without_comment(line: &str) -> &str {
    line.split('#').next().unwrap_or(line).trim()
}

/// The line of a target: with the address that its name has now.
pub(super) fn line_of(target: &Target) -> String {
    let given = &target.name;
    let (name, rules) = match given.split_once(',') {
        Some((name, rules)) => (name, format!(",{rules}")),
        None => (given.as_str(), String::new()),
    };
    let address = target.address.to_string();
    match name == address {
        true => format!("{address}{rules}"),
        false => format!("{address}{rules}  # {name}"),
    }
}

/// The address of `HOST:PORT`.
pub(super) fn address(text: &str) -> Result<SocketAddr> {
    let mut found = text
        .to_socket_addrs()
        .map_err(|error| anyhow!("'{text}' is not HOST:PORT: {error}"))?;
    found
        .next()
        .with_context(|| format!("'{text}' has no address"))
}

fn prefix(text: &str) -> Result<Prefix> {
    let net: IpNet = match text.parse() {
        Ok(net) => net,
        Err(_) => text
            .parse::<IpAddr>()
            .map(IpNet::from)
            .map_err(|_| anyhow!("'{text}' is not a network such as 10.0.0.0/8"))?,
    };
    let (family, address) = match net.addr() {
        IpAddr::V4(v4) => (AddressFamily::Ipv4, u128::from(v4.to_bits())),
        IpAddr::V6(v6) => (AddressFamily::Ipv6, v6.to_bits()),
    };
    Prefix::new(family, address, net.prefix_len())
        .with_context(|| format!("'{text}' is not a network"))
}

fn ports(text: &str) -> Result<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) if first <= last => Ok(first..=last),
        _ => bail!("'{text}' is not a port or a range of ports such as 8000-8999"),
    }
}

fn protocol(text: &str) -> Result<u8> {
    Ok(match text {
        "tcp" => 6,
        "udp" => 17,
        "icmp" => 1,
        "icmp6" => 58,
        number => number
            .parse()
            .map_err(|_| anyhow!("'{text}' is not tcp, udp, icmp, icmp6 or a protocol number"))?,
    })
}
