//! A packet's headers as a tree of fields, where tshark is not installed: Ethernet, VLAN, IP, TCP,
//! UDP, ICMP. A field knows its bytes, which the page marks.

use std::ops::Range;

use strata_wire::dissect::protocol;
use strata_wire::ethernet::ethertype;
use strata_wire::fields::{
    arp, behind_tags, ethernet, icmp, ipv4, ipv6, sll, sll2, stated_ip_len, tcp, udp, vlan,
};
use strata_wire::{
    AddressFamily, Headers, LinkType, ipv4 as v4_header, ipv6 as v6_header, transport,
};

use crate::answers::parts::Field;

/// VLAN tags that are looked through, and how many of them.
const TAGS: [u16; 2] = [ethertype::VLAN, ethertype::SERVICE_VLAN];
const TAGS_MAX: usize = 4;
/// IP headers within each other.
const NETWORKS_MAX: usize = 8;
/// Of an IP header that ends before it: nothing is read after that.
const NO_PROTOCOL: u8 = 255;
/// Shortest Ethernet frame, without its checksum: what is shorter is padded.
const FRAME_LEN_MIN: u32 = 60;

/// Bytes of an Ethernet frame behind its IP packet, which has no say in them: padding, or a trailer.
pub(crate) fn behind_ip(link: LinkType, bytes: &[u8], wire_len: u32) -> u32 {
    if link != LinkType::ETHERNET {
        return 0;
    }
    let network = behind_tags(bytes, ethernet::TYPE.start, &TAGS, TAGS_MAX);
    let end = network.and_then(|(kind, at)| {
        let length = stated_ip_len(bytes, kind, at)?;
        u32::try_from(at).ok()?.checked_add(length)
    });
    end.map_or(0, |end| wire_len.saturating_sub(end))
}

/// What bytes behind the IP packet of a frame of this length are.
pub(crate) fn padding(wire_len: u32) -> &'static str {
    match wire_len <= FRAME_LEN_MIN {
        true => "padding",
        false => "trailer",
    }
}

/// A packet in a line, as in `TCP SYN, 0 bytes`; `behind` bytes of it are behind its IP packet.
pub(crate) fn summary(headers: &Headers, wire_len: u32, behind: u32) -> String {
    let payload = wire_len.saturating_sub(headers.header_len.saturating_add(behind));
    let Some(key) = headers.key else {
        return format!("not dissected, {wire_len} bytes");
    };
    if key.family == AddressFamily::Mac {
        return format!("EtherType 0x{:04x}, {wire_len} bytes", key.low.port);
    }
    let fragment = headers
        .fragment
        .map_or("", |fragment| match fragment.first {
            true => " first fragment",
            false => " fragment",
        });
    let name = match key.protocol {
        protocol::ICMP => String::from("ICMP"),
        protocol::TCP => format!("TCP {}", flags(headers.tcp_flags)),
        protocol::UDP => String::from("UDP"),
        protocol::ICMPV6 => String::from("ICMPv6"),
        protocol::DCCP => String::from("DCCP"),
        protocol::SCTP => String::from("SCTP"),
        protocol::UDP_LITE => String::from("UDP-Lite"),
        number => format!("IP protocol {number}"),
    };
    let behind = match behind {
        0 => String::new(),
        bytes => format!(" and {bytes} of {}", padding(wire_len)),
    };
    let unit = if payload == 1 { "byte" } else { "bytes" };
    format!("{}{fragment}, {payload} {unit}{behind}", name.trim_end())
}

/// TCP flags as their names.
fn flags(flags: u8) -> String {
    const NAMES: [(u8, &str); 8] = [
        (0x01, "FIN"),
        (0x02, "SYN"),
        (0x04, "RST"),
        (0x08, "PSH"),
        (0x10, "ACK"),
        (0x20, "URG"),
        (0x40, "ECE"),
        (0x80, "CWR"),
    ];
    let set = NAMES.iter().filter(|(bit, _)| flags & bit != 0);
    let names: Vec<&str> = set.map(|(_, name)| *name).collect();
    names.join(",")
}

/// The bytes of a packet, and where the next layer begins.
struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
    networks: usize,
    layers: Vec<Field>,
}

/// A layer's fields while it is read.
struct Layer<'w, 'a> {
    walk: &'w Walk<'a>,
    fields: Vec<Field>,
}

impl Layer<'_, '_> {
    /// Adds a field of some bytes; nothing if they were not kept.
    fn field(&mut self, name: &str, place: Range<usize>, label: impl FnOnce(&[u8]) -> String) {
        let start = self.walk.at.saturating_add(place.start);
        if let Some(bytes) = self.walk.left().get(place) {
            self.fields.push(Field {
                name: Some(name.to_owned()),
                label: label(bytes),
                start: Some(start as u64),
                length: Some(bytes.len() as u64),
                fields: Vec::new(),
            });
        }
    }
}

fn number(bytes: &[u8]) -> u64 {
    let last = &bytes[bytes.len().saturating_sub(8)..];
    last.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

fn mac(bytes: &[u8]) -> String {
    let parts: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    parts.join(":")
}

fn v4(bytes: &[u8]) -> String {
    let parts: Vec<String> = bytes.iter().map(ToString::to_string).collect();
    parts.join(".")
}

fn v6(bytes: &[u8]) -> String {
    let octets: Option<[u8; 16]> = bytes.try_into().ok();
    octets.map_or_else(String::new, |octets| {
        std::net::Ipv6Addr::from(octets).to_string()
    })
}

impl<'a> Walk<'a> {
    fn left(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or(&[])
    }

    fn byte(&self, place: Range<usize>) -> Option<u8> {
        self.left().get(place.start).copied()
    }

    /// A number of 16 bits; 0 if it is not there.
    fn word(&self, place: Range<usize>) -> u16 {
        let word = self.left().get(place.start..);
        let word = word.and_then(|bytes| bytes.first_chunk());
        word.map_or(0, |word| u16::from_be_bytes(*word))
    }

    /// Adds a layer of `length` bytes, as far as they are there, and goes behind it.
    fn layer(
        &mut self,
        name: &str,
        label: &str,
        length: usize,
        read: impl FnOnce(&mut Layer<'_, 'a>),
    ) {
        let mut layer = Layer {
            walk: self,
            fields: Vec::new(),
        };
        read(&mut layer);
        let fields = layer.fields;
        let length = length.min(self.left().len());
        self.layers.push(Field {
            name: Some(name.to_owned()),
            label: label.to_owned(),
            start: Some(self.at as u64),
            length: Some(length as u64),
            fields,
        });
        // At most to the end of the bytes.
        self.at = self.at.saturating_add(length);
    }

    fn ethernet(&mut self) {
        let kind = self.word(ethernet::TYPE);
        self.layer("eth", "Ethernet", ethernet::TYPE.end, |layer| {
            layer.field("eth.dst", ethernet::DESTINATION, |b| {
                format!("Destination: {}", mac(b))
            });
            layer.field("eth.src", ethernet::SOURCE, |b| {
                format!("Source: {}", mac(b))
            });
            layer.field("eth.type", ethernet::TYPE, |b| {
                format!("EtherType: 0x{:04x}", number(b))
            });
        });
        self.by_type(kind);
    }

    fn by_type(&mut self, mut kind: u16) {
        for _ in 0..TAGS_MAX {
            if !TAGS.contains(&kind) {
                break;
            }
            kind = self.word(vlan::TYPE);
            self.layer("vlan", "VLAN tag (802.1Q)", vlan::LEN, |layer| {
                layer.field("vlan.id", vlan::CONTROL, |b| {
                    format!("VLAN: {}", number(b) & 0xfff)
                });
                layer.field("vlan.etype", vlan::TYPE, |b| {
                    format!("EtherType: 0x{:04x}", number(b))
                });
            });
        }
        match kind {
            ethertype::IPV4 => self.ipv4(),
            ethertype::IPV6 => self.ipv6(),
            ethertype::ARP => self.layer("arp", "ARP", arp::LEN, |layer| {
                layer.field("arp.opcode", arp::OPERATION, |b| match number(b) {
                    1 => String::from("Operation: request (1)"),
                    2 => String::from("Operation: reply (2)"),
                    other => format!("Operation: {other}"),
                });
                layer.field("arp.src.hw_mac", arp::SENDER_MAC, |b| {
                    format!("Sender MAC: {}", mac(b))
                });
                layer.field("arp.src.proto_ipv4", arp::SENDER_IP, |b| {
                    format!("Sender IP: {}", v4(b))
                });
                layer.field("arp.dst.hw_mac", arp::TARGET_MAC, |b| {
                    format!("Target MAC: {}", mac(b))
                });
                layer.field("arp.dst.proto_ipv4", arp::TARGET_IP, |b| {
                    format!("Target IP: {}", v4(b))
                });
            }),
            _ => {}
        }
    }

    fn ip(&mut self) {
        match v4_header::version(self.left()) {
            Some(4) => self.ipv4(),
            Some(6) => self.ipv6(),
            _ => {}
        }
    }

    fn ipv4(&mut self) {
        self.networks = self.networks.saturating_add(1);
        let least = v4_header::HEADER_LEN_MIN;
        let stated = self.byte(ipv4::VERSION_LEN);
        let length = stated.map_or(0, |first| usize::from(ipv4::header_len(first)));
        let length = length.max(least);
        let protocol = self.byte(ipv4::PROTOCOL).unwrap_or(NO_PROTOCOL);
        let offset = self.word(ipv4::FLAGS_OFFSET) & ipv4::OFFSET_MASK;
        self.layer("ip", "Internet Protocol version 4", length, |layer| {
            layer.field("ip.hdr_len", ipv4::VERSION_LEN, |b| {
                format!("Header length: {} bytes", ipv4::header_len(b[0]))
            });
            layer.field("ip.dsfield", ipv4::TOS, |b| {
                format!("DSCP {}, ECN {}", b[0] >> 2, b[0] & 3)
            });
            layer.field("ip.len", ipv4::TOTAL_LEN, |b| {
                format!("Total length: {}", number(b))
            });
            layer.field("ip.id", ipv4::IDENTIFICATION, |b| {
                format!("Identification: 0x{:04x}", number(b))
            });
            layer.field("ip.flags", ipv4::FLAGS_OFFSET, |b| {
                let bits = number(b);
                let set = |bit: u16, name: &str| {
                    if bits & u64::from(bit) != 0 {
                        name.to_owned()
                    } else {
                        String::new()
                    }
                };
                let (df, mf) = (
                    set(ipv4::DONT_FRAGMENT, " don't fragment"),
                    set(ipv4::MORE_FRAGMENTS, " more fragments"),
                );
                format!(
                    "Flags:{df}{mf}, fragment offset {}",
                    (bits & u64::from(ipv4::OFFSET_MASK)) << 3
                )
            });
            layer.field("ip.ttl", ipv4::TTL, |b| format!("Time to live: {}", b[0]));
            layer.field("ip.proto", ipv4::PROTOCOL, |b| {
                format!("Protocol: {}", b[0])
            });
            layer.field("ip.checksum", ipv4::CHECKSUM, |b| {
                format!("Header checksum: 0x{:04x}", number(b))
            });
            layer.field("ip.src", ipv4::SOURCE, |b| format!("Source: {}", v4(b)));
            layer.field("ip.dst", ipv4::DESTINATION, |b| {
                format!("Destination: {}", v4(b))
            });
            if length > least {
                layer.field("ip.options", least..length, |b| {
                    format!("Options: {} bytes", b.len())
                });
            }
        });
        if offset == 0 {
            self.transport(protocol);
        }
    }

    fn ipv6(&mut self) {
        self.networks = self.networks.saturating_add(1);
        let next = self.byte(ipv6::NEXT_HEADER).unwrap_or(protocol::NO_NEXT);
        self.layer(
            "ipv6",
            "Internet Protocol version 6",
            v6_header::HEADER_LEN,
            |layer| {
                layer.field("ipv6.tclass", ipv6::VERSION_CLASS, |b| {
                    format!("Traffic class: 0x{:02x}", (number(b) >> 4) & 0xff)
                });
                layer.field("ipv6.plen", ipv6::PAYLOAD_LEN, |b| {
                    format!("Payload length: {}", number(b))
                });
                layer.field("ipv6.nxt", ipv6::NEXT_HEADER, |b| {
                    format!("Next header: {}", b[0])
                });
                layer.field("ipv6.hlim", ipv6::HOP_LIMIT, |b| {
                    format!("Hop limit: {}", b[0])
                });
                layer.field("ipv6.src", ipv6::SOURCE, |b| format!("Source: {}", v6(b)));
                layer.field("ipv6.dst", ipv6::DESTINATION, |b| {
                    format!("Destination: {}", v6(b))
                });
            },
        );
        self.transport(next);
    }

    fn transport(&mut self, carried: u8) {
        match carried {
            protocol::TCP => self.tcp(),
            protocol::UDP => self.layer(
                "udp",
                "User Datagram Protocol",
                transport::UDP_HEADER_LEN,
                |layer| {
                    layer.field("udp.srcport", udp::SOURCE_PORT, |b| {
                        format!("Source port: {}", number(b))
                    });
                    layer.field("udp.dstport", udp::DESTINATION_PORT, |b| {
                        format!("Destination port: {}", number(b))
                    });
                    layer.field("udp.length", udp::LEN, |b| format!("Length: {}", number(b)));
                    layer.field("udp.checksum", udp::CHECKSUM, |b| {
                        format!("Checksum: 0x{:04x}", number(b))
                    });
                },
            ),
            protocol::ICMP | protocol::ICMPV6 => {
                let is_v4 = carried == protocol::ICMP;
                let name = if is_v4 { "icmp" } else { "icmpv6" };
                self.layer(name, &name.to_uppercase(), icmp::HEADER_LEN, |layer| {
                    layer.field(&format!("{name}.type"), icmp::TYPE, |b| {
                        format!("Type: {}", b[0])
                    });
                    layer.field(&format!("{name}.code"), icmp::CODE, |b| {
                        format!("Code: {}", b[0])
                    });
                    layer.field(&format!("{name}.checksum"), icmp::CHECKSUM, |b| {
                        format!("Checksum: 0x{:04x}", number(b))
                    });
                });
            }
            protocol::IPV4 | protocol::IPV6 if self.networks < NETWORKS_MAX => self.ip(),
            _ => {}
        }
    }

    fn tcp(&mut self) {
        let least = transport::TCP_HEADER_LEN_MIN;
        let stated = self.byte(tcp::DATA_OFFSET);
        let length = stated.map_or(0, |offset| usize::from(tcp::header_len(offset)));
        let length = length.max(least);
        self.layer("tcp", "Transmission Control Protocol", length, |layer| {
            layer.field("tcp.srcport", tcp::SOURCE_PORT, |b| {
                format!("Source port: {}", number(b))
            });
            layer.field("tcp.dstport", tcp::DESTINATION_PORT, |b| {
                format!("Destination port: {}", number(b))
            });
            layer.field("tcp.seq_raw", tcp::SEQUENCE, |b| {
                format!("Sequence number: {}", number(b))
            });
            layer.field("tcp.ack_raw", tcp::ACKNOWLEDGMENT, |b| {
                format!("Acknowledgment number: {}", number(b))
            });
            layer.field("tcp.hdr_len", tcp::DATA_OFFSET, |b| {
                format!("Header length: {} bytes", tcp::header_len(b[0]))
            });
            layer.field("tcp.flags", tcp::FLAGS, |b| {
                format!("Flags: {}", flags(b[0]))
            });
            layer.field("tcp.window_size_value", tcp::WINDOW, |b| {
                format!("Window: {}", number(b))
            });
            layer.field("tcp.checksum", tcp::CHECKSUM, |b| {
                format!("Checksum: 0x{:04x}", number(b))
            });
            layer.field("tcp.urgent_pointer", tcp::URGENT_POINTER, |b| {
                format!("Urgent pointer: {}", number(b))
            });
            if length > least {
                layer.field("tcp.options", least..length, |b| {
                    format!("Options: {} bytes", b.len())
                });
            }
        });
    }
}

/// The layers of a packet, as far as its bytes are there.
pub(crate) fn layers(link: LinkType, bytes: &[u8]) -> Vec<Field> {
    let mut walk = Walk {
        bytes,
        at: 0,
        networks: 0,
        layers: Vec::new(),
    };
    match link {
        LinkType::ETHERNET => walk.ethernet(),
        LinkType::RAW_12 | LinkType::RAW_14 | LinkType::RAW | LinkType::IPV4 | LinkType::IPV6 => {
            walk.ip();
        }
        LinkType::LINUX_SLL => {
            let kind = walk.word(sll::TYPE);
            walk.layer("sll", "Linux cooked capture", sll::LEN, |layer| {
                layer.field("sll.etype", sll::TYPE, |b| {
                    format!("EtherType: 0x{:04x}", number(b))
                });
            });
            walk.by_type(kind);
        }
        LinkType::LINUX_SLL2 => {
            let kind = walk.word(sll2::TYPE);
            walk.layer("sll2", "Linux cooked capture v2", sll2::LEN, |layer| {
                layer.field("sll.etype", sll2::TYPE, |b| {
                    format!("EtherType: 0x{:04x}", number(b))
                });
            });
            walk.by_type(kind);
        }
        _ => {}
    }
    let rest = walk.left().len();
    if rest > 0 {
        walk.layer("data", &format!("Data, {rest} bytes"), rest, |_| {});
    }
    walk.layers
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of this EtherType, with a network header of this number of bytes, whose word at this
    /// place is a length.
    fn frame(tags: usize, kind: u16, (header, at, length): (usize, usize, u16)) -> Vec<u8> {
        let mut frame = vec![0; 12];
        for _ in 0..tags {
            frame.extend([0x81, 0x00, 0, 7]);
        }
        frame.extend(kind.to_be_bytes());
        let network = frame.len();
        frame.resize(network + header, 0);
        frame[network + at..network + at + 2].copy_from_slice(&length.to_be_bytes());
        frame
    }

    #[test]
    fn what_is_behind_the_ip_packet_is_no_payload() {
        let of = |frame: &[u8], wire_len| behind_ip(LinkType::ETHERNET, frame, wire_len);
        let v4 = |tags, length| frame(tags, 0x0800, (20, 2, length));
        let v6 = |length| frame(0, 0x86dd, (40, 4, length));
        assert_eq!(of(&v4(0, 40), 60), 6);
        assert_eq!(of(&v4(0, 40), 54), 0);
        assert_eq!(of(&v4(1, 40), 64), 6);
        assert_eq!(of(&v4(2, 1500), 1522), 0);
        assert_eq!(of(&v6(2), 60), 4);
        // Left to the card, longer than what is there, and no Ethernet.
        assert_eq!(of(&v4(0, 0), 9000), 0);
        assert_eq!(of(&v6(0), 9000), 0);
        assert_eq!(of(&v4(0, 1500), 60), 0);
        assert_eq!(of(&frame(0, 0x0806, (28, 2, 40)), 60), 0);
        assert_eq!(behind_ip(LinkType(101), &v4(0, 40), 60), 0);
        assert_eq!(padding(60), "padding");
        assert_eq!(padding(64), "trailer");
        for cut in 0..34 {
            of(&v4(0, 40)[..cut], 60);
        }
    }

    /// Headers of every kind, each byte of them as others have it, and each length. The digest is that of all layers, which
    /// must not depend on who parses.
    #[test]
    fn odd_packets_are_shown_as_ever() {
        let ip = |protocol: u8| {
            let mut ip = vec![
                0x46, 0xb9, 0, 90, 1, 2, 0x60, 0, 64, protocol, 7, 8, 10, 0, 0, 1, 10, 0, 0, 2,
            ];
            ip.extend([1; 4]);
            ip
        };
        let mut v6 = vec![0x6a, 0xbc, 0, 9, 0, 50, 6, 63];
        v6.extend(1..=32);
        let tcp: Vec<u8> = (0..12).chain([0x60, 0xd2]).chain(80..110).collect();
        let v4 = [ip(6), tcp.clone()].concat();
        let v6 = [v6, tcp.clone()].concat();
        let within = [ip(4), ip(41), v6.clone()].concat();
        let ethernet = |kind: &[u8], rest: &[u8]| [&[0x02; 12], kind, rest].concat();
        let cooked = [&[0; 14], &[8, 0][..], &v4].concat();
        let tagged: Vec<u8> = [0x81, 0, 0x2f, 7, 0x88, 0xa8, 0, 8, 0x08, 0x00].to_vec();
        let packets = [
            (1, ethernet(&[8, 0], &v4)),
            (1, ethernet(&tagged, &[ip(17), tcp.clone()].concat())),
            (1, ethernet(&[0x86, 0xdd], &v6)),
            (1, ethernet(&[8, 6], &v6)),
            (101, within),
            (12, [ip(1), tcp.clone()].concat()),
            (229, [ip(58), tcp].concat()),
            (113, cooked),
            (105, v6),
        ];
        let (mut digest, mut bytes) = (0_u64, 0_usize);
        let mut show = |link: u16, packet: &[u8]| {
            let behind = behind_ip(LinkType(link), packet, 80);
            let text = serde_json::json!(layers(LinkType(link), packet)).to_string();
            bytes += text.len();
            for byte in text.bytes().chain(behind.to_le_bytes()) {
                digest = strata_wire::mix64(digest ^ u64::from(byte));
            }
        };
        for (link, packet) in packets {
            for len in 0..=packet.len() {
                show(link, &packet[..len]);
            }
            for at in 0..packet.len() {
                for value in [
                    0, 4, 6, 17, 41, 58, 0x1f, 0x45, 0x4f, 0x81, 0x86, 0x88, 0xf0, 0xff,
                ] {
                    let mut odd = packet.clone();
                    odd[at] = value;
                    show(link, &odd);
                }
            }
        }
        assert_eq!((bytes, digest), (22_469_208, 12_226_980_141_021_781_221));
    }

    #[test]
    fn no_bytes_make_it_panic_and_fields_lie_within_them() {
        fn check(fields: &[Field], len: usize) {
            for field in fields {
                let end = field.start.unwrap() + field.length.unwrap();
                assert!(end <= len as u64, "{field:?}");
                check(&field.fields, len);
            }
        }
        let mut packet = vec![0_u8; 14];
        packet[12..14].copy_from_slice(&[0x08, 0x00]);
        packet.extend([
            0x4f, 0, 0, 60, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ]);
        packet.extend([0_u8; 60]);
        for cut in 0..packet.len() {
            for link in [1, 101, 113, 9999] {
                check(&layers(LinkType(link), &packet[..cut]), cut);
            }
        }
        let mut seed = 1_u64;
        for _ in 0..2000 {
            let bytes: Vec<u8> = (0..80)
                .map(|_| {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (seed >> 56).to_le_bytes()[0]
                })
                .collect();
            for link in [1, 101, 113] {
                check(&layers(LinkType(link), &bytes), bytes.len());
            }
        }
    }
}
