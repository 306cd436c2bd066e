//! The running distribution of scores, and the thresholds that follow from it.

/// Steps of scores, and as many again for those that the modes want.
pub(super) const STEPS: usize = 256;
/// This bit of a step says that the modes want the packet's detail.
pub(super) const WANTED: u8 = 128;
/// Steps of scores.
pub(super) const BINS: usize = 128;
/// Ranks within a step of the score.
const RANKS: usize = 16;
pub(super) const RANK_BITS: u32 = RANKS.trailing_zeros();
/// A share of this is forgotten at the end of an interval.
const FORGOTTEN: f64 = 1.0 / 32.0;
/// Above the share of the budget that the modes want alone, the start of each flow goes first; below
/// this part of it, scores go first again.
const CROWDED_UNTIL: f64 = 0.8;

/// Above all ranks.
pub(super) const NO_RANK: u16 = u16::MAX;

/// Where the budget ends in the distribution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Margin {
    /// The step of the score in which it ends.
    pub(super) bin: u8,
    /// The least rank of those that it surely suffices for.
    pub(super) above: u16,
    /// The least rank of those that it suffices for in part.
    pub(super) within: u16,
}

/// Bytes of payload by score and rank.
#[derive(Debug)]
pub(super) struct Ranks {
    /// In the current interval, by step.
    pub(super) steps: [u64; STEPS],
    /// And by rank, of those that came close to the threshold.
    ranks: Box<[u64; BINS * RANKS]>,
    /// Before, with less weight the longer ago.
    known_steps: [f64; STEPS],
    known_ranks: Box<[f64; BINS * RANKS]>,
    /// What the budget was worth meanwhile.
    known_earned: f64,
    /// By step: the score that counts.
    bins: [u8; STEPS],
    /// Whether what the modes want is more than the budget.
    is_crowded: bool,
}

impl Ranks {
    /// Nothing is known yet, so what the modes want goes first.
    pub(super) fn new() -> Self {
        let mut ranks = Self {
            steps: [0; STEPS],
            ranks: Box::new([0; BINS * RANKS]),
            known_steps: [0.0; STEPS],
            known_ranks: Box::new([0.0; BINS * RANKS]),
            known_earned: 0.0,
            bins: [0; STEPS],
            is_crowded: true,
        };
        ranks.name_bins();
        ranks
    }

    fn name_bins(&mut self) {
        for (step, bin) in (0..=u8::MAX).zip(&mut self.bins) {
            let is_first = self.is_crowded && step & WANTED != 0;
            *bin = if is_first { WANTED - 1 } else { step & !WANTED };
        }
    }

    /// The score that counts for a step.
    #[inline(always)]
    pub(super) fn bin(&self, step: u8) -> u8 {
        self.bins[usize::from(step)]
    }

    /// Whether what the modes want is more than the budget.
    #[inline(always)]
    pub(super) fn is_crowded(&self) -> bool {
        self.is_crowded
    }

    /// Counts payload of this rank.
    #[inline(always)]
    pub(super) fn add(&mut self, rank: u16, payload: u32) {
        self.ranks[usize::from(rank) % (BINS * RANKS)] += u64::from(payload);
    }

    /// Ends an interval in which the budget was worth `earned`.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn end_interval(&mut self, earned: f64) {
        let kept = 1.0 - FORGOTTEN;
        let steps = self.known_steps.iter_mut().zip(&mut self.steps);
        for (known, new) in steps {
            *known = *known * kept + std::mem::take(new) as f64;
        }
        for (known, new) in self.known_ranks.iter_mut().zip(self.ranks.iter_mut()) {
            *known = *known * kept + std::mem::take(new) as f64;
        }
        self.known_earned = self.known_earned * kept + earned;
        let wanted: f64 = self.known_steps[usize::from(WANTED)..].iter().sum();
        let limit = match self.is_crowded {
            true => self.known_earned * CROWDED_UNTIL,
            false => self.known_earned,
        };
        let is_crowded = wanted > limit;
        if is_crowded != self.is_crowded {
            self.is_crowded = is_crowded;
            self.name_bins();
            // Ranks mean something else now.
            self.known_ranks.fill(0.0);
        }
    }

    /// Where `part` of the budget ends.
    pub(super) fn margin(&self, part: f64) -> Margin {
        let mut left = self.known_earned * part;
        let mut bytes = [0.0; BINS];
        for (known, bin) in self.known_steps.iter().zip(self.bins) {
            bytes[usize::from(bin)] += known;
        }
        for (bin, bytes) in (0..WANTED).zip(bytes).rev() {
            if bytes <= left {
                left -= bytes;
                continue;
            }
            return self.within(bin, bytes, left);
        }
        Margin::default()
    }

    /// Where a step of scores of which there are more `bytes` than are `left` is cut.
    fn within(&self, bin: u8, bytes: f64, mut left: f64) -> Margin {
        let first = u16::from(bin) << RANK_BITS;
        let ranks = &self.known_ranks[usize::from(first)..][..RANKS];
        let counted: f64 = ranks.iter().sum();
        if counted * 2.0 < bytes {
            // Its packets were too far from the threshold for their ranks to be known.
            let above = first + (1 << RANK_BITS);
            return Margin {
                bin,
                above,
                within: first,
            };
        }
        let scale = bytes / counted;
        for (rank, known) in (first..first + (1 << RANK_BITS))
            .rev()
            .zip(ranks.iter().rev())
        {
            if known * scale > left {
                let (above, within) = (rank + 1, rank);
                return Margin { bin, above, within };
            }
            left -= known * scale;
        }
        // By rounding only.
        Margin {
            bin,
            above: first,
            within: first,
        }
    }
}
