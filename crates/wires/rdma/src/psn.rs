//! Packet sequence numbers.

use strata_wire::roce::MASK_24;

/// A packet sequence number: 24 bits that wrap (IBTA §9.7.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Psn(u32);

impl Psn {
    /// The low 24 bits of `number`.
    #[inline]
    #[must_use]
    pub fn new(number: u32) -> Self {
        Self(number & MASK_24)
    }

    /// The number.
    #[inline]
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }

    /// The number `count` after this one.
    #[inline]
    #[must_use]
    #[allow(clippy::cast_possible_truncation)]
    pub fn plus(self, count: u64) -> Self {
        // Only the low 24 bits of the count matter.
        Self::new(self.0.wrapping_add(count as u32))
    }

    /// The number `count` before this one.
    #[inline]
    #[must_use]
    #[allow(clippy::cast_possible_truncation)]
    pub fn minus(self, count: u64) -> Self {
        Self::new(self.0.wrapping_sub(count as u32))
    }

    /// How far this one is after `earlier`: negative if it is before, as half of all numbers are
    /// (IBTA §9.7.2).
    #[inline]
    #[must_use]
    pub fn since(self, earlier: Self) -> i32 {
        // The sign of the 24-bit difference, moved to the sign bit of an i32.
        (self.0.wrapping_sub(earlier.0) << 8).cast_signed() >> 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_wrap() {
        let last = Psn::new(MASK_24);
        assert_eq!(last.plus(1), Psn::new(0));
        assert_eq!(last.plus(1).since(last), 1);
        assert_eq!(last.since(last.plus(1)), -1);
        assert_eq!(Psn::new(0).minus(1), last);
        assert_eq!(Psn::new(0x7f_ffff).since(Psn::new(0)), 0x7f_ffff);
        assert_eq!(Psn::new(0x80_0000).since(Psn::new(0)), -0x80_0000);
    }
}
