//! Names of streams.

use std::fmt;
use std::str::FromStr;

/// Longest name, in characters.
const NAME_LEN_MAX: usize = 64;

/// The name of a stream: 1 to 64 of `A-Z a-z 0-9 . _ -`, but not `.` or `..`, which name directories.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct StreamName(String);

/// Why a text is not a name. It does not repeat the text, which may hold anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NameError {
    /// Empty, or too long.
    #[error("a stream's name must be 1 to 64 characters long, not {0}")]
    Length(usize),
    /// Another character.
    #[error("a stream's name has letters, digits, '.', '_' and '-' only, not {0:?}")]
    Character(char),
    /// The name of a directory.
    #[error("a stream's name is not '.' or '..'")]
    Directory,
}

impl StreamName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for StreamName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if let Some(other) = text.chars().find(|&c| !allowed(c)) {
            return Err(NameError::Character(other));
        }
        if !(1..=NAME_LEN_MAX).contains(&text.len()) {
            return Err(NameError::Length(text.len()));
        }
        if matches!(text, "." | "..") {
            return Err(NameError::Directory);
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for StreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_a_few_characters() {
        for name in ["a", "flows-2026.10_eu", "...", ".x", "-x", &"n".repeat(64)] {
            assert_eq!(name.parse::<StreamName>().unwrap().as_str(), name);
        }
        for name in ["", &"n".repeat(65)] {
            let refused = name.parse::<StreamName>().unwrap_err();
            assert_eq!(refused, NameError::Length(name.len()));
        }
        for name in [".", ".."] {
            assert_eq!(name.parse::<StreamName>(), Err(NameError::Directory));
        }
        for name in ["a/b", "../a", "a b", "ä", "a\0", "a\n", "*"] {
            let refused = name.parse::<StreamName>().unwrap_err();
            assert!(matches!(refused, NameError::Character(_)), "{name:?}");
        }
    }
}
