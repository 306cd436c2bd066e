//! Blocks in flight to a file of a disk, several at once.

use std::io;

use strata_sys::disk::{DiskBlock, Memory, Writes};

use super::DiskFile;

/// Writes blocks, several at a time, and returns them in the order they were submitted
/// ([`Writes`]). Where the kernel refuses io_uring, or a file has no descriptor, each is written
/// before `submit` returns.
#[derive(Debug)]
pub struct WriteQueue<B>(Writes<B>);

impl<B: DiskBlock> WriteQueue<B> {
    /// A queue of this many blocks at a time, using io_uring if the kernel allows it and more than
    /// one is wanted.
    #[must_use]
    pub fn new(in_flight_max: usize) -> Self {
        Self(Writes::new(in_flight_max))
    }

    /// Why the kernel refuses io_uring; `None` if it does not, or was not asked.
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
        self.0.submit(shared, block, offset, |memory| match memory {
            Memory::Own(bytes) => file.write_at(bytes, offset),
            Memory::Shared(slice) => file.write_at(&slice.to_vec(), offset),
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

#[cfg(test)]
mod tests {
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
}
