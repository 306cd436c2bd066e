//! What packets carry: pseudo-wires below MPLS labels, tunnels, transports beside TCP and UDP. Bytes are
//! those of the standards.

use proptest::prelude::*;
use strata_wire::dissect::{dissect, innermost_network, protocol};
use strata_wire::ethernet::ethertype;
use strata_wire::{AddressFamily, Headers, LinkType, TunnelKey};

use crate::common::{
    assert_cuts_agree, error, ethernet, inner, ip4, ip6, packet, packet_6, ports, udp,
};

fn frame(destination: [u8; 6], source: [u8; 6], kind: u16, rest: &[u8]) -> Vec<u8> {
    [&destination[..], &source, &kind.to_be_bytes(), rest].concat()
}

#[track_caller]
fn assert_is_tcp(name: &str, headers: &Headers, header_len: usize) {
    assert_eq!(headers.header_len as usize, header_len, "{name}");
    assert_eq!(ports(headers), (1234, 80), "{name}");
    assert!(!headers.incomplete, "{name}");
}

const LABELS: [u8; 8] = [0, 0x01, 0x00, 64, 0, 0x02, 0x01, 64];

fn labelled(rest: &[u8]) -> Vec<u8> {
    ethernet(ethertype::MPLS, &[&LABELS, rest].concat())
}

#[test]
fn below_labels_is_what_passes_its_checks() {
    let (ip, header) = packet();
    let (six, tag) = (packet_6(), [0, 7, 8, 0]);
    let arp = [&[0, 1, 8, 0, 6, 4, 0, 1][..], &[9; 20]].concat();
    let control = [0, 0, 0x12, 0x34];
    let link = LinkType::ETHERNET;
    let before = 14 + LABELS.len();
    for first in [
        0x00, 0x02, 0x08, 0x10, 0x40, 0x45, 0x4a, 0x60, 0x6c, 0xa8, 0xff,
    ] {
        // The second address looks like the rest of an IP header as far as it can.
        for mac in [[first, 0xbb, 0xcc, 0, 0, 0x0b], [first, 0, 0, 60, 0, 1]] {
            for source in [
                [2, 0, 0, 0, 0, 9],
                [0, 0, 0x40, 6, 0x12, 0x34],
                [0x40, 0, 64, 17, 0, 1],
            ] {
                let name = format!("{mac:02x?} from {source:02x?}");
                let plain = frame(mac, source, ethertype::IPV4, &ip);
                let found = inner(link, &labelled(&plain));
                assert_is_tcp(&name, &found, before + 14 + header);
                let found = inner(link, &labelled(&[&control[..], &plain].concat()));
                assert_is_tcp(&name, &found, before + 4 + 14 + header);
                let tagged = frame(mac, source, ethertype::VLAN, &[&tag[..], &ip].concat());
                let found = inner(link, &labelled(&tagged));
                assert_is_tcp(&name, &found, before + 18 + header);
                let found = inner(link, &labelled(&frame(mac, source, ethertype::IPV6, &six)));
                assert_is_tcp(&name, &found, before + 14 + 60);
                let found = inner(link, &labelled(&frame(mac, source, ethertype::ARP, &arp)));
                assert_eq!(found.header_len as usize, before + 14 + 28, "{name}");
                // Unknown content is not taken apart: the flow is that of the outer addresses.
                let unknown = labelled(&frame(mac, source, 0x9999, &[7; 60]));
                let found = inner(link, &unknown);
                assert_eq!(found.networks, 0, "{name}");
                let key = found.key.unwrap();
                assert_eq!(key.family, AddressFamily::Mac, "{name}");
                assert_eq!(key.low.address, 0x0200_0000_0001, "{name}");
                assert_eq!(found.header_len as usize, before, "{name}");
                assert_eq!(found.kept_header_len(1000), 64, "{name}");
                for packet in [&plain, &tagged, &unknown] {
                    assert_cuts_agree(&name, link, &labelled(packet));
                }
            }
        }
    }
    let channel = |kind: u8, ip: &[u8]| [&[0x10, 0, 0, kind][..], ip].concat();
    let mut offloaded = ip.clone();
    offloaded[10..12].fill(0);
    for (name, rest, len) in [
        ("IPv4", ip.clone(), header),
        ("IPv4 without its checksum", offloaded, header),
        ("IPv6", six.clone(), 60),
        ("a channel with IPv4", channel(0x21, &ip), 4 + header),
        ("a channel with IPv6", channel(0x57, &six), 64),
    ] {
        assert_is_tcp(name, &inner(link, &labelled(&rest)), before + len);
        assert_cuts_agree(name, link, &labelled(&rest));
    }
    // PPP and Cisco HDLC without a control word are not Ethernet.
    for start in [&[0xff, 3, 0, 0x21][..], &[0x0f, 0, 8, 0], &[0x10, 0, 0, 7]] {
        let found = inner(link, &labelled(&[start, &ip].concat()));
        assert_eq!((found.networks, found.header_len as usize), (0, before));
    }
}

#[test]
fn erspan_says_what_it_mirrors() {
    let (ip, header) = packet();
    let mirrored = ethernet(ethertype::IPV4, &ip);
    let iii = |gre: &[u8], version: u8, last: u16, rest: &[u8]| {
        let fixed = [&[version << 4, 5][..], &[0; 8], &last.to_be_bytes()].concat();
        ip4(1, 2, protocol::GRE, &[gre, &fixed, rest].concat())
    };
    let sequenced = [0x10, 0, 0x22, 0xeb, 0, 0, 0, 1];
    let sub_ip = [&[7; 8][..], &ip].concat();
    let sub_frame = [&[7; 8][..], &mirrored].concat();
    let bare = [0, 0, 0x22, 0xeb];
    for (name, packet, before) in [
        ("a frame", iii(&sequenced, 2, 0, &mirrored), 8 + 12 + 14),
        ("IP", iii(&sequenced, 2, 2 << 10, &ip), 8 + 12),
        (
            "IP, subheader",
            iii(&sequenced, 2, 2 << 10 | 1, &sub_ip),
            8 + 20,
        ),
        (
            "a frame, subheader",
            iii(&bare, 2, 1, &sub_frame),
            4 + 20 + 14,
        ),
        ("IP, all other bits", iii(&bare, 2, 0x8bfe, &ip), 4 + 12),
    ] {
        assert_is_tcp(name, &inner(LinkType::IPV4, &packet), 20 + before + header);
        assert_cuts_agree(name, LinkType::IPV4, &packet);
    }
    let ii = |first: u8| {
        let gre = [
            &[0x10, 0, 0x88, 0xbe, 0, 0, 0, 1, first][..],
            &[0; 7],
            &mirrored,
        ]
        .concat();
        ip4(1, 2, protocol::GRE, &gre)
    };
    for (name, packet, len) in [
        (
            "infrared",
            iii(&sequenced, 2, 7 << 10, &mirrored),
            20 + 8 + 12,
        ),
        ("another version", iii(&sequenced, 3, 0, &mirrored), 20 + 8),
        ("type II of another version", ii(0x70), 20 + 8),
    ] {
        let found = inner(LinkType::IPV4, &packet);
        assert_eq!((found.networks, found.header_len), (1, len), "{name}");
        assert!(!found.incomplete, "{name}");
        assert_cuts_agree(name, LinkType::IPV4, &packet);
    }
    let found = inner(LinkType::IPV4, &ii(0x10));
    assert_is_tcp("type II", &found, 20 + 16 + 14 + header);
}

#[test]
fn tunnels_in_udp_are_found_by_their_ports() {
    let (ip, header) = packet();
    let (six, mirrored) = (packet_6(), ethernet(ethertype::IPV4, &ip));
    let gpe =
        |flags: u8, next: u8, rest: &[u8]| [&[flags, 0, 0, next, 0, 0, 9, 0][..], rest].concat();
    // Version, TTL 63, length 6 or 2; MD type; next protocol; service path; context.
    let nsh_1 =
        |next: u8, rest: &[u8]| [&[0x0f, 0xc6, 1, next, 0, 0, 1, 255][..], &[3; 16], rest].concat();
    let nsh_2 = |next: u8, rest: &[u8]| [&[0x0f, 0xc2, 2, next, 0, 0, 1, 255][..], rest].concat();
    let label = |rest: &[u8]| [&[0, 1, 1, 64][..], rest].concat();
    let origin = [&[0, 0, 1, 2, 3, 4, 5, 6][..], &six].concat();
    let secured = [&[0, 1, 2, 3][..], &[9; 5], &[7; 8], &[0], &origin].concat();
    let trailers = [&six[..], &[1, 4, 0, 0, 0, 0]].concat();
    let geneve = |kind: u16, rest: &[u8]| {
        let [high, low] = kind.to_be_bytes();
        [&[1, 0x40, high, low, 0, 0, 9, 0, 1, 2, 0x80, 0][..], rest].concat()
    };
    for (name, (source, destination), payload, before) in [
        ("GPE, IPv4", (9, 4790), gpe(0x0c, 1, &ip), 8),
        ("GPE, IPv6", (9, 4790), gpe(0x0c, 2, &six), 8 + 20),
        ("GPE, Ethernet", (9, 4790), gpe(0x0c, 3, &mirrored), 8 + 14),
        ("GPE, as VXLAN", (9, 4790), gpe(0x08, 0, &mirrored), 8 + 14),
        ("GPE, MPLS", (9, 4790), gpe(0x0c, 5, &label(&ip)), 8 + 4),
        (
            "GPE, NSH",
            (9, 4790),
            gpe(0x0c, 4, &nsh_1(3, &mirrored)),
            8 + 24 + 14,
        ),
        (
            "GPE, two NSH",
            (9, 4790),
            gpe(0x0c, 4, &nsh_2(4, &nsh_2(2, &six))),
            8 + 16 + 20,
        ),
        ("GRE", (9, 4754), [&[0, 0, 8, 0][..], &ip].concat(), 4),
        (
            "GRE, key",
            (9, 4754),
            [&[0x20, 0, 0x65, 0x58, 0, 0, 0, 1][..], &mirrored].concat(),
            8 + 14,
        ),
        (
            "GRE, NSH",
            (9, 4754),
            [&[0, 0, 0x89, 0x4f][..], &nsh_1(1, &ip)].concat(),
            4 + 24,
        ),
        ("MPLS", (9, 6635), label(&ip), 4),
        ("MPLS, Ethernet", (9, 6635), label(&mirrored), 4 + 14),
        ("Teredo", (9, 3544), six.clone(), 20),
        ("Teredo, from the server", (3544, 9), origin.clone(), 8 + 20),
        ("Teredo, authentication", (9, 3544), secured, 18 + 8 + 20),
        ("Teredo, trailers", (9, 3544), trailers, 20),
        ("GENEVE, IPv4", (9, 6081), geneve(ethertype::IPV4, &ip), 12),
        (
            "GENEVE, Ethernet",
            (9, 6081),
            geneve(ethertype::TEB, &mirrored),
            12 + 14,
        ),
        (
            "GENEVE, NSH",
            (9, 6081),
            geneve(ethertype::NSH, &nsh_2(1, &ip)),
            12 + 8,
        ),
    ] {
        let datagram = udp(source, destination, &payload);
        for packet in [
            ip4(1, 2, protocol::UDP, &datagram),
            ip6(1, 2, protocol::UDP, &datagram),
        ] {
            let fixed = if packet[0] >> 4 == 4 { 20 } else { 40 };
            let found = inner(LinkType::RAW, &packet);
            assert_is_tcp(name, &found, fixed + 8 + before + header);
            assert_eq!(found.networks, 2, "{name}");
            assert_cuts_agree(name, LinkType::RAW, &packet);
            let (at, version) = innermost_network(LinkType::RAW, &packet).unwrap();
            assert_eq!(packet[at] >> 4, version, "{name}");
            let network_len = if version == 4 { 20 } else { 40 };
            assert_eq!(at + network_len + 20, found.header_len as usize, "{name}");
        }
        let framed = ethernet(ethertype::IPV4, &ip4(1, 2, protocol::UDP, &datagram));
        let found = inner(LinkType::ETHERNET, &framed);
        assert_is_tcp(name, &found, 14 + 28 + before + header);
    }
}

/// Other traffic has these ports by chance, and ports of sources are no ports of tunnels.
#[test]
fn what_is_not_the_tunnel_of_its_port_is_plain_udp() {
    let (ip, _) = packet();
    let (six, mirrored) = (packet_6(), ethernet(ethertype::IPV4, &ip));
    let long = u16::try_from(six.len()).unwrap();
    let mut too_long = six.clone();
    too_long[4..6].copy_from_slice(&long.to_be_bytes());
    let answer =
        b"\x12\x34\x81\x80\x00\x01\x00\x01\x00\x00\x00\x00\x07example\x03com\x00\x00\x01".to_vec();
    for (name, (source, destination), payload) in [
        (
            "GPE of version 1",
            (9, 4790),
            [&[0x1c, 0, 0, 3, 0, 0, 9, 0][..], &mirrored].concat(),
        ),
        (
            "GPE without flags",
            (9, 4790),
            [&[0, 0, 0, 3, 0, 0, 9, 0][..], &mirrored].concat(),
        ),
        (
            "GRE of version 1",
            (9, 4754),
            [&[0, 1, 8, 0][..], &ip].concat(),
        ),
        (
            "GRE, unknown",
            (9, 4754),
            [&[0, 0, 0x99, 0x99][..], &ip].concat(),
        ),
        (
            "GRE, reserved bits",
            (9, 4754),
            [&[0, 8, 8, 0][..], &ip].concat(),
        ),
        ("no bottom", (9, 6635), vec![0; 90]),
        ("no known payload", (9, 6635), vec![0x11; 90]),
        ("Teredo, IPv4", (9, 3544), ip.clone()),
        ("Teredo, too long", (9, 3544), too_long),
        ("DNS to 3544", (53, 3544), answer.clone()),
        ("DNS to 4754", (53, 4754), answer.clone()),
        ("DNS to 6635", (53, 6635), answer),
        (
            "GRE, the other way",
            (4754, 9),
            [&[0, 0, 8, 0][..], &ip].concat(),
        ),
        (
            "MPLS, the other way",
            (6635, 9),
            [&[0, 1, 1, 64][..], &ip].concat(),
        ),
    ] {
        let packet = ip4(1, 2, protocol::UDP, &udp(source, destination, &payload));
        let found = inner(LinkType::IPV4, &packet);
        assert_eq!((found.networks, found.header_len), (1, 28), "{name}");
        assert!(!found.incomplete, "{name}");
        assert_eq!(ports(&found), (source, destination), "{name}");
        assert_cuts_agree(name, LinkType::IPV4, &packet);
    }
    let next = |next: u8| [&[0x0c, 0, 0, next, 0, 0, 9, 0][..], &mirrored].concat();
    let packet = ip4(1, 2, protocol::UDP, &udp(9, 4790, &next(0x7e)));
    let found = inner(LinkType::IPV4, &packet);
    assert_eq!((found.networks, found.header_len), (1, 36));
}

#[test]
fn nsh_is_found_by_its_ethertype() {
    let (ip, header) = packet();
    for (nsh, len) in [
        ([&[0x0f, 0xc6, 1, 1][..], &[0; 20]].concat(), 24),
        ([&[0x2f, 0xc5, 2, 1][..], &[0; 16]].concat(), 20),
    ] {
        let packet = ethernet(ethertype::NSH, &[&nsh[..], &ip].concat());
        assert_is_tcp(
            "NSH",
            &inner(LinkType::ETHERNET, &packet),
            14 + len + header,
        );
        assert_cuts_agree("NSH", LinkType::ETHERNET, &packet);
    }
    for (name, nsh) in [
        ("version 1", [0x4f, 0xc6, 1, 1]),
        ("too short", [0x0f, 0xc1, 1, 1]),
    ] {
        let packet = ethernet(ethertype::NSH, &[&nsh[..], &[0; 20], &ip].concat());
        let found = inner(LinkType::ETHERNET, &packet);
        assert!(found.incomplete && found.networks == 0, "{name}");
        assert_cuts_agree(name, LinkType::ETHERNET, &packet);
    }
}

#[test]
fn dccp_and_udp_lite_have_ports() {
    // RFC 4340 §5.1: a request with long sequence numbers, service code, an option; short ones.
    let request = [
        &[0x13, 0x88, 0x17, 0x70, 6, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 7][..],
        &[0, 0, 0, 42, 1, 1, 1, 0],
        b"payload",
    ]
    .concat();
    let data = [
        &[0x13, 0x88, 0x17, 0x70, 3, 0, 0, 0, 4, 0, 0, 7][..],
        b"payload",
    ]
    .concat();
    let lite = [&[0x13, 0x88, 0x17, 0x70, 0, 8, 0, 0][..], b"payload"].concat();
    for (name, number, bytes, len) in [
        ("a request", protocol::DCCP, &request, 24),
        ("data", protocol::DCCP, &data, 12),
        ("UDP-Lite", protocol::UDP_LITE, &lite, 8),
    ] {
        for (packet, before) in [
            (ip4(1, 2, number, bytes), 20),
            (ip6(1, 2, number, bytes), 40),
        ] {
            let found = inner(LinkType::RAW, &packet);
            assert_eq!(found.header_len, before + len, "{name}");
            assert_eq!(u32::from(found.transport_len), len, "{name}");
            assert_eq!(ports(&found), (5000, 6000), "{name}");
            assert_eq!(found.key.unwrap().protocol, number, "{name}");
            assert!(!found.incomplete, "{name}");
            assert_cuts_agree(name, LinkType::RAW, &packet);
        }
    }
    let mut short = request;
    short[4] = 3;
    let found = inner(LinkType::IPV4, &ip4(1, 2, protocol::DCCP, &short));
    assert!(found.incomplete && found.header_len == 36, "{found:?}");
}

#[test]
fn fddi_is_looked_into() {
    let (ip, header) = packet();
    let macs = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    let llc = [0xaa, 0xaa, 3, 0, 0, 0, 8, 0];
    for control in [0x50, 0x57, 0xd0] {
        let packet = [&[control][..], &macs, &llc, &ip].concat();
        assert_is_tcp("FDDI", &inner(LinkType::FDDI, &packet), 13 + 8 + header);
        assert_cuts_agree("FDDI", LinkType::FDDI, &packet);
    }
    let ring = [&[0x41][..], &macs, &llc, &ip].concat();
    let found = inner(LinkType::FDDI, &ring);
    assert_eq!(
        (found.header_len, found.networks, found.incomplete),
        (13, 0, false)
    );
    assert_eq!(found.key.unwrap().low.address, 0x0200_0000_0001);
    let by_outer = dissect(LinkType::FDDI, &ring, TunnelKey::Outer);
    assert_eq!(by_outer, found);
}

/// Ethernet with a packet of each kind in it.
fn samples() -> Vec<Vec<u8>> {
    let (ip, _) = packet();
    let (six, mirrored) = (packet_6(), ethernet(ethertype::IPV4, &ip));
    let gre = |kind: [u8; 2], rest: &[u8]| [&[0x10, 0][..], &kind, &[0, 0, 0, 1], rest].concat();
    let iii = [&[0x20, 5][..], &[0; 8], &[8, 1], &[0; 8], &ip].concat();
    let nsh = [&[0x0f, 0xc2, 2, 3, 0, 0, 1, 255][..], &mirrored].concat();
    let gpe = [&[0x0c, 0, 0, 4, 0, 0, 9, 0][..], &nsh].concat();
    let label = [&[0, 1, 1, 64][..], &mirrored].concat();
    let secured = [&[0, 1, 0, 0][..], &[0; 9], &[0, 0, 1, 2, 3, 4, 5, 6], &six].concat();
    let redirect = [
        &[0; 32][..],
        &[2, 1, 2, 0, 0, 0, 0, 1, 4, 10, 0, 0, 0, 0, 0, 0],
        &six,
    ]
    .concat();
    let dccp = [&[0, 5, 0, 6, 6, 0, 0, 0, 1][..], &[0; 40]].concat();
    let six_of = |number: u8, rest: &[u8]| ethernet(ethertype::IPV6, &ip6(1, 2, number, rest));
    let four_of = |number: u8, rest: &[u8]| ethernet(ethertype::IPV4, &ip4(1, 2, number, rest));
    vec![
        labelled(&mirrored),
        labelled(&[&[0; 4][..], &mirrored].concat()),
        labelled(&ip),
        labelled(&six),
        four_of(protocol::GRE, &gre([0x22, 0xeb], &iii)),
        four_of(
            protocol::GRE,
            &gre([0x88, 0xbe], &[&[0x10; 8][..], &mirrored].concat()),
        ),
        ethernet(ethertype::NSH, &nsh),
        four_of(protocol::UDP, &udp(9, 4790, &gpe)),
        six_of(
            protocol::UDP,
            &udp(9, 4754, &[&[0, 0, 8, 0][..], &ip].concat()),
        ),
        four_of(protocol::UDP, &udp(9, 6635, &label)),
        four_of(protocol::UDP, &udp(3544, 9, &secured)),
        four_of(protocol::DCCP, &dccp),
        four_of(protocol::ICMP, &error(11, [0, 32, 0, 0], &ip)),
        six_of(protocol::ICMPV6, &error(1, [0; 4], &six)),
        six_of(protocol::ICMPV6, &error(137, [0; 4], &redirect)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Whatever some bytes are changed to: a cut behind the headers changes nothing, one within them
    /// finds no more addresses, and the outer flow's headers are the same ones.
    #[test]
    fn cuts_agree_whatever_is_carried(
        sample in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut packet = sample.get(&samples()).clone();
        for (index, value) in changes {
            *index.get_mut(&mut packet) = value;
        }
        let whole = inner(LinkType::ETHERNET, &packet);
        for len in 0..=packet.len() {
            let mut cut = inner(LinkType::ETHERNET, &packet[..len]);
            prop_assert!(cut.header_len as usize <= len && cut.networks <= whole.networks);
            if len >= whole.header_len as usize {
                prop_assert!(cut.incomplete >= whole.incomplete);
                cut.incomplete = whole.incomplete;
                prop_assert_eq!(cut, whole, "cut at {}", len);
            }
        }
        let outer = dissect(LinkType::ETHERNET, &packet, TunnelKey::Outer);
        prop_assert_eq!(
            (outer.header_len, outer.transport_len, outer.networks, outer.incomplete),
            (whole.header_len, whole.transport_len, whole.networks, whole.incomplete)
        );
    }
}
