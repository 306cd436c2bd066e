//! [`Lanes`] for AVX-512: a register each, and mask registers.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::lanes::{Kernel, Lanes};
use super::{Avx512, BitRow, GROUP};

/// Runs a kernel compiled for these instructions.
#[inline]
pub(super) fn run<K: Kernel>(lanes: Avx512, kernel: K) -> K::Output {
    // SAFETY: holding the value proves that the machine has the instructions.
    unsafe { enabled(lanes, kernel) }
}

#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx512vbmi,avx2,bmi1,bmi2,lzcnt,popcnt"
)]
fn enabled<K: Kernel>(lanes: Avx512, kernel: K) -> K::Output {
    kernel.run(lanes)
}

/// Where the fields of plain headers are in a packet, as [`Lanes::heads`] returns them: 32-bit
/// words in the CPU's byte order. Twice, for two packets: bit 6 says which.
///
/// ```text
///  0 source address         16 total length, fragment
///  4 destination address    20 TTL, protocol, TCP offset, TCP flags
///  8 ports                  24 TCP window
/// 12 EtherType, version, TOS
/// ```
static PLACES: [u8; 64] = {
    const FIELDS: [u8; 32] = [
        29, 28, 27, 26, 33, 32, 31, 30, 35, 34, 37, 36, 12, 13, 14, 15, 17, 16, 21, 20, 22, 23, 46,
        47, 49, 48, 0, 0, 0, 0, 0, 0,
    ];
    let mut places = [0; 64];
    let mut at = 0;
    while at < FIELDS.len() {
        places[at] = FIELDS[at];
        places[at + FIELDS.len()] = FIELDS[at] | 64;
        at += 1;
    }
    places
};

/// Places of the low bytes of 32 numbers, twice.
static EVERY_FOURTH: [u8; 64] = {
    let mut places = [0; 64];
    let mut at = 0;
    while at < places.len() {
        #[allow(clippy::cast_possible_truncation, reason = "less than 128")]
        {
            places[at] = (4 * at % 128) as u8;
        }
        at += 1;
    }
    places
};

type U64 = [__m512i; 2];
type F64 = [__m512d; 2];

#[inline(always)]
fn each<T: Copy, U: Copy, R>(a: [T; 2], b: [U; 2], f: impl Fn(T, U) -> R) -> [R; 2] {
    [f(a[0], b[0]), f(a[1], b[1])]
}

/// Four rows of four 32-bit words become, in each quarter, four columns.
#[inline]
#[target_feature(enable = "avx512f")]
fn cross(rows: [__m512i; 4]) -> [__m512i; 4] {
    let [a, b, c, d] = rows;
    let (ab, ab_high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let (cd, cd_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(ab, cd),
        _mm512_unpackhi_epi64(ab, cd),
        _mm512_unpacklo_epi64(ab_high, cd_high),
        _mm512_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// The first 64 bytes of a packet, zeros after its end.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn head(packet: &[u8]) -> __m512i {
    #[allow(clippy::cast_possible_truncation, reason = "at most 64")]
    let mask = _bzhi_u64(u64::MAX, packet.len().min(64) as u32);
    // SAFETY: no byte after the end of the packet is read.
    unsafe { _mm512_maskz_loadu_epi8(mask, packet.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn join(low: __m256i, high: __m256i) -> __m512i {
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
}

impl Lanes for Avx512 {
    type U32 = __m512i;
    type U64 = U64;
    type F64 = F64;
    type Mask = u16;
    type Packing = u16;
    type Words = [__m512i; 4];
    type Halves = [__m512i; 2];
    type Bytes = __m512i;
    type Row = __m256i;

    const FOURS: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
    const AT_ONCE: usize = 4;

    methods! {
        fn set(self, value: u32) -> __m512i { _mm512_set1_epi32(value.cast_signed()) }
        fn load(self, values: &[u32; GROUP]) -> __m512i { _mm512_loadu_si512(values.as_ptr().cast()) }
        fn load_first(self, values: &[u32]) -> __m512i {
            #[allow(clippy::cast_possible_truncation, reason = "16 bits")]
            let some = _bzhi_u32(0xffff, values.len().min(GROUP) as u32) as u16;
            // No number after the last is read.
            _mm512_maskz_loadu_epi32(some, values.as_ptr().cast())
        }
        fn store(self, values: __m512i, to: &mut [u32; GROUP]) -> () {
            _mm512_storeu_si512(to.as_mut_ptr().cast(), values);
        }
        fn add(self, a: __m512i, b: __m512i) -> __m512i { _mm512_add_epi32(a, b) }
        fn sub(self, a: __m512i, b: __m512i) -> __m512i { _mm512_sub_epi32(a, b) }
        fn mul(self, a: __m512i, b: __m512i) -> __m512i { _mm512_mullo_epi32(a, b) }
        fn min(self, a: __m512i, b: __m512i) -> __m512i { _mm512_min_epu32(a, b) }
        fn max(self, a: __m512i, b: __m512i) -> __m512i { _mm512_max_epu32(a, b) }
        fn and(self, a: __m512i, b: __m512i) -> __m512i { _mm512_and_si512(a, b) }
        fn or(self, a: __m512i, b: __m512i) -> __m512i { _mm512_or_si512(a, b) }
        fn shl(self, values: __m512i, bits: u32) -> __m512i {
            _mm512_sllv_epi32(values, _mm512_set1_epi32(bits.cast_signed()))
        }
        fn shr(self, values: __m512i, bits: u32) -> __m512i {
            _mm512_srlv_epi32(values, _mm512_set1_epi32(bits.cast_signed()))
        }
        fn square(self, values: __m512i) -> (__m512i, __m512i) {
            let odd = _mm512_srli_epi64::<32>(values);
            let (even, odd) = (_mm512_mul_epu32(values, values), _mm512_mul_epu32(odd, odd));
            (
                _mm512_mask_mov_epi32(even, 0xaaaa, _mm512_slli_epi64::<32>(odd)),
                _mm512_mask_mov_epi32(_mm512_srli_epi64::<32>(even), 0xaaaa, odd),
            )
        }
        fn add_halves(self, a: __m512i, b: __m512i) -> __m512i { _mm512_adds_epu16(a, b) }
        fn min_halves(self, a: __m512i, b: __m512i) -> __m512i { _mm512_min_epu16(a, b) }
        fn max_halves(self, a: __m512i, b: __m512i) -> __m512i { _mm512_max_epu16(a, b) }
        fn transpose(self, rows: [__m512i; GROUP]) -> [__m512i; GROUP] {
            let mut columns = rows;
            for at in 0..4 {
                let fours = cross([0, 1, 2, 3].map(|n| rows[4 * at + n]));
                for (n, four) in fours.into_iter().enumerate() {
                    columns[4 * at + n] = four;
                }
            }
            let fours = columns;
            for at in 0..4 {
                let [a, b, c, d] = [0, 4, 8, 12].map(|n| fours[n + at]);
                let (even, odd) =
                    (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
                let (even_2, odd_2) =
                    (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d));
                columns[at] = _mm512_shuffle_i32x4::<0x88>(even, even_2);
                columns[8 + at] = _mm512_shuffle_i32x4::<0xdd>(even, even_2);
                columns[4 + at] = _mm512_shuffle_i32x4::<0x88>(odd, odd_2);
                columns[12 + at] = _mm512_shuffle_i32x4::<0xdd>(odd, odd_2);
            }
            columns
        }
        fn low_bytes(self, values: [__m512i; 4]) -> __m512i {
            let [a, b, c, d] = values;
            let places = _mm512_loadu_si512(EVERY_FOURTH.as_ptr().cast());
            let first = _mm512_permutex2var_epi8(a, places, b);
            let second = _mm512_permutex2var_epi8(c, places, d);
            // Each holds its 32 bytes twice.
            _mm512_mask_mov_epi64(first, 0xf0, second)
        }
        fn look_up_step(self, table: &[u32; 256], step: u32, places: __m512i) -> __m512i {
            let pieces = table.as_chunks::<GROUP>().0;
            let piece = |n: usize| self.load(&pieces[n % 16]);
            // Permutations look at the low bits of places only.
            let pair = |n: usize| _mm512_permutex2var_epi32(piece(n), places, piece(n + 1));
            match step {
                0..=3 => _mm512_permutexvar_epi32(places, piece(0)),
                4 => _mm512_permutexvar_epi32(places, piece(1)),
                5 => pair(2),
                _ => {
                    // Steps 6 and 7. Each pair of pieces is for the places that agree in the bits above.
                    let first = 1_usize << (step % 4);
                    let above = _mm512_srli_epi32::<5>(places);
                    let mut found = pair(first);
                    for later in 1..first / 2 {
                        #[allow(clippy::cast_possible_truncation, reason = "less than 8")]
                        let here = self.eq(above, self.set((first / 2 + later) as u32));
                        found = self.choose(here, pair(first + 2 * later), found);
                    }
                    found
                }
            }
        }
        fn eq(self, a: __m512i, b: __m512i) -> u16 { _mm512_cmpeq_epi32_mask(a, b) }
        fn le(self, a: __m512i, b: __m512i) -> u16 { _mm512_cmple_epu32_mask(a, b) }
        fn top(self, values: __m512i) -> u16 { _mm512_movepi32_mask(values) }
        fn repeats(self, values: [__m512i; 2]) -> u16 {
            let [a, b] = values.map(|values| _mm512_conflict_epi32(values));
            let either = _mm512_or_si512(a, b);
            _mm512_test_epi32_mask(either, either)
        }
        fn choose(self, mask: u16, yes: __m512i, no: __m512i) -> __m512i {
            _mm512_mask_mov_epi32(no, mask, yes)
        }
        fn only(self, mask: u16, values: __m512i) -> __m512i { _mm512_maskz_mov_epi32(mask, values) }
        fn mask(self, bits: u16) -> u16 { bits }
        fn bits(self, mask: u16) -> u16 { mask }
        fn both(self, a: u16, b: u16) -> u16 { a & b }
        fn either(self, a: u16, b: u16) -> u16 { a | b }
        fn one_of(self, a: u16, b: u16) -> u16 { a ^ b }
        fn not(self, mask: u16) -> u16 { !mask }
        fn packing(self, mask: u16) -> u16 { mask }
        fn pack(self, packing: u16, values: __m512i, to: &mut [u32; GROUP]) -> () {
            let values = _mm512_maskz_compress_epi32(packing, values);
            _mm512_storeu_si512(to.as_mut_ptr().cast(), values);
        }
        fn pack_first(self, packing: u16, values: __m512i, to: &mut [u32]) -> () {
            let values = _mm512_maskz_compress_epi32(packing, values);
            #[allow(clippy::cast_possible_truncation, reason = "16 bits")]
            let some = ((1_u32 << to.len().min(GROUP)) - 1) as u16;
            _mm512_mask_storeu_epi32(to.as_mut_ptr().cast(), some, values);
        }
        fn set_64(self, value: u64) -> U64 { [_mm512_set1_epi64(value.cast_signed()); 2] }
        fn load_64(self, values: &[u64; GROUP]) -> U64 {
            let halves = values.as_chunks::<8>().0;
            [0, 1].map(|half| _mm512_loadu_si512(halves[half].as_ptr().cast()))
        }
        fn store_64(self, values: U64, to: &mut [u64; GROUP]) -> () {
            for (to, values) in to.as_chunks_mut::<8>().0.iter_mut().zip(values) {
                _mm512_storeu_si512(to.as_mut_ptr().cast(), values);
            }
        }
        fn widen(self, values: __m512i) -> U64 {
            [
                _mm512_cvtepu32_epi64(_mm512_castsi512_si256(values)),
                _mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64::<1>(values)),
            ]
        }
        fn narrow(self, values: U64) -> __m512i {
            let [low, high] = values.map(|half| _mm512_cvtepi64_epi32(half));
            join(low, high)
        }
        fn add_64(self, a: U64, b: U64) -> U64 { each(a, b, |a, b| _mm512_add_epi64(a, b)) }
        fn sub_64(self, a: U64, b: U64) -> U64 { each(a, b, |a, b| _mm512_sub_epi64(a, b)) }
        fn carry_64(self, sum: U64, part: U64) -> U64 {
            let one = _mm512_set1_epi64(1);
            each(sum, part, |sum, part| {
                _mm512_maskz_mov_epi64(_mm512_cmplt_epu64_mask(sum, part), one)
            })
        }
        fn mul_low_halves(self, a: U64, b: U64) -> U64 { each(a, b, |a, b| _mm512_mul_epu32(a, b)) }
        fn mul_64(self, a: U64, b: u64) -> U64 {
            let b = _mm512_set1_epi64(b.cast_signed());
            a.map(|a| _mm512_mullo_epi64(a, b))
        }
        fn min_64(self, a: U64, b: U64) -> U64 { each(a, b, |a, b| _mm512_min_epu64(a, b)) }
        fn max_64(self, a: U64, b: U64) -> U64 { each(a, b, |a, b| _mm512_max_epu64(a, b)) }
        fn and_64(self, a: U64, b: U64) -> U64 { each(a, b, |a, b| _mm512_and_si512(a, b)) }
        fn or_64(self, a: U64, b: U64) -> U64 { each(a, b, |a, b| _mm512_or_si512(a, b)) }
        fn xor_64(self, a: U64, b: U64) -> U64 { each(a, b, |a, b| _mm512_xor_si512(a, b)) }
        fn shl_64(self, values: U64, bits: u32) -> U64 {
            let bits = _mm512_set1_epi64(bits.into());
            values.map(|half| _mm512_sllv_epi64(half, bits))
        }
        fn shr_64(self, values: U64, bits: u32) -> U64 {
            let bits = _mm512_set1_epi64(bits.into());
            values.map(|half| _mm512_srlv_epi64(half, bits))
        }
        fn eq_64(self, a: U64, b: U64) -> u16 {
            u16::from_le_bytes(each(a, b, |a, b| _mm512_cmpeq_epi64_mask(a, b)))
        }
        fn le_64(self, a: U64, b: U64) -> u16 {
            u16::from_le_bytes(each(a, b, |a, b| _mm512_cmple_epu64_mask(a, b)))
        }
        fn floats(self, values: __m512i) -> F64 {
            [
                _mm512_cvtepu32_pd(_mm512_castsi512_si256(values)),
                _mm512_cvtepu32_pd(_mm512_extracti64x4_epi64::<1>(values)),
            ]
        }
        fn set_float(self, value: f64) -> F64 { [_mm512_set1_pd(value); 2] }
        fn add_floats(self, a: F64, b: F64) -> F64 { each(a, b, |a, b| _mm512_add_pd(a, b)) }
        fn sub_floats(self, a: F64, b: F64) -> F64 { each(a, b, |a, b| _mm512_sub_pd(a, b)) }
        fn mul_floats(self, a: F64, b: F64) -> F64 { each(a, b, |a, b| _mm512_mul_pd(a, b)) }
        fn div_floats(self, a: F64, b: F64) -> F64 { each(a, b, |a, b| _mm512_div_pd(a, b)) }
        fn positive(self, a: F64) -> F64 { a.map(|a| _mm512_max_pd(a, _mm512_setzero_pd())) }
        fn whole(self, values: F64) -> __m512i {
            let [low, high] = values.map(|half| _mm512_cvttpd_epu32(half));
            join(low, high)
        }
        fn short_bits(self, values: F64) -> __m512i {
            let [low, high] = values.map(|half| _mm256_castps_si256(_mm512_cvtpd_ps(half)));
            join(low, high)
        }
        fn bits_of_short(self, values: __m512i) -> __m512i {
            _mm512_castps_si512(_mm512_cvtepi32_ps(values))
        }
        fn words(self, values: &[u32; 64]) -> [__m512i; 4] {
            let values = values.as_chunks::<GROUP>().0;
            let top = _mm512_set1_epi32(i32::MIN);
            let part = |n: usize| _mm512_xor_si512(self.load(&values[n]), top);
            [part(0), part(1), part(2), part(3)]
        }
        fn halves(self, values: &[u32; 64]) -> [__m512i; 2] {
            let values = values.as_chunks::<GROUP>().0;
            let part = |n: usize| _mm512_cvtusepi32_epi16(self.load(&values[n]));
            let top = _mm512_set1_epi16(i16::MIN);
            let halves = [join(part(0), part(1)), join(part(2), part(3))];
            each(halves, [top; 2], |half, top| _mm512_xor_si512(half, top))
        }
        fn bytes(self, values: &[u32; 64]) -> __m512i {
            let values = values.as_chunks::<GROUP>().0;
            let part = |n: usize| _mm512_cvtusepi32_epi8(self.load(&values[n]));
            let all = join(_mm256_set_m128i(part(1), part(0)), _mm256_set_m128i(part(3), part(2)));
            _mm512_xor_si512(all, _mm512_set1_epi8(i8::MIN))
        }
        fn words_above(self, values: [__m512i; 4], than: i32, to: &mut u64) -> () {
            let than = _mm512_set1_epi32(than);
            // Mask registers are stored as they are.
            let to = std::ptr::from_mut(to).cast::<u16>();
            for (place, part) in values.into_iter().enumerate() {
                to.add(place).write(_mm512_cmpgt_epi32_mask(part, than));
            }
        }
        fn halves_above(self, values: [__m512i; 2], than: i16, to: &mut u64) -> () {
            let than = _mm512_set1_epi16(than);
            let to = std::ptr::from_mut(to).cast::<u32>();
            to.write(_mm512_cmpgt_epi16_mask(values[0], than));
            to.add(1).write(_mm512_cmpgt_epi16_mask(values[1], than));
        }
        fn bytes_above(self, values: __m512i, than: i8, to: &mut u64) -> () {
            *to = _mm512_cmpgt_epi8_mask(values, _mm512_set1_epi8(than));
        }
        fn row(self, row: &BitRow) -> __m256i { _mm256_load_si256(row.0.as_ptr().cast()) }
        fn store_row(self, row: __m256i, to: &mut BitRow) -> () {
            _mm256_store_si256(to.0.as_mut_ptr().cast(), row);
        }
        fn and_rows(self, a: __m256i, b: __m256i) -> __m256i { _mm256_and_si256(a, b) }
        fn without(self, a: __m256i, b: __m256i) -> __m256i { _mm256_andnot_si256(b, a) }
        fn or_rows(self, a: __m256i, b: __m256i) -> __m256i { _mm256_or_si256(a, b) }
        fn xor_rows(self, a: __m256i, b: __m256i) -> __m256i { _mm256_xor_si256(a, b) }
        fn shl_row(self, row: __m256i, bits: u32) -> __m256i {
            _mm256_sllv_epi64(row, _mm256_set1_epi64x(bits.into()))
        }
        fn shr_row(self, row: __m256i, bits: u32) -> __m256i {
            _mm256_srlv_epi64(row, _mm256_set1_epi64x(bits.into()))
        }
        fn heads(self, packets: &[&[u8]; GROUP]) -> [__m512i; 7] {
            let places = _mm512_loadu_si512(PLACES.as_ptr().cast());
            let pair = |a: usize, b: usize| {
                _mm512_permutex2var_epi8(head(packets[a]), places, head(packets[b]))
            };
            let first = cross([pair(0, 4), pair(1, 5), pair(2, 6), pair(3, 7)]);
            let second = cross([pair(8, 12), pair(9, 13), pair(10, 14), pair(11, 15)]);
            [
                _mm512_shuffle_i32x4::<0x88>(first[0], second[0]),
                _mm512_shuffle_i32x4::<0x88>(first[1], second[1]),
                _mm512_shuffle_i32x4::<0x88>(first[2], second[2]),
                _mm512_shuffle_i32x4::<0x88>(first[3], second[3]),
                _mm512_shuffle_i32x4::<0xdd>(first[0], second[0]),
                _mm512_shuffle_i32x4::<0xdd>(first[1], second[1]),
                _mm512_shuffle_i32x4::<0xdd>(first[2], second[2]),
            ]
        }
    }
}
