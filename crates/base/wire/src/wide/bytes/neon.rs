//! [`ByteLanes`] for NEON: four registers, and tables 64 bytes at a time.
#![allow(unsafe_code)]

use std::arch::aarch64::*;

use super::super::Neon;
use super::{ByteLanes, ByteRow};

type U8 = [uint8x16_t; 4];

#[inline(always)]
fn four(a: U8, b: U8, f: impl Fn(uint8x16_t, uint8x16_t) -> uint8x16_t) -> U8 {
    [f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])]
}

impl ByteLanes for Neon {
    type U8 = U8;

    methods! {
        fn set_8(self, value: u8) -> U8 { [vdupq_n_u8(value); 4] }
        fn load_8(self, values: &ByteRow) -> U8 {
            let all = vld1q_u8_x4(values.0.as_ptr());
            [all.0, all.1, all.2, all.3]
        }
        fn store_8(self, values: U8, to: &mut ByteRow) -> () {
            for (to, part) in to.0.as_chunks_mut::<16>().0.iter_mut().zip(values) {
                vst1q_u8(to.as_mut_ptr(), part);
            }
        }
        fn or_8(self, a: U8, b: U8) -> U8 { four(a, b, |a, b| vorrq_u8(a, b)) }
        fn sub_8(self, a: U8, b: U8) -> U8 { four(a, b, |a, b| vsubq_u8(a, b)) }
        fn less_8(self, values: U8, a: U8, b: U8) -> U8 {
            // A comparison gives -1 where it is true.
            let at_most = four(a, b, |a, b| vcleq_u8(a, b));
            four(values, at_most, |values, at_most| vaddq_u8(values, at_most))
        }
        fn choose_8(self, a: U8, b: U8, yes: U8, no: U8) -> U8 {
            let equal = four(a, b, |a, b| vceqq_u8(a, b));
            [0, 1, 2, 3].map(|part| vbslq_u8(equal[part], yes[part], no[part]))
        }
    }

    #[inline(always)]
    fn look_up<const TABLES: usize>(
        self,
        tables: [&[u8; 128]; TABLES],
        used: usize,
        places: U8,
    ) -> [U8; TABLES] {
        tables.map(|table| {
            let halves = table.as_chunks::<64>().0;
            // SAFETY: holding `self` proves that the machine has the instructions; halves have as
            // many bytes as are loaded.
            unsafe {
                // A place beyond 64 bytes gives 0 (TBL), or what was there (TBX).
                let low = vld1q_u8_x4(halves[0].as_ptr());
                let mut found = places.map(|places| vqtbl4q_u8(low, places));
                if used > 64 {
                    let high = vld1q_u8_x4(halves[1].as_ptr());
                    for (found, places) in found.iter_mut().zip(places) {
                        *found = vqtbx4q_u8(*found, high, vsubq_u8(places, vdupq_n_u8(64)));
                    }
                }
                found
            }
        })
    }
}
