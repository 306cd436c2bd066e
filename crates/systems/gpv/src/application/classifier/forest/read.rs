//! The text of a forest.

use super::{
    AT_ONCE, CLASSES_MAX, Forest, ForestError, LOWEST, NODES_MAX, Node, TREES_MAX, threshold,
};
use crate::application::FLOW_FEATURES;

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
    /// Its number in the forest.
    Leaf(u32),
}

/// Reads a forest, without what follows from it.
pub(super) fn read(text: &str) -> Result<Forest, ForestError> {
    let mut lines = (1..).zip(text.lines());
    expect(&mut lines, "strata-flow-forest 1")?;
    expect(&mut lines, &format!("features {}", FLOW_FEATURES.join(" ")))?;
    let mut reader = Reader {
        forest: Forest {
            classes: Vec::new(),
            trees: Vec::new(),
            nodes: Vec::new(),
            shares: Vec::new(),
            leaves: 0,
            batches: None,
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
                if forest.nodes.len().wrapping_add(self.tree.len()) == NODES_MAX {
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
            .map_err(|_| format!("'{at_most}' is not a number"))?;
        let number = self.tree.len();
        let child = |word: &str| match word.parse::<usize>() {
            Ok(child) if child > number && child < NODES_MAX => Ok(child),
            _ => Err(format!("'{word}' is not a node after {number}")),
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
                "a leaf needs {wanted} shares, one of each class, not {has}"
            ));
        }
        for words in words.chunks(AT_ONCE) {
            let mut shares = [0.0; AT_ONCE];
            for (share, word) in shares.iter_mut().zip(words) {
                *share = word
                    .parse()
                    .map_err(|_| format!("'{word}' is not a number"))?;
                if !(0.0..=1.0).contains(share) {
                    return Err(format!("a share of {word}"));
                }
            }
            forest.shares.push(shares);
        }
        forest.leaves = forest.leaves.wrapping_add(1);
        Ok(Read::Leaf(forest.leaves.wrapping_sub(1)))
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
                    let left = root.wrapping_add(order.len());
                    order.extend(children.map(|child| (child, level.wrapping_add(1))));
                    Node::new(threshold(at_most), left, feature)
                }
                Read::Leaf(leaf) => Node::new(leaf, root.wrapping_add(next), LOWEST),
            });
            next = next.wrapping_add(1);
        }
        Ok(())
    }
}
