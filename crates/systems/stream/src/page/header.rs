//! Headers of data pages: which page of which stream it is, and how its records are written.

use strata_wire::exact;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::key::StreamKey;
use crate::layout::PageHeaderBytes;

/// Bytes of a page before its first record.
pub const PAGE_HEADER_LEN: usize = 64;
/// The longest record.
pub const RECORD_LEN_MAX: usize = 1 << 20;

/// Bytes before a sealed record's payload.
pub const SEALED_HEAD_LEN: usize = 16;
/// The most addresses that a linked record names.
pub const REDUNDANCY_MAX: usize = 7;
/// Bytes before a linked record's payload, at most.
pub const LINKED_HEAD_LEN_MAX: usize = linked_head_len(7);

/// Bytes before the payload of a linked record with `redundancy` addresses.
pub(crate) const fn linked_head_len(redundancy: u8) -> usize {
    (redundancy as usize)
        .wrapping_mul(4)
        .wrapping_add(8)
        .next_multiple_of(ALIGN)
}

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
            // Marks need some room of each page.
            Self::Sealed => (page_bytes.saturating_sub(page_bytes / 8), SEALED_HEAD_LEN),
            Self::Linked {
                redundancy,
                block_bytes,
            } => {
                let block = block_bytes.map_or(page_bytes, exact::<usize>);
                (block, linked_head_len(redundancy))
            }
        };
        room.saturating_sub(PAGE_HEADER_LEN)
            .saturating_sub(head)
            .min(RECORD_LEN_MAX)
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
    /// No header has been written there.
    #[error("no page has been written there")]
    Magic,
    /// It names another stream.
    #[error("the page belongs to another stream")]
    Stream,
    /// Damaged, or written without the stream's key.
    #[error("the page's header is damaged, or was not written by this stream's writer")]
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
