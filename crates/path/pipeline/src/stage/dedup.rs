//! The stage of duplicates: takes out copies of packets that were captured before, as by a second mirror port.
//!
//! Identities of the latest packets are in a ring, in the order of their arrival, with a chain of positions for
//! each value of a part of their hash. Nothing is ever taken out of a chain: it goes from later to earlier
//! packets, so it ends at the first that the ring has forgotten.

use foldhash::quality::RandomState;
use strata_capture::{PacketRef, Packets};
use strata_wire::dissect::dissect;
use strata_wire::sighting::{Differing, Identities, Sighting};
use strata_wire::{Counters, Ledger, TunnelKey, exact};

use super::parse::ParseStage;
use crate::flows::wire_bytes;

/// Packets remembered by one worker: 32 bytes each, and 8 for a chain.
const REMEMBERED_MAX: usize = 1 << 20;
/// Packets of a chain that one is compared with.
const COMPARED_MAX: usize = 32;
/// How much later than its time a packet may be seen and still be compared with all: rings of interfaces are
/// read one after the other, and captures of several queues are not quite in order.
const LATE_NS: u64 = 100_000_000;

/// What a recording removes as duplicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dedup {
    /// Largest distance in time between two copies, ns.
    pub window_ns: u64,
    /// What may differ between them.
    pub differing: Differing,
}

/// Takes duplicates out of batches. A duplicate is a packet whose identity
/// ([`sighting`](strata_wire::sighting)), with all bytes that were captured, is that of a packet that was
/// passed on, if their times differ by at most the window. So of the copies of a packet, the one that arrives
/// first is passed on; copies cut at different lengths are not the same.
///
/// Memory: at most 40 MiB, reserved at the start and used as packets come. A packet that may have a copy
/// among those that were forgotten is counted as uncompared, as are those without a time, and those that are
/// cut and not told apart by what is left ([`Sighting::is_told_apart`]).
#[derive(Debug)]
pub(crate) struct DedupStage {
    window_ns: u64,
    identities: Identities<RandomState>,
    /// By a part of the hash, one more than the number of the latest packet that has it; 0 for none.
    latest: Vec<u64>,
    /// By number of the packet, modulo its length.
    ring: Vec<Remembered>,
    /// Numbers of the packets in the ring.
    first: u64,
    next: u64,
    newest_ns: u64,
    /// The latest time of packets that were forgotten; `None` for none.
    forgotten_ns: Option<u64>,
    duplicates: Counters,
    uncompared: Counters,
}

#[derive(Clone, Copy, Debug)]
struct Remembered {
    identity: [u64; 2],
    ts_ns: u64,
    /// One more than the number of the packet before it in its chain.
    before: u64,
}

const _: () = assert!(size_of::<Remembered>() == 32);

/// What is found out about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    First,
    Duplicate,
    /// Perhaps a duplicate.
    Uncompared,
}

impl DedupStage {
    pub(crate) fn new(dedup: Dedup) -> Self {
        Self::remembering(dedup, REMEMBERED_MAX)
    }

    fn remembering(dedup: Dedup, packets: usize) -> Self {
        let hashers = [RandomState::default(), RandomState::default()];
        Self {
            window_ns: dedup.window_ns,
            identities: Identities::new(dedup.differing, hashers),
            latest: vec![0; packets],
            ring: Vec::with_capacity(packets),
            first: 0,
            next: 0,
            newest_ns: 0,
            forgotten_ns: None,
            duplicates: Counters::default(),
            uncompared: Counters::default(),
        }
    }

    /// Packets that were taken out so far.
    pub(crate) fn duplicates(&self) -> Counters {
        self.duplicates
    }

    pub(crate) fn add_to(&self, ledger: &mut Ledger) {
        ledger.seen.merge(self.duplicates);
        ledger.duplicates.merge(self.duplicates);
        ledger.uncompared.merge(self.uncompared);
    }

    /// Moves the places of packets that are no duplicates to the front. Returns how many these are.
    pub(crate) fn choose<P: Packets + ?Sized>(
        &mut self,
        parse: &ParseStage,
        (batch, start): (&P, usize),
        places: &mut [u8],
    ) -> usize {
        let mut passed = 0;
        for at in 0..places.len() {
            let place = places[at];
            let packet = batch.get(start + usize::from(place));
            match self.find(parse, &packet) {
                Found::Duplicate => {
                    self.duplicates.add(wire_bytes(&packet));
                    continue;
                }
                Found::Uncompared => self.uncompared.add(wire_bytes(&packet)),
                Found::First => {}
            }
            places[passed] = place;
            passed += 1;
        }
        passed
    }

    fn find(&mut self, parse: &ParseStage, packet: &PacketRef<'_>) -> Found {
        let link = parse.source(packet.interface).interface.link;
        let mut sighting = Sighting {
            link,
            data: packet.data,
            wire_len: packet.wire_len,
            header_len: packet.data.len(),
        };
        if sighting.is_cut() {
            let headers = dissect(link, packet.data, TunnelKey::Inner);
            let captured_len = exact::<u32>(packet.data.len());
            sighting.header_len = headers.kept_header_len(captured_len) as usize;
        }
        if !packet.has_timestamp || !sighting.is_told_apart() {
            return Found::Uncompared;
        }
        let identity = self.identities.of(&sighting, packet.data.len());
        self.look_up(identity.hash, packet.ts_ns)
    }

    /// Looks for a packet of this identity, and remembers it if there is none.
    fn look_up(&mut self, identity: [u64; 2], ts_ns: u64) -> Found {
        self.forget(ts_ns);
        #[allow(clippy::cast_possible_truncation, reason = "a remainder of a length")]
        let chain = (identity[0] % self.latest.len() as u64) as usize;
        let (mut link, mut compared) = (self.latest[chain], 0);
        let latest = link;
        // A packet in the ring has a number from `first` on, and one more is in the chain.
        while link > self.first && compared < COMPARED_MAX {
            let other = self.ring[self.place(link - 1)];
            if other.identity == identity && other.ts_ns.abs_diff(ts_ns) <= self.window_ns {
                return Found::Duplicate;
            }
            link = other.before;
            compared += 1;
        }
        let is_all = link <= self.first;
        let since_ns = ts_ns.saturating_sub(self.window_ns);
        let is_forgotten = self.forgotten_ns.is_some_and(|ns| ns >= since_ns);
        if self.next - self.first >= self.latest.len() as u64 {
            self.forget_oldest();
        }
        let place = self.place(self.next);
        let remembered = Remembered {
            identity,
            ts_ns,
            before: latest,
        };
        match self.ring.get_mut(place) {
            Some(old) => *old = remembered,
            None => self.ring.push(remembered),
        }
        self.next += 1;
        self.latest[chain] = self.next;
        match is_all && !is_forgotten {
            true => Found::First,
            false => Found::Uncompared,
        }
    }

    /// Forgets packets that none has to be compared with any longer, now that one of this time has come.
    fn forget(&mut self, ts_ns: u64) {
        let reach_ns = self.window_ns.saturating_add(LATE_NS);
        if ts_ns.saturating_add(reach_ns) < self.newest_ns {
            // The clock was set back, or another capture begins: packets of this time may have gone
            // by, and those up to the newest are forgotten.
            self.first = self.next;
            self.forgotten_ns = self.forgotten_ns.max(Some(self.newest_ns));
            self.newest_ns = 0;
        }
        self.newest_ns = self.newest_ns.max(ts_ns);
        while self.first < self.next {
            let oldest_ns = self.ring[self.place(self.first)].ts_ns;
            if oldest_ns.saturating_add(reach_ns) >= self.newest_ns {
                break;
            }
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let oldest_ns = self.ring[self.place(self.first)].ts_ns;
        self.first += 1;
        self.forgotten_ns = self.forgotten_ns.max(Some(oldest_ns));
    }

    /// Where the packet of this number is in the ring.
    #[allow(clippy::cast_possible_truncation, reason = "a remainder of a length")]
    fn place(&self, number: u64) -> usize {
        (number % self.latest.len() as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A stage that remembers this many packets, with a window of 50 ms.
    fn stage(packets: usize) -> DedupStage {
        let dedup = Dedup {
            window_ns: 50 * MS,
            differing: Differing::default(),
        };
        DedupStage::remembering(dedup, packets)
    }

    /// Looks packets up: numbers for identities, and times in ms.
    fn found(stage: &mut DedupStage, packets: &[(u64, u64)]) -> Vec<Found> {
        let look_up = |&(identity, ms): &(u64, u64)| stage.look_up([identity, !identity], ms * MS);
        packets.iter().map(look_up).collect()
    }

    #[test]
    fn copies_within_the_window_are_duplicates_in_any_order() {
        use Found::{Duplicate, First};
        let mut stage = stage(64);
        let packets = [
            (1, 1_000),
            (1, 1_050),
            // Too late for the one that was passed on.
            (1, 1_051),
            (2, 1_100),
            // From a ring that is read later.
            (3, 1_020),
            (2, 1_060),
            (1, 1_060),
            (65, 1_100),
        ];
        let expected = [
            First, Duplicate, First, First, First, Duplicate, Duplicate, First,
        ];
        assert_eq!(found(&mut stage, &packets), expected);
    }

    /// A bounded list of all that was passed on is the reference.
    #[test]
    fn every_packet_is_found_or_counted_as_uncompared() {
        let mut random = 7_u64;
        let mut below = |n: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) % n
        };
        for remembered in [16, 4_096] {
            let mut stage = stage(remembered);
            let mut passed: Vec<(u64, u64)> = Vec::new();
            let (mut now, mut duplicates, mut uncompared) = (10_000, 0, 0);
            for _ in 0..20_000 {
                now += below(3);
                // Now and then out of order, and sometimes by more than is waited for.
                let late = match below(1_000) {
                    0..100 => below(120),
                    100..105 => below(400),
                    _ => 0,
                };
                let (identity, ms) = (below(500), now - late);
                let is_copy = passed
                    .iter()
                    .any(|&(other, at)| other == identity && at.abs_diff(ms) <= 50);
                match stage.look_up([identity, identity], ms * MS) {
                    Found::Duplicate => {
                        assert!(is_copy);
                        duplicates += 1;
                        continue;
                    }
                    Found::First => assert!(!is_copy),
                    Found::Uncompared => uncompared += 1,
                }
                passed.push((identity, ms));
            }
            assert!(duplicates > 50, "{duplicates}");
            assert_eq!(uncompared > 10_000, remembered == 16, "{uncompared}");
        }
    }

    #[test]
    fn a_full_ring_and_a_clock_set_back_are_counted() {
        use Found::{Duplicate, First, Uncompared};
        let mut stage = stage(2);
        let packets = [(1, 100), (2, 101), (3, 102), (2, 103), (1, 104)];
        let expected = [First, First, First, Duplicate, Uncompared];
        assert_eq!(found(&mut stage, &packets), expected);
        let mut stage = self::stage(64);
        let packets = [
            (1, 10_000),
            (2, 90_000),
            (1, 10_010),
            (3, 10_120),
            (1, 10_050),
        ];
        let expected = [First, First, Uncompared, Uncompared, Duplicate];
        assert_eq!(found(&mut stage, &packets), expected);
        // The third is a copy of what passed 1 ms before, which one late packet made it forget.
        let mut stage = self::stage(64);
        let packets = [(1, 1_000), (2, 800), (1, 1_001)];
        let expected = [First, Uncompared, Uncompared];
        assert_eq!(found(&mut stage, &packets), expected);
    }
}
