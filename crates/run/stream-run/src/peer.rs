//! A connection: messages in and out. It blocks, but never beyond its time limit.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use rustls::{ClientConnection, ServerConnection, StreamOwned};
use strata_stream::message::{Frames, Message, MessageError};

/// Bytes that are sent at once.
const CHUNK: usize = 64 << 10;
/// How long a chunk may take: a peer that reads more slowly is given up.
const CHUNK_LIMIT: Duration = Duration::from_secs(30);
/// An idle peer is probed after this long, and then at this interval.
const IDLE: Duration = Duration::from_secs(30);
const PROBE: Duration = Duration::from_secs(10);
/// A peer is gone if it has answered nothing for this long, neither that nor data.
const GONE_MS: u32 = 90_000;

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// The system's error.
    #[error("{peer}: {source}")]
    Io {
        /// The other end.
        peer: String,
        /// The error.
        source: io::Error,
    },
    /// The other end has closed it before its time.
    #[error("{peer}: the connection was closed")]
    Closed {
        /// The other end.
        peer: String,
    },
    /// The other end does not read what it is sent.
    #[error("{peer}: has not read {CHUNK} bytes in {limit:?}")]
    Slow {
        /// The other end.
        peer: String,
        /// How long it had.
        limit: Duration,
    },
    /// The other end does not say what it should.
    #[error("{peer}: timed out waiting for an answer")]
    Silent {
        /// The other end.
        peer: String,
    },
    /// What came is no message.
    #[error("{peer}: {source}")]
    Message {
        /// The other end.
        peer: String,
        /// What is wrong.
        source: MessageError,
    },
    /// A message that does not belong there.
    #[error("{peer}: unexpected message; do both ends run the same version of Strata?")]
    Unexpected {
        /// The other end.
        peer: String,
    },
    /// The server has refused.
    #[error("{peer}: {text}")]
    Refused {
        /// The server.
        peer: String,
        /// What it says.
        text: String,
    },
    /// The server has records of this producer that it has not made.
    #[error(
        "{peer}: has {has} records of this producer, which has sent {next}: if its spool directory was restored from a \
         backup, or copied, give a new one"
    )]
    Ahead {
        /// The server.
        peer: String,
        /// The number of the record that the server expects.
        has: u64,
        /// The number of the next one here.
        next: u64,
    },
    /// There is no TLS between both.
    #[error("{peer}: {problem}")]
    Tls {
        /// The other end.
        peer: String,
        /// Why.
        problem: String,
    },
}

impl PeerError {
    /// What happened, for a text that names the other end already.
    pub(crate) fn without_peer(&self) -> String {
        let (Self::Io { peer, .. }
        | Self::Closed { peer }
        | Self::Slow { peer, .. }
        | Self::Silent { peer }
        | Self::Message { peer, .. }
        | Self::Unexpected { peer }
        | Self::Refused { peer, .. }
        | Self::Ahead { peer, .. }
        | Self::Tls { peer, .. }) = self;
        let text = self.to_string();
        let rest = text.strip_prefix(peer.as_str());
        let rest = rest.and_then(|rest| rest.strip_prefix(": "));
        rest.map_or_else(|| text.clone(), str::to_owned)
    }
}

pub(crate) type Result<T> = std::result::Result<T, PeerError>;

enum Wire {
    Plain(TcpStream),
    Server(Box<StreamOwned<ServerConnection, TcpStream>>),
    Client(Box<StreamOwned<ClientConnection, TcpStream>>),
}

/// What came.
pub(crate) enum Came {
    Some,
    Nothing,
    Closed,
}

/// A connection.
pub(crate) struct Peer {
    wire: Wire,
    pub(crate) name: String,
    frames: Frames,
    /// What is read goes here first: zeroed once, since a read of a few records would cost less than zeros for it.
    buffer: Box<[u8]>,
    out: Vec<u8>,
    chunk_limit: Duration,
}

fn prepared(stream: &TcpStream) -> io::Result<String> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, IDLE)?;
    sockopt::set_tcp_keepintvl(stream, PROBE)?;
    sockopt::set_tcp_user_timeout(stream, GONE_MS)?;
    stream.set_write_timeout(Some(Duration::from_secs(1)))?;
    // Until something is awaited, TLS's own messages.
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    Ok(stream.peer_addr()?.to_string())
}

impl Peer {
    /// The server's end.
    pub(crate) fn accepted(stream: TcpStream, tls: Option<ServerConnection>) -> io::Result<Self> {
        let name = prepared(&stream)?;
        Ok(Self {
            wire: match tls {
                Some(tls) => Wire::Server(Box::new(StreamOwned::new(tls, stream))),
                None => Wire::Plain(stream),
            },
            name,
            frames: Frames::of_client(),
            buffer: vec![0; CHUNK].into_boxed_slice(),
            out: Vec::new(),
            chunk_limit: CHUNK_LIMIT,
        })
    }

    /// The client's end.
    pub(crate) fn connected(stream: TcpStream, tls: Option<ClientConnection>) -> io::Result<Self> {
        let name = prepared(&stream)?;
        Ok(Self {
            wire: match tls {
                Some(tls) => Wire::Client(Box::new(StreamOwned::new(tls, stream))),
                None => Wire::Plain(stream),
            },
            name,
            frames: Frames::of_server(),
            buffer: vec![0; CHUNK].into_boxed_slice(),
            out: Vec::new(),
            chunk_limit: CHUNK_LIMIT,
        })
    }

    fn stream(&self) -> &TcpStream {
        match &self.wire {
            Wire::Plain(stream) => stream,
            Wire::Server(tls) => tls.get_ref(),
            Wire::Client(tls) => tls.get_ref(),
        }
    }

    fn failed(&self, source: io::Error) -> PeerError {
        let peer = self.name.clone();
        match source.kind() {
            // A TLS connection that is closed without its goodbye.
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                PeerError::Closed { peer }
            }
            ErrorKind::InvalidData => PeerError::Tls {
                peer,
                problem: format!(
                    "{source}: either both ends need certificates, each from the authority that \
                     the other end was given (--tls-ca), or neither end has one"
                ),
            },
            _ => PeerError::Io { peer, source },
        }
    }

    pub(crate) fn closed(&self) -> PeerError {
        let peer = self.name.clone();
        PeerError::Closed { peer }
    }

    pub(crate) fn unexpected(&self) -> PeerError {
        let peer = self.name.clone();
        PeerError::Unexpected { peer }
    }

    /// How long the other end may take to take a chunk.
    pub(crate) fn set_chunk_limit(&mut self, limit: Duration) {
        self.chunk_limit = limit;
    }

    /// From now on, frames may have records.
    pub(crate) fn allow_records(&mut self) {
        self.frames.allow_records();
    }

    /// Takes what comes, waiting up to `limit`. Without a limit, it takes what is there: the shortest time limit of a socket
    /// is a tick of the kernel, up to 10 ms.
    pub(crate) fn receive(&mut self, limit: Duration) -> Result<Came> {
        let is_now = limit.is_zero();
        let set = match is_now {
            true => self.stream().set_nonblocking(true),
            false => self.stream().set_read_timeout(Some(limit)),
        };
        set.map_err(|error| self.failed(error))?;
        let came = self.read();
        if is_now {
            let set = self.stream().set_nonblocking(false);
            set.map_err(|error| self.failed(error))?;
        }
        came
    }

    fn read(&mut self) -> Result<Came> {
        let read = match &mut self.wire {
            Wire::Plain(stream) => stream.read(&mut self.buffer),
            Wire::Server(tls) => tls.read(&mut self.buffer),
            Wire::Client(tls) => tls.read(&mut self.buffer),
        };
        match read {
            Ok(0) => Ok(Came::Closed),
            Ok(len) => {
                self.frames.push(&self.buffer[..len]);
                Ok(Came::Some)
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {
                    Ok(Came::Nothing)
                }
                ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => Ok(Came::Closed),
                _ => Err(self.failed(error)),
            },
        }
    }

    /// Whether [`Peer::next_message`] has something to say.
    pub(crate) fn is_ready(&self) -> bool {
        self.frames.is_ready()
    }

    /// The next message that has come.
    pub(crate) fn next_message(&mut self) -> Result<Option<Message<'_>>> {
        let peer = &self.name;
        let next = self.frames.next_message();
        next.map_err(|source| PeerError::Message {
            peer: peer.clone(),
            source,
        })
    }

    /// Receives until `take` has what it wants of a message, up to `limit`.
    pub(crate) fn wait_for<T>(
        &mut self,
        limit: Duration,
        mut take: impl FnMut(Message<'_>) -> Option<T>,
    ) -> Result<T> {
        let end = Instant::now() + limit;
        loop {
            if let Some(message) = self.next_message()? {
                let taken = take(message);
                return taken.ok_or_else(|| self.unexpected());
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let peer = self.name.clone();
                return Err(PeerError::Silent { peer });
            }
            if let Came::Closed = self.receive(left)? {
                return Err(self.closed());
            }
        }
    }

    /// Bytes that come before all messages.
    pub(crate) fn put_bytes(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Puts a message behind the others; they are sent if they are many.
    pub(crate) fn put(&mut self, message: &Message<'_>) -> Result<()> {
        message.emit(&mut self.out);
        if self.out.len() >= CHUNK {
            self.flush()?;
        }
        Ok(())
    }

    /// Sends all.
    pub(crate) fn flush(&mut self) -> Result<()> {
        let out = std::mem::take(&mut self.out);
        for chunk in out.chunks(CHUNK) {
            self.send(chunk)?;
        }
        self.out = out;
        self.out.clear();
        Ok(())
    }

    fn send(&mut self, mut chunk: &[u8]) -> Result<()> {
        let end = Instant::now() + self.chunk_limit;
        loop {
            let written = match &mut self.wire {
                Wire::Plain(stream) => stream.write(chunk),
                Wire::Server(tls) => tls.write(chunk),
                Wire::Client(tls) => tls.write(chunk),
            };
            match written {
                Ok(0) => return Err(self.closed()),
                Ok(len) => chunk = &chunk[len..],
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    _ => return Err(self.failed(error)),
                },
            }
            // What TLS has encrypted may still wait to be sent.
            if chunk.is_empty() && self.is_sent()? {
                return Ok(());
            }
            if Instant::now() >= end {
                let (peer, limit) = (self.name.clone(), self.chunk_limit);
                return Err(PeerError::Slow { peer, limit });
            }
        }
    }

    fn is_sent(&mut self) -> Result<bool> {
        let flushed = match &mut self.wire {
            Wire::Plain(_) => return Ok(true),
            Wire::Server(tls) => tls.flush(),
            Wire::Client(tls) => tls.flush(),
        };
        match flushed {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(self.failed(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// A server's end whose client may read, and a record for it.
    fn ends() -> (Peer, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        (Peer::accepted(server, None).unwrap(), client)
    }

    #[test]
    fn a_peer_is_gone_after_a_minute_and_a_half() {
        let (_server, client) = ends();
        prepared(&client).unwrap();
        assert!(sockopt::socket_keepalive(&client).unwrap());
        // It ends probes too (tcp(7)).
        assert_eq!(sockopt::tcp_user_timeout(&client).unwrap(), 90_000);
        assert!(sockopt::tcp_keepidle(&client).unwrap() < Duration::from_secs(90));
    }

    /// What waits for a tick of the kernel each time takes seconds for this.
    #[test]
    fn taking_what_is_there_does_not_wait() {
        let (mut peer, mut client) = ends();
        let start = Instant::now();
        for _ in 0..2_000 {
            assert!(matches!(peer.receive(Duration::ZERO), Ok(Came::Nothing)));
        }
        assert!(start.elapsed() < Duration::from_secs(1));
        // It waits again where there is a limit.
        let writer = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            client.write_all(b"STRNET02").unwrap();
            client
        });
        let came = peer.receive(Duration::from_secs(10));
        assert!(matches!(came, Ok(Came::Some)));
        drop(writer.join().unwrap());
        let came = peer.receive(Duration::from_secs(10));
        assert!(matches!(came, Ok(Came::Closed)));
        assert!(matches!(peer.receive(Duration::ZERO), Ok(Came::Closed)));
    }

    #[test]
    fn who_does_not_read_is_given_up_and_who_reads_slowly_is_not() {
        let record = Message::Record(&[7; CHUNK]);
        let (mut peer, client) = ends();
        peer.chunk_limit = Duration::from_millis(20);
        // More than both ends' buffers hold.
        let mut sent = (0..10_000).map(|_| peer.put(&record).and_then(|()| peer.flush()));
        let given_up = sent.find_map(Result::err).unwrap();
        assert!(matches!(given_up, PeerError::Slow { .. }), "{given_up}");
        assert!(
            given_up
                .to_string()
                .ends_with("has not read 65536 bytes in 20ms")
        );
        drop(client);

        let (mut peer, mut client) = ends();
        let reader = thread::spawn(move || {
            // A chunk for each that comes, in little pieces.
            let mut read = 0;
            let mut bytes = [0; 700];
            while let Ok(len @ 1..) = client.read(&mut bytes) {
                read += len;
            }
            read
        });
        for _ in 0..1_000 {
            peer.put(&record).unwrap();
        }
        peer.flush().unwrap();
        drop(peer);
        assert!(reader.join().unwrap() > 1_000 * CHUNK);
    }
}
