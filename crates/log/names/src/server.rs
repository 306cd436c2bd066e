//! The certificate of a TLS server, as far as it is there: TLS 1.3 encrypts it.
//!
//! Sources: RFC 5246 §7.4.1.3 and §7.4.2, RFC 4680 §2 (supplemental data).

use crate::bytes::Bytes;
use crate::hello::HANDSHAKE;

/// What a server has sent up to its certificate, records included, is not read if it is longer.
pub(crate) const FLIGHT_MAX: usize = 16_384;

const ALERT: u8 = 0x15;
const SERVER_HELLO: u8 = 2;
const CERTIFICATE: u8 = 11;
const SUPPLEMENTAL_DATA: u8 = 23;

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
        let mut records = Bytes(records);
        let mut messages = Vec::new();
        while let Some(&kind) = records.0.first().filter(|&&kind| Self::may_begin(kind)) {
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
        let ends = records
            .0
            .first()
            .is_some_and(|kind| !Self::may_begin(*kind));
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
