//! A server of streams, with mutual TLS or without.
//!
//! ```text
//! role     the role that serves a directory of streams: admission, a thread for each connection
//! serving  one connection: appends, or reads
//! shared   a stream that several clients append to
//! kept     a cursor that the server keeps for a reader
//! hosted   stripes of other machines' directories that a server has: serves their pages
//! ```

mod hosted;
mod kept;
mod role;
mod serving;
mod shared;

pub use hosted::{HostedSession, HostedStripe};
pub use role::{HostedSpec, StreamServeOutcome, StreamServeSpec};
pub use shared::{ProducerSession, SharedError, SharedStreams, Turn};
