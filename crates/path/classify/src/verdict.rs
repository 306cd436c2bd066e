//! From leaves to a class: each combination of leaves is decided once.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use strata_sketch::Level;

use crate::forest::{LANES, RowForest};
use crate::model::{LeafPairs, Leaves, Model, Tree};

/// The class of packets that are not dissected, which no model names.
pub const UNCLASSIFIED: &str = "unclassified";

/// Combinations that are told apart; those beyond share one verdict per class, level and range of
/// anomaly, without leaves.
const COMBINATIONS_MAX: usize = 36_000;
/// Verdicts that are shared: of two levels and at most 250 classes, so 8 ranges of anomaly or more.
const SHARED_MAX: usize = 4_000;
/// With fewer classes, there are more ranges of anomaly, but not more than these.
const RANGES_MAX: usize = 64;
/// The most verdicts there can be: those, and one for what is not dissected. A record has numbers for
/// more, for who else decided.
pub const VERDICTS_MAX: usize = COMBINATIONS_MAX + 1 + SHARED_MAX;
/// Direct-mapped caches in front of the table: of 128 KiB for leaves, of 80 KiB for keys.
const CACHE_SLOTS: usize = 8_192;
/// A leaf's share of a class in fixed point.
const SHARE_ONE: u32 = 65_535;

/// The least anomaly per doubt: in the middle for what is quite unlike the training, since that may
/// be anything.
const DOUBT_WEIGHT: f64 = 0.5;

/// A verdict by its number within this run.
pub type VerdictId = u16;

/// As many as there are numbers of verdicts.
const IDS: usize = 1 << VerdictId::BITS;

/// By number of a verdict: its class, and the step of its score ([`Verdicts::class_and_step`]).
pub type ClassesAndSteps = [[u8; 2]; IDS];

/// Steps of scores ([`score_step`]).
pub const SCORE_STEPS: u8 = 128;
/// Added to the step of a verdict whose class is anomalous ([`Verdicts::class_and_step`]).
pub const STEP_ANOMALOUS: u8 = 128;
/// Odds are told apart from `exp(-9.2)` to `exp(9.2)`.
const LOG_ODDS_MAX: f64 = 9.2;

/// The step of an anomaly score, in 1/65 535: steps of equal size in the logarithm of its odds, so
/// that scores near 0 and 1 are told apart.
#[must_use]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub fn score_step(anomaly: u16) -> u8 {
    let score = (f64::from(anomaly) / f64::from(u16::MAX)).clamp(1e-6, 1.0 - 1e-6);
    let odds = (score / (1.0 - score))
        .ln()
        .clamp(-LOG_ODDS_MAX, LOG_ODDS_MAX);
    let place = (odds + LOG_ODDS_MAX) / (2.0 * LOG_ODDS_MAX);
    (place * f64::from(SCORE_STEPS - 1)).round() as u8
}

/// The score, from 0 to 1, in the middle of a step.
#[must_use]
pub fn score_of_step(step: u8) -> f64 {
    let place = f64::from(step.min(SCORE_STEPS - 1)) / f64::from(SCORE_STEPS - 1);
    let odds = (place * 2.0 - 1.0) * LOG_ODDS_MAX;
    1.0 / (1.0 + (-odds).exp())
}

/// The class of a packet, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Index of the class; the number of classes for [`UNCLASSIFIED`].
    pub class: u8,
    /// The class's mean share over the trees, in 1/65 535.
    pub score: u16,
    /// The mean share of all anomalous classes, but at least half of `doubt`, in 1/65 535.
    pub anomaly: u16,
    /// The share of pairs of the leaves that no packet in training has reached together, in
    /// 1/65 535; 0 if the model does not say.
    pub doubt: u16,
    /// Which trees decided; `None` if the packet was not dissected.
    pub level: Option<Level>,
    /// The leaf of each tree as its node number in the model file; empty if there were too many
    /// combinations to tell them apart.
    pub leaves: Leaves,
}

struct Shares {
    /// `shares[tree][file node][class]`, empty for splits.
    trees: Vec<Vec<Vec<u32>>>,
    /// Bits that hold any node number.
    leaf_bits: u32,
}

impl Shares {
    /// Whether all leaves fit in a key, together with the level: a key then stands for one
    /// combination. Else they are hashed, and a hit is compared.
    #[inline]
    fn is_exact(&self) -> bool {
        self.leaf_bits as usize * self.trees.len() <= 62
    }
}

/// Verdicts by keys that stand for one combination of leaves each.
struct KeyCache {
    keys: Box<[u64; CACHE_SLOTS]>,
    verdicts: Box<[VerdictId; CACHE_SLOTS]>,
    /// All of them.
    all: HashMap<u64, VerdictId, RandomState>,
}

impl KeyCache {
    /// Without any: each slot has the key of another one.
    fn new() -> Self {
        let mut keys = Box::new([0; CACHE_SLOTS]);
        keys[cache_slot(0)] = 1;
        debug_assert_ne!(cache_slot(0), cache_slot(1));
        Self {
            keys,
            verdicts: Box::new([0; CACHE_SLOTS]),
            all: HashMap::default(),
        }
    }
}

/// The slot of a key in a direct-mapped cache.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "13 bits")]
fn cache_slot(key: u64) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 51) as usize % CACHE_SLOTS
}

/// All verdicts of a run. Memory: at most 36,000 combinations of leaves.
pub struct Verdicts {
    table: Vec<Verdict>,
    /// `classes_of[id]` is the class of `table[id]`, and its score's step, in few lines of cache; as
    /// long as there can be ids, so that none has to be checked.
    classes_of: Box<ClassesAndSteps>,
    by_leaves: [HashMap<Leaves, VerdictId, RandomState>; 2],
    cache: Vec<(u64, VerdictId)>,
    /// By level, for keys of a [`RowForest`].
    by_key: [KeyCache; 2],
    /// The leaves being looked up; kept, so that nothing is allocated.
    sought: Leaves,
    shares: [Shares; 2],
    pairs: [Option<LeafPairs>; 2],
    /// Whether doubt counts against ordinary classes.
    doubt_decides: bool,
    rules: Vec<(usize, f64)>,
    otherwise: usize,
    /// By class.
    anomalous: Vec<bool>,
    classes: usize,
    /// By class, level and range of anomaly.
    overflow: HashMap<(u8, usize, usize), VerdictId>,
}

impl std::fmt::Debug for Verdicts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Verdicts")
            .field("known", &self.table.len())
            .finish_non_exhaustive()
    }
}

fn slot_of(level: Level) -> usize {
    match level {
        Level::Packet => 0,
        Level::Flow => 1,
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn shares_of(trees: &[Tree]) -> Shares {
    let quantise = |share: &f64| (share * f64::from(SHARE_ONE)).round() as u32;
    let of_tree = |tree: &Tree| {
        let nodes = tree.nodes.iter();
        nodes
            .map(|node| node.classes.iter().flatten().map(quantise).collect())
            .collect()
    };
    let bits_of = |tree: &Tree| usize::BITS - tree.nodes.len().leading_zeros();
    Shares {
        trees: trees.iter().map(of_tree).collect(),
        // None without trees: a key is then empty.
        leaf_bits: trees.iter().map(bits_of).fold(0, u32::max),
    }
}

impl Verdicts {
    /// Only [`Verdicts::UNCLASSIFIED_ID`] so far.
    ///
    /// # Panics
    ///
    /// If the model was not checked.
    #[must_use]
    pub fn new(model: &Model) -> Self {
        let index = |name: &str| model.class_index(name).expect("checked on load");
        let rules = model.decision.rules.iter();
        let classes = model.classes.len();
        let unclassified = u8::try_from(classes).expect("checked on load");
        let classes_of = vec![[0; 2]; IDS].into_boxed_slice();
        let mut classes_of: Box<ClassesAndSteps> = classes_of.try_into().expect("as many");
        classes_of[0] = [unclassified, STEP_ANOMALOUS | score_step(u16::MAX / 2)];
        Self {
            // A packet that nothing is known of is neither ordinary nor unusual.
            classes_of,
            table: vec![Verdict {
                class: unclassified,
                score: 0,
                anomaly: 0,
                doubt: 0,
                level: None,
                leaves: Leaves::new(),
            }],
            by_leaves: Default::default(),
            cache: vec![(0, 0); CACHE_SLOTS],
            by_key: [KeyCache::new(), KeyCache::new()],
            sought: Leaves::new(),
            shares: [shares_of(&model.packet_trees), shares_of(&model.flow_trees)],
            pairs: [Level::Packet, Level::Flow].map(|level| model.leaf_pairs(level)),
            doubt_decides: model.known.as_ref().is_some_and(|known| known.decides),
            rules: rules.map(|r| (index(&r.class), r.score_at_least)).collect(),
            otherwise: index(&model.decision.otherwise),
            anomalous: model.classes.iter().map(|class| class.anomalous).collect(),
            classes,
            overflow: HashMap::new(),
        }
    }

    /// The verdict of packets that are not dissected.
    pub const UNCLASSIFIED_ID: VerdictId = 0;

    /// A verdict by its number.
    #[must_use]
    pub fn get(&self, id: VerdictId) -> &Verdict {
        &self.table[usize::from(id)]
    }

    /// The class of a verdict.
    #[inline]
    #[must_use]
    pub fn class(&self, id: VerdictId) -> u8 {
        self.classes_of[usize::from(id)][0]
    }

    /// The class of a verdict, and the step of its anomaly score; [`STEP_ANOMALOUS`] is set if the
    /// class is anomalous, as packets that are not dissected are: their step is that of 0.5.
    #[inline]
    #[must_use]
    pub fn class_and_step(&self, id: VerdictId) -> [u8; 2] {
        self.classes_of[usize::from(id)]
    }

    /// [`Verdicts::class_and_step`] of all verdicts, by number.
    #[inline]
    #[must_use]
    pub fn classes_and_steps(&self) -> &ClassesAndSteps {
        &self.classes_of
    }

    /// Whether each class is anomalous, and last whether what is not dissected is: as such it is
    /// treated.
    pub fn anomalous(&self) -> impl Iterator<Item = bool> {
        self.anomalous.iter().copied().chain([true])
    }

    /// The mean share of all anomalous classes of a verdict, from 0 to 1.
    #[must_use]
    pub fn anomaly(&self, id: VerdictId) -> f64 {
        f64::from(self.get(id).anomaly) / f64::from(u16::MAX)
    }

    /// All verdicts so far, by number.
    #[must_use]
    pub fn all(&self) -> &[Verdict] {
        &self.table
    }

    /// The keys by which [`Verdicts::find`] recognises the leaves of the first lanes, as many as
    /// `keys` has places.
    ///
    /// # Panics
    ///
    /// If there are more than [`LANES`] places.
    #[inline(always)]
    pub fn keys(&self, level: Level, leaves: &[[u16; LANES]], keys: &mut [u64]) {
        assert!(keys.len() <= LANES);
        let slot = slot_of(level);
        let leaf_bits = self.shares[slot].leaf_bits;
        let exact = self.shares[slot].is_exact();
        keys.fill(1);
        // Row by row, so that several packets are processed at once.
        for row in leaves {
            for (key, &leaf) in keys.iter_mut().zip(row) {
                *key = if exact {
                    *key << leaf_bits | u64::from(leaf)
                } else {
                    (key.rotate_left(5) ^ u64::from(leaf)).wrapping_mul(0x517c_c1b7_2722_0a95)
                };
            }
        }
        for key in keys {
            // Levels differ in tree count and bits: the last bit keeps them apart.
            *key = *key << 1 | slot as u64;
        }
    }

    /// The level that a key belongs to.
    #[inline]
    #[must_use]
    pub fn level_of(key: u64) -> Level {
        if key & 1 == slot_of(Level::Flow) as u64 {
            Level::Flow
        } else {
            Level::Packet
        }
    }

    /// The verdict on a packet by the key of its leaves, which are those of `lane`. Numbers are
    /// given in the order of calls: call it in the order of arrival, so that they do not depend on
    /// how packets were batched. Allocates only for a combination of leaves that is new.
    #[inline]
    pub fn find(
        &mut self,
        level: Level,
        key: u64,
        leaves: &[[u16; LANES]],
        lane: usize,
    ) -> VerdictId {
        let place = cache_slot(key);
        let (cached, known) = self.cache[place];
        let exact = self.shares[slot_of(level)].is_exact();
        if cached == key && (exact || self.is_known(known, level, leaves, lane)) {
            return known;
        }
        let found = self.look_up(level, leaves, lane);
        self.cache[place] = (key, found);
        found
    }

    /// The verdict in the cache's slot of a key, and 0 if it is the key's own.
    #[inline(always)]
    #[must_use]
    pub fn probe_key(&self, level: Level, key: u64) -> (VerdictId, u64) {
        let cache = &self.by_key[slot_of(level)];
        let slot = cache_slot(key);
        (cache.verdicts[slot], cache.keys[slot] ^ key)
    }

    /// The verdict by a key that was not in the cache. Numbers are given in the order of calls, as by
    /// [`Verdicts::find`].
    #[cold]
    pub fn learn_key(&mut self, level: Level, key: u64, forest: &RowForest) -> VerdictId {
        let known = self.by_key[slot_of(level)].all.get(&key).copied();
        let found = known.unwrap_or_else(|| {
            forest.leaves(key, &mut self.sought);
            self.look_up_sought(level)
        });
        let (cache, slot) = (&mut self.by_key[slot_of(level)], cache_slot(key));
        if known.is_none() && cache.all.len() < COMBINATIONS_MAX {
            cache.all.insert(key, found);
        }
        cache.keys[slot] = key;
        cache.verdicts[slot] = found;
        found
    }

    fn is_known(&self, id: VerdictId, level: Level, leaves: &[[u16; LANES]], lane: usize) -> bool {
        let verdict = &self.table[usize::from(id)];
        let mut rows = verdict.leaves.iter().zip(leaves);
        verdict.level == Some(level)
            && verdict.leaves.len() == leaves.len()
            && rows.all(|(known, row)| *known == row[lane])
    }

    #[cold]
    fn look_up(&mut self, level: Level, rows: &[[u16; LANES]], lane: usize) -> VerdictId {
        self.sought.clear();
        self.sought.extend(rows.iter().map(|row| row[lane]));
        self.look_up_sought(level)
    }

    /// The verdict on the leaves in `sought`.
    fn look_up_sought(&mut self, level: Level) -> VerdictId {
        let slot = slot_of(level);
        if let Some(&id) = self.by_leaves[slot].get(&self.sought) {
            return id;
        }
        let leaves = self.sought.clone();
        let mut verdict = self.judge(level, &leaves);
        let full = self.table.len() >= COMBINATIONS_MAX;
        let shared = (verdict.class, slot, self.range_of(verdict.anomaly));
        if full {
            if let Some(&id) = self.overflow.get(&shared) {
                return id;
            }
            verdict.leaves.clear();
        }
        // At most `SHARED_MAX` verdicts come after the table is full.
        let id = VerdictId::try_from(self.table.len()).expect("the table is bounded");
        if full {
            self.overflow.insert(shared, id);
        } else {
            self.by_leaves[slot].insert(leaves, id);
        }
        let is_anomalous = self.anomalous[usize::from(verdict.class)];
        let flag = if is_anomalous { STEP_ANOMALOUS } else { 0 };
        let step = score_step(verdict.anomaly) | flag;
        self.classes_of[self.table.len()] = [verdict.class, step];
        self.table.push(verdict);
        id
    }

    /// The range of anomaly in which verdicts are shared.
    fn range_of(&self, anomaly: u16) -> usize {
        let ranges = (SHARED_MAX / (2 * self.classes)).min(RANGES_MAX);
        usize::from(anomaly) * ranges / (usize::from(u16::MAX) + 1)
    }

    /// The mean share of each class over the leaves of a combination.
    fn scores(&self, level: Level, leaves: &[u16]) -> Vec<f64> {
        let shares = &self.shares[slot_of(level)];
        let mut sums = vec![0_u32; self.classes];
        for (tree, &leaf) in shares.trees.iter().zip(leaves) {
            for (sum, share) in sums.iter_mut().zip(&tree[usize::from(leaf)]) {
                *sum += share;
            }
        }
        let trees = u32::try_from(leaves.len()).expect("a model has at most 256 trees");
        let scale = f64::from(SHARE_ONE) * f64::from(trees);
        sums.into_iter().map(|sum| f64::from(sum) / scale).collect()
    }

    /// The share of pairs of these leaves that no packet in training has reached together.
    #[allow(clippy::cast_precision_loss, reason = "at most 32,640 pairs")]
    fn doubt(&self, level: Level, leaves: &[u16]) -> f64 {
        let Some(pairs) = &self.pairs[slot_of(level)] else {
            return 0.0;
        };
        match pairs.unmet(leaves) {
            (_, 0) => 0.0,
            (unmet, all) => unmet as f64 / all as f64,
        }
    }

    /// Class and score of a combination of leaves.
    ///
    /// # Panics
    ///
    /// If a leaf is not a node of its tree.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn judge(&self, level: Level, leaves: &[u16]) -> Verdict {
        let scores = self.scores(level, leaves);
        let doubt = self.doubt(level, leaves);
        let weight = |class: usize| match self.doubt_decides && !self.anomalous[class] {
            true => scores[class] * (1.0 - doubt),
            false => scores[class],
        };
        let met = self
            .rules
            .iter()
            .find(|(class, least)| weight(*class) >= *least);
        let class = met.map_or(self.otherwise, |(class, _)| *class);
        let of_anomalous = scores.iter().zip(&self.anomalous).filter(|(_, a)| **a);
        let anomaly: f64 = of_anomalous.map(|(score, _)| score).sum();
        let raised = anomaly.max(doubt * DOUBT_WEIGHT);
        let in_steps = |share: f64| (share * f64::from(SHARE_ONE)).round() as u16;
        Verdict {
            class: u8::try_from(class).expect("checked on load"),
            score: in_steps(scores[class]),
            anomaly: in_steps(raised),
            doubt: in_steps(doubt),
            level: Some(level),
            leaves: leaves.to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_grow_with_the_score_and_tell_small_ones_apart() {
        let steps: Vec<u8> = (0..=u16::MAX).map(score_step).collect();
        assert!(steps.is_sorted());
        assert_eq!(
            (steps[0], steps[usize::from(u16::MAX)]),
            (0, SCORE_STEPS - 1)
        );
        // 0.003 is not 0.001, nor 0.999 0.997.
        assert!(steps[196] > steps[65] + 5 && steps[65_470] > steps[65_339] + 5);
        for step in 0..SCORE_STEPS {
            let score = score_of_step(step);
            assert!((0.0..=1.0).contains(&score));
        }
        assert!((score_of_step(score_step(u16::MAX / 2)) - 0.5).abs() < 0.04);
    }
}
