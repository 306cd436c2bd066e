//! `p4/titanlog_sketch.spec` in DPDK's software switch, against [`Sketch`] in a switch's arithmetic: the features of
//! each packet's flow.
//!
//! The program never replaces the flow of a bucket within a window, so the traffic is such that Strata does not either.

use std::path::Path;

use strata_sketch::{Arithmetic, Clock, PacketFacts, Sketch};
use strata_testkit::capture::{Frame, read};
use strata_testkit::{data_dir, switch};

const BITS: u32 = 12;
const WINDOW_NS: u64 = 1 << 30;

/// A CRC with this polynomial, bit by bit, lowest bit first.
fn crc(bytes: &[u8], polynomial: u32, start: u32) -> u32 {
    let mut crc = start;
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { polynomial } else { 0 };
        }
    }
    crc
}

/// The fingerprint of a frame's flow, the same in both directions, as the program computes it.
fn fingerprint(frame: &[u8]) -> Option<u64> {
    let is_flow = frame.len() >= 42
        && frame[12..15] == [0x08, 0, 0x45]
        && (frame[20] & 0x3f, frame[21]) == (0, 0)
        && [6, 17].contains(&frame[23]);
    if !is_flow {
        return None;
    }
    let mut ends = [
        [&frame[26..30], &frame[34..36]].concat(),
        [&frame[30..34], &frame[36..38]].concat(),
    ];
    ends.sort();
    let key = [ends.concat(), vec![frame[23]]].concat();
    let high = !crc(&key, 0xedb8_8320, u32::MAX);
    let low = crc(&key, 0x82f6_3b78, 0);
    Some(u64::from(high) << 32 | u64::from(low))
}

#[test]
fn the_sketch_in_a_switch_has_the_features_of_ours() {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let Some(runner) = switch::runner(target) else {
        return;
    };
    switch::check(runner, "titanlog_sketch");
    let folder = target.join("titanlog_sketch");
    switch::tables("titanlog_sketch", &[], &folder);
    let mut frames = read(&data_dir().join("labelled/mix-test/trace.pcap"));
    frames.truncate(40_000);
    frames.retain(|frame| (14..=16_384).contains(&frame.bytes.len()));
    // Times that run backwards, also into the window before.
    for frame in frames.iter_mut().step_by(97) {
        frame.ts_ns -= 300_000_000;
    }
    // More flows than buckets in one window, each of a few packets, and one of many of the largest size.
    let mut ts_ns = (frames.last().unwrap().ts_ns / WINDOW_NS + 2) * WINDOW_NS;
    let one = frames
        .iter()
        .find(|frame| fingerprint(&frame.bytes).is_some());
    let mut one = one.unwrap().clone();
    for number in 0..60_000_u32 {
        ts_ns += 7_000;
        one.ts_ns = ts_ns;
        let flow = if number % 4 == 0 { 0 } else { number % 14_000 };
        one.bytes[26..30].copy_from_slice(&flow.to_be_bytes());
        one.wire_len = if flow == 0 {
            70_000
        } else {
            60 + number % 1_400
        };
        frames.push(one.clone());
    }
    for number in 0..60_000_u32 {
        ts_ns += 10_000;
        one.ts_ns = ts_ns;
        one.bytes[26..30].copy_from_slice(&[0; 4]);
        one.wire_len = 65_535 - number % 3;
        frames.push(one.clone());
    }

    let clock = Clock::new(WINDOW_NS);
    let mut sketch = Sketch::new(BITS, clock, Arithmetic::Switch { delta: 0.01 });
    let (mut with, mut without, mut beyond) = (Vec::new(), Vec::new(), Vec::new());
    for frame in &frames {
        let Some(fingerprint) = fingerprint(&frame.bytes) else {
            beyond.push(frame.clone());
            continue;
        };
        let facts = PacketFacts {
            fingerprint,
            ts_ns: frame.ts_ns,
            size: u16::try_from(frame.wire_len.min(65_535)).unwrap(),
            ..PacketFacts::default()
        };
        let Some(bucket) = sketch.insert(&facts) else {
            without.push(frame.clone());
            continue;
        };
        let stats = bucket.stats();
        let mut bytes = u16::try_from(stats.packets).unwrap().to_be_bytes().to_vec();
        bytes.extend(stats.bytes.to_be_bytes());
        bytes.extend(stats.size_min.to_be_bytes());
        bytes.extend(stats.size_max.to_be_bytes());
        bytes.extend(stats.size_squares.to_be_bytes());
        bytes.extend(stats.ipd_sum.to_be_bytes());
        bytes.extend(stats.ipd_min.to_be_bytes());
        bytes.extend(stats.ipd_max.to_be_bytes());
        bytes.extend(stats.ipd_squares.to_be_bytes());
        with.push((frame.ts_ns, bytes));
    }
    let pressure = sketch.pressure();
    assert_eq!(pressure.replaced, 0, "the program does not replace flows");
    assert!(
        pressure.windows > 5 && without.len() > 1_000,
        "{pressure:?}"
    );

    let ran = switch::run(runner, "titanlog_sketch", None, &folder, &frames);
    let mut layers = [0, 0];
    assert_eq!(ran.ports[0].len(), with.len());
    for (number, (Frame { ts_ns, bytes, .. }, expected)) in
        ran.ports[0].iter().zip(&with).enumerate()
    {
        assert_eq!(
            (*ts_ns, &bytes[1..]),
            (expected.0, &expected.1[..]),
            "packet {number}"
        );
        layers[usize::from(bytes[0])] += 1;
    }
    assert!(layers[1] > 1_000, "{layers:?}");
    assert_eq!(ran.ports[1], without);
    assert_eq!(ran.ports[2], beyond);
}
