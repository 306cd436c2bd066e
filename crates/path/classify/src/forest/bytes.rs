//! The kernel over tables of bytes: 64 packets at a time.

use strata_wire::wide::{ByteRow, GROUP, Kernel, Lanes};

use super::levels::{Group, LevelTable, Ranks};
use super::{Columns, LANES};
use crate::model::FEATURES_MAX;

/// Ranks of the features of a batch: what [`Forest::leaves`](super::Forest::leaves) works in.
#[derive(Clone, Debug)]
pub struct RankRows(Box<[ByteRow; FEATURES_MAX]>);

impl Default for RankRows {
    fn default() -> Self {
        Self(Box::new([ByteRow([0; LANES]); FEATURES_MAX]))
    }
}

/// Every feature's number 64 times, so that a comparison can take its operand from memory.
static NUMBERS: [ByteRow; FEATURES_MAX] = {
    let mut numbers = [ByteRow([0; LANES]); FEATURES_MAX];
    let mut number = 0;
    while number < FEATURES_MAX {
        #[allow(clippy::cast_possible_truncation)]
        {
            numbers[number] = ByteRow([number as u8; LANES]);
        }
        number += 1;
    }
    numbers
};

/// The leaves that the first `packets` of a batch reach in the trees of a group. Those of the lanes
/// after are meaningless.
pub(super) struct LeavesOf<'a> {
    pub(super) group: &'a Group,
    pub(super) columns: &'a Columns,
    pub(super) packets: usize,
    pub(super) ranks: &'a mut RankRows,
    pub(super) leaves: &'a mut [[u16; LANES]],
}

impl Kernel for LeavesOf<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let rows = &mut self.ranks.0;
        let columns = self.columns.as_chunks::<LANES>().0;
        for (row, ranked) in rows.iter_mut().zip(&self.group.ranked) {
            let ranks = rank(l, &ranked.ranks, &columns[ranked.column], self.packets);
            l.store_8(ranks, row);
        }
        for tree in &self.group.trees {
            let mut at = l.set_8(0);
            for level in &tree.levels {
                at = next(l, level, rows, at);
            }
            let leaves = &mut self.leaves[tree.index];
            l.look_up_16(&tree.leaves.nodes, tree.leaves.count, at, leaves);
        }
    }
}

/// The nodes of the next level that packets reach from those that they are at.
#[inline(always)]
fn next<L: Lanes>(l: L, level: &LevelTable, rows: &[ByteRow; FEATURES_MAX], at: L::U8) -> L::U8 {
    if let (1, [feature]) = (level.width, level.features.as_slice()) {
        let rank = l.load_8(&rows[usize::from(*feature) % FEATURES_MAX]);
        return l.less_8(l.set_8(level.right[0]), rank, l.set_8(level.at_most[0]));
    }
    let tables = [&level.feature, &level.at_most, &level.right];
    let [feature, at_most, right] = l.look_up(tables, level.width, at);
    // Two chains, since each move waits for the one before; where a feature is not selected, its
    // chain stays 0.
    let mut ranks = [l.set_8(0); 2];
    let (pairs, odd) = level.features.as_chunks::<2>();
    for pair in pairs {
        for (rank, &number) in ranks.iter_mut().zip(pair) {
            *rank = select(l, feature, number, rows, *rank);
        }
    }
    for &number in odd {
        ranks[0] = select(l, feature, number, rows, ranks[0]);
    }
    l.less_8(right, l.or_8(ranks[0], ranks[1]), at_most)
}

/// The ranks of a feature where `features` has its number, else `rank`.
#[inline(always)]
fn select<L: Lanes>(
    l: L,
    features: L::U8,
    number: u8,
    rows: &[ByteRow; FEATURES_MAX],
    rank: L::U8,
) -> L::U8 {
    let number = usize::from(number) % FEATURES_MAX;
    let (own, ranks) = (l.load_8(&NUMBERS[number]), l.load_8(&rows[number]));
    l.choose_8(features, own, ranks, rank)
}

/// The ranks of the first `packets` of a column, as [`Ranks::rank`] gives them; those after may be
/// any packet's.
#[inline(always)]
fn rank<L: Lanes>(l: L, ranks: &Ranks, column: &[u32; LANES], packets: usize) -> L::U8 {
    let groups = column.as_chunks::<GROUP>().0;
    match ranks {
        Ranks::Value => {
            let mut values = [l.set(255); 4];
            for (value, group) in values.iter_mut().zip(groups) {
                *value = l.min(*value, l.load(group));
            }
            l.low_bytes(values)
        }
        Ranks::Search { depth, nodes } => {
            let found = searched(l, nodes, *depth, column, packets);
            // Ranks count down from the last node.
            let last = l.set_8(((2_u32 << *depth) - 1).to_le_bytes()[0]);
            l.sub_8(last, l.low_bytes(found))
        }
    }
}

/// The nodes after the last step for the first `packets` of a column, arbitrary for those after.
#[inline(always)]
fn searched<L: Lanes>(
    l: L,
    nodes: &[u32; 256],
    depth: u32,
    column: &[u32; LANES],
    packets: usize,
) -> [L::U32; 4] {
    let groups = column.as_chunks::<GROUP>().0;
    let [a, b, c, d] = [&groups[0], &groups[1], &groups[2], &groups[3]];
    if L::AT_ONCE < 4 {
        let [e, f] = search(l, nodes, depth, [a, b]);
        if packets <= 2 * GROUP {
            return [e, f, f, f];
        }
        let [g, h] = search(l, nodes, depth, [c, d]);
        return [e, f, g, h];
    }
    match packets.div_ceil(GROUP) {
        0 | 1 => {
            let [e] = search(l, nodes, depth, [a]);
            [e; 4]
        }
        2 => {
            let [e, f] = search(l, nodes, depth, [a, b]);
            [e, f, f, f]
        }
        3 => {
            let [e, f, g] = search(l, nodes, depth, [a, b, c]);
            [e, f, g, g]
        }
        _ => search(l, nodes, depth, [a, b, c, d]),
    }
}

/// The same for some groups, which are searched together, since each step waits for the one before.
#[inline(always)]
fn search<L: Lanes, const N: usize>(
    l: L,
    nodes: &[u32; 256],
    depth: u32,
    groups: [&[u32; GROUP]; N],
) -> [L::U32; N] {
    let one = l.set(1);
    let mut values = [one; N];
    for (values, group) in values.iter_mut().zip(groups) {
        *values = l.load(group);
    }
    let mut k = [one; N];
    for step in 0..depth {
        for (k, values) in k.iter_mut().zip(values) {
            let at_most = l.le(values, l.look_up_step(nodes, step, *k));
            *k = l.add(l.add(*k, *k), l.only(at_most, one));
        }
    }
    k
}
