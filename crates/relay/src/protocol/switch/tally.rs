//! The books of packets that are on their way.

use strata_store::{BlockTally, RawPacket};
use strata_wire::{CutWhere, Keep};

/// Counts a packet as the worker's ledger does.
pub(super) fn count(tally: &mut BlockTally, raw: &RawPacket<'_>) {
    let packet = &raw.packet;
    let wire = u64::from(packet.wire_len.max(packet.captured_len));
    let (captured, kept) = (u64::from(packet.captured_len), packet.data.len() as u64);
    tally.packets += 1;
    tally.wire_bytes += wire;
    tally.logged_bytes += kept;
    tally.cut_bytes[CutWhere::Snaplen as usize] += wire - captured;
    let place = if packet.keep_code == Keep::Partial(0).code() {
        CutWhere::Partial
    } else {
        CutWhere::Header
    };
    tally.cut_bytes[place as usize] += captured - kept;
}

/// Adds up books.
pub(super) fn add(sum: &mut BlockTally, other: &BlockTally) {
    sum.packets += other.packets;
    sum.wire_bytes += other.wire_bytes;
    sum.logged_bytes += other.logged_bytes;
    for (sum, bytes) in sum.cut_bytes.iter_mut().zip(other.cut_bytes) {
        *sum += bytes;
    }
}
