//! Packets that did not reach the workers: full rings, and the host's own drop counters.

use strata_capture::live::{Drops, Lost, RingCounts};
use strata_control::LostStatus;
use strata_store::LOST_BEFORE;
use strata_wire::grouped;

/// By place and counter, while this mode is in force.
pub(super) fn lost(rings: &[(String, RingCounts)], drops: &Drops, mode: &str) -> Vec<LostStatus> {
    let full = rings
        .iter()
        .filter(|(_, ring)| ring.dropped > 0)
        .map(|(name, ring)| LostStatus {
            place: Lost::Kernel.name().to_owned(),
            counter: format!("{name} ring"),
            packets: ring.dropped,
            advice: of_ring(ring.bytes, mode),
        });
    let elsewhere = drops.iter().map(|(place, counter, packets)| LostStatus {
        place: place.name().to_owned(),
        counter: counter.clone(),
        packets: *packets,
        advice: place.advice().to_owned(),
    });
    full.chain(elsewhere).collect()
}

/// Largest ring that `-B` takes, in KiB.
const RING_KIB_MAX: usize = (1 << 22) - 1;
/// Modes after which others keep less.
const KEEP_MUCH: [&str; 2] = ["default", "log-all"];

/// What to do about a ring of `bytes` bytes that was full.
fn of_ring(bytes: usize, mode: &str) -> String {
    let kib = bytes / 1024;
    let memory = match kib {
        0 | RING_KIB_MAX.. => String::from(": "),
        _ => format!(
            "; it has {} KiB: try -B {}, ",
            grouped(kib as u64),
            kib.saturating_mul(4).min(RING_KIB_MAX)
        ),
    };
    let mode = match KEEP_MUCH.contains(&mode) {
        true => ", keep less (--mode log-minimum)",
        false => "",
    };
    format!("the ring was full{memory}spread flows over more cores (--cores){mode}, or filter")
}

/// A loss as text for the log's manifest.
pub(super) fn text(lost: &LostStatus) -> String {
    format!(
        "{LOST_BEFORE}, {} ({}): {} packets; {}",
        lost.place,
        lost.counter,
        grouped(lost.packets),
        lost.advice
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_the_ring_and_what_is_left_to_do() {
        let of = |kib: usize, mode| of_ring(kib * 1024, mode);
        assert!(of(512, "default").contains("has 512 KiB: try -B 2048, "));
        assert!(of(512, "default").contains("--mode log-minimum"));
        assert!(of(2 << 20, "default").contains("try -B 4194303, "));
        // No advice for what is done already, or cannot be done.
        for mode in ["log-minimum", "log-sampled", "default+own"] {
            assert!(!of(512, mode).contains("--mode"), "{mode}");
        }
        assert!(!of(RING_KIB_MAX, "default").contains("-B"));
        assert!(!of(0, "default").contains("-B"));
    }
}
