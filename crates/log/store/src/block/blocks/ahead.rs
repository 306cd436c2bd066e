//! Blocks of a file with an index, read ahead of requests for them.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use super::fetch::Fetcher;
use crate::block::content::{Content, Failed, block, content, settle};
use crate::block::index::{Entry, Index};
use crate::block::select::Select;
use crate::block::{Block, Buffer};
use crate::disk::Disk;
use crate::error::StoreError;
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

/// Maximum number of blocks read ahead.
pub(super) const AHEAD_MAX: usize = 8;

/// Starts reading a block of a file with an index.
pub(super) fn ahead(
    disk: &Arc<dyn Disk>,
    fetcher: &mut Option<Fetcher>,
    indexed: &Indexed<'_>,
    number: usize,
    select: &Select,
) -> Ahead {
    let entry = indexed.index.entries[number];
    let (reply, outbox) = sync_channel(1);
    // Read now, when there is space for one.
    let read_here = |keep: fn(Content) -> Content| {
        let opened = disk.open(&indexed.entry.name, false).map_err(Failed::Disk);
        let read = opened.and_then(|f| content(f.as_ref(), &entry.header, entry.offset));
        let _ = reply.send(read.map(keep));
    };
    let reply = if select.without_records && entry.header.packets > 0 {
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
