//! Reading a log: recordings, files, blocks.

use std::any::Any;
use std::collections::{BTreeMap, HashSet};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use strata_wire::{AddressFamily, FlowHasher, Ledger};

use crate::archive::{ARCHIVE_NAME, Archive, Part};
use crate::checkpoint::Checkpoint;
use crate::disk::{Disk, DiskFile, RealDisk};
use crate::error::{Damage, StoreError, io_error};
use crate::format::{
    ALIGNMENT, BlockHeader, FLAG_HIDES_ADDRESSES, FLAG_META, FLAG_PROMOTES, HEADER_LEN,
};
use crate::manifest::{BlockFile, MANIFEST_NAME, Manifest, Recording, State};
use crate::promotion::Promotions;
use crate::recorder::{checkpoint_name, read_all, read_manifest};
use crate::records::Records;
use crate::relayed::{Definitions, RelayedHeader, SEGMENTS_AT, assemble};
use crate::summary::Summary;

/// A log, opened for reading. It may be written meanwhile.
pub struct Log {
    disk: Arc<dyn Disk>,
    manifest: Manifest,
    archive: Archive,
    /// By recording, once they are looked for.
    promotions: Mutex<BTreeMap<u32, Arc<Promotions>>>,
    /// No file is deleted while it is held.
    _reading: Option<Box<dyn Any + Send + Sync>>,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log")
            .field("manifest", &self.manifest)
            .finish_non_exhaustive()
    }
}

/// One block, read and checked.
#[derive(Debug)]
pub struct Block {
    /// Its header.
    pub header: BlockHeader,
    /// What it holds.
    pub summary: Summary,
    /// Its file, as messages name it.
    pub file: String,
    /// Where in the file.
    pub offset: u64,
    /// Where in the file what it covers with checksums ends, and where the next block
    /// may begin; zeros are between.
    pub ends: (u64, u64),
    /// Packets in it that end where a part was lost on the way to a relay.
    pub incomplete: u32,
    /// Where in the file stands what was a segment when it was written, and is none.
    pub damaged_segments: Vec<u64>,
    pub(crate) body: Vec<u8>,
}

impl Block {
    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }

    pub(crate) fn replace_body(&mut self, body: Vec<u8>) {
        self.body = body;
    }

    /// Its records.
    #[must_use]
    pub fn records(&self) -> Records<'_> {
        Records::new(&self.body, self.header.first_seq)
    }
}

/// Which blocks are wanted. The default is all of them.
#[derive(Clone, Debug, Default)]
pub struct Select {
    /// Packets from this time on, ns.
    pub from_ns: Option<u64>,
    /// Packets before this time, ns.
    pub to_ns: Option<u64>,
    /// Packets with at least one of these addresses; `None` for all.
    pub addresses: Option<Vec<(AddressFamily, u128)>>,
    /// Only blocks that hold what the inputs said about themselves.
    pub metadata_only: bool,
    /// Headers and summaries alone: the blocks come without their records, which
    /// are neither read nor checked.
    pub without_records: bool,
}

impl Select {
    /// Whether a block with this header may hold what is wanted.
    #[must_use]
    pub fn may_match(&self, header: &BlockHeader, summary: &Summary) -> bool {
        if header.flags & FLAG_META != 0 {
            return true;
        }
        if self.metadata_only {
            return false;
        }
        let after = self.from_ns.is_none_or(|from| header.ts_max_ns >= from);
        let before = self.to_ns.is_none_or(|to| header.ts_min_ns < to);
        if header.packets == 0 {
            // Nothing but promotions: they are checked with the rest.
            return header.flags & FLAG_PROMOTES != 0;
        }
        if !after || !before {
            return false;
        }
        let Some(addresses) = &self.addresses else {
            return true;
        };
        if header.flags & FLAG_HIDES_ADDRESSES != 0 {
            return true;
        }
        let hasher = FlowHasher::new(header.hash_seed);
        addresses
            .iter()
            .any(|&(family, address)| summary.may_hold(hasher.address(family, address)))
    }
}

/// What was found at the end of a recording that was not closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Loss {
    /// Packets between blocks, or between the last block and the checkpoint,
    /// that are not there: exact.
    pub packets: u64,
    /// Packets that are there and end where a part was lost on the way to a relay.
    pub incomplete: u64,
    /// When the last checkpoint was made, ns since 1970, of the worker whose last is
    /// oldest: what arrived later may be lost beside. `None` without a checkpoint.
    pub checkpoint_ns: Option<u64>,
}

impl Log {
    /// Opens the log in a directory.
    ///
    /// # Errors
    ///
    /// If there is none, or its manifest cannot be understood.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let disk = RealDisk::at(dir);
        if !disk.exists(MANIFEST_NAME) {
            return Err(StoreError::Missing {
                dir: dir.display().to_string(),
                file: MANIFEST_NAME.into(),
            });
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
        // The one is read between two looks at the other, so that no block file is
        // missed that leaves the log in this moment.
        let mut archive = read_archive(disk.as_ref())?;
        let mut manifest = loop {
            let manifest = read_manifest(disk.as_ref())?.ok_or_else(|| StoreError::Missing {
                dir: disk.display(""),
                file: MANIFEST_NAME.into(),
            })?;
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
            promotions: Mutex::default(),
            _reading: reading,
        })
    }

    /// What of the log was compacted.
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

    /// The model that a recording was made with, as JSON.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn model_json(&self, recording: &Recording) -> Result<Vec<u8>, StoreError> {
        let named = self.disk.display(&recording.model_file);
        read_all(self.disk.as_ref(), &recording.model_file).map_err(io_error(named, "read"))
    }

    /// Bytes of a recording's files, compacted or not.
    ///
    /// # Errors
    ///
    /// If a file cannot be looked at; a missing one counts as empty.
    pub fn stored_bytes(&self, recording: &Recording) -> Result<u64, StoreError> {
        let parts = self.archive.parts.iter();
        let parts = parts.filter(|part| part.recording == recording.id);
        let mut total = parts.map(Part::bytes).sum();
        for file in &recording.files {
            let named = self.disk.display(&file.name);
            let opened = self.disk.open(&file.name, false);
            total += match opened.and_then(|opened| opened.size()) {
                // Who reads the log's blocks is told.
                Err(error) if error.kind() == ErrorKind::NotFound => 0,
                size => size.map_err(io_error(named, "open"))?,
            };
        }
        Ok(total)
    }

    /// Whether a process is recording into the log now.
    #[must_use]
    pub fn is_being_written(&self) -> bool {
        matches!(self.disk.lock(), Ok(None))
    }

    /// The books of a recording: as closed, or for one that was not closed, what
    /// its blocks and checkpoint say, with the loss.
    ///
    /// # Errors
    ///
    /// If a file cannot be read. Damaged blocks count as lost.
    pub fn books(&self, recording: &Recording) -> Result<(Option<Ledger>, Loss), StoreError> {
        let mut books = None;
        if recording.state == State::Closed {
            books = recording.ledger.as_ref().map(Ledger::from);
            if recording.session.is_none() {
                return Ok((books, Loss::default()));
            }
        }
        // Each worker numbers its packets by itself.
        let mut next_seq = BTreeMap::new();
        let mut loss = Loss::default();
        let gone = self.archive.gone.iter();
        for gone in gone.filter(|gone| gone.recording == recording.id && gone.packets > 0) {
            let before = next_seq.entry(gone.worker).or_insert(0_u64);
            let reached = gone.next_seq.saturating_sub(*before);
            loss.packets += reached.saturating_sub(gone.packets);
            loss.incomplete += gone.incomplete;
            *before = gone.next_seq.max(*before);
        }
        for deleted in &recording.overwritten {
            let before = next_seq.entry(deleted.worker).or_insert(0_u64);
            loss.packets += deleted.next_seq.saturating_sub(deleted.packets);
            *before = deleted.next_seq.max(*before);
        }
        for block in self.blocks(recording, &Select::default()) {
            match block {
                Ok(block) if block.header.packets > 0 => {
                    let next: &mut u64 = next_seq.entry(block.header.worker).or_default();
                    let present = u64::from(block.header.packets);
                    let reached = block.header.next_seq.saturating_sub(*next);
                    loss.packets += reached.saturating_sub(present);
                    loss.incomplete += u64::from(block.incomplete);
                    *next = block.header.next_seq.max(*next);
                }
                Ok(_) | Err(StoreError::Damage(_)) => {}
                Err(error) => return Err(error),
            }
        }
        for worker in 0..=u16::MAX {
            let name = checkpoint_name(recording.id, worker);
            let Ok(content) = read_all(self.disk.as_ref(), &name) else {
                break;
            };
            if let Some(last) = Checkpoint::latest(&content) {
                let known = next_seq.get(&worker).copied().unwrap_or(0);
                loss.packets += last.next_seq.saturating_sub(known);
                let earliest = loss.checkpoint_ns.unwrap_or(u64::MAX).min(last.time_ns);
                loss.checkpoint_ns = books.is_none().then_some(earliest);
            }
        }
        Ok((books, loss))
    }

    /// The blocks of a recording in order, those that cannot hold what is wanted
    /// left out. An error names file and offset; the blocks after it follow.
    pub fn blocks<'a>(&'a self, recording: &'a Recording, select: &'a Select) -> Blocks<'a> {
        Blocks {
            log: self,
            recording,
            select,
            files: recording.files.iter(),
            worker: None,
            current: None,
            definitions: BTreeMap::new(),
            promotions: None,
        }
    }

    /// The promotions of a recording, which may stand in any of its files. Damaged blocks
    /// are passed over: whoever reads the blocks is told.
    fn promotions(&self, recording: &Recording) -> Result<Arc<Promotions>, StoreError> {
        let mut known = self
            .promotions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known.get(&recording.id) {
            return Ok(Arc::clone(found));
        }
        let mut found = Promotions::default();
        let select = Select::default();
        let definitions = BTreeMap::new();
        for entry in recording.files.iter().filter(|_| recording.look_back) {
            let mut current = match open_file(self.disk.as_ref(), entry) {
                Ok(opened) => opened,
                Err(StoreError::Damage(_)) => continue,
                Err(error) => return Err(error),
            };
            current.promotions_only = true;
            loop {
                match step(&mut current, recording, &select, &definitions) {
                    Ok(Step::Block(block)) => found.add(&entry.name, &block),
                    Ok(Step::Skipped) | Err(StoreError::Damage(_)) => {}
                    Ok(Step::EndOfFile) => break,
                    Err(error) => return Err(error),
                }
            }
        }
        let found = Arc::new(found);
        known.insert(recording.id, Arc::clone(&found));
        Ok(found)
    }

    /// As [`Log::blocks`], of one worker.
    pub fn blocks_of<'a>(
        &'a self,
        recording: &'a Recording,
        worker: u16,
        select: &'a Select,
    ) -> Blocks<'a> {
        Blocks {
            worker: Some(worker),
            ..self.blocks(recording, select)
        }
    }
}

/// The archive manifest of the log on `disk`; empty if there is none.
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

struct Current<'a> {
    entry: &'a BlockFile,
    file: Box<dyn DiskFile>,
    named: String,
    offset: u64,
    size: u64,
    /// Looking for the next block after damage.
    searching: bool,
    /// Only blocks that hold promotions are wanted.
    promotions_only: bool,
}

/// Iterator over blocks; see [`Log::blocks`].
pub struct Blocks<'a> {
    log: &'a Log,
    recording: &'a Recording,
    select: &'a Select,
    files: std::slice::Iter<'a, BlockFile>,
    /// Whose files; `None` for all.
    worker: Option<u16>,
    current: Option<Current<'a>>,
    /// By worker, what relayed blocks that follow may refer to.
    definitions: BTreeMap<u16, Definitions>,
    /// What makes packets whole; `None` before it is looked for.
    promotions: Option<Arc<Promotions>>,
}

impl std::fmt::Debug for Blocks<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Blocks")
            .field("recording", &self.recording.id)
            .finish_non_exhaustive()
    }
}

enum Step {
    Block(Box<Block>),
    Skipped,
    EndOfFile,
}

impl Iterator for Blocks<'_> {
    type Item = Result<Block, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.recording.look_back && self.promotions.is_none() {
            match self.log.promotions(self.recording) {
                Ok(found) => self.promotions = Some(found),
                Err(error) => {
                    self.promotions = Some(Arc::default());
                    return Some(Err(error));
                }
            }
        }
        loop {
            let Some(current) = &mut self.current else {
                let entry = self.files.next()?;
                if self.worker.is_some_and(|worker| worker != entry.worker) {
                    continue;
                }
                match open_file(self.log.disk.as_ref(), entry) {
                    Ok(opened) => self.current = Some(opened),
                    Err(error) => return Some(Err(error)),
                }
                continue;
            };
            match step(current, self.recording, self.select, &self.definitions) {
                Ok(Step::Block(mut block)) => {
                    if let Some(promotions) = &self.promotions
                        && let Err(error) = promotions.apply(self.log.disk.as_ref(), &mut block)
                    {
                        return Some(Err(error));
                    }
                    if self.recording.session.is_some() && block.header.packets == 0 {
                        let known = self.definitions.entry(block.header.worker);
                        known.or_default().read(&block.body);
                    }
                    return Some(Ok(*block));
                }
                Ok(Step::Skipped) => {}
                Ok(Step::EndOfFile) => self.current = None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

fn open_file<'a>(disk: &dyn Disk, entry: &'a BlockFile) -> Result<Current<'a>, StoreError> {
    let named = disk.display(&entry.name);
    let opened = disk.open(&entry.name, false);
    let file = match opened {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(StoreError::Damage(Damage {
                file: named,
                offset: 0,
                problem: format!("the file is missing, with {} packets", entry.packets),
            }));
        }
        opened => opened.map_err(io_error(named.clone(), "open"))?,
    };
    let size = file.size().map_err(io_error(named.clone(), "open"))?;
    Ok(Current {
        entry,
        file,
        named,
        offset: 0,
        size,
        searching: false,
        promotions_only: false,
    })
}

/// Reads the block at the current offset, or moves past what is none.
fn step(
    current: &mut Current<'_>,
    recording: &Recording,
    select: &Select,
    definitions: &BTreeMap<u16, Definitions>,
) -> Result<Step, StoreError> {
    let (offset, end) = (current.offset, current.size);
    if offset >= end {
        let stated = current.entry.bytes;
        if current.entry.sealed && offset < stated {
            current.offset = stated;
            return Err(StoreError::Damage(Damage {
                file: current.named.clone(),
                offset: end,
                problem: format!("the file ends here, the manifest says {stated} bytes"),
            }));
        }
        return Ok(Step::EndOfFile);
    }
    let problem = match read_block(current, recording, select, definitions)? {
        Ok(step) => {
            current.searching = false;
            return Ok(step);
        }
        Err(problem) => problem,
    };
    current.offset += problem.passes_over;
    if std::mem::replace(&mut current.searching, true) {
        return Ok(Step::Skipped);
    }
    // A file that was not completed may end in a torn block: it is cut, not
    // damage. If a whole block follows, it was not the tail.
    if !current.entry.sealed && !block_follows(current, recording)? {
        current.offset = end;
        return Ok(Step::EndOfFile);
    }
    if !current.entry.sealed && recording.session.is_some() {
        // Several threads write: a block was not completed before the crash, one
        // behind it was. The sequence numbers say what it held.
        return Ok(Step::Skipped);
    }
    Err(StoreError::Damage(Damage {
        file: current.named.clone(),
        offset,
        problem: problem.text,
    }))
}

/// Why there is no block at an offset, and where to look for the next.
struct NoBlock {
    text: String,
    passes_over: u64,
}

impl From<String> for NoBlock {
    fn from(text: String) -> Self {
        Self {
            text,
            passes_over: ALIGNMENT as u64,
        }
    }
}

impl NoBlock {
    /// A block whose header is right, so that its length can be trusted. Looking
    /// inside it would also make a crafted file take quadratic time.
    fn within(header: &BlockHeader, text: &str) -> Self {
        Self {
            text: text.to_owned(),
            passes_over: header.stored_len() as u64,
        }
    }
}

/// Whether a block belongs to a recording. The key of its fingerprints is random
/// and not in any packet, so a packet's payload cannot pass for a block.
fn is_of(header: &Header, recording: &Recording) -> bool {
    header.identity() == (recording.id, recording.hash_seed)
}

/// The header of a block of either kind.
enum Header {
    Recorded(BlockHeader),
    Relayed(RelayedHeader),
}

impl Header {
    fn identity(&self) -> (u32, [u64; 2]) {
        match self {
            Self::Recorded(header) => (header.recording, header.hash_seed),
            Self::Relayed(header) => (header.recording, header.hash_seed),
        }
    }
}

fn block_follows(current: &Current<'_>, recording: &Recording) -> Result<bool, StoreError> {
    let mut offset = current.offset;
    while offset < current.size {
        let header = read_header(current, offset)?;
        if header.is_ok_and(|header| is_of(&header, recording)) {
            return Ok(true);
        }
        offset += ALIGNMENT as u64;
    }
    Ok(false)
}

fn read_header(current: &Current<'_>, offset: u64) -> Result<Result<Header, String>, StoreError> {
    let mut bytes = [0; HEADER_LEN];
    let read = current.file.read_at(&mut bytes, offset);
    let read = read.map_err(io_error(current.named.clone(), "read"))?;
    if read < HEADER_LEN {
        return Ok(Err("the file ends within a block header".into()));
    }
    if let Some(header) = RelayedHeader::parse(&bytes) {
        return Ok(Ok(Header::Relayed(header)));
    }
    let header = BlockHeader::parse(&bytes).map(Header::Recorded);
    Ok(header.map_err(str::to_owned))
}

/// The outer error is the disk's, the inner one the block's.
fn read_block(
    current: &mut Current<'_>,
    recording: &Recording,
    select: &Select,
    definitions: &BTreeMap<u16, Definitions>,
) -> Result<Result<Step, NoBlock>, StoreError> {
    let header = match read_header(current, current.offset)? {
        Ok(header) => header,
        Err(problem) => return Ok(Err(problem.into())),
    };
    if !is_of(&header, recording) {
        let problem = format!("a block of recording {}", header.identity().0);
        return Ok(Err(problem.into()));
    }
    let header = match header {
        Header::Recorded(header) => header,
        Header::Relayed(header) => return read_relayed(current, &header, select, definitions),
    };
    let (body_len, summary_len) = (header.body_len as usize, header.summary_len as usize);
    let content_end = current.offset + (HEADER_LEN + body_len + summary_len) as u64;
    if content_end > current.size {
        return Ok(Err(String::from("the file ends within a block").into()));
    }
    let mut summary = vec![0; summary_len];
    let after_body = current.offset + (HEADER_LEN + body_len) as u64;
    let read_at = |buffer: &mut [u8], offset: u64| {
        let read = current.file.read_at(buffer, offset);
        read.map_err(io_error(current.named.clone(), "read"))
    };
    read_at(&mut summary, after_body)?;
    if crc32c::crc32c(&summary) != header.summary_crc {
        return Ok(Err(NoBlock::within(
            &header,
            "the summary's checksum does not match",
        )));
    }
    let summary = match Summary::parse(&summary) {
        Ok(summary) => summary,
        Err(problem) => return Ok(Err(NoBlock::within(&header, problem))),
    };
    let offset = current.offset;
    let wanted = if current.promotions_only {
        header.flags & FLAG_PROMOTES != 0
    } else {
        select.may_match(&header, &summary)
    };
    if !wanted {
        current.offset += header.stored_len() as u64;
        return Ok(Ok(Step::Skipped));
    }
    let mut body = Vec::new();
    if !select.without_records {
        body = vec![0; body_len];
        read_at(&mut body, offset + HEADER_LEN as u64)?;
        if crc32c::crc32c(&body) != header.body_crc {
            return Ok(Err(NoBlock::within(
                &header,
                "the records' checksum does not match",
            )));
        }
    }
    current.offset += header.stored_len() as u64;
    Ok(Ok(Step::Block(Box::new(Block {
        header,
        summary,
        file: current.named.clone(),
        offset,
        ends: (content_end, offset + header.stored_len() as u64),
        incomplete: 0,
        damaged_segments: Vec::new(),
        body,
    }))))
}

/// As [`read_block`], of a block of segments.
fn read_relayed(
    current: &mut Current<'_>,
    header: &RelayedHeader,
    select: &Select,
    definitions: &BTreeMap<u16, Definitions>,
) -> Result<Result<Step, NoBlock>, StoreError> {
    let offset = current.offset;
    let stored_len = header.stored_len() as u64;
    if offset + stored_len > current.size {
        return Ok(Err(String::from("the file ends within a block").into()));
    }
    current.offset += stored_len;
    if select.metadata_only {
        return Ok(Ok(Step::Skipped));
    }
    let mut segments = vec![0; header.used as usize];
    let segments_at = offset + SEGMENTS_AT as u64;
    let read = current.file.read_at(&mut segments, segments_at);
    read.map_err(io_error(current.named.clone(), "read"))?;
    let none = Definitions::default();
    let known = definitions.get(&header.worker).unwrap_or(&none);
    let mut assembled = assemble(header, &segments, known);
    if !select.may_match(&assembled.header, &assembled.summary) {
        return Ok(Ok(Step::Skipped));
    }
    if select.without_records {
        assembled.body.clear();
    }
    Ok(Ok(Step::Block(Box::new(Block {
        header: assembled.header,
        summary: assembled.summary,
        file: current.named.clone(),
        offset,
        ends: (offset + stored_len, offset + stored_len),
        incomplete: assembled.incomplete,
        damaged_segments: assembled
            .damaged
            .iter()
            .map(|at| segments_at + *at as u64)
            .collect(),
        body: assembled.body,
    }))))
}
