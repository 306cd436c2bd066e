//! A table of packets: how many bytes of each are left, that no address is among them, and that bytes which are cut have
//! no influence.

use strata_anonymize::Left;
use strata_wire::LinkType;
use strata_wire::ethernet::ethertype::{
    ARP, IPV4, IPV6, MPLS, PPPOE_SESSION, QINQ_OLD, RARP, SERVICE_VLAN, TEB, VLAN,
};
use strata_wire::ipv4;

use crate::common::{
    HOSTS, HOSTS_6, MACS, anonymizer, beginning, fragment, frame, holds, ip, ip_6, tcp, udp,
};

/// Bytes that are never left: of payload, cookies, keys.
const SECRET: &[u8] = b"secret_secret_secret_secret_secret_secret_secret";

pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) link: LinkType,
    pub(crate) packet: Vec<u8>,
    /// Bytes that are left.
    len: usize,
}

fn arp(kind: [u8; 8]) -> Vec<u8> {
    let addresses = [&MACS[0][..], &HOSTS[0], &[0; 6], &HOSTS[1]].concat();
    [&kind[..], &addresses, SECRET].concat()
}

fn tagged(tags: &[u16], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut all = tags.to_vec();
    all.push(ethertype);
    let mut behind = Vec::new();
    for next in &all[1..] {
        behind.extend([0xe0, 0x07]);
        behind.extend(next.to_be_bytes());
    }
    behind.extend(payload);
    frame(all[0], &behind)
}

/// An IPv4 packet with these options.
fn with_options(options: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut packet = ip(17, &[options, payload].concat());
    packet[0] = 0x45 + u8::try_from(options.len() / 4).unwrap();
    packet
}

/// An extension header of IPv6 of this type of routing, or with these options.
fn extension(next: u8, content: &[u8]) -> Vec<u8> {
    let eights = u8::try_from((content.len() + 2) / 8 - 1).unwrap();
    [&[next, eights], content].concat()
}

fn sll(len: u16, address: [u8; 8], payload: &[u8]) -> Vec<u8> {
    let [high, low] = len.to_be_bytes();
    [&[0, 4, 0, 1, high, low], &address[..], &[8, 0], payload].concat()
}

fn sll2(hardware: u16, len: u8, address: [u8; 8], payload: &[u8]) -> Vec<u8> {
    let [high, low] = hardware.to_be_bytes();
    let before = [8, 0, 0x77, 0x77, 0, 0, 0, 3, high, low, 4, len];
    [&before[..], &address, payload].concat()
}

const fn mac_in_8() -> [u8; 8] {
    let [a, b, c, d, e, f] = MACS[0];
    [a, b, c, d, e, f, 0x5e, 0xc2]
}

/// As many packets as needed of IP in IP.
fn nested(levels: usize) -> Vec<u8> {
    (0..levels).fold(ip(17, &udp(9, SECRET)), |inner, _| ip(4, &inner))
}

#[expect(clippy::too_many_lines, reason = "a table")]
pub(crate) fn cases() -> Vec<Case> {
    let eth = LinkType::ETHERNET;
    let datagram = udp(53, SECRET);
    let plain = ip(17, &datagram);
    let plain_6 = ip_6(17, &datagram);
    let inner = frame(IPV4, &plain);
    let mptcp = [&[30, 12, 0, 0x81][..], &SECRET[..8], &[2, 4, 5, 0xb4]].concat();
    let fast_open = [&[34, 10][..], &SECRET[..8]].concat();
    let record_route = [
        &[7, 11, 12][..],
        &HOSTS[0],
        &HOSTS[1],
        &[0, 68, 8, 5, 0],
        &HOSTS[1],
        &[0; 4],
    ]
    .concat();
    let redirect = [&[5, 1, 0, 0], &HOSTS[1][..], &ip(17, SECRET)].concat();
    let solicitation = [
        &[135, 0, 0x12, 0x34, 0, 0, 0, 0][..],
        &HOSTS_6[1],
        &[1, 1],
        &MACS[0],
    ]
    .concat();
    let routing = extension(17, &[&[2, 1, 9, 9, 9, 9], &HOSTS_6[1][..]].concat());
    let home = extension(43, &[&[201, 16], &HOSTS_6[0][..], &[1, 2, 0, 0]].concat());
    let long = extension(17, &[7; 2_046]);
    let later = [17, 7, 0, 9, 0, 0, 0, 5].as_slice();
    let first = [17, 7, 0, 1, 0, 0, 0, 5].as_slice();
    let geneve = [
        &[2, 0, 0x65, 0x58, 0, 0, 9, 0, 1, 2, 3, 1][..],
        b"opti",
        &inner,
    ];
    let vxlan = |header: &[u8]| ip(17, &udp(4_789, &[header, &inner].concat()));
    let vni = [8, 0, 0, 0, 0, 0, 9, 0];
    let gre = [
        &[0xb0, 0, 8, 0, 1, 2, 0, 0, 0, 0, 0, 7, 0, 0, 0, 8],
        &plain[..],
    ]
    .concat();
    let gre_frame = [&[0x20, 0, 0x65, 0x58, 0, 0, 0, 7], &inner[..]].concat();
    let label = [0, 0, 0x10, 0x40];
    let bottom = [0, 0, 0x11, 0x40];
    // Frames over MPLS whose first byte is like that of IP.
    let wire = |first: u8| {
        let mut inner = inner.clone();
        inner[0] = first;
        frame(MPLS, &[&bottom[..], &inner].concat())
    };
    // The same with what would be the right checksum of an IPv4 header.
    let mut right = wire(0x46);
    right[36..38].fill(0);
    let sum = ipv4::checksum(&right[18..42]);
    right[36..38].copy_from_slice(&sum.to_be_bytes());
    let pppoe = |ppp: &[u8], packet: &[u8]| {
        let len = u16::try_from(ppp.len() + packet.len()).unwrap();
        let header = [&[0x11, 0, 0, 5][..], &len.to_be_bytes()].concat();
        [&header[..], ppp, packet].concat()
    };
    let spanning = [&[0x42, 0x42, 3, 0, 0, 0, 0, 0, 0x80, 0], &MACS[0][..]].concat();
    let case = |name, link, packet, len| Case {
        name,
        link,
        packet,
        len,
    };
    let ether =
        |name, kind, payload: &[u8], len: usize| case(name, eth, frame(kind, payload), 14 + len);
    let raw = |name, packet: Vec<u8>, len| case(name, LinkType::RAW, packet, len);
    vec![
        ether("ARP", ARP, &arp([0, 1, 8, 0, 6, 4, 0, 1]), 28),
        ether("RARP", RARP, &arp([0, 1, 8, 0, 6, 4, 0, 3]), 28),
        ether("ARP, other", ARP, &arp([0, 6, 8, 0, 6, 4, 0, 1]), 8),
        ether("length", 38, &spanning, 0),
        ether("unknown type", 0x88b5, SECRET, 0),
        ether("IPv4 and padding", IPV4, &[&plain, SECRET].concat(), 28),
        ether("IPv6 and padding", IPV6, &[&plain_6, SECRET].concat(), 48),
        ether("wrong version", IPV6, &plain, 0),
        case("tag", eth, tagged(&[VLAN], IPV4, &plain), 14 + 4 + 28),
        case(
            "all tags",
            eth,
            tagged(
                &[SERVICE_VLAN, VLAN, QINQ_OLD[0], QINQ_OLD[1]],
                IPV6,
                &plain_6,
            ),
            14 + 16 + 48,
        ),
        case("9 tags", eth, tagged(&[VLAN; 9], IPV4, &plain), 14 + 32),
        ether(
            "MPLS",
            MPLS,
            &[&label, &bottom, &plain[..]].concat(),
            8 + 28,
        ),
        ether("MPLS, v6", MPLS, &[&bottom, &plain_6[..]].concat(), 4 + 48),
        ether(
            "9 labels",
            MPLS,
            &[&[label; 9].concat(), &plain[..]].concat(),
            32,
        ),
        case("frame in MPLS", eth, wire(0x00), 14 + 4),
        case("frame in MPLS, 4", eth, wire(0x46), 14 + 4),
        case("frame in MPLS, right", eth, right, 14 + 4),
        case("frame in MPLS, 6", eth, wire(0x60), 14 + 4),
        ether("PPPoE", PPPOE_SESSION, &pppoe(&[0, 0x21], &plain), 8 + 28),
        ether(
            "PPPoE, LCP",
            PPPOE_SESSION,
            &pppoe(&[0xc0, 0x21], SECRET),
            8,
        ),
        ether("bridged frame without tunnel", TEB, &inner, 0),
        raw("IPv4", plain.clone(), 28),
        raw("IPv6", plain_6.clone(), 48),
        raw("no version", vec![0x55; 60], 0),
        raw("header too short", [&[0x44], &plain[1..]].concat(), 0),
        case("IPV4", LinkType::IPV4, plain.clone(), 28),
        case("IPV6", LinkType::IPV6, plain_6.clone(), 48),
        case("IPv4 as IPV6", LinkType::IPV6, plain.clone(), 0),
        case("RAW_12", LinkType::RAW_12, plain.clone(), 28),
        case("RAW_14", LinkType::RAW_14, plain_6.clone(), 48),
        case(
            "NULL",
            LinkType::NULL,
            [&[2, 0, 0, 0], &plain[..]].concat(),
            32,
        ),
        case(
            "NULL, v6",
            LinkType::NULL,
            [&[0, 0, 0, 30], &plain_6[..]].concat(),
            52,
        ),
        case(
            "NULL, other",
            LinkType::NULL,
            [&[7, 0, 0, 0], SECRET].concat(),
            0,
        ),
        case(
            "LOOP",
            LinkType::LOOP,
            [&[0, 0, 0, 24], &plain_6[..]].concat(),
            52,
        ),
        case(
            "LOOP, other order",
            LinkType::LOOP,
            [&[2, 0, 0, 0], &plain[..]].concat(),
            0,
        ),
        case(
            "SLL",
            LinkType::LINUX_SLL,
            sll(6, mac_in_8(), &plain),
            16 + 28,
        ),
        case(
            "SLL, 4",
            LinkType::LINUX_SLL,
            sll(4, mac_in_8(), &plain),
            16 + 28,
        ),
        case(
            "SLL2",
            LinkType::LINUX_SLL2,
            sll2(1, 6, mac_in_8(), &plain),
            20 + 28,
        ),
        case(
            "SLL2, netlink",
            LinkType::LINUX_SLL2,
            sll2(824, 0, [9; 8], &plain),
            20,
        ),
        case(
            "PPP",
            LinkType::PPP,
            [&[0xff, 3, 0, 0x21], &plain[..]].concat(),
            32,
        ),
        case(
            "PPP, short",
            LinkType::PPP,
            [&[0x57], &plain_6[..]].concat(),
            49,
        ),
        case(
            "PPP_ETHER",
            LinkType::PPP_ETHER,
            pppoe(&[0x21], &plain),
            7 + 28,
        ),
        raw("TCP", ip(6, &tcp(&[], SECRET)), 40),
        raw("MPTCP", ip(6, &tcp(&mptcp, SECRET)), 56),
        raw(
            "fast open",
            ip_6(6, &tcp(&[&fast_open[..], &[1, 1]].concat(), SECRET)),
            72,
        ),
        raw(
            "option beyond",
            ip(
                6,
                &tcp(&[[254, 40].as_slice(), &SECRET[..10]].concat(), SECRET),
            ),
            52,
        ),
        raw(
            "padded options",
            ip(6, &tcp(&[&[1, 1, 0][..], &SECRET[..9]].concat(), SECRET)),
            52,
        ),
        raw(
            "data offset 4",
            ip(
                6,
                &[&tcp(&[], &[])[..12], &[0x40], &tcp(&[], SECRET)[13..]].concat(),
            ),
            40,
        ),
        raw(
            "record route",
            with_options(&record_route, &datagram),
            20 + 24 + 8,
        ),
        raw("redirect", ip(1, &redirect), 28),
        raw(
            "unreachable",
            ip(1, &[&[3, 1, 0, 0, 0, 0, 0, 0], &plain[..]].concat()),
            28,
        ),
        raw(
            "echo",
            ip(1, &[&[8, 0, 0, 0, 0, 7, 0, 1], SECRET].concat()),
            28,
        ),
        raw("solicitation", ip_6(58, &solicitation), 48),
        raw("ICMPv6 in IPv4", ip(58, &solicitation), 20),
        raw("ICMP in IPv6", ip_6(1, &redirect), 40),
        raw(
            "routing",
            ip_6(43, &[&routing[..], &datagram].concat()),
            40 + 24 + 8,
        ),
        raw(
            "home address",
            ip_6(60, &[&home[..], &routing, &datagram].concat()),
            40 + 48 + 8,
        ),
        raw(
            "long options",
            ip_6(0, &[&long[..], &datagram].concat()),
            40 + 2_048 + 8,
        ),
        raw("later fragment", fragment(0x0009, 17, SECRET), 20),
        raw("first fragment", fragment(0x2000, 17, &datagram), 28),
        raw(
            "later fragment, v6",
            ip_6(44, &[later, SECRET].concat()),
            48,
        ),
        raw(
            "first fragment, v6",
            ip_6(44, &[first, &datagram].concat()),
            56,
        ),
        raw("ESP", ip_6(50, SECRET), 40),
        raw("AH", ip(51, SECRET), 20),
        raw("DCCP", ip(33, SECRET), 20),
        raw("IGMP", ip(2, &HOSTS[0]), 20),
        raw(
            "SCTP",
            ip(132, &[&[1, 2, 3, 4, 5, 6, 7, 8], SECRET].concat()),
            32,
        ),
        raw("IPIP", ip(4, &plain), 48),
        raw("6in4", ip(41, &plain_6), 68),
        raw("4 tunnels", nested(4), 108),
        raw("5 tunnels", nested(5), 100),
        raw("GRE", ip(47, &gre), 20 + 16 + 28),
        raw("GRE, Ethernet", ip(47, &gre_frame), 20 + 8 + 42),
        raw(
            "PPTP",
            ip(47, &[&[0x30, 0x81, 0x88, 0x0b], SECRET].concat()),
            24,
        ),
        raw(
            "ERSPAN",
            ip(47, &[&[0x10, 0, 0x88, 0xbe, 0, 0, 0, 1], SECRET].concat()),
            28,
        ),
        raw("VXLAN", vxlan(&vni), 28 + 8 + 42),
        raw(
            "VXLAN, group policy",
            vxlan(&[0x88, 0, 1, 1, 0, 0, 9, 0]),
            28,
        ),
        raw("no VXLAN", ip(17, &udp(4_789, SECRET)), 28),
        raw(
            "GENEVE",
            ip_6(17, &udp(6_081, &geneve.concat())),
            48 + 16 + 42,
        ),
        raw(
            "GTP-U",
            ip(
                17,
                &udp(
                    2_152,
                    &[&[0x30, 255, 0, 68, 0, 0, 0, 1], &plain[..]].concat(),
                ),
            ),
            28,
        ),
    ]
}

/// All that must not be found in the packets of the table.
fn secrets() -> Vec<&'static [u8]> {
    let mut secrets: Vec<&[u8]> = vec![&SECRET[..4], b"opti"];
    secrets.extend(MACS.iter().map(|mac| &mac[..]));
    // The first byte of that in MPLS is another one.
    secrets.push(&MACS[1][1..]);
    secrets.extend(HOSTS.iter().map(|host| &host[..]));
    secrets.extend(HOSTS_6.iter().map(|host| &host[..]));
    // Not even a part of it: addresses are replaced from their start.
    secrets.extend(HOSTS_6.iter().map(|host| &host[12..]));
    secrets
}

#[test]
fn what_is_understood_is_left_and_holds_no_address() {
    for case in cases() {
        let out = beginning(case.link, &case.packet);
        assert_eq!(out.len(), case.len, "{}: {out:02x?}", case.name);
        for secret in secrets() {
            assert!(!holds(&out, secret), "{}: {secret:02x?}", case.name);
        }
    }
}

#[test]
fn bytes_that_are_cut_have_no_influence() {
    for case in cases() {
        let out = beginning(case.link, &case.packet);
        for mask in [0x01, 0x80, 0xff] {
            let mut other = case.packet.clone();
            // Bytes behind the cut by which it is known that nothing more is understood.
            let decides = match case.name {
                "wrong version" | "IPv4 as IPV6" | "header too short" | "no VXLAN" => 20,
                "VXLAN, group policy" | "ARP, other" | "frame in MPLS" => 36,
                "frame in MPLS, 4" | "frame in MPLS, right" | "frame in MPLS, 6" | "5 tunnels" => {
                    40
                }
                "no version" | "NULL, other" | "LOOP, other order" | "GTP-U" => 8,
                _ => 0,
            };
            for byte in &mut other[(out.len() + decides).min(case.packet.len())..] {
                *byte ^= mask;
            }
            assert_eq!(beginning(case.link, &other), out, "{}", case.name);
        }
    }
}

#[test]
fn packets_cut_anywhere_hold_no_address() {
    for case in cases() {
        let whole = beginning(case.link, &case.packet);
        for len in 0..case.packet.len().min(400) {
            let out = beginning(case.link, &case.packet[..len]);
            assert!(out.len() <= len.min(whole.len()), "{} at {len}", case.name);
            // An address in the middle of which the packet ends is dropped, and no byte before it. Below labels, IP is
            // certain only with its whole header.
            let dropped = if case.name.starts_with("MPLS") {
                39
            } else {
                15
            };
            let least = len.min(whole.len()).saturating_sub(dropped);
            assert!(out.len() >= least, "{} at {len}", case.name);
            for secret in secrets() {
                assert!(!holds(&out, secret), "{} at {len}", case.name);
            }
        }
    }
}

#[test]
fn nothing_is_left_of_other_link_types() {
    let packet = frame(IPV4, &ip(17, &udp(53, SECRET)));
    for link in [
        LinkType::IEEE802_11,
        LinkType::C_HDLC,
        LinkType::NFLOG,
        LinkType(147),
    ] {
        let mut out = vec![7; 20];
        let left = anonymizer().packet(link, &packet, &mut out);
        assert_eq!((left, out), (Left::Nothing, vec![]), "{link}");
    }
}
