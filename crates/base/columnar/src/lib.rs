//! Columns for other programs, where Arrow's crates would do much more than is needed.
//!
//! - [`ParquetFile`]: Parquet files of any columns, also within lists;
//! - [`Pages`], [`rle`]: the pages of a Parquet file, for `archive`, which encodes and decodes its own;
//! - [`has_places`], [`checked`]: files that may be any, and their pages, for parquet's readers;
//! - [`arrow`]: Arrow streams, and the schema in Parquet files that readers of Arrow look for.
//!
//! Depends on no other crate, and does no I/O but by the writer that it is given.
#![forbid(unsafe_code)]

pub mod arrow;
mod checked;
mod file;
mod pages;
pub mod rle;

pub use checked::{checked, has_places};
pub use file::{Cell, CellKind, Leaf, ParquetFile, list_column};
pub use pages::Pages;
