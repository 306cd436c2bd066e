//! A thread that keeps a producer connected to its server, and sends it records: from memory, or from a spool, which is
//! a stream of this machine.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use strata_stream::{Cursor, StreamName};

use super::producer::{ProducerSpec, StreamProducer};
use super::spool::{SPOOL_HELD_MAX, Spool};
use crate::StreamDir;
use crate::error::StreamError;
use crate::peer::PeerError;

/// Records are sent after this time.
const SEND_EVERY: Duration = Duration::from_millis(50);
/// After records were sent, more are collected for this time while the server is heard: so they go in batches, also if
/// they come one by one without a pause.
const HEAR_FOR: Duration = Duration::from_millis(4);
/// Between attempts to connect: at first, and at most.
const RETRY: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// How long a server may take to confirm the last records, and how long the end waits for a server that is not there.
const CONFIRM_LIMIT: Duration = Duration::from_secs(30);
const ABSENT_LIMIT: Duration = Duration::from_secs(10);
/// Bytes that a record takes besides its own.
const RECORD_COST: usize = 16;

/// Where the records come from.
pub enum Source {
    /// From [`Forwarder::put`]; records that are not confirmed have at most these bytes in all.
    Memory(usize),
    /// From a stream of this machine, which another thread appends to: what is durable there ([`Forwarder::spooled`]).
    /// Records before this number were there at the start: the server may have them.
    Spool(StreamDir, StreamName, u64),
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Memory(bytes) => f.debug_tuple("Memory").field(bytes).finish(),
            Self::Spool(_, name, _) => f.debug_tuple("Spool").field(name).finish(),
        }
    }
}

/// How far a forwarder has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Forwarding {
    /// Records that the server has confirmed since the start.
    pub confirmed: u64,
    /// Records that were given up: the spool had deleted or lost them, or they are too long for the server's stream.
    pub given_up: u64,
    /// Bytes of records in memory.
    held_bytes: usize,
}

/// What became of the records.
#[derive(Debug)]
pub struct Forwarded {
    /// How far it came.
    pub forwarding: Forwarding,
    /// Records that the server has not confirmed.
    pub unconfirmed: u64,
    /// The end of the stream at the server, if all are confirmed.
    pub end: Option<Cursor>,
    /// Why the rest was not sent.
    pub failure: Option<String>,
    /// What is left to report.
    pub warnings: Vec<String>,
}

/// Records on their way to the thread.
#[derive(Default)]
struct Queue {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    /// Up to where the spool is durable, and the number of the record there.
    spooled: (Cursor, u64),
    forwarding: Forwarding,
    is_ending: bool,
    warnings: Vec<String>,
    /// Why nothing more is sent.
    failure: Option<String>,
}

struct Shared {
    queue: Mutex<Queue>,
    /// Something was put, or sent.
    changed: Condvar,
    memory_max: usize,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'q>(&self, queue: MutexGuard<'q, Queue>, limit: Duration) -> MutexGuard<'q, Queue> {
        let waited = self.changed.wait_timeout(queue, limit);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// A producer with a thread of its own.
pub struct Forwarder {
    shared: Arc<Shared>,
    thread: JoinHandle<Forwarded>,
    record_len_max: Option<usize>,
}

impl std::fmt::Debug for Forwarder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Forwarder").finish_non_exhaustive()
    }
}

/// The thread.
struct Forward {
    shared: Arc<Shared>,
    producer: StreamProducer,
    spool: Option<Spool>,
    first: u64,
    retry: Retry,
    given_up: u64,
    /// Nothing more comes; and whether the server could not be reached since then.
    is_ending: bool,
    is_absent_at_end: bool,
}

/// When to connect next.
struct Retry {
    at: Instant,
    wait: Duration,
    /// Since when there is no connection, or none that the server confirms records of; that was said then.
    absent_since: Option<Instant>,
    /// The latest reason, as the server gave it if it did.
    why: Option<String>,
    /// The last number that was confirmed.
    confirmed: u64,
}

impl Forwarder {
    /// Starts the thread. From memory, the server has to be there now; a spool is kept until it is.
    ///
    /// # Errors
    ///
    /// If the server refuses, or the spool cannot be read.
    pub fn start(spec: ProducerSpec, source: Source) -> Result<Self, ForwardError> {
        let (spool, next, made, memory_max) = match source {
            Source::Memory(bytes) => (None, 0, 0, bytes),
            Source::Spool(dir, name, made) => {
                let (spool, next) = Spool::open(dir, name)?;
                (Some(spool), next, made, SPOOL_HELD_MAX)
            }
        };
        let mut producer = StreamProducer::new(spec, next);
        producer.set_made(made);
        if spool.is_none() {
            producer.connect()?;
        }
        let record_len_max = producer.record_len_max();
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            changed: Condvar::new(),
            memory_max,
        });
        let mut forward = Forward {
            shared: Arc::clone(&shared),
            producer,
            spool,
            first: next,
            retry: Retry {
                at: Instant::now(),
                wait: RETRY,
                absent_since: None,
                why: None,
                confirmed: next,
            },
            given_up: 0,
            is_ending: false,
            is_absent_at_end: false,
        };
        let thread = thread::Builder::new().name("stream-forward".into());
        let thread = thread.spawn(move || forward.run());
        let thread = thread.map_err(ForwardError::Thread)?;
        Ok(Self {
            shared,
            thread,
            record_len_max,
        })
    }

    /// The longest record, if the server was asked at the start.
    #[must_use]
    pub fn record_len_max(&self) -> Option<usize> {
        self.record_len_max
    }

    /// Hands a record to the thread. If too much is unconfirmed, waits until the server has confirmed some, or until
    /// `stop`; whether the record was taken.
    pub fn put(&self, record: &[u8], stop: &AtomicBool) -> bool {
        let mut queue = self.shared.lock();
        loop {
            if queue.failure.is_some() || self.thread.is_finished() {
                return false;
            }
            let held = queue.bytes.len() + RECORD_COST * queue.ends.len();
            let held = held + queue.forwarding.held_bytes;
            if held == 0 || held + record.len() <= self.shared.memory_max {
                break;
            }
            if stop.load(Ordering::Relaxed) {
                return false;
            }
            queue = self.shared.wait(queue, SEND_EVERY);
        }
        queue.bytes.extend_from_slice(record);
        let end = queue.bytes.len();
        queue.ends.push(end);
        true
    }

    /// Says that the spool is durable up to a cursor, and which record is next there.
    pub fn spooled(&self, until: Cursor, next_seq: u64) {
        self.shared.lock().spooled = (until, next_seq);
        self.shared.changed.notify_all();
    }

    /// What there is to report, and why nothing more is sent, if so.
    pub fn take_news(&self) -> (Vec<String>, Option<String>) {
        let mut queue = self.shared.lock();
        (std::mem::take(&mut queue.warnings), queue.failure.clone())
    }

    /// Ends, once all is confirmed; a spool keeps what is not, and so its server is not waited for: it is tried once
    /// more, also if the next attempt were due later.
    #[must_use]
    pub fn finish(self) -> Forwarded {
        self.shared.lock().is_ending = true;
        self.shared.changed.notify_all();
        self.thread.join().unwrap_or_else(|_| Forwarded {
            forwarding: Forwarding::default(),
            unconfirmed: 0,
            end: None,
            failure: Some("its thread has failed".to_owned()),
            warnings: Vec::new(),
        })
    }
}

/// Why records cannot be forwarded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForwardError {
    /// The server.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The spool.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// There is no thread.
    #[error("cannot start the thread that sends records to the server: {0}")]
    Thread(std::io::Error),
}

impl Forward {
    fn run(&mut self) -> Forwarded {
        let mut ending_since = None;
        loop {
            let (ending, spooled) = self.take();
            let now = Instant::now();
            self.is_ending = ending;
            if let Err(error) = self.turn(now, spooled) {
                return self.fail(error.to_string());
            }
            if ending {
                let since = *ending_since.get_or_insert(now);
                if let Some(forwarded) = self.end(since, spooled) {
                    return forwarded;
                }
            }
        }
    }

    /// Takes what was put, after a wait if there is nothing; whether no more comes.
    fn take(&mut self) -> (bool, Cursor) {
        let has_room = self.producer.held_bytes() < self.shared.memory_max;
        let mut queue = self.shared.lock();
        if !has_room || (!queue.is_ending && queue.ends.is_empty()) {
            queue = self.shared.wait(queue, SEND_EVERY);
        }
        let (bytes, ends) = match has_room {
            true => (
                std::mem::take(&mut queue.bytes),
                std::mem::take(&mut queue.ends),
            ),
            false => (Vec::new(), Vec::new()),
        };
        // Until it is among those that are held.
        queue.forwarding.held_bytes += bytes.len() + RECORD_COST * ends.len();
        let (spooled, _) = queue.spooled;
        let is_ending = queue.is_ending && queue.ends.is_empty();
        drop(queue);
        let mut start = 0;
        for end in ends {
            self.producer.put(&bytes[start..end]);
            start = end;
        }
        (is_ending, spooled)
    }

    /// Reads the spool, and sends and hears what there is.
    fn turn(&mut self, now: Instant, spooled: Cursor) -> Result<(), ForwardError> {
        if let Some(spool) = &mut self.spool
            && self.producer.is_connected()
        {
            self.given_up += spool.read(&mut self.producer, spooled)?;
        }
        let done = match self.producer.is_connected() {
            true => self.producer.step(HEAR_FOR),
            false if now < self.retry.at => {
                // Between attempts, nothing else has to be done.
                drop(self.shared.wait(self.shared.lock(), SEND_EVERY));
                Ok(())
            }
            false => {
                let connected = self.producer.connect();
                self.is_absent_at_end = self.is_ending && connected.is_err();
                connected
            }
        };
        match done {
            Ok(()) => self.heard(),
            Err(error @ PeerError::Ahead { .. }) => return Err(error.into()),
            Err(error) => self.lost(&error),
        }
        let confirmed = self.producer.confirmed();
        if let Some(spool) = &mut self.spool
            && spool.is_save_due()
        {
            spool.save(confirmed, self.given_up, now)?;
        }
        let mut queue = self.shared.lock();
        queue.forwarding = Forwarding {
            confirmed: (confirmed - self.first).saturating_sub(self.given_up),
            given_up: self.given_up,
            held_bytes: self.producer.held_bytes(),
        };
        drop(queue);
        self.shared.changed.notify_all();
        Ok(())
    }

    /// A connection counts once records are confirmed, or none is left to be.
    fn heard(&mut self) {
        let confirmed = self.producer.confirmed();
        let is_news = confirmed > self.retry.confirmed;
        let is_idle = self.producer.is_connected() && self.producer.unconfirmed() == 0;
        if !is_news && !is_idle {
            return;
        }
        self.retry.confirmed = confirmed;
        self.retry.wait = RETRY;
        self.retry.why = None;
        if self.retry.absent_since.take().is_some() {
            let warning = format!("{}: connected again", self.producer.server());
            self.shared.lock().warnings.push(warning);
        }
    }

    fn lost(&mut self, error: &PeerError) {
        let now = Instant::now();
        self.retry.why = Some(error.without_peer());
        self.retry.at = now + self.retry.wait;
        self.retry.wait = (2 * self.retry.wait).min(RETRY_MAX);
        if self.retry.absent_since.is_none() {
            self.retry.absent_since = Some(now);
            let kept = match self.spool {
                Some(_) => "the spool",
                None => "memory",
            };
            let warning = format!("{error}; trying again; until then, records are kept in {kept}");
            self.shared.lock().warnings.push(warning);
        }
    }

    /// Nothing more comes: ends if all is confirmed, or the server is not there.
    fn end(&mut self, since: Instant, spooled: Cursor) -> Option<Forwarded> {
        let is_read = |spool: &Spool| spool.is_read(spooled);
        let is_all = self.spool.as_ref().is_none_or(is_read);
        let is_connected = self.producer.is_connected();
        if !is_connected && is_all && self.producer.unconfirmed() == 0 {
            return Some(self.ended(None, None));
        }
        if is_connected && is_all {
            match self.producer.end(CONFIRM_LIMIT) {
                Ok(end) => return Some(self.ended(end, None)),
                Err(error) => self.lost(&error),
            }
        }
        let (since, limit) = match is_connected {
            true => (since, CONFIRM_LIMIT),
            false => (
                self.retry.absent_since.map_or(since, |at| at.max(since)),
                ABSENT_LIMIT,
            ),
        };
        let is_kept = self.spool.is_some();
        if is_kept && !is_connected && !self.is_absent_at_end {
            // The server may be back since the last attempt.
            self.retry.at = Instant::now();
        }
        let is_over =
            since.elapsed() >= limit || (is_kept && !is_connected && self.is_absent_at_end);
        let why = self.retry.why.clone();
        is_over.then(|| self.ended(None, why.or(Some("the server did not answer".to_owned()))))
    }

    fn ended(&mut self, end: Option<Cursor>, failure: Option<String>) -> Forwarded {
        let confirmed = self.producer.confirmed();
        let mut failure = failure;
        let mut unconfirmed = self.producer.unconfirmed();
        if let Some(spool) = &mut self.spool {
            let (spooled, made) = self.shared.lock().spooled;
            let looked = spool.count_deleted(spooled);
            let saved = looked.and_then(|deleted| {
                self.given_up += deleted;
                unconfirmed = made.saturating_sub(confirmed).saturating_sub(deleted);
                spool.save(confirmed, self.given_up, Instant::now())
            });
            if let Err(error) = saved {
                failure = Some(error.to_string());
            }
        }
        Forwarded {
            forwarding: Forwarding {
                confirmed: (confirmed - self.first).saturating_sub(self.given_up),
                given_up: self.given_up,
                held_bytes: 0,
            },
            unconfirmed,
            end,
            failure,
            warnings: std::mem::take(&mut self.shared.lock().warnings),
        }
    }

    /// Nothing more can be sent.
    fn fail(&mut self, failure: String) -> Forwarded {
        let mut queue = self.shared.lock();
        queue.failure = Some(failure.clone());
        drop(queue);
        self.shared.changed.notify_all();
        self.ended(None, Some(failure))
    }
}
