//! `strata telemetry run --interface`: reports past the host's network stack, between two network
//! namespaces, and everything else through it.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use strata_testkit::{Namespace, may_use_kernel};

use crate::common::program::{failed, ok};
use crate::common::telemetry::{PATIENCE, Process, number, one, packed, telemetry, wait_status};

const STRATA: &str = env!("CARGO_BIN_EXE_strata");
/// The reporter's interface and the collector's.
const NEAR: &str = "st-tx-near";
const FAR: &str = "st-tx-far";
const REPORTS: &str = "192.0.2.2:40040";

/// A reporter and a host with a collector, connected.
struct Network {
    reporter: Namespace,
    host: Namespace,
}

impl Network {
    fn new(test: &str) -> Option<Self> {
        may_use_kernel("network namespaces").then(|| {
            let network = Self {
                reporter: Namespace::new(&format!("st-tx-r-{test}")),
                host: Namespace::new(&format!("st-tx-h-{test}")),
            };
            network.connect();
            network
        })
    }

    fn connect(&self) {
        let (reporter, host) = (&self.reporter, &self.host);
        reporter.ip(&format!(
            "link add {NEAR} address 02:00:00:00:00:01 type veth peer name {FAR} address \
             02:00:00:00:00:02 netns {}",
            host.name()
        ));
        reporter.ip(&format!("addr add 192.0.2.1/24 dev {NEAR}"));
        host.ip(&format!("addr add 192.0.2.2/24 dev {FAR}"));
        reporter.ip(&format!("link set {NEAR} up"));
        host.ip(&format!("link set {FAR} up"));
    }

    /// `strata telemetry run` in the host.
    fn run(&self, store: &Path, options: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args([
            "netns",
            "exec",
            self.host.name(),
            STRATA,
            "telemetry",
            "run",
        ]);
        command
            .arg("-o")
            .arg(store)
            .args(["--store-memory", "1MiB"]);
        command.args(options);
        command
    }

    fn start(&self, store: &Path) -> Process {
        let options = ["--listen", REPORTS, "--allow", "192.0.2.0/24"];
        let options = [&options[..], &["--interface", FAR]].concat();
        Process::start(&mut self.run(store, &options))
    }

    /// Sends datagrams as any program does.
    fn send(&self, datagrams: &[Vec<u8>]) {
        self.send_to(REPORTS, datagrams);
    }

    fn send_to(&self, to: &str, datagrams: &[Vec<u8>]) {
        self.reporter.enter(|| {
            let any = if to.starts_with('[') {
                "[::]:0"
            } else {
                "0.0.0.0:0"
            };
            let socket = UdpSocket::bind(any).unwrap();
            for datagram in datagrams {
                socket.send_to(datagram, to).unwrap();
            }
        });
    }

    /// Whether an XDP program is on the collector's interface, as iproute2 has it.
    fn has_program(&self) -> bool {
        let mut command = Command::new("ip");
        let said = ok(command.args(["-n", self.host.name(), "link", "show", FAR]));
        said.contains("xdp")
    }
}

/// A report of value `n` for the key 10.0.`run`.`n`, in a datagram of its own.
fn write(run: u8, n: u8) -> Vec<u8> {
    one(
        0x21,
        0,
        u32::from(n),
        [4, 4, 2],
        &[10, 0, run, n, 0, 0, 0, n],
    )
}

fn value(store: &Path, run: u8, n: u8) -> Value {
    let key = format!("10.0.{run}.{n}");
    let answer = ok(telemetry(store, &["get", &key]).arg("--json"));
    serde_json::from_str::<Value>(&answer).unwrap()["value"]["number"].clone()
}

fn came(status: &Value) -> (u64, u64) {
    let datagrams = number(&status["totals"]["datagrams"]);
    (datagrams, number(&status["af_xdp"]["datagrams"]))
}

/// Sums 16-bit words in ones' complement, the plain way.
fn checksum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}

/// A frame as a network brings it. `damage` is done before the checksum of the IPv4 header is made, which
/// is then flipped if wanted; the UDP checksum is as given.
fn frame(to: u8, source: [u8; 4], udp_checksum: u16, bad_header: bool, payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(payload.len() + 8).unwrap();
    let mut ip = vec![0x45, 0];
    ip.extend((len + 20).to_be_bytes());
    ip.extend([0, 1, 0, 0, 64, 17, 0, 0]);
    ip.extend(source);
    ip.extend([192, 0, 2, 2]);
    let sum = checksum(&ip) ^ u16::from(bad_header);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut frame = vec![2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, 1, 8, 0];
    frame.extend(ip);
    for field in [5000, 40040, len, udp_checksum] {
        frame.extend(field.to_be_bytes());
    }
    frame.extend(payload);
    frame
}

#[test]
fn reports_come_past_the_host_and_all_else_through_it() {
    let Some(network) = Network::new("all") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let collector = network.start(&store);
    assert!(network.has_program());
    // Checksums as containers leave them to a card, then as a card sends them.
    for run in 0..2 {
        let datagrams: Vec<Vec<u8>> = (0..20).map(|n| write(run, n)).collect();
        network.send(&datagrams);
        let sent = u64::from(run + 1) * 20;
        let status = wait_status(&store, |status| came(status) == (sent, sent));
        assert_eq!(number(&status["totals"]["accepted"]), sent);
        assert_eq!(number(&status["af_xdp"]["invalid"]), 0);
        for n in 0..20 {
            assert_eq!(value(&store, run, n), u64::from(n), "{run} {n}");
        }
        let mut ethtool = Command::new("ip");
        ethtool.args(["netns", "exec", network.reporter.name(), "ethtool"]);
        ok(ethtool.args(["-K", NEAR, "tx", "off"]));
    }

    // A datagram in fragments is put together by the host, and taken from the socket.
    let values: Vec<Vec<u8>> = (0..200).map(|n| vec![10, 0, 9, n, 0, 0, 0, n]).collect();
    let fragmented = packed(0x21, 0, 0, [4, 4, 2], &values);
    assert!(fragmented.len() > 1500);
    network.send(&[fragmented]);
    wait_status(&store, |status| came(status) == (41, 40));
    assert_eq!(value(&store, 9, 199), 199);

    // Other traffic of the interface, also to the same port number.
    let (tcp, udp) = network.host.enter(|| {
        let tcp = TcpListener::bind("192.0.2.2:40040").unwrap();
        let udp = UdpSocket::bind("192.0.2.2:40041").unwrap();
        udp.set_read_timeout(Some(PATIENCE)).unwrap();
        (tcp, udp)
    });
    network.reporter.enter(|| {
        let mut stream = TcpStream::connect("192.0.2.2:40040").unwrap();
        stream.write_all(b"by TCP").unwrap();
    });
    let mut text = String::new();
    tcp.accept().unwrap().0.read_to_string(&mut text).unwrap();
    assert_eq!(text, "by TCP");
    network.send_to("192.0.2.2:40041", &[b"another port".to_vec()]);
    let mut bytes = [0; 64];
    let len = udp.recv(&mut bytes).unwrap();
    assert_eq!(&bytes[..len], b"another port");

    // What the host would not have given to the socket either.
    network.reporter.enter(|| {
        let mut sender = pcap::Capture::from_device(NEAR).unwrap().open().unwrap();
        let from = [192, 0, 2, 9];
        for bad in [
            frame(2, from, 1, false, &write(3, 1)),
            frame(2, from, 0, true, &write(3, 2)),
            frame(2, [127, 0, 0, 1], 0, false, &write(3, 3)),
            frame(2, [192, 0, 2, 2], 0, false, &write(3, 4)),
            frame(3, from, 0, false, &write(3, 5)),
            frame(2, [198, 51, 100, 1], 0, false, &write(3, 6)),
            frame(2, from, 0, false, &write(3, 7)),
        ] {
            sender.sendpacket(bad).unwrap();
        }
    });
    let status = wait_status(&store, |status| came(status) == (42, 42));
    assert_eq!(number(&status["af_xdp"]["invalid"]), 4);
    assert_eq!(number(&status["not_allowed"]), 1);
    assert_eq!(number(&status["totals"]["accepted"]), 241);
    assert_eq!(value(&store, 3, 7), 7);
    let shown = ok(&mut telemetry(&store, &["status"]));
    assert!(shown.contains(FAR), "{shown}");

    let said = collector.end();
    let summary = "by AF_XDP: 42 datagrams, 4 invalid, 0 dropped because no frame was free";
    assert!(said.contains(summary), "{said}");
    assert!(!network.has_program());
}

#[test]
fn an_interface_is_given_back_by_a_process_that_was_killed() {
    let Some(network) = Network::new("kill") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    network.start(&store).kill();
    let start = Instant::now();
    while network.has_program() {
        assert!(start.elapsed() < PATIENCE, "the program stays");
        thread::sleep(Duration::from_millis(20));
    }
    let options = ["--listen", REPORTS, "--allow", "192.0.2.1"];
    let collector = Process::start(&mut network.run(&store, &options));
    network.send(&[write(0, 1)]);
    let status = wait_status(&store, |status| number(&status["totals"]["accepted"]) == 1);
    assert!(status["af_xdp"].is_null(), "{status:#}");
    collector.end();
}

#[test]
fn reports_come_by_the_socket_once_the_interface_is_gone() {
    let Some(network) = Network::new("gone") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let collector = network.start(&store);
    network.send(&[write(0, 1)]);
    wait_status(&store, |status| came(status) == (1, 1));
    network.reporter.ip(&format!("link del {NEAR}"));
    wait_status(&store, |status| status["af_xdp"]["taking"] == false);
    network.connect();
    network.send(&[write(0, 2)]);
    wait_status(&store, |status| came(status) == (2, 1));
    let (_, errors) = collector.end_with();
    let warning = format!(
        "--interface {FAR}: the interface was removed; reports are received through the \
            socket"
    );
    assert!(errors.contains(&warning), "{errors}");
}

#[test]
fn ipv6_goes_the_same_way() {
    let Some(network) = Network::new("six") else {
        return;
    };
    for (side, device, address) in [
        (&network.reporter, NEAR, "2001:db8::1"),
        (&network.host, FAR, "2001:db8::2"),
    ] {
        side.enter(|| {
            let file = format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6");
            fs::write(file, "0").unwrap();
        });
        side.ip(&format!("addr add {address}/64 dev {device} nodad"));
    }
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let options = [
        "--listen",
        "[2001:db8::2]:40040",
        "--allow",
        "2001:db8::/64",
    ];
    let options = [&options[..], &["--interface", FAR]].concat();
    let collector = Process::start(&mut network.run(&store, &options));
    let datagrams: Vec<Vec<u8>> = (0..20).map(|n| write(0, n)).collect();
    network.send_to("[2001:db8::2]:40040", &datagrams);
    wait_status(&store, |status| came(status) == (20, 20));
    assert_eq!(value(&store, 0, 19), 19);
    collector.end();
}

#[test]
fn what_cannot_be_is_said() {
    let Some(network) = Network::new("not") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let refused = |interface: &str, listen: &str, expected: &str| {
        let options = [
            "--listen",
            listen,
            "--allow",
            "192.0.2.0/24",
            "--interface",
            interface,
        ];
        let said = failed(&mut network.run(&store, &options));
        assert!(said.contains(expected), "{interface} {listen}: {said}");
        assert!(!store.exists(), "{interface} {listen}");
    };
    network.host.ip("link set lo up");
    refused(FAR, "127.0.0.1", "give that address as --listen");
    refused(FAR, "0.0.0.0", "give that address as --listen");
    refused("st-none", "192.0.2.2", "there is no interface 'st-none'");
    refused("any", "192.0.2.2", "its packets have no Ethernet header");
    network.host.ip("link set lo up");
    refused(
        "lo",
        "192.0.2.2",
        "without --interface, reports are received through a socket",
    );
    network.host.ip(&format!("link set {FAR} down"));
    refused(FAR, "192.0.2.2", "the interface is down");
    network.host.ip(&format!("link set {FAR} up"));
    // An interface has one program.
    let collector = network.start(&dir.path().join("first"));
    refused(
        FAR,
        "192.0.2.2:40050",
        "without --interface, reports are received through a socket",
    );
    collector.end();
}
