//! The counters of packets in flight.

use strata_blocks::{BlockCounters, CompactPacket, PacketRecord};
use strata_wire::{CutWhere, KeepKind};

/// Counts a packet as the worker's ledger does.
pub(super) fn count(counters: &mut BlockCounters, packet: &PacketRecord<'_>) {
    let lengths = [packet.wire_len, packet.captured_len].map(u64::from);
    count_lengths(counters, lengths, packet.data.len() as u64, packet.keep);
}

/// Counts a compact packet likewise.
#[inline]
pub(super) fn count_compact(counters: &mut BlockCounters, packet: &CompactPacket<'_>) {
    let lengths = [packet.wire_len, packet.captured_len].map(u64::from);
    let keep = KeepKind::of_flags(packet.flags);
    count_lengths(counters, lengths, packet.kept_len.into(), keep);
}

/// Counts a packet of which `kept` bytes were kept.
#[inline]
fn count_lengths(
    counters: &mut BlockCounters,
    [wire, captured]: [u64; 2],
    kept: u64,
    keep: KeepKind,
) {
    let wire = wire.max(captured);
    counters.packets += 1;
    counters.wire_bytes += wire;
    counters.logged_bytes += kept;
    counters.cut_bytes[CutWhere::Snaplen as usize] += wire - captured;
    counters.cut_bytes[keep.cut_where() as usize] += captured - kept;
}

/// Adds up counters.
pub(super) fn add(sum: &mut BlockCounters, other: &BlockCounters) {
    sum.packets += other.packets;
    sum.wire_bytes += other.wire_bytes;
    sum.logged_bytes += other.logged_bytes;
    for (sum, bytes) in sum.cut_bytes.iter_mut().zip(other.cut_bytes) {
        *sum += bytes;
    }
}
