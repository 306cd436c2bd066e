//! The wire between the data plane and the disks (TitanLog §V): both roles.
//!
//! ```text
//! switch                                            relay
//! Worker -> BlockSink -> Link  == RDMA WRITEs ==>   memory -> RelayWriters -> files
//!                         |    <-- ACK, NAK ----     |
//!                         +---- control, TCP --------+
//! ```
//!
//! - [`Link`]: the switch's end: packets to segments to RDMA messages, block by
//!   block; says when a block is full, connects again by itself;
//! - [`Relay`]: memory that switches write into and that goes to disk when full;
//! - [`control`]: the messages between the two, over TCP or TLS; [`secret`]: how the two
//!   prove to each other that they know one;
//! - transports: [`udp`] sockets, [`raw`] frames, [`shared`] memory, and with the
//!   feature `verbs` a NIC of the operating system.
//!
//! What a NIC would do is done in software by [`strata_rdma::Responder`] behind a
//! UDP socket; the blocks, their writers and the protocol know nothing of it.
#![deny(unsafe_code)]

pub mod control;
mod error;
mod handover;
pub mod icrc;
mod link;
mod memory;
pub mod raw;
mod relay;
mod run;
pub mod secret;
pub mod shared;
mod socket;
pub mod tls;
pub mod udp;
#[cfg(feature = "verbs")]
pub mod verbs;

pub use error::RelayError;
pub use handover::MemoryFrom;
pub use link::{Link, LinkOptions, LinkReport, Port, Transport, WrapPort};
pub use relay::{BoundRelay, Relay, RelayCounters, RelayOptions, Totals};

/// The TCP port of the relay's control protocol by default: the number that RoCEv2
/// has on UDP.
pub const CONTROL_PORT: u16 = strata_wire::roce::UDP_PORT;
