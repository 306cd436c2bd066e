//! The writer thread of one worker: blocks into files, checkpoints beside them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Instant;

use crate::builder::BlockBuilder;
use crate::channel::{
    BlockSink, BlockSource, FromWriter, Progress, ToWriter, Written, block_channel,
};
use crate::checkpoint::Checkpoint;
use crate::disk::DiskFile;
use crate::error::{StoreError, io_error};
use crate::format::BlockHeader;
use crate::manifest::BlockFile;

use super::{Shared, checkpoint_name, now_ns};

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
pub(super) struct Writer {
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

/// A worker's sink and its writer, which is yet to run.
pub(super) fn channel(
    shared: &Arc<Shared>,
    worker: u16,
) -> Result<(BlockSink, Writer), StoreError> {
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

impl Writer {
    pub(super) fn run(mut self) -> Result<(), StoreError> {
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
