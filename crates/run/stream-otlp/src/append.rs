//! The thread that appends records of requests to the stream. Requests that wait are synced together, and confirmed
//! after that.

use std::io::Read as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use flate2::read::MultiGzDecoder;
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use strata_role::{At as _, Notice, Result, Tell};
use strata_stream::StreamName;
use strata_stream_run::{ProducerSession, SharedError, SharedStreams, StreamError, random_id};
use strata_wire::{exact, unix_ns};
use tokio::sync::oneshot;

use crate::decode::{Body, Numbers, Origin, count_records, each_numbered};
use crate::record::Ending;

/// Bytes of a decompressed body, at most.
pub(crate) const INFLATED_MAX: usize = 16 << 20;
/// Bytes of the records of a request, at most: each has the attributes of its resource, which the request has once.
const RECORDS_BYTES_MAX: u64 = 64 << 20;
/// Records of a request, at most: a compressed body of some kB could have millions of empty ones.
const RECORDS_MAX: u64 = 1 << 18;
/// Bytes of records that are appended in a turn, during which other producers of the stream wait.
const TURN_BYTES: usize = 1 << 20;
/// Requests that are synced together, at most.
const TOGETHER_MAX: usize = 64;
/// Between looks at what is due, while no request comes.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Without requests for so long, the stream is closed, so that a process of this machine can append to it.
const IDLE: Duration = Duration::from_secs(60);

/// How a body is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    Protobuf,
    Json,
}

/// A request.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) body: Bytes,
    pub(crate) form: Form,
    pub(crate) is_gzip: bool,
    pub(crate) answer: oneshot::Sender<Answer>,
}

/// What became of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// Its records survive a loss of power, except a number of refused ones; why the first was refused.
    Taken { refused: u64, why: String },
    /// It is invalid: no record was taken.
    Invalid(String),
    /// It is too long: no record was taken.
    Long(String),
    /// The stream cannot be written now.
    Later(String),
}

/// What could not be appended of a request.
#[derive(Default)]
struct Refused {
    records: u64,
    /// Of the first one.
    why: String,
}

impl Refused {
    fn note(&mut self, why: &dyn std::fmt::Display) {
        self.records = self.records.saturating_add(1);
        if self.why.is_empty() {
            self.why = why.to_string();
        }
    }
}

/// Appends records.
pub(crate) struct Appender {
    streams: Arc<SharedStreams>,
    stream: StreamName,
    tell: Tell,
    /// The producer that it is in the stream.
    producer: (u64, StreamName),
    session: Option<ProducerSession>,
    used_at: Instant,
    appended: u64,
    /// Whether it was said that the stream cannot be written.
    has_warned: bool,
}

impl Appender {
    /// Of a stream. The system's error if it has no random numbers.
    pub(crate) fn new(streams: Arc<SharedStreams>, stream: StreamName, tell: Tell) -> Result<Self> {
        let name = "otlp".parse().expect("it is a name");
        Ok(Self {
            streams,
            stream,
            tell,
            producer: (random_id().at("cannot get random numbers")?, name),
            session: None,
            used_at: Instant::now(),
            appended: 0,
            has_warned: false,
        })
    }

    /// Appends what comes until nothing can come any more; the number of records.
    pub(crate) fn run(mut self, queue: &Receiver<Job>) -> u64 {
        loop {
            match queue.recv_timeout(LOOK_EVERY) {
                Ok(first) => {
                    let more = queue.try_iter().take(TOGETHER_MAX - 1);
                    let jobs = std::iter::once(first).chain(more).collect();
                    self.take(jobs);
                    self.used_at = Instant::now();
                }
                Err(RecvTimeoutError::Timeout) => {
                    if self.session.is_some() && self.used_at.elapsed() >= IDLE {
                        self.end();
                    } else if let Err(error) = self.keep_up() {
                        self.fail(&error);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.end();
                    return self.appended;
                }
            }
        }
    }

    /// Appends the records of requests, and answers once they are durable.
    fn take(&mut self, jobs: Vec<Job>) {
        let mut answers = Vec::with_capacity(jobs.len());
        let mut failed = None;
        for job in jobs {
            let answer = match &failed {
                Some(text) => Answer::Later(String::clone(text)),
                None => self.append(&job).unwrap_or_else(|error| {
                    let text = self.fail(&error);
                    failed = Some(text.clone());
                    Answer::Later(text)
                }),
            };
            answers.push((job.answer, answer));
        }
        let synced = match failed {
            Some(text) => Err(text),
            None => self.sync().map_err(|error| self.fail(&error)),
        };
        for (sender, answer) in answers {
            let answer = match (&synced, answer) {
                (Err(text), Answer::Taken { .. }) => Answer::Later(text.clone()),
                (_, answer) => answer,
            };
            // A client that has gone sends the request again.
            let _ = sender.send(answer);
        }
    }

    /// Appends the records of a request.
    fn append(&mut self, job: &Job) -> Result<Answer, SharedError> {
        let inflated = match job.is_gzip.then(|| inflate(&job.body)) {
            None => None,
            Some(Ok(bytes)) => Some(bytes),
            Some(Err(answer)) => return Ok(answer),
        };
        let bytes: &[u8] = inflated.as_deref().unwrap_or(&job.body);
        let body = match job.form {
            Form::Protobuf => Body::Protobuf(bytes),
            Form::Json => Body::Json(bytes),
        };
        // All or nothing, of a request that is invalid.
        match count_records(body) {
            Ok(0) => {
                let why = String::new();
                return Ok(Answer::Taken { refused: 0, why });
            }
            Ok(records) if records > RECORDS_MAX => {
                return Ok(Answer::Long(format!(
                    "the request has {records} records, and at most {RECORDS_MAX} are accepted: send smaller batches"
                )));
            }
            Ok(_) => {}
            Err(error) => return Ok(Answer::Invalid(error.to_string())),
        }
        let session = match &mut self.session {
            Some(session) => session,
            none => {
                let (id, name) = &self.producer;
                let now = (Instant::now(), unix_ns());
                none.insert(self.streams.join(&self.stream, (*id, name), now)?)
            }
        };
        let mut batch = Batch::new(session);
        let mut refused = Refused::default();
        let mut failed = None;
        let walked = each_numbered(body, |of, found| {
            if failed.is_some() {
                return;
            }
            match found {
                Ok((origin, record)) => {
                    failed = batch.put(&mut refused, (of, origin), &record).err();
                }
                Err(error) => refused.note(&error),
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        batch.flush()?;
        self.appended = self.appended.saturating_add(batch.appended);
        Ok(match walked {
            Ok(()) => Answer::Taken {
                refused: refused.records,
                why: refused.why,
            },
            // Not after `count_records` has walked the same messages.
            Err(error) => Answer::Invalid(error.to_string()),
        })
    }

    fn sync(&mut self) -> Result<(), SharedError> {
        if let Some(session) = &mut self.session {
            let mut turn = session.turn(Instant::now());
            let synced = turn.sync(unix_ns());
            let warnings = turn.take_warnings();
            drop(turn);
            self.warn_of(warnings);
            synced?;
            self.has_warned = false;
        }
        Ok(())
    }

    fn keep_up(&mut self) -> Result<(), SharedError> {
        if let Some(session) = &mut self.session {
            let mut turn = session.turn(Instant::now());
            let kept = turn.keep_up(unix_ns());
            let warnings = turn.take_warnings();
            drop(turn);
            self.warn_of(warnings);
            kept?;
        }
        Ok(())
    }

    /// Closes the stream, if no other producer has it.
    fn end(&mut self) {
        let Some(mut session) = self.session.take() else {
            return;
        };
        let ended = session.turn(Instant::now()).end(unix_ns());
        drop(session);
        if let Err(error) = ended {
            self.fail(&error);
        }
    }

    fn warn_of(&self, warnings: Vec<String>) {
        for warning in warnings {
            let text = format!("stream {}: {warning}", self.stream);
            (self.tell)(&Notice::warning(text));
        }
    }

    /// Leaves a stream that cannot be written, and says so once; the text for clients.
    fn fail(&mut self, error: &SharedError) -> String {
        self.session = None;
        if !self.has_warned {
            self.has_warned = true;
            let text = format!("logs of OpenTelemetry: stream {}: {error}", self.stream);
            (self.tell)(&Notice::warning(text));
        }
        // Without the paths of this machine.
        match error {
            SharedError::Stream(StreamError::InUse { .. }) => {
                "another process appends to the stream".to_owned()
            }
            _ => "the stream cannot be written now".to_owned(),
        }
    }
}

/// Records that wait for their turn.
struct Batch<'s> {
    session: &'s mut ProducerSession,
    bytes: Vec<u8>,
    ends: Vec<usize>,
    /// Of the origin of the last record.
    ending: Option<Ending>,
    /// Bytes that were written for records of the request, also for those that are too long: what bounds its time.
    all_bytes: u64,
    appended: u64,
}

impl<'s> Batch<'s> {
    fn new(session: &'s mut ProducerSession) -> Self {
        Self {
            session,
            bytes: Vec::new(),
            ends: Vec::new(),
            ending: None,
            all_bytes: 0,
            appended: 0,
        }
    }

    /// Takes a record of an origin, unless it is too long.
    fn put(
        &mut self,
        refused: &mut Refused,
        (of, origin): (Numbers, &Origin),
        record: &LogRecord,
    ) -> Result<(), SharedError> {
        if self.all_bytes >= RECORDS_BYTES_MAX {
            refused.note(&format_args!(
                "the records of the request are longer than {RECORDS_BYTES_MAX} bytes as JSON: \
                 send smaller batches"
            ));
            return Ok(());
        }
        let ending = match &mut self.ending {
            Some(ending) => {
                ending.enter(of, origin);
                ending
            }
            none => none.insert(Ending::new(of, origin)),
        };
        let max = self.session.record_len_max();
        // The record is longer still.
        if ending.len() > max {
            let len = ending.len();
            refused.note(&SharedError::TooLong { len, max });
            return Ok(());
        }
        let start = self.bytes.len();
        ending.put_record(&mut self.bytes, record);
        let len = self.bytes.len().saturating_sub(start);
        self.all_bytes = self.all_bytes.saturating_add(exact(len));
        if len > max {
            self.bytes.truncate(start);
            refused.note(&SharedError::TooLong { len, max });
            return Ok(());
        }
        self.ends.push(self.bytes.len());
        match self.bytes.len() >= TURN_BYTES {
            true => self.flush(),
            false => Ok(()),
        }
    }

    fn flush(&mut self) -> Result<(), SharedError> {
        let now_ns = unix_ns();
        let mut turn = self.session.turn(Instant::now());
        let mut start = 0;
        for &end in &self.ends {
            turn.append(now_ns, &self.bytes[start..end])?;
            start = end;
        }
        self.appended = self.appended.saturating_add(exact(self.ends.len()));
        self.ends.clear();
        self.bytes.clear();
        Ok(())
    }
}

/// Decompresses a body, as far as its bound.
fn inflate(body: &[u8]) -> Result<Vec<u8>, Answer> {
    let mut bytes = Vec::new();
    let limit = exact::<u64>(INFLATED_MAX).saturating_add(1);
    let read = MultiGzDecoder::new(body)
        .take(limit)
        .read_to_end(&mut bytes);
    match read {
        Err(error) => Err(Answer::Invalid(format!("invalid gzip: {error}"))),
        Ok(len) if len > INFLATED_MAX => Err(Answer::Long(format!(
            "the decompressed body is longer than {INFLATED_MAX} bytes: send smaller batches"
        ))),
        Ok(_) => Ok(bytes),
    }
}
