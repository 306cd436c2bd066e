//! The checkpoint of a worker, kept up to date.

use std::sync::Arc;

use strata_wire::unix_ns;

use crate::disk::{Disk, DiskFile};
use crate::error::{StoreError, io_error};
use crate::manifest::checkpoint::{Checkpoint, checkpoint_name};
use crate::manifest::stored::read_all;

/// A checkpoint file being written.
pub(crate) struct CheckpointFile {
    disk: Arc<dyn Disk>,
    name: String,
    file: Box<dyn DiskFile>,
    last: Option<Checkpoint>,
}

impl CheckpointFile {
    /// The checkpoint file of a recording's worker. An existing one is continued: generations must
    /// grow, or old checkpoints would be taken for newer ones.
    ///
    /// # Errors
    ///
    /// If it cannot be created or read.
    pub(crate) fn open(
        disk: &Arc<dyn Disk>,
        recording: u32,
        worker: u16,
    ) -> Result<Self, StoreError> {
        let name = checkpoint_name(recording, worker);
        let named = || disk.display(&name);
        let (file, last) = if disk.exists(&name) {
            let file = disk
                .open(&name, true)
                .map_err(io_error(named(), "create"))?;
            let before = read_all(disk.as_ref(), &name).map_err(io_error(named(), "read"))?;
            (file, Checkpoint::latest(&before))
        } else {
            let created = disk.create(&name);
            (created.map_err(io_error(named(), "create"))?, None)
        };
        Ok(Self {
            disk: Arc::clone(disk),
            name,
            file,
            last,
        })
    }

    /// Reserves space for all that will be written to it, if there is any now.
    pub(crate) fn reserve(&mut self) {
        // If there is no space now, there may be some later.
        let _ = self.file.allocate(Checkpoint::FILE_BYTES);
    }

    /// Whether its name still refers to it: whether the log is where it was.
    pub(crate) fn is_there(&self) -> bool {
        self.disk.leads_to(&self.name, self.file.as_ref())
    }

    /// Writes the worker's progress, and syncs it: `next_seq` is the sequence number of its next packet;
    /// every packet before `durable_seq` is on disk; `seen` packets and bytes arrived.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub(crate) fn write(
        &mut self,
        next_seq: u64,
        durable_seq: u64,
        seen: (u64, u64),
    ) -> Result<(), StoreError> {
        if !self.put(next_seq, durable_seq, seen)? {
            return Ok(());
        }
        let synced = self.file.sync();
        synced.map_err(io_error(self.disk.display(&self.name), "sync"))
    }

    /// As [`CheckpointFile::write`] without the sync; returns whether there was anything to write.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub(crate) fn put(
        &mut self,
        next_seq: u64,
        durable_seq: u64,
        seen: (u64, u64),
    ) -> Result<bool, StoreError> {
        let is_known = |last: &Checkpoint| {
            (last.next_seq, last.durable_seq) == (next_seq, durable_seq)
                && last.seen_packets == seen.0
        };
        if self.last.as_ref().is_some_and(is_known) {
            return Ok(false);
        }
        let checkpoint = Checkpoint {
            generation: 1 + self.last.map_or(0, |last| last.generation),
            time_ns: unix_ns(),
            next_seq,
            durable_seq,
            seen_packets: seen.0,
            seen_bytes: seen.1,
        };
        let named = || self.disk.display(&self.name);
        self.last = Some(checkpoint);
        let (bytes, offset) = (checkpoint.emit(), checkpoint.offset());
        let written = self.file.write_at(&bytes, offset);
        written.map_err(io_error(named(), "write"))?;
        Ok(true)
    }
}
