//! `p4/dta_reporter.spec` and `p4/dta_translator.spec` in DPDK's software switch, against the translator: packets out,
//! byte for byte, and registers.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use strata_dta::append::End;
use strata_dta::key_write::KeyWrite;
use strata_dta::translator::{Options, Translator};
use strata_dta::{KeyHasher, Remote};
use strata_rdma::{OnLoss, Psn, Requester, RequesterOptions};
use strata_testkit::capture::Frame;
use strata_testkit::switch;
use strata_wire::roce::icrc::{self, Ip, Outer};
use strata_wire::roce::{Service, UDP_PORT};

const SEED: [u64; 2] = [0x0123_4567_89ab_cdef, 42];
const SLOTS_LOG2: u32 = 20;
const VA: u64 = 0x7f12_3456_7000;
const RKEY: u32 = 0xbeef_0001;
const QPN: u32 = 0x1234;
const FIRST_PSN: u32 = 0xff_fff0;
const FROM: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);
const TO: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);
const FROM_PORT: u16 = 50_000;
const TO_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const FROM_MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];

fn runner() -> Option<&'static Path> {
    switch::runner(Path::new(env!("CARGO_TARGET_TMPDIR")))
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// An Ethernet frame of a UDP datagram in IPv4.
fn datagram(port: u16, payload: &[u8]) -> Vec<u8> {
    let len = |more: usize| u16::try_from(payload.len() + more).unwrap().to_be_bytes();
    let mut frame = [2; 12].to_vec();
    frame.extend([0x08, 0, 0x45, 0]);
    frame.extend(len(28));
    frame.extend([0, 1, 0, 0, 61, 17, 0, 0, 198, 51, 100, 1, 192, 0, 2, 7]);
    frame.extend([0xc0, 0]);
    frame.extend(port.to_be_bytes());
    frame.extend(len(8));
    frame.extend([0, 0]);
    frame.extend(payload);
    frame
}

/// A Key-Write as the published programs send it, written from their layout: with a sequence number if they send one.
fn key_write(sequence: Option<u8>, redundancy: u8, key: [u8; 4], data: &[u8]) -> Vec<u8> {
    let mut report = vec![0x01];
    report.extend(sequence);
    report.extend([0, redundancy]);
    report.extend(key);
    report.extend(data);
    report
}

/// Numbers that are the same in each run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 16
    }

    fn below(&mut self, end: u64) -> u8 {
        u8::try_from(self.next() % end).unwrap()
    }
}

/// Strata's translator in front of an RDMA connection. Returns its packets as frames, and the number of accepted and
/// of refused reports.
fn oracle(reports: &[(u64, Vec<u8>)]) -> (Vec<Frame>, u64, u64) {
    let mut options = Options::new(KeyHasher::new(SEED));
    options.key_write = Some(KeyWrite::new(0, 1 << SLOTS_LOG2, 4, 32));
    let mut translator = Translator::new::<Remote>(options, |_| End::default());
    let mut parameters = RequesterOptions::new(Service::Rc, QPN, Psn::new(FIRST_PSN), 1024);
    // The switch has no copies, and asks for an answer each time.
    parameters.on_loss = OnLoss::Skip;
    parameters.ack_interval = 1;
    parameters.window = 1 << 22;
    let mut remotes = [Remote::new(
        Requester::new(parameters),
        VA,
        RKEY,
        8,
        1024,
        1024,
    )];
    let source = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));
    let mut frames = Vec::new();
    for (ts_ns, report) in reports {
        translator.receive(source, report, *ts_ns, &mut remotes, &mut Vec::new());
        for packet in remotes[0].packets().iter() {
            frames.push(Frame::whole(*ts_ns, framed(packet)));
        }
        remotes[0].packets().clear();
    }
    let (_, counters) = translator.sources().next().unwrap();
    let accepted = counters.accepted;
    (frames, accepted, counters.datagrams - accepted)
}

/// A RoCEv2 packet in its frame.
fn framed(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    let ip = Ip::V4 {
        source: FROM,
        destination: TO,
        identification: 0,
        dont_fragment: true,
    };
    let outer = Outer {
        ip,
        source_port: FROM_PORT,
        destination_port: UDP_PORT,
    };
    icrc::put(&outer, &mut packet);
    let mut frame = [TO_MAC, FROM_MAC].concat();
    frame.extend([0x08, 0]);
    let len = |more: usize| u16::try_from(packet.len() + more).unwrap().to_be_bytes();
    let mut header = [0x45, 0].to_vec();
    header.extend(len(28));
    header.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    header.extend(FROM.octets());
    header.extend(TO.octets());
    let words = header
        .chunks(2)
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let mut sum: u32 = words.sum();
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    header[10..12].copy_from_slice(&(!u16::try_from(sum).unwrap()).to_be_bytes());
    frame.extend(header);
    frame.extend(FROM_PORT.to_be_bytes());
    frame.extend(UDP_PORT.to_be_bytes());
    frame.extend(len(8));
    frame.extend([0, 0]);
    frame.extend(packet);
    frame
}

/// The tables of a connection to the collector.
fn connect(folder: &Path) {
    let text = |value: &dyn ToString| value.to_string();
    let mac = |bytes: [u8; 6]| bytes.map(|byte| format!("{byte:02x}")).join(":");
    let arguments = [
        ["--slots-log2".into(), text(&SLOTS_LOG2)],
        ["--va".into(), text(&VA)],
        ["--rkey".into(), text(&RKEY)],
        ["--qpn".into(), text(&QPN)],
        ["--first-psn".into(), text(&FIRST_PSN)],
        ["--from".into(), text(&FROM)],
        ["--to".into(), text(&TO)],
        ["--from-port".into(), text(&FROM_PORT)],
        ["--from-mac".into(), mac(FROM_MAC)],
        ["--to-mac".into(), mac(TO_MAC)],
        ["--seed".into(), text(&SEED[0])],
    ];
    let mut words: Vec<&str> = arguments.iter().flatten().map(String::as_str).collect();
    let seed = text(&SEED[1]);
    words.push(&seed);
    switch::tables("dta_translator", &words, folder);
}

#[test]
fn the_translator_in_a_switch_writes_what_ours_writes() {
    let Some(runner) = runner() else { return };
    let folder = folder("dta_translator");
    switch::check(runner, "dta_translator");
    connect(&folder);
    let mut numbers = Numbers(7);
    let (mut frames, mut reports, mut others) = (Vec::new(), Vec::new(), Vec::new());
    let (mut ts_ns, mut bits) = (1_700_000_000_000_000_000, 0);
    for number in 0..6_000_u32 {
        ts_ns += 1_000;
        let sequence = (numbers.below(2) == 0).then(|| numbers.below(256));
        // Keys of one bit and of none, then any.
        let key = match number {
            0..33 => 1_u32.checked_shl(number).map_or(0, |key| key),
            _ => u32::try_from(numbers.next() & 0xffff_ffff).unwrap(),
        };
        let data = u32::try_from(numbers.next() & 0xffff_ffff)
            .unwrap()
            .to_be_bytes();
        let mut report = key_write(sequence, numbers.below(7), key.to_be_bytes(), &data);
        // Reports that are refused: another primitive that is not served, longer data, cut, unknown.
        match numbers.below(16) {
            0 => report = [vec![0x02, 0], vec![0; 8]].concat(),
            1 => report.extend([1, 2, 3, 4]),
            2 => report.truncate(usize::from(numbers.below(12))),
            3 => report[0] = 5 + numbers.below(10),
            _ => bits |= 1 << report.len(),
        }
        let mut frame = datagram(40_040, &report);
        // As Ethernet pads, or longer.
        frame.resize(
            frame.len().max(60) + usize::from(numbers.below(2) * 9),
            0xaa,
        );
        match numbers.below(20) {
            // Another port, a fragment, options, IPv6, an IP length that is not that of UDP, a cut frame: not reports.
            kind @ 0..6 => {
                match kind {
                    0 => frame[37] ^= 1,
                    1 => frame[20] |= 0x20,
                    2 => frame[14] = 0x46,
                    3 => frame[12] = 0x86,
                    4 => frame[17] ^= 1,
                    _ => frame.truncate(14 + usize::from(numbers.below(28 + report.len() as u64))),
                }
                others.push(Frame::whole(ts_ns, frame.clone()));
            }
            _ => reports.push((ts_ns, report)),
        }
        frames.push(Frame::whole(ts_ns, frame));
    }
    assert_eq!(bits, 1 << 11 | 1 << 12, "both forms");
    let (writes, accepted, refused) = oracle(&reports);
    assert!(accepted > 2_000 && refused > 500 && others.len() > 500);
    let ran = switch::run(runner, "dta_translator", Some(4), &folder, &frames);
    assert_eq!(ran.ports[0].len(), writes.len());
    for (number, (found, expected)) in ran.ports[0].iter().zip(&writes).enumerate() {
        assert_eq!(found.bytes, expected.bytes, "write {number}");
        assert_eq!(found.ts_ns, expected.ts_ns, "write {number}");
    }
    assert_eq!(ran.ports[1], others);
    assert_eq!(ran.register("outcomes", 0), accepted);
    assert_eq!(ran.register("outcomes", 1), others.len() as u64);
    assert_eq!(
        ran.register("outcomes", 2) + ran.register("outcomes", 3),
        refused
    );
    assert_eq!(ran.register("psn", 0), writes.len() as u64);
}

#[test]
fn the_reporter_in_a_switch_reports_and_its_reports_are_written() {
    let Some(runner) = runner() else { return };
    let folder = folder("dta_reporter");
    switch::check(runner, "dta_reporter");
    let (from, to, port) = (FROM.to_string(), TO.to_string(), FROM_PORT.to_string());
    let words = [
        ["--watch", "10.0.0.0/8=2"],
        ["--watch", "10.0.0.1/32=1"],
        ["--from", &from],
        ["--to", &to],
        ["--from-port", &port],
        ["--from-mac", "02:00:00:00:00:07"],
        ["--to-mac", "02:00:00:00:00:09"],
    ];
    switch::tables("dta_reporter", words.as_flattened(), &folder);
    let mut numbers = Numbers(9);
    let (mut frames, mut reports) = (Vec::new(), Vec::new());
    for number in 0..2_000_u64 {
        let mut frame = datagram(53, &vec![7; usize::from(numbers.below(200))]);
        frame[26..30].copy_from_slice(&[9 + numbers.below(3), 0, 0, numbers.below(4)]);
        match numbers.below(10) {
            0 => frame.truncate(14 + usize::from(numbers.below(30))),
            1 => frame[13] = 6,
            _ => {}
        }
        let frame = Frame::whole(1_700_000_000_000_000_000 + number, frame);
        let bytes = &frame.bytes;
        if bytes.len() >= 34 && bytes[12..14] == [0x08, 0] && bytes[26] == 10 {
            let redundancy = if bytes[29] == 1 { 1 } else { 2 };
            let key = bytes[26..30].try_into().unwrap();
            let report = key_write(None, redundancy, key, &frame.wire_len.to_be_bytes());
            reports.push((frame.ts_ns, report));
        }
        frames.push(frame);
    }
    let ran = switch::run(runner, "dta_reporter", Some(2), &folder, &frames);
    assert_eq!(ran.ports[1], frames);
    assert!(reports.len() > 400 && ran.ports[0].len() == reports.len());
    for (found, (ts_ns, report)) in ran.ports[0].iter().zip(&reports) {
        assert_eq!((&found.bytes[42..], found.ts_ns), (&report[..], *ts_ns));
        assert_eq!(found.bytes[..12], [TO_MAC, FROM_MAC].concat());
        let sum: u32 = found.bytes[14..34]
            .chunks(2)
            .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
            .sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "checksum of IPv4");
    }
    // To the translator.
    let (writes, accepted, _) = oracle(&reports);
    connect(&folder);
    let ran = switch::run(runner, "dta_translator", Some(4), &folder, &ran.ports[0]);
    assert_eq!(accepted, reports.len() as u64);
    let bytes = |frames: &[Frame]| {
        frames
            .iter()
            .map(|frame| frame.bytes.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(bytes(&ran.ports[0]), bytes(&writes));
}
