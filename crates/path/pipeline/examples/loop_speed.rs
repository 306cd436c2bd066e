//! What the data-plane loop costs per packet: packets in memory, records into blocks whose writes
//! go nowhere; measured in turns with a memcpy of the same packets.
//!
//!     cargo run --release -p strata-pipeline --example loop_speed -- TRACE.pcap
//!         [MODEL.json] [MODE] [ROUNDS] [look-back=BYTES] [first-bytes=BYTES] [passes=N]
//!         [counted=PACKETS] [warm=N] [memory=BYTES] [filter=EXPRESSION] [policy=EXPRESSION]
//!         [policies=N] [detail=BUDGET] [cut=BYTES]
//!
//! `memory` is the limit of a worker's table of flows (512 MiB); `warm` passes come before each one
//! that is measured, so that the table has grown. `policy` keeps only headers of what it matches;
//! `policies` is how many of a set of ten on addresses and ports apply.
//! `look-back`, `first-bytes` and `detail` are those of `strata record`. `cut` is how much of each packet
//! the kernel has copied with `--early-cut`, whose table is left out. `passes` runs only one worker, which
//! goes over the packets that many times, the last `counted` of them in a thread of that name: for
//! counting instructions.
//!
//! Prints JSON: medians in ns per packet and Gb/s, and how much faster two workers
//! are. One worker has one core; its writer thread, which seals blocks, has another. Two workers
//! have two of these: `memcpy_two_over_one` says what memory allows two threads that copy the
//! same halves, `larger_half` how evenly flows share the packets, and `loop_cpu_ns_of_two` what
//! a packet costs then, without waiting for a core.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    reason = "a program for developers"
)]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use strata_capture::{Input, InputOptions, Next, PacketRef};
use strata_classify::Model;
use strata_filter::Filter;
use strata_pipeline::{
    DataPath, EnoughOfFlows, FlowFinder, Parts, TriggerOptions, Triggers, Worker, WorkerOptions,
};
use strata_policy::{DetailBudget, Mode, Plan, Steering};
use strata_rules::{Action, Policies, Policy};
use strata_sketch::{Pressure, TableSize};
use strata_store::{About, Recorder, RecorderOptions};
use strata_testkit_disk::NullDisk;
use strata_wire::{FlowKey, Interface, Ledger, LinkType, Meta, Summed as _, TunnelKey};

const ROUNDS: usize = 7;
const HASH_SEED: [u64; 2] = [1, 2];
/// As of a live recording.
const SNAPLEN: u32 = 262_144;
/// Packets handed over at a time.
const BATCH: usize = 256;

/// A set of policies of ordinary size.
const POLICIES: [(&str, &str); 10] = [
    ("host 172.31.10.80", "full"),
    ("dst net 10.16.0.0/12", "header"),
    ("src net 10.16.0.0/12 and tcp", "header"),
    ("tcp port 993", "header"),
    ("udp port 53", "full"),
    ("net 198.18.0.0/16", "partial 128"),
    ("tcp dst port 8080", "partial 64"),
    ("src net 172.25.0.0/16 and tcp src port 443", "header"),
    ("dst net 172.27.0.0/16", "classify"),
    ("port 8443", "drop"),
];

/// A capture in memory, one packet after another, each on its own cache line as in a ring.
struct Trace {
    bytes: Vec<u8>,
    packets: Vec<(usize, usize, u64, u32)>,
}

impl Trace {
    fn read(path: &Path) -> Self {
        let mut input = Input::open(&[path.to_owned()], &InputOptions::default()).unwrap();
        let mut trace = Self {
            bytes: Vec::new(),
            packets: Vec::new(),
        };
        loop {
            match input.advance().unwrap() {
                Next::End => return trace,
                Next::Meta(_) => {}
                Next::Packets => {
                    for packet in input.batch() {
                        let start = trace.bytes.len().next_multiple_of(64);
                        trace.bytes.resize(start, 0);
                        trace.bytes.extend_from_slice(packet.data);
                        let entry = (start, packet.data.len(), packet.ts_ns, packet.wire_len);
                        trace.packets.push(entry);
                    }
                }
            }
        }
    }

    /// The packets, with at most this many bytes.
    fn refs(&self, cut: usize) -> Vec<PacketRef<'_>> {
        let packets = self.packets.iter();
        packets
            .map(|&(start, len, ts_ns, wire_len)| PacketRef {
                ts_ns,
                interface: 0,
                wire_len,
                data: &self.bytes[start..start + len.min(cut)],
                options: &[],
                has_timestamp: true,
            })
            .collect()
    }
}

/// What is measured.
struct Setup {
    model: Model,
    mode: Mode,
    triggers: TriggerOptions,
    passes: usize,
    counted: usize,
    warm: usize,
    table: TableSize,
    filter: Option<Filter>,
    policies: Vec<Policy>,
    detail: Option<DetailBudget>,
    is_cut: bool,
}

/// In place of the kernel's table.
#[derive(Debug)]
struct NoTable;

impl EnoughOfFlows for NoTable {
    fn keep_whole(&self, flow: &FlowKey) {
        black_box(flow);
    }

    fn cut(&self, flow: &FlowKey, bytes: u16) {
        black_box((flow, bytes));
    }

    fn cut_at_once(&self, flow: &FlowKey, bytes: u16) {
        black_box((flow, bytes));
    }
}

/// A worker, its pressure before what is measured, and the CPU time of that.
struct Ran {
    worker: Worker,
    before: Pressure,
    cpu_ns: u64,
}

/// CPU time of this thread: on a busy machine, it says more than the clock.
fn cpu_ns() -> u64 {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    times.split_whitespace().next().unwrap().parse().unwrap()
}

/// What the log would say about itself.
fn about(setup: &Setup) -> About {
    About {
        program: String::new(),
        inputs: Vec::new(),
        filter: String::new(),
        mode: setup.mode.name.clone(),
        model: setup.model.name.clone(),
        model_json: Vec::new(),
        shadow: None,
        classes: setup.model.class_names(),
        hash_seed: HASH_SEED,
        look_back: setup.triggers.look_back_bytes > 0,
        live: false,
    }
}

/// Seconds until new workers, one per part, have finished with their packets.
fn run(parts: &[Vec<PacketRef<'_>>], setup: &Setup) -> (f64, Vec<Ran>) {
    let (model, mode) = (&setup.model, &setup.mode);
    let about = about(setup);
    let options = WorkerOptions {
        modes: vec![mode.clone()],
        filter: setup.filter.clone(),
        dedup: None,
        tunnel_key: TunnelKey::Inner,
        hash_seed: HASH_SEED,
        sampling_seed: 3,
    };
    let count = u16::try_from(parts.len()).unwrap();
    let (recorder, sinks) = Recorder::start_workers(
        Arc::new(NullDisk),
        RecorderOptions::default(),
        &about,
        count,
    )
    .unwrap();
    let plan = Plan::new(model, std::slice::from_ref(mode)).unwrap();
    let plan = plan.with_detail(setup.detail);
    let steering = Steering::new(match setup.policies.as_slice() {
        [] => plan,
        policies => {
            let policies = Policies::new(policies, Action::CLASSIFY).unwrap();
            plan.with_policies(Arc::new(policies))
        }
    });
    let mut workers = Vec::new();
    for sink in sinks {
        let mut sketch = model.new_sketch(setup.table).unwrap();
        sketch.make_present().unwrap();
        let parts = Parts {
            sketch: Some(sketch),
            triggers: Some(Triggers::new(&setup.triggers)),
            path: DataPath::chosen().unwrap(),
            steering: Some(Arc::clone(&steering)),
            enough: setup
                .is_cut
                .then(|| -> Box<dyn EnoughOfFlows> { Box::new(NoTable) }),
            ..Parts::new(options.clone(), sink)
        };
        let mut worker = Worker::new(model, parts).unwrap();
        let interface = Interface::new(LinkType::ETHERNET, SNAPLEN);
        worker.meta(Meta::Interface { id: 0, interface }).unwrap();
        workers.push(worker);
    }
    let record = |worker: &mut Worker, packets: &[PacketRef<'_>]| {
        for batch in packets.chunks(BATCH) {
            worker.batch(batch).unwrap();
        }
    };
    if setup.warm > 0 {
        thread::scope(|scope| {
            for (worker, packets) in workers.iter_mut().zip(parts) {
                scope.spawn(|| (0..setup.warm).for_each(|_| record(worker, packets)));
            }
        });
    }
    let pressures: Vec<Pressure> = workers.iter().map(Worker::pressure).collect();
    let mut cpu = vec![0; workers.len()];
    let begun = Instant::now();
    thread::scope(|scope| {
        for ((worker, packets), cpu) in workers.iter_mut().zip(parts).zip(&mut cpu) {
            scope.spawn(|| {
                let before = cpu_ns();
                for _ in 1..setup.passes {
                    record(worker, packets);
                }
                let (packets, counted) = packets.split_at(packets.len() - setup.counted);
                record(worker, packets);
                if setup.counted > 0 {
                    let thread = thread::Builder::new().name("counted".into());
                    let pass = || record(worker, counted);
                    thread.spawn_scoped(scope, pass).unwrap();
                }
                *cpu = cpu_ns() - before;
            });
        }
    });
    let seconds = begun.elapsed().as_secs_f64();
    let mut ledger = Ledger::default();
    for worker in &mut workers {
        worker.finish().unwrap();
        ledger.merge(&worker.ledger());
    }
    recorder.finish(&ledger, Vec::new()).unwrap();
    let ran = workers.into_iter().zip(pressures).zip(cpu);
    let ran = ran.map(|((worker, before), cpu_ns)| Ran {
        worker,
        before,
        cpu_ns,
    });
    (seconds, ran.collect())
}

/// The packets in two parts, with flows kept together, as a capture's fanout would spread them.
fn halves<'a>(packets: &[PacketRef<'a>]) -> Vec<Vec<PacketRef<'a>>> {
    let mut flows = FlowFinder::new(HASH_SEED, TunnelKey::Inner);
    let mut halves = vec![Vec::new(), Vec::new()];
    for packet in packets {
        let (_, facts) = flows.find(LinkType::ETHERNET, packet);
        let half = facts.map_or(0, |facts| facts.fingerprint >> 20 & 1);
        halves[usize::try_from(half).unwrap()].push(*packet);
    }
    halves
}

/// Seconds to copy every packet into a buffer that wraps around after 16 MiB.
fn copy(packets: &[PacketRef<'_>], buffer: &mut [u8]) -> f64 {
    let begun = Instant::now();
    let mut at = 0;
    for packet in packets {
        if at + packet.data.len() > buffer.len() {
            at = 0;
        }
        buffer[at..at + packet.data.len()].copy_from_slice(packet.data);
        at += packet.data.len();
    }
    black_box(&buffer);
    begun.elapsed().as_secs_f64()
}

/// Seconds until threads, one per part, have copied their packets as [`copy`] does.
fn copy_at_once(parts: &[Vec<PacketRef<'_>>], buffers: &mut [Vec<u8>]) -> f64 {
    let begun = Instant::now();
    thread::scope(|scope| {
        for (packets, buffer) in parts.iter().zip(buffers) {
            scope.spawn(|| copy(packets, buffer));
        }
    });
    begun.elapsed().as_secs_f64()
}

/// Seconds to read one byte of every packet's first two cache lines.
fn touch(packets: &[PacketRef<'_>]) -> f64 {
    let begun = Instant::now();
    let mut sum = 0_u64;
    for packet in packets {
        let data = packet.data;
        sum += u64::from(data[0]) + u64::from(data[data.len().min(65) - 1]);
    }
    black_box(sum);
    begun.elapsed().as_secs_f64()
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// The first `count` of [`POLICIES`], and one more.
fn policies(count: Option<usize>, one: Option<&str>) -> Vec<Policy> {
    let first = match count {
        Some(count) => &POLICIES[..count],
        None => &[],
    };
    let one = one.map(|expression| (expression, "header"));
    let all = first.iter().copied().chain(one);
    let all = all.map(|(expression, action)| {
        Policy::new(Filter::parse(expression).unwrap(), action.parse().unwrap())
    });
    all.collect()
}

fn main() {
    let (named, plain): (Vec<String>, Vec<String>) = std::env::args()
        .skip(1)
        .partition(|argument| argument.contains('='));
    let text = |name: &str| {
        let mut named = named.iter();
        named.find_map(|n| n.strip_prefix(name)?.strip_prefix('='))
    };
    let number = |name: &str| text(name).map(|value| value.parse::<usize>().unwrap());
    let mut arguments = plain.into_iter();
    let trace = arguments.next().unwrap();
    let model = arguments.next();
    let model = model.unwrap_or_else(|| "models/default.json".into());
    let mode = arguments.next().unwrap_or_else(|| "default".into());
    let rounds = arguments.next().map_or(ROUNDS, |n| n.parse().unwrap());
    let model = Model::from_json(&std::fs::read(model).unwrap()).unwrap();
    let mode = Mode::by_name(&mode, &BTreeMap::new()).unwrap();
    let setup = Setup {
        model,
        mode,
        triggers: TriggerOptions {
            look_back_bytes: number("look-back").unwrap_or(0),
            first_bytes: number("first-bytes").unwrap_or(0) as u64,
            alerts: None,
        },
        passes: number("passes").unwrap_or(1),
        counted: number("counted").unwrap_or(0),
        warm: number("warm").unwrap_or(0),
        table: TableSize::within(number("memory").unwrap_or(512 << 20) as u64),
        filter: text("filter").map(|value| Filter::parse(value).unwrap()),
        policies: policies(number("policies"), text("policy")),
        is_cut: number("cut").is_some(),
        detail: text("detail").and_then(|budget| DetailBudget::parse(budget).unwrap()),
    };
    let trace = Trace::read(Path::new(&trace));
    let packets = trace.refs(number("cut").unwrap_or(usize::MAX));
    if number("passes").is_some() {
        run(std::slice::from_ref(&packets), &setup);
        println!("{{\"packets\": {}}}", packets.len());
        return;
    }
    let bytes: usize = packets.iter().map(|packet| packet.data.len()).sum();
    let mut buffers = [vec![1; 16 << 20], vec![1; 16 << 20]];
    let mut times = [const { Vec::new() }; 5];
    let mut last = None;
    let (mut cpu_times, mut cpu_times_of_two) = (Vec::new(), Vec::new());
    let (one, two) = ([packets.clone()], halves(&packets));
    for _ in 0..rounds {
        let (seconds, ran) = run(&one, &setup);
        times[0].push(seconds);
        let (seconds, of_two) = run(&two, &setup);
        times[3].push(seconds);
        times[1].push(copy(&packets, &mut buffers[0]));
        times[4].push(copy_at_once(&two, &mut buffers));
        times[2].push(touch(&packets));
        let cpu_ns: u64 = of_two.iter().map(|ran| ran.cpu_ns).sum();
        cpu_times_of_two.push(cpu_ns as f64 / 1e9);
        cpu_times.push(ran[0].cpu_ns as f64 / 1e9);
        last = ran.into_iter().next();
    }
    let Ran { worker, before, .. } = last.unwrap();
    let [ours, memcpy, touch, both, copied_at_once] = &mut times;
    let count = packets.len() as f64;
    let ns = |seconds: f64| seconds * 1e9 / count;
    let gbits = |seconds: f64| bytes as f64 * 8.0 / seconds / 1e9;
    let (ours, memcpy, touch) = (median(ours), median(memcpy), median(touch));
    let (both, copied_at_once) = (median(both), median(copied_at_once));
    let larger_half = two.iter().map(Vec::len).max().unwrap() as f64 / count;
    let (ledger, pressure) = (worker.ledger(), worker.pressure());
    let passes = (setup.warm + setup.passes) as f64;
    println!(
        "{{\"packets\": {}, \"mean_bytes\": {:.1}, \"logged_share\": {:.4}, \"without_bucket\": {:.4}, \
         \"table_bytes\": {}, \
         \"loop_ns\": {:.1}, \"loop_cpu_ns\": {:.1}, \"loop_mpps\": {:.2}, \"loop_gbits\": {:.1}, \
         \"memcpy_ns\": {:.1}, \"memcpy_gbits\": {:.1}, \"touch_ns\": {:.1}, \"loop_over_memcpy\": {:.3}, \"two_workers_over_one\": {:.3}, \
         \"memcpy_two_over_one\": {:.3}, \"larger_half\": {:.3}, \"loop_cpu_ns_of_two\": {:.1}}}",
        packets.len(),
        bytes as f64 / count,
        ledger.logged.bytes as f64 / passes / bytes as f64,
        (pressure.without_bucket - before.without_bucket) as f64 / count,
        pressure.bytes(),
        ns(ours),
        ns(median(&mut cpu_times)),
        count / ours / 1e6,
        gbits(ours),
        ns(memcpy),
        gbits(memcpy),
        ns(touch),
        memcpy / ours,
        ours / both,
        memcpy / copied_at_once,
        larger_half,
        ns(median(&mut cpu_times_of_two)),
    );
}
