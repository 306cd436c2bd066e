//! An index being written.

use std::io;

use strata_blocks::{BlockHeader, Bloom, FilterLine, HEADER_LEN};
use zerocopy::IntoBytes;

use crate::disk::{Disk, DiskFile};
use crate::layout::{IndexFooter, IndexedBlock, IndexedGroup, IndexedSlice};

use super::slices::{Sliced, slices_for};
use super::{BLOCKS_MAX, MAGIC, index_name};

/// Maximum number of blocks of a group.
const GROUP_BLOCKS: usize = 128;
/// A group ends once its blocks' filters have this number of bytes.
const GROUP_BYTES: usize = 4 << 20;

/// An index being written. Memory: 136 bytes per block, and the filters of one group, which are
/// 4 MiB and one filter at most.
pub(crate) struct IndexWriter {
    file: Box<dyn DiskFile>,
    at: u64,
    headers: Vec<u8>,
    blocks: Vec<IndexedBlock>,
    groups: Vec<IndexedGroup>,
    slices: Vec<IndexedSlice>,
    open: OpenGroup,
    /// What is written at once.
    buffer: Vec<u8>,
}

/// The group that blocks are being added to.
#[derive(Default)]
struct OpenGroup {
    /// The counts of its blocks.
    counts: Vec<u8>,
    /// The lines of their filters, one filter after another.
    lines: Vec<FilterLine>,
    /// How many lines each filter has.
    lens: Vec<usize>,
}

impl IndexWriter {
    pub(crate) fn create(disk: &dyn Disk, block_file: &str) -> io::Result<Self> {
        Ok(Self {
            file: disk.create_copy(&index_name(block_file))?,
            at: 0,
            headers: Vec::new(),
            blocks: Vec::new(),
            groups: Vec::new(),
            slices: Vec::new(),
            open: OpenGroup::default(),
            buffer: Vec::new(),
        })
    }

    /// Adds a block, given its bytes in the file.
    pub(crate) fn add(&mut self, block: &[u8]) -> io::Result<()> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let header = block.first_chunk().map(BlockHeader::parse);
        let Some(Ok(header)) = header else {
            return Err(invalid());
        };
        if self.blocks.len() >= BLOCKS_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let after = block.get(HEADER_LEN..);
        let after = after.and_then(|rest| rest.get(header.body_len as usize..));
        let summary = after.and_then(|rest| rest.get(..header.summary_len as usize));
        let summary = summary.ok_or_else(invalid)?;
        let filter = Bloom::of(summary).ok().and_then(Bloom::lines);
        let filter = filter.ok_or_else(invalid)?;
        let counts_len = summary.len().checked_sub(size_of_val(filter));
        let counts = counts_len.and_then(|len| summary.get(..len));
        let counts = counts.ok_or_else(invalid)?;
        let filter_len = u32::try_from(size_of_val(filter)).map_err(|_| invalid())?;
        self.headers.extend_from_slice(&block[..HEADER_LEN]);
        self.blocks.push(IndexedBlock {
            filter_len: filter_len.into(),
            counts_crc: crc32c::crc32c(counts).into(),
        });
        let group = &mut self.open;
        group.counts.extend_from_slice(counts);
        group.lines.extend_from_slice(filter);
        group.lens.push(filter.len());
        if group.lens.len() == GROUP_BLOCKS || size_of_val(&group.lines[..]) >= GROUP_BYTES {
            self.end_group()?;
        }
        Ok(())
    }

    /// Writes the blocks added since the last group.
    fn end_group(&mut self) -> io::Result<()> {
        let OpenGroup {
            counts,
            lines,
            lens,
        } = &mut self.open;
        let slices = slices_for(size_of_val(&lines[..]));
        let to_u32 = |n: usize| u32::try_from(n).map_err(|_| io::ErrorKind::FileTooLarge);
        self.groups.push(IndexedGroup {
            blocks: to_u32(lens.len())?.into(),
            slices: slices.into(),
        });
        let buffer = &mut self.buffer;
        buffer.clear();
        buffer.append(counts);
        for n in 0..slices {
            let start = buffer.len();
            let mut rest = &lines[..];
            for &len in &*lens {
                let (filter, others) = rest.split_at(len);
                rest = others;
                let range = Sliced { lines: len, slices }.range(n);
                buffer.extend_from_slice(filter[range].as_flattened());
            }
            let slice = &buffer[start..];
            self.slices.push(IndexedSlice {
                len: to_u32(slice.len())?.into(),
                crc: crc32c::crc32c(slice).into(),
            });
        }
        self.file.write_at(buffer, self.at)?;
        self.at = self.at.saturating_add(buffer.len() as u64);
        lines.clear();
        lens.clear();
        Ok(())
    }

    pub(crate) fn finish(mut self) -> io::Result<()> {
        if !self.open.lens.is_empty() {
            self.end_group()?;
        }
        let to_u32 = |n: usize| u32::try_from(n).map_err(|_| io::ErrorKind::FileTooLarge);
        let mut end = self.headers;
        end.extend_from_slice(self.blocks.as_bytes());
        end.extend_from_slice(self.groups.as_bytes());
        end.extend_from_slice(self.slices.as_bytes());
        let mut footer = IndexFooter {
            magic: MAGIC,
            blocks: (self.blocks.len() as u64).into(),
            groups: to_u32(self.groups.len())?.into(),
            slices: to_u32(self.slices.len())?.into(),
            crc: 0.into(),
        };
        const COUNTED: usize = size_of::<IndexFooter>() - size_of::<u32>();
        let crc = crc32c::crc32c(&end);
        footer.crc = crc32c::crc32c_append(crc, &footer.as_bytes()[..COUNTED]).into();
        end.extend_from_slice(footer.as_bytes());
        self.file.write_at(&end, self.at)
    }
}
