//! Shortages that are really there, and what is done about them.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail loudly too")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use strata_testkit::{Namespace, may_use_kernel};

/// A small disk of its own, gone with the value.
struct Disk(PathBuf);

impl Disk {
    fn new(dir: &Path, size: &str) -> Self {
        let path = dir.join("disk");
        fs::create_dir(&path).unwrap();
        let option = format!("size={size}");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &option, "strata-test"])
            .arg(&path)
            .status();
        assert!(mount.unwrap().success());
        Self(path)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Sends UDP packets of 1,400 bytes, so many a second, until it is killed.
fn sender(namespace: &Namespace, interface: &str, per_second: u32) -> Child {
    let program = format!(
        "import socket, time\n\
         s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)\n\
         s.bind(('{interface}', 0))\n\
         ip = bytes.fromhex('4500056e0000400040110000c0000201c0000202')\n\
         udp = bytes.fromhex('0fa00fa1055a0000')\n\
         f = bytes.fromhex('0200000000020200000000010800') + ip + udp + bytes(1362)\n\
         while True:\n    for _ in range({per_second} // 50):\n        s.send(f)\n    time.sleep(0.02)\n"
    );
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace.name(), "python3", "-c", &program]);
    command.stderr(Stdio::null()).spawn().unwrap()
}

fn status(socket: &Path) -> Option<Value> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strata"));
    let output = command
        .args(["status", "--json", "--socket"])
        .arg(socket)
        .output()
        .unwrap();
    serde_json::from_slice(&output.stdout).ok()
}

/// The disk fills while everything is kept: at its threshold the mode is one that keeps a
/// tenth of what is ordinary, nothing is lost by it, and the books are right to the end.
#[test]
fn a_disk_that_fills_is_answered_before_it_is_full() {
    if !may_use_kernel("a disk that fills") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::new(dir.path(), "64m");
    let namespace = Namespace::new("rules-disk");
    namespace.pair("in0", "out0");
    let config = dir.path().join("strata.toml");
    // The flow is of one class; whatever that is, a relief of payload and number shrinks it.
    fs::write(
        &config,
        "mode = ['log-all']\n[elastic]\ndisk_space_percent = 40\n",
    )
    .unwrap();
    let socket = dir.path().join("control.sock");
    let mut recording = Command::new("ip");
    recording
        .args(["netns", "exec", namespace.name()])
        .arg(env!("CARGO_BIN_EXE_strata"));
    recording
        .args(["record", "-i", "in0", "--config"])
        .arg(&config);
    recording
        .arg("-o")
        .arg(disk.0.join("log"))
        .arg("--socket")
        .arg(&socket);
    let recording = recording
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut sending = sender(&namespace, "out0", 10_000);

    let start = Instant::now();
    let mut modes = vec![String::from("log-all")];
    let mut answered = None;
    while start.elapsed() < Duration::from_secs(20) && answered.is_none() {
        thread::sleep(Duration::from_millis(50));
        let Some(status) = status(&socket) else {
            continue;
        };
        let mode = status["mode"].as_str().unwrap().to_owned();
        if modes.last() != Some(&mode) {
            modes.push(mode);
        }
        let disk = &status["resources"][0];
        if modes.last().is_some_and(|mode| mode == "log-minimum") {
            answered = Some(disk["used"].as_f64().unwrap());
        }
    }
    let _ = sending.kill();
    let _ = sending.wait();
    // The child of `ip netns exec` is the program itself.
    let stopped = Command::new("kill")
        .args(["-INT", &recording.id().to_string()])
        .status();
    assert!(stopped.unwrap().success());
    let output = recording.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let used = answered.unwrap_or_else(|| panic!("{modes:?}: {text}"));
    assert!((0.4..0.9).contains(&used), "answered at {used}: {text}");
    assert!(text.contains("disk_space is short: 4"), "{text}");
    assert!(text.contains("+ dropped 0 + in_flight 0"), "{text}");
}
