//! Streams on disk and over TCP: a directory of them, one that is appended to, one that is read, and the role that
//! serves them ([`StreamServeSpec`]).
//!
//! ```text
//! pages.map            who owns which data page (`pool`)
//! pages                the data pages of all streams
//! pages.lock           held while pages are handed out
//! users.lock           shared by all who append
//! streams/NAME.stream  description, state and page table of a stream (`file`)
//! streams/NAME.lock    held by the process that appends to it
//! cursors/NAME.stream/ cursors that consumers have saved
//! stripes              other disks that have pages too (`stripes`; `elsewhere` is how they are reached): directories,
//!                      devices (`device`), and stripes at servers (`remote`)
//! stripe-locks/        pages.lock and users.lock of devices
//! ```
//!
//! Over TCP: `server` is one, `client` the other end, `link` how stripes at servers are reached, `peer` a connection
//! of either end, with messages in and out, each in a bounded time.
//!
//! `feed` is a stream as the output of a role: a bounded queue and a thread, with `upkeep`, which says when
//! to flush and sync. `appender` writes pages (`memory`) through the queue that block files are written through; `reader` finds
//! pages through the page table, or by their headers if no reliable appender has kept it;
//! `several` are read together; `kept` is a cursor under a name; `changes` is how it waits for more. `check` compares all of it; `footing` is whether the files are still there.

#![forbid(unsafe_code)]

mod client;
mod dir;
mod error;
mod fed;
mod feed;
mod peer;
mod server;
mod stream;

pub use client::{
    ForwardError, Forwarded, Forwarder, Forwarding, ProducerSpec, Source, StreamClient,
    StreamEvent, StreamProducer, random_id, spool,
};
pub use dir::remote::{StripeConnection, StripeLink, StripeServer, StripeTls};
pub use dir::stripes::paths_of;
pub use dir::{SavedCursor, StreamDir, StreamSpec};
pub use error::StreamError;
pub use fed::FedStream;
pub use feed::{FeedWarning, LineRecords, StreamFeed, WhenFull};
pub use peer::PeerError;
pub use server::{
    HostedSession, HostedSpec, HostedStripe, ProducerSession, RunningIntake, SharedError,
    SharedStreams, StreamIntake, StreamServeOutcome, StreamServeSpec, Turn,
};
pub use stream::appender::{Appended, StreamAppender};
pub use stream::check::{StreamCheck, check_streams};
pub use stream::reader::{Entry, StreamReader, Unread};
pub use stream::several::{ReaderPlaces, SEVERAL_MAX, SeveralFrom, SeveralReader, SeveralWarning};
pub use stream::status::StreamStatus;
pub use stream::upkeep::{Kept, Upkeep};

/// The default TCP port of a server of streams.
pub const STREAM_PORT: u16 = 4793;
