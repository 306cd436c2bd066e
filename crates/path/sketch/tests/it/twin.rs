//! The sketch compared with its exact twin.

use proptest::prelude::*;
use strata_sketch::{Arithmetic, BITS_DEFAULT, Clock, ExactTable, Feature, PacketFacts, Sketch};
use strata_wire::mix64;

const WINDOW_NS: u64 = 10_000_000;

fn packet(flow: u64, ts_ns: u64, size: u16, low_to_high: bool) -> PacketFacts {
    PacketFacts {
        fingerprint: mix64(flow + 1).max(1),
        ts_ns,
        size,
        header_len: 54,
        low_to_high,
        tcp_window: size.wrapping_mul(7),
        ..PacketFacts::default()
    }
}

proptest! {
    /// Few flows in the full-size sketch: no pressure, so everything is exact,
    /// over windows, both directions and clocks that run backwards.
    #[test]
    fn without_pressure_the_sketch_is_exact(
        packets in prop::collection::vec(
            (0_u64..40, -30_000_i64..400_000, 1_u16..=65_535, any::<bool>()), 1..400),
        start in 0_u64..u64::MAX / 2,
        jump in prop::option::of(0_u64..1 << 40),
    ) {
        let clock = Clock::new(WINDOW_NS);
        let mut sketch = Sketch::new(BITS_DEFAULT, clock, Arithmetic::Exact);
        let mut exact = ExactTable::new(clock);
        let mut now = start;
        for (index, &(flow, step, size, low_to_high)) in packets.iter().enumerate() {
            now = now.saturating_add_signed(step);
            if index == packets.len() / 2 && let Some(jump) = jump {
                now = now.saturating_sub(jump);
            }
            let facts = packet(flow, now, size, low_to_high);
            let stats = sketch.insert(&facts).map(|bucket| bucket.stats());
            prop_assert_eq!(stats, exact.insert(&facts));
        }
        prop_assert_eq!(sketch.pressure().without_bucket, 0);
    }

    /// Far too many flows for the buckets: what a bucket says about its flow never exceeds the
    /// truth, and every packet either has a bucket or is counted as without one.
    #[test]
    fn under_pressure_nothing_is_invented(
        packets in prop::collection::vec((0_u64..200, 0_u64..3_000, 40_u16..1515), 1..2_000),
    ) {
        let clock = Clock::new(WINDOW_NS);
        let mut sketch = Sketch::new(2, clock, Arithmetic::Exact);
        let mut exact = ExactTable::new(clock);
        let (mut now, mut without) = (0, 0);
        for &(flow, step, size) in &packets {
            now += step;
            let facts = packet(flow, now, size, true);
            let truth = exact.insert(&facts).unwrap();
            match sketch.insert(&facts) {
                None => without += 1,
                Some(bucket) => {
                    let stats = bucket.stats();
                    prop_assert!(stats.packets >= 1 && stats.packets <= truth.packets);
                    prop_assert!(stats.bytes <= truth.bytes);
                    prop_assert!(stats.size_min >= truth.size_min);
                    prop_assert!(stats.size_max <= truth.size_max);
                    prop_assert!(stats.ipd_sum <= truth.ipd_sum);
                }
            }
        }
        let pressure = sketch.pressure();
        prop_assert_eq!(pressure.without_bucket, without);
        prop_assert_eq!(pressure.packets, packets.len() as u64);
    }
}

#[test]
fn a_persistent_newcomer_takes_a_weak_bucket() {
    let mut sketch = Sketch::new(1, Clock::new(WINDOW_NS), Arithmetic::Exact);
    // Fill all four buckets with flows of one packet.
    let mut flow = 0;
    while sketch.pressure().claimed < 4 {
        sketch.insert(&packet(flow, 1, 100, true));
        flow += 1;
    }
    let newcomer = 10_000;
    let tries = (1..100)
        .find(|&n| sketch.insert(&packet(newcomer, 1 + n, 100, true)).is_some())
        .unwrap();
    assert!((9..=64).contains(&tries), "replaced after {tries} packets");
    assert_eq!(sketch.pressure().replaced, 1);
}

#[test]
fn a_heavy_flow_is_not_evicted_by_a_crowd_of_mice() {
    let mut sketch = Sketch::new(1, Clock::new(WINDOW_NS), Arithmetic::Exact);
    for n in 0..1_000 {
        sketch.insert(&packet(0, n, 1500, true));
    }
    for mouse in 1..3_000 {
        sketch.insert(&packet(mouse, 2_000, 60, true));
    }
    let stats = sketch
        .insert(&packet(0, 3_000, 1500, true))
        .unwrap()
        .stats();
    assert_eq!(stats.packets, 1_001);
}

#[test]
fn sums_saturate_and_never_wrap() {
    let mut sketch = Sketch::new(4, Clock::new(u64::MAX / 4), Arithmetic::Exact);
    let mut last = *sketch.insert(&packet(0, 1, 65_535, true)).unwrap();
    for _ in 0..70_000 {
        let bucket = *sketch.insert(&packet(0, 1, 65_535, true)).unwrap();
        assert!(bucket.stats().bytes >= last.stats().bytes);
        assert!(bucket.stats().size_squares >= last.stats().size_squares);
        last = bucket;
    }
    assert_eq!(last.stats().bytes, u32::MAX);
    assert_eq!(last.stats().size_squares, (1 << 48) - 1);
}

#[test]
fn epochs_that_start_again_do_not_revive_old_flows() {
    let clock = Clock::new(1_000);
    let mut sketch = Sketch::new(4, clock, Arithmetic::Exact);
    for n in 0..5 {
        sketch.insert(&packet(0, n, 100, true));
    }
    // Every 65,535 windows the 16-bit number repeats.
    for window in 1..=65_535_u64 * 2 {
        sketch.insert(&PacketFacts {
            ts_ns: window * 1_000,
            ..PacketFacts::default()
        });
    }
    let stats = sketch
        .insert(&packet(0, 65_535 * 2_000, 100, true))
        .unwrap()
        .stats();
    assert_eq!(stats.packets, 1);
}

#[test]
fn the_one_who_answers_a_handshake_is_not_the_initiator() {
    let mut sketch = Sketch::new(8, Clock::new(WINDOW_NS), Arithmetic::Exact);
    let answer = PacketFacts {
        answers: true,
        ..packet(3, 5, 60, true)
    };
    let stats = sketch.insert(&answer).unwrap().stats();
    assert_eq!(stats.backward_bytes, 60);
    assert!(!stats.forward_is_low_to_high);
}

#[test]
fn switch_arithmetic_stays_near_the_exact() {
    let clock = Clock::new(WINDOW_NS);
    let mut exact = Sketch::new(8, clock, Arithmetic::Exact);
    let delta = 0.01;
    let mut switch = Sketch::new(8, clock, Arithmetic::Switch { delta });
    let table = strata_sketch::RangeTable::new(delta);
    for n in 0..5_000_u64 {
        let size = 60 + u16::try_from(mix64(n) % 1400).unwrap();
        let facts = packet(1, n * 1_500 + mix64(n) % 700, size, n % 3 != 0);
        let one = exact.insert(&facts).unwrap().stats();
        let two = switch.insert(&facts).unwrap().stats();
        assert_eq!(one.bytes, two.bytes);
        let average =
            |stats, table| f64::from(Feature::SizeAvg.value(&facts, stats, clock, table)) / 256.0;
        let (a, b) = (average(&one, None), average(&two, Some(&table)));
        assert!((b / a - 1.0).abs() <= delta + 0.001, "packet {n}: {a} {b}");
    }
}
