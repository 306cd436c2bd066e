//! The relay's side: one switch at the relay, from its welcome until all its data is on disk.
//!
//! [`Entrance`] handles what comes before a session. In a session, messages of the switch and
//! reports of writers go in; [`Action`]s come out, to be done in order. The state of memory is
//! queried ([`Arrivals`]), since a responder or a NIC writes there by itself.

mod entrance;
mod session;

use strata_blocks::RelayedHeader;

use crate::protocol::{End, Message};

pub use entrance::{Beginning, Entrance, Gate};
pub use session::{Session, check_numbers};

/// The state of the memory that a switch writes into.
pub trait Arrivals {
    /// Whether every packet before this sequence number (PSN) has been seen.
    fn has_arrived(&self, end_psn: u32) -> bool;
    /// How often the receive queue was emptied.
    fn emptied(&self) -> u64;
    /// Whether everything received by the time of this count is in memory.
    fn has_taken_all(&self, emptied: u64) -> bool;
    /// Bytes of the block with this number up to its last segment; `None` if a writer has it.
    fn used(&self, place: Place, key: u32, number: u64) -> Option<usize>;
}

/// A block of the relay's memory by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The block's index among those of the switch.
    pub index: usize,
    /// Whether no writer has the block; the responder's blocks track this themselves.
    pub is_free: bool,
}

/// What to do, in this order.
#[derive(Debug)]
pub enum Action {
    /// Send a message to the switch.
    Send(Message),
    /// Store the worker's progress on disk.
    Checkpoint {
        /// The sequence number of the worker's next packet.
        next_seq: u64,
        /// Every packet before this one is on disk.
        durable_seq: u64,
        /// Packets and bytes that the worker has seen.
        seen: (u64, u64),
    },
    /// Give the writers definitions; reported by [`Session::written`] once they are durable.
    Define(Define),
    /// Give the writers a block; reported likewise. The definitions that its packets refer to are durable.
    Write(BlockWrite),
    /// No more blocks will come. Closes the recording if the switch has sent its end.
    End(Option<Box<End>>),
}

/// Definitions for a writer.
#[derive(Debug)]
pub struct Define {
    /// Their job; it is done at once if there are no definitions.
    pub job: u64,
    /// Definitions to write before the block, as sent by the switch.
    pub definitions: Vec<u8>,
    /// Bytes of the block that follows them, in the same file; 0 at the end.
    pub block_bytes: u64,
}

/// A block to write.
#[derive(Clone, Copy, Debug)]
pub struct BlockWrite {
    /// Its job.
    pub job: u64,
    /// Its place.
    pub place: Place,
    /// Its header.
    pub header: RelayedHeader,
}

/// What a session has done since the last query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Blocks on disk.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Blocks salvaged.
    pub salvaged: u64,
}

/// The layout of a session's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Bytes of a block.
    pub bytes: usize,
    /// The number of blocks.
    pub count: usize,
}

impl Blocks {
    /// The number of blocks in a log that a switch may not know to be stored: announced ones, and as many again
    /// that were salvaged.
    #[must_use]
    pub fn unconfirmed_max(&self) -> usize {
        self.count.saturating_mul(2)
    }
}

/// The parameters of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// The layout of its blocks.
    pub blocks: Blocks,
    /// The recording's number in the log.
    pub recording: u32,
    /// The switch's worker.
    pub worker: u16,
    /// Number of the first packet that it will send.
    pub first_seq: u64,
}
