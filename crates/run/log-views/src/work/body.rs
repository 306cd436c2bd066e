//! Answers that are sent as they are made. A browser that does not read for a while is let go.

use std::io::{self, Write};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Bytes, Frame};
use serde::Serialize;
use strata_control::api::Connection;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::work::Waiting;

/// Pieces that wait for the browser.
const PIECES: usize = 8;
/// Bytes of a piece.
const PIECE_BYTES: usize = 64 << 10;
/// How long the browser may take for a piece.
const STALL: Duration = Duration::from_secs(30);

/// An answer's body; the work for it ends when the browser goes.
pub struct Body {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    _waiting: Option<Waiting>,
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let piece = self.pieces.poll_recv(cx);
        piece.map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

/// Makes an answer's body on a thread that may wait.
pub struct Sink {
    pieces: mpsc::Sender<io::Result<Bytes>>,
    runtime: Handle,
    /// Ended if it does not read.
    connection: Option<Connection>,
    buffer: Vec<u8>,
}

/// A body and where it comes from. Must be called on the runtime.
pub fn body(connection: Option<Connection>, waiting: Waiting) -> (Sink, Body) {
    if let Some(connection) = &connection {
        connection.lasts();
    }
    let (sender, pieces) = mpsc::channel(PIECES);
    let sink = Sink {
        pieces: sender,
        runtime: Handle::current(),
        connection,
        buffer: Vec::with_capacity(PIECE_BYTES),
    };
    let body = Body {
        pieces,
        _waiting: Some(waiting),
    };
    (sink, body)
}

/// A body of pieces that are given as they come.
pub fn pushed() -> (mpsc::Sender<io::Result<Bytes>>, Body) {
    let (sender, pieces) = mpsc::channel(PIECES);
    let body = Body {
        pieces,
        _waiting: None,
    };
    (sender, body)
}

impl Sink {
    fn send(&self, piece: io::Result<Bytes>) -> io::Result<()> {
        let sent = timeout(STALL, self.pieces.send(piece));
        match self.runtime.block_on(sent) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(io::Error::new(
                io::ErrorKind::BrokenPipe,
                "the browser has disconnected",
            )),
            Err(_) => {
                if let Some(connection) = &self.connection {
                    connection.end();
                }
                let error = "the browser does not read";
                Err(io::Error::new(io::ErrorKind::TimedOut, error))
            }
        }
    }

    /// Sends a line of JSON at once.
    ///
    /// # Errors
    ///
    /// If the browser is gone, or does not read.
    pub fn line(&mut self, value: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.buffer, value)?;
        self.buffer.push(b'\n');
        self.flush()
    }

    /// Cuts the answer off, so that the browser does not take it for a whole one.
    pub fn fail(&mut self, error: &str) {
        self.buffer.clear();
        let _ = self.send(Err(io::Error::other(error.to_owned())));
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= PIECE_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.buffer, Vec::with_capacity(PIECE_BYTES));
        self.send(Ok(piece.into()))
    }
}
