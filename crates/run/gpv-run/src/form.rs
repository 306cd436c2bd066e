//! How vectors are written.

use std::fmt;

use strata_gpv::Columns;
use strata_gpv::format::paper;

/// The format in which vectors are written (`docs/formats/gpv.md`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Strata's form: numbered, so that lost vectors are counted; IPv4 and IPv6, ns.
    Strata,
    /// The form of the *Flow paper: IPv4, us, sizes up to 2047 bytes, not numbered.
    Paper,
    /// Like paper, but with the TCP sequence number of each packet.
    PaperSeq,
}

/// As users name it.
impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Strata => "strata",
            Self::Paper => "paper",
            Self::PaperSeq => "paper-seq",
        })
    }
}

/// Bytes of the header of a datagram of Strata's form.
const DATAGRAM_HEADER_LEN: usize = 24;
/// Bytes of the header of a vector in it, and of a key at most.
const VECTOR_HEADER_LEN: usize = 24 + 32;

impl Form {
    /// Bytes of a datagram with one vector of this number of packets, at most.
    #[must_use]
    pub fn longest(self, packets: usize, columns: Columns) -> usize {
        match self {
            Self::Strata => DATAGRAM_HEADER_LEN + VECTOR_HEADER_LEN + packets * columns.tuple_len(),
            Self::Paper => paper::HEADER_LEN + packets * 4,
            Self::PaperSeq => paper::HEADER_LEN + packets * 8,
        }
    }

    /// Bytes that say how many follow, at the start of a datagram, or of a vector in the paper's form.
    pub(crate) fn header_len(self) -> usize {
        match self {
            Self::Strata => DATAGRAM_HEADER_LEN,
            Self::Paper | Self::PaperSeq => paper::HEADER_LEN,
        }
    }

    /// How many bytes follow a header; 0 if it is cut.
    pub(crate) fn rest_len(self, header: &[u8]) -> u64 {
        match (self, header) {
            (Self::Strata, [_, _, _, _, _, _, _, _, _, _, _, _, low, high, ..]) => {
                u64::from(u16::from_le_bytes([*low, *high])).saturating_sub(header.len() as u64)
            }
            (form, [_, _, _, _, _, _, _, _, _, _, _, _, _, _, high, low, ..]) => {
                let count = u64::from(u16::from_be_bytes([*high, *low]));
                count * if form == Self::Paper { 4 } else { 8 }
            }
            _ => 0,
        }
    }
}
