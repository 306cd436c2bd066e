//! What age deletes, and what it does not: files being written, damaged ones, and those without
//! packets.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail loudly too")]

mod common;

use std::sync::Arc;

use strata_archive::{PROTECTED, Pruned, Retention, compact, prune};
use strata_blocks::{BlockSink, Promotion};
use strata_store::{About, Disk, Log, Recorder, RelayLog, StreamOptions, index_name};
use strata_testkit::data_dir;
use strata_testkit_disk::SimDisk;
use strata_testkit_disk::small::{self, about, packet, write};
use strata_wire::{KeepKind, Ledger};

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
    assert_eq!(prune(&retention).block_files, 0, "it may hold some of it");
    compact(&disk, |_| ()).unwrap();
    prune(&retention);
    let left = |disk| log_of(disk).archive().parts.clone();
    let classes: Vec<String> = left(&disk).into_iter().map(|part| part.retention).collect();
    assert_eq!(classes, [PROTECTED]);
    retention.keep_class_ns.insert(PROTECTED.to_owned(), DAY);
    assert_eq!(prune(&retention).parts, 1);
    assert_eq!(left(&disk), []);
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
    let bytes: u64 = log_of(&disk)
        .archive()
        .parts
        .iter()
        .map(|part| part.bytes())
        .sum();
    let third = THEN + 2 * DAY;
    let (recorder, mut sink) = start(&disk, &about());
    one_packet(&mut sink, 0, third);
    drop(sink);
    recorder.finish(&Ledger::default(), Vec::new()).unwrap();
    let newest = log_of(&disk)
        .file_bytes(&log_of(&disk).recordings()[2].files[0])
        .unwrap();
    let retention = Retention {
        bytes_max: Some(newest + bytes - 1),
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
