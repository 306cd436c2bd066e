//! Packets come out as they went in, whatever is lost; in VXLAN, tshark reads them.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use proptest::prelude::*;
use strata_capture::{PacketRef, PcapWriter};
use strata_exporter::{
    Announcement, Datagram, HeaderReader, HeaderWriter, Kind, LEN_MIN, Label, PACKET_MAX,
    PacketReader, PacketWriter, Sequence, Source, vxlan,
};
use strata_traffic::{Generator, GeneratorOptions, Profile, SPACE};
use strata_wire::{Interface, LinkType};

use crate::common::{Kept, SOURCE};

fn datagrams(packets: &[Kept], room: usize) -> Vec<Vec<u8>> {
    let mut writer = PacketWriter::new(SOURCE, LinkType::ETHERNET, room);
    let mut all = Vec::new();
    for packet in packets {
        writer.put(&packet.header(), |bytes| all.push(bytes.to_vec()));
    }
    writer.end(|bytes| all.push(bytes.to_vec()));
    assert_eq!(writer.next_packet(), packets.len() as u64);
    all
}

/// What is read of these datagrams, in this order, and what is counted.
fn read<'a>(datagrams: impl Iterator<Item = &'a Vec<u8>>) -> (BTreeMap<u64, Kept>, Sequence) {
    let (mut reader, mut sequence) = (PacketReader::new(), Sequence::default());
    let mut found = BTreeMap::new();
    for bytes in datagrams {
        assert!(sequence.accept(&Datagram::read(bytes).unwrap()));
        let take = |number, packet: &strata_exporter::Header<'_>| {
            assert!(
                found.insert(number, Kept::of(packet)).is_none(),
                "{number} twice"
            );
        };
        reader.read(bytes, take).unwrap();
    }
    (found, sequence)
}

fn packet(number: usize, len: usize) -> Kept {
    Kept {
        ts_ns: number as u64 * 1_000_003,
        wire_len: u32::try_from(len).unwrap() + 7,
        bytes: (0..len)
            .map(|at| (at * 31 + number).to_le_bytes()[0])
            .collect(),
        label: Label {
            policy: u16::try_from(number % 3).unwrap(),
            class: 2,
            one_in: 10,
        },
    }
}

proptest! {
    /// Whatever is lost and overtaken: a packet comes out exact if all of its datagrams arrived, and
    /// does not otherwise; all are counted.
    #[test]
    fn every_packet_whose_pieces_arrived_is_exact(
        lens in prop::collection::vec(prop_oneof![0_usize..100, 0_usize..4000], 1..60),
        room in LEN_MIN..2000,
        lost in prop::collection::vec(0_u8..6, 400),
        swaps in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let packets: Vec<Kept> = lens.iter().enumerate().map(|(at, &len)| packet(at, len)).collect();
        let all = datagrams(&packets, room);
        prop_assert!(all.iter().all(|datagram| datagram.len() <= room));
        let (whole, sequence) = read(all.iter());
        prop_assert_eq!(whole.len(), packets.len());
        prop_assert!(whole.values().eq(&packets), "differences");
        prop_assert_eq!(sequence.counters().lost, 0);

        let arrives = |at: usize| lost[at % lost.len()] != 0;
        let mut order: Vec<usize> = (0..all.len()).filter(|&at| arrives(at)).collect();
        for swap in swaps {
            if order.len() > 1 {
                let at = swap.index(order.len() - 1);
                order.swap(at, at + 1);
            }
        }
        let (found, sequence) = read(order.iter().map(|&at| &all[at]));
        // The datagrams of each packet, read one by one.
        let mut places: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
        for (at, datagram) in all.iter().enumerate() {
            let start = Datagram::read(datagram).unwrap();
            let (mut number, mut offset) = (start.first_packet, 40);
            while offset < datagram.len() {
                let field = |at: usize| u32::from_le_bytes(
                    datagram[offset + at..offset + at + 4].try_into().unwrap());
                places.entry(number).or_default().insert(at);
                let len = field(20) & 0xffff;
                number += u64::from(field(16) + len == field(12));
                offset += 32 + len as usize;
            }
        }
        for (number, packet) in (0..).zip(&packets) {
            let has_all = places[&number].iter().all(|&at| arrives(at));
            prop_assert_eq!(found.get(&number), has_all.then_some(packet), "packet {}", number);
        }
        let counters = sequence.counters();
        prop_assert_eq!(
            counters.before + counters.packets + counters.lost, sequence.numbered());
        prop_assert!(found.len() as u64 <= counters.packets);
    }

    /// Nothing that arrives makes a reader panic, or hand out what was not sent.
    #[test]
    fn what_is_changed_is_refused_or_read(
        lens in prop::collection::vec(0_usize..900, 1..20),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 1..30),
    ) {
        let packets: Vec<Kept> = lens.iter().enumerate().map(|(at, &len)| packet(at, len)).collect();
        let mut all = datagrams(&packets, 400);
        for (which, at, value) in changes {
            let datagram = which.get(&all).len();
            let index = which.index(all.len());
            all[index][at.index(datagram)] = value;
        }
        let (mut packets, mut headers) = (PacketReader::new(), HeaderReader::new());
        for bytes in &all {
            let _ = packets.read(bytes, |_, packet| assert!(packet.bytes.len() <= PACKET_MAX));
            let _ = headers.read(bytes, |_, _| ());
            let _ = Announcement::read(bytes);
        }
    }
}

#[test]
fn what_never_completes_takes_bounded_memory() {
    let mut reader = PacketReader::new();
    let large = packet(1, PACKET_MAX);
    for number in 0..200 {
        let mut writer = PacketWriter::new(SOURCE, LinkType::ETHERNET, 1472);
        writer.skip(number, |_| ());
        let mut first = None;
        writer.put(&large.header(), |bytes| {
            first.get_or_insert(bytes.to_vec());
        });
        reader
            .read(&first.unwrap(), |_, _| panic!("it is not complete"))
            .unwrap();
    }
    let shown = format!("{reader:?}");
    assert!(shown.len() < 64 << 20, "{} bytes", shown.len());
    // The latest one can still be completed; one longer than all that is kept cannot be.
    let small = [packet(1, 3000)];
    let (found, _) = read(datagrams(&small, 1000).iter());
    assert_eq!(found[&0], small[0]);
}

/// The two datagrams of a packet that does not fit into one.
fn in_two(identity: u32, at: usize) -> (Vec<u8>, Vec<u8>, Kept) {
    let source = Source { identity, ..SOURCE };
    let kept = packet(at, 2000);
    let mut writer = PacketWriter::new(source, LinkType::ETHERNET, 1472);
    let mut all = Vec::new();
    writer.put(&kept.header(), |bytes| all.push(bytes.to_vec()));
    writer.finish(|bytes| all.push(bytes.to_vec()));
    let [first, second] = all.try_into().expect("two datagrams");
    (first, second, kept)
}

#[test]
fn sources_do_not_push_out_what_others_wait_for() {
    let mut reader = PacketReader::new();
    let all: Vec<_> = (1..=1000).map(|of| in_two(of, of as usize)).collect();
    for (first, _, _) in &all {
        reader.read(first, |_, _| panic!("half of it")).unwrap();
    }
    // One that sends many more, none of them whole, gives up its own.
    for number in 0..1000 {
        let source = Source {
            identity: 2000,
            ..SOURCE
        };
        let mut writer = PacketWriter::new(source, LinkType::ETHERNET, 1472);
        writer.skip(number, |_| ());
        let mut first = None;
        writer.put(&packet(1, 60_000).header(), |bytes| {
            first.get_or_insert(bytes.to_vec());
        });
        let read = reader.read(&first.unwrap(), |_, _| panic!("a piece of it"));
        read.unwrap();
    }
    for (at, (_, second, kept)) in all.iter().enumerate() {
        let mut found = Vec::new();
        let read = reader.read(second, |_, header| found.push(header.bytes.to_vec()));
        read.unwrap();
        assert_eq!(found, std::slice::from_ref(&kept.bytes), "source {at}");
    }
}

#[test]
fn sources_that_left_something_incomplete_do_not_keep_new_ones_out() {
    let mut reader = PacketReader::new();
    for identity in 1..=10_000 {
        let (first, second, kept) = in_two(identity, 7);
        reader.read(&first, |_, _| panic!("half of it")).unwrap();
        if identity % 1000 == 0 {
            let mut found = Vec::new();
            let read = reader.read(&second, |_, header| found.push(header.bytes.to_vec()));
            read.unwrap();
            assert_eq!(found, [kept.bytes], "source {identity}");
        }
    }
}

/// What a datagram holds beyond what it says is not handed out: the counts would be too small.
#[test]
fn more_packets_than_a_datagram_says_are_refused() {
    let all = datagrams(&[packet(0, 60), packet(1, 60)], 1472);
    let mut bytes = all[0].clone();
    bytes[12] = 1;
    let mut found = 0;
    let error = PacketReader::new()
        .read(&bytes, |_, _| found += 1)
        .unwrap_err();
    assert_eq!(
        (error.what, found),
        ("more packets than its header announces", 1)
    );
    bytes[12] = 3;
    let error = PacketReader::new().read(&bytes, |_, _| ()).unwrap_err();
    assert_eq!(error.what, "fewer packets than its header announces");
}

#[test]
fn packets_that_were_lost_before_are_counted() {
    let mut writer = PacketWriter::new(SOURCE, LinkType::ETHERNET, 1472);
    let mut all = Vec::new();
    writer.put(&packet(0, 60).header(), |bytes| all.push(bytes.to_vec()));
    writer.skip(5, |bytes| all.push(bytes.to_vec()));
    writer.put(&packet(6, 60).header(), |bytes| all.push(bytes.to_vec()));
    writer.end(|bytes| all.push(bytes.to_vec()));
    let (found, sequence) = read(all.iter());
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), [0, 6]);
    assert_eq!(sequence.counters().lost, 5);
    assert_eq!(sequence.numbered(), 7);
}

#[test]
fn a_smaller_mtu_takes_effect_at_once() {
    let header = packet(0, 54);
    let mut writer = HeaderWriter::new(SOURCE, LinkType::ETHERNET, 1472);
    let mut all = Vec::new();
    for _ in 0..100 {
        writer
            .put(&header.header(), |bytes| all.push(bytes.to_vec()))
            .unwrap();
    }
    writer.set_room(LEN_MIN, |bytes| all.push(bytes.to_vec()));
    let before = all.len();
    for _ in 0..1000 {
        writer
            .put(&header.header(), |bytes| all.push(bytes.to_vec()))
            .unwrap();
    }
    writer.end(|bytes| all.push(bytes.to_vec()));
    assert!(all[before..].iter().all(|bytes| bytes.len() <= LEN_MIN));
    let (mut reader, mut packets) = (HeaderReader::new(), 0);
    for bytes in &all {
        assert_eq!(
            reader.read(bytes, |_, _| packets += 1).unwrap().kind,
            Kind::Headers
        );
    }
    assert_eq!(packets, 1100);
}

/// Each packet of generated traffic in VXLAN, in a capture: tshark finds the identity and the same
/// packet inside.
#[test]
fn tshark_reads_packets_in_vxlan() {
    let dir = tempfile::tempdir().unwrap();
    let profile: Profile = "cic-w3".parse().unwrap();
    let mut generator = Generator::new(&profile, &GeneratorOptions::default());
    let mut frame = [0; SPACE];
    let interface = Interface::new(LinkType::ETHERNET, 0);
    let write = |name: &str, frames: &[Vec<u8>]| {
        let path = dir.path().join(name);
        let mut writer = PcapWriter::new(std::fs::File::create(&path).unwrap());
        writer.interface(0, &interface).unwrap();
        for (ts_ns, data) in (0..).zip(frames) {
            let packet = PacketRef {
                ts_ns,
                interface: 0,
                wire_len: u32::try_from(data.len()).unwrap(),
                data,
                options: &[],
                has_timestamp: true,
            };
            writer.packet(&packet).unwrap();
        }
        writer.finish().unwrap();
        path
    };
    let inner: Vec<Vec<u8>> = (0..200)
        .map(|_| {
            let len = usize::from(generator.packet_into(&mut frame).len);
            let mut bytes = frame.to_vec();
            bytes.resize(len, 0);
            bytes
        })
        // The fields below are of IPv4, and the outer header has them too.
        .filter(|bytes| bytes[12..14] == [8, 0])
        .collect();
    assert!(inner.len() > 100);
    let outer: Vec<Vec<u8>> = inner
        .iter()
        .map(|bytes| in_vxlan(0x0a_0b0c, bytes))
        .collect();
    let shown = |path: &std::path::Path, more: &[&str]| {
        let mut command = Command::new("tshark");
        command
            .arg("-r")
            .arg(path)
            .args(["-T", "fields", "-E", "occurrence=l"])
            .args(more);
        for field in [
            "ip.src",
            "ip.dst",
            "ip.id",
            "ip.len",
            "tcp.seq_raw",
            "frame.protocols",
        ] {
            command.args(["-e", field]);
        }
        let output = command.output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let plain = shown(&write("plain.pcap", &inner), &[]);
    let found = shown(&write("vxlan.pcap", &outer), &["-Y", "vxlan.vni == 658188"]);
    assert_eq!(found.lines().count(), inner.len());
    for (plain, found) in plain.lines().zip(found.lines()) {
        let found = found.replace("eth:ethertype:ip:udp:vxlan:", "");
        assert_eq!(plain, found.trim_end_matches("\t"));
    }
}

/// A frame with a packet in VXLAN over UDP.
fn in_vxlan(identity: u32, packet: &[u8]) -> Vec<u8> {
    let udp = 8 + vxlan::HEADER_LEN + packet.len();
    let len = |bytes: usize| u16::try_from(bytes).unwrap().to_be_bytes();
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
    frame.extend(len(20 + udp));
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    frame.extend(50_000_u16.to_be_bytes());
    frame.extend(vxlan::UDP_PORT.to_be_bytes());
    frame.extend(len(udp));
    frame.extend([0, 0]);
    frame.extend(vxlan::header(identity));
    frame.extend_from_slice(packet);
    frame
}
