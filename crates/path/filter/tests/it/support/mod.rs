//! Packets and expressions to compare on.

pub(crate) mod bpf;
mod encapsulate;
pub(crate) mod expressions;

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use strata_wire::LinkType;

/// Packets of all captures that libpcap can open, without duplicates, by libpcap's link type.
pub(crate) fn packets() -> BTreeMap<i32, Vec<Vec<u8>>> {
    let files = strata_testkit::format_captures();
    let mut seen = HashSet::new();
    let mut packets: BTreeMap<i32, Vec<Vec<u8>>> = BTreeMap::new();
    for file in &files {
        // Some captures are damaged on purpose: everything up to the first error counts.
        let Ok(mut capture) = pcap::Capture::from_file(file) else {
            continue;
        };
        let link = capture.get_datalink().0;
        while let Ok(packet) = capture.next_packet() {
            if seen.insert((link, packet.data.to_vec())) {
                packets.entry(link).or_default().push(packet.data.to_vec());
            }
        }
    }
    derive(&mut packets);
    packets
}

/// Link types missing from the captures, made from them: the same frames after other headers.
fn derive(packets: &mut BTreeMap<i32, Vec<Vec<u8>>>) {
    let framed = |header: &[u8], frames: &[Vec<u8>]| -> Vec<Vec<u8>> {
        frames
            .iter()
            .map(|frame| [header, frame].concat())
            .collect()
    };
    // Radiotap states its length at byte 2.
    let bare: Vec<Vec<u8>> = packets[&127]
        .iter()
        .filter_map(|packet| {
            let length = u16::from_le_bytes([*packet.get(2)?, *packet.get(3)?]);
            packet.get(length.into()..).map(<[u8]>::to_vec)
        })
        .collect();
    packets.entry(105).or_default().extend(bare);
    let frames = packets[&105].clone();
    let avs = [&[0x80, 0x21, 0x10, 0x01, 0, 0, 0, 64][..], &[0; 56]].concat();
    let mut prism = framed(&[0; 144], &frames);
    prism.extend(framed(&avs, &frames));
    packets.insert(119, prism);
    packets.insert(163, framed(&avs, &frames));
    // Per-Packet Information: version, flags, length, link type.
    let ppi = framed(&[0, 0, 8, 0, 105, 0, 0, 0], &frames);
    packets.entry(192).or_default().extend(ppi);
    let of_ethernet = framed(&[0, 0, 12, 0, 1, 0, 0, 0, 0, 0, 0, 0], &packets[&1][..200]);
    packets.entry(192).or_default().extend(of_ethernet);
    for (dlt, made) in encapsulate::serial(&packets[&1]) {
        packets.entry(dlt).or_default().extend(made);
    }
    let fddi = encapsulate::fddi(&packets[&1]);
    packets.entry(10).or_default().extend(fddi);
    let ethernet = encapsulate::ethernet(&packets[&1]);
    packets.entry(1).or_default().extend(ethernet);
    // The family, always in network order.
    let looped: Vec<Vec<u8>> = packets[&0]
        .iter()
        .filter(|packet| packet.len() >= 4)
        .map(|packet| {
            let mut packet = packet.clone();
            if packet[0] != 0 {
                packet[..4].reverse();
            }
            packet
        })
        .collect();
    packets.insert(108, looped);
}

/// libpcap's number inside the program is not always the one in the file.
pub(crate) fn link_type(dlt: i32) -> LinkType {
    match dlt {
        12 => LinkType::RAW,
        other => LinkType(u16::try_from(other).expect("a link type has 16 bits")),
    }
}

/// Link types whose headers this crate tests, as libpcap numbers them, and NFLOG, on which both
/// know only lengths and the bytes of the message.
pub(crate) const LINKS: [i32; 20] = [
    0, 1, 9, 10, 12, 50, 51, 104, 105, 107, 108, 113, 119, 127, 163, 192, 228, 229, 239, 276,
];

/// libpcap's compiler for one link type. For files, because for an interface it would use knowledge
/// of the kernel.
pub(crate) struct Oracle(pcap::Capture<pcap::Offline>);

impl Oracle {
    pub(crate) fn new(dlt: i32) -> Self {
        // A capture file without packets: magic number, version 2.4, snapshot length, link type.
        let mut header = Vec::new();
        header.extend(0xa1b2_c3d4_u32.to_ne_bytes());
        header.extend(2_u16.to_ne_bytes());
        header.extend(4_u16.to_ne_bytes());
        header.extend([0; 8]);
        header.extend(0x4_0000_u32.to_ne_bytes());
        header.extend(u32::from(link_type(dlt).0).to_ne_bytes());
        // Tests run concurrently, also in one process.
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("oracle-{}-{count}.pcap", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::write(&path, header).expect("the target folder can be written");
        let capture = pcap::Capture::from_file(&path).expect("libpcap opens an empty file");
        std::fs::remove_file(&path).expect("the file was just written");
        assert_eq!(capture.get_datalink().0, dlt);
        Self(capture)
    }

    pub(crate) fn compile(
        &self,
        expression: &str,
        optimise: bool,
    ) -> Result<pcap::BpfProgram, String> {
        self.0
            .compile(expression, optimise)
            .map_err(|error| error.to_string())
    }
}

/// A small deterministic generator (xorshift64*), so that a failure can be repeated.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound.max(1)).expect("fits");
        usize::try_from(self.next() % bound).expect("fits")
    }
}
