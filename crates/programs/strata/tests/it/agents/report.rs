//! What agents report to their controller of the hosts on which they run: drops of the kernel, CPUs that are short.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use strata_testkit::{Namespace, may_use_kernel};

use crate::common::agents::{Controller, Running, policies, until, within};
use crate::common::program::ok;
use crate::common::signal::signal;

/// A controller, a collector, and an agent with these options, that exports whole packets of `tap0`.
struct Setup {
    host: Namespace,
    out: PathBuf,
    collector: Running,
    agent: Running,
    controller: Controller,
}

impl Setup {
    /// The agent runs on this CPU, if one is named.
    fn new(name: &str, dir: &Path, cpu: Option<&str>, options: &[&str]) -> Self {
        let host = Namespace::new(name);
        host.ip("link set lo up");
        host.pair("tap0", "vm0");
        let controller = Controller::start(dir, Some(&host), "127.0.0.1:4741");
        let text = "[[policy]]\nname = 'all'\nmatch = 'udp'\naction = 'payload -> here'\n";
        ok(&mut controller.command(&["apply", &policies(dir, text)]));
        let out = dir.join("out.pcapng");
        let mut command = within(Some(&host));
        command.args(["collector", "--key-file"]);
        command.arg(controller.state.join("export.key"));
        let collector = Running(command.arg("-w").arg(&out).spawn().unwrap());
        let plain = within(Some(&host));
        let mut command = match cpu {
            Some(cpu) => {
                let mut command = Command::new("taskset");
                command.args(["--cpu-list", cpu]).arg(plain.get_program());
                command.args(plain.get_args());
                command
            }
            None => plain,
        };
        command.args(["agent", "--controller", "127.0.0.1", "-i", "tap0"]);
        command.args(["--name", "me", "--destination", "here=udp://127.0.0.1:4740"]);
        command.arg("--token-file").arg(controller.token());
        command.arg("--state").arg(dir.join("agent")).args(options);
        let agent = Running(command.spawn().unwrap());
        let setup = Self {
            host,
            out,
            collector,
            agent,
            controller,
        };
        until("an agent that captures", || {
            setup.reported()["captures"] == 1
        });
        setup
    }

    /// What the controller knows of the agent.
    fn reported(&self) -> Value {
        self.controller.json(&["agents"])[0].clone()
    }

    fn send(&self, from_port: u16, bytes: usize) {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
        frame.extend(u16::try_from(bytes - 14).unwrap().to_be_bytes());
        frame.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend(from_port.to_be_bytes());
        frame.extend([0, 53]);
        frame.extend(u16::try_from(bytes - 34).unwrap().to_be_bytes());
        frame.resize(bytes, 0);
        self.host.enter(|| {
            let sender = pcap::Capture::from_device("vm0").unwrap();
            sender.open().unwrap().sendpacket(frame).unwrap();
        });
    }

    /// Lengths of packets that arrived, and of what was captured of them.
    fn arrived(&self) -> Vec<[u32; 2]> {
        let mut command = Command::new("tshark");
        command
            .arg("-n")
            .arg("-r")
            .arg(&self.out)
            .args(["-T", "fields"]);
        let output = command
            .args(["-e", "frame.len", "-e", "frame.cap_len"])
            .output();
        let text = String::from_utf8(output.expect("tshark is installed").stdout).unwrap();
        let pairs = text.lines().filter_map(|line| line.split_once('\t'));
        pairs
            .map(|(one, other)| [one, other].map(|text| text.parse().unwrap()))
            .collect()
    }

    /// The process that records.
    fn recording(&self) -> u32 {
        let agent = self.agent.0.id();
        let children = fs::read_to_string(format!("/proc/{agent}/task/{agent}/children")).unwrap();
        children.split_whitespace().next().unwrap().parse().unwrap()
    }
}

fn steer(process: u32, name: &str) {
    let mut command = Command::new("kill");
    ok(command.args(["-s", name, &process.to_string()]));
}

/// While the recording is stopped, its ring fills: a block of it every 10 ms, however little is in it.
#[test]
fn the_controller_knows_what_the_kernels_of_agents_drop() {
    if !may_use_kernel("an agent in a network namespace") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut setup = Setup::new("st-report-1", dir.path(), None, &[]);
    assert_eq!(setup.reported()["dropped"], 0);
    until("a first packet", || {
        setup.send(999, 200);
        !setup.arrived().is_empty()
    });
    let arrived = |setup: &Setup| {
        let all = setup.arrived().into_iter();
        all.filter(|lengths| *lengths == [60, 60]).count() as u64
    };
    let recording = setup.recording();
    steer(recording, "STOP");
    let mut sent = 0;
    // Each is in a block of its own, of 32.
    for _ in 0..100 {
        setup.send(1000, 60);
        sent += 1;
        thread::sleep(Duration::from_millis(12));
    }
    steer(recording, "CONT");
    until("a report of drops", || setup.reported()["dropped"] != 0);
    let dropped = setup.reported()["dropped"].as_u64().unwrap();
    until("all that was not dropped", || {
        arrived(&setup) + dropped >= sent
    });
    let text = ok(&mut setup.controller.command(&["agents"]));
    let line = format!("    {dropped} packets dropped by its kernel");
    assert!(text.contains(&line), "{text}");
    signal(&setup.collector.0, "INT");
    setup.collector.0.wait().unwrap();
    // Nothing is counted twice.
    assert_eq!(arrived(&setup) + dropped, sent);
}

/// Another recording takes the place of one when an interface comes: what was counted before is not forgotten.
#[test]
fn counts_go_on_when_interfaces_come() {
    if !may_use_kernel("an agent in a network namespace") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut setup = Setup::new("st-report-3", dir.path(), None, &["-i", "tap1"]);
    let exported = |setup: &Setup| setup.reported()["exports"][0]["packets"].as_u64();
    until("a first packet", || {
        setup.send(999, 200);
        !setup.arrived().is_empty()
    });
    for _ in 0..200 {
        setup.send(1000, 60);
    }
    until("a report of 200 packets", || exported(&setup) >= Some(201));
    let before = setup.recording();
    setup.host.pair("tap1", "vm1");
    until("another recording", || setup.reported()["captures"] == 2);
    assert_ne!(setup.recording(), before);
    assert!(exported(&setup) >= Some(201));
    for _ in 0..50 {
        setup.send(1001, 60);
    }
    until("all packets", || {
        exported(&setup) == Some(setup.arrived().len() as u64) && exported(&setup) >= Some(251)
    });
    signal(&setup.collector.0, "INT");
    setup.collector.0.wait().unwrap();
    assert_eq!(exported(&setup), Some(setup.arrived().len() as u64));
}

/// Others want the CPU on which an agent runs: it copies headers only, and less is left of its budget.
#[test]
fn an_agent_gives_way_to_others_on_its_cpu() {
    if !may_use_kernel("an agent in a network namespace") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup::new("st-report-2", dir.path(), Some("0"), &["--cpu", "80%"]);
    let burn = || {
        let mut command = Command::new("taskset");
        command.args(["--cpu-list", "0", "sh", "-c", "while :; do :; done"]);
        Running(command.spawn().unwrap())
    };
    let burners = [burn(), burn()];
    until("an agent that gives way", || {
        let cpu = &setup.reported()["cpu"];
        cpu["budget"] == 800 && cpu["left"] == 50
    });
    let text = ok(&mut setup.controller.command(&["agents"]));
    assert!(text.contains("headers only, and at most 5.0 %: "), "{text}");
    let mut port = 1000;
    until("a packet of which only headers were copied", || {
        // Other flows are captured if this one is not.
        port += 1;
        setup.send(port, 1000);
        setup.arrived().contains(&[1000, 256])
    });
    drop(burners);
}
