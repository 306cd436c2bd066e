//! What a server of TLS or DTLS has chosen, and its certificate, as far as it is there: TLS 1.3 encrypts it.
//!
//! Sources: RFC 5246 §7.4.1.3 and §7.4.2, RFC 8446 §4.1.3, RFC 6347 §4.2.2 (DTLS), RFC 4680 §2 (supplemental data).

use crate::bytes::Bytes;
use crate::hello::{HANDSHAKE, extension, handshake_of_datagram};

/// What a server has sent up to its certificate, records included, is not read if it is longer.
pub(crate) const FLIGHT_MAX: usize = 16_384;

const ALERT: u8 = 0x15;
const SERVER_HELLO: u8 = 2;
const CERTIFICATE: u8 = 11;
const SUPPLEMENTAL_DATA: u8 = 23;

const RANDOM_LEN: usize = 32;
/// The high byte of versions of drafts (draft-ietf-tls-tls13-21 §4.2.1.1).
const DRAFTS: u16 = 0x7f;

/// What a server has chosen in its hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The version, as in 0x0303 for TLS 1.2 and 0xfefd for DTLS 1.2.
    pub version: u16,
    /// The cipher suite (IANA, TLS Cipher Suites).
    pub cipher: u16,
}

impl Chosen {
    /// The version as it is written, `TLS 1.2`; in hexadecimal, if it is not known.
    #[must_use]
    pub fn version_text(self) -> String {
        let (name, minor) = match self.version {
            0x0300 => return "SSL 3.0".into(),
            0x0301..=0x0304 => ("TLS", self.version.wrapping_sub(0x0301)),
            0xfeff => ("DTLS", 0),
            0xfefd => ("DTLS", 2),
            0xfefc => ("DTLS", 3),
            other => return format!("{other:#06x}"),
        };
        format!("{name} 1.{minor}")
    }

    /// From the first records of a TLS server; `None` if they begin otherwise, or with a part of its hello.
    pub(crate) fn of_records(records: &[u8]) -> Option<Self> {
        let (messages, _) = messages_of(records);
        let mut messages = Bytes(&messages);
        if messages.byte()? != SERVER_HELLO {
            return None;
        }
        let len = messages.len24()?;
        Self::of_hello(Bytes(messages.take(len)?))
    }

    /// From a datagram of DTLS, likewise.
    pub(crate) fn of_datagram(datagram: &[u8]) -> Option<Self> {
        Self::of_hello(Bytes(handshake_of_datagram(datagram, SERVER_HELLO)?))
    }

    fn of_hello(mut hello: Bytes<'_>) -> Option<Self> {
        let mut version = hello.word()?;
        hello.take(RANDOM_LEN)?;
        // Drafts of TLS 1.3 up to 21 have neither session nor compression.
        let is_draft = version >> 8 == DRAFTS;
        if !is_draft {
            hello.short()?;
        }
        let cipher = hello.word()?;
        if !is_draft {
            hello.byte()?;
        }
        // Before TLS 1.2, there may be no extensions.
        let mut extensions = Bytes(hello.long().unwrap_or(&[]));
        while let (Some(kind), Some(data)) = (extensions.word(), extensions.long()) {
            if kind == extension::SUPPORTED_VERSIONS {
                version = Bytes(data).word()?;
            }
        }
        Some(Self { version, cipher })
    }
}

/// The messages in the first records of a server, and whether they are encrypted after these.
fn messages_of(records: &[u8]) -> (Vec<u8>, bool) {
    let mut records = Bytes(records);
    let mut messages = Vec::new();
    while let Some(&kind) = records.0.first().filter(|&&kind| Flight::may_begin(kind)) {
        let mut ahead = records;
        let _type = ahead.byte();
        let (Some(_version), Some(len)) = (ahead.word(), ahead.word()) else {
            break;
        };
        let part = ahead.take(len.into());
        if kind == HANDSHAKE {
            messages.extend_from_slice(part.unwrap_or(ahead.0));
        }
        if part.is_none() {
            break;
        }
        records = ahead;
    }
    // After a record of another type, messages are encrypted.
    let first = records.0.first();
    (
        messages,
        first.is_some_and(|kind| !Flight::may_begin(*kind)),
    )
}

/// What the first records of a server have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Flight {
    /// The server's own certificate, in DER.
    Certificate(Vec<u8>),
    /// A server hello, after which a certificate may come.
    Unfinished,
    /// They begin otherwise, or have no certificate.
    Other,
}

impl Flight {
    /// Whether a payload may begin with the first records of a server.
    pub(crate) fn may_begin(first: u8) -> bool {
        // A server that does not know the client's server name may warn of that before all else.
        [HANDSHAKE, ALERT].contains(&first)
    }

    /// From the first records of a TLS server, or their beginning.
    pub(crate) fn of_records(records: &[u8]) -> Self {
        let (messages, ends) = messages_of(records);
        match Self::of_messages(&messages) {
            Self::Unfinished if ends => Self::Other,
            flight => flight,
        }
    }

    fn of_messages(messages: &[u8]) -> Self {
        let mut messages = Bytes(messages);
        let mut is_first = true;
        loop {
            let (kind, len) = match (messages.byte(), messages.len24()) {
                (Some(SERVER_HELLO), len) if is_first => (SERVER_HELLO, len),
                (Some(kind @ (CERTIFICATE | SUPPLEMENTAL_DATA)), len) if !is_first => (kind, len),
                (None, _) if !is_first => return Self::Unfinished,
                _ => return Self::Other,
            };
            if kind == CERTIFICATE {
                return Self::of_certificates(messages);
            }
            if len.and_then(|len| messages.take(len)).is_none() {
                return Self::Unfinished;
            }
            is_first = false;
        }
    }

    /// The first of a list is the server's own.
    fn of_certificates(mut body: Bytes<'_>) -> Self {
        let (Some(_list), Some(len)) = (body.len24(), body.len24()) else {
            return Self::Unfinished;
        };
        match body.take(len) {
            Some([]) => Self::Other,
            Some(certificate) => Self::Certificate(certificate.to_vec()),
            None => Self::Unfinished,
        }
    }
}
