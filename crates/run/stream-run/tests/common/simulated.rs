//! Streams on simulated disks, run by seeds.
#![allow(clippy::print_stderr, reason = "the seed of a failed run")]

use std::panic::{RefUnwindSafe, catch_unwind, resume_unwind};

use strata_stream::Geometry;
use strata_wire::mix64;

/// Small pages, so that a run has many.
pub(crate) const GEOMETRY: Geometry = Geometry {
    directory_bytes: 64,
    table_bytes: 4096,
    page_bytes: 1 << 16,
};

/// Numbers from a seed.
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix64(self.0) % bound
    }

    pub(crate) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("less than a length")
    }
}

/// Runs each seed: 40, or as many as `SEEDS` says, or that of `SEED`. One that fails is printed.
pub(crate) fn each_seed(run: impl Fn(u64) + RefUnwindSafe) {
    let number = |name: &str| {
        let text = std::env::var(name).ok();
        text.map(|text| text.parse::<u64>().expect("a number"))
    };
    let seeds = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(40),
    };
    for seed in seeds {
        if let Err(panic) = catch_unwind(|| run(seed)) {
            eprintln!("SEED={seed} runs this one");
            resume_unwind(panic);
        }
    }
}
