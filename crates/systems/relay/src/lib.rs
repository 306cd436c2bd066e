//! The connection between the data plane and the disks (TitanLog §V): both roles.
//!
//! ```text
//! switch                                            relay
//! Worker -> BlockSink -> Link  == RDMA WRITEs ==>   memory -> RelayWriters -> files
//!                         |    <-- ACK, NAK ----     |
//!                         +---- control, TCP --------+
//! ```
//!
//! - [`Link`]: the switch's end: packets to segments to RDMA messages, block by
//!   block; announces full blocks, reconnects by itself;
//! - [`Relay`]: memory that switches write into and that goes to disk when full;
//! - [`protocol`]: the messages of both over TCP or TLS, and what follows from them, without
//!   I/O. How the two prove who they are is [`strata_auth`].
//!
//! RDMA packets are carried by [`strata_roce`]: UDP sockets, raw frames, shared memory, and with
//! the feature `verbs` a NIC of the operating system.
//!
//! The work of a NIC is done in software by [`strata_rdma::Responder`] behind a UDP socket; the
//! blocks, their writers and the protocol are unaware of it.
#![forbid(unsafe_code)]

mod channel;
mod error;
mod handover;
mod link;
pub mod memory;
pub mod protocol;
mod random;
mod relay;

pub use channel::Channel;
pub use error::RelayError;
pub use handover::MemoryFrom;
pub use link::{Link, LinkOptions, OnNews, OnShortage, Transport, WrapPort};
pub use protocol::switch::LinkReport;
pub use relay::{BlockTap, BoundRelay, DiskLoad, Relay, RelayCounters, RelayOptions, Totals};
#[cfg(feature = "verbs")]
pub use strata_roce::verbs::DeviceOptions;

/// The default TCP port of the relay's control protocol: the number that RoCEv2 has on UDP.
pub const CONTROL_PORT: u16 = strata_wire::roce::UDP_PORT;
