//! One receive queue of an interface through an AF_XDP socket: our XDP program sends
//! packets here instead of to the host.
//!
//! ```text
//! frame:   | headroom | our metadata 16 | packet |
//! ```
//!
//! In front of each packet the program leaves its time, in TAI, and its length before it was cut.
//!
//! Source: linux/if_xdp.h and Documentation/networking/af_xdp.rst.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use strata_sys::xdp::{FRAME_BYTES, XdpSocket};
use strata_wire::exact;

use super::batch::Slot;
use super::error::LiveError;
use super::host::interface::{Device, XDP_MTU_MAX};
use super::options::LiveOptions;
use super::ring::RingCounts;
use crate::packet::BATCH_MAX;

/// What the program puts in front of a packet: time and length, 8 bytes each.
pub(super) const METADATA_BYTES: usize = 16;

/// The socket of one queue.
#[derive(Debug)]
pub(super) struct Xsk {
    socket: XdpSocket,
    last_ts_ns: u64,
    /// Packets received until they were last counted, and the kernel's number of them then.
    received: (u64, u32),
    bytes: usize,
    /// Whether the driver writes directly into our memory.
    pub(super) zero_copy: bool,
}

impl Xsk {
    /// A socket on a queue. Packets arrive once the program sends them here.
    pub(super) fn open(
        device: &Device,
        queue: u32,
        options: &LiveOptions,
    ) -> Result<Self, LiveError> {
        if device.mtu > XDP_MTU_MAX {
            return Err(LiveError::NoXdp {
                interface: device.name.clone(),
                why: format!(
                    "its MTU is {}, and AF_XDP supports at most {XDP_MTU_MAX}",
                    device.mtu
                ),
            });
        }
        let bytes = options.ring_bytes.unwrap_or(device.ring_bytes());
        let frames = (bytes / FRAME_BYTES)
            .next_power_of_two()
            .clamp(512, 1 << 16);
        let socket = XdpSocket::open(exact::<u32>(frames));
        let socket = socket.map_err(|(call, source)| device.error(call)(source))?;
        let bound = socket.bind(device.index, queue);
        let zero_copy = bound.map_err(|source| LiveError::NoXdp {
            interface: device.name.clone(),
            why: format!("queue {queue}: {source}"),
        })?;
        Ok(Self {
            socket,
            last_ts_ns: 0,
            received: (0, 0),
            bytes: frames.saturating_mul(FRAME_BYTES),
            zero_copy,
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The share of its frames that wait for us.
    pub(super) fn fill_share(&self) -> f64 {
        self.socket.fill()
    }

    /// Where the packets of the last [`Xsk::fill`] are, in the order of slots.
    pub(super) fn frames(&self) -> &XdpSocket {
        &self.socket
    }

    /// Gives the frames of the last [`Xsk::fill`] back to the kernel.
    pub(super) fn release(&mut self) {
        self.socket.release();
    }

    /// Describes the next packets; returns whether there are any. `tai_ns` is how far TAI is ahead.
    pub(super) fn fill(&mut self, interface: u16, tai_ns: u64, slots: &mut Vec<Slot>) -> bool {
        let packets = self.socket.receive(BATCH_MAX);
        for index in 0..packets {
            let len = exact::<u32>(self.socket.packet(index).len());
            let metadata = self.socket.before_packet(index, METADATA_BYTES);
            let (&[stamp, whole_len], _) = metadata.as_chunks::<8>() else {
                unreachable!("a frame has more headroom than our metadata takes");
            };
            let stamp_ns = u64::from_ne_bytes(stamp);
            let whole_len = exact::<u32>(u64::from_ne_bytes(whole_len));
            let ts_ns = stamp_ns.saturating_sub(tai_ns).max(self.last_ts_ns);
            self.last_ts_ns = ts_ns;
            slots.push(Slot {
                ts_ns,
                at: 0,
                len,
                wire_len: whole_len.max(len),
                interface,
            });
        }
        packets > 0
    }

    /// What the kernel has counted since the socket was made. To be called more often than every
    /// 2^32 packets.
    pub(super) fn counts(&mut self) -> io::Result<RingCounts> {
        let found = self.socket.counts()?;
        let (received, last) = self.received;
        let since = u64::from(found.received.wrapping_sub(last));
        let received = received.saturating_add(since);
        self.received = (received, found.received);
        Ok(RingCounts {
            received: received.saturating_add(found.dropped),
            dropped: found.dropped,
            full: found.full,
            bytes: self.bytes,
        })
    }
}
