//! In what order packets get detail, the running distribution of that, and where the budget ends
//! in it.
//!
//! A packet's place is where its payload ends in its flow, in quarters of a doubling: what is early
//! comes first, and a short packet before a long one. How unusual its score is makes it count as
//! earlier: a packet among the highest scores that have a half, a quarter, ... of the payload counts as
//! two, four, ... times as early. That has two bounds, so that scores alone do not decide: sixteen
//! times, and nothing comes before the first KiB of a flow because of its score. Of packets with the
//! same place, higher scores come first.

/// Steps of scores, and as many again for those that the modes want.
pub(super) const STEPS: usize = 256;
/// This bit of a step says that the modes want the packet's detail.
pub(super) const WANTED: u8 = 128;
/// Steps of scores.
const SCORES: usize = 128;
/// This bit of an offer says the same.
const WANTED_OFFER: u16 = 1 << 15;

/// Places are quarters of a doubling, from 64 bytes, which is this one, to 4 MiB.
const PLACE_MAX: u16 = 63;
/// Ranks within a place.
pub(super) const RANK_BITS: u32 = 4;
/// Above all ranks.
pub(super) const NO_RANK: u16 = (PLACE_MAX + 1) << RANK_BITS;
const RANKS: usize = NO_RANK as usize;

/// How much earlier a score makes a packet count at most, in quarters of a doubling.
const BOOST_MAX: u16 = 16;
/// The place of what ends with the first KiB of its flow: scores alone lift nothing above.
const PLACE_BOOSTED_MAX: u16 = PLACE_MAX - 16;
/// The rank of what ends with the first KiB of its flow.
pub(super) const RANK_FIRST: u16 = PLACE_BOOSTED_MAX << RANK_BITS;

/// A share of this of the ranks is forgotten at the end of an interval, ...
const RANKS_FORGOTTEN: f64 = 1.0 / 64.0;
/// ... and this of the scores: an attack shall not be what is usual within seconds.
const SCORES_FORGOTTEN: f64 = 1.0 / 2048.0;

/// What a packet is offered with: its rank, and above all ranks whether the modes want its detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DetailOffer(pub u16);

impl DetailOffer {
    /// A packet without payload.
    #[inline(always)]
    pub(super) fn of_nothing(step: u8) -> Self {
        Self(u16::from(step & WANTED) << 8)
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

/// Bytes of payload by score and by rank.
#[derive(Debug)]
pub(super) struct Ranks {
    /// In the current interval.
    scores: [u64; STEPS],
    ranks: Box<[u64; RANKS]>,
    /// Before, with less weight the longer ago.
    known_scores: [f64; SCORES],
    known_ranks: Box<[f64; RANKS]>,
    /// What the budget was worth meanwhile.
    known_earned: f64,
    /// By step: how much earlier it counts.
    boosts: [u8; STEPS],
}

impl Ranks {
    /// Nothing is known yet, so what is early goes first.
    pub(super) fn new() -> Self {
        Self {
            scores: [0; STEPS],
            ranks: Box::new([0; RANKS]),
            known_scores: [0.0; SCORES],
            known_ranks: Box::new([0.0; RANKS]),
            known_earned: 0.0,
            boosts: [0; STEPS],
        }
    }

    /// Counts payload with this step of its score, which ends at this unit of its flow.
    #[inline(always)]
    pub(super) fn add(&mut self, step: u8, end: u16, payload: u32) -> DetailOffer {
        let boost = u16::from(self.boosts[usize::from(step)]);
        let rank = rank(end, boost);
        self.scores[usize::from(step)] += u64::from(payload);
        self.ranks[usize::from(rank) % RANKS] += u64::from(payload);
        DetailOffer(rank | u16::from(step & WANTED) << 8)
    }

    /// Ends an interval in which the budget was worth `earned`.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn end_interval(&mut self, earned: f64) {
        let (wanted, others) = (usize::from(WANTED).., ..usize::from(WANTED));
        let new = self.scores[others].iter().zip(&self.scores[wanted]);
        for (known, (other, wanted)) in self.known_scores.iter_mut().zip(new) {
            *known = *known * (1.0 - SCORES_FORGOTTEN) + (other + wanted) as f64;
        }
        self.scores.fill(0);
        for (known, new) in self.known_ranks.iter_mut().zip(self.ranks.iter_mut()) {
            *known = *known * (1.0 - RANKS_FORGOTTEN) + std::mem::take(new) as f64;
        }
        self.known_earned = self.known_earned * (1.0 - RANKS_FORGOTTEN) + earned;
        self.find_boosts();
    }

    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "from 0 to 16"
    )]
    fn find_boosts(&mut self) {
        let all: f64 = self.known_scores.iter().sum();
        let mut from_here = 0.0;
        for (score, known) in self.known_scores.iter().enumerate().rev() {
            from_here += known;
            // What nobody has had is as unusual as anything.
            let doublings = if from_here > 0.0 {
                (all / from_here).log2()
            } else {
                f64::INFINITY
            };
            let boost = (4.0 * doublings).round().min(f64::from(BOOST_MAX)) as u8;
            self.boosts[score] = boost;
            self.boosts[score | usize::from(WANTED)] = boost;
        }
    }

    /// The rank in which `part` of the budget ends.
    pub(super) fn margin(&self, part: f64) -> u16 {
        let mut left = self.known_earned * part;
        for (rank, known) in (0..NO_RANK).zip(self.known_ranks.iter()).rev() {
            left -= known;
            if left < 0.0 {
                return rank;
            }
        }
        0
    }
}

/// The rank of a packet whose payload ends at this unit of its flow.
#[inline(always)]
#[allow(
    clippy::cast_possible_truncation,
    reason = "the exponent of 16 bits and two bits of the mantissa"
)]
fn rank(end: u16, boost: u16) -> u16 {
    // Four times the logarithm to base two, with a straight line between powers.
    let quarters = (f32::from(end).to_bits() >> (f32::MANTISSA_DIGITS - 3)) as u16 - (127 << 2);
    let place = PLACE_MAX - quarters;
    let boosted = (place + boost).min(PLACE_BOOSTED_MAX).max(place);
    boosted << RANK_BITS | boost.min((1 << RANK_BITS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_comes_first_and_unusual_counts_as_earlier() {
        let place = |end, boost| rank(end, boost) >> RANK_BITS;
        assert_eq!(place(1, 0), PLACE_MAX);
        assert_eq!(place(16, 0), PLACE_BOOSTED_MAX);
        assert_eq!(place(u16::MAX, 0), 0);
        for end in 1..u16::MAX {
            assert!(rank(end, 0) >= rank(end + 1, 0), "{end}");
            let four_times = place(end.saturating_mul(4), 8);
            assert!(four_times <= place(end, 0).max(PLACE_BOOSTED_MAX), "{end}");
            if (16..1 << 14).contains(&end) {
                assert_eq!(four_times, place(end, 0), "{end}");
            }
        }
        // Whatever its score, nothing passes the first bytes of another flow.
        assert!(rank(17, BOOST_MAX) < rank(15, 0));
        // Of the same place, the higher score.
        assert!(rank(1, 3) > rank(1, 2));
        assert!(rank(1, BOOST_MAX) < NO_RANK);
    }

    #[test]
    fn scores_of_half_the_payload_count_for_a_doubling() {
        let mut ranks = Ranks::new();
        for (step, payload) in [(10, 500), (20, 250), (30 | WANTED, 125), (40, 125)] {
            ranks.add(step, 1, payload);
        }
        ranks.end_interval(100.0);
        let boost = |step: u8| ranks.boosts[usize::from(step)];
        assert_eq!(
            [boost(0), boost(10), boost(20), boost(30), boost(40)],
            [0, 0, 4, 8, 12]
        );
        assert_eq!(boost(30), boost(30 | WANTED));
        assert_eq!(u16::from(boost(41)), BOOST_MAX);
    }

    #[test]
    fn the_budget_ends_where_the_ranks_above_have_cost_it() {
        let mut ranks = Ranks::new();
        let offers = [1, 4, 16, 64].map(|end| ranks.add(0, end, 100).rank());
        ranks.end_interval(250.0);
        assert_eq!(ranks.margin(0.2), offers[0]);
        assert_eq!(ranks.margin(0.5), offers[1]);
        assert_eq!(ranks.margin(1.0), offers[2]);
        assert_eq!(ranks.margin(2.0), 0);
    }
}
