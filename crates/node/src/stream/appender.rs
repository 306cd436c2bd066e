//! Appending to a stream: records go into blocks, full blocks to the disk, several at a time.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use strata_stream::{
    AppendError, Blocks, Cursor, Form, Held, INDEX_JUMP, Item, Page, PageHeader, PageWriter,
    Recovered, Sample, State, StreamName, TableWriter, expired, recovered,
};
use strata_wire::exact;

use super::dir::StreamDir;
use super::error::{In as _, Result, StreamError};
use super::file::{StreamFile, lock_name};
use super::locks::Lock;
use super::memory::Memory;
use super::pool::{PAGES, Pool};

/// Bytes of a block, unless pages are smaller.
const BLOCK_BYTES: usize = 256 << 10;
/// Direct writes are multiples of this.
const SECTOR: usize = 4096;
/// Pages begun between two syncs, so that after a crash fewer than [`INDEX_JUMP`] are missing.
const UNSYNCED_PAGES_MAX: u64 = INDEX_JUMP / 2;
/// More pages than blocks in flight can belong to.
const FEW_PAGES: usize = 16;
/// Space for at most so many bytes is taken in advance, since a file system that takes some first waits
/// for what is in flight to the file.
const GROW_BYTES_MAX: u64 = 64 << 20;
/// Records have the time of a mark at most this much before them.
pub(super) const MARK_NS: u64 = 10_000_000;
/// How long to wait for a reader that looks whether somebody appends.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

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
    pool: Pool,
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
    pages_path: String,
    _lock: Lock,
    _user: Lock,
}

impl std::fmt::Debug for StreamAppender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamAppender")
            .field("file", &self.file.path)
            .finish_non_exhaustive()
    }
}

/// What the pages of a stream in the pool say: of those that `owners` says are its own, or, if the
/// map of owners may be older than the pages, of all.
pub(super) fn recovered_pages(
    pool: &Pool,
    file: &StreamFile,
    owners: Option<&[u64]>,
    state: Option<&State>,
) -> Result<Recovered> {
    let pages = pool.pages()?;
    let id = file.description.id;
    let count = match owners {
        Some(owners) => owners.len() as u64,
        None => pool.count(pages.as_ref())?,
    };
    let mut read = Vec::new();
    for page in 0..exact::<u32>(count) {
        if owners.is_none_or(|owners| owners[exact::<usize>(page)] == id) {
            let bytes = pool.header_bytes(pages.as_ref(), page)?;
            let page_len = file.geometry().page_len();
            let header =
                bytes.and_then(|bytes| PageHeader::parse(&bytes, id, &file.key, page_len).ok());
            if header.is_some() || owners.is_some() {
                read.push((page, header));
            }
        }
    }
    let mut found = recovered(read);
    let oldest = state.map(|state| state.oldest);
    found.trim(&file.description.retention, file.geometry(), oldest);
    Ok(found)
}

/// How many records of a page there have been, as those that are left say.
fn records_of(pool: &Pool, file: &StreamFile, page: u32, header: PageHeader) -> Result<u32> {
    let mut bytes = vec![0; file.geometry().page_len()];
    let pages = pool.pages()?;
    let read = pages.read_at(&mut bytes, pool.page_at(page));
    let read = read.in_file(|| file.path.clone())?;
    let page = Page::new(
        header,
        file.key.page(header.index, header.lap),
        &bytes[..read],
    );
    let mut walk = page.walk();
    for item in walk.by_ref() {
        let (Item::Record(_) | Item::Missing(_)) = item;
    }
    Ok(walk.next_number())
}

impl StreamDir {
    /// Starts appending to a stream. One process may at a time.
    ///
    /// # Errors
    ///
    /// If another does, or a file is damaged.
    pub fn append(&self, name: &StreamName, now_ns: u64) -> Result<StreamAppender> {
        StreamAppender::open(self, name, now_ns)
    }
}

impl StreamAppender {
    fn open(dir: &StreamDir, name: &StreamName, now_ns: u64) -> Result<Self> {
        let mut file = dir.file(name, true)?;
        let lock = Self::lock(dir, name)?;
        let user = dir.pool.join(&dir.ids()?)?;
        let pool = dir.pool.clone();
        let pages_path = dir.disk.display(PAGES);
        let state = file.state()?;
        let was_clean = state.as_ref().is_some_and(|state| state.is_clean);
        let owners = pool.owners()?;
        let found = recovered_pages(&pool, &file, Some(&owners), state.as_ref())?;
        let mut state = state.unwrap_or_else(State::unknown);
        let last = found.pages.last_key_value().map(|(_, &last)| last);
        let table = if was_clean {
            state.is_clean = false;
            file.write_state(&state)?;
            TableWriter::new(file.geometry(), state.tables)
        } else {
            file.forget_state()?;
            let pages = found.pages.iter().map(|(&index, &(page, _))| (index, page));
            file.rebuild(pages)?
        };
        file.sync()?;
        pool.release(file.description.id, &found.unused)?;
        let block_bytes = BLOCK_BYTES.min(file.geometry().page_len());
        let pages = pool.pages_for_blocks()?;
        let memory = Memory::new(pages, block_bytes, dir.disk.in_flight());
        let mut memory = memory.in_file(|| pages_path.clone())?;
        memory.written = state.end;
        let mut appender = Self {
            memory,
            writer: None,
            held: VecDeque::new(),
            table,
            first_seq: state.next_seq,
            // The end of a page that was begun, or the start of one that was not.
            next_index: state.end.index + u64::from(state.end.offset > 0),
            unsynced_pages: 0,
            marked_ns: 0,
            total: Appended::default(),
            at_open: Appended::default(),
            state,
            pool,
            file,
            pages_path,
            _lock: lock,
            _user: user,
        };
        for (&index, &(page, header)) in &found.pages {
            let created_ns = header.created_ns;
            appender.held.push_back((Held { index, created_ns }, page));
        }
        match (last, was_clean) {
            (Some((page, header)), true) => appender.go_on(page, header)?,
            (last, was_clean) => appender.begin_after_crash(last, was_clean)?,
        }
        let (now, _) = appender.state.recent();
        appender.total = Appended {
            records: now.records.max(appender.state.next_seq),
            bytes: now.bytes,
        };
        appender.at_open = appender.total;
        appender.publish(now_ns)?;
        Ok(appender)
    }

    /// Readers hold the lock for moments.
    fn lock(dir: &StreamDir, name: &StreamName) -> Result<Lock> {
        let file = lock_name(name);
        let start = std::time::Instant::now();
        loop {
            let taken = dir.locks.take(&file).in_file(|| dir.disk.display(&file))?;
            match taken {
                Some(lock) => return Ok(lock),
                None if start.elapsed() < LOCK_PATIENCE => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                None => {
                    return Err(StreamError::InUse {
                        dir: dir.path.clone(),
                        name: name.to_string(),
                    });
                }
            }
        }
    }

    /// Goes on where the stream was closed: in the same page, if its records are sealed.
    fn go_on(&mut self, page: u32, header: PageHeader) -> Result<()> {
        let end = self.state.end;
        self.next_index = self.next_index.max(header.index + 1);
        if header.index != end.index || end.offset == 0 {
            return Ok(());
        }
        let at = exact::<usize>(end.offset);
        let block_bytes = self.memory.current.memory.len();
        let block_start = at / block_bytes * block_bytes;
        let key = self.file.key.clone();
        let page_len = self.file.geometry().page_len();
        let places = (at, block_start);
        let resumed = PageWriter::resume(&header, &key, page_len, places, self.state.number);
        let Some(writer) = resumed.filter(|_| at < page_len) else {
            return Ok(());
        };
        let page_at = self.pool.page_at(page);
        let there = &mut self.memory.current.memory[..at - block_start];
        let pages = self.pool.pages()?;
        let read = pages.read_at(there, page_at + block_start as u64);
        let read = read.in_file(|| self.pages_path.clone())?;
        if read < at - block_start {
            // Not what the state says: leave it alone.
            return Ok(());
        }
        self.memory.index = header.index;
        self.memory.page_at = page_at;
        self.memory.block_start = block_start;
        self.first_seq = header.first_seq;
        self.writer = Some(writer);
        Ok(())
    }

    /// Goes on in a new page, with a number that no reader has seen.
    fn begin_after_crash(
        &mut self,
        last: Option<(u32, PageHeader)>,
        was_clean: bool,
    ) -> Result<()> {
        if let Some((page, header)) = last {
            let records = records_of(&self.pool, &self.file, page, header)?;
            self.state.next_seq = self
                .state
                .next_seq
                .max(header.first_seq + u64::from(records));
            self.next_index = self.next_index.max(header.index);
        }
        if !was_clean {
            self.next_index += INDEX_JUMP;
        }
        self.first_seq = self.state.next_seq;
        self.memory.written = Cursor::page(self.next_index);
        Ok(())
    }

    /// What was appended since it was opened.
    #[must_use]
    pub fn appended(&self) -> Appended {
        Appended {
            records: self.total.records - self.at_open.records,
            bytes: self.total.bytes - self.at_open.bytes,
        }
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
                index: self.memory.index,
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
        if self.memory.failed {
            return Err(StreamError::Failed {
                file: self.pages_path.clone(),
            });
        }
        loop {
            if let Some(writer) = &mut self.writer {
                let marked = if now_ns >= self.marked_ns + MARK_NS || now_ns < self.marked_ns {
                    self.marked_ns = now_ns;
                    writer.mark(&mut self.memory, now_ns)
                } else {
                    Ok(())
                };
                match marked.and_then(|()| writer.append(&mut self.memory, payload)) {
                    Ok(()) => {
                        self.state.next_seq += 1;
                        self.total.records += 1;
                        self.total.bytes += payload.len() as u64;
                        return Ok(());
                    }
                    Err(AppendError::Full) => {}
                    Err(AppendError::TooLong { len, max }) => return Err(self.too_long(len, max)),
                    Err(AppendError::Blocks(error)) => return Err(self.failed(error)),
                }
            } else if payload.len() > self.record_len_max() {
                return Err(self.too_long(payload.len(), self.record_len_max()));
            }
            self.next_page(now_ns)?;
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

    /// Hands the rest of the page to the disk, and begins another.
    fn next_page(&mut self, now_ns: u64) -> Result<()> {
        if let Some(writer) = self.writer.take() {
            writer.zero_rest(&mut self.memory);
            if let Err(error) = self.memory.full(writer.at()) {
                return Err(self.failed(error));
            }
        }
        if self.unsynced_pages >= self.unsynced_pages_max() {
            self.sync(now_ns)?;
        }
        let index = self.next_index;
        let data_page = self.page_for(index, now_ns)?;
        let header = self.header(index, now_ns)?;
        self.memory.index = index;
        self.memory.page_at = self.pool.page_at(data_page);
        self.memory.block_start = 0;
        if let Err(error) = self.make_room() {
            return Err(self.failed(error));
        }
        let page_len = self.file.geometry().page_len();
        let begun = PageWriter::begin(&header, &self.file.key, page_len, &mut self.memory);
        self.writer = match begun {
            Ok(writer) => Some(writer),
            Err(error) => return Err(self.failed(error)),
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

    /// Makes sure that the file has the current page, and if it must grow for that, an eighth more.
    fn make_room(&mut self) -> io::Result<()> {
        let start = self.memory.page_at;
        let page_bytes = u64::from(self.file.geometry().page_bytes);
        let end = start + page_bytes;
        let file = &mut self.memory.file;
        if file.size()? >= end {
            return Ok(());
        }
        let more = (start / 8).min(GROW_BYTES_MAX) / page_bytes * page_bytes;
        match file.grow(start..end + more) {
            // The last pages of a disk, one by one.
            Err(error) if more > 0 && error.kind() == io::ErrorKind::StorageFull => {
                file.grow(start..end)
            }
            grown => grown,
        }
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
        if count > 0 && self.held.len() - count < FEW_PAGES {
            // What is in flight to one of them must not come after what is written there next.
            let drained = self.memory.drain();
            drained.map_err(|error| self.failed(error))?;
        }
        let mut free = self.strike(count)?;
        if let Some((first, _)) = self.held.front() {
            self.state.oldest = first.index;
        } else {
            self.state.oldest = index;
        }
        let reused = free.pop();
        self.pool.release(self.file.description.id, &free)?;
        match reused {
            Some(page) => Ok(page),
            None => self.pool.take(self.file.description.id),
        }
    }

    /// Tells readers how far the file goes.
    fn publish(&mut self, now_ns: u64) -> Result<()> {
        self.state.end = self.memory.written;
        self.state.tables = self.table.tables();
        self.state.number = self.writer.as_ref().map_or(0, PageWriter::number);
        if let Some((first, _)) = self.held.front() {
            self.state.oldest = first.index;
        }
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
        if let Err(error) = self.write_part() {
            return Err(self.failed(error));
        }
        self.publish(now_ns)
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
            self.memory.submit(copy, len, at);
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
        if let Err(error) = self.memory.file.sync() {
            return Err(self.failed(error));
        }
        self.unsynced_pages = 0;
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
        let drained = self.memory.drain();
        drained.map_err(|error| self.failed(error))?;
        let free = self.strike(count)?;
        self.pool.release(self.file.description.id, &free)?;
        self.publish(now_ns)
    }

    /// Takes the oldest pages out of the page table.
    fn strike(&mut self, count: usize) -> Result<Vec<u32>> {
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
