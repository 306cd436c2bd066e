//! One receive queue of an interface through an AF_XDP socket: our XDP program sends
//! packets here instead of to the host.
//!
//! ```text
//! memory:  | frame 4096 | frame 4096 | ...        ours from receiving to giving back
//! frame:   | headroom | our metadata 16 | packet |
//! rings:   fill, of frames that the kernel may use; receive, of packets
//! ```
//!
//! In front of each packet the program leaves its time, by the clock TAI, and its
//! length before it was cut.
//!
//! Source: linux/if_xdp.h and Documentation/networking/af_xdp.rst.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use strata_wire::exact;

use super::error::LiveError;
use super::interface::Device;
use super::ring::RingCounts;
use super::sys::{self, Mapping};
use super::{LiveOptions, Slot};
use crate::batch::BATCH_MAX;

const FRAME_BYTES: usize = 4096;
/// What the program puts in front of a packet: time and length, 8 bytes each.
pub(super) const METADATA_BYTES: usize = 16;
/// `XDP_PACKET_HEADROOM` of the kernel, and its `skb_shared_info` behind the data.
const OVERHEAD_BYTES: u32 = 256 + 320;
/// A frame holds no longer packets: bytes of the interface's MTU.
pub(super) const MTU_MAX: u32 = 4096 - OVERHEAD_BYTES - 18;

/// The socket of one queue.
#[derive(Debug)]
pub(super) struct Xsk {
    socket: OwnedFd,
    frames: Mapping,
    fill: Ring,
    receive: Ring,
    /// Frames of the last [`Xsk::fill`], to be given back.
    taken: Vec<u64>,
    last_ts_ns: u64,
    /// Whether the driver writes into our memory itself.
    pub(super) zero_copy: bool,
}

/// A ring of descriptors between the kernel and us.
#[derive(Debug)]
struct Ring {
    memory: Mapping,
    producer_at: usize,
    consumer_at: usize,
    descriptors_at: usize,
    mask: u32,
}

impl Ring {
    fn map(
        fd: BorrowedFd<'_>,
        offsets: libc::xdp_ring_offset,
        page: i64,
        entries: u32,
        entry_bytes: usize,
    ) -> io::Result<Self> {
        let place = |at: u64| usize::try_from(at).map_err(io::Error::other);
        let descriptors_at = place(offsets.desc)?;
        Ok(Self {
            memory: Mapping::of(fd, descriptors_at + entries as usize * entry_bytes, page)?,
            producer_at: place(offsets.producer)?,
            consumer_at: place(offsets.consumer)?,
            descriptors_at,
            mask: entries - 1,
        })
    }

    fn producer(&self) -> &AtomicU32 {
        self.memory.word(self.producer_at)
    }

    fn consumer(&self) -> &AtomicU32 {
        self.memory.word(self.consumer_at)
    }

    /// Where the descriptor of a position stands.
    fn place(&self, position: u32, bytes: usize) -> usize {
        self.descriptors_at + (position & self.mask) as usize * bytes
    }

    fn word(&self, at: usize) -> u64 {
        let half = |at: usize| u64::from(self.memory.word(at).load(Ordering::Relaxed));
        half(at) | half(at + 4) << 32
    }

    #[allow(clippy::cast_possible_truncation)]
    fn set_word(&self, at: usize, value: u64) {
        self.memory.word(at).store(value as u32, Ordering::Relaxed);
        let high = (value >> 32) as u32;
        self.memory.word(at + 4).store(high, Ordering::Relaxed);
    }
}

impl Xsk {
    /// A socket on a queue. Packets come once the program sends them here.
    pub(super) fn open(
        device: &Device,
        queue: u32,
        options: &LiveOptions,
    ) -> Result<Self, LiveError> {
        if device.mtu > MTU_MAX {
            return Err(LiveError::NoXdp {
                interface: device.name.clone(),
                why: format!("its MTU is {}, AF_XDP takes {MTU_MAX} at most", device.mtu),
            });
        }
        let fail = |call: &'static str| device.error(call);
        let bytes = options.ring_bytes.unwrap_or(device.ring_bytes());
        // Both rings have a power of two entries, and as many frames.
        let entries = (bytes / FRAME_BYTES)
            .next_power_of_two()
            .clamp(512, 1 << 16);
        let frames = Mapping::anonymous(entries * FRAME_BYTES).map_err(fail("mmap"))?;
        let socket = sys::xdp_socket().map_err(fail("AF_XDP"))?;
        let fd = socket.as_fd();
        let register = libc::xdp_umem_reg_v1 {
            addr: frames.address(),
            len: frames.len() as u64,
            chunk_size: exact::<u32>(FRAME_BYTES),
            headroom: 0,
        };
        let level = libc::SOL_XDP;
        sys::set_option(fd, level, libc::XDP_UMEM_REG, &register).map_err(fail("XDP_UMEM_REG"))?;
        let count = exact::<u32>(entries);
        let smallest = 64_u32;
        for (name, entries) in [
            (libc::XDP_UMEM_FILL_RING, count),
            (libc::XDP_UMEM_COMPLETION_RING, smallest),
            (libc::XDP_RX_RING, count),
        ] {
            sys::set_option(fd, level, name, &entries).map_err(fail("AF_XDP rings"))?;
        }
        let zero = libc::xdp_ring_offset {
            producer: 0,
            consumer: 0,
            desc: 0,
            flags: 0,
        };
        let empty = libc::xdp_mmap_offsets {
            rx: zero,
            tx: zero,
            fr: zero,
            cr: zero,
        };
        let offsets = sys::get_option(fd, level, libc::XDP_MMAP_OFFSETS, empty)
            .map_err(fail("XDP_MMAP_OFFSETS"))?;
        let fill_page = exact::<i64>(libc::XDP_UMEM_PGOFF_FILL_RING);
        let fill = Ring::map(fd, offsets.fr, fill_page, count, 8).map_err(fail("mmap"))?;
        let receive = Ring::map(fd, offsets.rx, 0, count, 16).map_err(fail("mmap"))?;
        let zero_copy = bind(fd, device.index, queue).map_err(|source| LiveError::NoXdp {
            interface: device.name.clone(),
            why: format!("queue {queue}: {source}"),
        })?;
        let mut xsk = Self {
            socket,
            frames,
            fill,
            receive,
            taken: (0..entries)
                .map(|frame| (frame * FRAME_BYTES) as u64)
                .collect(),
            last_ts_ns: 0,
            zero_copy,
        };
        xsk.release();
        xsk.taken.reserve(BATCH_MAX);
        Ok(xsk)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The memory that the slots of the last [`Xsk::fill`] lie in.
    pub(super) fn block(&self) -> &[u8] {
        // Slots lead to frames that are ours until they are released.
        self.frames.whole()
    }

    /// Gives the frames of the last [`Xsk::fill`] back to the kernel.
    pub(super) fn release(&mut self) {
        let mut at = self.fill.producer().load(Ordering::Relaxed);
        // There are as many frames as places, so there is always room.
        for &frame in &self.taken {
            let place = self.fill.place(at, 8);
            self.fill.set_word(place, frame);
            at = at.wrapping_add(1);
        }
        self.taken.clear();
        // Release: the kernel sees the descriptors before their number.
        self.fill.producer().store(at, Ordering::Release);
    }

    /// Describes the next packets. Whether there are any. `tai_ns` is how far the
    /// clock TAI is ahead.
    pub(super) fn fill(&mut self, interface: u16, tai_ns: u64, slots: &mut Vec<Slot>) -> bool {
        let mut at = self.receive.consumer().load(Ordering::Relaxed);
        // Acquire: descriptors and packets are visible once their number is.
        let end = self.receive.producer().load(Ordering::Acquire);
        while at != end && slots.len() < BATCH_MAX {
            let place = self.receive.place(at, 16);
            let address = self.receive.word(place);
            #[allow(clippy::cast_possible_truncation)]
            let len = self.receive.word(place + 8) as u32;
            at = at.wrapping_add(1);
            self.taken
                .push(address / FRAME_BYTES as u64 * FRAME_BYTES as u64);
            let Ok(start) = u32::try_from(address) else {
                continue;
            };
            let metadata = (start as usize).saturating_sub(METADATA_BYTES);
            let block = self.frames.whole();
            let word = |at: usize| {
                let bytes = block.get(at..).and_then(<[u8]>::first_chunk::<8>);
                bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
            };
            let ts_ns = word(metadata).saturating_sub(tai_ns).max(self.last_ts_ns);
            self.last_ts_ns = ts_ns;
            slots.push(Slot {
                ts_ns,
                at: start,
                len,
                wire_len: u32::try_from(word(metadata + 8)).unwrap_or(len).max(len),
                interface,
            });
        }
        // Release: the kernel may use the places, not yet the frames.
        self.receive.consumer().store(at, Ordering::Release);
        !slots.is_empty()
    }

    /// What the kernel has counted since the socket was made.
    pub(super) fn counts(&self) -> io::Result<RingCounts> {
        let empty = libc::xdp_statistics {
            rx_dropped: 0,
            rx_invalid_descs: 0,
            tx_invalid_descs: 0,
            rx_ring_full: 0,
            rx_fill_ring_empty_descs: 0,
            tx_ring_empty_descs: 0,
        };
        let found = sys::get_option(self.fd(), libc::SOL_XDP, libc::XDP_STATISTICS, empty)?;
        let received = self.receive.consumer().load(Ordering::Relaxed);
        Ok(RingCounts {
            // 32 bits of it.
            received: received.into(),
            dropped: found.rx_dropped + found.rx_ring_full + found.rx_fill_ring_empty_descs,
            full: found.rx_ring_full,
        })
    }
}

/// How long a queue may take to become free of a socket that was closed.
const RELEASE_MAX: Duration = Duration::from_secs(2);

/// Binds to a queue: the driver writes into our memory itself if it can, else the
/// kernel copies. Says which.
fn bind(fd: BorrowedFd<'_>, ifindex: u32, queue: u32) -> io::Result<bool> {
    let address = |flags: u16| libc::sockaddr_xdp {
        sxdp_family: exact::<u16>(libc::AF_XDP),
        sxdp_flags: flags | libc::XDP_USE_NEED_WAKEUP,
        sxdp_ifindex: ifindex,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    let begun = Instant::now();
    loop {
        if sys::bind(fd, &address(libc::XDP_ZEROCOPY)).is_ok() {
            return Ok(true);
        }
        match sys::bind(fd, &address(libc::XDP_COPY)) {
            Ok(()) => return Ok(false),
            // The kernel lets go of a queue a little after its socket is closed.
            Err(error)
                if error.kind() == io::ErrorKind::ResourceBusy && begun.elapsed() < RELEASE_MAX =>
            {
                thread::sleep(Duration::from_millis(10));
            }
            Err(error) => return Err(error),
        }
    }
}
