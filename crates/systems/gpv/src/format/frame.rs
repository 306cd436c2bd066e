//! The Ethernet frames in which the published switch program of the paper exports vectors
//! (<https://github.com/jsonch/StarFlow>, `cache/tofino/p4src/parser.p4`), in network byte order:
//!
//! ```text
//!  0 destination, source MAC    of the packet that evicted the vector
//! 12 EtherType u16              0x081b: a narrow vector; 0x081a: a narrow and a wide one
//! 14 EtherType u16              of the packet: 0x0800
//! 16 wide u16                   number of the wide buffer that is freed, if one is
//! 18 source address u32, destination address u32
//! 26 source port u16, destination port u16
//! 30 start u32                  the low 32 bits of the switch's clock, ns
//! 34 count u16
//! 36 protocol u8
//! 37 narrow words               4 of u32
//! 53 wide words                 24 of u32, only with EtherType 0x081a
//!    the packet                 from its IPv4 header on
//! ```
//!
//! The words of a vector are the first `narrow` of the narrow words, then the wide words, up to
//! `count`. What a word is depends on how the program was compiled ([`FrameWords`]).

use strata_wire::{AddressFamily, Endpoint, clamped, exact};
use zerocopy::FromBytes as _;

use super::layout::FrameHeader;
use super::{FormatError, PAST, start_ns_max};
use crate::key::Key;
use crate::tuple::{BASIC_SIZE_MAX, Basic, Column, Columns, Full, Tuple as _};
use crate::vector::{Reason, Vector};

/// EtherType of a frame with a narrow and a wide vector.
const FULL: u16 = 0x081a;
/// EtherType of a frame with a narrow vector.
const SHORT: u16 = 0x081b;
/// The program takes only packets with this EtherType.
const IPV4: u16 = 0x0800;
const ETHER_TYPE_AT: usize = 12;
const HEADER_LEN: usize = size_of::<FrameHeader>();
/// Words of the narrow vector in a frame.
const NARROW_WORDS: usize = 4;
/// Words of the wide one.
const WIDE_WORDS: usize = 24;
/// Maximum number of packets of a vector.
pub const PACKETS_MAX: usize = NARROW_WORDS + WIDE_WORDS;
/// A vector may begin this much after its frame was captured, since clocks differ a little.
const SLACK_NS: u64 = 10_000_000;

/// What the switch program writes into the word of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameWords {
    /// The paper's tuple of 32 bits (section 6.2). A flow's narrow buffer has all 4 words (Table 2).
    Paper,
    /// The total length of the IPv4 header, as the program is published, with constants of a
    /// simulation: the narrow buffer has 2 of the 4 words. Packets have no times, and no table
    /// of this program sets the start.
    Lengths,
}

impl FrameWords {
    /// What the vectors say of packets. Of [`FrameWords::Lengths`], times are those of the capture.
    #[must_use]
    pub const fn columns(self) -> Columns {
        match self {
            Self::Paper => Basic::COLUMNS,
            Self::Lengths => Columns::of(&[Column::Time, Column::Size]),
        }
    }

    /// Packets in the narrow buffer of a flow.
    const fn narrow(self) -> usize {
        match self {
            Self::Paper => NARROW_WORDS,
            Self::Lengths => 2,
        }
    }

    fn tuple(self, word: u32) -> Full {
        match self {
            Self::Paper => Full {
                // 20 bits of us.
                delta_ns: exact(Basic(word).delta_ns()),
                size: exact(Basic(word).size()),
                high_queue: u8::from(Basic(word).high_queue()),
                ..Full::default()
            },
            Self::Lengths => Full {
                size: clamped(word),
                ..Full::default()
            },
        }
    }

    /// Whether the size in a word may have been larger.
    fn saturates(self, word: u32) -> bool {
        match self {
            Self::Paper => Basic(word).size() == BASIC_SIZE_MAX,
            Self::Lengths => word > u32::from(u16::MAX),
        }
    }
}

/// Reads the vector in a frame that was captured at this time (ns since 1970) into `tuples`, whose
/// contents are replaced. `None` for other frames. The start is the latest time with its low 32
/// bits that is at most 10 ms after the capture, so it is right if the clock of the switch is
/// synchronised with the one of the capture, and if the vector left the cache within 4.28 s.
///
/// # Errors
///
/// If the frame is cut, is not of an IPv4 packet, has no packets or more than fit, or its times are
/// before 1970 or past 63 bits.
pub fn parse<'a>(
    frame: &[u8],
    captured_ns: u64,
    words: FrameWords,
    tuples: &'a mut Vec<Full>,
) -> Result<Option<Vector<'a, Full>>, FormatError> {
    let ether_type = frame.get(ETHER_TYPE_AT..).and_then(<[u8]>::first_chunk);
    let most = match ether_type.map(|bytes| u16::from_be_bytes(*bytes)) {
        Some(SHORT) => words.narrow(),
        Some(FULL) => words.narrow().wrapping_add(WIDE_WORDS),
        _ => return Ok(None),
    };
    let wrong = |what, offset| FormatError::new(what, offset, frame.len());
    let (header, rest) = FrameHeader::read_from_prefix(frame)
        .map_err(|_| wrong("a truncated header", frame.len()))?;
    if header.real_ether_type.get() != IPV4 {
        return Err(wrong("a packet that is not IPv4", 14));
    }
    let count = usize::from(header.count.get());
    if count == 0 || count > most {
        return Err(wrong("a number of packets that the frame cannot have", 34));
    }
    let start_ns = match words {
        FrameWords::Paper => started(header.start.get(), captured_ns),
        FrameWords::Lengths => Some(captured_ns),
    };
    let start_ns = start_ns.ok_or_else(|| wrong("a start time before 1970", 30))?;
    if start_ns > start_ns_max(Basic::DELTA_MAX_NS) {
        return Err(wrong(PAST, 30));
    }
    tuples.clear();
    let mut saturated = false;
    let narrow = count.min(words.narrow());
    let wide = NARROW_WORDS..NARROW_WORDS.wrapping_add(count.wrapping_sub(narrow));
    for number in (0..narrow).chain(wide) {
        let bytes = rest.get(number.wrapping_mul(4)..);
        let Some(bytes) = bytes.and_then(<[u8]>::first_chunk) else {
            let missing = HEADER_LEN.wrapping_add(number.wrapping_mul(4));
            return Err(wrong("truncated words", missing.min(frame.len())));
        };
        let word = u32::from_be_bytes(*bytes);
        saturated |= words.saturates(word);
        tuples.push(words.tuple(word));
    }
    let end = |address: u32, port| Endpoint {
        address: u128::from(address),
        port,
    };
    Ok(Some(Vector {
        key: Key::new(
            AddressFamily::Ipv4,
            header.protocol,
            end(header.source.get(), header.source_port.get()),
            end(header.destination.get(), header.destination_port.get()),
            0,
        ),
        start_ns,
        pieces: [tuples, &[]],
        reason: Reason::Unknown,
        saturated,
        slot: 0,
    }))
}

/// The latest time with these low 32 bits that is at most [`SLACK_NS`] after this one; `None` if it
/// is before 1970.
fn started(low: u32, captured_ns: u64) -> Option<u64> {
    let latest = captured_ns.checked_add(SLACK_NS)?;
    let before = exact::<u32>(latest & u64::from(u32::MAX)).wrapping_sub(low);
    latest.checked_sub(before.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_within_the_last_seconds() {
        let captured = 5 << 32 | 1_000_000_000;
        assert_eq!(started(999_999_999, captured), Some(captured - 1));
        // A little ahead of the capture's clock, and just too much of it.
        assert_eq!(started(1_010_000_000, captured), Some(captured + SLACK_NS));
        let (ahead, earlier) = (1_010_000_001, captured + SLACK_NS + 1 - (1 << 32));
        assert_eq!(started(ahead, captured), Some(earlier));
        // Its low bits were larger: before they wrapped.
        let low = u32::MAX - 4;
        assert_eq!(started(low, captured), Some(captured - 1_000_000_005));
        assert_eq!(started(1_010_000_001, 1_000_000_000), None);
    }
}
