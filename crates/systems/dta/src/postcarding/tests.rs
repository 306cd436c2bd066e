//! Paths through the cache and back from memory.

use proptest::prelude::*;

use super::*;
use crate::protocol::{Flags, Primitive, Refusal, Report, packed};
use crate::sink::Local;

const SWITCHES: std::ops::Range<u32> = 100..1100;

fn hasher() -> KeyHasher {
    KeyHasher::new([7, 8])
}

fn key(n: u32) -> KeyHash {
    hasher().hash(&n.to_be_bytes())
}

struct World {
    store: Postcarding,
    cache: Cache,
    memory: Vec<u8>,
}

impl World {
    fn new(rows: usize, redundancy: u8) -> Self {
        let store = Postcarding::new(64, 1 << 14, 5, 32, redundancy, hasher());
        Self {
            cache: Cache::new(store, rows, false),
            memory: vec![0; 64 + usize::try_from(store.memory_len()).unwrap()],
            store,
        }
    }

    fn put(&mut self, n: u32, hop: u8, path_len: Option<u8>, value: u32) -> Result<(), Refusal> {
        let mut sinks = [Local::new(&mut self.memory)];
        self.cache
            .put(key(n), hop, path_len, value, Origin(0), 5, &mut sinks)
            .map(|_| ())
    }

    fn expire(&mut self, before_ns: u64) {
        let rows = self.cache.rows();
        let mut sinks = [Local::new(&mut self.memory)];
        self.cache.expire(before_ns, rows, &mut sinks);
    }

    fn found(&self, n: u32) -> Option<Path> {
        let values = Values::new(&self.store, SWITCHES);
        assert_eq!(values.ambiguous(), 0);
        self.store.get(&self.memory, key(n), &values)
    }

    fn path(&self, n: u32) -> Option<Vec<Option<u32>>> {
        Some(self.found(n)?.values()[..5].to_vec())
    }
}

#[test]
fn a_path_is_written_once_all_hops_have_reported_in_any_order() {
    for redundancy in 1..=4 {
        let mut world = World::new(64, redundancy);
        for hop in [3, 0, 4, 1, 2] {
            assert_eq!(world.path(1), None);
            world.put(1, hop, None, 200 + u32::from(hop)).unwrap();
        }
        let expected = (200..205).map(Some).collect();
        assert_eq!(world.path(1), Some(expected));
        assert_eq!(world.path(2), None);
        let counters = world.cache.counters();
        assert_eq!((counters.complete, counters.held), (1, 0));
    }
}

#[test]
fn a_shorter_path_is_written_when_it_is_complete_with_blanks_after_it() {
    let mut world = World::new(64, 2);
    world.put(1, 0, Some(2), 300).unwrap();
    world.put(1, 1, Some(2), 301).unwrap();
    let expected = vec![Some(300), Some(301), None, None, None];
    assert_eq!(world.path(1), Some(expected));
    assert!(world.found(1).unwrap().is_whole());
    assert_eq!(world.put(1, 2, Some(2), 1), Err(Refusal::Hop));
    assert_eq!(world.put(1, 5, None, 1), Err(Refusal::Hop));
}

/// Neither a known length nor hops that report for themselves make a part of a path a whole one.
#[test]
fn of_a_path_that_is_longer_than_is_kept_the_length_is() {
    let mut world = World::new(64, 2);
    for hop in 0..8 {
        let kept = world.put(1, hop, Some(8), 200 + u32::from(hop));
        assert_eq!(kept.is_ok(), hop < 5, "{hop}");
        let _ = world.put(2, hop, None, 300 + u32::from(hop));
    }
    world.expire(6);
    for (n, first, extent) in [(1, 200, Extent::known(8)), (2, 300, Extent::at_least(8))] {
        let path = world.found(n).unwrap();
        assert_eq!(path.values()[4], Some(first + 4));
        assert_eq!(path.extent(), extent);
        assert!(!path.is_whole());
    }
    // Three hops that report for themselves: there may be a fourth.
    for hop in 0..3 {
        world.put(3, hop, None, 400).unwrap();
    }
    world.expire(6);
    let path = world.found(3).unwrap();
    assert_eq!(path.extent(), Extent::at_least(3));
    assert!(!path.is_whole());
}

/// 100 flows take the only row from each other with every postcard.
#[test]
fn a_row_that_makes_way_early_keeps_what_was_known_of_other_hops() {
    for redundancy in 1..=4 {
        let mut world = World::new(1, redundancy);
        for hop in 0..5 {
            for n in 0..100 {
                world.put(n, hop, None, 200 + n + u32::from(hop)).unwrap();
            }
        }
        world.expire(6);
        let mut there = 0;
        for n in 0..100 {
            // Another flow may have been written to all of its chunks meanwhile.
            let Some(path) = world.found(n) else { continue };
            let expected: Vec<u32> = (0..5).map(|hop| 200 + n + hop).collect();
            let known: Vec<u32> = path.values().iter().flatten().copied().collect();
            there += u32::from(known == expected);
            let extent = path.extent();
            assert!(extent.is_mixed && !extent.is_len_known && !path.is_whole());
            assert!(
                path.values()
                    .iter()
                    .zip(&expected)
                    .all(|(known, right)| { known.is_none_or(|known| known == *right) })
            );
        }
        assert!(there >= 95, "{there} with {redundancy} copies");
    }
}

/// 100,000 flows at a time: the first hops of all, then the second ones.
#[test]
fn paths_of_more_flows_than_rows_are_put_together_and_with_many_rows_known_to_be_whole() {
    const FLOWS: u32 = 100_000;
    let store = Postcarding::new(64, 1 << 21, 5, 32, 2, hasher());
    let values = Values::new(&store, SWITCHES);
    let shares = [CACHE_ROWS, CACHE_ROWS * 32].map(|rows| {
        let mut memory = vec![0; 64 + usize::try_from(store.memory_len()).unwrap()];
        let mut cache = Cache::new(store, rows, false);
        let mut sinks = [Local::new(&mut memory)];
        let value = |n: u32, hop: u8| 100 + (n + u32::from(hop)) % 1000;
        for hop in 0..5 {
            for n in 0..FLOWS {
                cache
                    .put(
                        key(n),
                        hop,
                        Some(5),
                        value(n, hop),
                        Origin(0),
                        5,
                        &mut sinks,
                    )
                    .unwrap();
            }
        }
        cache.expire(6, rows, &mut sinks);
        drop(sinks);
        let (mut there, mut whole) = (0, 0);
        for n in 0..FLOWS {
            let Some(path) = store.get(&memory, key(n), &values) else {
                continue;
            };
            let right = (0..5).map(|hop| Some(value(n, hop)));
            there += u32::from(path.values()[..5].iter().copied().eq(right));
            whole += u32::from(path.is_whole());
        }
        [there, whole].map(|count| f64::from(count) / f64::from(FLOWS))
    });
    let [[there, _], [_, whole]] = shares;
    assert!(there > 0.98, "{shares:?}");
    // One in eleven shares its row with another.
    assert!(whole > 0.9, "{shares:?}");
}

/// The next packet of the flow takes another way, and fills the row of one whose reports were lost.
#[test]
fn a_row_of_two_packets_is_not_a_whole_path() {
    let mut world = World::new(64, 2);
    // The first postcard is lost: the next packet has a row of its own.
    for (hop, value) in [(1, 201), (2, 202), (0, 300), (1, 301), (2, 302)] {
        assert!(!world.found(1).is_some_and(|path| path.is_whole()));
        world.put(1, hop, Some(3), value).unwrap();
    }
    let path = world.found(1).unwrap();
    assert!(path.is_whole());
    assert_eq!(path.values()[..3], [300, 301, 302].map(Some));
    // The last ones are lost, and the next packet begins at the same node.
    for hop in 0..3 {
        world.put(2, hop, Some(5), 200 + u32::from(hop)).unwrap();
    }
    world.put(2, 0, Some(3), 200).unwrap();
    let path = world.found(2).unwrap();
    assert!(path.extent().is_mixed && !path.is_whole());
    // A hop beyond the end.
    let _ = world.put(3, 6, None, 7);
    for hop in 0..3 {
        world.put(3, hop, Some(3), 200).unwrap();
    }
    assert!(!world.found(3).unwrap().is_whole());
}

/// A path of five hops, then one of three, whose row has to make way.
#[test]
fn after_the_end_of_a_shorter_path_nothing_is_left_of_a_longer_one() {
    let mut world = World::new(1, 1);
    for hop in 0..5 {
        world.put(1, hop, Some(5), 200 + u32::from(hop)).unwrap();
    }
    assert!(world.found(1).unwrap().is_whole());
    for hop in 0..2 {
        world.put(1, hop, Some(3), 300).unwrap();
    }
    world.put(2, 0, None, 400).unwrap();
    let path = world.found(1).unwrap();
    let expected = [Some(300), Some(300), Some(202), None, None];
    assert_eq!(path.values()[..5], expected);
    assert!(path.extent().hops == 3 && !path.is_whole());
}

#[test]
fn hops_that_all_report_as_the_first_contradict_each_other() {
    let mut world = World::new(64, 2);
    for value in 200..204 {
        world.put(1, 0, None, value).unwrap();
    }
    world.expire(6);
    let path = world.found(1).unwrap();
    assert!(path.extent().is_contradicted && !path.is_whole());
    assert_eq!(path.values()[0], Some(203));
}

#[test]
fn large_values_are_written_down_until_the_dictionary_is_full() {
    let dictionary = Dictionary {
        at: 0,
        len: 3,
        above: 255,
    };
    let store = Postcarding::new(64, 64, 2, 32, 1, hasher()).with_dictionary(dictionary);
    let mut memory = vec![0; 64 + usize::try_from(store.memory_len()).unwrap()];
    let mut cache = Cache::new(store, 8, false);
    let mut put = |n: u32, value: u32| {
        let mut sinks = [Local::new(&mut memory)];
        (0..2).try_for_each(|hop| {
            cache
                .put(key(n), hop, None, value, Origin(0), 0, &mut sinks)
                .map(|_| ())
        })
    };
    for (n, value) in [(1, 0x0a0a_0001), (2, 255), (3, u32::MAX), (4, 256)] {
        assert_eq!(put(n, value), Ok(()), "{value}");
    }
    assert_eq!(put(5, 257), Err(Refusal::Value));
    assert_eq!(put(6, 256), Ok(()), "which it holds");
    let words = memory[..32].as_chunks().0;
    let written: Vec<u32> = words
        .iter()
        .map_while(|word| Dictionary::value(*word))
        .collect();
    assert_eq!(written, [0x0a0a_0001, u32::MAX, 256]);
    let values = Values::new(&store, (0..=255).chain(written));
    for (n, value) in [(1, 0x0a0a_0001), (2, 255), (3, u32::MAX), (6, 256)] {
        let path = store.get(&memory, key(n), &values).unwrap();
        assert_eq!(path.values()[..2], [Some(value); 2]);
    }
    // A translator that goes on with this memory.
    let mut cache = Cache::new(store, 8, false);
    cache.continue_values(0, [1 << 20]);
    let mut sinks = [Local::new(&mut memory)];
    cache
        .put(key(7), 0, None, 1 << 21, Origin(0), 0, &mut sinks)
        .unwrap();
    drop(sinks);
    assert_eq!(
        Dictionary::value(*memory[8..].first_chunk().unwrap()),
        Some(1 << 21)
    );
    assert_eq!(cache.counters().values, 1);
}

#[test]
fn another_flow_or_the_time_writes_a_row_early() {
    let mut world = World::new(1, 1);
    world.put(1, 1, None, 111).unwrap();
    world.put(1, 3, None, 113).unwrap();
    assert_eq!(world.cache.victim(key(2)), Some(key(1)));
    world.put(2, 0, None, 120).unwrap();
    let partial = vec![None, Some(111), None, Some(113), None];
    assert_eq!(world.path(1), Some(partial));
    world.expire(5);
    assert_eq!(world.path(2), None, "not old enough");
    world.expire(6);
    assert_eq!(world.path(2), Some(vec![Some(120), None, None, None, None]));
    let counters = world.cache.counters();
    assert_eq!((counters.collided, counters.aged, counters.held), (1, 1, 0));
    assert_eq!(counters.postcards, 3);
}

#[test]
fn a_hop_that_reports_again_takes_the_place_of_its_first_postcard() {
    let mut world = World::new(64, 1);
    for (hop, value) in [(0, 100), (0, 101), (1, 102)] {
        world.put(1, hop, Some(2), value).unwrap();
    }
    let expected = vec![Some(101), Some(102), None, None, None];
    assert_eq!(world.path(1), Some(expected));
    assert_eq!(world.cache.counters().superseded, 1);
}

#[test]
fn values_that_share_a_code_are_never_guessed() {
    let store = Postcarding::new(0, 16, 2, 4, 1, hasher());
    let values = Values::new(&store, 0..1000);
    assert_eq!(values.ambiguous(), 16, "1000 values in 4 bits");
    let mut memory = vec![0; usize::try_from(store.memory_len()).unwrap()];
    let mut cache = Cache::new(store, 1, false);
    for hop in 0..2 {
        let mut sinks = [Local::new(&mut memory)];
        cache
            .put(key(1), hop, None, 1, Origin(0), 0, &mut sinks)
            .unwrap();
    }
    assert_eq!(store.get(&memory, key(1), &values), None);
}

proptest! {
    /// Postcards of few flows, whose packets and lengths meet in every way.
    #[test]
    fn postcards_at_once_are_postcards_one_by_one(
        cards in prop::collection::vec((0_u32..12, 0_u8..7, 0_u8..7, 100_u32..104), 1..400),
        has_dictionary in any::<bool>(),
    ) {
        let [mut single, mut at_once] = [(); 2].map(|()| World::new(8, 2));
        let end = u64::try_from(single.memory.len()).unwrap();
        for world in [&mut single, &mut at_once] {
            if has_dictionary {
                world.memory.extend([0; 64]);
                let dictionary = Dictionary { at: end, len: 2, above: 101 };
                world.store = world.store.with_dictionary(dictionary);
                world.cache = Cache::new(world.store, 8, false);
            }
        }
        let mut refused = 0;
        for cards in cards.chunks(60) {
            let keys: Vec<_> = cards.iter().map(|(n, ..)| n.to_be_bytes()).collect();
            let reports: Vec<_> = keys.iter().zip(cards).map(|(key, &(_, hop, len, value))| {
                let path_len = (len != 0).then_some(len);
                Report::Postcard { key, hop, path_len, value }
            }).collect();
            let repr = packed::Repr {
                primitive: Primitive::Postcard,
                flags: Flags::default(),
                sequence: 0,
                time_ns: 0,
                key_len: 4,
                data_len: 4,
                redundancy: 0,
                session: 0,
            };
            let mut bytes = Vec::new();
            repr.emit(&reports, &mut bytes);
            let packet = packed::Packet::new_checked(&bytes).unwrap();
            let mut sinks = [Local::new(&mut at_once.memory)];
            let done = at_once.cache.put_all(&packet, Origin(0), 5, &mut sinks);
            refused += done.hop + done.value;
            drop(sinks);
            for &(n, hop, len, value) in cards {
                let put = single.put(n, hop, (len != 0).then_some(len), value);
                refused -= u64::from(put.is_err());
            }
        }
        prop_assert_eq!(refused, 0);
        prop_assert_eq!(single.cache.counters(), at_once.cache.counters());
        prop_assert!(single.memory == at_once.memory);
    }
}
