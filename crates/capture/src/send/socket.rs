//! Sending through an AF_PACKET socket.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use super::slots::Slots;
use crate::live::sys;

#[derive(Debug)]
pub(super) struct PacketSocket {
    fd: OwnedFd,
}

impl PacketSocket {
    /// Frames for one system call at most: more did not make it faster.
    pub(super) const BATCH: usize = 64;

    pub(super) fn open(ifindex: u32) -> io::Result<Self> {
        let fd = sys::packet_socket(false)?;
        sys::bind_packet_to_send(fd.as_fd(), ifindex)?;
        // Straight to the driver, without queueing disciplines; refused where there are
        // none.
        let on: libc::c_int = 1;
        let _ = sys::set_option(fd.as_fd(), libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &on);
        Ok(Self { fd })
    }

    /// Sends frames as far as the device takes them at once; gives how many, at least one.
    pub(super) fn try_send(&self, frames: &[&[u8]]) -> io::Result<usize> {
        sys::send_many(self.fd.as_fd(), frames, libc::MSG_DONTWAIT)
    }

    /// Sends the first frame of a range of slots and those after it that are due by now;
    /// gives how many.
    pub(super) fn send(
        &self,
        slots: &Slots,
        range: Range<usize>,
        base_ns: u64,
    ) -> io::Result<usize> {
        let now_ns = sys::monotonic_ns();
        let mut frames: [&[u8]; Self::BATCH] = [&[]; Self::BATCH];
        let mut count = 0;
        for slot in range.take(Self::BATCH) {
            if count > 0 && base_ns + slots.due_ns(slot) > now_ns {
                break;
            }
            frames[count] = slots.head(slot);
            count += 1;
        }
        loop {
            match sys::send_many(self.fd.as_fd(), &frames[..count], 0) {
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
