//! The index of a block file: what a search needs to know of its blocks, without the records.
//!
//! ```text
//! of each group of up to 128 blocks:
//!   the summary of each block up to its filter (the counts)
//!   the filters of its blocks in slices: for each range of fingerprints, the lines of all filters
//! header of each block (128 bytes each)
//! of each block:  length of its filter u32 | CRC-32C of its counts u32
//! of each group:  blocks u32 | slices u32
//! of each slice:  length u32 | CRC-32C u32
//! magic "STRATAI2" | blocks u64 | groups u32 | slices u32 | CRC-32C from the headers on u32
//! ```
//!
//! A search for one flow reads one slice of each group, instead of all filters: a thousandth of
//! the file.
//!
//! Nothing depends on it: it is never synced, and where it is missing or does not match the file,
//! the file itself is read. Indexes of older logs hold whole summaries.
//!
//! ```text
//! slices      which lines of a filter are in which slice; looking up fingerprints
//! writer      an index being written
//! summaries   searching an index of the older form
//! ```
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

mod slices;
mod summaries;
mod writer;

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use strata_blocks::{BlockHeader, ClassCount, HEADER_LEN, Summary};
use zerocopy::FromBytes;

use crate::block::select::Select;
use crate::disk::{Disk, DiskFile};
use crate::layout::{IndexFooter, IndexedBlock, SummariesFooter};
use crate::manifest::{BlockFile, Recording};

use slices::Group;

pub(crate) use writer::IndexWriter;

const MAGIC: [u8; 8] = *b"STRATAI2";
const FOOTER_LEN: usize = size_of::<IndexFooter>();
/// A file with more blocks has no index: its headers would take too much memory.
const BLOCKS_MAX: usize = 1 << 18;
/// What is read first for each block, at the end of the file: mostly all but the groups.
const END_BYTES: usize = HEADER_LEN + size_of::<IndexedBlock>() + 8;
/// In addition.
const END_BYTES_MORE: usize = 4096;

/// The name of a block file's index.
#[must_use]
pub fn index_name(block_file: &str) -> String {
    let stem = block_file.strip_suffix(".strata").unwrap_or(block_file);
    format!("{stem}.index")
}

/// What an index says of one block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) header: BlockHeader,
    /// Offset of the block in its file.
    pub(crate) offset: u64,
    /// Offset of its summary in the index, as far as that is there.
    summary_at: u64,
    /// How much of it is there.
    summary_len: u32,
    summary_crc: u32,
}

/// The index of a sealed file.
#[derive(Debug)]
pub(crate) struct Index {
    name: String,
    pub(crate) entries: Vec<Entry>,
    form: Form,
}

#[derive(Debug)]
enum Form {
    /// Whole summaries.
    Summaries,
    Slices(Vec<Group>),
}

impl Index {
    /// The index of a file, if there is one that matches.
    pub(crate) fn read(disk: &dyn Disk, recording: &Recording, entry: &BlockFile) -> Option<Self> {
        if !entry.sealed {
            return None;
        }
        let name = index_name(&entry.name);
        let file = disk.open(&name, false).ok()?;
        let size = file.size().ok()?;
        let blocks = usize::try_from(entry.blocks).ok()?;
        if blocks > BLOCKS_MAX {
            return None;
        }
        let end = End::read(file.as_ref(), size, blocks)?;
        let (entries, form) = match &end {
            End::Slices(bytes) => slices::parse(bytes, size, blocks)?,
            End::Summaries(headers) => (summaries::parse(headers, size)?, Form::Summaries),
        };
        let is_of = |header: &BlockHeader| {
            (header.recording, header.hash_seed) == (recording.id, recording.hash_seed)
        };
        let ours = entries.len() == blocks && entries.iter().all(|entry| is_of(&entry.header));
        let offset = entries.last().map_or(0, |last| last.end());
        (ours && offset == entry.bytes).then_some(Self {
            name,
            entries,
            form,
        })
    }

    /// Numbers of the blocks with promotions.
    pub(crate) fn promotions(&self) -> Vec<usize> {
        let entries = self.entries.iter().enumerate();
        let promotes = entries.filter(|(_, entry)| entry.header.promotes());
        promotes.map(|(n, _)| n).collect()
    }

    /// Numbers of the blocks that may match.
    pub(crate) fn search(&self, disk: &dyn Disk, select: &Select) -> Vec<usize> {
        if !select.asks_summaries() {
            let may =
                |&n: &usize| select.wants(n) && select.may_match(&self.entries[n].header, |_| true);
            return (0..self.entries.len()).filter(may).collect();
        }
        match &self.form {
            Form::Summaries => {
                let mut found = summaries::search(self, disk, select);
                found.retain(|&number| select.wants(number));
                found
            }
            Form::Slices(groups) => {
                let file = disk.open(&self.name, false).ok();
                let file = file.as_deref();
                let groups = groups.iter();
                let found = groups.flat_map(|group| group.search(file, &self.entries, select));
                found.collect()
            }
        }
    }

    /// The summary of a block, if it is intact in the index: perhaps without its filter, and then it
    /// excludes nothing.
    pub(crate) fn summary(&self, disk: &dyn Disk, number: usize) -> Option<Summary> {
        let file = disk.open(&self.name, false).ok()?;
        let bytes = self.entries[number].summary(file.as_ref()).ok()??;
        match self.form {
            Form::Summaries => Summary::parse(&bytes).ok(),
            Form::Slices(_) => Summary::parse_counts(&bytes).ok(),
        }
    }
}

impl Entry {
    /// Where the next block begins.
    fn end(&self) -> u64 {
        self.offset.saturating_add(self.header.stored_len() as u64)
    }

    /// Where the next summary begins.
    fn summary_end(&self) -> u64 {
        self.summary_at.saturating_add(self.summary_len.into())
    }

    /// What the index has of its summary; `None` if it is damaged.
    fn summary(&self, file: &dyn DiskFile) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = vec![0; self.summary_len as usize];
        let read = file.read_at(&mut bytes, self.summary_at)?;
        let is_whole = read == bytes.len() && crc32c::crc32c(&bytes) == self.summary_crc;
        Ok(is_whole.then_some(bytes))
    }
}

/// The end of an index, from the headers to the footer, which is intact.
enum End {
    Slices(Vec<u8>),
    /// Headers only.
    Summaries(Vec<u8>),
}

impl End {
    fn read(file: &dyn DiskFile, size: u64, blocks: usize) -> Option<Self> {
        let guess = blocks.checked_mul(END_BYTES)?.checked_add(END_BYTES_MORE)? as u64;
        let mut end = read_end(file, size, size.min(guess))?;
        let (rest, footer) = SummariesFooter::ref_from_suffix(&end).ok()?;
        if footer.magic == summaries::MAGIC {
            let headers = rest.get(rest.len().checked_sub(blocks.checked_mul(HEADER_LEN)?)?..)?;
            let fits =
                footer.blocks.get() == blocks as u64 && footer.crc.get() == crc32c::crc32c(headers);
            return fits.then(|| Self::Summaries(headers.to_vec()));
        }
        let footer = *IndexFooter::ref_from_suffix(&end).ok()?.1;
        if footer.magic != MAGIC || footer.blocks.get() != blocks as u64 {
            return None;
        }
        let len = slices::end_len(blocks, &footer)?;
        if len > end.len() as u64 {
            end = read_end(file, size, len)?;
        }
        let start = end.len().checked_sub(usize::try_from(len).ok()?)?;
        end.drain(..start);
        let checked = end.get(..end.len().checked_sub(size_of_val(&footer.crc))?)?;
        (footer.crc.get() == crc32c::crc32c(checked)).then_some(Self::Slices(end))
    }
}

/// The last `len` bytes of a file; `None` if it has fewer.
fn read_end(file: &dyn DiskFile, size: u64, len: u64) -> Option<Vec<u8>> {
    let start = size.checked_sub(len)?;
    let mut end = vec![0; usize::try_from(len).ok()?];
    (file.read_at(&mut end, start).ok()? == end.len()).then_some(end)
}

/// What is wrong with a block file's index. No data is lost by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexProblem {
    /// Where.
    pub offset: u64,
    /// What.
    pub problem: &'static str,
    /// Whether the bytes there may never have reached the disk: indexes are not synced, so a power
    /// failure may leave an end missing or sectors of zeros.
    pub is_torn: bool,
}

/// What is wrong with a block file's index, given the blocks that were found in the file itself by their
/// offset.
///
/// # Errors
///
/// If it cannot be read.
pub fn verify_index(
    disk: &dyn Disk,
    recording: &Recording,
    entry: &BlockFile,
    blocks: &BTreeMap<u64, (BlockHeader, Vec<ClassCount>)>,
) -> io::Result<Option<IndexProblem>> {
    let name = index_name(&entry.name);
    if !entry.sealed || !disk.exists(&name) {
        return Ok(None);
    }
    let file = disk.open(&name, false)?;
    let found = |at: Range<u64>, problem: &'static str| -> io::Result<Option<IndexProblem>> {
        Ok(Some(IndexProblem {
            offset: at.start,
            problem,
            is_torn: has_zero_sector(file.as_ref(), at)?,
        }))
    };
    let size = file.size()?;
    let Some(index) = Index::read(disk, recording, entry) else {
        // Its end may not say itself where it starts: it is after this.
        let end = entry.blocks.saturating_mul(END_BYTES as u64);
        let at = size.saturating_sub(end.saturating_add(END_BYTES_MORE as u64));
        let problem = "the index is damaged or does not fit its block file, which is searched \
                       without the index; nothing is lost: delete the index";
        return found(at..size, problem);
    };
    for block in &index.entries {
        let at = block.summary_at;
        let range = at..block.summary_end();
        let Some(bytes) = block.summary(file.as_ref())? else {
            let problem = "the checksum of the summary here does not match, so searches read the \
                           block; nothing is lost: delete the index";
            return found(range, problem);
        };
        let counts = match index.form {
            Form::Summaries => Summary::parse(&bytes),
            Form::Slices(_) => Summary::parse_counts(&bytes),
        };
        let says = counts.map(|summary| (block.header, summary.counts)).ok();
        // A block that is damaged itself is not among them.
        let is = blocks.get(&block.offset);
        if is.is_some_and(|is| says.as_ref() != Some(is)) {
            let problem = "the index does not match the block, so searches may miss packets; \
            nothing is lost: delete the index";
            return Ok(Some(IndexProblem {
                offset: at,
                problem,
                is_torn: false,
            }));
        }
    }
    let Form::Slices(groups) = &index.form else {
        return Ok(None);
    };
    for slice in groups.iter().flat_map(Group::slices) {
        if slice.read(file.as_ref())?.is_none() {
            let problem = "the checksum of the filters here does not match, so searches read more \
                           blocks; nothing is lost: delete the index";
            return found(slice.range(), problem);
        }
    }
    Ok(None)
}

/// What a disk writes or does not write as a whole, at least.
const SECTOR_LEN: usize = 512;
const SECTOR: u64 = SECTOR_LEN as u64;

/// Whether a sector that these bytes touch has nothing but zeros, as where it was never written, or the
/// file ends before them.
fn has_zero_sector(file: &dyn DiskFile, range: Range<u64>) -> io::Result<bool> {
    let mut offset = range.start & !SECTOR.wrapping_sub(1);
    let mut sector = [0; SECTOR_LEN];
    if range.is_empty() {
        return Ok(true);
    }
    while offset < range.end {
        let read = file.read_at(&mut sector, offset)?;
        let is_zero = sector.iter().take(read).all(|byte| *byte == 0);
        if read == 0 || is_zero {
            return Ok(true);
        }
        offset = offset.saturating_add(SECTOR);
    }
    Ok(false)
}
