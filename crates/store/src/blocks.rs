//! The blocks of a recording, one after another; after damage, reading resumes at the next block.

mod ahead;
mod buffer;
mod fetch;

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::sync::Arc;

use strata_blocks::{
    ALIGNMENT, BlockHeader, Definitions, HEADER_LEN, Records, RelayedHeader, SEGMENTS_AT, Summary,
    assemble,
};
use strata_wire::{AddressFamily, FlowHasher, FlowKey};

use crate::disk::{Disk, DiskFile};
use crate::error::{Damage, StoreError, io_error};
use crate::index::{Entry, Index};
use crate::log::Log;
use crate::manifest::{BlockFile, Recording};
use crate::promotions::Promotions;

use ahead::{AHEAD_MAX, Ahead, Indexed, ahead, settle};
use buffer::Buffer;
use fetch::Fetcher;

/// One block, read and checked.
#[derive(Debug)]
pub struct Block {
    /// Its header.
    pub header: BlockHeader,
    /// What it holds.
    pub summary: Summary,
    /// Its file, as shown in messages.
    pub file: String,
    /// Where in the file.
    pub offset: u64,
    /// End offsets in the file: of what its checksums cover, and where the next block may begin;
    /// only zeros between.
    pub ends: (u64, u64),
    /// Packets in it that end where a part was lost between switch and relay.
    pub incomplete: u32,
    /// Offsets in the file of segments that were damaged after they were written.
    pub damaged_segments: Vec<u64>,
    pub(crate) body: Buffer,
}

impl Block {
    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }

    pub(crate) fn replace_body(&mut self, body: Vec<u8>) {
        self.body = body.into();
    }

    /// Offset in the file of its records.
    #[must_use]
    pub fn records_at(&self) -> u64 {
        self.offset + HEADER_LEN as u64
    }

    /// Its records.
    #[must_use]
    pub fn records(&self) -> Records<'_> {
        Records::new(&self.body, self.header.first_seq)
    }
}

/// Which blocks are wanted. The default is all of them.
#[derive(Clone, Debug, Default)]
pub struct Select {
    /// Packets from this time on, ns.
    pub from_ns: Option<u64>,
    /// Packets before this time, ns.
    pub to_ns: Option<u64>,
    /// Packets with at least one address of each of these sets.
    pub addresses: Vec<Vec<(AddressFamily, u128)>>,
    /// Packets of these flows, by their outermost IP header; `None` for all.
    pub flows: Option<Vec<FlowKey>>,
    /// Only blocks that hold what the inputs said about themselves.
    pub metadata_only: bool,
    /// Headers and summaries only: records are neither read nor checked.
    pub without_records: bool,
    /// Read every header from the file itself, even if the file has an index: to find damage.
    pub without_index: bool,
    /// The blocks will not be read again and need not stay in the page cache.
    pub once: bool,
}

impl Select {
    /// Whether a block with this header may hold what is wanted; `may_hold` looks up a fingerprint
    /// in its summary.
    #[must_use]
    pub fn may_match(&self, header: &BlockHeader, may_hold: impl Fn(u64) -> bool) -> bool {
        if header.holds_meta() {
            return true;
        }
        if self.metadata_only {
            return false;
        }
        let after = self.from_ns.is_none_or(|from| header.ts_max_ns >= from);
        let before = self.to_ns.is_none_or(|to| header.ts_min_ns < to);
        if header.packets == 0 {
            // Nothing but promotions: they are checked with the rest.
            return header.promotes();
        }
        if !after || !before {
            return false;
        }
        if header.hides_addresses() {
            return true;
        }
        let hasher = FlowHasher::new(header.hash_seed);
        if let Some(flows) = &self.flows
            && header.holds_flows()
        {
            return flows.iter().any(|flow| may_hold(hasher.flow(flow)));
        }
        let has =
            |&(family, address): &(AddressFamily, u128)| may_hold(hasher.address(family, address));
        self.addresses.iter().all(|set| set.iter().any(has))
    }

    /// Whether summaries can rule out more blocks than headers do.
    pub(crate) fn asks_summaries(&self) -> bool {
        !self.metadata_only && (self.flows.is_some() || !self.addresses.is_empty())
    }
}

/// Where the blocks of a file come from.
enum Source<'a> {
    /// From the file, one after another.
    Walk(Current<'a>),
    Indexed(Indexed<'a>),
    Failed(StoreError),
}

/// A file that is being read.
pub(crate) struct Current<'a> {
    entry: &'a BlockFile,
    file: Box<dyn DiskFile>,
    named: String,
    offset: u64,
    size: u64,
    /// Looking for the next block after damage.
    searching: bool,
    /// Only blocks that hold promotions are wanted.
    pub(crate) promotions_only: bool,
}

impl Current<'_> {
    /// A block whose header comes from an index.
    pub(crate) fn indexed(&self, entry: &Entry) -> Result<Block, StoreError> {
        let read = fetch::content(self.file.as_ref(), &entry.header, entry.offset);
        settle(&self.named, entry, read)
    }
}

/// Iterator over blocks; see [`Log::blocks`].
pub struct Blocks<'a> {
    log: &'a Log,
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
        log: &'a Log,
        recording: &'a Recording,
        files: &'a [BlockFile],
        worker: Option<u16>,
        select: &'a Select,
    ) -> Self {
        Self {
            log,
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

    fn open(&self, entry: &'a BlockFile) -> Source<'a> {
        let disk = self.log.disk().as_ref();
        let opened = match open_file(disk, entry) {
            Ok(opened) => opened,
            Err(error) => return Source::Failed(error),
        };
        if !self.select.without_index
            && opened.size == entry.bytes
            && let Some(index) = Index::read(disk, self.recording, entry)
        {
            return Source::Indexed(Indexed {
                entry,
                named: opened.named,
                wanted: index.search(disk, self.select).into_iter(),
                index,
            });
        }
        Source::Walk(opened)
    }

    /// Starts reading the next block that the index selects; false if there is none before the part
    /// that has to be scanned.
    fn read_ahead(&mut self) -> bool {
        loop {
            match &mut self.source {
                Some(Source::Indexed(indexed)) => {
                    if let Some(number) = indexed.wanted.next() {
                        let next = ahead(self.log, &mut self.fetcher, indexed, number, self.select);
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
                    self.source = Some(self.open(entry));
                }
            }
        }
    }

    /// Completes a block before it is returned.
    fn finish(&mut self, mut block: Block) -> Result<Block, StoreError> {
        if let Some(promotions) = &self.promotions {
            promotions.apply(self.log.disk().as_ref(), &mut block)?;
        }
        if self.recording.session.is_some() && block.header.packets == 0 {
            let known = self.definitions.entry(block.header.worker);
            known.or_default().read(&block.body);
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

pub(crate) enum Step {
    Block(Box<Block>),
    Skipped,
    EndOfFile,
}

impl Iterator for Blocks<'_> {
    type Item = Result<Block, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.recording.look_back && self.promotions.is_none() {
            match self.log.promotions(self.recording) {
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
                problem: format!("the file ends here, the manifest says {stated} bytes"),
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
    current.offset += problem.passes_over;
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
        offset += ALIGNMENT as u64;
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
    let content_end = current.offset + (HEADER_LEN + body_len + summary_len) as u64;
    if content_end > current.size {
        return Ok(Err(String::from("the file ends within a block").into()));
    }
    let mut summary = vec![0; summary_len];
    let after_body = current.offset + (HEADER_LEN + body_len) as u64;
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
    let offset = current.offset;
    let wanted = if current.promotions_only {
        header.promotes()
    } else {
        select.may_match(&header, |key| summary.may_hold(key))
    };
    if !wanted {
        current.offset += header.stored_len() as u64;
        return Ok(Ok(Step::Skipped));
    }
    let mut body = Buffer::default();
    if !select.without_records {
        body = Buffer::of_any_content(body_len);
        read_at(body.as_mut_slice(), offset + HEADER_LEN as u64)?;
        if crc32c::crc32c(&body) != header.body_crc {
            return Ok(Err(NoBlock::within(
                &header,
                "the records' checksum does not match",
            )));
        }
    }
    current.offset += header.stored_len() as u64;
    Ok(Ok(Step::Block(Box::new(Block {
        header,
        summary,
        file: current.named.clone(),
        offset,
        ends: (content_end, offset + header.stored_len() as u64),
        incomplete: 0,
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
    let stored_len = header.stored_len() as u64;
    if offset + stored_len > current.size {
        return Ok(Err(String::from("the file ends within a block").into()));
    }
    current.offset += stored_len;
    if select.metadata_only {
        return Ok(Ok(Step::Skipped));
    }
    let mut segments = vec![0; header.used as usize];
    let segments_at = offset + SEGMENTS_AT as u64;
    let read = current.file.read_at(&mut segments, segments_at);
    read.map_err(io_error(current.named.clone(), "read"))?;
    let none = Definitions::default();
    let known = definitions.get(&header.worker).unwrap_or(&none);
    let mut assembled = assemble(header, &segments, known);
    if !select.may_match(&assembled.header, |key| assembled.summary.may_hold(key)) {
        return Ok(Ok(Step::Skipped));
    }
    if select.without_records {
        assembled.body.clear();
    }
    Ok(Ok(Step::Block(Box::new(Block {
        header: assembled.header,
        summary: assembled.summary,
        file: current.named.clone(),
        offset,
        ends: (offset + stored_len, offset + stored_len),
        incomplete: assembled.incomplete,
        damaged_segments: assembled
            .damaged
            .iter()
            .map(|at| segments_at + *at as u64)
            .collect(),
        body: assembled.body.into(),
    }))))
}
