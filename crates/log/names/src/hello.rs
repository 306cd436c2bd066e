//! The client hello of TLS, as far as it is there.
//!
//! Sources: RFC 8446 §4.1.2 and §5.1, RFC 6066 §3 (server name), RFC 7301 (ALPN), RFC 6347 §4.1 and §4.2 (DTLS).

use crate::bytes::Bytes;

/// A client hello of more bytes, records included, is not read whole.
pub(crate) const HELLO_MAX: usize = 8_192;

pub(crate) const HANDSHAKE: u8 = 0x16;
const CLIENT_HELLO: u8 = 1;
const RANDOM_LEN: usize = 32;
/// As OpenSSL before 0.9.8f says it, and clients of AnyConnect still do.
const DTLS_BEFORE_STANDARD: u16 = 0x0100;
/// Epoch and sequence number of a DTLS record.
const EPOCH_AND_NUMBER_LEN: usize = 8;

/// Types of extensions (IANA, TLS ExtensionType Values).
pub(crate) mod extension {
    pub(crate) const SERVER_NAME: u16 = 0;
    pub(crate) const SUPPORTED_GROUPS: u16 = 10;
    pub(crate) const EC_POINT_FORMATS: u16 = 11;
    pub(crate) const SIGNATURE_ALGORITHMS: u16 = 13;
    pub(crate) const ALPN: u16 = 16;
    pub(crate) const SUPPORTED_VERSIONS: u16 = 43;
}

/// A client hello. Lists are in the client's order and include values without a meaning (GREASE, RFC 8701).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) version: u16,
    pub(crate) ciphers: Vec<u16>,
    /// Types of extensions.
    pub(crate) extensions: Vec<u16>,
    pub(crate) server: Vec<u8>,
    pub(crate) groups: Vec<u16>,
    pub(crate) point_formats: Vec<u8>,
    pub(crate) signatures: Vec<u16>,
    /// The first of the application protocols.
    pub(crate) protocol: Vec<u8>,
    pub(crate) versions: Vec<u16>,
    /// Whether all of it was there. If not, there may be more of everything.
    pub(crate) whole: bool,
}

impl Hello {
    /// From the first records of a TLS client, or their beginning. `None` if they begin otherwise.
    pub(crate) fn of_records(records: &[u8]) -> Option<Self> {
        let mut records = Bytes(records);
        let mut message = Vec::new();
        // A message may go on in the next record.
        while records.byte() == Some(HANDSHAKE) {
            let (Some(_version), Some(len)) = (records.word(), records.word()) else {
                break;
            };
            let part = records.take(len.into());
            message.extend_from_slice(part.unwrap_or(records.0));
            if part.is_none() {
                break;
            }
        }
        Self::of_message(&message)
    }

    /// From a datagram of DTLS. `None` if it begins otherwise, or with a part of a client hello.
    pub(crate) fn of_datagram(datagram: &[u8]) -> Option<Self> {
        let body = handshake_of_datagram(datagram, CLIENT_HELLO)?;
        let mut hello = Self::default();
        hello.whole = hello.read(Bytes(body), true).is_some();
        Some(hello)
    }

    /// From a message of a handshake, or its beginning. `None` if it is another one.
    pub(crate) fn of_message(message: &[u8]) -> Option<Self> {
        let mut message = Bytes(message);
        if message.byte()? != CLIENT_HELLO {
            return None;
        }
        let len = message.len24()?;
        let body = message.take(len);
        let mut hello = Self::default();
        let read = hello.read(Bytes(body.unwrap_or(message.0)), false);
        hello.whole = body.is_some() && read.is_some();
        Some(hello)
    }

    /// `None` if the body ends early.
    fn read(&mut self, mut body: Bytes<'_>, has_cookie: bool) -> Option<()> {
        self.version = body.word()?;
        body.take(RANDOM_LEN)?;
        let _session = body.short()?;
        if has_cookie {
            body.short()?;
        }
        self.ciphers = words(body.long()?);
        let _compressions = body.short()?;
        if body.0.is_empty() {
            // Before TLS 1.2, there may be no extensions.
            return Some(());
        }
        let len = usize::from(body.word()?);
        let extensions = body.take(len);
        let mut left = Bytes(extensions.unwrap_or(body.0));
        while !left.0.is_empty() {
            let kind = left.word()?;
            let data = left.long()?;
            self.extensions.push(kind);
            self.extension(kind, Bytes(data));
        }
        extensions.map(|_| ())
    }

    /// A malformed extension has no values.
    fn extension(&mut self, kind: u16, mut data: Bytes<'_>) -> Option<()> {
        match kind {
            extension::SERVER_NAME if self.server.is_empty() => {
                let mut list = Bytes(data.long()?);
                // Of the types of names, only that of hosts is defined.
                list.byte()?;
                self.server = list.long()?.to_vec();
            }
            extension::SUPPORTED_GROUPS => self.groups = words(data.long()?),
            extension::EC_POINT_FORMATS => self.point_formats = data.short()?.to_vec(),
            extension::SIGNATURE_ALGORITHMS => self.signatures = words(data.long()?),
            extension::ALPN => self.protocol = Bytes(data.long()?).short()?.to_vec(),
            extension::SUPPORTED_VERSIONS => self.versions = words(data.short()?),
            _ => {}
        }
        Some(())
    }
}

/// The body of the message that a datagram of DTLS begins with, if it is of this type and whole.
pub(crate) fn handshake_of_datagram(datagram: &[u8], kind: u8) -> Option<&[u8]> {
    let mut datagram = Bytes(datagram);
    if datagram.byte()? != HANDSHAKE {
        return None;
    }
    let version = datagram.word()?;
    if version >> 8 != 0xfe && version != DTLS_BEFORE_STANDARD {
        return None;
    }
    datagram.take(EPOCH_AND_NUMBER_LEN)?;
    let mut record = Bytes(datagram.long()?);
    if record.byte()? != kind {
        return None;
    }
    let len = record.len24()?;
    let _number = record.word()?;
    if (record.len24()?, record.len24()?) != (0, len) {
        return None;
    }
    record.take(len)
}

fn words(bytes: &[u8]) -> Vec<u16> {
    let (words, _) = bytes.as_chunks();
    words.iter().map(|&word| u16::from_be_bytes(word)).collect()
}
