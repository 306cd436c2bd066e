//! The log.
//!
//! - [`BlockBuilder`], filled by a worker, and [`Recorder`], which writes blocks to files and keeps
//!   manifest and checkpoint;
//! - [`Log`], which reads them back, even after a crash, and finds blocks by time and address
//!   without reading them;
//! - [`Cursor`]: the records of a block, for merging several;
//! - [`RelayLog`], [`RelayStream`], [`RelayWriters`]: the same files, written by a relay from
//!   blocks that switches have filled; both through one `writer`;
//! - [`Disk`]: the directory underneath, real or virtual.
//!
//! The files are described in `docs/formats/`. Uses `wire` alone;
//! used by `pipeline`, `archive`, `query` and the command line.
#![deny(unsafe_code)]

mod archive;
mod blocks;
mod builder;
mod channel;
mod checkpoint;
mod context;
mod cursor;
mod disk;
mod drift;
mod error;
mod flipped;
mod format;
mod index;
mod layout;
mod log;
mod manifest;
mod nulldisk;
mod output;
mod promotion;
mod recorder;
mod records;
mod relayed;
mod simdisk;
mod stored;
mod summary;
mod writer;

pub use archive::{
    ARCHIVE_NAME, Archive, ENCRYPTED, FileKind, Gone, LOG_ENTRIES, Part, PartCount, PartFile,
    STAGING, WrappedKey, is_file_name, is_remote,
};
pub use blocks::{Block, Blocks, Select};
pub use builder::{BlockBuilder, BlockCounters, PacketRun};
pub use channel::{BlockEnd, BlockSink, BlockSource, Incoming, Progress, Written, block_channel};
pub use checkpoint::{Checkpoint, checkpoint_name};
pub use context::reason;
pub use cursor::{Cursor, Head};
pub use disk::{Disk, DiskChoice, DiskFile, DiskReport, RealDisk, WriteQueue};
pub use drift::{check_drift, drift_name, seal_drift};
pub use error::{Damage, StoreError};
pub use format::{
    ALIGNMENT, BODY_MAX, BlockHeader, HEADER_LEN, MAGIC, PACKET_HEADER_LEN, PREFIX_LEN,
    PacketRecord, VerdictRecord, keep_name,
};
pub use index::{index_name, verify_index};
pub use log::{Log, Loss, read_archive};
pub use manifest::{
    About, BlockFile, MANIFEST_NAME, Manifest, Overwritten, Recording, SavedLedger, State,
};
pub use nulldisk::NullDisk;
pub use output::{OutputError, Sources};
pub use promotion::{PROMOTION_HEADER_LEN, Promotion};
pub use recorder::{CHECKPOINT_INTERVAL, Recorder, RecorderOptions, WhenFull};
pub use records::{BadRecord, RawPacket, RawRecord, Record, Records};
pub use relayed::{
    BlockDone, Placed, RELAYED_HEADER_LEN, RELAYED_MAGIC, RelayLog, RelayStream, RelayWriters,
    RelayedHeader, SEGMENTS_AT, StreamOptions, are_definitions,
};
pub use simdisk::SimDisk;
pub use summary::{ClassCount, Summary};
// Names that users of this crate need too.
pub use strata_wire::{Context, Decider, in_words};
