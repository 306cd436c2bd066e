//! A system that refuses memory. In a process of its own, since the limit holds for all of it.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail loudly too")]

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use strata_sketch::{Arithmetic, Clock, PacketFacts, Sketch, TableSize};
use strata_wire::mix64;

const WINDOW_NS: u64 = 1_000_000_000;
const FLOWS: u64 = 400_000;
/// For whatever else allocates.
const SPARE: u64 = 4 << 20;

fn limit(resource: Resource, bytes: Option<u64>) {
    let maximum = getrlimit(resource).maximum;
    let current = bytes;
    setrlimit(resource, Rlimit { current, maximum }).unwrap();
}

/// Bytes of the process, by this line of /proc/self/status.
fn bytes(line: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|text| text.strip_prefix(line));
    let kib = line.unwrap().trim_matches([':', ' ', '\t', 'k', 'B']);
    kib.parse::<u64>().unwrap() << 10
}

fn fill(sketch: &mut Sketch, window: u64) {
    for flow in 0..FLOWS {
        sketch.insert(&PacketFacts {
            fingerprint: mix64(flow + 1),
            ts_ns: window * WINDOW_NS,
            size: 100,
            ..PacketFacts::default()
        });
    }
}

/// The buckets of a sketch, and how often it was refused more.
fn state(sketch: &Sketch) -> (u64, u64) {
    let pressure = sketch.pressure();
    (pressure.buckets, pressure.growths_refused)
}

#[test]
fn without_memory_it_stays_as_it_is_and_counts_on() {
    let clock = Clock::new(WINDOW_NS);
    let new = |size| Sketch::growing(size, clock, Arithmetic::Exact);
    let mut sketch = new(TableSize::growing(16, 20)).unwrap();
    fill(&mut sketch, 1);
    // Private memory that may be written, as with ulimit -d: 8 MiB are missing.
    limit(Resource::Data, Some(bytes("VmData") + SPARE));
    fill(&mut sketch, 2);
    let (second, packets) = (state(&sketch), sketch.pressure().packets);
    // It tries again, as long as it is short.
    fill(&mut sketch, 3);
    let third = state(&sketch);
    limit(Resource::Data, None);
    fill(&mut sketch, 4);
    assert_eq!((second, packets), ((2 << 16, 1), 2 * FLOWS));
    assert_eq!(third, (2 << 16, 2));
    assert_eq!(state(&sketch), (2 << 17, 2));

    // Address space for less than was requested, as with ulimit -v: a lower limit, no failure.
    limit(Resource::As, Some(bytes("VmSize") + (40 << 20)));
    let lower = new(TableSize::growing(20, 22));
    limit(Resource::As, Some(bytes("VmSize") + (1 << 20)));
    let none = new(TableSize::growing(20, 22));
    limit(Resource::As, None);
    // There was room for two layers of 16 MiB; half of that is left for others.
    assert_eq!(state(&lower.unwrap()), (2 << 17, 1));
    assert!(none.is_err());
}
