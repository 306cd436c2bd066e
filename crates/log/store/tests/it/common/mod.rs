//! Shared by tests of recordings: packets with known content, and how they are read back.

use std::collections::BTreeMap;

use strata_blocks::{BlockBuilder, BlockSink, PacketRecord, Record, Trees, Written};
use strata_store::{Log, Select, StoreError};
use strata_wire::{Interface, KeepKind, LinkType, mix64};

/// The bytes of a packet, by its sequence number.
pub(crate) fn content(seq: u64) -> Vec<u8> {
    let len = usize::try_from(mix64(seq) % 1_400).unwrap();
    let words = (0..=len as u64 / 8).flat_map(|n| mix64(seq * 1_000 + n).to_le_bytes());
    words.take(len).collect()
}

/// When the first packet arrived, ns since 1970: later than any checkpoint of a test.
pub(crate) const FIRST_NS: u64 = 4_000_000_000_000_000_000;

/// When a packet arrived.
pub(crate) fn ts_ns(seq: u64) -> u64 {
    FIRST_NS + 1_000 * seq
}

pub(crate) fn push(block: &mut BlockBuilder, seq: u64) {
    if block.needs_context() {
        block.define_context(b"{}");
    }
    if block.needs_interface(0) {
        block.define_interface(0, &Interface::new(LinkType::ETHERNET, 0));
    }
    if block.needs_verdict(0) {
        block.define_verdict(0, 0, Trees::None, 0, &[]);
    }
    let data = content(seq);
    let len = u32::try_from(data.len()).unwrap();
    let packet = PacketRecord {
        ts_ns: ts_ns(seq),
        seq,
        wire_len: len,
        captured_len: len,
        header_len: 0,
        interface: 0,
        verdict: 0,
        keep: KeepKind::Full,
        has_timestamp: true,
        data: &data,
        options: &[],
    };
    block.push_packet(&packet, 0);
}

/// An empty block, once one is free.
pub(crate) fn empty(
    sink: &mut BlockSink,
    mut note: impl FnMut(Written) -> Result<(), StoreError>,
) -> Result<Box<BlockBuilder>, StoreError> {
    loop {
        if let Some(block) = sink.take() {
            return Ok(block);
        }
        if let Some(written) = sink.wait()? {
            note(written)?;
        }
    }
}

/// The packets of a log by sequence number, checked against what was recorded, and the number of
/// damaged places.
pub(crate) fn read(log: &Log) -> (BTreeMap<u64, usize>, usize) {
    let (mut packets, mut damaged) = (BTreeMap::new(), 0);
    let everything = Select::default();
    for recording in log.recordings() {
        let mut last = None;
        for block in log.blocks(recording, &everything) {
            let block = match block {
                Ok(block) => block,
                Err(StoreError::Damage(_)) => {
                    damaged += 1;
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            for record in block.records() {
                if let Record::Packet(packet) = record.unwrap() {
                    assert_eq!(packet.data, content(packet.seq), "packet {}", packet.seq);
                    assert_eq!(packet.ts_ns, ts_ns(packet.seq));
                    assert!(last < Some(packet.seq), "packets keep their order");
                    last = Some(packet.seq);
                    packets.insert(packet.seq, packet.data.len());
                }
            }
        }
    }
    (packets, damaged)
}
