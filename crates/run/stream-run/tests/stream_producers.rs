//! Producers of one stream: each sends its records until the server has confirmed them, while connections break, the
//! server is killed, its disk fails and power is lost. The stream has each record once, and those of a producer in their
//! order. `SEEDS=1000` runs 1000 seeds, `SEED=17` one.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common {
    pub(crate) mod simulated;
}

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strata_store::Disk;
use strata_stream::{Cursor, Form, Retention, StreamName};
use strata_stream_run::{ProducerSession, SharedStreams, StreamDir, StreamError, StreamSpec};
use strata_testkit_disk::SimDisk;

use common::simulated::{Draw, GEOMETRY, each_seed};

const SECOND_NS: u64 = 1_000_000_000;
const PRODUCERS: u64 = 8;

/// A producer, which keeps what is not confirmed.
struct Client {
    id: u64,
    name: StreamName,
    /// Records that it has made, and that were confirmed.
    made: u64,
    confirmed: u64,
    session: Option<ProducerSession>,
    /// The number of the next record to send.
    at: u64,
}

struct Run {
    seed: u64,
    draw: Draw,
    disks: Vec<SimDisk>,
    streams: Arc<SharedStreams>,
    name: StreamName,
    clients: Vec<Client>,
    /// Records that a process of the server's machine has appended.
    local: u64,
    /// Records that may count as missing at the end: those of such a process that it could not append, and those that
    /// producers sent before anything was durable, of which nothing but their number is left.
    missing_max: u64,
    start: Instant,
    now_ns: u64,
}

fn opened(disks: &[SimDisk]) -> StreamDir {
    let shared = |disk: &SimDisk| -> Arc<dyn Disk> { Arc::new(disk.clone()) };
    let (own, others) = disks.split_first().unwrap();
    let others = others.iter().map(shared).collect();
    StreamDir::simulated_stripes(shared(own), others, GEOMETRY).unwrap()
}

/// Says whose it is; of a length that depends on its number.
fn payload(id: u64, number: u64) -> Vec<u8> {
    let len = match number % 17 {
        0 => 9_000,
        rest => 16 + rest * rest * 4,
    };
    let mut payload = vec![number.to_le_bytes()[0]; usize::try_from(len).unwrap()];
    payload[..8].copy_from_slice(&id.to_le_bytes());
    payload[8..16].copy_from_slice(&number.to_le_bytes());
    payload
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut draw = Draw(seed);
        let disks: Vec<SimDisk> = (0..=draw.below(2)).map(|_| SimDisk::new()).collect();
        for disk in &disks {
            disk.set_in_flight(1 + draw.index(4));
        }
        let dir = opened(&disks);
        let name: StreamName = "events".parse().unwrap();
        let spec = StreamSpec {
            retention: Retention::default(),
            form: Form::Sealed,
        };
        dir.create_stream(&name, &spec, 1).unwrap();
        let clients = (1..=PRODUCERS).map(|id| Client {
            id,
            name: format!("host{id}").parse().unwrap(),
            made: 0,
            confirmed: 0,
            session: None,
            at: 0,
        });
        Self {
            seed,
            draw,
            disks,
            streams: SharedStreams::new(dir),
            name,
            clients: clients.collect(),
            local: 0,
            missing_max: 0,
            start: Instant::now(),
            now_ns: SECOND_NS,
        }
    }

    fn now(&self) -> (Instant, u64) {
        (self.start + Duration::from_nanos(self.now_ns), self.now_ns)
    }

    fn connect(&mut self, at: usize) {
        let now = self.now();
        let client = &mut self.clients[at];
        let producer = (client.id, &client.name);
        let Ok(session) = self.streams.join(&self.name, producer, now) else {
            return;
        };
        let next = session.next();
        assert!(
            next >= client.confirmed && next <= client.made,
            "seed {}: producer {}: {next} at the server, {} confirmed, {} made",
            self.seed,
            client.id,
            client.confirmed,
            client.made
        );
        // A client may not know how far the server has come.
        client.at = client.confirmed + self.draw.below(next - client.confirmed + 1);
        client.session = Some(session);
    }

    /// Sends at most `max` records; whether the server has taken them.
    fn send(&mut self, at: usize, max: u64) -> bool {
        let now = self.now();
        let client = &mut self.clients[at];
        let Some(session) = &mut client.session else {
            return false;
        };
        let mut turn = session.turn(now.0);
        turn.start(client.at);
        let until = client.made.min(client.at.saturating_add(max));
        let sent = (client.at..until)
            .try_for_each(|number| turn.append(now.1, &payload(client.id, number)));
        let kept = sent.and_then(|()| turn.keep_up(now.1));
        drop(turn);
        match kept {
            Ok(confirmed) => {
                client.at = until;
                client.confirmed = client.confirmed.max(confirmed.unwrap_or_default());
            }
            Err(_) => client.session = None,
        }
        kept.is_ok()
    }

    /// The server dies, with the power or alone, and is started again.
    fn restart(&mut self, loses_power: bool) {
        let survived: Vec<SimDisk> = self
            .disks
            .iter()
            .map(|disk| match loses_power {
                true => disk.after_power_loss(self.draw.below(u64::MAX)),
                false => disk.after_kill(),
            })
            .collect();
        if self.clients.iter().all(|client| client.confirmed == 0) {
            self.missing_max += self.clients.iter().map(|client| client.made).sum::<u64>();
        }
        for client in &mut self.clients {
            client.session = None;
        }
        self.disks = survived;
        for disk in &self.disks {
            disk.set_in_flight(1 + self.draw.index(4));
        }
        let dir = opened(&self.disks);
        self.streams = SharedStreams::new(dir);
        self.verify(false);
    }

    fn step(&mut self) {
        self.now_ns += self.draw.below(SECOND_NS / 10);
        let at = self.draw.index(self.clients.len());
        match self.draw.below(100) {
            0..30 => self.clients[at].made += 1 + self.draw.below(20),
            30..45 if self.clients[at].session.is_none() => self.connect(at),
            45..85 => {
                let max = self.draw.below(40);
                self.send(at, max);
            }
            85..88 => self.clients[at].session = None,
            88 => self.restart(false),
            89 => self.restart(true),
            90 => {
                let after = self.draw.below(6);
                self.disks[0].fail_once(after);
            }
            91 => {
                // Another connection of the same producer, while the server has not noticed that the first is gone.
                let old = self.clients[at].session.take();
                self.connect(at);
                self.send(at, 3);
                drop(old);
            }
            92 => self.append_here(),
            _ => self.now_ns += SECOND_NS,
        }
    }

    /// A process of the server's machine appends, if no producer is connected.
    fn append_here(&mut self) {
        if self.clients.iter().any(|client| client.session.is_some()) {
            return;
        }
        let dir = opened(&self.disks);
        let Ok(mut stream) = dir.append(&self.name, self.now_ns) else {
            return;
        };
        let mut all = (0..5).map(|more| (more, payload(0, self.local + more)));
        let appended = all.try_for_each(|(_, record)| stream.append(self.now_ns, &record));
        if appended.is_ok() && stream.close(self.now_ns).is_ok() {
            self.local += 5;
        } else {
            self.missing_max += 5;
        }
    }

    /// Each record once, in its producer's order; at the end, all of them.
    fn verify(&self, is_end: bool) {
        let seed = self.seed;
        let mut reader = self.streams.dir().read(&self.name).unwrap();
        reader.seek(Cursor::START, None);
        let mut next: BTreeMap<u64, u64> = BTreeMap::new();
        reader
            .read::<StreamError>(u64::MAX, |entry| {
                let word = |at: usize| {
                    u64::from_le_bytes(*entry.payload[at..].first_chunk::<8>().unwrap())
                };
                let (id, number) = (word(0), word(8));
                assert_eq!(entry.payload, payload(id, number));
                if id > 0 {
                    // What is behind a hole is discarded when the stream is opened.
                    match entry.origin {
                        Some(origin) => {
                            assert_eq!((origin.id, origin.number), (id, number), "seed {seed}");
                            assert_eq!(origin.name, format!("host{id}"));
                        }
                        None => assert!(!is_end, "seed {seed}: producer {id}: {number}"),
                    }
                    let expected = next.entry(id).or_default();
                    assert!(
                        number == *expected || (!is_end && number > *expected),
                        "seed {seed}: producer {id}: {number} and not {expected}"
                    );
                    *expected = number + 1;
                } else {
                    assert_eq!(entry.origin, None);
                }
                Ok(true)
            })
            .unwrap();
        if is_end {
            for client in &self.clients {
                let there = next.get(&client.id).copied().unwrap_or_default();
                assert_eq!(there, client.made, "seed {seed}: producer {}", client.id);
            }
            let missing = reader.unread().missing.1;
            assert!(
                missing <= self.missing_max,
                "seed {seed}: {missing} missing"
            );
        }
    }

    /// All send what they have, to disks that do not fail.
    fn end(&mut self) {
        for disk in &self.disks {
            disk.fail(u64::MAX, 0, io::ErrorKind::Other);
        }
        for at in 0..self.clients.len() {
            for _ in 0..10 {
                // A stream that could not be written is left alone for a while.
                self.now_ns += 600 * SECOND_NS;
                self.connect(at);
                if self.send(at, u64::MAX) {
                    break;
                }
            }
            let now = self.now();
            let client = &mut self.clients[at];
            let mut session = client.session.take().unwrap();
            let (next, _) = session.turn(now.0).end(now.1).unwrap();
            assert_eq!(next, client.made);
        }
        self.verify(true);
    }
}

#[test]
fn each_record_is_in_the_stream_once_and_in_its_producers_order() {
    each_seed(|seed| {
        let mut run = Run::new(seed);
        for _ in 0..600 {
            run.step();
        }
        run.end();
    });
}

/// A stream of this form on a disk, with records of one producer that are synced, and what a process finds after the
/// server was killed.
fn killed(form: Form, records: u64) -> SimDisk {
    let disk = SimDisk::new();
    let dir = opened(std::slice::from_ref(&disk));
    let name: StreamName = "events".parse().unwrap();
    let retention = Retention::default();
    dir.create_stream(&name, &StreamSpec { retention, form }, 1)
        .unwrap();
    let streams = SharedStreams::new(dir);
    let now = (Instant::now(), SECOND_NS);
    let mut session = streams.join(&name, (7, &name), now).unwrap();
    let mut turn = session.turn(now.0);
    for number in 0..records {
        turn.append(now.1, &payload(7, number)).unwrap();
    }
    turn.sync(now.1).unwrap();
    drop(turn);
    disk.after_kill()
}

fn numbers(dir: &StreamDir, name: &StreamName) -> Vec<u64> {
    let mut numbers = Vec::new();
    let mut reader = dir.read(name).unwrap();
    reader
        .read::<StreamError>(u64::MAX, |entry| {
            let number = entry.payload[8..].first_chunk::<8>().unwrap();
            numbers.push(u64::from_le_bytes(*number));
            Ok(true)
        })
        .unwrap();
    numbers
}

/// Only what was not synced is discarded behind a hole.
#[test]
fn damage_to_a_record_that_was_synced_costs_that_record() {
    let name: StreamName = "events".parse().unwrap();
    let linked = Form::Linked {
        redundancy: 3,
        block_bytes: Some(GEOMETRY.page_bytes),
    };
    for form in [Form::Sealed, linked] {
        let disk = killed(form, 300);
        // In the first page of several.
        disk.flip_bit("pages", 20_000, 3);
        let dir = opened(&[disk]);
        let before = numbers(&dir, &name);
        // A linked record has no tag.
        let lost = usize::from(form == Form::Sealed);
        assert_eq!(before.len(), 300 - lost);
        let streams = SharedStreams::new(dir);
        let now = (Instant::now(), SECOND_NS);
        let mut session = streams.join(&name, (7, &name), now).unwrap();
        let next = if form == Form::Sealed { 300 } else { 0 };
        assert_eq!(session.next(), next);
        session.turn(now.0).start(300);
        session.turn(now.0).append(now.1, &payload(7, 300)).unwrap();
        drop(session);
        let after = numbers(streams.dir(), &name);
        assert_eq!(after[..before.len()], before, "{form:?}");
        assert_eq!(after[before.len()..], [300]);
    }
}

/// The list of producers leaves room for the longest record.
#[test]
fn a_stream_of_many_producers_takes_the_longest_record() {
    let disk = SimDisk::new();
    let dir = opened(std::slice::from_ref(&disk));
    let name: StreamName = "events".parse().unwrap();
    let spec = StreamSpec {
        retention: Retention::default(),
        form: Form::Sealed,
    };
    dir.create_stream(&name, &spec, 1).unwrap();
    let streams = SharedStreams::new(dir);
    let now = (Instant::now(), SECOND_NS);
    let long: StreamName = "n".repeat(64).parse().unwrap();
    let mut sessions = Vec::new();
    let refused = (1..1_000).find_map(|id| {
        let joined = streams.join(&name, (id, &long), now);
        joined.map(|session| sessions.push(session)).err()
    });
    let refused = refused.unwrap().to_string();
    assert!(refused.contains("too many producers"), "{refused}");
    assert!(sessions.len() > 30, "{}", sessions.len());
    let record = vec![1; sessions[0].record_len_max()];
    for session in &mut sessions {
        session.turn(now.0).append(now.1, &record).unwrap();
    }
    // Those that have come and gone count too, for a process of this machine.
    drop(sessions);
    for id in 2_000..2_400 {
        let mut session = streams.join(&name, (id, &long), now).unwrap();
        session.turn(now.0).append(now.1, &[1]).unwrap();
    }
    let dir = opened(&[disk]);
    let mut local = dir.append(&name, now.1).unwrap();
    local.append(now.1, &record).unwrap();
    local.close(now.1).unwrap();
}
