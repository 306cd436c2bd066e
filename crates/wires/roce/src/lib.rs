//! RoCEv2 between machines and processes: what carries the packets of [`strata_rdma`].
//!
//! - [`udp`]: kernel sockets, many packets per call;
//! - [`raw`]: our own frames through a packet socket;
//! - [`shared`]: memory mapped by both ends, where a WRITE is a copy, and [`handover`]: how a
//!   process gives such memory to another one;
//! - `verbs`, with the feature of that name: memory that a NIC writes;
//! - [`icrc`]: checksums of packets that pass through the kernel's sockets.
//!
//! [`Port`] is what a requester sends through. Nothing here knows what is in the packets, or how
//! both ends have found each other: that is up to a protocol, such as that of `relay`. Uses only
//! `rdma`, `sys` and `wire`.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

pub mod handover;
pub mod icrc;
pub mod raw;
mod run;
pub mod shared;
pub mod udp;
#[cfg(feature = "verbs")]
pub use strata_sys::verbs;

use std::io;
use std::time::Duration;

use strata_rdma::PacketBatch;
use strata_wire::roce::Packet;

/// RDMA packets to one peer: a transport.
pub trait Port: Send {
    /// Seals the packets and sends them.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    fn send(&mut self, batch: &mut PacketBatch) -> io::Result<()>;

    /// Takes the replies that have arrived, without waiting. Their ICRCs are right.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    fn receive(&mut self, take: &mut dyn FnMut(&Packet<'_>)) -> io::Result<()>;

    /// Waits this long for replies.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    fn wait(&mut self, limit: Duration) -> io::Result<()>;
}
