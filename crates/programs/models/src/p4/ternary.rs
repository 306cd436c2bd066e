//! Ranges as ternary matches: what a switch without range tables can look up.

/// A ternary match: a key matches if it equals `value` in the bits of `mask`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ternary {
    /// The bits to have; none outside the mask.
    pub(super) value: u64,
    /// The bits that count.
    pub(super) mask: u64,
}

impl Ternary {
    /// Matches every key.
    pub(super) const ANY: Self = Self { value: 0, mask: 0 };

    /// Whether a key matches.
    #[cfg(test)]
    pub(super) fn matches(self, key: u64) -> bool {
        key & self.mask == self.value
    }
}

/// The fewest prefixes that together match exactly the keys from `low` to `high`, of keys of `bits` bits: at most
/// `2 * bits - 2`, disjoint, ascending.
///
/// # Panics
///
/// If the range is empty or has keys of more than `bits` bits, or if these are more than 32.
pub(super) fn prefixes(low: u32, high: u32, bits: u32) -> Vec<Ternary> {
    assert!((1..=32).contains(&bits), "keys of {bits} bits");
    let all = (1_u64 << bits).wrapping_sub(1);
    assert!(low <= high && u64::from(high) <= all, "{low} to {high}");
    let (mut at, end) = (u64::from(low), u64::from(high));
    let mut found = Vec::new();
    while at <= end {
        // The largest aligned block that begins here and does not end after the range.
        let aligned = at.trailing_zeros().min(bits);
        let left = end.saturating_sub(at).saturating_add(1);
        let size_bits = aligned.min(left.ilog2());
        let size = 1_u64 << size_bits;
        found.push(Ternary {
            value: at,
            mask: all & !size.wrapping_sub(1),
        });
        at = at.saturating_add(size);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Whether a key is in exactly one of the prefixes if it is in the range, else in none.
    fn is_exact(found: &[Ternary], low: u32, high: u32, key: u32) -> bool {
        let matched = found.iter().filter(|one| one.matches(key.into())).count();
        matched == usize::from((low..=high).contains(&key))
    }

    #[test]
    fn every_range_of_small_keys_is_covered_exactly() {
        for bits in 1..=6_u32 {
            let keys = 1 << bits;
            for low in 0..keys {
                for high in low..keys {
                    let found = prefixes(low, high, bits);
                    assert!((0..keys).all(|key| is_exact(&found, low, high, key)));
                    let most = usize::try_from(2 * bits - 2).unwrap().max(1);
                    assert!(found.len() <= most, "{bits} bits, {low} to {high}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn a_range_of_16_bits_is_covered_exactly(a in any::<u16>(), b in any::<u16>()) {
            let (low, high) = (u32::from(a.min(b)), u32::from(a.max(b)));
            let found = prefixes(low, high, 16);
            for key in 0..=0xffff {
                prop_assert!(is_exact(&found, low, high, key), "{key}");
            }
        }

        #[test]
        fn ends_of_a_range_of_32_bits_are_exact(a in any::<u32>(), b in any::<u32>(), key in any::<u32>()) {
            let (low, high) = (a.min(b), a.max(b));
            let found = prefixes(low, high, 32);
            let near = [low, high].into_iter().flat_map(|end| [end.wrapping_sub(1), end, end.wrapping_add(1)]);
            for key in near.chain([key, 0, u32::MAX]) {
                prop_assert!(is_exact(&found, low, high, key), "{key}");
            }
        }
    }

    #[test]
    fn all_keys_are_one_prefix() {
        assert_eq!(prefixes(0, u32::MAX, 32), [Ternary::ANY]);
        assert_eq!(prefixes(0, 255, 8), [Ternary::ANY]);
    }
}
