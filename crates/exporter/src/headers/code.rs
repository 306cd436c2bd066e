//! Fields with a code.

use crate::bits::Bits;

/// Why a record cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Invalid(pub(super) &'static str);

/// A code, and a value of as many bits as `widths` says: 4 or 8 codes.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "widths are up to 32")]
pub(super) fn field<B: Bits, const N: usize>(
    b: &mut B,
    widths: [u32; N],
    code: usize,
    value: u32,
) -> (usize, u32) {
    const { assert!(N == 4 || N == 8) };
    let code = usize::from(b.byte(code.to_le_bytes()[0], N.trailing_zeros()));
    let width = widths[code % N];
    let value = u64::from(value) & ((1 << width) - 1);
    (code, b.bits(value, width) as u32)
}

/// The first of the conditions that holds; their number if none does.
#[inline(always)]
pub(super) fn first_of<const N: usize>(conditions: [bool; N]) -> usize {
    let mut bits = 1_u32 << N;
    for (index, condition) in conditions.into_iter().enumerate() {
        bits |= u32::from(condition) << index;
    }
    bits.trailing_zeros() as usize
}

/// Bits for the number of one of `count` things.
#[inline(always)]
pub(super) fn width_of(count: usize) -> u32 {
    usize::BITS - count.leading_zeros()
}
