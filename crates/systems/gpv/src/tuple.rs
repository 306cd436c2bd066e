//! Packet feature tuples: the paper's two and our own.
#![allow(
    unsafe_code,
    reason = "derives of zerocopy, which check that a tuple is a word"
)]

use strata_wire::clamped;
use zerocopy::{FromBytes as _, Immutable, IntoBytes};

use crate::packet::Packet;

/// A set of columns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Columns(pub u16);

/// A column of a vector: a feature that each of its tuples has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Column {
    /// Time since the vector's start.
    Time = 0,
    /// Bytes on the wire.
    Size = 1,
    /// Whether the queue was long.
    HighQueue = 2,
    /// TCP sequence number.
    TcpSeq = 3,
    /// TCP acknowledgement number.
    TcpAck = 4,
    /// TCP flags.
    TcpFlags = 5,
    /// TCP window.
    TcpWindow = 6,
    /// Depth of the queue.
    QueueDepth = 7,
    /// ECN bits.
    Ecn = 8,
    /// Bytes after the transport header.
    PayloadLen = 9,
    /// Class.
    Class = 10,
}

impl Column {
    /// All columns, in the order in which they travel.
    pub const ALL: [Self; 11] = [
        Self::Time,
        Self::Size,
        Self::HighQueue,
        Self::TcpSeq,
        Self::TcpAck,
        Self::TcpFlags,
        Self::TcpWindow,
        Self::QueueDepth,
        Self::Ecn,
        Self::PayloadLen,
        Self::Class,
    ];

    /// Bytes of a value on the wire, in our own format.
    #[must_use]
    pub const fn width(self) -> usize {
        match self {
            Self::Time | Self::TcpSeq | Self::TcpAck | Self::QueueDepth => 4,
            Self::Size | Self::TcpWindow | Self::PayloadLen => 2,
            Self::HighQueue | Self::TcpFlags | Self::Ecn | Self::Class => 1,
        }
    }
}

impl Columns {
    /// Every column.
    pub const ALL: Self = Self((1 << Column::ALL.len()) - 1);

    /// These columns.
    #[must_use]
    pub const fn of(columns: &[Column]) -> Self {
        let (mut bits, mut index) = (0, 0);
        while index < columns.len() {
            bits |= 1 << columns[index] as u8;
            index = index.wrapping_add(1);
        }
        Self(bits)
    }

    /// Whether `column` is one of them.
    #[inline]
    #[must_use]
    pub const fn has(self, column: Column) -> bool {
        self.0 & 1 << column as u8 != 0
    }

    /// The columns in the order in which they travel.
    pub fn iter(self) -> impl Iterator<Item = Column> {
        Column::ALL
            .into_iter()
            .filter(move |&column| self.has(column))
    }

    /// Bytes of a tuple on the wire, in our own format.
    #[must_use]
    pub fn tuple_len(self) -> usize {
        self.iter().map(Column::width).sum()
    }
}

/// The features of one packet, as they lie in the cache. What the format cannot hold is given by
/// [`Tuple::DELTA_MAX_NS`] and by the second result of [`Tuple::new`].
pub trait Tuple: Copy + Default + PartialEq + std::fmt::Debug {
    /// What a tuple says.
    const COLUMNS: Columns;
    /// The longest time since the vector's start that a tuple can hold, ns.
    const DELTA_MAX_NS: u64;

    /// The tuple of a packet that arrived so long after the vector's start, at most
    /// [`Tuple::DELTA_MAX_NS`], and whether a size or length did not fit.
    fn new(packet: &Packet, delta_ns: u64) -> (Self, bool);

    /// Time since the vector's start, as exact as the tuple holds it, rounded down.
    fn delta_ns(&self) -> u64;

    /// The value of a column; of [`Column::Time`] in ns, 0 if the tuple does not have it.
    fn get(&self, column: Column) -> u32;

    /// These tuples as words of the paper's 32 bits ([`Basic`]), if that is what they are: many at
    /// once can be computed with.
    #[inline(always)]
    #[must_use]
    fn words(tuples: &[Self]) -> Option<&[u32]> {
        let _ = tuples;
        None
    }
}

/// The paper's tuple of 32 bits (section 6.2), most significant first:
///
/// ```text
/// 31            12 11         1  0
/// | delta, us: 20 | size: 11  | high queue: 1 |
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, IntoBytes, Immutable)]
#[repr(transparent)]
pub struct Basic(pub u32);

/// Bits of a time delta in [`Basic`].
const DELTA_BITS: u32 = 20;
/// Where it begins.
pub(crate) const BASIC_DELTA_SHIFT: u32 = u32::BITS - DELTA_BITS;
/// The largest size that [`Basic`] holds: a packet of this number of bytes or more.
pub(crate) const BASIC_SIZE_MAX: u32 = (1 << 11) - 1;
const _: () = assert!(DELTA_BITS + 11 + 1 == u32::BITS && size_of::<Basic>() == 4);

impl Basic {
    /// Bytes on the wire, 2,047 if there were more.
    #[inline(always)]
    #[must_use]
    pub fn size(self) -> u32 {
        self.0 >> 1 & BASIC_SIZE_MAX
    }

    /// Whether the queue was long.
    #[inline(always)]
    #[must_use]
    pub fn high_queue(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whole microseconds since the vector's start.
    #[inline(always)]
    #[must_use]
    pub fn delta_us(self) -> u32 {
        self.0 >> BASIC_DELTA_SHIFT
    }
}

impl Tuple for Basic {
    const COLUMNS: Columns = Columns::of(&[Column::Time, Column::Size, Column::HighQueue]);
    const DELTA_MAX_NS: u64 = (1 << DELTA_BITS) * 1000 - 1;

    #[inline(always)]
    #[allow(
        clippy::cast_possible_truncation,
        reason = "asserted to fit in 20 bits"
    )]
    fn new(packet: &Packet, delta_ns: u64) -> (Self, bool) {
        debug_assert!(delta_ns <= Self::DELTA_MAX_NS);
        let delta = (delta_ns / 1000) as u32;
        let size = packet.size.min(BASIC_SIZE_MAX);
        let word = delta << BASIC_DELTA_SHIFT | size << 1 | u32::from(packet.high_queue);
        (Self(word), packet.size > BASIC_SIZE_MAX)
    }

    #[inline(always)]
    fn delta_ns(&self) -> u64 {
        u64::from(self.delta_us()) * 1000
    }

    #[inline(always)]
    fn get(&self, column: Column) -> u32 {
        match column {
            Column::Time => self.delta_us().wrapping_mul(1000),
            Column::Size => self.size(),
            Column::HighQueue => u32::from(self.high_queue()),
            _ => 0,
        }
    }

    #[inline(always)]
    fn words(tuples: &[Self]) -> Option<&[u32]> {
        <[u32]>::ref_from_bytes(tuples.as_bytes()).ok()
    }
}

/// The paper's tuple with a TCP sequence number (section 6.3): 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sequenced {
    /// The tuple of 32 bits.
    pub basic: Basic,
    /// TCP sequence number, else 0.
    pub tcp_seq: u32,
}

const _: () = assert!(size_of::<Sequenced>() == 8);

impl Tuple for Sequenced {
    const COLUMNS: Columns = Columns::of(&[
        Column::Time,
        Column::Size,
        Column::HighQueue,
        Column::TcpSeq,
    ]);
    const DELTA_MAX_NS: u64 = Basic::DELTA_MAX_NS;

    #[inline(always)]
    fn new(packet: &Packet, delta_ns: u64) -> (Self, bool) {
        let (basic, saturated) = Basic::new(packet, delta_ns);
        let tcp_seq = packet.tcp_seq;
        (Self { basic, tcp_seq }, saturated)
    }

    #[inline(always)]
    fn delta_ns(&self) -> u64 {
        self.basic.delta_ns()
    }

    #[inline(always)]
    fn get(&self, column: Column) -> u32 {
        match column {
            Column::TcpSeq => self.tcp_seq,
            other => self.basic.get(other),
        }
    }
}

/// Our own tuple: every column, times in ns. What is not chosen is not sent
/// ([`Columns`], `docs/formats/gpv.md`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Full {
    /// Ns since the vector's start.
    pub delta_ns: u32,
    /// TCP sequence number, else 0.
    pub tcp_seq: u32,
    /// TCP acknowledgement number, else 0.
    pub tcp_ack: u32,
    /// Depth of the queue.
    pub queue_depth: u32,
    /// Bytes on the wire, 65,535 if there were more.
    pub size: u16,
    /// Bytes after the transport header, 65,535 if there were more.
    pub payload_len: u16,
    /// TCP window, else 0.
    pub tcp_window: u16,
    /// TCP flags, else 0.
    pub tcp_flags: u8,
    /// ECN bits.
    pub ecn: u8,
    /// Class.
    pub class: u8,
    /// 1 if the queue was long.
    pub high_queue: u8,
}

const _: () = assert!(size_of::<Full>() == 28);

impl Full {
    /// Sets a column, to at most what its field holds.
    pub(crate) fn set(&mut self, column: Column, value: u32) {
        match column {
            Column::Time => self.delta_ns = value,
            Column::Size => self.size = clamped(value),
            Column::HighQueue => self.high_queue = clamped(value),
            Column::TcpSeq => self.tcp_seq = value,
            Column::TcpAck => self.tcp_ack = value,
            Column::TcpFlags => self.tcp_flags = clamped(value),
            Column::TcpWindow => self.tcp_window = clamped(value),
            Column::QueueDepth => self.queue_depth = value,
            Column::Ecn => self.ecn = clamped(value),
            Column::PayloadLen => self.payload_len = clamped(value),
            Column::Class => self.class = clamped(value),
        }
    }
}

impl Tuple for Full {
    const COLUMNS: Columns = Columns::ALL;
    const DELTA_MAX_NS: u64 = u32::MAX as u64;

    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "asserted to fit")]
    fn new(packet: &Packet, delta_ns: u64) -> (Self, bool) {
        debug_assert!(delta_ns <= Self::DELTA_MAX_NS);
        let tuple = Self {
            delta_ns: delta_ns as u32,
            tcp_seq: packet.tcp_seq,
            tcp_ack: packet.tcp_ack,
            queue_depth: packet.queue_depth,
            size: clamped(packet.size),
            payload_len: clamped(packet.payload_len),
            tcp_window: packet.tcp_window,
            tcp_flags: packet.tcp_flags,
            ecn: packet.ecn,
            class: packet.class,
            high_queue: u8::from(packet.high_queue),
        };
        let largest = u32::from(u16::MAX);
        let saturated = packet.size > largest || packet.payload_len > largest;
        (tuple, saturated)
    }

    #[inline(always)]
    fn delta_ns(&self) -> u64 {
        u64::from(self.delta_ns)
    }

    #[inline(always)]
    fn get(&self, column: Column) -> u32 {
        match column {
            Column::Time => self.delta_ns,
            Column::Size => u32::from(self.size),
            Column::HighQueue => u32::from(self.high_queue),
            Column::TcpSeq => self.tcp_seq,
            Column::TcpAck => self.tcp_ack,
            Column::TcpFlags => u32::from(self.tcp_flags),
            Column::TcpWindow => u32::from(self.tcp_window),
            Column::QueueDepth => self.queue_depth,
            Column::Ecn => u32::from(self.ecn),
            Column::PayloadLen => u32::from(self.payload_len),
            Column::Class => u32::from(self.class),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_bits() {
        let packet = Packet {
            size: 1500,
            high_queue: true,
            ..Packet::default()
        };
        // 0x54321 us, 1500 = 0x5dc: 0x54321 << 12 | 0x5dc << 1 | 1.
        let (tuple, saturated) = Basic::new(&packet, 0x54321 * 1000 + 999);
        assert_eq!(tuple.0, 0x5432_1bb9);
        assert!(!saturated);
        assert_eq!(
            (tuple.delta_us(), tuple.size(), tuple.high_queue()),
            (0x54321, 1500, true)
        );
    }

    #[test]
    fn sizes_saturate_and_say_so() {
        let sized = |size| Packet {
            size,
            ..Packet::default()
        };
        assert_eq!(Basic::new(&sized(2047), 0), (Basic(2047 << 1), false));
        assert_eq!(Basic::new(&sized(2048), 0), (Basic(2047 << 1), true));
        assert!(Sequenced::new(&sized(9000), 0).1);
        assert!(!Full::new(&sized(65_535), 0).1);
        let (tuple, saturated) = Full::new(&sized(65_536), 0);
        assert_eq!((tuple.size, saturated), (65_535, true));
    }
}
