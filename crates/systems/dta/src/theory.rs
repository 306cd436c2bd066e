//! The paper's error bounds: equations (1) to (8), and (9) to (12) of the appendix, which are
//! the same.
//!
//! `load` is α: keys written since the one that is queried, divided by the slots (Key-Write) or
//! the chunks (Postcarding). `false_match` is the probability that what another key wrote passes
//! for this key's. The bounds are about answers that are given only if all that matches agrees;
//! a plurality answers more often.

/// Probability that a key's slots, or chunks, are all overwritten: (1 - e^-αN)^N.
fn all_overwritten(load: f64, n: u8) -> f64 {
    overwritten(load, n).powi(i32::from(n))
}

/// Probability that one is.
fn overwritten(load: f64, n: u8) -> f64 {
    -(-load * f64::from(n)).exp_m1()
}

fn binomial(n: u8, k: u8) -> f64 {
    (0..k).fold(1.0, |product, i| {
        let (n, i) = (f64::from(n), f64::from(i));
        product * (n - i) / (i + 1.0)
    })
}

/// Bounds for a query of N slots or chunks.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bounds {
    /// α.
    pub load: f64,
    /// N.
    pub redundancy: u8,
    /// Probability that a slot that another key wrote passes for this key's.
    pub false_match: f64,
}

impl Bounds {
    /// Those of Key-Write with checksums of `bits` bits: equations (1) to (4). Checksums are never
    /// 0 here, so the probability of a false match is 1 / (2^b - 1), not 2^-b.
    #[must_use]
    pub fn key_write(load: f64, redundancy: u8, bits: u32) -> Self {
        Self {
            load,
            redundancy,
            false_match: 1.0 / (f64::from(bits).exp2() - 1.0),
        }
    }

    /// Those of Postcarding with `values` values (|V|), slots of `bits` bits and `hops` hops (B):
    /// equations (5) to (8).
    #[must_use]
    pub fn postcarding(load: f64, redundancy: u8, values: u32, bits: u32, hops: u8) -> Self {
        let of_slot = (f64::from(values) + 1.0) * (-f64::from(bits)).exp2();
        Self {
            load,
            redundancy,
            false_match: of_slot.min(1.0).powi(i32::from(hops)),
        }
    }

    /// Everything was overwritten, and nothing matches: (1), (5).
    #[must_use]
    pub fn all_gone(&self) -> f64 {
        let none = (1.0 - self.false_match).powi(i32::from(self.redundancy));
        all_overwritten(self.load, self.redundancy) * none
    }

    /// Everything was overwritten, and two or more that match differ: (2), (6). The paper closes
    /// a bracket of (6) too early, so that the factor does not apply to its last term; (10) in
    /// the appendix has it right.
    #[must_use]
    pub fn all_gone_and_contradictory(&self) -> f64 {
        let (n, p) = (i32::from(self.redundancy), self.false_match);
        let none = (1.0 - p).powi(n);
        let one = f64::from(n) * p * (1.0 - p).powi(n.saturating_sub(1));
        all_overwritten(self.load, self.redundancy) * (1.0 - none - one).max(0.0)
    }

    /// Something is left, and something else matches too: (3), (7).
    #[must_use]
    pub fn contradicted(&self) -> f64 {
        let (n, p) = (self.redundancy, self.false_match);
        let gone = overwritten(self.load, n);
        let of_j = |j: u8| {
            binomial(n, j)
                * gone.powi(i32::from(j))
                * (1.0 - gone).powi(i32::from(n.saturating_sub(j)))
                * (1.0 - (1.0 - p).powi(i32::from(j)))
        };
        (1..n).map(of_j).sum()
    }

    /// No answer, at most: (1) + (2) + (3), (5) + (6) + (7).
    #[must_use]
    pub fn no_answer_max(&self) -> f64 {
        self.all_gone() + self.all_gone_and_contradictory() + self.contradicted()
    }

    /// A wrong answer, at most: (4), (8).
    #[must_use]
    pub fn wrong_answer_max(&self) -> f64 {
        let n = self.redundancy;
        all_overwritten(self.load, n) * f64::from(n) * self.false_match
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers that the paper works out (§4).
    #[test]
    fn the_papers_examples() {
        let of = |n| Bounds::key_write(0.1, n, 32);
        assert!(of(2).no_answer_max() < 0.033 && of(2).no_answer_max() > 0.0328);
        // "bounded by 1.6e-11": 1.53e-11.
        assert!((of(2).wrong_answer_max() - 1.53e-11).abs() < 1e-13);
        assert!((of(1).no_answer_max() - 0.095).abs() < 5e-4);
        assert!((of(4).no_answer_max() - 0.012).abs() < 5e-4);
        let path = Bounds::postcarding(0.1, 2, 1 << 18, 32, 5);
        assert!(path.no_answer_max() < 0.033);
        assert!(path.wrong_answer_max() < 1e-22);
    }

    #[test]
    fn bounds_are_probabilities() {
        for n in 1..=4 {
            for bits in [8, 16, 32] {
                for load in [0.0, 0.01, 0.1, 1.0, 10.0] {
                    let bounds = Bounds::key_write(load, n, bits);
                    assert!((0.0..=1.0).contains(&bounds.no_answer_max()), "{bounds:?}");
                    assert!(
                        (0.0..=1.0).contains(&bounds.wrong_answer_max()),
                        "{bounds:?}"
                    );
                }
            }
        }
    }
}
