//! The window: the part of a file that is in memory.
//!
//! ```text
//!  0      start      position       end                 limit         len
//!  | free | consumed | not yet used | free for the next read | grown  |
//! ```
//!
//! Before `start` there is space for what the previous read left unused, so that each read begins at a
//! page: to other places, some CPUs copy at a third of the speed. The window is as large as requested
//! (small enough to stay in the second-level cache) and grows only when one packet or block is larger, with
//! the bytes that really arrive: a false length costs no memory.
//!
//! Over a file in view it has no buffer, and moves on without a copy: see [`mapped`](super::mapped).

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;

use strata_sys::AlignedBytes;

use super::ahead::{self, Ahead, Ended, HEADROOM};
use super::mapped::Mapped;

/// Window size limits, in bytes. The upper one covers the largest packet of any link type with its
/// options, and leaves a descriptor's offset its two flag bits.
const WINDOW_BYTES_MIN: usize = 4 << 10;
const WINDOW_BYTES_MAX: usize = 1 << 28;
/// A window over a mapped file is this many times larger: no copy of it has to fit a cache, and
/// walkers search for packets once in each.
const MAPPED_TIMES: usize = 2;
/// Reads begin at multiples of this.
const PAGE: usize = strata_sys::ALIGNMENT;

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
    buffer: AlignedBytes,
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
    /// No buffer: `start` and `end` are offsets in the file.
    Mapped(Mapped),
}

impl Window {
    /// A window of `bytes`, filled by a thread of its own if `read_ahead`.
    pub(crate) fn new(
        reader: Box<dyn Read + Send + Sync>,
        bytes: usize,
        read_ahead: bool,
    ) -> io::Result<Self> {
        let limit = limit(bytes);
        let feed = if read_ahead {
            Feed::Ahead(Ahead::start(reader, limit)?)
        } else {
            Feed::InPlace(reader)
        };
        Ok(Self {
            buffer: match &feed {
                Feed::InPlace(_) => AlignedBytes::zeroed(room(limit)),
                Feed::Ahead(_) | Feed::Mapped(_) => AlignedBytes::default(),
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

    /// A window over a regular file that has not been read yet: in view if it has `viewed_min` bytes and
    /// the system permits, else as [`Window::new`].
    pub(crate) fn of_file(
        file: File,
        bytes: usize,
        read_ahead: bool,
        viewed_min: u64,
    ) -> io::Result<Self> {
        let Some(mapped) = Mapped::of(&file, read_ahead, viewed_min)? else {
            return Self::new(Box::new(file), bytes, read_ahead);
        };
        Ok(Self {
            buffer: AlignedBytes::default(),
            feed: Feed::Mapped(mapped),
            start: 0,
            position: 0,
            end: 0,
            limit: limit(bytes),
            base: 0,
            ended: None,
        })
    }

    /// All bytes in memory; positions are relative to their start.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.feed {
            Feed::Mapped(mapped) => mapped.bytes(self.start, self.end),
            Feed::InPlace(_) | Feed::Ahead(_) => &self.buffer[self.start..self.end],
        }
    }

    /// Whether its bytes are in no cache of this core: a thread of its own reads the file, or nothing does.
    pub(crate) fn is_cold(&self) -> bool {
        !matches!(self.feed, Feed::InPlace(_))
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

    /// Skips `bytes` bytes.
    pub(crate) fn skip(&mut self, bytes: usize) {
        self.set_position(self.position.saturating_add(bytes));
    }

    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// The bytes not yet used: how many.
    fn left(&self) -> usize {
        self.end.saturating_sub(self.start)
    }

    /// Reads until `need` bytes follow the position. Moves what is in memory.
    pub(crate) fn fetch(&mut self, need: usize) -> io::Result<Fetched> {
        debug_assert!(need <= WINDOW_BYTES_MAX);
        // A position in a file, which has 2^63 bytes at most, and one in its window.
        self.base = self.base.saturating_add(self.position as u64);
        self.start = self.start.saturating_add(self.position);
        self.position = 0;
        if let Feed::Mapped(mapped) = &mut self.feed {
            let bytes = self.limit.saturating_mul(MAPPED_TIMES);
            let end = mapped.bring(self.start, bytes, need);
            self.end = self.end.max(end);
            if self.left() >= need {
                return Ok(Fetched::Enough);
            }
            self.read_on()?;
        }
        if let Feed::InPlace(_) = self.feed {
            // The buffer has whole pages too.
            let left = self.start..self.end;
            self.end = left.len().next_multiple_of(PAGE);
            self.start = self.end.saturating_sub(left.len());
            self.buffer.copy_within(left, self.start);
        }
        while self.left() < need {
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
                    let limit = room(self.limit.max(need));
                    if self.end == self.buffer.len() {
                        let bytes = self.end.saturating_mul(2).min(limit);
                        grow(&mut self.buffer, self.start..self.end, bytes);
                    }
                    let to = limit.min(self.buffer.len());
                    match ahead::read(reader, &mut self.buffer[self.end..to]) {
                        Ok(bytes) => self.end = self.end.saturating_add(bytes),
                        Err(ended) => self.ended = Some(ended),
                    }
                }
                Feed::Ahead(_) => self.next_chunk()?,
                Feed::Mapped(_) => self.read_on()?,
            }
        }
        Ok(Fetched::Enough)
    }

    /// Whether all bytes so far were the file's.
    ///
    /// # Errors
    ///
    /// If it is in view, and was truncated while it was.
    pub(crate) fn check(&self) -> io::Result<()> {
        match &self.feed {
            Feed::Mapped(mapped) => mapped.check(),
            Feed::InPlace(_) | Feed::Ahead(_) => Ok(()),
        }
    }

    /// Whether the file is not copied.
    pub(crate) fn is_mapped(&self) -> bool {
        matches!(self.feed, Feed::Mapped(_))
    }

    /// Reads a mapped file from its position on.
    pub(crate) fn read_on(&mut self) -> io::Result<()> {
        let Feed::Mapped(mapped) = &self.feed else {
            return Ok(());
        };
        let at = self.start.saturating_add(self.position);
        let file = Box::new(mapped.read_from(at)?);
        self.base = at as u64;
        self.buffer = AlignedBytes::default();
        (self.start, self.position, self.end) = (0, 0, 0);
        self.feed = match mapped.is_ahead() {
            true => Feed::Ahead(Ahead::start(file, self.limit)?),
            false => Feed::InPlace(file),
        };
        if let Feed::InPlace(_) = self.feed {
            self.buffer = AlignedBytes::zeroed(room(self.limit));
        }
        Ok(())
    }

    /// Continues in the next buffer that was read ahead: the rest is moved in front of its data, or
    /// its data behind the rest.
    fn next_chunk(&mut self) -> io::Result<()> {
        let left = self.left();
        let Feed::Ahead(ahead) = &mut self.feed else {
            return Ok(());
        };
        let mut chunk = ahead.next()?;
        self.ended = chunk.ended;
        if let Some(start) = HEADROOM.checked_sub(left) {
            chunk.buffer[start..HEADROOM].copy_from_slice(&self.buffer[self.start..self.end]);
            let used = std::mem::replace(&mut self.buffer, chunk.buffer);
            (self.start, self.end) = (start, chunk.end);
            ahead.give_back(used);
            return Ok(());
        }
        let added = &chunk.buffer[HEADROOM..chunk.end];
        // Both are far below 2^32: a packet and a chunk.
        let all = left.saturating_add(added.len());
        if self.buffer.len().saturating_sub(self.end) < added.len() {
            // Twice what is needed, so that a large packet is not copied over and over.
            let bytes = all.saturating_mul(2);
            if self.buffer.len() < bytes {
                let mut larger = AlignedBytes::zeroed(bytes);
                larger[..left].copy_from_slice(&self.buffer[self.start..self.end]);
                ahead.give_back(std::mem::replace(&mut self.buffer, larger));
            } else {
                self.buffer.copy_within(self.start..self.end, 0);
            }
            (self.start, self.end) = (0, left);
        }
        let end = self.end.saturating_add(added.len());
        self.buffer[self.end..end].copy_from_slice(added);
        self.end = end;
        ahead.give_back(chunk.buffer);
        Ok(())
    }
}

/// Bytes of a window, of those that are asked for.
fn limit(bytes: usize) -> usize {
    let limit = bytes.clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX / 16);
    limit.next_multiple_of(PAGE)
}

/// Bytes of a buffer for `bytes` bytes, wherever within a page they begin.
fn room(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE).saturating_add(PAGE)
}

/// Replaces a buffer by one of `bytes` bytes, with what is in use at the same place.
fn grow(buffer: &mut AlignedBytes, used: Range<usize>, bytes: usize) {
    let mut larger = AlignedBytes::zeroed(bytes.next_multiple_of(PAGE));
    larger[used.clone()].copy_from_slice(&buffer[used]);
    *buffer = larger;
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Where in its page each read begins, and where in the file.
    type Reads = Arc<Mutex<Vec<(usize, u64)>>>;

    /// A file of numbers that notes how it is read. As `open` does, it gives the first bytes apart.
    struct Noted {
        len: u64,
        at: u64,
        reads: Reads,
    }

    impl Read for Noted {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let place = buffer.as_ptr().addr() % PAGE;
            self.reads.lock().unwrap().push((place, self.at));
            let first = if self.at == 0 { 4 } else { usize::MAX };
            let left = usize::try_from(self.len - self.at).unwrap();
            let bytes = buffer.len().min(left).min(first);
            for (byte, at) in buffer[..bytes].iter_mut().zip(self.at..) {
                *byte = byte_at(at);
            }
            self.at += bytes as u64;
            Ok(bytes)
        }
    }

    fn byte_at(at: u64) -> u8 {
        (at ^ (at >> 8) ^ (at >> 16)).to_le_bytes()[0]
    }

    /// Reads a file in steps of these lengths, and returns where its reads began.
    fn read(len: u64, steps: &[usize], ahead: bool) -> Vec<(usize, u64)> {
        let reads = Reads::default();
        let reader = Noted {
            len,
            at: 0,
            reads: Arc::clone(&reads),
        };
        let mut window = Window::new(Box::new(reader), 64 << 10, ahead).unwrap();
        let mut at = 0;
        for &step in steps.iter().cycle() {
            if window.rest().len() < step && window.fetch(step).unwrap() != Fetched::Enough {
                break;
            }
            let bytes = &window.rest()[..step];
            assert!(
                (at..).zip(bytes).all(|(at, &byte)| byte == byte_at(at)),
                "{at}"
            );
            window.skip(step);
            at += step as u64;
        }
        at += window.rest().len() as u64;
        assert_eq!(at, len);
        // The thread may still be about to note the last one.
        drop(window);
        let reads = reads.lock().unwrap().clone();
        assert!(reads.len() > 2);
        reads
    }

    /// The kernel copies from pages to pages: each read begins in its page where it begins in the
    /// file's.
    #[test]
    fn reads_begin_at_pages() {
        for ahead in [false, true] {
            for steps in [
                &[1_000][..],
                &[60, 1_514, 9_000, 77],
                &[100_000, 3_000_000, 5],
            ] {
                let mut reads = read(5_000_000, steps, ahead);
                // That finds the end.
                reads.retain(|&(_, at)| at < 5_000_000);
                for (place, at) in reads {
                    assert_eq!(place as u64, at % PAGE as u64, "{ahead} {steps:?} {at}");
                }
            }
        }
    }
}
