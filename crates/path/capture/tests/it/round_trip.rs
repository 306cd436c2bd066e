//! What is read, written as pcapng and read again is unchanged.

use std::process::Command;

use strata_capture::{PcapNgWriter, PcapWriter, WriteError};
use strata_wire::{LinkType, Meta};

use crate::common::{Item, Reading, format_files, read};

fn write(reading: &Reading) -> Vec<u8> {
    let section = reading.metas().find_map(|meta| match meta {
        Meta::Section { options } => Some(options.clone()),
        _ => None,
    });
    let mut writer = PcapNgWriter::new(Vec::new(), &section.unwrap_or_default()).unwrap();
    for item in &reading.items {
        match item {
            Item::Packet(packet) => writer.packet(&packet.borrow()).unwrap(),
            Item::Meta(meta) => writer.meta(meta).unwrap(),
        }
    }
    writer.finish().unwrap()
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
    std::iter::once(first)
        .chain(rest.map(|mut item| {
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
        }))
        .collect()
}

#[test]
fn every_file_survives_writing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("written.pcapng");
    let mut files = 0;
    for (name, original) in format_files() {
        let first = read(&original);
        if first.error.is_some() && first.items.is_empty() {
            continue;
        }
        std::fs::write(&path, write(&first)).unwrap();
        let second = read(&path);
        assert!(second.error.is_none(), "{name}: {:?}", second.error);
        assert!(second.warnings.is_empty(), "{name}: {:?}", second.warnings);
        let expected = as_one_section(&first);
        assert_eq!(expected.len(), second.items.len(), "{name}");
        for (index, (a, b)) in expected.iter().zip(&second.items).enumerate() {
            assert_eq!(a, b, "{name}, item {index}");
        }
        files += 1;
    }
    assert!(files > 1700, "only {files} files were readable");
}

/// pcap keeps time, lengths and bytes of files with one link type.
#[test]
fn every_file_of_one_link_type_survives_as_pcap() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("written.pcap");
    let (mut files, mut refused) = (0, 0);
    for (name, original) in format_files() {
        let first = read(&original);
        let mut writer = PcapWriter::new(Vec::new());
        let mut result = Ok(());
        for item in &first.items {
            result = match item {
                Item::Packet(packet) => writer.packet(&packet.borrow()),
                Item::Meta(Meta::Interface { id, interface }) => writer.interface(*id, interface),
                Item::Meta(_) => Ok(()),
            };
            if result.is_err() {
                break;
            }
        }
        match result {
            Err(WriteError::SecondLinkType { first, second }) => {
                assert_ne!(first, second);
                refused += 1;
                continue;
            }
            // Test files with times near the end of 64 bits.
            Err(WriteError::TooLate { .. }) => {
                refused += 1;
                continue;
            }
            other => other.unwrap(),
        }
        std::fs::write(&path, writer.finish().unwrap()).unwrap();
        let second = read(&path);
        assert!(second.error.is_none(), "{name}: {:?}", second.error);
        assert!(second.warnings.is_empty(), "{name}: {:?}", second.warnings);
        let link = first
            .interfaces()
            .first()
            .map_or(LinkType::ETHERNET, |one| one.link);
        assert_eq!(second.interfaces()[0].link, link);
        assert_eq!(first.packets().count(), second.packets().count(), "{name}");
        for (a, b) in first.packets().zip(second.packets()) {
            assert_eq!(
                (a.ts_ns, a.wire_len, &a.data),
                (b.ts_ns, b.wire_len, &b.data),
                "{name}"
            );
        }
        files += 1;
    }
    println!("{files} files as pcap, {refused} cannot be");
    assert!(files > 1700);
}

/// Wireshark opens what is written; only a sample, since it takes half a second to start.
#[test]
fn wireshark_reads_what_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("written.pcapng");
    let files = format_files();
    let generated = files
        .iter()
        .filter(|(name, _)| name.contains("test-generator/be_"));
    for (name, original) in generated.chain(files.iter().step_by(120)) {
        let first = read(original);
        std::fs::write(&path, write(&first)).unwrap();
        let output = Command::new("capinfos")
            .args(["-M", "-c"])
            .arg(&path)
            .output();
        let output = output.expect("capinfos of Wireshark is installed");
        let (text, complaint) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        let complaint: Vec<_> = complaint
            .lines()
            .filter(|line| !line.contains("Running as"))
            .collect();
        assert!(
            output.status.success() && complaint.is_empty(),
            "{name}: {complaint:?}"
        );
        let count = format!("{}", first.packets().count());
        let line = text
            .lines()
            .find(|line| line.starts_with("Number of packets"))
            .unwrap();
        assert_eq!(line.rsplit(' ').next(), Some(count.as_str()), "{name}");
    }
}
