//! [`Lanes`] for AVX2: two registers of eight lanes each, masks as lanes of ones.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::lanes::{Kernel, Lanes};
use super::{Avx2, BitRow, GROUP};

/// Runs a kernel compiled for these instructions.
#[inline]
pub(super) fn run<K: Kernel>(lanes: Avx2, kernel: K) -> K::Output {
    // SAFETY: holding the value proves that the machine has the instructions.
    unsafe { enabled(lanes, kernel) }
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn enabled<K: Kernel>(lanes: Avx2, kernel: K) -> K::Output {
    kernel.run(lanes)
}

type U32 = [__m256i; 2];
type U64 = [__m256i; 4];
type F64 = [__m256d; 4];

/// How the lanes of a mask are put next to each other, in each half, and how many the first half has.
#[derive(Clone, Copy, Debug)]
pub struct Packing {
    orders: [__m256i; 2],
    first: usize,
}

/// By mask: its lanes, one after another.
static ORDERS: [[u8; 8]; 256] = {
    let mut orders = [[0; 8]; 256];
    let mut mask = 0;
    while mask < 256 {
        let (mut lane, mut place) = (0_u8, 0);
        while lane < 8 {
            if mask >> lane & 1 != 0 {
                orders[mask][place] = lane;
                place += 1;
            }
            lane += 1;
        }
        mask += 1;
    }
    orders
};

/// The last eight of these from any place on: as many lanes as wanted.
static SOME: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

/// What is read instead of a packet that is too short to be plain.
static NONE: [u8; HEAD_LEN] = [0; HEAD_LEN];
/// Up to the window of TCP.
const HEAD_LEN: usize = 50;

#[inline(always)]
fn two(a: U32, b: U32, f: impl Fn(__m256i, __m256i) -> __m256i) -> U32 {
    [f(a[0], b[0]), f(a[1], b[1])]
}

#[inline(always)]
fn four<T: Copy, R>(a: [T; 4], b: [T; 4], f: impl Fn(T, T) -> R) -> [R; 4] {
    [f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])]
}

/// Four rows of four 32-bit words become, in each half, four columns.
#[inline]
#[target_feature(enable = "avx2")]
fn cross(rows: [__m256i; 4]) -> [__m256i; 4] {
    let [a, b, c, d] = rows;
    let (ab, ab_high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let (cd, cd_high) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    [
        _mm256_unpacklo_epi64(ab, cd),
        _mm256_unpackhi_epi64(ab, cd),
        _mm256_unpacklo_epi64(ab_high, cd_high),
        _mm256_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// Eight rows of eight words become columns.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose_8(rows: [__m256i; 8]) -> [__m256i; 8] {
    let [a, b, c, d, e, f, g, h] = rows;
    let (low, high) = (cross([a, b, c, d]), cross([e, f, g, h]));
    let first = |n: usize| _mm256_permute2x128_si256::<0x20>(low[n], high[n]);
    let second = |n: usize| _mm256_permute2x128_si256::<0x31>(low[n], high[n]);
    [
        first(0),
        first(1),
        first(2),
        first(3),
        second(0),
        second(1),
        second(2),
        second(3),
    ]
}

/// 32 bits of ones where two unsigned numbers of 64 bits are in this order, `a` above `b`.
#[inline]
#[target_feature(enable = "avx2")]
fn above_64(a: __m256i, b: __m256i) -> __m256i {
    let top = _mm256_set1_epi64x(i64::MIN);
    _mm256_cmpgt_epi64(_mm256_xor_si256(a, top), _mm256_xor_si256(b, top))
}

/// The low halves of eight numbers of 64 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn narrow_8(a: __m256i, b: __m256i) -> __m256i {
    let low = _mm256_shuffle_ps::<0x88>(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b));
    _mm256_permute4x64_epi64::<0xd8>(_mm256_castps_si256(low))
}

/// The top bits of 16 numbers of 64 bits.
#[inline]
#[target_feature(enable = "avx2")]
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "four bits each"
)]
fn tops_64(values: U64) -> u16 {
    let bits = |n: usize| _mm256_movemask_pd(_mm256_castsi256_pd(values[n])) as u16;
    bits(0) | bits(1) << 4 | bits(2) << 8 | bits(3) << 12
}

/// The words of plain headers of eight packets, as [`Lanes::heads`] has them.
#[inline]
#[target_feature(enable = "avx2")]
fn heads_8(packets: &[&[u8]; 8]) -> [__m256i; 7] {
    let start = |n: usize| -> *const u8 {
        let packet = packets[n];
        if packet.len() >= HEAD_LEN {
            packet.as_ptr()
        } else {
            NONE.as_ptr()
        }
    };
    let starts: [*const u8; 8] = [
        start(0),
        start(1),
        start(2),
        start(3),
        start(4),
        start(5),
        start(6),
        start(7),
    ];
    let row = |n: usize| {
        // SAFETY: bytes 12 to 28 of at least 50.
        unsafe {
            let low = _mm_loadu_si128(starts[n].add(12).cast());
            let high = _mm_loadu_si128(starts[n + 4].add(12).cast());
            _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high)
        }
    };
    let other = |n: usize| {
        // SAFETY: bytes 26 to 42, and 46 to 50, of at least 50.
        unsafe {
            let words = |start: *const u8| {
                let last = start.add(46).cast::<i32>().read_unaligned();
                _mm_insert_epi32::<3>(_mm_loadu_si128(start.add(26).cast()), last)
            };
            let low = words(starts[n]);
            _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), words(starts[n + 4]))
        }
    };
    let [ether, length, fragment, _] = cross([row(0), row(1), row(2), row(3)]);
    let [source, destination, ports, last] = cross([other(0), other(1), other(2), other(3)]);
    // Which byte of its word goes where, for each word; -1 for none.
    let order = |bytes: [i8; 4]| {
        let word = i32::from_le_bytes(bytes.map(i8::cast_unsigned));
        let at = |n: i8| {
            let [a, b, c, d] = word.to_le_bytes().map(u8::cast_signed);
            let place = |byte: i8| if byte < 0 { -1 } else { byte + 4 * n };
            i32::from_le_bytes([place(a), place(b), place(c), place(d)].map(i8::cast_unsigned))
        };
        _mm256_setr_epi32(at(0), at(1), at(2), at(3), at(0), at(1), at(2), at(3))
    };
    let take = |words, bytes| _mm256_shuffle_epi8(words, order(bytes));
    [
        take(source, [3, 2, 1, 0]),
        take(destination, [3, 2, 1, 0]),
        take(ports, [1, 0, 3, 2]),
        ether,
        _mm256_or_si256(take(length, [1, 0, -1, -1]), take(fragment, [-1, -1, 1, 0])),
        _mm256_or_si256(take(fragment, [2, 3, -1, -1]), take(last, [-1, -1, 0, 1])),
        take(last, [3, 2, -1, -1]),
    ]
}

/// Packs the results of comparisons of eight times 8 numbers: a bit each.
#[inline(always)]
fn store_bits(greater: [__m256i; 4], to: &mut u64) {
    let [a, b, c, d] = greater;
    // SAFETY: inlined into functions that hold the proof; both halves are within the word.
    unsafe {
        let bits = |a, b| _mm256_movemask_epi8(_mm256_packs_epi16(a, b));
        let to = std::ptr::from_mut(to).cast::<i32>();
        to.write(bits(a, b));
        to.add(1).write(bits(c, d));
    }
}

/// Numbers clamped to less than 2^16, 16 to a register, in the order of [`Lanes::FOURS`].
#[inline(always)]
fn pack_halves(values: &[u32; 64], most: u32) -> [__m256i; 4] {
    let values = values.as_chunks::<16>().0;
    // SAFETY: inlined into functions that hold the proof; loads of 8 numbers of 16.
    let pack = |n: usize| unsafe {
        let start = values[n].as_ptr().cast::<__m256i>();
        let most = _mm256_set1_epi32(most.cast_signed());
        let low = _mm256_min_epu32(_mm256_loadu_si256(start), most);
        let high = _mm256_min_epu32(_mm256_loadu_si256(start.add(1)), most);
        _mm256_packus_epi32(low, high)
    };
    [pack(0), pack(1), pack(2), pack(3)]
}

impl Lanes for Avx2 {
    type U32 = U32;
    type U64 = U64;
    type F64 = F64;
    type Mask = U32;
    type Packing = Packing;
    // With their top bits inverted, since comparisons are of signed numbers.
    type Words = [__m256i; 8];
    type Halves = [__m256i; 4];
    type Bytes = [__m256i; 2];
    type Row = __m256i;

    // Packing works by halves of registers.
    const FOURS: [u8; 16] = [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15];
    const AT_ONCE: usize = 2;

    methods! {
        fn set(self, value: u32) -> U32 { [_mm256_set1_epi32(value.cast_signed()); 2] }
        fn load(self, values: &[u32; GROUP]) -> U32 {
            let halves = values.as_chunks::<8>().0;
            [
                _mm256_loadu_si256(halves[0].as_ptr().cast()),
                _mm256_loadu_si256(halves[1].as_ptr().cast()),
            ]
        }
        fn load_first(self, values: &[u32]) -> U32 {
            let from = values.as_ptr().cast::<i32>();
            let some = |most: usize| {
                let masks = SOME.as_ptr().add(8 - most);
                _mm256_loadu_si256(masks.cast())
            };
            let len = values.len().min(GROUP);
            // No number after the last is read.
            [
                _mm256_maskload_epi32(from, some(len.min(8))),
                _mm256_maskload_epi32(from.wrapping_add(8), some(len.saturating_sub(8))),
            ]
        }
        fn store(self, values: U32, to: &mut [u32; GROUP]) -> () {
            let to = to.as_chunks_mut::<8>().0;
            _mm256_storeu_si256(to[0].as_mut_ptr().cast(), values[0]);
            _mm256_storeu_si256(to[1].as_mut_ptr().cast(), values[1]);
        }
        fn add(self, a: U32, b: U32) -> U32 { two(a, b, |a, b| _mm256_add_epi32(a, b)) }
        fn sub(self, a: U32, b: U32) -> U32 { two(a, b, |a, b| _mm256_sub_epi32(a, b)) }
        fn mul(self, a: U32, b: U32) -> U32 { two(a, b, |a, b| _mm256_mullo_epi32(a, b)) }
        fn min(self, a: U32, b: U32) -> U32 { two(a, b, |a, b| _mm256_min_epu32(a, b)) }
        fn max(self, a: U32, b: U32) -> U32 { two(a, b, |a, b| _mm256_max_epu32(a, b)) }
        fn and(self, a: U32, b: U32) -> U32 { two(a, b, |a, b| _mm256_and_si256(a, b)) }
        fn or(self, a: U32, b: U32) -> U32 { two(a, b, |a, b| _mm256_or_si256(a, b)) }
        fn shl(self, values: U32, bits: u32) -> U32 {
            let bits = _mm256_set1_epi32(bits.cast_signed());
            two(values, values, |half, _| _mm256_sllv_epi32(half, bits))
        }
        fn shr(self, values: U32, bits: u32) -> U32 {
            let bits = _mm256_set1_epi32(bits.cast_signed());
            two(values, values, |half, _| _mm256_srlv_epi32(half, bits))
        }
        fn square(self, values: U32) -> (U32, U32) {
            let odd = two(values, values, |half, _| _mm256_srli_epi64::<32>(half));
            let even = two(values, values, |a, b| _mm256_mul_epu32(a, b));
            let odd = two(odd, odd, |a, b| _mm256_mul_epu32(a, b));
            (
                two(even, odd, |even, odd| {
                    _mm256_blend_epi32::<0xaa>(even, _mm256_slli_epi64::<32>(odd))
                }),
                two(even, odd, |even, odd| {
                    _mm256_blend_epi32::<0xaa>(_mm256_srli_epi64::<32>(even), odd)
                }),
            )
        }
        fn add_halves(self, a: U32, b: U32) -> U32 { two(a, b, |a, b| _mm256_adds_epu16(a, b)) }
        fn min_halves(self, a: U32, b: U32) -> U32 { two(a, b, |a, b| _mm256_min_epu16(a, b)) }
        fn max_halves(self, a: U32, b: U32) -> U32 { two(a, b, |a, b| _mm256_max_epu16(a, b)) }
        fn transpose(self, rows: [U32; GROUP]) -> [U32; GROUP] {
            // Without an array that is filled in: it would be cleared or copied first.
            let [a, b, c, d, e, f, g, h, rest @ ..] = rows;
            let [i, j, k, l, m, n, o, p] = rest;
            let upper = |half: usize| {
                transpose_8([
                    a[half], b[half], c[half], d[half], e[half], f[half], g[half], h[half],
                ])
            };
            let lower = |half: usize| {
                transpose_8([
                    i[half], j[half], k[half], l[half], m[half], n[half], o[half], p[half],
                ])
            };
            let ([a, b, c, d, e, f, g, h], [i, j, k, l, m, n, o, p]) = (upper(0), lower(0));
            let first = [[a, i], [b, j], [c, k], [d, l], [e, m], [f, n], [g, o], [h, p]];
            let ([a, b, c, d, e, f, g, h], [i, j, k, l, m, n, o, p]) = (upper(1), lower(1));
            let [q, r, s, t, u, v, w, x] = first;
            [
                q, r, s, t, u, v, w, x, [a, i], [b, j], [c, k], [d, l], [e, m], [f, n], [g, o], [h, p],
            ]
        }
        fn low_bytes(self, values: [U32; 4]) -> [__m256i; 2] {
            let byte = [_mm256_set1_epi32(255); 2];
            let pack = |values: U32| {
                let [low, high] = two(values, byte, |half, byte| _mm256_and_si256(half, byte));
                _mm256_packus_epi32(low, high)
            };
            let [a, b, c, d] = values;
            let bytes =
                [_mm256_packus_epi16(pack(a), pack(b)), _mm256_packus_epi16(pack(c), pack(d))];
            // Packing works by halves of registers: what it gives is put in order.
            let order = [_mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7); 2];
            two(bytes, order, |bytes, order| _mm256_permutevar8x32_epi32(bytes, order))
        }
        fn look_up_step(self, table: &[u32; 256], step: u32, places: U32) -> U32 {
            let start = table.as_ptr().cast::<i32>();
            if step < 3 {
                let first = _mm256_loadu_si256(start.cast());
                return two(places, [first; 2], |places, first| {
                    _mm256_permutevar8x32_epi32(first, places)
                });
            }
            // All within the table.
            two(places, [_mm256_set1_epi32(255); 2], |places, last| {
                _mm256_i32gather_epi32::<4>(start, _mm256_and_si256(places, last))
            })
        }
        fn eq(self, a: U32, b: U32) -> U32 { two(a, b, |a, b| _mm256_cmpeq_epi32(a, b)) }
        fn le(self, a: U32, b: U32) -> U32 {
            two(a, b, |a, b| _mm256_cmpeq_epi32(_mm256_min_epu32(a, b), a))
        }
        fn top(self, values: U32) -> U32 {
            two(values, values, |half, _| _mm256_srai_epi32::<31>(half))
        }
        fn repeats(self, values: [U32; 2]) -> U32 {
            let mut stored = [[0_u32; GROUP]; 2];
            for (values, stored) in values.into_iter().zip(&mut stored) {
                self.store(values, stored);
            }
            let first = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let numbers = [first, _mm256_add_epi32(first, _mm256_set1_epi32(8))];
            let mut found = [_mm256_setzero_si256(); 2];
            #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "16")]
            for lane in 0..GROUP - 1 {
                let own = stored.map(|stored| _mm256_set1_epi32(stored[lane].cast_signed()));
                for half in lane / 8..2 {
                    let same = |n: usize| _mm256_cmpeq_epi32(values[n][half], own[n]);
                    let mut same = _mm256_or_si256(same(0), same(1));
                    if half == lane / 8 {
                        let later =
                            _mm256_cmpgt_epi32(numbers[half], _mm256_set1_epi32(lane as i32));
                        same = _mm256_and_si256(same, later);
                    }
                    found[half] = _mm256_or_si256(found[half], same);
                }
            }
            found
        }
        fn choose(self, mask: U32, yes: U32, no: U32) -> U32 {
            [
                _mm256_blendv_epi8(no[0], yes[0], mask[0]),
                _mm256_blendv_epi8(no[1], yes[1], mask[1]),
            ]
        }
        fn only(self, mask: U32, values: U32) -> U32 { self.and(mask, values) }
        fn mask(self, bits: u16) -> U32 {
            let all = _mm256_set1_epi32(bits.into());
            let own = [
                _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128),
                _mm256_setr_epi32(256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768),
            ];
            two(own, own, |own, _| _mm256_cmpeq_epi32(_mm256_and_si256(all, own), own))
        }
        fn bits(self, mask: U32) -> u16 {
            let [low, high] = mask.map(|half| _mm256_movemask_ps(_mm256_castsi256_ps(half)));
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "16 bits")]
            let bits = (low | high << 8) as u16;
            bits
        }
        fn both(self, a: U32, b: U32) -> U32 { self.and(a, b) }
        fn either(self, a: U32, b: U32) -> U32 { self.or(a, b) }
        fn one_of(self, a: U32, b: U32) -> U32 { two(a, b, |a, b| _mm256_xor_si256(a, b)) }
        fn not(self, mask: U32) -> U32 {
            two(mask, mask, |half, _| _mm256_xor_si256(half, _mm256_set1_epi32(-1)))
        }
        fn packing(self, mask: u16) -> Packing {
            let [low, high] = mask.to_le_bytes();
            let order = |mask: u8| {
                _mm256_cvtepu8_epi32(_mm_loadl_epi64(ORDERS[usize::from(mask)].as_ptr().cast()))
            };
            Packing {
                orders: [order(low), order(high)],
                first: low.count_ones() as usize,
            }
        }
        fn pack(self, packing: Packing, values: U32, to: &mut [u32; GROUP]) -> () {
            let packed = two(values, packing.orders, |values, order| {
                _mm256_permutevar8x32_epi32(values, order)
            });
            // At most 8 are in the first half.
            let to = to.as_mut_ptr();
            _mm256_storeu_si256(to.cast(), packed[0]);
            _mm256_storeu_si256(to.add(packing.first & 15).cast(), packed[1]);
        }
        fn pack_first(self, packing: Packing, values: U32, to: &mut [u32]) -> () {
            let mut all = [0; GROUP];
            self.pack(packing, values, &mut all);
            let some = to.len().min(GROUP);
            let all = self.load(&all);
            let start = to.as_mut_ptr().cast::<i32>();
            let ones = |count: usize| _mm256_loadu_si256(SOME.as_ptr().add(8 - count).cast());
            _mm256_maskstore_epi32(start, ones(some.min(8)), all[0]);
            if some > 8 {
                _mm256_maskstore_epi32(start.add(8), ones(some - 8), all[1]);
            }
        }
        fn set_64(self, value: u64) -> U64 { [_mm256_set1_epi64x(value.cast_signed()); 4] }
        fn load_64(self, values: &[u64; GROUP]) -> U64 {
            let parts = values.as_chunks::<4>().0;
            [0, 1, 2, 3].map(|n| _mm256_loadu_si256(parts[n].as_ptr().cast()))
        }
        fn store_64(self, values: U64, to: &mut [u64; GROUP]) -> () {
            for (to, values) in to.as_chunks_mut::<4>().0.iter_mut().zip(values) {
                _mm256_storeu_si256(to.as_mut_ptr().cast(), values);
            }
        }
        fn widen(self, values: U32) -> U64 {
            let low = |half| _mm256_cvtepu32_epi64(_mm256_castsi256_si128(half));
            let high = |half| _mm256_cvtepu32_epi64(_mm256_extracti128_si256::<1>(half));
            [low(values[0]), high(values[0]), low(values[1]), high(values[1])]
        }
        fn narrow(self, values: U64) -> U32 {
            [narrow_8(values[0], values[1]), narrow_8(values[2], values[3])]
        }
        fn add_64(self, a: U64, b: U64) -> U64 { four(a, b, |a, b| _mm256_add_epi64(a, b)) }
        fn sub_64(self, a: U64, b: U64) -> U64 { four(a, b, |a, b| _mm256_sub_epi64(a, b)) }
        fn carry_64(self, sum: U64, part: U64) -> U64 {
            four(sum, part, |sum, part| _mm256_srli_epi64::<63>(above_64(part, sum)))
        }
        fn mul_low_halves(self, a: U64, b: U64) -> U64 { four(a, b, |a, b| _mm256_mul_epu32(a, b)) }
        fn mul_64(self, a: U64, b: u64) -> U64 {
            let low = _mm256_set1_epi64x(b.cast_signed());
            let high = _mm256_srli_epi64::<32>(low);
            four(a, a, |a, _| {
                let crossed = _mm256_add_epi64(
                    _mm256_mul_epu32(_mm256_srli_epi64::<32>(a), low),
                    _mm256_mul_epu32(a, high),
                );
                _mm256_add_epi64(_mm256_mul_epu32(a, low), _mm256_slli_epi64::<32>(crossed))
            })
        }
        fn min_64(self, a: U64, b: U64) -> U64 {
            four(a, b, |a, b| _mm256_blendv_epi8(a, b, above_64(a, b)))
        }
        fn max_64(self, a: U64, b: U64) -> U64 {
            four(a, b, |a, b| _mm256_blendv_epi8(b, a, above_64(a, b)))
        }
        fn and_64(self, a: U64, b: U64) -> U64 { four(a, b, |a, b| _mm256_and_si256(a, b)) }
        fn or_64(self, a: U64, b: U64) -> U64 { four(a, b, |a, b| _mm256_or_si256(a, b)) }
        fn xor_64(self, a: U64, b: U64) -> U64 { four(a, b, |a, b| _mm256_xor_si256(a, b)) }
        fn shl_64(self, values: U64, bits: u32) -> U64 {
            let bits = _mm256_set1_epi64x(bits.into());
            four(values, values, |part, _| _mm256_sllv_epi64(part, bits))
        }
        fn shr_64(self, values: U64, bits: u32) -> U64 {
            let bits = _mm256_set1_epi64x(bits.into());
            four(values, values, |part, _| _mm256_srlv_epi64(part, bits))
        }
        fn eq_64(self, a: U64, b: U64) -> u16 {
            tops_64(four(a, b, |a, b| _mm256_cmpeq_epi64(a, b)))
        }
        fn le_64(self, a: U64, b: U64) -> u16 { !tops_64(four(a, b, |a, b| above_64(a, b))) }
        fn floats(self, values: U32) -> F64 {
            // 2^52 with the number in its low bits, less 2^52.
            let magic = _mm256_set1_pd(4_503_599_627_370_496.0);
            self.widen(values).map(|part| {
                let with = _mm256_or_si256(part, _mm256_castpd_si256(magic));
                _mm256_sub_pd(_mm256_castsi256_pd(with), magic)
            })
        }
        fn set_float(self, value: f64) -> F64 { [_mm256_set1_pd(value); 4] }
        fn add_floats(self, a: F64, b: F64) -> F64 { four(a, b, |a, b| _mm256_add_pd(a, b)) }
        fn sub_floats(self, a: F64, b: F64) -> F64 { four(a, b, |a, b| _mm256_sub_pd(a, b)) }
        fn mul_floats(self, a: F64, b: F64) -> F64 { four(a, b, |a, b| _mm256_mul_pd(a, b)) }
        fn div_floats(self, a: F64, b: F64) -> F64 { four(a, b, |a, b| _mm256_div_pd(a, b)) }
        fn positive(self, a: F64) -> F64 { a.map(|a| _mm256_max_pd(a, _mm256_setzero_pd())) }
        fn whole(self, values: F64) -> U32 {
            let magic = _mm256_set1_pd(4_503_599_627_370_496.0);
            let parts = values.map(|part| {
                let whole = _mm256_round_pd::<{ _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC }>(part);
                _mm256_castpd_si256(_mm256_add_pd(whole, magic))
            });
            self.narrow(parts)
        }
        fn short_bits(self, values: F64) -> U32 {
            let [a, b, c, d] = values.map(|part| _mm256_cvtpd_ps(part));
            [
                _mm256_castps_si256(_mm256_set_m128(b, a)),
                _mm256_castps_si256(_mm256_set_m128(d, c)),
            ]
        }
        fn bits_of_short(self, values: U32) -> U32 {
            values.map(|part| _mm256_castps_si256(_mm256_cvtepi32_ps(part)))
        }
        fn words(self, values: &[u32; 64]) -> [__m256i; 8] {
            let values = values.as_chunks::<8>().0;
            let part = |n: usize| {
                let part = _mm256_loadu_si256(values[n].as_ptr().cast());
                _mm256_xor_si256(part, _mm256_set1_epi32(i32::MIN))
            };
            [part(0), part(1), part(2), part(3), part(4), part(5), part(6), part(7)]
        }
        fn halves(self, values: &[u32; 64]) -> [__m256i; 4] {
            let top = _mm256_set1_epi16(i16::MIN);
            four(pack_halves(values, 65_535), [top; 4], |part, top| _mm256_xor_si256(part, top))
        }
        fn bytes(self, values: &[u32; 64]) -> [__m256i; 2] {
            let [a, b, c, d] = pack_halves(values, 255);
            let packed = [_mm256_packus_epi16(a, b), _mm256_packus_epi16(c, d)];
            two(packed, [_mm256_set1_epi8(i8::MIN); 2], |part, top| _mm256_xor_si256(part, top))
        }
        fn words_above(self, values: [__m256i; 8], than: i32, to: &mut u64) -> () {
            let than = _mm256_set1_epi32(than);
            let [a, b, c, d, e, f, g, h] = values;
            let greater = |low, high| {
                let (low, high) = (_mm256_cmpgt_epi32(low, than), _mm256_cmpgt_epi32(high, than));
                _mm256_packs_epi32(low, high)
            };
            store_bits([greater(a, b), greater(c, d), greater(e, f), greater(g, h)], to);
        }
        fn halves_above(self, values: [__m256i; 4], than: i16, to: &mut u64) -> () {
            let than = _mm256_set1_epi16(than);
            store_bits(four(values, [than; 4], |part, than| _mm256_cmpgt_epi16(part, than)), to);
        }
        fn bytes_above(self, values: [__m256i; 2], than: i8, to: &mut u64) -> () {
            let than = _mm256_set1_epi8(than);
            let bits = |part| _mm256_movemask_epi8(_mm256_cmpgt_epi8(part, than));
            let to = std::ptr::from_mut(to).cast::<i32>();
            to.write(bits(values[0]));
            to.add(1).write(bits(values[1]));
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
        fn heads(self, packets: &[&[u8]; GROUP]) -> [U32; 7] {
            let halves = packets.as_chunks::<8>().0;
            let (low, high) = (heads_8(&halves[0]), heads_8(&halves[1]));
            [
                [low[0], high[0]],
                [low[1], high[1]],
                [low[2], high[2]],
                [low[3], high[3]],
                [low[4], high[4]],
                [low[5], high[5]],
                [low[6], high[6]],
            ]
        }
    }
}
