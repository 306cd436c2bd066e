//! Blocks of a file with an index, read ahead of being asked for.

use std::io;
use std::sync::mpsc::{Receiver, sync_channel};

use strata_blocks::HEADER_LEN;

use super::buffer::Buffer;
use super::fetch::{self, Content, Failed, Fetcher};
use super::{Block, Select};
use crate::error::{Damage, StoreError, io_error};
use crate::index::{Entry, Index};
use crate::log::Log;
use crate::manifest::BlockFile;

/// A file with an index.
pub(super) struct Indexed<'a> {
    pub(super) entry: &'a BlockFile,
    pub(super) named: String,
    pub(super) index: Index,
    pub(super) wanted: std::vec::IntoIter<usize>,
}

/// A block that the index says is wanted.
pub(super) enum Ahead {
    Ready(Box<Block>),
    /// In flight.
    Fetched {
        named: String,
        entry: Entry,
        reply: Receiver<Result<Content, Failed>>,
    },
}

/// Blocks read ahead, at most.
pub(super) const AHEAD_MAX: usize = 8;

/// Starts reading a block of a file with an index.
pub(super) fn ahead(
    log: &Log,
    fetcher: &mut Option<Fetcher>,
    indexed: &Indexed<'_>,
    number: usize,
    select: &Select,
) -> Ahead {
    let entry = indexed.index.entries[number];
    let disk = log.disk();
    let (reply, outbox) = sync_channel(1);
    // Read now, when there is space for one.
    let read_here = |keep: fn(Content) -> Content| {
        let opened = disk.open(&indexed.entry.name, false).map_err(Failed::Disk);
        let read = opened.and_then(|f| fetch::content(f.as_ref(), &entry.header, entry.offset));
        let _ = reply.send(read.map(keep));
    };
    let reply = if select.without_records {
        if let Some(summary) = indexed.index.summary(disk.as_ref(), number) {
            let body = Buffer::default();
            let content = Content { body, summary };
            return Ahead::Ready(Box::new(block(&indexed.named, &entry, content)));
        }
        // The index is damaged there; the file has the summary too.
        read_here(|content| Content {
            body: Buffer::default(),
            ..content
        });
        outbox
    } else {
        if fetcher.is_none() {
            *fetcher = Fetcher::start(disk, select.once).ok();
        }
        match fetcher {
            Some(fetcher) => fetcher.fetch(&indexed.entry.name, entry.offset, entry.header),
            // No thread could be started.
            None => {
                read_here(|content| content);
                outbox
            }
        }
    };
    Ahead::Fetched {
        named: indexed.named.clone(),
        entry,
        reply,
    }
}

/// A block whose header comes from an index.
fn block(named: &str, entry: &Entry, content: Content) -> Block {
    let Entry { header, offset, .. } = *entry;
    let content_len =
        HEADER_LEN as u64 + u64::from(header.body_len) + u64::from(header.summary_len);
    Block {
        header,
        summary: content.summary,
        file: named.to_owned(),
        offset,
        ends: (offset + content_len, offset + header.stored_len() as u64),
        incomplete: 0,
        damaged_segments: Vec::new(),
        body: content.body,
    }
}

impl Ahead {
    /// Waits until it has been read.
    pub(super) fn wait(self) -> Result<Block, StoreError> {
        let (named, entry, reply) = match self {
            Self::Ready(block) => return Ok(*block),
            Self::Fetched {
                named,
                entry,
                reply,
            } => (named, entry, reply),
        };
        let gone = || Err(Failed::Disk(io::Error::other("a thread has ended")));
        settle(&named, &entry, reply.recv().unwrap_or_else(|_| gone()))
    }
}

/// A block from its content, or what is wrong with it.
pub(super) fn settle(
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
        })),
    }
}
