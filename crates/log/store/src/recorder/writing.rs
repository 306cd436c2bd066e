//! The writer thread of one worker: writes full blocks to files, several in flight at a time, and
//! makes checkpoints.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use strata_blocks::{
    BlockBuilder, BlockCounters, BlockHeader, BlockSink, BlockSource, Incoming, SinkError, Written,
};
use strata_sys::disk::{Carrying, OwnBlock};

use crate::error::{StoreError, is_full};
use crate::writer::{
    CheckpointFile, Files, InFlight, Landed, Next, OpenFile, Rotation, Written as InFile,
};

use super::past::Past;
use super::{Shared, WhenFull};

/// A sealed block whose memory is in flight to its file.
pub(super) struct Sealed {
    block: Box<BlockBuilder>,
    len: usize,
    next_seq: u64,
    counters: BlockCounters,
}

/// Whether blocks are written.
enum State {
    /// They are.
    Writing,
    /// The disk was full: nothing is tried for a while.
    Full { since: Instant },
    /// The disk was full and is tried again: no block has been written since.
    Retrying,
    /// Nothing more is written, and the worker knows why.
    Broken,
    /// Nothing more is written, for a reason unrelated to any block; the worker was notified
    /// separately.
    Ended(StoreError),
}

/// The writer thread of one worker.
pub(super) struct Writer {
    shared: Arc<Shared>,
    worker: u16,
    state: State,
    source: BlockSource,
    checkpoint: CheckpointFile,
    last_checkpoint: Instant,
    in_flight: InFlight<Carrying<OwnBlock, Sealed>>,
    /// Since when the queue has been full.
    busy_since: Option<Instant>,
    files: Files,
    past: Past,
    blocks_begun: u64,
    /// Every packet before this one is in a file, though perhaps not yet synced.
    written_seq: u64,
    /// Requests to start new files that have been served.
    rotations: u64,
}

/// A worker's end of its blocks, and their writer.
pub(super) fn channel(
    shared: &Arc<Shared>,
    worker: u16,
    (mut sink, source): (BlockSink, BlockSource),
) -> Result<(BlockSink, Writer), StoreError> {
    let options = &shared.options;
    let disk = shared.log.disk();
    let mut in_flight = InFlight::new(disk.in_flight());
    sink.register(|memory| in_flight.register(memory));
    let mut checkpoint = CheckpointFile::open(disk, shared.id, worker)?;
    checkpoint.reserve();
    let rotation = Rotation {
        bytes: options.rotate_bytes,
        ns: options.rotate_ns,
    };
    let writer = Writer {
        shared: Arc::clone(shared),
        worker,
        state: State::Writing,
        source,
        checkpoint,
        last_checkpoint: Instant::now(),
        in_flight,
        busy_since: None,
        files: Files::new(&shared.log, shared.id, worker, rotation),
        past: Past::new(shared, worker),
        blocks_begun: 0,
        written_seq: 0,
        rotations: 0,
    };
    Ok((sink, writer))
}

impl Writer {
    pub(super) fn run(mut self) -> Result<(), StoreError> {
        let interval = self.shared.options.checkpoint_interval;
        loop {
            match self.receive() {
                Incoming::Block(block) => self.begin(block),
                Incoming::End => break,
                Incoming::Flush | Incoming::Nothing => {}
            }
            while let Some(landed) = self.in_flight.try_complete() {
                self.settle(landed);
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
        if let State::Ended(error) = self.state {
            return Err(error);
        }
        self.check_place()?;
        self.past.cut();
        if let Some(file) = self.finish_file()? {
            file.seal_last();
        }
        // What is closed needs no checkpoint: a crash until then leaves the previous one, and blocks that
        // are found. On a full disk it stays valid too.
        let (next_seq, seen) = self.progress();
        let put = self.checkpoint.put(next_seq, self.written_seq, seen);
        put.map(|_| ())
            .map_err(|error| self.explain(error))
            .or_else(ignore_if_full)
    }

    /// What is due with each checkpoint.
    fn look_after_log(&mut self) -> Result<(), StoreError> {
        if let State::Broken | State::Ended(_) = self.state {
            self.last_checkpoint = Instant::now();
            return Ok(());
        }
        self.check_place()?;
        self.past.cut();
        if self.shared.log.is_behind() {
            let written = self.shared.log.write_again();
            written
                .map_err(|error| self.explain(error))
                .or_else(ignore_if_full)?;
        }
        self.past.delete_doomed();
        self.write_checkpoint().or_else(ignore_if_full)
    }

    /// Fails if the log is no longer where it was.
    fn check_place(&self) -> Result<(), StoreError> {
        match self.checkpoint.is_there() {
            true => Ok(()),
            false => Err(self.gone()),
        }
    }

    fn gone(&self) -> StoreError {
        StoreError::Gone {
            dir: self.shared.log.display(""),
        }
    }

    /// Ends the recording. The worker gets the reason, even if it has nothing to write.
    fn fail(&mut self, error: StoreError) {
        if let State::Ended(_) = self.state {
            return;
        }
        self.source.settle(Written {
            counters: BlockCounters::default(),
            outcome: Err(error.again().into()),
        });
        self.state = State::Ended(error);
    }

    /// Waits for the worker until the next checkpoint is due; or, while the worker is idle, for
    /// blocks in flight.
    fn receive(&mut self) -> Incoming {
        let interval = self.shared.options.checkpoint_interval;
        loop {
            let wait = interval.saturating_sub(self.last_checkpoint.elapsed());
            if self.in_flight.is_empty() {
                return self.source.receive(wait);
            }
            if self.in_flight.has_room() {
                match self.source.try_receive() {
                    Incoming::Nothing => {}
                    incoming => return incoming,
                }
            }
            if wait.is_zero() {
                return Incoming::Nothing;
            }
            self.wait_for_one();
        }
    }

    /// Starts writing a block, which goes back to the worker afterwards.
    fn begin(&mut self, mut block: Box<BlockBuilder>) {
        let counters = block.counters();
        if !self.in_flight.has_room() {
            self.wait_for_one();
        }
        match self.prepare(&mut block) {
            Ok((file, header, len)) => {
                let placed = file.place(len as u64, Some(u64::from(header.packets)));
                let sealed = Carrying {
                    block: block.take_sealed(len),
                    with: Sealed {
                        next_seq: header.next_seq,
                        block,
                        len,
                        counters,
                    },
                };
                let in_flight = &mut self.in_flight;
                file.with_handle(|handle| in_flight.submit(handle, placed, sealed));
                self.note_busy();
            }
            Err(error) => {
                self.note_error(&error);
                self.give_back(block, counters, Err(error));
            }
        }
    }

    /// Updates the state after an error.
    fn note_error(&mut self, error: &StoreError) {
        self.state = match (error, std::mem::replace(&mut self.state, State::Broken)) {
            (_, ended @ State::Ended(_)) => ended,
            (_, State::Broken) => State::Broken,
            (StoreError::DiskFull { goes_on: true, .. }, State::Full { since }) => {
                State::Full { since }
            }
            (StoreError::DiskFull { goes_on: true, .. }, State::Writing | State::Retrying) => {
                let since = Instant::now();
                State::Full { since }
            }
            _ => State::Broken,
        };
    }

    /// Turns a disk error into what it means for a recording.
    fn explain(&self, error: StoreError) -> StoreError {
        match error {
            StoreError::Io { file, source, .. } if is_full(&source) => {
                let goes_on = self.shared.options.when_full == WhenFull::Drop;
                StoreError::DiskFull { file, goes_on }
            }
            // The process that is removing the log may not have reached the checkpoint yet.
            StoreError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                self.gone()
            }
            StoreError::Io { .. } if self.check_place().is_err() => self.gone(),
            other => other,
        }
    }

    /// Seals a block and finds or starts its file; also returns its header and length.
    fn prepare(
        &mut self,
        block: &mut BlockBuilder,
    ) -> Result<(Arc<OpenFile>, BlockHeader, usize), StoreError> {
        self.may_write()?;
        let (recording, seed) = (self.shared.id, self.shared.hash_seed);
        let bytes = block.seal(recording, self.worker, self.blocks_begun, seed);
        let (header, len) = (header_of(bytes), bytes.len());
        self.take_room(len as u64);
        let placed = self.place(header, len);
        if placed.is_err() {
            self.landed(len as u64);
        }
        placed
    }

    /// Takes room in a log with a limit; may wait for it.
    fn take_room(&mut self, len: u64) {
        let Some(room) = self.shared.options.room.clone() else {
            return;
        };
        if !room.take(len) {
            self.wait_for_all();
            room.wait(len);
        }
    }

    /// Bytes for which there was room are in a file, or in none.
    fn landed(&self, len: u64) {
        if let Some(room) = &self.shared.options.room {
            room.landed(len);
        }
    }

    /// Finds or starts the file of a sealed block.
    fn place(
        &mut self,
        header: BlockHeader,
        len: usize,
    ) -> Result<(Arc<OpenFile>, BlockHeader, usize), StoreError> {
        let next = Next {
            bytes: len as u64,
            last_ts_ns: (header.packets > 0).then_some(header.ts_max_ns),
        };
        if self.files.rotates_before(next) {
            self.seal_file()?;
        }
        // Blocks that were in flight may have failed meanwhile.
        self.may_write()?;
        self.blocks_begun += 1;
        let file = match self.files.current() {
            Some(file) => Arc::clone(file),
            None => self.begin_file(&header, len as u64)?,
        };
        Ok((file, header, len))
    }

    /// Starts a file for this block.
    fn begin_file(&mut self, first: &BlockHeader, len: u64) -> Result<Arc<OpenFile>, StoreError> {
        let most = self.shared.options.files_max;
        let overwritten = self.past.overwrite(most);
        overwritten.map_err(|error| self.explain(error))?;
        // By now the directory of that name may belong to another recording.
        self.check_place()?;
        let reserve = matches!(self.state, State::Retrying).then_some(len);
        let begun = self.files.begin(first.ts_min_ns, reserve, true);
        begun.map_err(|error| self.explain(error))
    }

    /// Adds up how long the disk's queue was full.
    fn note_busy(&mut self) {
        let now = Instant::now();
        if let Some(since) = self.busy_since.take() {
            let busy_ns = u64::try_from((now - since).as_nanos());
            let busy_ns = busy_ns.expect("a recording of less than 584 years");
            let sum = &self.source.progress().disk_busy_ns;
            sum.fetch_add(busy_ns, Ordering::Relaxed);
        }
        if !self.in_flight.has_room() {
            self.busy_since = Some(now);
        }
    }

    /// Whether a block may be written now. A disk that was full is tried again after a while.
    fn may_write(&mut self) -> Result<(), StoreError> {
        if let State::Broken | State::Ended(_) = self.state {
            return Err(SinkError::WriterGone.into());
        }
        if self.files.current().is_some_and(|file| file.has_failed()) {
            self.wait_for_all();
        }
        match self.state {
            State::Broken | State::Ended(_) => Err(SinkError::WriterGone.into()),
            State::Full { since } if since.elapsed() < self.shared.options.full_retry => {
                Err(StoreError::DiskFull {
                    file: self.shared.log.display(""),
                    goes_on: true,
                })
            }
            State::Full { .. } => {
                self.state = State::Retrying;
                Ok(())
            }
            State::Writing | State::Retrying => Ok(()),
        }
    }

    fn wait_for_one(&mut self) {
        if let Some(landed) = self.in_flight.complete() {
            self.settle(landed);
        }
    }

    fn wait_for_all(&mut self) {
        while !self.in_flight.is_empty() {
            self.wait_for_one();
        }
    }

    /// Accounts for a block that is no longer in flight; they come in order.
    fn settle(&mut self, (placed, carried, outcome): Landed<Carrying<OwnBlock, Sealed>>) {
        let mut sealed = carried.with;
        self.landed(sealed.len as u64);
        sealed.block.put_back(carried.block);
        self.note_busy();
        let file = placed.file();
        let outcome = self.outcome(file, placed.offset(), &sealed, outcome);
        if file.has_failed() && self.in_flight.is_empty() {
            self.end_failed_file();
        }
        self.give_back(sealed.block, sealed.counters, outcome);
    }

    /// The outcome of a write, for the block and its file.
    fn outcome(
        &mut self,
        file: &OpenFile,
        offset: u64,
        sealed: &Sealed,
        outcome: io::Result<()>,
    ) -> Result<(), StoreError> {
        let had_failed = file.has_failed();
        let outcome = match outcome {
            Ok(()) if !had_failed && !file.is_there() => Err(self.gone()),
            Ok(()) => Ok(()),
            Err(error) => Err(self.explain(file.error("write")(error))),
        };
        let settled = match outcome {
            Ok(()) => InFile::Unsynced,
            Err(_) => InFile::Failed,
        };
        file.settle(offset, settled);
        match outcome {
            Ok(()) if had_failed => {
                // Anything written after a failed block is useless.
                Err(match self.state {
                    State::Full { .. } => StoreError::DiskFull {
                        file: self.shared.log.display(file.name()),
                        goes_on: true,
                    },
                    _ => SinkError::WriterGone.into(),
                })
            }
            Ok(()) => {
                file.index(sealed.block.sealed(sealed.len));
                self.written_seq = self.written_seq.max(sealed.next_seq);
                if let State::Retrying = self.state {
                    self.state = State::Writing;
                }
                Ok(())
            }
            Err(error) => {
                self.note_error(&error);
                Err(error)
            }
        }
    }

    /// Ends a file after its last good block.
    fn end_failed_file(&mut self) {
        if let Some(file) = self.files.take()
            && self.check_place().is_ok()
        {
            self.past.push_torn(file, self.written_seq);
        }
    }

    fn give_back(
        &self,
        block: Box<BlockBuilder>,
        counters: BlockCounters,
        outcome: Result<(), StoreError>,
    ) {
        let outcome = outcome.map_err(SinkError::from);
        self.source.finish(block, Written { counters, outcome });
    }

    fn rotate_if_asked(&mut self) -> Result<(), StoreError> {
        let asked = self.shared.rotations.load(Ordering::Relaxed);
        if std::mem::replace(&mut self.rotations, asked) == asked {
            return Ok(());
        }
        self.seal_file()
    }

    /// Finishes the current file and lists it as sealed, if there is one.
    fn seal_file(&mut self) -> Result<(), StoreError> {
        let Some(file) = self.finish_file()? else {
            return Ok(());
        };
        let sealed = file.seal().map_err(|error| self.explain(error));
        // The next version of the manifest has this.
        sealed.or_else(ignore_if_full)?;
        self.past.push(&file, self.written_seq);
        Ok(())
    }

    /// Completes the current file, if there is one: its blocks are on disk, and nothing follows.
    fn finish_file(&mut self) -> Result<Option<Arc<OpenFile>>, StoreError> {
        self.wait_for_all();
        let Some(file) = self.files.take() else {
            return Ok(None);
        };
        file.retire();
        file.end_index();
        let synced = file.sync().map_err(|error| self.explain(error));
        synced.or_else(ignore_if_full)?;
        Ok(Some(file))
    }

    fn write_checkpoint(&mut self) -> Result<(), StoreError> {
        self.last_checkpoint = Instant::now();
        // Read before the sync, so that the checkpoint never claims too little.
        let (next_seq, seen) = self.progress();
        if let Some(file) = self.files.current() {
            file.sync().map_err(|error| self.explain(error))?;
        }
        let written = self.checkpoint.write(next_seq, self.written_seq, seen);
        written.map_err(|error| self.explain(error))
    }

    /// The sequence number of the worker's next packet, and the packets and bytes that it has seen.
    fn progress(&self) -> (u64, (u64, u64)) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let progress = self.source.progress();
        let seen = (load(&progress.seen_packets), load(&progress.seen_bytes));
        (load(&progress.next_seq), seen)
    }
}

/// What could not be written for lack of space is written later, or need not be.
fn ignore_if_full(error: StoreError) -> Result<(), StoreError> {
    if error.lacks_room() {
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
