//! What the tests share: the data folder, and reading a whole input.

use std::fs;
use std::path::{Path, PathBuf};

use strata_capture::{
    CaptureError, Input, InputOptions, Next, PacketRef, PcapNgWriter, PcapWriter, Warning,
};
use strata_wire::{Interface, LinkType, Meta};

/// A packet with its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) ts_ns: u64,
    pub(crate) interface: u16,
    pub(crate) wire_len: u32,
    pub(crate) data: Vec<u8>,
    pub(crate) options: Vec<u8>,
    pub(crate) has_timestamp: bool,
}

impl From<PacketRef<'_>> for Packet {
    fn from(packet: PacketRef<'_>) -> Self {
        Self {
            ts_ns: packet.ts_ns,
            interface: packet.interface,
            wire_len: packet.wire_len,
            data: packet.data.to_vec(),
            options: packet.options.to_vec(),
            has_timestamp: packet.has_timestamp,
        }
    }
}

impl Packet {
    pub(crate) fn borrow(&self) -> PacketRef<'_> {
        PacketRef {
            ts_ns: self.ts_ns,
            interface: self.interface,
            wire_len: self.wire_len,
            data: &self.data,
            options: &self.options,
            has_timestamp: self.has_timestamp,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Item {
    Packet(Packet),
    Meta(Meta),
}

/// Everything that an input gives.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    pub(crate) items: Vec<Item>,
    pub(crate) warnings: Vec<Warning>,
    pub(crate) error: Option<CaptureError>,
}

impl Reading {
    pub(crate) fn packets(&self) -> impl Iterator<Item = &Packet> {
        self.items.iter().filter_map(|item| match item {
            Item::Packet(packet) => Some(packet),
            Item::Meta(_) => None,
        })
    }

    pub(crate) fn metas(&self) -> impl Iterator<Item = &Meta> {
        self.items.iter().filter_map(|item| match item {
            Item::Packet(_) => None,
            Item::Meta(meta) => Some(meta),
        })
    }

    pub(crate) fn interfaces(&self) -> Vec<&Interface> {
        self.metas()
            .filter_map(|meta| match meta {
                Meta::Interface { interface, .. } => Some(interface),
                _ => None,
            })
            .collect()
    }
}

pub(crate) fn read(path: &Path) -> Reading {
    read_all(&[path.to_owned()], &InputOptions::default())
}

/// Reads until the end or the first error.
pub(crate) fn read_all(paths: &[PathBuf], options: &InputOptions) -> Reading {
    let mut reading = Reading::default();
    let mut input = match Input::open(paths, options) {
        Ok(input) => input,
        Err(error) => {
            reading.error = Some(error);
            return reading;
        }
    };
    let mut interfaces = 0;
    loop {
        match input.advance() {
            Ok(Next::Packets) => {
                let batch = input.batch();
                assert!(!batch.is_empty() && batch.len() <= strata_capture::BATCH_MAX);
                for packet in batch {
                    assert!(packet.interface < interfaces, "interface before packet");
                    reading.items.push(Item::Packet(packet.into()));
                }
            }
            Ok(Next::Meta(meta)) => {
                assert!(input.batch().is_empty());
                if let Meta::Interface { id, .. } = meta {
                    assert_eq!(id, interfaces, "ids are dense");
                    interfaces += 1;
                }
                reading.items.push(Item::Meta(meta));
            }
            Ok(Next::End) => break,
            Err(error) => {
                reading.error = Some(error);
                break;
            }
        }
    }
    assert!(input.batch().is_empty());
    assert!(matches!(input.advance(), Ok(Next::End)), "the end stays");
    reading.warnings = input.take_warnings();
    assert_eq!(input.warnings().count(), 0);
    reading
}

use strata_testkit::check_golden;
pub(crate) use strata_testkit::data_dir;

/// All files of `formats/`, sorted, with their names relative to it.
pub(crate) fn format_files() -> Vec<(String, PathBuf)> {
    let root = data_dir().join("formats");
    let name = |path: &Path| path.strip_prefix(&root).unwrap().display().to_string();
    let paths = strata_testkit::format_captures().into_iter();
    let mut files: Vec<_> = paths.map(|path| (name(&path), path)).collect();
    files.sort();
    files
}

/// Compares with a checked-in text; with `STRATA_BLESS` set, writes it.
pub(crate) fn check_snapshot(name: &str, actual: &str) {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots"));
    check_golden(&folder.join(name), actual);
}

/// Packets and files made for a test.
pub(crate) fn packet(ts_ns: u64, interface: u16, data: &[u8]) -> Packet {
    Packet {
        ts_ns,
        interface,
        wire_len: u32::try_from(data.len()).unwrap(),
        data: data.to_vec(),
        options: Vec::new(),
        has_timestamp: true,
    }
}

pub(crate) fn pcap_of(packets: &[Packet]) -> Vec<u8> {
    let mut writer = PcapWriter::new(Vec::new());
    writer
        .interface(0, &Interface::new(LinkType::ETHERNET, 0))
        .unwrap();
    for packet in packets {
        writer.packet(&packet.borrow()).unwrap();
    }
    writer.finish().unwrap()
}

pub(crate) fn pcapng_of(packets: &[Packet]) -> Vec<u8> {
    let mut writer = PcapNgWriter::new(Vec::new(), &[]).unwrap();
    writer
        .interface(0, &Interface::new(LinkType::ETHERNET, 0))
        .unwrap();
    for packet in packets {
        writer.packet(&packet.borrow()).unwrap();
    }
    writer.finish().unwrap()
}

pub(crate) fn some_packets(count: u64) -> Vec<Packet> {
    let data = [7; 40];
    (0..count)
        .map(|index| {
            packet(
                1_000_000_000 + index,
                0,
                &data[..usize::try_from(index % 40).unwrap()],
            )
        })
        .collect()
}

pub(crate) fn file(folder: &tempfile::TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}
