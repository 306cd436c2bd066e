//! What is exported in VXLAN comes out of the kernel's device as it was, on paths that carry less than a packet too.

use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Stdio};

use pcap::{Active, Capture};
use serde_json::Value;
use strata_testkit::{Namespace, may_use_kernel};

use super::capture;
use super::exports::{Running, configured, packets, until};
use crate::common::program::strata;
use crate::common::signal::signal;

const POLICY: &str = "[[policy]]\nmatch = 'tcp'\naction = 'payload -> here'\n";

/// The kernel's VXLAN device, of the interface's identity.
fn device(namespace: &Namespace, local: &str) -> Capture<Active> {
    namespace.ip(&format!(
        "link add vx0 type vxlan id 4711 local {local} dstport 4789 nolearning"
    ));
    namespace.ip("link set vx0 mtu 9000 up");
    opened(namespace, "vx0")
}

fn opened(namespace: &Namespace, name: &str) -> Capture<Active> {
    namespace.enter(|| {
        let device = Capture::from_device(name).unwrap();
        // A slot of the ring for each packet, which has as many bytes as the longest.
        let device = device
            .immediate_mode(true)
            .snaplen(16_384)
            .buffer_size(16 << 20);
        let device = device.open().unwrap();
        device.setnonblock().unwrap()
    })
}

/// Frames of IPv4, those of each connection together: of one, they are in order.
fn by_connection(mut frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    frames.sort_by_key(|frame| {
        let end = |address: usize, port: usize| {
            [&frame[address..address + 4], &frame[port..port + 2]].concat()
        };
        let mut ends = [end(26, 34), end(30, 36)];
        ends.sort();
        ends
    });
    frames
}

/// TCP packets of the capture.
fn expected() -> Vec<Vec<u8>> {
    let is_tcp = |data: &[u8]| data[12..14] == [8, 0] && data[23] == 6;
    let all = packets().into_iter().map(|((_, _, data), _)| data);
    by_connection(all.filter(|data| is_tcp(data)).collect())
}

/// Frames that the device gives out, until there are as many as expected.
fn found(device: &mut Capture<Active>, number: usize) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    until("everything decapsulated", || {
        while let Ok(packet) = device.next_packet() {
            found.push(packet.data.to_vec());
        }
        found.len() >= number
    });
    by_connection(found)
}

fn within(namespace: &Namespace) -> Command {
    let mut command = Command::new("ip");
    command.args([
        "netns",
        "exec",
        namespace.name(),
        env!("CARGO_BIN_EXE_strata"),
    ]);
    command
}

/// Records the capture, and exports; returns what the program says.
fn export(namespace: &Namespace, dir: &Path, to: &str) -> String {
    let config = configured(dir, to, POLICY);
    let mut command = within(namespace);
    command.args(["record", "-r"]).arg(capture());
    command.arg("--config").arg(&config);
    let output = command.args(["--default", "drop"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = [output.stdout, output.stderr].concat();
    String::from_utf8(said).unwrap()
}

#[test]
fn a_kernel_decapsulates_what_is_exported_in_vxlan() {
    if !may_use_kernel("a VXLAN device") {
        return;
    }
    let namespace = Namespace::new("st-exp-vx");
    namespace.ip("link set lo up");
    let mut device = device(&namespace, "127.0.0.1");
    let dir = tempfile::tempdir().unwrap();
    let said = export(&namespace, dir.path(), "vxlan://127.0.0.1");
    assert!(said.contains("are sent in IP fragments"), "{said}");
    let expected = expected();
    let found = found(&mut device, expected.len());
    assert!(found == expected, "{} of {}", found.len(), expected.len());
}

/// Two hosts on a path with the MTU of Ethernet, which carries less than a packet in VXLAN.
fn hosts() -> [Namespace; 2] {
    let [here, there] = ["st-vx-a", "st-vx-b"].map(Namespace::new);
    here.ip(&format!(
        "link add eth0 mtu 1500 type veth peer name eth0 mtu 1500 netns {}",
        there.name()
    ));
    for (host, address) in [(&here, "10.3.0.1"), (&there, "10.3.0.2")] {
        host.ip("link set lo up");
        host.ip("link set eth0 up");
        host.ip(&format!("addr add {address}/24 dev eth0"));
    }
    [here, there]
}

/// Packets that the path does not carry arrive whole, each flow by a port of its own choice, unless they are to be cut.
#[test]
fn long_packets_arrive_whole_on_a_path_that_carries_less() {
    if !may_use_kernel("a VXLAN device") {
        return;
    }
    let [here, there] = hosts();
    let mut device = device(&there, "10.3.0.2");
    let mut wire = opened(&there, "eth0");
    let expected = expected();
    assert!(expected.iter().any(|frame| frame.len() > 1450));
    for (to, then) in [
        (
            "vxlan://10.3.0.2",
            "frames of more than 1,464 bytes are sent in IP fragments",
        ),
        (
            "vxlan://10.3.0.2?cut",
            "frames of more than 1,464 bytes are cut",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let said = export(&here, dir.path(), to);
        assert!(said.contains(then), "{said}");
        let is_cut = to.ends_with("cut");
        let carried =
            |frame: &Vec<u8>| frame[..frame.len().min(if is_cut { 1464 } else { 9000 })].to_vec();
        let expected: Vec<Vec<u8>> = expected.iter().map(carried).collect();
        let found = found(&mut device, expected.len());
        assert!(
            found == expected,
            "{to}: {} of {}",
            found.len(),
            expected.len()
        );
    }
    let mut ports = std::collections::BTreeSet::new();
    while let Ok(packet) = wire.next_packet() {
        let is_first =
            packet.data[12..14] == [8, 0] && packet.data[20] & 0x1f == 0 && packet.data[21] == 0;
        if is_first && packet.data[23] == 17 {
            ports.insert(u16::from_be_bytes([packet.data[34], packet.data[35]]));
        }
    }
    assert!(
        ports.len() > 2 && ports.iter().all(|port| *port >= 49_152),
        "{ports:?}"
    );
}

/// What a recording sends in fragments over the interface that it captures is not captured again.
#[test]
fn own_fragments_are_not_exported_again() {
    if !may_use_kernel("recording from an interface") {
        return;
    }
    let [here, there] = hosts();
    let mut device = device(&there, "10.3.0.2");
    let dir = tempfile::tempdir().unwrap();
    let policy = "[[policy]]\nmatch = 'ip'\naction = 'payload -> here'\n";
    let config = configured(dir.path(), "vxlan://10.3.0.2", policy);
    let socket = dir.path().join("socket");
    let mut command = within(&here);
    command.args(["record", "-i", "eth0", "-B", "32MiB", "--default", "drop"]);
    command
        .arg("--socket")
        .arg(&socket)
        .arg("--config")
        .arg(&config);
    let child = command.stdout(Stdio::null()).spawn().unwrap();
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
    let sender = here.enter(|| UdpSocket::bind("10.3.0.1:0").unwrap());
    for number in 0_u8..100 {
        sender.send_to(&[number; 1472], "10.3.0.2:9").unwrap();
    }
    // Those are refused there, which costs answers.
    let mut ours = 0;
    until("everything is exported", || {
        while let Ok(packet) = device.next_packet() {
            ours += usize::from(packet.data.len() == 1514 && packet.data[23] == 17);
        }
        ours >= 100
    });
    signal(&running.0, "INT");
    assert!(running.0.wait().unwrap().success());
    while let Ok(packet) = device.next_packet() {
        ours += usize::from(packet.data.len() == 1514 && packet.data[23] == 17);
    }
    assert_eq!(ours, 100);
}
