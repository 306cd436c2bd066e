//! The packets that ICMP errors quote: their headers are header. Bytes are those of the standards.

use strata_wire::LinkType;
use strata_wire::dissect::{innermost_network, protocol};
use strata_wire::ethernet::ethertype;

use crate::common::{
    DESTINATION, SOURCE, assert_cuts_agree, error, ethernet, inner, ip4, ip6, packet, packet_6,
    ports, tcp, udp,
};

#[test]
fn headers_that_icmp_errors_quote_are_headers() {
    let (ip, _) = packet();
    let payload = [b'x'; 100];
    let datagram = ip4(SOURCE, DESTINATION, protocol::UDP, &udp(1234, 53, &payload));
    let mut options = ip4(
        SOURCE,
        DESTINATION,
        protocol::TCP,
        &[tcp(1, 2, &[]), vec![1; 12]].concat(),
    );
    options[32] = 0x80;
    let mut fragment = datagram.clone();
    fragment[7] = 9;
    let ping = ip4(
        SOURCE,
        DESTINATION,
        protocol::ICMP,
        &error(8, [0; 4], &payload),
    );
    let nested = ip4(
        SOURCE,
        DESTINATION,
        protocol::ICMP,
        &error(3, [0; 4], &datagram),
    );
    let unknown = ip4(SOURCE, DESTINATION, 253, &payload);
    let vxlan = [
        &[8, 0, 0, 0, 0, 0, 1, 0][..],
        &ethernet(ethertype::IPV4, &ip),
    ]
    .concat();
    let tunnel = ip4(SOURCE, DESTINATION, protocol::UDP, &udp(9, 4789, &vxlan));
    // RFC 4884 §4: 128 bytes are quoted, extensions follow, which are no packet.
    let extended = [
        &datagram[..],
        &[0; 4][..],
        &[0x20, 0, 0, 0, 0, 8, 1, 1, 0, 1, 1, 64],
    ]
    .concat();
    for (name, kind, word, quoted, kept) in [
        ("unreachable, 64 bits", 3, [0; 4], &datagram[..28], 28),
        ("too big", 3, [0, 0, 5, 0xdc], &datagram[..], 28),
        ("time exceeded", 11, [0; 4], &options, 52),
        ("redirect", 5, [10, 0, 0, 1], &options, 52),
        ("source quench", 4, [0; 4], &options, 52),
        ("parameter problem", 12, [20, 0, 0, 0], &options, 52),
        ("8 bytes of TCP", 3, [0; 4], &options[..28], 28),
        ("a fragment", 3, [0; 4], &fragment, 20),
        ("a ping", 3, [0; 4], &ping, 28),
        ("an error", 3, [0; 4], &nested, 28),
        ("a transport that is not known", 3, [0; 4], &unknown, 20),
        ("a tunnel", 3, [0; 4], &tunnel, 28 + 8 + 14 + 40),
        ("with extensions", 11, [0, 32, 0, 0], &extended, 28),
        (
            "a length within the header",
            11,
            [0, 6, 0, 0],
            &datagram,
            24,
        ),
        ("part of an IP header", 3, [0; 4], &datagram[..12], 12),
        ("IPv6", 3, [0; 4], &packet_6(), 0),
        ("zeros", 3, [0; 4], &payload, 0),
        ("nothing", 3, [0; 4], &[], 0),
        ("no error", 8, [0; 4], &datagram, 0),
        ("timestamps", 13, [0; 4], &datagram, 0),
    ] {
        let packet = ip4(1, 2, protocol::ICMP, &error(kind, word, quoted));
        let found = inner(LinkType::IPV4, &packet);
        assert_eq!(found.header_len, 20 + 8 + kept, "{name}");
        assert_eq!(u32::from(found.transport_len), 8 + kept, "{name}");
        assert_eq!(u32::from(found.quoted_len), kept, "{name}");
        assert!(!found.incomplete, "{name}");
        // The flow is that of the message.
        let key = found.key.unwrap();
        assert_eq!(
            (key.protocol, key.low.address, key.high.address),
            (1, 1, 2),
            "{name}"
        );
        assert_eq!(
            (ports(&found), found.networks, found.outer),
            ((0, 0), 1, None),
            "{name}"
        );
        assert_eq!(
            innermost_network(LinkType::IPV4, &packet),
            Some((0, 4)),
            "{name}"
        );
        assert_cuts_agree(name, LinkType::IPV4, &packet);
    }
}

#[test]
fn headers_that_icmpv6_errors_quote_are_headers() {
    let (ip, _) = packet();
    let six = packet_6();
    let extension = ip6(
        5,
        6,
        protocol::DESTINATION_OPTIONS,
        &[&[protocol::UDP, 0][..], &[0; 6], &udp(1, 2, b"x")].concat(),
    );
    for (name, kind, word, quoted, kept) in [
        ("unreachable", 1, [0; 4], &six, 60),
        ("too big", 2, [0, 0, 5, 0], &six, 60),
        ("time exceeded", 3, [0; 4], &six, 60),
        ("parameter problem", 4, [0, 0, 0, 6], &extension, 56),
        ("RFC 4884, in units of 8", 1, [6, 0, 0, 0], &six, 48),
        ("IPv4", 1, [0; 4], &ip, 0),
        ("a ping", 128, [0; 4], &six, 0),
        ("a neighbour", 136, [0; 4], &six, 0),
    ] {
        let packet = ip6(1, 2, protocol::ICMPV6, &error(kind, word, quoted));
        let found = inner(LinkType::IPV6, &packet);
        assert_eq!(
            (found.header_len, found.networks),
            (40 + 8 + kept, 1),
            "{name}"
        );
        assert_cuts_agree(name, LinkType::IPV6, &packet);
    }
    // RFC 4861 §4.5: target, destination, target's address, redirected header.
    let redirect = [
        &[0; 32][..],
        &[2, 1, 2, 0, 0, 0, 0, 1],
        &[4, 10, 0, 0, 0, 0, 0, 0],
        &six,
    ]
    .concat();
    let packet = ip6(1, 2, protocol::ICMPV6, &error(137, [0; 4], &redirect));
    assert_eq!(
        inner(LinkType::IPV6, &packet).header_len,
        40 + 8 + 32 + 16 + 60
    );
    assert_cuts_agree("redirect", LinkType::IPV6, &packet);
    let endless = [&[0; 32][..], &[2, 0, 2, 0, 0, 0, 0, 1], &six].concat();
    let packet = ip6(1, 2, protocol::ICMPV6, &error(137, [0; 4], &endless));
    assert_eq!(inner(LinkType::IPV6, &packet).header_len, 48);
}

/// However much a message quotes, of a jumbogram too, what is kept of it is bounded.
#[test]
fn a_quote_is_bounded() {
    let mut quoted = ip6(1, 2, protocol::DESTINATION_OPTIONS, &[]);
    quoted[4..6].fill(0);
    for _ in 0..60 {
        quoted.extend([protocol::DESTINATION_OPTIONS, 255]);
        quoted.extend([0; 2046]);
    }
    let mut packet = ip6(1, 2, protocol::ICMPV6, &[]);
    packet[4..6].fill(0);
    packet.extend(error(1, [0; 4], &quoted));
    assert_eq!(inner(LinkType::IPV6, &packet).header_len, 40 + 8 + 1280);
}
