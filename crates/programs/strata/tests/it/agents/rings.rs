//! A ring that many interfaces share, as users see it: in a status, and where the kernel refuses eBPF.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use strata_testkit::{Namespace, may_use_kernel};

use crate::common::agents::{Running, until};
use crate::common::program::{failed, strata};
use crate::common::signal::signal;

/// What eBPF is a matter of.
const WITHOUT_EBPF: &str = "--bounding-set=-bpf,-sys_admin,-perfmon";

fn two_pairs(name: &str) -> Option<Namespace> {
    may_use_kernel("recording interfaces").then(|| {
        let host = Namespace::new(name);
        host.pair("tap0", "vm0");
        host.pair("tap1", "vm1");
        host
    })
}

/// `strata record` of both, with or without the right to use eBPF.
fn record(host: &Namespace, may_use_ebpf: bool) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", host.name()]);
    if !may_use_ebpf {
        command.args(["setpriv", WITHOUT_EBPF]);
    }
    command.args([env!("CARGO_BIN_EXE_strata"), "record", "-i", "tap0,tap1"]);
    command
}

fn status(socket: &Path) -> Value {
    let mut command = strata();
    let command = command.args(["status", "--json", "--socket"]).arg(socket);
    serde_json::from_slice(&command.output().unwrap().stdout).unwrap_or_default()
}

/// Records ten packets of one interface and five of the other; the status then, and its output.
fn recorded(host: &Namespace, may_use_ebpf: bool) -> (Value, String) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let mut command = record(host, may_use_ebpf);
    command.args(["--rings", "one", "-B", "8MiB", "-o"]);
    command.arg(dir.path().join("log"));
    command.arg("--socket").arg(&socket).stderr(Stdio::piped());
    let mut recording = Running(command.stdout(Stdio::null()).spawn().unwrap());
    until("a recording", || {
        let interfaces = status(&socket)["interfaces"].clone();
        interfaces.as_array().is_some_and(|all| all.len() == 2)
    });
    host.enter(|| {
        for (name, count) in [("vm0", 10), ("vm1", 5)] {
            let mut sender = pcap::Capture::from_device(name).unwrap().open().unwrap();
            for _ in 0..count {
                sender.sendpacket([0xff; 60]).unwrap();
            }
        }
    });
    let mut last = Value::Null;
    until("all packets", || {
        last = status(&socket);
        let all = last["interfaces"].as_array();
        all.is_some_and(|all| all.iter().map(received).sum::<u64>() == 15)
    });
    signal(&recording.0, "INT");
    assert!(recording.0.wait().unwrap().success());
    let mut said = String::new();
    let mut errors = recording.0.stderr.take().unwrap();
    errors.read_to_string(&mut said).unwrap();
    (last, said)
}

fn received(interface: &Value) -> u64 {
    interface["received"].as_u64().unwrap()
}

fn counts(status: &Value) -> Vec<(String, u64, u64)> {
    let all = status["interfaces"].as_array().unwrap().iter();
    all.map(|one| {
        let name = one["name"].as_str().unwrap().to_owned();
        (name, received(one), one["dropped"].as_u64().unwrap())
    })
    .collect()
}

#[test]
fn a_status_tells_interfaces_of_a_shared_ring_apart() {
    let Some(host) = two_pairs("st-rings-1") else {
        return;
    };
    let (status, said) = recorded(&host, true);
    let expected = [("tap0".to_owned(), 10, 0), ("tap1".to_owned(), 5, 0)];
    assert_eq!(counts(&status), expected);
    let shown = "capturing on tap0: AF_PACKET, shared ring; tap1: AF_PACKET, shared ring";
    assert!(said.contains(shown), "{said}");
    assert!(!said.contains("a ring of its own"), "{said}");
}

#[test]
fn without_ebpf_each_interface_has_its_own_ring() {
    let Some(host) = two_pairs("st-rings-2") else {
        return;
    };
    let (status, said) = recorded(&host, false);
    let expected = [("tap0".to_owned(), 10, 0), ("tap1".to_owned(), 5, 0)];
    assert_eq!(counts(&status), expected);
    assert!(
        said.contains("on tap0: AF_PACKET; tap1: AF_PACKET"),
        "{said}"
    );
    let times = said.matches("each interface has its own ring").count();
    assert_eq!(times, 1, "{said}");
}

#[test]
fn without_ebpf_ports_of_bridges_are_refused_with_what_helps() {
    let Some(host) = two_pairs("st-rings-3") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut command = record(&host, false);
    command.args(["--bridge-ports", "tap0,tap1", "-o"]);
    let said = failed(command.arg(dir.path().join("log")));
    for words in ["needs eBPF", "--all-copies", "--bridge-ports"] {
        assert!(said.contains(words), "{said}");
    }
}
