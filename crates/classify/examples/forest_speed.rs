//! What the forest costs per packet: the batch and its naive twin, in turns.
//!
//!     cargo run --release -p strata-classify --example forest_speed [MODEL.json]
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program for developers"
)]

use std::hint::black_box;
use std::time::Instant;

use strata_classify::{Columns, Forest, LANES, Model};
use strata_sketch::Level;

const BATCHES: usize = 20_000;
const ROUNDS: usize = 9;

/// Values of all sizes, so that packets part ways in the trees.
fn columns(model: &Model) -> Box<Columns> {
    let mut columns: Box<Columns> = Box::new([0; 64 * LANES]);
    let mut state = 1_u64;
    for (feature, column) in model
        .feature_list()
        .iter()
        .zip(columns.chunks_exact_mut(LANES))
    {
        for value in column {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let real = f64::from(u32::try_from(state >> 40).unwrap()) / 4096.0;
            let real = if feature.unit() == "ns" {
                real * 1e6
            } else {
                real
            };
            *value = feature.encode(real, model.clock()).unwrap();
        }
    }
    columns
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let path = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "models/default.json".into());
    let model = Model::from_json(&std::fs::read(&path).unwrap()).unwrap();
    let columns = columns(&model);
    let forest = Forest::new(&model, Level::Flow);
    let mut leaves = vec![[0_u16; LANES]; forest.tree_count()];
    let rows: Vec<Vec<u32>> = (0..LANES)
        .map(|lane| {
            (0..model.features.len())
                .map(|f| columns[f * LANES + lane])
                .collect()
        })
        .collect();
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..BATCHES {
            forest.leaves(black_box(&columns), black_box(&mut leaves));
        }
        times[0].push(start.elapsed().as_secs_f64() * 1e9 / (BATCHES * LANES) as f64);
        let start = Instant::now();
        for row in &rows {
            black_box(model.leaves_naive(Level::Flow, black_box(row)));
        }
        times[1].push(start.elapsed().as_secs_f64() * 1e9 / LANES as f64);
    }
    let trees = model.flow_trees.len();
    println!("{path}: {trees} flow trees, ns per packet, median of {ROUNDS} rounds");
    for (name, times) in ["batch", "naive"].iter().zip(times) {
        println!("{name:>6}: {:.1}", median(times));
    }
}
