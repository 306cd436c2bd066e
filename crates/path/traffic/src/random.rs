//! Random numbers in integers only, so that a seed gives the same packets on every machine.

use std::ops::Range;

use strata_wire::mix64;

/// SplitMix64: a Weyl sequence through a mixing function.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

const WEYL: u64 = 0x9e37_79b9_7f4a_7c15;

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(mix64(seed ^ WEYL))
    }

    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(WEYL);
        mix64(self.0)
    }

    /// Uniform below `bound`; 0 if that is 0.
    #[inline]
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        #[allow(clippy::cast_possible_truncation)]
        let number = (((self.next() >> 32) * u64::from(bound)) >> 32) as u32;
        number
    }

    /// Uniform within a non-empty range.
    #[inline]
    pub(crate) fn within(&mut self, range: Range<u32>) -> u32 {
        range.start + self.below(range.end - range.start)
    }

    /// True with probability `share` / 256.
    #[inline]
    pub(crate) fn one_in_256(&mut self, share: u32) -> bool {
        self.below(256) < share
    }

    /// How many times in a row something of probability `share` / 256 came true, at most `limit`.
    pub(crate) fn repeats(&mut self, share: u32, limit: u32) -> u32 {
        let mut bits = 0;
        while bits < limit && self.one_in_256(share) {
            bits += 1;
        }
        bits
    }

    /// A waiting time of mean 1, in units of 2^-24, distributed nearly exponentially: the logarithm
    /// is linear between powers of two.
    #[inline]
    pub(crate) fn waiting(&mut self) -> u64 {
        let number = self.next() | 1;
        let zeros = number.leading_zeros();
        let fraction = (number << zeros << 1) >> 40;
        // The mean of zeros + 1 - fraction is 1.5.
        (((u64::from(zeros) + 1) << 24) - fraction) * 2 / 3
    }
}

/// A quantity with a heavy tail: its smallest value doubles with probability
/// `ratio` / 256, again and again up to `doublings` times, and is then uniform up to the
/// next doubling. That is a truncated Pareto distribution of exponent
/// log2(256 / `ratio`), drawn without floating point.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tail {
    pub(crate) min: u32,
    pub(crate) ratio: u32,
    pub(crate) doublings: u32,
}

impl Tail {
    /// Always this value.
    pub(crate) const fn exactly(value: u32) -> Self {
        Self {
            min: value,
            ratio: 0,
            doublings: 0,
        }
    }

    pub(crate) const fn new(min: u32, ratio: u32, doublings: u32) -> Self {
        Self {
            min,
            ratio,
            doublings,
        }
    }

    pub(crate) fn draw(&self, random: &mut Random) -> u32 {
        if self.ratio == 0 {
            return self.min;
        }
        let low = self.min << random.repeats(self.ratio, self.doublings);
        low + random.below(low)
    }
}

/// Bytes of a block of [`Noise`].
pub(crate) const NOISE_BLOCK: usize = 64;

/// Incompressible bytes: eight xorshift generators in parallel, which compilers turn into vector
/// instructions.
#[derive(Clone, Debug)]
pub(crate) struct Noise([u64; 8]);

impl Noise {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x6e_6f69_7365);
        Self(std::array::from_fn(|_| random.next() | 1))
    }

    /// Fills whole blocks; the rest of `out` is unchanged.
    #[inline]
    pub(crate) fn fill(&mut self, out: &mut [u8]) {
        let mut lanes = self.0;
        for block in out.chunks_exact_mut(NOISE_BLOCK) {
            for lane in &mut lanes {
                *lane ^= *lane << 13;
                *lane ^= *lane >> 7;
                *lane ^= *lane << 17;
            }
            for (place, lane) in block.chunks_exact_mut(8).zip(lanes) {
                place.copy_from_slice(&lane.to_le_bytes());
            }
        }
        self.0 = lanes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::cast_precision_loss)]
    fn means() {
        let mut random = Random::new(1);
        let draws = 1_000_000;
        let waited: u64 = (0..draws).map(|_| random.waiting()).sum();
        let mean = waited as f64 / f64::from(draws) / f64::from(1 << 24);
        assert!((mean - 1.0).abs() < 0.005, "{mean}");
        let uniform: u64 = (0..draws).map(|_| u64::from(random.within(10..21))).sum();
        assert!((uniform as f64 / f64::from(draws) - 15.0).abs() < 0.02);
    }

    #[test]
    fn tail_is_a_tail() {
        let mut random = Random::new(2);
        let tail = Tail::new(10, 128, 10);
        let mut draws: Vec<u32> = (0..100_000).map(|_| tail.draw(&mut random)).collect();
        draws.sort_unstable();
        assert!(draws[0] == 10 && draws[99_999] < 20 << 10);
        // Exponent 1: half are below 20, and a hundredth above 1000.
        assert!(draws[49_000] < 20 && draws[51_000] >= 20);
        assert!(draws[98_500] < 1000 && draws[99_500] > 1000);
    }
}
