//! A packet's headers as a tree of fields, where tshark is not installed: Ethernet, VLAN, IP, TCP,
//! UDP, ICMP. A field knows its bytes, which the page marks.

use serde_json::{Value, json};
use strata_wire::{AddressFamily, Headers, LinkType};

/// VLAN tags that are looked through.
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
    let word = |at: usize| bytes.get(at..)?.get(..2).map(number);
    let mut at = 12_usize;
    for _ in 0..TAGS_MAX {
        if !matches!(word(at), Some(0x8100 | 0x88a8)) {
            break;
        }
        at = at.saturating_add(4);
    }
    let network = at.saturating_add(2);
    // A length of 0 stands for one that is too large, or that is left to the card.
    let length = match word(at) {
        Some(0x0800) => word(network.saturating_add(2)).filter(|length| *length >= 20),
        Some(0x86dd) => word(network.saturating_add(4))
            .filter(|length| *length > 0)
            .map(|length| length.saturating_add(40)),
        _ => None,
    };
    let end = length.and_then(|length| u32::try_from((network as u64).saturating_add(length)).ok());
    end.map_or(0, |end| wire_len.saturating_sub(end))
}

/// What bytes behind the IP packet of a frame of this length are.
pub(crate) fn padding(wire_len: u32) -> &'static str {
    match wire_len <= FRAME_LEN_MIN {
        true => "padding",
        false => "trailer",
    }
}

/// A packet in a line, as in `TCP SYN, 0 bytes`; so many bytes of it are behind its IP packet.
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
        1 => String::from("ICMP"),
        6 => format!("TCP {}", flags(headers.tcp_flags)),
        17 => String::from("UDP"),
        58 => String::from("ICMPv6"),
        33 => String::from("DCCP"),
        132 => String::from("SCTP"),
        136 => String::from("UDP-Lite"),
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
    layers: Vec<Value>,
}

/// A layer's fields while it is read.
struct Layer<'w, 'a> {
    walk: &'w Walk<'a>,
    fields: Vec<Value>,
}

impl Layer<'_, '_> {
    /// Adds a field of some bytes; nothing if they were not kept.
    fn field(
        &mut self,
        name: &str,
        (offset, length): (usize, usize),
        label: impl FnOnce(&[u8]) -> String,
    ) {
        let start = self.walk.at.saturating_add(offset);
        let bytes = self.walk.left().get(offset..);
        if let Some(bytes) = bytes.and_then(|bytes| bytes.get(..length)) {
            self.fields.push(json!({
                "name": name, "label": label(bytes), "start": start, "length": length, "fields": [],
            }));
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

    fn byte(&self, offset: usize) -> Option<u8> {
        self.left().get(offset).copied()
    }

    /// Adds a layer of so many bytes, as far as they are there, and goes behind it.
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
        self.layers.push(json!({
            "name": name, "label": label, "start": self.at, "length": length, "fields": fields,
        }));
        // At most to the end of the bytes.
        self.at = self.at.saturating_add(length);
    }

    fn ethernet(&mut self) {
        let kind = self.left().get(12..14).map_or(0, number);
        self.layer("eth", "Ethernet", 14, |layer| {
            layer.field("eth.dst", (0, 6), |b| format!("Destination: {}", mac(b)));
            layer.field("eth.src", (6, 6), |b| format!("Source: {}", mac(b)));
            layer.field("eth.type", (12, 2), |b| {
                format!("EtherType: 0x{:04x}", number(b))
            });
        });
        self.by_type(kind);
    }

    fn by_type(&mut self, mut kind: u64) {
        for _ in 0..TAGS_MAX {
            if !matches!(kind, 0x8100 | 0x88a8) {
                break;
            }
            kind = self.left().get(2..4).map_or(0, number);
            self.layer("vlan", "VLAN tag (802.1Q)", 4, |layer| {
                layer.field("vlan.id", (0, 2), |b| {
                    format!("VLAN: {}", number(b) & 0xfff)
                });
                layer.field("vlan.etype", (2, 2), |b| {
                    format!("EtherType: 0x{:04x}", number(b))
                });
            });
        }
        match kind {
            0x0800 => self.ipv4(),
            0x86dd => self.ipv6(),
            0x0806 => self.layer("arp", "ARP", 28, |layer| {
                layer.field("arp.opcode", (6, 2), |b| match number(b) {
                    1 => String::from("Operation: request (1)"),
                    2 => String::from("Operation: reply (2)"),
                    other => format!("Operation: {other}"),
                });
                layer.field("arp.src.hw_mac", (8, 6), |b| {
                    format!("Sender MAC: {}", mac(b))
                });
                layer.field("arp.src.proto_ipv4", (14, 4), |b| {
                    format!("Sender IP: {}", v4(b))
                });
                layer.field("arp.dst.hw_mac", (18, 6), |b| {
                    format!("Target MAC: {}", mac(b))
                });
                layer.field("arp.dst.proto_ipv4", (24, 4), |b| {
                    format!("Target IP: {}", v4(b))
                });
            }),
            _ => {}
        }
    }

    fn ip(&mut self) {
        match self.byte(0).map(|byte| byte >> 4) {
            Some(4) => self.ipv4(),
            Some(6) => self.ipv6(),
            _ => {}
        }
    }

    fn ipv4(&mut self) {
        self.networks = self.networks.saturating_add(1);
        let length = self
            .byte(0)
            .map_or(0, |byte| usize::from(byte & 15) << 2)
            .max(20);
        let protocol = self.byte(9).unwrap_or(NO_PROTOCOL);
        let offset = self.left().get(6..8).map_or(0, number) & 0x1fff;
        self.layer("ip", "Internet Protocol version 4", length, |layer| {
            layer.field("ip.hdr_len", (0, 1), |b| {
                format!("Header length: {} bytes", (b[0] & 15) << 2)
            });
            layer.field("ip.dsfield", (1, 1), |b| {
                format!("DSCP {}, ECN {}", b[0] >> 2, b[0] & 3)
            });
            layer.field("ip.len", (2, 2), |b| format!("Total length: {}", number(b)));
            layer.field("ip.id", (4, 2), |b| {
                format!("Identification: 0x{:04x}", number(b))
            });
            layer.field("ip.flags", (6, 2), |b| {
                let bits = number(b);
                let set = |bit: u64, name: &str| {
                    if bits & bit != 0 {
                        name.to_owned()
                    } else {
                        String::new()
                    }
                };
                let (df, mf) = (
                    set(0x4000, " don't fragment"),
                    set(0x2000, " more fragments"),
                );
                format!("Flags:{df}{mf}, fragment offset {}", (bits & 0x1fff) << 3)
            });
            layer.field("ip.ttl", (8, 1), |b| format!("Time to live: {}", b[0]));
            layer.field("ip.proto", (9, 1), |b| format!("Protocol: {}", b[0]));
            layer.field("ip.checksum", (10, 2), |b| {
                format!("Header checksum: 0x{:04x}", number(b))
            });
            layer.field("ip.src", (12, 4), |b| format!("Source: {}", v4(b)));
            layer.field("ip.dst", (16, 4), |b| format!("Destination: {}", v4(b)));
            if length > 20 {
                layer.field("ip.options", (20, length.saturating_sub(20)), |b| {
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
        let next = self.byte(6).unwrap_or(59);
        self.layer("ipv6", "Internet Protocol version 6", 40, |layer| {
            layer.field("ipv6.tclass", (0, 2), |b| {
                format!("Traffic class: 0x{:02x}", (number(b) >> 4) & 0xff)
            });
            layer.field("ipv6.plen", (4, 2), |b| {
                format!("Payload length: {}", number(b))
            });
            layer.field("ipv6.nxt", (6, 1), |b| format!("Next header: {}", b[0]));
            layer.field("ipv6.hlim", (7, 1), |b| format!("Hop limit: {}", b[0]));
            layer.field("ipv6.src", (8, 16), |b| format!("Source: {}", v6(b)));
            layer.field("ipv6.dst", (24, 16), |b| format!("Destination: {}", v6(b)));
        });
        self.transport(next);
    }

    fn transport(&mut self, protocol: u8) {
        match protocol {
            6 => self.tcp(),
            17 => self.layer("udp", "User Datagram Protocol", 8, |layer| {
                layer.field("udp.srcport", (0, 2), |b| {
                    format!("Source port: {}", number(b))
                });
                layer.field("udp.dstport", (2, 2), |b| {
                    format!("Destination port: {}", number(b))
                });
                layer.field("udp.length", (4, 2), |b| format!("Length: {}", number(b)));
                layer.field("udp.checksum", (6, 2), |b| {
                    format!("Checksum: 0x{:04x}", number(b))
                });
            }),
            1 | 58 => {
                let name = if protocol == 1 { "icmp" } else { "icmpv6" };
                self.layer(name, &name.to_uppercase(), 8, |layer| {
                    layer.field(&format!("{name}.type"), (0, 1), |b| {
                        format!("Type: {}", b[0])
                    });
                    layer.field(&format!("{name}.code"), (1, 1), |b| {
                        format!("Code: {}", b[0])
                    });
                    layer.field(&format!("{name}.checksum"), (2, 2), |b| {
                        format!("Checksum: 0x{:04x}", number(b))
                    });
                });
            }
            4 | 41 if self.networks < NETWORKS_MAX => self.ip(),
            _ => {}
        }
    }

    fn tcp(&mut self) {
        let length = self
            .byte(12)
            .map_or(0, |byte| usize::from(byte >> 4) << 2)
            .max(20);
        self.layer("tcp", "Transmission Control Protocol", length, |layer| {
            layer.field("tcp.srcport", (0, 2), |b| {
                format!("Source port: {}", number(b))
            });
            layer.field("tcp.dstport", (2, 2), |b| {
                format!("Destination port: {}", number(b))
            });
            layer.field("tcp.seq_raw", (4, 4), |b| {
                format!("Sequence number: {}", number(b))
            });
            layer.field("tcp.ack_raw", (8, 4), |b| {
                format!("Acknowledgment number: {}", number(b))
            });
            layer.field("tcp.hdr_len", (12, 1), |b| {
                format!("Header length: {} bytes", (b[0] >> 4) << 2)
            });
            layer.field("tcp.flags", (13, 1), |b| format!("Flags: {}", flags(b[0])));
            layer.field("tcp.window_size_value", (14, 2), |b| {
                format!("Window: {}", number(b))
            });
            layer.field("tcp.checksum", (16, 2), |b| {
                format!("Checksum: 0x{:04x}", number(b))
            });
            layer.field("tcp.urgent_pointer", (18, 2), |b| {
                format!("Urgent pointer: {}", number(b))
            });
            if length > 20 {
                layer.field("tcp.options", (20, length.saturating_sub(20)), |b| {
                    format!("Options: {} bytes", b.len())
                });
            }
        });
    }
}

/// The layers of a packet, as far as its bytes are there.
pub(crate) fn layers(link: LinkType, bytes: &[u8]) -> Vec<Value> {
    let mut walk = Walk {
        bytes,
        at: 0,
        networks: 0,
        layers: Vec::new(),
    };
    match link.0 {
        1 => walk.ethernet(),
        12 | 14 | 101 | 228 | 229 => walk.ip(),
        113 => {
            let kind = bytes.get(14..16).map_or(0, number);
            walk.layer("sll", "Linux cooked capture", 16, |layer| {
                layer.field("sll.etype", (14, 2), |b| {
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

    /// A frame of this EtherType, with a network header of so many bytes, whose word at this place is a
    /// length.
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

    #[test]
    fn no_bytes_make_it_panic_and_fields_lie_within_them() {
        fn check(fields: &[Value], len: usize) {
            for field in fields {
                let at = |name: &str| usize::try_from(field[name].as_u64().unwrap()).unwrap();
                assert!(at("start") + at("length") <= len, "{field}");
                check(field["fields"].as_array().unwrap(), len);
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
