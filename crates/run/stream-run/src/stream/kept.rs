//! A cursor that is kept under a name for a reader: it is saved once the reader has said that it has done with the
//! records before it. A server's clients and readers on this machine share the same files.

use std::collections::VecDeque;

use strata_stream::{Cursor, StreamName};
use strata_wire::unix_ns;

use crate::error::Result;
use crate::{SavedCursor, StreamDir, StreamError, StreamReader, Unread};

/// Places that are remembered between those that the reader has done with and those that were sent.
const PLACES_MAX: usize = 4096;

/// A place in the stream, with what was known there.
#[derive(Clone, Copy)]
struct Passed {
    /// Records of this connection before it.
    records: u64,
    cursor: Cursor,
    next_seq: Option<u64>,
    unread: Unread,
}

impl Passed {
    fn of(reader: &StreamReader, records: u64) -> Self {
        Self {
            records,
            cursor: reader.cursor(),
            next_seq: reader.next_seq(),
            unread: reader.unread(),
        }
    }
}

/// A cursor of a connection.
pub(crate) struct KeptCursor {
    dir: StreamDir,
    stream: StreamName,
    consumer: StreamName,
    /// As it was saved before this connection.
    before: SavedCursor,
    /// The last place that the reader has done with, and later ones.
    base: Passed,
    later: VecDeque<Passed>,
    /// Records that were sent, and that the reader has done with.
    sent: u64,
    took: u64,
}

impl KeptCursor {
    /// Puts a reader to the cursor of this name, or to the oldest record if there is none yet. There is none yet, and the
    /// stream has `cursors_max` others: that is an error.
    pub(crate) fn open(
        dir: &StreamDir,
        (stream, consumer): (&StreamName, &StreamName),
        cursors_max: Option<usize>,
        reader: &mut StreamReader,
    ) -> Result<Self> {
        let saved = dir.saved(stream, consumer)?;
        match &saved {
            Some(saved) => {
                let cursor = saved
                    .cursor
                    .parse()
                    .expect("it was parsed when it was read");
                reader.seek(cursor, saved.next_seq);
            }
            None => {
                if let Some(max) = cursors_max
                    && dir.count_saved(stream)? >= max
                {
                    return Err(StreamError::Cursors {
                        name: stream.to_string(),
                        max,
                    });
                }
                reader.seek(Cursor::START, None);
            }
        }
        Ok(Self {
            dir: dir.clone(),
            stream: stream.clone(),
            consumer: consumer.clone(),
            before: saved.unwrap_or_else(SavedCursor::none),
            base: Passed::of(reader, 0),
            later: VecDeque::new(),
            sent: 0,
            took: 0,
        })
    }

    /// Records were sent, this number in all.
    pub(crate) fn sent(&mut self, reader: &StreamReader, records: u64) {
        self.sent = records;
        let place = Passed::of(reader, records);
        // What is missing at the end may be known later than the records before it.
        if self
            .later
            .back()
            .is_some_and(|last| last.records == records)
        {
            self.later.pop_back();
        }
        if self.later.len() < PLACES_MAX {
            self.later.push_back(place);
        }
    }

    /// One more record was sent, which the reader had read before.
    pub(crate) fn sent_one(&mut self) {
        self.sent = self.sent.saturating_add(1);
    }

    /// The reader has done with this number of records in all; whether it can have that number.
    pub(crate) fn took(&mut self, records: u64) -> bool {
        let can_be = (self.took..=self.sent).contains(&records);
        if can_be {
            self.took = records;
        }
        can_be
    }

    /// Saves the cursor after what the reader has done with; returns that number of records. Records between a place
    /// that is remembered and that cursor are read again.
    pub(crate) fn save(&mut self) -> Result<u64> {
        while let Some(&place) = self.later.front()
            && place.records <= self.took
        {
            self.base = place;
            self.later.pop_front();
        }
        let more = self.took - self.base.records;
        if more > 0 {
            let mut again = self.dir.read(&self.stream)?;
            again.seek(self.base.cursor, self.base.next_seq);
            again.read::<StreamError>(more, |_| Ok(true))?;
            let since = again.unread();
            let unread = &mut self.base.unread;
            unread.missing.0 += since.missing.0;
            unread.missing.1 += since.missing.1;
            unread.expired += since.expired;
            self.base = Passed {
                unread: *unread,
                ..Passed::of(&again, self.took)
            };
        }
        let saved = SavedCursor {
            cursor: self.base.cursor.to_string(),
            next_seq: self.base.next_seq,
            missing: self.before.missing + self.base.unread.missing.0,
            expired: self.before.expired + self.base.unread.expired,
            time_ns: unix_ns(),
        };
        self.dir.save(&self.stream, &self.consumer, &saved)?;
        Ok(self.took)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use strata_store::Disk as _;
    use strata_stream::{Form, Geometry, Retention};
    use strata_testkit_disk::SimDisk;

    use super::*;
    use crate::StreamSpec;

    /// Reads on, and tells the cursor; the number of the last record.
    fn send(kept: &mut KeptCursor, reader: &mut StreamReader, records: u64) -> Option<u64> {
        let mut last = None;
        let read = reader.read::<StreamError>(records, |entry| {
            last = entry.seq;
            Ok(true)
        });
        let sent = kept.sent + read.unwrap();
        kept.sent(reader, sent);
        last
    }

    /// Also if that is in the middle of what was sent at once; a record that is missing counts once.
    #[test]
    fn the_cursor_is_saved_after_the_records_that_the_reader_has_done_with() {
        let disk = SimDisk::new();
        let geometry = Geometry {
            directory_bytes: 64,
            table_bytes: 4096,
            page_bytes: 1 << 16,
        };
        let dir = StreamDir::simulated(Arc::new(disk.clone()), geometry).unwrap();
        let (stream, me): (StreamName, StreamName) =
            ("events".parse().unwrap(), "me".parse().unwrap());
        let spec = StreamSpec {
            retention: Retention {
                bytes: None,
                age: None,
            },
            form: Form::Sealed,
        };
        dir.create_stream(&stream, &spec, 1).unwrap();
        let mut appender = dir.append(&stream, 1).unwrap();
        let mut places = Vec::new();
        for number in 0..3_000_u32 {
            appender.append(1, &number.to_le_bytes()).unwrap();
            places.push(appender.end());
        }
        appender.close(1).unwrap();
        // Record 1200 is lost.
        let at = places[1_199];
        let at = at.index * u64::from(geometry.page_bytes) + u64::from(at.offset);
        let mut pages = disk.open("pages", true).unwrap();
        pages.write_at(&[0; 16], at).unwrap();
        let mut reader = dir.read(&stream).unwrap();
        let mut kept = KeptCursor::open(&dir, (&stream, &me), None, &mut reader).unwrap();
        assert_eq!(send(&mut kept, &mut reader, 1_000), Some(999));
        assert_eq!(send(&mut kept, &mut reader, 1_000), Some(2_000));
        assert!(!kept.took(2_001), "more than was sent");
        assert!(kept.took(1_500));
        assert!(!kept.took(1_499), "it has done with them already");
        assert_eq!(kept.save().unwrap(), 1_500);
        let saved = dir.saved(&stream, &me).unwrap().unwrap();
        assert_eq!(saved.cursor, places[1_500].to_string());
        assert_eq!((saved.next_seq, saved.missing), (Some(1_501), 1));
        // The next reader goes on there.
        let mut reader = dir.read(&stream).unwrap();
        let mut kept = KeptCursor::open(&dir, (&stream, &me), None, &mut reader).unwrap();
        assert_eq!(send(&mut kept, &mut reader, 1), Some(1_501));
        assert!(kept.took(1));
        assert_eq!(kept.save().unwrap(), 1);
        let saved = dir.saved(&stream, &me).unwrap().unwrap();
        assert_eq!(saved.cursor, places[1_501].to_string());
        assert_eq!((saved.next_seq, saved.missing), (Some(1_502), 1));
    }
}
