//! The limit on operations a second at the collectors' NICs.

/// A bucket of operations that fills with time.
#[derive(Clone, Debug)]
pub(super) struct Limit {
    per_second: u32,
    burst: u32,
    /// Operations left, in billionths. Negative for a moment after a report that cost several.
    left: i128,
    at_ns: u64,
}

const SCALE: i128 = 1_000_000_000;

impl Limit {
    /// `per_second` operations, and up to `burst` at once. It begins full.
    pub(super) fn new(per_second: u32, burst: u32) -> Self {
        Self {
            per_second,
            burst,
            left: i128::from(burst).saturating_mul(SCALE),
            at_ns: 0,
        }
    }

    /// Whether there is an operation left.
    pub(super) fn has_room(&mut self, now_ns: u64) -> bool {
        let elapsed = now_ns.saturating_sub(self.at_ns);
        self.at_ns = self.at_ns.max(now_ns);
        // 64 and 32 bits, 32 and 30 bits.
        let more = i128::from(elapsed).saturating_mul(i128::from(self.per_second));
        let full = i128::from(self.burst).saturating_mul(SCALE);
        self.left = self.left.saturating_add(more).min(full);
        self.left >= SCALE
    }

    /// `operations` operations were requested.
    pub(super) fn take(&mut self, operations: u64) {
        let asked = i128::from(operations).saturating_mul(SCALE);
        self.left = self.left.saturating_sub(asked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_holds_whatever_a_report_costs() {
        for cost in 1..=8_u64 {
            let mut limit = Limit::new(1000, 10);
            let mut taken = 0;
            for now_us in 0..1_000_000 {
                if limit.has_room(now_us * 1000) {
                    limit.take(cost);
                    taken += cost;
                }
            }
            assert!((1000..=1010 + cost).contains(&taken), "{taken} at {cost}");
        }
    }
}
