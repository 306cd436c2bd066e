//! Names and numbers: keywords, named constants, protocols, services.
//!
//! Keywords and constants are those of pcap-filter(7). Service and protocol
//! names come from `/etc/services` and `/etc/protocols` if these can be read,
//! else from a small table here.

use crate::ast::{IpVersion, Llc, Transport};

/// A word that means a protocol before other words or alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proto {
    Link,
    Radio,
    Ip,
    Ip6,
    Arp,
    Rarp,
    Tcp,
    Udp,
    Sctp,
    Icmp,
    Icmp6,
    Igmp,
    Igrp,
    Pim,
    Vrrp,
    Carp,
    Ah,
    Esp,
    Atalk,
    Aarp,
    Decnet,
    Lat,
    Sca,
    Moprc,
    Mopdl,
    Iso,
    Esis,
    Isis,
    Clnp,
    Stp,
    Ipx,
    Netbeui,
    L1,
    L2,
    Iih,
    Lsp,
    Snp,
    Csnp,
    Psnp,
}

/// A word of the language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keyword {
    Proto(Proto),
    Constant(u32),
    Source,
    Destination,
    Host,
    Net,
    Mask,
    Port,
    PortRange,
    ProtoWord,
    ProtoChain,
    Gateway,
    Broadcast,
    Multicast,
    Less,
    Greater,
    Length,
    Inbound,
    Outbound,
    IfIndex,
    Vlan,
    Mpls,
    PppoeDiscovery,
    PppoeSession,
    Geneve,
    Llc,
    Type,
    Subtype,
    Dir,
    Address(u8),
    Receiver,
    Transmitter,
    And,
    Or,
    Not,
    /// A word that is always refused, with the reason.
    Refused(&'static str),
}

const ATM: &str = "it tests ATM cells (SunATM), a link type that is not supported here";
const SS7: &str = "it tests SS7 signalling (MTP2/MTP3), a link type that is not supported here";
const PF: &str = "it tests OpenBSD packet filter logs, a link type that is not supported here";

pub(crate) const KEYWORDS: &[(&str, Keyword)] = {
    use Keyword as K;
    use Proto as P;
    &[
        ("ether", K::Proto(P::Link)),
        ("link", K::Proto(P::Link)),
        ("fddi", K::Proto(P::Link)),
        ("tr", K::Proto(P::Link)),
        ("wlan", K::Proto(P::Link)),
        ("ppp", K::Proto(P::Link)),
        ("slip", K::Proto(P::Link)),
        ("radio", K::Proto(P::Radio)),
        ("ip", K::Proto(P::Ip)),
        ("ip6", K::Proto(P::Ip6)),
        ("arp", K::Proto(P::Arp)),
        ("rarp", K::Proto(P::Rarp)),
        ("tcp", K::Proto(P::Tcp)),
        ("udp", K::Proto(P::Udp)),
        ("sctp", K::Proto(P::Sctp)),
        ("icmp", K::Proto(P::Icmp)),
        ("icmp6", K::Proto(P::Icmp6)),
        ("igmp", K::Proto(P::Igmp)),
        ("igrp", K::Proto(P::Igrp)),
        ("pim", K::Proto(P::Pim)),
        ("vrrp", K::Proto(P::Vrrp)),
        ("carp", K::Proto(P::Carp)),
        ("ah", K::Proto(P::Ah)),
        ("esp", K::Proto(P::Esp)),
        ("atalk", K::Proto(P::Atalk)),
        ("aarp", K::Proto(P::Aarp)),
        ("decnet", K::Proto(P::Decnet)),
        ("lat", K::Proto(P::Lat)),
        ("sca", K::Proto(P::Sca)),
        ("moprc", K::Proto(P::Moprc)),
        ("mopdl", K::Proto(P::Mopdl)),
        ("iso", K::Proto(P::Iso)),
        ("esis", K::Proto(P::Esis)),
        ("es-is", K::Proto(P::Esis)),
        ("isis", K::Proto(P::Isis)),
        ("is-is", K::Proto(P::Isis)),
        ("clnp", K::Proto(P::Clnp)),
        ("stp", K::Proto(P::Stp)),
        ("ipx", K::Proto(P::Ipx)),
        ("netbeui", K::Proto(P::Netbeui)),
        ("l1", K::Proto(P::L1)),
        ("l2", K::Proto(P::L2)),
        ("iih", K::Proto(P::Iih)),
        ("lsp", K::Proto(P::Lsp)),
        ("snp", K::Proto(P::Snp)),
        ("csnp", K::Proto(P::Csnp)),
        ("psnp", K::Proto(P::Psnp)),
        ("src", K::Source),
        ("dst", K::Destination),
        ("host", K::Host),
        ("net", K::Net),
        ("mask", K::Mask),
        ("port", K::Port),
        ("portrange", K::PortRange),
        ("proto", K::ProtoWord),
        ("protochain", K::ProtoChain),
        ("gateway", K::Gateway),
        ("broadcast", K::Broadcast),
        ("multicast", K::Multicast),
        ("less", K::Less),
        ("greater", K::Greater),
        ("len", K::Length),
        ("length", K::Length),
        ("inbound", K::Inbound),
        ("outbound", K::Outbound),
        ("ifindex", K::IfIndex),
        ("vlan", K::Vlan),
        ("mpls", K::Mpls),
        ("pppoed", K::PppoeDiscovery),
        ("pppoes", K::PppoeSession),
        ("geneve", K::Geneve),
        ("llc", K::Llc),
        ("type", K::Type),
        ("subtype", K::Subtype),
        ("dir", K::Dir),
        ("direction", K::Dir),
        ("addr1", K::Address(1)),
        ("address1", K::Address(1)),
        ("addr2", K::Address(2)),
        ("address2", K::Address(2)),
        ("addr3", K::Address(3)),
        ("address3", K::Address(3)),
        ("addr4", K::Address(4)),
        ("address4", K::Address(4)),
        ("ra", K::Receiver),
        ("ta", K::Transmitter),
        ("and", K::And),
        ("or", K::Or),
        ("not", K::Not),
        ("tcpflags", K::Constant(13)),
        ("tcp-fin", K::Constant(0x01)),
        ("tcp-syn", K::Constant(0x02)),
        ("tcp-rst", K::Constant(0x04)),
        ("tcp-push", K::Constant(0x08)),
        ("tcp-ack", K::Constant(0x10)),
        ("tcp-urg", K::Constant(0x20)),
        ("tcp-ece", K::Constant(0x40)),
        ("tcp-cwr", K::Constant(0x80)),
        ("icmptype", K::Constant(0)),
        ("icmpcode", K::Constant(1)),
        ("icmp-echoreply", K::Constant(0)),
        ("icmp-unreach", K::Constant(3)),
        ("icmp-sourcequench", K::Constant(4)),
        ("icmp-redirect", K::Constant(5)),
        ("icmp-echo", K::Constant(8)),
        ("icmp-routeradvert", K::Constant(9)),
        ("icmp-routersolicit", K::Constant(10)),
        ("icmp-timxceed", K::Constant(11)),
        ("icmp-paramprob", K::Constant(12)),
        ("icmp-tstamp", K::Constant(13)),
        ("icmp-tstampreply", K::Constant(14)),
        ("icmp-ireq", K::Constant(15)),
        ("icmp-ireqreply", K::Constant(16)),
        ("icmp-maskreq", K::Constant(17)),
        ("icmp-maskreply", K::Constant(18)),
        ("icmp6type", K::Constant(0)),
        ("icmp6code", K::Constant(1)),
        ("icmp6-destinationunreach", K::Constant(1)),
        ("icmp6-packettoobig", K::Constant(2)),
        ("icmp6-timeexceeded", K::Constant(3)),
        ("icmp6-parameterproblem", K::Constant(4)),
        ("icmp6-echo", K::Constant(128)),
        ("icmp6-echoreply", K::Constant(129)),
        ("icmp6-multicastlistenerquery", K::Constant(130)),
        ("icmp6-multicastlistenerreportv1", K::Constant(131)),
        ("icmp6-multicastlistenerdone", K::Constant(132)),
        ("icmp6-routersolicit", K::Constant(133)),
        ("icmp6-routeradvert", K::Constant(134)),
        ("icmp6-neighborsolicit", K::Constant(135)),
        ("icmp6-neighboradvert", K::Constant(136)),
        ("icmp6-redirect", K::Constant(137)),
        ("icmp6-routerrenum", K::Constant(138)),
        ("icmp6-nodeinformationquery", K::Constant(139)),
        ("icmp6-nodeinformationresponse", K::Constant(140)),
        ("icmp6-ineighbordiscoverysolicit", K::Constant(141)),
        ("icmp6-ineighbordiscoveryadvert", K::Constant(142)),
        ("icmp6-multicastlistenerreportv2", K::Constant(143)),
        ("icmp6-homeagentdiscoveryrequest", K::Constant(144)),
        ("icmp6-homeagentdiscoveryreply", K::Constant(145)),
        ("icmp6-mobileprefixsolicit", K::Constant(146)),
        ("icmp6-mobileprefixadvert", K::Constant(147)),
        ("icmp6-certpathsolicit", K::Constant(148)),
        ("icmp6-certpathadvert", K::Constant(149)),
        ("icmp6-multicastrouteradvert", K::Constant(151)),
        ("icmp6-multicastroutersolicit", K::Constant(152)),
        ("icmp6-multicastrouterterm", K::Constant(153)),
        (
            "byte",
            K::Refused("it is undocumented; write link[offset] = value instead"),
        ),
        ("lane", K::Refused(ATM)),
        ("vpi", K::Refused(ATM)),
        ("vci", K::Refused(ATM)),
        ("metac", K::Refused(ATM)),
        ("bcc", K::Refused(ATM)),
        ("oam", K::Refused(ATM)),
        ("oamf4", K::Refused(ATM)),
        ("oamf4ec", K::Refused(ATM)),
        ("oamf4sc", K::Refused(ATM)),
        ("sc", K::Refused(ATM)),
        ("ilmic", K::Refused(ATM)),
        ("connectmsg", K::Refused(ATM)),
        ("metaconnect", K::Refused(ATM)),
        ("fisu", K::Refused(SS7)),
        ("lssu", K::Refused(SS7)),
        ("lsu", K::Refused(SS7)),
        ("msu", K::Refused(SS7)),
        ("hfisu", K::Refused(SS7)),
        ("hlssu", K::Refused(SS7)),
        ("hmsu", K::Refused(SS7)),
        ("sio", K::Refused(SS7)),
        ("opc", K::Refused(SS7)),
        ("dpc", K::Refused(SS7)),
        ("sls", K::Refused(SS7)),
        ("hsio", K::Refused(SS7)),
        ("hopc", K::Refused(SS7)),
        ("hdpc", K::Refused(SS7)),
        ("hsls", K::Refused(SS7)),
        ("on", K::Refused(PF)),
        ("ifname", K::Refused(PF)),
        ("rset", K::Refused(PF)),
        ("ruleset", K::Refused(PF)),
        ("rnr", K::Refused(PF)),
        ("rulenum", K::Refused(PF)),
        ("srnr", K::Refused(PF)),
        ("subrulenum", K::Refused(PF)),
        ("reason", K::Refused(PF)),
        ("action", K::Refused(PF)),
    ]
};

pub(crate) fn keyword(word: &str) -> Option<Keyword> {
    KEYWORDS
        .iter()
        .find(|(name, _)| *name == word)
        .map(|(_, keyword)| *keyword)
}

/// Names for [`crate::Test::EtherProto`]: IEEE `EtherType`s and LLC SAPs.
const ETHER: &[(&str, u32)] = &[
    ("ip", 0x0800),
    ("ip6", 0x86dd),
    ("arp", 0x0806),
    ("rarp", 0x8035),
    ("atalk", 0x809b),
    ("aarp", 0x80f3),
    ("decnet", 0x6003),
    ("lat", 0x6004),
    ("sca", 0x6007),
    ("moprc", 0x6002),
    ("mopdl", 0x6001),
    ("iso", 0xfe),
    ("stp", 0x42),
    ("ipx", 0xe0),
    ("netbeui", 0xf0),
];

/// The keyword that alone means `ether proto number`.
pub(crate) fn ether_abbreviation(number: u32) -> Option<&'static str> {
    ETHER
        .iter()
        .find(|(_, value)| *value == number)
        .map(|(name, _)| *name)
}

/// A name after `ether proto`.
pub(crate) fn ether_proto(name: &str) -> Option<u32> {
    if name == "loopback" {
        return Some(0x9000);
    }
    ETHER
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, value)| *value)
}

/// Keywords that alone mean a protocol in the IP header.
const IP: &[(&str, IpVersion, u32)] = &[
    ("tcp", IpVersion::Any, 6),
    ("udp", IpVersion::Any, 17),
    ("sctp", IpVersion::Any, 132),
    ("pim", IpVersion::Any, 103),
    ("ah", IpVersion::Any, 51),
    ("esp", IpVersion::Any, 50),
    ("icmp", IpVersion::V4, 1),
    ("igmp", IpVersion::V4, 2),
    ("igrp", IpVersion::V4, 9),
    ("vrrp", IpVersion::V4, 112),
    ("icmp6", IpVersion::V6, 58),
];

pub(crate) fn ip_abbreviation(version: IpVersion, number: u32) -> Option<&'static str> {
    IP.iter()
        .find(|(_, v, n)| *v == version && *n == number)
        .map(|(name, ..)| *name)
}

/// ISO/IEC TR 9577 network-layer protocol identifiers.
const ISO: &[(&str, u32)] = &[("clnp", 0x81), ("esis", 0x82), ("isis", 0x83)];

pub(crate) fn iso_abbreviation(number: u32) -> Option<&'static str> {
    ISO.iter()
        .find(|(_, value)| *value == number)
        .map(|(name, _)| *name)
}

pub(crate) fn iso_proto(name: &str) -> Option<u32> {
    ISO.iter()
        .find(|(known, _)| *known == name)
        .map(|(_, value)| *value)
}

/// IEEE 802.2 control fields.
pub(crate) const LLC: &[(&str, Llc)] = &[
    ("i", Llc::Information),
    ("s", Llc::Supervisory),
    ("u", Llc::Unnumbered),
    ("rr", Llc::SupervisoryKind(0x01)),
    ("rnr", Llc::SupervisoryKind(0x05)),
    ("rej", Llc::SupervisoryKind(0x09)),
    ("ui", Llc::UnnumberedKind(0x03)),
    ("ua", Llc::UnnumberedKind(0x63)),
    ("disc", Llc::UnnumberedKind(0x43)),
    ("dm", Llc::UnnumberedKind(0x0f)),
    ("sabme", Llc::UnnumberedKind(0x6f)),
    ("test", Llc::UnnumberedKind(0xe3)),
    ("xid", Llc::UnnumberedKind(0xaf)),
    ("frmr", Llc::UnnumberedKind(0x87)),
];

/// IEEE 802.11-2020 9.2.4.1.3: frame types, in place in the frame control field.
pub(crate) const WLAN_TYPES: &[(&str, u8)] = &[
    ("mgt", 0x00),
    ("management", 0x00),
    ("ctl", 0x04),
    ("control", 0x04),
    ("data", 0x08),
];

/// IEEE 802.11-2020 9.2.4.1.3: type and subtype, in place in the frame control field.
pub(crate) const WLAN_SUBTYPES: &[(&str, u8)] = &[
    ("assocreq", 0x00),
    ("assoc-req", 0x00),
    ("assocresp", 0x10),
    ("assoc-resp", 0x10),
    ("reassocreq", 0x20),
    ("reassoc-req", 0x20),
    ("reassocresp", 0x30),
    ("reassoc-resp", 0x30),
    ("probereq", 0x40),
    ("probe-req", 0x40),
    ("proberesp", 0x50),
    ("probe-resp", 0x50),
    ("beacon", 0x80),
    ("atim", 0x90),
    ("disassoc", 0xa0),
    ("disassociation", 0xa0),
    ("auth", 0xb0),
    ("authentication", 0xb0),
    ("deauth", 0xc0),
    ("deauthentication", 0xc0),
    ("ps-poll", 0xa4),
    ("rts", 0xb4),
    ("cts", 0xc4),
    ("ack", 0xd4),
    ("cf-end", 0xe4),
    ("cf-end-ack", 0xf4),
    ("data", 0x08),
    ("data-cf-ack", 0x18),
    ("data-cf-poll", 0x28),
    ("data-cf-ack-poll", 0x38),
    ("null", 0x48),
    ("cf-ack", 0x58),
    ("cf-poll", 0x68),
    ("cf-ack-poll", 0x78),
    ("qos-data", 0x88),
    ("qos-data-cf-ack", 0x98),
    ("qos-data-cf-poll", 0xa8),
    ("qos-data-cf-ack-poll", 0xb8),
    ("qos", 0xc8),
    ("qos-cf-poll", 0xe8),
    ("qos-cf-ack-poll", 0xf8),
];

/// The To DS and From DS bits.
pub(crate) const WLAN_DIRECTIONS: &[(&str, u32)] =
    &[("nods", 0), ("tods", 1), ("fromds", 2), ("dstods", 3)];

pub(crate) fn lookup<T: Copy>(table: &[(&str, T)], name: &str) -> Option<T> {
    table
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, value)| *value)
}

/// Protocols for hosts without `/etc/protocols` (IANA "Protocol Numbers").
const PROTOCOLS: &[(&str, u32)] = &[
    ("ip", 0),
    ("icmp", 1),
    ("igmp", 2),
    ("ipencap", 4),
    ("tcp", 6),
    ("egp", 8),
    ("igp", 9),
    ("udp", 17),
    ("dccp", 33),
    ("ipv6", 41),
    ("ipv6-route", 43),
    ("ipv6-frag", 44),
    ("rsvp", 46),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("ipv6-icmp", 58),
    ("ipv6-nonxt", 59),
    ("ipv6-opts", 60),
    ("eigrp", 88),
    ("ospf", 89),
    ("ipip", 94),
    ("etherip", 97),
    ("pim", 103),
    ("vrrp", 112),
    ("l2tp", 115),
    ("isis", 124),
    ("sctp", 132),
    ("udplite", 136),
    ("mpls-in-ip", 137),
];

/// The number of a protocol of the IP header.
pub(crate) fn ip_protocol(name: &str) -> Option<u32> {
    let file = std::fs::read_to_string("/etc/protocols").ok();
    let found = entries(file.as_deref().unwrap_or(""))
        .find(|(_, names)| names.clone().any(|known| known == name))
        .and_then(|(number, _)| number.parse().ok());
    found.or_else(|| lookup(PROTOCOLS, name))
}

/// Services for hosts without `/etc/services` (IANA "Service Name and Transport Protocol Port
/// Number Registry"), and whether they run on TCP and on UDP.
const SERVICES: &[(&str, u16, bool, bool)] = &[
    ("echo", 7, true, true),
    ("discard", 9, true, true),
    ("daytime", 13, true, true),
    ("ftp-data", 20, true, false),
    ("ftp", 21, true, false),
    ("ssh", 22, true, false),
    ("telnet", 23, true, false),
    ("smtp", 25, true, false),
    ("domain", 53, true, true),
    ("bootps", 67, false, true),
    ("bootpc", 68, false, true),
    ("tftp", 69, false, true),
    ("http", 80, true, false),
    ("kerberos", 88, true, true),
    ("pop3", 110, true, false),
    ("sunrpc", 111, true, true),
    ("ntp", 123, false, true),
    ("imap2", 143, true, false),
    ("snmp", 161, true, true),
    ("snmp-trap", 162, true, true),
    ("bgp", 179, true, false),
    ("ldap", 389, true, true),
    ("https", 443, true, true),
    ("syslog", 514, false, true),
    ("route", 520, false, true),
    ("ldaps", 636, true, true),
    ("imaps", 993, true, false),
    ("pop3s", 995, true, false),
    ("mysql", 3306, true, false),
    ("postgresql", 5432, true, false),
];

/// The port of a service, and its transport if the name exists for only one.
///
/// A name that means different ports on TCP and UDP means the one on TCP.
pub(crate) fn service(name: &str) -> Option<(u16, Option<Transport>)> {
    let file = std::fs::read_to_string("/etc/services").ok();
    let file = file.as_deref().unwrap_or("");
    let port_on = |transport: &str| -> Option<u16> {
        entries(file).find_map(|(port, names)| {
            let (port, protocol) = port.split_once('/')?;
            (protocol == transport && names.clone().any(|known| known == name))
                .then(|| port.parse().ok())?
        })
    };
    let built_in = SERVICES.iter().find(|(known, ..)| *known == name);
    let (tcp, udp) = match (port_on("tcp"), port_on("udp"), built_in) {
        (None, None, Some((_, port, tcp, udp))) => (tcp.then_some(*port), udp.then_some(*port)),
        (tcp, udp, _) => (tcp, udp),
    };
    match (tcp, udp) {
        (Some(tcp), Some(udp)) if tcp == udp => Some((tcp, None)),
        (Some(tcp), _) => Some((tcp, Some(Transport::Tcp))),
        (None, Some(udp)) => Some((udp, Some(Transport::Udp))),
        (None, None) => None,
    }
}

/// The lines of services(5) and protocols(5): the second column, then all names.
fn entries(file: &str) -> impl Iterator<Item = (&str, impl Iterator<Item = &str> + Clone)> {
    file.lines().filter_map(|line| {
        let line = line.split('#').next()?;
        let mut words = line.split_whitespace();
        let name = words.next()?;
        let value = words.next()?;
        Some((value, std::iter::once(name).chain(words)))
    })
}
