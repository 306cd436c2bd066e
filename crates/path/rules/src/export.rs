//! The part of an action that says what is exported, and where to.

use std::fmt;
use std::str::FromStr;

use strata_wire::Keep;

/// Maximum bytes of a destination's name.
const NAME_MAX: usize = 31;

/// The name of a destination: up to 31 letters, digits, `-`, `_` and `.`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DestinationName {
    /// ASCII, the rest zeros.
    bytes: [u8; NAME_MAX],
    len: u8,
}

impl DestinationName {
    /// The name.
    ///
    /// # Panics
    ///
    /// Never: a name is ASCII.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let bytes = &self.bytes[..usize::from(self.len)];
        std::str::from_utf8(bytes).expect("a name is ASCII")
    }
}

impl fmt::Debug for DestinationName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl fmt::Display for DestinationName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for DestinationName {
    type Err = ParseExportError;

    fn from_str(text: &str) -> Result<Self, ParseExportError> {
        if text.contains("://") {
            return Err(ParseExportError::Address(text.to_owned()));
        }
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let len = text.len();
        if !(1..=NAME_MAX).contains(&len) || !text.bytes().all(is_allowed) {
            return Err(ParseExportError::Name(text.to_owned()));
        }
        let mut bytes = [0; NAME_MAX];
        bytes[..len].copy_from_slice(text.as_bytes());
        let len = u8::try_from(len).expect("31 at most");
        Ok(Self { bytes, len })
    }
}

/// What of a packet is exported, and where to. In text: `header -> NAME`, `payload -> NAME` for the
/// whole packet, `payload N -> NAME` for its headers and the first N bytes after them; `1/N` before the
/// arrow exports one packet in N.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Export {
    /// How much of it: headers, partial or full.
    pub keep: Keep,
    /// One packet in this number; at least 1.
    pub one_in: u32,
    /// One of the configuration's destinations.
    pub to: DestinationName,
}

/// Why a text is no export.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ParseExportError {
    /// What is exported is not understood.
    #[error(
        "'{0} ->': write header, payload (the whole packet) or payload N (its headers and N bytes \
         after them), with 1/N for one packet in N (for example: header 1/10)"
    )]
    What(String),
    /// An address instead of a name.
    #[error(
        "'{0}': packets go only to destinations of the configuration: add it under \
         [export.destinations], and write its name here"
    )]
    Address(String),
    /// Not a name.
    #[error(
        "'{0}' is not a valid destination name: use 1 to {NAME_MAX} letters, digits, '-', '_' and \
         '.'"
    )]
    Name(String),
}

impl FromStr for Export {
    type Err = ParseExportError;

    fn from_str(text: &str) -> Result<Self, ParseExportError> {
        let (what, to) = text.split_once("->").unwrap_or((text, ""));
        let (part, one_in) = match what.trim().rsplit_once(char::is_whitespace) {
            Some((part, share)) if share.starts_with("1/") => {
                let one_in = share[2..].parse().ok().filter(|&one_in: &u32| one_in > 0);
                (part, one_in)
            }
            _ => (what, Some(1)),
        };
        let mut words = part.split_whitespace();
        let bytes = |word: &str| word.parse::<u32>().ok().filter(|&bytes| bytes > 0);
        let keep = match (words.next(), words.next(), words.next()) {
            (Some("header"), None, None) => Some(Keep::Header),
            (Some("payload"), None, None) => Some(Keep::Full),
            (Some("payload"), Some(word), None) => bytes(word).map(Keep::Partial),
            _ => None,
        };
        let wrong = || ParseExportError::What(what.trim().to_owned());
        Ok(Self {
            keep: keep.ok_or_else(wrong)?,
            one_in: one_in.ok_or_else(wrong)?,
            to: to.trim().parse()?,
        })
    }
}

impl fmt::Display for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.keep {
            Keep::Partial(bytes) => write!(f, "payload {bytes}"),
            Keep::Full => f.write_str("payload"),
            Keep::Header | Keep::Nothing => f.write_str("header"),
        }?;
        if self.one_in != 1 {
            write!(f, " 1/{}", self.one_in)?;
        }
        write!(f, " -> {}", self.to)
    }
}
