//! The batch forest compared with its naive twin, and every way a model can be wrong.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail loudly too")]

use proptest::prelude::*;
use serde_json::{Value, json};
use strata_classify::{
    Class, Columns, Decision, Distribution, Distributions, FEATURES_MAX, FeatureUse, Forest,
    Kernel, Known, LANES, Model, Node, RankRows, RowForest, Rule, Signs, Split, Tree, Verdicts,
    kind_of,
};
use strata_sketch::{Feature, Level};
use strata_wire::wide::{Simd, WIDE};

fn used(feature: Feature) -> FeatureUse {
    FeatureUse {
        name: feature.name().into(),
        unit: feature.unit().into(),
    }
}

fn leaf(benign: f64) -> Node {
    Node {
        classes: Some(vec![benign, 1.0 - benign]),
        ..Node::default()
    }
}

fn model(flow_trees: Vec<Tree>, packet_trees: Vec<Tree>) -> Model {
    let class = |name: &str, anomalous| Class {
        name: name.into(),
        anomalous,
    };
    Model {
        format: "strata-model".into(),
        version: 1,
        name: "test".into(),
        description: String::new(),
        window_ns: 10_000_000,
        arithmetic: Default::default(),
        buckets: Default::default(),
        classes: vec![class("benign", false), class("anomalous", true)],
        features: [
            Feature::Size,
            Feature::TcpFlags,
            Feature::SizeAvg,
            Feature::SizeVar,
        ]
        .map(used)
        .to_vec(),
        flow_trees,
        packet_trees,
        decision: Decision {
            rules: vec![Rule {
                class: "benign".into(),
                score_at_least: 0.75,
            }],
            otherwise: "anomalous".into(),
        },
        known: None,
        distributions: None,
        training: Value::Null,
    }
}

/// Deepest random tree: below the loader's limit.
const DEEPEST: usize = 60;

/// A random tree: splits until the depth is used up or chance picks a leaf.
fn tree(features: usize) -> impl Strategy<Value = Tree> {
    tree_of_depth(features, DEEPEST, -5.0..3_000.0_f64)
}

fn tree_of_depth(
    features: usize,
    deepest: usize,
    thresholds: impl Strategy<Value = f64>,
) -> impl Strategy<Value = Tree> {
    let step = (any::<bool>(), 0..features, thresholds, 0.0..=1.0_f64);
    prop::collection::vec(step, 1..500).prop_map(move |steps| {
        let mut nodes = vec![Node::default()];
        let mut open = vec![(0, 0)];
        for (splits, feature, at_most, share) in steps {
            let Some((at, depth)) = open.pop() else { break };
            if splits && depth < deepest {
                let left = nodes.len();
                nodes[at] = Node {
                    feature: Some(feature),
                    at_most: Some(at_most),
                    left: Some(left),
                    right: Some(left + 1),
                    classes: None,
                };
                nodes.extend([Node::default(), Node::default()]);
                open.insert(0, (left, depth + 1));
                open.push((left + 1, depth + 1));
            } else {
                nodes[at] = leaf(share);
            }
        }
        for (at, _) in open {
            nodes[at] = leaf(0.5);
        }
        Tree { nodes }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A batch of several blocks, some not full; thresholds of all widths, and values next to them.
    #[test]
    fn rows_of_bits_reach_the_leaves_of_the_naive_walk(
        trees in prop::collection::vec(
            tree_of_depth(4, 8, prop_oneof![
                -5.0..300.0_f64, 65_500.0..65_600.0_f64, 0.0..16_777_216.0_f64,
                prop::sample::select(vec![253.0, 254.0, 255.0, 65_533.0, 65_534.0, 65_535.0, 4_294_967_295.0]),
            ]),
            0..=8,
        ),
        values in prop::collection::vec(
            prop::array::uniform4(prop_oneof![
                0_u32..300, 65_500_u32..65_600, any::<u32>(),
                prop::sample::select(vec![254_u32, 255, 256, 65_534, 65_535, 65_536, u32::MAX]),
            ]),
            1..=WIDE,
        ),
    ) {
        let model = model(trees, vec![Tree { nodes: vec![leaf(1.0)] }]);
        let model = Model::from_json(model.to_json().as_bytes()).unwrap();
        for simd in Simd::available() {
            let mut forest = RowForest::new(&model, Level::Flow, simd).expect("trees that fit");
            for (block, values) in values.chunks(LANES).enumerate() {
                let mut columns: Columns = [0; 64 * LANES];
                for (lane, values) in values.iter().enumerate() {
                    for (column, value) in values.iter().enumerate() {
                        columns[column * LANES + lane] = *value;
                    }
                }
                forest.compare(&columns, block);
            }
            forest.find_keys();
            for (block, values) in values.chunks(LANES).enumerate() {
                let mut keys = vec![None; values.len()];
                forest.each_key(block, values.len(), |place, key| keys[place] = Some(key));
                for (key, values) in keys.into_iter().zip(values) {
                    let mut leaves = Vec::new();
                    forest.leaves(key.expect("each packet has a key"), &mut leaves);
                    prop_assert_eq!(leaves, model.leaves_naive(Level::Flow, values));
                }
            }
        }
    }
}

#[test]
fn a_forest_with_more_heights_than_a_key_has_bits_has_no_rows() {
    let chain = |splits: usize| {
        let mut nodes = Vec::new();
        for n in 0..splits {
            nodes.push(Node {
                feature: Some(0),
                at_most: Some(10.0 * n as f64),
                left: Some(2 * n + 1),
                right: Some(2 * n + 2),
                classes: None,
            });
            nodes.push(leaf(0.5));
        }
        nodes.push(leaf(0.5));
        Tree { nodes }
    };
    for simd in Simd::available() {
        for (heights, fits) in [([32, 32], true), ([32, 33], false)] {
            let trees = heights.map(chain).to_vec();
            let model = model(
                trees,
                vec![Tree {
                    nodes: vec![leaf(1.0)],
                }],
            );
            let model = Model::from_json(model.to_json().as_bytes()).unwrap();
            assert_eq!(RowForest::new(&model, Level::Flow, simd).is_some(), fits);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_batch_reaches_the_leaves_of_the_naive_walk(
        flow in prop::collection::vec(tree(4), 1..10),
        packet in prop::collection::vec(tree(2), 1..4),
        values in prop::collection::vec((any::<u32>(), 0_u32..256, 0_u32..800_000, any::<u32>()), 1..=LANES),
    ) {
        let model = model(flow, packet);
        let model = Model::from_json(model.to_json().as_bytes()).unwrap();
        let mut columns: Columns = [0; 64 * LANES];
        for (lane, &(a, b, c, d)) in values.iter().enumerate() {
            for (column, value) in [a % 2_000, b, c, d].into_iter().enumerate() {
                columns[column * LANES + lane] = value;
            }
        }
        let mut verdicts = Verdicts::new(&model);
        let mut ranks = RankRows::default();
        for level in [Level::Flow, Level::Packet] {
            let mut leaves = vec![[u16::MAX; LANES]; model.trees(level).len()];
            for kernel in Kernel::available() {
                let mut of_kernel = vec![[u16::MAX; LANES]; leaves.len()];
                let forest = Forest::with_kernel(&model, level, kernel);
                forest.leaves(&columns, values.len(), &mut ranks, &mut of_kernel);
                if kernel == Kernel::Portable {
                    leaves = of_kernel;
                    continue;
                }
                for (row, of_kernel) in leaves.iter().zip(&of_kernel) {
                    let (row, of_kernel) = (&row[..values.len()], &of_kernel[..values.len()]);
                    prop_assert_eq!(row, of_kernel, "{:?}", kernel);
                }
            }
            let mut keys = vec![0; values.len()];
            verdicts.keys(level, &leaves, &mut keys);
            for (lane, &key) in keys.iter().enumerate() {
                let id = verdicts.find(level, key, &leaves, lane);
                prop_assert_eq!(verdicts.find(level, key, &leaves, lane), id);
                let row: Vec<u32> = (0..4).map(|column| columns[column * LANES + lane]).collect();
                let naive = model.leaves_naive(level, &row);
                let batch: Vec<u16> = leaves.iter().map(|r| r[lane]).collect();
                prop_assert_eq!(&batch, &naive);
                prop_assert_eq!(verdicts.get(id), &verdicts.judge(level, &naive));
                prop_assert_eq!(&verdicts.get(id).leaves, &naive);
            }
        }
    }

    /// Trees of no model: nodes in any order in which children follow, and thresholds of any width.
    #[test]
    fn trees_of_plain_nodes_reach_the_leaves_of_a_naive_walk(
        choices in prop::collection::vec(
            prop::collection::vec((any::<prop::sample::Index>(), 0..12_usize, any::<u32>(), 0..32_u32), 0..200),
            1..4,
        ),
        values in prop::collection::vec((any::<[u32; 12]>(), 0..32_u32), 1..=LANES),
    ) {
        let trees: Vec<Vec<Split>> = choices.iter().map(|splits| plain_tree(splits)).collect();
        let values: Vec<[u32; 12]> = values.iter().map(|(of, bits)| of.map(|v| v >> bits)).collect();
        let mut columns: Columns = [0; FEATURES_MAX * LANES];
        for (lane, values) in values.iter().enumerate() {
            for (column, value) in values.iter().enumerate() {
                columns[column * LANES + lane] = *value;
            }
        }
        let mut leaves = vec![[u16::MAX; LANES]; trees.len()];
        let mut ranks = RankRows::default();
        Forest::of_trees(&trees).leaves(&columns, values.len(), &mut ranks, &mut leaves);
        for (tree, leaves) in trees.iter().zip(&leaves) {
            for (values, leaf) in values.iter().zip(leaves) {
                let mut at = 0;
                let wanted = loop {
                    match tree[at] {
                        Split::Leaf(number) => break number,
                        Split::At { feature, at_most, left, right } => {
                            at = if values[feature] > at_most { right } else { left };
                        }
                    }
                };
                prop_assert_eq!(*leaf, wanted);
            }
        }
    }

    #[test]
    fn no_bytes_make_the_loader_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Model::from_json(&bytes);
    }
}

/// A tree that these splits make of a leaf: each takes the place of one of the leaves so far.
fn plain_tree(splits: &[(prop::sample::Index, usize, u32, u32)]) -> Vec<Split> {
    let mut nodes = vec![Split::Leaf(0)];
    for (place, feature, at_most, bits) in splits {
        let is_leaf = |(number, node): (usize, &Split)| match node {
            Split::Leaf(_) => Some(number),
            Split::At { .. } => None,
        };
        let leaves: Vec<usize> = nodes.iter().enumerate().filter_map(is_leaf).collect();
        let (left, right) = (nodes.len(), nodes.len() + 1);
        nodes[*place.get(&leaves)] = Split::At {
            feature: *feature,
            at_most: at_most >> bits,
            left,
            right,
        };
        let number = |node: usize| Split::Leaf(u16::try_from(node * 7).unwrap());
        nodes.extend([number(left), number(right)]);
    }
    nodes
}

fn small() -> Model {
    let split = Node {
        feature: Some(0),
        at_most: Some(100.5),
        left: Some(1),
        right: Some(2),
        classes: None,
    };
    let tree = Tree {
        nodes: vec![split, leaf(0.9), leaf(0.2)],
    };
    model(vec![tree.clone()], vec![tree])
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn every_fault_is_refused_and_named() {
    let good: Value = serde_json::from_str(&small().to_json()).unwrap();
    let faults: &[(&str, Value, &str)] = &[
        ("/format", json!("other"), "strata-model"),
        ("/version", json!(2), "this Strata reads 1"),
        ("/window_ns", json!(0), "`window_ns`"),
        ("/arithmetic", json!({"switch": {"delta": 0.0}}), "delta"),
        ("/classes", json!([]), "`classes`"),
        ("/classes/1/name", json!("benign"), "is listed twice"),
        ("/classes/1/name", json!("unclassified"), "reserved"),
        ("/classes/1/name", json!("a b"), "letters"),
        ("/features/0/name", json!("colour"), "not one of: size"),
        ("/features/0/unit", json!("bits"), "is in bytes"),
        (
            "/features/1",
            json!({"name": "size", "unit": "bytes"}),
            "is listed twice",
        ),
        ("/decision/otherwise", json!("x"), "not one of the classes"),
        (
            "/decision/rules/0/score_at_least",
            json!(1.5),
            "rules[0].score_at_least",
        ),
        ("/buckets", json!("open"), "voting"),
        (
            "/distributions",
            json!({"features": [{"name": "colour", "edges": [], "shares": [1.0]}], "scores": [1.0]}),
            "distributions.features[0].name",
        ),
        (
            "/distributions",
            json!({"features": [{"name": "size", "edges": [5.0], "shares": [1.0]}], "scores": [1.0]}),
            "one share more",
        ),
        (
            "/known",
            json!({"flow_trees": ["0"], "packet_trees": []}),
            "known.flow_trees[0]`: there are 1 texts, but 0 pairs",
        ),
        (
            "/known",
            json!({"flow_trees": [], "packet_trees": [], "colour": 1}),
            "unknown field `colour`",
        ),
        ("/packet_trees", json!([]), "at least one tree"),
        (
            "/flow_trees/0/nodes",
            json!([]),
            "`flow_trees` tree 0 node 0",
        ),
        (
            "/flow_trees/0/nodes/0/feature",
            json!(9),
            "tree 0 node 0: there is no feature 9",
        ),
        (
            "/flow_trees/0/nodes/0/left",
            json!(0),
            "child 0 must be after node 0",
        ),
        ("/flow_trees/0/nodes/0/right", json!(7), "child 7 must be"),
        (
            "/flow_trees/0/nodes/0/right",
            json!(1),
            "already has a parent",
        ),
        (
            "/flow_trees/0/nodes/1/classes",
            json!([0.5]),
            "node 1: 1 shares for 2",
        ),
        (
            "/flow_trees/0/nodes/1/classes",
            json!([0.5, 0.4]),
            "add up to 0.9",
        ),
        (
            "/flow_trees/0/nodes/1/classes",
            json!([1.5, -0.5]),
            "between 0 and 1",
        ),
        (
            "/flow_trees/0/nodes/1",
            json!({}),
            "a leaf has classes only",
        ),
        (
            "/packet_trees/0/nodes/0/feature",
            json!(2),
            "not a packet-level feature",
        ),
    ];
    assert!(Model::from_json(good.to_string().as_bytes()).is_ok());
    for (path, value, expected) in faults {
        let mut bad = good.clone();
        match bad.pointer_mut(path) {
            Some(place) => *place = value.clone(),
            // Fields that a model may omit.
            None => bad[&path[1..]] = value.clone(),
        }
        let error = Model::from_json(bad.to_string().as_bytes())
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{path}: {error}");
    }
    let mut unknown = good.clone();
    unknown["colour"] = json!(1);
    let error = Model::from_json(unknown.to_string().as_bytes())
        .unwrap_err()
        .to_string();
    assert!(error.contains("unknown field `colour`"), "{error}");
    assert!(
        Model::from_json(b"{")
            .unwrap_err()
            .to_string()
            .contains("line 1")
    );
}

#[test]
fn a_leaf_is_explained_in_words() {
    let model = small();
    assert_eq!(model.explain(Level::Flow, 0, 2), "size > 100.5 bytes");
    assert_eq!(model.explain(Level::Packet, 0, 1), "size <= 100.5 bytes");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever the distributions of a model's file say.
    #[test]
    fn a_packet_is_within_the_bounds_of_its_signs(
        trees in prop::collection::vec(tree(4), 1..10),
        values in prop::collection::vec((0_u32..3_000, 0_u32..256, 0_u32..800_000, any::<u32>()), 1..20),
        edges in prop::collection::vec(-10.0..3_000.0_f64, 0..10),
        share in -1.0..2.0_f64,
    ) {
        let mut model = model(trees, vec![Tree { nodes: vec![leaf(1.0)] }]);
        let shares = vec![share; edges.len() + 1];
        let of = |name: &str| Distribution {
            name: name.into(),
            edges: edges.clone(),
            shares: shares.clone(),
        };
        model.distributions = Some(Distributions {
            features: vec![of("size"), of("size_var")],
            scores: vec![1.0],
        });
        let model = Model::from_json(model.to_json().as_bytes()).unwrap();
        for class in ["benign", "anomalous"] {
            let signs = Signs::new(&model, Level::Flow, class).unwrap();
            for &(size, flags, average, variance) in &values {
                let values = [size, flags, average, variance];
                let found = signs.of(&model.leaves_naive(Level::Flow, &values));
                for sign in &found {
                    let feature = sign.condition.feature().unwrap();
                    let at = model.features.iter().position(|used| used.name == sign.condition.name);
                    let limit = |threshold: f64| feature.encode(threshold, model.clock());
                    let value = values[at.unwrap()];
                    if let Some(above) = sign.condition.above {
                        prop_assert!(limit(above).is_none_or(|limit| value > limit));
                    }
                    if let Some(most) = sign.condition.at_most {
                        prop_assert!(limit(most).is_some_and(|limit| value <= limit));
                    }
                    prop_assert!(sign.weight.is_finite() && sign.weight > 0.0);
                }
                prop_assert!(found.is_sorted_by(|a, b| a.weight >= b.weight));
                prop_assert!(!kind_of(&found).is_empty());
            }
        }
    }
}

#[test]
fn benign_only_when_confident() {
    let model = small();
    let verdicts = Verdicts::new(&model);
    let benign = verdicts.judge(Level::Flow, &[1]);
    assert_eq!((benign.class, benign.score), (0, 58_982));
    let unsure = verdicts.judge(Level::Flow, &[2]);
    assert_eq!((unsure.class, unsure.score), (1, 52_428));
}

/// Two trees of two and three leaves, and what is known of them.
fn of_two_trees(pairs: &str, decides: bool) -> Result<Model, strata_classify::ModelError> {
    let split = |feature, at_most, left| Node {
        feature: Some(feature),
        at_most: Some(at_most),
        left: Some(left),
        right: Some(left + 1),
        classes: None,
    };
    let two = vec![split(0, 100.0, 1), leaf(1.0), leaf(0.5)];
    let three = vec![
        split(1, 5.0, 1),
        leaf(1.0),
        split(0, 50.0, 3),
        leaf(0.8),
        leaf(0.1),
    ];
    let trees = vec![Tree { nodes: two }, Tree { nodes: three }];
    let mut model = model(trees.clone(), trees);
    model.known = Some(Known {
        flow_trees: vec![pairs.into()],
        packet_trees: Vec::new(),
        decides,
    });
    Model::from_json(model.to_json().as_bytes())
}

#[test]
fn what_training_has_not_seen_together_raises_the_score() {
    // The first leaf met leaves 1 and 3 of the other tree, the second one leaf 4: its node numbers.
    let model = of_two_trees("34", false).unwrap();
    let verdicts = Verdicts::new(&model);
    let mut of_old = model.clone();
    of_old.known = None;
    let of_old = Verdicts::new(&of_old);
    for leaves in [[1, 1], [1, 3], [2, 4]] {
        let known = verdicts.judge(Level::Flow, &leaves);
        assert_eq!(known, of_old.judge(Level::Flow, &leaves));
        assert_eq!(known.doubt, 0);
    }
    // Both leaves are benign, but never met: the class is as before, the score is in the middle.
    let unsure = verdicts.judge(Level::Flow, &[2, 1]);
    let before = of_old.judge(Level::Flow, &[2, 1]);
    assert_eq!((unsure.class, unsure.doubt), (before.class, u16::MAX));
    assert_eq!((before.anomaly, unsure.anomaly), (16_384, 32_768));
    assert_eq!(model.unmet(Level::Flow, &[2, 1]), Some((1, 1)));
    assert_eq!(model.unmet(Level::Flow, &[1, 1]), Some((0, 1)));
    // Of packet trees, nothing is known.
    assert_eq!(model.unmet(Level::Packet, &[2, 1]), None);
    assert_eq!(verdicts.judge(Level::Packet, &[2, 1]).doubt, 0);
}

#[test]
fn doubt_decides_where_the_model_says_so() {
    let model = of_two_trees("34", true).unwrap();
    let verdicts = Verdicts::new(&model);
    assert_eq!(verdicts.judge(Level::Flow, &[1, 1]).class, 0);
    assert_eq!(verdicts.judge(Level::Flow, &[2, 1]).class, 1);
}

#[test]
fn a_text_of_another_forest_is_refused() {
    for (text, expected) in [
        ("3", "the text has 1 digits, but 2 leaves by 3 take 2"),
        ("3g", "'g' at 1 is not a hexadecimal digit"),
        ("38", "digit 1 names leaf 3 of 3"),
    ] {
        let error = of_two_trees(text, false).unwrap_err().to_string();
        assert!(error.contains("known.flow_trees[0]"), "{error}");
        assert!(error.contains(expected), "{error}");
    }
}

/// Combinations beyond the table share verdicts, but not with others of quite another score: a
/// budget that follows scores would keep or cut the wrong ones.
#[test]
fn verdicts_that_are_shared_have_similar_scores() {
    // Complete, of 256 leaves whose shares ascend.
    let split = |at: usize| Node {
        feature: Some(0),
        at_most: Some(1.0),
        left: Some(2 * at + 1),
        right: Some(2 * at + 2),
        classes: None,
    };
    let leaves = (0..256).map(|n| leaf(f64::from(n) / 255.0));
    let tree = Tree {
        nodes: (0..255).map(split).chain(leaves).collect(),
    };
    let one = Tree {
        nodes: vec![leaf(1.0)],
    };
    let model = model(vec![tree.clone(), tree], vec![one]);
    let model = Model::from_json(model.to_json().as_bytes()).unwrap();
    let mut verdicts = Verdicts::new(&model);
    let leaves: Vec<u16> = (0..model.flow_trees[0].nodes.len())
        .filter(|node| model.flow_trees[0].nodes[*node].classes.is_some())
        .map(|node| u16::try_from(node).unwrap())
        .collect();
    for first in &leaves {
        for second in &leaves {
            let rows = [[*first; LANES], [*second; LANES]];
            let mut key = [0];
            verdicts.keys(Level::Flow, &rows, &mut key);
            let id = verdicts.find(Level::Flow, key[0], &rows, 0);
            let (got, own) = (
                verdicts.get(id).clone(),
                verdicts.judge(Level::Flow, &[*first, *second]),
            );
            assert_eq!(got.class, own.class);
            assert!(
                got.anomaly.abs_diff(own.anomaly) <= 1_024,
                "{got:?}, {own:?}"
            );
        }
    }
    assert!(verdicts.all().len() <= strata_classify::VERDICTS_MAX);
    assert!(
        verdicts
            .all()
            .iter()
            .skip(1)
            .any(|shared| shared.leaves.is_empty())
    );
}
