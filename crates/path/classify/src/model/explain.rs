//! Why a forest decided as it did: the conditions on the paths to its leaves.

use std::collections::BTreeMap;
use std::fmt;

use strata_sketch::{Feature, Level};

use super::{Distribution, Model, Tree};

/// Values above the first and at most the second, where given.
pub(super) type Bounds = (Option<f64>, Option<f64>);

/// A feature on the path to a leaf, with the tightest bounds there.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// The feature's name in the model.
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// Values are larger than this.
    pub above: Option<f64>,
    /// Values are no larger than this.
    pub at_most: Option<f64>,
}

impl Condition {
    /// The feature; `None` if this version does not know it.
    #[must_use]
    pub fn feature(&self) -> Option<Feature> {
        Feature::by_name(&self.name)
    }

    /// A value of the feature as people write it.
    #[must_use]
    pub fn quantity(&self, value: f64) -> String {
        quantity(value, &self.unit)
    }

    /// The same without its unit.
    pub(super) fn number(&self, value: f64) -> String {
        quantity(value, "number")
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match (self.above, self.at_most) {
            (Some(above), Some(below)) => {
                let (above, below) = (self.quantity(above), self.quantity(below));
                write!(f, "{above} < {name} <= {below}")
            }
            (Some(above), None) => write!(f, "{name} > {}", self.quantity(above)),
            (None, Some(below)) => write!(f, "{name} <= {}", self.quantity(below)),
            (None, None) => f.write_str(name),
        }
    }
}

impl Model {
    /// The conditions on the path to a leaf, by feature; `None` if there is no such tree.
    #[must_use]
    pub fn conditions(&self, level: Level, tree: usize, leaf: u16) -> Option<Vec<Condition>> {
        let tree = self.trees(level).get(tree)?;
        let mut bounds = BTreeMap::new();
        tree.walk_up(leaf, &mut bounds, |_, _, _| {});
        let named = bounds.into_iter();
        let named = named.map(|(feature, bounds)| self.condition(feature, bounds));
        Some(named.collect())
    }

    /// A feature of the model within bounds.
    pub(super) fn condition(&self, feature: usize, (above, at_most): Bounds) -> Condition {
        let used = self.features.get(feature);
        let (name, unit) = used.map_or(("?", ""), |f| (f.name.as_str(), f.unit.as_str()));
        Condition {
            name: name.to_owned(),
            unit: unit.to_owned(),
            above,
            at_most,
        }
    }

    /// The distribution of a feature in training.
    pub(super) fn distribution(&self, feature: &str) -> Option<&Distribution> {
        let mut known = self.distributions.as_ref()?.features.iter();
        known.find(|one| one.name == feature)
    }

    /// The conditions on the path to a leaf, in plain English.
    #[must_use]
    pub fn explain(&self, level: Level, tree: usize, leaf: u16) -> String {
        let Some(conditions) = self.conditions(level, tree, leaf) else {
            return String::from("no such tree");
        };
        if conditions.is_empty() {
            return String::from("always");
        }
        let words: Vec<String> = conditions.iter().map(ToString::to_string).collect();
        words.join(" and ")
    }

    /// Trees with the leaf of each and the share of a class there, those that vote most clearly for
    /// it first.
    #[must_use]
    pub fn clearest(&self, level: Level, class: &str, leaves: &[u16]) -> Vec<(usize, u16, f64)> {
        let index = self.class_index(class);
        let share = |tree: usize, leaf: u16| {
            let nodes = self.trees(level).get(tree).map(|tree| &tree.nodes);
            let classes = nodes.and_then(|nodes| nodes.get(usize::from(leaf))?.classes.as_ref());
            let share = classes.and_then(|classes| classes.get(index?));
            share.copied().unwrap_or(0.0)
        };
        let trees = leaves.iter().copied().enumerate();
        let mut trees: Vec<_> = trees.map(|(n, leaf)| (n, leaf, share(n, leaf))).collect();
        trees.sort_by(|a, b| b.2.total_cmp(&a.2));
        trees
    }
}

impl Tree {
    /// From a leaf to the root: tightens the bounds of features, and says of each split its feature,
    /// its node and the node that follows it.
    pub(super) fn walk_up(
        &self,
        leaf: u16,
        bounds: &mut BTreeMap<usize, Bounds>,
        mut split: impl FnMut(usize, usize, usize),
    ) {
        let mut at = usize::from(leaf);
        for (index, node) in self.nodes.iter().enumerate().rev() {
            let (Some(feature), Some(at_most)) = (node.feature, node.at_most) else {
                continue;
            };
            if node.left == Some(at) {
                let (_, below) = bounds.entry(feature).or_insert((None, None));
                *below = Some(below.map_or(at_most, |known| known.min(at_most)));
            } else if node.right == Some(at) {
                let (above, _) = bounds.entry(feature).or_insert((None, None));
                *above = Some(above.map_or(at_most, |known| known.max(at_most)));
            } else {
                continue;
            }
            split(feature, index, at);
            at = index;
        }
    }
}

/// Before the trees of a reason that are those of a shadow model.
const OF_SHADOW: &str = "shadow-";

/// Whether a reason names trees of the shadow model of its recording, which was promoted.
#[must_use]
pub fn is_of_shadow(reason: &str) -> bool {
    reason.starts_with(OF_SHADOW)
}

/// The trees that a forest's reason names, and the leaf of each; `None` if the forest did not decide.
/// Which model has these trees: [`is_of_shadow`].
#[must_use]
pub fn leaves_of_reason(reason: &str) -> Option<(Level, Vec<u16>)> {
    let reason = reason.strip_prefix(OF_SHADOW).unwrap_or(reason);
    let (trees, leaves) = reason.split_once(':').unwrap_or((reason, ""));
    let level = match trees {
        "packet-trees" => Level::Packet,
        "flow-trees" => Level::Flow,
        _ => return None,
    };
    let leaves = leaves.split(',').filter_map(|leaf| leaf.parse().ok());
    Some((level, leaves.collect()))
}

/// A threshold as people write it: times in the unit that suits.
pub(super) fn quantity(value: f64, unit: &str) -> String {
    let short = |value: f64| {
        let text = format!("{value:.3}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    match unit {
        "ns" if value >= 1e9 => format!("{} s", short(value / 1e9)),
        "ns" if value >= 1e6 => format!("{} ms", short(value / 1e6)),
        "ns" if value >= 1e3 => format!("{} us", short(value / 1e3)),
        "us^2" if value >= 1e6 => format!("{} ms^2", short(value / 1e6)),
        "number" | "bits" | "0 or 1" | "packets" => short(value),
        unit => format!("{} {unit}", short(value)),
    }
}
