//! Reporters, a translator and two collectors, with a network between each that loses, repeats
//! and reorders: every report is in memory or counted, and nothing is answered that was not sent.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use strata_dta::append::{Append, Cursor, End};
use strata_dta::key::Key;
use strata_dta::key_increment::KeyIncrement;
use strata_dta::key_increment::largest::{Kept as Row, Largest};
use strata_dta::key_write::{Agreement, KeyWrite};
use strata_dta::postcarding::{Postcarding, Values};
use strata_dta::protocol::{Flags, Primitive, Refusal, Report};
use strata_dta::reporter::{Reporter, ReporterOptions};
use strata_dta::translator::{Options, Rate, ReporterCounters, Translator};
use strata_dta::{KeyHasher, Origin, Remote};
use strata_rdma::{
    Access, Psn, QueuePairOptions, Region, Replies, Requester, RequesterOptions, Responder,
};
use strata_testkit::sim::{MS, Queue, Rng, SECOND, Weather, seeds};
use strata_wire::roce::{Packet, Service};

const REPORTERS: usize = 3;
const COLLECTORS: usize = 2;
const DATAGRAMS: u64 = 150;
const KEYS: u64 = 300;
/// Rows of the table of keys with large counts: fewer than keys.
const ROWS: usize = 64;
/// About ten times as many as it usually takes.
const EVENTS_MAX: u64 = 200_000;
const FLAGS: Flags = Flags {
    immediate: false,
    retransmittable: true,
};
const VA: u64 = 0x10_0000;
const RKEY: u32 = 7;
const ACCESS: Access = Access {
    write: true,
    atomic: true,
};
const TRANSLATOR: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 100));

fn address(reporter: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, u8::try_from(reporter).unwrap()))
}

/// A report that a reporter keeps: the key or list, the hop, the value.
#[derive(Clone, Copy, Debug)]
struct Kept {
    primitive: Primitive,
    key: [u8; 4],
    hop: u8,
    data: [u8; 4],
}

impl Kept {
    fn report(&self) -> Report<'_> {
        match self.primitive {
            Primitive::KeyWrite => Report::KeyWrite {
                redundancy: 2,
                key: &self.key,
                data: &self.data,
            },
            Primitive::Append => Report::Append {
                list: u32::from_be_bytes(self.key),
                data: &self.data,
            },
            Primitive::KeyIncrement => Report::KeyIncrement {
                redundancy: 1,
                key: &self.key,
                counter: 1,
            },
            Primitive::Postcard => Report::Postcard {
                key: &self.key,
                hop: self.hop,
                path_len: None,
                value: u32::from_be_bytes(self.data),
            },
        }
    }
}

/// The value that switch `hop` reports of path `n`.
fn switch(n: u32, hop: u8) -> u32 {
    100 + (n + u32::from(hop)) % 40
}

enum Event {
    /// A reporter makes its datagram `n`.
    Make(usize, u64),
    Report(usize, Vec<u8>),
    Nack(usize, Vec<u8>),
    Request(usize, Vec<u8>),
    Answer(usize, Vec<u8>),
    /// Collector 1 is there again.
    Return,
    Tick,
}

struct World {
    rng: Rng,
    queue: Queue<Event>,
    reports: Weather,
    rdma: Weather,
    sent: Vec<Vec<Kept>>,
    reporters: Vec<Reporter>,
    translator: Translator,
    remotes: Vec<Remote>,
    collectors: Vec<Responder<Vec<u8>>>,
    /// Collector 1 is gone after this time,
    dies_at: u64,
    /// until this one.
    returns_at: u64,
    /// The queue pair of each collector; that of its requester has the number after it.
    pairs: [u32; COLLECTORS],
    hasher: KeyHasher,
    key_write: KeyWrite,
    postcarding: Postcarding,
    append: Append,
    key_increment: KeyIncrement,
}

/// 0.01 to 10 % of everything, or to 1 % with three `steps`.
fn weather(rng: &mut Rng, steps: u64) -> Weather {
    let mut share = || [100, 1_000, 10_000, 100_000][usize::try_from(rng.below(steps)).unwrap()];
    Weather {
        loss: share(),
        duplication: share(),
        reordering: share(),
        ..Weather::default()
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let (reports, rdma) = (weather(&mut rng, 4), weather(&mut rng, 3));
        let hasher = KeyHasher::new([seed, 1]);
        let key_write = KeyWrite::new(0, 4096, 4, 32);
        let mut end = key_write.memory_len();
        let postcarding = Postcarding::new(end, 4096, 5, 32, 2, hasher);
        end += postcarding.memory_len();
        let append = Append::new(end.next_multiple_of(64), 2, 1024, 4, 4);
        end = end.next_multiple_of(64) + append.memory_len();
        let key_increment = KeyIncrement::new(end.next_multiple_of(64), 4096, 1);
        end = end.next_multiple_of(64) + key_increment.memory_len();

        let mut options = Options::new(hasher);
        options.collectors = COLLECTORS;
        options.key_write = Some(key_write);
        options.postcarding = Some(postcarding);
        options.cache_rows = 64;
        options.append = Some(append);
        options.key_increment = Some(key_increment);
        options.age_ns_max = 5 * MS;
        options.allowed = Some((0..REPORTERS).map(address).collect());
        if rng.chance(500_000) {
            options.rate = Some(Rate {
                operations_per_second: 20_000,
                burst: 50,
            });
        }
        let mut translator = Translator::new::<Remote>(options, |_| End::default());
        for reporter in 0..REPORTERS {
            let number = u16::try_from(reporter).unwrap();
            assert_eq!(translator.reporter(address(reporter)), Some(Origin(number)));
        }
        let connect = |_| Self::connect(end, append.slot_len());
        let (mut remotes, collectors): (Vec<Remote>, _) = (0..COLLECTORS).map(connect).unzip();
        for remote in &mut remotes {
            remote.keep_largest(Largest::new(ROWS));
        }
        let dies_at = if rng.chance(300_000) {
            50 * MS
        } else {
            u64::MAX
        };
        // Sometimes it comes back before the requester has given it up, sometimes not at all.
        let returns_at = match dies_at < u64::MAX && rng.chance(600_000) {
            true => dies_at + MS + rng.below(150) * MS,
            false => u64::MAX,
        };
        Self {
            returns_at,
            pairs: [5; COLLECTORS],
            queue: Queue::default(),
            sent: vec![Vec::new(); REPORTERS],
            reporters: (0..REPORTERS)
                .map(|_| Reporter::new(ReporterOptions::new(1)))
                .collect(),
            rng,
            reports,
            rdma,
            translator,
            remotes,
            collectors,
            dies_at,
            hasher,
            key_write,
            postcarding,
            append,
            key_increment,
        }
    }

    fn connect(len: u64, write_len_max: usize) -> (Remote, Responder<Vec<u8>>) {
        let mut collector = Responder::new();
        collector.register(Region {
            rkey: RKEY,
            va: VA,
            len,
            domain: 1,
            access: ACCESS,
            memory: vec![0; usize::try_from(len).unwrap()],
        });
        collector.connect(Self::pair(5));
        let requester = Self::requester(5);
        let remote = Remote::new(requester, VA, RKEY, write_len_max, 1024, REPORTERS);
        (remote, collector)
    }

    fn pair(number: u32) -> QueuePairOptions {
        QueuePairOptions {
            number,
            peer_number: number + 1,
            peer: TRANSLATOR,
            service: Service::Rc,
            first_psn: Psn::new(0xff_ff00),
            mtu: 1024,
            domain: 1,
            access: ACCESS,
        }
    }

    fn requester(number: u32) -> Requester {
        let first = Psn::new(0xff_ff00);
        let mut options = RequesterOptions::new(Service::Rc, number, first, 1024);
        // Go-back-N repeats all of it, once for every answer of an addition that was lost.
        options.window = 32;
        options.timeout_ns = 2 * MS;
        options.retries = 30;
        Requester::new(options)
    }

    /// Collector 1 is there again with its memory, and another queue pair.
    fn reconnect(&mut self) {
        let number = self.pairs[1] + 2;
        let old = self.collectors[1].disconnect(self.pairs[1]);
        assert!(old.is_some());
        self.pairs[1] = number;
        self.collectors[1].connect(Self::pair(number));
        self.remotes[1].reconnect(Self::requester(number), VA, RKEY);
        // The table is the collector's: what the old connection has not written is not in it.
        let table = self.remotes[1].largest().unwrap().clone();
        let (hasher, key_increment) = (self.hasher, self.key_increment);
        let memory = self.memory(1);
        let rows = (0..ROWS).filter_map(|row| {
            let key = table.key(row)?;
            let hash = hasher.hash(key.bytes());
            Some(Row {
                row,
                key,
                place: key_increment.place_of(hash),
                count: key_increment.get(memory, hash),
            })
        });
        let table = Largest::continued(ROWS, table.without_row_max(), rows);
        self.remotes[1].keep_largest(table);
        let append = self.append;
        for list in 0..append.lists() {
            let end = append.end(self.memory(1), list);
            // The translator is not behind its own memory: nothing changes.
            self.translator
                .continue_list(list * u32::try_from(COLLECTORS).unwrap() + 1, end);
        }
    }

    fn make(&mut self, reporter: usize, n: u64) {
        let count = 1 + self.rng.below(12);
        let first = self.sent[reporter].len();
        let primitive = match (reporter, self.rng.below(2)) {
            (0, 0) => Primitive::KeyWrite,
            (1, 0) => Primitive::Postcard,
            (2, _) => Primitive::KeyIncrement,
            _ => Primitive::Append,
        };
        for index in 0..count {
            let number = u32::try_from(first as u64 + index).unwrap();
            let key = u32::try_from(self.rng.below(KEYS)).unwrap();
            let hop = u8::try_from(self.rng.below(5)).unwrap();
            let (key, data) = match primitive {
                Primitive::Append => (u32::try_from(reporter).unwrap(), number),
                Primitive::Postcard => (key, switch(key, hop)),
                Primitive::KeyWrite | Primitive::KeyIncrement => (key, number),
            };
            self.sent[reporter].push(Kept {
                primitive,
                key: key.to_be_bytes(),
                hop,
                data: data.to_be_bytes(),
            });
        }
        let now = self.queue.now();
        let mut datagrams = Vec::new();
        let mut send = |bytes: &[u8]| datagrams.push(bytes.to_vec());
        for kept in &self.sent[reporter][first..] {
            self.reporters[reporter].report(&kept.report(), FLAGS, now, now, &mut send);
        }
        self.reporters[reporter].flush(&mut send);
        for bytes in datagrams {
            if n == 0 || n == DATAGRAMS - 1 {
                // The first and the last number are known; what is before and after could not be.
                self.queue.at(now + MS, Event::Report(reporter, bytes));
            } else {
                self.send_report(reporter, &bytes);
            }
        }
    }

    fn send_report(&mut self, reporter: usize, bytes: &[u8]) {
        let times = self.reports.datagram(&mut self.rng, self.queue.now());
        for time in times.into_iter().flatten() {
            self.queue.at(time, Event::Report(reporter, bytes.to_vec()));
        }
    }

    fn send_requests(&mut self) {
        let now = self.queue.now();
        for collector in 0..COLLECTORS {
            self.remotes[collector].finish_burst();
            let packets = std::mem::take(self.remotes[collector].packets());
            for packet in packets.iter() {
                for time in self.rdma.datagram(&mut self.rng, now).into_iter().flatten() {
                    self.queue
                        .at(time, Event::Request(collector, packet.to_vec()));
                }
            }
        }
    }

    fn step(&mut self, event: Event) {
        let now = self.queue.now();
        for remote in &mut self.remotes {
            remote.set_now(now);
        }
        match event {
            Event::Make(reporter, n) => self.make(reporter, n),
            Event::Report(reporter, bytes) => {
                let mut nacks = Vec::new();
                let source = address(reporter);
                self.translator
                    .receive(source, &bytes, now, &mut self.remotes, &mut nacks);
                for nack in nacks {
                    let mut bytes = Vec::new();
                    nack.emit(&mut bytes);
                    for time in self
                        .reports
                        .datagram(&mut self.rng, now)
                        .into_iter()
                        .flatten()
                    {
                        self.queue.at(time, Event::Nack(reporter, bytes.clone()));
                    }
                }
            }
            Event::Nack(reporter, bytes) => {
                self.reporters[reporter].receive(&bytes, now);
            }
            Event::Request(collector, bytes) => self.serve(collector, &bytes),
            Event::Answer(collector, bytes) => {
                let packet = Packet::new_checked(&bytes).unwrap();
                // Late ones of the queue pair before have no receiver.
                if packet.dest_qp() == self.pairs[collector] + 1 {
                    self.remotes[collector].receive(&packet, now);
                }
            }
            Event::Return => self.reconnect(),
            Event::Tick => {
                for reporter in 0..REPORTERS {
                    let mut datagrams = Vec::new();
                    let mut send = |bytes: &[u8]| datagrams.push(bytes.to_vec());
                    self.reporters[reporter].tick(now, &mut send);
                    for bytes in datagrams {
                        self.send_report(reporter, &bytes);
                    }
                }
                self.translator.tick(now, &mut self.remotes);
                for remote in &mut self.remotes {
                    remote.tick(now);
                }
            }
        }
        self.send_requests();
    }

    fn serve(&mut self, collector: usize, bytes: &[u8]) {
        let now = self.queue.now();
        if collector == 1 && (self.dies_at..self.returns_at).contains(&now) {
            return;
        }
        let mut replies = Replies::default();
        let packet = Packet::new_checked(bytes).unwrap();
        let responder = &mut self.collectors[collector];
        let _ = responder.receive(TRANSLATOR, &packet, &mut replies);
        responder.acknowledge(&mut replies);
        for answer in replies.packets.iter() {
            for time in self.rdma.datagram(&mut self.rng, now).into_iter().flatten() {
                self.queue
                    .at(time, Event::Answer(collector, answer.to_vec()));
            }
        }
    }

    fn run(&mut self) {
        for reporter in 0..REPORTERS {
            self.queue.at(0, Event::Make(reporter, 0));
            for n in 1..DATAGRAMS {
                let time = 10 * MS + n * MS / 2 + self.rng.below(MS / 4);
                self.queue.at(time, Event::Make(reporter, n));
            }
        }
        if self.returns_at < u64::MAX {
            self.queue.at(self.returns_at, Event::Return);
        }
        for tick in 0..2_000 {
            self.queue.at(tick * MS / 2, Event::Tick);
        }
        let mut events = 0;
        while let Some(event) = self.queue.take(SECOND) {
            self.step(event);
            events += 1;
            assert!(events < EVENTS_MAX, "a storm: {:?}", self.counters());
        }
    }

    fn counters(&self) -> Vec<ReporterCounters> {
        self.translator
            .reporters()
            .map(|(_, counters)| counters)
            .collect()
    }

    fn memory(&mut self, collector: usize) -> &Vec<u8> {
        &self.collectors[collector].region_mut(RKEY).unwrap().memory
    }

    /// The equations of the translator and of what comes after it.
    fn every_report_is_counted(&self) -> u64 {
        let mut lost_in_all = 0;
        for reporter in 0..REPORTERS {
            let origin = Origin(u16::try_from(reporter).unwrap());
            let counters = self.translator.counters(origin);
            assert!(counters.balances(), "{counters:?}");
            let duplicates = counters.refused.get(Refusal::Duplicate);
            assert_eq!(
                counters.refused.total(),
                duplicates,
                "nothing else is refused"
            );
            let sent = self.sent[reporter].len() as u64;
            let came = counters.reports - duplicates - counters.again;
            assert_eq!(sent, came + counters.missing, "{counters:?}");
            let (mut confirmed, mut lost) = (0, 0);
            for remote in &self.remotes {
                assert_eq!(remote.in_flight(), 0);
                confirmed += remote.counters()[reporter].confirmed;
                lost += remote.counters()[reporter].lost;
            }
            assert_eq!(counters.accepted - counters.superseded, confirmed + lost);
            lost_in_all += lost;
        }
        assert_eq!(self.translator.cache().unwrap().counters().held, 0);
        assert_eq!(self.translator.lists().unwrap().counters().held, 0);
        lost_in_all
    }

    /// A key without a row has no larger count than the table says.
    fn the_largest_counts_are_kept(&mut self) {
        let (hasher, key_increment) = (self.hasher, self.key_increment);
        for collector in 0..COLLECTORS {
            if collector == 1 && self.dies_at < self.returns_at && self.returns_at == u64::MAX {
                continue;
            }
            let table = self.remotes[collector].largest().unwrap().clone();
            let rows = (0..ROWS).filter_map(|row| table.key(row));
            let rows: BTreeSet<Vec<u8>> = rows.map(|key| key.bytes().to_vec()).collect();
            assert!(!rows.is_empty());
            let max = table.without_row_max().unwrap();
            let keys = (0..u32::try_from(KEYS).unwrap()).map(u32::to_be_bytes);
            let keys: Vec<_> = keys.map(|key| (key, hasher.hash(&key))).collect();
            let mut by_place = BTreeMap::<u64, usize>::new();
            for &(_, hash) in &keys {
                *by_place.entry(key_increment.place_of(hash)).or_default() += 1;
            }
            let memory = self.memory(collector);
            for (key, hash) in keys {
                // The counter of several keys says what others have added.
                if by_place[&key_increment.place_of(hash)] == 1 {
                    let count = key_increment.get(memory, hash);
                    let is_kept = rows.contains(Key::new(&key).bytes());
                    assert!(is_kept || count <= max, "{key:?}: {count}, {max}");
                }
            }
        }
    }

    fn nothing_is_answered_that_was_not_sent(&mut self, lost: u64) {
        let mut values = BTreeMap::<[u8; 4], BTreeSet<[u8; 4]>>::new();
        for kept in &self.sent[0] {
            if kept.primitive == Primitive::KeyWrite {
                values.entry(kept.key).or_default().insert(kept.data);
            }
        }
        let switches = Values::new(&self.postcarding, 100..140);
        let (hasher, key_write, postcarding) = (self.hasher, self.key_write, self.postcarding);
        let mut answered = [0; 2];
        for n in 0..u32::try_from(KEYS).unwrap() {
            let word = n.to_be_bytes();
            let key = hasher.hash(&word);
            let memory = self.memory(key.collector(COLLECTORS));
            if let Some(value) = key_write.get(memory, key, 4, Agreement::Plurality) {
                assert!(values[&word].contains(value), "key {n}");
                answered[0] += 1;
            }
            if let Some(path) = postcarding.get(memory, key, &switches) {
                for (hop, value) in (0..).zip(path.values()) {
                    assert!(
                        value.is_none_or(|value| value == switch(n, hop)),
                        "path {n}"
                    );
                }
                answered[1] += 1;
            }
        }
        assert!(answered.iter().all(|&count| count > 50), "{answered:?}");
        let append = self.append;
        for list in 0..2_u32 {
            let memory = self.memory(list as usize % COLLECTORS);
            // List L is list L / C of its collector.
            let mut cursor = Cursor::new(list / 2);
            let (mut entries, mut missed) = (BTreeSet::new(), 0);
            while let Some(read) = cursor.read(&append, memory, |entry| {
                assert!(entries.insert(entry.to_vec()), "an entry came twice");
            }) {
                missed += read.missed;
            }
            assert!(lost > 0 || missed == 0);
            assert!(entries.len() > 50);
            let sent = &self.sent[list as usize];
            for entry in &entries {
                let kept = sent[u32::from_be_bytes(entry[..].try_into().unwrap()) as usize];
                assert!(kept.primitive == Primitive::Append && kept.data == entry[..]);
            }
        }
        // Reporter 2 has only added ones.
        let (key_increment, mut sum) = (self.key_increment, 0);
        for collector in 0..COLLECTORS {
            sum += key_increment.sum(self.memory(collector));
        }
        let of = |remote: &Remote| remote.counters()[2];
        let confirmed: u64 = self.remotes.iter().map(|remote| of(remote).confirmed).sum();
        let lost: u64 = self.remotes.iter().map(|remote| of(remote).lost).sum();
        assert!(
            (confirmed..=confirmed + lost).contains(&sum),
            "{sum}, {confirmed}, {lost}"
        );
    }
}

#[test]
fn every_report_is_in_memory_or_counted() {
    seeds(200, |seed| {
        let mut world = World::new(seed);
        world.run();
        let lost = world.every_report_is_counted();
        let gone = world.dies_at < u64::MAX;
        if !gone {
            assert_eq!(lost, 0, "what is resent arrives");
        }
        world.nothing_is_answered_that_was_not_sent(lost);
        world.the_largest_counts_are_kept();
    });
}

/// Everyone may send UDP: who is not on the list is counted and changes nothing.
#[test]
fn strangers_are_not_listened_to() {
    let mut world = World::new(1);
    let kept = Kept {
        primitive: Primitive::KeyWrite,
        key: [1; 4],
        hop: 0,
        data: [2; 4],
    };
    let mut bytes = Vec::new();
    let mut reporter = Reporter::new(ReporterOptions::new(1));
    reporter.report(&kept.report(), FLAGS, 0, 0, &mut |_| {});
    reporter.flush(&mut |datagram| bytes.extend_from_slice(datagram));
    let mut nacks = Vec::new();
    let stranger = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1));
    world
        .translator
        .receive(stranger, &bytes, 0, &mut world.remotes, &mut nacks);
    assert_eq!(world.translator.strangers(), 1);
    assert!(
        world
            .remotes
            .iter_mut()
            .all(|remote| remote.packets().is_empty())
    );
    assert_eq!(world.translator.reporters().count(), REPORTERS);
}
