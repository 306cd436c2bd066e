//! Messages to bytes, and the bytes of a connection to messages.
//!
//! ```text
//! 0 length u32            of the body; its limit depends on the kind
//! 4 kind u8 | version u8 | reserved u16
//! 8 crc u32               CRC-32C of bytes 4..8 and the body
//! 12 body
//! ```
//!
//! All integers are little-endian. Header and refusal are the same in every version, so that ends
//! of different versions can report the mismatch.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use strata_wire::{exact, start_of};

use crate::error::RelayError;

use super::message::{
    BODY_LEN_MAX, BlockFull, BlockStored, FIRST_LEN_MAX, Message, Progress, TEXT_LEN_MAX, VERSION,
};

/// Bytes before a message's body.
pub const HEADER_LEN: usize = 12;

/// The kind of a refusal, in every version.
const REFUSED: u8 = 3;

/// Maximum bytes of the body of a message of this kind.
fn body_len_max(kind: u8) -> usize {
    match kind {
        1 | 12 => FIRST_LEN_MAX,
        2 | REFUSED | 10 | 16 => FIRST_LEN_MAX,
        4 | 15 => BODY_LEN_MAX,
        8 | 14 => TEXT_LEN_MAX,
        _ => 64,
    }
}

/// What the other end says; what is not UTF-8 takes more bytes than it did, and no more of it is kept than is ever sent.
fn told(body: &[u8]) -> String {
    start_of(&String::from_utf8_lossy(body), FIRST_LEN_MAX).to_owned()
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
            Self::Shortage(_) => 16,
        }
    }

    /// The error text of a receiver that did not expect it.
    pub(crate) fn unexpected(&self) -> String {
        let name = match self {
            Self::Hello(_) => "hello",
            Self::Welcome(_) => "welcome",
            Self::Refused(_) => "refusal",
            Self::Definitions(_) => "definitions",
            Self::BlockFull(_) => "full block",
            Self::BlockStored(_) => "stored block",
            Self::Progress(_) => "progress",
            Self::End(_) => "end",
            Self::Ended => "end of the relay",
            Self::Failed(_) => "failure",
            Self::Alive => "keepalive",
            Self::Challenge(_) => "challenge",
            Self::Proof(_) => "proof",
            Self::Begin(_) => "beginning",
            Self::Model(_) => "model",
            Self::Shortage(_) => "shortage",
        };
        format!("a {name} message at this point")
    }

    /// Appends the message with its header to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        self.emit_as(VERSION, out);
    }

    /// As [`Message::emit`], for a peer with another version.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "places in what was just written: a header before a body of bounded length"
    )]
    fn emit_as(&self, version: u8, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&[self.kind(), version, 0, 0]);
        out.extend_from_slice(&[0; 4]);
        let json = |value: serde_json::Result<Vec<u8>>| value.expect("messages are plain data");
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
            Self::BlockStored(stored) => {
                for word in [stored.block, stored.missing] {
                    out.extend_from_slice(&word.to_le_bytes());
                }
            }
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
            Self::Shortage(shortage) => out.extend(json(serde_json::to_vec(shortage))),
            Self::Ended | Self::Alive => {}
        }
        let body_len = exact::<u32>(out.len() - start - HEADER_LEN);
        out[start..start + 4].copy_from_slice(&body_len.to_le_bytes());
        let crc = crc32c::crc32c(&out[start + 4..start + 8]);
        let crc = crc32c::crc32c_append(crc, &out[start + HEADER_LEN..]);
        out[start + 8..start + 12].copy_from_slice(&crc.to_le_bytes());
    }

    /// Parses the first message in `bytes`; returns it with its length in bytes, or `None` if it is incomplete.
    ///
    /// # Errors
    ///
    /// The problem with the message; the bytes after it cannot be parsed, either.
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
                "the other end uses version {version} of the control protocol, this program version {VERSION}"
            ));
        }
        if body_len > body_len_max(kind) {
            return Err(format!("a message of kind {kind} with {body_len} bytes"));
        }
        let end = HEADER_LEN.saturating_add(body_len);
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
                .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
                .collect();
            if words.len() == count && body.len().is_multiple_of(8) {
                Ok(words)
            } else {
                Err(format!("{} bytes in a message of kind {kind}", body.len()))
            }
        };
        #[allow(clippy::cast_possible_truncation)]
        Ok(match kind {
            1 => Self::Hello(serde_json::from_slice(body).map_err(text)?),
            2 => Self::Welcome(serde_json::from_slice(body).map_err(text)?),
            3 => Self::Refused(told(body)),
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
            6 => {
                let words = words(2)?;
                Self::BlockStored(BlockStored {
                    block: words[0],
                    missing: words[1],
                })
            }
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
            10 => Self::Failed(told(body)),
            11 if body.is_empty() => Self::Alive,
            12 => Self::Challenge(serde_json::from_slice(body).map_err(text)?),
            13 => Self::Proof(body.try_into().map_err(|_| "a proof of another length")?),
            14 => Self::Begin(serde_json::from_slice(body).map_err(text)?),
            15 => Self::Model(body.to_vec()),
            16 => Self::Shortage(serde_json::from_slice(body).map_err(text)?),
            _ => return Err(format!("a message of kind {kind}")),
        })
    }
}

/// The header of a message.
struct Header {
    body_len: usize,
    kind: u8,
    version: u8,
    crc: u32,
}

impl Header {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let header = bytes.first_chunk::<HEADER_LEN>()?;
        let (words, _) = header.as_chunks::<4>();
        let word = |at: usize| u32::from_le_bytes(words[at]);
        Some(Self {
            body_len: word(0) as usize,
            kind: header[4],
            version: header[5],
            crc: word(2),
        })
    }
}

/// Start of a TLS alert (RFC 8446 §5.1), the answer to a peer that does not use TLS. As a message,
/// it would be 50 MB long.
const TLS_RECORD: [u8; 3] = [0x15, 0x03, 0x03];

/// Start of the first record of a TLS client (RFC 8446 §5.1).
const TLS_HELLO: [u8; 2] = [0x16, 0x03];

/// Received bytes that are not yet a whole message.
#[derive(Debug)]
pub struct Decoder {
    peer: String,
    /// Whether the bytes arrived without TLS.
    is_plain: bool,
    unread: Vec<u8>,
    /// How far it has been parsed.
    read_to: usize,
    /// The longest body currently accepted.
    limit: usize,
}

impl Decoder {
    /// A decoder that has received nothing yet from `peer`, as errors name it.
    #[must_use]
    pub fn new(peer: String, is_plain: bool) -> Self {
        Self {
            peer,
            is_plain,
            unread: Vec::new(),
            read_to: 0,
            limit: BODY_LEN_MAX,
        }
    }

    /// The peer's name in errors.
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// From now on, a message with a longer body is an error before it is read.
    pub fn set_limit(&mut self, body_len: usize) {
        self.limit = body_len;
    }

    /// Bytes that it buffers.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.unread.capacity()
    }

    /// Bytes still missing from the current message.
    #[must_use]
    pub fn missing(&self) -> usize {
        let unread = &self.unread[self.read_to..];
        let header = Header::parse(unread);
        let body = header.map_or(0, |header| header.body_len.min(self.limit));
        let whole = HEADER_LEN.saturating_add(body);
        whole.saturating_sub(unread.len())
    }

    /// Accepts received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.read_to > 0 {
            self.unread.drain(..self.read_to);
            self.read_to = 0;
        }
        let missing = self.missing().min(256 << 10);
        self.unread.reserve_exact(bytes.len().max(missing));
        self.unread.extend_from_slice(bytes);
    }

    /// The next message, if all of it has arrived.
    ///
    /// # Errors
    ///
    /// If the peer sends an invalid message, or uses TLS or another version ([`Decoder::refusal`]):
    /// nothing that follows can be parsed.
    pub fn next_message(&mut self) -> Result<Option<Message>, RelayError> {
        let unread = &self.unread[self.read_to..];
        let peer = || self.peer.clone();
        if self.is_plain && unread.starts_with(&TLS_RECORD) {
            return Err(RelayError::WantsTls { peer: peer() });
        }
        if self.is_plain && unread.starts_with(&TLS_HELLO) {
            return Err(RelayError::SpeaksTls { peer: peer() });
        }
        if let Some(header) = Header::parse(unread) {
            if header.version != VERSION && header.kind != REFUSED {
                let theirs = header.version;
                return Err(RelayError::Version {
                    peer: peer(),
                    theirs,
                });
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
        self.read_to = self.read_to.saturating_add(len);
        if self.read_to == self.unread.len() {
            (self.unread, self.read_to) = (Vec::new(), 0);
        }
        Ok(Some(message))
    }

    /// The refusal sent to a peer with another version, in that version: the bytes go to `out`.
    pub fn refusal(theirs: u8, out: &mut Vec<u8>) {
        let refusal = format!(
            "this end speaks version {theirs} of the control protocol and the other end version \
             {VERSION}: use the same version of Strata at both"
        );
        Message::Refused(refusal).emit_as(theirs, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Challenge, End, Shortage};
    use strata_auth::secret::PROOF_LEN;

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
            Message::BlockStored(BlockStored {
                block: 77,
                missing: 3,
            }),
            Message::Progress(Progress {
                next_seq: 1,
                seen_packets: 2,
                seen_bytes: 3,
            }),
            Message::End(Box::<End>::default()),
            Message::Ended,
            Message::Failed("No space left on device".into()),
            Message::Alive,
            Message::Challenge(Challenge {
                nonce: [1, 2, 3, u64::MAX],
                secret: true,
            }),
            Message::Proof([7; PROOF_LEN]),
            Message::Model(b"{}".to_vec()),
            Message::Shortage(Box::new(Shortage {
                partial: true,
                sampled: false,
                why: "disk_space is short: 96 % in use".into(),
            })),
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
            // The length is not covered: a wrong one ends in a wait or a mismatch.
            for at in 4..len {
                let mut changed = bytes.clone();
                changed[at] ^= 1;
                assert!(Message::parse(&changed).is_err(), "byte {at}");
            }
        }
        assert!(Message::parse(&[0xff; 64]).is_err());
    }

    #[test]
    fn messages_are_the_same_however_their_bytes_are_cut() {
        let messages = [
            Message::Alive,
            Message::Definitions(vec![7; 5000]),
            Message::BlockStored(BlockStored {
                block: 9,
                missing: 0,
            }),
        ];
        let mut bytes = Vec::new();
        for message in &messages {
            message.emit(&mut bytes);
        }
        for piece in [1, 2, 11, 12, 13, 4096, bytes.len()] {
            let mut decoder = Decoder::new("peer".into(), true);
            let mut got = Vec::new();
            for bytes in bytes.chunks(piece) {
                decoder.push(bytes);
                while let Some(message) = decoder.next_message().unwrap() {
                    got.push(message);
                }
            }
            assert_eq!(got, messages, "{piece} at a time");
        }
    }

    #[test]
    fn another_version_is_refused_by_name_in_that_version() {
        let mut bytes = Vec::new();
        Message::Alive.emit_as(VERSION + 1, &mut bytes);
        let mut decoder = Decoder::new("192.0.2.1:9".into(), true);
        decoder.push(&bytes);
        let refused = decoder.next_message().unwrap_err();
        let RelayError::Version { theirs, .. } = refused else {
            panic!("{refused}");
        };
        assert_eq!(theirs, VERSION + 1);
        let (ours, other) = (format!("version {VERSION}"), format!("version {theirs}"));
        let said = refused.to_string();
        assert!(said.contains(&ours) && said.contains(&other), "{said}");
        let mut told = Vec::new();
        Decoder::refusal(theirs, &mut told);
        assert_eq!(told[5], theirs, "in its own version");
        let told = String::from_utf8_lossy(&told).into_owned();
        assert!(told.contains(&ours) && told.contains(&other), "{told}");
    }

    /// Found by fuzzing: bytes that are no text became three each, so the text was longer than one that can be sent.
    #[test]
    fn a_text_of_other_bytes_is_sent_again_as_it_was_read() {
        let body = [&[0xff; FIRST_LEN_MAX - 3][..], b"end"].concat();
        let told = told(&body);
        assert!(told.len() <= FIRST_LEN_MAX && told.len() > FIRST_LEN_MAX - 3);
        for message in [Message::Failed(told.clone()), Message::Refused(told)] {
            let mut bytes = Vec::new();
            message.emit(&mut bytes);
            assert_eq!(Message::parse(&bytes), Ok(Some((message, bytes.len()))));
        }
    }

    #[test]
    fn a_message_that_is_too_long_now_is_an_error_before_it_has_come() {
        let mut bytes = Vec::new();
        Message::Definitions(vec![0; 5000]).emit(&mut bytes);
        let mut decoder = Decoder::new("peer".into(), true);
        decoder.set_limit(4096);
        decoder.push(&bytes[..HEADER_LEN]);
        assert!(decoder.next_message().is_err());
    }
}
