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
    /// CRC-32C of the headers.
    pub(crate) crc: U32,
}
layout!(IndexFooter, 20, magic at 0, blocks at 8, crc at 16);
