//! pcapng files (draft-ietf-opsawg-pcapng): sections, interfaces, packets.
//!
//! ```text
//! block            0      4              8                   length - 4   length
//!                  | type | total length | body              | total length |
//! enhanced packet  8           12             20       24         28
//!                  | interface | ticks, high first | caplen | wire len | bytes, padding, options
//! packet           8    10     12             20       24         28
//! (obsolete)       | if | drops| ticks, high first | caplen | wire len | bytes, padding, options
//! simple packet    8          12
//!                  | wire len | bytes, padding
//! ```
//!
//! A section's stated length is not used: blocks give their own length. Some writers omit the
//! padding from the total length although it is there; Wireshark reads such blocks, so they are
//! accepted here.

use std::ops::Range;

use strata_wire::pcapng::block_type;
use strata_wire::pcapng::options::{code, iter, push, push_fixed};
use strata_wire::{Interface, LinkType, Meta};

use super::blocks;
use super::interface::{Local, packet_bytes_max};
use super::options;
use super::order::{Order, u16_at, u32_at};
use super::shift::{self, Shifted, Shifts};
use super::time::{Clock, nearest};
use super::{InterfaceIds, Notes, Stop, Work, offset32};
use crate::error::{CaptureError, WarningKind};
use crate::packet::{BATCH_MAX, Descriptor};
use crate::walkers::{self, Chain};

/// Maximum bytes of a block (as in Wireshark and libpcap), except where a link type permits packets
/// that need more; then this much in addition to the packet.
const BLOCK_BYTES_MAX: u32 = 16 << 20;
const NON_PACKET_BYTES_MAX: u32 = 1 << 20;
/// Type and both total lengths.
const BLOCK_BYTES_MIN: u32 = 12;
/// A section header without options.
const SECTION_BYTES_MIN: usize = 28;
/// Where a packet's bytes start in an enhanced or obsolete packet block.
const DATA_AT: usize = 28;
/// The same, in a simple packet block.
const SIMPLE_DATA_AT: usize = 12;
const BYTE_ORDER_MAGIC: u32 = 0x1A2B_3C4D;

/// The current section.
pub(super) struct Section {
    order: Order,
    interfaces: Vec<Local>,
    /// The same as described, for [`Section::shifts`].
    described: Vec<Interface>,
    shifts: Shifts,
    block_bytes_max: u32,
}

/// What [`Section::other`] made of the block at the position.
pub(super) enum Block {
    /// It needs this many bytes in the window.
    Need(usize),
    /// It is `len` bytes long, and may have something to deliver.
    Read { len: usize, meta: Option<Meta> },
}

/// Returns how many bytes of a section header are needed, given what is there.
type HeaderNeed = fn(&[u8]) -> Result<usize, String>;

impl Section {
    /// Before the first section header.
    pub(super) fn new() -> Self {
        Self {
            order: Order::Little,
            interfaces: Vec::new(),
            described: Vec::new(),
            shifts: Shifts::default(),
            block_bytes_max: BLOCK_BYTES_MAX,
        }
    }

    /// A file whose first section header is incomplete is refused: these steps bring it into the
    /// window.
    pub(super) fn header_needs() -> [HeaderNeed; 2] {
        [
            |_| Ok(SECTION_BYTES_MIN),
            |start| section_len(start).map(|(_, len)| len),
        ]
    }

    /// Passes the headers of the blocks in `bytes` to `touch`, from the one at `at` on.
    pub(super) fn walk(&self, bytes: &[u8], at: usize, touch: impl FnMut(usize)) {
        match self.order {
            Order::Little => walkers::walk(bytes, at, &Blocks::<false>(self), touch),
            Order::Big => walkers::walk(bytes, at, &Blocks::<true>(self), touch),
        }
    }

    /// Describes the packets in the window.
    pub(super) fn describe(&self, work: &mut Work<'_>) -> Stop {
        match self.order {
            Order::Little => self.describe_in::<false>(work),
            Order::Big => self.describe_in::<true>(work),
        }
    }

    /// Bytes that a block takes which states this length, unless that is impossible.
    #[inline(always)]
    fn whole(&self, total: u32) -> Option<usize> {
        if !(BLOCK_BYTES_MIN..=self.block_bytes_max).contains(&total) {
            return None;
        }
        (total as usize).checked_next_multiple_of(4)
    }

    fn describe_in<const BIG: bool>(&self, work: &mut Work<'_>) -> Stop {
        while work.queue.len() < BATCH_MAX {
            let rest = &work.bytes[work.at..];
            let Some(head) = rest.first_chunk::<8>() else {
                return Stop::Need(BLOCK_BYTES_MIN as usize);
            };
            let kind = u32_at::<BIG>(head, 0);
            let total = u32_at::<BIG>(head, 4);
            if kind == block_type::SECTION {
                return Stop::Other;
            }
            let Some(whole) = self.whole(total) else {
                return Stop::Other;
            };
            let Some((block, _)) = rest.split_at_checked(whole) else {
                return Stop::Need(whole);
            };
            let Some((_, trailer)) = block.split_last_chunk::<4>() else {
                return Stop::Other;
            };
            let trailer = u32_at::<BIG>(trailer, 0);
            let described = match kind {
                block_type::ENHANCED_PACKET => self.packet::<BIG, false>(block, work),
                block_type::SIMPLE_PACKET => self.simple::<BIG>(block, work),
                block_type::PACKET => self.packet::<BIG, true>(block, work),
                _ => None,
            };
            let Some(descriptor) = described else {
                return Stop::Other;
            };
            if !trailer_agrees(trailer, total) {
                return Stop::Other;
            }
            work.queue.push(descriptor);
            work.at = work.at.wrapping_add(whole);
        }
        Stop::Full
    }

    /// An enhanced packet block, or an obsolete packet block; `None` if it is malformed.
    #[inline(always)]
    fn packet<const BIG: bool, const OBSOLETE: bool>(
        &self,
        block: &[u8],
        work: &mut Work<'_>,
    ) -> Option<Descriptor> {
        let header = block.first_chunk::<DATA_AT>()?;
        let number = if OBSOLETE {
            u32::from(u16_at::<BIG>(header, 8))
        } else {
            u32_at::<BIG>(header, 8)
        };
        let interface = self.interfaces.get(number as usize)?;
        let ticks =
            u64::from(u32_at::<BIG>(header, 12)) << 32 | u64::from(u32_at::<BIG>(header, 16));
        let len = u32_at::<BIG>(header, 20);
        if len > interface.packet_bytes_max {
            return None;
        }
        let options_at = (len as usize).next_multiple_of(4).wrapping_add(DATA_AT);
        let options_to = block.len().wrapping_sub(4);
        let list = block.get(options_at..options_to)?;
        let (ts_ns, id) = match interface.clock.ns(ticks) {
            Ok(ns) => (ns, interface.id),
            Err(ns) => self.out_of_range(number, ns, work)?,
        };
        let drops = if OBSOLETE {
            // 0xffff: unknown.
            Some(u16_at::<BIG>(header, 10)).filter(|&drops| drops != u16::MAX && drops != 0)
        } else {
            None
        };
        let (options_at, options_len) = if list.is_empty() && drops.is_none() {
            (0, 0)
        } else {
            self.options(list, options_at, drops, work)
        };
        Some(Descriptor {
            ts_ns,
            offset: offset32(work.at.wrapping_add(DATA_AT)),
            len,
            wire_len: u32_at::<BIG>(header, 24),
            options_at,
            options_len,
            interface: id,
            source: work.source,
        })
    }

    /// Time and interface of a packet whose time does not fit. `None` if it needs an interface that
    /// [`Section::other`] has to describe first.
    #[cold]
    #[inline(never)]
    fn out_of_range(&self, number: u32, ns: i128, work: &mut Work<'_>) -> Option<(u64, u16)> {
        match self.shifts.find(number, ns)? {
            Shifted::To(id, ts_ns) => {
                work.notes.warn(WarningKind::TimeShifted, work.at);
                Some((ts_ns, id))
            }
            Shifted::Not => {
                work.notes.warn(WarningKind::TimeOutOfRange, work.at);
                let interface = self.interfaces.get(number as usize)?;
                Some((nearest(ns), interface.id))
            }
        }
    }

    /// Where a packet's options are in the form of [`options`]: in the window if they have that
    /// form already, else in the scratch. `at` is their offset in the block.
    #[inline(never)]
    fn options(
        &self,
        list: &[u8],
        at: usize,
        drops: Option<u16>,
        work: &mut Work<'_>,
    ) -> (u32, u32) {
        if self.order == Order::Little
            && drops.is_none()
            && let Some(len) = options::plain_len(list)
        {
            return (offset32(work.at.wrapping_add(at)), offset32(len));
        }
        let start = work.scratch.len();
        if options::normalise(list, self.order, options::shape_packet, work.scratch).is_err() {
            work.notes.warn(WarningKind::Options, work.at);
        }
        if let Some(drops) = drops {
            let value = u64::from(drops).to_le_bytes();
            push_fixed(work.scratch, code::EPB_DROPCOUNT, value);
        }
        // It has only grown.
        let len = work.scratch.len().wrapping_sub(start);
        (offset32(start) | Descriptor::IN_SCRATCH, offset32(len))
    }

    /// A simple packet block: no interface number, no time, no captured length.
    #[inline(never)]
    fn simple<const BIG: bool>(&self, block: &[u8], work: &Work<'_>) -> Option<Descriptor> {
        let interface = self.interfaces.first()?;
        let (len, wire_len) = simple_lengths(self.order, interface, block)?;
        // It is long enough for both: its lengths were read.
        let space = block.len().checked_sub(SIMPLE_DATA_AT)?.checked_sub(4)?;
        (len <= interface.packet_bytes_max && len as usize <= space).then(|| Descriptor {
            ts_ns: 0,
            offset: offset32(work.at.wrapping_add(SIMPLE_DATA_AT)),
            len,
            wire_len,
            options_at: Descriptor::NO_TIME,
            options_len: 0,
            interface: interface.id,
            source: work.source,
        })
    }

    /// Handles the block at the start of `rest`, at `at` of the window: anything but a well-formed
    /// packet.
    pub(super) fn other(
        &mut self,
        rest: &[u8],
        at: usize,
        notes: &mut Notes,
        ids: &mut InterfaceIds,
    ) -> Result<Block, CaptureError> {
        let kind = self.order.u32(rest, 0);
        if kind == block_type::SECTION {
            return self.section(rest, at, notes);
        }
        let total = self.order.u32(rest, 4);
        let Some(len) = self.whole(total) else {
            let what = format!(
                "a block of type {kind:#x} claims a length of {total} bytes; {BLOCK_BYTES_MIN} to {} are allowed",
                self.block_bytes_max
            );
            return Err(notes.damaged(at, what));
        };
        let Some(block) = rest.get(..len) else {
            return Ok(Block::Need(len));
        };
        check_trailer(self.order, block, total).map_err(|what| notes.damaged(at, what))?;
        let body = between(block, 8);
        let meta = match kind {
            block_type::INTERFACE => Some(self.interface(body, at, notes, ids)?),
            block_type::ENHANCED_PACKET | block_type::PACKET | block_type::SIMPLE_PACKET => {
                let Some((number, ns)) = self.without_shift(kind, block) else {
                    return Err(notes.damaged(at, self.what_is_wrong(kind, block)));
                };
                // The packet is described next.
                return Ok(Block::Read {
                    len: 0,
                    meta: self.shift(number, ns, ids),
                });
            }
            block_type::CUSTOM_PRIVATE => None,
            _ => {
                let warn = |kind| notes.warn(kind, at);
                blocks::normalise(kind, body, self.order, &self.interfaces, warn)
            }
        };
        Ok(Block::Read { len, meta })
    }

    /// Section header block (section 4.1).
    fn section(
        &mut self,
        rest: &[u8],
        at: usize,
        notes: &mut Notes,
    ) -> Result<Block, CaptureError> {
        if rest.len() < SECTION_BYTES_MIN {
            return Ok(Block::Need(SECTION_BYTES_MIN));
        }
        let (order, len) = section_len(rest).map_err(|what| notes.damaged(at, what))?;
        let Some(block) = rest.get(..len) else {
            return Ok(Block::Need(len));
        };
        check_trailer(order, block, order.u32(block, 4)).map_err(|what| notes.damaged(at, what))?;
        let (major, minor) = (order.u16(block, 12), order.u16(block, 14));
        // Some writers put 1.2; it is the same format.
        if major != 1 || (minor != 0 && minor != 2) {
            return Err(CaptureError::Unsupported {
                place: notes.place(at.saturating_add(12)),
                what: format!("pcapng version {major}.{minor} is not supported, only 1.0 and 1.2"),
                advice: "convert it with the program that wrote it",
            });
        }
        let mut options = Vec::new();
        let list = between(block, 24);
        if options::normalise(list, order, options::shape_plain, &mut options).is_err() {
            notes.warn(WarningKind::Options, at);
        }
        *self = Self {
            order,
            ..Self::new()
        };
        Ok(Block::Read {
            len,
            meta: Some(Meta::Section { options }),
        })
    }

    /// Interface description block (section 4.2).
    fn interface(
        &mut self,
        body: &[u8],
        at: usize,
        notes: &Notes,
        ids: &mut InterfaceIds,
    ) -> Result<Meta, CaptureError> {
        let (fixed, list) = body
            .split_at_checked(8)
            .ok_or_else(|| notes.damaged(at, "an interface description is too short"))?;
        let mut interface =
            Interface::new(LinkType(self.order.u16(fixed, 0)), self.order.u32(fixed, 4));
        let mut all = Vec::new();
        // A time resolution may follow the damage: no timestamp could be trusted.
        options::normalise(list, self.order, options::shape_interface, &mut all).map_err(|_| {
            notes.damaged(at, "the options of an interface description are malformed")
        })?;
        let (mut resolution, mut offset_s) = (6, 0);
        let is_shifted = shift::is_shifted(&all);
        for (option, value) in iter(&all) {
            match (option, value) {
                // It stays what leads from times here to those of the file.
                (code::IF_TSOFFSET, _) if is_shifted => {
                    push(&mut interface.options, option, value).expect("it came from an option");
                }
                (code::IF_TSRESOL, &[byte]) => resolution = byte,
                (code::IF_TSOFFSET, &[a, b, c, d, e, f, g, h]) => {
                    offset_s = i64::from_le_bytes([a, b, c, d, e, f, g, h]);
                }
                (code::IF_TSRESOL | code::IF_TSOFFSET, _) => {}
                _ => push(&mut interface.options, option, value).expect("it came from an option"),
            }
        }
        let id = ids.take(interface.options.len(), notes, at)?;
        let local = Local {
            id,
            clock: Clock::new(resolution, offset_s),
            snaplen: interface.snaplen,
            packet_bytes_max: packet_bytes_max(interface.link),
            link: interface.link,
        };
        // 129 MiB at most.
        let needed = local.packet_bytes_max.wrapping_add(NON_PACKET_BYTES_MAX);
        self.block_bytes_max = self.block_bytes_max.max(needed);
        self.interfaces.push(local);
        self.described.push(interface.clone());
        Ok(Meta::Interface { id, interface })
    }

    /// Interface and time of a packet that the hot loop refused because its time does not fit and
    /// has no shift; `None` if that is not why.
    fn without_shift(&self, kind: u32, block: &[u8]) -> Option<(u32, i128)> {
        let header = block.first_chunk::<DATA_AT>()?;
        let number = match kind {
            block_type::ENHANCED_PACKET => self.order.u32(header, 8),
            block_type::PACKET => u32::from(self.order.u16(header, 8)),
            _ => return None,
        };
        let interface = self.interfaces.get(number as usize)?;
        let ns = interface.clock.ns(self.order.halves(header, 12)).err()?;
        self.shifts
            .find(number, ns)
            .is_none()
            .then_some((number, ns))
    }

    /// Makes a shift for an interface's time; `None` if there can be none, which is remembered.
    fn shift(&mut self, number: u32, ns: i128, ids: &mut InterfaceIds) -> Option<Meta> {
        let interface = self.described.get(number as usize);
        let interface = interface.expect("each interface is described");
        let (id, interface) = self.shifts.add((number, interface), ns, ids)?;
        Some(Meta::Interface { id, interface })
    }

    /// Why the hot loop refused a packet.
    fn what_is_wrong(&self, kind: u32, block: &[u8]) -> String {
        let order = self.order;
        let simple = kind == block_type::SIMPLE_PACKET;
        let data_at = if simple { SIMPLE_DATA_AT } else { DATA_AT };
        if block.len() < data_at.wrapping_add(4) {
            return format!("a packet block of {} bytes is too short", block.len());
        }
        let number = match kind {
            block_type::SIMPLE_PACKET => 0,
            block_type::PACKET => u32::from(order.u16(block, 8)),
            _ => order.u32(block, 8),
        };
        let Some(interface) = self.interfaces.get(number as usize) else {
            return format!(
                "a packet is from interface {number}, but the section describes {}",
                self.interfaces.len()
            );
        };
        let len = if simple {
            let lengths = simple_lengths(order, interface, block);
            lengths.expect("the block was just found long enough").0
        } else {
            order.u32(block, 20)
        };
        if len > interface.packet_bytes_max {
            return format!(
                "the packet here has {len} captured bytes, more than the {} that {} allows",
                interface.packet_bytes_max, interface.link
            );
        }
        format!(
            "a packet of {len} captured bytes does not fit its block of {} bytes",
            block.len()
        )
    }
}

/// The blocks of a section in either byte order.
struct Blocks<'a, const BIG: bool>(&'a Section);

impl<const BIG: bool> Chain for Blocks<'_, BIG> {
    /// The upper bytes of the upper half of an enhanced packet's time.
    fn alike(&self) -> Range<usize> {
        if BIG { 12..15 } else { 13..16 }
    }

    #[inline(always)]
    fn after(&self, bytes: &[u8], at: usize) -> Option<usize> {
        let head = bytes.get(at..)?.first_chunk::<8>()?;
        let whole = self.0.whole(u32_at::<BIG>(head, 4))?;
        at.checked_add(whole)
    }
}

/// Captured and wire length of a simple packet: the captured one is not in the
/// file (section 4.4).
fn simple_lengths(order: Order, interface: &Local, block: &[u8]) -> Option<(u32, u32)> {
    const LEN_MIN: usize = SIMPLE_DATA_AT + 4;
    let wire_len = (block.len() >= LEN_MIN).then(|| order.u32(block, 8))?;
    let len = match interface.snaplen {
        0 => wire_len,
        snaplen => wire_len.min(snaplen),
    };
    Some((len, wire_len))
}

/// Byte order and length of the section header at the start of `bytes`.
fn section_len(bytes: &[u8]) -> Result<(Order, usize), String> {
    let order = [Order::Little, Order::Big]
        .into_iter()
        .find(|order| order.u32(bytes, 8) == BYTE_ORDER_MAGIC)
        .ok_or("a section header lacks the byte-order magic")?;
    let total = order.u32(bytes, 4);
    let len = total as usize;
    if len < SECTION_BYTES_MIN || total > BLOCK_BYTES_MAX {
        return Err(format!(
            "a section header claims a length of {total} bytes; {SECTION_BYTES_MIN} to {BLOCK_BYTES_MAX} are allowed"
        ));
    }
    Ok((order, len.next_multiple_of(4)))
}

/// The second total length may include the padding that the first omits.
#[inline(always)]
fn trailer_agrees(trailer: u32, total: u32) -> bool {
    trailer == total || trailer == total.next_multiple_of(4)
}

/// What is between the first bytes of a block, this many, and its second total length.
fn between(block: &[u8], from: usize) -> &[u8] {
    let (front, _) = block.split_last_chunk::<4>().unwrap_or((&[], &[0; 4]));
    front.get(from..).unwrap_or(&[])
}

fn check_trailer(order: Order, block: &[u8], total: u32) -> Result<(), String> {
    let Some((_, trailer)) = block.split_last_chunk::<4>() else {
        return Err(format!("a block of {} bytes is too short", block.len()));
    };
    let trailer = order.u32(trailer, 0);
    if trailer_agrees(trailer, total) {
        return Ok(());
    }
    let kind = order.u32(block, 0);
    Err(format!(
        "a block of type {kind:#x} has two lengths that differ, {total} and {trailer} bytes"
    ))
}
