//! All data paths write the same log, byte for byte, however packets are batched.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail loudly too")]
#![allow(clippy::print_stdout, reason = "says which paths this machine has not")]

mod common;

use std::path::Path;

use proptest::prelude::*;
use strata_capture::{Input, InputOptions, Next, PacketRef};
use strata_classify::Model;
use strata_filter::Filter;
use strata_pipeline::{
    DataPath, Parts, RunError, Tap, Tapped, TriggerOptions, Triggers, Worker, WorkerOptions, run,
};
use strata_policy::Mode;
use strata_sketch::{BITS_DEFAULT, Pressure, TableSize};
use strata_testkit::{format_captures, labelled_captures, workspace_root};
use strata_wire::{Interface, Ledger, LinkType, Meta, TunnelKey};

use common::{Blocks, Packet, packets};

fn model() -> Model {
    let json = std::fs::read(workspace_root().join("models/default.json")).unwrap();
    Model::from_json(&json).unwrap()
}

/// Wants to see the packets of each third batch, which must not change what is recorded.
#[derive(Debug, Default)]
struct Flickering {
    batches: u32,
}

impl Tap for Flickering {
    fn is_wanted(&mut self) -> bool {
        self.batches += 1;
        self.batches.is_multiple_of(3)
    }

    fn take(&mut self, packet: &Tapped<'_>) {
        assert!(self.batches.is_multiple_of(3), "{packet:?}");
    }

    fn finish(&mut self) {}
}

/// How a recording is made.
#[derive(Clone, Debug)]
struct Setup {
    modes: Vec<&'static str>,
    filter: Option<&'static str>,
    look_back_bytes: usize,
    table: TableSize,
}

impl Setup {
    fn mode(name: &'static str) -> Self {
        Self {
            modes: vec![name],
            filter: None,
            look_back_bytes: 0,
            table: TableSize::fixed(BITS_DEFAULT),
        }
    }

    fn worker(&self, model: &Model, path: DataPath) -> (Worker<Blocks>, Blocks) {
        let sink = Blocks::default();
        let mode = |name: &&str| Mode::by_name(name, &Default::default()).unwrap();
        let options = WorkerOptions {
            modes: self.modes.iter().map(mode).collect(),
            filter: self.filter.map(|text| Filter::parse(text).unwrap()),
            tunnel_key: TunnelKey::Inner,
            hash_seed: [1, 2],
            sampling_seed: 3,
        };
        let triggers = TriggerOptions {
            look_back_bytes: self.look_back_bytes,
            ..TriggerOptions::default()
        };
        let parts = Parts {
            path,
            sketch: Some(model.new_sketch(self.table).unwrap()),
            triggers: Some(Triggers::new(&triggers)),
            tap: Some(Box::new(Flickering::default())),
            ..Parts::new(options, sink.clone())
        };
        (Worker::new(model, parts).unwrap(), sink)
    }
}

/// What a recording leaves behind.
#[derive(PartialEq)]
struct Left {
    blocks: Vec<Vec<u8>>,
    ledger: Ledger,
    pressure: Pressure,
    drift: Option<String>,
}

fn left(worker: &Worker<Blocks>, sink: &Blocks) -> Left {
    let ledger = worker.ledger();
    ledger.check().unwrap();
    Left {
        blocks: sink.sealed(),
        ledger,
        pressure: worker.pressure(),
        drift: worker
            .classifier()
            .drift()
            .map(|drift| format!("{drift:?}")),
    }
}

/// Says where two recordings differ, if they do.
fn difference(a: &Left, b: &Left) -> Option<String> {
    for (number, (a, b)) in a.blocks.iter().zip(&b.blocks).enumerate() {
        if let Some(at) = (0..a.len().max(b.len())).find(|&at| a.get(at) != b.get(at)) {
            return Some(format!("block {number} differs at byte {at}"));
        }
    }
    if a.blocks.len() != b.blocks.len() {
        return Some(format!("{} and {} blocks", a.blocks.len(), b.blocks.len()));
    }
    if a.ledger != b.ledger {
        return Some(format!("{:?}\n{:?}", a.ledger, b.ledger));
    }
    if a.pressure != b.pressure {
        return Some(format!("{:?}\n{:?}", a.pressure, b.pressure));
    }
    (a.drift != b.drift).then(|| "drift differs".into())
}

/// Records packets in batches of these sizes, in rotation.
fn record(
    model: &Model,
    setup: &Setup,
    path: DataPath,
    packets: &[Packet],
    sizes: &[usize],
) -> Left {
    let (mut worker, sink) = setup.worker(model, path);
    for (id, link) in (0..).zip([LinkType::ETHERNET, LinkType::ETHERNET, LinkType::RAW]) {
        let interface = Interface::new(link, 0);
        worker.meta(Meta::Interface { id, interface }).unwrap();
    }
    let refs: Vec<PacketRef<'_>> = packets.iter().map(Packet::as_ref).collect();
    let mut rest = refs.as_slice();
    for &size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (batch, later) = rest.split_at(size.min(rest.len()));
        worker.batch(batch).unwrap();
        rest = later;
    }
    worker.finish().unwrap();
    left(&worker, &sink)
}

/// The paths of this machine; prints which do not run.
fn paths() -> Vec<DataPath> {
    let available = DataPath::available();
    for path in [DataPath::Avx2, DataPath::Avx512, DataPath::Neon] {
        if !available.contains(&path) {
            println!("not run, since this machine cannot: {}", path.name());
        }
    }
    available
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn logs_of_all_paths_are_equal_at_any_batch_boundary(
        seed in any::<u64>(),
        count in 1_usize..3_000,
        odd_one_in in prop::sample::select(vec![3_u64, 60, 2_000, u64::MAX]),
        flows in prop::sample::select(vec![1_u64, 5, 40, 5_000]),
        sizes in prop::collection::vec(prop::sample::select(vec![1_usize, 15, 16, 63, 64, 100, 255, 256, 300, 700]), 1..6),
        modes in prop::sample::select(vec![
            vec!["default"], vec!["log-all"], vec!["log-partial"], vec!["log-minimum"],
            vec!["default", "log-sampled"],
        ]),
        filter in prop::sample::select(vec![None, None, None, Some("tcp or ip6")]),
        look_back_bytes in prop::sample::select(vec![0_usize, 0, 0, 1 << 16]),
        // Most windows of packets like these are too much for the smallest.
        bits in prop::sample::select(vec![(16, 16), (2, 9), (1, 3)]),
    ) {
        let model = model();
        let packets = packets(seed, count, flows, odd_one_in);
        let table = TableSize::growing(bits.0, bits.1);
        let setup = Setup { modes, filter, look_back_bytes, table };
        let expected = record(&model, &setup, DataPath::Reference, &packets, &[64]);
        for path in paths() {
            let found = record(&model, &setup, path, &packets, &sizes);
            if let Some(difference) = difference(&expected, &found) {
                prop_assert!(false, "{}: {difference}", path.name());
            }
        }
    }
}

/// The table of flows grows with the packets, wherever batches end: within a batch too.
#[test]
fn logs_of_all_paths_are_equal_while_the_table_of_flows_grows() {
    let mut model = model();
    // Packets are 100 us apart on average: a new window every 300 of them.
    model.window_ns = 30_000_000;
    let packets = packets(5, 20_000, 5_000, u64::MAX);
    let setup = Setup {
        table: TableSize::growing(2, 8),
        ..Setup::mode("default")
    };
    let expected = record(&model, &setup, DataPath::Reference, &packets, &[64]);
    // 2^8 in each layer are needed for 300 flows, and it grows through all sizes.
    assert_eq!(expected.pressure.buckets, 2 << 8);
    for path in paths() {
        for sizes in [&[256][..], &[1, 255, 17, 64], &[700]] {
            let found = record(&model, &setup, path, &packets, sizes);
            assert_eq!(difference(&expected, &found), None, "{}", path.name());
        }
    }
}

/// Records a capture file, as it is read; `None` if it is refused at once.
fn record_file(model: &Model, path: DataPath, file: &Path) -> Option<Left> {
    let mut input = Input::open(&[file.to_path_buf()], &InputOptions::default()).ok()?;
    let (mut worker, sink) = Setup::mode("default").worker(model, path);
    match run(&mut input, &mut worker, |_| {
        std::ops::ControlFlow::Continue(())
    }) {
        Ok(()) | Err(RunError::Capture(_)) => {}
        Err(error) => panic!("{}: {error}", file.display()),
    }
    Some(left(&worker, &sink))
}

/// The same file, its packets handed over in batches of another size.
fn record_file_in_batches(model: &Model, path: DataPath, file: &Path, size: usize) -> Left {
    let mut input = Input::open(&[file.to_path_buf()], &InputOptions::default()).unwrap();
    let (mut worker, sink) = Setup::mode("default").worker(model, path);
    // A damaged file ends where the damage is.
    while let Ok(next) = input.advance() {
        match next {
            Next::End => break,
            Next::Meta(meta) => worker.meta(meta).unwrap(),
            Next::Packets => {
                let batch: Vec<PacketRef<'_>> = input.batch().iter().collect();
                for part in batch.chunks(size) {
                    worker.batch(part).unwrap();
                }
            }
        }
    }
    worker.finish().unwrap();
    left(&worker, &sink)
}

#[test]
fn logs_of_all_paths_are_equal_on_every_capture() {
    let model = model();
    let mut compared = 0;
    for file in format_captures().into_iter().chain(labelled_captures()) {
        let Some(expected) = record_file(&model, DataPath::Reference, &file) else {
            continue;
        };
        for path in paths() {
            let found = if path == DataPath::Reference {
                record_file_in_batches(&model, path, &file, 37)
            } else {
                record_file(&model, path, &file).unwrap()
            };
            let difference = difference(&expected, &found);
            assert_eq!(difference, None, "{}: {}", path.name(), file.display());
            compared += 1;
        }
    }
    assert!(compared > 2_000, "only {compared}");
}
