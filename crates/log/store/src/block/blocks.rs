//! The blocks of a recording, one after another; after damage, reading resumes at the next block.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

mod ahead;
mod fetch;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use strata_blocks::Definitions;

use crate::block::Block;
use crate::block::index::Index;
use crate::block::promotions::{Promoted, Promotions};
use crate::block::scan::{Current, Step, open_file, step};
use crate::block::select::Select;
use crate::disk::Disk;
use crate::error::StoreError;
use crate::manifest::{BlockFile, Recording};

use ahead::{AHEAD_MAX, Ahead, Indexed, ahead};
use fetch::Fetcher;

/// Where the blocks of a file come from.
enum Source<'a> {
    /// From the file, one after another.
    Walk(Current<'a>),
    Indexed(Indexed<'a>),
    Failed(StoreError),
}

/// Iterator over blocks; see [`Log::blocks`](crate::Log::blocks).
pub struct Blocks<'a> {
    disk: &'a Arc<dyn Disk>,
    promoted: &'a Promoted,
    recording: &'a Recording,
    select: &'a Select,
    /// Files still to be read.
    files: std::slice::Iter<'a, BlockFile>,
    /// The worker whose files are read; `None` for all.
    worker: Option<u16>,
    source: Option<Source<'a>>,
    ahead: VecDeque<Ahead>,
    fetcher: Option<Fetcher>,
    /// Definitions that later relayed blocks may refer to, by worker.
    definitions: BTreeMap<u16, Definitions>,
    /// What completes promoted packets; `None` until it is needed.
    promotions: Option<Arc<Promotions>>,
}

impl<'a> Blocks<'a> {
    /// Blocks in these files of the recording, from one worker; `None` for all workers.
    pub(crate) fn new(
        disk: &'a Arc<dyn Disk>,
        promoted: &'a Promoted,
        recording: &'a Recording,
        files: &'a [BlockFile],
        worker: Option<u16>,
        select: &'a Select,
    ) -> Self {
        Self {
            disk,
            promoted,
            recording,
            select,
            files: files.iter(),
            worker,
            source: None,
            ahead: VecDeque::new(),
            fetcher: None,
            definitions: BTreeMap::new(),
            promotions: None,
        }
    }

    /// `None` if none of its blocks is wanted.
    fn open(&self, entry: &'a BlockFile) -> Option<Source<'a>> {
        let disk = self.disk.as_ref();
        let opened = match open_file(disk, entry) {
            Ok(opened) => opened,
            Err(error) => return Some(Source::Failed(error)),
        };
        if !self.select.without_index
            && opened.size == entry.bytes
            && let Some(index) = Index::read(disk, self.recording, entry)
        {
            return Some(Source::Indexed(Indexed {
                entry,
                named: opened.named,
                wanted: index.search(disk, self.select).into_iter(),
                index,
            }));
        }
        self.select.wants(0).then_some(Source::Walk(opened))
    }

    /// Starts reading the next block that the index selects; false if the part that has to be
    /// scanned comes next.
    fn read_ahead(&mut self) -> bool {
        loop {
            match &mut self.source {
                Some(Source::Indexed(indexed)) => {
                    if let Some(number) = indexed.wanted.next() {
                        let next =
                            ahead(self.disk, &mut self.fetcher, indexed, number, self.select);
                        self.ahead.push_back(next);
                        return true;
                    }
                    self.source = None;
                }
                Some(_) => return false,
                None => {
                    let worker = self.worker;
                    let of_worker = |file: &&BlockFile| worker.is_none_or(|of| of == file.worker);
                    let Some(entry) = self.files.find(of_worker) else {
                        return false;
                    };
                    self.source = self.open(entry);
                }
            }
        }
    }

    /// Completes a block before it is returned.
    fn finish(&mut self, mut block: Block) -> Result<Block, StoreError> {
        if let Some(promotions) = &self.promotions {
            promotions.apply(self.disk.as_ref(), &mut block)?;
        }
        if self.recording.session.is_some() && block.header.packets == 0 {
            let known = self.definitions.entry(block.header.worker);
            known.or_default().read(block.body());
        }
        Ok(block)
    }
}

impl std::fmt::Debug for Blocks<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Blocks")
            .field("recording", &self.recording.id)
            .finish_non_exhaustive()
    }
}

impl Iterator for Blocks<'_> {
    type Item = Result<Block, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.recording.look_back && self.promotions.is_none() {
            match self.promoted.of(self.disk.as_ref(), self.recording) {
                Ok(found) => self.promotions = Some(found),
                Err(error) => {
                    self.promotions = Some(Arc::default());
                    return Some(Err(error));
                }
            }
        }
        loop {
            while self.ahead.len() < AHEAD_MAX && self.read_ahead() {}
            if let Some(ahead) = self.ahead.pop_front() {
                return Some(ahead.wait().and_then(|block| self.finish(block)));
            }
            let Some(Source::Walk(current)) = &mut self.source else {
                let Some(Source::Failed(error)) = self.source.take() else {
                    return None;
                };
                return Some(Err(error));
            };
            match step(current, self.recording, self.select, &self.definitions) {
                Ok(Step::Block(block)) => return Some(self.finish(*block)),
                Ok(Step::Skipped) => {}
                Ok(Step::EndOfFile) => self.source = None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
