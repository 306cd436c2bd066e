//! The tuples of all vectors are the packets, each once, in the order of their flow; both forms of
//! the cache say the same.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use strata_gpv::agent::{Sequencer, SequencerOptions};
use strata_gpv::format::datagram::{Datagram, DatagramWriter};
use strata_gpv::{
    Basic, Cache, CacheCounters, Column, Columns, Full, Key, Packet, Parameters, ParametersError,
    Reason, Sequenced, SwitchCache, Tuple, Vector,
};
use strata_testkit::sim::{self, Rng};

use crate::common::{captured, random_packets};

/// A vector that is kept.
type Kept<T> = (Key, u64, Vec<T>, Reason, bool, u32);

fn keep<T: Tuple>(vector: &Vector<'_, T>) -> Kept<T> {
    let tuples = vector.tuples().copied().collect();
    (
        vector.key,
        vector.start_ns,
        tuples,
        vector.reason,
        vector.saturated,
        vector.slot,
    )
}

/// What must hold of vectors, from any source, in the order in which they were given.
fn hold<T: Tuple>(
    packets: &[Packet],
    vectors: &[Kept<T>],
    counters: &CacheCounters,
    parameters: Parameters,
) {
    let mut flows: HashMap<Key, Vec<&Packet>> = HashMap::new();
    for packet in packets {
        flows.entry(packet.key).or_default().push(packet);
    }
    let mut next: HashMap<Key, usize> = HashMap::new();
    for (key, start_ns, tuples, reason, saturated, _) in vectors {
        assert!(!tuples.is_empty() && tuples.len() <= usize::from(parameters.vector_max()));
        let at = next.entry(*key).or_default();
        let mut too_large = false;
        for tuple in tuples {
            let packet = flows[key][*at];
            *at += 1;
            let delta_ns = packet.ts_ns - start_ns;
            let (same, saturates) = T::new(packet, delta_ns);
            assert_eq!((tuple, *reason == Reason::Unknown), (&same, false));
            assert!(
                delta_ns - tuple.delta_ns() < 1000,
                "times are exact to a microsecond"
            );
            too_large |= saturates;
            if T::COLUMNS.has(Column::TcpSeq) {
                assert_eq!(tuple.get(Column::TcpSeq), packet.tcp_seq);
            }
        }
        assert_eq!(*saturated, too_large);
    }
    for (key, packets) in &flows {
        assert_eq!(
            next.get(key),
            Some(&packets.len()),
            "all packets of {key:?}"
        );
    }
    assert_eq!(counters.packets, packets.len() as u64);
    assert_eq!(counters.tuples, packets.len() as u64);
    assert_eq!(counters.vectors_total(), vectors.len() as u64);
}

fn run<T: Tuple, const WAYS: usize>(
    packets: &[Packet],
    parameters: Parameters,
    rng: &mut Rng,
) -> Vec<Kept<T>> {
    let mut cache = Cache::<T, WAYS>::new(parameters, 5).unwrap();
    let mut vectors = Vec::new();
    let mut out = |vector: &Vector<'_, T>| vectors.push(keep(vector));
    let mut rest = packets;
    while !rest.is_empty() {
        let count = usize::try_from(1 + rng.below(100)).unwrap().min(rest.len());
        let (batch, others) = rest.split_at(count);
        cache.push(batch, &mut out);
        rest = others;
    }
    cache.flush(&mut out);
    hold(packets, &vectors, cache.counters(), parameters);
    vectors
}

fn run_switch<T: Tuple>(packets: &[Packet], parameters: Parameters, after: u16) -> Vec<Kept<T>> {
    let mut cache = SwitchCache::<T>::new(parameters, 5, after).unwrap();
    let mut vectors = Vec::new();
    let mut out = |vector: &Vector<'_, T>| vectors.push(keep(vector));
    cache.push(packets, &mut out);
    cache.flush(&mut out);
    hold(packets, &vectors, cache.counters(), parameters);
    vectors
}

fn random_parameters(rng: &mut Rng) -> Parameters {
    let number = |rng: &mut Rng, end| u16::try_from(rng.below(end)).unwrap();
    let is_dynamic = rng.below(3) > 0;
    Parameters {
        slots: 8 * (1 + u32::from(number(rng, 16))),
        narrow: 2 + number(rng, 9),
        wide: if is_dynamic { 1 + number(rng, 30) } else { 0 },
        blocks: if is_dynamic {
            1 + u32::from(number(rng, 40))
        } else {
            0
        },
    }
}

fn all_ways<T: Tuple>(packets: &[Packet], parameters: Parameters, rng: &mut Rng) {
    let fast = run::<T, 1>(packets, parameters, rng);
    assert_eq!(
        fast,
        run_switch::<T>(packets, parameters, 0),
        "{parameters:?}"
    );
    run_switch::<T>(
        packets,
        parameters,
        1 + u16::try_from(rng.below(50)).unwrap(),
    );
    run::<T, 8>(packets, parameters, rng);
}

#[test]
fn random_packets_come_out_once() {
    sim::seeds(200, |seed| {
        let mut rng = Rng::new(seed);
        let flows = 1 + rng.below(300);
        let packets = random_packets(&mut rng, 3000, flows);
        let parameters = random_parameters(&mut rng);
        match seed % 3 {
            0 => all_ways::<Basic>(&packets, parameters, &mut rng),
            1 => all_ways::<Sequenced>(&packets, parameters, &mut rng),
            _ => all_ways::<Full>(&packets, parameters, &mut rng),
        }
    });
}

/// Every capture there is, the compressed ones too.
fn corpus() -> Vec<PathBuf> {
    let mut paths = strata_testkit::format_captures();
    let folders = std::fs::read_dir(strata_testkit::data_dir().join("labelled")).unwrap();
    let files = folders.flat_map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap());
    let files = files.map(|file| file.unwrap().path());
    paths.extend(files.filter(|file| {
        file.file_name()
            .unwrap()
            .as_encoded_bytes()
            .starts_with(b"trace.")
    }));
    paths.sort();
    paths
}

/// Whole captures, settings at random.
#[test]
fn captures_come_out_once() {
    let paths = corpus();
    let total = AtomicU64::new(0);
    sim::seeds(paths.len() as u64, |number| {
        let path = &paths[usize::try_from(number).unwrap()];
        let mut rng = Rng::new(number);
        let Some(packets) = captured(path, usize::MAX) else {
            return;
        };
        total.fetch_add(packets.len() as u64, Ordering::Relaxed);
        let mut parameters = random_parameters(&mut rng);
        if number % 5 == 0 {
            parameters.slots *= 64;
        }
        match number % 3 {
            0 => all_ways::<Basic>(&packets, parameters, &mut rng),
            1 => all_ways::<Sequenced>(&packets, parameters, &mut rng),
            _ => all_ways::<Full>(&packets, parameters, &mut rng),
        }
    });
    assert!(total.into_inner() > 450_000 || std::env::var_os("SEED").is_some());
}

/// Whole captures over a network that loses: which vectors a reader counts as lost are those
/// whose datagrams were, and what it has is the rest, packet by packet.
#[test]
fn captures_over_a_lossy_network_count_every_vector() {
    let paths = corpus();
    let lost = AtomicU64::new(0);
    sim::seeds(paths.len() as u64, |number| {
        let path = &paths[usize::try_from(number).unwrap()];
        let mut rng = Rng::new(number);
        if let Some(packets) = captured(path, usize::MAX) {
            let count = over_a_lossy_network(&packets, &mut rng);
            lost.fetch_add(count, Ordering::Relaxed);
        }
    });
    assert!(lost.into_inner() > 1000 || std::env::var_os("SEED").is_some());
}

/// How many vectors were lost.
fn over_a_lossy_network(packets: &[Packet], rng: &mut Rng) -> u64 {
    let mut cache = Cache::<Full>::new(random_parameters(rng), 5).unwrap();
    let room = 200 + usize::try_from(rng.below(2000)).unwrap();
    let mut writer = DatagramWriter::new(3, Columns::ALL, room);
    // Of each vector its packets, or none if it fits into no datagram.
    let (mut sent, mut datagrams) = (Vec::new(), Vec::new());
    let mut out = |vector: &Vector<'_, Full>| {
        let mut kept = keep(vector);
        let put = writer.put(vector, |bytes| datagrams.push(bytes.to_vec()));
        if put.is_err() {
            kept.2.clear();
        }
        sent.push(kept);
    };
    cache.push(packets, &mut out);
    cache.flush(&mut out);
    writer.finish(|bytes| datagrams.push(bytes.to_vec()));
    assert_eq!(writer.next_seq(), sent.len() as u64);

    let loss = rng.below(400);
    let mut wanted: Vec<Kept<Full>> = Vec::new();
    let mut sequencer = Sequencer::new(SequencerOptions::default());
    let mut given = Vec::new();
    for bytes in &datagrams {
        if rng.below(1000) < loss {
            continue;
        }
        let header = Datagram::new_checked(bytes).unwrap();
        let first = usize::try_from(header.first_seq).unwrap();
        wanted.extend_from_slice(&sent[first..first + usize::from(header.vectors)]);
        sequencer
            .datagram(bytes, |_, vector| given.push(keep(vector)))
            .unwrap();
    }
    let end_seq = Some(writer.next_seq());
    sequencer
        .finish(3, end_seq, |_, vector| given.push(keep(vector)))
        .unwrap();
    assert_eq!(given, wanted);
    let counters = sequencer.counters();
    let missing = (sent.len() - wanted.len()) as u64;
    // A reader that never heard of the cache knows nothing of it.
    if !wanted.is_empty() {
        assert_eq!((counters.lost, counters.damaged), (missing, 0));
    }
    assert_eq!(counters.vectors, wanted.len() as u64);
    missing
}

/// A wide buffer continues the narrow one, is kept while the flow stays, and freed with it.
#[test]
fn a_flow_that_fills_its_narrow_buffer_gets_a_wide_one() {
    let parameters = Parameters {
        slots: 1,
        narrow: 2,
        wide: 3,
        blocks: 1,
    };
    let mut rng = Rng::new(1);
    let packet = |address, n: u64| Packet {
        key: Key::new(
            strata_wire::AddressFamily::Ipv4,
            6,
            strata_wire::Endpoint { address, port: 1 },
            strata_wire::Endpoint {
                address: 9,
                port: 2,
            },
            0,
        ),
        ts_ns: 1000 * n,
        ..Packet::default()
    };
    let mut packets: Vec<Packet> = (0..12).map(|n| packet(1, n)).collect();
    packets.extend((12..15).map(|n| packet(2, n)));
    let vectors = run::<Basic, 1>(&packets, parameters, &mut rng);
    let lens: Vec<(usize, Reason)> = vectors
        .iter()
        .map(|vector| (vector.2.len(), vector.3))
        .collect();
    let full = (5, Reason::Full);
    assert_eq!(
        lens,
        [full, full, (2, Reason::Collision), (3, Reason::Flushed)]
    );
}

/// The second flow finds no wide buffer free, so its vectors are as long as the narrow one.
#[test]
fn without_a_free_wide_buffer_a_flow_stays_narrow() {
    let parameters = Parameters {
        slots: 64,
        narrow: 2,
        wide: 6,
        blocks: 1,
    };
    let mut cache = Cache::<Basic>::new(parameters, 5).unwrap();
    let mut rng = Rng::new(3);
    let packets: Vec<Packet> = random_packets(&mut rng, 4000, 30)
        .into_iter()
        .map(|packet| Packet { ts_ns: 7, ..packet })
        .collect();
    cache.push(&packets, &mut |_: &Vector<'_, Basic>| ());
    assert!(cache.counters().denied > 0 && cache.counters().widened > 0);
}

#[test]
fn parameters_that_make_no_cache_say_why() {
    let paper = Parameters::PAPER;
    let refused = |parameters| Cache::<Basic, 8>::new(parameters, 1).err();
    assert_eq!(refused(paper), None);
    assert_eq!(
        refused(Parameters { slots: 12, ..paper }),
        Some(ParametersError::Slots { slots: 12, ways: 8 })
    );
    assert_eq!(
        refused(Parameters { narrow: 1, ..paper }),
        Some(ParametersError::Narrow(1))
    );
    let wide = refused(Parameters { wide: 0, ..paper });
    assert_eq!(
        wide,
        Some(ParametersError::Wide {
            wide: 0,
            blocks: 4096
        })
    );
    // Table 2: 16-byte short buffers and 96-byte wide ones, within 1 MB and what keys take.
    assert_eq!(paper.narrow * 4, 16);
    assert_eq!(paper.wide * 4, 96);
    assert_eq!(paper.vector_max(), 28);
    assert_eq!(paper.switch_bytes(4), 16_384 * (26 + 16) + 4_096 * 98);
    let many = |blocks| Parameters { blocks, ..paper }.switch_bytes(4);
    assert_eq!(many(65_534), 16_384 * (26 + 16) + 65_534 * 98);
    assert_eq!(many(65_535), 16_384 * (28 + 16) + 65_535 * 100);
}
