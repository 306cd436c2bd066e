//! The counters of packets in flight.

use strata_blocks::{BlockCounters, PacketRecord};
use strata_wire::CutWhere;

/// Counts a packet as the worker's ledger does.
pub(super) fn count(counters: &mut BlockCounters, packet: &PacketRecord<'_>) {
    let wire = u64::from(packet.wire_len.max(packet.captured_len));
    let (captured, kept) = (u64::from(packet.captured_len), packet.data.len() as u64);
    counters.packets += 1;
    counters.wire_bytes += wire;
    counters.logged_bytes += kept;
    counters.cut_bytes[CutWhere::Snaplen as usize] += wire - captured;
    let place = packet.keep.cut_where();
    counters.cut_bytes[place as usize] += captured - kept;
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
