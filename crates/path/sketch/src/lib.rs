//! Per-flow features in bounded memory.
//!
//! - [`Sketch`]: two layers of buckets with voting (TitanLog §IV-A), as the data plane uses it; its
//!   naive twin [`ExactTable`];
//! - [`PacketFacts`] go in, [`FlowStats`] come out, and [`Feature`] turns both
//!   into the numbers that a model compares;
//! - [`Arithmetic::Switch`] gives the numbers that a programmable switch would.
//!
//! Uses `wire`, and memory of `sys` that grows; used by `classify` (for the names of features) and `pipeline`.
#![deny(unsafe_code)]

mod bucket;
mod clock;
mod exact;
mod facts;
mod feature;
mod switch;
mod table;

pub use bucket::Bucket;
pub use clock::Clock;
pub use exact::ExactTable;
pub use facts::{FlowStats, PacketFacts};
pub use feature::{Feature, Level};
pub use switch::{Arithmetic, RangeTable};
pub use table::{BITS_DEFAULT, BLOCK, Block, Gathered, Preparation, Pressure, Sketch, TableSize};
