//! Data pages: their header, filling one, and what was read of one.

use strata_wire::exact;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::key::{PageKey, StreamKey};
use crate::layout::PageHeaderBytes;
use crate::linked::{self, LinkedWriter, REDUNDANCY_MAX};
use crate::sealed::{self, Kind};

/// Bytes of a page before its first record.
pub const PAGE_HEADER_LEN: usize = 64;
/// The longest record.
pub const RECORD_LEN_MAX: usize = 1 << 20;

/// Records and their heads begin at multiples of this.
pub(crate) const ALIGN: usize = 8;
const MAGIC: [u8; 8] = *b"STRAPAGE";

/// How records are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Ours: each with its number and a tag.
    Sealed,
    /// The paper's (§3.4): each with the addresses of those before it.
    Linked {
        /// How many addresses (R), at most 7.
        redundancy: u8,
        /// A record starts at each multiple of this many bytes, and none crosses one; `None` if
        /// only pages are such blocks.
        block_bytes: Option<u32>,
    },
}

impl Form {
    /// As the paper's evaluation has it (§5): three addresses, blocks of 256 KiB.
    pub const PAPER: Self = Self::Linked {
        redundancy: 3,
        block_bytes: Some(256 << 10),
    };

    /// The three bytes by which it is stored.
    pub(crate) fn emit(self) -> [u8; 3] {
        match self {
            Self::Sealed => [1, 0, 0],
            Self::Linked {
                redundancy,
                block_bytes,
            } => {
                let shift = block_bytes.map_or(0, u32::trailing_zeros);
                [2, redundancy, exact(shift)]
            }
        }
    }

    /// The form of these three bytes; `None` if they are not one, in pages of this size.
    pub(crate) fn parse(bytes: [u8; 3], page_bytes: usize) -> Option<Self> {
        match bytes {
            [1, 0, 0] => Some(Self::Sealed),
            [2, redundancy, shift] if usize::from(redundancy) <= REDUNDANCY_MAX => {
                let block_bytes = match shift {
                    0 => None,
                    12..=30 if 1 << shift <= page_bytes => Some(1 << shift),
                    _ => return None,
                };
                Some(Self::Linked {
                    redundancy,
                    block_bytes,
                })
            }
            _ => None,
        }
    }

    /// The longest record in pages of this size.
    #[must_use]
    pub fn record_len_max(self, page_bytes: usize) -> usize {
        let (room, head) = match self {
            Self::Sealed => (page_bytes, sealed::SEALED_HEAD_LEN),
            Self::Linked {
                redundancy,
                block_bytes,
            } => {
                let block = block_bytes.map_or(page_bytes, exact::<usize>);
                (block, linked::head_len(redundancy))
            }
        };
        (room - PAGE_HEADER_LEN - head).min(RECORD_LEN_MAX)
    }
}

/// What the first 64 bytes of a data page say.
///
/// ```text
///  0 magic "STRAPAGE"
///  8 stream u64         id of the stream
/// 16 index u64          number of the page in the stream
/// 24 lap u64            random, of this use of the page
/// 32 first_seq u64      number of its first record
/// 40 created_ns u64     since 1970
/// 48 record_magic u32   of linked records
/// 52 form u8            1 sealed, 2 linked
/// 53 redundancy u8      addresses of a linked record
/// 54 block_shift u8     blocks of linked records are 2^this; 0: none
/// 55 reserved u8
/// 56 tag u64            SipHash-2-4 of bytes 0 to 55 with the stream's key
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageHeader {
    /// The id of its stream.
    pub stream: u64,
    /// Its number in the stream.
    pub index: u64,
    /// A random number of this use of the page.
    pub lap: u64,
    /// The number of its first record.
    pub first_seq: u64,
    /// When it was begun, ns since 1970.
    pub created_ns: u64,
    /// Of linked records: what each begins with.
    pub record_magic: u32,
    /// How its records are written.
    pub form: Form,
}

/// Why bytes are not the header of a page of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PageHeaderError {
    /// Nobody has written a header there.
    #[error("no page has been written there")]
    Magic,
    /// It names another stream.
    #[error("the page belongs to another stream")]
    Stream,
    /// Damaged, or written without the stream's key.
    #[error("the page's header is damaged, or not of this stream's writer")]
    Tag,
    /// A later version, or damaged before it was tagged.
    #[error("the page has records of an unknown form")]
    Form,
}

impl PageHeader {
    /// The stream that a page claims to belong to; its key is needed to believe it.
    #[must_use]
    pub fn claimed_stream(page: &[u8]) -> Option<u64> {
        let (bytes, _) = PageHeaderBytes::ref_from_prefix(page).ok()?;
        (bytes.magic == MAGIC).then(|| bytes.stream.get())
    }

    /// The header of a page of this stream.
    ///
    /// # Errors
    ///
    /// If it is of another stream, damaged or missing.
    ///
    /// # Panics
    ///
    /// If `page` is shorter than a header.
    pub fn parse(
        page: &[u8],
        stream: u64,
        key: &StreamKey,
        page_bytes: usize,
    ) -> Result<Self, PageHeaderError> {
        let (bytes, _) = PageHeaderBytes::ref_from_prefix(page).expect("a page has a header");
        if bytes.magic != MAGIC {
            return Err(PageHeaderError::Magic);
        }
        if bytes.stream.get() != stream {
            return Err(PageHeaderError::Stream);
        }
        if key.tag(&page[..PAGE_HEADER_LEN - 8]) != bytes.tag.get() {
            return Err(PageHeaderError::Tag);
        }
        let form = [bytes.form, bytes.redundancy, bytes.block_shift];
        Ok(Self {
            stream,
            index: bytes.index.get(),
            lap: bytes.lap.get(),
            first_seq: bytes.first_seq.get(),
            created_ns: bytes.created_ns.get(),
            record_magic: bytes.record_magic.get(),
            form: Form::parse(form, page_bytes).ok_or(PageHeaderError::Form)?,
        })
    }

    /// Its bytes.
    #[must_use]
    pub fn emit(&self, key: &StreamKey) -> [u8; PAGE_HEADER_LEN] {
        let [form, redundancy, block_shift] = self.form.emit();
        let header = PageHeaderBytes {
            magic: MAGIC,
            stream: U64::new(self.stream),
            index: U64::new(self.index),
            lap: U64::new(self.lap),
            first_seq: U64::new(self.first_seq),
            created_ns: U64::new(self.created_ns),
            record_magic: U32::new(self.record_magic),
            form,
            redundancy,
            block_shift,
            reserved: 0,
            tag: U64::new(0),
        };
        let mut bytes: [u8; PAGE_HEADER_LEN] = zerocopy::transmute!(header);
        let tag = key.tag(&bytes[..PAGE_HEADER_LEN - 8]);
        bytes[PAGE_HEADER_LEN - 8..].copy_from_slice(&tag.to_le_bytes());
        debug_assert!(header.as_bytes().len() == PAGE_HEADER_LEN);
        bytes
    }
}

/// Memory that a page is written into, block after block. All of a page's blocks together are as
/// long as the page.
pub trait Blocks {
    /// Why there is no other block.
    type Error;

    /// The block that is being filled.
    fn current(&mut self) -> &mut [u8];

    /// The block is full: it goes to the disk, and another takes its place. Records that end up to
    /// `whole_until`, an offset in the page, are whole now.
    ///
    /// # Errors
    ///
    /// If there is none.
    fn full(&mut self, whole_until: usize) -> Result<(), Self::Error>;
}

/// Why a record was not appended. The page is as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AppendError<E> {
    /// The page has no room for it: begin the next page.
    #[error("the page is full")]
    Full,
    /// It would not fit into any page.
    #[error("a record of {len} bytes is too long: this stream's have at most {max}")]
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
        };
        writer.put(blocks, &header.emit(key))?;
        Ok(writer)
    }

    /// Goes on with a page of sealed records: after so many records, at `at`, which lies in the
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

    /// Appends a record.
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
        self.number += 1;
        Ok(())
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
            None => self.append_sealed(blocks, &time_ns.to_le_bytes(), Kind::Mark),
        }
    }

    /// Fills the current block with zeros from the last record on; what was there is older.
    pub fn zero_rest<B: Blocks>(&self, blocks: &mut B) {
        blocks.current()[self.at - self.block_start..].fill(0);
    }

    #[inline]
    fn append_sealed<B: Blocks>(
        &mut self,
        blocks: &mut B,
        payload: &[u8],
        kind: Kind,
    ) -> Result<(), AppendError<B::Error>> {
        let whole = sealed::SEALED_HEAD_LEN + payload.len().next_multiple_of(ALIGN);
        if whole > self.page_bytes - self.at {
            return Err(AppendError::Full);
        }
        let head = sealed::head(&self.key, self.at, self.number, kind, payload);
        let start = self.at - self.block_start;
        if let Some(room) = blocks.current().get_mut(start..start + whole) {
            let (to_head, rest) = room.split_at_mut(sealed::SEALED_HEAD_LEN);
            to_head.copy_from_slice(&head);
            let (to_payload, padding) = rest.split_at_mut(payload.len());
            to_payload.copy_from_slice(payload);
            padding.fill(0);
            self.at += whole;
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
        let padding = self.at.next_multiple_of(ALIGN) - self.at;
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
            let padding = (at - self.at).min(ZEROS.len());
            self.put_after(blocks, &ZEROS[..padding], whole_until)?;
        }
        self.put_record(blocks, &head[..head_len], payload)?;
        if let Some(linked) = &mut self.linked {
            linked.appended(at);
        }
        self.number += 1;
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
            let mut start = self.at - self.block_start;
            if start == blocks.current().len() {
                blocks.full(whole_until)?;
                self.block_start = self.at;
                start = 0;
            }
            let block = blocks.current();
            let now = bytes.len().min(block.len() - start);
            block[start..start + now].copy_from_slice(&bytes[..now]);
            self.at += now;
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
}
