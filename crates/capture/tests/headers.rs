//! Where the headers end and which flow a packet belongs to, on link types that few captures have,
//! compared with tshark on every packet of every capture with them.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail loudly too")]

mod common;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

use common::{Packet, format_files, read};
use strata_capture::PcapWriter;
use strata_wire::dissect::dissect;
use strata_wire::{AddressFamily, Endpoint, Interface, LinkType, TunnelKey, ip_addr};

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
const KNOWN: [(&str, &str); 1] = [(
    "tcpdump/icmp-icmp_print-oobr-2.pcap",
    "two bytes of an ICMP message: header as far as they go, but malformed to tshark",
)];

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
fn tshark(path: &Path) -> Vec<Said> {
    let mut tshark = Command::new("tshark");
    tshark.args(["-n", "-T", "pdml", "-r"]).arg(path);
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

/// The headers of one packet: all up to the innermost transport, or an ICMP message, whose
/// payload is another packet's.
fn said(pdml: &str) -> Said {
    let mut said = Said::default();
    let lines = pdml.lines().map(str::trim_start);
    let (mut addresses, mut proto) = ([None; 2], "");
    for line in lines {
        if line.starts_with("<proto ") {
            proto = attribute(line, "name");
            if proto == "fake-field-wrapper" {
                continue;
            }
            let number = |name| attribute(line, name).parse::<usize>().unwrap();
            let (at, size) = (number("pos"), number("size"));
            match proto {
                "ip" | "ipv6" | "arp" => {
                    said.end = Some(at + size);
                    (said.source, said.destination) = (None, None);
                    addresses = [None; 2];
                }
                "tcp" | "udp" => said.end = Some(at + size),
                "sctp" => said.end = Some(at + 12),
                "icmp" | "icmpv6" | "igmp" => {
                    said.end = Some(at + size.min(8));
                    break;
                }
                _ => {}
            }
        } else if line.starts_with("<field ") {
            let show = || attribute(line, "show");
            let side = |address: Option<IpAddr>| address.map(|address| (address, 0));
            match (proto, attribute(line, "name")) {
                ("ip", "ip.src") | ("ipv6", "ipv6.src") => {
                    addresses[0] = show().parse().ok();
                    said.source = side(addresses[0]);
                }
                ("ip", "ip.dst") | ("ipv6", "ipv6.dst") => {
                    addresses[1] = show().parse().ok();
                    said.destination = side(addresses[1]);
                }
                ("tcp", "tcp.srcport") | ("udp", "udp.srcport") | ("sctp", "sctp.srcport") => {
                    said.source = addresses[0].map(|a| (a, show().parse().unwrap()));
                }
                ("tcp", "tcp.dstport") | ("udp", "udp.dstport") | ("sctp", "sctp.dstport") => {
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
        let mut writer = PcapWriter::new(Vec::new());
        writer.interface(0, &Interface::new(link, 0)).unwrap();
        for (_, packet) in &packets {
            writer.packet(&packet.borrow()).unwrap();
        }
        let path = dir.path().join(format!("{}.pcap", link.0));
        std::fs::write(&path, writer.finish().unwrap()).unwrap();
        let theirs = tshark(&path);
        assert_eq!(theirs.len(), packets.len(), "{link}");
        let mut counts: BTreeMap<bool, usize> = BTreeMap::new();
        for (index, ((name, packet), theirs)) in packets.iter().zip(&theirs).enumerate() {
            let ours = ours(link, &packet.data);
            *counts.entry(ours.end.is_some()).or_default() += 1;
            let known = KNOWN.iter().any(|(file, _)| file == name);
            if known && ours.source == theirs.source && ours.destination == theirs.destination {
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
