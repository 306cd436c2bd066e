//! Which share of all flows is captured.

/// The share of flows that is captured: those whose 32-bit hash is at most this. So the flows of a
/// smaller share are among those of a larger one, and no share is empty.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FlowShare(pub u32);

impl Default for FlowShare {
    fn default() -> Self {
        Self::ALL
    }
}

impl FlowShare {
    /// Every flow.
    pub const ALL: Self = Self(u32::MAX);

    /// The share nearest to `ratio`, from 0 to 1.
    #[must_use]
    pub fn of(ratio: f64) -> Self {
        // Whole numbers up to 2^32 are exact.
        let last = (ratio.clamp(0.0, 1.0) * 2_f64.powi(32)).round() - 1.0;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        Self(last.max(0.0) as u32)
    }

    /// As a number, above 0 and up to 1. Its inverse scales a count up to all flows.
    #[must_use]
    pub fn ratio(self) -> f64 {
        (f64::from(self.0) + 1.0) / 2_f64.powi(32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_comes_back() {
        for ratio in [1.0, 0.5, 0.1, 1e-6] {
            assert!((FlowShare::of(ratio).ratio() / ratio - 1.0).abs() < 1e-3);
        }
        assert_eq!(FlowShare::of(7.0), FlowShare::ALL);
        assert_eq!(FlowShare::of(-1.0), FlowShare(0));
        assert!(FlowShare::of(f64::NAN).ratio() > 0.0);
    }
}
