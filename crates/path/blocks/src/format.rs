//! The bytes of a block file (`docs/formats/block-file.md`). All integers are
//! little-endian.
//!
//! A file is a sequence of blocks, each starting at a multiple of [`ALIGNMENT`].
//! A block can be read by itself: whatever its records refer to (verdicts,
//! interfaces, the context) is defined in the same block before it is used.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use strata_wire::{Decider, KeepKind};
use zerocopy::little_endian::U64;
use zerocopy::{IntoBytes, transmute};

use crate::layout::{BlockHeaderBytes, PacketBytes, Prefix};

/// Blocks begin at multiples of this, so that a file can be written with `O_DIRECT`.
pub const ALIGNMENT: usize = 4096;
/// The first bytes of a block.
pub const MAGIC: [u8; 8] = *b"STRATAB1";
/// Bytes of a block header.
pub const HEADER_LEN: usize = size_of::<BlockHeaderBytes>();
/// The largest body that is read; larger length fields are treated as corruption.
pub const BODY_MAX: usize = 512 << 20;
/// Bytes of a full packet record before its data: no packet has more.
pub const PACKET_HEADER_LEN: usize = size_of::<PacketBytes>();
/// The form of records that is written: with compact packets. Those up to it are read.
pub const FORM: u16 = 1;
/// Bytes of every record's prefix: kind, flags, reference, length.
pub const PREFIX_LEN: usize = size_of::<Prefix>();

/// Rounds up to [`ALIGNMENT`].
#[must_use]
pub const fn align_up(len: usize) -> usize {
    len.div_ceil(ALIGNMENT).saturating_mul(ALIGNMENT)
}

/// The header of a block.
///
/// ```text
///   0 magic "STRATAB1"
///   8 header_crc u32       CRC-32C of bytes 12..128
///  12 body_crc u32         CRC-32C of the records
///  16 summary_crc u32      CRC-32C of the summary
///  20 flags u32            bit 0: holds metadata; bit 1: hides addresses;
///                          bit 2: a policy may protect some packets; bit 3: holds promotions;
///                          bit 4: the summary holds flows of outer headers too
///  24 body_len u32         bytes of records, right after the header
///  28 summary_len u32      bytes of the summary, right after the records
///  32 block_number u64     within the worker's recording, from 0
///  40 recording u32
///  44 worker u16
///  46 form u16             of the records: 0 without kinds 10 and 11, 1 with them
///  48 first_seq u64        sequence number of the first packet
///  56 next_seq u64         one more than that of the last
///  64 ts_min_ns u64
///  72 ts_max_ns u64
///  80 packets u32
///  84 records u32          packets and all others
///  88 wire_bytes u64       of its packets
///  96 logged_bytes u64     packet bytes kept
/// 104 classes u64          bit n: class n (63: 63 and above) occurs
/// 112 hash_seed 2 * u64    key of the fingerprints in the summary
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BlockHeader {
    /// See the byte map.
    pub body_crc: u32,
    /// See the byte map.
    pub summary_crc: u32,
    /// Bit 0: holds metadata; bit 1: hides addresses; bit 2: a policy may
    /// protect some packets; bit 3: holds promotions; bit 4: the summary holds the flows of
    /// outer headers too.
    pub flags: u32,
    /// Bytes of records.
    pub body_len: u32,
    /// Bytes of the summary.
    pub summary_len: u32,
    /// Number of the block within the worker's recording.
    pub block_number: u64,
    /// The recording in the log's manifest.
    pub recording: u32,
    /// The worker that filled the block.
    pub worker: u16,
    /// The form of its records: 0 without compact ones, else [`FORM`].
    pub form: u16,
    /// Sequence number of the first packet.
    pub first_seq: u64,
    /// One more than the sequence number of the last packet.
    pub next_seq: u64,
    /// Earliest arrival, ns; `u64::MAX` without packets.
    pub ts_min_ns: u64,
    /// Latest arrival, ns.
    pub ts_max_ns: u64,
    /// Packet records.
    pub packets: u32,
    /// All records.
    pub records: u32,
    /// Bytes on the wire of its packets.
    pub wire_bytes: u64,
    /// Bytes of these that are kept.
    pub logged_bytes: u64,
    /// One bit per class.
    pub classes: u64,
    /// Key of the fingerprints.
    pub hash_seed: [u64; 2],
}

/// The block holds records other than packets and definitions of verdicts, interfaces and context:
/// an export must read it whatever it looks for.
pub(crate) const FLAG_META: u32 = 1;
/// Some packet may have addresses that the summary does not hold.
pub(crate) const FLAG_HIDES_ADDRESSES: u32 = 2;
/// A policy may protect some of its packets.
pub(crate) const FLAG_PROTECTED: u32 = 4;

/// The block holds promotions of earlier packets.
pub(crate) const FLAG_PROMOTES: u32 = 8;
/// For packets in tunnels the summary holds both flows, so that a search by flow may skip the
/// block.
pub(crate) const FLAG_HOLDS_FLOWS: u32 = 16;

impl BlockHeader {
    /// Whether a policy may protect some of its packets from deletion.
    #[must_use]
    pub fn is_protected(&self) -> bool {
        self.flags & FLAG_PROTECTED != 0
    }

    /// Whether it holds records other than packets and definitions of verdicts, interfaces and
    /// context: an export must read it whatever it looks for.
    #[must_use]
    pub fn holds_meta(&self) -> bool {
        self.flags & FLAG_META != 0
    }

    /// Whether some packet may have addresses that the summary does not hold.
    #[must_use]
    pub fn hides_addresses(&self) -> bool {
        self.flags & FLAG_HIDES_ADDRESSES != 0
    }

    /// Whether it holds promotions of earlier packets.
    #[must_use]
    pub fn promotes(&self) -> bool {
        self.flags & FLAG_PROMOTES != 0
    }

    /// Says that its promotions have been taken out of its records.
    pub fn forget_promotions(&mut self) {
        self.flags &= !FLAG_PROMOTES;
    }

    /// Whether the summary holds both flows of packets in tunnels, so that a search by flow may
    /// skip the block.
    #[must_use]
    pub fn holds_flows(&self) -> bool {
        self.flags & FLAG_HOLDS_FLOWS != 0
    }

    /// Bytes of the block in the file, padding included.
    #[must_use]
    pub fn stored_len(&self) -> usize {
        let content = (self.body_len as usize).saturating_add(self.summary_len as usize);
        align_up(HEADER_LEN.saturating_add(content))
    }

    /// Writes the header.
    #[must_use]
    pub fn emit(&self) -> [u8; HEADER_LEN] {
        let mut bytes = BlockHeaderBytes {
            magic: MAGIC,
            header_crc: 0.into(),
            body_crc: self.body_crc.into(),
            summary_crc: self.summary_crc.into(),
            flags: self.flags.into(),
            body_len: self.body_len.into(),
            summary_len: self.summary_len.into(),
            block_number: self.block_number.into(),
            recording: self.recording.into(),
            worker: self.worker.into(),
            form: self.form.into(),
            first_seq: self.first_seq.into(),
            next_seq: self.next_seq.into(),
            ts_min_ns: self.ts_min_ns.into(),
            ts_max_ns: self.ts_max_ns.into(),
            packets: self.packets.into(),
            records: self.records.into(),
            wire_bytes: self.wire_bytes.into(),
            logged_bytes: self.logged_bytes.into(),
            classes: self.classes.into(),
            hash_seed: self.hash_seed.map(Into::into),
        };
        bytes.header_crc = crc32c::crc32c(&bytes.as_bytes()[12..]).into();
        transmute!(bytes)
    }

    /// Reads a header.
    ///
    /// # Errors
    ///
    /// What is wrong with it, in plain English.
    pub fn parse(bytes: &[u8; HEADER_LEN]) -> Result<Self, &'static str> {
        let read: BlockHeaderBytes = transmute!(*bytes);
        if read.magic != MAGIC {
            return Err("no block begins here");
        }
        if read.header_crc.get() != crc32c::crc32c(&bytes[12..]) {
            return Err("the block header's checksum does not match");
        }
        let header = Self {
            body_crc: read.body_crc.get(),
            summary_crc: read.summary_crc.get(),
            flags: read.flags.get(),
            body_len: read.body_len.get(),
            summary_len: read.summary_len.get(),
            block_number: read.block_number.get(),
            recording: read.recording.get(),
            worker: read.worker.get(),
            form: read.form.get(),
            first_seq: read.first_seq.get(),
            next_seq: read.next_seq.get(),
            ts_min_ns: read.ts_min_ns.get(),
            ts_max_ns: read.ts_max_ns.get(),
            packets: read.packets.get(),
            records: read.records.get(),
            wire_bytes: read.wire_bytes.get(),
            logged_bytes: read.logged_bytes.get(),
            classes: read.classes.get(),
            hash_seed: read.hash_seed.map(U64::get),
        };
        if header.form > FORM {
            return Err("the block was written by a newer version of Strata, which can read it");
        }
        if header.body_len as usize > BODY_MAX || header.summary_len as usize > BODY_MAX {
            return Err("the block's stated length is larger than the maximum");
        }
        Ok(header)
    }
}

/// Reads integers one after another; past the end, zeros.
pub(crate) struct Reader<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) at: usize,
}

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> [u8; N] {
        let rest = self.bytes.get(self.at..);
        self.at = self.at.saturating_add(N);
        rest.and_then(<[u8]>::first_chunk)
            .copied()
            .unwrap_or([0; N])
    }

    pub(crate) fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }
}

/// Kinds of records.
pub(crate) mod kind {
    pub(crate) const PACKET: u8 = 1;
    pub(crate) const PACKET_OPTIONS: u8 = 2;
    pub(crate) const VERDICT: u8 = 3;
    pub(crate) const INTERFACE: u8 = 4;
    pub(crate) const SECTION: u8 = 5;
    pub(crate) const PCAPNG_BLOCK: u8 = 6;
    pub(crate) const CONTEXT: u8 = 7;
    pub(crate) const FLOW_SHARE: u8 = 8;
    pub(crate) const PROMOTION: u8 = 9;
    pub(crate) const COMPACT: u8 = 10;
    pub(crate) const TIME: u8 = 11;
}

/// Flags of packet records; bits 0 and 1 are [`KeepKind::code`].
pub(crate) mod packet_flag {
    /// A `PACKET_OPTIONS` record precedes this one.
    pub(crate) const HAS_OPTIONS: u8 = 4;
    /// The capture gave no time.
    pub(crate) const NO_TIMESTAMP: u8 = 8;
    /// A compact record says how long the packet was on the wire, and how many bytes are kept.
    pub(crate) const LENGTHS: u8 = 16;
}

/// One packet to be added to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketRecord<'a> {
    /// Arrival, ns since 1970.
    pub ts_ns: u64,
    /// The worker's sequence number.
    pub seq: u64,
    /// Bytes on the wire, according to the capture.
    pub wire_len: u32,
    /// Bytes in the capture.
    pub captured_len: u32,
    /// Bytes up to the end of the headers, at most 65 535.
    pub header_len: u16,
    /// Interface, by the number of its definition.
    pub interface: u16,
    /// Verdict, by the number of its definition.
    pub verdict: u16,
    /// How much was kept.
    pub keep: KeepKind,
    /// Whether the capture gave a time.
    pub has_timestamp: bool,
    /// The bytes kept.
    pub data: &'a [u8],
    /// Options of the packet in a pcapng input, little-endian.
    pub options: &'a [u8],
}

impl PacketRecord<'_> {
    /// The flags of its record.
    #[inline(always)]
    #[must_use]
    pub fn flags(&self) -> u8 {
        let mut flags = self.keep.code();
        if !self.options.is_empty() {
            flags |= packet_flag::HAS_OPTIONS;
        }
        if !self.has_timestamp {
            flags |= packet_flag::NO_TIMESTAMP;
        }
        flags
    }

    /// Appends its record in full, which depends on no other, after one with its options if it has
    /// any.
    ///
    /// # Panics
    ///
    /// If data or options have 4 GiB or more.
    pub fn emit(&self, out: &mut Vec<u8>) {
        if !self.options.is_empty() {
            let prefix = Prefix {
                kind: kind::PACKET_OPTIONS,
                flags: 0,
                reference: 0.into(),
                len: record_len(self.options.len()).into(),
            };
            out.extend_from_slice(prefix.as_bytes());
            out.extend_from_slice(self.options);
        }
        let mut header = [0; PACKET_HEADER_LEN];
        emit_packet_header(self, &mut header);
        out.extend_from_slice(&header);
        out.extend_from_slice(self.data);
    }
}

/// Why a packet was kept as it was: the definition behind a verdict's number.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct VerdictRecord {
    /// Index into the context's classes.
    pub class: u8,
    /// The class's share, in 1/65 535.
    pub score: u16,
    /// Which trees voted.
    pub trees: Trees,
    /// The leaf of each tree.
    pub leaves: Vec<u16>,
    /// Who decided how much of the packet is kept.
    pub decider: Decider,
}

/// Which trees of the model voted for a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Trees {
    /// None: the packet was not dissected.
    #[default]
    None,
    /// Those that see a packet alone.
    Packet,
    /// Those that see its flow too.
    Flow,
}

impl Trees {
    /// Its number in a record.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Packet => 1,
            Self::Flow => 2,
        }
    }

    pub(crate) const fn of_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::None),
            1 => Some(Self::Packet),
            2 => Some(Self::Flow),
            _ => None,
        }
    }
}

/// Flag of a verdict record: who decided precedes the leaves.
pub(crate) const VERDICT_DECIDED: u8 = 1;

/// Writes the fixed part of a packet record: 32 bytes.
///
/// ```text
///  0 kind u8 | flags u8 | interface u16 | length u32 of what follows this word
///  8 ts_ns u64
/// 16 seq u32               low half
/// 20 wire_len u32
/// 24 captured_len u32
/// 28 verdict u16
/// 30 header_len u16
/// 32 data
/// ```
#[inline]
pub(crate) fn emit_packet_header(packet: &PacketRecord<'_>, out: &mut [u8; PACKET_HEADER_LEN]) {
    const AFTER_PREFIX: usize = PACKET_HEADER_LEN - PREFIX_LEN;
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the low half of the number"
    )]
    let seq = packet.seq as u32;
    *out = transmute!(PacketBytes {
        prefix: Prefix {
            kind: kind::PACKET,
            flags: packet.flags(),
            reference: packet.interface.into(),
            len: record_len(AFTER_PREFIX.saturating_add(packet.data.len())).into(),
        },
        ts_ns: packet.ts_ns.into(),
        seq: seq.into(),
        wire_len: packet.wire_len.into(),
        captured_len: packet.captured_len.into(),
        verdict: packet.verdict.into(),
        header_len: packet.header_len.into(),
    });
}

/// The length of a record or of a block's records, as stored.
///
/// # Panics
///
/// If it is 4 GiB or more, which no packet, options or block reach.
#[inline]
pub(crate) fn record_len(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("a record is smaller than 4 GiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_round_trips_and_every_flipped_bit_is_noticed() {
        let header = BlockHeader {
            body_crc: 1,
            summary_crc: 2,
            flags: 3,
            body_len: 4,
            summary_len: 5,
            block_number: 6,
            recording: 7,
            worker: 8,
            form: FORM,
            first_seq: 9,
            next_seq: 10,
            ts_min_ns: 11,
            ts_max_ns: 12,
            packets: 13,
            records: 14,
            wire_bytes: 15,
            logged_bytes: 16,
            classes: 17,
            hash_seed: [18, 19],
        };
        let bytes = header.emit();
        assert_eq!(BlockHeader::parse(&bytes), Ok(header));
        for bit in 0..HEADER_LEN * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(BlockHeader::parse(&flipped).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_block_of_a_later_form_is_refused_with_advice() {
        let header = BlockHeader {
            form: FORM + 1,
            ..BlockHeader::default()
        };
        let refused = BlockHeader::parse(&header.emit()).unwrap_err();
        assert!(refused.contains("newer version of Strata"), "{refused}");
    }
}
