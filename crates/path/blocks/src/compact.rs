//! Packets as nearly all of them are recorded: without what is usual or follows from the packet
//! before.
//!
//! ```text
//!  0 kind 10 | flags u8 | interface u8 | header_len u8
//!  4 time u32              ns after the time that the last record of kind 11 says
//!  8 verdict u16
//! 10 captured_len u16
//! 12 wire_len u16          if flag bit 4; else as captured
//! 14 kept_len u16          if flag bit 4; else by how much was kept
//!    the bytes kept
//! ```
//!
//! A sequence number is one more than that of the packet before. What does not fit is recorded in
//! full ([`PacketBytes`](crate::layout::PacketBytes)).
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use strata_wire::KeepKind;
use zerocopy::FromBytes;

use crate::format::{PACKET_HEADER_LEN, PREFIX_LEN, PacketRecord, kind, packet_flag};
use crate::layout::{CompactBytes, LengthsBytes, Prefix};

/// Bytes of a compact record before its data, without lengths.
pub(crate) const COMPACT_LEN: usize = size_of::<CompactBytes>();
/// The same with lengths.
pub(crate) const COMPACT_LEN_MAX: usize = COMPACT_LEN + size_of::<LengthsBytes>();
/// With a record of a time before it, a compact record is not longer than a full one.
const _: () = assert!(PREFIX_LEN + size_of::<u64>() + COMPACT_LEN_MAX <= PACKET_HEADER_LEN);
/// How much earlier than the packet after it the time in such a record is, so that packets of
/// several queues may arrive a bit out of order: ns.
pub(crate) const TIME_SLACK_NS: u32 = 1 << 30;

/// Bytes that are kept of a packet, if a record does not say otherwise.
pub(crate) fn usual_kept_len(keep: KeepKind, header_len: u32, captured_len: u32) -> u32 {
    match keep {
        KeepKind::Nothing | KeepKind::Partial => 0,
        KeepKind::Header => header_len.min(captured_len),
        KeepKind::Full => captured_len,
    }
}

/// What stands before the data of a compact record.
pub(crate) struct Compact {
    pub(crate) bytes: [u8; COMPACT_LEN_MAX],
    /// How many of them.
    pub(crate) len: usize,
}

impl Compact {
    /// The compact form of a packet, without its time; `None` if it has none.
    #[inline(always)]
    pub(crate) fn of(packet: &PacketRecord<'_>) -> Option<Self> {
        let (wire_len, captured_len) = (packet.wire_len, packet.captured_len);
        let kept_len = u32::try_from(packet.data.len()).ok()?;
        let header_len = u32::from(packet.header_len);
        let is_small = (wire_len | captured_len | kept_len) >> 16 == 0
            && (header_len | u32::from(packet.interface)) >> 8 == 0;
        if !is_small || !packet.has_timestamp {
            return None;
        }
        let is_usual = wire_len == captured_len
            && kept_len == usual_kept_len(packet.keep, header_len, captured_len);
        let lengths = if is_usual { 0 } else { packet_flag::LENGTHS };
        let flags = packet.flags() | lengths;
        let words = [
            u32::from(kind::COMPACT)
                | u32::from(flags) << 8
                | u32::from(packet.interface) << 16
                | header_len << 24,
            0,
            u32::from(packet.verdict) | captured_len << 16,
            wire_len | kept_len << 16,
        ];
        let mut bytes = [0; COMPACT_LEN_MAX];
        for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        let len = if is_usual {
            COMPACT_LEN
        } else {
            COMPACT_LEN_MAX
        };
        Some(Self { bytes, len })
    }

    /// Sets the time.
    #[inline(always)]
    pub(crate) fn set_time(&mut self, time: u32) {
        self.bytes[4..8].copy_from_slice(&time.to_le_bytes());
    }
}

/// A compact record, taken apart.
pub(crate) struct Parsed<'a> {
    pub(crate) head: &'a CompactBytes,
    pub(crate) wire_len: u16,
    pub(crate) data: &'a [u8],
    /// Bytes of the record.
    pub(crate) len: usize,
}

/// Reads the compact record that `rest` begins with; `None` if it reaches beyond.
#[inline]
pub(crate) fn parse(rest: &[u8]) -> Option<Parsed<'_>> {
    let (head, mut after) = CompactBytes::ref_from_prefix(rest).ok()?;
    let captured_len = head.captured_len.get();
    let (mut wire_len, mut at) = (captured_len, COMPACT_LEN);
    let kept_len = if head.flags & packet_flag::LENGTHS != 0 {
        let (lengths, data) = LengthsBytes::ref_from_prefix(after).ok()?;
        (wire_len, after, at) = (lengths.wire_len.get(), data, COMPACT_LEN_MAX);
        usize::from(lengths.kept_len.get())
    } else {
        let keep = KeepKind::of_flags(head.flags);
        usual_kept_len(keep, head.header_len.into(), captured_len.into()) as usize
    };
    Some(Parsed {
        head,
        wire_len,
        data: after.get(..kept_len)?,
        len: at.saturating_add(kept_len),
    })
}

/// What the compact record that `record` begins with says of itself; `None` if it is another one.
pub(crate) fn head(record: &[u8]) -> Option<&CompactBytes> {
    let (head, _) = CompactBytes::ref_from_prefix(record).ok()?;
    (head.kind == kind::COMPACT).then_some(head)
}

/// The compact record that `record` begins with, whose data may end too early, in full: with the
/// data that there are. `None` if not even what stands before them is there.
pub(crate) fn in_full(record: &[u8], seq: u64, ts_ns: u64) -> Option<Vec<u8>> {
    let head = head(record)?;
    let captured_len = head.captured_len.get();
    let (mut wire_len, mut data) = (captured_len, record.get(COMPACT_LEN..)?);
    if head.flags & packet_flag::LENGTHS != 0 {
        let (lengths, after) = LengthsBytes::ref_from_prefix(data).ok()?;
        (wire_len, data) = (lengths.wire_len.get(), after);
    }
    let packet = PacketRecord {
        ts_ns,
        seq,
        wire_len: wire_len.into(),
        captured_len: captured_len.into(),
        header_len: head.header_len.into(),
        interface: head.interface.into(),
        verdict: head.verdict.get(),
        keep: KeepKind::of_flags(head.flags),
        has_timestamp: true,
        data: data.get(..data.len().min(captured_len.into()))?,
        options: &[],
    };
    let mut full = Vec::with_capacity(PACKET_HEADER_LEN.saturating_add(data.len()));
    packet.emit(&mut full);
    Some(full)
}

/// Bytes of the record of any kind that `rest` begins with; `None` if it reaches beyond.
pub(crate) fn stored_len(rest: &[u8]) -> Option<usize> {
    if rest.first() == Some(&kind::COMPACT) {
        return parse(rest).map(|parsed| parsed.len);
    }
    let (prefix, _) = Prefix::ref_from_prefix(rest).ok()?;
    let len = PREFIX_LEN.checked_add(prefix.len.get() as usize)?;
    (len <= rest.len()).then_some(len)
}

/// The time in the record of kind 11 that `record` is.
pub(crate) fn time_of(record: &[u8]) -> Option<u64> {
    let bytes = record.get(PREFIX_LEN..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}
