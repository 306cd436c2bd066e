//! Where the headers end and which flow a packet belongs to, on link types that few captures have,
//! compared with tshark on every packet of every capture with them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

use strata_capture::PcapWriter;
use strata_wire::dissect::{dissect, protocol};
use strata_wire::ethernet::ethertype;
use strata_wire::transport::{TcpRepr, UdpRepr};
use strata_wire::{AddressFamily, Endpoint, Interface, LinkType, TunnelKey, ip_addr, ipv4, ipv6};

use crate::common::{Packet, format_files, read};

/// The link types, each with the least number of packets with a network header.
const LINKS: [(LinkType, usize); 10] = [
    (LinkType::PPP, 200),
    (LinkType::PPP_HDLC, 0),
    (LinkType::PPP_ETHER, 0),
    (LinkType::C_HDLC, 10),
    (LinkType::FRELAY, 160),
    (LinkType::IEEE802_11, 5),
    (LinkType::IEEE802_11_RADIOTAP, 5),
    (LinkType::PPI, 3),
    (LinkType::NFLOG, 15),
    (LinkType::IEEE802_11_PRISM, 0),
];

/// Files with a packet for which tshark and we disagree on the end, and why.
const KNOWN: [(&str, &str); 2] = [
    (
        "tcpdump/icmp-icmp_print-oobr-2.pcap",
        "two bytes of an ICMP message: header as far as they go, but malformed to tshark",
    ),
    (
        "tcpdump/wb-oobr.pcap",
        "below MPLS labels, what begins with 4 and has a wrong checksum is not taken for IPv4",
    ),
];

/// What tshark says about a packet's headers.
#[derive(Debug, Default, PartialEq, Eq)]
struct Said {
    /// Where they end; `None` without a network header.
    end: Option<usize>,
    source: Option<(IpAddr, u16)>,
    destination: Option<(IpAddr, u16)>,
}

/// Every packet of the link type, with its file.
fn packets(link: LinkType) -> Vec<(String, Packet)> {
    let mut found = Vec::new();
    for (name, path) in format_files() {
        let reading = read(&path);
        let links: Vec<LinkType> = reading.interfaces().iter().map(|i| i.link).collect();
        if !links.contains(&link) {
            continue;
        }
        for packet in reading.packets() {
            if links[usize::from(packet.interface)] == link {
                let mut packet = packet.clone();
                packet.interface = 0;
                found.push((name.clone(), packet));
            }
        }
    }
    found
}

/// The value of an attribute in a line of PDML.
fn attribute<'a>(line: &'a str, name: &str) -> &'a str {
    let start = line.find(&format!(" {name}=\"")).unwrap() + name.len() + 3;
    let rest = &line[start..];
    &rest[..rest.find('"').unwrap()]
}

/// Reads the packets with tshark, each by itself.
fn tshark(path: &Path, more: &[&str]) -> Vec<Said> {
    let mut tshark = Command::new("tshark");
    tshark.args(["-n", "-T", "pdml", "-r"]).arg(path).args(more);
    for option in [
        "ip.defragment:FALSE",
        "ipv6.defragment:FALSE",
        "wlan.defragment:FALSE",
        "wlan.enable_decryption:FALSE",
        "tcp.desegment_tcp_streams:FALSE",
    ] {
        tshark.args(["-o", option]);
    }
    let output = tshark.output().expect("tshark is installed (`make tools`)");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split("<packet>").skip(1).map(said).collect()
}

/// The headers of one packet: all up to the innermost transport. In an ICMP message also those of the
/// packet that it quotes, whose addresses are not the message's.
fn said(pdml: &str) -> Said {
    let mut said = Said::default();
    let lines = pdml.lines().map(str::trim_start);
    let (mut addresses, mut proto, mut start) = ([None; 2], "", 0);
    let mut is_quote = false;
    for line in lines {
        if line.starts_with("<proto ") {
            proto = attribute(line, "name");
            if proto == "fake-field-wrapper" {
                continue;
            }
            let number = |name| attribute(line, name).parse::<usize>().unwrap();
            let (at, size) = (number("pos"), number("size"));
            start = at;
            match proto {
                "ip" | "ipv6" if is_quote => said.end = Some(at + size),
                "ip" | "ipv6" | "arp" => {
                    said.end = Some(at + size);
                    (said.source, said.destination) = (None, None);
                    addresses = [None; 2];
                }
                "tcp" | "udp" => said.end = Some(at + size),
                "udplite" => said.end = Some(at + size.min(8)),
                "sctp" => said.end = Some(at + 12),
                "icmp" | "icmpv6" => {
                    said.end = Some(at + size.min(8));
                    is_quote = true;
                }
                "igmp" => {
                    said.end = Some(at + size.min(8));
                    break;
                }
                _ => {}
            }
        } else if line.starts_with("<field ") {
            let show = || attribute(line, "show");
            let side = |address: Option<IpAddr>| address.map(|address| (address, 0));
            match (proto, attribute(line, "name")) {
                ("dccp", "dccp.data_offset") => {
                    said.end = Some(start + 4 * show().parse::<usize>().unwrap());
                }
                _ if is_quote => {}
                ("ip", "ip.src") | ("ipv6", "ipv6.src") => {
                    addresses[0] = show().parse().ok();
                    said.source = side(addresses[0]);
                }
                ("ip", "ip.dst") | ("ipv6", "ipv6.dst") => {
                    addresses[1] = show().parse().ok();
                    said.destination = side(addresses[1]);
                }
                ("tcp", "tcp.srcport")
                | ("udp" | "udplite", "udp.srcport")
                | ("sctp", "sctp.srcport")
                | ("dccp", "dccp.srcport") => {
                    said.source = addresses[0].map(|a| (a, show().parse().unwrap()));
                }
                ("tcp", "tcp.dstport")
                | ("udp" | "udplite", "udp.dstport")
                | ("sctp", "sctp.dstport")
                | ("dccp", "dccp.dstport") => {
                    said.destination = addresses[1].map(|a| (a, show().parse().unwrap()));
                }
                _ => {}
            }
        }
    }
    said
}

fn ours(link: LinkType, data: &[u8]) -> Said {
    let headers = dissect(link, data, TunnelKey::Inner);
    if headers.has_no_network() {
        assert!(headers.kept_header_len(u32::try_from(data.len()).unwrap()) > 0 || data.is_empty());
        return Said::default();
    }
    let (source, destination) = headers.endpoints();
    let family = headers.key.unwrap_or_default().family;
    let end = |end: Endpoint| {
        (family != AddressFamily::Mac).then(|| (ip_addr(family, end.address).unwrap(), end.port))
    };
    Said {
        end: Some(usize::try_from(headers.header_len).unwrap()),
        source: headers.key.and_then(|_| end(source)),
        destination: headers.key.and_then(|_| end(destination)),
    }
}

/// Writes a capture with these packets.
fn write<'a>(path: &Path, link: LinkType, packets: impl Iterator<Item = &'a Packet>) {
    let mut writer = PcapWriter::new(Vec::new());
    writer.interface(0, &Interface::new(link, 0)).unwrap();
    for packet in packets {
        writer.packet(&packet.borrow()).unwrap();
    }
    std::fs::write(path, writer.finish().unwrap()).unwrap();
}

#[test]
fn headers_end_where_tshark_says_on_every_link_type() {
    let dir = tempfile::tempdir().unwrap();
    let mut wrong = Vec::new();
    for (link, least) in LINKS {
        let packets = packets(link);
        if packets.is_empty() {
            assert_eq!(least, 0, "{link}");
            continue;
        }
        let path = dir.path().join(format!("{}.pcap", link.0));
        write(&path, link, packets.iter().map(|(_, packet)| packet));
        let theirs = tshark(&path, &[]);
        assert_eq!(theirs.len(), packets.len(), "{link}");
        let mut counts: BTreeMap<bool, usize> = BTreeMap::new();
        for (index, ((name, packet), theirs)) in packets.iter().zip(&theirs).enumerate() {
            let ours = ours(link, &packet.data);
            *counts.entry(ours.end.is_some()).or_default() += 1;
            let known = KNOWN.iter().any(|(file, _)| file == name);
            // Addresses that tshark does not see would be no known difference.
            let same = ours.source == theirs.source && ours.destination == theirs.destination;
            if known && (same || ours.end.is_none()) {
                continue;
            }
            if ours != *theirs {
                let bytes = &packet.data[..packet.data.len().min(80)];
                wrong.push(format!(
                    "{link} {name} frame {}: ours {ours:?}\n  tshark {theirs:?}\n  {bytes:02x?}",
                    index + 1
                ));
            }
        }
        let dissected = counts.get(&true).copied().unwrap_or(0);
        println!(
            "{link}: {} packets, {dissected} with a network header",
            packets.len()
        );
        assert!(dissected >= least, "{link}: {dissected}");
    }
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// An IPv4 packet, or an IPv6 packet, with correct lengths and checksum.
fn ip(is_v6: bool, number: u8, rest: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let payload_len = u16::try_from(rest.len()).unwrap();
    if is_v6 {
        let repr = ipv6::Repr {
            source: 0x2001_0db8 << 96 | 1,
            destination: 0x2001_0db8 << 96 | 2,
            traffic_class: 0,
            flow_label: 0,
            next_header: number,
            hop_limit: 64,
            payload_len,
        };
        repr.emit(&mut out);
    } else {
        let repr = ipv4::Repr {
            source: 0xc0a8_0701,
            destination: 0xc0a8_0702,
            protocol: number,
            tos: 0,
            ttl: 64,
            identification: 77,
            fragment_offset: 0,
            more_fragments: false,
            payload_len,
        };
        repr.emit(&mut out);
    }
    out.extend_from_slice(rest);
    out
}

fn udp(source_port: u16, destination_port: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let repr = UdpRepr {
        source_port,
        destination_port,
        payload_len: u16::try_from(payload.len()).unwrap(),
    };
    repr.emit(&mut out);
    out.extend_from_slice(payload);
    out
}

fn tcp() -> Vec<u8> {
    let mut out = Vec::new();
    let repr = TcpRepr {
        source_port: 1234,
        destination_port: 7777,
        sequence: 1,
        flags: 0x10,
        window: 512,
    };
    repr.emit(&mut out);
    out.extend_from_slice(&[0x5a; 40]);
    out
}

fn framed(kind: u16, rest: &[u8]) -> Vec<u8> {
    let macs = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    [&macs[..], &kind.to_be_bytes(), rest].concat()
}

/// Payloads of IP, each with its protocol: transports, tunnels, and errors that quote packets.
fn carried() -> Vec<(&'static str, u8, Vec<u8>)> {
    let (four, six) = (
        ip(false, protocol::TCP, &tcp()),
        ip(true, protocol::TCP, &tcp()),
    );
    let frame = framed(ethertype::IPV4, &four);
    let gpe = |next: u8, rest: &[u8]| [&[0x0c, 0, 0, next, 0, 0, 9, 0][..], rest].concat();
    let nsh =
        |next: u8, rest: &[u8]| [&[0x0f, 0xc6, 1, next, 0, 0, 1, 255][..], &[3; 16], rest].concat();
    let label = |rest: &[u8]| [&[0, 1, 1, 64][..], rest].concat();
    let origin = [&[0, 0, 1, 2, 3, 4, 5, 6][..], &six].concat();
    let secured = [&[0, 1, 2, 3][..], &[9; 5], &[7; 8], &[0], &origin].concat();
    let erspan = |fixed: &[u8]| [&[0x10, 0, 0x22, 0xeb, 0, 0, 0, 1][..], fixed, &frame].concat();
    let iii = [0x20, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let subheader = [&iii[..11], &[1], &[0; 8]].concat();
    let error =
        |kind: u8, word: [u8; 4], quoted: &[u8]| [&[kind, 0, 0, 0][..], &word, quoted].concat();
    let datagram = ip(false, protocol::UDP, &udp(1234, 7777, &[0x5a; 100]));
    let long = [&datagram[..], &[0x20, 0, 0, 0, 0, 8, 1, 1, 0, 1, 1, 64]].concat();
    let request = [
        &[0x13, 0x88, 0x17, 0x70, 6, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 7][..],
        &[0, 0, 0, 42, 1, 1, 1, 0],
        &[0x5a; 20],
    ]
    .concat();
    let (icmp, icmp6) = (protocol::ICMP, protocol::ICMPV6);
    vec![
        ("GPE, IPv4", 17, udp(9, 4790, &gpe(1, &four))),
        ("GPE, IPv6", 17, udp(9, 4790, &gpe(2, &six))),
        ("GPE, Ethernet", 17, udp(9, 4790, &gpe(3, &frame))),
        ("GPE, NSH", 17, udp(9, 4790, &gpe(4, &nsh(3, &frame)))),
        ("GPE, MPLS", 17, udp(9, 4790, &gpe(5, &label(&four)))),
        (
            "GRE in UDP",
            17,
            udp(9, 4754, &[&[0, 0, 8, 0][..], &four].concat()),
        ),
        ("MPLS in UDP", 17, udp(9, 6635, &label(&six))),
        ("Teredo", 17, udp(9, 3544, &six)),
        ("Teredo, origin", 17, udp(3544, 9, &origin)),
        ("Teredo, authentication", 17, udp(3544, 9, &secured)),
        (
            "NSH in GRE",
            47,
            [&[0, 0, 0x89, 0x4f][..], &nsh(1, &four)].concat(),
        ),
        ("ERSPAN III", 47, erspan(&iii)),
        ("ERSPAN III, subheader", 47, erspan(&subheader)),
        (
            "control word",
            47,
            [&[0, 0, 0x88, 0x47, 0, 1, 0x11, 64, 0, 0, 0, 1][..], &frame].concat(),
        ),
        (
            "no control word",
            47,
            [&[0, 0, 0x88, 0x47, 0, 1, 0x21, 64][..], &frame].concat(),
        ),
        ("DCCP", 33, request),
        (
            "UDP-Lite",
            136,
            [&[0x13, 0x88, 0x17, 0x70, 0, 8, 0, 0][..], &[0x5a; 30]].concat(),
        ),
        ("unreachable", icmp, error(3, [0; 4], &datagram[..28])),
        (
            "fragmentation needed",
            icmp,
            error(3, [0, 0, 5, 0xdc], &four),
        ),
        ("time exceeded", icmp, error(11, [0; 4], &datagram)),
        (
            "time exceeded, RFC 4884",
            icmp,
            error(11, [0, 32, 0, 0], &long),
        ),
        ("redirect", icmp, error(5, [10, 0, 0, 1], &datagram)),
        (
            "parameter problem",
            icmp,
            error(12, [20, 0, 0, 0], &datagram),
        ),
        ("echo", icmp, error(8, [0, 7, 0, 1], &[0x5a; 56])),
        ("ICMPv6 unreachable", icmp6, error(1, [0; 4], &six)),
        ("ICMPv6 too big", icmp6, error(2, [0, 0, 5, 0], &six)),
        ("ICMPv6 time exceeded", icmp6, error(3, [0; 4], &six)),
        ("ICMPv6 parameter problem", icmp6, error(4, [0; 4], &six)),
        (
            "ICMPv6 redirect",
            icmp6,
            error(
                137,
                [0; 4],
                &[&[0; 32][..], &[4, 14, 0, 0, 0, 0, 0, 0], &six].concat(),
            ),
        ),
    ]
}

/// Tunnels, transports and quoted packets that no capture of the test data has.
#[test]
fn what_packets_carry_ends_where_tshark_says() {
    let dir = tempfile::tempdir().unwrap();
    let (mut names, mut frames, mut rings) = (Vec::new(), Vec::new(), Vec::new());
    for (name, number, payload) in carried() {
        let is_v6 = [number == protocol::ICMPV6, number != protocol::ICMP];
        for is_v6 in is_v6.into_iter().take(if number < 2 { 1 } else { 2 }) {
            let packet = ip(is_v6, number, &payload);
            let kind = if is_v6 {
                ethertype::IPV6
            } else {
                ethertype::IPV4
            };
            let frame = framed(kind, &packet);
            let snap = [0xaa, 0xaa, 3, 0, 0, 0];
            rings.push([&[0x57][..], &frame[..12], &snap, &frame[12..]].concat());
            frames.push(frame);
            names.push(format!("{name} in {}", if is_v6 { "IPv6" } else { "IPv4" }));
        }
    }
    let mut wrong = Vec::new();
    for (link, data) in [(LinkType::ETHERNET, frames), (LinkType::FDDI, rings)] {
        let packets: Vec<Packet> = data
            .into_iter()
            .map(|data| Packet {
                ts_ns: 0,
                interface: 0,
                wire_len: u32::try_from(data.len()).unwrap(),
                data,
                options: Vec::new(),
                has_timestamp: true,
            })
            .collect();
        let path = dir.path().join("carried.pcap");
        write(&path, link, packets.iter());
        // What is below labels has to be given.
        let (with, without) = ("mpls.label==17,pwethcw", "mpls.label==18,pwethnocw");
        let theirs = tshark(&path, &["-d", with, "-d", without]);
        assert_eq!(theirs.len(), packets.len());
        for ((name, packet), theirs) in names.iter().zip(&packets).zip(&theirs) {
            let ours = ours(link, &packet.data);
            if ours != *theirs {
                wrong.push(format!(
                    "{link}, {name}: ours {ours:?}\n  tshark {theirs:?}"
                ));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
