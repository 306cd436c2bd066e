//! Stored structures, each declared once: these bytes are what is written and read.
//!
//! All integers are little-endian, no structure has padding or alignment, and each asserts at
//! compile time its length and the offsets of its fields (`docs/formats/`).
#![allow(
    unsafe_code,
    reason = "derives of zerocopy, which check that every byte pattern is a value"
)]

use strata_wire::layout;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The header of a block; the map is at [`BlockHeader`](crate::BlockHeader).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct BlockHeaderBytes {
    pub(crate) magic: [u8; 8],
    pub(crate) header_crc: U32,
    pub(crate) body_crc: U32,
    pub(crate) summary_crc: U32,
    pub(crate) flags: U32,
    pub(crate) body_len: U32,
    pub(crate) summary_len: U32,
    pub(crate) block_number: U64,
    pub(crate) recording: U32,
    pub(crate) worker: U16,
    pub(crate) form: U16,
    pub(crate) first_seq: U64,
    pub(crate) next_seq: U64,
    pub(crate) ts_min_ns: U64,
    pub(crate) ts_max_ns: U64,
    pub(crate) packets: U32,
    pub(crate) records: U32,
    pub(crate) wire_bytes: U64,
    pub(crate) logged_bytes: U64,
    pub(crate) classes: U64,
    pub(crate) hash_seed: [U64; 2],
}
layout!(
    BlockHeaderBytes, 128,
    magic at 0, header_crc at 8, body_crc at 12, summary_crc at 16, flags at 20, body_len at 24,
    summary_len at 28, block_number at 32, recording at 40, worker at 44, form at 46,
    first_seq at 48, next_seq at 56, ts_min_ns at 64, ts_max_ns at 72, packets at 80,
    records at 84, wire_bytes at 88, logged_bytes at 96, classes at 104, hash_seed at 112,
);

/// The header of a relayed block; the map is at [`RelayedHeader`](crate::RelayedHeader).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RelayedHeaderBytes {
    pub(crate) magic: [u8; 8],
    pub(crate) header_crc: U32,
    pub(crate) flags: U32,
    pub(crate) block_number: U64,
    pub(crate) recording: U32,
    pub(crate) worker: U16,
    pub(crate) reserved: U16,
    pub(crate) used: U32,
    pub(crate) key: U32,
    pub(crate) first_seq: U64,
    pub(crate) next_seq: U64,
    pub(crate) packets: U64,
    pub(crate) segments: U64,
    pub(crate) reserved_more: [u8; 40],
    pub(crate) hash_seed: [U64; 2],
}
layout!(
    RelayedHeaderBytes, 128,
    magic at 0, header_crc at 8, flags at 12, block_number at 16, recording at 24, worker at 28,
    reserved at 30, used at 32, key at 36, first_seq at 40, next_seq at 48, packets at 56,
    segments at 64, reserved_more at 72, hash_seed at 112,
);

/// The prefix of every record.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Prefix {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) reference: U16,
    /// Length of what follows.
    pub(crate) len: U32,
}
layout!(Prefix, 8, kind at 0, flags at 1, reference at 2, len at 4);

/// A packet record before its data.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct PacketBytes {
    pub(crate) prefix: Prefix,
    pub(crate) ts_ns: U64,
    /// The low half.
    pub(crate) seq: U32,
    pub(crate) wire_len: U32,
    pub(crate) captured_len: U32,
    pub(crate) verdict: U16,
    pub(crate) header_len: U16,
}
layout!(
    PacketBytes, 32,
    prefix at 0, ts_ns at 8, seq at 16, wire_len at 20, captured_len at 24, verdict at 28,
    header_len at 30,
);

/// A compact packet record before its lengths, which are optional, and its data.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct CompactBytes {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) interface: u8,
    pub(crate) header_len: u8,
    /// ns after the time of the record before that has one.
    pub(crate) time: U32,
    pub(crate) verdict: U16,
    pub(crate) captured_len: U16,
}
layout!(
    CompactBytes, 12,
    kind at 0, flags at 1, interface at 2, header_len at 3, time at 4, verdict at 8,
    captured_len at 10,
);

/// The lengths in a compact packet record.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct LengthsBytes {
    pub(crate) wire_len: U16,
    pub(crate) kept_len: U16,
}
layout!(LengthsBytes, 4, wire_len at 0, kept_len at 2);

/// A promotion before its verdict, which is optional, and its data.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct PromotionBytes {
    /// The flags say how much was kept before; the reference holds class and flags.
    pub(crate) prefix: Prefix,
    pub(crate) seq: U64,
    pub(crate) kept_len: U32,
    pub(crate) wire_len: U32,
}
layout!(PromotionBytes, 24, prefix at 0, seq at 8, kept_len at 16, wire_len at 20);

/// The start of a summary.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct SummaryHeader {
    pub(crate) counts: U16,
    pub(crate) filter: U16,
    pub(crate) bloom_len: U32,
}
layout!(SummaryHeader, 8, counts at 0, filter at 2, bloom_len at 4);

/// Packets of one class and granularity, in a summary.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct CountBytes {
    pub(crate) class: u8,
    pub(crate) keep_code: u8,
    pub(crate) reserved: U16,
    pub(crate) packets: U32,
    pub(crate) wire_bytes: U64,
    pub(crate) logged_bytes: U64,
}
layout!(
    CountBytes, 24,
    class at 0, keep_code at 1, reserved at 2, packets at 4, wire_bytes at 8, logged_bytes at 16,
);
