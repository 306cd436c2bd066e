//! RDMA without I/O: bytes and the time go in, packets and events come out.
//!
//! - [`Requester`]: writes and adds in another machine's memory; numbers packets,
//!   takes acknowledgements, and recovers from loss or counts it;
//! - [`Responder`]: memory regions and queue pairs; does what an RDMA NIC does
//!   with a request, and refuses what one refuses;
//! - [`segment`]: the form in which logged packets are written into remote blocks,
//!   and how they are found there again;
//! - [`PacketBatch`]: packets on their way out.
//!
//! Packets here begin with their BTH and end with room for the ICRC: only who
//! knows the IP header can put that there ([`strata_wire::roce::icrc`]).
//!
//! Uses `wire` alone. Transports, and the protocol by which both ends find each
//! other, are `relay`'s.
#![forbid(unsafe_code)]

mod batch;
mod psn;
mod requester;
mod responder;
pub mod segment;

pub use batch::PacketBatch;
pub use psn::Psn;
pub use requester::{
    Event, Failure, OnLoss, PostError, Requester, RequesterCounters, RequesterOptions,
};
pub use responder::{
    Access, Dropped, Memory, QueuePair, QueuePairOptions, QueuePairState, Refused, Region, Replies,
    Responder, ResponderCounters,
};
