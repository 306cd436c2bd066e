//! Trees as tables of bytes, one table per level, for kernels that hold 64
//! packets in one or a few registers.
//!
//! A value matters to a tree only by how many of the forest's thresholds for that feature are below
//! it: its rank. With up to 255 thresholds, a rank is a byte, and `value > threshold[i]` is
//! `rank > i`. So each feature of a batch is ranked once, and all trees compare bytes.
//!
//! Nodes are numbered within their level, and a leaf reached early is carried down to the last one.
//! One step for 64 packets is three lookups in tables of up to 128 bytes (feature, threshold, right
//! child), one compare and one masked move per feature that the level asks for, and one compare.

use super::Split;
use crate::model::FEATURES_MAX;

/// Nodes of a level that is looked up; the last level may have twice as many.
pub(super) const WIDTH_MAX: usize = 128;
/// Thresholds per feature in a group of trees, so that a rank is a byte.
const THRESHOLDS_MAX: usize = 255;
/// At a leaf carried down: no rank is greater.
const NEVER: u8 = 255;

/// Trees that share their ranks.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    /// The features that the trees ask for.
    pub(super) ranked: Vec<Ranked>,
    pub(super) trees: Vec<LevelTree>,
    /// The trees, until [`Group::seal`].
    outlines: Vec<Outline>,
    /// By feature: its thresholds, ascending, until [`Group::seal`].
    thresholds: Vec<Vec<u32>>,
}

/// One feature and its thresholds.
#[derive(Clone, Debug)]
pub(super) struct Ranked {
    /// Index of its column.
    pub(super) column: usize,
    pub(super) ranks: Ranks,
}

/// How the ranks of a feature are found.
#[derive(Clone, Debug)]
pub(super) enum Ranks {
    /// All thresholds are below 255: the value, or 255, serves as the rank.
    Value,
    /// A binary search of `depth` steps in a tree laid out breadth first (Eytzinger): from node `k`,
    /// 1 being the first, greater values go to `2k` and others to `2k + 1`, and after the last step
    /// the rank is how far `k` is before `2^(depth + 1) - 1`. Unused nodes hold the largest value.
    Search { depth: u32, nodes: Box<[u32; 256]> },
}

/// One tree as levels.
#[derive(Clone, Debug)]
pub(super) struct LevelTree {
    /// Index in the forest.
    pub(super) index: usize,
    pub(super) levels: Vec<LevelTable>,
    /// The leaves' node numbers in the file.
    pub(super) leaves: Box<LeafTable>,
}

/// By node of a level.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct LevelTable {
    /// Index into [`Group::ranked`].
    pub(super) feature: [u8; WIDTH_MAX],
    /// Ranks up to this go left.
    pub(super) at_most: [u8; WIDTH_MAX],
    /// Right child in the next level; the left one is before it.
    pub(super) right: [u8; WIDTH_MAX],
    /// The features that occur, each once.
    pub(super) features: Vec<u8>,
    /// Nodes of this level.
    pub(super) width: usize,
}

/// By leaf: its node number in the file.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct LeafTable {
    pub(super) nodes: [u16; 2 * WIDTH_MAX],
    pub(super) count: usize,
}

/// A tree that fits into levels, with thresholds instead of ranks.
#[derive(Clone, Debug)]
pub(super) struct Outline {
    index: usize,
    levels: Vec<Vec<OutlineNode>>,
    /// Node numbers of the file.
    leaves: Vec<u16>,
}

#[derive(Clone, Copy, Debug)]
struct OutlineNode {
    /// Feature and threshold; `None` for a leaf carried down.
    split: Option<(usize, u32)>,
    left: usize,
}

impl Outline {
    /// The levels of a tree, whose nodes `at` gives by number; `None` if one is too wide.
    pub(super) fn new(index: usize, at: impl Fn(usize) -> Split) -> Option<Self> {
        let mut levels = Vec::new();
        let mut now = vec![at(0)];
        loop {
            if now.iter().all(|node| matches!(node, Split::Leaf(_))) {
                break;
            }
            if now.len() > WIDTH_MAX {
                return None;
            }
            let mut next = Vec::new();
            let mut level = Vec::with_capacity(now.len());
            for node in now {
                let left = next.len();
                let split = match node {
                    Split::Leaf(_) => {
                        next.push(node);
                        None
                    }
                    Split::At {
                        feature,
                        at_most,
                        left,
                        right,
                    } => {
                        next.extend([at(left), at(right)]);
                        Some((feature, at_most))
                    }
                };
                level.push(OutlineNode { split, left });
            }
            levels.push(level);
            now = next;
        }
        let file_node = |node: Split| match node {
            Split::Leaf(file_node) => Some(file_node),
            Split::At { .. } => None,
        };
        Some(Self {
            index,
            levels,
            leaves: now.into_iter().filter_map(file_node).collect(),
        })
    }
}

impl Group {
    /// Adds a tree, unless a feature would have too many thresholds.
    pub(super) fn add(&mut self, tree: &Outline) -> bool {
        let mut merged = self.thresholds.clone();
        merged.resize(FEATURES_MAX, Vec::new());
        for (feature, at_most) in tree.levels.iter().flatten().filter_map(|node| node.split) {
            let known = &mut merged[feature];
            if let Err(place) = known.binary_search(&at_most) {
                known.insert(place, at_most);
            }
            if known.len() > THRESHOLDS_MAX {
                return false;
            }
        }
        self.thresholds = merged;
        self.outlines.push(tree.clone());
        true
    }

    /// See [`Forest::avx2_ns_estimated`](super::Forest::avx2_ns_estimated).
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn avx2_ns_estimated(&self) -> f64 {
        let ranks = self.ranked.iter().map(|ranked| match ranked.ranks {
            Ranks::Value => 0.05,
            Ranks::Search { depth, .. } => 0.15 + 0.22 * f64::from(depth.saturating_sub(3)),
        });
        let levels = self.trees.iter().flat_map(|tree| &tree.levels);
        let levels = levels.map(|level| {
            0.1 * level.width.div_ceil(16) as f64 + 0.03 * level.features.len() as f64
        });
        ranks.chain(levels).sum()
    }

    /// Turns thresholds into ranks once all trees are in.
    pub(super) fn seal(&mut self) {
        let thresholds = std::mem::take(&mut self.thresholds);
        let used: Vec<usize> = (0..thresholds.len())
            .filter(|&feature| !thresholds[feature].is_empty())
            .collect();
        let rank_of = |feature: usize, at_most: u32| {
            let list = &thresholds[feature];
            let rank = match Ranks::new(list) {
                Ranks::Value => usize::try_from(at_most).expect("it has 32 bits"),
                Ranks::Search { .. } => list.partition_point(|&known| known < at_most),
            };
            let row = used.partition_point(|&known| known < feature);
            (byte(row), byte(rank))
        };
        for outline in std::mem::take(&mut self.outlines) {
            let levels = outline.levels.iter();
            self.trees.push(LevelTree {
                index: outline.index,
                levels: levels
                    .map(|level| LevelTable::new(level, rank_of))
                    .collect(),
                leaves: Box::new(LeafTable::new(&outline.leaves)),
            });
        }
        let ranked = used.iter().map(|&column| Ranked {
            column,
            ranks: Ranks::new(&thresholds[column]),
        });
        self.ranked = ranked.collect();
    }
}

fn byte(value: usize) -> u8 {
    u8::try_from(value).expect("bounded by the widths of a group")
}

impl Ranks {
    fn new(thresholds: &[u32]) -> Self {
        if thresholds.last().is_none_or(|&last| last < 255) {
            return Self::Value;
        }
        let depth = usize::BITS - thresholds.len().leading_zeros();
        let mut nodes = Box::new([u32::MAX; 256]);
        let mut sorted = thresholds.iter().copied();
        fill_in_order(&mut nodes, 1, 1 << depth, &mut sorted);
        Self::Search { depth, nodes }
    }

    /// The rank of one value: the naive twin of the kernels' searches.
    #[cfg(test)]
    fn rank(&self, value: u32) -> u8 {
        match self {
            Self::Value => u8::try_from(value.min(255)).expect("at most 255"),
            Self::Search { depth, nodes } => {
                let mut k = 1_usize;
                for _ in 0..*depth {
                    k = 2 * k + usize::from(value <= nodes[k % nodes.len()]);
                }
                u8::try_from((2 << *depth) - 1 - k).expect("as many as there are thresholds")
            }
        }
    }
}

/// A traversal of the nodes below `end`, from the last to the first in their order, gives the
/// thresholds in ascending order.
fn fill_in_order(
    nodes: &mut [u32; 256],
    k: usize,
    end: usize,
    sorted: &mut impl Iterator<Item = u32>,
) {
    if k >= end {
        return;
    }
    fill_in_order(nodes, 2 * k + 1, end, sorted);
    if let Some(threshold) = sorted.next() {
        nodes[k] = threshold;
    }
    fill_in_order(nodes, 2 * k, end, sorted);
}

impl LevelTable {
    fn new(level: &[OutlineNode], rank_of: impl Fn(usize, u32) -> (u8, u8)) -> Self {
        let mut table = Self {
            feature: [0; WIDTH_MAX],
            at_most: [NEVER; WIDTH_MAX],
            right: [0; WIDTH_MAX],
            features: Vec::new(),
            width: level.len(),
        };
        for (node, outline) in level.iter().enumerate() {
            table.right[node] = byte(outline.left).wrapping_add(1);
            let Some((feature, at_most)) = outline.split else {
                continue;
            };
            let (row, rank) = rank_of(feature, at_most);
            table.feature[node] = row;
            table.at_most[node] = rank;
            if !table.features.contains(&row) {
                table.features.push(row);
            }
        }
        table
    }
}

impl LeafTable {
    fn new(leaves: &[u16]) -> Self {
        let mut table = Self {
            nodes: [0; 2 * WIDTH_MAX],
            count: leaves.len(),
        };
        table.nodes[..leaves.len()].copy_from_slice(leaves);
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_rank_counts_the_thresholds_below(
            mut thresholds in prop::collection::vec(any::<u32>(), 1..=THRESHOLDS_MAX),
            values in prop::collection::vec(any::<u32>(), 1..50),
        ) {
            thresholds.sort_unstable();
            thresholds.dedup();
            let ranks = Ranks::new(&thresholds);
            let near = thresholds.iter().flat_map(|&t| [t, t.saturating_add(1)]);
            for value in values.into_iter().chain(near) {
                let below = thresholds.iter().filter(|&&t| t < value).count();
                if matches!(ranks, Ranks::Search { .. }) {
                    prop_assert_eq!(usize::from(ranks.rank(value)), below);
                }
            }
        }
    }
}
