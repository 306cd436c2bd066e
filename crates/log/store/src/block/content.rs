//! Reading a block whose header is known from an index.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::io;

use strata_blocks::{BlockHeader, HEADER_LEN, Summary};

use crate::block::index::Entry;
use crate::block::{Block, Buffer};
use crate::disk::DiskFile;
use crate::error::{Damage, StoreError, io_error};

/// What follows a block's header.
pub(crate) struct Content {
    pub(crate) body: Buffer,
    pub(crate) summary: Summary,
}

/// Why there is no content.
pub(crate) enum Failed {
    Disk(io::Error),
    Damaged(&'static str),
}

/// Reads the content of the block at `offset`, whose header is known from the index.
pub(crate) fn content(
    file: &dyn DiskFile,
    header: &BlockHeader,
    offset: u64,
) -> Result<Content, Failed> {
    let body_len = header.body_len as usize;
    let mut body = Buffer::of_any_content(header.stored_len());
    let read = file.read_at(body.as_mut_slice(), offset);
    if read.map_err(Failed::Disk)? < body.len() {
        return Err(Failed::Damaged("the file ends within a block"));
    }
    let after = body
        .get(HEADER_LEN..)
        .and_then(|rest| rest.split_at_checked(body_len));
    let summary = after.and_then(|(_, rest)| rest.get(..header.summary_len as usize));
    let (Some((records, _)), Some(summary)) = (after, summary) else {
        return Err(Failed::Damaged("the block is shorter than its header says"));
    };
    if crc32c::crc32c(records) != header.body_crc {
        return Err(Failed::Damaged("the records' checksum does not match"));
    }
    if crc32c::crc32c(summary) != header.summary_crc {
        return Err(Failed::Damaged("the summary's checksum does not match"));
    }
    let summary = Summary::parse(summary).map_err(Failed::Damaged)?;
    body.keep(HEADER_LEN..HEADER_LEN.saturating_add(body_len));
    Ok(Content { body, summary })
}

/// A block whose header comes from an index.
pub(crate) fn block(named: &str, entry: &Entry, content: Content) -> Block {
    let Entry { header, offset, .. } = *entry;
    let lens = [
        HEADER_LEN as u64,
        header.body_len.into(),
        header.summary_len.into(),
    ];
    let content_end = lens.into_iter().fold(offset, u64::saturating_add);
    Block {
        header,
        summary: content.summary,
        file: named.to_owned(),
        offset,
        ends: (
            content_end,
            offset.saturating_add(header.stored_len() as u64),
        ),
        incomplete: 0,
        undefined: 0,
        damaged_segments: Vec::new(),
        body: content.body,
    }
}

/// A block from its content, or what is wrong with it.
pub(crate) fn settle(
    named: &str,
    entry: &Entry,
    read: Result<Content, Failed>,
) -> Result<Block, StoreError> {
    match read {
        Ok(content) => Ok(block(named, entry, content)),
        Err(Failed::Disk(error)) => Err(io_error(named.to_owned(), "read")(error)),
        Err(Failed::Damaged(problem)) => Err(StoreError::Damage(Damage {
            file: named.to_owned(),
            offset: entry.offset,
            problem: problem.into(),
            missing: None,
        })),
    }
}
