//! Ranks of which few are frequent.

/// Draws ranks by Zipf's law: rank r with probability proportional to 1 / (r + 1)^s.
#[derive(Clone, Debug)]
pub struct Zipf {
    cumulative: Vec<f64>,
}

impl Zipf {
    /// This many ranks, at least one, with this exponent; 0 draws all alike.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "ranks are below 2^22")]
    pub fn new(ranks: usize, exponent: f64) -> Self {
        let mut sum = 0.0;
        let weights = (1..=ranks).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        Self {
            cumulative: weights.collect(),
        }
    }

    /// The rank of a random number.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "53 bits")]
    pub fn rank(&self, random: u64) -> usize {
        let last = self.cumulative.len() - 1;
        let place = (random >> 11) as f64 / (1_u64 << 53) as f64 * self.cumulative[last];
        self.cumulative
            .partition_point(|&sum| sum <= place)
            .min(last)
    }
}

#[cfg(test)]
mod tests {
    use strata_wire::mix64;

    use super::*;

    #[test]
    fn ranks_follow_zipfs_law() {
        let zipf = Zipf::new(1000, 1.0);
        let mut counts = vec![0_u32; 1000];
        for n in 0..200_000_u64 {
            counts[zipf.rank(mix64(n))] += 1;
        }
        // The first rank has 1 / H(1000) = 13.4 % of all, the tenth a tenth of that.
        assert!((25_500..28_000).contains(&counts[0]), "{}", counts[0]);
        assert!((2_300..3_100).contains(&counts[9]), "{}", counts[9]);
        let flat = Zipf::new(10, 0.0);
        assert!((0..1000).all(|n| flat.rank(mix64(n)) < 10));
        assert_eq!(flat.rank(u64::MAX), 9);
    }
}
