//! The log at rest.
//!
//! - [`compact`]: block files become parts, in open formats: `packets` and `flows`
//!   (Parquet), `payload` (pcapng in zstd frames), partitioned by hour and class;
//! - [`export`]: packets of both tiers, found through the table of flows ([`Find`]);
//! - [`verify`]: every byte is what was written; [`prune`]: retention by age, class
//!   and size.
//!
//! `docs/formats/archive.md` describes the files. Above `store`, so that recording
//! does not depend on Parquet; used by the command line.
#![forbid(unsafe_code)]

mod compact;
mod error;
mod export;
mod files;
mod find;
mod flows;
mod header;
mod names;
mod packets;
mod part;
mod payload;
mod predict;
mod prune;
mod run;
mod table;
mod verify;

pub use compact::{Compacted, compact};
pub use error::ArchiveError;
pub use export::export;
pub use find::Find;
pub use prune::{Pruned, Retention, prune};
pub use verify::{Verified, verify};
