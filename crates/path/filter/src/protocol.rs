//! What a protocol's keyword means alone, before `[`, and before `broadcast`.

use crate::ast::{Expr, Header, IpVersion, Test};
use crate::names::Proto;

/// A protocol's keyword alone.
pub(crate) fn abbreviation(proto: Proto) -> Result<Expr, String> {
    let any = |number| Test::IpProto {
        version: IpVersion::Any,
        number,
    };
    let v4 = |number| Test::IpProto {
        version: IpVersion::V4,
        number,
    };
    // ISO/IEC 10589 section 9: PDU types. 15..17 hellos, 18 and 20 link state, 24 to 27
    // sequence numbers, the lower of each pair for level 1.
    let pdus = |types: &[u32]| Expr::or(types.iter().map(|t| Test::IsIsProto(*t).into()));
    let test = match proto {
        Proto::Link => {
            return Err(
                "'ether' alone is not a test; write 'ether host', 'ether proto' or 'ether[0]'"
                    .to_owned(),
            );
        }
        Proto::Radio => {
            return Err("'radio' alone is not a test; write 'radio[0] = 1'".to_owned());
        }
        Proto::Ip => Test::EtherProto(0x0800),
        Proto::Ip6 => Test::EtherProto(0x86dd),
        Proto::Arp => Test::EtherProto(0x0806),
        Proto::Rarp => Test::EtherProto(0x8035),
        Proto::Atalk => Test::EtherProto(0x809b),
        Proto::Aarp => Test::EtherProto(0x80f3),
        Proto::Decnet => Test::EtherProto(0x6003),
        Proto::Lat => Test::EtherProto(0x6004),
        Proto::Sca => Test::EtherProto(0x6007),
        Proto::Moprc => Test::EtherProto(0x6002),
        Proto::Mopdl => Test::EtherProto(0x6001),
        Proto::Iso => Test::EtherProto(0xfe),
        Proto::Stp => Test::EtherProto(0x42),
        Proto::Ipx => Test::EtherProto(0xe0),
        Proto::Netbeui => Test::EtherProto(0xf0),
        Proto::Tcp => any(6),
        Proto::Udp => any(17),
        Proto::Sctp => any(132),
        Proto::Pim => any(103),
        Proto::Ah => any(51),
        Proto::Esp => any(50),
        Proto::Icmp => v4(1),
        Proto::Igmp => v4(2),
        Proto::Igrp => v4(9),
        Proto::Vrrp | Proto::Carp => v4(112),
        Proto::Icmp6 => Test::IpProto {
            version: IpVersion::V6,
            number: 58,
        },
        Proto::Clnp => Test::IsoProto(0x81),
        Proto::Esis => Test::IsoProto(0x82),
        Proto::Isis => Test::IsoProto(0x83),
        Proto::L1 => return Ok(pdus(&[26, 24, 18, 15, 17])),
        Proto::L2 => return Ok(pdus(&[27, 25, 20, 16, 17])),
        Proto::Iih => return Ok(pdus(&[17, 15, 16])),
        Proto::Lsp => return Ok(pdus(&[18, 20])),
        Proto::Snp => return Ok(pdus(&[27, 26, 24, 25])),
        Proto::Csnp => return Ok(pdus(&[24, 25])),
        Proto::Psnp => return Ok(pdus(&[26, 27])),
    };
    Ok(test.into())
}

/// A protocol's keyword before `[`.
pub(crate) fn header(proto: Proto) -> Result<Header, String> {
    Ok(match proto {
        Proto::Link => Header::Link,
        Proto::Radio => Header::Radio,
        Proto::Ip => Header::Ip,
        Proto::Ip6 => Header::Ip6,
        Proto::Arp => Header::Arp,
        Proto::Rarp => Header::Rarp,
        Proto::Atalk => Header::Atalk,
        Proto::Decnet => Header::Decnet,
        Proto::Lat => Header::Lat,
        Proto::Sca => Header::Sca,
        Proto::Moprc => Header::Moprc,
        Proto::Mopdl => Header::Mopdl,
        Proto::Tcp => Header::Tcp,
        Proto::Udp => Header::Udp,
        Proto::Sctp => Header::Sctp,
        Proto::Icmp => Header::Icmp,
        Proto::Igmp => Header::Igmp,
        Proto::Igrp => Header::Igrp,
        Proto::Pim => Header::Pim,
        Proto::Vrrp => Header::Vrrp,
        Proto::Carp => Header::Carp,
        Proto::Icmp6 => Header::Icmp6,
        _ => {
            return Err(
                "bytes of this protocol cannot be addressed; count from a header below \
                        it, as in 'ip[20]' or 'ether[14]'"
                    .to_owned(),
            );
        }
    })
}

/// `broadcast` after a protocol or alone.
pub(crate) fn broadcast(proto: Option<Proto>) -> Result<Test, String> {
    match proto {
        None | Some(Proto::Link) => Ok(Test::EtherBroadcast),
        Some(Proto::Ip) => Ok(Test::IpBroadcast),
        Some(Proto::Ip6) => {
            Err("IPv6 has no broadcast; write 'ip6 multicast' or 'ip6 dst ff02::1'".to_owned())
        }
        Some(_) => Err("only 'ether' and 'ip' can precede 'broadcast'".to_owned()),
    }
}

/// `multicast` after a protocol or alone.
pub(crate) fn multicast(proto: Option<Proto>) -> Result<Test, String> {
    match proto {
        None | Some(Proto::Link) => Ok(Test::EtherMulticast),
        Some(Proto::Ip) => Ok(Test::IpMulticast),
        Some(Proto::Ip6) => Ok(Test::Ip6Multicast),
        Some(_) => Err("only 'ether', 'ip' and 'ip6' can precede 'multicast'".to_owned()),
    }
}
