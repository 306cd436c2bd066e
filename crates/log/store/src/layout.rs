//! Stored structures, each declared once: these bytes are what is written and read.
//!
//! All integers are little-endian, no structure has padding or alignment, and each asserts at
//! compile time its length and the offsets of its fields (`docs/formats/`).
#![allow(
    unsafe_code,
    reason = "derives of zerocopy, which check that every byte pattern is a value"
)]

use strata_wire::layout;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A slot of a checkpoint file; the map is at [`Checkpoint`](crate::Checkpoint).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct CheckpointBytes {
    pub(crate) magic: [u8; 8],
    pub(crate) crc: U32,
    pub(crate) reserved: U32,
    pub(crate) generation: U64,
    pub(crate) time_ns: U64,
    pub(crate) next_seq: U64,
    pub(crate) durable_seq: U64,
    pub(crate) seen_packets: U64,
    pub(crate) seen_bytes: U64,
}
layout!(
    CheckpointBytes, 64,
    magic at 0, crc at 8, reserved at 12, generation at 16, time_ns at 24, next_seq at 32,
    durable_seq at 40, seen_packets at 48, seen_bytes at 56,
);

/// The end of an index.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct IndexFooter {
    pub(crate) magic: [u8; 8],
    pub(crate) blocks: U64,
    pub(crate) groups: U32,
    pub(crate) slices: U32,
    /// CRC-32C of everything from the headers up to here.
    pub(crate) crc: U32,
}
layout!(IndexFooter, 28, magic at 0, blocks at 8, groups at 16, slices at 20, crc at 24);

/// What an index says of a block, in addition to its header.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct IndexedBlock {
    /// Bytes of its filter.
    pub(crate) filter_len: U32,
    /// CRC-32C of its summary up to the filter.
    pub(crate) counts_crc: U32,
}
layout!(IndexedBlock, 8, filter_len at 0, counts_crc at 4);

/// What an index says of a group of blocks.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct IndexedGroup {
    pub(crate) blocks: U32,
    pub(crate) slices: U32,
}
layout!(IndexedGroup, 8, blocks at 0, slices at 4);

/// What an index says of a slice of filters.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct IndexedSlice {
    pub(crate) len: U32,
    pub(crate) crc: U32,
}
layout!(IndexedSlice, 8, len at 0, crc at 4);

/// The end of an index of whole summaries, as older versions wrote it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct SummariesFooter {
    pub(crate) magic: [u8; 8],
    pub(crate) blocks: U64,
    /// CRC-32C of the headers.
    pub(crate) crc: U32,
}
layout!(SummariesFooter, 20, magic at 0, blocks at 8, crc at 16);
