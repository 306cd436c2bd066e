//! The hot path does not allocate.
//!
//! A binary of its own: its allocator counts.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail loudly too")]

use std::io::Write;

use strata_capture::{Input, InputOptions, Next, PacketRef, PcapNgWriter, PcapWriter};
use strata_testkit::CountingAllocator;
use strata_wire::pcapng::options;
use strata_wire::{Interface, LinkType};

#[global_allocator]
static COUNTING: CountingAllocator = CountingAllocator;

const PACKETS: u64 = 20_000;

fn packets() -> impl Iterator<Item = PacketRef<'static>> {
    (0..PACKETS).map(|index| PacketRef {
        ts_ns: index,
        interface: 0,
        wire_len: 700,
        data: &[1; 700],
        options: &[],
        has_timestamp: true,
    })
}

/// Allocations from the first packet on, of files that are copied or not.
fn allocations(files: &[Vec<u8>], viewed: bool) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..files.len())
        .map(|index| folder.path().join(index.to_string()))
        .collect();
    for (path, bytes) in paths.iter().zip(files) {
        std::fs::File::create(path)
            .unwrap()
            .write_all(bytes)
            .unwrap();
    }
    let mut options = InputOptions::default();
    options.viewed_bytes_min = if viewed { 0 } else { u64::MAX };
    let mut input = Input::open(&paths, &options).unwrap();
    let (mut count, mut before) = (0, 0);
    loop {
        match input.advance().unwrap() {
            Next::Packets => {
                if count == 0 {
                    before = strata_testkit::allocations();
                }
                count += input
                    .batch()
                    .iter()
                    .filter(|packet| packet.data.len() == 700)
                    .count();
            }
            Next::Meta(_) => assert_eq!(count, 0),
            Next::End => break,
        }
    }
    let after = strata_testkit::allocations();
    assert_eq!(count as u64, PACKETS * files.len() as u64);
    after - before
}

#[test]
fn no_allocation_after_the_first_packet() {
    let interface = Interface::new(LinkType::ETHERNET, 0);
    let mut pcap = PcapWriter::new(Vec::new());
    let mut ng = PcapNgWriter::new(Vec::new(), &[]).unwrap();
    let mut noted = PcapNgWriter::new(Vec::new(), &[]).unwrap();
    pcap.interface(0, &interface).unwrap();
    ng.interface(0, &interface).unwrap();
    noted.interface(0, &interface).unwrap();
    let mut options = Vec::new();
    options::push_comment(&mut options, "note").unwrap();
    for packet in packets() {
        pcap.packet(&packet).unwrap();
        ng.packet(&packet).unwrap();
        let options = &options;
        noted.packet(&PacketRef { options, ..packet }).unwrap();
    }
    let files = [
        pcap.finish().unwrap(),
        ng.finish().unwrap(),
        noted.finish().unwrap(),
    ];
    for file in &files {
        let file = std::slice::from_ref(file);
        assert_eq!(allocations(file, false), 0);
        // Behind the end of the view, the file is read: a reader and its buffer.
        assert_eq!(allocations(file, true), 2);
    }
    assert_eq!(allocations(&files, false), 0);
    assert_eq!(allocations(&files, true), 2 * files.len() as u64);
}
