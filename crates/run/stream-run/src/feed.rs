//! A stream as the output of a role: a bounded queue, and a thread that appends what is in it. So
//! the producer of records never waits for the disk, unless it wants to.

use std::io;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use strata_role::FeedCounts;
use strata_stream::StreamName;
use strata_wire::{exact, unix_ns};

use super::dir::StreamDir;
use super::error::{Result, StreamError};
use crate::stream::appender::StreamAppender;
use crate::stream::upkeep::{Kept, Upkeep};

/// Bytes of records that wait.
const QUEUE_BYTES: usize = 8 << 20;
/// Before each record in the queue: its time u64, its length u32.
const HEAD: usize = 12;
/// Between attempts to open a stream again that could not be written.
const REOPEN_EVERY: Duration = Duration::from_secs(1);
/// How long a disk that stalls may hold up the end, of who does not wait for it.
const END_LIMIT: Duration = Duration::from_secs(10);

/// What to do with a record when the queue is full, or the stream cannot be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WhenFull {
    /// Wait; fail if the stream cannot be written. For records that can wait, as those of files.
    Wait,
    /// Lose and count it, and open the stream again. For records of live packets.
    Lose,
}

/// Told why records are lost, once for each failure, and that they no longer are.
pub type FeedWarning = Box<dyn Fn(&str) + Send>;

#[derive(Default)]
struct Queue {
    bytes: Vec<u8>,
    records: u64,
    /// Records that there were, taken or not.
    offered: u64,
    /// No more will come.
    is_ending: bool,
    /// The thread has ended.
    has_ended: bool,
    counts: FeedCounts,
    failure: Option<StreamError>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// For the thread: there are records, or the end.
    filled: Condvar,
    /// For the producer: there is room, or an end.
    taken: Condvar,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream that records are given to. Memory: twice 8 MiB, and the stream's blocks.
pub struct StreamFeed {
    shared: Arc<Shared>,
    when_full: WhenFull,
    record_len_max: usize,
}

impl std::fmt::Debug for StreamFeed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamFeed")
            .field("when_full", &self.when_full)
            .finish_non_exhaustive()
    }
}

impl StreamFeed {
    /// Opens a stream for appending, and starts the thread, which calls `begin` first.
    ///
    /// # Errors
    ///
    /// As of [`StreamDir::append`].
    pub fn open(
        dir: StreamDir,
        name: &StreamName,
        when_full: WhenFull,
        warn: FeedWarning,
        begin: impl FnOnce() + Send + 'static,
    ) -> Result<Self> {
        let appender = dir.append(name, unix_ns())?;
        let record_len_max = appender.record_len_max();
        let shared = Arc::new(Shared::default());
        let mut writer = Writer {
            shared: Arc::clone(&shared),
            dir,
            name: name.clone(),
            appender: Some(appender),
            upkeep: Upkeep::new(Instant::now()),
            when_full,
            given: 0,
            counted: FeedCounts::default(),
            retry: Instant::now(),
            warn,
        };
        let spawned = thread::Builder::new().name("stream".into()).spawn(move || {
            begin();
            writer.run();
        });
        spawned.map_err(|source| StreamError::File {
            file: format!("{name}: cannot start the thread that appends to it"),
            source,
        })?;
        Ok(Self {
            shared,
            when_full,
            record_len_max,
        })
    }

    /// Gives a record to the stream; whether it was taken. Does not wait for the disk, unless it was
    /// opened so.
    ///
    /// # Errors
    ///
    /// If the stream cannot be written, and it was opened to wait.
    pub fn put(&mut self, record: &[u8]) -> Result<bool> {
        self.put_until(record, None)
    }

    /// As [`StreamFeed::put`], but waits for room until then, if need be.
    ///
    /// # Errors
    ///
    /// As of [`StreamFeed::put`].
    pub fn put_by(&mut self, record: &[u8], deadline: Instant) -> Result<bool> {
        self.put_until(record, Some(deadline))
    }

    fn put_until(&mut self, record: &[u8], deadline: Option<Instant>) -> Result<bool> {
        let mut queue = self.shared.queue();
        queue.offered += 1;
        if record.len() > self.record_len_max {
            queue.counts.lost += 1;
            return Ok(false);
        }
        let len = HEAD + record.len();
        while queue.bytes.len() + len > QUEUE_BYTES && !queue.has_ended {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let left = left.unwrap_or(Duration::ZERO);
            if self.when_full == WhenFull::Lose && left.is_zero() {
                queue.counts.lost += 1;
                return Ok(false);
            }
            let limit = if left.is_zero() { END_LIMIT } else { left };
            let waited = self.shared.taken.wait_timeout(queue, limit);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if queue.has_ended {
            queue.counts.lost += 1;
            return queue.failure.take().map_or(Ok(false), Err);
        }
        let is_first = queue.bytes.is_empty();
        queue.bytes.extend_from_slice(&unix_ns().to_le_bytes());
        let record_len = exact::<u32>(record.len());
        queue.bytes.extend_from_slice(&record_len.to_le_bytes());
        queue.bytes.extend_from_slice(record);
        queue.records += 1;
        drop(queue);
        if is_first {
            self.shared.filled.notify_one();
        }
        Ok(true)
    }

    /// Records that could not be given to it at all.
    pub fn lose(&mut self, records: u64) {
        let mut queue = self.shared.queue();
        queue.offered += records;
        queue.counts.lost += records;
    }

    /// What became of records so far; those that wait are neither.
    #[must_use]
    pub fn counts(&self) -> FeedCounts {
        self.shared.queue().counts
    }

    /// Has everything written and synced. A disk that stalls is waited for only if it was opened to
    /// wait; what is not written then is lost.
    ///
    /// # Errors
    ///
    /// If the stream cannot be written, and it was opened to wait.
    pub fn finish(self) -> Result<FeedCounts> {
        let deadline = Instant::now() + END_LIMIT;
        let mut queue = self.shared.queue();
        queue.is_ending = true;
        self.shared.filled.notify_one();
        while !queue.has_ended {
            let left = deadline.saturating_duration_since(Instant::now());
            if self.when_full == WhenFull::Lose && left.is_zero() {
                let written = queue.counts.written;
                queue.counts.lost = queue.offered - written;
                break;
            }
            let limit = if left.is_zero() { END_LIMIT } else { left };
            let waited = self.shared.taken.wait_timeout(queue, limit);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        match queue.failure.take() {
            Some(failure) if self.when_full == WhenFull::Wait => Err(failure),
            _ => Ok(queue.counts),
        }
    }
}

impl Drop for StreamFeed {
    fn drop(&mut self) {
        self.shared.queue().is_ending = true;
        self.shared.filled.notify_one();
    }
}

/// The thread that appends.
struct Writer {
    shared: Arc<Shared>,
    dir: StreamDir,
    name: StreamName,
    /// `None` after a failure.
    appender: Option<StreamAppender>,
    upkeep: Upkeep,
    when_full: WhenFull,
    /// Records that the appender was given since the stream was opened.
    given: u64,
    /// What the shared counts have of them.
    counted: FeedCounts,
    /// When to open the stream again.
    retry: Instant,
    warn: FeedWarning,
}

impl Writer {
    fn run(&mut self) {
        let mut taken = Vec::new();
        loop {
            let (is_ending, records) = self.wait(&mut taken);
            let done = self.append(&mut taken, records);
            let done = done.and_then(|()| match is_ending {
                true => self.close(),
                false => self.keep_up(),
            });
            let failed = done.err().is_some_and(|error| self.fail(error));
            if is_ending || failed {
                break;
            }
        }
        self.shared.queue().has_ended = true;
        self.shared.taken.notify_all();
    }

    /// Takes what is in the queue, or waits until something is due; whether that is the end, and
    /// how many records it is.
    fn wait(&self, taken: &mut Vec<u8>) -> (bool, u64) {
        let mut queue = self.shared.queue();
        let due = self
            .appender
            .as_ref()
            .map_or(self.retry, |_| self.upkeep.due());
        while queue.bytes.is_empty() && !queue.is_ending {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.shared.filled.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        mem::swap(&mut queue.bytes, taken);
        let records = mem::take(&mut queue.records);
        let is_ending = queue.is_ending;
        drop(queue);
        self.shared.taken.notify_all();
        (is_ending, records)
    }

    fn append(&mut self, taken: &mut Vec<u8>, records: u64) -> Result<()> {
        let mut left = records;
        let mut rest = taken.as_slice();
        let outcome = self.reopen().and_then(|()| {
            while let Some((head, after)) = rest.split_first_chunk::<HEAD>() {
                let time_ns = u64::from_le_bytes(*head.first_chunk().expect("12 bytes"));
                let len = u32::from_le_bytes(*head.last_chunk().expect("12 bytes"));
                let (record, after) = after.split_at(exact(len));
                rest = after;
                let Some(appender) = &mut self.appender else {
                    return Ok(());
                };
                appender.append(time_ns, record)?;
                self.given += 1;
                left -= 1;
            }
            Ok(())
        });
        taken.clear();
        if left > 0 {
            self.shared.queue().counts.lost += left;
        }
        if left < records {
            self.upkeep.appended(Instant::now());
        }
        outcome
    }

    /// Opens the stream again, if it is time.
    fn reopen(&mut self) -> Result<()> {
        let now = Instant::now();
        if self.appender.is_some() || now < self.retry {
            return Ok(());
        }
        self.retry = now + REOPEN_EVERY;
        // The reason was reported already.
        if let Ok(appender) = self.dir.append(&self.name, unix_ns()) {
            self.appender = Some(appender);
            (self.given, self.counted) = (0, FeedCounts::default());
            self.upkeep = Upkeep::new(now);
            (self.warn)("written again");
        }
        Ok(())
    }

    fn keep_up(&mut self) -> Result<()> {
        let Some(appender) = &mut self.appender else {
            return Ok(());
        };
        let kept = self.upkeep.run(appender, Instant::now(), unix_ns())?;
        for warning in appender.take_warnings() {
            (self.warn)(&warning);
        }
        if self.when_full == WhenFull::Wait {
            appender.all_kept()?;
        }
        if kept != Kept::Nothing {
            self.count();
        }
        Ok(())
    }

    /// Counts what became of the records that the appender was given, as far as it is known now.
    fn count(&mut self) {
        let Some(appender) = &mut self.appender else {
            return;
        };
        let written = appender.kept();
        let lost = self.given - written;
        let now = FeedCounts { written, lost };
        let before = mem::replace(&mut self.counted, now);
        let counts = &mut self.shared.queue().counts;
        // With a stripe, records may go that were written.
        counts.written = counts.written - before.written + now.written;
        counts.lost = counts.lost - before.lost + now.lost;
    }

    fn close(&mut self) -> Result<()> {
        let Some(appender) = &mut self.appender else {
            return Ok(());
        };
        appender.sync(unix_ns())?;
        for warning in appender.take_warnings() {
            (self.warn)(&warning);
        }
        let is_kept = appender.all_kept();
        self.count();
        if let Some(appender) = self.appender.take() {
            appender.close(unix_ns())?;
        }
        match self.when_full {
            WhenFull::Wait => is_kept,
            WhenFull::Lose => Ok(()),
        }
    }

    /// The stream cannot be written; whether that is the end.
    fn fail(&mut self, error: StreamError) -> bool {
        self.count();
        self.appender = None;
        self.retry = Instant::now() + REOPEN_EVERY;
        let is_final = self.when_full == WhenFull::Wait;
        if !is_final {
            (self.warn)(&format!(
                "{error}; records are lost until the stream can be written"
            ));
        }
        self.shared.queue().failure = is_final.then_some(error);
        is_final
    }
}

/// Lines that are written become records, without their newlines.
#[derive(Debug)]
pub struct LineRecords {
    feed: StreamFeed,
    line: Vec<u8>,
}

impl LineRecords {
    /// Lines for this stream.
    #[must_use]
    pub fn new(feed: StreamFeed) -> Self {
        Self {
            feed,
            line: Vec::new(),
        }
    }

    /// The stream.
    #[must_use]
    pub fn into_feed(self) -> StreamFeed {
        self.feed
    }
}

impl io::Write for LineRecords {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let end = bytes.iter().position(|&byte| byte == b'\n');
        self.line
            .extend_from_slice(&bytes[..end.unwrap_or(bytes.len())]);
        let Some(end) = end else {
            return Ok(bytes.len());
        };
        self.feed.put(&self.line).map_err(io::Error::other)?;
        self.line.clear();
        Ok(end + 1)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
