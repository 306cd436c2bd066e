//! Packets made by hand, layer by layer, with addresses that are easy to search for.

use std::net::{Ipv4Addr, Ipv6Addr};

use strata_anonymize::{Anonymizer, Key, Left};
use strata_wire::LinkType;
use strata_wire::checksum::Sum;
use strata_wire::transport::UdpRepr;
use strata_wire::{ethernet, ipv4, ipv6};

pub(crate) const MACS: [[u8; 6]; 2] = [
    [0x02, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5],
    [0x00, 0xb1, 0xb2, 0xb3, 0xb4, 0xb5],
];
pub(crate) const HOSTS: [[u8; 4]; 2] = [[0xc0, 0xc1, 0xc2, 0xc3], [0xd4, 0xd5, 0xd6, 0xd7]];
pub(crate) const HOSTS_6: [[u8; 16]; 2] = [
    [
        0x20, 0x01, 0xe2, 0xe3, 0xe4, 0xe5, 0xe6, 0xe7, 0xe8, 0xe9, 0xea, 0xeb, 0xec, 0xed, 0xee,
        0xef,
    ],
    [
        0x20, 0x01, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa, 0xfb, 0xfc, 0xfd, 0xfe,
        0x9f,
    ],
];

/// The key of the sample that comes with Crypto-PAn 1.0.
pub(crate) const SAMPLE_KEY: [u8; 32] = [
    21, 34, 23, 141, 51, 164, 207, 128, 19, 10, 91, 22, 73, 144, 125, 16, 216, 152, 143, 131, 121,
    121, 101, 39, 98, 87, 76, 45, 42, 132, 34, 2,
];

pub(crate) fn anonymizer() -> Anonymizer {
    Anonymizer::new(&Key::parse(&SAMPLE_KEY).unwrap())
}

/// The anonymised beginning of a packet of a known link type.
pub(crate) fn beginning(link: LinkType, packet: &[u8]) -> Vec<u8> {
    let mut out = vec![1; 99];
    assert_eq!(anonymizer().packet(link, packet, &mut out), Left::Beginning);
    out
}

pub(crate) fn mac(address: [u8; 6]) -> [u8; 6] {
    anonymizer().addresses().ethernet(address)
}

pub(crate) fn host(address: [u8; 4]) -> [u8; 4] {
    let replaced = anonymizer().addresses().ipv4(Ipv4Addr::from(address));
    replaced.octets()
}

pub(crate) fn host_6(address: [u8; 16]) -> [u8; 16] {
    let replaced = anonymizer().addresses().ipv6(Ipv6Addr::from(address));
    replaced.octets()
}

pub(crate) fn holds(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

/// A frame between [`MACS`].
pub(crate) fn frame(ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let repr = ethernet::Repr {
        destination: MACS[1],
        source: MACS[0],
        ethertype,
    };
    repr.emit(&mut frame);
    frame.extend_from_slice(payload);
    frame
}

/// A packet between [`HOSTS`].
pub(crate) fn ip(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    let repr = ipv4::Repr {
        source: u32::from_be_bytes(HOSTS[0]),
        destination: u32::from_be_bytes(HOSTS[1]),
        protocol,
        tos: 0x10,
        ttl: 61,
        identification: 0x1234,
        fragment_offset: 0,
        more_fragments: false,
        payload_len: u16::try_from(payload.len()).unwrap(),
    };
    repr.emit(&mut packet);
    packet.extend_from_slice(payload);
    packet
}

/// The same with other flags and offset of fragments.
pub(crate) fn fragment(flags_offset: u16, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = ip(protocol, payload);
    packet[6..8].copy_from_slice(&flags_offset.to_be_bytes());
    packet[10..12].fill(0);
    let sum = ipv4::checksum(&packet[..20]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// A packet between [`HOSTS_6`].
pub(crate) fn ip_6(next_header: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    let repr = ipv6::Repr {
        source: u128::from_be_bytes(HOSTS_6[0]),
        destination: u128::from_be_bytes(HOSTS_6[1]),
        traffic_class: 0,
        flow_label: 0x12345,
        next_header,
        hop_limit: 62,
        payload_len: u16::try_from(payload.len()).unwrap(),
    };
    repr.emit(&mut packet);
    packet.extend_from_slice(payload);
    packet
}

pub(crate) fn udp(destination_port: u16, payload: &[u8]) -> Vec<u8> {
    let mut datagram = Vec::new();
    let repr = UdpRepr {
        source_port: 4_242,
        destination_port,
        payload_len: u16::try_from(payload.len()).unwrap(),
    };
    repr.emit(&mut datagram);
    datagram.extend_from_slice(payload);
    datagram
}

/// A segment with these options, whose length is a multiple of 4.
pub(crate) fn tcp(options: &[u8], payload: &[u8]) -> Vec<u8> {
    let words = u8::try_from(5 + options.len() / 4).unwrap();
    let mut segment = vec![0x12, 0x34, 0, 80, 1, 2, 3, 4, 5, 6, 7, 8, words << 4, 0x12];
    segment.extend_from_slice(&[0xfa, 0xf0, 0, 0, 0, 9]);
    segment.extend_from_slice(options);
    segment.extend_from_slice(payload);
    segment
}

/// The sum over an IPv4 or IPv6 packet's last bytes, from `at` on, with or without its pseudo-header: 0xffff if the
/// checksum in them is right.
pub(crate) fn sum(packet: &[u8], at: usize, pseudo: Option<u8>) -> u16 {
    let mut sum = Sum::default();
    if let Some(number) = pseudo {
        let is_v4 = packet[0] >> 4 == 4;
        sum.add(if is_v4 {
            &packet[12..20]
        } else {
            &packet[8..40]
        });
        sum.add_number(number.into());
        sum.add_number(u16::try_from(packet.len() - at).unwrap());
    }
    sum.add(&packet[at..]);
    sum.fold()
}

/// Makes the checksum of what a packet carries from `at` on right; the field is at `field` there.
pub(crate) fn with_checksum(
    mut packet: Vec<u8>,
    at: usize,
    field: usize,
    pseudo: Option<u8>,
) -> Vec<u8> {
    let field = at + field..at + field + 2;
    packet[field.clone()].fill(0);
    let right = !sum(&packet, at, pseudo);
    packet[field].copy_from_slice(&right.to_be_bytes());
    packet
}
