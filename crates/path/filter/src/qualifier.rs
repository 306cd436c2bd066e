//! What a value means after its qualifiers: `src host`, `tcp port`, `ip proto`.

use std::net::Ipv4Addr;

use crate::ast::{
    AddressScope, Direction, Expr, IpVersion, MacDirection, Network, Test, Transport,
};
use crate::lexer::Token;
use crate::names::{self, Proto};

/// The words before a value. A value without any inherits the last ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Qualifier {
    pub(crate) proto: Option<Proto>,
    pub(crate) side: Option<Side>,
    pub(crate) kind: Kind,
}

impl Qualifier {
    pub(crate) const UNDEFINED: Self = Self {
        proto: None,
        side: None,
        kind: Kind::Undefined,
    };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Source,
    Destination,
    Either,
    Both,
    Address(u8),
    Receiver,
    Transmitter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing precedes the value.
    Undefined,
    /// No type: `host` is meant.
    Default,
    Host,
    Net,
    Port,
    PortRange,
    Proto,
    ProtoChain,
}

impl Kind {
    /// What the word must be followed by.
    pub(crate) fn value_words(self) -> &'static str {
        match self {
            Self::Undefined => "a test",
            Self::Default => "'host', 'net', 'port' or an address",
            Self::Host => "an IPv4, IPv6 or MAC address",
            Self::Net => "a network, as in '192.0.2.0/24'",
            Self::Port => "a port number or the name of a service",
            Self::PortRange => "two ports, as in '6000-6008'",
            Self::Proto | Self::ProtoChain => "the number or the name of a protocol",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Mask {
    Bits(u32),
    Address(Ipv4Addr),
}

/// The test that `value` means after `qualifier`, or what is wrong with it.
pub(crate) fn resolve(
    qualifier: &Qualifier,
    value: &Token,
    mask: Option<Mask>,
) -> Result<Expr, String> {
    match qualifier.kind {
        Kind::Undefined => Err(
            "a value needs a word before it that says what it is: 'host', \
                                'net', 'port', 'src', 'dst' or 'proto'"
                .to_owned(),
        ),
        _ if matches!(value, Token::Mac(_)) => mac(qualifier, value),
        Kind::Default | Kind::Host | Kind::Net => host_or_net(qualifier, value, mask),
        _ if matches!(value, Token::V6(_)) || mask.is_some() => {
            Err("an address or a mask can only follow 'host', 'net', 'src' or 'dst'".to_owned())
        }
        Kind::Port => port(qualifier, value),
        Kind::PortRange => port_range(qualifier, value),
        Kind::Proto | Kind::ProtoChain => protocol(qualifier, value),
    }
}

fn mac(qualifier: &Qualifier, value: &Token) -> Result<Expr, String> {
    let hosts = matches!(qualifier.kind, Kind::Default | Kind::Host);
    let (Token::Mac(address), Some(Proto::Link), true) = (value, qualifier.proto, hosts) else {
        return Err(
            "a MAC address needs 'ether' before it, as in 'ether host' or 'ether src'".to_owned(),
        );
    };
    let direction = match qualifier.side {
        None | Some(Side::Either) => MacDirection::Either,
        Some(Side::Both) => MacDirection::Both,
        Some(Side::Source) => MacDirection::Source,
        Some(Side::Destination) => MacDirection::Destination,
        Some(Side::Receiver) => MacDirection::Receiver,
        Some(Side::Transmitter) => MacDirection::Transmitter,
        Some(Side::Address(1)) => MacDirection::Address1,
        Some(Side::Address(2)) => MacDirection::Address2,
        Some(Side::Address(3)) => MacDirection::Address3,
        Some(Side::Address(_)) => MacDirection::Address4,
    };
    Ok(Test::Mac {
        direction,
        address: *address,
    }
    .into())
}

fn direction(qualifier: &Qualifier) -> Result<Direction, String> {
    match qualifier.side {
        None | Some(Side::Either) => Ok(Direction::Either),
        Some(Side::Both) => Ok(Direction::Both),
        Some(Side::Source) => Ok(Direction::Source),
        Some(Side::Destination) => Ok(Direction::Destination),
        Some(Side::Address(_) | Side::Receiver | Side::Transmitter) => Err(
            "'ra', 'ta' and 'addr1' to 'addr4' are fields of an 802.11 header: a MAC address \
                 and 'wlan' belong to them, as in 'wlan ra 02:00:00:00:00:01'"
                .to_owned(),
        ),
    }
}

fn host_or_net(qualifier: &Qualifier, value: &Token, mask: Option<Mask>) -> Result<Expr, String> {
    let network = match value {
        Token::Name(name) => {
            return Err(format!(
                "names are not resolved: write the address of '{name}' as a number"
            ));
        }
        Token::V6(address) => {
            let prefix = match mask {
                None => 128,
                Some(Mask::Bits(bits)) => u8::try_from(bits)
                    .ok()
                    .filter(|bits| *bits <= 128)
                    .ok_or_else(|| {
                        format!("the length of an IPv6 mask is at most 128, not {bits}")
                    })?,
                Some(Mask::Address(_)) => {
                    return Err("write the mask of an IPv6 network as a length: /64".to_owned());
                }
            };
            if prefix != 128 && qualifier.kind != Kind::Net {
                return Err("a network mask needs 'net' before the address".to_owned());
            }
            let kept = u128::MAX.unbounded_shl(128_u32.saturating_sub(prefix.into()));
            if u128::from(*address) & !kept != 0 {
                return Err(format!(
                    "{address}/{prefix} has bits set outside the mask; write {}/{prefix}",
                    std::net::Ipv6Addr::from(u128::from(*address) & kept)
                ));
            }
            Network::V6 {
                address: *address,
                prefix,
            }
        }
        Token::V4(address, bits) => v4(qualifier, *address, *bits, mask)?,
        Token::Number(number) => number_network(qualifier, *number),
        _ => return Err("expected an address".to_owned()),
    };
    let scope = match (qualifier.proto, network) {
        (None, _) => None,
        (Some(Proto::Ip), Network::V4 { .. }) => Some(AddressScope::Ip),
        (Some(Proto::Arp), Network::V4 { .. }) => Some(AddressScope::Arp),
        (Some(Proto::Rarp), Network::V4 { .. }) => Some(AddressScope::Rarp),
        (Some(Proto::Ip6), Network::V6 { .. }) => Some(AddressScope::Ip6),
        (Some(Proto::Ip | Proto::Arp | Proto::Rarp), Network::V6 { .. }) => {
            return Err("this protocol carries IPv4 addresses; use 'ip6' here".to_owned());
        }
        (Some(Proto::Ip6), Network::V4 { .. }) => {
            return Err("an IPv6 packet has no IPv4 addresses; use 'ip' here".to_owned());
        }
        (Some(Proto::Link), _) => {
            return Err("'ether' needs a MAC address, as in 02:00:00:00:00:01".to_owned());
        }
        (Some(Proto::Decnet), _) => {
            return Err("DECnet addresses are not supported; 'decnet' alone is".to_owned());
        }
        (Some(_), _) => {
            return Err(
                "this protocol has no addresses; join with 'and', as in 'tcp and host \
                        192.0.2.1'"
                    .to_owned(),
            );
        }
    };
    Ok(Test::Address {
        scope,
        direction: direction(qualifier)?,
        network,
    }
    .into())
}

fn v4(
    qualifier: &Qualifier,
    address: Ipv4Addr,
    written_bits: u8,
    mask: Option<Mask>,
) -> Result<Network, String> {
    let kept = |bits: u32| u32::MAX.unbounded_shl(32_u32.saturating_sub(bits));
    if mask.is_some() && qualifier.kind != Kind::Net {
        return Err("a network mask needs 'net' before the address".to_owned());
    }
    let mask = match mask {
        None => kept(u32::from(written_bits)),
        Some(Mask::Bits(bits @ 0..=32)) => kept(bits),
        Some(Mask::Bits(bits)) => {
            return Err(format!(
                "the length of an IPv4 mask is at most 32, not {bits}"
            ));
        }
        Some(Mask::Address(mask)) => u32::from(mask),
    };
    let mask = Ipv4Addr::from(mask);
    if address & !mask != Ipv4Addr::UNSPECIFIED {
        return Err(format!(
            "{address} has bits set outside the mask {mask}; write {}",
            address & mask
        ));
    }
    Ok(Network::V4 { address, mask })
}

/// A number alone: after `net` it is the first bytes of a network, else a whole address.
fn number_network(qualifier: &Qualifier, number: u32) -> Network {
    let shift = match qualifier.kind {
        Kind::Net if number != 0 => number.leading_zeros() & !7,
        _ => 0,
    };
    Network::V4 {
        address: Ipv4Addr::from(number.unbounded_shl(shift)),
        mask: Ipv4Addr::from(u32::MAX.unbounded_shl(shift)),
    }
}

fn transport(qualifier: &Qualifier) -> Result<Option<Transport>, String> {
    match qualifier.proto {
        None => Ok(None),
        Some(Proto::Tcp) => Ok(Some(Transport::Tcp)),
        Some(Proto::Udp) => Ok(Some(Transport::Udp)),
        Some(Proto::Sctp) => Ok(Some(Transport::Sctp)),
        Some(_) => Err(
            "only tcp, udp and sctp have ports; join another protocol with 'and', as \
                        in 'ip and port 80'"
                .to_owned(),
        ),
    }
}

fn port_number(number: u32) -> Result<u16, String> {
    u16::try_from(number).map_err(|_| format!("a port is a number from 0 to 65535, not {number}"))
}

/// A port or a service, and the transport of the service if it has only one.
fn named_port(text: &str) -> Result<(u16, Option<Transport>), String> {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        let number = text.parse().map_err(|_| format!("{text} is not a port"))?;
        return Ok((port_number(number)?, None));
    }
    names::service(text).ok_or_else(|| {
        format!("'{text}' is not a service of /etc/services; write the port as a number")
    })
}

fn agree(
    requested: Option<Transport>,
    real: Option<Transport>,
    name: &str,
) -> Result<Option<Transport>, String> {
    match (requested, real) {
        (Some(requested), Some(real)) if requested != real => {
            let word = if real == Transport::Tcp { "tcp" } else { "udp" };
            Err(format!(
                "the service '{name}' is registered for {word} only; write its port as a number"
            ))
        }
        (requested, real) => Ok(requested.or(real)),
    }
}

fn port(qualifier: &Qualifier, value: &Token) -> Result<Expr, String> {
    let requested = transport(qualifier)?;
    let (low, transport) = match value {
        Token::Number(number) => (port_number(*number)?, requested),
        Token::Name(name) if name.split('-').count() == 2 && name.split('-').all(is_number) => {
            return Err(format!("for a range of ports write 'portrange {name}'"));
        }
        Token::Name(name) => {
            let (port, real) = named_port(name)?;
            (port, agree(requested, real, name)?)
        }
        _ => return Err("expected a port number or the name of a service".to_owned()),
    };
    Ok(Test::Port {
        transport,
        direction: direction(qualifier)?,
        low,
        high: low,
    }
    .into())
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

fn port_range(qualifier: &Qualifier, value: &Token) -> Result<Expr, String> {
    let requested = transport(qualifier)?;
    let (first, last, transport) = match value {
        Token::Number(number) => {
            let port = port_number(*number)?;
            (port, port, requested)
        }
        Token::Name(name) => {
            let (low, high) = name.split_once('-').unwrap_or((name, name));
            let (low, low_real) = named_port(low)?;
            let (high, high_real) = named_port(high)?;
            let real = if low_real == high_real {
                low_real
            } else {
                None
            };
            (low, high, agree(requested, real, name)?)
        }
        _ => return Err("expected two ports, as in '6000-6008'".to_owned()),
    };
    let (low, high) = (first.min(last), first.max(last));
    Ok(Test::Port {
        transport,
        direction: direction(qualifier)?,
        low,
        high,
    }
    .into())
}

fn protocol(qualifier: &Qualifier, value: &Token) -> Result<Expr, String> {
    let chain = qualifier.kind == Kind::ProtoChain;
    let family = qualifier.proto;
    let version = match family {
        None => Some(IpVersion::Any),
        Some(Proto::Ip) => Some(IpVersion::V4),
        Some(Proto::Ip6) => Some(IpVersion::V6),
        Some(_) => None,
    };
    let number = match (value, family) {
        (Token::Number(number), _) => *number,
        (Token::Name(name), None | Some(Proto::Ip | Proto::Ip6)) => names::ip_protocol(name)
            .ok_or_else(|| {
                format!("'{name}' is not a protocol of /etc/protocols; write its number")
            })?,
        (Token::Name(name), Some(Proto::Link)) => names::ether_proto(name).ok_or_else(|| {
            format!("'{name}' is not an EtherType known by name; write its number, as in 0x0800")
        })?,
        (Token::Name(name), Some(Proto::Iso)) => names::iso_proto(name).ok_or_else(|| {
            format!("'{name}' is not an OSI protocol; use \\clnp, \\esis, \\isis")
        })?,
        (Token::Name(name), Some(_)) => {
            return Err(format!(
                "'{name}' is not a number; only numbers are allowed here"
            ));
        }
        _ => return Err("expected the number or the name of a protocol".to_owned()),
    };
    let test = match (version, family, chain) {
        (Some(version), _, true) => Test::ProtoChain { version, number },
        (Some(version), _, false) => Test::IpProto { version, number },
        (None, _, true) => {
            return Err("only 'ip' and 'ip6' may precede 'protochain'".to_owned());
        }
        (None, Some(Proto::Link), false) => Test::EtherProto(number),
        (None, Some(Proto::Iso), false) => Test::IsoProto(number),
        (None, Some(Proto::Isis), false) => Test::IsIsProto(number),
        (None, _, false) => {
            return Err(
                "only 'ether', 'ip', 'ip6', 'iso' and 'isis' may precede 'proto'".to_owned(),
            );
        }
    };
    Ok(test.into())
}
