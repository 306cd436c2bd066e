//! The records that most packets have, of a few shapes: written and read without detours, with the same bits.

pub(super) mod read;
mod shape;
pub(super) mod write;
