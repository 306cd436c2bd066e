//! Entries of lists as records of a stream (`strata telemetry run --to-stream`).
//!
//! ```text
//!  0 magic "SLST"
//!  4 version u8 = 1
//!  5 kind u8          0 bytes, 1 event of a node, 2 event of a flow
//!  6 zero u16
//!  8 list u32
//! 12 zero u32
//! 16 number u64       of the entry in its run, those that were lost included
//! 24 reporter         16 bytes: IPv6, or IPv4 mapped to it; zeros: the entry is from INT
//! 40 entry            as it was reported, 1 to 64 bytes
//! ```
//!
//! Little-endian, but for addresses and the entry.

use std::net::{IpAddr, Ipv6Addr};

const MAGIC: [u8; 4] = *b"SLST";
const VERSION: u8 = 1;
const HEADER_LEN: usize = 40;

/// The kind of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListedKind {
    /// Bytes whose meaning only the reporter knows.
    Bytes,
    /// An event of a node.
    NodeEvent,
    /// An event of a flow ([`crate::event::flow`]).
    FlowEvent,
}

impl ListedKind {
    const ALL: [Self; 3] = [Self::Bytes, Self::NodeEvent, Self::FlowEvent];

    fn number(self) -> u8 {
        match self {
            Self::Bytes => 0,
            Self::NodeEvent => 1,
            Self::FlowEvent => 2,
        }
    }
}

/// An entry of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listed<'a> {
    /// The kind of the entry.
    pub kind: ListedKind,
    /// The number of the list.
    pub list: u32,
    /// Its number in the run of its writer. A gap gives the number of lost entries; a smaller number than before means
    /// another run.
    pub number: u64,
    /// The address of its reporter; `None` if the entry was made of an INT report.
    pub reporter: Option<IpAddr>,
    /// The entry.
    pub entry: &'a [u8],
}

impl<'a> Listed<'a> {
    /// Appends the record's bytes to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let reporter = match self.reporter {
            Some(IpAddr::V4(address)) => address.to_ipv6_mapped(),
            Some(IpAddr::V6(address)) => address,
            None => Ipv6Addr::UNSPECIFIED,
        };
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[VERSION, self.kind.number(), 0, 0]);
        out.extend_from_slice(&self.list.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&reporter.octets());
        out.extend_from_slice(self.entry);
    }

    /// The entry in a record; `None` if the record is something else, or of another version.
    #[must_use]
    pub fn parse(record: &'a [u8]) -> Option<Self> {
        let (header, entry) = record.split_first_chunk::<HEADER_LEN>()?;
        let (start, reporter) = header.split_last_chunk::<16>()?;
        let (start, number) = start.split_last_chunk::<8>()?;
        let (&[a, b, c, d, version, kind, 0, 0], rest) = start.split_first_chunk::<8>()? else {
            return None;
        };
        let &[e, f, g, h, 0, 0, 0, 0] = rest else {
            return None;
        };
        let reporter = Ipv6Addr::from(*reporter);
        let is_one = [a, b, c, d] == MAGIC && version == VERSION;
        is_one.then_some(Self {
            kind: *ListedKind::ALL.get(usize::from(kind))?,
            list: u32::from_le_bytes([e, f, g, h]),
            number: u64::from_le_bytes(*number),
            reporter: (!reporter.is_unspecified()).then(|| reporter.to_canonical()),
            entry,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_bytes_are_those_of_the_document() {
        let mut out = Vec::new();
        Listed {
            kind: ListedKind::FlowEvent,
            list: 0x0403_0201,
            number: 0x0c0b_0a09_0807_0605,
            reporter: Some([192, 0, 2, 1].into()),
            entry: b"entry",
        }
        .emit(&mut out);
        let expected = b"SLST\x01\x02\0\0\x01\x02\x03\x04\0\0\0\0\x05\x06\x07\x08\x09\x0a\x0b\x0c\
            \0\0\0\0\0\0\0\0\0\0\xff\xff\xc0\0\x02\x01entry";
        assert_eq!(out, expected);
        // Each byte that is not free has to be what it is.
        for at in (0..8).chain(12..16) {
            let mut other = out.clone();
            other[at] ^= 0x80;
            assert_eq!(Listed::parse(&other), None, "byte {at}");
        }
        assert_eq!(Listed::parse(&out[..39]), None);
    }

    proptest! {
        #[test]
        fn records_are_read_as_they_were_written(
            kind in 0..3_usize,
            list: u32,
            number: u64,
            reporter: Option<IpAddr>,
            entry in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let reporter = reporter.map(|address| address.to_canonical());
            let reporter = reporter.filter(|address| *address != IpAddr::from(Ipv6Addr::UNSPECIFIED));
            let listed = Listed { kind: ListedKind::ALL[kind], list, number, reporter, entry: &entry };
            let mut out = Vec::new();
            listed.emit(&mut out);
            prop_assert_eq!(Listed::parse(&out), Some(listed));
        }

        #[test]
        fn any_bytes_are_read_or_not(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Some(listed) = Listed::parse(&bytes) {
                let mut out = Vec::new();
                listed.emit(&mut out);
                prop_assert_eq!(out, bytes);
            }
        }
    }
}
