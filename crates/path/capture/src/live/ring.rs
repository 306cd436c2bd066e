//! One interface through a TPACKET_V3 ring: the kernel writes packets into blocks of shared memory,
//! and hands over a block when it is full or old.
//!
//! ```text
//! block:   | block header 48 | packet | packet | ...
//! packet:  | tpacket3_hdr 48 | sockaddr_ll 20 | gap | link header, data | pad |
//!            tp_next_offset leads to the next packet; the gap has room for the
//!            VLAN tag that was stripped, or for a cooked header
//! ```
//!
//! Source: linux/if_packet.h and Documentation/networking/packet_mmap.rst.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use strata_sys::packet::{self, PacketRing, RingLayout};
use strata_sys::{interface as asked, socket};
use strata_wire::{LinkType, exact, prefetch};

use super::batch::Slot;
use super::clock;
use super::error::LiveError;
use super::headers::{
    SLL2_LEN, VLAN_TAG_LEN, put_cooked_header, put_tag, u16_at, u32_at, vlan_tag,
};
use super::host::interface::{self, Device};
use super::options::{Direction, LiveOptions, Stamps};
use crate::packet::BATCH_MAX;
use crate::walkers::{self, CLOSE_BYTES, Chain};

/// Bytes of a block: large enough for the largest packet that Linux merges
/// (512 KiB), small enough to be handed over soon.
const BLOCK_BYTES: usize = 1 << 20;
/// A small ring has at least this number of blocks, and smaller ones, if packets fit: the kernel hands
/// one over every 10 ms however little is in it, and drops packets once all of them wait for us.
const BLOCKS_MIN: usize = 32;
const BLOCK_BYTES_MIN: usize = 64 << 10;
/// What a block has besides its packet, if it has one: headers, gaps, a VLAN tag or a cooked header.
const BLOCK_OVERHEAD: usize = 256;
/// When the kernel hands over a block that is not full.
pub(super) const BLOCK_TIMEOUT: Duration = Duration::from_millis(10);
const BLOCK_TIMEOUT_IMMEDIATE: Duration = Duration::from_millis(1);

/// A clock set back by more than this is followed; anything less is packets that overtook each
/// other between CPUs.
const REORDERED_NS_MAX: u64 = 1_000_000_000;

/// A card's clock that is further off was not set from the host's.
const CLOCK_OFF_NS_MAX: u64 = 1_000_000_000;

/// What was found out about a card's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockEvent {
    /// How far off it is from the host's.
    pub off_ns: u64,
    /// Whether its times are used all the same.
    pub taken: bool,
}

/// Whether the card's times are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CardTimes {
    /// The kernel's are used.
    No,
    /// Asked for; the first one says whether its clock is ours.
    Asked,
    Yes,
}

/// What the kernel has counted for a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RingCounts {
    /// Packets that passed the kernel's filter, including those dropped.
    pub received: u64,
    /// Packets for which there was no space in the ring.
    pub dropped: u64,
    /// How often the ring was full.
    pub full: u64,
    /// Bytes of the ring, as asked for; of several, of the largest.
    pub bytes: usize,
}

impl RingCounts {
    /// The sum of two.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            received: self.received.saturating_add(other.received),
            dropped: self.dropped.saturating_add(other.dropped),
            full: self.full.saturating_add(other.full),
            bytes: self.bytes.max(other.bytes),
        }
    }
}

/// A ring and where we are in it.
#[derive(Debug)]
pub(super) struct Ring {
    socket: OwnedFd,
    blocks: PacketRing,
    link: LinkType,
    snaplen: u32,
    /// The next packet within the block, and how many are left.
    at: usize,
    left: u32,
    last_ts_ns: u64,
    card_times: CardTimes,
    /// Whether the card's times are used whatever they are.
    insists: bool,
    clock_events: Option<ClockEvent>,
    counts: RingCounts,
}

impl Ring {
    /// A ring on a socket that admits nothing until
    /// [`Kernel::admit`](super::kernel::Kernel::admit).
    pub(super) fn open(device: &Device, options: &LiveOptions) -> Result<Self, LiveError> {
        let link = device.link;
        let cooked = link == LinkType::LINUX_SLL2;
        let fail = |call: &'static str| device.error(call);
        let opened = match &options.opener {
            Some(opener) => opener.open(cooked),
            None => socket::packet_socket(cooked),
        };
        let opened = opened.map_err(|source| not_permitted(device, source))?;
        let fd = opened.as_fd();
        let packet = libc::SOL_PACKET;
        const COOKED: usize = VLAN_TAG_LEN + SLL2_LEN;
        let reserve = exact::<u32>(if cooked { COOKED } else { VLAN_TAG_LEN });
        socket::set_number(fd, packet, libc::PACKET_RESERVE, reserve)
            .map_err(fail("PACKET_RESERVE"))?;
        if device.is_loopback || options.direction == Direction::In {
            // Each packet on it is seen as sent and as received.
            socket::set_number(fd, packet, libc::PACKET_IGNORE_OUTGOING, 1)
                .map_err(fail("PACKET_IGNORE_OUTGOING"))?;
        }
        // Nothing may come in before the filter and the fanout group are in place.
        socket::attach_snaplen(fd, 0).map_err(fail("SO_ATTACH_FILTER"))?;
        let card_times = ask_for_card_times(fd, device, options.stamps)?;
        let ring_bytes = options.ring_bytes.unwrap_or(device.ring_bytes());
        let blocks = map_ring(fd, ring_bytes, options).map_err(|source| LiveError::Ring {
            interface: device.name.clone(),
            bytes: ring_bytes,
            source,
        })?;
        if options.promiscuous && device.index != 0 {
            socket::set_promiscuous(fd, device.index).map_err(fail("PACKET_MR_PROMISC"))?;
        }
        socket::bind_packet(fd, device.index, true).map_err(fail("bind"))?;
        Ok(Self {
            socket: opened,
            blocks,
            link,
            snaplen: options.snaplen,
            at: 0,
            left: 0,
            last_ts_ns: 0,
            card_times,
            insists: options.stamps == Stamps::Adapter,
            clock_events: None,
            counts: RingCounts {
                bytes: ring_bytes,
                ..RingCounts::default()
            },
        })
    }

    /// Whether times are the card's.
    pub(super) fn has_card_times(&self) -> bool {
        self.card_times != CardTimes::No
    }

    /// What was found out about the card's clock, once.
    pub(super) fn take_clock_events(&mut self) -> Option<ClockEvent> {
        self.clock_events.take()
    }

    /// Looks at the first time from the card's clock.
    #[cold]
    fn judge_clock(&mut self, stamp_ns: u64) {
        let off_ns = stamp_ns.abs_diff(clock::realtime_ns());
        if off_ns <= CLOCK_OFF_NS_MAX {
            self.card_times = CardTimes::Yes;
            return;
        }
        let taken = self.insists;
        self.clock_events = Some(ClockEvent { off_ns, taken });
        self.card_times = if taken { CardTimes::Yes } else { CardTimes::No };
        if !taken {
            // What is in the ring already has the card's; see `fill`.
            let _ = socket::set_number(self.fd(), libc::SOL_PACKET, libc::PACKET_TIMESTAMP, 0);
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The block that the slots of the last [`Ring::fill`] are in.
    pub(super) fn block(&self) -> &[u8] {
        self.blocks.block()
    }

    /// Gives the block back if all of its packets have been described.
    pub(super) fn release(&mut self) {
        if self.left == 0 {
            self.blocks.give_back();
        }
    }

    /// Describes the next packets, all of one interface; returns whether there are any.
    pub(super) fn fill(&mut self, interface: u16, slots: &mut Vec<Slot>) -> bool {
        let mut last_ts_ns = self.last_ts_ns;
        let any = self.take() && {
            self.describe(slots, |_, ts_ns| {
                Some((interface, in_order(ts_ns, &mut last_ts_ns)))
            });
            true
        };
        self.last_ts_ns = last_ts_ns;
        any
    }

    /// Whether a block is ours that has packets to describe.
    pub(super) fn take(&mut self) -> bool {
        while self.left == 0 {
            self.blocks.give_back();
            if !self.blocks.take() {
                return false;
            }
            let block = self.blocks.block();
            // Offsets count from the start of the block.
            self.left = u32_at(block, 12 - PacketRing::BODY_AT);
            let in_body = |at: u32| (at as usize).saturating_sub(PacketRing::BODY_AT);
            self.at = in_body(u32_at(block, 16 - PacketRing::BODY_AT));
            let len = in_body(u32_at(block, 20 - PacketRing::BODY_AT));
            // Where headers are close, the CPU's own prefetching is faster than walkers.
            let is_dense = len / CLOSE_BYTES < self.left as usize;
            if !is_dense {
                fetch_headers(&block[..len], self.at);
            }
        }
        true
    }

    /// When the kernel began to fill the block that is ours, by its clock.
    pub(super) fn began_ns(&self) -> u64 {
        time_ns(self.blocks.block(), 32 - PacketRing::BODY_AT)
    }

    /// Describes packets of the block that is ours. Of the index of its interface and its time, `whose` makes
    /// the interface's number here and the time that it gets, or nothing: then it is skipped.
    #[inline(always)]
    pub(super) fn describe(
        &mut self,
        slots: &mut Vec<Slot>,
        mut whose: impl FnMut(u32, u64) -> Option<(u16, u64)>,
    ) {
        /// `sll_ifindex`, after `tpacket3_hdr`.
        const INDEX_AT: usize = 48 + 4;
        let cooked = self.link == LinkType::LINUX_SLL2;
        if self.card_times == CardTimes::Asked {
            let (block, at) = (self.blocks.block(), self.at);
            if is_stamped_by_card(block, at) {
                self.judge_clock(stamp_ns(block, at));
            }
        }
        let foreign = self.card_times == CardTimes::No;
        let block = self.blocks.block_mut();
        while self.left > 0 && slots.len() < BATCH_MAX {
            let header_at = self.at;
            // Within the block, or the next look at it ends in a message.
            self.at = header_at.wrapping_add(u32_at(block, header_at) as usize);
            prefetch(block, self.at);
            self.left = self.left.wrapping_sub(1);
            let mut ts_ns = stamp_ns(block, header_at);
            if foreign && is_stamped_by_card(block, header_at) {
                // Its clock was found not to be the host's: the current time is closer.
                ts_ns = clock::realtime_ns();
            }
            let Some((interface, ts_ns)) =
                whose(u32_at(block, header_at.wrapping_add(INDEX_AT)), ts_ns)
            else {
                continue;
            };
            let field = |at: usize| header_at.wrapping_add(at);
            let mut slot = Slot {
                ts_ns,
                at: offset32(header_at.wrapping_add(usize::from(u16_at(block, field(24))))),
                len: u32_at(block, field(12)),
                wire_len: u32_at(block, field(16)),
                interface,
            };
            let tag = vlan_tag(block, header_at);
            if cooked {
                put_cooked_header(block, header_at, tag, &mut slot);
            } else if let Some(tag) = tag {
                put_tag(block, tag, &mut slot);
            }
            slot.len = slot.len.min(self.snaplen);
            slots.push(slot);
        }
    }

    /// The share of its memory that waits for us.
    pub(super) fn fill_share(&self) -> f64 {
        self.blocks.fill()
    }

    /// What the kernel has counted since the ring was made.
    pub(super) fn counts(&mut self) -> io::Result<RingCounts> {
        // The kernel resets its counters each time they are read.
        let since = packet::counts(self.fd())?;
        self.counts = self.counts.plus(RingCounts {
            received: u64::from(since.packets),
            dropped: u64::from(since.drops),
            full: u64::from(since.full),
            bytes: 0,
        });
        Ok(self.counts)
    }
}

/// The time of a packet that follows one of this time.
#[inline(always)]
pub(super) fn in_order(ts_ns: u64, last_ts_ns: &mut u64) -> u64 {
    let behind_ns = last_ts_ns.saturating_sub(ts_ns);
    if behind_ns == 0 || behind_ns >= REORDERED_NS_MAX {
        *last_ts_ns = ts_ns;
    }
    *last_ts_ns
}

/// Asks for the card's times as far as `stamps` wants them.
fn ask_for_card_times(
    fd: BorrowedFd<'_>,
    device: &Device,
    stamps: Stamps,
) -> Result<CardTimes, LiveError> {
    if stamps == Stamps::Host {
        return Ok(CardTimes::No);
    }
    let asked = || -> io::Result<()> {
        if !interface::stamps(&device.name) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        asked::stamp_all_received(&device.name)?;
        let hardware = libc::SOF_TIMESTAMPING_RAW_HARDWARE;
        socket::set_number(fd, libc::SOL_PACKET, libc::PACKET_TIMESTAMP, hardware)
    };
    match asked() {
        Ok(()) => Ok(CardTimes::Asked),
        Err(_) if stamps == Stamps::Auto => Ok(CardTimes::No),
        Err(_) => Err(LiveError::NoCardTimes {
            interface: device.name.clone(),
        }),
    }
}

/// Brings the headers of the packets of a block into the cache, as a hint: the core that received
/// them has them in its own.
fn fetch_headers(block: &[u8], at: usize) {
    /// The last byte of a header that is used: of the VLAN tag.
    const LAST: usize = 37;
    walkers::walk(block, at, &Headers, |at| {
        prefetch(block, at);
        prefetch(block, at.saturating_add(LAST));
    });
}

/// The packets of a block, one after another.
struct Headers;

impl Chain for Headers {
    /// The upper bytes of the seconds.
    fn alike(&self) -> Range<usize> {
        if cfg!(target_endian = "big") {
            4..7
        } else {
            5..8
        }
    }

    /// The last packet says 0.
    #[inline(always)]
    fn after(&self, block: &[u8], at: usize) -> Option<usize> {
        let next = u32::from_ne_bytes(*block.get(at..)?.first_chunk()?);
        if next == 0 {
            return None;
        }
        at.checked_add(next as usize)
    }
}

/// Whether the card has timestamped a packet.
#[inline(always)]
fn is_stamped_by_card(block: &[u8], header_at: usize) -> bool {
    /// `TP_STATUS_TS_RAW_HARDWARE` (linux/if_packet.h).
    const RAW_HARDWARE: u32 = 1 << 31;
    u32_at(block, header_at.wrapping_add(20)) & RAW_HARDWARE != 0
}

#[inline(always)]
fn stamp_ns(block: &[u8], header_at: usize) -> u64 {
    time_ns(block, header_at.wrapping_add(4))
}

/// Seconds and nanoseconds, 32 bits each: far below 2^64 together.
#[inline(always)]
fn time_ns(block: &[u8], at: usize) -> u64 {
    let seconds_ns = u64::from(u32_at(block, at)).wrapping_mul(1_000_000_000);
    seconds_ns.wrapping_add(u64::from(u32_at(block, at.wrapping_add(4))))
}

fn not_permitted(device: &Device, source: io::Error) -> LiveError {
    if source.kind() == io::ErrorKind::PermissionDenied {
        return LiveError::NotPermitted {
            interface: device.name.clone(),
        };
    }
    device.error("socket")(source)
}

/// Bytes of each block of a ring of `ring_bytes` bytes, for packets of at most `snaplen` bytes: a power
/// of two.
fn block_bytes(ring_bytes: usize, snaplen: u32) -> usize {
    let part = (ring_bytes / BLOCKS_MIN).max(1);
    let packet = (snaplen as usize)
        .saturating_add(BLOCK_OVERHEAD)
        .next_power_of_two();
    (1 << part.ilog2()).clamp(packet.clamp(BLOCK_BYTES_MIN, BLOCK_BYTES), BLOCK_BYTES)
}

fn map_ring(fd: BorrowedFd<'_>, bytes: usize, options: &LiveOptions) -> io::Result<PacketRing> {
    let block_bytes = block_bytes(bytes, options.snaplen);
    let layout = RingLayout {
        blocks: bytes
            .checked_div(block_bytes)
            .map_or(2, |blocks| blocks.max(2)),
        block_bytes,
        timeout: if options.immediate {
            BLOCK_TIMEOUT_IMMEDIATE
        } else {
            BLOCK_TIMEOUT
        },
    };
    PacketRing::map(fd, &layout)
}

#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "an offset within a block of 1 MiB"
)]
fn offset32(at: usize) -> u32 {
    debug_assert!(at <= BLOCK_BYTES);
    at as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_rings_have_many_blocks_if_packets_fit() {
        let blocks = |mib: usize, snaplen| {
            let bytes = block_bytes(mib << 20, snaplen);
            assert!(
                bytes.is_power_of_two() && bytes >= (snaplen as usize).min(BLOCK_BYTES),
                "{bytes}"
            );
            ((mib << 20) / bytes, bytes >> 10)
        };
        assert_eq!(blocks(32, LiveOptions::SNAPLEN_DEFAULT), (32, 1024));
        assert_eq!(blocks(512, 128), (512, 1024));
        assert_eq!(blocks(2, 256), (32, 64));
        assert_eq!(blocks(2, 65_535), (16, 128));
        assert_eq!(blocks(2, LiveOptions::SNAPLEN_DEFAULT), (4, 512));
        assert_eq!(blocks(20, 256), (40, 512));
        assert_eq!(blocks(2, u32::MAX), (2, 1024));
    }

    /// Walkers go to each packet of a block, several at a time, and stop at the last one, which
    /// leads nowhere.
    #[test]
    fn walkers_find_the_headers_of_a_block() {
        const HEADER_LEN: u32 = 82;
        let mut block = vec![0; 16];
        let mut starts = Vec::new();
        let lens = (0..900_u32).map(|index| 60 + index * 7 % 1_400);
        for (index, len) in (0_u32..).zip(lens) {
            let whole = (HEADER_LEN + len).next_multiple_of(16);
            let next = if index == 899 { 0 } else { whole };
            starts.push(block.len());
            let words = [next, 0x6553_f100 + index % 200, index, len, len];
            block.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
            // A packet whose payload could be headers.
            let fake = [0x40_u32, 0x6553_f155, 7, 9, 9];
            let fake: Vec<u8> = fake.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let rest = whole as usize - 20;
            block.extend(
                fake.iter()
                    .cycle()
                    .take(if index % 10 == 0 { rest } else { 0 }),
            );
            block.resize(starts[starts.len() - 1] + whole as usize, 0);
        }
        let mut walked = Vec::new();
        walkers::walk(&block, starts[0], &Headers, |at| walked.push(at));
        let back = walked.windows(2).filter(|pair| pair[1] < pair[0]);
        assert!(back.count() > 30, "one walker went alone");
        walked.sort_unstable();
        assert_eq!(walked, starts);
    }
}
