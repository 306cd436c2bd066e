//! Walks through a block file without an index, from block to block; after damage, to the next one.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;
use std::io::ErrorKind;

use strata_blocks::{
    ALIGNMENT, BlockHeader, Definitions, HEADER_LEN, RelayedHeader, SEGMENTS_AT, Summary, assemble,
};

use crate::block::content::{content, settle};
use crate::block::index::Entry;
use crate::block::select::Select;
use crate::block::{Block, Buffer};
use crate::disk::{Disk, DiskFile};
use crate::error::{Damage, MissingFile, StoreError, io_error};
use crate::manifest::{BlockFile, Recording};

/// A file that is being read.
pub(crate) struct Current<'a> {
    entry: &'a BlockFile,
    file: Box<dyn DiskFile>,
    pub(crate) named: String,
    offset: u64,
    pub(crate) size: u64,
    /// Looking for the next block after damage.
    searching: bool,
    /// Only blocks that hold promotions are wanted.
    pub(crate) promotions_only: bool,
}

impl Current<'_> {
    /// A block whose header comes from an index.
    pub(crate) fn indexed(&self, entry: &Entry) -> Result<Block, StoreError> {
        let read = content(self.file.as_ref(), &entry.header, entry.offset);
        settle(&self.named, entry, read)
    }
}

pub(crate) enum Step {
    Block(Box<Block>),
    Skipped,
    EndOfFile,
}

pub(crate) fn open_file<'a>(
    disk: &dyn Disk,
    entry: &'a BlockFile,
) -> Result<Current<'a>, StoreError> {
    let named = disk.display(&entry.name);
    let opened = disk.open(&entry.name, false);
    let file = match opened {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(StoreError::Damage(Damage {
                file: named,
                offset: 0,
                problem: format!("the file is missing, with {} packets", entry.packets),
                missing: Some(MissingFile {
                    part: None,
                    packets: entry.packets,
                }),
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

/// Reads the block at the current offset, or skips what is not a block.
pub(crate) fn step(
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
                problem: format!(
                    "the file ends here, but according to the manifest it has {stated} bytes"
                ),
                missing: None,
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
    current.offset = current.offset.saturating_add(problem.passes_over);
    if std::mem::replace(&mut current.searching, true) {
        return Ok(Step::Skipped);
    }
    // An incomplete file may end in a torn block, which is cut off and is not damage; unless an
    // intact block follows, as then it was not the tail.
    if !current.entry.sealed && !block_follows(current, recording)? {
        current.offset = end;
        return Ok(Step::EndOfFile);
    }
    if !current.entry.sealed && recording.session.is_some() {
        // With several threads writing, a later block may have been completed before the crash and
        // this one not. The sequence numbers say what it held.
        return Ok(Step::Skipped);
    }
    Err(StoreError::Damage(Damage {
        file: current.named.clone(),
        offset,
        problem: problem.text,
        missing: None,
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
    /// For a block with a valid header, whose length can be trusted. Searching inside it would also
    /// make a crafted file take quadratic time.
    fn within(header: &BlockHeader, text: &str) -> Self {
        Self {
            text: text.to_owned(),
            passes_over: header.stored_len() as u64,
        }
    }
}

/// Whether a block belongs to a recording. The key of its fingerprints is random and in no packet,
/// so a packet's payload cannot pass for a block.
fn is_of(header: &Header, recording: &Recording) -> bool {
    header.identity() == (recording.id, recording.hash_seed)
}

/// The header of either kind of block.
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
        offset = offset.saturating_add(ALIGNMENT as u64);
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
    let offset = current.offset;
    let lens = [
        HEADER_LEN as u64,
        header.body_len.into(),
        header.summary_len.into(),
    ];
    let content_end = lens.into_iter().fold(offset, u64::saturating_add);
    let end = offset.saturating_add(header.stored_len() as u64);
    if content_end > current.size {
        return Ok(Err(String::from("the file ends within a block").into()));
    }
    let mut summary = vec![0; summary_len];
    let body_at = offset.saturating_add(HEADER_LEN as u64);
    let after_body = body_at.saturating_add(header.body_len.into());
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
    let wanted = if current.promotions_only {
        header.promotes()
    } else {
        select.may_match(&header, |key| summary.may_hold(key))
    };
    if !wanted {
        current.offset = end;
        return Ok(Ok(Step::Skipped));
    }
    let mut body = Buffer::default();
    // One without packets may hold definitions of a relay's other blocks.
    if !select.without_records || header.packets == 0 {
        body = Buffer::of_any_content(body_len);
        read_at(body.as_mut_slice(), body_at)?;
        if crc32c::crc32c(&body) != header.body_crc {
            return Ok(Err(NoBlock::within(
                &header,
                "the records' checksum does not match",
            )));
        }
    }
    current.offset = end;
    Ok(Ok(Step::Block(Box::new(Block {
        header,
        summary,
        file: current.named.clone(),
        offset,
        ends: (content_end, end),
        incomplete: 0,
        undefined: 0,
        damaged_segments: Vec::new(),
        body,
    }))))
}

/// As [`read_block`], for a block of segments.
fn read_relayed(
    current: &mut Current<'_>,
    header: &RelayedHeader,
    select: &Select,
    definitions: &BTreeMap<u16, Definitions>,
) -> Result<Result<Step, NoBlock>, StoreError> {
    let offset = current.offset;
    let end = offset.saturating_add(header.stored_len() as u64);
    if end > current.size {
        return Ok(Err(String::from("the file ends within a block").into()));
    }
    current.offset = end;
    if select.metadata_only {
        return Ok(Ok(Step::Skipped));
    }
    let mut segments = vec![0; header.used as usize];
    let segments_at = offset.saturating_add(SEGMENTS_AT as u64);
    let read = current.file.read_at(&mut segments, segments_at);
    read.map_err(io_error(current.named.clone(), "read"))?;
    let none = Definitions::default();
    let known = definitions.get(&header.worker).unwrap_or(&none);
    let mut assembled = assemble(header, &segments, known);
    // One of which nothing can be read is returned, so that its reader can say so.
    let is_told_of = assembled.undefined > 0 && !header.salvaged;
    if !is_told_of && !select.may_match(&assembled.header, |key| assembled.summary.may_hold(key)) {
        return Ok(Ok(Step::Skipped));
    }
    if select.without_records && assembled.header.packets > 0 {
        assembled.body.clear();
    }
    Ok(Ok(Step::Block(Box::new(Block {
        header: assembled.header,
        summary: assembled.summary,
        file: current.named.clone(),
        offset,
        ends: (end, end),
        incomplete: assembled.incomplete,
        // A switch that was lost had not sent all definitions yet: that is no damage.
        undefined: if header.salvaged {
            0
        } else {
            assembled.undefined
        },
        damaged_segments: assembled
            .damaged
            .iter()
            .map(|at| segments_at.saturating_add(*at as u64))
            .collect(),
        body: assembled.body.into(),
    }))))
}
