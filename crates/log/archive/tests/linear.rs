//! Work on a log grows linearly with its files.
//!
//! A binary of its own: its allocator counts.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail loudly too")]

#[allow(dead_code, reason = "`it` uses the rest")]
#[path = "it/common/mod.rs"]
mod common;

use std::sync::Arc;

use strata_archive::{Retention, compact, prune, verify};
use strata_blocks::Promotion;
use strata_store::{About, Disk, Log};
use strata_testkit::{CountingAllocator, allocations};
use strata_testkit_disk::SimDisk;
use strata_testkit_disk::small::{about, packet, start, write};
use strata_wire::{KeepKind, Ledger};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const HOUR: u64 = 3_600_000_000_000;

/// A log of this many files, half from each worker, with 8 packets each.
fn log_of(files: u64) -> Arc<dyn Disk> {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let (recorder, mut sinks) = start(&disk, &about(), 16 << 10, 2);
    for file in 0..files / 2 {
        for sink in &mut sinks {
            write(sink, |block| {
                for seq in file * 8..(file + 1) * 8 {
                    block.push_packet(&packet(seq, HOUR + seq * 1_000), 0);
                }
            });
        }
    }
    drop(sinks);
    recorder.finish(&Ledger::default(), Vec::new()).unwrap();
    disk
}

/// Allocations made by `work` on a log of this many files.
fn taken(files: u64, work: impl FnOnce(&Arc<dyn Disk>)) -> u64 {
    let disk = log_of(files);
    let log = Log::on(Arc::clone(&disk)).unwrap();
    assert_eq!(log.recordings()[0].files.len() as u64, files);
    drop(log);
    let before = allocations();
    work(&disk);
    allocations() - before
}

/// Four times as many files take about four times as much: a copy of the manifest for each file
/// would take sixteen times as much.
#[test]
fn four_times_the_files_take_four_times_the_work() {
    type Work = fn(&Arc<dyn Disk>);
    let works: [(&str, Work); 3] = [
        ("verify", |disk| {
            let log = Log::on(Arc::clone(disk)).unwrap();
            assert!(verify(&log, None).unwrap().damage.is_empty());
        }),
        ("prune", |disk| {
            let retention = Retention {
                keep_ns: Some(HOUR),
                ..Retention::default()
            };
            let pruned = prune(disk, &retention, 3 * HOUR, true).unwrap();
            assert!(pruned.block_files > 0);
        }),
        ("compact", |disk| {
            assert!(compact(disk, |_| ()).unwrap().files > 0);
        }),
    ];
    for (name, work) in works {
        let [few, many] = [50, 200].map(|files| taken(files, work));
        assert!(few > 0 && many < few * 6, "{name}: {few} and {many}");
    }
}

/// The bytes of a packet kept as a header may be in any later file of the recording.
#[test]
fn a_packet_is_compacted_whole_when_it_was_promoted_in_a_later_file() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let about = About {
        look_back: true,
        ..about()
    };
    let (recorder, mut sinks) = start(&disk, &about, 16 << 10, 2);
    for seq in 0..3 {
        write(&mut sinks[0], |block| {
            block.push_packet(&packet(seq, HOUR + seq), 0);
        });
    }
    for seq in 0..2 {
        write(&mut sinks[0], |block| {
            block.push_promotion(&Promotion {
                seq,
                class: 0,
                keep: KeepKind::Header,
                kept_len: 14,
                wire_len: 60,
                verdict: None,
                data: &[8; 60],
            });
        });
    }
    drop(sinks);
    recorder.finish(&Ledger::default(), Vec::new()).unwrap();
    let lengths = || {
        let log = Log::on(Arc::clone(&disk)).unwrap();
        let (capture, _) = common::exported(&log, &strata_query::Find::default());
        let packets = capture.packets.iter();
        packets.map(|packet| packet.3.len()).collect::<Vec<_>>()
    };
    assert_eq!(lengths(), [60, 60, 14]);
    compact(&disk, |_| ()).unwrap();
    assert_eq!(lengths(), [60, 60, 14]);
}
