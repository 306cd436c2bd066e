//! The columns of the tables: rows of a run as values, and back.

pub(crate) mod addresses;
pub(crate) mod dictionary;
pub(crate) mod extensions;
pub(crate) mod filler;
pub(crate) mod header;
pub(crate) mod packets;
pub(crate) mod predict;
pub(crate) mod row;
pub(crate) mod rows;
pub(crate) mod sorted;
pub(crate) mod tables;
pub(crate) mod verdicts;
