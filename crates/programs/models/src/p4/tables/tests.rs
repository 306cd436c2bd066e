//! Entries against the model that they were made of, and against the program.

use std::collections::BTreeMap;
use std::fs;

use proptest::prelude::*;
use strata_classify::{Class, Decision, FeatureUse, Node, Rule, Verdicts};
use strata_policy::Mode;

use super::*;

/// The model that ships with the program.
fn built_in() -> Model {
    strata_terminal::model::load(None).unwrap().model
}

fn granularities(model: &Model, mode: &str) -> Vec<Granularity> {
    let mode = Mode::by_name(mode, &BTreeMap::new()).unwrap();
    mode.granularities(model).unwrap()
}

fn of(model: &Model) -> Result<Vec<Table>, Misfit> {
    tables(model, &granularities(model, "default"), true)
}

/// What the entry that a table finds does: of those that match, the one of lowest priority.
fn found(tables: &[Table], name: &str, keys: &[u64]) -> Option<Action> {
    let table = tables.iter().find(|table| table.name == name).unwrap();
    let is_match = |entry: &&Entry| {
        entry
            .keys
            .iter()
            .zip(keys)
            .all(|(one, &key)| one.matches(key))
    };
    let matches = table.entries.iter().filter(is_match);
    let best = matches.min_by_key(|entry| entry.priority);
    best.map(|entry| entry.action)
}

/// The class that the program gives to a packet with these features.
fn run(tables: &[Table], values: &[(Feature, u32)]) -> u8 {
    let mut marks = [0; TREES];
    for &(feature, value) in values {
        let name = format!("range_{}", feature.name());
        if let Some(Action::Mark(more)) = found(tables, &name, &[value.into()]) {
            marks
                .iter_mut()
                .zip(more)
                .for_each(|(marks, more)| *marks |= more);
        }
    }
    let mut scores = [0_u64; CLASSES];
    for (number, marks) in marks.into_iter().enumerate() {
        if let Some(Action::Leaf(shares)) = found(tables, &format!("tree_{number}"), &[marks]) {
            scores
                .iter_mut()
                .zip(shares)
                .for_each(|(sum, share)| *sum += u64::from(share));
        }
    }
    match found(tables, "decide", &scores) {
        Some(Action::SetClass(class)) => class,
        other => panic!("decide: {other:?}"),
    }
}

/// The class that Strata gives.
fn judged(model: &Model, verdicts: &Verdicts, values: &[(Feature, u32)]) -> u8 {
    let value = |feature: &Feature| {
        values
            .iter()
            .find(|(of, _)| of == feature)
            .map_or(0, |(_, value)| *value)
    };
    let values: Vec<u32> = model.feature_list().iter().map(value).collect();
    let leaves = model.leaves_naive(Level::Packet, &values);
    verdicts.judge(Level::Packet, &leaves).class
}

fn largest(feature: Feature) -> u32 {
    u32::MAX >> (32 - room(feature).unwrap().0)
}

/// Values at and beside the thresholds of a model, and others.
fn vectors(model: &Model) -> impl Strategy<Value = Vec<(Feature, u32)>> + use<> {
    let (names, clock) = (model.feature_list(), model.clock());
    let nodes = model.packet_trees.iter().flat_map(|tree| &tree.nodes);
    let splits = nodes.filter_map(|node| Some((names[node.feature?], node.at_most?)));
    let limits: Vec<(Feature, u32)> = splits
        .filter_map(|(feature, at_most)| Some((feature, feature.encode(at_most, clock)?)))
        .collect();
    let columns: Vec<_> = features()
        .map(|feature| {
            let of = limits.iter().filter(|(of, _)| *of == feature);
            let near = of.flat_map(|(_, limit)| [*limit, limit.saturating_add(1)]);
            let near: Vec<u32> = near
                .chain([0, largest(feature)])
                .map(|v| v.min(largest(feature)))
                .collect();
            let value = prop_oneof![4 => prop::sample::select(near), 1 => 0..=largest(feature)];
            value.prop_map(move |value| (feature, value))
        })
        .collect();
    columns
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_built_in_model_decides_alike(values in vectors(&built_in())) {
        thread_local! {
            static MADE: (Model, Vec<Table>, Verdicts) = {
                let model = built_in();
                let (made, verdicts) = (of(&model).unwrap(), Verdicts::new(&model));
                (model, made, verdicts)
            };
        }
        let (program, strata) = MADE.with(|(model, made, verdicts)| {
            (run(made, &values), judged(model, verdicts, &values))
        });
        prop_assert_eq!(program, strata);
    }
}

/// A tree of random splits over all features of packets, some of which no value or every value passes.
fn random_tree(splits: Vec<(usize, f64)>, shares: &[u8], classes: usize) -> Tree {
    let leaf = |at: usize| {
        let mut of: Vec<f64> = (0..classes)
            .map(|class| f64::from(shares[(at * 7 + class) % shares.len()]) + 1.0)
            .collect();
        let sum: f64 = of.iter().sum();
        of.iter_mut().for_each(|share| *share /= sum);
        Node {
            classes: Some(of),
            ..Node::default()
        }
    };
    // As a heap: splits first, then leaves.
    let count = splits.len();
    let mut nodes: Vec<Node> = splits
        .into_iter()
        .enumerate()
        .map(|(at, (feature, at_most))| Node {
            feature: Some(feature),
            at_most: Some(at_most),
            left: Some(2 * at + 1),
            right: Some(2 * at + 2),
            classes: None,
        })
        .collect();
    nodes.extend((0..=count).map(leaf));
    Tree { nodes }
}

fn random_model() -> impl Strategy<Value = Model> {
    let all = features().count();
    let split = (0..all, prop_oneof![3 => 0.0..300.0, 1 => -2.0..70_000.0]);
    let trees = prop::collection::vec(prop::collection::vec(split, 0..=40), 1..=TREES);
    let rules = prop::collection::vec((0..CLASSES, 0.0..=1.0), 0..4);
    (
        trees,
        rules,
        1..=CLASSES,
        prop::collection::vec(any::<u8>(), 11),
    )
        .prop_map(|(trees, rules, classes, shares)| {
            let name = |class: usize| format!("class-{}", class % classes);
            let model = Model {
                classes: (0..classes)
                    .map(|n| Class {
                        name: name(n),
                        anomalous: n > 0,
                    })
                    .collect(),
                features: features()
                    .map(|f| FeatureUse {
                        name: f.name().into(),
                        unit: f.unit().into(),
                    })
                    .collect(),
                flow_trees: Vec::new(),
                packet_trees: trees
                    .into_iter()
                    .map(|splits| random_tree(splits, &shares, classes))
                    .collect(),
                decision: Decision {
                    rules: rules
                        .into_iter()
                        .map(|(class, score_at_least)| Rule {
                            class: name(class),
                            score_at_least,
                        })
                        .collect(),
                    otherwise: name(0),
                },
                known: None,
                distributions: None,
                ..built_in()
            };
            Model::from_json(model.to_json().as_bytes()).expect("a random model is valid")
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn random_models_decide_alike(
        (model, vectors) in random_model().prop_flat_map(|model| {
            let vectors = prop::collection::vec(vectors(&model), 20);
            (Just(model), vectors)
        }),
    ) {
        let (made, verdicts) = (of(&model).unwrap(), Verdicts::new(&model));
        for values in vectors {
            prop_assert_eq!(run(&made, &values), judged(&model, &verdicts, &values));
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_with_the_reason() {
    let model = built_in();
    let whole = tables(&model, &granularities(&model, "default"), false).unwrap_err();
    assert!(matches!(&whole, Misfit::Flows(tested) if tested.contains(&"ipd_avg")));
    assert!(whole.to_string().contains("--packet-trees"), "{whole}");

    let sampled = tables(&model, &granularities(&model, "log-sampled"), true).unwrap_err();
    assert!(
        sampled
            .to_string()
            .contains("'header 1/10' of class benign"),
        "{sampled}"
    );

    let mut doubting = model.clone();
    doubting.known.as_mut().unwrap().decides = true;
    assert_eq!(of(&doubting), Err(Misfit::Doubt));

    let mut many = model.clone();
    many.packet_trees.push(many.packet_trees[0].clone());
    assert_eq!(of(&many), Err(Misfit::Trees(9)));

    let mut many = model.clone();
    many.classes.extend((0..7).map(|n| Class {
        name: format!("c{n}"),
        anomalous: false,
    }));
    assert_eq!(of(&many), Err(Misfit::Classes(9)));

    // A chain of splits: one more than there are bits.
    let chain = |tests: usize, step: usize| {
        let nodes = (0..tests).flat_map(|n| {
            let split = Node {
                feature: Some(0),
                at_most: Some(f64::from(u32::try_from(n / step).unwrap()) * 3.0 + 1.0),
                left: Some(2 * n + 1),
                right: Some(2 * n + 2),
                classes: None,
            };
            [
                split,
                Node {
                    classes: Some(vec![1.0, 0.0]),
                    ..Node::default()
                },
            ]
        });
        let last = Node {
            classes: Some(vec![0.0, 1.0]),
            ..Node::default()
        };
        Tree {
            nodes: nodes.chain([last]).collect(),
        }
    };
    let mut deep = model.clone();
    deep.packet_trees = vec![chain(64, 1)];
    assert!(of(&deep).is_ok());
    deep.packet_trees = vec![chain(65, 1)];
    assert_eq!(of(&deep), Err(Misfit::Tests(0, 65)));
    // The same tests again need no more bits.
    deep.packet_trees = vec![chain(90, 2)];
    assert!(of(&deep).is_ok());

    let mut ruled = model;
    let rule = Rule {
        class: String::from("benign"),
        score_at_least: 0.7701,
    };
    ruled.decision.rules = vec![rule; 40];
    assert!(matches!(of(&ruled), Err(Misfit::Rules(257..))));
}

#[test]
fn too_many_leaves_are_refused_and_ranges_always_fit() {
    let mut model = built_in();
    let splits = |levels: u32| {
        (0..(1_usize << levels) - 1)
            .map(|at| (usize::from(at % 2 == 0), 1.0))
            .collect::<Vec<_>>()
    };
    let shares = [1, 2, 3];
    model.packet_trees = vec![random_tree(splits(2), &shares, 2)];
    assert!(of(&model).is_ok());
    // One test per level, so 9 bits, and each path differs.
    let mut tree = random_tree(splits(9), &shares, 2);
    for (at, node) in tree.nodes.iter_mut().enumerate() {
        if node.feature.is_some() {
            let level = (at + 1).ilog2();
            node.at_most = Some(f64::from(level) * 10.0);
            node.feature = Some(0);
        }
    }
    model.packet_trees = vec![tree];
    assert_eq!(of(&model), Err(Misfit::Leaves(0)));

    // As many limits of a feature as all trees can have.
    let chain = |tree: u32| {
        let splits = (0..64_u32).map(|n| f64::from(1 + (n * 8 + tree) * 127));
        let nodes = splits.enumerate().flat_map(|(n, at_most)| {
            let split = Node {
                feature: Some(0),
                at_most: Some(at_most),
                left: Some(2 * n + 1),
                right: Some(2 * n + 2),
                classes: None,
            };
            [
                split,
                Node {
                    classes: Some(vec![1.0, 0.0]),
                    ..Node::default()
                },
            ]
        });
        let last = Node {
            classes: Some(vec![0.0, 1.0]),
            ..Node::default()
        };
        Tree {
            nodes: nodes.chain([last]).collect(),
        }
    };
    model.packet_trees = (0..8).map(chain).collect();
    let made = of(&model).unwrap();
    assert!(
        made[0].entries.len() > 3_500,
        "{} entries",
        made[0].entries.len()
    );
}

/// The size of a table of the program.
fn size_of(spec: &str, table: &str) -> usize {
    let block = spec
        .split(&format!("\ntable {table} {{"))
        .nth(1)
        .expect("a table of the program");
    let size = block
        .split("\tsize ")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next());
    size.unwrap().parse().unwrap()
}

#[test]
fn tables_have_the_names_and_sizes_of_the_program() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../p4/titanlog.spec");
    let spec = fs::read_to_string(path).unwrap();
    let made = of(&built_in()).unwrap();
    for table in &made {
        assert_eq!(table.size, size_of(&spec, &table.name), "{}", table.name);
    }
    assert_eq!(made.len(), spec.matches("\ntable ").count());
    assert!(spec.contains(&format!("mov m.class {UNCLASSIFIED}\n")));
    assert!(spec.contains(&format!("mov m.first_len {PARTIAL_BYTES}\n")));
}
