//! The kernel over tables of bytes: 64 packets at a time.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use super::levels::{Group, LeafTable, LevelTable, Ranks};
use super::{Columns, LANES};
use crate::model::FEATURES_MAX;

/// 64 bytes, one per packet, in the registers of one instruction set.
///
/// # Safety
///
/// Every method requires the instruction set of its implementation, and is inlined into a function
/// that has it enabled.
pub(super) trait Bytes: Copy {
    /// The same byte for each packet.
    unsafe fn splat(byte: u8) -> Self;

    /// The ranks of the first `packets` of a column, as [`Ranks::rank`] gives them; those after may
    /// be any packet's.
    unsafe fn rank(ranks: &Ranks, column: &[u32; LANES], packets: usize) -> Self;

    /// Feature, threshold and left child of the nodes that the packets are at;
    /// all below the level's width.
    unsafe fn look_up(level: &LevelTable, at: Self) -> [Self; 3];

    /// `row` where `feature` is `number`, else `self`.
    unsafe fn select(self, feature: Self, number: u8, row: Self) -> Self;

    /// The bits of both.
    unsafe fn or(self, other: Self) -> Self;

    /// `self`, plus 1 where `rank` is greater than `at_most`.
    unsafe fn step(self, rank: Self, at_most: Self) -> Self;

    /// Writes the file's node numbers of leaves.
    unsafe fn store(self, leaves: &LeafTable, row: &mut [u16; LANES]);
}

/// The row of a ranked feature.
///
/// # Safety
///
/// It has been written.
#[inline(always)]
unsafe fn row_of<B: Bytes>(rows: &[MaybeUninit<B>; FEATURES_MAX], feature: u8) -> B {
    // SAFETY: the caller guarantees this.
    unsafe { rows.get_unchecked(usize::from(feature)).assume_init() }
}

/// The leaves that the first `packets` of a batch reach in the trees of a group. Those of the lanes
/// after are meaningless.
///
/// # Safety
///
/// The machine has the instruction set of `B`.
#[inline(always)]
pub(super) unsafe fn leaves<B: Bytes>(
    group: &Group,
    columns: &Columns,
    packets: usize,
    leaves: &mut [[u16; LANES]],
) {
    let mut rows = [MaybeUninit::<B>::uninit(); FEATURES_MAX];
    let (columns, _) = columns.as_chunks::<LANES>();
    for (row, ranked) in rows.iter_mut().zip(&group.ranked) {
        // SAFETY: the caller guarantees the instruction set.
        *row =
            MaybeUninit::new(unsafe { B::rank(&ranked.ranks, &columns[ranked.column], packets) });
    }
    for tree in &group.trees {
        // SAFETY: the caller guarantees the instruction set; as many rows were written as features
        // are ranked, and a level names only ranked features.
        unsafe {
            let mut at = B::splat(0);
            for level in &tree.levels {
                at = if let (1, [feature]) = (level.width, level.features.as_slice()) {
                    at.step(row_of(&rows, *feature), B::splat(level.at_most[0]))
                } else {
                    let [feature, at_most, left] = B::look_up(level, at);
                    // Two chains, since each move waits for the one before; where a feature is not
                    // selected, its chain stays 0.
                    let mut ranks = [B::splat(0); 2];
                    let (pairs, odd) = level.features.as_chunks::<2>();
                    for pair in pairs {
                        for (rank, &number) in ranks.iter_mut().zip(pair) {
                            *rank = rank.select(feature, number, row_of(&rows, number));
                        }
                    }
                    for &number in odd {
                        ranks[0] = ranks[0].select(feature, number, row_of(&rows, number));
                    }
                    left.step(ranks[0].or(ranks[1]), at_most)
                };
            }
            at.store(&tree.leaves, &mut leaves[tree.index]);
        }
    }
}
