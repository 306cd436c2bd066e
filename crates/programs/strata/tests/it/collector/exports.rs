//! What policies export arrives as it was: headers and packets as Strata's datagrams, packets in VXLAN;
//! nothing that an exporter sends is exported again.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use strata_capture::{Input, InputOptions, Next};
use strata_exporter::{
    Announcement, Datagram, Header, HeaderReader, Kind, PacketReader, Sequence, SequenceCounters,
};
use strata_testkit::{Namespace, data_dir, may_use_kernel};
use strata_wire::dissect::dissect;
use strata_wire::{LinkType, TunnelKey};

use crate::common::program::{ok, record, strata};
use crate::common::signal::signal;

fn capture() -> PathBuf {
    data_dir().join("labelled/cic2017-sqli/trace.pcap")
}

/// A packet: time, length on the wire, its bytes.
pub(super) type Packet = (u64, u32, Vec<u8>);

/// Packets of [`capture`], and how long their headers are.
pub(super) fn packets() -> Vec<(Packet, usize)> {
    let mut input = Input::open(&[capture()], &InputOptions::default()).unwrap();
    let mut all = Vec::new();
    loop {
        match input.advance().unwrap() {
            Next::Packets => {
                for packet in input.batch() {
                    let found = dissect(LinkType::ETHERNET, packet.data, TunnelKey::Inner);
                    let captured = u32::try_from(packet.data.len()).unwrap();
                    let kept = (packet.ts_ns, packet.wire_len, packet.data.to_vec());
                    all.push((kept, found.kept_header_len(captured) as usize));
                }
            }
            Next::Meta(_) => {}
            Next::End => return all,
        }
    }
}

/// A collector of the test's own: takes datagrams until it is stopped.
struct Sink {
    port: u16,
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<Vec<Vec<u8>>>,
}

impl Sink {
    fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        socket
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let (mut all, mut buffer) = (Vec::new(), vec![0; 65_536]);
            loop {
                match socket.recv(&mut buffer) {
                    Ok(len) => all.push(buffer[..len].to_vec()),
                    Err(_) if stopped.load(Ordering::Relaxed) => return all,
                    Err(_) => {}
                }
            }
        });
        Self { port, stop, thread }
    }

    fn datagrams(self) -> Vec<Vec<u8>> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// What arrived.
#[derive(Default)]
struct Arrived {
    headers: Vec<(Packet, u16)>,
    /// Of these headers, the classes.
    classes: Vec<u8>,
    packets: Vec<(Packet, u16)>,
    counters: BTreeMap<Kind, SequenceCounters>,
    announced: Vec<Announcement>,
}

fn arrived(datagrams: &[Vec<u8>]) -> Arrived {
    let mut all = Arrived::default();
    let mut sequences: BTreeMap<Kind, Sequence> = BTreeMap::new();
    let (mut headers, mut packets) = (HeaderReader::new(), PacketReader::new());
    for bytes in datagrams {
        let datagram = Datagram::read(bytes).unwrap();
        let kept = |header: &Header<'_>| {
            let packet = (header.ts_ns, header.wire_len, header.bytes.to_vec());
            (packet, header.label.policy)
        };
        let sequence = sequences.entry(datagram.kind).or_default();
        match datagram.kind {
            Kind::Announcement => {
                all.announced.push(Announcement::read(bytes).unwrap());
                continue;
            }
            Kind::Headers => {
                let take = |_, header: &Header<'_>| {
                    all.headers.push(kept(header));
                    all.classes.push(header.label.class);
                };
                headers.read(bytes, take).unwrap();
            }
            Kind::Packets => {
                let take = |_, packet: &Header<'_>| all.packets.push(kept(packet));
                packets.read(bytes, take).unwrap();
            }
        }
        assert!(sequence.accept(&datagram));
        all.counters.insert(datagram.kind, sequence.counters());
    }
    all
}

pub(super) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(60), "not {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

pub(super) fn configured(dir: &Path, to: &str, policies: &str) -> PathBuf {
    let path = dir.join("strata.toml");
    let text = format!(
        "default = 'drop'\n{policies}\n[export]\nidentity = 4711\nhost = 'web-1'\n\
         [export.destinations]\nhere = '{to}'\n"
    );
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn headers_and_packets_of_a_file_arrive_exact() {
    let dir = tempfile::tempdir().unwrap();
    let sink = Sink::start();
    let to = format!("udp://127.0.0.1:{}", sink.port);
    let config = configured(
        dir.path(),
        &to,
        "[[policy]]\nmatch = 'ip or ip6 or arp'\naction = 'header -> here'\n\
         [[policy]]\nmatch = 'tcp'\naction = 'payload -> here'\n\
         [[policy]]\nmatch = 'tcp port 80'\naction = 'payload 10 -> here'\n",
    );
    let mut command = record(capture(), dir.path().join("log"));
    let output = command.arg("--config").arg(&config).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert!(told.contains("not encrypted"), "{told}");
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(out.contains(&format!("exported to here ({to}): ")), "{out}");
    let arrived = arrived(&sink.datagrams());
    let all = packets();
    let expected: Vec<_> = all
        .iter()
        .map(|((ts_ns, wire_len, data), len)| (*ts_ns, *wire_len, data[..*len].to_vec()))
        .map(|packet| (packet, 1))
        .collect();
    assert_eq!(arrived.headers, expected);
    // Of each packet first all of it, then the beginning of those of port 80.
    let (whole, begun): (Vec<_>, Vec<_>) = arrived.packets.into_iter().partition(|one| one.1 == 2);
    let is_tcp = |data: &[u8]| data[12..14] == [8, 0] && data[23] == 6;
    let tcp = all.iter().filter(|((_, _, data), _)| is_tcp(data));
    let expected: Vec<_> = tcp.clone().map(|(packet, _)| (packet.clone(), 2)).collect();
    assert!(expected.len() > 50);
    assert_eq!(whole, expected);
    let web = |data: &[u8]| data[34..36] == [0, 80] || data[36..38] == [0, 80];
    let expected: Vec<_> = tcp
        .filter(|((_, _, data), _)| web(data))
        .map(|((ts_ns, wire_len, data), len)| {
            let kept = data.len().min(len + 10);
            ((*ts_ns, *wire_len, data[..kept].to_vec()), 3)
        })
        .collect();
    assert!(expected.len() > 10);
    assert_eq!(begun, expected);
    for counters in arrived.counters.values() {
        assert_eq!((counters.lost, counters.before), (0, 0));
    }
    let announced = &arrived.announced[0];
    assert_eq!(
        (announced.source.identity, announced.host.as_str()),
        (4711, "web-1")
    );
}

#[test]
fn a_destination_that_the_configuration_does_not_name_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (action, what) in [
        ("header -> elsewhere", "has no destination elsewhere"),
        (
            "header -> udp://192.0.2.1:4740",
            "under [export.destinations]",
        ),
        ("header -> here", "write 'payload -> here'"),
        (
            "headers -> here",
            "write header, payload (the whole packet)",
        ),
    ] {
        let policy = format!("[[policy]]\nmatch = 'tcp'\naction = '{action}'\n");
        let config = configured(dir.path(), "vxlan://127.0.0.1", &policy);
        let mut command = record(capture(), dir.path().join("log"));
        let output = command.arg("--config").arg(&config).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && told.contains(what),
            "{action}: {told}"
        );
        assert!(!dir.path().join("log").exists(), "a log is left");
    }
}

/// Without `-o` nothing is kept, and the same is exported.
#[test]
fn what_is_exported_does_not_need_a_log() {
    let dir = tempfile::tempdir().unwrap();
    let sink = Sink::start();
    let to = format!("udp://127.0.0.1:{}", sink.port);
    let policies = "[[policy]]\nmatch = 'ip or ip6 or arp'\naction = 'header -> here'\n";
    let config = configured(dir.path(), &to, policies);
    let mut command = strata();
    command.args(["record", "-r"]).arg(capture());
    command.arg("--config").arg(&config);
    // Every class is known: the model decides what would be kept.
    let out = ok(command
        .args(["--default", "classify"])
        .current_dir(dir.path()));
    let count = packets().len();
    assert!(out.contains("-> exports only"), "{out}");
    assert!(out.contains(&format!("exported to here ({to}): ")), "{out}");
    let arrived = arrived(&sink.datagrams());
    let expected: Vec<Packet> = packets()
        .into_iter()
        .map(|((ts_ns, wire_len, data), len)| (ts_ns, wire_len, data[..len].to_vec()))
        .collect();
    let headers: Vec<Packet> = arrived
        .headers
        .into_iter()
        .map(|(packet, _)| packet)
        .collect();
    assert_eq!((headers.len(), headers), (count, expected));
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

/// A packet has the same class whether there is a log or not; `drop` spares the classification.
#[test]
fn packets_are_exported_with_their_class_without_a_log() {
    let dir = tempfile::tempdir().unwrap();
    let policies = "[[policy]]\nmatch = 'ip or ip6'\naction = 'header -> here'\n";
    let classes = |default: &str, log: Option<&Path>| {
        let sink = Sink::start();
        let to = format!("udp://127.0.0.1:{}", sink.port);
        let config = configured(dir.path(), &to, policies);
        let mut command = strata();
        command.args(["record", "-r"]).arg(capture());
        command.args(["--default", default, "--hash-seed", "1"]);
        command.arg("--config").arg(&config);
        if let Some(log) = log {
            command.arg("-o").arg(log);
        }
        let output = command.output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{told}");
        (arrived(&sink.datagrams()).classes, told)
    };
    let log = dir.path().join("log");
    let (with_log, _) = classes("classify", Some(&log));
    let (without, told) = classes("classify", None);
    assert!(told.contains("sent with the class"), "{told}");
    assert!(!with_log.is_empty() && with_log == without);
    // As many of each class as the log has.
    let info = ok(strata().args(["info", "--json"]).arg(&log));
    let info: Value = serde_json::from_str(&info).unwrap();
    for (number, name) in [(0, "benign"), (1, "anomalous")] {
        let counts = info[0]["counts"].as_array().unwrap().iter();
        let of_class = counts.filter(|count| count["class"] == name);
        let logged: u64 = of_class
            .map(|count| count["packets"].as_u64().unwrap())
            .sum();
        let exported = without.iter().filter(|&&class| class == number).count();
        assert!(
            logged > 10 && exported as u64 == logged,
            "{name}: {exported}"
        );
    }
    let (dropped, _) = classes("drop", None);
    assert!(dropped.len() == without.len() && dropped.iter().all(|&class| class == u8::MAX));
}

#[test]
fn a_recording_without_log_and_exports_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let keep = "[[policy]]\nmatch = 'tcp'\naction = 'full'\n";
    let cases: [(&str, &[&str], &str); 5] = [
        ("", &["--mode", "log-all"], "--mode applies to a log"),
        (
            "",
            &["--first-bytes", "4k"],
            "--first-bytes applies to a log",
        ),
        ("", &["--disk-limit", "1GB"], "--disk-limit"),
        (
            "",
            &["--default", "full"],
            "'full': this recording has no log",
        ),
        (keep, &[], "'full': this recording has no log"),
    ];
    let refused = |arguments: &[&str], config: Option<&Path>, what: &str| {
        let mut command = strata();
        command
            .args(["record", "-r"])
            .arg(capture())
            .args(arguments);
        command.args(config.map(|path| format!("--config={}", path.display())));
        let output = command.output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        let found = what.split('|').any(|what| told.contains(what));
        assert!(!output.status.success() && found, "{arguments:?}: {told}");
    };
    for (policies, arguments, what) in cases {
        let config = configured(dir.path(), "udp://127.0.0.1:4740", policies);
        refused(arguments, Some(&config), what);
    }
    refused(
        &[],
        None,
        "name a directory for the log (-o DIR), a collector of flows (--flows-to HOST), or",
    );
}

/// A running recording.
pub(super) struct Running(pub(super) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Everything on the loopback interface is exported over the loopback interface.
#[test]
fn an_exporter_exports_nothing_that_it_sends() {
    if !may_use_kernel("recording from an interface") {
        return;
    }
    let namespace = Namespace::new("st-exp-own");
    namespace.ip("link set lo up");
    let (sink, sender) =
        namespace.enter(|| (Sink::start(), UdpSocket::bind("127.0.0.1:0").unwrap()));
    let dir = tempfile::tempdir().unwrap();
    let to = format!("udp://127.0.0.1:{}", sink.port);
    let policy = "[[policy]]\nmatch = 'ip'\naction = 'payload -> here'\n";
    let config = configured(dir.path(), &to, policy);
    let socket = dir.path().join("socket");
    let mut command = Command::new("ip");
    command.args([
        "netns",
        "exec",
        namespace.name(),
        env!("CARGO_BIN_EXE_strata"),
    ]);
    command
        .args(["record", "-i", "lo", "-B", "32MiB", "-o"])
        .arg(dir.path().join("log"));
    command
        .arg("--socket")
        .arg(&socket)
        .arg("--config")
        .arg(&config);
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut running = Running(child);
    let status = || -> Value {
        let mut command = strata();
        command.args(["status", "--json", "--socket"]).arg(&socket);
        serde_json::from_slice(&command.output().unwrap().stdout).unwrap_or_default()
    };
    until("recording", || {
        status()["interfaces"]
            .as_array()
            .is_some_and(|all| !all.is_empty())
    });
    let own = sender.local_addr().unwrap();
    for number in 0_u8..100 {
        sender.send_to(&[number; 200], own).unwrap();
    }
    until("everything is exported", || {
        status()["exports"][0]["packets"]
            .as_u64()
            .is_some_and(|packets| packets >= 100)
            && status()["exports"][0]["announcements"]
                .as_u64()
                .is_some_and(|sent| sent > 5)
    });
    signal(&running.0, "INT");
    assert!(running.0.wait().unwrap().success());
    let arrived = arrived(&sink.datagrams());
    assert_eq!(arrived.packets.len(), 100);
    for (number, ((_, _, data), _)) in (0_u8..).zip(&arrived.packets) {
        assert!(data.ends_with(&[number; 200]));
    }
    let announced = &arrived.announced[0];
    assert_eq!((announced.interface.as_str(), announced.index), ("lo", 1));
}
