//! Generations of a store, against a naive twin that keeps a map for each period.

use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;
use strata_dta::generations::{Generation, Generations, Turning};
use strata_dta::key_increment::KeyIncrement;
use strata_dta::key_write::{Agreement, KeyWrite};
use strata_dta::postcarding::{Cache, Postcarding, Values};
use strata_dta::{KeyHash, KeyHasher, Local, Memory, Origin};

const PERIOD_NS: u64 = 1000;
const TABLE: u64 = 0;
const KEYS: u32 = 12;
const PLACES: u32 = 4096;
const HOPS: u8 = 3;

fn hasher() -> KeyHasher {
    KeyHasher::new([11, 12])
}

fn key(n: u32) -> KeyHash {
    hasher().hash(&n.to_be_bytes())
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Wait(u64),
    Value(u32, u32),
    Add(u32, u64),
    Path(u32, u32),
    /// The writer ends without any notice, and another one goes on.
    Kill,
}

fn event() -> impl Strategy<Value = Event> {
    let keys = 0..KEYS;
    prop_oneof![
        (1..2 * PERIOD_NS).prop_map(Event::Wait),
        (keys.clone(), any::<u32>()).prop_map(|(key, value)| Event::Value(key, value)),
        (keys.clone(), 1..100_u64).prop_map(|(key, add)| Event::Add(key, add)),
        (keys, 0..50_u32).prop_map(|(key, node)| Event::Path(key, node)),
        Just(Event::Kill),
    ]
}

/// What a generation was given.
#[derive(Clone, Debug, Default)]
struct Told {
    begun_ns: u64,
    values: HashMap<u32, u32>,
    counts: HashMap<u32, u64>,
    paths: HashMap<u32, u32>,
}

/// The stores of the first generation, one after the other.
struct Layout {
    generations: Generations,
    key_write: KeyWrite,
    postcarding: Postcarding,
    key_increment: KeyIncrement,
    count: u8,
}

impl Layout {
    fn new(count: u8) -> Self {
        let key_write = KeyWrite::new(256, PLACES, 4, 32);
        let paths_at = 256 + key_write.memory_len();
        let postcarding = Postcarding::new(paths_at, PLACES, HOPS, 32, 2, hasher());
        let counters_at = paths_at + postcarding.memory_len();
        let key_increment = KeyIncrement::new(counters_at, PLACES, 2);
        let stride = counters_at + key_increment.memory_len() - 256;
        Self {
            generations: Generations::new(TABLE, count, stride),
            key_write,
            postcarding,
            key_increment,
            count,
        }
    }

    fn memory(&self) -> Vec<u8> {
        let len = 256 + self.generations.offset(self.count);
        vec![0; usize::try_from(len).unwrap()]
    }

    fn read(&self, memory: &[u8]) -> Vec<Generation> {
        self.generations.read(|at| {
            let at = usize::try_from(at).unwrap();
            u64::from_le_bytes(memory[at..at + 8].try_into().unwrap())
        })
    }

    fn resume(&self, now_ns: u64, memory: &mut Vec<u8>) -> Turning {
        let present = self.read(memory);
        let region = 256..256 + self.generations.offset(1);
        let regions = vec![region];
        let memory = &mut memory.as_mut_slice();
        Turning::new(
            self.generations,
            regions,
            PERIOD_NS,
            present,
            now_ns,
            memory,
        )
    }
}

/// No two of these keys share a place, so the twin knows every answer.
#[test]
fn the_keys_of_this_test_are_kept_apart() {
    let mut places = std::collections::HashSet::new();
    for n in 0..KEYS {
        for copy in 0..2 {
            assert!(places.insert(key(n).place(copy, PLACES)));
        }
    }
}

/// Small steps back repeat the end of a period; large ones show that the clock had been wrong.
#[test]
fn a_clock_that_was_far_ahead_does_not_end_the_turning() {
    let layout = Layout::new(2);
    let mut memory = layout.memory();
    let at = |period: u64| period * PERIOD_NS + 5;
    let mut turning = layout.resume(at(1000), &mut memory);
    let mut step = |now_ns| {
        let memory = &mut memory.as_mut_slice();
        turning.step(now_ns, usize::MAX, memory)
    };
    for back in [at(1000) - 4, at(999), at(1000)] {
        assert_eq!(step(back), None);
    }
    let begun = step(at(7)).unwrap();
    assert_eq!((begun.number, begun.begun_ns), (2, at(7)));
    assert_eq!(step(at(7) + 1), None);
    assert_eq!(step(at(8)).unwrap().number, 3);
}

proptest! {
    #[test]
    fn every_answer_is_the_one_of_its_period(
        count in 2_u8..5,
        piece in 1000_usize..200_000,
        events in prop::collection::vec(event(), 1..120),
    ) {
        let layout = Layout::new(count);
        let values = Values::new(&layout.postcarding, 0..60);
        let mut memory = layout.memory();
        let mut now_ns = 7 * PERIOD_NS + 3;
        let mut turning = layout.resume(now_ns, &mut memory);
        let mut twin = VecDeque::from([Told { begun_ns: now_ns, ..Told::default() }]);
        let mut clearing = false;
        for event in events {
            let offset = layout.generations.offset(turning.youngest().index);
            let youngest = &mut twin[0];
            let mut local = Local::new(&mut memory);
            match event {
                Event::Wait(ns) => now_ns += ns,
                Event::Value(n, value) => {
                    let store = layout.key_write.shifted(offset);
                    store.put(key(n), 2, &value.to_be_bytes(), Origin(0), &mut local).unwrap();
                    youngest.values.insert(n, value);
                }
                Event::Add(n, add) => {
                    let store = layout.key_increment.shifted(offset);
                    let bytes = n.to_be_bytes();
                    store.add((&bytes, key(n)), 2, add, Origin(0), &mut local).unwrap();
                    *youngest.counts.entry(n).or_default() += add;
                }
                Event::Path(n, node) => {
                    let store = layout.postcarding.shifted(offset);
                    let mut cache = Cache::new(store, 1, false);
                    for hop in 0..HOPS {
                        let node = node + u32::from(hop);
                        let sinks = std::slice::from_mut(&mut local);
                        cache.put(key(n), hop, None, node, Origin(0), 0, sinks).unwrap();
                    }
                    youngest.paths.insert(n, node);
                }
                Event::Kill => {}
            }
            drop(local);
            if let Event::Kill = event {
                turning = layout.resume(now_ns, &mut memory);
                clearing = false;
            }
            let is_due = now_ns / PERIOD_NS > twin[0].begun_ns / PERIOD_NS;
            if is_due && !clearing {
                clearing = true;
                if twin.len() == usize::from(count) {
                    twin.pop_back();
                }
            }
            if turning.step(now_ns, piece, &mut memory.as_mut_slice()).is_some() {
                prop_assert!(clearing);
                clearing = false;
                twin.push_front(Told { begun_ns: now_ns, ..Told::default() });
            }
            prop_assert_eq!(turning.is_clearing(), clearing);
            let there = layout.read(&memory);
            prop_assert_eq!(&there[..], turning.present());
            prop_assert_eq!(there.len(), twin.len());
            for (generation, told) in there.iter().zip(&twin) {
                prop_assert_eq!(generation.begun_ns, told.begun_ns);
                let offset = layout.generations.offset(generation.index);
                for n in 0..KEYS {
                    let store = layout.key_write.shifted(offset);
                    let value = store.get(&memory, key(n), 4, Agreement::AtLeast(2));
                    let expected = told.values.get(&n).map(|value| value.to_be_bytes());
                    prop_assert_eq!(value, expected.as_ref().map(|bytes| &bytes[..]));
                    let store = layout.key_increment.shifted(offset);
                    let count = told.counts.get(&n).copied();
                    prop_assert_eq!(store.get(&memory, key(n)), count.map_or(0, |count| count));
                    let store = layout.postcarding.shifted(offset);
                    let path = store.get(&memory, key(n), &values);
                    let first = path.and_then(|path| path.values()[0]);
                    prop_assert_eq!(first, told.paths.get(&n).copied());
                }
            }
        }
    }
}

#[test]
fn a_store_that_was_not_written_for_long_keeps_what_it_knew_until_it_is_needed() {
    let layout = Layout::new(2);
    let mut memory = layout.memory();
    let mut turning = layout.resume(1, &mut memory);
    let mut local = Local::new(&mut memory);
    let put = layout
        .key_write
        .put(key(1), 2, &[7; 4], Origin(0), &mut local);
    put.unwrap();
    drop(local);
    drop(turning);
    // Ten periods later.
    turning = layout.resume(10 * PERIOD_NS, &mut memory);
    let all = usize::MAX;
    let turned = turning.step(10 * PERIOD_NS, all, &mut memory.as_mut_slice());
    let expected = Generation {
        index: 1,
        number: 2,
        begun_ns: 10 * PERIOD_NS,
    };
    assert_eq!(turned, Some(expected));
    let value = layout
        .key_write
        .get(&memory, key(1), 2, Agreement::Plurality);
    assert_eq!(value, Some(&[7; 4][..]));
    // Time that goes back turns nothing.
    let memory = &mut memory.as_mut_slice();
    assert_eq!(turning.step(9 * PERIOD_NS, all, memory), None);
    memory.prefetch(0);
    assert_eq!(turning.present().len(), 2);
}
