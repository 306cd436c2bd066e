//! The dialect of SMB 2 and 3, and the shares that a client connects to.
//!
//! Source: MS-SMB2 §2.1 (transport), §2.2.1 (header), §2.2.4 (negotiation), §2.2.9 (shares).

use crate::bytes::Bytes;

pub(crate) const PORTS: [u16; 2] = [139, 445];

const PROTOCOL: &[u8] = b"\xfeSMB";
const HEADER_LEN: usize = 64;
const NEGOTIATE: u16 = 0;
const TREE_CONNECT: u16 = 3;
/// In the flags of a header: it is a response.
const RESPONSE: u32 = 1;
/// Shares of a flow, characters of each, and bytes of all together.
const SHARES_MAX: usize = 16;
const SHARE_CHARS_MAX: usize = 255;
const SHARES_BYTES_MAX: usize = 1_024;

/// Paths of shares: the first 16, as far as they have at most 1,024 bytes together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shares(Vec<Box<str>>);

impl Shares {
    /// The paths as a JSON list; `None` without any.
    #[must_use]
    pub fn list(&self) -> Option<String> {
        if self.0.is_empty() {
            return None;
        }
        let quoted = |path: &str| path.replace('\\', "\\\\").replace('"', "\\\"");
        let paths: Vec<String> = self.0.iter().map(|path| quoted(path)).collect();
        Some(format!("[\"{}\"]", paths.join("\",\"")))
    }

    fn add(&mut self, path: Box<str>) {
        let bytes = self.0.iter().map(|known| known.len());
        let bytes = bytes.fold(path.len(), usize::saturating_add);
        let fits = self.0.len() < SHARES_MAX && bytes <= SHARES_BYTES_MAX;
        if fits && !self.0.contains(&path) {
            self.0.push(path);
        }
    }
}

/// A dialect as it is written: `3.1.1` for 0x0311.
#[must_use]
pub fn dialect_text(dialect: u16) -> String {
    let [major, rest] = dialect.to_be_bytes();
    match (major, rest >> 4, rest & 0xf) {
        // Any dialect from 2.1 on: the client is to ask again.
        (2, 0xf, 0xf) => "2.???".into(),
        (2, 0, minor) => format!("2.0.{minor}"),
        (major, minor, 0) => format!("{major}.{minor}"),
        (major, minor, last) => format!("{major}.{minor}.{last}"),
    }
}

/// What messages have.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) dialect: Option<u16>,
    pub(crate) shares: Shares,
}

impl Found {
    /// What is in the messages that begin in a payload, the first one at its beginning.
    pub(crate) fn of(payload: &[u8]) -> Option<Self> {
        let (mut left, mut found) = (Bytes(payload), None::<Self>);
        while left.byte() == Some(0) {
            let Some(len) = left.len24() else {
                break;
            };
            // One that goes on in a later packet is the last.
            let mut messages = match left.take(len) {
                Some(messages) => messages,
                None => std::mem::take(&mut left.0),
            };
            while let Some(next) = message(messages, &mut found) {
                // They are at least a header apart, so this ends.
                let Some(rest) = messages.get(next..).filter(|_| next >= HEADER_LEN) else {
                    break;
                };
                messages = rest;
            }
        }
        found
    }

    /// Adds what later messages have.
    pub(crate) fn into(self, dialect: &mut Option<u16>, shares: &mut Shares) {
        *dialect = self.dialect.or(*dialect);
        for path in self.shares.0 {
            shares.add(path);
        }
    }
}

/// Takes what a message has; where the next one begins, 0 if it is the last one.
fn message(bytes: &[u8], found: &mut Option<Found>) -> Option<usize> {
    let (header, body) = bytes.split_at_checked(HEADER_LEN)?;
    if !header.starts_with(PROTOCOL) {
        return None;
    }
    let half = |bytes: &[u8], at: usize| Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let word = |bytes: &[u8], at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let is_response = word(header, 16)? & RESPONSE != 0;
    match (half(header, 12)?, is_response) {
        // An error has another size.
        (NEGOTIATE, true) if half(body, 0) == Some(65) => {
            let dialect = half(body, 4);
            if dialect.is_some() {
                found.get_or_insert_default().dialect = dialect;
            }
        }
        (TREE_CONNECT, false) if half(body, 0) == Some(9) => {
            let (at, len) = (half(body, 4)?, half(body, 6)?);
            let path = bytes
                .get(usize::from(at)..)
                .and_then(|path| path.get(..usize::from(len)));
            if let Some(path) = path.map(text).filter(|path| !path.is_empty()) {
                found.get_or_insert_default().shares.add(path);
            }
        }
        _ => {}
    }
    usize::try_from(word(header, 20)?).ok()
}

/// UTF-16; what cannot be printed becomes a dot.
fn text(path: &[u8]) -> Box<str> {
    let (units, _) = path.as_chunks();
    let units = units.iter().map(|&unit| u16::from_le_bytes(unit));
    let chars = char::decode_utf16(units).map(|char| match char {
        Ok(char) if !char.is_control() => char,
        _ => '.',
    });
    chars.take(SHARE_CHARS_MAX).collect::<String>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_have_at_most_a_kibibyte_together() {
        let mut shares = Shares::default();
        let path = |first: char| format!("{first}{}", "€".repeat(SHARE_CHARS_MAX - 1)).into();
        for first in ['a', 'b', 'a'] {
            shares.add(path(first));
        }
        // Of 763 bytes each.
        assert_eq!(shares.0, [path('a')]);
        shares.add("short".into());
        assert_eq!(shares.0, [path('a'), "short".into()]);
    }
}
