//! Closing a block, and its memory while it is written.

use std::mem;

use strata_sys::disk::OwnBlock;
use strata_wire::FlowHasher;

use super::BlockBuilder;
use crate::filter::{Bloom, Filter, FilterKind};
use crate::format::{BlockHeader, FLAG_HOLDS_FLOWS, FORM, HEADER_LEN, align_up};
use crate::summary::{ClassCount, emit};

impl BlockBuilder {
    /// Closes the block: writes summary, checksums and header, and returns the bytes to write to
    /// the file.
    ///
    /// # Panics
    ///
    /// If the block is larger than 4 GiB, which even the largest record is not.
    pub fn seal(&mut self, recording: u32, worker: u16, number: u64, hash_seed: [u64; 2]) -> &[u8] {
        let counters = self.counters();
        let counts: Vec<ClassCount> = self.class_counts().collect();
        for count in &counts {
            self.header.classes |= 1 << count.class.min(63);
        }
        let filter = (!self.notes_full).then(|| self.filter(&FlowHasher::new(hash_seed)));
        let bloom = filter.as_ref().map_or(&[][..], Filter::bytes);
        let mut end = self.len;
        emit(&counts, Bloom::new(FilterKind::Split, bloom), |part| {
            self.bytes[end..end + part.len()].copy_from_slice(part);
            end += part.len();
        });
        let body = &self.bytes[HEADER_LEN..self.len];
        let summary = &self.bytes[self.len..end];
        let to_u32 = |len: usize| u32::try_from(len).expect("a block is below 4 GiB");
        self.header = BlockHeader {
            body_crc: crc32c::crc32c(body),
            summary_crc: crc32c::crc32c(summary),
            flags: self.header.flags | FLAG_HOLDS_FLOWS,
            body_len: to_u32(body.len()),
            summary_len: to_u32(summary.len()),
            block_number: number,
            recording,
            worker,
            form: FORM,
            records: self.header.records + self.header.packets,
            wire_bytes: counters.wire_bytes,
            logged_bytes: counters.logged_bytes,
            hash_seed,
            ..self.header
        };
        let stored_end = align_up(end);
        self.bytes[end..stored_end].fill(0);
        self.bytes[..HEADER_LEN].copy_from_slice(&self.header.emit());
        &self.bytes[..stored_end]
    }

    /// The memory the block is filled in, as long as no record makes it grow.
    pub(crate) fn memory(&self) -> &[u8] {
        &self.bytes
    }

    /// Stores the number under which [`BlockBuilder::memory`] is registered with the kernel.
    pub(crate) fn set_registered(&mut self, number: u16) {
        self.registered = Some(number);
    }

    /// The first `len` bytes of the block, as [`BlockBuilder::seal`] returned them.
    #[must_use]
    pub fn sealed(&self, len: usize) -> &[u8] {
        &self.bytes[..len]
    }

    /// The memory of a sealed block, of which `len` bytes go to the disk. The block cannot be used
    /// again before [`BlockBuilder::put_back`].
    #[must_use]
    pub fn take_sealed(&mut self, len: usize) -> OwnBlock {
        OwnBlock::new(mem::take(&mut self.bytes), len, self.registered)
    }

    /// Puts back what [`BlockBuilder::take_sealed`] took.
    pub fn put_back(&mut self, sealed: OwnBlock) {
        self.bytes = sealed.into_memory();
    }
}
