//! The control protocol between switch and relay (`docs/formats/relay.md`).
//!
//! ```text
//! 0 length u32            of the body, at most what the kind may have
//! 4 kind u8 | version u8 | reserved u16
//! 8 crc u32               CRC-32C of bytes 4..8 and the body
//! 12 body
//! ```
//!
//! All integers are little-endian. The header, and the refusal, are the same in every version,
//! so that ends of different versions can tell each other.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::ops::RangeInclusive;
use std::time::Duration;

use rustls::{ClientConnection, Connection, ServerConnection};
use serde::{Deserialize, Serialize};
use strata_store::Books;
use strata_wire::start_of;

use crate::error::RelayError;
use crate::secret::PROOF_LEN;

/// The version of the protocol.
pub const VERSION: u8 = 2;
/// Bytes before a message's body.
pub const HEADER_LEN: usize = 12;
/// The longest body.
pub const BODY_LEN_MAX: usize = 16 << 20;
/// The longest body of who has not said who it is.
pub const FIRST_LEN_MAX: usize = 4 << 10;
/// The longest body of a message that describes: all but what is in packets, and the model.
const TEXT_LEN_MAX: usize = 1 << 20;

/// Bytes of a recording's name.
const SESSION_LEN_MAX: usize = 64;
/// Bytes of program and version, and of the names of a model or a class.
const NAME_LEN_MAX: usize = 256;
/// Bytes of the names of modes.
const MODE_LEN_MAX: usize = 4 << 10;
/// Bytes of a capture filter.
const FILTER_LEN_MAX: usize = 16 << 10;
/// Bytes of the names of all inputs.
const INPUTS_LEN_MAX: usize = 64 << 10;
/// Inputs that are named.
const INPUTS_MAX: usize = 1024;
/// Classes: as many as a byte can name.
const CLASSES_MAX: usize = 256;
/// What was odd: so many, of so many bytes each.
const WARNINGS_MAX: usize = 256;
const WARNING_LEN_MAX: usize = 1 << 10;

/// Bytes that a block may have.
pub const BLOCK_BYTES: RangeInclusive<usize> = 1 << 20..=1 << 30;
/// They are whole multiples of this: of pages, and of every RDMA MTU.
pub const BLOCK_UNIT: usize = 4096;
/// How many blocks a worker of a switch may have.
pub const BLOCKS: RangeInclusive<usize> = 2..=1024;

/// What a switch says first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The recording's name, the same after connecting again: letters, digits and hyphens.
    pub session: String,
    /// The worker whose packets come through this connection.
    pub worker: u16,
    /// Random.
    pub nonce: [u64; 4],
    /// Whether it knows a secret, and wants the relay to prove that it does too.
    pub secret: bool,
}

impl Hello {
    /// Fails if it is not what a switch says.
    ///
    /// # Errors
    ///
    /// What is wrong.
    pub fn check(&self) -> Result<(), String> {
        let name = &self.session;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | ' ');
        if name.is_empty() || name.len() > SESSION_LEN_MAX || !name.chars().all(plain) {
            return Err(format!(
                "the name of a recording has 1 to {SESSION_LEN_MAX} letters, digits or hyphens"
            ));
        }
        Ok(())
    }
}

/// What the relay says to a hello.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Challenge {
    /// Random.
    pub nonce: [u64; 4],
    /// Whether it wants a proof that the switch knows the secret.
    pub secret: bool,
}

/// Random numbers that no connection has had.
pub(crate) fn nonce() -> Result<[u64; 4], RelayError> {
    let mut nonce = [0; 4];
    for word in &mut nonce {
        *word = random()?;
    }
    Ok(nonce)
}

pub(crate) fn random() -> Result<u64, RelayError> {
    getrandom::u64().map_err(|error| RelayError::Io {
        what: "random numbers".into(),
        source: io::Error::other(error),
    })
}

/// What a switch records: what it says once it is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
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

impl Begin {
    /// Fails if a field is longer than it may be: what the relay keeps of a recording has a
    /// bound.
    ///
    /// # Errors
    ///
    /// Which field.
    pub fn check(&self) -> Result<(), String> {
        let inputs = self.inputs.iter().map(String::len).sum::<usize>();
        let class = self.classes.iter().map(String::len).max().unwrap_or(0);
        let lengths = [
            (
                "bytes of the program's name",
                self.program.len(),
                NAME_LEN_MAX,
            ),
            ("inputs", self.inputs.len(), INPUTS_MAX),
            ("bytes of inputs' names", inputs, INPUTS_LEN_MAX),
            ("bytes of the filter", self.filter.len(), FILTER_LEN_MAX),
            ("bytes of modes' names", self.mode.len(), MODE_LEN_MAX),
            ("bytes of the model's name", self.model.len(), NAME_LEN_MAX),
            ("classes", self.classes.len(), CLASSES_MAX),
            ("bytes of a class's name", class, NAME_LEN_MAX),
        ];
        match lengths.iter().find(|(_, is, max)| is > max) {
            Some((what, is, max)) => Err(format!("{is} {what}: a relay takes {max}")),
            None => Ok(()),
        }
    }

    /// Cuts what is only there to be read by people; the names of a model and its classes
    /// stay.
    pub(crate) fn shorten(&mut self) {
        shorten(&mut self.program, NAME_LEN_MAX);
        shorten(&mut self.filter, FILTER_LEN_MAX);
        shorten(&mut self.mode, MODE_LEN_MAX);
        let (mut bytes, all) = (0, self.inputs.len());
        let fits = |input: &&String| {
            bytes += input.len();
            bytes <= INPUTS_LEN_MAX - NAME_LEN_MAX
        };
        let fitting = self
            .inputs
            .iter()
            .take(INPUTS_MAX - 1)
            .take_while(fits)
            .count();
        if fitting < all {
            self.inputs.truncate(fitting);
            self.inputs.push(format!("and {} more", all - fitting));
        }
    }
}

/// Cuts a text that is longer, and says so.
fn shorten(text: &mut String, bytes_max: usize) {
    const MORE: &str = " ...";
    if text.len() > bytes_max {
        text.truncate(start_of(text, bytes_max - MORE.len()).len());
        text.push_str(MORE);
    }
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

impl Welcome {
    /// Fails if these are not blocks that a switch can fill: all of it is another machine's word.
    ///
    /// # Errors
    ///
    /// What is wrong.
    pub fn check(&self) -> Result<(), String> {
        let Self {
            block_bytes,
            block_stride,
            blocks,
            ..
        } = *self;
        if !BLOCK_BYTES.contains(&block_bytes) || !block_bytes.is_multiple_of(BLOCK_UNIT) {
            return Err(format!("blocks of {block_bytes} bytes"));
        }
        if !(block_bytes..=2 * *BLOCK_BYTES.end()).contains(&block_stride) {
            return Err(format!("blocks that are {block_stride} bytes apart"));
        }
        if !BLOCKS.contains(&blocks) {
            return Err(format!("{blocks} blocks"));
        }
        if let WelcomePath::Rdma { va, .. } = self.path {
            let len = blocks as u64 * block_stride as u64;
            let end = va.checked_add(len);
            end.ok_or_else(|| format!("{len} bytes of memory from {va:#x} on"))?;
        }
        Ok(())
    }
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
    /// Memory to be mapped, which the relay hands over on a Unix socket of its machine.
    SharedMemory {
        /// What the switch says there, to get this memory.
        token: String,
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

impl End {
    /// Cuts what is longer than a relay takes.
    pub(crate) fn shorten(&mut self) {
        if self.warnings.len() > WARNINGS_MAX {
            let more = self.warnings.len() - (WARNINGS_MAX - 1);
            self.warnings.truncate(WARNINGS_MAX - 1);
            self.warnings.push(format!("and {more} more"));
        }
        for warning in &mut self.warnings {
            shorten(warning, WARNING_LEN_MAX);
        }
    }
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
    /// Relay: who are you?
    Challenge(Challenge),
    /// Either: I know the secret.
    Proof([u8; PROOF_LEN]),
    /// Switch: the model file's content.
    Model(Vec<u8>),
    /// Switch: this is what I record.
    Begin(Box<Begin>),
}

/// The kind of a refusal, whatever the version.
const REFUSED: u8 = 3;

/// Bytes of the body of a message of this kind, at most.
fn body_len_max(kind: u8) -> usize {
    match kind {
        1 | 12 => FIRST_LEN_MAX,
        2 | REFUSED | 10 => FIRST_LEN_MAX,
        4 | 15 => BODY_LEN_MAX,
        8 | 14 => TEXT_LEN_MAX,
        _ => 64,
    }
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
            Self::Challenge(_) => 12,
            Self::Proof(_) => 13,
            Self::Begin(_) => 14,
            Self::Model(_) => 15,
        }
    }

    /// Appends the message, header and all, to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        self.emit_as(VERSION, out);
    }

    /// As [`Message::emit`], for a peer that speaks another version.
    fn emit_as(&self, version: u8, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&[self.kind(), version, 0, 0]);
        out.extend_from_slice(&[0; 4]);
        let json = |value: serde_json::Result<Vec<u8>>| value.unwrap_or_default();
        match self {
            Self::Hello(hello) => out.extend(json(serde_json::to_vec(hello))),
            Self::Welcome(welcome) => out.extend(json(serde_json::to_vec(welcome))),
            Self::Refused(text) | Self::Failed(text) => {
                out.extend_from_slice(start_of(text, FIRST_LEN_MAX).as_bytes());
            }
            Self::Challenge(challenge) => out.extend(json(serde_json::to_vec(challenge))),
            Self::Proof(proof) => out.extend_from_slice(proof),
            Self::Begin(begin) => out.extend(json(serde_json::to_vec(begin))),
            Self::Definitions(bytes) | Self::Model(bytes) => out.extend_from_slice(bytes),
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
        let Some(header) = Header::parse(bytes) else {
            return Ok(None);
        };
        let Header {
            body_len,
            kind,
            version,
            crc: expected,
        } = header;
        if version != VERSION && kind != REFUSED {
            return Err(format!(
                "version {version} of the control protocol, this is {VERSION}"
            ));
        }
        if body_len > body_len_max(kind) {
            return Err(format!("a message of kind {kind} with {body_len} bytes"));
        }
        let end = HEADER_LEN + body_len;
        let Some(body) = bytes.get(HEADER_LEN..end) else {
            return Ok(None);
        };
        let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[4..8]), body);
        if crc != expected {
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
            12 => Self::Challenge(serde_json::from_slice(body).map_err(text)?),
            13 => Self::Proof(body.try_into().map_err(|_| "a proof of another length")?),
            14 => Self::Begin(serde_json::from_slice(body).map_err(text)?),
            15 => Self::Model(body.to_vec()),
            _ => return Err(format!("a message of kind {kind}")),
        })
    }
}

/// What stands before a body.
struct Header {
    body_len: usize,
    kind: u8,
    version: u8,
    crc: u32,
}

impl Header {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let header = bytes.first_chunk::<HEADER_LEN>()?;
        let word = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        Some(Self {
            body_len: word(0) as usize,
            kind: header[4],
            version: header[5],
            crc: word(8),
        })
    }
}

/// How an alert of TLS begins (RFC 8446 §5.1), with which it answers who does not
/// speak it. A message would be of 50 MB.
const TLS_RECORD: [u8; 3] = [0x15, 0x03, 0x03];

/// How the first record of a TLS client begins (RFC 8446 §5.1).
const TLS_HELLO: [u8; 2] = [0x16, 0x03];

/// Bytes that wait to be sent at most; a peer that reads nothing is lost.
const UNSENT_MAX: usize = 64 << 20;
/// Bytes that are read at a time.
const READ_LEN: usize = 16 << 10;

/// A connection that messages travel on, without waiting.
pub struct Channel {
    stream: TcpStream,
    tls: Option<Connection>,
    peer: String,
    unread: Vec<u8>,
    /// Up to here it has been read.
    read_to: usize,
    unsent: Vec<u8>,
    closed: bool,
    /// The longest body that is taken now.
    limit: usize,
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
            read_to: 0,
            unsent: Vec::new(),
            closed: false,
            limit: BODY_LEN_MAX,
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

    /// From now on, a message whose body is longer is an error before it is read.
    pub(crate) fn set_limit(&mut self, body_len: usize) {
        self.limit = body_len;
    }

    /// Bytes that it holds.
    pub(crate) fn held_bytes(&self) -> usize {
        self.unread.capacity() + self.unsent.capacity()
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
        let unread = &self.unread[self.read_to..];
        let peer = || self.peer.clone();
        if self.tls.is_none() && unread.starts_with(&TLS_RECORD) {
            return Err(RelayError::WantsTls { peer: peer() });
        }
        if self.tls.is_none() && unread.starts_with(&TLS_HELLO) {
            return Err(RelayError::SpeaksTls { peer: peer() });
        }
        if let Some(header) = Header::parse(unread) {
            if header.version != VERSION && header.kind != REFUSED {
                return Err(self.other_version(header.version));
            }
            if header.body_len > self.limit {
                let problem = format!("{} bytes at this point", header.body_len);
                return Err(RelayError::Protocol {
                    peer: peer(),
                    problem,
                });
            }
        }
        let parsed = Message::parse(unread).map_err(|problem| RelayError::Protocol {
            peer: peer(),
            problem,
        })?;
        let Some((message, len)) = parsed else {
            return Ok(None);
        };
        self.read_to += len;
        if self.read_to == self.unread.len() {
            (self.unread, self.read_to) = (Vec::new(), 0);
        }
        Ok(Some(message))
    }

    /// Tells the peer, in its version, that this end speaks another one.
    fn other_version(&mut self, theirs: u8) -> RelayError {
        let peer = self.peer.clone();
        let refusal = format!(
            "this end speaks version {theirs} of the control protocol and the other end version \
             {VERSION}: use the same version of Strata at both"
        );
        Message::Refused(refusal).emit_as(theirs, &mut self.unsent);
        // If that cannot be sent, the other end knows that it was hung up on.
        let _ = self.flush();
        RelayError::Version { peer, theirs }
    }

    /// Bytes of the message that comes which are not here yet.
    fn missing(&self) -> usize {
        let unread = &self.unread[self.read_to..];
        let header = Header::parse(unread);
        let whole = HEADER_LEN + header.map_or(0, |header| header.body_len.min(self.limit));
        whole.saturating_sub(unread.len())
    }

    fn fill(&mut self) -> Result<(), RelayError> {
        let mut buffer = [0; READ_LEN];
        if self.read_to > 0 {
            self.unread.drain(..self.read_to);
            self.read_to = 0;
        }
        // Bounded, so that other work is done in between, and no more than a message is held.
        for _ in 0..64 {
            let missing = self.missing();
            if missing == 0 {
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
                Ok(len) => {
                    self.unread.reserve_exact(len.max(missing.min(256 << 10)));
                    self.unread.extend_from_slice(&buffer[..len]);
                }
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
            Message::Challenge(Challenge {
                nonce: [1, 2, 3, u64::MAX],
                secret: true,
            }),
            Message::Proof([7; PROOF_LEN]),
            Message::Model(b"{}".to_vec()),
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

    #[test]
    fn a_switch_takes_no_blocks_that_it_cannot_fill() {
        let usual = Welcome {
            recording: 1,
            block_bytes: 8 << 20,
            block_stride: (8 << 20) + 4096,
            blocks: 4,
            path: WelcomePath::Rdma {
                qpn: 2,
                rkey: 3,
                va: 1 << 40,
                mtu: 4096,
                port: 4791,
                psn: 0,
            },
        };
        assert_eq!(usual.check(), Ok(()));
        type Change = fn(&mut Welcome);
        let changes: [Change; 7] = [
            |it| it.block_bytes = 0,
            |it| it.block_bytes = (8 << 20) + 1,
            |it| it.block_bytes = usize::MAX & !4095,
            |it| it.block_stride = 4096,
            |it| it.block_stride = usize::MAX,
            |it| it.blocks = usize::MAX,
            |it| {
                if let WelcomePath::Rdma { va, .. } = &mut it.path {
                    *va = u64::MAX - 4096;
                }
            },
        ];
        for change in changes {
            let mut welcome = usual.clone();
            change(&mut welcome);
            assert!(welcome.check().is_err(), "{welcome:?}");
        }
    }
}
