//! How fast blocks are written to a disk, by the number in flight at a time, bypassing and through
//! the page cache; sync included.
//!
//!     cargo run --release -p strata-store --example disk_speed -- DIR [MIB]
//!
//! Prints JSON: medians of five rounds in MB/s, alternating between the two.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    reason = "a program for developers"
)]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use strata_store::{Disk, DiskChoice, RealDisk, WriteQueue};
use strata_sys::AlignedBytes;
use strata_sys::disk::OwnBlock;

const ROUNDS: usize = 5;
const BLOCK_BYTES: usize = 1 << 20;
/// As many as a worker has.
const BLOCKS: usize = 8;

/// Seconds to write this many blocks.
fn run(disk: &RealDisk, in_flight: usize, blocks: u64) -> f64 {
    let _ = disk.remove("speed");
    let mut file = disk.create_for_blocks("speed").unwrap();
    let mut queue = WriteQueue::<OwnBlock>::new(in_flight);
    let memory: Vec<AlignedBytes> = (0..BLOCKS)
        .map(|_| {
            let mut memory = AlignedBytes::zeroed(BLOCK_BYTES);
            memory.fill(1);
            memory
        })
        .collect();
    let buffers: Vec<&[u8]> = memory.iter().map(|memory| &memory[..]).collect();
    let registered = queue.register(&buffers);
    let mut free: Vec<OwnBlock> = (0..)
        .zip(memory)
        .map(|(number, memory)| OwnBlock::new(memory, BLOCK_BYTES, registered.then_some(number)))
        .collect();
    let begun = Instant::now();
    for number in 0..blocks {
        if !queue.has_room() || free.is_empty() {
            let (block, outcome) = queue.complete().unwrap();
            outcome.unwrap();
            free.push(block);
        }
        let block = free.pop().unwrap();
        queue.submit(file.as_mut(), block, number * BLOCK_BYTES as u64);
    }
    while let Some((_, outcome)) = queue.complete() {
        outcome.unwrap();
    }
    file.sync().unwrap();
    let seconds = begun.elapsed().as_secs_f64();
    disk.remove("speed").unwrap();
    seconds
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().expect("disk_speed DIR [MIB]");
    let blocks: u64 = arguments.next().map_or(512, |mib| mib.parse().unwrap());
    let mut disk = RealDisk::create_dir(Path::new(&dir)).unwrap();
    let mut times: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for _ in 0..ROUNDS {
        for (name, choice) in [
            ("direct", DiskChoice::Direct),
            ("buffered", DiskChoice::Buffered),
        ] {
            if disk.choose(choice).is_err() {
                continue;
            }
            for in_flight in [1, 2, 4, 8] {
                let seconds = run(&disk, in_flight, blocks);
                let way = format!("{name}_{in_flight}_in_flight");
                times.entry(way).or_default().push(seconds);
            }
        }
    }
    let bytes = (blocks * BLOCK_BYTES as u64) as f64;
    let medians: BTreeMap<String, f64> = times
        .into_iter()
        .map(|(name, mut seconds)| {
            seconds.sort_by(f64::total_cmp);
            (name, (bytes / seconds[ROUNDS / 2] / 1e6).round())
        })
        .collect();
    println!("{}", serde_json::to_string_pretty(&medians).unwrap());
}
