//! `p4/starflow.spec` in DPDK's software switch, against [`SwitchCache`]: vectors in the paper's format, byte for byte.
//!
//! The program finds a slot by a CRC, so each of its slots is compared with a cache of one slot, which does not depend
//! on the hash.

use std::collections::BTreeMap;
use std::path::Path;

use strata_gpv::format::paper;
use strata_gpv::{Basic, Key, Packet, Parameters, Reason, SwitchCache, Vector};
use strata_testkit::capture::{Frame, read};
use strata_testkit::{data_dir, switch};
use strata_wire::{AddressFamily, Endpoint};

const SLOTS: u32 = 4096;
const NARROW: Parameters = Parameters {
    slots: 1,
    narrow: 4,
    wide: 0,
    blocks: 0,
};

/// The CRC of Ethernet, bit by bit.
fn crc(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 };
        }
    }
    !crc
}

/// The flow of a frame that the program tracks, and its slot.
fn flow(frame: &[u8]) -> Option<(Key, u32)> {
    let is_tracked = frame.len() >= 42
        && frame[12..15] == [0x08, 0, 0x45]
        && (frame[20] & 0x3f, frame[21]) == (0, 0)
        && [6, 17].contains(&frame[23]);
    let covered = [frame.get(26..38)?, &[frame[23]]].concat();
    let end = |address: usize, port: usize| Endpoint {
        address: u32::from_be_bytes(frame[address..address + 4].try_into().unwrap()).into(),
        port: u16::from_be_bytes([frame[port], frame[port + 1]]),
    };
    let (source, destination) = (end(26, 34), end(30, 36));
    let key = Key::new(AddressFamily::Ipv4, frame[23], source, destination, 0);
    is_tracked.then_some((key, crc(&covered) % SLOTS))
}

#[test]
fn the_cache_in_a_switch_gives_the_vectors_of_ours() {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let Some(runner) = switch::runner(target) else {
        return;
    };
    switch::check(runner, "starflow");
    let folder = target.join("starflow");
    let addresses = [
        ["--from", "192.0.2.7"],
        ["--to", "192.0.2.9"],
        ["--to-port", "5000"],
        ["--from-mac", "02:00:00:00:00:07"],
        ["--to-mac", "02:00:00:00:00:09"],
    ];
    switch::tables("starflow", addresses.as_flattened(), &folder);
    // Times that run backwards, that just fit, and that do not.
    let mut frames = read(&data_dir().join("labelled/mix-test/trace.pcap"));
    frames.truncate(40_000);
    frames.retain(|frame| (14..=16_384).contains(&frame.bytes.len()));
    let mut last = 0;
    for (number, frame) in frames.iter_mut().enumerate() {
        match number % 97 {
            13 => frame.ts_ns -= 5,
            31 => frame.ts_ns -= 3_000_000_000,
            57 => frame.ts_ns = last + 1_048_575_999,
            83 => frame.ts_ns = last + 1_048_576_000,
            _ => {}
        }
        last = frame.ts_ns;
    }
    // One flow at the limits of time.
    let mut one = frames
        .iter()
        .find(|frame| flow(&frame.bytes).is_some())
        .unwrap()
        .clone();
    for after in [0, 1_048_575_999, 1_048_576_000, 0, 999, 1_000, u64::MAX] {
        one.ts_ns = last.wrapping_add(after);
        frames.push(one.clone());
    }

    let mut caches = BTreeMap::new();
    let (mut expected, mut reasons) = (Vec::new(), [0_u64; 4]);
    for frame in &frames {
        let Some((key, slot)) = flow(&frame.bytes) else {
            continue;
        };
        let new = || SwitchCache::<Basic>::new(NARROW, 1, 0).unwrap();
        let packet = Packet {
            key,
            ts_ns: frame.ts_ns,
            size: frame.wire_len,
            ..Packet::default()
        };
        let mut take = |vector: &Vector<'_, Basic>| {
            let mut bytes = Vec::new();
            paper::emit(vector, &mut bytes).unwrap();
            reasons[vector.reason as usize] += 1;
            expected.push((frame.ts_ns, bytes));
        };
        let cache = caches.entry(slot).or_insert_with(new);
        cache.push(&[packet], &mut take);
    }
    for reason in [Reason::Full, Reason::Collision, Reason::Time] {
        assert!(reasons[reason as usize] > 300, "{reason:?}: {reasons:?}");
    }

    let ran = switch::run(runner, "starflow", Some(2), &folder, &frames);
    assert_eq!(ran.ports[1], frames);
    assert_eq!(ran.ports[0].len(), expected.len());
    for (number, (Frame { ts_ns, bytes, .. }, expected)) in
        ran.ports[0].iter().zip(&expected).enumerate()
    {
        assert_eq!(
            (*ts_ns, &bytes[42..]),
            (expected.0, &expected.1[..]),
            "vector {number}"
        );
    }
    for (reason, &vectors) in reasons.iter().enumerate() {
        assert_eq!(ran.register("exported", reason), vectors, "reason {reason}");
    }
}
