//! The counters of packets in flight.

use strata_blocks::{BlockCounters, CompactPacket};
use strata_wire::KeepKind;

/// Counts a compact packet as the worker's ledger does.
#[inline]
pub(super) fn count_compact(counters: &mut BlockCounters, packet: &CompactPacket<'_>) {
    let lengths = [packet.wire_len, packet.captured_len].map(u32::from);
    let keep = KeepKind::of_flags(packet.flags);
    counters.count_lengths(lengths, packet.kept_len.into(), keep);
}
