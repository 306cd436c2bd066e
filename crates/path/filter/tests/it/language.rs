//! The language by itself: what is displayed parses again, and nothing panics.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use proptest::sample::select;
use strata_filter::{
    AddressScope, Arith, Direction, Expr, Filter, Header, IpVersion, Llc, MacAddress, MacDirection,
    Network, Operator, Relation, Test, Transport, Width,
};
use strata_wire::LinkType;

use crate::support::{LINKS, expressions, link_type};

fn direction() -> impl Strategy<Value = Direction> {
    select(vec![
        Direction::Either,
        Direction::Both,
        Direction::Source,
        Direction::Destination,
    ])
}

fn address() -> impl Strategy<Value = Test> {
    let v4 = (
        any::<u32>(),
        prop_oneof![any::<u32>(), Just(u32::MAX), Just(0xffff_ff00)],
    );
    let v4_scope = select(vec![
        None,
        Some(AddressScope::Ip),
        Some(AddressScope::Arp),
        Some(AddressScope::Rarp),
    ]);
    let v4 = (v4, v4_scope, direction()).prop_map(|((address, mask), scope, direction)| {
        let network = Network::V4 {
            address: Ipv4Addr::from(address & mask),
            mask: Ipv4Addr::from(mask),
        };
        Test::Address {
            scope,
            direction,
            network,
        }
    });
    let v6_scope = select(vec![None, Some(AddressScope::Ip6)]);
    let v6 = (any::<u128>(), 0_u8..=128, v6_scope, direction()).prop_map(
        |(address, prefix, scope, direction)| {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
            let network = Network::V6 {
                address: Ipv6Addr::from(address & mask),
                prefix,
            };
            Test::Address {
                scope,
                direction,
                network,
            }
        },
    );
    prop_oneof![v4, v6]
}

fn mac() -> impl Strategy<Value = Test> {
    let direction = select(vec![
        MacDirection::Either,
        MacDirection::Both,
        MacDirection::Source,
        MacDirection::Destination,
        MacDirection::Receiver,
        MacDirection::Transmitter,
        MacDirection::Address1,
        MacDirection::Address2,
        MacDirection::Address3,
        MacDirection::Address4,
    ]);
    (direction, any::<[u8; 6]>()).prop_map(|(direction, address)| Test::Mac {
        direction,
        address: MacAddress(address),
    })
}

fn port() -> impl Strategy<Value = Test> {
    let transport = select(vec![
        None,
        Some(Transport::Tcp),
        Some(Transport::Udp),
        Some(Transport::Sctp),
    ]);
    (transport, direction(), any::<u16>(), any::<u16>()).prop_map(
        |(transport, direction, one, two)| Test::Port {
            transport,
            direction,
            low: one.min(two),
            high: one.max(two),
        },
    )
}

fn arith() -> impl Strategy<Value = Arith> {
    let leaf = prop_oneof![any::<u32>().prop_map(Arith::Number), Just(Arith::Length)];
    let header = select(vec![
        Header::Link,
        Header::Radio,
        Header::Ip,
        Header::Ip6,
        Header::Arp,
        Header::Rarp,
        Header::Atalk,
        Header::Decnet,
        Header::Lat,
        Header::Sca,
        Header::Moprc,
        Header::Mopdl,
        Header::Tcp,
        Header::Udp,
        Header::Sctp,
        Header::Icmp,
        Header::Igmp,
        Header::Igrp,
        Header::Pim,
        Header::Vrrp,
        Header::Carp,
        Header::Icmp6,
    ]);
    let width = select(vec![Width::Byte, Width::Half, Width::Word]);
    let operator = select(vec![
        Operator::Add,
        Operator::Subtract,
        Operator::Multiply,
        Operator::Divide,
        Operator::Modulo,
        Operator::And,
        Operator::Or,
        Operator::Xor,
        Operator::ShiftLeft,
        Operator::ShiftRight,
    ]);
    leaf.prop_recursive(4, 24, 3, move |inner| {
        prop_oneof![
            (header.clone(), inner.clone(), width.clone()).prop_map(|(header, offset, bytes)| {
                Arith::Load {
                    header,
                    offset: Box::new(offset),
                    bytes,
                }
            }),
            inner
                .clone()
                .prop_map(|inner| Arith::Negate(Box::new(inner))),
            (operator.clone(), inner.clone(), inner).prop_map(|(operator, left, right)| {
                // These are refused as constants.
                let right = match (operator, right) {
                    (Operator::Divide | Operator::Modulo, Arith::Number(0)) => Arith::Number(1),
                    (Operator::ShiftLeft | Operator::ShiftRight, Arith::Number(bits)) => {
                        Arith::Number(bits % 32)
                    }
                    (_, right) => right,
                };
                Arith::Binary {
                    operator,
                    left: Box::new(left),
                    right: Box::new(right),
                }
            }),
        ]
    })
}

fn compare() -> impl Strategy<Value = Test> {
    let relation = select(vec![
        Relation::Equal,
        Relation::NotEqual,
        Relation::Less,
        Relation::LessEqual,
        Relation::Greater,
        Relation::GreaterEqual,
    ]);
    (arith(), relation, arith()).prop_map(|(left, relation, right)| Test::Compare {
        left,
        relation,
        right,
    })
}

fn test() -> impl Strategy<Value = Test> {
    let version = select(vec![IpVersion::Any, IpVersion::V4, IpVersion::V6]);
    let number = prop_oneof![0_u32..256, any::<u32>()];
    let ether = prop_oneof![
        select(vec![
            0x800_u32, 0x86dd, 0x806, 0x8035, 0xfe, 0x42, 0xe0, 0xf0, 0x809b, 0x80f3
        ]),
        any::<u32>(),
    ];
    let llc = select(vec![
        Llc::Any,
        Llc::Information,
        Llc::Supervisory,
        Llc::Unnumbered,
        Llc::SupervisoryKind(5),
        Llc::UnnumberedKind(0x6f),
    ]);
    let id = |max: u32| proptest::option::of(0..=max);
    let plain = select(vec![
        Test::EtherBroadcast,
        Test::IpBroadcast,
        Test::EtherMulticast,
        Test::IpMulticast,
        Test::Ip6Multicast,
        Test::Inbound,
        Test::Outbound,
        Test::PppoeDiscovery,
    ]);
    prop_oneof![
        address(),
        mac(),
        port(),
        compare(),
        plain,
        ether.prop_map(Test::EtherProto),
        (version.clone(), number.clone())
            .prop_map(|(version, number)| Test::IpProto { version, number }),
        (version, number.clone())
            .prop_map(|(version, number)| Test::ProtoChain { version, number }),
        number.clone().prop_map(Test::IsoProto),
        number.clone().prop_map(Test::IsIsProto),
        number.clone().prop_map(Test::IfIndex),
        number.prop_map(Test::WlanDirection),
        id(0xfff).prop_map(Test::Vlan),
        id(0xf_ffff).prop_map(Test::Mpls),
        id(0xffff).prop_map(Test::PppoeSession),
        id(0xff_ffff).prop_map(Test::Geneve),
        llc.prop_map(Test::Llc),
        (0_u8..4).prop_map(|bits| Test::WlanType(bits << 2)),
        any::<u8>().prop_map(|bits| Test::WlanSubtype(bits & 0xfc)),
    ]
}

fn expr() -> impl Strategy<Value = Expr> {
    test()
        .prop_map(Expr::from)
        .prop_recursive(5, 32, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 2..5).prop_map(Expr::and),
                proptest::collection::vec(inner.clone(), 2..5).prop_map(Expr::or),
                inner.prop_map(Expr::negate),
            ]
        })
}

/// Words of the language in any order.
fn word_salad() -> impl Strategy<Value = String> {
    let words: Vec<String> = expressions::PRIMITIVES
        .iter()
        .chain(expressions::GRAMMAR)
        .flat_map(|expression| expression.split(' '))
        .map(str::to_owned)
        .chain(["(", ")", "[", "]", ":", "-", "/", "and", "or", "not"].map(str::to_owned))
        .collect();
    proptest::collection::vec(select(words), 0..12).prop_map(|words| words.join(" "))
}

/// Does everything that can be done with a text, to check for panics.
fn exercise(text: &str, packet: &[u8]) {
    let filter = match Filter::parse(text) {
        Ok(filter) => filter,
        Err(error) => {
            assert!(error.span().end <= text.len() && error.span().start <= error.span().end);
            assert!(error.to_string().contains('^'));
            return;
        }
    };
    assert_eq!(
        Filter::parse(&filter.to_string()).as_ref(),
        Ok(&filter),
        "{text}"
    );
    let _ = (filter.host_bounds(), filter.flow_bound());
    for link in LINKS.map(link_type).into_iter().chain([LinkType(147)]) {
        if let Ok(program) = filter.compile(link) {
            let _ = program.matches(packet, 60);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn printed_trees_parse_to_themselves(expr in expr()) {
        let printed = expr.to_string();
        let parsed = Filter::parse(&printed);
        prop_assert!(parsed.is_ok(), "{}: {}", printed, parsed.unwrap_err());
        prop_assert_eq!(parsed.unwrap(), Filter::from(expr), "{}", printed);
    }

    #[test]
    fn no_program_panics(expr in expr(), packet in proptest::collection::vec(any::<u8>(), 0..200)) {
        let filter = Filter::from(expr);
        for link in LINKS.map(link_type) {
            if let Ok(program) = filter.compile(link) {
                let _ = program.matches(&packet, u32::MAX);
            }
        }
    }

    #[test]
    fn no_words_panic(text in word_salad(), packet in proptest::collection::vec(any::<u8>(), 0..100)) {
        exercise(&text, &packet);
    }

    #[test]
    fn no_text_panics(text in "\\PC{0,60}") {
        exercise(&text, &[0x45; 60]);
    }

    #[test]
    fn no_signs_panic(text in "[a-z0-9 .:/\\\\()\\[\\]&|!<>=^%*+-]{0,40}") {
        exercise(&text, &[0x45; 60]);
    }

    /// Every address of a match is in the bound, if there is a bound.
    #[test]
    fn the_bound_holds(expr in expr(), packet in proptest::collection::vec(any::<u8>(), 34..80)) {
        let filter = Filter::from(expr);
        let Ok(program) = filter.compile(LinkType::RAW) else { return Ok(()) };
        let bounds = filter.host_bounds();
        let mut packet = packet;
        packet[0] = 0x45;
        // Give the filter something to match.
        for (set, at) in bounds.iter().zip([12, 16]) {
            if let Some(std::net::IpAddr::V4(address)) = set.first() {
                packet[at..at + 4].copy_from_slice(&address.octets());
            }
        }
        if program.matches(&packet, 60) {
            let address = |at: usize| {
                let bytes: [u8; 4] = packet[at..at + 4].try_into().unwrap();
                Ipv4Addr::from(bytes).into()
            };
            for set in bounds {
                prop_assert!(set.contains(&address(12)) || set.contains(&address(16)));
            }
        }
    }
}

#[test]
fn all_expressions_print_and_parse() {
    let combined = expressions::combinations(500);
    let all = expressions::PRIMITIVES
        .iter()
        .copied()
        .chain(combined.iter().map(String::as_str));
    for expression in all {
        let filter = Filter::parse(expression).expect(expression);
        let printed = filter.to_string();
        assert_eq!(
            Filter::parse(&printed).expect(&printed),
            filter,
            "{expression} -> {printed}"
        );
    }
}

#[test]
fn size_and_depth_are_bounded() {
    let long = vec!["host 192.0.2.1"; 50_000].join(" or ");
    let filter = Filter::parse(&long).expect("a long list is no deep tree");
    assert!(matches!(filter.ast(), Expr::Or(parts) if parts.len() == 50_000));
    let program = filter
        .compile(LinkType::ETHERNET)
        .expect("and no large stack");
    assert!(!program.matches(&[0; 60], 60));
    let alternating = vec!["ip and tcp or udp"; 10_000].join(" or ");
    for (expression, words) in [
        ("(".repeat(100_000), "nested"),
        ("not ".repeat(100_000) + "ip", "nested"),
        ("-".repeat(100_000) + "1 = 1", "operators"),
        (
            format!("{}1{} = 1", "(".repeat(10_000), ")".repeat(10_000)),
            "nested",
        ),
        (
            format!("{}0{} = 1", "ip[".repeat(10_000), "]".repeat(10_000)),
            "nested",
        ),
        (vec!["1"; 10_000].join(" + ") + " = 1", "operators"),
        (vec!["1"; 10_000].join(" ^ ") + " = 1", "operators"),
        (alternating, "alternate"),
        ("x".repeat(5000), "characters"),
        (" ".repeat(2 << 20), "bytes"),
    ] {
        let error = Filter::parse(&expression).expect_err("must be refused");
        assert!(error.message().contains(words), "{}", error.message());
    }
    let deep = format!("{}len{} = 1", "1 + (".repeat(60), ")".repeat(60));
    let error = Filter::parse(&deep)
        .expect("is understood")
        .compile(LinkType::ETHERNET);
    assert!(
        error
            .expect_err("has too many registers")
            .to_string()
            .contains("too large")
    );
}

#[test]
fn length_is_that_on_the_wire() {
    let program = |text: &str| {
        Filter::parse(text)
            .expect(text)
            .compile(LinkType::ETHERNET)
            .expect(text)
    };
    assert!(program("len = 1500").matches(&[0; 60], 1500));
    assert!(program("greater 1000").matches(&[], 1500));
    assert!(!program("less 1000").matches(&[], 1500));
    assert!(program("").matches(&[], 0));
}

#[test]
fn filters_that_may_test_payload_are_known() {
    for (text, may) in [
        ("", false),
        ("tcp port 80 and host 10.0.0.1 and greater 100", false),
        (
            "tcp[tcpflags] & tcp-syn != 0 and tcp[13] != 2 and ip[16:4] = 1",
            false,
        ),
        (
            "icmp[icmptype] = 8 or ether[12:2] = 0x806 or udp[4:2] > len - 40",
            false,
        ),
        ("tcp[19] = 0", false),
        ("tcp[20] = 0", true),
        ("tcp[18:4] = 0", true),
        ("not (udp or (tcp and udp[8] > 7))", true),
        ("tcp[((tcp[12] & 0xf0) >> 2)] = 0x47", true),
        ("1 = ip[0xffffffff]", true),
        ("ip[2+40] = 0", true),
        ("ether[14] = 0", true),
        ("len = udp[20]", true),
        ("geneve 7 and ip", true),
    ] {
        let filter = Filter::parse(text).expect(text);
        assert_eq!(filter.may_test_payload(), may, "{text}");
    }
}

#[test]
fn a_load_beyond_the_packet_always_rejects_it() {
    let ip = [&[0; 12][..], &[8, 0, 0x45]].concat();
    let matches = |text: &str| {
        let filter = Filter::parse(text).expect(text);
        filter
            .compile(LinkType::ETHERNET)
            .expect(text)
            .matches(&ip, 1500)
    };
    assert!(matches("ip"));
    assert!(!matches("tcp"));
    assert!(!matches("not tcp"));
    assert!(matches("ip or tcp"));
    assert!(!matches("tcp or ip"));
    assert!(!matches("ip and ip[0] / ip[100] = 1 or ip"));
}

#[test]
fn repeated_tests_are_made_once() {
    let count = |text: &str| {
        let filter = Filter::parse(text).expect(text);
        filter.compile(LinkType::ETHERNET).expect(text).step_count()
    };
    assert!(count("host 192.0.2.1") < count("src host 192.0.2.1") * 2);
    assert_eq!(count("tcp and tcp"), count("tcp"));
}

/// Found by fuzzing: the display nests deeper than the input.
#[test]
fn expressions_that_would_not_parse_again_are_refused() {
    for nots in 1..120 {
        let unit = format!(" and {}host 80.0.0.1 or 53", "!".repeat(nots));
        let text = format!("port 53{}", unit.repeat(6));
        if let Ok(filter) = Filter::parse(&text) {
            let again = Filter::parse(&filter.to_string()).unwrap();
            assert_eq!(again.ast(), filter.ast());
        }
    }
}

/// Found by fuzzing: each minus sign was displayed with its own parentheses, which counted as
/// nesting again.
#[test]
fn many_minus_signs_parse_again_as_displayed() {
    let text = format!("{}5 = len", "- ".repeat(60));
    let filter = Filter::parse(&text).unwrap();
    let again = Filter::parse(&filter.to_string()).unwrap();
    assert_eq!(again.ast(), filter.ast());
    // As deep to the right as operators permit, and more of them.
    let text = format!("{}5{} = len", "4 % - (".repeat(30), ")".repeat(30));
    let filter = Filter::parse(&text).unwrap();
    assert_eq!(
        Filter::parse(&filter.to_string()).unwrap().ast(),
        filter.ast()
    );
    let error = Filter::parse(&format!("{}5 = len", "1 + ".repeat(61))).unwrap_err();
    assert!(error.to_string().contains("60 operators"), "{error}");
}
