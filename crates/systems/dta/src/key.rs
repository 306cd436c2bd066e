//! Keys as bytes, and as people write them.
//!
//! ```text
//! address        4 or 16 bytes                                    10.0.0.1
//! flow           source, destination, their ports u16, protocol   10.0.0.1:1024 > 10.0.0.2:80 tcp
//! node           u32; an address is its number                    node 7, or 7; node 10.255.0.4
//!                the same bytes as an address, as output has it   0.0.0.7 or node 7
//! queue          node u32, egress interface u32, queue u8         node 7 port 3 queue 1
//! flow at node   node u32, flow (of IPv6: without protocol)       node 7 10.0.0.1:1024 > 10.0.0.2:80 tcp
//! host at node   node u32, address                                node 7 10.0.0.1
//! any bytes      1 to 40                                          0x0a000001
//! ```
//!
//! All big-endian. A flow has a direction. The protocol is TCP unless it is named.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use strata_wire::dissect::protocol;
use strata_wire::exact;

use crate::protocol::KEY_LEN_MAX;

/// Protocols whose packets have ports.
const WITH_PORTS: [u8; 3] = [protocol::TCP, protocol::UDP, protocol::SCTP];

/// A flow, in one direction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FiveTuple {
    /// Source address.
    pub source: IpAddr,
    /// Destination address, of the same family.
    pub destination: IpAddr,
    /// Source port, 0 if the protocol has none.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// IP protocol number.
    pub protocol: u8,
}

impl fmt::Display for FiveTuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = std::net::SocketAddr::new(self.source, self.source_port);
        let destination = std::net::SocketAddr::new(self.destination, self.destination_port);
        write!(f, "{source} > {destination} ")?;
        match self.protocol {
            protocol::ICMP => f.write_str("icmp"),
            protocol::TCP => f.write_str("tcp"),
            protocol::UDP => f.write_str("udp"),
            protocol::ICMPV6 => f.write_str("icmp6"),
            protocol::SCTP => f.write_str("sctp"),
            other => write!(f, "proto {other}"),
        }
    }
}

impl FiveTuple {
    /// The flow of a key's bytes: 13 for IPv4, 37 for IPv6.
    #[must_use]
    pub fn parse(key: &[u8]) -> Option<Self> {
        let (source, rest): (IpAddr, _) = match key.len() {
            13 => ipv4(key)?,
            37 => ipv6(key)?,
            _ => return None,
        };
        let (destination, rest) = if source.is_ipv4() {
            ipv4(rest)?
        } else {
            ipv6(rest)?
        };
        let &[a, b, c, d, protocol] = rest else {
            return None;
        };
        Some(Self {
            source,
            destination,
            source_port: u16::from_be_bytes([a, b]),
            destination_port: u16::from_be_bytes([c, d]),
            protocol,
        })
    }
}

fn ipv4(bytes: &[u8]) -> Option<(IpAddr, &[u8])> {
    let (address, rest) = bytes.split_first_chunk::<4>()?;
    Some((Ipv4Addr::from(*address).into(), rest))
}

fn ipv6(bytes: &[u8]) -> Option<(IpAddr, &[u8])> {
    let (address, rest) = bytes.split_first_chunk::<16>()?;
    Some((Ipv6Addr::from(*address).into(), rest))
}

/// The id of a node. Those of 24 bits and less are written as numbers, larger ones as IPv4 addresses, which
/// operators use as ids.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            small @ 0..=0xff_ffff => small.fmt(f),
            large => f.pad(&Ipv4Addr::from(large).to_string()),
        }
    }
}

impl FromStr for NodeId {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let number = text.parse::<u32>().ok();
        let address = || text.parse::<Ipv4Addr>().ok().map(u32::from);
        let id = number.or_else(address);
        id.map(Self).ok_or_else(|| KeyError::Node(text.to_owned()))
    }
}

/// The bytes of a key: 1 to 40.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    bytes: [u8; KEY_LEN_MAX],
    len: u8,
}

impl Key {
    /// A key of these bytes.
    ///
    /// # Panics
    ///
    /// If there are no bytes, or more than 40.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        assert!((1..=KEY_LEN_MAX).contains(&bytes.len()), "key length");
        let mut key = [0; KEY_LEN_MAX];
        key[..bytes.len()].copy_from_slice(bytes);
        Self {
            bytes: key,
            len: exact::<u8>(bytes.len()),
        }
    }

    /// The key of an address.
    #[must_use]
    pub fn address(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self::new(&address.octets()),
            IpAddr::V6(address) => Self::new(&address.octets()),
        }
    }

    /// The key of a flow: 13 bytes for IPv4, 37 for IPv6.
    #[must_use]
    pub fn flow(flow: &FiveTuple) -> Self {
        let mut bytes = Vec::with_capacity(KEY_LEN_MAX);
        push_flow(flow, &mut bytes);
        bytes.push(flow.protocol);
        Self::new(&bytes)
    }

    /// The key of a node.
    #[must_use]
    pub fn node(node: u32) -> Self {
        Self::new(&node.to_be_bytes())
    }

    /// The key of a queue of a node's port.
    #[must_use]
    pub fn queue(node: u32, egress_interface: u32, queue: u8) -> Self {
        let [a, b, c, d] = node.to_be_bytes();
        let [e, f, g, h] = egress_interface.to_be_bytes();
        Self::new(&[a, b, c, d, e, f, g, h, queue])
    }

    /// The key of a flow at a node: 17 bytes for IPv4, 40 for IPv6.
    #[must_use]
    pub fn flow_at(node: u32, flow: &FiveTuple) -> Self {
        let mut bytes = node.to_be_bytes().to_vec();
        push_flow(flow, &mut bytes);
        if flow.source.is_ipv4() {
            bytes.push(flow.protocol);
        }
        Self::new(&bytes)
    }

    /// The key of a host at a node: 8 bytes for IPv4, 20 for IPv6.
    #[must_use]
    pub fn host_at(node: u32, host: IpAddr) -> Self {
        let mut bytes = node.to_be_bytes().to_vec();
        bytes.extend_from_slice(Self::address(host).bytes());
        Self::new(&bytes)
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0x")?;
        self.bytes()
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn push_flow(flow: &FiveTuple, out: &mut Vec<u8>) {
    for address in [flow.source, flow.destination] {
        out.extend_from_slice(Key::address(address).bytes());
    }
    out.extend_from_slice(&flow.source_port.to_be_bytes());
    out.extend_from_slice(&flow.destination_port.to_be_bytes());
}

/// Why a text is not a key.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyError {
    /// No known form.
    #[error(
        "{0:?} is not a key: write an address (10.0.0.1), a flow (10.0.0.1:1024 > 10.0.0.2:80 tcp), \
         a node (node 7), a queue (node 7 port 3 queue 1), or bytes (0x0a000001)"
    )]
    Form(String),
    /// Neither a number nor an address.
    #[error("{0:?} is not a node: write its number (7) or its IPv4 address (10.255.0.4)")]
    Node(String),
    /// A protocol that is neither a number nor known by name.
    #[error("{0:?} is not a protocol: tcp, udp, icmp, icmp6, sctp or a number below 256")]
    Protocol(String),
    /// One or both ports are missing.
    #[error(
        "a flow of TCP, UDP or SCTP has two ports: write 10.0.0.1:1024 > 10.0.0.2:80 tcp, or for IPv6 \
         [2001:db8::1]:1024 > [2001:db8::2]:80 tcp; write port 0 if a port is not known"
    )]
    Ports,
    /// Addresses of two families.
    #[error(
        "one of source and destination is IPv4, and the other IPv6: a flow has two addresses of the same family"
    )]
    Families,
    /// Bytes: odd digits, none, too many.
    #[error("after 0x, write 1 to 40 bytes, each as two hexadecimal digits")]
    Bytes,
}

/// An address, also in brackets.
fn address(text: &str) -> Option<IpAddr> {
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    match bare {
        Some(bare) => bare.parse::<Ipv6Addr>().ok().map(IpAddr::from),
        None => text.parse().ok(),
    }
}

/// `10.0.0.1:80`, `[2001:db8::1]:80`, as tcpdump has it `10.0.0.1.80` or `2001:db8::1.80`, or an
/// address alone.
fn endpoint(text: &str) -> Option<(IpAddr, Option<u16>)> {
    if let Ok(both) = text.parse::<std::net::SocketAddr>() {
        return Some((both.ip(), Some(both.port())));
    }
    if let Some(address) = address(text) {
        return Some((address, None));
    }
    let (front, port) = text.rsplit_once('.')?;
    Some((front.parse().ok()?, Some(port.parse().ok()?)))
}

/// A protocol by its name.
fn named_protocol(text: &str) -> Option<u8> {
    Some(match text.to_ascii_lowercase().as_str() {
        "icmp" => protocol::ICMP,
        "tcp" => protocol::TCP,
        "udp" => protocol::UDP,
        "icmp6" | "ipv6-icmp" => protocol::ICMPV6,
        "sctp" => protocol::SCTP,
        _ => return None,
    })
}

fn protocol_of(text: &str) -> Result<u8, KeyError> {
    let named = named_protocol(text).or_else(|| text.parse().ok());
    named.ok_or_else(|| KeyError::Protocol(text.to_owned()))
}

impl FromStr for FiveTuple {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let form = || KeyError::Form(text.to_owned());
        let spaced = text.replace("->", " ");
        let spaced = spaced.replace(['>', '/', ',', '\u{2192}', '{', '}'], " ");
        let mut words = spaced
            .split_whitespace()
            .filter(|&word| word != "-" && word != "proto")
            .peekable();
        // Some programs name it first.
        let first = words.next_if(|&word| named_protocol(word).is_some());
        let (source, source_port) = words.next().and_then(endpoint).ok_or_else(form)?;
        let (destination, destination_port) = words.next().and_then(endpoint).ok_or_else(form)?;
        let protocol = match first.or_else(|| words.next()) {
            Some(word) => protocol_of(word)?,
            None => protocol::TCP,
        };
        if words.next().is_some() {
            return Err(form());
        }
        if source.is_ipv4() != destination.is_ipv4() {
            return Err(KeyError::Families);
        }
        let ports = source_port.zip(destination_port);
        if ports.is_none() && (WITH_PORTS.contains(&protocol) || source_port != destination_port) {
            return Err(KeyError::Ports);
        }
        let (source_port, destination_port) = ports.map_or((0, 0), |ports| ports);
        Ok(Self {
            source,
            destination,
            source_port,
            destination_port,
            protocol,
        })
    }
}

fn bytes_of(digits: &str) -> Result<Key, KeyError> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let digits: Option<Vec<u32>> = digits.as_bytes().iter().map(digit).collect();
    let digits = digits.ok_or(KeyError::Bytes)?;
    let len = digits.len() / 2;
    if digits.len() % 2 == 1 || !(1..=KEY_LEN_MAX).contains(&len) {
        return Err(KeyError::Bytes);
    }
    let byte = |pair: &[u32]| exact::<u8>(pair[0] << 4 | pair[1]);
    let bytes: Vec<u8> = digits.chunks(2).map(byte).collect();
    Ok(Key::new(&bytes))
}

impl FromStr for Key {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let text = text.trim();
        let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
        if let Some(digits) = digits {
            return bytes_of(digits);
        }
        let number = |word: Option<&&str>| word.and_then(|word| word.parse::<u32>().ok());
        let node =
            |word: Option<&&str>| word.and_then(|word| word.parse().ok()).map(|NodeId(id)| id);
        let words: Vec<&str> = text.split_whitespace().collect();
        let form = || KeyError::Form(text.to_owned());
        match words[..] {
            ["node" | "switch", _] => node(words.get(1)).map(Self::node).ok_or_else(form),
            // As output has 4 bytes that may be either.
            [host, "or", "node" | "switch", _] => {
                let host = address(host).map(Self::address);
                let both = host.filter(|key| node(words.get(3)).map(Self::node) == Some(*key));
                both.ok_or_else(form)
            }
            ["node" | "switch", _, "port", _, "queue", queue] => {
                let node = node(words.get(1)).ok_or_else(form)?;
                let port = number(words.get(3)).ok_or_else(form)?;
                let queue = queue.parse().map_err(|_| form())?;
                Ok(Self::queue(node, port, queue))
            }
            ["node" | "switch", _, ..] => {
                let node = node(words.get(1)).ok_or_else(form)?;
                if let [host] = words[2..]
                    && let Some(host) = address(host)
                {
                    return Ok(Self::host_at(node, host));
                }
                let flow = words[2..].join(" ").parse()?;
                Ok(Self::flow_at(node, &flow))
            }
            [word] => {
                if let Some(address) = address(word) {
                    return Ok(Self::address(address));
                }
                if let Ok(node) = word.parse::<u32>() {
                    return Ok(Self::node(node));
                }
                word.parse().map(|flow| Self::flow(&flow))
            }
            _ => text.parse().map(|flow| Self::flow(&flow)),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_people_write_them() {
        let flow = "0a000001 0a000002 0400 0050 06".replace(' ', "");
        for (text, bytes) in [
            ("10.0.0.1", "0a000001"),
            ("2001:db8::1", "20010db8000000000000000000000001"),
            ("7", "00000007"),
            ("node 7", "00000007"),
            ("0.0.0.7 or node 7", "00000007"),
            ("switch 7 port 3 queue 1", "000000070000000301"),
            ("10.0.0.1:1024 > 10.0.0.2:80 tcp", &flow),
            ("10.0.0.1:1024->10.0.0.2:80/tcp", &flow),
            ("10.0.0.1:1024 10.0.0.2:80", &flow),
            ("10.0.0.1:1024 - 10.0.0.2:80 6", &flow),
            (
                "node 7 10.0.0.1:1024 > 10.0.0.2:80",
                &format!("00000007{flow}"),
            ),
            ("node 10.255.0.4", "0aff0004"),
            ("node 7 10.0.0.1", "000000070a000001"),
            ("node 10.255.0.4 port 3 queue 1", "0aff00040000000301"),
            ("0x0A0b", "0a0b"),
            ("0X0A0b", "0a0b"),
            ("[2001:db8::1]", "20010db8000000000000000000000001"),
            // As tcpdump, Wireshark and Suricata have it.
            ("10.0.0.1.1024 > 10.0.0.2.80", &flow),
            ("10.0.0.1:1024 \u{2192} 10.0.0.2:80 TCP", &flow),
            ("{TCP} 10.0.0.1:1024 -> 10.0.0.2:80", &flow),
            ("tcp 10.0.0.1:1024 10.0.0.2:80", &flow),
            ("10.0.0.1 > 10.0.0.2 icmp", "0a0000010a0000020000000001"),
            ("10.0.0.1:0 > 10.0.0.2:0 udp", "0a0000010a0000020000000011"),
        ] {
            let key: Key = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(format!("{key:?}"), format!("0x{bytes}"), "{text}");
        }
        let six: Key = "node 1 [2001:db8::1]:5 > [2001:db8::2]:6 udp"
            .parse()
            .unwrap();
        assert_eq!(six.bytes().len(), KEY_LEN_MAX);
        let flow: FiveTuple = "[2001:db8::1]:5 > [2001:db8::2]:6 udp".parse().unwrap();
        assert_eq!("2001:db8::1.5 > 2001:db8::2.6 udp".parse(), Ok(flow));
        assert_eq!(flow.to_string().parse(), Ok(flow));
        assert_eq!(Key::flow(&flow).bytes().len(), 37);
        assert_eq!(FiveTuple::parse(Key::flow(&flow).bytes()), Some(flow));
        let four: FiveTuple = "10.0.0.1:1024 > 10.0.0.2:80 udp".parse().unwrap();
        assert_eq!(FiveTuple::parse(Key::flow(&four).bytes()), Some(four));
        assert_eq!(FiveTuple::parse(&[1; 14]), None);
    }

    #[test]
    fn large_ids_of_nodes_are_shown_as_addresses() {
        for (id, text) in [
            (7, "7"),
            (0xff_ffff, "16777215"),
            (0x0aff_0004, "10.255.0.4"),
        ] {
            assert_eq!(NodeId(id).to_string(), text);
            assert_eq!(text.parse(), Ok(NodeId(id)));
        }
        assert_eq!("184483844".parse(), Ok(NodeId(0x0aff_0004)));
        assert!(matches!("core".parse::<NodeId>(), Err(KeyError::Node(_))));
    }

    #[test]
    fn what_is_not_a_key_is_refused_with_the_reason() {
        let error = |text: &str| text.parse::<Key>().unwrap_err();
        for text in [
            "",
            "host",
            "node",
            "node x",
            "10.0.0.1 to 10.0.0.2",
            "0.0.0.7 or node 8",
            "0.0.0.7 or 7",
            "10.0.0.300",
        ] {
            assert!(matches!(error(text), KeyError::Form(_)), "{text:?}");
        }
        assert!(matches!(
            error("10.0.0.1:1 10.0.0.2:2 tpc"),
            KeyError::Protocol(_)
        ));
        assert_eq!(error("10.0.0.1:1 > [::1]:2"), KeyError::Families);
        for text in [
            "10.0.0.1 > 10.0.0.2",
            "10.0.0.1:1 > 10.0.0.2 udp",
            "10.0.0.1 > 10.0.0.2:1 tcp",
            "10.0.0.1 > 10.0.0.2:1 icmp",
            "2001:db8::1 > 2001:db8::2:80 tcp",
            "node 7 10.0.0.1 > 10.0.0.2",
        ] {
            assert_eq!(error(text), KeyError::Ports, "{text}");
        }
        for text in [
            "10.0.0.1:65536 > 10.0.0.2:80",
            "[10.0.0.1]",
            "10.0.0.1:1 > 10.0.0.2:80 tcp tcp",
            "tcp",
            "10.0.0.1.65536 > 10.0.0.2.80",
            "tcp 10.0.0.1:1 10.0.0.2:2 tcp",
        ] {
            assert!(matches!(error(text), KeyError::Form(_)), "{text:?}");
        }
        for text in ["0x", "0x1", "0xzz", &format!("0x{}", "00".repeat(41))] {
            assert_eq!(error(text), KeyError::Bytes, "{text}");
        }
    }
}
