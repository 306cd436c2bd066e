//! Packets by hand.

use strata_wire::dissect::{dissect, protocol};
use strata_wire::transport::{TcpRepr, UdpRepr, tcp_flag};
use strata_wire::{Headers, LinkType, TunnelKey, ethernet as ether, ipv4, ipv6};

pub(crate) fn ethernet(kind: u16, rest: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let repr = ether::Repr {
        destination: [2, 0, 0, 0, 0, 1],
        source: [2, 0, 0, 0, 0, 2],
        ethertype: kind,
    };
    repr.emit(&mut out);
    out.extend_from_slice(rest);
    out
}

pub(crate) fn ip4(source: u32, destination: u32, number: u8, rest: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let repr = ipv4::Repr {
        source,
        destination,
        protocol: number,
        tos: 0,
        ttl: 64,
        identification: 77,
        fragment_offset: 0,
        more_fragments: false,
        payload_len: u16::try_from(rest.len()).unwrap(),
    };
    repr.emit(&mut out);
    out.extend_from_slice(rest);
    out
}

pub(crate) fn ip6(source: u128, destination: u128, next_header: u8, rest: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let repr = ipv6::Repr {
        source,
        destination,
        traffic_class: 0,
        flow_label: 0,
        next_header,
        hop_limit: 60,
        payload_len: u16::try_from(rest.len()).unwrap(),
    };
    repr.emit(&mut out);
    out.extend_from_slice(rest);
    out
}

pub(crate) fn tcp(source_port: u16, destination_port: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let repr = TcpRepr {
        source_port,
        destination_port,
        sequence: 1,
        flags: tcp_flag::SYN,
        window: 29_200,
    };
    repr.emit(&mut out);
    out.extend_from_slice(payload);
    out
}

pub(crate) fn udp(source_port: u16, destination_port: u16, payload: &[u8]) -> Vec<u8> {
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

pub(crate) fn inner(link: LinkType, packet: &[u8]) -> Headers {
    dissect(link, packet, TunnelKey::Inner)
}

pub(crate) fn ports(headers: &Headers) -> (u16, u16) {
    let (source, destination) = headers.endpoints();
    (source.port, destination.port)
}

pub(crate) const SOURCE: u32 = 0xc0a8_0701;
pub(crate) const DESTINATION: u32 = 0xc0a8_0702;

/// A packet from 192.168.7.1:1234 to 192.168.7.2:80, and its header's length.
pub(crate) fn packet() -> (Vec<u8>, usize) {
    let ip = ip4(
        SOURCE,
        DESTINATION,
        protocol::TCP,
        &tcp(1234, 80, b"payload"),
    );
    (ip, 40)
}

pub(crate) fn packet_6() -> Vec<u8> {
    let source = 0x2001_0db8 << 96 | 1;
    ip6(
        source,
        source + 1,
        protocol::TCP,
        &tcp(1234, 80, b"payload"),
    )
}

/// Where the headers end is the same wherever the packet is cut behind them; a cut within them is
/// reported, and no address is found that is not there.
pub(crate) fn assert_cuts_agree(name: &str, link: LinkType, packet: &[u8]) {
    let whole = inner(link, packet);
    for len in 0..=packet.len() {
        let mut cut = inner(link, &packet[..len]);
        if len >= whole.header_len as usize {
            assert!(cut.incomplete >= whole.incomplete, "{name} cut at {len}");
            cut.incomplete = whole.incomplete;
            assert_eq!(cut, whole, "{name} cut at {len}");
        } else {
            assert!(cut.incomplete, "{name} cut at {len}");
            assert!(cut.header_len as usize <= len && cut.networks <= whole.networks);
        }
    }
}

/// A message about a packet, of which this much is quoted.
pub(crate) fn error(kind: u8, word: [u8; 4], quoted: &[u8]) -> Vec<u8> {
    [&[kind, 3, 0, 0][..], &word, quoted].concat()
}
