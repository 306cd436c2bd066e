//! AVX-512 F, BW and VBMI: one register holds the batch.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::bytes::{self, Bytes};
use super::levels::{Group, LeafTable, LevelTable, Ranks};
use super::{Columns, LANES};

pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vbmi")
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

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn enabled(group: &Group, columns: &Columns, packets: usize, leaves: &mut [[u16; LANES]]) {
    // SAFETY: the instruction set is enabled here.
    unsafe { bytes::leaves::<Zmm>(group, columns, packets, leaves) }
}

#[derive(Clone, Copy)]
struct Zmm(__m512i);

/// Every number 64 times, so that a compare can take its operand from memory.
static SPLATS: [[u8; LANES]; LANES] = {
    let mut splats = [[0; LANES]; LANES];
    let mut number = 0;
    while number < LANES {
        #[allow(clippy::cast_possible_truncation)]
        {
            splats[number] = [number as u8; LANES];
        }
        number += 1;
    }
    splats
};

/// Loads 64 bytes of a table of 64, 128 or 256.
///
/// # Safety
///
/// `place` is below the table's number of 64-byte pieces.
#[inline(always)]
unsafe fn piece<const LEN: usize>(table: &[u8; LEN], place: usize) -> __m512i {
    debug_assert!((place + 1) * 64 <= LEN);
    // SAFETY: the caller keeps the piece within the table; loads need no alignment.
    unsafe { _mm512_loadu_si512(table.as_ptr().add(place * 64).cast()) }
}

/// `table[at]` for the first 64 or all 128 bytes of a table.
///
/// # Safety
///
/// AVX-512 VBMI.
#[inline(always)]
unsafe fn look_up<const LEN: usize>(table: &[u8; LEN], wide: bool, at: __m512i) -> __m512i {
    // SAFETY: tables have at least two pieces.
    unsafe {
        if wide {
            _mm512_permutex2var_epi8(piece(table, 0), at, piece(table, 1))
        } else {
            _mm512_permutexvar_epi8(at, piece(table, 0))
        }
    }
}

/// `table[at]` for tables of 256 bytes of which `count` are used.
///
/// # Safety
///
/// AVX-512 VBMI.
#[inline(always)]
unsafe fn look_up_256(table: &[u8; 256], count: usize, at: __m512i) -> __m512i {
    // SAFETY: the table has four pieces.
    unsafe {
        let low = look_up(table, count > 64, at);
        if count <= 128 {
            return low;
        }
        let high = _mm512_permutex2var_epi8(piece(table, 2), at, piece(table, 3));
        _mm512_mask_mov_epi8(low, _mm512_movepi8_mask(at), high)
    }
}

/// 32 numbers from their low and high bytes.
///
/// # Safety
///
/// AVX-512 BW.
#[inline(always)]
unsafe fn join(low: __m256i, high: __m256i) -> __m512i {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let high = _mm512_slli_epi16::<8>(_mm512_cvtepu8_epi16(high));
        _mm512_or_si512(_mm512_cvtepu8_epi16(low), high)
    }
}

/// Nodes `16 * place` and the 15 after it.
///
/// # Safety
///
/// AVX-512 F.
#[inline(always)]
unsafe fn nodes_16(nodes: &[u32; 256], place: usize) -> __m512i {
    debug_assert!(place < 16);
    // SAFETY: node 16 p + 15 is within the table for p below 16.
    unsafe { _mm512_loadu_si512(nodes.as_ptr().add(place * 16).cast()) }
}

/// Of the 32 nodes from `16 * place` on, the ones selected by the low bits of `k`.
///
/// # Safety
///
/// AVX-512 F.
#[inline(always)]
unsafe fn pair(nodes: &[u32; 256], place: usize, k: __m512i) -> __m512i {
    // SAFETY: the caller guarantees the instruction set.
    unsafe { _mm512_permutex2var_epi32(nodes_16(nodes, place), k, nodes_16(nodes, place + 1)) }
}

/// The thresholds of the nodes `k` of a step.
///
/// # Safety
///
/// AVX-512 F.
#[inline(always)]
unsafe fn thresholds(nodes: &[u32; 256], step: u32, k: __m512i) -> __m512i {
    // Nodes of step s are 2^s to 2^(s+1) - 1; the permutations look only at the low bits of k.
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        match step {
            0..=3 => _mm512_permutexvar_epi32(k, nodes_16(nodes, 0)),
            4 => _mm512_permutexvar_epi32(k, nodes_16(nodes, 1)),
            5 => pair(nodes, 2, k),
            _ => {
                // Each pair of pieces serves the nodes that agree in the bits above.
                let first = 1 << (step - 4);
                let mut found = pair(nodes, first, k);
                for later in 1..first / 2 {
                    #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
                    let nodes_of = _mm512_set1_epi32((first / 2 + later) as i32);
                    let here = _mm512_cmpeq_epi32_mask(_mm512_srli_epi32::<5>(k), nodes_of);
                    let other = pair(nodes, first + 2 * later, k);
                    found = _mm512_mask_mov_epi32(found, here, other);
                }
                found
            }
        }
    }
}

/// The low bytes of 64 numbers.
///
/// # Safety
///
/// AVX-512 VBMI.
#[inline(always)]
unsafe fn low_bytes(numbers: [__m512i; 4]) -> __m512i {
    static EVERY_FOURTH: [u8; 64] = {
        let mut places = [0; 64];
        let mut place = 0;
        while place < 64 {
            #[allow(clippy::cast_possible_truncation)]
            {
                places[place] = (4 * place % 128) as u8;
            }
            place += 1;
        }
        places
    };
    let [a, b, c, d] = numbers;
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let places = piece(&EVERY_FOURTH, 0);
        let first = _mm512_permutex2var_epi8(a, places, b);
        let second = _mm512_permutex2var_epi8(c, places, d);
        // Each holds its 32 bytes twice.
        _mm512_mask_mov_epi64(first, 0xf0, second)
    }
}

/// The ranks of the first 16 times `N` of a column; arbitrary for the others.
///
/// # Safety
///
/// AVX-512 F, BW and VBMI.
#[inline(always)]
unsafe fn rank<const N: usize>(ranks: &Ranks, column: &[u32; LANES]) -> __m512i {
    // SAFETY: the caller guarantees the instruction set; N loads of 16 values.
    unsafe {
        let mut all = [_mm512_setzero_si512(); 4];
        let mut values = [_mm512_setzero_si512(); N];
        for (values, group) in values.iter_mut().zip(column.as_chunks::<16>().0) {
            *values = _mm512_loadu_si512(group.as_ptr().cast());
        }
        match ranks {
            Ranks::Value => {
                for (all, values) in all.iter_mut().zip(values) {
                    *all = _mm512_min_epu32(values, _mm512_set1_epi32(255));
                }
                low_bytes(all)
            }
            Ranks::Search { depth, nodes } => {
                let one = _mm512_set1_epi32(1);
                let mut k = [one; N];
                for step in 0..*depth {
                    for (k, values) in k.iter_mut().zip(values) {
                        let at_most = thresholds(nodes, step, *k);
                        let greater = _mm512_cmpgt_epu32_mask(values, at_most);
                        *k = _mm512_add_epi32(*k, *k);
                        *k = _mm512_mask_add_epi32(*k, greater, *k, one);
                    }
                }
                all[..N].copy_from_slice(&k);
                // The rank is the low byte without the bit that counts steps.
                let end = _mm512_set1_epi8((1_u32 << *depth).to_le_bytes()[0].cast_signed());
                _mm512_sub_epi8(low_bytes(all), end)
            }
        }
    }
}

impl Bytes for Zmm {
    #[inline(always)]
    unsafe fn splat(byte: u8) -> Self {
        // SAFETY: the caller guarantees the instruction set, here and below.
        Self(unsafe { _mm512_set1_epi8(byte.cast_signed()) })
    }

    #[inline(always)]
    unsafe fn rank(ranks: &Ranks, column: &[u32; LANES], packets: usize) -> Self {
        // SAFETY: as above.
        Self(unsafe {
            match packets {
                0..=16 => rank::<1>(ranks, column),
                17..=32 => rank::<2>(ranks, column),
                33..=48 => rank::<3>(ranks, column),
                _ => rank::<4>(ranks, column),
            }
        })
    }

    #[inline(always)]
    unsafe fn look_up(level: &LevelTable, at: Self) -> [Self; 3] {
        let wide = level.width > 64;
        // SAFETY: as above.
        unsafe {
            [
                Self(look_up(&level.feature, wide, at.0)),
                Self(look_up(&level.at_most, wide, at.0)),
                Self(look_up(&level.left, wide, at.0)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn select(self, feature: Self, number: u8, row: Self) -> Self {
        let splat = &SPLATS[usize::from(number) % LANES];
        // SAFETY: as above.
        Self(unsafe {
            let here = _mm512_cmpeq_epi8_mask(feature.0, piece(splat, 0));
            _mm512_mask_mov_epi8(self.0, here, row.0)
        })
    }

    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_or_si512(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn step(self, rank: Self, at_most: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe {
            let greater = _mm512_cmpgt_epu8_mask(rank.0, at_most.0);
            _mm512_mask_add_epi8(self.0, greater, self.0, _mm512_set1_epi8(1))
        })
    }

    #[inline(always)]
    unsafe fn store(self, leaves: &LeafTable, row: &mut [u16; LANES]) {
        // SAFETY: as above; two stores of 32 numbers each.
        unsafe {
            let low = look_up_256(&leaves.low, leaves.count, self.0);
            let high = look_up_256(&leaves.high, leaves.count, self.0);
            let first = join(_mm512_castsi512_si256(low), _mm512_castsi512_si256(high));
            let second = join(
                _mm512_extracti64x4_epi64::<1>(low),
                _mm512_extracti64x4_epi64::<1>(high),
            );
            _mm512_storeu_si512(row.as_mut_ptr().cast(), first);
            _mm512_storeu_si512(row.as_mut_ptr().add(32).cast(), second);
        }
    }
}
