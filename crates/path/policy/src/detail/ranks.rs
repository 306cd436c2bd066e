//! In what order packets get detail, and how much payload comes where in that order.
//!
//! A packet's place is where its payload ends in its flow, its own counted twice, in quarters of a
//! doubling: what is early comes first, and a short packet before a long one. So flows that are short
//! are kept whole, and what comes late in long ones pays for it. What is late has a lot: a packet counts
//! as no later than its length times a number drawn from 0 to 512, so that standing connections are
//! sampled too, by packets rather than by bytes. Of the same place, some flows come before others.
//!
//! Scores have no part in it. A model does not know whether its scores are right where it is used: an
//! order by them kept fewer attacks that no model had seen, of whichever model (docs/choosing-a-model.md).

use strata_wire::wide::{GROUP, Lanes};

use super::flows::{Positions, UNITS_MAX};

/// This bit of a step says that the modes want the packet's detail.
pub(super) const WANTED: u8 = 128;
/// This bit of an offer says the same.
const WANTED_OFFER: u16 = 1 << 15;

/// Payload is counted in units of 16 bytes.
const UNIT_BITS: u32 = 4;
/// The largest number of a lot is this power of two, ...
const LOT_BITS: u32 = 9;
/// ... and has this many bits: with those of a length, no more than 32.
const NUMBER_BITS: u32 = 14;
/// The longest payload that has a lot of its own.
const LOT_LEN_MAX: u32 = (1 << (32 - NUMBER_BITS)) - 1;
/// Odd numbers without a pattern, by which counts become random.
const STEP: u32 = 0x9e37_79b9;
const MIXED: u32 = 0xd6e8_feb9;
/// From the product of length and number to units.
const LOT_SHIFT: u32 = NUMBER_BITS + UNIT_BITS - LOT_BITS;
/// Places are quarters of a doubling, from 16 bytes, which is this one, to 1 MiB.
const PLACE_MAX: u32 = 63;
/// A floating-point number without what is below the quarters of its exponent; such is 1.
const FLOAT_SHIFT: u32 = f32::MANTISSA_DIGITS - 3;
const FLOAT_ONE: u32 = 127 << 2;
/// Ranks within a place, by flow.
const RANK_BITS: u32 = 4;
const OF_FLOW: u32 = (1 << RANK_BITS) - 1;
/// Above all ranks.
#[allow(clippy::cast_possible_truncation, reason = "1,024")]
pub(super) const NO_RANK: u16 = ((PLACE_MAX + 1) << RANK_BITS) as u16;
const RANKS: usize = NO_RANK as usize;
/// The rank of what ends with the first KiB of its flow.
#[allow(clippy::cast_possible_truncation, reason = "less than all ranks")]
pub(super) const RANK_FIRST: u16 = ((PLACE_MAX - 24) << RANK_BITS) as u16;
/// The lanes of a group.
const IN_ORDER: [u32; GROUP] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
/// How often flows are taken to have come half as far, in packet time: one that lives for days begins
/// anew, a little at a time.
const HALVED_NS: u64 = 3_600_000_000_000;
/// This much of the known ranks is forgotten at the end of an interval.
pub(super) const FORGOTTEN: f64 = 1.0 / 64.0;

/// What a packet is offered with: its rank, and above all ranks whether the modes want its detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DetailOffer(pub u16);

impl DetailOffer {
    /// A packet with this rank and step.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "less than all ranks")]
    pub(super) fn new(rank: u32, step: u8) -> Self {
        Self(rank as u16 | u16::from(step & WANTED) << 8)
    }

    #[inline(always)]
    pub(super) fn is_wanted(self) -> bool {
        self.0 & WANTED_OFFER != 0
    }

    #[inline(always)]
    pub(super) fn rank(self) -> u16 {
        self.0 & !WANTED_OFFER
    }
}

/// Gives each packet its rank.
#[derive(Debug)]
pub(super) struct Order {
    positions: Positions,
    /// Packets so far, wrapping.
    drawn: u32,
    halved_ns: Option<u64>,
}

impl Order {
    pub(super) fn new() -> Self {
        Self {
            positions: Positions::new(),
            drawn: 0,
            halved_ns: None,
        }
    }

    /// Takes in that it is as late as this.
    pub(super) fn at(&mut self, now_ns: u64) {
        let halved_ns = *self.halved_ns.get_or_insert(now_ns);
        if now_ns < halved_ns {
            self.halved_ns = Some(now_ns);
        } else if now_ns - halved_ns >= HALVED_NS {
            self.halved_ns = Some(now_ns);
            self.positions.halve();
        }
    }

    /// The rank of a packet with this payload, 0 if it has none; 0 is the fingerprint of what has no flow.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "bounded or cut on purpose")]
    pub(super) fn rank(&mut self, fingerprint: u64, payload: u32) -> u32 {
        let number = self.drawn.wrapping_mul(STEP);
        self.drawn = self.drawn.wrapping_add(1);
        if payload == 0 {
            return 0;
        }
        let units = payload >> UNIT_BITS;
        let end = self.positions.end(fingerprint, (units + 1).min(UNITS_MAX)) + units;
        let flow = (fingerprint >> 32) as u32;
        let mixed = flow.wrapping_add(number);
        let mixed = mixed.wrapping_add(mixed >> 15).wrapping_mul(MIXED);
        let lot = (payload.min(LOT_LEN_MAX) * (mixed >> (32 - NUMBER_BITS))) >> LOT_SHIFT;
        let units = end.min(lot + 1).min(UNITS_MAX);
        place(units) << RANK_BITS | (flow & OF_FLOW)
    }

    /// The ranks of packets of a group, as [`Order::rank`] has them one by one; of those in other than
    /// these lanes, which are next to each other, no payload is handed over, and nothing is counted.
    #[inline(always)]
    pub(super) fn ranks<L: Lanes>(
        &mut self,
        l: L,
        (flows, payload): (&[u64; GROUP], L::U32),
        lanes: u16,
    ) -> L::U32 {
        let one = l.set(1);
        let is_any = l.le(one, payload);
        let units = l.shr(payload, UNIT_BITS);
        let flow = l.narrow(l.shr_64(l.load_64(flows), 32));
        let counted = l.only(is_any, l.min(l.add(units, one), l.set(UNITS_MAX)));
        let end = l.add(self.positions.ends(l, (flows, flow), counted), units);
        let before_all = self.drawn.wrapping_sub(lanes.trailing_zeros());
        let drawn = l.add(l.set(before_all), l.load(&IN_ORDER));
        self.drawn = self.drawn.wrapping_add(lanes.count_ones());
        let mixed = l.add(flow, l.mul(drawn, l.set(STEP)));
        let mixed = l.mul(l.add(mixed, l.shr(mixed, 15)), l.set(MIXED));
        let number = l.shr(mixed, 32 - NUMBER_BITS);
        let lot = l.shr(l.mul(l.min(payload, l.set(LOT_LEN_MAX)), number), LOT_SHIFT);
        let end = l.min(l.min(end, l.add(lot, one)), l.set(UNITS_MAX));
        let quarters = l.shr(l.bits_of_short(end), FLOAT_SHIFT);
        let place = l.shl(l.sub(l.set(PLACE_MAX + FLOAT_ONE), quarters), RANK_BITS);
        l.only(is_any, l.or(place, l.and(flow, l.set(OF_FLOW))))
    }
}

/// The place of a packet that counts as this far in its flow, from 1 to 65,535 units: four times the
/// logarithm to base two, with a straight line between powers, from the end.
#[inline(always)]
#[allow(clippy::cast_precision_loss, reason = "it is exact")]
fn place(units: u32) -> u32 {
    PLACE_MAX + FLOAT_ONE - ((units as f32).to_bits() >> FLOAT_SHIFT)
}

/// Bytes of payload by rank.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ranks(Box<[f64; RANKS]>);

impl Ranks {
    pub(super) fn new() -> Self {
        Self(Box::new([0.0; RANKS]))
    }

    pub(super) fn sum(&self) -> f64 {
        self.0.iter().sum()
    }

    /// Adds what came in an interval; what came before has less weight.
    pub(super) fn add_recent(&mut self, seen: &Seen) {
        #[allow(clippy::cast_precision_loss)]
        for (known, &new) in self.0.iter_mut().zip(seen.0.iter()) {
            *known = *known * (1.0 - FORGOTTEN) + new as f64;
        }
    }

    /// Takes away what came of what was to come.
    pub(super) fn take_away(&mut self, seen: &Seen) {
        #[allow(clippy::cast_precision_loss)]
        for (left, &new) in self.0.iter_mut().zip(seen.0.iter()) {
            *left = (*left - new as f64).max(0.0);
        }
    }

    /// For each of these parts of it, ascending: the least rank of those that have it, which the last of
    /// them may exceed.
    pub(super) fn least<const N: usize>(&self, parts: [f64; N]) -> [u16; N] {
        let sum = self.sum();
        let mut found = [0; N];
        let mut open = found.iter_mut().zip(parts).peekable();
        let mut above = 0.0;
        for (rank, bytes) in (0..NO_RANK).zip(self.0.iter()).rev() {
            above += bytes;
            while let Some((least, _)) = open.next_if(|(_, part)| above > sum * part.max(0.0)) {
                *least = rank;
            }
            if open.peek().is_none() {
                break;
            }
        }
        found
    }
}

impl From<&Seen> for Ranks {
    #[allow(clippy::cast_precision_loss)]
    fn from(seen: &Seen) -> Self {
        let mut ranks = Self::new();
        for (rank, &bytes) in ranks.0.iter_mut().zip(seen.0.iter()) {
            *rank = bytes as f64;
        }
        ranks
    }
}

/// Bytes of payload by rank, counted.
#[derive(Debug)]
pub(super) struct Seen(Box<[u64; RANKS]>);

impl Seen {
    pub(super) fn new() -> Self {
        Self(Box::new([0; RANKS]))
    }

    #[inline(always)]
    pub(super) fn add(&mut self, rank: u32, payload: u32) {
        self.0[rank as usize % RANKS] += u64::from(payload);
    }

    pub(super) fn clear(&mut self) {
        self.0.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use strata_wire::wide::{Kernel, Simd};

    use super::*;

    #[test]
    fn early_comes_first_and_a_short_packet_before_a_long_one() {
        assert_eq!(place(1), PLACE_MAX);
        assert_eq!(place(UNITS_MAX), 0);
        assert_eq!(
            place(1 << (10 - UNIT_BITS)) << RANK_BITS,
            u32::from(RANK_FIRST)
        );
        assert!((1..UNITS_MAX).all(|units| place(units) >= place(units + 1)));
        let of = |payloads: &[u32]| {
            let mut order = Order::new();
            let ranks = payloads.iter().map(|&payload| order.rank(7 << 48, payload));
            ranks.last().unwrap() >> RANK_BITS
        };
        // Ends at 256 bytes, 256 of them its own: as what ends at 512.
        assert!(of(&[40]) > of(&[256]));
        assert!(of(&[256]) > of(&[1_000, 256]).min(of(&[256, 256, 256, 256])));
    }

    /// Of what is late, as many of the short packets as of the long ones would be a lot by bytes.
    #[test]
    fn late_packets_have_a_lot_in_which_short_ones_count_more() {
        let mut order = Order::new();
        let mut early = |payload: u32| {
            let flow = 9 << 48;
            for _ in 0..100 {
                order.rank(flow, 65_000);
            }
            let ranks = (0..20_000).map(|_| order.rank(flow, payload));
            // As what ends with the first 4 KiB.
            ranks
                .filter(|&rank| rank >= u32::from(RANK_FIRST) - (8 << RANK_BITS))
                .count()
        };
        let [short, long] = [100, 1_400].map(&mut early);
        assert!((1_300..2_100).contains(&short), "{short} of 20,000");
        assert!((110..190).contains(&long), "{long} of 20,000");
    }

    #[test]
    fn flows_that_live_for_hours_come_nearer_to_their_beginning() {
        let mut order = Order::new();
        order.positions.end(5 << 48, 800);
        // One more each time.
        let mut end = |now_ns: u64| {
            order.at(now_ns);
            order.positions.end(5 << 48, 1)
        };
        assert_eq!(end(0), 801);
        assert_eq!(
            [end(HALVED_NS - 1), end(HALVED_NS), end(HALVED_NS + 1)],
            [802, 402, 403]
        );
        // A clock that was set back starts anew.
        assert_eq!(
            [end(5), end(HALVED_NS + 4), end(HALVED_NS + 5)],
            [404, 405, 203]
        );
    }

    #[test]
    fn a_part_ends_where_the_ranks_above_have_used_it_up() {
        let mut seen = Seen::new();
        for rank in [1_000, 900, 800, 700] {
            seen.add(rank, 100);
        }
        let mut ranks = Ranks::from(&seen);
        assert_eq!(ranks.least([0.2, 0.3, 0.6, 2.0]), [1_000, 900, 800, 0]);
        seen.clear();
        seen.add(1_000, 300);
        ranks.take_away(&seen);
        assert_eq!(ranks.least([0.2]), [900]);
        assert!((ranks.sum() - 300.0).abs() < 1e-9);
    }

    /// Offers packets by groups, in lanes from the first to those that are left.
    struct InLanes<'a> {
        order: &'a mut Order,
        packets: &'a [(u64, u32)],
        first: usize,
    }

    impl Kernel for InLanes<'_> {
        type Output = Vec<u32>;

        fn run<L: Lanes>(self, l: L) -> Vec<u32> {
            let mut all = Vec::new();
            let mut left = self.packets;
            let mut first = self.first;
            while !left.is_empty() {
                let (here, others) = left.split_at(left.len().min(GROUP - first));
                let (mut flows, mut lens) = ([77; GROUP], [0; GROUP]);
                for (lane, &(flow, len)) in (first..).zip(here) {
                    (flows[lane], lens[lane]) = (flow, len);
                }
                let lanes = (u16::MAX >> (GROUP - here.len())) << first;
                let mut ranks = [0; GROUP];
                l.store(
                    self.order.ranks(l, (&flows, l.load(&lens)), lanes),
                    &mut ranks,
                );
                all.extend_from_slice(&ranks[first..first + here.len()]);
                (left, first) = (others, 0);
            }
            all
        }
    }

    proptest! {
        #[test]
        fn lanes_have_the_ranks_of_packets_one_by_one(
            packets in prop::collection::vec(
                (
                    prop_oneof![0..4_u64, any::<u64>()].prop_map(|flow| flow << 16 | flow << 32 | flow << 48),
                    prop_oneof![Just(0), 1..2_000_u32, Just(1 << 18), any::<u32>()],
                ),
                0..200,
            ),
            first in 0..GROUP,
        ) {
            let mut one = Order::new();
            let ranks: Vec<_> = packets.iter().map(|&(flow, len)| one.rank(flow, len)).collect();
            for simd in Simd::available() {
                let mut order = Order::new();
                let packets = &packets;
                prop_assert_eq!(&simd.run(InLanes { order: &mut order, packets, first }), &ranks);
                prop_assert_eq!(order.drawn, one.drawn);
            }
        }
    }
}
