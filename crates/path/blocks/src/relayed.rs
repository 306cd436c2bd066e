//! Blocks that came through a relay (`docs/formats/relay.md`): segments as they were in the relay's
//! memory, after a page with a header.
//!
//! The relay does not parse them. They become packets when the log is read: [`assemble`] turns one
//! into an ordinary block that defines everything its packets refer to.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

mod assemble;

pub use assemble::{Assembled, Definitions, are_definitions, assemble, whole_packets};

use strata_wire::segment::Segments;
use zerocopy::little_endian::U64;
use zerocopy::{IntoBytes, transmute};

use crate::format::{ALIGNMENT, align_up};
use crate::layout::RelayedHeaderBytes;

/// The first bytes of such a block.
pub const RELAYED_MAGIC: [u8; 8] = *b"STRATAR1";
/// Bytes of the header.
pub const RELAYED_HEADER_LEN: usize = size_of::<RelayedHeaderBytes>();
/// Offset of the segments in the block.
pub const SEGMENTS_AT: usize = ALIGNMENT;

/// The header of a relayed block.
///
/// ```text
///   0 magic "STRATAR1"
///   8 header_crc u32       CRC-32C of bytes 12..128
///  12 flags u32            bit 0: the switch was lost before it reported what is in it
///  16 block_number u64     within the worker's stream, from 0
///  24 recording u32
///  28 worker u16 | reserved u16
///  32 used u32             bytes of segments, from byte 4096 of the block on
///  36 key u32              of the segments' checksums
///  40 first_seq u64        sequence number of the first packet that was sent
///  48 next_seq u64         one more than that of the last; as first_seq if not known
///  56 packets u64          that were sent
///  64 segments u64         that were sent
///  72 reserved
/// 112 hash_seed 2 * u64    of the recording
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RelayedHeader {
    /// The switch was lost before it reported what is in the block.
    pub salvaged: bool,
    /// Number of the block within the worker's stream.
    pub block_number: u64,
    /// The recording in the log's manifest.
    pub recording: u32,
    /// The worker at the switch.
    pub worker: u16,
    /// Bytes of segments.
    pub used: u32,
    /// Key of the segments' checksums.
    pub key: u32,
    /// Sequence number of the first packet.
    pub first_seq: u64,
    /// One more than the sequence number of the last packet.
    pub next_seq: u64,
    /// Packets that were sent.
    pub packets: u64,
    /// Segments that were sent.
    pub segments: u64,
    /// Key of the recording's fingerprints.
    pub hash_seed: [u64; 2],
}

impl RelayedHeader {
    /// Bytes of the block in the file.
    #[must_use]
    pub fn stored_len(&self) -> usize {
        SEGMENTS_AT.saturating_add(align_up(self.used as usize))
    }

    /// Segments that were sent and are not among `segments`, the memory after this header.
    #[must_use]
    pub fn missing(&self, segments: &[u8]) -> u64 {
        let found = Segments::new(segments, self.key, low_half(self.block_number)).count();
        self.segments.saturating_sub(found as u64)
    }

    /// Writes the header.
    #[must_use]
    pub fn emit(&self) -> [u8; RELAYED_HEADER_LEN] {
        let mut bytes = RelayedHeaderBytes {
            magic: RELAYED_MAGIC,
            header_crc: 0.into(),
            flags: u32::from(self.salvaged).into(),
            block_number: self.block_number.into(),
            recording: self.recording.into(),
            worker: self.worker.into(),
            reserved: 0.into(),
            used: self.used.into(),
            key: self.key.into(),
            first_seq: self.first_seq.into(),
            next_seq: self.next_seq.into(),
            packets: self.packets.into(),
            segments: self.segments.into(),
            reserved_more: [0; 40],
            hash_seed: self.hash_seed.map(Into::into),
        };
        bytes.header_crc = crc32c::crc32c(&bytes.as_bytes()[12..]).into();
        transmute!(bytes)
    }

    /// Reads a header; `None` if it is incomplete or invalid.
    #[must_use]
    pub fn parse(bytes: &[u8; RELAYED_HEADER_LEN]) -> Option<Self> {
        let read: RelayedHeaderBytes = transmute!(*bytes);
        let whole =
            read.magic == RELAYED_MAGIC && read.header_crc.get() == crc32c::crc32c(&bytes[12..]);
        whole.then(|| Self {
            salvaged: read.flags.get() & 1 != 0,
            block_number: read.block_number.get(),
            recording: read.recording.get(),
            worker: read.worker.get(),
            used: read.used.get(),
            key: read.key.get(),
            first_seq: read.first_seq.get(),
            next_seq: read.next_seq.get(),
            packets: read.packets.get(),
            segments: read.segments.get(),
            hash_seed: read.hash_seed.map(U64::get),
        })
    }
}

/// What segments have of the number of their block.
#[must_use]
#[allow(clippy::cast_possible_truncation, reason = "the low half is meant")]
pub fn low_half(block_number: u64) -> u32 {
    block_number as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_round_trips_and_every_flipped_bit_is_noticed() {
        let header = RelayedHeader {
            salvaged: true,
            block_number: 1 << 40,
            recording: 2,
            worker: 3,
            used: 4,
            key: 5,
            first_seq: 6,
            next_seq: 7,
            packets: 8,
            segments: 9,
            hash_seed: [10, 11],
        };
        let bytes = header.emit();
        assert_eq!(RelayedHeader::parse(&bytes), Some(header));
        for bit in 0..RELAYED_HEADER_LEN * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(RelayedHeader::parse(&flipped), None, "bit {bit}");
        }
    }
}
