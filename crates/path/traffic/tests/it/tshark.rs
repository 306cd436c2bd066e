//! Checks generated packets with tshark.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::process::Command;

use strata_capture::{PacketRef, PcapWriter};
use strata_traffic::{Generator, GeneratorOptions, Profile, SPACE};
use strata_wire::{Interface, LinkType};

fn write(path: &Path, profile: &str, options: &GeneratorOptions, packets: u32) {
    let profile: Profile = profile.parse().unwrap();
    let mut generator = Generator::new(&profile, options);
    let mut writer = PcapWriter::new(BufWriter::new(File::create(path).unwrap()));
    let interface = Interface::new(LinkType::ETHERNET, 0);
    writer.interface(0, &interface).unwrap();
    let mut frame = [0; SPACE];
    for _ in 0..packets {
        let packet = generator.packet_into(&mut frame);
        let data = &frame[..usize::from(packet.len)];
        let packet = PacketRef {
            ts_ns: packet.ts_ns,
            interface: 0,
            wire_len: u32::from(packet.len),
            data,
            options: &[],
            has_timestamp: true,
        };
        writer.packet(&packet).unwrap();
    }
    writer.finish().unwrap();
}

/// The packets that match a display filter, checksums verified.
fn found(path: &Path, filter: &str) -> Vec<String> {
    let mut command = Command::new("tshark");
    command.arg("-n").arg("-r").arg(path).args(["-Y", filter]);
    for protocol in ["ip", "tcp", "udp"] {
        command.args(["-o", &format!("{protocol}.check_checksum:TRUE")]);
    }
    let output = command.output().expect("tshark is installed");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(str::to_owned).collect()
}

#[test]
fn nothing_is_malformed_and_every_checksum_is_right() {
    const WRONG: &str = "_ws.malformed || ip.checksum.status == Bad || tcp.checksum.status == Bad \
        || udp.checksum.status == Bad || icmp.checksum.status == Bad || icmpv6.checksum.status == Bad";
    const RIGHT: &str = "tcp.checksum.status == Good || udp.checksum.status == Good \
        || icmp.checksum.status == Good || icmpv6.checksum.status == Good";
    let directory = tempfile::tempdir().unwrap();
    for (name, payload) in Profile::NAMES
        .iter()
        .flat_map(|name| [(*name, true), (*name, false)])
    {
        let path = directory.path().join("generated.pcap");
        // Few flows, so that each is seen from start to end.
        let options = GeneratorOptions {
            flows: Some(300),
            random_payload: payload,
            ..GeneratorOptions::default()
        };
        write(&path, name, &options, 10_000);
        let wrong = found(&path, WRONG);
        assert!(wrong.is_empty(), "{name}: {}", wrong.join("\n"));
        assert_eq!(found(&path, RIGHT).len(), 10_000, "{name}");
    }
}

#[test]
fn tcp_flows_are_dialogues() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("generated.pcap");
    let options = GeneratorOptions {
        flows: Some(300),
        ..GeneratorOptions::default()
    };
    write(&path, "cic-w3", &options, 20_000);
    // Nothing is out of order, retransmitted, lost, or acknowledged before it was sent.
    let strange = found(
        &path,
        "tcp.analysis.flags && !tcp.analysis.ack_lost_segment",
    );
    assert!(strange.is_empty(), "{}", strange.join("\n"));
    for seen in [
        "tcp.flags.syn == 1 && tcp.flags.ack == 1",
        "tcp.flags.fin == 1",
        "http.request",
        "http.response",
        "tls.app_data",
        "dns.a",
        "ipv6",
        "tcp.options.timestamp.tsecr > 0",
    ] {
        assert!(!found(&path, seen).is_empty(), "{seen}");
    }
}
