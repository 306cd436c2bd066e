//! A full disk, at every single write, on a virtual disk and on small real ones: a recording
//! continues or ends as configured, and the log holds what was reported as written.
#![allow(clippy::print_stderr, reason = "says why it did not run")]

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use strata_blocks::{BlockBuilder, BlockSink, SinkError, Written};
use strata_store::{
    About, Disk, Log, RealDisk, Recorder, RecorderOptions, State, StoreError, WhenFull,
};
use strata_testkit::may_use_kernel;
use strata_testkit_disk::SimDisk;
use strata_wire::Ledger;

use crate::common::{empty, push, read};

const PACKETS: u64 = 1_000;

/// The outcome of a recording's packets.
#[derive(Debug, Default)]
struct Outcome {
    /// Packets reported as written.
    written: u64,
    /// Packets reported as dropped for lack of space, while recording continues.
    dropped: u64,
    /// Packets of blocks refused as recording ended.
    refused: u64,
    /// Why it ended before all packets were handed over.
    ended: Option<StoreError>,
    /// The result of closing it; `None` if it could not be started.
    finished: Option<Result<(), StoreError>>,
}

impl Outcome {
    fn note(&mut self, written: Written) {
        let packets = written.counters.packets;
        match written.outcome {
            Ok(()) => self.written += packets,
            Err(SinkError::Full { goes_on: true, .. }) => self.dropped += packets,
            Err(error) => {
                self.refused += packets;
                self.ended.get_or_insert(error.into());
            }
        }
    }
}

/// A file whose replacement is held ahead grows while the disk is full, as a manifest with many files does: each of the
/// two files that take turns has its own space.
#[test]
fn a_file_that_is_held_ahead_grows_on_a_full_disk() {
    if !may_use_kernel("a small disk") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let small = strata_testkit::Disk::new(dir.path(), "1M");
    let log = small.path().join("log");
    let disk = RealDisk::create_dir(&log).unwrap();
    let name = "manifest.json";
    let content = |len: usize| vec![b'x'; len];
    disk.replace(name, &content(3_000)).unwrap();
    disk.hold_ahead(name, 0).unwrap();
    // Grown before it is full.
    disk.replace(name, &content(20_000)).unwrap();
    let mut filler = File::create(small.path().join("filler")).unwrap();
    while filler.write_all(&[1; 4096]).is_ok() {}
    assert!(fs::write(small.path().join("more"), content(5_000)).is_err());
    for len in [20_500, 24_000, 30_000, 36_000, 48_000] {
        disk.replace(name, &content(len)).unwrap();
        assert_eq!(fs::read(log.join(name)).unwrap().len(), len);
    }
    // It may shrink, and grow again.
    for len in [9_000, 30_000, 31_000] {
        disk.replace(name, &content(len)).unwrap();
        assert_eq!(fs::read(log.join(name)).unwrap().len(), len);
    }
    disk.let_go();
    let left: Vec<_> = fs::read_dir(&log).unwrap().flatten().collect();
    assert!(
        left.iter()
            .all(|file| !file.file_name().to_string_lossy().ends_with(".spare"))
    );
    let about = fs::metadata(log.join(name)).unwrap();
    let blocks = std::os::unix::fs::MetadataExt::blocks(&about);
    assert!(blocks * 512 <= 32 << 10, "{blocks} blocks stay reserved");
}

fn options(when_full: WhenFull) -> RecorderOptions {
    RecorderOptions {
        block_bytes: 64 << 10,
        blocks: 4,
        // Many files, so that most writes are those around blocks.
        rotate_bytes: 150_000,
        checkpoint_interval: Duration::ZERO,
        when_full,
        full_retry: Duration::ZERO,
        ..RecorderOptions::default()
    }
}

/// Records all packets, as far as the disk allows, as a worker does. `look` is called for each
/// block handed over.
fn record(disk: Arc<dyn Disk>, options: RecorderOptions, mut look: impl FnMut(u64)) -> Outcome {
    let mut outcome = Outcome::default();
    let about = About {
        model_json: b"{}".to_vec(),
        hash_seed: [1, 2],
        ..About::default()
    };
    let (recorder, mut sink) = match Recorder::start(disk, options, &about) {
        Ok(started) => started,
        Err(error) => {
            outcome.ended = Some(error);
            return outcome;
        }
    };
    let mut blocks = 0;
    let mut next = |sink: &mut BlockSink, outcome: &mut Outcome| -> Box<BlockBuilder> {
        look(blocks);
        blocks += 1;
        while let Some(written) = sink.poll() {
            outcome.note(written);
        }
        empty(sink, |written| {
            outcome.note(written);
            Ok(())
        })
        .unwrap()
    };
    let mut handed_over = 0;
    let mut block = next(&mut sink, &mut outcome);
    for seq in 0..PACKETS {
        if block.room() < 4_096 {
            handed_over = seq;
            sink.submit(block).unwrap();
            block = next(&mut sink, &mut outcome);
            if outcome.ended.is_some() {
                break;
            }
        }
        push(&mut block, seq);
        let progress = sink.progress();
        progress.next_seq.store(seq + 1, Ordering::Relaxed);
        progress.seen_packets.store(seq + 1, Ordering::Relaxed);
    }
    if outcome.ended.is_none() {
        handed_over = PACKETS;
        sink.submit(block).unwrap();
    }
    while let Some(written) = sink.wait().unwrap() {
        outcome.note(written);
    }
    assert_eq!(
        outcome.written + outcome.dropped + outcome.refused,
        handed_over,
        "every packet is in one counter: {outcome:?}"
    );
    outcome.finished = Some(recorder.finish(&Ledger::default(), Vec::new()));
    outcome
}

/// Checks that the log holds what was reported, and lists no missing file.
fn check(disk: &Arc<dyn Disk>, outcome: &Outcome, all_is_cut: bool, what: &str) {
    let log = Log::on(Arc::clone(disk)).unwrap_or_else(|error| panic!("{what}: {error}"));
    let (packets, damaged) = read(&log);
    assert_eq!(damaged, 0, "{what}: {outcome:?}");
    assert_eq!(packets.len() as u64, outcome.written, "{what}: {outcome:?}");
    let recording = &log.recordings()[0];
    if matches!(outcome.finished, Some(Ok(()))) {
        assert_eq!(recording.state, State::Closed, "{what}: {outcome:?}");
        let noted: u64 = recording.files.iter().map(|file| file.packets).sum();
        let all_sealed = recording.files.iter().all(|file| file.sealed);
        // The file of a failed block, if it could not be cut either: readers do that.
        assert!(all_sealed || !all_is_cut, "{what}: {:?}", recording.files);
        assert!(noted == outcome.written || !all_sealed, "{what}: {noted}");
    }
    // Retries leave nothing behind: there is no trace of a file without blocks.
    assert!(recording.files.iter().all(|f| f.blocks > 0 || !f.sealed));
}

fn drops(outcome: &Outcome, what: &str) {
    assert!(outcome.ended.is_none(), "{what}: {outcome:?}");
    assert_eq!(outcome.written + outcome.dropped, PACKETS, "{what}");
}

fn stops(outcome: &Outcome, what: &str) {
    let ended_for_room = |error: &StoreError| match error {
        StoreError::DiskFull { goes_on: false, .. } => true,
        StoreError::Io { source, .. } => source.kind() == io::ErrorKind::StorageFull,
        _ => false,
    };
    if let Some(error) = &outcome.ended {
        assert!(ended_for_room(error), "{what}: {outcome:?}");
    } else {
        assert_eq!(outcome.written, PACKETS, "{what}: {outcome:?}");
    }
}

/// Each change of the disk in turn is the first to find no space: for once, for some changes, or
/// for good.
#[test]
fn whichever_write_finds_no_room_first_the_counters_are_right() {
    for in_flight in [1, 4] {
        let whole = SimDisk::new();
        whole.set_in_flight(in_flight);
        let outcome = record(Arc::new(whole.clone()), options(WhenFull::Drop), |_| ());
        assert_eq!(outcome.written, PACKETS, "{outcome:?}");
        let (mut recovered, mut cut_short) = (0, 0);
        for operation in 1..=whole.operations() {
            // For once, for some changes, or for good, in turn.
            let count = [1, 7, u64::MAX][usize::try_from(operation % 3).unwrap()];
            for when_full in [WhenFull::Drop, WhenFull::Stop] {
                let what = format!("{in_flight}: {operation}, {count} times, {when_full:?}");
                let disk = SimDisk::new();
                disk.set_in_flight(in_flight);
                disk.fail(operation, count, io::ErrorKind::StorageFull);
                let outcome = record(Arc::new(disk.clone()), options(when_full), |_| ());
                let Some(finished) = &outcome.finished else {
                    assert_eq!(outcome.written, 0);
                    continue;
                };
                match when_full {
                    WhenFull::Drop => drops(&outcome, &what),
                    WhenFull::Stop => stops(&outcome, &what),
                }
                // This disk reserves nothing: if the disk stays full, its counters stay open.
                assert!(finished.is_ok() || count > 1, "{what}: {outcome:?}");
                let disk: Arc<dyn Disk> = Arc::new(disk);
                check(&disk, &outcome, count == 1, &what);
                recovered += usize::from(outcome.dropped > 0 && outcome.written > PACKETS / 2);
                cut_short += usize::from(outcome.refused > 0);
            }
        }
        assert!(recovered > 10 && cut_short > 10, "{recovered} {cut_short}");
    }
}

/// Any other error ends the recording, with that error, whichever change fails.
#[test]
fn a_disk_with_errors_ends_it_clearly() {
    let whole = SimDisk::new();
    record(Arc::new(whole.clone()), options(WhenFull::Drop), |_| ());
    let mut ended = 0;
    for operation in 1..=whole.operations() {
        let disk = SimDisk::new();
        disk.fail(operation, u64::MAX, io::ErrorKind::InvalidData);
        let outcome = record(Arc::new(disk.clone()), options(WhenFull::Drop), |_| ());
        if disk.operations() < operation {
            // Fewer checkpoints were made this time.
            continue;
        }
        let why = outcome.ended.as_ref();
        let why = why.or(outcome.finished.as_ref().and_then(|f| f.as_ref().err()));
        assert!(
            matches!(why, Some(StoreError::Io { .. })),
            "operation {operation}: {outcome:?}"
        );
        assert_eq!(outcome.dropped, 0);
        ended += usize::from(outcome.refused > 0);
        if outcome.finished.is_some() {
            let log = Log::on(Arc::new(disk)).unwrap();
            assert_eq!(read(&log).0.len() as u64, outcome.written, "{operation}");
        }
    }
    assert!(ended > 10, "{ended}");
}

/// A small disk in memory, deleted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: &Path, options: &str) -> Self {
        fs::create_dir(path).unwrap();
        let disk = Self(path.to_owned());
        disk.run(&["-t", "tmpfs", "-o", options, "st-full"]);
        disk
    }

    fn resize(&self, options: &str) {
        self.run(&["-o", &format!("remount,{options}")]);
    }

    fn run(&self, arguments: &[&str]) {
        let mut mount = Command::new("mount");
        let status = mount.args(arguments).arg(&self.0).status();
        assert!(status.unwrap().success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Another program leaves some KiB of space before recording starts, and takes them during it.
#[test]
fn on_small_disks_with_any_space_left_the_accounts_are_closed() {
    if !may_use_kernel("mounting small disks") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (mut closed_when_full, mut complete) = (0, 0);
    for n in 0..120 {
        let when_full = [WhenFull::Drop, WhenFull::Stop][n % 2];
        // The recording takes about 700 KiB, in writes of 4 to 68 KiB.
        let kib = 64 + (n / 2) * 12;
        let disk = SmallDisk::mount(&dir.path().join(n.to_string()), &format!("size={kib}k"));
        let log = disk.0.join("log");
        let real: Arc<dyn Disk> = Arc::new(RealDisk::create_dir(&log).unwrap());
        let mut filler = None;
        let outcome = record(Arc::clone(&real), options(when_full), |block| {
            if block == 5 {
                // Takes the last byte, so that only the reserves are left.
                let mut file = File::create(disk.0.join("filler")).unwrap();
                while file.write_all(&[7; 4096]).is_ok() {}
                filler = Some(file);
            }
        });
        let what = format!("{kib} KiB, {when_full:?}");
        match when_full {
            WhenFull::Drop => drops(&outcome, &what),
            WhenFull::Stop => stops(&outcome, &what),
        }
        // The reserves are enough to close the counters.
        let finished = outcome.finished.as_ref().map(Result::is_ok);
        assert_eq!(finished, Some(true), "{what}: {outcome:?}");
        check(&real, &outcome, true, &what);
        assert!(!log.join("manifest.json.spare").exists());
        closed_when_full += usize::from(outcome.dropped + outcome.refused > 0);
        complete += usize::from(outcome.written == PACKETS);
    }
    assert!(
        closed_when_full > 80,
        "{closed_when_full}, {complete} complete"
    );
}

/// As above, with inodes instead of space; more become available after a while.
#[test]
fn without_inodes_it_goes_on_and_writes_again_when_there_are_some() {
    if !may_use_kernel("mounting small disks") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for inodes in 8..30 {
        let path = dir.path().join(inodes.to_string());
        let disk = SmallDisk::mount(&path, &format!("size=16m,nr_inodes={inodes}"));
        let log = disk.0.join("log");
        let real: Arc<dyn Disk> = Arc::new(RealDisk::create_dir(&log).unwrap());
        let mut with_more = false;
        let outcome = record(Arc::clone(&real), options(WhenFull::Drop), |block| {
            if block == 5 {
                disk.resize("nr_inodes=1000");
                with_more = true;
            }
        });
        let what = format!("{inodes} inodes");
        if outcome.finished.is_none() {
            assert!(inodes < 12, "{what}: {outcome:?}");
            continue;
        }
        assert!(with_more);
        drops(&outcome, &what);
        check(&real, &outcome, true, &what);
        assert!(outcome.written > PACKETS / 4, "{what}: {outcome:?}");
    }
}

/// While the disk is full, each retry leaves nothing behind.
#[test]
fn a_disk_that_stays_full_does_not_make_the_manifest_grow() {
    if !may_use_kernel("mounting small disks") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let disk = SmallDisk::mount(&dir.path().join("disk"), "size=300k");
    let real: Arc<dyn Disk> = Arc::new(RealDisk::create_dir(&disk.0.join("log")).unwrap());
    let outcome = record(Arc::clone(&real), options(WhenFull::Drop), |_| ());
    drops(&outcome, "full");
    assert!(outcome.dropped > PACKETS / 2, "{outcome:?}");
    let names = fs::read_dir(disk.0.join("log/blocks")).unwrap().count();
    let log = Log::on(real).unwrap();
    let files = &log.recordings()[0].files;
    // Each file, its index, and the checkpoint.
    assert!(files.len() < 5 && names <= 2 * files.len() + 1, "{names}");
}

#[test]
fn a_directory_that_is_removed_or_renamed_ends_it_and_nothing_is_written_elsewhere() {
    for (way, removed) in [("removed", true), ("renamed", false)] {
        let dir = tempfile::tempdir().unwrap();
        let (log, elsewhere) = (dir.path().join("log"), dir.path().join("elsewhere"));
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::create_dir(&log).unwrap());
        let outcome = record(disk, options(WhenFull::Drop), |block| {
            if block == 6 && removed {
                // As often as it takes: files are still being created.
                while fs::remove_dir_all(&log).is_err_and(|e| e.kind() != io::ErrorKind::NotFound) {
                }
            } else if block == 6 {
                fs::rename(&log, &elsewhere).unwrap();
                // As another recording would.
                fs::create_dir(&log).unwrap();
            }
        });
        assert!(
            matches!(&outcome.ended, Some(StoreError::Gone { dir }) if dir.contains("log")),
            "{way}: {outcome:?}"
        );
        assert!(matches!(
            outcome.finished,
            Some(Err(StoreError::Gone { .. }))
        ));
        assert_eq!(outcome.dropped, 0);
        assert_eq!(log.exists(), !removed, "{way}: it is not made again");
        if !removed {
            assert_eq!(fs::read_dir(&log).unwrap().count(), 0, "{way}");
            let found = read(&Log::open(&elsewhere).unwrap()).0.len() as u64;
            assert!(found >= outcome.written, "{way}: {found} {outcome:?}");
        }
    }
}

/// Even if nothing is handed over, it is noticed.
#[test]
fn a_directory_that_is_removed_in_a_quiet_hour_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::create_dir(&log).unwrap());
    let (recorder, mut sink) =
        Recorder::start(disk, options(WhenFull::Drop), &About::default()).unwrap();
    fs::remove_dir_all(&log).unwrap();
    let start = Instant::now();
    let heard = loop {
        if let Some(written) = sink.poll() {
            break written.outcome.map_err(StoreError::from);
        }
        assert!(start.elapsed() < Duration::from_secs(20), "not noticed");
        std::thread::yield_now();
    };
    assert!(matches!(heard, Err(StoreError::Gone { .. })), "{heard:?}");
    let ended = recorder.finish(&Ledger::default(), Vec::new());
    assert!(matches!(ended, Err(StoreError::Gone { .. })), "{ended:?}");
    assert!(!log.exists());
}
