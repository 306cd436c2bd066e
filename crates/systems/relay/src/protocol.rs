//! The control protocol of switch and relay: the messages of both, and what follows from them.
//!
//! - [`Message`]: with [`VERSION`] in every header; [`Decoder`]: from bytes to messages;
//! - [`switch`]: the switch's side, from a worker's blocks to messages and RDMA packets;
//! - [`relay`]: the relay's side, from messages to blocks written and confirmed.
//!
//! Nothing here does I/O, reads a clock, waits or starts a thread: messages, packets and the time
//! go in; messages, packets and actions come out. Time is ns since any moment, the same for all
//! calls of one machine. So both ends run in a simulator (`tests/simulation.rs`), and `link` and
//! `relay` of this crate only connect them to sockets, memory and disks.

mod codec;
mod message;
mod proof;
pub mod relay;
pub mod switch;

pub use codec::{Decoder, HEADER_LEN};
pub use message::{
    BLOCK_BYTES, BLOCK_UNIT, BLOCKS, BODY_LEN_MAX, Begin, BlockFull, BlockStored, Challenge, End,
    FIRST_LEN_MAX, Hello, HelloPath, Message, Progress, Shortage, Stored, VERSION, Welcome,
    WelcomePath,
};

/// Nanoseconds of a second.
pub(crate) const SECOND_NS: u64 = 1_000_000_000;
/// Nanoseconds of a millisecond.
pub(crate) const MS_NS: u64 = 1_000_000;
