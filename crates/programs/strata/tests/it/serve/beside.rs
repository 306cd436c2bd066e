//! A recording beside the page.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use strata_testkit::Namespace;

use super::logs::capture;
use crate::common::program::{ok, strata};

const PATIENCE: Duration = Duration::from_secs(60);
/// Ends of a pair of interfaces.
const NEAR: &str = "st-near";
const FAR: &str = "st-far";
/// Packets a second.
const RATE: &str = "2000";

/// A recording of an interface on which packets arrive all the time.
pub(crate) struct Beside {
    pub(crate) log: PathBuf,
    pub(crate) socket: PathBuf,
    namespace: Namespace,
    recorder: Child,
    sender: Child,
}

impl Beside {
    pub(crate) fn start(dir: &Path) -> Self {
        let (log, socket) = (dir.join("beside"), dir.join("beside.sock"));
        let namespace = Namespace::new("st-beside");
        namespace.pair(NEAR, FAR);
        let mut record = strata();
        record.args(["record", "-i", FAR, "-o"]).arg(&log);
        let recorder = inside(&namespace, record.arg("--socket").arg(&socket));
        let start = Instant::now();
        while !listens(&socket) {
            assert!(start.elapsed() < PATIENCE, "the recording does not begin");
            thread::sleep(Duration::from_millis(100));
        }
        let mut replay = strata();
        replay.args(["replay", "-i", NEAR, "--pps", RATE, "--loop", "0", "-r"]);
        let sender = inside(&namespace, replay.arg(capture()));
        Self {
            log,
            socket,
            namespace,
            recorder,
            sender,
        }
    }

    /// Ends it: whatever the kernel delivered is in the log's accounting, and nothing was dropped.
    pub(crate) fn lost_nothing(mut self) {
        interrupt(&mut self.sender);
        let shown = Command::new("ip")
            .args(["-n", self.namespace.name(), "-s", "-j", "link", "show", FAR])
            .output()
            .unwrap();
        let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
        let delivered = shown[0]["stats64"]["rx"]["packets"].as_u64().unwrap();
        assert!(delivered > 1_000, "{shown}");
        assert!(interrupt(&mut self.recorder), "the recording failed");
        let info = ok(strata().args(["info", "--json"]).arg(&self.log));
        let from = info.find('[').expect("a list of recordings");
        let all: Value = serde_json::from_str(&info[from..]).unwrap();
        let accounting = &all[0]["accounting"];
        let of = |name: &str| accounting[name][0].as_u64().unwrap();
        assert_eq!(of("seen"), delivered, "{accounting}");
        let dropped = accounting["dropped"].as_array().unwrap().iter();
        let dropped: u64 = dropped.map(|one| one[1][0].as_u64().unwrap()).sum();
        assert_eq!(dropped, 0, "{accounting}");
        let ended = ["filtered", "discarded", "sampled_out", "logged"].map(of);
        assert_eq!(ended.iter().sum::<u64>(), delivered, "{accounting}");
        ok(strata().arg("verify").arg(&self.log));
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        for child in [&mut self.sender, &mut self.recorder] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Starts a program in a namespace.
fn inside(namespace: &Namespace, program: &Command) -> Child {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace.name()]);
    command.arg(program.get_program()).args(program.get_args());
    let command = command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// Whether a recording captures, and not only answers.
fn listens(socket: &Path) -> bool {
    let mut command = strata();
    let command = command.args(["status", "--json", "--socket"]).arg(socket);
    let said = command.output().unwrap();
    // Nothing is printed before the socket is there.
    let status = serde_json::from_slice::<Value>(&said.stdout).ok();
    let interfaces = status.and_then(|status| status["interfaces"].as_array().map(Vec::len));
    interfaces.is_some_and(|count| count > 0)
}

/// Ends a program as a user does; whether it succeeded.
fn interrupt(child: &mut Child) -> bool {
    let id = child.id().to_string();
    let sent = Command::new("kill").args(["-s", "INT", &id]).status();
    assert!(sent.unwrap().success());
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.success();
        }
        assert!(start.elapsed() < PATIENCE, "it does not end");
        thread::sleep(Duration::from_millis(20));
    }
}
