//! Interfaces, in a network namespace of the test's own: what is sent on one end of a pair is
//! captured on the other.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use strata_capture::live::{
    CUT_BYTES_MIN, Device, Direction, Exclusive, Live, LiveError, LiveEvent, LiveNext, LiveOptions,
    Rings, Stamps,
};
use strata_capture::{Input, InputOptions, Next, Packets};
use strata_filter::Filter;
use strata_testkit::{Namespace, data_dir, may_use_kernel};
use strata_wire::dissect::dissect;
use strata_wire::{FlowKey, FlowShare, LinkType, TunnelKey};

const NEAR: &str = "st-live-a";
const FAR: &str = "st-live-b";
/// Within this, copies of a packet have come by all ports of a bridge.
const SETTLED: Duration = Duration::from_millis(100);

fn options(interface: &str) -> LiveOptions {
    let mut options = LiveOptions::default();
    options.interfaces = vec![interface.to_owned()];
    options.ring_bytes = Some(96 << 20);
    options.immediate = true;
    options
}

fn namespace(test: &str) -> Option<Namespace> {
    may_use_kernel("capturing interfaces").then(|| {
        let namespace = Namespace::new(&format!("st-live-{test}"));
        namespace.pair(NEAR, FAR);
        namespace
    })
}

/// Ethernet packets from real captures that a pair of interfaces accepts.
fn packets(captures: &[&str]) -> Vec<Vec<u8>> {
    let paths: Vec<_> = captures.iter().map(|name| data_dir().join(name)).collect();
    let mut packets = Vec::new();
    for path in paths {
        let mut input = Input::open(&[path], &InputOptions::default()).unwrap();
        loop {
            match input.advance().unwrap() {
                Next::Packets => {
                    let batch = input.batch();
                    packets.extend(batch.iter().map(|packet| packet.data.to_vec()));
                }
                Next::Meta(_) => {}
                Next::End => break,
            }
        }
    }
    packets.retain(|packet| (14..9_000).contains(&packet.len()));
    packets.truncate(5_000);
    packets
}

/// Captures with VLAN tags, single and double, tunnels, IPv6 and fragments.
fn odd_packets() -> Vec<Vec<u8>> {
    let wanted = [
        "vlan", "qinq", "QinQ", "mpls", "pppoe", "frag", "gre", "vxlan",
    ];
    let mut names = Vec::new();
    for path in strata_testkit::format_captures() {
        let name = path
            .strip_prefix(data_dir())
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        let is_ethernet = Input::open(&[path], &InputOptions::default()).is_ok_and(|mut input| {
            matches!(
                input.advance(),
                Ok(Next::Meta(strata_wire::Meta::Interface { interface, .. }))
                    if interface.link == LinkType::ETHERNET
            )
        });
        // The corpus also has broken captures.
        let readable = wanted.iter().any(|word| name.contains(word)) && name.ends_with(".pcap");
        if is_ethernet && readable {
            names.push(name);
        }
    }
    let readable: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .filter(|name| std::panic::catch_unwind(|| packets(&[name])).is_ok())
        .collect();
    packets(&readable)
}

fn send(packets: &[Vec<u8>]) {
    let sender = pcap::Capture::from_device(NEAR).unwrap();
    let mut sender = sender.open().unwrap();
    for some in packets.chunks(500) {
        for packet in some {
            sender.sendpacket(packet.as_slice()).unwrap();
        }
        // A thousand fit into the queue before the other end, and on a busy machine the kernel
        // drains it a little later. Each pause takes a block of the ring.
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Received {
    data: Vec<u8>,
    wire_len: u32,
    ts_ns: u64,
}

/// What arrives until nothing has come for a while; while less than wanted has come, until it has
/// taken far too long.
fn receive(live: &mut Live, wanted: usize) -> Vec<Received> {
    let begun = Instant::now();
    let mut received = Vec::new();
    loop {
        match live.advance().unwrap() {
            LiveNext::Packets => {
                let batch = live.batch();
                for index in 0..batch.len() {
                    let packet = batch.get(index);
                    received.push(Received {
                        data: packet.data.to_vec(),
                        wire_len: packet.wire_len,
                        ts_ns: packet.ts_ns,
                    });
                }
            }
            LiveNext::Meta(_) => {}
            LiveNext::Idle => {
                if received.len() >= wanted || begun.elapsed() > Duration::from_secs(10) {
                    return received;
                }
            }
        }
    }
}

fn open(options: &LiveOptions) -> Live {
    Live::open(options, 1).unwrap().pop().unwrap()
}

#[test]
fn what_is_sent_is_captured_as_it_was_with_its_tags() {
    let Some(namespace) = namespace("whole") else {
        return;
    };
    let mut sent = packets(&["labelled/mix-test/trace.pcap"]);
    let odd = odd_packets();
    let tagged = odd
        .iter()
        .filter(|packet| packet[12..14] == [0x81, 0])
        .count();
    assert!(
        odd.len() > 500 && tagged > 100,
        "{} odd, {tagged} tagged",
        odd.len()
    );
    sent.extend(odd);
    namespace.enter(|| {
        let mut live = open(&options(FAR));
        send(&sent);
        let received = receive(&mut live, sent.len());
        assert_eq!(received.len(), sent.len());
        for (sent, received) in sent.iter().zip(&received) {
            assert_eq!(*sent, received.data);
            assert_eq!(received.wire_len as usize, sent.len());
        }
        assert!(received.is_sorted_by_key(|packet| packet.ts_ns));
        let counts = live.counts().unwrap();
        assert_eq!(counts[0].1.dropped, 0);
        assert_eq!(counts[0].1.received, sent.len() as u64);
    });
}

#[test]
fn the_kernel_filters_as_evaluation_does_tags_included() {
    let Some(namespace) = namespace("filter") else {
        return;
    };
    let mut sent = packets(&["labelled/mix-test/trace.pcap"]);
    sent.truncate(500);
    sent.extend(odd_packets());
    let filters = [
        "tcp",
        "vlan",
        "vlan and tcp",
        "not vlan",
        "ether[10:4] & 0xff != 0",
        "ether[12:4] & 0xfff > 5",
        "ether[13] = 0 and ether[15] & 1 = 0",
        "ether[len - len + 11:4] & 0x0f > 3",
        "vlan and vlan",
        "vlan and (ip[8] > 5 or ip6)",
        "len > 100 and len < 1000",
        "less 70 or vlan and udp port 53",
        "pppoes and ip",
        "mpls and ip[8] > 5",
    ];
    namespace.enter(|| {
        for text in filters {
            let filter = Filter::parse(text).unwrap();
            let program = filter.compile(LinkType::ETHERNET).unwrap();
            let mut with = options(FAR);
            with.filter = Some(filter);
            let mut live = open(&with);
            assert_eq!(live.filter_in_user_space(), None, "{text}");
            send(&sent);
            let length = |packet: &[u8]| u32::try_from(packet.len()).unwrap();
            let wanted: Vec<&Vec<u8>> = sent
                .iter()
                .filter(|packet| program.matches(packet, length(packet)))
                .collect();
            let received = receive(&mut live, wanted.len());
            let received: Vec<&Vec<u8>> = received.iter().map(|packet| &packet.data).collect();
            assert!(
                received == wanted,
                "{text}: {} of {}",
                received.len(),
                wanted.len()
            );
            let filtered = live.filtered();
            assert_eq!(
                filtered.packets,
                (sent.len() - wanted.len()) as u64,
                "{text}"
            );
            let bytes = |packets: &[&Vec<u8>]| packets.iter().map(|p| p.len()).sum::<usize>();
            let all: Vec<&Vec<u8>> = sent.iter().collect();
            assert_eq!(
                filtered.bytes,
                (bytes(&all) - bytes(&wanted)) as u64,
                "{text}"
            );
        }
    });
}

/// What libpcap captures on an interface until it has nothing more.
fn by_libpcap(capture: &mut pcap::Capture<pcap::Active>) -> Vec<Vec<u8>> {
    let mut received = Vec::new();
    while let Ok(packet) = capture.next_packet() {
        received.push(packet.data.to_vec());
    }
    received
}

/// On interfaces, one tag is looked through, as libpcap does there, since the kernel has taken it off.
#[test]
fn filters_on_an_interface_match_what_they_match_there_in_libpcap() {
    let Some(namespace) = namespace("through") else {
        return;
    };
    let mut sent = packets(&["labelled/mix-test/trace.pcap"]);
    sent.truncate(300);
    sent.extend(odd_packets());
    // libpcap puts a tag back in front of what the kernel says that the frame is; 802.3 frames it does not know.
    sent.retain(|packet| packet[12] >= 6);
    let tagged = |kind: [u8; 2]| sent.iter().filter(|packet| packet[12..14] == kind).count();
    assert!(tagged([0x81, 0]) > 100, "{}", tagged([0x81, 0]));
    namespace.enter(|| {
        for text in [
            "tcp",
            "not tcp",
            "udp port 53 or arp",
            "host 10.0.0.1",
            "not (src net 10.0.0.0/8 or ip6)",
            "ip[8] > 5",
            "ether host 00:00:00:00:00:01 or icmp or icmp6",
            "mpls and ip",
            "pppoes",
            "len > 100 and len < 1000",
            "greater 90",
            "ether[12:2] = 0x0800",
            "ether[23] = 17 or ether[6] & 1 = 1",
        ] {
            let peer = pcap::Capture::from_device(FAR).unwrap();
            let peer = peer.promisc(true).immediate_mode(true);
            let mut peer = peer.buffer_size(64 << 20).open().unwrap();
            peer.filter(text, true).unwrap();
            let mut peer = peer.setnonblock().unwrap();
            let filter = Filter::parse(text).unwrap().on_interfaces();
            let program = filter.compile(LinkType::ETHERNET).unwrap();
            let mut with = options(FAR);
            with.filter = Some(filter);
            let mut live = open(&with);
            assert_eq!(live.filter_in_user_space(), None, "{text}");
            send(&sent);
            let length = |packet: &[u8]| u32::try_from(packet.len()).unwrap();
            let wanted = sent
                .iter()
                .filter(|packet| program.matches(packet, length(packet)));
            let received = receive(&mut live, wanted.count());
            let received: Vec<Vec<u8>> = received.into_iter().map(|packet| packet.data).collect();
            let there = by_libpcap(&mut peer);
            assert!(
                received == there,
                "{text}: {} here, {} in libpcap",
                received.len(),
                there.len()
            );
        }
    });
}

#[test]
fn all_interfaces_together_come_cooked() {
    let Some(namespace) = namespace("cooked") else {
        return;
    };
    let mut sent = packets(&["labelled/mix-test/trace.pcap"]);
    sent.truncate(300);
    // After a tag, the kernel does not report a length (802.3) unless another tag is before it, nor of
    // which of its two kinds the second tag is.
    let is_told = |packet: &Vec<u8>| {
        let tagged = [[0x81, 0], [0x88, 0xa8], [0x91, 0]];
        !tagged.iter().any(|kind| packet[12..14] == *kind)
            || packet[16] >= 6 && packet[16..18] != [0x88, 0xa8]
    };
    let odd: Vec<_> = odd_packets().into_iter().filter(is_told).collect();
    let twice = odd
        .iter()
        .filter(|p| p[12..14] == [0x81, 0] && p[16..18] == [0x81, 0]);
    assert!(twice.count() > 5);
    sent.extend(odd);
    namespace.enter(|| {
        let mut with = options("any");
        with.direction = Direction::In;
        let mut live = open(&with);
        send(&sent);
        let received = receive(&mut live, sent.len());
        assert_eq!(received.len(), sent.len());
        let far = Device::named(FAR).unwrap().index;
        for (sent, received) in sent.iter().zip(&received) {
            let cooked = &received.data;
            assert_eq!(cooked[20..], sent[14..]);
            assert_eq!(cooked[4..8], far.to_be_bytes());
            let kind = u16::from_be_bytes([sent[12], sent[13]]);
            // 802.3 frames have a length there, and a number of Linux's own instead.
            if kind >= 0x600 {
                assert_eq!(cooked[..2], sent[12..14]);
            }
            assert_eq!(received.wire_len as usize, sent.len() + 6);
            // ARPHRD_ETHER, 6 bytes of address: the sender's.
            assert_eq!(cooked[8..10], [0, 1]);
            assert_eq!(cooked[12..18], sent[6..12]);
        }
    });
}

fn key(packet: &[u8]) -> Option<FlowKey> {
    dissect(LinkType::ETHERNET, packet, TunnelKey::Outer).key
}

#[test]
fn workers_share_packets_and_conversations_meet() {
    let Some(namespace) = namespace("spread") else {
        return;
    };
    let mut sent = packets(&["labelled/mix-test/trace.pcap"]);
    // Every packet and its reply.
    for packet in sent.clone().iter().filter(|p| p[12..15] == [8, 0, 0x45]) {
        let mut answer = packet.clone();
        answer.copy_within(26..30, 30);
        answer[26..30].copy_from_slice(&packet[30..34]);
        sent.push(answer);
    }
    namespace.enter(|| {
        let mut workers = Live::open(&options(FAR), 3).unwrap();
        send(&sent);
        let mut by_pair: HashMap<(u128, u128), HashSet<usize>> = HashMap::new();
        let mut count = Vec::new();
        for (worker, live) in workers.iter_mut().enumerate() {
            let received = receive(live, 0);
            count.push(received.len());
            for packet in received {
                if let Some(key) = key(&packet.data) {
                    let pair = (key.low.address, key.high.address);
                    let pair = (pair.0.min(pair.1), pair.0.max(pair.1));
                    by_pair.entry(pair).or_default().insert(worker);
                }
            }
        }
        assert_eq!(count.iter().sum::<usize>(), sent.len());
        assert!(
            count.iter().all(|&count| count > sent.len() / 20),
            "{count:?}"
        );
        assert!(by_pair.len() > 30);
        assert!(by_pair.values().all(|workers| workers.len() == 1));
    });
}

/// UDP between two ends, with this many bytes of payload.
fn udp(ipv6: bool, ports: (u16, u16), payload: u16) -> Vec<u8> {
    let mut packet = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    if ipv6 {
        packet.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        packet.extend((payload + 8).to_be_bytes());
        packet.extend([17, 64]);
        packet.extend([0xfd; 15]);
        packet.push(2);
        packet.extend([0xfd; 15]);
        packet.push(1);
    } else {
        packet.extend([8, 0, 0x45, 0]);
        packet.extend((payload + 28).to_be_bytes());
        packet.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1]);
    }
    packet.extend(ports.0.to_be_bytes());
    packet.extend(ports.1.to_be_bytes());
    packet.extend((payload + 8).to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(vec![0x55; payload.into()]);
    packet
}

#[test]
fn packets_of_known_flows_are_cut_before_the_copy() {
    let Some(namespace) = namespace("cut") else {
        return;
    };
    namespace.enter(|| {
        let mut with = options(FAR);
        with.cut = true;
        let mut live = open(&with);
        let table = live.cut_table().unwrap();
        table.set_second(5);
        for ipv6 in [false, true] {
            let packet = udp(ipv6, (4000, 5000), 1000);
            let other = udp(ipv6, (4001, 5000), 1000);
            let whole = packet.len();
            let min = usize::from(CUT_BYTES_MIN);
            let lengths = |live: &mut Live| -> Vec<usize> {
                send(&[packet.clone(), other.clone()]);
                let received = receive(live, 2);
                assert!(received.iter().all(|p| p.wire_len as usize == whole));
                received.iter().map(|packet| packet.data.len()).collect()
            };
            assert_eq!(lengths(&mut live), [whole, whole]);
            let flow = key(&packet).unwrap();
            // A single packet is no agreement.
            for agreed in 0..3 {
                table.cut(&flow, 100);
                assert_eq!(lengths(&mut live), [whole, whole], "{agreed}");
            }
            table.cut(&flow, 100);
            assert_eq!(lengths(&mut live), [min, whole]);
            // The reply belongs to the same flow.
            let mut answer = udp(ipv6, (5000, 4000), 1000);
            let (at, len) = if ipv6 { (22, 16) } else { (26, 4) };
            answer[at + len - 1] = 1;
            answer[at + 2 * len - 1] = 2;
            send(&[answer]);
            assert_eq!(receive(&mut live, 1)[0].data.len(), min);
            table.cut(&flow, 400);
            assert_eq!(lengths(&mut live), [400, whole]);
            table.keep_whole(&flow);
            assert_eq!(lengths(&mut live), [whole, whole]);
            for _ in 0..4 {
                table.cut(&flow, 300);
            }
            assert_eq!(lengths(&mut live), [300, whole]);
            // What is not confirmed is forgotten.
            table.set_second(8);
            assert_eq!(lengths(&mut live), [whole, whole]);
            table.set_second(5);
            table.keep_whole(&flow);
            // What a policy says needs no agreement.
            table.cut_at_once(&flow, 300);
            assert_eq!(lengths(&mut live), [300, whole]);
            table.keep_whole(&flow);
        }
    });
}

#[test]
fn packets_are_taken_away_through_af_xdp() {
    let Some(namespace) = namespace("xdp") else {
        return;
    };
    // An AF_XDP frame is a page.
    namespace.ip(&format!("link set {NEAR} mtu 1500"));
    namespace.ip(&format!("link set {FAR} mtu 1500"));
    let mut sent = packets(&["labelled/mix-test/trace.pcap"]);
    sent.extend(odd_packets());
    sent.retain(|packet| packet.len() <= 1_500);
    namespace.enter(|| {
        let mut with = options(FAR);
        with.exclusive = Exclusive::Yes;
        let mut live = open(&with);
        assert_eq!(
            live.ways()[0].to_string(),
            format!("{FAR}: AF_XDP, native program, copy")
        );
        let mut host = open(&options(FAR));
        let now = || {
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap()
                .as_nanos()
        };
        let begun = now();
        send(&sent);
        let received = receive(&mut live, sent.len());
        assert_eq!(received.len(), sent.len());
        for (sent, received) in sent.iter().zip(&received) {
            assert_eq!(*sent, received.data);
            assert_eq!(received.wire_len as usize, sent.len());
        }
        assert!(received.is_sorted_by_key(|packet| packet.ts_ns));
        let times = begun..now();
        assert!(times.contains(&received[0].ts_ns.into()));
        assert_eq!(receive(&mut host, 0), [], "nothing is left for the host");
        assert_eq!(live.counts().unwrap()[0].1.dropped, 0);
        drop(live);

        // What does not pass the filter goes to the host; flows are cut here too.
        with.filter = Some(Filter::parse("udp port 4000").unwrap());
        with.cut = true;
        with.snaplen = 800;
        let mut live = open(&with);
        let table = live.cut_table().unwrap();
        table.set_second(5);
        for ipv6 in [false, true] {
            let (wanted, other) = (udp(ipv6, (4000, 5000), 1000), udp(ipv6, (1, 5000), 1000));
            let both = [wanted.clone(), other.clone()];
            send(&both);
            let received = receive(&mut live, 1);
            assert_eq!(received.len(), 1);
            assert_eq!(received[0].data, wanted[..800]);
            assert_eq!(received[0].wire_len as usize, wanted.len());
            let left: Vec<Vec<u8>> = receive(&mut host, 1).into_iter().map(|p| p.data).collect();
            assert_eq!(left, [other]);
            for _ in 0..4 {
                table.cut(&key(&wanted).unwrap(), 300);
            }
            send(&both);
            let received = receive(&mut live, 1);
            assert_eq!(received[0].data, wanted[..300]);
            assert_eq!(received[0].wire_len as usize, wanted.len());
            receive(&mut host, 1);
        }
        assert_eq!(live.filtered().packets, 4);
    });
}

#[test]
fn an_interface_may_go_down_and_away_and_come_back() {
    let Some(namespace) = namespace("down") else {
        return;
    };
    let packet = udp(false, (1, 2), 50);
    namespace.enter(|| {
        let mut live = open(&options(FAR));
        let expect = |live: &mut Live, event: LiveEvent| {
            let started = Instant::now();
            let mut seen = Vec::new();
            while !seen.contains(&event) {
                assert!(
                    started.elapsed() < Duration::from_secs(10),
                    "{event:?}, {seen:?}"
                );
                assert_eq!(receive(live, 0), []);
                seen.extend(live.take_events());
            }
        };
        namespace.ip(&format!("link set {FAR} down"));
        expect(&mut live, LiveEvent::Down(FAR.into()));
        namespace.ip(&format!("link set {FAR} up"));
        expect(&mut live, LiveEvent::Back(FAR.into()));
        send(std::slice::from_ref(&packet));
        assert_eq!(receive(&mut live, 1)[0].data, packet);

        namespace.ip(&format!("link del {FAR}"));
        expect(&mut live, LiveEvent::Gone(FAR.into()));
        namespace.pair(NEAR, FAR);
        expect(&mut live, LiveEvent::Again(FAR.into()));
        send(std::slice::from_ref(&packet));
        assert_eq!(receive(&mut live, 1)[0].data, packet);
        assert_eq!(live.counts().unwrap()[0].1.received, 2);
    });
}

/// An interface is followed by its index while it exists: to its new name, and if that is removed it is
/// waited for under that.
#[test]
fn a_renamed_interface_is_captured_as_before() {
    let Some(namespace) = namespace("renamed") else {
        return;
    };
    const NEW: &str = "st-live-new";
    let packet = udp(false, (1, 2), 50);
    namespace.enter(|| {
        let mut live = open(&options(FAR));
        let expect = |live: &mut Live, event: LiveEvent| {
            let started = Instant::now();
            let mut seen = Vec::new();
            while !seen.contains(&event) {
                assert!(started.elapsed() < Duration::from_secs(10), "{event:?}");
                assert_eq!(receive(live, 0), []);
                seen.extend(live.take_events());
            }
            // One that is removed may be seen down before.
            seen.retain(|seen| *seen != LiveEvent::Down(NEW.into()));
            assert_eq!(seen, [event]);
        };
        let arrives = |live: &mut Live| {
            send(std::slice::from_ref(&packet));
            assert_eq!(receive(live, 1)[0].data, packet);
        };
        namespace.ip(&format!("link set {FAR} name {NEW}"));
        expect(&mut live, LiveEvent::Renamed(FAR.into(), NEW.into()));
        arrives(&mut live);
        assert_eq!(live.counts().unwrap()[0].0, NEW);
        // Another one gets the old name.
        namespace.pair("st-live-c", FAR);
        arrives(&mut live);
        namespace.ip(&format!("link del {FAR}"));
        // Back, and gone from there.
        namespace.ip(&format!("link set {NEW} name {FAR}"));
        expect(&mut live, LiveEvent::Renamed(NEW.into(), FAR.into()));
        namespace.ip(&format!("link set {FAR} name {NEW}"));
        expect(&mut live, LiveEvent::Renamed(FAR.into(), NEW.into()));
        namespace.ip(&format!("link del {NEW}"));
        expect(&mut live, LiveEvent::Gone(NEW.into()));
        namespace.pair(NEAR, NEW);
        expect(&mut live, LiveEvent::Again(NEW.into()));
        arrives(&mut live);
    });
}

#[test]
fn what_crosses_a_bridge_comes_where_it_comes_in() {
    ports_of_a_bridge(Rings::Each);
}

#[test]
fn what_crosses_a_bridge_comes_where_it_comes_in_to_one_ring() {
    ports_of_a_bridge(Rings::One);
}

/// Where broadcast packets with this source port come that are sent by an interface.
fn came(live: &mut Live, from: &str, source: u16) -> Vec<u16> {
    // Of IPv4, netfilter lets a bridge drop headers without a checksum.
    let mut packet = udp(true, (source, 2), 50);
    packet[..6].fill(0xff);
    let sender = pcap::Capture::from_device(from).unwrap();
    sender.open().unwrap().sendpacket(&*packet).unwrap();
    let mut came = Vec::new();
    let begun = Instant::now();
    loop {
        match live.advance().unwrap() {
            LiveNext::Packets => {
                let batch = live.batch();
                let batch = (0..batch.len()).map(|index| batch.get(index));
                let own = batch.filter(|found| found.data == packet);
                came.extend(own.map(|found| found.interface));
            }
            // A bridge forwards at once, but interfaces are looked at one after the other.
            LiveNext::Idle if !came.is_empty() && begun.elapsed() > SETTLED => break,
            _ => assert!(
                begun.elapsed() < Duration::from_secs(10),
                "nothing from {from}"
            ),
        }
    }
    came.sort_unstable();
    came
}

/// Three ports of a bridge, of which two are declared as such: what goes from one of those to the other comes
/// once.
fn ports_of_a_bridge(rings: Rings) {
    if !may_use_kernel("a bridge") {
        return;
    }
    let namespace = Namespace::new(&format!("st-live-{rings:?}"));
    namespace.ip("link add br0 type bridge");
    namespace.ip("link set br0 up");
    let port = |number: u8| {
        namespace.pair(&format!("tap{number}"), &format!("vm{number}"));
        namespace.ip(&format!("link set tap{number} master br0"));
    };
    (0..3).for_each(port);
    namespace.enter(|| {
        let mut all = options("tap0");
        all.interfaces = ["tap0", "tap1", "tap2"].map(str::to_owned).to_vec();
        all.rings = rings;
        all.bridge_ports = vec![vec![String::from("tap0"), String::from("tap1")]];
        let mut live = open(&all);
        let mut sent = 0;
        // What came late of earlier ones is not counted.
        let mut came = |from: &str| {
            sent += 1;
            came(&mut live, from, sent)
        };
        // Ports forward a little after they are up.
        let begun = Instant::now();
        while came("vm0") != [0, 2] || came("vm1") != [1, 2] || came("vm2").len() < 3 {
            assert!(begun.elapsed() < Duration::from_secs(30));
        }
        // Not again at the other of the two; at the third, which was not declared.
        assert_eq!(came("vm0"), [0, 2]);
        assert_eq!(came("vm1"), [1, 2]);
        assert_eq!(came("vm2"), [0, 1, 2]);
        // What this host sends comes in nowhere.
        assert_eq!(came("br0"), [0, 1, 2]);
        assert_eq!(came("tap1"), [1]);
    });
}

#[test]
fn one_direction_of_an_interface_is_captured() {
    one_direction(Rings::Each);
}

#[test]
fn one_direction_of_an_interface_is_captured_in_one_ring() {
    one_direction(Rings::One);
}

/// Three ports of a bridge: of one, only received packets are captured, and of another, only sent ones.
fn one_direction(rings: Rings) {
    if !may_use_kernel("a bridge") {
        return;
    }
    let namespace = Namespace::new(&format!("st-way-{rings:?}"));
    namespace.ip("link add br0 type bridge");
    namespace.ip("link set br0 up");
    for number in 0..3 {
        namespace.pair(&format!("tap{number}"), &format!("vm{number}"));
        namespace.ip(&format!("link set tap{number} master br0"));
    }
    namespace.enter(|| {
        let mut all = options("tap0");
        all.interfaces = ["tap0", "tap1", "tap2"].map(str::to_owned).to_vec();
        all.rings = rings;
        all.one_way = vec![
            ("tap0".into(), Direction::In),
            ("tap1".into(), Direction::Out),
        ];
        let mut live = open(&all);
        let mut sent = 0;
        let mut came = |from: &str| {
            sent += 1;
            came(&mut live, from, sent)
        };
        // Ports forward a little after they are up.
        let begun = Instant::now();
        while came("vm0") != [0, 1, 2] || came("vm1") != [2] || came("vm2") != [1, 2] {
            assert!(begun.elapsed() < Duration::from_secs(30));
        }
        assert_eq!(came("br0"), [1, 2]);
    });
}

#[test]
fn what_cannot_be_captured_is_said() {
    let Some(namespace) = namespace("errors") else {
        return;
    };
    namespace.enter(|| {
        let error = |options: &LiveOptions| Live::open(options, 1).unwrap_err();
        let missing = error(&options("st-live-x"));
        assert!(missing.to_string().contains(NEAR), "{missing}");
        namespace.ip(&format!("link set {FAR} down"));
        assert!(matches!(error(&options(FAR)), LiveError::Down { .. }));
        namespace.ip(&format!("link set {FAR} up"));
        let mut with = options(FAR);
        with.filter = Some(Filter::parse("inbound").unwrap());
        assert!(matches!(error(&with), LiveError::Filter { .. }));
        assert!(matches!(
            error(&LiveOptions::default()),
            LiveError::NoInterface
        ));
    });
}

#[test]
fn long_packets_are_cut_to_the_snapshot_length() {
    let Some(namespace) = namespace("snaplen") else {
        return;
    };
    let packet = udp(false, (1, 2), 30_000);
    namespace.enter(|| {
        for snaplen in [96, 40_000] {
            let mut with = options(FAR);
            with.snaplen = snaplen;
            let mut live = open(&with);
            send(std::slice::from_ref(&packet));
            let received = receive(&mut live, 1);
            let kept = packet.len().min(snaplen as usize);
            assert_eq!(received[0].data, packet[..kept]);
            assert_eq!(received[0].wire_len as usize, packet.len());
        }
    });
}

/// Which packets are captured follows from the flow alone, as the twin in user space computes it;
/// the flows of a smaller share are among those of a larger one; and what is skipped is counted to
/// the byte.
#[test]
fn flows_are_sampled_whole_and_what_is_left_out_is_counted() {
    let Some(namespace) = namespace("sample") else {
        return;
    };
    let mut sent = packets(&["labelled/mix-test/trace.pcap"]);
    sent.truncate(3_000);
    sent.extend(odd_packets());
    let key = |data: &[u8]| -> Option<FlowKey> {
        let headers = dissect(LinkType::ETHERNET, data, TunnelKey::Outer);
        // No tunnels, fragments or options: their ports do not count.
        let plain = data.get(12..14) == Some(&[8, 0])
            && data.get(14) == Some(&0x45)
            && data[20] & 0x3f == 0
            && data[21] == 0;
        headers
            .key
            .filter(|key| plain && (key.protocol == 6 || key.protocol == 17))
    };
    namespace.enter(|| {
        let mut with = options(FAR);
        with.sample = true;
        let mut live = open(&with);
        let sampler = live.sampler().unwrap();
        let mut before = usize::MAX;
        let mut sampled_out = sampler.sampled_out();
        for ratio in [1.0, 0.5, 0.1] {
            let share = FlowShare::of(ratio);
            sampler.set(share, 1);
            send(&sent);
            let mut received = Vec::new();
            let start = Instant::now();
            let now = loop {
                received.extend(receive(&mut live, 0));
                let now = sampler.sampled_out();
                let sampled_out = now.packets - sampled_out.packets;
                let all = received.len() as u64 + sampled_out >= sent.len() as u64;
                if all || start.elapsed() > Duration::from_secs(10) {
                    break now;
                }
            };
            assert_eq!(
                received.len() as u64 + now.packets - sampled_out.packets,
                sent.len() as u64,
                "{ratio}"
            );
            let bytes: usize = sent.iter().map(Vec::len).sum();
            let got: usize = received.iter().map(|packet| packet.data.len()).sum();
            assert_eq!(got as u64 + now.bytes - sampled_out.bytes, bytes as u64);
            sampled_out = now;
            assert!(received.len() < before || ratio >= 1.0, "{ratio}");
            before = received.len();
            let mut judged = 0;
            let mut captured: HashMap<Vec<u8>, usize> = HashMap::new();
            for packet in &received {
                *captured.entry(packet.data.clone()).or_default() += 1;
            }
            for packet in &sent {
                let Some(key) = key(packet) else { continue };
                let wanted = sampler.least_share(&key) <= share;
                assert_eq!(captured.contains_key(packet), wanted, "{ratio}: {key}");
                judged += 1;
            }
            assert!(judged > 1_000, "{judged}");
        }
        assert!(sampler.kernel_time().unwrap() > Duration::ZERO);
    });
}

/// A veth pair has no clock of its own: times are the kernel's unless the card's are insisted on,
/// which is refused with advice on what to do.
#[test]
fn without_a_clock_on_the_card_times_are_the_kernels() {
    let Some(namespace) = namespace("stamps") else {
        return;
    };
    let sent = packets(&["labelled/cic2017-sqli/trace.pcap"]);
    namespace.enter(|| {
        for stamps in [Stamps::Auto, Stamps::Host] {
            let mut options = options(FAR);
            options.stamps = stamps;
            let now = || {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
                u64::try_from(since.as_nanos()).unwrap()
            };
            let mut live = Live::open(&options, 1).unwrap().remove(0);
            assert_eq!(live.ways()[0].to_string(), format!("{FAR}: AF_PACKET"));
            let before = now();
            send(&sent);
            let mut times = Vec::new();
            while times.len() < sent.len() {
                assert!(now() < before + 20_000_000_000, "{} packets", times.len());
                if live.advance().unwrap() == LiveNext::Packets {
                    let batch = live.batch();
                    times.extend((0..batch.len()).map(|n| batch.get(n).ts_ns));
                }
            }
            assert!(times.is_sorted());
            assert!(times[0] >= before && times[times.len() - 1] <= now());
            assert!(live.take_events().is_empty());
        }
        let mut options = options(FAR);
        options.stamps = Stamps::Adapter;
        let refused = Live::open(&options, 1).unwrap_err();
        assert!(
            matches!(refused, LiveError::NoCardTimes { .. }),
            "{refused}"
        );
        assert!(refused.to_string().contains("ethtool -T"), "{refused}");
    });
}
