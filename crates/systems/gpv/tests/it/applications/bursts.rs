//! Bursts against a naive program over packets in the order of their times.

use std::collections::HashMap;

use strata_gpv::agent::{Reassembly, ReassemblyOptions, Record};
use strata_gpv::application::{
    Application, Burst, BurstCounters, BurstOptions, BurstSource, Bursts, Congestion,
};
use strata_gpv::{Basic, Cache, Full, Packet, Parameters, Tuple, Vector};
use strata_testkit::sim::{self, Rng};

use crate::common::{captured, labelled, random_packets};

const PARAMETERS: Parameters = Parameters {
    slots: 64,
    narrow: 4,
    wide: 12,
    blocks: 16,
};

const OPTIONS: BurstOptions = BurstOptions {
    congestion: Congestion::HighQueue,
    lookback_ns: 10_000,
    burst_ns_max: 100_000,
    // Whatever the cache holds comes before it is over.
    hold_ns: 1 << 50,
    packets_max: 1_000_000,
    hosts_max: 1000,
    top: 3,
};

/// Through a cache and an agent, whose records cover long times.
fn diagnose<T: Tuple>(packets: &[Packet], options: BurstOptions) -> (Vec<Burst>, BurstCounters) {
    let mut found = Vec::new();
    let mut bursts = Bursts::new(options, 1, |burst: &Burst| found.push(burst.clone()));
    let mut cache = Cache::<T>::new(PARAMETERS, 1).unwrap();
    let mut agent = Reassembly::<T>::new(ReassemblyOptions::default(), 1);
    let mut records = |record: &Record<'_, T>| bursts.take(0, record);
    let mut vectors = |vector: &Vector<'_, T>| agent.take(vector, &mut records);
    cache.push(packets, &mut vectors);
    cache.flush(&mut vectors);
    agent.flush(&mut records);
    bursts.finish();
    let counters = *bursts.counters();
    assert_eq!(counters.bursts, found.len() as u64);
    (found, counters)
}

/// A packet: time, source, bytes, and whether it met a long queue.
type Seen = (u64, (u8, u128), u64, bool);

fn source(packet: &Packet) -> (u8, u128) {
    (packet.key.family() as u8, packet.key.source().address)
}

/// The next congested packet of each, and then bursts of those that are near each other.
fn naive(mut packets: Vec<Seen>, options: &BurstOptions) -> Vec<(u64, u64, u64, u64, Vec<Top>)> {
    packets.sort_unstable_by_key(|&(ts_ns, _, _, is_congested)| (ts_ns, is_congested));
    let mut bursts: Vec<(u64, u64, Vec<Seen>)> = Vec::new();
    let mut next = packets.len();
    let mut members: Vec<Vec<Seen>> = vec![Vec::new(); packets.len()];
    for at in (0..packets.len()).rev() {
        if packets[at].3 {
            next = at;
        }
        if next < packets.len() && packets[next].0 - packets[at].0 <= options.lookback_ns {
            members[next].push(packets[at]);
        }
    }
    for at in (0..packets.len()).filter(|&at| packets[at].3) {
        let now = packets[at].0;
        match bursts.last_mut() {
            Some((start, end, held))
                if now - *end <= options.lookback_ns && now - *start < options.burst_ns_max =>
            {
                *end = now;
                held.append(&mut members[at]);
            }
            _ => bursts.push((now, now, std::mem::take(&mut members[at]))),
        }
    }
    let summary = |(start, end, held): (u64, u64, Vec<Seen>)| {
        let mut sources: HashMap<_, (u64, u64)> = HashMap::new();
        for (_, source, bytes, _) in &held {
            let entry = sources.entry(*source).or_default();
            *entry = (entry.0 + bytes, entry.1 + 1);
        }
        let mut sources: Vec<Top> = sources.into_iter().map(|(s, (b, n))| (b, s, n)).collect();
        sources.sort_unstable_by_key(|&(bytes, source, _)| (std::cmp::Reverse(bytes), source));
        sources.truncate(options.top);
        let congested = held.iter().filter(|packet| packet.3).count() as u64;
        (start, end, congested, held.len() as u64, sources)
    };
    bursts.into_iter().map(summary).collect()
}

/// Bytes, source, packets.
type Top = (u64, (u8, u128), u64);

fn compare(found: &[Burst], wanted: &[(u64, u64, u64, u64, Vec<Top>)]) {
    let top = |source: &BurstSource| {
        let host = (source.family as u8, source.address);
        (source.bytes, host, source.packets)
    };
    let found: Vec<_> = found
        .iter()
        .map(|burst| {
            let sources: Vec<Top> = burst.sources.iter().map(top).collect();
            let (start, end) = (burst.start_ns, burst.end_ns);
            (start, end, burst.congested, burst.packets, sources)
        })
        .collect();
    let differs = found
        .iter()
        .zip(wanted)
        .find(|(found, wanted)| found != wanted);
    assert_eq!((differs, found.len()), (None, wanted.len()));
}

/// Flags, marks and depths at random, each as the sign of a long queue.
#[test]
fn bursts_are_those_of_a_naive_walk_back() {
    sim::seeds(60, |seed| {
        let mut rng = Rng::new(seed);
        let mut packets = random_packets(&mut rng, 3000, 60);
        let often = 1 + rng.below(60);
        for packet in &mut packets {
            packet.high_queue = rng.below(often) == 0;
            packet.ts_ns = packet.ts_ns / 1000 * 1000;
        }
        let congestion = match seed % 3 {
            0 => Congestion::HighQueue,
            1 => Congestion::Ecn,
            _ => Congestion::Depth { at_least: 200 },
        };
        let options = BurstOptions {
            congestion,
            lookback_ns: 1000 * rng.below(40),
            ..OPTIONS
        };
        let seen = |packet: &Packet| {
            let is_congested = match congestion {
                Congestion::HighQueue => packet.high_queue,
                Congestion::Ecn => packet.ecn == 3,
                _ => packet.queue_depth >= 200,
            };
            let bytes = u64::from(packet.size.min(65_535));
            (packet.ts_ns, source(packet), bytes, is_congested)
        };
        let wanted = naive(packets.iter().map(seen).collect(), &options);
        let (found, counters) = diagnose::<Full>(&packets, options);
        assert!(found.len() > 2);
        assert_eq!((counters.late, counters.refused), (0, 0));
        assert_eq!(counters.ordered, packets.len() as u64);
        compare(&found, &wanted);
    });
}

/// Every packet of a capture flagged: one burst after the other, and each packet in one of them.
#[test]
fn with_every_packet_flagged_each_is_in_one_burst() {
    let mut packets = captured(&labelled("youtube"), usize::MAX).unwrap();
    for packet in &mut packets {
        packet.high_queue = true;
        packet.size = packet.size.min(2047);
    }
    let options = BurstOptions {
        lookback_ns: 10_000_000,
        ..OPTIONS
    };
    let (found, counters) = diagnose::<Basic>(&packets, options);
    let total: u64 = found.iter().map(|burst| burst.packets).sum();
    assert_eq!(
        (counters.late, counters.refused, counters.ordered),
        (0, 0, packets.len() as u64)
    );
    assert_eq!(total, packets.len() as u64);
    assert_eq!(counters.congested, total);
    assert!(found.iter().any(|burst| burst.continues));
}

/// The stated queue model against the same one in plain arithmetic.
#[test]
fn a_queue_model_says_when_the_queue_was_long() {
    let packets = captured(&labelled("youtube"), usize::MAX).unwrap();
    let (rate, limit) = (50_000_000_u64, 15_000_u64);
    let congestion = Congestion::Model {
        bits_per_second: rate,
        bytes: limit,
    };
    let options = BurstOptions {
        congestion,
        lookback_ns: 1_000_000,
        burst_ns_max: u64::MAX,
        ..OPTIONS
    };
    let mut sorted: Vec<&Packet> = packets.iter().collect();
    sorted.sort_unstable_by_key(|packet| (packet.ts_ns, packet.size));
    let (mut backlog, mut last) = (0.0_f64, sorted[0].ts_ns);
    let seen = sorted.iter().map(|packet| {
        #[allow(clippy::cast_precision_loss, reason = "small numbers")]
        let passed = (packet.ts_ns - last) as f64 * rate as f64 / 8e9;
        last = packet.ts_ns;
        backlog = (backlog - passed).max(0.0);
        #[allow(clippy::cast_precision_loss, reason = "small numbers")]
        let is_long = backlog > limit as f64;
        backlog += f64::from(packet.size);
        let bytes = u64::from(packet.size);
        (packet.ts_ns, source(packet), bytes, is_long)
    });
    let wanted = naive(seen.collect(), &options);
    let (found, _) = diagnose::<Full>(&packets, options);
    assert!(found.len() > 10, "{} bursts", found.len());
    compare(&found, &wanted);
}

/// An incast: many hosts send to one at once, which is what the diagnosis is for.
#[test]
fn an_incast_names_its_senders() {
    let mut packets: Vec<Packet> = captured(&labelled("everyday-benign"), 1000).unwrap();
    let start = packets[500].ts_ns;
    let mut senders = random_packets(&mut Rng::new(5), 400, 8);
    for (number, packet) in (0..).zip(&mut senders) {
        packet.ts_ns = start + number * 1200;
        packet.size = 1500;
        packet.high_queue = number > 300;
    }
    packets.retain(|packet| packet.ts_ns < start || packet.ts_ns > start + 1_000_000);
    packets.extend(&senders);
    packets.sort_by_key(|packet| packet.ts_ns);
    let options = BurstOptions {
        lookback_ns: 500_000,
        burst_ns_max: 1_000_000,
        top: 10,
        ..OPTIONS
    };
    let (found, _) = diagnose::<Full>(&packets, options);
    let [burst] = found.as_slice() else {
        panic!("one burst, not {found:?}");
    };
    assert_eq!((burst.start_ns, burst.congested), (start + 301 * 1200, 99));
    for named in &burst.sources {
        let host = (named.family as u8, named.address);
        assert!(
            senders.iter().any(|packet| source(packet) == host),
            "{named:?}"
        );
    }
}

/// With less room than packets, hosts or time, what is given up is counted.
#[test]
fn a_diagnosis_holds_what_it_may_and_counts_the_rest() {
    let packets = captured(&labelled("youtube"), usize::MAX).unwrap();
    for options in [
        BurstOptions {
            hold_ns: 1_000_000,
            ..OPTIONS
        },
        BurstOptions {
            packets_max: 100,
            ..OPTIONS
        },
        BurstOptions {
            hosts_max: 2,
            ..OPTIONS
        },
        BurstOptions {
            packets_max: 0,
            hosts_max: 0,
            top: 0,
            hold_ns: 0,
            ..OPTIONS
        },
    ] {
        let (_, counters) = diagnose::<Full>(&packets, options);
        let total = counters.ordered + counters.late + counters.refused;
        assert_eq!(total, packets.len() as u64, "{options:?}: {counters:?}");
        if options.hosts_max < 10 {
            assert!(counters.refused > 0);
        } else if options.hold_ns < 10_000_000 {
            assert!(counters.late > 0);
        }
    }
}
