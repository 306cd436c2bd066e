//! Blocks in flight to a file of a disk, several at once.

use std::io;

use strata_sys::disk::{DiskBlock, Memory, Writes, Written};

use super::DiskFile;

/// Writes blocks, several at a time, and returns them in the order they were submitted
/// ([`Writes`]). Where the kernel refuses io_uring, or a file has no descriptor, each is written
/// before `submit` returns, unless the file begins it only ([`DiskFile::begin_write`]).
#[derive(Debug)]
pub struct WriteQueue<B>(Writes<B>);

impl<B: DiskBlock> WriteQueue<B> {
    /// A queue of this many blocks at a time, using io_uring if the kernel allows it and more than
    /// one is wanted.
    #[must_use]
    pub fn new(in_flight_max: usize) -> Self {
        Self(Writes::new(in_flight_max))
    }

    /// Why the kernel refuses io_uring; `None` if it does not, or was not tried.
    #[must_use]
    pub fn refused(&self) -> Option<&io::Error> {
        self.0.refused()
    }

    /// As [`Writes::register`].
    pub fn register(&mut self, buffers: &[&[u8]]) -> bool {
        self.0.register(buffers)
    }

    /// Whether another block can be submitted now without waiting for one.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.0.has_room()
    }

    /// Whether nothing is in flight.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Starts writing a block at `offset`. [`WriteQueue::complete`] returns the outcome.
    ///
    /// # Panics
    ///
    /// If the queue is full.
    pub fn submit(&mut self, file: &mut dyn DiskFile, block: B, offset: u64) {
        let shared = file.shared();
        let start = file.start();
        self.0.submit(shared, block, start + offset, |memory| {
            let copy;
            let bytes = match memory {
                Memory::Own(bytes) => bytes,
                Memory::Shared(slice) => {
                    copy = slice.to_vec();
                    &copy
                }
            };
            match file.begin_write(bytes, offset) {
                Some(pending) => Written::Pending(pending),
                None => Written::Done(file.write_at(bytes, offset)),
            }
        });
    }

    /// Waits for the block that was submitted first; `None` if nothing is in flight.
    /// A block whose outcome is an error may be partly written.
    pub fn complete(&mut self) -> Option<(B, io::Result<()>)> {
        self.0.complete()
    }

    /// As [`WriteQueue::complete`], but without waiting.
    pub fn try_complete(&mut self) -> Option<(B, io::Result<()>)> {
        self.0.try_complete()
    }
}
