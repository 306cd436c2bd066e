//! The data path does not allocate.
//!
//! A binary of its own: its allocator counts.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail loudly too")]

use std::collections::BTreeMap;
use std::sync::Arc;

use strata_capture::{Input, InputOptions, Next, PacketRef};
use strata_classify::Model;
use strata_pipeline::{Parts, Worker, WorkerOptions};
use strata_policy::Mode;
use strata_store::{About, Recorder, RecorderOptions};
use strata_testkit::{CountingAllocator, allocations, data_dir, workspace_root};
use strata_testkit_disk::NullDisk;
use strata_wire::{Interface, LinkType, Meta, TunnelKey};

#[global_allocator]
static COUNTING: CountingAllocator = CountingAllocator;

/// A real capture through a worker, over many blocks: once every verdict has been seen, not a
/// single allocation.
#[test]
fn a_worker_does_not_allocate() {
    let path = data_dir().join("labelled/mix-test/trace.pcap");
    let mut input = Input::open(&[path], &InputOptions::default()).unwrap();
    let mut packets: Vec<(u64, u32, Vec<u8>)> = Vec::new();
    loop {
        match input.advance().unwrap() {
            Next::End => break,
            Next::Meta(_) => {}
            Next::Packets => packets.extend(
                input
                    .batch()
                    .iter()
                    .map(|packet| (packet.ts_ns, packet.wire_len, packet.data.to_vec())),
            ),
        }
    }
    let refs: Vec<PacketRef<'_>> = packets
        .iter()
        .map(|(ts_ns, wire_len, data)| PacketRef {
            ts_ns: *ts_ns,
            interface: 0,
            wire_len: *wire_len,
            data,
            options: &[],
            has_timestamp: true,
        })
        .collect();
    let model = std::fs::read(workspace_root().join("models/default.json")).unwrap();
    let model = Model::from_json(&model).unwrap();
    let about = About {
        program: String::new(),
        inputs: Vec::new(),
        filter: String::new(),
        mode: "default".into(),
        model: model.name.clone(),
        model_json: Vec::new(),
        shadow: None,
        classes: model.class_names(),
        hash_seed: [1, 2],
        look_back: false,
        live: false,
    };
    let options = WorkerOptions {
        modes: vec![Mode::by_name("default", &BTreeMap::new()).unwrap()],
        filter: None,
        dedup: None,
        tunnel_key: TunnelKey::Inner,
        hash_seed: [1, 2],
        sampling_seed: 3,
    };
    let small = RecorderOptions {
        block_bytes: 64 << 10,
        ..RecorderOptions::default()
    };
    let (recorder, sink) = Recorder::start(Arc::new(NullDisk), small, &about).unwrap();
    let mut worker = Worker::new(&model, Parts::new(options, sink)).unwrap();
    let interface = Interface::new(LinkType::ETHERNET, 0);
    worker.meta(Meta::Interface { id: 0, interface }).unwrap();
    let mut pass = || {
        let before = allocations();
        for batch in refs.chunks(256) {
            worker.batch(batch).unwrap();
        }
        allocations() - before
    };
    let first = pass();
    assert!(first > 0, "verdicts are met for the first time");
    // The sketch is in another state by then, so a packet may get a new verdict.
    let last = (0..9).map(|_| pass()).find(|&allocations| allocations == 0);
    assert_eq!(last, Some(0), "allocations on the data path");
    worker.finish().unwrap();
    let ledger = worker.ledger();
    ledger.check().unwrap();
    recorder.finish(&ledger, Vec::new()).unwrap();
}
