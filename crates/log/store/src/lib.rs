//! The log.
//!
//! - [`Recorder`], which writes the blocks that workers fill to files, and keeps manifest and
//!   checkpoint;
//! - [`Log`], which reads them back, even after a crash, and finds blocks by time and address
//!   without reading them;
//! - [`Cursor`]: the records of a block, for merging several;
//! - [`RelayLog`], [`RelayStream`], [`RelayWriters`]: the same files, written by a relay from
//!   blocks that switches have filled; both through one `writer`;
//! - [`Disk`]: the directory underneath, real or virtual.
//!
//! The files are described in `docs/formats/`; what is in a block is for `blocks`. Uses `blocks`,
//! `sys` and `wire`; used by `archive`, `labels`, `query`, `objects`, `pipeline`, `relay`, `record`,
//! `serve`, `gpv-run`, `stream-run` and the command line.
#![deny(unsafe_code)]

mod block;
mod disk;
mod error;
mod layout;
mod log;
mod manifest;
mod names;
mod output;
mod recorder;
mod relayed;
mod writer;

pub use block::Block;
pub use block::blocks::Blocks;
pub use block::cursor::Cursor;
pub use block::index::{IndexProblem, index_name, verify_index};
pub use block::select::Select;
pub use disk::{
    Disk, DiskChoice, DiskFile, DiskLayer, DiskReport, ReadOnlyFile, RealDisk, WriteQueue,
};
pub use error::{Damage, MissingFile, StoreError, damage_counts, damage_texts};
pub use log::{AbruptEnd, ENDED_EARLY, LOST_BEFORE, Log, Loss, Losses, read_archive};
pub use manifest::archive::{
    ARCHIVE_NAME, Archive, ENCRYPTED, FileKind, Gone, LOG_ENTRIES, Part, PartFile, Removed,
    RemovedBy, RemovedFor, STAGING, WrappedKey, add_counts,
};
pub use manifest::checkpoint::{Checkpoint, checkpoint_name};
pub use manifest::drift::{check_drift, drift_name, seal_drift};
pub use manifest::{
    About, BlockFile, DetailKept, FlowTable, MANIFEST_NAME, Manifest, Overwritten, Recording,
    SavedLedger, ShadowModel, State,
};
pub use names::{COMPACTION_NAME, is_file_name, is_remote, tier_of};
pub use output::{OutputError, Sources, is_log};
pub use recorder::{CHECKPOINT_INTERVAL, Recorder, RecorderOptions, Room, WhenFull};
pub use relayed::{
    BlockDone, Placed, RelayLog, RelayStream, RelayWriters, StoredSince, StreamOptions,
};
