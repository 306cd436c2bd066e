//! Memory for frames that wait to be sent.

use std::io;
use std::os::fd::BorrowedFd;

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
}

/// Bytes from a slot to the next: a multiple of a cache line.
pub(super) fn stride(frame_max: usize) -> usize {
    (HEADER_LEN + frame_max).next_multiple_of(64)
}

impl Slots {
    pub(super) fn in_memory(count: usize, frame_max: usize) -> io::Result<Self> {
        let memory = Mapping::anonymous(count * stride(frame_max))?;
        Ok(Self::new(memory, count, frame_max))
    }

    /// Slots that are the values of a mapped array.
    pub(super) fn of_array(fd: BorrowedFd<'_>, count: usize, frame_max: usize) -> io::Result<Self> {
        let memory = Mapping::of(fd, count * stride(frame_max), 0)?;
        Ok(Self::new(memory, count, frame_max))
    }

    fn new(memory: Mapping, count: usize, frame_max: usize) -> Self {
        Self {
            memory,
            stride: stride(frame_max),
            count,
            frame_max,
        }
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
        // SAFETY: as above, and the kernel only reads slots while a `send` runs, which takes
        // the whole sender.
        #[allow(unsafe_code)]
        let bytes = unsafe { self.memory.bytes_mut(slot * self.stride, self.stride) };
        let len = u32::try_from(frame.len()).unwrap_or(0);
        bytes[LEN_AT..LEN_AT + 4].copy_from_slice(&len.to_ne_bytes());
        bytes[DUE_AT..DUE_AT + 8].copy_from_slice(&due_ns.to_ne_bytes());
        bytes[HEADER_LEN..HEADER_LEN + frame.len()].copy_from_slice(frame);
    }

    pub(super) fn len(&self, slot: usize) -> usize {
        let bytes = &self.slot(slot)[LEN_AT..LEN_AT + 4];
        u32::from_ne_bytes(bytes.try_into().unwrap_or_default()) as usize
    }

    pub(super) fn due_ns(&self, slot: usize) -> u64 {
        let bytes = &self.slot(slot)[DUE_AT..DUE_AT + 8];
        u64::from_ne_bytes(bytes.try_into().unwrap_or_default())
    }

    pub(super) fn frame(&self, slot: usize) -> &[u8] {
        &self.slot(slot)[HEADER_LEN..HEADER_LEN + self.len(slot)]
    }
}
