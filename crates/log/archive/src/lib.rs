//! The log at rest.
//!
//! - [`compact`]: block files become parts, in open formats: `packets` and `flows` (Parquet),
//!   `payload` (pcapng in gzip members), partitioned by hour and class;
//! - [`verify`]: every byte is what was written; [`prune`]: retention by age, class and size;
//! - [`encrypt_to`], [`rotate`], [`ClearDisk`]: encryption at rest; [`relocate`]: the object tier.
//! - [`Metering`]: flow records made from packets, with timeouts;
//! - [`Table`], [`rows_of_blocks`]: rows of block files, for SQL;
//! - [`parts`]: what it takes to read a part, for `query`, which finds and exports.
//!
//! `docs/formats/archive.md` describes the files. Above `store`, so that recording does not depend
//! on Parquet; used by `query` and the command line.
#![forbid(unsafe_code)]

mod columns;
mod compact;
mod disk;
mod error;
mod files;
mod flows;
mod keys;
mod moving;
mod part;
mod prune;
mod retention;
mod run;
mod tables;
mod verify;

pub use columns::packets::PacketColumn;
pub use compact::lag::{Uncompacted, uncompacted};
pub use compact::{Compacted, compact, compact_until};
pub use disk::ClearDisk;
pub use disk::changes::Away;
pub use disk::encryption::{encrypt_to, rotate};
pub use error::{ArchiveError, MostWouldGo};
pub use flows::FlowColumn;
pub use flows::metering::{MeteredPacket, Metering, TakeRecord, Timeouts};
pub use keys::{Identities, KeyError, Recipients};
pub use moving::{Moved, Place, relocate, relocate_until};
pub use prune::made::{EARLIER_EVENTS, RoomMade};
pub use prune::pieces::deletable;
pub use prune::plan::{Importance, Piece, PieceKind, PrunePlan, Retention, plan, retention_class};
pub use prune::{NotSplit, PruneOptions, Pruned, make_room, make_room_except, prune, prune_as};
pub use retention::PROTECTED;
pub use run::flow::EndReason;
pub use strata_tables::{
    Coding, Column, Element, ElementForm, Kind, NS_PER_MICRO, Narrows, Spec, Unit, below_micros,
};
pub use tables::{Rows, Table, TakeRows, rows_of_blocks};
pub use verify::{Verified, verify, verify_telling};

/// Reading parts: their files, their tables, rows turned back into packets, and the bytes kept
/// beyond headers.
pub mod parts {
    pub use crate::columns::row::Row;
    pub use crate::columns::rows::{PacketRows, Rebuild};
    pub use crate::files::payload::{PayloadReader, Unreadable};
    pub use crate::files::{Input, InputAt};
    pub use crate::part::counts::{Amounts, Counts, GroupCounts, LabelCounts, PointCounts};
    pub use crate::part::{is_on_a_disk, missing_files, name_of, open};
    pub use crate::run::flow::{
        community_id_of, community_id_seeded, icmp_counterpart, is_community_id,
    };
    pub use strata_tables::{
        Batch, Column, FloatCells, IntCells, PAGE_ROWS, TableInput, TableReader, TextCells,
    };
}
