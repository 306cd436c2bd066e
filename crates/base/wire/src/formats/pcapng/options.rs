//! pcapng option lists (draft-ietf-opsawg-pcapng, section 3.5) in the one form
//! used inside Strata.
//!
//! That form is a sequence of options in little-endian, each padded with zeros
//! to 4 bytes, without the closing `opt_endofopt`:
//!
//! ```text
//!  0      2        4                    4 + length   next multiple of 4
//!  | code | length | value              | padding    |
//! ```
//!
//! Lists of big-endian sections are converted to it when they are read, values included. What must
//! not be copied into other files (custom codes 19372 and 19373) is skipped.

use std::fmt;

/// Option codes by block.
pub mod code {
    /// End of a list; never part of one in the form used here.
    pub const END: u16 = 0;
    /// Comment, UTF-8, in every block; may occur several times.
    pub const COMMENT: u16 = 1;
    /// Custom, UTF-8 text after a 4-byte private enterprise number.
    pub const CUSTOM_TEXT: u16 = 2988;
    /// Custom, bytes after a 4-byte private enterprise number.
    pub const CUSTOM_BYTES: u16 = 2989;
    /// As [`CUSTOM_TEXT`], not to be copied.
    pub const CUSTOM_TEXT_PRIVATE: u16 = 19372;
    /// As [`CUSTOM_BYTES`], not to be copied.
    pub const CUSTOM_BYTES_PRIVATE: u16 = 19373;

    /// Section header: hardware used for the capture.
    pub const SHB_HARDWARE: u16 = 2;
    /// Section header: operating system used for the capture.
    pub const SHB_OS: u16 = 3;
    /// Section header: program that wrote the section.
    pub const SHB_USERAPPL: u16 = 4;

    /// Interface: name.
    pub const IF_NAME: u16 = 2;
    /// Interface: description.
    pub const IF_DESCRIPTION: u16 = 3;
    /// Interface: bits per second, 8 bytes.
    pub const IF_SPEED: u16 = 8;
    /// Interface: resolution of timestamps, 1 byte.
    pub const IF_TSRESOL: u16 = 9;
    /// Interface: time zone, 4 bytes, never filled in by anyone.
    pub const IF_TZONE: u16 = 10;
    /// Interface: capture filter.
    pub const IF_FILTER: u16 = 11;
    /// Interface: bits of frame check sequence, 1 byte.
    pub const IF_FCSLEN: u16 = 13;
    /// Interface: seconds to add to timestamps, 8 bytes, signed.
    pub const IF_TSOFFSET: u16 = 14;
    /// Interface: bits per second sent, 8 bytes.
    pub const IF_TXSPEED: u16 = 16;
    /// Interface: bits per second received, 8 bytes.
    pub const IF_RXSPEED: u16 = 17;

    /// Packet: direction, reception type, FCS length, errors; 4 bytes.
    pub const EPB_FLAGS: u16 = 2;
    /// Packet: hash, one byte of algorithm first.
    pub const EPB_HASH: u16 = 3;
    /// Packet: packets lost between this one and the one before, 8 bytes.
    pub const EPB_DROPCOUNT: u16 = 4;
    /// Packet: identity, 8 bytes.
    pub const EPB_PACKETID: u16 = 5;
    /// Packet: receive queue, 4 bytes.
    pub const EPB_QUEUE: u16 = 6;
    /// Packet: verdict, one byte of type first.
    pub const EPB_VERDICT: u16 = 7;
    /// Packet: process and thread, 4 bytes each.
    pub const EPB_PROCESSID_THREADID: u16 = 8;

    /// Interface statistics: start of capture, 8 bytes, high half first.
    pub const ISB_STARTTIME: u16 = 2;
    /// Interface statistics: end of capture, 8 bytes, high half first.
    pub const ISB_ENDTIME: u16 = 3;
    /// Interface statistics: packets received, 8 bytes.
    pub const ISB_IFRECV: u16 = 4;
    /// Interface statistics: packets dropped by the interface, 8 bytes.
    pub const ISB_IFDROP: u16 = 5;
    /// Interface statistics: packets accepted by the filter, 8 bytes.
    pub const ISB_FILTERACCEPT: u16 = 6;
    /// Interface statistics: packets dropped by the operating system, 8 bytes.
    pub const ISB_OSDROP: u16 = 7;
    /// Interface statistics: packets delivered to the user, 8 bytes.
    pub const ISB_USRDELIV: u16 = 8;
}

/// A value too long for an option's 16-bit length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionTooLong(pub usize);

impl fmt::Display for OptionTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = self.0;
        write!(
            f,
            "a pcapng option holds at most 65535 bytes, not {len}: shorten it"
        )
    }
}

impl std::error::Error for OptionTooLong {}

/// Iterator over the options of a list; see [`iter`].
#[derive(Debug, Clone)]
pub struct Options<'a> {
    rest: &'a [u8],
}

/// Walks a list in the form of this module as `(code, value)`; ends at the
/// first option that does not fit.
#[must_use]
pub fn iter(list: &[u8]) -> Options<'_> {
    Options { rest: list }
}

impl<'a> Iterator for Options<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (&[code, code_high, len, len_high], rest) = self.rest.split_first_chunk()?;
        let code = u16::from_le_bytes([code, code_high]);
        let len = u16::from_le_bytes([len, len_high]);
        let len = usize::from(len);
        let value = rest.get(..len)?;
        // The last option's padding may be missing.
        self.rest = rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some((code, value))
    }
}

/// The value of the first option with this code.
#[must_use]
pub fn find(list: &[u8], code: u16) -> Option<&[u8]> {
    iter(list)
        .find(|&(found, _)| found == code)
        .map(|(_, value)| value)
}

/// All comments that are UTF-8.
pub fn comments(list: &[u8]) -> impl Iterator<Item = &str> {
    iter(list)
        .filter(|&(found, _)| found == code::COMMENT)
        .filter_map(|(_, value)| std::str::from_utf8(value).ok())
}

/// Appends an option; `value` is as in a little-endian file.
///
/// # Errors
/// [`OptionTooLong`] beyond 65,535 bytes; the list is then unchanged.
pub fn push(list: &mut Vec<u8>, code: u16, value: &[u8]) -> Result<(), OptionTooLong> {
    let len = u16::try_from(value.len()).map_err(|_| OptionTooLong(value.len()))?;
    push_head(list, code, len);
    list.extend_from_slice(value);
    pad(list);
    Ok(())
}

/// Appends a comment.
///
/// # Errors
/// As [`push`].
pub fn push_comment(list: &mut Vec<u8>, text: &str) -> Result<(), OptionTooLong> {
    push(list, code::COMMENT, text.as_bytes())
}

/// Appends an option whose value is certain to fit.
pub fn push_fixed<const N: usize>(list: &mut Vec<u8>, code: u16, value: [u8; N]) {
    const { assert!(N <= 16) };
    #[expect(clippy::cast_possible_truncation, reason = "asserted to be small")]
    push_head(list, code, N as u16);
    list.extend_from_slice(&value);
    pad(list);
}

fn push_head(list: &mut Vec<u8>, code: u16, len: u16) {
    list.extend_from_slice(&code.to_le_bytes());
    list.extend_from_slice(&len.to_le_bytes());
}

/// Zeros up to the next multiple of 4 of the whole list.
pub fn pad(list: &mut Vec<u8>) {
    list.resize(list.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pushed_options_come_back() {
        let mut list = Vec::new();
        push_comment(&mut list, "a comment").unwrap();
        push(&mut list, code::EPB_FLAGS, &1u32.to_le_bytes()).unwrap();
        push_comment(&mut list, "").unwrap();
        assert_eq!(list.len() % 4, 0);
        let all: Vec<_> = iter(&list).collect();
        assert_eq!(
            all,
            [
                (1, &b"a comment"[..]),
                (2, &[1, 0, 0, 0][..]),
                (1, &b""[..])
            ]
        );
        assert_eq!(comments(&list).collect::<Vec<_>>(), ["a comment", ""]);
        assert_eq!(find(&list, code::EPB_QUEUE), None);
        let long = vec![0; 65_536];
        let before = list.clone();
        assert_eq!(push(&mut list, 1, &long), Err(OptionTooLong(65_536)));
        assert_eq!(list, before);
    }
}
