//! One block file: where blocks go, how far it is intact, and how it ends.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::block::index::{IndexWriter, index_name};
use crate::disk::{Disk, DiskFile};
use crate::error::{StoreError, io_error};
use crate::manifest::{BlockFile, Recording};

use super::LogWriter;

/// A block file being written. Blocks get their places one after another; they may be written in
/// any order, by any thread. The file is intact up to the first block that could not be written:
/// nothing after it counts.
pub(crate) struct OpenFile {
    log: Arc<LogWriter>,
    recording: u32,
    name: String,
    first_ts_ns: u64,
    inner: Mutex<Inner>,
}

struct Inner {
    handle: Box<dyn DiskFile>,
    state: State,
    /// Where the next block goes.
    end: u64,
    /// Whether it holds more than definitions.
    has_packets: bool,
    /// Blocks placed but not yet counted, in order.
    waiting: VecDeque<Waiting>,
    whole: Extent,
    unsynced: bool,
    /// `None` without one, or once it could not be written, which only slows down searches.
    index: Option<IndexWriter>,
}

/// The state of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Blocks are placed in it.
    Open,
    /// Blocks are placed in it, but one could not be written: none after it counts.
    Failed,
    /// No more will be placed: once all are written, it is complete.
    Retired,
    /// No more will be placed, and one could not be written: the file is cut before it.
    Torn,
}

/// A block with a place.
struct Waiting {
    offset: u64,
    len: u64,
    /// `None` for definitions only.
    packets: Option<u64>,
    /// `None` while it is in flight.
    outcome: Option<Written>,
}

/// What has been written without a gap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) bytes: u64,
    pub(crate) blocks: u64,
    pub(crate) packets: u64,
}

/// The outcome of writing a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// It is in the file, perhaps not yet synced.
    Unsynced,
    /// It is in the file, and survives a crash.
    Durable,
    /// It could not be written.
    Failed,
}

/// What a block's outcome means for its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// The file continues.
    GoesOn,
    /// Nothing more comes, and all is written: [`OpenFile::seal`].
    Complete,
    /// Nothing more comes, and nothing is in flight: [`OpenFile::cut`].
    ToCut,
}

/// The place of a block.
pub(crate) struct PlacedAt {
    file: Arc<OpenFile>,
    offset: u64,
}

impl PlacedAt {
    pub(crate) fn file(&self) -> &Arc<OpenFile> {
        &self.file
    }

    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }
}

impl OpenFile {
    /// A new, empty file that the manifest already lists.
    pub(super) fn new(
        log: &Arc<LogWriter>,
        recording: u32,
        name: String,
        handle: Box<dyn DiskFile>,
        index: Option<IndexWriter>,
        first_ts_ns: u64,
    ) -> Self {
        Self {
            log: Arc::clone(log),
            recording,
            name,
            first_ts_ns,
            inner: Mutex::new(Inner {
                handle,
                state: State::Open,
                end: 0,
                has_packets: false,
                waiting: VecDeque::new(),
                whole: Extent::default(),
                unsynced: false,
                index,
            }),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn first_ts_ns(&self) -> u64 {
        self.first_ts_ns
    }

    /// What has been written without a gap.
    pub(crate) fn whole(&self) -> Extent {
        self.inner().whole
    }

    /// Bytes placed, and whether they include more than definitions.
    pub(super) fn placed(&self) -> (u64, bool) {
        let inner = self.inner();
        (inner.end, inner.has_packets)
    }

    /// Whether a block could not be written.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.inner().state, State::Failed | State::Torn)
    }

    /// Wraps an error with its name.
    pub(crate) fn error(&self, action: &'static str) -> impl FnOnce(io::Error) -> StoreError {
        io_error(self.log.display(&self.name), action)
    }

    /// Another handle to it.
    ///
    /// # Errors
    ///
    /// If it cannot be opened.
    pub(crate) fn open(&self) -> Result<Box<dyn DiskFile>, StoreError> {
        let opened = self.log.disk().open_for_blocks(&self.name);
        opened.map_err(self.error("open"))
    }

    /// Runs `work` with the file's own handle.
    pub(crate) fn with_handle<T>(&self, work: impl FnOnce(&mut dyn DiskFile) -> T) -> T {
        work(self.inner().handle.as_mut())
    }

    /// Whether its name still refers to it.
    pub(crate) fn is_there(&self) -> bool {
        let disk = self.log.disk();
        disk.leads_to(&self.name, self.inner().handle.as_ref())
    }

    /// A place for a block of `len` bytes after all earlier ones, with this many packets; `None`
    /// for a block of definitions only.
    pub(crate) fn place(self: &Arc<Self>, len: u64, packets: Option<u64>) -> PlacedAt {
        let mut inner = self.inner();
        let offset = inner.end;
        inner.end += len;
        inner.has_packets |= packets.is_some();
        inner.waiting.push_back(Waiting {
            offset,
            len,
            packets,
            outcome: None,
        });
        PlacedAt {
            file: Arc::clone(self),
            offset,
        }
    }

    /// The block at `offset` was written, or could not be.
    pub(crate) fn settle(&self, offset: u64, outcome: Written) -> Settled {
        let mut inner = self.inner();
        let mut waiting = inner.waiting.iter_mut();
        if let Some(block) = waiting.find(|block| block.offset == offset) {
            block.outcome = Some(outcome);
        }
        match outcome {
            Written::Unsynced => inner.unsynced = true,
            Written::Durable => {}
            Written::Failed => {
                inner.state = match inner.state {
                    State::Open | State::Failed => State::Failed,
                    State::Retired | State::Torn => State::Torn,
                }
            }
        }
        inner.count();
        inner.settled()
    }

    /// No more blocks will be placed in it.
    pub(crate) fn retire(&self) -> Settled {
        let mut inner = self.inner();
        inner.state = match inner.state {
            State::Open | State::Retired => State::Retired,
            State::Failed | State::Torn => State::Torn,
        };
        inner.settled()
    }

    /// Adds a newly counted block to the index.
    pub(crate) fn index(&self, block: &[u8]) {
        let mut inner = self.inner();
        let index = inner.index.as_mut();
        if index.is_some_and(|index| index.add(block).is_err()) {
            inner.index = None;
            drop_index(self.log.disk().as_ref(), &self.name);
        }
    }

    /// Completes the index.
    pub(crate) fn end_index(&self) {
        let index = self.inner().index.take();
        if index.is_some_and(|index| index.finish().is_err()) {
            drop_index(self.log.disk().as_ref(), &self.name);
        }
    }

    /// Syncs what was written, unless it is known to be durable.
    ///
    /// # Errors
    ///
    /// If that fails.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        let mut inner = self.inner();
        if !inner.unsynced {
            return Ok(());
        }
        inner.handle.sync().map_err(self.error("sync"))?;
        inner.unsynced = false;
        Ok(())
    }

    /// Cuts the file where it is no longer intact.
    ///
    /// # Errors
    ///
    /// If that fails; readers then stop there by themselves.
    pub(crate) fn cut(&self) -> io::Result<()> {
        let mut inner = self.inner();
        let end = inner.whole.bytes;
        inner.handle.set_len(end)?;
        inner.handle.sync()
    }

    /// Marks it as complete in the manifest.
    ///
    /// # Errors
    ///
    /// If the manifest cannot be written; its next version will have it.
    pub(crate) fn seal(&self) -> Result<(), StoreError> {
        let whole = self.whole();
        self.log
            .update(self.recording, |recording| self.describe(recording, whole))
    }

    /// As [`OpenFile::seal`], for the last file of a recording: the caller that closes it writes the
    /// manifest.
    pub(crate) fn seal_last(&self) {
        let whole = self.whole();
        self.log
            .note(self.recording, |recording| self.describe(recording, whole));
    }

    fn describe(&self, recording: &mut Recording, whole: Extent) {
        if let Some(entry) = recording.files.iter_mut().find(|f| f.name == self.name) {
            entry.sealed = true;
            entry.bytes = whole.bytes;
            entry.blocks = whole.blocks;
            entry.packets = whole.packets;
        }
    }

    /// Its initial entry in the manifest.
    pub(super) fn entry(name: &str, worker: u16) -> BlockFile {
        BlockFile {
            name: name.to_owned(),
            worker,
            sealed: false,
            bytes: 0,
            blocks: 0,
            packets: 0,
        }
    }
}

impl Inner {
    /// Counts the blocks before the first gap.
    fn count(&mut self) {
        while let Some(block) = self.waiting.front()
            && let Some(outcome) = block.outcome
        {
            if outcome != Written::Failed && block.offset == self.whole.bytes {
                self.whole.bytes += block.len;
                self.whole.blocks += 1;
                self.whole.packets += block.packets.into_iter().sum::<u64>();
            }
            self.waiting.pop_front();
        }
    }

    fn settled(&self) -> Settled {
        match self.state {
            _ if !self.waiting.is_empty() => Settled::GoesOn,
            State::Open | State::Failed => Settled::GoesOn,
            State::Retired => Settled::Complete,
            State::Torn => Settled::ToCut,
        }
    }
}

/// Deletes an index that could not be written: without it, the file itself is searched.
fn drop_index(disk: &dyn Disk, block_file: &str) {
    // Leftovers do not match the file, which readers notice.
    let _ = disk.remove(&index_name(block_file));
}
