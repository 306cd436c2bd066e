//! One block of a log, read and checked.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

pub(crate) mod blocks;
pub(crate) mod content;
pub(crate) mod cursor;
pub(crate) mod index;
pub(crate) mod promotions;
pub(crate) mod scan;
pub(crate) mod select;

mod buffer;

use strata_blocks::{BlockHeader, HEADER_LEN, Records, Summary};

pub(crate) use buffer::Buffer;

/// One block, read and checked.
#[derive(Debug)]
pub struct Block {
    /// Its header.
    pub header: BlockHeader,
    /// What it holds.
    pub summary: Summary,
    /// Its file, as shown in messages.
    pub file: String,
    /// Where in the file.
    pub offset: u64,
    /// End offsets in the file: of what its checksums cover, and where the next block may begin;
    /// only zeros between.
    pub ends: (u64, u64),
    /// Packets in it that end where a part was lost between switch and relay.
    pub incomplete: u32,
    /// Packets in it that refer to what is not defined: the definitions were lost, in a log of a relay
    /// that was killed before definitions had to be on disk first.
    pub undefined: u32,
    /// Offsets in the file of segments that were damaged after they were written.
    pub damaged_segments: Vec<u64>,
    pub(crate) body: Buffer,
}

impl Block {
    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }

    pub(crate) fn replace_body(&mut self, body: Vec<u8>) {
        self.body = body.into();
    }

    /// Offset in the file of its records.
    #[must_use]
    pub fn records_at(&self) -> u64 {
        self.offset.saturating_add(HEADER_LEN as u64)
    }

    /// Its records.
    #[must_use]
    pub fn records(&self) -> Records<'_> {
        Records::new(&self.body, self.header.first_seq)
    }
}
