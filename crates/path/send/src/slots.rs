//! Memory for frames that wait to be sent.

use std::io;

use strata_bpf::Array;
use strata_sys::AlignedBytes;
use strata_sys::shared::SharedMemory;
use strata_wire::exact;

/// Bytes before each frame.
///
/// ```text
/// 0        4        8        16
/// | length |        | due ns | frame
/// ```
pub(super) const HEADER_LEN: usize = 16;
pub(super) const LEN_AT: usize = 0;
pub(super) const DUE_AT: usize = 8;

/// Where the slots are.
#[derive(Debug)]
enum Memory {
    /// In memory of our own.
    Own(AlignedBytes),
    /// In an array that a program in the kernel reads.
    Array(SharedMemory),
}

/// Equally spaced frames, shared with the kernel or not.
#[derive(Debug)]
pub(super) struct Slots {
    memory: Memory,
    stride: usize,
    count: usize,
    frame_max: usize,
    /// What every frame ends with, so that slots need not hold it. If it is not empty, all frames
    /// are as long as the longest.
    tail: Vec<u8>,
}

/// Bytes from a slot to the next, if slots hold this many bytes of a frame: a multiple of a cache
/// line.
pub(super) fn stride(held: usize) -> usize {
    (HEADER_LEN + held).next_multiple_of(64)
}

impl Slots {
    pub(super) fn in_memory(count: usize, frame_max: usize) -> io::Result<Self> {
        let memory = AlignedBytes::try_touched(count * stride(frame_max))?;
        Ok(Self::new(Memory::Own(memory), count, frame_max, &[]))
    }

    /// Slots that are the values of an array, without the tail of their frames.
    pub(super) fn of_array(
        array: &Array,
        count: usize,
        frame_max: usize,
        tail: &[u8],
    ) -> io::Result<Self> {
        let memory = array.map(count * stride(frame_max - tail.len()))?;
        Ok(Self::new(Memory::Array(memory), count, frame_max, tail))
    }

    fn new(memory: Memory, count: usize, frame_max: usize, tail: &[u8]) -> Self {
        Self {
            memory,
            stride: stride(frame_max - tail.len()),
            count,
            frame_max,
            tail: tail.to_vec(),
        }
    }

    /// Whether they are in an array of a program; those of [`Slots::whole`] are not.
    pub(super) fn are_shared(&self) -> bool {
        matches!(self.memory, Memory::Array(_))
    }

    /// The same in memory of their own, which holds whole frames.
    pub(super) fn whole(&self) -> io::Result<Self> {
        let mut whole = Self::in_memory(self.count, self.frame_max)?;
        for slot in 0..self.count {
            let len = self.len(slot);
            // A slot without a frame has no length.
            if len > 0 {
                let mut frame = vec![0; len - self.tail.len()];
                self.read(slot, HEADER_LEN, &mut frame);
                frame.extend_from_slice(&self.tail);
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

    pub(super) fn put(&mut self, slot: usize, frame: &[u8], due_ns: u64) {
        assert!(slot < self.count && frame.len() <= self.frame_max);
        let head = if self.tail.is_empty() {
            frame
        } else {
            assert!(frame.len() == self.frame_max && frame.ends_with(&self.tail));
            &frame[..frame.len() - self.tail.len()]
        };
        let len = exact::<u32>(frame.len());
        self.write(slot, LEN_AT, &len.to_ne_bytes());
        self.write(slot, DUE_AT, &due_ns.to_ne_bytes());
        self.write(slot, HEADER_LEN, head);
    }

    #[inline]
    fn write(&mut self, slot: usize, at: usize, bytes: &[u8]) {
        let at = slot * self.stride + at;
        match &mut self.memory {
            Memory::Own(memory) => memory[at..at + bytes.len()].copy_from_slice(bytes),
            Memory::Array(memory) => memory.copy_in(at, bytes),
        }
    }

    #[inline]
    fn read(&self, slot: usize, at: usize, into: &mut [u8]) {
        let at = slot * self.stride + at;
        match &self.memory {
            Memory::Own(memory) => into.copy_from_slice(&memory[at..at + into.len()]),
            Memory::Array(memory) => memory.copy_into(at, into),
        }
    }

    pub(super) fn len(&self, slot: usize) -> usize {
        let mut len = [0; 4];
        self.read(slot, LEN_AT, &mut len);
        u32::from_ne_bytes(len) as usize
    }

    pub(super) fn due_ns(&self, slot: usize) -> u64 {
        let mut due_ns = [0; 8];
        self.read(slot, DUE_AT, &mut due_ns);
        u64::from_ne_bytes(due_ns)
    }

    /// A frame.
    ///
    /// # Panics
    ///
    /// If the slots are those of an array.
    pub(super) fn frame(&self, slot: usize) -> &[u8] {
        let Memory::Own(memory) = &self.memory else {
            panic!("frames of an array are not sent through a socket");
        };
        let at = slot * self.stride + HEADER_LEN;
        &memory[at..at + self.len(slot)]
    }
}
