//! NEON: four registers hold the batch, and a lookup covers 64 bytes at a time.
#![allow(unsafe_code)]

use std::arch::aarch64::*;

use super::bytes::{self, Bytes};
use super::levels::{Group, LeafTable, LevelTable, Ranks};
use super::{Columns, LANES};

/// See [`bytes::leaves`].
#[inline]
pub(super) fn leaves(
    group: &Group,
    columns: &Columns,
    packets: usize,
    leaves: &mut [[u16; LANES]],
) {
    // SAFETY: NEON is part of aarch64.
    unsafe { bytes::leaves::<Quads>(group, columns, packets, leaves) }
}

#[derive(Clone, Copy)]
struct Quads([uint8x16_t; 4]);

impl Bytes for Quads {
    #[inline(always)]
    unsafe fn splat(byte: u8) -> Self {
        // SAFETY: NEON is part of aarch64, here and below.
        Self([unsafe { vdupq_n_u8(byte) }; 4])
    }

    #[inline(always)]
    unsafe fn rank(ranks: &Ranks, column: &[u32; LANES], packets: usize) -> Self {
        let mut bytes = [0_u8; LANES];
        for (byte, &value) in bytes.iter_mut().zip(column).take(packets) {
            *byte = ranks.rank(value);
        }
        // SAFETY: a load of 64 bytes.
        let all = unsafe { vld1q_u8_x4(bytes.as_ptr()) };
        Self([all.0, all.1, all.2, all.3])
    }

    #[inline(always)]
    unsafe fn look_up(level: &LevelTable, at: Self) -> [Self; 3] {
        let wide = level.width > 64;
        [&level.feature, &level.at_most, &level.left].map(|table| {
            // SAFETY: two loads of 64 bytes from 128. An index beyond the table gives 0 (TBL), or
            // what was there (TBX).
            unsafe {
                let low = vld1q_u8_x4(table.as_ptr());
                let mut found = at.0.map(|at| vqtbl4q_u8(low, at));
                if wide {
                    let high = vld1q_u8_x4(table.as_ptr().add(64));
                    for (found, at) in found.iter_mut().zip(at.0) {
                        *found = vqtbx4q_u8(*found, high, vsubq_u8(at, vdupq_n_u8(64)));
                    }
                }
                Self(found)
            }
        })
    }

    #[inline(always)]
    unsafe fn select(mut self, feature: Self, number: u8, row: Self) -> Self {
        for quad in 0..4 {
            // SAFETY: as above.
            unsafe {
                let here = vceqq_u8(feature.0[quad], vdupq_n_u8(number));
                self.0[quad] = vbslq_u8(here, row.0[quad], self.0[quad]);
            }
        }
        self
    }

    #[inline(always)]
    unsafe fn or(mut self, other: Self) -> Self {
        for quad in 0..4 {
            // SAFETY: as above.
            self.0[quad] = unsafe { vorrq_u8(self.0[quad], other.0[quad]) };
        }
        self
    }

    #[inline(always)]
    unsafe fn step(mut self, rank: Self, at_most: Self) -> Self {
        for quad in 0..4 {
            // SAFETY: as above. A compare gives -1 where it is true.
            unsafe {
                let greater = vcgtq_u8(rank.0[quad], at_most.0[quad]);
                self.0[quad] = vsubq_u8(self.0[quad], greater);
            }
        }
        self
    }

    #[inline(always)]
    unsafe fn store(self, leaves: &LeafTable, row: &mut [u16; LANES]) {
        let mut at = [0_u8; LANES];
        for (quad, bytes) in self.0.into_iter().enumerate() {
            // SAFETY: four stores of 16 bytes.
            unsafe { vst1q_u8(at.as_mut_ptr().add(quad * 16), bytes) };
        }
        leaves.file_nodes(&at, row);
    }
}
