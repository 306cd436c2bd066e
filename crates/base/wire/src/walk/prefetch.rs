//! A hint to the CPU. The only place in this crate with `unsafe` but for vector code.
#![allow(unsafe_code)]

/// Asks the CPU to fetch the cache line at `index` of `slice` into L1. Any index is allowed:
/// outside the slice it is a waste, not an error.
#[inline(always)]
pub fn prefetch<T>(slice: &[T], index: usize) {
    line(slice.as_ptr().wrapping_add(index).cast());
}

/// As [`prefetch`], for every line of the element at `index`.
#[inline(always)]
pub fn prefetch_whole<T>(slice: &[T], index: usize) {
    const LINE: usize = 64;
    let address = slice.as_ptr().wrapping_add(index).cast::<u8>();
    for number in 0..size_of::<T>().div_ceil(LINE) {
        line(address.wrapping_add(number.wrapping_mul(LINE)));
    }
}

/// Asks for the line at an address, which need not exist.
#[inline(always)]
fn line(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint and does not fault, whatever the address; SSE is part of
        // x86_64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch is a hint and does not fault, whatever the address; it changes nothing.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}
