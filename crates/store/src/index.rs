//! The index of a block file: the headers and summaries of its blocks without the records between
//! them, so that a search reads a fiftieth of the file, in one go.
//!
//! ```text
//! summary of each block, one after another
//! header of each block (128 bytes each)
//! magic "STRATAI1" | blocks u64 | CRC-32C of the headers u32
//! ```
//!
//! Nothing depends on it: it is never synced, and where it is missing or does not match the file,
//! the file itself is read.

use std::io;
use std::ops::Range;
use std::thread;

use strata_blocks::{BlockHeader, Bloom, HEADER_LEN, Summary};
use zerocopy::{FromBytes, IntoBytes};

use crate::disk::{Disk, DiskFile};
use crate::layout::IndexFooter;
use crate::manifest::{BlockFile, Recording};
use crate::select::Select;

const MAGIC: [u8; 8] = *b"STRATAI1";
const FOOTER_LEN: usize = size_of::<IndexFooter>();
/// A file with more blocks has no index: its headers would take too much memory.
const BLOCKS_MAX: usize = 1 << 18;
/// Bytes of summaries that justify a thread of their own.
const THREAD_BYTES: u64 = 4 << 20;
/// Bytes of summaries read at once.
const READ_BYTES: usize = 1 << 20;
const THREADS_MAX: usize = 4;

/// The name of a block file's index.
#[must_use]
pub fn index_name(block_file: &str) -> String {
    let stem = block_file.strip_suffix(".strata").unwrap_or(block_file);
    format!("{stem}.index")
}

/// An index being written.
pub(crate) struct IndexWriter {
    file: Box<dyn DiskFile>,
    at: u64,
    headers: Vec<u8>,
}

impl IndexWriter {
    pub(crate) fn create(disk: &dyn Disk, block_file: &str) -> io::Result<Self> {
        Ok(Self {
            file: disk.create(&index_name(block_file))?,
            at: 0,
            headers: Vec::new(),
        })
    }

    /// Adds a block, given its bytes in the file.
    pub(crate) fn add(&mut self, block: &[u8]) -> io::Result<()> {
        let header = block.first_chunk().map(BlockHeader::parse);
        let Some(Ok(header)) = header else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        if self.headers.len() >= BLOCKS_MAX * HEADER_LEN {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let start = HEADER_LEN + header.body_len as usize;
        let summary = &block[start..start + header.summary_len as usize];
        self.file.write_at(summary, self.at)?;
        self.at += summary.len() as u64;
        self.headers.extend_from_slice(&block[..HEADER_LEN]);
        Ok(())
    }

    pub(crate) fn finish(mut self) -> io::Result<()> {
        let footer = IndexFooter {
            magic: MAGIC,
            blocks: ((self.headers.len() / HEADER_LEN) as u64).into(),
            crc: crc32c::crc32c(&self.headers).into(),
        };
        self.headers.extend_from_slice(footer.as_bytes());
        self.file.write_at(&self.headers, self.at)
    }
}

/// What an index says of one block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) header: BlockHeader,
    /// Offset of the block in its file.
    pub(crate) offset: u64,
    /// Offset of its summary in the index.
    summary_at: u64,
}

/// The index of a sealed file.
#[derive(Debug)]
pub(crate) struct Index {
    name: String,
    pub(crate) entries: Vec<Entry>,
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
        let headers_len = blocks.checked_mul(HEADER_LEN)?;
        let end_len = headers_len.checked_add(FOOTER_LEN)?;
        let headers_at = size.checked_sub(end_len as u64)?;
        if blocks > BLOCKS_MAX {
            return None;
        }
        let mut end = vec![0; end_len];
        if file.read_at(&mut end, headers_at).ok()? < end_len {
            return None;
        }
        let (headers, footer) = end.split_at(headers_len);
        let footer = IndexFooter::ref_from_bytes(footer).ok()?;
        let fits = footer.magic == MAGIC
            && footer.blocks.get() == entry.blocks
            && footer.crc.get() == crc32c::crc32c(headers);
        if !fits {
            return None;
        }
        let mut entries = Vec::with_capacity(blocks);
        let (mut offset, mut summary_at) = (0, 0);
        for bytes in headers.chunks_exact(HEADER_LEN) {
            let header = BlockHeader::parse(bytes.first_chunk()?).ok()?;
            if (header.recording, header.hash_seed) != (recording.id, recording.hash_seed) {
                return None;
            }
            entries.push(Entry {
                header,
                offset,
                summary_at,
            });
            offset += header.stored_len() as u64;
            summary_at += u64::from(header.summary_len);
        }
        (offset == entry.bytes && summary_at == headers_at).then_some(Self { name, entries })
    }

    /// Numbers of the blocks with promotions.
    pub(crate) fn promotions(&self) -> Vec<usize> {
        let entries = self.entries.iter().enumerate();
        let promotes = entries.filter(|(_, entry)| entry.header.promotes());
        promotes.map(|(n, _)| n).collect()
    }

    /// Numbers of the blocks that may match.
    pub(crate) fn search(&self, disk: &dyn Disk, select: &Select) -> Vec<usize> {
        let blocks = 0..self.entries.len();
        if !select.asks_summaries() {
            let may = |&n: &usize| select.may_match(&self.entries[n].header, |_| true);
            return blocks.filter(may).collect();
        }
        let bytes = self.entries.last().map_or(0, |last| last.summary_at);
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let max = cores.min(THREADS_MAX);
        let worth = usize::try_from(bytes / THREAD_BYTES);
        let threads = worth.map_or(max, |worth| worth.clamp(1, max));
        let each = blocks.len().div_ceil(threads).max(1);
        let parts: Vec<Range<usize>> = blocks
            .clone()
            .step_by(each)
            .map(|start| start..(start + each).min(blocks.end))
            .collect();
        let Some((first, others)) = parts.split_first() else {
            return Vec::new();
        };
        thread::scope(|scope| {
            let search = |part: &Range<usize>| self.search_part(disk, select, part.clone());
            let running: Vec<_> = others
                .iter()
                .map(|part| (part, scope.spawn(move || search(part))))
                .collect();
            let mut found = search(first);
            for (part, thread) in running {
                found.extend(thread.join().unwrap_or_else(|_| search(part)));
            }
            found
        })
    }

    fn search_part(&self, disk: &dyn Disk, select: &Select, blocks: Range<usize>) -> Vec<usize> {
        let mut found = Vec::new();
        let file = disk.open(&self.name, false).ok();
        let mut buffer = Vec::new();
        let mut buffered = 0..0_u64;
        let end = self.entries[blocks.end - 1];
        let part_end = end.summary_at + u64::from(end.header.summary_len);
        for n in blocks {
            let entry = &self.entries[n];
            let header = &entry.header;
            if !select.may_match(header, |_| true) {
                continue;
            }
            let (start, len) = (entry.summary_at, header.summary_len as usize);
            if start < buffered.start || start + len as u64 > buffered.end {
                let wanted = (part_end - start).min(READ_BYTES.max(len) as u64);
                let wanted = usize::try_from(wanted).expect("no more than is read at once");
                buffer.resize(wanted, 0);
                let read = file.as_ref().map(|file| file.read_at(&mut buffer, start));
                buffered = match read {
                    Some(Ok(read)) => start..start + read as u64,
                    Some(Err(_)) | None => start..start,
                };
            }
            let at = usize::try_from(start - buffered.start).expect("within what was read");
            let bytes = at.checked_add(len).and_then(|end| buffer.get(at..end));
            let bytes = bytes.filter(|_| start + len as u64 <= buffered.end);
            let bytes = bytes.filter(|bytes| crc32c::crc32c(bytes) == header.summary_crc);
            let bloom = bytes.and_then(|bytes| Bloom::of(bytes).ok());
            // What cannot be read rules out nothing.
            if bloom.is_none_or(|bloom| select.may_match(header, |key| bloom.may_hold(key))) {
                found.push(n);
            }
        }
        found
    }

    /// The summary of a block, if it is intact in the index.
    pub(crate) fn summary(&self, disk: &dyn Disk, number: usize) -> Option<Summary> {
        let Entry {
            header, summary_at, ..
        } = &self.entries[number];
        let mut bytes = vec![0; header.summary_len as usize];
        let file = disk.open(&self.name, false).ok()?;
        let read = file.read_at(&mut bytes, *summary_at).ok()?;
        let whole = read == bytes.len() && crc32c::crc32c(&bytes) == header.summary_crc;
        Summary::parse(&bytes).ok().filter(|_| whole)
    }
}

/// What is wrong with a block file's index: offset and problem. No data is lost by it.
///
/// # Errors
///
/// If it cannot be read.
pub fn verify_index(
    disk: &dyn Disk,
    recording: &Recording,
    entry: &BlockFile,
) -> io::Result<Option<(u64, &'static str)>> {
    let name = index_name(&entry.name);
    if !entry.sealed || !disk.exists(&name) {
        return Ok(None);
    }
    let file = disk.open(&name, false)?;
    let Some(index) = Index::read(disk, recording, entry) else {
        let headers = entry.blocks.saturating_mul(HEADER_LEN as u64);
        let at = file.size()?.saturating_sub(headers + FOOTER_LEN as u64);
        let problem = "the index is torn or does not fit its block file, which is searched \
                       without it; nothing is lost: delete it";
        return Ok(Some((at, problem)));
    };
    for entry in &index.entries {
        let mut summary = vec![0; entry.header.summary_len as usize];
        let read = file.read_at(&mut summary, entry.summary_at)?;
        if read < summary.len() || crc32c::crc32c(&summary) != entry.header.summary_crc {
            let problem = "the checksum of the summary here does not match, so searches read the \
                           block; nothing is lost: delete the index";
            return Ok(Some((entry.summary_at, problem)));
        }
    }
    Ok(None)
}
