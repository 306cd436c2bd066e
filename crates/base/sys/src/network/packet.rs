//! The memory of a TPACKET_V3 ring, in blocks that go back and forth between the kernel and us.
//!
//! Source: linux/if_packet.h and Documentation/networking/packet_mmap.rst.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::memory::mapping::Mapping;
use crate::network::socket::{get_option, set_number, set_option};

/// `block_status` in `struct tpacket_block_desc`: whose block it is.
const STATUS_AT: usize = 8;

/// The request to the kernel.
#[derive(Clone, Copy, Debug)]
pub struct RingLayout {
    /// Blocks.
    pub blocks: usize,
    /// Bytes of a block: a power of two, and whole pages.
    pub block_bytes: usize,
    /// When the kernel hands over a block that is not full.
    pub timeout: Duration,
}

/// What the kernel has counted since it was last asked.
#[derive(Clone, Copy, Debug)]
pub struct PacketCounts {
    /// Packets, including those dropped.
    pub packets: u32,
    /// Packets for which there was no space.
    pub drops: u32,
    /// How often the ring was full.
    pub full: u32,
}

/// The ring of a packet socket. A block is readable between [`PacketRing::take`] and
/// [`PacketRing::give_back`]; the status word in each says whose it is.
#[derive(Debug)]
pub struct PacketRing {
    memory: Mapping,
    block_bytes: usize,
    /// The block that is ours, or will be next.
    index: usize,
    ours: bool,
}

impl PacketRing {
    /// Where the bytes that are ours start in a block while we have it: after the status.
    pub const BODY_AT: usize = STATUS_AT + 4;

    /// Makes a ring for a packet socket that has none.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn map(socket: BorrowedFd<'_>, layout: &RingLayout) -> io::Result<Self> {
        // `tpacket_versions` in linux/if_packet.h.
        const TPACKET_V3: u32 = 2;
        // The kernel asks for frames, though packets in TPACKET_V3 blocks take the space they need.
        const FRAME_BYTES: usize = 2048;
        let RingLayout {
            blocks,
            block_bytes,
            timeout,
        } = *layout;
        set_number(socket, libc::SOL_PACKET, libc::PACKET_VERSION, TPACKET_V3)?;
        let narrow = |number: usize| u32::try_from(number).map_err(io::Error::other);
        let len = blocks.checked_mul(block_bytes).filter(|&len| len > 0);
        let len = len.ok_or(io::ErrorKind::InvalidInput)?;
        let request = libc::tpacket_req3 {
            tp_block_size: narrow(block_bytes)?,
            tp_block_nr: narrow(blocks)?,
            tp_frame_size: narrow(FRAME_BYTES)?,
            tp_frame_nr: narrow(len / FRAME_BYTES)?,
            tp_retire_blk_tov: u32::try_from(timeout.as_millis()).map_err(io::Error::other)?,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        // SAFETY: no addresses. A socket that has a ring refuses another one while it is mapped.
        unsafe { set_option(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request) }?;
        Ok(Self {
            memory: Mapping::of(socket, len, 0, true)?,
            block_bytes,
            index: 0,
            ours: false,
        })
    }

    fn status(&self) -> &AtomicU32 {
        self.memory.word(self.index * self.block_bytes + STATUS_AT)
    }

    /// Whether the next block has been handed over; then it is ours.
    pub fn take(&mut self) -> bool {
        // Acquire: what the kernel wrote into the block before is visible afterwards.
        let status = self.status().load(Ordering::Acquire);
        self.ours = status & libc::TP_STATUS_USER != 0;
        self.ours
    }

    /// The share of blocks that wait for us, including the one that is ours.
    #[allow(clippy::cast_precision_loss)]
    #[must_use]
    pub fn fill(&self) -> f64 {
        let blocks = self.memory.len() / self.block_bytes;
        let waits = |ahead: &usize| {
            let at = (self.index + ahead) % blocks * self.block_bytes + STATUS_AT;
            self.memory.word(at).load(Ordering::Relaxed) & libc::TP_STATUS_USER != 0
        };
        (0..blocks).take_while(waits).count() as f64 / blocks as f64
    }

    fn body(&self) -> (usize, usize) {
        let at = self.index * self.block_bytes + Self::BODY_AT;
        (at, self.block_bytes - Self::BODY_AT)
    }

    /// The bytes of the block that is ours, from [`PacketRing::BODY_AT`] on; empty without one.
    #[inline]
    #[must_use]
    pub fn block(&self) -> &[u8] {
        if !self.ours {
            return &[];
        }
        let (at, len) = self.body();
        // SAFETY: once it has set TP_STATUS_USER, the kernel leaves a block alone until it is given
        // back, which takes `&mut self`: the block is ours as long as this borrows. The status is
        // not part of it.
        unsafe { self.memory.bytes(at, len) }
    }

    /// As [`PacketRing::block`], for restoring what was taken out of packets.
    #[inline]
    pub fn block_mut(&mut self) -> &mut [u8] {
        if !self.ours {
            return &mut [];
        }
        let (at, len) = self.body();
        // SAFETY: as for `block`; and no other code here has it, since `self` is borrowed mutably.
        unsafe { self.memory.bytes_mut(at, len) }
    }

    /// Gives the block back to the kernel and goes to the next.
    pub fn give_back(&mut self) {
        if !std::mem::take(&mut self.ours) {
            return;
        }
        // Release: we have read everything before the kernel may write.
        self.status()
            .store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.index = (self.index + 1) % (self.memory.len() / self.block_bytes);
    }
}

/// What the kernel has counted since it was last asked.
///
/// # Errors
///
/// What the operating system says.
pub fn counts(socket: BorrowedFd<'_>) -> io::Result<PacketCounts> {
    // SAFETY: a structure of integers, which the kernel fills.
    let found: libc::tpacket_stats_v3 =
        unsafe { get_option(socket, libc::SOL_PACKET, libc::PACKET_STATISTICS) }?;
    Ok(PacketCounts {
        packets: found.tp_packets,
        drops: found.tp_drops,
        full: found.tp_freeze_q_cnt,
    })
}
