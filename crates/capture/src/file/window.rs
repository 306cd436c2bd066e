//! The window: the part of a file that is in memory.
//!
//! ```text
//!  0      start      position       end                 limit         len
//!  | free | consumed | not yet used | free for the next read | grown  |
//! ```
//!
//! Read in place, there is no space before `start`; read ahead by a thread, there is some for what
//! the previous buffer left unused. The window is as large as requested (small enough to stay in
//! the second-level cache, which makes reading faster than mapping) and grows only when one packet
//! or block is larger, with the bytes that really arrive: a false length costs no memory.

use std::io::{self, Read};

use super::ahead::{self, Ahead, Ended, HEADROOM};

/// Window size limits, in bytes. The upper one covers the largest packet of any link type with its
/// options, and leaves a descriptor's offset its two flag bits.
const WINDOW_BYTES_MIN: usize = 4 << 10;
const WINDOW_BYTES_MAX: usize = 1 << 28;

/// Outcome of [`Window::fetch`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fetched {
    /// The requested bytes are there.
    Enough,
    /// The file ends earlier; `cut` if a compressed stream was truncated.
    End { cut: bool },
}

pub(crate) struct Window {
    feed: Feed,
    buffer: Vec<u8>,
    start: usize,
    /// Relative to `start`.
    position: usize,
    end: usize,
    /// Reads fill up to here; more only if one packet needs it.
    limit: usize,
    /// Offset in the file of the byte at `start`.
    base: u64,
    ended: Option<Ended>,
}

/// Where the bytes come from.
enum Feed {
    InPlace(Box<dyn Read + Send + Sync>),
    Ahead(Ahead),
}

impl Window {
    /// A window of `bytes`, filled by a thread of its own if `read_ahead`.
    pub(crate) fn new(
        reader: Box<dyn Read + Send + Sync>,
        bytes: usize,
        read_ahead: bool,
    ) -> io::Result<Self> {
        let limit = bytes.clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX / 16);
        let feed = if read_ahead {
            Feed::Ahead(Ahead::start(reader, limit)?)
        } else {
            Feed::InPlace(reader)
        };
        Ok(Self {
            buffer: match &feed {
                Feed::InPlace(_) => vec![0; limit],
                Feed::Ahead(_) => Vec::new(),
            },
            feed,
            start: 0,
            position: 0,
            end: 0,
            limit,
            base: 0,
            ended: None,
        })
    }

    /// All bytes in memory; positions are relative to their start.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Whether a thread of its own reads the file.
    pub(crate) fn is_read_ahead(&self) -> bool {
        matches!(self.feed, Feed::Ahead(_))
    }

    /// The bytes not yet used.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.bytes()[self.position..]
    }

    pub(crate) fn position(&self) -> usize {
        self.position
    }

    pub(crate) fn set_position(&mut self, position: usize) {
        assert!(position <= self.bytes().len());
        self.position = position;
    }

    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// Reads until `need` bytes follow the position. Moves what is in memory.
    pub(crate) fn fetch(&mut self, need: usize) -> io::Result<Fetched> {
        debug_assert!(need <= WINDOW_BYTES_MAX);
        self.base += self.position as u64;
        self.start += self.position;
        self.position = 0;
        if let Feed::InPlace(_) = self.feed {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        while self.end - self.start < need {
            match &mut self.ended {
                None => {}
                Some(Ended::Whole) => return Ok(Fetched::End { cut: false }),
                Some(Ended::Cut) => return Ok(Fetched::End { cut: true }),
                Some(failed) => {
                    let failed = std::mem::replace(failed, Ended::Whole);
                    let Ended::Failed(error) = failed else {
                        continue;
                    };
                    return Err(error);
                }
            }
            match &mut self.feed {
                Feed::InPlace(reader) => {
                    let limit = self.limit.max(need);
                    if self.end == self.buffer.len() {
                        self.buffer.resize((self.end * 2).min(limit), 0);
                    }
                    let to = limit.min(self.buffer.len());
                    match ahead::read(reader, &mut self.buffer[self.end..to]) {
                        Ok(bytes) => self.end += bytes,
                        Err(ended) => self.ended = Some(ended),
                    }
                }
                Feed::Ahead(_) => self.next_chunk()?,
            }
        }
        Ok(Fetched::Enough)
    }

    /// Continues in the next buffer that was read ahead: the rest is moved in front of its data, or
    /// both into a larger buffer.
    fn next_chunk(&mut self) -> io::Result<()> {
        let Feed::Ahead(ahead) = &mut self.feed else {
            return Ok(());
        };
        let mut chunk = ahead.next()?;
        self.ended = chunk.ended;
        let left = self.end - self.start;
        if left <= HEADROOM {
            let start = HEADROOM - left;
            chunk.buffer[start..HEADROOM].copy_from_slice(&self.buffer[self.start..self.end]);
            let used = std::mem::replace(&mut self.buffer, chunk.buffer);
            (self.start, self.end) = (start, chunk.end);
            ahead.give_back(used);
        } else {
            // Grows by doubling, so a large packet is not copied over and over.
            let added = &chunk.buffer[HEADROOM..chunk.end];
            if self.buffer.len() > self.limit + HEADROOM {
                if self.start > left {
                    self.buffer.drain(..self.start);
                    self.start = 0;
                }
                self.buffer.extend_from_slice(added);
            } else {
                let mut larger = Vec::with_capacity(2 * (left + added.len()));
                larger.extend_from_slice(&self.buffer[self.start..self.end]);
                larger.extend_from_slice(added);
                let used = std::mem::replace(&mut self.buffer, larger);
                self.start = 0;
                ahead.give_back(used);
            }
            self.end = self.buffer.len();
            ahead.give_back(chunk.buffer);
        }
        Ok(())
    }
}
