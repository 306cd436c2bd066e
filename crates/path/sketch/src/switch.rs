//! The arithmetic of a programmable switch, as an option that gives the same
//! numbers as one: 16-bit registers, approximate squares, and averages through
//! a range table (TitanLog §IV-A, §VII).

/// How registers are kept and averages computed.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub enum Arithmetic {
    /// Exact sums, squares and averages.
    #[default]
    Exact,
    /// As in a switch.
    Switch {
        /// Relative error of the range table of averages, above 0 and below 1.
        delta: f64,
    },
}

/// A delay in a 16-bit register: units of 256 ticks, since a window is at most
/// 2^24 ticks. Returned in ticks.
#[inline]
pub(crate) fn register_16(ticks: u32) -> u32 {
    (ticks >> 8).min(u32::from(u16::MAX)) << 8
}

/// A square from the four leading bits of its root, as a small match table gives it: within 13 % of
/// the true value.
#[inline]
pub(crate) fn approximate_square(value: u32) -> u64 {
    let bits = u32::BITS - value.leading_zeros();
    let dropped = bits.saturating_sub(4);
    if dropped == 0 {
        return u64::from(value) * u64::from(value);
    }
    // The middle of the range of values that share the leading bits.
    let middle = u64::from((value >> dropped) << dropped) + (1 << (dropped - 1));
    middle * middle
}

/// The range table of averages: counts in `[floor((1+2d)^i), floor((1+2d)^(i+1)))` share an entry,
/// which gives `C * count` for all of them. To divide by the constant C, a count is replaced by its
/// entry's, whatever C is.
///
/// The paper's entry stands for `(1+d)(1+2d)^i`, which for small counts, whose ranges hold one
/// integer, is off by up to one count. Here an entry stands for the middle of the integers it
/// covers: exact for small counts, within `d` for all. And the quotient is rounded down instead of
/// the product, which differs by less than one unit of the average.
#[derive(Clone, Debug)]
pub struct RangeTable {
    starts: Vec<u64>,
    stands_for: Vec<f64>,
}

impl RangeTable {
    /// A table for counts up to 2^32, with a relative error of `delta`.
    ///
    /// # Panics
    ///
    /// If `delta` is not between 0.0001 and 0.5: a model file is checked first.
    #[must_use]
    pub fn new(delta: f64) -> Self {
        assert!(
            (0.0001..=0.5).contains(&delta),
            "delta {delta} out of range"
        );
        let mut starts = vec![1_u64];
        let (mut start, ratio) = (1.0_f64, 1.0 + 2.0 * delta);
        while start < 4_294_967_296.0 {
            start *= ratio;
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let floor = start.floor() as u64;
            if starts.last() != Some(&floor) {
                starts.push(floor);
            }
        }
        #[allow(clippy::cast_precision_loss)]
        let stands_for = starts
            .windows(2)
            .map(|pair| (pair[0] + pair[1] - 1) as f64 / 2.0)
            .collect();
        Self { starts, stands_for }
    }

    /// The count used for `count` in averages; `count` is at least 1.
    #[inline]
    #[must_use]
    pub fn stands_for(&self, count: u32) -> f64 {
        let after = self
            .starts
            .partition_point(|&start| start <= u64::from(count));
        self.stands_for[after.clamp(1, self.stands_for.len()) - 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_are_within_their_bound() {
        for value in (0..1000).chain((1000..1 << 24).step_by(997)) {
            let exact = f64::from(value) * f64::from(value);
            #[allow(clippy::cast_precision_loss)]
            let error = (approximate_square(value) as f64 - exact).abs();
            assert!(error <= 0.13 * exact, "{value}: {error}");
        }
    }

    #[test]
    fn the_range_table_keeps_its_error_and_its_size() {
        let delta = 0.01;
        let table = RangeTable::new(delta);
        for count in (1..5_000).chain((5_000..u32::MAX - 70_000).step_by(65_537)) {
            let error = (table.stands_for(count) / f64::from(count) - 1.0).abs();
            assert!(error <= delta, "{count}: {error}");
        }
        // TitanLog §IV-A: about 700 entries for counts up to 2^20.
        let up_to_2_20 = table.starts.iter().filter(|&&s| s <= 1 << 20).count();
        assert!((450..=701).contains(&up_to_2_20), "{up_to_2_20}");
    }

    #[test]
    fn a_16_bit_register_holds_every_delay_of_a_window() {
        assert_eq!(register_16((1 << 24) - 1), (1 << 24) - 256);
        assert_eq!(register_16(255), 0);
        assert_eq!(register_16(u32::MAX), 0xffff00);
    }
}
