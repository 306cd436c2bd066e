//! Reports on the wire: UDP port 40040, big-endian. Byte maps are in `docs/formats/dta.md`.
//!
//! - [`published`]: what the programs published with the paper send, one report a datagram, in
//!   both of their header forms;
//! - [`packed`]: ours, many reports a datagram, numbered and with a time;
//! - [`Nack`]: what goes back when a report was dropped.

mod nack;
pub mod packed;
pub mod published;
mod refusal;

pub use nack::Nack;
pub use refusal::{Refusal, Refusals};

/// UDP port of reports.
pub const UDP_PORT: u16 = 40_040;
/// UDP port, at the reporter, of negative acknowledgements.
pub const NACK_PORT: u16 = 40_044;
/// Maximum bytes of a key: source, destination, ports and protocol of IPv6 take 37.
pub const KEY_LEN_MAX: usize = 40;
/// Maximum bytes of data.
pub const DATA_LEN_MAX: usize = 64;

/// Requests of a reporter in addition to the operation itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags {
    /// Bit 7: a client waits for this report: notify the collector's CPU (paper §7).
    pub immediate: bool,
    /// Bit 6: the reporter keeps the report, and sends it again after a negative
    /// acknowledgement.
    pub retransmittable: bool,
}

impl Flags {
    /// The flags of a report: immediate if the report is an event, that is, an entry of a list.
    #[must_use]
    pub fn of_event(report: &Report<'_>) -> Self {
        Self {
            immediate: report.primitive() == Primitive::Append,
            retransmittable: false,
        }
    }

    /// The flags in a byte; the reserved bits are ignored.
    #[inline]
    #[must_use]
    pub fn from_byte(byte: u8) -> Self {
        Self {
            immediate: byte & 0x80 != 0,
            retransmittable: byte & 0x40 != 0,
        }
    }

    /// As a byte, with zeros in the reserved bits.
    #[must_use]
    pub fn byte(self) -> u8 {
        u8::from(self.immediate) << 7 | u8::from(self.retransmittable) << 6
    }
}

/// The four operations that a report can ask for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Primitive {
    /// Writes a value at the places of its key.
    KeyWrite,
    /// Puts an entry at the end of a list.
    Append,
    /// Adds to the counters of a key.
    KeyIncrement,
    /// Reports the value of one hop of a flow's path.
    Postcard,
}

impl Primitive {
    /// All, in the order of their codes.
    pub const ALL: [Self; 4] = [
        Self::KeyWrite,
        Self::Append,
        Self::KeyIncrement,
        Self::Postcard,
    ];

    /// The primitive that a datagram of either version is of, as far as its opcode says.
    #[inline]
    #[must_use]
    pub fn of(datagram: &[u8]) -> Option<Self> {
        let opcode = *datagram.first()?;
        packed::primitive(opcode).or_else(|| published::primitive(opcode))
    }
}

/// A report, of either version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Report<'a> {
    /// Key-Write.
    KeyWrite {
        /// Copies to be stored.
        redundancy: u8,
        /// The key.
        key: &'a [u8],
        /// The value.
        data: &'a [u8],
    },
    /// Append.
    Append {
        /// The list.
        list: u32,
        /// The entry.
        data: &'a [u8],
    },
    /// Key-Increment.
    KeyIncrement {
        /// Counters to be added to.
        redundancy: u8,
        /// The key.
        key: &'a [u8],
        /// What is added.
        counter: u64,
    },
    /// Postcarding.
    Postcard {
        /// The flow, or the packet.
        key: &'a [u8],
        /// The hop, from 0.
        hop: u8,
        /// Hops of the whole path, if the reporter knows.
        path_len: Option<u8>,
        /// What the hop says, as its own number.
        value: u32,
    },
}

impl Report<'_> {
    /// Its primitive.
    #[must_use]
    pub fn primitive(&self) -> Primitive {
        match self {
            Self::KeyWrite { .. } => Primitive::KeyWrite,
            Self::Append { .. } => Primitive::Append,
            Self::KeyIncrement { .. } => Primitive::KeyIncrement,
            Self::Postcard { .. } => Primitive::Postcard,
        }
    }
}

/// A datagram that is whole and of a known kind.
#[derive(Clone, Copy, Debug)]
pub enum Datagram<'a> {
    /// A datagram as the published programs send it.
    Published(published::Packet<'a>),
    /// Version 2.
    Packed(packed::Packet<'a>),
}

impl<'a> Datagram<'a> {
    /// A view of the payload of a UDP datagram.
    ///
    /// # Errors
    ///
    /// Why it is refused: opcode, lengths, count.
    #[inline]
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, Refusal> {
        let opcode = *bytes.first().ok_or(Refusal::Empty)?;
        if packed::primitive(opcode).is_some() {
            packed::Packet::new_checked(bytes).map(Self::Packed)
        } else {
            published::Packet::new_checked(bytes).map(Self::Published)
        }
    }
}

/// Four bytes of a view that was checked to have them.
#[inline(always)]
fn held32(bytes: &[u8], at: usize) -> u32 {
    let field = bytes[at..].first_chunk().expect("a view has its fields");
    u32::from_be_bytes(*field)
}

/// Eight bytes of a view that was checked to have them.
#[inline(always)]
fn held64(bytes: &[u8], at: usize) -> u64 {
    let field = bytes[at..].first_chunk().expect("a view has its fields");
    u64::from_be_bytes(*field)
}
