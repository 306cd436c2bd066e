//! Writing a log: one recording, a writer thread per worker.
//!
//! A worker fills blocks; a full one goes to its writer thread and comes back
//! empty once it is written. A block is never handed out again before that, so
//! nothing is overwritten before it is safe.

mod writer;

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use strata_wire::Ledger;

use crate::channel::{BlockSink, ToWriter};
use crate::disk::Disk;
use crate::error::{StoreError, io_error, is_full};
use crate::manifest::{Books, MANIFEST_NAME, Manifest, Recording, State};

use writer::channel;

/// Descriptors that are held ahead for each worker: of a file, its index and its directory, and
/// as many again for what others take in between.
const DESCRIPTORS_AHEAD: usize = 8;
/// How many times a recording tries to write its books on a disk that is full.
const CLOSE_TRIES: u32 = 3;
/// How many times a manifest that changes while it is read is read.
const READ_TRIES: u32 = 10;

/// How often a checkpoint is made by default.
pub const CHECKPOINT_INTERVAL: Duration = Duration::from_millis(100);

/// How a recording is written.
#[derive(Clone, Debug)]
pub struct RecorderOptions {
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Blocks of a worker, at least 2: one fills while others are written.
    pub blocks: usize,
    /// A new file once one holds so many bytes; 0 never.
    pub rotate_bytes: u64,
    /// A new file once one spans so much packet time; 0 never.
    pub rotate_ns: u64,
    /// How often what is written is synced and a checkpoint made.
    pub checkpoint_interval: Duration,
    /// What is done when the disk is full.
    pub when_full: WhenFull,
    /// How long nothing is tried on a disk that was full.
    pub full_retry: Duration,
    /// Block files of a worker at most: the oldest is deleted for a new one. 0 for any
    /// number.
    pub files_max: usize,
    /// What each writer thread does first: to give up what it does not need.
    pub on_thread: fn(),
}

/// What is done when the disk is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum WhenFull {
    /// The recording ends; what is written stays.
    #[default]
    Stop,
    /// It goes on: blocks for which there is no room are lost, which is counted, and once
    /// there is room the next begin a new file.
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
        }
    }
}

/// What a recording is of, for the manifest.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// Program and version.
    pub program: String,
    /// Inputs as named by the user.
    pub inputs: Vec<String>,
    /// Capture filter.
    pub filter: String,
    /// Name of the mode.
    pub mode: String,
    /// Name of the model.
    pub model: String,
    /// The model file's content; it is kept in the log.
    pub model_json: Vec<u8>,
    /// Names of the classes, by index.
    pub classes: Vec<String>,
    /// Key of fingerprints.
    pub hash_seed: [u64; 2],
    /// Whether blocks may hold promotions of earlier packets.
    pub look_back: bool,
    /// Whether the inputs are interfaces that are captured.
    pub live: bool,
}

/// A recording being written.
pub struct Recorder {
    shared: Arc<Shared>,
    writers: Vec<WriterThread>,
    _lock: Box<dyn Any + Send>,
}

struct WriterThread {
    sender: SyncSender<ToWriter>,
    thread: JoinHandle<Result<(), StoreError>>,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder")
            .field("id", &self.shared.id)
            .finish_non_exhaustive()
    }
}

struct Shared {
    disk: Arc<dyn Disk>,
    manifest: Mutex<Manifest>,
    id: u32,
    hash_seed: [u64; 2],
    options: RecorderOptions,
    /// Grows with each request to begin new files.
    rotations: AtomicU64,
    /// Whether the manifest on disk is older than the one in memory.
    is_behind: AtomicBool,
}

impl Shared {
    fn manifest(&self) -> MutexGuard<'_, Manifest> {
        self.manifest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes this recording's entry, on disk before it returns. If that fails, the next
    /// version has the change all the same.
    fn update(&self, change: impl FnOnce(&mut Recording)) -> Result<(), StoreError> {
        self.update_or(change, |_| ())
    }

    /// As [`Shared::update`], but a change that cannot be written is taken back by `undo`.
    fn update_or(
        &self,
        change: impl FnOnce(&mut Recording),
        undo: impl FnOnce(&mut Recording),
    ) -> Result<(), StoreError> {
        let mut manifest = self.manifest();
        let place = manifest.recordings.iter().position(|r| r.id == self.id);
        if let Some(place) = place {
            change(&mut manifest.recordings[place]);
        }
        let replaced = self.disk.replace(MANIFEST_NAME, &manifest.to_json());
        self.is_behind.store(replaced.is_err(), Ordering::Relaxed);
        if let (Err(_), Some(place)) = (&replaced, place) {
            undo(&mut manifest.recordings[place]);
        }
        replaced.map_err(io_error(self.disk.display(MANIFEST_NAME), "write"))
    }

    fn is_behind(&self) -> bool {
        self.is_behind.load(Ordering::Relaxed)
    }
}

pub(crate) fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = since.expect("Linux refuses to set its clock before 1970");
    u64::try_from(since.as_nanos()).expect("it is not 2554 yet")
}

/// The name of a recording's checkpoint file.
#[must_use]
pub fn checkpoint_name(recording: u32, worker: u16) -> String {
    format!("blocks/r{recording:04}-w{worker:02}.checkpoint")
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
        let mut manifest = read_manifest(disk.as_ref())?.unwrap_or_default();
        let last = manifest.recordings.iter().map(|r| r.id).fold(0, u32::max);
        let id = last.checked_add(1).ok_or_else(|| StoreError::Manifest {
            file: disk.display(MANIFEST_NAME),
            problem: format!("recording number {last} is the largest there is"),
        })?;
        let model_file = format!("models/r{id:04}.json");
        let stored = disk.replace(&model_file, &about.model_json);
        stored.map_err(io_error(disk.display(&model_file), "write"))?;
        let recording = Recording::begun(id, about, model_file, now_ns());
        manifest.recordings.push(recording);
        let shared = Arc::new(Shared {
            disk,
            manifest: Mutex::new(manifest),
            id,
            hash_seed: about.hash_seed,
            options,
            rotations: AtomicU64::new(0),
            is_behind: AtomicBool::new(false),
        });
        shared.update(|_| ())?;
        let ahead = DESCRIPTORS_AHEAD * usize::from(workers.max(1));
        let held = shared.disk.hold_ahead(MANIFEST_NAME, ahead);
        match held {
            // It goes on with what room there is.
            Err(error) if is_full(&error) => {}
            held => held.map_err(io_error(shared.disk.display(MANIFEST_NAME), "prepare"))?,
        }
        let mut sinks = Vec::new();
        let mut writers = Vec::new();
        for worker in 0..workers.max(1) {
            let (sink, writer) = channel(&shared, worker)?;
            let sender = sink.to_writer.clone();
            let on_thread = shared.options.on_thread;
            let spawned = thread::Builder::new()
                .name(format!("strata-writer-{worker}"))
                .spawn(move || {
                    on_thread();
                    writer.run()
                });
            let thread = spawned.map_err(io_error("writer thread".into(), "start"))?;
            writers.push(WriterThread { sender, thread });
            sinks.push(sink);
        }
        let recorder = Self {
            shared,
            writers,
            _lock: lock,
        };
        Ok((recorder, sinks))
    }

    /// The recording's number in the log.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.shared.id
    }

    /// Seals the files being written; what is written next begins new ones.
    pub fn rotate(&self) {
        self.shared.rotations.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends the recording: everything submitted is on disk, the last file sealed
    /// and the books closed.
    ///
    /// # Errors
    ///
    /// If something could not be written; the rest of the log is readable.
    pub fn finish(mut self, ledger: &Ledger, warnings: Vec<String>) -> Result<(), StoreError> {
        for writer in &self.writers {
            // If the writer is gone, joining it says why.
            let _ = writer.sender.send(ToWriter::Finish);
        }
        let mut ended = Ok(());
        for writer in self.writers.drain(..) {
            let joined = writer.thread.join().unwrap_or(Err(StoreError::WriterGone));
            ended = ended.and(joined);
        }
        // What is in the files of a disk that was full is known; else it is found by reading.
        let closed = match &ended {
            Ok(()) | Err(StoreError::DiskFull { .. }) => self.close(ledger, warnings),
            Err(_) => Ok(()),
        };
        self.shared.disk.let_go();
        ended.and(closed)
    }

    /// Closes the books, on a disk that is full at the expense of the warnings.
    fn close(&self, ledger: &Ledger, mut warnings: Vec<String>) -> Result<(), StoreError> {
        let mut tries = 0;
        loop {
            let closed = self.shared.update(|recording| {
                recording.state = State::Closed;
                recording.ended_ns = Some(now_ns());
                recording.ledger = Some(Books::from(ledger));
                recording.warnings.clone_from(&warnings);
            });
            tries += 1;
            match closed {
                Err(error) if error.is_for_want_of_room() && tries < CLOSE_TRIES => {
                    if warnings.len() > 1 {
                        let count = warnings.len();
                        warnings = vec![format!("{count} warnings: no room for them on the disk")];
                    } else {
                        thread::sleep(self.shared.options.full_retry);
                    }
                }
                closed => return closed,
            }
        }
    }
}

/// The lock of the log. Who only looks whether it is taken holds it for an
/// instant, so it is tried again before another recording is reported.
pub(crate) fn take_lock(disk: &dyn Disk) -> Result<Box<dyn Any + Send>, StoreError> {
    let dir = disk.display("");
    for _ in 0..5 {
        let lock = disk.lock().map_err(io_error(dir.clone(), "lock the log"))?;
        if let Some(lock) = lock {
            return Ok(lock);
        }
        thread::sleep(Duration::from_millis(20));
    }
    Err(StoreError::Locked { dir })
}

/// The log's manifest; `None` if there is none.
///
/// # Errors
///
/// If it cannot be read or understood.
pub(crate) fn read_manifest(disk: &dyn Disk) -> Result<Option<Manifest>, StoreError> {
    if !disk.exists(MANIFEST_NAME) {
        return Ok(None);
    }
    let named = disk.display(MANIFEST_NAME);
    let mut before = None;
    let mut tries = 0;
    loop {
        tries += 1;
        let content = read_all(disk, MANIFEST_NAME).map_err(io_error(named.clone(), "read"))?;
        match Manifest::from_json(&content) {
            Ok(parsed) => return Ok(Some(parsed)),
            // On a full disk a recorder writes two files in turn. If the one at hand was opened
            // two versions ago, it is written now; what is damaged stays as it is.
            Err(_) if before.as_ref() != Some(&content) && tries < READ_TRIES => {
                before = Some(content);
            }
            Err(problem) => {
                return Err(StoreError::Manifest {
                    file: named,
                    problem,
                });
            }
        }
    }
}

/// A whole small file.
pub(crate) fn read_all(disk: &dyn Disk, name: &str) -> std::io::Result<Vec<u8>> {
    let file = disk.open(name, false)?;
    let len = usize::try_from(file.size()?).map_err(std::io::Error::other)?;
    let mut content = vec![0; len];
    let read = file.read_at(&mut content, 0)?;
    content.truncate(read);
    Ok(content)
}
