//! What is left of a log after crashes and damage, on a virtual disk that drops unsynced data.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use strata_blocks::{BlockBuilder, PacketRecord, Trees, Written};
use strata_capture::{Input, InputOptions, Next};
use strata_store::{About, Disk, Log, Loss, Recorder, RecorderOptions, Select, State, StoreError};
use strata_testkit_disk::SimDisk;
use strata_wire::{Interface, KeepKind, Ledger, LinkType, Meta, mix64};

use crate::common::{content, empty, push, read, ts_ns};

const PACKETS: u64 = 3_000;

fn options(rotate_bytes: u64) -> RecorderOptions {
    RecorderOptions {
        block_bytes: 64 << 10,
        blocks: 2,
        rotate_bytes,
        // As often as possible, so that there is much to crash between.
        checkpoint_interval: Duration::ZERO,
        ..RecorderOptions::default()
    }
}

/// Records all packets, unless the disk fails first.
fn record(disk: &SimDisk, rotate_bytes: u64) -> Result<(), StoreError> {
    record_with(disk, options(rotate_bytes)).1
}

/// As [`record`]; also returns how many packets were reported as written.
fn record_with(disk: &SimDisk, options: RecorderOptions) -> (u64, Result<(), StoreError>) {
    let mut written = 0;
    let ended = try_record(disk, options, &mut written);
    (written, ended)
}

fn try_record(
    disk: &SimDisk,
    options: RecorderOptions,
    packets_written: &mut u64,
) -> Result<(), StoreError> {
    let mut note = |written: Written| {
        written.outcome?;
        *packets_written += written.counters.packets;
        Ok::<(), StoreError>(())
    };
    let about = About {
        model_json: b"{}".to_vec(),
        hash_seed: [1, 2],
        ..About::default()
    };
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let (recorder, mut sink) = Recorder::start(disk, options, &about)?;
    let mut block = empty(&mut sink, &mut note)?;
    for seq in 0..PACKETS {
        if block.room() < 4_096 {
            sink.submit(block)?;
            block = empty(&mut sink, &mut note)?;
        }
        push(&mut block, seq);
        sink.progress().next_seq.store(seq + 1, Ordering::Relaxed);
        sink.progress()
            .seen_packets
            .store(seq + 1, Ordering::Relaxed);
    }
    sink.submit(block)?;
    while let Some(written) = sink.wait()? {
        note(written)?;
    }
    recorder.finish(&Ledger::default(), Vec::new())
}

/// The checkpoint as a reader of the log finds it.
fn checkpoint(disk: &SimDisk) -> Option<strata_store::Checkpoint> {
    let file = disk
        .open(&strata_store::checkpoint_name(1, 0), false)
        .ok()?;
    let mut bytes = vec![0; 1024];
    let read = file.read_at(&mut bytes, 0).ok()?;
    strata_store::Checkpoint::latest(&bytes[..read])
}

#[test]
fn an_undisturbed_recording_reads_back_whole() {
    for rotate in [0, 300_000] {
        let disk = SimDisk::new();
        record(&disk, rotate).unwrap();
        let log = Log::on(Arc::new(disk.clone())).unwrap();
        let (packets, damaged) = read(&log);
        assert_eq!((packets.len() as u64, damaged), (PACKETS, 0));
        let recording = &log.recordings()[0];
        assert_eq!(recording.state, State::Closed);
        assert_eq!(recording.files.len() > 3, rotate > 0);
        assert!(recording.files.iter().all(|file| file.sealed));
        let with_index = recording.files.iter().map(|file| {
            let index = disk.open(&strata_store::index_name(&file.name), false);
            file.bytes + index.unwrap().size().unwrap()
        });
        let stated: u64 = with_index.sum();
        assert_eq!(log.stored_bytes(recording).unwrap(), stated);
        let counted: u64 = recording.files.iter().map(|file| file.packets).sum();
        assert_eq!(counted, PACKETS);
    }
}

#[test]
fn after_a_loss_of_power_nothing_durable_is_missing_and_the_rest_is_counted() {
    let whole = SimDisk::new();
    record(&whole, 300_000).unwrap();
    let operations = whole.operations();
    assert!(operations > 60, "{operations} operations");
    let (mut lossy, mut kept_some) = (0, 0);
    for crash in 0..=operations {
        let disk = SimDisk::new();
        disk.crash_after(crash);
        let outcome = record(&disk, 300_000);
        for seed in 0..4 {
            let left = disk.after_power_loss(seed * 1_000 + crash);
            let Ok(log) = Log::on(Arc::new(left.clone())) else {
                assert!(checkpoint(&left).is_none(), "a checkpoint but no manifest");
                continue;
            };
            let (packets, _) = read(&log);
            let Some(recording) = log.recordings().first() else {
                continue;
            };
            let found = packets.len() as u64;
            let last = packets.keys().next_back().map_or(0, |seq| seq + 1);
            kept_some += usize::from(found > 0);
            let noted = checkpoint(&left).unwrap_or_default();
            for seq in 0..noted.durable_seq {
                assert!(
                    packets.contains_key(&seq),
                    "crash {crash} seed {seed}: durable {seq}"
                );
            }
            if outcome.is_ok() {
                assert_eq!(found, PACKETS, "crash {crash} seed {seed}");
                continue;
            }
            let (ledger, loss) = log.accounting(recording).unwrap();
            if recording.state == State::Closed {
                assert!(ledger.is_some());
                continue;
            }
            let expected = Loss {
                packets: last.max(noted.next_seq) - found,
                checkpoint_ns: checkpoint(&left).map(|noted| match last {
                    0 => noted.time_ns,
                    last => ts_ns(last - 1),
                }),
                ..Loss::default()
            };
            assert_eq!(loss, expected, "crash {crash} seed {seed}");
            lossy += usize::from(loss.packets > 0);
        }
    }
    // The test would prove nothing if no crash did any harm.
    assert!(
        lossy > 20 && kept_some > 20,
        "{lossy} lossy, {kept_some} with packets"
    );
}

/// One write of several in flight fails, and those after it succeed: the log has exactly the
/// packets reported as written, without damage and without a gap.
#[test]
fn a_block_that_fails_takes_those_behind_it_along_and_none_before() {
    let with_several = || {
        let disk = SimDisk::new();
        disk.set_in_flight(4);
        disk
    };
    let options = RecorderOptions {
        blocks: 8,
        checkpoint_interval: Duration::from_secs(60),
        ..options(300_000)
    };
    let whole = with_several();
    assert!(record_with(&whole, options.clone()).1.is_ok());
    let mut cut_short = 0;
    for operation in 1..=whole.operations() {
        let disk = with_several();
        disk.fail_once(operation);
        let (written, ended) = record_with(&disk, options.clone());
        let Ok(log) = Log::on(Arc::new(disk.clone())) else {
            assert_eq!(written, 0);
            continue;
        };
        let (packets, damaged) = read(&log);
        assert_eq!(damaged, 0, "operation {operation}");
        // Blocks may have been written that the recorder had no time to report.
        assert!(packets.len() as u64 >= written, "operation {operation}");
        let last = packets.keys().next_back().map_or(0, |seq| seq + 1);
        assert_eq!(packets.len() as u64, last, "operation {operation}: a gap");
        if ended.is_ok() {
            assert_eq!((written, last), (PACKETS, PACKETS));
        }
        cut_short += usize::from(last < PACKETS && last > 0);
    }
    assert!(cut_short > 5, "{cut_short} recordings were cut short");
}

/// A worker that captures two interfaces takes some packets from one and then some from the other:
/// an export has them in order of time, each once.
#[test]
fn packets_of_several_interfaces_are_exported_in_the_order_of_their_times() {
    use strata_query::{ExportOptions, FileFormat, Find, export};
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let about = About {
        inputs: vec!["a".into(), "b".into()],
        live: true,
        ..About::default()
    };
    let (recorder, mut sinks) =
        Recorder::start_workers(Arc::clone(&disk), options(0), &about, 2).unwrap();
    let mut times = Vec::new();
    for (worker, sink) in (0..).zip(&mut sinks) {
        let mut next = [worker + 1; 2];
        let mut block = empty(sink, |written| Ok(written.outcome?)).unwrap();
        for seq in 0..400_u64 {
            // Runs of packets of either interface, which overlap in time.
            let interface = u16::try_from(mix64(seq / 7 + worker) % 2).unwrap();
            let ts_ns = &mut next[usize::from(interface)];
            *ts_ns += 2 * (mix64(seq * 31 + worker) % 50 + 1);
            times.push(*ts_ns);
            for id in 0..2 {
                if block.needs_interface(id) {
                    let meta = Meta::Interface {
                        id,
                        interface: Interface::new(LinkType::ETHERNET, 0),
                    };
                    block.push_meta(&meta);
                }
            }
            if block.needs_context() {
                block.define_context(b"{}");
            }
            if block.needs_verdict(0) {
                block.define_verdict(0, 0, Trees::None, 0, &[]);
            }
            let data = content(seq);
            let len = u32::try_from(data.len()).unwrap();
            let packet = PacketRecord {
                ts_ns: *ts_ns,
                seq,
                wire_len: len,
                captured_len: len,
                header_len: 0,
                interface,
                verdict: 0,
                keep: KeepKind::Full,
                has_timestamp: true,
                data: &data,
                options: &[],
            };
            block.push_packet(&packet, 0);
            if seq % 60 == 59 || seq == 399 {
                sink.submit(block).unwrap();
                block = empty(sink, |written| Ok(written.outcome?)).unwrap();
            }
        }
    }
    for mut sink in sinks {
        while sink.wait().unwrap().is_some() {}
    }
    recorder.finish(&Ledger::default(), Vec::new()).unwrap();
    let log = Log::on(disk).unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let done = export(
        &log,
        &mut file,
        FileFormat::PcapNg,
        &Find::default(),
        ExportOptions::default(),
    )
    .unwrap();
    assert_eq!((done.packets, done.damage.len()), (800, 0));
    let mut input = Input::open(&[file.path().to_owned()], &InputOptions::default()).unwrap();
    let mut found = Vec::new();
    loop {
        match input.advance().unwrap() {
            Next::End => break,
            Next::Meta(_) => {}
            Next::Packets => found.extend(input.batch().iter().map(|packet| packet.ts_ns)),
        }
    }
    assert!(!times.is_sorted());
    times.sort_unstable();
    assert_eq!(found, times);
}

/// A ring of files: the newest are there, and files deleted for them are not counted as loss.
#[test]
fn of_a_ring_of_files_the_last_are_kept_and_the_rest_is_accounted_for() {
    let disk = SimDisk::new();
    let options = RecorderOptions {
        files_max: 3,
        ..options(300_000)
    };
    let whole = SimDisk::new();
    record(&whole, 300_000).unwrap();
    let begun = Log::on(Arc::new(whole)).unwrap().recordings()[0]
        .files
        .len();
    let (written, ended) = record_with(&disk, options.clone());
    ended.unwrap();
    assert_eq!(written, PACKETS);
    let log = Log::on(Arc::new(disk.clone())).unwrap();
    let recording = &log.recordings()[0];
    assert_eq!(recording.files.len(), 3);
    let deleted = &recording.overwritten[0];
    assert_eq!(usize::try_from(deleted.files).unwrap(), begun - 3);
    let (packets, damaged) = read(&log);
    assert_eq!(packets.len() as u64 + deleted.packets, PACKETS);
    assert_eq!(
        (damaged, *packets.keys().next().unwrap()),
        (0, deleted.next_seq)
    );
    assert_eq!(*packets.keys().next_back().unwrap(), PACKETS - 1);
    let files = disk
        .names()
        .into_iter()
        .filter(|name| name.ends_with(".strata"));
    assert_eq!(files.count(), 3, "files that were deleted are gone");

    // After an abrupt end, files that the ring deleted are not counted as lost.
    for tenths in 5..9 {
        let cut = SimDisk::new();
        cut.crash_after(disk.operations() * tenths / 10);
        let _ = record_with(&cut, options.clone());
        let left = Log::on(Arc::new(cut.after_power_loss(tenths))).unwrap();
        let recording = &left.recordings()[0];
        let deleted: u64 = recording.overwritten.iter().map(|o| o.packets).sum();
        let found = read(&left).0.len() as u64;
        let (_, loss) = left.accounting(recording).unwrap();
        assert!(
            found + deleted + loss.packets <= PACKETS,
            "{loss:?}, {deleted} deleted"
        );
    }
}

#[test]
fn a_later_recording_joins_a_log_that_ended_abruptly() {
    let disk = SimDisk::new();
    disk.crash_after(20);
    assert!(record(&disk, 0).is_err());
    let left = disk.after_power_loss(1);
    let before = read(&Log::on(Arc::new(left.clone())).unwrap()).0.len();
    record(&left, 0).unwrap();
    let log = Log::on(Arc::new(left)).unwrap();
    assert_eq!(log.recordings().len(), 2);
    assert_eq!(log.recordings()[0].state, State::Running);
    let everything = Select::default();
    let packets = |id: usize| {
        let blocks = log.blocks(&log.recordings()[id], &everything).flatten();
        blocks
            .map(|block| u64::from(block.header.packets))
            .sum::<u64>()
    };
    assert_eq!(packets(0), before as u64);
    assert_eq!(packets(1), PACKETS);
}

#[test]
fn two_recordings_at_once_are_refused() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let about = About::default();
    let (first, sink) = Recorder::start(Arc::clone(&disk), options(0), &about).unwrap();
    let refused = Recorder::start(Arc::clone(&disk), options(0), &about);
    assert!(matches!(refused, Err(StoreError::Locked { .. })));
    drop(sink);
    first.finish(&Ledger::default(), Vec::new()).unwrap();
    assert!(Recorder::start(disk, options(0), &about).is_ok());
}

#[test]
fn every_flipped_bit_is_named_and_costs_one_block_at_most() {
    let disk = SimDisk::new();
    record(&disk, 0).unwrap();
    let log = Log::on(Arc::new(disk.clone())).unwrap();
    let file = log.recordings()[0].files[0].clone();
    let everything = Select::default();
    let blocks: Vec<_> = log
        .blocks(&log.recordings()[0], &everything)
        .flatten()
        .collect();
    let largest = blocks
        .iter()
        .map(|block| block.header.packets)
        .max()
        .unwrap();
    let mut silent = 0;
    for n in 0..400_u64 {
        let byte = usize::try_from(mix64(n) % file.bytes).unwrap();
        disk.flip_bit(&file.name, byte, u8::try_from(n % 8).unwrap());
        let (packets, damaged) = read(&log);
        let lost = PACKETS - packets.len() as u64;
        if damaged == 0 {
            // The padding between blocks holds nothing.
            assert_eq!(lost, 0, "byte {byte}");
            silent += 1;
        } else {
            assert!(
                lost > 0 && lost <= u64::from(largest),
                "byte {byte}: {lost} lost"
            );
            let damage = log
                .blocks(&log.recordings()[0], &everything)
                .find_map(Result::err);
            let text = damage.unwrap().to_string();
            assert!(
                text.contains(&file.name) && text.contains("offset"),
                "{text}"
            );
        }
        disk.flip_bit(&file.name, byte, u8::try_from(n % 8).unwrap());
    }
    assert!(silent < 100, "{silent} flips were not noticed");
    assert_eq!(read(&log).0.len() as u64, PACKETS);
}

/// A disk whose recording ended after its last block was written and synced, and before its file
/// was sealed. The number of changes this takes depends on how many checkpoints were made.
fn written_but_not_sealed() -> SimDisk {
    // Which change of the disk is the right one depends on the writer's clock: several rounds.
    for crash in (60..160).cycle().take(3_000) {
        let disk = SimDisk::new();
        disk.crash_after(crash);
        let ended = record(&disk, 0).is_err();
        // A power loss clears the simulated crash and drops unsynced data.
        let left = disk.after_power_loss(crash);
        let log = Log::on(Arc::new(left.clone())).unwrap();
        let unsealed = log.recordings()[0].files.iter().all(|file| !file.sealed);
        if ended && unsealed && read(&log).0.len() as u64 > PACKETS / 2 {
            return left;
        }
    }
    panic!("no crash leaves a file unsealed");
}

#[test]
fn a_complete_file_that_was_cut_is_damage_an_incomplete_one_is_a_torn_tail() {
    for complete in [true, false] {
        let disk = if complete {
            let disk = SimDisk::new();
            record(&disk, 0).unwrap();
            disk
        } else {
            written_but_not_sealed()
        };
        let log = Log::on(Arc::new(disk.clone())).unwrap();
        let recording = &log.recordings()[0];
        let name = recording.files[0].name.clone();
        assert_eq!(recording.files[0].sealed, complete);
        let mut file = disk.open(&name, true).unwrap();
        let whole = read(&log).0.len();
        // After the last readable block there may be a gap of lost blocks.
        let everything = Select::default();
        let blocks = log.blocks(recording, &everything);
        let ends = blocks.filter_map(Result::ok).map(|block| block.ends.0);
        file.set_len(ends.max().unwrap() - 200).unwrap();
        let (packets, damaged) = read(&log);
        assert!(packets.len() < whole && !packets.is_empty());
        assert_eq!(damaged > 0, complete);
    }
}

#[test]
fn blocks_are_found_by_time_and_address_without_reading_the_others() {
    use strata_wire::{AddressFamily, FlowHasher};
    let about = About {
        hash_seed: [5, 6],
        ..About::default()
    };
    let sim = SimDisk::new();
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let (recorder, mut sink) = Recorder::start(Arc::clone(&disk), options(0), &about).unwrap();
    let hasher = FlowHasher::new([5, 6]);
    for n in 0..10_u64 {
        let mut block = empty(&mut sink, |written| Ok(written.outcome?)).unwrap();
        push(&mut block, n);
        block.note(hasher.address(AddressFamily::Ipv4, n.into()));
        if n == 9 {
            block.push_meta(&Meta::Section {
                options: Vec::new(),
            });
        }
        sink.submit(block).unwrap();
    }
    while sink.wait().unwrap().is_some() {}
    recorder.finish(&Ledger::default(), Vec::new()).unwrap();
    let log = Log::on(Arc::clone(&disk)).unwrap();
    let found = |select: Select| -> Vec<u64> {
        let blocks = log
            .blocks(&log.recordings()[0], &select)
            .map(Result::unwrap);
        blocks.map(|block| block.header.block_number).collect()
    };
    // Block 9 holds metadata and is always read.
    let by_time = Select {
        from_ns: Some(ts_ns(3)),
        to_ns: Some(ts_ns(5)),
        ..Select::default()
    };
    assert_eq!(found(by_time), [3, 4, 9]);
    let by_address = Select {
        addresses: vec![vec![(AddressFamily::Ipv4, 7)]],
        ..Select::default()
    };
    assert_eq!(found(by_address.clone()), [7, 9]);
    let by_both = Select {
        addresses: vec![
            vec![(AddressFamily::Ipv4, 7)],
            vec![(AddressFamily::Ipv4, 8)],
        ],
        ..Select::default()
    };
    assert_eq!(found(by_both), [9]);
    // The index avoids reading the file, and nothing depends on it.
    let index = strata_store::index_name(&log.recordings()[0].files[0].name);
    let whole = disk.open(&index, false).unwrap().size().unwrap();
    for byte in 0..usize::try_from(whole).unwrap() {
        sim.flip_bit(&index, byte, 3);
        let blocks = found(by_address.clone());
        assert!(blocks.contains(&7) && blocks.contains(&9), "byte {byte}");
        let recording = &log.recordings()[0];
        let wrong =
            strata_store::verify_index(&sim, recording, &recording.files[0], &Default::default())
                .unwrap();
        assert!(wrong.is_some(), "byte {byte}");
        sim.flip_bit(&index, byte, 3);
    }
    disk.remove(&index).unwrap();
    assert_eq!(found(by_address), [7, 9]);
}

/// A crafted file: a header every 4 KiB, each of whose records would reach to the end of the file.
/// Looking inside each would take time quadratic in the file's size.
#[test]
fn nested_headers_are_passed_over_not_looked_into() {
    let disk = SimDisk::new();
    record(&disk, 0).unwrap();
    let log = Log::on(Arc::new(disk.clone())).unwrap();
    let name = log.recordings()[0].files[0].name.clone();
    let mut file = disk.open(&name, true).unwrap();
    let size = file.size().unwrap();
    let blocks = size / 4096;
    for n in 0..blocks {
        let header = strata_blocks::BlockHeader {
            recording: 1,
            body_len: u32::try_from(size - n * 4096 - 128).unwrap(),
            body_crc: 1,
            packets: 1,
            ..Default::default()
        };
        file.write_at(&header.emit(), n * 4096).unwrap();
    }
    let everything = Select {
        without_index: true,
        ..Select::default()
    };
    let found: Vec<_> = log.blocks(&log.recordings()[0], &everything).collect();
    assert!(found.len() <= 2, "{} places were looked at", found.len());
    assert!(found.iter().all(Result::is_err));
}

#[test]
fn a_block_that_is_used_again_and_again_stays_as_large() {
    let mut block = BlockBuilder::new(64 << 10);
    let mut seq = 0;
    for round in 0..60 {
        block.reset(seq);
        while block.room() > 4_096 {
            push(&mut block, seq);
            for n in 0..20 {
                block.note(mix64(seq * 100 + n));
            }
            seq += 1;
        }
        if round == 30 {
            // A record larger than the block.
            let options = vec![0; 1 << 20];
            block.push_meta(&Meta::Section { options });
        }
        let stored = block.seal(1, 0, round, [1, 2]).len();
        let most = if round == 30 {
            2 << 20
        } else {
            (64 << 10) + (300 << 10)
        };
        assert!(stored <= most, "round {round}: {stored} bytes");
    }
}

#[test]
fn a_file_that_was_deleted_is_named_and_the_others_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(strata_store::RealDisk::at(dir.path()));
    let (recorder, mut sink) =
        Recorder::start(Arc::clone(&disk), options(300_000), &About::default()).unwrap();
    let mut block = empty(&mut sink, |written| Ok(written.outcome?)).unwrap();
    for seq in 0..PACKETS {
        if block.room() < 4_096 {
            sink.submit(block).unwrap();
            block = empty(&mut sink, |written| Ok(written.outcome?)).unwrap();
        }
        push(&mut block, seq);
    }
    sink.submit(block).unwrap();
    while sink.wait().unwrap().is_some() {}
    recorder.finish(&Ledger::default(), Vec::new()).unwrap();
    let log = Log::on(disk).unwrap();
    let first = log.recordings()[0].files[0].clone();
    std::fs::remove_file(dir.path().join(&first.name)).unwrap();
    let (packets, damaged) = read(&log);
    assert_eq!(damaged, 1);
    assert_eq!(packets.len() as u64, PACKETS - first.packets);
    assert!(log.stored_bytes(&log.recordings()[0]).unwrap() > 0);
}
