//! From the ticks of an interface to nanoseconds since 1970.

use strata_wire::exact;

/// Nanoseconds per second.
pub(crate) const NS_PER_S: u64 = 1_000_000_000;

/// An interface's clock: `if_tsresol` and `if_tsoffset` (draft-ietf-opsawg-pcapng,
/// section 4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Clock {
    /// Nanoseconds per tick if that is whole and there is no offset, else 0.
    pub(crate) ns_per_tick: u64,
    /// Ticks per second; the largest number stands for more than 128 bits can hold.
    ticks_per_s: u128,
    offset_s: i64,
}

impl Clock {
    /// `resolution` is the option's byte: a negative power of 10, or of 2 if the
    /// highest bit is set. Without the option it is 6.
    pub(crate) fn new(resolution: u8, offset_s: i64) -> Self {
        let power = u32::from(resolution & 0x7f);
        let base: u128 = if resolution & 0x80 == 0 { 10 } else { 2 };
        let ticks_per_s = base.saturating_pow(power);
        let whole = offset_s == 0 && u128::from(NS_PER_S).is_multiple_of(ticks_per_s);
        let ns_per_tick = match u128::from(NS_PER_S).checked_div(ticks_per_s) {
            Some(ns_per_tick) if whole => exact::<u64>(ns_per_tick),
            _ => 0,
        };
        Self {
            ns_per_tick,
            ticks_per_s,
            offset_s,
        }
    }

    /// The time in ns since 1970, truncated; `Err` has it if it does not fit.
    #[inline]
    pub(crate) fn ns(&self, ticks: u64) -> Result<u64, i128> {
        match ticks.checked_mul(self.ns_per_tick) {
            Some(ns) if self.ns_per_tick != 0 => Ok(ns),
            _ => self.ns_exact(ticks),
        }
    }

    /// [`ns`](Self::ns) for every clock.
    #[cold]
    #[inline(never)]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "64 bits times 30 bits, in 128; a power of 2 or 10 is not 0"
    )]
    fn ns_exact(&self, ticks: u64) -> Result<u64, i128> {
        let since = u128::from(ticks) * u128::from(NS_PER_S) / self.ticks_per_s;
        let offset_ns = i128::from(self.offset_s) * i128::from(NS_PER_S);
        let ns = exact::<i128>(since) + offset_ns;
        u64::try_from(ns).map_err(|_| ns)
    }
}

/// The nearest time that 64 bits hold.
pub(crate) fn nearest(ns: i128) -> u64 {
    match u64::try_from(ns) {
        Ok(ns) => ns,
        Err(_) if ns < 0 => 0,
        Err(_) => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_resolutions() {
        assert_eq!(Clock::new(6, 0).ns(1_000_001), Ok(1_000_001_000));
        assert_eq!(Clock::new(9, 0).ns(u64::MAX), Ok(u64::MAX));
        assert_eq!(Clock::new(0, 0).ns(2), Ok(2_000_000_000));
        assert_eq!(Clock::new(12, 0).ns(1_999), Ok(1));
        assert_eq!(Clock::new(0x80 | 10, 0).ns(1536), Ok(1_500_000_000));
        assert_eq!(Clock::new(0x80 | 32, 0).ns(1 << 31), Ok(500_000_000));
        assert_eq!(Clock::new(127, 0).ns(u64::MAX), Ok(0));
        assert_eq!(Clock::new(0xff, 0).ns(u64::MAX), Ok(0));
    }

    #[test]
    fn offsets_and_what_does_not_fit() {
        assert_eq!(Clock::new(6, -1).ns(1_500_000), Ok(500_000_000));
        assert_eq!(Clock::new(6, -2).ns(1_500_000), Err(-500_000_000));
        let far = i128::from(u64::MAX) * 1_000;
        assert_eq!(Clock::new(6, 0).ns(u64::MAX), Err(far));
        let ends = [
            Clock::new(0, i64::MAX).ns(u64::MAX),
            Clock::new(0, i64::MIN).ns(0),
        ];
        assert_eq!(ends.map(|end| nearest(end.unwrap_err())), [u64::MAX, 0]);
        // Before truncation, an offset brings a far tick back into range.
        assert_eq!(
            Clock::new(0, -20_000_000_000).ns(20_000_000_001),
            Ok(NS_PER_S)
        );
    }

    proptest! {
        #[test]
        fn the_fast_path_agrees_with_the_exact_one(resolution: u8, offset in -3i64..3, ticks: u64) {
            let clock = Clock::new(resolution, offset);
            prop_assert_eq!(clock.ns(ticks), clock.ns_exact(ticks));
            prop_assert_eq!(clock.ns(ticks >> 32), clock.ns_exact(ticks >> 32));
        }
    }
}
