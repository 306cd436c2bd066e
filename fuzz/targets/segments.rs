//! A relay's block, filled well and then damaged, and read as a log: what comes out is
//! what went in, or is not there.
//!
//! Input: 8 bytes of choices, then packets, each after its length (u16; 0 ends them),
//! then damage: place (u16), how (u8).
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use strata_blocks::{RelayedHeader, SEGMENTS_AT};
use strata_fuzz::{Bounded, Chooser, log_of};
use strata_store::Select;
use strata_wire::segment::{Assembly, BlockWriter, Layout, PacketInfo, Segments, damaged};

#[global_allocator]
static MEMORY: Bounded = Bounded::new();

const BLOCK_BYTES: usize = 16 << 10;
const HASH_SEED: [u64; 2] = [1, 0];

fuzz_target!(|bytes: &[u8]| {
    let mut choose = Chooser::new(bytes);
    let (flags, key, number) = (choose.u16(), choose.u32(), u64::from(choose.u16()));
    let layout = if flags & 1 == 0 {
        Layout::Mtu
    } else {
        Layout::PowersOfTwo
    };
    let mtu = [256, 1024, 4096][usize::from(flags >> 1) % 3];
    let mut writer = BlockWriter::new(key, layout, mtu, BLOCK_BYTES);
    writer.begin(number);
    let mut block = vec![0; BLOCK_BYTES];
    let mut put = |at: usize, message: &[u8]| {
        assert!(message.len() <= mtu);
        block[at..at + message.len()].copy_from_slice(message);
    };
    let mut packets: BTreeMap<u64, &[u8]> = BTreeMap::new();
    while !choose.is_empty() {
        let len = usize::from(choose.u16());
        if len == 0 || !writer.fits(len) {
            break;
        }
        let packet = choose.take(len);
        let info = PacketInfo {
            seq: packets.len() as u64,
            ..PacketInfo::default()
        };
        writer.push(&info, packet, &mut put);
        packets.insert(info.seq, packet);
    }
    writer.flush(&mut put);
    let (used, segments) = (writer.used(), writer.segments());
    let low = number as u32;
    assert_eq!(
        Segments::new(&block[..used], key, low).count() as u64,
        segments
    );
    assert!(damaged(&block, key, low).is_empty());
    let before = block.clone();
    damage(&mut choose, &mut block);

    let assembly = Assembly::of(&block[..used], key, low);
    assert!(assembly.segments() as u64 <= segments);
    let mut whole = 0;
    for packet in assembly.packets() {
        let parts: Vec<u8> = packet.parts().flatten().copied().collect();
        let expected = packets[&packet.header().seq];
        assert!(expected.starts_with(&parts));
        if packet.is_whole() {
            assert_eq!(parts, expected);
            whole += 1;
        }
    }
    assert!(whole <= packets.len());
    if before == block {
        assert_eq!(whole, packets.len());
    }
    assert!(damaged(&block[..used], key, low).len() <= used / 8);
    as_a_log(&block[..used], key, number, segments, packets.len() as u64);
});

/// Flips bits, copies, or puts zeros.
fn damage(choose: &mut Chooser<'_>, block: &mut [u8]) {
    for _ in 0..64 {
        if choose.is_empty() {
            return;
        }
        let (at, how) = (usize::from(choose.u16()) % block.len(), choose.u8());
        let end = (at + 64).min(block.len());
        match how & 3 {
            0 => block[at] ^= how >> 2 | 1,
            1 => block[at..end].fill(0),
            2 => block.copy_within(at..end, usize::from(how >> 2) * 64),
            _ => block[at..end].fill(how),
        }
    }
}

/// The records are any bytes: an invalid one is not read as a record.
fn as_a_log(segments: &[u8], key: u32, number: u64, sent: u64, packets: u64) {
    let header = RelayedHeader {
        block_number: number,
        recording: 1,
        used: u32::try_from(segments.len()).expect("a small block"),
        key,
        next_seq: packets,
        packets,
        segments: sent,
        hash_seed: HASH_SEED,
        ..RelayedHeader::default()
    };
    let mut file = header.emit().to_vec();
    file.resize(SEGMENTS_AT, 0);
    file.extend_from_slice(segments);
    file.resize(header.stored_len(), 0);
    let log = log_of(&file, HASH_SEED, true, Some("fuzz"), false);
    let recording = &log.recordings()[0];
    for block in log.blocks(recording, &Select::default()) {
        let block = block.expect("its header is right");
        assert!(u64::from(block.header.packets) <= packets);
        assert!(block.incomplete <= block.header.packets);
        let read = block.records().filter(Result::is_ok).count();
        assert!(read >= block.header.packets as usize, "each packet is read");
    }
    log.accounting(recording)
        .expect("a virtual disk does not fail");
}
