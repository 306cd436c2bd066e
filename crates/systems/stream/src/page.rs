//! Data pages: filling one, and what was read of one.

pub(crate) mod header;
mod linked;
pub(crate) mod mark;
pub(crate) mod missing;
mod sealed;
pub(crate) mod walk;

use crate::key::{PageKey, StreamKey};
use crate::producers::Producers;

use header::{ALIGN, Form, PageHeader, SEALED_HEAD_LEN};
use linked::LinkedWriter;
use mark::Origin;
use sealed::Kind;

/// Memory that a page is written into, block after block. All of a page's blocks together are as
/// long as the page.
pub trait Blocks {
    /// Why there is no other block.
    type Error;

    /// The block that is being filled.
    fn current(&mut self) -> &mut [u8];

    /// The block is full: it goes to the disk, and another takes its place. The first `number` records of the
    /// page, up to the offset `whole_until` in it, are whole now.
    ///
    /// # Errors
    ///
    /// If there is no other page.
    fn full(&mut self, whole_until: usize, number: u32) -> Result<(), Self::Error>;
}

/// Why a record was not appended. The page is as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AppendError<E> {
    /// The page has no room for it: begin the next page.
    #[error("the page is full")]
    Full,
    /// It would not fit into any page.
    #[error("a record of {len} bytes is too long: this stream takes records of up to {max} bytes")]
    TooLong {
        /// Its bytes.
        len: usize,
        /// How many are allowed.
        max: usize,
    },
    /// The blocks failed.
    #[error(transparent)]
    Blocks(#[from] E),
}

/// Fills a data page. It knows the end of the page and, of linked records, the last few addresses;
/// the bytes are in [`Blocks`].
#[derive(Debug)]
pub struct PageWriter {
    key: PageKey,
    page_bytes: usize,
    record_len_max: usize,
    /// Where the next record goes, and where the current block starts.
    at: usize,
    block_start: usize,
    /// Records so far.
    number: u32,
    linked: Option<LinkedWriter>,
    current: Current,
    /// A mark before it is appended.
    mark: Vec<u8>,
}

/// Whose records the last marks of a page announce.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Current {
    /// Not known: of a page that another process has filled.
    Unknown,
    /// Records without a producer.
    None,
    /// Those of a producer: its id, and the number of the next one.
    Producer(u64, u64),
}

impl PageWriter {
    /// Begins a page at the start of a block.
    ///
    /// # Errors
    ///
    /// That of the blocks.
    pub fn begin<B: Blocks>(
        header: &PageHeader,
        key: &StreamKey,
        page_bytes: usize,
        blocks: &mut B,
    ) -> Result<Self, B::Error> {
        let linked = LinkedWriter::new(header);
        let mut writer = Self {
            key: key.page(header.index, header.lap),
            page_bytes,
            record_len_max: header.form.record_len_max(page_bytes),
            at: 0,
            block_start: 0,
            number: 0,
            linked,
            current: Current::None,
            mark: Vec::new(),
        };
        writer.put(blocks, &header.emit(key))?;
        Ok(writer)
    }

    /// Goes on with a page of sealed records: after `number` records, at `at`, which lies in the
    /// block that starts at `block_start`. `None` if its records are linked.
    #[must_use]
    pub fn resume(
        header: &PageHeader,
        key: &StreamKey,
        page_bytes: usize,
        (at, block_start): (usize, usize),
        number: u32,
    ) -> Option<Self> {
        let is_sealed = header.form == Form::Sealed;
        is_sealed.then(|| Self {
            key: key.page(header.index, header.lap),
            page_bytes,
            record_len_max: header.form.record_len_max(page_bytes),
            at,
            block_start,
            number,
            linked: None,
            current: Current::Unknown,
            mark: Vec::new(),
        })
    }

    /// Where the next record goes, in bytes from the page's start.
    #[inline]
    #[must_use]
    pub fn at(&self) -> usize {
        self.at
    }

    /// How many records it holds.
    #[inline]
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Appends a record, of a producer or of none.
    ///
    /// # Errors
    ///
    /// If it does not fit, or the blocks fail.
    #[inline]
    pub fn append<B: Blocks>(
        &mut self,
        blocks: &mut B,
        payload: &[u8],
    ) -> Result<(), AppendError<B::Error>> {
        if payload.len() > self.record_len_max {
            return Err(AppendError::TooLong {
                len: payload.len(),
                max: self.record_len_max,
            });
        }
        if self.linked.is_some() {
            return self.append_linked(blocks, payload);
        }
        self.append_sealed(blocks, payload, Kind::Record)?;
        self.number = self.number.wrapping_add(1);
        if let Current::Producer(_, next) = &mut self.current {
            *next = next.wrapping_add(1);
        }
        Ok(())
    }

    /// Says whose record is next, if the marks before do not: the id of one of `producers`, and the record's number
    /// among those of this producer. Linked records have no marks.
    ///
    /// # Errors
    ///
    /// If it does not fit, or the blocks fail.
    #[inline]
    pub fn announce<B: Blocks>(
        &mut self,
        blocks: &mut B,
        time_ns: u64,
        record: Option<(u64, u64)>,
        producers: &Producers,
    ) -> Result<(), AppendError<B::Error>> {
        let next = record.map_or(Current::None, |(id, number)| Current::Producer(id, number));
        if next == self.current || self.linked.is_some() {
            return Ok(());
        }
        let mut mark = std::mem::take(&mut self.mark);
        let producer = record.and_then(|(id, number)| {
            let name = producers.get(id)?.name.as_str();
            Some(Origin { id, name, number })
        });
        match producer {
            Some(origin) => mark::put_producer(&mut mark, time_ns, &origin),
            None => {
                mark.clear();
                mark.extend_from_slice(&mark::no_producer(time_ns));
            }
        }
        let appended = self.append_sealed(blocks, &mark, Kind::Mark);
        self.mark = mark;
        appended?;
        self.current = next;
        Ok(())
    }

    /// The next record has a mark before it, whatever the marks before say.
    pub fn forget_current(&mut self) {
        self.current = Current::Unknown;
    }

    /// Says that a producer appends no more. Linked records have no marks.
    ///
    /// # Errors
    ///
    /// If it does not fit, or the blocks fail.
    pub fn end_producer<B: Blocks>(
        &mut self,
        blocks: &mut B,
        time_ns: u64,
        id: u64,
    ) -> Result<(), AppendError<B::Error>> {
        match self.linked {
            Some(_) => Ok(()),
            None => self.append_sealed(blocks, &mark::ended(time_ns, id), Kind::Mark),
        }
    }

    /// Says, at the start of a page, up to which of its records the stream has those of each producer, and up to which
    /// record all are synced. Linked records have no marks.
    ///
    /// # Errors
    ///
    /// If it does not fit, or the blocks fail.
    pub fn list<B: Blocks>(
        &mut self,
        blocks: &mut B,
        time_ns: u64,
        (synced_seq, producers): (u64, &Producers),
    ) -> Result<(), AppendError<B::Error>> {
        if self.linked.is_some() {
            return Ok(());
        }
        let mut mark = Vec::new();
        mark::put_producers(&mut mark, time_ns, synced_seq, producers);
        self.append_sealed(blocks, &mark, Kind::Mark)
    }

    /// Says when the records from here on are appended. Pages of linked records have no such marks:
    /// they have the time of the page.
    ///
    /// # Errors
    ///
    /// If it does not fit, or the blocks fail.
    pub fn mark<B: Blocks>(
        &mut self,
        blocks: &mut B,
        time_ns: u64,
    ) -> Result<(), AppendError<B::Error>> {
        match self.linked {
            Some(_) => Ok(()),
            None => self.append_sealed(blocks, &mark::time(time_ns), Kind::Mark),
        }
    }

    /// Fills the current block with zeros from the last record on; what was there is older.
    pub fn zero_rest<B: Blocks>(&self, blocks: &mut B) {
        blocks.current()[self.at.wrapping_sub(self.block_start)..].fill(0);
    }

    #[inline]
    fn append_sealed<B: Blocks>(
        &mut self,
        blocks: &mut B,
        payload: &[u8],
        kind: Kind,
    ) -> Result<(), AppendError<B::Error>> {
        let whole = SEALED_HEAD_LEN.wrapping_add(payload.len().next_multiple_of(ALIGN));
        if whole > self.page_bytes.saturating_sub(self.at) {
            return Err(AppendError::Full);
        }
        let head = sealed::head(&self.key, self.at, self.number, kind, payload);
        let start = self.at.wrapping_sub(self.block_start);
        if let Some(room) = blocks.current().get_mut(start..start.wrapping_add(whole)) {
            let (to_head, rest) = room.split_at_mut(SEALED_HEAD_LEN);
            to_head.copy_from_slice(&head);
            let (to_payload, padding) = rest.split_at_mut(payload.len());
            to_payload.copy_from_slice(payload);
            padding.fill(0);
            self.at = self.at.wrapping_add(whole);
            return Ok(());
        }
        Ok(self.put_record(blocks, &head, payload)?)
    }

    #[cold]
    fn put_record<B: Blocks>(
        &mut self,
        blocks: &mut B,
        head: &[u8],
        payload: &[u8],
    ) -> Result<(), B::Error> {
        let whole_until = self.at;
        self.put_after(blocks, head, whole_until)?;
        self.put_after(blocks, payload, whole_until)?;
        let padding = self.at.next_multiple_of(ALIGN).wrapping_sub(self.at);
        self.put_after(blocks, &[0; ALIGN][..padding], whole_until)
    }

    fn append_linked<B: Blocks>(
        &mut self,
        blocks: &mut B,
        payload: &[u8],
    ) -> Result<(), AppendError<B::Error>> {
        let linked = self.linked.as_ref().expect("its records are linked");
        let at = linked.next_at(self.at, payload.len(), self.page_bytes);
        let at = at.ok_or(AppendError::Full)?;
        let (head, head_len) = linked.head(at, payload.len());
        let whole_until = self.at;
        while self.at < at {
            let padding = at.wrapping_sub(self.at).min(ZEROS.len());
            self.put_after(blocks, &ZEROS[..padding], whole_until)?;
        }
        self.put_record(blocks, &head[..head_len], payload)?;
        if let Some(linked) = &mut self.linked {
            linked.appended(at);
        }
        self.number = self.number.wrapping_add(1);
        Ok(())
    }

    fn put<B: Blocks>(&mut self, blocks: &mut B, bytes: &[u8]) -> Result<(), B::Error> {
        self.put_after(blocks, bytes, self.at)
    }

    /// Copies bytes to where the page ends, into as many blocks as they take.
    fn put_after<B: Blocks>(
        &mut self,
        blocks: &mut B,
        mut bytes: &[u8],
        whole_until: usize,
    ) -> Result<(), B::Error> {
        while !bytes.is_empty() {
            let mut start = self.at.wrapping_sub(self.block_start);
            if start == blocks.current().len() {
                blocks.full(whole_until, self.number)?;
                self.block_start = self.at;
                start = 0;
            }
            let block = blocks.current();
            let now = bytes.len().min(block.len().wrapping_sub(start));
            block[start..start.wrapping_add(now)].copy_from_slice(&bytes[..now]);
            self.at = self.at.wrapping_add(now);
            bytes = &bytes[now..];
        }
        Ok(())
    }
}

static ZEROS: [u8; 4096] = [0; 4096];

/// What was read of a data page: all of it, or its start.
#[derive(Clone, Debug)]
pub struct Page<'p> {
    pub(crate) header: PageHeader,
    pub(crate) key: PageKey,
    pub(crate) bytes: &'p [u8],
}

impl<'p> Page<'p> {
    /// A page with its parsed header. Of `bytes`, which begin with the header, nothing beyond the
    /// end is read.
    #[must_use]
    pub fn new(header: PageHeader, key: PageKey, bytes: &'p [u8]) -> Self {
        Self { header, key, bytes }
    }

    /// Its header.
    #[must_use]
    pub fn header(&self) -> &PageHeader {
        &self.header
    }

    /// Where the mark ends that says which producers there are, if it is there.
    #[must_use]
    pub fn list_end(&self) -> Option<usize> {
        let first = sealed::read(&self.key, self.bytes, header::PAGE_HEADER_LEN)?;
        (first.kind == Kind::Mark).then_some(first.end)
    }

    /// The producers of the stream when the page was begun, and the number of the first record that was not synced
    /// then. `None`: the mark that says so, before the first record, is not there.
    #[must_use]
    pub fn producers(&self) -> Option<(u64, Producers)> {
        let first = sealed::read(&self.key, self.bytes, header::PAGE_HEADER_LEN)?;
        match mark::parse(first.payload).filter(|_| first.kind == Kind::Mark)? {
            (_, mark::Mark::Producers { synced_seq, bytes }) => {
                Some((synced_seq, mark::producers(bytes)?))
            }
            _ => None,
        }
    }
}
