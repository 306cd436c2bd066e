//! The other end of a server of streams: a reader here, a producer in `producer`, and `forward`, a thread that keeps a
//! producer connected, from memory or from a `spool`.

mod forward;
mod producer;
mod spool;

use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use strata_auth::tls::{ClientTls, TlsError};
use strata_stream::message::{From, MAGIC, Message};
use strata_stream::{Cursor, StreamName};

use crate::Entry;
use crate::peer::{Came, Peer, PeerError, Result};

pub use forward::{ForwardError, Forwarded, Forwarder, Forwarding, Source};
pub use producer::{ProducerSpec, StreamProducer, random_id};
pub use spool::spool;

/// How long a connection and an answer may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);

/// A connection to a server of streams, to read one.
pub struct StreamClient {
    peer: Peer,
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
    /// The next records are of this stream, of several that are read together.
    Of(&'a str),
    /// What does not work at the server, for which the rest goes on.
    Warning(&'a str),
    /// The cursor after this number of records is saved.
    Saved(u64),
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

/// What a server is ready for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ready {
    record_len_max: u32,
    next: u64,
}

/// Connects to the server at `HOST:PORT`, and asks it for a stream.
fn ask(
    server: &str,
    tls: Option<&ClientTls>,
    message: &Message<'_>,
) -> std::result::Result<(Peer, Ready), PeerError> {
    let addresses = server.to_socket_addrs().map_err(|source| PeerError::Io {
        peer: server.to_owned(),
        source,
    })?;
    let mut peer = connect(server, addresses, tls, ANSWER_LIMIT)?;
    peer.put_bytes(&MAGIC);
    peer.put(message)?;
    peer.flush()?;
    let answer = peer.wait_for(ANSWER_LIMIT, |message| match message {
        Message::Ready {
            record_len_max,
            next,
        } => Some(Ok(Ready {
            record_len_max,
            next,
        })),
        Message::Refused(text) => Some(Err(text.to_owned())),
        _ => None,
    });
    let name = peer.name.clone();
    let ready = answer.map_err(explained)?;
    let ready = ready.map_err(|text| PeerError::Refused { peer: name, text })?;
    Ok((peer, ready))
}

impl StreamClient {
    /// Reads a stream of the server at `HOST:PORT`, or those whose names match a pattern: at most a number of records, and, if `follow`,
    /// new ones as they come.
    ///
    /// # Errors
    ///
    /// If the server cannot be reached, or refuses.
    pub fn tail(
        server: &str,
        tls: Option<&ClientTls>,
        name: &str,
        (from, max, follow): (From, u64, bool),
    ) -> Result<Self> {
        let message = Message::Tail {
            name,
            from,
            max,
            follow,
        };
        let (peer, _) = ask(server, tls, &message)?;
        Ok(Self { peer })
    }

    /// As [`StreamClient::tail`], after a cursor that the server keeps under a name: it is saved as
    /// [`StreamClient::took`] says.
    ///
    /// # Errors
    ///
    /// If the server cannot be reached, or refuses.
    pub fn tail_kept(
        server: &str,
        tls: Option<&ClientTls>,
        (name, consumer): (&str, &StreamName),
        (max, follow): (u64, bool),
    ) -> Result<Self> {
        let message = Message::TailKept {
            name,
            consumer: consumer.as_str(),
            max,
            follow,
        };
        let (peer, _) = ask(server, tls, &message)?;
        Ok(Self { peer })
    }

    /// Says that this number of records of the connection are done with. The server saves the cursor after them, and
    /// answers with [`StreamEvent::Saved`].
    ///
    /// # Errors
    ///
    /// If the connection is gone.
    pub fn took(&mut self, records: u64) -> Result<()> {
        self.peer.put(&Message::Took(records))?;
        self.peer.flush()
    }

    /// Calls `each` with what the server says next, waiting up to `limit` for a whole message.
    ///
    /// # Errors
    ///
    /// If the connection is gone, or that of `each`.
    pub fn event<T, E>(
        &mut self,
        limit: Duration,
        each: impl FnOnce(StreamEvent<'_>) -> std::result::Result<T, E>,
    ) -> Result<std::result::Result<T, E>> {
        let started = Instant::now();
        while !self.peer.is_ready() {
            match self.peer.receive(limit.saturating_sub(started.elapsed()))? {
                Came::Closed => return Err(self.peer.closed()),
                Came::Some => {}
                Came::Nothing => break,
            }
        }
        let peer = self.peer.name.clone();
        let event = match self.peer.next_message()? {
            None => StreamEvent::Nothing,
            Some(Message::Entry {
                next,
                seq,
                time_ns,
                origin,
                payload,
            }) => StreamEvent::Entry(Entry {
                next,
                seq,
                time_ns,
                origin,
                payload,
            }),
            Some(Message::Unread { missing, expired }) => StreamEvent::Unread(missing, expired),
            Some(Message::Of(name)) => StreamEvent::Of(name),
            Some(Message::Warning(text)) => StreamEvent::Warning(text),
            Some(Message::Synced(records)) => StreamEvent::Saved(records),
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
