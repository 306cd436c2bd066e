//! The relay's side of the log: recordings, files, and where in them blocks go.

use std::any::Any;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use strata_sys::disk::OwnBlock;
use strata_wire::Ledger;

use crate::builder::BlockBuilder;
use crate::checkpoint::Checkpoint;
use crate::disk::{Disk, DiskFile};
use crate::error::{StoreError, io_error};
use crate::format::{HEADER_LEN, align_up};
use crate::manifest::{BlockFile, Books, MANIFEST_NAME, Manifest, Recording, State};
use crate::recorder::{About, checkpoint_name, now_ns, read_all, read_manifest, take_lock};
use crate::relayed::Definitions;
use crate::summary::SUMMARY_BYTES_MAX;

/// The log that a relay writes: many recordings at a time.
pub struct RelayLog {
    disk: Arc<dyn Disk>,
    manifest: Mutex<Manifest>,
    /// Streams that are written, by recording and worker; each is told when another one wants
    /// its place.
    live: Mutex<BTreeMap<(u32, u16), Arc<AtomicBool>>>,
    _lock: Box<dyn Any + Send + Sync>,
}

/// The place of a stream, free again when this is dropped.
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

/// Which stream of which recording.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// What the switch records.
    pub about: About,
    /// The switch's name for its recording, the same after it has connected again.
    pub session: String,
    /// The worker at the switch.
    pub worker: u16,
    /// A new file once one holds so many bytes; 0 never.
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
        let manifest = read_manifest(disk.as_ref())?.unwrap_or_default();
        let log = Self {
            disk,
            manifest: Mutex::new(manifest),
            live: Mutex::default(),
            _lock: Box::new(Mutex::new(lock)),
        };
        // A log without recordings is one too.
        log.change(|_| ())?;
        Ok(Arc::new(log))
    }

    /// How many blocks are best on their way to the disk at a time.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.disk.in_flight()
    }

    fn manifest(&self) -> MutexGuard<'_, Manifest> {
        self.manifest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn live(&self) -> MutexGuard<'_, BTreeMap<(u32, u16), Arc<AtomicBool>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the place of a stream. Two would write the same files.
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

    /// Changes the manifest, on disk before it returns.
    fn change<T>(&self, change: impl FnOnce(&mut Manifest) -> T) -> Result<T, StoreError> {
        let mut manifest = self.manifest();
        let result = change(&mut manifest);
        let replaced = self.disk.replace(MANIFEST_NAME, &manifest.to_json());
        replaced.map_err(io_error(self.disk.display(MANIFEST_NAME), "write"))?;
        Ok(result)
    }

    /// Fails if the log was removed: what is written into files that are open, or into a new
    /// directory of that name, is not in it.
    fn check_there(&self) -> Result<(), StoreError> {
        if self.disk.exists(MANIFEST_NAME) {
            return Ok(());
        }
        let gone = io::Error::from_raw_os_error(libc::ENOENT);
        Err(io_error(self.disk.display(MANIFEST_NAME), "find")(gone))
    }

    fn change_recording(
        &self,
        id: u32,
        change: impl FnOnce(&mut Recording),
    ) -> Result<(), StoreError> {
        self.check_there()?;
        self.change(|manifest| {
            if let Some(recording) = manifest.recordings.iter_mut().find(|r| r.id == id) {
                change(recording);
            }
        })
    }

    /// Begins the stream of a switch's worker, or goes on with it: a recording that
    /// was not closed is found again by its session.
    ///
    /// # Errors
    ///
    /// If the log cannot be written, or the stream is ([`StoreError::StreamTaken`]) for an
    /// earlier connection; that is told ([`RelayStream::is_wanted`]), so try again.
    pub fn stream(self: &Arc<Self>, options: &StreamOptions) -> Result<RelayStream, StoreError> {
        self.check_there()?;
        let id = self.recording(options)?;
        let place = self.take_place((id, options.worker))?;
        let named = |name: &str| self.disk.display(name);
        let checkpoint_name = checkpoint_name(id, options.worker);
        let checkpoint_file = if self.disk.exists(&checkpoint_name) {
            self.disk.open(&checkpoint_name, true)
        } else {
            self.disk.create(&checkpoint_name)
        };
        let checkpoint_file =
            checkpoint_file.map_err(io_error(named(&checkpoint_name), "create"))?;
        // Its generations go on, or the old ones would count for the later ones.
        let before = read_all(self.disk.as_ref(), &checkpoint_name);
        let before = before.map_err(io_error(named(&checkpoint_name), "read"))?;
        let manifest = self.manifest();
        let recording = manifest.recordings.iter().find(|r| r.id == id);
        let files = recording.map_or(&[][..], |recording| &recording.files);
        let of_worker = files.iter().filter(|f| f.worker == options.worker);
        let files_begun = of_worker.map(|_| 1_u32).sum();
        Ok(RelayStream {
            log: Arc::clone(self),
            recording: id,
            files_begun,
            options: options.clone(),
            file: None,
            place,
            known: Definitions::default(),
            checkpoint_file,
            checkpoint: Checkpoint::latest(&before).unwrap_or_default(),
        })
    }

    fn recording(&self, options: &StreamOptions) -> Result<u32, StoreError> {
        let about = &options.about;
        let known = |recording: &&Recording| {
            recording.session.as_ref() == Some(&options.session)
                && recording.state == State::Running
                && recording.hash_seed == about.hash_seed
        };
        let mut manifest = self.manifest();
        if let Some(recording) = manifest.recordings.iter().find(known) {
            return Ok(recording.id);
        }
        let last = manifest.recordings.iter().map(|r| r.id).fold(0, u32::max);
        let id = last.checked_add(1).ok_or_else(|| StoreError::Manifest {
            file: self.disk.display(MANIFEST_NAME),
            problem: format!("recording number {last} is the largest there is"),
        })?;
        let model_file = format!("models/r{id:04}.json");
        let stored = self.disk.replace(&model_file, &about.model_json);
        stored.map_err(io_error(self.disk.display(&model_file), "write"))?;
        let mut recording = Recording::begun(id, about, model_file, now_ns());
        recording.session = Some(options.session.clone());
        manifest.recordings.push(recording);
        let replaced = self.disk.replace(MANIFEST_NAME, &manifest.to_json());
        replaced.map_err(io_error(self.disk.display(MANIFEST_NAME), "write"))?;
        Ok(id)
    }
}

/// A file that blocks are being placed in.
pub(super) struct StreamFile {
    log: Arc<RelayLog>,
    recording: u32,
    name: String,
    state: Mutex<FileState>,
}

#[derive(Default)]
struct FileState {
    bytes: u64,
    blocks: u64,
    packets: u64,
    /// Not definitions alone.
    has_packets: bool,
    /// Blocks that have a place and are not synced.
    pending: u64,
    /// No more will be placed in it.
    retired: bool,
    /// Where the first block begins that could not be written: the file ends there, and
    /// stays unsealed.
    failed_at: Option<u64>,
}

impl StreamFile {
    fn state(&self) -> MutexGuard<'_, FileState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn open(&self) -> Result<Box<dyn DiskFile>, StoreError> {
        let opened = self.log.disk.open_for_blocks(&self.name);
        opened.map_err(self.error("open"))
    }

    /// The block at `offset` is synced, or could not be written.
    pub(super) fn written(&self, offset: u64, failed: bool) -> Result<(), StoreError> {
        self.update(|state| {
            state.pending -= 1;
            if failed {
                state.failed_at = Some(state.failed_at.map_or(offset, |at| at.min(offset)));
            }
        })
    }

    pub(super) fn error(&self, what: &'static str) -> impl FnOnce(io::Error) -> StoreError {
        io_error(self.log.disk.display(&self.name), what)
    }

    /// After a block was written, or no more will come.
    fn update(&self, change: impl FnOnce(&mut FileState)) -> Result<(), StoreError> {
        let mut state = self.state();
        change(&mut state);
        if !state.retired || state.pending > 0 {
            return Ok(());
        }
        if let Some(end) = state.failed_at {
            // The switch was not told of a block after the one that failed. What is cut off
            // here is room for the manifest and the checkpoint. If that is not possible,
            // readers stop at the hole.
            if let Ok(mut file) = self.open() {
                let _ = file.set_len(end).and_then(|()| file.sync());
            }
            return Ok(());
        }
        self.log.change_recording(self.recording, |recording| {
            if let Some(entry) = recording.files.iter_mut().find(|f| f.name == self.name) {
                entry.sealed = true;
                entry.bytes = state.bytes;
                entry.blocks = state.blocks;
                entry.packets = state.packets;
            }
        })
    }
}

/// Where a block goes.
pub struct Placed {
    pub(super) file: Arc<StreamFile>,
    pub(super) offset: u64,
}

impl std::fmt::Debug for Placed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Placed")
            .field("file", &self.file.name)
            .field("offset", &self.offset)
            .finish()
    }
}

impl Placed {
    /// Writes a block to its place and syncs it, here and now: what
    /// [`RelayWriters`](super::RelayWriters) do with threads, for who has none.
    ///
    /// # Errors
    ///
    /// If it cannot be written: the file ends before it.
    pub fn write(self, block: &[u8]) -> Result<(), StoreError> {
        let write = || {
            let mut file = self.file.open()?;
            let written = file.write_at(block, self.offset);
            written.map_err(self.file.error("write"))?;
            file.sync().map_err(self.file.error("sync"))
        };
        let written = write();
        let updated = self.file.written(self.offset, written.is_err());
        written.and(updated)
    }
}

/// The blocks of one worker of a switch, on their way to files.
pub struct RelayStream {
    log: Arc<RelayLog>,
    recording: u32,
    options: StreamOptions,
    file: Option<Arc<StreamFile>>,
    files_begun: u32,
    /// What packets refer to, by kind and reference: each file begins with it.
    known: Definitions,
    checkpoint_file: Box<dyn DiskFile>,
    checkpoint: Checkpoint,
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

    /// Whether a later connection of the same worker wants to write it: this one is over.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.place.is_wanted.load(Ordering::Relaxed)
    }

    /// Key of the recording's fingerprints.
    #[must_use]
    pub fn hash_seed(&self) -> [u64; 2] {
        self.options.about.hash_seed
    }

    /// A place for a block of `len` bytes behind all before it, with so many packets;
    /// `None` for a block of definitions, which is in one file with the block that
    /// comes next.
    ///
    /// # Errors
    ///
    /// If a file cannot be made.
    pub fn place(&mut self, len: u64, packets: Option<u64>) -> Result<Placed, StoreError> {
        if packets.is_some() && self.begins_file(len) {
            self.retire()?;
        }
        let file = match &self.file {
            Some(file) => Arc::clone(file),
            None => self.begin_file()?,
        };
        let mut state = file.state();
        let offset = state.bytes;
        state.bytes += len;
        state.blocks += 1;
        if let Some(packets) = packets {
            state.packets += packets;
            state.has_packets = true;
        }
        state.pending += 1;
        drop(state);
        Ok(Placed { file, offset })
    }

    /// Whether so many bytes go into a new file. One that holds definitions alone takes
    /// the block that they are for, however large it is.
    fn begins_file(&self, len: u64) -> bool {
        let rotate = self.options.rotate_bytes;
        let full = |file: &Arc<StreamFile>| {
            let state = file.state();
            rotate > 0 && state.has_packets && state.bytes + len > rotate
        };
        self.file.as_ref().is_none_or(full)
    }

    /// The next block begins a new file.
    fn retire(&mut self) -> Result<(), StoreError> {
        match self.file.take() {
            Some(file) => file.update(|state| state.retired = true),
            None => Ok(()),
        }
    }

    fn begin_file(&mut self) -> Result<Arc<StreamFile>, StoreError> {
        let (recording, worker) = (self.recording, self.options.worker);
        let number = self.files_begun;
        let name = format!("blocks/r{recording:04}-w{worker:02}-{number:06}.strata");
        let disk = &self.log.disk;
        let created = disk.create_for_blocks(&name);
        created.map_err(io_error(disk.display(&name), "create"))?;
        self.files_begun += 1;
        self.log.change_recording(recording, |recording| {
            recording.files.push(BlockFile {
                name: name.clone(),
                worker,
                sealed: false,
                bytes: 0,
                blocks: 0,
                packets: 0,
            });
        })?;
        let file = Arc::new(StreamFile {
            log: Arc::clone(&self.log),
            recording,
            name,
            state: Mutex::new(FileState::default()),
        });
        self.file = Some(Arc::clone(&file));
        Ok(file)
    }

    /// An ordinary block of definitions, to be written before a block of `len` bytes:
    /// `records` as the switch has sent them, and if that block begins a file, all
    /// that its packets may refer to. `None` if there is nothing to define.
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
        // Both of them in the same file, or its packets would refer to nothing there.
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

    /// Notes how far the worker was: `next_seq` is the sequence number that its next
    /// packet gets; every packet before `durable_seq` is on disk.
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
        let last = &self.checkpoint;
        if last.generation > 0 && (last.next_seq, last.durable_seq) == (next_seq, durable_seq) {
            return Ok(());
        }
        self.log.check_there()?;
        self.checkpoint = Checkpoint {
            generation: last.generation + 1,
            time_ns: now_ns(),
            next_seq,
            durable_seq,
            seen_packets: seen.0,
            seen_bytes: seen.1,
        };
        let (bytes, offset) = (self.checkpoint.emit(), self.checkpoint.offset());
        let written = self.checkpoint_file.write_at(&bytes, offset);
        let synced = written.and_then(|()| self.checkpoint_file.sync());
        let name = checkpoint_name(self.recording, self.options.worker);
        synced.map_err(io_error(self.log.disk.display(&name), "write"))
    }

    /// No more blocks will come through this connection. With the books, the
    /// recording is closed.
    ///
    /// # Errors
    ///
    /// If the manifest cannot be written.
    pub fn end(&mut self, books: Option<(&Ledger, Vec<String>)>) -> Result<(), StoreError> {
        self.retire()?;
        let Some((ledger, warnings)) = books else {
            return Ok(());
        };
        self.log.change_recording(self.recording, |recording| {
            recording.state = State::Closed;
            recording.ended_ns = Some(now_ns());
            recording.ledger = Some(Books::from(ledger));
            recording.warnings = warnings;
        })
    }
}
