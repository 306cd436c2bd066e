//! Writing a log: one recording, a writer thread per worker.
//!
//! A worker fills blocks; a full one goes to its writer thread and comes back
//! empty once it is written. A block is never handed out again before that, so
//! nothing is overwritten before it is safe.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use strata_wire::Ledger;

use crate::builder::{BlockBuilder, BlockTally};
use crate::checkpoint::Checkpoint;
use crate::disk::{Disk, DiskFile};
use crate::error::{StoreError, io_error};
use crate::format::BlockHeader;
use crate::manifest::{BlockFile, Books, MANIFEST_NAME, Manifest, Recording, State};

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
}

impl Default for RecorderOptions {
    fn default() -> Self {
        Self {
            block_bytes: 1 << 20,
            blocks: 8,
            rotate_bytes: 1 << 30,
            rotate_ns: 0,
            checkpoint_interval: CHECKPOINT_INTERVAL,
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
}

/// A worker's counters that its writer thread reads for checkpoints.
#[derive(Debug, Default)]
pub struct Progress {
    /// The sequence number that the next packet will get.
    pub next_seq: AtomicU64,
    /// Packets seen.
    pub seen_packets: AtomicU64,
    /// Wire bytes seen.
    pub seen_bytes: AtomicU64,
}

/// What became of a block.
#[derive(Debug)]
pub struct Written {
    /// The books of its packets.
    pub tally: BlockTally,
    /// Whether it is in the file.
    pub outcome: Result<(), StoreError>,
}

enum ToWriter {
    Block(Box<BlockBuilder>),
    /// The worker waits for all that it has handed over.
    Flush,
    Finish,
}

struct FromWriter {
    /// A block that can be filled again.
    block: Option<Box<BlockBuilder>>,
    /// What became of packets, of this block or of earlier ones.
    written: Option<Written>,
}

/// The worker's end: takes empty blocks, gives full ones.
#[derive(Debug)]
pub struct BlockSink {
    to_writer: SyncSender<ToWriter>,
    from_writer: Receiver<FromWriter>,
    // Boxed as they travel, so that a channel moves a pointer.
    #[allow(clippy::vec_box)]
    free: Vec<Box<BlockBuilder>>,
    /// Blocks that have not come back.
    outstanding: usize,
    /// Packets of which it is not known what became of them.
    packets_outstanding: u64,
    progress: Arc<Progress>,
}

impl std::fmt::Debug for ToWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Block(_) => "Block",
            Self::Flush => "Flush",
            Self::Finish => "Finish",
        })
    }
}

impl BlockSink {
    /// The counters to keep up to date.
    #[must_use]
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Hands a full block to the writer.
    ///
    /// # Errors
    ///
    /// If the writer thread is gone.
    pub fn submit(&mut self, block: Box<BlockBuilder>) -> Result<(), StoreError> {
        let packets = block.tally().packets;
        let sent = self.to_writer.send(ToWriter::Block(block));
        sent.map_err(|_| StoreError::WriterGone)?;
        self.outstanding += 1;
        self.packets_outstanding += packets;
        Ok(())
    }

    /// What has become of blocks since the last call, without waiting.
    pub fn poll(&mut self) -> Option<Written> {
        match self.from_writer.try_recv() {
            Ok(back) => Some(self.take_back(back)),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
        }
    }

    /// Waits until it is known what became of some packets, or a block comes back
    /// empty (then of none); `None` if nothing is on its way.
    ///
    /// # Errors
    ///
    /// If the writer thread is gone.
    pub fn wait(&mut self) -> Result<Option<Written>, StoreError> {
        if self.outstanding == 0 && self.packets_outstanding == 0 {
            return Ok(None);
        }
        if self.outstanding == 0 {
            // Every block has come back, but not the word of their packets.
            let _ = self.to_writer.try_send(ToWriter::Flush);
        }
        let back = self
            .from_writer
            .recv()
            .map_err(|_| StoreError::WriterGone)?;
        Ok(Some(self.take_back(back)))
    }

    fn take_back(&mut self, back: FromWriter) -> Written {
        if let Some(block) = back.block {
            self.outstanding -= 1;
            self.free.push(block);
        }
        let written = back.written.unwrap_or(Written {
            tally: BlockTally::default(),
            outcome: Ok(()),
        });
        self.packets_outstanding -= written.tally.packets;
        written
    }

    /// What ends this channel, whoever has the sink.
    #[must_use]
    pub fn end_handle(&self) -> BlockEnd {
        BlockEnd(self.to_writer.clone())
    }

    /// An empty block, if one is free now.
    pub fn take(&mut self) -> Option<Box<BlockBuilder>> {
        self.free.pop()
    }
}

/// A sink of `blocks` blocks, at least two, of `block_bytes`, and the end where full
/// ones arrive.
#[must_use]
pub fn block_channel(block_bytes: usize, blocks: usize) -> (BlockSink, BlockSource) {
    let blocks = blocks.max(2);
    // Room for every block and the end, so that sending never waits.
    let (to_writer, inbox) = mpsc::sync_channel(blocks + 1);
    // Bounded by the blocks, and by what the writer has not said of their packets.
    let (outbox, from_writer) = mpsc::channel();
    let progress = Arc::new(Progress::default());
    let free = (0..blocks).map(|_| Box::new(BlockBuilder::new(block_bytes)));
    let sink = BlockSink {
        to_writer,
        from_writer,
        free: free.collect(),
        outstanding: 0,
        packets_outstanding: 0,
        progress: Arc::clone(&progress),
    };
    let source = BlockSource {
        inbox,
        outbox,
        progress,
    };
    (sink, source)
}

/// Where a worker's full blocks arrive: for writers other than a [`Recorder`].
#[derive(Debug)]
pub struct BlockSource {
    inbox: Receiver<ToWriter>,
    outbox: Sender<FromWriter>,
    progress: Arc<Progress>,
}

/// Tells a [`BlockSource`] that no more will come.
#[derive(Debug)]
pub struct BlockEnd(SyncSender<ToWriter>);

impl BlockEnd {
    /// Tells it.
    pub fn end(&self) {
        // If nobody listens, it has ended already.
        let _ = self.0.send(ToWriter::Finish);
    }
}

/// What has come of a [`BlockSource`].
#[derive(Debug)]
pub enum Incoming {
    /// A full block.
    Block(Box<BlockBuilder>),
    /// The worker waits for what became of all that it has handed over.
    Flush,
    /// Nothing within the time.
    Nothing,
    /// There will be no more.
    End,
}

impl BlockSource {
    /// Waits so long for a block.
    #[must_use]
    pub fn receive(&self, wait: Duration) -> Incoming {
        match self.inbox.recv_timeout(wait) {
            Ok(ToWriter::Block(block)) => Incoming::Block(block),
            Ok(ToWriter::Flush) => Incoming::Flush,
            Err(RecvTimeoutError::Timeout) => Incoming::Nothing,
            Ok(ToWriter::Finish) | Err(RecvTimeoutError::Disconnected) => Incoming::End,
        }
    }

    /// Gives a block back to be filled again. Its packets are still owed an answer.
    pub fn give_back(&self, mut block: Box<BlockBuilder>) {
        block.reset(0);
        // A worker that is gone needs no block back.
        let _ = self.outbox.send(FromWriter {
            block: Some(block),
            written: None,
        });
    }

    /// Says what became of packets.
    pub fn settle(&self, written: Written) {
        let _ = self.outbox.send(FromWriter {
            block: None,
            written: Some(written),
        });
    }

    /// The worker's counters.
    #[must_use]
    pub fn progress(&self) -> &Progress {
        &self.progress
    }
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
}

impl Shared {
    fn manifest(&self) -> MutexGuard<'_, Manifest> {
        self.manifest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes this recording's entry, on disk before it returns.
    fn update(&self, change: impl FnOnce(&mut Recording)) -> Result<(), StoreError> {
        let mut manifest = self.manifest();
        let id = self.id;
        if let Some(recording) = manifest.recordings.iter_mut().find(|r| r.id == id) {
            change(recording);
        }
        let named = self.disk.display(MANIFEST_NAME);
        let replaced = self.disk.replace(MANIFEST_NAME, &manifest.to_json());
        replaced.map_err(io_error(named, "write"))
    }
}

pub(crate) fn now_ns() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
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
        let last = manifest.recordings.iter().map(|r| r.id).max().unwrap_or(0);
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
        });
        shared.update(|_| ())?;
        let mut sinks = Vec::new();
        let mut writers = Vec::new();
        for worker in 0..workers.max(1) {
            let (sink, writer) = channel(&shared, worker)?;
            let sender = sink.to_writer.clone();
            let spawned = thread::Builder::new()
                .name(format!("strata-writer-{worker}"))
                .spawn(move || writer.run());
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
        ended?;
        self.shared.update(|recording| {
            recording.state = State::Closed;
            recording.ended_ns = Some(now_ns());
            recording.ledger = Some(Books::from(ledger));
            recording.warnings = warnings;
        })
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
    let content = read_all(disk, MANIFEST_NAME).map_err(io_error(named.clone(), "read"))?;
    let parsed = Manifest::from_json(&content).map_err(|problem| StoreError::Manifest {
        file: named,
        problem,
    })?;
    Ok(Some(parsed))
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

fn channel(shared: &Arc<Shared>, worker: u16) -> Result<(BlockSink, Writer), StoreError> {
    let options = &shared.options;
    let (sink, source) = block_channel(options.block_bytes, options.blocks);
    let BlockSource {
        inbox,
        outbox,
        progress,
    } = source;
    let name = checkpoint_name(shared.id, worker);
    let named = shared.disk.display(&name);
    let checkpoint_file = shared
        .disk
        .create(&name)
        .map_err(io_error(named, "create"))?;
    let writer = Writer {
        shared: Arc::clone(shared),
        worker,
        inbox,
        outbox,
        progress,
        checkpoint_file,
        checkpoint: Checkpoint::default(),
        last_checkpoint: Instant::now(),
        file: None,
        files_begun: 0,
        blocks_written: 0,
        written_seq: 0,
        broken: false,
        rotations: 0,
    };
    Ok((sink, writer))
}

struct OpenFile {
    name: String,
    file: Box<dyn DiskFile>,
    bytes: u64,
    blocks: u64,
    packets: u64,
    first_ts_ns: u64,
    synced: bool,
}

/// The writer thread of one worker.
struct Writer {
    shared: Arc<Shared>,
    worker: u16,
    inbox: Receiver<ToWriter>,
    outbox: Sender<FromWriter>,
    progress: Arc<Progress>,
    checkpoint_file: Box<dyn DiskFile>,
    checkpoint: Checkpoint,
    last_checkpoint: Instant,
    file: Option<OpenFile>,
    files_begun: u32,
    blocks_written: u64,
    /// Every packet before this one is in a file, though perhaps not yet synced.
    written_seq: u64,
    /// After a failed write nothing more is written, so that no hole arises.
    broken: bool,
    /// The requests to begin new files that have been followed.
    rotations: u64,
}

impl Writer {
    fn run(mut self) -> Result<(), StoreError> {
        let mut first_error = None;
        loop {
            let interval = self.shared.options.checkpoint_interval;
            let wait = interval.saturating_sub(self.last_checkpoint.elapsed());
            match self.inbox.recv_timeout(wait) {
                Ok(ToWriter::Block(mut block)) => {
                    let tally = block.tally();
                    let outcome = self.write(&mut block);
                    self.broken |= outcome.is_err();
                    block.reset(0);
                    let written = Written { tally, outcome };
                    // A worker that is gone needs no block back.
                    let _ = self.outbox.send(FromWriter {
                        block: Some(block),
                        written: Some(written),
                    });
                }
                Ok(ToWriter::Finish) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(ToWriter::Flush) | Err(RecvTimeoutError::Timeout) => {}
            }
            if let Err(error) = self.rotate_if_asked() {
                first_error.get_or_insert(error);
            }
            if self.last_checkpoint.elapsed() >= interval
                && let Err(error) = self.write_checkpoint()
            {
                first_error.get_or_insert(error);
            }
        }
        let sealed = self.seal_file();
        let noted = self.write_checkpoint();
        match first_error {
            Some(error) => Err(error),
            None => sealed.and(noted),
        }
    }

    fn write(&mut self, block: &mut BlockBuilder) -> Result<(), StoreError> {
        if self.broken {
            return Err(StoreError::WriterGone);
        }
        let (_, next_seq) = block.sequence_range();
        let (recording, seed) = (self.shared.id, self.shared.hash_seed);
        let bytes = block.seal(recording, self.worker, self.blocks_written, seed);
        let header = header_of(bytes);
        self.rotate_before(&header, bytes.len() as u64)?;
        let open = match &mut self.file {
            Some(open) => open,
            none => none.insert(Self::begin_file(
                &self.shared,
                self.worker,
                self.files_begun,
                header.ts_min_ns,
            )?),
        };
        let named = self.shared.disk.display(&open.name);
        if let Err(error) = open.file.write_at(bytes, open.bytes) {
            // What was written of the block is cut off again if that is possible;
            // if not, readers cut it.
            let _ = open.file.set_len(open.bytes);
            return Err(io_error(named, "write")(error));
        }
        open.bytes += bytes.len() as u64;
        open.blocks += 1;
        open.packets += u64::from(header.packets);
        open.synced = false;
        self.blocks_written += 1;
        self.written_seq = next_seq;
        Ok(())
    }

    fn rotate_before(&mut self, next: &BlockHeader, next_bytes: u64) -> Result<(), StoreError> {
        let options = &self.shared.options;
        let Some(open) = &self.file else {
            return Ok(());
        };
        let too_big = options.rotate_bytes > 0 && open.bytes + next_bytes > options.rotate_bytes;
        let span = next.ts_max_ns.saturating_sub(open.first_ts_ns);
        let too_long = options.rotate_ns > 0 && next.packets > 0 && span >= options.rotate_ns;
        if too_big || too_long {
            self.seal_file()?;
            self.files_begun += 1;
        }
        Ok(())
    }

    fn rotate_if_asked(&mut self) -> Result<(), StoreError> {
        let asked = self.shared.rotations.load(Ordering::Relaxed);
        if std::mem::replace(&mut self.rotations, asked) == asked || self.file.is_none() {
            return Ok(());
        }
        self.files_begun += 1;
        self.seal_file()
    }

    fn begin_file(
        shared: &Shared,
        worker: u16,
        number: u32,
        first_ts_ns: u64,
    ) -> Result<OpenFile, StoreError> {
        let name = format!("blocks/r{:04}-w{worker:02}-{number:06}.strata", shared.id);
        let named = shared.disk.display(&name);
        let file = shared
            .disk
            .create_for_blocks(&name)
            .map_err(io_error(named, "create"))?;
        shared.update(|recording| {
            recording.files.push(BlockFile {
                name: name.clone(),
                worker,
                sealed: false,
                bytes: 0,
                blocks: 0,
                packets: 0,
            });
        })?;
        Ok(OpenFile {
            name,
            file,
            bytes: 0,
            blocks: 0,
            packets: 0,
            first_ts_ns,
            synced: true,
        })
    }

    fn seal_file(&mut self) -> Result<(), StoreError> {
        let Some(mut open) = self.file.take() else {
            return Ok(());
        };
        let named = self.shared.disk.display(&open.name);
        open.file.sync().map_err(io_error(named, "sync"))?;
        self.shared.update(|recording| {
            if let Some(entry) = recording.files.iter_mut().find(|f| f.name == open.name) {
                entry.sealed = true;
                entry.bytes = open.bytes;
                entry.blocks = open.blocks;
                entry.packets = open.packets;
            }
        })
    }

    fn write_checkpoint(&mut self) -> Result<(), StoreError> {
        self.last_checkpoint = Instant::now();
        // Read before the sync, so that the checkpoint never claims too little.
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let next_seq = load(&self.progress.next_seq);
        let (seen_packets, seen_bytes) = (
            load(&self.progress.seen_packets),
            load(&self.progress.seen_bytes),
        );
        if let Some(open) = self.file.as_mut().filter(|open| !open.synced) {
            let named = self.shared.disk.display(&open.name);
            open.file.sync().map_err(io_error(named, "sync"))?;
            open.synced = true;
        }
        let unchanged = self.checkpoint.next_seq == next_seq
            && self.checkpoint.durable_seq == self.written_seq
            && self.checkpoint.seen_packets == seen_packets;
        if unchanged && self.checkpoint.generation > 0 {
            return Ok(());
        }
        self.checkpoint = Checkpoint {
            generation: self.checkpoint.generation + 1,
            time_ns: now_ns(),
            next_seq,
            durable_seq: self.written_seq,
            seen_packets,
            seen_bytes,
        };
        let named = || {
            self.shared
                .disk
                .display(&checkpoint_name(self.shared.id, self.worker))
        };
        let offset = self.checkpoint.offset();
        let written = self
            .checkpoint_file
            .write_at(&self.checkpoint.emit(), offset);
        written.map_err(io_error(named(), "write"))?;
        self.checkpoint_file
            .sync()
            .map_err(io_error(named(), "sync"))
    }
}

/// The header of a block that was just sealed.
fn header_of(bytes: &[u8]) -> BlockHeader {
    let header = bytes.first_chunk().map(BlockHeader::parse);
    header.and_then(Result::ok).unwrap_or_default()
}
