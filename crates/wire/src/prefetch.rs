//! A hint to the CPU. The only place in this crate with `unsafe`.
#![allow(unsafe_code)]

/// Asks the CPU to fetch the cache line at `index` of `slice` into L1. Any index is allowed:
/// outside the slice it is a waste, not an error.
#[inline(always)]
pub fn prefetch<T>(slice: &[T], index: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let address = slice.as_ptr().wrapping_add(index);
        // SAFETY: a prefetch is a hint and does not fault, whatever the address;
        // SSE is part of x86_64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (slice, index);
}

/// As [`prefetch`], for every line of the element at `index`.
#[inline(always)]
pub fn prefetch_whole<T>(slice: &[T], index: usize) {
    const LINE: usize = 64;
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let address = slice.as_ptr().wrapping_add(index).cast::<i8>();
        for line in 0..size_of::<T>().div_ceil(LINE) {
            // SAFETY: as above.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(address.wrapping_add(line * LINE)) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (slice, index, LINE);
}
