//! The bytes of a log against the offsets in `docs/formats/block-file.md`, read without any of the
//! code that writes them.

use std::collections::HashMap;
use std::sync::Arc;

use strata_blocks::{PacketRecord, Promotion};
use strata_store::{About, Disk, Log, Recorder, RecorderOptions, checkpoint_name, index_name};
use strata_testkit_disk::SimDisk;
use strata_wire::{KeepKind, Ledger};

use crate::common;

const DOCS: &str = include_str!("../../../../../docs/formats/block-file.md");

/// Fields of the byte map that follows a line in the documentation: offset and size, by name.
fn map_after(line: &str) -> HashMap<&'static str, (usize, usize)> {
    let start = DOCS.find(line).expect(line) + line.len();
    let map = DOCS[start..].split("```").nth(1).unwrap();
    let mut fields = HashMap::new();
    for line in map.lines() {
        let mut words = line.split_whitespace();
        let Some(Ok(mut at)) = words.next().map(str::parse::<usize>) else {
            continue;
        };
        // More fields follow after bars.
        let rest = words.collect::<Vec<_>>().join(" ");
        for field in rest.split('|') {
            let words: Vec<&str> = field.split_whitespace().take(2).collect();
            let bytes = match words.get(1).copied() {
                Some("u8") => 1,
                Some("u16") => 2,
                Some("u32") => 4,
                Some("u64" | "\"STRATAB1\"") => 8,
                // `hash_seed 2 * u64`, `kind 1`.
                Some("2") => 16,
                Some("1" | "9" | "10" | "11") => 1,
                _ => continue,
            };
            let name = DOCS[start..].find(words[0]).unwrap() + start;
            fields.insert(&DOCS[name..name + words[0].len()], (at, bytes));
            at += bytes;
        }
    }
    fields
}

/// The little-endian number at an offset.
fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    let bytes = bytes[at..at + len].iter().rev();
    bytes.fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The log of one worker: a block of four packets, the second promoted in the next block; the last
/// has no time, so it is recorded in full.
fn log() -> (SimDisk, Log) {
    let sim = SimDisk::new();
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let about = About {
        hash_seed: [0x1122_3344_5566_7788, 0x99aa_bbcc_ddee_ff00],
        model_json: b"{}".to_vec(),
        ..About::default()
    };
    let options = RecorderOptions::default();
    let (recorder, mut sink) = Recorder::start(Arc::clone(&disk), options, &about).unwrap();
    for part in 0..2 {
        let mut block = common::empty(&mut sink, |_| Ok(())).unwrap();
        if part == 0 {
            for seq in 5..8 {
                common::push(&mut block, seq);
            }
            block.push_packet(&without_time(&common::content(8)), 0);
        } else {
            block.push_promotion(&Promotion {
                seq: 6,
                class: 3,
                keep: KeepKind::Header,
                kept_len: 40,
                wire_len: 77,
                verdict: Some(2),
                data: &[9; 60],
            });
        }
        sink.submit(block).unwrap();
        while sink.wait().unwrap().is_some() {}
    }
    drop(sink);
    recorder.finish(&Ledger::default(), Vec::new()).unwrap();
    let log = Log::on(disk).unwrap();
    (sim, log)
}

fn without_time(data: &[u8]) -> PacketRecord<'_> {
    PacketRecord {
        ts_ns: common::ts_ns(7),
        seq: 8,
        wire_len: 70_000,
        captured_len: u32::try_from(data.len()).unwrap(),
        header_len: 300,
        interface: 0,
        verdict: 0,
        keep: KeepKind::Full,
        has_timestamp: false,
        data,
        options: &[],
    }
}

fn content(sim: &SimDisk, name: &str) -> Vec<u8> {
    let file = sim.open(name, false).unwrap();
    let mut bytes = vec![0; usize::try_from(file.size().unwrap()).unwrap()];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

/// The records of the first block, and how many they are.
fn check_records(bytes: &[u8], summary_at: usize, packets: &[Vec<u8>]) -> u64 {
    // Records: kind u8 | flags u8 | reference u16 | length u32, and what follows.
    let full = map_after("A full packet, from the start of its record:");
    let compact = map_after("A compact packet, from the start of its record:");
    let (mut at, mut records, mut found, mut time) = (128, 0, 0, None);
    while at < summary_at {
        let mut len = 8 + usize::try_from(number(bytes, at + 4, 4)).unwrap();
        let data = &packets[found.min(3)];
        let of = |map: &HashMap<_, (usize, usize)>, name| {
            let (place, len) = map[name];
            number(bytes, at + place, len)
        };
        match bytes[at] {
            11 => time = Some(number(bytes, at + 8, 8)),
            10 => {
                let of = |name| of(&compact, name);
                let ts_ns = time.unwrap() + of("time");
                assert_eq!(ts_ns, common::ts_ns(5 + found as u64));
                assert_eq!(of("captured_len"), data.len() as u64);
                assert_eq!(
                    (of("verdict"), of("header_len"), of("interface")),
                    (0, 0, 0)
                );
                assert_eq!(of("flags"), 3, "whole, and without lengths");
                len = 12 + data.len();
                assert_eq!(&bytes[at + 12..at + len], &data[..]);
                found += 1;
            }
            1 => {
                let of = |name| of(&full, name);
                assert_eq!((found, of("seq")), (3, 8));
                assert_eq!(of("ts_ns"), common::ts_ns(7));
                assert_eq!(of("wire_len"), 70_000);
                assert_eq!(of("captured_len"), data.len() as u64);
                assert_eq!(
                    (of("verdict"), of("header_len"), of("interface")),
                    (0, 300, 0)
                );
                assert_eq!(of("flags"), 3 | 8);
                assert_eq!(&bytes[at + 32..at + len], &data[..]);
                found += 1;
            }
            _ => {}
        }
        records += 1;
        at += len;
    }
    assert_eq!((at, found), (summary_at, 4));
    records
}

#[test]
fn a_block_file_is_as_its_documentation_says() {
    let (sim, log) = log();
    let recording = &log.recordings()[0];
    let bytes = content(&sim, &recording.files[0].name);
    let fields = map_after("## Header");
    let field = |block: usize, name: &str| {
        let (at, len) = fields[name];
        number(&bytes, block + at, len)
    };
    assert_eq!(fields.len(), 21, "{fields:?}");
    let packets: Vec<Vec<u8>> = (5..9).map(common::content).collect();
    let kept: usize = packets.iter().map(Vec::len).sum();
    assert_eq!(&bytes[..8], b"STRATAB1");
    assert_eq!(
        field(0, "flags") & !16,
        0,
        "neither metadata nor promotions"
    );
    assert_eq!(field(0, "recording"), u64::from(recording.id));
    assert_eq!((field(0, "block_number"), field(0, "worker")), (0, 0));
    assert_eq!(field(0, "form"), 1, "with compact packets");
    assert_eq!((field(0, "first_seq"), field(0, "next_seq")), (5, 9));
    assert_eq!(
        (field(0, "ts_min_ns"), field(0, "ts_max_ns")),
        (common::ts_ns(5), common::ts_ns(7))
    );
    assert_eq!((field(0, "packets"), field(0, "classes")), (4, 1));
    let wire_bytes = (kept - packets[3].len()) as u64 + 70_000;
    assert_eq!(field(0, "wire_bytes"), wire_bytes);
    assert_eq!(field(0, "logged_bytes"), kept as u64);
    let (seed_at, _) = fields["hash_seed"];
    assert_eq!(number(&bytes, seed_at, 8), 0x1122_3344_5566_7788);
    assert_eq!(number(&bytes, seed_at + 8, 8), 0x99aa_bbcc_ddee_ff00);
    // The ranges the checksums cover.
    let len = |block, name| usize::try_from(field(block, name)).unwrap();
    let (body_len, summary_len) = (len(0, "body_len"), len(0, "summary_len"));
    let summary_at = 128 + body_len;
    let crc = |part: &[u8]| u64::from(crc32c::crc32c(part));
    assert_eq!(field(0, "header_crc"), crc(&bytes[12..128]));
    assert_eq!(field(0, "body_crc"), crc(&bytes[128..summary_at]));
    let summary = &bytes[summary_at..summary_at + summary_len];
    assert_eq!(field(0, "summary_crc"), crc(summary));
    // counts u16 | filter u16 | bloom_len u32, then 24 bytes for each.
    assert_eq!((number(summary, 0, 2), number(summary, 2, 2)), (1, 1));
    assert_eq!(number(summary, 4, 4), (summary_len - 8 - 24) as u64);
    assert_eq!(
        &summary[8..12],
        [0, 3, 0, 0],
        "class, granularity, reserved"
    );
    assert_eq!(number(summary, 12, 4), 4);
    assert_eq!(number(summary, 16, 8), wire_bytes);
    assert_eq!(number(summary, 24, 8), kept as u64);

    let records = check_records(&bytes, summary_at, &packets);
    assert_eq!(field(0, "records"), records);
    assert_eq!(records, 8, "context, interface, verdict, time, packets");

    // The promotion, in the next block, which starts at a multiple of 4,096.
    let second = (summary_at + summary_len).next_multiple_of(4_096);
    assert!(
        bytes[summary_at + summary_len..second]
            .iter()
            .all(|byte| *byte == 0)
    );
    assert_eq!(
        (field(second, "flags") & 8, field(second, "packets")),
        (8, 0)
    );
    assert_eq!(field(second, "block_number"), 1);
    let promotion = &bytes[second + 128..];
    assert_eq!(
        &promotion[..4],
        [9, 1, 3, 1],
        "kind, granularity before, class, flags"
    );
    assert_eq!(number(promotion, 4, 4), 26 - 8 + 60);
    assert_eq!((number(promotion, 8, 8), number(promotion, 16, 4)), (6, 40));
    assert_eq!(
        (number(promotion, 20, 4), number(promotion, 24, 2)),
        (77, 2)
    );
    assert_eq!(&promotion[26..86], [9; 60]);
}

#[test]
fn index_and_checkpoint_are_as_their_byte_maps_say() {
    let (sim, log) = log();
    let recording = &log.recordings()[0];
    let file = &recording.files[0];
    let blocks = content(&sim, &file.name);
    let index = content(&sim, &index_name(&file.name));
    // Of two blocks in one group and slice: counts and filters | headers (128 each)
    // | of each block: length of its filter u32, CRC-32C of its counts u32 | blocks u32, slices u32
    // | length u32, CRC-32C u32 | magic "STRATAI2" | blocks u64 | groups u32 | slices u32 | CRC u32
    let footer = index.len() - 28;
    let end = footer - 8 - 8 - 2 * 8 - 2 * 128;
    assert_eq!(&index[footer..footer + 8], b"STRATAI2");
    assert_eq!(number(&index, footer + 8, 8), 2);
    assert_eq!(
        (
            number(&index, footer + 16, 4),
            number(&index, footer + 20, 4)
        ),
        (1, 1)
    );
    let crc = u64::from(crc32c::crc32c(&index[end..footer + 24]));
    assert_eq!(number(&index, footer + 24, 4), crc);
    let (listed, group) = (end + 2 * 128, end + 2 * 128 + 2 * 8);
    assert_eq!(
        (number(&index, group, 4), number(&index, group + 4, 4)),
        (2, 1)
    );
    let (mut counts, mut filters, mut at) = (Vec::new(), Vec::new(), 0);
    for n in 0..2 {
        assert_eq!(index[end + 128 * n..][..128], blocks[at..at + 128]);
        let body_len = usize::try_from(number(&blocks, at + 24, 4)).unwrap();
        let summary_len = usize::try_from(number(&blocks, at + 28, 4)).unwrap();
        let summary = &blocks[at + 128 + body_len..][..summary_len];
        let filter_len = number(summary, 4, 4);
        let (count, filter) = summary.split_at(summary_len - usize::try_from(filter_len).unwrap());
        assert_eq!(number(&index, listed + 8 * n, 4), filter_len);
        let crc = u64::from(crc32c::crc32c(count));
        assert_eq!(number(&index, listed + 8 * n + 4, 4), crc);
        counts.extend_from_slice(count);
        filters.extend_from_slice(filter);
        at += (128 + body_len + summary_len).next_multiple_of(4096);
    }
    assert_eq!(index[..end], [&counts[..], &filters].concat());
    assert_eq!(number(&index, group + 8, 4), filters.len() as u64);
    let crc = u64::from(crc32c::crc32c(&filters));
    assert_eq!(number(&index, group + 12, 4), crc);
    // magic "STRATACP" | crc u32 of bytes 16..64 | reserved u32 | six u64
    let checkpoint = content(&sim, &checkpoint_name(recording.id, 0));
    let slots: Vec<&[u8]> = checkpoint.chunks(512).collect();
    let written = slots.iter().filter(|slot| &slot[..8] == b"STRATACP");
    let last = written.max_by_key(|slot| number(slot, 16, 8)).unwrap();
    assert_eq!(number(last, 8, 4), u64::from(crc32c::crc32c(&last[16..64])));
    assert_eq!(number(last, 12, 4), 0);
    assert!(
        number(last, 24, 8) > 1_000_000_000_000_000_000,
        "ns since 1970"
    );
    assert_eq!(number(last, 40, 8), 9, "all are durable");
    assert!(last[64..].iter().all(|byte| *byte == 0));
}
