//! One block file: where blocks go, how far it is whole, and how it ends.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::disk::{Disk, DiskFile};
use crate::error::{StoreError, io_error};
use crate::index::{IndexWriter, index_name};
use crate::manifest::BlockFile;

use super::LogWriter;

/// A block file that is being written. Blocks get their places one after another; they may be
/// written in any order, by any thread. Up to the first that cannot be written, the file is
/// whole: nothing after it counts.
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
    /// Whether there are not definitions alone.
    has_packets: bool,
    /// Blocks that were placed and are not yet counted, in their order.
    waiting: VecDeque<Waiting>,
    whole: Extent,
    unsynced: bool,
    /// `None` without one, or once it could not be written, which costs searches only.
    index: Option<IndexWriter>,
}

/// What becomes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Blocks are placed in it.
    Open,
    /// So they are, but one could not be written: none of those after it counts.
    Failed,
    /// No more will be placed: once all are written it is complete.
    Retired,
    /// No more will be placed, and one could not be written: the file is cut before it.
    Torn,
}

/// A block that has a place.
struct Waiting {
    offset: u64,
    len: u64,
    /// `None` for definitions alone.
    packets: Option<u64>,
    /// `None` as long as it is in flight.
    outcome: Option<Written>,
}

/// What is written without a gap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) bytes: u64,
    pub(crate) blocks: u64,
    pub(crate) packets: u64,
}

/// What became of a block.
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
    /// The file goes on.
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
    /// A file that exists, is empty, and is named by the manifest.
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

    /// What is written without a gap.
    pub(crate) fn whole(&self) -> Extent {
        self.inner().whole
    }

    /// Bytes that were placed, and whether these are not definitions alone.
    pub(super) fn placed(&self) -> (u64, bool) {
        let inner = self.inner();
        (inner.end, inner.has_packets)
    }

    /// Whether a block could not be written.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.inner().state, State::Failed | State::Torn)
    }

    /// What went wrong with it.
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

    /// Uses its own handle.
    pub(crate) fn with_handle<T>(&self, work: impl FnOnce(&mut dyn DiskFile) -> T) -> T {
        work(self.inner().handle.as_mut())
    }

    /// Whether its name still leads to it.
    pub(crate) fn is_there(&self) -> bool {
        let disk = self.log.disk();
        disk.leads_to(&self.name, self.inner().handle.as_ref())
    }

    /// A place for a block of `len` bytes after all before it, with so many packets; `None` for
    /// a block of definitions alone.
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

    /// Adds a block that was just counted to the index.
    pub(crate) fn index(&self, block: &[u8]) {
        let mut inner = self.inner();
        let index = inner.index.as_mut();
        if index.is_some_and(|index| index.add(block).is_err()) {
            inner.index = None;
            drop_index(self.log.disk().as_ref(), &self.name);
        }
    }

    /// The index is complete.
    pub(crate) fn end_index(&self) {
        let index = self.inner().index.take();
        if index.is_some_and(|index| index.finish().is_err()) {
            drop_index(self.log.disk().as_ref(), &self.name);
        }
    }

    /// Makes what was written durable, if it is not known to be.
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

    /// Cuts the file where it is no longer whole.
    ///
    /// # Errors
    ///
    /// If that fails: readers stop there by themselves.
    pub(crate) fn cut(&self) -> io::Result<()> {
        let mut inner = self.inner();
        let end = inner.whole.bytes;
        inner.handle.set_len(end)?;
        inner.handle.sync()
    }

    /// Says in the manifest that it is complete.
    ///
    /// # Errors
    ///
    /// If the manifest cannot be written; its next version says it.
    pub(crate) fn seal(&self) -> Result<(), StoreError> {
        let whole = self.whole();
        self.log.update(self.recording, |recording| {
            if let Some(entry) = recording.files.iter_mut().find(|f| f.name == self.name) {
                entry.sealed = true;
                entry.bytes = whole.bytes;
                entry.blocks = whole.blocks;
                entry.packets = whole.packets;
            }
        })
    }

    /// How the manifest lists it at first.
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
    /// Counts the blocks before which nothing is missing.
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

/// Deletes an index that could not be written: without it the file itself is searched.
fn drop_index(disk: &dyn Disk, block_file: &str) {
    // What is left of it does not fit the file, which readers notice.
    let _ = disk.remove(&index_name(block_file));
}
