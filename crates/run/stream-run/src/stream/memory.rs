//! The memory of a stream's blocks, and their way to the disk.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::mem;

use strata_store::{DiskFile, WriteQueue};
use strata_stream::{Blocks, Cursor};
use strata_sys::AlignedBytes;
use strata_sys::disk::{Carrying, OwnBlock};
use strata_wire::exact;

/// Space for at most this number of bytes is taken in advance, since a file system that takes some
/// first waits for what is in flight to the file.
const GROW_BYTES_MAX: u64 = 64 << 20;

/// Makes sure that a file has space for a page, and if it must become longer for that, for an eighth more. Returns where
/// that space ends. A file that is long enough may have a hole there: the rest of a first page that was not filled.
fn make_room(file: &mut dyn DiskFile, start: u64, page_bytes: u64) -> io::Result<u64> {
    let end = start + page_bytes;
    if file.size()? >= end {
        return file.grow(start..end).map(|()| end);
    }
    let more = (start / 8).min(GROW_BYTES_MAX) / page_bytes * page_bytes;
    match file.grow(start..end + more) {
        // The last pages of a disk, one by one.
        Err(error) if more > 0 && error.kind() == io::ErrorKind::StorageFull => {
            file.grow(start..end).map(|()| end)
        }
        grown => grown.map(|()| end + more),
    }
}

/// A block's memory, and the number under which the kernel knows it.
pub(crate) struct Buffer {
    pub(crate) memory: AlignedBytes,
    number: u16,
}

/// What is written at once.
#[derive(Clone, Copy, Debug)]
struct Tag {
    /// Where the whole records of the page end with it, and the number of the next one.
    whole: Cursor,
    next_seq: u64,
    /// Another one goes on in the next block.
    is_torn: bool,
    stripe: u32,
    /// Its memory's number.
    number: u16,
}

/// Where blocks go.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Target {
    pub(crate) index: u64,
    pub(crate) stripe: u32,
    /// Where in the file the page starts.
    pub(crate) page_at: u64,
    /// The number of its first record.
    pub(crate) first_seq: u64,
}

/// The space of the first page of a stream, which doubles: many streams have a few records only, and a page is large. The
/// block that is being filled always has space, so what was appended can be written.
#[derive(Clone, Copy, Debug)]
struct Space {
    until: usize,
    page_len: usize,
}

/// Files by stripe.
pub(crate) type Files = BTreeMap<u32, Box<dyn DiskFile>>;

/// The blocks of a stream: one that is being filled, some that are being written, and free ones.
///
/// With several stripes, an error costs the blocks that it befalls: it is one for the caller if it is of the stripe
/// that is being written; otherwise it waits in `broken`.
pub(crate) struct Memory {
    files: Files,
    are_several: bool,
    queue: WriteQueue<Carrying<OwnBlock, Tag>>,
    pub(crate) current: Buffer,
    free: Vec<Buffer>,
    pub(crate) target: Target,
    /// Where in the page the current block starts.
    pub(crate) block_start: usize,
    /// Of the first page of a stream, up to where it has space; `None`: it has all.
    space: Option<Space>,
    /// Pages that have space, by stripe and position: of a ring, each is looked at once. No more than the directory has.
    whole: HashSet<(u32, u64)>,
    /// Records before this are in the file, or lost.
    pub(crate) written: Cursor,
    /// An error is final: what follows a block that is not there is not worth much.
    pub(crate) failed: bool,
    /// Stripes that cannot be written any more.
    pub(crate) broken: Vec<(u32, io::Error)>,
    /// Records that went with them, at most: those that were not written, and those that were not synced.
    pub(crate) lost: u64,
    /// Records written since the last sync, by stripe.
    unsynced: BTreeMap<u32, u64>,
    /// The number of the record after those that were written or lost.
    settled_seq: u64,
    /// A record that begins in a block that is lost is lost too.
    is_torn: bool,
}

impl Memory {
    pub(crate) fn new(
        (files, are_several): (Files, bool),
        block_bytes: usize,
        in_flight: usize,
        next_seq: u64,
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
            files,
            are_several,
            queue,
            current,
            free,
            target: Target::default(),
            block_start: 0,
            space: None,
            whole: HashSet::new(),
            written: Cursor::START,
            failed: false,
            broken: Vec::new(),
            lost: 0,
            unsynced: BTreeMap::new(),
            settled_seq: next_seq,
            is_torn: false,
        })
    }

    /// An error of a stripe; it is one for the caller if nothing else can be done about it.
    fn broke(&mut self, stripe: u32, error: io::Error) -> io::Result<()> {
        if !self.are_several {
            self.failed = true;
            return Err(error);
        }
        if self.leave(stripe) {
            let same = error.kind().into();
            self.broken.push((stripe, error));
            return if stripe == self.target.stripe {
                Err(same)
            } else {
                Ok(())
            };
        }
        Ok(())
    }

    /// Writes no more to a stripe; whether it was written.
    fn leave(&mut self, stripe: u32) -> bool {
        let Some(mut file) = self.files.remove(&stripe) else {
            return false;
        };
        let unsynced = self.unsynced.remove(&stripe).unwrap_or(u64::MIN);
        if unsynced > 0 && file.sync().is_err() {
            self.lost += unsynced;
        }
        true
    }

    /// A stripe is no longer where it was: what was not synced there is lost, although a file that was removed could
    /// still be synced.
    pub(crate) fn lose(&mut self, stripe: u32) {
        self.files.remove(&stripe);
        if let Some(unsynced) = self.unsynced.remove(&stripe) {
            self.lost += unsynced;
        }
    }

    /// A stripe is written again.
    pub(crate) fn mend(&mut self, stripe: u32, file: Box<dyn DiskFile>) {
        self.files.insert(stripe, file);
    }

    /// Stripes that can be written are these.
    pub(crate) fn retain(&mut self, usable: &[u32]) {
        let unusable = self.files.keys().filter(|stripe| !usable.contains(stripe));
        for stripe in unusable.copied().collect::<Vec<_>>() {
            self.leave(stripe);
        }
    }

    /// The outcome of a write.
    fn returned(
        &mut self,
        (block, outcome): (Carrying<OwnBlock, Tag>, io::Result<()>),
    ) -> io::Result<()> {
        let tag = block.with;
        self.free.push(Buffer {
            memory: block.block.into_memory(),
            number: tag.number,
        });
        let more = tag.next_seq.saturating_sub(self.settled_seq);
        self.settled_seq += more;
        if let Err(error) = outcome {
            self.lost += more;
            self.is_torn = tag.is_torn;
            return self.broke(tag.stripe, error);
        }
        if more > 0 {
            let torn = u64::from(mem::take(&mut self.is_torn));
            match self.files.contains_key(&tag.stripe) {
                true => {
                    self.lost += torn;
                    *self.unsynced.entry(tag.stripe).or_default() += more - torn;
                }
                // It was left when another block failed, and it is not synced.
                false => self.lost += more,
            }
        }
        // Those of blocks after one that failed do not count.
        if !self.failed {
            self.written = self.written.max(tag.whole);
        }
        Ok(())
    }

    /// A free block, if need be one that is waited for.
    pub(crate) fn take(&mut self) -> io::Result<Buffer> {
        while !self.queue.has_room() || self.free.is_empty() {
            let ended = self.queue.complete().expect("blocks are free or in flight");
            self.returned(ended)?;
        }
        Ok(self.free.pop().expect("one is free"))
    }

    /// Writes a block, with whole records up to an offset of the page, which are `number` of the page.
    pub(crate) fn submit(
        &mut self,
        buffer: Buffer,
        len: usize,
        (whole_until, number): (usize, u32),
        is_torn: bool,
    ) -> io::Result<()> {
        let Target {
            index,
            stripe,
            page_at,
            first_seq,
        } = self.target;
        let whole = Cursor {
            index,
            offset: exact(whole_until),
        };
        let registered = (buffer.number != u16::MAX).then_some(buffer.number);
        let block = Carrying {
            with: Tag {
                whole,
                next_seq: first_seq + u64::from(number),
                is_torn,
                stripe,
                number: buffer.number,
            },
            block: OwnBlock::new(buffer.memory, len, registered),
        };
        let at = page_at + self.block_start as u64;
        let Some(file) = self.files.get_mut(&stripe) else {
            // Its records are those of a page that is given up.
            self.free.push(Buffer {
                number: block.with.number,
                memory: block.block.into_memory(),
            });
            return Err(io::ErrorKind::NotFound.into());
        };
        self.queue.submit(file.as_mut(), block, at);
        Ok(())
    }

    /// Writes the current block, which is full or the last one of its page.
    pub(crate) fn hand_over(&mut self, whole: (usize, u32), is_torn: bool) -> io::Result<()> {
        let next = self.take()?;
        let full = mem::replace(&mut self.current, next);
        let len = full.memory.len();
        self.submit(full, len, whole, is_torn)?;
        self.block_start += len;
        while let Some(ended) = self.queue.try_complete() {
            self.returned(ended)?;
        }
        self.widen()
    }

    /// Gives the current block space, if its page has too little.
    fn widen(&mut self) -> io::Result<()> {
        let Some(space) = self.space else {
            return Ok(());
        };
        let end = self.block_start.saturating_add(self.current.memory.len());
        if end <= space.until || end > space.page_len {
            return Ok(());
        }
        let until = end.next_power_of_two().min(space.page_len);
        let Target {
            stripe, page_at, ..
        } = self.target;
        let file = self.files.get_mut(&stripe);
        let file = file.ok_or(io::ErrorKind::NotFound)?;
        let range =
            page_at.saturating_add(space.until as u64)..page_at.saturating_add(until as u64);
        if let Err(error) = file.grow(range) {
            return self.broke(stripe, error);
        }
        self.space = Some(Space { until, ..space });
        Ok(())
    }

    /// Whether a page gets its space as it is filled. With several stripes it gets all at once, since a stripe that is full
    /// has to be known before a record is meant for it.
    fn is_small(&self, target: Target) -> bool {
        target.index == Cursor::START.index && !self.are_several
    }

    /// Goes on in a page, with the block that starts there.
    pub(crate) fn go_on(
        &mut self,
        target: Target,
        block_start: usize,
        page_bytes: u32,
    ) -> io::Result<()> {
        self.target = target;
        self.block_start = block_start;
        self.space = self.is_small(target).then(|| Space {
            until: block_start,
            page_len: exact(page_bytes),
        });
        if self.are_several && target.index == Cursor::START.index {
            // It was begun when there was one stripe.
            return self.fill(target, page_bytes);
        }
        self.widen()
    }

    /// Gives a page all of its space.
    fn fill(&mut self, target: Target, page_bytes: u32) -> io::Result<()> {
        let Target {
            stripe, page_at, ..
        } = target;
        if self.whole.contains(&(stripe, page_at)) {
            return Ok(());
        }
        let file = self.files.get_mut(&stripe);
        let file = file.ok_or(io::ErrorKind::NotFound)?;
        let page_bytes = u64::from(page_bytes);
        match make_room(file.as_mut(), page_at, page_bytes) {
            Ok(end) => {
                let pages = (end - page_at) / page_bytes;
                let places = (0..pages).map(|page| (stripe, page_at + page * page_bytes));
                self.whole.extend(places);
                Ok(())
            }
            // Blocks that are in flight there have their space: they are not lost with the page.
            Err(error) => self.drain().and_then(|()| self.broke(stripe, error)),
        }
    }

    /// Begins a page: its bytes have space, or it is known now that they have not.
    pub(crate) fn begin(&mut self, target: Target, page_bytes: u32) -> io::Result<()> {
        if self.is_small(target) {
            return self.go_on(target, 0, page_bytes);
        }
        self.target = target;
        self.block_start = 0;
        self.space = None;
        self.fill(target, page_bytes)
    }

    /// Gives up what was to be written of a page; `next_seq` is the number of the next record.
    pub(crate) fn abandon(&mut self, next_seq: u64, end: Cursor) {
        self.lost += next_seq.saturating_sub(self.settled_seq);
        self.skip_to(next_seq, end);
    }

    /// Goes on with the record of this number, in a new page.
    pub(crate) fn skip_to(&mut self, next_seq: u64, end: Cursor) {
        self.settled_seq = self.settled_seq.max(next_seq);
        self.is_torn = false;
        self.written = self.written.max(end);
    }

    /// Before anything is written: the number of the next record, after a crash perhaps less than was known.
    pub(crate) fn settle(&mut self, next_seq: u64) {
        self.settled_seq = next_seq;
    }

    /// Whether the page that is being written can be.
    pub(crate) fn is_whole(&self) -> bool {
        self.files.contains_key(&self.target.stripe)
    }

    /// What was written survives a loss of power.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        let stripes: Vec<u32> = self.files.keys().copied().collect();
        let mut outcome = Ok(());
        for stripe in stripes {
            let file = self.files.get_mut(&stripe).expect("it is one of them");
            match file.sync() {
                Ok(()) => drop(self.unsynced.remove(&stripe)),
                Err(error) => outcome = self.broke(stripe, error).and(outcome),
            }
        }
        outcome
    }

    /// Waits for all writes.
    pub(crate) fn drain(&mut self) -> io::Result<()> {
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

    fn full(&mut self, whole_until: usize, number: u32) -> io::Result<()> {
        let is_torn = whole_until < self.block_start + self.current.memory.len();
        self.hand_over((whole_until, number), is_torn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Range;
    use strata_sys::disk::Pending;

    /// A disk whose first write fails, if it counts from 0, while others are under way. It has no space for more.
    struct Failing(u32);

    struct UnderWay(io::Result<()>);

    impl Pending for UnderWay {
        fn is_ended(&mut self) -> bool {
            false
        }

        fn wait(&mut self) -> io::Result<()> {
            mem::replace(&mut self.0, Ok(()))
        }
    }

    impl DiskFile for Failing {
        fn read_at(&self, _buffer: &mut [u8], _offset: u64) -> io::Result<usize> {
            Ok(0)
        }

        fn write_at(&mut self, _bytes: &[u8], _offset: u64) -> io::Result<()> {
            Ok(())
        }

        fn begin_write(&mut self, _bytes: &[u8], _offset: u64) -> Option<Box<dyn Pending>> {
            self.0 += 1;
            let outcome = match self.0 {
                1 => Err(io::ErrorKind::StorageFull.into()),
                _ => Ok(()),
            };
            Some(Box::new(UnderWay(outcome)))
        }

        fn sync(&mut self) -> io::Result<()> {
            Ok(())
        }

        fn set_len(&mut self, _len: u64) -> io::Result<()> {
            Ok(())
        }

        fn size(&self) -> io::Result<u64> {
            Ok(0)
        }

        fn grow(&mut self, _range: Range<u64>) -> io::Result<()> {
            Err(io::ErrorKind::StorageFull.into())
        }
    }

    /// A disk that has no space for another page keeps the blocks that are on their way to it.
    #[test]
    fn blocks_that_are_under_way_to_a_disk_that_is_full_are_not_lost() {
        let files: Files = [(1, Box::new(Failing(1)) as Box<dyn DiskFile>)].into();
        let mut memory = Memory::new((files, true), 4096, 4, 0).unwrap();
        memory.target.stripe = 1;
        memory.full(4096, 3).unwrap();
        let next = Target {
            first_seq: 3,
            ..memory.target
        };
        memory.begin(next, 4096).unwrap_err();
        memory.abandon(3, Cursor::page(1));
        assert_eq!((memory.lost, memory.broken.len()), (0, 1));
    }

    /// A stripe that was left is not synced, so a block of it that is written after that is lost
    /// too.
    #[test]
    fn a_block_that_is_written_after_its_stripe_was_left_is_lost() {
        let files: Files = [(1, Box::new(Failing(0)) as Box<dyn DiskFile>)].into();
        let mut memory = Memory::new((files, true), 4096, 4, 0).unwrap();
        memory.target.stripe = 1;
        memory.full(4096, 3).unwrap();
        memory.full(8192, 5).unwrap();
        memory.drain().unwrap_err();
        assert_eq!((memory.lost, memory.broken.len()), (5, 1));
    }

    /// The record that begins in the block that failed, and ends in the next one, is one.
    #[test]
    fn a_torn_record_is_lost_once() {
        let files: Files = [(1, Box::new(Failing(0)) as Box<dyn DiskFile>)].into();
        let mut memory = Memory::new((files, true), 4096, 4, 0).unwrap();
        memory.target.stripe = 1;
        memory.full(4000, 3).unwrap();
        memory.full(8192, 5).unwrap();
        memory.drain().unwrap_err();
        assert_eq!(memory.lost, 5);
    }
}
