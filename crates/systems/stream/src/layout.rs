//! Stored structures, each declared once: these bytes are what is written and read.
//!
//! All integers are little-endian, no structure has padding or alignment, and each asserts at
//! compile time its length and the offsets of its fields (`docs/formats/stream.md`).
#![allow(
    unsafe_code,
    reason = "derives of zerocopy, which check that every byte pattern is a value"
)]

use strata_wire::layout;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The start of a data page; the map is at [`PageHeader`](crate::PageHeader).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct PageHeaderBytes {
    pub(crate) magic: [u8; 8],
    pub(crate) stream: U64,
    pub(crate) index: U64,
    pub(crate) lap: U64,
    pub(crate) first_seq: U64,
    pub(crate) created_ns: U64,
    pub(crate) record_magic: U32,
    pub(crate) form: u8,
    pub(crate) redundancy: u8,
    pub(crate) block_shift: u8,
    pub(crate) reserved: u8,
    pub(crate) tag: U64,
}
layout!(
    PageHeaderBytes, 64,
    magic at 0, stream at 8, index at 16, lap at 24, first_seq at 32, created_ns at 40,
    record_magic at 48, form at 52, redundancy at 53, block_shift at 54, reserved at 55, tag at 56,
);

/// What a stream is; the map is at [`Description`](crate::Description).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct DescriptionBytes {
    pub(crate) magic: [u8; 8],
    pub(crate) id: U64,
    pub(crate) key: [u8; 16],
    pub(crate) created_ns: U64,
    pub(crate) retain_bytes: U64,
    pub(crate) retain_ns: U64,
    pub(crate) directory_bytes: U32,
    pub(crate) table_bytes: U32,
    pub(crate) page_bytes: U32,
    pub(crate) form: u8,
    pub(crate) redundancy: u8,
    pub(crate) block_shift: u8,
    pub(crate) name_len: u8,
    pub(crate) name: [u8; 64],
    pub(crate) tag: U64,
}
layout!(
    DescriptionBytes, 144,
    magic at 0, id at 8, key at 16, created_ns at 32, retain_bytes at 40, retain_ns at 48,
    directory_bytes at 56, table_bytes at 60, page_bytes at 64, form at 68, redundancy at 69,
    block_shift at 70, name_len at 71, name at 72, tag at 136,
);

/// How far a stream has come; the map is at [`State`](crate::State).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct StateBytes {
    pub(crate) magic: [u8; 8],
    pub(crate) flags: U64,
    pub(crate) index: U64,
    pub(crate) offset: U32,
    pub(crate) number: U32,
    pub(crate) next_seq: U64,
    pub(crate) oldest: U64,
    pub(crate) directory_entries: U64,
    pub(crate) time_ns: U64,
    pub(crate) synced_seq: U64,
    pub(crate) samples: [SampleBytes; 8],
    pub(crate) tag: U64,
}
layout!(
    StateBytes, 272,
    magic at 0, flags at 8, index at 16, offset at 24, number at 28, next_seq at 32,
    oldest at 40, directory_entries at 48, time_ns at 56, synced_seq at 64, samples at 72,
    tag at 264,
);

/// How much had been appended at a time.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct SampleBytes {
    pub(crate) time_ns: U64,
    pub(crate) records: U64,
    pub(crate) bytes: U64,
}
layout!(SampleBytes, 24, time_ns at 0, records at 8, bytes at 16);
