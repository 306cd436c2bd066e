//! Many interfaces through one ring, in a network namespace of the test's own: as through a ring each.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::os::fd::AsFd as _;
use std::process::Command;
use std::time::{Duration, Instant};

use strata_capture::Packets;
use strata_capture::live::{Direction, Live, LiveEvent, LiveNext, LiveOptions, Rings};
use strata_filter::Filter;
use strata_sys::socket;
use strata_testkit::{Namespace, may_use_kernel};
use strata_wire::Meta;

const PATIENCE: Duration = Duration::from_secs(20);

fn namespace(test: &str, pairs: usize) -> Option<Namespace> {
    may_use_kernel("capturing interfaces").then(|| {
        let namespace = Namespace::new(&format!("st-ring-{test}"));
        for number in 0..pairs {
            namespace.pair(&tap(number), &format!("vm{number}"));
        }
        namespace
    })
}

fn tap(number: usize) -> String {
    format!("tap{number}")
}

fn options(count: usize, rings: Rings) -> LiveOptions {
    let mut options = LiveOptions::default();
    options.interfaces = (0..count).map(tap).collect();
    options.ring_bytes = Some(8 << 20);
    options.immediate = true;
    options.rings = rings;
    options
}

fn open(options: &LiveOptions) -> Live {
    Live::open(options, 1).unwrap().pop().unwrap()
}

/// As long as the socket lives, the kernel notes the time of a packet once, and not for each ring that it reaches. It
/// begins some time after somebody asks.
fn one_time() -> UdpSocket {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket::set_number(socket.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMP, 1).unwrap();
    let with = options(1, Rings::Each);
    let mut pair = [open(&with), open(&with)];
    let begun = Instant::now();
    loop {
        send(&["vm0"], 0..1, 100);
        let [one, other] = pair.each_mut().map(|live| {
            let mut received = Received::default();
            received.receive(live, 1);
            received.packets
        });
        if one == other {
            return socket;
        }
        assert!(begun.elapsed() < PATIENCE, "{one:?} {other:?}");
    }
}

/// UDP with its number, and a VLAN tag if that is odd.
fn frame(number: u16, payload: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    if number % 2 == 1 {
        frame.extend([0x81, 0, 0, 7]);
    }
    let len = u16::try_from(payload + 28).unwrap().to_be_bytes();
    frame.extend([8, 0, 0x45, 0, len[0], len[1], 0, 0, 0, 0, 64, 17, 0, 0]);
    frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend(number.to_be_bytes());
    frame.extend([0, 53]);
    frame.extend(u16::try_from(payload + 8).unwrap().to_be_bytes());
    frame.resize(frame.len() + 2 + payload, 0x55);
    frame
}

/// Sends frames of these numbers into each of the interfaces.
fn send(from: &[&str], numbers: std::ops::Range<u16>, payload: usize) {
    let open = |name: &&str| pcap::Capture::from_device(*name).unwrap().open().unwrap();
    let mut all: Vec<_> = from.iter().map(open).collect();
    for number in numbers {
        for sender in &mut all {
            sender.sendpacket(frame(number, payload)).unwrap();
        }
        if number % 200 == 0 {
            // A thousand fit into the queue before the other end.
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Time, length and bytes of a packet.
type Came = (u64, u32, Vec<u8>);

/// Packets by the names of their interfaces.
#[derive(Default)]
struct Received {
    names: BTreeMap<u16, String>,
    packets: BTreeMap<String, Vec<Came>>,
}

impl Received {
    fn count(&self) -> usize {
        self.packets.values().map(Vec::len).sum()
    }

    /// Takes what comes until `wanted` packets have come and then nothing for a while.
    fn receive(&mut self, live: &mut Live, wanted: usize) {
        let begun = Instant::now();
        loop {
            match live.advance().unwrap() {
                LiveNext::Packets => self.take(&live.batch()),
                LiveNext::Meta(Meta::Interface { id, interface }) => {
                    self.names.insert(id, interface.name().unwrap().to_owned());
                }
                LiveNext::Idle if self.count() >= wanted || begun.elapsed() > PATIENCE => return,
                _ => {}
            }
        }
    }

    fn take(&mut self, batch: &impl Packets) {
        for index in 0..batch.len() {
            let packet = batch.get(index);
            let name = self.names[&packet.interface].clone();
            let came = (packet.ts_ns, packet.wire_len, packet.data.to_vec());
            self.packets.entry(name).or_default().push(came);
        }
    }
}

/// What an interface has received, as the kernel counts.
fn came_to(namespace: &Namespace, name: &str) -> u64 {
    let mut command = Command::new("ip");
    command.args(["-n", namespace.name(), "-j", "-s", "link", "show", name]);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (_, rx) = text.split_once("\"rx\":").unwrap();
    let (_, packets) = rx.split_once("\"packets\":").unwrap();
    let end = packets.find(|c: char| !c.is_ascii_digit()).unwrap();
    packets[..end].parse().unwrap()
}

#[test]
fn one_ring_has_what_a_ring_each_has() {
    let Some(namespace) = namespace("twin", 5) else {
        return;
    };
    namespace.enter(|| {
        let filter = Filter::parse("udp and not udp src port 8").unwrap();
        let _one_time = one_time();
        for direction in [Direction::Both, Direction::In, Direction::Out] {
            for filter in [None, Some(filter.clone())] {
                let with = |rings| {
                    // The fifth belongs to no member.
                    let mut with = options(4, rings);
                    with.direction = direction;
                    with.filter.clone_from(&filter);
                    with.snaplen = 90;
                    with
                };
                let mut one = open(&with(Rings::One));
                let mut each = open(&with(Rings::Each));
                assert_eq!(one.ways()[3].how, "AF_PACKET, shared ring");
                assert_eq!(each.ways()[3].how, "AF_PACKET");
                assert_eq!(one.not_shared(), None);
                send(&["vm0", "tap1", "vm3", "vm4"], 0..300, 100);
                let (mut ones, mut eachs) = (Received::default(), Received::default());
                let sent = match direction {
                    Direction::Both => 900,
                    Direction::In => 600,
                    _ => 300,
                };
                // What has a tag is no UDP to it.
                let filtered = u64::from(filter.is_some()) * sent / 300 * 151;
                let wanted = usize::try_from(sent - filtered).unwrap();
                ones.receive(&mut one, wanted);
                eachs.receive(&mut each, wanted);
                assert_eq!(ones.count(), wanted);
                assert!(ones.packets == eachs.packets, "{direction:?}");
                assert_eq!(one.filtered(), each.filtered());
                assert_eq!(one.filtered().packets, filtered);
                let received = |live: &mut Live| -> Vec<(String, u64, u64)> {
                    let counts = live.counts().unwrap().into_iter();
                    counts
                        .map(|(name, c)| (name, c.received, c.dropped))
                        .collect()
                };
                assert_eq!(received(&mut one), received(&mut each));
            }
        }
    });
}

/// Whose packets were dropped is known for each interface, though the kernel counts them for the ring.
#[test]
fn drops_are_those_of_each_interface() {
    let Some(namespace) = namespace("drops", 4) else {
        return;
    };
    namespace.enter(|| {
        let mut with = options(3, Rings::One);
        // Together half a megabyte.
        with.ring_bytes = Some(128 << 10);
        with.snaplen = 2_000;
        with.filter = Some(Filter::parse("not udp src port 4").unwrap());
        let mut live = open(&with);
        let mut received = Received::default();
        received.receive(&mut live, 0);
        let before: Vec<u64> = (0..3).map(|n| came_to(&namespace, &tap(n))).collect();
        send(&["vm0"], 0..900, 1000);
        send(&["vm1", "vm3"], 0..400, 1000);
        send(&["vm2"], 10..11, 1000);
        let counts = live.counts().unwrap();
        let early: u64 = counts.iter().map(|(_, counts)| counts.dropped).sum();
        assert_eq!(early, 0, "nothing was read yet, so the number is unknown");
        // One after the other, so that some come before all is read.
        received.receive(&mut live, 100);
        send(&["vm2"], 11..12, 1000);
        received.receive(&mut live, 100);
        let counts = live.counts().unwrap();
        let taken = |name: &str| received.packets.get(name).map_or(0, Vec::len) as u64;
        let mut filtered = 0;
        for (before, (name, counts)) in before.iter().zip(&counts) {
            let came = came_to(&namespace, name) - before;
            assert_eq!(taken(name) + counts.dropped, counts.received, "{name}");
            filtered += came - counts.received;
            assert!(counts.dropped > 0, "{name}: {counts:?}");
        }
        assert_eq!(filtered, live.filtered().packets);
        assert_eq!(filtered, 2, "of tap0 and tap1");
        assert_eq!(taken("tap2"), 1, "the later one: the ring was full before");
    });
}

/// A capture that ends while packets are dropped knows whose they were.
#[test]
fn drops_are_known_at_the_end() {
    let Some(namespace) = namespace("end", 2) else {
        return;
    };
    namespace.enter(|| {
        let mut with = options(2, Rings::One);
        with.ring_bytes = Some(128 << 10);
        with.snaplen = 2_000;
        let mut live = open(&with);
        let mut received = Received::default();
        received.receive(&mut live, 0);
        send(&["vm0"], 0..900, 1000);
        send(&["vm1"], 0..500, 1000);
        let drained = live.drain(PATIENCE, |batch| {
            received.take(batch);
            Ok::<(), ()>(())
        });
        drained.unwrap();
        for ((name, counts), sent) in live.counts().unwrap().iter().zip([900, 500]) {
            let taken = received.packets.get(name).map_or(0, Vec::len) as u64;
            assert_eq!(
                (taken + counts.dropped, counts.received),
                (sent, sent),
                "{name}"
            );
            assert!(counts.dropped > 0, "{name}");
        }
    });
}

#[test]
fn interfaces_of_one_ring_go_down_and_away_and_come_back() {
    let Some(namespace) = namespace("gone", 3) else {
        return;
    };
    namespace.enter(|| {
        let mut live = open(&options(3, Rings::One));
        let mut received = Received::default();
        let expect = |live: &mut Live, received: &mut Received, event: LiveEvent| {
            let started = Instant::now();
            let mut seen = Vec::new();
            while !seen.contains(&event) {
                assert!(started.elapsed() < PATIENCE, "{event:?}, {seen:?}");
                received.receive(live, 0);
                seen.extend(live.take_events());
            }
            assert_eq!(seen.len(), 1, "{seen:?}");
        };
        namespace.ip("link set tap1 down");
        expect(&mut live, &mut received, LiveEvent::Down("tap1".into()));
        namespace.ip("link set tap1 up");
        expect(&mut live, &mut received, LiveEvent::Back("tap1".into()));
        send(&["vm0", "vm1"], 0..1, 10);
        received.receive(&mut live, 2);
        let names = |before: &str, now: &str| LiveEvent::Renamed(before.into(), now.into());
        namespace.ip("link set tap1 name other");
        expect(&mut live, &mut received, names("tap1", "other"));
        namespace.ip("link set other name tap1");
        expect(&mut live, &mut received, names("other", "tap1"));
        namespace.ip("link del tap1");
        expect(&mut live, &mut received, LiveEvent::Gone("tap1".into()));
        send(&["vm0"], 2..3, 10);
        received.receive(&mut live, 3);
        namespace.pair("tap1", "vm1");
        expect(&mut live, &mut received, LiveEvent::Again("tap1".into()));
        send(&["vm1"], 4..5, 10);
        received.receive(&mut live, 4);
        let of = |name: &str| received.packets[name].len();
        assert_eq!((of("tap0"), of("tap1")), (2, 2));
        // Promiscuous as before it went.
        let mut command = Command::new("ip");
        let shown = command.args(["-n", namespace.name(), "-d", "link", "show", "tap1"]);
        let shown = String::from_utf8(shown.output().unwrap().stdout).unwrap();
        assert!(shown.contains("promiscuity 1"), "{shown}");
    });
}

#[test]
fn workers_share_packets_of_one_ring_each() {
    let Some(namespace) = namespace("spread", 3) else {
        return;
    };
    namespace.enter(|| {
        let mut workers = Live::open(&options(3, Rings::One), 2).unwrap();
        let sent = 100;
        let open = |name| pcap::Capture::from_device(name).unwrap().open().unwrap();
        let mut senders = ["vm0", "vm2"].map(open);
        for host in 0..sent {
            let mut frame = frame(0, 10);
            frame[29] = u8::try_from(host).unwrap();
            for sender in &mut senders {
                sender.sendpacket(&*frame).unwrap();
            }
        }
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        for live in &mut workers {
            let mut received = Received::default();
            received.receive(live, 20);
            assert!(received.count() > 20, "{}", received.count());
            for (name, counts) in live.counts().unwrap() {
                let taken = received.packets.get(&name).map_or(0, Vec::len) as u64;
                assert_eq!((taken, counts.dropped), (counts.received, 0), "{name}");
                *sums.entry(name).or_default() += taken;
            }
        }
        assert_eq!(sums["tap0"], sent);
        assert_eq!((sums["tap1"], sums["tap2"]), (0, sent));
    });
}

/// The loopback, and what has no Ethernet header, have rings of their own beside the one.
#[test]
fn what_cannot_share_has_a_ring_of_its_own() {
    let Some(namespace) = namespace("own", 2) else {
        return;
    };
    namespace.ip("link set lo up");
    namespace.ip("tuntap add mode tun name tun0");
    namespace.ip("link set tun0 up");
    namespace.enter(|| {
        let mut with = options(2, Rings::One);
        with.interfaces = ["lo", "tap0", "tun0", "tap1"].map(str::to_owned).to_vec();
        let mut live = open(&with);
        let ways = live.ways();
        let mut ways: Vec<String> = ways.iter().map(ToString::to_string).collect();
        ways.sort_unstable();
        let one = |name: &str| format!("{name}: AF_PACKET, shared ring");
        let own = |name: &str| format!("{name}: AF_PACKET");
        assert_eq!(ways, [own("lo"), one("tap0"), one("tap1"), own("tun0")]);
        let mut received = Received::default();
        received.receive(&mut live, 0);
        send(&["vm0", "vm1"], 0..50, 10);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket
            .send_to(&[1; 20], socket.local_addr().unwrap())
            .unwrap();
        received.receive(&mut live, 101);
        let of = |name: &str| received.packets[name].len();
        assert_eq!((of("lo"), of("tap0"), of("tap1")), (1, 50, 50));
    });
}
