//! INT against an encoder of its own, bit by bit from the diagrams of the specifications: the worked
//! examples of Telemetry Report 2.0 (§4.1 to 4.4), version 1.0, and anything else.

use proptest::prelude::*;
use strata_dta::event::node::NODE_EVENT_LEN;
use strata_dta::int::IntError;
use strata_dta::int::mapping::Mapper;
use strata_dta::int::report::{Packet, Repr};
use strata_dta::int::stack::{Inner, Marks};
use strata_dta::int::table::{DEFAULT, Table, TableError};
use strata_dta::key::Key;
use strata_dta::protocol::Report;
use strata_wire::LinkType;

/// Fields of any number of bits, most significant first, as the diagrams draw them.
#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    len: usize,
}

impl Bits {
    fn put(mut self, width: usize, value: u64) -> Self {
        for bit in (0..width).rev() {
            if self.len.is_multiple_of(8) {
                self.bytes.push(0);
            }
            let one = u8::try_from(value >> bit & 1).unwrap();
            *self.bytes.last_mut().unwrap() |= one << (7 - self.len % 8);
            self.len += 1;
        }
        self
    }

    fn all(self, fields: &[(usize, u64)]) -> Self {
        fields
            .iter()
            .fold(self, |bits, &(width, value)| bits.put(width, value))
    }

    fn raw(self, bytes: &[u8]) -> Self {
        bytes
            .iter()
            .fold(self, |bits, &byte| bits.put(8, u64::from(byte)))
    }
}

/// Ver, hw_id, sequence number; node ID.
fn group(sequence: u64, node: u64) -> Bits {
    Bits::default().all(&[(4, 2), (6, 5), (22, sequence), (32, node)])
}

fn ipv4(protocol: u64, source: [u8; 4], destination: [u8; 4], ttl: u64) -> Vec<u8> {
    let fixed = [
        (4, 4),
        (4, 5),
        (6, 0),
        (2, 0),
        (16, 200),
        (16, 1),
        (3, 0),
        (13, 0),
    ];
    let bits = Bits::default().all(&fixed);
    let bits = bits.all(&[(8, ttl), (8, protocol), (16, 0)]);
    bits.raw(&source).raw(&destination).bytes
}

fn tcp(source: u64, destination: u64) -> Vec<u8> {
    let bits = Bits::default().all(&[(16, source), (16, destination), (32, 1), (32, 2)]);
    bits.all(&[(4, 5), (12, 0x10), (16, 1000), (16, 0), (16, 0)])
        .bytes
}

fn udp(source: u64, destination: u64) -> Vec<u8> {
    Bits::default()
        .all(&[(16, source), (16, destination), (16, 180), (16, 0)])
        .bytes
}

/// INT-MD 2.1: shim, header, stack.
fn int_md(npt: u64, next: u64, instructions: u64, hop_words: u64, stack: &[u64]) -> Vec<u8> {
    let words = 3 + stack.len() as u64;
    let shim = [(4, 1), (2, npt), (2, 0), (8, words), (16, next)];
    let header = [
        (4, 2),
        (1, 0),
        (1, 0),
        (1, 0),
        (12, 0),
        (5, hop_words),
        (8, 6),
    ];
    let more = [(16, instructions), (16, 0), (16, 0), (16, 0)];
    let bits = Bits::default().all(&shim).all(&header).all(&more);
    stack
        .iter()
        .fold(bits, |bits, &word| bits.put(32, word))
        .bytes
}

/// Type, inner type, lengths, D, Q, F, I.
fn individual(kind: u64, inner: u64, words: u64, metadata: u64, flags: u64) -> [(usize, u64); 6] {
    [
        (4, kind),
        (4, inner),
        (8, words),
        (8, metadata),
        (4, flags),
        (4, 0),
    ]
}

const HOST_1: [u8; 4] = [10, 0, 0, 1];
const HOST_2: [u8; 4] = [10, 0, 0, 2];

/// §4.1: level 1 interfaces, queue occupancy, a truncated IPv4 packet.
fn example_1(flags: u64) -> Vec<u8> {
    let packet = [ipv4(6, HOST_1, HOST_2, 63), tcp(1024, 80)].concat();
    group(77, 7)
        .all(&individual(1, 4, 14, 2, flags))
        .all(&[(16, 0b0101 << 12), (16, 0), (16, 0), (16, 0)])
        .all(&[(16, 3), (16, 4), (8, 1), (24, 5000)])
        .raw(&packet)
        .bytes
}

/// §4.3: INT-MD in a TCP packet behind a new UDP header, sent by the sink.
fn example_3() -> Vec<u8> {
    let stack = [12, 0x0100_0200, 11, 0x0100_0100];
    let packet = [
        ipv4(17, HOST_1, HOST_2, 62),
        udp(40_000, 5000),
        int_md(2, 6, 0b1001 << 12, 2, &stack),
        tcp(1024, 80),
    ];
    group(78, 13)
        .all(&individual(1, 4, 23, 1, 0b0010))
        .all(&[(16, 0b0001 << 12), (16, 0), (16, 0), (16, 0)])
        .all(&[(8, 2), (24, 999)])
        .raw(&packet.concat())
        .bytes
}

/// §4.4: INT-MD between the outer UDP header and VXLAN, sent by a host that is no hop.
fn example_4() -> Vec<u8> {
    let stack = [13, 0x0001_0002, 12, 0x0003_0004, 11, 0x0005_0006];
    let packet = [
        ipv4(17, [192, 168, 1, 1], [192, 168, 2, 2], 61),
        udp(56_789, 5000),
        int_md(1, 4789, 0b1100 << 12, 2, &stack),
        vec![8, 0, 0, 0, 0, 0, 9, 0],
        [vec![2; 12], vec![8, 0], vec![0; 2]].concat(),
        ipv4(6, [10, 10, 1, 1], [10, 10, 2, 2], 64),
        tcp(1024, 80),
    ];
    let packet = packet.concat();
    let words = packet.len().div_ceil(4) as u64;
    group(79, 1000)
        .all(&individual(0, 4, words, 0, 0b0010))
        .raw(&packet)
        .bytes
}

fn only(bytes: &[u8]) -> strata_dta::int::report::Report<'_> {
    let packet = Packet::new_checked(bytes).unwrap();
    let mut reports = packet.reports();
    let report = reports.next().unwrap().unwrap();
    assert!(reports.next().is_none());
    report
}

const MARKS: Marks = Marks {
    udp_port: Some(5000),
    dscp: None,
};

#[test]
fn the_example_of_baseline_metadata() {
    let bytes = example_1(0b0010);
    let packet = Packet::new_checked(&bytes).unwrap();
    assert_eq!((packet.version(), packet.hw_id()), (2, 5));
    assert_eq!((packet.sequence(), packet.node()), (77, 7));
    let report = only(&bytes);
    assert!(report.tracked && !report.dropped && !report.congested && !report.intermediate);
    let hop = report.hop;
    assert_eq!(
        (hop.ingress_interface, hop.egress_interface),
        (Some(3), Some(4))
    );
    assert_eq!((hop.queue, hop.queue_occupancy), (Some(1), Some(5000)));
    assert_eq!((hop.node, hop.hop_latency), (Some(7), None));
    let (link, start) = report.packet.unwrap();
    assert_eq!((link, start.len()), (LinkType::IPV4, 40));
    let inner = Inner::read(link, start, &MARKS).unwrap();
    let flow = inner.flow.unwrap().to_string();
    assert_eq!(
        (flow.as_str(), inner.ttl),
        ("10.0.0.1:1024 > 10.0.0.2:80 tcp", 63)
    );
    assert!(inner.stack.is_none());
}

/// §4.2: domain-specific metadata, a TLV of domain data, then one with the packet.
#[test]
fn the_example_of_domain_specific_metadata_and_tlvs() {
    let packet = [ipv4(6, HOST_1, HOST_2, 64), tcp(1024, 80)].concat();
    let bytes = group(1, 7)
        .all(&individual(1, 1, 2 + 3 + 3 + 11, 3, 0b0010))
        .all(&[(16, 0b0101 << 12), (16, 9), (16, 1 << 15), (16, 0)])
        .all(&[(16, 3), (16, 4), (8, 1), (24, 5000), (32, 0xdddd_dddd)])
        .all(&[(4, 0), (4, 0), (8, 2), (16, 77), (32, 1), (32, 2)])
        .all(&[(4, 2), (4, 0), (8, 10), (16, 0)])
        .raw(&packet)
        .bytes;
    let report = only(&bytes);
    assert_eq!(report.hop.queue_occupancy, Some(5000));
    assert_eq!(report.packet, Some((LinkType::IPV4, &packet[..])));
}

#[test]
fn the_example_of_int_md_in_a_tcp_packet() {
    let bytes = example_3();
    let report = only(&bytes);
    assert_eq!(report.hop.queue_occupancy, Some(999));
    let (link, packet) = report.packet.unwrap();
    let inner = Inner::read(link, packet, &MARKS).unwrap();
    let flow = inner.flow.unwrap().to_string();
    assert_eq!(
        flow, "10.0.0.1:1024 > 10.0.0.2:80 tcp",
        "without INT's UDP header"
    );
    let hops: Vec<_> = inner.stack.unwrap().hops().collect();
    let said: Vec<_> = hops
        .iter()
        .map(|hop| (hop.node, hop.queue_occupancy))
        .collect();
    assert_eq!(said, [(Some(12), Some(0x200)), (Some(11), Some(0x100))]);
    assert!(!inner.stack.unwrap().is_incomplete);
    // Without any mark it is recognised; with another one it is UDP to port 5000, and that is said.
    let recognised = Inner::read(link, packet, &Marks::default()).unwrap();
    assert_eq!(recognised.flow.unwrap().to_string(), flow);
    assert_eq!(recognised.stack.unwrap().hops().collect::<Vec<_>>(), hops);
    let other = Marks {
        udp_port: Some(5001),
        dscp: None,
    };
    let plain = Inner::read(link, packet, &other).unwrap();
    assert!(plain.stack.is_none() && plain.is_unmarked);
    assert_eq!(plain.flow.unwrap().destination_port, 5000);
}

/// Each byte of the headers of INT-MD that says something has to say it.
#[test]
fn a_payload_is_no_stack_unless_all_of_its_headers_agree() {
    let stack = int_md(0, 0, 0b1011 << 12, 3, &[12, 100, 0x200, 11, 200, 0x100]);
    let packet = |payload: &[u8]| [&ipv4(6, HOST_1, HOST_2, 64), &tcp(1024, 80), payload].concat();
    let hops = |payload: &[u8]| {
        let packet = packet(payload);
        let inner = Inner::read(LinkType::IPV4, &packet, &Marks::default()).unwrap();
        inner.stack.map(|stack| stack.hops().len())
    };
    assert_eq!(hops(&stack), Some(2));
    // The next protocol, remaining hops, the domain and its flags may be anything.
    let free = [2, 3, 7, 10, 11, 14, 15];
    for at in (0..16).filter(|at| !free.contains(at)) {
        let mut other = stack.clone();
        // A bit of each byte that is neither a flag nor a larger hop of a domain.
        other[at] ^= if at == 12 || at == 13 { 0 } else { 0x10 };
        assert_eq!(
            hops(&other),
            if at == 12 || at == 13 { Some(2) } else { None },
            "byte {at}"
        );
    }
    assert_eq!(hops(&stack[..stack.len() - 1]), None, "cut");
    let nameless = int_md(0, 0, 0b0011 << 12, 2, &[100, 0x200]);
    assert_eq!(hops(&nameless), None);
    assert_eq!(hops(b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n"), None);
}

#[test]
fn the_example_of_int_md_before_vxlan() {
    let bytes = example_4();
    let report = only(&bytes);
    assert!(!report.is_hop);
    let (link, packet) = report.packet.unwrap();
    let inner = Inner::read(link, packet, &MARKS).unwrap();
    let flow = inner.flow.unwrap().to_string();
    assert_eq!(flow, "192.168.1.1:56789 > 192.168.2.2:4789 udp");
    let hops = inner.stack.unwrap().hops();
    let nodes: Vec<_> = hops.map(|hop| (hop.node, hop.egress_interface)).collect();
    assert_eq!(
        nodes,
        [
            (Some(13), Some(2)),
            (Some(12), Some(4)),
            (Some(11), Some(6))
        ]
    );
}

#[test]
fn version_1_and_every_kind_of_metadata() {
    let packet = [
        vec![2; 12],
        vec![8, 0],
        ipv4(17, HOST_1, HOST_2, 64),
        udp(9, 53),
    ]
    .concat();
    let head = [
        (4, 1),
        (4, 10),
        (3, 0),
        (6, 0b11_1111),
        (6, 0),
        (1, 1),
        (1, 1),
        (1, 0),
        (6, 9),
    ];
    let bytes = Bits::default()
        .all(&head)
        .all(&[(32, 7), (32, 0xffff_ffff), (32, 123)])
        .all(&[(16, 1), (16, 2), (32, 55), (8, 3), (24, 44)])
        .all(&[(32, 200), (8, 4), (8, 17), (16, 0), (32, 90)])
        .raw(&packet)
        .bytes;
    let view = Packet::new_checked(&bytes).unwrap();
    assert_eq!(
        (view.version(), view.hw_id(), view.sequence()),
        (1, 9, u32::MAX)
    );
    let report = only(&bytes);
    assert!(report.dropped && report.congested && !report.tracked);
    let hop = report.hop;
    assert_eq!(
        (hop.node, hop.ingress_time, hop.egress_time),
        (Some(7), Some(123), Some(200))
    );
    assert_eq!((hop.hop_latency, hop.queue_occupancy), (Some(55), Some(44)));
    assert_eq!(
        (hop.queue, hop.drop_reason, hop.tx_utilization),
        (Some(4), Some(17), Some(90))
    );
    assert_eq!(report.packet, Some((LinkType::ETHERNET, &packet[..])));

    // All of 2.0 that has a meaning; all ones are not known.
    let bytes = group(0, 1)
        .all(&individual(1, 0, 2 + 13, 13, 0b1001))
        .all(&[(16, 0b0111_1111_1100_0001), (16, 0), (16, 0), (16, 0)])
        .all(&[
            (16, 0xffff),
            (16, 0xffff),
            (32, 0xffff_ffff),
            (8, 1),
            (24, 2),
        ])
        .all(&[(64, 1 << 40), (64, u64::MAX), (32, 70_000), (32, 80_000)])
        .all(&[(32, 6), (8, 7), (24, 8), (32, 0), (8, 9), (8, 10), (16, 0)])
        .bytes;
    let report = only(&bytes);
    let hop = report.hop;
    assert!(report.dropped && report.intermediate && report.packet.is_none());
    assert_eq!(
        (hop.ingress_interface, hop.egress_interface),
        (Some(70_000), Some(80_000))
    );
    assert_eq!(
        (hop.hop_latency, hop.ingress_time, hop.egress_time),
        (None, Some(1 << 40), None)
    );
    assert_eq!(
        (hop.buffer_occupancy, hop.tx_utilization),
        (Some(8), Some(6))
    );
    assert_eq!((hop.queue, hop.drop_reason), (Some(9), Some(10)));
}

#[test]
fn the_shim_of_int_1_counts_itself_and_has_short_times() {
    let packet = [
        ipv4(6, HOST_1, HOST_2, 64).as_slice(),
        &tcp(1024, 80),
        // Shim, header (hop words 3, E), two hops: node, ingress time, hop latency.
        &Bits::default()
            .all(&[(8, 1), (8, 0), (8, 9), (6, 0), (2, 0)])
            .all(&[
                (4, 1),
                (2, 0),
                (1, 0),
                (1, 1),
                (8, 0),
                (3, 0),
                (5, 3),
                (8, 4),
            ])
            .all(&[(16, 0b1010_1000 << 8), (16, 0)])
            .all(&[(32, 2), (32, 20), (32, 200), (32, 1), (32, 10), (32, 100)])
            .bytes,
    ]
    .concat();
    let mut packet = packet;
    packet[1] = 23 << 2;
    let marks = Marks {
        udp_port: None,
        dscp: Some(23),
    };
    let inner = Inner::read(LinkType::IPV4, &packet, &marks).unwrap();
    let stack = inner.stack.unwrap();
    let hops = stack.hops();
    let said: Vec<_> = hops
        .map(|hop| (hop.node, hop.hop_latency, hop.ingress_time))
        .collect();
    assert_eq!(
        said,
        [
            (Some(2), Some(20), Some(200)),
            (Some(1), Some(10), Some(100))
        ]
    );
    assert!(stack.is_incomplete, "E");
}

/// What the mapper makes of a datagram, as text.
fn mapped(mapper: &mut Mapper, bytes: &[u8]) -> Vec<String> {
    let mut made = Vec::new();
    let each = &mut |report: &Report<'_>| made.push(format!("{report:?}"));
    mapper.map(bytes, each).unwrap();
    made
}

fn text(report: &Report<'_>) -> String {
    format!("{report:?}")
}

#[test]
fn the_default_table_traces_paths_latency_queues_and_events() {
    let mut mapper = Mapper::new(Table::parse(DEFAULT).unwrap(), 64);
    let flow = "10.0.0.1:1024 > 10.0.0.2:80 tcp".parse().unwrap();
    let key = Key::flow(&flow);
    // A postcard of the second hop, whose queue is congested.
    let queue = Key::queue(7, 4, 1);
    let mut event = [0; NODE_EVENT_LEN];
    event[..10].copy_from_slice(&[0, 0, 0, 7, 0, 0, 0, 4, 1, 0x42]);
    event[10..].copy_from_slice(&[0, 0, 0x13, 0x88, 0xff, 0xff, 0xff, 0xff]);
    let event = [&event, key.bytes()].concat();
    let expected = [
        text(&Report::Postcard {
            key: key.bytes(),
            hop: 1,
            path_len: None,
            value: 7,
        }),
        text(&Report::KeyWrite {
            redundancy: 2,
            key: queue.bytes(),
            data: &5000_u32.to_be_bytes(),
        }),
        text(&Report::Append {
            list: 0,
            data: &event,
        }),
    ];
    assert_eq!(mapped(&mut mapper, &example_1(0b0110)), expected);
    // The hop latency was not reported.
    assert_eq!(mapper.counters().incomplete, 1);
    // A whole path by INT-MD: hops 11, 12, and 13, which reports.
    let card = |hop: u8, value| {
        text(&Report::Postcard {
            key: key.bytes(),
            hop,
            path_len: Some(3),
            value,
        })
    };
    let made = mapped(&mut mapper, &example_3());
    let cards: Vec<_> = made
        .iter()
        .filter(|text| text.starts_with("Postcard"))
        .collect();
    assert_eq!(cards, [&card(0, 11), &card(1, 12), &card(2, 13)]);
    // A host as sink is no hop.
    let made = mapped(&mut mapper, &example_4());
    let cards = made.iter().filter(|text| text.starts_with("Postcard"));
    assert_eq!(cards.count(), 3);
    let counters = mapper.counters();
    assert_eq!((counters.datagrams, counters.reports), (3, 3));
    assert_eq!(
        (counters.refused, counters.bad_stacks, counters.missing),
        (0, 0, 0)
    );
}

/// Hop, path length and value of the postcards of a datagram, and how many reports lack something.
fn cards(mapper: &mut Mapper, bytes: &[u8]) -> Vec<(u8, Option<u8>, u32)> {
    let mut cards = Vec::new();
    let each = &mut |report: &Report<'_>| {
        if let Report::Postcard {
            hop,
            path_len,
            value,
            ..
        } = *report
        {
            cards.push((hop, path_len, value));
        }
    };
    mapper.map(bytes, each).unwrap();
    cards
}

/// As a published program sends it (Telemetry Report 1.0, INT-MD 1.0): the report of node 44 has the stack,
/// which 44 has completed before.
#[test]
fn a_sink_that_is_in_its_stack_is_one_hop() {
    let stack = [44, 400, 33, 300, 22, 200, 11, 100];
    let header = [
        (4, 1),
        (2, 0),
        (1, 0),
        (1, 0),
        (8, 0),
        (3, 0),
        (5, 2),
        (8, 4),
    ];
    let md = Bits::default()
        .all(&[(8, 1), (8, 0), (8, 11), (6, 0), (2, 0)])
        .all(&header)
        .all(&[(16, 0b1010 << 12), (16, 0)]);
    let md = stack
        .iter()
        .fold(md, |bits, &word| bits.put(32, word))
        .bytes;
    let packet = [ipv4(17, HOST_1, HOST_2, 64), udp(1024, 80), md].concat();
    // Its own report says the interfaces, and that the packet is of a tracked flow.
    let fixed = [
        (4, 1),
        (4, 5),
        (3, 1),
        (6, 0b10_0000),
        (6, 0),
        (3, 1),
        (6, 1),
    ];
    let report = Bits::default()
        .all(&fixed)
        .all(&[(32, 44), (32, 0), (32, 0), (32, 0x0001_0002)])
        .raw(&packet)
        .bytes;
    let mut mapper = Mapper::new(Table::parse(DEFAULT).unwrap(), 64);
    let expected = [11, 22, 33, 44];
    let expected: Vec<_> = (0..)
        .zip(expected)
        .map(|(hop, node)| (hop, Some(4), node))
        .collect();
    assert_eq!(cards(&mut mapper, &report), expected);
}

/// Of four nodes that report for themselves, with a TTL that begins with 64 and is lowered before or after
/// that, or not at all.
#[test]
fn a_table_says_where_the_place_of_a_node_comes_from() {
    let places = |table: &str, ttls: [u64; 4]| {
        let path = "name = \"path\"\nprimitive = \"postcard\"\nkey = \"flow\"\ndata = \"node\"";
        let table = format!("{table}\n[[report]]\nwhen = \"always\"\n{path}");
        let mut mapper = Mapper::new(Table::parse(&table).unwrap(), 64);
        let reports = (0..)
            .zip(ttls)
            .map(|(node, ttl)| hop_report(node, 0, ttl, 1024, 5));
        let cards = reports.flat_map(|report| cards(&mut mapper, &report));
        cards
            .map(|(hop, path_len, _)| (hop, path_len))
            .collect::<Vec<_>>()
    };
    let right: Vec<_> = (0..4).map(|hop| (hop, None)).collect();
    assert_eq!(places("", [64, 63, 62, 61]), right);
    assert_eq!(places("first-ttl = 63", [63, 62, 61, 60]), right);
    assert_eq!(places("hop-from = \"arrival\"", [64; 4]), right);
    assert_eq!(places("", [64; 4]), [(0, None); 4]);
    assert_eq!(places("hop-from = \"stack\"", [64, 63, 62, 61]), []);
    assert!(matches!(
        Table::parse("first-ttl = 65"),
        Err(TableError::FirstTtl(65))
    ));
}

#[test]
fn a_report_of_version_0_5_says_what_to_do() {
    let mut mapper = Mapper::new(Table::parse("").unwrap(), 64);
    let error = mapper
        .map(&[0x02, 0x20, 0, 0, 0, 0, 0, 1], &mut |_| ())
        .unwrap_err();
    assert!(
        error.to_string().contains("send version 1.0 or 2.0"),
        "{error}"
    );
}

/// A telemetry report 2.0 of INT-XD: the hop latency of a TCP packet.
fn hop_report(node: u64, sequence: u64, ttl: u64, source: u64, latency: u64) -> Vec<u8> {
    let packet = [ipv4(6, [10, 0, 0, 1], [10, 0, 0, 2], ttl), tcp(source, 80)].concat();
    let words = 2 + 1 + packet.len() as u64 / 4;
    group(sequence, node)
        .all(&individual(1, 4, words, 1, 0))
        .all(&[(16, 1 << 13), (16, 0), (32, 0), (32, latency)])
        .raw(&packet)
        .bytes
}

/// The event of a flow from a port of the first host, whose latencies are `latency`.
fn slow(source: u16, latency: u32) -> Vec<u8> {
    let [high, low] = source.to_be_bytes();
    let mut event = vec![4];
    event.extend(latency.to_be_bytes());
    event.extend([10, 0, 0, 1, 10, 0, 0, 2, high, low, 0, 80, 6]);
    event
}

/// The entries that a datagram, or waiting, adds to lists.
fn lists(mapper: &mut Mapper, bytes: Option<&[u8]>) -> Vec<(u32, Vec<u8>)> {
    let mut seen = Vec::new();
    let each = &mut |report: &Report<'_>| match *report {
        Report::Append { list, data } => seen.push((list, data.to_vec())),
        _ => panic!("{report:?}"),
    };
    match bytes {
        Some(bytes) => mapper.map(bytes, each).unwrap(),
        None => mapper.settle(each),
    }
    seen
}

#[test]
fn a_query_known_ahead_is_answered_by_the_sum_of_a_path() {
    let text = "extends = \"nothing\"\n[[watch]]\nname = \"slow\"\nabove = 1000\nlist = 4\n\
                [[watch]]\nname = \"very-slow\"\nabove = 2000\nlist = 5\n";
    let table = Table::parse(text).unwrap();
    assert_eq!(
        table.watched().collect::<Vec<_>>(),
        [(4, "slow"), (5, "very-slow")]
    );
    let mut mapper = Mapper::new(table, 64);
    let mut sequence = 0;
    let mut hop = |mapper: &mut Mapper, ttl: u64, source: u64, latency: u64| {
        sequence += 1;
        let bytes = hop_report(7, sequence, ttl, source, latency);
        lists(mapper, Some(&bytes))
    };
    // Three hops in any order; the next packet of the flow begins where a hop reports again.
    assert_eq!(hop(&mut mapper, 63, 1000, 600), []);
    assert_eq!(hop(&mut mapper, 64, 1000, 300), []);
    assert_eq!(hop(&mut mapper, 62, 1000, 101), []);
    assert_eq!(hop(&mut mapper, 64, 1000, 3000), [(4, slow(1000, 1001))]);
    // Another flow, not above; both have to wait for hops that may still report.
    assert_eq!(hop(&mut mapper, 64, 2000, 1000), []);
    assert_eq!(lists(&mut mapper, None), []);
    let expected = [(4, slow(1000, 3000)), (5, slow(1000, 3000))];
    assert_eq!(lists(&mut mapper, None), expected);
    assert_eq!(lists(&mut mapper, None), []);
    let counters = mapper.counters();
    assert_eq!(
        (counters.summed, counters.above, counters.mapped),
        (3, 3, 3)
    );

    // A packet that has gathered its whole path is compared at once.
    let stack = [12, 700, 11, 400];
    let packet = [
        ipv4(17, HOST_1, HOST_2, 62),
        udp(40_000, 5000),
        int_md(2, 6, 0b1010 << 12, 2, &stack),
        tcp(1024, 80),
    ];
    let bytes = group(78, 13)
        .all(&individual(1, 4, 22 + 1, 1, 0))
        .all(&[(16, 1 << 13), (16, 0), (32, 0), (32, 50)])
        .raw(&packet.concat())
        .bytes;
    let text = "extends = \"nothing\"\nudp-port = 5000\n[[watch]]\nname = \"slow\"\nabove = 1149\nlist = 4\n";
    let mut whole = Mapper::new(Table::parse(text).unwrap(), 64);
    assert_eq!(lists(&mut whole, Some(&bytes)), [(4, slow(1024, 1150))]);
    assert_eq!(whole.counters().summed, 1);

    for (text, problem) in [
        (
            "[[report]]\nname = \"a\"\nwhen = \"always\"\nprimitive = \"append\"\n\
             data = \"event\"\nlist = 4\n[[watch]]\nname = \"b\"\nabove = 1\nlist = 4\n",
            "name another",
        ),
        (
            &"[[watch]]\nname = \"b\"\nabove = 1\nlist = 4\n".repeat(9),
            "at most 8 are allowed",
        ),
        ("[[watch]]\nname = \"b\"\nabove = -1\nlist = 4\n", "above"),
        (
            "[[watch]]\nname = \"b\"\nabove = 1\nlist = 4\nsum = 3\n",
            "sum",
        ),
    ] {
        let error = Table::parse(text).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
    }
}

/// A hop that does not know its latency, says nothing of it, or did not report, is not one without any.
#[test]
fn a_sum_that_lacks_a_hop_is_not_taken_for_whole() {
    let text = "extends = \"nothing\"\n[[watch]]\nname = \"slow\"\nabove = 1000\nlist = 4\n\
                [[watch]]\nname = \"very-slow\"\nabove = 2000\nlist = 5\n";
    let least = |latency: u32| {
        let mut event = slow(3000, latency);
        event[0] = 5;
        event
    };
    let silent = |ttl: u64| {
        let packet = [ipv4(6, HOST_1, HOST_2, ttl), tcp(3000, 80)].concat();
        let words = 2 + packet.len() as u64 / 4;
        group(99, 7)
            .all(&individual(1, 4, words, 0, 0))
            .all(&[(16, 0), (16, 0), (32, 0)])
            .raw(&packet)
            .bytes
    };
    let report = |ttl, latency| hop_report(7, 99, ttl, 3000, latency);
    let unknown = u64::from(u32::MAX);
    for (reports, expected, undecided) in [
        (vec![report(64, 500), report(63, unknown)], vec![], 2),
        (
            vec![report(64, 500), silent(63), report(62, 501)],
            vec![(4, least(1001))],
            1,
        ),
        (
            vec![report(64, 2001), report(62, 0)],
            vec![(4, least(2001)), (5, least(2001))],
            0,
        ),
        (vec![report(64, 500), report(63, 0)], vec![], 0),
    ] {
        let mut mapper = Mapper::new(Table::parse(text).unwrap(), 64);
        for bytes in &reports {
            assert_eq!(lists(&mut mapper, Some(bytes)), []);
        }
        assert_eq!(lists(&mut mapper, None), []);
        assert_eq!(lists(&mut mapper, None), expected);
        let counters = mapper.counters();
        assert_eq!(
            (counters.summed, counters.undecided),
            (1, undecided),
            "{expected:?}"
        );
        assert_eq!(counters.above, expected.len() as u64);
    }
}

#[test]
fn loss_is_counted_by_node_across_the_wrap() {
    let mut mapper = Mapper::new(Table::parse("").unwrap(), 64);
    for sequence in [0x3f_fffe, 0x3f_ffff, 2, 1, 3] {
        mapped(&mut mapper, &group(sequence, 7).bytes);
        mapped(&mut mapper, &group(0, u64::from(u32::MAX) - sequence).bytes);
    }
    assert_eq!(mapper.counters().missing, 1, "0 never came");
}

/// A telemetry report 1.0 without metadata and packet.
fn version_1(sequence: u64, node: u64) -> Vec<u8> {
    let head = [(4, 1), (4, 4), (3, 0), (6, 0), (9, 0), (6, 5)];
    let more = [(32, node), (32, sequence), (32, 0)];
    Bits::default().all(&head).all(&more).bytes
}

/// A number of 32 bits and then one of 22, of the same node and part: kept as one, their difference
/// overflowed and ended the process.
#[test]
fn versions_of_one_node_have_numbers_of_their_own() {
    let mut mapper = Mapper::new(Table::parse("").unwrap(), 64);
    for n in 0..10 {
        mapped(&mut mapper, &version_1(0xffff_0000 + n, 7));
        mapped(&mut mapper, &group(n, 7).bytes);
    }
    mapped(&mut mapper, &version_1(0xffff_000c, 7));
    mapped(&mut mapper, &group(11, 7).bytes);
    let counters = mapper.counters();
    assert_eq!((counters.datagrams, counters.refused), (22, 0));
    assert_eq!((counters.missing, counters.jumps), (2 + 1, 0));
}

#[test]
fn a_node_that_starts_again_does_not_take_its_losses_back() {
    // It begins with 0, or the first of its datagrams are lost; soon, or after it was settled.
    for (from, settles) in [(0, 0), (0, 2), (3, 2), (20, 2)] {
        let mut mapper = Mapper::new(Table::parse("").unwrap(), 64);
        mapped(&mut mapper, &group(0, 7).bytes);
        mapped(&mut mapper, &group(50, 7).bytes);
        assert_eq!(mapper.counters().missing, 49);
        for _ in 0..settles {
            mapper.settle(&mut |_| panic!("no query is known ahead"));
        }
        for number in from..100 {
            mapped(&mut mapper, &group(number, 7).bytes);
        }
        let counters = mapper.counters();
        assert_eq!((counters.missing, counters.jumps), (49, 1), "from {from}");
    }
    // From so far that it looks like a gap, or not at all.
    for number in [3_000_000, 100_000] {
        let mut mapper = Mapper::new(Table::parse("").unwrap(), 64);
        for number in [number, number + 3, 0, 1, 3] {
            mapped(&mut mapper, &group(number, 7).bytes);
        }
        let counters = mapper.counters();
        assert_eq!((counters.missing, counters.jumps), (2 + 1, 1));
    }
}

#[test]
fn forged_numbers_do_not_own_the_losses() {
    let mut mapper = Mapper::new(Table::parse("").unwrap(), 64);
    for n in 0..20_000 {
        mapped(&mut mapper, &version_1(n, 7));
        mapped(&mut mapper, &version_1((n << 17) + (1 << 31), 7));
        mapped(&mut mapper, &version_1(n + 60_000, 9));
    }
    let counters = mapper.counters();
    assert!(counters.missing <= 2 << 16, "{counters:?}");
    assert!(counters.jumps >= 20_000, "{counters:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Any datagrams lost, repeated and late by a few: what is missing in the end is what never came,
    /// also where numbers wrap.
    #[test]
    fn what_never_came_is_missing(
        first in 0_u64..3000, is_version_1: bool,
        fates in prop::collection::vec(0_u8..20, 1..1500),
    ) {
        let modulus: u64 = if is_version_1 { 1 << 32 } else { 1 << 22 };
        let mut mapper = Mapper::new(Table::parse("").unwrap(), 64);
        let mut send = |number: u64| {
            let number = (modulus - 1500 + first + number) % modulus;
            let bytes = if is_version_1 { version_1(number, 1) } else { group(number, 1).bytes };
            mapped(&mut mapper, &bytes);
        };
        // The first one comes, so that all that follow are missed, and the last one, which shows it.
        let (mut lost, mut later) = (0_u64, Vec::new());
        send(0);
        for (number, fate) in (1..).zip(&fates) {
            match fate {
                0 => lost += 1,
                1 => later.push(number),
                2 => {
                    send(number);
                    send(number);
                }
                _ => send(number),
            }
            if later.len() == 3 {
                // The latest first, so that they are not taken for a node that counts again.
                later.drain(..).rev().for_each(&mut send);
            }
        }
        send(fates.len() as u64 + 1);
        later.drain(..).rev().for_each(&mut send);
        prop_assert_eq!((mapper.counters().missing, mapper.counters().jumps), (lost, 0));
    }
}

#[test]
fn a_table_says_what_is_wrong_with_it() {
    let problem = |text: &str| Table::parse(text).unwrap_err().to_string();
    let alone = |text: &str| problem(&format!("extends = \"nothing\"\n{text}"));
    assert!(problem("extends = \"all\"").contains("built-in"));
    assert!(alone("[[watch]]\nname = \"w\"\nabove = 1").contains("list"));
    let watch = "[[watch]]\nname = \"w\"\nabove = 1\nlist = 0";
    assert!(problem(watch).contains("a report appends other data"));
    assert!(problem("dscp = 64").contains("from 0 to 63"));
    assert!(problem("udp-prot = 1").contains("udp-prot"));
    let rule = |rest: &str| {
        problem(&format!(
            "[[report]]\nname = \"x\"\nwhen = \"always\"\n{rest}"
        ))
    };
    let append = "primitive = \"append\"\ndata = \"event\"\n";
    assert!(rule(append).contains("append has a list"));
    assert!(rule(&format!("{append}list = 0\nkey = \"flow\"")).contains("append has none"));
    assert!(
        rule(&format!("{append}list = 0")).contains("of the built-in table appends to its list")
    );
    assert!(rule(&format!("{append}list = 0\nredundancy = 1")).contains("redundancy"));
    let write = "primitive = \"key-write\"\nkey = \"flow\"\ndata = \"node\"\n";
    assert!(rule(&format!("{write}redundancy = 5")).contains("1 to 4"));
    assert!(rule(&write.replace("node", "packets")).contains("key-increment adds packets"));
    let toml = Table::parse("[[report]").unwrap_err();
    assert!(matches!(toml, TableError::Toml(_)) && toml.to_string().contains("line 1"));
}

/// A table with only a query known ahead used to leave out paths, latencies and congestion.
#[test]
fn a_table_extends_the_built_in_one_unless_it_says_otherwise() {
    let by = |text: &str| {
        let mut mapper = Mapper::new(Table::parse(text).unwrap(), 64);
        let reports = [example_1(0b111), example_4(), example_3()];
        reports.map(|bytes| mapped(&mut mapper, &bytes))
    };
    let built_in = by(DEFAULT);
    assert!(built_in.iter().all(|reports| !reports.is_empty()));
    assert_eq!(by(""), built_in);
    let watch = "[[watch]]\nname = \"slow\"\nabove = 4000000000\nlist = 4\n";
    assert_eq!(by(watch), built_in);
    let lists = |text: &str| {
        let table = Table::parse(text).unwrap();
        let lists = table.lists().map(|(list, name, _)| (list, name.to_owned()));
        lists.collect::<Vec<_>>()
    };
    assert_eq!(lists(watch), lists(DEFAULT));
    assert_eq!(
        by("extends = \"nothing\""),
        [const { Vec::<String>::new() }; 3]
    );
    // A report of the same name takes the place of the built-in one, also in its list.
    let replaced = "[[report]]\nname = \"drops\"\nwhen = \"dropped\"\nprimitive = \"append\"\n\
                    data = \"node\"\nlist = 1\n";
    assert_eq!(lists(replaced), lists(DEFAULT));
    let alone = format!("extends = \"nothing\"\n{replaced}");
    assert_eq!(lists(&alone), [(1, "drops".to_owned())]);
}

#[test]
fn what_is_cut_short_or_of_another_version_is_refused() {
    for bytes in [example_1(2), example_3(), example_4()] {
        for len in 0..bytes.len() {
            let mut mapper = Mapper::new(Table::parse(DEFAULT).unwrap(), 64);
            let result = mapper.map(&bytes[..len], &mut |_| panic!("made of {len} bytes"));
            // Without reports, and with less than the header of one, there is nothing to refuse.
            assert_eq!(result.is_err(), !(8..12).contains(&len), "{len} bytes");
        }
    }
    assert_eq!(
        Packet::new_checked(&[0x30; 40]).err(),
        Some(IntError::Version(3))
    );
    // A header of version 1 that is shorter than its bits.
    let mut bytes = vec![0; 64];
    (bytes[0], bytes[1]) = (0x14, 0x01);
    assert_eq!(
        Packet::new_checked(&bytes).err(),
        Some(IntError::Length("the header"))
    );
    // Metadata shorter than their bitmap.
    let mut bytes = example_1(2);
    bytes[10] = 1;
    let report = Packet::new_checked(&bytes)
        .unwrap()
        .reports()
        .next()
        .unwrap();
    assert_eq!(report.err(), Some(IntError::Length("a report's metadata")));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    /// Whatever changes in a datagram, it is read or refused, and what is made of it could be sent.
    #[test]
    fn any_bytes_are_read_or_refused(
        which in 0_usize..4, changes in prop::collection::vec((any::<u16>(), any::<u8>()), 0..6),
        noise in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let mut bytes = match which {
            0 => example_1(6),
            1 => example_3(),
            2 => example_4(),
            _ => noise,
        };
        for (at, value) in changes {
            let len = bytes.len();
            if len > 0 {
                bytes[usize::from(at) % len] = value;
            }
        }
        let mut mapper = Mapper::new(Table::parse(DEFAULT).unwrap(), 64);
        let mut out = Vec::new();
        let _ = mapper.map(&bytes, &mut |report| {
            let repr = strata_dta::protocol::packed::Repr::of(report, Default::default());
            repr.emit(&[*report], &mut out);
        });
    }
}

#[test]
fn a_report_is_written_as_the_diagrams_have_it() {
    let packet = [ipv4(6, [10, 0, 0, 1], [10, 0, 0, 2], 64), tcp(1024, 80)].concat();
    let repr = Repr {
        sequence: 7 << 22 | 0x12_3456,
        node: 0x0102_0304,
        is_congested: true,
        interfaces: [5, 6],
        hop_latency: 0xa0b0_c0d0,
        queue_occupancy: 0xff01_0203,
        ingress_time: 0x0102_0304_0506_0708,
        packet: &packet,
    };
    let expected = |words: u64, packet: &[u8]| {
        let head = Bits::default().all(&[(4, 2), (6, 0), (22, 0x12_3456), (32, 0x0102_0304)]);
        let report = head.all(&[
            (4, 1),
            (4, 4),
            (8, words),
            (8, 5),
            (2, 0b01),
            (2, 0b10),
            (4, 0),
        ]);
        let bits = report.all(&[(5, 0b01111), (11, 0), (16, 0), (16, 0), (16, 0)]);
        let metadata = bits.all(&[(16, 5), (16, 6), (32, 0xa0b0_c0d0), (8, 0), (24, 0x01_0203)]);
        let all = metadata.put(64, 0x0102_0304_0506_0708);
        all.raw(packet).bytes
    };
    let emitted = |repr: Repr<'_>| {
        let mut bytes = Vec::new();
        repr.emit(&mut bytes);
        bytes
    };
    assert_eq!(emitted(repr), expected(17, &packet));
    let long = vec![1; 2000];
    let long_repr = Repr {
        packet: &long,
        ..repr
    };
    assert_eq!(emitted(long_repr), expected(255, &long[..992]));
}
