//! [`ByteLanes`] for AVX-512: one register, and tables 128 bytes at a time.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::super::Avx512;
use super::{ByteLanes, ByteRow};

impl ByteLanes for Avx512 {
    type U8 = __m512i;

    methods! {
        fn set_8(self, value: u8) -> __m512i { _mm512_set1_epi8(value.cast_signed()) }
        fn load_8(self, values: &ByteRow) -> __m512i { _mm512_load_si512(values.0.as_ptr().cast()) }
        fn store_8(self, values: __m512i, to: &mut ByteRow) -> () {
            _mm512_store_si512(to.0.as_mut_ptr().cast(), values);
        }
        fn or_8(self, a: __m512i, b: __m512i) -> __m512i { _mm512_or_si512(a, b) }
        fn sub_8(self, a: __m512i, b: __m512i) -> __m512i { _mm512_sub_epi8(a, b) }
        fn less_8(self, values: __m512i, a: __m512i, b: __m512i) -> __m512i {
            let at_most = _mm512_cmple_epu8_mask(a, b);
            _mm512_mask_sub_epi8(values, at_most, values, _mm512_set1_epi8(1))
        }
        fn choose_8(self, a: __m512i, b: __m512i, yes: __m512i, no: __m512i) -> __m512i {
            _mm512_mask_mov_epi8(no, _mm512_cmpeq_epi8_mask(a, b), yes)
        }
        fn look_up_16(self, table: &[u16; 256], used: usize, places: __m512i, to: &mut [u16; 64]) -> () {
            let pieces = table.as_chunks::<32>().0;
            let piece = |n: usize| _mm512_loadu_si512(pieces[n].as_ptr().cast());
            let low = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(places));
            let high = _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64::<1>(places));
            for (at, to) in [low, high].into_iter().zip(to.as_chunks_mut::<32>().0) {
                // Of 64 numbers, those that the low six bits of a place select.
                let of_64 = |n: usize| _mm512_permutex2var_epi16(piece(2 * n), at, piece(2 * n + 1));
                let mut found = of_64(0);
                if used > 64 {
                    let odd = _mm512_test_epi16_mask(at, _mm512_set1_epi16(64));
                    found = _mm512_mask_mov_epi16(found, odd, of_64(1));
                    if used > 128 {
                        let upper = _mm512_mask_mov_epi16(of_64(2), odd, of_64(3));
                        let is_upper = _mm512_test_epi16_mask(at, _mm512_set1_epi16(128));
                        found = _mm512_mask_mov_epi16(found, is_upper, upper);
                    }
                }
                _mm512_storeu_si512(to.as_mut_ptr().cast(), found);
            }
        }
    }

    #[inline(always)]
    fn look_up<const TABLES: usize>(
        self,
        tables: [&[u8; 128]; TABLES],
        used: usize,
        places: __m512i,
    ) -> [__m512i; TABLES] {
        tables.map(|table| {
            let halves = table.as_chunks::<64>().0;
            // SAFETY: holding `self` proves that the machine has the instructions; halves have as
            // many bytes as are loaded.
            unsafe {
                let half = |n: usize| _mm512_loadu_si512(halves[n].as_ptr().cast());
                if used > 64 {
                    _mm512_permutex2var_epi8(half(0), places, half(1))
                } else {
                    _mm512_permutexvar_epi8(places, half(0))
                }
            }
        })
    }
}
