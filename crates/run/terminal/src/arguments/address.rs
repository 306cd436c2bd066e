//! Addresses and networks on the command line.

use std::net::{Ipv6Addr, SocketAddr, ToSocketAddrs};

use anyhow::{Context, Result};
use ipnet::IpNet;

use crate::output::refuse;

/// `HOST` or `HOST:PORT`, as the first address that it has.
pub fn address(option: &str, text: &str, port: u16) -> Result<SocketAddr> {
    let bare = text.trim_matches(['[', ']']);
    // An IPv6 address has colons of its own.
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if bare.parse::<Ipv6Addr>().is_err() => {
            let Ok(port) = port.parse::<u16>() else {
                return Err(refuse(format!(
                    "{option} {text}: '{port}' is not a port: write HOST or HOST:PORT"
                )));
            };
            (host.trim_matches(['[', ']']), port)
        }
        _ => (bare, port),
    };
    let mut found = (host, port).to_socket_addrs();
    let first = found.as_mut().ok().and_then(Iterator::next);
    first.with_context(|| format!("{option} {text}: cannot resolve '{host}'"))
}

/// `HOST:PORT` from `HOST[:PORT]`. The name stays: its address may change while a program runs.
pub fn host_port(option: &str, text: &str, port: u16) -> Result<String> {
    let wrong = |what: &str| refuse(format!("{option} {text}: {what}: write HOST or HOST:PORT"));
    let bare = text.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let (host, given) = match (bare, text.split_once(':')) {
        (Some((host, "")), _) => (host, None),
        (Some((host, rest)), _) => (host, Some(rest.strip_prefix(':').unwrap_or(rest))),
        (None, Some((_, rest))) if rest.contains(':') => (text, None),
        (None, Some((host, port))) => (host, Some(port)),
        (None, None) => (text, None),
    };
    let port = match given.map(str::parse) {
        None => port,
        Some(Ok(port @ 1..)) => port,
        Some(_) => return Err(wrong("the port is not a number from 1 to 65535")),
    };
    let address = host.split('%').next().unwrap_or(host);
    if (bare.is_some() || host.contains(':')) && address.parse::<Ipv6Addr>().is_err() {
        return Err(wrong("not an IPv6 address"));
    }
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:%".contains(&byte);
    match host.is_empty() || !host.bytes().all(is_name) {
        true => Err(wrong("not a host")),
        false if host.contains(':') => Ok(format!("[{host}]:{port}")),
        false => Ok(format!("{host}:{port}")),
    }
}

/// Networks, or individual addresses, of an option.
pub fn networks(option: &str, texts: &[String]) -> Result<Vec<IpNet>> {
    let network = |text: &String| {
        let network = text.parse::<IpNet>();
        let address = || text.parse::<std::net::IpAddr>().map(IpNet::from);
        network.or_else(|_| address()).map_err(|_| {
            refuse(format!(
                "{option} {text}: write a network (192.0.2.0/24) or an address"
            ))
        })
    };
    texts.iter().map(network).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_name_or_an_address_with_or_without_a_port() {
        for (text, address) in [
            ("ctl.example", "ctl.example:4741"),
            ("192.0.2.1:99", "192.0.2.1:99"),
            ("fd99::1", "[fd99::1]:4741"),
            ("[fd99::1]", "[fd99::1]:4741"),
            ("[fe80::1%eth0]:7", "[fe80::1%eth0]:7"),
        ] {
            assert_eq!(host_port("--controller", text, 4741).unwrap(), address);
        }
        for wrong in [
            "",
            ":4741",
            "[::1]:99999",
            "[::1]4741x",
            "a:0",
            "a:b",
            "a:1:2",
            "[ctl]:1",
            "a b",
            "[::1",
        ] {
            let error = host_port("--controller", wrong, 4741)
                .unwrap_err()
                .to_string();
            assert!(error.contains("--controller"), "{error}");
        }
    }
}
