//! AVX2: two registers hold the batch, and a lookup covers 16 bytes at a time.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::bytes::{self, Bytes};
use super::levels::{Group, LeafTable, LevelTable, Ranks};
use super::{Columns, LANES};

pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx2")
}

/// See [`bytes::leaves`].
#[inline]
pub(super) fn leaves(
    group: &Group,
    columns: &Columns,
    packets: usize,
    leaves: &mut [[u16; LANES]],
) {
    debug_assert!(is_available());
    // SAFETY: a forest of this kernel is made only where it is available.
    unsafe { enabled(group, columns, packets, leaves) }
}

#[target_feature(enable = "avx2")]
fn enabled(group: &Group, columns: &Columns, packets: usize, leaves: &mut [[u16; LANES]]) {
    // SAFETY: the instruction set is enabled here.
    unsafe { bytes::leaves::<Ymms>(group, columns, packets, leaves) }
}

#[derive(Clone, Copy)]
struct Ymms([__m256i; 2]);

/// Maps the order of unsigned numbers to that of signed ones.
const SIGN: i32 = i32::MIN;

/// `self.step` for unsigned bytes: all ones where `rank` is greater.
///
/// # Safety
///
/// AVX2.
#[inline(always)]
unsafe fn greater(rank: __m256i, at_most: __m256i) -> __m256i {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        // No more than the threshold: subtracting it leaves nothing.
        let rest = _mm256_subs_epu8(rank, at_most);
        let not_greater = _mm256_cmpeq_epi8(rest, _mm256_setzero_si256());
        _mm256_xor_si256(not_greater, _mm256_set1_epi8(-1))
    }
}

/// The ranks of values, 8 to a register, by a search of `depth` steps, as [`Ranks::rank`]. Several
/// registers at a time, since each step waits for the one before.
///
/// # Safety
///
/// AVX2.
#[inline(always)]
unsafe fn search<const REGISTERS: usize>(
    nodes: &[u32; 256],
    depth: u32,
    values: [__m256i; REGISTERS],
) -> [__m256i; REGISTERS] {
    // SAFETY: the first 8 nodes are within the table, and so is every k that is
    // gathered: below 2^depth, at most 256.
    unsafe {
        let sign = _mm256_set1_epi32(SIGN);
        let mut values = values;
        for values in &mut values {
            *values = _mm256_xor_si256(*values, sign);
        }
        let top = _mm256_loadu_si256(nodes.as_ptr().cast());
        let top = _mm256_xor_si256(top, sign);
        let mut found = [_mm256_set1_epi32(1); REGISTERS];
        for _ in 0..depth.min(3) {
            for (k, values) in found.iter_mut().zip(values) {
                let thresholds = _mm256_permutevar8x32_epi32(top, *k);
                // A compare gives -1 where it is true.
                let greater = _mm256_cmpgt_epi32(values, thresholds);
                *k = _mm256_sub_epi32(_mm256_add_epi32(*k, *k), greater);
            }
        }
        for _ in 3..depth {
            for (k, values) in found.iter_mut().zip(values) {
                let thresholds = _mm256_i32gather_epi32::<4>(nodes.as_ptr().cast(), *k);
                let greater = _mm256_cmpgt_epi32(values, _mm256_xor_si256(thresholds, sign));
                *k = _mm256_sub_epi32(_mm256_add_epi32(*k, *k), greater);
            }
        }
        let steps = _mm256_set1_epi32(1 << depth);
        for k in &mut found {
            *k = _mm256_sub_epi32(*k, steps);
        }
        found
    }
}

/// The ranks of some values, 8 to a register.
///
/// # Safety
///
/// AVX2.
#[inline(always)]
unsafe fn rank<const REGISTERS: usize>(
    ranks: &Ranks,
    values: &[[u32; 8]; REGISTERS],
) -> [__m256i; REGISTERS] {
    // SAFETY: the caller guarantees the instruction set; loads of 8 values each.
    unsafe {
        let mut all = [_mm256_setzero_si256(); REGISTERS];
        for (all, values) in all.iter_mut().zip(values) {
            *all = _mm256_loadu_si256(values.as_ptr().cast());
        }
        match ranks {
            Ranks::Value => {
                for all in &mut all {
                    *all = _mm256_min_epu32(*all, _mm256_set1_epi32(255));
                }
                all
            }
            Ranks::Search { depth, nodes } => search(nodes, *depth, all),
        }
    }
}

/// The low bytes of 32 numbers below 256, in order.
///
/// # Safety
///
/// AVX2.
#[inline(always)]
unsafe fn pack_32(a: __m256i, b: __m256i, c: __m256i, d: __m256i) -> __m256i {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let low = _mm256_packus_epi32(a, b);
        let high = _mm256_packus_epi32(c, d);
        // Packing works by halves of registers; put the pieces in order.
        let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order)
    }
}

impl Bytes for Ymms {
    #[inline(always)]
    unsafe fn splat(byte: u8) -> Self {
        // SAFETY: the caller guarantees the instruction set, here and below.
        Self([unsafe { _mm256_set1_epi8(byte.cast_signed()) }; 2])
    }

    #[inline(always)]
    unsafe fn rank(ranks: &Ranks, column: &[u32; LANES], packets: usize) -> Self {
        // SAFETY: as above.
        let mut wide = [unsafe { _mm256_setzero_si256() }; 8];
        let eights = column.as_chunks::<8>().0;
        if packets > LANES - 8 {
            let (wide, values) = (wide.as_chunks_mut::<4>().0, eights.as_chunks::<4>().0);
            for (wide, values) in wide.iter_mut().zip(values) {
                // SAFETY: as above.
                *wide = unsafe { rank(ranks, values) };
            }
        } else {
            for (wide, values) in wide.iter_mut().zip(eights).take(packets.div_ceil(8)) {
                // SAFETY: as above.
                [*wide] = unsafe { rank(ranks, &[*values]) };
            }
        }
        // SAFETY: as above.
        Self(unsafe {
            [
                pack_32(wide[0], wide[1], wide[2], wide[3]),
                pack_32(wide[4], wide[5], wide[6], wide[7]),
            ]
        })
    }

    #[inline(always)]
    unsafe fn look_up(level: &LevelTable, at: Self) -> [Self; 3] {
        let tables = [&level.feature, &level.at_most, &level.left];
        // SAFETY: as above; a table has 8 pieces of 16 bytes.
        unsafe {
            let mut found = [Self::splat(0); 3];
            for piece in 0..level.width.div_ceil(16).min(8) {
                #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
                let first = _mm256_set1_epi8((piece * 16) as i8);
                for half in 0..2 {
                    // In this piece: the place, with the top bit clear. Elsewhere the top bit is
                    // set, for which a shuffle gives 0.
                    let place = _mm256_xor_si256(at.0[half], first);
                    let place = _mm256_adds_epu8(place, _mm256_set1_epi8(0x70));
                    for (found, table) in found.iter_mut().zip(tables) {
                        let bytes = _mm_loadu_si128(table.as_ptr().add(piece * 16).cast());
                        let bytes = _mm256_broadcastsi128_si256(bytes);
                        let here = _mm256_shuffle_epi8(bytes, place);
                        found.0[half] = _mm256_or_si256(found.0[half], here);
                    }
                }
            }
            found
        }
    }

    #[inline(always)]
    unsafe fn select(mut self, feature: Self, number: u8, row: Self) -> Self {
        // SAFETY: as above.
        unsafe {
            let number = _mm256_set1_epi8(number.cast_signed());
            for half in 0..2 {
                let here = _mm256_cmpeq_epi8(feature.0[half], number);
                self.0[half] = _mm256_blendv_epi8(self.0[half], row.0[half], here);
            }
        }
        self
    }

    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        let ([a, b], [c, d]) = (self.0, other.0);
        // SAFETY: as above.
        Self(unsafe { [_mm256_or_si256(a, c), _mm256_or_si256(b, d)] })
    }

    #[inline(always)]
    unsafe fn step(mut self, rank: Self, at_most: Self) -> Self {
        // SAFETY: as above.
        unsafe {
            for half in 0..2 {
                let greater = greater(rank.0[half], at_most.0[half]);
                self.0[half] = _mm256_sub_epi8(self.0[half], greater);
            }
        }
        self
    }

    #[inline(always)]
    unsafe fn store(self, leaves: &LeafTable, row: &mut [u16; LANES]) {
        let mut at = [0_u8; LANES];
        // SAFETY: two stores of 32 bytes.
        unsafe {
            _mm256_storeu_si256(at.as_mut_ptr().cast(), self.0[0]);
            _mm256_storeu_si256(at.as_mut_ptr().add(32).cast(), self.0[1]);
        }
        leaves.file_nodes(&at, row);
    }
}
