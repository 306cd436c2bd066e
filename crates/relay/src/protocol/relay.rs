//! The relay's side: one switch at the relay, from its welcome until all it sent is on disk.
//!
//! [`Entrance`] is what comes before a session. In one, messages of the switch and reports of
//! writers go in; [`Action`]s come out, which are to be done in their order. What is in memory
//! is asked ([`Arrivals`]), since a responder or a NIC writes there by itself.

mod entrance;
mod session;

use strata_store::RelayedHeader;

use crate::protocol::{End, Message};

pub use entrance::{Beginning, Entrance, Gate};
pub use session::{Session, check_numbers};

/// What is known of the memory that a switch writes into.
pub trait Arrivals {
    /// Whether every packet before this sequence number (PSN) has been seen.
    fn has_arrived(&self, end_psn: u32) -> bool;
    /// How often nothing was left of what had come.
    fn emptied(&self) -> u64;
    /// Whether all that had come when it was emptied so often is in memory.
    fn has_taken_all(&self, emptied: u64) -> bool;
    /// Bytes of the block of this number up to its last segment; `None` if a writer has it.
    fn used(&self, place: Place, key: u32, number: u64) -> Option<usize>;
}

/// A block of the relay's memory by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which of the switch's blocks.
    pub index: usize,
    /// Whether no writer has it; the responder's blocks know that themselves.
    pub is_free: bool,
}

/// What is to be done, in this order.
#[derive(Debug)]
pub enum Action {
    /// Something is said to the switch.
    Send(Message),
    /// How far the worker was is put on disk.
    Checkpoint {
        /// The sequence number that the worker's next packet gets.
        next_seq: u64,
        /// Every packet before this one is on disk.
        durable_seq: u64,
        /// Packets and bytes that the worker has seen.
        seen: (u64, u64),
    },
    /// Something is given to the writers; each job is reported ([`Session::written`]).
    Write(Write),
    /// No more blocks will come. With what the switch has said at its end, the recording is
    /// closed.
    End(Option<Box<End>>),
}

/// What is written.
#[derive(Debug)]
pub struct Write {
    /// The job of the definitions; if there is nothing to define, it is done.
    pub job: u64,
    /// What is defined before the block, as the switch has said it.
    pub definitions: Vec<u8>,
    /// The block; none at the end.
    pub block: Option<BlockWrite>,
}

/// A block that is written.
#[derive(Clone, Copy, Debug)]
pub struct BlockWrite {
    /// Its job.
    pub job: u64,
    /// Where it is.
    pub place: Place,
    /// What stands before it.
    pub header: RelayedHeader,
}

/// What a session has done since it was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Blocks on disk.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Blocks that were salvaged.
    pub salvaged: u64,
}

/// How blocks of a session are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Bytes of one.
    pub bytes: usize,
    /// How many there are.
    pub count: usize,
}

/// Which session it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// How its blocks are.
    pub blocks: Blocks,
    /// The recording's number in the log.
    pub recording: u32,
    /// The switch's worker.
    pub worker: u16,
}
