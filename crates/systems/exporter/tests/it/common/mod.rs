//! What tests and the benchmark of this crate share: packets of captures and of the generator.
#![allow(dead_code, reason = "the example uses a part")]
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

pub(crate) mod paper;

use std::collections::BTreeMap;
use std::path::Path;

use strata_capture::{Input, InputOptions, Next};
use strata_exporter::{Header, HeaderReader, HeaderWriter, Label, Source};
use strata_traffic::{Generator, GeneratorOptions, Profile, SPACE};
use strata_wire::dissect::dissect;
use strata_wire::{LinkType, Meta, TunnelKey};

/// A header, kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Kept {
    pub(crate) ts_ns: u64,
    pub(crate) wire_len: u32,
    pub(crate) bytes: Vec<u8>,
    pub(crate) label: Label,
}

impl Kept {
    pub(crate) fn of(header: &Header<'_>) -> Self {
        Self {
            ts_ns: header.ts_ns,
            wire_len: header.wire_len,
            bytes: header.bytes.to_vec(),
            label: header.label,
        }
    }

    pub(crate) fn header(&self) -> Header<'_> {
        Header {
            ts_ns: self.ts_ns,
            wire_len: self.wire_len,
            bytes: &self.bytes,
            label: self.label,
        }
    }
}

pub(crate) const SOURCE: Source = Source {
    identity: 0x01_0203,
    session: 7,
};

/// The headers of a capture by interface, with its link type; `None` if it is no capture. What comes
/// after damage is left.
pub(crate) fn captured(path: &Path) -> Option<Vec<(LinkType, Vec<Kept>)>> {
    let mut input = Input::open(&[path.to_owned()], &InputOptions::default()).ok()?;
    let mut interfaces: BTreeMap<u16, (LinkType, Vec<Kept>)> = BTreeMap::new();
    loop {
        match input.advance() {
            Ok(Next::Packets) => {
                for packet in input.batch() {
                    let (link, headers) = interfaces.get_mut(&packet.interface).unwrap();
                    let found = dissect(*link, packet.data, TunnelKey::Inner);
                    let captured = u32::try_from(packet.data.len()).unwrap();
                    let len = found.kept_header_len(captured) as usize;
                    headers.push(Kept {
                        ts_ns: packet.ts_ns,
                        wire_len: packet.wire_len,
                        bytes: packet.data[..len].to_vec(),
                        label: Label::default(),
                    });
                }
            }
            Ok(Next::Meta(Meta::Interface { id, interface })) => {
                interfaces.insert(id, (interface.link, Vec::new()));
            }
            Ok(Next::Meta(_)) => {}
            Ok(Next::End) | Err(_) => return Some(interfaces.into_values().collect()),
        }
    }
}

/// Headers of generated packets, all on Ethernet.
pub(crate) fn generated(profile: &str, count: usize) -> Vec<Kept> {
    let profile: Profile = profile.parse().unwrap();
    let mut generator = Generator::new(&profile, &GeneratorOptions::default());
    let mut frame = [0; SPACE];
    (0..count)
        .map(|_| {
            let packet = generator.packet_into(&mut frame);
            let bytes = &frame[..usize::from(packet.len)];
            let found = dissect(LinkType::ETHERNET, bytes, TunnelKey::Inner);
            Kept {
                ts_ns: packet.ts_ns,
                wire_len: u32::from(packet.len),
                bytes: bytes[..found.header_len as usize].to_vec(),
                label: Label::default(),
            }
        })
        .collect()
}

/// The same packets, with those of a flow and direction in trains of up to `len`, as segmentation
/// offload and the coalescing of interrupts make them: the first waits for the others, at most
/// `wait` packets. Times stay in order.
pub(crate) fn in_trains(headers: &[Kept], len: usize, wait: usize) -> Vec<Kept> {
    let key = |header: &Kept| {
        let found = dissect(LinkType::ETHERNET, &header.bytes, TunnelKey::Inner);
        (found.key, found.low_to_high)
    };
    let mut out = Vec::with_capacity(headers.len());
    for window in headers.chunks(wait) {
        let mut flows: Vec<Vec<&Kept>> = Vec::new();
        let mut found = std::collections::HashMap::new();
        for header in window {
            let number = *found.entry(key(header)).or_insert(flows.len());
            if number == flows.len() {
                flows.push(Vec::new());
            }
            flows[number].push(header);
        }
        let mut round = 0;
        while flows.iter().any(|flow| flow.len() > round) {
            for flow in &flows {
                out.extend(
                    flow.iter()
                        .skip(round)
                        .take(len)
                        .map(|&header| header.clone()),
                );
            }
            round += len;
        }
    }
    for (header, original) in out.iter_mut().zip(headers) {
        header.ts_ns = original.ts_ns;
    }
    out
}

/// All headers as datagrams of at most `room` bytes.
pub(crate) fn compressed(link: LinkType, headers: &[Kept], room: usize) -> Vec<Vec<u8>> {
    let mut writer = HeaderWriter::new(SOURCE, link, room);
    let mut datagrams = Vec::new();
    for header in headers {
        // What is too long has a number all the same.
        let _ = writer.put(&header.header(), |bytes| datagrams.push(bytes.to_vec()));
    }
    writer.end(|bytes| datagrams.push(bytes.to_vec()));
    assert_eq!(writer.next_packet(), headers.len() as u64);
    datagrams
}

/// Everything that is in these datagrams, by packet number.
pub(crate) fn decompressed<'a>(
    datagrams: impl IntoIterator<Item = &'a Vec<u8>>,
) -> BTreeMap<u64, Kept> {
    let mut reader = HeaderReader::new();
    let mut headers = BTreeMap::new();
    for datagram in datagrams {
        let read = reader.read(datagram, |number, header| {
            assert!(headers.insert(number, Kept::of(header)).is_none());
        });
        read.unwrap();
    }
    headers
}
