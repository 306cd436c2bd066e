//! The model file and everything that can be wrong with it.

mod explain;
mod known;
mod signs;

use std::collections::HashSet;
use std::{fmt, io};

use serde::{Deserialize, Serialize};
use strata_sketch::{Arithmetic, BITS_DEFAULT, Clock, Feature, Level, Sketch, TableSize};

pub use explain::{Condition, is_of_shadow, leaves_of_reason};
pub use known::Known;
pub(crate) use known::LeafPairs;
pub use signs::{Sign, Signs, kind_of};

/// Bounds of a model; larger ones are rejected.
const TREES_MAX: usize = 256;
pub(crate) const NODES_MAX: usize = 65_535;
const DEPTH_MAX: usize = 64;
const CLASSES_MAX: usize = 250;
/// Features of a model at most, and columns of a batch.
pub const FEATURES_MAX: usize = 64;
const BYTES_MAX: usize = 64 << 20;

/// A model as in its file: format `strata-model`, version 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Always `strata-model`.
    pub format: String,
    /// Always 1.
    pub version: u32,
    /// A short name, shown by `record` and `info`.
    pub name: String,
    /// What it was made for.
    #[serde(default)]
    pub description: String,
    /// Length of the sketches' window in ns. Features are meaningless without it.
    pub window_ns: u64,
    /// Exact, or as a switch computes (see [`Arithmetic`]).
    #[serde(default)]
    pub arithmetic: ModelArithmetic,
    /// Whether flows that share a bucket are told apart.
    #[serde(default, skip_serializing_if = "Buckets::is_voting")]
    pub buckets: Buckets,
    /// The classes, in the order of the numbers in leaves.
    pub classes: Vec<Class>,
    /// The features that trees refer to by index.
    pub features: Vec<FeatureUse>,
    /// Trees for packets whose flow has a bucket. May be empty: then
    /// `packet_trees` serve all packets.
    pub flow_trees: Vec<Tree>,
    /// Trees over packet-level features, for packets whose flow has no bucket
    /// (TitanLog §IV-B).
    pub packet_trees: Vec<Tree>,
    /// From scores to a class.
    pub decision: Decision,
    /// What the trees were trained on: a packet outside is unsure, whatever its leaves say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known: Option<Known>,
    /// How features and scores were distributed in training; see [`crate::Drift`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distributions: Option<Distributions>,
    /// How the model was made; not interpreted.
    #[serde(default)]
    pub training: serde_json::Value,
}

/// [`Arithmetic`] in a model file.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelArithmetic {
    /// Exact.
    #[default]
    Exact,
    /// As a switch computes.
    Switch {
        /// Relative error of averages.
        delta: f64,
    },
}

/// Whose packets a bucket counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Buckets {
    /// Those of one flow; others vote for its replacement.
    #[default]
    Voting,
    /// Those of all flows that map to it, as in the published switch program of TitanLog: for
    /// comparison.
    Shared,
}

impl Buckets {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
    fn is_voting(&self) -> bool {
        *self == Self::Voting
    }
}

/// One class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// The name that modes and policies use.
    pub name: String,
    /// Whether modes treat it as anomalous unless they name it.
    pub anomalous: bool,
}

/// One feature that the trees use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeatureUse {
    /// [`Feature::name`].
    pub name: String,
    /// [`Feature::unit`], so that a file says what its thresholds are.
    pub unit: String,
}

/// One decision tree; node 0 is its root.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tree {
    /// The nodes; children come after their parent.
    pub nodes: Vec<Node>,
}

/// A node: either a split (`feature`, `at_most`, `left`, `right`) or a leaf
/// (`classes`).
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Index into the model's features.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feature: Option<usize>,
    /// Values up to this go left, in the feature's unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
    /// The node for values at most the threshold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<usize>,
    /// The node for larger values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub right: Option<usize>,
    /// A leaf's share of each class, between 0 and 1, adding up to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes: Option<Vec<f64>>,
}

/// The first rule that matches gives the class; `otherwise` if none does. So
/// `[benign at least 0.98], otherwise anomalous` is the conservative mode of TitanLog §IX: benign
/// only when confident.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decision {
    /// Tried in order.
    pub rules: Vec<Rule>,
    /// The class if no rule matches.
    pub otherwise: String,
}

/// One rule of a [`Decision`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The class it gives.
    pub class: String,
    /// The smallest mean share over all trees, 0 to 1.
    pub score_at_least: f64,
}

/// Distributions in training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Distributions {
    /// Of features that the model uses.
    pub features: Vec<Distribution>,
    /// Of the anomaly score, from 0 to 1 in equal steps: shares of packets.
    pub scores: Vec<f64>,
}

/// The distribution of one feature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Distribution {
    /// [`Feature::name`].
    pub name: String,
    /// Upper ends of ranges, ascending, in the feature's unit.
    pub edges: Vec<f64>,
    /// Shares of packets by range; the last is of those above all edges.
    pub shares: Vec<f64>,
}

/// What is wrong with a model, and where.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// Not JSON, or not the fields of a model.
    #[error("not a model file: {0}")]
    Json(#[from] serde_json::Error),
    /// A field is out of bounds.
    #[error("model field `{field}`: {problem}")]
    Field {
        /// The field's path.
        field: String,
        /// What is wrong.
        problem: String,
    },
    /// A tree is invalid in this model.
    #[error("model `{forest}` tree {tree} node {node}: {problem}")]
    Node {
        /// `flow_trees` or `packet_trees`.
        forest: &'static str,
        /// Index of the tree.
        tree: usize,
        /// Index of the node.
        node: usize,
        /// What is wrong.
        problem: String,
    },
}

fn field(field: impl Into<String>, problem: impl fmt::Display) -> ModelError {
    ModelError::Field {
        field: field.into(),
        problem: problem.to_string(),
    }
}

/// The leaf that each tree ended in, as node numbers of the file.
pub type Leaves = Vec<u16>;

impl Model {
    /// Reads and checks a model file. Time and memory grow only with the file.
    ///
    /// # Errors
    ///
    /// [`ModelError`] names the line, the field, or the tree and node.
    pub fn from_json(bytes: &[u8]) -> Result<Self, ModelError> {
        if bytes.len() > BYTES_MAX {
            return Err(field("(file)", format!("larger than {BYTES_MAX} bytes")));
        }
        let model: Self = serde_json::from_slice(bytes)?;
        model.check()?;
        Ok(model)
    }

    /// The classes of a model file. Its features and trees are not looked at, so that a log gives
    /// its classes whatever version of Strata wrote it.
    ///
    /// # Errors
    ///
    /// If the file is not JSON, or does not name classes.
    pub fn classes_of(bytes: &[u8]) -> Result<Vec<Class>, ModelError> {
        #[derive(Deserialize)]
        struct Classes {
            classes: Vec<Class>,
        }
        let model: Classes = serde_json::from_slice(bytes)?;
        Ok(model.classes)
    }

    /// The model as JSON.
    ///
    /// # Panics
    ///
    /// Never: every field can be written.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a model has only plain fields")
    }

    /// The clock of this model's windows.
    #[must_use]
    pub fn clock(&self) -> Clock {
        Clock::new(self.window_ns)
    }

    /// Which arithmetic its sketches use.
    #[must_use]
    pub fn sketch_arithmetic(&self) -> Arithmetic {
        match self.arithmetic {
            ModelArithmetic::Exact => Arithmetic::Exact,
            ModelArithmetic::Switch { delta } => Arithmetic::Switch { delta },
        }
    }

    /// An empty sketch for this model, of this size. Where flows share buckets, features depend on
    /// how many buckets there are: then there are always the 2^16 of each layer that such models
    /// are trained with ([`BITS_DEFAULT`]).
    ///
    /// # Errors
    ///
    /// If the system refuses memory.
    pub fn new_sketch(&self, size: TableSize) -> io::Result<Sketch> {
        let of = |size| Sketch::growing(size, self.clock(), self.sketch_arithmetic());
        match self.buckets {
            Buckets::Voting => of(size),
            Buckets::Shared => Ok(of(TableSize::fixed(BITS_DEFAULT))?.with_shared_buckets()),
        }
    }

    /// The features that trees refer to, in order.
    ///
    /// # Panics
    ///
    /// If the model was not checked.
    #[must_use]
    pub fn feature_list(&self) -> Vec<Feature> {
        self.features
            .iter()
            .map(|f| Feature::by_name(&f.name).expect("checked on load"))
            .collect()
    }

    /// Whether the trees of a level ask for each feature, in the order of the list.
    #[must_use]
    pub fn asked(&self, level: Level) -> Vec<bool> {
        let mut asked = vec![false; self.features.len()];
        let nodes = self.trees(level).iter().flat_map(|tree| &tree.nodes);
        for feature in nodes.filter_map(|node| node.feature) {
            asked[feature] = true;
        }
        asked
    }

    /// The number of a class.
    #[must_use]
    pub fn class_index(&self, name: &str) -> Option<usize> {
        self.classes.iter().position(|c| c.name == name)
    }

    /// Names of the classes, by index, and last [`UNCLASSIFIED`](crate::UNCLASSIFIED).
    #[must_use]
    pub fn class_names(&self) -> Vec<String> {
        let names = self.classes.iter().map(|class| class.name.clone());
        names.chain([crate::UNCLASSIFIED.to_owned()]).collect()
    }

    /// The trees of a level.
    #[must_use]
    pub fn trees(&self, level: Level) -> &[Tree] {
        match level {
            Level::Flow => &self.flow_trees,
            Level::Packet => &self.packet_trees,
        }
    }

    fn check(&self) -> Result<(), ModelError> {
        if self.format != "strata-model" {
            return Err(field(
                "format",
                format!("'{}', expected 'strata-model'", self.format),
            ));
        }
        if self.version != 1 {
            let problem = format!("{} is not supported: this Strata reads 1", self.version);
            return Err(field("version", problem));
        }
        // A window of 10 days is longer than any use; the bound keeps ticks sane.
        if !(1_000..=864_000_000_000_000).contains(&self.window_ns) {
            return Err(field("window_ns", "must be from 1000 (1 us) to 10 days"));
        }
        if let ModelArithmetic::Switch { delta } = self.arithmetic
            && !(0.0001..=0.5).contains(&delta)
        {
            return Err(field(
                "arithmetic.switch.delta",
                "must be from 0.0001 to 0.5",
            ));
        }
        self.check_classes()?;
        self.check_features()?;
        self.check_decision()?;
        self.check_distributions()?;
        if self.packet_trees.is_empty() {
            return Err(field(
                "packet_trees",
                "empty: packets whose flow has no bucket need at least one tree",
            ));
        }
        self.check_forest("flow_trees", &self.flow_trees, Level::Flow)?;
        self.check_forest("packet_trees", &self.packet_trees, Level::Packet)?;
        self.check_known()
    }

    /// Leaves have been checked before.
    fn check_known(&self) -> Result<(), ModelError> {
        let Some(known) = &self.known else {
            return Ok(());
        };
        let both = [
            ("flow_trees", &known.flow_trees, &self.flow_trees),
            ("packet_trees", &known.packet_trees, &self.packet_trees),
        ];
        for (name, texts, trees) in both {
            LeafPairs::new(texts, trees)
                .map_err(|(pair, problem)| field(format!("known.{name}[{pair}]"), problem))?;
        }
        Ok(())
    }

    /// Which leaves of a level's trees were reached together in training, if the model says so.
    ///
    /// # Panics
    ///
    /// If the model was not checked.
    pub(crate) fn leaf_pairs(&self, level: Level) -> Option<LeafPairs> {
        let known = self.known.as_ref()?;
        let texts = match level {
            Level::Flow => &known.flow_trees,
            Level::Packet => &known.packet_trees,
        };
        LeafPairs::new(texts, self.trees(level)).expect("checked on load")
    }

    fn check_classes(&self) -> Result<(), ModelError> {
        if !(1..=CLASSES_MAX).contains(&self.classes.len()) {
            return Err(field("classes", format!("must be 1 to {CLASSES_MAX}")));
        }
        let mut names = HashSet::new();
        for (index, class) in self.classes.iter().enumerate() {
            let path = format!("classes[{index}].name");
            let name = class.name.as_str();
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
                return Err(field(path, "must be 1 to 64 letters, digits, - or _"));
            }
            if name == crate::UNCLASSIFIED {
                return Err(field(
                    path,
                    "is reserved for packets that are not dissected",
                ));
            }
            if !names.insert(name) {
                return Err(field(path, format!("'{name}' is listed twice")));
            }
        }
        Ok(())
    }

    fn check_features(&self) -> Result<(), ModelError> {
        if self.features.len() > FEATURES_MAX {
            return Err(field("features", format!("more than {FEATURES_MAX}")));
        }
        let mut names = HashSet::new();
        for (index, used) in self.features.iter().enumerate() {
            let Some(feature) = Feature::by_name(&used.name) else {
                let known: Vec<_> = Feature::ALL.iter().map(|f| f.name()).collect();
                let problem = format!("'{}' is not one of: {}", used.name, known.join(", "));
                return Err(field(format!("features[{index}].name"), problem));
            };
            if used.unit != feature.unit() {
                let problem = format!(
                    "'{}', but {} is in {}",
                    used.unit,
                    used.name,
                    feature.unit()
                );
                return Err(field(format!("features[{index}].unit"), problem));
            }
            if !names.insert(feature.name()) {
                let problem = format!("'{}' is listed twice", used.name);
                return Err(field(format!("features[{index}].name"), problem));
            }
        }
        Ok(())
    }

    fn check_decision(&self) -> Result<(), ModelError> {
        let known = |path: String, name: &str| {
            if self.class_index(name).is_some() {
                return Ok(());
            }
            Err(field(path, format!("'{name}' is not one of the classes")))
        };
        known("decision.otherwise".into(), &self.decision.otherwise)?;
        for (index, rule) in self.decision.rules.iter().enumerate() {
            known(format!("decision.rules[{index}].class"), &rule.class)?;
            if !(0.0..=1.0).contains(&rule.score_at_least) {
                let path = format!("decision.rules[{index}].score_at_least");
                return Err(field(path, "must be from 0 to 1"));
            }
        }
        Ok(())
    }

    fn check_distributions(&self) -> Result<(), ModelError> {
        let Some(known) = &self.distributions else {
            return Ok(());
        };
        if !(1..=100).contains(&known.scores.len()) {
            return Err(field("distributions.scores", "must be 1 to 100 shares"));
        }
        for (index, of) in known.features.iter().enumerate() {
            let path = format!("distributions.features[{index}]");
            if !self.features.iter().any(|used| used.name == of.name) {
                let problem = format!("'{}' is not a feature of this model", of.name);
                return Err(field(format!("{path}.name"), problem));
            }
            if of.edges.len() > 100 || of.shares.len() != of.edges.len() + 1 {
                let problem = "must have at most 100 edges, and one share more than edges";
                return Err(field(path, problem));
            }
        }
        Ok(())
    }

    fn check_forest(
        &self,
        forest: &'static str,
        trees: &[Tree],
        level: Level,
    ) -> Result<(), ModelError> {
        if trees.len() > TREES_MAX {
            return Err(field(forest, format!("more than {TREES_MAX} trees")));
        }
        for (index, tree) in trees.iter().enumerate() {
            self.check_tree(tree, level)
                .map_err(|(node, problem)| ModelError::Node {
                    forest,
                    tree: index,
                    node,
                    problem,
                })?;
        }
        Ok(())
    }

    /// Every node is reached exactly once, by a parent placed before it.
    fn check_tree(&self, tree: &Tree, level: Level) -> Result<(), (usize, String)> {
        let count = tree.nodes.len();
        if !(1..=NODES_MAX).contains(&count) {
            return Err((
                0,
                format!("a tree must have 1 to {NODES_MAX} nodes, but this one has {count}"),
            ));
        }
        let mut depth = vec![None; count];
        depth[0] = Some(0_usize);
        for (index, node) in tree.nodes.iter().enumerate() {
            let fail = |problem: String| Err((index, problem));
            let Some(own_depth) = depth[index] else {
                return fail("no earlier node leads here".into());
            };
            if own_depth > DEPTH_MAX {
                return fail(format!("deeper than {DEPTH_MAX}"));
            }
            match (
                node.feature,
                node.at_most,
                node.left,
                node.right,
                &node.classes,
            ) {
                (None, None, None, None, Some(shares)) => self.check_leaf(shares).or_else(fail)?,
                (Some(feature), Some(at_most), Some(left), Some(right), None) => {
                    let Some(used) = self.features.get(feature) else {
                        let known = self.features.len();
                        return fail(format!("there is no feature {feature}, only {known}"));
                    };
                    if level == Level::Packet
                        && Feature::by_name(&used.name).map(Feature::level) == Some(Level::Flow)
                    {
                        return fail(format!("'{}' is not a packet-level feature", used.name));
                    }
                    if !at_most.is_finite() {
                        return fail("at_most is not a number".into());
                    }
                    for child in [left, right] {
                        if child <= index || child >= count {
                            return fail(format!(
                                "child {child} must be after node {index} and below {count}"
                            ));
                        }
                        if depth[child].is_some() {
                            return fail(format!("child {child} already has a parent"));
                        }
                        depth[child] = Some(own_depth + 1);
                    }
                }
                _ => {
                    return fail(
                        "a split has feature, at_most, left and right; a leaf has classes only"
                            .into(),
                    );
                }
            }
        }
        Ok(())
    }

    fn check_leaf(&self, shares: &[f64]) -> Result<(), String> {
        if shares.len() != self.classes.len() {
            let (got, want) = (shares.len(), self.classes.len());
            return Err(format!("{got} shares for {want} classes"));
        }
        if !shares.iter().all(|share| (0.0..=1.0).contains(share)) {
            return Err("a share is not between 0 and 1".into());
        }
        let sum: f64 = shares.iter().sum();
        if (sum - 1.0).abs() > 0.001 {
            return Err(format!("shares add up to {sum}, not 1"));
        }
        Ok(())
    }

    /// The leaves that a packet reaches, tree by tree and node by node: the
    /// naive twin of [`crate::Forest`]. `values` are integers of the model's
    /// features (see [`Feature::value`]).
    ///
    /// # Panics
    ///
    /// If the model was not checked.
    #[must_use]
    pub fn leaves_naive(&self, level: Level, values: &[u32]) -> Leaves {
        let clock = self.clock();
        let features = self.feature_list();
        let mut leaves = Leaves::new();
        for tree in self.trees(level) {
            let mut at = 0;
            while let (Some(f), Some(at_most)) = (tree.nodes[at].feature, tree.nodes[at].at_most) {
                let goes_left = features[f]
                    .encode(at_most, clock)
                    .is_some_and(|limit| values[f] <= limit);
                let child = if goes_left {
                    tree.nodes[at].left
                } else {
                    tree.nodes[at].right
                };
                at = child.expect("checked on load");
            }
            leaves.push(u16::try_from(at).expect("checked on load"));
        }
        leaves
    }
}
