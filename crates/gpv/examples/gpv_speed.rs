//! How fast cache, agent, profiler and queries are, beside a hash map of packets, all in one run:
//!
//!     cargo run --release -p strata-gpv --example gpv_speed [CAPTURE]
//!
//! Without a capture, packets of flows whose sizes have a long tail. Each figure is the best of
//! five rounds on one core; times of packets do not include parsing.
#![allow(clippy::print_stdout, reason = "this is what it is for")]
#![allow(clippy::cast_precision_loss, reason = "figures to read")]

use std::collections::HashMap;
use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use strata_capture::{Input, InputOptions, Next};
use strata_gpv::agent::{Reassembly, ReassemblyOptions, Record};
use strata_gpv::application::{Application, Profiler, ProfilerOptions};
use strata_gpv::marple::{Limits, Query, SHIPPED, compile};
use strata_gpv::{
    Basic, Cache, Full, Grouped, Key, Packet, Parameters, Reason, Seen, Tuple, Vector,
};
use strata_testkit::sim::Rng;
use strata_wire::dissect::dissect;
use strata_wire::{AddressFamily, Endpoint, LinkType, TunnelKey};

const ROUNDS: usize = 5;
const PACKETS: usize = 4_000_000;

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
        Some(path) => captured(&path.into())?,
        None => generated(),
    };
    let flows: std::collections::HashSet<Key> = packets.iter().map(|packet| packet.key).collect();
    println!("{} packets of {} flows", packets.len(), flows.len());

    let map = best(|| per_packet_map(&packets)) / packets.len() as f64;
    println!("hash map of packets      {:7.1} ns/packet", map * 1e9);
    let (basic, full) = (
        vectors::<Basic>(&packets, map),
        vectors::<Full>(&packets, map),
    );
    agent("32-bit tuples", &basic);
    agent("full tuples", &full);
    profiler(&basic);
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
    (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min)
}

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
    let seconds = best(|| {
        let mut tuples = 0;
        let mut cache = new();
        cache.push(packets, &mut |vector: &Vector<'_, T>| {
            tuples += vector.count();
        });
        black_box(tuples);
    }) / packets.len() as f64;
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
    let mut cache = new();
    cache.push(packets, &mut keep);
    cache.flush(&mut keep);
    println!(
        "cache, {bits:3}-bit tuples   {:7.1} ns/packet, {:.2} of the map; {:.1} % vectors, {:.1} tuples each",
        seconds * 1e9,
        seconds / map,
        100.0 * arena.kept.len() as f64 / packets.len() as f64,
        packets.len() as f64 / arena.kept.len() as f64,
    );
    arena
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
    let seconds = best(|| {
        let mut tuples = 0;
        let mut queue = |record: &Record<'_, T>| tuples += record.count();
        let mut ahead = arena.kept.iter().skip(12);
        for vector in arena.vectors() {
            if let Some(later) = ahead.next() {
                agent.prefetch(&later.key);
            }
            agent.take(&vector, &mut queue);
        }
        agent.flush(&mut queue);
        black_box(tuples);
    });
    say(&format!("agent, {what}"), seconds, arena);
}

fn profiler(arena: &Arena<Basic>) {
    let mut profiler = Profiler::new(ProfilerOptions::default(), 1);
    let seconds = best(|| {
        for vector in arena.vectors() {
            profiler.take(0, &vector);
        }
        profiler.end_interval(|profile| {
            black_box(profile.times_ns.len());
        });
    });
    say("profiler", seconds, arena);
}

fn queries(arena: &Arena<Full>) {
    let query = |shipped: &strata_gpv::marple::Shipped| {
        let program = compile(shipped.text, shipped.parameters).expect("a shipped query");
        Query::new::<Full>(
            program,
            Limits {
                groups_max: 1 << 24,
                bytes_max: u64::MAX,
                ..Limits::default()
            },
        )
        .expect("full tuples carry everything")
    };
    for shipped in SHIPPED {
        let seconds = best(|| {
            let mut query = query(shipped);
            for vector in arena.vectors() {
                query.take(0, &vector);
            }
            black_box(query.counters().packets);
        });
        say(shipped.name, seconds, arena);
    }
    let seconds = best(|| {
        let mut queries: Vec<Query> = SHIPPED[..6].iter().map(query).collect();
        for vector in arena.vectors() {
            queries.iter_mut().for_each(|query| query.take(0, &vector));
        }
        black_box(queries.len());
    });
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

/// 20,000 flows at a time, of 5 to 50,000 packets (a bounded Pareto distribution), 1 million
/// packets a second.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "small numbers"
)]
fn generated() -> Vec<Packet> {
    let mut rng = Rng::new(1);
    let mut next_flow = 0_u64;
    let mut new = |rng: &mut Rng| {
        next_flow += 1;
        let uniform = (1 + rng.below(1_000_000)) as f64 / 1e6;
        let packets = (5.0 * uniform.powf(-1.0 / 1.1)).min(50_000.0) as u64;
        let end = |address, port| Endpoint {
            address: u128::from(address),
            port,
        };
        let source = end(
            0x0a00_0000 + rng.below(30_000),
            1024 + (next_flow % 50_000) as u16,
        );
        let destination = end(0xc0a8_0000 + rng.below(5_000), 443);
        (
            Key::new(AddressFamily::Ipv4, 6, source, destination, 0),
            packets,
            0_u32,
        )
    };
    let mut active: Vec<(Key, u64, u32)> = (0..20_000).map(|_| new(&mut rng)).collect();
    (0..PACKETS as u64)
        .map(|number| {
            // A hundredth of the flows are a third of the packets.
            let uniform = rng.below(1_000_000) as f64 / 1e6;
            let flow = &mut active[(uniform.powi(4) * 20_000.0) as usize];
            let size = [60, 1500, 1500, 600][rng.below(4) as usize];
            flow.1 -= 1;
            flow.2 = flow.2.wrapping_add(size - 54);
            let packet = Packet {
                key: flow.0,
                ts_ns: 1_700_000_000_000_000_000 + number * 1000,
                size,
                payload_len: size - 54,
                tcp_seq: flow.2,
                ..Packet::default()
            };
            if flow.1 == 0 {
                *flow = new(&mut rng);
            }
            packet
        })
        .collect()
}
