//! Expressions as regions: compared with the filter itself on real packets, and checked by algebra.

use proptest::prelude::*;
use strata_capture::{Input, InputOptions, Next};
use strata_filter::{Expr, Filter};
use strata_rules::{PacketFields, Region, Rule, RuleSet, TranslateError, UNTAGGED, regions};
use strata_testkit::data_dir;
use strata_wire::dissect::dissect;
use strata_wire::{AddressFamily, LinkType, TunnelKey};

use crate::support::classbench::Random;

const EXPRESSIONS: &[&str] = &[
    "",
    "ip",
    "ip6",
    "tcp",
    "udp or icmp",
    "icmp6",
    "tcp port 80",
    "port 53",
    "src port 53 or dst port 443",
    "tcp portrange 1-1023",
    "udp and not port 53",
    "not tcp",
    "not (tcp or udp)",
    "host 192.168.10.50",
    "src net 192.168.10.0/24 and not dst net 192.168.0.0/16",
    "net 172.16.0.0/12",
    "src and dst net 192.168.10.0/24",
    "not port 22 and not port 80",
    "ip multicast",
    "ip6 multicast",
    "ip broadcast",
    "ip proto 17",
    "ip6 proto 58",
    "proto 6",
    "net 224.0.0.0/3 or net 0.0.0.0/0",
    "not net 224.0.0.0/3",
    "src net 192.168.10.0/24 and tcp port 443",
    "(tcp port 80 or tcp port 443) and (net 192.168.10.0/24 or ip6)",
    "not (src net 192.168.10.0/24 and dst port 53)",
    "net fe80::/10",
    "ip6 and udp port 5353",
    "ether proto \\arp or ip",
    "arp",
    "not arp",
];

fn holds(regions: &[Region], packet: &PacketFields) -> bool {
    regions.iter().any(|region| region.contains(packet))
}

/// On packets without tags, tunnels, fragments and extension headers, a policy matches what the
/// capture filter matches.
#[test]
fn policies_agree_with_filters_on_plain_packets() {
    let mut compiled = Vec::new();
    for &text in EXPRESSIONS {
        let filter = Filter::parse(text).unwrap();
        let program = filter.compile(LinkType::ETHERNET).unwrap();
        compiled.push((text, regions(&filter).unwrap(), program, 0_u64));
    }
    let files = ["labelled/mix-test/trace.pcap"].map(|name| data_dir().join(name));
    let captures = strata_testkit::format_captures();
    let mut compared = 0_u64;
    for file in files.iter().chain(captures.iter().step_by(3)) {
        let Ok(mut input) = Input::open(std::slice::from_ref(file), &InputOptions::default())
        else {
            continue;
        };
        let mut links = Vec::new();
        loop {
            match input.advance() {
                Ok(Next::Meta(strata_wire::Meta::Interface { interface, .. })) => {
                    links.push(interface.link);
                }
                Ok(Next::Meta(_)) => {}
                Ok(Next::Packets) => {
                    let batch = input.batch();
                    for index in 0..batch.len() {
                        let packet = batch.get(index);
                        if links[usize::from(packet.interface)] != LinkType::ETHERNET {
                            continue;
                        }
                        let Some(fields) = plain(packet.data) else {
                            continue;
                        };
                        compared += 1;
                        for (text, regions, program, matched) in &mut compiled {
                            let expected = program.matches(packet.data, packet.wire_len);
                            assert_eq!(holds(regions, &fields), expected, "{text}: {fields:x?}");
                            *matched += u64::from(expected);
                        }
                    }
                    if compared > 60_000 {
                        break;
                    }
                }
                Ok(Next::End) | Err(_) => break,
            }
        }
    }
    assert!(compared > 20_000, "{compared}");
    let never: Vec<_> = compiled
        .iter()
        .filter(|entry| entry.3 == 0)
        .map(|entry| entry.0)
        .collect();
    assert!(never.len() <= 3, "no packet matched these: {never:?}");
}

/// The fields of a packet on which policies and filters must agree.
fn plain(packet: &[u8]) -> Option<PacketFields> {
    let headers = dissect(LinkType::ETHERNET, packet, TunnelKey::Inner);
    let key = headers.key?;
    let kind = u16::from_be_bytes([packet[12], packet[13]]);
    let is_plain = match key.family {
        AddressFamily::Ipv4 => kind == 0x0800 && headers.networks == 1,
        AddressFamily::Ipv6 => {
            kind == 0x86dd && headers.networks == 1 && packet[20] == key.protocol
        }
        AddressFamily::Mac => kind == 0x0806 && headers.outer.is_none(),
    };
    // Where the capture cut a header short, a filter reads past the end and rejects.
    let whole = packet.len() >= 14 + 40 + 20;
    (is_plain && whole && headers.fragment.is_none() && !headers.incomplete)
        .then(|| PacketFields::new(&headers, 0, UNTAGGED))
}

fn random_packet(random: &mut Random) -> PacketFields {
    let family = [AddressFamily::Mac, AddressFamily::Ipv4, AddressFamily::Ipv6]
        [usize::try_from(random.below(3)).unwrap()];
    let mut address = || match family {
        AddressFamily::Ipv4 => u128::from(
            [0x0a01_0203_u32, 0x0a01_ffff, 0xc000_0201, 0, u32::MAX]
                [usize::try_from(random.below(5)).unwrap()],
        ),
        AddressFamily::Ipv6 => {
            [1, 0xff02 << 112, u128::MAX][usize::try_from(random.below(3)).unwrap()]
        }
        AddressFamily::Mac => random.below(1 << 48).into(),
    };
    let (source, destination) = (address(), address());
    let port = |random: &mut Random| {
        [0_u16, 22, 79, 80, 81, 443, 1024, u16::MAX][usize::try_from(random.below(8)).unwrap()]
    };
    PacketFields {
        source,
        destination,
        source_port: port(random),
        destination_port: port(random),
        vlan: [UNTAGGED, 0, 5, 4095][usize::try_from(random.below(4)).unwrap()],
        interface: 0,
        protocol: if family == AddressFamily::Mac {
            0
        } else {
            [6, 17, 132, 1, 58, 0][usize::try_from(random.below(6)).unwrap()]
        },
        family,
    }
}

fn expression() -> impl Strategy<Value = Expr> {
    let leaves = [
        "tcp",
        "port 80",
        "udp",
        "net 10.1.0.0/16",
        "src host ::1",
        "vlan 5",
        "vlan",
        "icmp",
        "dst portrange 79-443",
        "ip6",
        "ip multicast",
    ];
    let leaf = prop::sample::select(
        leaves
            .map(|text| Filter::parse(text).unwrap().ast().clone())
            .to_vec(),
    );
    leaf.prop_recursive(3, 10, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..4).prop_map(Expr::and),
            prop::collection::vec(inner.clone(), 1..4).prop_map(Expr::or),
            inner.prop_map(Expr::negate),
        ]
    })
}

fn means(expr: &Expr, packet: &PacketFields) -> bool {
    match expr {
        Expr::Any => true,
        Expr::And(parts) => parts.iter().all(|part| means(part, packet)),
        Expr::Or(parts) => parts.iter().any(|part| means(part, packet)),
        Expr::Not(inner) => !means(inner, packet),
        Expr::Test(_) => holds(&regions(&Filter::from(expr.clone())).unwrap(), packet),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn and_or_not_mean_what_they_say(expr in expression(), seed in any::<u64>()) {
        let mut random = Random::new(seed);
        let found = match regions(&Filter::from(expr.clone())) {
            Ok(found) => found,
            Err(TranslateError::Empty { .. }) => Vec::new(),
            Err(TranslateError::TooMany { .. }) => return Ok(()),
            Err(error) => panic!("{error}"),
        };
        for _ in 0..60 {
            let packet = random_packet(&mut random);
            prop_assert_eq!(holds(&found, &packet), means(&expr, &packet), "{:?}", packet);
        }
    }
}

#[test]
fn untranslatable_expressions_are_refused_with_a_reason() {
    for (text, reason) in [
        ("tcp[13] & 2 != 0", "not bytes or lengths"),
        ("tcp and greater 100", "not bytes or lengths"),
        ("ether host 02:00:00:00:00:01", "MAC addresses"),
        ("mpls 5", "look through"),
        ("ether proto 0x8847", "look through"),
        ("net 10.0.5.0 mask 255.0.255.0", "not a prefix"),
        ("arp host 10.0.0.1", "ARP"),
        ("ip protochain 6", "extension headers"),
        ("tcp and udp", "no packet can match"),
    ] {
        let error = regions(&Filter::parse(text).unwrap())
            .unwrap_err()
            .to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
}

#[test]
fn usual_policies_take_few_rules() {
    for (text, most) in [
        ("src net 10.1.0.0/16 and port 443", 6),
        ("host 192.0.2.1", 2),
        ("not net 10.0.0.0/8", 8),
        ("tcp port 80 or tcp port 443", 4),
        ("not port 22", 40),
    ] {
        let count = regions(&Filter::parse(text).unwrap()).unwrap().len();
        assert!(count <= most, "{text}: {count}");
    }
}

/// Rules that leave addresses and ports of IPv4 packets alone are known as such, and no others: so packets of
/// a protocol match alike.
#[test]
fn rules_of_protocols_alone_are_told_from_others() {
    let alone = [
        "",
        "ip",
        "ip6",
        "tcp",
        "udp or icmp",
        "icmp6",
        "not tcp",
        "not (tcp or udp)",
        "ip6 multicast",
        "ip proto 17",
        "ip6 proto 58",
        "proto 6",
        // The latter is all of them.
        "net 224.0.0.0/3 or net 0.0.0.0/0",
        "net fe80::/10",
    ];
    let others = [
        "tcp port 80",
        "port 53",
        "udp and not port 53",
        "host 192.168.10.50",
        "ip multicast",
    ];
    let mut random = Random::new(5);
    for &text in EXPRESSIONS {
        let regions = regions(&Filter::parse(text).unwrap()).unwrap();
        let rule = |&region| Rule {
            region,
            priority: 1,
            policy: 0,
        };
        let rules: Vec<Rule> = regions.iter().map(rule).collect();
        let is_alone = RuleSet::new(&rules, 1).is_v4_by_protocol();
        assert!(is_alone || !alone.contains(&text), "{text}");
        assert!(!is_alone || !others.contains(&text), "{text}");
        for _ in 0..1000 {
            let (packet, other) = (random_packet(&mut random), random_packet(&mut random));
            let same = PacketFields {
                source: other.source & 0xffff_ffff,
                destination: other.destination & 0xffff_ffff,
                source_port: other.source_port,
                destination_port: other.destination_port,
                ..packet
            };
            if is_alone && packet.family == AddressFamily::Ipv4 {
                let alike = holds(&regions, &packet) == holds(&regions, &same);
                assert!(alike, "{text}: {packet:?} {same:?}");
            }
        }
    }
}
