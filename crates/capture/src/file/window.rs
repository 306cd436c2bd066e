//! The window: the part of a file that is in memory.
//!
//! ```text
//!  0          position        end                 limit         len
//!  | consumed | not yet used  | free for the next read | grown  |
//! ```
//!
//! It is as large as asked for (small enough to stay in the second-level
//! cache, which is what makes reading faster than mapping) and grows only when
//! one packet or block is larger, with the bytes that really arrive: a lying
//! length costs no memory.

use std::io::{self, ErrorKind, Read};

/// Window size limits, in bytes. The upper one covers the largest packet of any
/// link type with its options, and leaves a descriptor's offset its two flags.
const WINDOW_BYTES_MIN: usize = 4 << 10;
const WINDOW_BYTES_MAX: usize = 1 << 28;

/// Outcome of [`Window::fetch`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fetched {
    /// The bytes asked for are there.
    Enough,
    /// The file ends before; `cut` if a compressed stream broke off.
    End { cut: bool },
}

pub(crate) struct Window {
    reader: Box<dyn Read + Send + Sync>,
    buffer: Vec<u8>,
    position: usize,
    end: usize,
    /// Reads fill up to here; more only if one packet needs it.
    limit: usize,
    /// Offset in the file of the buffer's first byte.
    base: u64,
    ended: Option<Ended>,
}

/// How a reader ended.
enum Ended {
    Whole,
    Cut,
}

impl Window {
    pub(crate) fn new(reader: Box<dyn Read + Send + Sync>, bytes: usize) -> Self {
        let limit = bytes.clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX / 16);
        Self {
            reader,
            buffer: vec![0; limit],
            position: 0,
            end: 0,
            limit,
            base: 0,
            ended: None,
        }
    }

    /// All bytes in memory; positions count from their start.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[..self.end]
    }

    /// The bytes not yet used.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.buffer[self.position..self.end]
    }

    pub(crate) fn position(&self) -> usize {
        self.position
    }

    pub(crate) fn set_position(&mut self, position: usize) {
        assert!(position <= self.end);
        self.position = position;
    }

    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// Reads until `need` bytes lie after the position. Moves what is in memory.
    pub(crate) fn fetch(&mut self, need: usize) -> io::Result<Fetched> {
        debug_assert!(need <= WINDOW_BYTES_MAX);
        self.buffer.copy_within(self.position..self.end, 0);
        self.base += self.position as u64;
        self.end -= self.position;
        self.position = 0;
        while self.end < need {
            if let Some(ended) = &self.ended {
                return Ok(Fetched::End {
                    cut: matches!(ended, Ended::Cut),
                });
            }
            let limit = self.limit.max(need);
            if self.end == self.buffer.len() {
                self.buffer.resize((self.end * 2).min(limit), 0);
            }
            let to = limit.min(self.buffer.len());
            match self.reader.read(&mut self.buffer[self.end..to]) {
                Ok(0) => self.ended = Some(Ended::Whole),
                Ok(bytes) => self.end += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // What decompressors say when their input ends within a stream.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    self.ended = Some(Ended::Cut);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Fetched::Enough)
    }
}
