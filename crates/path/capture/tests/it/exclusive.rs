//! `--exclusive=auto`: packets are taken away from interfaces that nothing else uses, and from no
//! other.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use strata_bpf::{Assembler, Program, ProgramKind, Reg};
use strata_capture::Packets;
use strata_capture::live::{
    Device, Direction, Exclusive, Exclusivity, HostUses, Live, LiveError, LiveEvent, LiveNext,
    LiveOptions, Stamps,
};
use strata_testkit::{Namespace, may_use_kernel};

const NEAR: &str = "st-excl-a";
const FAR: &str = "st-excl-b";

fn options(interface: &str) -> LiveOptions {
    let mut options = LiveOptions::default();
    options.interfaces = vec![interface.to_owned()];
    options.ring_bytes = Some(32 << 20);
    options.immediate = true;
    options.exclusive = Exclusive::Auto;
    options
}

/// A pair whose packets fit the frames of AF_XDP.
fn namespace(test: &str) -> Option<Namespace> {
    may_use_kernel("capturing interfaces").then(|| {
        let namespace = Namespace::new(&format!("st-excl-{test}"));
        pair(&namespace);
        namespace
    })
}

fn pair(namespace: &Namespace) {
    namespace.pair(NEAR, FAR);
    namespace.ip(&format!("link set {NEAR} mtu 1500"));
    namespace.ip(&format!("link set {FAR} mtu 1500"));
}

fn tc(namespace: &Namespace, arguments: &str) {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace.name(), "tc"]);
    let output = command.args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "tc {arguments}: {output:?}");
}

/// How an interface would be captured.
fn decided(options: &LiveOptions) -> (String, Exclusivity) {
    let live = Live::open(options, 1).unwrap();
    let way = live[0].ways().remove(0);
    (way.how, way.exclusive)
}

const TAKEN: &str = "AF_XDP, native program, copy";

/// Tries until it succeeds. What was closed may live a little longer: in processes that other tests
/// are about to start.
fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Result<T, String>) -> T {
    let begun = Instant::now();
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(why) => assert!(begun.elapsed() < Duration::from_secs(10), "{what}: {why}"),
        }
        std::thread::yield_now();
    }
}

fn assert_taken(options: &LiveOptions, case: &str) {
    eventually(case, || match decided(options) {
        (how, Exclusivity::Taken) if how == TAKEN => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

/// Not taken, for this reason and no other.
fn assert_shared(options: &LiveOptions, why: &str) {
    eventually(why, || match decided(options) {
        (how, Exclusivity::No(found))
            if how == "AF_PACKET" && found.contains(why) && !found.contains("; ") =>
        {
            Ok(())
        }
        other => Err(format!("{other:?}")),
    });
}

/// Each use of an interface is a reason by itself: without it, packets are taken.
#[test]
fn what_is_used_is_not_taken_away() {
    let Some(namespace) = namespace("uses") else {
        return;
    };
    let cases = [
        (
            format!("addr add 192.0.2.1/32 dev {FAR}"),
            format!("addr del 192.0.2.1/32 dev {FAR}"),
            "has address 192.0.2.1/32",
        ),
        (
            format!("route add 198.51.100.0/24 dev {FAR}"),
            format!("route del 198.51.100.0/24 dev {FAR}"),
            "has a route, to 198.51.100.0/24",
        ),
        (
            format!("route add default dev {FAR} table 77"),
            format!("route del default dev {FAR} table 77"),
            "has a route, to 0.0.0.0/0 in table 77",
        ),
        (
            format!("route add 198.51.100.0/24 nexthop dev {NEAR} nexthop dev {FAR}"),
            String::from("route del 198.51.100.0/24"),
            "has a route, to 198.51.100.0/24",
        ),
        (
            format!("link set {FAR} master st-excl-br"),
            format!("link set {FAR} nomaster"),
            "belongs to st-excl-br",
        ),
        (
            format!("link add link {FAR} name st-excl-mv type macvlan mode bridge"),
            String::from("link del st-excl-mv"),
            "carries st-excl-mv",
        ),
    ];
    namespace.ip("link add st-excl-br type bridge");
    namespace.enter(|| {
        let options = options(FAR);
        assert_taken(&options, "nothing uses it");
        for (use_it, leave_it, why) in cases {
            namespace.ip(&use_it);
            assert_shared(&options, why);
            namespace.ip(&leave_it);
            assert_taken(&options, &leave_it);
        }
        for discipline in ["clsact", "ingress"] {
            tc(&namespace, &format!("qdisc add dev {FAR} {discipline}"));
            assert_shared(
                &options,
                &format!("has tc programs or filters ({discipline})"),
            );
            tc(&namespace, &format!("qdisc del dev {FAR} {discipline}"));
            assert_taken(&options, discipline);
        }
    });
}

/// A route of IPv6, and the address that every interface with IPv6 has, with what to do about it.
#[test]
fn ipv6_is_a_use() {
    let Some(namespace) = namespace("ipv6") else {
        return;
    };
    namespace.enter(|| {
        let options = options(FAR);
        let setting = format!("/proc/sys/net/ipv6/conf/{FAR}/disable_ipv6");
        if fs::write(&setting, "0").is_err() {
            // A kernel without IPv6.
            assert_taken(&options, "no IPv6");
            return;
        }
        let (how, exclusive) = decided(&options);
        assert_eq!(how, "AF_PACKET");
        let why = exclusive.to_string();
        assert!(why.contains("has address fe80::"), "{why}");
        let advice = format!("`sysctl -w net.ipv6.conf.{FAR}.disable_ipv6=1`");
        assert!(why.contains(&advice), "{why}");
        namespace.ip(&format!("-6 addr flush dev {FAR}"));
        namespace.ip(&format!("-6 route flush dev {FAR}"));
        assert_taken(&options, "IPv6 without an address");
        namespace.ip(&format!("-6 route add 2001:db8::/32 dev {FAR}"));
        assert_shared(&options, "has a route, to 2001:db8::/32");
        fs::write(&setting, "1").unwrap();
        assert_taken(&options, "IPv6 disabled");
    });
}

/// A container's macvlan is in another network namespace.
#[test]
fn a_use_in_another_namespace_is_seen_by_its_mac_address() {
    let Some(namespace) = namespace("mac") else {
        return;
    };
    let other = Namespace::new("st-excl-other");
    namespace.ip(&format!(
        "link add link {FAR} name st-excl-mv address 02:00:00:00:12:34 type macvlan mode bridge"
    ));
    namespace.ip(&format!("link set st-excl-mv netns {}", other.name()));
    other.ip("link set st-excl-mv up");
    namespace.enter(|| {
        assert_shared(&options(FAR), "receives packets for 02:00:00:00:12:34 too");
        other.ip("link del st-excl-mv");
        assert_taken(&options(FAR), "it is gone");
    });
}

/// Programs that are attached, and sockets that are open.
#[test]
fn what_other_programs_capture_is_not_taken_away() {
    let Some(namespace) = namespace("others") else {
        return;
    };
    namespace.enter(|| {
        let options = options(FAR);
        let mut pass = Assembler::new();
        pass.set(Reg::R0, 2);
        pass.exit();
        let pass = Program::load(ProgramKind::Xdp, "pass", &pass.finish().unwrap()).unwrap();
        let index = Device::named(FAR).unwrap().index;
        // XDP_FLAGS_SKB_MODE, XDP_FLAGS_DRV_MODE.
        for mode in [2, 4] {
            let attached = eventually("attach", || {
                pass.attach_xdp(index, mode)
                    .map_err(|error| error.to_string())
            });
            assert_shared(&options, "has an XDP program");
            drop(attached);
            assert_taken(&options, "detached");
        }
        for (other, why) in [
            (FAR, "another program captures from it"),
            ("any", "a program captures from all interfaces"),
        ] {
            let mut shared = self::options(other);
            shared.exclusive = Exclusive::No;
            let capturing = Live::open(&shared, 1).unwrap();
            assert_shared(&options, why);
            drop(capturing);
            assert_taken(&options, "closed");
        }
        // One that only sends receives nothing, and neither does one on another interface.
        let sends = pcap::Capture::from_device(NEAR).unwrap().open().unwrap();
        assert_taken(&options, "a socket on the other end");
        drop(sends);
    });
}

/// What AF_XDP cannot do is captured through AF_PACKET.
#[test]
fn what_af_xdp_cannot_do_is_shared() {
    let Some(namespace) = namespace("cannot") else {
        return;
    };
    namespace.enter(|| {
        let mut sent = options(FAR);
        sent.direction = Direction::Out;
        assert_shared(&sent, "received packets only (-Q out)");
        let refused = |change: &dyn Fn(&mut LiveOptions)| {
            let mut options = options(FAR);
            options.exclusive = Exclusive::Yes;
            change(&mut options);
            Live::open(&options, 1).unwrap_err().to_string()
        };
        let why = refused(&|options| options.direction = Direction::Out);
        assert!(why.contains("received packets only (-Q out)"), "{why}");
        let why = refused(&|options| options.stamps = Stamps::Adapter);
        assert!(why.contains("no NIC timestamps (-j adapter)"), "{why}");

        eventually("two workers", || {
            let workers = Live::open(&options(FAR), 2).unwrap();
            let ways = workers.iter().map(|live| live.ways().remove(0));
            let ways: Vec<String> = ways
                .map(|way| format!("{way}: {}", way.exclusive))
                .collect();
            let expected = |way: &String| way.contains("AF_PACKET: no:") && way.contains("--cores");
            ways.iter()
                .all(expected)
                .then_some(())
                .ok_or(format!("{ways:?}"))
        });
        assert_shared(&options("any"), "no Ethernet header");

        // The packets of the other end would not fit, so the driver refuses native programs. A
        // generic one would be lost on merged packets.
        namespace.ip(&format!("link set {NEAR} mtu 9000"));
        assert_shared(&options(FAR), "its driver does not run the XDP program");
        namespace.ip(&format!("link set {FAR} mtu 9000"));
        assert_shared(&options(FAR), "its MTU is above");
        namespace.ip(&format!("link set {FAR} down"));
        let error = Live::open(&options(FAR), 1).unwrap_err();
        assert!(matches!(error, LiveError::Down { .. }), "{error}");
    });
}

fn send(packets: &[Vec<u8>]) {
    let mut sender = pcap::Capture::from_device(NEAR).unwrap().open().unwrap();
    for packet in packets {
        sender.sendpacket(packet.as_slice()).unwrap();
    }
}

fn frame(number: u8) -> Vec<u8> {
    let mut frame = vec![0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2, 0x88, 0xb5];
    frame.resize(100, number);
    frame
}

/// The packets until these many have come, and events until the wanted one has.
fn receive(live: &mut Live, packets: usize, event: Option<&LiveEvent>) -> Vec<Vec<u8>> {
    let begun = Instant::now();
    let (mut received, mut events) = (Vec::new(), Vec::new());
    while received.len() < packets || event.is_some_and(|event| !events.contains(event)) {
        let waited = begun.elapsed();
        assert!(waited < Duration::from_secs(20), "{received:?}, {events:?}");
        if live.advance().unwrap() == LiveNext::Packets {
            let batch = live.batch();
            received.extend((0..batch.len()).map(|n| batch.get(n).data.to_vec()));
        }
        events.extend(live.take_events());
    }
    received
}

fn promiscuity(namespace: &Namespace) -> String {
    let mut command = Command::new("ip");
    let output = command
        .args(["-n", namespace.name(), "-d", "link", "show", FAR])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let at = text.find("promiscuity").unwrap();
    text[at..].split(' ').nth(1).unwrap().to_owned()
}

/// A tap delivers packets for other hosts, which a card drops unless it is promiscuous.
#[test]
fn an_interface_whose_packets_are_taken_is_promiscuous() {
    let Some(namespace) = namespace("promisc") else {
        return;
    };
    namespace.enter(|| {
        for exclusive in [Exclusive::Auto, Exclusive::Yes] {
            for promiscuous in [true, false] {
                let mut options = options(FAR);
                options.exclusive = exclusive;
                options.promiscuous = promiscuous;
                let live = eventually("open", || {
                    let live = Live::open(&options, 1).map_err(|error| error.to_string())?;
                    let way = live[0].ways().remove(0);
                    (way.how == TAKEN).then_some(live).ok_or(format!("{way:?}"))
                });
                assert_eq!(promiscuity(&namespace) == "1", promiscuous);
                drop(live);
                eventually("promiscuity", || match &*promiscuity(&namespace) {
                    "0" => Ok(()),
                    other => Err(other.to_owned()),
                });
            }
        }
    });
}

/// The interface that comes back is another one, which something may use: it is shared. Each packet
/// is captured once, however many queues there were.
#[test]
fn an_interface_that_is_replaced_is_captured_again() {
    let Some(namespace) = namespace("replaced") else {
        return;
    };
    namespace.ip(&format!("link del {FAR}"));
    namespace.ip(&format!(
        "link add {NEAR} mtu 1500 numrxqueues 2 numtxqueues 2 type veth \
         peer name {FAR} mtu 1500 numrxqueues 2 numtxqueues 2"
    ));
    namespace.ip(&format!("link set {NEAR} up"));
    namespace.ip(&format!("link set {FAR} up"));
    namespace.enter(|| {
        let mut live = Live::open(&options(FAR), 1).unwrap().remove(0);
        assert_eq!(live.counts().unwrap().len(), 2, "two queues");
        send(&[frame(1)]);
        assert_eq!(receive(&mut live, 1, None), [frame(1)]);
        namespace.ip(&format!("link del {FAR}"));
        receive(&mut live, 0, Some(&LiveEvent::Gone(FAR.into())));
        pair(&namespace);
        let back = LiveEvent::BackShared(FAR.into());
        receive(&mut live, 0, Some(&back));
        send(&[frame(2), frame(3)]);
        assert_eq!(receive(&mut live, 2, None), [frame(2), frame(3)]);
        let counts = live.counts().unwrap();
        assert_eq!((counts.len(), counts[0].1.received), (1, 3));
        let way = live.ways().remove(0);
        assert_eq!(way.how, "AF_PACKET");
        assert!(way.exclusive.to_string().contains("replaced"), "{way:?}");
    });
}

/// Each interface of a recording is decided by itself, and what is possible is reported in any
/// case.
#[test]
fn each_interface_is_decided_by_itself() {
    let Some(namespace) = namespace("each") else {
        return;
    };
    namespace.ip("link add st-excl-c mtu 1500 type veth peer name st-excl-d mtu 1500");
    namespace.ip("link set st-excl-c up");
    namespace.ip("link set st-excl-d up");
    namespace.ip("addr add 192.0.2.1/32 dev st-excl-d");
    namespace.enter(|| {
        let mut options = options(FAR);
        options.interfaces.push("st-excl-d".into());
        let mut live = Live::open(&options, 1).unwrap().remove(0);
        let ways: Vec<String> = live.ways().iter().map(ToString::to_string).collect();
        assert_eq!(
            ways,
            [format!("{FAR}: {TAKEN}"), "st-excl-d: AF_PACKET".into()]
        );
        send(&[frame(1)]);
        let mut other = pcap::Capture::from_device("st-excl-c")
            .unwrap()
            .open()
            .unwrap();
        other.sendpacket(frame(2).as_slice()).unwrap();
        let mut received = receive(&mut live, 2, None);
        received.sort_unstable();
        assert_eq!(received, [frame(1), frame(2)]);
        drop(live);

        options.exclusive = Exclusive::No;
        let expected = [
            Exclusivity::Possible,
            Exclusivity::No("has address 192.0.2.1/32".into()),
        ];
        eventually("what is possible", || {
            let live = Live::open(&options, 1).unwrap().remove(0);
            let ways = live.ways().into_iter();
            let exclusive: Vec<Exclusivity> = ways.map(|way| way.exclusive).collect();
            (exclusive == expected)
                .then_some(())
                .ok_or(format!("{exclusive:?}"))
        });
        let far = Device::named(FAR).unwrap();
        let uses = eventually("uses", || {
            let uses = HostUses::now().unwrap();
            let found = far.exclusivity(&uses);
            (found == expected[0])
                .then_some(uses)
                .ok_or(found.to_string())
        });
        let loopback = Device::named("lo").unwrap();
        assert!(matches!(loopback.exclusivity(&uses), Exclusivity::No(_)));
    });
}

/// What does not fit the memory is counted once, and as received, as with a ring.
#[test]
fn packets_without_space_are_counted() {
    let Some(namespace) = namespace("full") else {
        return;
    };
    namespace.enter(|| {
        let mut options = options(FAR);
        // The smallest: 512 frames.
        options.ring_bytes = Some(1);
        let mut live = Live::open(&options, 1).unwrap().remove(0);
        assert_eq!(live.ways()[0].how, TAKEN);
        let mut sent = 0;
        // As many as fit the other end's queue; more, until some were dropped.
        eventually("packets are dropped", || {
            send(&vec![frame(1); 100]);
            sent += 100;
            let dropped = live.counts().unwrap()[0].1.dropped;
            (dropped >= 500)
                .then_some(())
                .ok_or(format!("{dropped} of {sent}"))
        });
        let fill = live.ring_fill().unwrap();
        assert!(fill > 0.99, "{fill}");
        let received = receive(&mut live, 512, None).len();
        let counts = eventually("all are counted", || {
            let counts = live.counts().unwrap()[0].1;
            let all = counts.received == sent;
            all.then_some(counts).ok_or(format!("{counts:?} of {sent}"))
        });
        assert_eq!(counts.dropped, sent - received as u64);
    });
}
