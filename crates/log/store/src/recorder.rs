//! Recording into a log on this machine: a writer thread per worker (files are written
//! through [`crate::writer`]).
//!
//! A worker fills blocks; a full one goes to its writer thread and comes back empty once it is
//! written. A block is not handed out again before that, so nothing is overwritten too early.

mod past;
mod writing;

use std::any::Any;
use std::fmt::Debug;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use strata_blocks::{BlockEnd, BlockSink, BlockSource, SinkError, block_channel};
use strata_sys::pause;
use strata_wire::{Ledger, unix_ns};

use crate::disk::Disk;
use crate::error::{StoreError, io_error, is_full};
use crate::manifest::{About, DetailKept, FlowTable, MANIFEST_NAME, Recording, SavedLedger, State};
use crate::writer::{LogWriter, Presence};

use writing::channel;

/// Descriptors reserved for each worker: for a file, its index and its directory, and as many again
/// for what others take meanwhile.
const DESCRIPTORS_AHEAD: usize = 8;
/// How many times a recording tries to write its counters to a full disk.
const CLOSE_TRIES: u32 = 3;

/// How many times the lock is tried, and the wait in between.
const LOCK_TRIES: u32 = 5;
const LOCK_WAIT: Duration = Duration::from_millis(20);

/// How often a checkpoint is made by default.
pub const CHECKPOINT_INTERVAL: Duration = Duration::from_millis(100);

/// Says when a log may grow. Writers ask for each block, so that a log with a limit never has one too many.
pub trait Room: Debug + Send + Sync {
    /// Whether there is room for this many bytes, which then count as taken; without waiting.
    fn take(&self, bytes: u64) -> bool;

    /// Takes this many bytes once there is room, or once it is known that there will be none for now. Called when all
    /// blocks of the calling writer have landed.
    fn wait(&self, bytes: u64);

    /// Bytes that were taken are in a file, or will be in none.
    fn landed(&self, bytes: u64);
}

/// How a recording is written.
#[derive(Clone, Debug)]
pub struct RecorderOptions {
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Blocks of a worker, at least 2: one is filled while others are written.
    pub blocks: usize,
    /// Start a new file once one holds this many bytes; 0 never.
    pub rotate_bytes: u64,
    /// Start a new file once one spans this much packet time; 0 never.
    pub rotate_ns: u64,
    /// How often written data is synced and a checkpoint made.
    pub checkpoint_interval: Duration,
    /// What to do when the disk is full.
    pub when_full: WhenFull,
    /// How long to wait after a full disk before trying again.
    pub full_retry: Duration,
    /// Maximum number of block files per worker: the oldest is deleted for a new one. 0 for no limit.
    pub files_max: usize,
    /// What each writer thread does first: drop the privileges it does not need.
    pub on_thread: fn(),
    /// Asked before each block; `None` if a log may grow as long as its disk has room.
    pub room: Option<Arc<dyn Room>>,
}

/// What to do when the disk is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum WhenFull {
    /// Recording ends; what is written stays.
    #[default]
    Stop,
    /// Recording continues: blocks without space are lost and counted, and once there is space, the
    /// next blocks go to a new file.
    Drop,
}

impl Default for RecorderOptions {
    fn default() -> Self {
        Self {
            block_bytes: 1 << 20,
            blocks: 8,
            rotate_bytes: 1 << 30,
            rotate_ns: 0,
            checkpoint_interval: CHECKPOINT_INTERVAL,
            when_full: WhenFull::Stop,
            full_retry: Duration::from_secs(1),
            files_max: 0,
            on_thread: || (),
            room: None,
        }
    }
}

/// A recording being written.
pub struct Recorder {
    shared: Arc<Shared>,
    writers: Vec<WriterThread>,
    flow_table: Option<FlowTable>,
    detail: Option<DetailKept>,
    _lock: Box<dyn Any + Send>,
}

struct WriterThread {
    end: BlockEnd,
    thread: JoinHandle<Result<(), StoreError>>,
}

impl Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder")
            .field("id", &self.shared.id)
            .finish_non_exhaustive()
    }
}

/// What a recording's workers share.
struct Shared {
    log: Arc<LogWriter>,
    id: u32,
    hash_seed: [u64; 2],
    options: RecorderOptions,
    /// Incremented by each request to start new files.
    rotations: AtomicU64,
}

impl Shared {
    /// Changes this recording's entry in the manifest.
    fn update(&self, change: impl FnOnce(&mut Recording)) -> Result<(), StoreError> {
        self.log.update(self.id, change)
    }
}

impl Recorder {
    /// Starts a recording of one worker; see [`Recorder::start_workers`].
    ///
    /// # Errors
    ///
    /// As there.
    ///
    /// # Panics
    ///
    /// Never: one worker has one sink.
    pub fn start(
        disk: Arc<dyn Disk>,
        options: RecorderOptions,
        about: &About,
    ) -> Result<(Self, BlockSink), StoreError> {
        let (recorder, mut sinks) = Self::start_workers(disk, options, about, 1)?;
        Ok((recorder, sinks.pop().expect("one sink for one worker")))
    }

    /// Starts a recording in the log on `disk`, which may hold earlier ones: a sink
    /// and a writer thread for each worker.
    ///
    /// # Errors
    ///
    /// If another process records into the log, or it cannot be written.
    pub fn start_workers(
        disk: Arc<dyn Disk>,
        options: RecorderOptions,
        about: &About,
        workers: u16,
    ) -> Result<(Self, Vec<BlockSink>), StoreError> {
        let lock = take_lock(disk.as_ref())?;
        let workers = workers.max(1);
        // Touching the blocks' memory takes as long as the disk does for a new recording.
        let channels = || -> Vec<(BlockSink, BlockSource)> {
            let channel = |_| block_channel(options.block_bytes, options.blocks);
            (0..workers).map(channel).collect()
        };
        let (log, channels) = thread::scope(|scope| {
            let thread = thread::Builder::new().name("strata-blocks".into());
            let made = thread.spawn_scoped(scope, channels);
            let log = LogWriter::open(disk, Presence::OwnFiles);
            let log = log.and_then(|log| Ok((log.recording(about, None, |_| false)?, log)));
            let made = made.map(|made| made.join().unwrap_or_else(|panic| resume_unwind(panic)));
            (log, made.unwrap_or_else(|_| channels()))
        });
        let (id, log) = log?;
        let shared = Arc::new(Shared {
            log: Arc::new(log),
            id,
            hash_seed: about.hash_seed,
            options,
            rotations: AtomicU64::new(0),
        });
        let disk = shared.log.disk();
        let ahead = DESCRIPTORS_AHEAD * usize::from(workers);
        let held = disk.hold_ahead(MANIFEST_NAME, ahead);
        match held {
            // It continues with the space there is.
            Err(error) if is_full(&error) => {}
            held => held.map_err(io_error(disk.display(MANIFEST_NAME), "prepare"))?,
        }
        let mut sinks = Vec::new();
        let mut writers = Vec::new();
        for (worker, blocks) in (0..workers).zip(channels) {
            let (sink, writer) = channel(&shared, worker, blocks)?;
            let end = sink.end_handle();
            let on_thread = shared.options.on_thread;
            let spawned = thread::Builder::new()
                .name(format!("strata-writer-{worker}"))
                .spawn(move || {
                    on_thread();
                    writer.run()
                });
            let thread = spawned.map_err(io_error("writer thread".into(), "start"))?;
            writers.push(WriterThread { end, thread });
            sinks.push(sink);
        }
        let recorder = Self {
            shared,
            writers,
            flow_table: None,
            detail: None,
            _lock: lock,
        };
        Ok((recorder, sinks))
    }

    /// The recording's number in the log.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.shared.id
    }

    /// Stores what is known about the tables of flows, for when the recording is closed.
    pub fn describe_flow_table(&mut self, table: FlowTable) {
        self.flow_table = Some(table);
    }

    /// Stores what became of payload under a budget of detail, for when the recording is closed.
    pub fn describe_detail(&mut self, detail: DetailKept) {
        self.detail = Some(detail);
    }

    /// Lets the writers end with what was submitted: [`Recorder::finish`] waits for them.
    pub fn end(&self) {
        for writer in &self.writers {
            // If the writer is gone, joining it tells why.
            writer.end.end();
        }
    }

    /// Seals the files being written; later blocks go to new ones.
    pub fn rotate(&self) {
        self.shared.rotations.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends the recording: everything submitted is on disk, the last file sealed and the counters
    /// closed.
    ///
    /// # Errors
    ///
    /// If something could not be written; the rest of the log is readable.
    pub fn finish(mut self, ledger: &Ledger, warnings: Vec<String>) -> Result<(), StoreError> {
        self.end();
        let mut ended = Ok(());
        for writer in self.writers.drain(..) {
            let joined = writer.thread.join();
            let joined = joined.unwrap_or(Err(SinkError::WriterGone.into()));
            ended = ended.and(joined);
        }
        // After a full disk, the files' contents are known; otherwise they are found by reading.
        let closed = match &ended {
            Ok(()) | Err(StoreError::DiskFull { .. }) => self.close(ledger, warnings),
            Err(_) => Ok(()),
        };
        self.shared.log.disk().let_go();
        ended.and(closed)
    }

    /// Closes the counters; on a full disk, the warnings are dropped if need be.
    fn close(&self, ledger: &Ledger, mut warnings: Vec<String>) -> Result<(), StoreError> {
        let mut tries = 0;
        loop {
            let closed = self.shared.update(|recording| {
                recording.state = State::Closed;
                recording.ended_ns = Some(unix_ns());
                recording.ledger = Some(SavedLedger::from(ledger));
                recording.warnings.clone_from(&warnings);
                recording.flow_table = self.flow_table;
                recording.detail = self.detail;
            });
            tries += 1;
            match closed {
                Err(error) if error.lacks_room() && tries < CLOSE_TRIES => {
                    if warnings.len() > 1 {
                        let count = warnings.len();
                        warnings = vec![format!(
                            "{count} warnings were left out, because the disk was full"
                        )];
                    } else {
                        pause::backoff(self.shared.options.full_retry);
                    }
                }
                closed => return closed,
            }
        }
    }
}

/// The lock of the log. A process that only checks it holds it for an instant, so it is tried again
/// before another recording is reported.
pub(crate) fn take_lock(disk: &dyn Disk) -> Result<Box<dyn Any + Send>, StoreError> {
    let dir = disk.display("");
    for _ in 0..LOCK_TRIES {
        let lock = disk.lock().map_err(io_error(dir.clone(), "lock the log"))?;
        if let Some(lock) = lock {
            return Ok(lock);
        }
        pause::backoff(LOCK_WAIT);
    }
    Err(StoreError::Locked { dir })
}
