//! What clients and a server of streams say to each other over TCP.
//!
//! A client begins with [`MAGIC`]. Then both send frames: the length u32 of what follows, a kind u8,
//! and what the kind has. Little-endian; `docs/formats/stream.md` has the fields.

mod fields;
mod frames;
mod stripe;

use strata_wire::exact;

pub use frames::Frames;
pub use stripe::{
    ALL_STREAMS, Answer, HEADER_ENTRY_LEN, HEADERS_MAX, PAGES_MAX, PIECE_LEN_MAX, Request,
    STREAMS_MAX, Sizes,
};

use crate::{Cursor, Origin, RECORD_LEN_MAX};
use fields::{Fields, put_cursor, put_name, put_named};

/// What a client sends first.
pub const MAGIC: [u8; 8] = *b"STRNET02";
/// The longest frame, without its length: a record of a stream, and its description.
pub const FRAME_LEN_MAX: usize = RECORD_LEN_MAX + 160;
/// The longest frame of a client that has not asked for anything yet.
pub const ASK_LEN_MAX: usize = 256;
/// The longest text of a refusal.
const TEXT_LEN_MAX: usize = 4096;
/// Records were deleted before they could be read, and their number is unknown.
pub const UNCOUNTED: u64 = u64::MAX;
/// No number.
const NONE: u64 = u64::MAX;

/// Where a client begins to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum From {
    /// At a cursor.
    Cursor(Cursor),
    /// With the records since this time, ns since 1970.
    Since(u64),
    /// With this number of records at the end.
    Last(u64),
}

/// A message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// Client: a producer appends to this stream from now on.
    Append {
        /// The producer's id; never 0.
        id: u64,
        /// The producer's name.
        producer: &'a str,
        /// The stream.
        name: &'a str,
    },
    /// Client: the number of the next record, among those of its producer.
    Start(u64),
    /// Client: wants records of this stream, or of several.
    Tail {
        /// The stream; or a [`NamePattern`](crate::NamePattern) of those that are read together, in order of time.
        name: &'a str,
        /// The first one.
        from: From,
        /// The most records.
        max: u64,
        /// And new ones as they come.
        follow: bool,
    },
    /// Client: wants the records of this stream after a cursor that the server keeps under a name.
    TailKept {
        /// The stream, or a pattern as of [`Message::Tail`].
        name: &'a str,
        /// The cursor's name.
        consumer: &'a str,
        /// The most records.
        max: u64,
        /// And new ones as they come.
        follow: bool,
    },
    /// Client: has done with this number of records of the connection, so the server may save the cursor after them.
    Took(u64),
    /// Client: appends or reads pages of streams that are elsewhere, which it asks for by [`Request`]s.
    Stripe {
        /// One that the server offers.
        name: &'a str,
    },
    /// Client: what it asks of the stripe.
    Request(Request<'a>),
    /// Server: what it answers.
    Answer(Answer<'a>),
    /// Client: the producer's next record.
    Record(&'a [u8]),
    /// Client: no more records.
    End,
    /// Server: no, and why; nothing follows.
    Refused(&'a str),
    /// Server: go on.
    Ready {
        /// The longest record of the stream.
        record_len_max: u32,
        /// The number of the producer's next record: the stream has those before it.
        next: u64,
    },
    /// Server: the producer's records with a smaller number survive a loss of power; or, to a reader, the cursor after
    /// this number of records is saved.
    Synced(u64),
    /// Server: the next records are of this stream, to a reader of several.
    Of(&'a str),
    /// Server: what does not work, to a reader, for which the rest goes on.
    Warning(&'a str),
    /// Server: a record.
    Entry {
        /// Where reading goes on after it.
        next: Cursor,
        /// Its number, if its form has one.
        seq: Option<u64>,
        /// When it was appended, ns since 1970.
        time_ns: u64,
        /// Its producer, if it came from one.
        origin: Option<Origin<'a>>,
        /// The record.
        payload: &'a [u8],
    },
    /// Server: what could not be read so far, of this connection.
    Unread {
        /// Missing: at least, and at most.
        missing: (u64, u64),
        /// Deleted before they could be read, or [`UNCOUNTED`].
        expired: u64,
    },
    /// Server: no more records.
    Done {
        /// Of a reader: the records of this connection; of a producer: the number of its next record.
        records: u64,
        /// The place after the last one.
        cursor: Cursor,
    },
}

/// Bytes that are no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MessageError {
    /// The connection does not begin as a client's.
    #[error("not a client of strata stream: its first bytes are wrong")]
    Magic,
    /// A frame is longer than it may be.
    #[error("a frame of {len} bytes is too long: at most {max} are allowed")]
    Long {
        /// How long.
        len: usize,
        /// How long it may be.
        max: usize,
    },
    /// A frame is not as its kind says.
    #[error("an invalid frame of kind {kind}: {problem}")]
    Frame {
        /// Its kind.
        kind: u8,
        /// What is wrong.
        problem: &'static str,
    },
}

/// Text as far as a frame may have it.
fn cut(text: &str) -> &str {
    let most = text.len().min(TEXT_LEN_MAX);
    let end = (0..=most).rev().find(|&end| text.is_char_boundary(end));
    end.map_or("", |end| &text[..end])
}

impl<'a> Message<'a> {
    fn kind(&self) -> u8 {
        match self {
            Self::Append { .. } => 1,
            Self::Tail { .. } => 2,
            Self::Record(_) => 3,
            Self::End => 4,
            Self::Stripe { .. } => 5,
            Self::Request(request) => request.kind(),
            Self::Answer(answer) => answer.kind(),
            Self::Start(_) => 15,
            Self::Refused(_) => 16,
            Self::Ready { .. } => 17,
            Self::Synced(_) => 18,
            Self::Entry { .. } => 19,
            Self::Unread { .. } => 20,
            Self::Done { .. } => 21,
            Self::TailKept { .. } => 28,
            Self::Took(_) => 29,
            Self::Of(_) => 30,
            Self::Warning(_) => 31,
        }
    }

    /// Appends the message, as a frame, to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        out.push(self.kind());
        match *self {
            Self::Append { id, producer, name } => {
                put_named(out, id, producer);
                out.extend_from_slice(name.as_bytes());
            }
            Self::Stripe { name } => out.extend_from_slice(name.as_bytes()),
            Self::Start(number) => out.extend_from_slice(&number.to_le_bytes()),
            Self::Request(request) => request.put_fields(out),
            Self::Answer(answer) => answer.put_fields(out),
            Self::Tail {
                name,
                from,
                max,
                follow,
            } => {
                let (kind, cursor) = match from {
                    From::Cursor(cursor) => (0, cursor),
                    From::Since(time_ns) => (1, Cursor::page(time_ns)),
                    From::Last(records) => (2, Cursor::page(records)),
                };
                out.extend_from_slice(&[kind, u8::from(follow)]);
                put_cursor(out, cursor);
                out.extend_from_slice(&max.to_le_bytes());
                out.extend_from_slice(name.as_bytes());
            }
            Self::TailKept {
                name,
                consumer,
                max,
                follow,
            } => {
                out.push(u8::from(follow));
                out.extend_from_slice(&max.to_le_bytes());
                put_name(out, consumer);
                out.extend_from_slice(name.as_bytes());
            }
            Self::Took(records) => out.extend_from_slice(&records.to_le_bytes()),
            Self::Record(payload) => out.extend_from_slice(payload),
            Self::End => {}
            Self::Refused(text) | Self::Warning(text) => {
                out.extend_from_slice(cut(text).as_bytes());
            }
            Self::Of(name) => out.extend_from_slice(name.as_bytes()),
            Self::Ready {
                record_len_max,
                next,
            } => {
                out.extend_from_slice(&record_len_max.to_le_bytes());
                out.extend_from_slice(&next.to_le_bytes());
            }
            Self::Synced(records) => out.extend_from_slice(&records.to_le_bytes()),
            Self::Entry {
                next,
                seq,
                time_ns,
                origin,
                payload,
            } => {
                put_cursor(out, next);
                out.extend_from_slice(&seq.unwrap_or(NONE).to_le_bytes());
                out.extend_from_slice(&time_ns.to_le_bytes());
                let (id, name, number) =
                    origin.map_or((0, "", 0), |from| (from.id, from.name, from.number));
                out.extend_from_slice(&number.to_le_bytes());
                put_named(out, id, name);
                out.extend_from_slice(payload);
            }
            Self::Unread { missing, expired } => {
                for count in [missing.0, missing.1, expired] {
                    out.extend_from_slice(&count.to_le_bytes());
                }
            }
            Self::Done { records, cursor } => {
                out.extend_from_slice(&records.to_le_bytes());
                put_cursor(out, cursor);
            }
        }
        let len = exact::<u32>(out.len().wrapping_sub(start).wrapping_sub(4));
        out[start..start.wrapping_add(4)].copy_from_slice(&len.to_le_bytes());
    }

    /// Reads a frame without its length.
    ///
    /// # Errors
    ///
    /// If it is invalid.
    pub fn parse(frame: &'a [u8]) -> Result<Self, MessageError> {
        let Some((&kind, body)) = frame.split_first() else {
            return Err(MessageError::Frame {
                kind: 0,
                problem: "it is empty",
            });
        };
        Self::of_kind(kind, body).ok_or(MessageError::Frame {
            kind,
            problem: "an unknown kind, or fields that do not belong to it",
        })
    }

    fn of_kind(kind: u8, body: &'a [u8]) -> Option<Self> {
        let mut fields = Fields(body);
        match kind {
            1 => {
                let (id, producer) = fields.named()?;
                let name = fields.text()?;
                (id > 0).then_some(Self::Append { id, producer, name })
            }
            2 => {
                let [kind, follow] = fields.take()?;
                let cursor = fields.cursor()?;
                let from = match (kind, cursor.offset) {
                    (0, _) => From::Cursor(cursor),
                    (1, 0) => From::Since(cursor.index),
                    (2, 0) => From::Last(cursor.index),
                    _ => return None,
                };
                let max = fields.u64()?;
                let name = fields.text()?;
                (follow <= 1).then_some(Self::Tail {
                    name,
                    from,
                    max,
                    follow: follow == 1,
                })
            }
            3 => (body.len() <= RECORD_LEN_MAX).then_some(Self::Record(body)),
            4 => fields.end(Some(Self::End)),
            5 => fields.text().map(|name| Self::Stripe { name }),
            6..=14 => Request::of_kind(kind, fields).map(Self::Request),
            15 => {
                let number = fields.u64();
                fields.end(number.map(Self::Start))
            }
            16 => fields.text().map(Self::Refused),
            17 => {
                let record_len_max = fields.u32()?;
                let next = fields.u64();
                fields.end(next.map(|next| Self::Ready {
                    record_len_max,
                    next,
                }))
            }
            18 => {
                let records = fields.u64();
                fields.end(records.map(Self::Synced))
            }
            19 => {
                let (next, seq, time_ns) = (fields.cursor()?, fields.u64()?, fields.u64()?);
                let number = fields.u64()?;
                let (id, name) = fields.named()?;
                let origin = Origin { id, name, number };
                let payload = fields.0;
                let is_whole = id > 0 || (number == 0 && name.is_empty());
                (is_whole && payload.len() <= RECORD_LEN_MAX).then_some(Self::Entry {
                    next,
                    seq: (seq != NONE).then_some(seq),
                    time_ns,
                    origin: (id > 0).then_some(origin),
                    payload,
                })
            }
            20 => {
                let missing = (fields.u64()?, fields.u64()?);
                let expired = fields.u64();
                fields.end(expired.map(|expired| Self::Unread { missing, expired }))
            }
            21 => {
                let records = fields.u64()?;
                let cursor = fields.cursor();
                fields.end(cursor.map(|cursor| Self::Done { records, cursor }))
            }
            28 => {
                let [follow] = fields.take()?;
                let (max, consumer) = (fields.u64()?, fields.name()?);
                let name = fields.text()?;
                (follow <= 1).then_some(Self::TailKept {
                    name,
                    consumer,
                    max,
                    follow: follow == 1,
                })
            }
            29 => {
                let records = fields.u64();
                fields.end(records.map(Self::Took))
            }
            30 => fields.text().map(Self::Of),
            31 => fields.text().map(Self::Warning),
            22..=27 => Answer::of_kind(kind, fields).map(Self::Answer),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cursors() -> impl Strategy<Value = Cursor> {
        any::<(u64, u32)>().prop_map(|(index, offset)| Cursor { index, offset })
    }

    fn request(kind: usize, bytes: &[u8], n: u64) -> Request<'_> {
        let page = u32::try_from(n >> 32).unwrap();
        match kind {
            0 => Request::Make {
                id: n,
                sizes: [1, 2, page],
            },
            1 => Request::Join {
                stream: n,
                streams: bytes.as_chunks().0,
            },
            2 => Request::Take,
            3 => Request::Release {
                pages: bytes.as_chunks().0,
            },
            4 => Request::Owned { stream: n },
            5 => Request::Headers {
                stream: n,
                from: page,
            },
            6 => Request::Read {
                page,
                offset: 7,
                len: 1 << 20,
            },
            7 => Request::Write {
                page,
                offset: 7,
                bytes,
            },
            _ => Request::Sync,
        }
    }

    fn answer<'a>(kind: usize, text: &'a str, bytes: &'a [u8], n: u64) -> Answer<'a> {
        match kind {
            0 => Answer::There {
                id: n,
                sizes: [3, 2, 1],
            },
            1 => Answer::Done,
            2 => Answer::Number(n),
            3 => Answer::Headers {
                next: u32::try_from(n).ok().filter(|&next| next != u32::MAX),
                entries: bytes.as_chunks().0,
            },
            4 => Answer::Bytes(bytes),
            _ => Answer::Failed {
                is_full: n.is_multiple_of(2),
                text,
            },
        }
    }

    /// Any message, of these bytes.
    fn message(kind: usize, text: &str, bytes: &[u8], cursor: Cursor, n: u64) -> Vec<u8> {
        let from = match n % 3 {
            0 => From::Cursor(cursor),
            1 => From::Since(n),
            _ => From::Last(n),
        };
        let message = match kind {
            0 => Message::Append {
                id: n.max(1),
                producer: text,
                name: text,
            },
            1 => Message::Tail {
                name: text,
                from,
                max: n,
                follow: n.is_multiple_of(2),
            },
            2 => Message::Record(bytes),
            3 => Message::End,
            4 => Message::Refused(text),
            5 => Message::Ready {
                record_len_max: 7,
                next: n,
            },
            6 => Message::Synced(n),
            7 => Message::Entry {
                next: cursor,
                seq: (n != NONE).then_some(n),
                time_ns: n,
                origin: (!n.is_multiple_of(2)).then_some(Origin {
                    id: n,
                    name: text,
                    number: !n,
                }),
                payload: bytes,
            },
            8 => Message::Unread {
                missing: (n, NONE),
                expired: 1,
            },
            9 => Message::Stripe { name: text },
            10..19 => Message::Request(request(kind - 10, bytes, n)),
            19..25 => Message::Answer(answer(kind - 19, text, bytes, n)),
            25 => Message::Start(n),
            27 => Message::TailKept {
                name: text,
                consumer: text,
                max: n,
                follow: n.is_multiple_of(2),
            },
            28 => Message::Took(n),
            29 => Message::Of(text),
            30 => Message::Warning(text),
            _ => Message::Done { records: n, cursor },
        };
        let mut out = Vec::new();
        message.emit(&mut out);
        assert_eq!(Message::parse(&out[4..]), Ok(message));
        out
    }

    proptest! {
        #[test]
        fn frames_are_read_however_they_are_cut(
            kinds in prop::collection::vec(0..32_usize, 1..20),
            text in "[a-z.]{0,64}",
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            cursor in cursors(),
            n: u64,
            cut in 1..100_usize,
        ) {
            let frames: Vec<_> =
                kinds.iter().map(|&kind| message(kind, &text, &bytes, cursor, n)).collect();
            let all: Vec<u8> = [&MAGIC[..], &frames.concat()].concat();
            let mut reader = Frames::of_client();
            reader.allow_records();
            let mut read = Vec::new();
            for piece in all.chunks(cut) {
                reader.push(piece);
                while let Some(message) = reader.next_message().unwrap() {
                    let mut again = Vec::new();
                    message.emit(&mut again);
                    read.push(again);
                }
            }
            prop_assert_eq!(read, frames);
        }

        #[test]
        fn any_bytes_are_a_message_or_none(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(message) = Message::parse(&bytes) {
                let mut again = Vec::new();
                message.emit(&mut again);
                prop_assert_eq!(&again[4..], &bytes[..]);
            }
        }
    }

    #[test]
    fn strangers_are_held_to_little() {
        let mut http = Frames::of_client();
        http.push(b"GET / HTTP/1.1\r\n");
        assert_eq!(http.next_message(), Err(MessageError::Magic));
        let mut long = Frames::of_client();
        long.push(&MAGIC);
        long.push(&1_000_u32.to_le_bytes());
        let refused = MessageError::Long {
            len: 1_000,
            max: ASK_LEN_MAX,
        };
        assert_eq!(long.next_message(), Err(refused));
        let mut longer = Frames::of_server();
        longer.push(&u32::MAX.to_le_bytes());
        assert!(matches!(
            longer.next_message(),
            Err(MessageError::Long { .. })
        ));
    }
}
