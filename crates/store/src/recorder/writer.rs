//! The writer thread of one worker: full blocks to files, several on their way at a
//! time, and checkpoints.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::Instant;

use strata_sys::disk::{Carrying, OwnBlock};

use crate::builder::{BlockBuilder, BlockTally};
use crate::channel::{
    BlockSink, BlockSource, FromWriter, Progress, ToWriter, Written, block_channel,
};
use crate::checkpoint::Checkpoint;
use crate::disk::{Disk, DiskFile, WriteQueue};
use crate::error::{StoreError, io_error, is_full};
use crate::format::BlockHeader;
use crate::index::{IndexWriter, index_name};
use crate::manifest::{BlockFile, MANIFEST_NAME, Overwritten};

use super::{Shared, WhenFull, checkpoint_name, now_ns};

/// Files of a worker that are still to be cut at most: more are left to readers.
const UNCUT_MAX: usize = 16;

struct OpenFile {
    name: String,
    file: Box<dyn DiskFile>,
    /// Where the next block goes.
    end: u64,
    /// What is written without a gap, and not on its way.
    bytes: u64,
    blocks: u64,
    packets: u64,
    first_ts_ns: u64,
    synced: bool,
    /// A block could not be written: those behind it do not count.
    failed: bool,
    /// `None` once it could not be written, which costs searches only.
    index: Option<IndexWriter>,
}

impl OpenFile {
    fn end_index(&mut self, disk: &dyn Disk) {
        if let Some(index) = self.index.take()
            && index.finish().is_err()
        {
            drop_index(disk, &self.name);
        }
    }
}

/// Deletes an index that could not be written: without it the file itself is searched.
fn drop_index(disk: &dyn Disk, block_file: &str) {
    // What is left of it does not fit the file, which readers notice.
    let _ = disk.remove(&index_name(block_file));
}

/// A sealed block, whose memory is in flight to the file.
pub(super) struct Sealed {
    block: Box<BlockBuilder>,
    len: usize,
    packets: u64,
    next_seq: u64,
    tally: BlockTally,
}

type InFlight = Carrying<OwnBlock, Sealed>;

/// The writer thread of one worker.
pub(super) struct Writer {
    shared: Arc<Shared>,
    worker: u16,
    inbox: Receiver<ToWriter>,
    outbox: Sender<FromWriter>,
    progress: Arc<Progress>,
    checkpoint_file: Box<dyn DiskFile>,
    checkpoint: Checkpoint,
    last_checkpoint: Instant,
    /// Blocks of `file` on their way.
    queue: WriteQueue<InFlight>,
    /// Since when it is full.
    full_since: Option<Instant>,
    file: Option<OpenFile>,
    /// Files that are ended, the oldest first, with packets and the next sequence number:
    /// those of which there may be so many only.
    ended: VecDeque<(String, u64, u64)>,
    /// Files that end with a block that failed and could not yet be cut, with the next sequence
    /// number.
    uncut: Vec<(OpenFile, u64)>,
    /// Files that leave the log once nobody reads it.
    doomed: Vec<String>,
    files_begun: u32,
    blocks_begun: u64,
    /// Every packet before this one is in a file, though perhaps not yet synced.
    written_seq: u64,
    /// Nothing more is written.
    broken: bool,
    /// Why it ended, if that was not the failure of a block, which the worker hears of with the
    /// block.
    failed: Option<StoreError>,
    /// When the disk was found full last.
    disk_full: Option<Instant>,
    /// Whether it was found full since a block was written.
    may_be_full: bool,
    /// The requests to begin new files that have been followed.
    rotations: u64,
}

/// A worker's end of its blocks, and the writer behind it.
pub(super) fn channel(
    shared: &Arc<Shared>,
    worker: u16,
) -> Result<(BlockSink, Writer), StoreError> {
    let options = &shared.options;
    let (mut sink, source) = block_channel(options.block_bytes, options.blocks);
    let BlockSource {
        inbox,
        outbox,
        progress,
    } = source;
    let mut queue = WriteQueue::new(shared.disk.in_flight());
    sink.register(|memory| queue.register(memory));
    let name = checkpoint_name(shared.id, worker);
    let named = shared.disk.display(&name);
    let mut checkpoint_file = shared
        .disk
        .create(&name)
        .map_err(io_error(named, "create"))?;
    // Without room for it now, there may be some later.
    let _ = checkpoint_file.allocate(Checkpoint::FILE_BYTES);
    let writer = Writer {
        shared: Arc::clone(shared),
        worker,
        inbox,
        outbox,
        progress,
        checkpoint_file,
        checkpoint: Checkpoint::default(),
        last_checkpoint: Instant::now(),
        queue,
        full_since: None,
        file: None,
        ended: VecDeque::new(),
        uncut: Vec::new(),
        doomed: Vec::new(),
        files_begun: 0,
        blocks_begun: 0,
        written_seq: 0,
        broken: false,
        failed: None,
        disk_full: None,
        may_be_full: false,
        rotations: 0,
    };
    Ok((sink, writer))
}

impl Writer {
    pub(super) fn run(mut self) -> Result<(), StoreError> {
        let interval = self.shared.options.checkpoint_interval;
        loop {
            match self.receive() {
                Ok(ToWriter::Block(block)) => self.begin(block),
                Ok(ToWriter::Finish) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(ToWriter::Flush) | Err(RecvTimeoutError::Timeout) => {}
            }
            while let Some((sealed, outcome)) = self.queue.try_complete() {
                self.settle(sealed, outcome);
            }
            if let Err(error) = self.rotate_if_asked() {
                self.fail(error);
            }
            if self.last_checkpoint.elapsed() >= interval
                && let Err(error) = self.look_after_log()
            {
                self.fail(error);
            }
        }
        self.wait_for_all();
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        self.check_place()?;
        self.cut_files();
        let sealed = self.seal_file();
        // On a full disk the one before counts.
        sealed.and_then(|()| self.write_checkpoint().or_else(ignore_if_full))
    }

    /// What is due with each checkpoint.
    fn look_after_log(&mut self) -> Result<(), StoreError> {
        if self.broken {
            self.last_checkpoint = Instant::now();
            return Ok(());
        }
        self.check_place()?;
        self.cut_files();
        if self.shared.is_behind() {
            let updated = self.shared.update(|_| ());
            let updated = updated.map_err(|error| self.in_words(MANIFEST_NAME, error));
            updated.or_else(ignore_if_full)?;
        }
        self.delete_doomed();
        self.write_checkpoint().or_else(ignore_if_full)
    }

    /// Fails if the log is no longer where it was.
    fn check_place(&self) -> Result<(), StoreError> {
        let disk = &self.shared.disk;
        let name = checkpoint_name(self.shared.id, self.worker);
        if disk.leads_to(&name, self.checkpoint_file.as_ref()) {
            return Ok(());
        }
        Err(self.gone())
    }

    fn gone(&self) -> StoreError {
        StoreError::Gone {
            dir: self.shared.disk.display(""),
        }
    }

    /// Ends the recording. The worker hears why, also when it has nothing to be written.
    fn fail(&mut self, error: StoreError) {
        if self.failed.is_some() {
            return;
        }
        self.broken = true;
        // A worker that is gone need not know.
        let _ = self.outbox.send(FromWriter {
            block: None,
            written: Some(Written {
                tally: BlockTally::default(),
                outcome: Err(error.again()),
            }),
        });
        self.failed = Some(error);
    }

    /// Waits for the worker, until the next checkpoint is due; while blocks are on their
    /// way and the worker has nothing, for these.
    fn receive(&mut self) -> Result<ToWriter, RecvTimeoutError> {
        let interval = self.shared.options.checkpoint_interval;
        loop {
            let wait = interval.saturating_sub(self.last_checkpoint.elapsed());
            if self.queue.is_empty() {
                return self.inbox.recv_timeout(wait);
            }
            if self.queue.has_room() {
                match self.inbox.try_recv() {
                    Ok(message) => return Ok(message),
                    Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                    Err(TryRecvError::Empty) => {}
                }
            }
            if wait.is_zero() {
                return Err(RecvTimeoutError::Timeout);
            }
            self.wait_for_one();
        }
    }

    /// Begins to write a block. It goes back to the worker when that has ended.
    fn begin(&mut self, mut block: Box<BlockBuilder>) {
        let tally = block.tally();
        if !self.queue.has_room() {
            self.wait_for_one();
        }
        let prepared = self.prepare(&mut block);
        match (prepared, &mut self.file) {
            (Ok((header, len)), Some(open)) => {
                let offset = open.end;
                open.end += len as u64;
                let in_flight = Carrying {
                    block: block.take_sealed(len),
                    with: Sealed {
                        packets: u64::from(header.packets),
                        next_seq: header.next_seq,
                        block,
                        len,
                        tally,
                    },
                };
                self.queue.submit(open.file.as_mut(), in_flight, offset);
                self.note_busy();
            }
            (prepared, _) => {
                let error = prepared.err().unwrap_or(StoreError::WriterGone);
                self.note_error(&error);
                self.give_back(block, tally, Err(error));
            }
        }
    }

    /// What an error means for what comes.
    fn note_error(&mut self, error: &StoreError) {
        match error {
            StoreError::DiskFull { goes_on: true, .. } => {
                self.disk_full.get_or_insert_with(Instant::now);
                self.may_be_full = true;
            }
            _ => self.broken = true,
        }
    }

    /// An error of the manifest: for want of room it means what that means for the file.
    fn in_words(&self, file: &str, error: StoreError) -> StoreError {
        match error {
            StoreError::Io { source, .. } => self.error(file, "create", source),
            other => other,
        }
    }

    /// An error of the disk, in words.
    fn error(&self, file: &str, action: &'static str, error: io::Error) -> StoreError {
        let file = self.shared.disk.display(file);
        if is_full(&error) {
            let goes_on = self.shared.options.when_full == WhenFull::Drop;
            return StoreError::DiskFull { file, goes_on };
        }
        // Whoever removes a log may not have come to the checkpoint yet.
        if error.kind() == io::ErrorKind::NotFound || self.check_place().is_err() {
            return self.gone();
        }
        io_error(file, action)(error)
    }

    /// Seals a block and sees to it that there is a file for it: its header and length.
    fn prepare(&mut self, block: &mut BlockBuilder) -> Result<(BlockHeader, usize), StoreError> {
        self.may_write()?;
        let (recording, seed) = (self.shared.id, self.shared.hash_seed);
        let bytes = block.seal(recording, self.worker, self.blocks_begun, seed);
        let (header, len) = (header_of(bytes), bytes.len());
        self.rotate_before(&header, len as u64)?;
        // Blocks that were on their way may have failed meanwhile.
        self.may_write()?;
        self.blocks_begun += 1;
        if self.file.is_none() {
            self.overwrite()?;
            let number = self.files_begun;
            let begun = self.begin_file(number, header.ts_min_ns, len as u64);
            if begun.is_err() {
                // The name may be taken now.
                self.files_begun += 1;
            }
            self.file = Some(begun?);
        }
        Ok((header, len))
    }

    /// Adds up how long the disk could not have taken more.
    fn note_busy(&mut self) {
        let now = Instant::now();
        if let Some(since) = self.full_since.take() {
            let busy_ns = u64::try_from((now - since).as_nanos());
            let busy_ns = busy_ns.expect("a recording of less than 584 years");
            let sum = &self.progress.disk_busy_ns;
            sum.fetch_add(busy_ns, Ordering::Relaxed);
        }
        if !self.queue.has_room() {
            self.full_since = Some(now);
        }
    }

    /// Whether a block may be written now. A disk that was full is tried again after a while.
    fn may_write(&mut self) -> Result<(), StoreError> {
        if self.broken {
            return Err(StoreError::WriterGone);
        }
        let failed = self.file.as_ref().is_some_and(|open| open.failed);
        if failed {
            self.wait_for_all();
        }
        match self.disk_full {
            Some(since) if since.elapsed() < self.shared.options.full_retry => {
                Err(StoreError::DiskFull {
                    file: self.shared.disk.display(""),
                    goes_on: true,
                })
            }
            _ => {
                self.disk_full = None;
                if self.broken {
                    return Err(StoreError::WriterGone);
                }
                Ok(())
            }
        }
    }

    fn wait_for_one(&mut self) {
        if let Some((sealed, outcome)) = self.queue.complete() {
            self.settle(sealed, outcome);
        }
    }

    fn wait_for_all(&mut self) {
        while !self.queue.is_empty() {
            self.wait_for_one();
        }
    }

    /// Books a block that is no longer on its way; they come in their order.
    fn settle(&mut self, in_flight: InFlight, outcome: io::Result<()>) {
        let mut sealed = in_flight.with;
        sealed.block.put_back(in_flight.block);
        self.note_busy();
        let outcome = self.outcome(&sealed, outcome);
        let failed = self.file.as_ref().is_some_and(|open| open.failed);
        if failed && self.queue.is_empty() {
            self.end_failed_file();
        }
        self.give_back(sealed.block, sealed.tally, outcome);
    }

    /// What the outcome of a write means for the block and its file.
    fn outcome(&mut self, sealed: &Sealed, outcome: io::Result<()>) -> Result<(), StoreError> {
        let Some(open) = &mut self.file else {
            return Err(StoreError::WriterGone);
        };
        let disk = &self.shared.disk;
        match outcome {
            Ok(()) if open.failed => {
                // What was written behind one that failed is of no use.
                let is_full = self.disk_full.is_some() && !self.broken;
                Err(if is_full {
                    StoreError::DiskFull {
                        file: disk.display(&open.name),
                        goes_on: true,
                    }
                } else {
                    StoreError::WriterGone
                })
            }
            Ok(()) if disk.leads_to(&open.name, open.file.as_ref()) => {
                open.bytes += sealed.len as u64;
                open.blocks += 1;
                open.packets += sealed.packets;
                open.synced = false;
                let block = sealed.block.sealed(sealed.len);
                let index = open.index.as_mut();
                if index.is_some_and(|index| index.add(block).is_err()) {
                    open.index = None;
                    drop_index(disk.as_ref(), &open.name);
                }
                self.written_seq = self.written_seq.max(sealed.next_seq);
                self.may_be_full = false;
                Ok(())
            }
            failed => {
                open.failed = true;
                let name = open.name.clone();
                let error = match failed {
                    Ok(()) => self.gone(),
                    Err(error) => self.error(&name, "write", error),
                };
                self.note_error(&error);
                Err(error)
            }
        }
    }

    /// Ends a file behind the last block that is whole.
    fn end_failed_file(&mut self) {
        let Some(mut open) = self.file.take() else {
            return;
        };
        self.files_begun += 1;
        if self.check_place().is_err() {
            return;
        }
        if open.blocks == 0 {
            self.forget_file(open.name);
            return;
        }
        open.end_index(self.shared.disk.as_ref());
        self.uncut.push((open, self.written_seq));
        self.cut_files();
    }

    /// Cuts files behind their last good block. If that is not possible, readers do it.
    fn cut_files(&mut self) {
        for (mut open, next_seq) in std::mem::take(&mut self.uncut) {
            let cut = open.file.set_len(open.bytes);
            if cut.and_then(|()| open.file.sync()).is_err() {
                self.uncut.push((open, next_seq));
                continue;
            }
            // If the manifest cannot be written now, its next version says it.
            let _ = self.note_sealed(&open);
            self.ended.push_back((open.name, open.packets, next_seq));
        }
        self.uncut.truncate(UNCUT_MAX);
    }

    /// Takes a file without a block out of the log.
    fn forget_file(&mut self, name: String) {
        // If the manifest cannot be written now, its next version is without it.
        let _ = self
            .shared
            .update(|recording| recording.files.retain(|file| file.name != name));
        self.doomed.push(name);
    }

    fn give_back(
        &self,
        mut block: Box<BlockBuilder>,
        tally: BlockTally,
        outcome: Result<(), StoreError>,
    ) {
        block.reset(0);
        // A worker that is gone needs no block back.
        let _ = self.outbox.send(FromWriter {
            block: Some(block),
            written: Some(Written { tally, outcome }),
        });
    }

    fn rotate_before(&mut self, next: &BlockHeader, next_bytes: u64) -> Result<(), StoreError> {
        let options = &self.shared.options;
        let Some(open) = &self.file else {
            return Ok(());
        };
        let too_big = options.rotate_bytes > 0 && open.end + next_bytes > options.rotate_bytes;
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

    /// Begins a file, whose first block takes `first_bytes`.
    fn begin_file(
        &self,
        number: u32,
        first_ts_ns: u64,
        first_bytes: u64,
    ) -> Result<OpenFile, StoreError> {
        // Another recording may have a directory of that name by now.
        self.check_place()?;
        let (shared, worker) = (&self.shared, self.worker);
        let name = format!("blocks/r{:04}-w{worker:02}-{number:06}.strata", shared.id);
        let begun = self.create_file(&name, first_bytes);
        let file = begun.inspect_err(|_| {
            // It would take room that is short. If it cannot be deleted, nothing refers to it.
            let _ = shared.disk.remove(&name);
        })?;
        Ok(OpenFile {
            index: IndexWriter::create(shared.disk.as_ref(), &name).ok(),
            name,
            file,
            end: 0,
            bytes: 0,
            blocks: 0,
            packets: 0,
            first_ts_ns,
            synced: true,
            failed: false,
        })
    }

    /// Creates a block file that the manifest names.
    fn create_file(&self, name: &str, first_bytes: u64) -> Result<Box<dyn DiskFile>, StoreError> {
        let created = self.shared.disk.create_for_blocks(name);
        let mut file = created.map_err(|error| self.error(name, "create", error))?;
        if self.may_be_full {
            // So that a disk that is still full costs the manifest nothing.
            let allocated = file.allocate(first_bytes);
            allocated.map_err(|error| self.error(name, "create", error))?;
        }
        let noted = self.shared.update_or(
            |recording| {
                recording.files.push(BlockFile {
                    name: name.to_owned(),
                    worker: self.worker,
                    sealed: false,
                    bytes: 0,
                    blocks: 0,
                    packets: 0,
                });
            },
            |recording| recording.files.retain(|file| file.name != name),
        );
        noted.map_err(|error| self.in_words(name, error))?;
        Ok(file)
    }

    fn seal_file(&mut self) -> Result<(), StoreError> {
        self.wait_for_all();
        let Some(mut open) = self.file.take() else {
            return Ok(());
        };
        open.end_index(self.shared.disk.as_ref());
        let synced = open.file.sync();
        let synced = synced.map_err(|error| self.error(&open.name, "sync", error));
        synced.or_else(ignore_if_full)?;
        let noted = self.note_sealed(&open);
        let noted = noted.map_err(|error| self.in_words(&open.name, error));
        // The next version of the manifest says it.
        noted.or_else(ignore_if_full)?;
        self.ended
            .push_back((open.name, open.packets, self.written_seq));
        Ok(())
    }

    /// Takes the oldest files out of the log, so that there is room for one more.
    fn overwrite(&mut self) -> Result<(), StoreError> {
        let most = self.shared.options.files_max;
        while most > 0 && self.ended.len() >= most {
            let Some((name, packets, next_seq)) = self.ended.pop_front() else {
                break;
            };
            let worker = self.worker;
            let noted = self.shared.update(|recording| {
                recording.files.retain(|file| file.name != name);
                let known = recording
                    .overwritten
                    .iter()
                    .position(|o| o.worker == worker);
                let known = known.unwrap_or_else(|| {
                    recording.overwritten.push(Overwritten {
                        worker,
                        ..Overwritten::default()
                    });
                    recording.overwritten.len() - 1
                });
                let entry = &mut recording.overwritten[known];
                entry.files += 1;
                entry.packets += packets;
                entry.next_seq = next_seq;
            });
            // It is taken out of the next version all the same.
            let noted = noted.map_err(|error| self.in_words(&name, error));
            self.doomed.push(name);
            noted?;
        }
        self.delete_doomed();
        Ok(())
    }

    /// Deletes files that are no longer in the manifest, unless somebody reads the log: who
    /// does may have read the manifest before.
    fn delete_doomed(&mut self) {
        let disk = &self.shared.disk;
        if !self.doomed.is_empty()
            // The manifest on disk may still name them.
            && !self.shared.is_behind()
            && let Ok(Some(_alone)) = disk.lock_for_deleting()
        {
            // What cannot be deleted is tried again.
            self.doomed.retain(|name| {
                let removed = disk.remove(&index_name(name));
                removed.and_then(|()| disk.remove(name)).is_err()
            });
        }
    }

    fn note_sealed(&self, open: &OpenFile) -> Result<(), StoreError> {
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
            let synced = open.file.sync();
            open.synced = synced.is_ok();
            let name = open.name.clone();
            synced.map_err(|error| self.error(&name, "sync", error))?;
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
        let name = checkpoint_name(self.shared.id, self.worker);
        let offset = self.checkpoint.offset();
        let written = self
            .checkpoint_file
            .write_at(&self.checkpoint.emit(), offset);
        written.map_err(|error| self.error(&name, "write", error))?;
        let synced = self.checkpoint_file.sync();
        synced.map_err(|error| self.error(&name, "sync", error))
    }
}

/// What could not be written for want of room is written later, or need not be.
fn ignore_if_full(error: StoreError) -> Result<(), StoreError> {
    if error.is_for_want_of_room() {
        return Ok(());
    }
    Err(error)
}

/// The header of a block that was just sealed.
fn header_of(bytes: &[u8]) -> BlockHeader {
    let header = bytes.first_chunk().map(BlockHeader::parse);
    let header = header.and_then(Result::ok);
    header.expect("a block that was sealed here has a header")
}
