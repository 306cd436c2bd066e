//! Segments: the form in which logged packets are written into remote blocks (TitanLog §V-B), and
//! how they are found there again.
//!
//! A block is memory at the relay that is filled from its start and then written to disk as it is.
//! The relay never looks into it. Every segment can be recognised by itself, so what is missing,
//! late or from an earlier filling of the same memory cannot be mistaken for a packet.
//!
//! - [`SegmentHeader`], [`Segment`]: the bytes;
//! - [`BlockWriter`]: from packets to segments in messages;
//! - [`Assembly`]: from a block to packets.

use std::ops::Range;

use crate::bytes::{held16, held64};

mod assembly;
#[allow(
    clippy::arithmetic_side_effects,
    reason = "it parses nothing: sizes of a block and its messages, asserted to be below 4 GiB"
)]
mod writer;

pub use assembly::{Assembly, Packet};
pub use writer::{BlockWriter, Layout, PacketInfo};

/// Bytes of a segment's header.
pub const HEADER_LEN: usize = 32;
/// Segments start at multiples of this within a block.
pub const ALIGNMENT: usize = 8;
/// Maximum bytes of a packet in one segment: the largest RDMA MTU less a header.
pub const PAYLOAD_LEN_MAX: usize = 4096 - HEADER_LEN;

/// The header of a segment.
///
/// ```text
///  0 crc u32       CRC-32C of bytes 4.. and the payload, seeded with key and place
///  4 block u32     low half of the block's number; each filling of the memory has another one
///  8 seq u64       sequence number of the packet
/// 16 ts_ns u64     arrival of the packet, ns since 1970
/// 24 len u16       bytes of payload after this header
/// 26 index u16     number of the segment within its packet, from 0
/// 28 total u16     number of segments of the packet
/// 30 class u8
/// 31 flags u8      of the packet's record: bits 0 and 1 the granularity
/// ```
///
/// All integers are little-endian. The CRC is seeded with the stream's key, which is in no packet,
/// and the segment's place in the block: neither the payload of a logged packet nor a segment in
/// the wrong place passes for a segment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct SegmentHeader {
    /// Low half of the block's number.
    pub block: u32,
    /// Sequence number of the packet.
    pub seq: u64,
    /// When it arrived, ns since 1970.
    pub ts_ns: u64,
    /// Bytes of payload.
    pub len: u16,
    /// Number of the segment within its packet, from 0.
    pub index: u16,
    /// Segments of the packet.
    pub total: u16,
    /// The packet's class.
    pub class: u8,
    /// The flags of its record.
    pub flags: u8,
}

impl SegmentHeader {
    /// Reads a header; nothing is checked.
    #[must_use]
    pub fn parse(bytes: &[u8; HEADER_LEN]) -> Self {
        let u16_at = |at: usize| held16(bytes, at).swap_bytes();
        let u64_at = |at: usize| held64(bytes, at).swap_bytes();
        Self {
            block: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
            seq: u64_at(8),
            ts_ns: u64_at(16),
            len: u16_at(24),
            index: u16_at(26),
            total: u16_at(28),
            class: bytes[30],
            flags: bytes[31],
        }
    }

    /// Writes the header of a segment at `at` in its block, whose payload is already in `bytes`
    /// after it.
    ///
    /// # Panics
    ///
    /// If `bytes` are shorter than header and payload.
    #[inline]
    pub fn emit(&self, key: u32, at: usize, bytes: &mut [u8]) {
        let last = u64::from(self.len)
            | u64::from(self.index) << 16
            | u64::from(self.total) << 32
            | u64::from(self.class) << 48
            | u64::from(self.flags) << 56;
        let words = [u64::from(self.block) << 32, self.seq, self.ts_ns, last];
        let (places, _) = bytes[..HEADER_LEN].as_chunks_mut();
        for (place, word) in places.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        let crc = checksum(
            key,
            at,
            &bytes[4..HEADER_LEN.wrapping_add(usize::from(self.len))],
        );
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
    }
}

#[inline]
#[allow(clippy::cast_possible_truncation)]
fn checksum(key: u32, at: usize, bytes: &[u8]) -> u32 {
    // A block is below 4 GiB.
    crc32c::crc32c_append(key ^ at as u32, bytes)
}

/// A segment found in a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment<'a> {
    /// Its header.
    pub header: SegmentHeader,
    /// Its part of the packet.
    pub payload: &'a [u8],
}

impl<'a> Segment<'a> {
    /// The segment of block number `block` (its low half) that starts at `at`, if there is one.
    #[inline]
    #[must_use]
    pub fn read(bytes: &'a [u8], at: usize, key: u32, block: u32) -> Option<Self> {
        let rest = bytes.get(at..)?;
        let head: &[u8; HEADER_LEN] = rest.first_chunk()?;
        if head[4..8] != block.to_le_bytes() {
            return None;
        }
        let header = SegmentHeader::parse(head);
        let len = usize::from(header.len);
        if len > PAYLOAD_LEN_MAX || header.index >= header.total {
            return None;
        }
        let covered = rest.get(4..HEADER_LEN.wrapping_add(len))?;
        let carried = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        (carried == checksum(key, at, covered)).then(|| Self {
            header,
            payload: &covered[HEADER_LEN - 4..],
        })
    }

    /// Bytes that it takes in its block, up to where the next one may start.
    #[must_use]
    pub fn stored_len(&self) -> usize {
        let len = HEADER_LEN.saturating_add(self.payload.len());
        len.next_multiple_of(ALIGNMENT)
    }
}

/// The segments of a block in the order of their places, skipping whatever is between them.
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    bytes: &'a [u8],
    at: usize,
    key: u32,
    block: u32,
}

impl<'a> Segments<'a> {
    /// For block number `block` (its low half), written with `key`.
    #[must_use]
    pub fn new(bytes: &'a [u8], key: u32, block: u32) -> Self {
        Self {
            bytes,
            at: 0,
            key,
            block,
        }
    }
}

impl<'a> Iterator for Segments<'a> {
    /// Its place, and the segment.
    type Item = (Range<usize>, Segment<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        // Within the block, or one segment behind it.
        while self.at.saturating_add(HEADER_LEN) <= self.bytes.len() {
            let at = self.at;
            if let Some(segment) = Segment::read(self.bytes, at, self.key, self.block) {
                self.at = at.saturating_add(segment.stored_len());
                let len = HEADER_LEN.saturating_add(segment.payload.len());
                return Some((at..at.saturating_add(len), segment));
            }
            self.at = at.saturating_add(ALIGNMENT);
        }
        None
    }
}

/// Where a block has bytes that once were a segment of it: their header, or all of it but the
/// block's number, says so, but the checksum does not match. What was lost on its way to the block
/// is not found: zeros, or an earlier filling, are in its place.
#[must_use]
pub fn damaged(bytes: &[u8], key: u32, block: u32) -> Vec<usize> {
    let mut found = Vec::new();
    let mut end = 0_usize;
    let mut whole = Segments::new(bytes, key, block).map(|(range, _)| range);
    loop {
        let next = whole.next();
        let gap_end = next.as_ref().map_or(bytes.len(), |range| range.start);
        let mut at = end;
        while at.saturating_add(HEADER_LEN) <= gap_end {
            let len = match was_segment(&bytes[at..gap_end], key, at, block) {
                Some(len) => {
                    found.push(at);
                    len.next_multiple_of(ALIGNMENT)
                }
                None => ALIGNMENT,
            };
            at = at.saturating_add(len);
        }
        match next {
            Some(range) => end = range.end.next_multiple_of(ALIGNMENT),
            None => return found,
        }
    }
}

/// Length of the segment that `bytes` once started with.
fn was_segment(bytes: &[u8], key: u32, at: usize, block: u32) -> Option<usize> {
    let head: &[u8; HEADER_LEN] = bytes.first_chunk()?;
    // Memory that was never written to.
    if head == &[0; HEADER_LEN] {
        return None;
    }
    let header = SegmentHeader::parse(head);
    let len = HEADER_LEN.wrapping_add(usize::from(header.len));
    if header.block == block {
        // The length itself may be wrong.
        return Some(if len <= bytes.len() { len } else { HEADER_LEN });
    }
    let mut mended = bytes.get(..len)?.to_vec();
    mended[4..8].copy_from_slice(&block.to_le_bytes());
    let carried = u32::from_le_bytes(*mended.first_chunk()?);
    (carried == checksum(key, at, &mended[4..])).then_some(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_one_only_whole_in_its_place_and_block() {
        let header = SegmentHeader {
            block: 7,
            seq: 1 << 40,
            ts_ns: 3,
            len: 20,
            index: 1,
            total: 2,
            class: 4,
            flags: 3,
        };
        let mut block = vec![0; 256];
        block[72..92].copy_from_slice(b"the payload in there");
        header.emit(99, 40, &mut block[40..]);
        let found = Segment::read(&block, 40, 99, 7).unwrap();
        assert_eq!(found.header, header);
        assert_eq!(found.payload, b"the payload in there");
        assert_eq!(Segments::new(&block, 99, 7).count(), 1);
        assert!(damaged(&block, 99, 7).is_empty());
        assert!(damaged(&block, 99, 8).is_empty(), "of another filling");
        assert!(damaged(&[0; 256], 99, 0).is_empty(), "nothing");
        assert!(Segment::read(&block, 40, 98, 7).is_none(), "another key");
        assert!(Segment::read(&block, 40, 99, 8).is_none(), "another block");
        let mut moved = block.clone();
        moved.copy_within(40..92, 104);
        assert!(
            Segment::read(&moved, 104, 99, 7).is_none(),
            "another place of the same block"
        );
        for bit in 0..52 * 8 {
            let mut flipped = block.clone();
            flipped[40 + bit / 8] ^= 1 << (bit % 8);
            assert!(Segment::read(&flipped, 40, 99, 7).is_none(), "bit {bit}");
            assert_eq!(damaged(&flipped, 99, 7), [40], "bit {bit}");
        }
    }
}
