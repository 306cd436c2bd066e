//! Capture files: what is read of them must not depend on how it is read, and
//! must survive being written.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use strata_capture::{
    CaptureError, Input, InputOptions, Next, PacketRef, PcapNgWriter, PcapWriter, Warning,
    WriteError,
};
use strata_wire::{Interface, Meta};

/// Packets and metas that are kept of a file; compressed zeros are many.
const ITEMS_MAX: usize = 1 << 14;
/// Bytes of them.
const BYTES_MAX: usize = 16 << 20;

/// A packet that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// As in [`PacketRef`].
    pub ts_ns: u64,
    /// As in [`PacketRef`].
    pub interface: u16,
    /// As in [`PacketRef`].
    pub wire_len: u32,
    /// As in [`PacketRef`].
    pub data: Vec<u8>,
    /// As in [`PacketRef`].
    pub options: Vec<u8>,
    /// As in [`PacketRef`].
    pub has_timestamp: bool,
}

impl Packet {
    fn of(packet: &PacketRef<'_>) -> Self {
        Self {
            ts_ns: packet.ts_ns,
            interface: packet.interface,
            wire_len: packet.wire_len,
            data: packet.data.to_vec(),
            options: packet.options.to_vec(),
            has_timestamp: packet.has_timestamp,
        }
    }

    fn borrow(&self) -> PacketRef<'_> {
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

/// What an input delivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A packet.
    Packet(Packet),
    /// Something beside it.
    Meta(Meta),
}

/// A file read to its end.
#[derive(Debug)]
pub struct Reading {
    /// All that was delivered.
    pub items: Vec<Item>,
    /// What was odd.
    pub warnings: Vec<Warning>,
    /// Why reading ended early.
    pub error: Option<CaptureError>,
}

impl Reading {
    /// The packets.
    pub fn packets(&self) -> impl Iterator<Item = &Packet> {
        self.items.iter().filter_map(|item| match item {
            Item::Packet(packet) => Some(packet),
            Item::Meta(_) => None,
        })
    }

    /// The interfaces, by their id.
    #[must_use]
    pub fn interfaces(&self) -> Vec<&Interface> {
        let metas = self.items.iter().filter_map(|item| match item {
            Item::Meta(Meta::Interface { interface, .. }) => Some(interface),
            _ => None,
        });
        metas.collect()
    }
}

/// A file in memory that [`Input`] can open by a path. It has no name, so no file is left behind
/// when a target dies.
#[derive(Debug)]
pub struct Scratch {
    file: File,
    path: PathBuf,
}

impl Scratch {
    /// An empty one, in the folder for temporary files (`TMPDIR`).
    ///
    /// # Panics
    ///
    /// If it cannot be made.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let made = || -> io::Result<File> {
            let path = std::env::temp_dir().join(format!("strata-{name}-{}", std::process::id()));
            let mut options = OpenOptions::new();
            let file = options
                .read(true)
                .write(true)
                .create_new(true)
                .open(&path)?;
            std::fs::remove_file(&path)?;
            Ok(file)
        };
        let file = made().expect("there is room for temporary files");
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        Self { file, path }
    }

    /// Replaces its content.
    ///
    /// # Panics
    ///
    /// If that fails.
    pub fn fill(&self, bytes: &[u8]) -> &Path {
        let filled = self
            .file
            .set_len(0)
            .and_then(|()| self.file.write_all_at(bytes, 0));
        filled.expect("there is room for temporary files");
        &self.path
    }
}

/// Reads a file to its end; `None` if that is more than is worth keeping.
#[must_use]
pub fn read(paths: &[PathBuf], window_bytes: usize) -> Option<Reading> {
    let mut options = InputOptions::default();
    options.window_bytes = window_bytes;
    read_with(paths, &options)
}

/// As [`read`], in another way.
#[must_use]
pub fn read_with(paths: &[PathBuf], options: &InputOptions) -> Option<Reading> {
    let mut reading = Reading {
        items: Vec::new(),
        warnings: Vec::new(),
        error: None,
    };
    let mut input = match Input::open(paths, options) {
        Ok(input) => input,
        Err(error) => {
            // What a user would see.
            assert!(!error.to_string().is_empty());
            reading.error = Some(error);
            return Some(reading);
        }
    };
    let mut bytes = 0;
    let mut errors = 0;
    loop {
        match input.advance() {
            Ok(Next::Packets) => {
                let batch = input.batch();
                assert!(!batch.is_empty(), "a batch holds packets");
                for packet in batch {
                    bytes += packet.data.len() + packet.options.len();
                    reading.items.push(Item::Packet(Packet::of(&packet)));
                }
            }
            Ok(Next::Meta(meta)) => {
                assert!(input.batch().is_empty(), "a meta comes alone");
                if let Meta::Block { body, .. } = &meta {
                    bytes += body.len();
                }
                reading.items.push(Item::Meta(meta));
            }
            Ok(Next::End) => break,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                errors += 1;
                assert!(
                    errors <= paths.len(),
                    "an input fails once, then it is at its end"
                );
                reading.error = Some(error);
            }
        }
        if reading.items.len() > ITEMS_MAX || bytes > BYTES_MAX {
            return None;
        }
    }
    assert!(
        matches!(input.advance(), Ok(Next::End)),
        "the end is the end"
    );
    reading.warnings = input.take_warnings();
    for warning in &reading.warnings {
        assert!(!warning.to_string().is_empty());
    }
    Some(reading)
}

/// Everything that must hold of any bytes that are taken for a capture file.
///
/// # Panics
///
/// If it does not hold.
pub fn check(original: &Scratch, written: &Scratch, bytes: &[u8]) {
    let path = [original.fill(bytes).to_path_buf()];
    let Some(reading) = read(&path, 256 << 10) else {
        return;
    };
    same_through_a_small_window(&path, &reading);
    if reading.items.is_empty() {
        return;
    }
    merged_with_itself(&path[0], &reading);
    survives_pcapng(written, &reading);
    survives_pcap(written, &reading);
}

fn same_through_a_small_window(path: &[PathBuf], reading: &Reading) {
    let small = read(path, 4096).expect("as much as through a large window");
    assert_eq!(reading.items, small.items);
    assert_eq!(reading.warnings, small.warnings);
    let text = |reading: &Reading| reading.error.as_ref().map(ToString::to_string);
    assert_eq!(text(reading), text(&small));
}

fn merged_with_itself(path: &Path, reading: &Reading) {
    let twice = [path.to_path_buf(), path.to_path_buf()];
    let Some(merged) = read(&twice, 4096) else {
        return;
    };
    let count = reading.packets().count();
    assert_eq!(merged.packets().count(), 2 * count);
    let interfaces = merged.interfaces().len();
    for packet in merged.packets() {
        assert!(usize::from(packet.interface) < interfaces);
    }
}

fn survives_pcapng(written: &Scratch, reading: &Reading) {
    let section = reading.items.iter().find_map(|item| match item {
        Item::Meta(Meta::Section { options }) => Some(options.clone()),
        _ => None,
    });
    let mut writer = PcapNgWriter::new(Vec::new(), &section.unwrap_or_default()).expect("memory");
    for item in &reading.items {
        let done = match item {
            Item::Packet(packet) => writer.packet(&packet.borrow()),
            Item::Meta(meta) => writer.meta(meta),
        };
        done.expect("what was read can be written");
    }
    let file = writer.finish().expect("memory");
    let again = read(&[written.fill(&file).to_path_buf()], 256 << 10).expect("as much again");
    assert!(again.error.is_none(), "{:?}", again.error);
    assert!(again.warnings.is_empty(), "{:?}", again.warnings);
    assert_eq!(as_one_section(reading), again.items);
}

/// What a file of one section can hold: only the first section header, interface
/// statistics with the file's interface numbers, and packets without a time only
/// as simple packets.
fn as_one_section(reading: &Reading) -> Vec<Item> {
    let is_section = |item: &Item| matches!(item, Item::Meta(Meta::Section { .. }));
    let first = reading.items.iter().find(|item| is_section(item)).cloned();
    let first = first.unwrap_or(Item::Meta(Meta::Section {
        options: Vec::new(),
    }));
    let interfaces = reading.interfaces();
    let rest = reading
        .items
        .iter()
        .filter(|item| !is_section(item))
        .cloned();
    let changed = rest.map(|mut item| {
        match &mut item {
            Item::Meta(Meta::Block {
                interface: Some(id),
                body,
                ..
            }) => body[..4].copy_from_slice(&u32::from(*id).to_le_bytes()),
            Item::Packet(packet) if !packet.has_timestamp => {
                let snaplen = match interfaces[usize::from(packet.interface)].snaplen {
                    0 => u32::MAX,
                    snaplen => snaplen,
                };
                let simple = packet.interface == 0
                    && packet.data.len() == packet.wire_len.min(snaplen) as usize;
                packet.has_timestamp = !simple;
            }
            _ => {}
        }
        item
    });
    std::iter::once(first).chain(changed).collect()
}

/// pcap keeps time, lengths and bytes of packets of one link type.
fn survives_pcap(written: &Scratch, reading: &Reading) {
    let mut writer = PcapWriter::new(Vec::new());
    for item in &reading.items {
        let done = match item {
            Item::Packet(packet) => writer.packet(&packet.borrow()),
            Item::Meta(Meta::Interface { id, interface }) => writer.interface(*id, interface),
            Item::Meta(_) => Ok(()),
        };
        match done {
            Ok(()) => {}
            Err(
                WriteError::SecondLinkType { .. }
                | WriteError::TooLate { .. }
                | WriteError::ShiftedTimes(_),
            ) => return,
            Err(error) => panic!("{error}"),
        }
    }
    let file = writer.finish().expect("memory");
    let again = read(&[written.fill(&file).to_path_buf()], 4096).expect("as much again");
    assert!(again.error.is_none(), "{:?}", again.error);
    assert!(again.warnings.is_empty(), "{:?}", again.warnings);
    let kept = |packet: &Packet| (packet.ts_ns, packet.wire_len, packet.data.clone());
    let before: Vec<_> = reading.packets().map(kept).collect();
    let after: Vec<_> = again.packets().map(kept).collect();
    assert_eq!(before, after);
}
