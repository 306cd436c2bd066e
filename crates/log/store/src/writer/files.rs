//! A worker's block files, one after another.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::block::index::IndexWriter;
use crate::disk::DiskFile;
use crate::error::{StoreError, io_error};

use super::{LogWriter, OpenFile};

/// When to start a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Rotation {
    /// Before one would hold more bytes; 0 never.
    pub(crate) bytes: u64,
    /// Before one spans this much packet time; 0 never.
    pub(crate) ns: u64,
}

/// The block to be placed next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    pub(crate) bytes: u64,
    /// The time of its last packet, if it has any and the time is known.
    pub(crate) last_ts_ns: Option<u64>,
}

/// The block files of a recording's worker.
pub(crate) struct Files {
    log: Arc<LogWriter>,
    recording: u32,
    worker: u16,
    rotation: Rotation,
    /// The number of the next file.
    next: u32,
    current: Option<Arc<OpenFile>>,
}

impl Files {
    /// Numbers new files after those that the manifest lists.
    pub(crate) fn new(
        log: &Arc<LogWriter>,
        recording: u32,
        worker: u16,
        rotation: Rotation,
    ) -> Self {
        let mut files = Self {
            log: Arc::clone(log),
            recording,
            worker,
            rotation,
            next: 0,
            current: None,
        };
        let listed: BTreeSet<String> = log.look(|manifest| {
            let recordings = manifest.recordings.iter().filter(|r| r.id == recording);
            let files = recordings.flat_map(|r| &r.files);
            files.map(|file| file.name.clone()).collect()
        });
        // An unlisted file was left over by a crash; a listed one may have been deleted.
        let is_taken = |name: &str| listed.contains(name) || log.disk().exists(name);
        while is_taken(&files.name(files.next)) {
            files.next += 1;
        }
        files
    }

    fn name(&self, number: u32) -> String {
        let (recording, worker) = (self.recording, self.worker);
        format!("blocks/r{recording:04}-w{worker:02}-{number:06}.strata")
    }

    /// The file that blocks are being placed in.
    pub(crate) fn current(&self) -> Option<&Arc<OpenFile>> {
        self.current.as_ref()
    }

    /// Makes the next block start a new file.
    pub(crate) fn take(&mut self) -> Option<Arc<OpenFile>> {
        self.current.take()
    }

    /// Whether the current file must end before this is placed. A file that holds only definitions
    /// takes the block they are for, however large it is.
    pub(crate) fn rotates_before(&self, next: Next) -> bool {
        let Some(file) = &self.current else {
            return false;
        };
        let Rotation { bytes, ns } = self.rotation;
        let (placed, has_packets) = file.placed();
        let is_too_big = bytes > 0 && placed + next.bytes > bytes;
        let span = next
            .last_ts_ns
            .map(|at| at.saturating_sub(file.first_ts_ns()));
        let is_too_long = ns > 0 && span.is_some_and(|span| span >= ns);
        has_packets && (is_too_big || is_too_long)
    }

    /// Starts a file that the manifest lists, with `reserve` bytes allocated if given.
    ///
    /// # Errors
    ///
    /// If it cannot be created, or the manifest cannot be written: then it is not part of the log.
    pub(crate) fn begin(
        &mut self,
        first_ts_ns: u64,
        reserve: Option<u64>,
        is_indexed: bool,
    ) -> Result<Arc<OpenFile>, StoreError> {
        let name = self.name(self.next);
        // Another try gets another name, as this one may be taken by then.
        self.next += 1;
        let disk = self.log.disk();
        let handle = self.create(&name, reserve).inspect_err(|_| {
            // It would take up scarce space. If it cannot be deleted, nothing refers to it.
            let _ = disk.remove(&name);
        })?;
        let index = is_indexed.then(|| IndexWriter::create(disk.as_ref(), &name).ok());
        let file = OpenFile::new(
            &self.log,
            self.recording,
            name,
            handle,
            index.flatten(),
            first_ts_ns,
        );
        let file = Arc::new(file);
        self.current = Some(Arc::clone(&file));
        Ok(file)
    }

    fn create(&self, name: &str, reserve: Option<u64>) -> Result<Box<dyn DiskFile>, StoreError> {
        let named = || self.log.display(name);
        let created = self.log.disk().create_for_blocks(name);
        let mut file = created.map_err(io_error(named(), "create"))?;
        if let Some(bytes) = reserve {
            // So that nothing is written to the manifest while the disk is still full.
            let allocated = file.allocate(bytes);
            allocated.map_err(io_error(named(), "create"))?;
        }
        self.log.update_or(
            self.recording,
            |recording| recording.files.push(OpenFile::entry(name, self.worker)),
            |recording| recording.files.retain(|file| file.name != name),
        )?;
        Ok(file)
    }
}
