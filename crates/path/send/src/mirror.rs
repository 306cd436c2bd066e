//! Copies of packets, sent on while they are recorded.

use std::io;

use strata_wire::Counters;

use super::socket::PacketSocket;
use super::{SendError, opened};

/// Sends copies of packets out of an interface, as a switch's mirror port does. What the interface
/// does not take at once is lost, and counted: a recording never waits.
#[derive(Debug)]
pub struct Mirror {
    socket: PacketSocket,
    sent: Counters,
    lost: Counters,
}

impl Mirror {
    /// Maximum number of packets per [`Mirror::send`].
    pub const BATCH: usize = PacketSocket::BATCH;

    /// Opens an interface to send out of. Nothing is opened later.
    ///
    /// # Errors
    /// [`SendError`]: there is no such interface, it is down, or this is not permitted.
    pub fn open(interface: &str) -> Result<Self, SendError> {
        let (socket, _) = opened(interface)?;
        Ok(Self {
            socket,
            sent: Counters::default(),
            lost: Counters::default(),
        })
    }

    /// Sends frames in order, [`Mirror::BATCH`] at most; the rest is skipped.
    pub fn send(&mut self, frames: &[&[u8]]) {
        let mut left = &frames[..frames.len().min(Self::BATCH)];
        while !left.is_empty() {
            let (count, counters) = match self.socket.try_send(left) {
                Ok(sent) => (sent, &mut self.sent),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // Longer than the interface carries, such as what receive offload merged: those
                // after may fit.
                Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => (1, &mut self.lost),
                // Its queue is full, or it is gone: the same goes for all that are left.
                Err(_) => (left.len(), &mut self.lost),
            };
            for frame in &left[..count] {
                counters.add(frame.len() as u64);
            }
            left = &left[count..];
        }
    }

    /// What the interface has taken so far.
    #[must_use]
    pub fn sent(&self) -> Counters {
        self.sent
    }

    /// What it has not taken.
    #[must_use]
    pub fn lost(&self) -> Counters {
        self.lost
    }
}
