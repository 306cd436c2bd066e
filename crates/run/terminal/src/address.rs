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

/// Networks, or single addresses, of an option.
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
