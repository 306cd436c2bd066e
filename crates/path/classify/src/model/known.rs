//! What a forest was trained on: which leaves of different trees packets in training reached
//! together.
//!
//! A leaf is a box of feature values, and the leaves of the other trees are boxes across it. Packets
//! in training reached some of these from it; a packet that reaches others lies outside the values
//! on which the leaf was trained, however sure the leaf is. This is known per combination of leaves,
//! and each combination is judged once, so that a packet costs nothing.

use serde::{Deserialize, Serialize};

use super::{Model, Node, Tree};

/// Bits of all pairs of one forest: 16 trees of 256 leaves need half as many.
const BITS_MAX: usize = 1 << 24;
/// Leaves that [`LeafPairs`] has no number for.
const NOT_A_LEAF: u16 = u16::MAX;

/// Which leaves were reached together in training, as in a model file: `docs/formats/model.md`. A
/// list has a text for each pair of trees: 0 and 1, 0 and 2, ..., 1 and 2, ... A text has a row for
/// each leaf of the former, in hexadecimal digits: digit n says with its lowest bit whether leaf 4n
/// of the latter was reached too, and with the others the three leaves after.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    /// Of the flow trees; empty if not known.
    pub flow_trees: Vec<String>,
    /// Of the packet trees; empty if not known.
    pub packet_trees: Vec<String>,
    /// Whether doubt counts when a class is chosen: scores of ordinary classes then shrink with it,
    /// so that what is unlike the training is not called ordinary. Without, only the anomaly score
    /// rises.
    #[serde(default)]
    pub decides: bool,
}

/// The pairs of one forest, decoded.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeafPairs {
    /// By tree: the number of each node among the leaves.
    numbers: Vec<Vec<u16>>,
    /// By pair of trees: its bits.
    pairs: Vec<Bits>,
}

/// Which leaves of two trees were reached together.
#[derive(Clone, Debug)]
struct Bits {
    /// The trees, the former first.
    of: (usize, usize),
    /// Leaves of the latter.
    row_bits: usize,
    words: Vec<u64>,
}

impl LeafPairs {
    /// Decodes the pairs of a forest; `None` without any.
    ///
    /// # Errors
    ///
    /// What is wrong with which text.
    pub(crate) fn new(texts: &[String], trees: &[Tree]) -> Result<Option<Self>, (usize, String)> {
        if texts.is_empty() {
            return Ok(None);
        }
        let pairs_due = trees.len() * trees.len().saturating_sub(1) / 2;
        if texts.len() != pairs_due {
            let problem = format!(
                "there are {} texts, but {pairs_due} pairs of trees",
                texts.len()
            );
            return Err((0, problem));
        }
        let numbers: Vec<Vec<u16>> = trees.iter().map(numbers_of).collect();
        let counts: Vec<usize> = trees.iter().map(leaf_count).collect();
        let firsts = (0..trees.len()).flat_map(|a| (a + 1..trees.len()).map(move |b| (a, b)));
        let mut pairs = Vec::new();
        let mut bits_left = BITS_MAX;
        for (index, (text, of)) in texts.iter().zip(firsts).enumerate() {
            let (rows, row_bits) = (counts[of.0], counts[of.1]);
            let Some(left) = bits_left.checked_sub(rows * row_bits) else {
                return Err((
                    index,
                    format!("there are more than {BITS_MAX} pairs of leaves"),
                ));
            };
            bits_left = left;
            let words = decoded(text, rows, row_bits).map_err(|problem| (index, problem))?;
            pairs.push(Bits {
                of,
                row_bits,
                words,
            });
        }
        Ok(Some(Self { numbers, pairs }))
    }

    /// How many pairs of these leaves were never reached together in training, and how many pairs
    /// there are.
    ///
    /// # Panics
    ///
    /// If there are fewer leaves than trees.
    pub(crate) fn unmet(&self, leaves: &[u16]) -> (usize, usize) {
        // Each tree is in many pairs.
        let numbers: Vec<u16> = self
            .numbers
            .iter()
            .zip(leaves)
            .map(|(numbers, leaf)| *numbers.get(usize::from(*leaf)).unwrap_or(&NOT_A_LEAF))
            .collect();
        let is_met = |bits: &&Bits| {
            let (row, column) = (numbers[bits.of.0], numbers[bits.of.1]);
            let bit = usize::from(row) * bits.row_bits + usize::from(column);
            row != NOT_A_LEAF && column != NOT_A_LEAF && bits.words[bit / 64] >> (bit % 64) & 1 != 0
        };
        let met = self.pairs.iter().filter(is_met).count();
        (self.pairs.len() - met, self.pairs.len())
    }
}

impl Model {
    /// How many pairs of the leaves that a packet reached were never reached together in training,
    /// and how many pairs there are; `None` if the model does not say, or has one tree.
    #[must_use]
    pub fn unmet(&self, level: strata_sketch::Level, leaves: &[u16]) -> Option<(usize, usize)> {
        let pairs = self.leaf_pairs(level)?;
        (pairs.numbers.len() == leaves.len()).then(|| pairs.unmet(leaves))
    }
}

/// By node of a tree, which leaf it is.
fn numbers_of(tree: &Tree) -> Vec<u16> {
    let mut next = 0;
    let number = |node: &Node| {
        if node.classes.is_none() {
            return NOT_A_LEAF;
        }
        // At most 65,535 nodes, and fewer leaves, so the last number is free.
        let own = next;
        next += 1;
        own
    };
    tree.nodes.iter().map(number).collect()
}

fn leaf_count(tree: &Tree) -> usize {
    let nodes = tree.nodes.iter();
    nodes.filter(|node| node.classes.is_some()).count()
}

/// The bits of a text, rows one after the other.
fn decoded(text: &str, rows: usize, row_bits: usize) -> Result<Vec<u64>, String> {
    let row_digits = row_bits.div_ceil(4);
    if text.len() != rows * row_digits {
        let due = rows * row_digits;
        return Err(format!(
            "the text has {} digits, but {rows} leaves by {row_bits} take {due}",
            text.len()
        ));
    }
    let mut words = vec![0_u64; (rows * row_bits).div_ceil(64)];
    for (at, digit) in text.chars().enumerate() {
        let Some(digit) = digit.to_digit(16) else {
            return Err(format!("'{digit}' at {at} is not a hexadecimal digit"));
        };
        for n in (0..4).filter(|n| digit >> n & 1 != 0) {
            let column = at % row_digits * 4 + n;
            if column >= row_bits {
                return Err(format!("digit {at} names leaf {column} of {row_bits}"));
            }
            let bit = at / row_digits * row_bits + column;
            words[bit / 64] |= 1 << (bit % 64);
        }
    }
    Ok(words)
}
