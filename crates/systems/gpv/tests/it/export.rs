//! Rules at run time: each packet and each vector goes where the rules in force say, whenever they
//! change, and readers count no loss.

use std::collections::HashMap;
use std::sync::Arc;

use strata_filter::Filter;
use strata_gpv::agent::{Sequencer, SequencerOptions};
use strata_gpv::export::{
    Admit, Destination, Exporter, FlowRule, FlowRules, Prefix, Rules, RulesError, RulesHandle,
};
use strata_gpv::{Column, Columns, Full, Grouped, Key, Packet, Parameters, Vector};
use strata_testkit::sim::{self, Rng};
use strata_wire::{AddressFamily, LinkType};

use crate::common::{for_each_packet, labelled, random_packets};

const PARAMETERS: Parameters = Parameters {
    slots: 64,
    narrow: 4,
    wide: 12,
    blocks: 16,
};

fn destination(id: u32, columns: Columns, admit: impl Admit + 'static) -> Destination {
    Destination {
        id,
        columns,
        datagram_len: 1452,
        admit: Arc::new(admit),
    }
}

fn everything(id: u32) -> Destination {
    destination(id, Columns::ALL, FlowRules::all())
}

/// An odd or an even source: a filter with two halves.
fn half(parity: u128) -> impl Fn(&Vector<'_, Full>) -> bool + Send + Sync {
    move |vector| vector.key.source().address % 2 == parity
}

/// What each destination was sent, through a reader that counts what is missing.
#[derive(Default)]
struct Received {
    datagrams: HashMap<u32, Vec<Vec<u8>>>,
}

impl Received {
    fn take(&mut self, id: u32, bytes: &[u8]) {
        self.datagrams.entry(id).or_default().push(bytes.to_vec());
    }

    /// Packets by flow as (time, sequence number), checked to be without a gap.
    fn packets(&self, id: u32, exporter: &Exporter) -> HashMap<Key, Vec<(u64, u32)>> {
        let mut sequencer = Sequencer::new(SequencerOptions::default());
        let mut flows: HashMap<Key, Vec<(u64, u32)>> = HashMap::new();
        let mut out = |_, vector: &Vector<'_, Full>| {
            let flow = flows.entry(*vector.key()).or_default();
            flow.extend(vector.times_ns().zip(vector.tuples().map(|t| t.tcp_seq)));
        };
        for bytes in self.datagrams.get(&id).into_iter().flatten() {
            sequencer.datagram(bytes, &mut out).unwrap();
        }
        sequencer
            .finish(id, exporter.next_seq(id), &mut out)
            .unwrap();
        let counters = sequencer.counters();
        assert_eq!((counters.lost, counters.damaged, counters.stale), (0, 0, 0));
        let sent = exporter.destination(id).unwrap().sent;
        assert_eq!(counters.vectors, sent, "destination {id}");
        flows
    }
}

fn by_flow<'a>(packets: impl Iterator<Item = &'a Packet>) -> HashMap<Key, Vec<(u64, u32)>> {
    let mut flows: HashMap<Key, Vec<(u64, u32)>> = HashMap::new();
    for packet in packets {
        let flow = flows.entry(packet.key).or_default();
        flow.push((packet.ts_ns, packet.tcp_seq));
    }
    flows
}

/// Several destinations, each with a filter and columns of its own; of the packets, those that a
/// rule on 5-tuples selects.
#[test]
fn each_destination_gets_what_its_filter_admits() {
    let packets = random_packets(&mut Rng::new(4), 5000, 100);
    let low = Prefix::new(AddressFamily::Ipv4, 0, 26).unwrap();
    let rule = FlowRule {
        source: Some(low),
        ..FlowRule::default()
    };
    let select = FlowRules::new(vec![(rule, false)], true).unwrap();
    let times = Columns::of(&[Column::Time, Column::TcpSeq]);
    let destinations = vec![
        everything(1),
        destination(2, times, half(0)),
        destination(3, times, half(1)),
        destination(4, times, FlowRules::new(Vec::new(), false).unwrap()),
    ];
    let handle = RulesHandle::new(Rules::new(select.clone(), destinations).unwrap());
    let mut exporter = Exporter::new(PARAMETERS, 1, handle).unwrap();
    let mut received = Received::default();
    let pairs = packets.iter().map(|&packet| (packet, &[][..]));
    exporter.push(pairs, |id, bytes| received.take(id, bytes));
    exporter.flush(|id, bytes| received.take(id, bytes));

    let selected: Vec<&Packet> = packets.iter().filter(|p| select.has(&p.key)).collect();
    let counters = exporter.counters();
    assert_eq!(counters.selected, selected.len() as u64);
    assert_eq!(
        counters.skipped,
        packets.len() as u64 - selected.len() as u64
    );
    assert!(counters.skipped > 0);
    let all = selected.iter().copied();
    assert_eq!(received.packets(1, &exporter), by_flow(all.clone()));
    for (id, parity) in [(2, 0), (3, 1)] {
        let wanted = by_flow(all.clone().filter(|p| p.key.source().address % 2 == parity));
        assert_eq!(received.packets(id, &exporter), wanted);
    }
    assert!(!received.datagrams.contains_key(&4));
    let total = exporter.cache_counters().vectors_total();
    assert_eq!(exporter.destination(4).unwrap().filtered, total);
}

/// Rules change at random; every batch is under exactly one set of them, and no reader that stays
/// or returns counts a loss.
#[test]
fn rules_change_between_batches_and_nothing_is_lost() {
    sim::seeds(60, |seed| {
        let mut rng = Rng::new(seed);
        let packets = random_packets(&mut rng, 3000, 80);
        let some = |rng: &mut Rng| {
            let mut destinations: Vec<_> = (0..4).filter(|_| rng.below(2) > 0).collect();
            destinations.push(9);
            destinations
        };
        let rules = |parity: u128, destinations: &[u32]| {
            let select = move |packet: &Packet, _: &[u8]| packet.key.source().address % 3 != parity;
            Rules::new(
                select,
                destinations.iter().map(|&id| everything(id)).collect(),
            )
            .unwrap()
        };
        let handle = RulesHandle::new(rules(0, &[9]));
        let mut exporter = Exporter::new(PARAMETERS, seed, handle.clone()).unwrap();
        let (mut received, mut selected, mut parity) = (Received::default(), Vec::new(), 0);
        let mut changes = 0;
        for batch in packets.chunks(1 + usize::try_from(rng.below(300)).unwrap()) {
            if rng.below(3) == 0 {
                parity = u128::from(rng.below(3));
                // Handed over by another thread, as a control program does.
                let rules = rules(parity, &some(&mut rng));
                std::thread::scope(|scope| {
                    scope.spawn(|| handle.set(rules));
                });
                changes += 1;
            }
            let pairs = batch.iter().map(|&packet| (packet, &[][..]));
            exporter.push(pairs, |id, bytes| received.take(id, bytes));
            let kept = |p: &&Packet| p.key.source().address % 3 != parity;
            selected.extend(batch.iter().filter(kept));
        }
        exporter.flush(|id, bytes| received.take(id, bytes));
        assert_eq!(exporter.counters().replaced, changes);
        assert_eq!(
            received.packets(9, &exporter),
            by_flow(selected.into_iter())
        );
        for id in (0..4).filter(|&id| exporter.destination(id).is_some()) {
            received.packets(id, &exporter);
        }
    });
}

/// A filter over bytes, as users write it, selects packets.
#[test]
fn a_filter_expression_selects_packets() {
    let path = labelled("everyday-benign");
    let program = Filter::parse("udp port 53").unwrap();
    let program = program.compile(LinkType::ETHERNET).unwrap();
    let filter = program.clone();
    let select = move |packet: &Packet, bytes: &[u8]| filter.matches(bytes, packet.size);
    let handle = RulesHandle::new(Rules::new(select, vec![everything(1)]).unwrap());
    let mut exporter = Exporter::new(PARAMETERS, 1, handle).unwrap();
    let mut wanted = 0;
    for_each_packet(&path, |packet, bytes| {
        wanted += u64::from(program.matches(bytes, packet.size));
        exporter.push([(packet, bytes)], |_, _| ());
    });
    let counters = exporter.counters();
    assert!(wanted > 10 && counters.skipped > 10);
    assert_eq!(counters.selected, wanted);
}

#[test]
fn rules_that_cannot_be_say_why() {
    let refused = |destinations| Rules::new(FlowRules::all(), destinations).unwrap_err();
    let twice = refused(vec![everything(7), everything(7)]);
    assert_eq!(twice, RulesError::Twice(7));
    assert_eq!(twice.to_string(), "destination 7 is listed twice");
    let timeless = destination(5, Columns::of(&[Column::Size]), FlowRules::all());
    assert_eq!(refused(vec![timeless]), RulesError::NoTimes(5));
    let short = Destination {
        datagram_len: 40,
        ..everything(3)
    };
    let error = refused(vec![short]);
    assert_eq!(error, RulesError::Datagram { id: 3, len: 40 });
    let many = (0..65).map(everything).collect();
    assert_eq!(refused(many), RulesError::Destinations(65));
    let rules = vec![(FlowRule::default(), true); 1025];
    assert_eq!(
        FlowRules::new(rules, true).unwrap_err(),
        RulesError::Rules(1025)
    );
    assert!(Prefix::new(AddressFamily::Ipv4, 0, 33).is_none());
    assert!(Prefix::new(AddressFamily::Ipv4, 1 << 32, 8).is_none());
    assert!(Prefix::new(AddressFamily::Ipv6, 0, 0).is_some());
}
