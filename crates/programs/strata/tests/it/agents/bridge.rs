//! An agent captures a bridge and its ports: what crosses it is exported once, as the kernel counts what comes in.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use strata_testkit::{Namespace, may_use_kernel};

use crate::common::agents::{Running, until, within};
use crate::common::program::ok;
use crate::common::signal::signal;

pub(super) const PORTS: [&str; 3] = ["tap0", "tap1", "tap2"];

fn end(mut process: Running) {
    signal(&process.0, "INT");
    assert!(process.0.wait().unwrap().success());
}

/// UDP from the machine behind a port to that of another, or to all of them (`None`), with this source port.
fn frame(from: u8, to: Option<u8>, port: u16) -> Vec<u8> {
    let mac = |number: u8| [2, 0, 0, 0, 0, number + 1];
    let mut frame = to.map_or([0xff; 6], mac).to_vec();
    frame.extend(mac(from));
    frame.extend([8, 0, 0x45, 0, 0, 36, 0, 0, 0, 0, 64, 17, 0, 0]);
    frame.extend([10, 0, 0, from, 10, 0, 0, to.unwrap_or(255)]);
    // Netfilter lets a bridge drop what has no checksum.
    let words = frame[14..].chunks_exact(2);
    let sum: u32 = words
        .map(|two| u32::from(two[0]) << 8 | u32::from(two[1]))
        .sum();
    let folded = u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    frame[24..26].copy_from_slice(&(!folded).to_be_bytes());
    frame.extend(port.to_be_bytes());
    frame.extend([0, 53, 0, 16, 0, 0]);
    frame.resize(60, 0);
    frame
}

fn send(host: &Namespace, device: &str, frames: &[Vec<u8>]) {
    host.enter(|| {
        let mut sender = pcap::Capture::from_device(device).unwrap().open().unwrap();
        for frame in frames {
            sender.sendpacket(frame.as_slice()).unwrap();
        }
    });
}

/// What the kernel has counted for an interface.
fn counted(host: &Namespace, device: &str, what: &str) -> u64 {
    let mut command = Command::new("ip");
    let text = ok(command.args(["-n", host.name(), "-j", "-s", "link", "show", device]));
    let all: serde_json::Value = serde_json::from_str(&text).unwrap();
    all[0]["stats64"][what]["packets"].as_u64().unwrap()
}

/// Packets in a file by interface and source port.
fn found(path: &Path) -> BTreeMap<(String, u16), usize> {
    let mut command = Command::new("tshark");
    command.arg("-n").arg("-r").arg(path).args(["-T", "fields"]);
    command.args(["-e", "frame.interface_name", "-e", "udp.srcport"]);
    let output = command.output().expect("tshark is installed");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut all = BTreeMap::new();
    for (name, port) in text.lines().filter_map(|line| line.split_once('\t')) {
        *all.entry((name.to_owned(), port.parse().unwrap()))
            .or_default() += 1;
    }
    all
}

/// A Linux bridge with three ports, each with a machine.
fn linux(host: &Namespace) {
    host.ip("link add br0 type bridge mcast_snooping 0");
    host.ip("link set br0 up");
    for (number, port) in PORTS.iter().enumerate() {
        host.pair(port, &format!("vm{number}"));
        host.ip(&format!("link set {port} master br0"));
    }
}

/// What an agent exports of packets between machines and of this host's own: how many there are of each, by
/// interface and source port, and what the kernel counted meanwhile as coming in by ports, and as this host's.
/// The bridge br0 and its ports are made by `bridge`; the last packet is sent by the interface `last`.
pub(super) fn exported<T>(
    name: &str,
    bridge: impl FnOnce(&Namespace) -> T,
    last: &str,
    options: &[&str],
) -> (BTreeMap<(String, u16), usize>, [u64; 2], String) {
    let dir = tempfile::tempdir().unwrap();
    let host = Namespace::new(name);
    host.ip("link set lo up");
    let _bridge = bridge(&host);
    let policies = dir.path().join("policies.toml");
    let text = "[[policy]]\nname = 'all'\nmatch = 'udp port 53'\naction = 'header -> here'\n";
    fs::write(&policies, text).unwrap();
    let out = dir.path().join("out.pcapng");
    let mut command = within(Some(&host));
    let collector = Running(command.args(["collector", "-w"]).arg(&out).spawn().unwrap());
    let said = dir.path().join("agent.txt");
    let mut command = within(Some(&host));
    command.args(["agent", "-i", "tap*", "--name", "me", "--identity", "1"]);
    command.args(["--destination", "here=udp://127.0.0.1:4740", "--policy"]);
    command
        .arg(&policies)
        .arg("--state")
        .arg(dir.path().join("agent"))
        .args(options);
    let agent = Running(
        command
            .stderr(fs::File::create(&said).unwrap())
            .spawn()
            .unwrap(),
    );
    // The bridge learns where each machine is, and the agent is there.
    until("an agent that captures", || {
        for number in 0..3 {
            send(&host, &format!("vm{number}"), &[frame(number, None, 1000)]);
        }
        found(&out).len() >= 3
    });
    let now = || {
        let came = PORTS.iter().map(|port| counted(&host, port, "rx")).sum();
        [came, counted(&host, "br0", "tx")]
    };
    let before: [u64; 2] = now();
    // From one machine to another, to all of them, from this host to one, and on one port by itself.
    send(&host, "vm0", &vec![frame(0, Some(1), 2001); 200]);
    send(&host, "vm1", &vec![frame(1, None, 2002); 50]);
    send(&host, "br0", &vec![frame(9, Some(2), 2003); 30]);
    let after = now();
    send(&host, last, &[frame(9, Some(2), 2004)]);
    let is_last = |path: &Path| found(path).contains_key(&("me:tap2".into(), 2004));
    until("the last packet", || is_last(&out));
    end(agent);
    end(collector);
    let mut all = found(&out);
    all.retain(|(_, port), _| (2001..2004).contains(port));
    let said = fs::read_to_string(said).unwrap();
    (all, [after[0] - before[0], after[1] - before[1]], said)
}

pub(super) fn expected(all: &[(&str, u16, usize)]) -> BTreeMap<(String, u16), usize> {
    let one = |(name, port, count): &(&str, u16, usize)| ((format!("me:{name}"), *port), *count);
    all.iter().map(one).collect()
}

#[test]
fn what_crosses_a_bridge_is_exported_once() {
    if !may_use_kernel("a bridge in a network namespace") {
        return;
    }
    let (all, [came, sent], said) = exported("st-bridge-1", linux, "tap2", &["-i", "br?"]);
    let total: usize = all.values().sum();
    assert_eq!(total as u64, came + sent, "{all:?}");
    let once = [("tap0", 2001, 200), ("tap1", 2002, 50), ("tap2", 2003, 30)];
    assert_eq!(all, expected(&once));
    for what in ["bridge br0 is not captured", "where they enter"] {
        assert!(said.contains(what), "{said}");
    }
}

#[test]
fn every_copy_is_exported_if_that_is_asked_for() {
    if !may_use_kernel("a bridge in a network namespace") {
        return;
    }
    let (all, _, said) = exported("st-bridge-2", linux, "tap2", &["-i", "br?", "--all-copies"]);
    let copies = [
        ("br0", 2001, 200),
        ("tap0", 2001, 200),
        ("tap1", 2001, 200),
        ("br0", 2002, 50),
        ("tap0", 2002, 50),
        ("tap1", 2002, 50),
        ("tap2", 2002, 50),
        ("br0", 2003, 30),
        ("tap2", 2003, 30),
    ];
    assert_eq!(all, expected(&copies));
    assert!(!said.contains("bridge br0"), "{said}");
}
