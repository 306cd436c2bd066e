//! A producer at a server's stream: keeps its records until the server has confirmed that they survive a loss of power,
//! and sends them again over the next connection.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use strata_auth::tls::ClientTls;
use strata_stream::message::Message;
use strata_stream::{Cursor, StreamName};
use strata_wire::exact;

use super::ask;
use crate::peer::{Came, Peer, PeerError, Result};

/// Bytes of records that are sent, and confirmed, at once.
const CHUNK: usize = 64 << 10;

/// A producer and its stream.
#[derive(Clone, Debug)]
pub struct ProducerSpec {
    /// The server, as `HOST:PORT`.
    pub server: String,
    /// With TLS.
    pub tls: Option<ClientTls>,
    /// The stream there.
    pub stream: StreamName,
    /// The producer: at random, and not 0.
    pub id: u64,
    /// Its name, for readers.
    pub name: StreamName,
}

/// An id for a producer.
///
/// # Errors
///
/// If the system has no random numbers.
pub fn random_id() -> std::io::Result<u64> {
    let mut id = [0; 8];
    getrandom::fill(&mut id).map_err(std::io::Error::other)?;
    Ok(u64::from_le_bytes(id).max(1))
}

/// Records in a row, as they are sent.
#[derive(Debug)]
struct Chunk {
    /// The number of the first.
    first: u64,
    count: u64,
    frames: Vec<u8>,
}

impl Chunk {
    fn end(&self) -> u64 {
        self.first + self.count
    }
}

/// A producer of a server's stream. Records that the server has not confirmed are in memory.
pub struct StreamProducer {
    spec: ProducerSpec,
    peer: Option<Peer>,
    record_len_max: Option<usize>,
    /// Not confirmed, oldest first.
    chunks: VecDeque<Chunk>,
    /// Of them, sent over this connection.
    sent: usize,
    /// The number that the server expects next.
    expected: u64,
    bytes: usize,
    next: u64,
    confirmed: u64,
    /// Records before this number were there at the start, and those before the other were sent.
    made: u64,
    sent_until: u64,
}

impl std::fmt::Debug for StreamProducer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamProducer")
            .field("spec", &self.spec)
            .field("next", &self.next)
            .field("confirmed", &self.confirmed)
            .finish_non_exhaustive()
    }
}

impl StreamProducer {
    /// A producer whose next record has this number.
    #[must_use]
    pub fn new(spec: ProducerSpec, next: u64) -> Self {
        Self {
            spec,
            peer: None,
            record_len_max: None,
            chunks: VecDeque::new(),
            sent: 0,
            expected: 0,
            bytes: 0,
            next,
            confirmed: next,
            made: next,
            sent_until: next,
        }
    }

    /// The server, as `HOST:PORT`.
    pub(super) fn server(&self) -> &str {
        &self.spec.server
    }

    /// Whether there is a connection.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.peer.is_some()
    }

    /// The longest record, once the server has said so.
    #[must_use]
    pub fn record_len_max(&self) -> Option<usize> {
        self.record_len_max
    }

    /// Bytes of records that are not confirmed.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.bytes
    }

    /// The number of the next record.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Records before this number are durable at the server.
    #[must_use]
    pub fn confirmed(&self) -> u64 {
        self.confirmed
    }

    /// Records that are not confirmed.
    #[must_use]
    pub fn unconfirmed(&self) -> u64 {
        let left = |chunk: &Chunk| chunk.end() - chunk.first.max(self.confirmed).min(chunk.end());
        self.chunks.iter().map(left).sum()
    }

    /// The next record has this number: those before it are given up.
    pub fn skip_to(&mut self, number: u64) {
        self.next = self.next.max(number);
    }

    /// Records before this number exist, although not all were put: the server may have them.
    pub fn set_made(&mut self, number: u64) {
        self.made = self.made.max(number);
    }

    /// Takes a record, which [`StreamProducer::step`] sends.
    pub fn put(&mut self, record: &[u8]) {
        let is_closed = |at: usize, chunk: &Chunk| {
            at < self.sent || chunk.end() != self.next || chunk.frames.len() >= CHUNK
        };
        let last = self.chunks.len().checked_sub(1);
        let last = last.filter(|&at| !is_closed(at, &self.chunks[at]));
        let at = last.unwrap_or(self.chunks.len());
        if last.is_none() {
            self.chunks.push_back(Chunk {
                first: self.next,
                count: 0,
                frames: Vec::new(),
            });
        }
        let chunk = &mut self.chunks[at];
        let before = chunk.frames.len();
        Message::Record(record).emit(&mut chunk.frames);
        self.bytes += chunk.frames.len() - before;
        chunk.count += 1;
        self.next += 1;
    }

    /// Connects. Records that the server has are not sent again.
    ///
    /// # Errors
    ///
    /// If the server cannot be reached, or refuses.
    pub fn connect(&mut self) -> Result<()> {
        self.disconnect();
        let spec = &self.spec;
        let message = Message::Append {
            id: spec.id,
            producer: spec.name.as_str(),
            name: spec.stream.as_str(),
        };
        let (peer, ready) = ask(&spec.server, spec.tls.as_ref(), &message)?;
        let made = self.made.max(self.sent_until);
        if ready.next > made {
            return Err(PeerError::Ahead {
                peer: peer.name,
                has: ready.next,
                next: made,
            });
        }
        self.peer = Some(peer);
        self.record_len_max = Some(exact(ready.record_len_max));
        self.expected = ready.next;
        // The server may have more, which it confirms when they are durable.
        self.sent = self
            .chunks
            .iter()
            .take_while(|chunk| chunk.end() <= ready.next)
            .count();
        Ok(())
    }

    /// Ends the connection; records stay.
    pub fn disconnect(&mut self) {
        self.peer = None;
        self.sent = 0;
    }

    /// Sends the records that were put, and takes what the server says, for which it waits up to `limit`.
    ///
    /// # Errors
    ///
    /// If the connection is gone, or the server ends it: [`StreamProducer::connect`] goes on.
    pub fn step(&mut self, limit: Duration) -> Result<()> {
        let done = self.exchange(limit);
        if done.is_err() {
            self.disconnect();
        }
        done
    }

    fn exchange(&mut self, limit: Duration) -> Result<()> {
        let Some(peer) = &mut self.peer else {
            return Ok(());
        };
        let mut sent = Ok(());
        while let Some(chunk) = self.chunks.get(self.sent).filter(|_| sent.is_ok()) {
            if chunk.first != self.expected {
                peer.put(&Message::Start(chunk.first))?;
            }
            peer.put_bytes(&chunk.frames);
            self.expected = chunk.end();
            self.sent_until = self.sent_until.max(self.expected);
            self.sent += 1;
            sent = peer.flush();
        }
        // Why it does not take them is the better explanation.
        let is_closed = loop {
            match peer.receive(limit)? {
                Came::Some if !peer.is_ready() => {}
                Came::Some | Came::Nothing => break false,
                Came::Closed => break true,
            }
        };
        let mut confirmed = self.confirmed;
        while let Some(message) = peer.next_message()? {
            match message {
                Message::Synced(number) => confirmed = number,
                Message::Refused(text) => {
                    let text = text.to_owned();
                    let peer = peer.name.clone();
                    self.confirm(confirmed);
                    return Err(PeerError::Refused { peer, text });
                }
                _ => return Err(peer.unexpected()),
            }
        }
        let closed = is_closed.then(|| peer.closed());
        self.confirm(confirmed);
        sent?;
        closed.map_or(Ok(()), Err)
    }

    /// The server has those before a number.
    fn confirm(&mut self, number: u64) {
        self.confirmed = self.confirmed.max(number.min(self.next));
        while let Some(chunk) = self.chunks.front()
            && chunk.end() <= self.confirmed
        {
            self.bytes -= chunk.frames.len();
            self.sent = self.sent.saturating_sub(1);
            self.chunks.pop_front();
        }
        if self.chunks.is_empty() {
            // Those that were given up need no confirmation.
            self.confirmed = self.next;
        }
    }

    /// Says that no record follows, and waits until the server has confirmed all: the end of the stream.
    ///
    /// # Errors
    ///
    /// As of [`StreamProducer::step`].
    pub fn end(&mut self, limit: Duration) -> Result<Option<Cursor>> {
        self.step(Duration::ZERO)?;
        let Some(peer) = &mut self.peer else {
            return Ok(None);
        };
        let deadline = Instant::now() + limit;
        let mut confirmed = self.confirmed;
        let ended = peer
            .put(&Message::End)
            .and_then(|()| peer.flush())
            .and_then(|()| {
                loop {
                    let left = deadline.saturating_duration_since(Instant::now());
                    let said = peer.wait_for(left, |message| match message {
                        Message::Done { records, cursor } => Some(Ok(Some((records, cursor)))),
                        Message::Synced(number) => {
                            confirmed = number;
                            Some(Ok(None))
                        }
                        Message::Refused(text) => Some(Err(text.to_owned())),
                        _ => None,
                    })?;
                    let name = peer.name.clone();
                    let said = said.map_err(|text| PeerError::Refused { peer: name, text });
                    if let Some(done) = said? {
                        return Ok(done);
                    }
                }
            });
        self.confirm(confirmed);
        self.peer = None;
        let (number, cursor) = ended.inspect_err(|_| self.sent = 0)?;
        self.confirm(number);
        self.sent = 0;
        Ok(Some(cursor))
    }
}
