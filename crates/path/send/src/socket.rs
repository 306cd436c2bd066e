//! Sending through an AF_PACKET socket.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use strata_sys::socket::{self, Destination, Message};

use super::monotonic_ns;
use super::slots::Slots;

#[derive(Debug)]
pub(super) struct PacketSocket {
    fd: OwnedFd,
}

impl PacketSocket {
    /// Maximum number of frames per system call: more was not faster.
    pub(super) const BATCH: usize = 64;

    pub(super) fn open(ifindex: u32) -> io::Result<Self> {
        let fd = socket::packet_socket(false)?;
        socket::bind_packet(fd.as_fd(), ifindex, false)?;
        // Straight to the driver, bypassing queueing disciplines; refused without any.
        let _ = socket::set_number(fd.as_fd(), libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1);
        Ok(Self { fd })
    }

    /// Sends as many frames as the device takes at once; returns how many, at least one.
    pub(super) fn try_send(&self, frames: &[&[u8]]) -> io::Result<usize> {
        let mut messages = [Message::default(); Self::BATCH];
        let mut count = 0;
        for (message, frame) in messages.iter_mut().zip(frames) {
            message.parts[0] = frame;
            count += 1;
        }
        self.send_many(&messages[..count], true)
    }

    fn send_many(&self, messages: &[Message<'_>], dont_wait: bool) -> io::Result<usize> {
        let to = Destination::Own;
        socket::send_many::<{ Self::BATCH }>(self.fd.as_fd(), &to, messages, dont_wait)
    }

    /// Sends the first frame of a range of slots and those after it that are due by now; returns
    /// how many.
    pub(super) fn send(
        &self,
        slots: &Slots,
        range: Range<usize>,
        base_ns: u64,
    ) -> io::Result<usize> {
        let now_ns = monotonic_ns();
        let mut frames = [Message::default(); Self::BATCH];
        let mut count = 0;
        for slot in range.take(Self::BATCH) {
            if count > 0 && base_ns + slots.due_ns(slot) > now_ns {
                break;
            }
            frames[count].parts[0] = slots.frame(slot);
            count += 1;
        }
        loop {
            match self.send_many(&frames[..count], false) {
                Ok(sent) => return Ok(sent),
                // The device's queue is full.
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::EAGAIN)) =>
                {
                    std::thread::yield_now();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(0),
                Err(error) => return Err(error),
            }
        }
    }
}
