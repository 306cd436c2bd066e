//! Memory for frames that wait to be sent.

use std::io;
use std::os::fd::BorrowedFd;

use strata_wire::exact;

use crate::live::sys::Mapping;

/// Bytes before each frame.
///
/// ```text
/// 0        4        8        16
/// | length |        | due ns | frame
/// ```
pub(super) const HEADER_LEN: usize = 16;
pub(super) const LEN_AT: usize = 0;
pub(super) const DUE_AT: usize = 8;

/// Frames at equal distances, shared with the kernel or not.
#[derive(Debug)]
pub(super) struct Slots {
    memory: Mapping,
    stride: usize,
    count: usize,
    frame_max: usize,
    /// What every frame ends with, so that slots need not hold it. If there is any, all
    /// frames are as long as the longest.
    tail: Vec<u8>,
}

/// Bytes from a slot to the next, if slots hold so many bytes of a frame: a multiple of a
/// cache line.
pub(super) fn stride(held: usize) -> usize {
    (HEADER_LEN + held).next_multiple_of(64)
}

impl Slots {
    pub(super) fn in_memory(count: usize, frame_max: usize) -> io::Result<Self> {
        let memory = Mapping::anonymous(count * stride(frame_max))?;
        Ok(Self::new(memory, count, frame_max, &[]))
    }

    /// Slots that are the values of a mapped array, without the tail of their frames.
    pub(super) fn of_array(
        fd: BorrowedFd<'_>,
        count: usize,
        frame_max: usize,
        tail: &[u8],
    ) -> io::Result<Self> {
        let memory = Mapping::of(fd, count * stride(frame_max - tail.len()), 0)?;
        Ok(Self::new(memory, count, frame_max, tail))
    }

    fn new(memory: Mapping, count: usize, frame_max: usize, tail: &[u8]) -> Self {
        Self {
            memory,
            stride: stride(frame_max - tail.len()),
            count,
            frame_max,
            tail: tail.to_vec(),
        }
    }

    /// Whether they hold frames without what all end with.
    pub(super) fn lack_tail(&self) -> bool {
        !self.tail.is_empty()
    }

    /// The same in memory of their own, which holds whole frames.
    pub(super) fn whole(&self) -> io::Result<Self> {
        let mut whole = Self::in_memory(self.count, self.frame_max)?;
        for slot in 0..self.count {
            // A slot into which no frame was put has no length.
            if self.len(slot) > 0 {
                let frame = [self.head(slot), &self.tail].concat();
                whole.put(slot, &frame, self.due_ns(slot));
            }
        }
        Ok(whole)
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn frame_max(&self) -> usize {
        self.frame_max
    }

    fn slot(&self, slot: usize) -> &[u8] {
        // SAFETY: nobody writes slots but `put`, which takes `&mut self`; the kernel reads
        // them at most.
        #[allow(unsafe_code)]
        unsafe {
            self.memory.bytes(slot * self.stride, self.stride)
        }
    }

    pub(super) fn put(&mut self, slot: usize, frame: &[u8], due_ns: u64) {
        assert!(slot < self.count && frame.len() <= self.frame_max);
        let head = if self.tail.is_empty() {
            frame
        } else {
            assert!(frame.len() == self.frame_max && frame.ends_with(&self.tail));
            &frame[..frame.len() - self.tail.len()]
        };
        // SAFETY: as above, and the kernel only reads slots while a `send` runs, which takes
        // the whole sender.
        #[allow(unsafe_code)]
        let bytes = unsafe { self.memory.bytes_mut(slot * self.stride, self.stride) };
        let len = exact::<u32>(frame.len());
        bytes[LEN_AT..LEN_AT + 4].copy_from_slice(&len.to_ne_bytes());
        bytes[DUE_AT..DUE_AT + 8].copy_from_slice(&due_ns.to_ne_bytes());
        bytes[HEADER_LEN..HEADER_LEN + head.len()].copy_from_slice(head);
    }

    pub(super) fn len(&self, slot: usize) -> usize {
        let bytes = &self.slot(slot)[LEN_AT..LEN_AT + 4];
        u32::from_ne_bytes(bytes.try_into().unwrap_or_default()) as usize
    }

    pub(super) fn due_ns(&self, slot: usize) -> u64 {
        let bytes = &self.slot(slot)[DUE_AT..DUE_AT + 8];
        u64::from_ne_bytes(bytes.try_into().unwrap_or_default())
    }

    /// A frame without the tail: whole, unless slots lack it.
    pub(super) fn head(&self, slot: usize) -> &[u8] {
        &self.slot(slot)[HEADER_LEN..HEADER_LEN + self.len(slot) - self.tail.len()]
    }
}
