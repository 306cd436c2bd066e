//! The loopback interface, where the kernel shows each packet as sent and as received.

use std::process::Command;

use super::live::{Recording, namespace, until};

const SENDS: &str = "import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('127.0.0.1', 5001))
for _ in range(50): s.sendto(b'x', ('127.0.0.1', 5001))";

#[test]
fn packets_on_the_loopback_are_recorded_once() {
    let Some(namespace) = namespace("loopback") else {
        return;
    };
    namespace.ip("link set lo up");
    for cores in ["0", "0,1"] {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let arguments = ["--mode", "log-all", "--cores", cores];
        let recording = Recording::start_on("lo", &namespace, &log, &arguments);
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace.name(), "python3", "-c", SENDS]);
        assert!(command.status().unwrap().success());
        until("all are logged", || recording.packets("logged", "") >= 50);
        recording.signal("INT");
        let (out, _) = recording.ended();
        assert!(out.contains("packets: seen 50 "), "--cores {cores}: {out}");
    }
}
