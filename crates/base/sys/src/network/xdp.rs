//! A receiving AF_XDP socket: frames of memory that go back and forth between the kernel and us.
//!
//! ```text
//! memory:  | frame 4096 | frame 4096 | ...        ours from receiving to giving back
//! rings:   fill, of frames that the kernel may use; receive, of packets
//! ```
//!
//! Source: linux/if_xdp.h and Documentation/networking/af_xdp.rst.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::net::SocketType;

use crate::memory::mapping::Mapping;
use crate::network::socket::{bind, get_option, open, set_number, set_option};
use crate::pause;

/// Bytes of a frame.
pub const FRAME_BYTES: usize = 4096;

/// A received packet: where it is in the memory, within one frame.
#[derive(Clone, Copy, Debug)]
struct Packet {
    at: usize,
    len: usize,
}

/// The socket of one queue.
#[derive(Debug)]
pub struct XdpSocket {
    socket: OwnedFd,
    frames: Mapping,
    fill: Ring,
    receive: Ring,
    /// Packets received since [`XdpSocket::release`]: their frames are ours.
    packets: Vec<Packet>,
    /// The frames that are ours, to be given back.
    taken: Vec<u64>,
}

/// What the kernel has counted since the socket was made.
#[derive(Clone, Copy, Debug)]
pub struct XdpCounts {
    /// Packets that [`XdpSocket::receive`] has returned; counted in 32 bits.
    pub received: u32,
    /// Packets for which there was no frame, or no place in the ring.
    pub dropped: u64,
    /// How often the ring was full.
    pub full: u64,
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
        let len = descriptors_at + entries as usize * entry_bytes;
        Ok(Self {
            memory: Mapping::of(fd, len, page, true)?,
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

    /// Where the descriptor of a position is.
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

impl XdpSocket {
    /// A socket with this many frames, a power of two. It is not bound to a queue yet.
    ///
    /// # Errors
    ///
    /// Which call failed, and what the operating system says.
    ///
    /// # Panics
    ///
    /// If `frames` is not a power of two.
    pub fn open(frames: u32) -> Result<Self, (&'static str, io::Error)> {
        let fail = |call: &'static str| move |error| (call, error);
        assert!(frames.is_power_of_two(), "rings have a power of two places");
        let socket = open(libc::AF_XDP, SocketType::RAW).map_err(fail("AF_XDP"))?;
        let fd = socket.as_fd();
        let count = frames as usize;
        let memory = Mapping::anonymous(count * FRAME_BYTES).map_err(fail("mmap"))?;
        let register = libc::xdp_umem_reg_v1 {
            addr: memory.start().as_ptr().addr() as u64,
            len: memory.len() as u64,
            chunk_size: u32::try_from(FRAME_BYTES).expect("a page has few bytes"),
            headroom: 0,
        };
        let level = libc::SOL_XDP;
        // SAFETY: our own memory with this length, to which no references exist except to frames
        // that the kernel has handed over; the kernel holds the pages as long as it uses them.
        unsafe { set_option(fd, level, libc::XDP_UMEM_REG, &register) }
            .map_err(fail("XDP_UMEM_REG"))?;
        const SMALLEST: u32 = 64;
        for (name, entries) in [
            (libc::XDP_UMEM_FILL_RING, frames),
            (libc::XDP_UMEM_COMPLETION_RING, SMALLEST),
            (libc::XDP_RX_RING, frames),
        ] {
            set_number(fd, level, name, entries).map_err(fail("AF_XDP rings"))?;
        }
        // SAFETY: a structure of integers, which the kernel fills.
        let offsets: io::Result<libc::xdp_mmap_offsets> =
            unsafe { get_option(fd, level, libc::XDP_MMAP_OFFSETS) };
        let offsets = offsets.map_err(fail("XDP_MMAP_OFFSETS"))?;
        let fill_page = i64::try_from(libc::XDP_UMEM_PGOFF_FILL_RING).expect("an offset");
        let fill = Ring::map(fd, offsets.fr, fill_page, frames, 8).map_err(fail("mmap"))?;
        let receive = Ring::map(fd, offsets.rx, 0, frames, 16).map_err(fail("mmap"))?;
        let mut opened = Self {
            socket,
            frames: memory,
            fill,
            receive,
            packets: Vec::new(),
            taken: (0..count).map(|at| (at * FRAME_BYTES) as u64).collect(),
        };
        opened.release();
        Ok(opened)
    }

    /// Binds to a queue of an interface: the driver writes directly into our memory if it can, else
    /// the kernel copies. Returns whether it can.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn bind(&self, ifindex: u32, queue: u32) -> io::Result<bool> {
        /// How long a queue may take to become free after its socket was closed.
        const RELEASE_MAX: Duration = Duration::from_secs(2);
        let family = u16::try_from(libc::AF_XDP).map_err(io::Error::other)?;
        let address = |flags: u16| libc::sockaddr_xdp {
            sxdp_family: family,
            sxdp_flags: flags | libc::XDP_USE_NEED_WAKEUP,
            sxdp_ifindex: ifindex,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: 0,
        };
        let fd = self.socket.as_fd();
        let begun = Instant::now();
        loop {
            if bind(fd, &address(libc::XDP_ZEROCOPY)).is_ok() {
                return Ok(true);
            }
            match bind(fd, &address(libc::XDP_COPY)) {
                Ok(()) => return Ok(false),
                // The kernel releases a queue a little after its socket is closed.
                Err(error)
                    if error.kind() == io::ErrorKind::ResourceBusy
                        && begun.elapsed() < RELEASE_MAX =>
                {
                    pause::backoff(Duration::from_millis(10));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Gives the frames of received packets back to the kernel.
    pub fn release(&mut self) {
        self.packets.clear();
        let mut at = self.fill.producer().load(Ordering::Relaxed);
        // There are as many frames as places, so there is always space.
        for &frame in &self.taken {
            let place = self.fill.place(at, 8);
            self.fill.set_word(place, frame);
            at = at.wrapping_add(1);
        }
        self.taken.clear();
        // Release: the kernel sees the descriptors before their number.
        self.fill.producer().store(at, Ordering::Release);
    }

    /// Receives packets, until there are this many since [`XdpSocket::release`]; returns how many
    /// there are.
    pub fn receive(&mut self, packets_max: usize) -> usize {
        let mut at = self.receive.consumer().load(Ordering::Relaxed);
        // Acquire: descriptors and packets are visible once their number is.
        let end = self.receive.producer().load(Ordering::Acquire);
        while at != end && self.packets.len() < packets_max {
            let place = self.receive.place(at, 16);
            let address = self.receive.word(place);
            let len = self.receive.word(place + 8) & u64::from(u32::MAX);
            at = at.wrapping_add(1);
            let frame_bytes = FRAME_BYTES as u64;
            self.taken.push(address / frame_bytes * frame_bytes);
            // What extends beyond a frame is not a packet.
            let within = address % frame_bytes + len <= frame_bytes;
            if within && address + len <= self.frames.len() as u64 {
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "both are within the memory"
                )]
                let (at, len) = (address as usize, len as usize);
                self.packets.push(Packet { at, len });
            }
        }
        // Release: the kernel may use the places, not yet the frames.
        self.receive.consumer().store(at, Ordering::Release);
        self.packets.len()
    }

    /// The share of places that hold a packet which waits for [`XdpSocket::receive`].
    #[must_use]
    pub fn fill(&self) -> f64 {
        let end = self.receive.producer().load(Ordering::Relaxed);
        let at = self.receive.consumer().load(Ordering::Relaxed);
        f64::from(end.wrapping_sub(at)) / (f64::from(self.receive.mask) + 1.0)
    }

    /// A packet received since [`XdpSocket::release`], by its number.
    ///
    /// # Panics
    ///
    /// If there is no such packet.
    #[inline]
    #[must_use]
    pub fn packet(&self, index: usize) -> &[u8] {
        let Packet { at, len } = self.packets[index];
        // SAFETY: in a frame that the kernel has handed over. It leaves it alone until `release`,
        // which takes `&mut self`: the frame is ours as long as this borrows.
        unsafe { self.frames.bytes(at, len) }
    }

    /// The bytes before a packet, where a program may have left some; fewer than `len` if the frame
    /// has fewer.
    ///
    /// # Panics
    ///
    /// If there is no such packet.
    #[inline]
    #[must_use]
    pub fn before_packet(&self, index: usize, len: usize) -> &[u8] {
        let at = self.packets[index].at;
        let len = len.min(at % FRAME_BYTES);
        // SAFETY: as for the packet, in whose frame they are.
        unsafe { self.frames.bytes(at - len, len) }
    }

    /// What the kernel has counted.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn counts(&self) -> io::Result<XdpCounts> {
        // SAFETY: a structure of integers, which the kernel fills.
        let found: libc::xdp_statistics =
            unsafe { get_option(self.as_fd(), libc::SOL_XDP, libc::XDP_STATISTICS) }?;
        Ok(XdpCounts {
            received: self.receive.consumer().load(Ordering::Relaxed),
            // Those that found no frame are counted in `rx_dropped`, and once more in
            // `rx_fill_ring_empty_descs`.
            dropped: found.rx_dropped + found.rx_ring_full,
            full: found.rx_ring_full,
        })
    }
}

impl AsFd for XdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
