//! A spool: a stream of this machine whose records are sent to a server, and kept until it has confirmed them.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use strata_stream::{Cursor, Form, Retention, StreamName};
use strata_wire::unix_ns;

use super::producer::StreamProducer;
use crate::error::{Result, StreamError};
use crate::{SavedCursor, StreamDir, StreamReader, StreamSpec};

/// Records of a spool that are in memory have at most these bytes, or one of them has.
pub(super) const SPOOL_HELD_MAX: usize = 64 << 20;
/// Records that are read of a spool at once.
const AT_ONCE: u64 = 1_000;
/// Between saves of the cursor.
const SAVE_EVERY: Duration = Duration::from_secs(1);
/// The cursor of a spool: the server has confirmed the records before it.
const CURSOR: &str = "forwarded";

/// A stream that is sent, and kept until it is confirmed.
pub(super) struct Spool {
    dir: StreamDir,
    name: StreamName,
    reader: StreamReader,
    /// Cursors, with the numbers of the records there, that are not confirmed.
    ahead: VecDeque<(u64, Cursor)>,
    /// As it was saved last, and what could not be read since then.
    saved: SavedCursor,
    unread: u64,
    saved_at: Instant,
}

impl Spool {
    fn consumer() -> StreamName {
        CURSOR.parse().expect("a name")
    }

    /// Makes a stream that is about to be created a spool.
    fn make(dir: &StreamDir, name: &StreamName) -> Result<()> {
        let saved = SavedCursor {
            cursor: Cursor::START.to_string(),
            next_seq: Some(0),
            ..SavedCursor::none()
        };
        dir.save(name, &Self::consumer(), &saved)
    }

    pub(super) fn open(dir: StreamDir, name: StreamName) -> Result<(Self, u64)> {
        let mut reader = dir.read(&name)?;
        let saved = dir.saved(&name, &Self::consumer())?;
        let known = saved.and_then(|saved| {
            let cursor: Cursor = saved.cursor.parse().ok()?;
            Some((cursor, saved.next_seq?, saved))
        });
        let Some((cursor, next, saved)) = known else {
            return Err(StreamError::NotSpool {
                dir: dir.path.clone(),
                name: name.to_string(),
            });
        };
        // What was deleted before it could be sent counts, from the first record on.
        reader.seek(cursor, Some(next));
        let spool = Self {
            dir,
            name,
            reader,
            ahead: VecDeque::new(),
            saved,
            unread: 0,
            saved_at: Instant::now(),
        };
        Ok((spool, next))
    }

    /// Puts records that are durable; how many could not be read.
    pub(super) fn read(&mut self, producer: &mut StreamProducer, durable: Cursor) -> Result<u64> {
        let len_max = producer.record_len_max();
        let mut too_long = 0;
        self.reader.refresh()?;
        while producer.held_bytes() < SPOOL_HELD_MAX && self.reader.cursor() < durable {
            let count = self.reader.read(AT_ONCE, |entry| {
                // Sealed records have numbers.
                if let Some(seq) = entry.seq {
                    producer.skip_to(seq);
                }
                if len_max.is_some_and(|max| entry.payload.len() > max) {
                    producer.skip_to(producer.next() + 1);
                    too_long += 1;
                } else {
                    producer.put(entry.payload);
                }
                let goes_on = entry.next < durable && producer.held_bytes() < SPOOL_HELD_MAX;
                Ok::<bool, StreamError>(goes_on)
            })?;
            if count == 0 {
                break;
            }
            self.ahead
                .push_back((producer.next(), self.reader.cursor()));
        }
        Ok(self.news() + too_long)
    }

    /// How many more records were deleted before they could be read.
    pub(super) fn count_deleted(&mut self, durable: Cursor) -> Result<u64> {
        self.reader.refresh()?;
        if self.reader.cursor() < durable {
            self.reader.read(1, |_| Ok::<bool, StreamError>(false))?;
        }
        Ok(self.news())
    }

    /// Whether all that is durable was read.
    pub(super) fn is_read(&self, durable: Cursor) -> bool {
        self.reader.cursor() >= durable
    }

    /// Whether it is time to save what the server has confirmed.
    pub(super) fn is_save_due(&self) -> bool {
        self.saved_at.elapsed() >= SAVE_EVERY
    }

    /// Records that could not be read since this was asked.
    fn news(&mut self) -> u64 {
        let unread = self.reader.unread();
        let unread = unread.missing.0 + unread.expired;
        unread - std::mem::replace(&mut self.unread, unread)
    }

    /// Saves up to where the server has confirmed the records.
    pub(super) fn save(&mut self, confirmed: u64, given_up: u64, now: Instant) -> Result<()> {
        let mut reached = None;
        while let Some(&(number, cursor)) = self.ahead.front()
            && number <= confirmed
        {
            reached = Some((number, cursor));
            self.ahead.pop_front();
        }
        if let Some((number, cursor)) = reached {
            self.saved.cursor = cursor.to_string();
            self.saved.next_seq = Some(number);
            self.saved.expired += given_up;
            self.saved.time_ns = unix_ns();
            self.saved_at = now;
            self.dir.save(&self.name, &Self::consumer(), &self.saved)?;
        }
        Ok(())
    }
}

/// A directory as a spool, made if need be, with a stream in it that is kept to a size.
///
/// # Errors
///
/// If there is a stream of this name that is not a spool.
pub fn spool(path: &Path, stream: &StreamName, bytes_max: u64) -> Result<StreamDir> {
    let dir = StreamDir::create(path, None)?;
    let spec = StreamSpec {
        retention: Retention {
            bytes: Some(bytes_max),
            age: None,
        },
        form: Form::Sealed,
    };
    if !dir.names()?.contains(stream) {
        Spool::make(&dir, stream)?;
        dir.create_stream(stream, &spec, unix_ns())?;
    } else if dir.saved(stream, &Spool::consumer())?.is_none() {
        return Err(StreamError::NotSpool {
            dir: path.display().to_string(),
            name: stream.to_string(),
        });
    }
    Ok(dir)
}
