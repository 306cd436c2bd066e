//! Blocks being written to a disk, several at a time. The queue owns a block until the kernel has
//! released it.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::mem;
use std::sync::Arc;

use crate::memory::aligned::AlignedBytes;
use crate::memory::shared::{SharedBlock, SharedSlice};
use crate::uring::Ring;

/// Where the bytes of a block are.
#[derive(Clone, Copy, Debug)]
pub enum Memory<'a> {
    /// They are not written to while the block is in flight.
    Own(&'a [u8]),
    /// Another process, or a NIC, might write to them.
    Shared(SharedSlice<'a>),
}

impl Memory<'_> {
    /// How many there are.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "blocks are never empty")]
    pub fn len(&self) -> usize {
        match self {
            Self::Own(bytes) => bytes.len(),
            Self::Shared(slice) => slice.len(),
        }
    }

    /// A copy of them, as they are now.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        match self {
            Self::Own(bytes) => bytes.to_vec(),
            Self::Shared(slice) => slice.to_vec(),
        }
    }

    fn start(&self) -> *const u8 {
        match self {
            Self::Own(bytes) => bytes.as_ptr(),
            Self::Shared(slice) => slice.start(),
        }
    }
}

/// Memory that is written to a file; for direct writes, a multiple of 4,096 bytes at an address
/// that is one too.
///
/// # Safety
///
/// The kernel reads the bytes while nothing borrows from the value. So, from one mutable use of the
/// value to the next, or until it is dropped:
///
/// - `memory` returns the same bytes each time;
/// - they stay in place, even when the value itself is moved;
/// - no code in this process writes or frees them. Bytes that others may write are
///   [`Memory::Shared`].
pub unsafe trait DiskBlock: Send + 'static {
    /// What is written.
    fn memory(&self) -> Memory<'_>;

    /// The number of the buffer given to [`Writes::register`] that holds the bytes, if one does and
    /// that memory has not been freed since.
    fn registered(&self) -> Option<u16> {
        None
    }
}

// SAFETY: the bytes are on the heap, and change only through a mutable reference.
unsafe impl DiskBlock for Vec<u8> {
    fn memory(&self) -> Memory<'_> {
        Memory::Own(self)
    }
}

/// The first bytes of our own memory.
#[derive(Debug)]
pub struct OwnBlock {
    memory: AlignedBytes,
    len: usize,
    registered: Option<u16>,
}

impl OwnBlock {
    /// The first `len` bytes of `memory`, which are in the registered buffer of that number.
    ///
    /// # Panics
    ///
    /// If it has fewer.
    #[must_use]
    pub fn new(memory: AlignedBytes, len: usize, registered: Option<u16>) -> Self {
        assert!(len <= memory.len(), "a block is within its memory");
        Self {
            memory,
            len,
            registered,
        }
    }

    /// What is written.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.memory[..self.len]
    }

    /// All of its memory.
    #[must_use]
    pub fn into_memory(self) -> AlignedBytes {
        self.memory
    }
}

// SAFETY: `AlignedBytes` stay in place, and change only through a mutable reference, which is not
// given out.
unsafe impl DiskBlock for OwnBlock {
    fn memory(&self) -> Memory<'_> {
        Memory::Own(self.bytes())
    }

    fn registered(&self) -> Option<u16> {
        self.registered
    }
}

// SAFETY: the mapping lives as long as the block, at the same place; it declares that others write.
unsafe impl DiskBlock for SharedBlock {
    fn memory(&self) -> Memory<'_> {
        Memory::Shared(self.slice())
    }
}

/// A block of either kind.
#[derive(Debug)]
pub enum AnyBlock {
    /// In our own memory.
    Own(OwnBlock),
    /// In memory that others write too.
    Shared(SharedBlock),
}

// SAFETY: as its kinds are.
unsafe impl DiskBlock for AnyBlock {
    fn memory(&self) -> Memory<'_> {
        match self {
            Self::Own(block) => block.memory(),
            Self::Shared(block) => block.memory(),
        }
    }

    fn registered(&self) -> Option<u16> {
        match self {
            Self::Own(block) => block.registered(),
            Self::Shared(block) => block.registered(),
        }
    }
}

/// A block together with data that belongs to it and comes back with it.
#[derive(Debug)]
pub struct Carrying<B, T> {
    /// The block.
    pub block: B,
    /// The data that belongs to it.
    pub with: T,
}

// SAFETY: as the block is.
unsafe impl<B: DiskBlock, T: Send + 'static> DiskBlock for Carrying<B, T> {
    fn memory(&self) -> Memory<'_> {
        self.block.memory()
    }

    fn registered(&self) -> Option<u16> {
        self.block.registered()
    }
}

/// A write that somebody else does, from a copy of the bytes.
pub trait Pending: Send {
    /// Whether its outcome is known. Does not wait.
    fn is_ended(&mut self) -> bool;

    /// Waits for its outcome, for a bounded time.
    ///
    /// # Errors
    ///
    /// Why it failed, or that the time is over.
    fn wait(&mut self) -> io::Result<()>;
}

/// What became of bytes that the kernel was not handed.
pub enum Written {
    /// They are written, or cannot be.
    Done(io::Result<()>),
    /// That is known later.
    Pending(Box<dyn Pending>),
}

/// Writes blocks, several at a time, and returns them in the order in which they came.
///
/// A block belongs to the queue from [`Writes::submit`] on until it comes back, so no other code
/// can change it meanwhile. If the kernel offers us no io_uring, or a file has no descriptor, each
/// is written before `submit` returns, unless it is [`Pending`].
pub struct Writes<B> {
    ring: Option<Ring>,
    refused: Option<io::Error>,
    in_flight_max: usize,
    slots: VecDeque<Slot<B>>,
    /// The number of the first of `slots`.
    first: u64,
}

struct Slot<B> {
    block: B,
    state: State,
}

enum State {
    /// This many bytes of it are written; the rest goes to this place.
    Writing {
        file: Arc<File>,
        offset: u64,
        done: usize,
    },
    Pending(Box<dyn Pending>),
    Done(io::Result<()>),
}

impl<B> std::fmt::Debug for Writes<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writes")
            .field("in_flight", &self.slots.len())
            .field("in_flight_max", &self.in_flight_max)
            .finish_non_exhaustive()
    }
}

impl<B: DiskBlock> Writes<B> {
    /// A queue of this many blocks at a time, by io_uring if the kernel permits it and more than
    /// one is wanted.
    #[must_use]
    pub fn new(in_flight_max: usize) -> Self {
        let in_flight_max = in_flight_max.clamp(1, 1 << 10);
        let (ring, refused) = match Ring::new(in_flight_max) {
            _ if in_flight_max == 1 => (None, None),
            Ok(ring) => (Some(ring), None),
            Err(error) => (None, Some(error)),
        };
        Self {
            ring,
            refused,
            in_flight_max,
            slots: VecDeque::with_capacity(in_flight_max),
            first: 0,
        }
    }

    /// Why the kernel does not give us io_uring; `None` if it does, or was not tried.
    #[must_use]
    pub fn refused(&self) -> Option<&io::Error> {
        self.refused.as_ref()
    }

    /// Tells the kernel where blocks will be, so that it need not look up the memory for each.
    /// Returns whether it agreed: it may be short of locked memory, and then everything works
    /// without. Call it once, before anything is submitted.
    pub fn register(&mut self, buffers: &[&[u8]]) -> bool {
        let ring = self.ring.as_mut();
        ring.is_some_and(|ring| ring.register(buffers).is_ok())
    }

    /// Whether another block may be submitted now without waiting for one.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.slots.len() < self.in_flight_max
    }

    /// Whether nothing is in flight.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Starts writing a block at `offset` of a file. [`Writes::complete`] reports the outcome. What
    /// cannot be handed to the kernel, `write` writes.
    ///
    /// # Panics
    ///
    /// If [`Writes::has_room`] is false.
    pub fn submit(
        &mut self,
        file: Option<Arc<File>>,
        block: B,
        offset: u64,
        write: impl FnOnce(Memory<'_>) -> Written,
    ) {
        assert!(
            self.has_room(),
            "wait for a block before submitting another"
        );
        let state = match (file, block.memory()) {
            (Some(file), _) if self.ring.is_some() => State::Writing {
                file,
                offset,
                done: 0,
            },
            (Some(file), Memory::Shared(slice)) => State::Done(slice.write_all_at(&file, offset)),
            (_, memory) => match write(memory) {
                Written::Done(outcome) => State::Done(outcome),
                Written::Pending(pending) => State::Pending(pending),
            },
        };
        self.slots.push_back(Slot { block, state });
        self.start(self.slots.len() - 1);
    }

    /// Hands what is left of a slot's block to the kernel.
    fn start(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        let (Some(ring), State::Writing { file, offset, done }) = (&mut self.ring, &slot.state)
        else {
            return;
        };
        let number = self.first + index as u64;
        let memory = slot.block.memory();
        let len = memory.len() - done;
        let start = memory.start().wrapping_add(*done);
        let registered = slot.block.registered();
        let offset = offset + *done as u64;
        // SAFETY: the bytes are those of the block, which guarantees that they stay unchanged while
        // it is not used. It is not used before the kernel has reported the end of this write;
        // `drop` waits for that too, or forgets the block.
        let begun = unsafe { ring.write(file, (start, len), offset, registered, number) };
        if let Err(error) = begun {
            slot.state = State::Done(Err(error));
        }
    }

    /// Waits for the block that was submitted first; `None` if nothing is in flight.
    /// A block whose outcome is an error may be written in part.
    pub fn complete(&mut self) -> Option<(B, io::Result<()>)> {
        while matches!(self.slots.front()?.state, State::Writing { .. }) {
            self.wait_for_any();
        }
        let slot = self.slots.pop_front()?;
        self.first += 1;
        match slot.state {
            State::Done(outcome) => Some((slot.block, outcome)),
            State::Pending(mut pending) => Some((slot.block, pending.wait())),
            State::Writing { .. } => unreachable!("it was waited for"),
        }
    }

    /// As [`Writes::complete`], if that requires no waiting.
    pub fn try_complete(&mut self) -> Option<(B, io::Result<()>)> {
        while let Some(ring) = &mut self.ring
            && let Some((number, result)) = ring.try_next()
        {
            self.ended(number, result);
        }
        let is_ended = match &mut self.slots.front_mut()?.state {
            State::Writing { .. } => false,
            State::Pending(pending) => pending.is_ended(),
            State::Done(_) => true,
        };
        if is_ended { self.complete() } else { None }
    }

    fn wait_for_any(&mut self) {
        let Some(ring) = &mut self.ring else {
            return;
        };
        let (number, result) = ring.next();
        self.ended(number, result);
    }

    /// Records how much of a block the kernel has written.
    fn ended(&mut self, number: u64, result: io::Result<usize>) {
        let index = usize::try_from(number - self.first).expect("few blocks are in flight");
        let Some(slot) = self.slots.get_mut(index) else {
            return;
        };
        let State::Writing { done, .. } = &mut slot.state else {
            return;
        };
        match result {
            Ok(0) => slot.state = State::Done(Err(io::ErrorKind::WriteZero.into())),
            Ok(written) => {
                *done += written;
                if *done >= slot.block.memory().len() {
                    slot.state = State::Done(Ok(()));
                } else {
                    self.start(index);
                }
            }
            Err(error) => slot.state = State::Done(Err(error)),
        }
    }
}

impl<B> Drop for Writes<B> {
    /// Waits until the kernel has released every block.
    fn drop(&mut self) {
        if self.ring.as_mut().is_some_and(|ring| !ring.drain()) {
            mem::forget(mem::take(&mut self.slots));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

    use super::*;
    use crate::memory::shared::SharedMemory;

    const LEN: usize = 8192;

    /// Blocks of each kind, with their number.
    fn block(fill: u8) -> Carrying<AnyBlock, u8> {
        let block = if fill.is_multiple_of(3) {
            let memory = SharedMemory::create("test", LEN).unwrap();
            memory.copy_in(0, &[fill; LEN]);
            AnyBlock::Shared(SharedBlock::new(&Arc::new(memory), 0, LEN))
        } else {
            let mut memory = AlignedBytes::zeroed(2 * LEN);
            memory.fill(fill);
            AnyBlock::Own(OwnBlock::new(memory, LEN, None))
        };
        Carrying { block, with: fill }
    }

    /// Written when it is waited for.
    struct Later(Arc<File>, Vec<u8>, u64);

    impl Pending for Later {
        fn is_ended(&mut self) -> bool {
            false
        }

        fn wait(&mut self) -> io::Result<()> {
            self.0.write_all_at(&self.1, self.2)
        }
    }

    fn write_all(in_flight: usize, with_file: bool) -> Vec<u8> {
        let file = Arc::new(tempfile::tempfile().unwrap());
        let mut queue = Writes::<Carrying<AnyBlock, u8>>::new(in_flight);
        let mut back = Vec::new();
        for n in 0..100_u8 {
            if !queue.has_room() {
                let (block, outcome) = queue.complete().unwrap();
                outcome.unwrap();
                back.push(block.with);
            }
            let offset = u64::from(n) * LEN as u64;
            let named = with_file.then(|| Arc::clone(&file));
            queue.submit(named, block(n), offset, |memory| {
                let bytes = memory.to_vec();
                let file = Arc::clone(&file);
                match n % 2 {
                    0 => Written::Done(file.write_all_at(&bytes, offset)),
                    _ => Written::Pending(Box::new(Later(file, bytes, offset))),
                }
            });
        }
        while let Some((block, outcome)) = queue.complete() {
            outcome.unwrap();
            back.push(block.with);
        }
        assert!(queue.is_empty() && queue.try_complete().is_none());
        assert_eq!(back, (0..100).collect::<Vec<u8>>());
        let mut content = vec![0; 100 * LEN + 1];
        let read = file.read_at(&mut content, 0).unwrap();
        content.truncate(read);
        content
    }

    #[test]
    fn own_and_shared_blocks_come_back_in_order_and_are_in_the_file() {
        let expected: Vec<u8> = (0..100).flat_map(|fill| [fill; LEN]).collect();
        for (in_flight, with_file) in [(1, false), (1, true), (4, true), (16, true), (4, false)] {
            assert!(write_all(in_flight, with_file) == expected);
        }
    }

    /// From now on this thread gets no io_uring, as in a container.
    fn forbid_io_uring() {
        let rules = [(libc::SYS_io_uring_setup, Vec::new())].into();
        let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
        let arch = std::env::consts::ARCH.try_into().unwrap();
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch).unwrap();
        let program: BpfProgram = filter.try_into().unwrap();
        seccompiler::apply_filter(&program).unwrap();
    }

    #[test]
    fn where_io_uring_is_forbidden_blocks_are_written_all_the_same() {
        let expected: Vec<u8> = (0..100).flat_map(|fill| [fill; LEN]).collect();
        let forbidden = std::thread::spawn(move || {
            forbid_io_uring();
            let refused = Writes::<Vec<u8>>::new(4).refused().map(io::Error::kind);
            assert_eq!(refused, Some(io::ErrorKind::PermissionDenied));
            assert!(write_all(4, true) == expected);
        });
        forbidden.join().unwrap();
    }

    #[test]
    fn a_queue_that_is_dropped_has_written_what_it_was_given() {
        let file = Arc::new(tempfile::tempfile().unwrap());
        let mut queue = Writes::new(8);
        for n in 0..8 {
            let named = Some(Arc::clone(&file));
            queue.submit(named, vec![n; LEN], u64::from(n) * LEN as u64, |_| {
                Written::Done(Err(io::ErrorKind::Unsupported.into()))
            });
        }
        let refused = queue.refused().is_some();
        drop(queue);
        assert!(refused || file.metadata().unwrap().len() == 8 * LEN as u64);
    }
}
