//! The forest laid out for batches.

use strata_sketch::{Clock, Feature, Level};

use crate::model::{FEATURES_MAX, Model, Tree};

/// Packets of a batch.
pub const LANES: usize = 64;

/// The features of a batch: `columns[feature * LANES + lane]`.
pub type Columns = [u32; FEATURES_MAX * LANES];

/// One tree, breadth first, so that siblings are neighbours. A leaf is a split
/// that sends every value to itself, so a walk has a fixed number of steps and
/// no branch. Padded to a power of two, so that a masked index needs no check.
///
/// Eight lanes walk side by side, which keeps as many loads in flight.
/// Gathering 16 lanes at once with AVX-512 was slower (45 against 31 ns for 5
/// trees of depth 8 on the machine at hand), since each lane's load is one anyway.
#[derive(Clone, Debug)]
struct FlatTree {
    /// By node: values up to this go left.
    at_most: Vec<u32>,
    /// By node: the feature in the high half, the left child in the low one; the
    /// right child is the next.
    next: Vec<u32>,
    /// Node number of the model file, by flat node.
    file_node: Vec<u16>,
    depth: usize,
}

/// The trees of one level, ready for batches.
#[derive(Clone, Debug)]
pub struct Forest {
    trees: Vec<FlatTree>,
}

impl Forest {
    /// Lays out the trees of a checked model.
    ///
    /// # Panics
    ///
    /// If the model was not checked.
    #[must_use]
    pub fn new(model: &Model, level: Level) -> Self {
        let (features, clock) = (model.feature_list(), model.clock());
        let trees = model.trees(level).iter();
        Self {
            trees: trees.map(|tree| flatten(tree, &features, clock)).collect(),
        }
    }

    /// Trees.
    #[must_use]
    pub fn tree_count(&self) -> usize {
        self.trees.len()
    }

    /// The leaves, as node numbers of the file, that the packets of a batch
    /// reach: `leaves[tree][lane]`. All lanes are walked, whatever is in them.
    /// Per packet and tree: `depth` steps of three loads that stay in L1.
    ///
    /// # Panics
    ///
    /// If there are fewer rows of leaves than trees.
    #[inline]
    pub fn leaves(&self, columns: &Columns, leaves: &mut [[u16; LANES]]) {
        assert!(leaves.len() >= self.trees.len());
        for (tree, row) in self.trees.iter().zip(leaves) {
            tree.leaves(columns, row);
        }
    }
}

impl FlatTree {
    #[inline(always)]
    fn leaves(&self, columns: &Columns, row: &mut [u16; LANES]) {
        let mut at = [0_u32; LANES];
        match self.next.len() {
            SMALL => self.walk::<SMALL>(columns, &mut at),
            MEDIUM => self.walk::<MEDIUM>(columns, &mut at),
            _ => self.walk::<LARGE>(columns, &mut at),
        }
        for (leaf, at) in row.iter_mut().zip(at) {
            *leaf = self.file_node[at as usize];
        }
    }

    #[inline(always)]
    fn walk<const NODES: usize>(&self, columns: &Columns, at: &mut [u32; LANES]) {
        let at_most: Option<&[u32; NODES]> = self.at_most.as_slice().try_into().ok();
        let next: Option<&[u32; NODES]> = self.next.as_slice().try_into().ok();
        let (Some(at_most), Some(next)) = (at_most, next) else {
            return;
        };
        for (group, at) in at.chunks_exact_mut(GROUP).enumerate() {
            let mut walkers = [0_u32; GROUP];
            for _ in 0..self.depth {
                for (lane, walker) in walkers.iter_mut().enumerate() {
                    let node = *walker as usize % NODES;
                    let step = next[node];
                    let column = (step >> 16) as usize % FEATURES_MAX;
                    let value = columns[column * LANES + group * GROUP + lane];
                    *walker = (step & 0xffff) + u32::from(value > at_most[node]);
                }
            }
            at.copy_from_slice(&walkers);
        }
    }
}

/// Lanes that walk side by side: as many as registers hold.
const GROUP: usize = 8;
const _: () = assert!(LANES.is_multiple_of(GROUP));

/// Sizes that trees are padded to.
const SMALL: usize = 64;
const MEDIUM: usize = 512;
const LARGE: usize = 65_536;

/// A split that no value can pass to the left is replaced by its right side.
fn flatten(tree: &Tree, features: &[Feature], clock: Clock) -> FlatTree {
    let resolve = |mut at: usize| {
        loop {
            let node = &tree.nodes[at];
            let (Some(feature), Some(at_most)) = (node.feature, node.at_most) else {
                return (at, None);
            };
            match features[feature].encode(at_most, clock) {
                Some(limit) => return (at, Some((feature, limit))),
                None => at = node.right.expect("checked on load"),
            }
        }
    };
    let to_u16 = |value: usize| u16::try_from(value).expect("checked on load");
    let mut flat = FlatTree {
        at_most: Vec::new(),
        next: Vec::new(),
        file_node: Vec::new(),
        depth: 0,
    };
    // (node of the file, depth), in the order of flat nodes.
    let mut queue = vec![(0_usize, 0_usize)];
    let mut node = 0;
    while node < queue.len() {
        let (file_node, depth) = queue[node];
        let (file_node, split) = resolve(file_node);
        flat.depth = flat.depth.max(depth);
        flat.file_node.push(to_u16(file_node));
        let (feature, at_most, left) = match split {
            None => (0, u32::MAX, node),
            Some((feature, at_most)) => {
                let left = queue.len();
                let split = &tree.nodes[file_node];
                queue.push((split.left.expect("checked on load"), depth + 1));
                queue.push((split.right.expect("checked on load"), depth + 1));
                (feature, at_most, left)
            }
        };
        flat.at_most.push(at_most);
        flat.next
            .push(u32::from(to_u16(feature)) << 16 | u32::from(to_u16(left)));
        node += 1;
    }
    let sizes = [SMALL, MEDIUM, LARGE];
    let padded = sizes.into_iter().find(|&size| size >= flat.next.len());
    let padded = padded.expect("checked on load");
    flat.at_most.resize(padded, u32::MAX);
    flat.next.resize(padded, 0);
    flat
}
