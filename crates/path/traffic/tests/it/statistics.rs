//! Packets have the statistics that their profile promises.
#![allow(clippy::cast_precision_loss, reason = "means")]

use std::collections::HashMap;

use strata_traffic::{Generator, GeneratorOptions, Profile, Rate, SPACE};
use strata_wire::{FlowHasher, LinkType, TunnelKey, dissect};

struct Counted {
    packets: u64,
    /// Packets and IP bytes, benign and anomalous.
    classes: [(u64, u64); 2],
    /// First and last packet's number, and count, by flow.
    flows: HashMap<u64, (u64, u64, u64)>,
    seconds: f64,
    frame_bytes: u64,
}

impl Counted {
    /// Flows active in the middle.
    fn active(&self) -> usize {
        let middle = self.packets / 2;
        self.flows
            .values()
            .filter(|(first, last, _)| (*first..=*last).contains(&middle))
            .count()
    }

    fn mean(&self, class: usize) -> f64 {
        self.classes[class].1 as f64 / self.classes[class].0 as f64
    }
}

fn count(profile: &Profile, options: &GeneratorOptions, packets: u64) -> Counted {
    let mut generator = Generator::new(profile, options);
    let hasher = FlowHasher::new([1, 2]);
    let mut counted = Counted {
        packets,
        classes: [(0, 0); 2],
        flows: HashMap::new(),
        seconds: 0.0,
        frame_bytes: 0,
    };
    let mut frame = [0; SPACE];
    let mut before = 0;
    for number in 0..packets {
        let packet = generator.packet_into(&mut frame);
        assert!(packet.ts_ns >= before);
        before = packet.ts_ns;
        let data = &frame[..usize::from(packet.len)];
        let class = &mut counted.classes[usize::from(packet.anomalous)];
        class.0 += 1;
        class.1 += u64::from(packet.len) - 14;
        counted.frame_bytes += u64::from(packet.len);
        let headers = dissect::dissect(LinkType::ETHERNET, data, TunnelKey::Inner);
        let key = headers.key.expect("every packet belongs to a flow");
        let flow = counted
            .flows
            .entry(hasher.flow(&key))
            .or_insert((number, number, 0));
        flow.1 = number;
        flow.2 += 1;
    }
    counted.seconds = (before - options.start_ns) as f64 / 1e9;
    counted
}

/// TitanLog, Table IV, at 100 Gb/s: name, active flows, millions of packets per second,
/// percent of packets and of bandwidth that are anomalous.
const TABLE_IV: [(&str, f64, f64, f64, f64); 5] = [
    ("cic-w1", 33_356.0, 15.214, 0.0, 0.0),
    ("cic-w2", 30_865.0, 14.694, 2.344, 0.153),
    ("cic-w3", 32_711.0, 14.418, 17.695, 16.621),
    ("cic-w4", 58_638.0, 15.856, 1.029, 0.348),
    ("cic-w5", 295_509.0, 15.986, 13.353, 12.039),
];

fn near(what: &str, value: f64, wanted: f64, tolerance: f64) {
    assert!(
        (value - wanted).abs() <= wanted * tolerance,
        "{what} is {value}, not {wanted}"
    );
}

#[test]
fn profiles_match_table_iv() {
    for (name, flows, rate, packets, bandwidth) in TABLE_IV {
        let profile: Profile = name.parse().unwrap();
        // Enough for several turns of each flow.
        let wanted = if flows > 1e5 { 3_000_000 } else { 800_000 };
        let counted = count(&profile, &GeneratorOptions::default(), wanted);
        let [benign, anomalous] = counted.classes;
        near("active flows", counted.active() as f64, flows, 0.05);
        near(
            "packet rate",
            wanted as f64 / counted.seconds,
            rate * 1e6,
            0.01,
        );
        let ip_bytes = (benign.1 + anomalous.1) as f64;
        near("bandwidth", ip_bytes * 8.0 / counted.seconds, 1e11, 0.01);
        near(
            "anomalous packets",
            anomalous.0 as f64 / wanted as f64,
            packets / 100.0,
            0.02,
        );
        near(
            "anomalous bandwidth",
            anomalous.1 as f64 / ip_bytes,
            bandwidth / 100.0,
            0.03,
        );
        // A heavy tail.
        let mut sizes: Vec<u64> = counted.flows.values().map(|flow| flow.2).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let largest: u64 = sizes[..sizes.len() / 10].iter().sum();
        near(
            "packets of the largest tenth of the flows",
            largest as f64 / wanted as f64,
            0.55,
            0.15,
        );
    }
}

#[test]
fn a_seed_gives_the_same_packets_and_another_gives_others() {
    let bytes = |seed| {
        let profile: Profile = "cic-w5".parse().unwrap();
        let options = GeneratorOptions {
            seed,
            flows: Some(1000),
            ..GeneratorOptions::default()
        };
        let mut generator = Generator::new(&profile, &options);
        let mut frame = [0; SPACE];
        let mut all = Vec::new();
        for _ in 0..20_000 {
            let packet = generator.packet_into(&mut frame);
            all.extend_from_slice(&packet.ts_ns.to_le_bytes());
            all.extend_from_slice(&frame[..usize::from(packet.len)]);
        }
        all
    };
    let first = bytes(7);
    assert!(first == bytes(7));
    assert!(first != bytes(8));
    // The same on every machine, and in the next version unless the changelog says so.
    assert_eq!(crc32c::crc32c(&first), 3_614_557_724);
}

#[test]
fn rates_and_flows_are_as_requested() {
    let profile: Profile = "cic-w1".parse().unwrap();
    let options = |rate| GeneratorOptions {
        flows: Some(5_000),
        rate,
        ..GeneratorOptions::default()
    };
    let counted = count(
        &profile,
        &options(Rate::PacketsPerSecond(1_000_000)),
        300_000,
    );
    near("active flows", counted.active() as f64, 5_000.0, 0.05);
    near("packets per second", 300_000.0 / counted.seconds, 1e6, 0.01);
    let counted = count(
        &profile,
        &options(Rate::BitsPerSecond(2_000_000_000)),
        300_000,
    );
    near(
        "bits per second",
        counted.frame_bytes as f64 * 8.0 / counted.seconds,
        2e9,
        0.01,
    );
    let counted = count(&profile, &options(Rate::Profile { permille: 500 }), 300_000);
    near(
        "half the rate",
        300_000.0 / counted.seconds,
        15.214e6 / 2.0,
        0.01,
    );
}

#[test]
fn floods_and_mixes_have_their_lengths() {
    for (name, mean) in [
        ("flood64", 46.0),
        ("flood788", 770.0),
        ("flood1518", 1500.0),
        ("imix", 339.8),
    ] {
        let profile: Profile = name.parse().unwrap();
        let counted = count(&profile, &GeneratorOptions::default(), 100_000);
        let class = usize::from(counted.classes[1].0 > 0);
        near(name, counted.mean(class), mean, 0.02);
    }
    for wrong in ["flood63", "flood1519", "cic-w6", ""] {
        assert!(wrong.parse::<Profile>().is_err());
    }
}

#[test]
fn one_flow_is_enough() {
    for name in Profile::NAMES {
        let profile: Profile = name.parse().unwrap();
        count(
            &profile,
            &GeneratorOptions {
                flows: Some(1),
                ..GeneratorOptions::default()
            },
            10_000,
        );
    }
}

/// What the *Flow paper says of 10 Gb/s core links (section 7): 1.5 billion packets an hour, fewer
/// than 20,000 new flows a second, 33 packets of a flow; and what Jurkiewicz et al. say of sizes.
#[test]
fn a_core_link_has_the_published_statistics() {
    let profile: Profile = "core-2015".parse().unwrap();
    for seed in 1..=3 {
        let options = GeneratorOptions {
            seed,
            ..GeneratorOptions::default()
        };
        let packets = 2_000_000;
        let counted = count(&profile, &options, packets);
        near(
            "packet rate",
            packets as f64 / counted.seconds,
            1.5e9 / 3600.0,
            0.01,
        );
        near("bytes of a packet", counted.mean(0), 880.0, 0.01);
        // Flows that began within the trace; the others were there before.
        let flows = counted.flows.len() as f64 - f64::from(profile.active_flows());
        let rate = flows / counted.seconds;
        assert!((8_000.0..20_000.0).contains(&rate), "{rate} flows a second");
        near("packets of a flow", packets as f64 / flows, 33.0, 0.3);
        let mut sizes: Vec<u64> = counted.flows.values().map(|flow| flow.2).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let largest: u64 = sizes[..sizes.len() / 10].iter().sum();
        // Of the largest flows, five seconds show only a part. A third would be an exponential tail.
        assert!(
            largest as f64 > 0.55 * packets as f64,
            "a heavy tail: {largest}"
        );
        let small = sizes.iter().filter(|&&size| size <= 10).count();
        assert!(small * 2 > sizes.len(), "most flows are small: {small}");
    }
}
