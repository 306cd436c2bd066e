//! What age deletes, and what it does not: files being written, damaged ones, and those without
//! packets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use strata_archive::{
    ArchiveError, PROTECTED, PruneOptions, Pruned, Retention, compact, make_room, prune, prune_as,
    verify,
};
use strata_blocks::{BlockSink, ClassCount, Promotion};
use strata_store::{
    About, Disk, Log, Recorder, RelayLog, RemovedBy, RemovedFor, Select, StreamOptions, index_name,
};
use strata_testkit::data_dir;
use strata_testkit_disk::SimDisk;
use strata_testkit_disk::small::{self, about, packet, write};
use strata_wire::{KeepKind, Ledger};

use crate::common;

const DAY: u64 = 86_400_000_000_000;
/// When packets arrive: long ago.
const THEN: u64 = 1_000 * DAY;

/// The only sink of a recording whose files hold a block each.
fn start(disk: &Arc<dyn Disk>, about: &About) -> (Recorder, BlockSink) {
    let (recorder, mut sinks) = small::start(disk, about, 64 << 10, 1);
    (recorder, sinks.pop().unwrap())
}

/// A block with one packet; on disk on return.
fn one_packet(sink: &mut BlockSink, seq: u64, ts_ns: u64) {
    write(sink, |block| block.push_packet(&packet(seq, ts_ns), 0));
}

fn log_of(disk: &Arc<dyn Disk>) -> Log {
    Log::on(Arc::clone(disk)).unwrap()
}

fn keep(keep_ns: u64) -> Retention {
    Retention {
        keep_ns: Some(keep_ns),
        ..Retention::default()
    }
}

fn pruned_after(disk: &Arc<dyn Disk>, age_ns: u64, keep_ns: u64) -> Pruned {
    prune(disk, &keep(keep_ns), THEN + age_ns, false).unwrap()
}

#[test]
fn a_file_that_is_being_written_stays_until_it_is_complete() {
    let sim = SimDisk::new();
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let (recorder, mut sink) = start(&disk, &about());
    for seq in 0..3 {
        one_packet(&mut sink, seq, THEN + seq);
    }
    let complete = {
        let log = log_of(&disk);
        let files = log.recordings()[0].files.iter();
        files.filter(|file| file.sealed).count() as u64
    };
    assert_eq!(complete, 2, "and one that is being written");
    let pruned = pruned_after(&disk, 2 * DAY, DAY);
    assert_eq!((pruned.block_files, pruned.being_written), (2, 1));
    let none = pruned_after(&disk, DAY / 2, DAY);
    assert_eq!((none.block_files, none.being_written), (0, 0));
    drop(sink);
    recorder.finish(&Ledger::default(), Vec::new()).unwrap();
    let pruned = pruned_after(&disk, 2 * DAY, DAY);
    assert_eq!((pruned.block_files, pruned.being_written), (1, 0));
    let left = sim.names();
    let blocks = left
        .iter()
        .filter(|name| name.ends_with(".strata") || name.ends_with(".index"));
    assert_eq!(blocks.count(), 0, "{left:?}");
}

#[test]
fn each_recording_of_a_relay_is_being_written_while_the_relay_runs() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let relay = RelayLog::open(Arc::clone(&disk)).unwrap();
    let stream = |session: &str| {
        relay.stream(&StreamOptions {
            about: about(),
            session: session.to_owned(),
            worker: 0,
            rotate_bytes: 0,
        })
    };
    let streams = [stream("one").unwrap(), stream("two").unwrap()];
    let being_written = || {
        let log = log_of(&disk);
        let being_written = log.being_written();
        log.recordings()
            .iter()
            .filter(|&one| being_written(one))
            .count()
    };
    assert_eq!(being_written(), 2, "not the last alone");
    drop((streams, relay));
    assert_eq!(being_written(), 0);
}

#[test]
fn a_file_without_a_packet_that_can_be_read_is_as_old_as_the_one_before() {
    let sim = SimDisk::new();
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let about = About {
        look_back: true,
        ..about()
    };
    let (recorder, mut sink) = start(&disk, &about);
    one_packet(&mut sink, 0, THEN);
    let promotion = Promotion {
        seq: 0,
        class: 0,
        keep: KeepKind::Header,
        kept_len: 14,
        wire_len: 60,
        verdict: None,
        data: &[7; 60],
    };
    write(&mut sink, |block| block.push_promotion(&promotion));
    one_packet(&mut sink, 1, THEN + DAY);
    drop(sink);
    recorder.finish(&Ledger::default(), Vec::new()).unwrap();
    let names: Vec<String> = {
        let log = log_of(&disk);
        let files = log.recordings()[0].files.iter();
        files.map(|file| file.name.clone()).collect()
    };
    assert_eq!(names.len(), 3);
    // The header of the last file's block; its copy in the index would do as well.
    sim.flip_bit(&names[2], 30, 1);
    assert_eq!(pruned_after(&disk, DAY, DAY).block_files, 0);
    let would = prune(&disk, &keep(DAY), THEN + DAY + 1, true).unwrap();
    assert_eq!(would.block_files, 2);
    disk.remove(&index_name(&names[2])).unwrap();
    assert_eq!(pruned_after(&disk, DAY + 1, DAY).block_files, 3);
}

#[test]
fn what_a_policy_protects_goes_by_its_own_age_alone() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let path = data_dir().join("labelled/cic2017-sqli/trace.pcap");
    common::record_protected(&disk, &path, "tcp port 80");
    let mut retention = keep(DAY);
    let prune = |retention: &Retention| prune(&disk, retention, u64::MAX, false).unwrap();
    let pruned = prune(&retention);
    assert_eq!(
        (pruned.block_files, pruned.split),
        (0, 1),
        "it holds some of it"
    );
    assert_eq!(prune(&retention).packets, 0);
    let left = |disk| log_of(disk).archive().parts.clone();
    let classes: Vec<String> = left(&disk).into_iter().map(|part| part.retention).collect();
    assert_eq!(classes, [PROTECTED]);
    retention.keep_class_ns.insert(PROTECTED.to_owned(), DAY);
    assert_eq!(prune(&retention).parts, 1);
    assert_eq!(left(&disk), []);
}

/// Packets by recording, class and granularity: packets, bytes on the wire, bytes kept.
type Amounts = BTreeMap<(u32, u8, u8), [u64; 3]>;

fn add(amounts: &mut Amounts, recording: u32, counts: &[ClassCount]) {
    for count in counts {
        let key = (recording, count.class, count.keep.code());
        let sum = amounts.entry(key).or_default();
        let of = [count.packets, count.wire_bytes, count.logged_bytes];
        sum.iter_mut().zip(of).for_each(|(sum, of)| *sum += of);
    }
}

/// What is in the log, by what its tiers say, and what was deleted of it.
fn balance(disk: &Arc<dyn Disk>) -> (Amounts, Amounts) {
    let log = log_of(disk);
    let (mut there, mut gone) = (Amounts::new(), Amounts::new());
    for part in &log.archive().parts {
        add(&mut there, part.recording, &part.counts);
    }
    for recording in log.recordings() {
        for block in log.blocks(recording, &Select::default()) {
            add(&mut there, recording.id, &block.unwrap().summary.counts);
        }
    }
    for removed in &log.archive().removed {
        add(&mut gone, removed.recording, &removed.counts);
    }
    (there, gone)
}

/// Bytes of the files of a disk whose names are wanted.
fn bytes_of(sim: &SimDisk, wanted: impl Fn(&str) -> bool) -> u64 {
    let names = sim.names();
    let names = names.iter().filter(|name| wanted(name));
    names
        .map(|name| sim.open(name, false).unwrap().size().unwrap())
        .sum()
}

#[test]
fn a_size_is_that_of_all_files_and_some_are_never_deleted() {
    let is_fixed = |name: &str| {
        let of_packets = ["packets/", "flows/", "payload/", "meta/", "sums/"];
        let of_blocks = name.ends_with(".strata") || name.ends_with(".index");
        !of_blocks && !of_packets.iter().any(|dir| name.starts_with(dir))
    };
    for compacts in [false, true] {
        let sim = SimDisk::new();
        let disk: Arc<dyn Disk> = Arc::new(sim.clone());
        let path = data_dir().join("labelled/mix-test/trace.pcap");
        for mode in ["default", "log-all"] {
            assert!(common::record(
                &disk,
                &path,
                &common::model(),
                mode,
                900_000
            ));
        }
        if compacts {
            compact(&disk, |_| ()).unwrap();
        }
        let prune_to = |bytes_max, dry_run| {
            let retention = Retention {
                bytes_max: Some(bytes_max),
                ..Retention::default()
            };
            prune(&disk, &retention, 0, dry_run).unwrap()
        };
        let all = bytes_of(&sim, |_| true);
        // To the byte: one less, and something goes.
        assert_eq!(prune_to(all, false), prune_to(all, true));
        let whole = prune_to(all, false);
        assert_eq!((whole.parts, whole.block_files), (0, 0));
        assert_eq!(whole.bytes_left, all);
        assert!(!whole.still_too_large);
        let less = prune_to(all - 1, false);
        assert!(less.parts + less.block_files > 0 && !less.still_too_large);
        assert!(less.bytes_left < all);
        assert_eq!(less.bytes_left, bytes_of(&sim, |_| true));
        // A limit below what is never deleted cannot be kept.
        let fixed = bytes_of(&sim, is_fixed);
        assert_eq!(less.fixed_bytes, fixed);
        let least = prune_to(fixed / 2, false);
        assert!(least.still_too_large && least.bytes_left > least.fixed_bytes);
        assert_eq!(least.bytes_left, bytes_of(&sim, |_| true));
        assert_eq!(least.fixed_bytes, bytes_of(&sim, is_fixed));
    }
}

/// Whatever deletes, in whatever order: each packet is in the log, or among what was deleted, by
/// recording, class and granularity; and the reasons are those that applied.
#[test]
fn what_is_deleted_and_what_is_left_come_to_what_was_recorded() {
    let sim = SimDisk::new();
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let path = data_dir().join("labelled/mix-test/trace.pcap");
    let record = |mode| {
        assert!(common::record(
            &disk,
            &path,
            &common::model(),
            mode,
            900_000
        ));
    };
    record("default");
    common::record_protected(&disk, &path, "udp port 53");
    record("log-all");
    let (all, gone) = balance(&disk);
    assert_eq!(gone, Amounts::new());
    let closes = |what: &str| {
        let (mut sum, gone) = balance(&disk);
        for (key, of) in gone {
            let into = sum.entry(key).or_default();
            into.iter_mut().zip(of).for_each(|(sum, of)| *sum += of);
        }
        assert_eq!(sum, all, "{what}");
    };
    let bytes = |disk: &Arc<dyn Disk>| {
        let log = log_of(disk);
        let each = log.recordings().iter();
        each.map(|one| log.stored_bytes(one).unwrap()).sum::<u64>()
    };
    let size = |bytes_max| Retention {
        bytes_max: Some(bytes_max),
        ..Retention::default()
    };
    // By hand, to a size; a dry run changes nothing.
    let fixed = bytes_of(&sim, |_| true) - bytes(&disk);
    let most = bytes(&disk) / 2 + fixed;
    prune(&disk, &size(most), 0, true).unwrap();
    let pruned = prune(&disk, &size(most), 0, false).unwrap();
    assert!(
        pruned.block_files > 0 && pruned.bytes_left <= most,
        "{pruned:?}"
    );
    assert_eq!(bytes_of(&sim, |_| true), pruned.bytes_left);
    closes("size");
    // A recording makes room: whole block files, and all but what is protected of one.
    let room = make_room(&disk, u64::MAX).unwrap();
    assert!(room.block_files > 0 && room.split == 1, "{room:?}");
    closes("room");
    compact(&disk, |_| ()).unwrap();
    closes("compaction");
    // Compaction's own retention, of one class.
    let mut retention = Retention::default();
    retention.keep_class_ns.insert("benign".to_owned(), DAY);
    let options = PruneOptions {
        now_ns: u64::MAX,
        dry_run: false,
        by: RemovedBy::Compact,
        may_take_most: true,
    };
    assert!(prune_as(&disk, &retention, &options).unwrap().parts > 0);
    closes("age");
    retention = keep(DAY);
    retention.keep_class_ns.insert(PROTECTED.to_owned(), DAY);
    prune(&disk, &retention, u64::MAX, false).unwrap();
    closes("everything");
    let (there, _) = balance(&disk);
    assert_eq!(there, Amounts::new());
    let log = log_of(&disk);
    let whys = log.archive().removed.iter();
    let whys: BTreeSet<_> = whys.map(|removed| (removed.reason, removed.by)).collect();
    let expected = [
        (RemovedFor::Age, RemovedBy::Prune),
        (RemovedFor::Age, RemovedBy::Compact),
        (RemovedFor::Size, RemovedBy::Prune),
        (RemovedFor::Room, RemovedBy::Record),
    ];
    assert_eq!(whys, BTreeSet::from(expected));
}

/// Age is not believed if it takes most of a log whose newest packet is old by this clock.
#[test]
fn a_clock_that_is_far_ahead_deletes_little_without_consent() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let (recorder, mut sink) = start(&disk, &about());
    for number in 0..4 {
        one_packet(&mut sink, number, THEN + number * DAY);
    }
    drop(sink);
    recorder.finish(&Ledger::default(), Vec::new()).unwrap();
    let newest = THEN + 3 * DAY;
    let prune = |now_ns, may_take_most| {
        let options = PruneOptions {
            now_ns,
            dry_run: false,
            by: RemovedBy::Prune,
            may_take_most,
        };
        prune_as(&disk, &keep(2 * DAY), &options)
    };
    let refused = prune(newest + 30 * DAY, false).unwrap_err();
    let text = refused.to_string();
    assert!(
        text.contains("720 hours") && text.contains("--yes"),
        "{text}"
    );
    // Two files of four are too old, and the newest is of today.
    assert_eq!(prune(newest + 1, false).unwrap().block_files, 2);
    // A day later with nothing recorded since: half of what is left.
    assert_eq!(prune(newest + DAY + 1, false).unwrap().block_files, 1);
    assert!(matches!(
        prune(newest + 2 * DAY + 1, false),
        Err(ArchiveError::MostWouldGo(_))
    ));
    assert_eq!(prune(newest + 2 * DAY + 1, true).unwrap().block_files, 1);
}

/// A block file whose definitions never reached the disk: its packets have neither class nor link
/// type. `verify` says so, and compaction leaves the file as it is.
#[test]
fn packets_without_definitions_are_said_and_not_compacted() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let (recorder, mut sink) = start(&disk, &about());
    one_packet(&mut sink, 0, THEN);
    let mut block = loop {
        match sink.take() {
            Some(block) => break block,
            None => drop(sink.wait().unwrap()),
        }
    };
    for seq in 1..4 {
        block.push_packet(&packet(seq, THEN + seq), 0);
    }
    sink.submit(block).unwrap();
    while sink.wait().unwrap().is_some() {}
    drop(sink);
    recorder.finish(&Ledger::default(), Vec::new()).unwrap();
    let found = verify(&log_of(&disk), None).unwrap();
    let text = found.damage[0].to_string();
    let says = "3 packets from here on refer to interface 0 and verdict 0";
    assert!(found.damage.len() == 1 && text.contains(says), "{text}");
    let done = compact(&disk, |_| ()).unwrap();
    assert_eq!((done.files, done.packets), (1, 1));
    assert!(done.damage[0].problem.contains(says), "{:?}", done.damage);
    let log = log_of(&disk);
    assert_eq!(log.recordings()[0].files.len(), 1, "it stays");
    let parts = log.archive().parts.iter();
    assert_eq!(parts.map(|part| part.packets).sum::<u64>(), 1);
}

/// If the model cannot be read, nothing is known to be ordinary: block files stay block files, and
/// of two recordings the one with the readable model is deleted first to free space.
#[test]
fn what_may_be_evidence_is_kept_where_the_model_cannot_be_read() {
    let sim = SimDisk::new();
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    for recording in 0..2 {
        let (recorder, mut sink) = start(&disk, &about());
        for seq in 0..3 {
            one_packet(&mut sink, seq, THEN + recording * DAY + seq);
        }
        drop(sink);
        recorder.finish(&Ledger::default(), Vec::new()).unwrap();
        if recording == 0 {
            compact(&disk, |_| ()).unwrap();
        }
    }
    let models: Vec<String> = log_of(&disk)
        .recordings()
        .iter()
        .map(|one| one.model_file.clone())
        .collect();
    let whole = about().model_json;
    for broken in [&b"{"[..], b"{}", br#"{"classes":[{"name":"benign"}]}"#] {
        disk.replace(&models[1], broken).unwrap();
        let done = compact(&disk, |_| ()).unwrap();
        assert_eq!((done.files, done.unknown_models.len()), (0, 1));
        assert!(done.unknown_models[0].file.contains(&models[1]));
        assert!(done.unknown_models[0].problem.contains("cannot be read"));
    }
    disk.replace(&models[1], &whole).unwrap();
    assert_eq!(compact(&disk, |_| ()).unwrap().files, 3);
    // The older part would be ordinary, but for its model.
    disk.replace(&models[0], b"{").unwrap();
    let third = THEN + 2 * DAY;
    let (recorder, mut sink) = start(&disk, &about());
    one_packet(&mut sink, 0, third);
    drop(sink);
    recorder.finish(&Ledger::default(), Vec::new()).unwrap();
    let retention = Retention {
        bytes_max: Some(bytes_of(&sim, |_| true) - 1),
        ..Retention::default()
    };
    let pruned = prune(&disk, &retention, third, false).unwrap();
    assert_eq!((pruned.parts, pruned.unknown_models.len()), (1, 1));
    let left = log_of(&disk);
    let parts: Vec<u32> = left
        .archive()
        .parts
        .iter()
        .map(|part| part.recording)
        .collect();
    assert_eq!(parts, [left.recordings()[0].id]);
}
