//! Reading a log: recordings, their counters and their blocks.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

mod losses;

use std::any::Any;
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use strata_wire::Ledger;
use strata_wire::tunnel::{Tunnels, TunnelsError};

use crate::block::blocks::Blocks;
use crate::block::index::index_name;
use crate::block::promotions::Promoted;
use crate::block::select::Select;
use crate::disk::{Disk, RealDisk};
use crate::error::{StoreError, io_error};
use crate::manifest::archive::{ARCHIVE_NAME, Archive, Part};
use crate::manifest::checkpoint::{Checkpoint, checkpoint_name};
use crate::manifest::stored::{read_all, read_manifest};
use crate::manifest::{BlockFile, MANIFEST_NAME, Manifest, Recording, State};

pub use losses::{AbruptEnd, ENDED_EARLY, LOST_BEFORE, Losses};

/// A log, opened for reading. It may be written at the same time.
pub struct Log {
    disk: Arc<dyn Disk>,
    manifest: Manifest,
    archive: Archive,
    promoted: Promoted,
    /// While this is held, no file is deleted.
    _reading: Option<Box<dyn Any + Send + Sync>>,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log")
            .field("manifest", &self.manifest)
            .finish_non_exhaustive()
    }
}

/// What was found at the end of a recording that was not closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Loss {
    /// Packets missing between blocks, or between the last block and the checkpoint: exact.
    pub packets: u64,
    /// Packets that are there but end where a part was lost between switch and relay.
    pub incomplete: u64,
    /// Time of the last checkpoint, ns since 1970, or of the last packet after it that is there; of the
    /// worker for which that is oldest: later packets may be lost in addition. `None` without a
    /// checkpoint.
    pub checkpoint_ns: Option<u64>,
}

impl Loss {
    /// Sequence numbers come from a switch: their differences may add up to more than is possible.
    fn add(&mut self, packets: u64, incomplete: u64) {
        self.packets = self.packets.saturating_add(packets);
        self.incomplete = self.incomplete.saturating_add(incomplete);
    }
}

impl Log {
    /// Opens the log in a directory.
    ///
    /// # Errors
    ///
    /// If there is no log, or its manifest cannot be understood.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let disk = RealDisk::at(dir);
        match fs::metadata(dir.join(MANIFEST_NAME)) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                return Err(io_error(disk.display(MANIFEST_NAME), "read")(error));
            }
            Err(_) => return Err(missing(&disk, dir.display().to_string())),
            Ok(_) => {}
        }
        Self::on(Arc::new(disk))
    }

    /// Opens the log on a disk.
    ///
    /// # Errors
    ///
    /// As [`Log::open`].
    pub fn on(disk: Arc<dyn Disk>) -> Result<Self, StoreError> {
        let reading = disk.lock_for_reading();
        let reading = reading.map_err(io_error(disk.display(""), "lock the log"))?;
        // The archive is read before and after the manifest, so that no block file is missed that
        // leaves the log at this moment.
        let mut archive = read_archive(disk.as_ref())?;
        let mut manifest = loop {
            let manifest = read_manifest(disk.as_ref())?;
            let manifest = manifest.ok_or_else(|| missing(disk.as_ref(), disk.display("")))?;
            let again = read_archive(disk.as_ref())?;
            if again.generation == archive.generation {
                break manifest;
            }
            archive = again;
        };
        let gone: HashSet<&str> = archive.gone.iter().map(|gone| gone.name.as_str()).collect();
        for recording in &mut manifest.recordings {
            recording
                .files
                .retain(|file| !gone.contains(file.name.as_str()));
        }
        Ok(Self {
            disk,
            manifest,
            archive,
            promoted: Promoted::default(),
            _reading: reading,
        })
    }

    /// The archive manifest: what was compacted.
    #[must_use]
    pub fn archive(&self) -> &Archive {
        &self.archive
    }

    /// The disk that it is on.
    #[must_use]
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// Its recordings, in order.
    #[must_use]
    pub fn recordings(&self) -> &[Recording] {
        &self.manifest.recordings
    }

    /// Lets this process look into the tunnels that the recordings looked into: where their packets'
    /// headers end, and which flows they belong to, is then found as it was found then.
    ///
    /// # Errors
    ///
    /// If a UDP port is that of another tunnel already, of another log or recording or as the user said:
    /// it stays that.
    pub fn look_into_its_tunnels(&self) -> Result<(), TunnelsError> {
        let lists = self.recordings().iter().map(|recording| &recording.tunnels);
        let mut unusual = lists.filter(|lists| !lists.is_empty());
        unusual.try_for_each(|lists| Tunnels::of_lists(lists)?.extend_in_force())
    }

    /// The model a recording was made with, as JSON.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn model_json(&self, recording: &Recording) -> Result<Vec<u8>, StoreError> {
        self.model_file(&recording.model_file)
    }

    /// The model in the shadow of that one, as JSON; `None` without one.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn shadow_json(&self, recording: &Recording) -> Result<Option<Vec<u8>>, StoreError> {
        let shadow = recording.shadow.as_ref();
        shadow.map(|s| self.model_file(&s.model_file)).transpose()
    }

    fn model_file(&self, name: &str) -> Result<Vec<u8>, StoreError> {
        let named = self.disk.display(name);
        read_all(self.disk.as_ref(), name).map_err(io_error(named, "read"))
    }

    /// Bytes of a recording's files, compacted or not.
    ///
    /// # Errors
    ///
    /// If a file's size cannot be read; a missing one counts as empty.
    pub fn stored_bytes(&self, recording: &Recording) -> Result<u64, StoreError> {
        let parts = self.archive.parts.iter();
        let parts = parts.filter(|part| part.recording == recording.id);
        let mut total = parts.map(Part::bytes).fold(0, u64::saturating_add);
        for file in &recording.files {
            total = total.saturating_add(self.file_bytes(file)?);
        }
        Ok(total)
    }

    /// Bytes of a block file and its index.
    ///
    /// # Errors
    ///
    /// If a size cannot be read; a missing one counts as empty.
    pub fn file_bytes(&self, file: &BlockFile) -> Result<u64, StoreError> {
        let mut total = 0_u64;
        for name in [&file.name, &index_name(&file.name)] {
            let opened = self.disk.open(name, false);
            let size = match opened.and_then(|opened| opened.size()) {
                // The reader of the log's blocks gets the error.
                Err(error) if error.kind() == ErrorKind::NotFound => 0,
                size => size.map_err(io_error(self.disk.display(name), "open"))?,
            };
            total = total.saturating_add(size);
        }
        Ok(total)
    }

    /// Whether a process is recording into the log now.
    #[must_use]
    pub fn is_being_written(&self) -> bool {
        matches!(self.disk.lock(), Ok(None))
    }

    /// Which recordings are being written now: the last one of a recording process, and all that a
    /// relay has not closed, since a switch resumes its own.
    pub fn being_written(&self) -> impl Fn(&Recording) -> bool + use<> {
        let live = self.is_being_written();
        let last = self.recordings().last().map(|recording| recording.id);
        move |recording| {
            let may_go_on = recording.session.is_some() || Some(recording.id) == last;
            live && recording.state == State::Running && may_go_on
        }
    }

    /// The counters of a recording: as closed; or for one that was not closed, from its blocks and
    /// checkpoint, with the loss.
    ///
    /// # Errors
    ///
    /// If a file cannot be read. Damaged blocks count as lost.
    pub fn accounting(&self, recording: &Recording) -> Result<(Option<Ledger>, Loss), StoreError> {
        self.accounting_of(recording, &Select::default())
    }

    /// Packets of all recordings that are not being written which are known to be lost before they were in a file:
    /// those that [`Log::accounting`] counts, but for packets of blocks whose records are damaged.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub fn lost_packets(&self) -> Result<u64, StoreError> {
        let being_written = self.being_written();
        let mut lost = 0_u64;
        for recording in self.recordings().iter().filter(|one| !being_written(one)) {
            lost = lost.saturating_add(self.loss(recording)?.packets);
        }
        Ok(lost)
    }

    /// The loss of a recording as [`Log::accounting`] has it, but for packets of blocks whose records are damaged:
    /// records are not read.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub fn loss(&self, recording: &Recording) -> Result<Loss, StoreError> {
        let headers = Select {
            without_records: true,
            ..Select::default()
        };
        let (_, loss) = self.accounting_of(recording, &headers)?;
        Ok(loss)
    }

    fn accounting_of(
        &self,
        recording: &Recording,
        select: &Select,
    ) -> Result<(Option<Ledger>, Loss), StoreError> {
        let mut accounting = None;
        if recording.state == State::Closed {
            accounting = recording.ledger.as_ref().map(Ledger::from);
            if recording.session.is_none() {
                return Ok((accounting, Loss::default()));
            }
        }
        // Each worker numbers its own packets.
        let mut next_seq = BTreeMap::new();
        let mut last_ns = BTreeMap::new();
        let mut loss = Loss::default();
        let gone = self.archive.gone.iter();
        for gone in gone.filter(|gone| gone.recording == recording.id && gone.packets > 0) {
            let before = next_seq.entry(gone.worker).or_insert(0_u64);
            let reached = gone.next_seq.saturating_sub(*before);
            loss.add(reached.saturating_sub(gone.packets), gone.incomplete);
            *before = gone.next_seq.max(*before);
        }
        for deleted in &recording.overwritten {
            let before = next_seq.entry(deleted.worker).or_insert(0_u64);
            loss.add(deleted.next_seq.saturating_sub(deleted.packets), 0);
            *before = deleted.next_seq.max(*before);
        }
        for block in self.blocks(recording, select) {
            match block {
                Ok(block) if block.header.packets > 0 => {
                    let next: &mut u64 = next_seq.entry(block.header.worker).or_default();
                    let present = u64::from(block.header.packets);
                    let reached = block.header.next_seq.saturating_sub(*next);
                    loss.add(reached.saturating_sub(present), block.incomplete.into());
                    *next = block.header.next_seq.max(*next);
                    let last: &mut u64 = last_ns.entry(block.header.worker).or_default();
                    *last = block.header.ts_max_ns.max(*last);
                }
                Ok(_) | Err(StoreError::Damage(_)) => {}
                Err(error) => return Err(error),
            }
        }
        for worker in 0..=u16::MAX {
            let name = checkpoint_name(recording.id, worker);
            let content = match read_all(self.disk.as_ref(), &name) {
                Ok(content) => content,
                // There are no more workers.
                Err(error) if error.kind() == ErrorKind::NotFound => break,
                Err(error) => return Err(io_error(self.disk.display(&name), "read")(error)),
            };
            if let Some(last) = Checkpoint::latest(&content) {
                let known = next_seq.entry(worker).or_default();
                loss.add(last.next_seq.saturating_sub(*known), 0);
                let last_ns = last_ns.get(&worker);
                let known_ns = last_ns.map_or(last.time_ns, |&ns| last.time_ns.max(ns));
                let before = loss.checkpoint_ns;
                let earliest = before.map_or(known_ns, |before| before.min(known_ns));
                loss.checkpoint_ns = accounting.is_none().then_some(earliest);
            }
        }
        Ok((accounting, loss))
    }

    /// The blocks of a recording in order, except those that cannot hold what is wanted. An error
    /// names file and offset; the blocks after it follow.
    pub fn blocks<'a>(&'a self, recording: &'a Recording, select: &'a Select) -> Blocks<'a> {
        Blocks::new(
            &self.disk,
            &self.promoted,
            recording,
            &recording.files,
            None,
            select,
        )
    }

    /// As [`Log::blocks`], for one worker.
    pub fn blocks_of<'a>(
        &'a self,
        recording: &'a Recording,
        worker: u16,
        select: &'a Select,
    ) -> Blocks<'a> {
        Blocks::new(
            &self.disk,
            &self.promoted,
            recording,
            &recording.files,
            Some(worker),
            select,
        )
    }

    /// As [`Log::blocks`], for one file, which need not be listed in the manifest.
    pub fn blocks_in<'a>(
        &'a self,
        recording: &'a Recording,
        file: &'a BlockFile,
        select: &'a Select,
    ) -> Blocks<'a> {
        Blocks::new(
            &self.disk,
            &self.promoted,
            recording,
            std::slice::from_ref(file),
            None,
            select,
        )
    }
}

/// Why a disk without a manifest has no log.
fn missing(disk: &dyn Disk, dir: String) -> StoreError {
    let blocks = disk.list("blocks");
    let has_blocks = blocks.is_ok_and(|names| names.iter().any(|name| name.ends_with(".strata")));
    let file = MANIFEST_NAME.to_owned();
    match has_blocks || disk.exists(ARCHIVE_NAME) {
        true => StoreError::Lost { dir, file },
        false => StoreError::Missing { dir, file },
    }
}

/// The archive manifest of the log on `disk`; empty without one.
///
/// # Errors
///
/// If it cannot be read or understood.
pub fn read_archive(disk: &dyn Disk) -> Result<Archive, StoreError> {
    if !disk.exists(ARCHIVE_NAME) {
        return Ok(Archive::default());
    }
    let named = disk.display(ARCHIVE_NAME);
    let content = read_all(disk, ARCHIVE_NAME).map_err(io_error(named.clone(), "read"))?;
    Archive::from_json(&content).map_err(|problem| StoreError::Manifest {
        file: named,
        problem,
    })
}
