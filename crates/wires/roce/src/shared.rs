//! Shared memory between two processes on one machine: both map the blocks, and an RDMA WRITE is a
//! copy.

use std::fs::File;
use std::io;

use strata_sys::shared::SharedMemory;

/// Blocks of another process, as mapped by the one that fills them.
#[derive(Debug)]
pub struct SharedToPeer {
    mapping: SharedMemory,
    stride: usize,
    first: usize,
}

impl SharedToPeer {
    /// Maps blocks, in memory that must have `blocks` times `stride` bytes and keep them. The first
    /// `first` bytes of each must not be written.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn map(file: File, blocks: usize, stride: usize, first: usize) -> io::Result<Self> {
        let len = blocks.checked_mul(stride);
        let len = len.ok_or(io::ErrorKind::InvalidInput)?;
        let mapping = SharedMemory::map(file, len)?;
        Ok(Self {
            mapping,
            stride,
            first,
        })
    }

    /// Copies `bytes` to `at` after the first bytes of a block.
    ///
    /// # Panics
    ///
    /// If that is beyond the block.
    pub fn write(&self, block: usize, at: usize, bytes: &[u8]) {
        let within = self.first.checked_add(at).filter(|within| {
            let end = within.checked_add(bytes.len());
            end.is_some_and(|end| end <= self.stride)
        });
        let place = within.and_then(|within| block.checked_mul(self.stride)?.checked_add(within));
        self.mapping
            .copy_in(place.expect("within the block"), bytes);
    }
}
