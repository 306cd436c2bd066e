//! The batch forest compared with its naive twin, and every way a model can be wrong.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail loudly too")]

use proptest::prelude::*;
use serde_json::{Value, json};
use strata_classify::{
    Class, Columns, Decision, FeatureUse, Forest, Kernel, LANES, Model, Node, RowForest, Rule,
    Tree, Verdicts,
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
        for level in [Level::Flow, Level::Packet] {
            let mut leaves = vec![[u16::MAX; LANES]; model.trees(level).len()];
            for kernel in Kernel::available() {
                let mut of_kernel = vec![[u16::MAX; LANES]; leaves.len()];
                let forest = Forest::with_kernel(&model, level, kernel);
                forest.leaves(&columns, values.len(), &mut of_kernel);
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

    #[test]
    fn no_bytes_make_the_loader_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Model::from_json(&bytes);
    }
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
        ("/classes/1/name", json!("benign"), "stands twice"),
        ("/classes/1/name", json!("unclassified"), "reserved"),
        ("/classes/1/name", json!("a b"), "letters"),
        ("/features/0/name", json!("colour"), "none of: size"),
        ("/features/0/unit", json!("bits"), "is in bytes"),
        (
            "/features/1",
            json!({"name": "size", "unit": "bytes"}),
            "stands twice",
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
        ("/packet_trees", json!([]), "at least one tree"),
        (
            "/flow_trees/0/nodes",
            json!([]),
            "`flow_trees` tree 0 node 0",
        ),
        (
            "/flow_trees/0/nodes/0/feature",
            json!(9),
            "tree 0 node 0: feature 9",
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

#[test]
fn benign_only_when_confident() {
    let model = small();
    let verdicts = Verdicts::new(&model);
    let benign = verdicts.judge(Level::Flow, &[1]);
    assert_eq!((benign.class, benign.score), (0, 58_982));
    let unsure = verdicts.judge(Level::Flow, &[2]);
    assert_eq!((unsure.class, unsure.score), (1, 52_428));
}
