//! A recording whose traffic is not what its model knows, for as long as it takes to be sure: a minute.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use strata_testkit::{Namespace, data_dir, may_use_kernel};

use crate::common::disk::NEVER_FULL;

const NEAR: &str = "st-drift-c";
const FAR: &str = "st-drift-d";
/// A window is a minute; others may need the processor meanwhile.
const PATIENCE: Duration = Duration::from_secs(150);

/// A process that ends with its test.
struct Running(Child);

impl Running {
    fn start(namespace: &Namespace, arguments: &[&str]) -> Self {
        let mut command = Command::new("ip");
        let strata = env!("CARGO_BIN_EXE_strata");
        command.args(["netns", "exec", namespace.name(), strata]);
        command.args(arguments).stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The status of a recording; null if it does not answer.
fn status(socket: &Path) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strata"));
    let command = command.args(["status", "--json", "--socket"]);
    let output = command.arg(socket).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

fn until(what: &str, socket: &Path, is_so: impl Fn(&Value) -> bool) -> Value {
    let started = Instant::now();
    loop {
        let status = status(socket);
        if is_so(&status) {
            return status;
        }
        assert!(started.elapsed() < PATIENCE, "not {what}: {status}");
        thread::sleep(Duration::from_millis(200));
    }
}

/// Nothing but a flood: once a window of it is over, a warning says that the model does not fit, and
/// every packet is kept whole, as configured.
#[test]
fn a_recording_acts_once_a_whole_window_has_drifted() {
    if !may_use_kernel("recording from an interface") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let (config, socket, log) = (path("strata.toml"), path("socket"), path("log"));
    std::fs::write(&config, format!("on_drift = \"keep\"\n{NEVER_FULL}")).unwrap();
    let namespace = Namespace::new("st-drift");
    namespace.pair(NEAR, FAR);
    let record = ["record", "-i", FAR, "-B", "32MiB", "--config", &config];
    let to = ["--socket", &socket, "-o", &log];
    let _recording = Running::start(&namespace, &[&record[..], &to].concat());
    let socket = Path::new(&socket);
    until("recording", socket, |status| {
        let interfaces = status["interfaces"].as_array();
        interfaces.is_some_and(|all| !all.is_empty())
    });
    let flood = data_dir().join("labelled/cic2019-synflood/trace.pcap");
    let flood = flood.to_str().unwrap();
    let send = ["replay", "-i", NEAR, "-r", flood, "--pps", "4000"];
    let _sender = Running::start(&namespace, &[&send[..], &["--loop", "0"]].concat());
    let begun = Instant::now();
    let early = until("looked at", socket, |status| {
        status["drift"]["samples"].as_u64() >= Some(200)
    });
    assert_eq!(early["mode"], "default", "part of a window proves nothing");
    let drifted = until("answered", socket, |status| status["mode"] == "log-all");
    assert!(begun.elapsed() >= Duration::from_secs(50), "a whole window");
    assert_eq!(drifted["drift"]["fits"], false);
    assert_eq!(drifted["asked_mode"], "default");
    // From then on, packets are kept whole.
    let whole = |status: &Value| {
        let classes = status["classes"].as_array().into_iter().flatten();
        let whole = classes.filter(|class| class["granularity"] == "full");
        let packets = whole.filter_map(|class| class["packets"].as_u64());
        packets.sum::<u64>()
    };
    let before = whole(&drifted);
    until("kept whole", socket, |status| {
        whole(status) > before + 1_000
    });
}
