//! Compares every search with the linear scan.

use std::sync::Arc;

use proptest::prelude::*;
use strata_rules::{
    AnswerId, Answers, Field, PacketFields, Region, Rule, RuleClassifier, RuleSet, Span, UNTAGGED,
    linear_scan,
};
use strata_wire::AddressFamily;

use crate::support::classbench::{self, Kind, Random};
use crate::support::peers::{MaskArrays, MegaflowForm, Megaflows, Tuples};

/// Few, close values, so that rules overlap and packets hit their edges.
fn spans(field: Field) -> BoxedStrategy<Span> {
    let prefix = |bits: u32, base: u128| {
        (0..=bits, 0_u128..40).prop_map(move |(length, at)| {
            let all = u128::MAX >> (128 - bits);
            let hosts = all.checked_shr(length).unwrap_or(0);
            let low = (base ^ at) & all & !hosts;
            Span::new(low, low | hosts)
        })
    };
    match field {
        Field::Source => prefix(32, 0x0a00_0000).boxed(),
        Field::Destination => prefix(128, 0x2001_0db8 << 96).boxed(),
        _ => {
            let max = field.max();
            (0_u128..6, 0_u128..6, any::<bool>())
                .prop_map(move |(a, b, high)| {
                    let low = a.min(max);
                    Span::new(low, if high { max } else { (a + b).min(max) })
                })
                .boxed()
        }
    }
}

fn region() -> impl Strategy<Value = Region> {
    let address = (prop::sample::select(vec![4_u128, 6]), any::<[bool; 2]>());
    let v4 = (spans(Field::Source), spans(Field::Source));
    let v6 = (spans(Field::Destination), spans(Field::Destination));
    let others = prop::collection::vec(
        (
            any::<prop::sample::Index>(),
            0_u128..6,
            0_u128..6,
            any::<bool>(),
        ),
        0..3,
    );
    (prop::option::of(address), v4, v6, others).prop_map(|(address, v4, v6, others)| {
        let mut region = Region::ALL;
        if let Some((family, tested)) = address {
            region = region.with(Field::Family, Span::one(family));
            let (source, destination) = if family == 4 { v4 } else { v6 };
            for (tested, field, span) in [
                (tested[0], Field::Source, source),
                (tested[1], Field::Destination, destination),
            ] {
                let all = span.low == 0 && span.high == u128::from(u32::MAX);
                if tested && !all {
                    region = region.with(field, span);
                }
            }
        }
        for (index, a, b, high) in others {
            let field = *index.get(&[
                Field::Protocol,
                Field::SourcePort,
                Field::DestinationPort,
                Field::Vlan,
                Field::Interface,
            ]);
            let last = if high { field.max() } else { a + b };
            region = region.with(field, Span::new(a, last));
        }
        region
    })
}

fn rules() -> impl Strategy<Value = Vec<Rule>> {
    let rule = (region(), 0_u16..4, 0_u32..10);
    prop::collection::vec(
        rule.prop_map(|(region, priority, policy)| Rule {
            region,
            priority,
            policy,
        }),
        0..30,
    )
}

fn packet() -> impl Strategy<Value = PacketFields> {
    let family = prop::sample::select(vec![
        AddressFamily::Mac,
        AddressFamily::Ipv4,
        AddressFamily::Ipv6,
    ]);
    let at = || (0_u128..40, 0_u32..33);
    let small = || prop_oneof![0_u16..12, Just(u16::MAX)];
    (
        family,
        at(),
        at(),
        small(),
        small(),
        0_u16..12,
        any::<bool>(),
        0_u8..12,
        0_u8..12,
    )
        .prop_map(
            |(
                family,
                source,
                destination,
                source_port,
                destination_port,
                vlan,
                tagged,
                interface,
                protocol,
            )| {
                let address = |(at, flip): (u128, u32)| match family {
                    AddressFamily::Mac => at,
                    AddressFamily::Ipv4 => 0x0a00_0000 ^ at ^ (1 << flip & 0xffff_ffff),
                    AddressFamily::Ipv6 => (0x2001_0db8 << 96) ^ at ^ (1 << (flip * 4 % 128)),
                };
                PacketFields {
                    source: address(source),
                    destination: address(destination),
                    source_port,
                    destination_port,
                    vlan: if tagged { vlan } else { UNTAGGED },
                    interface,
                    protocol,
                    family,
                }
            },
        )
}

fn expected(rules: &[Rule], packet: &PacketFields) -> Vec<u32> {
    let mut policies = Vec::new();
    linear_scan(rules, packet, &mut policies);
    policies
}

fn policies_of(answers: &Answers, id: AnswerId) -> Vec<u32> {
    let mut policies = Vec::new();
    answers.policies(id, &mut policies);
    policies
}

/// All searches of arbitrary rules; the cache is so small that it must evict.
fn check(rules: &[Rule], packets: &[PacketFields], entries: usize) {
    let policies = rules.iter().map(|rule| rule.policy + 1).max().unwrap_or(0);
    let space = Tuples::new(rules);
    let mut classifier = RuleClassifier::new(Arc::new(RuleSet::new(rules, policies)), entries, 1);
    let mut peers = [MegaflowForm::Paper, MegaflowForm::OpenVSwitch]
        .map(|form| Megaflows::new(rules, policies, form, entries));
    for batch in packets.chunks(64) {
        let mut answers = vec![AnswerId::NONE; batch.len()];
        classifier.classify(batch, &mut answers);
        for (packet, &answer) in batch.iter().zip(&answers) {
            let expected = expected(rules, packet);
            let mut found = Vec::new();
            assert!(space.search(packet, &mut found) <= space.len());
            assert_eq!(found, expected, "tuple space, {packet:x?}");
            assert_eq!(
                policies_of(classifier.answers(), answer),
                expected,
                "uniflow, {packet:x?}"
            );
            for peer in &mut peers {
                let answer = peer.classify(packet);
                assert_eq!(
                    policies_of(peer.answers(), answer),
                    expected,
                    "megaflow, {packet:x?}"
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_search_finds_what_a_scan_finds(
        rules in rules(), packets in prop::collection::vec(packet(), 1..300), entries in 3_usize..40,
    ) {
        check(&rules, &packets, entries);
    }

    /// Rules change between packets; each answer is that of the rules at that time.
    #[test]
    fn no_answer_survives_a_change_of_rules(
        generations in prop::collection::vec(rules(), 1..6),
        packets in prop::collection::vec(packet(), 1..40),
        batch in 1_usize..20,
    ) {
        let empty = Arc::new(RuleSet::new(&[], 10));
        let mut classifier = RuleClassifier::new(empty, 30, 7);
        for rules in &generations {
            classifier.replace(Arc::new(RuleSet::new(rules, 10)));
            for _ in 0..2 {
                for batch in packets.chunks(batch) {
                    let mut answers = vec![AnswerId::NONE; batch.len()];
                    classifier.classify(batch, &mut answers);
                    for (packet, &answer) in batch.iter().zip(&answers) {
                        prop_assert_eq!(policies_of(classifier.answers(), answer), expected(rules, packet));
                    }
                }
            }
        }
    }
}

/// Rules of thousands of ports and ranges of ports, and packets at their edges.
fn many_ports() -> impl Strategy<Value = (Vec<Rule>, Vec<PacketFields>)> {
    let count = prop_oneof![0_usize..6000, 4000_usize..4200];
    let ports = count.prop_flat_map(|count| {
        let port = (
            any::<u16>(),
            prop_oneof![8 => Just(0), 1 => 0_u16..40, 1 => any::<u16>()],
        );
        prop::collection::vec((port, any::<bool>(), 0_u16..3), count)
    });
    let probes = prop::collection::vec((any::<prop::sample::Index>(), -1_i32..=1), 1..40);
    (ports, probes).prop_map(|(ports, probes)| {
        let rules = (0..)
            .zip(&ports)
            .map(|(policy, &((low, width), is_source, priority))| {
                let field = match is_source {
                    true => Field::SourcePort,
                    false => Field::DestinationPort,
                };
                let span = Span::new(low.into(), low.saturating_add(width).into());
                Rule {
                    region: Region::ALL
                        .with(Field::Protocol, Span::one(6))
                        .with(field, span),
                    priority,
                    policy,
                }
            });
        let rules: Vec<Rule> = rules.collect();
        let port = |(index, by): &(prop::sample::Index, i32)| match ports.is_empty() {
            true => 0,
            false => {
                let (low, width) = ports[index.index(ports.len())].0;
                let edge = if *by < 0 {
                    low
                } else {
                    low.saturating_add(width)
                };
                u16::try_from(i32::from(edge) + by).unwrap_or(edge)
            }
        };
        let packets = probes
            .iter()
            .zip(probes.iter().rev())
            .map(|(a, b)| PacketFields {
                source_port: port(a),
                destination_port: port(b),
                protocol: 6,
                ..from_source(1)
            });
        let packets = packets.collect();
        (rules, packets)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn many_ports_are_found_as_a_scan_finds_them((rules, packets) in many_ports()) {
        let policies = u32::try_from(rules.len()).unwrap();
        let mut classifier = RuleClassifier::new(Arc::new(RuleSet::new(&rules, policies)), 60, 1);
        let mut answers = vec![AnswerId::NONE; packets.len()];
        classifier.classify(&packets, &mut answers);
        for (packet, &answer) in packets.iter().zip(&answers) {
            prop_assert_eq!(policies_of(classifier.answers(), answer), expected(&rules, packet));
        }
    }
}

#[test]
fn sets_in_the_shape_of_classbench() {
    for (kind, count, seed) in [
        (Kind::Acl, 100, 1),
        (Kind::Acl, 1000, 2),
        (Kind::Firewall, 300, 3),
    ] {
        let rules = classbench::rules(kind, count, seed);
        let packets = classbench::trace(&rules, 3000, 1.0, seed);
        check(&rules, &packets, 200);
        let policies = u32::try_from(count).unwrap();
        let mut arrays = MaskArrays::new(&rules, policies, 200);
        for packet in &packets {
            let answer = arrays.classify(packet);
            assert_eq!(
                policies_of(arrays.answers(), answer),
                expected(&rules, packet),
                "{packet:x?}"
            );
        }
    }
}

fn prefix(field: Field, address: u32, length: u32, policy: u32) -> Rule {
    let hosts = u32::MAX.checked_shr(length).unwrap_or(0);
    let span = Span::new(address.into(), (address | hosts).into());
    Rule {
        region: Region::ALL
            .with(Field::Family, Span::one(4))
            .with(field, span),
        priority: u16::try_from(length).unwrap(),
        policy,
    }
}

fn from_source(source: u32) -> PacketFields {
    PacketFields {
        source: source.into(),
        ..classbench::packet_of(&prefix(Field::Source, 0, 0, 0), &mut Random::new(1))
    }
}

/// The faults of the published algorithms, each with the packets that revealed it.
#[test]
fn short_prefixes_and_shared_keys() {
    let wide = prefix(Field::Source, 0x0a00_0000, 8, 0);
    let narrow = prefix(Field::Source, 0x0a00_0000, 24, 1);
    let packets = [
        0x0a01_0101,
        0x0b01_0101,
        0x0a07_0101,
        0x0a00_0005,
        0x0a00_0105,
    ]
    .map(from_source);
    for rules in [vec![wide], vec![wide, narrow]] {
        check(&rules, &packets, 30);
        let mut arrays = MaskArrays::new(&rules, 2, 30);
        for packet in &packets {
            let answer = arrays.classify(packet);
            assert_eq!(
                policies_of(arrays.answers(), answer),
                expected(&rules, packet)
            );
        }
    }
}
