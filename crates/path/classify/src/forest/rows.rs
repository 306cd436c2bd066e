//! The forest a bit per packet, for up to 256 packets: what each split decides about them is a row
//! of bits.
//!
//! Every threshold is compared with a feature once per 64 packets, which gives 64 bits of its row.
//! From there on, an operation is one on 256 packets: those that reach a split and go right, those
//! that go left. The greatest number of splits from a node to a leaf is its height, so nodes of one
//! height cannot follow each other, and whether a packet goes right at any of them is one bit. The
//! bits of all heights tell the leaves of a tree apart; those of all trees are a packet's key.
//!
//! A packet costs about a quarter of an instruction per threshold with AVX2, a 30th per split, and
//! 6 for the key, so this suits what [`levels`](super::levels) suits too, up to some hundred
//! thresholds.

use std::cell::Cell;

use strata_sketch::Level;
use strata_wire::wide::{BitRow, Kernel, Lanes, RowCells, RowPlace, RowTable, Simd, WIDE};

use super::{Columns, LANES, Split, Splits};
use crate::model::{Leaves, Model, Tree};

/// Bits of a key.
const KEY_BITS: usize = 64;
/// With more thresholds, levels are faster.
const THRESHOLDS_MAX: usize = 768;
/// Blocks of a batch.
const BLOCKS: usize = WIDE / LANES;

/// A word per block: bits of keys, or keys of packets.
type Keys = [BitRow; KEY_BITS];

/// The trees of one level, for batches of up to 256 packets in blocks of [`LANES`].
#[derive(Clone, Debug)]
pub struct RowForest {
    simd: Simd,
    /// [`Lanes::FOURS`].
    fours: [u8; 16],
    compared: Vec<Compared>,
    trees: Vec<RowTree>,
    /// All packets; by threshold, those above it; then those that reach the splits of a tree.
    rows: RowTable,
    /// Where the last of these begin.
    first_reach: usize,
    /// By bit of a key.
    key_bits: Box<Keys>,
    keys: Box<Keys>,
}

/// Thresholds of one feature.
#[derive(Clone, Debug)]
struct Compared {
    /// Index of its column.
    column: usize,
    thresholds: Thresholds,
    /// Number of the first one's row.
    first_row: usize,
}

/// By the least width that they and the values can be clamped to. Their top bits are inverted.
#[derive(Clone, Debug)]
enum Thresholds {
    Bytes(Vec<i8>),
    Halves(Vec<i16>),
    Words(Vec<i32>),
}

/// One tree.
#[derive(Clone, Debug, Default)]
struct RowTree {
    /// By height, the greatest first.
    heights: Vec<Vec<RowSplit>>,
    /// The bit of a key that the greatest height has; the others follow.
    first_bit: usize,
    /// How a key leads to a leaf, from the root.
    nodes: Vec<Step>,
}

#[derive(Clone, Copy, Debug)]
struct RowSplit {
    /// The packets that reach it.
    reach: RowPlace,
    /// The packets above its threshold.
    above: RowPlace,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The leaf of that number in the file.
    Leaf(u16),
    /// Right if this bit of the key is set, else left.
    Bit {
        bit: usize,
        left: usize,
        right: usize,
    },
}

/// A tree while it is laid out: its nodes, and their heights.
#[derive(Default)]
struct Outline {
    /// Feature, threshold and children of a split; `None` for a leaf.
    splits: Vec<Option<(usize, u32, [usize; 2])>>,
    file_nodes: Vec<u16>,
    heights: Vec<usize>,
}

impl Outline {
    /// The nodes of a tree, the root first; `None` if it has more heights than a key has bits.
    fn new(tree: &Tree, splits: &Splits) -> Option<Self> {
        let mut outline = Self::default();
        let mut queue = vec![0];
        let mut node = 0;
        while node < queue.len() {
            let (split, file_node) = match splits.at(tree, queue[node]) {
                Split::Leaf(file_node) => (None, file_node),
                Split::At {
                    feature,
                    at_most,
                    left,
                    right,
                } => {
                    let first = queue.len();
                    queue.extend([left, right]);
                    (Some((feature, at_most, [first, first + 1])), 0)
                }
            };
            outline.splits.push(split);
            outline.file_nodes.push(file_node);
            node += 1;
        }
        // Children come after their parents.
        outline.heights = vec![0; node];
        for node in (0..node).rev() {
            if let Some((_, _, [left, right])) = outline.splits[node] {
                let below = outline.heights[left].max(outline.heights[right]);
                outline.heights[node] = below + 1;
            }
        }
        (outline.heights[0] <= KEY_BITS).then_some(outline)
    }

    /// Rows for the packets that reach its splits, other than the root.
    fn reached(&self) -> usize {
        // Splits of the least height lead to leaves, which need none.
        2 * self.heights.iter().filter(|&&height| height > 1).count()
    }
}

impl RowForest {
    /// Lays out the trees of a checked model; `None` if they have too many thresholds or splits, or
    /// need more bits for a key than there are.
    ///
    /// # Panics
    ///
    /// If the model was not checked.
    #[must_use]
    pub fn new(model: &Model, level: Level, simd: Simd) -> Option<Self> {
        let splits = Splits {
            features: model.feature_list(),
            clock: model.clock(),
        };
        let trees = model.trees(level).iter();
        let outlines = trees
            .map(|tree| Outline::new(tree, &splits))
            .collect::<Option<Vec<_>>>()?;
        let bits: usize = outlines.iter().map(|outline| outline.heights[0]).sum();
        let mut thresholds: Vec<(usize, u32)> = outlines
            .iter()
            .flat_map(|outline| outline.splits.iter().flatten())
            .map(|&(feature, at_most, _)| (feature, at_most))
            .collect();
        thresholds.sort_unstable();
        thresholds.dedup();
        let most = outlines.iter().map(Outline::reached).fold(0, usize::max);
        let first_reach = 1 + thresholds.len();
        if bits > KEY_BITS
            || thresholds.len() > THRESHOLDS_MAX
            || first_reach + most > RowTable::ROWS
        {
            return None;
        }
        let row_of = |feature: usize, at_most: u32| {
            let known = thresholds.binary_search(&(feature, at_most));
            1 + known.expect("all thresholds are there")
        };
        let mut first_bit = 0;
        let trees: Vec<RowTree> = outlines
            .iter()
            .map(|outline| {
                let tree = RowTree::new(outline, first_bit, row_of, first_reach);
                first_bit += outline.heights[0];
                tree
            })
            .collect();
        let mut rows = RowTable::new();
        rows.from_mut(0)[0] = BitRow([u64::MAX; BLOCKS]);
        Some(Self {
            simd,
            fours: simd.fours(),
            compared: compared(&thresholds),
            trees,
            rows,
            first_reach,
            key_bits: Box::new([BitRow::default(); KEY_BITS]),
            keys: Box::new([BitRow::default(); KEY_BITS]),
        })
    }

    /// Compares the features of a block, the first one being number 0, with all thresholds.
    ///
    /// # Panics
    ///
    /// If there is no such block in a batch.
    #[inline]
    pub fn compare(&mut self, columns: &Columns, block: usize) {
        assert!(block < BLOCKS);
        self.simd.run(Compare {
            compared: &self.compared,
            columns,
            rows: &mut self.rows,
            block,
        });
    }

    /// Finds the keys of the packets of all blocks.
    #[inline]
    pub fn find_keys(&mut self) {
        self.simd.run(Route {
            trees: &self.trees,
            rows: &mut self.rows,
            first_reach: self.first_reach,
            key_bits: &mut self.key_bits,
            keys: &mut self.keys,
        });
    }

    /// The keys found last of the first `packets` of a block, each with its place there: in an order
    /// of their own.
    ///
    /// # Panics
    ///
    /// If there is no such block in a batch.
    #[inline(always)]
    pub fn each_key(&self, block: usize, packets: usize, mut each: impl FnMut(usize, u64)) {
        assert!(block < BLOCKS);
        for (keys, four) in self.keys.as_chunks::<4>().0.iter().zip(self.fours) {
            let first = usize::from(four) * 4;
            if first + 4 <= packets {
                for (n, key) in keys.iter().enumerate() {
                    each(first + n, key.0[block]);
                }
            } else {
                for (place, key) in (first..packets).zip(keys) {
                    each(place, key.0[block]);
                }
            }
        }
    }

    /// The leaf of each tree, as node numbers of the file, that a packet with this key reaches.
    pub fn leaves(&self, key: u64, leaves: &mut Leaves) {
        leaves.clear();
        leaves.extend(self.trees.iter().map(|tree| tree.leaf(key)));
    }
}

impl RowTree {
    /// `row_of` gives the number of a threshold's row; those that reach splits begin at
    /// `first_reach`.
    fn new(
        outline: &Outline,
        first_bit: usize,
        row_of: impl Fn(usize, u32) -> usize,
        first_reach: usize,
    ) -> Self {
        let highest = outline.heights[0];
        let mut tree = Self {
            heights: Vec::new(),
            first_bit,
            nodes: Vec::new(),
        };
        // Where the packets that reach a node are; the root is reached by all.
        let mut reach_of = vec![0; outline.splits.len()];
        let mut next_reach = first_reach;
        for height in (1..=highest).rev() {
            let mut splits = Vec::new();
            for (node, split) in outline.splits.iter().enumerate() {
                let (Some((feature, at_most, children)), true) =
                    (split, outline.heights[node] == height)
                else {
                    continue;
                };
                splits.push(RowSplit {
                    reach: RowPlace::new(reach_of[node]),
                    above: RowPlace::new(row_of(*feature, *at_most)),
                });
                if height > 1 {
                    for child in children {
                        reach_of[*child] = next_reach;
                        next_reach += 1;
                    }
                }
            }
            tree.heights.push(splits);
        }
        let steps = outline.splits.iter().enumerate();
        let steps = steps.map(|(node, split)| match split {
            None => Step::Leaf(outline.file_nodes[node]),
            Some((_, _, [left, right])) => Step::Bit {
                bit: first_bit + highest - outline.heights[node],
                left: *left,
                right: *right,
            },
        });
        tree.nodes = steps.collect();
        tree
    }

    fn leaf(&self, key: u64) -> u16 {
        let mut at = 0;
        loop {
            match self.nodes[at] {
                Step::Leaf(file_node) => return file_node,
                Step::Bit { bit, left, right } => {
                    at = if key >> bit & 1 != 0 { right } else { left };
                }
            }
        }
    }
}

/// Sorted thresholds by feature, and by the width that they need.
fn compared(thresholds: &[(usize, u32)]) -> Vec<Compared> {
    let mut all = Vec::new();
    let mut first_row = 1;
    for of_feature in thresholds.chunk_by(|a, b| a.0 == b.0) {
        let column = of_feature[0].0;
        let mut rest: Vec<u32> = of_feature.iter().map(|(_, at_most)| *at_most).collect();
        // A value is clamped to one more than the greatest threshold of its width.
        let wide = rest.split_off(rest.partition_point(|&at_most| at_most < u16::MAX.into()));
        let narrow = if rest.last().is_none_or(|&last| last < u8::MAX.into()) {
            let top = |at_most: &u32| (at_most.to_le_bytes()[0]).cast_signed() ^ i8::MIN;
            Thresholds::Bytes(rest.iter().map(top).collect())
        } else {
            let top = |at_most: &u32| {
                let [low, high, ..] = at_most.to_le_bytes();
                u16::from_le_bytes([low, high]).cast_signed() ^ i16::MIN
            };
            Thresholds::Halves(rest.iter().map(top).collect())
        };
        let top = |at_most: &u32| at_most.cast_signed() ^ i32::MIN;
        let wide = Thresholds::Words(wide.iter().map(top).collect());
        for thresholds in [narrow, wide] {
            let count = thresholds.len();
            if count > 0 {
                all.push(Compared {
                    column,
                    thresholds,
                    first_row,
                });
            }
            first_row += count;
        }
    }
    all
}

impl Thresholds {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(all) => all.len(),
            Self::Halves(all) => all.len(),
            Self::Words(all) => all.len(),
        }
    }
}

/// [`RowForest::compare`].
struct Compare<'a> {
    compared: &'a [Compared],
    columns: &'a Columns,
    rows: &'a mut RowTable,
    block: usize,
}

impl Kernel for Compare<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let block = self.block % BLOCKS;
        let columns = self.columns.as_chunks::<LANES>().0;
        for compared in self.compared {
            let values = &columns[compared.column];
            let rows = self.rows.from_mut(compared.first_row).iter_mut();
            let rows = rows.map(|row| &mut row.0[block]);
            match &compared.thresholds {
                Thresholds::Bytes(all) => {
                    let values = l.bytes(values);
                    all.iter()
                        .zip(rows)
                        .for_each(|(than, to)| l.bytes_above(values, *than, to));
                }
                Thresholds::Halves(all) => {
                    let values = l.halves(values);
                    all.iter()
                        .zip(rows)
                        .for_each(|(than, to)| l.halves_above(values, *than, to));
                }
                Thresholds::Words(all) => {
                    let values = l.words(values);
                    all.iter()
                        .zip(rows)
                        .for_each(|(than, to)| l.words_above(values, *than, to));
                }
            }
        }
    }
}

/// [`RowForest::find_keys`].
struct Route<'a> {
    trees: &'a [RowTree],
    rows: &'a mut RowTable,
    first_reach: usize,
    key_bits: &'a mut Keys,
    keys: &'a mut Keys,
}

impl Kernel for Route<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let rows = self.rows.cells();
        for tree in self.trees {
            let reached = rows.from(self.first_reach);
            route(l, tree, rows, reached, self.key_bits);
        }
        transpose(l, self.key_bits, self.keys);
    }
}

/// The bits of a key by which the leaves of one tree are told apart. From `reached` on are the
/// packets that reach splits, two rows for each split of more than the least height.
#[inline(always)]
fn route<L: Lanes>(
    l: L,
    tree: &RowTree,
    rows: RowCells<'_>,
    reached: &[Cell<BitRow>],
    key_bits: &mut Keys,
) {
    // A tree of one leaf has none.
    let Some((least, others)) = tree.heights.split_last() else {
        return;
    };
    let bits = &mut key_bits[tree.first_bit..];
    let mut children = reached.as_chunks::<2>().0;
    for (splits, bit) in others.iter().zip(&mut *bits) {
        let mut right_anywhere = l.row(&BitRow::default());
        let (here, rest) = children.split_at(splits.len());
        children = rest;
        for (split, [to_left, to_right]) in splits.iter().zip(here) {
            let (reach, above) = (get(l, rows, split.reach), get(l, rows, split.above));
            let right = l.and_rows(reach, above);
            right_anywhere = l.or_rows(right_anywhere, right);
            set(l, to_left, l.without(reach, above));
            set(l, to_right, right);
        }
        l.store_row(right_anywhere, bit);
    }
    let mut right_anywhere = l.row(&BitRow::default());
    for split in least {
        let right = l.and_rows(get(l, rows, split.reach), get(l, rows, split.above));
        right_anywhere = l.or_rows(right_anywhere, right);
    }
    l.store_row(right_anywhere, &mut bits[others.len()]);
}

#[inline(always)]
fn get<L: Lanes>(l: L, rows: RowCells<'_>, place: RowPlace) -> L::Row {
    l.row(&rows.at(place).get())
}

#[inline(always)]
fn set<L: Lanes>(l: L, cell: &Cell<BitRow>, row: L::Row) {
    let mut bits = BitRow::default();
    l.store_row(row, &mut bits);
    cell.set(bits);
}

/// Rows of 64 bits, four next to each other, become columns.
#[inline(always)]
fn transpose<L: Lanes>(l: L, from: &Keys, to: &mut Keys) {
    for n in 0..8 {
        let mut rows = [0, 8, 16, 24, 32, 40, 48, 56].map(|at| l.row(&from[at + n]));
        swap(l, &mut rows, 8);
        for (at, row) in rows.into_iter().enumerate() {
            l.store_row(row, &mut to[8 * at + n]);
        }
    }
    for eight in to.as_chunks_mut::<8>().0 {
        let mut rows = [0, 1, 2, 3, 4, 5, 6, 7].map(|at| l.row(&eight[at]));
        swap(l, &mut rows, 1);
        for (row, to) in rows.into_iter().zip(eight) {
            l.store_row(row, to);
        }
    }
}

/// Three steps of a transposition, of rows that are `apart` from each other: the upper right and
/// the lower left quarters of squares are swapped.
#[inline(always)]
fn swap<L: Lanes>(l: L, rows: &mut [L::Row; 8], apart: u32) {
    /// By step: the low bits of each pair of as many.
    const LOW: [u64; 6] = [
        0x0000_0000_ffff_ffff,
        0x0000_ffff_0000_ffff,
        0x00ff_00ff_00ff_00ff,
        0x0f0f_0f0f_0f0f_0f0f,
        0x3333_3333_3333_3333,
        0x5555_5555_5555_5555,
    ];
    for step in [4_u32, 2, 1] {
        let (distance, bits) = (step as usize, step * apart);
        let low = LOW[5 - bits.trailing_zeros() as usize];
        let low = l.row(&BitRow([low; 4]));
        for at in 0..8 {
            if at & distance != 0 {
                continue;
            }
            let (a, b) = (rows[at], rows[at + distance]);
            let moved = l.and_rows(l.xor_rows(l.shr_row(a, bits), b), low);
            rows[at + distance] = l.xor_rows(b, moved);
            rows[at] = l.xor_rows(a, l.shl_row(moved, bits));
        }
    }
}
