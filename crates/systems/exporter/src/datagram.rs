//! The start of every datagram: whose it is, its number, when its packets were captured.
#![allow(
    unsafe_code,
    reason = "derives of zerocopy, which check that every byte pattern is a value"
)]

use strata_wire::{LinkType, layout};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// "Strata, export".
const MAGIC: [u8; 2] = *b"SX";
const VERSION: u8 = 4;
/// The bits of the time code that are its width; one more says that times are microseconds.
const TIME_BITS: u8 = 0x3f;
const TIME_MICROSECONDS: u8 = 0x40;

/// Bytes before the records.
pub const HEADER_LEN: usize = size_of::<Start>();
/// Bytes of a datagram: what fits into Ethernet's 1,500 with IPv6 and UDP.
pub const LEN_USUAL: usize = 1452;
/// Minimum room of a writer in bytes.
pub const LEN_MIN: usize = 128;
/// The largest payload of UDP over IPv4.
pub const LEN_MAX: usize = 65_507;

/// The start of a datagram, little-endian.
///
/// ```text
///  0 magic "SX"
///  2 version u8 = 4
///  3 kind u8            1 compressed headers, 2 packets, 3 an announcement
///  4 identity u24       host and interface: a VXLAN network identifier
///  7 time code u8       bits 0-5: width of time differences; bit 6: they are in microseconds
///  8 session u32        another one since numbers begin at 0 again
/// 12 packets u16        records that follow
/// 14 link type u16      of the interface
/// 16 datagram u64       its number among those of its identity and session
/// 24 first_packet u64   number of the first record
/// 32 time u64           ns since 1970 before the first record
/// 40 records
/// ```
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Start {
    magic: [u8; 2],
    version: u8,
    kind: u8,
    identity: [u8; 3],
    time_code: u8,
    session: U32,
    packets: U16,
    link: U16,
    datagram: U64,
    first_packet: U64,
    time: U64,
}
layout!(
    Start, 40,
    magic at 0, version at 2, kind at 3, identity at 4, time_code at 7, session at 8,
    packets at 12, link at 14, datagram at 16, first_packet at 24, time at 32,
);

/// Why bytes are not a valid datagram, and the position of the problem.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what} at byte {offset} of {len}")]
pub struct FormatError {
    /// The problem.
    pub what: &'static str,
    /// The offset of the problem from the start of the datagram.
    pub offset: usize,
    /// Bytes of the datagram.
    pub len: usize,
}

/// The kinds of datagrams.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Compressed headers ([`HeaderWriter`](crate::HeaderWriter)).
    Headers = 1,
    /// Packets, whole or their first bytes ([`PacketWriter`](crate::PacketWriter)).
    Packets = 2,
    /// The sender ([`Announcement`](crate::Announcement)).
    Announcement = 3,
}

impl Kind {
    fn of(code: u8) -> Option<Self> {
        [Self::Headers, Self::Packets, Self::Announcement]
            .into_iter()
            .find(|kind| *kind as u8 == code)
    }
}

/// The source of packets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Source {
    /// Host and interface, as 24 bits, so that it can be a VXLAN network identifier; 0 is not an
    /// identity.
    pub identity: u32,
    /// The sender's session: numbers begin at 0 in each.
    pub session: u32,
}

/// The numbers of datagrams and packets that a source has sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Numbered {
    /// Datagrams: the number of the next datagram.
    pub datagrams: u64,
    /// Packets in these datagrams, or lost before they were in one: the number of the next packet.
    pub packets: u64,
}

/// The header of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Datagram {
    /// Its kind. Headers and packets of a source are numbered separately.
    pub kind: Kind,
    /// The source of its packets.
    pub source: Source,
    /// Link type of the interface.
    pub link: LinkType,
    /// Number among the datagrams of its source, from 0.
    pub number: u64,
    /// Number of the first packet among those of its source, from 0.
    pub first_packet: u64,
    /// The number of its packets.
    pub packets: u16,
    /// Before the first packet, ns since 1970.
    pub(crate) time_ns: u64,
    /// Low bits of a time difference that are written as they are.
    pub(crate) time_bits: u32,
    /// Whether differences of times are microseconds.
    pub(crate) in_microseconds: bool,
}

impl Datagram {
    /// The first datagram of a source. Its times are of headers.
    ///
    /// # Panics
    ///
    /// If the identity is 0 or has more than 24 bits.
    pub(crate) fn first(kind: Kind, source: Source, link: LinkType) -> Self {
        assert!(
            (1..1 << 24).contains(&source.identity),
            "{}: not an identity of 24 bits",
            source.identity
        );
        Self {
            kind,
            source,
            link,
            number: 0,
            first_packet: 0,
            packets: 0,
            time_ns: 0,
            time_bits: 10,
            in_microseconds: true,
        }
    }

    /// Fails unless the datagram is of this kind.
    pub(crate) fn expect(&self, kind: Kind, len: usize) -> Result<(), FormatError> {
        if self.kind == kind {
            return Ok(());
        }
        let what = "an unexpected kind of datagram";
        Err(FormatError {
            what,
            offset: 3,
            len,
        })
    }

    /// The largest width of time differences.
    pub(crate) const TIME_BITS_MAX: u32 = 36;

    /// Reads the start of a datagram.
    ///
    /// # Errors
    ///
    /// If it is cut, is something else, or has impossible numbers.
    pub fn read(bytes: &[u8]) -> Result<Self, FormatError> {
        let wrong = |what, offset| FormatError {
            what,
            offset,
            len: bytes.len(),
        };
        let (start, _) = Start::read_from_prefix(bytes)
            .map_err(|_| wrong("a truncated start of a datagram", bytes.len()))?;
        if start.magic != MAGIC {
            return Err(wrong("not exported by Strata: wrong magic number", 0));
        }
        if start.version != VERSION {
            return Err(wrong(
                "a format version other than 4: sender and collector must run the same version of Strata",
                2,
            ));
        }
        let kind = Kind::of(start.kind).ok_or_else(|| wrong("an unknown kind of datagram", 3))?;
        let [a, b, c] = start.identity;
        let identity = u32::from_le_bytes([a, b, c, 0]);
        if identity == 0 {
            return Err(wrong("identity 0, which is not valid", 4));
        }
        let time_bits = u32::from(start.time_code & TIME_BITS);
        if time_bits > Self::TIME_BITS_MAX
            || start.time_code & !(TIME_BITS | TIME_MICROSECONDS) != 0
        {
            return Err(wrong("an unknown time code", 7));
        }
        let (first_packet, packets) = (start.first_packet.get(), start.packets.get());
        if first_packet.checked_add(u64::from(packets)).is_none() {
            return Err(wrong("a packet number past the maximum", 24));
        }
        if start.datagram.get() == u64::MAX {
            return Err(wrong("a datagram number past the maximum", 16));
        }
        Ok(Self {
            kind,
            source: Source {
                identity,
                session: start.session.get(),
            },
            link: LinkType(start.link.get()),
            number: start.datagram.get(),
            first_packet,
            packets,
            time_ns: start.time.get(),
            time_bits,
            in_microseconds: start.time_code & TIME_MICROSECONDS != 0,
        })
    }

    /// Writes the start of a datagram.
    #[allow(clippy::cast_possible_truncation, reason = "a width of at most 36")]
    pub(crate) fn write(&self, bytes: &mut [u8]) {
        let [a, b, c, _] = self.source.identity.to_le_bytes();
        let unit = if self.in_microseconds {
            TIME_MICROSECONDS
        } else {
            0
        };
        let start = Start {
            magic: MAGIC,
            version: VERSION,
            kind: self.kind as u8,
            identity: [a, b, c],
            time_code: self.time_bits as u8 | unit,
            session: self.source.session.into(),
            packets: self.packets.into(),
            link: self.link.0.into(),
            datagram: self.number.into(),
            first_packet: self.first_packet.into(),
            time: self.time_ns.into(),
        };
        bytes[..HEADER_LEN].copy_from_slice(start.as_bytes());
    }
}
