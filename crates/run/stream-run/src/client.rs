//! The end of who appends to a stream elsewhere, or reads it.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use strata_auth::tls::{ClientTls, TlsError};
use strata_stream::message::{From, MAGIC, Message};
use strata_stream::{Cursor, StreamName};
use strata_wire::exact;

use crate::Entry;
use crate::peer::{Came, Peer, PeerError, Result};

/// How long a connection and an answer may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// How long a server may take to sync what it was sent.
const END_LIMIT: Duration = Duration::from_secs(60);

/// A connection to a server of streams.
pub struct StreamClient {
    peer: Peer,
    /// Of a stream that is appended to: its longest record.
    record_len_max: usize,
    sent: u64,
    synced: u64,
}

impl std::fmt::Debug for StreamClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamClient")
            .field("server", &self.peer.name)
            .finish_non_exhaustive()
    }
}

/// What a server says to who reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamEvent<'a> {
    /// A record.
    Entry(Entry<'a>),
    /// What could not be read so far: missing, at least and at most; deleted before it was read.
    Unread((u64, u64), u64),
    /// That was all, up to this place.
    Done(Cursor),
    /// Nothing for the moment.
    Nothing,
}

/// What an invalid answer most likely means.
pub(crate) fn explained(error: PeerError) -> PeerError {
    match error {
        PeerError::Message { peer, source } => PeerError::Tls {
            peer,
            problem: format!(
                "this is not a stream server, or one that requires certificates (--tls-cert): \
                 {source}"
            ),
        },
        PeerError::Closed { peer } => PeerError::Tls {
            peer,
            problem: "the connection was closed: the server may require certificates \
            (--tls-cert), or have too many connections"
                .to_owned(),
        },
        error => error,
    }
}

/// Connects to `HOST:PORT`, at the first of its addresses that answers.
pub(crate) fn connect(
    server: &str,
    addresses: impl IntoIterator<Item = SocketAddr>,
    tls: Option<&ClientTls>,
    limit: Duration,
) -> Result<Peer> {
    let failed = |source| PeerError::Io {
        peer: server.to_owned(),
        source,
    };
    let mut error = std::io::Error::other("no address is known");
    for address in addresses {
        let stream = match TcpStream::connect_timeout(&address, limit) {
            Ok(stream) => stream,
            Err(refused) => {
                error = refused;
                continue;
            }
        };
        let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
        let tls = tls.map(|tls| tls.connection(host)).transpose();
        let tls = tls.map_err(|error: TlsError| PeerError::Tls {
            peer: server.to_owned(),
            problem: error.to_string(),
        })?;
        return Peer::connected(stream, tls).map_err(failed);
    }
    Err(failed(error))
}

impl StreamClient {
    fn connect(server: &str, tls: Option<&ClientTls>) -> Result<Self> {
        let addresses = server.to_socket_addrs().map_err(|source| PeerError::Io {
            peer: server.to_owned(),
            source,
        })?;
        Ok(Self {
            peer: connect(server, addresses, tls, ANSWER_LIMIT)?,
            record_len_max: 0,
            sent: 0,
            synced: 0,
        })
    }

    fn ask(&mut self, message: &Message<'_>) -> Result<()> {
        self.peer.put_bytes(&MAGIC);
        self.peer.put(message)?;
        self.peer.flush()?;
        let answer = self.peer.wait_for(ANSWER_LIMIT, |message| match message {
            Message::Ready { record_len_max } => Some(Ok(record_len_max)),
            Message::Refused(text) => Some(Err(text.to_owned())),
            _ => None,
        });
        let answer = answer.map_err(explained)?;
        let peer = self.peer.name.clone();
        self.record_len_max = exact(answer.map_err(|text| PeerError::Refused { peer, text })?);
        Ok(())
    }

    /// Appends to a stream of the server at `HOST:PORT` from now on.
    ///
    /// # Errors
    ///
    /// If the server cannot be reached, or refuses.
    pub fn append(server: &str, tls: Option<&ClientTls>, name: &StreamName) -> Result<Self> {
        let mut client = Self::connect(server, tls)?;
        let name = name.as_str();
        client.ask(&Message::Append { name })?;
        Ok(client)
    }

    /// Reads a stream of the server at `HOST:PORT`: at most a number of records, and, if `follow`,
    /// new ones as they come.
    ///
    /// # Errors
    ///
    /// If the server cannot be reached, or refuses.
    pub fn tail(
        server: &str,
        tls: Option<&ClientTls>,
        name: &StreamName,
        (from, max, follow): (From, u64, bool),
    ) -> Result<Self> {
        let mut client = Self::connect(server, tls)?;
        client.ask(&Message::Tail {
            name: name.as_str(),
            from,
            max,
            follow,
        })?;
        Ok(client)
    }

    /// The longest record of the stream that is appended to.
    #[must_use]
    pub fn record_len_max(&self) -> usize {
        self.record_len_max
    }

    /// Sends a record; it is on its way after [`StreamClient::flush`].
    ///
    /// # Errors
    ///
    /// If the connection is gone, or the server does not take it.
    pub fn put(&mut self, record: &[u8]) -> Result<()> {
        self.sent += 1;
        self.peer.put(&Message::Record(record))
    }

    /// Sends what was put, and takes what the server says; how many records survive a loss of power
    /// there.
    ///
    /// # Errors
    ///
    /// If the connection is gone, or the server does not take more.
    pub fn flush(&mut self) -> Result<u64> {
        let sent = self.peer.flush();
        // Why it does not take them is the better explanation.
        let is_closed = loop {
            match self.peer.receive(Duration::ZERO)? {
                Came::Some => {}
                Came::Nothing => break false,
                Came::Closed => break true,
            }
        };
        let (mut refused, mut synced) = (None, self.synced);
        loop {
            match self.peer.next_message()? {
                Some(Message::Synced(records)) => synced = records,
                Some(Message::Refused(text)) => refused = Some(text.to_owned()),
                Some(_) => return Err(self.peer.unexpected()),
                None => break,
            }
        }
        self.synced = synced;
        if let Some(text) = refused {
            let peer = self.peer.name.clone();
            return Err(PeerError::Refused { peer, text });
        }
        sent?;
        if is_closed {
            return Err(self.peer.closed());
        }
        Ok(self.synced)
    }

    /// Ends: how many records survive a loss of power there, all that were put, and the place after
    /// them.
    ///
    /// # Errors
    ///
    /// If the server does not confirm them all.
    pub fn finish(mut self) -> Result<(u64, Cursor)> {
        // If the server does not take it, what it says is the better explanation.
        let sent = self.peer.put(&Message::End);
        let sent = sent.and_then(|()| self.peer.flush());
        let end = Instant::now() + END_LIMIT;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let done = self.peer.wait_for(left, |message| match message {
                Message::Done { records, cursor } => Some(Ok(Some((records, cursor)))),
                Message::Synced(_) => Some(Ok(None)),
                Message::Refused(text) => Some(Err(text.to_owned())),
                _ => None,
            });
            if let Err(PeerError::Closed { .. }) = done {
                sent?;
                return Err(self.peer.closed());
            }
            let done = done?;
            let peer = self.peer.name.clone();
            match done.map_err(|text| PeerError::Refused { peer, text })? {
                Some((records, cursor)) if records == self.sent => return Ok((records, cursor)),
                Some(_) => return Err(self.peer.closed()),
                None => {}
            }
        }
    }

    /// Calls `each` with what the server says next, waiting up to `limit`.
    ///
    /// # Errors
    ///
    /// If the connection is gone, or that of `each`.
    pub fn event<T, E>(
        &mut self,
        limit: Duration,
        each: impl FnOnce(StreamEvent<'_>) -> std::result::Result<T, E>,
    ) -> Result<std::result::Result<T, E>> {
        if !self.peer.is_ready() {
            match self.peer.receive(limit)? {
                Came::Closed => return Err(self.peer.closed()),
                Came::Some | Came::Nothing => {}
            }
        }
        let peer = self.peer.name.clone();
        let event = match self.peer.next_message()? {
            None => StreamEvent::Nothing,
            Some(Message::Entry {
                next,
                seq,
                time_ns,
                payload,
            }) => StreamEvent::Entry(Entry {
                next,
                seq,
                time_ns,
                payload,
            }),
            Some(Message::Unread { missing, expired }) => StreamEvent::Unread(missing, expired),
            Some(Message::Done { cursor, .. }) => StreamEvent::Done(cursor),
            Some(Message::Refused(text)) => {
                let text = text.to_owned();
                return Err(PeerError::Refused { peer, text });
            }
            Some(_) => return Err(PeerError::Unexpected { peer }),
        };
        Ok(each(event))
    }
}
