//! `strata replay` and `strata generate -i`, between the ends of a veth pair in a separate
//! namespace.
#![allow(clippy::print_stderr, reason = "says why a test did not run")]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const STRATA: &str = env!("CARGO_BIN_EXE_strata");
const SENDING: &str = "st-tr-t0";
const RECEIVING: &str = "st-tr-t1";

/// A network namespace with a veth pair, deleted when dropped.
struct Namespace(String);

impl Namespace {
    /// `None` where it cannot be created, with a message why.
    fn new(name: &str) -> Option<Self> {
        let namespace = Self(format!("st-tr-{name}"));
        let _ = ip(&["netns", "del", &namespace.0]);
        if let Err(reason) = ip(&["netns", "add", &namespace.0]) {
            assert!(std::env::var_os("CI").is_none(), "no namespace: {reason}");
            eprintln!("not run: no network namespace: {reason}");
            return None;
        }
        // No packets from the host itself.
        namespace.run("sysctl", &["-qw", "net.ipv6.conf.default.disable_ipv6=1"]);
        namespace.run(
            "ip",
            &[
                "link", "add", SENDING, "type", "veth", "peer", "name", RECEIVING,
            ],
        );
        for end in [SENDING, RECEIVING] {
            namespace.run("ip", &["link", "set", end, "up"]);
        }
        Some(namespace)
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.0, program])
            .args(arguments);
        command
    }

    /// Runs a program to its end; returns its standard error.
    fn run(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.command(program, arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{program} {arguments:?}: {said}");
        said
    }

    /// Starts tcpdump on the receiving end.
    fn tcpdump(&self, file: &Path) -> Child {
        let arguments = [
            "-i",
            RECEIVING,
            "-B",
            "65536",
            "-U",
            "-w",
            file.to_str().unwrap(),
        ];
        let mut command = self.command("tcpdump", &arguments);
        let child = command.stderr(Stdio::null()).spawn().unwrap();
        // It writes the file's header once it is capturing.
        let started = Instant::now();
        while !std::fs::metadata(file).is_ok_and(|file| file.len() >= 24) {
            assert!(started.elapsed() < Duration::from_secs(60), "no tcpdump");
            sleep(Duration::from_millis(10));
        }
        child
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = ip(&["netns", "del", &self.0]);
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip")
        .args(arguments)
        .output()
        .map_err(|e| e.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

fn strata(arguments: &[&str]) {
    let output = Command::new(STRATA).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}

/// The frames of a pcap file, little-endian.
fn frames(file: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(file).unwrap();
    let mut rest = &bytes[24..];
    let mut frames = Vec::new();
    while rest.len() >= 16 {
        let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        frames.push(rest[16..16 + len].to_vec());
        rest = &rest[16 + len..];
    }
    frames
}

/// Stops tcpdump once its file has stopped growing.
fn finish(mut tcpdump: Child, file: &Path, wanted: usize) -> Vec<Vec<u8>> {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(5) && frames(file).len() < wanted {
        sleep(Duration::from_millis(50));
    }
    tcpdump.kill().unwrap();
    tcpdump.wait().unwrap();
    frames(file)
}

#[test]
fn what_is_replayed_arrives_whole_and_in_order() {
    arrives_whole("replay", &["--profile", "cic-w2"]);
}

/// Live frames copy only what differs in these.
#[test]
fn frames_that_end_alike_arrive_whole_and_in_order() {
    arrives_whole("alike", &["--profile", "flood300", "--payload", "zero"]);
}

/// Replays generated traffic by each method.
fn arrives_whole(name: &str, traffic: &[&str]) {
    let Some(namespace) = Namespace::new(name) else {
        return;
    };
    namespace.run("ethtool", &["-K", RECEIVING, "gro", "on"]);
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace.pcap");
    let trace = trace.to_str().unwrap();
    let generate = ["generate", "-o", trace, "-c", "3000", "--flows", "200"];
    strata(&[&generate, traffic].concat());
    let sent = frames(Path::new(trace));
    for (method, name) in [("sendmmsg", "sendmmsg"), ("live-frames", "XDP live frames")] {
        let file = directory.path().join(format!("{method}.pcap"));
        let tcpdump = namespace.tcpdump(&file);
        let arguments = [
            "replay", "-i", SENDING, "-r", trace, "--pps", "20k", "--loop", "2", "--method", method,
        ];
        let said = namespace.run(STRATA, &arguments);
        let received = finish(tcpdump, &file, 6_000);
        assert!(
            said.contains("6,000 packets") && said.contains(name),
            "{said}"
        );
        assert_eq!(received.len(), 6_000, "{method}");
        assert!(
            received[..3_000] == sent && received[3_000..] == sent,
            "{method}"
        );
    }
    // The fastest that works is chosen.
    let said = namespace.run(
        STRATA,
        &["replay", "-i", SENDING, "-r", trace, "--topspeed"],
    );
    assert!(said.contains("XDP live frames"), "{said}");
    namespace.run("ethtool", &["-K", RECEIVING, "gro", "off"]);
    let file = directory.path().join("instead.pcap");
    let tcpdump = namespace.tcpdump(&file);
    let said = namespace.run(
        STRATA,
        &["replay", "-i", SENDING, "-r", trace, "--pps", "20k"],
    );
    assert!(
        said.contains("3,000 packets") && said.contains("sendmmsg"),
        "{said}"
    );
    assert!(finish(tcpdump, &file, 3_000) == sent);
    // To find out that live frames do not arrive takes longer than all packets are due: none of them is overdue then.
    let times = times(&file);
    let took = times[2_999] - times[1];
    assert!(took > 0.05, "a burst: all but the first in {took} s");
}

/// The times of a capture's packets as tshark reads them, in s since 1970.
fn times(file: &Path) -> Vec<f64> {
    let listed = Command::new("tshark")
        .args(["-T", "fields", "-e", "frame.time_epoch", "-r"])
        .arg(file)
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    listed.lines().map(|time| time.parse().unwrap()).collect()
}

/// The receiving end removes the tag in the same page that returns to the sender.
#[test]
fn a_tagged_frame_is_the_same_each_time() {
    let Some(namespace) = Namespace::new("tagged") else {
        return;
    };
    namespace.run("ethtool", &["-K", RECEIVING, "gro", "on"]);
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace.pcap");
    let mut frame: Vec<u8> = (0..=255).collect();
    frame[12..18].copy_from_slice(&[0x81, 0, 0, 7, 0x88, 0xb5]);
    let len = u32::try_from(frame.len()).unwrap();
    let header = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1, 0, 0, len, len];
    let header: Vec<u8> = header.into_iter().flat_map(u32::to_le_bytes).collect();
    std::fs::write(&trace, [header, frame.clone()].concat()).unwrap();
    let file = directory.path().join("received.pcap");
    let tcpdump = namespace.tcpdump(&file);
    let trace = trace.to_str().unwrap();
    let arguments = [
        "replay",
        "-i",
        SENDING,
        "-r",
        trace,
        "--pps",
        "20k",
        "--loop",
        "2000",
        "--method",
        "live-frames",
    ];
    namespace.run(STRATA, &arguments);
    let received = finish(tcpdump, &file, 2_000);
    assert_eq!(received.len(), 2_000);
    assert!(received.iter().all(|other| *other == frame));
}

/// A capture that does not fit into the memory that the process may have is sent in parts, and all of it.
#[test]
fn a_capture_larger_than_the_memory_is_sent_in_parts() {
    const FRAMES: u32 = 60_000;
    const LEN: u32 = 1_400;
    let Some(namespace) = Namespace::new("memory") else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace.pcap");
    let header = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1].map(u32::to_le_bytes);
    let mut bytes = header.concat();
    let mut frame = vec![0; LEN as usize];
    // An EtherType for experiments, to nobody: no protocol of the receiving end looks at it.
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    for number in 0..FRAMES {
        let record = [number / 1_000_000, number % 1_000_000, LEN, LEN];
        bytes.extend(record.map(u32::to_le_bytes).concat());
        frame[14..18].copy_from_slice(&number.to_be_bytes());
        bytes.extend_from_slice(&frame);
    }
    std::fs::write(&trace, bytes).unwrap();
    let counted = |interface: &str, name: &str| {
        let file = format!("/sys/class/net/{interface}/statistics/{name}");
        let output = namespace.command("cat", &[&file]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.trim().parse::<u64>().unwrap()
    };
    let ended = || counted(RECEIVING, "rx_packets") + counted(SENDING, "tx_dropped");
    let before = ended();
    // Less than the capture: 84 MB.
    let said = namespace.run(
        "prlimit",
        &[
            "--data=67108864",
            STRATA,
            "replay",
            "-i",
            SENDING,
            "-r",
            trace.to_str().unwrap(),
            "--topspeed",
            "--loop",
            "2",
            "--method",
            "sendmmsg",
        ],
    );
    assert!(
        said.contains("120,000 packets (168,000,000 bytes)"),
        "{said}"
    );
    // Those that the receiving end's queue did not take are counted, too.
    assert_eq!(ended() - before, u64::from(2 * FRAMES), "{said}");
}

#[test]
fn generated_traffic_is_sent_at_its_rate_until_the_time_is_over() {
    let Some(namespace) = Namespace::new("generate") else {
        return;
    };
    namespace.run("ethtool", &["-K", RECEIVING, "gro", "on"]);
    for method in ["sendmmsg", "live-frames"] {
        let arguments = [
            "generate",
            "-i",
            SENDING,
            "--profile",
            "cic-w3",
            "--flows",
            "1000",
            "--pps",
            "20k",
            "--duration",
            "1",
            "--method",
            method,
            "-c",
            "100k",
        ];
        let said = namespace.run(STRATA, &arguments);
        let packets = said
            .split("Actual: ")
            .nth(1)
            .unwrap()
            .split(" packets")
            .next()
            .unwrap();
        let packets: u64 = packets.replace(',', "").parse().unwrap();
        // Fewer on a busy machine, but not more.
        assert!((5_000..=21_000).contains(&packets), "{method}: {said}");
    }
}

#[test]
fn wrong_arguments_are_explained() {
    let said = |arguments: &[&str]| {
        let output = Command::new(STRATA).args(arguments).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace.pcap");
    let trace = trace.to_str().unwrap();
    strata(&["generate", "-o", trace, "-c", "10"]);
    let missing = said(&["replay", "-i", "st-tr-none", "-r", trace]);
    assert!(missing.contains("no interface 'st-tr-none'"), "{missing}");
    let slow = said(&["replay", "-i", "lo", "-r", trace, "--pps", "0"]);
    assert!(slow.contains("--pps must be above 0"), "{slow}");
    let both = said(&[
        "replay",
        "-i",
        "lo",
        "-r",
        trace,
        "--pps",
        "1",
        "--topspeed",
    ]);
    assert!(both.contains("cannot be used with"), "{both}");
    let profile = said(&["generate", "-o", trace, "--profile", "cic-w9"]);
    assert!(
        profile.contains("cic-w1") && profile.contains("imix"),
        "{profile}"
    );
}
