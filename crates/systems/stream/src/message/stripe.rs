//! What an appender or reader sends to a server that has a stripe of its pages, and the answers. Requests are
//! answered in their order, so several may be under way.

use super::Fields;

/// Bytes of a page that are read or written at once, at most.
pub const PIECE_LEN_MAX: usize = 1 << 20;
/// Pages of a stripe: 16 TiB of them, if they have 4 MiB.
pub const PAGES_MAX: u32 = 1 << 22;
/// Streams of a directory that has such stripes, at most: they are named in one message.
pub const STREAMS_MAX: usize = 1 << 17;
/// In [`Request::Headers`], instead of a stream's id: the pages of all streams, and free ones.
pub const ALL_STREAMS: u64 = 0;
/// Headers of pages in an answer, at most.
pub const HEADERS_MAX: usize = 1 << 10;
/// Bytes of a header in an answer: the page's number u32, whether its file reaches that far u8, the page's first 64 bytes.
pub const HEADER_ENTRY_LEN: usize = 69;

/// Sizes of pages: of a page directory, a table page, a data page.
pub type Sizes = [u32; 3];

/// A request to a stripe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request<'a> {
    /// Makes it a stripe of a directory, unless it is one.
    Make {
        /// Random.
        id: u64,
        /// Of the directory's pages.
        sizes: Sizes,
    },
    /// This connection appends to a stream from now on, and no other does.
    Join {
        /// The stream's id.
        stream: u64,
        /// Those of all streams of its directory.
        streams: &'a [[u8; 8]],
    },
    /// A page for the stream, with space on the disk.
    Take,
    /// The stream gives up pages: their numbers.
    Release {
        /// Little-endian.
        pages: &'a [[u8; 4]],
    },
    /// How many pages a stream has.
    Owned {
        /// The stream's id.
        stream: u64,
    },
    /// Headers of a stream's pages.
    Headers {
        /// The stream's id, or [`ALL_STREAMS`].
        stream: u64,
        /// From this page on.
        from: u32,
    },
    /// Bytes of a page.
    Read {
        /// The page.
        page: u32,
        /// Where in it.
        offset: u32,
        /// How many; at most [`PIECE_LEN_MAX`].
        len: u32,
    },
    /// Writes to a page of the stream.
    Write {
        /// The page.
        page: u32,
        /// Where in it.
        offset: u32,
        /// What; at most [`PIECE_LEN_MAX`].
        bytes: &'a [u8],
    },
    /// What was written survives a loss of power.
    Sync,
}

/// What a server answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer<'a> {
    /// What there is, when a stripe is opened.
    There {
        /// Which stripe it is; 0: none yet.
        id: u64,
        /// Of its pages.
        sizes: Sizes,
    },
    /// So it is.
    Done,
    /// A page's number, or how many there are.
    Number(u64),
    /// Headers of pages.
    Headers {
        /// Where it goes on; `None`: those were all.
        next: Option<u32>,
        /// See [`HEADER_ENTRY_LEN`].
        entries: &'a [[u8; HEADER_ENTRY_LEN]],
    },
    /// Bytes of a page, as many as there are.
    Bytes(&'a [u8]),
    /// It cannot be done.
    Failed {
        /// For lack of space.
        is_full: bool,
        /// Why.
        text: &'a str,
    },
}

/// The number that stands for no page.
const NO_PAGE: u32 = u32::MAX;

fn put_sizes(out: &mut Vec<u8>, sizes: Sizes) {
    out.extend(sizes.into_iter().flat_map(u32::to_le_bytes));
}

/// All of the bytes, in pieces of this length.
fn pieces<const N: usize>(bytes: &[u8]) -> Option<&[[u8; N]]> {
    let (pieces, rest) = bytes.as_chunks();
    rest.is_empty().then_some(pieces)
}

impl<'a> Request<'a> {
    pub(super) fn kind(&self) -> u8 {
        match self {
            Self::Make { .. } => 6,
            Self::Join { .. } => 7,
            Self::Take => 8,
            Self::Release { .. } => 9,
            Self::Owned { .. } => 10,
            Self::Headers { .. } => 11,
            Self::Read { .. } => 12,
            Self::Write { .. } => 13,
            Self::Sync => 14,
        }
    }

    pub(super) fn put_fields(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Make { id, sizes } => {
                out.extend_from_slice(&id.to_le_bytes());
                put_sizes(out, sizes);
            }
            Self::Join { stream, streams } => {
                out.extend_from_slice(&stream.to_le_bytes());
                out.extend_from_slice(streams.as_flattened());
            }
            Self::Take | Self::Sync => {}
            Self::Release { pages } => out.extend_from_slice(pages.as_flattened()),
            Self::Owned { stream } => out.extend_from_slice(&stream.to_le_bytes()),
            Self::Headers { stream, from } => {
                out.extend_from_slice(&stream.to_le_bytes());
                out.extend_from_slice(&from.to_le_bytes());
            }
            Self::Read { page, offset, len } => {
                put_sizes(out, [page, offset, len]);
            }
            Self::Write {
                page,
                offset,
                bytes,
            } => {
                out.extend_from_slice(&page.to_le_bytes());
                out.extend_from_slice(&offset.to_le_bytes());
                out.extend_from_slice(bytes);
            }
        }
    }

    pub(super) fn of_kind(kind: u8, mut fields: Fields<'a>) -> Option<Self> {
        let request = match kind {
            6 => Self::Make {
                id: fields.u64()?,
                sizes: fields.sizes()?,
            },
            7 => Self::Join {
                stream: fields.u64()?,
                streams: pieces(fields.rest()).filter(|streams| streams.len() <= STREAMS_MAX)?,
            },
            8 => Self::Take,
            9 => Self::Release {
                pages: pieces(fields.rest())?,
            },
            10 => Self::Owned {
                stream: fields.u64()?,
            },
            11 => Self::Headers {
                stream: fields.u64()?,
                from: fields.u32()?,
            },
            12 => {
                let [page, offset, len] = fields.sizes()?;
                let is_short = usize::try_from(len).is_ok_and(|len| len <= PIECE_LEN_MAX);
                is_short.then_some(Self::Read { page, offset, len })?
            }
            13 => Self::Write {
                page: fields.u32()?,
                offset: fields.u32()?,
                bytes: Some(fields.rest()).filter(|bytes| bytes.len() <= PIECE_LEN_MAX)?,
            },
            14 => Self::Sync,
            _ => return None,
        };
        fields.end(Some(request))
    }
}

impl<'a> Answer<'a> {
    pub(super) fn kind(&self) -> u8 {
        match self {
            Self::There { .. } => 22,
            Self::Done => 23,
            Self::Number(_) => 24,
            Self::Headers { .. } => 25,
            Self::Bytes(_) => 26,
            Self::Failed { .. } => 27,
        }
    }

    pub(super) fn put_fields(&self, out: &mut Vec<u8>) {
        match *self {
            Self::There { id, sizes } => {
                out.extend_from_slice(&id.to_le_bytes());
                put_sizes(out, sizes);
            }
            Self::Done => {}
            Self::Number(number) => out.extend_from_slice(&number.to_le_bytes()),
            Self::Headers { next, entries } => {
                out.extend_from_slice(&next.unwrap_or(NO_PAGE).to_le_bytes());
                out.extend_from_slice(entries.as_flattened());
            }
            Self::Bytes(bytes) => out.extend_from_slice(bytes),
            Self::Failed { is_full, text } => {
                out.push(u8::from(is_full));
                out.extend_from_slice(super::cut(text).as_bytes());
            }
        }
    }

    pub(super) fn of_kind(kind: u8, mut fields: Fields<'a>) -> Option<Self> {
        let answer = match kind {
            22 => Self::There {
                id: fields.u64()?,
                sizes: fields.sizes()?,
            },
            23 => Self::Done,
            24 => Self::Number(fields.u64()?),
            25 => Self::Headers {
                next: Some(fields.u32()?).filter(|&next| next != NO_PAGE),
                entries: pieces(fields.rest()).filter(|entries| entries.len() <= HEADERS_MAX)?,
            },
            26 => Self::Bytes(Some(fields.rest()).filter(|bytes| bytes.len() <= PIECE_LEN_MAX)?),
            27 => {
                let [is_full] = fields.take()?;
                let text = std::str::from_utf8(fields.rest()).ok()?;
                let is_failure = is_full <= 1 && text.len() <= super::TEXT_LEN_MAX;
                is_failure.then_some(Self::Failed {
                    is_full: is_full == 1,
                    text,
                })?
            }
            _ => return None,
        };
        fields.end(Some(answer))
    }
}
