//! The parts of a simulation of any protocol: virtual time with an event queue, seeded randomness,
//! a network that loses, delays and duplicates. Each protocol's own world connects its state
//! machines with them.
//!
//! A run depends on its seed only: no clock, no threads, no memory addresses. So a failing seed
//! fails again ([`seeds`] says how).

mod network;
mod queue;
mod rng;

pub use network::{Datagrams, Weather};
pub use queue::Queue;
pub use rng::Rng;

/// Nanoseconds per millisecond.
pub const MS: u64 = 1_000_000;
/// Nanoseconds per second.
pub const SECOND: u64 = 1000 * MS;

/// Runs `world` with many seeds: as many as the variable `SEEDS` says, by default `usual`; or with
/// the one in `SEED`. As many threads as CPUs work on them.
///
/// # Panics
///
/// With the seed and how to repeat it, if a world panics.
pub fn seeds(usual: u64, world: impl Fn(u64) + Sync) {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(
            text.parse()
                .unwrap_or_else(|_| panic!("{name}={text}: not a number")),
        )
    };
    if let Some(seed) = number("SEED") {
        return world(seed);
    }
    let seeds = number("SEEDS").unwrap_or(usual);
    let next = std::sync::atomic::AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        loop {
            let seed = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            if seed >= seeds {
                return;
            }
            let run = std::panic::AssertUnwindSafe(|| world(seed));
            if let Err(panic) = std::panic::catch_unwind(run) {
                next.store(seeds, std::sync::atomic::Ordering::Relaxed);
                #[allow(clippy::print_stderr, reason = "says how to repeat it")]
                {
                    eprintln!("seed {seed} fails: run it again with SEED={seed}");
                }
                std::panic::resume_unwind(panic);
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
}
