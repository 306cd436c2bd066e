//! Recording from an interface as a user does it, in a network of the test's own.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail loudly too")]

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use strata_testkit::{Namespace, data_dir, may_use_kernel};

const NEAR: &str = "st-live-c";
const FAR: &str = "st-live-d";

/// Ethernet packets of a capture with 94 of them.
fn capture() -> std::path::PathBuf {
    data_dir().join("labelled/cic2017-sqli/trace.pcap")
}

struct Recording {
    child: Child,
}

impl Recording {
    /// `strata record` that has begun to capture.
    fn start(namespace: &Namespace, log: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new("ip");
        command
            .args([
                "netns",
                "exec",
                namespace.name(),
                env!("CARGO_BIN_EXE_strata"),
            ])
            .args(["record", "-i", FAR, "-B", "32MiB", "-o"])
            .arg(log)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        let started = Instant::now();
        while !log.join("manifest.json").exists() {
            assert!(started.elapsed() < Duration::from_secs(20));
            thread::sleep(Duration::from_millis(20));
        }
        thread::sleep(Duration::from_millis(300));
        Self { child }
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args([name, &id])
                .status()
                .unwrap()
                .success()
        );
    }

    /// What it printed, once it has ended well.
    fn ended(mut self) -> (String, String) {
        let status = self.child.wait().unwrap();
        let mut text = (String::new(), String::new());
        let (out, err) = (self.child.stdout.take(), self.child.stderr.take());
        out.unwrap().read_to_string(&mut text.0).unwrap();
        err.unwrap().read_to_string(&mut text.1).unwrap();
        assert!(status.success(), "{text:?}");
        text
    }
}

fn namespace(test: &str) -> Option<Namespace> {
    may_use_kernel("recording from an interface").then(|| {
        let namespace = Namespace::new(&format!("st-live-{test}"));
        namespace.pair(NEAR, FAR);
        namespace
    })
}

fn send(namespace: &Namespace) {
    namespace.enter(|| {
        let mut sender = pcap::Capture::from_device(NEAR).unwrap().open().unwrap();
        let mut file = pcap::Capture::from_file(capture()).unwrap();
        while let Ok(packet) = file.next_packet() {
            sender.sendpacket(packet.data).unwrap();
        }
    });
    thread::sleep(Duration::from_millis(300));
}

fn info(log: &Path) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strata"));
    let output = command.args(["info", "--json"]).arg(log).output().unwrap();
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Lengths and bytes of the packets in a file, by tcpdump.
fn dump(file: &Path) -> String {
    let output = Command::new("tcpdump")
        .args(["-ttXXnr"])
        .arg(file)
        .output()
        .unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    // Without the times, which are those of now.
    text.lines()
        .filter(|line| line.starts_with('\t'))
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn what_is_sent_is_logged_and_signals_are_followed() {
    let Some(namespace) = namespace("record") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let recording = Recording::start(&namespace, &log, &["--mode", "log-all", "--cores", "0,1"]);
    send(&namespace);
    recording.signal("-USR1");
    // Long enough for packets to be in a file, though the block is not full.
    thread::sleep(Duration::from_millis(2_500));
    recording.signal("-HUP");
    thread::sleep(Duration::from_millis(500));
    send(&namespace);
    recording.signal("-INT");
    let (out, err) = recording.ended();
    assert!(err.contains("packets: seen 94 ="), "{err}");
    assert!(
        err.contains("94 packets received by filter, 0 dropped by kernel"),
        "{err}"
    );
    assert!(out.contains("packets: seen 188 = filtered 0"), "{out}");
    assert!(
        out.contains("logged 188 + dropped 0 + in_flight 0"),
        "{out}"
    );
    let info = info(&log);
    assert_eq!(info[0]["books"]["logged"][0], 188, "{info}");
    let files = log
        .join("blocks")
        .read_dir()
        .unwrap()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().ends_with(".strata"));
    assert!(files.count() >= 2, "HUP begins new files");

    let exported = dir.path().join("out.pcap");
    let mut export = Command::new(env!("CARGO_BIN_EXE_strata"));
    export
        .args(["export", "-F", "pcap", "-w"])
        .arg(&exported)
        .arg(&log);
    assert!(export.status().unwrap().success());
    // Merged by time, both workers' packets are in the order in which they were sent.
    let once = dump(&capture());
    assert_eq!(dump(&exported), format!("{once}\n{once}"));
}

#[test]
fn a_filter_and_a_number_of_packets_end_it() {
    let Some(namespace) = namespace("count") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let recording = Recording::start(&namespace, &log, &["-c", "7", "tcp", "src", "port", "80"]);
    send(&namespace);
    let (out, _) = recording.ended();
    assert!(out.contains("logged 7 + dropped 0"), "{out}");
}

#[test]
fn an_interface_that_is_not_there_leaves_no_log() {
    if !may_use_kernel("recording from an interface") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let mut command = Command::new(env!("CARGO_BIN_EXE_strata"));
    let output = command
        .args(["record", "-i", "st-live-x", "-o"])
        .arg(&log)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("there is no interface 'st-live-x' here: there are lo"),
        "{text}"
    );
    assert!(!log.exists());
}

#[test]
fn a_disk_that_is_full_ends_it_and_keeps_what_is_written() {
    let Some(namespace) = namespace("full") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mount = |arguments: &[&str]| {
        let status = Command::new("mount")
            .args(arguments)
            .arg(dir.path())
            .status();
        status.unwrap().success()
    };
    if !mount(&["-t", "tmpfs", "-o", "size=384k", "st-live"]) {
        eprintln!("not run: no tmpfs can be mounted here");
        return;
    }
    let log = dir.path().join("log");
    let arguments = ["--mode", "log-all", "--block-size", "64KiB"];
    let mut recording = Recording::start(&namespace, &log, &arguments);
    let started = Instant::now();
    let status = loop {
        if let Some(status) = recording.child.try_wait().unwrap() {
            break status;
        }
        assert!(started.elapsed() < Duration::from_secs(60));
        send(&namespace);
    };
    let mut text = String::new();
    recording
        .child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    let mut info = Command::new(env!("CARGO_BIN_EXE_strata"));
    let info = info.arg("info").arg(&log).output().unwrap();
    let said = String::from_utf8_lossy(&info.stdout).into_owned();
    let unmounted = Command::new("umount").arg(dir.path()).status().unwrap();
    assert!(unmounted.success());
    assert_eq!(status.code(), Some(1), "{text}");
    assert!(text.contains("No space left"), "{text}");
    assert!(
        said.contains("anomalous") || said.contains("benign"),
        "{said}"
    );
}
