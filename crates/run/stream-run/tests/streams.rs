//! Streams on a disk that loses power, and under a process that is killed, anywhere: what was synced
//! is read, cursors stay valid, and nothing comes twice. `SEEDS=1000` runs 1000 seeds, `SEED=17`
//! one.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common {
    pub(crate) mod simulated;
}

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use strata_store::Disk as _;
use strata_stream::{Cursor, Form, Retention, StreamName};
use strata_stream_run::{StreamAppender, StreamDir, StreamError, StreamReader, StreamSpec};
use strata_testkit_disk::SimDisk;

use common::simulated::{Draw, GEOMETRY, each_seed};

/// A stream, who appends to it, and who reads it.
struct Run {
    seed: u64,
    draw: Draw,
    disk: SimDisk,
    dir: StreamDir,
    name: StreamName,
    /// It keeps eight pages.
    is_ring: bool,
    now_ns: u64,
    /// Ids of records that a sync has confirmed.
    synced: BTreeSet<u64>,
    /// Appended since then.
    unsynced: Vec<u64>,
    next_id: u64,
    cursor: Cursor,
    seen: BTreeSet<u64>,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut draw = Draw(seed);
        let disk = SimDisk::new();
        disk.set_in_flight(1 + draw.index(4));
        let dir = StreamDir::simulated(Arc::new(disk.clone()), GEOMETRY).unwrap();
        let name: StreamName = "events".parse().unwrap();
        let few = (draw.below(3) == 0).then_some(8 << 16);
        let spec = StreamSpec {
            retention: Retention {
                bytes: few,
                age: None,
            },
            form: Form::Sealed,
        };
        dir.create_stream(&name, &spec, 1).unwrap();
        // Another stream of the directory, whose pages lie between.
        dir.create_stream(&"other".parse().unwrap(), &spec, 1)
            .unwrap();
        Self {
            seed,
            draw,
            disk,
            dir,
            name,
            is_ring: few.is_some(),
            now_ns: 1_000_000_000,
            synced: BTreeSet::new(),
            unsynced: Vec::new(),
            next_id: 0,
            cursor: Cursor::START,
            seen: BTreeSet::new(),
        }
    }

    fn payload(&mut self, id: u64) -> Vec<u8> {
        let len = match self.draw.below(10) {
            0 => 8 + self.draw.below(30_000),
            _ => 8 + self.draw.below(1_500),
        };
        let byte = id.to_le_bytes()[0];
        let mut payload = vec![byte; usize::try_from(len).unwrap()];
        payload[..8].copy_from_slice(&id.to_le_bytes());
        payload
    }

    fn append_some(
        &mut self,
        stream: &mut StreamAppender,
        other: &mut StreamAppender,
    ) -> Result<(), StreamError> {
        for _ in 0..20 + self.draw.below(400) {
            self.now_ns += self.draw.below(4_000_000);
            let id = self.next_id;
            self.next_id += 1;
            let payload = self.payload(id);
            self.unsynced.push(id);
            stream.append(self.now_ns, &payload)?;
            match self.draw.below(60) {
                0 => stream.flush(self.now_ns)?,
                1 => {
                    stream.sync(self.now_ns)?;
                    self.synced.extend(self.unsynced.drain(..));
                }
                2..=4 => other.append(self.now_ns, &payload)?,
                5 => self.consume(),
                _ => {}
            }
        }
        Ok(())
    }

    /// Goes on where the consumer left off: nothing that it has had comes again.
    fn consume(&mut self) {
        let mut reader = self.dir.read(&self.name).unwrap();
        reader.seek(self.cursor, None);
        let (seed, seen) = (self.seed, &mut self.seen);
        let read = reader.read::<StreamError>(1 + self.draw.below(500), |entry| {
            let id = u64::from_le_bytes(*entry.payload.first_chunk().unwrap());
            assert!(
                entry.payload[8..]
                    .iter()
                    .all(|&byte| byte == id.to_le_bytes()[0])
            );
            assert!(seen.insert(id), "seed {seed}: record {id} came twice");
            Ok(true)
        });
        read.unwrap();
        assert!(reader.cursor() >= self.cursor, "seed {seed}");
        self.cursor = reader.cursor();
    }

    fn all(&self) -> Vec<u64> {
        let mut reader = self.dir.read(&self.name).unwrap();
        let mut ids = Vec::new();
        let read = reader.read::<StreamError>(u64::MAX, |entry| {
            ids.push(u64::from_le_bytes(*entry.payload.first_chunk().unwrap()));
            Ok(true)
        });
        assert_eq!(read.unwrap(), ids.len() as u64);
        ids
    }

    /// What must hold whenever there is no appender.
    fn verify(&mut self) {
        let seed = self.seed;
        let ids = self.all();
        assert!(
            ids.is_sorted_by(|a, b| a < b),
            "seed {seed}: order, or twice"
        );
        // A ring gives up the oldest, for newer ones that are there: these are some pages of them.
        let is_given_up = |id: &u64| {
            let newer = ids.len() - ids.partition_point(|other| other < id);
            self.is_ring && newer >= 60
        };
        let mut lost = self
            .synced
            .iter()
            .filter(|id| ids.binary_search(id).is_err());
        let lost = lost.find(|id| !is_given_up(id));
        assert_eq!(lost, None, "seed {seed}: a synced record is not read");
        let is_kept = self.synced.is_empty() || !ids.is_empty();
        assert!(is_kept, "seed {seed}: nothing is left");
        while {
            let before = self.cursor;
            self.consume();
            self.cursor > before
        } {}
        let unseen = ids.iter().find(|id| !self.seen.contains(id));
        assert_eq!(
            unseen, None,
            "seed {seed}: the consumer has passed a record over"
        );
        self.unsynced.clear();
    }

    fn round(&mut self) {
        let name = self.name.clone();
        let kind = self.draw.below(5);
        let after = self.draw.below(400);
        match kind {
            // Power, or the process, goes after this number of writes.
            0..=2 => self.disk.crash_after(self.disk.operations() + after),
            3 => self.disk.fail(after, 1, io::ErrorKind::StorageFull),
            _ => {}
        }
        let opened = self.dir.append(&name, self.now_ns).and_then(|stream| {
            let other = self.dir.append(&"other".parse().unwrap(), self.now_ns)?;
            Ok((stream, other))
        });
        if let Ok((mut stream, mut other)) = opened {
            let appended = self.append_some(&mut stream, &mut other);
            if appended.is_ok() && stream.close(self.now_ns).is_ok() {
                self.synced.extend(self.unsynced.drain(..));
            }
        }
        self.disk.crash_after(u64::MAX);
        self.disk.fail(u64::MAX, 0, io::ErrorKind::Other);
        if kind < 2 {
            self.disk = self.disk.after_power_loss(self.draw.below(u64::MAX));
        }
        self.dir = StreamDir::simulated(Arc::new(self.disk.clone()), GEOMETRY).unwrap();
        self.verify();
    }
}

#[test]
fn what_is_too_old_goes_though_nothing_new_comes() {
    let disk = SimDisk::new();
    let dir = StreamDir::simulated(Arc::new(disk), GEOMETRY).unwrap();
    let name: StreamName = "events".parse().unwrap();
    let spec = StreamSpec {
        retention: Retention {
            bytes: None,
            age: Some(Duration::from_secs(60)),
        },
        form: Form::Sealed,
    };
    dir.create_stream(&name, &spec, 1).unwrap();
    let mut stream = dir.append(&name, 1).unwrap();
    let second_ns = 1_000_000_000;
    for at in 0..400 {
        stream.append(at * second_ns / 100, &[7; 1000]).unwrap();
    }
    stream.sync(4 * second_ns).unwrap();
    let count = || {
        let mut reader = dir.read(&name).unwrap();
        reader.read::<StreamError>(u64::MAX, |_| Ok(true)).unwrap()
    };
    assert_eq!(count(), 400);
    stream.expire(59 * second_ns).unwrap();
    assert_eq!(count(), 400, "nothing is a minute old");
    stream.expire(100 * second_ns).unwrap();
    let left = count();
    assert!((1..=66).contains(&left), "the last page stays: {left}");
}

#[test]
fn streams_survive_power_loss_kills_and_full_disks() {
    each_seed(|seed| {
        let mut run = Run::new(seed);
        for _ in 0..5 {
            run.round();
        }
    });
}

/// How a stream was left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Left {
    Closed,
    /// Its appender is still there, and has synced all.
    Open,
    Killed,
}

fn missing_after(reader: &mut StreamReader, max: u64) -> (u64, (u64, u64)) {
    reader.refresh().unwrap();
    let read = reader.read::<StreamError>(max, |_| Ok(true)).unwrap();
    (read, reader.unread().missing)
}

/// No later record tells of those that are lost at the end of a stream: its state does.
#[test]
fn the_newest_records_are_missed_though_none_comes_after_them() {
    const RECORDS: u64 = 1_000;
    const LOST: u64 = 10;
    let name: StreamName = "events".parse().unwrap();
    let linked = Form::Linked {
        redundancy: 3,
        block_bytes: None,
    };
    for (form, record_bytes) in [(Form::Sealed, 80), (linked, 88)] {
        for left in [Left::Closed, Left::Open, Left::Killed] {
            let disk = SimDisk::new();
            let dir = StreamDir::simulated(Arc::new(disk.clone()), GEOMETRY).unwrap();
            let spec = StreamSpec {
                retention: Retention {
                    bytes: None,
                    age: None,
                },
                form,
            };
            dir.create_stream(&name, &spec, 1).unwrap();
            let mut appender = dir.append(&name, 1).unwrap();
            for _ in 0..RECORDS {
                appender.append(1, &[7; 64]).unwrap();
            }
            appender.sync(1).unwrap();
            let end = appender.end();
            assert!(end.index > 0, "there are several pages");
            let (disk, dir, appender) = match left {
                Left::Closed => {
                    appender.close(1).unwrap();
                    (disk, dir, None)
                }
                Left::Open => (disk, dir, Some(appender)),
                Left::Killed => {
                    let disk = disk.after_kill();
                    let dir = StreamDir::simulated(Arc::new(disk.clone()), GEOMETRY).unwrap();
                    (disk, dir, None)
                }
            };
            let what = format!("{form:?} {left:?}");
            let mut whole = dir.read(&name).unwrap();
            let read = missing_after(&mut whole, u64::MAX);
            assert_eq!(read, (RECORDS, (0, 0)), "{what}");
            let at = end.index * u64::from(GEOMETRY.page_bytes) + u64::from(end.offset);
            let lost_bytes = LOST * record_bytes;
            let zeros = vec![0; usize::try_from(lost_bytes).unwrap()];
            let mut pages = disk.open("pages", true).unwrap();
            pages.write_at(&zeros, at - lost_bytes).unwrap();
            let mut reader = dir.read(&name).unwrap();
            let kept = RECORDS - LOST;
            let read = missing_after(&mut reader, u64::MAX);
            assert_eq!(read, (kept, (LOST, LOST)), "{what}");
            assert_eq!(reader.next_seq(), Some(RECORDS), "{what}");
            let again = missing_after(&mut reader, u64::MAX);
            assert_eq!(again, (0, (LOST, LOST)), "{what}: once");
            // Also for a reader of the last ones that asks for no more than there are.
            let mut last = dir.read(&name).unwrap();
            last.seek_last(5).unwrap();
            assert_eq!(missing_after(&mut last, 4), (4, (0, 0)), "{what}");
            assert_eq!(missing_after(&mut last, 1), (1, (LOST, LOST)), "{what}");
            // A later record does not count them again.
            let mut appender = appender.unwrap_or_else(|| dir.append(&name, 2).unwrap());
            appender.append(2, &[8; 64]).unwrap();
            appender.close(2).unwrap();
            let later = missing_after(&mut reader, u64::MAX);
            assert_eq!(later, (1, (LOST, LOST)), "{what}: a later record");
        }
    }
}

/// A reader that begins at the end misses nothing that was lost before it.
#[test]
fn what_was_lost_before_a_saved_cursor_is_not_counted_again() {
    let name: StreamName = "events".parse().unwrap();
    let disk = SimDisk::new();
    let dir = StreamDir::simulated(Arc::new(disk.clone()), GEOMETRY).unwrap();
    let spec = StreamSpec {
        retention: Retention {
            bytes: None,
            age: None,
        },
        form: Form::Sealed,
    };
    dir.create_stream(&name, &spec, 1).unwrap();
    let mut appender = dir.append(&name, 1).unwrap();
    (0..100).for_each(|_| appender.append(1, &[7; 64]).unwrap());
    let end = appender.end();
    appender.close(1).unwrap();
    disk.flip_bit("pages", usize::try_from(end.offset).unwrap() - 20, 3);
    let mut reader = dir.read(&name).unwrap();
    assert_eq!(missing_after(&mut reader, u64::MAX), (99, (1, 1)));
    let (cursor, next_seq) = (reader.cursor(), reader.next_seq());
    let mut later = dir.read(&name).unwrap();
    later.seek(cursor, next_seq);
    assert_eq!(missing_after(&mut later, u64::MAX), (0, (0, 0)));
    let mut appender = dir.append(&name, 2).unwrap();
    appender.append(2, &[8; 64]).unwrap();
    appender.close(2).unwrap();
    assert_eq!(missing_after(&mut later, u64::MAX), (1, (0, 0)));
}

/// Records of pages that are given up after the reader has looked how far the stream goes are expired, not missing.
#[test]
fn what_is_deleted_under_a_reader_is_not_missing() {
    let name: StreamName = "events".parse().unwrap();
    let linked = Form::Linked {
        redundancy: 3,
        block_bytes: None,
    };
    for form in [Form::Sealed, linked] {
        let disk = SimDisk::new();
        let dir = StreamDir::simulated(Arc::new(disk.clone()), GEOMETRY).unwrap();
        let spec = StreamSpec {
            retention: Retention {
                bytes: Some(8 << 16),
                age: None,
            },
            form,
        };
        dir.create_stream(&name, &spec, 1).unwrap();
        let mut appender = dir.append(&name, 1).unwrap();
        let mut append_until = |pages: u64| {
            while appender.end().index < pages {
                appender.append(1, &[7; 1000]).unwrap();
                appender.flush(1).unwrap();
            }
        };
        append_until(7);
        let mut reader = dir.read(&name).unwrap();
        let first = reader.read::<StreamError>(10, |_| Ok(true)).unwrap();
        assert_eq!(first, 10);
        append_until(11);
        // The reader knows pages 0 to 7; the first of them are gone.
        let read = reader.read::<StreamError>(u64::MAX, |_| Ok(true));
        let (read, unread) = (read.unwrap(), reader.unread());
        assert!(read > 0 && unread.expired > 0, "{form:?}: {unread:?}");
        assert_eq!(unread.missing, (0, 0), "{form:?}");
        let next_seq = reader.next_seq().unwrap();
        assert_eq!(first + read + unread.expired, next_seq, "{form:?}");
    }
}
