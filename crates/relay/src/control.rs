//! The control protocol between switch and relay (`docs/formats/relay.md`).
//!
//! ```text
//! 0 length u32            of the body, at most 16 MiB
//! 4 kind u8 | version u8 | reserved u16
//! 8 crc u32               CRC-32C of bytes 4..8 and the body
//! 12 body
//! ```
//!
//! All integers are little-endian.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustls::{ClientConnection, Connection, ServerConnection};
use serde::{Deserialize, Serialize};
use strata_store::Books;

use crate::error::RelayError;

/// The version of the protocol.
pub const VERSION: u8 = 2;
/// Bytes before a message's body.
pub const HEADER_LEN: usize = 12;
/// The longest body.
pub const BODY_LEN_MAX: usize = 16 << 20;

/// What a switch says first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The recording's name, the same after connecting again.
    pub session: String,
    /// The worker whose packets come through this connection.
    pub worker: u16,
    /// Program and version.
    pub program: String,
    /// Inputs as named by the user.
    pub inputs: Vec<String>,
    /// Capture filter.
    pub filter: String,
    /// Name of the mode.
    pub mode: String,
    /// Name of the model.
    pub model: String,
    /// The model file's content.
    pub model_json: String,
    /// Names of the classes, by index.
    pub classes: Vec<String>,
    /// Key of fingerprints.
    pub hash_seed: [u64; 2],
    /// Key of the segments' checksums.
    pub key: u32,
    /// Number of the first block.
    pub first_block: u64,
    /// Sequence number of the first packet.
    pub first_seq: u64,
    /// How its packets travel.
    pub path: HelloPath,
}

/// How a switch's packets travel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "transport")]
pub enum HelloPath {
    /// RoCEv2.
    Rdma {
        /// Reliable or not.
        reliable: bool,
        /// The switch's queue pair.
        qpn: u32,
        /// Sequence number of its first packet.
        psn: u32,
        /// The UDP port that takes answers.
        port: u16,
        /// The largest RDMA MTU that its path takes.
        mtu: usize,
    },
    /// Memory of the same machine.
    SharedMemory,
}

/// What the relay answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Number of the recording in its log.
    pub recording: u32,
    /// Bytes of a block that segments may fill.
    pub block_bytes: usize,
    /// From one block to the next.
    pub block_stride: usize,
    /// Blocks, filled in turn.
    pub blocks: usize,
    /// Where they are.
    pub path: WelcomePath,
}

/// Where a relay's blocks are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "transport")]
pub enum WelcomePath {
    /// Memory of a queue pair.
    Rdma {
        /// The relay's queue pair.
        qpn: u32,
        /// Remote key.
        rkey: u32,
        /// Virtual address of the first block.
        va: u64,
        /// RDMA MTU.
        mtu: usize,
        /// UDP port, 4791 but in tests.
        port: u16,
        /// Sequence number of the first packet that the relay sends; NICs ask for it.
        psn: u32,
    },
    /// A file of the file system `/proc`, to be mapped.
    SharedMemory {
        /// Its path.
        path: String,
    },
}

/// A block that is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BlockFull {
    /// Number of the block.
    pub block: u64,
    /// Bytes of segments in it.
    pub used: u32,
    /// Sequence number (PSN) behind the last RDMA packet that wrote into it.
    pub end_psn: u32,
    /// Sequence number of its first packet.
    pub first_seq: u64,
    /// One more than that of its last.
    pub next_seq: u64,
    /// Packets.
    pub packets: u64,
    /// Segments.
    pub segments: u64,
}

/// How far a worker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Progress {
    /// The sequence number that the next packet will get.
    pub next_seq: u64,
    /// Packets seen.
    pub seen_packets: u64,
    /// Wire bytes seen.
    pub seen_bytes: u64,
}

/// The end of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct End {
    /// The books; only the connection that closes the recording has them.
    pub books: Option<Books>,
    /// What was odd.
    pub warnings: Vec<String>,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Switch: let me write into your memory.
    Hello(Box<Hello>),
    /// Relay: here.
    Welcome(Box<Welcome>),
    /// Relay: no, because.
    Refused(String),
    /// Switch: records that packets refer to, as they stand in a block file.
    Definitions(Vec<u8>),
    /// Switch: a block is full.
    BlockFull(BlockFull),
    /// Relay: this block is on disk, and may be filled again.
    BlockStored(u64),
    /// Switch: so far, every 100 ms.
    Progress(Progress),
    /// Switch: that was all.
    End(Box<End>),
    /// Relay: and all of it is on disk.
    Ended,
    /// Relay: nothing more can be stored, because.
    Failed(String),
    /// Relay: still there, every second.
    Alive,
}

impl Message {
    fn kind(&self) -> u8 {
        match self {
            Self::Hello(_) => 1,
            Self::Welcome(_) => 2,
            Self::Refused(_) => 3,
            Self::Definitions(_) => 4,
            Self::BlockFull(_) => 5,
            Self::BlockStored(_) => 6,
            Self::Progress(_) => 7,
            Self::End(_) => 8,
            Self::Ended => 9,
            Self::Failed(_) => 10,
            Self::Alive => 11,
        }
    }

    /// Appends the message, header and all, to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&[self.kind(), VERSION, 0, 0]);
        out.extend_from_slice(&[0; 4]);
        let json = |value: serde_json::Result<Vec<u8>>| value.unwrap_or_default();
        match self {
            Self::Hello(hello) => out.extend(json(serde_json::to_vec(hello))),
            Self::Welcome(welcome) => out.extend(json(serde_json::to_vec(welcome))),
            Self::Refused(text) | Self::Failed(text) => out.extend_from_slice(text.as_bytes()),
            Self::Definitions(records) => out.extend_from_slice(records),
            Self::BlockFull(full) => {
                out.extend_from_slice(&full.block.to_le_bytes());
                out.extend_from_slice(&full.used.to_le_bytes());
                out.extend_from_slice(&full.end_psn.to_le_bytes());
                for word in [full.first_seq, full.next_seq, full.packets, full.segments] {
                    out.extend_from_slice(&word.to_le_bytes());
                }
            }
            Self::BlockStored(block) => out.extend_from_slice(&block.to_le_bytes()),
            Self::Progress(progress) => {
                let Progress {
                    next_seq,
                    seen_packets,
                    seen_bytes,
                } = progress;
                for word in [next_seq, seen_packets, seen_bytes] {
                    out.extend_from_slice(&word.to_le_bytes());
                }
            }
            Self::End(end) => out.extend(json(serde_json::to_vec(end))),
            Self::Ended | Self::Alive => {}
        }
        let body_len = u32::try_from(out.len() - start - HEADER_LEN).unwrap_or(u32::MAX);
        out[start..start + 4].copy_from_slice(&body_len.to_le_bytes());
        let crc = crc32c::crc32c(&out[start + 4..start + 8]);
        let crc = crc32c::crc32c_append(crc, &out[start + HEADER_LEN..]);
        out[start + 8..start + 12].copy_from_slice(&crc.to_le_bytes());
    }

    /// Reads the first message of `bytes`, and how many bytes it takes; `None` if
    /// it is not all there yet.
    ///
    /// # Errors
    ///
    /// What is wrong with it; what follows cannot be read either.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, String> {
        let Some(header) = bytes.first_chunk::<HEADER_LEN>() else {
            return Ok(None);
        };
        let word = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let (body_len, kind, version) = (word(0) as usize, header[4], header[5]);
        if version != VERSION {
            return Err(format!(
                "version {version} of the control protocol, this is {VERSION}"
            ));
        }
        if body_len > BODY_LEN_MAX {
            return Err(format!("a message of {body_len} bytes"));
        }
        let end = HEADER_LEN + body_len;
        let Some(body) = bytes.get(HEADER_LEN..end) else {
            return Ok(None);
        };
        let crc = crc32c::crc32c_append(crc32c::crc32c(&header[4..8]), body);
        if crc != word(8) {
            return Err("the checksum of a message does not match".into());
        }
        let message = Self::parse_body(kind, body)?;
        Ok(Some((message, end)))
    }

    fn parse_body(kind: u8, body: &[u8]) -> Result<Self, String> {
        let text = |error: serde_json::Error| error.to_string();
        let words = |count: usize| -> Result<Vec<u64>, String> {
            let words = body.chunks_exact(8);
            let words: Vec<u64> = words
                .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
                .collect();
            if words.len() == count && body.len() == 8 * count {
                Ok(words)
            } else {
                Err(format!("{} bytes in a message of kind {kind}", body.len()))
            }
        };
        #[allow(clippy::cast_possible_truncation)]
        Ok(match kind {
            1 => Self::Hello(serde_json::from_slice(body).map_err(text)?),
            2 => Self::Welcome(serde_json::from_slice(body).map_err(text)?),
            3 => Self::Refused(String::from_utf8_lossy(body).into_owned()),
            4 => Self::Definitions(body.to_vec()),
            5 => {
                let words = words(6)?;
                Self::BlockFull(BlockFull {
                    block: words[0],
                    used: words[1] as u32,
                    end_psn: (words[1] >> 32) as u32,
                    first_seq: words[2],
                    next_seq: words[3],
                    packets: words[4],
                    segments: words[5],
                })
            }
            6 => Self::BlockStored(words(1)?[0]),
            7 => {
                let words = words(3)?;
                Self::Progress(Progress {
                    next_seq: words[0],
                    seen_packets: words[1],
                    seen_bytes: words[2],
                })
            }
            8 => Self::End(serde_json::from_slice(body).map_err(text)?),
            9 if body.is_empty() => Self::Ended,
            10 => Self::Failed(String::from_utf8_lossy(body).into_owned()),
            11 if body.is_empty() => Self::Alive,
            _ => return Err(format!("a message of kind {kind}")),
        })
    }
}

/// How an alert of TLS begins (RFC 8446 §5.1), with which it answers who does not
/// speak it. A message would be of 50 MB.
const TLS_RECORD: [u8; 3] = [0x15, 0x03, 0x03];

/// Bytes that wait to be sent at most; a peer that reads nothing is lost.
const UNSENT_MAX: usize = 64 << 20;

/// A connection that messages travel on, without waiting.
pub struct Channel {
    stream: TcpStream,
    tls: Option<Connection>,
    peer: String,
    unread: Vec<u8>,
    unsent: Vec<u8>,
    closed: bool,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel")
            .field("peer", &self.peer)
            .field("tls", &self.tls.is_some())
            .finish_non_exhaustive()
    }
}

impl Channel {
    /// A channel over a connected stream; with TLS if given one of its two ends.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn new(stream: TcpStream, tls: Option<Connection>) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let peer = stream.peer_addr()?.to_string();
        Ok(Self {
            stream,
            tls,
            peer,
            unread: Vec::new(),
            unsent: Vec::new(),
            closed: false,
        })
    }

    /// The switch's end, over TLS.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn client(stream: TcpStream, tls: ClientConnection) -> io::Result<Self> {
        Self::new(stream, Some(Connection::Client(tls)))
    }

    /// The relay's end, over TLS.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn server(stream: TcpStream, tls: ServerConnection) -> io::Result<Self> {
        Self::new(stream, Some(Connection::Server(tls)))
    }

    /// The stream underneath.
    #[must_use]
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// The peer, as messages name it.
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Sends a message, as far as that can be done now; the rest with the next call
    /// of this or [`Channel::poll`].
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

    /// The next message, if one has come.
    ///
    /// # Errors
    ///
    /// If the connection is broken or closed, or the peer sends what is none.
    pub fn poll(&mut self) -> Result<Option<Message>, RelayError> {
        if let Err(error) = self.flush() {
            // What the peer said before it hung up says more.
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
            let peer = self.peer.clone();
            return Err(RelayError::Closed { peer });
        }
        Ok(None)
    }

    /// Waits for a message for so long, and as long as it is not told to end.
    ///
    /// # Errors
    ///
    /// As [`Channel::poll`], and if none comes.
    pub fn wait(
        &mut self,
        limit: Duration,
        interrupted: impl Fn() -> bool,
    ) -> Result<Message, RelayError> {
        let end = std::time::Instant::now() + limit;
        loop {
            if let Some(message) = self.poll()? {
                return Ok(message);
            }
            if interrupted() {
                let peer = self.peer.clone();
                return Err(RelayError::Interrupted { peer });
            }
            if std::time::Instant::now() > end {
                return Err(self.io("no answer", ErrorKind::TimedOut.into()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn io(&self, what: &str, source: io::Error) -> RelayError {
        RelayError::Io {
            what: format!("{}: {what}", self.peer),
            source,
        }
    }

    fn next_message(&mut self) -> Result<Option<Message>, RelayError> {
        if self.tls.is_none() && self.unread.starts_with(&TLS_RECORD) {
            let peer = self.peer.clone();
            return Err(RelayError::WantsTls { peer });
        }
        let parsed = Message::parse(&self.unread).map_err(|problem| RelayError::Protocol {
            peer: self.peer.clone(),
            problem,
        })?;
        Ok(parsed.map(|(message, len)| {
            self.unread.drain(..len);
            message
        }))
    }

    fn fill(&mut self) -> Result<(), RelayError> {
        let mut buffer = [0; 16 << 10];
        // Bounded, so that other work is done in between.
        for _ in 0..64 {
            let read = match &mut self.tls {
                None => self.stream.read(&mut buffer),
                Some(tls) => read_tls(tls, &mut self.stream, &mut buffer),
            };
            match read {
                Ok(0) => {
                    self.closed = true;
                    return Ok(());
                }
                Ok(len) => self.unread.extend_from_slice(&buffer[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if self.tls.is_some() && error.kind() == ErrorKind::InvalidData => {
                    return Err(RelayError::Tls {
                        file: self.peer.clone(),
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
        // The peer is told why, if that can be done.
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
        // Before the handshake is done, it is kept here.
        if unsent.is_empty() || tls.is_handshaking() {
            return Ok(());
        }
        let taken = tls.writer().write(unsent)?;
        unsent.drain(..taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages() -> Vec<Message> {
        vec![
            Message::Refused("full".into()),
            Message::Definitions(vec![1, 2, 3]),
            Message::BlockFull(BlockFull {
                block: 1 << 40,
                used: 4,
                end_psn: 5,
                first_seq: 6,
                next_seq: 7,
                packets: 8,
                segments: 9,
            }),
            Message::BlockStored(77),
            Message::Progress(Progress {
                next_seq: 1,
                seen_packets: 2,
                seen_bytes: 3,
            }),
            Message::End(Box::default()),
            Message::Ended,
            Message::Failed("No space left on device".into()),
            Message::Alive,
        ]
    }

    #[test]
    fn messages_round_trip_and_a_changed_byte_is_noticed() {
        for message in messages() {
            let mut bytes = Vec::new();
            message.emit(&mut bytes);
            let len = bytes.len();
            assert_eq!(Message::parse(&bytes), Ok(Some((message, len))));
            for cut in 0..len {
                assert_eq!(Message::parse(&bytes[..cut]), Ok(None));
            }
            // The length is not covered: another one ends in a wait or a mismatch.
            for at in 4..len {
                let mut changed = bytes.clone();
                changed[at] ^= 1;
                assert!(Message::parse(&changed).is_err(), "byte {at}");
            }
        }
        assert!(Message::parse(&[0xff; 64]).is_err());
    }
}
