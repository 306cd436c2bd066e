//! The pieces of a log, which threads search one by one.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use strata_archive::parts::{self, Counts, Input, TableReader};
use strata_archive::{ArchiveError, PacketColumn};
use strata_store::{BlockFile, FileKind, Log, Part, Recording};
use strata_wire::{LinkType, exact};

use crate::parts::find::{Find, Flows};

/// Link types by interface.
pub(super) type Links = HashMap<u16, LinkType>;

/// Blocks of a piece: 64 MiB, usually, so that its index and threads to read it cost little beside it.
const BLOCKS: usize = 64;
/// Blocks start at multiples of this number of bytes.
const BLOCK_BYTES_MIN: u64 = 4096;

/// A piece of a log.
pub(super) enum Piece<'a> {
    /// A row group of a part.
    Group(Arc<OpenPart<'a>>, usize),
    /// Blocks of a file, by number.
    Blocks(&'a Recording, &'a BlockFile, Range<usize>),
    /// A part without its key, with this number of packets.
    Encrypted(u64),
    Damaged(String),
    Failed(ArchiveError),
}

/// A part that is being searched.
pub(super) struct OpenPart<'a> {
    pub(super) part: &'a Part,
    pub(super) flows: Flows<'a>,
    pub(super) table: TableReader<Input>,
    /// What its row groups come to, if that is wanted and there.
    pub(super) counts: Option<Counts>,
    /// The file with its packets.
    pub(super) named: String,
    /// Links of its interfaces, once packets are put together.
    pub(super) links: OnceLock<Links>,
    pub(super) groups: usize,
}

/// The pieces that are left, those of parts first.
pub(super) struct Pieces<'a> {
    log: &'a Log,
    find: Find<'a>,
    /// Whether counts do.
    counts: bool,
    parts: Vec<&'a Part>,
    open: Option<(Arc<OpenPart<'a>>, Range<usize>)>,
    files: Vec<(&'a Recording, &'a BlockFile)>,
    file: Option<OpenFile<'a>>,
    /// Bytes of parts of which nothing is wanted.
    passed: f64,
    pub(super) all_bytes: f64,
}

#[allow(clippy::cast_precision_loss, reason = "shares")]
impl<'a> Pieces<'a> {
    pub(super) fn of(log: &'a Log, find: Find<'a>, counts: bool) -> Result<Self, ArchiveError> {
        let parts = log.archive().parts.iter().filter(|part| part.packets > 0);
        let mut parts: Vec<&Part> = parts.collect();
        parts.reverse();
        let files = log.recordings().iter();
        let files =
            files.flat_map(|recording| recording.files.iter().map(move |file| (recording, file)));
        let mut files: Vec<(&Recording, &BlockFile)> = files.collect();
        files.reverse();
        let mut all_bytes = parts.iter().map(|part| part.bytes() as f64).sum();
        for (_, file) in &files {
            all_bytes += log.file_bytes(file)? as f64;
        }
        Ok(Self {
            log,
            find,
            counts: counts && find.filter.is_none(),
            parts,
            open: None,
            files,
            file: None,
            passed: 0.0,
            all_bytes,
        })
    }

    /// The next piece, and its bytes.
    pub(super) fn next(&mut self) -> Option<(Piece<'a>, f64)> {
        let (piece, bytes) = self.take()?;
        Some((piece, bytes + std::mem::take(&mut self.passed)))
    }

    fn take(&mut self) -> Option<(Piece<'a>, f64)> {
        loop {
            if let Some((part, groups)) = &mut self.open {
                if let Some(group) = groups.next() {
                    let bytes = part.part.bytes() as f64 / part.groups as f64;
                    return Some((Piece::Group(Arc::clone(part), group), bytes));
                }
                self.open = None;
            }
            if let Some(part) = self.parts.pop() {
                let bytes = part.bytes() as f64;
                match OpenPart::open(self.log, part, (&self.find, self.counts)) {
                    Ok(Some(open)) => {
                        let groups = 0..open.groups;
                        self.open = Some((Arc::new(open), groups));
                    }
                    Ok(None) => self.passed += bytes,
                    Err(_) if part.key.is_some() => {
                        return Some((Piece::Encrypted(part.packets), bytes));
                    }
                    Err(error) => return Some((Piece::Damaged(error.to_string()), bytes)),
                }
                continue;
            }
            if let Some(file) = &mut self.file {
                let numbers = file.left.start..file.left.end.min(file.left.start + BLOCKS);
                file.left.start = numbers.end;
                let bytes = file.bytes_each * numbers.len() as f64;
                let piece = Piece::Blocks(file.recording, file.file, numbers);
                if file.left.is_empty() {
                    self.file = None;
                }
                return Some((piece, bytes));
            }
            let (recording, file) = self.files.pop()?;
            let bytes = match self.log.file_bytes(file) {
                Ok(bytes) => bytes,
                Err(error) => return Some((Piece::Failed(error.into()), 0.0)),
            };
            // A crafted manifest may have any number.
            let count = file.blocks.min(bytes / BLOCK_BYTES_MIN).max(1);
            self.file = Some(OpenFile {
                recording,
                file,
                left: 0..exact(count),
                bytes_each: bytes as f64 / count as f64,
            });
        }
    }
}

/// A file that is being searched.
struct OpenFile<'a> {
    recording: &'a Recording,
    file: &'a BlockFile,
    /// Numbers of its blocks.
    left: Range<usize>,
    bytes_each: f64,
}

impl<'a> OpenPart<'a> {
    /// `None` if nothing of it is wanted.
    pub(super) fn open(
        log: &Log,
        part: &'a Part,
        (find, counts): (&Find<'a>, bool),
    ) -> Result<Option<Self>, ArchiveError> {
        let disk = log.disk().as_ref();
        let Some(flows) = Flows::open(disk, part, (find, None))? else {
            return Ok(None);
        };
        let name = part.file(FileKind::Packets).map_or("", |file| &file.name);
        let named = disk.display(name);
        let input = parts::open(disk, part, FileKind::Packets)?;
        let table = TableReader::open(input, named.clone(), PacketColumn::SPECS)?;
        Ok(Some(Self {
            part,
            flows,
            groups: table.groups().len(),
            counts: if counts { Counts::of(&table) } else { None },
            table,
            named,
            links: OnceLock::new(),
        }))
    }
}
