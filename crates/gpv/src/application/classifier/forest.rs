//! A forest over features of flows, as the training package writes it.

use super::{FLOW_FEATURES, FlowFeatures};

/// Trees, nodes and classes at most.
const TREES_MAX: usize = 1024;
const NODES_MAX: usize = 1 << 20;
const CLASSES_MAX: usize = 256;
/// Rows that go down a tree side by side, so that one waits while others go on.
const LANES: usize = 16;

/// A node. Leaves lead to themselves.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Node {
    at_most: f32,
    feature: u32,
    /// Where a row goes whose feature is at most the threshold, and where the others do.
    next: [u32; 2],
}

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
    /// Of each node, where its shares are.
    leaves: Vec<u32>,
    shares: Vec<f32>,
}

/// A tree as it is read: nodes by number within it.
struct Reader {
    forest: Forest,
    /// First node of the tree that is read, and the lines of its nodes.
    first: usize,
    lines: Vec<usize>,
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
                leaves: Vec::new(),
                shares: Vec::new(),
            },
            first: 0,
            lines: Vec::new(),
        };
        let mut last = 2;
        for (line, text) in lines {
            last = line;
            let result = reader.line(line, text.trim());
            result.map_err(|what| ForestError { line, what })?;
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
        for (first, rows) in (0..).step_by(LANES).zip(rows.chunks(LANES)) {
            let votes = &mut votes[..rows.len() * classes];
            votes.fill(0.0);
            for &(root, depth) in &self.trees {
                let mut at = [root; LANES];
                for _ in 0..depth {
                    for (at, row) in at.iter_mut().zip(rows) {
                        let node = &self.nodes[*at as usize];
                        let goes_on = row[node.feature as usize] > node.at_most;
                        *at = node.next[usize::from(goes_on)];
                    }
                }
                for (at, votes) in at.iter().zip(votes.chunks_exact_mut(classes)) {
                    let leaf = self.leaves[*at as usize] as usize;
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
    fn line(&mut self, line: usize, text: &str) -> Result<(), String> {
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
            Some("tree") => {
                self.end_tree().map_err(|error| error.to_string())?;
                if self.forest.trees.len() == TREES_MAX || self.forest.classes.is_empty() {
                    return Err(format!(
                        "a forest has classes, and at most {TREES_MAX} trees"
                    ));
                }
                self.first = self.forest.nodes.len();
                self.forest.trees.push((strata_wire::exact(self.first), 0));
                Ok(())
            }
            Some(kind @ ("split" | "leaf")) if !forest.trees.is_empty() => {
                if forest.nodes.len() == NODES_MAX {
                    return Err(format!("more than {NODES_MAX} nodes"));
                }
                self.lines.push(line);
                let words: Vec<&str> = words.collect();
                if kind == "split" {
                    self.split(&words)
                } else {
                    self.leaf(&words)
                }
            }
            None => Ok(()),
            Some(other) => Err(format!("'{other}' is out of place")),
        }
    }

    fn split(&mut self, words: &[&str]) -> Result<(), String> {
        let &[feature, at_most, left, right] = words else {
            return Err(String::from("a split has FEATURE AT_MOST LEFT RIGHT"));
        };
        let known = FLOW_FEATURES.iter().position(|name| *name == feature);
        let feature = known.ok_or_else(|| format!("there is no feature '{feature}'"))?;
        let at_most: f32 = at_most
            .parse()
            .map_err(|_| format!("'{at_most}' is no number"))?;
        let number = self.forest.nodes.len() - self.first;
        let child = |word: &str| match word.parse::<u32>() {
            Ok(child) if child as usize > number && (child as usize) < NODES_MAX => {
                Ok(child + strata_wire::exact::<u32>(self.first))
            }
            _ => Err(format!("'{word}' is no node after {number}")),
        };
        let next = [child(left)?, child(right)?];
        self.forest.leaves.push(0);
        self.forest.nodes.push(Node {
            at_most,
            feature: strata_wire::exact(feature),
            next,
        });
        Ok(())
    }

    fn leaf(&mut self, words: &[&str]) -> Result<(), String> {
        let forest = &mut self.forest;
        if words.len() != forest.classes.len() {
            let (has, wanted) = (words.len(), forest.classes.len());
            return Err(format!(
                "a leaf has a share of each of {wanted} classes, not {has}"
            ));
        }
        let number = strata_wire::exact(forest.nodes.len());
        forest.leaves.push(strata_wire::exact(forest.shares.len()));
        for word in words {
            let share: f32 = word.parse().map_err(|_| format!("'{word}' is no number"))?;
            if !(0.0..=1.0).contains(&share) {
                return Err(format!("a share of {word}"));
            }
            forest.shares.push(share);
        }
        forest.nodes.push(Node {
            at_most: 0.0,
            feature: 0,
            next: [number; 2],
        });
        Ok(())
    }

    /// Checks that children are there, and how deep the tree is.
    fn end_tree(&mut self) -> Result<(), ForestError> {
        let Some((root, depth)) = self.forest.trees.last_mut() else {
            return Ok(());
        };
        let root = *root as usize;
        let nodes = &self.forest.nodes[root..];
        let mut depths = vec![0_u32; nodes.len()];
        for (number, node) in nodes.iter().enumerate() {
            for next in node.next {
                let child = next as usize - root;
                if child >= nodes.len() {
                    let (line, what) = (self.lines[number], format!("there is no node {child}"));
                    return Err(ForestError { line, what });
                }
                if child != number {
                    depths[child] = depths[child].max(depths[number] + 1);
                }
            }
        }
        let Some(&deepest) = depths.iter().max() else {
            let (line, what) = (1, String::from("a tree has no nodes"));
            return Err(ForestError { line, what });
        };
        *depth = deepest;
        self.lines.clear();
        Ok(())
    }
}

#[cfg(test)]
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
        ] {
            let error = Forest::parse(&text(rest)).expect_err(rest);
            assert_eq!((error.line, &*error.what), (line, what), "{rest}");
        }
        assert_eq!(Forest::parse("").expect_err("empty").line, 1);
    }
}
