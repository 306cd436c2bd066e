//! Places in a stream.

use std::fmt;
use std::str::FromStr;

/// A place between two records of a stream: the number of a page, and an offset in it. Cursors of a
/// stream only ever grow, so one that was stored stays valid when its page has been deleted (reading
/// goes on with the oldest record) or lost in a crash (with the first written after it).
///
/// As text: `PAGE.OFFSET`, in decimal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Cursor {
    /// The page's index in the stream.
    pub index: u64,
    /// Bytes from the start of the page.
    pub offset: u32,
}

impl Cursor {
    /// Before everything.
    pub const START: Self = Self {
        index: 0,
        offset: 0,
    };

    /// The start of a page.
    #[must_use]
    pub fn page(index: u64) -> Self {
        Self { index, offset: 0 }
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.offset)
    }
}

/// The text is not a cursor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a cursor is two numbers such as 17.40960, as `strata stream tail --json` prints them")]
pub struct CursorError;

impl FromStr for Cursor {
    type Err = CursorError;

    fn from_str(text: &str) -> Result<Self, CursorError> {
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let (index, offset) = text.split_once('.').ok_or(CursorError)?;
        if !digits(index) || !digits(offset) {
            return Err(CursorError);
        }
        Ok(Self {
            index: index.parse().map_err(|_| CursorError)?,
            offset: offset.parse().map_err(|_| CursorError)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_texts() {
        let cursor = Cursor {
            index: u64::MAX,
            offset: 4_194_304,
        };
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        assert!(Cursor::page(9) < Cursor::page(10));
        for text in [
            "",
            "7",
            "7.",
            ".7",
            "+7.1",
            "7.1.2",
            "-1.0",
            "7.4294967296",
            "1e3.0",
        ] {
            assert_eq!(text.parse::<Cursor>(), Err(CursorError), "{text}");
        }
    }
}
