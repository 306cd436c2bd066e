//! Streams over several disks, of this machine or of servers, of which some go and come back, under who appends and under
//! who reads, while processes are killed, connections and power are lost: a disk that is gone costs the records on it, which are counted; nothing comes
//! twice. `SEEDS=1000` runs 1000 seeds, `SEED=17` one.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common {
    pub(crate) mod servers;
    pub(crate) mod simulated;
}

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use strata_store::Disk;
use strata_stream::{Cursor, Form, Retention, StreamName};
use strata_stream_run::{StreamAppender, StreamDir, StreamError, StreamSpec, check_streams};
use strata_testkit_disk::SimDisk;

use common::servers::SimServer;
use common::simulated::{Draw, GEOMETRY, each_seed};

const SECOND_NS: u64 = 1_000_000_000;

fn spec(retain_bytes: Option<u64>) -> StreamSpec {
    let retention = Retention {
        bytes: retain_bytes,
        age: None,
    };
    let form = Form::Sealed;
    StreamSpec { retention, form }
}

/// The first disk is that of the directory; the others, if there are any servers, are theirs.
fn reached(disks: &[SimDisk], servers: &[SimServer]) -> StreamDir {
    if servers.is_empty() {
        return opened(disks);
    }
    let shared: Vec<_> = servers.iter().map(SimServer::shared).collect();
    StreamDir::simulated_servers(Arc::new(disks[0].clone()), &shared, GEOMETRY).unwrap()
}

/// The first disk is that of the directory.
fn opened(disks: &[SimDisk]) -> StreamDir {
    let shared = |disk: &SimDisk| -> Arc<dyn Disk> { Arc::new(disk.clone()) };
    let (own, others) = disks.split_first().unwrap();
    let others = others.iter().map(shared).collect();
    StreamDir::simulated_stripes(shared(own), others, GEOMETRY).unwrap()
}

/// Makes a disk a device with room for `pages` pages.
fn make_device(disk: &SimDisk, pages: u64) {
    let mut device = disk.create("device").unwrap();
    let page_bytes = u64::from(GEOMETRY.page_bytes);
    device.set_len((4 << 20) + pages * page_bytes).unwrap();
}

/// What a reader was given: ids and numbers of records, how many were missing, and its place.
struct Given {
    records: Vec<(u64, u64)>,
    missing: (u64, u64),
    expired: u64,
    cursor: Cursor,
}

fn id_of(payload: &[u8]) -> u64 {
    let id = u64::from_le_bytes(*payload.first_chunk().unwrap());
    assert!(payload[8..].iter().all(|&byte| byte == id.to_le_bytes()[0]));
    id
}

fn read(dir: &StreamDir, name: &StreamName, from: Cursor, max: u64) -> Given {
    let mut reader = dir.read(name).unwrap();
    reader.seek(from, None);
    let mut records = Vec::new();
    let count = reader.read::<StreamError>(max, |entry| {
        records.push((id_of(entry.payload), entry.seq.unwrap()));
        Ok(true)
    });
    assert_eq!(count.unwrap(), records.len() as u64);
    Given {
        records,
        missing: reader.unread().missing,
        expired: reader.unread().expired,
        cursor: reader.cursor(),
    }
}

/// How many numbers are left out, counted naively.
fn left_out(records: &[(u64, u64)], end_seq: Option<u64>) -> u64 {
    let mut next = 0;
    let mut missing = 0;
    for &(_, seq) in records {
        missing += seq.saturating_sub(next);
        next = seq + 1;
    }
    missing + end_seq.map_or(0, |end| end.saturating_sub(next))
}

/// How a round ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Closed,
    Killed,
    PowerLost,
}

struct Run {
    seed: u64,
    draw: Draw,
    disks: Vec<SimDisk>,
    /// Of all disks but the first, or none.
    servers: Vec<SimServer>,
    dir: StreamDir,
    name: StreamName,
    is_ring: bool,
    /// How the last round ended.
    ended: End,
    /// No number was given twice: after a crash while a stripe is gone, some may be.
    are_unique: bool,
    now_ns: u64,
    next_id: u64,
    /// The number that each record was given.
    numbers: BTreeMap<u64, u64>,
    /// Records that must be there while all disks are.
    kept: BTreeSet<u64>,
    cursor: Cursor,
    seen: BTreeSet<u64>,
}

/// What was appended in a round.
#[derive(Default)]
struct Round {
    ids: Vec<u64>,
    /// How many of them a sync has confirmed.
    synced: usize,
    lost: u64,
}

/// Servers of all disks but the first.
fn servers_of(disks: &[SimDisk], draw: &mut Draw) -> Vec<SimServer> {
    let stripes = disks[1..].iter();
    stripes
        .map(|disk| SimServer::new(disk, draw.below(u64::MAX)))
        .collect()
}

impl Run {
    fn new(seed: u64, at_servers: bool) -> Self {
        let mut draw = Draw(seed);
        let disks: Vec<SimDisk> = (0..2 + draw.below(3)).map(|_| SimDisk::new()).collect();
        for disk in &disks[1..] {
            if draw.below(2) == 0 {
                // Some are full before the run ends.
                make_device(disk, 3 + draw.below(40));
            }
        }
        disks[0].set_in_flight(1 + draw.index(4));
        let servers = match at_servers {
            true => servers_of(&disks, &mut draw),
            false => Vec::new(),
        };
        let dir = reached(&disks, &servers);
        let name: StreamName = "events".parse().unwrap();
        let is_ring = draw.below(3) == 0;
        let spec = spec(is_ring.then_some(8 << 16));
        dir.create_stream(&name, &spec, 1).unwrap();
        dir.create_stream(&"other".parse().unwrap(), &spec, 1)
            .unwrap();
        Self {
            seed,
            draw,
            disks,
            servers,
            dir,
            name,
            is_ring,
            ended: End::Closed,
            are_unique: true,
            now_ns: SECOND_NS,
            next_id: 0,
            numbers: BTreeMap::new(),
            kept: BTreeSet::new(),
            cursor: Cursor::START,
            seen: BTreeSet::new(),
        }
    }

    fn stripe(&mut self) -> SimDisk {
        let at = 1 + self.draw.index(self.disks.len() - 1);
        self.disks[at].clone()
    }

    fn plug_all(&self) {
        for disk in &self.disks {
            disk.unplug(false);
            disk.fail(u64::MAX, 0, io::ErrorKind::Other);
        }
        for server in &self.servers {
            server.set_down(false);
            server.set_lost_in(0);
            // What arrives while records are compared would be in one reading and not in the other.
            server.settle();
        }
    }

    /// Something happens to a server.
    fn disturb(&mut self) {
        if self.servers.is_empty() {
            return;
        }
        let at = self.draw.index(self.servers.len());
        let server = &self.servers[at];
        match self.draw.below(5) {
            0 => server.restart(),
            1 => server.set_down(true),
            2 => server.set_down(false),
            3 => server.set_lost_in(0),
            _ => server.set_lost_in(1 + self.draw.below(60)),
        }
    }

    fn append_some(
        &mut self,
        stream: &mut StreamAppender,
        other: &mut StreamAppender,
    ) -> Result<Round, StreamError> {
        let mut round = Round::default();
        for _ in 0..20 + self.draw.below(600) {
            self.now_ns += self.draw.below(4_000_000);
            let id = self.next_id;
            self.next_id += 1;
            let len = match self.draw.below(10) {
                0 => 8 + self.draw.index(30_000),
                _ => 8 + self.draw.index(1_500),
            };
            let mut payload = vec![id.to_le_bytes()[0]; len];
            payload[..8].copy_from_slice(&id.to_le_bytes());
            self.numbers.insert(id, stream.next_seq());
            round.ids.push(id);
            stream.append(self.now_ns, &payload)?;
            match self.draw.below(80) {
                0 => stream.flush(self.now_ns)?,
                1 => {
                    stream.sync(self.now_ns)?;
                    round.synced = round.ids.len();
                }
                2..=4 => other.append(self.now_ns, &payload)?,
                5 | 6 => self.consume(),
                7 => self.stripe().unplug(true),
                8 => self.stripe().unplug(false),
                9 => {
                    let after = self.draw.below(4);
                    self.stripe().fail(after, 1, io::ErrorKind::StorageFull);
                }
                10 => self.now_ns += 15 * SECOND_NS,
                11..=13 => self.disturb(),
                _ => {}
            }
        }
        round.lost = stream.lost();
        Ok(round)
    }

    /// Goes on where the consumer left off: nothing that it has had comes again.
    fn consume(&mut self) {
        let seed = self.seed;
        let max = 1 + self.draw.below(500);
        let given = read(&self.dir, &self.name, self.cursor, max);
        for (id, seq) in given.records {
            assert!(self.seen.insert(id), "seed {seed}: record {id} came twice");
            assert_eq!(self.numbers[&id], seq, "seed {seed}: record {id}");
        }
        assert!(given.cursor >= self.cursor, "seed {seed}");
        self.cursor = given.cursor;
    }

    /// What must hold whenever there is no appender and all disks are there.
    fn verify(&mut self, round: &Round, end: End) {
        let seed = self.seed;
        let given = read(&self.dir, &self.name, Cursor::START, u64::MAX);
        let ids: BTreeSet<u64> = given.records.iter().map(|&(id, _)| id).collect();
        assert!(
            given.records.is_sorted_by(|a, b| a.0 < b.0),
            "seed {seed}: order, or twice"
        );
        for (id, seq) in &given.records {
            assert_eq!(self.numbers[id], *seq, "seed {seed}: record {id}");
        }
        if !self.is_ring {
            let certain = match end {
                End::Closed => round.ids.len(),
                End::Killed | End::PowerLost => round.synced,
            };
            let certain = &round.ids[..certain];
            let lost = certain.iter().filter(|id| !ids.contains(id)).count() as u64;
            assert!(
                lost <= round.lost,
                "seed {seed}: {lost} of at most {}, {end:?}",
                round.lost
            );
            // Others may be on a disk that was taken away before they were synced.
            if round.lost == 0 {
                self.kept
                    .extend(certain.iter().filter(|id| ids.contains(id)));
            }
            let gone = self.kept.iter().find(|id| !ids.contains(id));
            assert_eq!(
                gone, None,
                "seed {seed}: a record that was there is not read"
            );
            self.verify_missing(&given, end);
        }
        // One disk is gone under who reads.
        let stripe = self.stripe();
        stripe.unplug(true);
        let fewer = read(&self.dir, &self.name, Cursor::START, u64::MAX);
        assert!(fewer.records.is_sorted_by(|a, b| a.0 < b.0), "seed {seed}");
        // Of a ring, older pages may show, if a loss of power has taken what says that they were given up.
        let is_part = fewer.records.iter().all(|(id, _)| ids.contains(id));
        assert!(is_part || self.is_ring, "seed {seed}");
        if !self.is_ring {
            self.verify_missing(&fewer, end);
        }
        stripe.unplug(false);
    }

    fn verify_missing(&self, given: &Given, end: End) {
        let dir = &self.dir;
        let state = dir.status(&self.name).unwrap().state;
        let state = state.filter(|state| state.is_clean);
        let end_seq = state.as_ref().map(|state| state.next_seq);
        assert_eq!(end_seq.is_some(), end == End::Closed, "seed {}", self.seed);
        // Without the first page, only the page table tells where it began.
        let is_begun = state.is_some_and(|state| state.oldest == 0)
            || given.records.first().is_some_and(|&(_, seq)| seq == 0);
        let first = given.records.first().map_or(0, |&(_, seq)| seq);
        let missing = left_out(&given.records, end_seq);
        let missing = if is_begun { missing } else { missing - first };
        let (min, max) = given.missing;
        assert_eq!(min, max, "seed {}", self.seed);
        // A mark may have survived that says how many there were before it: also a kill, if a block of its page could
        // not be written before, and those after it were on their way already.
        let last = self.numbers.values().max().map(|last| last + 1);
        let by_marks =
            end != End::Closed && min >= missing && min <= left_out(&given.records, last);
        let is_more = by_marks || (!self.are_unique && min >= missing);
        assert!(
            is_more || min == missing || (!is_begun && (missing..=missing + first).contains(&min)),
            "seed {}: {min} counted, {missing} are missing, {end:?}",
            self.seed
        );
        assert_eq!(given.expired, 0, "seed {}", self.seed);
    }

    fn round(&mut self) {
        let gone = self.draw.below(3);
        for _ in 0..gone {
            self.stripe().unplug(true);
        }
        self.are_unique &= gone == 0 || self.ended == End::Closed;
        let name = self.name.clone();
        let other: StreamName = "other".parse().unwrap();
        let open = |dir: &StreamDir, now_ns| {
            let stream = dir.append(&name, now_ns)?;
            Ok::<_, StreamError>((stream, dir.append(&other, now_ns)?))
        };
        let (mut stream, mut beside) = match open(&self.dir, self.now_ns) {
            Ok(both) => both,
            // After a loss of power, it may not be known how far a stripe went that is gone.
            Err(error) => {
                assert!(
                    error.to_string().contains("on a stripe that is missing"),
                    "{error}"
                );
                self.plug_all();
                open(&self.dir, self.now_ns).unwrap()
            }
        };
        let mut round = self.append_some(&mut stream, &mut beside).unwrap();
        let end = match self.draw.below(4) {
            0 => End::Killed,
            1 => End::PowerLost,
            _ => End::Closed,
        };
        if end == End::Closed {
            stream.sync(self.now_ns).unwrap();
            round.lost = stream.lost();
            stream.close(self.now_ns).unwrap();
            beside.close(self.now_ns).unwrap();
        } else {
            drop((stream, beside));
        }
        self.plug_all();
        if end == End::PowerLost {
            let draw = &mut self.draw;
            let survived = self
                .disks
                .iter()
                .map(|disk| disk.after_power_loss(draw.below(u64::MAX)));
            self.disks = survived.collect();
            if !self.servers.is_empty() {
                self.servers = servers_of(&self.disks, &mut self.draw);
            }
        }
        self.dir = reached(&self.disks, &self.servers);
        self.ended = end;
        self.verify(&round, end);
    }
}

#[test]
fn disks_that_go_and_come_back_cost_the_records_on_them() {
    each_seed(|seed| {
        let mut run = Run::new(seed, false);
        for _ in 0..5 {
            run.round();
        }
    });
}

#[test]
fn servers_that_go_and_come_back_cost_the_records_on_them() {
    each_seed(|seed| {
        let mut run = Run::new(seed, true);
        for _ in 0..5 {
            run.round();
        }
    });
}

#[test]
fn a_server_that_lies_costs_records_and_invents_none() {
    each_seed(|seed| {
        let mut draw = Draw(seed);
        let disks: Vec<SimDisk> = (0..3).map(|_| SimDisk::new()).collect();
        let servers = servers_of(&disks, &mut draw);
        let dir = reached(&disks, &servers);
        let name: StreamName = "events".parse().unwrap();
        dir.create_stream(&name, &spec(None), 1).unwrap();
        servers[0].set_lies_in(1 + draw.below(30));
        let mut now_ns = SECOND_NS;
        let mut next_id: u64 = 0;
        for _ in 0..3 {
            let mut stream = dir.append(&name, now_ns).unwrap();
            for _ in 0..500 {
                now_ns += draw.below(SECOND_NS);
                stream.append(now_ns, &payload(next_id)).unwrap();
                next_id += 1;
                if draw.below(40) == 0 {
                    stream.sync(now_ns).unwrap();
                }
            }
            stream.close(now_ns).unwrap();
            let given = read(&dir, &name, Cursor::START, u64::MAX);
            let records = &given.records;
            assert!(records.is_sorted_by(|a, b| a.0 < b.0), "seed {seed}");
            assert!(records.last().is_none_or(|last| last.0 < next_id));
            // Those of the directory and the other server are there.
            assert!(records.len() as u64 >= next_id / 3, "seed {seed}");
        }
    });
}

fn payload(id: u64) -> Vec<u8> {
    let mut payload = vec![id.to_le_bytes()[0]; 1000];
    payload[..8].copy_from_slice(&id.to_le_bytes());
    payload
}

/// Records of 1000 bytes, all synced.
fn append(dir: &StreamDir, name: &StreamName, count: u64) {
    let mut stream = dir.append(name, SECOND_NS).unwrap();
    for id in 0..count {
        stream.append(SECOND_NS, &payload(id)).unwrap();
    }
    assert_eq!(stream.lost(), 0);
    stream.close(SECOND_NS).unwrap();
}

#[test]
fn one_of_three_disks_has_a_third_of_the_records_and_costs_no_more() {
    let disks: Vec<SimDisk> = (0..3).map(|_| SimDisk::new()).collect();
    let dir = opened(&disks);
    let name: StreamName = "events".parse().unwrap();
    dir.create_stream(&name, &spec(None), 1).unwrap();
    append(&dir, &name, 3000);
    let page_records = 64;
    for gone in &disks[1..] {
        gone.unplug(true);
        let given = read(&dir, &name, Cursor::START, u64::MAX);
        let missing = 3000 - given.records.len() as u64;
        assert!(missing.abs_diff(1000) <= 2 * page_records, "{missing}");
        assert_eq!(given.missing, (missing, missing));
        let check = &check_streams(&dir).unwrap()[0];
        assert_eq!(check.unread.missing, (missing, missing));
        assert!(
            check.problems[0].contains(" of its pages are on missing stripes: stripe "),
            "{:?}",
            check.problems
        );
        gone.unplug(false);
    }
    assert!(check_streams(&dir).unwrap()[0].problems.is_empty());
    assert_eq!(read(&dir, &name, Cursor::START, u64::MAX).missing, (0, 0));
}

#[test]
fn a_full_stripe_loses_nothing_once_it_is_known_and_is_tried_again() {
    let disks: Vec<SimDisk> = (0..2).map(|_| SimDisk::new()).collect();
    let dir = opened(&disks);
    let name: StreamName = "events".parse().unwrap();
    dir.create_stream(&name, &spec(None), 1).unwrap();
    let mut stream = dir.append(&name, SECOND_NS).unwrap();
    disks[1].fail(0, u64::MAX, io::ErrorKind::StorageFull);
    let mut append = |count: u64, now_ns: u64| {
        for id in 0..count {
            stream.append(now_ns, &payload(id)).unwrap();
        }
        stream.sync(now_ns).unwrap();
        (stream.lost(), stream.take_warnings())
    };
    let (lost, said) = append(1000, SECOND_NS);
    assert!(lost <= 64, "{lost}");
    assert_eq!(said.len(), 1, "{said:?}");
    let (still, said) = append(1000, 2 * SECOND_NS);
    assert_eq!((still, said), (lost, vec![]));
    disks[1].fail(u64::MAX, 0, io::ErrorKind::Other);
    let before = disks[1].operations();
    let (still, said) = append(1000, 20 * SECOND_NS);
    assert_eq!(still, lost);
    assert!(said[0].ends_with("written again"), "{said:?}");
    assert!(disks[1].operations() > before + 5, "it has its share again");
    let given = read(&dir, &name, Cursor::START, u64::MAX);
    assert_eq!(given.records.len() as u64 + lost, 3000);
    assert_eq!(given.missing, (lost, lost));
}

/// Numbers of the records that are there; all bytes were compared.
fn numbers(dir: &StreamDir, name: &StreamName) -> Vec<u64> {
    let given = read(dir, name, Cursor::START, u64::MAX);
    given.records.into_iter().map(|(id, _)| id).collect()
}

#[test]
fn a_device_has_as_many_pages_as_fit_and_a_ring_goes_on_in_them() {
    for is_ring in [false, true] {
        let disks: Vec<SimDisk> = (0..2).map(|_| SimDisk::new()).collect();
        make_device(&disks[1], 5);
        let dir = opened(&disks);
        let name: StreamName = "events".parse().unwrap();
        dir.create_stream(&name, &spec(is_ring.then_some(12 << 16)), 1)
            .unwrap();
        let mut stream = dir.append(&name, SECOND_NS).unwrap();
        for id in 0_u64..3000 {
            stream.append(SECOND_NS, &payload(id)).unwrap();
        }
        stream.sync(SECOND_NS).unwrap();
        assert_eq!(stream.lost(), 0);
        let said = stream.take_warnings();
        assert!(said[0].contains("full: records go to"), "{said:?}");
        stream.close(SECOND_NS).unwrap();
        let there = numbers(&dir, &name);
        let first = there[0];
        assert!(there.iter().copied().eq(first..3000), "all but the oldest");
        assert_eq!(first == 0, !is_ring);
        // Of the ring's pages, as many as fit are on the device still.
        disks[1].unplug(true);
        let missing = (there.len() - numbers(&dir, &name).len()) as u64;
        assert!((4 * 64..=5 * 65).contains(&missing), "{missing}");
    }
}

#[test]
fn what_a_device_had_before_it_was_formatted_again_is_not_found() {
    // Pages are begun in advance, of which some are left when it is killed.
    for more in (500..2500).step_by(200) {
        let disks: Vec<SimDisk> = (0..2).map(|_| SimDisk::new()).collect();
        make_device(&disks[1], 40);
        let dir = opened(&disks);
        let name: StreamName = "events".parse().unwrap();
        dir.create_stream(&name, &spec(None), 1).unwrap();
        append(&dir, &name, 3000);
        // It is given up, and becomes another stripe of the same directory, whose streams have the same keys.
        disks[0].replace("stripes", b"[]").unwrap();
        let alone = StreamDir::simulated(Arc::new(disks[0].clone()), GEOMETRY).unwrap();
        let mut expected = numbers(&alone, &name);
        assert!(
            (1400..=1600).contains(&expected.len()),
            "{}",
            expected.len()
        );
        let dir = opened(&disks);
        assert_eq!(numbers(&dir, &name), expected);
        let mut stream = dir.append(&name, SECOND_NS).unwrap();
        for id in 3000..3000 + more {
            stream.append(SECOND_NS, &payload(id)).unwrap();
            expected.push(id);
        }
        stream.sync(SECOND_NS).unwrap();
        // Killed: pages are found by their headers.
        drop(stream);
        let dir = opened(&disks);
        assert_eq!(numbers(&dir, &name), expected);
        let again = dir.append(&name, SECOND_NS).unwrap();
        again.close(SECOND_NS).unwrap();
        assert_eq!(numbers(&dir, &name), expected);
    }
}
