//! The relay's side of the log: recordings of many switches at a time, and where in files their
//! blocks go (written through [`crate::writer`]).

use std::any::Any;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use strata_blocks::{BlockBuilder, Definitions, HEADER_LEN, SUMMARY_BYTES_MAX, align_up};
use strata_sys::disk::OwnBlock;
use strata_wire::{Ledger, unix_ns};

use crate::disk::Disk;
use crate::error::StoreError;
use crate::manifest::{About, BlockFile, Recording, SavedLedger, State};
use crate::recorder::take_lock;
use crate::relayed::resume::{Stored, StoredSince};
use crate::writer::{
    CheckpointFile, Files, LogWriter, Next, OpenFile, PlacedAt, Presence, Rotation, Settled,
    Written,
};

/// The log that a relay writes: many recordings at a time.
pub struct RelayLog {
    log: Arc<LogWriter>,
    /// Streams being written, by recording and worker; the flag is set when another connection
    /// wants the stream.
    live: Mutex<BTreeMap<(u32, u16), Arc<AtomicBool>>>,
    _lock: Mutex<Box<dyn Any + Send>>,
}

/// A stream's place, free again when dropped.
struct Place {
    log: Arc<RelayLog>,
    key: (u32, u16),
    is_wanted: Arc<AtomicBool>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.log.live().remove(&self.key);
    }
}

impl std::fmt::Debug for RelayLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RelayLog").finish_non_exhaustive()
    }
}

/// Identifies a stream and its recording.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// What the switch records.
    pub about: About,
    /// The switch's name for its recording, the same after a reconnect.
    pub session: String,
    /// The worker at the switch.
    pub worker: u16,
    /// Start a new file once one holds this many bytes; 0 never.
    pub rotate_bytes: u64,
}

impl RelayLog {
    /// Opens the log on `disk` for writing; it may hold recordings.
    ///
    /// # Errors
    ///
    /// If another process records into the log, or it cannot be read.
    pub fn open(disk: Arc<dyn Disk>) -> Result<Arc<Self>, StoreError> {
        let lock = take_lock(disk.as_ref())?;
        let log = LogWriter::open(disk, Presence::Manifest)?;
        // A log without recordings is valid too.
        log.write_again()?;
        Ok(Arc::new(Self {
            log: Arc::new(log),
            live: Mutex::default(),
            _lock: Mutex::new(lock),
        }))
    }

    /// How many blocks are best in flight to the disk at a time.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.log.disk().in_flight()
    }

    fn live(&self) -> MutexGuard<'_, BTreeMap<(u32, u16), Arc<AtomicBool>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims a stream. Two connections would write the same files.
    fn take_place(self: &Arc<Self>, key: (u32, u16)) -> Result<Place, StoreError> {
        let is_wanted = Arc::<AtomicBool>::default();
        match self.live().entry(key) {
            Entry::Occupied(taken) => {
                taken.get().store(true, Ordering::Relaxed);
                return Err(StoreError::StreamTaken);
            }
            Entry::Vacant(free) => free.insert(Arc::clone(&is_wanted)),
        };
        let log = Arc::clone(self);
        Ok(Place {
            log,
            key,
            is_wanted,
        })
    }

    /// Starts the stream of a switch's worker, or resumes it: a recording that was not closed is
    /// found again by its session.
    ///
    /// # Errors
    ///
    /// If the log cannot be written, or an earlier connection has the stream
    /// ([`StoreError::StreamTaken`]); that one is notified ([`RelayStream::is_wanted`]), so try
    /// again.
    pub fn stream(self: &Arc<Self>, options: &StreamOptions) -> Result<RelayStream, StoreError> {
        self.log.check_there()?;
        let (about, session) = (&options.about, options.session.as_str());
        let is_known = |recording: &Recording| {
            recording.session.as_deref() == Some(session)
                && recording.state == State::Running
                && recording.hash_seed == about.hash_seed
        };
        let id = self.log.recording(about, Some(session), is_known)?;
        let place = self.take_place((id, options.worker))?;
        let rotation = Rotation {
            bytes: options.rotate_bytes,
            ns: 0,
        };
        Ok(RelayStream {
            log: Arc::clone(&self.log),
            recording: id,
            options: options.clone(),
            files: Files::new(&self.log, id, options.worker, rotation),
            place,
            known: Definitions::default(),
            checkpoint: CheckpointFile::open(self.log.disk(), id, options.worker)?,
        })
    }
}

/// Where a block goes.
pub struct Placed(pub(super) PlacedAt);

impl std::fmt::Debug for Placed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Placed")
            .field("file", &self.0.file().name())
            .field("offset", &self.0.offset())
            .finish()
    }
}

impl Placed {
    /// Writes a block to its place and syncs it, here and now: what
    /// [`RelayWriters`](super::RelayWriters) do with threads, for callers without any.
    ///
    /// # Errors
    ///
    /// If it cannot be written; the file then ends before it.
    pub fn write(self, block: &[u8]) -> Result<(), StoreError> {
        let file = self.0.file();
        let written = file.open().and_then(|mut handle| {
            let written = handle.write_at(block, self.0.offset());
            written.map_err(file.error("write"))?;
            handle.sync().map_err(file.error("sync"))
        });
        settle(&self.0, written)
    }
}

/// A block is durable, or could not be written, which may end its file.
pub(super) fn settle(placed: &PlacedAt, written: Result<(), StoreError>) -> Result<(), StoreError> {
    let outcome = match written {
        Ok(()) => Written::Durable,
        Err(_) => Written::Failed,
    };
    let settled = placed.file().settle(placed.offset(), outcome);
    written.and(end(placed.file(), settled))
}

/// Finishes a file, if that is due.
fn end(file: &OpenFile, settled: Settled) -> Result<(), StoreError> {
    match settled {
        Settled::GoesOn => Ok(()),
        Settled::Complete => file.seal(),
        Settled::ToCut => {
            // The switch got no confirmation of any block after the failed one. Cutting here frees
            // space for the manifest and the checkpoint. If it fails, readers stop at the hole.
            let _ = file.cut();
            Ok(())
        }
    }
}

/// The blocks of one worker of a switch, in flight to files.
pub struct RelayStream {
    log: Arc<LogWriter>,
    recording: u32,
    options: StreamOptions,
    files: Files,
    /// What packets refer to, by kind and reference: each file starts with it.
    known: Definitions,
    checkpoint: CheckpointFile,
    place: Place,
}

impl std::fmt::Debug for RelayStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RelayStream")
            .field("recording", &self.recording)
            .finish_non_exhaustive()
    }
}

impl RelayStream {
    /// The recording's number in the log.
    #[must_use]
    pub fn recording(&self) -> u32 {
        self.recording
    }

    /// What the log has of this worker's packets from number `from` on, in its last `blocks_max` blocks; to be called
    /// before the first block is placed. For a switch that sends again what is missing, what it has without a gap: the
    /// rest is taken back.
    ///
    /// # Errors
    ///
    /// If files cannot be read, or written.
    pub fn stored_since(
        &self,
        from: u64,
        blocks_max: usize,
        resends: bool,
    ) -> Result<StoredSince, StoreError> {
        let files: Vec<BlockFile> = self.log.look(|manifest| {
            let recordings = manifest.recordings.iter();
            let recording = recordings.filter(|known| known.id == self.recording);
            let files = recording.flat_map(|known| &known.files);
            let of_worker = files.filter(|file| file.worker == self.options.worker);
            of_worker.cloned().collect()
        });
        let stored = Stored {
            disk: self.log.disk().as_ref(),
            recording: self.recording,
            worker: self.options.worker,
            hash_seed: self.hash_seed(),
            files: &files,
            blocks_max,
        };
        match resends {
            true => stored.until_gap(from),
            false => stored.since(from),
        }
    }

    /// What its packets refer to.
    #[must_use]
    pub fn known(&self) -> &Definitions {
        &self.known
    }

    /// Whether a later connection wants to write this worker's stream: this one is then obsolete.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.place.is_wanted.load(Ordering::Relaxed)
    }

    /// Key of the recording's fingerprints.
    #[must_use]
    pub fn hash_seed(&self) -> [u64; 2] {
        self.options.about.hash_seed
    }

    /// A place for a block of `len` bytes after all earlier ones, with this many packets; `None`
    /// for a block of definitions, which goes into the same file as the next block.
    ///
    /// # Errors
    ///
    /// If a file cannot be created.
    pub fn place(&mut self, len: u64, packets: Option<u64>) -> Result<Placed, StoreError> {
        if packets.is_some() && self.begins_file(len) {
            self.retire()?;
        }
        let file = match self.files.current() {
            Some(file) => Arc::clone(file),
            None => self.files.begin(0, None, false)?,
        };
        Ok(Placed(file.place(len, packets)))
    }

    /// Whether this many bytes need a new file.
    fn begins_file(&self, len: u64) -> bool {
        let next = Next {
            bytes: len,
            last_ts_ns: None,
        };
        self.files.current().is_none() || self.files.rotates_before(next)
    }

    /// Makes the next block start a new file.
    fn retire(&mut self) -> Result<(), StoreError> {
        match self.files.take() {
            Some(file) => end(&file, file.retire()),
            None => Ok(()),
        }
    }

    /// An ordinary block of definitions, to be written before a block of `len` bytes: `records` as
    /// sent by the switch, and if that block starts a file, everything its packets may refer to.
    /// `None` if there is nothing to define.
    ///
    /// # Errors
    ///
    /// If the manifest cannot be written.
    pub fn definitions(
        &mut self,
        records: &[u8],
        len: u64,
    ) -> Result<Option<OwnBlock>, StoreError> {
        let mut builder = BlockBuilder::new(records.len());
        // Both in the same file, or the packets would refer to missing definitions.
        let own = align_up(HEADER_LEN + records.len() + SUMMARY_BYTES_MAX) as u64;
        if self.begins_file(own + len) {
            self.retire()?;
            for record in self.known.records() {
                builder.push_definitions(record);
            }
        }
        builder.push_definitions(records);
        self.known.read(records);
        if builder.body().is_empty() {
            return Ok(None);
        }
        let seed = self.hash_seed();
        let len = builder
            .seal(self.recording, self.options.worker, 0, seed)
            .len();
        Ok(Some(builder.take_sealed(len)))
    }

    /// Saves the worker's progress: `next_seq` is the sequence number of its next packet; every
    /// packet before `durable_seq` is on disk.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn checkpoint(
        &mut self,
        next_seq: u64,
        durable_seq: u64,
        seen: (u64, u64),
    ) -> Result<(), StoreError> {
        self.log.check_there()?;
        self.checkpoint.write(next_seq, durable_seq, seen)
    }

    /// No more blocks will come through this connection. If counters are given, the recording is
    /// closed.
    ///
    /// # Errors
    ///
    /// If the manifest cannot be written.
    pub fn end(&mut self, accounting: Option<(&Ledger, Vec<String>)>) -> Result<(), StoreError> {
        self.retire()?;
        let Some((ledger, warnings)) = accounting else {
            return Ok(());
        };
        self.log.update(self.recording, |recording| {
            recording.state = State::Closed;
            recording.ended_ns = Some(unix_ns());
            recording.ledger = Some(SavedLedger::from(ledger));
            recording.warnings = warnings;
        })
    }
}
