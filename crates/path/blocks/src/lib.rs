//! Blocks: what a worker fills, a log stores and a reader takes apart, as bytes.
//!
//! - [`BlockBuilder`], filled by a worker; [`BlockSink`] and [`BlockSource`], through which full
//!   blocks travel to their writer, and their outcome back; [`Sink`], what a worker needs
//!   of such a channel;
//! - [`BlockHeader`], [`Summary`], [`Records`]: a block's parts, read back;
//! - [`RelayedHeader`], [`assemble`]: blocks that came through a relay, as segments;
//! - [`Streamed`]: a packet as a record of a stream.
//!
//! The bytes are described in `docs/formats/block-file.md`. No files, no threads: `store` has
//! these. Uses `wire`, and aligned memory of `sys`; used by `pipeline`, `store`, `relay` and those
//! above.
#![deny(unsafe_code)]

mod builder;
mod channel;
mod compact;
mod context;
mod error;
mod filter;
mod format;
mod layout;
mod promotion;
mod records;
mod relayed;
mod streamed;
mod summary;

pub use builder::{BlockBuilder, BlockCounters, PacketRun};
pub use channel::{
    BlockEnd, BlockSink, BlockSource, Incoming, Progress, Sink, Written, block_channel,
    link_channel,
};
pub use context::reason;
pub use error::SinkError;
pub use filter::{Bloom, FilterLine, line_may_hold, line_of};
pub use format::{
    ALIGNMENT, BODY_MAX, BlockHeader, FORM, HEADER_LEN, MAGIC, PACKET_HEADER_LEN, PREFIX_LEN,
    PacketRecord, Trees, VerdictRecord, align_up,
};
pub use promotion::{PROMOTION_HEADER_LEN, Promotion, Whole, complete};
pub use records::{BadRecord, CompactPacket, Head, RawRecord, Record, RecordPlace, Records};
pub use relayed::{
    Assembled, Definitions, RELAYED_HEADER_LEN, RELAYED_MAGIC, RelayedHeader, SEGMENTS_AT,
    are_definitions, assemble, low_half, whole_packets,
};
pub use streamed::Streamed;
pub use summary::{ClassCount, SUMMARY_BYTES_MAX, Summary};
