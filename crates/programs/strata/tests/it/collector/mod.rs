//! Recordings export, `strata collector` receives: tshark sees the same headers, and what is lost on the
//! way is counted to the packet.

mod ends;
mod exports;
mod extcap;
pub(crate) mod status;
mod vxlan;

use std::collections::HashSet;
use std::fs::{OpenOptions, Permissions};
use std::io::Write as _;
use std::net::UdpSocket;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use strata_testkit::sim::Rng;
use strata_testkit::{data_dir, may_use_kernel};

use crate::common::collecting::Collector;
use crate::common::program::{failed, ok, record, strata};

fn capture() -> PathBuf {
    data_dir().join("labelled/cic2017-sqli/trace.pcap")
}

/// Packets of [`capture`].
const PACKETS: u64 = 94;

fn configured(dir: &Path, to: &str, action: &str) -> PathBuf {
    let path = dir.join("strata.toml");
    let text = format!(
        "default = 'drop'\n[[policy]]\nmatch = 'ip or ip6 or arp'\naction = '{action}'\n\
         [export]\nidentity = 4711\nhost = 'web-1'\n[export.destinations]\nhere = '{to}'\n"
    );
    std::fs::write(&path, text).unwrap();
    path
}

/// What tshark says of the headers of each packet.
fn headers(file: &Path, more: &[&str]) -> Vec<String> {
    let mut command = Command::new("tshark");
    command
        .arg("-r")
        .arg(file)
        .args(["-o", "tcp.relative_sequence_numbers:FALSE", "-T", "fields"]);
    for field in [
        "frame.time_epoch",
        "frame.len",
        "eth.src",
        "eth.dst",
        "ip.src",
        "ip.dst",
        "ip.id",
        "ip.ttl",
        "ip.len",
        "ip.checksum",
        "tcp.srcport",
        "tcp.dstport",
        "tcp.seq",
        "tcp.ack",
        "tcp.flags",
        "tcp.window_size_value",
        "tcp.checksum",
        "udp.srcport",
        "udp.dstport",
        "udp.length",
    ] {
        command.args(["-e", field]);
    }
    let text = ok(command.args(more));
    text.lines().map(str::to_owned).collect()
}

#[test]
fn tshark_sees_the_headers_of_the_original_capture() {
    let dir = tempfile::tempdir().unwrap();
    for (action, is_whole) in [("header -> here", false), ("payload -> here", true)] {
        // What is classified has a class.
        let (default, shown) = match is_whole {
            true => ("classify", "strata: policy=1 class="),
            false => ("drop", "strata: policy=1"),
        };
        let out = dir.path().join("out.pcapng");
        let count = PACKETS.to_string();
        let arguments = [
            "--listen",
            "127.0.0.1:0",
            "-c",
            &count,
            "-w",
            out.to_str().unwrap(),
        ];
        let collector = Collector::start(strata(), &arguments);
        let config = configured(
            dir.path(),
            &format!("udp://127.0.0.1:{}", collector.port),
            action,
        );
        ok(record(capture(), dir.path().join("log"))
            .arg("--config")
            .arg(&config)
            .args(["--default", default]));
        let said = collector.ended();
        let expected = format!("web-1 (127.0.0.1, identity 4711): {PACKETS} packets in ");
        assert!(
            said.contains(&expected) && said.contains("; 0 packets lost"),
            "{said}"
        );
        assert_eq!(headers(&out, &[]), headers(&capture(), &[]), "{action}");
        let bytes = |file: &Path| {
            let mut file = pcap::Capture::from_file(file).unwrap();
            let mut all = Vec::new();
            while let Ok(packet) = file.next_packet() {
                all.push(packet.data.to_vec());
            }
            all
        };
        assert_eq!(bytes(&out) == bytes(&capture()), is_whole);
        let mut comments = Command::new("tshark");
        comments
            .arg("-r")
            .arg(&out)
            .args(["-T", "fields", "-e", "frame.comment"]);
        let comments = ok(&mut comments);
        let fits = |line: &str| line.starts_with(shown) && (is_whole || line == shown);
        assert!(comments.lines().all(fits), "{comments}");
        assert_eq!(comments.lines().count().to_string(), count);
        let names = ok(Command::new("capinfos").arg(&out));
        assert!(names.contains("Name = web-1"), "{names}");
        assert!(names.contains("identity 4711 from 127.0.0.1"), "{names}");
    }
}

#[test]
fn what_is_collected_is_recorded_into_a_log() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("collected");
    let count = PACKETS.to_string();
    let arguments = [
        "--listen",
        "127.0.0.1:0",
        "-c",
        &count,
        "--mode",
        "log-all",
        "-o",
    ];
    let arguments = [&arguments[..], &[log.to_str().unwrap()]].concat();
    let collector = Collector::start(strata(), &arguments);
    let to = format!("udp://127.0.0.1:{}", collector.port);
    let config = configured(dir.path(), &to, "payload -> here");
    ok(record(capture(), dir.path().join("log"))
        .arg("--config")
        .arg(&config));
    collector.ended();
    let about = ok(strata().arg("info").arg(&log));
    assert!(about.contains("collector 127.0.0.1:"), "{about}");
    let file = dir.path().join("exported.pcapng");
    ok(strata().args(["export", "-w"]).arg(&file).arg(&log));
    assert_eq!(headers(&file, &[]), headers(&capture(), &[]));
    let names = ok(Command::new("capinfos").arg(&file));
    assert!(names.contains("Name = web-1"), "{names}");
}

/// Nothing that strangers send, and nothing damaged, gets in or ends the collector.
#[test]
fn strangers_and_damaged_datagrams_cost_a_count() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.pcapng");
    let out = out.to_str().unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let others = [
        "--listen",
        "127.0.0.1:0",
        "--allow",
        "192.0.2.0/24",
        "-w",
        out,
    ];
    let collector = Collector::start(strata(), &others);
    let to = format!("udp://127.0.0.1:{}", collector.port);
    let config = configured(dir.path(), &to, "header -> here");
    ok(record(capture(), dir.path().join("log"))
        .arg("--config")
        .arg(&config));
    let said = collector.stopped();
    assert!(
        said.contains("0 packets; 0 announcements; datagrams not accepted: "),
        "{said}"
    );
    assert!(!said.contains("datagrams not accepted: 0 "), "{said}");
    assert_eq!(headers(Path::new(out), &[]), Vec::<String>::new());

    let count = PACKETS.to_string();
    let arguments = [
        "--listen",
        "127.0.0.1:0",
        "--allow",
        "127.0.0.1",
        "-c",
        &count,
        "-w",
        out,
    ];
    let collector = Collector::start(strata(), &arguments);
    let address = ("127.0.0.1", collector.port);
    let start = |kind: u8, identity: u8, number: u64| {
        let mut bytes = vec![
            b'S', b'X', 1, kind, identity, 0, 0, 10, 7, 7, 7, 7, 1, 0, 1, 0,
        ];
        bytes.extend(number.to_le_bytes());
        bytes.extend(number.to_le_bytes());
        bytes.extend([0; 8]);
        bytes
    };
    let mut datagrams = vec![Vec::new(), vec![0; 1400], b"SX".to_vec()];
    for kind in 0..5 {
        for number in [0, 1, 1 << 40, u64::MAX - 1, u64::MAX] {
            datagrams.push(start(kind, 0, number));
            datagrams.push(start(kind, 9, number));
            datagrams.push([start(kind, 9, number), vec![0xff; 300]].concat());
        }
    }
    for datagram in &datagrams {
        sender.send_to(datagram, address).unwrap();
    }
    let config = configured(
        dir.path(),
        &format!("udp://127.0.0.1:{}", collector.port),
        "header -> here",
    );
    ok(record(capture(), dir.path().join("log-2"))
        .arg("--config")
        .arg(&config));
    let said = collector.ended();
    assert!(
        said.contains(&format!("identity 4711): {PACKETS} packets")),
        "{said}"
    );
    assert!(!said.contains(" 0 unreadable"), "{said}");
    assert_eq!(headers(Path::new(out), &[]), headers(&capture(), &[]));
}

#[test]
fn an_address_that_others_reach_needs_a_list_of_senders() {
    for (arguments, what) in [
        (
            &["--listen", "0.0.0.0", "-w", "x"][..],
            "name the accepted senders",
        ),
        (&["--listen", "127.0.0.1"], "required"),
        (&["-w", "x", "-o", "y"], "cannot be used with"),
        (&["-w", "x", "--mode", "log-all"], "apply only with -o"),
        (&["-w", "x", "--allow", "example"], "write a network"),
    ] {
        let output = strata().arg("collector").args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(what), "{arguments:?}: {said}");
    }
}

/// A key that only its owner can read, of this digit.
fn key_file(dir: &Path, digit: &str) -> PathBuf {
    let path = dir.join(format!("{digit}.key"));
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(&path);
    file.unwrap()
        .write_all(digit.repeat(64).as_bytes())
        .unwrap();
    path
}

/// Somebody on the way who repeats each datagram, and changes each in many ways.
fn hostile(from: UdpSocket, to: u16, stop: Arc<AtomicBool>) -> thread::JoinHandle<u64> {
    from.set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    thread::spawn(move || {
        let (mut buffer, mut sent) = (vec![0; 65_536], 0);
        let to = ("127.0.0.1", to);
        loop {
            let Ok(len) = from.recv(&mut buffer) else {
                match stop.load(Ordering::Relaxed) {
                    true => return sent,
                    false => continue,
                }
            };
            let good = &buffer[..len];
            // Of the start (of its number, one that has not come), of what is encrypted, and of the tag.
            for at in [0, 2, 3, 6, 8, 12, 31, 36, 40, 60, len - 16, len - 1] {
                let mut bad = good.to_vec();
                bad[at] ^= 1 << (at % 8);
                from.send_to(&bad, to).unwrap();
            }
            from.send_to(good, to).unwrap();
            from.send_to(good, to).unwrap();
            sent += 1;
        }
    })
}

/// Encrypted: who has no key, or another one, gets nothing in, and neither does who repeats or changes what
/// he sees; nothing of the packets can be read on the way.
#[test]
fn only_what_is_encrypted_with_the_key_gets_in_and_once() {
    let dir = tempfile::tempdir().unwrap();
    let [own, other] = ["a", "b"].map(|digit| key_file(dir.path(), digit));
    let out = dir.path().join("out.pcapng");
    let collector = Collector::start(
        strata(),
        &[
            "--listen",
            "0.0.0.0:0",
            "--key-file",
            own.to_str().unwrap(),
            "-w",
            out.to_str().unwrap(),
        ],
    );
    let port = collector.port;
    let way = UdpSocket::bind("127.0.0.1:0").unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&way, 8 << 20).unwrap();
    let on_the_way = way.local_addr().unwrap().port();
    let export = |to: u16, key: Option<&Path>, log: &str| {
        let to = format!("udp://127.0.0.1:{to}");
        let config = configured(dir.path(), &to, "payload -> here");
        if let Some(key) = key {
            let text = std::fs::read_to_string(&config).unwrap();
            let with = format!("[export]\nkey_file = '{}'\n", key.display());
            std::fs::write(&config, text.replace("[export]\n", &with)).unwrap();
        }
        let mut command = record(capture(), dir.path().join(log));
        let output = command.arg("--config").arg(&config).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{said}");
        said
    };
    let told = export(port, None, "clear");
    assert!(told.contains("are not encrypted on the way"), "{told}");
    export(port, Some(&other), "other");
    let stop = Arc::new(AtomicBool::new(false));
    let thread = hostile(way, port, Arc::clone(&stop));
    let told = export(on_the_way, Some(&own), "own");
    assert!(told.contains("are encrypted on the way"), "{told}");
    stop.store(true, Ordering::Relaxed);
    let sent = thread.join().unwrap();
    let said = collector.stopped();
    assert!(
        said.contains(&format!("identity 4711): {PACKETS} packets in ")),
        "{said}"
    );
    for what in [
        ": not encrypted;",
        ": encrypted with a key that is not known;",
        ": forged, or",
    ] {
        assert!(said.contains(what), "{what}: {said}");
    }
    let (_, counts) = said.split_once("from senders outside --allow, ").unwrap();
    assert!(number(counts) > 10 * sent, "{said}");
    let (_, repeated) = counts.split_once(" unreadable, ").unwrap();
    assert_eq!(number(repeated), sent, "{said}");
    assert_eq!(headers(&out, &[]), headers(&capture(), &[]));
}

/// Without the key, a collector says what is the matter.
#[test]
fn what_is_encrypted_needs_the_key() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.pcapng");
    let arguments = ["--listen", "127.0.0.1:0", "-w", out.to_str().unwrap()];
    let collector = Collector::start(strata(), &arguments);
    let to = format!("udp://127.0.0.1:{}", collector.port);
    let config = configured(dir.path(), &to, "header -> here");
    let text = std::fs::read_to_string(&config).unwrap();
    let key = key_file(dir.path(), "c");
    let with = format!("[export]\nkey_file = '{}'\n", key.display());
    std::fs::write(&config, text.replace("[export]\n", &with)).unwrap();
    let mut command = record(capture(), dir.path().join("log"));
    ok(command.arg("--config").arg(&config));
    let said = collector.stopped();
    assert!(
        said.contains("encrypted: give the key (--key-file)"),
        "{said}"
    );
    assert!(said.contains("\n0 packets; "), "{said}");
    // A key that others can read, or that is invalid, is refused at once.
    std::fs::set_permissions(&key, Permissions::from_mode(0o644)).unwrap();
    let said = failed(
        strata()
            .args(["collector", "-w", "x", "--key-file"])
            .arg(&key),
    );
    assert!(said.contains("others can read this secret"), "{said}");
    std::fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    std::fs::write(&key, "abc").unwrap();
    let mut command = record(capture(), dir.path().join("log-2"));
    let said = failed(command.arg("--check").arg("--config").arg(&config));
    assert!(
        said.contains("export.key_file") && said.contains("line 1 is not a key"),
        "{said}"
    );
}

/// A network that loses a fifth of all datagrams, and turns some round.
struct Lossy {
    port: u16,
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<u64>,
}

impl Lossy {
    fn start(to: u16) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        // All that a recording sends has room, so that only what is meant to is lost.
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 256 << 20).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        let port = socket.local_addr().unwrap().port();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let (mut rng, mut buffer, mut lost) = (Rng::new(20), vec![0; 65_536], 0);
            let mut waiting: Option<Vec<u8>> = None;
            let mut credit = 0;
            loop {
                let Ok(len) = socket.recv(&mut buffer) else {
                    let is_over = stopped.load(Ordering::Relaxed);
                    if let Some(last) = waiting.take() {
                        socket.send_to(&last, ("127.0.0.1", to)).unwrap();
                    }
                    if is_over {
                        return lost;
                    }
                    continue;
                };
                if rng.below(5) == 0 {
                    lost += 1;
                    continue;
                }
                let datagram = buffer[..len].to_vec();
                let turned = match waiting.take() {
                    Some(earlier) => vec![datagram, earlier],
                    None if rng.below(10) == 0 => {
                        waiting = Some(datagram);
                        continue;
                    }
                    None => vec![datagram],
                };
                for datagram in turned {
                    socket.send_to(&datagram, ("127.0.0.1", to)).unwrap();
                    // The collector has room for some; it is not to lose more.
                    credit += datagram.len();
                    if credit > 1 << 20 {
                        credit = 0;
                        thread::yield_now();
                    }
                }
            }
        });
        Self { port, stop, thread }
    }

    /// Everything was sent: returns how many datagrams it lost, once it has passed on the others.
    fn ended(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// A fifth of all datagrams is lost, and some overtake others: headers that arrive are those of the
/// original, and all others are counted.
#[test]
fn under_loss_every_packet_arrives_exact_or_is_counted() {
    if !may_use_kernel("a large socket buffer") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace.pcap");
    let generate = ["generate", "--seed", "20", "-c", "20000", "-o"];
    ok(strata().args(generate).arg(&trace));
    let original = headers(&trace, &[]);
    for (action, log) in [("header -> here", "h"), ("payload -> here", "p")] {
        let out = dir.path().join("out.pcapng");
        let arguments = ["--listen", "127.0.0.1:0", "-w", out.to_str().unwrap()];
        let collector = Collector::start(strata(), &arguments);
        let network = Lossy::start(collector.port);
        let to = format!("udp://127.0.0.1:{}", network.port);
        let config = configured(dir.path(), &to, action);
        let mut command = record(&trace, dir.path().join(log));
        let told = ok(command.arg("--config").arg(&config));
        let (_, exported) = told
            .split_once(&format!("exported to here ({to}): "))
            .unwrap();
        assert_eq!(number(exported), 20_000);
        assert!(told.contains("; 0 datagrams not sent"), "{told}");
        assert!(network.ended() > 5);
        // What has arrived at its socket is read before it ends.
        let said = collector.stopped();
        let line = said.lines().find(|line| line.starts_with("web-1")).unwrap();
        let (_, rest) = line.split_once("identity 4711): ").unwrap();
        let came = number(rest);
        let lost = number(rest.split_once("; ").unwrap().1);
        let before = number(rest.split("; ").nth(2).unwrap());
        assert_eq!(came + lost + before, 20_000, "{said}");
        assert!(lost > 1_000, "{said}");
        let found = headers(&out, &[]);
        assert_eq!(found.len() as u64, came);
        let known: HashSet<&String> = original.iter().collect();
        assert!(
            found.iter().all(|header| known.contains(header)),
            "{action}"
        );
        let distinct: HashSet<&String> = found.iter().collect();
        assert!(
            distinct.len() * 100 > found.len() * 99,
            "packets came twice"
        );
    }
}

/// The number that a text begins with, in groups of digits.
fn number(text: &str) -> u64 {
    let is_part = |letter: &char| letter.is_ascii_digit() || *letter == ',';
    let digits: String = text
        .chars()
        .take_while(is_part)
        .filter(char::is_ascii_digit)
        .collect();
    digits.parse().unwrap()
}
