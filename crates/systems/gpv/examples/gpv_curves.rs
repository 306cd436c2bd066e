//! The paper's Figures 6 to 8 on generated traffic of a core link: vectors per packet by memory
//! and by length of vectors, for static and dynamic buffers, with one way and with 8.
//!
//!     cargo run --release -p strata-gpv --example gpv_curves [PACKETS] [SEED]
//!
//!     cargo run --release -p strata-gpv --example gpv_curves -- --gain [PACKETS] [SEED]
//!
//! says how much more memory static buffers need for the ratio that dynamic ones reach.
//!
//! One line of JSON a point.
#![allow(clippy::print_stdout, reason = "this is what it is for")]
#![allow(clippy::cast_precision_loss, reason = "figures to read")]

use strata_gpv::{Basic, Cache, Packet, Parameters, Seen, Vector};
use strata_traffic::{Generator, GeneratorOptions, Profile, SPACE};
use strata_wire::Plain;

const MIB: u64 = 1 << 20;
const TUPLE_LEN: usize = 4;

fn main() {
    let mut arguments = std::env::args().skip(1).peekable();
    let is_gain = arguments.next_if(|word| word == "--gain").is_some();
    let mut number = |usual: u64| {
        let given = arguments.next();
        given.map_or(usual, |text| text.parse().expect("a number"))
    };
    let (count, seed) = (number(4_000_000), number(1));
    let packets = generated(count, seed);
    let flows: std::collections::HashSet<_> = packets.iter().map(|packet| packet.key).collect();
    let first = packets.first().expect("there are packets").ts_ns;
    let seconds = (packets[packets.len() - 1].ts_ns - first) as f64 / 1e9;
    let bytes: u64 = packets.iter().map(|packet| u64::from(packet.size)).sum();
    println!(
        "{{\"packets\": {count}, \"flows\": {}, \"seconds\": {seconds:.2}, \"mean_bytes\": {}}}",
        flows.len(),
        bytes / count,
    );
    if is_gain {
        for memory in [MIB / 4, MIB / 2, MIB, 2 * MIB, 4 * MIB] {
            gain(&packets, memory);
        }
        return;
    }
    for memory in [
        MIB / 4,
        MIB / 2,
        MIB,
        2 * MIB,
        4 * MIB,
        8 * MIB,
        16 * MIB,
        32 * MIB,
    ] {
        figure("memory", &packets, memory, 28);
    }
    for length in [4, 8, 12, 16, 20, 24, 28, 32] {
        figure("length", &packets, MIB, length);
    }
}

fn figure(what: &str, packets: &[Packet], memory: u64, length: u16) {
    for buffers in [Buffers::Fixed, Buffers::Shorter, Buffers::Dynamic] {
        for ways in [1, 8] {
            let best = best(packets, ways, candidates(memory, length, buffers));
            let Some((ratio, parameters)) = best else {
                continue;
            };
            let Parameters {
                slots,
                narrow,
                wide,
                blocks,
            } = parameters;
            println!(
                "{{\"figure\": \"{what}\", \"memory\": {memory}, \"length\": {length}, \
                 \"buffers\": \"{buffers:?}\", \"ways\": {ways}, \"ratio\": {ratio:.4}, \
                 \"slots\": {slots}, \"narrow\": {narrow}, \"wide\": {wide}, \"blocks\": {blocks}}}"
            );
        }
    }
}

/// The best parameters among these, and their ratio.
fn best(
    packets: &[Packet],
    ways: usize,
    candidates: impl Iterator<Item = Parameters>,
) -> Option<(f64, Parameters)> {
    candidates
        .map(|parameters| (ratio(packets, parameters, ways), parameters))
        .min_by(|a, b| a.0.total_cmp(&b.0))
}

/// How many times the memory static buffers need, of the length of the longest vector and of the
/// best length, for the ratio of dynamic ones (section 7.1: 2 on average).
fn gain(packets: &[Packet], memory: u64) {
    const LENGTH: u16 = 28;
    for ways in [1, 8] {
        let dynamic = candidates(memory, LENGTH, Buffers::Dynamic);
        let Some((ratio, parameters)) = best(packets, ways, dynamic) else {
            continue;
        };
        let times = |buffers| {
            let (mut less, mut more) = (memory, 4 * memory);
            // To a hundredth or so.
            for _ in 0..8 {
                let middle = less.midpoint(more);
                let found = best(packets, ways, candidates(middle, LENGTH, buffers));
                match found.is_some_and(|(found, _)| found <= ratio) {
                    true => more = middle,
                    false => less = middle,
                }
            }
            more as f64 / memory as f64
        };
        let (fixed, shorter) = (times(Buffers::Fixed), times(Buffers::Shorter));
        let Parameters { narrow, blocks, .. } = parameters;
        println!(
            "{{\"figure\": \"gain\", \"memory\": {memory}, \"ways\": {ways}, \"ratio\": {ratio:.4}, \
             \"narrow\": {narrow}, \"blocks\": {blocks}, \"static\": {fixed:.2}, \
             \"static_tuned\": {shorter:.2}}}"
        );
    }
}

/// How memory is divided: buffers of the stated length; of any length up to it; narrow ones, and
/// wide ones from a pool.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Buffers {
    Fixed,
    Shorter,
    Dynamic,
}

/// Divisions of `memory` bytes.
fn candidates(memory: u64, length: u16, buffers: Buffers) -> impl Iterator<Item = Parameters> {
    let slots = move |share: u64, slot_len: u64| {
        let slots = memory * share / 100 / slot_len;
        strata_wire::exact::<u32>(slots / 8 * 8)
    };
    let tuple_len = TUPLE_LEN as u64;
    let fixed = [4, 6, 8, 12, 16, 20, 24, 28, 32].into_iter();
    let fixed = fixed.filter(move |&narrow| match buffers {
        Buffers::Fixed => narrow == length,
        Buffers::Shorter => narrow < length,
        Buffers::Dynamic => false,
    });
    let fixed = fixed.map(move |narrow: u16| Parameters {
        slots: slots(100, 24 + u64::from(narrow) * tuple_len),
        narrow,
        wide: 0,
        blocks: 0,
    });
    let narrow = [3, 4, 5, 6, 7, 8, 10, 12, 14].into_iter();
    let narrow = narrow.filter(move |&narrow| buffers == Buffers::Dynamic && narrow < length);
    let dynamic = narrow.flat_map(move |narrow: u16| {
        [33, 39, 45, 53, 61, 65, 69, 73, 77, 83].map(|share| {
            let wide = length - narrow;
            let of_pointer = |pointer: u64| Parameters {
                slots: slots(share, 24 + pointer + u64::from(narrow) * tuple_len),
                narrow,
                wide,
                blocks: strata_wire::exact(
                    memory * (100 - share) / 100 / (pointer + u64::from(wide) * tuple_len),
                ),
            };
            // As `Parameters::switch_bytes` has it.
            let near = of_pointer(2);
            match near.switch_bytes(TUPLE_LEN) <= memory {
                true => near,
                false => of_pointer(4),
            }
        })
    });
    fixed.chain(dynamic)
}

fn ratio(packets: &[Packet], parameters: Parameters, ways: usize) -> f64 {
    assert!(parameters.slots > 0, "memory for a slot");
    let mut out = |_: &Vector<'_, Basic>| ();
    let counters = if ways == 1 {
        let mut cache = Cache::<Basic, 1>::new(parameters, 1).expect("checked parameters");
        cache.push(packets, &mut out);
        *cache.counters()
    } else {
        let mut cache = Cache::<Basic, 8>::new(parameters, 1).expect("checked parameters");
        cache.push(packets, &mut out);
        *cache.counters()
    };
    counters.vectors_total() as f64 / counters.packets as f64
}

fn generated(count: u64, seed: u64) -> Vec<Packet> {
    let profile: Profile = "core-2015".parse().expect("a profile");
    let options = GeneratorOptions {
        seed,
        ipv6_percent: Some(0),
        ..GeneratorOptions::default()
    };
    let mut generator = Generator::new(&profile, &options);
    let mut frame = [0; SPACE];
    (0..count)
        .map(|_| {
            let packet = generator.packet_into(&mut frame);
            let bytes = &frame[..usize::from(packet.len)];
            let seen = Seen {
                ts_ns: packet.ts_ns,
                wire_len: u32::from(packet.len),
                ingress: 0,
            };
            match Plain::read(bytes) {
                Some(plain) => Packet::plain(&plain, bytes, seen),
                None => Packet::read(
                    &strata_wire::dissect::dissect(
                        strata_wire::LinkType::ETHERNET,
                        bytes,
                        strata_wire::TunnelKey::Inner,
                    ),
                    bytes,
                    seen,
                )
                .expect("generated packets have flows"),
            }
        })
        .collect()
}
