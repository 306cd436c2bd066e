//! A model as entries of the tables of `p4/titanlog.p4`.
//!
//! A test of a tree (`feature <= limit`) is a bit of the tree's marks, set if the value is larger. So the value of a
//! feature gives its marks in all trees by the range it is in, and a leaf is one ternary match: the tests on its path.
//! A leaf gives its shares in the steps that Strata adds up, so the sums are equal, and the decision compares sums.

use std::collections::{BTreeSet, HashMap};
use std::fmt::{self, Write};

use strata_classify::{Model, Tree};
use strata_sketch::{Feature, Level};
use strata_wire::{Granularity, Keep};

use super::target::{
    CLASSES, GRANULARITIES, LEAVES, PARTIAL_BYTES, RULES, TESTS, TREES, UNCLASSIFIED, features,
    room,
};
use super::ternary::{Ternary, prefixes};

/// A leaf's share of a class, in steps (`docs/formats/model.md`).
const SHARE_STEPS: u16 = 65_535;

/// What an entry does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Sets marks of each tree.
    Mark([u64; TREES]),
    /// Adds a leaf's share of each class.
    Leaf([u16; CLASSES]),
    /// Decides the class.
    SetClass(u8),
    /// Decides how much is kept, and the port.
    Keep { kind: u8, port: u32 },
}

/// An entry of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// A match for each field of the key.
    pub(super) keys: Vec<Ternary>,
    /// Among entries that match, the lowest is taken.
    pub(super) priority: usize,
    /// What it does.
    pub(super) action: Action,
    /// What it stands for: a comment.
    note: String,
}

/// A table and its entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    /// Its name in the program.
    pub(super) name: String,
    /// Room for entries.
    pub(super) size: usize,
    /// Whether keys are compared whole.
    is_exact: bool,
    /// The entries.
    pub(super) entries: Vec<Entry>,
}

/// Why a model or mode does not fit the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Misfit {
    /// Flow trees, and the features of flows that they test.
    Flows(Vec<&'static str>),
    /// Packet trees.
    Trees(usize),
    /// Classes.
    Classes(usize),
    /// Different tests of a packet tree: number of the tree, and of its tests.
    Tests(usize, usize),
    /// Leaves of a packet tree: number of the tree.
    Leaves(usize),
    /// Prefixes of the decision's rules.
    Rules(usize),
    /// Doubt decides.
    Doubt,
    /// A class, and its granularity.
    Granularity(String, Granularity),
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flows(tested) => {
                f.write_str("it has flow trees, but the program keeps no state of flows")?;
                if !tested.is_empty() {
                    write!(f, " and does not compute {}", tested.join(", "))?;
                }
                f.write_str("; with --packet-trees, only the trees for packets without a flow decide")
            }
            Self::Trees(trees) => write!(f, "it has {trees} packet trees, but the program supports at most {TREES}"),
            Self::Classes(classes) => write!(f, "it has {classes} classes, but the program supports at most {CLASSES}"),
            Self::Tests(tree, tests) => write!(
                f,
                "packet tree {tree} has {tests} different tests, but the program supports at most \
                 {TESTS}: train shallower trees"
            ),
            Self::Leaves(tree) => write!(
                f,
                "packet tree {tree} has more leaves than the {LEAVES} entries of its table: train shallower trees"
            ),
            Self::Rules(entries) => {
                write!(f, "its decision takes {entries} entries, but the table has only {RULES}")
            }
            Self::Doubt => f.write_str(
                "its doubt decides (trained with --conservative), which needs all pairs of leaves; the program adds \
                 up shares only",
            ),
            Self::Granularity(class, granularity) => write!(
                f,
                "the mode keeps '{granularity}' of class {class}, but the program has drop, header, partial \
                 {PARTIAL_BYTES} and full, without sampling"
            ),
        }
    }
}

impl std::error::Error for Misfit {}

/// The tables of a model, for packets without flow. `granularities` are those of its classes and, last, of packets
/// that are not dissected. All tables of the program are there, whether they have entries or not.
///
/// # Errors
///
/// [`Misfit`] if it does not fit.
///
/// # Panics
///
/// If the model was not checked.
pub(super) fn tables(
    model: &Model,
    granularities: &[Granularity],
    packet_trees_only: bool,
) -> Result<Vec<Table>, Misfit> {
    if !model.flow_trees.is_empty() && !packet_trees_only {
        return Err(Misfit::Flows(flow_features(model)));
    }
    if model.known.as_ref().is_some_and(|known| known.decides) {
        return Err(Misfit::Doubt);
    }
    if model.packet_trees.len() > TREES {
        return Err(Misfit::Trees(model.packet_trees.len()));
    }
    if model.classes.len() > CLASSES {
        return Err(Misfit::Classes(model.classes.len()));
    }
    let trees = model.packet_trees.iter().enumerate();
    let trees: Vec<Marks> = trees
        .map(|(number, tree)| Marks::of(model, number, tree))
        .collect::<Result<_, _>>()?;
    let mut all = Vec::new();
    for feature in features() {
        all.push(ranges(&trees, feature));
    }
    for number in 0..TREES {
        let entries = match (trees.get(number), model.packet_trees.get(number)) {
            (Some(marks), Some(tree)) => marks.leaves(number, tree)?,
            _ => Vec::new(),
        };
        all.push(Table {
            name: format!("tree_{number}"),
            size: LEAVES,
            is_exact: false,
            entries,
        });
    }
    all.push(decide(model)?);
    all.push(granularity(model, granularities)?);
    Ok(all)
}

/// The features of flows that flow trees test.
fn flow_features(model: &Model) -> Vec<&'static str> {
    let asked = model.asked(Level::Flow);
    let features = model.feature_list();
    let tested = features.iter().zip(asked).filter(|(_, asked)| *asked);
    tested
        .filter(|(feature, _)| room(**feature).is_none())
        .map(|(feature, _)| feature.name())
        .collect()
}

/// What a split does in the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Looks at a mark, set if the value is larger.
    Test(usize),
    /// Every value is larger.
    Right,
    /// No value is larger.
    Left,
}

/// The tests of a tree, each a bit of its marks.
struct Marks {
    tests: Vec<(Feature, u32)>,
    /// By node; of a leaf, none.
    steps: Vec<Option<Step>>,
}

impl Marks {
    fn of(model: &Model, number: usize, tree: &Tree) -> Result<Self, Misfit> {
        let (clock, features) = (model.clock(), model.feature_list());
        let mut bits = HashMap::new();
        let mut marks = Self {
            tests: Vec::new(),
            steps: Vec::new(),
        };
        for node in &tree.nodes {
            let (Some(feature), Some(at_most)) = (node.feature, node.at_most) else {
                marks.steps.push(None);
                continue;
            };
            let feature = features[feature];
            let (width, _) = room(feature).expect("packet trees have features of packets only");
            let largest = u32::MAX >> u32::BITS.saturating_sub(width);
            marks.steps.push(Some(match feature.encode(at_most, clock) {
                None => Step::Right,
                Some(limit) if limit >= largest => Step::Left,
                Some(limit) => {
                    let next = marks.tests.len();
                    let bit = *bits.entry((feature, limit)).or_insert(next);
                    if bit == next {
                        marks.tests.push((feature, limit));
                    }
                    Step::Test(bit)
                }
            }));
        }
        if marks.tests.len() > TESTS {
            return Err(Misfit::Tests(number, marks.tests.len()));
        }
        Ok(marks)
    }

    /// The marks of values of a feature that are at least `low`, where no test is between `low` and the value.
    fn at(&self, feature: Feature, low: u32) -> u64 {
        let tests = self.tests.iter().enumerate();
        let set = tests.filter(|(_, (of, limit))| *of == feature && *limit < low);
        set.fold(0, |marks, (bit, _)| marks | 1 << bit)
    }

    /// An entry for each leaf that marks can lead to.
    fn leaves(&self, number: usize, tree: &Tree) -> Result<Vec<Entry>, Misfit> {
        let mut entries = Vec::new();
        let mut open = vec![(0, Ternary::ANY)];
        while let Some((at, path)) = open.pop() {
            let node = &tree.nodes[at];
            let Some(step) = self.steps[at] else {
                if entries.len() == LEAVES {
                    return Err(Misfit::Leaves(number));
                }
                entries.push(Entry {
                    keys: vec![path],
                    priority: 0,
                    action: Action::Leaf(shares(node.classes.as_deref().expect("checked on load"))),
                    note: format!("node {at}"),
                });
                continue;
            };
            let left = node.left.expect("checked on load");
            let right = node.right.expect("checked on load");
            let (goes_left, goes_right) = match step {
                Step::Left => (Some(path), None),
                Step::Right => (None, Some(path)),
                Step::Test(bit) => (with(path, bit, false), with(path, bit, true)),
            };
            open.extend(goes_right.map(|path| (right, path)));
            open.extend(goes_left.map(|path| (left, path)));
        }
        Ok(entries)
    }
}

/// A path with one more mark; `None` if it had the opposite one.
fn with(path: Ternary, bit: usize, is_set: bool) -> Option<Ternary> {
    let one = 1_u64 << bit;
    let value = if is_set { one } else { 0 };
    if path.mask & one != 0 && path.value & one != value {
        return None;
    }
    Some(Ternary {
        value: path.value | value,
        mask: path.mask | one,
    })
}

/// A leaf's shares as Strata adds them up.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "shares are from 0 to 1"
)]
fn shares(of_classes: &[f64]) -> [u16; CLASSES] {
    let mut steps = [0; CLASSES];
    for (steps, share) in steps.iter_mut().zip(of_classes) {
        *steps = (share * f64::from(SHARE_STEPS)).round() as u16;
    }
    steps
}

/// From the value of a feature to the marks of all trees. It always fits: 8 trees of 64 tests have at most 512 limits.
/// These divide at most 4,095 of the aligned blocks of values of 16 bits, which leaves at most 4,096 undivided blocks;
/// and there are 256 values of 8 bits.
fn ranges(trees: &[Marks], feature: Feature) -> Table {
    let (bits, size) = room(feature).expect("a feature that the program computes");
    let largest = u32::MAX >> u32::BITS.saturating_sub(bits);
    let tests = trees.iter().flat_map(|tree| &tree.tests);
    let limits = tests.filter(|(of, _)| *of == feature);
    let limits: BTreeSet<u32> = limits.map(|(_, limit)| *limit).collect();
    let ends: Vec<u32> = limits.iter().copied().chain([largest]).collect();
    let mut entries = Vec::new();
    // Values up to the first limit have no marks, so they need no entry.
    for pair in ends.windows(2) {
        let (low, high) = (pair[0].saturating_add(1), pair[1]);
        let mut marks = [0; TREES];
        for (marks, tree) in marks.iter_mut().zip(trees) {
            *marks = tree.at(feature, low);
        }
        for key in prefixes(low, high, bits) {
            entries.push(Entry {
                keys: vec![key],
                priority: 0,
                action: Action::Mark(marks),
                note: format!("{low} to {high}"),
            });
        }
    }
    assert!(entries.len() <= size, "{} entries", entries.len());
    Table {
        name: format!("range_{}", feature.name()),
        size,
        is_exact: false,
        entries,
    }
}

/// From the sums of shares to the class: the first rule that matches, else the other class.
fn decide(model: &Model) -> Result<Table, Misfit> {
    let class = |name: &str| model.class_index(name).expect("checked on load");
    let number = |class: usize| u8::try_from(class).expect("at most 8");
    let trees = u32::try_from(model.packet_trees.len()).expect("at most 8");
    let largest = u32::from(SHARE_STEPS).saturating_mul(trees);
    let mut entries = Vec::new();
    let rules = &model.decision.rules;
    for (priority, rule) in rules.iter().enumerate() {
        let Some(least) = least_sum(largest, rule.score_at_least) else {
            continue;
        };
        for key in prefixes(least, u32::MAX, u32::BITS) {
            let mut keys = vec![Ternary::ANY; CLASSES];
            keys[class(&rule.class)] = key;
            entries.push(Entry {
                keys,
                priority,
                action: Action::SetClass(number(class(&rule.class))),
                note: format!("{}: at least {}", rule.class, rule.score_at_least),
            });
        }
    }
    entries.push(Entry {
        keys: vec![Ternary::ANY; CLASSES],
        priority: rules.len(),
        action: Action::SetClass(number(class(&model.decision.otherwise))),
        note: format!("{}: otherwise", model.decision.otherwise),
    });
    if entries.len() > RULES {
        return Err(Misfit::Rules(entries.len()));
    }
    Ok(Table {
        name: String::from("decide"),
        size: RULES,
        is_exact: false,
        entries,
    })
}

/// The smallest sum of shares, of at most `largest`, whose mean is at least `score`; divided as Strata divides.
fn least_sum(largest: u32, score: f64) -> Option<u32> {
    let reaches = |sum: u32| f64::from(sum) / f64::from(largest) >= score;
    let (mut low, mut high) = (0, largest);
    if !reaches(high) {
        return None;
    }
    while low < high {
        let middle = low.midpoint(high);
        if reaches(middle) {
            high = middle;
        } else {
            low = middle.saturating_add(1);
        }
    }
    Some(low)
}

/// From the class to what is kept.
fn granularity(model: &Model, granularities: &[Granularity]) -> Result<Table, Misfit> {
    let names = model.class_names();
    assert_eq!(
        names.len(),
        granularities.len(),
        "one for each class, and the last"
    );
    let mut entries = Vec::new();
    for (at, (name, granularity)) in names.iter().zip(granularities).enumerate() {
        let is_last = at.saturating_add(1) == names.len();
        let class = if is_last {
            UNCLASSIFIED
        } else {
            u8::try_from(at).expect("at most 8")
        };
        let (kind, port) = match (granularity.keep, granularity.sampling) {
            (Keep::Nothing, _) => (0, 0),
            (Keep::Header, None) => (1, 0),
            (Keep::Partial(PARTIAL_BYTES), None) => (2, 1),
            (Keep::Full, None) => (3, 2),
            _ => return Err(Misfit::Granularity(name.clone(), *granularity)),
        };
        entries.push(Entry {
            keys: vec![Ternary {
                value: class.into(),
                mask: 0xff,
            }],
            priority: 0,
            action: Action::Keep { kind, port },
            note: format!("{name}: {granularity}"),
        });
    }
    Ok(Table {
        name: String::from("granularity"),
        size: GRANULARITIES,
        is_exact: true,
        entries,
    })
}

impl Table {
    /// The entries as DPDK's tables read them, a line each.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for entry in &self.entries {
            let line = self.line(entry, &mut text);
            line.expect("a string takes everything");
        }
        text
    }

    fn line(&self, entry: &Entry, text: &mut String) -> fmt::Result {
        text.write_str("match")?;
        for key in &entry.keys {
            write!(text, " {:#x}", key.value)?;
            if !self.is_exact {
                write!(text, "/{:#x}", key.mask)?;
            }
        }
        if !self.is_exact {
            write!(text, " priority {}", entry.priority)?;
        }
        match entry.action {
            Action::Mark(marks) => arguments(text, "mark", 't', marks)?,
            Action::Leaf(shares) => arguments(text, "leaf", 's', shares.map(u64::from))?,
            Action::SetClass(class) => write!(text, " action set_class class {class:#x}")?,
            Action::Keep { kind, port } => {
                write!(text, " action keep kind {kind:#x} port {port:#x}")?;
            }
        }
        writeln!(text, " ; {}", entry.note)
    }
}

fn arguments<const N: usize>(
    text: &mut String,
    action: &str,
    letter: char,
    values: [u64; N],
) -> fmt::Result {
    write!(text, " action {action}")?;
    for (number, value) in values.iter().enumerate() {
        write!(text, " {letter}{number} {value:#x}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
