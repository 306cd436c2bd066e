//! The writer thread of one worker: full blocks to files, several on their way at a
//! time, and checkpoints.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::Instant;

use crate::builder::{BlockBuilder, BlockTally};
use crate::channel::{
    BlockSink, BlockSource, FromWriter, Progress, ToWriter, Written, block_channel,
};
use crate::checkpoint::Checkpoint;
use crate::disk::{DiskBlock, DiskFile, WriteQueue};
use crate::error::{StoreError, io_error};
use crate::format::BlockHeader;
use crate::manifest::BlockFile;

use super::{Shared, checkpoint_name, now_ns};

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
}

/// A sealed block on its way to the file.
pub(super) struct Sealed {
    block: Box<BlockBuilder>,
    len: usize,
    packets: u64,
    next_seq: u64,
    tally: BlockTally,
}

impl DiskBlock for Sealed {
    fn bytes(&self) -> &[u8] {
        self.block.sealed(self.len)
    }

    fn registered(&self) -> Option<u16> {
        self.block.registered()
    }
}

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
    queue: WriteQueue<Sealed>,
    /// Since when it is full.
    full_since: Option<Instant>,
    file: Option<OpenFile>,
    files_begun: u32,
    blocks_begun: u64,
    /// Every packet before this one is in a file, though perhaps not yet synced.
    written_seq: u64,
    /// After a failed write nothing more is written, so that no hole arises.
    broken: bool,
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
        queue,
        full_since: None,
        file: None,
        files_begun: 0,
        blocks_begun: 0,
        written_seq: 0,
        broken: false,
        rotations: 0,
    };
    Ok((sink, writer))
}

impl Writer {
    pub(super) fn run(mut self) -> Result<(), StoreError> {
        let mut first_error = None;
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
                let sealed = Sealed {
                    packets: u64::from(header.packets),
                    next_seq: header.next_seq,
                    block,
                    len,
                    tally,
                };
                self.queue.submit(open.file.as_mut(), sealed, offset);
                self.note_busy();
            }
            (prepared, _) => {
                self.broken = true;
                let error = prepared.err().unwrap_or(StoreError::WriterGone);
                self.give_back(block, tally, Err(error));
            }
        }
    }

    /// Seals a block and sees to it that there is a file for it: its header and length.
    fn prepare(&mut self, block: &mut BlockBuilder) -> Result<(BlockHeader, usize), StoreError> {
        if self.broken {
            return Err(StoreError::WriterGone);
        }
        let (recording, seed) = (self.shared.id, self.shared.hash_seed);
        let bytes = block.seal(recording, self.worker, self.blocks_begun, seed);
        let (header, len) = (header_of(bytes), bytes.len());
        self.rotate_before(&header, len as u64)?;
        // Blocks that were on their way may have failed meanwhile.
        if self.broken {
            return Err(StoreError::WriterGone);
        }
        self.blocks_begun += 1;
        if self.file.is_none() {
            let begun = Self::begin_file(
                &self.shared,
                self.worker,
                self.files_begun,
                header.ts_min_ns,
            );
            self.file = Some(begun?);
        }
        Ok((header, len))
    }

    /// Adds up how long the disk could not have taken more.
    fn note_busy(&mut self) {
        let now = Instant::now();
        if let Some(since) = self.full_since.take() {
            let busy_ns = u64::try_from((now - since).as_nanos()).unwrap_or(u64::MAX);
            let sum = &self.progress.disk_busy_ns;
            sum.fetch_add(busy_ns, Ordering::Relaxed);
        }
        if !self.queue.has_room() {
            self.full_since = Some(now);
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
    fn settle(&mut self, sealed: Sealed, outcome: io::Result<()>) {
        self.note_busy();
        let outcome = match (&mut self.file, outcome) {
            // Behind a hole it is of no use.
            _ if self.broken => Err(StoreError::WriterGone),
            (None, _) => Err(StoreError::WriterGone),
            (Some(open), Ok(())) => {
                open.bytes += sealed.len as u64;
                open.blocks += 1;
                open.packets += sealed.packets;
                open.synced = false;
                self.written_seq = self.written_seq.max(sealed.next_seq);
                Ok(())
            }
            (Some(open), Err(error)) => {
                self.broken = true;
                Err(io_error(self.shared.disk.display(&open.name), "write")(
                    error,
                ))
            }
        };
        if self.broken
            && self.queue.is_empty()
            && let Some(open) = &mut self.file
        {
            // What was written of the block, and behind it, is cut off again if that is
            // possible; if not, readers cut it.
            let _ = open.file.set_len(open.bytes);
            open.end = open.bytes;
        }
        self.give_back(sealed.block, sealed.tally, outcome);
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
            end: 0,
            bytes: 0,
            blocks: 0,
            packets: 0,
            first_ts_ns,
            synced: true,
        })
    }

    fn seal_file(&mut self) -> Result<(), StoreError> {
        self.wait_for_all();
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
