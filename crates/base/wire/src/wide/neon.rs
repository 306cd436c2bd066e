//! [`Lanes`] for NEON: four registers of four lanes each, masks as lanes of ones.
#![allow(unsafe_code)]

use std::arch::aarch64::*;

use super::lanes::{Kernel, Lanes};
use super::{BitRow, GROUP, Neon};

/// Runs a kernel compiled for these instructions.
#[inline]
pub(super) fn run<K: Kernel>(lanes: Neon, kernel: K) -> K::Output {
    // SAFETY: holding the value proves that the machine has the instructions.
    unsafe { enabled(lanes, kernel) }
}

#[target_feature(enable = "neon")]
fn enabled<K: Kernel>(lanes: Neon, kernel: K) -> K::Output {
    kernel.run(lanes)
}

type U32 = [uint32x4_t; 4];
type U64 = [uint64x2_t; 8];
type F64 = [float64x2_t; 8];
type Row = [uint64x2_t; 2];

/// How the lanes of a mask are put next to each other in each quarter, and where each quarter goes.
#[derive(Clone, Copy, Debug)]
pub struct Packing {
    orders: [uint8x16_t; 4],
    places: [usize; 4],
}

/// By mask of four lanes: the bytes of its lanes, one after another; then arbitrary ones.
static ORDERS: [[u8; 16]; 16] = {
    let mut orders = [[0; 16]; 16];
    let mut mask = 0;
    while mask < 16 {
        let (mut lane, mut place) = (0_u8, 0);
        while lane < 4 {
            if mask >> lane & 1 != 0 {
                let mut byte = 0;
                while byte < 4 {
                    orders[mask][place] = 4 * lane + byte;
                    place += 1;
                    byte += 1;
                }
            }
            lane += 1;
        }
        mask += 1;
    }
    orders
};

/// The bit of each of eight comparisons, twice.
static OWN_BITS: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];

/// What is read instead of a packet that is too short to be plain.
static NONE: [u8; HEAD_LEN] = [0; HEAD_LEN];
/// Up to the window of TCP.
const HEAD_LEN: usize = 50;

#[inline(always)]
fn two(a: Row, b: Row, f: impl Fn(uint64x2_t, uint64x2_t) -> uint64x2_t) -> Row {
    [f(a[0], b[0]), f(a[1], b[1])]
}

#[inline(always)]
fn four<T: Copy, R>(a: [T; 4], b: [T; 4], f: impl Fn(T, T) -> R) -> [R; 4] {
    [f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])]
}

#[inline(always)]
fn eight<T: Copy, R>(a: [T; 8], b: [T; 8], f: impl Fn(T, T) -> R) -> [R; 8] {
    let at = |n: usize| f(a[n], b[n]);
    [at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)]
}

/// Two halves of numbers, whatever they are made of.
#[inline]
#[target_feature(enable = "neon")]
fn halves_of(words: uint32x4_t) -> uint16x8_t {
    vreinterpretq_u16_u32(words)
}

/// Four rows of four words become columns.
#[inline]
#[target_feature(enable = "neon")]
fn cross(rows: [uint32x4_t; 4]) -> [uint32x4_t; 4] {
    let [a, b, c, d] = rows.map(|row| vreinterpretq_u64_u32(row));
    let words = |pair: uint64x2_t| vreinterpretq_u32_u64(pair);
    // Words 0 and 1 of rows 0 and 2, and of rows 1 and 3; words 2 and 3 of them.
    let low = (words(vzip1q_u64(a, c)), words(vzip1q_u64(b, d)));
    let high = (words(vzip2q_u64(a, c)), words(vzip2q_u64(b, d)));
    [
        vtrn1q_u32(low.0, low.1),
        vtrn2q_u32(low.0, low.1),
        vtrn1q_u32(high.0, high.1),
        vtrn2q_u32(high.0, high.1),
    ]
}

/// The low halves of sixteen numbers of 64 bits.
#[inline]
#[target_feature(enable = "neon")]
fn narrow(values: U64) -> U32 {
    let pair = |n: usize| {
        let (low, high) = (values[2 * n], values[2 * n + 1]);
        vuzp1q_u32(vreinterpretq_u32_u64(low), vreinterpretq_u32_u64(high))
    };
    [pair(0), pair(1), pair(2), pair(3)]
}

/// The low bytes of sixteen numbers: all of the results of comparisons.
#[inline]
#[target_feature(enable = "neon")]
fn as_bytes(found: U32) -> uint8x16_t {
    let low = vuzp1q_u16(halves_of(found[0]), halves_of(found[1]));
    let high = vuzp1q_u16(halves_of(found[2]), halves_of(found[3]));
    vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high))
}

/// Results of sixteen comparisons of 16 bits as bytes.
#[inline]
#[target_feature(enable = "neon")]
fn as_bytes_of_halves(low: uint16x8_t, high: uint16x8_t) -> uint8x16_t {
    vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high))
}

/// A bit for each of sixteen comparisons.
#[inline]
#[target_feature(enable = "neon")]
fn bits(found: U32) -> u16 {
    // SAFETY: as many bytes as are loaded.
    let own = vandq_u8(as_bytes(found), unsafe { vld1q_u8(OWN_BITS.as_ptr()) });
    u16::from(vaddv_u8(vget_low_u8(own))) | u16::from(vaddv_u8(vget_high_u8(own))) << 8
}

/// A bit for each of 64 comparisons.
#[inline]
#[target_feature(enable = "neon")]
fn bits_64(found: [uint8x16_t; 4]) -> u64 {
    // SAFETY: as many bytes as are loaded.
    let own = unsafe { vld1q_u8(OWN_BITS.as_ptr()) };
    let [a, b, c, d] = found.map(|part| vandq_u8(part, own));
    let sums = vpaddq_u8(vpaddq_u8(a, b), vpaddq_u8(c, d));
    vgetq_lane_u64::<0>(vreinterpretq_u64_u8(vpaddq_u8(sums, sums)))
}

/// The words of plain headers of four packets, as [`Lanes::heads`] has them.
#[inline]
#[target_feature(enable = "neon")]
fn heads_4(packets: &[&[u8]; 4]) -> [uint32x4_t; 7] {
    let starts = packets.map(|packet| match packet.len() {
        HEAD_LEN.. => packet.as_ptr(),
        _ => NONE.as_ptr(),
    });
    // SAFETY: bytes 12 to 28 of at least 50.
    let row = |n: usize| unsafe { vreinterpretq_u32_u8(vld1q_u8(starts[n].add(12))) };
    // SAFETY: bytes 26 to 42, and 46 to 50, of at least 50.
    let other = |n: usize| unsafe {
        let last = starts[n].add(46).cast::<u32>().read_unaligned();
        vsetq_lane_u32::<3>(last, vreinterpretq_u32_u8(vld1q_u8(starts[n].add(26))))
    };
    let [ether, length, fragment, _] = cross([row(0), row(1), row(2), row(3)]);
    let [source, destination, ports, last] = cross([other(0), other(1), other(2), other(3)]);
    // Which byte of its word goes where, for each word; -1 for none.
    let take = |words: uint32x4_t, bytes: [i8; 4]| {
        let mut order = [0xff_u8; 16];
        for (at, place) in order.iter_mut().enumerate() {
            if let Ok(byte) = u8::try_from(bytes[at % 4]) {
                #[allow(clippy::cast_possible_truncation, reason = "less than 16")]
                let word = at as u8 / 4 * 4;
                *place = word + byte;
            }
        }
        // SAFETY: as many bytes as are loaded.
        let order = unsafe { vld1q_u8(order.as_ptr()) };
        vreinterpretq_u32_u8(vqtbl1q_u8(vreinterpretq_u8_u32(words), order))
    };
    [
        take(source, [3, 2, 1, 0]),
        take(destination, [3, 2, 1, 0]),
        take(ports, [1, 0, 3, 2]),
        ether,
        vorrq_u32(take(length, [1, 0, -1, -1]), take(fragment, [-1, -1, 1, 0])),
        vorrq_u32(take(fragment, [2, 3, -1, -1]), take(last, [-1, -1, 0, 1])),
        take(last, [3, 2, -1, -1]),
    ]
}

impl Lanes for Neon {
    type U32 = U32;
    type U64 = U64;
    type F64 = F64;
    type Mask = U32;
    type Packing = Packing;
    // With their top bits inverted, since what they are compared with has its inverted too.
    type Words = [int32x4_t; 16];
    type Halves = [int16x8_t; 8];
    type Bytes = [int8x16_t; 4];
    type Row = Row;

    const FOURS: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
    const AT_ONCE: usize = 2;

    methods! {
        fn set(self, value: u32) -> U32 { [vdupq_n_u32(value); 4] }
        fn load(self, values: &[u32; GROUP]) -> U32 {
            let parts = values.as_chunks::<4>().0;
            [0, 1, 2, 3].map(|n| vld1q_u32(parts[n].as_ptr()))
        }
        fn load_first(self, values: &[u32]) -> U32 {
            let mut all = [0; GROUP];
            for (to, value) in all.iter_mut().zip(values) {
                *to = *value;
            }
            self.load(&all)
        }
        fn store(self, values: U32, to: &mut [u32; GROUP]) -> () {
            for (to, values) in to.as_chunks_mut::<4>().0.iter_mut().zip(values) {
                vst1q_u32(to.as_mut_ptr(), values);
            }
        }
        fn add(self, a: U32, b: U32) -> U32 { four(a, b, |a, b| vaddq_u32(a, b)) }
        fn sub(self, a: U32, b: U32) -> U32 { four(a, b, |a, b| vsubq_u32(a, b)) }
        fn mul(self, a: U32, b: U32) -> U32 { four(a, b, |a, b| vmulq_u32(a, b)) }
        fn min(self, a: U32, b: U32) -> U32 { four(a, b, |a, b| vminq_u32(a, b)) }
        fn max(self, a: U32, b: U32) -> U32 { four(a, b, |a, b| vmaxq_u32(a, b)) }
        fn and(self, a: U32, b: U32) -> U32 { four(a, b, |a, b| vandq_u32(a, b)) }
        fn or(self, a: U32, b: U32) -> U32 { four(a, b, |a, b| vorrq_u32(a, b)) }
        fn shl(self, values: U32, bits: u32) -> U32 {
            let bits = vdupq_n_s32(bits.cast_signed());
            values.map(|part| vshlq_u32(part, bits))
        }
        fn shr(self, values: U32, bits: u32) -> U32 {
            let bits = vdupq_n_s32(-bits.cast_signed());
            values.map(|part| vshlq_u32(part, bits))
        }
        fn square(self, values: U32) -> (U32, U32) {
            let both = values.map(|part| {
                let low = vget_low_u32(part);
                let (low, high) = (vmull_u32(low, low), vmull_high_u32(part, part));
                (vreinterpretq_u32_u64(low), vreinterpretq_u32_u64(high))
            });
            (
                both.map(|(low, high)| vuzp1q_u32(low, high)),
                both.map(|(low, high)| vuzp2q_u32(low, high)),
            )
        }
        fn add_halves(self, a: U32, b: U32) -> U32 {
            four(a, b, |a, b| vreinterpretq_u32_u16(vqaddq_u16(halves_of(a), halves_of(b))))
        }
        fn min_halves(self, a: U32, b: U32) -> U32 {
            four(a, b, |a, b| vreinterpretq_u32_u16(vminq_u16(halves_of(a), halves_of(b))))
        }
        fn max_halves(self, a: U32, b: U32) -> U32 {
            four(a, b, |a, b| vreinterpretq_u32_u16(vmaxq_u16(halves_of(a), halves_of(b))))
        }
        fn low_bytes(self, values: [U32; 4]) -> [uint8x16_t; 4] {
            values.map(|values| as_bytes(values))
        }
        fn transpose(self, rows: [U32; GROUP]) -> [U32; GROUP] {
            let mut columns = rows;
            for row in 0..4 {
                for column in 0..4 {
                    // Rows 4 * row on, words 4 * column on.
                    let part = cross([0, 1, 2, 3].map(|n| rows[4 * row + n][column]));
                    for (n, part) in part.into_iter().enumerate() {
                        columns[4 * column + n][row] = part;
                    }
                }
            }
            columns
        }
        fn eq(self, a: U32, b: U32) -> U32 { four(a, b, |a, b| vceqq_u32(a, b)) }
        fn le(self, a: U32, b: U32) -> U32 { four(a, b, |a, b| vcleq_u32(a, b)) }
        fn top(self, values: U32) -> U32 {
            values.map(|part| vcltzq_s32(vreinterpretq_s32_u32(part)))
        }
        fn repeats(self, values: [U32; 2]) -> U32 {
            let mut stored = [[0_u32; GROUP]; 2];
            for (values, stored) in values.into_iter().zip(&mut stored) {
                self.store(values, stored);
            }
            let first = vld1q_u32([0, 1, 2, 3].as_ptr());
            let mut found = [vdupq_n_u32(0); 4];
            for lane in 0..GROUP - 1 {
                let own = stored.map(|stored| vdupq_n_u32(stored[lane]));
                for part in lane / 4..4 {
                    let same = |n: usize| vceqq_u32(values[n][part], own[n]);
                    let mut same = vorrq_u32(same(0), same(1));
                    if part == lane / 4 {
                        #[allow(clippy::cast_possible_truncation, reason = "less than 4")]
                        let place = (lane % 4) as u32;
                        same = vandq_u32(same, vcgtq_u32(first, vdupq_n_u32(place)));
                    }
                    found[part] = vorrq_u32(found[part], same);
                }
            }
            found
        }
        fn choose(self, mask: U32, yes: U32, no: U32) -> U32 {
            let part = |n: usize| vbslq_u32(mask[n], yes[n], no[n]);
            [part(0), part(1), part(2), part(3)]
        }
        fn only(self, mask: U32, values: U32) -> U32 { self.and(mask, values) }
        fn mask(self, bits: u16) -> U32 {
            let all = vdupq_n_u32(bits.into());
            let first = vld1q_u32([1, 2, 4, 8].as_ptr());
            [0, 4, 8, 12].map(|at| vtstq_u32(all, vshlq_u32(first, vdupq_n_s32(at))))
        }
        fn bits(self, mask: U32) -> u16 { bits(mask) }
        fn both(self, a: U32, b: U32) -> U32 { self.and(a, b) }
        fn either(self, a: U32, b: U32) -> U32 { self.or(a, b) }
        fn one_of(self, a: U32, b: U32) -> U32 { four(a, b, |a, b| veorq_u32(a, b)) }
        fn not(self, mask: U32) -> U32 { mask.map(|part| vmvnq_u32(part)) }
        fn packing(self, mask: u16) -> Packing {
            let part = |n: usize| usize::from(mask >> (4 * n) & 15);
            let order = |n: usize| vld1q_u8(ORDERS[part(n)].as_ptr());
            let before = |n: u32| (mask & ((1 << n) - 1)).count_ones() as usize;
            Packing {
                orders: [order(0), order(1), order(2), order(3)],
                places: [0, before(4), before(8), before(12)],
            }
        }
        fn pack(self, packing: Packing, values: U32, to: &mut [u32; GROUP]) -> () {
            for (part, values) in values.into_iter().enumerate() {
                let packed = vqtbl1q_u8(vreinterpretq_u8_u32(values), packing.orders[part]);
                // At most as many as there are lanes before.
                let place = packing.places[part].min(4 * part);
                vst1q_u32(to.as_mut_ptr().add(place), vreinterpretq_u32_u8(packed));
            }
        }
        fn pack_first(self, packing: Packing, values: U32, to: &mut [u32]) -> () {
            let mut all = [0; GROUP];
            self.pack(packing, values, &mut all);
            for (to, value) in to.iter_mut().zip(all) {
                *to = value;
            }
        }
        fn set_64(self, value: u64) -> U64 { [vdupq_n_u64(value); 8] }
        fn load_64(self, values: &[u64; GROUP]) -> U64 {
            let parts = values.as_chunks::<2>().0;
            [0, 1, 2, 3, 4, 5, 6, 7].map(|n| vld1q_u64(parts[n].as_ptr()))
        }
        fn store_64(self, values: U64, to: &mut [u64; GROUP]) -> () {
            for (to, values) in to.as_chunks_mut::<2>().0.iter_mut().zip(values) {
                vst1q_u64(to.as_mut_ptr(), values);
            }
        }
        fn widen(self, values: U32) -> U64 {
            let low = |n: usize| vmovl_u32(vget_low_u32(values[n]));
            let high = |n: usize| vmovl_high_u32(values[n]);
            [low(0), high(0), low(1), high(1), low(2), high(2), low(3), high(3)]
        }
        fn narrow(self, values: U64) -> U32 { narrow(values) }
        fn add_64(self, a: U64, b: U64) -> U64 { eight(a, b, |a, b| vaddq_u64(a, b)) }
        fn sub_64(self, a: U64, b: U64) -> U64 { eight(a, b, |a, b| vsubq_u64(a, b)) }
        fn carry_64(self, sum: U64, part: U64) -> U64 {
            eight(sum, part, |sum, part| vshrq_n_u64::<63>(vcltq_u64(sum, part)))
        }
        fn mul_low_halves(self, a: U64, b: U64) -> U64 {
            eight(a, b, |a, b| vmull_u32(vmovn_u64(a), vmovn_u64(b)))
        }
        fn mul_64(self, a: U64, b: u64) -> U64 {
            #[allow(clippy::cast_possible_truncation, reason = "its halves")]
            let (low, high) = (vdup_n_u32(b as u32), vdup_n_u32((b >> 32) as u32));
            a.map(|a| {
                let (a_low, a_high) = (vmovn_u64(a), vshrn_n_u64::<32>(a));
                let crossed = vmla_u32(vmul_u32(a_high, low), a_low, high);
                vaddq_u64(vmull_u32(a_low, low), vshlq_n_u64::<32>(vmovl_u32(crossed)))
            })
        }
        fn min_64(self, a: U64, b: U64) -> U64 {
            eight(a, b, |a, b| vbslq_u64(vcltq_u64(a, b), a, b))
        }
        fn max_64(self, a: U64, b: U64) -> U64 {
            eight(a, b, |a, b| vbslq_u64(vcltq_u64(a, b), b, a))
        }
        fn and_64(self, a: U64, b: U64) -> U64 { eight(a, b, |a, b| vandq_u64(a, b)) }
        fn or_64(self, a: U64, b: U64) -> U64 { eight(a, b, |a, b| vorrq_u64(a, b)) }
        fn xor_64(self, a: U64, b: U64) -> U64 { eight(a, b, |a, b| veorq_u64(a, b)) }
        fn shl_64(self, values: U64, bits: u32) -> U64 {
            let bits = vdupq_n_s64(bits.into());
            values.map(|part| vshlq_u64(part, bits))
        }
        fn shr_64(self, values: U64, bits: u32) -> U64 {
            let bits = vdupq_n_s64(-i64::from(bits));
            values.map(|part| vshlq_u64(part, bits))
        }
        fn eq_64(self, a: U64, b: U64) -> u16 {
            bits(narrow(eight(a, b, |a, b| vceqq_u64(a, b))))
        }
        fn le_64(self, a: U64, b: U64) -> u16 {
            bits(narrow(eight(a, b, |a, b| vcleq_u64(a, b))))
        }
        fn floats(self, values: U32) -> F64 { self.widen(values).map(|part| vcvtq_f64_u64(part)) }
        fn set_float(self, value: f64) -> F64 { [vdupq_n_f64(value); 8] }
        fn add_floats(self, a: F64, b: F64) -> F64 { eight(a, b, |a, b| vaddq_f64(a, b)) }
        fn sub_floats(self, a: F64, b: F64) -> F64 { eight(a, b, |a, b| vsubq_f64(a, b)) }
        fn mul_floats(self, a: F64, b: F64) -> F64 { eight(a, b, |a, b| vmulq_f64(a, b)) }
        fn div_floats(self, a: F64, b: F64) -> F64 { eight(a, b, |a, b| vdivq_f64(a, b)) }
        fn positive(self, a: F64) -> F64 { a.map(|part| vmaxnmq_f64(part, vdupq_n_f64(0.0))) }
        fn whole(self, values: F64) -> U32 { narrow(values.map(|part| vcvtq_u64_f64(part))) }
        fn short_bits(self, values: F64) -> U32 {
            let pair = |n: usize| {
                let low = vcvt_f32_f64(values[2 * n]);
                vreinterpretq_u32_f32(vcvt_high_f32_f64(low, values[2 * n + 1]))
            };
            [pair(0), pair(1), pair(2), pair(3)]
        }
        fn bits_of_short(self, values: U32) -> U32 {
            values.map(|part| vreinterpretq_u32_f32(vcvtq_f32_u32(part)))
        }
        fn words(self, values: &[u32; 64]) -> [int32x4_t; 16] {
            let top = vdupq_n_u32(1 << 31);
            let mut words = [vdupq_n_s32(0); 16];
            for (word, values) in words.iter_mut().zip(values.as_chunks::<4>().0) {
                *word = vreinterpretq_s32_u32(veorq_u32(vld1q_u32(values.as_ptr()), top));
            }
            words
        }
        fn halves(self, values: &[u32; 64]) -> [int16x8_t; 8] {
            let top = vdupq_n_u16(1 << 15);
            let mut halves = [vdupq_n_s16(0); 8];
            for (half, values) in halves.iter_mut().zip(values.as_chunks::<8>().0) {
                let low = vqmovn_u32(vld1q_u32(values.as_ptr()));
                let all = vqmovn_high_u32(low, vld1q_u32(values.as_ptr().add(4)));
                *half = vreinterpretq_s16_u16(veorq_u16(all, top));
            }
            halves
        }
        fn bytes(self, values: &[u32; 64]) -> [int8x16_t; 4] {
            let top = vdupq_n_u8(1 << 7);
            let mut bytes = [vdupq_n_s8(0); 4];
            for (byte, values) in bytes.iter_mut().zip(values.as_chunks::<16>().0) {
                let eight = |at: usize| {
                    let start = values.as_ptr().add(at);
                    vqmovn_high_u32(vqmovn_u32(vld1q_u32(start)), vld1q_u32(start.add(4)))
                };
                let all = vqmovn_high_u16(vqmovn_u16(eight(0)), eight(8));
                *byte = vreinterpretq_s8_u8(veorq_u8(all, top));
            }
            bytes
        }
        fn words_above(self, values: [int32x4_t; 16], than: i32, to: &mut u64) -> () {
            let than = vdupq_n_s32(than);
            let sixteen = |at: usize| {
                as_bytes([0, 1, 2, 3].map(|n| vcgtq_s32(values[4 * at + n], than)))
            };
            *to = bits_64([sixteen(0), sixteen(1), sixteen(2), sixteen(3)]);
        }
        fn halves_above(self, values: [int16x8_t; 8], than: i16, to: &mut u64) -> () {
            let than = vdupq_n_s16(than);
            let above = |n: usize| vcgtq_s16(values[n], than);
            let sixteen = |n: usize| as_bytes_of_halves(above(2 * n), above(2 * n + 1));
            *to = bits_64([sixteen(0), sixteen(1), sixteen(2), sixteen(3)]);
        }
        fn bytes_above(self, values: [int8x16_t; 4], than: i8, to: &mut u64) -> () {
            let than = vdupq_n_s8(than);
            *to = bits_64(values.map(|part| vcgtq_s8(part, than)));
        }
        fn row(self, row: &BitRow) -> Row {
            [vld1q_u64(row.0.as_ptr()), vld1q_u64(row.0.as_ptr().add(2))]
        }
        fn store_row(self, row: Row, to: &mut BitRow) -> () {
            vst1q_u64(to.0.as_mut_ptr(), row[0]);
            vst1q_u64(to.0.as_mut_ptr().add(2), row[1]);
        }
        fn and_rows(self, a: Row, b: Row) -> Row { two(a, b, |a, b| vandq_u64(a, b)) }
        fn without(self, a: Row, b: Row) -> Row { two(a, b, |a, b| vbicq_u64(a, b)) }
        fn or_rows(self, a: Row, b: Row) -> Row { two(a, b, |a, b| vorrq_u64(a, b)) }
        fn xor_rows(self, a: Row, b: Row) -> Row { two(a, b, |a, b| veorq_u64(a, b)) }
        fn shl_row(self, row: Row, bits: u32) -> Row {
            row.map(|part| vshlq_u64(part, vdupq_n_s64(bits.into())))
        }
        fn shr_row(self, row: Row, bits: u32) -> Row {
            row.map(|part| vshlq_u64(part, vdupq_n_s64(-i64::from(bits))))
        }
        fn heads(self, packets: &[&[u8]; GROUP]) -> [U32; 7] {
            let parts = packets.as_chunks::<4>().0;
            let [a, b, c, d] = [0, 1, 2, 3].map(|n| heads_4(&parts[n]));
            [0, 1, 2, 3, 4, 5, 6].map(|word| [a[word], b[word], c[word], d[word]])
        }
    }
}
