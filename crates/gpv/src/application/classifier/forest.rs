//! A forest over features of flows, as the training package writes it.

use super::{FLOW_FEATURES, FlowFeatures};

/// Trees, nodes and classes at most.
const TREES_MAX: usize = 1024;
const NODES_MAX: usize = 1 << 20;
const CLASSES_MAX: usize = 256;
/// Rows that go down a tree side by side, so that one waits while others go on.
const LANES: usize = 16;

/// Columns of a row in [`Forest::classify`]: features, and what no threshold is below.
const COLUMNS: usize = 16;
const LOWEST: u32 = 15;
const _: () = assert!(FLOW_FEATURES.len() <= LOWEST as usize);

/// A node in 8 bytes, so that the trees of a usual forest fit the nearest cache. The children of a
/// node lie next to each other; leaves lead to themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Node {
    /// Bits of the threshold; of a leaf, where its shares are.
    word: u32,
    /// The left child, then in 4 bits the column: [`LOWEST`] of leaves.
    next: u32,
}

impl Node {
    fn new(word: u32, left: usize, column: u32) -> Self {
        let next = strata_wire::exact::<u32>(left) << 4 | column;
        Self { word, next }
    }

    /// Where a row goes: to the left child if its feature is at most the threshold.
    #[inline(always)]
    fn step(self, row: &[f32; COLUMNS]) -> u32 {
        let goes_right = row[(self.next % 16) as usize] > f32::from_bits(self.word);
        (self.next >> 4).wrapping_add(u32::from(goes_right))
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
#[derive(Clone, PartialEq, Debug)]
pub struct Forest {
    classes: Vec<String>,
    /// First node and depth of each tree.
    trees: Vec<(u32, u32)>,
    nodes: Vec<Node>,
    shares: Vec<f32>,
}

/// A forest as it is read.
struct Reader {
    forest: Forest,
    /// Nodes of the tree that is read, by number, with their lines.
    tree: Vec<(usize, Read)>,
    /// Where it begins.
    tree_line: usize,
}

/// A node as it is read.
#[derive(Clone, Copy)]
enum Read {
    Split {
        feature: u32,
        at_most: f32,
        children: [usize; 2],
    },
    /// Where its shares are.
    Leaf(u32),
}

impl Forest {
    /// Reads a forest.
    ///
    /// # Errors
    ///
    /// With the line, if the text is none.
    pub fn parse(text: &str) -> Result<Self, ForestError> {
        let mut lines = (1..).zip(text.lines());
        expect(&mut lines, "strata-flow-forest 1")?;
        expect(&mut lines, &format!("features {}", FLOW_FEATURES.join(" ")))?;
        let mut reader = Reader {
            forest: Self {
                classes: Vec::new(),
                trees: Vec::new(),
                nodes: Vec::new(),
                shares: Vec::new(),
            },
            tree: Vec::new(),
            tree_line: 0,
        };
        let mut last = 2;
        for (line, text) in lines {
            last = line;
            reader.line(line, text.trim())?;
        }
        reader.end_tree()?;
        if reader.forest.trees.is_empty() {
            let what = String::from("there is no tree");
            return Err(ForestError { line: last, what });
        }
        Ok(reader.forest)
    }

    /// Names of the classes.
    #[must_use]
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// Calls `out` with each row's number, its class and the share of votes for it.
    #[allow(clippy::cast_precision_loss, reason = "there are few trees")]
    pub fn classify(&self, rows: &[FlowFeatures], mut out: impl FnMut(usize, usize, f32)) {
        let classes = self.classes.len();
        let mut votes = [0.0_f32; LANES * CLASSES_MAX];
        let mut lanes = [[f32::NEG_INFINITY; COLUMNS]; LANES];
        for (first, rows) in (0..).step_by(LANES).zip(rows.chunks(LANES)) {
            for (lane, row) in lanes.iter_mut().zip(rows) {
                lane[..row.len()].copy_from_slice(row);
            }
            let votes = &mut votes[..rows.len() * classes];
            votes.fill(0.0);
            for &(root, depth) in &self.trees {
                // Those beyond the last row repeat what was there.
                let mut at = [root; LANES];
                for _ in 0..depth {
                    for (at, row) in at.iter_mut().zip(&lanes) {
                        *at = self.nodes[*at as usize].step(row);
                    }
                }
                for (at, votes) in at.iter().zip(votes.chunks_exact_mut(classes)) {
                    let leaf = self.nodes[*at as usize].word as usize;
                    let shares = &self.shares[leaf..leaf + classes];
                    votes.iter_mut().zip(shares).for_each(|(v, s)| *v += s);
                }
            }
            for (row, votes) in (first..).zip(votes.chunks_exact(classes)) {
                let mut best = 0;
                for (class, vote) in votes.iter().enumerate() {
                    if *vote > votes[best] {
                        best = class;
                    }
                }
                out(row, best, votes[best] / self.trees.len() as f32);
            }
        }
    }
}

fn expect<'a>(
    lines: &mut impl Iterator<Item = (usize, &'a str)>,
    wanted: &str,
) -> Result<(), ForestError> {
    match lines.next() {
        Some((_, text)) if text.trim() == wanted => Ok(()),
        Some((line, _)) => Err(ForestError {
            line,
            what: format!("this should be '{wanted}'"),
        }),
        None => Err(ForestError {
            line: 1,
            what: format!("the file ends before '{wanted}'"),
        }),
    }
}

impl Reader {
    fn line(&mut self, line: usize, text: &str) -> Result<(), ForestError> {
        if text == "tree" {
            self.end_tree()?;
            self.tree_line = line;
        }
        let result = self.words(line, text);
        result.map_err(|what| ForestError { line, what })
    }

    fn words(&mut self, line: usize, text: &str) -> Result<(), String> {
        let mut words = text.split_whitespace();
        let forest = &mut self.forest;
        match words.next() {
            Some("class") if forest.trees.is_empty() => {
                if forest.classes.len() == CLASSES_MAX {
                    return Err(format!("more than {CLASSES_MAX} classes"));
                }
                forest.classes.push(text["class".len()..].trim().to_owned());
                Ok(())
            }
            Some("tree") if text == "tree" => {
                if self.forest.trees.len() == TREES_MAX || self.forest.classes.is_empty() {
                    return Err(format!(
                        "a forest has classes, and at most {TREES_MAX} trees"
                    ));
                }
                let first = strata_wire::exact(self.forest.nodes.len());
                self.forest.trees.push((first, 0));
                Ok(())
            }
            Some(kind @ ("split" | "leaf")) if !forest.trees.is_empty() => {
                if forest.nodes.len() + self.tree.len() == NODES_MAX {
                    return Err(format!("more than {NODES_MAX} nodes"));
                }
                let words: Vec<&str> = words.collect();
                let node = match kind {
                    "split" => self.split(&words),
                    _ => self.leaf(&words),
                };
                self.tree.push((line, node?));
                Ok(())
            }
            None => Ok(()),
            Some(other) => Err(format!("'{other}' is out of place")),
        }
    }

    fn split(&self, words: &[&str]) -> Result<Read, String> {
        let &[feature, at_most, left, right] = words else {
            return Err(String::from("a split has FEATURE AT_MOST LEFT RIGHT"));
        };
        let known = FLOW_FEATURES.iter().position(|name| *name == feature);
        let feature = known.ok_or_else(|| format!("there is no feature '{feature}'"))?;
        let at_most: f32 = at_most
            .parse()
            .map_err(|_| format!("'{at_most}' is no number"))?;
        let number = self.tree.len();
        let child = |word: &str| match word.parse::<usize>() {
            Ok(child) if child > number && child < NODES_MAX => Ok(child),
            _ => Err(format!("'{word}' is no node after {number}")),
        };
        Ok(Read::Split {
            feature: strata_wire::exact(feature),
            at_most,
            children: [child(left)?, child(right)?],
        })
    }

    fn leaf(&mut self, words: &[&str]) -> Result<Read, String> {
        let forest = &mut self.forest;
        if words.len() != forest.classes.len() {
            let (has, wanted) = (words.len(), forest.classes.len());
            return Err(format!(
                "a leaf has a share of each of {wanted} classes, not {has}"
            ));
        }
        let first = strata_wire::exact(forest.shares.len());
        for word in words {
            let share: f32 = word.parse().map_err(|_| format!("'{word}' is no number"))?;
            if !(0.0..=1.0).contains(&share) {
                return Err(format!("a share of {word}"));
            }
            forest.shares.push(share);
        }
        Ok(Read::Leaf(first))
    }

    /// Checks that children are there, each of one node, and lays the tree out level by level.
    fn end_tree(&mut self) -> Result<(), ForestError> {
        let tree = std::mem::take(&mut self.tree);
        let Some((root, depth)) = self.forest.trees.last_mut() else {
            return Ok(());
        };
        if tree.is_empty() {
            let (line, what) = (self.tree_line, String::from("a tree has no nodes"));
            return Err(ForestError { line, what });
        }
        let mut is_child = vec![false; tree.len()];
        for &(line, node) in &tree {
            let Read::Split { children, .. } = node else {
                continue;
            };
            for child in children {
                let what = match is_child.get_mut(child) {
                    None => format!("there is no node {child}"),
                    Some(true) => format!("node {child} is the child of another already"),
                    Some(is_child) => {
                        *is_child = true;
                        continue;
                    }
                };
                return Err(ForestError { line, what });
            }
        }
        let root = *root as usize;
        // Numbers of nodes in their new order, and how deep they are.
        let mut order = vec![(0, 0)];
        let mut next = 0;
        while let Some(&(number, level)) = order.get(next) {
            *depth = level;
            self.forest.nodes.push(match tree[number].1 {
                Read::Split {
                    feature,
                    at_most,
                    children,
                } => {
                    let left = root + order.len();
                    order.extend(children.map(|child| (child, level + 1)));
                    Node::new(at_most.to_bits(), left, feature)
                }
                Read::Leaf(shares) => Node::new(shares, root + next, LOWEST),
            });
            next += 1;
        }
        Ok(())
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
            // Splits, then leaves: whoever has no parent yet is the child of somebody.
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
            let rows: Vec<FlowFeatures> = (0..50).map(|_| row(&mut rng)).collect();
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
            assert_eq!(rows_found, 50);
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
                "a leaf has a share of each of 2 classes, not 1",
            ),
            (
                "tree\nsplit size_9 1 1 2",
                6,
                "there is no feature 'size_9'",
            ),
            ("tree\nsplit size_1 1 0 2", 6, "'0' is no node after 0"),
            ("tree\nsplit size_1 x 1 2", 6, "'x' is no number"),
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
