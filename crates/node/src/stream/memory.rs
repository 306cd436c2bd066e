//! The memory of a stream's blocks, and their way to the disk.

use std::io;
use std::mem;

use strata_store::{DiskFile, WriteQueue};
use strata_stream::{Blocks, Cursor};
use strata_sys::AlignedBytes;
use strata_sys::disk::{Carrying, OwnBlock};
use strata_wire::exact;

/// A block's memory, and the number under which the kernel knows it.
pub(super) struct Buffer {
    pub(super) memory: AlignedBytes,
    number: u16,
}

/// What is written at once: where the whole records of the page end with it, and its memory's number.
#[derive(Clone, Copy, Debug)]
struct Tag {
    whole: Cursor,
    number: u16,
}

/// The blocks of a stream: one that is being filled, some that are being written, and free ones.
pub(super) struct Memory {
    pub(super) file: Box<dyn DiskFile>,
    queue: WriteQueue<Carrying<OwnBlock, Tag>>,
    pub(super) current: Buffer,
    free: Vec<Buffer>,
    pub(super) index: u64,
    /// Where in the file the page starts, and where in the page the current block does.
    pub(super) page_at: u64,
    pub(super) block_start: usize,
    /// Records before this are in the file.
    pub(super) written: Cursor,
    /// An error is final: what follows a block that is not there is not worth much.
    pub(super) failed: bool,
}

impl Memory {
    pub(super) fn new(
        file: Box<dyn DiskFile>,
        block_bytes: usize,
        in_flight: usize,
    ) -> io::Result<Self> {
        let mut queue = WriteQueue::new(in_flight);
        let count = in_flight + 2;
        let mut buffers = (0..).take(count).map(|number| {
            let memory = AlignedBytes::try_touched(block_bytes)?;
            Ok(Buffer { memory, number })
        });
        let buffers = buffers.by_ref().collect::<io::Result<Vec<_>>>()?;
        let memory: Vec<&[u8]> = buffers.iter().map(|buffer| &buffer.memory[..]).collect();
        // Without, it works all the same.
        let is_registered = queue.register(&memory);
        let mut free = buffers;
        if !is_registered {
            free.iter_mut().for_each(|buffer| buffer.number = u16::MAX);
        }
        let current = free.pop().expect("there are some");
        Ok(Self {
            file,
            queue,
            current,
            free,
            index: 0,
            page_at: 0,
            block_start: 0,
            written: Cursor::START,
            failed: false,
        })
    }

    /// The outcome of a write.
    fn returned(
        &mut self,
        (block, outcome): (Carrying<OwnBlock, Tag>, io::Result<()>),
    ) -> io::Result<()> {
        let Tag { whole, number } = block.with;
        self.free.push(Buffer {
            memory: block.block.into_memory(),
            number,
        });
        if outcome.is_err() {
            self.failed = true;
        }
        // Those of blocks after one that failed do not count.
        if !self.failed {
            self.written = self.written.max(whole);
        }
        outcome
    }

    /// A free block, if need be one that is waited for.
    pub(super) fn take(&mut self) -> io::Result<Buffer> {
        while !self.queue.has_room() || self.free.is_empty() {
            let ended = self.queue.complete().expect("blocks are free or in flight");
            self.returned(ended)?;
        }
        Ok(self.free.pop().expect("one is free"))
    }

    pub(super) fn submit(&mut self, buffer: Buffer, len: usize, whole_until: usize) {
        let whole = Cursor {
            index: self.index,
            offset: exact(whole_until),
        };
        let number = buffer.number;
        let registered = (number != u16::MAX).then_some(number);
        let block = Carrying {
            block: OwnBlock::new(buffer.memory, len, registered),
            with: Tag { whole, number },
        };
        let at = self.page_at + self.block_start as u64;
        self.queue.submit(self.file.as_mut(), block, at);
    }

    /// Waits for all writes.
    pub(super) fn drain(&mut self) -> io::Result<()> {
        let mut outcome = Ok(());
        while let Some(ended) = self.queue.complete() {
            outcome = outcome.and(self.returned(ended));
        }
        outcome
    }
}

impl Blocks for Memory {
    type Error = io::Error;

    #[inline]
    fn current(&mut self) -> &mut [u8] {
        &mut self.current.memory
    }

    fn full(&mut self, whole_until: usize) -> io::Result<()> {
        let next = self.take()?;
        let full = mem::replace(&mut self.current, next);
        let len = full.memory.len();
        self.submit(full, len, whole_until);
        self.block_start += len;
        while let Some(ended) = self.queue.try_complete() {
            self.returned(ended)?;
        }
        Ok(())
    }
}
