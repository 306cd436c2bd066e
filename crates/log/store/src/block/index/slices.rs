//! Filters in slices: which lines are in which slice, and looking up fingerprints.
//!
//! The lines of a split-block filter are in the order of the fingerprints' high halves. A group of
//! blocks has 2^n slices, and slice k has those lines of each block's filter in which fingerprints
//! are whose highest n bits are k. So one slice answers for one fingerprint in all blocks of the
//! group, however many lines each filter has. A line that two slices need is in both.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use strata_blocks::{BlockHeader, FilterLine, HEADER_LEN, line_may_hold, line_of};
use zerocopy::FromBytes;

use crate::block::select::Select;
use crate::disk::DiskFile;
use crate::layout::{IndexFooter, IndexedBlock, IndexedGroup, IndexedSlice};

use super::{Entry, FOOTER_LEN, Form};

/// A slice is to have about this number of bytes: what a disk reads in little more time than it
/// takes to find the place.
const SLICE_BYTES: usize = 48 << 10;

/// Bytes of a line.
const LINE_LEN: usize = size_of::<FilterLine>();

/// How many slices a group is to have whose filters have `filter_bytes` bytes.
pub(super) fn slices_for(filter_bytes: usize) -> u32 {
    let slices = (filter_bytes / SLICE_BYTES).next_power_of_two();
    u32::try_from(slices).expect("filters of a few MiB")
}

/// A filter in slices.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sliced {
    pub(super) lines: usize,
    /// A power of two.
    pub(super) slices: u32,
}

impl Sliced {
    /// The lines that a slice has.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "slice < slices, a power of two of at most 2^31, so all products are below 2^32; a line is \
                  below the number of lines"
    )]
    pub(super) fn range(self, slice: u32) -> Range<usize> {
        if self.lines == 0 {
            return 0..0;
        }
        let width = (1 << u32::BITS) / u64::from(self.slices);
        let first = u64::from(slice) * width;
        let line = |high: u64| line_of(high << u32::BITS, self.lines);
        line(first)..line(first + width - 1) + 1
    }
}

/// The slice of a fingerprint.
fn slice_of(key: u64, slices: u32) -> u32 {
    let slice = line_of(key, slices as usize);
    u32::try_from(slice).expect("below the number of slices")
}

/// A place in an index.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slice {
    at: u64,
    len: u32,
    crc: u32,
}

impl Slice {
    /// Where it is.
    pub(super) fn range(&self) -> Range<u64> {
        self.at..self.at.saturating_add(self.len.into())
    }

    /// Its bytes; `None` if they are damaged.
    pub(super) fn read(&self, file: &dyn DiskFile) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = vec![0; self.len as usize];
        let read = file.read_at(&mut bytes, self.at)?;
        let is_whole = read == bytes.len() && crc32c::crc32c(&bytes) == self.crc;
        Ok(is_whole.then_some(bytes))
    }
}

/// Blocks whose filters are sliced together.
#[derive(Debug)]
pub(super) struct Group {
    /// Number of its first block.
    first: usize,
    /// How many lines the filter of each block has.
    lens: Vec<usize>,
    slices: Vec<Slice>,
}

impl Group {
    pub(super) fn slices(&self) -> impl Iterator<Item = &Slice> {
        self.slices.iter()
    }

    /// Numbers of the blocks that may match, of all the file's entries.
    pub(super) fn search(
        &self,
        file: Option<&dyn DiskFile>,
        entries: &[Entry],
        select: &Select,
    ) -> Vec<usize> {
        let read = Lookup {
            group: self,
            file,
            read: RefCell::default(),
        };
        let blocks = 0..self.lens.len();
        let found = blocks.filter(|&block| {
            let number = self.first.saturating_add(block);
            if !select.wants(number) {
                return false;
            }
            let header = &entries[number].header;
            select.may_match(header, |key| read.may_hold(block, key))
        });
        found
            .map(|block| self.first.saturating_add(block))
            .collect()
    }

    fn slice_count(&self) -> u32 {
        u32::try_from(self.slices.len()).expect("its number was an u32")
    }
}

/// A search in a group, and the slices that it has read.
struct Lookup<'a> {
    group: &'a Group,
    file: Option<&'a dyn DiskFile>,
    /// By number; `None` for one that cannot be read.
    read: RefCell<BTreeMap<u32, Option<ReadSlice>>>,
}

/// A slice in memory.
struct ReadSlice {
    bytes: Vec<u8>,
    /// Which of each filter's lines are in it, and the first one's place there.
    parts: Vec<(Range<usize>, usize)>,
}

impl Lookup<'_> {
    /// Whether a block of the group may hold a key. What cannot be read excludes nothing.
    fn may_hold(&self, block: usize, key: u64) -> bool {
        let lines = self.group.lens[block];
        if lines == 0 {
            return true;
        }
        let number = slice_of(key, self.group.slice_count());
        let mut read = self.read.borrow_mut();
        let slice = read.entry(number).or_insert_with(|| self.read(number));
        slice.as_ref().is_none_or(|slice| {
            let (range, place) = &slice.parts[block];
            let within = line_of(key, lines).checked_sub(range.start);
            let line = within.and_then(|within| within.checked_add(*place));
            let (lines, _) = slice.bytes.as_chunks();
            let line = line.and_then(|line| lines.get(line));
            // A key's line is in the key's slice: another place would be a crafted index's.
            line.is_none_or(|line| line_may_hold(line, key))
        })
    }

    fn read(&self, number: u32) -> Option<ReadSlice> {
        let slice = &self.group.slices[number as usize];
        let bytes = slice.read(self.file?).ok()??;
        let slices = self.group.slice_count();
        let mut place = 0_usize;
        let parts = self.group.lens.iter().map(|&lines| {
            let range = Sliced { lines, slices }.range(number);
            let at = place;
            place = place.saturating_add(range.len());
            (range, at)
        });
        let parts = parts.collect();
        // Lengths that do not fit are a crafted index's.
        let fits = Some(bytes.len()) == place.checked_mul(LINE_LEN);
        fits.then_some(ReadSlice { bytes, parts })
    }
}

/// Bytes of an index from the headers on; `None` if its footer makes no sense.
pub(super) fn end_len(blocks: usize, footer: &IndexFooter) -> Option<u64> {
    const OF_BLOCK: usize = HEADER_LEN + size_of::<IndexedBlock>();
    let parts = [
        (blocks as u64, OF_BLOCK),
        (footer.groups.get().into(), size_of::<IndexedGroup>()),
        (footer.slices.get().into(), size_of::<IndexedSlice>()),
    ];
    let mut parts = parts.into_iter();
    parts.try_fold(FOOTER_LEN as u64, |sum, (count, len)| {
        sum.checked_add(count.checked_mul(len as u64)?)
    })
}

/// Blocks and groups of an index of `size` bytes, from its end: [`end_len`] bytes, whose checksum
/// matches.
pub(super) fn parse(end: &[u8], size: u64, blocks: usize) -> Option<(Vec<Entry>, Form)> {
    let (headers, rest) = <[[u8; HEADER_LEN]]>::ref_from_prefix_with_elems(end, blocks).ok()?;
    let (listed, rest) = <[IndexedBlock]>::ref_from_prefix_with_elems(rest, blocks).ok()?;
    let (rest, footer) = IndexFooter::ref_from_suffix(rest).ok()?;
    let (groups, slices) = (footer.groups.get(), footer.slices.get());
    let (groups, rest) =
        <[IndexedGroup]>::ref_from_prefix_with_elems(rest, groups as usize).ok()?;
    let slices = <[IndexedSlice]>::ref_from_bytes_with_elems(rest, slices as usize).ok()?;
    let (mut listed, mut slices) = (headers.iter().zip(listed), slices.iter());
    let (mut entries, mut parsed) = (Vec::with_capacity(blocks), Vec::new());
    let (mut offset, mut at) = (0, 0_u64);
    for group in groups {
        let first = entries.len();
        let mut lens = Vec::new();
        for _ in 0..group.blocks.get() {
            let (header, block) = listed.next()?;
            let header = BlockHeader::parse(header).ok()?;
            let filter_len = block.filter_len.get();
            let entry = Entry {
                header,
                offset,
                summary_at: at,
                summary_len: header.summary_len.checked_sub(filter_len)?,
                summary_crc: block.counts_crc.get(),
            };
            offset = entry.end();
            at = at.checked_add(entry.summary_len.into())?;
            entries.push(entry);
            lens.push((filter_len as usize).wrapping_div(LINE_LEN));
        }
        if !group.slices.get().is_power_of_two() {
            return None;
        }
        let mut of_group = Vec::new();
        for _ in 0..group.slices.get() {
            let slice = slices.next()?;
            of_group.push(Slice {
                at,
                len: slice.len.get(),
                crc: slice.crc.get(),
            });
            at = at.checked_add(slice.len.get().into())?;
        }
        parsed.push(Group {
            first,
            lens,
            slices: of_group,
        });
    }
    let is_all = listed.next().is_none() && slices.next().is_none();
    (is_all && at.checked_add(end.len() as u64) == Some(size))
        .then_some((entries, Form::Slices(parsed)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A fingerprint's line is in the fingerprint's slice, and slices are in order.
        #[test]
        fn a_keys_line_is_in_the_keys_slice(
            lines in 1_usize..9_000,
            log_slices in 0_u32..8,
            key in any::<u64>(),
        ) {
            let sliced = Sliced { lines, slices: 1 << log_slices };
            let range = sliced.range(slice_of(key, sliced.slices));
            prop_assert!(range.contains(&line_of(key, lines)));
            let mut covered = 0;
            for n in 0..sliced.slices {
                let range = sliced.range(n);
                prop_assert!(range.start <= covered && range.end >= covered && !range.is_empty());
                covered = range.end;
            }
            prop_assert_eq!(covered, lines);
        }
    }
}
