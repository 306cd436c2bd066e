//! Headers as datagrams and back. Each datagram can be read alone: what a record is a difference to
//! was in the same datagram. So a datagram that is lost takes its own packets with it, no others.

mod code;
mod flow;
mod head;
mod kind;
mod model;
mod other;
mod plain;
mod reader;
mod record;
mod writer;

pub use reader::HeaderReader;
pub use writer::HeaderWriter;

/// Why a packet was exported, and what it stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Label {
    /// The policy that demanded it; 0 if none did.
    pub policy: u16,
    /// Its class.
    pub class: u8,
    /// How many packets it stands for: 1 if all were taken, 10 if one in ten was.
    pub one_in: u32,
}

impl Default for Label {
    fn default() -> Self {
        Self {
            policy: 0,
            class: 0,
            one_in: 1,
        }
    }
}

/// One packet's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header<'a> {
    /// When it was captured, ns since 1970.
    pub ts_ns: u64,
    /// Bytes of the whole packet on the wire.
    pub wire_len: u32,
    /// The packet's first bytes: as many as are to be exported, whatever they are.
    pub bytes: &'a [u8],
    /// Why, and what for.
    pub label: Label,
}

/// A header that no datagram of this size holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "a header of {len} bytes does not fit into a datagram of {room}: export fewer bytes of it, or raise the MTU"
)]
pub struct TooLong {
    /// Bytes of the header.
    pub len: usize,
    /// Bytes that a datagram may have.
    pub room: usize,
}
