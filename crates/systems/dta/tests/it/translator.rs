//! The translator in front of naive collectors: what comes of any reports, compared with maps; what
//! it drops, refuses and asks for again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use proptest::prelude::*;
use strata_dta::append::{Append, Cursor, End};
use strata_dta::key_increment::KeyIncrement;
use strata_dta::key_write::{Agreement, KeyWrite};
use strata_dta::postcarding::{Merge, Postcarding, Values};
use strata_dta::protocol::{Flags, Nack, Primitive, Refusal, Report, packed, published};
use strata_dta::translator::{OTHERS, Options, Rate, Translator};
use strata_dta::{KeyHasher, Local, Operation, Origin, Room, Sink};

const SWITCH: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const KEPT: Flags = Flags {
    immediate: false,
    retransmittable: true,
};

/// Memory that executes requests at once.
struct Collector {
    memory: Vec<u8>,
    is_gone: bool,
    writes: usize,
}

impl Sink for Collector {
    const KEEPS_ORIGINS: bool = true;
    const MERGES: bool = true;

    fn room(&self, _: Operation) -> Room {
        match self.is_gone {
            true => Room::Gone,
            false => Room::Operations(100),
        }
    }

    fn write(&mut self, at: u64, bytes: &[u8], _: &[Origin]) {
        let at = usize::try_from(at).unwrap();
        self.memory[at..at + bytes.len()].copy_from_slice(bytes);
        self.writes += 1;
    }

    fn merge(&mut self, at: u64, chunk: &[u8], how: Merge, _: &[Origin]) {
        Local::new(&mut self.memory).merge(at, chunk, how, &[]);
        self.writes += 1;
    }

    fn fetch_add(&mut self, at: u64, add: u64, _: &[Origin]) {
        let at = usize::try_from(at).unwrap();
        let counter: &mut [u8; 8] = self.memory[at..].first_chunk_mut().unwrap();
        *counter = u64::from_ne_bytes(*counter).wrapping_add(add).to_ne_bytes();
    }
}

struct World {
    options: Options,
    translator: Translator,
    collectors: Vec<Collector>,
    nacks: Vec<Nack>,
    next: u32,
}

impl World {
    fn new(change: impl FnOnce(&mut Options)) -> Self {
        let hasher = KeyHasher::new([11, 12]);
        let mut options = Options::new(hasher);
        let key_write = KeyWrite::new(0, 1 << 18, 4, 32);
        let mut end = key_write.memory_len();
        options.key_write = Some(key_write);
        let postcarding = Postcarding::new(end, 1 << 16, 5, 32, 2, hasher);
        end += postcarding.memory_len();
        options.postcarding = Some(postcarding);
        options.cache_rows = 16;
        let key_increment = KeyIncrement::new(end, 1 << 16, 2);
        end += key_increment.memory_len();
        options.key_increment = Some(key_increment);
        let append = Append::new(end, 4, 64, 4, 18);
        end += append.memory_len();
        options.append = Some(append);
        change(&mut options);
        let memory = vec![0; usize::try_from(end).unwrap()];
        let collector = |_| Collector {
            memory: memory.clone(),
            is_gone: false,
            writes: 0,
        };
        Self {
            translator: Translator::new::<Collector>(options.clone(), |_| End::default()),
            collectors: (0..options.collectors).map(collector).collect(),
            options,
            nacks: Vec::new(),
            next: 0,
        }
    }

    fn receive(&mut self, source: IpAddr, bytes: &[u8], now_ns: u64) {
        let (sinks, nacks) = (&mut self.collectors, &mut self.nacks);
        self.translator.receive(source, bytes, now_ns, sinks, nacks);
    }

    /// One report in a datagram of its own, with the next number.
    fn put(&mut self, report: &Report<'_>, now_ns: u64) {
        let mut repr = packed::Repr::of(report, KEPT);
        repr.sequence = self.next;
        self.next += 1;
        let mut bytes = Vec::new();
        repr.emit(&[*report], &mut bytes);
        self.receive(SWITCH, &bytes, now_ns);
    }

    fn origin(&mut self) -> Origin {
        self.translator.reporter(SWITCH).unwrap()
    }
}

fn value(key: &[u8; 4]) -> Report<'_> {
    Report::KeyWrite {
        redundancy: 2,
        key,
        data: key,
    }
}

/// A fault while a datagram is taken, here of the sink, leaves counts that balance and lists and rows that
/// go on.
#[test]
fn a_fault_ends_one_datagram() {
    struct Faulty<'a>(Local<&'a mut [u8]>, u32);
    impl Sink for Faulty<'_> {
        const KEEPS_ORIGINS: bool = false;

        fn room(&self, operation: Operation) -> Room {
            self.0.room(operation)
        }

        fn write(&mut self, at: u64, bytes: &[u8], origins: &[Origin]) {
            self.1 += 1;
            assert!(!self.1.is_multiple_of(401), "a fault");
            self.0.write(at, bytes, origins);
        }

        fn fetch_add(&mut self, at: u64, add: u64, origins: &[Origin]) {
            self.1 += 1;
            assert!(!self.1.is_multiple_of(401), "a fault");
            self.0.fetch_add(at, add, origins);
        }
    }
    let mut world = World::new(|_| ());
    let mut translator = Translator::new::<Faulty<'_>>(world.options.clone(), |_| End::default());
    let mut memory = std::mem::take(&mut world.collectors[0].memory);
    let mut sinks = [Faulty(Local::new(&mut memory), 0)];
    let origin = translator.reporter(SWITCH).unwrap();
    let random: Vec<u8> = (0..2000_u32)
        .map(|n| (n * n / 7).to_le_bytes()[0])
        .collect();
    let (mut faults, mut next) = (0, 0);
    for turn in 0..200 {
        let primitive = Primitive::ALL[turn % 4];
        let bytes = datagram(primitive, (8, 18, 2), next, &random[turn..turn + 400]);
        let bytes = match primitive {
            Primitive::KeyWrite => datagram(primitive, (8, 4, 2), next, &random[turn..turn + 400]),
            _ => bytes,
        };
        next += u32::from(packed::Packet::new_checked(&bytes).unwrap().count());
        let take = std::panic::AssertUnwindSafe(|| {
            translator.receive_from(origin, &bytes, 7, &mut sinks, &mut Vec::new());
        });
        if std::panic::catch_unwind(take).is_err() {
            faults += 1;
            translator.after_fault(origin);
        }
        assert!(translator.counters(origin).balances());
        let lists = translator.lists().unwrap().counters();
        assert!(lists.held < 4 * 4, "{lists:?}");
        assert!(translator.cache().unwrap().counters().held <= 16 * 5);
    }
    let counters = translator.counters(origin);
    assert!(faults > 10 && counters.accepted > 1000, "{faults}");
    let failed =
        counters.refused.get(Refusal::Fault) + counters.refused_datagrams.get(Refusal::Fault);
    assert!(failed >= faults);
    assert_eq!(counters.missing, 0, "numbers began anew after each");
    // Its memory is in order: batches are read in turn, none of them torn.
    let [Faulty(mut local, _)] = sinks;
    let append = world.options.append.unwrap();
    for list in 0..4 {
        let mut cursor = Cursor::new(list);
        for _ in 0..200 {
            let _ = cursor.read(&append, local.memory(), |entry| assert_eq!(entry.len(), 18));
        }
    }
}

/// A reporter that answers every negative acknowledgement at once, over a network that delivers
/// everything twice, and a translator that can take nothing: it must end.
#[test]
fn an_eager_reporter_and_duplicates_do_not_make_a_storm() {
    let mut world = World::new(|options| {
        options.rate = Some(Rate {
            operations_per_second: 1,
            burst: 0,
        });
    });
    let mut datagrams = Vec::new();
    for n in 0..20_u32 {
        let key = n.to_be_bytes();
        let mut repr = packed::Repr::of(&value(&key), KEPT);
        repr.sequence = n;
        let mut bytes = Vec::new();
        repr.emit(&[value(&key)], &mut bytes);
        datagrams.push(bytes);
    }
    let mut pending = datagrams.clone();
    let mut steps = 0;
    while let Some(bytes) = pending.pop() {
        for _ in 0..2 {
            world.receive(SWITCH, &bytes, 1);
        }
        for nack in world.nacks.drain(..) {
            let Nack::Packed { sequence, count: 1 } = nack else {
                panic!("{nack:?}");
            };
            pending.push(datagrams[sequence as usize].clone());
        }
        steps += 1;
        assert!(steps <= 20 * 9, "every report is requested 8 times at most");
    }
    let origin = world.origin();
    let counters = world.translator.counters(origin);
    assert!(counters.balances() && counters.accepted == 0);
    assert!(counters.nacked <= 20 * 8, "{counters:?}");
}

#[test]
fn what_the_rate_limit_drops_is_counted_and_asked_for_if_the_reporter_keeps_it() {
    let mut world = World::new(|options| {
        options.rate = Some(Rate {
            operations_per_second: 1000,
            burst: 10,
        });
    });
    for n in 0..20_u32 {
        world.put(&value(&n.to_be_bytes()), 0);
    }
    let origin = world.origin();
    let counters = world.translator.counters(origin);
    assert_eq!((counters.accepted, counters.dropped_by_rate), (5, 15));
    assert_eq!((counters.nacked, world.nacks.len()), (15, 15));
    // A second later what was dropped is taken: the same numbers, once.
    for _ in 0..2 {
        for n in 5..20_u32 {
            world.next = n;
            world.put(
                &value(&n.to_be_bytes()),
                1_000_000_000 + u64::from(n) * 10_000_000,
            );
        }
    }
    let counters = world.translator.counters(origin);
    assert_eq!((counters.accepted, counters.again), (20, 15));
    assert_eq!(counters.refused.get(Refusal::Duplicate), 15);
    // Reports of which the reporter keeps no copy are counted only.
    let mut world = World::new(|options| {
        options.rate = Some(Rate {
            operations_per_second: 1,
            burst: 0,
        });
    });
    for (sequence, flags) in [(None, KEPT), (Some(1), Flags::default()), (Some(2), KEPT)] {
        let repr = published::Repr {
            sequence,
            flags,
            report: value(&[1; 4]),
        };
        let mut bytes = Vec::new();
        repr.emit(&mut bytes);
        world.receive(SWITCH, &bytes, 0);
    }
    assert_eq!(world.nacks, [Nack::Published { sequence: 2 }]);
    let origin = world.origin();
    assert_eq!(world.translator.counters(origin).dropped_by_rate, 3);
}

#[test]
fn a_collector_that_is_gone_costs_its_share_and_no_more() {
    let mut world = World::new(|options| options.collectors = 4);
    world.collectors[2].is_gone = true;
    let mut expected = 0;
    for n in 0..4000_u32 {
        let key = n.to_be_bytes();
        let hash = world.options.hasher.hash(&key);
        expected += u64::from(hash.collector(4) == 2);
        world.put(&value(&key), 0);
        let list = Report::Append {
            list: n % 16,
            data: &key,
        };
        expected += u64::from(n % 4 == 2);
        world.put(&list, 0);
    }
    let origin = world.origin();
    let counters = world.translator.counters(origin);
    assert_eq!(counters.dropped_without_collector, expected);
    assert_eq!(counters.accepted + expected, 8000);
    assert!((1900..2100).contains(&expected), "a quarter: {expected}");
    let store = world.options.key_write.unwrap();
    for n in 0..4000_u32 {
        let key = world.options.hasher.hash(&n.to_be_bytes());
        let collector = &world.collectors[key.collector(4)];
        let answer = store.get(&collector.memory, key, 2, Agreement::Plurality);
        assert_eq!(answer.is_none(), collector.is_gone, "{n}");
    }
}

/// Anyone can send UDP: what is refused is counted, and nothing else changes.
#[test]
fn strangers_unknown_lists_and_senseless_reports_are_refused_and_counted() {
    let stranger = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 9));
    let mut world = World::new(|options| options.allowed = Some(BTreeSet::from([SWITCH])));
    let mut bytes = Vec::new();
    packed::Repr::of(&value(b"key!"), KEPT).emit(&[value(b"key!")], &mut bytes);
    world.receive(stranger, &bytes, 0);
    assert_eq!(world.translator.strangers(), 1);
    let list = Report::Append {
        list: 4,
        data: &[1; 4],
    };
    let postcard = |hop, path_len| Report::Postcard {
        key: b"flow",
        hop,
        path_len,
        value: 1,
    };
    for report in [
        list,
        postcard(5, None),
        postcard(2, Some(2)),
        Report::KeyWrite {
            redundancy: 1,
            key: b"key!",
            data: &[1; 5],
        },
    ] {
        world.put(&report, 0);
    }
    for junk in [&b""[..], b"\x01", b"\x07zz", &[0x21; 19], &[0xff; 1400]] {
        world.receive(SWITCH, junk, 0);
    }
    let origin = world.origin();
    let counters = world.translator.counters(origin);
    assert!(counters.balances());
    assert_eq!((counters.accepted, counters.refused.total()), (0, 4));
    let refused = |refusal| counters.refused.get(refusal);
    assert_eq!((refused(Refusal::List), refused(Refusal::Hop)), (1, 2));
    assert_eq!(refused(Refusal::DataLen), 1);
    assert_eq!(counters.refused_datagrams.total(), 5);
    let untouched = |collector: &Collector| collector.memory.iter().all(|&byte| byte == 0);
    assert!(world.collectors.iter().all(untouched) && world.nacks.is_empty());
    // The store's redundancy is at most 4, whatever a report asks for.
    let greedy = Report::KeyWrite {
        redundancy: 255,
        key: b"key!",
        data: &[1; 4],
    };
    world.put(&greedy, 0);
    assert_eq!(world.collectors[0].writes, 4);
}

/// A sender that forges addresses fills the table of reporters, and keeps no one out by that.
#[test]
fn reporters_beyond_the_maximum_are_counted_together() {
    let mut world = World::new(|options| options.reporters_max = 3);
    let mut bytes = Vec::new();
    packed::Repr::of(&value(b"key!"), KEPT).emit(&[value(b"key!")], &mut bytes);
    for last in 0..10 {
        // All with the same number.
        for _ in 0..2 {
            world.receive(IpAddr::V4(Ipv4Addr::new(192, 0, 2, last)), &bytes, 0);
        }
    }
    assert_eq!(world.translator.reporters().count(), 3);
    assert_eq!(world.translator.strangers(), 0);
    let mut sources = world.translator.sources();
    let (_, others) = sources.find(|(source, _)| *source == OTHERS).unwrap();
    assert_eq!((others.accepted, others.refused.total()), (16, 0));
    assert!(others.balances());
}

#[derive(Clone, Debug)]
enum Any {
    Value(u32, u8, u32),
    Entry(u32, u32),
    Add(u32, u8, u32),
    Card(u32, u8),
    Tick,
}

fn any_report() -> impl Strategy<Value = Any> {
    prop_oneof![
        (0_u32..100, 1_u8..6, any::<u32>()).prop_map(|(key, n, data)| Any::Value(key, n, data)),
        (0_u32..8, any::<u32>()).prop_map(|(list, entry)| Any::Entry(list, entry)),
        (0_u32..100, 1_u8..6, any::<u32>()).prop_map(|(key, n, add)| Any::Add(key, n, add)),
        (0_u32..40, 0_u8..5).prop_map(|(key, hop)| Any::Card(key, hop)),
        Just(Any::Tick),
    ]
}

/// What switch `hop` of path `key` says.
fn card(key: u32, hop: u8) -> u32 {
    1000 + key * 5 + u32::from(hop)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Against maps: stores that are nearly empty answer exactly (values by their last write), lists
    /// hold all entries in order, counters are never too small, and paths are what was reported.
    #[test]
    fn stores_answer_as_maps_do(
        reports in prop::collection::vec(any_report(), 1..400), collectors in 1_usize..4,
    ) {
        let mut world = World::new(|options| options.collectors = collectors);
        let mut values = BTreeMap::new();
        let mut sums = BTreeMap::<u32, u64>::new();
        let mut lists = BTreeMap::<u32, Vec<u32>>::new();
        let mut cards = BTreeMap::<u32, BTreeSet<u8>>::new();
        let mut accepted = 0;
        for (now, report) in (0_u64..).zip(&reports) {
            let now_ns = now * 10_000_000;
            match *report {
                Any::Value(key, redundancy, data) => {
                    // The same redundancy for a key, or older copies outvote newer ones.
                    let redundancy = redundancy.max(4);
                    values.insert(key, data);
                    let (key, data) = (&key.to_be_bytes(), &data.to_be_bytes());
                    world.put(&Report::KeyWrite { redundancy, key, data }, now_ns);
                    accepted += 1;
                }
                Any::Entry(list, entry) => {
                    // Lists beyond those there are, are refused.
                    if (list as usize) < 4 * collectors {
                        lists.entry(list).or_default().push(entry);
                        accepted += 1;
                    }
                    world.put(&Report::Append { list, data: &entry.to_be_bytes() }, now_ns);
                }
                Any::Add(key, redundancy, add) => {
                    *sums.entry(key).or_default() += u64::from(add);
                    let (key, counter) = (&key.to_be_bytes(), u64::from(add));
                    world.put(&Report::KeyIncrement { redundancy, key, counter }, now_ns);
                    accepted += 1;
                }
                Any::Card(key, hop) => {
                    cards.entry(key).or_default().insert(hop);
                    let (value, key) = (card(key, hop), &key.to_be_bytes());
                    world.put(&Report::Postcard { key, hop, path_len: None, value }, now_ns);
                    accepted += 1;
                }
                Any::Tick => world.translator.tick(now_ns, &mut world.collectors),
            }
        }
        world.translator.finish(&mut world.collectors);
        let origin = world.origin();
        let counters = world.translator.counters(origin);
        prop_assert!(counters.balances());
        prop_assert_eq!(counters.accepted, accepted);
        let hash = |key: u32| world.options.hasher.hash(&key.to_be_bytes());
        let of = |key: u32| &world.collectors[hash(key).collector(collectors)].memory[..];
        let store = world.options.key_write.unwrap();
        for key in 0..100 {
            let answer = store.get(of(key), hash(key), 4, Agreement::Plurality);
            let expected = values.get(&key).map(|data: &u32| data.to_be_bytes());
            prop_assert_eq!(answer, expected.as_ref().map(|data| &data[..]));
        }
        let sketch = world.options.key_increment.unwrap();
        for (key, sum) in sums {
            prop_assert!(sketch.get(of(key), hash(key)) >= sum);
        }
        let store = world.options.postcarding.unwrap();
        let names = Values::new(&store, 1000..1200);
        for key in 0..40 {
            let path = store.get(of(key), hash(key), &names);
            let said = cards.get(&key);
            prop_assert!(said.is_some() || path.is_none());
            for (hop, value) in path.iter().flat_map(|path| (0..).zip(path.values())) {
                let expected = value.is_none_or(|value| value == card(key, hop));
                prop_assert!(expected && (value.is_none() || said.unwrap().contains(&hop)));
            }
        }
        let store = world.options.append.unwrap();
        for (list, expected) in lists {
            let index = list as usize;
            let mut cursor = Cursor::new(list / u32::try_from(collectors).unwrap());
            let (mut found, mut missed) = (Vec::new(), 0);
            let memory = &world.collectors[index % collectors].memory;
            while let Some(read) = cursor.read(&store, memory, |entry| {
                found.push(u32::from_be_bytes(*entry.first_chunk().unwrap()));
            }) {
                missed += read.missed;
            }
            prop_assert_eq!(missed + found.len() as u64, expected.len() as u64);
            prop_assert_eq!(&expected[expected.len() - found.len()..], &found[..]);
        }
    }
}

#[test]
fn reporters_at_one_address_number_their_reports_each_and_forged_ports_fill_nothing() {
    let mut world = World::new(|_| ());
    let first = world.translator.reporter_at(SocketAddr::new(SWITCH, 1000));
    let second = world.translator.reporter_at(SocketAddr::new(SWITCH, 1001));
    let datagram = |session, sequence, key: u32| {
        let key = key.to_be_bytes();
        let report = value(&key);
        let mut repr = packed::Repr::of(&report, KEPT);
        (repr.session, repr.sequence, repr.time_ns) = (session, sequence, 7);
        let mut bytes = Vec::new();
        repr.emit(&[report], &mut bytes);
        bytes
    };
    for n in 0..10 {
        for (origin, session) in [(first, 3), (second, 9)] {
            let World {
                translator,
                collectors,
                nacks,
                ..
            } = &mut world;
            let bytes = datagram(session, n, n + u32::from(session) * 100);
            translator.receive_from(origin.unwrap(), &bytes, 0, collectors, nacks);
        }
    }
    for origin in [first, second] {
        let counters = world.translator.counters(origin.unwrap());
        assert_eq!((counters.accepted, counters.missing), (10, 0));
    }
    for port in 2000..3000 {
        let origin = world.translator.reporter_at(SocketAddr::new(SWITCH, port));
        assert!(origin.is_some());
    }
    assert_eq!(world.translator.sources().count(), 17);
}

/// A packed datagram with reports of one shape, from random bytes: hops, path lengths and lists
/// may be wrong.
fn datagram(
    primitive: Primitive,
    (key_len, data_len, redundancy): (u8, u8, u8),
    sequence: u32,
    random: &[u8],
) -> Vec<u8> {
    let is_keyed = primitive != Primitive::Append;
    let repr = packed::Repr {
        primitive,
        flags: Flags::default(),
        sequence,
        time_ns: 5,
        key_len: if is_keyed { key_len } else { 0 },
        data_len: match primitive {
            Primitive::KeyIncrement => 8,
            Primitive::Postcard => 4,
            _ => data_len,
        },
        redundancy: match primitive {
            Primitive::KeyWrite | Primitive::KeyIncrement => redundancy,
            Primitive::Append | Primitive::Postcard => 0,
        },
        session: 0,
    };
    let (key_len, data_len) = (usize::from(key_len), usize::from(repr.data_len));
    let reports: Vec<_> = random
        .windows(key_len + data_len + 6)
        .step_by(7)
        .map(|bytes| {
            let (key, rest) = bytes.split_at(key_len);
            let data = &rest[..data_len];
            let word = u32::from_be_bytes(*rest.first_chunk().unwrap());
            match primitive {
                Primitive::KeyWrite => Report::KeyWrite {
                    redundancy,
                    key,
                    data,
                },
                Primitive::Append => Report::Append {
                    list: word % 5,
                    data,
                },
                Primitive::KeyIncrement => Report::KeyIncrement {
                    redundancy,
                    key,
                    // Up to 2^57: half of them are refused.
                    counter: u64::from(word) << 25,
                },
                Primitive::Postcard => Report::Postcard {
                    key,
                    hop: rest[0] % 6,
                    path_len: (rest[1] > 128).then_some(1 + rest[1] % 7),
                    value: word,
                },
            }
        })
        .collect();
    let mut bytes = Vec::new();
    repr.emit(&reports, &mut bytes);
    bytes
}

proptest! {
    /// Memory that takes anything gets whole datagrams at once; a collector with little room gets
    /// one report after the other. Both end the same, and count the same.
    #[test]
    fn a_datagram_at_once_is_its_reports_one_by_one(
        shapes in prop::collection::vec(
            (prop::sample::select(&Primitive::ALL[..]), 1_u8..=40, 1_u8..24, 1_u8..6), 1..20),
        four in any::<[bool; 2]>(),
        random in prop::collection::vec(any::<u8>(), 120..600),
        entry_len in prop::sample::select(&[4_usize, 18][..]),
    ) {
        let mut world = World::new(|options| {
            let append = options.append.take().unwrap();
            let base = options.key_increment.unwrap();
            let end = options.key_write.unwrap().memory_len()
                + options.postcarding.unwrap().memory_len()
                + base.memory_len();
            options.append = Some(Append::new(end, append.lists(), 64, 4, entry_len));
        });
        let mut memory = vec![0; world.collectors[0].memory.len()];
        let mut translator =
            Translator::new::<Local<&mut [u8]>>(world.options.clone(), |_| End::default());
        let mut sinks = [Local::new(&mut memory)];
        let mut nacks = Vec::new();
        let mut next = 0;
        for &(primitive, key_len, data_len, redundancy) in &shapes {
            let key_len = if four[0] { 4 } else { key_len };
            let whole = u8::try_from(entry_len).unwrap();
            let data_len = if four[1] { whole } else { data_len };
            let bytes = datagram(primitive, (key_len, data_len, redundancy), next, &random);
            let packet = packed::Packet::new_checked(&bytes).unwrap();
            next += u32::from(packet.count());
            world.receive(SWITCH, &bytes, 7);
            translator.receive(SWITCH, &bytes, 7, &mut sinks, &mut nacks);
        }
        world.translator.finish(&mut world.collectors);
        translator.finish(&mut sinks);
        let origin = world.origin();
        let counters = translator.counters(origin);
        prop_assert!(counters.balances());
        prop_assert_eq!(counters, world.translator.counters(origin));
        prop_assert_eq!(counters.reports, u64::from(next));
        prop_assert!(sinks[0].memory() == &world.collectors[0].memory[..]);
    }
}

/// Bytes of a datagram of version 2 with one Key-Increment of 10.0.0.1, as the diagram of the format has it.
fn increment(sequence: [u8; 4], time: u8, session: u8) -> [u8; 32] {
    let [a, b, c, d] = sequence;
    [
        0x23, 0, 0, 1, a, b, c, d, 0, 0, 0, 0, 0, 0, 0, time, 4, 8, 1, session, 10, 0, 0, 1, 0, 0,
        0, 0, 0, 0, 0, 1,
    ]
}

/// Of a reporter, whose losses are its own, and whose numbers somebody else has forged.
#[test]
fn forged_numbers_are_jumps_and_take_no_loss_back() {
    let mut options = Options::new(KeyHasher::new([1, 2]));
    options.key_increment = Some(KeyIncrement::new(0, 64, 1));
    let mut translator = Translator::new::<Local<&mut [u8]>>(options, |_| End::default());
    let mut memory = vec![0; 512];
    let mut sinks = [Local::new(&mut memory)];
    let mut nacks = Vec::new();
    let here = translator.reporter_at(SocketAddr::new(SWITCH, 1)).unwrap();
    let other = translator.reporter_at(SocketAddr::new(SWITCH, 2)).unwrap();
    let mut take = |origin: Origin, bytes: &[u8]| {
        translator.receive_from(origin, bytes, 1, &mut sinks, &mut nacks);
        let counters = translator.counters(origin);
        (counters.missing, counters.jumps)
    };
    assert_eq!(take(here, &increment([0, 0, 0, 0], 1, 7)), (0, 0));
    assert_eq!(take(here, &increment([0, 0, 0, 50], 1, 7)), (49, 0));
    assert_eq!(take(other, &increment([0, 0, 0, 9], 1, 7)), (0, 0));
    // Two billion numbers ahead; the reporter's own numbers, which are believed after 64 datagrams; again.
    assert_eq!(take(here, &increment([0x80, 0, 0, 0], 1, 7)), (49, 1));
    for number in 51..51 + 63 {
        assert_eq!(take(here, &increment([0, 0, 0, number], 1, 7)), (49, 1));
    }
    assert_eq!(take(here, &increment([0, 0, 0, 114], 1, 7)), (49, 2));
    assert_eq!(take(here, &increment([0, 0, 0, 115], 1, 7)), (49, 2));
    assert_eq!(
        take(here, &increment([0x7f, 0xff, 0xff, 0xff], 1, 7)),
        (49, 3)
    );
    // It has started again, later, and lost its first two: losses from before are not taken back.
    assert_eq!(take(here, &increment([0, 0, 0, 2], 2, 8)), (51, 3));
    assert_eq!(take(here, &increment([0, 0, 0, 1], 2, 8)), (50, 3));
    assert_eq!(take(here, &increment([0, 0, 0, 1], 2, 8)), (50, 3));
    assert_eq!(take(other, &increment([0, 0, 0, 10], 1, 7)), (0, 0));
}

/// A reporter that puts reports into datagrams anew when it sends them again: 10 to 12 of 0 to 29 were lost, and come
/// with others that have come, or are new.
#[test]
fn a_datagram_may_hold_reports_that_came_and_others() {
    let fast = Rate {
        operations_per_second: 1_000_000,
        burst: 1_000_000,
    };
    for rate in [None, Some(fast)] {
        let mut world = World::new(|options| options.rate = rate);
        let mut send = |first: u32, count: u32| {
            let keys: Vec<_> = (first..first + count).map(u32::to_be_bytes).collect();
            let reports: Vec<_> = keys.iter().map(value).collect();
            let mut repr = packed::Repr::of(&reports[0], KEPT);
            (repr.sequence, repr.time_ns) = (first, 7);
            let mut bytes = Vec::new();
            repr.emit(&reports, &mut bytes);
            world.receive(SWITCH, &bytes, 7);
            let origin = world.origin();
            let counters = world.translator.counters(origin);
            assert!(counters.balances());
            let duplicates = counters.refused.get(Refusal::Duplicate);
            (counters.accepted, duplicates, counters.missing)
        };
        assert_eq!(send(0, 10), (10, 0, 0));
        assert_eq!(send(13, 7), (17, 0, 3));
        assert_eq!(send(8, 4), (19, 2, 1), "10 and 11 are late");
        assert_eq!(send(8, 22), (30, 13, 0), "12 is late, 20 to 29 are new");
        assert_eq!(send(0, 30), (30, 43, 0));
    }
}
