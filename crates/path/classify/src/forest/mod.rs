//! The forest laid out for batches of 64 packets.
//!
//! - [`walk`]: from node to node, any tree, any machine: the portable form;
//! - [`levels`]: trees of bounded width as tables of bytes, one per level;
//! - [`bytes`]: the kernel over those tables, 64 packets at a time;
//! - [`rows`]: trees of bounded height as operations on rows of bits, 256 packets at a time.
//!
//! All give the leaves of [`Model::leaves_naive`](crate::Model::leaves_naive).

mod bytes;
mod levels;
mod rows;
mod walk;

use strata_sketch::{Clock, Feature, Level};
use strata_wire::wide::Simd;

use crate::model::{FEATURES_MAX, Model, NODES_MAX, Tree};
use bytes::LeavesOf;
pub use bytes::RankRows;
use levels::Group;
pub use rows::RowForest;
use walk::FlatTree;

/// Packets of a batch.
pub const LANES: usize = 64;

/// The features of a batch: `columns[feature * LANES + lane]`.
pub type Columns = [u32; FEATURES_MAX * LANES];

/// How a forest is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// From node to node; works on every machine.
    Portable,
    /// x86-64 with AVX2.
    Avx2,
    /// x86-64 with the parts of AVX-512 of [`Simd::avx512`]: Intel since Ice Lake, AMD since Zen 4.
    Avx512,
    /// Arm with NEON: every 64-bit Arm.
    Neon,
}

impl Kernel {
    /// The kernels that this machine supports, best last.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let all = [Self::Portable, Self::Neon, Self::Avx2, Self::Avx512];
        let runs = |kernel: &Self| *kernel == Self::Portable || kernel.simd().is_some();
        all.into_iter().filter(runs).collect()
    }

    /// The instructions of a kernel, if this machine has them; the portable one needs none.
    fn simd(self) -> Option<Simd> {
        match self {
            Self::Portable => None,
            Self::Avx2 => Simd::avx2(),
            Self::Avx512 => Simd::avx512(),
            Self::Neon => Simd::neon(),
        }
    }
}

/// The trees of one level, ready for batches.
#[derive(Clone, Debug)]
pub struct Forest {
    /// For the groups; none for [`Kernel::Portable`].
    simd: Option<Simd>,
    tree_count: usize,
    /// What is evaluated 64 packets at a time; empty without vector instructions.
    groups: Vec<Group>,
    /// Trees that are walked, by their index.
    walked: Vec<(usize, FlatTree)>,
}

impl Forest {
    /// Lays out the trees of a checked model for the kernel that is best here.
    ///
    /// # Panics
    ///
    /// If the model was not checked.
    #[must_use]
    pub fn new(model: &Model, level: Level) -> Self {
        Self::up_to(model, level, best())
    }

    /// Lays out trees that are not of a model for the kernel that is best here. The nodes of a tree
    /// are numbered in their order, the root first; columns that splits ask for are below
    /// [`FEATURES_MAX`], and the numbers of leaves may be any.
    ///
    /// # Panics
    ///
    /// If a tree has no node, or more than 65,535, if a child does not come after its parent, or if
    /// there is no such column.
    #[must_use]
    pub fn of_trees(trees: &[Vec<Split>]) -> Self {
        for tree in trees {
            assert!((1..=NODES_MAX).contains(&tree.len()), "nodes of a tree");
            for (number, node) in tree.iter().enumerate() {
                if let Split::At {
                    feature,
                    left,
                    right,
                    ..
                } = *node
                {
                    assert!(feature < FEATURES_MAX, "there is no column {feature}");
                    let children = number + 1..tree.len();
                    assert!(children.contains(&left) && children.contains(&right));
                }
            }
        }
        let lay_out = |kernel| {
            Self::laid_out(kernel, trees.len(), |tree| {
                let nodes = &trees[tree];
                move |node| nodes[node]
            })
        };
        Self::best_of(best(), lay_out)
    }

    /// As [`Forest::new`], as if `kernel` were the best one.
    ///
    /// # Panics
    ///
    /// As [`Forest::with_kernel`].
    #[must_use]
    pub fn up_to(model: &Model, level: Level, kernel: Kernel) -> Self {
        Self::best_of(kernel, |kernel| Self::with_kernel(model, level, kernel))
    }

    fn best_of(kernel: Kernel, lay_out: impl Fn(Kernel) -> Self) -> Self {
        let forest = lay_out(kernel);
        if kernel == Kernel::Avx2 {
            // Its searches gather: few trees with many thresholds are walked faster.
            let portable = lay_out(Kernel::Portable);
            if portable.avx2_ns_estimated() < forest.avx2_ns_estimated() {
                return portable;
            }
        }
        forest
    }

    /// Rough cost of a packet on a machine with AVX2; fitted to measurements of the example
    /// `forest_speed`.
    #[allow(clippy::cast_precision_loss)]
    fn avx2_ns_estimated(&self) -> f64 {
        let walked: f64 = self.walked.iter().map(|(_, t)| t.depth() as f64).sum();
        let grouped: f64 = self.groups.iter().map(Group::avx2_ns_estimated).sum();
        0.55 * walked + grouped
    }

    /// As [`Forest::new`], for a given kernel.
    ///
    /// # Panics
    ///
    /// If the model was not checked, or the machine does not support the kernel.
    #[must_use]
    pub fn with_kernel(model: &Model, level: Level, kernel: Kernel) -> Self {
        assert!(
            Kernel::available().contains(&kernel),
            "this machine has no {kernel:?}"
        );
        let splits = Splits {
            features: model.feature_list(),
            clock: model.clock(),
        };
        let (trees, splits) = (model.trees(level), &splits);
        Self::laid_out(kernel, trees.len(), |tree| {
            move |node| splits.at(&trees[tree], node)
        })
    }

    /// `tree` gives what gives the nodes of a tree by number.
    fn laid_out<N: Fn(usize) -> Split>(
        kernel: Kernel,
        tree_count: usize,
        tree: impl Fn(usize) -> N,
    ) -> Self {
        let mut forest = Self {
            simd: kernel.simd(),
            tree_count,
            groups: Vec::new(),
            walked: Vec::new(),
        };
        for index in 0..tree_count {
            let nodes = tree(index);
            let fits = forest.simd.is_some() && forest.add_to_group(index, &nodes);
            if !fits {
                let flat = FlatTree::new(nodes);
                forest.walked.push((index, flat));
            }
        }
        forest.groups.iter_mut().for_each(Group::seal);
        forest
    }

    fn add_to_group(&mut self, index: usize, nodes: impl Fn(usize) -> Split) -> bool {
        let Some(tree) = levels::Outline::new(index, nodes) else {
            return false;
        };
        if !self.groups.last_mut().is_some_and(|last| last.add(&tree)) {
            let mut group = Group::default();
            let fits = group.add(&tree);
            debug_assert!(fits, "an empty group takes every outline");
            self.groups.push(group);
        }
        true
    }

    /// Number of trees.
    #[must_use]
    pub fn tree_count(&self) -> usize {
        self.tree_count
    }

    /// The leaves, as node numbers of the file, that the first `packets` of a batch reach:
    /// `leaves[tree][lane]`. What is written to the lanes after is meaningless. `ranks` may be any
    /// forest's.
    ///
    /// # Panics
    ///
    /// If there are fewer rows of leaves than trees, or more packets than [`LANES`].
    #[inline]
    pub fn leaves(
        &self,
        columns: &Columns,
        packets: usize,
        ranks: &mut RankRows,
        leaves: &mut [[u16; LANES]],
    ) {
        assert!(packets <= LANES);
        let leaves = &mut leaves[..self.tree_count];
        if let Some(simd) = self.simd {
            for group in &self.groups {
                simd.run(LeavesOf {
                    group,
                    columns,
                    packets,
                    ranks,
                    leaves,
                });
            }
        }
        for (index, tree) in &self.walked {
            tree.leaves(columns, packets, &mut leaves[*index]);
        }
    }
}

/// Reads the splits of a checked model as integer comparisons.
struct Splits {
    features: Vec<Feature>,
    clock: Clock,
}

/// A node as the kernels see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// The leaf of that number: in the file, of a model.
    Leaf(u16),
    /// Values of the feature up to `at_most` go to `left`, others to `right`.
    At {
        /// Index of the feature's column.
        feature: usize,
        /// The threshold.
        at_most: u32,
        /// Number of a node.
        left: usize,
        /// Number of a node.
        right: usize,
    },
}

fn best() -> Kernel {
    Kernel::available().pop().unwrap_or(Kernel::Portable)
}

impl Splits {
    /// The split at a node of the file. One whose left side no value can reach is replaced by its
    /// right side.
    fn at(&self, tree: &Tree, mut index: usize) -> Split {
        loop {
            let node = &tree.nodes[index];
            let (Some(feature), Some(at_most)) = (node.feature, node.at_most) else {
                return Split::Leaf(u16::try_from(index).expect("checked on load"));
            };
            let right = node.right.expect("checked on load");
            match self.features[feature].encode(at_most, self.clock) {
                Some(at_most) => {
                    return Split::At {
                        feature,
                        at_most,
                        left: node.left.expect("checked on load"),
                        right,
                    };
                }
                None => index = right,
            }
        }
    }
}
