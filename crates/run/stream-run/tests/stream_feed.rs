//! A stream as the output of a role: what it takes is in the stream, what it does not is counted, and
//! a producer that does not choose to wait never does.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::io;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use strata_stream::{Cursor, Form, Geometry, Retention, StreamName};
use strata_stream_run::{FeedWarning, StreamDir, StreamError, StreamFeed, StreamSpec, WhenFull};
use strata_testkit::{Disk, may_use_kernel};
use strata_testkit_disk::SimDisk;

const GEOMETRY: Geometry = Geometry {
    directory_bytes: 64,
    table_bytes: 4096,
    page_bytes: 1 << 16,
};
/// What should be so is so by then, even while other tests use the CPU.
const PATIENCE: Duration = Duration::from_secs(60);

fn name() -> StreamName {
    "events".parse().unwrap()
}

fn stream(disk: &SimDisk) -> StreamDir {
    stream_of(disk, Form::Sealed)
}

fn stream_of(disk: &SimDisk, form: Form) -> StreamDir {
    let dir = StreamDir::simulated(Arc::new(disk.clone()), GEOMETRY).unwrap();
    let spec = StreamSpec {
        retention: Retention::default(),
        form,
    };
    dir.create_stream(&name(), &spec, 1).unwrap();
    dir
}

fn quiet() -> FeedWarning {
    Box::new(|_| ())
}

fn all(dir: &StreamDir) -> Vec<u64> {
    let mut reader = dir.read(&name()).unwrap();
    reader.seek(Cursor::START, None);
    let mut numbers = Vec::new();
    reader
        .read::<StreamError>(u64::MAX, |entry| {
            numbers.push(u64::from_le_bytes(*entry.payload.first_chunk().unwrap()));
            Ok(true)
        })
        .unwrap();
    numbers
}

/// Whatever fails, at whichever change of the disk: what is counted as kept is what is read.
#[test]
fn what_is_there_after_a_failure_is_counted() {
    for (form, records_max) in [
        (Form::Sealed, 2000),
        (
            Form::Linked {
                redundancy: 3,
                block_bytes: Some(1 << 14),
            },
            2000,
        ),
    ] {
        for after in 0..150 {
            let disk = SimDisk::new();
            disk.set_in_flight(1 + after % 5);
            let dir = stream_of(&disk, form);
            let mut appender = dir.append(&name(), 1).unwrap();
            disk.fail(after as u64, u64::MAX, io::ErrorKind::StorageFull);
            for number in 0..records_max {
                if appender.append(1, &record(number)).is_err() {
                    break;
                }
                if number % 100 == 99 && appender.flush(1).is_err() {
                    break;
                }
            }
            let kept = appender.kept();
            drop(appender);
            let there = all(&dir).len() as u64;
            assert_eq!(there, kept, "{form:?}, {after}");
            assert!(after < 100 || there > 0);
        }
    }
}

#[test]
fn a_small_disk_has_what_is_counted_as_written() {
    if !may_use_kernel("a small disk") {
        return;
    }
    let folder = tempfile::TempDir::new().unwrap();
    let disk = Disk::new(folder.path(), "24M");
    let dir = StreamDir::create(&disk.path().join("streams"), None).unwrap();
    let spec = StreamSpec {
        retention: Retention::default(),
        form: Form::Sealed,
    };
    dir.create_stream(&name(), &spec, 1).unwrap();
    let (told, tells) = mpsc::channel();
    let warn: FeedWarning = Box::new(move |text| drop(told.send(text.to_owned())));
    let mut feed = StreamFeed::open(dir.clone(), &name(), WhenFull::Lose, warn, || ()).unwrap();
    // More than the disk holds, as fast as the queue takes them.
    let start = Instant::now();
    let (mut offered, mut taken) = (0, 0);
    while taken < 40_000 {
        assert!(start.elapsed() < PATIENCE);
        taken += u64::from(feed.put(&record(offered)).unwrap());
        offered += 1;
    }
    let counts = feed.finish().unwrap();
    let warning = tells.recv().unwrap();
    assert!(warning.contains("records are lost until"), "{warning}");
    assert_eq!(counts.written + counts.lost, offered);
    let there = all(&dir).len() as u64;
    assert_eq!(there, counts.written, "{counts:?}");
    // All pages but that of the directory's files are full.
    assert!(there > 16_000, "{there}");
}

/// A record of 1,000 bytes with a number.
fn record(number: u64) -> Vec<u8> {
    let mut record = vec![7; 1000];
    record[..8].copy_from_slice(&number.to_le_bytes());
    record
}

#[test]
fn what_is_given_is_there_in_order() {
    let disk = SimDisk::new();
    let dir = stream(&disk);
    // More than the queue holds.
    let mut feed = StreamFeed::open(dir.clone(), &name(), WhenFull::Wait, quiet(), || ()).unwrap();
    for number in 0..20_000 {
        assert!(feed.put(&record(number)).unwrap());
    }
    // Longer than its pages: not taken, and counted.
    assert!(!feed.put(&vec![0; 1 << 17]).unwrap());
    let counts = feed.finish().unwrap();
    assert_eq!((counts.written, counts.lost), (20_000, 1));
    assert_eq!(all(&dir), Vec::from_iter(0..20_000));
}

#[test]
fn who_follows_is_woken_by_what_is_appended() {
    let folder = tempfile::TempDir::new().unwrap();
    let dir = StreamDir::create(&folder.path().join("streams"), Some(GEOMETRY)).unwrap();
    let spec = StreamSpec {
        retention: Retention::default(),
        form: Form::Sealed,
    };
    dir.create_stream(&name(), &spec, 1).unwrap();
    let mut appender = dir.append(&name(), 1).unwrap();
    let mut reader = dir.read(&name()).unwrap();
    let (seen, sees) = mpsc::channel();
    let following = thread::spawn(move || {
        let mut count = 0;
        while count < 200 {
            count += reader.read::<StreamError>(u64::MAX, |_| Ok(true)).unwrap();
            seen.send(count).unwrap();
            // A test cannot wait that long to see that polling works.
            reader.wait(Duration::from_secs(3600));
            reader.refresh().unwrap();
        }
    });
    for number in 0..200 {
        appender.append(1, &record(number)).unwrap();
        appender.flush(1).unwrap();
        // Each one before the next comes, so that every one has to wake.
        let start = Instant::now();
        while sees.recv_timeout(PATIENCE).unwrap() <= number {
            assert!(start.elapsed() < PATIENCE);
        }
    }
    // The last wait.
    appender.close(2).unwrap();
    following.join().unwrap();
}

#[test]
fn who_waits_is_told_of_a_full_disk() {
    let disk = SimDisk::new();
    let dir = stream(&disk);
    let mut feed = StreamFeed::open(dir.clone(), &name(), WhenFull::Wait, quiet(), || ()).unwrap();
    disk.fail(30, u64::MAX, io::ErrorKind::StorageFull);
    let failed = (0..100_000).find_map(|number| feed.put(&record(number)).err());
    let said = failed.unwrap().to_string();
    assert!(said.contains("pages"), "{said}");
}

#[test]
fn who_does_not_wait_loses_what_a_full_disk_cannot_take_and_goes_on_after_it() {
    let disk = SimDisk::new();
    let dir = stream(&disk);
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let said = Arc::clone(&warnings);
    let warn: FeedWarning = Box::new(move |text| said.lock().unwrap().push(text.to_owned()));
    let mut feed = StreamFeed::open(dir.clone(), &name(), WhenFull::Lose, warn, || ()).unwrap();
    disk.fail(30, u64::MAX, io::ErrorKind::StorageFull);
    let start = Instant::now();
    let mut offered = 0;
    let mut offer = |feed: &mut StreamFeed, until: &dyn Fn() -> bool| {
        while !until() {
            assert!(start.elapsed() < PATIENCE, "{:?}", warnings.lock().unwrap());
            feed.put(&record(offered)).unwrap();
            offered += 1;
            thread::yield_now();
        }
    };
    offer(&mut feed, &|| !warnings.lock().unwrap().is_empty());
    disk.fail(u64::MAX, 0, io::ErrorKind::Other);
    offer(&mut feed, &|| warnings.lock().unwrap().len() > 1);
    // What waits may fill the queue for a while yet.
    while !feed.put(&record(offered)).unwrap() {
        assert!(start.elapsed() < PATIENCE);
        offered += 1;
        thread::yield_now();
    }
    let counts = feed.finish().unwrap();
    assert_eq!(counts.written + counts.lost, offered + 1);
    assert!(counts.lost > 0, "{counts:?}");
    let there = all(&dir);
    assert!(there.is_sorted_by(|a, b| a < b));
    assert_eq!(there.last(), Some(&offered));
    assert_eq!(there.len() as u64, counts.written, "{counts:?}");
    let warnings = warnings.lock().unwrap();
    assert!(
        warnings[0].contains("records are lost until"),
        "{warnings:?}"
    );
    assert_eq!(warnings[1], "written again");
}
