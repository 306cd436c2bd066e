//! RDMA without I/O: bytes and the time go in, packets and events come out.
//!
//! - [`Requester`]: writes and adds in another machine's memory; numbers packets,
//!   takes acknowledgements, and recovers from loss or counts it;
//! - [`Responder`]: memory regions and queue pairs; does what an RDMA NIC does
//!   with a request, and refuses what one refuses;
//! - [`PacketBatch`]: packets on their way out.
//!
//! Packets here begin with their BTH and end with room for the ICRC: only who
//! knows the IP header can put that there ([`strata_wire::roce::icrc`]).
//!
//! Uses `wire` alone. Transports are `roce`'s; the protocol by which both ends find each other
//! is who uses it.
#![forbid(unsafe_code)]

mod batch;
mod psn;
mod requester;
mod responder;

pub use batch::PacketBatch;
pub use psn::Psn;
pub use requester::{
    Event, Failure, OnLoss, PostError, Requester, RequesterCounters, RequesterOptions,
};
pub use responder::{
    Access, Dropped, Memory, QueuePair, QueuePairOptions, QueuePairState, Refused, Region, Replies,
    Responder, ResponderCounters,
};
