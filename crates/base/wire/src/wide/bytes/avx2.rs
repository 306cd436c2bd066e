//! [`ByteLanes`] for AVX2: two registers, and tables 16 bytes at a time.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::super::Avx2;
use super::{ByteLanes, ByteRow};

type U8 = [__m256i; 2];

#[inline(always)]
fn two(a: U8, b: U8, f: impl Fn(__m256i, __m256i) -> __m256i) -> U8 {
    [f(a[0], b[0]), f(a[1], b[1])]
}

impl ByteLanes for Avx2 {
    type U8 = U8;

    methods! {
        fn set_8(self, value: u8) -> U8 { [_mm256_set1_epi8(value.cast_signed()); 2] }
        fn load_8(self, values: &ByteRow) -> U8 {
            let start = values.0.as_ptr().cast::<__m256i>();
            [_mm256_load_si256(start), _mm256_load_si256(start.add(1))]
        }
        fn store_8(self, values: U8, to: &mut ByteRow) -> () {
            let start = to.0.as_mut_ptr().cast::<__m256i>();
            _mm256_store_si256(start, values[0]);
            _mm256_store_si256(start.add(1), values[1]);
        }
        fn or_8(self, a: U8, b: U8) -> U8 { two(a, b, |a, b| _mm256_or_si256(a, b)) }
        fn sub_8(self, a: U8, b: U8) -> U8 { two(a, b, |a, b| _mm256_sub_epi8(a, b)) }
        fn less_8(self, values: U8, a: U8, b: U8) -> U8 {
            // A comparison gives -1 where it is true.
            let at_most = two(a, b, |a, b| _mm256_cmpeq_epi8(_mm256_min_epu8(a, b), a));
            two(values, at_most, |values, at_most| _mm256_add_epi8(values, at_most))
        }
        fn choose_8(self, a: U8, b: U8, yes: U8, no: U8) -> U8 {
            let equal = two(a, b, |a, b| _mm256_cmpeq_epi8(a, b));
            [
                _mm256_blendv_epi8(no[0], yes[0], equal[0]),
                _mm256_blendv_epi8(no[1], yes[1], equal[1]),
            ]
        }
    }

    #[inline(always)]
    fn look_up<const TABLES: usize>(
        self,
        tables: [&[u8; 128]; TABLES],
        used: usize,
        places: U8,
    ) -> [U8; TABLES] {
        let mut found = [self.set_8(0); TABLES];
        for piece in 0..used.div_ceil(16).min(8) {
            // SAFETY: holding `self` proves that the machine has the instructions; pieces have as many
            // bytes as are loaded.
            unsafe {
                #[allow(clippy::cast_possible_truncation, reason = "less than 8")]
                let first = _mm256_set1_epi8((piece * 16) as i8);
                for half in 0..2 {
                    // In this piece: the place, with the top bit clear. Elsewhere the top bit is
                    // set, for which a shuffle gives 0.
                    let place = _mm256_xor_si256(places[half], first);
                    let place = _mm256_adds_epu8(place, _mm256_set1_epi8(0x70));
                    for (found, table) in found.iter_mut().zip(tables) {
                        let bytes = table.as_chunks::<16>().0[piece].as_ptr();
                        let bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128(bytes.cast()));
                        let here = _mm256_shuffle_epi8(bytes, place);
                        found[half] = _mm256_or_si256(found[half], here);
                    }
                }
            }
        }
        found
    }
}
