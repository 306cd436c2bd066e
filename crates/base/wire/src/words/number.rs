//! Numbers from one type to another: what cannot fail asserts that it did not, and what may not fit
//! is explicitly cut to the largest.

use std::fmt::Display;

/// The same number in another type, where it always fits: a length checked before, a constant of
/// the kernel.
///
/// # Panics
///
/// If it does not fit, which is a bug: a wrong length would go to the disk, to the kernel or onto
/// the wire.
#[inline]
#[must_use]
#[track_caller]
pub fn exact<T>(number: impl TryInto<T> + Copy + Display) -> T {
    match number.try_into() {
        Ok(same) => same,
        Err(_) => does_not_fit(&number, std::any::type_name::<T>()),
    }
}

#[cold]
#[inline(never)]
#[track_caller]
fn does_not_fit(number: &dyn Display, into: &str) -> ! {
    panic!("{number} is no {into}")
}

/// A number type with a largest number.
pub trait Largest {
    /// The largest number.
    const LARGEST: Self;
}

macro_rules! largest {
    ($($number:ty)*) => {
        $(impl Largest for $number {
            const LARGEST: Self = Self::MAX;
        })*
    };
}

largest!(u8 u16 u32 u64 usize);

/// The same number in another type, or the largest of that type: for what saturates by
/// definition, as features do. The number is not negative.
#[inline]
#[must_use]
pub fn clamped<T: Largest>(number: impl TryInto<T>) -> T {
    number.try_into().unwrap_or(T::LARGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_stays_and_what_saturates_is_the_largest() {
        assert_eq!(exact::<u16>(65_535_u32), 65_535);
        assert_eq!(exact::<usize>(7_i32), 7);
        assert_eq!(clamped::<u16>(65_536_u32), u16::MAX);
        assert_eq!(clamped::<u8>(3_usize), 3);
    }

    #[test]
    #[should_panic(expected = "65536 is no u16")]
    fn what_does_not_fit_is_a_fault() {
        let _ = exact::<u16>(65_536_u64);
    }
}
