//! The syntax tree: what a filter means, with every name resolved to a value and nothing decided
//! yet about link types or byte offsets.

mod networks;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

pub(crate) use networks::NoNames;
pub use networks::{Naming, NetworkNames, NetworkSet};

/// A filter expression (pcap-filter(7)).
///
/// The order of the operands has a meaning: [`Test::Vlan`], [`Test::Mpls`],
/// [`Test::PppoeSession`] and [`Test::Geneve`] shift the headers for everything
/// to their right, also across `or` and `not`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Expr {
    /// The empty expression: every packet.
    Any,
    /// All of these, tested left to right. At least two; no element is itself an `And`.
    And(Vec<Expr>),
    /// At least one of these, tested left to right. At least two; no element is itself an `Or`.
    Or(Vec<Expr>),
    /// Not this.
    Not(Box<Expr>),
    /// One test.
    Test(Test),
}

/// One primitive of pcap-filter(7).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Test {
    /// `host` and `net`: an IPv4 or IPv6 address, or the addresses inside ARP and RARP.
    Address {
        /// Where the address may be; `None` is every protocol that carries such an address.
        scope: Option<AddressScope>,
        /// Source, destination, either or both.
        direction: Direction,
        /// The address or the network.
        network: Network,
    },
    /// `tag`, `asn` and `country`: an address in one of the networks that have this name, wherever `net` looks. An
    /// address that was captured only in part rejects the packet.
    Named {
        /// What the name says.
        naming: Naming,
        /// Source, destination, either or both.
        direction: Direction,
        /// The name.
        name: String,
        /// The networks.
        networks: Arc<NetworkSet>,
    },
    /// `ether host`, `wlan addr1`: a link-layer address.
    Mac {
        /// Which address field.
        direction: MacDirection,
        /// The address.
        address: MacAddress,
    },
    /// `port` and `portrange`, both ends included.
    Port {
        /// `None` is TCP, UDP or SCTP.
        transport: Option<Transport>,
        /// Source, destination, either or both.
        direction: Direction,
        /// The first port of the range.
        low: u16,
        /// The last port of the range; equal to `low` for `port`.
        high: u16,
    },
    /// `ether proto`: an `EtherType`, or an LLC SAP where the number is at most 1500.
    EtherProto(u32),
    /// `ip proto`, `ip6 proto`, `proto`, `tcp`, `icmp`...: the protocol in the IP header.
    IpProto {
        /// Which version of IP.
        version: IpVersion,
        /// The protocol number; above 255 it never matches.
        number: u32,
    },
    /// `protochain`: a protocol anywhere in the chain of extension headers.
    ProtoChain {
        /// Which version of IP.
        version: IpVersion,
        /// The protocol number.
        number: u32,
    },
    /// `iso proto`: the network-layer protocol identifier of ISO/IEC TR 9577.
    IsoProto(u32),
    /// `isis proto`: the PDU type of ISO/IEC 10589.
    IsIsProto(u32),
    /// `ether broadcast`, `broadcast`: the link-layer destination is all ones.
    EtherBroadcast,
    /// `ip broadcast`: the IPv4 destination is 0.0.0.0 or 255.255.255.255.
    ///
    /// In a file there is no interface to ask for a netmask; like `tcpdump -r`
    /// the filter then knows only these two.
    IpBroadcast,
    /// `ether multicast`, `multicast`: the link-layer destination is a group address.
    EtherMulticast,
    /// `ip multicast`: the IPv4 destination is 224.0.0.0 or above.
    IpMulticast,
    /// `ip6 multicast`: the IPv6 destination is in ff00::/8.
    Ip6Multicast,
    /// `inbound`: not sent by the capturing host. Linux cooked captures only.
    Inbound,
    /// `outbound`: sent by the capturing host. Linux cooked captures only.
    Outbound,
    /// `ifindex`: the index of the interface. Linux cooked v2 captures only.
    IfIndex(u32),
    /// `vlan [id]`: an IEEE 802.1Q tag. Shifts what follows.
    Vlan(Option<u32>),
    /// `mpls [label]`: an MPLS label (RFC 3032). Shifts what follows.
    Mpls(Option<u32>),
    /// `pppoed`: `PPPoE` discovery (RFC 2516).
    PppoeDiscovery,
    /// `pppoes [session]`: `PPPoE` session (RFC 2516). Shifts what follows.
    PppoeSession(Option<u32>),
    /// `geneve [vni]`: Geneve over UDP port 6081 (RFC 8926). Shifts what follows.
    Geneve(Option<u32>),
    /// `llc [type]`: an IEEE 802.2 header.
    Llc(Llc),
    /// `type`: the frame type bits of the 802.11 frame control field, in place (mask 0x0c).
    WlanType(u8),
    /// `type ... subtype`: type and subtype bits of the 802.11 frame control field, in place
    /// (mask 0xfc).
    WlanSubtype(u8),
    /// `dir`: the To DS (1) and From DS (2) bits of 802.11.
    WlanDirection(u32),
    /// `expr relop expr`, `less`, `greater`.
    Compare {
        /// The left side.
        left: Arith,
        /// The relation; both sides are unsigned.
        relation: Relation,
        /// The right side.
        right: Arith,
    },
}

/// A protocol that carries IPv4 or IPv6 addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressScope {
    /// The IPv4 header.
    Ip,
    /// The IPv6 header.
    Ip6,
    /// Sender and target of an ARP packet.
    Arp,
    /// Sender and target of a RARP packet.
    Rarp,
}

/// Source or destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// `src or dst`, the default.
    Either,
    /// `src and dst`.
    Both,
    /// `src`.
    Source,
    /// `dst`.
    Destination,
}

/// An address field of a link-layer header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MacDirection {
    /// Source or destination.
    Either,
    /// Source and destination.
    Both,
    /// Source (SA on 802.11).
    Source,
    /// Destination (DA on 802.11).
    Destination,
    /// 802.11 receiver address.
    Receiver,
    /// 802.11 transmitter address.
    Transmitter,
    /// 802.11 address 1.
    Address1,
    /// 802.11 address 2.
    Address2,
    /// 802.11 address 3.
    Address3,
    /// 802.11 address 4.
    Address4,
}

/// An IPv4 or IPv6 address with its significant bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Network {
    /// IPv4.
    V4 {
        /// The address; no bit outside of the mask is set.
        address: Ipv4Addr,
        /// The mask; not necessarily contiguous.
        mask: Ipv4Addr,
    },
    /// IPv6.
    V6 {
        /// The address; no bit outside of the prefix is set.
        address: Ipv6Addr,
        /// The length of the prefix, at most 128.
        prefix: u8,
    },
}

/// A 48-bit link-layer address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MacAddress(pub [u8; 6]);

/// A transport protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// TCP (6).
    Tcp,
    /// UDP (17).
    Udp,
    /// SCTP (132).
    Sctp,
}

/// A version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpVersion {
    /// IPv4 or IPv6.
    Any,
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// A kind of IEEE 802.2 LLC frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Llc {
    /// Any LLC frame.
    Any,
    /// An information frame.
    Information,
    /// Any supervisory frame.
    Supervisory,
    /// Any unnumbered frame.
    Unnumbered,
    /// A supervisory frame with these control bits (mask 0x0f).
    SupervisoryKind(u8),
    /// An unnumbered frame with these control bits (mask 0xef).
    UnnumberedKind(u8),
}

/// How two numbers are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Relation {
    /// `=`, `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterEqual,
}

/// An arithmetic expression over 32-bit unsigned numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Arith {
    /// A number.
    Number(u32),
    /// `len`: the length of the packet on the wire.
    Length,
    /// `header[offset:bytes]`: a big-endian number from the packet.
    Load {
        /// Where the offset counts from, and what the packet must be.
        header: Header,
        /// Where in the header.
        offset: Box<Arith>,
        /// How many bytes.
        bytes: Width,
    },
    /// `- operand`, modulo 2^32.
    Negate(Box<Arith>),
    /// `left operator right`, modulo 2^32.
    Binary {
        /// The operator.
        operator: Operator,
        /// The left operand.
        left: Box<Arith>,
        /// The right operand.
        right: Box<Arith>,
    },
}

/// An arithmetic operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    /// `+`
    Add,
    /// `-`
    Subtract,
    /// `*`
    Multiply,
    /// `/`; a packet for which the divisor is zero does not match.
    Divide,
    /// `%`; a packet for which the divisor is zero does not match.
    Modulo,
    /// `&`
    And,
    /// `|`
    Or,
    /// `^`
    Xor,
    /// `<<`; zero for shifts by more than 31.
    ShiftLeft,
    /// `>>`; zero for shifts by more than 31.
    ShiftRight,
}

/// How many bytes a load takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// One byte.
    Byte,
    /// Two bytes.
    Half,
    /// Four bytes.
    Word,
}

/// A header that [`Arith::Load`] counts from. All of them except `Link` and
/// `Radio` also require the packet to have that protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Header {
    /// The link-layer header (`ether`, `link`, `wlan`...).
    Link,
    /// The radio header before an 802.11 header.
    Radio,
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
    /// ARP.
    Arp,
    /// RARP.
    Rarp,
    /// `AppleTalk`.
    Atalk,
    /// `DECnet`.
    Decnet,
    /// DEC LAT.
    Lat,
    /// DEC SCA.
    Sca,
    /// DEC MOP remote console.
    Moprc,
    /// DEC MOP dump/load.
    Mopdl,
    /// TCP over IPv4, first fragment.
    Tcp,
    /// UDP over IPv4, first fragment.
    Udp,
    /// SCTP over IPv4, first fragment.
    Sctp,
    /// ICMP, first fragment.
    Icmp,
    /// IGMP, first fragment.
    Igmp,
    /// IGRP, first fragment.
    Igrp,
    /// PIM over IPv4, first fragment.
    Pim,
    /// VRRP over IPv4, first fragment.
    Vrrp,
    /// CARP over IPv4, first fragment.
    Carp,
    /// `ICMPv6` directly after the IPv6 header.
    Icmp6,
}

impl Expr {
    /// All of `parts`, in this order. Nested `And`s are flattened.
    #[must_use]
    pub fn and(parts: impl IntoIterator<Item = Self>) -> Self {
        let mut flat = Vec::new();
        for part in parts {
            match part {
                Self::And(inner) => flat.extend(inner),
                other => flat.push(other),
            }
        }
        match flat.len() {
            0 => Self::Any,
            1 => flat.remove(0),
            _ => Self::And(flat),
        }
    }

    /// At least one of `parts`, in this order. Nested `Or`s are flattened.
    #[must_use]
    pub fn or(parts: impl IntoIterator<Item = Self>) -> Self {
        let mut flat = Vec::new();
        for part in parts {
            match part {
                Self::Or(inner) => flat.extend(inner),
                other => flat.push(other),
            }
        }
        match flat.len() {
            0 => Self::Any,
            1 => flat.remove(0),
            _ => Self::Or(flat),
        }
    }

    /// Not `inner`.
    #[must_use]
    pub fn negate(inner: Self) -> Self {
        Self::Not(Box::new(inner))
    }
}

impl From<Test> for Expr {
    fn from(test: Test) -> Self {
        Self::Test(test)
    }
}
