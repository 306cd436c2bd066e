//! What all connections of a server share.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use strata_role::{Notice, Tell};
use strata_stream::StreamName;
use strata_stream::message::{From, Message};

use super::shared::{SharedError, Turn};
use crate::StreamError;
use crate::peer::{Peer, PeerError, Result};

/// Between looks at what came and whether to stop, while nothing happens.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What all connections of a server did.
pub(super) struct Served {
    pub(super) appended: AtomicU64,
    pub(super) read: AtomicU64,
    pub(super) tell: Tell,
}

impl Served {
    pub(super) fn new(tell: Tell) -> Self {
        Self {
            appended: AtomicU64::new(0),
            read: AtomicU64::new(0),
            tell,
        }
    }

    /// Says what is wrong with stripes of a stream.
    pub(super) fn warn_of(&self, turn: &mut Turn<'_>, name: &StreamName) {
        for warning in turn.take_warnings() {
            (self.tell)(&Notice::warning(format!("stream {name}: {warning}")));
        }
    }
}

/// What ends a connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    #[error(transparent)]
    Peer(#[from] PeerError),
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error(transparent)]
    Shared(#[from] SharedError),
    /// What the client asks for cannot be had; the text is for it.
    #[error("refused: {0}")]
    Refused(String),
}

/// Where a client begins to read.
#[derive(Clone)]
pub(super) enum Begin {
    At(From),
    /// At a cursor that the server keeps under this name.
    Kept(StreamName),
}

/// Refuses a client; nothing follows.
pub(super) fn refuse(peer: &mut Peer, text: &str) -> Result<()> {
    peer.put(&Message::Refused(text))?;
    peer.flush()
}

/// The text of an error for a client.
pub(super) fn said(error: &StreamError) -> String {
    match error {
        StreamError::Unknown { name, .. } => format!("no stream {name} here"),
        StreamError::InUse { name, .. } => {
            format!(
                "a process on the server's machine is appending to {name}: end it, or let it append through the server"
            )
        }
        StreamError::TooLong { .. }
        | StreamError::Lost { .. }
        | StreamError::Producers { .. }
        | StreamError::Cursors { .. }
        | StreamError::Paused { .. } => error.to_string(),
        _ => error.of_disk().unwrap_or_else(|| {
            "the stream cannot be used: see the messages of its server".to_owned()
        }),
    }
}
