//! A forest over features of flows, as the training package writes it.

mod read;

use strata_classify::{Columns, FEATURES_MAX, LANES, RankRows, Split};

use super::{FLOW_FEATURES, FlowFeatures};

/// Trees, nodes and classes at most.
const TREES_MAX: usize = 1024;
const NODES_MAX: usize = 1 << 20;
const CLASSES_MAX: usize = 256;
/// Flows that go down a tree side by side, so that one waits while others go on.
const SIDE_BY_SIDE: usize = 16;
/// Classes whose votes are added at once.
const AT_ONCE: usize = 4;

/// The column that leaves ask for: all zeros, which no threshold is below.
const LOWEST: u32 = 15;
const _: () = assert!(FLOW_FEATURES.len() <= LOWEST as usize && FEATURES_MAX > LOWEST as usize);

/// A number whose order is that of these: [`f32`] as the trees compare them. What is no number is
/// least, so it goes left at every split.
#[inline(always)]
pub(super) fn ordered(value: f32) -> u32 {
    // -0 is 0.
    let bits = (value + 0.0).to_bits();
    let negative = bits.cast_signed() >> 31;
    let ordered = bits ^ (negative.cast_unsigned() | 1 << 31);
    if value.is_nan() { 0 } else { ordered }
}

/// A threshold in that order; nothing is greater than what is no number.
fn threshold(at_most: f32) -> u32 {
    match at_most.is_nan() {
        true => u32::MAX,
        false => ordered(at_most),
    }
}

/// A node in 8 bytes, so that the trees of a usual forest fit the nearest cache. The children of a
/// node lie next to each other; leaves lead to themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Node {
    /// The threshold, [`ordered`]; of a leaf, its number.
    word: u32,
    /// The left child, then in 4 bits the column: [`LOWEST`] of leaves.
    next: u32,
}

impl Node {
    fn new(word: u32, left: usize, column: u32) -> Self {
        let next = strata_wire::exact::<u32>(left) << 4 | column;
        Self { word, next }
    }

    /// Where a flow goes: to the left child if its feature is at most the threshold.
    #[inline(always)]
    fn step(self, columns: &Columns, lane: usize) -> u32 {
        let value = columns[((self.next % 16) as usize)
            .wrapping_mul(LANES)
            .wrapping_add(lane % LANES)];
        (self.next >> 4).wrapping_add(u32::from(value > self.word))
    }

    /// As the batches of `classify` have it, in a tree that begins at `root`.
    fn split(self, root: u32) -> Split {
        let left = (self.next >> 4).wrapping_sub(root) as usize;
        match self.next % 16 {
            LOWEST => Split::Leaf(strata_wire::exact(self.word)),
            column => Split::At {
                feature: column as usize,
                at_most: self.word,
                left,
                right: left.wrapping_add(1),
            },
        }
    }
}

const _: () = assert!(NODES_MAX << 4 <= 1 << 32);

/// Why a text is no forest.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct ForestError {
    /// Where, from 1.
    pub line: usize,
    /// What is wrong.
    pub what: String,
}

/// A checked forest.
///
/// Its text is of lines, in this order:
///
/// ```text
/// strata-flow-forest 1
/// features size_1 ... delay_us_sd      those of FLOW_FEATURES, in their order
/// class NAME                           once each
/// tree                                 its nodes follow, numbered from 0
/// split FEATURE AT_MOST LEFT RIGHT     children have higher numbers
/// leaf SHARE ...                       of each class
/// ```
#[derive(Clone, Debug)]
pub struct Forest {
    classes: Vec<String>,
    /// First node and depth of each tree.
    trees: Vec<(u32, u32)>,
    nodes: Vec<Node>,
    /// By leaf: of each class, and zeros up to a multiple of [`AT_ONCE`].
    shares: Vec<[f32; AT_ONCE]>,
    leaves: u32,
    /// The same trees for batches, unless they are so large that it cannot have them.
    batches: Option<strata_classify::Forest>,
}

/// Features of a batch, and the leaves that they lead to.
#[derive(Debug)]
pub(super) struct Scratch {
    /// [`ordered`]; those that are no features are zeros.
    pub(super) columns: Box<Columns>,
    ranks: RankRows,
    leaves: Vec<[u16; LANES]>,
    /// Of trees that are walked.
    walked: Vec<[u32; LANES]>,
}

impl Forest {
    /// Reads a forest.
    ///
    /// # Errors
    ///
    /// With the line, if the text is not a forest.
    pub fn parse(text: &str) -> Result<Self, ForestError> {
        let mut forest = read::read(text)?;
        forest.batches = forest.for_batches();
        Ok(forest)
    }

    /// Names of the classes.
    #[must_use]
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// Calls `out` with each row's number, its class and the share of votes for it.
    pub fn classify(&self, rows: &[FlowFeatures], mut out: impl FnMut(usize, usize, f32)) {
        let mut scratch = self.scratch();
        for (first, rows) in (0_usize..).step_by(LANES).zip(rows.chunks(LANES)) {
            for (lane, row) in rows.iter().enumerate() {
                for (feature, value) in row.iter().enumerate() {
                    scratch.columns[feature.wrapping_mul(LANES).wrapping_add(lane)] =
                        ordered(*value);
                }
            }
            self.classify_columns(&mut scratch, rows.len(), |row, class, share| {
                out(first.wrapping_add(row), class, share);
            });
        }
    }

    /// What [`Forest::classify_columns`] works in.
    pub(super) fn scratch(&self) -> Scratch {
        let (batches, walked) = match self.batches {
            Some(_) => (self.trees.len(), 0),
            None => (0, self.trees.len()),
        };
        Scratch {
            columns: Box::new([0; FEATURES_MAX * LANES]),
            ranks: RankRows::default(),
            leaves: vec![[0; LANES]; batches],
            walked: vec![[0; LANES]; walked],
        }
    }

    /// As [`Forest::classify`], of the first `flows` of a batch.
    pub(super) fn classify_columns(
        &self,
        scratch: &mut Scratch,
        flows: usize,
        out: impl FnMut(usize, usize, f32),
    ) {
        let Scratch {
            columns,
            ranks,
            leaves,
            walked,
        } = scratch;
        if let Some(batches) = &self.batches {
            batches.leaves(columns, flows, ranks, leaves);
            self.count_votes(leaves, flows, out);
        } else {
            self.walk(columns, flows, walked);
            self.count_votes(walked, flows, out);
        }
    }

    /// The trees for batches, if the numbers of leaves, and nodes of a tree, take 16 bits.
    fn for_batches(&self) -> Option<strata_classify::Forest> {
        let of_tree = |(number, &(root, _)): (usize, &(u32, u32))| {
            let next = self.trees.get(number.wrapping_add(1));
            let end = next.map_or(self.nodes.len(), |&(root, _)| root as usize);
            &self.nodes[root as usize..end]
        };
        let trees: Vec<&[Node]> = self.trees.iter().enumerate().map(of_tree).collect();
        let most = usize::from(u16::MAX);
        if self.leaves as usize > most || trees.iter().any(|nodes| nodes.len() > most) {
            return None;
        }
        let splits = |(nodes, &(root, _)): (&&[Node], &(u32, u32))| {
            nodes.iter().map(|node| node.split(root)).collect()
        };
        let trees: Vec<Vec<Split>> = trees.iter().zip(&self.trees).map(splits).collect();
        Some(strata_classify::Forest::of_trees(&trees))
    }

    /// The leaves that flows reach, from node to node.
    fn walk(&self, columns: &Columns, flows: usize, leaves: &mut [[u32; LANES]]) {
        for (&(root, depth), leaves) in self.trees.iter().zip(leaves) {
            for first in (0..flows).step_by(SIDE_BY_SIDE) {
                // Those beyond the last flow are of flows before.
                let mut at = [root; SIDE_BY_SIDE];
                for _ in 0..depth {
                    for (lane, at) in (first..).zip(&mut at) {
                        *at = self.nodes[*at as usize].step(columns, lane);
                    }
                }
                for (leaf, at) in leaves[first..].iter_mut().zip(at) {
                    *leaf = self.nodes[at as usize].word;
                }
            }
        }
    }

    /// Adds up the shares of leaves, by tree and flow.
    #[allow(clippy::cast_precision_loss, reason = "there are few trees")]
    fn count_votes<L: Copy + Into<u32>>(
        &self,
        leaves: &[[L; LANES]],
        flows: usize,
        mut out: impl FnMut(usize, usize, f32),
    ) {
        let each = self.classes.len().div_ceil(AT_ONCE);
        let trees = self.trees.len() as f32;
        for flow in 0..flows.min(LANES) {
            let mut best = 0;
            for part in 0..each {
                let mut votes = [0.0_f32; AT_ONCE];
                for leaves in leaves {
                    let leaf: u32 = leaves[flow].into();
                    let place = (leaf as usize).wrapping_mul(each).wrapping_add(part);
                    for (vote, share) in votes.iter_mut().zip(self.shares[place]) {
                        *vote += share;
                    }
                }
                for (class, vote) in (AT_ONCE.wrapping_mul(part)..).zip(votes) {
                    best = best.max(Ballot::new(class, vote).0);
                }
            }
            let (class, votes) = Ballot(best).read();
            out(flow, class, votes / trees);
        }
    }
}

/// A class and its votes: more votes are greater, and of equal ones the class that comes first. A
/// number, so that which class has most is found without a branch that is hard to predict.
struct Ballot(u64);

impl Ballot {
    #[inline(always)]
    fn new(class: usize, votes: f32) -> Self {
        // Votes are not negative, so their bits are in their order.
        let rest = CLASSES_MAX.wrapping_sub(class) as u64;
        Self(u64::from(votes.to_bits()) << 32 | rest)
    }

    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "both halves are taken")]
    fn read(self) -> (usize, f32) {
        let class = CLASSES_MAX.wrapping_sub(self.0 as u32 as usize);
        (class, f32::from_bits((self.0 >> 32) as u32))
    }
}

#[cfg(test)]
#[allow(clippy::cast_precision_loss, reason = "small numbers")]
mod tests {
    use super::*;

    fn text(rest: &str) -> String {
        format!(
            "strata-flow-forest 1\nfeatures {}\nclass web\nclass mail\n{rest}",
            FLOW_FEATURES.join(" ")
        )
    }

    #[test]
    fn rows_go_down_trees() {
        let forest = Forest::parse(&text(
            "tree\nsplit size_1 100 1 2\nleaf 1 0\nsplit size_mean 50.5 3 4\nleaf 0.25 0.75\n\
             leaf 1 0\ntree\nleaf 0.5 0.5\n",
        ));
        let forest = forest.expect("a forest");
        let row = |size, mean| {
            let mut row = [0.0; FLOW_FEATURES.len()];
            (row[0], row[8]) = (size, mean);
            row
        };
        let mut rows = vec![row(100.0, 0.0), row(101.0, 50.5), row(101.0, 51.0)];
        rows.extend(vec![row(0.0, 0.0); 40]);
        let mut found = Vec::new();
        forest.classify(&rows, |row, class, share| found.push((row, class, share)));
        assert_eq!(found[..3], [(0, 0, 0.75), (1, 1, 0.625), (2, 0, 0.75)]);
        assert_eq!((found.len(), found[42]), (43, (42, 0, 0.75)));
    }

    #[test]
    fn whatever_a_tree_looks_like_rows_find_their_leaves() {
        use strata_testkit::sim::{self, Rng};
        sim::seeds(50, |seed| {
            let mut rng = Rng::new(seed);
            let small = |below: u64, rng: &mut Rng| usize::try_from(rng.below(below)).expect("few");
            // Splits, then leaves: a node without a parent yet is the child of another.
            let splits = small(40, &mut rng);
            let mut parentless: Vec<usize> = (1..=2 * splits).collect();
            let mut naive = Vec::new();
            let mut lines = String::from("tree\n");
            for number in 0..splits {
                // The next number must be among the children of those up to it.
                let first = match parentless.binary_search(&(number + 1)) {
                    Ok(at) => parentless.remove(at),
                    Err(_) => parentless.remove(small(parentless.len() as u64, &mut rng)),
                };
                let second = parentless.remove(small(parentless.len() as u64, &mut rng));
                let (feature, at_most) = (small(12, &mut rng), small(9, &mut rng));
                let children = match rng.below(2) {
                    0 => [first, second],
                    _ => [second, first],
                };
                let name = FLOW_FEATURES[feature];
                lines += &format!("split {name} {at_most} {} {}\n", children[0], children[1]);
                naive.push((feature, at_most, children));
            }
            for leaf in splits..=2 * splits {
                lines += ["leaf 1 0\n", "leaf 0.25 0.5\n", "leaf 0 0.125\n"][leaf % 3];
            }
            let forest = Forest::parse(&text(&lines)).expect("a forest");
            let row = |rng: &mut Rng| std::array::from_fn(|_| small(10, rng) as f32);
            let rows: Vec<FlowFeatures> = (0..150).map(|_| row(&mut rng)).collect();
            let walked = Forest {
                batches: None,
                ..forest.clone()
            };
            assert!(forest.batches.is_some());
            for forest in [forest, walked] {
                let mut rows_found = 0;
                forest.classify(&rows, |row, class, share| {
                    let mut at = 0;
                    while let Some(&(feature, at_most, children)) = naive.get(at) {
                        at = children[usize::from(rows[row][feature] > at_most as f32)];
                    }
                    let wanted = [(0, 1.0), (1, 0.5), (1, 0.125)][at % 3];
                    assert_eq!((class, share), wanted, "seed {seed}, row {row}");
                    rows_found += 1;
                });
                assert_eq!(rows_found, 150);
            }
        });
    }

    #[test]
    fn numbers_are_compared_as_floats_are() {
        let values = [
            f32::NEG_INFINITY,
            f32::MIN,
            -1.5,
            -f32::MIN_POSITIVE,
            -1e-45,
            -0.0,
            0.0,
            1e-45,
            1.0,
            1.0 + f32::EPSILON,
            1e30,
            f32::MAX,
            f32::INFINITY,
            f32::NAN,
            -f32::NAN,
        ];
        for value in values {
            for at_most in values {
                let wanted = value > at_most;
                assert_eq!(
                    ordered(value) > threshold(at_most),
                    wanted,
                    "{value} {at_most}"
                );
            }
        }
    }

    /// More leaves than have numbers of 16 bits, and more classes than are added at once.
    #[test]
    fn a_forest_too_large_for_batches_is_walked() {
        let mut lines = String::new();
        for tree in 0..1000 {
            lines += "tree\n";
            // A chain: a flow of size n ends at leaf n of 70.
            for number in 0..70 {
                let (left, right) = (2 * number + 1, 2 * number + 2);
                lines += &format!("split size_2 {number} {left} {right}\n");
                lines += match (number + tree) % 2 {
                    0 => "leaf 0 0 0 0 0 1 0\n",
                    _ => "leaf 0 0.25 0 0 0 0 0\n",
                };
            }
            lines += "leaf 0 0 0 0 0 0 1\n";
        }
        let classes: String = (0..7).map(|class| format!("class c{class}\n")).collect();
        let features = FLOW_FEATURES.join(" ");
        let text = format!("strata-flow-forest 1\nfeatures {features}\n{classes}{lines}");
        let forest = Forest::parse(&text).expect("a forest");
        assert!(forest.batches.is_none());
        let rows: Vec<FlowFeatures> = (0..100)
            .map(|size| std::array::from_fn(|at| if at == 1 { size as f32 } else { 3.0 }))
            .collect();
        forest.classify(&rows, |row, class, share| {
            let wanted = if row < 70 { (5, 0.5) } else { (6, 1.0) };
            assert_eq!((class, share), wanted, "row {row}");
        });
    }

    #[test]
    fn what_is_no_forest_says_the_line() {
        for (rest, line, what) in [
            ("", 4, "there is no tree"),
            ("leaf 1 0", 5, "'leaf' is out of place"),
            (
                "tree\nleaf 1",
                6,
                "a leaf needs 2 shares, one of each class, not 1",
            ),
            (
                "tree\nsplit size_9 1 1 2",
                6,
                "there is no feature 'size_9'",
            ),
            ("tree\nsplit size_1 1 0 2", 6, "'0' is not a node after 0"),
            ("tree\nsplit size_1 x 1 2", 6, "'x' is not a number"),
            (
                "tree\nsplit size_1 1 1 2\nleaf 1 0",
                6,
                "there is no node 2",
            ),
            ("tree\nleaf 2 0", 6, "a share of 2"),
            (
                "tree\nsplit size_1 1 1 2\nsplit size_2 1 2 3\nleaf 1 0\nleaf 0 1",
                7,
                "node 2 is the child of another already",
            ),
            (
                "tree\nsplit size_1 1 1 1\nleaf 1 0",
                6,
                "node 1 is the child of another already",
            ),
            ("tree\ntree\nleaf 1 0", 5, "a tree has no nodes"),
            ("tree", 5, "a tree has no nodes"),
        ] {
            let error = Forest::parse(&text(rest)).expect_err(rest);
            assert_eq!((error.line, &*error.what), (line, what), "{rest}");
        }
        assert_eq!(Forest::parse("").expect_err("empty").line, 1);
    }
}
