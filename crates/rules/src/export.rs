//! The part of an action that says what is exported, and where to.

use std::fmt;
use std::str::FromStr;

use strata_wire::Keep;

/// Bytes of a destination's name at most.
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
/// whole packet, `payload N -> NAME` for its headers and the first N bytes after them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Export {
    /// How much of it: headers, partial or full.
    pub keep: Keep,
    /// One of the configuration's destinations.
    pub to: DestinationName,
}

/// Why a text is no export.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ParseExportError {
    /// What is exported is not understood.
    #[error(
        "'{0} ->': what is exported is header, payload (the whole packet) or payload N (its headers \
         and N bytes after them)"
    )]
    What(String),
    /// An address instead of a name.
    #[error(
        "'{0}': packets go to destinations that the configuration names only: write it under \
         [export.destinations], and its name here"
    )]
    Address(String),
    /// Not a name.
    #[error("'{0}' is no name of a destination: 1 to {NAME_MAX} letters, digits, '-', '_' and '.'")]
    Name(String),
}

impl FromStr for Export {
    type Err = ParseExportError;

    fn from_str(text: &str) -> Result<Self, ParseExportError> {
        let (what, to) = text.split_once("->").unwrap_or((text, ""));
        let mut words = what.split_whitespace();
        let bytes = |word: &str| word.parse::<u32>().ok().filter(|&bytes| bytes > 0);
        let keep = match (words.next(), words.next(), words.next()) {
            (Some("header"), None, None) => Some(Keep::Header),
            (Some("payload"), None, None) => Some(Keep::Full),
            (Some("payload"), Some(word), None) => bytes(word).map(Keep::Partial),
            _ => None,
        };
        Ok(Self {
            keep: keep.ok_or_else(|| ParseExportError::What(what.trim().to_owned()))?,
            to: to.trim().parse()?,
        })
    }
}

impl fmt::Display for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to = self.to;
        match self.keep {
            Keep::Partial(bytes) => write!(f, "payload {bytes} -> {to}"),
            Keep::Full => write!(f, "payload -> {to}"),
            Keep::Header | Keep::Nothing => write!(f, "header -> {to}"),
        }
    }
}
