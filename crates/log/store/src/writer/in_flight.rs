//! Blocks in flight to a disk, with their places.

use std::collections::VecDeque;
use std::io;

use strata_sys::DiskBlock;

use crate::disk::{DiskFile, WriteQueue};

use super::file::PlacedAt;

/// A block no longer in flight: its place, the block, and the outcome.
pub(crate) type Landed<B> = (PlacedAt, B, io::Result<()>);

/// Writes blocks to their places, several at a time, and returns them in order.
pub(crate) struct InFlight<B> {
    queue: WriteQueue<B>,
    places: VecDeque<PlacedAt>,
}

impl<B: DiskBlock> InFlight<B> {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            queue: WriteQueue::new(most),
            places: VecDeque::new(),
        }
    }

    /// See [`WriteQueue::register`].
    pub(crate) fn register(&mut self, buffers: &[&[u8]]) -> bool {
        self.queue.register(buffers)
    }

    pub(crate) fn has_room(&self) -> bool {
        self.queue.has_room()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Starts writing a block to its place in `file`; the queue must not be full.
    pub(crate) fn submit(&mut self, file: &mut dyn DiskFile, placed: PlacedAt, block: B) {
        self.queue.submit(file, block, placed.offset());
        self.places.push_back(placed);
    }

    /// Waits for the first block in flight; `None` without one.
    pub(crate) fn complete(&mut self) -> Option<Landed<B>> {
        let done = self.queue.complete();
        self.landed(done)
    }

    /// The first block in flight, if it was written or failed.
    pub(crate) fn try_complete(&mut self) -> Option<Landed<B>> {
        let done = self.queue.try_complete();
        self.landed(done)
    }

    fn landed(&mut self, done: Option<(B, io::Result<()>)>) -> Option<Landed<B>> {
        let (block, outcome) = done?;
        let placed = self.places.pop_front();
        Some((placed.expect("every block has a place"), block, outcome))
    }
}
