//! The paper's Figures 6 to 8 on generated traffic of a core link: packets and vectors a second and
//! times in the cache, with the paper's parameters; vectors per packet by memory and by length of
//! vectors, for static and dynamic buffers, with one way and with 8. The four curves of a figure are
//! computed by as many threads.
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

use std::collections::HashMap;
use std::thread;

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
    rates(&packets);
    thread::scope(|scope| {
        let curves = [("memory", 1), ("memory", 8), ("length", 1), ("length", 8)];
        let curves = curves.map(|(figure, ways)| {
            let packets = &packets;
            scope.spawn(move || curve(figure, packets, ways))
        });
        for lines in curves {
            let lines = lines.join().expect("no curve panics");
            lines.iter().for_each(|line| println!("{line}"));
        }
    });
}

/// Packets and vectors in each second but the first, in which the cache fills (Figure 6), and how
/// long vectors are in the cache (section 7.1), to the time of 256 packets.
fn rates(packets: &[Packet]) {
    const SECOND_NS: u64 = 1_000_000_000;
    let mut cache = Cache::<Basic>::new(Parameters::PAPER, 1).expect("the paper's parameters");
    let first_ns = packets.first().expect("there are packets").ts_ns;
    let mut seconds = vec![[0_u64; 2]];
    let mut held_ns = Vec::new();
    for batch in packets.chunks(256) {
        let now_ns = batch[batch.len() - 1].ts_ns;
        let second = strata_wire::exact::<usize>((now_ns - first_ns) / SECOND_NS);
        seconds.resize(seconds.len().max(second + 1), [0; 2]);
        let before = held_ns.len();
        cache.push(batch, &mut |vector: &Vector<'_, Basic>| {
            held_ns.push(now_ns.saturating_sub(vector.start_ns));
        });
        seconds[second][0] += batch.len() as u64;
        seconds[second][1] += (held_ns.len() - before) as u64;
    }
    // The last second is not whole.
    let whole = seconds.len().saturating_sub(1);
    let of_each = |what: usize| {
        let whole = seconds.get(1..whole).into_iter().flatten();
        let mut counts: Vec<u64> = whole.map(|second| second[what]).collect();
        counts.sort_unstable();
        let mean = counts.iter().sum::<u64>() / (counts.len().max(1) as u64);
        let ends = [counts.first(), counts.last()].map(|end| end.map_or(mean, |count| *count));
        format!("[{}, {mean}, {}]", ends[0], ends[1])
    };
    let share = |least_ns: u64| {
        let long = held_ns.iter().filter(|&&ns| ns > least_ns).count();
        long as f64 / held_ns.len() as f64
    };
    let ms = |ns: u64| ns as f64 / 1e6;
    println!(
        "{{\"figure\": \"rates\", \"packets\": {}, \"vectors\": {}, \"ratio\": {:.4}, \"mean_ms\": {:.1}, \
         \"max_ms\": {:.1}, \"over_1_s\": {:.4}, \"over_5_s\": {:.4}}}",
        of_each(0),
        of_each(1),
        held_ns.len() as f64 / packets.len() as f64,
        ms(held_ns.iter().sum::<u64>() / held_ns.len() as u64),
        ms(held_ns.iter().max().map_or(0, |most| *most)),
        share(SECOND_NS),
        share(5 * SECOND_NS),
    );
}

/// The points of a figure with this number of ways.
fn curve(figure: &str, packets: &[Packet], ways: usize) -> Vec<String> {
    let points: Vec<(u64, u16)> = match figure {
        "memory" => (0..8).map(|power| ((MIB / 4) << power, 28)).collect(),
        _ => (1..=8).map(|quarter| (MIB, 4 * quarter)).collect(),
    };
    // Narrow buffers of 6, and 65 % of the memory for them.
    let mut at = (3, 5);
    let mut lines = Vec::new();
    for (memory, length) in points {
        for buffers in [Buffers::Fixed, Buffers::Shorter, Buffers::Dynamic] {
            let best = match buffers {
                Buffers::Dynamic => climb(packets, ways, memory, length, &mut at),
                _ => best(packets, ways, candidates(memory, length, buffers)),
            };
            let Some((ratio, parameters)) = best else {
                continue;
            };
            let Parameters {
                slots,
                narrow,
                wide,
                blocks,
            } = parameters;
            lines.push(format!(
                "{{\"figure\": \"{figure}\", \"memory\": {memory}, \"length\": {length}, \
                 \"buffers\": \"{buffers:?}\", \"ways\": {ways}, \"ratio\": {ratio:.4}, \
                 \"slots\": {slots}, \"narrow\": {narrow}, \"wide\": {wide}, \"blocks\": {blocks}}}"
            ));
        }
    }
    lines
}

/// Lengths of narrow buffers, and shares of the memory in percent that slots with them may have.
const NARROWS: [u16; 9] = [3, 4, 5, 6, 7, 8, 10, 12, 14];
const SHARES: [u64; 10] = [33, 39, 45, 53, 61, 65, 69, 73, 77, 83];

/// The best division for dynamic buffers: from the one at these places of [`NARROWS`] and
/// [`SHARES`], to the best of its neighbours, as long as one is better. The best of all is where
/// it was for a little less memory, or nearly: so a tenth of all is tried.
fn climb(
    packets: &[Packet],
    ways: usize,
    memory: u64,
    length: u16,
    at: &mut (usize, usize),
) -> Option<(f64, Parameters)> {
    let most = NARROWS.iter().filter(|&&narrow| narrow < length).count();
    let mut place = (at.0.min(most.checked_sub(1)?), at.1);
    let mut known = HashMap::<(usize, usize), f64>::new();
    loop {
        let near = |place: usize, len: usize| place.saturating_sub(1)..(place + 2).min(len);
        let neighbours = near(place.0, most)
            .flat_map(|narrow| near(place.1, SHARES.len()).map(move |share| (narrow, share)));
        let mut found = (f64::INFINITY, place);
        for (narrow, share) in neighbours {
            let parameters = dynamic(memory, length, NARROWS[narrow], SHARES[share]);
            let ratio = known
                .entry((narrow, share))
                .or_insert_with(|| ratio(packets, parameters, ways));
            if *ratio < found.0 {
                found = (*ratio, (narrow, share));
            }
        }
        if found.1 == place {
            *at = place;
            let parameters = dynamic(memory, length, NARROWS[place.0], SHARES[place.1]);
            return Some((found.0, parameters));
        }
        place = found.1;
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
    let tuple_len = TUPLE_LEN as u64;
    let fixed = [4, 6, 8, 12, 16, 20, 24, 28, 32].into_iter();
    let fixed = fixed.filter(move |&narrow| match buffers {
        Buffers::Fixed => narrow == length,
        Buffers::Shorter => narrow < length,
        Buffers::Dynamic => false,
    });
    let fixed = fixed.map(move |narrow: u16| Parameters {
        slots: slots(memory, 100, 24 + u64::from(narrow) * tuple_len),
        narrow,
        wide: 0,
        blocks: 0,
    });
    let narrow = NARROWS.into_iter();
    let narrow = narrow.filter(move |&narrow| buffers == Buffers::Dynamic && narrow < length);
    let dynamic =
        narrow.flat_map(move |narrow| SHARES.map(|share| dynamic(memory, length, narrow, share)));
    fixed.chain(dynamic)
}

/// Slots of this length that fit into a share of the memory, in percent.
fn slots(memory: u64, share: u64, slot_len: u64) -> u32 {
    let slots = memory * share / 100 / slot_len;
    strata_wire::exact::<u32>(slots / 8 * 8)
}

/// Slots with narrow buffers in this share of the memory, and wide buffers in the rest.
fn dynamic(memory: u64, length: u16, narrow: u16, share: u64) -> Parameters {
    let (tuple_len, wide) = (TUPLE_LEN as u64, length - narrow);
    let of_pointer = |pointer: u64| Parameters {
        slots: slots(memory, share, 24 + pointer + u64::from(narrow) * tuple_len),
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
