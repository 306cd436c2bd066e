//! The columns of the tables: rows of a run as values, and back.

pub(crate) mod addresses;
pub(crate) mod filler;
pub(crate) mod packets;
pub(crate) mod row;
pub(crate) mod rows;
pub(crate) mod sorted;
pub(crate) mod verdicts;
