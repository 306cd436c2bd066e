//! Where packets are exported to, as a configuration writes it.

use std::fmt;
use std::str::FromStr;

use crate::vxlan;

/// How packets are carried.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Channel {
    /// Strata's own datagrams, for `strata collector`.
    Udp,
    /// Packets one by one in VXLAN, for any decapsulator.
    Vxlan,
}

/// A place to which packets are exported: `udp://host:port` or `vxlan://host[:port][?cut]`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Destination {
    /// How packets are carried.
    pub channel: Channel,
    /// Name or address, an IPv6 address without brackets.
    pub host: String,
    /// UDP port.
    pub port: u16,
    /// Whether a packet that is too long for the path is cut; otherwise, it is sent in IP fragments. Only for VXLAN.
    pub is_cut: bool,
}

/// Why a text is no destination.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "'{text}': {what}; write udp://HOST:PORT for a strata collector, or vxlan://HOST for a VXLAN \
     decapsulator, with ?cut to cut packets instead of sending IP fragments"
)]
pub struct ParseDestinationError {
    text: String,
    what: &'static str,
}

impl FromStr for Destination {
    type Err = ParseDestinationError;

    fn from_str(text: &str) -> Result<Self, ParseDestinationError> {
        let wrong = |what| ParseDestinationError {
            text: text.to_owned(),
            what,
        };
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| wrong("not a destination"))?;
        let (channel, default) = match scheme {
            "udp" => (Channel::Udp, None),
            "vxlan" => (Channel::Vxlan, Some(vxlan::UDP_PORT)),
            _ => return Err(wrong("neither udp:// nor vxlan://")),
        };
        let (rest, is_cut) = match (channel, rest.split_once('?')) {
            (_, None) => (rest, false),
            (Channel::Vxlan, Some((rest, "cut"))) => (rest, true),
            (_, Some(_)) => return Err(wrong("an unknown option after ?")),
        };
        let (host, port) = match rest.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest
                    .split_once(']')
                    .ok_or_else(|| wrong("a ] is missing"))?;
                match port.strip_prefix(':') {
                    Some(port) => (host, Some(port)),
                    None if port.is_empty() => (host, None),
                    None => return Err(wrong("unexpected text between address and port")),
                }
            }
            None => match rest.split_once(':') {
                Some((_, port)) if port.contains(':') => {
                    return Err(wrong("an IPv6 address is written in brackets"));
                }
                Some((host, port)) => (host, Some(port)),
                None => (rest, None),
            },
        };
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:%".contains(&byte);
        if host.is_empty() || host.len() > 253 || !host.bytes().all(is_name) {
            return Err(wrong("not a host"));
        }
        let port = match port.map(str::parse) {
            Some(Ok(0) | Err(_)) => return Err(wrong("not a port from 1 to 65535")),
            Some(Ok(port)) => port,
            None => default.ok_or_else(|| wrong("the port is missing"))?,
        };
        Ok(Self {
            channel,
            host: host.to_owned(),
            port,
            is_cut,
        })
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.channel {
            Channel::Udp => "udp",
            Channel::Vxlan => "vxlan",
        };
        let (host, port) = (&self.host, self.port);
        match host.contains(':') {
            true => write!(f, "{scheme}://[{host}]:{port}"),
            false => write!(f, "{scheme}://{host}:{port}"),
        }?;
        f.write_str(if self.is_cut { "?cut" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_read_as_they_are_written() {
        for (text, shown) in [
            ("udp://192.0.2.1:4740", "udp://192.0.2.1:4740"),
            ("udp://[2001:db8::1]:4740", "udp://[2001:db8::1]:4740"),
            ("vxlan://tap.example", "vxlan://tap.example:4789"),
            ("vxlan://[fe80::1%eth0]", "vxlan://[fe80::1%eth0]:4789"),
            ("vxlan://192.0.2.1:8472", "vxlan://192.0.2.1:8472"),
            ("vxlan://192.0.2.1?cut", "vxlan://192.0.2.1:4789?cut"),
            ("vxlan://[2001:db8::1]:1?cut", "vxlan://[2001:db8::1]:1?cut"),
        ] {
            assert_eq!(text.parse::<Destination>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn what_is_no_destination_is_refused_with_advice() {
        for (text, what) in [
            ("", "not a destination"),
            ("192.0.2.1:4740", "not a destination"),
            ("tcp://192.0.2.1:4740", "neither udp:// nor vxlan://"),
            ("udp://192.0.2.1", "the port is missing"),
            ("udp://192.0.2.1:0", "not a port"),
            ("udp://192.0.2.1:65536", "not a port"),
            ("udp://:4740", "not a host"),
            ("udp://a b:4740", "not a host"),
            ("udp://2001:db8::1:4740", "in brackets"),
            ("udp://[2001:db8::1:4740", "a ] is missing"),
            ("udp://[::1]4740", "between address and port"),
            ("udp://192.0.2.1:4740?cut", "unknown option"),
            ("vxlan://192.0.2.1?whole", "unknown option"),
        ] {
            let error = text.parse::<Destination>().unwrap_err().to_string();
            assert!(
                error.contains(what) && error.contains("write udp://"),
                "{error}"
            );
        }
    }
}
