//! Agents and their controller in network namespaces.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use strata_testkit::Namespace;

use super::program::{ok, strata};
use super::signal::signal;

/// A process, killed at the end.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(120), "not {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// The program, in a namespace if there is one.
pub(crate) fn within(namespace: Option<&Namespace>) -> Command {
    let Some(namespace) = namespace else {
        return strata();
    };
    let mut command = Command::new("ip");
    command.args([
        "netns",
        "exec",
        namespace.name(),
        env!("CARGO_BIN_EXE_strata"),
    ]);
    command
}

/// A controller with its directory.
pub(crate) struct Controller {
    pub(crate) process: Option<Running>,
    pub(crate) state: PathBuf,
    address: String,
}

impl Controller {
    pub(crate) fn start(dir: &Path, namespace: Option<&Namespace>, address: &str) -> Self {
        let mut controller = Self {
            process: None,
            state: dir.join("controller"),
            address: address.to_owned(),
        };
        controller.again(namespace);
        controller
    }

    pub(crate) fn again(&mut self, namespace: Option<&Namespace>) {
        self.process = None;
        let mut command = within(namespace);
        command.args(["controller", "run", "--encrypt"]);
        command.args(["--listen", &self.address, "--state"]);
        self.process = Some(Running(command.arg(&self.state).spawn().unwrap()));
        until("a controller", || {
            self.command(&["agents"]).output().unwrap().status.success()
        });
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = strata();
        command
            .arg("controller")
            .args(arguments)
            .arg("--state")
            .arg(&self.state);
        command
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&ok(self.command(arguments).arg("--json"))).unwrap()
    }

    /// Agents that run the version that holds.
    pub(crate) fn running(&self) -> u64 {
        self.json(&["rollout", "status"])["running"]
            .as_u64()
            .unwrap()
    }

    pub(crate) fn token(&self) -> PathBuf {
        self.state.join("enrol.token")
    }

    /// Token, and certificate of the authority.
    pub(crate) fn secrets(&self) -> (String, String) {
        let text = fs::read_to_string(self.token()).unwrap();
        let (token, authority) = text.split_once('\n').unwrap();
        (token.to_owned(), authority.to_owned())
    }

    pub(crate) fn stop(&mut self) {
        let mut process = self.process.take().unwrap();
        signal(&process.0, "INT");
        assert!(process.0.wait().unwrap().success());
    }
}

pub(crate) fn policies(dir: &Path, text: &str) -> String {
    let dir = dir.join("policies");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("all.toml"), text).unwrap();
    dir.display().to_string()
}

/// UDP from one address to another, the same for both tenants.
pub(crate) fn frame(number: u8) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend([
        0x45, 0, 0, 36, 0, number, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ]);
    frame.extend([0x30, 0x39, 0, 53, 0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    frame.resize(60, 0);
    frame
}

/// Where hosts meet, with a controller and a collector: 10.9.0.254.
pub(crate) fn middle(name: &str) -> Namespace {
    let middle = Namespace::new(name);
    middle.ip("link set lo up");
    middle.ip("link add br0 type bridge");
    middle.ip("addr add 10.9.0.254/24 dev br0");
    middle.ip("link set br0 up");
    middle
}

/// The agent of a host, whose name and label have its number.
pub(crate) fn agent(host: &Namespace, dir: &Path, controller: &Controller, number: u8) -> Running {
    let mut command = within(Some(host));
    command.args(["agent", "--controller", "10.9.0.254", "-i", "tap*"]);
    command.args(["--destination", "here=udp://10.9.0.254:4740"]);
    command.arg("--name").arg(format!("host-{number}"));
    command.arg("--host-label").arg(format!("rack={number}"));
    command.arg("--token-file").arg(controller.token());
    command
        .arg("--state")
        .arg(dir.join(format!("agent-{number}")));
    Running(command.spawn().unwrap())
}

/// A host behind the middle, with a tenant's interface `tap0` whose other end is `vm0`.
pub(crate) fn host(middle: &Namespace, number: u8) -> Namespace {
    let host = Namespace::new(&format!("st-ag-{number}"));
    host.ip("link set lo up");
    host.ip(&format!(
        "link add eth0 type veth peer name h{number} netns {}",
        middle.name()
    ));
    middle.ip(&format!("link set h{number} master br0 up"));
    host.ip(&format!("addr add 10.9.0.{number}/24 dev eth0"));
    host.ip("link set eth0 up");
    host.pair("tap0", "vm0");
    host
}

pub(crate) fn inject(host: &Namespace, device: &str, number: u8) {
    host.enter(|| {
        let mut sender = pcap::Capture::from_device(device).unwrap().open().unwrap();
        sender.sendpacket(frame(number)).unwrap();
    });
}
