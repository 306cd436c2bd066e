//! The walk through the headers: layer by layer, nested at random, and on bytes that lie.

use proptest::prelude::*;
use strata_wire::dissect::{Fragment, dissect, protocol};
use strata_wire::ethernet::ethertype;
use strata_wire::transport::tcp_flag;
use strata_wire::{AddressFamily, LinkType, TunnelKey};

use crate::common::{assert_cuts_agree, ethernet, inner, ip4, ip6, ports, tcp, udp};

#[test]
fn tcp_over_ipv4_with_options() {
    let mut segment = tcp(1234, 443, &[]);
    segment[12] = 0x80;
    segment.extend([1; 12]);
    segment.extend([b'x'; 100]);
    let packet = ethernet(ethertype::IPV4, &ip4(9, 5, protocol::TCP, &segment));
    let headers = inner(LinkType::ETHERNET, &packet);
    assert_eq!(headers.header_len, 14 + 20 + 32);
    assert_eq!(headers.transport_len, 32);
    assert_eq!(ports(&headers), (1234, 443));
    assert_eq!(
        (headers.tcp_flags, headers.tcp_window),
        (tcp_flag::SYN, 29_200)
    );
    assert_eq!(headers.key.unwrap().family, AddressFamily::Ipv4);
    assert!(!headers.low_to_high && !headers.incomplete);
}

#[test]
fn tags_labels_and_sessions_are_walked_through() {
    let ip = ip4(1, 2, protocol::UDP, &udp(53, 5353, b"payload"));
    let double_tagged = [&[0, 5, 0x88, 0xa8, 0, 6, 0x81, 0, 0, 7, 8, 0][..], &ip].concat();
    let mpls = [&[0, 0, 0x10, 64, 0, 0, 0x21, 64][..], &ip].concat();
    let pppoe = [&[0x11, 0, 0, 1, 0, 37, 0, 0x21][..], &ip].concat();
    let pseudowire = [
        &[0, 0, 0x21, 64, 0, 0, 0, 0][..],
        &ethernet(ethertype::IPV4, &ip),
    ]
    .concat();
    for (kind, rest, before_ip) in [
        (ethertype::SERVICE_VLAN, &double_tagged, 12),
        (ethertype::MPLS, &mpls, 8),
        (ethertype::PPPOE_SESSION, &pppoe, 8),
        (ethertype::MPLS, &pseudowire, 8 + 14),
    ] {
        let headers = inner(LinkType::ETHERNET, &ethernet(kind, rest));
        assert_eq!(headers.header_len, 14 + before_ip + 28, "{kind:04x}");
        assert_eq!(ports(&headers), (53, 5353));
        assert!(!headers.incomplete);
    }
}

#[test]
fn link_types_lead_to_ip() {
    let ip = ip4(1, 2, protocol::UDP, &udp(1, 2, b""));
    let sll = [&[0; 14][..], &[8, 0], &ip].concat();
    let sll2 = [&[8, 0][..], &[0; 18], &ip].concat();
    let little = [&[2, 0, 0, 0][..], &ip].concat();
    let big = [&[0, 0, 0, 2][..], &ip].concat();
    let macos6 = [
        &[30, 0, 0, 0][..],
        &ip6(1, 2, protocol::UDP, &udp(1, 2, b"")),
    ]
    .concat();
    for (link, packet, before) in [
        (LinkType::LINUX_SLL, &sll, 16),
        (LinkType::LINUX_SLL2, &sll2, 20),
        (LinkType::NULL, &little, 4),
        (LinkType::NULL, &big, 4),
        (LinkType::LOOP, &big, 4),
        (LinkType::RAW, &ip, 0),
        (LinkType::RAW_12, &ip, 0),
        (LinkType::IPV4, &ip, 0),
        (LinkType::NULL, &macos6, 4 + 20),
    ] {
        let headers = inner(link, packet);
        assert_eq!(headers.header_len, before + 28, "{link}");
        assert_eq!(ports(&headers), (1, 2), "{link}");
    }
    let unknown = inner(LinkType(147), &ip);
    assert!(unknown.key.is_none() && unknown.incomplete && unknown.header_len == 0);
}

/// What precedes IP, by link type, in the forms that are too rare in real captures.
#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn rare_link_types_lead_to_ip() {
    let ip = ip4(1, 2, protocol::UDP, &udp(1, 2, b"payload"));
    let llc = [0xaa, 0xaa, 3, 0, 0, 0, 8, 0];
    let data = |fc: [u8; 2], more: &[u8]| [&fc[..], &[0; 22], more, &llc].concat();
    let radiotap = |header: &[u8], frame: &[u8]| [header, frame].concat();
    let tap = [0, 0, 8, 0, 0, 0, 0, 0];
    // Flags after a second word of presence bits and TSFT: the header is padded.
    let tap_padded = [
        &[0, 0, 25, 0, 3, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0][..],
        &[0; 8],
        &[0x20],
    ]
    .concat();
    let amsdu_header = [&[0x80, 0][..], &[1; 6], &[2; 6], &[0, 43]].concat();
    let ppi = [&[0, 0, 8, 0, 105, 0, 0, 0][..], &data([8, 1], &[])].concat();
    let ppi_ethernet = [&[
        0, 0, 8, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0,
    ][..]]
    .concat();
    let avs = [
        &[0x80, 0x21, 0x10, 1, 0, 0, 0, 12, 0, 0, 0, 0][..],
        &data([8, 2], &[]),
    ]
    .concat();
    let prism = [
        &[0x44, 0, 0, 0, 16, 0, 0, 0][..],
        &[0; 8],
        &data([8, 2], &[]),
    ]
    .concat();
    let usual_prism = [&[0; 144][..], &data([8, 2], &[])].concat();
    let attribute = [5, 0, 10, 0, b'x', 0, 0, 0];
    let len = u16::try_from(ip.len() + 4).unwrap();
    let little = [&[2, 0, 0, 0][..], &attribute, &len.to_le_bytes(), &[9, 0]].concat();
    let big = [
        &[2, 0, 0, 0, 0, 5, 0, 10, b'x', 0, 0, 0][..],
        &len.to_be_bytes(),
        &[0, 9],
    ]
    .concat();
    for (name, link, before) in [
        ("PPP", LinkType::PPP, &[0xff, 3, 0, 0x21][..]),
        ("PPP without framing", LinkType::PPP, &[0, 0x21]),
        ("PPP, one byte of protocol", LinkType::PPP, &[0x21]),
        (
            "PPP, framing, one byte",
            LinkType::PPP_HDLC,
            &[0xff, 3, 0x21],
        ),
        (
            "PPP, MPLS",
            LinkType::PPP,
            &[0xff, 3, 2, 0x81, 0, 0, 0x11, 64],
        ),
        ("Cisco HDLC in PPP", LinkType::PPP_HDLC, &[0x0f, 0, 8, 0]),
        (
            "PPPoE",
            LinkType::PPP_ETHER,
            &[0x11, 0, 0, 1, 0, 37, 0, 0x21],
        ),
        ("Cisco HDLC", LinkType::C_HDLC, &[0x8f, 0, 8, 0]),
        ("frame relay", LinkType::FRELAY, &[0x18, 0x41, 3, 0xcc]),
        (
            "frame relay, 3 bytes",
            LinkType::FRELAY,
            &[0x18, 0x40, 1, 3, 0xcc],
        ),
        (
            "frame relay, 4 bytes",
            LinkType::FRELAY,
            &[0x18, 0x40, 0, 1, 3, 0xcc],
        ),
        (
            "frame relay, SNAP",
            LinkType::FRELAY,
            &[0x18, 0x41, 3, 0, 0x80, 0, 0, 0, 8, 0],
        ),
        (
            "frame relay, PPP",
            LinkType::FRELAY,
            &[0x18, 0x41, 3, 0xcf, 0, 0x21],
        ),
        ("frame relay, Cisco", LinkType::FRELAY, &[0x18, 0x41, 8, 0]),
        ("802.11", LinkType::IEEE802_11, &data([8, 1], &[])),
        (
            "802.11, four addresses",
            LinkType::IEEE802_11,
            &data([8, 3], &[0; 6]),
        ),
        (
            "802.11, QoS",
            LinkType::IEEE802_11,
            &data([0x88, 1], &[0; 2]),
        ),
        (
            "802.11, HT control",
            LinkType::IEEE802_11,
            &data([0x88, 0x83], &[0; 12]),
        ),
        (
            "802.11, A-MSDU",
            LinkType::IEEE802_11,
            &data([0x88, 1], &amsdu_header),
        ),
        (
            "radiotap",
            LinkType::IEEE802_11_RADIOTAP,
            &radiotap(&tap, &data([8, 1], &[])),
        ),
        (
            "radiotap, padded",
            LinkType::IEEE802_11_RADIOTAP,
            &radiotap(&tap_padded, &data([0x88, 1], &[0; 4])),
        ),
        ("PPI", LinkType::PPI, &ppi),
        ("PPI, Ethernet", LinkType::PPI, &ppi_ethernet),
        ("AVS", LinkType::IEEE802_11_AVS, &avs),
        ("AVS as Prism", LinkType::IEEE802_11_PRISM, &avs),
        ("Prism", LinkType::IEEE802_11_PRISM, &prism),
        (
            "Prism, the usual length",
            LinkType::IEEE802_11_PRISM,
            &usual_prism,
        ),
        ("NFLOG", LinkType::NFLOG, &little),
        ("NFLOG of a big-endian machine", LinkType::NFLOG, &big),
    ] {
        let packet = [before, &ip].concat();
        let headers = inner(link, &packet);
        assert_eq!(headers.header_len as usize, before.len() + 28, "{name}");
        assert_eq!(ports(&headers), (1, 2), "{name}");
        assert!(!headers.incomplete, "{name}");
        assert_eq!(headers.kept_header_len(1000), headers.header_len);
        for len in 0..packet.len() {
            let cut = inner(link, &packet[..len]);
            assert!(cut.header_len as usize <= len, "{name} cut at {len}");
            let inside_headers = len < headers.header_len as usize;
            assert!(cut.incomplete || !inside_headers, "{name} cut at {len}");
        }
    }
}

/// Attributes of a netfilter message are found in the same order of bytes, and end at the same place, however much
/// of it was captured.
#[test]
fn cut_netfilter_messages_have_the_same_headers() {
    let attribute = |len: u16, kind: u16, bytes: &[u8], big: bool| {
        let words = [len, kind].map(|word| {
            if big {
                word.to_be_bytes()
            } else {
                word.to_le_bytes()
            }
        });
        [&words.concat(), bytes].concat()
    };
    for big in [false, true] {
        // Seen from the other end, a length of 16.
        let long = attribute(
            0x1000,
            9,
            &[&ip4(1, 2, 17, &udp(1, 2, &[])), &[0; 500][..]].concat(),
            big,
        );
        for (name, attributes) in [
            ("payload first", long),
            (
                "an attribute of two bytes",
                attribute(2, 0x40, &[0; 4], big),
            ),
            ("an attribute of no bytes", attribute(0, 1, &[0; 4], big)),
            ("half an attribute", vec![8, 0, 1]),
        ] {
            let message = [&[2, 0, 0, 0][..], &attributes].concat();
            assert_cuts_agree(name, LinkType::NFLOG, &message);
        }
        let message = [
            &[2, 0, 0, 0][..],
            &attribute(0x1000, 9, &ip4(1, 2, 17, &udp(1, 2, &[])), big),
        ];
        let headers = inner(LinkType::NFLOG, &message.concat());
        assert_eq!((headers.header_len, ports(&headers)), (8 + 28, (1, 2)));
    }
}

/// A header that states fewer bytes than the words that state it is not a header, however much of it was
/// captured.
#[test]
fn a_prism_or_avs_header_cannot_be_shorter_than_its_length_field() {
    let prism = [0x41, 0, 0, 0, 7, 0, 0, 0];
    let avs = [0x80, 0x21, 0x10, 1, 0, 0, 0, 7];
    for (name, link, words) in [
        ("Prism", LinkType::IEEE802_11_PRISM, prism),
        ("AVS", LinkType::IEEE802_11_AVS, avs),
    ] {
        let frame = [&words[..], &[0; 40]].concat();
        assert_cuts_agree(name, link, &frame);
        assert_eq!(inner(link, &frame).header_len, 0, "{name}");
    }
}

/// Frames without a readable packet end with their own header, and belong to their stations.
#[test]
fn frames_of_802_11_without_a_readable_packet() {
    let stations = [&[0, 0][..], &[0xff; 6], &[2; 6], &[3; 6], &[0, 0]].concat();
    for (name, fc, len, has_stations) in [
        ("beacon", [0x80, 0], 24, true),
        ("acknowledgement", [0xd4, 0], 10, false),
        ("request to send", [0xb4, 0], 16, true),
        ("no data", [0x48, 1], 24, true),
        ("protected", [0x08, 0x41], 24, true),
        ("protected, QoS", [0x88, 0x41], 26, true),
    ] {
        let frame = [&fc[..], &stations, &[0x45; 100]].concat();
        let headers = inner(LinkType::IEEE802_11, &frame);
        assert_eq!(headers.header_len, len, "{name}");
        assert_eq!(headers.key.is_some(), has_stations, "{name}");
        assert!(headers.has_no_network() && !headers.incomplete, "{name}");
        assert_eq!(headers.kept_header_len(124), 64, "{name}");
        assert_eq!(headers.kept_header_len(30), 30, "{name}");
    }
    let mut fragment = [&[8, 1][..], &stations, &[0xaa; 100]].concat();
    fragment[22] = 1;
    assert_eq!(inner(LinkType::IEEE802_11, &fragment).header_len, 24);
    assert!(inner(LinkType::IEEE802_11, &[0x0c; 40]).incomplete);
}

#[test]
fn ipv6_extension_headers_and_fragments() {
    let segment = tcp(7, 8, b"data");
    let fragment = [&[protocol::TCP, 0, 0, 1, 0, 0, 0, 9][..], &segment].concat();
    let routing = [&[protocol::FRAGMENT, 0, 0, 0, 0, 0, 0, 0][..], &fragment].concat();
    let hop = [&[protocol::ROUTING, 1][..], &[0; 14], &routing].concat();
    let packet = ip6(3, 4, protocol::HOP_BY_HOP, &hop);
    let headers = inner(LinkType::IPV6, &packet);
    assert_eq!(headers.header_len, 40 + 16 + 8 + 8 + 20);
    assert_eq!(headers.key.unwrap().protocol, protocol::TCP);
    let first = Fragment {
        identification: 9,
        first: true,
    };
    assert_eq!(headers.fragment, Some(first));

    let later = [
        &[protocol::TCP, 0, 0x05, 0xa8, 0, 0, 0, 9][..],
        b"rest of the data",
    ]
    .concat();
    let headers = inner(LinkType::IPV6, &ip6(3, 4, protocol::FRAGMENT, &later));
    assert_eq!(headers.header_len, 48);
    assert_eq!(ports(&headers), (0, 0));
    assert_eq!(headers.key.unwrap().protocol, protocol::TCP);
    assert!(!headers.fragment.unwrap().first);
}

#[test]
fn tunnels_by_inner_and_outer_key() {
    let inside = ip4(100, 200, protocol::TCP, &tcp(80, 81, b"payload"));
    let frame = ethernet(ethertype::IPV4, &inside);
    let header = 20 + 20;
    let vxlan = udp(9, 4789, &[&[8, 0, 0, 0, 0, 0, 1, 0][..], &frame].concat());
    let geneve_header = [1, 0, 0x65, 0x58, 0, 0, 1, 0, 0, 0, 0, 0];
    let geneve = udp(9, 6081, &[&geneve_header[..], &frame].concat());
    let gtp_header = [0x34, 255, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0x85, 1, 0, 0, 0];
    let gtp = udp(2152, 9, &[&gtp_header[..], &inside].concat());
    let gre_key = [&[0x20, 0, 8, 0, 0, 0, 0, 5][..], &inside].concat();
    let gre_sequence = [0x10, 0, 0x88, 0xbe, 0, 0, 0, 1];
    let erspan_2 = [&gre_sequence[..], &[0x10; 8], &frame].concat();
    let erspan_1 = [&[0, 0, 0x88, 0xbe][..], &frame].concat();
    let gre_iii = [0x10, 0, 0x22, 0xeb, 0, 0, 0, 1];
    let erspan_3 = [&gre_iii[..], &[0x20; 10], &[0, 1], &[0; 8], &frame].concat();
    for (name, number, rest, tunnel) in [
        ("vxlan", protocol::UDP, &vxlan, 8 + 8 + 14),
        ("geneve", protocol::UDP, &geneve, 8 + 12 + 14),
        ("gtp-u", protocol::UDP, &gtp, 8 + 16),
        ("gre", protocol::GRE, &gre_key, 8),
        ("erspan II", protocol::GRE, &erspan_2, 16 + 14),
        ("erspan I", protocol::GRE, &erspan_1, 4 + 14),
        ("erspan III", protocol::GRE, &erspan_3, 8 + 20 + 14),
        ("ip in ip", protocol::IPV4, &inside, 0),
    ] {
        let packet = ip4(1, 2, number, rest);
        let by_inner = inner(LinkType::IPV4, &packet);
        assert_eq!(by_inner.header_len, 20 + tunnel + header, "{name}");
        assert_eq!(ports(&by_inner), (80, 81), "{name}");
        assert_eq!(by_inner.endpoints().0.address, 100, "{name}");
        assert_eq!(by_inner.outer.unwrap().low.address, 1, "{name}");
        assert_eq!(by_inner.tcp_flags, tcp_flag::SYN, "{name}");
        let by_outer = dissect(LinkType::IPV4, &packet, TunnelKey::Outer);
        assert_eq!(by_outer.header_len, by_inner.header_len, "{name}");
        assert_eq!(by_outer.endpoints().0.address, 1, "{name}");
        assert_eq!(by_outer.key.unwrap().protocol, number, "{name}");
        assert_eq!(by_outer.outer.unwrap().low.address, 100, "{name}");
        assert_eq!(by_outer.tcp_flags, 0, "{name}");
    }
}

/// RFC 5102 §5.10.1: header and payload of IP, not the link's header, tags and padding.
#[test]
fn an_ip_packet_has_the_bytes_that_it_says() {
    let bytes = |packet: &[u8], wire_len: usize| {
        let headers = inner(LinkType::ETHERNET, packet);
        headers.ip_bytes(packet, u32::try_from(wire_len).unwrap())
    };
    let ip = ip4(1, 2, protocol::UDP, &udp(53, 5353, b"payload"));
    let mut padded = ethernet(ethertype::IPV4, &ip);
    padded.resize(60, 0);
    assert_eq!(bytes(&padded, 60), Some(35));
    // Cut short after the headers.
    assert_eq!(bytes(&padded[..42], 60), Some(35));
    let tagged = [&[0, 7, 8, 0][..], &ip].concat();
    assert_eq!(bytes(&ethernet(ethertype::VLAN, &tagged), 53), Some(35));
    // The packet in a tunnel, not the tunnel.
    let tunnel = ethernet(ethertype::IPV4, &ip4(8, 9, protocol::IPV4, &ip));
    assert_eq!(bytes(&tunnel, tunnel.len()), Some(35));
    // A segment that is divided only after it was captured.
    let mut offloaded = ethernet(ethertype::IPV4, &ip);
    offloaded[16..18].fill(0);
    assert_eq!(bytes(&offloaded, 9014), Some(9000));
    let ip = ip6(1, 2, protocol::UDP, &udp(53, 5353, b"payload"));
    let mut padded = ethernet(ethertype::IPV6, &ip);
    padded.resize(80, 0);
    assert_eq!(bytes(&padded, 80), Some(55));
    padded[18..20].fill(0);
    assert_eq!(bytes(&padded, 70_014), Some(70_000), "a jumbogram");
    let mut empty = ethernet(ethertype::IPV6, &ip6(1, 2, 59, &[]));
    empty.resize(60, 0);
    assert_eq!(bytes(&empty, 60), Some(40));
    let arp = ethernet(ethertype::ARP, &[0; 28]);
    assert_eq!(bytes(&arp, 42), None);
}

#[test]
fn other_transports() {
    for (number, len) in [
        (protocol::ICMP, 8),
        (protocol::IGMP, 8),
        (protocol::ESP, 8),
        (protocol::SCTP, 12),
        (200, 0),
    ] {
        let headers = inner(LinkType::IPV4, &ip4(1, 2, number, &[0; 64]));
        assert_eq!(headers.header_len, 20 + len, "protocol {number}");
        assert_eq!(u32::from(headers.transport_len), len);
    }
    let sctp = [&[0, 5, 0, 6][..], &[0; 28]].concat();
    assert_eq!(
        ports(&inner(LinkType::IPV4, &ip4(1, 2, protocol::SCTP, &sctp))),
        (5, 6)
    );
    let ah = [&[protocol::UDP, 4][..], &[0; 22], &udp(3, 4, b"x")].concat();
    let headers = inner(LinkType::IPV4, &ip4(1, 2, protocol::AH, &ah));
    assert_eq!((headers.header_len, ports(&headers)), (20 + 24 + 8, (3, 4)));
}

#[test]
fn what_is_not_ip_belongs_to_its_macs() {
    let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1];
    arp.extend([0xaa; 6]);
    arp.extend([10, 0, 0, 1]);
    arp.extend([0xbb; 6]);
    arp.extend([10, 0, 0, 2]);
    arp.extend([0; 18]);
    let headers = inner(LinkType::ETHERNET, &ethernet(ethertype::ARP, &arp));
    assert_eq!(headers.header_len, 14 + 28);
    let key = headers.key.unwrap();
    assert_eq!(
        (key.family, key.low.port),
        (AddressFamily::Mac, ethertype::ARP)
    );
    assert_eq!(
        (key.low.address, key.high.address),
        (0x0200_0000_0001, 0x0200_0000_0002)
    );
    assert_eq!(headers.outer.unwrap().low.address, 0x0a00_0001);
    let rarp = inner(LinkType::ETHERNET, &ethernet(ethertype::RARP, &arp));
    assert_eq!(rarp.outer, headers.outer);
    let lldp = inner(LinkType::ETHERNET, &ethernet(0x88cc, &[1; 40]));
    assert_eq!((lldp.header_len, lldp.incomplete), (14, false));
    let stp = inner(LinkType::ETHERNET, &ethernet(38, &[0x42, 0x42, 3, 0, 0]));
    assert_eq!((stp.header_len, stp.incomplete), (17, false));
}

#[test]
fn trailers_and_lies_do_not_become_headers() {
    // Padding after a short UDP datagram whose ports suggest VXLAN.
    let padded = [ip4(1, 2, protocol::UDP, &udp(9, 4789, &[])), vec![8; 60]].concat();
    let headers = inner(LinkType::IPV4, &padded);
    assert_eq!(headers.header_len, 28);
    // A header length below 5 words, a data offset beyond the packet.
    let mut short = ip4(1, 2, protocol::TCP, &tcp(1, 2, b""));
    short[0] = 0x44;
    let headers = inner(LinkType::IPV4, &short);
    assert!(headers.incomplete && headers.key.is_none() && headers.header_len == 20);
    let mut long = tcp(1, 2, b"");
    long[12] = 0xf0;
    let headers = inner(LinkType::IPV4, &ip4(1, 2, protocol::TCP, &long));
    assert!(headers.incomplete);
    assert_eq!((headers.header_len, ports(&headers)), (40, (1, 2)));
}

/// What may carry what, for packets nested at random.
#[derive(Clone, Debug)]
enum Shell {
    TaggedVxlan,
    MplsInGre,
    Gre,
    Vxlan,
    Ip6Options,
}

/// Wraps an IPv4 packet in one more shell; the result is an IPv4 packet.
fn wrap(shell: &Shell, ip: &[u8]) -> Vec<u8> {
    let vxlan = |frame: &[u8], port: u16| {
        let payload = [&[8, 0, 0, 0, 0, 0, 0, 0][..], frame].concat();
        ip4(1, 2, protocol::UDP, &udp(1, port, &payload))
    };
    match shell {
        Shell::TaggedVxlan => {
            let tagged = [&[0, 1, 8, 0][..], ip].concat();
            vxlan(&ethernet(ethertype::VLAN, &tagged), 8472)
        }
        Shell::MplsInGre => {
            let labelled = [&[0, 0, 0x88, 0x47, 0, 0, 0x21, 1][..], ip].concat();
            ip4(5, 6, protocol::GRE, &labelled)
        }
        Shell::Gre => ip4(3, 4, protocol::GRE, &[&[0, 0, 8, 0][..], ip].concat()),
        Shell::Vxlan => vxlan(&ethernet(ethertype::IPV4, ip), 4789),
        Shell::Ip6Options => {
            let options = [&[protocol::IPV4, 0, 1, 4, 0, 0, 0, 0][..], ip].concat();
            let six = ip6(1, 2, protocol::DESTINATION_OPTIONS, &options);
            ip4(9, 9, protocol::IPV6, &six)
        }
    }
}

proptest! {
    /// However deep the nesting, headers end exactly where the payload starts, and the innermost
    /// ports are found; if cut anywhere, that is reported.
    #[test]
    fn nested_headers_end_where_the_payload_begins(
        shells in prop::collection::vec(
            prop_oneof![Just(Shell::TaggedVxlan), Just(Shell::MplsInGre), Just(Shell::Gre),
                        Just(Shell::Vxlan), Just(Shell::Ip6Options)], 0..8),
        source in any::<u16>(), destination in 10_000_u16..,
        payload in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let mut packet = ip4(100, 200, protocol::TCP, &tcp(source, destination, &payload));
        for shell in &shells {
            packet = wrap(shell, &packet);
        }
        let headers = inner(LinkType::IPV4, &packet);
        prop_assert_eq!(headers.header_len as usize, packet.len() - payload.len());
        prop_assert_eq!(ports(&headers), (source, destination));
        let sixes = shells.iter().filter(|s| matches!(s, Shell::Ip6Options)).count();
        prop_assert_eq!(usize::from(headers.networks), 1 + shells.len() + sixes);
        prop_assert!(!headers.incomplete);
        for len in 0..packet.len() {
            let cut = inner(LinkType::IPV4, &packet[..len]);
            prop_assert!(cut.header_len as usize <= len);
            let inside_headers = len < headers.header_len as usize;
            prop_assert!(cut.incomplete || !inside_headers, "cut at {}", len);
        }
    }

    #[test]
    fn no_bytes_lead_beyond_the_packet(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        link in prop::sample::select(vec![
            0, 1, 9, 10, 12, 50, 51, 101, 104, 105, 107, 108, 113, 119, 127, 163, 192, 228, 229, 239,
            276, 147,
        ]),
    ) {
        for tunnel_key in [TunnelKey::Inner, TunnelKey::Outer] {
            let headers = dissect(LinkType(link), &bytes, tunnel_key);
            prop_assert!(headers.header_len as usize <= bytes.len());
            prop_assert!(u32::from(headers.transport_len) <= headers.header_len);
        }
    }
}

/// SNAP of an organisation whose protocols are not read (here 01:00:00): its header ends at the
/// same place wherever the packet is cut after it.
#[test]
fn snap_of_any_organisation_is_header() {
    let mut packet = [0_u8; 34];
    packet[14..22].copy_from_slice(&[0xaa, 0xaa, 0x03, 1, 0, 0, 0, 7]);
    packet[12..14].copy_from_slice(&20_u16.to_be_bytes());
    for len in 22..=packet.len() {
        let headers = dissect(LinkType::ETHERNET, &packet[..len], TunnelKey::Inner);
        assert_eq!(headers.header_len, 22, "cut to {len}");
    }
    for len in 0..22 {
        let headers = dissect(LinkType::ETHERNET, &packet[..len], TunnelKey::Inner);
        assert!(headers.header_len as usize <= len && headers.incomplete);
    }
}
