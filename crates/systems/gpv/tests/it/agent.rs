//! A cache, a network that loses, repeats and reorders datagrams, and an agent: what arrives is
//! put together in order, and every vector that does not is counted.
//!
//!     SEED=17 cargo test -p strata-gpv --test it agent::     this world

use std::collections::HashMap;

use strata_gpv::agent::{
    IdleSlots, Reassembly, ReassemblyOptions, Record, Sequencer, SequencerOptions, queue_of,
};
use strata_gpv::format::datagram::DatagramWriter;
use strata_gpv::{Cache, Columns, Full, Grouped, Key, KeyHasher, Parameters, Vector};
use strata_testkit::sim::{self, MS, Queue, Rng, SECOND, Weather};

use crate::common::random_packets;

type Flows = HashMap<Key, Vec<(u64, u32)>>;

/// When a packet came, and a mark by which it is known.
fn note<G: Grouped<Full>>(flows: &mut Flows, group: &G) {
    let packets = flows.entry(*group.key()).or_default();
    group.for_each_run(|start_ns, tuples| {
        packets.extend(
            tuples
                .iter()
                .map(|t| (start_ns + u64::from(t.delta_ns), t.tcp_seq)),
        );
    });
}

/// What a cache sends, and the packets of each vector by its number.
struct Sent {
    datagrams: Vec<Vec<u8>>,
    vectors: u64,
    flows: Flows,
}

fn send(rng: &mut Rng, cache_id: u32) -> Sent {
    let parameters = Parameters {
        slots: 64,
        narrow: 3,
        wide: 9,
        blocks: 16,
    };
    let mut cache = Cache::<Full>::new(parameters, rng.bits()).unwrap();
    let mut writer = DatagramWriter::new(cache_id, Columns::ALL, 1452);
    let (mut datagrams, mut flows) = (Vec::new(), Flows::new());
    let mut packets = random_packets(rng, 3000, 200);
    for (number, packet) in (0..).zip(&mut packets) {
        packet.tcp_seq = number;
    }
    let mut out = |vector: &Vector<'_, Full>| {
        note(&mut flows, vector);
        writer
            .put(vector, |bytes| datagrams.push(bytes.to_vec()))
            .unwrap();
    };
    let mut idle = IdleSlots::new(parameters.slots, 0);
    for (number, batch) in (0..).zip(packets.chunks(100)) {
        cache.push(batch, &mut out);
        idle.scan(number * MS, 10 * MS, 16, |slot| {
            cache.flush_slot(slot, &mut out);
        });
    }
    cache.flush(&mut out);
    writer.finish(|bytes| datagrams.push(bytes.to_vec()));
    Sent {
        datagrams,
        vectors: writer.next_seq(),
        flows,
    }
}

fn world(seed: u64) {
    let mut rng = Rng::new(seed);
    let weather = Weather {
        loss: rng.below(200_000) * rng.below(2),
        duplication: rng.below(100_000),
        reordering: rng.below(100_000),
        ..Weather::default()
    };
    let caches: Vec<Sent> = (0..3).map(|id| send(&mut rng, id)).collect();
    let mut queue = Queue::default();
    for sent in &caches {
        for (number, bytes) in (0..).zip(&sent.datagrams) {
            for at in weather
                .datagram(&mut rng, number * MS / 10)
                .into_iter()
                .flatten()
            {
                queue.at(at, bytes);
            }
        }
    }
    let options = SequencerOptions {
        caches_max: 3,
        waiting_max: usize::try_from(1 + rng.below(20)).unwrap(),
        ..SequencerOptions::default()
    };
    let mut sequencer = Sequencer::new(options);
    let options = ReassemblyOptions {
        flows: u32::try_from(4 + rng.below(200)).unwrap(),
        tuples_max: u16::try_from(1 + rng.below(60)).unwrap(),
        interval_ns: rng.below(4) * SECOND,
    };
    let mut reassembly: Vec<_> = (0..3)
        .map(|_| Reassembly::<Full>::new(options, seed))
        .collect();
    let mut records: [Flows; 3] = Default::default();
    let mut given = [0_u64; 3];
    let mut out = |cache: u32, vector: &Vector<'_, Full>| {
        let cache = cache as usize;
        given[cache] += 1;
        reassembly[cache].take(vector, &mut |record: &Record<'_, Full>| {
            assert!(record.count() <= usize::from(options.tuples_max));
            let first = record.runs[0].start_ns;
            let last = record.runs[record.runs.len() - 1].start_ns;
            assert!(last.saturating_sub(first) <= options.interval_ns);
            note(&mut records[cache], record);
        });
    };
    while let Some(bytes) = queue.take(u64::MAX) {
        sequencer.datagram(bytes, &mut out).unwrap();
    }
    for (id, sent) in (0..).zip(&caches) {
        sequencer.finish(id, Some(sent.vectors), &mut out).unwrap();
    }
    let mut tuples = 0;
    for (reassembly, records) in reassembly.iter_mut().zip(&mut records) {
        reassembly.flush(&mut |record: &Record<'_, Full>| note(records, record));
        let counters = reassembly.counters();
        assert_eq!(counters.tuples_in, counters.tuples_out);
        tuples += counters.tuples_out;
    }
    // Every vector was given or is counted, and is given once: no more packets than were sent.
    let counters = sequencer.counters();
    let sent: u64 = caches.iter().map(|sent| sent.vectors).sum();
    assert_eq!((counters.damaged, counters.refused), (0, 0));
    assert_eq!(counters.vectors, given.iter().sum::<u64>());
    assert_eq!(counters.vectors + counters.lost, sent);
    let packets: u64 = caches
        .iter()
        .flat_map(|sent| sent.flows.values())
        .map(|f| f.len() as u64)
        .sum();
    if weather.loss == 0 && weather.reordering == 0 {
        assert_eq!((counters.lost, tuples), (0, packets));
    }
    // What came is what was sent, in its order: of each flow a subsequence.
    for (sent, records) in caches.iter().zip(&records) {
        for (key, packets) in records {
            let mut sent = sent.flows[key].iter();
            for packet in packets {
                assert!(sent.any(|other| other == packet), "{packet:?} of {key:?}");
            }
        }
    }
}

#[test]
fn what_arrives_is_in_order_and_what_does_not_is_counted() {
    sim::seeds(100, world);
}

#[test]
fn more_caches_than_allowed_and_numbers_far_ahead_are_refused() {
    let mut rng = Rng::new(1);
    let sent = send(&mut rng, 7);
    let options = SequencerOptions {
        caches_max: 1,
        waiting_max: 2,
        ..SequencerOptions::default()
    };
    let mut sequencer = Sequencer::new(options);
    assert!(sequencer.join(1, 0));
    sequencer
        .datagram(&sent.datagrams[0], |_, _| panic!("refused"))
        .unwrap();
    assert_eq!(sequencer.counters().refused, 1);

    let mut sequencer = Sequencer::new(options);
    let mut far = sent.datagrams[0].clone();
    far[16..24].copy_from_slice(&(1_u64 << 60).to_le_bytes());
    let error = sequencer.datagram(&far, |_, _| ()).unwrap_err();
    assert_eq!((error.offset, sequencer.counters().damaged), (16, 1));
    let mut vectors = 0;
    sequencer
        .datagram(&sent.datagrams[0], |_, _| vectors += 1)
        .unwrap();
    assert!(vectors > 0, "one that lies does not shut the others out");
}

/// A datagram with a number that the cache did not reach, as anyone can send it: with the number of vectors that the
/// cache says it sent, and without it.
#[test]
fn a_forged_number_does_not_count_as_losses() {
    let sent = send(&mut Rng::new(1), 7);
    let end = Some(sent.vectors);
    for (end_seq, far, is_lossy) in [
        (end, 1_000_000, false),
        (end, 3_000_000, true),
        (None, 3_000_000, false),
        (None, 3_000_000, true),
    ] {
        let gap_max = 1 << 20;
        let mut sequencer = Sequencer::new(SequencerOptions {
            gap_max,
            ..SequencerOptions::default()
        });
        let mut forged = sent.datagrams[0].clone();
        forged[16..24].copy_from_slice(&u64::to_le_bytes(far));
        let mut vectors = 0;
        for (at, datagram) in sent.datagrams.iter().enumerate() {
            if at == 2 {
                sequencer.datagram(&forged, |_, _| ()).unwrap();
            }
            if at != 5 || !is_lossy {
                sequencer.datagram(datagram, |_, _| vectors += 1).unwrap();
            }
        }
        sequencer.finish(7, end_seq, |_, _| ()).unwrap();
        let counters = sequencer.counters();
        let what = format!("{end_seq:?}, {far}, {is_lossy}");
        assert_eq!(counters.lost > 0, is_lossy, "{what}");
        assert!(vectors + counters.lost <= sent.vectors, "{what}");
        assert_eq!(counters.jumps, 1, "{what}");
    }
}

/// A record as a whole.
type Whole = (Key, Vec<(u64, u32)>, Vec<Full>);

fn whole(record: &Record<'_, Full>) -> Whole {
    let runs = record.runs.iter().map(|run| (run.start_ns, run.end));
    (record.key, runs.collect(), record.tuples.to_vec())
}

#[test]
fn vectors_that_come_together_make_the_records_that_they_make_alone() {
    sim::seeds(40, |seed| {
        let mut rng = Rng::new(seed);
        let sent = send(&mut rng, 0);
        let options = ReassemblyOptions {
            flows: u32::try_from(4 + rng.below(200)).unwrap(),
            tuples_max: u16::try_from(1 + rng.below(60)).unwrap(),
            interval_ns: rng.below(4) * SECOND,
        };
        let new = || Reassembly::<Full>::new(options, seed);
        let ((mut alone, mut together), (mut wanted, mut found)) =
            ((new(), new()), (vec![], vec![]));
        let mut sequencer = Sequencer::new(SequencerOptions::default());
        let mut now_ns = 0;
        for datagram in &sent.datagrams {
            let take = |_, vectors: &[Vector<'_, Full>]| {
                let mut out = |record: &Record<'_, Full>| wanted.push(whole(record));
                vectors
                    .iter()
                    .for_each(|vector| alone.take(vector, &mut out));
                let mut out = |record: &Record<'_, Full>| found.push(whole(record));
                together.take_all(vectors, &mut out);
                now_ns = vectors.last().map_or(now_ns, |vector| vector.start_ns);
            };
            sequencer.datagram_at_once(datagram, take).unwrap();
            let part = usize::try_from(rng.below(8)).unwrap();
            alone.expire(now_ns, part, &mut |record: &Record<'_, Full>| {
                wanted.push(whole(record));
            });
            together.expire(now_ns, part, &mut |record: &Record<'_, Full>| {
                found.push(whole(record));
            });
        }
        alone.flush(&mut |record: &Record<'_, Full>| wanted.push(whole(record)));
        together.flush(&mut |record: &Record<'_, Full>| found.push(whole(record)));
        assert_eq!(alone.counters(), together.counters(), "seed {seed}");
        assert!(wanted == found && !found.is_empty(), "seed {seed}");
    });
}

#[test]
fn records_are_given_when_their_interval_is_over() {
    let options = ReassemblyOptions {
        interval_ns: SECOND,
        ..ReassemblyOptions::default()
    };
    let mut reassembly = Reassembly::<Full>::new(options, 1);
    let tuples = [Full::default(); 2];
    let vector = Vector {
        key: Key::default(),
        start_ns: SECOND,
        pieces: [&tuples, &[]],
        reason: strata_gpv::Reason::Full,
        saturated: false,
        slot: 0,
    };
    let mut given = 0;
    reassembly.take(&vector, &mut |_: &Record<'_, Full>| panic!("not yet"));
    let mut out = |record: &Record<'_, Full>| given += record.count();
    reassembly.expire(2 * SECOND, usize::MAX, &mut out);
    reassembly.expire(2 * SECOND + 1, usize::MAX, &mut out);
    reassembly.expire(9 * SECOND, usize::MAX, &mut out);
    assert_eq!(given, 2);
}

#[test]
fn a_flow_has_one_queue_and_all_queues_have_flows() {
    let hasher = KeyHasher::new(3);
    let packets = random_packets(&mut Rng::new(2), 2000, 300);
    let mut used = [0; 5];
    for packet in &packets {
        let queue = queue_of(&hasher, &packet.key, 5);
        assert_eq!(queue, queue_of(&hasher, &packet.key, 5));
        used[queue] += 1;
    }
    assert!(used.iter().all(|&count| count > 0), "{used:?}");
}
