//! Vectors as bytes: the paper's form ([`paper`]), the frames of its switch ([`frame`]), our own
//! form ([`datagram`]), and what agents ask caches for ([`control`]); `docs/formats/gpv.md` has the
//! byte maps.

pub mod control;
pub mod datagram;
pub mod frame;
mod layout;
pub mod paper;

/// A start time that is refused.
const PAST: &str = "a start time past the year 2262";

/// The latest start time of a vector, ns since 1970, whose packets may be this much later: the time of each packet fits
/// into 63 bits, as queries and columns of times need it.
const fn start_ns_max(delta_ns_max: u64) -> u64 {
    i64::MAX.cast_unsigned().wrapping_sub(delta_ns_max)
}

/// Why bytes are no vector, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what} at byte {offset} of {len}")]
pub struct FormatError {
    /// What is wrong.
    pub what: &'static str,
    /// Where, from the start of what was given to be read.
    pub offset: usize,
    /// How many bytes were given.
    pub len: usize,
}

impl FormatError {
    fn new(what: &'static str, offset: usize, len: usize) -> Self {
        Self { what, offset, len }
    }
}

/// Why a vector cannot be written in a format.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotCarried {
    /// The paper's header holds an IPv4 5-tuple.
    #[error("not IPv4: the format of the *Flow paper (section 6.2) carries IPv4 only")]
    Family,
    /// The paper's header holds 8 bits of ingress port.
    #[error("ingress port {0} does not fit into 8 bits")]
    Ingress(u16),
    /// A header holds 16 bits of count.
    #[error("{0} tuples in a vector; 1 to 65,535 are allowed")]
    Count(usize),
    /// Too long for any datagram.
    #[error("a datagram with this vector alone needs {needed} bytes; at most {room} are allowed")]
    Datagram {
        /// Bytes of a datagram with this vector alone.
        needed: usize,
        /// Bytes that a datagram may have.
        room: usize,
    },
}
