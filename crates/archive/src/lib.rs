//! The log at rest.
//!
//! - [`compact`]: block files become parts, in open formats: `packets` and `flows`
//!   (Parquet), `payload` (pcapng in gzip members), partitioned by hour and class;
//! - [`export`]: packets of both tiers, found through the table of flows ([`Find`]);
//! - [`flow_records`], [`RecordWriter`]: flows as CSV, JSON, IPFIX; [`reasons_of`]: why
//!   packets were kept;
//! - [`verify`]: every byte is what was written; [`prune`]: retention by age, class
//!   and size;
//! - [`encrypt_to`], [`rotate`], [`ClearDisk`]: encryption at rest; [`relocate`]: the cold tier.
//! - [`Table`], [`rows_of_blocks`]: the tables as Arrow, for SQL;
//!
//! `docs/formats/archive.md` describes the files. Above `store`, so that recording
//! does not depend on Parquet; used by the command line.
#![forbid(unsafe_code)]

mod by_time;
mod changes;
mod checked;
mod coded;
mod compact;
mod dictionary;
mod disk;
mod encryption;
mod error;
mod export;
mod files;
mod find;
mod flow_index;
mod flows;
mod header;
mod innermost;
mod intake;
mod keys;
mod merge;
mod moving;
mod names;
mod packets;
mod pages;
mod part;
mod payload;
mod pending;
mod predict;
mod protection;
mod prune;
mod reasons;
mod records;
mod rows;
mod run;
mod sorted;
mod table;
mod tables;
mod verify;

pub use compact::{Compacted, compact, snapshot};
pub use disk::ClearDisk;
pub use encryption::{encrypt_to, rotate};
pub use error::ArchiveError;
pub use export::{export, export_within};
pub use find::{Find, name_of};
pub use keys::{Identities, KeyError, Recipients};
pub use moving::{Moved, Place, relocate};
pub use prune::{
    Importance, PROTECTED, Piece, PieceKind, Plan, Pruned, Retention, make_room, plan, prune,
    retention_class,
};
pub use reasons::{ReasonCount, reasons_of};
pub use records::{FlowRecord, RecordFormat, RecordWriter, flow_records};
pub use tables::{Rows, Table, TakeRows, rows_of_blocks};
pub use verify::{Verified, verify};
