//! A table of flows grows in the sandbox of a recording.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail loudly too")]

use std::sync::mpsc::channel;
use std::thread;

use strata_sandbox::{Role, restrict_process, restrict_thread};
use strata_sketch::{Arithmetic, Clock, PacketFacts, Sketch, TableSize};
use strata_wire::mix64;

const WINDOW_NS: u64 = 1_000_000_000;

fn fill(sketch: &mut Sketch, window: u64) {
    for flow in 0..100_000 {
        sketch.insert(&PacketFacts {
            fingerprint: mix64(flow + 1),
            ts_ns: window * WINDOW_NS,
            size: 100,
            ..PacketFacts::default()
        });
    }
}

/// The system calls that this needs are those of the roles: of the thread that prepares memory, and
/// of the worker that grows into it.
#[test]
fn it_grows_in_the_sandbox() {
    let size = TableSize::growing(13, 15);
    let mut sketch = Sketch::growing(size, Clock::new(WINDOW_NS), Arithmetic::Exact).unwrap();
    sketch.make_present().unwrap();
    sketch.grow_when_prepared();
    // Restrictions hold for this thread and those that it starts.
    let sandboxed = thread::spawn(move || {
        restrict_process().unwrap();
        let (ask, asked) = channel();
        let (tell, told) = channel();
        let helper = thread::spawn(move || {
            restrict_thread(Role::Memory).unwrap();
            for preparation in asked {
                let preparation: strata_sketch::Preparation = preparation;
                tell.send(preparation.run()).unwrap();
            }
        });
        let worker = thread::spawn(move || {
            restrict_thread(Role::Worker).unwrap();
            for window in 1..4 {
                fill(&mut sketch, window);
                if let Some(preparation) = sketch.preparation() {
                    ask.send(preparation).unwrap();
                    told.recv().unwrap().unwrap();
                }
            }
            sketch.pressure()
        });
        let pressure = worker.join().unwrap();
        helper.join().unwrap();
        pressure
    });
    let pressure = sandboxed.join().unwrap();
    assert_eq!((pressure.buckets, pressure.growths_refused), (1 << 16, 0));
}
