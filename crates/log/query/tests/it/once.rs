//! An export decodes each record once, reads each block once, and keeps one order across tiers.

use std::sync::Arc;

use strata_archive::compact;
use strata_blocks::{BlockSink, PacketRecord};
use strata_capture::{Input, InputOptions, Next};
use strata_query::{ExportOptions, Exported, FileFormat, Find, export};
use strata_store::{Disk, Log};
use strata_testkit_disk::SimDisk;
use strata_testkit_disk::small::{self, DEFINITIONS, about, start};
use strata_wire::{KeepKind, Ledger};

/// Writes a block with packets of these sequence numbers and times, kept whole.
fn write(sink: &mut BlockSink, packets: impl IntoIterator<Item = (u64, u64)>) {
    small::write(sink, |block| {
        for (seq, ts_ns) in packets {
            let packet = PacketRecord {
                wire_len: 600,
                captured_len: 600,
                keep: KeepKind::Full,
                data: &[7; 600],
                ..small::packet(seq, ts_ns)
            };
            block.push_packet(&packet, 0);
        }
    });
}

/// The result of an export, and the times of its packets.
fn exported(disk: &Arc<dyn Disk>) -> (Exported, Vec<u64>) {
    let log = Log::on(Arc::clone(disk)).unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let options = ExportOptions::default();
    let find = Find::default();
    let done = export(&log, &mut file, FileFormat::PcapNg, &find, options).unwrap();
    assert!(done.damage.is_empty(), "{:?}", done.damage);
    let mut input = Input::open(&[file.path().to_owned()], &InputOptions::default()).unwrap();
    let mut times = Vec::new();
    loop {
        match input.advance().unwrap() {
            Next::Packets => times.extend(input.batch().iter().map(|packet| packet.ts_ns)),
            Next::Meta(_) => {}
            Next::End => return (done, times),
        }
    }
}

#[test]
fn each_block_is_read_once_and_each_record_decoded_once() {
    const FILES: u64 = 200;
    const PACKETS: u64 = 40;
    let sim = SimDisk::new();
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let (recorder, mut sinks) = start(&disk, &about(), 64 << 10, 2);
    for file in 0..FILES / 2 {
        for (worker, sink) in (0..).zip(&mut sinks) {
            let seqs = file * PACKETS..(file + 1) * PACKETS;
            // One worker's blocks end in the middle of the other's.
            write(sink, seqs.map(|seq| (seq, 1_000 + seq * 10 + worker * 205)));
        }
    }
    drop(sinks);
    recorder.finish(&Ledger::default(), Vec::new()).unwrap();
    let before: Vec<(String, u64)> = {
        let log = Log::on(Arc::clone(&disk)).unwrap();
        let files = log.recordings()[0].files.iter();
        files.map(|file| (file.name.clone(), file.bytes)).collect()
    };
    assert_eq!(before.len() as u64, FILES);
    let (done, times) = exported(&disk);
    assert_eq!(done.packets, FILES * PACKETS);
    assert!(times.is_sorted());
    assert_eq!(done.decoded, FILES * (PACKETS + DEFINITIONS));
    for (name, bytes) in before {
        let read = sim.bytes_read(&name);
        assert!(read <= bytes, "{name}: {read} of {bytes} bytes");
    }
}

#[test]
fn what_one_worker_has_compacted_goes_between_what_another_has_not() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let (recorder, mut sinks) = start(&disk, &about(), 64 << 10, 2);
    // The other's only file is still being written.
    write(&mut sinks[1], [(0, 5), (1, 15)]);
    for seq in 0..4 {
        write(&mut sinks[0], [(seq, seq * 10)]);
    }
    let compacted = compact(&disk, |_| ()).unwrap();
    assert_eq!(compacted.files, 3);
    assert_eq!(exported(&disk).1, [0, 5, 10, 15, 20, 30]);
    drop(sinks);
    recorder.finish(&Ledger::default(), Vec::new()).unwrap();
    assert_eq!(exported(&disk).1, [0, 5, 10, 15, 20, 30]);
    compact(&disk, |_| ()).unwrap();
    assert_eq!(exported(&disk).1, [0, 5, 10, 15, 20, 30]);
}

/// A worker's packets keep their order when the clock was set back, compacted or not.
#[test]
fn one_worker_keeps_its_order_across_tiers() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let (recorder, mut sinks) = start(&disk, &about(), 64 << 10, 1);
    for (seq, ts_ns) in [(0, 100), (1, 110), (2, 50)] {
        write(&mut sinks[0], [(seq, ts_ns)]);
    }
    assert_eq!(exported(&disk).1, [100, 110, 50]);
    compact(&disk, |_| ()).unwrap();
    assert_eq!(exported(&disk).1, [100, 110, 50]);
    drop(sinks);
    recorder.finish(&Ledger::default(), Vec::new()).unwrap();
}
