//! Streams over TCP, with mutual TLS or without.
//!
//! ```text
//! server   the role that serves a directory of streams: admission, a thread for each connection
//! serving  one connection: appends, or reads
//! client   the other end
//! peer     a connection of either end: messages in and out, each in a bounded time
//! ```

mod client;
mod peer;
mod server;
mod serving;

pub use client::{StreamClient, StreamEvent};
pub use peer::PeerError;
pub use server::{StreamServeOutcome, StreamServeSpec};
