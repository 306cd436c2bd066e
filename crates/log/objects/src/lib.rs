//! The object tier: files of a log that are stored outside its directory.
//!
//! - [`ObjectDisk`]: a log's disk on which names that are URLs are files of an object store
//!   (`s3://bucket/key`) or of another directory (`file:///path`); all others are its own.
//!
//! Above `store`; used by the command line and by SQL. `archive` decides what is moved there, and
//! when.
#![forbid(unsafe_code)]

mod bucket;
mod disk;
mod pieces;

pub use disk::ObjectDisk;
