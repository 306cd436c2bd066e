//! What is in headers afterwards, byte by byte, and their checksums.

use strata_wire::LinkType;
use strata_wire::checksum::Sum;
use strata_wire::ethernet::ethertype::{ARP, IPV4, VLAN};

use crate::common::{
    HOSTS, HOSTS_6, MACS, beginning, fragment, frame, host, host_6, ip, ip_6, mac, sum, tcp, udp,
    with_checksum,
};

fn raw(packet: &[u8]) -> Vec<u8> {
    beginning(LinkType::RAW, packet)
}

#[test]
fn addresses_are_replaced_where_they_are_and_all_else_stays() {
    let packet = frame(
        VLAN,
        &[&[0xe0, 7, 8, 0], &ip(17, &udp(53, b"x"))[..]].concat(),
    );
    let out = beginning(LinkType::ETHERNET, &packet);
    assert_eq!(out[..6], mac(MACS[1]));
    assert_eq!(out[6..12], mac(MACS[0]));
    assert_eq!(out[12..28], packet[12..28]);
    assert_eq!(Sum::over(&out[18..38]), 0xffff);
    assert_eq!(out[30..34], host(HOSTS[0]));
    assert_eq!(out[34..38], host(HOSTS[1]));
    assert_eq!(out[38..46], [16, 146, 0, 53, 0, 9, 0, 0]);

    let head = [0, 1, 8, 0, 6, 4, 0, 2];
    let arp = [&head[..], &MACS[0], &HOSTS[0], &MACS[1], &HOSTS[1]].concat();
    let out = beginning(LinkType::ETHERNET, &frame(ARP, &arp));
    let ends = [mac(MACS[0]), mac(MACS[1])];
    let expected = [
        &head[..],
        &ends[0],
        &host(HOSTS[0]),
        &ends[1],
        &host(HOSTS[1]),
    ];
    assert_eq!(out[14..], expected.concat());

    let packet = ip_6(6, &tcp(&[], b"x"));
    let out = raw(&packet);
    let expected = [&packet[..8], &host_6(HOSTS_6[0]), &host_6(HOSTS_6[1])];
    assert_eq!(out[..40], expected.concat());
    assert_eq!(out[40..56], packet[40..56]);
    assert_eq!(out[56..], [0, 0, 0, 9]);
}

#[test]
fn ip_checksums_are_right_if_they_were() {
    let mut packet = ip(17, &udp(53, b"x"));
    assert_eq!(Sum::over(&raw(&packet)[..20]), 0xffff);
    packet[10] ^= 1;
    assert_eq!(raw(&packet)[10..12], [0, 0]);
    packet[10..12].fill(0);
    assert_eq!(raw(&packet)[10..12], [0, 0]);
    // Cut before its end, it cannot be checked.
    let packet = ip(17, &[]);
    assert_eq!(
        raw(&packet[..19])[10..],
        [
            [0, 0],
            host(HOSTS[0])[..2].try_into().unwrap(),
            host(HOSTS[0])[2..].try_into().unwrap()
        ]
        .concat()
    );

    let mut with_options = ip(6, &[&[7, 7, 4][..], &HOSTS[0], &[0]].concat());
    with_options[0] = 0x47;
    with_options[10..12].fill(0);
    let right = !Sum::over(&with_options[..28]);
    with_options[10..12].copy_from_slice(&right.to_be_bytes());
    let out = raw(&with_options);
    assert_eq!((Sum::over(&out), &out[20..]), (0xffff, &[1; 8][..]));
}

#[test]
fn a_checksum_is_computed_anew_only_if_all_that_it_covers_is_left() {
    let echo = [8, 0, 0, 0, 0, 7, 0, 1];
    let echo_6 = [128, 0, 0, 0, 0, 7, 0, 1];
    let mptcp = [30, 8, 1, 2, 3, 4, 5, 6];
    let padding = [[17, 0, 5, 2, 0, 0, 1, 0].as_slice(), &udp(9, &[])].concat();
    type Row = (Vec<u8>, usize, usize, Option<u8>);
    let rows: [Row; 7] = [
        (ip(6, &tcp(&mptcp, &[])), 20, 16, Some(6)),
        (ip_6(6, &tcp(&[], &[])), 40, 16, Some(6)),
        (ip(17, &udp(53, &[])), 20, 6, Some(17)),
        (ip_6(17, &udp(53, &[])), 40, 6, Some(17)),
        (ip(1, &echo), 20, 2, None),
        (ip_6(58, &echo_6), 40, 2, Some(58)),
        // Router alert before it.
        (ip_6(0, &padding), 48, 6, Some(17)),
    ];
    for (packet, at, field, pseudo) in rows {
        let name = format!("{packet:02x?}");
        let field_at = at + field..at + field + 2;
        let right = with_checksum(packet, at, field, pseudo);
        assert_eq!(sum(&right, at, pseudo), 0xffff, "{name}");
        let out = raw(&right);
        assert_eq!(out.len(), right.len(), "{name}");
        assert_eq!(sum(&out, at, pseudo), 0xffff, "{name}");
        // Without a pseudo-header, it says nothing of the addresses.
        let is_same = out[field_at.clone()] == right[field_at.clone()];
        assert_eq!(is_same, pseudo.is_none(), "{name}");

        // Wrong; the datagram has another byte; it is cut.
        let mut wrong = right.clone();
        wrong[field_at.start] ^= 0x40;
        assert_eq!(raw(&wrong)[field_at.clone()], [0, 0], "{name}");
        let cut = raw(&right[..right.len() - 1]);
        assert!(
            cut[field_at.start..].iter().take(2).all(|byte| *byte == 0),
            "{name}"
        );
        let mut longer = right.clone();
        longer.push(0);
        let stated = if longer[0] >> 4 == 4 { 3 } else { 5 };
        longer[stated] += 1;
        let longer = with_checksum(longer, at, field, pseudo);
        assert_eq!(raw(&longer)[field_at.clone()], [0, 0], "{name}");
        // Padding of the frame is not of the datagram.
        let out = raw(&[&right[..], &[0; 9]].concat());
        assert_eq!(sum(&out, at, pseudo), 0xffff, "{name}");
    }
    // Its other fragments are covered too.
    let mut first = fragment(0x2000, 17, &udp(53, &[]));
    first = with_checksum(first, 20, 6, Some(17));
    assert_eq!(raw(&first)[26..], [0, 0]);
}

#[test]
fn options_of_tcp_that_are_known_are_kept() {
    let kept = [
        &[2, 4, 5, 0xb4, 1, 3, 3, 7, 4, 2][..],
        &[8, 10, 1, 2, 3, 4, 5, 6, 7, 8],
        &[5, 10, 8, 7, 6, 5, 4, 3, 2, 1],
        &[0, 0],
    ]
    .concat();
    let out = raw(&ip(6, &tcp(&kept, b"x")));
    assert_eq!(out[40..], kept);
    // Signature; a known option of another length; one without length; what follows the end.
    for (option, expected) in [
        (
            &[19, 6, 1, 2, 3, 4, 4, 2][..],
            &[1, 1, 1, 1, 1, 1, 4, 2][..],
        ),
        (&[2, 6, 1, 2, 3, 4, 4, 2], &[1, 1, 1, 1, 1, 1, 4, 2]),
        (&[1, 9, 0, 4, 2, 9, 9, 9], &[1; 8]),
        (&[1, 0, 9, 9, 9, 9, 9, 9], &[1, 0, 0, 0, 0, 0, 0, 0]),
        (&[1, 1, 1, 9, 9, 9, 9, 9], &[1; 8]),
    ] {
        let out = raw(&ip(6, &tcp(option, b"x")));
        assert_eq!(&out[40..], expected, "{option:?}");
    }
}

#[test]
fn icmp_keeps_what_is_no_address() {
    let rest = [9, 8, 7, 6];
    let behind = |version: u8, kind: u8, code: u8| {
        let message = [&[kind, code, 1, 2], &rest[..], b"behind"].concat();
        let (packet, at) = match version {
            4 => (ip(1, &message), 20),
            _ => (ip_6(58, &message), 40),
        };
        let out = raw(&packet);
        assert_eq!(out[at..at + 4], [kind, code, 0, 0]);
        out[at + 4..].to_vec()
    };
    for (kind, code) in [(0, 0), (8, 0), (13, 0), (14, 0), (3, 4), (11, 0)] {
        assert_eq!(behind(4, kind, code), rest, "{kind}, {code}");
    }
    for (kind, code) in [(3, 1), (4, 0), (5, 0), (9, 0), (12, 0), (15, 0), (40, 0)] {
        assert_eq!(behind(4, kind, code), [0; 4], "{kind}, {code}");
    }
    for kind in [2, 3, 128, 129] {
        assert_eq!(behind(6, kind, 0), rest, "{kind}");
    }
    for kind in [1, 4, 130, 133, 134, 135, 136, 137, 143] {
        assert_eq!(behind(6, kind, 0), [0; 4], "{kind}");
    }
}

#[test]
fn extension_headers_of_ipv6_keep_their_form() {
    let datagram = udp(9, b"x");
    let options = [
        &[43, 2, 1, 4, 9, 9, 9, 9, 5, 2, 0, 0][..],
        &[1, 10],
        &[9; 10],
    ]
    .concat();
    let routing = [&[44, 2, 4, 1, 0, 9, 9, 9], &HOSTS_6[1][..]].concat();
    let fragment = [17, 0, 0, 1, 1, 2, 3, 4];
    let packet = ip_6(0, &[&options[..], &routing, &fragment, &datagram].concat());
    let out = raw(&packet);
    let mut expected = vec![43, 2, 1, 20];
    expected.extend([0; 20]);
    expected.extend([44, 2, 4, 1]);
    expected.extend([0; 20]);
    expected.extend(fragment);
    expected.extend([16, 146, 0, 9, 0, 9, 0, 0]);
    assert_eq!(out[40..], expected);

    let long = [&[17, 255], &[9; 2_046][..], &datagram].concat();
    let out = raw(&ip_6(60, &long));
    let mut at = 42;
    while at < 42 + 2_046 {
        let len = usize::from(out[at + 1]);
        assert_eq!(out[at], 1);
        assert!(out[at + 2..at + 2 + len].iter().all(|byte| *byte == 0));
        at += 2 + len;
    }
    assert_eq!(out[at..], [16, 146, 0, 9, 0, 9, 0, 0]);
}

#[test]
fn tunnels_keep_their_numbers_and_lose_their_options() {
    let inner = frame(IPV4, &ip(17, &udp(53, b"x")));
    let clean = beginning(LinkType::ETHERNET, &inner);
    let vxlan = [&[8, 0, 0, 0, 1, 2, 3, 0], &inner[..]].concat();
    let out = raw(&with_checksum(ip(17, &udp(4_789, &vxlan)), 20, 6, Some(17)));
    assert_eq!(out[26..36], [0, 0, 8, 0, 0, 0, 1, 2, 3, 0]);
    assert_eq!(out[36..], clean);

    let geneve = [
        &[0x01, 0x40, 0x65, 0x58, 1, 2, 3, 0, 9, 9, 9, 0],
        &inner[..],
    ];
    let out = raw(&ip(17, &udp(6_081, &geneve.concat())));
    assert_eq!(out[28..40], [1, 0x40, 0x65, 0x58, 1, 2, 3, 0, 0, 0, 0, 0]);
    assert_eq!(out[40..], clean);

    let header = [0xb0, 0, 0x65, 0x58, 9, 9, 9, 9, 1, 2, 3, 4, 5, 6, 7, 8];
    let out = raw(&ip(47, &[&header, &inner[..]].concat()));
    assert_eq!(out[20..24], header[..4]);
    assert_eq!(out[24..28], [0; 4]);
    assert_eq!(out[28..36], header[8..]);
    assert_eq!(out[36..], clean);
}

#[test]
fn a_tunnel_of_which_all_is_left_keeps_a_right_checksum() {
    let inner = with_checksum(ip(6, &tcp(&[], &[])), 20, 16, Some(6));
    let vxlan = [&[8, 0, 0, 0, 1, 2, 3, 0], &frame(IPV4, &inner)[..]].concat();
    let out = raw(&with_checksum(ip(17, &udp(4_789, &vxlan)), 20, 6, Some(17)));
    assert_eq!(out.len(), 20 + 8 + 8 + 14 + 40);
    assert_eq!(sum(&out, 20, Some(17)), 0xffff);
    assert_eq!(sum(&out[50..], 20, Some(6)), 0xffff);
}

#[test]
fn addresses_of_cooked_captures_are_replaced_or_cleared() {
    let mac_and = [&MACS[0][..], &[7, 7]].concat();
    let packet = ip(17, &udp(53, b"x"));
    let sll = |len: u8| [&[0, 4, 0, 1, 0, len], &mac_and[..], &[8, 0], &packet].concat();
    let out = beginning(LinkType::LINUX_SLL, &sll(6));
    assert_eq!(out[..6], [0, 4, 0, 1, 0, 6]);
    assert_eq!(out[6..14], [&mac(MACS[0])[..], &[0, 0]].concat());
    assert_eq!(out[14..], [&[8, 0], &raw(&packet)[..]].concat());
    assert_eq!(beginning(LinkType::LINUX_SLL, &sll(8))[6..14], [0; 8]);

    let sll2 = [8, 0, 5, 5, 0, 0, 0, 3, 0, 1, 4, 6];
    let packet_2 = [&sll2[..], &mac_and, &packet].concat();
    let out = beginning(LinkType::LINUX_SLL2, &packet_2);
    assert_eq!(out[..12], [8, 0, 0, 0, 0, 0, 0, 3, 0, 1, 4, 6]);
    assert_eq!(out[12..20], [&mac(MACS[0])[..], &[0, 0]].concat());
    assert_eq!(out[20..], raw(&packet));
}
