//! Searching an index of whole summaries, as older versions wrote it.
//!
//! ```text
//! summary of each block, one after another
//! header of each block (128 bytes each)
//! magic "STRATAI1" | blocks u64 | CRC-32C of the headers u32
//! ```

use std::ops::Range;
use std::thread;

use strata_blocks::{BlockHeader, Bloom, HEADER_LEN};

use crate::block::select::Select;
use crate::disk::Disk;
use crate::layout::SummariesFooter;

use super::{Entry, Index};

pub(super) const MAGIC: [u8; 8] = *b"STRATAI1";
/// Bytes of summaries that justify a thread of their own.
const THREAD_BYTES: u64 = 4 << 20;
/// Bytes of summaries read at once.
const READ_BYTES: usize = 1 << 20;
const THREADS_MAX: usize = 4;

/// The blocks of an index of `size` bytes, by their headers.
pub(super) fn parse(headers: &[u8], size: u64) -> Option<Vec<Entry>> {
    let mut entries = Vec::with_capacity(headers.len() / HEADER_LEN);
    let (mut offset, mut summary_at) = (0, 0_u64);
    for bytes in headers.as_chunks().0 {
        let header = BlockHeader::parse(bytes).ok()?;
        let entry = Entry {
            header,
            offset,
            summary_at,
            summary_len: header.summary_len,
            summary_crc: header.summary_crc,
        };
        offset = entry.end();
        summary_at = summary_at.checked_add(header.summary_len.into())?;
        entries.push(entry);
    }
    let end = headers.len().checked_add(size_of::<SummariesFooter>())?;
    (summary_at.checked_add(end as u64)? == size).then_some(entries)
}

/// Numbers of the blocks that may match.
pub(super) fn search(index: &Index, disk: &dyn Disk, select: &Select) -> Vec<usize> {
    let blocks = 0..index.entries.len();
    let bytes = index.entries.last().map_or(0, |last| last.summary_at);
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let max = cores.min(THREADS_MAX);
    let worth = usize::try_from(bytes / THREAD_BYTES);
    let threads = worth.map_or(max, |worth| worth.clamp(1, max));
    let each = blocks.len().div_ceil(threads).max(1);
    let parts: Vec<Range<usize>> = blocks
        .clone()
        .step_by(each)
        .map(|start| start..start.saturating_add(each).min(blocks.end))
        .collect();
    let Some((first, others)) = parts.split_first() else {
        return Vec::new();
    };
    thread::scope(|scope| {
        let search = |part: &Range<usize>| search_part(index, disk, select, part.clone());
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

fn search_part(
    index: &Index,
    disk: &dyn Disk,
    select: &Select,
    blocks: Range<usize>,
) -> Vec<usize> {
    let mut found = Vec::new();
    let file = disk.open(&index.name, false).ok();
    let mut buffer = Vec::new();
    let mut buffered = 0..0_u64;
    let last = index.entries[blocks.clone()].last();
    let part_end = last.map_or(0, |last| last.summary_end());
    for n in blocks {
        let entry = &index.entries[n];
        let header = &entry.header;
        if !select.may_match(header, |_| true) {
            continue;
        }
        let (start, len) = (entry.summary_at, header.summary_len as usize);
        let end = entry.summary_end();
        if start < buffered.start || end > buffered.end {
            let left = part_end.saturating_sub(start);
            let wanted = left.min(READ_BYTES.max(len) as u64);
            let wanted = usize::try_from(wanted).expect("no more than is read at once");
            buffer.resize(wanted, 0);
            let read = file.as_ref().map(|file| file.read_at(&mut buffer, start));
            buffered = match read {
                Some(Ok(read)) => start..start.saturating_add(read as u64),
                Some(Err(_)) | None => start..start,
            };
        }
        let at = usize::try_from(start.saturating_sub(buffered.start));
        let at = at.expect("within what was read");
        let bytes = at.checked_add(len).and_then(|end| buffer.get(at..end));
        let bytes = bytes.filter(|_| end <= buffered.end);
        let bytes = bytes.filter(|bytes| crc32c::crc32c(bytes) == header.summary_crc);
        let bloom = bytes.and_then(|bytes| Bloom::of(bytes).ok());
        // What cannot be read rules out nothing.
        if bloom.is_none_or(|bloom| select.may_match(header, |key| bloom.may_hold(key))) {
            found.push(n);
        }
    }
    found
}
