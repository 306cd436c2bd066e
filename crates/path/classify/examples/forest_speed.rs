//! What the forest costs per packet, kernel by kernel, measured in turns.
//!
//!     cargo run --release -p strata-classify --example forest_speed [MODEL.json...]
//!
//! Without models: full trees over 22 features with random thresholds, 1 to 32 trees of depth 4 to
//! 8, where every leaf is reached. Values differ from batch to batch, so that branches cannot be
//! learned. `--json` prints one line of JSON per model; `--write DIR` writes models and rows of
//! values for a peer.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program for developers"
)]

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::json;
use strata_classify::{Columns, Forest, Kernel, LANES, Model, RankRows};
use strata_sketch::{Feature, Level};

/// Batches of different values; 64 of them with 22 features are 360 kB.
const BATCHES: usize = 64;
const REPEATS: usize = 60;
const ROUNDS: usize = 11;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is small.
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() >> 33).unwrap() % end
    }
}

/// The range of values and thresholds.
fn span(feature: Feature) -> usize {
    match (feature.unit(), feature.name()) {
        ("bits", _) | (_, "protocol") => 256,
        ("bytes", "bytes" | "forward_bytes" | "backward_bytes") => 1_000_000,
        ("bytes", "tcp_window" | "window_forward" | "window_backward") => 65_536,
        ("bytes", _) => 1_600,
        ("packets", _) => 5_000,
        _ => 1_000_000_000,
    }
}

/// Full trees; each split halves what is left of its feature's range on this path.
fn synthetic(trees: usize, depth: u32) -> Model {
    let names = [
        "size",
        "header_len",
        "payload_len",
        "protocol",
        "tcp_flags",
        "tcp_window",
        "packets",
        "bytes",
        "size_min",
        "size_max",
        "size_avg",
        "size_var",
        "ipd_sum",
        "ipd_min",
        "ipd_max",
        "ipd_avg",
        "ipd_var",
        "forward_bytes",
        "backward_bytes",
        "backward_size_max",
        "window_forward",
        "window_backward",
    ];
    let features = names.map(|name| Feature::by_name(name).unwrap());
    let used: Vec<_> = features
        .iter()
        .map(|f| json!({"name": f.name(), "unit": f.unit()}))
        .collect();
    let mut random = Random(u64::from(depth) << 32 | trees as u64);
    let mut tree = || {
        let splits = (1_usize << depth) - 1;
        let mut nodes = Vec::new();
        // The range still possible for each feature: an even split keeps all leaves reachable.
        let mut spans = vec![features.map(|f| (0, span(f))).to_vec()];
        for node in 0..splits {
            let mut here = spans[node].clone();
            let feature = random.below(features.len());
            let (low, high) = here[feature];
            let quarter = ((high - low) / 4).max(1);
            let at_most = low + quarter + random.below(2 * quarter);
            nodes.push(json!({"feature": feature, "at_most": at_most,
                "left": 2 * node + 1, "right": 2 * node + 2}));
            let whole = here.clone();
            here[feature] = (low, at_most.max(low + 1));
            spans.push(here);
            let mut right = whole;
            right[feature] = (at_most.min(high - 1), high);
            spans.push(right);
        }
        for leaf in 0..=splits {
            let share = f64::from(u32::try_from(leaf % 101).unwrap()) / 100.0;
            nodes.push(json!({"classes": [share, 1.0 - share]}));
        }
        json!({ "nodes": nodes })
    };
    let flow: Vec<_> = (0..trees).map(|_| tree()).collect();
    let packet = json!([{"nodes": [{"classes": [1.0, 0.0]}]}]);
    let model = json!({
        "format": "strata-model", "version": 1, "name": format!("{trees}x{depth}"),
        "window_ns": 10_000_000_000_u64,
        "classes": [{"name": "benign", "anomalous": false}, {"name": "anomalous", "anomalous": true}],
        "features": used, "flow_trees": flow, "packet_trees": packet,
        "decision": {"rules": [], "otherwise": "benign"},
    });
    Model::from_json(model.to_string().as_bytes()).unwrap()
}

/// Values of all sizes, so that packets take different paths in the trees.
fn columns(model: &Model, random: &mut Random) -> Box<Columns> {
    let mut columns: Box<Columns> = Box::new([0; 64 * LANES]);
    let rows = columns.chunks_exact_mut(LANES);
    for (feature, column) in model.feature_list().iter().zip(rows) {
        for value in column {
            let real = f64::from(u32::try_from(random.below(span(*feature))).unwrap());
            *value = feature.encode(real, model.clock()).unwrap();
        }
    }
    columns
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn measure(model: &Model) -> Vec<(Kernel, f64)> {
    let mut random = Random(7);
    let batches: Vec<_> = (0..BATCHES).map(|_| columns(model, &mut random)).collect();
    let kernels = Kernel::available();
    let forest = |&kernel: &Kernel| Forest::with_kernel(model, Level::Flow, kernel);
    let forests: Vec<Forest> = kernels.iter().map(forest).collect();
    let mut ranks = RankRows::default();
    let mut leaves = vec![[0_u16; LANES]; model.flow_trees.len()];
    let mut times = vec![Vec::new(); kernels.len()];
    for _ in 0..ROUNDS {
        for (forest, times) in forests.iter().zip(&mut times) {
            let start = Instant::now();
            for _ in 0..REPEATS {
                for columns in &batches {
                    forest.leaves(
                        black_box(columns),
                        LANES,
                        &mut ranks,
                        black_box(&mut leaves),
                    );
                }
            }
            let packets = (REPEATS * BATCHES * LANES) as f64;
            times.push(start.elapsed().as_secs_f64() * 1e9 / packets);
        }
    }
    let medians = times.iter_mut().map(|times| median(times));
    kernels.into_iter().zip(medians).collect()
}

/// One row of values per packet, in the units of the thresholds.
fn write(dir: &Path, model: &Model) {
    let mut random = Random(7);
    let mut text = String::new();
    for _ in 0..BATCHES {
        let columns = columns(model, &mut random);
        for lane in 0..LANES {
            for (index, feature) in model.feature_list().iter().enumerate() {
                let value = feature.decode(columns[index * LANES + lane], model.clock());
                text.push_str(if index == 0 { "" } else { "," });
                text.push_str(&value.to_string());
            }
            text.push('\n');
        }
    }
    std::fs::write(dir.join(format!("{}.csv", model.name)), text).unwrap();
    std::fs::write(dir.join(format!("{}.json", model.name)), model.to_json()).unwrap();
}

fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let as_json = arguments.iter().position(|a| a == "--json");
    if let Some(place) = as_json {
        arguments.remove(place);
    }
    let mut write_to: Option<PathBuf> = None;
    if let Some(place) = arguments.iter().position(|a| a == "--write") {
        write_to = Some(arguments.remove(place + 1).into());
        arguments.remove(place);
    }
    let models: Vec<Model> = if arguments.is_empty() {
        let shapes = [
            (1, 7),
            (3, 7),
            (3, 4),
            (3, 8),
            (5, 8),
            (8, 8),
            (16, 8),
            (32, 4),
            (32, 8),
        ];
        shapes
            .iter()
            .map(|&(trees, depth)| synthetic(trees, depth))
            .collect()
    } else {
        let read = |path: &String| Model::from_json(&std::fs::read(path).unwrap()).unwrap();
        arguments.iter().map(read).collect()
    };
    for model in &models {
        if let Some(dir) = &write_to {
            write(dir, model);
            continue;
        }
        let times = measure(model);
        if as_json.is_some() {
            let ns: serde_json::Map<_, _> = times
                .iter()
                .map(|(kernel, ns)| (format!("{kernel:?}"), json!(ns)))
                .collect();
            println!("{}", json!({"model": model.name, "ns_per_packet": ns}));
        } else {
            let texts = times
                .iter()
                .map(|(kernel, ns)| format!("{kernel:?} {ns:.2}"));
            let texts: Vec<String> = texts.collect();
            println!("{:>16}: ns per packet: {}", model.name, texts.join(", "));
        }
    }
}
