//! pcap files (draft-ietf-opsawg-pcap).
//!
//! ```text
//! file header   0       4       6       8        12       16       20       24
//!               | magic | major | minor | zone   | figures| snaplen| link   |
//! record header 0       4       8        12        16
//!               | s     | us/ns | caplen | wire len| bytes ...
//! ```
//!
//! The "modified" pcap of Alexey Kuznetzov has 8 more bytes per record:
//! interface index (4), protocol (2), packet type (1), padding (1).

use std::ops::Range;

use strata_wire::pcapng::options::{self, code};
use strata_wire::{Interface, LinkType, Meta};

use super::interface::packet_bytes_max;
use super::order::{Order, u32_at};
use super::time::NS_PER_S;
use super::window::Window;
use super::{InterfaceIds, Notes, Stop, Work, offset32};
use crate::error::CaptureError;
use crate::packet::{BATCH_MAX, Descriptor};
use crate::walkers::{self, Chain};

/// What the magic number says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Magic {
    order: Order,
    ns_per_tick: u32,
    record_header_bytes: usize,
}

/// Which of a record's two lengths is the captured one: writers before version 2.3, and some of
/// version 2.3, swapped them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lengths {
    CapturedFirst,
    WireFirst,
    SmallerIsCaptured,
}

/// A pcap file after its header.
pub(super) struct Pcap {
    magic: Magic,
    lengths: Lengths,
    packet_bytes_max: u32,
    /// Known before the first packet: [`Pcap::other`] delivers it.
    interface: Interface,
    id: Option<u16>,
}

/// Offset, what is wrong, what to do.
type Refused = (usize, String, &'static str);

impl Pcap {
    pub(super) const HEADER_BYTES: usize = 24;

    /// Section 4 of the draft, "Magic Number".
    pub(super) fn magic(start: &[u8]) -> Option<Magic> {
        let magic = u32::from_be_bytes(*start.first_chunk()?);
        let (order, number) = match magic {
            0xa1b2_c3d4 | 0xa1b2_3c4d | 0xa1b2_cd34 => (Order::Big, magic),
            _ => (Order::Little, magic.swap_bytes()),
        };
        let (ns_per_tick, record_header_bytes) = match number {
            0xa1b2_c3d4 => (1000, 16),
            0xa1b2_3c4d => (1, 16),
            0xa1b2_cd34 => (1000, 24),
            _ => return None,
        };
        Some(Magic {
            order,
            ns_per_tick,
            record_header_bytes,
        })
    }

    pub(super) fn parse(magic: Magic, header: &[u8; Self::HEADER_BYTES]) -> Result<Self, Refused> {
        let order = magic.order;
        let (major, minor) = (order.u16(header, 4), order.u16(header, 6));
        let lengths = match (major, minor) {
            // 543.0: tcpdump of DG/UX.
            (2, 0..=2) | (543, 0) => Lengths::WireFirst,
            (2, 3) => Lengths::SmallerIsCaptured,
            (2, _) => Lengths::CapturedFirst,
            _ => {
                let what = format!("pcap version {major}.{minor} is not supported, only 2.x");
                return Err((4, what, "convert it with the program that wrote it"));
            }
        };
        let snaplen = order.u32(header, 16);
        let network = order.u32(header, 20);
        let mut interface = Interface::new(link_type(network)?, snaplen);
        if let Some(bits) = fcs_bits(network) {
            options::push_fixed(&mut interface.options, code::IF_FCSLEN, [bits]);
        }
        Ok(Self {
            magic,
            lengths,
            packet_bytes_max: packet_bytes_max(interface.link),
            interface,
            id: None,
        })
    }

    /// Describes the packets in the window.
    pub(super) fn describe(&self, work: &mut Work<'_>) -> Stop {
        let Some(id) = self.id else {
            return Stop::Other;
        };
        match self.magic.order {
            Order::Little => self.describe_in::<false>(id, work),
            Order::Big => self.describe_in::<true>(id, work),
        }
    }

    fn describe_in<const BIG: bool>(&self, interface: u16, work: &mut Work<'_>) -> Stop {
        let header_bytes = self.magic.record_header_bytes;
        let ns_per_tick = u64::from(self.magic.ns_per_tick);
        while work.queue.len() < BATCH_MAX {
            let rest = &work.bytes[work.at..];
            let Some(header) = rest.first_chunk::<16>() else {
                return Stop::Need(header_bytes);
            };
            let seconds = u64::from(u32_at::<BIG>(header, 0));
            let fraction = u64::from(u32_at::<BIG>(header, 4));
            let (len, wire_len) = self.lengths(u32_at::<BIG>(header, 8), u32_at::<BIG>(header, 12));
            if len > self.packet_bytes_max {
                return Stop::Other;
            }
            // The limit of a link type, 128 MiB at most.
            let whole = (len as usize).wrapping_add(header_bytes);
            if rest.len() < whole {
                return Stop::Need(whole);
            }
            // 2^32 s and 2^32 us are below 2^63 ns.
            let fraction_ns = fraction.wrapping_mul(ns_per_tick);
            work.queue.push(Descriptor {
                ts_ns: seconds.wrapping_mul(NS_PER_S).wrapping_add(fraction_ns),
                offset: offset32(work.at.wrapping_add(header_bytes)),
                len,
                wire_len,
                options_at: 0,
                options_len: 0,
                interface,
                source: work.source,
            });
            work.at = work.at.wrapping_add(whole);
        }
        Stop::Full
    }

    /// Passes the headers of the packets in `bytes` to `touch`, from the one at `at` on.
    pub(super) fn walk(&self, bytes: &[u8], at: usize, touch: impl FnMut(usize)) {
        match self.magic.order {
            Order::Little => walkers::walk(bytes, at, &Records::<false>(self), touch),
            Order::Big => walkers::walk(bytes, at, &Records::<true>(self), touch),
        }
    }

    /// Captured length, length on the wire.
    #[inline(always)]
    fn lengths(&self, first: u32, second: u32) -> (u32, u32) {
        match self.lengths {
            Lengths::CapturedFirst => (first, second),
            Lengths::WireFirst => (second, first),
            Lengths::SmallerIsCaptured => (first.min(second), first.max(second)),
        }
    }

    /// Delivers the interface, or describes the damage of the record at the window's position.
    pub(super) fn other(
        &mut self,
        window: &Window,
        notes: &Notes,
        ids: &mut InterfaceIds,
    ) -> Result<Meta, CaptureError> {
        if self.id.is_none() {
            let id = ids.take(0, notes, 0)?;
            self.id = Some(id);
            return Ok(Meta::Interface {
                id,
                interface: self.interface.clone(),
            });
        }
        let header = window.rest();
        let order = self.magic.order;
        let (len, _) = self.lengths(order.u32(header, 8), order.u32(header, 12));
        let what = format!(
            "the packet here has {len} captured bytes, more than the {} that {} allows",
            self.packet_bytes_max, self.interface.link
        );
        Err(notes.damaged(window.position(), what))
    }
}

/// The packets of a file in either byte order.
struct Records<'a, const BIG: bool>(&'a Pcap);

impl<const BIG: bool> Chain for Records<'_, BIG> {
    /// The upper bytes of the seconds.
    fn alike(&self) -> Range<usize> {
        if BIG { 0..3 } else { 1..4 }
    }

    #[inline(always)]
    fn after(&self, bytes: &[u8], at: usize) -> Option<usize> {
        let header = bytes.get(at..)?.first_chunk::<16>()?;
        let lengths = (u32_at::<BIG>(header, 8), u32_at::<BIG>(header, 12));
        let (len, _) = self.0.lengths(lengths.0, lengths.1);
        if len > self.0.packet_bytes_max {
            return None;
        }
        let data_at = at.checked_add(self.0.magic.record_header_bytes)?;
        data_at.checked_add(len as usize)
    }
}

/// The lower 16 bits; the 10 bits above are reserved and must be 0 (section 4,
/// "LinkType and additional information").
fn link_type(network: u32) -> Result<LinkType, Refused> {
    let [low, high, reserved, flags] = network.to_le_bytes();
    if reserved != 0 || flags & 3 != 0 {
        let what = format!("link type {network:#010x} has reserved bits set");
        return Err((
            20,
            what,
            "if the rest of the file is sound, clear these bits",
        ));
    }
    Ok(LinkType(u16::from_le_bytes([low, high])))
}

/// Bits of frame check sequence: bit 26 says that the top 4 bits contain it, in units of 16 bits.
fn fcs_bits(network: u32) -> Option<u8> {
    let top = network.to_le_bytes()[3];
    // 240 at most.
    (top & 4 != 0).then_some((top >> 4).wrapping_mul(16))
}
