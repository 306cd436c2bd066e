//! A server of streams, with mutual TLS or without.
//!
//! ```text
//! role        the role that serves a directory of streams: admission, a thread for each connection
//! serving     one connection: its request, and clients that append
//! tailing     clients that read one stream, or several together
//! connection  what all connections share
//! shared      a stream that several clients append to
//! intake      another way for records into streams, which a program gives to the role
//! hosted      stripes of other machines' directories that a server has: serves their pages
//! ```

mod connection;
mod hosted;
mod intake;
mod role;
mod serving;
mod shared;
mod tailing;

pub use hosted::{HostedSession, HostedStripe};
pub use intake::{RunningIntake, StreamIntake};
pub use role::{HostedSpec, StreamServeOutcome, StreamServeSpec};
pub use shared::{ProducerSession, SharedError, SharedStreams, Turn};
