//! Tables with declared columns as Parquet, a row group at a time.
//!
//! - [`Spec`] declares a column once; what is written, read and documented follows from it.
//! - [`Column`] has the values of some rows; [`TableWriter`] takes columns, with several threads if
//!   wanted, and [`TableReader`] returns those of some rows.
//! - [`Coded`] are columns whose values are already numbered, which the parquet crate would number again.
//! - [`TableInput`] is told of all that is about to be read.
//!
//! What the columns of a log are, is in the crate `archive`.
#![forbid(unsafe_code)]

mod ahead;
mod batch;
mod coded;
mod column;
mod error;
mod parallel;
mod reader;
mod spec;
mod texts;
mod writer;

pub use ahead::TableInput;
pub use batch::{Batch, FloatCells, IntCells, TextCells};
pub use coded::{Coded, Entries, IntCodes, NULL};
pub use column::{Column, PAGE_ROWS, Values};
pub use error::{Interrupted, Source, TableError};
pub use parallel::in_parallel;
pub use reader::TableReader;
pub use spec::{
    Coding, Element, ElementForm, Kind, NS_PER_MICRO, Narrows, Spec, Unit, below_micros, field_ids,
    field_ids_by_place,
};
pub use writer::TableWriter;
