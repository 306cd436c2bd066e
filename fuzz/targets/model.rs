//! Any bytes as a model, and what a model that loads decides.
//!
//! Input: `{`...: JSON up to a zero byte, then feature values; else the first
//! byte chooses, and the rest is read as a model that is well-formed JSON but
//! need not pass the checks.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use strata_classify::{Columns, Forest, Kernel, LANES, Model, RankRows, Tree, Verdicts};
use strata_fuzz::{Bounded, Chooser};
use strata_sketch::{Feature, Level};

#[global_allocator]
static MEMORY: Bounded = Bounded::new();

fuzz_target!(|bytes: &[u8]| {
    if bytes.first() == Some(&b'{') {
        let end = bytes
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(bytes.len());
        run(
            &bytes[..end],
            Chooser::new(bytes.get(end + 1..).unwrap_or(&[])),
        );
    } else {
        let mut choose = Chooser::new(bytes);
        let made = made(&mut choose).to_string();
        run(made.as_bytes(), choose);
    }
});

fn run(json: &[u8], mut choose: Chooser<'_>) {
    let model = match Model::from_json(json) {
        Ok(model) => model,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let again = Model::from_json(model.to_json().as_bytes()).expect("written by Strata itself");
    assert_eq!(again.features, model.features);
    let features = model.feature_list();
    let lanes = 1 + usize::from(choose.u8()) % LANES;
    let mut columns: Box<Columns> = vec![0; COLUMNS].try_into().expect("as many");
    for (column, &feature) in columns.chunks_exact_mut(LANES).zip(&features) {
        for value in &mut column[..lanes] {
            *value = value_of(feature, choose.u32());
        }
    }
    let mut verdicts = Verdicts::new(&model);
    let mut ranks = RankRows::default();
    for level in [Level::Flow, Level::Packet] {
        let forest = Forest::new(&model, level);
        assert_eq!(forest.tree_count(), model.trees(level).len());
        if forest.tree_count() == 0 {
            continue;
        }
        let mut leaves = vec![[0_u16; LANES]; forest.tree_count()];
        forest.leaves(&columns, lanes, &mut ranks, &mut leaves);
        for kernel in Kernel::available() {
            let mut other = vec![[u16::MAX; LANES]; forest.tree_count()];
            let forest = Forest::with_kernel(&model, level, kernel);
            forest.leaves(&columns, lanes, &mut ranks, &mut other);
            for (row, other) in leaves.iter().zip(&other) {
                let (row, other) = (&row[..lanes], &other[..lanes]);
                assert_eq!(row, other, "the kernel of this machine and {kernel:?}");
            }
        }
        let mut keys = vec![0; lanes];
        verdicts.keys(level, &leaves, &mut keys);
        for (lane, &key) in keys.iter().enumerate() {
            let id = verdicts.find(level, key, &leaves, lane);
            let rows = columns.chunks_exact(LANES).take(features.len());
            let values: Vec<u32> = rows.map(|column| column[lane]).collect();
            let naive = model.leaves_naive(level, &values);
            let batch: Vec<u16> = leaves.iter().map(|row| row[lane]).collect();
            assert_eq!(batch, naive, "batch and naive, {level:?}");
            let trees = model.trees(level).iter();
            let real: Vec<u16> = trees
                .map(|tree| leaf_by_numbers(&model, &features, tree, &values))
                .collect();
            assert_eq!(naive, real, "integers and real numbers, {level:?}");
            assert_eq!(*verdicts.get(id), verdicts.judge(level, &naive));
            assert!(usize::from(verdicts.get(id).class) < model.classes.len());
            for (tree, &leaf) in naive.iter().enumerate().take(4) {
                assert!(!model.explain(level, tree, leaf).is_empty());
            }
        }
        // Of a log that another model made.
        let _ = model.explain(level, usize::from(choose.u8()), choose.u16());
    }
}

/// A value that the feature can have: variances are bits of a number.
fn value_of(feature: Feature, bits: u32) -> u32 {
    match feature {
        Feature::SizeVar | Feature::IpdVar => (bits & i32::MAX as u32).min(f32::INFINITY.to_bits()),
        _ => bits,
    }
}

/// The third twin: thresholds and values compared in the feature's unit, as the
/// format's description says.
fn leaf_by_numbers(model: &Model, features: &[Feature], tree: &Tree, values: &[u32]) -> u16 {
    let mut at = 0;
    while let (Some(feature), Some(at_most)) = (tree.nodes[at].feature, tree.nodes[at].at_most) {
        let value = features[feature].decode(values[feature], model.clock());
        let node = &tree.nodes[at];
        let child = if value <= at_most {
            node.left
        } else {
            node.right
        };
        at = child.expect("a split has children");
    }
    u16::try_from(at).expect("a tree has fewer nodes")
}

const COLUMNS: usize = size_of::<Columns>() / size_of::<u32>();
const NUMBERS: [f64; 12] = [
    0.0,
    -0.0,
    0.5,
    1.0,
    -1.0,
    1e-320,
    255.999,
    65_535.0,
    4_294_967_295.0,
    4_294_967_296.5,
    1e300,
    3.5e38,
];

fn number(choose: &mut Chooser<'_>) -> f64 {
    match choose.u8() {
        0 => f64::from_bits(choose.u64()),
        1 => f64::from(f32::from_bits(choose.u32())),
        2 => f64::from(choose.u32()),
        3 => f64::from(choose.u16()) / 256.0,
        index => NUMBERS[usize::from(index) % NUMBERS.len()],
    }
}

fn made(choose: &mut Chooser<'_>) -> Value {
    let classes = 1 + usize::from(choose.u8()) % 4;
    let first = usize::from(choose.u8());
    let count = usize::from(choose.u8()) % 12;
    let features: Vec<Feature> = (0..count)
        .map(|index| Feature::ALL[(first + index) % Feature::ALL.len()])
        .collect();
    let used: Vec<Value> = features
        .iter()
        .map(|f| json!({"name": f.name(), "unit": f.unit()}))
        .collect();
    let of_packets: Vec<usize> = (0..count)
        .filter(|&index| features[index].level() == Level::Packet)
        .collect();
    let of_all: Vec<usize> = (0..count).collect();
    let window = [
        1_000_u64,
        10_000_000,
        60_000_000_000,
        864_000_000_000_000,
        999,
    ];
    let flows = usize::from(choose.u8()) % 4;
    let packets = 1 + usize::from(choose.u8()) % 3;
    json!({
        "format": "strata-model",
        "version": 1,
        "name": "fuzz",
        "window_ns": window[usize::from(choose.u8()) % window.len()],
        "classes": (0..classes).map(|n| json!({"name": format!("c{n}"), "anomalous": n > 0})).collect::<Vec<_>>(),
        "features": used,
        "decision": {
            "rules": [{"class": "c0", "score_at_least": f64::from(choose.u8()) / 255.0}],
            "otherwise": format!("c{}", usize::from(choose.u8()) % classes),
        },
        "flow_trees": (0..flows).map(|_| tree(choose, &of_all, classes)).collect::<Vec<_>>(),
        "packet_trees": (0..packets).map(|_| tree(choose, &of_packets, classes)).collect::<Vec<_>>(),
    })
}

fn tree(choose: &mut Chooser<'_>, features: &[usize], classes: usize) -> Value {
    let splits = if features.is_empty() {
        0
    } else {
        usize::from(choose.u8()) % 40
    };
    let mut nodes = vec![Value::Null];
    let mut open = vec![0];
    for _ in 0..splits {
        let at = open.remove(usize::from(choose.u8()) % open.len());
        let left = nodes.len();
        nodes[at] = json!({
            "feature": features[usize::from(choose.u8()) % features.len()],
            "at_most": number(choose),
            "left": left,
            "right": left + 1,
        });
        nodes.extend([Value::Null, Value::Null]);
        open.extend([left, left + 1]);
    }
    for at in open {
        let mut shares = vec![0.0; classes];
        let first = f64::from(choose.u8()) / 255.0;
        shares[0] = first;
        shares[classes - 1] += 1.0 - first;
        nodes[at] = json!({ "classes": shares });
    }
    json!({ "nodes": nodes })
}
