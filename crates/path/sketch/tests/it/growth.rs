//! A sketch that grows at the end of a window, and one that is refused memory.

use std::collections::{BTreeSet, HashSet};

use proptest::prelude::*;
use strata_sketch::{Arithmetic, Clock, PacketFacts, Sketch, TableSize};
use strata_wire::mix64;

const WINDOW_NS: u64 = 1_000_000;

fn sketch(bits: u32, bits_max: u32) -> Sketch {
    let size = TableSize::growing(bits, bits_max);
    Sketch::growing(size, Clock::new(WINDOW_NS), Arithmetic::Exact).unwrap()
}

fn packet(flow: u64, ts_ns: u64) -> PacketFacts {
    PacketFacts {
        fingerprint: mix64(flow + 1).max(1),
        ts_ns,
        size: 100,
        header_len: 54,
        ..PacketFacts::default()
    }
}

/// One packet of each of these flows, in one window; how many had no bucket.
fn window(sketch: &mut Sketch, number: u64, flows: u64) -> u64 {
    let before = sketch.pressure().without_bucket;
    for flow in 0..flows {
        sketch.insert(&packet(flow, number * WINDOW_NS));
    }
    sketch.pressure().without_bucket - before
}

#[test]
fn it_doubles_at_the_end_of_a_window_with_too_few_buckets() {
    let mut sketch = sketch(4, 14);
    let mut sizes = Vec::new();
    let mut last = u64::MAX;
    for number in 1..10 {
        let without = window(&mut sketch, number, 500);
        sizes.push(sketch.pressure().buckets);
        assert!(
            without <= last,
            "the more buckets, the fewer packets without"
        );
        last = without;
    }
    // Two layers; the first packet of a window is the end of the one before.
    assert_eq!(sizes[..6], [32, 64, 128, 256, 512, 1024]);
    assert!(last <= 5, "{last}");
    // As many as that takes, and no more.
    assert_eq!(sizes[8], 4096, "{sizes:?}");
    assert_eq!(sketch.pressure().growths_refused, 0);
}

#[test]
fn it_stays_where_one_in_a_hundred_has_no_bucket_and_at_its_limit() {
    let mut sketch = sketch(1, 3);
    for number in 1..5 {
        // Four buckets; one packet of another flow in 200.
        for n in 0..200 {
            sketch.insert(&packet(0, number * WINDOW_NS + n));
        }
        window(&mut sketch, number, 1);
    }
    assert_eq!(sketch.pressure().buckets, 4);
    for number in 10..20 {
        window(&mut sketch, number, 500);
    }
    assert_eq!(sketch.pressure().buckets, 16);
}

#[test]
fn with_a_helper_it_grows_once_memory_is_prepared() {
    let mut sketch = sketch(4, 6);
    sketch.make_present().unwrap();
    sketch.grow_when_prepared();
    assert!(sketch.preparation().is_none(), "nothing is short");
    window(&mut sketch, 1, 500);
    let preparation = sketch.preparation().unwrap();
    assert!(sketch.preparation().is_none(), "once");
    // Not ready in time: it goes on as it is.
    window(&mut sketch, 2, 500);
    window(&mut sketch, 3, 500);
    assert_eq!(sketch.pressure().buckets, 32);
    std::thread::spawn(|| preparation.run().unwrap())
        .join()
        .unwrap();
    assert_eq!(sketch.pressure().buckets, 32, "not within a window");
    window(&mut sketch, 4, 500);
    assert_eq!(sketch.pressure().buckets, 64);
    // It is not prepared: that counts as refused, and is requested again.
    drop(sketch.preparation().unwrap());
    window(&mut sketch, 5, 500);
    let pressure = sketch.pressure();
    assert_eq!((pressure.buckets, pressure.growths_refused), (64, 1));
    sketch.preparation().unwrap().run().unwrap();
    window(&mut sketch, 6, 500);
    assert_eq!(sketch.pressure().buckets, 128);
    assert!(sketch.preparation().is_none(), "at its limit");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A small table that doubles within windows counts what a large one does, flow by flow.
    #[test]
    fn a_table_that_starts_small_forgets_nothing_while_it_doubles(
        seed in any::<u64>(), flows in 1_u64..120_000, again in 1_u64..4,
    ) {
        let new = |size| Sketch::growing(size, Clock::new(WINDOW_NS), Arithmetic::Exact).unwrap();
        let mut small = new(TableSize::growing(18, 19).starting_small());
        let mut large = new(TableSize::fixed(22));
        let mut without = HashSet::new();
        for number in 1..3 {
            for n in 0..100_000 {
                let mut facts = packet(0, number * WINDOW_NS + n);
                // Flows come again, soon or late, and new ones all the time.
                facts.fingerprint = mix64(seed ^ (mix64(n / again) % flows)).max(1);
                let flow = (number, facts.fingerprint);
                let expected = large.insert(&facts).copied();
                let found = small.insert(&facts).copied();
                match (found, expected) {
                    (Some(found), Some(expected)) if !without.contains(&flow) => {
                        prop_assert_eq!(found.stats(), expected.stats());
                    }
                    (Some(_), Some(_)) => {}
                    _ => {
                        without.insert(flow);
                    }
                }
            }
            let (pressure, claimed) = (small.pressure(), large.pressure().claimed);
            // An eighth is taken at most, and some more before it looks; to where it would have begun.
            let in_window = claimed / number;
            let fits = in_window <= pressure.buckets / 8 + 1200 || pressure.buckets == 2 << 18;
            prop_assert!(fits, "{pressure:?}: {in_window}");
            let needed = pressure.buckets == 2 << 16 || in_window > pressure.buckets / 16;
            prop_assert!(needed, "{pressure:?}: {in_window}");
        }
        let pressure = small.pressure();
        prop_assert!(pressure.without_bucket <= pressure.packets / 200, "{pressure:?}");
        prop_assert_eq!(pressure.growths_refused, 0);
    }
}

#[test]
fn tables_that_start_small_keep_their_limit() {
    let small = TableSize::within(512 << 20).starting_small();
    assert_eq!((small.bits(), small.bits_max()), (16, 22));
    let least = TableSize::within(1 << 20);
    assert_eq!(least.starting_small(), least);
    // Without flow identity, buckets cannot be told apart when they move.
    let size = TableSize::growing(18, 18).starting_small();
    let sketch = Sketch::growing(size, Clock::new(WINDOW_NS), Arithmetic::Exact);
    let mut sketch = sketch.unwrap().with_shared_buckets();
    window(&mut sketch, 1, 100_000);
    assert_eq!(sketch.pressure().buckets, 2 << 16);
}

proptest! {
    /// Whatever it has grown through, no flow of an earlier window comes back when the numbers of
    /// windows repeat.
    #[test]
    fn growth_does_not_revive_old_flows(
        grows_at in prop::collection::btree_set(1_u64..65_535, 0..6),
        flows in 100_u64..200,
    ) {
        let mut sketch = sketch(3, 9);
        window(&mut sketch, 0, flows);
        let grows_at: BTreeSet<u64> = grows_at;
        for number in 1..=65_536_u64 {
            let few = if grows_at.contains(&number) { 3_000 } else { 0 };
            // Other flows, so that those of the first window are not touched.
            for flow in 0..few {
                sketch.insert(&packet(1_000_000 + flow, number * WINDOW_NS));
            }
            sketch.insert(&packet(u64::from(u32::MAX), number * WINDOW_NS));
        }
        for flow in 0..flows {
            let facts = packet(flow, 65_537 * WINDOW_NS);
            if let Some(bucket) = sketch.insert(&facts) {
                prop_assert_eq!(bucket.stats().packets, 1);
            }
        }
    }
}
