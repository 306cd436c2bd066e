//! Printing a tree as an expression that parses back to the same tree.

use std::fmt;

use crate::ast::{
    AddressScope, Arith, Direction, Expr, Header, IpVersion, Llc, MacAddress, MacDirection, Naming,
    Network, Operator, Relation, Test, Transport, Width,
};
use crate::names;

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => Ok(()),
            Self::Test(test) => test.fmt(f),
            Self::Not(inner) => {
                f.write_str("not ")?;
                operand(inner, f)
            }
            Self::And(parts) => list(parts, " and ", f),
            Self::Or(parts) => list(parts, " or ", f),
        }
    }
}

fn list(parts: &[Expr], word: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            f.write_str(word)?;
        }
        operand(part, f)?;
    }
    Ok(())
}

fn operand(part: &Expr, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match part {
        Expr::And(_) | Expr::Or(_) => write!(f, "({part})"),
        // Below an operator the empty expression cannot be written.
        Expr::Any => f.write_str("len >= 0"),
        Expr::Not(_) | Expr::Test(_) => write!(f, "{part}"),
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |f: &mut fmt::Formatter<'_>, word: &str, value: &Option<u32>| match value {
            Some(value) => write!(f, "{word} {value}"),
            None => f.write_str(word),
        };
        match self {
            Self::Address {
                scope,
                direction,
                network,
            } => {
                let scope = scope.map_or("", scope_prefix);
                write!(f, "{scope}{}{network}", prefix(*direction))
            }
            Self::Named {
                naming,
                direction,
                name,
                ..
            } => {
                // A plain word is not taken for an operator or for several words.
                // Digits at the start may be no number.
                let is_plain = *naming != Naming::Tag
                    || name.bytes().all(|byte| byte.is_ascii_alphanumeric())
                        && name.starts_with(|first: char| first.is_ascii_alphabetic())
                        && !matches!(name.as_str(), "and" | "or" | "not");
                let mark = if is_plain { "" } else { "\\" };
                write!(f, "{}{} {mark}{name}", prefix(*direction), naming.word())
            }
            Self::Mac { direction, address } => {
                write!(f, "ether {} {address}", mac_qualifier(*direction))
            }
            Self::Port {
                transport,
                direction,
                low,
                high,
            } => {
                let transport = transport.map_or("", transport_prefix);
                write!(f, "{transport}{}", prefix(*direction))?;
                if low == high {
                    write!(f, "port {low}")
                } else {
                    write!(f, "portrange {low}-{high}")
                }
            }
            Self::EtherProto(number) => match names::ether_abbreviation(*number) {
                Some(name) => f.write_str(name),
                None => write!(f, "ether proto {number:#x}"),
            },
            Self::IpProto { version, number } => match names::ip_abbreviation(*version, *number) {
                Some(name) => f.write_str(name),
                None => write!(f, "{}proto {number}", version_prefix(*version)),
            },
            Self::ProtoChain { version, number } => {
                write!(f, "{}protochain {number}", version_prefix(*version))
            }
            Self::IsoProto(number) => match names::iso_abbreviation(*number) {
                Some(name) => f.write_str(name),
                None => write!(f, "iso proto {number}"),
            },
            Self::IsIsProto(number) => write!(f, "isis proto {number}"),
            Self::EtherBroadcast => f.write_str("ether broadcast"),
            Self::IpBroadcast => f.write_str("ip broadcast"),
            Self::EtherMulticast => f.write_str("ether multicast"),
            Self::IpMulticast => f.write_str("ip multicast"),
            Self::Ip6Multicast => f.write_str("ip6 multicast"),
            Self::Inbound => f.write_str("inbound"),
            Self::Outbound => f.write_str("outbound"),
            Self::IfIndex(index) => write!(f, "ifindex {index}"),
            Self::Vlan(id) => number(f, "vlan", id),
            Self::Mpls(label) => number(f, "mpls", label),
            Self::PppoeDiscovery => f.write_str("pppoed"),
            Self::PppoeSession(session) => number(f, "pppoes", session),
            Self::Geneve(vni) => number(f, "geneve", vni),
            Self::Llc(kind) => kind.fmt(f),
            Self::WlanType(bits) => write!(f, "type {bits:#x}"),
            Self::WlanSubtype(bits) => {
                write!(f, "type {:#x} subtype {:#x}", bits & 0x0c, bits & 0xf0)
            }
            Self::WlanDirection(bits) => write!(f, "dir {bits}"),
            Self::Compare {
                left,
                relation,
                right,
            } => write!(f, "{left} {relation} {right}"),
        }
    }
}

fn scope_prefix(scope: AddressScope) -> &'static str {
    match scope {
        AddressScope::Ip => "ip ",
        AddressScope::Ip6 => "ip6 ",
        AddressScope::Arp => "arp ",
        AddressScope::Rarp => "rarp ",
    }
}

fn mac_qualifier(direction: MacDirection) -> &'static str {
    match direction {
        MacDirection::Either => "host",
        MacDirection::Both => "src and dst",
        MacDirection::Source => "src",
        MacDirection::Destination => "dst",
        MacDirection::Receiver => "ra",
        MacDirection::Transmitter => "ta",
        MacDirection::Address1 => "addr1",
        MacDirection::Address2 => "addr2",
        MacDirection::Address3 => "addr3",
        MacDirection::Address4 => "addr4",
    }
}

fn transport_prefix(transport: Transport) -> &'static str {
    match transport {
        Transport::Tcp => "tcp ",
        Transport::Udp => "udp ",
        Transport::Sctp => "sctp ",
    }
}

fn prefix(direction: Direction) -> &'static str {
    match direction {
        Direction::Either => "",
        Direction::Both => "src and dst ",
        Direction::Source => "src ",
        Direction::Destination => "dst ",
    }
}

fn version_prefix(version: IpVersion) -> &'static str {
    match version {
        IpVersion::Any => "",
        IpVersion::V4 => "ip ",
        IpVersion::V6 => "ip6 ",
    }
}

/// With its keyword, `host` or `net`.
impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4 { address, mask } if mask.is_broadcast() => write!(f, "host {address}"),
            // Spelled out, because a mask need not be contiguous.
            Self::V4 { address, mask } => write!(f, "net {address} mask {mask}"),
            Self::V6 {
                address,
                prefix: 128,
            } => write!(f, "host {address}"),
            Self::V6 { address, prefix } => write!(f, "net {address}/{prefix}"),
        }
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Display for Llc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("llc"),
            Self::Information => f.write_str("llc i"),
            Self::Supervisory => f.write_str("llc s"),
            Self::Unnumbered => f.write_str("llc u"),
            Self::SupervisoryKind(_) | Self::UnnumberedKind(_) => {
                match names::LLC.iter().find(|(_, kind)| kind == self) {
                    Some((name, _)) => write!(f, "llc {name}"),
                    None => write!(f, "llc <{self:?}>"),
                }
            }
        }
    }
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Equal => "=",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::LessEqual => "<=",
            Self::Greater => ">",
            Self::GreaterEqual => ">=",
        })
    }
}

impl fmt::Display for Arith {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(value) => value.fmt(f),
            Self::Length => f.write_str("len"),
            Self::Load {
                header,
                offset,
                bytes,
            } => {
                write!(f, "{}[{offset}", header.name())?;
                match bytes {
                    Width::Byte => f.write_str("]"),
                    Width::Half => f.write_str(":2]"),
                    Width::Word => f.write_str(":4]"),
                }
            }
            Self::Negate(inner) => {
                f.write_str("-")?;
                match **inner {
                    // Without parentheses, which would count as nesting twice.
                    Self::Negate(_) => write!(f, " {inner}"),
                    _ => arith_operand(inner, f),
                }
            }
            Self::Binary {
                operator,
                left,
                right,
            } => {
                arith_operand(left, f)?;
                write!(f, " {operator} ")?;
                arith_operand(right, f)
            }
        }
    }
}

/// Every operand that has an operator is parenthesised: `%` and `^` have
/// no usual precedence in this language.
fn arith_operand(arith: &Arith, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match arith {
        Arith::Binary { .. } | Arith::Negate(_) => write!(f, "({arith})"),
        Arith::Number(_) | Arith::Length | Arith::Load { .. } => write!(f, "{arith}"),
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Add => "+",
            Self::Subtract => "-",
            Self::Multiply => "*",
            Self::Divide => "/",
            Self::Modulo => "%",
            Self::And => "&",
            Self::Or => "|",
            Self::Xor => "^",
            Self::ShiftLeft => "<<",
            Self::ShiftRight => ">>",
        })
    }
}

impl Header {
    /// The keyword of this header.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Link => "link",
            Self::Radio => "radio",
            Self::Ip => "ip",
            Self::Ip6 => "ip6",
            Self::Arp => "arp",
            Self::Rarp => "rarp",
            Self::Atalk => "atalk",
            Self::Decnet => "decnet",
            Self::Lat => "lat",
            Self::Sca => "sca",
            Self::Moprc => "moprc",
            Self::Mopdl => "mopdl",
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
            Self::Icmp => "icmp",
            Self::Igmp => "igmp",
            Self::Igrp => "igrp",
            Self::Pim => "pim",
            Self::Vrrp => "vrrp",
            Self::Carp => "carp",
            Self::Icmp6 => "icmp6",
        }
    }
}
