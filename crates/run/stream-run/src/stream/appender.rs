//! Appending to a stream: records go into blocks, full blocks to the disk, several at a time. `opening` says where
//! a stream goes on.

mod kept;
mod opening;
mod producing;
mod recovery;

use std::collections::VecDeque;
use std::io;
use std::mem;

use strata_stream::{
    AppendError, Cursor, Form, Held, INDEX_JUMP, PageHeader, PageWriter, Producers, Sample, State,
    TableWriter, expired,
};
use strata_wire::exact;

use crate::dir::StreamDir;
use crate::dir::file::{StreamFile, lock_name};
use crate::dir::footing::{Footing, lost};
use crate::dir::locks::Lock;
use crate::dir::pool::USERS_LOCK;
use crate::dir::stripes::{Stripes, stripe_of};
use crate::error::{In as _, Result, StreamError};
use crate::stream::memory::{Memory, Target};

pub(crate) use opening::{recovered_pages, recovered_records};

/// Direct writes are multiples of this.
const SECTOR: usize = 4096;
/// Pages begun between two syncs, so that after a crash fewer than [`INDEX_JUMP`] are missing.
const UNSYNCED_PAGES_MAX: u64 = INDEX_JUMP / 2;
/// Records have the time of a mark at most this much before them.
pub(crate) const MARK_NS: u64 = 10_000_000;

/// The list of producers has at most this part of a page.
const LIST_PART: usize = 16;

/// What was appended since a stream was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Appended {
    /// Records.
    pub records: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
}

/// A stream that this process appends to, alone.
pub struct StreamAppender {
    dir: StreamDir,
    stripes: Stripes,
    file: StreamFile,
    memory: Memory,
    writer: Option<PageWriter>,
    /// Its data pages, oldest first, with their numbers in the pool.
    held: VecDeque<(Held, u32)>,
    table: TableWriter,
    state: State,
    /// The number of the current page's first record.
    first_seq: u64,
    next_index: u64,
    unsynced_pages: u64,
    /// The time of the last mark.
    marked_ns: u64,
    /// Since the stream was created, and when it was opened.
    total: Appended,
    at_open: Appended,
    /// Up to where all records were written that a disk has taken, and how many those are since it was opened.
    kept: (Cursor, u64),
    /// The producers whose records it has.
    producers: Producers,
    /// Records that were lost with stripes, as of the last sync.
    lost_before: u64,
    pages_path: String,
    /// More pages than blocks in flight can belong to.
    few_pages: usize,
    lock: Lock,
    footing: Footing,
}

impl std::fmt::Debug for StreamAppender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamAppender")
            .field("file", &self.file.path)
            .finish_non_exhaustive()
    }
}

impl StreamAppender {
    /// What was appended since it was opened.
    #[must_use]
    pub fn appended(&self) -> Appended {
        Appended {
            records: self.total.records - self.at_open.records,
            bytes: self.total.bytes - self.at_open.bytes,
        }
    }

    /// The id of the stream: at random, and not 0.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.file.description.id
    }

    /// The number of the next record.
    #[must_use]
    pub fn next_seq(&self) -> u64 {
        self.state.next_seq
    }

    /// The place of the next record.
    #[must_use]
    pub fn end(&self) -> Cursor {
        match &self.writer {
            Some(writer) => Cursor {
                index: self.memory.target.index,
                offset: exact(writer.at()),
            },
            None => Cursor::page(self.next_index),
        }
    }

    /// The longest record.
    #[must_use]
    pub fn record_len_max(&self) -> usize {
        let page_len = self.file.geometry().page_len();
        self.file.description.form.record_len_max(page_len)
    }

    /// Appends a record. It is in the file after [`StreamAppender::flush`], and survives a crash
    /// after [`StreamAppender::sync`].
    ///
    /// # Errors
    ///
    /// If it is too long: nothing has changed then. If the disk fails or is full: then nothing more
    /// can be appended, and what was synced before is there.
    pub fn append(&mut self, now_ns: u64, payload: &[u8]) -> Result<()> {
        self.append_record(now_ns, None, payload)
    }

    fn append_record(
        &mut self,
        now_ns: u64,
        record: Option<(u64, u64)>,
        payload: &[u8],
    ) -> Result<()> {
        if self.memory.failed {
            return Err(StreamError::Failed {
                file: self.pages_path.clone(),
            });
        }
        let mut is_new_page = false;
        loop {
            if let Some(writer) = &mut self.writer {
                let is_due = now_ns >= self.marked_ns + MARK_NS || now_ns < self.marked_ns;
                let marked = match (is_due, record) {
                    (false, _) => Ok(()),
                    (true, None) => writer.mark(&mut self.memory, now_ns),
                    // The mark of a producer has the time too, and tells whose records follow after damage.
                    (true, Some(_)) => {
                        writer.forget_current();
                        Ok(())
                    }
                };
                if is_due {
                    self.marked_ns = now_ns;
                }
                let memory = &mut self.memory;
                let marked =
                    marked.and_then(|()| writer.announce(memory, now_ns, record, &self.producers));
                match marked.and_then(|()| writer.append(&mut self.memory, payload)) {
                    Ok(()) => {
                        self.state.next_seq += 1;
                        self.total.records += 1;
                        self.total.bytes += payload.len() as u64;
                        return Ok(());
                    }
                    Err(AppendError::Full) if is_new_page => {
                        return Err(self.too_long(payload.len(), self.record_len_max()));
                    }
                    Err(AppendError::Full) => {}
                    Err(AppendError::TooLong { len, max }) => return Err(self.too_long(len, max)),
                    // It is not in the page, and goes into the next.
                    Err(AppendError::Blocks(error)) => self.survive(error, now_ns)?,
                }
            } else if payload.len() > self.record_len_max() {
                return Err(self.too_long(payload.len(), self.record_len_max()));
            }
            self.next_page(now_ns)?;
            is_new_page = true;
        }
    }

    fn too_long(&self, len: usize, max: usize) -> StreamError {
        StreamError::TooLong {
            name: self.file.description.name.to_string(),
            len,
            max,
        }
    }

    fn failed(&mut self, source: io::Error) -> StreamError {
        self.memory.failed = true;
        StreamError::File {
            file: self.pages_path.clone(),
            source,
        }
    }

    /// An error of the disk: with several stripes, the one that has it is left alone, and so is the page that
    /// was being filled, if it is there.
    fn survive(&mut self, error: io::Error, now_ns: u64) -> Result<()> {
        if !self.stripes.are_several() {
            return Err(self.failed(error));
        }
        // Each stripe that fails is in `broken`.
        let _ = self.memory.drain();
        self.leave_broken(now_ns);
        self.leave_page();
        match self.stripes.usable().is_empty() {
            true => Err(self.failed(error)),
            false => Ok(()),
        }
    }

    /// Goes on in another page, if the one that is being filled is on a stripe that is left alone.
    fn leave_page(&mut self) {
        if !self.memory.is_whole() {
            self.writer = None;
            let end = Cursor::page(self.next_index);
            self.memory.abandon(self.state.next_seq, end);
        }
    }

    /// Looks whether what is written is written to the stream, and by this process alone.
    fn look_down(&mut self) -> Result<()> {
        let lock = lock_name(&self.file.description.name);
        let looked = if !self.dir.locks.holds(&lock, &self.lock) {
            Err(lost(self.dir.disk.display(&lock)))
        } else if !self.stripes.holds_own_lock() {
            Err(lost(self.dir.disk.display(USERS_LOCK)))
        } else {
            self.footing.look()
        };
        self.memory.failed |= looked.is_err();
        looked
    }

    /// Leaves alone what could not be written.
    fn leave_broken(&mut self, now_ns: u64) {
        for (stripe, error) in mem::take(&mut self.memory.broken) {
            self.stripes.fail(stripe, &error.to_string(), now_ns);
        }
        self.memory.retain(&self.stripes.usable());
    }

    /// Leaves stripes alone that are no longer where they were.
    fn leave_gone(&mut self, now_ns: u64) {
        for stripe in self.stripes.look(now_ns) {
            self.memory.lose(stripe);
        }
        self.leave_broken(now_ns);
    }

    /// Looks which stripes are there.
    fn look(&mut self, now_ns: u64) -> Result<()> {
        if !self.stripes.are_several() {
            return Ok(());
        }
        self.leave_gone(now_ns);
        if !self.stripes.is_due(now_ns) {
            return Ok(());
        }
        // What is still in flight there failed for what it was.
        if let Err(error) = self.memory.drain() {
            self.survive(error, now_ns)?;
        }
        for number in self.stripes.retry(&self.dir.owners()?, now_ns) {
            match self.stripes.for_blocks(number) {
                Some(Ok(file)) => self.memory.mend(number, file),
                Some(Err(error)) => self.stripes.fail(number, &error.to_string(), now_ns),
                None => continue,
            }
            self.give_up_old(number)?;
        }
        Ok(())
    }

    /// Releases pages of a stripe that is back which the stream has given up meanwhile.
    fn give_up_old(&mut self, number: u32) -> Result<()> {
        let id = self.file.description.id;
        let page_len = self.file.geometry().page_len();
        let read = self.stripes.headers(Some(id), Some(number))?.into_iter();
        let old = read.filter_map(|(page, bytes)| {
            let header = PageHeader::parse(&bytes?, id, &self.file.key, page_len).ok()?;
            (header.index < self.state.oldest).then_some(page)
        });
        let old: Vec<u32> = old.collect();
        self.stripes.release(id, &old)
    }

    /// Hands the rest of the page to the disk, and begins another.
    fn next_page(&mut self, now_ns: u64) -> Result<()> {
        if let Some(writer) = self.writer.take() {
            writer.zero_rest(&mut self.memory);
            let whole = (writer.at(), writer.number());
            if let Err(error) = self.memory.hand_over(whole, false) {
                self.survive(error, now_ns)?;
            }
            self.stripes.trust(self.memory.target.stripe);
        }
        if self.unsynced_pages >= self.unsynced_pages_max() {
            self.sync(now_ns)?;
        }
        self.look_down()?;
        self.look(now_ns)?;
        // Each stripe fails once.
        let (index, data_page) = loop {
            let index = self.next_index;
            let data_page = self.page_for(index, now_ns)?;
            let Err(error) = self.begin_page(index, data_page, now_ns)? else {
                break (index, data_page);
            };
            self.survive(error, now_ns)?;
            let id = self.file.description.id;
            self.stripes.release(id, &[data_page])?;
        };
        self.first_seq = self.state.next_seq;
        self.marked_ns = 0;
        self.next_index += 1;
        self.unsynced_pages += 1;
        let created_ns = now_ns;
        self.held.push_back((Held { index, created_ns }, data_page));
        self.file.enter(&mut self.table, index, data_page)?;
        self.publish(now_ns)
    }

    fn begin_page(&mut self, index: u64, page: u32, now_ns: u64) -> Result<io::Result<()>> {
        let header = self.header(index, now_ns)?;
        let target = Target {
            index,
            stripe: stripe_of(page),
            page_at: self.stripes.page_at(page),
            first_seq: self.state.next_seq,
        };
        let geometry = self.file.geometry();
        if let Err(error) = self.memory.begin(target, geometry.page_bytes) {
            return Ok(Err(error));
        }
        let page_len = geometry.page_len();
        let begun = PageWriter::begin(&header, &self.file.key, page_len, &mut self.memory);
        let list = (self.state.synced_seq, &self.producers);
        let begun =
            begun.and_then(
                |mut writer| match writer.list(&mut self.memory, now_ns, list) {
                    Ok(()) => Ok(writer),
                    Err(AppendError::Blocks(error)) => Err(error),
                    Err(AppendError::Full | AppendError::TooLong { .. }) => {
                        Err(io::Error::other("the list of producers does not fit"))
                    }
                },
            );
        Ok(begun.map(|writer| self.writer = Some(writer)))
    }

    /// A ring's pages must not all be written over by what a loss of power would take away.
    fn unsynced_pages_max(&self) -> u64 {
        let bytes = self.file.description.retention.bytes;
        let allowed = bytes.map(|bytes| bytes / u64::from(self.file.geometry().page_bytes));
        allowed.map_or(UNSYNCED_PAGES_MAX, |pages| {
            (pages / 4).clamp(1, UNSYNCED_PAGES_MAX)
        })
    }

    fn header(&self, index: u64, now_ns: u64) -> Result<PageHeader> {
        let mut random = [0; 12];
        getrandom::fill(&mut random)
            .map_err(io::Error::other)
            .in_file(|| self.file.path.clone())?;
        let (lap, magic) = random.split_at(8);
        Ok(PageHeader {
            stream: self.file.description.id,
            index,
            lap: u64::from_le_bytes(*lap.first_chunk().expect("8 bytes")),
            first_seq: self.state.next_seq,
            created_ns: now_ns,
            record_magic: u32::from_le_bytes(*magic.first_chunk().expect("4 bytes")),
            form: self.file.description.form,
        })
    }

    /// A data page: the oldest of this stream's if it has as many as it may, or one of the pool.
    fn page_for(&mut self, index: u64, now_ns: u64) -> Result<u32> {
        let geometry = self.file.geometry();
        // With the page that is begun now.
        let next = Held {
            index,
            created_ns: now_ns,
        };
        let all: Vec<Held> = self
            .held
            .iter()
            .map(|(held, _)| *held)
            .chain([next])
            .collect();
        let retention = &self.file.description.retention;
        let by_rule = expired(retention, all.into_iter(), geometry.page_bytes, now_ns);
        // The page table is a ring.
        let round = geometry.pages_max();
        let by_round = self
            .held
            .iter()
            .take_while(|(held, _)| held.index + round <= index);
        // The page before the new one stays, so that a reader of the end has something to stand on.
        let count = by_rule
            .max(by_round.count())
            .min(self.held.len().saturating_sub(1));
        if count > 0 && self.held.len() - count < self.few_pages {
            // What is in flight to one of them must not come after what is written there next.
            if let Err(error) = self.memory.drain() {
                self.survive(error, now_ns)?;
            }
        }
        let mut free = self.strike(count)?;
        let id = self.file.description.id;
        let mut full = Vec::new();
        loop {
            let Some(stripe) = self.stripes.turn(index, &full) else {
                let none = match full.is_empty() {
                    true => io::Error::other(self.stripes.gone().join("; ")),
                    false => io::ErrorKind::StorageFull.into(),
                };
                return Err(self.failed(none));
            };
            let reused = free.iter().position(|&page| stripe_of(page) == stripe);
            let reused = reused.map(|at| free.swap_remove(at));
            let taken = reused.map_or_else(|| self.stripes.take(id, stripe), Ok);
            match taken {
                Err(_) if self.stripes.is_full(stripe) => full.push(stripe),
                Err(error) if self.stripes.are_several() => {
                    // What is in flight there may be written; if it fails, that is in `broken`.
                    let _ = self.memory.drain();
                    self.stripes.fail(stripe, &error.to_string(), now_ns);
                    self.leave_broken(now_ns);
                }
                taken => {
                    self.stripes.release(id, &free)?;
                    return taken;
                }
            }
        }
    }

    /// Tells readers how far the file goes.
    fn publish(&mut self, now_ns: u64) -> Result<()> {
        self.state.end = self.memory.written;
        self.state.tables = self.table.tables();
        self.state.number = self.writer.as_ref().map_or(0, PageWriter::number);
        self.state.sample(Sample {
            time_ns: now_ns,
            records: self.total.records,
            bytes: self.total.bytes,
        });
        self.file.write_state(&self.state)
    }

    /// Writes what was appended to the file, where readers find it.
    ///
    /// # Errors
    ///
    /// If the disk fails or is full.
    pub fn flush(&mut self, now_ns: u64) -> Result<()> {
        if self.memory.failed {
            return Err(StreamError::Failed {
                file: self.pages_path.clone(),
            });
        }
        self.look_down()?;
        if let Err(error) = self.write_part() {
            self.survive(error, now_ns)?;
        }
        // After it is written: a disk that was unmounted has it when it is back.
        self.leave_gone(now_ns);
        self.leave_page();
        self.publish(now_ns)?;
        self.mark_kept();
        Ok(())
    }

    /// Writes the current block as far as it is filled; it stays the current one.
    fn write_part(&mut self) -> io::Result<()> {
        let at = self.writer.as_ref().map(PageWriter::at);
        let filled = at.filter(|_| self.end() > self.memory.written);
        if let Some(at) = filled {
            let used = at - self.memory.block_start;
            let len = used.next_multiple_of(SECTOR);
            let mut copy = self.memory.take()?;
            copy.memory[..used].copy_from_slice(&self.memory.current.memory[..used]);
            copy.memory[used..len].fill(0);
            let number = self.writer.as_ref().map_or(0, PageWriter::number);
            self.memory.submit(copy, len, (at, number), false)?;
        }
        // The block is written again when it is full: not at the same time.
        self.memory.drain()
    }

    /// As [`StreamAppender::flush`], and it survives a loss of power.
    ///
    /// # Errors
    ///
    /// If the disk fails or is full.
    pub fn sync(&mut self, now_ns: u64) -> Result<()> {
        self.flush(now_ns)?;
        if let Err(error) = self.memory.sync() {
            self.survive(error, now_ns)?;
        }
        self.leave_broken(now_ns);
        self.mark_kept();
        self.unsynced_pages = 0;
        // What went with a stripe is not synced; a caller that has to be sure of each record ends now
        // ([`StreamAppender::all_kept`]).
        if self.lost() == self.lost_before {
            self.state.synced_seq = self.state.next_seq;
            self.file.write_state(&self.state)?;
        }
        self.lost_before = self.lost();
        self.file.sync()
    }

    /// Gives up pages that are too old; without new records nothing else does.
    ///
    /// # Errors
    ///
    /// If a file cannot be written.
    pub fn expire(&mut self, now_ns: u64) -> Result<()> {
        let held = self.held.iter().map(|(held, _)| *held);
        let retention = &self.file.description.retention;
        let page_bytes = self.file.geometry().page_bytes;
        let count = expired(retention, held, page_bytes, now_ns);
        if count == 0 {
            return Ok(());
        }
        self.look_down()?;
        if let Err(error) = self.memory.drain() {
            self.survive(error, now_ns)?;
        }
        let free = self.strike(count)?;
        self.stripes.release(self.file.description.id, &free)?;
        self.publish(now_ns)
    }

    /// Takes the oldest pages out of the page table.
    fn strike(&mut self, count: usize) -> Result<Vec<u32>> {
        // Pages before it that were lost are forgotten with those that are given up, and not sooner.
        if let Some(&(first, _)) = self.held.get(count).filter(|_| count > 0) {
            self.state.oldest = first.index;
            // Readers that miss a page in the table learn from the state that it was given up. Of what was appended
            // since, the state says nothing yet.
            if let Some(mut published) = self.file.state()? {
                published.oldest = first.index;
                self.file.write_state(&published)?;
            }
        }
        let mut free = Vec::with_capacity(count);
        for (held, page) in self.held.drain(..count) {
            self.file.strike(held.index)?;
            free.push(page);
        }
        Ok(free)
    }

    /// Writes and syncs all, so that the next to append goes on in the same page.
    ///
    /// # Errors
    ///
    /// If the disk fails or is full.
    pub fn close(mut self, now_ns: u64) -> Result<Appended> {
        self.sync(now_ns)?;
        self.state.is_clean = true;
        self.publish(now_ns)?;
        self.file.sync()?;
        Ok(self.appended())
    }

    /// Whether records are sealed.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.file.description.form == Form::Sealed
    }
}
