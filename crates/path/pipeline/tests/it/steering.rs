//! Policies in the data path, and plans that change while packets come.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use strata_capture::{Input, InputOptions, Next};
use strata_classify::Model;
use strata_filter::Filter;
use strata_pipeline::{Parts, Worker, WorkerOptions, run};
use strata_policy::{Mode, Plan, Steering};
use strata_query::{ExportOptions, FileFormat, Find, export};
use strata_rules::{Action, PacketFields, Policies, Policy, UNTAGGED, regions};
use strata_store::{About, Disk, Log, Recorder, RecorderOptions};
use strata_testkit::{data_dir, workspace_root};
use strata_testkit_disk::SimDisk;
use strata_wire::dissect::dissect;
use strata_wire::{Ledger, LinkType, TunnelKey};

fn model() -> Model {
    let path = workspace_root().join("models/default.json");
    Model::from_json(&std::fs::read(path).unwrap()).unwrap()
}

fn trace() -> PathBuf {
    data_dir().join("labelled/mix-test/trace.pcap")
}

fn policy(priority: u16, filter: &str, action: &str) -> Policy {
    Policy {
        priority,
        ..Policy::new(Filter::parse(filter).unwrap(), action.parse().unwrap())
    }
}

fn plan(model: &Model, mode: &str, policies: &[Policy], default: &str) -> Plan {
    let mode = Mode::by_name(mode, &BTreeMap::new()).unwrap();
    let ready = Policies::new(policies, default.parse().unwrap()).unwrap();
    Plan::new(model, &[mode])
        .unwrap()
        .with_policies(Arc::new(ready))
}

struct Recording {
    disk: Arc<dyn Disk>,
    recorder: Recorder,
    worker: Worker,
}

fn start(model: &Model, steering: Option<Arc<Steering>>) -> Recording {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let about = About {
        model_json: model.to_json().into_bytes(),
        ..About::default()
    };
    let options = RecorderOptions {
        block_bytes: 64 << 10,
        ..RecorderOptions::default()
    };
    let (recorder, sink) = Recorder::start(Arc::clone(&disk), options, &about).unwrap();
    let options = WorkerOptions {
        modes: vec![Mode::by_name("default", &BTreeMap::new()).unwrap()],
        filter: None,
        dedup: None,
        tunnel_key: TunnelKey::Inner,
        hash_seed: [1, 2],
        sampling_seed: 0,
    };
    let parts = Parts {
        steering,
        ..Parts::new(options, sink)
    };
    let worker = Worker::new(model, parts).unwrap();
    Recording {
        disk,
        recorder,
        worker,
    }
}

impl Recording {
    fn finish(self) -> (Ledger, Vec<u8>) {
        let ledger = self.worker.ledger();
        drop(self.worker);
        self.recorder.finish(&ledger, Vec::new()).unwrap();
        ledger.check().unwrap();
        assert_eq!(ledger.in_flight.packets, 0);
        let log = Log::on(self.disk).unwrap();
        let mut file = Vec::new();
        let options = ExportOptions {
            comments: true,
            ..ExportOptions::default()
        };
        let done = export(
            &log,
            &mut file,
            FileFormat::PcapNg,
            &Find::default(),
            options,
        )
        .unwrap();
        assert_eq!(done.packets, ledger.logged.packets);
        (ledger, file)
    }
}

/// How many packets of the trace are in the regions of each expression. That these match what the
/// filter takes is tested where they are made.
fn matching(expressions: &[&str]) -> Vec<u64> {
    let regions = expressions.iter().map(|text| {
        let filter = Filter::parse(text).unwrap();
        regions(&filter).unwrap()
    });
    let regions: Vec<_> = regions.collect();
    let mut counts = vec![0; expressions.len()];
    let mut input = Input::open(&[trace()], &InputOptions::default()).unwrap();
    loop {
        match input.advance().unwrap() {
            Next::Packets => {
                let batch = input.batch();
                for packet in batch {
                    let headers = dissect(LinkType::ETHERNET, packet.data, TunnelKey::Inner);
                    let fields = PacketFields::new(&headers, 0, UNTAGGED);
                    for (count, regions) in counts.iter_mut().zip(&regions) {
                        let holds = regions.iter().any(|region| region.contains(&fields));
                        *count += u64::from(holds);
                    }
                }
            }
            Next::Meta(_) => {}
            Next::End => return counts,
        }
    }
}

#[test]
fn policies_keep_what_they_say_and_count_it() {
    let model = model();
    let policies = [
        policy(200, "tcp port 443", "drop"),
        policy(100, "tcp", "header"),
        policy(100, "tcp port 80", "full"),
        policy(50, "udp", "classify 1/4"),
    ];
    let steering = Steering::new(plan(&model, "log-all", &policies, "drop"));
    let mut recording = start(&model, Some(steering));
    let mut input = Input::open(&[trace()], &InputOptions::default()).unwrap();
    run(&mut input, &mut recording.worker, |_| {
        ControlFlow::Continue(())
    })
    .unwrap();
    let (ledger, _) = recording.finish();

    let counts = matching(&[
        "tcp port 443",
        "tcp",
        "tcp port 80",
        "udp",
        "not tcp and not udp",
    ]);
    let [https, tcp, http, udp, others] = counts[..] else {
        panic!("one count for each filter");
    };
    assert!(https > 100 && http > 100 && udp > 100, "{counts:?}");
    assert_eq!(ledger.discarded.packets, https + others);
    assert_eq!(
        ledger.logged.packets + ledger.sampled_out.packets,
        tcp - https + udp
    );
    let sampled = ledger.sampled_out.packets;
    assert!(
        (udp * 6 / 10..udp * 9 / 10).contains(&sampled),
        "{sampled} of {udp}"
    );
    let hits: Vec<u64> = policies
        .iter()
        .map(|policy| policy.hits.counters().packets)
        .collect();
    // A packet with ports 80 and 443 would belong to the first.
    let both = matching(&["tcp port 443 and tcp port 80"])[0];
    assert_eq!(hits, [https, tcp - https, http - both, udp]);
}

#[test]
fn without_policies_nothing_changes() {
    let model = model();
    let mut accounting = Vec::new();
    for policies in [None, Some(Action::CLASSIFY)] {
        // One that matches nothing, so that every packet goes through the rules.
        let none = [policy(1, "host 203.0.113.77", "drop")];
        let steering = policies.map(|_| Steering::new(plan(&model, "default", &none, "classify")));
        let mut recording = start(&model, steering);
        let mut input = Input::open(&[trace()], &InputOptions::default()).unwrap();
        run(&mut input, &mut recording.worker, |_| {
            ControlFlow::Continue(())
        })
        .unwrap();
        accounting.push(recording.finish().0);
    }
    assert_eq!(accounting[0], accounting[1]);
}

/// A mode and a policy change under load: every packet is counted, no packet is lost, and each
/// names the mode that it was kept by.
#[test]
fn changes_under_load_lose_nothing() {
    let model = model();
    let steering = Steering::new(plan(&model, "log-all", &[], "classify"));
    let mut recording = start(&model, Some(Arc::clone(&steering)));
    let done = Arc::new(AtomicBool::new(false));
    let changer = {
        let (steering, done, model) = (Arc::clone(&steering), Arc::clone(&done), model.clone());
        thread::spawn(move || {
            let mut changes = 0_u64;
            while !done.load(Ordering::Relaxed) {
                let mode =
                    ["log-all", "log-partial", "default"][usize::try_from(changes % 3).unwrap()];
                let policies = [policy(1, "udp port 53", "full")];
                let policies = if changes.is_multiple_of(2) {
                    &policies[..]
                } else {
                    &[]
                };
                steering.publish(plan(&model, mode, policies, "classify"), Instant::now());
                changes += 1;
                thread::sleep(Duration::from_micros(300));
            }
            changes
        })
    };
    let mut seen = 0;
    for _ in 0..3 {
        let mut input = Input::open(&[trace()], &InputOptions::default()).unwrap();
        run(&mut input, &mut recording.worker, |_| {
            ControlFlow::Continue(())
        })
        .unwrap();
        seen += matching(&[""])[0];
    }
    done.store(true, Ordering::Relaxed);
    let changes = changer.join().unwrap();
    let (ledger, exported) = recording.finish();
    assert_eq!(ledger.seen.packets, seen);
    assert_eq!(ledger.logged.packets, seen, "{ledger}");
    let delays = steering.delays();
    assert!(
        changes > 10 && delays.count() > 5,
        "{changes} changes, {} seen",
        delays.count()
    );
    let has = |text: &str| exported.windows(text.len()).any(|w| w == text.as_bytes());
    for mode in ["mode=log-all", "mode=log-partial", "mode=default"] {
        assert!(has(mode), "{mode}");
    }
    eprintln!(
        "{changes} changes, {} picked up: median {:?}, p99 {:?}",
        delays.count(),
        delays.quantile(0.5).unwrap(),
        delays.quantile(0.99).unwrap()
    );
}

/// A worker without packets switches too when woken, and that is how long a change takes.
#[test]
fn a_worker_without_packets_switches_when_it_is_idle() {
    let model = model();
    let steering = Steering::new(plan(&model, "log-all", &[], "classify"));
    let mut recording = start(&model, Some(Arc::clone(&steering)));
    recording.worker.idle().unwrap();
    assert_eq!(steering.delays().count(), 0, "it begins with a plan");
    for _ in 0..3 {
        let changed = plan(&model, "log-partial", &[], "classify");
        steering.publish(changed, Instant::now());
        recording.worker.idle().unwrap();
        recording.worker.idle().unwrap();
    }
    assert_eq!(steering.delays().count(), 3);
    recording.finish();
}
