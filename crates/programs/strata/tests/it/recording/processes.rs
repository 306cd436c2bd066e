//! `strata record --processes` on the loopback interface of a namespace, compared with `ss`.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::live::{Recording, namespace, until};
use crate::common::program::strata;

const SENDS: &str = "import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('127.0.0.1', 5001))
for _ in range(50): s.sendto(b'x', ('127.0.0.1', 5002))
t = socket.create_server(('127.0.0.1', 5003))
c = socket.create_connection(('127.0.0.1', 5003))
a = t.accept()[0]
c.sendall(b'question')
a.recv(8)
print('done', flush=True)
sys.stdin.read()";

#[test]
fn flows_and_packets_have_the_processes_that_ss_lists() {
    let Some(namespace) = namespace("processes") else {
        return;
    };
    namespace.ip("link set lo up");
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let recording = Recording::start_on(
        "lo",
        &namespace,
        &log,
        &["--mode", "log-all", "--processes"],
    );
    let inside = |program: &str| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace.name(), program]);
        command
    };
    let mut python = inside("python3")
        .args(["-c", SENDS])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut output = BufReader::new(python.stdout.take().unwrap());
    output.read_line(&mut said).unwrap();
    assert_eq!(said, "done\n");
    let listed = inside("ss").args(["-tnpH"]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let (_, users) = listed.split_once("users:((\"").unwrap();
    let (name, _) = users.split_once('"').unwrap();
    let users = format!("users:((\"{name}\",pid={},", python.id());
    // Both ends of the connection.
    assert_eq!(listed.matches(&users).count(), 2, "{listed}");
    // And the handshake, the question and its acknowledgement; errors about the port without a socket.
    until("all are logged", || recording.packets("logged", "") >= 55);
    recording.signal("INT");
    let (_, error) = recording.ended();
    assert!(error.contains("--processes: 5"), "{error}");
    drop(python.stdin.take());
    python.wait().unwrap();

    let records = strata()
        .arg("export")
        .arg(&log)
        .args(["-w", "-", "-F", "json"])
        .output()
        .unwrap();
    assert!(records.status.success());
    let text = String::from_utf8(records.stdout).unwrap();
    let rows: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let row = |port: u16| {
        rows.iter()
            .find(|row| row["dst_port"] == port && row["icmp_type"].is_null())
            .unwrap()
    };
    let (udp, tcp) = (row(5_002), row(5_003));
    for (row, sides) in [(udp, &["src"][..]), (tcp, &["src", "dst"])] {
        for side in sides {
            assert_eq!(row[format!("{side}_process")], name, "{row}");
            assert_eq!(row[format!("{side}_pid")], python.id(), "{row}");
            assert!(
                row[format!("{side}_cgroup")]
                    .as_str()
                    .unwrap()
                    .starts_with('/')
            );
        }
    }
    // No socket receives it.
    assert_eq!(udp["dst_process"], Value::Null);

    let capture = dir.path().join("out.pcapng");
    let exported = strata()
        .arg("export")
        .arg(&log)
        .arg("-w")
        .arg(&capture)
        .status()
        .unwrap();
    assert!(exported.success());
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(&capture);
    tshark.args(["-Y", "tcp.len == 8", "-T", "fields", "-e", "frame.comment"]);
    let comments = String::from_utf8(tshark.output().unwrap().stdout).unwrap();
    for side in ["src", "dst"] {
        let begin = format!("{side} pid={} cgroup=/", python.id());
        assert!(
            comments.contains(&begin) && comments.contains(&format!(" process={name}")),
            "{comments}"
        );
    }

    commands_know(&log, &capture, name, python.id());
}

/// What read and top say of the process with this name and PID.
fn commands_know(log: &Path, capture: &Path, name: &str, pid: u32) {
    let prints = |arguments: &[&str]| {
        let mut command = strata();
        command.arg(arguments[0]).arg(log).args(&arguments[1..]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let line = prints(&["read", "-c", "1", "tcp port 5003"]);
    for end in ["src", "dst"] {
        let said = format!(" {end}_process={name} {end}_pid={pid} {end}_cgroup=/");
        assert!(line.contains(&said), "{line}");
    }
    let line = prints(&["read", "-c", "1", "--json", "udp dst port 5002"]);
    let packet: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(packet["src_process"], name);
    assert_eq!(packet["src_pid"], pid);
    assert_eq!(packet["dst_process"], Value::Null);
    // The errors about the port without a socket have no process.
    let of_process = tshark_counts(capture, &format!("frame.comment contains \"pid={pid} \""));
    assert!(of_process >= 55);
    for wanted in [name, &pid.to_string()] {
        let lines = prints(&["read", "--process", wanted]);
        assert_eq!(lines.lines().count(), of_process);
    }
    assert_eq!(prints(&["read", "--process", "nobody-has-it"]), "");
    let top = prints(&["top", "--by", "process", "--json"]);
    let top: Value = serde_json::from_str(&top).unwrap();
    let rows = top["largest"].as_array().unwrap();
    let row = rows.iter().find(|row| row["process"] == name).unwrap();
    assert_eq!(row["packets"], of_process);
}

/// How many packets tshark shows of a capture.
fn tshark_counts(capture: &Path, filter: &str) -> usize {
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(capture).args(["-Y", filter]);
    let output = tshark.output().unwrap();
    String::from_utf8_lossy(&output.stdout).lines().count()
}
