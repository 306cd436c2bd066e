//! The paper's Figures 6 and 7 on generated traffic of a core link: how many vectors there are per
//! packet.
#![allow(clippy::cast_precision_loss, reason = "ratios")]

use strata_gpv::{Basic, Cache, Packet, Parameters, Seen, Vector};
use strata_traffic::{Generator, GeneratorOptions, SPACE};
use strata_wire::dissect::dissect;
use strata_wire::{LinkType, TunnelKey};

/// Vectors of 28 tuples in 1 MB, headers, keys and pointers included.
const DYNAMIC: Parameters = Parameters {
    slots: 12_000,
    narrow: 5,
    wide: 23,
    blocks: 4_760,
};

fn packets(seed: u64, count: usize) -> Vec<Packet> {
    let options = GeneratorOptions {
        seed,
        ..GeneratorOptions::default()
    };
    let mut generator = Generator::new(&"core-2015".parse().unwrap(), &options);
    let mut frame = [0; SPACE];
    (0..count)
        .map(|_| {
            let packet = generator.packet_into(&mut frame);
            let bytes = &frame[..usize::from(packet.len)];
            let headers = dissect(LinkType::ETHERNET, bytes, TunnelKey::Inner);
            let seen = Seen {
                ts_ns: packet.ts_ns,
                wire_len: u32::from(packet.len),
                ingress: 0,
            };
            Packet::read(&headers, bytes, seen).unwrap()
        })
        .collect()
}

/// Vectors per packet, after the first third: all flows are new at the start.
fn ratio<const WAYS: usize>(packets: &[Packet], parameters: Parameters) -> f64 {
    let mut cache = Cache::<Basic, WAYS>::new(parameters, 1).unwrap();
    let (first, rest) = packets.split_at(packets.len() / 3);
    cache.push(first, &mut |_: &Vector<'_, Basic>| ());
    let before = cache.counters().vectors_total();
    cache.push(rest, &mut |_: &Vector<'_, Basic>| ());
    (cache.counters().vectors_total() - before) as f64 / rest.len() as f64
}

#[test]
fn vectors_of_a_core_link_are_under_18_percent_of_packets() {
    let fixed = Parameters {
        slots: 7_350,
        narrow: 28,
        wide: 0,
        blocks: 0,
    };
    assert!(DYNAMIC.switch_bytes(4) <= 1_000_000 && fixed.switch_bytes(4) <= 1_000_000);
    for seed in 1..=3 {
        let packets = packets(seed, 2_400_000);
        let (dynamic, fixed) = (ratio::<1>(&packets, DYNAMIC), ratio::<1>(&packets, fixed));
        let lru = ratio::<8>(&packets, DYNAMIC);
        println!("seed {seed}: dynamic {dynamic:.4}, 8-way LRU {lru:.4}, static {fixed:.4}");
        assert!(dynamic < 0.18, "seed {seed}: {dynamic}");
        assert!(
            lru < dynamic && dynamic < fixed,
            "seed {seed}: {lru} {fixed}"
        );
    }
}
