//! Streams that clients append to. A stream has one appender for all of them, opened for the first and closed after the
//! last. Each client is a producer with an id, whose records are numbered: a record that comes again, since the client
//! did not learn that it had arrived, is not appended again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use strata_stream::{Cursor, StreamName};

use crate::error::StreamError;
use crate::{Kept, StreamAppender, StreamDir, StreamSpec, Upkeep};

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long a stream is left alone that could not be written: at first, and at most.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(600);
/// After these bytes, records are synced before the usual second is over, since producers keep them until then.
const UNSYNCED_BYTES: u64 = 32 << 20;

/// Why a producer cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SharedError {
    /// The stream's.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// A record of the producer is too long; the stream is as it was.
    #[error(
        "a record of {len} bytes is too long: records of this stream may be at most {max} bytes \
         long"
    )]
    TooLong {
        /// Its bytes.
        len: usize,
        /// How many are allowed.
        max: usize,
    },
    /// Another connection goes on for the same producer.
    #[error(
        "another client has connected as this producer: end one of the two clients; do they use the same spool directory, or a copy of it?"
    )]
    Replaced,
    /// The stream has been closed, since it could not be written for another producer.
    #[error("the stream could not be written: connect again")]
    Closed,
}

/// Streams of a directory that producers append to.
pub struct SharedStreams {
    dir: StreamDir,
    streams: Mutex<BTreeMap<StreamName, Arc<Shared>>>,
    /// Numbers of sessions, and of times that a stream was opened.
    numbers: AtomicU64,
}

impl std::fmt::Debug for SharedStreams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedStreams")
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

struct Shared {
    name: StreamName,
    open: Mutex<Option<Open>>,
    failed: Mutex<Failed>,
}

/// A stream that could not be written is opened again after a while: each time, it skips page numbers.
#[derive(Default)]
struct Failed {
    until: Option<Instant>,
    wait: Duration,
    /// What the disk said, if it was the disk.
    problem: Option<String>,
}

impl Failed {
    fn note(&mut self, now: Instant, error: &StreamError) {
        self.wait = (2 * self.wait).clamp(RETRY, RETRY_MAX);
        self.until = Some(now + self.wait);
        // A producer that connects again learns the reason, too.
        self.problem = error.of_disk();
    }
}

/// A stream while there are producers.
struct Open {
    number: u64,
    appender: StreamAppender,
    upkeep: Upkeep,
    /// The session of each producer that is connected, the last one of each id.
    sessions: BTreeMap<u64, u64>,
    clients: usize,
    syncs: u64,
    /// Bytes of records since the last sync.
    unsynced_bytes: u64,
}

/// A producer's connection to a stream. When the last one of a stream is dropped, the stream is synced and closed.
pub struct ProducerSession {
    streams: Arc<SharedStreams>,
    stream: Arc<Shared>,
    at: Progress,
}

/// How far a session has come.
struct Progress {
    /// The producer.
    id: u64,
    /// The number of the session, and that of the open stream that it belongs to.
    number: u64,
    open: u64,
    /// The number of the record that comes next.
    next: u64,
    record_len_max: usize,
    /// Records before a number that came when there had been a number of syncs.
    unsynced: VecDeque<(u64, u64)>,
    /// Records before this one were confirmed, once any were.
    confirmed: Option<u64>,
    appended: u64,
}

impl std::fmt::Debug for ProducerSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProducerSession")
            .field("stream", &self.stream.name)
            .field("next", &self.at.next)
            .finish_non_exhaustive()
    }
}

impl SharedStreams {
    /// Of a directory.
    #[must_use]
    pub fn new(dir: StreamDir) -> Arc<Self> {
        Arc::new(Self {
            dir,
            streams: Mutex::default(),
            numbers: AtomicU64::new(1),
        })
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &StreamDir {
        &self.dir
    }

    /// Creates a stream, unless it is there.
    ///
    /// # Errors
    ///
    /// If its file cannot be written.
    pub fn create(&self, name: &StreamName, spec: &StreamSpec) -> Result<(), StreamError> {
        match self.dir.create_stream(name, spec, strata_wire::unix_ns()) {
            Err(StreamError::Exists { .. }) => Ok(()),
            created => created,
        }
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// A producer connects to a stream: its id (not 0) and name. A connection that it has had is replaced.
    ///
    /// # Errors
    ///
    /// If the stream cannot be appended to.
    pub fn join(
        self: &Arc<Self>,
        stream: &StreamName,
        producer: (u64, &StreamName),
        (now, now_ns): (Instant, u64),
    ) -> Result<ProducerSession, StreamError> {
        let mut streams = locked(&self.streams);
        let shared = streams.entry(stream.clone()).or_insert_with(|| {
            Arc::new(Shared {
                name: stream.clone(),
                open: Mutex::new(None),
                failed: Mutex::default(),
            })
        });
        let shared = Arc::clone(shared);
        drop(streams);
        let joined = self.join_shared(&shared, producer, (now, now_ns));
        if joined.is_err() {
            self.forget(&shared);
        }
        joined
    }

    fn join_shared(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        (id, name): (u64, &StreamName),
        (now, now_ns): (Instant, u64),
    ) -> Result<ProducerSession, StreamError> {
        let mut guard = locked(&shared.open);
        if guard.is_none() {
            let failed = locked(&shared.failed);
            if failed.until.is_some_and(|until| now < until) {
                return Err(match &failed.problem {
                    Some(problem) => StreamError::Paused {
                        problem: problem.clone(),
                    },
                    None => StreamError::Failed {
                        file: shared.name.to_string(),
                    },
                });
            }
            drop(failed);
            let appended = self.dir.append(&shared.name, now_ns);
            if let Err(error @ StreamError::File { .. }) = &appended {
                locked(&shared.failed).note(now, error);
            }
            *guard = Some(Open {
                number: self.number(),
                appender: appended?,
                upkeep: Upkeep::new(now),
                sessions: BTreeMap::new(),
                clients: 0,
                syncs: 0,
                unsynced_bytes: 0,
            });
        }
        let open = guard.as_mut().expect("it was opened");
        let sessions = &open.sessions;
        let met = open
            .appender
            .meet((id, name), now_ns, |id| sessions.contains_key(&id));
        let next = match met {
            Ok(next) => next,
            // The others go on.
            Err(error @ StreamError::Producers { .. }) => return Err(error),
            Err(error) => {
                *guard = None;
                locked(&shared.failed).note(now, &error);
                return Err(error);
            }
        };
        let number = self.number();
        open.sessions.insert(id, number);
        open.clients += 1;
        // What it has sent before is confirmed by the next sync.
        open.upkeep.appended(now);
        Ok(ProducerSession {
            streams: Arc::clone(self),
            stream: Arc::clone(shared),
            at: Progress {
                id,
                number,
                open: open.number,
                next,
                record_len_max: open.appender.record_len_max(),
                unsynced: [(open.syncs, next)].into(),
                confirmed: None,
                appended: 0,
            },
        })
    }

    /// Forgets a stream without producers.
    fn forget(&self, shared: &Arc<Shared>) {
        let mut streams = locked(&self.streams);
        // This map's and the caller's.
        if Arc::strong_count(shared) <= 2
            && locked(&shared.open).is_none()
            && locked(&shared.failed).until.is_none()
        {
            streams.remove(&shared.name);
        }
    }
}

impl Drop for ProducerSession {
    fn drop(&mut self) {
        let mut guard = locked(&self.stream.open);
        if let Some(open) = guard.as_mut().filter(|open| open.number == self.at.open) {
            if open.sessions.get(&self.at.id) == Some(&self.at.number) {
                open.sessions.remove(&self.at.id);
                open.appender.leave(self.at.id);
            }
            open.clients -= 1;
        }
        if let Some(open) = guard.take_if(|open| open.clients == 0) {
            // What fails here was not confirmed to any producer: each sends it again.
            if let Err(error) = open.appender.close(strata_wire::unix_ns()) {
                locked(&self.stream.failed).note(Instant::now(), &error);
            }
        }
        drop(guard);
        self.streams.forget(&self.stream);
    }
}

impl ProducerSession {
    /// The number of the producer's next record.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.at.next
    }

    /// The longest record.
    #[must_use]
    pub fn record_len_max(&self) -> usize {
        self.at.record_len_max
    }

    /// Records that were appended in this session.
    #[must_use]
    pub fn appended(&self) -> u64 {
        self.at.appended
    }

    /// The stream for this producer alone, until the turn is dropped.
    pub fn turn(&mut self, now: Instant) -> Turn<'_> {
        Turn {
            now,
            at: &mut self.at,
            guard: locked(&self.stream.open),
            is_checked: false,
            failed: &self.stream.failed,
        }
    }
}

/// A stream while one producer appends.
pub struct Turn<'s> {
    now: Instant,
    at: &'s mut Progress,
    guard: MutexGuard<'s, Option<Open>>,
    /// The session was found to be the last one of its producer, which it stays during the turn.
    is_checked: bool,
    failed: &'s Mutex<Failed>,
}

impl std::fmt::Debug for Turn<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Turn")
            .field("next", &self.at.next)
            .finish_non_exhaustive()
    }
}

impl Turn<'_> {
    /// Does something with the stream. If that fails, the stream is closed without being marked as whole: when it is
    /// opened again, its pages say which records it has.
    fn with<T>(
        &mut self,
        act: impl FnOnce(&mut Open, &mut Progress) -> Result<T, StreamError>,
    ) -> Result<T, SharedError> {
        let open = self.guard.as_mut();
        let open = open.filter(|open| open.number == self.at.open);
        let open = open.ok_or(SharedError::Closed)?;
        if !self.is_checked && open.sessions.get(&self.at.id) != Some(&self.at.number) {
            return Err(SharedError::Replaced);
        }
        self.is_checked = true;
        let done = act(open, self.at);
        if let Err(error) = &done {
            *self.guard = None;
            locked(self.failed).note(self.now, error);
        }
        Ok(done?)
    }

    /// The next record has this number: the producer has given up those before it that did not come.
    pub fn start(&mut self, number: u64) {
        self.at.next = number;
    }

    /// Appends a record, unless the stream has it.
    ///
    /// # Errors
    ///
    /// If the session is over, or the stream cannot be written.
    pub fn append(&mut self, now_ns: u64, record: &[u8]) -> Result<(), SharedError> {
        let (len, max) = (record.len(), self.at.record_len_max);
        if len > max {
            return Err(SharedError::TooLong { len, max });
        }
        self.with(|open, at| {
            let is_new = open.appender.append_of(now_ns, (at.id, at.next), record)?;
            // A record that went with a stripe is sent again.
            open.appender.all_kept()?;
            at.appended += u64::from(is_new);
            open.unsynced_bytes += record.len() as u64;
            at.next = at.next.saturating_add(1);
            Ok(())
        })
    }

    /// Records have come; makes those readable, and durable, for which it is time. The number before which all of the
    /// producer's records survive a loss of power, if that is news.
    ///
    /// # Errors
    ///
    /// As of [`Turn::append`].
    pub fn keep_up(&mut self, now_ns: u64) -> Result<Option<u64>, SharedError> {
        let (now, failed) = (self.now, self.failed);
        self.with(|open, at| {
            match at.unsynced.back_mut() {
                Some((syncs, until)) if *syncs == open.syncs => {
                    if *until != at.next {
                        *until = at.next;
                        open.upkeep.appended(now);
                    }
                }
                back => {
                    let until = back.map(|(_, until)| *until).or(at.confirmed);
                    if until != Some(at.next) {
                        at.unsynced.push_back((open.syncs, at.next));
                        open.upkeep.appended(now);
                    }
                }
            }
            if open.unsynced_bytes >= UNSYNCED_BYTES {
                open.upkeep.hurry(now);
            }
            let kept = open.upkeep.run(&mut open.appender, now, now_ns)?;
            open.appender.all_kept()?;
            if kept == Kept::Synced {
                *locked(failed) = Failed::default();
                open.syncs += 1;
                open.unsynced_bytes = 0;
            }
            let mut confirmed = None;
            while let Some(&(syncs, until)) = at.unsynced.front()
                && syncs < open.syncs
            {
                confirmed = Some(until);
                at.unsynced.pop_front();
            }
            at.confirmed = confirmed.or(at.confirmed);
            Ok(confirmed)
        })
    }

    /// When [`Turn::keep_up`] has something to do; `None`: the session is over.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.guard.as_ref().map(|open| open.upkeep.due())
    }

    /// Makes all durable. The number of the producer's next record, and the end of the stream.
    ///
    /// # Errors
    ///
    /// As of [`Turn::append`].
    pub fn sync(&mut self, now_ns: u64) -> Result<(u64, Cursor), SharedError> {
        let failed = self.failed;
        self.with(|open, at| {
            open.appender.sync(now_ns)?;
            open.appender.all_kept()?;
            *locked(failed) = Failed::default();
            open.syncs += 1;
            at.unsynced.clear();
            at.confirmed = Some(at.next);
            Ok((at.next, open.appender.end()))
        })
    }

    /// The producer appends no more. Otherwise as [`Turn::sync`].
    ///
    /// # Errors
    ///
    /// As of [`Turn::append`].
    pub fn end(&mut self, now_ns: u64) -> Result<(u64, Cursor), SharedError> {
        let id = self.at.id;
        self.with(|open, _| open.appender.end_producer(now_ns, id))?;
        self.sync(now_ns)
    }

    /// What there is to say of the stream's stripes.
    pub fn take_warnings(&mut self) -> Vec<String> {
        let open = self.guard.as_mut();
        open.map_or_else(Vec::new, |open| open.appender.take_warnings())
    }
}
