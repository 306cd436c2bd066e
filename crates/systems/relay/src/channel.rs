//! A TCP connection, with TLS or without, that carries messages.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustls::{ClientConnection, Connection, ServerConnection};

use crate::error::RelayError;
use crate::protocol::{Decoder, Message};

/// Maximum bytes waiting to be sent; a peer that does not read is lost.
const UNSENT_MAX: usize = 64 << 20;
/// Bytes read at a time.
const READ_LEN: usize = 16 << 10;

/// A non-blocking connection that carries messages.
pub struct Channel {
    stream: TcpStream,
    tls: Option<Connection>,
    decoder: Decoder,
    unsent: Vec<u8>,
    closed: bool,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel")
            .field("peer", &self.peer())
            .field("tls", &self.tls.is_some())
            .finish_non_exhaustive()
    }
}

impl Channel {
    /// A channel over a connected stream; with TLS if given the state of either end.
    ///
    /// # Errors
    ///
    /// The operating system's error.
    pub fn new(stream: TcpStream, tls: Option<Connection>) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let peer = stream.peer_addr()?.to_string();
        Ok(Self {
            stream,
            decoder: Decoder::new(peer, tls.is_none()),
            tls,
            unsent: Vec::new(),
            closed: false,
        })
    }

    /// The switch's end, with TLS.
    ///
    /// # Errors
    ///
    /// The operating system's error.
    pub fn client(stream: TcpStream, tls: ClientConnection) -> io::Result<Self> {
        Self::new(stream, Some(Connection::Client(tls)))
    }

    /// The relay's end, with TLS.
    ///
    /// # Errors
    ///
    /// The operating system's error.
    pub fn server(stream: TcpStream, tls: ServerConnection) -> io::Result<Self> {
        Self::new(stream, Some(Connection::Server(tls)))
    }

    /// The underlying stream.
    #[must_use]
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// From now on, a message with a longer body is an error before it is read.
    pub(crate) fn set_limit(&mut self, body_len: usize) {
        self.decoder.set_limit(body_len);
    }

    /// Bytes that it buffers.
    pub(crate) fn held_bytes(&self) -> usize {
        self.decoder.held_bytes() + self.unsent.capacity()
    }

    /// The peer's name in messages.
    #[must_use]
    pub fn peer(&self) -> &str {
        self.decoder.peer()
    }

    /// Sends a message, as far as possible without waiting; the rest with the next call of this or
    /// [`Channel::poll`].
    ///
    /// # Errors
    ///
    /// If the connection is broken, or the peer does not read.
    pub fn send(&mut self, message: &Message) -> Result<(), RelayError> {
        message.emit(&mut self.unsent);
        if self.unsent.len() > UNSENT_MAX {
            return Err(self.io("send", ErrorKind::TimedOut.into()));
        }
        self.flush()
    }

    /// The next message, if one has arrived.
    ///
    /// # Errors
    ///
    /// If the connection is broken or closed, or the peer sends an invalid message.
    pub fn poll(&mut self) -> Result<Option<Message>, RelayError> {
        if let Err(error) = self.flush() {
            // What the peer sent before closing is the better explanation.
            self.fill()?;
            return match self.next_message()? {
                Some(message) => Ok(Some(message)),
                None => Err(error),
            };
        }
        if let Some(message) = self.next_message()? {
            return Ok(Some(message));
        }
        if !self.closed {
            self.fill()?;
        }
        if let Some(message) = self.next_message()? {
            return Ok(Some(message));
        }
        if self.closed {
            let peer = self.peer().to_owned();
            return Err(RelayError::Closed { peer });
        }
        Ok(None)
    }

    /// Waits for a message, up to `limit` or until told to stop.
    ///
    /// # Errors
    ///
    /// As [`Channel::poll`], and if none arrives.
    pub fn wait(
        &mut self,
        limit: Duration,
        interrupted: impl Fn() -> bool,
    ) -> Result<Message, RelayError> {
        /// How long a wait ignores `interrupted`.
        const LOOK_EVERY: Duration = Duration::from_millis(20);
        let end = Instant::now() + limit;
        loop {
            if let Some(message) = self.poll()? {
                return Ok(message);
            }
            if interrupted() {
                let peer = self.peer().to_owned();
                return Err(RelayError::Interrupted { peer });
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.io("get an answer", ErrorKind::TimedOut.into()));
            }
            self.wait_ready(left.min(LOOK_EVERY))?;
        }
    }

    /// Waits up to `limit` until [`Channel::poll`] can do something: the peer has sent something,
    /// or can take more.
    ///
    /// # Errors
    ///
    /// The operating system's error.
    pub fn wait_ready(&self, limit: Duration) -> Result<(), RelayError> {
        // With TLS, bytes that wait for the end of the handshake cannot be sent yet.
        let sends = match &self.tls {
            None => !self.unsent.is_empty(),
            Some(tls) => tls.wants_write(),
        };
        let events = if sends {
            PollFlags::IN | PollFlags::OUT
        } else {
            PollFlags::IN
        };
        let wait = || -> io::Result<()> {
            let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
            match poll(&mut [PollFd::new(&self.stream, events)], Some(&limit)) {
                Ok(_) | Err(Errno::INTR) => Ok(()),
                Err(error) => Err(error.into()),
            }
        };
        wait().map_err(|error| self.io("wait", error))
    }

    fn io(&self, what: &str, source: io::Error) -> RelayError {
        RelayError::Io {
            what: format!("{}: cannot {what}", self.peer()),
            source,
        }
    }

    fn next_message(&mut self) -> Result<Option<Message>, RelayError> {
        let next = self.decoder.next_message();
        if let Err(RelayError::Version { theirs, .. }) = next {
            Decoder::refusal(theirs, &mut self.unsent);
            // If that cannot be sent, the other end still sees the connection close.
            let _ = self.flush();
        }
        next
    }

    fn fill(&mut self) -> Result<(), RelayError> {
        let mut buffer = [0; READ_LEN];
        // Bounded, so that other work gets its turn, and no more than a message is buffered.
        for _ in 0..64 {
            if self.decoder.missing() == 0 {
                return Ok(());
            }
            let read = match &mut self.tls {
                None => self.stream.read(&mut buffer),
                Some(tls) => read_tls(tls, &mut self.stream, &mut buffer),
            };
            match read {
                Ok(0) => {
                    self.closed = true;
                    return Ok(());
                }
                Ok(len) => self.decoder.push(&buffer[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if self.tls.is_some() && error.kind() == ErrorKind::InvalidData => {
                    return Err(RelayError::Tls {
                        file: self.peer().to_owned(),
                        problem: format!(
                            "{error}: each end's certificate must come from the authority \
                             that the other end was given (--tls-ca)"
                        ),
                    });
                }
                Err(error) => return Err(self.io("receive", error)),
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), RelayError> {
        let written = match &mut self.tls {
            None => write_some(&mut self.stream, &mut self.unsent),
            Some(tls) => write_tls(tls, &mut self.stream, &mut self.unsent),
        };
        written.map_err(|error| self.io("send", error))
    }
}

fn write_some(stream: &mut impl Write, unsent: &mut Vec<u8>) -> io::Result<()> {
    while !unsent.is_empty() {
        match stream.write(unsent) {
            Ok(len) => drop(unsent.drain(..len)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn read_tls(tls: &mut Connection, stream: &mut TcpStream, out: &mut [u8]) -> io::Result<usize> {
    match tls.reader().read(out) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
        read => return read,
    }
    if tls.read_tls(stream)? == 0 {
        return Ok(0);
    }
    if let Err(error) = tls.process_new_packets() {
        // Tell the peer why, if possible.
        let _ = tls.write_tls(stream);
        return Err(io::Error::new(ErrorKind::InvalidData, error));
    }
    tls.reader().read(out)
}

fn write_tls(tls: &mut Connection, stream: &mut TcpStream, unsent: &mut Vec<u8>) -> io::Result<()> {
    loop {
        while tls.wants_write() {
            match tls.write_tls(stream) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        // Until the handshake is done, it is kept here.
        if unsent.is_empty() || tls.is_handshaking() {
            return Ok(());
        }
        let taken = tls.writer().write(unsent)?;
        unsent.drain(..taken);
    }
}
