//! Streams over TCP, with mutual TLS or without.
//!
//! ```text
//! server   the role that serves a directory of streams: admission, a thread for each connection
//! serving  one connection: appends, or reads
//! client   the other end
//! hosted   stripes of other machines' directories that a server has: their pages are asked for
//! link     how they are reached from there
//! peer     a connection of either end: messages in and out, each in a bounded time
//! ```

mod client;
mod hosted;
mod link;
mod peer;
mod server;
mod serving;

pub use client::{StreamClient, StreamEvent};
pub use hosted::{HostedSession, HostedStripe};
pub(super) use link::TcpStripe;
pub use peer::PeerError;
pub use server::{HostedSpec, StreamServeOutcome, StreamServeSpec};

/// The TCP port of a server of streams, if none is given.
pub const STREAM_PORT: u16 = 4793;
