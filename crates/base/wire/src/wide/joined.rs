//! Two words as one store.
#![cfg_attr(target_arch = "x86_64", allow(unsafe_code))]

/// Sixteen bytes of two words, little-endian, that are stored at once. Compilers store such numbers word by
/// word; code that then loads all sixteen, as AES does, waits until the CPU has written both to its cache,
/// so that nothing overlaps any more.
#[inline]
#[must_use]
pub fn joined(low: u64, high: u64) -> [u8; 16] {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__m128i, _mm_set_epi64x};
        // SAFETY: SSE2 is part of x86-64.
        let mut words = unsafe { _mm_set_epi64x(high.cast_signed(), low.cast_signed()) };
        // SAFETY: no instruction at all; but the compiler has to have the words in one register.
        unsafe {
            std::arch::asm!("/* {0} */", inout(xmm_reg) words,
                options(pure, nomem, nostack, preserves_flags));
        }
        // SAFETY: both are 16 bytes, of which every value is valid.
        unsafe { std::mem::transmute::<__m128i, [u8; 16]>(words) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    (u128::from(high) << 64 | u128::from(low)).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_low_word_comes_first() {
        let bytes = joined(0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908);
        assert_eq!(
            bytes,
            std::array::from_fn(|at| u8::try_from(at).expect("16"))
        );
    }
}
