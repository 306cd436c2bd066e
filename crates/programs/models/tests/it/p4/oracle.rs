//! What the switch should do, by Strata's headers, features and classifier.

use std::collections::BTreeMap;

use strata_classify::{LANES, Model};
use strata_pipeline::{Classifier, DataPath};
use strata_sketch::{Arithmetic, PacketFacts, Sketch};
use strata_wire::dissect::{TunnelKey, dissect};
use strata_wire::{FlowHasher, Granularity, KeepKind, LinkType};

use strata_testkit::capture::Frame;

/// Bytes of a frame that the runner takes.
const ROOM: usize = 16_384;
/// The class of packets beyond the parser.
const UNCLASSIFIED: usize = 8;

/// What leaves, and counters by the name that the runner gives them.
pub(super) struct Expected {
    pub(super) ports: [Vec<Frame>; 3],
    pub(super) counters: BTreeMap<String, u64>,
}

/// Runs frames through the classifier.
pub(super) fn expected(model: &Model, granularities: &[Granularity], all: &[Frame]) -> Expected {
    let mut done = Expected {
        ports: Default::default(),
        counters: BTreeMap::new(),
    };
    for name in ["frames", "short", "cut", "dropped"] {
        done.counters.insert(name.to_owned(), 0);
    }
    for (name, size) in [
        ("class_packets", 16),
        ("class_bytes", 16),
        ("granularity_packets", 4),
        ("granularity_bytes", 4),
        ("granularity_kept", 4),
        ("beyond_packets", 8),
    ] {
        let names = (0..size).map(|at| format!("register {name} {at}"));
        done.counters.extend(names.map(|name| (name, 0)));
    }
    let mut frames = Vec::new();
    for frame in all {
        done.add("frames", 1);
        if frame.bytes.len() < 14 {
            done.add("short", 1);
            continue;
        }
        let mut frame = frame.clone();
        if frame.bytes.len() > ROOM {
            done.add("cut", 1);
            frame.bytes.truncate(ROOM);
        }
        frames.push(frame);
    }
    let sketch = Sketch::new(4, model.clock(), Arithmetic::Exact);
    let mut classifier = Classifier::on(DataPath::Reference, model, sketch);
    let hasher = FlowHasher::new([1, 2]);
    for batch in frames.chunks(LANES) {
        let mut facts = [PacketFacts::default(); LANES];
        let mut taken = 0_u64;
        let parsed: Vec<(usize, usize)> = batch.iter().map(|frame| parse(&frame.bytes)).collect();
        for (lane, (frame, &(beyond, header_len))) in batch.iter().zip(&parsed).enumerate() {
            if beyond != 0 {
                continue;
            }
            let headers = dissect(LinkType::ETHERNET, &frame.bytes, TunnelKey::Inner);
            assert_eq!(
                headers.header_len,
                u32::try_from(header_len).unwrap(),
                "{:02x?}",
                &frame.bytes[..header_len]
            );
            let fingerprint = hasher.flow(&headers.key.unwrap());
            facts[lane] = PacketFacts::new(&headers, fingerprint, frame.ts_ns, frame.wire_len);
            taken |= 1 << lane;
        }
        classifier.classify(&facts[..batch.len()], taken);
        for (lane, (frame, (beyond, header_len))) in batch.iter().zip(parsed).enumerate() {
            let class = classifier.class(classifier.classified()[lane]);
            let granularity = granularities[usize::from(class)];
            let class = if beyond == 0 {
                usize::from(class)
            } else {
                UNCLASSIFIED
            };
            done.packet(frame, (beyond, header_len), class, granularity);
        }
    }
    done
}

impl Expected {
    fn add(&mut self, name: &str, amount: u64) {
        *self.counters.get_mut(name).unwrap() += amount;
    }

    fn packet(
        &mut self,
        frame: &Frame,
        (beyond, header_len): (usize, usize),
        class: usize,
        granularity: Granularity,
    ) {
        let [header_len, len] =
            [header_len, frame.bytes.len()].map(|bytes| u32::try_from(bytes).unwrap());
        let kept = granularity.keep.kept_len(header_len, len);
        let kind = granularity.keep.kind();
        let wire_len = u64::from(frame.wire_len);
        for (name, index, amount) in [
            ("class_packets", class, 1),
            ("class_bytes", class, wire_len),
            ("beyond_packets", beyond, 1),
            ("granularity_packets", usize::from(kind.code()), 1),
            ("granularity_bytes", usize::from(kind.code()), wire_len),
            ("granularity_kept", usize::from(kind.code()), kept.into()),
        ] {
            self.add(&format!("register {name} {index}"), amount);
        }
        let port = match kind {
            KeepKind::Nothing => {
                self.add("dropped", 1);
                return;
            }
            KeepKind::Header => 0,
            KeepKind::Partial => 1,
            KeepKind::Full => 2,
        };
        let mut left = frame.clone();
        left.bytes.truncate(usize::try_from(kept).unwrap());
        self.ports[port].push(left);
    }
}

/// What the parser of `p4/include/parser.p4` does with a frame, written from its description: why it does not take the
/// frame, else 0, and the bytes of headers that it took.
fn parse(frame: &[u8]) -> (usize, usize) {
    const NETWORK: usize = 1;
    const MALFORMED: usize = 2;
    const FRAGMENT: usize = 3;
    const TRANSPORT: usize = 4;
    const TUNNEL: usize = 5;
    const SHORT: usize = 6;
    let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let (mut at, mut kind) = (14, word(12));
    for _ in 0..2 {
        if [0x8100, 0x88a8, 0x9100, 0x9200].contains(&kind) {
            if at + 4 > frame.len() {
                return (SHORT, at);
            }
            kind = word(at + 2);
            at += 4;
        }
    }
    let ip = at;
    let (end, protocol) = match kind {
        0x0800 => {
            if ip + 20 > frame.len() {
                return (SHORT, at);
            }
            at = ip + 20;
            let header_len = usize::from(frame[ip] & 15) * 4;
            let total_len = usize::from(word(ip + 2));
            if frame[ip] >> 4 != 4 || header_len < 20 {
                return (MALFORMED, at);
            }
            if total_len < header_len || ip + header_len > frame.len() {
                return (SHORT, at);
            }
            at = ip + header_len;
            if word(ip + 6) & 0x3fff != 0 {
                return (FRAGMENT, at);
            }
            (ip + total_len, frame[ip + 9])
        }
        0x86dd => {
            if ip + 40 > frame.len() {
                return (SHORT, at);
            }
            at = ip + 40;
            let payload_len = usize::from(word(ip + 4));
            if frame[ip] >> 4 != 6 {
                return (MALFORMED, at);
            }
            if payload_len == 0 {
                return (SHORT, at);
            }
            (at + payload_len, frame[ip + 6])
        }
        _ => return (NETWORK, at),
    };
    let end = end.min(frame.len());
    let transport = at;
    match protocol {
        6 if transport + 20 > end => (SHORT, at),
        6 => {
            let header_len = usize::from(frame[transport + 12] >> 4) * 4;
            match header_len {
                0..20 => (MALFORMED, transport + 20),
                _ if transport + header_len > end => (SHORT, transport + 20),
                _ => (0, transport + header_len),
            }
        }
        17 if transport + 8 > end => (SHORT, at),
        17 => {
            let (source, destination) = (word(transport), word(transport + 2));
            let either = [2152, 3544];
            let is_tunnel = either.contains(&source)
                || either.contains(&destination)
                || [4789, 8472, 6081, 4790, 4754, 6635].contains(&destination);
            (if is_tunnel { TUNNEL } else { 0 }, transport + 8)
        }
        _ => (TRANSPORT, at),
    }
}

/// Two tags, IPv4 with options, TCP with options, payload, trailer.
pub(super) fn tagged_ipv4() -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 0x08, 0]);
    frame.extend([
        0x47,
        0x12,
        0,
        28 + 32 + 150,
        0,
        1,
        0x40,
        0,
        64,
        6,
        0,
        0,
        10,
        0,
        0,
        1,
        10,
        0,
        0,
        2,
    ]);
    frame.extend([1; 8]);
    frame.extend([
        0x1f, 0x90, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x80, 0x18, 0x20, 0, 0, 0, 0, 0,
    ]);
    frame.extend([1; 12]);
    frame.extend([9; 150]);
    frame.extend([0; 6]);
    frame
}

/// A tag, IPv6, UDP, payload.
pub(super) fn tagged_ipv6() -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([
        0x81,
        0,
        0,
        5,
        0x86,
        0xdd,
        0x61,
        0x20,
        0,
        0,
        0,
        8 + 140,
        17,
        61,
    ]);
    frame.extend([0x20; 32]);
    frame.extend([0xd0, 0, 0, 53, 0, 148, 0, 0]);
    frame.extend([9; 140]);
    frame
}
