//! Blocks on their way to a disk, several at once.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::mem;
use std::sync::Arc;

use super::DiskFile;
use super::uring::Ring;

/// Memory that is written to a file: a multiple of 4,096 bytes at such an address.
pub trait DiskBlock: Send + 'static {
    /// What is written.
    fn bytes(&self) -> &[u8];

    /// The number of the buffer given to [`WriteQueue::register`] that the bytes lie
    /// in, if they do and that memory has not been freed since.
    fn registered(&self) -> Option<u16> {
        None
    }
}

impl DiskBlock for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// Writes blocks, some at a time, and gives them back in the order in which they came.
///
/// A block belongs to the queue from [`WriteQueue::submit`] on until it comes back, so
/// nobody can change it meanwhile. Where the kernel has no io_uring for us, or a
/// file no descriptor, each is written before `submit` returns.
pub struct WriteQueue<B> {
    ring: Option<Ring>,
    refused: Option<io::Error>,
    in_flight_max: usize,
    slots: VecDeque<Slot<B>>,
    /// The number of the first of `slots`.
    first: u64,
}

struct Slot<B> {
    // Boxed, so that its bytes stay where they are while it moves.
    block: Box<B>,
    state: State,
}

enum State {
    /// So many bytes of it are written; the rest goes to this place.
    Writing {
        file: Arc<File>,
        offset: u64,
        done: usize,
    },
    Done(io::Result<()>),
}

impl<B> std::fmt::Debug for WriteQueue<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WriteQueue")
            .field("in_flight", &self.slots.len())
            .field("in_flight_max", &self.in_flight_max)
            .finish_non_exhaustive()
    }
}

impl<B: DiskBlock> WriteQueue<B> {
    /// A queue of so many blocks at a time, by io_uring if the kernel lets us and more
    /// than one is wanted.
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

    /// Why the kernel gives us no io_uring; `None` if it does, or was not asked.
    #[must_use]
    pub fn refused(&self) -> Option<&io::Error> {
        self.refused.as_ref()
    }

    /// Tells the kernel where blocks will lie, so that it need not look the memory up
    /// for each. Whether it has agreed: it may be short of locked memory, and then
    /// all goes on without. To be called once, before anything is submitted.
    pub fn register(&mut self, buffers: &[&[u8]]) -> bool {
        let ring = self.ring.as_mut();
        ring.is_some_and(|ring| ring.register(buffers).is_ok())
    }

    /// Whether another block may be submitted now without waiting for one.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.slots.len() < self.in_flight_max
    }

    /// Whether nothing is on its way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Begins to write a block at `offset`. What becomes of it says
    /// [`WriteQueue::complete`].
    ///
    /// # Panics
    ///
    /// If there is no room.
    pub fn submit(&mut self, file: &mut dyn DiskFile, block: B, offset: u64) {
        assert!(
            self.has_room(),
            "wait for a block before submitting another"
        );
        let block = Box::new(block);
        let shared = self.ring.is_some().then(|| file.shared()).flatten();
        let state = match shared {
            Some(file) => State::Writing {
                file,
                offset,
                done: 0,
            },
            None => State::Done(file.write_at(block.bytes(), offset)),
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
        let rest = &slot.block.bytes()[*done..];
        let registered = slot.block.registered();
        let offset = offset + *done as u64;
        // SAFETY: the block is in its box, which nobody touches before the kernel has told the
        // end of this write; `drop` waits for it too, or forgets the box.
        let begun = unsafe { ring.write(file, rest, offset, registered, number) };
        if let Err(error) = begun {
            slot.state = State::Done(Err(error));
        }
    }

    /// Waits for the block that was submitted first; `None` if nothing is on its way.
    /// A block whose outcome is an error may be written in part.
    pub fn complete(&mut self) -> Option<(B, io::Result<()>)> {
        while matches!(self.slots.front()?.state, State::Writing { .. }) {
            self.wait_for_any();
        }
        let slot = self.slots.pop_front()?;
        self.first += 1;
        match slot.state {
            State::Done(outcome) => Some((*slot.block, outcome)),
            State::Writing { .. } => None,
        }
    }

    /// As [`WriteQueue::complete`], if that needs no waiting.
    pub fn try_complete(&mut self) -> Option<(B, io::Result<()>)> {
        while let Some(ring) = &mut self.ring
            && let Some((number, result)) = ring.try_next()
        {
            self.note(number, result);
        }
        match self.slots.front()?.state {
            State::Writing { .. } => None,
            State::Done(_) => self.complete(),
        }
    }

    fn wait_for_any(&mut self) {
        let Some(ring) = &mut self.ring else {
            return;
        };
        let (number, result) = ring.next();
        self.note(number, result);
    }

    /// Takes in how much of a block the kernel has written.
    fn note(&mut self, number: u64, result: io::Result<usize>) {
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
                if *done >= slot.block.bytes().len() {
                    slot.state = State::Done(Ok(()));
                } else {
                    self.start(index);
                }
            }
            Err(error) => slot.state = State::Done(Err(error)),
        }
    }
}

impl<B> Drop for WriteQueue<B> {
    /// Waits until the kernel has let go of every block.
    fn drop(&mut self) {
        if self.ring.as_mut().is_some_and(|ring| !ring.drain()) {
            mem::forget(mem::take(&mut self.slots));
        }
    }
}

#[cfg(test)]
mod tests {
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

    use super::*;
    use crate::{Disk, RealDisk, SimDisk};

    fn block(fill: u8) -> Vec<u8> {
        vec![fill; 8192]
    }

    fn write_all(disk: &dyn Disk, in_flight: usize, register: bool) -> Vec<u8> {
        let mut file = disk.create("blocks").unwrap();
        let mut queue = WriteQueue::<Vec<u8>>::new(in_flight);
        let memory = vec![7; 8192];
        if register {
            queue.register(&[&memory]);
        }
        let mut back = Vec::new();
        for n in 0..100_u8 {
            if !queue.has_room() {
                let (block, outcome) = queue.complete().unwrap();
                outcome.unwrap();
                back.push(block[0]);
            }
            queue.submit(file.as_mut(), block(n), u64::from(n) * 8192);
        }
        while let Some((block, outcome)) = queue.complete() {
            outcome.unwrap();
            back.push(block[0]);
        }
        assert!(queue.is_empty() && queue.try_complete().is_none());
        assert_eq!(back, (0..100).collect::<Vec<u8>>());
        let mut content = vec![0; 100 * 8192 + 1];
        let read = file.read_at(&mut content, 0).unwrap();
        content.truncate(read);
        content
    }

    #[test]
    fn blocks_come_back_in_order_and_are_in_the_file_whatever_the_way() {
        let expected: Vec<u8> = (0..100).flat_map(block).collect();
        for (in_flight, register) in [(1, false), (2, true), (16, false), (16, true)] {
            let dir = tempfile::tempdir().unwrap();
            let real = RealDisk::create_dir(dir.path()).unwrap();
            assert!(write_all(&real, in_flight, register) == expected);
            assert!(write_all(&SimDisk::new(), in_flight, register) == expected);
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
        let expected: Vec<u8> = (0..100).flat_map(block).collect();
        let forbidden = std::thread::spawn(move || {
            forbid_io_uring();
            let refused = WriteQueue::<Vec<u8>>::new(4).refused().map(io::Error::kind);
            assert_eq!(refused, Some(io::ErrorKind::PermissionDenied));
            let dir = tempfile::tempdir().unwrap();
            let real = RealDisk::create_dir(dir.path()).unwrap();
            assert!(write_all(&real, 4, true) == expected);
        });
        forbidden.join().unwrap();
    }

    #[test]
    fn a_write_that_fails_says_so_in_its_turn_and_others_go_on() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::create_dir(dir.path()).unwrap();
        let mut good = disk.create("good").unwrap();
        let mut bad = disk.open("good", false).unwrap();
        for in_flight in [1, 4] {
            let mut queue = WriteQueue::<Vec<u8>>::new(in_flight);
            let mut outcomes = Vec::new();
            for turn in 0..3 {
                let file = if turn == 1 { &mut bad } else { &mut good };
                if !queue.has_room() {
                    outcomes.extend(queue.complete());
                }
                queue.submit(file.as_mut(), block(turn), u64::from(turn) * 8192);
            }
            while let Some(done) = queue.complete() {
                outcomes.push(done);
            }
            let failed: Vec<bool> = outcomes.iter().map(|(_, o)| o.is_err()).collect();
            assert_eq!(failed, [false, true, false]);
        }
    }

    #[test]
    fn a_queue_that_is_dropped_has_written_what_it_was_given() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::create_dir(dir.path()).unwrap();
        let mut file = disk.create("blocks").unwrap();
        let mut queue = WriteQueue::new(8);
        for n in 0..8 {
            queue.submit(file.as_mut(), block(n), u64::from(n) * 8192);
        }
        drop(queue);
        assert_eq!(file.size().unwrap(), 8 * 8192);
    }
}
