//! Searching by index: the same blocks as by looking into the summary of every block, whatever the
//! index looks like.

use std::collections::BTreeMap;
use std::sync::Arc;

use strata_blocks::{HEADER_LEN, Summary};
use strata_store::{
    About, BlockFile, Disk, Log, Recorder, RecorderOptions, Select, index_name, verify_index,
};
use strata_testkit_disk::SimDisk;
use strata_wire::{AddressFamily, FlowHasher, Ledger, Meta, mix64};

use crate::common::{empty, push, read, ts_ns};

/// More than two groups.
const BLOCKS: u64 = 300;
const SEED: [u64; 2] = [5, 6];

/// The addresses that a block notes: from none to more than its filter has room for.
fn addresses_of(block: u64) -> impl Iterator<Item = u64> {
    let count = match block % 10 {
        0 => 0,
        1 if block == 151 => 1 << 16,
        n => n * n * 40,
    };
    (0..count).map(move |n| mix64(block << 32 | n) >> 48)
}

fn record(disk: &SimDisk, rotate_bytes: u64) {
    let about = About {
        model_json: b"{}".to_vec(),
        hash_seed: SEED,
        ..About::default()
    };
    let options = RecorderOptions {
        block_bytes: 64 << 10,
        rotate_bytes,
        ..RecorderOptions::default()
    };
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let (recorder, mut sink) = Recorder::start(disk, options, &about).unwrap();
    let hasher = FlowHasher::new(SEED);
    for n in 0..BLOCKS {
        let mut block = empty(&mut sink, |written| Ok(written.outcome?)).unwrap();
        push(&mut block, n);
        for address in addresses_of(n) {
            block.note(hasher.address(AddressFamily::Ipv4, address.into()));
        }
        if n == 77 {
            block.push_meta(&Meta::Section {
                options: Vec::new(),
            });
        }
        sink.submit(block).unwrap();
    }
    while sink.wait().unwrap().is_some() {}
    recorder.finish(&Ledger::default(), Vec::new()).unwrap();
}

fn log(disk: &SimDisk) -> Log {
    Log::on(Arc::new(disk.clone())).unwrap()
}

/// Numbers of the blocks that a search returns.
fn found(log: &Log, select: &Select) -> Vec<u64> {
    let blocks = log.blocks(&log.recordings()[0], select);
    blocks.map(|b| b.unwrap().header.block_number).collect()
}

/// The same from every block's own header and summary, one by one.
fn expected(log: &Log, select: &Select) -> Vec<u64> {
    let everything = Select {
        without_index: true,
        ..Select::default()
    };
    let blocks = log.blocks(&log.recordings()[0], &everything);
    let blocks = blocks
        .map(Result::unwrap)
        .filter(|block| select.may_match(&block.header, |key| block.summary.may_hold(key)));
    blocks.map(|block| block.header.block_number).collect()
}

fn host(address: u64) -> Vec<(AddressFamily, u128)> {
    vec![(AddressFamily::Ipv4, address.into())]
}

/// Searches for addresses that are there, and for some that are not, by time as well.
fn searches() -> Vec<Select> {
    let there = [12, 59, 88, 151, 299].map(|block| addresses_of(block).next().unwrap());
    let mut searches: Vec<Select> = (0..60)
        .map(|n| 70_000 + n * 977)
        .chain(there)
        .map(|address| Select {
            addresses: vec![host(address)],
            ..Select::default()
        })
        .collect();
    searches.push(Select {
        addresses: vec![host(there[1]), host(there[2])],
        ..Select::default()
    });
    searches.push(Select {
        addresses: vec![(0..2_000).flat_map(host).collect()],
        from_ns: Some(ts_ns(140)),
        to_ns: Some(ts_ns(260)),
        ..Select::default()
    });
    searches
}

/// Ranges of numbers divide what a search finds, with an index and without one.
#[test]
fn blocks_are_read_in_pieces() {
    let disk = SimDisk::default();
    record(&disk, 1 << 30);
    let log = log(&disk);
    let files = &log.recordings()[0].files;
    assert_eq!(files.len(), 1);
    for select in searches().iter().chain([&Select::default()]) {
        let whole = found(&log, select);
        for without_index in [false, true] {
            let pieces = (0..BLOCKS).step_by(16).flat_map(|start| {
                let numbers = start..start + 16;
                let first = usize::try_from(start).unwrap();
                let of_piece = Select {
                    numbers: Some(first..first + 16),
                    without_index,
                    ..select.clone()
                };
                let found = found(&log, &of_piece);
                assert!(
                    without_index || found.iter().all(|n| numbers.contains(n)),
                    "{found:?}"
                );
                found
            });
            let pieces: Vec<u64> = pieces.collect();
            let same = if without_index {
                expected(&log, select)
            } else {
                whole.clone()
            };
            assert_eq!(pieces, same);
        }
    }
}

fn bytes(disk: &dyn Disk, name: &str) -> Vec<u8> {
    let file = disk.open(name, false).unwrap();
    let mut bytes = vec![0; usize::try_from(file.size().unwrap()).unwrap()];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// The index of a file as older versions wrote it, by `docs/formats/block-file.md`.
fn older_index(disk: &SimDisk, log: &Log, file: &BlockFile) -> Vec<u8> {
    let content = bytes(disk, &file.name);
    let (mut summaries, mut headers) = (Vec::new(), Vec::new());
    for block in log.blocks(&log.recordings()[0], &Select::default()) {
        let block = block.unwrap();
        let at = usize::try_from(block.offset).unwrap();
        let start = at + HEADER_LEN + block.header.body_len as usize;
        let end = start + block.header.summary_len as usize;
        Summary::parse(&content[start..end]).unwrap();
        summaries.extend_from_slice(&content[start..end]);
        headers.extend_from_slice(&content[at..at + HEADER_LEN]);
    }
    let footer = [
        &b"STRATAI1"[..],
        &file.blocks.to_le_bytes(),
        &crc32c::crc32c(&headers).to_le_bytes(),
    ];
    [&summaries[..], &headers, &footer.concat()].concat()
}

#[test]
fn every_form_of_index_and_none_find_the_same_blocks() {
    let disk = SimDisk::new();
    record(&disk, 0);
    let log = log(&disk);
    let file = &log.recordings()[0].files[0];
    let index = index_name(&file.name);
    let searches = searches();
    let naive: Vec<_> = searches.iter().map(|s| expected(&log, s)).collect();
    let counts: Vec<usize> = naive.iter().map(Vec::len).collect();
    assert!(counts.contains(&2), "the blocks always read: {counts:?}");
    assert!(counts.iter().any(|&n| n > 20), "{counts:?}");
    let with_index = |form: &str| {
        for (select, naive) in searches.iter().zip(&naive) {
            assert_eq!(&found(&log, select), naive, "{form}");
        }
    };
    with_index("slices");
    disk.replace(&index, &older_index(&disk, &log, file))
        .unwrap();
    assert_eq!(
        verify_index(&disk, &log.recordings()[0], file, &BTreeMap::new()).unwrap(),
        None
    );
    with_index("summaries");
    disk.remove(&index).unwrap();
    with_index("no index");
}

#[test]
fn files_of_few_blocks_find_the_same_too() {
    let disk = SimDisk::new();
    record(&disk, 300_000);
    let log = log(&disk);
    assert!(log.recordings()[0].files.len() > 5);
    for select in searches() {
        assert_eq!(found(&log, &select), expected(&log, &select));
    }
    assert_eq!(read(&log).0.len() as u64, BLOCKS);
}

/// Wherever an index is damaged, a search finds what it finds without, perhaps with more blocks, and
/// the damage is reported.
#[test]
fn a_damaged_index_hides_nothing() {
    let disk = SimDisk::new();
    record(&disk, 0);
    let log = log(&disk);
    let recording = &log.recordings()[0];
    let file = &recording.files[0];
    let index = index_name(&file.name);
    let len = bytes(&disk, &index).len();
    let searches = searches().split_off(58);
    let naive: Vec<_> = searches.iter().map(|s| expected(&log, s)).collect();
    // Of the end, every byte of the footer; of the rest, some.
    for byte in (0..len).step_by(len / 150).chain(len - 28..len) {
        disk.flip_bit(&index, byte, 5);
        for (select, naive) in searches.iter().zip(&naive) {
            let found = found(&log, select);
            let all = naive.iter().all(|block| found.contains(block));
            assert!(all, "byte {byte} of {len}: {naive:?} in {found:?}");
        }
        let wrong = verify_index(&disk, recording, file, &BTreeMap::new()).unwrap();
        let wrong = wrong.unwrap_or_else(|| panic!("byte {byte} of {len}"));
        assert!(!wrong.is_torn, "byte {byte} of {len}");
        disk.flip_bit(&index, byte, 5);
    }
    let whole = bytes(&disk, &index);
    for len in (0..len).step_by(len / 40) {
        disk.replace(&index, &whole[..len]).unwrap();
        for (select, naive) in searches.iter().zip(&naive) {
            assert_eq!(&found(&log, select), naive, "cut to {len} bytes");
        }
    }
    // Sectors that never reached the disk.
    disk.replace(&index, &vec![0; len]).unwrap();
    let wrong = verify_index(&disk, recording, file, &BTreeMap::new()).unwrap();
    assert!(wrong.unwrap().is_torn);
    // Another log's index of the same name.
    let other = SimDisk::new();
    record(&other, 900_000);
    let name = index_name(&self::log(&other).recordings()[0].files[0].name);
    disk.replace(&index, &bytes(&other, &name)).unwrap();
    for (select, naive) in searches.iter().zip(&naive) {
        assert_eq!(&found(&log, select), naive);
    }
}

/// A search for one address reads a slice of each group in addition to the headers, and few blocks
/// that do not hold it.
#[test]
fn a_search_reads_little() {
    let disk = SimDisk::new();
    record(&disk, 0);
    let log = log(&disk);
    let index = index_name(&log.recordings()[0].files[0].name);
    let headers = BLOCKS * (HEADER_LEN as u64 + 16) + 4096;
    let filters = bytes(&disk, &index).len() as u64 - headers;
    let before = disk.bytes_read(&index);
    let select = Select {
        addresses: vec![host(80_001)],
        ..Select::default()
    };
    let blocks = found(&log, &select).len();
    let read = disk.bytes_read(&index) - before;
    assert!(
        read <= headers + filters / 2,
        "{read} bytes; headers have {headers}, filters {filters}"
    );
    assert!(blocks < 40, "{blocks}");
}
