//! RDMA without I/O: bytes and the time go in, packets and events come out.
//!
//! - [`Requester`]: writes and adds in another machine's memory; numbers packets, processes
//!   acknowledgements, and recovers from loss or counts it;
//! - [`Responder`]: memory regions and queue pairs; does what an RDMA NIC does with a request, and
//!   refuses what a NIC refuses;
//! - [`PacketBatch`]: packets to be sent.
//!
//! Packets here start with their BTH and end with space for the ICRC: only code that knows the IP
//! header can compute it ([`strata_wire::roce::icrc`]).
//!
//! Uses only `wire`. Transports are in `roce`; the protocol by which both ends find each other
//! belongs to the caller.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

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
    Access, Dropped, Memory, QueuePair, QueuePairOptions, QueuePairState, Received, Refused,
    Region, Replies, Responder, ResponderCounters,
};
