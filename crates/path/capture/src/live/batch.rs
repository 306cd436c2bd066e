//! The packets of one step, where the kernel put them.

use strata_sys::xdp::XdpSocket;
use strata_wire::exact;

use crate::packet::{PacketRef, Packets};

/// Where one packet of a batch lies in its block, or frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    pub(super) ts_ns: u64,
    pub(super) at: u32,
    pub(super) len: u32,
    pub(super) wire_len: u32,
    pub(super) interface: u16,
}

impl Slot {
    /// Makes space for `bytes` before the packet.
    pub(super) fn lengthen(&mut self, bytes: usize) {
        let bytes = exact::<u32>(bytes);
        let at = self.at.checked_sub(bytes);
        self.at = at.expect("the kernel leaves a gap before each packet");
        self.len = self.len.saturating_add(bytes);
        self.wire_len = self.wire_len.saturating_add(bytes);
    }
}

/// The packets of one step, borrowed from a ring.
#[derive(Debug, Clone, Copy)]
pub struct RingBatch<'a> {
    pub(super) memory: Memory<'a>,
    pub(super) slots: &'a [Slot],
}

/// Where the packets of a step are: memory that the kernel has handed over, until the next step.
#[derive(Debug, Clone, Copy)]
pub(super) enum Memory<'a> {
    /// In a block, where the slots say.
    Block(&'a [u8]),
    /// Each in a frame, in the order of the slots.
    Frames(&'a XdpSocket),
}

impl Packets for RingBatch<'_> {
    #[inline]
    fn len(&self) -> usize {
        self.slots.len()
    }

    #[inline]
    fn get(&self, index: usize) -> PacketRef<'_> {
        let slot = &self.slots[index];
        let (at, len) = (slot.at as usize, slot.len as usize);
        PacketRef {
            ts_ns: slot.ts_ns,
            interface: slot.interface,
            wire_len: slot.wire_len,
            data: match self.memory {
                Memory::Block(block) => &block[at..][..len],
                Memory::Frames(frames) => &frames.packet(index)[at..][..len],
            },
            options: &[],
            has_timestamp: true,
        }
    }
}
