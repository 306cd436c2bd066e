//! Packets that did not reach the workers: full rings, and the host's own drop counters.

use strata_capture::live::{Drops, Lost, RingCounts};
use strata_control::LostStatus;
use strata_wire::grouped;

/// By place and counter.
pub(super) fn lost(rings: &[(String, RingCounts)], drops: &Drops) -> Vec<LostStatus> {
    let full = rings
        .iter()
        .filter(|(_, ring)| ring.dropped > 0)
        .map(|(name, ring)| (Lost::Kernel, format!("{name} ring"), ring.dropped));
    full.chain(drops.iter().cloned())
        .map(|(place, counter, packets)| LostStatus {
            place: place.name().to_owned(),
            counter,
            packets,
            advice: place.advice().to_owned(),
        })
        .collect()
}

/// A loss as text for the log's manifest.
pub(super) fn text(lost: &LostStatus) -> String {
    format!(
        "lost before Strata, {} ({}): {} packets; {}",
        lost.place,
        lost.counter,
        grouped(lost.packets),
        lost.advice
    )
}
