//! Policies added and removed one at a time are searched as if all had been there from the start.

use std::collections::BTreeMap;
use std::time::Instant;

use proptest::prelude::*;
use strata_filter::Filter;
use strata_rules::{
    Action, AnswerId, Base, INTERFACES_MAX, POLICIES_MAX, PacketFields, Policies, Policy,
    PolicyError, PolicySet, RuleClassifier, UNTAGGED, regions,
};
use strata_wire::AddressFamily;

const FILTERS: [&str; 12] = [
    "ip",
    "tcp",
    "udp port 1",
    "not udp",
    "src net 10.0.0.0/30",
    "host 10.0.0.1",
    "dst host 10.0.0.2 and tcp",
    "portrange 1-2",
    "src port 3 or dst port 3",
    "ip6",
    "vlan 3",
    "tcp and not src host 10.0.0.3",
];

#[derive(Clone, Debug)]
enum Turn {
    Add(usize, u16, Option<u8>),
    /// The policy at this index of the present ones.
    Remove(prop::sample::Index),
    /// Starts preparing everything anew.
    Merge,
    /// Continues from the latest such preparation.
    Install,
    Search,
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let add = (0..FILTERS.len(), 0_u16..3, prop::option::of(0_u8..3));
    let add = add.prop_map(|(filter, priority, interface)| Turn::Add(filter, priority, interface));
    let turn = prop_oneof![
        4 => add,
        2 => any::<prop::sample::Index>().prop_map(Turn::Remove),
        1 => Just(Turn::Merge),
        1 => Just(Turn::Install),
        2 => Just(Turn::Search),
    ];
    prop::collection::vec(turn, 1..60)
}

fn packets() -> impl Strategy<Value = Vec<PacketFields>> {
    let fields = (
        0_u128..4,
        0_u128..4,
        0_u16..5,
        0_u16..5,
        0_u8..4,
        any::<[bool; 3]>(),
    );
    let packet = fields.prop_map(
        |(source, destination, source_port, destination_port, name, flags)| {
            let [tagged, is_tcp, is_v6] = flags;
            PacketFields {
                source: 0x0a00_0000 + source,
                destination: 0x0a00_0000 + destination,
                source_port,
                destination_port,
                vlan: if tagged { 3 } else { UNTAGGED },
                // The name's number is looked up when it is searched.
                interface: name,
                protocol: if is_tcp { 6 } else { 17 },
                family: if is_v6 {
                    AddressFamily::Ipv6
                } else {
                    AddressFamily::Ipv4
                },
            }
        },
    );
    prop::collection::vec(packet, 1..64)
}

fn name(number: u8) -> String {
    format!("eth{number}")
}

/// The identifiers that a scan of all policies finds.
fn expected(there: &BTreeMap<u32, Policy>, packet: &PacketFields) -> Vec<u32> {
    let holds = |policy: &Policy| {
        let on = policy.interface.as_ref();
        on.is_none_or(|on| *on == name(packet.interface))
            && regions(&policy.filter)
                .unwrap()
                .iter()
                .any(|region| region.contains(packet))
    };
    let matching: Vec<_> = there.iter().filter(|(_, policy)| holds(policy)).collect();
    let best = matching.iter().map(|(_, policy)| policy.priority).max();
    let best = matching
        .into_iter()
        .filter(|(_, policy)| Some(policy.priority) == best);
    best.map(|(&id, _)| id).collect()
}

fn check(ready: &Policies, there: &BTreeMap<u32, Policy>, packets: &[PacketFields]) {
    let mut classifier = RuleClassifier::new(ready.rules().clone(), 12, 1);
    let numbered: Vec<PacketFields> = packets
        .iter()
        .map(|packet| PacketFields {
            interface: ready.interface(Some(&name(packet.interface))),
            ..*packet
        })
        .collect();
    // Twice, so that answers are cached.
    for _ in 0..2 {
        let mut answers = vec![AnswerId::NONE; packets.len()];
        classifier.classify(&numbered, &mut answers);
        for (packet, &answer) in packets.iter().zip(&answers) {
            let mut numbers = Vec::new();
            classifier.answers().policies(answer, &mut numbers);
            let mut found: Vec<u32> = numbers.iter().map(|&n| ready.named(n).0).collect();
            found.sort_unstable();
            assert_eq!(found, expected(there, packet), "{packet:x?} in {there:#?}");
        }
    }
    let listed: Vec<u32> = ready.all().map(|(id, ..)| id).collect();
    assert_eq!((listed.len(), ready.len()), (there.len(), there.len()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn all_present_policies_are_found_at_any_time(turns in turns(), packets in packets()) {
        let (mut set, mut there) = (PolicySet::default(), BTreeMap::new());
        let mut begun: Vec<Base> = Vec::new();
        for (id, turn) in (1_u32..).zip(turns) {
            match turn {
                Turn::Add(filter, priority, interface) => {
                    let filter: Filter = FILTERS[filter].parse().unwrap();
                    let policy = Policy {
                        priority,
                        interface: interface.map(name),
                        ..Policy::new(filter, Action::DROP)
                    };
                    set.add(id, policy.clone(), String::new()).unwrap();
                    there.insert(id, policy);
                }
                Turn::Remove(index) => {
                    if there.is_empty() {
                        prop_assert_eq!(set.remove(id), None);
                    } else {
                        let id = *there.keys().nth(index.index(there.len())).unwrap();
                        prop_assert!(set.remove(id).is_some() && set.remove(id).is_none());
                        there.remove(&id);
                    }
                }
                Turn::Merge => begun.push(set.merge().run()),
                // Also with older ones, which are useless by now, and with one of another set.
                Turn::Install => {
                    if let Some(base) = begun.pop() {
                        set.install(base);
                    }
                    set.install(PolicySet::default().merge().run());
                }
                Turn::Search => check(&set.ready(Action::CLASSIFY), &there, &packets),
            }
        }
        check(&set.ready(Action::CLASSIFY), &there, &packets);
    }
}

fn host(number: u32) -> Policy {
    let [_, a, b, c] = number.to_be_bytes();
    let filter = format!("host 10.{a}.{b}.{c} and tcp port {}", number % 1000 + 1);
    Policy::new(filter.parse().unwrap(), Action::DROP)
}

/// Adding the last of ten thousand costs a fraction of preparing all; it used to cost the same.
#[test]
fn adding_one_is_cheap() {
    let mut set = PolicySet::default();
    let last = u32::try_from(POLICIES_MAX).unwrap();
    for id in 1..last {
        set.add(id, host(id), String::from("x")).unwrap();
    }
    let start = Instant::now();
    set.install(set.merge().run());
    let all = start.elapsed();
    assert!(!set.wants_merge());
    let one = (0..5).map(|_| {
        let start = Instant::now();
        set.add(last, host(last), String::from("x")).unwrap();
        let ready = set.ready(Action::CLASSIFY);
        let took = start.elapsed();
        assert_eq!(ready.len(), POLICIES_MAX);
        set.remove(last).unwrap();
        took
    });
    let one = one.min().unwrap();
    assert!(one * 10 < all, "{one:?} of {all:?}");
}

/// As many policies as there may be, each with a port or a range of its own, on interfaces by name or not.
/// 4,096 ports ended the process.
#[test]
fn ten_thousand_ports_are_told_apart() {
    let last = u16::try_from(POLICIES_MAX).unwrap();
    let name = |n: u16| format!("eth{}", n % 255);
    for (ports, is_named) in [(1_u16, false), (3, false), (1, true)] {
        // The last port is used too.
        let low = |n: u16| u16::MAX - n * 6 - (ports - 1);
        let policies: Vec<Policy> = (0..last)
            .map(|n| {
                let (low, high) = (low(n), low(n) + (ports - 1));
                let filter = match ports {
                    1 => format!("tcp dst port {low}"),
                    _ => format!("tcp dst portrange {low}-{high}"),
                };
                Policy {
                    interface: is_named.then(|| name(n)),
                    ..Policy::new(filter.parse().unwrap(), Action::DROP)
                }
            })
            .collect();
        let ready = Policies::new(&policies, Action::CLASSIFY).unwrap();
        let mut classifier = RuleClassifier::new(ready.rules().clone(), 600, 1);
        for n in 0..last {
            let interface = ready.interface(Some(&name(n)));
            // Before, within and after it.
            let packets = [
                low(n) - 1,
                low(n),
                low(n) + (ports - 1),
                low(n).saturating_add(ports),
            ];
            let packets = packets.map(|port| PacketFields {
                source: 1,
                destination: 2,
                source_port: 80,
                destination_port: port,
                vlan: UNTAGGED,
                interface,
                protocol: 6,
                family: AddressFamily::Ipv4,
            });
            let mut answers = [AnswerId::NONE; 4];
            classifier.classify(&packets, &mut answers);
            let of_it = [u32::from(n)];
            for (packet, answer) in packets.iter().zip(answers) {
                let mut found = Vec::new();
                classifier.answers().policies(answer, &mut found);
                let high = low(n) + (ports - 1);
                let is_within = (low(n)..=high).contains(&packet.destination_port);
                assert_eq!(found, &of_it[..usize::from(is_within)], "{n} {packet:?}");
            }
        }
    }
}

#[test]
fn sets_are_bounded() {
    let mut set = PolicySet::default();
    let last = u32::try_from(POLICIES_MAX).unwrap();
    for id in 1..=last {
        set.add(id, host(id), String::from("x")).unwrap();
    }
    let one_more = set.add(last + 1, host(1), String::new());
    assert!(matches!(one_more, Err(PolicyError::TooMany)));
    set.remove(1).unwrap();
    set.add(last + 1, host(1), String::new()).unwrap();

    let mut set = PolicySet::default();
    // Each takes 900 rules of prefixes.
    let wide = "src portrange 1-65534 and dst portrange 1-65534";
    let refused = (1_u32..).find_map(|id| {
        let policy = Policy::new(wide.parse().unwrap(), Action::DROP);
        set.add(id, policy, String::new()).err()
    });
    assert!(matches!(refused, Some(PolicyError::TooManyRules)));
    assert!((100..1000).contains(&set.len()), "{}", set.len());

    let mut set = PolicySet::default();
    let refused = (1_u32..).find_map(|id| {
        let policy = Policy {
            protect: true,
            ..host(id)
        };
        set.add(id, policy, "x".repeat(4096)).err()
    });
    assert!(matches!(refused, Some(PolicyError::TooMuchProtected)));
    assert_eq!(set.len(), 16);

    let mut set = PolicySet::default();
    let on = |id: u32| Policy {
        interface: Some(format!("eth{id}")),
        ..host(1)
    };
    for id in 0..u32::try_from(INTERFACES_MAX).unwrap() {
        set.add(id, on(id), String::new()).unwrap();
    }
    set.install(set.merge().run());
    let refused = set.add(1000, on(1000), String::new());
    assert!(matches!(refused, Err(PolicyError::Interfaces)));
    // Names used only by removed policies do not count.
    set.remove(0).unwrap();
    set.add(1000, on(1000), String::new()).unwrap();
}
