//! Files in which payload looks like the heads of blocks and records: whose packets are captured
//! chooses it. Compared with readers that go from head to head and do nothing else.

use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use strata_capture::InputOptions;

use crate::common::{Reading, file, read_all};

/// Reads with a thread of its own, whose windows are looked through ahead.
fn read_ahead(path: &Path) -> Reading {
    let mut options = InputOptions::default();
    options.window_bytes = 1 << 20;
    options.read_ahead = true;
    read_all(&[path.to_owned()], &options)
}

fn word(number: u32, big: bool) -> [u8; 4] {
    match big {
        true => number.to_be_bytes(),
        false => number.to_le_bytes(),
    }
}

fn words(numbers: &[u32], big: bool) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|&number| word(number, big))
        .collect()
}

fn number(bytes: &[u8], at: usize, big: bool) -> u32 {
    let field = bytes[at..at + 4].try_into().unwrap();
    match big {
        true => u32::from_be_bytes(field),
        false => u32::from_le_bytes(field),
    }
}

fn block(kind: u32, body: &[u8], big: bool) -> Vec<u8> {
    let total = u32::try_from(12 + body.len().next_multiple_of(4)).unwrap();
    let mut bytes = words(&[kind, total], big);
    bytes.extend_from_slice(body);
    bytes.resize(total as usize - 4, 0);
    bytes.extend_from_slice(&word(total, big));
    bytes
}

fn section(big: bool) -> Vec<u8> {
    let version = if big { 1 << 16 } else { 1 };
    block(
        0x0a0d_0d0a,
        &words(&[0x1a2b_3c4d, version, !0, !0], big),
        big,
    )
}

fn interface(big: bool) -> Vec<u8> {
    block(1, &words(&[if big { 1 << 16 } else { 1 }, 0], big), big)
}

const SECONDS: u32 = 0x6553_f100;
/// The upper half of such a time in microseconds.
const UPPER: u32 = 0x0006_0a24;

/// pcapng with these packets, or pcap.
fn made(packets: &[Vec<u8>], ng: bool, big: bool) -> Vec<u8> {
    let mut bytes = if ng {
        [section(big), interface(big)].concat()
    } else {
        let version = if big { 2 << 16 | 4 } else { 4 << 16 | 2 };
        words(&[0xa1b2_c3d4, version, 0, 0, 262_144, 1], big)
    };
    for (index, packet) in (0..).zip(packets) {
        let len = u32::try_from(packet.len()).unwrap();
        if ng {
            let mut body = words(&[0, UPPER, index, len, len], big);
            body.extend_from_slice(packet);
            bytes.extend(block(6, &body, big));
        } else {
            bytes.extend(words(&[SECONDS + index % 200, index, len, len], big));
            bytes.extend_from_slice(packet);
        }
    }
    bytes
}

/// The packets of a file, from head to head.
fn naive(bytes: &[u8], ng: bool, big: bool) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    let mut at = if ng { 0 } else { 24 };
    while at < bytes.len() {
        let (data_at, len, next) = match ng {
            true => {
                let next = at + number(bytes, at + 4, big) as usize;
                if number(bytes, at, big) != 6 {
                    at = next;
                    continue;
                }
                (at + 28, number(bytes, at + 20, big), next)
            }
            false => {
                let len = number(bytes, at + 8, big);
                (at + 16, len, at + 16 + len as usize)
            }
        };
        packets.push(bytes[data_at..data_at + len as usize].to_vec());
        at = next;
    }
    packets
}

fn agree(bytes: &[u8], ng: bool, big: bool, folder: &tempfile::TempDir) {
    let reading = read_ahead(&file(folder, "made", bytes));
    assert!(reading.error.is_none(), "{:?}", reading.error);
    assert!(reading.warnings.is_empty(), "{:?}", reading.warnings);
    let ours: Vec<&Vec<u8>> = reading.packets().map(|packet| &packet.data).collect();
    let theirs = naive(bytes, ng, big);
    assert!(ours.len() == theirs.len() && ours.iter().zip(&theirs).all(|(a, b)| *a == b));
}

/// Lengths at every end of their range, as a block and as a record may state them.
fn extreme() -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => (u32::MAX - 3)..=u32::MAX,
        1 => 0_u32..40,
        1 => (u32::MAX - 40)..=u32::MAX,
        1 => (i32::MAX as u32 - 4)..=(i32::MAX as u32 + 4),
        1 => ((16 << 20) - 4_u32)..=((16 << 20) + 4),
        1 => ((128 << 20) - 4_u32)..=((129 << 20) + 4),
        1 => (262_144 - 40_u32)..=(262_144 + 40),
        1 => any::<u32>(),
    ]
}

/// The head of a block or record in either byte order, with a time as all packets here have it.
fn head() -> impl Strategy<Value = Vec<u8>> {
    let kinds = prop::sample::select(vec![6, 2, 3, 1, 5, 0x0a0d_0d0a, 0x8000_0001]);
    (kinds, extreme(), any::<[bool; 2]>(), 0..4_usize).prop_map(|(kind, len, [ng, big], shift)| {
        let head = match ng {
            true => words(&[kind, len, 0, UPPER, 7, len, len], big),
            false => words(&[SECONDS, 7, len, len], big),
        };
        [vec![0; shift], head].concat()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn payload_that_looks_like_heads_is_payload(
        heads in prop::collection::vec(head(), 1..12),
        lens in prop::collection::vec(0_usize..3_000, 1..20),
        [ng, big] in any::<[bool; 2]>(),
    ) {
        let pattern = heads.concat();
        let lens = lens.iter().cycle().scan(0, |all, &len| {
            *all += len + 60;
            (*all < 1_500_000).then_some(len)
        });
        let payload = |len| pattern.iter().copied().cycle().take(len).collect();
        let packets: Vec<Vec<u8>> = lens.map(payload).collect();
        agree(&made(&packets, ng, big), ng, big, &tempfile::tempdir().unwrap());
    }
}

/// Packets of many lengths, full of such heads.
fn packets_of(head: &[u8]) -> Vec<Vec<u8>> {
    let lens = (0..2_000_usize).map(|index| 200 + index * 37 % 1_201);
    let payload = |len| head.iter().copied().cycle().take(len).collect();
    lens.map(payload).collect()
}

/// Payload whose every byte could begin a block that ends beyond all numbers.
#[test]
fn payload_with_the_longest_blocks_is_read_from_every_kind_of_file() {
    let folder = tempfile::tempdir().unwrap();
    for big in [false, true] {
        for len in [0xffff_fffc, 0xffff_fffd, 0xffff_fffe, 0xffff_ffff] {
            let packets = packets_of(&words(&[6, len, 0, UPPER, 0, 0, 0, 0], big));
            agree(&made(&packets, true, big), true, big, &folder);
            let packets = packets_of(&words(&[SECONDS, 0, len, len], big));
            agree(&made(&packets, false, big), false, big, &folder);
        }
    }
    let packets = packets_of(&words(&[6, u32::MAX, 0, UPPER, 0, 0, 0, 0], false));
    let plain = made(&packets, true, false);
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(&plain).unwrap();
    for packed in [
        gzip.finish().unwrap(),
        zstd::encode_all(&plain[..], 1).unwrap(),
    ] {
        let reading = read_ahead(&file(&folder, "packed", &packed));
        assert!(reading.error.is_none(), "{:?}", reading.error);
        assert_eq!(reading.packets().count(), packets.len());
    }
}

/// More sections than numbers of 16 bits, of which most are empty: their lengths are unknown, which
/// is written as the largest number.
#[test]
fn many_sections_are_read() {
    let folder = tempfile::tempdir().unwrap();
    for big in [false, true] {
        let empty = section(big).repeat(7_000);
        let mut bytes = Vec::new();
        for _ in 0..10 {
            bytes.extend_from_slice(&empty);
            bytes.extend_from_slice(&made(&[vec![7; 100]], true, big));
        }
        agree(&bytes, true, big, &folder);
        let reading = read_ahead(&file(&folder, "sections", &bytes));
        assert_eq!(reading.metas().count(), 70_010 + 10);
    }
}
