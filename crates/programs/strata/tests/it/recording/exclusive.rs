//! `--exclusive=auto` as users see it: what is decided, where it is reported, and what becomes of
//! an interface that is replaced while the recording has no privileges left.

use std::cell::Cell;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use strata_testkit::{Namespace, may_use_kernel};

use crate::common::recording;
use crate::common::signal::signal;

const STRATA: &str = env!("CARGO_BIN_EXE_strata");
const NEAR: &str = "st-auto-a";
const FAR: &str = "st-auto-b";

struct Recording(Option<Child>);

impl Recording {
    fn start(namespace: &Namespace, dir: &Path, more: &[&str]) -> Self {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace.name(), STRATA]);
        command.args(["record", "-i", FAR, "-B", "4096", "--immediate-mode", "-o"]);
        command.arg(dir.join("log")).arg("--socket");
        command.arg(dir.join("control")).args(more);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(Some(child.spawn().unwrap()))
    }

    /// What it printed, on either stream.
    fn ended(mut self) -> String {
        signal(self.0.as_ref().unwrap(), "INT");
        let output = self.0.take().unwrap().wait_with_output().unwrap();
        let text = text(&output);
        assert!(output.status.success(), "{text}");
        text
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn text(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{out}{err}")
}

/// A program of the user's in a namespace.
fn run(namespace: &Namespace, arguments: &[&str]) -> String {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace.name(), STRATA]);
    text(&command.args(arguments).output().unwrap())
}

fn namespace(test: &str) -> Option<Namespace> {
    may_use_kernel("recording from an interface").then(|| {
        let namespace = Namespace::new(&format!("st-auto-{test}"));
        pair(&namespace);
        namespace
    })
}

/// A pair whose packets fit the frames of AF_XDP.
fn pair(namespace: &Namespace) {
    namespace.pair(NEAR, FAR);
    namespace.ip(&format!("link set {NEAR} mtu 1500"));
    namespace.ip(&format!("link set {FAR} mtu 1500"));
}

/// Sends UDP packets, half of them to port 4000, the rest to 5000.
fn send(namespace: &Namespace, packets: u16) {
    let frame = |port: u16| {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
        frame.extend([0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17, 0, 0]);
        frame.extend([192, 0, 2, 1, 192, 0, 2, 2, 0x30, 0x39]);
        frame.extend(port.to_be_bytes());
        frame.extend([0, 26, 0, 0]);
        frame.resize(60, 0);
        frame
    };
    namespace.enter(|| {
        let mut sender = pcap::Capture::from_device(NEAR).unwrap().open().unwrap();
        for number in 0..packets {
            let port = if number % 2 == 0 { 4000 } else { 5000 };
            sender.sendpacket(frame(port)).unwrap();
        }
    });
}

fn wait_for(dir: &Path, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    recording::wait_for(&dir.join("control"), what, wanted)
}

fn interface(status: &Value, field: &str) -> String {
    let found = &status["interfaces"][0][field];
    found.as_str().unwrap_or("").to_owned()
}

fn received(status: &Value) -> Option<u64> {
    status["interfaces"][0]["received"].as_u64()
}

#[test]
fn an_unused_interface_is_taken_and_shared_once_it_was_replaced() {
    let Some(namespace) = namespace("taken") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let listed = run(&namespace, &["interfaces", FAR]);
    let possible = "exclusive capture: possible, since nothing else on this host uses it";
    assert!(listed.contains(possible), "{listed}");
    let auto = ["--exclusive=auto", "udp port 4000"];
    let recording = Recording::start(&namespace, dir.path(), &auto);
    let status = wait_for(dir.path(), "interfaces", |status| {
        received(status).is_some()
    });
    assert_eq!(
        interface(&status, "capture"),
        "AF_XDP, native program, copy"
    );
    assert_eq!(interface(&status, "exclusive"), "taken away from this host");
    send(&namespace, 10);
    wait_for(dir.path(), "packets", |status| received(status) == Some(5));

    // What receiving costs shows here too, though these packets do not go through the stack.
    let before = Cell::new(5);
    wait_for(dir.path(), "a CPU that receives", |status| {
        send(&namespace, 2);
        before.set(before.get() + 1);
        status["receive"]
            .as_array()
            .is_some_and(|cpus| !cpus.is_empty())
    });
    let before = before.get();
    wait_for(dir.path(), "packets", |status| {
        received(status) == Some(before)
    });

    namespace.ip(&format!("link del {FAR}"));
    let events = || {
        let socket = dir.path().join("control");
        run(
            &namespace,
            &["status", "--socket", socket.to_str().unwrap()],
        )
    };
    wait_for(dir.path(), "it is gone", |_| {
        events().contains("was removed; waiting")
    });
    pair(&namespace);
    let status = wait_for(dir.path(), "it is back", |status| {
        interface(status, "capture") == "AF_PACKET"
    });
    assert_eq!(
        interface(&status, "exclusive"),
        "no: the interface was replaced"
    );
    assert!(events().contains("captured through AF_PACKET from now on: restart"));
    // The filter is still the kernel's.
    send(&namespace, 10);
    let all = before + 5;
    let status = wait_for(dir.path(), "packets", |status| {
        received(status) == Some(all)
    });
    let filtered = status["packets"].as_array().unwrap().iter();
    let filtered: Vec<_> = filtered.filter(|end| end["result"] == "filtered").collect();
    assert_eq!(filtered[0]["packets"], all, "of both ways: {status}");
    let said = recording.ended();
    let decision = format!(
        "{FAR}: packets that pass the filter are taken away from this host, where nothing else \
         uses it \
         (by --exclusive=auto)"
    );
    assert!(said.contains(&decision), "{said}");
    assert!(
        said.contains("capturing on st-auto-b: AF_XDP, native program, copy,"),
        "{said}"
    );
    let log = dir.path().join("log");
    let info = run(&namespace, &["info", log.to_str().unwrap()]);
    assert!(info.contains(&format!("event: {decision}")), "{info}");
}

#[test]
fn a_used_interface_is_shared_and_the_reason_is_said() {
    let Some(namespace) = namespace("used") else {
        return;
    };
    namespace.ip(&format!("addr add 192.0.2.1/24 dev {FAR}"));
    let listed = run(&namespace, &["interfaces"]);
    assert!(
        listed.contains("exclusive capture: no: has address 192.0.2.1/24"),
        "{listed}"
    );
    let dir = tempfile::tempdir().unwrap();
    let recording = Recording::start(&namespace, dir.path(), &["--exclusive=auto"]);
    let status = wait_for(dir.path(), "interfaces", |status| {
        received(status).is_some()
    });
    assert_eq!(interface(&status, "capture"), "AF_PACKET");
    let why = interface(&status, "exclusive");
    assert!(why.starts_with("no: has address 192.0.2.1/24"), "{why}");
    let said = recording.ended();
    let decision =
        format!("{FAR}: shared with this host, through AF_PACKET: has address 192.0.2.1/24");
    assert!(said.contains(&decision), "{said}");
    let log = dir.path().join("log");
    let info = run(&namespace, &["info", log.to_str().unwrap()]);
    assert!(info.contains(&format!("event: {decision}")), "{info}");
}

/// Nothing is taken away unasked, but users learn that it could be.
#[test]
fn the_status_recommends_what_is_possible() {
    let Some(namespace) = namespace("possible") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let recording = Recording::start(&namespace, dir.path(), &[]);
    let status = wait_for(dir.path(), "interfaces", |status| {
        received(status).is_some()
    });
    assert_eq!(interface(&status, "capture"), "AF_PACKET");
    let possible = "possible, since nothing else on this host uses it (--exclusive=auto)";
    assert_eq!(interface(&status, "exclusive"), possible);
    let socket = dir.path().join("control");
    let page = run(
        &namespace,
        &["status", "--socket", socket.to_str().unwrap()],
    );
    assert!(
        page.contains(&format!("AF_PACKET; exclusive capture: {possible}")),
        "{page}"
    );
    assert!(!recording.ended().contains("--exclusive"));
}
