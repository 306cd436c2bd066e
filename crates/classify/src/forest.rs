//! The forest laid out for batches.

use strata_sketch::{Clock, Feature, Level};

use crate::model::{Model, Tree};

/// Packets of a batch.
pub const LANES: usize = 64;

/// A node in 8 bytes. A leaf is a split that sends every value to itself, so a
/// walk has a fixed number of steps and no branch.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct FlatNode {
    /// Values up to this go to `left`, others to `left + 1`.
    at_most: u32,
    /// Column of the feature.
    feature: u16,
    /// Within the tree.
    left: u16,
}

const _: () = assert!(size_of::<FlatNode>() == 8);

#[derive(Clone, Debug)]
struct FlatTree {
    nodes: Vec<FlatNode>,
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

    /// The leaves, as node numbers of the file, that `lanes` packets reach:
    /// `leaves[tree][lane]`. `columns[feature][lane]` holds the packets'
    /// features. About `trees * depth` loads of nodes that stay in L1, and as
    /// many of features, per packet.
    ///
    /// # Panics
    ///
    /// If there are fewer columns than features, fewer rows of leaves than trees,
    /// or more than [`LANES`] lanes.
    #[inline]
    pub fn leaves(&self, columns: &[[u32; LANES]], lanes: usize, leaves: &mut [[u16; LANES]]) {
        assert!(lanes <= LANES && leaves.len() >= self.trees.len());
        for (tree, row) in self.trees.iter().zip(leaves) {
            let nodes = tree.nodes.as_slice();
            let mut at = [0_u16; LANES];
            for _ in 0..tree.depth {
                for (lane, at) in at[..lanes].iter_mut().enumerate() {
                    let node = nodes[usize::from(*at)];
                    let value = columns[usize::from(node.feature)][lane];
                    *at = node.left + u16::from(value > node.at_most);
                }
            }
            for (leaf, at) in row[..lanes].iter_mut().zip(at) {
                *leaf = tree.file_node[usize::from(at)];
            }
        }
    }
}

/// Breadth first, so that siblings are neighbours. A split that no value can
/// pass to the left is replaced by its right side.
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
        nodes: Vec::new(),
        file_node: Vec::new(),
        depth: 0,
    };
    // (node of the file, depth), in the order of flat nodes.
    let mut queue = vec![(0_usize, 0_usize)];
    let mut next = 0;
    while next < queue.len() {
        let (file_node, depth) = queue[next];
        let (file_node, split) = resolve(file_node);
        flat.depth = flat.depth.max(depth);
        flat.file_node.push(to_u16(file_node));
        match split {
            None => flat.nodes.push(FlatNode {
                at_most: u32::MAX,
                feature: 0,
                left: to_u16(next),
            }),
            Some((feature, at_most)) => {
                flat.nodes.push(FlatNode {
                    at_most,
                    feature: to_u16(feature),
                    left: to_u16(queue.len()),
                });
                let node = &tree.nodes[file_node];
                queue.push((node.left.expect("checked on load"), depth + 1));
                queue.push((node.right.expect("checked on load"), depth + 1));
            }
        }
        next += 1;
    }
    flat
}
