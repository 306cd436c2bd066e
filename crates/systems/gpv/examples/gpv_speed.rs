//! How fast cache, agent, profiler and queries are, beside a hash map of packets, all in one run:
//!
//!     cargo run --release -p strata-gpv --example gpv_speed [CAPTURE]
//!
//! Without a capture, packets of a core link (`strata generate --profile core-2015`). Each figure
//! is the best of five rounds on one core; times of packets do not include parsing. Applications
//! take records of the agent, as in the paper; `make bench TOPICS=gpv` makes a table of it.
//!
//!     valgrind --tool=callgrind --toggle-collect='*per_packet_cache*' .../gpv_speed --count
//!
//! counts the instructions of the cache, over fewer packets and in one round; so do
//! `*vectors_of_agent*`, `*vectors_of_profiler*`, `*vectors_of_classifier*`, `*vectors_of_debugger*`
//! and `*vectors_of_queries*` for what takes vectors, of which it says how many there are.
#![allow(clippy::print_stdout, reason = "this is what it is for")]
#![allow(clippy::cast_precision_loss, reason = "figures to read")]

use std::collections::HashMap;
use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use strata_capture::{Input, InputOptions, Next};
use strata_gpv::agent::{Reassembly, ReassemblyOptions, Record};
use strata_gpv::application::{
    Application, Burst, BurstOptions, Bursts, Classifier, FLOW_FEATURES, Forest, Profiler,
    ProfilerOptions,
};
use strata_gpv::marple::{Flows, Limits, Query, SHIPPED, Shipped, compile};
use strata_gpv::{
    Basic, Cache, Full, Grouped, Key, Packet, Parameters, Reason, Seen, Tuple, Vector,
};
use strata_testkit::sim::Rng;
use strata_traffic::{Generator, GeneratorOptions, Profile, SPACE};
use strata_wire::dissect::dissect;
use strata_wire::{LinkType, TunnelKey};

const ROUNDS: usize = 5;
const PACKETS: usize = 4_000_000;
/// Packets whose instructions are counted.
const COUNTED: usize = 1_000_000;

/// A vector with its tuples in one piece.
struct Kept<T> {
    key: Key,
    start_ns: u64,
    first: usize,
    end: usize,
    slot: u32,
    tuples: std::marker::PhantomData<T>,
}

struct Arena<T> {
    kept: Vec<Kept<T>>,
    tuples: Vec<T>,
}

impl<T: Tuple> Arena<T> {
    fn vectors(&self) -> impl Iterator<Item = Vector<'_, T>> {
        self.kept.iter().map(|kept| Vector {
            key: kept.key,
            start_ns: kept.start_ns,
            pieces: [&self.tuples[kept.first..kept.end], &[]],
            reason: Reason::Unknown,
            saturated: false,
            slot: kept.slot,
        })
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let packets = match std::env::args_os().nth(1) {
        Some(word) if word == "--count" => {
            let packets = generated(COUNTED);
            let mut cache = Cache::<Basic>::new(Parameters::PAPER, 1)?;
            per_packet_cache(&mut cache, &packets);
            let (basic, full) = (kept::<Basic>(&packets), kept::<Full>(&packets));
            let records = reassembled(&basic);
            for (what, vectors) in [
                ("agent", basic.kept.len()),
                ("profiler, classifier, debugger", records.kept.len()),
                ("queries", full.kept.len()),
            ] {
                println!("{vectors} vectors for {what}");
            }
            agent("agent, 32-bit tuples", &basic);
            profiler(&records);
            classifier(&records);
            debugger(&records);
            six_queries(&full);
            return Ok(());
        }
        Some(path) => captured(&path.into())?,
        None => generated(PACKETS),
    };
    let flows: std::collections::HashSet<Key> = packets.iter().map(|packet| packet.key).collect();
    println!("{} packets of {} flows", packets.len(), flows.len());

    let map = best(|| per_packet_map(&packets)) / packets.len() as f64;
    println!("hash map of packets      {:7.1} ns/packet", map * 1e9);
    let (basic, full) = (
        vectors::<Basic>(&packets, map),
        vectors::<Full>(&packets, map),
    );
    agent("agent, 32-bit tuples", &basic);
    agent("agent, full tuples", &full);
    let records = reassembled(&basic);
    println!(
        "records of the agent     {:7.1} tuples each",
        records.tuples.len() as f64 / records.kept.len() as f64
    );
    profiler(&records);
    classifier(&records);
    debugger(&records);
    queries(&full);
    Ok(())
}

/// Seconds of the fastest round.
fn best(mut work: impl FnMut()) -> f64 {
    let round = |_| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    let is_counting = std::env::args_os().any(|word| word == "--count");
    let rounds = if is_counting { 1 } else { ROUNDS };
    (0..rounds).map(round).fold(f64::INFINITY, f64::min)
}

/// Names for callgrind.
macro_rules! named {
    ($($name:ident)*) => {$(
        #[inline(never)]
        fn $name(work: &mut dyn FnMut()) {
            work();
        }
    )*};
}

named! { vectors_of_agent vectors_of_profiler vectors_of_classifier vectors_of_debugger vectors_of_queries }

/// Average packet length of each flow, as the paper's comparison (section 2.2) has it.
fn per_packet_map(packets: &[Packet]) {
    let mut flows: HashMap<Key, (u64, u64)> = HashMap::new();
    for packet in packets {
        let (count, bytes) = flows.entry(packet.key).or_insert((0, 0));
        *count += 1;
        *bytes += u64::from(packet.size);
    }
    black_box(flows.len());
}

fn vectors<T: Tuple>(packets: &[Packet], map: f64) -> Arena<T> {
    let bits = size_of::<T>() * 8;
    let new = || Cache::<T>::new(Parameters::PAPER, 1).expect("the paper's parameters");
    // A cache in use: what it allocates is there, and slots have flows.
    let mut cache = new();
    let seconds = best(|| per_packet_cache(&mut cache, packets)) / packets.len() as f64;
    let arena = kept::<T>(packets);
    println!(
        "cache, {bits:3}-bit tuples   {:7.1} ns/packet, {:.2} of the map; {:.1} % vectors, {:.1} tuples each",
        seconds * 1e9,
        seconds / map,
        100.0 * arena.kept.len() as f64 / packets.len() as f64,
        packets.len() as f64 / arena.kept.len() as f64,
    );
    arena
}

/// The vectors that the cache makes of packets.
fn kept<T: Tuple>(packets: &[Packet]) -> Arena<T> {
    let mut arena = Arena {
        kept: Vec::new(),
        tuples: Vec::new(),
    };
    let mut keep = |vector: &Vector<'_, T>| {
        let first = arena.tuples.len();
        arena.tuples.extend(vector.tuples());
        arena.kept.push(Kept {
            key: vector.key,
            start_ns: vector.start_ns,
            first,
            end: arena.tuples.len(),
            slot: vector.slot,
            tuples: std::marker::PhantomData,
        });
    };
    let mut cache = Cache::<T>::new(Parameters::PAPER, 1).expect("the paper's parameters");
    cache.push(packets, &mut keep);
    cache.flush(&mut keep);
    arena
}

#[inline(never)]
fn per_packet_cache<T: Tuple>(cache: &mut Cache<T>, packets: &[Packet]) {
    let mut tuples = 0;
    cache.push(packets, &mut |vector: &Vector<'_, T>| {
        tuples += vector.count();
    });
    black_box(tuples);
}

fn say<T>(what: &str, seconds: f64, arena: &Arena<T>) {
    println!(
        "{what:24} {:7.2} M vectors/s, {:7.1} M tuples/s",
        arena.kept.len() as f64 / seconds / 1e6,
        arena.tuples.len() as f64 / seconds / 1e6,
    );
}

fn agent<T: Tuple>(what: &str, arena: &Arena<T>) {
    let mut agent = Reassembly::<T>::new(ReassemblyOptions::default(), 1);
    let mut work = || {
        let mut tuples = 0;
        let mut queue = |record: &Record<'_, T>| tuples += record.count();
        in_batches(arena, |vectors| agent.take_all(vectors, &mut queue));
        agent.flush(&mut queue);
        black_box(tuples);
    };
    let seconds = best(|| vectors_of_agent(&mut work));
    say(what, seconds, arena);
}

/// Records of the agent, each with its tuples in one piece; of several starts only the first is
/// kept, which no application's work depends on.
fn reassembled(arena: &Arena<Basic>) -> Arena<Basic> {
    let mut agent = Reassembly::<Basic>::new(ReassemblyOptions::default(), 1);
    let mut records = Arena {
        kept: Vec::new(),
        tuples: Vec::new(),
    };
    let mut keep = |record: &Record<'_, Basic>| {
        let first = records.tuples.len();
        records.tuples.extend_from_slice(record.tuples);
        records.kept.push(Kept {
            key: record.key,
            start_ns: record.runs[0].start_ns,
            first,
            end: records.tuples.len(),
            slot: 0,
            tuples: std::marker::PhantomData,
        });
    };
    for vector in arena.vectors() {
        agent.take(&vector, &mut keep);
    }
    agent.flush(&mut keep);
    records
}

/// Eight trees of depth 8 with thresholds at random.
fn forest() -> Forest {
    let mut rng = Rng::new(1);
    let mut text = format!(
        "strata-flow-forest 1\nfeatures {}\n",
        FLOW_FEATURES.join(" ")
    );
    text += "class web\nclass mail\nclass call\nclass video\n";
    for _ in 0..8 {
        text += "tree\n";
        for node in 0..511_u64 {
            if node < 255 {
                let feature = FLOW_FEATURES[usize::try_from(rng.below(12)).expect("small")];
                let (at_most, left, right) = (rng.below(1500), 2 * node + 1, 2 * node + 2);
                text += &format!("split {feature} {at_most} {left} {right}\n");
            } else {
                text +=
                    ["leaf 1 0 0 0\n", "leaf 0 0.5 0.5 0\n"][usize::from(node.is_multiple_of(2))];
            }
        }
    }
    Forest::parse(&text).expect("a forest")
}

fn classifier(arena: &Arena<Basic>) {
    let forest = forest();
    let mut work = || {
        let mut classes = [0_u64; 4];
        let count = |_: &Key, class: usize, _| classes[class] += 1;
        let mut classifier = Classifier::new(forest.clone(), count);
        for record in arena.vectors() {
            classifier.take(0, &record);
        }
        classifier.finish();
        black_box(classes);
    };
    let seconds = best(|| vectors_of_classifier(&mut work));
    say("classifier", seconds, arena);
}

/// Every packet met a long queue, as the paper's benchmark has it.
fn debugger(arena: &Arena<Basic>) {
    let tuples = arena
        .tuples
        .iter()
        .map(|tuple| Basic(tuple.0 | 1))
        .collect();
    let kept = arena.kept.iter().map(|kept| Kept { ..*kept }).collect();
    let flagged = Arena { kept, tuples };
    let mut work = || {
        let mut packets = 0;
        let mut bursts = Bursts::new(BurstOptions::default(), 1, |burst: &Burst| {
            packets += burst.packets;
        });
        for record in flagged.vectors() {
            bursts.take(0, &record);
        }
        bursts.finish();
        black_box(packets);
    };
    let seconds = best(|| vectors_of_debugger(&mut work));
    say("debugger, all flagged", seconds, &flagged);
}

fn profiler(arena: &Arena<Basic>) {
    let mut profiler = Profiler::new(ProfilerOptions::default(), 1);
    let mut work = || {
        for record in arena.vectors() {
            profiler.take(0, &record);
        }
        profiler.end_interval(|profile| {
            black_box(profile.times_ns.len());
        });
    };
    let seconds = best(|| vectors_of_profiler(&mut work));
    say("profiler", seconds, arena);
}

/// Vectors as a datagram has them: some at once.
fn in_batches<T: Tuple>(arena: &Arena<T>, mut take: impl FnMut(&[Vector<'_, T>])) {
    let mut batch = Vec::with_capacity(32);
    for vector in arena.vectors() {
        batch.push(vector);
        if batch.len() == 32 {
            take(&batch);
            batch.clear();
        }
    }
    take(&batch);
}

fn query(shipped: &Shipped) -> Query {
    let program = compile(shipped.text, shipped.parameters).expect("a shipped query");
    let limits = Limits {
        groups_max: 1 << 24,
        bytes_max: u64::MAX,
        ..Limits::default()
    };
    Query::new::<Full>(program, limits).expect("full tuples carry everything")
}

fn queries(arena: &Arena<Full>) {
    for shipped in &SHIPPED[..6] {
        let seconds = best(|| {
            let (mut flows, mut query) = (Flows::new(), query(shipped));
            in_batches(arena, |vectors| flows.ask(0, vectors, &mut [&mut query]));
            black_box(query.counters().packets);
        });
        say(shipped.name, seconds, arena);
    }
    six_queries(arena);
}

fn six_queries(arena: &Arena<Full>) {
    let mut work = || {
        let mut queries: Vec<Query> = SHIPPED[..6].iter().map(query).collect();
        let (mut flows, mut queries): (_, Vec<_>) = (Flows::new(), queries.iter_mut().collect());
        in_batches(arena, |vectors| flows.ask(0, vectors, &mut queries));
        black_box(queries.len());
    };
    let seconds = best(|| vectors_of_queries(&mut work));
    say("all six at once", seconds, arena);
}

fn captured(path: &std::path::PathBuf) -> Result<Vec<Packet>, Box<dyn Error>> {
    let mut input = Input::open(std::slice::from_ref(path), &InputOptions::default())?;
    let mut packets = Vec::new();
    while packets.len() < PACKETS {
        match input.advance()? {
            Next::End => break,
            Next::Meta(_) => {}
            Next::Packets => packets.extend(input.batch().iter().filter_map(|packet| {
                let headers = dissect(LinkType::ETHERNET, packet.data, TunnelKey::Inner);
                let (ts_ns, wire_len) = (packet.ts_ns, packet.wire_len);
                Packet::read(
                    &headers,
                    packet.data,
                    Seen {
                        ts_ns,
                        wire_len,
                        ingress: 0,
                    },
                )
            })),
        }
    }
    Ok(packets)
}

/// A core link's packets.
fn generated(count: usize) -> Vec<Packet> {
    let profile: Profile = "core-2015".parse().expect("a profile");
    let mut generator = Generator::new(&profile, &GeneratorOptions::default());
    let mut frame = [0; SPACE];
    let mut packet = || {
        let packet = generator.packet_into(&mut frame);
        let bytes = &frame[..usize::from(packet.len)];
        let headers = dissect(LinkType::ETHERNET, bytes, TunnelKey::Inner);
        let seen = Seen {
            ts_ns: packet.ts_ns,
            wire_len: u32::from(packet.len),
            ingress: 0,
        };
        Packet::read(&headers, bytes, seen).expect("generated packets have flows")
    };
    (0..count).map(|_| packet()).collect()
}
